"""Windowed kinds, data plane: scan, place, close, register. What an answer is, each kind says for itself.

One micro-batch, arrivals ``[seq_from, seq_to)``:

1. *Scan* the new rows' ``seq`` and event time, here and not in Spark: running maxima, stream time, the interval of each arrival
   (:mod:`latecomer.core.arrivals`; a micro-batch's size bounds the memory).
2. *Observe* the windows whose observation ends in these intervals (the kind says what their contributions required). The scan
   for these begins where the oldest unobserved window can have its first row; a checkpoint of the maxima makes that exact.
3. *Decide*: :class:`latecomer.core.windows.WindowControl`, one per shard, gives the slack of every interval.
4. *Close*: the watermark after every arrival follows. A row is on time for the windows the watermark has not reached when
   it arrives: for those from number `o` on. Most rows are on time for all, so only a list of the others goes to Spark, which
   answers the windows that close from stored rows, in plain scans and aggregations. A row for which a closed window exists is
   registered as late.

Rows of open windows are no copy: they are a range of the stored events, found by file statistics.

`repair` takes Gamma batches of late rows: the answer of a touched window after the batch that arrival `C` closed is the
answer over all its rows with ``seq <= C``, whatever was on time. So corrections are a function of the arrival order too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.arrivals import Arrivals, Arrived, Checkpoint, first_at, overtaken
from latecomer.core.histogram import merge_counts
from latecomer.core.order import distinct
from latecomer.core.slack import Fixed
from latecomer.core.thinning import Thinning, crowded
from latecomer.core.time import NEVER
from latecomer.core.windows import Grid, Observed, SlackPolicy, WindowControl, every_number
from latecomer.lake import small
from latecomer.lake.location import Lake
from latecomer.spark import scan, tables
from latecomer.spark.columns import (
    EARLIEST_US,
    LATEST_US,
    floor_div,
    floor_div_sql,
    floor_to,
    join_null_safe,
    named,
    quoted,
)
from latecomer.spark.ledger import TIMESTAMP
from latecomer.spark.query import open_streams
from latecomer.spark.session import expects_few
from latecomer.spark.stage import Batch, Outcome, Settled, Stage
from latecomer.spark.thinning import thinned, thinnings
from latecomer.spark.window_books import WindowBooks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


PIECE_ROWS = 1 << 22
"""Arrivals that are looked at together when history is read again."""
FEW_BATCHES = 100
"""Gamma batches that a row's own is looked for one by one."""
MANY_ANSWERS = 100_000
"""Answers of a micro-batch that are many: then a pass over the rows may save more than it costs."""
BROADCAST_ROWS = 1 << 20
"""Entries of a list of arrivals up to which every task gets a copy."""


def controls_of(spec: Any, policies: list[SlackPolicy], state: dict[str, Any] | None) -> list[WindowControl]:
    """One control plane per shard, as a micro-batch's state left them."""
    grid = Grid(spec.window.size_us, spec.window.slide_us)
    found = [WindowControl(grid, spec.period_us, policy, spec.observe_us) for policy in policies]
    if state is not None:
        for control, each in zip(found, state["controls"], strict=True):
            control.restore(each)
    return found


def books_of(spec: Any, state: dict[str, Any] | None) -> WindowBooks:
    """The ledger's open periods, as a micro-batch's state left them."""
    books = WindowBooks(spec.period_us, spec.target)
    if state is not None:
        books.restore(state["books"])
    return books


@dataclass
class Closing:
    """Windows that close in this micro-batch.

    Attributes
    ----------
    first : int
        No window before this number closes.
    after : list of int
        Per shard: number of the last window that is closed after the micro-batch.
    table : DataFrame
        Columns ``shard``, ``_m`` (window number), ``closed_seq`` (the arrival that closed it), ``wait_us``; small.
    count : int
        Its rows.
    """

    first: int
    after: list[int]
    table: Any
    count: int


@dataclass
class Due:
    """Late rows to repair.

    Attributes
    ----------
    rows : DataFrame
        Payload, ``seq``, ``ts``, ``side``, ``m_from``, ``m_to`` (windows that missed the row) and ``repaired_in``; cached.
    first, last : int
        Least and greatest window number that missed a row.
    closes : int64[b]
        Arrivals that closed the Gamma batches, ascending.
    """

    rows: Any
    first: int
    last: int
    closes: np.ndarray

    @property
    def seq(self) -> int:
        """Arrival that closed the last Gamma batch."""
        return int(self.closes[-1])


class WindowedStage(Stage):
    """Base of the windowed kinds' stages; subclasses fill in what raises ``NotImplementedError``."""

    def __init__(self, spec: Any, spark: SparkSession, lake: Lake, parameters: dict[str, Any] | None = None) -> None:
        self.spec, self.spark, self.lake, self.parameters = spec, spark, lake, parameters
        self.grid = Grid(spec.window.size_us, spec.window.slide_us)
        self.events = open_streams(spec, spark, lake)
        self.sources = list(self.events)
        self.extras: dict[int, dict[str, int]] = {}
        self.shards: int = spec.shards
        self.groups_seen: int | None = None  # in the windows that were observed last
        self.many_answers = False  # are those of this micro-batch expected to be?
        self.check()

    def check(self) -> None:
        """Refuse a query that its streams cannot answer."""

    @staticmethod
    def policies_of(spec: Any, grid: Grid) -> list[SlackPolicy]:
        """One slack policy per shard, at its start. Here the query's constant, as nothing is estimated."""
        return [Fixed(spec.strategy.slack_us)]

    def policies(self) -> list[SlackPolicy]:
        """One slack policy per shard, at its start."""
        return self.policies_of(self.spec, self.grid)

    @classmethod
    def open_ledger(cls, spec: Any, state: dict[str, Any]) -> pa.Table | None:
        """Ledger rows of periods that are still open. Needs no Spark."""
        policies = cls.policies_of(spec, Grid(spec.window.size_us, spec.window.slide_us))
        return books_of(spec, state).open(controls_of(spec, policies, state))

    @classmethod
    def last_closed(cls, spec: Any, state: dict[str, Any]) -> int:
        """Number of the last window up to which none is open in any shard, as a micro-batch's state left them."""
        policies = cls.policies_of(spec, Grid(spec.window.size_us, spec.window.slide_us))
        controls = controls_of(spec, policies, state)
        waiting = [control for control in controls if len(control.panes)]
        closed = [control.grid.last_closed(control.watermark()) for control in waiting or controls]
        return min(closed) if waiting else max(closed)

    @property
    def groups(self) -> list[str]:
        """Names of the group columns inside the stage."""
        return [f"g{i}" for i in range(len(self.leading))]

    def payload(self, source: int) -> dict[str, str]:
        """Columns a stage works with: name -> SQL over the source's own columns; ``ok`` (does the row count?) included."""
        raise NotImplementedError

    def shard_sql(self) -> str:
        """Shard of a row, SQL over payload columns."""
        return "0"

    def observed(
        self, rows: DataFrame, wanted: list[dict[int, tuple[int, int]]], thinning: list[Thinning]
    ) -> list[dict[int, list[Observed]]]:
        """Per shard and interval, the windows that were asked for; `rows` and `thinning` as :meth:`waited` gives them."""
        raise NotImplementedError

    def answers(self, rows: DataFrame, closing: Closing) -> DataFrame:
        """Result columns of closed windows with ``shard``, ``_m`` and ``closed_seq``, ``wait_us``.

        `rows` has payload, ``seq``, ``ts``, ``side``, ``shard`` and ``c``: windows up to this number were closed when the row came
        (null: none of its own); see :meth:`open_from`.
        """
        raise NotImplementedError

    def corrected(self, due: Due) -> DataFrame:
        """Corrections: result columns with ``_m``, ``revision`` and ``repaired_in``."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------- micro-batch

    def process(self, batch: Batch, state: dict[str, Any] | None) -> Outcome:
        """Answer one micro-batch."""
        controls, books = controls_of(self.spec, self.policies(), state), books_of(self.spec, state)
        used = (state or {}).get("parameters")
        if self.parameters and self.parameters["number"] != used:
            used = self.parameters["number"]
            for control, learnt in zip(controls, self.parameters["policies"], strict=True):
                control.policy.restore(learnt)
        marks = [Checkpoint(seq, list(carry)) for seq, carry in state["marks"]] if state else [self._start()]
        observing = any(control.policy.needs_observation for control in controls)
        new = self._arrivals(batch.seq_from, batch.seq_to, marks[-1].carry)
        arrived = Arrived.of(new, self.grid, self.shards)
        wanted = [control.schedule(each) for control, each in zip(controls, arrived.intervals, strict=True)]
        seen: list[dict[int, list[Observed]]] = [{} for _ in controls]
        if any(wanted):
            pieces = itertools.chain(self._pieces(marks[0], batch.seq_from), [new])
            waited, thinning = self.waited(pieces, marks[0].seq, batch.seq_to, wanted)
            seen = self.observed(waited, wanted, thinning)
        before = [self.grid.last_closed(control.watermark()) for control in controls]
        held_low = [_oldest(control, self.lookback_us) for control in controls]
        for control, waiting in zip(controls, arrived.waiting, strict=True):
            control.wait(*waiting)
        openings = [control.panes for control in controls]
        placements = [
            control.step(each, found) for control, each, found in zip(controls, arrived.intervals, seen, strict=True)
        ]
        closed = new.closed(placements, self.grid)
        closing = self._closing(new, closed, batch, controls, arrived, before, openings)
        if self.lookback_us:
            behind = closed >= self.first_of(new.event_time_us, new.side)
        else:  # the same without a division
            behind = overtaken(new.event_time_us, closed, self.grid.size_us, self.grid.slide_us)
        missed = self._listed(pa.table({"seq": new.seq[behind], "c": closed[behind]})) if behind.any() else None
        on_time = late = None
        all_count = False
        if closing.count or batch.number == 0:  # the first commit makes the table, rows or none
            density = len(new.seq) // max(sum(len(each.panes) for own in arrived.intervals for each in own), 1)
            rows, all_count = self.reduced(self._available(batch, before, held_low, closing), missed, density)
            rows = self._marked(rows, missed)
            self.many_answers = self._many_answers(batch, len(new.seq), closing, books)
            on_time = self._results(self.answers(rows, closing), "on_time", "closed_seq")
        if missed is not None or batch.number == 0:
            late = self._late_rows(batch, new, behind, closed, all_count)

        def settle(produced: dict[int, int]) -> Settled:
            waits = batch.waits(self.lake, self.spec.name) if produced else {}
            published = {period: (count, waits.get(period, 0)) for period, count in produced.items()}
            books.add(published, arrived.rows, self._registered(batch) if missed is not None else 0)
            books.note(self.extras)
            ledger = books.close(controls, flush=batch.flush)
            if batch.flush:
                for control in controls:
                    control.flush()
            following = [*marks, Checkpoint(batch.seq_to, new.carry)]
            while len(following) > 1 and (not observing or self._passed(following[1], controls)):
                following.pop(0)
            after = {
                "controls": [control.to_dict() for control in controls],
                "books": books.to_dict(),
                "marks": [[mark.seq, mark.carry] for mark in following],
                "parameters": used,
            }
            return Settled(ledger, after, dict(books.totals))

        few = {"late"} if np.count_nonzero(behind) <= tables.FEW_ROWS else set()
        if self._few_answers(batch, len(new.seq), closing, books):
            few.add("on_time")
        return Outcome(on_time, late, settle, few)

    def _few_answers(self, batch: Batch, rows: int, closing: Closing, books: WindowBooks) -> bool:
        """May the answers be few: by the groups seen, by `rows` new rows where there are no others, or as they have been few so far?"""
        if batch.number and 2 * books.totals["on_time"] <= batch.number * tables.FEW_ROWS:
            return True
        groups = self.groups_seen if self.leading else 1
        most = [] if groups is None else [closing.count * groups * self.answer_rows]
        if batch.number == 0:
            most.append(rows * -(-self.grid.size_us // self.grid.slide_us))
        return self.answer_rows > 0 and any(bound <= tables.FEW_ROWS for bound in most)

    def _many_answers(self, batch: Batch, rows: int, closing: Closing, books: WindowBooks) -> bool:
        """Are the answers expected to be many: by the groups seen, as they have been so far, or by the `rows` there are?"""
        if not self.leading:
            return False
        if self.groups_seen is not None:
            return closing.count * self.groups_seen > MANY_ANSWERS
        return (books.totals["on_time"] // batch.number if batch.number else rows) > MANY_ANSWERS

    def _start(self) -> Checkpoint:
        return Checkpoint(0, [NEVER] * (self.shards * len(self.sources)))

    def _passed(self, mark: Checkpoint, controls: list[WindowControl]) -> bool:
        """Can a scan begin here? Only if no row of a window that is still to be observed came before."""
        for shard, control in enumerate(controls):
            if control.delivered is None and control.interval is not None:
                return False
            oldest = control.observed_from()
            own = mark.carry[shard :: self.shards]
            if oldest > NEVER and max(own) >= oldest * self.grid.slide_us:
                return False
        return True

    def _arrivals(self, seq_from: int, seq_to: int, carry: list[int]) -> Arrivals:
        """Arrivals of all sources in order, with stream time."""

        def shard_of(groups: pa.Table) -> np.ndarray:
            return tables.computed(self.spark, groups.rename_columns(self.groups), self.shard_sql())

        sharded = shard_of if self.shards > 1 else None
        return scan.arrivals(self.lake, self.sources, seq_from, seq_to, carry, self.shards, self.leading, sharded)

    def _pieces(self, start: Checkpoint, seq_to: int) -> Iterator[Arrivals]:
        """All arrivals from a checkpoint on, some at a time."""
        seq, carry = start.seq, start.carry
        while seq < seq_to:
            following = min(seq + PIECE_ROWS, seq_to)
            piece = self._arrivals(seq, following, carry)
            seq, carry = following, piece.carry
            yield piece

    def _stored(self, **bounds: int | None) -> DataFrame:
        """Stored rows of all sources with ``seq``, ``ts``, ``side``, ``shard`` and payload; bounds as for `tables.events`."""
        from pyspark.sql import functions as F

        parts = []
        for side, stream in enumerate(self.sources):
            events = tables.events(self.spark, self.lake, stream, **bounds)  # type: ignore[arg-type]
            columns = {"ts": "unix_micros(event_ts)", "side": str(side)} | self.payload(side)
            parts.append(events.selectExpr("seq", *named(columns)))
        rows = parts[0]
        for other in parts[1:]:
            rows = rows.unionByName(other, allowMissingColumns=True)
        return rows.withColumn("shard", F.expr(self.shard_sql()).cast("int"))

    def first_of(self, time: Any, side: Any = "side") -> Any:
        """Number of the first window that holds an event time: of a column (or its name), or of an int64 array with its `side`."""
        if isinstance(time, str):
            from pyspark.sql import functions as F

            return F.expr(floor_div_sql(f"{quoted(time)} - {self.grid.size_us}L", self.grid.slide_us) + " + 1L")
        return floor_div(time - self.grid.size_us, self.grid.slide_us) + 1

    def last_of(self, time: Any, side: Any = "side") -> Any:
        """Number of the last window that holds an event time; as for `first_of`."""
        return floor_div(time, self.grid.slide_us)

    @property
    def answer_rows(self) -> int:
        """Most result rows of a window and group; 0: any number."""
        return 0

    @property
    def tumbling(self) -> bool:
        """Is a row in one window at most?"""
        return self.grid.size_us <= self.grid.slide_us and not self.lookback_us

    @property
    def lookback_us(self) -> int:
        """How far before a window's start its rows may lie (0: they lie in it)."""
        return 0

    def _closing(
        self,
        new: Arrivals,
        reached: np.ndarray,
        batch: Batch,
        controls: list[WindowControl],
        arrived: Arrived,
        before: list[int],
        openings: list[np.ndarray],
    ) -> Closing:
        columns: list[tuple[np.ndarray, ...]] = []
        after = list(before)
        for each, control in enumerate(controls):
            steps = first_at(new, reached, each)
            marks, seqs, times = (values[steps[0] > before[each]] for values in steps)
            panes = np.unique(np.concatenate([openings[each], *(i.panes for i in arrived.intervals[each])]))
            held = np.unique(self._windows_of(panes))
            if batch.flush and len(held) and control.interval is not None:
                top = int(held[-1])
                if not len(marks) or top > marks[-1]:
                    marks = np.append(marks, top)
                    seqs, times = np.append(seqs, batch.seq_to), np.append(times, control.t_last_us)
            if not len(marks):
                continue
            after[each] = int(marks[-1])
            closed = held[(held > before[each]) & (held <= after[each])]
            place = np.searchsorted(marks, closed)
            wait = np.maximum(times[place] - (closed * self.grid.slide_us + self.grid.size_us), 0)
            columns.append((np.full(len(closed), each, np.int32), closed, seqs[place], wait))
        joined = (
            [np.concatenate(parts) for parts in zip(*columns, strict=True)] if columns else [np.empty(0, np.int64)] * 4
        )
        table = pa.table(
            {
                "shard": pa.array(joined[0], pa.int32()),
                "_m": pa.array(joined[1], pa.int64()),
                "closed_seq": pa.array(joined[2], pa.int64()),
                "wait_us": pa.array(joined[3], pa.int64()),
            }
        )
        return Closing(min(before) + 1, after, tables.handed(self.spark, table), table.num_rows)

    def _windows_of(self, panes: np.ndarray) -> np.ndarray:
        """Numbers of all windows that hold one of the panes, with repetitions."""
        start = panes * self.grid.pane_us
        first, last = self.grid.first_of(start), self.grid.last_of(start)
        return every_number(first, last)[1]

    def _available(self, batch: Batch, before: list[int], low: list[int], closing: Closing) -> DataFrame:
        """Rows that can be in a window that closes now, with ``c``: new ones (null), and stored ones of windows that were open then."""
        from pyspark.sql import functions as F

        high: int | None = None
        if not self.lookback_us:  # rows lie in their windows
            high = max(min(self.grid.end(max(closing.after)) - 1, LATEST_US), EARLIEST_US)
        fresh = self._stored(seq_from=batch.seq_from, seq_to=batch.seq_to, high_us=high)
        fresh = fresh.withColumn("c", F.lit(None).cast("bigint"))
        if batch.seq_from == 0:
            return tables.compiled_once(fresh)
        lowest = min(low)
        bound = min(lowest, LATEST_US) if lowest > EARLIEST_US else None
        held = self._stored(seq_to=batch.seq_from, low_us=bound, high_us=high)
        held = held.withColumn("c", self._by_shard(before)).where(F.col("c") < self.last_of("ts"))
        return tables.compiled_once(fresh.unionByName(held))

    def _by_shard(self, numbers: list[int]) -> Column:
        """The number of a row's shard."""
        from pyspark.sql import functions as F

        found: Column = F.lit(numbers[0])
        for shard in range(1, self.shards):
            found = F.when(F.col("shard") == shard, F.lit(numbers[shard])).otherwise(found)
        return found

    def reduced(self, rows: DataFrame, marked: DataFrame | None, density: int) -> tuple[DataFrame, bool]:
        """Rows less some that no answer can hold, and whether every row is known to count (``ok``).

        Parameters
        ----------
        rows
            Payload, ``seq``, ``ts``, ``side``, ``shard`` among others; any ``ok``.
        marked
            ``seq`` of rows that came too late for a window of theirs, among other columns; None where there are none.
        density
            About how many rows a pane has.
        """
        return rows, False

    def _marked(self, rows: DataFrame, missed: DataFrame | None) -> DataFrame:
        """Rows that count, with ``c``; `missed` holds ``seq`` and ``c`` of new rows for which windows up to number `c` were closed."""
        from pyspark.sql import functions as F

        rows = rows.where("ok")
        if missed is None:
            return rows
        known = rows.join(missed.withColumnRenamed("c", "_closed"), "seq", "left")
        return known.withColumn("c", F.coalesce("c", "_closed")).drop("_closed")

    def open_from(self, time: Any) -> Column:
        """Number of the first window that rows with ``c`` are on time for."""
        from pyspark.sql import functions as F

        return F.greatest(F.col("c") + 1, self.first_of(time))

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
        counted = self._stored(seq_from=batch.seq_from, seq_to=batch.seq_to).where("ok").select("seq")
        return counted.join(self._listed(missed), "seq")

    def _registered(self, batch: Batch) -> int:
        """Rows of the micro-batch that were committed as late."""
        mine = (pc.field("seq") >= batch.seq_from) & (pc.field("seq") < batch.seq_to)
        return small.count(self.lake, "late", self.spec.name, mine)

    def _listed(self, rows: pa.Table) -> DataFrame:
        """A table of the control plane, to be joined by ``seq``."""
        from pyspark.sql import functions as F

        listed = tables.handed(self.spark, rows)
        return F.broadcast(listed) if rows.num_rows <= BROADCAST_ROWS else listed

    def _results(self, rows: DataFrame, provenance: str, published: str) -> DataFrame:
        """Public columns of result rows; what is needed inside only (``wait_us``, ``period_start``) stands last."""
        from pyspark.sql import functions as F

        start = F.col("_m") * self.grid.slide_us
        end = start + self.grid.size_us
        period = floor_to(end - 1, self.spec.period_us)
        inner = {"_m", "shard", "closed_seq", "repaired_in", "wait_us", "revision", "error"}
        columns = [F.col(quoted(name)) for name in rows.columns if name not in inner]
        place = sum(1 for name in rows.columns if name in self.leading)
        extra = [F.col(name) for name in ("error",) if name in rows.columns]
        return rows.select(
            *columns[:place],
            F.timestamp_micros(start).alias("window_start"),
            F.timestamp_micros(end).alias("window_end"),
            *columns[place:],
            F.lit(provenance).alias("provenance"),
            (F.col("revision") if "revision" in rows.columns else F.lit(0)).cast("int").alias("revision"),
            F.col(published).alias("published_seq"),
            *([F.col("wait_us")] if "wait_us" in rows.columns else [F.lit(None).cast("bigint").alias("wait_us")]),
            *extra,
            F.timestamp_micros(period).alias("period_start"),
        )

    @cached_property
    def leading(self) -> tuple[str, ...]:
        """Result columns that stand before ``window_start``: the groups."""
        return self.spec.group_by

    def history(self, seq_to: int) -> list[list[Observed]]:
        """Per shard, every window of the arrivals before `seq_to` as it is known now, in order; nothing is left out as too late."""

        low = high = last = None
        for piece in self._pieces(self._start(), seq_to):
            spoken = piece.stream_time_us > NEVER
            if spoken.any():
                times = piece.event_time_us[spoken]
                low = int(times.min()) if low is None else min(low, int(times.min()))
                high = int(times.max()) if high is None else max(high, int(times.max()))
                last = int(piece.stream_time_us.max()) // self.grid.slide_us
        if low is None or high is None or last is None:
            return [[] for _ in range(self.shards)]
        wanted = [{last + 1: (self.grid.first_of(low), self.grid.last_of(high))} for _ in range(self.shards)]
        waited, thinning = self.waited(self._pieces(self._start(), seq_to), 0, seq_to, wanted)
        found = self.observed(waited, wanted, thinning)
        return [each.get(last + 1, []) for each in found]

    def waited(
        self, pieces: Iterable[Arrivals], seq_from: int, seq_to: int, wanted: list[dict[int, tuple[int, int]]]
    ) -> tuple[DataFrame, list[Thinning]]:
        """Stored rows of the windows wanted; `pieces` are the arrivals ``[seq_from, seq_to)``.

        Returns
        -------
        DataFrame
            Payload, ``seq``, ``ts``, ``side``, ``shard``, and ``grp`` (hash of the groups), ``pane``, ``bucket``: granules waited past
            the end of the first window that holds the row, and ``j``: interval of its arrival; both -1 where it came before that end.
        list of Thinning
            Per shard, the panes of which not all groups are there.
        """
        from pyspark.sql import functions as F

        spans = [span for each in wanted for span in each.values()]
        low = min(first for first, _ in spans) * self.grid.slide_us
        high = self.grid.end(max(last for _, last in spans))
        parts, held = [], 0
        panes = in_time = np.empty(0, np.int64)
        for piece in pieces:
            end = self.grid.end(self.first_of(piece.event_time_us, piece.side))
            inside = (piece.event_time_us >= low) & (piece.event_time_us < high)
            held += int(np.count_nonzero(inside))
            own = inside & (piece.stream_time_us >= end)
            time = piece.stream_time_us[own]
            bucket, interval = (time - end[own]) // self.grid.granularity_us, time // self.grid.slide_us
            parts.append(pa.table({"seq": piece.seq[own], "bucket": bucket, "j": interval}))
            if self.groups:
                (pane,), count = distinct(piece.event_time_us[inside & ~own] // self.grid.pane_us)
                panes, in_time = merge_counts(panes, in_time, pane, count)
        waits = pa.concat_tables(parts)
        rows = self._stored(
            seq_from=seq_from, seq_to=seq_to, low_us=max(low, EARLIEST_US), high_us=min(high - 1, LATEST_US)
        )
        rows = rows.withColumn("grp", F.expr(f"xxhash64({', '.join(self.groups)})" if self.groups else "0L"))
        marked = self._listed(waits) if waits.num_rows else None
        rows = self.paned(tables.compiled_once(rows))
        early = rows.where("ok") if marked is None else rows.where("ok").join(marked, "seq", "left_anti")
        thin = thinnings(early, crowded(panes, in_time), self.shards)
        rows = thinned(rows, thin).drop("pane")
        rows = self.reduced(rows, marked, held * self.grid.pane_us // (high - low))[0].where("ok")
        if marked is not None:
            rows = rows.join(marked, "seq", "left")
        waited = {name: "-1L" if marked is None else f"coalesce({name}, -1L)" for name in ("bucket", "j")}
        return self.paned(rows.withColumns({name: F.expr(text) for name, text in waited.items()})), thin

    # ---------------------------------------------------------------------------------------------- backfill, repair

    def recompute(self, from_us: int, to_us: int, seq_to: int, state: dict[str, Any]) -> DataFrame:
        """Answers, from all rows before `seq_to`, of closed windows that start in ``[from_us, to_us)``."""
        from pyspark.sql import functions as F

        slide, size = self.grid.slide_us, self.grid.size_us
        first, last = -(-from_us // slide), (to_us - 1) // slide
        controls = controls_of(self.spec, self.policies(), state)
        after = [min(last, self.grid.last_closed(control.watermark())) for control in controls]
        low = max(first * slide - self.lookback_us, EARLIEST_US)
        high = min(last * slide + size, LATEST_US) - 1
        rows = self._stored(seq_to=seq_to, low_us=low, high_us=high).where("ok").withColumn("c", F.lit(first - 1))
        last_closed = F.least(self.last_of("ts"), self._by_shard(after))
        windows = self.in_windows(rows, self.open_from("ts"), last_closed).select("shard", "_m").distinct()
        table = windows.withColumn("closed_seq", F.lit(seq_to - 1).cast("bigint")).withColumn(
            "wait_us", F.lit(0).cast("bigint")
        )
        closing = Closing(first, after, self.keep(table), table.count())
        return self._results(self.answers(rows, closing), "repaired", "closed_seq")

    def repair(self, late: DataFrame, repaired_in: pa.Table) -> DataFrame:
        """Corrections for registered late rows; ``seq`` and ``repaired_in`` (int64) say which and in which Gamma batch."""
        from pyspark.sql import functions as F

        chosen = tables.handed(self.spark, repaired_in)
        size, slide = self.grid.size_us, self.grid.slide_us
        spans = late.join(F.broadcast(chosen), "seq").select(
            "seq",
            "repaired_in",
            floor_div(F.unix_micros("windows_from"), slide).alias("m_from"),
            floor_div(F.unix_micros("windows_to") - size, slide).alias("m_to"),
        )
        bounds = repaired_in["seq"].to_numpy()
        near = self._stored(seq_from=int(bounds.min()), seq_to=int(bounds.max()) + 1)
        rows = self.settled(near.join(F.broadcast(spans), "seq"))
        closes = np.unique(repaired_in["repaired_in"].to_numpy())
        first, last = rows.agg(F.min("m_from"), F.max("m_to")).collect()[0]
        due = Due(rows, first, last, closes)
        return self._results(self.corrected(due), "repaired", "repaired_in")

    def stored_in(self, due: Due) -> DataFrame:
        """All stored rows of the windows that late rows touch, up to the last Gamma batch; payload, ``seq``, ``ts``, ``side``."""
        start = due.first * self.grid.slide_us - self.lookback_us
        return self._stored(seq_to=due.seq + 1, low_us=start, high_us=self.grid.end(due.last) - 1).where("ok")

    def counted_from(self, due: Due) -> DataFrame:
        """As :meth:`stored_in`, with ``pane`` and ``repaired_in``: the first Gamma batch whose answers count the row."""
        from pyspark.sql import functions as F

        rows, closes = self.paned(self.stored_in(due)), due.closes
        if len(closes) == 1:
            return rows.withColumn("repaired_in", F.lit(due.seq).cast("bigint"))
        if len(closes) <= FEW_BATCHES and expects_few(self.spark):  # Python's processes would take seconds to start
            listed = ", ".join(f"{close}L" for close in closes.tolist())
            return rows.withColumn("repaired_in", F.expr(f"array_min(filter(array({listed}), x -> x >= seq))"))

        @F.pandas_udf("bigint")  # type: ignore[call-overload]
        def first_close(seq):  # type: ignore[no-untyped-def]
            import pandas as pd

            return pd.Series(closes[np.searchsorted(closes, seq.to_numpy())])

        return rows.withColumn("repaired_in", first_close("seq"))

    def written(self, area: str, due: Due) -> DataFrame:
        """Committed result rows of the windows that missed rows, with their window number ``_m``."""
        from pyspark.sql import functions as F

        m = floor_div(F.unix_micros("window_start"), self.grid.slide_us)
        starts = (number * self.grid.slide_us for number in (due.first, due.last))
        return tables.between(self.spark, self.lake, area, self.spec.name, "window_start", *starts).withColumn("_m", m)

    def numbered(self, rows: DataFrame, keys: list[str], due: Due) -> DataFrame:
        """Rows with ``revision``: the answers of a window count up, by ``repaired_in``, from the last one written before.

        `keys` are the group columns' names in `rows`, in the query's order, and ``_m``.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        groups = [F.col(quoted(name)).alias(key) for name, key in zip(self.leading, keys[:-1], strict=True)]
        parts = [
            self.written(area, due).select(*groups, "_m", "revision")
            for area in ("on_time", "corrections")
            if self.lake.exists(area, self.spec.name)
        ]
        written = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
        by = [F.col(quoted(key)) for key in keys]
        last = written.groupBy(*by).agg(F.max("revision").alias("_last"))
        nth = F.dense_rank().over(Window.partitionBy(*by).orderBy("repaired_in"))
        joined = join_null_safe(rows.withColumn("_nth", nth), last, keys, "left")
        revision = (F.col("_nth") + F.coalesce(F.col("_last"), F.lit(-1))).cast("int")
        return joined.withColumn("revision", revision).drop("_nth", "_last")

    def paned(self, rows: DataFrame) -> DataFrame:
        """Rows with ``pane``, the number of the pane that holds them."""
        return rows.withColumn("pane", floor_div("ts", self.grid.pane_us))

    def spread(self, panes: DataFrame, first_of: Callable[[Column], Column]) -> DataFrame:
        """Rows of panes, each once for every window ``_m`` of its pane from `first_of` (the pane's start) on."""
        from pyspark.sql import functions as F

        start = F.col("pane") * self.grid.pane_us
        return self.in_windows(panes, first_of(start), self.last_of(start))

    def in_windows(self, rows: DataFrame, first: Column, last: Column) -> DataFrame:
        """One row per row and window number ``_m`` in ``[first, last]``; none where that is empty."""
        from pyspark.sql import functions as F

        spread = rows.withColumn("_a", first).withColumn("_b", last).where("_a <= _b")
        return spread.withColumn("_m", F.col("_a") if self.tumbling else F.explode(F.sequence("_a", "_b"))).drop(
            "_a", "_b"
        )


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
