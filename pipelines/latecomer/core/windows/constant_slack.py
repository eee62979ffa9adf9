"""Compute the rows held and the waits that constant slacks give, without the state machine.

:class:`latecomer.core.windows.control.WindowControl` with a constant slack gives the same accounts, interval by
interval. Here a slack costs one sort of the rows by interval and pane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import IntervalRows

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class HeldFrom:
    """Rows of one shard by interval and pane, in order of intervals, with the time from which they are held.

    Attributes
    ----------
    interval : int64[n]
        Interval in which they came.
    from_us, end_us : int64[n]
        When they are held from, and the end of their last window.
    rows : int64[n]
        How many they are.
    last_us : int
        The last stream time.
    """

    interval: Int64
    from_us: Int64
    end_us: Int64
    rows: Int64
    last_us: int

    @staticmethod
    def of(
        grid: Grid, intervals: Sequence[IntervalRows], before: Sequence[tuple[Int64, Int64]] = ()
    ) -> HeldFrom | None:
        """Join intervals; None where there are none.

        `before` has panes and rows that came before all streams were seen; they are held from the first interval on.
        """
        if not intervals:
            return None
        parts = [*before, *((rows.panes, rows.pane_rows) for rows in intervals)]
        numbers = [*(intervals[0].interval for _ in before), *(rows.interval for rows in intervals)]
        lengths = [len(panes) for panes, _ in parts]
        interval = np.repeat(np.array(numbers, np.int64), lengths)
        from_us = interval * grid.slide_us + grid.slide_us // 2
        from_us[: sum(lengths[: len(before)])] = intervals[0].interval * grid.slide_us
        panes, rows = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        end_us = grid.end(grid.last_of(panes * grid.pane_us))
        return HeldFrom(interval, from_us, end_us, rows, max(rows.t_last_us for rows in intervals))


def mean_rows_held(held: HeldFrom, grid: Grid, period_us: int, slack_us: int) -> dict[int, float]:
    """Return the mean of the rows held under a slack, per period (us) in which rows came.

    The current interval counts up to the last stream time.
    """
    slide, interval = grid.slide_us, np.unique(held.interval)
    start = interval * slide
    end = start + slide
    from_us, until = held.from_us.copy(), held.end_us + slack_us
    reached = np.maximum.accumulate(until)[np.searchsorted(held.interval, interval, "right") - 1]
    spent = max(held.last_us - int(start[-1]), 1)
    stays = until >= end[-1]
    until[stays] = start[-1] + spent
    came_last = stays & (from_us == start[-1] + slide // 2)
    from_us[came_last] = start[-1] + spent // 2
    some = until > from_us
    entered, left = _ramp(from_us[some], held.rows[some]), _ramp(until[some], held.rows[some])

    def area(from_us: Int64, to_us: Int64) -> Float64:
        return np.asarray(entered(to_us) - left(to_us) - entered(from_us) + left(from_us), np.float64)

    period = start // period_us * period_us
    weight = np.append(np.full(len(start) - 1, slide, np.int64), spent)
    parts: list[tuple[Int64, Float64, Int64]] = [(period, area(start, end), weight)]
    ends, following = end[:-1], start[1:]
    later = period[1:]
    crosses = later > period[:-1]
    for gap_period, low, high in (
        (period[:-1], ends, np.minimum(following, period[:-1] + period_us)),
        (later[crosses], np.maximum(later, ends)[crosses], following[crosses]),
    ):
        until = reached[:-1] if len(low) == len(ends) else reached[:-1][crosses]
        gap = high > low
        open_us = np.maximum(np.minimum(until, high) - low, 0)
        parts.append((gap_period[gap], area(low[gap], high[gap]), open_us[gap]))
    periods, areas, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    numbers, place = np.unique(periods, return_inverse=True)
    means = np.bincount(place, areas) / np.maximum(np.bincount(place, weights), 1)
    return dict(zip(numbers.tolist(), means.tolist(), strict=True))


def _ramp(times: Int64, rows: Int64) -> Callable[[Int64], Float64]:
    """Return the function that gives the sum of ``rows * max(t - times, 0)``."""
    order = np.argsort(times, kind="stable")
    times = times[order]
    zero = int(times[0]) if len(times) else 0
    count = np.append(0.0, np.cumsum(rows[order], dtype=np.float64))
    moment = np.append(0.0, np.cumsum(rows[order] * (times - zero).astype(np.float64)))

    def value(at_us: Int64) -> Float64:
        place = np.searchsorted(times, at_us)
        return np.asarray(count[place] * (at_us - zero) - moment[place], np.float64)

    return value


class AnswerWaits:
    """The mean waits of answers under constant slacks, over arrivals that come in pieces.

    Parameters
    ----------
    end_us : int64[n]
        Ends of windows, ascending.
    answers : float64[n]
        How many answers each has.
    slacks_us : sequence of int
        The slacks.
    """

    def __init__(self, end_us: Int64, answers: Float64, slacks_us: Sequence[int]) -> None:
        self._end, self._answers, self._slacks = end_us, answers, slacks_us
        self._closed = [0] * len(slacks_us)
        self._sums = [0.0] * len(slacks_us)

    def add(self, stream_time_us: Int64) -> None:
        """Take in the stream times of the next arrivals, which never fall."""
        if not len(stream_time_us):
            return
        for i, slack in enumerate(self._slacks):
            low = self._closed[i]
            high = int(np.searchsorted(self._end, stream_time_us[-1] - slack, "right"))
            if high > low:
                ends = self._end[low:high]
                closed_at = stream_time_us[np.searchsorted(stream_time_us, ends + slack)]
                self._sums[i] += float(self._answers[low:high] @ (closed_at - ends))
                self._closed[i] = high

    def totals(self, last_us: int) -> list[float]:
        """Return the sums of the waits, microseconds; what is open at the last stream time is answered by a flush."""
        rest = np.maximum(last_us - self._end, 0) * self._answers
        return [total + float(rest[closed:].sum()) for total, closed in zip(self._sums, self._closed, strict=True)]
