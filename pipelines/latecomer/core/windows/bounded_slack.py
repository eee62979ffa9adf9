"""The bounded slack policy: the calibrated rule over credible waits, and a safe start."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

from latecomer.core.state import check_version
from latecomer.core.windows.calibrated_slack import CalibratedSlack, CalibratedSlackState
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import IntervalRows, Observed, SlackPolicy
from latecomer.core.windows.longest_wait import LongestWait, LongestWaitState

STATE_VERSION = 4
"""Versions 1 to 3 are of `CalibratedSlack`."""
REMEMBERED = 2
"""Periods whose own requirements are remembered, in multiples of the periods of which one may miss."""
SHARE_OF_ROWS = 0.02
"""A longest wait is needed by more than this share of the rows that may be lost: one row in 1,000 at 0.95."""


class BoundedSlackState(TypedDict):
    """The state of `BoundedSlack` as JSON: those of its parts, and the number of known periods."""

    version: int
    calibrated: CalibratedSlackState
    longest: LongestWaitState
    known: int


class BoundedSlack(SlackPolicy):
    """The slack of `CalibratedSlack`, learnt from credible waits.

    The *longest wait* is the longest credible one (:mod:`latecomer.core.windows.longest_wait`), at most `max_wait_us`.
    One row, one clock or one stretch of arrivals does not change it.

    1. *Bounded influence.* A contribution that requires more than the longest wait is set aside: nobody waits for it,
       and nothing is learnt from it. It is late, and counts as lost where the promise is judged. A window is observed
       several times, so a contribution counts as soon as lateness like its own has come again.
    2. *A bound.* The slack is never more than the longest wait.
    3. *A safe start.* Until ``ceil(share / (1 - share))`` periods are known (19 for 0.95), so many that the next of
       exchangeable periods exceeds all of them with probability ``1 - share``, and ``1 / (1 - target)`` answers, the
       policy is *learning*: the slack is the longest wait itself. That is the largest lateness so far but for what
       rule 1 sets aside. While learning the slack is at least `expect_us`, of a stream that nobody has seen.
    4. *A longer memory.* The worst of `REMEMBERED` times as many periods is remembered as in `CalibratedSlack`. The
       bound pays for it.

    Rejected variants and their numbers: docs/experiments/promise.md.

    Parameters
    ----------
    target, grid, period_us, share
        As of `CalibratedSlack`.
    max_wait_us : int or None
        The longest wait that anybody would accept, microseconds; None: the longest credible wait.
    expect_us : int
        Lateness that is expected of a stream that nobody has seen, microseconds.
    """

    needs_observation = True
    provisional = True

    def __init__(
        self,
        target: float,
        grid: Grid,
        period_us: int,
        share: float,
        max_wait_us: int | None = None,
        expect_us: int = 0,
    ) -> None:
        self.calibrated = CalibratedSlack(target, grid, period_us, share)
        self.needed_periods = self.calibrated.periods
        self.calibrated.periods = REMEMBERED * self.needed_periods
        self.max_wait_us, self.expect_us, self.granularity_us = max_wait_us, expect_us, grid.granularity_us
        self.longest = LongestWait(grid, self.calibrated.periods * period_us, SHARE_OF_ROWS * (1.0 - target))
        self.known = 0
        self._chosen: int | None = None

    @property
    def learning(self) -> bool:
        """True until as many periods and answers are known as the promise needs."""
        return self.known < self.needed_periods or self.calibrated.answers * self.calibrated.delta < 1.0 - 1e-9

    def arrived(self, rows: IntervalRows) -> None:
        """Take in rows of the current interval."""
        self.longest.add(rows)

    def delays(self, largest_us: int) -> None:
        """Take in that an interval is complete; its largest delay may be that of one wrong clock."""
        self.longest.end_interval()
        self._chosen = None

    def longest_wait_us(self) -> int:
        """Return the longest wait, microseconds."""
        longest_us = self.longest.wait_us()
        return longest_us if self.max_wait_us is None else min(longest_us, self.max_wait_us)

    def observe(self, seen: Observed, slack_us: int, interval: int) -> None:
        """Count the answers of a window, except answers that require more than the longest wait."""
        saved = seen.required_us <= self.longest_wait_us() + self.granularity_us
        if not saved.all():
            seen = replace(seen, required_us=seen.required_us[saved], weight=seen.weight[saved])
        self.calibrated.observe(seen, slack_us, interval)
        self.known = max(self.known, self.calibrated.known_periods)
        self._chosen = None

    def choose(self, interval: int) -> int:
        """Return what was learnt, at most the longest wait; while learning the longest wait."""
        if self._chosen is None:
            longest_us = self.calibrated.largest_us = self.longest_wait_us()
            slack = longest_us
            if self.learning:
                expected_us = self.expect_us if self.max_wait_us is None else min(self.expect_us, self.max_wait_us)
                slack = max(slack, expected_us)
            else:
                slack = min(self.calibrated.choose(interval), longest_us)
            self._chosen = -(-slack // self.granularity_us) * self.granularity_us
        return self._chosen

    def to_dict(self) -> BoundedSlackState:
        """Return the state as JSON; floats survive JSON exactly."""
        return {
            "version": STATE_VERSION,
            "calibrated": self.calibrated.to_dict(),
            "longest": self.longest.to_dict(),
            "known": self.known,
        }

    @classmethod
    def from_dict(
        cls,
        state: BoundedSlackState,
        target: float,
        grid: Grid,
        period_us: int,
        share: float,
        max_wait_us: int | None = None,
        expect_us: int = 0,
    ) -> BoundedSlack:
        """Continue from the state that `to_dict` wrote.

        Raises
        ------
        OtherVersion
            Another version of the program wrote the state.
        """
        check_version("state of the bounded slack", state, STATE_VERSION)
        policy = cls(target, grid, period_us, share, max_wait_us, expect_us)
        periods, longest = policy.calibrated.periods, policy.longest
        policy.calibrated = CalibratedSlack.from_dict(state["calibrated"], target, grid, period_us, share)
        policy.calibrated.periods = periods
        policy.longest = LongestWait.from_dict(state["longest"], grid, longest.memory_us, longest.least_share)
        policy.known = int(state["known"])
        return policy
