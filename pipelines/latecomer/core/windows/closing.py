"""Find the windows that close in a micro-batch, the arrival that closes each, and how long after its end.

A window closes at the first arrival after which the watermark has reached its end, and only windows that hold a row are
answered. Rows are known by pane, so the cost is that of panes and of closing arrivals, not of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latecomer.core.windows.arrivals import ArrivalCounts, ClosingSteps
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.observation import windows_of

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class ClosedWindows:
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


def closed_windows(
    grid: Grid,
    steps: Sequence[ClosingSteps],
    counts: ArrivalCounts,
    before: Sequence[int],
    panes: Sequence[Int64],
    flush: tuple[int, Sequence[int | None]] | None = None,
) -> ClosedWindows:
    """Find the windows that close in a micro-batch.

    Parameters
    ----------
    grid
        The query's windows.
    steps
        Per shard, the last closed window along the arrivals of the micro-batch.
    counts
        These arrivals, as the control plane counts them.
    before : int per shard
        Number of the last window that was closed before the micro-batch.
    panes : int64[k] per shard
        Panes of the rows that were held for open windows before the micro-batch.
    flush
        None where the input goes on. Else the input is complete: the number of the arrival that would come next, which
        closes every window, and per shard the last stream time, None where nothing has come.
    """
    parts: list[tuple[Int64, ...]] = []
    after = list(before)
    for shard, last in enumerate(before):
        numbers, seqs, times = (values[steps[shard].window > last] for values in steps[shard])
        shard_panes = [panes[shard], *(rows.panes for rows in counts.intervals[shard])]
        held = windows_of(grid, np.unique(np.concatenate(shard_panes)))
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
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [np.empty(0, np.int64)] * 4
    return ClosedWindows(columns[0].astype(np.int32), columns[1], columns[2], columns[3], tuple(after))
