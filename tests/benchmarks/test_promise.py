"""The benchmark of promises: its streams, its simulation against brute force, and its quick form."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from latecomer.bench import promise as bench
from latecomer.bench.promise_simulator import KINDS, LEARNING, WINDOWED, JoinCase, WindowCase
from latecomer.bench.promise_streams import HELD_OUT, RECIPES, SEEN, draw
from latecomer.core.join.retention_policies import ConstantRetention
from latecomer.core.windows.slack_policies import Fixed

GRID_KINDS = ("exponential_sliding", "bursts", "clock_of_1970", "row_ahead")


def on_granules(name, seed=1, periods=6):
    """Return a stream whose event times are whole granules, so that rounded waits are exact."""
    stream = draw(name, seed, periods=periods)
    g = stream.grid.granularity_us
    return replace(stream, event_time_us=stream.event_time_us // g * g)


def test_quick_benchmark_draws_its_figures_and_judges_its_goals(tmp_path: Path):
    lines: list[str] = []
    summary = bench.run(None, tmp_path, lines.append, quick=True)
    json.dumps(summary)
    for name in ("promise_kept", "promise_rows"):
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    measured = pd.read_csv(tmp_path / "promise_measured.csv")
    assert len(measured) == len(bench.QUICK_STREAMS) * len(KINDS) * len(bench.VERSIONS)
    assert (measured["kept"] <= measured["periods"]).all() and (measured["kept_all"] <= measured["periods_all"]).all()
    assert summary["figures"]["after join all"]["kept_all"] == 1.0
    goals = {goal["name"]: goal for goal in summary["goals"]}
    assert goals["join, periods kept"]["met"] and "topk, periods kept after learning" in goals and lines


def test_streams_depend_on_their_seed_alone_and_held_out_seeds_are_others():
    assert not set(SEEN) & set(HELD_OUT) and len(SEEN) == len(HELD_OUT) == 5 and len(RECIPES) >= 30
    for name, plan in RECIPES.items():
        drawn, again, other = (draw(name, seed, periods=min(plan.periods, 8)) for seed in (1, 1, 2))
        np.testing.assert_array_equal(drawn.event_time_us, again.event_time_us)
        assert len(other.event_time_us) != len(drawn.event_time_us) or (other.value != drawn.value).any()
        assert set(drawn.side.tolist()) == {0, 1} and 2 <= len(drawn.periods()) <= 12, name
    assert {plan.periods for plan in RECIPES.values()} >= {24, 400}
    with pytest.raises(ValueError, match="choose one of"):
        draw("calm", 1)


def test_rows_of_broken_clocks_make_no_periods_that_vote():
    stream = draw("clock_of_1970", 1, periods=10)
    assert (stream.event_time_us[~stream.votes] < 86_400_000_000).all() and not stream.votes.all()
    assert len(stream.periods()) == 10
    case = WindowCase(stream, "aggregate")
    assert len(case.periods) == 10 < len(np.unique(stream.event_time_us // stream.period_us))


def brute_force(kind, stream, slack_us):
    """Return due and lost contributions by period, from rows and the arrival that closes each window."""
    two = kind in ("theta_join", "membership")
    rows = pd.DataFrame({"ts": stream.event_time_us, "value": stream.value, "key": stream.key, "source": stream.source})
    rows["side"] = stream.side
    maxima = [rows["ts"].where(rows["side"] == s).cummax().ffill() for s in (0, 1)]
    time = np.minimum(*maxima) if two else rows["ts"].cummax()
    watermark = (time - slack_us).cummax()
    grid, due, lost = stream.grid, {}, {}
    windows = np.unique(np.concatenate([rows["ts"] // grid.slide_us - back for back in range(grid.per_row)]))
    for window in windows.astype(int).tolist():
        end = grid.end(window)
        inside = rows[(rows["ts"] >= window * grid.slide_us) & (rows["ts"] < end)]
        closes = int(np.argmax(watermark >= end)) if (watermark >= end).any() else len(rows)
        first = inside[inside.index < closes]
        all_, here = (answers(kind, part) for part in (inside, first))
        period = (end - 1) // stream.period_us
        due[period] = due.get(period, 0) + len(all_)
        lost[period] = lost.get(period, 0) + sum(not kept(kind, answer, here, all_) for answer in all_)
    return due, lost


def answers(kind, rows):
    left, right = rows[rows["side"] == 0], rows[rows["side"] == 1]
    if kind == "aggregate":
        return rows.groupby("source")["value"].sum().to_dict()
    if kind == "topk":
        return dict.fromkeys(rows.sort_values(["value", "ts"], ascending=[False, True]).head(5).index)
    if kind == "theta_join":
        return {(i, j): 1 for i, a in left["value"].items() for j, b in right["value"].items() if a > b}
    return dict.fromkeys(set(left["key"]) & set(right["key"]))


def kept(kind, answer, first, final):
    if kind == "aggregate":
        return answer in first and abs(first[answer] - final[answer]) < 0.05 * final[answer]
    return answer in first


@pytest.mark.parametrize("kind", WINDOWED)
@pytest.mark.parametrize("name", GRID_KINDS)
def test_losses_of_a_constant_wait_are_those_of_the_definition(kind, name):
    stream = on_granules(name, periods=4)
    case = WindowCase(stream, kind)
    slack = 3 * stream.grid.granularity_us * 40
    outcome = case.run(Fixed(slack), 0.9)
    due, lost = brute_force(kind, stream, slack)
    assert dict(zip(outcome.period.tolist(), outcome.due.tolist(), strict=True)) == {
        p: due[p] for p in stream.periods().tolist() if due.get(p)
    }
    assert outcome.lost.tolist() == [lost[p] for p in outcome.period.tolist()]


@pytest.mark.parametrize("kind", WINDOWED)
def test_the_clairvoyant_is_the_least_constant_that_keeps_the_promise(kind):
    case = WindowCase(on_granules("pareto", periods=60), kind)
    needs = case.needs(0.9)
    for constant, period in zip(needs.tolist()[::7], range(0, len(needs), 7), strict=False):
        assert case.run(Fixed(constant), 0.9).good(0.9)[period]
    good, judged = case.clairvoyant(0.9).kept(0.9)
    assert judged == len(case.periods) - LEARNING and good >= 0.95 * judged


@pytest.mark.parametrize("target", [0.9, 0.99])
@pytest.mark.parametrize("name", ["bursts", "regime_up", "replay", "outages_long"])
def test_recall_keeps_every_period_of_a_join_whatever_is_retained(name, target):
    case = JoinCase(draw(name, 2, periods=12))
    least = -case.stream.join_window_us // 2
    without, with_recall = (case.run(ConstantRetention(least, least), target, recall=on) for on in (False, True))
    assert not without.good(target).all() and with_recall.good(target).all()
    assert with_recall.recalled > 0 == without.recalled and with_recall.recalls > 0


def test_every_period_that_late_rows_can_still_complete_is_kept_when_it_closes():
    for kind in WINDOWED:
        case = WindowCase(draw("bursts", 3, periods=20), kind)
        outcome = case.run(Fixed(0), 0.99, recall=True)
        assert (outcome.lost_at_close <= outcome.lost).all()
        assert outcome.good(0.99, at_close=True).all() and not outcome.good(0.99).all(), kind
