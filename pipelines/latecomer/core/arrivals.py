"""Arrivals of the windowed kinds: stream time after each, what the control plane is told, and which windows each came too late for.

Two columns of a micro-batch, ``seq`` and event time, decide all of this, in one pass along the arrival order; no payload is
looked at. Cost: O(n) along the order, and sorting the counts by interval and pane. Memory: about 40 bytes an arrival.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

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
    side, shard : int64[n]
        Which source a row belongs to, from 0; which shard of groups.
    stream_time_us : int64[n]
        `T` of the row's shard after it: the least of its sources' running maxima, ``NEVER`` until each has spoken.
    delay_us : int64[n]
        Running maximum of its own source less its event time, >= 0.
    after : list of int
        Running maxima after the last of them, as in :class:`Checkpoint`.
    """

    seq: Int64
    event_time_us: Int64
    side: Int64
    shard: Int64
    stream_time_us: Int64
    delay_us: Int64
    after: list[int]

    @staticmethod
    def of(seq: Int64, event_time_us: Int64, side: Int64, shard: Int64, carry: list[int], shards: int) -> Arrivals:
        """Stream time and delays of rows sorted by `seq`, continued from `carry`."""
        maxima = np.array(carry, np.int64).reshape(-1, shards)
        time, delay = np.empty_like(event_time_us), np.empty_like(event_time_us)
        _follow(event_time_us, side, shard, maxima, time, delay)
        return Arrivals(seq, event_time_us, side, shard, time, delay, maxima.ravel().tolist())

    def closed(self, placements: list[Placement], grid: Grid) -> Int64:
        """Number of the last window that is closed after each arrival, int64[n]; far below all others before the first."""
        mark = np.full(len(self.seq), NEVER, np.int64)
        spoken = self.stream_time_us > NEVER
        for shard, placed in enumerate(placements):
            mine = np.flatnonzero(spoken & (self.shard == shard))
            if not len(mine):
                continue
            time = self.stream_time_us[mine]
            at = np.searchsorted(placed.interval, time // grid.slide_us)
            slack = placed.slack[at]
            moving = np.where(slack < FOREVER, time - np.where(slack < FOREVER, slack, 0), NEVER)
            mark[mine] = np.maximum(placed.base[at], moving)
        return np.asarray((mark - grid.size_us) // grid.slide_us, np.int64)


@njit(cache=True, nogil=True)
def _follow(ts: Int64, side: Int64, shard: Int64, maxima: Int64, time: Int64, delay: Int64) -> None:
    for i in range(len(ts)):
        s, g = side[i], shard[i]
        maxima[s, g] = max(maxima[s, g], ts[i])
        least = maxima[0, g]
        for other in range(1, maxima.shape[0]):
            least = min(least, maxima[other, g])
        time[i] = least
        delay[i] = maxima[s, g] - ts[i]


def first_at(arrivals: Arrivals, closed: Int64, shard: int) -> tuple[Int64, Int64, Int64]:
    """Steps of `closed` in one shard: the values it takes, ascending, with ``seq`` and stream time of the arrival that took it there."""
    mine = np.flatnonzero(arrivals.shard == shard)
    values = closed[mine]
    fresh = np.ones(len(values), bool)
    fresh[1:] = values[1:] > values[:-1]
    at = mine[fresh]
    return closed[at], arrivals.seq[at], arrivals.stream_time_us[at]


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
        pane = arrivals.event_time_us // grid.pane_us
        interval = arrivals.stream_time_us // grid.slide_us
        spoken = arrivals.stream_time_us > NEVER
        intervals, waiting = [], []
        for shard in range(shards):
            mine = np.ones(len(pane), bool) if shards == 1 else arrivals.shard == shard
            waiting.append(np.unique(pane[mine & ~spoken], return_counts=True))
            mine = np.flatnonzero(mine & spoken)
            intervals.append(_by_interval(interval[mine], pane[mine], arrivals, mine))
        return Arrived(len(pane), intervals, waiting)


def _by_interval(interval: Int64, pane: Int64, arrivals: Arrivals, mine: Int64) -> list[IntervalRows]:
    """Interval numbers never fall along a shard's arrivals; panes repeat in runs, which are counted before they are sorted."""
    if not len(mine):
        return []
    fresh = np.ones(len(mine), bool)
    fresh[1:] = (interval[1:] != interval[:-1]) | (pane[1:] != pane[:-1])
    runs = np.flatnonzero(fresh)
    length = np.diff(np.append(runs, len(mine)))
    edges = np.flatnonzero(np.diff(interval, prepend=interval[0] - 1))
    last = arrivals.stream_time_us[mine[np.append(edges[1:], len(mine)) - 1]]
    delay = np.maximum.reduceat(arrivals.delay_us[mine], edges)
    ends = np.searchsorted(runs, np.append(edges[1:], len(mine)))
    found = []
    begin = 0
    for place, end in enumerate(ends.tolist()):
        own = runs[begin:end]
        panes, inverse = np.unique(pane[own], return_inverse=True)
        rows = np.bincount(inverse, weights=length[begin:end], minlength=len(panes)).astype(np.int64)
        number = int(interval[edges[place]])
        found.append(IntervalRows(number, int(last[place]), int(delay[place]), int(rows.sum()), panes, rows))
        begin = end
    return found
