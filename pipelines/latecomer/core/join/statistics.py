"""Sparse histograms of delay and of required retention: the whole input of the join's control plane.

What the estimators need: the statistics of one adaptation interval are a *commutative monoid*. ``merge`` adds partial
counts, its unit is an interval of two ``empty_side``; so chunks, partitions and micro-batches may be counted apart and added in any
order. Without that, the controller's decisions, and the results, would depend on where a micro-batch was cut.

Conventions
-----------
* ``g`` is the granularity, in microseconds. Buckets are integers on the ``g`` grid; histograms are sparse, because one
  log record may be 800 s late (80,000 buckets) and almost all buckets between are empty.
* *Delay bucket* ``D = max(ceil(delay / g) - 1, 0)``: 0 for a delay in [0, g], 1 for (g, 2g], ... as in the paper.
* *Lateness* ``T(seq) - ts`` is a tuple's delay against stream time: never more than that on its own stream, and negative for a tuple that
  is ahead of the other stream. Its bucket is a delay's, or ``floor(lateness / g)`` below 0.
* *Required bucket* ``k = floor(rho / g)``, ``rho = T(seq_y) - w - x.ts``. A pair is produced under retention ``d`` if
  and only if ``rho < d``, so ``d = (k + 1) * g`` produces all of bucket ``k`` and of every lower one. ``rho`` may be
  negative: such a pair is produced by a buffer that keeps less than one window.

References
----------
QJoin (2020), section 1.4.3 for D; ``rho`` is ours: it is known whatever retention was chosen, so that one pass over
the data yields the loss of every retention one might have chosen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latecomer.core.arrays.sparse_counts import Float64Array, Int64Array, SparseWeights, add_sparse

UNCENSORED = 2**62
"""``censored_from`` of an interval in which everything was retained: no bucket reaches it."""

SAMPLE_MODULUS = 65536
SAMPLE_FACTOR = 40503
SAMPLE_FRACTION = 0.005
"""Default share of tuples in the deterministic sample that is held for the whole delay range."""


@dataclass(frozen=True)
class SideStats:
    """One stream X during one adaptation interval.

    Attributes
    ----------
    rows : int
        Arrivals on X.
    delay_bucket : int64[n]
        Delay buckets that occurred, strictly increasing; of lateness where the policy asks for that.
    delay_rows : int64[n]
        Arrivals per delay bucket; sums to ``rows``.
    delay_candidates : int64[n]
        Candidate pairs that those arrivals met: same keys, inside the window, partner still held.
    delay_results : int64[n]
        Of them, the pairs that passed the predicate.
    required_bucket : int64[m]
        Required buckets that occurred, strictly increasing, of results whose *earlier* arrival x is on X.
    pairs : int64[m]
        Results produced, per required bucket. Exact where the bucket is below ``censored_from``, a part above.
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


@dataclass(frozen=True)
class IntervalStats:
    """Both streams during ``[interval * L, (interval + 1) * L)`` of stream time T at the later arrival."""

    interval: int
    left: SideStats
    right: SideStats


def delay_bucket(delay_us: Int64Array, granularity_us: int) -> Int64Array:
    """Bucket of each delay or lateness, int64[n]: ``max(ceil(delay / g) - 1, 0)``, and ``floor(delay / g)`` below 0."""
    delay = np.asarray(delay_us, dtype=np.int64)
    return np.where(delay > 0, -(-delay // granularity_us) - 1, delay // granularity_us)


def required_bucket(rho_us: Int64Array, granularity_us: int) -> Int64Array:
    """Required bucket of each required retention, int64[n]: ``floor(rho / g)``, also below zero."""
    return np.asarray(rho_us, dtype=np.int64) // granularity_us


def exact_below(retention_us: int, granularity_us: int) -> int:
    """``censored_from`` when everything with ``rho < retention_us`` was retained: the first bucket not wholly seen."""
    return min(retention_us // granularity_us, UNCENSORED)


def empty_side() -> SideStats:
    """The unit of ``merge`` for one stream."""
    none = np.zeros(0, dtype=np.int64)
    return SideStats(0, none, none, none, none, none, none, none, UNCENSORED)


def merge_sides(sides: Iterable[SideStats]) -> SideStats:
    """Sum of partial counts of one stream; what is exact in the sum is what was exact in every part."""
    parts = list(sides)
    if not parts:
        return empty_side()
    late, (rows, candidates, results) = add_sparse(
        [s.delay_bucket for s in parts],
        [s.delay_rows for s in parts],
        [s.delay_candidates for s in parts],
        [s.delay_results for s in parts],
    )
    required, (pairs, sampled) = add_sparse(
        [s.required_bucket for s in parts], [s.pairs for s in parts], [s.sampled_pairs for s in parts]
    )
    total = sum(s.rows for s in parts)
    return SideStats(
        total, late, rows, candidates, results, required, pairs, sampled, min(s.censored_from for s in parts)
    )


def merge(first: IntervalStats, second: IntervalStats) -> IntervalStats:
    """Sum of two partial counts of the same interval (an interval that a micro-batch cut in two).

    Raises
    ------
    ValueError
        If they are of different intervals: adding those would lose where each belongs.
    """
    if first.interval != second.interval:
        raise ValueError(
            f"statistics of intervals {first.interval} and {second.interval} cannot be merged: "
            "merge partial counts of one interval only"
        )
    return IntervalStats(
        first.interval, merge_sides([first.left, second.left]), merge_sides([first.right, second.right])
    )


def to_dict(stats: IntervalStats) -> dict[str, Any]:
    """JSON-able form, of integers and lists of integers only; ``from_dict`` restores it exactly."""
    return {"interval": stats.interval, "left": _side_to_dict(stats.left), "right": _side_to_dict(stats.right)}


def from_dict(data: dict[str, Any]) -> IntervalStats:
    """Inverse of ``to_dict``."""
    return IntervalStats(int(data["interval"]), _side_from_dict(data["left"]), _side_from_dict(data["right"]))


def _side_to_dict(side: SideStats) -> dict[str, Any]:
    values = {f.name: getattr(side, f.name) for f in fields(side)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else int(value) for name, value in values.items()}


def _side_from_dict(data: dict[str, Any]) -> SideStats:
    def column(name: str) -> Int64Array:
        return np.asarray(data[name], dtype=np.int64)

    return SideStats(
        int(data["rows"]),
        column("delay_bucket"),
        column("delay_rows"),
        column("delay_candidates"),
        column("delay_results"),
        column("required_bucket"),
        column("pairs"),
        column("sampled_pairs"),
        int(data["censored_from"]),
    )


def recall_curve(bucket: Int64Array, weight: np.ndarray, total: float | None = None) -> tuple[Int64Array, Float64Array]:
    """Recall as a function of the knob, from a sparse histogram of required values.

    Parameters
    ----------
    bucket : int64[n]
        Required buckets, strictly increasing.
    weight : int64[n] or float64[n]
        Contributions per bucket.
    total : float, optional
        What recall is measured against; the sum of ``weight`` when not given. A join passes the total of both sides,
        so that the recalls of the sides add up.

    Returns
    -------
    bucket : int64[n]
        As given: the knob ``(bucket[i] + 1) * g`` gives ``recall[i]``; below the first bucket recall is 0.
    recall : float64[n]
        Non-decreasing.
    """
    cumulative = np.cumsum(np.asarray(weight, dtype=np.float64))
    whole = float(cumulative[-1] if cumulative.size else 0.0) if total is None else float(total)
    return bucket, cumulative / whole if whole > 0 else np.ones(cumulative.size)


def in_sample(seq: Int64Array, fraction: float) -> NDArray[np.bool_]:
    """Is each tuple in the deterministic sample? bool[n]: ``seq * 40503 mod 65536 < fraction * 65536``."""
    place = np.asarray(seq, dtype=np.int64) % SAMPLE_MODULUS * SAMPLE_FACTOR % SAMPLE_MODULUS
    return place < fraction * SAMPLE_MODULUS


def sampled_share(fraction: float) -> float:
    """Exact share of 65,536 consecutive arrivals that ``in_sample`` selects (the factor is odd: a permutation)."""
    return min(int(np.ceil(fraction * SAMPLE_MODULUS)), SAMPLE_MODULUS) / SAMPLE_MODULUS


def uncensor(side: SideStats, sample_fraction: float) -> SparseWeights:
    """Results by required bucket: exact below ``censored_from``, above it ``1 / fraction`` for each sampled result.

    Unbiased (Horvitz and Thompson), but of high variance. With no sample what was not seen counts as not there.
    """
    if sample_fraction <= 0:
        weight = side.pairs.astype(np.float64)
    else:
        seen = side.required_bucket < side.censored_from
        weight = np.where(seen, side.pairs, side.sampled_pairs / sampled_share(sample_fraction))
    there = weight > 0
    return side.required_bucket[there], weight[there]
