"""What windows look like when they are looked at: every entry (a row, a cell of rows) in every window that holds its pane.

Windows that are observed together are looked at together, in one pass over their entries and without a sort; what one look shows does
not depend on the others. Cost: O(entries x windows of a pane), some `LOOKED_AT` at a time.
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
from latecomer.core.windows.group_sampling import Thinning, is_sampled
from latecomer.core.windows.interfaces import Observed

Int64 = NDArray[np.int64]

LOOKED_AT = 1 << 20
"""Entries of windows that are looked at together, about, or those of one window; 100 bytes each."""


class Span(NamedTuple):
    """Windows ``[first, last]``, looked at when stream time is `cut_us`: what comes then or later is not known."""

    first: int
    last: int
    cut_us: int


def every_number(first: Int64, last: Int64) -> tuple[Int64, Int64]:
    """Concatenate the ranges ``[first, last]`` (empty where ``last < first``); returns, per number, the index of its range and the number."""
    times = np.maximum(last - first + 1, 0)
    at = np.repeat(np.arange(len(first)), times)
    offset = np.arange(len(at)) - np.repeat(np.cumsum(times) - times, times)
    return at, first[at] + offset


def windows_of(grid: Grid, panes: Int64) -> Int64:
    """Numbers of all windows that hold one of the panes, which ascend, int64[k], ascending; the cost is that of these windows, not of each's panes."""
    start = panes * grid.pane_us
    first, last = grid.first_of(start), grid.last_of(start)
    first[1:] = np.maximum(first[1:], last[:-1] + 1)
    return every_number(first, last)[1]


def spans_of(grid: Grid, wanted: Mapping[int, tuple[int, int]]) -> list[Span]:
    """Windows (first, last) that are looked at when intervals are entered, by the interval's number."""
    return [Span(first, last, interval * grid.slide_us) for interval, (first, last) in wanted.items()]


@dataclass(frozen=True)
class Looks:
    """Windows with entries, as they look at the cut of their span; int64 arrays.

    Attributes
    ----------
    span, window : int64[looks]
        Place of the span, number of the window; in this order.
    at, place, wait : int64[n]
        Entries by look: which entry, whose look's place, its wait in the window in granules (-1: in time). Those of a look stand as they did.
    stands_for : int64[n]
        How many groups each entry's group stands for.
    """

    span: Int64
    window: Int64
    at: Int64
    place: Int64
    wait: Int64
    stands_for: Int64

    def hand_out(self, seen: Sequence[Observed], spans: list[list[Observed]]) -> None:
        """Put what was seen, look by look, to the others of its span."""
        for span, each in zip(self.span.tolist(), seen, strict=True):
            spans[span].append(each)


def looks(
    grid: Grid,
    pane: Int64,
    bucket: Int64,
    spans: Sequence[Span],
    code: Int64 | None = None,
    thinning: Thinning | None = None,
) -> Iterator[Looks]:
    """Every entry in every window that holds its pane, of all spans, some at a time; what is in one look does not depend on the others.

    Parameters
    ----------
    pane, bucket : int64[n]
        Pane number, ascending, and the wait beyond the end of the pane's first window in granules; -1 where it came before that.
    code : int64[n], optional
        Hash of the entry's group; needed where there is a `thinning`. Entries that it leaves out are in no look.
    """
    if not len(pane) or not spans:
        return
    firsts, lasts, cut_us = np.array(spans, np.int64).T
    there = windows_of(grid, pane[run_bounds(pane)[:-1]])
    spans_at, number = every_number(np.searchsorted(there, firsts), np.searchsorted(there, lasts, "right") - 1)
    windows = there[number]
    # the entries of a window stand together, as its panes do
    low, high = _range_of(grid, pane, windows, windows)
    own = grid.first_of(pane * grid.pane_us)
    for begin, end in itertools.pairwise(run_bounds(np.cumsum(high - low) // LOOKED_AT).tolist()):
        span, window = spans_at[begin:end], windows[begin:end]
        place, at = every_number(low[begin:end], high[begin:end] - 1)
        at_window, waited = window[place], bucket[at]
        wait = waited - (at_window - own[at]) * (grid.slide_us // grid.granularity_us)
        wait[(waited < 0) | (wait < 0)] = -1
        known = wait * grid.granularity_us < cut_us[span[place]] - grid.end(at_window)
        shift = np.zeros(len(window), np.int64)
        if code is not None and thinning is not None:
            first_panes, last_panes = window * grid.slide_us // grid.pane_us, grid.end(window) // grid.pane_us - 1
            shift = thinning.greatest(first_panes, last_panes)
            known &= is_sampled(code[at], shift[place])
        seen = np.bincount(place[known], minlength=len(window)) > 0
        if seen.any():
            stands_for = np.left_shift(1, shift)[place[known]]
            place = (np.cumsum(seen) - 1)[place[known]]
            yield Looks(span[seen], window[seen], at[known], place, wait[known], stands_for)


def _range_of(grid: Grid, pane: Int64, first: Int64, last: Int64) -> tuple[Int64, Int64]:
    """Where the entries of windows ``[first, last]`` begin and end among ascending pane numbers."""
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
    """Windows from the entries in them.

    Parameters
    ----------
    numbers : int64[windows]
        The windows, ascending.
    place, wait, weight : int64[n]
        Per entry: its window's place in `numbers`, its wait in granules (-1: in time), and the contributions it stands for.
    needed_coverage : float64[windows], optional
        As :class:`Observed` has it.
    """
    behind = np.flatnonzero(wait >= 0)
    by = behind[sort_order(place[behind], wait[behind])]
    own, level = place[by], wait[by]
    starts = run_bounds(own, level)[:-1]
    required = (level[starts] + 1) * granularity_us
    rows = np.add.reduceat(weight[by], starts).astype(np.float64) if len(starts) else np.empty(0)
    bounds = np.searchsorted(own[starts], np.arange(len(numbers) + 1)).tolist()
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
