"""Sparse histograms: buckets with their counts or weights, added and merged exactly.

Ordering: none asked of the input of `add_sparse`, ascending buckets for `merge_counts`. Cost, for n buckets in all:
O(n log n) to add, O(n) to merge.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]

SparseCounts = tuple[Int64Array, Int64Array]
"""Buckets, strictly ascending, and their counts, of one length."""
SparseWeights = tuple[Int64Array, Float64Array]
"""Buckets and their estimated counts, of one length; buckets may repeat."""


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
        Strictly ascending union.
    weights : tuple of arrays[n]
        Sums per bucket, one array per column, of the column's dtype. Integer sums are exact.
    """
    parts = list(bucket)
    columns = [list(column) for column in weights]
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return none, tuple(none.copy() for _ in columns)
    nonempty = [i for i, part in enumerate(parts) if len(part)]
    if len(nonempty) == 1 and (parts[nonempty[0]][1:] > parts[nonempty[0]][:-1]).all():
        return parts[nonempty[0]].astype(np.int64), tuple(_widened(column[nonempty[0]]) for column in columns)
    union, place = np.unique(np.concatenate(parts).astype(np.int64, copy=False), return_inverse=True)
    sums = []
    for column in columns:
        values = _widened(np.concatenate(column))
        total = np.zeros(union.size, values.dtype)
        np.add.at(total, place, values)
        sums.append(total)
    return union, tuple(sums)


def _widened(values: np.ndarray) -> np.ndarray:
    """Return a copy as float64 or int64, the types in which sums are made."""
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


@njit(cache=True, nogil=True)
def merge_counts(bucket: Int64Array, rows: Int64Array, more: Int64Array, more_rows: Int64Array) -> SparseCounts:
    """Add two sparse histograms, int64[n] and int64[m], whose buckets each ascend strictly, in one pass."""
    n, m = len(bucket), len(more)
    union, total = np.empty(n + m, np.int64), np.empty(n + m, np.int64)
    i, j, k = 0, 0, 0
    while i < n or j < m:
        if j == m or (i < n and bucket[i] <= more[j]):
            union[k], total[k] = bucket[i], rows[i]
            if j < m and bucket[i] == more[j]:
                total[k] += more_rows[j]
                j += 1
            i += 1
        else:
            union[k], total[k] = more[j], more_rows[j]
            j += 1
        k += 1
    return union[:k], total[:k]
