"""The join's promise by simulation: recall reaches the target in at least 95% of all periods, the first ones included.

There are seven kinds of disorder, short streams of few rows, and ten seeds of each. Produced pairs are counted by the
set formula over all pairs, not by the code that the policy learns from. Periods of one stream share its luck and its
controller, so a stream is one observation: a kind fails where the one-sided 0.95 bound of the mean over its streams
lies below 0.95, and the mean over all kinds must reach 0.95.

There are two exceptions. (1) A delay of a new kind cannot be foreseen, and rows that were dropped do not come back.
Where sources fall silent and then deliver at once (`outage`), the first outage costs its period, and a short stream
may have more than 5% of such periods. There at least 0.9 of the periods must be met. (2) A jump to another regime
costs at most two periods of the stream.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from latecomer.bench.join_simulator import Input, Output, band_pairs, qjoin
from latecomer.core.join.control import JoinControl
from latecomer.core.join.retention_policies import CalibratedRetention

SECOND = 1_000_000
P = 60 * SECOND
SEEDS = range(10)
PERIODS = 10
ROWS = 90
"""Rows per period, both streams together."""
T_95_9 = 1.833
"""Student's t, 9 degrees of freedom, one-sided 0.95."""
CALM = ("exponential", "pareto", "one_late", "night", "batches", "rare", "flights")


def stream(kind: str, seed: int, periods: int = PERIODS) -> tuple[Input, int]:
    """Return two streams in one arrival order with all their pairs, and the window."""
    rng = np.random.default_rng([seed, *kind.encode()])
    n, span = periods * ROWS, periods * P
    window = SECOND if kind == "flights" else 4 * SECOND
    event = np.sort(rng.integers(0, span, n))
    side, key = rng.integers(0, 2, n), rng.integers(0, 40 if kind == "rare" else 6, n)
    lag = rng.exponential(0.5, n) * SECOND
    if kind in ("exponential", "rare"):
        lag *= 4
    elif kind == "pareto":
        lag = 0.3 * SECOND * rng.pareto(1.3, n)
    elif kind == "one_late":
        lag = np.where(side == 1, rng.lognormal(1.4, 1.0, n) * SECOND, 0)
    elif kind == "night":
        lag = np.where((key == 1) & (side == 1), (event // P + 1) * P - event + lag, lag)
    elif kind == "batches":
        every = np.array([12, 18, 30, 45, 60, 1])[key] * SECOND
        lag = np.where(side == 1, every - event % every, lag)
    elif kind == "flights":
        lag = np.clip(rng.lognormal(0.8, 0.5, n), 0.5, 12) * P / 24
    elif kind == "outage":
        for source in range(6):
            start = rng.exponential(4 * P)
            end = start + rng.exponential(0.3 * P)
            quiet = (key == source) & (event >= start) & (event < end)
            lag = np.where(quiet, np.maximum(lag, end - event), lag)
    elif kind == "mixture":
        lag = rng.exponential(rng.choice([0.02, 1, 60, 600], n, p=[0.6, 0.3, 0.08, 0.02]) * SECOND)
    elif kind == "lognormal":
        lag = rng.lognormal(0, 3, n) * SECOND
    elif kind == "seldom":
        lag = np.where(rng.random(n) < 0.03, rng.exponential(5 * P, n), rng.exponential(SECOND / 2, n))
    elif kind == "jump":
        lag *= np.where(event >= span // 2, 16, 2)
    order = np.argsort(event + lag.astype(np.int64), kind="stable")
    event, side, key = event[order], side[order], key[order]
    rows = [np.flatnonzero(side == s) for s in (0, 1)]
    pairs = band_pairs(event[rows[0]], event[rows[1]], window, key[rows[0]], key[rows[1]])
    return Input((rows[0], rows[1]), (event[rows[0]], event[rows[1]]), pairs), window


def joined(data: Input, window: int, target: float, cuts: list[int] | None = None) -> Output:
    spans = {"window_us": window, "period_us": P, "interval_us": 2 * SECOND, "granularity_us": window // 200}
    policy = CalibratedRetention.build(target, **spans)
    return qjoin(data, JoinControl(policy, **spans), cuts)


def recalls(kind: str, seed: int, target: float, periods: int = PERIODS) -> np.ndarray:
    """Return the recall of every period that has a pair, float64[p]."""
    output = joined(*stream(kind, seed, periods), target)
    known = output.stream_time >= 0
    period = output.stream_time[known] // P
    pairs = np.bincount(period)
    return np.bincount(period, output.produced[known])[pairs > 0] / pairs[pairs > 0]


def shares(kind: str, target: float) -> list[float]:
    return [float(np.mean(recalls(kind, seed, target) >= target)) for seed in SEEDS]


@pytest.mark.slow
def test_the_promise_is_kept_over_all_periods_of_short_streams() -> None:
    kept = {kind: shares(kind, target) for kind, target in zip(CALM, (0.9, 0.95, 0.99) * 3, strict=False)}
    for kind, by_seed in kept.items():
        assert len(by_seed) == 10
        bound = float(np.mean(by_seed) + T_95_9 * np.std(by_seed, ddof=1) / math.sqrt(len(by_seed)))
        assert bound >= 0.95, (kind, by_seed)
    assert np.mean(list(kept.values())) >= 0.95, kept


@pytest.mark.parametrize("kind", CALM)
def test_nothing_is_lost_in_the_first_period(kind: str) -> None:
    for seed in SEEDS:
        data, window = stream(kind, seed, 2)
        output = joined(data, window, 0.8)
        first = output.stream_time - output.stream_time.min() < P - 4 * SECOND
        assert first.sum() >= 3
        assert output.produced[first].all()


@pytest.mark.slow
def test_the_promise_is_kept_in_the_long_run_where_delays_are_many_periods_long() -> None:
    """Most losses of such a period were never seen, and two retentions are chosen from the remembered periods."""
    kept = [
        np.mean(recalls(kind, seed, 0.95, 160)[80:] >= 0.95)
        for kind in ("mixture", "lognormal", "seldom")
        for seed in (0, 1)
    ]
    assert np.mean(kept) >= 0.95, kept
    assert min(kept) >= 0.9, kept


@pytest.mark.slow
def test_a_first_outage_may_cost_its_period_and_little_else() -> None:
    kept = shares("outage", 0.9)
    assert np.mean(kept) >= 0.9, kept


def test_a_jump_costs_two_periods_at_most() -> None:
    for seed in SEEDS:
        assert (recalls("jump", seed, 0.9) < 0.9).sum() <= 2


def test_where_pairs_are_many_the_margin_is_gone() -> None:
    rng = np.random.default_rng(1)
    n = 12_000
    event = np.sort(rng.integers(0, 12 * P, n))
    event = event[np.argsort(event + rng.exponential(2 * SECOND, n).astype(np.int64), kind="stable")]
    side, none = rng.integers(0, 2, n), np.zeros(n, np.int64)
    rows = [np.flatnonzero(side == s) for s in (0, 1)]
    pairs = band_pairs(event[rows[0]], event[rows[1]], SECOND, none[rows[0]], none[rows[1]])
    data = Input((rows[0], rows[1]), (event[rows[0]], event[rows[1]]), pairs)
    output = joined(data, SECOND, 0.9)
    kept = np.stack(output.horizons.retention)[:, -1] + SECOND
    # eleven periods are known: the controller's margin aims at 12 / 20 of the allowed loss
    least = np.sort(output.required)[int((1 - 0.1 * 12 / 20) * len(output.required))] + SECOND
    assert (kept <= 1.15 * least).all()
    assert output.produced.mean() >= 0.9


@pytest.mark.parametrize("kind", ["night", "rare"])
def test_any_cut_gives_the_same_retention(kind: str) -> None:
    data, window = stream(kind, 3)
    whole = joined(data, window, 0.9)
    for cuts in ([1, 2, 100, 101, 777], list(range(0, PERIODS * ROWS, 37))):
        other = joined(data, window, 0.9, cuts)
        np.testing.assert_array_equal(whole.produced, other.produced)
        np.testing.assert_array_equal(whole.horizons.retention, other.horizons.retention)
