"""Read text files: pyarrow parses them into staged Parquet, and Spark splits JSON objects into columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from latecomer.ingest.find_files import content
from latecomer.ingest.source_file import LandingFile
from latecomer.ingest.staging import Staging, refuse_columns
from latecomer.ingest.text_parser import TextRows, read_csv, read_json
from latecomer.spark.engine.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_MOST_OPEN = 64
"""Most staged files that are open at a time."""


class StagedText:
    """The rows of text files as strings in Parquet.

    Files with the same columns share one, so that a thousand are read back as one.
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._open: dict[tuple[str, ...], tuple[list[int], pq.ParquetWriter, str]] = {}
        self._closed: list[tuple[list[int], str, str]] = []

    def add(self, index: int, path: LandingFile, kind: str) -> list[str]:
        """Stage a file, and return its columns; a JSON file has the one column ``line``.

        Raises
        ------
        FileProblem
            The file as a whole cannot be used.
        """
        names, first = list[str](), 0
        for text in (read_csv if kind == "csv" else read_json)(lambda: content(path)):
            names = text.rows.column_names
            rows = _numbered(text, first)
            rows = rows.append_column("_file", pa.repeat(pa.scalar(index, pa.int32()), rows.num_rows))
            self._writer(index, kind, names, rows.schema).write_table(rows, row_group_size=1 << 18)
            first += rows.num_rows
        return names

    def frames(self, spark: SparkSession) -> list[tuple[list[int], DataFrame, str]]:
        """Return the parts that were staged together: numbers of files, rows, and the format of the files."""
        self.close()
        return [(files, spark.read.parquet(place), kind) for files, place, kind in self._closed]

    def close(self) -> None:
        """Close the staged files that are open."""
        while self._open:
            self._close_first()

    def _writer(self, index: int, kind: str, names: list[str], schema: pa.Schema) -> pq.ParquetWriter:
        known = self._open.get((kind, *names))
        if known is None:
            refuse_columns(names)
            if len(self._open) == _MOST_OPEN:
                self._close_first()
            filesystem, folder, place = self._staging.folder()
            known = [], pq.ParquetWriter(f"{folder}/rows.parquet", schema, filesystem=filesystem), place
            self._open[(kind, *names)] = known
        files, writer, _ = known
        if index not in files[-1:]:
            files.append(index)
        return writer

    def _close_first(self) -> None:
        key = next(iter(self._open))
        files, writer, place = self._open.pop(key)
        self._closed.append((files, place, key[0]))
        writer.close()


def _numbered(text: TextRows, first: int) -> pa.Table:
    """Return rows with the common columns, followed by the unreadable ones; positions count from `first`."""
    good, bad = text.rows.num_rows, len(text.bad)
    lines, raws, problems = zip(*text.bad, strict=True) if bad else ((), (), ())
    read = {
        "_row": pa.array(range(first, first + good), pa.int64()),
        "_line": text.lines.cast(pa.int64()),
        "_raw": _raw(text.rows),
        "_problem": pa.nulls(good, pa.string()),
    }
    unread = {
        "_row": pa.array(range(first + good, first + good + bad), pa.int64()),
        "_line": pa.array(lines, pa.int64()),
        "_raw": pa.array(raws, pa.string()),
        "_problem": pa.array(problems, pa.string()),
    }
    rows = text.rows
    for name, column in read.items():
        rows = rows.append_column(name, column)
    return pa.concat_tables([rows, pa.table(unread)], promote_options="default")


def _raw(rows: pa.Table) -> pa.Array | pa.ChunkedArray:
    if rows.num_rows == 0:
        return pa.array([], pa.string())
    return pc.binary_join_element_wise(*(pc.fill_null(column, "") for column in rows.columns), ",")


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


def split_objects(rows: DataFrame, shape: StructType) -> DataFrame:
    """Split the column ``line`` into a string column for each key of the objects, which have this `shape`."""
    from pyspark.sql import functions as F

    twice = F.lit(False)
    if len(set(shape.names)) < len(shape.names):  # within one object: keys of several objects are merged by name
        shape = type(shape)(list({item.name: item for item in shape.fields}.values()))
        keys = F.json_object_keys("line")
        twice = F.size(keys) > F.size(F.array_distinct(keys))
    if not shape.fields:
        return rows.drop("line").withColumn("_problem", F.coalesce("_problem", F.lit("is not a JSON object")))
    known = type(shape)(list(shape.fields)).add("_problem", "string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_problem", "primitivesAsString": "true"}
    parsed = rows.withColumn("_j", F.from_json("line", known, options))
    broken = F.col("_j._problem").isNotNull() | F.col("_j").isNull() | ~F.col("line").startswith("{")
    columns = []
    for item in shape.fields:
        value = F.col(f"_j.{quoted(item.name)}")
        nested = item.dataType.typeName() not in ("string", "void")
        if nested:  # the original text, so that its numbers stay numbers; a JSON path cannot hold a quote
            parsed_again = F.to_json(value)  # in a line with a NaN Spark's JSON path finds nothing
            named = "'" not in item.name
            value = F.coalesce(F.get_json_object("line", f"$['{item.name}']"), parsed_again) if named else parsed_again
        else:  # numbers outside JSON, which Python writes, arrive in quotes
            bare = F.replace(value, F.lit('"'), F.lit(""))
            value = F.when(value.isin('"NaN"', '"Infinity"', '"-Infinity"'), bare).otherwise(value)
            if "'" not in item.name:  # nested in this row, and not in others
                written = F.get_json_object("line", f"$['{item.name}']")
                value = F.when(value.rlike(r"^[\[{]"), F.coalesce(written, value)).otherwise(value)
        columns.append(value.cast("string").alias(item.name))
    return parsed.select(
        *columns, "_file", "_row", "_line", F.coalesce("_raw", "line").alias("_raw"),
        F.coalesce(
            "_problem", F.when(broken, F.lit("is not a JSON object")), F.when(twice, F.lit("has a key more than once"))
        ).alias("_problem"),
    )  # fmt: skip


def shape_of(spark: SparkSession, rows: DataFrame) -> StructType:
    """Return the keys of all lines that are objects.

    Keys that differ in case only are two keys, which the caller refuses.
    """
    sensitive = "spark.sql.caseSensitive"
    given = spark.conf.get(sensitive)
    try:
        spark.conf.set(sensitive, "true")
        reader = spark.read.option("primitivesAsString", True).option("mode", "DROPMALFORMED")
        return reader.json(rows.where("line is not null").select("line")).schema
    finally:
        spark.conf.set(sensitive, str(given))
