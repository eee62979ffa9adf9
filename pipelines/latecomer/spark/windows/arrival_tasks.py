"""Reduce a block of arrivals to what the stage of a windowed query needs of them.

Each of these functions takes one block and runs where the block is: in the driver, or in a Python worker of Spark,
which imports this module. What they return is small: one entry per interval, pane or late row. It is merged in the
order of the blocks, and does not depend on where they were cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from latecomer.core.arrays.composite_keys import distinct_rows
from latecomer.core.arrays.sparse_counts import SparseCounts
from latecomer.core.arrivals import ArrivalBlocks, Arrivals
from latecomer.core.time import NEVER
from latecomer.core.windows.arrivals import ClosingSteps, last_closed, overtaken
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import WatermarkTable
from latecomer.core.windows.observation import every_number
from latecomer.spark.windows.assigner import WindowAssigner

Int64 = NDArray[np.int64]


class LateArrivals(NamedTuple):
    """Rows for which a window was closed when they arrived, in the order of their arrival.

    Attributes
    ----------
    seq, event_time_us : int64[n]
        The arrival, and its event time in microseconds.
    side : int8[n]
        The number of its source.
    closed : int64[n]
        Number of the last window that was closed then.
    """

    seq: Int64
    event_time_us: Int64
    side: NDArray[np.int8]
    closed: Int64


def closed_along(
    arrivals: ArrivalBlocks, watermarks: Sequence[WatermarkTable], grid: Grid, assigner: WindowAssigner
) -> tuple[list[ClosingSteps], LateArrivals]:
    """Return the last closed window along arrivals, per shard, and the late arrivals.

    Parameters
    ----------
    watermarks
        Per shard, the watermark in each of the intervals of these arrivals.
    """
    blocks = arrivals.of_blocks(partial(_closed_along, watermarks=watermarks, grid=grid, assigner=assigner))
    steps = [ClosingSteps.merged(of_shard) for of_shard in zip(*(steps for steps, _ in blocks), strict=True)]
    late = LateArrivals(*(np.concatenate(column) for column in zip(*(late for _, late in blocks), strict=True)))
    return steps, late


def _closed_along(
    arrivals: Arrivals, watermarks: Sequence[WatermarkTable], grid: Grid, assigner: WindowAssigner
) -> tuple[list[ClosingSteps], LateArrivals]:
    times, side = arrivals.event_time_us, arrivals.side
    closed = last_closed(arrivals, watermarks, grid)
    if assigner.lookback_us:
        behind = closed >= assigner.first_of(times, side)
    else:  # the same without a division
        behind = overtaken(times, closed, grid.size_us, grid.slide_us)
    late = LateArrivals(arrivals.seq[behind], times[behind], side[behind], closed[behind])
    return [ClosingSteps.of(arrivals, closed, shard) for shard in range(len(watermarks))], late


class Extent(NamedTuple):
    """Earliest and latest event time (us) of rows with a stream time, and the interval of the last of these."""

    low_us: int
    high_us: int
    interval: int


def extent(arrivals: Arrivals, slide_us: int) -> Extent | None:
    """Return the extent of a block; None where no row of it has a stream time."""
    timed = arrivals.stream_time_us > NEVER
    if not timed.any():
        return None
    times = arrivals.event_time_us[timed]
    return Extent(int(times.min()), int(times.max()), int(arrivals.stream_time_us.max()) // slide_us)


def stream_times(arrivals: Arrivals, shards: int) -> list[Int64]:
    """Return the distinct stream times (us) of each shard, ascending."""
    times = (arrivals.stream_time_us[arrivals.shard == shard] for shard in range(shards))
    return [np.unique(time[time > NEVER]) for time in times]


class LateInWindows(NamedTuple):
    """Rows of observed windows: all of them counted, and the late ones one by one.

    Attributes
    ----------
    rows : int
        Rows inside the observed event times.
    seq, bucket, interval : int64[n]
        Of the rows that arrived after the end of their first window: the arrival, its lateness against that end in
        granules, and the interval of its stream time.
    windows : int64[k]
        The numbers of the windows of all of them, where that was asked for.
    in_time
        Per shard, the other rows by pane, where that was asked for.
    """

    rows: int
    seq: Int64
    bucket: Int64
    interval: Int64
    windows: Int64
    in_time: list[SparseCounts]


def late_in_windows(
    arrivals: Arrivals, span: tuple[int, int], grid: Grid, assigner: WindowAssigner, shards: int, number: bool
) -> LateInWindows:
    """Find the late rows of a block among the rows of some event times.

    Parameters
    ----------
    span
        These event times, ``[low, high)`` in microseconds.
    shards
        Shards whose other rows are counted by pane; 0: none.
    number
        Whether the windows are numbered.
    """
    times, time = arrivals.event_time_us, arrivals.stream_time_us
    first = assigner.first_of(times, arrivals.side)
    end = grid.end(first)
    inside = (times >= span[0]) & (times < span[1])
    late = inside & (time >= end)
    windows = np.empty(0, np.int64)
    if number:
        ranges, _ = distinct_rows(first[inside], assigner.last_of(times[inside], arrivals.side[inside]))
        windows = np.unique(every_number(*ranges)[1])
    in_time = []
    for shard in range(shards):
        (pane,), count = distinct_rows(times[inside & ~late & (arrivals.shard == shard)] // grid.pane_us)
        in_time.append((pane, count))
    bucket, interval = (time[late] - end[late]) // grid.granularity_us, time[late] // grid.slide_us
    return LateInWindows(int(np.count_nonzero(inside)), arrivals.seq[late], bucket, interval, windows, in_time)
