"""Modified MinTopk: the k best rows of every sliding window, for every wait one might have chosen, in one pass.

Ordering: arrival order (`T(seq)` never falls); the result is the same for any cut into batches. Cost per row: O(1) for
a row below the k-th best of its pane or window, which is nearly every row; O(k) for one that enters list D, O(C + W)
for one that enters list C (at most k rows per pane and those that arrive late), with W windows per row and C <= k W
candidates, k (1 + ln W) in expectation for random scores. A row behind closed windows is compared once with each of
them. Per slide: O(C + W). State: C + D + one list per closed window that is still observed. First published: MinTopk
in Yang et al. 2011; lists C and D and the lists of closed windows in the top-k method of 2021, which this follows.

Windows are ``[w * slide_us, w * slide_us + size_us)``, `w` the window's number; they need not be whole slides long.
A row outranks another by higher score, then earlier event time, then earlier arrival (`seq`): a total order, so "the k
best" is always one set. NaN (and null, which the caller passes as NaN) never ranks.

Why three places
----------------
* *Open windows* (``window end > T``). Every row so far is older than their ends, so a later open window holds a subset
  of an earlier one's rows, and whoever is among the k best of one is so in all later ones it belongs to. One list C in
  rank order therefore suffices, each entry with the first and last window it serves, and per window a pointer to its
  lowest entry. No wait is needed for these rows, whichever wait is chosen, so arrival does not count yet: an entry
  leaves when k better entries expire no earlier.
* *The open pane*, the rows of the newest slide, all expire together: only its k best (list D) can matter, and they
  merge into C when the pane or a window closes. Nearly every row ends at the comparison with D's lowest.
* *Closed windows* (``window end <= T``). Rows of newer windows are no use to them (an **erratum**: "score at least as
  high, arrived no later, expire no earlier" would let a row that began after the window's end push out one of its own;
  dominance must be judged inside the window). So each closed window takes its k best from C and keeps the rows that
  arrive for it afterwards if fewer than k better ones arrived before. What they push out stays: a shorter wait needs
  it. Rows that no wait >= 0 can tell apart (same `T`, or both before the window's end) push one another out.

``answer(end, wait)`` is the k best among rows with ``T(seq) < end + wait``: those that were there when the window was
answered, at the first arrival with ``T >= end + wait``.

References
----------
Yang, Shastri, Rundensteiner and Ward, "An optimal strategy for monitoring top-k queries in streaming windows", EDBT
2011; Wu and Fang, continuous top-k query method over high-speed out-of-order data streams, 2021, section 2.2.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.core.time import FOREVER, NEVER

Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]

STATE_VERSION = 1
EVENT, SEQ, ARRIVAL, LAST, FIRST = range(5)
"""Columns of the integer half of an entry; list D and closed windows use the first three."""
COUNT, LOW = range(2)
"""Columns of the per-window table: entries serving it, position of the lowest of them in C."""


class TopRows(NamedTuple):
    """Rows of an answer, best first: int64[n], int64[n] microseconds, int64[n] microseconds (`T`), float64[n]."""

    seq: Int64Array
    event_time_us: Int64Array
    arrival_us: Int64Array
    score: Float64Array


@njit(cache=True, inline="always")
def outranks(score: float, event: int, seq: int, other_score: float, other_event: int, other_seq: int) -> bool:
    """Whether the first row ranks above the second: score, then event time, then arrival."""
    if score != other_score:
        return score > other_score
    if event != other_event:
        return event < other_event
    return seq < other_seq


@njit(cache=True)
def place_of(scores: Float64Array, ints: Int64Array, n: int, score: float, event: int, seq: int) -> int:
    """Rank position of a row among the first `n` entries, by binary search."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if outranks(score, event, seq, scores[middle], ints[middle, EVENT], ints[middle, SEQ]):
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True)
def insert_at(scores: Float64Array, ints: Int64Array, n: int, at: int) -> None:
    """Make room at position `at` of a list of `n` entries."""
    for i in range(n, at, -1):
        scores[i] = scores[i - 1]
        ints[i] = ints[i - 1]


@njit(cache=True)
def insert_open(
    scores: Float64Array, ints: Int64Array, n: int, windows: Int64Array, base: int, k: int,
    score: float, event: int, seq: int, arrival: int, last: int,
) -> int:  # fmt: skip
    """Offer a row to list C; `windows` is int64[W, 2] from window `base` on. Returns the number of entries after."""
    high = last - base
    first = high + 1
    while first > 0:
        low = windows[first - 1, LOW]
        if windows[first - 1, COUNT] >= k and not outranks(
            score, event, seq, scores[low], ints[low, EVENT], ints[low, SEQ]
        ):
            break
        first -= 1
    if first > high:
        return n
    at = place_of(scores, ints, n, score, event, seq)
    insert_at(scores, ints, n, at)
    n += 1
    scores[at] = score
    ints[at, EVENT], ints[at, SEQ], ints[at, ARRIVAL] = event, seq, arrival
    ints[at, LAST], ints[at, FIRST] = last, base + first
    for w in range(len(windows)):
        if windows[w, LOW] >= at:
            windows[w, LOW] += 1
    gone = False
    for w in range(first, high + 1):
        windows[w, COUNT] += 1
        if windows[w, COUNT] <= k:
            windows[w, LOW] = at if windows[w, COUNT] == 1 else max(windows[w, LOW], at)
            continue
        lowest = windows[w, LOW]
        ints[lowest, FIRST] = base + w + 1
        gone = gone or ints[lowest, FIRST] > ints[lowest, LAST]
        above = lowest - 1
        while not ints[above, FIRST] <= base + w <= ints[above, LAST]:
            above -= 1
        windows[w, LOW], windows[w, COUNT] = above, k
    return drop_spent(scores, ints, n, windows, base) if gone else n


@njit(cache=True)
def drop_spent(scores: Float64Array, ints: Int64Array, n: int, windows: Int64Array, base: int) -> int:
    """Remove entries that serve no window from `base` on, and count the windows' pointers anew. Returns entries left."""
    kept = 0
    windows[:] = 0
    for i in range(n):
        first = max(ints[i, FIRST], base)
        if first > ints[i, LAST]:
            continue
        scores[kept] = scores[i]
        ints[kept] = ints[i]
        ints[kept, FIRST] = first
        for w in range(first - base, ints[i, LAST] - base + 1):
            windows[w, COUNT] += 1
            windows[w, LOW] = kept
        kept += 1
    return kept


@njit(cache=True)
def _insert_closed(
    scores: Float64Array,
    ints: Int64Array,
    n: int,
    end_us: int,
    k: int,
    score: float,
    event: int,
    seq: int,
    arrival: int,
) -> int:
    """Offer a row to a closed window's list; entries from position k on serve shorter waits only."""
    if n >= k and not outranks(score, event, seq, scores[k - 1], ints[k - 1, EVENT], ints[k - 1, SEQ]):
        return n
    at = place_of(scores, ints, min(n, k), score, event, seq)
    insert_at(scores, ints, n, at)
    n += 1
    scores[at] = score
    ints[at, EVENT], ints[at, SEQ], ints[at, ARRIVAL] = event, seq, arrival
    # No wait separates the pushed-out row from this one: drop it.
    if n > k and max(ints[k, ARRIVAL], end_us - 1) >= max(arrival, end_us - 1):
        for i in range(k, n - 1):
            scores[i] = scores[i + 1]
            ints[i] = ints[i + 1]
        n -= 1
    return n


@njit(cache=True)
def _segment(
    event: Int64Array, arrival: Int64Array, seq: Int64Array, score: Float64Array, at: int, upto: int,
    c_scores: Float64Array, c_ints: Int64Array, d_scores: Float64Array, d_ints: Int64Array, sizes: Int64Array,
    windows: Int64Array, closed: Int64Array, slots: Int64Array,
    r_scores: Float64Array, r_ints: Int64Array, r_counts: Int64Array,
    k: int, size_us: int, slide_us: int, base: int, pane: int, expired: int,
) -> int:  # fmt: skip
    """Rows `at` to `upto`, between which no window or pane closes. Returns the first row that lacks room or a list."""
    depth = r_scores.shape[1]
    for i in range(at, upto):
        if np.isnan(score[i]):
            continue
        last = event[i] // slide_us
        first = (event[i] - size_us) // slide_us + 1
        from_window, to_window = max(first, expired + 1), min(last, base - 1)
        if from_window <= to_window:
            found = np.searchsorted(closed, from_window)
            newest = found + to_window - from_window
            if newest >= len(closed) or closed[found] != from_window or closed[newest] != to_window:
                return i
            for w in range(to_window - from_window + 1):
                if r_counts[slots[found + w]] >= depth:
                    return i
        if last >= base and last != pane and sizes[0] + 1 >= len(c_scores):
            return i
        if last == pane:
            n = sizes[1]
            if n < k or outranks(score[i], event[i], seq[i], d_scores[n - 1], d_ints[n - 1, EVENT], d_ints[n - 1, SEQ]):
                place = place_of(d_scores, d_ints, n, score[i], event[i], seq[i])
                insert_at(d_scores, d_ints, min(n, k - 1), place)
                d_scores[place] = score[i]
                d_ints[place, EVENT], d_ints[place, SEQ], d_ints[place, ARRIVAL] = event[i], seq[i], arrival[i]
                sizes[1] = min(n + 1, k)
        elif last >= base:
            sizes[0] = insert_open(
                c_scores, c_ints, sizes[0], windows, base, k, score[i], event[i], seq[i], arrival[i], last
            )
        if from_window <= to_window:
            for w in range(to_window - from_window + 1):
                slot = slots[found + w]
                # Nearly every row ends here; the call would cost more than the comparison.
                if r_counts[slot] >= k and score[i] < r_scores[slot, k - 1]:
                    continue
                end_us = (from_window + w) * slide_us + size_us
                r_counts[slot] = _insert_closed(
                    r_scores[slot], r_ints[slot], r_counts[slot], end_us, k, score[i], event[i], seq[i], arrival[i]
                )
    return upto


class MinTopK:
    """The k best rows of one group's sliding windows, for any wait.

    Parameters
    ----------
    k : int
        Rows per answer, at least 1.
    size_us, slide_us : int
        Window length and distance of window starts, microseconds, ``0 < slide_us <= size_us``.

    Raises
    ------
    ValueError
        For values out of range; the message names the value and what to do.
    """

    def __init__(self, k: int, size_us: int, slide_us: int) -> None:
        check_window(k, size_us, slide_us)
        self.k, self.size_us, self.slide_us = int(k), int(size_us), int(slide_us)
        self._base: int | None = None
        self._pane = 0
        self._expired = NEVER
        self._arrival = NEVER
        self._c_scores, self._c_ints = np.empty(64), np.empty((64, 5), np.int64)
        self._d_scores, self._d_ints = np.empty(self.k), np.empty((self.k, 3), np.int64)
        self._sizes = np.zeros(2, np.int64)
        self._windows = np.zeros((size_us // slide_us + 2, 2), np.int64)
        self._closed, self._slots = np.empty(0, np.int64), np.empty(0, np.int64)
        self._r_scores, self._r_ints = np.empty((4, self.k + 8)), np.empty((4, self.k + 8, 3), np.int64)
        self._r_counts = np.zeros(4, np.int64)
        self._free = [0, 1, 2, 3]

    @property
    def candidates_held(self) -> int:
        """Entries of C, D and the closed windows' lists; a row in several lists counts once in each."""
        return self.open_held + int(self._r_counts[self._slots].sum())

    @property
    def open_held(self) -> int:
        """Entries of C and D: what MinTopk itself would hold."""
        return int(self._sizes.sum())

    def add(self, event_time_us: Int64Array, arrival_us: Int64Array, seq: Int64Array, score: Float64Array) -> None:
        """Take in rows in arrival order.

        Parameters
        ----------
        event_time_us, arrival_us, seq : int64[n]
            Event time, stream time `T(seq)` at the row's arrival (both microseconds), and place in the arrival order.
        score : float64[n]
            NaN never ranks.

        Raises
        ------
        ValueError
            Where `T` falls, or an event time lies after `T`.
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
                    event, arrival, seq, score, at, upto, self._c_scores, self._c_ints, self._d_scores, self._d_ints,
                    self._sizes, self._windows, self._closed, self._slots, self._r_scores, self._r_ints,
                    self._r_counts, self.k, self.size_us, self.slide_us, self._base, self._pane, self._expired,
                )  # fmt: skip
                if at < upto:
                    self._make_room(int(event[at]))
            self._arrival = int(arrival[upto - 1])

    def advance(self, stream_time_us: int) -> None:
        """Close what ends at or before `stream_time_us`; needed only to free memory while no rows of the group come."""
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
        """The k best rows of a window among those with ``T(seq) < window_end_us + wait_us``; changes nothing.

        Raises
        ------
        ValueError
            Not a window's end, a negative wait, or a window that has expired.
        """
        if wait_us < 0:
            raise ValueError(f"wait_us is {wait_us}: a window is answered at its end or later, give 0 or more")
        scores, ints = self._entries(window_end_us)
        at = np.flatnonzero(ints[:, ARRIVAL] < window_end_us + wait_us)[: self.k]
        return TopRows(ints[at, SEQ], ints[at, EVENT], ints[at, ARRIVAL], scores[at])

    def answers(self, window_end_us: int, waits_us: Int64Array) -> Int64Array:
        """`seq` of the answers at each of m waits, best first, padded with -1: int64[m, k]."""
        _, ints = self._entries(window_end_us)
        found = np.full((len(waits_us), self.k), -1, np.int64)
        for row, wait_us in zip(found, waits_us, strict=True):
            seq = ints[ints[:, ARRIVAL] < window_end_us + int(wait_us), SEQ][: self.k]
            row[: len(seq)] = seq
        return found

    def required_waits(self, window_end_us: int) -> tuple[Int64Array, int]:
        """``T(seq) - window_end_us`` of each member of the final answer so far, int64[n], and n: what controllers read."""
        final = self.answer(window_end_us)
        return final.arrival_us - window_end_us, len(final.seq)

    def expire(self, window_end_us: int) -> None:
        """Forget windows that end at or before `window_end_us`: rows that come for them later are not kept."""
        self._expired = max(self._expired, (window_end_us - self.size_us) // self.slide_us)
        spent = int(np.searchsorted(self._closed, self._expired, side="right"))
        self._free.extend(self._slots[:spent].tolist())
        self._closed, self._slots = self._closed[spent:], self._slots[spent:]

    def to_dict(self) -> dict[str, Any]:
        """Parameters and state, JSON-able; scores as their 64 bits, so that they read back exactly."""

        def listed(scores: Float64Array, ints: Int64Array) -> list[Any]:
            return [scores.view(np.int64).tolist(), ints.tolist()]

        n_c, n_d = self._sizes.tolist()
        return {
            "version": STATE_VERSION,
            "k": self.k,
            "size_us": self.size_us,
            "slide_us": self.slide_us,
            "base": self._base,
            "pane": self._pane,
            "expired": self._expired,
            "arrival": self._arrival,
            "open": listed(self._c_scores[:n_c], self._c_ints[:n_c]),
            "newest": listed(self._d_scores[:n_d], self._d_ints[:n_d]),
            "closed": [[int(w), *listed(*self._list(s))] for w, s in zip(self._closed, self._slots, strict=True)],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MinTopK:
        """Inverse of ``to_dict``."""
        if data["version"] != STATE_VERSION:
            raise ValueError(f"state of version {data['version']}, this is version {STATE_VERSION}: start from history")
        self = cls(data["k"], data["size_us"], data["slide_us"])
        self._base, self._pane = data["base"], data["pane"]
        self._expired, self._arrival = data["expired"], data["arrival"]
        n_c, n_d = len(data["open"][0]), len(data["newest"][0])
        self._sizes[:] = n_c, n_d
        while len(self._c_scores) < n_c + 2:
            self._grow()
        _restore(self._c_scores, self._c_ints, data["open"])
        _restore(self._d_scores, self._d_ints, data["newest"])
        if n_c:
            drop_spent(self._c_scores, self._c_ints, n_c, self._windows, self._base or 0)
        for window, *listed in data["closed"]:
            while len(listed[0]) >= self._r_scores.shape[1]:
                self._grow()
            slot = self._slot(window)
            _restore(self._r_scores[slot], self._r_ints[slot], listed)
            self._r_counts[slot] = len(listed[0])
        return self

    def _list(self, slot: Any) -> tuple[Float64Array, Int64Array]:
        n = self._r_counts[slot]
        return self._r_scores[slot, :n], self._r_ints[slot, :n]

    def _entries(self, window_end_us: int) -> tuple[Float64Array, Int64Array]:
        """Entries that serve a window, in rank order."""
        window, off = divmod(window_end_us - self.size_us, self.slide_us)
        if off:
            raise ValueError(f"{window_end_us} us ends no window: ends are multiples of the slide plus the size")
        if window <= self._expired:
            raise ValueError(f"the window that ends at {window_end_us} us has expired: ask before calling expire")
        at = int(np.searchsorted(self._closed, window))
        if at < len(self._closed) and self._closed[at] == window:
            return self._list(self._slots[at])
        n_c, n_d = self._sizes.tolist() if self._base is not None and window >= self._base else (0, 0)
        c_ints = self._c_ints[:n_c]
        serves = (c_ints[:, FIRST] <= window) & (window <= c_ints[:, LAST])
        n_d = n_d if window <= self._pane else 0
        scores = np.concatenate([self._c_scores[:n_c][serves], self._d_scores[:n_d]])
        ints = np.concatenate([c_ints[serves, :LAST], self._d_ints[:n_d]])
        order = np.lexsort((ints[:, SEQ], ints[:, EVENT], -scores))
        return scores[order], ints[order]

    def _merge_pane(self) -> None:
        n_d = int(self._sizes[1])
        while self._sizes[0] + n_d + 1 >= len(self._c_scores):
            self._grow()
        for i in range(n_d):
            event, seq, arrival = self._d_ints[i]
            self._sizes[0] = insert_open(
                self._c_scores, self._c_ints, self._sizes[0], self._windows, self._base or 0, self.k,
                self._d_scores[i], event, seq, arrival, self._pane,
            )  # fmt: skip
        self._sizes[1] = 0

    def _close(self) -> None:
        """Close the oldest open window: its k best become its list."""
        assert self._base is not None
        n = int(self._sizes[0])
        serves = np.flatnonzero(self._c_ints[:n, FIRST] <= self._base)
        if self._base > self._expired and len(serves):
            slot = self._slot(self._base)
            self._r_scores[slot, : len(serves)] = self._c_scores[serves]
            self._r_ints[slot, : len(serves)] = self._c_ints[serves, :LAST]
            self._r_counts[slot] = len(serves)
        self._base += 1
        self._sizes[0] = drop_spent(self._c_scores, self._c_ints, n, self._windows, self._base)

    def _make_room(self, event_us: int) -> None:
        """What the row at `event_us` lacks: lists for closed windows that had no row until now, or longer lists."""
        assert self._base is not None
        first, last = (event_us - self.size_us) // self.slide_us + 1, event_us // self.slide_us
        wanted = np.arange(max(first, self._expired + 1), min(last, self._base - 1) + 1)
        lacking = np.setdiff1d(wanted, self._closed, assume_unique=True).tolist()
        for window in lacking:
            self._slot(window)
        if not lacking:
            self._grow()

    def _slot(self, window: int) -> int:
        """An empty list for `window`."""
        if not self._free:
            n = len(self._r_counts)
            self._r_scores = np.concatenate([self._r_scores, np.empty_like(self._r_scores)])
            self._r_ints = np.concatenate([self._r_ints, np.empty_like(self._r_ints)])
            self._r_counts = np.concatenate([self._r_counts, np.zeros(n, np.int64)])
            self._free = list(range(n, 2 * n))
        slot = self._free.pop()
        at = np.searchsorted(self._closed, window)
        self._closed, self._slots = np.insert(self._closed, at, window), np.insert(self._slots, at, slot)
        self._r_counts[slot] = 0
        return slot

    def _grow(self) -> None:
        """Double the lists that are full; entries stay."""
        if self._sizes.sum() + 2 >= len(self._c_scores):
            self._c_scores = np.concatenate([self._c_scores, np.empty_like(self._c_scores)])
            self._c_ints = np.concatenate([self._c_ints, np.empty_like(self._c_ints)])
        else:
            self._r_scores = np.concatenate([self._r_scores, np.empty_like(self._r_scores)], axis=1)
            self._r_ints = np.concatenate([self._r_ints, np.empty_like(self._r_ints)], axis=1)


def _restore(scores: Float64Array, ints: Int64Array, listed: list[Any]) -> None:
    n = len(listed[0])
    scores[:n] = np.asarray(listed[0], np.int64).view(np.float64)
    if n:
        ints[:n] = listed[1]


def check_window(k: int, size_us: int, slide_us: int) -> None:
    """Raise ValueError where `k` or the window is out of range."""
    if k < 1:
        raise ValueError(f"k is {k}: ask for one row or more")
    if not 0 < slide_us <= size_us:
        raise ValueError(f"slide {slide_us} us, size {size_us} us: give a positive slide no longer than the window")


def checked_rows(
    event_time_us: Int64Array, arrival_us: Int64Array, seq: Int64Array, score: Float64Array, arrived_us: int
) -> tuple[Int64Array, Int64Array, Int64Array, Float64Array]:
    """The rows as contiguous arrays; ValueError where `T` falls (below `arrived_us` too) or an event time exceeds it."""
    event = _plain(event_time_us, np.int64)
    arrival = _plain(arrival_us, np.int64)
    if len(event) and (arrival[0] < arrived_us or (np.diff(arrival) < 0).any()):
        raise ValueError("arrival_us falls: give stream time T(seq), rows in arrival order")
    if (event > arrival).any():
        raise ValueError("an event_time_us exceeds its arrival_us: T(seq) is the greatest event time up to seq")
    return event, arrival, _plain(seq, np.int64), _plain(score, np.float64)


def _plain(values: Any, dtype: Any) -> Any:
    """Contiguous and writable: read-only arrays, as Arrow gives them, would be compiled for once more."""
    return np.require(values, dtype, ["C", "W"])


def pane_length_us(size_us: int, slide_us: int) -> int:
    """The longest pane of which every window is made whole: the greatest common divisor, microseconds."""
    return math.gcd(size_us, slide_us)


def top_rows(
    group: Int64Array, pane: Int64Array, closing: Int64Array, score: Float64Array,
    event_time_us: Int64Array, seq: Int64Array, k: int,
) -> Int64Array:  # fmt: skip
    """Rows that can be in any top-k, answered or final, of windows made of whole panes: a pre-reduction for tasks.

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
    """Rows (sorted by group, pane, rank) with fewer than k before them in their run that close no later: bool[n]."""
    keep = np.zeros(len(group), np.bool_)
    # The k least closings so far, negated: the heap's first is the greatest of them.
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
