"""Top-k methods that answer without a wait: `sma`, `min_topk`, `gs_topk`, `none`, behind one interface.

Ordering: arrival order. Each method answers a window at the first arrival with ``T >= window end`` from the rows that
had arrived by then. A later row counts only for its windows that are still open. So the first two and `none` give the
same answers, the exact top-k of the rows that had arrived, and differ in the rows they hold and in their cost.

==========  =================================  ==================================================================
method      held                               cost per row
==========  =================================  ==================================================================
none        every row of the open windows      O(1); O(n log n) per answer
sma         k-skyband over (rank, event time)  O(s), s entries held
min_topk    MinTopk's list C                   O(1) for a row that cannot rank, else O(C + W)
gs_topk     at most g rows per pane            O(g)
==========  =================================  ==================================================================

`gs_topk` is approximate. Its paper was not available; the top-k method of 2021 says that it answers immediately,
accepts late rows while a window is open, and is not exact. This one does so with bounded memory: every pane (the
greatest common divisor of size and slide) keeps its ``g = min(k, max(2, ceil(2 k / panes)))`` best rows, and an answer
is the k best of these. It errs if one pane holds more than g of a window's k best, and is exact if the window is one
pane.

References
----------
Mouratidis, Bakiras and Papadias, "Continuous monitoring of top-k queries over sliding windows", SIGMOD 2006 (SMA); Yang
et al., EDBT 2011 (MinTopk); Zhu, Wang, Yang and Wang, "Continuous top-k query over high speed unordered streaming
data", 2018 (GSTopk).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.baselines.topk.min_topk import PLACES, TopRows, check_window, checked_rows, pane_length_us
from latecomer.baselines.topk.row_pool import (
    ABSENT,
    ARRIVAL,
    EVENT,
    FIRST,
    LAST,
    SEQ,
    Pool,
    drop_spent,
    grown,
    insert_open,
    outranks,
    pool_of,
)
from latecomer.core.time import NEVER

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]
DOMINATED = LAST
"""The column in which `Sma` counts the entries that rank higher and expire no earlier."""


class ImmediateTopK(ABC):
    """A top-k method without a wait: rows are cut at window ends, and each window is answered when it closes.

    Parameters
    ----------
    k : int
        Rows per answer.
    size_us, slide_us : int
        Window length and distance between window starts, microseconds.
    """

    def __init__(self, k: int, size_us: int, slide_us: int) -> None:
        check_window(k, size_us, slide_us)
        self.k, self.size_us, self.slide_us = int(k), int(size_us), int(slide_us)
        self._base: int | None = None
        self._arrival = NEVER
        self._answers: dict[int, TopRows] = {}

    @property
    @abstractmethod
    def candidates_held(self) -> int:
        """The number of rows held for windows that are still open."""

    def add(self, event_time_us: Int64Array, arrival_us: Int64Array, seq: Int64Array, score: Float64Array) -> None:
        """Add rows in arrival order; arrays and errors as in
        :meth:`latecomer.baselines.topk.min_topk.MinTopK.add`.
        """
        event, arrival, seq, score = checked_rows(event_time_us, arrival_us, seq, score, self._arrival)
        at = 0
        while at < len(event):
            self.advance(int(arrival[at]))
            assert self._base is not None
            upto = int(np.searchsorted(arrival, self._base * self.slide_us + self.size_us, side="left"))
            rank = (event[at:upto] >= self._base * self.slide_us) & ~np.isnan(score[at:upto])
            part = np.flatnonzero(rank) + at
            if len(part):
                self._take(event[part], arrival[part], seq[part], score[part])
            at, self._arrival = upto, int(arrival[upto - 1])

    def advance(self, stream_time_us: int) -> None:
        """Close and answer the windows that end at or before `stream_time_us`."""
        base = (stream_time_us - self.size_us) // self.slide_us + 1
        if self._base is None:
            self._base = base
        while self._base < base and self.candidates_held:
            self._answers[self._base] = self._answer(self._base)
            self._base += 1
            self._drop()
        self._base = max(base, self._base)
        self._arrival = max(self._arrival, stream_time_us)

    def answer(self, window_end_us: int) -> TopRows:
        """Return the answer given at the window's end, or the present answer of an open window."""
        window, off = divmod(window_end_us - self.size_us, self.slide_us)
        if off:
            raise ValueError(f"{window_end_us} us ends no window: ends are multiples of the slide plus the size")
        if self._base is None or window < self._base:
            nothing = np.empty(0, np.int64)
            return self._answers.get(window, TopRows(nothing, nothing, nothing, np.empty(0)))
        return self._answer(window)

    def expire(self, window_end_us: int) -> None:
        """Forget the answers of windows that end at or before `window_end_us`."""
        last = (window_end_us - self.size_us) // self.slide_us
        self._answers = {window: answer for window, answer in self._answers.items() if window > last}

    @abstractmethod
    def _take(self, event: Int64Array, arrival: Int64Array, seq: Int64Array, score: Float64Array) -> None:
        """Take in rows of open windows, between which no window closes."""

    @abstractmethod
    def _answer(self, window: int) -> TopRows:
        """Return the answer of an open window from the rows held."""

    @abstractmethod
    def _drop(self) -> None:
        """Drop rows that belong to no window from `self._base` on."""

    def _best(self, scores: Float64Array, ints: Int64Array, window: int) -> TopRows:
        """Return the k best entries that belong to `window`."""
        start = window * self.slide_us
        at = np.flatnonzero((ints[:, EVENT] >= start) & (ints[:, EVENT] < start + self.size_us))
        at = at[np.lexsort((ints[at, SEQ], ints[at, EVENT], -scores[at]))][: self.k]
        return TopRows(ints[at, SEQ], ints[at, EVENT], ints[at, ARRIVAL], scores[at])


class NoCandidates(ImmediateTopK):
    """The strategy ``none``: keeps every row and sorts at each window's end."""

    def __init__(self, k: int, size_us: int, slide_us: int) -> None:
        super().__init__(k, size_us, slide_us)
        self._scores: list[Float64Array] = []
        self._ints: list[Int64Array] = []
        self._held = 0

    @property
    def candidates_held(self) -> int:
        """The number of rows of the open windows."""
        return self._held

    def _take(self, event: Int64Array, arrival: Int64Array, seq: Int64Array, score: Float64Array) -> None:
        self._scores.append(score)
        self._ints.append(np.stack([event, seq, arrival], axis=1))
        self._held += len(score)

    def _answer(self, window: int) -> TopRows:
        if not self._scores:
            return self._best(np.empty(0), np.empty((0, 3), np.int64), window)
        self._scores, self._ints = [np.concatenate(self._scores)], [np.concatenate(self._ints)]
        return self._best(self._scores[0], self._ints[0], window)

    def _drop(self) -> None:
        assert self._base is not None
        keep = self._ints[0][:, EVENT] >= self._base * self.slide_us
        self._scores, self._ints = [self._scores[0][keep]], [self._ints[0][keep]]
        self._held = len(self._scores[0])


class Sma(ImmediateTopK):
    """The strategy ``sma``: the k-skyband over (rank, event time); an entry that k others dominate is in no answer."""

    def __init__(self, k: int, size_us: int, slide_us: int) -> None:
        super().__init__(k, size_us, slide_us)
        self._scores, self._ints = np.empty(PLACES), np.empty((PLACES, 4), np.int64)
        self._n = 0

    @property
    def candidates_held(self) -> int:
        """The number of entries of the list."""
        return self._n

    def _take(self, event: Int64Array, arrival: Int64Array, seq: Int64Array, score: Float64Array) -> None:
        at = 0
        while at < len(event):
            at, self._n = _skyband_rows(event, arrival, seq, score, at, self._scores, self._ints, self._n, self.k)
            if at < len(event):
                self._grow()

    def _answer(self, window: int) -> TopRows:
        return self._best(self._scores[: self._n], self._ints[: self._n], window)

    def _drop(self) -> None:
        assert self._base is not None
        keep = np.flatnonzero(self._ints[: self._n, EVENT] >= self._base * self.slide_us)
        self._n = len(keep)
        self._scores[: self._n], self._ints[: self._n] = self._scores[keep], self._ints[keep]

    def _grow(self) -> None:
        self._scores = np.concatenate([self._scores, np.empty_like(self._scores)])
        self._ints = np.concatenate([self._ints, np.empty_like(self._ints)])


class InOrderMinTopK(ImmediateTopK):
    """The strategy ``min_topk``: list C alone, to which each row is offered on arrival."""

    def __init__(self, k: int, size_us: int, slide_us: int) -> None:
        super().__init__(k, size_us, slide_us)
        self._pool, self._refs, self._n = pool_of(PLACES), np.empty(PLACES, np.int32), 0
        self._windows = np.zeros((size_us // slide_us + 2, 2), np.int64)

    @property
    def candidates_held(self) -> int:
        """The number of rows of list C."""
        return self._n

    def _take(self, event: Int64Array, arrival: Int64Array, seq: Int64Array, score: Float64Array) -> None:
        at = 0
        while at < len(event):
            at, self._n = _offer_rows(
                event, arrival, seq, score, at, self._pool, self._refs, self._n, self._windows,
                self._base or 0, self.k, self.slide_us,
            )  # fmt: skip
            if at < len(event):
                self._pool, self._refs = grown(self._pool), np.concatenate([self._refs, np.empty_like(self._refs)])

    def _answer(self, window: int) -> TopRows:
        refs = self._refs[: self._n]
        row = self._pool.row[refs]
        refs = refs[(row[:, FIRST] <= window) & (window <= row[:, LAST])]
        row = self._pool.row[refs]
        return TopRows(row[:, SEQ], row[:, EVENT], row[:, ARRIVAL], self._pool.score[refs])

    def _drop(self) -> None:
        self._n = drop_spent(self._pool, self._refs, self._n, self._windows, self._base or 0)


class GsTopK(ImmediateTopK):
    """The strategy ``gs_topk``: an approximate answer from the few best rows of every pane."""

    def __init__(self, k: int, size_us: int, slide_us: int) -> None:
        super().__init__(k, size_us, slide_us)
        self.pane_us = pane_length_us(size_us, slide_us)
        self.per_pane = min(k, max(2, -(-2 * k * self.pane_us // size_us)))
        panes = (size_us + slide_us) // self.pane_us + 2
        self._scores = np.empty((panes, self.per_pane))
        self._ints = np.empty((panes, self.per_pane, 3), np.int64)
        self._counts = np.zeros(panes, np.int64)

    @property
    def candidates_held(self) -> int:
        """The number of rows in the panes' lists."""
        return int(self._counts.sum())

    def _take(self, event: Int64Array, arrival: Int64Array, seq: Int64Array, score: Float64Array) -> None:
        _pane_rows(event, arrival, seq, score, self._scores, self._ints, self._counts, self.pane_us)

    def _answer(self, window: int) -> TopRows:
        held = np.arange(self.per_pane) < self._counts[:, None]
        return self._best(self._scores[held], self._ints[held], window)

    def _drop(self) -> None:
        assert self._base is not None
        self._counts[self._ints[:, 0, EVENT] < self._base * self.slide_us] = 0


METHODS: dict[str, type[ImmediateTopK]] = {
    "sma": Sma,
    "min_topk": InOrderMinTopK,
    "gs_topk": GsTopK,
    "none": NoCandidates,
}
"""The methods by the name of their strategy."""


@njit(cache=True)
def _place_of(scores: Float64Array, ints: Int64Array, n: int, score: float, event: int, seq: int) -> int:
    """Return the rank position of a row among the first `n` entries, by binary search."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if outranks(score, event, seq, scores[middle], ints[middle, EVENT], ints[middle, SEQ]):
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True)
def _insert_at(scores: Float64Array, ints: Int64Array, n: int, at: int) -> None:
    """Make room at position `at` of a list of `n` entries."""
    for i in range(n, at, -1):
        scores[i] = scores[i - 1]
        ints[i] = ints[i - 1]


@njit(cache=True)
def _skyband_rows(
    event: Int64Array, arrival: Int64Array, seq: Int64Array, score: Float64Array, at: int,
    scores: Float64Array, ints: Int64Array, n: int, k: int,
) -> tuple[int, int]:  # fmt: skip
    """Insert rows from `at` on into the skyband; return the first row without room, and the number of entries."""
    for i in range(at, len(event)):
        if n + 1 > len(scores):
            return i, n
        place = _place_of(scores, ints, n, score[i], event[i], seq[i])
        above = 0
        for j in range(place):
            if ints[j, EVENT] >= event[i]:
                above += 1
        if above >= k:
            continue
        _insert_at(scores, ints, n, place)
        scores[place] = score[i]
        ints[place, EVENT], ints[place, SEQ], ints[place, ARRIVAL] = event[i], seq[i], arrival[i]
        ints[place, DOMINATED] = above
        kept = place + 1
        for j in range(place + 1, n + 1):
            if ints[j, EVENT] <= event[i]:
                ints[j, DOMINATED] += 1
            if ints[j, DOMINATED] < k:
                scores[kept] = scores[j]
                ints[kept] = ints[j]
                kept += 1
        n = kept
    return len(event), n


@njit(cache=True)
def _offer_rows(
    event: Int64Array, arrival: Int64Array, seq: Int64Array, score: Float64Array, at: int,
    pool: Pool, refs: Int32Array, n: int, windows: Int64Array, base: int, k: int, slide_us: int,
) -> tuple[int, int]:  # fmt: skip
    """Offer rows from `at` on to list C; return the first row without room, and the number of entries."""
    for i in range(at, len(event)):
        if pool.left[0] == 0:
            return i, n
        last = event[i] // slide_us
        n, _ = insert_open(pool, refs, n, windows, base, k, score[i], event[i], seq[i], arrival[i], last, ABSENT)
    return len(event), n


@njit(cache=True)
def _pane_rows(
    event: Int64Array, arrival: Int64Array, seq: Int64Array, score: Float64Array,
    scores: Float64Array, ints: Int64Array, counts: Int64Array, pane_us: int,
) -> None:  # fmt: skip
    """Insert rows into their panes' lists, a ring in which no two open panes share a place."""
    most = scores.shape[1]
    for i in range(len(event)):
        pane = (event[i] // pane_us) % len(counts)
        n = counts[pane]
        pane_scores, pane_ints = scores[pane], ints[pane]
        if n == most and not outranks(
            score[i], event[i], seq[i], pane_scores[n - 1], pane_ints[n - 1, EVENT], pane_ints[n - 1, SEQ]
        ):
            continue
        place = _place_of(pane_scores, pane_ints, n, score[i], event[i], seq[i])
        _insert_at(pane_scores, pane_ints, min(n, most - 1), place)
        pane_scores[place] = score[i]
        pane_ints[place, EVENT], pane_ints[place, SEQ], pane_ints[place, ARRIVAL] = event[i], seq[i], arrival[i]
        counts[pane] = min(n + 1, most)
