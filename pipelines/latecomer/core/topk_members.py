"""What each member of a final top-k required: the histogram that the waits of top-k learn from.

A row that belongs to the final top-k and has arrived is in the answer of every wait that saw it arrive: everything that beats
it is in the final top-k too. So the hit rate of a wait is the share of final members that arrived in time, for all waits at
once (``algorithms.md`` sections 3 and 6). Ordering: higher score, then earlier event time, then earlier arrival.
Cost: O(n log n) for n candidates.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latecomer.core.order import cuts
from latecomer.core.windows import Grid, Observed, by_window, spread_over

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Candidates:
    """Rows that may be in a final top-k: arrays of one length, panes ascending.

    `bucket` as in :func:`latecomer.core.windows.spread_over`.
    """

    group: Int64
    pane: Int64
    bucket: Int64
    score: NDArray[np.float64]
    event_time_us: Int64
    seq: Int64

    def near(self, grid: Grid, windows: tuple[int, int]) -> Candidates:
        """Those whose pane can be in a window of ``[first, last]``: a view of a range."""
        part = grid.near(self.pane, windows)
        columns: list[Any] = [getattr(self, each.name)[part] for each in fields(self)]
        return Candidates(*columns)


def required_members(rows: Candidates, k: int, grid: Grid, windows: tuple[int, int], cut_us: int) -> list[Observed]:
    """Windows ``[first, last]``: per window, the slacks that the members of all groups' final top-k required.

    Parameters
    ----------
    cut_us
        Stream time at which the observation ends: rows that came then or later are not known.

    Returns
    -------
    list of Observed
        In the order of windows, those without rows left out.
    """
    near = rows.near(grid, windows)
    spread = spread_over(grid, near.pane, near.bucket, windows, cut_us)
    at, window = spread.at, spread.window
    order = np.lexsort((near.seq[at], near.event_time_us[at], -near.score[at], near.group[at], window))
    bounds = cuts(window[order], near.group[at[order]])
    rank = np.arange(len(at)) - np.repeat(bounds[:-1], np.diff(bounds))
    best = order[rank < k]
    numbers, place = np.unique(window[best], return_inverse=True)
    return by_window(numbers, place, spread.wait[best], np.ones(len(best), np.int64), grid.granularity_us)
