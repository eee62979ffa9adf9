"""The periods by which `check` evaluates a promise, and the number that may miss, through Great Expectations."""

import numpy as np
import pandas as pd
import pytest
from latecomer.core.time import FOREVER
from latecomer.quality import checks, promise
from latecomer.quality.promise import allowed_misses
from latecomer.specs.loading import parse_query

JOIN = parse_query(
    "name: q\nkind: join\nstreams: {l: a, r: b}\nwindow: 1 s\n"
    "quality: {recall: 0.95, period: 60 s, over: 1000 periods}\n"
)
MEMBERSHIP = parse_query(
    "name: q\nkind: membership\nstreams: {l: a, r: b}\nelement: k\nwindow: 60 s\n"
    "quality: {false_positive_rate: 0.001}\n"
)
SUMS = (
    "name: q\nkind: aggregate\nstreams: {l: a}\nselect: {n: count()}\nwindow: 1 s\n"
    "quality: {error: 0.05, probability: 0.95}\nstrategy: {name: calibrated, confidence: %s}\n"
)


def ledger(achieved, expected=100, **more):
    columns = {
        "achieved_on_time": achieved,
        "expected": expected,
        "on_time": (np.nan_to_num(achieved) * expected).astype(int),
        "target": 0.95,
        "achieved_final": 1.0,
        "rows_held_max": 1,
    }
    start = pd.date_range("2024-01-01", periods=len(achieved), freq="min", tz="UTC")
    end = start + pd.Timedelta(minutes=1)
    return pd.DataFrame({"period_start": start, "period_end": end, **columns, **more})


def evaluate(spec, rows):
    empty = pd.DataFrame({"law": ["l"], "left": [1], "right": [1]})
    verdicts = promise.verdicts(spec, rows, FOREVER).assign(judgement=0, rows=0, rows_ahead=0, new=True)
    frames = {
        **checks._promised(promise.weigh(spec, verdicts)),
        "filters": checks._named_by_start(promise.filter_bounds(spec, rows)),
        "ledger": checks._named_by_start(promise.known(rows)),
        "books": empty,
        "results": pd.DataFrame({"rows": [1], "distinct": [1], "names": ["k"], "some": [""]}),
        "audit": pd.DataFrame(),
    }
    results = checks._validate(spec, frames, None, 1).results
    return next((result for result in results if result["says"] in ("recall on time", "false positives")), None)


@pytest.mark.slow
def test_as_many_periods_as_are_allowed_may_miss_and_not_one_more():
    for n in (3, 7, 14, 21, 73, 81, 100, 372):
        most = allowed_misses(n, 0.95)
        for missed in (most, most + 1):
            result = evaluate(JOIN, ledger([0.9] * missed + [1.0] * (n - missed)))
            assert result["success"] == (missed <= most), (n, result["message"])


def test_periods_in_which_nothing_was_due_are_not_kept_promises():
    expected = np.where(np.arange(1_000) % 33 == 0, 10, 0)
    rows = ledger(np.where(expected > 0, 0.0, 1.0), expected)
    result = evaluate(JOIN, rows)
    assert not result["success"] and "31 of 31 periods below 0.95" in result["message"]
    assert promise.kept(rows) == (0, 31)
    nothing = ledger([1.0] * 5, 0)
    assert evaluate(JOIN, nothing) is None and promise.kept(nothing) == (0, 0)
    unknown = ledger([np.nan, 1.0])
    assert promise.kept(unknown) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_honest_answers_pass_at_any_confidence(confidence):
    spec, rng = parse_query(SUMS % confidence), np.random.default_rng(5)
    failed = 0
    for _ in range(100):
        off = rng.binomial(144, 0.05, 365)
        verdicts = promise.verdicts(spec, ledger(1 - off / 144, windows=144, windows_off=off), FOREVER)
        missed = int((~verdicts["kept"]).sum())
        failed += missed > allowed_misses(365, confidence)
    assert failed <= 12, failed


@pytest.mark.slow
def test_honest_filters_pass_however_long_the_ledger_is():
    rng, failed = np.random.default_rng(6), 0
    for _ in range(200):
        tested = rng.integers(500, 5_000, 365)
        rows = ledger([1.0] * 365, 0, tested=tested, confirmed=0, candidates=rng.binomial(tested, 0.001))
        bounds = promise.filter_bounds(MEMBERSHIP, rows)
        failed += bool((bounds["passed"] > bounds["most_passed"]).any())
    assert failed <= 20, failed


def test_filters_that_let_too_much_through_are_found():
    rows = ledger([1.0] * 365, 0, tested=2_000, confirmed=0, candidates=[1] * 364 + [14])
    result = evaluate(MEMBERSHIP, rows)
    assert not result["success"] and "1 of 365 periods above" in result["message"]
    assert evaluate(MEMBERSHIP, ledger([1.0], 0, tested=5, confirmed=5, candidates=5)) is None
