"""The wait that each member of a final top-k required: the histogram from which top-k slack policies learn.

A row of the final top-k is in the answer of every wait within which it arrived, since every row that outranks it is in
the final top-k too. So the hit rate of a wait is the share of final members that arrived in time, for all waits at
once.

Ordering: higher score, then earlier event time, then earlier arrival. Cost: O(n log n) for n candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latecomer.core.arrays.composite_keys import run_bounds
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.group_sampling import GroupSample
from latecomer.core.windows.interfaces import Observed
from latecomer.core.windows.observation import Span, by_window, window_entries

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Candidates:
    """Rows that may be in a final top-k: arrays of one length `n`, panes ascending.

    Attributes
    ----------
    group, pane : int64[n]
        Hash of the group, and pane number.
    bucket : int64[n]
        Wait beyond the end of the pane's first window, as in :func:`latecomer.core.windows.observation.window_entries`.
    score : float64[n]
    event_time_us, seq : int64[n]
        Event time in microseconds, and place in the arrival order.
    """

    group: Int64
    pane: Int64
    bucket: Int64
    score: NDArray[np.float64]
    event_time_us: Int64
    seq: Int64


def required_members(
    rows: Candidates, k: int, grid: Grid, spans: Sequence[Span], sample: GroupSample | None = None
) -> list[list[Observed]]:
    """Observe the windows of each span: the slacks that the members of all groups' final top-k required.

    Parameters
    ----------
    rows
        Candidates of these windows; others are ignored.
    k
        Rows per answer.
    grid
        The query's windows.
    spans
        Windows to observe, and when.
    sample
        Panes with a sample of their groups, each of which stands for several.

    Returns
    -------
    list of list of Observed
        Per span, in the order of windows, without empty windows.
    """
    observed: list[list[Observed]] = [[] for _ in spans]
    for seen in window_entries(grid, rows.pane, rows.bucket, spans, rows.group, sample):
        at, place = seen.at, seen.place
        order = np.lexsort((rows.seq[at], rows.event_time_us[at], -rows.score[at], rows.group[at], place))
        bounds = run_bounds(place[order], rows.group[at[order]])
        rank = np.arange(len(at)) - np.repeat(bounds[:-1], np.diff(bounds))
        best = order[rank < k]
        members = by_window(seen.window, place[best], seen.wait[best], seen.stands_for[best], grid.granularity_us)
        seen.append_to(observed, members)
    return observed
