"""Landing files as one DataFrame of the union of their columns, before any judgement.

Text is read by pyarrow into string columns and staged as Parquet in the lake, so that Spark sees one layout whatever
came; Parquet is read in place. The common columns are ``_file`` (index of the file), ``_row`` (position in it),
``_line``, ``_raw`` and ``_problem`` (set where the row could not even be read).
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from latecomer.core.landing import FileProblem, TextRows, check_names, read_csv, read_json
from latecomer.lake.errors import InputError
from latecomer.lake.landing import content, format_of
from latecomer.lake.location import Lake
from latecomer.spark.columns import floor_div, quoted
from latecomer.spark.tables import literal
from latecomer.spark.types import WHOLE, is_number
from latecomer.specs.common import folded, repeated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from latecomer.spark.ingest_options import IngestOptions

RESERVED = ("_file", "_row", "_line", "_raw", "_problem", "_stream", "_order", "_place", "_metadata")
WIDENS = {(a, b) for i, a in enumerate(WHOLE) for b in WHOLE[i + 1 :]} | {
    ("float", "double"), ("int", "double"), ("smallint", "double"), ("tinyint", "double"), ("timestamp_ntz", "timestamp"),
}  # fmt: skip
"""Types, and those that hold their values too. A column without a value has the type ``void``, and goes with all."""
_EXACT_TO = {"float": 1 << 24, "double": 1 << 53}
"""Up to where every whole number is one of these types' own."""


class Staging:
    """Folders in the lake for what Spark does not read where it lies; :meth:`close` removes them."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._made: list[tuple[fs.FileSystem, str]] = []

    def folder(self) -> tuple[fs.FileSystem, str, str]:
        """A new folder: its file system, its place there, and its place as Spark reads it."""
        filesystem, root = self.lake.filesystem()
        name = f"_staging/{uuid.uuid4().hex}"
        if self.lake.is_local:
            filesystem.create_dir(f"{root}/{name}")
        self._made.append((filesystem, f"{root}/{name}"))
        return filesystem, f"{root}/{name}", literal(self.lake.spark_uri(f"{self.lake.uri}/{name}"))

    def sweep(self) -> None:
        """Remove what ingestions left that were killed. Only for the holder of their lease."""
        filesystem, root = self.lake.filesystem()
        with contextlib.suppress(OSError):
            if filesystem.get_file_info(f"{root}/_staging").type != fs.FileType.NotFound:
                filesystem.delete_dir(f"{root}/_staging")

    def close(self) -> None:
        """Remove them."""
        for filesystem, folder in self._made:
            with contextlib.suppress(OSError):
                filesystem.delete_dir(folder)


@dataclass
class Landed:
    """Rows of a call before any judgement.

    `text` names columns that are strings only because the format is text; `origin` has the file that holds a column first;
    `shared` names the columns of every file that has any.
    """

    rows: DataFrame
    text: set[str]
    origin: dict[str, Path]
    shared: set[str]


def read(spark: SparkSession, files: list[Path], options: IngestOptions, staging: Staging, first: int = 0) -> Landed:
    """All files as one DataFrame, numbered from `first`.

    Raises
    ------
    InputError
        A file that cannot be used as a whole.
    """
    from pyspark.sql import functions as F

    in_place, columns, parts = _brought(spark, files, options, staging, first)
    text: set[str] = set()
    typed: set[str] = set()
    named: list[set[str]] = []
    origin: dict[str, Path] = {}
    kept: dict[str, str] = {}
    kinds: dict[str, tuple[str, Path]] = {}
    for index, path in enumerate(files, first):
        names = columns[index]
        (typed if path in in_place else text).update(names)
        named += [set(names)] if names else []
        for name in names:
            origin.setdefault(name, path)
            other = kept.setdefault(folded(name), name)
            if other != name:
                raise InputError(
                    f"{path}: column {name}",
                    None,
                    f"differs from column {other!r} of {origin[other]} in case only",
                    "name it the same everywhere",
                )
        if path in in_place:
            times = {options.event_column, options.arrival_column}
            _agree(kinds, dict(in_place[path].select(*map(quoted, names)).dtypes), path, times)
    both = text & typed
    union = _together([_cast_text(part(), both) for part in parts])
    if len(files) > 1 and typed:
        _refuse_rounding(in_place, union)
    for name in [options.event_column] + ([options.by] if options.by else []):
        if name in origin:
            continue
        if origin:
            close = ", ".join(c for c in union.columns if c not in RESERVED)
            raise InputError(
                str(files[0]), name, "no such column", f"name it with --event-column or --by (has: {close})"
            )
        union = union.withColumn(name, F.lit(None).cast("string"))
        text.add(name)
    return Landed(union, text, origin, set.intersection(*named) if named else set())


def _agree(kinds: dict[str, tuple[str, Path]], own: dict[str, str], path: Path, times: set[str]) -> None:
    """Add the column types of a file to those known, with their files; refuse what is neither the same, nor numbers, nor moments.

    Of the columns in `times` each call makes moments, so files that write them otherwise can come by another one.
    """
    for name, kind in own.items():
        known, other = kinds.get(name, ("void", path))
        rounds = any(a.startswith("decimal") and b in _EXACT_TO for a, b in ((kind, known), (known, kind)))
        numbers = all(map(is_number, (known, kind))) and not rounds
        alike = kind == known or {(known, kind), (kind, known)} & WIDENS or numbers
        if not alike and "void" not in (kind, known):
            problem = f"is {kind}, and {known} in {other}"
            remedy = "ingest the files by a call each" if name in times else "rename one of them, or mend the file"
            raise InputError(f"{path}: column {name}", None, problem, remedy)
        if known == "void" or (known, kind) in WIDENS:
            kinds[name] = kind, path


def _brought(
    spark: SparkSession, files: list[Path], options: IngestOptions, staging: Staging, first: int
) -> tuple[dict[Path, DataFrame], dict[int, list[str]], list[Callable[[], DataFrame]]]:
    """The rows of Parquet files, by file; the columns of every file, by number; and all rows, in parts, those of the first files first."""
    from pyspark.sql import functions as F

    in_place: dict[Path, DataFrame] = {}
    columns: dict[int, list[str]] = {}
    parts: list[tuple[int, Callable[[], DataFrame]]] = []
    objects: list[int] = []
    with contextlib.closing(_Staged(staging)) as staged:
        for index, path in enumerate(files, first):
            kind = format_of(path, options.format)
            with _of_file(path):
                if kind == "parquet":
                    in_place[path] = _parquet(spark, path, staging)
                    columns[index] = [name for name in in_place[path].columns if name not in RESERVED]
                    parts.append((index, partial(in_place[path].withColumn, "_file", F.lit(index))))
                else:
                    columns[index] = staged.add(index, path, kind or "csv")
                    if kind == "json" and columns[index]:
                        objects.append(index)
        for index, rows, kind in staged.frames(spark):
            if kind == "csv" or "line" not in rows.columns:
                parts.append((index, partial(rows.select, "*")))
                continue
            shape = _shape(spark, rows)
            for own, names in _keys(rows, shape, objects).items():
                columns[own] = names
                with _of_file(files[own - first]):
                    _check_columns(names)
            parts.append((index, partial(_objects, rows, shape)))
    return in_place, columns, [part for _, part in sorted(parts, key=itemgetter(0))]


@contextlib.contextmanager
def _of_file(path: Path) -> Iterator[None]:
    """Say of which file a problem is."""
    try:
        yield
    except FileProblem as problem:
        raise InputError(str(path), None, problem.problem, problem.remedy) from None


def _together(parts: list[DataFrame]) -> DataFrame:
    """All rows, with the columns of all as they first come: unions of unions, so that a plan's depth is the logarithm of their number."""
    while len(parts) > 1:
        pairs = [parts[place : place + 2] for place in range(0, len(parts), 2)]
        parts = [
            pair[0].unionByName(pair[-1], allowMissingColumns=True) if len(pair) > 1 else pair[0] for pair in pairs
        ]
    return parts[0]


def _refuse_rounding(parts: dict[Path, DataFrame], union: DataFrame) -> None:
    """Refuse whole numbers that the type of the same column in another file would round; pandas writes ids as doubles where one is missing."""
    from pyspark.sql import functions as F

    kinds = dict(union.dtypes)
    for path, part in parts.items():
        most = {n: _EXACT_TO[kinds[n]] for n, kind in part.dtypes if kind in WHOLE and kinds[n] in _EXACT_TO}
        if not most:
            continue
        beyond = [
            F.first(F.when(~F.col(quoted(n)).between(-bound, bound), F.col(quoted(n))), ignorenulls=True)
            for n, bound in most.items()
        ]
        for name, value in zip(most, part.agg(*beyond).collect()[0], strict=True):
            if value is not None:
                problem = f"would be rounded: it is {kinds[name]} in another file"
                raise InputError(
                    f"{path}: column {name}", value, problem, "write one type, whole numbers, in all files"
                )


_NOT_IN_PLACE = re.compile(r"[_.].*|.*:.*|.*\._COPYING_", re.DOTALL)
"""File names that Spark takes for hidden, or cannot read."""


def _parquet(spark: SparkSession, path: Path, staging: Staging) -> DataFrame:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    try:
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:  # Spark's and Hive's times
            schema = file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(error) from None
    if not schema.names:
        raise FileProblem("has no column", "check the file")
    _check_columns(schema.names)
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
            odd = [field.name for field in kind if _UNSTORED.search(field.name)] if pa.types.is_struct(kind) else []
            if odd:
                raise FileProblem(
                    f"has a field {odd[0]!r} in column {item.name!r}, a name that tables do not take", "rename it"
                )
    place = literal(str(path.resolve()))
    if _NOT_IN_PLACE.fullmatch(path.resolve().name):
        filesystem, folder, place = staging.folder()
        fs.copy_files(
            str(path.resolve()),
            f"{folder}/rows.parquet",
            source_filesystem=fs.LocalFileSystem(),
            destination_filesystem=filesystem,
        )
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


_UNSTORED = re.compile("[ ,;{}()\n\t=]")
"""What Delta has in no column's name; those of fields inside one are not renamed."""


def _nested(kind: pa.DataType) -> Iterator[pa.DataType]:
    """A type, and all inside it."""
    yield kind
    for place in range(kind.num_fields):
        yield from _nested(kind.field(place).type)


def _unreadable(error: Exception) -> FileProblem:
    return FileProblem(f"is not readable Parquet ({' '.join(str(error).split())[:160]})", "check the file")


def _check_columns(names: Sequence[str]) -> None:
    """Refuse columns without a name, of a name that only case tells apart from another's, and of one of the product's own."""
    check_names(names)
    twice = repeated(names)
    if twice:
        raise FileProblem(f"has more than one column {twice[0]!r} (case does not tell columns apart)", "rename one")
    clash = [name for name in names if folded(name) in RESERVED]
    if clash:
        raise FileProblem(f"has a column {clash[0]!r}, a name kept for the product", "rename it")


def _cast_text(part: DataFrame, names: set[str]) -> DataFrame:
    from pyspark.sql import functions as F

    for name in names & set(part.columns):
        part = part.withColumn(name, F.col(quoted(name)).cast("string"))
    return part


def _as_written(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """What pandas writes and Spark takes for numbers: timestamps in nanoseconds (as microseconds), columns without a value (as ``void``)."""
    from pyspark.sql import functions as F

    columns, kinds = [], dict(rows.dtypes)
    for item in schema:
        column = F.col(quoted(item.name))
        # in 96 bits, as Spark and Hive write them, they are times to Spark
        if pa.types.is_timestamp(item.type) and item.type.unit == "ns" and kinds[item.name] == "bigint":
            column = F.timestamp_micros(floor_div(column, 1000))
            column = column if item.type.tz else column.cast("timestamp_ntz")
        if pa.types.is_null(item.type):
            column = F.lit(None)
        columns.append(column.alias(item.name))
    return rows.select(*columns, F.col("_metadata.row_index").alias("_row"))


_MOST_OPEN = 64
"""Files that are written at a time."""


class _Staged:
    """Text files' rows as strings in Parquet: those of files with the same columns together, so that a thousand are read back as one."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._open: dict[tuple[str, ...], tuple[int, pq.ParquetWriter, str]] = {}
        self._closed: list[tuple[int, str, str]] = []

    def add(self, index: int, path: Path, kind: str) -> list[str]:
        """Stage a file; returns its columns, of ``json`` the only one: ``line``.

        Raises
        ------
        FileProblem
            It cannot be used as a whole.
        """
        names, first = list[str](), 0
        for text in (read_csv if kind == "csv" else read_json)(lambda: content(path)):
            names = text.rows.column_names
            rows = _numbered(text, first)
            rows = rows.append_column("_file", pa.repeat(pa.scalar(index, pa.int32()), rows.num_rows))
            self._writer(index, kind, names, rows.schema).write_table(rows, row_group_size=1 << 18)
            first += rows.num_rows
        return names

    def frames(self, spark: SparkSession) -> list[tuple[int, DataFrame, str]]:
        """What was staged: the first file of each, the rows, and what they were written in."""
        self.close()
        return [(first, spark.read.parquet(place), kind) for first, place, kind in self._closed]

    def close(self) -> None:
        """Write what is still to be written."""
        while self._open:
            self._close_first()

    def _writer(self, index: int, kind: str, names: list[str], schema: pa.Schema) -> pq.ParquetWriter:
        known = self._open.get((kind, *names))
        if known is None:
            _check_columns(names)
            if len(self._open) == _MOST_OPEN:
                self._close_first()
            filesystem, folder, place = self._staging.folder()
            known = index, pq.ParquetWriter(f"{folder}/rows.parquet", schema, filesystem=filesystem), place
            self._open[(kind, *names)] = known
        return known[1]

    def _close_first(self) -> None:
        key = next(iter(self._open))
        first, writer, place = self._open.pop(key)
        self._closed.append((first, place, key[0]))
        writer.close()


def _numbered(text: TextRows, first: int) -> pa.Table:
    """Rows with the common columns, then what could not be read; positions from `first`."""
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


def _keys(rows: DataFrame, shape: StructType, files: list[int]) -> dict[int, list[str]]:
    """The keys of each of the `files`, whose objects have this `shape`."""
    from pyspark.sql import functions as F

    names = list(dict.fromkeys(shape.names))
    if len(files) == 1:
        return {files[0]: names}
    found: dict[int, set[str]] = {index: set() for index in files}
    objects = F.from_json(
        "line", "map<string,string>"
    )  # as they are read; Spark's own list of keys is none where a NaN stands
    for index, key in rows.select("_file", F.explode(F.map_keys(objects))).distinct().collect():
        found[index].add(key)
    found[files[0]].update(set(names).difference(*found.values()))
    return {index: [name for name in names if name in keys] for index, keys in found.items()}


def _objects(rows: DataFrame, shape: StructType) -> DataFrame:
    """Rows with a column ``line`` taken apart: a string column for each key of the objects, which have this `shape`."""
    from pyspark.sql import functions as F

    twice = F.lit(False)
    if len(set(shape.names)) < len(shape.names):  # in one object, as keys of others are told apart by their names
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
        if nested:  # as it is written, so that numbers in it stay numbers; a path cannot hold the sign that ends it
            parsed_again = F.to_json(value)  # where a NaN stands in the line, Spark's path finds nothing
            named = "'" not in item.name
            value = F.coalesce(F.get_json_object("line", f"$['{item.name}']"), parsed_again) if named else parsed_again
        else:  # numbers that JSON does not have, and Python writes, come quoted
            bare = F.replace(value, F.lit('"'), F.lit(""))
            value = F.when(value.isin('"NaN"', '"Infinity"', '"-Infinity"'), bare).otherwise(value)
            if "'" not in item.name:  # nested here, and elsewhere not
                written = F.get_json_object("line", f"$['{item.name}']")
                value = F.when(value.rlike(r"^[\[{]"), F.coalesce(written, value)).otherwise(value)
        columns.append(value.cast("string").alias(item.name))
    return parsed.select(
        *columns, "_file", "_row", "_line", F.coalesce("_raw", "line").alias("_raw"),
        F.coalesce(
            "_problem", F.when(broken, F.lit("is not a JSON object")), F.when(twice, F.lit("has a key more than once"))
        ).alias("_problem"),
    )  # fmt: skip


def _shape(spark: SparkSession, rows: DataFrame) -> StructType:
    """The keys of all lines that are objects; keys that only case tells apart are two, for the caller to refuse."""
    sensitive = "spark.sql.caseSensitive"
    given = spark.conf.get(sensitive)
    try:
        spark.conf.set(sensitive, "true")
        reader = spark.read.option("primitivesAsString", True).option("mode", "DROPMALFORMED")
        return reader.json(rows.where("line is not null").select("line")).schema
    finally:
        spark.conf.set(sensitive, str(given))
