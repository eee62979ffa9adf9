"""Read text files: they are parsed into staged Parquet, and Spark splits JSON objects into columns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from latecomer.ingest.packed_files import content
from latecomer.ingest.source_file import LandingFile
from latecomer.ingest.staging import Staging, refuse_columns
from latecomer.ingest.text_parser import TextRows, read_csv, read_json
from latecomer.spark.engine.columns import quoted
from latecomer.specs.streams import TextLayout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_MOST_OPEN = 64
"""Most staged files that are open at a time."""


@dataclass(frozen=True)
class StagedPart:
    """A staged Parquet file, with the numbers and the format of the files that it holds; `place` is for Spark."""

    files: list[int]
    kind: str
    filesystem: fs.FileSystem
    path: str
    place: str


class StagedText:
    """The rows of text files as strings in Parquet.

    Files with the same columns share one, so that a thousand are read back as one.
    """

    def __init__(self, staging: Staging, with_times: Callable[[pa.Table], pa.Table] | None = None) -> None:
        """`with_times` adds columns to the rows of CSV."""
        self._staging, self._with_times = staging, with_times
        self._open: dict[tuple[str, ...], tuple[StagedPart, pq.ParquetWriter]] = {}
        self.parts: list[StagedPart] = []

    def add(self, index: int, path: LandingFile, kind: str, layout: TextLayout) -> list[str]:
        """Stage a file, and return its columns; a JSON file has the one column ``line``.

        Raises
        ------
        FileProblem
            The file as a whole cannot be used.
        """
        names, first = list[str](), 0
        for text in (read_csv if kind == "csv" else read_json)(lambda: content(path), layout):
            if not names:
                names = text.rows.column_names
                refuse_columns(names)
            rows = _numbered(text, first)
            rows = rows.append_column("_file", pa.repeat(pa.scalar(index, pa.int32()), rows.num_rows))
            if kind == "csv" and self._with_times is not None:
                rows = self._with_times(rows)
            self._writer(index, kind, names, rows.schema).write_table(rows, row_group_size=1 << 18)
            first += rows.num_rows
        return names

    def frames(self, spark: SparkSession) -> list[tuple[list[int], DataFrame, str]]:
        """Return the parts that were staged together: numbers of files, rows, and the format of the files."""
        self.close()
        return [(part.files, spark.read.parquet(part.place), part.kind) for part in self.parts]

    def close(self) -> None:
        """Close the staged files that are open."""
        while self._open:
            self._close_first()

    def _writer(self, index: int, kind: str, names: list[str], schema: pa.Schema) -> pq.ParquetWriter:
        known = self._open.get((kind, *names))
        if known is None:
            if len(self._open) == _MOST_OPEN:
                self._close_first()
            filesystem, folder, place = self._staging.folder()
            repeating = [*names, "_problem", "_file"]  # a dictionary of values that differ costs a third of the time
            writer = pq.ParquetWriter(f"{folder}/rows.parquet", schema, filesystem=filesystem, use_dictionary=repeating)
            part = StagedPart([], kind, filesystem, f"{folder}/rows.parquet", place)
            known = self._open[(kind, *names)] = part, writer
        part, writer = known
        if index not in part.files[-1:]:
            part.files.append(index)
        return writer

    def _close_first(self) -> None:
        key = next(iter(self._open))
        part, writer = self._open.pop(key)
        self.parts.append(part)
        writer.close()


def _numbered(text: TextRows, first: int) -> pa.Table:
    """Return rows with the common columns, followed by the unreadable ones; positions count from `first`."""
    good, bad = text.rows.num_rows, text.unreadable.num_rows
    read = {
        "_row": pa.array(np.arange(first, first + good)),
        "_line": text.lines.cast(pa.int64()),
        "_raw": text.raw,
        "_problem": pa.nulls(good, pa.string()),
    }
    unread = {
        "_row": pa.array(np.arange(first + good, first + good + bad)),
        "_line": text.unreadable["line"],
        "_raw": text.unreadable["text"],
        "_problem": text.unreadable["problem"],
    }
    rows = text.rows
    for name, column in read.items():
        rows = rows.append_column(name, column)
    return pa.concat_tables([rows, pa.table(unread)], promote_options="default") if bad else rows


def keys_of(rows: DataFrame, shape: StructType, files: list[int]) -> dict[int, list[str]]:
    """Return the keys of each of the `files`, whose objects have this `shape`."""
    from pyspark.sql import functions as F

    names = list(dict.fromkeys(shape.names))
    if len(files) == 1:
        return {files[0]: names}
    keys_by_file: dict[int, set[str]] = {index: set() for index in files}
    objects = F.from_json("line", "map<string,string>")  # Spark's json_object_keys finds none in a line with a NaN
    for index, key in rows.select("_file", F.explode(F.map_keys(objects))).distinct().collect():
        keys_by_file[index].add(key)
    keys_by_file[files[0]].update(set(names).difference(*keys_by_file.values()))
    return {index: [name for name in names if name in keys] for index, keys in keys_by_file.items()}


def split_objects(rows: DataFrame, shape: StructType, null_values: tuple[str, ...] = ()) -> DataFrame:
    """Split the column ``line`` into a string column for each key of the objects, which have this `shape`.

    Values that are among the `null_values` are null.
    """
    from pyspark.sql import functions as F

    twice = F.lit(False)
    if len(set(shape.names)) < len(shape.names):  # within one object: keys of several objects are merged by name
        shape = type(shape)(list({item.name: item for item in shape.fields}.values()))
        keys = F.json_object_keys("line")
        twice = F.size(keys) > F.size(F.array_distinct(keys))
    if not shape.fields:
        return rows.drop("line").withColumn("_problem", F.coalesce("_problem", F.lit("is not a JSON object")))
    known = type(shape)().add("_problem", "string")
    for name in shape.names:
        known = known.add(name, "string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_problem"}
    parsed = rows.withColumn("_j", F.from_json("line", known, options))
    broken = F.col("_j._problem").isNotNull() | F.col("_j").isNull() | ~F.col("line").startswith("{")
    columns = []
    for name in shape.names:  # an object or array becomes its JSON text
        value = F.col(f"_j.{quoted(name)}")
        # numbers outside JSON, which Python writes, arrive in quotes
        bare = F.replace(value, F.lit('"'), F.lit(""))
        value = F.when(value.isin('"NaN"', '"Infinity"', '"-Infinity"'), bare).otherwise(value)
        if null_values:
            value = F.when(~value.isin(*null_values), value)
        columns.append(value.alias(name))
    kept = [quoted(name) for name in rows.columns if name not in ("line", "_raw", "_problem")]
    return parsed.select(
        *columns, *kept, F.coalesce("_raw", "line").alias("_raw"),
        F.coalesce(
            "_problem", F.when(broken, F.lit("is not a JSON object")), F.when(twice, F.lit("has a key more than once"))
        ).alias("_problem"),
    )  # fmt: skip


def shape_of(spark: SparkSession, rows: DataFrame) -> StructType:
    """Return the keys of all lines that are objects.

    Keys that differ in case only are two keys, which the caller refuses.
    """
    with case_sensitive(spark):
        reader = spark.read.option("primitivesAsString", True).option("mode", "DROPMALFORMED")
        return reader.json(rows.where("line is not null").select("line")).schema


@contextlib.contextmanager
def case_sensitive(spark: SparkSession) -> Iterator[None]:
    """Tell names apart by case in what Spark plans meanwhile, as JSON does and tables do not."""
    sensitive = "spark.sql.caseSensitive"
    given = spark.conf.get(sensitive)
    try:
        spark.conf.set(sensitive, "true")
        yield
    finally:
        spark.conf.set(sensitive, str(given))
