"""The stage of the windowed kinds: scan, observe, decide where windows close, answer them, register late rows.

One micro-batch, arrivals ``[seq_from, seq_to)``:

1. *Scan* ``seq`` and event time of the new rows: running maxima, stream time, the interval of each arrival, counted by
   interval and pane (:mod:`latecomer.spark.engine.arrival_scan` says where).
2. *Observe* the windows whose observation ends in these intervals: the kind counts what their contributions required.
   The scan for these begins where the oldest unobserved window can have its first row; a checkpoint of the maxima
   makes that exact.
3. *Decide*: :class:`latecomer.core.windows.control.WindowControl`, one per shard, gives the slack of every interval.
4. *Close*: the watermark after every arrival follows. A row is on time for the windows that the watermark has not
   reached when it arrives: for those from a number on. Most rows are on time for all, so only a list of the others
   goes to Spark. Spark answers the windows that close from stored rows, in plain scans and aggregations. A row for
   which a closed window exists is registered as late.

The first two steps only read, and which windows are observed is a function of delays alone, not of decisions or of
what was written. So both are done while earlier micro-batches are still being written
(:mod:`latecomer.spark.prefetch`).

A stage has a kind (:mod:`latecomer.spark.windows.kind`): what an answer is. It has rows
(:mod:`latecomer.spark.windows.rows`), an observation (:mod:`latecomer.spark.windows.observation`), and a repair
(:mod:`latecomer.spark.windows.repair`) for corrections and backfills.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.arrivals import ArrivalBlocks, Checkpoint
from latecomer.core.time import EARLIEST_US, LATEST_US, NEVER
from latecomer.core.windows.arrivals import ArrivalCounts
from latecomer.core.windows.closing import ClosedWindows, closed_windows
from latecomer.core.windows.control import WindowControl
from latecomer.core.windows.recall_budget import RecallBudget, Steps, steps_of
from latecomer.lake.delta import TIMESTAMP
from latecomer.lake.lake import Lake
from latecomer.ledger.window_accounts import (
    CompletedPeriods,
    WindowAccounts,
    restore_window_accounts,
    take_completed_periods,
)
from latecomer.spark.engine import tables
from latecomer.spark.stage import Batch, BatchCommit, BatchScan, Observation, Outcome, Stage, StageState
from latecomer.spark.windows.arrival_tasks import LateArrivals, closed_along
from latecomer.spark.windows.assigner import number_of_shard
from latecomer.spark.windows.kind import WindowKind
from latecomer.spark.windows.lateness import ObservedSpans, ObservedWindows
from latecomer.spark.windows.observation import WindowObservation
from latecomer.spark.windows.query import WindowQuery, open_query
from latecomer.spark.windows.recall import WindowRecall
from latecomer.spark.windows.repair import WindowRepair
from latecomer.spark.windows.rows import ClosedWindowTable, WindowRows, listed, result_rows
from latecomer.specs.windows import WindowedSpec
from latecomer.strategies.windows import observation_schedules, recall_budget, window_controls

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANY_ANSWERS = 100_000
"""Answers of a micro-batch that are many: then a pass over the rows may save more than it costs."""


@dataclass(frozen=True)
class ArrivalScan(BatchScan):
    """Step 1 of a micro-batch, and which windows are observed in it.

    Attributes
    ----------
    known, marks
        Checkpoints of the scan, the oldest first: before the micro-batch, and after it.
    new, counts
        Its arrivals, and how the control plane counts them.
    spans
        The windows whose observation ends in each interval.
    """

    known: list[Checkpoint]
    marks: list[Checkpoint]
    new: ArrivalBlocks
    counts: ArrivalCounts
    spans: ObservedSpans


@dataclass(frozen=True)
class Decisions:
    """Step 3 of a micro-batch: where windows close, before one of them is answered.

    Attributes
    ----------
    controls
        One per shard, as they are after the micro-batch; a flush is still to come.
    parameters
        Number of the parameters of `adapt` that hold by now; None: there were none.
    late
        New rows for which a window was closed when they arrived.
    before, held_low : int per shard
        Last closed window, and earliest event time of a row in an open one (us), before the micro-batch.
    windows
        Windows that close.
    completed
        Periods of the ledger that are over.
    budget, steps
        The recall budget before the micro-batch, and the steps that begin in it; None without a guarantee.
    """

    controls: list[WindowControl]
    parameters: int | None
    late: LateArrivals
    before: list[int]
    held_low: list[int]
    windows: ClosedWindows
    completed: CompletedPeriods
    budget: RecallBudget | None
    steps: Steps | None


class WindowedStage(Stage):
    """The stage of a windowed query.

    Parameters
    ----------
    kind
        Makes what the query kind computes from the opened query.

    Attributes
    ----------
    query, kind, rows, observation
        The opened query, what its kind computes, its stored rows, and the observation of its windows.
    """

    spec: WindowedSpec

    def __init__(
        self,
        spec: WindowedSpec,
        spark: SparkSession,
        lake: Lake,
        kind: Callable[[WindowQuery[Any]], WindowKind[WindowedSpec]],
    ) -> None:
        super().__init__(spark, lake)
        self.query = open_query(spec, spark, lake, self.cache)
        self.kind = kind(self.query)
        self.spec, self.grid = self.query.spec, self.query.grid
        self.rows = WindowRows(self.query, self.kind)
        self.observation = WindowObservation(self.query, self.kind, self.rows)
        self._repair = WindowRepair(self.query, self.kind, self.rows)

    def scan(self, batch: Batch, state: StageState | None) -> ArrivalScan:
        """Scan the arrivals, and find which windows are to be observed."""
        observation = self.observation
        known = [Checkpoint(seq, list(carry)) for seq, carry in state["marks"]] if state else [observation.start]
        new = observation.arrivals(batch.seq_from, batch.seq_to, known[-1].carry)
        counts = ArrivalCounts.of(new, self.grid, self.spec.shards)
        schedules = observation_schedules(self.spec, state)
        by_shard = zip(schedules, counts.intervals, strict=True)
        spans = [schedule.advance(intervals) for schedule, intervals in by_shard]
        marks = observation.checkpoints(known, new, batch.seq_to, schedules)
        following = {"marks": _as_json(marks), "controls": [schedule.to_dict() for schedule in schedules]}
        return ArrivalScan(None if batch.flush else following, known, marks, new, counts, spans)

    def observe(self, batch: Batch, scan: BatchScan) -> ObservedWindows:
        """Observe the windows whose observation ends in this micro-batch."""
        assert isinstance(scan, ArrivalScan)
        if not any(scan.spans):
            return ObservedWindows([{} for _ in scan.spans])
        first = scan.known[0]
        pieces = itertools.chain(self.observation.pieces(first, batch.seq_from), [scan.new])
        return self.observation.observe(pieces, first.seq, batch.seq_to, scan.spans)

    def process(
        self,
        batch: Batch,
        state: StageState | None,
        observation: Observation | None,
        parameters: dict[str, Any] | None,
    ) -> Outcome:
        """Decide and answer one micro-batch."""
        assert observation is not None
        scan, observed = observation.scan, observation.observed
        assert isinstance(scan, ArrivalScan) and isinstance(observed, ObservedWindows)
        decisions = self._decide(batch, state, scan, observed, parameters)
        new, late_arrivals = scan.new, decisions.late
        accounts = restore_window_accounts(self.spec, state)
        closing = self._closed_in_spark(decisions)
        missed = None
        if len(late_arrivals.seq):
            missed = listed(self.spark, pa.table({"seq": late_arrivals.seq, "c": late_arrivals.closed}))
        on_time = late = None
        all_count = False
        ledger_counts: Mapping[int, Mapping[str, int]] = {}
        size = _AnswerSize(batch, new.rows, closing.count, self._groups(observed), accounts.totals["on_time"])
        if closing.count or batch.number == 0:  # the first commit makes the table, rows or none
            panes = sum(len(rows.panes) for intervals in scan.counts.intervals for rows in intervals)
            available = self._available(batch, decisions, closing)
            rows, all_count = self.kind.reduced(available, missed, new.rows // max(panes, 1))
            many = bool(self.spec.group_by) and size.is_large()
            answers = self.kind.answers(_counted(rows, missed), closing, many_answers=many)
            ledger_counts = answers.ledger_counts
            on_time = result_rows(self.query, answers.rows, "on_time", "closed_seq")
        if missed is not None or batch.number == 0:
            late = self._late_rows(batch, late_arrivals, all_count)
        driver_local = {"late"} if len(late_arrivals.seq) <= tables.DRIVER_LOCAL_ROWS else set()
        if size.is_small(self.kind.answer_rows, self.grid.per_row):
            driver_local.add("on_time")
        recall = None
        if decisions.budget is not None and decisions.steps is not None:
            known = decisions.budget, batch, decisions.steps
            some = on_time is not None, missed is not None
            recall = WindowRecall(self.query, self.kind, self._repair, *known, *some)
        finalize = partial(self._finalize, batch, scan, decisions, accounts, ledger_counts, missed is not None, recall)
        return Outcome(on_time, late, finalize, driver_local, None if recall is None else recall.rows)

    def repair(self, late: DataFrame, repaired_in: pa.Table) -> DataFrame:
        """Return the corrections for registered late rows."""
        return self._repair.repair(late, repaired_in)

    def recompute(self, from_us: int, to_us: int, seq_to: int, state: StageState) -> DataFrame:
        """Answer, from all rows before `seq_to`, the closed windows that start in ``[from_us, to_us)``."""
        return self._repair.recompute(from_us, to_us, seq_to, state)

    def most_corrections(self, late: int) -> int:
        """Return the kind's upper bound of the corrections that so many late rows bring; 0 where none is known."""
        return self.kind.most_corrections(late)

    # ------------------------------------------------------------------------------------------------------ decisions

    def _decide(
        self,
        batch: Batch,
        state: StageState | None,
        scan: ArrivalScan,
        observed: ObservedWindows,
        parameters: dict[str, Any] | None,
    ) -> Decisions:
        """Decide where windows close."""
        controls, number = self._controls(state, parameters)
        before = [self.grid.last_closed(control.watermark()) for control in controls]
        held_low = [_oldest(control, self.kind.assigner.lookback_us) for control in controls]
        for control, rows in zip(controls, scan.counts.before_time, strict=True):
            control.hold(*rows)
        held = [control.panes for control in controls]
        interval = controls[0].interval
        by_shard = zip(controls, scan.counts.intervals, observed.by_interval, strict=True)
        watermarks = [control.step(intervals, windows) for control, intervals, windows in by_shard]
        steps_of_shards, late = closed_along(scan.new, watermarks, self.grid, self.kind.assigner)
        ends = [None if control.interval is None else control.t_last_us for control in controls]
        flush = (batch.seq_to, ends) if batch.flush else None
        windows = closed_windows(self.grid, steps_of_shards, scan.counts, before, held, flush)
        budget, steps = recall_budget(self.spec, state), None
        if budget is not None:  # with one shard
            last = None if flush is None or ends[0] is None else (batch.seq_to, ends[0])
            steps = steps_of(scan.new, watermarks[0], interval, self.grid.slide_us, last)
        completed = take_completed_periods(controls, guaranteed=budget is not None)
        return Decisions(controls, number, late, before, held_low, windows, completed, budget, steps)

    def _controls(
        self, state: StageState | None, parameters: dict[str, Any] | None
    ) -> tuple[list[WindowControl], int | None]:
        """Restore the controls with what `adapt` has learnt since, and return the number of that."""
        number = (state or {}).get("parameters")
        if parameters and parameters["number"] != number:
            return window_controls(self.spec, state, parameters["policies"]), parameters["number"]
        return window_controls(self.spec, state), number

    def _finalize(
        self,
        batch: Batch,
        scan: ArrivalScan,
        decisions: Decisions,
        accounts: WindowAccounts,
        ledger_counts: Mapping[int, Mapping[str, int]],
        some_late: bool,
        recall: WindowRecall | None,
        produced: dict[int, int],
    ) -> BatchCommit:
        """Return ledger rows and state, once results and late rows are committed; `produced` as in :class:`Outcome`."""
        waits = batch.sum_waits(self.lake, self.spec.name) if produced else {}
        published = {period: (count, waits.get(period, 0)) for period, count in produced.items()}
        accounts.add(published, scan.counts.rows, self._registered(batch) if some_late else 0)
        accounts.note(ledger_counts)
        if recall is not None:
            accounts.note(recall.counts)
        controls = decisions.controls
        ledger = accounts.close(decisions.completed, controls if batch.flush else [])
        if batch.flush:
            for control in controls:
                control.flush()
        after = {
            "controls": [control.to_dict() for control in controls],
            "marks": _as_json(scan.marks),
            "parameters": decisions.parameters,
            "books": accounts.to_dict(),
        }
        if recall is not None:
            after["recall"] = recall.budget.to_dict()
        return BatchCommit(ledger, after, dict(accounts.totals))

    def _groups(self, observed: ObservedWindows) -> int | None:
        """About how many groups a window has; None where that is not known."""
        return observed.groups if self.spec.group_by else 1

    # ----------------------------------------------------------------------------------------------------------- rows

    def _closed_in_spark(self, decisions: Decisions) -> ClosedWindowTable:
        """Convert the windows that close for Spark."""
        windows = decisions.windows
        columns = {"shard": windows.shard, "_m": windows.window, "closed_seq": windows.seq, "wait_us": windows.wait_us}
        rows = tables.to_spark(self.spark, pa.table(columns))
        return ClosedWindowTable(min(decisions.before) + 1, list(windows.after), rows, len(windows.window))

    def _available(self, batch: Batch, decisions: Decisions, closing: ClosedWindowTable) -> DataFrame:
        """Read rows that can be in a window that closes now, with ``c``: new ones (null), and those of open windows."""
        from pyspark.sql import functions as F

        high: int | None = None
        if not self.kind.assigner.lookback_us:  # rows lie in their windows
            high = max(min(self.grid.end(max(closing.after)) - 1, LATEST_US), EARLIEST_US)
        fresh = self.rows.stored(seq_from=batch.seq_from, seq_to=batch.seq_to, high_us=high)
        fresh = fresh.withColumn("c", F.lit(None).cast("bigint"))
        if batch.seq_from == 0:
            return tables.codegen_barrier(fresh)
        lowest = min(decisions.held_low)
        low = min(lowest, LATEST_US) if lowest > EARLIEST_US else None
        held = self.rows.stored(seq_to=batch.seq_from, low_us=low, high_us=high)
        held = held.withColumn("c", number_of_shard(decisions.before))
        held = held.where(F.col("c") < self.kind.assigner.last_of("ts"))
        return tables.codegen_barrier(fresh.unionByName(held))

    def _late_rows(self, batch: Batch, late: LateArrivals, all_count: bool) -> DataFrame | pa.Table:
        """Return new rows for which a window was closed; where every row counts (``ok``) their payload is not read."""
        sources = self.query.sources
        all_count = all_count or all(self.kind.payload(side)["ok"] == "true" for side in range(len(sources)))
        times, side = late.event_time_us, late.side
        first = self.kind.assigner.first_of(times, side)
        last = np.minimum(self.kind.assigner.last_of(times, side), late.closed)
        missed = pa.table(
            {
                "seq": pa.array(late.seq),
                "stream": pa.array(sources, pa.string()).take(pa.array(side)),
                "event_ts": pa.array(times).cast(TIMESTAMP),
                "windows_from": pa.array(first * self.grid.slide_us).cast(TIMESTAMP),
                "windows_to": pa.array(self.grid.end(last)).cast(TIMESTAMP),
            }
        )
        if not missed.num_rows or all_count:
            return missed
        counted = self.rows.stored(seq_from=batch.seq_from, seq_to=batch.seq_to).where("ok").select("seq")
        return counted.join(listed(self.spark, missed), "seq")

    def _registered(self, batch: Batch) -> int:
        """Count the rows of the micro-batch that were committed as late."""
        arrivals = (pc.field("seq") >= batch.seq_from) & (pc.field("seq") < batch.seq_to)
        return self.lake.table("late", self.spec.name).count(arrivals)


@dataclass(frozen=True)
class _AnswerSize:
    """The knowledge of the number of answers of a micro-batch before they are computed.

    Attributes
    ----------
    rows
        Its new rows.
    closed
        Windows that close.
    groups
        About how many groups a window has; None where that is not known.
    published
        On-time result rows of the micro-batches before.
    """

    batch: Batch
    rows: int
    closed: int
    groups: int | None
    published: int

    def is_small(self, answer_rows: int, windows_per_row: int) -> bool:
        """True where few answers are expected: as so far, by the groups, or by the new rows where there are no others.

        `answer_rows` are the most result rows of a window and group, 0 where there may be any number.
        """
        number = self.batch.number
        if number and 2 * self.published <= number * tables.DRIVER_LOCAL_ROWS:
            return True
        bounds = [] if self.groups is None else [self.closed * self.groups * answer_rows]
        if number == 0:
            bounds.append(self.rows * windows_per_row)
        return answer_rows > 0 and any(bound <= tables.DRIVER_LOCAL_ROWS for bound in bounds)

    def is_large(self) -> bool:
        """True where many answers are expected: by the groups, as so far, or by the new rows."""
        if self.groups is not None:
            return self.closed * self.groups > MANY_ANSWERS
        return (self.published // self.batch.number if self.batch.number else self.rows) > MANY_ANSWERS


def _counted(rows: DataFrame, missed: DataFrame | None) -> DataFrame:
    """Keep rows that count, with ``c``.

    `missed` holds ``seq`` and ``c`` of new rows for which windows up to number `c` were closed.
    """
    from pyspark.sql import functions as F

    rows = rows.where("ok")
    if missed is None:
        return rows
    known = rows.join(missed.withColumnRenamed("c", "_closed"), "seq", "left")
    return known.withColumn("c", F.coalesce("c", "_closed")).drop("_closed")


def _as_json(marks: list[Checkpoint]) -> list[list[int | list[int]]]:
    return [[mark.seq, mark.carry] for mark in marks]


def _oldest(control: WindowControl, lookback_us: int) -> int:
    """Return the earliest event time (us) of a row in an open window."""
    if lookback_us and control.watermark() > NEVER:
        first = control.grid.last_closed(control.watermark()) + 1
        return max(first * control.grid.slide_us - lookback_us, EARLIEST_US)
    if lookback_us:
        return EARLIEST_US
    if not len(control.panes):
        return LATEST_US
    return max(int(control.panes[0]) * control.grid.pane_us, EARLIEST_US)
