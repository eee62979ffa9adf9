"""Unite landing files in one DataFrame with the union of their columns, before rows are validated.

The columns of text files are strings, staged as Parquet in the lake (:mod:`latecomer.ingest.read_text`), so that Spark
sees one layout whatever the format. Parquet is read in place (:mod:`latecomer.ingest.read_parquet`). The common columns
are ``_file`` (number of the file), ``_row`` (position in it), ``_line``, ``_raw`` and ``_problem`` (set where the row
could not be read).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from latecomer.ingest.decode_text import FileProblem
from latecomer.ingest.event_times import with_staged_times
from latecomer.ingest.find_files import format_of
from latecomer.ingest.read_parquet import read_parquet
from latecomer.ingest.read_text import StagedPart, StagedText, keys_of, shape_of, split_objects
from latecomer.ingest.source_file import LandingFile
from latecomer.ingest.staging import RESERVED, Staging, refuse_columns
from latecomer.lake.errors import InputError
from latecomer.spark.engine.columns import instant, quoted
from latecomer.spark.engine.types import WHOLE, types_of
from latecomer.specs.column_types import is_number
from latecomer.specs.names import fold_case

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from latecomer.ingest.options import IngestOptions

WIDENS = {(a, b) for i, a in enumerate(WHOLE) for b in WHOLE[i + 1 :]} | {
    ("float", "double"),
    ("int", "double"),
    ("smallint", "double"),
    ("tinyint", "double"),
    ("timestamp_ntz", "timestamp"),
}
"""Pairs of a type and a wider one that holds all its values.

A column without a value has the type ``void``, which fits every type.
"""
_NESTED_OR_EMPTY = {"struct", "array", "map", "void"}
_EXACT_TO = {"float": 1 << 24, "double": 1 << 53}
"""The bound up to which these types hold every whole number exactly."""


@dataclass
class UnifiedInput:
    """The rows of a call before they are validated.

    Attributes
    ----------
    text
        Columns that are strings only because their format is text.
    origin
        The first file or other part that holds a column, by the column's name.
    shared
        Columns that every file with columns has.
    arrived
        The column with the arrival times of rows that state none, as timestamps, where their source knows them.
    nested
        Columns of `text` that hold JSON objects or arrays in every file that has a value of them; once
        :mod:`latecomer.ingest.nested` has typed them, the structs and arrays among them.
    untyped
        Fields inside of `nested` columns that no row has a value of, as dotted paths.
    staged
        All rows as text with their times, as they are staged, if all files are CSV.
    """

    rows: DataFrame
    text: set[str]
    origin: dict[str, str]
    shared: set[str]
    arrived: str | None = None
    nested: set[str] = field(default_factory=set)
    untyped: list[str] = field(default_factory=list)
    staged: list[StagedPart] = field(default_factory=list)


def read(
    spark: SparkSession, files: list[LandingFile], options: IngestOptions, staging: Staging, first: int = 0
) -> UnifiedInput:
    """Read files into one DataFrame; the files are numbered from `first`.

    Raises
    ------
    InputError
        A file as a whole cannot be used.
    """
    from pyspark.sql import functions as F

    loaded = _load(spark, files, options, staging, first)
    text: set[str] = set()
    typed: set[str] = set()
    named: list[set[str]] = []
    origin: dict[str, str] = {}
    kept: dict[str, str] = {}
    kinds: dict[str, tuple[str, LandingFile]] = {}
    for index, path in enumerate(files, first):
        names = loaded.columns[index]
        (typed if index in loaded.in_place else text).update(names)
        named += [set(names)] if names else []
        for name in names:
            origin.setdefault(name, str(path))
            other = kept.setdefault(fold_case(name), name)
            if other != name:
                raise InputError(
                    f"{path}: column {name}",
                    None,
                    f"differs from column {other!r} of {origin[other]} in case only",
                    "name it the same everywhere",
                )
        if index in loaded.in_place:
            times = {options.event_column, options.arrival_column}
            _resolve_types(kinds, types_of(loaded.in_place[index].select(*map(quoted, names))), path, times)
    both = text & typed
    zoned = {name for name, (kind, _) in kinds.items() if kind == "timestamp"}
    union = unite(
        [_with_common_types(part, both, zoned, options.timezone) for part in loaded.rows(options.layout.null_values)]
    )
    if len(files) > 1 and typed:
        _refuse_rounding({files[index - first]: rows for index, rows in loaded.in_place.items()}, union)
    for name in [options.event_column] + ([options.by] if options.by else []):
        if name in origin:
            continue
        if origin:
            close = ", ".join(c for c in union.columns if c not in RESERVED)
            remedy = f"name it with --event-column or --by (has: {close})"
            arrays = [path for shape in loaded.shapes.values() for path in _arrays(shape)]
            if arrays and options.layout.records is None:
                remedy += f"; or write records: {arrays[0]} in the stream file, if the rows are the elements of that"
            raise InputError(str(files[0]), name, "no such column", remedy)
        union = union.withColumn(name, F.lit(None).cast("string"))
        text.add(name)
    shared = set.intersection(*named) if named else set()
    return UnifiedInput(union, text, origin, shared, nested=loaded.nested(), staged=loaded.staged)


def _arrays(shape: StructType, outer: str = "") -> Iterator[str]:
    """Yield the dotted paths of arrays in JSON objects."""
    from pyspark.sql import types as T

    for item in shape:
        if isinstance(item.dataType, T.ArrayType):
            yield outer + item.name
        elif isinstance(item.dataType, T.StructType):
            yield from _arrays(item.dataType, f"{outer}{item.name}.")


def _resolve_types(
    kinds: dict[str, tuple[str, LandingFile]], own: dict[str, str], path: LandingFile, times: set[str]
) -> None:
    """Add a file's column types to the known ones, with their files; refuse a column whose types have no common one.

    Each call reads the columns in `times` as times, so files that write them differently can be ingested by another
    call.
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
        wider = (known, kind) in WIDENS or (numbers and known in WHOLE and kind not in WHOLE)
        if known == "void" or wider:
            kinds[name] = kind, path


@dataclass
class _LoadedFiles:
    """Files that were loaded, by their number.

    Attributes
    ----------
    in_place
        Rows of the Parquet files.
    columns
        Column names of all files.
    parts
        Rows of all files; a part of several files has the number of the first.
    shapes
        Keys of the JSON objects in ``line``, for parts that consist of such objects.
    staged
        The staged rows with their times, if all files are CSV.
    """

    in_place: dict[int, DataFrame] = field(default_factory=dict)
    columns: dict[int, list[str]] = field(default_factory=dict)
    parts: dict[int, DataFrame] = field(default_factory=dict)
    shapes: dict[int, StructType] = field(default_factory=dict)
    staged: list[StagedPart] = field(default_factory=list)

    def nested(self) -> set[str]:
        """Return the columns of JSON files that are objects or arrays wherever they have a value, in all files."""
        kinds: dict[str, set[str]] = {}
        for index in self.parts:
            fields = self.shapes[index] if index in self.shapes else self.parts[index].schema
            for item in fields:
                kinds.setdefault(item.name, set()).add(item.dataType.typeName())
        inside = {name for shape in self.shapes.values() for name in shape.names}
        return {name for name in inside if {"struct", "array"} & kinds[name] and kinds[name] <= _NESTED_OR_EMPTY}

    def rows(self, null_values: tuple[str, ...]) -> list[DataFrame]:
        """Return all parts in order, with a column for each key of JSON objects."""
        return [
            split_objects(part, self.shapes[index], null_values) if index in self.shapes else part
            for index, part in sorted(self.parts.items())
        ]


def _load(
    spark: SparkSession, files: list[LandingFile], options: IngestOptions, staging: Staging, first: int
) -> _LoadedFiles:
    """Load the files; refuse columns that no file may have."""
    from pyspark.sql import functions as F

    files_loaded = _LoadedFiles()
    all_csv = all(format_of(path, options.format) not in ("parquet", "json") for path in files)
    with_times = partial(with_staged_times, options=options) if all_csv and not options.event_clock_column else None
    with contextlib.closing(StagedText(staging, with_times)) as staged:
        for index, path in enumerate(files, first):
            kind = format_of(path, options.format)
            with _naming_file(path):
                if kind == "parquet":
                    rows = read_parquet(spark, path, staging)
                    files_loaded.columns[index] = [name for name in rows.columns if name not in RESERVED]
                    files_loaded.in_place[index], files_loaded.parts[index] = (
                        rows,
                        rows.withColumn("_file", F.lit(index)),
                    )
                else:
                    files_loaded.columns[index] = staged.add(index, path, kind or "csv", options.layout)
        for together, rows, kind in staged.frames(spark):
            files_loaded.parts[together[0]] = rows
            if kind == "csv" or "line" not in rows.columns:
                continue
            shape = files_loaded.shapes[together[0]] = shape_of(spark, rows)
            for index, names in keys_of(rows, shape, together).items():
                files_loaded.columns[index] = names
                with _naming_file(files[index - first]):
                    refuse_columns(names)
    files_loaded.staged = [] if with_times is None else staged.parts
    return files_loaded


@contextlib.contextmanager
def _naming_file(path: LandingFile) -> Iterator[None]:
    """Add the file to a problem of reading it."""
    try:
        yield
    except FileProblem as problem:
        raise InputError(str(path), None, problem.problem, problem.remedy) from None


def unite(parts: list[DataFrame]) -> DataFrame:
    """Return all rows with the union of columns.

    Unions of unions keep the plan's depth at the logarithm of their number.
    """
    while len(parts) > 1:
        pairs = [parts[place : place + 2] for place in range(0, len(parts), 2)]
        parts = [
            pair[0].unionByName(pair[-1], allowMissingColumns=True) if len(pair) > 1 else pair[0] for pair in pairs
        ]
    return parts[0]


def _refuse_rounding(parts: dict[LandingFile, DataFrame], union: DataFrame) -> None:
    """Refuse whole numbers that the type of the same column in another file would round.

    pandas writes ids as doubles where one is missing.
    """
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


def _with_common_types(part: DataFrame, text: set[str], zoned: set[str], zone: str) -> DataFrame:
    """Return rows with the columns of `text` as strings.

    In the columns of `zoned`, times that name no zone are converted from `zone`.
    """
    from pyspark.sql import functions as F

    for name, kind in part.dtypes:
        value = F.col(quoted(name))
        if name in zoned and kind == "timestamp_ntz":
            kind, value = "timestamp", instant(value, kind, zone)
            part = part.withColumn(name, value)
        if name in text:
            written = F.to_json(value) if kind.startswith(("struct<", "array<", "map<")) else value.cast("string")
            part = part.withColumn(name, F.concat(written, F.lit("Z")) if kind == "timestamp" else written)
    return part
