"""The quick benchmark of aggregates: figures, goals, and the oracle for answers after repair."""

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from latecomer.bench import aggregate as bench
from latecomer.bench import aggregate_spark as on_spark

FIGURES = (
    "fig3_slack_game1",
    "fig3_slack_game2",
    "fig4_mean_delay",
    "fig5_accuracy_game1",
    "fig5_accuracy_game2",
    "fig6_throughput",
)


def test_quick_benchmark_draws_its_figures_and_judges_its_goals(tmp_path: Path):
    lines: list[str] = []
    summary = bench.run(None, tmp_path, lines.append, quick=True)
    for name in FIGURES:
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert len((tmp_path / f"{name}.csv").read_text().splitlines()) >= 3
    with (tmp_path / "fig5_accuracy_game1.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert float(last["hpm, repaired"]) == 1.0 > float(last["hpm"]), "repair makes the end exact"
    goals = {goal["name"]: goal for goal in summary["goals"]}
    for game in ("game1", "game2"):
        kept, promised = summary[f"{game}.calibrated"]["kept"], goals[f"{game}, answers within the error by calibrated"]
        assert promised["measured"] == kept and promised["met"] == (kept >= 0.95)
        wait = goals[f"{game}, mean wait of calibrated over that of mp_k_slack"]
        assert wait["met"] and 0 < wait["measured"] < 0.2
        assert summary[f"{game}.mp_k_slack"]["wait_to_mp"] == 1.0
    assert summary["game1.clairvoyant"]["wait_mean_s"] < summary["game1.mp_k_slack"]["wait_mean_s"]
    assert set(summary["shards"]) == {"1", "2"}
    assert set(summary["ceiling"]) == ({"2"} if on_spark.cores_to_try()[-1] > 1 else set())
    assert any(
        line.startswith("game1, answers within the error by calibrated") and line.endswith("met") for line in lines
    )


def test_a_goal_that_is_not_reached_is_called_missed():
    measures = {
        "game1.calibrated": {"kept": 0.94, "slack_to_mp": 0.1, "wait_to_mp": 0.3},
        "zeek.hpm": {"kept": 0.1},
        "game2.hpm": {"kept": 0.94, "slack_to_mp": 0.3, "wait_to_mp": 0.3},
    }
    spark = {"speedup": 1.5, "ceiling": 1.7, "wrong_after_repair": 1}
    lines: list[str] = []
    goals = bench.goals(measures, {"1": 100.0, "2": 143.0}, {"2": 1.6}, spark, lines.append)
    met = {goal["name"]: goal["met"] for goal in goals}
    assert met.pop("game1, mean slack of calibrated over that of mp_k_slack")
    assert met and not any(met.values()) and not any("zeek" in name for name in met)
    assert sum(line.endswith("MISSED") for line in lines) == len(met)


def test_shards_are_judged_against_copies_of_the_whole_stream():
    for shards, met in ((143.0, False), (145.0, True)):
        spark = {"speedup": shards / 100, "ceiling": 1.6, "wrong_after_repair": 0}
        goals = bench.goals({}, {"1": 100.0, "2": shards}, {"2": 1.6}, spark, lambda line: None)
        assert [goal["met"] for goal in goals if " over one" in goal["name"]] == [met, met]


@pytest.mark.parametrize(
    ("speedup", "cores", "sequential"), [(2.0, 2, 0.0), (1.0, 2, 1.0), (2.5, 4, 0.2), (2.2, 2, 0.0)]
)
def test_sequential_share_follows_amdahls_law(speedup, cores, sequential):
    shares = on_spark.amdahl(100.0 * speedup, 100.0, cores)
    assert shares["speedup"] == pytest.approx(speedup) and shares["sequential"] == pytest.approx(sequential)


def test_a_speedup_beyond_the_cores_is_no_measurement_and_meets_no_goal():
    totals = on_spark.amdahl(416.0, 100.0, 2) | {"ceiling": 1.7, "wrong_after_repair": 0}
    assert np.isnan(totals["speedup"]) and np.isnan(totals["sequential"])
    goals = bench.goals({}, {"1": 1.0}, {}, totals, lambda line: None)
    assert [goal["met"] for goal in goals if goal["name"].startswith("on Spark")] == [False]


def test_merged_games_arrive_by_stream_time_and_lose_no_tuple():
    alone, two = on_spark.events(1, 3_000), on_spark.events(2, 3_000)
    assert len(two) == 6_000 and set(two["sensor"].to_pylist()) == set(range(1, 17))
    times = alone["event_ts"].to_numpy()
    assert np.array_equal(
        np.sort(times), np.sort(on_spark.sources.football_aggregate(0, 2, 3_000)["event_time_us"].to_numpy())
    )
    delays = np.maximum.accumulate(two["event_ts"].to_numpy()) - two["event_ts"].to_numpy()
    delays_alone = np.maximum.accumulate(times) - times
    assert delays_alone.max() <= delays.max() <= 2 * delays_alone.max() + 1_000_000, "merging adds little delay"


@pytest.mark.parametrize("change", ["none", "total", "missing", "extra", "twice"])
def test_answers_after_repair_are_compared_with_sums_over_all_rows(change):
    rng = np.random.default_rng(1)
    times = rng.integers(0, 5_000_000, 300)
    rows = pa.table({"event_ts": times, "value": rng.random(300), "sensor": rng.integers(1, 4, 300).astype(np.int16)})
    answers: dict[tuple[int, int], float] = {}
    for time, value, sensor in zip(times.tolist(), rows["value"].to_pylist(), rows["sensor"].to_pylist(), strict=True):
        for back in range(5):
            answers[time // 100_000 - back, sensor] = answers.get((time // 100_000 - back, sensor), 0.0) + value
    table = [[window * 100_000, sensor, total] for (window, sensor), total in answers.items()]
    if change == "total":
        table[7][2] *= 1 + 1e-9
    elif change == "missing":
        table.pop(7)
    elif change == "extra":
        table.append([9_000_000, 1, 1.0])
    elif change == "twice":
        table.append(list(table[7]))
    columns = list(zip(*table, strict=True))
    start = pa.array(columns[0], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    results = pa.table({"window_start": start, "sensor": pa.array(columns[1], pa.int16()), "total": columns[2]})
    assert on_spark.count_wrong(results, rows) == (change != "none")


def test_cores_are_measured_where_the_environment_names_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    monkeypatch.setattr(on_spark, "cores_to_try", lambda: (1,))
    rates, totals = on_spark.measure(tmp_path, lambda line: None, games=1, rows=40_000, turns=1)
    assert totals["wrong_after_repair"] == 0
    for shards in on_spark.SHARDS:
        assert rates[f"1.{shards}"]["rows_per_second"] > 0
    assert (tmp_path / "fig6_throughput_spark.png").read_bytes()[:4] == b"\x89PNG"
