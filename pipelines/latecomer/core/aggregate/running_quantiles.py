"""Quantiles of a window after each of several batches of rows.

Ordering: rows by window, then by batch, and in a batch rows that request an answer last; see :func:`after_batches`.
Cost: O(n log n) for n rows, however many answers: a Fenwick tree over the window's sorted values counts the values so
far. A percentile per answer would read every value of its window again at each correction. State: none between calls;
40 bytes a row.

References
----------
P. Fenwick, "A new data structure for cumulative frequency tables", Software: Practice and Experience 24, 1994.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


def after_batches(window: Int64, value: Float64, often: Int64, shares: Float64) -> tuple[Int64, Float64]:
    """Return quantiles of each window's values so far, at every row that requests an answer.

    Parameters
    ----------
    window : int64[n]
        Ascending.
    value, often : float64[n], int64[n]
        A value and its number of occurrences. A row with `often` 0 requests an answer, and its value does not count.
        NaN is greater than every number.
    shares : float64[s]
        From 0 to 1.

    Returns
    -------
    place : int64[k]
        Rows with a request after at least one value of their window.
    quantiles : float64[k, s]
        Between two values by linear interpolation, to the bit as Spark's ``percentile``.
    """
    order = np.lexsort((value, window))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    requests = np.flatnonzero(often == 0)
    quantiles, known = _walk(window, rank, value[order], often, shares, len(requests))
    return requests[known], quantiles[known]


@njit(cache=True)
def _walk(
    window: Int64, rank: Int64, ordered: Float64, often: Int64, shares: Float64, requests: int
) -> tuple[Float64, NDArray[np.bool_]]:
    """Return the quantiles of every request, and which requests have any."""
    quantiles, known = np.empty((requests, len(shares))), np.zeros(requests, np.bool_)
    n, begin, request = len(window), 0, 0
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
                known[request] = True
                for s in range(len(shares)):
                    position = (total - 1) * shares[s]
                    lower, higher = np.floor(position), np.ceil(position)
                    first = ordered[begin + _nth(tree, top, int(lower))]
                    last = ordered[begin + _nth(tree, top, int(higher))]
                    same = lower == higher or first == last or (np.isnan(first) and np.isnan(last))
                    between = (higher - position) * first + (position - lower) * last
                    quantiles[request, s] = first if same else between
            request += 1
        begin = end
    return quantiles, known


@njit(cache=True)
def _nth(tree: Int64, top: int, n: int) -> int:
    """Return the place in the window's sorted values of the n-th value so far, both from 0."""
    place, left = 0, n + 1
    step = top
    while step > 0:
        following = place + step
        if following < len(tree) and tree[following] < left:
            place = following
            left -= tree[following]
        step //= 2
    return place
