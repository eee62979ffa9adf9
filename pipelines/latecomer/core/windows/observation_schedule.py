"""Decide when a closed window is observed, and when no late row of it is expected any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NotRequired, TypedDict

import numpy as np

from latecomer.core.time import NEVER
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import IntervalRows

LONGEST_OBSERVATION = 16
"""Window sizes after which a window is observed at the latest: one absurdly late row must not blind the controller, and
what is learnt late is learnt too late. Where windows are observed provisionally, this is the least: the final
observation then waits for twice the largest delay, up to four times this, or further if more rows than `FAR_SHARE` come
later. Other values: docs/experiments/variants.md, "The slack of windows"."""

FAR_SHARE = 1_000
"""One row in so many may come too late to be seen in any window. Windows of a minute wait for hours for phones that
sync once a night; they do not wait for years because a clock was wrong for a moment."""

MOST_OBSERVED = 1 << 14
"""Most windows that are under observation at a time for such rows: the state keeps a few numbers of each."""


class ScheduleState(TypedDict):
    """The state of an `ObservationSchedule` as JSON; earlier versions counted no late rows and lack the last five."""

    interval: int | None
    delay_us: int
    pending_delay_us: int
    delivered: int | None
    began: NotRequired[int | None]
    rows: NotRequired[int]
    far: NotRequired[list[int]]
    pending_rows: NotRequired[int]
    pending_far: NotRequired[list[int]]


@dataclass
class ObservationSchedule:
    """The times at which the windows of a shard are observed.

    They are a function of delays alone, known before a slack is chosen.

    Attributes
    ----------
    grid
        Windows.
    observing, provisional
        Whether any window is observed, and whether windows are observed before their observation is over, too.
    observe_us
        Time from the end of a window to its only observation; None: the largest delay so far, at least one size.
    interval
        The current interval; None before the first.
    delay_us, pending_delay_us
        Largest delay of the intervals before it, and in it.
    delivered
        The last window whose observation is over; None before the first interval.
    began
        The first interval. Rows from before it, of clocks that were never set for example, are in no observed window.
    rows, far
        Rows of the intervals before the current one; and the number of very late ones among them, by the bits of their
        lateness in window sizes.
    pending_rows, pending_far
        The same for the current interval.
    """

    grid: Grid
    observing: bool
    provisional: bool
    observe_us: int | None = None
    interval: int | None = None
    delay_us: int = 0
    pending_delay_us: int = 0
    delivered: int | None = None
    began: int | None = None
    rows: int = 0
    far: list[int] = field(default_factory=list)
    pending_rows: int = 0
    pending_far: list[int] = field(default_factory=list)

    def advance(self, intervals: Sequence[IntervalRows]) -> dict[int, tuple[int, int]]:
        """Take in the intervals of one micro-batch, in order.

        Returns
        -------
        dict
            Interval -> first and last window that is observed when it is entered; intervals without one are left out.
            What is known of these windows then: :func:`latecomer.core.windows.observation.spans_of`.
        """
        observed: dict[int, tuple[int, int]] = {}
        for rows in intervals:
            if self.interval is None or rows.interval > self.interval:
                first, last = self.enter(rows.interval)
                if last >= first:
                    observed[rows.interval] = (first, last)
            self.add(rows)
        return observed

    def add(self, rows: IntervalRows) -> None:
        """Take in arrivals of the current interval."""
        self.pending_delay_us = max(self.pending_delay_us, rows.delay_us)
        self.pending_rows += rows.rows
        size, slide = self.grid.size_us, self.grid.slide_us
        if self.observing and 2 * rows.delay_us > 4 * LONGEST_OBSERVATION * size:
            until = (rows.panes + 1) * self.grid.pane_us
            behind = (rows.interval * slide - until) // size
            late = behind >= 2 * LONGEST_OBSERVATION
            if self.began is not None:
                late &= until > self.began * slide
            bits = np.frexp(behind[late].astype(np.float64))[1]  # exact: far fewer bits than a double has
            by_bits = np.bincount(bits, rows.pane_rows[late]).astype(np.int64).tolist()
            self.pending_far = _added(self.pending_far, by_bits)

    def enter(self, interval: int) -> tuple[int, int]:
        """Enter an interval; returns the first and last window observed then. Those up to `delivered` are final."""
        before, self.interval = self.interval, interval
        self.delay_us, self.pending_delay_us = max(self.delay_us, self.pending_delay_us), 0
        self.rows, self.pending_rows = self.rows + self.pending_rows, 0
        if self.pending_far:
            self.far, self.pending_far = _added(self.far, self.pending_far), []
        if not self.observing:
            return 0, -1
        if self.delivered is None:  # windows that ended before the first interval hold nothing but late rows
            self.delivered = self.grid.first_of(interval * self.grid.slide_us) - 1
            self.began = interval
        first, last, final = self._observed(before, interval, self.delivered)
        self.delivered = max(self.delivered, final)
        return first, last

    def observed_from(self) -> int:
        """Return the number of the oldest window that is not finally observed yet; its rows are still to be counted."""
        return NEVER if self.delivered is None else self.delivered + 1

    def expected_lateness(self) -> int:
        """Return the lateness (us) up to which rows are expected: the largest so far, but not that of few far rows."""
        longest = 4 * LONGEST_OBSERVATION * self.grid.size_us
        return min(max(self.delay_us, self.pending_delay_us), max(longest, 2 * self._usual_lateness()))

    def _observed(self, before: int | None, interval: int, delivered: int) -> tuple[int, int, int]:
        """Return the windows observed when an interval is entered from the one `before`: first, last, last final."""
        size, slide = self.grid.size_us, self.grid.slide_us
        ended = interval * slide - size
        longest = LONGEST_OBSERVATION * size
        if self.observe_us is not None or not self.provisional:
            span = min(max(size, self.delay_us), longest) if self.observe_us is None else self.observe_us
            final = (ended - span) // slide
            return delivered + 1, final, final
        intervals_per_round = -(-size // slide)
        round_, last_round = interval // intervals_per_round, None if before is None else before // intervals_per_round
        if round_ == last_round:
            return 0, -1, delivered
        span = min(max(longest, 2 * self.delay_us), max(4 * longest, 2 * self._usual_lateness()))
        # every power of two divides round 0, so all windows are observed when it is crossed
        crossed = last_round is None or last_round < 0 <= round_
        reach = span if last_round is None or crossed else size << (last_round ^ round_).bit_length()
        last = (ended - size) // slide
        if reach < span:
            return max((ended - reach) // slide, delivered) + 1, last, delivered
        return delivered + 1, last, (ended - span) // slide

    def _usual_lateness(self) -> int:
        """Return the lateness (us) of all rows but for `FAR_SHARE`, rounded up to a power of two of sizes.

        0 where no row came far too late.
        """
        bits, beyond = len(self.far), 0
        while bits and (beyond + self.far[bits - 1]) * FAR_SHARE <= self.rows:
            bits -= 1
            beyond += self.far[bits]
        return min(self.grid.size_us << bits - 1, self.grid.slide_us * MOST_OBSERVED // 2) if bits else 0

    def to_dict(self) -> ScheduleState:
        """Return the state as JSON, without what the constructor gets."""
        return {
            "interval": self.interval,
            "delay_us": self.delay_us,
            "pending_delay_us": self.pending_delay_us,
            "delivered": self.delivered,
            "began": self.began,
            "rows": self.rows,
            "far": list(self.far),
            "pending_rows": self.pending_rows,
            "pending_far": list(self.pending_far),
        }

    @classmethod
    def from_dict(
        cls, state: ScheduleState, grid: Grid, observing: bool, provisional: bool, observe_us: int | None = None
    ) -> ObservationSchedule:
        """Continue from the state that `to_dict` wrote; one of an earlier version counts late rows from now on."""
        began = state.get("began")
        if began is None and state["delivered"] is not None:
            began = state["interval"]
        return cls(
            grid,
            observing,
            provisional,
            observe_us,
            interval=state["interval"],
            delay_us=state["delay_us"],
            pending_delay_us=state["pending_delay_us"],
            delivered=state["delivered"],
            began=began,
            rows=state.get("rows", 0),
            far=list(state.get("far", ())),
            pending_rows=state.get("pending_rows", 0),
            pending_far=list(state.get("pending_far", ())),
        )


def _added(counts: list[int], others: list[int]) -> list[int]:
    """Add two lists place by place; the shorter one is filled with 0."""
    return [a + b for a, b in zip_longest(counts, others, fillvalue=0)]
