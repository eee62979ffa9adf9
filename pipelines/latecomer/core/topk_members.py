"""What each member of a final top-k required: the histogram that the waits of top-k learn from.

A row that belongs to the final top-k and has arrived is in the answer of every wait that saw it arrive: everything that beats
it is in the final top-k too. So the hit rate of a wait is the share of final members that arrived in time, for all waits at
once (``algorithms.md`` sections 3 and 6). Ordering: higher score, then earlier event time, then earlier arrival.
Cost: O(n log n) for n candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latecomer.core.windows import Grid, Observed, required_slack, spread_over

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Candidates:
    """Rows that may be in a final top-k: arrays of one length. `bucket` as in :func:`latecomer.core.windows.spread_over`."""

    group: Int64
    pane: Int64
    bucket: Int64
    score: NDArray[np.float64]
    event_time_us: Int64
    seq: Int64


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
    spread = spread_over(grid, rows.pane, rows.bucket, windows, cut_us)
    at, window, wait = spread.at, spread.window, spread.wait
    order = np.lexsort((rows.seq[at], rows.event_time_us[at], -rows.score[at], rows.group[at], window))
    at, window, wait = at[order], window[order], wait[order]
    group = rows.group[at]
    fresh = np.ones(len(at), bool)
    fresh[1:] = (window[1:] != window[:-1]) | (group[1:] != group[:-1])
    starts = np.flatnonzero(fresh)
    rank = np.arange(len(at)) - starts[np.cumsum(fresh) - 1] if len(at) else np.empty(0, np.int64)
    best = rank < k
    window, wait = window[best], wait[best]
    found = []
    for number in np.unique(window).tolist():
        own = wait[window == number]
        levels, count = np.unique(own[own >= 0], return_counts=True)
        required = required_slack(levels * grid.granularity_us, grid.granularity_us)
        found.append(Observed(number, required, count.astype(np.float64), float(len(own))))
    return found
