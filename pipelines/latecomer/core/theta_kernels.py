"""Sequential loops of the theta join: dominance sums, canonical runs, expansion, counting sort.

One edge of the join graph has a *near* and a *far* side. Far rows stand at positions 0 .. m-1 of an order; a near row
matches positions ``first <= p < last``, and with a second inequality those of them whose `place` (a permutation of
0 .. m-1) is below the near row's `limit`. Positions below `first` always have places below `first`: both orders put
equality groups in the same places. Ordering: none of the inputs need be sorted unless said. Cost: O((n + m) log m) for
sums and runs, O(output) for expansion; `sort_runs` says what lexicographic order costs besides.

References
----------
.. [1] B. Chazelle, A functional approach to data structures and its use in multidimensional searching, SIAM J. Comput.
   17, 1988 (the levels of `levels_of`, later known as a wavelet tree).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


_BLOCK_BITS = 12
"""Counters of one block of `dominance_sums` fill 32 KiB: what the nearest cache holds."""


def run_sums(order: Int64, weights: Int64, rows: Int64, first: Int64, last: Int64, size: int) -> Int64:
    """Sum of ``weights[order[p]]`` over ``first <= p < last`` per near row, as int64[size] by row number, modulo 2**64."""
    out = np.zeros(size, np.int64)
    _run_sums(order, weights, rows, first, last, np.empty(len(order) + 1, np.int64), out)
    return out


@njit(cache=True)
def _run_sums(order: Int64, weights: Int64, rows: Int64, first: Int64, last: Int64, prefix: Int64, out: Int64) -> None:
    prefix[0] = 0
    for p in range(len(order)):
        prefix[p + 1] = prefix[p] + weights[order[p]]
    for i in range(len(rows)):
        out[rows[i]] = prefix[last[i]] - prefix[first[i]]


@njit(cache=True)
def _below(sixties: Int64, counters: Int64, limit: Any) -> Any:
    """Sum of the counters below `limit`, given the sums of every 64 of them: loops of fixed length, no guessed branch."""
    whole, rest = limit >> 6, limit & 63
    total = np.int64(0)
    for j in range(len(sixties)):
        total += sixties[j] & -np.int64(j < whole)
    own = counters[whole << 6 : (whole + 1) << 6]
    for j in range(64):
        total += own[j] & -np.int64(j < rest)
    return total


def dominance_sums(by_last: Int64, last: Int64, limit: Int64, place: Int64, weights: Int64) -> Int64:
    """Sum of ``weights[p]`` over positions ``p < last`` with ``place[p] < limit``, per near row, modulo 2**64.

    Places are cut into blocks. Positions and near rows are taken in one order, by position: counters per block answer
    for whole blocks, and both are handed on to the block they fall into, which answers for its part in the same order.
    All counters in use stay in the nearest cache; a tree over all places would not.

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
        O(n + m), times a vectorised sum of 128 counters per near row (more from 2**24 positions on).
    """
    total = len(place) + len(limit)
    inner, carried, out = np.empty(total, np.int16), np.empty(total, np.int64), np.empty(len(last), np.int64)
    found = np.empty(len(last), np.int64)
    _dominance_sums(last[by_last], limit[by_last], place, weights, inner, carried, found)
    out[by_last] = found
    return out


@njit(cache=True)
def _dominance_sums(
    last: Int64,
    limit: Int64,
    place: Int64,
    weights: Int64,
    inner: NDArray[np.int16],
    carried: Int64,
    out: Int64,
) -> None:
    size, width = len(place), 1 << _BLOCK_BITS
    blocks = (size >> _BLOCK_BITS) + 1
    fill = np.zeros(blocks + 1, np.int64)
    for p in range(size):
        fill[(place[p] >> _BLOCK_BITS) + 1] += 1
    for near in range(len(limit)):
        fill[(limit[near] >> _BLOCK_BITS) + 1] += 1
    for block in range(blocks):
        fill[block + 1] += fill[block]
    starts = fill.copy()
    sixties = np.zeros((blocks >> 6) + 1, np.int64)
    counters = np.zeros(len(sixties) << 6, np.int64)
    position = 0
    for near in range(len(last)):
        while position < last[near]:
            block = place[position] >> _BLOCK_BITS
            sixties[block >> 6] += weights[position]
            counters[block] += weights[position]
            inner[fill[block]] = place[position] & (width - 1)
            carried[fill[block]] = weights[position]
            fill[block] += 1
            position += 1
        block = limit[near] >> _BLOCK_BITS
        out[near] = _below(sixties, counters, block)
        inner[fill[block]] = width | (limit[near] & (width - 1))
        carried[fill[block]] = near
        fill[block] += 1
    sixties, counters = np.empty(width >> 6, np.int64), np.empty(width, np.int64)
    for block in range(blocks):
        sixties[:] = 0
        counters[:] = 0
        for i in range(starts[block], fill[block]):
            if inner[i] & width:
                out[carried[i]] += _below(sixties, counters, np.int64(inner[i] & (width - 1)))
            else:
                sixties[inner[i] >> 6] += carried[i]
                counters[inner[i]] += carried[i]


def levels_of(place: Int64, order: Int64, depth: int) -> tuple[Int64, NDArray[np.uint64], NDArray[np.int32]]:
    """Rows sorted by place within aligned blocks of positions, one level per block size, and where each level sends them.

    Parameters
    ----------
    place
        int64[m], a permutation, ``m < 2**depth``, m below 2**31.
    order
        int64[m], row number by position.
    depth
        Number of levels.

    Returns
    -------
    flat : int64[depth * m]
        Level ``l`` at ``l * m``: rows of blocks of ``2**(depth - 1 - l)`` positions, each block by ascending place.
    lefts : uint64[depth, words]
        Level ``l``, bit i: the i-th entry of the level above goes to a left half. 64 entries a word, so that a level of a
        million entries fits a near cache.
    before : int32[depth, words]
        How many go to a left half in the words before.
    """
    flat = np.empty(depth * len(place), np.int64)
    lefts = np.zeros((depth, (len(place) >> 6) + 1), np.uint64)
    before = np.zeros(lefts.shape, np.int32)
    _levels_of(place, order, flat, lefts, before)
    return flat, lefts, before


@njit(cache=True)
def _levels_of(place: Int64, order: Int64, flat: Int64, lefts: NDArray[np.uint64], before: NDArray[np.int32]) -> None:
    depth, size = len(lefts), len(place)
    above, below = np.empty(size, np.int32), np.empty(size, np.int32)
    ends = np.empty(2, np.int64)
    for position in range(size):
        above[place[position]] = position
    for level in range(depth):
        shift = depth - 1 - level
        half = 1 << shift
        total = 0
        for start in range(0, size, 2 * half):
            ends[0], ends[1] = start, min(start + half, size)
            for i in range(start, min(start + 2 * half, size)):
                position = above[i]
                right = (position >> shift) & 1
                below[ends[right]] = position
                flat[level * size + ends[right]] = order[position]
                ends[right] += 1
                if i & 63 == 0:
                    before[level, i >> 6] = total
                lefts[level, i >> 6] |= np.uint64(1 - right) << np.uint64(i & 63)
                total += 1 - right
        if size & 63 == 0:
            before[level, size >> 6] = total
        above, below = below, above


@njit(cache=True)
def _lefts_before(lefts: NDArray[np.uint64], before: NDArray[np.int32], i: int) -> Any:
    """Of the first i entries of a level, how many go to a left half."""
    word = lefts[i >> 6] & ((np.uint64(1) << np.uint64(i & 63)) - np.uint64(1))
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64(before[i >> 6]) + np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


def canonical_runs(
    by_last: Int64,
    rows: Int64,
    first: Int64,
    last: Int64,
    limit: Int64,
    lefts: NDArray[np.uint64],
    before: NDArray[np.int32],
    size: int,
) -> tuple[Int64, Int64, Int64]:
    """Split every near row's two-inequality answer into runs of `flat` of `levels_of`, whose m is `size`.

    Walks from the whole to the position `last`; a left half that lies wholly below `last` contributes the entries that
    stand before `limit`, less those of earlier groups, which stand first.

    Returns
    -------
    row, first, last : int64[k]
        Near row number and half-open run, in the order of `by_last`; k <= n log2(m). Any order would do: by ascending
        `last`, near rows walk the same blocks one after the other, and these stay in a near cache.
    """
    most = _most_runs(first, last)
    row_out, first_out, last_out = (np.empty(most, np.int64) for _ in range(3))
    rows, first, last, limit = rows[by_last], first[by_last], last[by_last], limit[by_last]
    total = _canonical_runs(rows, first, last, limit, lefts, before, size, row_out, first_out, last_out)
    return row_out[:total], first_out[:total], last_out[:total]


@njit(cache=True)
def _most_runs(first: Int64, last: Int64) -> int:
    most = 0
    for near in range(len(first)):
        ones = last[near] if last[near] > first[near] else 0
        while ones:
            ones &= ones - 1
            most += 1
    return most


@njit(cache=True)
def _canonical_runs(
    rows: Int64,
    first: Int64,
    last: Int64,
    limit: Int64,
    lefts: NDArray[np.uint64],
    before: NDArray[np.int32],
    size: int,
    row_out: Int64,
    first_out: Int64,
    last_out: Int64,
) -> int:
    depth = len(lefts)
    total = 0
    for near in range(len(last)):
        if last[near] <= first[near]:
            continue
        start = 0
        count = limit[near]
        for level in range(depth):
            if count == 0:
                break
            half = 1 << (depth - 1 - level)
            left = _lefts_before(lefts[level], before[level], start + count) - _lefts_before(
                lefts[level], before[level], start
            )
            if last[near] & half:
                earlier = min(max(first[near] - start, 0), half)
                if left > earlier:
                    row_out[total] = rows[near]
                    first_out[total] = level * size + start + earlier
                    last_out[total] = level * size + start + left
                    total += 1
                start += half
                count -= left
            else:
                count = left
    return total


@njit(cache=True)
def _kept(limits: Int64, places: Int64, row: int, far: int) -> bool:
    """Does this pair pass every inequality that is left: ``places[k, far] < limits[k, row]`` for all k?"""
    keep = True
    for k in range(len(limits)):
        keep &= places[k, far] < limits[k, row]
    return keep


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
            if _kept(limits, places, row, far):
                out[row] += weights[far]
    return out


@njit(cache=True)
def expand_runs(
    rows: Int64, first: Int64, last: Int64, order: Int64, limits: Int64, places: Int64, size: int
) -> tuple[Int64, Int64]:
    """Matches of every near row: ``(starts int64[size + 1], far int64[pairs])``; in any order of runs.

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
            if _kept(limits, places, row, order[at]):
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
            if _kept(limits, places, row, far):
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
