"""The recall budget of a join: which missed pairs `run` publishes itself, so that every period reaches its target.

A pair is *missed* when its earlier row was behind the horizon (:mod:`latecomer.core.join.control`). The stored events
still hold that row, so the pair can be published at any time: by `repair` in bulk, or by `run` at once, which is called
*recall* here. The budget says when `run` has to.

The rule
--------
A pair belongs to the period `p` and the adaptation interval `j` of the stream time at its *later* row. When interval
`j` is complete, its missed pairs are counted, exactly. With ``due(p)`` the pairs of the period so far, produced or
missed, and ``unpublished(p)`` those of them that were missed and not recalled::

    if due(p) - unpublished(p) - missed(p, j) < target * due(p):  recall all missed pairs of (p, j)
    else:                                                         unpublished(p) += missed(p, j)

*Why it suffices.* Suppose that ``due - unpublished >= target * due`` held before interval `j`. Its pairs raise ``due``.
If they were all produced or are all recalled, both sides of the inequality grow, the left one faster. If not, the
inequality was tested and holds. So it holds at the end of every interval of every period, whatever arrives. A period
has no due pair that arrives after it is over, so its recall is final when it closes. No property of the delays is used.

*Cuts.* An interval is complete when the first arrival of a later one is seen, or the input ends. Its pairs are sums
over arrivals, so the parts of an interval that micro-batches cut add up, and every decision is the same for any cut.
Recalled pairs are published by the arrival that completes their interval: they wait for at most one interval of stream
time in which something arrives.

*Two writers.* `repair` leaves the late rows of the interval that is not complete alone, since `run` may yet recall
their pairs. A `repair --flush` while no `run` is at work takes them too. `run` reads that in its next plan, and counts
their pairs as published: they came out before their interval was complete.

Rows recalled
-------------
To count missed pairs, the stored rows are read that lie behind the horizon and in the window of a late row. Per
interval and stream they are the rows in a union of spans of event time, and their number is estimated by the length of
the union times the stream's mean rate until the interval began. These rows count as held during the interval.

The rule is first published here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from latecomer.core.arrays.composite_keys import run_bounds, sort_order
from latecomer.core.arrays.sparse_counts import Int64Array
from latecomer.core.gamma_batches import spans

PAIR_COUNTS = ("interval", "period_us", "produced", "missed", "missed_offset_us")
"""Columns of counted pairs, int64[n, 5].

The interval and the period (its start) of the later row; pairs produced and missed; and, summed over the missed ones,
the stream time at the later row minus the interval's start.
"""


def pair_counts(
    stream_time_us: Int64Array, produced: NDArray[np.bool_], *, interval_us: int, period_us: int
) -> Int64Array:
    """Count pairs, with the columns of `PAIR_COUNTS`.

    Parameters
    ----------
    stream_time_us, produced
        int64[m] and bool[m] per pair: stream time at its later row, and whether it was produced.
    interval_us, period_us
        `L` and `P` in microseconds.
    """
    interval, period = stream_time_us // interval_us, stream_time_us // period_us * period_us
    order = sort_order(interval, period)
    interval, period, missed = interval[order], period[order], ~produced[order]
    offset_us = (stream_time_us[order] - interval * interval_us) * missed
    bounds = run_bounds(interval, period)
    first = bounds[:-1]
    if not len(first):
        return np.empty((0, len(PAIR_COUNTS)), np.int64)
    missed_pairs, offsets_us = (np.add.reduceat(column.astype(np.int64), first) for column in (missed, offset_us))
    return np.stack([interval[first], period[first], np.diff(bounds) - missed_pairs, missed_pairs, offsets_us], axis=1)


class IntervalEntry(NamedTuple):
    """The first arrival of an interval in a micro-batch.

    Attributes
    ----------
    interval
        The interval's number.
    seq, stream_time_us
        The arrival, and stream time at it.
    rows_before
        Rows of either stream that arrived before the interval, left and right; those of the micro-batch where it
        continues an interval, which nobody reads.
    """

    interval: int
    seq: int
    stream_time_us: int
    rows_before: tuple[int, int]


class LateSpans(NamedTuple):
    """The spans of one stream's event time in which late rows of the other stream have missed partners.

    Attributes
    ----------
    interval
        int64[n], the interval in which the late row arrived, increasing.
    low_us, high_us
        int64[n], closed ranges.
    """

    interval: Int64Array
    low_us: Int64Array
    high_us: Int64Array

    @classmethod
    def behind(
        cls,
        horizon_us: Int64Array,
        event_time_us: Int64Array,
        stream_time_us: Int64Array,
        *,
        window_us: int,
        interval_us: int,
    ) -> LateSpans:
        """Return the part of each late row's window that is behind the horizon at its arrival; int64[n] us each."""
        reach = np.minimum(horizon_us, event_time_us + window_us)
        return cls(stream_time_us // interval_us, event_time_us - window_us, reach)

    def of(self, interval: int) -> list[tuple[int, int]]:
        """Return the spans of one interval."""
        first, last = np.searchsorted(self.interval, [interval, interval + 1])
        return list(zip(self.low_us[first:last].tolist(), self.high_us[first:last].tolist(), strict=True))


@dataclass(frozen=True)
class Recall:
    """A decision to publish the missed pairs of one interval and period.

    Attributes
    ----------
    interval, period_us
        The interval and the period (its start) of the pairs' later rows.
    seq_from
        The first arrival among the later rows.
    published_seq
        The arrival that completed the interval; at the end of the input, the arrival that would have come next.
    pairs
        The number of the pairs.
    """

    interval: int
    period_us: int
    seq_from: int
    published_seq: int
    pairs: int


@dataclass
class PeriodBudget:
    """The pairs of one open period, and rows recalled in it. The state stores the fields in this order.

    Attributes
    ----------
    due
        Pairs so far, produced or missed.
    unpublished
        Missed pairs that were left to `repair`.
    recalled
        Missed pairs that `run` has published.
    repaired_early
        Missed pairs that a `repair` published before their interval was complete.
    wait_us
        The waits of recalled pairs, summed.
    recalled_area
        Rows recalled times us.
    """

    due: int = 0
    unpublished: int = 0
    recalled: int = 0
    repaired_early: int = 0
    wait_us: int = 0
    recalled_area: int = 0


@dataclass
class OpenInterval:
    """The interval that is not complete.

    Attributes
    ----------
    number
        The interval.
    seq_from
        The first arrival whose missed pairs are not decided.
    rows_before
        Rows of either stream that arrived before the interval.
    missed
        Per period (us): missed pairs that are not decided, and the sum of their offsets (us) from the interval's start.
    spans
        Per stream: disjoint closed ranges (us) that its late rows touched, ascending.
    """

    number: int
    seq_from: int
    rows_before: tuple[int, int]
    missed: dict[int, tuple[int, int]] = field(default_factory=dict)
    spans: list[list[tuple[int, int]]] = field(default_factory=lambda: [[], []])


class OpenIntervalState(TypedDict):
    """The state of an `OpenInterval` as JSON."""

    number: int
    seq_from: int
    rows_before: list[int]
    missed: dict[str, list[int]]
    spans: list[list[list[int]]]


class RecallBudgetState(TypedDict):
    """The state of a `RecallBudget` as JSON."""

    first_us: int | None
    periods: dict[str, list[int]]
    open: OpenIntervalState | None


class RecallBudget:
    """The budget of one join: a state machine over intervals of stream time; see the module docstring.

    Parameters
    ----------
    target
        The recall that every period reaches, in (0, 1].
    period_us, interval_us
        `P` and `L` in microseconds.

    Attributes
    ----------
    first_us
        The start of the first interval (us); None before it.
    periods
        The budgets of open periods, by their start in us.
    open
        The interval that is not complete; None before the first.
    """

    def __init__(self, target: float, *, period_us: int, interval_us: int) -> None:
        self.target, self.period_us, self.interval_us = target, period_us, interval_us
        self.first_us: int | None = None
        self.periods: dict[int, PeriodBudget] = {}
        self.open: OpenInterval | None = None

    @property
    def decided_to(self) -> int:
        """The first arrival whose missed pairs are not decided; 0 before the first interval."""
        return 0 if self.open is None else self.open.seq_from

    @property
    def awaits_decision(self) -> bool:
        """True where the interval that is not complete has missed pairs."""
        return self.open is not None and bool(self.open.missed)

    def note_repaired(self, repaired_to: int, seq_from: int) -> None:
        """Count undecided pairs as published where `repair` has repaired late rows up to arrival `repaired_to`.

        Such a repair has taken all arrivals before `seq_from`, the first of the next micro-batch.
        """
        if self.open is None or repaired_to < self.open.seq_from:
            return
        for period, (pairs, _) in self.open.missed.items():
            self.budget(period).repaired_early += pairs
        self.open.missed, self.open.seq_from = {}, seq_from

    def step(
        self,
        entries: Sequence[IntervalEntry],
        counts: Int64Array | None,
        late: tuple[LateSpans, LateSpans],
    ) -> list[Recall]:
        """Advance over the intervals of one micro-batch, in order, and return the decisions to recall.

        Parameters
        ----------
        entries
            One per interval that has an arrival.
        counts
            Pairs whose later row is in the micro-batch, with the columns of `PAIR_COUNTS`; None where none was missed:
            then `add_produced` counts the pairs, and no decision depends on them.
        late
            Per stream, the spans that late rows of the other one touched.
        """
        by_interval: dict[int, list[list[int]]] = {}
        for interval, *rest in [] if counts is None else counts.tolist():
            by_interval.setdefault(interval, []).append(rest)
        recalls: list[Recall] = []
        for entry in entries:
            if self.open is None or entry.interval > self.open.number:
                recalls += self._complete(entry.seq, entry.stream_time_us)
                self.open = OpenInterval(entry.interval, entry.seq, entry.rows_before)
            if self.first_us is None:
                self.first_us = entry.interval * self.interval_us
            for period, produced, missed, offset_us in by_interval.get(entry.interval, ()):
                self.budget(period).due += produced + missed
                if missed:
                    pairs, offsets_us = self.open.missed.get(period, (0, 0))
                    self.open.missed[period] = pairs + missed, offsets_us + offset_us
            for side, touched in enumerate(late):
                if new := touched.of(entry.interval):
                    low, high = np.array([*self.open.spans[side], *new], np.int64).T
                    self.open.spans[side] = spans(low, high, most=len(low))
        return recalls

    def add_produced(self, produced: dict[int, int]) -> None:
        """Count the pairs of a micro-batch that missed none, by period (us)."""
        for period, pairs in produced.items():
            self.budget(period).due += pairs

    def flush(self, published_seq: int, stream_time_us: int) -> list[Recall]:
        """Decide about the interval that is not complete, as the input ends at this stream time.

        Pairs of later arrivals in the same interval are decided anew.
        """
        if self.open is None:
            return []
        recalls = self._decide(published_seq, stream_time_us)
        self.open.missed, self.open.seq_from = {}, published_seq
        return recalls

    def budget(self, period_us: int) -> PeriodBudget:
        """Return the budget of a period, which is opened where it is new."""
        return self.periods.setdefault(period_us, PeriodBudget())

    def account(self, period_us: int) -> PeriodBudget:
        """Return a copy of the budget of a period as of now.

        It has the rows recalled in the interval that is not complete, and lacks the pairs that are not decided.
        """
        budget = replace(self.periods.get(period_us, PeriodBudget()))
        if self.open is not None:
            budget.due -= self.open.missed.get(period_us, (0, 0))[0]
            if self._period_of(self.open.number) == period_us:
                budget.recalled_area += self._open_area()
        return budget

    def _complete(self, published_seq: int, stream_time_us: int) -> list[Recall]:
        if self.open is None:
            return []
        recalls = self._decide(published_seq, stream_time_us)
        if area := self._open_area():
            self.budget(self._period_of(self.open.number)).recalled_area += area
        return recalls

    def _decide(self, published_seq: int, stream_time_us: int) -> list[Recall]:
        """Apply the rule to the open interval, period by period."""
        assert self.open is not None
        recalls = []
        start_us = self.open.number * self.interval_us
        for period, (pairs, offsets_us) in sorted(self.open.missed.items()):
            budget = self.budget(period)
            if (budget.due - budget.unpublished - pairs) / budget.due >= self.target:
                budget.unpublished += pairs
                continue
            budget.recalled += pairs
            budget.wait_us += (stream_time_us - start_us) * pairs - offsets_us
            recalls.append(Recall(self.open.number, period, self.open.seq_from, published_seq, pairs))
        return recalls

    def _open_area(self) -> int:
        """Return the rows recalled in the open interval, times its length."""
        assert self.open is not None and self.first_us is not None
        passed_us = self.open.number * self.interval_us - self.first_us
        if passed_us <= 0:
            return 0
        touched_us = [sum(high - low + 1 for low, high in touched) for touched in self.open.spans]
        rows = zip(touched_us, self.open.rows_before, strict=True)
        return sum(length_us * before * self.interval_us // passed_us for length_us, before in rows)

    def _period_of(self, interval: int) -> int:
        return interval * self.interval_us // self.period_us * self.period_us

    def to_dict(self) -> RecallBudgetState:
        """Return the state as JSON."""
        state: OpenIntervalState | None = None
        if self.open is not None:
            state = {
                "number": self.open.number,
                "seq_from": self.open.seq_from,
                "rows_before": list(self.open.rows_before),
                "missed": {str(period): list(missed) for period, missed in self.open.missed.items()},
                "spans": [[list(span) for span in touched] for touched in self.open.spans],
            }
        periods = {str(start): list(vars(budget).values()) for start, budget in self.periods.items()}
        return {"first_us": self.first_us, "periods": periods, "open": state}

    @classmethod
    def from_dict(cls, state: RecallBudgetState, target: float, *, period_us: int, interval_us: int) -> RecallBudget:
        """Continue from the state that `to_dict` wrote."""
        budget = cls(target, period_us=period_us, interval_us=interval_us)
        budget.first_us = state["first_us"]
        budget.periods = {int(start): PeriodBudget(*values) for start, values in state["periods"].items()}
        stored = state["open"]
        if stored is not None:
            left, right = stored["rows_before"]
            budget.open = OpenInterval(
                stored["number"],
                stored["seq_from"],
                (left, right),
                {int(period): (pairs, offset_us) for period, (pairs, offset_us) in stored["missed"].items()},
                [[(low, high) for low, high in touched] for touched in stored["spans"]],
            )
        return budget
