"""Which windows close in a micro-batch, at which arrival, and how long after their end.

A window closes at the first arrival after which the watermark has reached its end, and only windows that hold a row are
answered. What rows there are is known by pane, so the cost is that of panes and of closing arrivals, not of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latecomer.core.arrivals import Arrivals
from latecomer.core.windows.arrivals import Arrived, first_at
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.observation import windows_of

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Closings:
    """Windows with rows that close in a micro-batch, by shard and then by number.

    Attributes
    ----------
    shard : int32[n]
        The shard in which the window closes.
    window : int64[n]
        Its number.
    seq : int64[n]
        The arrival that closed it.
    wait_us : int64[n]
        Stream time at that arrival less the window's end; 0 where that is negative, as at a flush.
    after : tuple of int
        Per shard: number of the last window that is closed after the micro-batch, whether it holds rows or not.
    """

    shard: NDArray[np.int32]
    window: Int64
    seq: Int64
    wait_us: Int64
    after: tuple[int, ...]


def closings(
    grid: Grid,
    arrivals: Arrivals,
    reached: Int64,
    arrived: Arrived,
    before: Sequence[int],
    panes: Sequence[Int64],
    flush: tuple[int, Sequence[int | None]] | None = None,
) -> Closings:
    """Windows that close in a micro-batch.

    Parameters
    ----------
    grid
        The query's windows.
    arrivals, arrived
        The micro-batch's, by row and as the control plane counted them.
    reached : int64[n]
        Number of the last window that is closed after each arrival (:func:`latecomer.core.windows.arrivals.closed_windows`).
    before : int per shard
        Number of the last window that was closed before the micro-batch.
    panes : int64[k] per shard
        Panes of the rows that waited for their windows to close before the micro-batch.
    flush
        The input is complete: the number of the arrival that would come next, which closes every window, and per shard the last
        stream time, None where nothing has come. None where the input goes on.
    """
    parts: list[tuple[Int64, ...]] = []
    after = list(before)
    for shard, last in enumerate(before):
        steps = first_at(arrivals, reached, shard)
        numbers, seqs, times = (values[steps[0] > last] for values in steps)
        there = np.unique(np.concatenate([panes[shard], *(each.panes for each in arrived.intervals[shard])]))
        held = windows_of(grid, there)
        end = None if flush is None else flush[1][shard]
        if flush is not None and end is not None and len(held) and held[-1] > (numbers[-1] if len(numbers) else last):
            numbers = np.append(numbers, held[-1])
            seqs, times = np.append(seqs, flush[0]), np.append(times, end)
        if not len(numbers):
            continue
        after[shard] = int(numbers[-1])
        closed = held[(held > last) & (held <= after[shard])]
        place = np.searchsorted(numbers, closed)
        wait = np.maximum(times[place] - grid.end(closed), 0)
        parts.append((np.full(len(closed), shard, np.int64), closed, seqs[place], wait))
    columns = [np.concatenate(each) for each in zip(*parts, strict=True)] if parts else [np.empty(0, np.int64)] * 4
    return Closings(columns[0].astype(np.int32), columns[1], columns[2], columns[3], tuple(after))
