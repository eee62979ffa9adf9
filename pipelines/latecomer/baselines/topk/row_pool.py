"""A pool that holds each top-k candidate once, and ranked lists of references to its rows.

Ordering: a row outranks another by higher score, then earlier event time, then earlier arrival (`seq`). Cost: O(log n)
to find the place of a row in a list of n, O(n) to insert it (4 bytes an entry move), O(1) to take and to release a row.
State: 48 bytes a row, and 8 for the list of free places and the count of lists that hold it. The list of open windows,
`insert_open` and `drop_spent`, is list C of MinTopk: Yang, Shastri, Rundensteiner and Ward, EDBT 2011.

Lists are ``int32`` positions in the pool. A row in several lists is stored once; its place is free when the last list
releases it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
Int32Array = NDArray[np.int32]
Float64Array = NDArray[np.float64]

EVENT, SEQ, ARRIVAL, LAST, FIRST = range(5)
"""Columns of the integer half of a row; the last two, window numbers, are used in the list of open windows only."""
COUNT, LOW = range(2)
"""Columns of the per-window table: number of entries that serve it, and position of the lowest of them in the list."""
ABSENT = -1
"""The place of a row that is not in the pool."""


class Pool(NamedTuple):
    """Places for P rows.

    Attributes
    ----------
    score : float64[P]
    row : int64[P, 5]
        Columns `EVENT` to `FIRST`.
    uses : int32[P]
        Number of lists that hold the row.
    free : int32[P]
        Stack of free places.
    left : int64[1]
        Number of free places.
    """

    score: Float64Array
    row: Int64Array
    uses: Int32Array
    free: Int32Array
    left: Int64Array

    @property
    def held(self) -> int:
        """The number of rows that some list holds."""
        return len(self.score) - int(self.left[0])


def pool_of(places: int) -> Pool:
    """Return an empty pool."""
    free = np.arange(places - 1, -1, -1, dtype=np.int32)
    uses, left = np.zeros(places, np.int32), np.array([places], np.int64)
    return Pool(np.empty(places), np.empty((places, 5), np.int64), uses, free, left)


def grown(pool: Pool) -> Pool:
    """Return a pool of twice the places; rows keep theirs."""
    n, left = len(pool.score), int(pool.left[0])
    larger = pool_of(2 * n)
    larger.score[:n], larger.row[:n], larger.uses[:n] = pool.score, pool.row, pool.uses
    larger.free[n : n + left] = pool.free[:left]
    larger.left[0] = n + left
    return larger


@njit(cache=True, inline="always")
def outranks(score: float, event: int, seq: int, other_score: float, other_event: int, other_seq: int) -> bool:
    """Return whether the first row ranks above the second: by score, then event time, then arrival."""
    if score != other_score:
        return score > other_score
    if event != other_event:
        return event < other_event
    return seq < other_seq


@njit(cache=True, inline="always")
def beats(pool: Pool, score: float, event: int, seq: int, at: int) -> bool:
    """Return whether a row ranks above the row at place `at`."""
    return outranks(score, event, seq, pool.score[at], pool.row[at, EVENT], pool.row[at, SEQ])


@njit(cache=True)
def rank_in(pool: Pool, refs: Int32Array, n: int, score: float, event: int, seq: int) -> int:
    """Return the rank position of a row among the first `n` entries of a list, by binary search."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if beats(pool, score, event, seq, refs[middle]):
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True)
def put(pool: Pool, score: float, event: int, seq: int, arrival: int) -> int:
    """Store a row that no list holds yet in a free place, which must exist; return the place."""
    pool.left[0] -= 1
    at = pool.free[pool.left[0]]
    pool.score[at] = score
    pool.row[at, EVENT], pool.row[at, SEQ], pool.row[at, ARRIVAL] = event, seq, arrival
    return int(at)


@njit(cache=True)
def release(pool: Pool, at: int) -> None:
    """Release the row at place `at` from one list."""
    pool.uses[at] -= 1
    if pool.uses[at] == 0:
        pool.free[pool.left[0]] = at
        pool.left[0] += 1


@njit(cache=True)
def release_all(pool: Pool, refs: Int32Array) -> None:
    """Release all rows of a list."""
    for at in refs:
        release(pool, at)


@njit(cache=True)
def insert_ref(pool: Pool, refs: Int32Array, n: int, rank: int, at: int) -> None:
    """Insert the row at place `at` at position `rank` of a list of `n` entries."""
    for i in range(n, rank, -1):
        refs[i] = refs[i - 1]
    refs[rank] = at
    pool.uses[at] += 1


@njit(cache=True)
def insert_open(
    pool: Pool, refs: Int32Array, n: int, windows: Int64Array, base: int, k: int,
    score: float, event: int, seq: int, arrival: int, last: int, at: int,
) -> tuple[int, int]:  # fmt: skip
    """Offer a row to the list of open windows; `windows` is int64[W, 2] from window `base` on.

    `at` is the row's place, or ABSENT. Returns the number of entries afterwards, and the place.
    """
    high = last - base
    first = high + 1
    while first > 0:
        if windows[first - 1, COUNT] >= k and not beats(pool, score, event, seq, refs[windows[first - 1, LOW]]):
            break
        first -= 1
    if first > high:
        return n, at
    if at == ABSENT:
        at = put(pool, score, event, seq, arrival)
    rank = rank_in(pool, refs, n, score, event, seq)
    insert_ref(pool, refs, n, rank, at)
    n += 1
    pool.row[at, LAST], pool.row[at, FIRST] = last, base + first
    for w in range(len(windows)):
        if windows[w, LOW] >= rank:
            windows[w, LOW] += 1
    some_spent = False
    for w in range(first, high + 1):
        windows[w, COUNT] += 1
        if windows[w, COUNT] <= k:
            windows[w, LOW] = rank if windows[w, COUNT] == 1 else max(windows[w, LOW], rank)
            continue
        lowest = refs[windows[w, LOW]]
        pool.row[lowest, FIRST] = base + w + 1
        some_spent = some_spent or pool.row[lowest, FIRST] > pool.row[lowest, LAST]
        above = windows[w, LOW] - 1
        while not pool.row[refs[above], FIRST] <= base + w <= pool.row[refs[above], LAST]:
            above -= 1
        windows[w, LOW], windows[w, COUNT] = above, k
    return (drop_spent(pool, refs, n, windows, base) if some_spent else n), at


@njit(cache=True)
def drop_spent(pool: Pool, refs: Int32Array, n: int, windows: Int64Array, base: int) -> int:
    """Remove entries that serve no window from `base` on, recompute the windows' pointers; return the entries left."""
    kept = 0
    windows[:] = 0
    for i in range(n):
        at = refs[i]
        first, last = max(pool.row[at, FIRST], base), pool.row[at, LAST]
        if first > last:
            release(pool, at)
            continue
        refs[kept] = at
        pool.row[at, FIRST] = first
        for w in range(first - base, last - base + 1):
            windows[w, COUNT] += 1
            windows[w, LOW] = kept
        kept += 1
    return kept


@njit(cache=True)
def insert_closed(
    pool: Pool, refs: Int32Array, n: int, settled_us: int, k: int,
    score: float, event: int, seq: int, arrival: int, at: int,
) -> tuple[int, int]:  # fmt: skip
    """Offer a row to a closed window's list; entries from position k on serve shorter waits only.

    No possible wait separates arrivals up to `settled_us`. Returns what `insert_open` returns.
    """
    if n >= k and not beats(pool, score, event, seq, refs[k - 1]):
        return n, at
    if at == ABSENT:
        at = put(pool, score, event, seq, arrival)
    insert_ref(pool, refs, n, rank_in(pool, refs, min(n, k), score, event, seq), at)
    n += 1
    # No wait separates the row pushed to position k from the new one: drop it.
    if n > k and max(pool.row[refs[k], ARRIVAL], settled_us) >= max(arrival, settled_us):
        release(pool, refs[k])
        for i in range(k, n - 1):
            refs[i] = refs[i + 1]
        n -= 1
    return n, at
