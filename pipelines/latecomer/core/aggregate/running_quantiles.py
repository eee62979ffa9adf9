"""Quantiles of a window after each of several batches of rows.

Ordering: rows by window, batch, and those that ask last; see :func:`after_batches`. Cost: O(n log n) for n rows, however many ask:
a Fenwick tree over the window's sorted values counts what has come so far. State: none between calls; 40 bytes a row. Chosen over a
percentile per answer because that looks at every value of its window, and windows are corrected again and again.
Source of the tree: Fenwick, "A new data structure for cumulative frequency tables", 1994.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


def after_batches(window: Int64, value: Float64, often: Int64, shares: Float64) -> tuple[Int64, Float64]:
    """Quantiles of each window's values so far, wherever a row asks for them.

    Parameters
    ----------
    window : int64[n]
        Ascending.
    value, often : float64[n], int64[n]
        A value and how often it stands there; `often` 0: a row that asks, whose value does not count. NaN is greater than every number.
    shares : float64[s]
        From 0 to 1.

    Returns
    -------
    place : int64[k]
        Rows that asked where any value had come.
    found : float64[k, s]
        Between two values by linear interpolation, to the bit as Spark's ``percentile``.
    """
    order = np.lexsort((value, window))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    asking = np.flatnonzero(often == 0)
    found, known = _walk(window, rank, value[order], often, shares, len(asking))
    return asking[known], found[known]


@njit(cache=True)
def _walk(window, rank, ordered, often, shares, asking):  # type: ignore[no-untyped-def]
    found, known = np.empty((asking, len(shares))), np.zeros(asking, np.bool_)
    n, begin, asked = len(window), 0, 0
    while begin < n:
        end = begin
        while end < n and window[end] == window[begin]:
            end += 1
        size = end - begin
        top = 1
        while 2 * top <= size:
            top *= 2
        tree, total = np.zeros(size + 1, np.int64), 0
        for row in range(begin, end):
            if often[row] > 0:
                total += often[row]
                place = rank[row] - begin + 1
                while place <= size:
                    tree[place] += often[row]
                    place += place & -place
                continue
            if total > 0:
                known[asked] = True
                for s in range(len(shares)):
                    position = (total - 1) * shares[s]
                    lower, higher = np.floor(position), np.ceil(position)
                    first = ordered[begin + _nth(tree, top, np.int64(lower))]
                    last = ordered[begin + _nth(tree, top, np.int64(higher))]
                    same = lower == higher or first == last or (np.isnan(first) and np.isnan(last))
                    found[asked, s] = first if same else (higher - position) * first + (position - lower) * last
            asked += 1
        begin = end
    return found, known


@njit(cache=True)
def _nth(tree, top, n):  # type: ignore[no-untyped-def]
    """Place in order of the n-th value so far, both from 0."""
    place, left = 0, n + 1
    step = top
    while step > 0:
        following = place + step
        if following < len(tree) and tree[following] < left:
            place = following
            left -= tree[following]
        step //= 2
    return place
