"""Estimators of a join's recall as a function of both retentions, and the least retention that reaches a target.

What they need: statistics that add (``histogram``), and recall that does not fall when either retention grows. Then the
feasible pairs ``(d_left, d_right)`` form a staircase and one sweep along it finds the cheapest, never the quadratic
double loop of QJoin's Algorithm 1. Without monotonicity the sweep would still end, but might not return the optimum:
``paper`` is such a case, see there.

=============== ============================== ================================ =======================================
estimator       reads                          recall                           first published
=============== ============================== ================================ =======================================
``paper``       last L: delays, candidates     (4) to (12), not separable       QJoin 2020
``delay_aware`` last L: delays, results        separable                        here, after QJoin
``empirical``   last P: required retention     separable, sparse                here
=============== ============================== ================================ =======================================

The left knob is always the retention of the *left* buffer: it decides about pairs whose earlier tuple is on the left
and which a right tuple brings about. A retention of ``-w`` keeps nothing of the past; nothing lower is ever chosen,
as it would save no row.

Censoring: ``empirical`` reads ``uncensor``, ``calibrated`` the less noisy ``TailEstimator``; the two models
need neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.core.arrays.sparse_counts import SparseWeights, add_sparse
from latecomer.core.join.calibrated_control import IntervalLoss
from latecomer.core.join.statistics import IntervalStats, SideStats, merge_sides, recall_curve, sampled_share

Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]

ESTIMATORS = ("paper", "delay_aware", "empirical")
_TOLERANCE = 1e-12
FINE_STEPS = 1 << 20
"""Up to so many granules, 3 hours of 10 ms, the models try every retention; beyond, where one clock is decades behind, they grow by 0.1%."""


def interval_loss(
    stats: IntervalStats, estimated: tuple[SparseWeights, SparseWeights], granularity_us: int
) -> IntervalLoss:
    """Join statistics in the form the shared ``calibrated`` controller reads: knob 0 is left, knob 1 right.

    `estimated` is what ``TailEstimator.estimate`` (or ``uncensor`` of both sides) made of the same statistics.
    """
    required, weights, lost = [], [], 0.0
    for side, (bucket, weight) in zip((stats.left, stats.right), estimated, strict=True):
        required.append((bucket + 1) * granularity_us)
        weights.append(weight)
        lost += float(weight[bucket >= side.censored_from].sum())
    rates = (float(stats.left.rows), float(stats.right.rows))
    return IntervalLoss(stats.interval, tuple(required), tuple(weights), lost, rates)


class Recall(Protocol):
    """Estimated recall of every pair of retentions."""

    def at(self, left_us: int, right_us: int) -> float:
        """Estimated recall in [0, 1] under retentions in microseconds."""

    def cheapest(self, left_rate: float, right_rate: float, target: float) -> tuple[int, int]:
        """Retentions (us) of least ``left_rate * d_left + right_rate * d_right`` that reach `target`."""


@dataclass(frozen=True)
class SeparableRecall:
    """Recall as a sum of two step functions, one per buffer.

    Attributes
    ----------
    left_us, right_us : int64[n], int64[m]
        Knob values at which the functions rise, strictly increasing; the first is the floor ``-w``.
    left, right : float64[n], float64[m]
        Share of all results, non-decreasing; the last values add up to 1.
    """

    left_us: Int64Array
    left: Float64Array
    right_us: Int64Array
    right: Float64Array

    def at(self, left_us: int, right_us: int) -> float:
        """Estimated recall in [0, 1] under retentions in microseconds."""
        return _step(self.left_us, self.left, left_us) + _step(self.right_us, self.right, right_us)

    def cheapest(self, left_rate: float, right_rate: float, target: float) -> tuple[int, int]:
        """All left steps against the least right step that complements each: exact, O(n log m).

        Ties go to the lower left retention. A target out of reach gives the greatest retentions.
        """
        goal = min(target, 1.0) - _TOLERANCE
        partner = np.searchsorted(self.right, goal - self.left, side="left")
        reached = partner < self.right.size
        if not reached.any():
            return int(self.left_us[-1]), int(self.right_us[-1])
        left, right = np.flatnonzero(reached), partner[reached]
        cost = self.left_us[left] * left_rate + self.right_us[right] * right_rate
        best = int(np.argmin(cost))
        return int(self.left_us[left[best]]), int(self.right_us[right[best]])


@dataclass(frozen=True)
class PaperRecall:
    """QJoin's model on the grid ``d = k g``, ``k >= 0``; see ``paper``.

    Attributes
    ----------
    knobs : (int64[n], int64[m])
        The `k` of the left and of the right buffer, strictly increasing from 0.
    cross : (float64[n], float64[m])
        Cross-join size ``N_x`` by the retention of the left and of the right buffer, non-decreasing.
    candidates, results : (int64[n], int64[m]) each
        Pairs met and results, cumulated over the delay of the *arriving* tuple, per retention of the buffer it probes.
    """

    granularity_us: int
    knobs: tuple[Int64Array, Int64Array]
    cross: tuple[Float64Array, Float64Array]
    cross_ideal: float
    candidates: tuple[Int64Array, Int64Array]
    results: tuple[Int64Array, Int64Array]

    def at(self, left_us: int, right_us: int) -> float:
        """Estimated recall in [0, 1] under retentions in microseconds."""
        steps = (max(us // self.granularity_us, 0) for us in (left_us, right_us))
        i, j = (int(np.searchsorted(knob, k, "right")) - 1 for knob, k in zip(self.knobs, steps, strict=True))
        return float(_paper_at(i, j, *self._arrays()))

    def cheapest(self, left_rate: float, right_rate: float, target: float) -> tuple[int, int]:
        """One two-pointer sweep, O(n + m). Selectivity may fall as delays grow; where it does this is a heuristic."""
        rates = (left_rate, right_rate)
        i, j = _paper_sweep(min(target, 1.0) - _TOLERANCE, *rates, *self.knobs, *self._arrays())
        return int(self.knobs[0][i]) * self.granularity_us, int(self.knobs[1][j]) * self.granularity_us

    def _arrays(self) -> tuple[Any, ...]:
        return (*self.cross, self.cross_ideal, *self.candidates, *self.results)


def empirical_of(sides: tuple[SparseWeights, SparseWeights], window_us: int, granularity_us: int) -> Recall | None:
    """No model: the distribution of required retention, from results by required bucket, left and right (`EvidenceWindow`).

    Returns
    -------
    SeparableRecall, or None where no result was seen (no evidence: keep what is in force).
    """
    total = float(sum(weight.sum() for _, weight in sides))
    if total <= 0:
        return None
    curves: list[np.ndarray] = []
    for bucket, weight in sides:
        bucket, recall = recall_curve(bucket, weight, total)
        curves += _from_floor((bucket + 1) * granularity_us, recall, -window_us)
    return SeparableRecall(*curves)


class EvidenceWindow:
    """Running sums of what ``empirical`` reads: intervals come and go at the cost of their own buckets, O(n) per step.

    The sums are of integers, what was seen and what was sampled beyond it, so that adding and taking away is exact
    and the sums are those of the intervals now inside, whatever came and went before.
    """

    def __init__(self, sample_fraction: float, inside: Sequence[IntervalStats] = ()) -> None:
        self.share = sampled_share(sample_fraction) if sample_fraction > 0 else 0.0
        none = np.zeros(0, np.int64)
        self.sums: list[tuple[Int64Array, Int64Array, Int64Array]] = [(none, none, none), (none, none, none)]
        for stats in inside:
            self.add(stats)

    def add(self, stats: IntervalStats, sign: int = 1) -> None:
        """Take in an interval; with `sign` -1, one that was taken in leaves."""
        for side, each in enumerate((stats.left, stats.right)):
            seen = (each.required_bucket < each.censored_from) | (self.share == 0)
            bucket, (pairs, sampled) = add_sparse(
                [self.sums[side][0], each.required_bucket],
                [self.sums[side][1], sign * np.where(seen, each.pairs, 0)],
                [self.sums[side][2], sign * np.where(seen, 0, each.sampled_pairs)],
            )
            there = (pairs > 0) | (sampled > 0)
            self.sums[side] = bucket[there], pairs[there], sampled[there]

    def weights(self) -> tuple[SparseWeights, SparseWeights]:
        """Estimated results by required bucket, left and right."""
        sides = []
        for bucket, pairs, sampled in self.sums:
            sides.append((bucket, pairs + sampled / self.share if self.share else pairs.astype(np.float64)))
        return sides[0], sides[1]


def delay_aware(stats: IntervalStats, window_us: int, granularity_us: int, interval_us: int) -> Recall | None:
    """QJoin's model corrected: a tuple meets the part of its own window that is still retained.

    A right tuple with delay `u` (age of its event time at arrival) looks for left tuples of age in ``[u - w, u + w]``,
    of which the left buffer holds ages in ``[0, w + d)``. A left tuple of age `a` has arrived with probability
    ``F_left(a)``, the distribution function of left delays. Summed over arrivals, with `C(a)` the right arrivals whose
    window covers age `a`, each weighted by its delay's productivity relative to the mean::

        N_left(d) = V_left * integral from 0 to w + d of F_left(a) * C_right(a) da

    and the same with sides exchanged; recall is their sum over its limit. Both factors are step functions, so the
    integral is known exactly from where they change. Assumes that age is counted from the tuple's own stream's progress
    and that keys are alike.
    """
    sides = (stats.left, stats.right)
    if min(s.rows for s in sides) == 0:
        return None
    window = max(round(window_us / granularity_us), 1)
    steps = max(int(s.delay_bucket[-1]) for s in sides) + 1 + window
    knob = knob_steps(steps)
    made = []
    for held, probing in (sides, sides[::-1]):
        made.append(held.rows / interval_us * _met(held, probing, window, knob))
    total = made[0][-1] + made[1][-1]
    if total <= 0:
        return None
    retention = knob * granularity_us - window_us
    return SeparableRecall(retention, made[0] / total, retention, made[1] / total)


def _met(held: SideStats, probing: SideStats, window: int, upto: Int64Array) -> Float64Array:
    """Integral over ages in ``[0, upto)``, in granules, of the share of `held` that has arrived times what looks for that age, float64[n]."""
    weight = probing.delay_rows * _productivity(probing)
    age = np.concatenate([held.delay_bucket, probing.delay_bucket - window, probing.delay_bucket + window + 1])
    age = np.unique(np.append(np.clip(age, 0, upto[-1]), 0))
    arrived = _up_to(held.delay_bucket, held.delay_rows / held.rows, age)
    height = arrived * (
        _up_to(probing.delay_bucket, weight, age + window) - _up_to(probing.delay_bucket, weight, age - window - 1)
    )
    area = np.concatenate([[0.0], np.cumsum(height[:-1] * np.diff(age))])
    place = np.searchsorted(age, upto, "right") - 1
    met: Float64Array = area[place] + height[place] * (upto - age[place])
    return met


def paper(
    stats: IntervalStats, window_us: int, granularity_us: int, interval_us: int, basic_window_us: int
) -> Recall | None:
    """Equations (4) to (12) of QJoin, with three errata applied and no more.

    ``recall = sel(d) N_x(d) / (sel(max) N_x(max))``. Errata: selectivity is results over candidates, (11) and (12)
    print it upside down; the sums of (7) run to ``(i - 1) b / g``. As printed, every tuple is credited with the whole
    retained span, (6) and (10), so that on skewed delays far too much retention is asked for; kept, it is the paper's.

    Returns
    -------
    PaperRecall, or None where nothing was met in the interval.
    """
    sides = (stats.left, stats.right)
    if min(s.rows for s in sides) == 0 or sum(int(s.delay_results.sum()) for s in sides) == 0:
        return None
    knobs: list[Int64Array] = []
    cross: list[Float64Array] = []
    candidates: list[Int64Array] = []
    results: list[Int64Array] = []
    ideal = 0.0
    for held, probing in (sides, sides[::-1]):
        knob = knob_steps(int(held.delay_bucket[-1]) + 1)
        span = window_us + knob * granularity_us
        rate = held.rows / interval_us
        windows = -(-span // basic_window_us)
        share = held.delay_rows / held.rows
        # of the first n basic windows, those from `first` on begin at an age at which the delay bucket has arrived
        first = -(-held.delay_bucket * granularity_us // basic_window_us)
        whole = (windows - 1) * _up_to(first, share, windows - 2) - _up_to(first, share * first, windows - 2)
        begin = (windows - 1) * basic_window_us
        last = (span - begin) * _up_to(held.delay_bucket, share, begin // granularity_us)
        knobs.append(knob)
        cross.append(probing.rows * rate * (basic_window_us * whole + last))
        ideal += probing.rows * rate * float(span[-1])
        for column, weight in ((candidates, probing.delay_candidates), (results, probing.delay_results)):
            column.append(_up_to(probing.delay_bucket, weight, knob))
    if ideal <= 0 or results[0][-1] + results[1][-1] == 0:
        return None
    pairs = (candidates[0], candidates[1]), (results[0], results[1])
    return PaperRecall(granularity_us, (knobs[0], knobs[1]), (cross[0], cross[1]), ideal, *pairs)


def knob_steps(most: int) -> Int64Array:
    """Retentions to try, in granules, int64[n]: 0 to `most`, all of them up to `FINE_STEPS`."""
    fine = np.arange(min(most, FINE_STEPS) + 1, dtype=np.int64)
    if most <= FINE_STEPS:
        return fine
    more = math.ceil(math.log(most / FINE_STEPS) / math.log1p(0.001))
    coarse = np.geomspace(FINE_STEPS, most, more + 1)[1:-1].astype(np.int64)
    return np.concatenate([fine, coarse, [most]])


def choose_retention(recall: Recall, left_rate: float, right_rate: float, target: float) -> tuple[int, int]:
    """``(d_left, d_right)`` in us of least ``(d_left + w) V_left + (d_right + w) V_right`` with ``recall >= target``.

    The rates may be in any common unit (rows of the interval); `w` only adds a constant. A target of 0 gives the floor,
    one out of reach the greatest useful retentions.
    """
    return recall.cheapest(max(left_rate, 0.0), max(right_rate, 0.0), target)


def interval_target(
    target: float, produced_rest: float, ideal_period: float, interval_us: int, period_us: int
) -> float:
    """`Q_L` of equation (3): what the next interval must reach for the period ending with it to reach `target`.

    Parameters
    ----------
    produced_rest : float
        ``N'_{P-L}``, results produced in the last ``P - L``.
    ideal_period : float
        ``N_P``, results that a period should have; ``N_L = N_P L / P``.
    """
    ideal_interval = ideal_period * interval_us / period_us
    if ideal_interval <= 0:
        return target
    return float(np.clip((target * ideal_period - produced_rest) / ideal_interval, 0.0, 1.0))


def aq_k_slack(stats: Sequence[IntervalStats], granularity_us: int, target: float) -> int | None:
    """Least slack `K` (us) whose estimated recall reaches `target`, from the delays of the last P.

    After Ji et al. 2016: a tuple that is later than `K` is released out of order and loses its own probe, so recall is
    estimated by the share of tuples, on both streams, with delay at most `K`. None without arrivals.
    """
    both = merge_sides([s for each in stats for s in (each.left, each.right)])
    if both.rows == 0:
        return None
    reached = np.cumsum(both.delay_rows) / both.rows
    at = int(np.searchsorted(reached, min(target, 1.0) - _TOLERANCE, side="left"))
    return (int(both.delay_bucket[min(at, both.delay_bucket.size - 1)]) + 1) * granularity_us


def _from_floor(knob: Int64Array, recall: Float64Array, floor_us: int) -> list[np.ndarray]:
    """The same step function, started at the floor: lower steps are reached there already."""
    below = int(np.searchsorted(knob, floor_us, side="right"))
    base = recall[below - 1] if below else 0.0
    return [np.concatenate([[floor_us], knob[below:]]).astype(np.int64), np.concatenate([[base], recall[below:]])]


def _step(knob: Int64Array, recall: Float64Array, value_us: int) -> float:
    at = int(np.searchsorted(knob, value_us, side="right"))
    return float(recall[at - 1]) if at else 0.0


def _up_to(bucket: Int64Array, weight: np.ndarray, at: Int64Array) -> np.ndarray:
    """Sum of the weights in buckets (strictly increasing or equal) up to and with each of `at`, of the weights' dtype."""
    sums = np.concatenate([np.zeros(1, weight.dtype), np.cumsum(weight)])
    found: np.ndarray = sums[np.searchsorted(bucket, at, "right")]
    return found


def _productivity(side: SideStats) -> Float64Array:
    """Results per candidate by delay bucket, 1 where nothing was met, float64[n]: eq. (11)'s selectivity, per delay."""
    met = side.delay_candidates > 0
    mean = side.delay_results.sum() / max(int(side.delay_candidates.sum()), 1)
    if mean <= 0:
        return np.ones(side.delay_bucket.size)
    return np.where(met, side.delay_results / np.maximum(side.delay_candidates, 1) / mean, 1.0)


@njit(cache=True)
def _paper_at(
    i: int,
    j: int,
    left: Float64Array,
    right: Float64Array,
    ideal: float,
    cl: Int64Array,
    cr: Int64Array,
    rl: Int64Array,
    rr: Int64Array,
) -> float:
    met = cl[i] + cr[j]
    best = (rl[-1] + rr[-1]) / (cl[-1] + cr[-1])
    if met == 0:
        return 0.0
    recall: float = min((rl[i] + rr[j]) / met * (left[i] + right[j]) / (best * ideal), 1.0)
    return recall


@njit(cache=True)
def _paper_sweep(
    target: float,
    left_rate: float,
    right_rate: float,
    left_knob: Int64Array,
    right_knob: Int64Array,
    left: Float64Array,
    right: Float64Array,
    ideal: float,
    cl: Int64Array,
    cr: Int64Array,
    rl: Int64Array,
    rr: Int64Array,
) -> tuple[int, int]:
    j = right.size - 1
    best_i, best_j, best_cost = left.size - 1, j, np.inf
    for i in range(left.size):
        if _paper_at(i, j, left, right, ideal, cl, cr, rl, rr) < target:
            continue
        while j > 0 and _paper_at(i, j - 1, left, right, ideal, cl, cr, rl, rr) >= target:
            j -= 1
        cost = left_knob[i] * left_rate + right_knob[j] * right_rate
        if cost < best_cost:
            best_i, best_j, best_cost = i, j, cost
    return best_i, best_j
