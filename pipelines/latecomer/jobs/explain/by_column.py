"""Break down the lateness of a query's rows by the values of a column: which of them come late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from latecomer.core.time import NEVER
from latecomer.jobs import formatting
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.quality.messages import duration
from latecomer.specs.spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN = 12
"""Values that are shown, those with the most late rows first."""
PIECE_ROWS = 1 << 22
"""Arrivals that are read together."""


@dataclass(frozen=True)
class ValueLateness:
    """The rows with one value of a column.

    Attributes
    ----------
    value : str
        The value as text.
    rows, late_rows : int
        All of them, and those registered as late.
    share_of_late : float
        Their share of all late rows of the query.
    lateness_p95_us, lateness_p99_us : int
        Lateness that 95% and 99% of the rows do not exceed.
    """

    value: str
    rows: int
    late_rows: int
    share_of_late: float
    lateness_p95_us: int
    lateness_p99_us: int


@dataclass(frozen=True)
class Breakdown:
    """Lateness by the values of a column.

    Attributes
    ----------
    column : str
        The column.
    values : list of ValueLateness
        The values with the most late rows, in this order, then those with the most rows.
    others : int
        Number of further values.
    """

    column: str
    values: list[ValueLateness]
    others: int

    def to_text(self) -> str:
        """Return a table for a terminal."""
        header = (self.column, "rows", "late rows", "late", "of all late", "95% lateness", "99% lateness")
        lines = [
            (
                formatting.one_line(value.value, 40),
                f"{value.rows:,}",
                f"{value.late_rows:,}",
                f"{value.late_rows / value.rows:.2%}",
                f"{value.share_of_late:.1%}",
                duration(value.lateness_p95_us),
                duration(value.lateness_p99_us),
            )
            for value in self.values
        ]
        more = f"\n({self.others:,} further values have fewer late rows)" if self.others else ""
        return f"{formatting.table(header, lines)}{more}"


def by_column(lake: Lake, spec: Spec, seq_to: int, column: str) -> Breakdown:
    """Break down the lateness of the rows before `seq_to`.

    Spark groups the rows; the driver holds 17 bytes for each row behind stream time, and the values that are shown.

    Raises
    ------
    InputError
        No stream of the query has such a column.
    """
    from pyspark.sql import functions as F

    from latecomer.spark.engine import tables
    from latecomer.spark.engine.columns import quoted
    from latecomer.spark.engine.session import tuned

    sources = list(dict.fromkeys(spec.stream_names))
    names = {stream: lake.table("events", stream).schema().names for stream in sources}
    having = [stream for stream in sources if column in names[stream]]
    if not having:
        known = sorted(set().union(*names.values()))
        raise InputError("--by", column, f"is no column of {', '.join(sources)}", f"choose one of {', '.join(known)}")
    spark = tuned(lake, seq_to)
    behind, late_rows = _behind(lake, spec, sources, seq_to)
    marks = tables.broadcast_if_small(tables.to_spark(spark, behind), behind.num_rows)
    parts = [_values(spark, lake, stream, column, quoted(column), seq_to) for stream in having]
    rows = parts[0]
    for other in parts[1:]:
        rows = rows.unionByName(other)
    lateness = F.coalesce("lateness", F.lit(0))
    values = (
        rows.join(marks, "seq", "left")
        .groupBy("value")
        .agg(
            F.count("*").alias("rows"),
            F.sum(F.coalesce(F.col("late").cast("int"), F.lit(0))).alias("late"),
            F.percentile_approx(lateness, [0.95, 0.99], 1_000).alias("lateness"),
        )
    )
    first = values.orderBy(F.desc("late"), F.desc("rows"), "value").limit(SHOWN).collect()
    count = rows.select(F.count_distinct("value") + F.max(F.col("value").isNull().cast("int"))).first()
    shown = [
        ValueLateness(
            "null" if row["value"] is None else row["value"],
            row["rows"],
            row["late"],
            row["late"] / late_rows if late_rows else 0.0,
            *row["lateness"],
        )
        for row in first
    ]
    return Breakdown(column, shown, max((count[0] or 0) - len(shown), 0) if count else 0)


def _values(spark: SparkSession, lake: Lake, stream: str, column: str, sql: str, seq_to: int) -> DataFrame:
    from latecomer.spark.engine import tables

    events = tables.events(spark, lake, stream, columns=list(dict.fromkeys(["seq", column])), seq_to=seq_to)
    return events.selectExpr("seq", f"cast({sql} as string) as value")


def _behind(lake: Lake, spec: Spec, sources: list[str], seq_to: int) -> tuple[pa.Table, int]:
    """Return ``seq``, ``lateness`` (us) and ``late`` of the rows behind stream time, and the number of late rows."""
    from latecomer.spark.engine import arrival_scan

    registered = lake.table("late", spec.name).read(columns=["seq"])
    late = np.unique(registered["seq"].to_numpy()) if registered is not None else np.empty(0, np.int64)
    parts, seq, carry = [], 0, [NEVER] * len(sources)
    while seq < seq_to:
        following = min(seq + PIECE_ROWS, seq_to)
        piece = arrival_scan.arrivals(lake, sources, seq, following, carry)
        lateness = piece.stream_time_us - piece.event_time_us
        behind = (piece.stream_time_us > NEVER) & (lateness > 0)
        numbers = piece.seq[behind]
        parts.append(pa.table({"seq": numbers, "lateness": lateness[behind], "late": np.isin(numbers, late)}))
        seq, carry = following, piece.carry
    none = pa.schema([("seq", pa.int64()), ("lateness", pa.int64()), ("late", pa.bool_())]).empty_table()
    return pa.concat_tables(parts or [none]), len(late)
