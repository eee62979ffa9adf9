"""Count arrivals for the control plane of windows, and find the windows that are closed after each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numba import njit

from latecomer.core.arrays.composite_keys import run_bounds, sort_order
from latecomer.core.arrivals import ArrivalBlocks, Arrivals, Int64
from latecomer.core.time import FOREVER, NEVER
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import IntervalRows, WatermarkTable


def last_closed(arrivals: Arrivals, tables: Sequence[WatermarkTable], grid: Grid) -> Int64:
    """Return the number of the last window that is closed after each arrival; far below all others before the first.

    Parameters
    ----------
    arrivals
        Arrivals of a micro-batch, n of them.
    tables
        Per shard, the watermark in each of their intervals.

    Returns
    -------
    int64[n]
        Numbers of windows.
    """
    interval = np.concatenate([table.interval for table in tables])
    base, slack = (np.concatenate([getattr(table, name) for table in tables]) for name in ("base", "slack"))
    starts = np.cumsum([0, *(len(table.interval) for table in tables[:-1])])
    closed = np.empty_like(arrivals.stream_time_us)
    times = arrivals.stream_time_us
    _closed(times, arrivals.shard, starts, interval, base, slack, grid.size_us, grid.slide_us, closed)
    return closed


@njit(cache=True, nogil=True)
def _closed(time, shard, starts, interval, base, slack, size, slide, closed):  # type: ignore[no-untyped-def]
    """Write the last closed windows to `closed`. Intervals of a shard come in order: its place only moves forward."""
    place = starts.copy()
    for i in range(len(time)):
        watermark = NEVER
        if time[i] > NEVER:
            at = place[shard[i]]
            while (interval[at] + 1) * slide <= time[i]:
                at += 1
            place[shard[i]] = at
            watermark = base[at]
            if slack[at] < FOREVER:
                watermark = max(watermark, time[i] - slack[at])
        closed[i] = (watermark - size) // slide


class ClosingSteps(NamedTuple):
    """The last closed window of a shard as a staircase along arrivals.

    Attributes
    ----------
    window : int64[n]
        Numbers of windows, ascending.
    seq, time_us : int64[n]
        The first arrival after which each is the last closed one, and stream time there.
    """

    window: Int64
    seq: Int64
    time_us: Int64

    @staticmethod
    def of(arrivals: Arrivals, closed: Int64, shard: int) -> ClosingSteps:
        """Return the staircase of a shard; `closed` as :func:`last_closed` returns it."""
        at = np.empty(_steps(closed, arrivals.shard, shard, np.empty(0, np.int64)), np.int64)
        _steps(closed, arrivals.shard, shard, at)
        return ClosingSteps(closed[at], arrivals.seq[at], arrivals.stream_time_us[at])

    @staticmethod
    def merged(blocks: Sequence[ClosingSteps]) -> ClosingSteps:
        """Return the staircase along several blocks of arrivals."""
        window, seq, time = (np.concatenate(column) for column in zip(*blocks, strict=True))
        highest = np.maximum.accumulate(window)
        rises = np.diff(highest, prepend=highest[:1] - 1) > 0
        return ClosingSteps(window[rises], seq[rises], time[rises])


@njit(cache=True, nogil=True)
def _steps(closed, shards, shard, places):  # type: ignore[no-untyped-def]
    """Write the places at which a shard's values begin or rise to `places`, as it has room; returns their number."""
    count, last = 0, NEVER
    for i in range(len(closed)):
        if shards[i] == shard and (count == 0 or closed[i] > last):
            last = closed[i]
            if count < len(places):
                places[count] = i
            count += 1
    return count


@njit(cache=True, nogil=True)
def overtaken(ts, closed, size, slide):  # type: ignore[no-untyped-def]
    """Return whether the last window closed after each arrival ends after its event time; int64[n] both, bool[n].

    A loop, because it makes no array in between.
    """
    behind = np.empty(len(ts), np.bool_)
    for i in range(len(ts)):
        behind[i] = ts[i] < closed[i] * slide + size
    return behind


@dataclass(frozen=True)
class ArrivalCounts:
    """Arrivals as the control plane takes them in.

    Attributes
    ----------
    rows : int
        All of them.
    intervals : list per shard of list of IntervalRows
        In order of stream time.
    before_time : list per shard of (panes, rows)
        Arrivals before all sources were seen, which have no stream time; int64 arrays.
    """

    rows: int
    intervals: list[list[IntervalRows]]
    before_time: list[tuple[Int64, Int64]]

    @staticmethod
    def of(arrivals: ArrivalBlocks, grid: Grid, shards: int) -> ArrivalCounts:
        """Count arrivals by shard, interval and pane."""
        runs = np.concatenate(arrivals.of_blocks(partial(_runs_of, grid=grid)))
        timed = runs[:, 3] > NEVER
        intervals, before_time = [], []
        for shard in range(shards):
            of_shard = runs[:, 0] == shard
            panes, inverse = np.unique(runs[of_shard & ~timed, 2], return_inverse=True)
            before_time.append((panes, _summed(inverse, runs[of_shard & ~timed, 5], len(panes))))
            intervals.append(_by_interval(runs[of_shard & timed]))
        return ArrivalCounts(arrivals.rows, intervals, before_time)


def _runs_of(arrivals: Arrivals, grid: Grid) -> Int64:
    args = (arrivals.event_time_us, arrivals.side, arrivals.shard, arrivals.stream_time_us)
    runs: Int64 = _runs(*args, arrivals.before.copy(), grid.slide_us, grid.pane_us)
    return runs


_SLOTS = 64
"""Panes of an interval that are found without a search, a power of two: late rows go to few panes, as a rule."""


@njit(cache=True, nogil=True)
def _runs(ts, side, shard, time, maxima, slide, pane):  # type: ignore[no-untyped-def]
    """Count the arrivals of one shard, interval and pane in runs.

    A pane may have several runs in an interval; the intervals of a shard are in order.

    Returns
    -------
    int64[runs, 6]
        Shard, interval, pane, last stream time, largest delay, rows.
    """
    shards = maxima.shape[1]
    counts, runs = np.empty((1024, 6), np.int64), 0
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
            own_pane = ts[i] // pane
            low[g], high[g] = own_pane * pane, (own_pane + 1) * pane
            at = slots[g, own_pane % _SLOTS]
            if at < 0 or counts[at, 1] != number[g] or counts[at, 2] != own_pane:
                if runs == len(counts):
                    more = np.empty((4 * runs, 6), np.int64)
                    more[:runs] = counts
                    counts = more
                at, runs = runs, runs + 1
                slots[g, own_pane % _SLOTS] = at
                counts[at, 0], counts[at, 1], counts[at, 2], counts[at, 4], counts[at, 5] = g, number[g], own_pane, 0, 0
            current[g] = at
        at = current[g]
        counts[at, 3] = t
        counts[at, 4] = max(counts[at, 4], maxima[s, g] - ts[i])
        counts[at, 5] += 1
    return counts[:runs]


def _summed(place: Int64, rows: Int64, length: int) -> Int64:
    total = np.zeros(length, np.int64)
    np.add.at(total, place, rows)
    return total


def _by_interval(runs: Int64) -> list[IntervalRows]:
    """Add up the runs of one shard, of consecutive blocks, by interval and pane; intervals never fall along them."""
    if not len(runs):
        return []
    number, time, delay = runs[:, 1], runs[:, 3], runs[:, 4]
    starts = run_bounds(number)[:-1]
    last, delay = np.maximum.reduceat(time, starts), np.maximum.reduceat(delay, starts)
    order = sort_order(number, runs[:, 2])
    interval, panes, rows, pane_delay = (runs[order, column] for column in (1, 2, 5, 4))
    first = run_bounds(interval, panes)[:-1]
    pane_delay = np.maximum.reduceat(pane_delay, first)
    interval, panes, rows = interval[first], panes[first], np.add.reduceat(rows, first)
    bounds = run_bounds(interval)
    edges, ends = bounds[:-1], bounds[1:].tolist()
    total = np.add.reduceat(rows, edges).tolist()
    columns = (number[starts].tolist(), last.tolist(), delay.tolist(), total, edges.tolist(), ends)
    return [
        IntervalRows(at, t, largest_delay, count, panes[low:high], rows[low:high], pane_delay[low:high])
        for at, t, largest_delay, count, low, high in zip(*columns, strict=True)
    ]
