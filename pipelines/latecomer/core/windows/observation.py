"""Expand entries (rows, or cells of rows) into every window that contains them, as known when that window is observed.

Windows that are observed together are expanded in one pass over their entries and without a sort; an observation does
not depend on the others. Cost: O(entries x windows of a pane), some `ENTRIES_AT_ONCE` at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from latecomer.core.arrays.composite_keys import run_bounds, sort_order
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.group_sampling import GroupSample, is_sampled
from latecomer.core.windows.interfaces import Observed

Int64 = NDArray[np.int64]

ENTRIES_AT_ONCE = 1 << 18
"""Entries of windows that are expanded together, about, or those of one window; 100 bytes each."""


class Span(NamedTuple):
    """Windows ``[first, last]`` observed when stream time is `cut_us`: rows that come then or later are not known."""

    first: int
    last: int
    cut_us: int


def every_number(first: Int64, last: Int64) -> tuple[Int64, Int64]:
    """Concatenate the ranges ``[first, last]``, which are empty where ``last < first``; int64[k] both.

    Returns
    -------
    tuple of int64[n]
        Per number, the index of its range, and the number.
    """
    times = np.maximum(last - first + 1, 0)
    at = np.repeat(np.arange(len(first)), times)
    offset = np.arange(len(at)) - np.repeat(np.cumsum(times) - times, times)
    return at, first[at] + offset


def windows_of(grid: Grid, panes: Int64) -> Int64:
    """Return the numbers of all windows that hold one of the panes; int64, both ascending.

    The cost is that of these windows, not of the panes in each.
    """
    start = panes * grid.pane_us
    first, last = grid.first_of(start), grid.last_of(start)
    first[1:] = np.maximum(first[1:], last[:-1] + 1)
    return every_number(first, last)[1]


def spans_of(grid: Grid, windows: Mapping[int, tuple[int, int]]) -> list[Span]:
    """Return the spans of windows (first, last) from the interval that is entered when they are observed."""
    return [Span(first, last, interval * grid.slide_us) for interval, (first, last) in windows.items()]


@dataclass(frozen=True)
class WindowEntries:
    """Entries in every window that contains them, as known at the cut of the window's span: one observation per window.

    Attributes
    ----------
    span, window : int64[k]
        Per observation, the place of its span and the number of its window; in this order.
    at, place, wait : int64[n]
        Per entry of an observation: which entry, the place of the observation, and the wait in that window in granules
        (-1: in time). Entries of an observation keep their order.
    stands_for : int64[n]
        How many groups the group of each entry stands for.
    """

    span: Int64
    window: Int64
    at: Int64
    place: Int64
    wait: Int64
    stands_for: Int64

    def append_to(self, spans: list[list[Observed]], observed: Sequence[Observed]) -> None:
        """Append the observed window of each observation to the others of its span."""
        for span, window in zip(self.span.tolist(), observed, strict=True):
            spans[span].append(window)


def window_entries(
    grid: Grid,
    pane: Int64,
    bucket: Int64,
    spans: Sequence[Span],
    code: Int64 | None = None,
    sample: GroupSample | None = None,
) -> Iterator[WindowEntries]:
    """Expand entries into every window of the spans that holds their pane; yields some windows at a time.

    Parameters
    ----------
    pane, bucket : int64[n]
        Pane number, ascending, and the wait beyond the end of the pane's first window in granules; -1 where the entry
        came before that end.
    code : int64[n], optional
        Hash of the entry's group; needed where there is a `sample`.
    sample : GroupSample, optional
        Groups that are observed; entries of others are in no window.
    """
    if not len(pane) or not spans:
        return
    firsts, lasts, cut_us = np.array(spans, np.int64).T
    with_entries = windows_of(grid, pane[run_bounds(pane)[:-1]])
    low, high = np.searchsorted(with_entries, firsts), np.searchsorted(with_entries, lasts, "right")
    spans_at, number = every_number(low, high - 1)
    windows = with_entries[number]
    # the entries of a window stand together, as its panes do
    low, high = _range_of(grid, pane, windows, windows)
    first_window = grid.first_of(pane * grid.pane_us)
    for begin, end in itertools.pairwise(run_bounds(np.cumsum(high - low) // ENTRIES_AT_ONCE).tolist()):
        span, window = spans_at[begin:end], windows[begin:end]
        place, at = every_number(low[begin:end], high[begin:end] - 1)
        at_window, past_first = window[place], bucket[at]
        wait = past_first - (at_window - first_window[at]) * (grid.slide_us // grid.granularity_us)
        wait[(past_first < 0) | (wait < 0)] = -1
        known = wait * grid.granularity_us < cut_us[span[place]] - grid.end(at_window)
        shift = np.zeros(len(window), np.int64)
        if code is not None and sample is not None:
            first_panes, last_panes = window * grid.slide_us // grid.pane_us, grid.end(window) // grid.pane_us - 1
            shift = sample.greatest(first_panes, last_panes)
            known &= is_sampled(code[at], shift[place])
        filled = np.bincount(place[known], minlength=len(window)) > 0
        if filled.any():
            stands_for = np.left_shift(1, shift)[place[known]]
            place = (np.cumsum(filled) - 1)[place[known]]
            yield WindowEntries(span[filled], window[filled], at[known], place, wait[known], stands_for)


def _range_of(grid: Grid, pane: Int64, first: Int64, last: Int64) -> tuple[Int64, Int64]:
    """Return where the entries of windows ``[first, last]`` begin and end among ascending pane numbers."""
    low = np.searchsorted(pane, first * grid.slide_us // grid.pane_us)
    return low, np.maximum(np.searchsorted(pane, grid.end(last) // grid.pane_us), low)


def by_window(
    numbers: Int64,
    place: Int64,
    wait: Int64,
    weight: Int64,
    granularity_us: int,
    needed_coverage: NDArray[np.float64] | None = None,
) -> list[Observed]:
    """Count the contributions to windows by the slack that they required.

    Parameters
    ----------
    numbers : int64[windows]
        The windows, ascending.
    place, wait, weight : int64[n]
        Per entry: its window's place in `numbers`, its wait in granules (-1: in time), and the contributions it
        stands for.
    needed_coverage : float64[windows], optional
        As :class:`Observed` has it.
    """
    behind = np.flatnonzero(wait >= 0)
    by = behind[sort_order(place[behind], wait[behind])]
    window, level = place[by], wait[by]
    starts = run_bounds(window, level)[:-1]
    required = (level[starts] + 1) * granularity_us
    rows = np.add.reduceat(weight[by], starts).astype(np.float64) if len(starts) else np.empty(0)
    bounds = np.searchsorted(window[starts], np.arange(len(numbers) + 1)).tolist()
    needed = [1.0] * len(numbers) if needed_coverage is None else needed_coverage.tolist()
    return [
        Observed(number, required[low:high], rows[low:high], total, least)
        for number, (low, high), total, least in zip(
            numbers.tolist(),
            itertools.pairwise(bounds),
            np.bincount(place, weight, len(numbers)).tolist(),
            needed,
            strict=True,
        )
    ]
