"""Landing files as one DataFrame: found, read, their types agreed, every row judged.

Text is read by pyarrow into string columns and staged as Parquet in the lake, so that Spark sees one layout whatever
came; Parquet is read in place. The common columns are ``_file`` (index of the file), ``_row`` (position in it),
``_line``, ``_raw`` and ``_problem`` (set where the row could not even be read).
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from latecomer.core import landing as core
from latecomer.lake.errors import InputError
from latecomer.lake.location import Lake
from latecomer.spark.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from latecomer.spark.ingest import IngestOptions

SUFFIXES = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
RESERVED = ("_file", "_row", "_line", "_raw", "_problem", "_stream", "_order")


def find(paths: Sequence[str], forced: str | None) -> tuple[list[Path], list[Path]]:
    """Files in the order given, a folder's in name order; and a folder's files whose format is not known, which are left out.

    Hidden files (names with a dot in front) are no data: file systems and editors keep notes in them.

    Raises
    ------
    InputError
        A path that does not exist, or a file given by name whose format is not known.
    """
    found: list[Path] = []
    others: list[Path] = []
    for text in paths:
        path = Path(text)
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and p.name[0] != ".")
            found += [p for p in inside if _format(p, None)]
            others += [p for p in inside if not _format(p, None)]
        elif path.is_file():
            found.append(path)
        else:
            raise InputError(text, None, "no such file or folder", "check the path")
    for path in found:
        if _format(path, forced) is None:
            raise InputError(
                str(path),
                path.suffix,
                "the format does not follow from the suffix",
                "say --format csv, json or parquet",
            )
    if not found:
        raise InputError(
            " ".join(paths), None, "holds no file that can be ingested", "expected .csv, .json(l) or .parquet"
        )
    return found, others


def _format(path: Path, forced: str | None) -> str | None:
    suffixes = [suffix for suffix in map(str.lower, path.suffixes) if suffix != ".gz"]
    return forced or (SUFFIXES.get(suffixes[-1]) if suffixes else None)


def digest(path: Path, options: str) -> str:
    """SHA-256 of a file's content and of the options that change what it means."""
    hasher = hashlib.sha256(options.encode())
    with open(path, "rb") as handle:
        while block := handle.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


@dataclass
class Landed:
    """Rows of a call before any judgement; `text` names columns that are strings only because the format is text."""

    rows: DataFrame
    text: set[str]
    staging: list[tuple[fs.FileSystem, str]] = field(default_factory=list)

    def close(self) -> None:
        """Remove what was staged."""
        for filesystem, folder in self.staging:
            with contextlib.suppress(OSError):
                filesystem.delete_dir(folder)


def read(spark: SparkSession, lake: Lake, files: list[Path], options: IngestOptions) -> Landed:
    """All files as one DataFrame of the union of their columns.

    Raises
    ------
    InputError
        A file that cannot be used as a whole.
    """
    from pyspark.sql import functions as F

    parts: list[DataFrame] = []
    text: set[str] = set()
    typed: set[str] = set()
    staging = Landed(None, text)  # type: ignore[arg-type]
    for index, path in enumerate(files):
        kind = _format(path, options.format)
        try:
            if kind == "parquet":
                part = _parquet(spark, path)
                typed |= set(part.columns)
            else:
                part = _text(spark, lake, path, kind or "csv", staging)
                text |= {c for c in part.columns if c not in RESERVED}
        except core.FileProblem as problem:
            staging.close()
            raise InputError(str(path), None, problem.problem, problem.remedy) from None
        parts.append(part.withColumn("_file", F.lit(index)))
    folded: dict[str, str] = {}
    for part in parts:
        for name in part.columns:
            other = folded.setdefault(name.lower(), name)
            if other != name:
                staging.close()
                raise InputError(
                    str(files[0]), name, f"is another column than {other!r} only by case", "name it the same everywhere"
                )
    both = {c for c in text & typed if c not in RESERVED}
    union = _cast_text(parts[0], both)
    for part in parts[1:]:
        union = union.unionByName(_cast_text(part, both), allowMissingColumns=True)
    missing = options.event_column not in union.columns
    for name in [options.event_column] + ([options.by] if options.by else []):
        if name not in union.columns and len(union.columns) > 5:
            staging.close()
            close = ", ".join(c for c in union.columns if c not in RESERVED)
            raise InputError(
                str(files[0]), name, "no such column", f"name it with --event-column or --by (has: {close})"
            )
    if missing:
        union = union.withColumn(options.event_column, F.lit(None).cast("string"))
        text.add(options.event_column)
    if options.by and options.by not in union.columns:
        union = union.withColumn(options.by, F.lit(None).cast("string"))
    return Landed(union, text, staging.staging)


def _cast_text(part: DataFrame, names: set[str]) -> DataFrame:
    from pyspark.sql import functions as F

    for name in names & set(part.columns):
        part = part.withColumn(name, F.col(quoted(name)).cast("string"))
    return part


def _parquet(spark: SparkSession, path: Path) -> DataFrame:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    try:
        schema = pq.read_schema(path)
        names = schema.names
    except (pa.ArrowInvalid, OSError) as error:
        raise core.FileProblem(
            f"is not readable Parquet ({' '.join(str(error).split())[:160]})", "check the file"
        ) from None
    core._check_names(names)
    clash = [name for name in names if name in RESERVED]
    if clash:
        raise core.FileProblem(f"has a column {clash[0]!r}, a name kept for the product", "rename it")
    try:
        rows = _without_nanoseconds(spark.read.parquet(str(path.resolve())), schema)
        everything = F.to_json(F.struct(*(F.col(quoted(c)) for c in rows.columns)))
        position = F.col("_row")
        return rows.select(
            "*", (position + 1).alias("_line"), everything.alias("_raw"),
            F.lit(None).cast("string").alias("_problem"),
        )  # fmt: skip
    except PySparkException as error:
        raise core.FileProblem(
            f"is not readable Parquet ({' '.join(str(error).split())[:160]})", "check the file"
        ) from None


def _without_nanoseconds(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """Nanosecond timestamps (pandas writes them) as microseconds: Spark reads them as plain numbers."""
    from pyspark.sql import functions as F

    columns = []
    for item in schema:
        column = F.col(quoted(item.name))
        if pa.types.is_timestamp(item.type) and item.type.unit == "ns":
            column = F.timestamp_micros(F.expr(f"{quoted(item.name)} div 1000"))
            column = column if item.type.tz else column.cast("timestamp_ntz")
        columns.append(column.alias(item.name))
    return rows.select(*columns, F.col("_metadata.row_index").alias("_row"))


def _text(spark: SparkSession, lake: Lake, path: Path, kind: str, staging: Landed) -> DataFrame:
    """Stage a text file's rows as strings, and read them back."""
    from pyspark.sql import functions as F

    blocks = list(core.read_csv(path) if kind == "csv" else core.read_json(path))
    tables, at = [], 0
    for block in blocks:
        clash = [name for name in block.rows.column_names if name in RESERVED]
        if clash:
            raise core.FileProblem(f"has a column {clash[0]!r}, a name kept for the product", "rename it")
        count = block.rows.num_rows
        raw = _raw(block.rows) if count else pa.array([], pa.string())
        tables.append(
            block.rows.append_column("_row", pa.array(range(at, at + count), pa.int64()))
            .append_column("_line", block.lines.cast(pa.int64()))
            .append_column("_raw", raw)
            .append_column("_problem", pa.nulls(count, pa.string()))
        )
        at += count
        if block.bad:
            lines, raws, problems = zip(*block.bad, strict=True)
            n = len(lines)
            tables.append(
                pa.table(
                    {
                        "_row": pa.array(range(at, at + n), pa.int64()),
                        "_line": pa.array(lines, pa.int64()),
                        "_raw": pa.array(raws, pa.string()),
                        "_problem": pa.array(problems, pa.string()),
                    }
                )
            )
            at += n
    fields = [("_row", pa.int64()), ("_line", pa.int64()), ("_raw", pa.string()), ("_problem", pa.string())]
    whole = pa.concat_tables([*tables, pa.schema(fields).empty_table()], promote_options="default")
    filesystem, root = lake.filesystem()
    folder = f"_staging/{uuid.uuid4().hex}"
    if lake.is_local:
        filesystem.create_dir(f"{root}/{folder}")
    staging.staging.append((filesystem, f"{root}/{folder}"))
    pq.write_table(whole, f"{root}/{folder}/rows.parquet", row_group_size=1 << 18, filesystem=filesystem)
    rows = spark.read.parquet(lake.spark_uri(f"{lake.uri}/{folder}"))
    if kind != "json" or "line" not in rows.columns:
        return rows
    shape = spark.read.option("primitivesAsString", True).option("mode", "PERMISSIVE").json(str(path.resolve())).schema
    shape = type(shape)([f for f in shape.fields if f.name != "_corrupt_record"])
    core._check_names(shape.names)
    if not shape.fields:
        return rows.drop("line").withColumn("_problem", F.coalesce("_problem", F.lit("is not a JSON object")))
    known = type(shape)(shape.fields).add("_corrupt", "string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt", "primitivesAsString": "true"}
    parsed = rows.withColumn("_j", F.from_json("line", known, options))
    broken = F.col("_j._corrupt").isNotNull() | F.col("_j").isNull() | ~F.col("line").startswith("{")
    columns = []
    for item in shape.fields:
        value = F.col(f"_j.{quoted(item.name)}")
        nested = item.dataType.typeName() not in ("string", "void")
        if nested:  # as it is written, so that numbers in it stay numbers; a path cannot hold the sign that ends it
            value = F.to_json(value) if "'" in item.name else F.get_json_object("line", f"$['{item.name}']")
        columns.append(value.cast("string").alias(item.name))
    return parsed.select(
        *columns, "_row", "_line", F.coalesce("_raw", "line").alias("_raw"),
        F.coalesce("_problem", F.when(broken, F.lit("is not a JSON object"))).alias("_problem"),
    )  # fmt: skip


def _raw(rows: pa.Table) -> pa.Array:
    import pyarrow.compute as pc

    columns = [pc.fill_null(column, "") for column in rows.columns]
    joined = pc.binary_join_element_wise(*columns, ",")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def agree(
    landed: Landed, existing: dict[str, dict[str, str]], options: IngestOptions, files: list[Path]
) -> dict[str, str]:
    """Payload column -> Spark type, for the whole call, which reads `files`.

    Text columns get the narrowest type that holds them, or the type their stream's table has, where some value fits it.

    Raises
    ------
    InputError
        A column has changed its type: no value fits the one its table has.
    """
    where = str(files[0]) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    skip = {*RESERVED, options.event_column, options.arrival_column, options.by}
    types = {name: kind for name, kind in landed.rows.dtypes if name not in skip}
    texts = [name for name in types if name in landed.text and types[name] == "string"]
    before: dict[str, str] = {}
    for stream, columns in existing.items():
        for name, kind in columns.items():
            if (
                name in types
                and name not in ("seq", "event_ts", "arrival_ts")
                and before.setdefault(name, kind) != kind
                and options.by
            ):
                # streams of one file that disagree about a column keep their own types only if fed one by one
                raise InputError(
                    f"stream {stream}: column {name}",
                    kind,
                    f"is {before[name]} in another stream",
                    "ingest the streams apart with --stream",
                )
    counted = _count_text(landed.rows, texts, before) if texts else {}
    for name in texts:
        values, matches, fits, odd = counted[name]
        guessed = core.guess(values, matches)
        if name in before:
            if values and not fits:
                raise InputError(
                    f"{where}: column {name}",
                    odd,
                    f"has changed its type: the table's is {before[name]}, the file's {guessed}",
                    "rename the column, or mend the file",
                )
            types[name] = before[name]
        elif guessed is None:
            del types[name]
        else:
            types[name] = guessed
    for name, kind in types.items():
        if name in before and name not in texts and kind != before[name]:
            if (kind, before[name]) not in _WIDENS:
                raise InputError(
                    f"{where}: column {name}",
                    kind,
                    f"has changed its type: the table's is {before[name]}, the file's {kind}",
                    "rename the column, or mend the file",
                )
            types[name] = before[name]
        elif name not in texts and kind == "void":
            types[name] = before.get(name, "string")
    return types


_INTS = ("tinyint", "smallint", "int", "bigint")
_WIDENS = {(a, b) for i, a in enumerate(_INTS) for b in _INTS[i + 1 :]} | {
    ("float", "double"), ("int", "double"), ("smallint", "double"), ("tinyint", "double"), ("void", "string"), ("timestamp_ntz", "timestamp"),
} | {("void", kind) for kind in (*_INTS, "double", "boolean", "timestamp")}  # fmt: skip


def _count_text(
    rows: DataFrame, names: list[str], before: dict[str, str]
) -> dict[str, tuple[int, dict[str, int], int, str | None]]:
    """Per text column: values, how many match each pattern, how many fit the type before, one that does not."""
    from pyspark.sql import functions as F

    wanted: list[Column] = []
    for i, name in enumerate(names):
        column = F.col(quoted(name))
        wanted.append(F.count(column).alias(f"n{i}"))
        wanted += [F.count_if(column.rlike(pattern)).alias(f"{key}{i}") for key, pattern in core.PATTERNS.items()]
        kind = before.get(name, "string")
        fits = column if kind == "string" else column.try_cast(kind)
        wanted.append(F.count(fits).alias(f"fit{i}"))
        wanted.append(F.min(F.when(fits.isNull(), column)).alias(f"odd{i}"))
    found = rows.agg(*wanted).collect()[0]
    return {
        name: (found[f"n{i}"], {key: found[f"{key}{i}"] for key in core.PATTERNS}, found[f"fit{i}"], found[f"odd{i}"])
        for i, name in enumerate(names)
    }


def judge(landed: Landed, types: dict[str, str], options: IngestOptions, clock_us: int) -> DataFrame:
    """Typed rows with ``_stream``, ``_order``, and ``_problem`` where a row cannot be used.

    ``_order`` is the source's ``seq`` where every file has one, else the arrival in us, null where there is neither.
    """
    from pyspark.sql import functions as F

    rows = landed.rows
    kinds = dict(rows.dtypes)
    event = _moment(options.event_column, kinds[options.event_column], options.timezone)
    has_arrival = options.arrival_column in kinds
    arrival = (
        _moment(options.arrival_column, kinds[options.arrival_column], options.timezone)
        if has_arrival
        else F.lit(None).cast("bigint")
    )
    given_event = F.col(quoted(options.event_column)).isNotNull()
    given_arrival = F.col(quoted(options.arrival_column)).isNotNull() if has_arrival else F.lit(False)
    stream = F.lit(options.stream) if options.stream else F.col(quoted(options.by or "")).cast("string")
    if options.by:
        fine = stream.rlike(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$|^_[A-Za-z0-9.-][A-Za-z0-9_.-]{0,98}$")
        named = stream
        stream = F.when(fine, stream).otherwise(F.lit("_unknown"))
        unnamed = F.when(
            ~F.coalesce(fine, F.lit(False)),
            F.concat(F.lit(f"column {options.by} names no stream: "), F.coalesce(named, F.lit("null"))),
        )
    else:
        unnamed = F.lit(None).cast("string")
    bound = F.try_add(F.coalesce(arrival, F.lit(clock_us)), F.lit(options.max_future_us))
    problems = [
        F.col("_problem"),
        unnamed,
        F.when(~given_event, F.lit("has no event time")),
        F.when(
            event.isNull(),
            F.concat(F.lit("event time cannot be read: "), F.col(quoted(options.event_column)).cast("string")),
        ),
        F.when(given_arrival & arrival.isNull(), F.lit("arrival time cannot be read")),
        F.when(event > bound, F.lit("event time is too far in the future")),
        F.when(
            (event < options.earliest_us) | (arrival < options.earliest_us),
            F.lit("time is before the earliest allowed"),
        ),
        F.when(arrival > F.lit(_LATEST_US), F.lit("arrival time is beyond the year 9999")),
    ]
    columns = []
    for name, kind in types.items():
        value = F.col(quoted(name))
        target = "source_seq" if name == "seq" else name
        if kinds[name] == kind:
            columns.append(value.alias(target))
            continue
        cast = value.try_cast(kind)
        columns.append(cast.alias(target))
        problems.append(
            F.when(
                value.isNotNull() & cast.isNull(),
                F.concat(F.lit(f"column {name} is not {kind}: "), value.cast("string")),
            )
        )
    order = F.col("seq").try_cast("bigint") if "seq" in types else arrival
    return rows.select(
        F.timestamp_micros(F.when((event >= options.earliest_us) & (event <= _LATEST_US), event)).alias("event_ts"),
        F.timestamp_micros(F.when((arrival >= options.earliest_us) & (arrival <= _LATEST_US), arrival)).alias("arrival_ts"),
        *columns, "_file", "_row", "_line", "_raw",
        F.coalesce(*problems).alias("_problem"), stream.alias("_stream"), order.alias("_order"),
    )  # fmt: skip


_LATEST_US = 253_402_300_799_000_000


def _moment(name: str, kind: str, zone: str) -> Column:
    """A time column as bigint microseconds; null where it cannot be read."""
    from pyspark.sql import functions as F

    value = F.col(quoted(name))
    if kind == "timestamp":
        return F.unix_micros(value)
    if kind == "timestamp_ntz":
        return F.unix_micros(F.to_utc_timestamp(value.cast("timestamp"), zone))
    if kind == "date":
        return F.unix_micros(F.to_utc_timestamp(value.cast("timestamp"), zone))
    if kind in _INTS:
        return value.cast("bigint")
    if kind == "string":
        text = F.trim(value)
        zoned = text.rlike("(Z|[+-][0-9]{2}:?[0-9]{2})$")
        stamp = text.try_cast("timestamp")
        local = stamp if zone == "UTC" else F.to_utc_timestamp(stamp, zone)
        read = F.when(text.rlike("^[0-9]{4}-"), F.unix_micros(F.when(zoned, stamp).otherwise(local)))
        return F.when(text.rlike("^[+-]?[0-9]{1,18}$"), text.try_cast("bigint")).otherwise(read)
    return F.lit(None).cast("bigint")
