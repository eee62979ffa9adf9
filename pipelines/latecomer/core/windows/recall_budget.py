"""The recall budget of windows: what `run` itself publishes of the answers that late rows change, and when.

A window is answered when the watermark reaches its end. Rows that come later are late for it and *miss* results: rows
of a theta join, matches where they are counted, elements of a membership. `repair` publishes these in bulk; `run`
publishes them, which is called *recall*, where the recall of a period would otherwise end below its target. The stored
events still hold every row, so this needs no more memory than a wait does.

Answers that are replaced, of aggregates and top-k, are *moved* by late rows; the kind says when: the error of the
newest published answer is not below the query's, or a late row is among the k best. A moved answer is published again
at once, as its next revision. That is the same rule with moved answers for results and a target of 1.

The rule
--------
*Steps.* Stream time is cut into the intervals of the control plane, one slide each. A step is complete when the first
arrival of a later interval comes, or the input ends. That arrival is the step's *completion*, and recalled results are
published by it.

*Open periods.* A window belongs to the period that holds its last microsecond. A period is open in a step if, when the
step began, the watermark had not yet passed the end of the following period: so rows have one more period of time to
come, after the wait of the period's last window. A flush closes every period that has an answer.

*Counts.* For an open period ``p``, ``published(p)`` are the results that `run` has published, on time or by recall, and
``missed(p)`` are the other results of the rows so far: late rows of open steps brought them. Both are counted, not
estimated: a result belongs to the step of the last of its late rows. When a step is complete in which `p` missed some::

    if published(p) < target * (published(p) + missed(p)):  recall all that p has missed

*Why it suffices.* Results on time raise both sides of the inequality, the left one faster. Missed results raise the
right one alone; then the inequality is tested, and a recall makes both sides the same but for the target. So
``published >= target * (published + missed)`` holds after every step, and when the period closes, whatever arrives. No
property of the delays is used. A recall publishes the whole backlog, so the next one is due only once the period has
grown by more than ``1 - target``: their number grows with the logarithm of the period's results, not with late rows.

*Cuts.* Steps, completions and open periods are functions of the arrival order, and the counts are sums over arrivals.
So the decisions do not depend on where micro-batches are cut.

*Two writers.* A recall of `p` at completion `s` has published all results of `p` of rows before `s`; `repair` leaves
out late rows of `p` that came before its last recall. It begins with none that `run` may still recall:
`RecallBudget.decided_to` is the first such row. So the answers of a window are those on time, then recalls, then
corrections, and their revisions count up in that order. A `repair --flush` while no `run` is at work takes all late
rows. `run` reads that in its next plan, and counts their results as published: they came out before the period closed.

Late rows that moved no answer are left to repair. So where answers are replaced, repair leaves alone *all* late rows
since the first of an open period, until the period is closed. A revision at completion `s` is the answer over all rows
before `s`; repair leaves these rows out for that answer.

The rule is first published here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from latecomer.core.arrivals import ArrivalBlocks, Arrivals
from latecomer.core.time import FOREVER, NEVER
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import WatermarkTable
from latecomer.core.windows.observation import every_number

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Steps:
    """The steps that begin in a micro-batch.

    Attributes
    ----------
    begins : int64[n]
        The first arrival of each, increasing: it completes the step before.
    time_us : int64[n]
        Stream time at that arrival.
    base_us : int64[n]
        The watermark when the step began.
    flush : (seq, time_us) or None
        The number of the arrival that would come next, which completes the last step, and stream time; None where the
        input goes on.
    """

    begins: Int64
    time_us: Int64
    base_us: Int64
    flush: tuple[int, int] | None = None

    def of(self, seq: Int64) -> Int64:
        """Return the place of the step of each arrival in ``[the step that goes on, *begins]``, int64[m]."""
        return np.searchsorted(self.begins, seq, side="right")

    def completion(self, seq: Int64) -> Int64:
        """Return the completion of the step of each arrival; `FOREVER` where the step is not complete, int64[m]."""
        last = FOREVER if self.flush is None else self.flush[0]
        return np.append(self.begins, last)[self.of(seq)]

    def time_at(self, completion: int) -> int:
        """Return stream time (us) at a completion."""
        if self.flush is not None and completion == self.flush[0]:
            return self.flush[1]
        return int(self.time_us[np.searchsorted(self.begins, completion)])


def steps_of(
    arrivals: ArrivalBlocks, table: WatermarkTable, interval: int | None, slide_us: int, flush: tuple[int, int] | None
) -> Steps:
    """Find the steps that begin in a micro-batch of one shard.

    Parameters
    ----------
    arrivals, table
        The arrivals, and the watermark in each of their intervals.
    interval
        The interval of stream time before them; None: there was none.
    flush
        As in :class:`Steps`.
    """
    blocks = arrivals.of_blocks(partial(_entries, slide_us=slide_us))
    seq, time = (np.concatenate(column) for column in zip(*blocks, strict=True))
    number = time // slide_us
    enters = np.diff(number, prepend=NEVER if interval is None else interval) > 0
    base = table.base[np.searchsorted(table.interval, number[enters])]
    return Steps(seq[enters], time[enters], base, flush)


def _entries(arrivals: Arrivals, slide_us: int) -> tuple[Int64, Int64]:
    """Return ``seq`` and stream time of the first arrival of a block in each interval."""
    number = np.where(arrivals.stream_time_us > NEVER, arrivals.stream_time_us // slide_us, NEVER)
    at = np.flatnonzero(np.diff(number, prepend=NEVER) > 0)
    return arrivals.seq[at], arrivals.stream_time_us[at]


@dataclass(frozen=True)
class LateWindows:
    """Late rows with the windows of one period that missed them; a row of several periods is there once for each.

    Attributes
    ----------
    seq, period_us, first, last : int64[n]
        The row, the period's start, and the first and last of the windows.
    """

    seq: Int64
    period_us: Int64
    first: Int64
    last: Int64

    @staticmethod
    def of(seq: Int64, first: Int64, last: Int64, grid: Grid, period_us: int) -> LateWindows:
        """Divide the windows ``[first, last]`` that missed each row, int64[m] each, by period."""
        periods = ((grid.end(number) - 1) // period_us for number in (first, last))
        at, period = every_number(*periods)
        low, high = windows_of_period(grid, period, period_us)
        low, high = np.maximum(low, first[at]), np.minimum(high, last[at])
        some = low <= high  # a period shorter than a slide may have no window
        return LateWindows(seq[at][some], period[some] * period_us, low[some], high[some])

    def where(self, chosen: NDArray[np.bool_]) -> LateWindows:
        """Return those of the entries."""
        return LateWindows(self.seq[chosen], self.period_us[chosen], self.first[chosen], self.last[chosen])


def windows_of_period(grid: Grid, period: Int64, period_us: int) -> tuple[Int64, Int64]:
    """Return the first and last window of periods, int64[n] both; `period` are starts divided by `period_us`."""
    first = -((grid.size_us - 1 - period * period_us) // grid.slide_us)
    last = ((period + 1) * period_us - grid.size_us) // grid.slide_us
    return first, last


class Amount(NamedTuple):
    """Results of a period (its start, us) that an arrival published, or that are missed at a completion."""

    seq: int
    period_us: int
    results: int


@dataclass
class OpenPeriod:
    """The results of an open period. The state stores the fields in this order.

    Attributes
    ----------
    published, missed
        Results that `run` has published, and results that it has not.
    late_from
        The first late row of the period that came in an open step and has not been recalled; -1: there is none. Where
        answers are replaced, the first that has not been repaired.
    """

    published: int = 0
    missed: int = 0
    late_from: int = -1


class RecallBudgetState(TypedDict):
    """The state of a `RecallBudget` as JSON."""

    step_from: int
    base_us: int
    closed_us: int
    flushed: dict[str, int]
    periods: dict[str, list[int]]


@dataclass
class RecallBudget:
    """The budget of one query: a state machine over steps of stream time; see the module docstring.

    Attributes
    ----------
    target
        The recall that every period has when it closes, in (0, 1].
    period_us
        Length of a period, microseconds.
    replaces
        Answers are replaced, so that a recall of some leaves the late rows of others to repair.
    step_from
        The first arrival of the step that is not complete, or the first that is not repaired in it.
    base_us
        The watermark when that step began.
    closed_us
        Periods that end at this time or before were closed by a flush.
    flushed
        Results that the last flush published, by period (us), if it was the end of the last micro-batch: the next
        micro-batch finds them among its own, because they carry the number of its first arrival.
    periods
        The open periods by their start in us.
    """

    target: float
    period_us: int
    replaces: bool = False
    step_from: int = 0
    base_us: int = NEVER
    closed_us: int = NEVER
    flushed: dict[int, int] = field(default_factory=dict)
    periods: dict[int, OpenPeriod] = field(default_factory=dict)

    @property
    def decided_to(self) -> int:
        """The first late row that `run` may still recall; `FOREVER`: none."""
        return min((period.late_from for period in self.periods.values() if period.late_from >= 0), default=FOREVER)

    @property
    def closed_to_us(self) -> int:
        """The time (us) such that the periods that end at it or before are closed."""
        return max(self.base_us - self.period_us, self.closed_us)

    def open_rows(self, late: LateWindows, steps: Steps) -> NDArray[np.bool_]:
        """Return, per entry, whether its period was open in the step of its row."""
        base = np.concatenate([[self.base_us], steps.base_us])[steps.of(late.seq)]
        end = late.period_us + self.period_us
        open_: NDArray[np.bool_] = (end > self.closed_us) & (end + self.period_us > base)
        return open_

    def completions(self, late: LateWindows, steps: Steps) -> Int64:
        """Return, per entry, the completion of its row's step.

        It is `FOREVER` where the step is not complete, or the period was not open in it.
        """
        return np.where(self.open_rows(late, steps), steps.completion(late.seq), FOREVER)

    def take_repaired(self, repaired_to: int, late: LateWindows) -> dict[int, dict[str, int]]:
        """Take in that a flush of `repair` published what late rows up to an arrival added, before their period closed.

        `late` are the rows after it, and before the micro-batch. Returns what is to be added to the accounts of periods
        (us): ``repaired_early``.
        """
        counts: dict[int, dict[str, int]] = {}
        for start, account in self.periods.items():
            if not 0 <= account.late_from <= repaired_to:
                continue
            rest = late.seq[late.period_us == start]
            account.late_from = int(rest.min()) if len(rest) else -1
            if not len(rest) and account.missed:
                _add(counts, start, repaired_early=account.missed)
                account.published, account.missed = account.published + account.missed, 0
        self.step_from = max(self.step_from, repaired_to + 1)
        return counts

    def advance(
        self, steps: Steps, on_time: Sequence[Amount], late: LateWindows, missed: Sequence[Amount]
    ) -> tuple[dict[int, list[int]], dict[int, dict[str, int]]]:
        """Advance over the steps of one micro-batch, in order.

        Parameters
        ----------
        on_time
            Results published on time, by the arrival that published them; those of a flush by its number.
        late
            The late rows since `step_from` whose period was open in their step.
        missed
            Results that these rows brought, by the completion of the step of the last late row of each.

        Returns
        -------
        recalls : dict
            Period (us) -> completions at which all that it has missed is published, increasing.
        counts : dict
            Period (us) -> what is to be added to its account: ``recalled``, and ``due`` and ``unpublished`` when it
            closes, in results.
        """
        counts: dict[int, dict[str, int]] = {}
        recalls: dict[int, list[int]] = {}
        published: dict[int, list[tuple[int, int]]] = {}
        for seq, period, results in on_time:
            if period + self.period_us <= self.closed_us:
                _add(counts, period, due=results)
            else:
                published.setdefault(period, []).append((seq, results))
        of_flush = None if steps.flush is None else steps.flush[0]
        by_period: dict[int, list[tuple[int, int]]] = {}
        for seq, period, results in missed:
            by_period.setdefault(period, []).append((seq, results))
        for period in sorted(published.keys() | by_period.keys() | set(np.unique(late.period_us).tolist())):
            account = self.periods.setdefault(period, OpenPeriod())
            answers = iter(sorted(published.get(period, [])))
            following = next(answers, None)
            for completion, results in sorted(by_period.get(period, [])):
                # windows that a flush closes are closed before it ends the last step
                while following is not None and (following[0] < completion or completion == of_flush):
                    account.published += following[1]
                    following = next(answers, None)
                account.missed += results
                if results and account.published / (account.published + account.missed) < self.target:
                    _add(counts, period, recalled=account.missed)
                    account.published, account.missed = account.published + account.missed, 0
                    recalls.setdefault(period, []).append(completion)
            if following is not None:
                account.published += following[1] + sum(results for _, results in answers)
        self._note_late(late, recalls)
        self._end(steps, on_time, counts)
        return recalls, counts

    def _note_late(self, late: LateWindows, recalls: Mapping[int, Sequence[int]]) -> None:
        """Find the first late row of each period that has not been recalled; no recall is of all rows if `replaces`."""
        if self.replaces:
            recalls = {}
        for period in recalls:
            self.periods[period].late_from = -1
        periods, place = np.unique(late.period_us, return_inverse=True)
        since = np.array([recalls.get(period, (0,))[-1] for period in periods.tolist()], np.int64)
        rest = late.seq >= since[place]
        first = np.full(len(periods), FOREVER)
        np.minimum.at(first, place[rest], late.seq[rest])
        for period, seq in zip(periods.tolist(), first.tolist(), strict=True):
            account = self.periods[period]
            if seq < FOREVER and account.late_from < 0:  # rows come in order, so an earlier one stays the first
                account.late_from = seq

    def _end(self, steps: Steps, on_time: Sequence[Amount], counts: dict[int, dict[str, int]]) -> None:
        """Go on to the last step, and close the periods that are not open in it."""
        if len(steps.begins):
            self.step_from, self.base_us = int(steps.begins[-1]), int(steps.base_us[-1])
        self.flushed = {}
        closed = [period for period in self.periods if period + 2 * self.period_us <= self.base_us]
        if steps.flush is not None:
            self.step_from = steps.flush[0]
            for seq, period, results in on_time:
                if seq == steps.flush[0]:
                    self.flushed[period] = self.flushed.get(period, 0) + results
            closed = list(self.periods)
            self.closed_us = max([self.closed_us, *(period + self.period_us for period in closed)])
        for period in closed:
            account = self.periods.pop(period)
            if due := account.published + account.missed:
                _add(counts, period, due=due, unpublished=account.missed)

    def to_dict(self) -> RecallBudgetState:
        """Return the state as JSON, without what the constructor gets."""
        return {
            "step_from": self.step_from,
            "base_us": self.base_us,
            "closed_us": self.closed_us,
            "flushed": {str(period): results for period, results in self.flushed.items()},
            "periods": {str(start): list(vars(period).values()) for start, period in self.periods.items()},
        }

    @classmethod
    def from_dict(
        cls, state: RecallBudgetState, target: float, period_us: int, *, replaces: bool = False
    ) -> RecallBudget:
        """Continue from the state that `to_dict` wrote."""
        return cls(
            target,
            period_us,
            replaces,
            state["step_from"],
            state["base_us"],
            state["closed_us"],
            {int(period): results for period, results in state["flushed"].items()},
            {int(start): OpenPeriod(*values) for start, values in state["periods"].items()},
        )


def _add(counts: dict[int, dict[str, int]], period: int, **amounts: int) -> None:
    account = counts.setdefault(period, {})
    for name, amount in amounts.items():
        account[name] = account.get(name, 0) + amount
