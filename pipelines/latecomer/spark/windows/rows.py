"""Stored rows of a windowed query: what a stage reads of them, which windows they are in, and how its answers are named.

Rows of open windows are no copy: they are a range of the stored events, found by file statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from latecomer.core.windows.grid import Grid
from latecomer.lake.lake import Lake
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import floor_div, floor_div_sql, floor_to_sql, named, quoted
from latecomer.spark.engine.query_columns import open_streams, with_wide_columns
from latecomer.spark.stage import Stage
from latecomer.specs.windows import WindowedSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


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
    table: DataFrame
    count: int


class WindowRows(Stage):
    """What every windowed kind says of its rows and answers (what raises ``NotImplementedError``), and what follows from it."""

    spec: WindowedSpec
    asked: WindowedSpec
    """The query as its file has it; `spec` is as the engine is asked it (:func:`latecomer.spark.engine.query_columns.with_wide_columns`)."""

    def __init__(self, spec: WindowedSpec, spark: SparkSession, lake: Lake) -> None:
        super().__init__(spark, lake)
        self.grid = Grid(spec.window.size_us, spec.window.slide_us)
        self.events = open_streams(spec, spark, lake)
        self.asked, self.spec = spec, with_wide_columns(spec, self.events)
        self.sources = list(self.events)
        self.extras: dict[int, dict[str, int]] = {}
        self.shards: int = spec.shards
        self.groups_seen: int | None = None  # in the windows that were observed last
        self.many_answers = False  # are those of this micro-batch expected to be?
        self.check()

    def check(self) -> None:
        """Refuse a query that its streams cannot answer."""

    @property
    def groups(self) -> list[str]:
        """Names of the group columns inside the stage."""
        return [f"g{i}" for i in range(len(self.leading))]

    @cached_property
    def leading(self) -> tuple[str, ...]:
        """Result columns that stand before ``window_start``: the groups."""
        return self.spec.group_by

    def payload(self, source: int) -> dict[str, str]:
        """Columns a stage works with: name -> SQL over the source's own columns; ``ok`` (does the row count?) included."""
        raise NotImplementedError

    def shard_sql(self) -> str:
        """Shard of a row, SQL over payload columns."""
        return "0"

    def answers(self, rows: DataFrame, closing: Closing) -> DataFrame:
        """Result columns of closed windows with ``shard``, ``_m`` and ``closed_seq``, ``wait_us``.

        `rows` has payload, ``seq``, ``ts``, ``side``, ``shard`` and ``c``: windows up to this number were closed when the row came
        (null: none of its own); see :meth:`open_from`.
        """
        raise NotImplementedError

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

    # ----------------------------------------------------------------------------------------------------- stored rows

    def stored(self, **bounds: Any) -> DataFrame:
        """Stored rows of all sources with ``seq``, ``ts``, ``side``, ``shard`` and payload; bounds as for `tables.events`."""
        from pyspark.sql import functions as F

        parts = []
        for side, stream in enumerate(self.sources):
            events = tables.events(self.spark, self.lake, stream, **bounds)
            columns = {"ts": "unix_micros(event_ts)", "side": str(side)} | self.payload(side)
            parts.append(events.selectExpr("seq", *named(columns)))
        rows = parts[0]
        for other in parts[1:]:
            rows = rows.unionByName(other, allowMissingColumns=True)
        return rows.withColumn("shard", F.expr(self.shard_sql()).cast("int"))

    def _listed(self, rows: pa.Table) -> DataFrame:
        """A table of the control plane, to be joined by ``seq``."""
        return tables.broadcast_if_small(tables.to_spark(self.spark, rows), rows.num_rows)

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

    # --------------------------------------------------------------------------------------------- windows of the rows

    def first_of(self, time: Any, side: Any = "side") -> Any:
        """Number of the first window that holds an event time: of a column (or its name), or of an int64 array with its `side`."""
        if isinstance(time, str):
            from pyspark.sql import functions as F

            return F.expr(floor_div_sql(f"{quoted(time)} - {self.grid.size_us}L", self.grid.slide_us) + " + 1L")
        return floor_div(time - self.grid.size_us, self.grid.slide_us) + 1

    def last_of(self, time: Any, side: Any = "side") -> Any:
        """Number of the last window that holds an event time; as for `first_of`."""
        return floor_div(time, self.grid.slide_us)

    def open_from(self, time: Any) -> Column:
        """Number of the first window that rows with ``c`` are on time for."""
        from pyspark.sql import functions as F

        return F.greatest(F.col("c") + 1, self.first_of(time))

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

        window = first if self.tumbling else F.explode(F.sequence(first, last))
        return rows.where(first <= last).select("*", window.alias("_m"))

    # --------------------------------------------------------------------------------------------------------- answers

    def _results(self, rows: DataFrame, provenance: str, published: str) -> DataFrame:
        """Public columns of result rows; what is needed inside only (``wait_us``, ``period_start``) stands last."""
        start, there = f"_m * {self.grid.slide_us}L", set(rows.columns)
        end = f"{start} + {self.grid.size_us}L"
        inner = {"_m", "shard", "closed_seq", "repaired_in", "wait_us", "revision", "error"}
        columns = [quoted(name) for name in rows.columns if name not in inner]
        place = sum(1 for name in rows.columns if name in self.leading)
        windows = {"window_start": f"timestamp_micros({start})", "window_end": f"timestamp_micros({end})"}
        found = {
            "provenance": f"'{provenance}'",
            "revision": f"cast({'revision' if 'revision' in there else '0'} as int)",
            "published_seq": published,
            "wait_us": "wait_us" if "wait_us" in there else "cast(null as bigint)",
            **({"error": "error"} if "error" in there else {}),
            "period_start": f"timestamp_micros({floor_to_sql(f'{end} - 1L', self.spec.period_us)})",
        }
        return rows.selectExpr(*columns[:place], *named(windows), *columns[place:], *named(found))
