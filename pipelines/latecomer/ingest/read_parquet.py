"""Read Parquet files in place, with the types that tables have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from latecomer.ingest.decode_text import FileProblem
from latecomer.ingest.source_file import LandingFile
from latecomer.ingest.staging import Staging, refuse_columns
from latecomer.lake.storage import escape_pattern, spark_uri
from latecomer.spark.engine.columns import floor_div, quoted
from latecomer.specs.names import stored_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOT_IN_PLACE = re.compile(r"[_.].*|.*:.*|.*\._COPYING_", re.DOTALL)
"""File names that Spark takes for hidden, or cannot read."""


def read_parquet(spark: SparkSession, path: LandingFile, staging: Staging) -> DataFrame:
    """Read the rows of a Parquet file with the common columns except ``_file``.

    Raises
    ------
    FileProblem
        The file as a whole cannot be used.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    try:
        filesystem, source_path = path.source
        # Spark and Hive write times of 96 bits, in microseconds
        with pq.ParquetFile(source_path, coerce_int96_timestamp_unit="us", filesystem=filesystem) as file:
            schema = file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(error) from None
    if not schema.names:
        raise FileProblem("has no column", "check the file")
    refuse_columns(schema.names)
    for item in schema:
        for kind in _nested(item.type):
            if pa.types.is_time(kind) or pa.types.is_float16(kind) or pa.types.is_decimal256(kind):
                raise FileProblem(
                    f"has a column {item.name!r} of type {item.type}, which tables do not have", "write text"
                )
            if kind is not item.type and pa.types.is_timestamp(kind) and kind.unit == "ns":
                raise FileProblem(
                    f"has nanoseconds inside column {item.name!r}, which tables do not have", "write microseconds"
                )
            # unlike a column, a field inside one keeps its name
            fields = [field.name for field in kind] if pa.types.is_struct(kind) else []
            odd = [name for name in fields if stored_name(name) != name]
            if odd:
                raise FileProblem(
                    f"has a field {odd[0]!r} in column {item.name!r}, a name that tables do not take", "rename it"
                )
    place = escape_pattern(spark_uri(path.place))
    # with a local lake Spark is not configured for any store
    if _NOT_IN_PLACE.fullmatch(source_path.rpartition("/")[2]) or (staging.lake.is_local and not path.is_local):
        destination, folder, place = staging.folder()
        copy = f"{folder}/rows.parquet"
        fs.copy_files(source_path, copy, source_filesystem=filesystem, destination_filesystem=destination)
    try:
        rows = _as_written(spark.read.parquet(place), schema)
        everything = F.to_json(F.struct(*(F.col(quoted(c)) for c in schema.names)))
        position = F.col("_row")
        return rows.select(
            "*", (position + 1).alias("_line"), everything.alias("_raw"),
            F.lit(None).cast("string").alias("_problem"),
        )  # fmt: skip
    except PySparkException as error:
        raise _unreadable(error) from None


def _nested(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type and all types inside it."""
    yield kind
    for place in range(kind.num_fields):
        yield from _nested(kind.field(place).type)


def _unreadable(error: Exception) -> FileProblem:
    return FileProblem(f"is not readable Parquet ({' '.join(str(error).split())[:160]})", "check the file")


def _as_written(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """Convert columns of pandas that Spark takes for numbers: nanosecond timestamps, and columns without a value."""
    from pyspark.sql import functions as F

    columns, kinds = [], dict(rows.dtypes)
    for item in schema:
        column = F.col(quoted(item.name))
        # Spark reads times of 96 bits, as it and Hive write them, as timestamps
        if pa.types.is_timestamp(item.type) and item.type.unit == "ns" and kinds[item.name] == "bigint":
            column = F.timestamp_micros(floor_div(column, 1000))
            column = column if item.type.tz else column.cast("timestamp_ntz")
        if pa.types.is_null(item.type):
            column = F.lit(None)
        columns.append(column.alias(item.name))
    return rows.select(*columns, F.col("_metadata.row_index").alias("_row"))
