"""Stored rows of a windowed query, and the rows that publish its answers.

Rows of open windows are no copy: they are a range of the stored events, found by file statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from latecomer.lake.event_scan import Spans
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import floor_to_sql, named, quoted
from latecomer.spark.windows.query import WindowQuery
from latecomer.specs.windows import WindowedSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_INNER = {"_m", "shard", "closed_seq", "repaired_in", "wait_us", "revision", "error", "error_at_close"}
"""Columns of answers that are no public columns, or are published under another name."""


@dataclass(frozen=True)
class ClosedWindowTable:
    """Windows that close in a micro-batch, in Spark.

    Attributes
    ----------
    first : int
        No window before this number closes.
    after : list of int
        Per shard: number of the last window that is closed after the micro-batch.
    rows : DataFrame
        Columns ``shard``, ``_m`` (window number), ``closed_seq`` (the arrival that closed it), ``wait_us``; small.
    count : int
        Number of these rows.
    """

    first: int
    after: list[int]
    rows: DataFrame
    count: int


class RowColumns(Protocol):
    """The columns of stored rows that a query kind works with, as SQL."""

    def payload(self, source: int) -> dict[str, str]:
        """Return the columns of a source, name to SQL."""

    def shard_sql(self) -> str:
        """Return the SQL of a row's shard over these columns."""


class WindowRows:
    """Reads stored rows with the columns that a kind works with."""

    def __init__(self, query: WindowQuery[WindowedSpec], columns: RowColumns) -> None:
        self._query, self._columns = query, columns

    def stored(
        self,
        *,
        seq_from: int | None = None,
        seq_to: int | None = None,
        low_us: int | None = None,
        high_us: int | None = None,
        spans: Spans | None = None,
    ) -> DataFrame:
        """Read rows of all sources: ``seq``, ``ts``, ``side``, ``shard`` and payload; bounds as for `tables.events`."""
        from pyspark.sql import functions as F

        query, parts = self._query, []
        for side, stream in enumerate(query.sources):
            events = tables.events(
                query.spark,
                query.lake,
                stream,
                seq_from=seq_from,
                seq_to=seq_to,
                low_us=low_us,
                high_us=high_us,
                spans=spans,
            )
            columns = {"ts": "unix_micros(event_ts)", "side": str(side)} | self._columns.payload(side)
            parts.append(events.selectExpr("seq", *named(columns)))
        rows = parts[0]
        for other in parts[1:]:
            rows = rows.unionByName(other, allowMissingColumns=True)
        return rows.withColumn("shard", F.expr(self._columns.shard_sql()).cast("int"))


def listed(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Convert a table of the control plane to a DataFrame that is broadcast if it is small, to be joined by ``seq``."""
    return tables.broadcast_if_small(tables.to_spark(spark, rows), rows.num_rows)


def result_rows(query: WindowQuery[WindowedSpec], rows: DataFrame, provenance: str, published: str) -> DataFrame:
    """Give answers the public columns of result rows.

    Columns that only the engine needs (``wait_us``, ``period_start``) stand last. `published` is SQL of
    ``published_seq``.
    """
    grid, columns = query.grid, set(rows.columns)
    start = f"_m * {grid.slide_us}L"
    end = f"{start} + {grid.size_us}L"
    public = [quoted(name) for name in rows.columns if name not in _INNER]
    place = sum(1 for name in rows.columns if name in query.spec.group_by)
    windows = {"window_start": f"timestamp_micros({start})", "window_end": f"timestamp_micros({end})"}
    envelope = {
        "provenance": f"'{provenance}'",
        "revision": f"cast({'revision' if 'revision' in columns else '0'} as int)",
        "published_seq": published,
        "wait_us": "wait_us" if "wait_us" in columns else "cast(null as bigint)",
        **({"error": "error"} if "error" in columns else {}),
        **({"error_at_close": "error_at_close"} if "error_at_close" in columns else {}),
        "period_start": f"timestamp_micros({floor_to_sql(f'{end} - 1L', query.spec.period_us)})",
    }
    return rows.selectExpr(*public[:place], *named(windows), *public[place:], *named(envelope))
