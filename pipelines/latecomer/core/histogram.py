"""Sparse histograms of delay and of required retention: the whole input of the join's control plane.

What the estimators need: the statistics of one adaptation interval are a *commutative monoid*. ``merge`` adds partial
counts, its unit is ``empty_interval``; so chunks, partitions and micro-batches may be counted apart and added in any
order. Without that, the controller's decisions, and the results, would depend on where a micro-batch was cut.

Conventions
-----------
* ``g`` is the granularity, in microseconds. Buckets are integers on the ``g`` grid; histograms are sparse, because one
  log record may be 800 s late (80,000 buckets) and almost all buckets between are empty.
* *Delay bucket* ``D = max(ceil(delay / g) - 1, 0)``: 0 for a delay in [0, g], 1 for (g, 2g], ... as in the paper.
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

Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]

UNCENSORED = 2**62
"""``censored_from`` of an interval in which everything was retained: no bucket reaches it."""


@dataclass(frozen=True)
class SideStats:
    """One stream X during one adaptation interval.

    Attributes
    ----------
    rows : int
        Arrivals on X.
    delay_bucket : int64[n]
        Delay buckets that occurred, strictly increasing.
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
    """Delay bucket of each delay, int64[n]: ``max(ceil(delay / g) - 1, 0)``."""
    return np.maximum(-(-np.asarray(delay_us, dtype=np.int64) // granularity_us) - 1, 0)


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


def empty_interval(interval: int) -> IntervalStats:
    """The unit of ``merge`` for one interval."""
    return IntervalStats(interval, empty_side(), empty_side())


def add_sparse(
    bucket: Iterable[Int64Array], *weights: Iterable[np.ndarray]
) -> tuple[Int64Array, tuple[np.ndarray, ...]]:
    """Add sparse histograms that share their buckets.

    Parameters
    ----------
    bucket : iterable of int64[n_i]
        Buckets of each histogram, in any order, repeats allowed.
    *weights : iterable of int64[n_i] or float64[n_i]
        One iterable per column of weights.

    Returns
    -------
    bucket : int64[n]
        Strictly increasing union.
    weights : tuple of arrays[n]
        Sums per bucket, one array per column, of the column's dtype. Integer sums are exact.
    """
    parts = list(bucket)
    columns = [list(column) for column in weights]
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return none, tuple(none.copy() for _ in columns)
    union, place = np.unique(np.concatenate(parts).astype(np.int64, copy=False), return_inverse=True)
    sums = []
    for column in columns:
        values = np.concatenate(column)
        total = np.zeros(union.size, dtype=np.float64 if values.dtype.kind == "f" else np.int64)
        np.add.at(total, place, values)
        sums.append(total)
    return union, tuple(sums)


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
    return SideStats(
        **{
            name: np.asarray(value, dtype=np.int64) if isinstance(value, list) else int(value)
            for name, value in data.items()
        }
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
