"""Sequential loops of the theta join: dominance sums, canonical runs, expansion, counting sorts.

One edge of the join graph has a *near* and a *far* side. Far rows stand at positions 0 .. m-1 of an order; a near row
matches positions ``first <= p < last``, and with a second inequality those of them whose `place` (a permutation of
0 .. m-1) is below the near row's `limit`. Positions below `first` always have places below `first`: both orders put
equality groups in the same places. Ordering: none of the inputs need be sorted unless said. Cost: O((n + m) log m) for
sums and runs, O(output) for expansion; `sort_runs` says what lexicographic order costs besides.

References
----------
.. [1] P. M. Fenwick, A new data structure for cumulative frequency tables, Software: Practice and Experience 24, 1994.
.. [2] B. Chazelle, A functional approach to data structures and its use in multidimensional searching, SIAM J. Comput.
   17, 1988 (the levels of `levels_of`, later known as a wavelet tree).
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@njit(cache=True)
def dominance_sums(by_last: Int64, last: Int64, limit: Int64, place: Int64, weights: Int64) -> Int64:
    """Sum of ``weights[p]`` over positions ``p < last`` with ``place[p] < limit``, per near row, modulo 2**64.

    Parameters
    ----------
    by_last
        int64[n], the near rows in ascending `last`.
    last, limit
        int64[n], exclusive bounds in 0 .. m.
    place
        int64[m], a permutation.
    weights
        int64[m], by position.

    Returns
    -------
    int64[n]
        O((n + m) log m) with one Fenwick tree.
    """
    size = len(place)
    tree = np.zeros(size + 1, np.int64)
    out = np.zeros(len(last), np.int64)
    position = 0
    for near in by_last:
        while position < last[near]:
            node = place[position] + 1
            weight = weights[position]
            while node <= size:
                tree[node] += weight
                node += node & -node
            position += 1
        node = limit[near]
        total = 0
        while node > 0:
            total += tree[node]
            node -= node & -node
        out[near] = total
    return out


@njit(cache=True)
def levels_of(place: Int64, depth: int) -> tuple[Int64, Int64]:
    """Positions sorted by place within aligned blocks, one level per block size, and where each level sends them.

    Parameters
    ----------
    place
        int64[m], a permutation, ``m < 2**depth``.
    depth
        Number of levels.

    Returns
    -------
    table : int64[depth, m]
        Row ``l``: positions, blocks of ``2**(depth - 1 - l)`` positions, each block by ascending place.
    lefts : int64[depth, m + 1]
        Row ``l``: of the first i entries of the level above, how many go to a left half.
    """
    size = len(place)
    table = np.empty((depth, size), np.int64)
    lefts = np.zeros((depth, size + 1), np.int64)
    above = np.empty(size, np.int64)
    for position in range(size):
        above[place[position]] = position
    for level in range(depth):
        half = 1 << (depth - 1 - level)
        start = 0
        while start < size:
            left = start
            right = min(start + half, size)
            for i in range(start, min(start + 2 * half, size)):
                position = above[i]
                if position & half:
                    table[level, right] = position
                    right += 1
                    lefts[level, i + 1] = lefts[level, i]
                else:
                    table[level, left] = position
                    left += 1
                    lefts[level, i + 1] = lefts[level, i] + 1
            start += 2 * half
        above = table[level]
    return table, lefts


@njit(cache=True)
def canonical_runs(first: Int64, last: Int64, limit: Int64, lefts: Int64) -> tuple[Int64, Int64, Int64]:
    """Split every near row's two-inequality answer into runs of the flattened `table` of `levels_of`.

    Walks from the whole to the position `last`; a left half that lies wholly below `last` contributes the entries that
    stand before `limit`, less those of earlier groups, which stand first.

    Returns
    -------
    near, first, last : int64[k]
        Near row and half-open run, by ascending near row; k <= n log2(m).
    """
    depth, size = lefts.shape[0], lefts.shape[1] - 1
    total = 0
    near_out = np.empty(0, np.int64)
    first_out = np.empty(0, np.int64)
    last_out = np.empty(0, np.int64)
    for filling in range(2):
        if filling:
            near_out = np.empty(total, np.int64)
            first_out = np.empty(total, np.int64)
            last_out = np.empty(total, np.int64)
            total = 0
        for near in range(len(first)):
            if last[near] <= first[near]:
                continue
            start = 0
            count = limit[near]
            for level in range(depth):
                if count == 0:
                    break
                half = 1 << (depth - 1 - level)
                left = lefts[level, start + count] - lefts[level, start]
                if last[near] & half:
                    earlier = min(max(first[near] - start, 0), half)
                    if left > earlier:
                        if filling:
                            near_out[total] = near
                            first_out[total] = level * size + start + earlier
                            last_out[total] = level * size + start + left
                        total += 1
                    start += half
                    count -= left
                else:
                    count = left
    return near_out, first_out, last_out


@njit(cache=True)
def filtered_sums(
    rows: Int64, first: Int64, last: Int64, order: Int64, limits: Int64, places: Int64, weights: Int64, size: int
) -> Int64:
    """Sum of weights over runs, keeping far rows that pass every residual inequality, modulo 2**64; O(pairs in runs).

    `rows` and `order` hold row numbers of the two streams; ``limits[k, row]``, ``places[k, far]`` are residuals that
    hold where place < limit. Returns int64[size] by row number.
    """
    out = np.zeros(size, np.int64)
    for run in range(len(rows)):
        row = rows[run]
        for at in range(first[run], last[run]):
            far = order[at]
            keep = True
            for k in range(len(limits)):
                if places[k, far] >= limits[k, row]:
                    keep = False
                    break
            if keep:
                out[row] += weights[far]
    return out


@njit(cache=True)
def expand_runs(
    rows: Int64, first: Int64, last: Int64, order: Int64, limits: Int64, places: Int64, size: int
) -> tuple[Int64, Int64]:
    """Matches of every near row: ``(starts int64[size + 1], far int64[pairs])``; runs must be grouped by row.

    Far rows stand in run order, unsorted. Residuals as in `filtered_sums`.
    """
    starts = np.zeros(size + 1, np.int64)
    plain = len(limits) == 0
    for run in range(len(rows)):
        row = rows[run]
        if plain:
            starts[row + 1] += last[run] - first[run]
            continue
        for at in range(first[run], last[run]):
            keep = True
            for k in range(len(limits)):
                if places[k, order[at]] >= limits[k, row]:
                    keep = False
                    break
            if keep:
                starts[row + 1] += 1
    for row in range(size):
        starts[row + 1] += starts[row]
    fill = starts[:-1].copy()
    out = np.empty(starts[size], np.int64)
    for run in range(len(rows)):
        row = rows[run]
        to = fill[row]
        for at in range(first[run], last[run]):
            far = order[at]
            keep = True
            for k in range(len(limits)):
                if places[k, far] >= limits[k, row]:
                    keep = False
                    break
            if keep:
                out[to] = far
                to += 1
        fill[row] = to
    return starts, out


@njit(cache=True)
def sort_runs(starts: Int64, far: Int64, far_size: int) -> None:
    """Put far rows in ascending order within each near row, in place.

    A list that holds at least 1/64 of the far rows is marked in a table of bytes and read off eight at a time, in
    linear time; a shorter list of k is sorted, O(k log k). Both beat the strictly linear way, transposing twice, whose
    scattered writes miss every cache.
    """
    words = np.zeros((far_size + 7) // 8, np.uint64)
    marks = words.view(np.uint8)
    for row in range(len(starts) - 1):
        begin, end = starts[row], starts[row + 1]
        if (end - begin) * 64 >= far_size:
            for at in range(begin, end):
                marks[far[at]] = 1
            to = begin
            for word in range(len(words)):
                if words[word]:
                    for j in range(8 * word, 8 * word + 8):
                        if marks[j]:
                            far[to] = j
                            to += 1
                    words[word] = 0
        elif end - begin > 24:
            far[begin:end] = np.sort(far[begin:end])
        else:
            for at in range(begin + 1, end):
                value = far[at]
                to = at
                while to > begin and far[to - 1] > value:
                    far[to] = far[to - 1]
                    to -= 1
                far[to] = value


@njit(cache=True)
def follow(parents: Int64, starts: Int64, far: Int64) -> tuple[Int64, Int64]:
    """One step of a multi-way expansion: every partial result times the matches of its parent row.

    Returns ``(origin int64[out], child int64[out])``: which partial result, and the far row; order is kept.
    """
    total = 0
    for parent in parents:
        total += starts[parent + 1] - starts[parent]
    origin = np.empty(total, np.int64)
    child = np.empty(total, np.int64)
    to = 0
    for i in range(len(parents)):
        for at in range(starts[parents[i]], starts[parents[i] + 1]):
            origin[to] = i
            child[to] = far[at]
            to += 1
    return origin, child


@njit(cache=True)
def stable_order(keys: Int64, order: Int64, size: int) -> Int64:
    """`order` rearranged by ascending ``keys[order]`` in 0 .. size-1, ties as they were; O(len + size)."""
    fill = np.zeros(size + 1, np.int64)
    for i in order:
        fill[keys[i] + 1] += 1
    for k in range(size):
        fill[k + 1] += fill[k]
    out = np.empty(len(order), np.int64)
    for i in order:
        key = keys[i]
        out[fill[key]] = i
        fill[key] += 1
    return out
