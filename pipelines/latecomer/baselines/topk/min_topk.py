"""Modified MinTopk: the k best rows of every sliding window, for every wait one might have chosen, in one pass.

Ordering: arrival order (`T(seq)` never falls); the result is the same for any cut into batches. Cost per row: O(1) for
a row below the k-th best of its pane or window, which is nearly every row; O(k) for one that enters list D, O(C + W)
for one that enters list C (at most k rows per pane, and rows that arrive late), with W windows per row and C <= k W
candidates, k (1 + ln W) in expectation for random scores. A row behind closed windows is compared once with each of
them. Per slide: O(C + W). State: every row once (:mod:`latecomer.baselines.topk.row_pool`, 56 bytes), however many
lists hold it, and 4 bytes for each entry of C, D and one list per closed window that is still observed. First
published: MinTopK in Yang et al. 2011; lists C and D and the lists of closed windows in the top-k method of 2021, which
this follows.

Windows are ``[w * slide_us, w * slide_us + size_us)``, `w` the window's number; they need not be whole slides long.
A row outranks another by higher score, then earlier event time, then earlier arrival (`seq`): a total order, so "the k
best" is always one set. NaN (and null, which the caller passes as NaN) never ranks.

Three places for rows
---------------------
* *Open windows* (``window end > T``). Every row so far is older than their ends, so a later open window holds a subset
  of an earlier one's rows, and a row among the k best of one is so in all later windows that hold it. One list C in
  rank order therefore suffices: each entry has the first and the last window that it serves, and each window a pointer
  to its lowest entry. These rows need no wait, whichever wait is chosen, so their arrival does not count yet: an entry
  leaves when k better entries expire no earlier.
* *The open pane*, the rows of the newest slide: they expire together, so only its k best (list D) can matter. These
  merge into C when the pane or a window closes. Nearly every row is done after the comparison with D's lowest entry.
* *Closed windows* (``window end <= T``). Rows of newer windows cannot serve them (an **erratum**: by "score at least as
  high, arrived no later, expire no earlier" a row that began after the window's end could push out a row of the window;
  dominance must be judged inside the window). So each closed window takes its k best from C, and keeps the rows that
  arrive for it afterwards if fewer than k better rows arrived before. Rows that they push out stay: a shorter wait
  needs them. Rows that no wait >= `least_wait_us` separates (same `T`, or both before the window's end) push one
  another out.

The closed windows that a row serves need not be neighbours, so first and last do not describe them. With k = 2, a
better row shortly before it and one shortly after exclude it from windows that hold both, but not from windows on both
sides that hold one. Neighbours share nearly all their rows, hence lists of references, and `candidates_held` counts
rows.

``answer(end, wait)`` is the k best among rows with ``T(seq) < end + wait``: the rows that had arrived when the window
was answered, at the first arrival with ``T >= end + wait``. A caller that answers each window once, from the rows that
have arrived by then, needs no answer for a wait in the past. With ``least_wait_us=FOREVER`` a closed window holds its k
best and nothing else; these still judge every wait (`required_waits`), as they contain all members of the final answer
that have arrived.

The steps of the source's section 2.2 in the comments: 1, copy the k best of C to the list of the closed window; 2,
remove expired entries of C; 3, merge D into C.

References
----------
Yang, Shastri, Rundensteiner and Ward, "An optimal strategy for monitoring top-k queries in streaming windows", EDBT
2011; Wu and Fang, continuous top-k query method over high-speed out-of-order data streams, 2021, section 2.2.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.baselines.topk.row_pool import (
    ABSENT,
    ARRIVAL,
    EVENT,
    FIRST,
    LAST,
    SEQ,
    Pool,
    beats,
    drop_spent,
    grown,
    insert_closed,
    insert_open,
    insert_ref,
    pool_of,
    put,
    rank_in,
    release,
    release_all,
)
from latecomer.core.state import check_version
from latecomer.core.time import FOREVER, NEVER

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]

STATE_VERSION = 2
_LAYOUT: list[Literal["C", "W"]] = ["C", "W"]
"""Contiguous and writable; for read-only arrays, as Arrow gives them, the loops would be compiled once more."""
PLACES = 64
"""Number of places of a new pool, which grows by doubling."""


class TopRows(NamedTuple):
    """The rows of an answer, best first.

    Attributes
    ----------
    seq : int64[n]
        Place in the arrival order.
    event_time_us, arrival_us : int64[n]
        Event time, and stream time `T(seq)` at the arrival, microseconds.
    score : float64[n]
    """

    seq: Int64Array
    event_time_us: Int64Array
    arrival_us: Int64Array
    score: Float64Array


@njit(cache=True)
def _segment(  # noqa: C901 - one compiled kernel
    event: Int64Array, arrival: Int64Array, seq: Int64Array, score: Float64Array, at: int, upto: int,
    pool: Pool, newest: Int32Array, opened: Int32Array, sizes: Int64Array, windows: Int64Array,
    closed: Int64Array, slots: Int64Array, lists: Int32Array, counts: Int64Array, bars: Float64Array,
    k: int, size_us: int, slide_us: int, least_wait_us: int, base: int, pane: int, expired: int,
) -> int:  # fmt: skip
    """Add rows `at` to `upto`, between which no window or pane closes; return the first row without room or a list."""
    depth = lists.shape[1]
    for i in range(at, upto):
        if np.isnan(score[i]):
            continue
        last = event[i] // slide_us
        first = (event[i] - size_us) // slide_us + 1
        from_window, to_window = max(first, expired + 1), min(last, base - 1)
        if from_window <= to_window:
            oldest = np.searchsorted(closed, from_window)
            newest_closed = oldest + to_window - from_window
            if newest_closed >= len(closed) or closed[oldest] != from_window or closed[newest_closed] != to_window:
                return i
            for w in range(to_window - from_window + 1):
                if counts[slots[oldest + w]] >= depth:
                    return i
        if pool.left[0] == 0:
            return i
        ref = ABSENT
        if last == pane:
            n = sizes[1]
            if n < k or beats(pool, score[i], event[i], seq[i], newest[n - 1]):
                ref = put(pool, score[i], event[i], seq[i], arrival[i])
                rank = rank_in(pool, newest, n, score[i], event[i], seq[i])
                if n == k:
                    release(pool, newest[n - 1])
                insert_ref(pool, newest, min(n, k - 1), rank, ref)
                sizes[1] = min(n + 1, k)
        elif last >= base:
            sizes[0], ref = insert_open(
                pool, opened, sizes[0], windows, base, k, score[i], event[i], seq[i], arrival[i], last, ref
            )
        if from_window <= to_window:
            for w in range(to_window - from_window + 1):
                slot = slots[oldest + w]
                # Nearly every row is done here; the call would cost more than the comparison.
                if score[i] < bars[slot]:
                    continue
                settled_us = (from_window + w) * slide_us + size_us - 1 + least_wait_us
                counts[slot], ref = insert_closed(
                    pool, lists[slot], counts[slot], settled_us, k, score[i], event[i], seq[i], arrival[i], ref
                )
                if counts[slot] >= k:
                    bars[slot] = pool.score[lists[slot, k - 1]]
    return upto


class MinTopK:
    """The k best rows of one group's sliding windows, for any wait.

    Parameters
    ----------
    k : int
        Rows per answer, at least 1.
    size_us, slide_us : int
        Window length and distance between window starts, microseconds, ``0 < slide_us <= size_us``.
    least_wait_us : int
        Least wait of an answer, microseconds; `FOREVER`: answers use all rows that have arrived.

    Raises
    ------
    ValueError
        If a value is out of range; the message names it and the remedy.
    """

    def __init__(self, k: int, size_us: int, slide_us: int, least_wait_us: int = 0) -> None:
        check_window(k, size_us, slide_us)
        if not 0 <= least_wait_us <= FOREVER:
            raise ValueError(f"least_wait_us is {least_wait_us}: give 0 or more, at most FOREVER")
        self.k, self.size_us, self.slide_us = int(k), int(size_us), int(slide_us)
        self.least_wait_us = int(least_wait_us)
        self._base: int | None = None
        self._pane = 0
        self._expired = NEVER
        self._arrival = NEVER
        self._pool = pool_of(PLACES)
        self._opened, self._newest = np.empty(PLACES, np.int32), np.empty(self.k, np.int32)
        self._sizes = np.zeros(2, np.int64)
        self._windows = np.zeros((size_us // slide_us + 2, 2), np.int64)
        self._closed, self._slots = np.empty(0, np.int64), np.empty(0, np.int64)
        self._lists = np.empty((4, self.k + 8), np.int32)
        self._counts, self._bars = np.zeros(4, np.int64), np.empty(4)
        self._free = [0, 1, 2, 3]

    @property
    def candidates_held(self) -> int:
        """The number of rows held; a row in several of C, D and the closed windows' lists counts once."""
        return self._pool.held

    @property
    def open_held(self) -> int:
        """The number of rows of C and D, as MinTopk itself would hold."""
        return int(self._sizes.sum())

    def add(self, event_time_us: Int64Array, arrival_us: Int64Array, seq: Int64Array, score: Float64Array) -> None:
        """Add rows in arrival order.

        Parameters
        ----------
        event_time_us, arrival_us, seq : int64[n]
            Event time, stream time `T(seq)` at the row's arrival (both microseconds), and place in the arrival order.
        score : float64[n]
            NaN never ranks.

        Raises
        ------
        ValueError
            If `T` falls, or an event time lies after `T`.
        """
        event, arrival, seq, score = checked_rows(event_time_us, arrival_us, seq, score, self._arrival)
        at = 0
        while at < len(event):
            self.advance(int(arrival[at]))
            assert self._base is not None
            boundary = min(self._base * self.slide_us + self.size_us, (self._pane + 1) * self.slide_us)
            upto = int(np.searchsorted(arrival, boundary, side="left"))
            while at < upto:
                at = _segment(
                    event, arrival, seq, score, at, upto, self._pool, self._newest, self._opened, self._sizes,
                    self._windows, self._closed, self._slots, self._lists, self._counts, self._bars, self.k,
                    self.size_us, self.slide_us, self.least_wait_us, self._base, self._pane, self._expired,
                )  # fmt: skip
                if at < upto:
                    self._make_room(int(event[at]))
            self._arrival = int(arrival[upto - 1])

    def advance(self, stream_time_us: int) -> None:
        """Close windows and panes that end at or before `stream_time_us`, which frees memory while no rows come."""
        open_window, pane = (stream_time_us - self.size_us) // self.slide_us + 1, stream_time_us // self.slide_us
        if self._base is None:
            self._base, self._pane = open_window, pane
        while True:
            end, pane_end = self._base * self.slide_us + self.size_us, (self._pane + 1) * self.slide_us
            if stream_time_us < min(end, pane_end):
                break
            self._merge_pane()
            if self._sizes[0] == 0:
                self._base, self._pane = max(self._base, open_window), max(self._pane, pane)
                self._windows[:] = 0
            elif end <= pane_end:
                self._close()
            else:
                self._pane += 1
        self._arrival = max(self._arrival, stream_time_us)

    def answer(self, window_end_us: int, wait_us: int = FOREVER) -> TopRows:
        """Return the k best rows of a window with ``T(seq) < window_end_us + wait_us``; change nothing.

        Raises
        ------
        ValueError
            If it is no window's end, the wait is below `least_wait_us`, or the window has expired.
        """
        refs = self._entries(window_end_us)
        refs = refs[self._within(refs, window_end_us, wait_us)][: self.k]
        row = self._pool.row[refs]
        return TopRows(row[:, SEQ], row[:, EVENT], row[:, ARRIVAL], self._pool.score[refs])

    def answers(self, window_end_us: int, waits_us: Int64Array) -> Int64Array:
        """Return the `seq` of the answers at each of m waits, best first, padded with -1: int64[m, k]."""
        refs = self._entries(window_end_us)
        table = np.full((len(waits_us), self.k), -1, np.int64)
        for row, wait_us in zip(table, waits_us, strict=True):
            seq = self._pool.row[refs[self._within(refs, window_end_us, int(wait_us))], SEQ][: self.k]
            row[: len(seq)] = seq
        return table

    def required_waits(self, window_end_us: int) -> tuple[Int64Array, int]:
        """Return ``T(seq) - window_end_us`` of each member of the final answer so far, int64[n], and n."""
        final = self.answer(window_end_us)
        return final.arrival_us - window_end_us, len(final.seq)

    def expire(self, window_end_us: int) -> None:
        """Drop windows that end at or before `window_end_us`: later rows for them are not kept."""
        self._expired = max(self._expired, (window_end_us - self.size_us) // self.slide_us)
        spent = int(np.searchsorted(self._closed, self._expired, side="right"))
        for slot in self._slots[:spent].tolist():
            release_all(self._pool, self._list(slot))
            self._free.append(slot)
        self._closed, self._slots = self._closed[spent:], self._slots[spent:]

    def to_dict(self) -> dict[str, Any]:
        """Return parameters and state as JSON values.

        Rows are stored once, by `seq`, lists as row numbers, and scores as their 64 bits, so that they read back
        exactly.
        """
        held = np.flatnonzero(self._pool.uses)
        held = held[np.argsort(self._pool.row[held, SEQ])]
        number = np.empty(len(self._pool.uses), np.int64)
        number[held] = np.arange(len(held))
        n_c, n_d = self._sizes.tolist()
        opened = self._opened[:n_c]
        return {
            "version": STATE_VERSION,
            "k": self.k,
            "size_us": self.size_us,
            "slide_us": self.slide_us,
            "least_wait_us": self.least_wait_us,
            "base": self._base,
            "pane": self._pane,
            "expired": self._expired,
            "arrival": self._arrival,
            "rows": [self._pool.score[held].view(np.int64).tolist(), self._pool.row[held, :LAST].tolist()],
            "open": [number[opened].tolist(), self._pool.row[opened, LAST:].tolist()],
            "newest": number[self._newest[:n_d]].tolist(),
            "closed": [
                [int(w), number[self._list(int(s))].tolist()] for w, s in zip(self._closed, self._slots, strict=True)
            ],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MinTopK:
        """Restore the state that ``to_dict`` returned."""
        check_version("state of MinTopK", data, STATE_VERSION)
        self = cls(data["k"], data["size_us"], data["slide_us"], data["least_wait_us"])
        self._base, self._pane = data["base"], data["pane"]
        self._expired, self._arrival = data["expired"], data["arrival"]
        scores, rows = data["rows"]
        while len(self._pool.score) < len(scores):
            self._grow()
        places = np.empty(len(scores), np.int64)
        for i, (score, (event, seq, arrival)) in enumerate(
            zip(np.asarray(scores, np.int64).view(np.float64), rows, strict=True)
        ):
            places[i] = put(self._pool, score, event, seq, arrival)
        at, spans = data["open"]
        opened = places[np.asarray(at, np.int64)]
        self._pool.row[opened, LAST:] = np.asarray(spans, np.int64).reshape(-1, 2)
        newest = places[np.asarray(data["newest"], np.int64)]
        self._opened[: len(opened)], self._newest[: len(newest)] = opened, newest
        self._sizes[:] = len(opened), len(newest)
        self._pool.uses[opened] += 1
        self._pool.uses[newest] += 1
        if len(opened):
            drop_spent(self._pool, self._opened, len(opened), self._windows, self._base or 0)
        for window, listed in data["closed"]:
            self._fill(self._slot(window), places[np.asarray(listed, np.int64)])
        return self

    def _within(self, refs: Int32Array, window_end_us: int, wait_us: int) -> NDArray[np.bool_]:
        """Return which of the rows had arrived when a wait was over."""
        if wait_us < 0:
            raise ValueError(f"wait_us is {wait_us}: a window is answered at its end or later, give 0 or more")
        if wait_us < self.least_wait_us:
            raise ValueError(
                f"wait_us is {wait_us}, kept are answers after {self.least_wait_us} or more: lower least_wait_us"
            )
        return np.asarray(self._pool.row[refs, ARRIVAL] < window_end_us + wait_us, np.bool_)

    def _list(self, slot: int) -> Int32Array:
        """Return the list of a closed window."""
        return self._lists[slot, : self._counts[slot]]

    def _entries(self, window_end_us: int) -> Int32Array:
        """Return the places of the rows that serve a window, in rank order."""
        window, off = divmod(window_end_us - self.size_us, self.slide_us)
        if off:
            raise ValueError(f"{window_end_us} us ends no window: ends are multiples of the slide plus the size")
        if window <= self._expired:
            raise ValueError(f"the window that ends at {window_end_us} us has expired: ask before calling expire")
        at = int(np.searchsorted(self._closed, window))
        if at < len(self._closed) and self._closed[at] == window:
            return self._list(int(self._slots[at]))
        n_c, n_d = self._sizes.tolist() if self._base is not None and window >= self._base else (0, 0)
        refs = self._opened[:n_c]
        span = self._pool.row[refs]
        refs = refs[(span[:, FIRST] <= window) & (window <= span[:, LAST])]
        refs = np.concatenate([refs, self._newest[: n_d if window <= self._pane else 0]])
        row = self._pool.row[refs]
        ranked: Int32Array = refs[np.lexsort((row[:, SEQ], row[:, EVENT], -self._pool.score[refs]))]
        return ranked

    def _merge_pane(self) -> None:
        """Merge list D into list C (step 3)."""
        while self._pool.left[0] == 0:
            self._grow()
        for at in self._newest[: self._sizes[1]].tolist():
            event, seq, arrival = self._pool.row[at, :LAST]
            self._sizes[0], _ = insert_open(
                self._pool, self._opened, self._sizes[0], self._windows, self._base or 0, self.k,
                self._pool.score[at], event, seq, arrival, self._pane, at,
            )  # fmt: skip
            release(self._pool, at)
        self._sizes[1] = 0

    def _close(self) -> None:
        """Close the oldest open window: its k best become its list (step 1), and spent entries leave C (step 2)."""
        assert self._base is not None
        opened = self._opened[: self._sizes[0]]
        serves = opened[self._pool.row[opened, FIRST] <= self._base]
        if self._base > self._expired and len(serves):
            self._fill(self._slot(self._base), serves)
        self._base += 1
        self._sizes[0] = drop_spent(self._pool, self._opened, len(opened), self._windows, self._base)

    def _make_room(self, event_us: int) -> None:
        """Make room for the row at `event_us`: lists of closed windows without rows so far, places, or longer lists."""
        assert self._base is not None
        first, last = (event_us - self.size_us) // self.slide_us + 1, event_us // self.slide_us
        windows = np.arange(max(first, self._expired + 1), min(last, self._base - 1) + 1)
        lacking = np.setdiff1d(windows, self._closed, assume_unique=True).tolist()
        for window in lacking:
            self._slot(window)
        if lacking:
            return
        if self._pool.left[0] == 0:
            self._grow()
        else:
            self._lengthen()

    def _slot(self, window: int) -> int:
        """Return the slot of an empty list for `window`."""
        if not self._free:
            n = len(self._counts)
            self._lists = np.concatenate([self._lists, np.empty_like(self._lists)])
            self._counts = np.concatenate([self._counts, np.zeros(n, np.int64)])
            self._bars = np.concatenate([self._bars, np.empty(n)])
            self._free = list(range(n, 2 * n))
        slot = self._free.pop()
        at = np.searchsorted(self._closed, window)
        self._closed, self._slots = np.insert(self._closed, at, window), np.insert(self._slots, at, slot)
        self._counts[slot], self._bars[slot] = 0, -math.inf
        return slot

    def _fill(self, slot: int, refs: NDArray[np.integer]) -> None:
        """Write rows, in rank order, to an empty list."""
        while len(refs) > self._lists.shape[1]:
            self._lengthen()
        self._lists[slot, : len(refs)], self._counts[slot] = refs, len(refs)
        self._pool.uses[refs] += 1
        if len(refs) >= self.k:
            self._bars[slot] = self._pool.score[refs[self.k - 1]]

    def _grow(self) -> None:
        """Double the places for rows, and the length of C, in which no row is twice."""
        self._pool = grown(self._pool)
        self._opened = np.concatenate([self._opened, np.empty_like(self._opened)])

    def _lengthen(self) -> None:
        """Double the length of the closed windows' lists."""
        self._lists = np.concatenate([self._lists, np.empty_like(self._lists)], axis=1)


def check_window(k: int, size_us: int, slide_us: int) -> None:
    """Raise ValueError if `k` or the window is out of range."""
    if k < 1:
        raise ValueError(f"k is {k}: ask for one row or more")
    if not 0 < slide_us <= size_us:
        raise ValueError(f"slide {slide_us} us, size {size_us} us: give a positive slide no longer than the window")


def checked_rows(
    event_time_us: Int64Array, arrival_us: Int64Array, seq: Int64Array, score: Float64Array, arrived_us: int
) -> tuple[Int64Array, Int64Array, Int64Array, Float64Array]:
    """Return the rows as contiguous arrays.

    Raises
    ------
    ValueError
        If `T` falls, also below `arrived_us`, or an event time exceeds it.
    """
    event = np.require(event_time_us, np.int64, _LAYOUT)
    arrival = np.require(arrival_us, np.int64, _LAYOUT)
    if len(event) and (arrival[0] < arrived_us or (np.diff(arrival) < 0).any()):
        raise ValueError("arrival_us falls: give stream time T(seq), rows in arrival order")
    if (event > arrival).any():
        raise ValueError("an event_time_us exceeds its arrival_us: T(seq) is the greatest event time up to seq")
    return event, arrival, np.require(seq, np.int64, _LAYOUT), np.require(score, np.float64, _LAYOUT)


def pane_length_us(size_us: int, slide_us: int) -> int:
    """Return the length of the longest pane that divides every window: the greatest common divisor, microseconds."""
    return math.gcd(size_us, slide_us)


def top_rows(
    group: Int64Array, pane: Int64Array, closing: Int64Array, score: Float64Array,
    event_time_us: Int64Array, seq: Int64Array, k: int,
) -> Int64Array:  # fmt: skip
    """Return the rows that can be in a top-k, answered or final, of windows of whole panes: a pre-reduction for tasks.

    Rows of one (group, pane) belong to the same windows; one that ranks higher and is on time no later is better for
    each of them. So the rows that can matter are the k-skyband over (rank, closing), about ``k (1 + ln(n / k))`` of n.
    Reducing parts first and their union again gives the same rows. Cost: O(n log n) to sort, O(log k) per row.

    Parameters
    ----------
    group, pane, closing, event_time_us, seq : int64[n]
        `closing` is the number of the first window for which the row is on time; smaller is better. Any value that
        never falls as arrivals go on will do; `T(seq)` itself keeps what every wait needs.
    score : float64[n]
        NaN never ranks.
    k : int
        Rows per answer.

    Returns
    -------
    int64[m]
        Increasing indices into the input.
    """
    if k < 1:
        raise ValueError(f"k is {k}: ask for one row or more")
    score = np.asarray(score, np.float64)
    ranked = np.flatnonzero(~np.isnan(score))
    columns = [np.asarray(c, np.int64)[ranked] for c in (seq, event_time_us, pane, group, closing)]
    order = np.lexsort((columns[0], columns[1], -score[ranked], columns[2], columns[3]))
    keep = _skyband(columns[3][order], columns[2][order], columns[4][order], k)
    return np.sort(ranked[order[keep]])


@njit(cache=True)
def _skyband(group: Int64Array, pane: Int64Array, closing: Int64Array, k: int) -> NDArray[np.bool_]:
    """Return which rows (by group, pane, rank) have fewer than k rows before them in their run that close no later."""
    keep = np.zeros(len(group), np.bool_)
    # A heap of the k least window numbers so far, negated: its first is the greatest of them.
    least = [np.int64(0) for _ in range(0)]
    for i in range(len(group)):
        if i > 0 and (group[i] != group[i - 1] or pane[i] != pane[i - 1]):
            least.clear()
        if len(least) < k:
            heapq.heappush(least, -closing[i])
            keep[i] = True
        elif -least[0] > closing[i]:
            heapq.heapreplace(least, -closing[i])
            keep[i] = True
    return keep
