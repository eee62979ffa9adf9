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

How windows are looked at is :mod:`latecomer.core.looks`; of those with very many groups, some groups are: :mod:`latecomer.core.thinning`.

Ordering: arrivals in any order inside an interval, intervals in order of stream time. Cost: O(1) per interval and window.
State: rows per pane of the open windows, windows not yet observed, one account per open period.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from latecomer.core.histogram import merge_counts
from latecomer.core.time import FOREVER, NEVER

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

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


@dataclass(frozen=True)
class Grid:
    """Half-open windows ``[m * slide, m * slide + size)`` by their number `m`, and panes of ``gcd(size, slide)``."""

    size_us: int
    slide_us: int

    @property
    def pane_us(self) -> int:
        """Width of a pane: the largest that never straddles a window's edge."""
        return math.gcd(self.size_us, self.slide_us)

    @property
    def granularity_us(self) -> int:
        """Resolution of waits: a divisor of the pane, about a five-hundredth of it, at least a microsecond."""
        return next((self.pane_us // n for n in (500, 400, 250, 200, 100, 50, 10) if self.pane_us % n == 0), 1)

    @property
    def per_row(self) -> int:
        """Windows that hold a row, at most."""
        return -(-self.size_us // self.slide_us)

    def end(self, window: Any) -> Any:
        """End of a window (int or int64 array)."""
        return window * self.slide_us + self.size_us

    def last_closed(self, watermark_us: int) -> int:
        """Number of the last window whose end the watermark has reached."""
        return (watermark_us - self.size_us) // self.slide_us

    def first_of(self, time_us: Any) -> Any:
        """Number of the first window that holds a time (int or int64 array)."""
        return (time_us - self.size_us) // self.slide_us + 1

    def last_of(self, time_us: Any) -> Any:
        """Number of the last window that holds a time (int or int64 array)."""
        return time_us // self.slide_us


@dataclass(frozen=True)
class Observed:
    """What is known about one window when its observation is over.

    Attributes
    ----------
    window : int
        Its number.
    required_us : int64[n]
        Slack each contribution requires: 0, or the least multiple of the granularity above its wait.
    weight : float64[n]
        Contributions with that requirement.
    total : float
        All contributions, those that required nothing included.
    needed_coverage : float
        For policies that steer by coverage: least share of its rows that keeps the promise (1 where it does not apply).
    final : bool
        False: provisional, the window will be shown again with all that came until then.
    """

    window: int
    required_us: Int64
    weight: Float64
    total: float
    needed_coverage: float = 1.0
    final: bool = True

    def lost(self, slack_us: int) -> float:
        """Contributions that the slack would have lost."""
        return float(self.weight[self.required_us > slack_us].sum())


class SlackPolicy(Protocol):
    """Chooses the slack; deterministic, JSON-able state."""

    needs_observation: bool
    provisional: bool

    def delays(self, largest_us: int) -> None:
        """The largest delay of a complete interval."""

    def observe(self, seen: Observed, slack_us: int, interval: int) -> None:
        """One window, in order, whose observation is over or (if `provisional`) goes on; `slack_us`: in force when it closed."""

    def choose(self, interval: int) -> int:
        """Slack in us for an interval; `FOREVER` closes nothing."""

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `to_dict`'s value."""


@dataclass(frozen=True)
class IntervalRows:
    """One interval of one shard: last stream time, largest delay, rows, and rows by pane (int64 arrays)."""

    interval: int
    t_last_us: int
    delay_us: int
    rows: int
    panes: Int64
    pane_rows: Int64


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

        What is known of them then: :func:`latecomer.core.looks.spans_of`.
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


@dataclass
class SlackAccount:
    """Rows held and slack over one period of stream time. Integrals over stream time, in row-us and us."""

    held_area: int = 0
    weight_us: int = 0
    held_max: int = 0
    slack_area: int = 0
    slack_weight_us: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Placement:
    """The control plane's decisions: arrays with one entry per interval, int64 us. ``W = max(base, T - slack)``."""

    interval: Int64
    base: Int64
    slack: Int64


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
        """Take in one micro-batch's intervals, in order; `observed` holds what :meth:`schedule` asked for."""
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
