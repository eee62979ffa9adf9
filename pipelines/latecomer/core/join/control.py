"""Join, control plane: QJoin's retention, decided interval by interval of stream time.

What is computed (Wei, Li, Xu, Lv and Yang, "QJoin", Guangxi Sciences 27(3), 2020).
Buffer X keeps a tuple until its event time falls behind the horizon ``H_X(a) = running max of (T(a) - w - d_X(a))``.
For a pair whose later arrival is `y` and whose earlier arrival is `x`, on stream X::

    produced(x, y)  <=>  |x.ts - y.ts| <= w  and  predicate(x, y)  and  x.ts > H_X(seq_y)

The controller may change ``d_X`` only where stream time enters a new adaptation interval ``[j L, (j+1) L)``. So inside
interval `j` the horizon has a closed form that needs no row but `y`'s own stream time::

    H_X(seq_y) = max(base_X[j], T(seq_y) - w - d_X[j]),   base_X[j] = max over i < j of (T_last[i] - w - d_X[i])

with ``T_last[i]`` the largest stream time that an arrival of interval `i` saw. That is what makes the data plane
parallel: it is handed one short table, ``(j, base, d)`` per stream, and nothing else.

Algebra this rests on: every statistic is a sum over (pair or tuple), keyed by the interval of the later arrival, so
two micro-batches that share an interval add up to what one would have counted; decisions are taken when an interval is
complete, that is when the first arrival of a later one is seen. Hence any cut into micro-batches gives the same
decisions. A pair whose partner was gone is not counted, even where a large micro-batch happened to meet it: counts at or
above ``censored_from`` are thrown away before the controller sees them.

Choices where the paper is silent
    Before the first full period has passed every adaptive policy retains everything. Intervals without arrivals decide nothing. Rows
    held are counted at the end of each interval, in event-time buckets of ``held_bucket_us``, and averaged over stream
    time. An arrival belongs to the period of its stream time; arrivals before every stream has spoken belong to none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.core.arrays.sparse_counts import add_sparse, merge_counts
from latecomer.core.join.statistics import (
    SAMPLE_FRACTION,
    IntervalStats,
    SideStats,
    exact_below,
    from_dict,
    merge,
    to_dict,
)
from latecomer.core.time import FOREVER, NEVER

Int64 = NDArray[np.int64]
Sparse = tuple[Int64, Int64]
"""Buckets and rows, two int64 arrays of one length."""


class RetentionPolicy(Protocol):
    """Chooses the extra retention of both buffers from what earlier intervals showed.

    Attributes
    ----------
    needs_pairs
        Does it look at pairs at all? If not, the data plane does not count them.
    needs_candidates
        Does it look at candidates and results by the delay of the arriving tuple?
    needs_lateness
        Are tuples counted by their delay against stream time, and not on their own stream?
    expires
        Does any tuple ever leave its buffer?
    """

    needs_pairs: bool
    needs_candidates: bool
    needs_lateness: bool
    expires: bool

    def observe(self, stats: IntervalStats) -> None:
        """Take in one complete interval. Called once per interval that saw an arrival, in order."""

    def choose(self, interval: int) -> tuple[int, int]:
        """``(d_left, d_right)`` in microseconds for `interval`; `FOREVER` keeps everything."""

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values; `from_dict` of the same class restores it exactly."""


SIDE, REQUIRED, DELAY, CANDIDATES, RESULTS, SAMPLED = range(6)
"""Columns of `IntervalSummary.cells`."""


@dataclass(frozen=True)
class IntervalSummary:
    """What the data plane counted in one adaptation interval of one micro-batch.

    Attributes
    ----------
    interval
        Number `j`: stream time in ``[j L, (j + 1) L)``.
    t_last_us
        Largest stream time among the interval's arrivals in this micro-batch.
    arrived
        Per stream: (int64 buckets ``floor(event_ts / held_bucket_us)``, int64 rows) of the interval's arrivals.
    delays
        Per stream: (int64 buckets of delay or, as the policy asks, of lateness, int64 rows) of the same arrivals.
    cells
        int64[n, 6], one row per non-empty cell of (side of x, required bucket, delay bucket of y): those three, then
        candidates, results and sampled results (columns `SIDE` to `SAMPLED`). The delay bucket is -1 where the policy does not ask for it.
    """

    interval: int
    t_last_us: int
    arrived: tuple[Sparse, Sparse]
    delays: tuple[Sparse, Sparse]
    cells: Int64

    def stats(self, censored: list[int]) -> IntervalStats:
        """Statistics as the controller may see them, `censored` (per side) and above forgotten.

        A pair at or above was produced or not, depending on where the micro-batch was cut; what the deterministic
        sample saw of it does not depend on that and stays.
        """
        sides = []
        cells = np.array(self.cells, np.int64, order="C")
        rising, delays_known = _shape(cells)
        if not rising:
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
            needs = _results(cells, side, censored[side])
            sides.append(SideStats(int(rows.sum()), bucket, rows, candidates, results, *needs, censored[side]))
        return IntervalStats(self.interval, sides[0], sides[1])


@dataclass(frozen=True)
class Horizons:
    """The control plane's decisions for one micro-batch: arrays of equal length, one entry per interval, int64 us."""

    interval: Int64
    base: tuple[Int64, Int64]
    retention: tuple[Int64, Int64]

    def at(self, side: int, stream_time_us: Int64, length_us: int, window_us: int) -> Int64:
        """`H` of stream `side` at arrivals of the given stream times (int64 us, same shape); before T: `NEVER`."""
        if not len(self.interval):
            return np.full(len(stream_time_us), NEVER, np.int64)
        place = np.searchsorted(self.interval, np.floor_divide(stream_time_us, length_us))
        place = np.minimum(place, len(self.interval) - 1)
        known = stream_time_us > NEVER
        horizon = np.full(len(stream_time_us), NEVER, np.int64)
        base, keep = self.base[side][place], self.retention[side][place]
        moving = np.where(keep >= FOREVER, NEVER, stream_time_us - window_us - np.where(keep >= FOREVER, 0, keep))
        horizon[known] = np.maximum(base, moving)[known]
        return horizon


@dataclass
class Held:
    """Rows of one buffer by event-time bucket; they leave from the low end as the horizon passes their bucket.

    Where `expires` is false none ever leaves, and they are counted without their buckets, which would grow for ever.
    """

    bucket_us: int
    buckets: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    rows: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    expires: bool = True

    def __post_init__(self) -> None:
        self.count = int(self.rows.sum())
        if not self.expires:
            self._in_one()

    def add(self, buckets: Int64, rows: Int64) -> int:
        """Rows arrive, in buckets that strictly increase; returns how many."""
        arrived = int(rows.sum())
        if arrived:
            self.count += arrived
            if self.expires:
                self.buckets, self.rows = merge_counts(self.buckets, self.rows, np.array(buckets), np.array(rows))
            else:
                self._in_one()
        return arrived

    def _in_one(self) -> None:
        self.buckets, self.rows = np.zeros(1, np.int64), np.array([self.count], np.int64)

    def expire(self, horizon_us: int) -> None:
        """Rows of buckets that lie wholly at or behind the horizon leave."""
        if horizon_us <= NEVER:
            return
        first = (horizon_us + 1) // self.bucket_us
        keep = int(self.buckets.searchsorted(first))
        if keep:
            self.count -= int(self.rows[:keep].sum())
            self.buckets, self.rows = self.buckets[keep:], self.rows[keep:]

    def total(self) -> int:
        """Rows held now."""
        return self.count


@njit(cache=True)
def _shape(cells: Int64) -> tuple[bool, bool]:
    """Are the cells in order of side and required bucket, and is any delay bucket known?"""
    rising, known = True, False
    for i in range(len(cells)):
        known |= cells[i, DELAY] >= 0
        if i and (
            cells[i, SIDE] < cells[i - 1, SIDE]
            or (cells[i, SIDE] == cells[i - 1, SIDE] and cells[i, REQUIRED] < cells[i - 1, REQUIRED])
        ):
            rising = False
    return rising, known


@njit(cache=True)
def _results(cells: Int64, side: int, censored: int) -> tuple[Int64, Int64, Int64]:
    """Required buckets, results below `censored` and sampled results of one side's cells, in order of required buckets."""
    bucket, pairs, sampled = (
        np.empty(len(cells), np.int64),
        np.empty(len(cells), np.int64),
        np.empty(len(cells), np.int64),
    )
    n = 0
    for i in range(len(cells)):
        if cells[i, SIDE] != side:
            continue
        seen = cells[i, RESULTS] if cells[i, REQUIRED] < censored else 0
        if n and bucket[n - 1] == cells[i, REQUIRED]:
            pairs[n - 1] += seen
            sampled[n - 1] += cells[i, SAMPLED]
        elif seen > 0 or cells[i, SAMPLED] > 0:
            bucket[n], pairs[n], sampled[n] = cells[i, REQUIRED], seen, cells[i, SAMPLED]
            n += 1
    return bucket[:n], pairs[:n], sampled[:n]


@dataclass
class PeriodAccount:
    """Rows held and retention over one period, while it is open. Integrals over stream time, in row-us and us."""

    held_area: int = 0
    weight_us: int = 0
    held_max: int = 0
    retention_area: list[int] = field(default_factory=lambda: [0, 0])
    retention_weight_us: int = 0


class JoinControl:
    """QJoin's control plane as a state machine over interval summaries.

    Parameters
    ----------
    policy
        Chooses the retention.
    window_us, interval_us, granularity_us, period_us
        `w`, `L`, `g`, `P` in microseconds.
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
        bucket = held_bucket_us(interval_us, granularity_us)
        self.held = [Held(bucket, expires=policy.expires) for _ in (0, 1)]
        self.accounts: dict[int, PeriodAccount] = {}
        self.arrivals = [0, 0]
        self.first_t_us: int | None = None
        self.largest_us = [0, 0]
        """Largest delay (or lateness) so far per stream, rounded up to whole granules."""

    def horizon(self, side: int) -> int:
        """`H` of stream `side` now, after the last arrival taken in."""
        keep = self.retention[side]
        moving = NEVER if keep >= FOREVER or self.interval is None else self.t_last_us - self.window_us - keep
        return max(self.base[side], moving)

    def hold_until_all_streams_seen(self, arrived: tuple[Sparse, Sparse]) -> None:
        """Hold arrivals from before every stream had been seen: without a stream time they decide nothing."""
        for held, (buckets, rows) in zip(self.held, arrived, strict=True):
            held.add(buckets, rows)

    def step(self, summaries: list[IntervalSummary]) -> Horizons:
        """Take in one micro-batch's intervals, in order; returns what the data plane needs to join them."""
        rows: list[tuple[int, ...]] = []
        for summary in summaries:
            number = summary.interval
            if self.interval is None or number > self.interval:
                self._enter(number)
            self._take(summary)
            rows.append((number, *self.base, *self.retention))
        table = np.array(rows, np.int64).reshape(len(rows), 5)
        return Horizons(table[:, 0], (table[:, 1], table[:, 2]), (table[:, 3], table[:, 4]))

    def closed_periods(self) -> list[int]:
        """Starts of periods that stream time has left, so that no arrival can belong to them any more."""
        if self.interval is None:
            return []
        now = self._period(self.interval)
        return sorted(start for start in self.accounts if start < now)

    def account(self, period_start: int, *, now: bool = False) -> PeriodAccount:
        """Account of one period; `now` closes the current interval's books as if stream time stopped here."""
        found = self.accounts.get(period_start) or PeriodAccount()
        if not now or self.interval is None or self._period(self.interval) != period_start:
            return found
        copy = PeriodAccount(
            found.held_area, found.weight_us, found.held_max, list(found.retention_area), found.retention_weight_us
        )
        self._book(copy, max(1, self.t_last_us - self.interval * self.interval_us))
        return copy

    def _enter(self, number: int) -> None:
        if self.interval is not None:
            self._leave(number)
        self.interval = number
        self.partial = None
        self.retention = list(self.policy.choose(number))
        start = number * self.interval_us
        for side in (0, 1):
            # every pair that needs less than this was produced, whatever the cut: see the module docstring
            keep = min(self.retention[side], start - self.window_us - self.base[side])
            self.censored[side] = exact_below(keep, self.granularity_us)
        self.t_last_us = NEVER

    def _leave(self, number: int) -> None:
        assert self.interval is not None and self.partial is not None
        self.policy.observe(self.partial)
        for side in (0, 1):
            self.base[side] = self.horizon(side)
        period, end = self._period(self.interval), number * self.interval_us
        start = self.interval * self.interval_us
        self._book(self._open(period), min(end, period + self.period_us) - start)
        following = self._period(number)
        if following > period and end > following:
            self._book(self._open(following), end - following, retention=False)

    def _open(self, period: int) -> PeriodAccount:
        return self.accounts.setdefault(period, PeriodAccount())

    def _book(self, account: PeriodAccount, weight_us: int, *, retention: bool = True) -> None:
        held = sum(each.total() for each in self.held) + self._sample_rows()
        account.held_area += held * weight_us
        account.weight_us += weight_us
        account.held_max = max(account.held_max, held)
        if retention and max(self.retention) < FOREVER:
            account.retention_weight_us += weight_us
            for side in (0, 1):
                account.retention_area[side] += self.retention[side] * weight_us

    def _sample_rows(self) -> int:
        """Rows that the deterministic sample holds beside the buffers, by expectation.

        A row of the sample is of use until stream time has passed it by ``w`` and the largest lateness of the opposite stream. So many
        rows as come in that span at the mean rate since the start, less those that the buffer holds anyway, times `SAMPLE_FRACTION`.
        """
        if not self.policy.needs_pairs or self.first_t_us is None:
            return 0
        passed_us = max(self.t_last_us - self.first_t_us, self.interval_us)
        beyond = 0
        for side in (0, 1):
            span_us = min(self.window_us + self.largest_us[1 - side], passed_us)
            beyond += max(self.arrivals[side] * span_us // passed_us - self.held[side].total(), 0)
        return round(SAMPLE_FRACTION * beyond)

    def _take(self, summary: IntervalSummary) -> None:
        seen = summary.stats(self.censored)
        self.partial = seen if self.partial is None else merge(self.partial, seen)
        self.t_last_us = max(self.t_last_us, summary.t_last_us)
        self._open(self._period(summary.interval))
        if self.first_t_us is None:
            self.first_t_us = summary.interval * self.interval_us
        for side in (0, 1):
            buckets = summary.delays[side][0]
            if len(buckets):
                self.largest_us[side] = max(self.largest_us[side], (int(buckets.max()) + 1) * self.granularity_us)
            self.arrivals[side] += self.held[side].add(*summary.arrived[side])
            self.held[side].expire(self.horizon(side))

    def _period(self, interval: int) -> int:
        return interval * self.interval_us // self.period_us * self.period_us

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values (the policy's under ``policy``)."""
        return {
            "interval": self.interval,
            "t_last_us": self.t_last_us,
            "base": list(self.base),
            "retention": list(self.retention),
            "censored": list(self.censored),
            "partial": None if self.partial is None else to_dict(self.partial),
            "held": [[each.buckets.tolist(), each.rows.tolist()] for each in self.held],
            "accounts": {
                str(start): [a.held_area, a.weight_us, a.held_max, a.retention_area, a.retention_weight_us]
                for start, a in self.accounts.items()
            },
            "arrivals": list(self.arrivals),
            "first_t_us": self.first_t_us,
            "largest_us": list(self.largest_us),
            "policy": self.policy.to_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `to_dict`'s value; the policy was restored by its own ``from_dict``."""
        self.interval, self.t_last_us = state["interval"], state["t_last_us"]
        self.base, self.retention, self.censored = (
            list(state["base"]),
            list(state["retention"]),
            list(state["censored"]),
        )
        self.partial = None if state["partial"] is None else from_dict(state["partial"])
        arrays = [[np.array(column, np.int64) for column in each] for each in state["held"]]
        self.held = [replace(held, buckets=own[0], rows=own[1]) for held, own in zip(self.held, arrays, strict=True)]
        self.arrivals, self.largest_us = list(state["arrivals"]), list(state["largest_us"])
        self.first_t_us = state["first_t_us"]
        self.accounts = {
            int(start): PeriodAccount(area, weight, most, list(retention), span)
            for start, (area, weight, most, retention, span) in state["accounts"].items()
        }


def held_bucket_us(interval_us: int, granularity_us: int) -> int:
    """Width of the event-time buckets in which rows held are counted: a tenth of an interval, no finer than `g`."""
    return max(granularity_us, interval_us // 10, 1)
