"""The workloads and the benchmark of joins: published figures of the generators, and measurements of the methods.

Differential: pairs, statistics, decisions and results against the join's data plane in memory and the references.
Oracle: pairs by brute force, rows held and latency tuple at a time, shares of late tuples by quadrature.
"""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer import bench
from latecomer.bench import data, join, plots
from latecomer.bench.join_simulator import Input, qjoin
from latecomer.core.join.control import JoinControl
from latecomer.core.time import FOREVER, NEVER
from latecomer.reference import join as reference
from latecomer.strategies.join import retention_policy

from tests.support import join_sim

SECOND = 1_000_000


def stream_delays(table) -> np.ndarray:
    ts, stream = table["event_time_us"].to_numpy(), table["stream"].to_numpy()
    delay = np.empty(len(ts), np.int64)
    for name in (data.BALL, data.PLAYERS):
        delay[stream == name] = data.delays(ts[stream == name])
    return delay


# -- generators --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "which, rows, seconds, late, mean_us, max_us",
    [("D1", 7_122_060, 831.17, 0.834, 34_133, 142_146_640), ("D2", 4_022_600, 384.08, 0.868, 29_597, 170_959_260)],
)
def test_football_join_has_the_published_rate_late_share_mean_and_maximum(which, rows, seconds, late, mean_us, max_us):
    table = data.football_join(7, which)
    ts, delay = table["event_time_us"].to_numpy(), stream_delays(table)
    assert table.num_rows == pytest.approx(rows, abs=2)
    assert ts.max() - data.EPOCH_US == pytest.approx(seconds * SECOND, rel=1e-3)
    assert (delay > 0).mean() == pytest.approx(late, abs=0.005)
    assert delay.mean() == pytest.approx(mean_us, rel=0.04)
    assert delay.max() == max_us
    assert np.quantile(delay, 0.5) < 0.8 * delay.mean() < 0.1 * np.quantile(delay, 0.9995)
    assert ts.min() >= data.EPOCH_US
    for axis, size in zip("xy", data.PITCH_M, strict=True):
        place = table[axis].to_numpy()
        assert -1e-9 <= place.min() < place.max() <= size + 1e-9


@pytest.mark.parametrize(
    "game, rows, late, mean_us, max_us",
    [(1, 544_223, 0.576, 34_000, 14_200_000), (2, 559_211, 0.668, 64_000, 17_100_000)],
)
def test_football_aggregate_has_the_published_figures(game, rows, late, mean_us, max_us):
    table = data.football_aggregate(7, game)
    delay = data.delays(table["event_time_us"].to_numpy())
    assert table.num_rows == rows
    assert (delay > 0).mean() == pytest.approx(late, abs=0.005)
    assert delay.mean() == pytest.approx(mean_us, rel=0.05)
    assert delay.max() == max_us
    assert set(table["sensor"].to_pylist()) == set(range(1, 17))


def test_a_share_of_the_tuples_keeps_the_greatest_delay_and_nearly_all_of_long_delays():
    whole, part = data.football_join(3, "D2", 60.0), data.football_join(3, "D2", 60.0, keep=0.2)
    long, kept = stream_delays(whole), stream_delays(part)
    assert part.num_rows == pytest.approx(0.2 * whole.num_rows, rel=0.02)
    assert kept.max() == pytest.approx(long.max(), rel=0.01)
    assert (kept > SECOND).mean() == pytest.approx((long > SECOND).mean(), rel=0.25)


@pytest.mark.parametrize("rate, mean_us", [(500.0, 20_000.0), (100.0, 100_000.0)])
def test_exponential_is_late_as_often_as_theory_says(rate, mean_us):
    table = data.exponential(5, 60_000, rate, mean_us)
    ts = table["event_time_us"].to_numpy()
    u = np.linspace(0, 20 * mean_us, 200_001)
    behind = rate / SECOND * (u - mean_us * -np.expm1(-u / mean_us))
    on_time = np.trapezoid(np.exp(-u / mean_us) / mean_us * np.exp(-behind), u)
    assert (data.delays(ts) > 0).mean() == pytest.approx(1 - on_time, abs=0.01)
    assert (ts.max() - ts.min()) * rate / SECOND == pytest.approx(60_000, rel=0.02)


def test_generators_are_functions_of_their_seed():
    for make in (
        lambda s: data.football_join(s, "D1", 3.0),
        lambda s: data.football_aggregate(s, 1, 5_000),
        lambda s: data.exponential(s, 1_000, 100.0, 1e5),
    ):
        assert make(4).equals(make(4))
        assert not make(4).equals(make(5))


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="D1, D2"):
        data.football_join(1, "D3")
    with pytest.raises(ValueError, match="1, 2"):
        data.football_aggregate(1, 3)
    with pytest.raises(ValueError, match="theta_join"):
        bench.run("sort", None, join.Path("."), print)


def test_football_pairs_oracle():
    table = data.football_join(2, "D1", 4.0, keep=0.02)
    ts, stream, x, y = (table[c].to_numpy() for c in ("event_time_us", "stream", "x", "y"))
    ball, players = np.flatnonzero(stream == 0), np.flatnonzero(stream == 1)
    near = (np.abs(ts[ball][:, None] - ts[players]) <= SECOND // 2) & (
        (x[ball][:, None] - x[players]) ** 2 + (y[ball][:, None] - y[players]) ** 2 <= 25.0
    )
    expected = {(int(ball[i]), int(players[j])) for i, j in zip(*np.nonzero(near), strict=True)}
    pairs = data.football_pairs(table, SECOND // 2, 5.0)
    assert len(pairs) == len(expected) > 1_000
    assert {(a, b) for a, b in pairs.tolist()} == expected


def test_loaders_of_real_data():
    folder = join_sim.shared_data("zeek_events.parquet").parent
    case = join.keyed_case("dns-ssl", data.zeek(folder, "dns", "ssl", "orig_h"), 10 * SECOND)
    other = join_sim.zeek_case("dns", "ssl", 10 * SECOND)
    assert len(case.early) == other.pair_x.size == pytest.approx(622_000, abs=1_000)
    assert set(data.zeek_stream(folder, "dns")["stream"].to_pylist()) == {"dns"}
    seq = data.ooo(folder, "d-1")["seq"].to_numpy()
    assert len(seq) and (np.diff(seq) > 0).all()
    parameters = join.settings_of("clairvoyant", 0.95, 10 * SECOND)
    d, _ = join_sim.clairvoyant(other, 0.95, 60 * SECOND, parameters.granularity_us)
    assert join.clairvoyant(case, parameters).rows_all == pytest.approx(join_sim.constant_rows(other, d), rel=0.05)
    fixed = join.run_method(case, replace(parameters, strategy="k_slack", slack_us=d), [])
    assert fixed.rows_all == pytest.approx(join_sim.constant_rows(other, d), rel=1e-3)


# -- measurement -------------------------------------------------------------------------------------------------------


def small_case(seed: int, rows: int, keys: int, window_us: int) -> join.Case:
    rng = np.random.default_rng(seed)
    true = np.sort(rng.integers(0, rows * 20_000, rows))
    lag = np.where(rng.random(rows) < 0.4, rng.exponential(800_000, rows), 0).astype(np.int64)
    ts = (np.maximum(true - lag, 0) // 1_000) * 1_000 + 1_700_000_000 * SECOND
    side = (rng.random(rows) < 0.5).astype(np.int8)
    side[:2] = 0, 1
    key = rng.integers(0, keys, rows)
    i, j = np.nonzero(
        (side[:, None] == 0) & (side == 1) & (key[:, None] == key) & (np.abs(ts[:, None] - ts) <= window_us)
    )
    return join.make_case("small", ts, side, np.arange(rows), np.stack([i, j], axis=1), window_us)


def as_input(case: join.Case) -> Input:
    rows = [np.flatnonzero(case.side == s) for s in (0, 1)]
    first = case.side[case.early] == 0
    left, right = np.where(first, case.early, case.late), np.where(first, case.late, case.early)
    pairs = np.stack([np.searchsorted(rows[0], left), np.searchsorted(rows[1], right)], axis=1)
    return Input((case.seq[rows[0]], case.seq[rows[1]]), (case.ts[rows[0]], case.ts[rows[1]]), pairs)


@pytest.mark.parametrize("method", [*join.QJOIN, "exact"])
def test_differential_decisions_and_pairs_of_the_data_plane_in_memory(method):
    case = small_case(11, 1_500, 3, SECOND)
    parameters = replace(join.settings_of(method, 0.9, SECOND, quick=True), interval_us=SECOND // 2)
    control = JoinControl(
        retention_policy(parameters, None, None),
        window_us=SECOND,
        interval_us=parameters.interval_us,
        granularity_us=parameters.granularity_us,
        period_us=parameters.period_us,
    )
    other = qjoin(as_input(case), control)
    decided, _ = join.decide(parameters, join.counts(case, parameters)[method])
    for s in (0, 1):
        np.testing.assert_array_equal(decided.base[s], other.horizons.base[s])
        np.testing.assert_array_equal(decided.retention[s], other.horizons.retention[s])
    assert method == "exact" or (decided.retention[0] < FOREVER).sum() > 20
    horizons = tuple(decided.at(s, case.stream_time_us, parameters.interval_us, SECOND) for s in (0, 1))
    produced = join.symmetric(case, horizons)
    np.testing.assert_array_equal(produced, other.produced)
    outcome = join.run_method(case, parameters, join.counts(case, parameters)[method])
    assert outcome.recall_all == other.produced.mean()
    assert outcome.latency_us == 0


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    seed=st.integers(0, 1_000),
    slack_ms=st.sampled_from([0, 1, 40, 300, 2_000, 60_000]),
    window_us=st.sampled_from([0, 1_000, 300_000]),
)
def test_differential_fixed_slack_against_the_reference(seed, slack_ms, window_us):
    case = small_case(seed, 60, 2, window_us)
    pairs = {frozenset(p) for p in zip(case.early.tolist(), case.late.tolist(), strict=True)}
    arrivals = [reference.Arrival(i, int(s), int(t)) for i, (s, t) in enumerate(zip(case.side, case.ts, strict=True))]
    expected = reference.k_slack(arrivals, window_us, slack_ms * 1_000, lambda a, b: frozenset((a.seq, b.seq)) in pairs)
    parameters = replace(join.settings_of("k_slack", 0.9, window_us), slack_us=slack_ms * 1_000)
    produced, _ = join.reordered(case, join.watermarks(case, parameters, None))
    results = {frozenset(p) for p in zip(case.early[produced].tolist(), case.late[produced].tolist(), strict=True)}
    assert results == {frozenset(p) for p in expected}


def replay(case: join.Case, parameters) -> tuple[set, float, float]:
    """MP-K-slack or fixed slack, tuple at a time: pairs, mean rows held over stream time, mean latency (us)."""
    partners = [set() for _ in case.ts]
    for a, b in zip(case.early.tolist(), case.late.tolist(), strict=True):
        partners[a].add(b)
        partners[b].add(a)
    highest, slack, watermark, clock = [NEVER, NEVER], 0, NEVER, None
    waiting, window, pairs, waits, arrived = [], [], set(), [], {}
    area, start = 0, None
    for row, (ts, side) in enumerate(zip(case.ts.tolist(), case.side.tolist(), strict=True)):
        highest[side] = max(highest[side], ts)
        slack = max(slack, highest[side] - ts) if parameters.strategy == "mp_k_slack" else parameters.slack_us
        stream_time_us = min(highest)
        if stream_time_us > NEVER:
            start = stream_time_us if start is None else start
            area += (len(waiting) + len(window)) * (stream_time_us - (stream_time_us if clock is None else clock))
            clock, watermark = stream_time_us, max(watermark, stream_time_us - slack)
        arrived[row] = stream_time_us
        (window if ts < watermark else waiting).append(row)
        for released_row in sorted((r for r in waiting if case.ts[r] <= watermark), key=lambda r: (case.ts[r], r)):
            waiting.remove(released_row)
            for other in window:
                if other in partners[released_row]:
                    pairs.add(frozenset((released_row, other)))
                    waits.append(clock - max(arrived[released_row], arrived[other]))
            window.append(released_row)
        window = [r for r in window if case.ts[r] + case.window_us > watermark]
    for released_row in sorted(waiting, key=lambda r: (case.ts[r], r)):
        for other in window:
            if other in partners[released_row]:
                pairs.add(frozenset((released_row, other)))
                waits.append(clock - max(arrived[released_row], arrived[other]))
        window.append(released_row)
    return pairs, area / (clock - start), float(np.mean(waits))


@pytest.mark.parametrize("method, slack_us", [("mp_k_slack", 0), ("k_slack", 0), ("k_slack", 700_000)])
@pytest.mark.parametrize("seed", [1, 2])
def test_oracle_of_slack_pairs_rows_held_and_latency(method, slack_us, seed):
    case = small_case(seed, 700, 3, SECOND)
    # a period of one microsecond makes every period count
    parameters = replace(join.settings_of(method, 0.9, SECOND), slack_us=slack_us, period_us=1)
    pairs, rows, latency = replay(case, parameters)
    decided, _ = join.decide(replace(parameters, period_us=SECOND), join.summarise(case, SECOND, 10_000))
    produced, output = join.reordered(case, join.watermarks(case, parameters, decided))
    assert {
        frozenset(p) for p in zip(case.early[produced].tolist(), case.late[produced].tolist(), strict=True)
    } == pairs
    clock = np.append(np.maximum(case.stream_time_us, case.start_us), case.stream_time_us[-1])
    assert (clock[output[produced]] - clock[case.late[produced]]).mean() == pytest.approx(latency)
    assert join.run_method(
        case, replace(parameters, period_us=SECOND), join.summarise(case, SECOND, 10_000)
    ).rows_all == (pytest.approx(rows, rel=1e-9))
    assert 0 < produced.mean() < 1 or method == "mp_k_slack"


@pytest.mark.parametrize("method", ["empirical", "exact"])
def test_oracle_of_rows_held_under_retention(method):
    case = small_case(21, 900, 3, SECOND)
    parameters = replace(join.settings_of(method, 0.8, SECOND, quick=True), interval_us=SECOND)
    summaries = join.summarise(case, SECOND, parameters.granularity_us)
    decided, _ = join.decide(parameters, summaries)
    horizons = tuple(decided.at(s, case.stream_time_us, SECOND, SECOND) for s in (0, 1))
    area, held, clock = 0, [], None
    for row, (ts, side, stream_time_us) in enumerate(
        zip(case.ts.tolist(), case.side.tolist(), case.stream_time_us.tolist(), strict=True)
    ):
        if stream_time_us > NEVER:
            area += len(held) * (stream_time_us - (stream_time_us if clock is None else clock))
            clock = stream_time_us
        held = [(s, t) for s, t in [*held, (side, ts)] if t > horizons[s][row]]
    mean = area / (clock - case.start_us)
    nothing = np.zeros(len(case.early), bool)
    assert join.measure(case, parameters, horizons, nothing, case.late, False).rows_all == pytest.approx(mean, rel=1e-9)
    assert join.measure(case, parameters, horizons, nothing, case.late, True).rows_all >= mean


def test_the_clairvoyant_is_the_least_constant_that_meets_the_target():
    case = small_case(5, 3_000, 2, SECOND)
    parameters = replace(join.settings_of("clairvoyant", 0.9, SECOND, quick=True), period_us=2 * SECOND)
    best = join.clairvoyant(case, parameters)

    def met(keep: int) -> join.Outcome:
        horizon = np.where(case.stream_time_us > NEVER, case.stream_time_us - SECOND - keep, NEVER)
        produced = join.symmetric(case, (horizon, horizon))
        return join.measure(case, parameters, (horizon, horizon), produced, case.late, False)

    enough = [k for k in range(-SECOND, 8 * SECOND, parameters.granularity_us) if met(k).met >= 0.95]
    assert best.met >= 0.95 and best.periods > 20
    assert best.rows == pytest.approx(met(enough[0]).rows)
    assert -SECOND < enough[0] < 8 * SECOND - parameters.granularity_us


# -- the whole benchmark -----------------------------------------------------------------------------------------------


def test_quick_benchmark_writes_its_figures_and_summary(tmp_path):
    lines: list[str] = []
    summary = bench.run("join", None, tmp_path / "figures", lines.append, quick=True)
    names = [f"{name}_D1" for name in ("fig2_recall", "fig2_met", "fig3_latency", "fig4_rows")]
    names += ["fig2a_period", "fig2b_interval", "fig2c_basic_window", "fig2d_granularity"]
    for name in names:
        picture, numbers = (tmp_path / "figures" / f"join_{name}.{kind}" for kind in ("png", "csv"))
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert len(numbers.read_text().splitlines()) >= 3
    assert set(summary["D1"]) == set(join.METHODS)
    for target in ("0.9", "0.95"):
        at = {method: figures[target] for method, figures in summary["D1"].items()}
        assert at["exact"]["recall"] == 1.0 == at["exact"]["met"]
        assert at["clairvoyant"]["met"] >= 0.95
        assert at["clairvoyant"]["memory_over_clairvoyant"] == 1.0
        assert at["mp_k_slack"]["memory_reduction"] == 0.0
        assert at["calibrated"]["latency_reduction"] == 1.0
        assert at["clairvoyant"]["rows"] < at["mp_k_slack"]["rows"] < at["exact"]["rows"]
    with (tmp_path / "figures" / "join_measured.csv").open() as file:
        measured = list(csv.DictReader(file))
    assert len(measured) == 2 * len(join.METHODS)
    with (tmp_path / "figures" / "join_fig2_measured.csv").open() as file:
        varied = list(csv.DictReader(file))
    assert len(varied) == 2 * 2 * (3 * len(join.QJOIN) + 1)
    for letter, name, _, _, _ in join.FIGURE_2:
        rows = [row for row in varied if row["figure"] == f"2{letter}"]
        assert {row["parameter"] for row in rows} == {name} and len({row["value"] for row in rows}) == 2
        assert len({row["rows"] for row in rows if (row["method"], row["target"]) == ("paper", "0.95")}) == 2
    with (tmp_path / "figures" / "join_against_mp_k_slack.csv").open() as file:
        claims = {(row["method"], row["target"]): row for row in csv.DictReader(file)}
    assert float(claims["calibrated", "0.9"]["latency change [%]"]) == -100.0
    reduction = summary["D1"]["calibrated"]["0.9"]["memory_reduction"]
    assert float(claims["calibrated", "0.9"]["rows held change [%]"]) == pytest.approx(-100 * reduction, abs=0.06)
    assert any("calibrated" in line for line in lines)


def test_figures_keep_their_series_in_the_csv(tmp_path):
    plots.line_figure(tmp_path, "a", "x", "y", [1, 2], {"one": [0.5, None], "two": [1.0, 2.0]}, log=True)
    assert (tmp_path / "a.csv").read_text() == "x,one,two\n1,0.5,1.0\n2,,2.0\n"
    plots.panel_figure(tmp_path, "p", "x", [1, 2], {"y": {"one": [0.5, 1.0]}, "z": {"one": [3, None]}}, log_x=True)
    assert (tmp_path / "p.csv").read_text() == "x,y: one,z: one\n1,0.5,3\n2,1.0,\n"
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    plots.bar_figure(tmp_path, "b", "x", "y", ["p", "q"], {"one": [1.0, 2.0]})
    assert (tmp_path / "b.csv").read_text() == "x,one\np,1.0\nq,2.0\n"
    with pytest.raises(ValueError, match="gap"):
        plots.line_figure(tmp_path, "c", "x", "y", [1, 2], {"one": [0.5]})
    with pytest.raises(ValueError, match="one per group"):
        plots.bar_figure(tmp_path, "c", "x", "y", ["p", "q"], {"one": [0.5]})
