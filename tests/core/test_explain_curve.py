"""The curve of `explain` from requirements made by hand: text, values and picture say the same. No Spark."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from latecomer.jobs.explain.curve import explained, rows
from latecomer.jobs.explain.picture import draw
from latecomer.jobs.explain.requirements import Requirements
from latecomer.ledger.means import rows_held_mean, wait_mean_us
from latecomer.specs.loading import parse_query

HOUR, DAY = 3_600_000_000, 86_400_000_000
FIRST = 16_000 * DAY
SPEC = parse_query(
    "name: q\nkind: topk\nstreams: {s: a}\nscore: v\nk: 3\nwindow: 1 h\nquality: {hit_rate: 0.9, period: 1 d}\n"
)


def history(days=40, absurd=0, seed=3, due=1_000):
    """Per day `due` answers, a fifth of them late by hours; and `absurd` rows of 1970, on two days of their own."""
    rng = np.random.default_rng(seed)
    start = FIRST + np.arange(days) * DAY
    late = due // 5
    period = np.repeat(start, late)
    required = np.ceil(rng.gamma(2.0, 1.5, days * late) * HOUR).astype(np.int64)
    if absurd:
        start = np.append([0, DAY], start)
        period = np.append(np.repeat([0, DAY], absurd), period)
        required = np.append(np.full(2 * absurd, FIRST), required)
    totals = np.where(start < FIRST, absurd, due).astype(float)
    return Requirements.of(DAY, start, totals, period, required, np.ones(len(period)))


def ledger(days=40, slack=5 * HOUR, more=()):
    """The ledger of a run whose slack is about five hours; `more` days (from 1970 on) have no rows."""
    start = np.append(np.array(more, np.int64) * DAY, FIRST + np.arange(days) * DAY)
    n = len(start)
    arrived = np.append(np.zeros(len(more)), np.full(days, 900))
    return pd.DataFrame(
        {
            "period_start": pd.to_datetime(start, unit="us", utc=True),
            "expected": np.where(arrived > 0, 1_000, 3),
            "on_time": np.where(arrived > 0, 970, 0),
            "achieved_on_time": np.where(arrived > 0, 0.97, 0.0),
            "target": 0.9,
            "rows": arrived,
            "rows_held_mean": np.where(arrived > 0, 400.0, 7e7),
            "wait_mean_us": np.where(arrived > 0, 6.5 * HOUR, 0.0),
            "slack_mean_us": slack + 1e9 * (np.arange(n) % 5),
        }
    )


def costs(constants):
    return [(100 + constant / HOUR * 60, constant + HOUR) for constant in constants]


def test_the_least_constant_is_the_least_that_meets_the_target_in_enough_periods():
    needs = history(absurd=2)
    for target in (0.85, 0.9, 0.99, 0.999):
        for confidence in (0.5, 0.95, 1.0):
            least = needs.least(target, confidence)
            assert needs.periods_met(least, target) >= confidence
            assert least == 0 or needs.periods_met(least - 1, target) < confidence
    met = [needs.periods_met(constant, 0.95) for constant in needs.candidates(FIRST)]
    assert met == sorted(met) and met[-1] == 1.0 and needs.recall(FIRST) == 1.0


def test_rows_of_1970_stretch_nothing_and_are_counted():
    plain, absurd = (explained(SPEC, history(absurd=n), costs, ledger(), HOUR) for n in (0, 3))
    assert plain.beyond == 0 and (absurd.beyond, absurd.due) == (6, plain.due + 6)
    assert absurd.points[-1].constant_us == plain.points[-1].constant_us < 2 * DAY
    assert absurd.clairvoyant.constant_us == plain.clairvoyant.constant_us
    assert [cost.point.rows_held for cost in absurd.costs] == [cost.point.rows_held for cost in plain.costs]
    assert len(absurd.history) == 40 and absurd.points[-1].share == pytest.approx(1.0, abs=1e-3)
    assert "6 of 40,006 results (0.01%) would have needed a slack of more than " in absurd.to_text()
    assert "left to repair" not in plain.to_text()


@pytest.mark.parametrize("hours", [2, 1_000])
def test_the_longest_wait_that_a_query_accepts_bounds_the_curve(hours):
    needs, accepted = history(absurd=3), replace(SPEC, max_wait_us=hours * HOUR)
    curve = explained(accepted, needs, costs, ledger(), HOUR)
    assert curve.longest_us == hours * HOUR >= max(point.constant_us for point in curve.points)
    assert curve.beyond == needs.weight[needs.required_us > hours * HOUR].sum() > 0
    assert (curve.clairvoyant is None) == (hours == 2) == ("0.9 no slack up to 2 h reaches" in curve.to_text())


def test_the_run_is_what_the_ledger_says_without_days_on_which_nothing_came():
    rows_of = ledger(more=[0, 1])
    run = explained(SPEC, history(), costs, rows_of, HOUR).done
    assert (run.rows_held, run.wait_us, run.periods_met) == (400, 6.5 * HOUR, 1.0)
    assert run.share == pytest.approx(0.97, abs=1e-3)
    assert (rows_held_mean(rows_of), wait_mean_us(rows_of)) == (400, 6.5 * HOUR)
    weighed = rows_of.assign(on_time=[0] * 41 + [300], wait_mean_us=np.arange(42.0))
    assert wait_mean_us(weighed) == 41, "a mean over answers"
    recalled = rows_of.assign(rows_recalled_mean=50.0, recalled=0)
    assert rows_held_mean(recalled) == 450, "what was read again was held"
    assert np.isnan(rows_held_mean(rows_of[:0])) and np.isnan(wait_mean_us(rows_of[:0]))


def test_text_has_the_figures_of_the_values_in_units_for_people():
    curve = explained(SPEC, history(), costs, ledger(), HOUR)
    text, values = curve.to_text(), curve.to_dict()
    best = values["clairvoyant"]
    assert best["constant_us"] == curve.costs[0].point.constant_us, "the target is 0.9"
    assert f"{rows(best['rows_held'])} rows, 0.95 costs " in text and "In hindsight, as a constant slack" in text
    same = curve.same_cost
    assert same.rows_held == curve.done.rows_held and same.constant_us == pytest.approx(5 * HOUR, rel=1e-3)
    for name in ("as run", "clairvoyant", "fixed slack, as many rows"):
        assert f"\n{name}" in text
    assert "1,729" not in text and " h " in text


def test_a_picture_of_the_curve(tmp_path):
    draw(explained(SPEC, history(absurd=3), costs, ledger(), HOUR), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 30_000


@pytest.mark.parametrize("days", [0, 1])
def test_little_or_nothing_to_show(tmp_path, days):
    needs = history(days=days, due=5 * days)
    curve = explained(SPEC, needs, costs, ledger(days)[:0], HOUR)
    assert curve.done is None and curve.same_cost is None and (curve.clairvoyant is None) == (days == 0)
    assert curve.to_text()
    draw(curve, tmp_path / "little.png")


def test_numbers_of_rows_are_short():
    counts = (0, 0.251, 12, 9_120, 12_345, 4_560_000, 229_000_000, float("nan"))
    expected = ["0", "0.25", "12", "9,120", "12.3 k", "4.56 M", "229.0 M", "unknown"]
    assert [rows(count) for count in counts] == expected
