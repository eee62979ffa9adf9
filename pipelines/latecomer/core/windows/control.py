"""Windowed kinds, control plane: when windows close, as a state machine over compact interval summaries.

A window ``[start, start + size)`` with `start` a multiple of `slide` closes when the watermark ``W(a) = running max of
(T(a) - K)`` reaches its end. The slack `K` is constant inside an *interval* of stream time (one slide) and chosen when its
first arrival enters it, from what came strictly before. So the data plane can place every arrival from one short table
of (interval, base, slack), and nothing depends on where micro-batches were cut.

What a slack would have given is known without choosing it: a contribution needs the wait ``r = T(seq) - end``, and is on time
if and only if ``K > r``. A window's contributions are *observed* some time after its end, when most of
its stragglers are in; policies learn from observed windows only, in the order of their ends.

*Provisional observation.* What is learnt late is learnt too late, what is learnt early is not the whole truth. So a policy that says
``provisional`` is shown a window several times, first one size after its end, finally when its observation is over. Time is cut
into *rounds* of one size; round `i` looks at the windows that ended in the last ``2 * 2^j`` sizes, `2^j` the greatest power of two
that divides `i` (a binary counter), or at all that are not final if that reaches further. So a window is looked at
again before its age has trebled, and O(log(span / size)) times on average: never windows x intervals. The span follows the delays,
but for those of one row in `FAR_SHARE`.

How windows are looked at is :mod:`latecomer.core.windows.observation`; of those with very many groups, some groups are: :mod:`latecomer.core.windows.group_sampling`.

Ordering: arrivals in any order inside an interval, intervals in order of stream time. Cost: O(1) per interval and window.
State: rows per pane of the open windows, windows not yet observed, one account per open period.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from latecomer.core.arrays.sparse_counts import merge_counts
from latecomer.core.time import FOREVER, NEVER
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import Int64, IntervalRows, Observed, Placement, SlackAccount, SlackPolicy
from latecomer.core.windows.observation_schedule import Lookout


@dataclass
class WindowControl:
    """State machine of one shard.

    Parameters
    ----------
    grid, period_us
        Windows; period of the ledger.
    policy
        Chooses the slack.
    observe_us
        How long after its end a window is observed, once; None: as long as the largest delay so far, at least one size.
    """

    grid: Grid
    period_us: int
    policy: SlackPolicy
    observe_us: int | None = None
    t_last_us: int = NEVER
    base: int = NEVER
    slack: int = 0
    booked_us: int = NEVER
    closings: list[tuple[int, int]] = field(default_factory=list)
    panes: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    pane_rows: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    accounts: dict[int, SlackAccount] = field(default_factory=dict)
    lookout: Lookout = field(init=False)

    def __post_init__(self) -> None:
        seen = self.policy.needs_observation, self.policy.provisional
        self.lookout = Lookout(self.grid, *seen, self.observe_us)

    @property
    def interval(self) -> int | None:
        """The interval at hand; None before the first."""
        return self.lookout.interval

    @property
    def interval_us(self) -> int:
        """Length of an interval: one slide."""
        return self.grid.slide_us

    def watermark(self) -> int:
        """The watermark now, after the last arrival taken in."""
        if self.interval is None or self.slack >= FOREVER:
            return self.base
        return max(self.base, self.t_last_us - self.slack)

    def left_until(self) -> int:
        """Up to this time no window and no period will change any more: the watermark, but not beyond the period of the interval at hand."""
        if self.interval is None:
            return NEVER
        return min(self.watermark(), self._period(self.interval * self.interval_us))

    def wait(self, panes: Int64, rows: Int64) -> None:
        """Take in rows by pane, ascending: of arrivals that came before every stream had spoken, they are held and decide nothing."""
        self.panes, self.pane_rows = merge_counts(self.panes, self.pane_rows, panes, rows)

    def step(self, intervals: list[IntervalRows], observed: dict[int, list[Observed]]) -> Placement:
        """Take in one micro-batch's intervals, in order; `observed` holds what ``schedule`` asked for."""
        table: list[tuple[int, int, int]] = []
        for each in intervals:
            if self.interval is None or each.interval > self.interval:
                self._enter(each, observed.get(each.interval, []))
            self._take(each)
            table.append((each.interval, self.base, self.slack))
        columns = np.array(table, np.int64).reshape(len(table), 3)
        return Placement(columns[:, 0], columns[:, 1], columns[:, 2])

    def flush(self) -> int | None:
        """Close every window that holds a row; returns the last one's number, None where there is none.

        What the interval at hand held until now is booked first: afterwards nothing is held.
        """
        last = None if not len(self.panes) else int(self.grid.last_of(int(self.panes[-1]) * self.grid.pane_us))
        if last is not None:
            self.base = max(self.base, self.grid.end(last))
        if self.interval is not None:
            start = self.interval * self.interval_us
            self._book(self._open(self._period(start)), self._unbooked(max(self.t_last_us, start + 1)))
            self.booked_us = max(self.t_last_us, start + 1)
        self.panes, self.pane_rows = np.empty(0, np.int64), np.empty(0, np.int64)
        return last

    def _enter(self, each: IntervalRows, observed: list[Observed]) -> None:
        if self.interval is not None:
            self._leave(each.interval)
        done = self.lookout.delivered
        self.lookout.enter(each.interval)
        final = self.lookout.delivered
        for seen in observed:
            assert final is not None
            shown = replace(seen, final=seen.window <= final)
            self.policy.observe(shown, self._slack_at_close(seen.window), each.interval)
        if final is not None and final != done:
            self._forget(final)
        self.slack = self.policy.choose(each.interval)
        self.t_last_us = NEVER

    def _leave(self, following: int) -> None:
        assert self.interval is not None
        self.policy.delays(self.lookout.pending_delay_us)
        reached = self.watermark()
        if self.policy.needs_observation and reached > self.base:
            self.closings.append((reached, self.slack))
        self.base = reached
        start, end = self.interval * self.interval_us, following * self.interval_us
        period = self._period(start)
        self._book(self._open(period), self._unbooked(min(end, period + self.period_us)))
        self.booked_us = NEVER
        if end > period + self.period_us:
            later = self._period(end)
            if later < end:
                self._book(self._open(later), end - later, slack=False)

    def _slack_at_close(self, window: int) -> int:
        """Slack under which a window closed; `FOREVER` if it is still open."""
        place = bisect_left(self.closings, (self.grid.end(window), -1))
        return self.closings[place][1] if place < len(self.closings) else FOREVER

    def _forget(self, window: int) -> None:
        place = bisect_left(self.closings, (self.grid.end(window + 1), -1))
        self.closings = self.closings[place:]

    def _take(self, each: IntervalRows) -> None:
        self.t_last_us = max(self.t_last_us, each.t_last_us)
        self.lookout.take(each)
        account = self._open(self._period(each.interval * self.interval_us))
        account.rows += each.rows
        self.wait(each.panes, each.pane_rows)
        mark = self.watermark()
        if mark > NEVER:
            oldest = (self.grid.last_closed(mark) + 1) * self.grid.slide_us // self.grid.pane_us
            keep = int(np.searchsorted(self.panes, oldest))
            self.panes, self.pane_rows = self.panes[keep:], self.pane_rows[keep:]

    def _unbooked(self, until_us: int) -> int:
        """Stream time of the interval at hand that no account has yet, up to a time: all of it, but for a flush in it."""
        assert self.interval is not None
        return max(until_us - max(self.interval * self.interval_us, self.booked_us), 0)

    def _book(self, account: SlackAccount, weight_us: int, *, slack: bool = True) -> None:
        if not weight_us:
            return
        held = int(self.pane_rows.sum())
        account.held_area += held * weight_us
        account.weight_us += weight_us
        account.held_max = max(account.held_max, held)
        if slack and self.slack < FOREVER:
            account.slack_area += self.slack * weight_us
            account.slack_weight_us += weight_us

    def account(self, period: int, *, now: bool = False) -> SlackAccount:
        """Account of one period; `now` closes the current interval's books as if stream time stopped here."""
        found = self.accounts.get(period) or SlackAccount()
        copy = SlackAccount(**vars(found))
        if now and self.interval is not None and self._period(self.interval * self.interval_us) == period:
            self._book(copy, self._unbooked(max(self.t_last_us, self.interval * self.interval_us + 1)))
        return copy

    def _open(self, period: int) -> SlackAccount:
        return self.accounts.setdefault(period, SlackAccount())

    def _period(self, time_us: int) -> int:
        return time_us // self.period_us * self.period_us

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values."""
        return self.lookout.to_dict() | {
            "t_last_us": self.t_last_us,
            "base": self.base,
            "slack": self.slack,
            "booked_us": self.booked_us,
            "closings": [list(pair) for pair in self.closings],
            "panes": self.panes.tolist(),
            "pane_rows": self.pane_rows.tolist(),
            "accounts": {str(start): list(vars(account).values()) for start, account in self.accounts.items()},
            "policy": self.policy.to_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `to_dict`'s value."""
        self.lookout.restore(state)
        for name in ("t_last_us", "base", "slack", "booked_us"):
            setattr(self, name, state[name])
        self.closings = [(int(mark), int(slack)) for mark, slack in state["closings"]]
        self.panes, self.pane_rows = np.array(state["panes"], np.int64), np.array(state["pane_rows"], np.int64)
        self.accounts = {int(start): SlackAccount(*values) for start, values in state["accounts"].items()}
        self.policy.restore(state["policy"])
