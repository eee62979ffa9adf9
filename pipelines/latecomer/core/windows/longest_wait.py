"""The longest credible wait: single rows, groups and stretches of arrivals have bounded influence on it.

Late rows are counted by the wait that would have saved them, in octaves ``[2^b, 2^(b+1))`` microseconds. An octave is
*credible* if its waits and longer ones

1. were needed by more than the share `least_share` of the rows, and
2. came in two stretches of arrivals: at times that are further apart than the wait itself, ``2^b``.

The longest wait is the largest of the highest credible octave. So a backfilled month, a replayed day, the backlog of a
device that was dead, or all that comes while one row has put stream time ahead is one stretch, however many rows it
holds, and a clock that is wrong now and then is a small share. Lateness that comes again, as of phones that sync every
night, is credible from its second time on.

Rows of panes that ended before the first interval do not count, since no wait could have saved them: that is where
clocks go that were never set. An octave is forgotten when nothing of it came for `memory_us`, or for 16 times its wait
if that is longer; the numbers of rows are halved every `memory_us`.

Ordering: intervals of stream time in order, rows in any order inside one. Cost: O(panes) per interval. State: a few
numbers per octave, and the panes of the current interval.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import Int64, IntervalRows

OCTAVES = 64
"""Octaves of waits in microseconds; number 0 is of rows that needed no wait."""
FORGET = 16
"""An octave is remembered for so many times its wait at least."""


class LongestWaitState(TypedDict):
    """The state of a `LongestWait` as JSON: per octave rows, first and last arrival and largest wait."""

    began: int | None
    halved_us: int
    now_us: int
    octaves: list[list[int]]
    pending: list[list[int]]
    interval: int | None


class LongestWait:
    """The longest credible wait, as a state machine over intervals of stream time.

    Parameters
    ----------
    grid : Grid
        The windows.
    memory_us : int
        Stream time for which arrivals are remembered, microseconds.
    least_share : float
        Share of the rows that has to need a wait.
    """

    def __init__(self, grid: Grid, memory_us: int, least_share: float) -> None:
        self.grid, self.memory_us, self.least_share = grid, memory_us, least_share
        self._began: int | None = None
        self._interval: int | None = None
        self._now_us = self._halved_us = 0
        self._rows = np.zeros(OCTAVES, np.int64)
        self._first_us, self._last_us, self._largest_us = (np.zeros(OCTAVES, np.int64) for _ in range(3))
        self._pending: list[Int64] = []
        self._known: int | None = None

    def add(self, rows: IntervalRows) -> None:
        """Take in rows of the current interval."""
        if self._began is None:
            self._began, self._halved_us = rows.interval, rows.interval * self.grid.slide_us
        self._interval = rows.interval
        self._pending.append(np.stack([rows.panes, rows.pane_rows, rows.pane_delay_us]))

    def end_interval(self) -> None:
        """Count the rows of the interval that is complete."""
        if self._interval is None or self._began is None or not self._pending:
            return
        panes, rows, delay_us = self._merged()
        until_us = (panes + 1) * self.grid.pane_us
        end_us = (self._interval + 1) * self.grid.slide_us
        inside = until_us > self._began * self.grid.slide_us
        wait_us = np.maximum(np.minimum(delay_us, end_us - until_us), 0)[inside]
        octave = np.frexp(wait_us.astype(np.float64))[1]
        self._now_us = end_us
        while self._halved_us + self.memory_us <= end_us:
            halvings = min((end_us - self._halved_us) // self.memory_us, OCTAVES - 1)
            self._rows >>= halvings
            self._halved_us += (end_us - self._halved_us) // self.memory_us * self.memory_us
        self._rows += np.bincount(octave, rows[inside], OCTAVES).astype(np.int64)
        largest_us = np.zeros(OCTAVES, np.int64)
        np.maximum.at(largest_us, octave, wait_us)
        met = np.flatnonzero(largest_us)
        again = self._remembered(met)
        self._first_us[met] = np.where(again, self._first_us[met], end_us)
        self._largest_us[met] = np.maximum(np.where(again, self._largest_us[met], 0), largest_us[met])
        self._last_us[met] = end_us
        self._pending, self._known = [], None

    def wait_us(self) -> int:
        """Return the longest credible wait in microseconds; 0 before any."""
        if self._known is None:
            self._known = self._credible()
        return self._known

    def _credible(self) -> int:
        octaves = np.flatnonzero(self._largest_us)
        octaves = octaves[self._remembered(octaves)][::-1]
        least = self.least_share * int(self._rows.sum())
        rows = first_us = last_us = 0
        place = 0
        for octave in octaves.tolist():
            # this octave and higher ones
            while place < len(octaves) and octaves[place] >= octave:
                first, last = int(self._first_us[octaves[place]]), int(self._last_us[octaves[place]])
                first_us, last_us = (min(first_us, first), max(last_us, last)) if place else (first, last)
                rows += int(self._rows[octaves[place]])
                place += 1
            if rows > least and last_us - first_us > 1 << (octave - 1):
                return int(self._largest_us[octave])
        return 0

    def _remembered(self, octaves: Int64) -> np.ndarray:
        """Return whether something of each octave came within its memory, bool[n]."""
        memory_us = np.maximum(self.memory_us, np.left_shift(FORGET, np.minimum(octaves, 58)))
        return (self._largest_us[octaves] > 0) & (self._now_us - self._last_us[octaves] <= memory_us)

    def _merged(self) -> Int64:
        """Return the panes, rows and largest delays of the current interval, whatever its cuts."""
        if len(self._pending) == 1:
            return self._pending[0]
        all_panes, all_rows, all_delays = np.concatenate(self._pending, axis=1)
        panes, place = np.unique(all_panes, return_inverse=True)
        rows, delay_us = np.zeros(len(panes), np.int64), np.zeros(len(panes), np.int64)
        np.add.at(rows, place, all_rows)
        np.maximum.at(delay_us, place, all_delays)
        return np.stack([panes, rows, delay_us])

    def to_dict(self) -> LongestWaitState:
        """Return the state as JSON."""
        used = np.flatnonzero(self._rows | self._largest_us)
        columns = (used, self._rows[used], self._first_us[used], self._last_us[used], self._largest_us[used])
        return {
            "began": self._began,
            "halved_us": self._halved_us,
            "now_us": self._now_us,
            "octaves": np.stack(columns).T.tolist(),
            "pending": self._merged().tolist() if self._pending else [],
            "interval": self._interval,
        }

    @classmethod
    def from_dict(cls, state: LongestWaitState, grid: Grid, memory_us: int, least_share: float) -> LongestWait:
        """Continue from the state that `to_dict` wrote."""
        longest = cls(grid, memory_us, least_share)
        longest._began, longest._interval = state["began"], state["interval"]
        longest._halved_us, longest._now_us = state["halved_us"], state["now_us"]
        for octave, *values in state["octaves"]:
            arrays = (longest._rows, longest._first_us, longest._last_us, longest._largest_us)
            for array, value in zip(arrays, values, strict=True):
                array[octave] = value
        longest._pending = [np.array(state["pending"], np.int64)] if state["pending"] else []
        return longest
