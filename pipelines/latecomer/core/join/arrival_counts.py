"""Count the arrivals of a micro-batch for the control plane of a join, by interval, side, event time and delay."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from latecomer.core.arrays.composite_keys import distinct_rows, run_bounds
from latecomer.core.arrays.sparse_counts import Int64Array, SparseCounts, merge_counts
from latecomer.core.arrivals import ArrivalBlocks, Arrivals
from latecomer.core.join.control import IntervalSummary, held_bucket_us
from latecomer.core.join.recall_budget import IntervalEntry
from latecomer.core.join.retention_policies import RetentionParameters
from latecomer.core.join.statistics import delay_bucket
from latecomer.core.time import NEVER

PAIR_CELL = ("j", "x", "b", "db", "candidates", "results", "sampled")
"""Columns of counted pairs, int64[n, 7].

The interval, the side of the earlier row, the bucket of the required retention and the delay bucket of the later row
(-1: not counted); then the numbers of candidates, of results, and of results in the sample.
"""
RESULTS = PAIR_CELL.index("results")
_NONE: SparseCounts = (np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True)
class _Interval:
    """The counts of one interval: stream time at its last arrival; and ``seq`` and stream time (us) of its first."""

    number: int
    stream_time_us: int
    rows: int
    first: tuple[int, int]
    by_time: tuple[SparseCounts, SparseCounts]
    by_delay: tuple[SparseCounts, SparseCounts]

    def merged(self, following: _Interval) -> _Interval:
        """Add the counts of the same interval in the next block of arrivals."""
        by_time, by_delay = (
            (merge_counts(*before[0], *after[0]), merge_counts(*before[1], *after[1]))
            for before, after in ((self.by_time, following.by_time), (self.by_delay, following.by_delay))
        )
        rows = self.rows + following.rows
        return _Interval(self.number, following.stream_time_us, rows, self.first, by_time, by_delay)


class _Block(NamedTuple):
    """The counts of a block of arrivals: as in :class:`ArrivalCounts`, with the rows of each side."""

    rows: int
    low_us: int
    high_us: int
    longest_delay_us: int
    of_side: tuple[int, int]
    intervals: list[_Interval]


@dataclass(frozen=True)
class ArrivalCounts:
    """Arrivals of a micro-batch, counted.

    Attributes
    ----------
    rows
        All arrivals.
    low_us, high_us
        Their earliest and latest event time; 0 without arrivals.
    longest_delay_us
        The longest delay among them; ``NEVER`` without arrivals.
    before_all_streams_seen
        Rows per side by event time from before all streams were seen; `unplaced` is their number.
    left_is_smaller
        Has the left side fewer rows?
    intervals
        The adaptation intervals in order.
    """

    rows: int = 0
    low_us: int = 0
    high_us: int = 0
    longest_delay_us: int = NEVER
    before_all_streams_seen: tuple[SparseCounts, SparseCounts] = (_NONE, _NONE)
    unplaced: int = 0
    left_is_smaller: bool = False
    intervals: tuple[_Interval, ...] = ()

    @classmethod
    def of(
        cls, arrivals: ArrivalBlocks, settings: RetentionParameters, is_self: bool, *, lateness: bool = False
    ) -> ArrivalCounts:
        """Count arrivals by interval, and in it per side by event time and by delay (with `lateness`: by lateness)."""
        task = partial(_counted, settings=settings, is_self=is_self, lateness=lateness)
        blocks = [block for block in arrivals.of_blocks(task) if block.rows]
        if not blocks:
            return cls()
        intervals: list[_Interval] = []
        for interval in (interval for block in blocks for interval in block.intervals):
            if intervals and intervals[-1].number == interval.number:
                intervals[-1] = intervals[-1].merged(interval)
            else:
                intervals.append(interval)
        before, unplaced = (_NONE, _NONE), 0
        if intervals[0].stream_time_us <= NEVER:
            first = intervals.pop(0)
            before, unplaced = first.by_time, first.rows
        left, right = (sum(block.of_side[side] for block in blocks) for side in (0, 1))
        return cls(
            sum(block.rows for block in blocks),
            min(block.low_us for block in blocks),
            max(block.high_us for block in blocks),
            max(block.longest_delay_us for block in blocks),
            before,
            unplaced,
            not is_self and left < right,
            tuple(intervals),
        )

    def by_period(self, interval_us: int, period_us: int) -> dict[int, int]:
        """Return the arrivals per period (us), by the period in which their interval begins."""
        rows: dict[int, int] = {}
        for interval in self.intervals:
            start = interval.number * interval_us // period_us * period_us
            rows[start] = rows.get(start, 0) + interval.rows
        return rows

    def entries(self, rows_before: tuple[int, int]) -> list[IntervalEntry]:
        """Return the first arrival of each interval; `rows_before` are the rows of either stream before these.

        Rows from before all streams were seen are not counted.
        """
        entries = []
        left, right = rows_before
        for interval in self.intervals:
            entries.append(IntervalEntry(interval.number, *interval.first, (left, right)))
            left, right = left + int(interval.by_time[0][1].sum()), right + int(interval.by_time[1][1].sum())
        return entries

    def summaries(self, pairs: Int64Array | None) -> list[IntervalSummary]:
        """Return the intervals as the control plane takes them, with the counts of their `pairs`.

        `pairs` has the columns of `PAIR_CELL`, in the order of intervals; None: pairs were not counted.
        """
        per_interval: dict[int, Int64Array] = {}
        if pairs is not None and len(pairs):
            starts = run_bounds(pairs[:, 0])[:-1]
            per_interval = dict(zip(pairs[starts, 0].tolist(), np.split(pairs[:, 1:], starts[1:]), strict=True))
        empty = np.empty((0, len(PAIR_CELL) - 1), np.int64)
        return [
            IntervalSummary(i.number, i.stream_time_us, i.by_time, i.by_delay, per_interval.get(i.number, empty))
            for i in self.intervals
        ]


def _counted(arrivals: Arrivals, settings: RetentionParameters, is_self: bool, lateness: bool) -> _Block:
    """Count a block of arrivals; those from before all streams were seen are an interval at ``NEVER``."""
    rows = len(arrivals.seq)
    if not rows:
        return _Block(0, 0, 0, NEVER, (0, 0), [])
    times, stream_time = arrivals.event_time_us, arrivals.stream_time_us
    left, right = np.bincount(arrivals.side, minlength=2).tolist()
    side, number = arrivals.side.astype(np.int64), stream_time // settings.interval_us
    time_bucket = times // held_bucket_us(settings.interval_us, settings.granularity_us)
    by_time = _by_interval(side, number, time_bucket, is_self)
    delay = delay_bucket(arrivals.lateness_us if lateness else arrivals.delay_us, settings.granularity_us)
    by_delay = _by_interval(side, number, delay, is_self)
    starts = np.flatnonzero(np.diff(number, prepend=number[0] - 1))
    ends = np.append(starts[1:], rows)
    first = zip(arrivals.seq[starts].tolist(), stream_time[starts].tolist(), strict=True)
    columns = (number[starts].tolist(), stream_time[ends - 1].tolist(), (ends - starts).tolist())
    intervals = [
        _Interval(interval, last_us, count, entry, by_time[interval], by_delay[interval])
        for interval, last_us, count, entry in zip(*columns, first, strict=True)
    ]
    return _Block(rows, int(times.min()), int(times.max()), int(arrivals.delay_us.max()), (left, right), intervals)


def _by_interval(
    side: Int64Array, number: Int64Array, bucket: Int64Array, is_self: bool
) -> dict[int, tuple[SparseCounts, SparseCounts]]:
    """Count buckets per interval and role; the rows of a self join play both roles."""
    (number, side, bucket), count = distinct_rows(number, side, bucket)
    numbers, starts = np.unique(number, return_index=True)
    counts: dict[int, tuple[SparseCounts, SparseCounts]] = {}
    for interval, first, end in zip(numbers.tolist(), starts, [*starts[1:], len(number)], strict=True):
        middle = first + np.searchsorted(side[first:end], 1)
        left, right = (bucket[first:middle], count[first:middle]), (bucket[middle:end], count[middle:end])
        counts[interval] = (left, left) if is_self else (left, right)
    return counts
