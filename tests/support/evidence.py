"""The evidence of the empirical estimator, computed from scratch, to compare with the running sums of the product."""

from __future__ import annotations

from collections.abc import Sequence

from latecomer.core.arrays.sparse_counts import add_sparse
from latecomer.core.join.recall_estimators import Recall, empirical_of
from latecomer.core.join.statistics import IntervalStats, uncensor


def empirical(
    stats: Sequence[IntervalStats], window_us: int, granularity_us: int, sample_fraction: float
) -> Recall | None:
    """Return the empirical estimate from the given intervals, where the product adds and subtracts intervals."""
    sides = []
    for name in ("left", "right"):
        parts = [uncensor(getattr(s, name), sample_fraction) for s in stats]
        bucket, (weight,) = add_sparse([b for b, _ in parts], [w for _, w in parts])
        sides.append((bucket, weight))
    return empirical_of((sides[0], sides[1]), window_us, granularity_us)
