"""What each member of a final top-k required: the histogram that the waits of top-k learn from.

A row that belongs to the final top-k and has arrived is in the answer of every wait that saw it arrive: everything that beats
it is in the final top-k too. So the hit rate of a wait is the share of final members that arrived in time, for all waits at
once. Ordering: higher score, then earlier event time, then earlier arrival.
Cost: O(n log n) for n candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latecomer.core.arrays.composite_keys import run_bounds
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.group_sampling import Thinning
from latecomer.core.windows.interfaces import Observed
from latecomer.core.windows.observation import Span, by_window, looks

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Candidates:
    """Rows that may be in a final top-k: arrays of one length, panes ascending.

    `bucket` as in :func:`latecomer.core.windows.observation.looks`; `group` is its `code`.
    """

    group: Int64
    pane: Int64
    bucket: Int64
    score: NDArray[np.float64]
    event_time_us: Int64
    seq: Int64


def required_members(
    rows: Candidates, k: int, grid: Grid, spans: Sequence[Span], thinning: Thinning | None = None
) -> list[list[Observed]]:
    """The windows of each span: per window, the slacks that the members of all groups' final top-k required.

    `thinning`: panes of which not all groups are among the rows, or to be looked at; those that are stand for all.

    Returns
    -------
    list of list of Observed
        Per span, in the order of windows, those without rows left out.
    """
    found: list[list[Observed]] = [[] for _ in spans]
    for seen in looks(grid, rows.pane, rows.bucket, spans, rows.group, thinning):
        at, place = seen.at, seen.place
        order = np.lexsort((rows.seq[at], rows.event_time_us[at], -rows.score[at], rows.group[at], place))
        bounds = run_bounds(place[order], rows.group[at[order]])
        rank = np.arange(len(at)) - np.repeat(bounds[:-1], np.diff(bounds))
        best = order[rank < k]
        members = by_window(seen.window, place[best], seen.wait[best], seen.stands_for[best], grid.granularity_us)
        seen.hand_out(members, found)
    return found
