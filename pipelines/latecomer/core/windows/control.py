"""The control plane of windows: when they close, as a state machine over compact summaries of intervals.

A window ``[start, start + size)`` with `start` a multiple of `slide` closes when the watermark ``W(a) = running max of
(T(a) - K)`` reaches its end. The slack `K` is constant inside an *interval* of stream time (one slide) and chosen when
its first arrival enters it, from what came strictly before. So the data plane can decide about every arrival from one
short table of (interval, base, slack), and nothing depends on where micro-batches were cut.

What a slack would have given is known without choosing it: a contribution needs the wait ``r = T(seq) - end``, and is
on time if and only if ``K > r``. The contributions of a window are *observed* some time after its end, when most late
rows are in. Policies learn from observed windows only, in the order of their ends.

*Provisional observation.* Late knowledge comes too late, early knowledge is not the whole truth. So for a policy that
is ``provisional`` a window is observed several times, first one size after its end, finally when its observation is
over. Time is cut into *rounds* of one size. Round `i` observes the windows that ended in the last ``2 * 2^j`` sizes,
`2^j` the greatest power of two that divides `i` (a binary counter), or all that are not final if that reaches
further. So a window is observed again before its age has trebled, and O(log(span / size)) times on average: never
windows x intervals. The span follows the delays, but for those of one row in `FAR_SHARE`.

What an observation shows: :mod:`latecomer.core.windows.observation`. Of windows with very many groups, some groups are
observed: :mod:`latecomer.core.windows.group_sampling`.

Ordering: arrivals in any order inside an interval, intervals in order of stream time. Cost: O(1) per interval and
window. State: rows per pane of the open windows, windows not yet observed, one account per open period.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from latecomer.core import rows_held
from latecomer.core.arrays.sparse_counts import merge_counts
from latecomer.core.state import StateDocument
from latecomer.core.time import FOREVER, NEVER
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import (
    Int64,
    IntervalRows,
    Observed,
    SlackAccount,
    SlackPolicy,
    WatermarkTable,
)
from latecomer.core.windows.observation_schedule import ObservationSchedule, ScheduleState


class ControlState(ScheduleState):
    """The state of a `WindowControl` as JSON, with that of its schedule."""

    t_last_us: int
    base: int
    slack: int
    booked_us: int
    closings: list[list[int]]
    panes: list[int]
    pane_rows: list[int]
    accounts: dict[str, list[int]]
    arrived: int
    rows_held: int
    policy: StateDocument


@dataclass
class WindowControl:
    """The state machine of one shard.

    Attributes
    ----------
    grid
        Windows.
    period_us
        Period of the ledger, microseconds.
    policy
        Chooses the slack.
    observe_us
        Time from the end of a window to its only observation; None: the largest delay so far, at least one size.
    t_last_us
        Last stream time in the current interval; `NEVER` before its first arrival.
    base, slack
        Watermark when the current interval was entered, and the slack in it, microseconds.
    accounted_us
        Stream time up to which the current interval is in its period's account; `NEVER` unless a flush came in it.
    slacks
        Watermarks that intervals reached, ascending, with the slack under which they did.
    panes, pane_rows : int64[k]
        Panes of the rows in open windows, ascending, and the rows in each.
    accounts
        Start of a period (us) -> its account.
    arrived
        Rows that came in the current interval and are held beyond it.
    definition
        Number of the definition of rows held (:mod:`latecomer.core.rows_held`), by which the accounts were begun.
    schedule
        When windows are observed.
    """

    grid: Grid
    period_us: int
    policy: SlackPolicy
    observe_us: int | None = None
    t_last_us: int = NEVER
    base: int = NEVER
    slack: int = 0
    accounted_us: int = NEVER
    slacks: list[tuple[int, int]] = field(default_factory=list)
    panes: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    pane_rows: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    accounts: dict[int, SlackAccount] = field(default_factory=dict)
    arrived: int = 0
    definition: int = rows_held.CURRENT
    schedule: ObservationSchedule = field(init=False)

    def __post_init__(self) -> None:
        observed = self.policy.needs_observation, self.policy.provisional
        self.schedule = ObservationSchedule(self.grid, *observed, self.observe_us)

    @property
    def interval(self) -> int | None:
        """The current interval; None before the first."""
        return self.schedule.interval

    @property
    def interval_us(self) -> int:
        """Length of an interval: one slide."""
        return self.grid.slide_us

    def watermark(self) -> int:
        """Return the watermark after the last arrival taken in."""
        if self.interval is None or self.slack >= FOREVER:
            return self.base
        return max(self.base, self.t_last_us - self.slack)

    def final_until(self) -> int:
        """Return the time up to which no window and no period changes any more.

        That is the watermark, but not beyond the period of the current interval.
        """
        if self.interval is None:
            return NEVER
        return min(self.watermark(), self._period(self.interval * self.interval_us))

    def hold(self, panes: Int64, rows: Int64) -> None:
        """Take in rows by pane, ascending, that decide nothing: they came before all streams were seen."""
        self.panes, self.pane_rows = merge_counts(self.panes, self.pane_rows, panes, rows)

    def step(self, intervals: Sequence[IntervalRows], observed: Mapping[int, list[Observed]]) -> WatermarkTable:
        """Take in the intervals of one micro-batch, in order.

        Parameters
        ----------
        observed
            Interval -> the windows that are observed when it is entered, as :class:`ObservationSchedule` lists them.
        """
        table: list[tuple[int, int, int]] = []
        for rows in intervals:
            if self.interval is None or rows.interval > self.interval:
                self._enter(rows.interval, observed.get(rows.interval, []))
            self._add(rows)
            table.append((rows.interval, self.base, self.slack))
        columns = np.array(table, np.int64).reshape(len(table), 3)
        return WatermarkTable(columns[:, 0], columns[:, 1], columns[:, 2])

    def flush(self) -> int | None:
        """Close every window that holds a row; returns the number of the last one, None where there is none.

        What the current interval held until now goes to its account first: afterwards nothing is held.
        """
        last = None if not len(self.panes) else self.grid.last_of(int(self.panes[-1]) * self.grid.pane_us)
        if self.interval is not None:
            start = self.interval * self.interval_us
            until = max(self.t_last_us, start + 1)
            self._account(self._account_of(self._period(start)), until)
            self.accounted_us = until
        if last is not None:
            self.base = max(self.base, self.grid.end(last))
        self.panes, self.pane_rows, self.arrived = np.empty(0, np.int64), np.empty(0, np.int64), 0
        return last

    def _enter(self, interval: int, observed: list[Observed]) -> None:
        if self.interval is not None:
            self._end_interval(interval)
        delivered = self.schedule.delivered
        self.schedule.enter(interval)
        final = self.schedule.delivered
        for window in observed:
            assert final is not None
            known = replace(window, final=window.window <= final)
            self.policy.observe(known, self._slack_at_close(window.window), interval)
        if final is not None and final != delivered:
            self._forget(final)
        self.slack = self.policy.choose(interval)
        self.t_last_us, self.arrived = NEVER, 0
        start, leaving = interval * self.interval_us, int(np.searchsorted(self.panes, self._stays_from()))
        if leaving:
            self._account_leaving(self.panes[:leaving], self.pane_rows[:leaving], start)
        if self.policy.learning:
            self._account_of(self._period(start)).learning = 1

    def _end_interval(self, following: int) -> None:
        """End the current interval as a later one is entered: learn its delays, and account for the time between."""
        assert self.interval is not None
        self.policy.delays(self.schedule.pending_delay_us)
        reached = self.watermark()
        if self.policy.needs_observation and reached > self.base:
            self.slacks.append((reached, self.slack))
        self.base = reached
        start, end = self.interval * self.interval_us, following * self.interval_us
        period, later = self._period(start), self._period(end)
        account, period_end = self._account_of(period), period + self.period_us
        if self.definition == rows_held.CURRENT:
            self._account(account, start + self.interval_us)
            if end > start + self.interval_us:
                self._account_gap(account, start + self.interval_us, min(end, period_end))
                self._account_slack(account, min(end, period_end) - start - self.interval_us)
                if later > period:
                    self._account_gap(self._account_of(later), max(later, start + self.interval_us), end)
        else:
            self._account(account, min(end, period_end))
            if period_end <= later < end:
                self._account_rows(self._account_of(later), end - later)
        self.accounted_us = NEVER

    def _slack_at_close(self, window: int) -> int:
        """Return the slack under which a window closed; `FOREVER` if it is still open."""
        place = bisect_left(self.slacks, (self.grid.end(window), -1))
        return self.slacks[place][1] if place < len(self.slacks) else FOREVER

    def _forget(self, window: int) -> None:
        """Forget the slacks of windows up to one whose observation is over."""
        place = bisect_left(self.slacks, (self.grid.end(window + 1), -1))
        self.slacks = self.slacks[place:]

    def _add(self, rows: IntervalRows) -> None:
        """Take in rows of the current interval, and let go of panes whose windows are all closed."""
        self.t_last_us = max(self.t_last_us, rows.t_last_us)
        self.schedule.add(rows)
        self.policy.arrived(rows)
        account = self._account_of(self._period(rows.interval * self.interval_us))
        account.rows += rows.rows
        first, stays = np.searchsorted(rows.panes, (self._first_open(self.base), self._stays_from())).tolist()
        if first < stays:
            middle = rows.interval * self.interval_us + self.interval_us // 2
            self._account_leaving(rows.panes[first:stays], rows.pane_rows[first:stays], middle)
        self.arrived += int(rows.pane_rows[stays:].sum())
        self.hold(rows.panes, rows.pane_rows)
        watermark = self.watermark()
        if watermark > NEVER:
            keep = int(np.searchsorted(self.panes, self._first_open(watermark)))
            self.panes, self.pane_rows = self.panes[keep:], self.pane_rows[keep:]

    def _first_open(self, watermark_us: int) -> int:
        """Return the first pane of a window that is open at a watermark."""
        return (self.grid.last_closed(watermark_us) + 1) * self.grid.slide_us // self.grid.pane_us

    def _stays_from(self) -> int:
        """Return the first pane whose last window does not close before the end of the current interval."""
        assert self.interval is not None
        watermark = NEVER if self.slack >= FOREVER else (self.interval + 1) * self.interval_us - self.slack - 1
        return self._first_open(max(self.base, watermark))

    def _held_until(self, panes: Int64) -> Int64:
        """Return when the rows of panes leave, if the slack stays as it is."""
        return rows_held.held_until(self.grid.end(self.grid.last_of(panes * self.grid.pane_us)), self.slack)

    def _account_leaving(self, panes: Int64, rows: Int64, from_us: int) -> None:
        """Account for rows, held from a time on, that leave before the end of the current interval."""
        if self.definition == rows_held.CURRENT:
            assert self.interval is not None
            start = self.interval * self.interval_us
            area, _ = rows_held.held_between(self._held_until(panes), rows, from_us, start + self.interval_us)
            self._account_of(self._period(start)).held_area += area

    def _account_gap(self, account: SlackAccount, from_us: int, to_us: int) -> None:
        """Account for a part of the gap after the current interval, during which rows leave."""
        area, open_us = rows_held.held_between(self._held_until(self.panes), self.pane_rows, from_us, to_us)
        account.held_area += area
        account.weight_us += open_us

    def _account(self, account: SlackAccount, until_us: int) -> None:
        """Account for the current interval, up to a time, unless that has been done."""
        assert self.interval is not None
        weight_us = until_us - max(self.interval * self.interval_us, self.accounted_us)
        if weight_us > 0:
            self._account_rows(account, weight_us)
            self._account_slack(account, weight_us)

    def _account_rows(self, account: SlackAccount, weight_us: int) -> None:
        """Account for the rows held during so much of the current interval; some that leave in it are in already."""
        held = int(self.pane_rows.sum())
        account.held_max = max(account.held_max, held)
        account.weight_us += weight_us
        if self.definition == rows_held.CURRENT:
            staying = int(self.pane_rows[np.searchsorted(self.panes, self._stays_from()) :].sum())
            account.held_area += staying * weight_us - self.arrived * (weight_us // 2)
        else:
            account.held_area += held * weight_us

    def _account_slack(self, account: SlackAccount, weight_us: int) -> None:
        if self.slack < FOREVER and weight_us > 0:
            account.slack_area += self.slack * weight_us
            account.slack_weight_us += weight_us

    def account(self, period: int, *, as_of_now: bool = False) -> SlackAccount:
        """Return a copy of one period's account; `as_of_now`: as if stream time stopped here."""
        account = self.accounts.get(period) or SlackAccount()
        copy = SlackAccount(**vars(account))
        if as_of_now and self.interval is not None and self._period(self.interval * self.interval_us) == period:
            self._account(copy, max(self.t_last_us, self.interval * self.interval_us + 1))
        return copy

    def _account_of(self, period: int) -> SlackAccount:
        return self.accounts.setdefault(period, SlackAccount())

    def _period(self, time_us: int) -> int:
        return time_us // self.period_us * self.period_us

    def to_dict(self) -> ControlState:
        """Return the state as JSON, with those of the schedule and of the policy."""
        return {
            **self.schedule.to_dict(),
            "t_last_us": self.t_last_us,
            "base": self.base,
            "slack": self.slack,
            "booked_us": self.accounted_us,
            "closings": [list(pair) for pair in self.slacks],
            "panes": self.panes.tolist(),
            "pane_rows": self.pane_rows.tolist(),
            "accounts": {str(start): list(vars(account).values()) for start, account in self.accounts.items()},
            "arrived": self.arrived,
            "rows_held": self.definition,
            "policy": self.policy.to_dict(),
        }

    @classmethod
    def from_dict(
        cls, state: ControlState, grid: Grid, period_us: int, policy: SlackPolicy, observe_us: int | None = None
    ) -> WindowControl:
        """Continue from the state that `to_dict` wrote, with a `policy` restored by its own ``from_dict``."""
        control = cls(
            grid,
            period_us,
            policy,
            observe_us,
            t_last_us=state["t_last_us"],
            base=state["base"],
            slack=state["slack"],
            accounted_us=state["booked_us"],
            slacks=[(int(watermark), int(slack)) for watermark, slack in state["closings"]],
            panes=np.array(state["panes"], np.int64),
            pane_rows=np.array(state["pane_rows"], np.int64),
            accounts={int(start): SlackAccount(*values) for start, values in state["accounts"].items()},
            arrived=state.get("arrived", 0),
            definition=state.get("rows_held", 0),
        )
        observed = policy.needs_observation, policy.provisional
        control.schedule = ObservationSchedule.from_dict(state, grid, *observed, observe_us)
        return control
