"""The join's control plane (QJoin): how far back each buffer of a join reaches, decided per interval of stream time.

The horizon
-----------
A join pairs rows of two streams with ``|r.ts - s.ts| <= w``. Each stream has a buffer. An arriving row is joined at
once with the opposite buffer, and is stored in its own. Stream time ``T(a)`` after arrival `a` is the lesser of the
streams' largest event times so far. Buffer X holds the rows of stream X whose event time is above the *horizon*::

    H_X(a) = running max of (T(a) - w - d_X(a))

A row that is not behind stream time, ``ts >= T``, has no partner below ``T - w``. The *extra retention* ``d_X`` of
buffer X keeps the partners of rows of the other stream that arrive less than ``d_X`` behind. The running maximum says
that a row which left its buffer does not come back. With `y` the later arrival of a pair and `x`, on stream X, the
earlier one::

    produced(x, y)  <=>  |x.ts - y.ts| <= w  and  predicate(x, y)  and  x.ts > H_X(seq_y)

This is the whole join, as a set. While ``d_X`` is constant a pair is produced if and only if ``d_X`` exceeds its
*required retention* ``T(seq_y) - w - x.ts``, which does not depend on ``d_X``: one pass over the data gives the recall
of every retention.

Example: with ``w = 2 s``, ``d_X = 1 s`` and ``T = 20 s`` the horizon is 17 s. A row with event time 18.5 s arrives,
1.5 s behind stream time. Its window is [16.5 s, 20.5 s], and it is joined with the rows above 17 s. Its pair with a row
at 16.5 s has a required retention of 1.5 s and is missed; `repair` finds it.

Decisions
---------
A :class:`RetentionPolicy` may change ``d_X`` only where stream time enters a new adaptation interval
``[j L, (j + 1) L)``. So inside interval `j` the horizon is a function of the stream time at the arrival of `y`::

    H_X(seq_y) = max(base_X[j], T(seq_y) - w - d_X[j]),   base_X[j] = max over i < j of (T_last[i] - w - d_X[i])

with ``T_last[i]`` the largest stream time at an arrival of interval `i`. Therefore the data plane is parallel: it
needs one short table, :class:`Horizons`, with ``(j, base, d)`` per stream.

A decision for interval `j` depends on complete intervals before `j` alone, and an interval is complete when the first
arrival of a later one is seen. The statistics of an interval are sums over rows and pairs, keyed by the interval of
the later arrival, so the parts of an interval that a micro-batch cut add up. Hence any cut into micro-batches gives
the same decisions. One count needs care: the data plane joins a micro-batch before the horizons inside it are decided,
and so may meet pairs whose earlier row has left its buffer. Pairs with a required retention of ``censored_from`` or
more, for which this is possible, are not counted.

Choices where the paper is silent
    Before the first full period every adaptive policy retains everything. Intervals without arrivals decide nothing.
    Rows held are counted at the end of each interval, in event-time buckets of `held_bucket_us`, and averaged over
    stream time. An arrival belongs to the period of its stream time; arrivals before all streams are seen belong to
    none.

References
----------
Wei, Li, Xu, Lv and Yang, "QJoin", Guangxi Sciences 27(3), 2020: section 1.2 for the buffers, section 1.4.1 for the
adaptation. The paper's buffer X spans ``d_x + w`` of event time, as ours does. A negative ``d_X``, down to ``-w``, is
ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias, TypedDict

import numpy as np
from numba import njit

from latecomer.core import rows_held
from latecomer.core.arrays.sparse_counts import Int64Array, SparseCounts, add_sparse, merge_counts
from latecomer.core.join.statistics import (
    SAMPLE_FRACTION,
    IntervalStats,
    IntervalStatsState,
    SideStats,
    exact_below,
    merge,
)
from latecomer.core.state import StateDocument
from latecomer.core.time import FOREVER, NEVER

SIDE, REQUIRED, DELAY, CANDIDATES, RESULTS, SAMPLED = range(6)
"""The columns of `IntervalSummary.cells`."""


class RetentionPolicy(Protocol):
    """A rule that chooses the extra retention of both buffers from the statistics of earlier intervals."""

    @property
    def needs_pairs(self) -> bool:
        """True if it reads results; otherwise the data plane counts no pairs."""

    @property
    def needs_candidates(self) -> bool:
        """True if it reads candidates and results by the delay of the arriving row."""

    @property
    def needs_lateness(self) -> bool:
        """True if rows are counted by lateness against stream time, not by the delay on their own stream."""

    @property
    def expires(self) -> bool:
        """True if rows leave their buffer."""

    def observe(self, stats: IntervalStats) -> None:
        """Learn from one complete interval: called in order, once per interval that has an arrival."""

    def choose(self, interval: int) -> tuple[int, int]:
        """Return ``(d_left, d_right)`` in microseconds for `interval`; `FOREVER` retains everything."""

    def to_dict(self) -> StateDocument:
        """Return the state as JSON; ``from_dict`` of the same class continues from it exactly."""


@dataclass(frozen=True)
class IntervalSummary:
    """The data plane's counts of one adaptation interval in one micro-batch.

    Attributes
    ----------
    interval
        The number `j`: stream time in ``[j L, (j + 1) L)``.
    t_last_us
        The largest stream time at the interval's arrivals in this micro-batch.
    arrived
        Per stream: event-time buckets ``floor(event_ts / held_bucket_us)`` of the interval's arrivals and rows in each.
    delays
        Per stream: buckets of delay or, where the policy needs that, of lateness, and the rows in each.
    cells
        int64[n, 6], one row per non-empty cell of (side of x, required bucket, delay bucket of y): those three, then
        candidates, results and sampled results (columns `SIDE` to `SAMPLED`). The delay bucket is -1 where the policy
        does not need it.
    """

    interval: int
    t_last_us: int
    arrived: tuple[SparseCounts, SparseCounts]
    delays: tuple[SparseCounts, SparseCounts]
    cells: Int64Array

    def stats(self, censored: list[int]) -> IntervalStats:
        """Return the counts below `censored` (a required bucket per side) as statistics for the policy.

        Whether a pair at or above it was counted depends on the cut into micro-batches. The deterministic sample does
        not depend on that, so sampled results are returned from every bucket.
        """
        sides = []
        cells = np.array(self.cells, np.int64, order="C")
        ordered, delays_known = _shape(cells)
        if not ordered:
            cells = cells[np.argsort(cells[:, REQUIRED])]
        for side in (0, 1):
            bucket, rows = self.delays[side]
            candidates = results = np.zeros(len(bucket), np.int64)
            if delays_known:
                met = cells[
                    (cells[:, SIDE] == 1 - side) & (cells[:, REQUIRED] < censored[1 - side]) & (cells[:, DELAY] >= 0)
                ]
                bucket, (rows, candidates, results) = add_sparse(
                    [bucket, met[:, DELAY]],
                    [rows, np.zeros(len(met), np.int64)],
                    [candidates, met[:, CANDIDATES]],
                    [results, met[:, RESULTS]],
                )
            bucket, rows = np.array(bucket, np.int64), np.array(rows, np.int64)
            by_required = _results(cells, side, censored[side])
            sides.append(SideStats(int(rows.sum()), bucket, rows, candidates, results, *by_required, censored[side]))
        return IntervalStats(self.interval, sides[0], sides[1])


@njit(cache=True)
def _shape(cells: Int64Array) -> tuple[bool, bool]:
    """Return whether the cells are in order of side and required bucket, and whether any delay bucket is known."""
    ordered, known = True, False
    for i in range(len(cells)):
        known |= cells[i, DELAY] >= 0
        if i and (
            cells[i, SIDE] < cells[i - 1, SIDE]
            or (cells[i, SIDE] == cells[i - 1, SIDE] and cells[i, REQUIRED] < cells[i - 1, REQUIRED])
        ):
            ordered = False
    return ordered, known


@njit(cache=True)
def _results(cells: Int64Array, side: int, censored: int) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return required buckets of one side's ordered cells, results below `censored` and sampled results in each."""
    bucket, pairs, sampled = (
        np.empty(len(cells), np.int64),
        np.empty(len(cells), np.int64),
        np.empty(len(cells), np.int64),
    )
    n = 0
    for i in range(len(cells)):
        if cells[i, SIDE] != side:
            continue
        counted = cells[i, RESULTS] if cells[i, REQUIRED] < censored else 0
        if n and bucket[n - 1] == cells[i, REQUIRED]:
            pairs[n - 1] += counted
            sampled[n - 1] += cells[i, SAMPLED]
        elif counted > 0 or cells[i, SAMPLED] > 0:
            bucket[n], pairs[n], sampled[n] = cells[i, REQUIRED], counted, cells[i, SAMPLED]
            n += 1
    return bucket[:n], pairs[:n], sampled[:n]


@dataclass(frozen=True)
class Horizons:
    """The decisions for one micro-batch: arrays of equal length, one entry per interval.

    Attributes
    ----------
    interval
        int64[n], increasing interval numbers.
    base, retention
        Per stream: int64[n] us, ``base_X`` and ``d_X`` of the module docstring.
    """

    interval: Int64Array
    base: tuple[Int64Array, Int64Array]
    retention: tuple[Int64Array, Int64Array]

    def at(self, side: int, stream_time_us: Int64Array, interval_us: int, window_us: int) -> Int64Array:
        """Return the horizon ``H_X`` of stream `side` at arrivals with the given stream times.

        Parameters
        ----------
        side
            0 (left) or 1 (right).
        stream_time_us
            int64[m] us; `NEVER` before all streams are seen.
        interval_us, window_us
            `L` and `w`.

        Returns
        -------
        int64[m]
            Microseconds; `NEVER` where there is no horizon yet.
        """
        if not len(self.interval):
            return np.full(len(stream_time_us), NEVER, np.int64)
        place = np.searchsorted(self.interval, np.floor_divide(stream_time_us, interval_us))
        place = np.minimum(place, len(self.interval) - 1)
        known = stream_time_us > NEVER
        horizon = np.full(len(stream_time_us), NEVER, np.int64)
        base, keep = self.base[side][place], self.retention[side][place]
        moving = np.where(keep >= FOREVER, NEVER, stream_time_us - window_us - np.where(keep >= FOREVER, 0, keep))
        horizon[known] = np.maximum(base, moving)[known]
        return horizon


@dataclass
class HeldRows:
    """The rows of one buffer by event-time bucket; rows leave from the low end as the horizon passes their bucket.

    Where `expires` is false no row leaves, and all are counted in one bucket: their buckets would grow for ever.

    Attributes
    ----------
    bucket_us
        The width of a bucket.
    buckets, rows
        int64[n], buckets in increasing order and the rows in each.
    count
        All rows held.
    """

    bucket_us: int
    buckets: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    rows: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    expires: bool = True

    def __post_init__(self) -> None:
        self.count = int(self.rows.sum())
        if not self.expires:
            self._collapse()

    def add(self, buckets: Int64Array, rows: Int64Array) -> int:
        """Add arrivals, whose buckets strictly increase, and return how many there are."""
        arrived = int(rows.sum())
        if arrived:
            self.count += arrived
            if self.expires:
                self.buckets, self.rows = merge_counts(self.buckets, self.rows, np.array(buckets), np.array(rows))
            else:
                self._collapse()
        return arrived

    def _collapse(self) -> None:
        self.buckets, self.rows = np.zeros(1, np.int64), np.array([self.count], np.int64)

    def expire(self, horizon_us: int) -> None:
        """Remove the buckets that lie wholly at or behind the horizon."""
        if horizon_us <= NEVER:
            return
        first = (horizon_us + 1) // self.bucket_us
        keep = int(self.buckets.searchsorted(first))
        if keep:
            self.count -= int(self.rows[:keep].sum())
            self.buckets, self.rows = self.buckets[keep:], self.rows[keep:]


def held_bucket_us(interval_us: int, granularity_us: int) -> int:
    """Return the width of the buckets in which rows held are counted: a tenth of an interval, but no finer than `g`."""
    return max(granularity_us, interval_us // 10, 1)


@dataclass
class PeriodAccount:
    """Rows held and retention of one open period, as integrals over stream time: means are area over weight.

    Attributes
    ----------
    held_area
        Rows held times us.
    weight_us
        The stream time covered so far.
    held_max
        The most rows held at the end of an interval.
    retention_area
        Per stream: retention times us, where both are finite.
    retention_weight_us
        The stream time during which both are finite.
    """

    held_area: int = 0
    weight_us: int = 0
    held_max: int = 0
    retention_area: list[int] = field(default_factory=lambda: [0, 0])
    retention_weight_us: int = 0


AccountState: TypeAlias = tuple[int, int, int, list[int], int]
"""The attributes of a `PeriodAccount` in order."""


class JoinControlState(TypedDict):
    """The state of a `JoinControl` as JSON."""

    interval: int | None
    t_last_us: int
    base: list[int]
    retention: list[int]
    censored: list[int]
    partial: IntervalStatsState | None
    held: list[list[list[int]]]
    accounts: dict[str, AccountState]
    arrivals: list[int]
    first_t_us: int | None
    largest_us: list[int]
    rows_held: int
    policy: StateDocument


class JoinControl:
    """The control plane of one join: a state machine over interval summaries.

    Parameters
    ----------
    policy
        The rule that chooses the retention.
    window_us, interval_us, granularity_us, period_us
        `w`, `L`, `g` and `P` in microseconds.

    Attributes
    ----------
    interval, t_last_us
        The interval that stream time is in, None before all streams are seen, and the last stream time.
    base, retention, censored
        Per stream: ``base_X`` and ``d_X`` in us and ``censored_from`` of the current interval.
    partial
        The statistics of the current interval so far.
    held
        Per stream: the rows held.
    accounts
        The accounts of periods that are not yet in the ledger, by the start of the period in us.
    arrivals, first_t_us, largest_us
        Rows per stream, the start of the first interval, and per stream the largest delay (or lateness) so far, rounded
        up to whole granules.
    definition
        Number of the definition of rows held (:mod:`latecomer.core.rows_held`), by which the accounts were begun.
    """

    def __init__(
        self, policy: RetentionPolicy, *, window_us: int, interval_us: int, granularity_us: int, period_us: int
    ) -> None:
        self.policy = policy
        self.window_us, self.interval_us = window_us, interval_us
        self.granularity_us, self.period_us = granularity_us, period_us
        self.interval: int | None = None
        self.t_last_us = NEVER
        self.base = [NEVER, NEVER]
        self.retention = [FOREVER, FOREVER]
        self.censored = [FOREVER, FOREVER]
        self.partial: IntervalStats | None = None
        bucket_us = held_bucket_us(interval_us, granularity_us)
        self.held = [HeldRows(bucket_us, expires=policy.expires) for _ in (0, 1)]
        self.accounts: dict[int, PeriodAccount] = {}
        self.arrivals = [0, 0]
        self.first_t_us: int | None = None
        self.largest_us = [0, 0]
        self.definition = rows_held.CURRENT

    def horizon(self, side: int) -> int:
        """Return ``H_X`` of stream `side` in us after the last arrival."""
        keep = self.retention[side]
        moving = NEVER if keep >= FOREVER or self.interval is None else self.t_last_us - self.window_us - keep
        return max(self.base[side], moving)

    def hold_until_all_streams_seen(self, arrived: tuple[SparseCounts, SparseCounts]) -> None:
        """Hold arrivals from before every stream had been seen: without a stream time they decide nothing."""
        for held, (buckets, rows) in zip(self.held, arrived, strict=True):
            held.add(buckets, rows)

    def step(self, summaries: list[IntervalSummary]) -> Horizons:
        """Count the intervals of one micro-batch, in order, and return the decisions for them."""
        rows: list[tuple[int, ...]] = []
        for summary in summaries:
            if self.interval is None or summary.interval > self.interval:
                self._enter(summary.interval)
            self._count(summary)
            rows.append((summary.interval, *self.base, *self.retention))
        table = np.array(rows, np.int64).reshape(len(rows), 5)
        return Horizons(table[:, 0], (table[:, 1], table[:, 2]), (table[:, 3], table[:, 4]))

    def _enter(self, interval: int) -> None:
        if self.interval is not None:
            self._complete(interval)
        self.interval = interval
        self.partial = None
        self.retention = list(self.policy.choose(interval))
        start = interval * self.interval_us
        for side in (0, 1):
            # Stream time is at least `start`, so a pair that requires less than this is above the base and is produced.
            keep = min(self.retention[side], start - self.window_us - self.base[side])
            self.censored[side] = exact_below(keep, self.granularity_us)
        self.t_last_us = NEVER

    def _count(self, summary: IntervalSummary) -> None:
        stats = summary.stats(self.censored)
        self.partial = stats if self.partial is None else merge(self.partial, stats)
        self.t_last_us = max(self.t_last_us, summary.t_last_us)
        self._account_of(self._period_of(summary.interval))
        if self.first_t_us is None:
            self.first_t_us = summary.interval * self.interval_us
        for side in (0, 1):
            buckets = summary.delays[side][0]
            if len(buckets):
                self.largest_us[side] = max(self.largest_us[side], (int(buckets.max()) + 1) * self.granularity_us)
            self.arrivals[side] += self.held[side].add(*summary.arrived[side])
            self.held[side].expire(self.horizon(side))

    def _complete(self, following: int) -> None:
        """Complete the current interval, as stream time enters the interval `following`."""
        assert self.interval is not None and self.partial is not None
        self.policy.observe(self.partial)
        for side in (0, 1):
            self.base[side] = self.horizon(side)
        start, end = self.interval * self.interval_us, following * self.interval_us
        period, next_period = self._period_of(self.interval), self._period_of(following)
        self._add_span(self._account_of(period), start, min(end, period + self.period_us))
        if next_period > period and end > next_period:
            # No interval of the new period decided these retentions, but the rows were held in it.
            self._add_span(self._account_of(next_period), next_period, end, retention=False)

    def _add_span(self, account: PeriodAccount, from_us: int, to_us: int, *, retention: bool = True) -> None:
        """Add a span of stream time that begins in the current interval or in the gap after it."""
        assert self.interval is not None
        gap_us = max(from_us, (self.interval + 1) * self.interval_us)
        if self.definition != rows_held.CURRENT or gap_us >= to_us:
            self._add_area(account, to_us - from_us, retention=retention)
            return
        if gap_us > from_us:
            self._add_area(account, gap_us - from_us, retention=retention)
        open_us = 0
        for side in (0, 1):
            held, keep = self.held[side], self.retention[side] if self.held[side].expires else FOREVER
            until = rows_held.held_until((held.buckets + 1) * held.bucket_us + self.window_us, keep)
            area, some_us = rows_held.held_between(until, held.rows, gap_us, to_us)
            account.held_area += area
            open_us = max(open_us, some_us)
        account.held_area += self._sample_rows() * open_us
        account.weight_us += open_us
        if retention:
            self._add_retention(account, to_us - gap_us)

    def closed_periods(self) -> list[int]:
        """Return the starts (us) of unwritten periods that no further arrival can belong to, in order."""
        if self.interval is None:
            return []
        current = self._period_of(self.interval)
        return sorted(start for start in self.accounts if start < current)

    def account(self, period_start: int, *, as_of_now: bool = False) -> PeriodAccount:
        """Return the account of a period; `as_of_now` includes the current interval up to the last arrival."""
        account = self.accounts.get(period_start) or PeriodAccount()
        if not as_of_now or self.interval is None or self._period_of(self.interval) != period_start:
            return account
        account = replace(account, retention_area=list(account.retention_area))
        self._add_area(account, max(1, self.t_last_us - self.interval * self.interval_us))
        return account

    def _period_of(self, interval: int) -> int:
        return interval * self.interval_us // self.period_us * self.period_us

    def _account_of(self, period_start: int) -> PeriodAccount:
        return self.accounts.setdefault(period_start, PeriodAccount())

    def _add_area(self, account: PeriodAccount, weight_us: int, *, retention: bool = True) -> None:
        held = sum(buffer.count for buffer in self.held) + self._sample_rows()
        account.held_area += held * weight_us
        account.weight_us += weight_us
        account.held_max = max(account.held_max, held)
        if retention:
            self._add_retention(account, weight_us)

    def _add_retention(self, account: PeriodAccount, weight_us: int) -> None:
        if max(self.retention) < FOREVER:
            account.retention_weight_us += weight_us
            for side in (0, 1):
                account.retention_area[side] += self.retention[side] * weight_us

    def _sample_rows(self) -> int:
        """Return the expected number of rows that the deterministic sample holds beside the buffers.

        A sampled row is of use until stream time has passed it by ``w`` and the largest lateness of the opposite
        stream. The estimate is the number of rows that arrive in that span at the mean rate since the start, less the
        rows that the buffer holds anyway, times `SAMPLE_FRACTION`.
        """
        if not self.policy.needs_pairs or self.first_t_us is None:
            return 0
        passed_us = max(self.t_last_us - self.first_t_us, self.interval_us)
        beyond = 0
        for side in (0, 1):
            span_us = min(self.window_us + self.largest_us[1 - side], passed_us)
            beyond += max(self.arrivals[side] * span_us // passed_us - self.held[side].count, 0)
        return round(SAMPLE_FRACTION * beyond)

    def to_dict(self) -> JoinControlState:
        """Return the state as JSON, the policy's under ``policy``."""
        return {
            "interval": self.interval,
            "t_last_us": self.t_last_us,
            "base": list(self.base),
            "retention": list(self.retention),
            "censored": list(self.censored),
            "partial": None if self.partial is None else self.partial.to_dict(),
            "held": [[held.buckets.tolist(), held.rows.tolist()] for held in self.held],
            "accounts": {
                str(start): (a.held_area, a.weight_us, a.held_max, a.retention_area, a.retention_weight_us)
                for start, a in self.accounts.items()
            },
            "arrivals": list(self.arrivals),
            "first_t_us": self.first_t_us,
            "largest_us": list(self.largest_us),
            "rows_held": self.definition,
            "policy": self.policy.to_dict(),
        }

    @classmethod
    def from_dict(
        cls,
        state: JoinControlState,
        policy: RetentionPolicy,
        *,
        window_us: int,
        interval_us: int,
        granularity_us: int,
        period_us: int,
    ) -> JoinControl:
        """Continue from the state that `to_dict` wrote, with a `policy` restored by its own ``from_dict``."""
        control = cls(
            policy,
            window_us=window_us,
            interval_us=interval_us,
            granularity_us=granularity_us,
            period_us=period_us,
        )
        control.interval, control.t_last_us = state["interval"], state["t_last_us"]
        control.base, control.retention = list(state["base"]), list(state["retention"])
        control.censored = list(state["censored"])
        control.partial = None if state["partial"] is None else IntervalStats.from_dict(state["partial"])
        control.held = [
            replace(held, buckets=np.array(buckets, np.int64), rows=np.array(rows, np.int64))
            for held, (buckets, rows) in zip(control.held, state["held"], strict=True)
        ]
        control.arrivals, control.largest_us = list(state["arrivals"]), list(state["largest_us"])
        control.first_t_us = state["first_t_us"]
        control.definition = state.get("rows_held", 0)
        control.accounts = {
            int(start): PeriodAccount(held_area, weight_us, held_max, list(retention_area), retention_weight_us)
            for start, (held_area, weight_us, held_max, retention_area, retention_weight_us) in state[
                "accounts"
            ].items()
        }
        return control
