"""Windowed kinds, data plane: scan, place, close, register. What an answer is, each kind says for itself.

One micro-batch, arrivals ``[seq_from, seq_to)``:

1. *Scan* the new rows' ``seq`` and event time, here and not in Spark: running maxima, stream time, the interval of each arrival
   (:mod:`latecomer.core.arrivals`; a micro-batch's size bounds the memory).
2. *Observe* the windows whose observation ends in these intervals (the kind says what their contributions required). The scan
   for these begins where the oldest unobserved window can have its first row; a checkpoint of the maxima makes that exact.
3. *Decide*: :class:`latecomer.core.windows.control.WindowControl`, one per shard, gives the slack of every interval.
4. *Close*: the watermark after every arrival follows. A row is on time for the windows the watermark has not reached when
   it arrives: for those from number `o` on. Most rows are on time for all, so only a list of the others goes to Spark, which
   answers the windows that close from stored rows, in plain scans and aggregations. A row for which a closed window exists is
   registered as late.

The first two only read, and which windows are observed is a function of delays alone, not of what was decided or written: so both are done
while micro-batches before are still being written (:mod:`latecomer.spark.prefetch`).

Reading rows and placing them in windows is :mod:`latecomer.spark.windows.rows`, what windows required
:mod:`latecomer.spark.windows.observation`, repairs and backfills :mod:`latecomer.spark.windows.repair`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.arrivals import Arrivals, Checkpoint
from latecomer.core.time import EARLIEST_US, LATEST_US, NEVER
from latecomer.core.windows.arrivals import Arrived, closed_windows, overtaken
from latecomer.core.windows.closing import Closings, closings
from latecomer.core.windows.control import WindowControl
from latecomer.core.windows.interfaces import Observed
from latecomer.core.windows.observation_schedule import Lookout
from latecomer.lake.delta import TIMESTAMP
from latecomer.ledger.open_periods import restore_window_accounts
from latecomer.ledger.window_accounts import CompletedPeriods, WindowAccounts, take_completed_periods
from latecomer.spark.engine import tables
from latecomer.spark.stage import Batch, BatchCommit, BatchScan, Observation, Outcome
from latecomer.spark.windows.observation import WindowHistory
from latecomer.spark.windows.repair import WindowRepair
from latecomer.spark.windows.rows import Closing
from latecomer.strategies.windows import observation_schedules, window_controls

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MANY_ANSWERS = 100_000
"""Answers of a micro-batch that are many: then a pass over the rows may save more than it costs."""

CHECKPOINT_ROWS = 1 << 18
"""Arrivals from one checkpoint of the scan to the next: so few, at most, are read again for nothing when windows are observed."""


@dataclass(frozen=True)
class ArrivalScan(BatchScan):
    """Step 1 of a micro-batch, and which windows are observed in it.

    Attributes
    ----------
    known, marks
        Checkpoints of the scan, the oldest first: before the micro-batch, and after it.
    new, arrived
        Its arrivals, by row and as the control plane counted them.
    wanted
        Per shard and interval, the first and last window whose observation ends there.
    """

    known: list[Checkpoint]
    marks: list[Checkpoint]
    new: Arrivals
    arrived: Arrived
    wanted: list[dict[int, tuple[int, int]]]


@dataclass(frozen=True)
class Placed:
    """Step 3 of a micro-batch: where windows close, before one of them is answered.

    Attributes
    ----------
    controls
        One per shard, as they are after the micro-batch (a flush is still to come).
    used
        Number of what `adapt` learnt last that they know; None: nothing.
    closed : int64[n]
        Number of the last closed window at each arrival.
    before, held_low : int per shard
        Last closed window, and earliest event time of a row in an open one (us), before the micro-batch.
    closings
        Windows that close.
    left
        Periods of the ledger that are over.
    """

    controls: list[WindowControl]
    used: int | None
    closed: np.ndarray
    before: list[int]
    held_low: list[int]
    closings: Closings
    left: CompletedPeriods


class WindowedStage(WindowHistory, WindowRepair):
    """Base of the windowed kinds' stages; subclasses fill in what raises ``NotImplementedError``."""

    def scan(self, batch: Batch, state: dict[str, Any] | None) -> ArrivalScan:
        """The arrivals, and which windows are to be observed."""
        known = [Checkpoint(seq, list(carry)) for seq, carry in state["marks"]] if state else [self._start()]
        new = self._arrivals(batch.seq_from, batch.seq_to, known[-1].carry)
        arrived = Arrived.of(new, self.grid, self.shards)
        lookouts = observation_schedules(self.spec, state)
        wanted = [lookout.schedule(each) for lookout, each in zip(lookouts, arrived.intervals, strict=True)]
        marks = self._following(known, new, batch.seq_to, lookouts)
        following = {"marks": _as_json(marks), "controls": [each.to_dict() for each in lookouts]}
        return ArrivalScan(None if batch.flush else following, known, marks, new, arrived, wanted)

    def observe(self, batch: Batch, scan: BatchScan) -> list[dict[int, list[Observed]]]:
        """Per shard and interval, the windows whose observation ends there."""
        assert isinstance(scan, ArrivalScan)
        if not any(scan.wanted):
            return [{} for _ in scan.wanted]
        first = scan.known[0]
        pieces = itertools.chain(self._pieces(first, batch.seq_from), [scan.new])
        return self.observed(self.waited(pieces, first.seq, batch.seq_to, scan.wanted), scan.wanted)

    def _decide(
        self,
        batch: Batch,
        state: dict[str, Any] | None,
        scan: ArrivalScan,
        seen: list[dict[int, list[Observed]]],
        parameters: dict[str, Any] | None,
    ) -> Placed:
        """Where windows close."""
        controls, used = self._controls(state, parameters)
        before = [self.grid.last_closed(control.watermark()) for control in controls]
        held_low = [_oldest(control, self.lookback_us) for control in controls]
        for control, waiting in zip(controls, scan.arrived.waiting, strict=True):
            control.wait(*waiting)
        openings = [control.panes for control in controls]
        each_step = zip(controls, scan.arrived.intervals, seen, strict=True)
        placements = [control.step(intervals, found) for control, intervals, found in each_step]
        closed = closed_windows(scan.new, placements, self.grid)
        ends = [None if control.interval is None else control.t_last_us for control in controls]
        flush = (batch.seq_to, ends) if batch.flush else None
        closing = closings(self.grid, scan.new, closed, scan.arrived, before, openings, flush)
        return Placed(controls, used, closed, before, held_low, closing, take_completed_periods(controls))

    def process(
        self,
        batch: Batch,
        state: dict[str, Any] | None,
        observation: Observation | None,
        parameters: dict[str, Any] | None,
    ) -> Outcome:
        """Decide and answer one micro-batch."""
        assert observation is not None
        scan = observation.scan
        assert isinstance(scan, ArrivalScan)
        decided = self._decide(batch, state, scan, observation.observed, parameters)
        new, arrived, closed = scan.new, scan.arrived, decided.closed
        books = restore_window_accounts(self.spec, state)
        closing = self._closing(decided.closings, decided.before)
        behind = self._behind(new, closed)
        missed = self._listed(pa.table({"seq": new.seq[behind], "c": closed[behind]})) if behind.any() else None
        on_time = late = None
        all_count = False
        if closing.count or batch.number == 0:  # the first commit makes the table, rows or none
            density = len(new.seq) // max(sum(len(each.panes) for own in arrived.intervals for each in own), 1)
            available = self._available(batch, decided.before, decided.held_low, closing)
            rows, all_count = self.reduced(available, missed, density)
            rows = self._marked(rows, missed)
            self.many_answers = self._many_answers(batch, len(new.seq), closing, books)
            on_time = self._results(self.answers(rows, closing), "on_time", "closed_seq")
        if missed is not None or batch.number == 0:
            late = self._late_rows(batch, new, behind, closed, all_count)
        few = {"late"} if np.count_nonzero(behind) <= tables.DRIVER_LOCAL_ROWS else set()
        if self._few_answers(batch, len(new.seq), closing, books):
            few.add("on_time")
        finalize = partial(self._finalize, batch, scan, decided, books, missed is not None)
        return Outcome(on_time, late, finalize, few)

    def _controls(
        self, state: dict[str, Any] | None, parameters: dict[str, Any] | None
    ) -> tuple[list[WindowControl], int | None]:
        """As the last micro-batch left them, with what `adapt` has learnt since; and the number of that."""
        controls = window_controls(self.spec, state)
        used = (state or {}).get("parameters")
        if parameters and parameters["number"] != used:
            used = parameters["number"]
            for control, learnt in zip(controls, parameters["policies"], strict=True):
                control.policy.restore(learnt)
        return controls, used

    def _following(
        self, marks: list[Checkpoint], new: Arrivals, seq_to: int, lookouts: list[Lookout]
    ) -> list[Checkpoint]:
        """Checkpoints that later scans may need, the oldest first; `new` are the last arrivals before `seq_to`."""
        last = Checkpoint(seq_to, new.carry)
        if not any(each.observing for each in lookouts):
            return [last]
        found = [*marks, *new.checkpoints(CHECKPOINT_ROWS), last]
        while len(found) > 1 and self._passed(found[1], lookouts):
            found.pop(0)
        return found

    def _behind(self, new: Arrivals, closed: np.ndarray) -> np.ndarray:
        """For which new rows a window was closed already, bool[n]; `closed` is the last closed one at each arrival."""
        if self.lookback_us:
            return np.asarray(closed >= self.first_of(new.event_time_us, new.side))
        # the same without a division
        return np.asarray(overtaken(new.event_time_us, closed, self.grid.size_us, self.grid.slide_us))

    def _finalize(
        self,
        batch: Batch,
        scan: ArrivalScan,
        placed: Placed,
        books: WindowAccounts,
        some_late: bool,
        produced: dict[int, int],
    ) -> BatchCommit:
        """Books and state, once results and late rows are committed; `produced` as :class:`Outcome` has it."""
        waits = batch.sum_waits(self.lake, self.spec.name) if produced else {}
        published = {period: (count, waits.get(period, 0)) for period, count in produced.items()}
        books.add(published, scan.arrived.rows, self._registered(batch) if some_late else 0)
        books.note(self.extras)
        controls = placed.controls
        ledger = books.close(placed.left, controls if batch.flush else [])
        if batch.flush:
            for control in controls:
                control.flush()
        after = {
            "controls": [control.to_dict() for control in controls],
            "marks": _as_json(scan.marks),
            "parameters": placed.used,
            "books": books.to_dict(),
        }
        return BatchCommit(ledger, after, dict(books.totals))

    def _few_answers(self, batch: Batch, rows: int, closing: Closing, books: WindowAccounts) -> bool:
        """May the answers be few: by the groups seen, by `rows` new rows where there are no others, or as they have been few so far?"""
        if batch.number and 2 * books.totals["on_time"] <= batch.number * tables.DRIVER_LOCAL_ROWS:
            return True
        groups = self.groups_seen if self.leading else 1
        most = [] if groups is None else [closing.count * groups * self.answer_rows]
        if batch.number == 0:
            most.append(rows * self.grid.per_row)
        return self.answer_rows > 0 and any(bound <= tables.DRIVER_LOCAL_ROWS for bound in most)

    def _many_answers(self, batch: Batch, rows: int, closing: Closing, books: WindowAccounts) -> bool:
        """Are the answers expected to be many: by the groups seen, as they have been so far, or by the `rows` there are?"""
        if not self.leading:
            return False
        if self.groups_seen is not None:
            return closing.count * self.groups_seen > MANY_ANSWERS
        return (books.totals["on_time"] // batch.number if batch.number else rows) > MANY_ANSWERS

    def _closing(self, found: Closings, before: list[int]) -> Closing:
        """Closing windows, handed to Spark; `before` are the last ones per shard that were closed already."""
        columns = {"shard": found.shard, "_m": found.window, "closed_seq": found.seq, "wait_us": found.wait_us}
        handed = tables.to_spark(self.spark, pa.table(columns))
        return Closing(min(before) + 1, list(found.after), handed, len(found.window))

    def _available(self, batch: Batch, before: list[int], low: list[int], closing: Closing) -> DataFrame:
        """Rows that can be in a window that closes now, with ``c``: new ones (null), and stored ones of windows that were open then."""
        from pyspark.sql import functions as F

        high: int | None = None
        if not self.lookback_us:  # rows lie in their windows
            high = max(min(self.grid.end(max(closing.after)) - 1, LATEST_US), EARLIEST_US)
        fresh = self.stored(seq_from=batch.seq_from, seq_to=batch.seq_to, high_us=high)
        fresh = fresh.withColumn("c", F.lit(None).cast("bigint"))
        if batch.seq_from == 0:
            return tables.codegen_barrier(fresh)
        lowest = min(low)
        bound = min(lowest, LATEST_US) if lowest > EARLIEST_US else None
        held = self.stored(seq_to=batch.seq_from, low_us=bound, high_us=high)
        held = held.withColumn("c", self._by_shard(before)).where(F.col("c") < self.last_of("ts"))
        return tables.codegen_barrier(fresh.unionByName(held))

    def _marked(self, rows: DataFrame, missed: DataFrame | None) -> DataFrame:
        """Rows that count, with ``c``; `missed` holds ``seq`` and ``c`` of new rows for which windows up to number `c` were closed."""
        from pyspark.sql import functions as F

        rows = rows.where("ok")
        if missed is None:
            return rows
        known = rows.join(missed.withColumnRenamed("c", "_closed"), "seq", "left")
        return known.withColumn("c", F.coalesce("c", "_closed")).drop("_closed")

    def _late_rows(
        self, batch: Batch, new: Arrivals, behind: np.ndarray, closed: np.ndarray, all_count: bool
    ) -> DataFrame | pa.Table:
        """New rows for which a window was closed already; where every row counts (``ok``) their payload is not looked at."""
        all_count = all_count or all(self.payload(side)["ok"] == "true" for side in range(len(self.sources)))
        times, side = new.event_time_us[behind], new.side[behind]
        first, last = self.first_of(times, side), np.minimum(self.last_of(times, side), closed[behind])
        columns: dict[str, Any] = {
            "seq": new.seq[behind],
            "stream": pa.array(self.sources, pa.string()).take(pa.array(side)),
            "event_ts": pa.array(times).cast(TIMESTAMP),
            "windows_from": pa.array(first * self.grid.slide_us).cast(TIMESTAMP),
            "windows_to": pa.array(self.grid.end(last)).cast(TIMESTAMP),
        }
        missed = pa.table(columns)
        if not missed.num_rows or all_count:
            return missed
        counted = self.stored(seq_from=batch.seq_from, seq_to=batch.seq_to).where("ok").select("seq")
        return counted.join(self._listed(missed), "seq")

    def _registered(self, batch: Batch) -> int:
        """Rows of the micro-batch that were committed as late."""
        mine = (pc.field("seq") >= batch.seq_from) & (pc.field("seq") < batch.seq_to)
        return self.lake.table("late", self.spec.name).count(mine)


def _as_json(marks: list[Checkpoint]) -> list[list[Any]]:
    return [[mark.seq, mark.carry] for mark in marks]


def _oldest(control: WindowControl, lookback_us: int) -> int:
    """Earliest event time of a row in an open window."""
    if lookback_us and control.watermark() > NEVER:
        first = control.grid.last_closed(control.watermark()) + 1
        return max(first * control.grid.slide_us - lookback_us, EARLIEST_US)
    if lookback_us:
        return EARLIEST_US
    if not len(control.panes):
        return LATEST_US
    return max(int(control.panes[0]) * control.grid.pane_us, EARLIEST_US)
