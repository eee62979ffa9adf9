"""The benchmark of aggregates in seconds: its figures, its goals, and the oracle that its repaired answers are held against."""

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


def test_quick_benchmark_draws_its_figures_and_says_what_was_reached(tmp_path: Path):
    lines: list[str] = []
    found = bench.run(None, tmp_path, lines.append, quick=True)
    for name in FIGURES:
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert len((tmp_path / f"{name}.csv").read_text().splitlines()) >= 3
    with (tmp_path / "fig5_accuracy_game1.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert float(last["hpm, repaired"]) == 1.0 > float(last["hpm"]), "repair makes the end exact"
    goals = {each["name"]: each for each in found["goals"]}
    for game in ("game1", "game2"):
        kept, promised = found[f"{game}.calibrated"]["kept"], goals[f"{game}, answers within the error by calibrated"]
        assert promised["measured"] == kept and promised["met"] == (kept >= 0.95)
        wait = goals[f"{game}, mean wait of calibrated over that of mp_k_slack"]
        assert wait["met"] and 0 < wait["measured"] < 0.2
        assert found[f"{game}.mp_k_slack"]["wait_to_mp"] == 1.0
    assert found["game1.clairvoyant"]["wait_mean_s"] < found["game1.mp_k_slack"]["wait_mean_s"]
    assert set(found["shards"]) == {"1", "2"}
    assert set(found["ceiling"]) == ({"2"} if on_spark.cores_to_try()[-1] > 1 else set())
    assert any(
        line.startswith("game1, answers within the error by calibrated") and line.endswith("met") for line in lines
    )


def test_a_goal_that_is_not_reached_is_called_missed():
    strategies = {
        "game1.calibrated": {"kept": 0.94, "slack_to_mp": 0.1, "wait_to_mp": 0.3},
        "zeek.hpm": {"kept": 0.1},
        "game2.hpm": {"kept": 0.94, "slack_to_mp": 0.3, "wait_to_mp": 0.3},
    }
    spark = {"speedup": 1.5, "ceiling": 1.7, "wrong_after_repair": 1, "1.1": {}}
    lines: list[str] = []
    memory = {"shards": {"1": 100.0, "2": 143.0}, "ceiling": {"2": 1.6}}
    goals = bench.goals(strategies | memory | {"spark": spark}, lines.append)
    met = {each["name"]: each["met"] for each in goals}
    assert met.pop("game1, mean slack of calibrated over that of mp_k_slack")
    assert met and not any(met.values()) and not any("zeek" in name for name in met)
    assert sum(line.endswith("MISSED") for line in lines) == len(met)


def test_shards_are_judged_by_what_copies_of_the_whole_reach():
    for shards, met in ((143.0, False), (145.0, True)):
        memory = {"shards": {"1": 100.0, "2": shards}, "ceiling": {"2": 1.6}}
        spark = {"speedup": shards / 100, "ceiling": 1.6, "wrong_after_repair": 0}
        goals = bench.goals(memory | {"spark": spark}, lambda line: None)
        assert [each["met"] for each in goals if " over one" in each["name"]] == [met, met]


@pytest.mark.parametrize(
    ("speedup", "cores", "sequential"), [(2.0, 2, 0.0), (1.0, 2, 1.0), (2.5, 4, 0.2), (2.2, 2, 0.0)]
)
def test_sequential_share_is_what_amdahl_says(speedup, cores, sequential):
    found = on_spark.amdahl(100.0 * speedup, 100.0, cores)
    assert found["speedup"] == pytest.approx(speedup) and found["sequential"] == pytest.approx(sequential)


def test_a_speedup_that_cores_cannot_give_is_no_measurement_and_meets_no_goal():
    found = on_spark.amdahl(416.0, 100.0, 2) | {"ceiling": 1.7, "wrong_after_repair": 0}
    assert np.isnan(found["speedup"]) and np.isnan(found["sequential"])
    goals = bench.goals({"shards": {"1": 1.0}, "ceiling": {}, "spark": found}, lambda line: None)
    assert [each["met"] for each in goals if each["name"].startswith("on Spark")] == [False]


def test_games_at_once_arrive_by_stream_time_and_lose_no_tuple():
    one, two = on_spark.events(1, 3_000), on_spark.events(2, 3_000)
    assert len(two) == 6_000 and set(two["sensor"].to_pylist()) == set(range(1, 17))
    times = one["event_ts"].to_numpy()
    assert np.array_equal(
        np.sort(times), np.sort(on_spark.sources.football_aggregate(0, 2, 3_000)["event_time_us"].to_numpy())
    )
    delays = np.maximum.accumulate(two["event_ts"].to_numpy()) - two["event_ts"].to_numpy()
    own = np.maximum.accumulate(times) - times
    assert own.max() <= delays.max() <= 2 * own.max() + 1_000_000, "merging games makes nothing much later than it was"


@pytest.mark.parametrize("change", ["none", "total", "missing", "extra", "twice"])
def test_answers_after_repair_are_compared_with_sums_over_all_rows(change):
    rng = np.random.default_rng(1)
    times = rng.integers(0, 5_000_000, 300)
    rows = pa.table({"event_ts": times, "value": rng.random(300), "sensor": rng.integers(1, 4, 300).astype(np.int16)})
    answers: dict[tuple[int, int], float] = {}
    for time, value, sensor in zip(times.tolist(), rows["value"].to_pylist(), rows["sensor"].to_pylist(), strict=True):
        for back in range(5):
            answers[time // 100_000 - back, sensor] = answers.get((time // 100_000 - back, sensor), 0.0) + value
    found = [[window * 100_000, sensor, total] for (window, sensor), total in answers.items()]
    if change == "total":
        found[7][2] *= 1 + 1e-9
    elif change == "missing":
        found.pop(7)
    elif change == "extra":
        found.append([9_000_000, 1, 1.0])
    elif change == "twice":
        found.append(list(found[7]))
    columns = list(zip(*found, strict=True))
    start = pa.array(columns[0], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    results = pa.table({"window_start": start, "sensor": pa.array(columns[1], pa.int16()), "total": columns[2]})
    assert on_spark.wrong(results, rows) == (change != "none")


def test_cores_are_measured_from_an_environment_that_knows_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    monkeypatch.setattr(on_spark, "cores_to_try", lambda: (1,))
    found = on_spark.measure(tmp_path, lambda line: None, games=1, rows=40_000, turns=1)
    assert found["wrong_after_repair"] == 0
    for shards in on_spark.SHARDS:
        assert found[f"1.{shards}"]["rows_per_second"] > 0
    assert (tmp_path / "fig6_throughput_spark.png").read_bytes()[:4] == b"\x89PNG"
