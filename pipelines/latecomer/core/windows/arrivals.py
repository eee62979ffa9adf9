"""Arrivals as the control plane of windows counts them: rows by shard, interval and pane, and the windows closed after each arrival."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from latecomer.core.arrays.composite_keys import run_bounds, sort_order
from latecomer.core.arrivals import Arrivals, Int64
from latecomer.core.time import FOREVER, NEVER
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import IntervalRows, Placement


def closed_windows(arrivals: Arrivals, placements: list[Placement], grid: Grid) -> Int64:
    """Number of the last window that is closed after each arrival, int64[n]; far below all others before the first."""
    interval = np.concatenate([each.interval for each in placements])
    base, slack = (np.concatenate([getattr(each, name) for each in placements]) for name in ("base", "slack"))
    starts = np.cumsum([0, *(len(each.interval) for each in placements[:-1])])
    found = np.empty_like(arrivals.stream_time_us)
    times = arrivals.stream_time_us
    _closed(times, arrivals.shard, starts, interval, base, slack, grid.size_us, grid.slide_us, found)
    return found


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
    bounds = run_bounds(number)
    starts = bounds[:-1]
    last, delay = np.maximum.reduceat(time, starts), np.maximum.reduceat(delay, starts)
    order = sort_order(number, runs[:, 2])
    own, panes, rows = runs[order, 1], runs[order, 2], runs[order, 5]
    fresh = run_bounds(own, panes)[:-1]
    own, panes, rows = own[fresh], panes[fresh], np.add.reduceat(rows, fresh)
    bounds = run_bounds(own)
    edges, ends = bounds[:-1], bounds[1:].tolist()
    total = np.add.reduceat(rows, edges).tolist()
    columns = (number[starts].tolist(), last.tolist(), delay.tolist(), total, edges.tolist(), ends)
    return [
        IntervalRows(at, t, late, count, panes[low:high], rows[low:high])
        for at, t, late, count, low, high in zip(*columns, strict=True)
    ]
