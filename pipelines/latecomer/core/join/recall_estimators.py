"""The estimators of a join's recall as a function of both retentions, and the least retention that reaches a target.

The sweeps need statistics that add (:mod:`latecomer.core.join.statistics`) and a recall that does not fall when either
retention grows. Then the feasible pairs ``(d_left, d_right)`` are bounded by a staircase, and one sweep along it finds
the cheapest, in place of the quadratic double loop of QJoin's Algorithm 1. The recall of `paper` may fall where
selectivity does; there the sweep is a heuristic.

=============== ============================== ================================ =======================================
estimator       reads                          recall                           first published
=============== ============================== ================================ =======================================
``paper``       last L: delays, candidates     (4) to (12), not separable       QJoin 2020
``delay_aware`` last L: delays, results        separable                        here, after QJoin
``empirical``   last P: required retention     separable, sparse                here
=============== ============================== ================================ =======================================

The left retention is that of the *left* buffer. It decides about pairs whose earlier row is on the left and whose later
row is on the right. A retention of ``-w`` keeps nothing of the past; a lower one would save no row and is never chosen.

Pairs that were missed were not seen. ``empirical`` estimates them from the sample, as
:func:`latecomer.core.join.statistics.uncensor` does; the two models do not need them.

References
----------
Wei, Li, Xu, Lv and Yang, "QJoin", Guangxi Sciences 27(3), 2020: sections 1.4 and 1.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.core.arrays.sparse_counts import Float64Array, Int64Array, SparseWeights, add_sparse
from latecomer.core.join.statistics import IntervalStats, SideStats, recall_curve, sampled_share

ESTIMATORS = ("paper", "delay_aware", "empirical")
_TOLERANCE = 1e-12
FINE_STEPS = 1 << 20
"""The granules up to which the models try every retention: 3 hours of 10 ms.

Beyond, where one clock is decades behind, retentions grow by 0.1%.
"""


class Recall(Protocol):
    """An estimate of recall for every pair of retentions."""

    def at(self, left_us: int, right_us: int) -> float:
        """Return estimated recall in [0, 1] under retentions in microseconds."""

    def cheapest(self, left_rate: float, right_rate: float, target: float) -> tuple[int, int]:
        """Return retentions (us) of least ``left_rate * d_left + right_rate * d_right`` that reach `target`."""


@dataclass(frozen=True)
class SeparableRecall:
    """A recall that is the sum of two step functions, one per buffer.

    Attributes
    ----------
    left_us, right_us : int64[n], int64[m]
        Retentions at which the functions rise, strictly increasing; the first is the floor ``-w``.
    left, right : float64[n], float64[m]
        Share of all results, non-decreasing; the last values add up to 1.
    """

    left_us: Int64Array
    left: Float64Array
    right_us: Int64Array
    right: Float64Array

    def at(self, left_us: int, right_us: int) -> float:
        """Return estimated recall in [0, 1] under retentions in microseconds."""
        return _step(self.left_us, self.left, left_us) + _step(self.right_us, self.right, right_us)

    def cheapest(self, left_rate: float, right_rate: float, target: float) -> tuple[int, int]:
        """Return the exact optimum in O(n log m): for each left step, the least right step that reaches `target`.

        Ties go to the lower left retention. A target out of reach gives the greatest retentions.
        """
        # Algorithm 1, lines 1 to 6: the recorded pairs; lines 7 to 12: the least of them
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
    """QJoin's model on the grid ``d = k g``, ``k >= 0``; see `paper`.

    Attributes
    ----------
    granularity_us : int
        `g`.
    knobs : (int64[n], int64[m])
        The `k` of the left and of the right buffer, strictly increasing from 0.
    cross : (float64[n], float64[m])
        Cross-join size ``N_x`` by the retention of the left and of the right buffer, non-decreasing.
    cross_ideal : float
        Cross-join size under the greatest delays, equations (9) and (10).
    candidates, results : (int64[n], int64[m]) each
        Pairs met and results, cumulated over the delay of the *arriving* row, by the retention of the opposite buffer.
    """

    granularity_us: int
    knobs: tuple[Int64Array, Int64Array]
    cross: tuple[Float64Array, Float64Array]
    cross_ideal: float
    candidates: tuple[Int64Array, Int64Array]
    results: tuple[Int64Array, Int64Array]

    def at(self, left_us: int, right_us: int) -> float:
        """Return estimated recall in [0, 1] under retentions in microseconds."""
        steps = (max(us // self.granularity_us, 0) for us in (left_us, right_us))
        i, j = (int(np.searchsorted(knob, k, "right")) - 1 for knob, k in zip(self.knobs, steps, strict=True))
        return float(_paper_at(i, j, *self._arrays()))

    def cheapest(self, left_rate: float, right_rate: float, target: float) -> tuple[int, int]:
        """Return the optimum of one two-pointer sweep, O(n + m); a heuristic where selectivity falls as delays grow."""
        left, right = self.knobs
        i, j = _paper_sweep(min(target, 1.0) - _TOLERANCE, left_rate, right_rate, left, right, *self._arrays())
        return int(left[i]) * self.granularity_us, int(right[j]) * self.granularity_us

    def _arrays(self) -> _PaperArrays:
        return (*self.cross, self.cross_ideal, *self.candidates, *self.results)


_PaperArrays: TypeAlias = tuple[Float64Array, Float64Array, float, Int64Array, Int64Array, Int64Array, Int64Array]
"""Cross-join sizes (left, right, ideal), candidates (left, right) and results (left, right) of a `PaperRecall`."""


@njit(cache=True)
def _paper_at(
    i: int,
    j: int,
    cross_left: Float64Array,
    cross_right: Float64Array,
    cross_ideal: float,
    candidates_left: Int64Array,
    candidates_right: Int64Array,
    results_left: Int64Array,
    results_right: Int64Array,
) -> float:
    """Return ``Q_L(d_x, d_y)`` at places `i` and `j` of the knobs."""
    candidates = candidates_left[i] + candidates_right[j]
    if candidates == 0:
        return 0.0
    # (11) and (12), the right way up: selectivity is results over candidates
    selectivity = (results_left[i] + results_right[j]) / candidates
    ideal_selectivity = (results_left[-1] + results_right[-1]) / (candidates_left[-1] + candidates_right[-1])
    # (4), with N_prod of (5) and N_L of (8)
    recall: float = min(
        selectivity * (cross_left[i] + cross_right[j]) / (ideal_selectivity * cross_ideal),
        1.0,
    )
    return recall


@njit(cache=True)
def _paper_sweep(
    target: float,
    left_rate: float,
    right_rate: float,
    left_knob: Int64Array,
    right_knob: Int64Array,
    cross_left: Float64Array,
    cross_right: Float64Array,
    cross_ideal: float,
    candidates_left: Int64Array,
    candidates_right: Int64Array,
    results_left: Int64Array,
    results_right: Int64Array,
) -> tuple[int, int]:
    """Return the places of the cheapest knobs that reach `target`; the greatest ones where none does.

    Algorithm 1 in one pass. As printed it tries every pair, and never resets ``d_x``.
    """
    arrays = (
        cross_left,
        cross_right,
        cross_ideal,
        candidates_left,
        candidates_right,
        results_left,
        results_right,
    )
    j = right_knob.size - 1
    best_i, best_j, best_cost = left_knob.size - 1, j, np.inf
    for i in range(left_knob.size):
        # lines 3 and 4: d_x grows until the target is reached
        if _paper_at(i, j, *arrays) < target:
            continue
        # lines 2, 5 and 6: the least d_y for this d_x
        while j > 0 and _paper_at(i, j - 1, *arrays) >= target:
            j -= 1
        # lines 7 to 12: M(x, y), less its constant part w (V_r + V_s)
        cost = left_knob[i] * left_rate + right_knob[j] * right_rate
        if cost < best_cost:
            best_i, best_j, best_cost = i, j, cost
    return best_i, best_j


def paper(
    stats: IntervalStats, window_us: int, granularity_us: int, interval_us: int, basic_window_us: int
) -> PaperRecall | None:
    """Return recall by equations (4) to (12) of QJoin, with its errata corrected and nothing else.

    ``recall = sel(d) N_x(d) / (sel(max) N_x(max))``. Errata: selectivity is results over candidates, where (11) and
    (12) print the inverse; the sums of (7) run to ``(i - 1) b / g``. As printed, (6) and (10) credit every row with
    the whole retained span, so the model asks for far too much retention where delays are skewed. That stays: it is
    the paper's.

    Parameters
    ----------
    stats
        The counts of the last interval, with candidates and results by delay.
    window_us, granularity_us, interval_us, basic_window_us
        `w`, `g`, `L` and `b`.

    Returns
    -------
    PaperRecall, or None where the interval has no result.
    """
    sides = (stats.left, stats.right)
    if min(s.rows for s in sides) == 0 or sum(int(s.delay_results.sum()) for s in sides) == 0:
        return None
    knobs: list[Int64Array] = []
    cross: list[Float64Array] = []
    candidates: list[Int64Array] = []
    results: list[Int64Array] = []
    cross_ideal = 0.0
    for held, probing in (sides, sides[::-1]):
        knob = knob_steps(int(held.delay_bucket[-1]) + 1)
        span = window_us + knob * granularity_us  # w + d
        rate = held.rows / interval_us  # V of the held stream; V L of the probing one is probing.rows
        n = -(-span // basic_window_us)
        density = held.delay_rows / held.rows  # f_D
        # (7): basic windows up to the n-th; from the `first` on a row of a delay bucket has arrived
        first = -(-held.delay_bucket * granularity_us // basic_window_us)
        full = (n - 1) * _up_to(first, density, n - 2) - _up_to(first, density * first, n - 2)
        last_begin = (n - 1) * basic_window_us
        last = (span - last_begin) * _up_to(held.delay_bucket, density, last_begin // granularity_us)
        knobs.append(knob)
        cross.append(probing.rows * rate * (basic_window_us * full + last))  # (6)
        cross_ideal += probing.rows * rate * float(span[-1])  # (9) and (10)
        # the sums of (11): the retention of a buffer limits the delay of the rows that probe it
        candidates.append(_up_to(probing.delay_bucket, probing.delay_candidates, knob))
        results.append(_up_to(probing.delay_bucket, probing.delay_results, knob))
    if cross_ideal <= 0 or results[0][-1] + results[1][-1] == 0:
        return None
    pairs = (candidates[0], candidates[1]), (results[0], results[1])
    return PaperRecall(granularity_us, (knobs[0], knobs[1]), (cross[0], cross[1]), cross_ideal, *pairs)


def delay_aware(stats: IntervalStats, window_us: int, granularity_us: int, interval_us: int) -> SeparableRecall | None:
    """Return recall by QJoin's model corrected: a row meets the part of its own window that is still retained.

    A right row with delay `u`, the age of its event time at arrival, probes left rows of age in ``[u - w, u + w]``.
    The left buffer holds ages in ``[0, w + d)``. A left row of age `a` has arrived with probability ``F_left(a)``, the
    distribution function of left delays. Let `C(a)` be the right arrivals whose window covers age `a`, each weighted
    by the productivity of its delay relative to the mean. Then the left buffer gives::

        N_left(d) = V_left * integral from 0 to w + d of F_left(a) * C_right(a) da

    and the right one the same with sides exchanged. Recall is their sum over its limit. Both factors are step
    functions, so the integral is exact. The model assumes that ages are counted from the progress of the row's own
    stream, and that all keys are alike.

    Parameters
    ----------
    stats
        The counts of the last interval, with candidates and results by delay.
    window_us, granularity_us, interval_us
        `w`, `g` and `L`.

    Returns
    -------
    SeparableRecall, or None where the interval has no result.
    """
    sides = (stats.left, stats.right)
    if min(s.rows for s in sides) == 0:
        return None
    window = max(round(window_us / granularity_us), 1)
    steps = max(int(s.delay_bucket[-1]) for s in sides) + 1 + window
    knob = knob_steps(steps)
    results = []
    for held, probing in (sides, sides[::-1]):
        results.append(held.rows / interval_us * _covered(held, probing, window, knob))
    total = results[0][-1] + results[1][-1]
    if total <= 0:
        return None
    retention = knob * granularity_us - window_us
    return SeparableRecall(retention, results[0] / total, retention, results[1] / total)


def _covered(held: SideStats, probing: SideStats, window: int, knob: Int64Array) -> Float64Array:
    """Return the integral over ages in ``[0, knob)`` granules of ``F_held * C_probing``, float64[n]."""
    weight = probing.delay_rows * _productivity(probing)
    age = np.concatenate([held.delay_bucket, probing.delay_bucket - window, probing.delay_bucket + window + 1])
    age = np.unique(np.append(np.clip(age, 0, knob[-1]), 0))
    arrived = _up_to(held.delay_bucket, held.delay_rows / held.rows, age)
    height = arrived * (
        _up_to(probing.delay_bucket, weight, age + window) - _up_to(probing.delay_bucket, weight, age - window - 1)
    )
    area = np.concatenate([[0.0], np.cumsum(height[:-1] * np.diff(age))])
    place = np.searchsorted(age, knob, "right") - 1
    covered: Float64Array = area[place] + height[place] * (knob - age[place])
    return covered


def _productivity(side: SideStats) -> Float64Array:
    """Return results per candidate by delay bucket relative to the mean, float64[n]; 1 where there is no candidate.

    This is the selectivity of equation (11) per delay.
    """
    met = side.delay_candidates > 0
    mean = side.delay_results.sum() / max(int(side.delay_candidates.sum()), 1)
    if mean <= 0:
        return np.ones(side.delay_bucket.size)
    return np.where(met, side.delay_results / np.maximum(side.delay_candidates, 1) / mean, 1.0)


class EvidenceWindow:
    """The running sums that ``empirical`` reads: an interval enters or leaves at the cost of its own buckets.

    The sums are of integers, results counted and results sampled where they are censored. So adding and subtracting is
    exact, and the sums are those of the intervals in the window, whatever entered and left before.

    Parameters
    ----------
    sample_fraction
        The share of rows in the deterministic sample; 0 for none.
    inside
        The intervals in the window at the start.
    """

    def __init__(self, sample_fraction: float, inside: Sequence[IntervalStats] = ()) -> None:
        self.share = sampled_share(sample_fraction) if sample_fraction > 0 else 0.0
        none = np.zeros(0, np.int64)
        self.sums: list[tuple[Int64Array, Int64Array, Int64Array]] = [(none, none, none), (none, none, none)]
        for stats in inside:
            self.add(stats)

    def add(self, stats: IntervalStats, sign: int = 1) -> None:
        """Add an interval to the window or, with `sign` -1, remove one that was added."""
        for side, counts in enumerate((stats.left, stats.right)):
            uncensored = (counts.required_bucket < counts.censored_from) | (self.share == 0)
            bucket, (pairs, sampled) = add_sparse(
                [self.sums[side][0], counts.required_bucket],
                [self.sums[side][1], sign * np.where(uncensored, counts.pairs, 0)],
                [self.sums[side][2], sign * np.where(uncensored, 0, counts.sampled_pairs)],
            )
            positive = (pairs > 0) | (sampled > 0)
            self.sums[side] = bucket[positive], pairs[positive], sampled[positive]

    def weights(self) -> tuple[SparseWeights, SparseWeights]:
        """Return estimated results by required bucket, left and right."""
        sides = []
        for bucket, pairs, sampled in self.sums:
            sides.append((bucket, pairs + sampled / self.share if self.share else pairs.astype(np.float64)))
        return sides[0], sides[1]


def empirical_of(
    sides: tuple[SparseWeights, SparseWeights], window_us: int, granularity_us: int
) -> SeparableRecall | None:
    """Return recall by the distribution of required retention, without a model.

    Parameters
    ----------
    sides
        Results by required bucket, left and right, as `EvidenceWindow.weights` returns them.
    window_us, granularity_us
        `w` and `g`.

    Returns
    -------
    SeparableRecall, or None without any result: then the retention in force stays.
    """
    total = float(sum(weight.sum() for _, weight in sides))
    if total <= 0:
        return None
    curves = []
    for bucket, weight in sides:
        bucket, recall = recall_curve(bucket, weight, total)
        curves.append(_from_floor((bucket + 1) * granularity_us, recall, -window_us))
    return SeparableRecall(*curves[0], *curves[1])


def _from_floor(knob: Int64Array, recall: Float64Array, floor_us: int) -> tuple[Int64Array, Float64Array]:
    """Return the same step function from `floor_us` on, where it has the value of the steps below."""
    below = int(np.searchsorted(knob, floor_us, side="right"))
    base = recall[below - 1] if below else 0.0
    return np.concatenate([[floor_us], knob[below:]]).astype(np.int64), np.concatenate([[base], recall[below:]])


def knob_steps(most: int) -> Int64Array:
    """Return the retentions to try, in granules, int64[n]: 0 to `most`, all of them up to `FINE_STEPS`."""
    fine = np.arange(min(most, FINE_STEPS) + 1, dtype=np.int64)
    if most <= FINE_STEPS:
        return fine
    count = math.ceil(math.log(most / FINE_STEPS) / math.log1p(0.001))
    coarse = np.geomspace(FINE_STEPS, most, count + 1)[1:-1].astype(np.int64)
    return np.concatenate([fine, coarse, [most]])


def choose_retention(recall: Recall, left_rate: float, right_rate: float, target: float) -> tuple[int, int]:
    """Return ``(d_left, d_right)`` in us that minimise (2), ``(d_left + w) V_left + (d_right + w) V_right``.

    Parameters
    ----------
    recall
        The estimate that must reach `target`. A target of 0 gives the floor, one out of reach the greatest retentions.
    left_rate, right_rate
        ``V_left`` and ``V_right`` in any common unit, such as rows of the interval; `w` only adds a constant.
    target
        ``Q_L``.
    """
    return recall.cheapest(max(left_rate, 0.0), max(right_rate, 0.0), target)


def interval_target(
    target: float, produced_rest: float, ideal_period: float, interval_us: int, period_us: int
) -> float:
    """Return `Q_L` of equation (3): the recall of the next interval by which the period that ends with it reaches
    `target`.

    Parameters
    ----------
    target : float
        ``Q_user``.
    produced_rest : float
        ``N'_{P-L}``, results produced in the last ``P - L``.
    ideal_period : float
        ``N_P``, results due in a period; ``N_L = N_P L / P``.
    interval_us, period_us : int
        `L` and `P`.
    """
    ideal_interval = ideal_period * interval_us / period_us
    if ideal_interval <= 0:
        return target
    return float(np.clip((target * ideal_period - produced_rest) / ideal_interval, 0.0, 1.0))


def _step(knob: Int64Array, recall: Float64Array, value_us: int) -> float:
    """Return the value of a step function."""
    at = int(np.searchsorted(knob, value_us, side="right"))
    return float(recall[at - 1]) if at else 0.0


Number = TypeVar("Number", np.int64, np.float64)


def _up_to(bucket: Int64Array, weight: NDArray[Number], at: Int64Array) -> NDArray[Number]:
    """Return the sum of the weights in buckets (non-decreasing) up to and including each of `at`."""
    sums = np.concatenate([np.zeros(1, weight.dtype), np.cumsum(weight)])
    total: NDArray[Number] = sums[np.searchsorted(bucket, at, "right")]
    return total
