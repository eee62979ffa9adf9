"""Observe windows: read arrivals in order, and count what contributions to a window required, as known at a given time.

The arrival order is scanned from checkpoints; stored rows of observed windows are then read with their lateness.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.core.arrays.sparse_counts import merge_counts
from latecomer.core.arrivals import ArrivalBlocks, Checkpoint
from latecomer.core.time import EARLIEST_US, LATEST_US, NEVER
from latecomer.core.windows.arrivals import ArrivalCounts
from latecomer.core.windows.constant_slack import AnswerWaits, HeldFrom, mean_rows_held
from latecomer.core.windows.group_sampling import crowded
from latecomer.core.windows.interfaces import IntervalRows, Observed
from latecomer.core.windows.observation_schedule import ObservationSchedule
from latecomer.spark.engine import arrival_scan, tables
from latecomer.spark.engine.columns import with_columns
from latecomer.spark.windows.arrival_tasks import extent, late_in_windows, stream_times
from latecomer.spark.windows.group_sampling import group_samples, observed_groups
from latecomer.spark.windows.kind import WindowKind
from latecomer.spark.windows.lateness import ObservedSpans, ObservedWindows, RowsWithLateness
from latecomer.spark.windows.query import WindowQuery
from latecomer.spark.windows.rows import WindowRows, listed
from latecomer.specs.windows import WindowedSpec

Int64 = NDArray[np.int64]
CHECKPOINT_ROWS = 1 << 18
"""Arrivals from one checkpoint of the scan to the next: so many, at most, are read again in vain for an observation."""
PIECE_ROWS = 1 << 22
"""Arrivals that are read together when history is read again."""


class WindowObservation:
    """Reads the arrivals of a windowed query in order, and observes windows whose rows are in."""

    def __init__(self, query: WindowQuery[WindowedSpec], kind: WindowKind[WindowedSpec], rows: WindowRows) -> None:
        self._query, self._kind, self._rows = query, kind, rows
        self._grid, self._assigner, self._shards = query.grid, kind.assigner, query.spec.shards

    # ---------------------------------------------------------------------------------------------- the arrival order

    @property
    def start(self) -> Checkpoint:
        """The checkpoint before the first arrival."""
        return Checkpoint(0, [NEVER] * (self._shards * len(self._query.sources)))

    def arrivals(self, seq_from: int, seq_to: int, carry: list[int]) -> ArrivalBlocks:
        """Read the arrivals ``[seq_from, seq_to)`` of all sources in order, with stream time continued from `carry`."""
        query = self._query
        if arrival_scan.is_for_tasks(query.spark, seq_to - seq_from):
            rows = self._rows.stored(seq_from=seq_from, seq_to=seq_to)
            return arrival_scan.TaskArrivals(rows, carry, self._shards, query.cache)

        def shard_of(groups: pa.Table) -> NDArray[np.int32]:
            return tables.evaluate(query.spark, groups.rename_columns(query.groups), self._kind.shard_sql())

        sharded = shard_of if self._shards > 1 else None
        leading = [(column.name, *column.fields) for column in query.spec.group_columns]
        return arrival_scan.arrivals(query.lake, query.sources, seq_from, seq_to, carry, self._shards, leading, sharded)

    def pieces(self, start: Checkpoint, seq_to: int) -> Iterator[ArrivalBlocks]:
        """Yield all arrivals from a checkpoint up to `seq_to`, at most `PIECE_ROWS` at a time."""
        seq, carry = start.seq, start.carry
        while seq < seq_to:
            following = min(seq + PIECE_ROWS, seq_to)
            piece = self.arrivals(seq, following, carry)
            seq, carry = following, piece.carry
            yield piece

    def checkpoints(
        self, known: list[Checkpoint], new: ArrivalBlocks, seq_to: int, schedules: list[ObservationSchedule]
    ) -> list[Checkpoint]:
        """Return the checkpoints that later scans may need, the oldest first.

        Parameters
        ----------
        known
            The checkpoints that were needed before the `new` arrivals, the oldest first.
        new
            The last arrivals before `seq_to`.
        schedules
            One per shard, after the new arrivals.
        """
        last = Checkpoint(seq_to, new.carry)
        if not any(schedule.observing for schedule in schedules):
            return [last]
        checkpoints = [*known, *new.checkpoints(CHECKPOINT_ROWS), last]
        while len(checkpoints) > 1 and self._may_begin(checkpoints[1], schedules):
            checkpoints.pop(0)
        return checkpoints

    def _may_begin(self, mark: Checkpoint, schedules: list[ObservationSchedule]) -> bool:
        """True where a scan may begin at a checkpoint: no row of a window that is still to be observed came before."""
        for shard, schedule in enumerate(schedules):
            if schedule.delivered is None and schedule.interval is not None:
                return False
            oldest = schedule.observed_from()
            maxima = mark.carry[shard :: self._shards]
            if oldest > NEVER and max(maxima) >= oldest * self._grid.slide_us - self._assigner.lookback_us:
                return False
        return True

    # --------------------------------------------------------------------------------------------------- observations

    def observe(
        self, pieces: Iterable[ArrivalBlocks], seq_from: int, seq_to: int, spans: ObservedSpans
    ) -> ObservedWindows:
        """Observe windows of the arrivals ``[seq_from, seq_to)``, which `pieces` hold in order."""
        return self._kind.observed(self._with_lateness(pieces, seq_from, seq_to, spans), spans)

    def history(self, seq_to: int, *, whole: bool = False, per_answer: bool = False) -> list[list[Observed]]:
        """Return, per shard, every window of the arrivals before `seq_to` as known now, in order; nothing is too late.

        Parameters
        ----------
        whole
            Also windows that stream time has not left, as a flush closes them.
        per_answer
            As in :meth:`latecomer.spark.windows.kind.WindowKind.observed`.
        """
        low = high = last = None
        for piece in self.pieces(self.start, seq_to):
            for block in piece.of_blocks(partial(extent, slide_us=self._grid.slide_us)):
                if block is not None:
                    low = block.low_us if low is None else min(low, block.low_us)
                    high = block.high_us if high is None else max(high, block.high_us)
                    last = block.interval if last is None else max(last, block.interval)
        if low is None or high is None or last is None:
            return [[] for _ in range(self._shards)]
        span = self._grid.first_of(low), self._grid.last_of(high + self._assigner.lookback_us)
        interval = max(last, self._grid.end(span[1]) // self._grid.slide_us) + 1 if whole else last + 1
        spans = [{interval: span} for _ in range(self._shards)]
        rows = self._with_lateness(self.pieces(self.start, seq_to), 0, seq_to, spans)
        observed = self._kind.observed(rows, spans, per_answer=per_answer)
        return [by_interval.get(interval, []) for by_interval in observed.by_interval]

    def costs(
        self, seq_to: int, history: Sequence[Sequence[Observed]], period_us: int, slacks_us: Sequence[int]
    ) -> list[tuple[float, float]]:
        """Return the mean rows held and the mean wait (us) that constant slacks would have given before `seq_to`.

        Parameters
        ----------
        history
            As :meth:`history` returns it: the windows that are answered.
        period_us
            Rows held are averaged by period, and then over the periods in which rows arrived, as in the ledger.
        """
        grid, shards = self._grid, range(self._shards)
        waits = []
        for windows in history:
            numbers = np.array([window.window for window in windows], np.int64)
            answers, order = np.array([window.total for window in windows], np.float64), np.argsort(numbers)
            waits.append(AnswerWaits(grid.end(numbers[order]), answers[order], slacks_us))
        intervals: list[list[IntervalRows]] = [[] for _ in shards]
        before: list[list[tuple[Int64, Int64]]] = [[] for _ in shards]
        for piece in self.pieces(self.start, seq_to):
            counts = ArrivalCounts.of(piece, grid, self._shards)
            for shard in shards:
                intervals[shard] += counts.intervals[shard]
                before[shard].append(counts.before_time[shard])
            for times in piece.of_blocks(partial(stream_times, shards=self._shards)):
                for shard in shards:
                    waits[shard].add(times[shard])
        arrived = [HeldFrom.of(grid, *parts) for parts in zip(intervals, before, strict=True)]
        held = [rows for rows in arrived if rows is not None]
        last_us = [NEVER if rows is None else rows.last_us for rows in arrived]
        total = sum(window.total for windows in history for window in windows)
        sums = np.sum([w.totals(last) for w, last in zip(waits, last_us, strict=True)], axis=0)
        costs = []
        for slack, wait in zip(slacks_us, sums.tolist(), strict=True):
            by_period: dict[int, float] = {}
            for rows in held:
                for period, mean in mean_rows_held(rows, grid, period_us, slack).items():
                    by_period[period] = by_period.get(period, 0.0) + mean
            mean = sum(by_period.values()) / len(by_period) if by_period else 0.0
            costs.append((mean, wait / total if total else 0.0))
        return costs

    def _with_lateness(
        self, pieces: Iterable[ArrivalBlocks], seq_from: int, seq_to: int, spans: ObservedSpans
    ) -> RowsWithLateness:
        """Read the stored rows of windows in `spans`; `pieces` are the arrivals ``[seq_from, seq_to)``."""
        from pyspark.sql import functions as F

        grid, assigner, kind, groups = self._grid, self._assigner, self._kind, self._query.groups
        windows = [span for by_interval in spans for span in by_interval.values()]
        low = min(first for first, _ in windows) * grid.slide_us - assigner.lookback_us
        high = grid.end(max(last for _, last in windows))
        parts, rows_inside = [], 0
        numbers = np.empty(0, np.int64)
        none = np.empty(0, np.int64)
        in_time = [(none, none)] * self._shards
        shards = self._shards if groups else 0  # by shard: how far the others have come depends on the cut
        span = low, high
        task = partial(
            late_in_windows, span=span, grid=grid, assigner=assigner, shards=shards, number=kind.counts_results
        )
        for piece in pieces:
            for block in piece.of_blocks(task):
                rows_inside += block.rows
                parts.append(pa.table({"seq": block.seq, "bucket": block.bucket, "j": block.interval}))
                numbers = np.union1d(numbers, block.windows)
                for shard, counts in enumerate(block.in_time):
                    in_time[shard] = merge_counts(*in_time[shard], *counts)
        waits = pa.concat_tables(parts)
        rows = self._rows.stored(
            seq_from=seq_from, seq_to=seq_to, low_us=max(low, EARLIEST_US), high_us=min(high - 1, LATEST_US)
        )
        rows = rows.withColumn("grp", F.expr(f"xxhash64({', '.join(groups)})" if groups else "0L"))
        marked = listed(self._query.spark, waits) if waits.num_rows else None
        rows = assigner.paned(tables.codegen_barrier(rows))
        early = rows.where("ok") if marked is None else rows.where("ok").join(marked, "seq", "left_anti")
        samples = group_samples(early, [crowded(*counts) for counts in in_time])
        rows = observed_groups(rows, samples).drop("pane")
        rows = kind.reduced(rows, marked, rows_inside * grid.pane_us // (high - low))[0].where("ok")
        if marked is not None:
            rows = rows.join(marked, "seq", "left")
        lateness = {name: "-1L" if marked is None else f"coalesce({name}, -1L)" for name in ("bucket", "j")}
        rows = assigner.paned(with_columns(rows, {name: F.expr(text) for name, text in lateness.items()}))
        return RowsWithLateness(rows, samples, numbers, assigner)
