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

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Ints = NDArray[np.signedinteger]
_NONE = np.empty((0, 0), np.int64)


def run_sums(order: Int64, weights: Int64, rows: Int64, first: Int64, last: Int64, size: int) -> Int64:
    """Sum ``weights[order[p]]`` over ``first <= p < last`` per near row, int64[size] by row number, modulo 2**64."""
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


def narrow(most: int) -> type[np.signedinteger]:
    """Return the integer type for numbers up to `most`: half the memory is half the time of long arrays."""
    return np.int32 if most < 1 << 31 else np.int64


def levels_of(place: Int64, order: Int64, depth: int) -> tuple[Ints, Int64, NDArray[np.uint64], NDArray[np.int32]]:
    """Sort rows by place within the left halves of aligned blocks of positions, one level per block size.

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
    flat : int32[about depth * m / 2] (int64 for row numbers beyond)
        Rows of the left halves of ``2**(depth - 1 - l)`` positions, each half by ascending place: level ``l`` at
        ``starts[l]``, the half that begins at position p at ``p / 2`` from there.
    starts : int64[depth]
    lefts : uint64[depth, words]
        Level ``l``, bit i: the i-th entry of the level above goes to a left half. 64 entries a word, so that a level of
        a million entries fits a near cache.
    before : int32[depth, words]
        Number of entries in the words before that go to a left half.
    """
    size = len(place)
    halves = 1 << np.arange(depth - 1, -1, -1, dtype=np.int64)
    lengths = size // (2 * halves) * halves + np.minimum(size % (2 * halves), halves)
    starts = np.cumsum(lengths) - lengths
    flat = np.empty(int(lengths.sum()) + 1, narrow(int(order.max(initial=0))))
    lefts = np.empty((depth, (size >> 6) + 1), np.uint64)
    before = np.empty(lefts.shape, np.int32)
    _levels_of(place, order, flat, starts, lefts, before, np.empty(size, np.int32), np.empty(size, np.int32))
    return flat[:-1], starts, lefts, before


@njit(cache=True)
def _levels_of(
    place: Int64,
    order: Int64,
    flat: Ints,
    starts: Int64,
    lefts: NDArray[np.uint64],
    before: NDArray[np.int32],
    above: NDArray[np.int32],
    below: NDArray[np.int32],
) -> None:
    depth, size = len(lefts), len(place)
    for position in range(size):
        above[place[position]] = position
    for level in range(depth):
        shift = depth - 1 - level
        half = 1 << shift
        total = 0
        word = np.uint64(0)
        before[level, 0] = 0
        for start in range(0, size, 2 * half):
            to_left = start
            to_right = min(start + half, size)
            shared = starts[level] - start + (start >> 1)
            for i in range(start, min(start + 2 * half, size)):  # both are written; the next entry overwrites one
                position = above[i]
                right = (position >> shift) & 1
                below[to_right if right else to_left] = position
                flat[shared + to_left] = order[position]
                to_right += right
                to_left += 1 - right
                word |= np.uint64(1 - right) << np.uint64(i & 63)
                if i & 63 == 63:
                    total += int(_ones(word))
                    lefts[level, i >> 6] = word
                    before[level, (i >> 6) + 1] = total
                    word = np.uint64(0)
        lefts[level, size >> 6] = word
        above, below = below, above


@njit(cache=True)
def _ones(word: np.uint64) -> np.int64:
    """Count the set bits of a word."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(cache=True)
def _lefts_before(lefts: NDArray[np.uint64], before: NDArray[np.int32], i: int) -> np.int64:
    """Count the entries among the first i of a level that go to a left half."""
    return np.int64(before[i >> 6]) + _ones(lefts[i >> 6] & ((np.uint64(1) << np.uint64(i & 63)) - np.uint64(1)))


def canonical_runs(
    rows: Int64,
    first: Int64,
    last: Int64,
    limit: Int64,
    starts: Int64,
    lefts: NDArray[np.uint64],
    before: NDArray[np.int32],
    size: int,
) -> tuple[Ints, Ints, Ints]:
    """Split every near row's two-inequality answer into runs of `flat` of `levels_of`, for `size` entries of it.

    Walks from the whole to the position `last`; a left half that lies wholly below `last` contributes the entries that
    stand before `limit`, less those of earlier groups, which stand first.

    Returns
    -------
    row, first, last : int32[k] or int64[k]
        Near row number and half-open run, in the order given; k <= n log2(m). Any order is correct; by ascending
        `last`, near rows walk the same blocks one after the other, and these stay in a near cache.
    """
    most = _most_runs(first, last)
    kinds = narrow(int(rows.max(initial=0))), narrow(size), narrow(size)
    row_out, first_out, last_out = (np.empty(most, kind) for kind in kinds)
    total = _canonical_runs(rows, first, last, limit, starts, lefts, before, row_out, first_out, last_out)
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
    starts: Int64,
    lefts: NDArray[np.uint64],
    before: NDArray[np.int32],
    row_out: Ints,
    first_out: Ints,
    last_out: Ints,
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
                    at = starts[level] + (start >> 1)
                    first_out[total] = at + earlier
                    last_out[total] = at + left
                    total += 1
                start += half
                count -= left
            else:
                count = left
    return total


@njit(cache=True)
def _kept(limits: Int64, places: Int64, row: int, far: int) -> bool:
    """Does a pair pass every residual inequality: ``places[k, far] < limits[k, row]`` for all k?"""
    keep = True
    for k in range(len(limits)):
        keep &= places[k, far] < limits[k, row]
    return keep


@njit(cache=True)
def filtered_sums(
    rows: Int64, first: Int64, last: Int64, order: Int64, limits: Int64, places: Int64, weights: Int64, size: int
) -> Int64:
    """Sum the weights of far rows in runs that pass every residual inequality, modulo 2**64; O(pairs in runs).

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


def expand_runs(
    rows: Ints, first: Ints, last: Ints, order: Ints, limits: Int64, places: Int64, size: int
) -> tuple[Int64, Int64]:
    """Return the matches of every near row, ``(starts int64[size + 1], far int64[pairs])``, for any order of runs.

    Far rows stand in run order, unsorted. Residuals as in `filtered_sums`.
    """
    starts = np.zeros(size + 1, np.int64)
    _lengths(rows, first, last, order, limits, places, starts)
    out = np.empty(int(starts[-1]), np.int64)
    _expand_runs(rows, first, last, order, limits, places, starts, out)
    return starts, out


@njit(cache=True)
def _lengths(rows: Ints, first: Ints, last: Ints, order: Ints, limits: Int64, places: Int64, starts: Int64) -> None:
    """Write to `starts` where the matches of every row begin."""
    plain = len(limits) == 0
    for run in range(len(rows)):
        row = rows[run]
        if plain:
            starts[row + 1] += last[run] - first[run]
            continue
        for at in range(first[run], last[run]):
            if _kept(limits, places, row, order[at]):
                starts[row + 1] += 1
    for row in range(len(starts) - 1):
        starts[row + 1] += starts[row]


@njit(cache=True)
def _expand_runs(
    rows: Ints, first: Ints, last: Ints, order: Ints, limits: Int64, places: Int64, starts: Int64, out: Int64
) -> None:
    fill = starts[:-1].copy()
    plain = len(limits) == 0
    for run in range(len(rows)):
        row = rows[run]
        to = fill[row]
        for at in range(first[run], last[run]):
            far = order[at]
            if plain or _kept(limits, places, row, far):
                out[to] = far
                to += 1
        fill[row] = to


def expand_prefixes(rows: Ints, first: Ints, last: Ints, order: Ints, size: int, far_size: int) -> tuple[Int64, Int64]:
    """Return what `expand_runs` and `sort_runs` return together, for one run per near row.

    By ascending `last`, a run with the `first` of the run before it consists of that run and further rows: the sorted
    list is kept, grows by a merge, and is copied to the output. If `first` changes, the list begins anew. O(m log m)
    and the cost of copying the output, if runs share a `first` or no position.
    """
    if (last[1:] < last[:-1]).any():
        by = stable_order(last, np.arange(len(last)), len(order) + 1)
        rows, first, last = rows[by], first[by], last[by]
    starts = np.zeros(size + 1, np.int64)
    _lengths(rows, first, last, order, _NONE, _NONE, starts)
    out = np.empty(int(starts[-1]), np.int64)
    held = np.empty(int((last - first).max(initial=0)), np.int64)
    _expand_prefixes(rows, first, last, order, starts, held, np.zeros((far_size >> 6) + 1, np.uint64), out)
    return starts, out


@njit(cache=True)
def _expand_prefixes(
    rows: Ints, first: Ints, last: Ints, order: Ints, starts: Int64, held: Int64, words: NDArray[np.uint64], out: Int64
) -> None:
    begin = end = np.int64(-1)
    more = np.empty(len(held), np.int64)
    count = 0
    for run in range(len(rows)):
        if last[run] <= first[run]:
            continue
        if first[run] != begin:
            begin = end = np.int64(first[run])
            count = 0
        new = last[run] - end
        if new > 0:
            for i in range(new):
                more[i] = order[end + i]
            _sort(more, 0, new, words)
            count = _merged(held, count, more, new)
            end += new
        to = starts[rows[run]]
        for i in range(count):
            out[to + i] = held[i]


@njit(cache=True)
def _merged(held: Int64, count: int, more: Int64, new: int) -> int:
    """Merge `new` sorted rows into `count` rows, from the back; the stretches between two new rows move unchanged."""
    to = count
    for j in range(new - 1, -1, -1):
        low, high = 0, to
        while low < high:
            middle = (low + high) // 2
            if held[middle] < more[j]:
                low = middle + 1
            else:
                high = middle
        for i in range(to - 1, low - 1, -1):
            held[i + j + 1] = held[i]
        held[low + j] = more[j]
        to = low
    return count + new


@njit(cache=True)
def sort_runs(starts: Int64, far: Int64, far_size: int) -> None:
    """Put far rows in ascending order within each near row, in place; `_sort` states the cost."""
    words = np.zeros((far_size >> 6) + 1, np.uint64)
    for row in range(len(starts) - 1):
        if starts[row + 1] - starts[row] > 1:
            _sort(far, starts[row], starts[row + 1], words)


@njit(cache=True, inline="always")
def _sort(rows: Int64, begin: int, end: int, words: NDArray[np.uint64]) -> None:
    """Sort the distinct row numbers ``rows[begin:end]`` in place; `words` has a zero bit for each possible number.

    A list that holds at least 1/64 of them is marked bit by bit and read off 64 at a time, in linear time; a shorter
    list of k is sorted, O(k log k). Both beat the strictly linear way for many lists, transposing twice, whose
    scattered writes miss every cache.
    """
    one = np.uint64(1)
    if end - begin >= len(words) and end - begin > 8:
        for at in range(begin, end):
            words[rows[at] >> 6] |= one << np.uint64(rows[at] & 63)
        to = begin
        for number in range(len(words)):
            word = words[number]
            words[number] = 0
            while word:
                lower = word & (word - one)
                rows[to] = (number << 6) + _ones((word ^ lower) - one)
                word = lower
                to += 1
    elif end - begin > 24:
        rows[begin:end] = np.sort(rows[begin:end])
    else:
        for at in range(begin + 1, end):
            value = rows[at]
            to = at
            while to > begin and rows[to - 1] > value:
                rows[to] = rows[to - 1]
                to -= 1
            rows[to] = value


def repeated(starts: Int64) -> Int64:
    """Return every row number once per match, int64[starts[-1]]."""
    out = np.empty(int(starts[-1]), np.int64)
    _repeat(starts, out)
    return out


@njit(cache=True)
def _repeat(starts: Int64, out: Int64) -> None:
    for row in range(len(starts) - 1):
        for at in range(starts[row], starts[row + 1]):
            out[at] = row


def follow(parents: Int64, starts: Int64, far: Int64) -> tuple[Int64, Int64]:
    """Extend every partial result by the matches of its parent row: one step of a multi-way expansion.

    Returns ``(origin int64[out], child int64[out])``: the number of the partial result, and the far row; order is kept.
    """
    total = _followed(parents, starts)
    origin, child = np.empty(total, np.int64), np.empty(total, np.int64)
    _follow(parents, starts, far, origin, child)
    return origin, child


@njit(cache=True)
def _followed(parents: Int64, starts: Int64) -> int:
    total = 0
    for parent in parents:
        total += starts[parent + 1] - starts[parent]
    return total


@njit(cache=True)
def _follow(parents: Int64, starts: Int64, far: Int64, origin: Int64, child: Int64) -> None:
    to = 0
    for i in range(len(parents)):
        begin = starts[parents[i]]
        number = starts[parents[i] + 1] - begin
        for j in range(number):
            origin[to + j] = i
            child[to + j] = far[begin + j]
        to += number


def stable_order(keys: Int64, order: Int64, size: int) -> Int64:
    """Return `order` by ascending ``keys[order]`` in 0 .. size-1, ties in their order; O(len + size)."""
    out = np.empty(len(order), np.int64)
    _stable_order(keys, order, np.zeros(size + 1, np.int64), out)
    return out


@njit(cache=True)
def _stable_order(keys: Int64, order: Int64, fill: Int64, out: Int64) -> None:
    for i in order:
        fill[keys[i] + 1] += 1
    for k in range(len(fill) - 1):
        fill[k + 1] += fill[k]
    for i in order:
        key = keys[i]
        out[fill[key]] = i
        fill[key] += 1
