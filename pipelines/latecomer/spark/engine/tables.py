"""Delta tables through Spark: read, and append once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.lake import delta, ingest_log
from latecomer.lake.event_scan import Spans, clip_to_timestamps, in_spans, within_bounds
from latecomer.lake.lake import Lake
from latecomer.spark.engine.tuning import compiles, expects_few, in_one_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

MOST_FILES = 32
"""Files that Spark is told by name: what it looks up by itself, without a job of its own."""
FEW_ROWS = 200_000
"""Rows that are brought to the driver and committed from there: Spark's own commit takes seconds, whatever it writes."""
FEW_BYTES = 256 << 20
"""Bytes that so few rows may hold: the driver has them three times over, and Spark's tasks once."""
_READ_ROWS = 1 << 14
"""Rows that are read at a time where few are expected."""


def literal(path: str) -> str:
    """A path as Spark takes it by the letter, where it may look like a pattern (``data[1].json``)."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", path)


def read(spark: SparkSession, lake: Lake, area: str, name: str, version: int | None = None) -> DataFrame:
    """The table's rows, in no particular order; those of a version, else of the newest."""
    reader = spark.read.format("delta")
    return (reader if version is None else reader.option("versionAsOf", version)).load(lake.spark_path(area, name))


def between(spark: SparkSession, lake: Lake, area: str, name: str, column: str, spans: Spans) -> DataFrame:
    """Rows of a table with ``low <= column <= high`` in one of `spans`: whole numbers, of a column of times microseconds.

    As `events`, these are read here where few are expected and found: Spark's own way to a Delta table takes seconds the first time.
    """
    table = delta.open_table(lake, area, name)
    if table is None:
        raise FileNotFoundError(lake.table(area, name))
    kind = table.to_pyarrow_dataset().schema.field(column).type
    found = _few(spark, table, None, in_spans(column, spans, kind))
    if found is not None:
        return found
    return read(spark, lake, area, name).where(_sql_of_spans(column, spans, pa.types.is_timestamp(kind)))


def brought(rows: DataFrame) -> pa.Table | None:
    """Rows of Spark, here; None where they are more than `FEW_ROWS`, or more bytes than Spark lets a driver take."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        found = rows.limit(FEW_ROWS + 1).toArrow()
    except (PySparkException, Py4JJavaError) as error:
        if "spark.driver.maxResultSize" in str(error):
            return None
        raise
    return found if found.num_rows <= FEW_ROWS else None


def shape(spark: SparkSession, lake: Lake, stream: str) -> DataFrame:
    """No events, with the columns of a stored stream."""
    table = ingest_log.open_events(lake, stream)
    if table is None:
        raise FileNotFoundError(lake.table("events", stream))
    return spark.createDataFrame([], _schema(table))


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
    """Stored events with ``seq_from <= seq < seq_to`` and ``low <= event_ts <= high``, or an event time in one of `spans`; None leaves a bound out.

    Which files hold them is looked up here: to Spark a scan of a Delta table is two jobs over its log first, whose code is generated anew
    for every bound. A session that is planned for few rows (:func:`latecomer.spark.engine.tuning.tune`) has the rows themselves read
    here, where they are few indeed.
    """

    table = ingest_log.open_events(lake, stream)
    inside = within_bounds(seq_from, seq_to, low_us, high_us)
    if spans is not None:
        inside = inside & in_spans("event_ts", spans, delta.TIMESTAMP)
    found = None if table is None else _few(spark, table, columns, inside)
    if found is not None:
        return found
    rows = None if table is None else _of_files(spark, lake, stream, table, inside)
    if rows is None:
        rows = read(spark, lake, "events", stream, None if table is None else table.version())
    bounds = {"seq >= {}L": seq_from, "seq < {}L": seq_to}
    bounds |= {"event_ts >= timestamp_micros({}L)": low_us, "event_ts <= timestamp_micros({}L)": high_us}
    asked = [text.format(value) for text, value in bounds.items() if value is not None]
    asked += [] if spans is None else [f"({_sql_of_spans('event_ts', spans, True)})"]
    return rows.where(" and ".join(asked)) if asked else rows


_handing = Lock()
"""Held while the setting is another: the threads of a run hand rows over (:mod:`latecomer.spark.prefetch`)."""
_ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ARROW_MOST = 10_000
"""What that is, unless a deployment says otherwise."""


def handed(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Rows that are here, for Spark: in as many partitions as there are cores, where it would make one of every 10,000 rows.

    Of the types that Spark reads from a table: a time without a zone stays one. As one chunk: Spark stops at two empty ones, and Arrow reads one of every file that has none of the rows. Of no rows an empty chunk: Spark
    fails on a table without chunks that has a column of lists. Where one partition is planned, Spark is told that it is one, and shuffles nothing
    before it groups.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = rows.combine_chunks() if rows.num_rows else rows.schema.empty_table()
    with _as_many_as_cores(spark, rows.num_rows):
        found = spark.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))
    return found.coalesce(1) if in_one_task(spark) else found


@contextmanager
def _as_many_as_cores(spark: SparkSession, rows: int) -> Iterator[None]:
    """So many rows are handed over as batches of which there are no more than cores."""
    if rows <= _ARROW_MOST:
        yield
        return
    with _handing:
        given = spark.conf.get(_ARROW_ROWS)
        share = -(-rows // spark.sparkContext.defaultParallelism)
        try:
            spark.conf.set(_ARROW_ROWS, str(max(share, int(str(given)))))
            yield
        finally:
            spark.conf.set(_ARROW_ROWS, str(given))


BROADCAST_ROWS = 1 << 20
"""Rows of which every task may get a copy."""


def beside(rows: DataFrame, count: int) -> DataFrame:
    """Rows, `count` or fewer, for others to be joined with: every task gets a copy, unless they are many."""
    from pyspark.sql import functions as F

    return F.broadcast(rows) if count <= BROADCAST_ROWS else rows


_ANY_NUMBER = 1 << 20
"""Partitions: more than a scan has."""


def compiled_once(rows: DataFrame) -> DataFrame:
    """The same rows, for Spark to generate the code of what follows apart from the code of what comes before.

    A micro-batch's bounds are constants in the code that Spark generates. Other constants are other code, which is compiled and runs
    interpreted for most of a micro-batch. Cut off from them, what is done with the rows is compiled once for all micro-batches.
    Nothing is moved: as many partitions come out as went in.
    """
    return rows.coalesce(_ANY_NUMBER) if compiles(rows.sparkSession) else rows


def computed(spark: SparkSession, rows: pa.Table, sql: str) -> np.ndarray:
    """An expression of the columns of rows that are here, int32[n], as Spark computes it: once for each distinct row."""
    place = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        coded = column.combine_chunks().dictionary_encode("encode")
        both = pa.array(place * len(coded.dictionary) + coded.indices.to_numpy()).dictionary_encode()
        place = both.indices.to_numpy().astype(np.int64)
    first = np.empty(int(place.max(initial=-1)) + 1, np.int64)
    first[place] = np.arange(len(place))
    found = handed(spark, rows.take(first)).selectExpr(f"cast({sql} as int) as found").toArrow()["found"]
    return np.asarray(found.to_numpy()[place])


def _sql_of_spans(column: str, spans: Spans, times: bool) -> str:
    """The same as SQL."""
    value, bounds = ("timestamp_micros({}L)", clip_to_timestamps(spans)) if times else ("{}L", spans)
    ranges = (f"{column} between {value.format(low)} and {value.format(high)}" for low, high in bounds)
    return " or ".join(ranges) or "false"


def _few(spark: SparkSession, table: DeltaTable, columns: list[str] | None, inside: pc.Expression) -> DataFrame | None:
    """The rows, read here; None where the session does not expect few, or they are more than `FEW_ROWS`, or `FEW_BYTES`."""
    if not expects_few(spark):
        return None
    dataset, found, rows, size = table.to_pyarrow_dataset(), list[pa.RecordBatch](), 0, 0
    scanner = dataset.scanner(columns=columns, filter=inside, use_threads=False, batch_size=_READ_ROWS)
    for batch in scanner.to_batches():
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows > FEW_ROWS or size > FEW_BYTES:
            return None
        found.append(batch)
    return handed(spark, pa.Table.from_batches(found, scanner.projected_schema))


def _of_files(
    spark: SparkSession, lake: Lake, stream: str, table: DeltaTable, inside: pc.Expression
) -> DataFrame | None:
    """All rows of the files that may hold such rows, by their statistics; None where only Delta's own reader knows how to read them.

    That is where the table has features of later protocols (deletion vectors, renamed columns) or partitions. Many files are left to it
    too: it knows their sizes, where Spark would ask for each.
    """
    if table.protocol().min_reader_version > 1 or table.metadata().partition_columns:
        return None
    files = [fragment.path for fragment in table.to_pyarrow_dataset().get_fragments(filter=inside)]
    if not 0 < len(files) <= MOST_FILES:
        return None
    place = literal(lake.spark_path("events", stream))
    return spark.read.schema(_schema(table)).parquet(*(f"{place}/{name}" for name in files))


def _schema(table: DeltaTable) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(table.schema().to_json()))


def append(
    rows: DataFrame | pa.Table,
    lake: Lake,
    area: str,
    name: str,
    app_id: str,
    version: int,
    *,
    few: bool | None = None,
    undone: Callable[[int], bool] | None = None,
) -> None:
    """Append as commit `version` of writer `app_id`; a commit the table already holds is left out by Delta.

    Rows that are here already are committed from here, and so are rows of which `few` are expected, or of which, where that is None, the session
    expects few (:func:`latecomer.spark.engine.tuning.tune`). Where they turn out to be too many, or too wide, for that, they are computed again and
    written by Spark. `undone` is as :func:`latecomer.lake.delta.append` has it.
    """
    here = rows if isinstance(rows, pa.Table) else None
    if here is None and (expects_few(rows.sparkSession) if few is None else few):
        here = brought(rows)
    if here is not None:
        delta.append(lake, area, name, here, app_id, version, undone)
        return
    if undone is not None:  # who commits meanwhile in the writer's name is found out by Delta
        delta.take_back(lake, area, name, app_id, undone)
    (
        rows.write.format("delta")
        .mode("append")
        .option("mergeSchema", "true")
        .option("txnAppId", app_id)
        .option("txnVersion", version)
        .save(lake.spark_path(area, name))
    )
