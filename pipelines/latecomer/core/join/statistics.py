"""Sparse histograms of delay and of required retention: everything the join's control plane learns from.

The statistics of one adaptation interval are a *commutative monoid*: `merge` adds partial counts, and its unit is an
interval of two `empty_side`. So chunks, partitions and micro-batches may be counted apart and added in any order.
Without that, the controller's decisions, and the results, would depend on where a micro-batch was cut.

Conventions
-----------
* ``g`` is the granularity in microseconds. Buckets are integers on the ``g`` grid. Histograms are sparse, because one
  log record may be 800 s late (80,000 buckets) and almost all buckets between are empty.
* *Delay bucket* ``D = max(ceil(delay / g) - 1, 0)``: 0 for a delay in [0, g], 1 for (g, 2g], and so on, as in the
  paper.
* *Lateness* ``T(seq) - ts`` is a tuple's delay against stream time. It is at most the delay on the tuple's own stream,
  and negative for a tuple ahead of the other stream. Its bucket is that of a delay, or ``floor(lateness / g)`` below
  0.
* *Required bucket* ``k = floor(rho / g)`` of the required retention ``rho = T(seq_y) - w - x.ts``. A pair is produced
  under retention ``d`` if and only if ``rho < d``, so ``d = (k + 1) * g`` produces all of bucket ``k`` and of every
  lower one. ``rho`` may be negative: a buffer that keeps less than one window produces such a pair.

References
----------
QJoin (2020), section 1.4.3: the coarse delay `D` and the counts per delay of equation (11). The required retention is
ours: it does not depend on the retention in force, so one pass over the data gives the recall of every retention.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from latecomer.core.arrays.sparse_counts import Float64Array, Int64Array, SparseWeights, add_sparse

UNCENSORED = 2**62
"""``censored_from`` of an interval in which everything was retained: no bucket reaches it."""

SAMPLE_MODULUS = 65536
SAMPLE_FACTOR = 40503
SAMPLE_FRACTION = 0.005
"""The default share of tuples in the deterministic sample, which is held for the whole delay range."""


class SideStatsState(TypedDict):
    """The attributes of `SideStats` as JSON."""

    rows: int
    delay_bucket: list[int]
    delay_rows: list[int]
    delay_candidates: list[int]
    delay_results: list[int]
    required_bucket: list[int]
    pairs: list[int]
    sampled_pairs: list[int]
    censored_from: int


class IntervalStatsState(TypedDict):
    """The attributes of `IntervalStats` as JSON."""

    interval: int
    left: SideStatsState
    right: SideStatsState


@dataclass(frozen=True)
class SideStats:
    """The counts of one stream X during one adaptation interval.

    Attributes
    ----------
    rows : int
        Arrivals on X.
    delay_bucket : int64[n]
        Delay buckets that occurred, strictly increasing; buckets of lateness where the policy needs that.
    delay_rows : int64[n]
        Arrivals per delay bucket; sums to ``rows``.
    delay_candidates : int64[n]
        Candidate pairs that those arrivals met: same keys, inside the window, partner still held.
    delay_results : int64[n]
        The candidates that passed the predicate.
    required_bucket : int64[m]
        Required buckets that occurred, strictly increasing, of results whose *earlier* arrival x is on X.
    pairs : int64[m]
        Results produced, per required bucket: all of them below ``censored_from``, a part above.
    sampled_pairs : int64[m]
        Results whose x is in the deterministic sample, produced or not.
    censored_from : int
        Buckets from here on were not retained during the whole interval.
    """

    rows: int
    delay_bucket: Int64Array
    delay_rows: Int64Array
    delay_candidates: Int64Array
    delay_results: Int64Array
    required_bucket: Int64Array
    pairs: Int64Array
    sampled_pairs: Int64Array
    censored_from: int

    def to_dict(self) -> SideStatsState:
        """Return the counts as JSON, exactly."""
        return {
            "rows": int(self.rows),
            "delay_bucket": self.delay_bucket.tolist(),
            "delay_rows": self.delay_rows.tolist(),
            "delay_candidates": self.delay_candidates.tolist(),
            "delay_results": self.delay_results.tolist(),
            "required_bucket": self.required_bucket.tolist(),
            "pairs": self.pairs.tolist(),
            "sampled_pairs": self.sampled_pairs.tolist(),
            "censored_from": int(self.censored_from),
        }

    @classmethod
    def from_dict(cls, state: SideStatsState) -> SideStats:
        """Return the counts that `to_dict` wrote."""
        return cls(
            int(state["rows"]),
            np.asarray(state["delay_bucket"], np.int64),
            np.asarray(state["delay_rows"], np.int64),
            np.asarray(state["delay_candidates"], np.int64),
            np.asarray(state["delay_results"], np.int64),
            np.asarray(state["required_bucket"], np.int64),
            np.asarray(state["pairs"], np.int64),
            np.asarray(state["sampled_pairs"], np.int64),
            int(state["censored_from"]),
        )


@dataclass(frozen=True)
class IntervalStats:
    """The counts of both streams during ``[interval * L, (interval + 1) * L)`` of stream time at the later arrival."""

    interval: int
    left: SideStats
    right: SideStats

    def to_dict(self) -> IntervalStatsState:
        """Return the counts as JSON, exactly."""
        return {"interval": int(self.interval), "left": self.left.to_dict(), "right": self.right.to_dict()}

    @classmethod
    def from_dict(cls, state: IntervalStatsState) -> IntervalStats:
        """Return the counts that `to_dict` wrote."""
        return cls(int(state["interval"]), SideStats.from_dict(state["left"]), SideStats.from_dict(state["right"]))


def delay_bucket(delay_us: Int64Array, granularity_us: int) -> Int64Array:
    """Return the bucket of each delay, ``max(ceil(delay / g) - 1, 0)``, or of each lateness below 0, ``floor(delay /
    g)``.

    Parameters
    ----------
    delay_us : int64[n]
        Delay or lateness in microseconds.
    granularity_us : int
        `g`.

    Returns
    -------
    int64[n]
    """
    delay = np.asarray(delay_us, dtype=np.int64)
    return np.where(delay > 0, -(-delay // granularity_us) - 1, delay // granularity_us)


def required_bucket(rho_us: Int64Array, granularity_us: int) -> Int64Array:
    """Return the bucket of each required retention, int64[n]: ``floor(rho / g)``, also below zero."""
    return np.asarray(rho_us, dtype=np.int64) // granularity_us


def exact_below(retention_us: int, granularity_us: int) -> int:
    """Return ``censored_from`` of a constant retention: the first bucket that has a ``rho >= retention_us``."""
    return min(retention_us // granularity_us, UNCENSORED)


def empty_side() -> SideStats:
    """Return the unit of `merge` for one stream."""
    none = np.zeros(0, dtype=np.int64)
    return SideStats(0, none, none, none, none, none, none, none, UNCENSORED)


def merge_sides(sides: Iterable[SideStats]) -> SideStats:
    """Add partial counts of one stream; the sum is exact only where every part is."""
    parts = list(sides)
    if not parts:
        return empty_side()
    delays, (rows, candidates, results) = add_sparse(
        [s.delay_bucket for s in parts],
        [s.delay_rows for s in parts],
        [s.delay_candidates for s in parts],
        [s.delay_results for s in parts],
    )
    required, (pairs, sampled) = add_sparse(
        [s.required_bucket for s in parts], [s.pairs for s in parts], [s.sampled_pairs for s in parts]
    )
    total = sum(s.rows for s in parts)
    censored_from = min(s.censored_from for s in parts)
    return SideStats(total, delays, rows, candidates, results, required, pairs, sampled, censored_from)


def merge(first: IntervalStats, second: IntervalStats) -> IntervalStats:
    """Add two partial counts of one interval, such as one that a micro-batch cut in two.

    Raises
    ------
    ValueError
        If the intervals differ: their sum would belong to neither.
    """
    if first.interval != second.interval:
        raise ValueError(
            f"statistics of intervals {first.interval} and {second.interval} cannot be merged: "
            "merge partial counts of one interval only"
        )
    return IntervalStats(
        first.interval, merge_sides([first.left, second.left]), merge_sides([first.right, second.right])
    )


def recall_curve(
    bucket: Int64Array, weight: Int64Array | Float64Array, total: float | None = None
) -> tuple[Int64Array, Float64Array]:
    """Return recall as a function of retention, from a sparse histogram of required retention.

    Parameters
    ----------
    bucket : int64[n]
        Required buckets, strictly increasing.
    weight : int64[n] or float64[n]
        Results per bucket.
    total : float, optional
        The number of results that recall is relative to; the sum of ``weight`` when not given. A join passes the total
        of both sides, so that the recalls of the sides add up.

    Returns
    -------
    bucket : int64[n]
        As given. A retention of ``(bucket[i] + 1) * g`` gives ``recall[i]``; below the first bucket recall is 0.
    recall : float64[n]
        Non-decreasing.
    """
    cumulative = np.cumsum(np.asarray(weight, dtype=np.float64))
    whole = float(cumulative[-1] if cumulative.size else 0.0) if total is None else float(total)
    return bucket, cumulative / whole if whole > 0 else np.ones(cumulative.size)


def in_sample(seq: Int64Array, fraction: float) -> NDArray[np.bool_]:
    """Select the deterministic sample of tuples, bool[n]: ``seq * 40503 mod 65536 < fraction * 65536``."""
    place = np.asarray(seq, dtype=np.int64) % SAMPLE_MODULUS * SAMPLE_FACTOR % SAMPLE_MODULUS
    return place < fraction * SAMPLE_MODULUS


def sampled_share(fraction: float) -> float:
    """Return the exact share of 65,536 consecutive arrivals that `in_sample` selects.

    The factor is odd, so its multiples are a permutation of the 65,536 places.
    """
    return min(int(np.ceil(fraction * SAMPLE_MODULUS)), SAMPLE_MODULUS) / SAMPLE_MODULUS


def uncensor(side: SideStats, sample_fraction: float) -> SparseWeights:
    """Estimate results by required bucket: counted below ``censored_from``, scaled up from the sample above it.

    The Horvitz-Thompson estimate, ``1 / fraction`` for each sampled result: unbiased, but of high variance. Without a
    sample a result that was not produced counts as none.
    """
    if sample_fraction <= 0:
        weight = side.pairs.astype(np.float64)
    else:
        counted = side.required_bucket < side.censored_from
        weight = np.where(counted, side.pairs, side.sampled_pairs / sampled_share(sample_fraction))
    positive = weight > 0
    return side.required_bucket[positive], weight[positive]
