"""Arrivals: stream time after each; for the windowed kinds also what the control plane is told, and which windows each is late for.

Joins use the stream time alone. Two columns of a micro-batch, ``seq`` and event time, decide all of this, in one pass along the
arrival order; no payload is looked at. Cost: O(n) along the order, and sorting the counts by interval and pane. Memory: about 40 bytes an arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.core.order import cuts, order_of
from latecomer.core.time import FOREVER, NEVER
from latecomer.core.windows import Grid, IntervalRows, Placement

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Checkpoint:
    """Running maxima of event time before arrival `seq`, int64 us: entry ``side * shards + shard``."""

    seq: int
    carry: list[int]


@dataclass(frozen=True)
class Arrivals:
    """Consecutive arrivals in order.

    Attributes
    ----------
    seq, event_time_us : int64[n]
    side : int8[n]
        Which source a row belongs to, from 0.
    shard : int32[n]
        Which shard of groups.
    stream_time_us : int64[n]
        `T` of the row's shard after it: the least of its sources' running maxima, ``NEVER`` until each has spoken.
    before, after : int64[sources, shards]
        Running maxima before the first and after the last of them.
    """

    seq: Int64
    event_time_us: Int64
    side: NDArray[np.int8]
    shard: NDArray[np.int32]
    stream_time_us: Int64
    before: Int64
    after: Int64

    @staticmethod
    def of(
        seq: Int64,
        event_time_us: Int64,
        side: NDArray[np.int8],
        shard: NDArray[np.int32],
        carry: list[int],
        shards: int = 1,
    ) -> Arrivals:
        """Stream time of rows sorted by `seq`, continued from `carry`, which is laid out as in :class:`Checkpoint`."""
        before = np.array(carry, np.int64).reshape(-1, shards)
        after, time = before.copy(), np.empty_like(event_time_us)
        _follow(event_time_us, side, shard, after, time)
        return Arrivals(seq, event_time_us, side, shard, time, before, after)

    @property
    def carry(self) -> list[int]:
        """`after` as in :class:`Checkpoint`."""
        return [int(each) for each in self.after.ravel()]

    def checkpoints(self, every: int) -> list[Checkpoint]:
        """Where a later scan may begin inside these arrivals: before every so many of them, not before the first."""
        places = np.arange(every, len(self.seq), every)
        maxima = _maxima(self.event_time_us, self.side, self.shard, self.before.copy(), places)
        return [
            Checkpoint(int(seq), found.ravel().tolist()) for seq, found in zip(self.seq[places], maxima, strict=True)
        ]

    @cached_property
    def delay_us(self) -> Int64:
        """Running maximum of each row's own source less its event time, >= 0, int64[n]."""
        found = np.empty_like(self.event_time_us)
        _delays(self.event_time_us, self.side, self.shard, self.before.copy(), found)
        return found

    @property
    def lateness_us(self) -> Int64:
        """Stream time after each row less its event time, int64[n]; negative for rows ahead of it, meaningless before each source has spoken."""
        return self.stream_time_us - self.event_time_us

    def closed(self, placements: list[Placement], grid: Grid) -> Int64:
        """Number of the last window that is closed after each arrival, int64[n]; far below all others before the first."""
        interval = np.concatenate([each.interval for each in placements])
        base, slack = (np.concatenate([getattr(each, name) for each in placements]) for name in ("base", "slack"))
        starts = np.cumsum([0, *(len(each.interval) for each in placements[:-1])])
        found = np.empty_like(self.stream_time_us)
        _closed(self.stream_time_us, self.shard, starts, interval, base, slack, grid.size_us, grid.slide_us, found)
        return found


@njit(cache=True, nogil=True)
def _follow(ts, side, shard, maxima, time):  # type: ignore[no-untyped-def]
    for i in range(len(ts)):
        g = shard[i]
        if ts[i] > maxima[side[i], g]:
            maxima[side[i], g] = ts[i]
        least = maxima[0, g]
        for other in range(1, maxima.shape[0]):
            least = min(least, maxima[other, g])
        time[i] = least


@njit(cache=True, nogil=True)
def _maxima(ts, side, shard, maxima, places):  # type: ignore[no-untyped-def]
    """Running maxima before the rows at these ascending places, int64[places, sources, shards]."""
    found, i = np.empty((len(places), *maxima.shape), np.int64), 0
    for at in range(len(places)):
        while i < places[at]:
            s, g = side[i], shard[i]
            maxima[s, g] = max(maxima[s, g], ts[i])
            i += 1
        found[at] = maxima
    return found


@njit(cache=True, nogil=True)
def _delays(ts, side, shard, maxima, delay):  # type: ignore[no-untyped-def]
    for i in range(len(ts)):
        s, g = side[i], shard[i]
        maxima[s, g] = max(maxima[s, g], ts[i])
        delay[i] = maxima[s, g] - ts[i]


@njit(cache=True, nogil=True)
def _closed(time, shard, starts, interval, base, slack, size, slide, found):  # type: ignore[no-untyped-def]
    """Intervals of a shard come in order, so each shard's entry only moves forward."""
    place = starts.copy()
    for i in range(len(time)):
        mark = NEVER
        if time[i] > NEVER:
            at = place[shard[i]]
            while (interval[at] + 1) * slide <= time[i]:
                at += 1
            place[shard[i]] = at
            mark = base[at]
            if slack[at] < FOREVER:
                mark = max(mark, time[i] - slack[at])
        found[i] = (mark - size) // slide


def first_at(arrivals: Arrivals, closed: Int64, shard: int) -> tuple[Int64, Int64, Int64]:
    """Steps of `closed` in one shard: the values it takes, ascending, with ``seq`` and stream time of the arrival that took it there."""
    at = np.empty(_steps(closed, arrivals.shard, shard, np.empty(0, np.int64)), np.int64)
    _steps(closed, arrivals.shard, shard, at)
    return closed[at], arrivals.seq[at], arrivals.stream_time_us[at]


@njit(cache=True, nogil=True)
def _steps(closed, shard, mine, found):  # type: ignore[no-untyped-def]
    """Places where a shard's values rise, and of the first of them, to `found` where it has room; how many there are."""
    count, last = 0, NEVER
    for i in range(len(closed)):
        if shard[i] == mine and (count == 0 or closed[i] > last):
            last = closed[i]
            if count < len(found):
                found[count] = i
            count += 1
    return count


@njit(cache=True, nogil=True)
def overtaken(ts, closed, size, slide):  # type: ignore[no-untyped-def]
    """Did the last window that was closed after each arrival end after its event time? int64[n] both; bool[n]. No array in between."""
    found = np.empty(len(ts), np.bool_)
    for i in range(len(ts)):
        found[i] = ts[i] < closed[i] * slide + size
    return found


@dataclass(frozen=True)
class Arrived:
    """Arrivals as the control plane takes them.

    Attributes
    ----------
    rows : int
        All of them.
    intervals : list per shard of list of IntervalRows
        In order of stream time.
    waiting : list per shard of (panes, rows)
        What came before every source had spoken, int64 arrays.
    """

    rows: int
    intervals: list[list[IntervalRows]]
    waiting: list[tuple[Int64, Int64]]

    @staticmethod
    def of(arrivals: Arrivals, grid: Grid, shards: int) -> Arrived:
        """Counts by shard, interval and pane."""
        args = (arrivals.event_time_us, arrivals.side, arrivals.shard, arrivals.stream_time_us)
        runs = _runs(*args, arrivals.before.copy(), grid.slide_us, grid.pane_us)
        spoken = runs[:, 3] > NEVER
        intervals, waiting = [], []
        for shard in range(shards):
            own = runs[:, 0] == shard
            panes, inverse = np.unique(runs[own & ~spoken, 2], return_inverse=True)
            waiting.append((panes, _summed(inverse, runs[own & ~spoken, 5], len(panes))))
            intervals.append(_by_interval(runs[own & spoken]))
        return Arrived(len(arrivals.seq), intervals, waiting)


_SLOTS = 64
"""Panes of an interval that are found again without a search; a power of two. Late rows go to a few of the last panes, as a rule."""


@njit(cache=True, nogil=True)
def _runs(ts, side, shard, time, maxima, slide, pane):  # type: ignore[no-untyped-def]
    """A shard's arrivals of one interval and pane, counted: shard, interval, pane, last stream time, largest delay, rows; int64[runs, 6].

    A pane may come several times in an interval; a shard's intervals are in order.
    """
    shards = maxima.shape[1]
    found, runs = np.empty((1024, 6), np.int64), 0
    slots = np.full((shards, _SLOTS), -1)
    current, number, edge = np.full(shards, -1), np.zeros(shards, np.int64), np.full(shards, NEVER)
    low, high = np.zeros(shards, np.int64), np.zeros(shards, np.int64)
    for i in range(len(ts)):
        s, g, t = side[i], shard[i], time[i]
        maxima[s, g] = max(maxima[s, g], ts[i])
        entered = current[g] < 0 or t >= edge[g] or t < edge[g] - slide
        if entered:
            number[g] = t // slide
            edge[g] = (number[g] + 1) * slide
        if entered or ts[i] < low[g] or ts[i] >= high[g]:
            own = ts[i] // pane
            low[g], high[g] = own * pane, (own + 1) * pane
            at = slots[g, own % _SLOTS]
            if at < 0 or found[at, 1] != number[g] or found[at, 2] != own:
                if runs == len(found):
                    more = np.empty((4 * runs, 6), np.int64)
                    more[:runs] = found
                    found = more
                at, runs = runs, runs + 1
                slots[g, own % _SLOTS] = at
                found[at, 0], found[at, 1], found[at, 2], found[at, 4], found[at, 5] = g, number[g], own, 0, 0
            current[g] = at
        at = current[g]
        found[at, 3] = t
        found[at, 4] = max(found[at, 4], maxima[s, g] - ts[i])
        found[at, 5] += 1
    return found[:runs]


def _summed(place: Int64, rows: Int64, length: int) -> Int64:
    total = np.zeros(length, np.int64)
    np.add.at(total, place, rows)
    return total


def _by_interval(runs: Int64) -> list[IntervalRows]:
    """Interval numbers never fall along a shard's arrivals."""
    if not len(runs):
        return []
    number, time, delay = runs[:, 1], runs[:, 3], runs[:, 4]
    bounds = cuts(number)
    starts = bounds[:-1]
    last, delay = np.maximum.reduceat(time, starts), np.maximum.reduceat(delay, starts)
    order = order_of(number, runs[:, 2])
    own, panes, rows = runs[order, 1], runs[order, 2], runs[order, 5]
    fresh = cuts(own, panes)[:-1]
    own, panes, rows = own[fresh], panes[fresh], np.add.reduceat(rows, fresh)
    bounds = cuts(own)
    edges, ends = bounds[:-1], bounds[1:].tolist()
    total = np.add.reduceat(rows, edges).tolist()
    columns = (number[starts].tolist(), last.tolist(), delay.tolist(), total, edges.tolist(), ends)
    return [
        IntervalRows(at, t, late, count, panes[low:high], rows[low:high])
        for at, t, late, count, low, high in zip(*columns, strict=True)
    ]
