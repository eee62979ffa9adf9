"""Read Delta tables into Spark, hand Arrow tables to Spark and back, and append to a Delta table once.

Small tables go through the driver. To Spark a scan of a Delta table is two jobs over its log, and a commit takes
seconds whatever it writes; delta-rs does both in milliseconds. A session that is tuned for few rows
(:mod:`latecomer.spark.engine.tuning`) therefore reads and writes in the driver, as long as the rows are few indeed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.lake import ingest_log
from latecomer.lake.delta import TIMESTAMP, Table
from latecomer.lake.event_scan import Spans, clip_to_timestamps, in_spans, within_bounds
from latecomer.lake.lake import Lake
from latecomer.lake.storage import escape_pattern
from latecomer.spark.engine import connect
from latecomer.spark.engine.tuning import compiles, in_one_task, is_driver_local, tuned_for_many_results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

MOST_FILES = 32
"""Most files that are named to Spark one by one; it looks up so many without a job."""
DRIVER_LOCAL_ROWS = 200_000
"""Most rows that the driver collects and commits itself."""
DRIVER_LOCAL_BYTES = 256 << 20
"""Most bytes of such rows: the driver holds them three times over, and Spark's tasks once."""
BROADCAST_ROWS = 1 << 20
"""Most rows of which every task may get a copy."""
_BATCH_ROWS = 1 << 14
"""Rows that the driver reads at a time."""
_ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ARROW_ROWS_DEFAULT = 10_000
"""Value of that setting, unless a deployment says otherwise."""
_MANY_PARTITIONS = 1 << 20
"""More partitions than a scan has."""
_arrow_setting = Lock()
"""Held while `_ARROW_ROWS` has another value: several threads of a run convert tables."""


# ----------------------------------------------------------------------------------------------------------------- read


def read(spark: SparkSession, table: Table, version: int | None = None) -> DataFrame:
    """Return the rows of a table, of `version` or of the newest one, in no particular order.

    The newest one is that at the time of this call, however often the rows are computed.
    """
    reader = spark.read.format("delta")
    if version is None and connect.is_remote(spark) and (opened := table.open()) is not None:
        version = opened.version()
    return (reader if version is None else reader.option("versionAsOf", version)).load(table.spark_path)


def read_ranges(spark: SparkSession, table: Table, column: str, spans: Spans) -> DataFrame:
    """Return the rows of a table with ``low <= column <= high`` in one of `spans`.

    Parameters
    ----------
    column
        A column of whole numbers, or of times: of these the bounds are microseconds.

    Raises
    ------
    FileNotFoundError
        The table is absent.
    """
    opened = table.open()
    if opened is None:
        raise FileNotFoundError(table.uri)
    kind = opened.to_pyarrow_dataset().schema.field(column).type
    rows = _read_in_driver(spark, opened, None, in_spans(column, spans, kind))
    if rows is not None:
        return rows
    return read(spark, table).where(_spans_sql(column, spans, is_time=pa.types.is_timestamp(kind)))


def no_events(spark: SparkSession, lake: Lake, stream: str) -> DataFrame:
    """Return an empty DataFrame with the columns of a stored stream.

    Raises
    ------
    FileNotFoundError
        The stream is absent.
    """
    opened = ingest_log.open_events(lake, stream)
    if opened is None:
        raise FileNotFoundError(lake.table("events", stream).uri)
    return spark.createDataFrame([], _spark_schema(opened))


def events(
    spark: SparkSession,
    lake: Lake,
    stream: str,
    *,
    columns: list[str] | None = None,
    seq_from: int | None = None,
    seq_to: int | None = None,
    low_us: int | None = None,
    high_us: int | None = None,
    spans: Spans | None = None,
) -> DataFrame:
    """Return the stored events of a stream within bounds; None leaves a bound out.

    Parameters
    ----------
    columns
        Columns to read where the driver reads; None: all.
    seq_from, seq_to
        ``seq_from <= seq < seq_to``.
    low_us, high_us
        ``low_us <= event_ts <= high_us``.
    spans
        Closed ranges of event time, us, one of which holds the row.

    Notes
    -----
    File statistics are read here and the files named to Spark: its own scan of a Delta table begins with two jobs over
    the log, whose code is generated anew for every bound.
    """
    opened = ingest_log.open_events(lake, stream)
    filter = within_bounds(seq_from, seq_to, low_us, high_us)
    if spans is not None:
        filter = filter & in_spans("event_ts", spans, TIMESTAMP)
    rows = None if opened is None else _read_in_driver(spark, opened, columns, filter)
    if rows is not None:
        return rows
    table = lake.table("events", stream)
    rows = None if opened is None else _files(spark, table, opened, filter)
    if rows is None:
        rows = read(spark, table, None if opened is None else opened.version())
    bounds = {
        "seq >= {}L": seq_from,
        "seq < {}L": seq_to,
        "event_ts >= timestamp_micros({}L)": low_us,
        "event_ts <= timestamp_micros({}L)": high_us,
    }
    conditions = [condition.format(value) for condition, value in bounds.items() if value is not None]
    if spans is not None:
        conditions.append(f"({_spans_sql('event_ts', spans, is_time=True)})")
    return rows.where(" and ".join(conditions)) if conditions else rows


def _spans_sql(column: str, spans: Spans, *, is_time: bool) -> str:
    """Return the condition of :func:`~latecomer.lake.event_scan.in_spans` as SQL."""
    value, bounds = ("timestamp_micros({}L)", clip_to_timestamps(spans)) if is_time else ("{}L", spans)
    ranges = (f"{column} between {value.format(low)} and {value.format(high)}" for low, high in bounds)
    return " or ".join(ranges) or "false"


def _read_in_driver(
    spark: SparkSession, opened: DeltaTable, columns: list[str] | None, filter: pc.Expression
) -> DataFrame | None:
    """Read rows in the driver.

    None where the session is not tuned for few rows, or they exceed `DRIVER_LOCAL_ROWS` or `DRIVER_LOCAL_BYTES`.
    """
    if not is_driver_local(spark):
        return None
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    dataset = opened.to_pyarrow_dataset()
    scanner = dataset.scanner(columns=columns, filter=filter, use_threads=False, batch_size=_BATCH_ROWS)
    for batch in scanner.to_batches():
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows > DRIVER_LOCAL_ROWS or size > DRIVER_LOCAL_BYTES:
            return None
        batches.append(batch)
    return to_spark(spark, pa.Table.from_batches(batches, scanner.projected_schema))


def _files(spark: SparkSession, table: Table, opened: DeltaTable, filter: pc.Expression) -> DataFrame | None:
    """Return all rows of the files whose statistics admit the filter; None where Delta's own reader has to read them.

    It has to where the table has features of later protocols (deletion vectors, renamed columns) or partitions, and
    where the files are many: it knows their sizes, and Spark would ask the store for each.
    """
    if opened.protocol().min_reader_version > 1 or opened.metadata().partition_columns:
        return None
    names = [fragment.path for fragment in opened.to_pyarrow_dataset().get_fragments(filter=filter)]
    if not 0 < len(names) <= MOST_FILES:
        return None
    place = escape_pattern(table.spark_path)
    return spark.read.schema(_spark_schema(opened)).parquet(*(f"{place}/{name}" for name in names))


def _spark_schema(opened: DeltaTable) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(opened.schema().to_json()))


# ------------------------------------------------------------------------------------------- between Arrow and Spark


def to_spark(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Convert an Arrow table to a Spark DataFrame with one partition per core.

    Spark alone would make a partition of every 10,000 rows. The types are those that Spark reads from a table: a time
    without a zone stays one. Where one partition is planned, Spark is told so, and shuffles nothing before it groups.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    # As one chunk: Spark stops at two empty ones, and Arrow makes one of every file without matching rows. A table
    # without any row gets an empty chunk: Spark fails on a table without chunks that has a column of lists.
    rows = rows.combine_chunks() if rows.num_rows else rows.schema.empty_table()
    with _one_batch_per_core(spark, rows.num_rows):
        frame = spark.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))
    return frame.coalesce(1) if in_one_task(spark) else frame


@contextmanager
def _one_batch_per_core(spark: SparkSession, rows: int) -> Iterator[None]:
    """Convert so many rows in at most as many Arrow batches as there are cores."""
    if rows <= _ARROW_ROWS_DEFAULT or connect.is_remote(spark):  # a server makes one partition per core itself
        yield
        return
    with _arrow_setting:
        before = str(spark.conf.get(_ARROW_ROWS))
        share = -(-rows // connect.parallelism(spark))
        try:
            spark.conf.set(_ARROW_ROWS, str(max(share, int(before))))
            yield
        finally:
            spark.conf.set(_ARROW_ROWS, before)


def collect_if_small(rows: DataFrame) -> pa.Table | None:
    """Collect rows in the driver.

    None where they exceed `DRIVER_LOCAL_ROWS`, or the bytes that Spark lets a driver take.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        collected = rows.limit(DRIVER_LOCAL_ROWS + 1).toArrow()
    except (PySparkException, Py4JJavaError) as error:
        if "spark.driver.maxResultSize" in str(error):
            return None
        raise
    return collected if collected.num_rows <= DRIVER_LOCAL_ROWS else None


def broadcast_if_small(rows: DataFrame, count: int) -> DataFrame:
    """Mark at most `count` rows to be copied to every task of a join, unless they exceed `BROADCAST_ROWS`."""
    from pyspark.sql import functions as F

    return F.broadcast(rows) if count <= BROADCAST_ROWS else rows


def codegen_barrier(rows: DataFrame) -> DataFrame:
    """Return the same rows, with the code of later steps generated apart from the code of earlier ones.

    The bounds of a micro-batch are constants in the code that Spark generates. Other constants make other code, which
    is compiled anew and runs interpreted for most of a micro-batch. Behind the barrier the code is the same for all
    micro-batches and is compiled once. No row moves: as many partitions come out as went in.
    """
    return rows.coalesce(_MANY_PARTITIONS) if compiles(rows.sparkSession) else rows


def evaluate(spark: SparkSession, rows: pa.Table, sql: str) -> np.ndarray:
    """Evaluate an SQL expression over the rows of an Arrow table, once per distinct row.

    Returns
    -------
    int32[n]
        The value for each row.
    """
    code = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        encoded = column.combine_chunks().dictionary_encode("encode")
        pairs = pa.array(code * len(encoded.dictionary) + encoded.indices.to_numpy()).dictionary_encode()
        code = pairs.indices.to_numpy().astype(np.int64)
    first = np.empty(int(code.max(initial=-1)) + 1, np.int64)
    first[code] = np.arange(len(code))
    values = to_spark(spark, rows.take(first)).selectExpr(f"cast({sql} as int) as value").toArrow()["value"]
    return np.asarray(values.to_numpy()[code])


# ---------------------------------------------------------------------------------------------------------------- write


def append(
    rows: DataFrame | pa.Table,
    table: Table,
    app_id: str,
    version: int,
    *,
    driver_local: bool | None = None,
    undone: Callable[[int], bool] | None = None,
) -> None:
    """Append rows as commit `version` of writer `app_id`; a commit that the table already holds is left out.

    Parameters
    ----------
    rows
        An Arrow table, which the driver commits, or a DataFrame.
    driver_local
        Whether the rows of a DataFrame are expected to be few, so that the driver collects and commits them; None: as
        the session is tuned. Where they turn out to be too many or too wide, they are computed again and written by
        Spark.
    undone
        As for :meth:`latecomer.lake.delta.Table.append`.
    """
    collected = rows if isinstance(rows, pa.Table) else None
    if collected is None and (is_driver_local(rows.sparkSession) if driver_local is None else driver_local):
        collected = collect_if_small(rows)
    if collected is not None:
        table.append(collected, app_id, version, undone)
        return
    if undone is not None:  # Delta itself notices a commit that is made meanwhile in the writer's name
        table.take_back(app_id, undone)
    with tuned_for_many_results(rows.sparkSession):
        (
            connect.storable(rows)
            .write.format("delta")
            .mode("append")
            .option("mergeSchema", "true")
            .option("txnAppId", app_id)
            .option("txnVersion", version)
            .save(table.spark_path)
        )
