"""Decide when a closed window is observed, and when no late row of it is expected any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from latecomer.core.time import NEVER
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import IntervalRows

LONGEST_OBSERVATION = 16
"""Window sizes after which a window is observed at the latest: one absurdly late row must not blind the controller, and what is
learnt late is learnt too late (4 to 64 were tried on games and network logs; 16 kept most promises). Where windows are observed
provisionally nobody is blinded, and this is the least; the final observation then waits for twice the largest delay, up to four
times this, or further if more rows than `FAR_SHARE` come later."""


FAR_SHARE = 1_000
"""One row in so many may come too late to be seen in any window. Phones that sync once a night have windows of a minute wait for hours;
a clock that was wrong for a moment does not have them wait for years."""


MOST_OBSERVED = 1 << 14
"""Windows that are observed at a time for the sake of rows that come so late, at most: of each the state keeps a few numbers."""


@dataclass
class Lookout:
    """When a shard's windows are looked at: a function of delays alone, so it is known before any slack is chosen.

    Attributes
    ----------
    grid
        Windows.
    observing, provisional
        Is anything looked at; before its observation is over, too?
    observe_us
        How long after its end a window is observed, once; None: as long as the largest delay so far, at least one size.
    interval
        The one at hand; None before the first.
    delay_us, pending_delay_us
        Largest delay of the intervals before it, and in it.
    delivered
        The last window whose observation is over; None before the first interval.
    began
        The first interval: rows from before it, of clocks that were never set for example, are in no window that is observed.
    rows, far
        Rows of the intervals before it; and of those that came so late that it matters here, by the bits of their lateness in sizes.
    pending_rows, pending_far
        The same of the interval at hand.
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

    def schedule(self, intervals: list[IntervalRows]) -> dict[int, tuple[int, int]]:
        """Take in one micro-batch's intervals, in order; windows that are looked at when they are entered: interval -> (first, last) window number.

        What is known of them then: :func:`latecomer.core.windows.observation.spans_of`.
        """
        found: dict[int, tuple[int, int]] = {}
        for each in intervals:
            if self.interval is None or each.interval > self.interval:
                first, last = self.enter(each.interval)
                if last >= first:
                    found[each.interval] = (first, last)
            self.take(each)
        return found

    def take(self, each: IntervalRows) -> None:
        """Take in arrivals of the interval at hand."""
        self.pending_delay_us = max(self.pending_delay_us, each.delay_us)
        self.pending_rows += each.rows
        size, slide = self.grid.size_us, self.grid.slide_us
        if self.observing and 2 * each.delay_us > 4 * LONGEST_OBSERVATION * size:
            until = (each.panes + 1) * self.grid.pane_us
            behind = (each.interval * slide - until) // size
            late = behind >= 2 * LONGEST_OBSERVATION
            if self.began is not None:
                late &= until > self.began * slide
            bits = np.frexp(behind[late].astype(np.float64))[1]  # exact: far fewer bits than a double has
            self.pending_far = _added(
                self.pending_far, np.bincount(bits, each.pane_rows[late]).astype(np.int64).tolist()
            )

    def enter(self, interval: int) -> tuple[int, int]:
        """Enter an interval; number of the first and of the last window that is looked at then. Those up to `delivered` are final."""
        before, self.interval = self.interval, interval
        self.delay_us, self.pending_delay_us = max(self.delay_us, self.pending_delay_us), 0
        self.rows, self.pending_rows = self.rows + self.pending_rows, 0
        if self.pending_far:
            self.far, self.pending_far = _added(self.far, self.pending_far), []
        if not self.observing:
            return 0, -1
        if self.delivered is None:  # windows that ended before the first interval hold nothing but late rows
            self.delivered = int(self.grid.first_of(interval * self.grid.slide_us)) - 1
            self.began = interval
        first, last, final = self._look(before, interval, self.delivered)
        self.delivered = max(self.delivered, final)
        return first, last

    def observed_from(self) -> int:
        """Number of the oldest window that is not finally observed yet; its rows are still to be counted."""
        return NEVER if self.delivered is None else self.delivered + 1

    def _look(self, before: int | None, interval: int, done: int) -> tuple[int, int, int]:
        """Windows looked at when the interval is entered from the one `before`: first, last, and last that is final then."""
        size, slide = self.grid.size_us, self.grid.slide_us
        ended = interval * slide - size
        longest = LONGEST_OBSERVATION * size
        if self.observe_us is not None or not self.provisional:
            span = min(max(size, self.delay_us), longest) if self.observe_us is None else self.observe_us
            final = (ended - span) // slide
            return done + 1, final, final
        rounds = -(-size // slide)
        number, past = interval // rounds, None if before is None else before // rounds
        if number == past:
            return 0, -1, done
        span = min(max(longest, 2 * self.delay_us), max(4 * longest, 2 * self._reached()))
        # every power of two divides round 0, so crossing it looks at all
        reach = span if past is None or past < 0 <= number else size << (past ^ number).bit_length()
        last = (ended - size) // slide
        if reach < span:
            return max((ended - reach) // slide, done) + 1, last, done
        return done + 1, last, (ended - span) // slide

    def _reached(self) -> int:
        """Within which lateness all rows so far came but for `FAR_SHARE`, rounded up to a power of two of sizes; of those that came far too late."""
        bits, beyond = len(self.far), 0
        while bits and (beyond + self.far[bits - 1]) * FAR_SHARE <= self.rows:
            bits -= 1
            beyond += self.far[bits]
        return min(self.grid.size_us << bits - 1, self.grid.slide_us * MOST_OBSERVED // 2) if bits else 0

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values; what it is made with is not part of it."""
        return {name: getattr(self, name) for name in (*_LOOKOUT, *_COUNTED)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_dict`'s value, which may hold more; with one of an earlier version, that counted no late rows, as if it began now."""
        for name in _LOOKOUT:
            setattr(self, name, state[name])
        for name, nothing in _COUNTED.items():
            value = state.get(name, nothing)
            setattr(self, name, list(value) if isinstance(value, list) else value)
        if self.began is None and self.delivered is not None:
            self.began = self.interval


_LOOKOUT = ("interval", "delay_us", "pending_delay_us", "delivered")


_COUNTED: dict[str, Any] = {"began": None, "rows": 0, "far": [], "pending_rows": 0, "pending_far": []}


def _added(one: list[int], other: list[int]) -> list[int]:
    """Sums place by place, as long as the longer one."""
    return [a + b for a, b in zip_longest(one, other, fillvalue=0)]
