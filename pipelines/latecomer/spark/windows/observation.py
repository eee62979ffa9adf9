"""Observe windows: read arrivals in order, and count what contributions to a window required, as known at a given time.

The arrival order is scanned from checkpoints; stored rows of observed windows are then read with their lateness.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.core.arrays.composite_keys import distinct_rows
from latecomer.core.arrays.sparse_counts import merge_counts
from latecomer.core.arrivals import Arrivals, Checkpoint
from latecomer.core.time import EARLIEST_US, FOREVER, LATEST_US, NEVER
from latecomer.core.windows.group_sampling import GroupSample, crowded
from latecomer.core.windows.interfaces import Observed
from latecomer.core.windows.observation import by_window, every_number, spans_of
from latecomer.core.windows.observation_schedule import ObservationSchedule
from latecomer.spark.engine import arrival_scan, tables
from latecomer.spark.windows.assigner import WindowAssigner
from latecomer.spark.windows.group_sampling import group_samples, observed_groups
from latecomer.spark.windows.kind import ObservedSpans, ObservedWindows, WindowKind, WindowQuery
from latecomer.spark.windows.rows import WindowRows, listed
from latecomer.specs.windows import WindowedSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Int64 = NDArray[np.int64]
EXACT_BITS = 44
"""Bits to which the results of a window are counted, where there are more: the sums of 512 windows are then exact as
doubles, whatever the order in which they are added."""
CHECKPOINT_ROWS = 1 << 18
"""Arrivals from one checkpoint of the scan to the next: so many, at most, are read again in vain for an observation."""
PIECE_ROWS = 1 << 22
"""Arrivals that are read together when history is read again."""


@dataclass(frozen=True)
class RowsWithLateness:
    """Stored rows of observed windows.

    Attributes
    ----------
    rows : DataFrame
        Payload, ``seq``, ``ts``, ``side``, ``shard``, and ``grp`` (hash of the groups), ``pane``, ``bucket``:
        granules waited past the end of the first window that holds the row, and ``j``: interval of its arrival; both
        -1 where it came before that end.
    samples : list of GroupSample
        Per shard, the groups that are observed.
    windows : int64[n]
        Numbers of all windows that hold one of the rows, ascending; empty unless the kind `counts_results`.
    assigner
        Which windows hold a row.
    """

    rows: DataFrame
    samples: list[GroupSample]
    windows: Int64
    assigner: WindowAssigner

    def observations(self, spans: Mapping[int, tuple[int, int]]) -> Observations:
        """Return the observations of these windows, of a kind that `counts_results`; it has one shard, with `spans`."""
        grid = self.assigner.grid
        first, last, cut_us = np.array(spans_of(grid, spans), np.int64).reshape(-1, 3).T
        low, high = np.searchsorted(self.windows, first), np.searchsorted(self.windows, last, "right")
        span, at = every_number(low, high - 1)
        window = self.windows[at]
        columns = {"_observation": np.arange(len(span)), "_m": window, "_span": span}
        table = pa.table(columns | {"_known": cut_us[span] - grid.end(window)})
        return Observations(table, list(spans), self.assigner, self.rows.sparkSession)


@dataclass(frozen=True)
class Observations:
    """Observations of windows; a window may be observed several times.

    Attributes
    ----------
    table : Table
        A row per observation: ``_observation``, its number; ``_m``, its window; ``_span``, a place in `intervals`;
        ``_known``: what waited so many microseconds past the end of the window, or more, is not known then.
    intervals
        The intervals in which windows are observed.
    assigner
        Which windows hold a row.
    """

    table: pa.Table
    intervals: list[int]
    assigner: WindowAssigner
    spark: SparkSession

    @cached_property
    def _in_spark(self) -> DataFrame:
        return tables.to_spark(self.spark, self.table.drop_columns("_span"))

    def known(self, rows: DataFrame) -> DataFrame:
        """Repeat rows in windows (``_m``) for every observation that knows them.

        Adds ``_observation``, and ``_wait`` in granules past the end of the window (-1: in time).
        """
        from pyspark.sql import functions as F

        grid = self.assigner.grid
        granules = grid.slide_us // grid.granularity_us  # in a slide
        later = F.col("bucket") - (F.col("_m") - F.col("_first")) * granules
        known = rows.withColumn("_first", self.assigner.first_of("ts")).join(F.broadcast(self._in_spark), "_m")
        known = known.withColumn("_wait", F.when(F.col("bucket") >= 0, F.greatest(later, F.lit(-1))).otherwise(-1))
        return known.where(F.col("_wait") * grid.granularity_us < F.col("_known")).drop("_first", "_known")

    def observed(self, counts: pa.Table) -> ObservedWindows:
        """Return the observed windows from their numbers of ``results`` by ``_observation`` and ``_wait``."""
        seen: list[list[Observed]] = [[] for _ in self.intervals]
        if counts.num_rows:
            order = np.lexsort([counts[name].to_numpy() for name in ("_wait", "_observation")])
            observation, wait = (counts[name].to_numpy()[order] for name in ("_observation", "_wait"))
            number, place = np.unique(observation, return_inverse=True)
            weight = _exact_weights(counts["results"].take(pa.array(order)).to_pylist(), place)
            window, span = (self.table[name].to_numpy()[number] for name in ("_m", "_span"))
            windows = by_window(window, place, wait, weight, self.assigner.grid.granularity_us)
            for at, observed in zip(span.tolist(), windows, strict=True):
                seen[at].append(observed)
        return ObservedWindows([dict(zip(self.intervals, seen, strict=True))])


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

    def arrivals(self, seq_from: int, seq_to: int, carry: list[int]) -> Arrivals:
        """Read the arrivals ``[seq_from, seq_to)`` of all sources in order, with stream time continued from `carry`."""
        query = self._query

        def shard_of(groups: pa.Table) -> NDArray[np.int32]:
            return tables.evaluate(query.spark, groups.rename_columns(query.groups), self._kind.shard_sql())

        sharded = shard_of if self._shards > 1 else None
        leading = query.spec.group_by
        return arrival_scan.arrivals(query.lake, query.sources, seq_from, seq_to, carry, self._shards, leading, sharded)

    def pieces(self, start: Checkpoint, seq_to: int) -> Iterator[Arrivals]:
        """Yield all arrivals from a checkpoint up to `seq_to`, at most `PIECE_ROWS` at a time."""
        seq, carry = start.seq, start.carry
        while seq < seq_to:
            following = min(seq + PIECE_ROWS, seq_to)
            piece = self.arrivals(seq, following, carry)
            seq, carry = following, piece.carry
            yield piece

    def checkpoints(
        self, known: list[Checkpoint], new: Arrivals, seq_to: int, schedules: list[ObservationSchedule]
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

    def observe(self, pieces: Iterable[Arrivals], seq_from: int, seq_to: int, spans: ObservedSpans) -> ObservedWindows:
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
            timed = piece.stream_time_us > NEVER
            if timed.any():
                times = piece.event_time_us[timed]
                low = int(times.min()) if low is None else min(low, int(times.min()))
                high = int(times.max()) if high is None else max(high, int(times.max()))
                last = int(piece.stream_time_us.max()) // self._grid.slide_us
        if low is None or high is None or last is None:
            return [[] for _ in range(self._shards)]
        span = self._grid.first_of(low), self._grid.last_of(high + self._assigner.lookback_us)
        interval = max(last, self._grid.end(span[1]) // self._grid.slide_us) + 1 if whole else last + 1
        spans = [{interval: span} for _ in range(self._shards)]
        rows = self._with_lateness(self.pieces(self.start, seq_to), 0, seq_to, spans)
        observed = self._kind.observed(rows, spans, per_answer=per_answer)
        return [by_interval.get(interval, []) for by_interval in observed.by_interval]

    def rows_held(self, seq_to: int, waits_us: Sequence[int]) -> list[float]:
        """Return the mean number of rows, over stream time, that constant waits would have held before `seq_to`.

        A row is held from its arrival until its last window closes.
        """
        area, low, high = np.zeros(len(waits_us)), FOREVER, NEVER
        for piece in self.pieces(self.start, seq_to):
            timed = piece.stream_time_us > NEVER
            time = piece.stream_time_us[timed]
            if not len(time):
                continue
            low, high = min(low, int(time.min())), max(high, int(time.max()))
            until = self._grid.end(self._assigner.last_of(piece.event_time_us[timed], piece.side[timed])) - time
            area += [np.maximum(until + wait, 0).sum(dtype=np.float64) for wait in waits_us]
        return [rows_us / max(high - low, 1) for rows_us in area.tolist()]

    def _with_lateness(
        self, pieces: Iterable[Arrivals], seq_from: int, seq_to: int, spans: ObservedSpans
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
        for piece in pieces:
            first = assigner.first_of(piece.event_time_us, piece.side)
            end = grid.end(first)
            inside = (piece.event_time_us >= low) & (piece.event_time_us < high)
            rows_inside += int(np.count_nonzero(inside))
            late = inside & (piece.stream_time_us >= end)
            time = piece.stream_time_us[late]
            bucket, interval = (time - end[late]) // grid.granularity_us, time // grid.slide_us
            parts.append(pa.table({"seq": piece.seq[late], "bucket": bucket, "j": interval}))
            if kind.counts_results:
                last = assigner.last_of(piece.event_time_us[inside], piece.side[inside])
                ranges, _ = distinct_rows(first[inside], last)
                numbers = np.union1d(numbers, every_number(*ranges)[1])
            if groups:  # by shard: how far the others have come depends on the cut
                before = inside & ~late
                for shard in range(self._shards):
                    panes = piece.event_time_us[before & (piece.shard == shard)] // grid.pane_us
                    (pane,), count = distinct_rows(panes)
                    in_time[shard] = merge_counts(*in_time[shard], pane, count)
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
        rows = assigner.paned(rows.withColumns({name: F.expr(text) for name, text in lateness.items()}))
        return RowsWithLateness(rows, samples, numbers, assigner)


def _exact_weights(counts: list[Decimal | int], place: Int64) -> Int64:
    """Scale numbers of results so that sums over windows are exact as doubles; shares of a window stay what they are.

    Parameters
    ----------
    counts : list of Decimal or int
        Numbers of results, of any size.
    place : int64[n]
        The place of their window, ascending.
    """
    weight, sums = [int(count) for count in counts], [0] * (int(place[-1]) + 1)
    for at, count in zip(place.tolist(), weight, strict=True):
        sums[at] += count
    shift = [max(total.bit_length() - EXACT_BITS, 0) for total in sums]
    return np.array([count >> shift[at] for at, count in zip(place.tolist(), weight, strict=True)], np.int64)
