"""Validate the rows of a call: every row gets its stream and its place in an order, or a problem for quarantine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.time import LATEST_US
from latecomer.ingest.arrow_rows import map_rows, one_chunk
from latecomer.ingest.column_types import column_in_table
from latecomer.ingest.event_times import ARRIVAL, EVENT, PROBLEM
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.union import WIDENS, UnifiedInput
from latecomer.ingest.values.convert import convert
from latecomer.lake.errors import InputError
from latecomer.spark.engine.columns import instant, quoted
from latecomer.spark.engine.types import types_of
from latecomer.specs.column_types import is_number
from latecomer.specs.durations import format_duration
from latecomer.specs.names import STREAM

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

UNKNOWN = "_unknown"
"""The stream of rows that name none."""
CLOCK = "clock: "
"""Begins the reasons for quarantine that tell of a wrong clock."""
_TIMES = ("timestamp", "timestamp_ntz")


# --------------------------------------------------------------------------------------------------- stream and order


def streams(rows: DataFrame, known: Sequence[str]) -> list[str]:
    """Return those of the `known` streams to which rows of :func:`with_streams` belong, sorted."""
    from pyspark.sql import functions as F

    if not known:
        return []
    names = rows.where(F.col("_stream").isin(list(known))).select("_stream").distinct()
    return sorted(row["_stream"] for row in names.collect())


def stream_of(options: IngestOptions, usual: Sequence[str] = ()) -> Column:
    """Return the stream that a row names; null where it names none.

    In names that a column holds, blanks at the ends are left out, and each other blank or sign that no stream's name
    has becomes ``_``. `usual` are names of streams as the column may hold them: such a name is taken as it is, since a
    regular expression for each row costs more than all else that is read of it.
    """
    from pyspark.sql import functions as F

    if options.by is None:
        return F.lit(options.stream)
    given = F.col(quoted(options.by)).cast("string")
    named = F.regexp_replace(F.trim(given), "[^A-Za-z0-9_.-]", "_")
    return F.when(given.isin(list(usual)), given).otherwise(named) if usual else named


def orders(unified: UnifiedInput, types: Mapping[str, str]) -> bool:
    """Return whether the source's ``seq`` orders the rows: every file has that column, and it has a value."""
    return "seq" in unified.shared and types.get("seq", "void") != "void"


def refuse_unordered(unified: UnifiedInput, types: Mapping[str, str]) -> None:
    """Refuse a ``seq`` that cannot order rows: they would silently keep the order of the files."""
    from pyspark.sql import functions as F

    kind, value = types["seq"], F.col("seq")
    if is_number(kind) or kind in (*_TIMES, "date"):
        return
    odd = value.isNotNull() & ~value.rlike(_WHOLE) if kind == "string" else F.lit(True)
    wrong = unified.rows.where(odd).select(value.cast("string")).head(1)
    if wrong:
        raise InputError(
            f"{unified.origin['seq']}: column seq",
            wrong[0][0],
            "is to order the rows, and is neither a whole number nor a time",
            "mend the value, or rename the column",
        )


def _seq(kind: str) -> Column:
    """Return the typed ``seq`` as a value that orders rows: digits become text that sorts like the numbers."""
    from pyspark.sql import functions as F

    value = F.col("seq")
    if kind != "string":
        return value
    digits = F.regexp_replace(value, "^[+-]?0*(?=[0-9])", "")
    size = F.concat(F.lpad(F.length(digits).cast("string"), 9, "0"), digits)  # more digits are a greater number
    below = F.concat(F.lit("-"), F.translate(size, "0123456789", "9876543210"))  # and below zero a lesser one
    return F.when(value.rlike("^-0*[1-9]"), below).otherwise(size)


_WHOLE = "^[+-]?[0-9]+$"
"""A whole number of any length, as some services number records."""


# ------------------------------------------------------------------------------------------------------------- problems


def with_problems(
    rows: DataFrame, options: IngestOptions, clock_us: int, max_age_us: Mapping[str, int] | int
) -> DataFrame:
    """Complete ``_problem`` by what is wrong with the stream and the times of a row.

    Parameters
    ----------
    rows
        Rows of :func:`with_streams`, with the columns of :func:`latecomer.ingest.event_times.with_times`.
    clock_us
        The arrival time of rows without one.
    max_age_us
        Most microseconds by which an arrival may lie after its event time, for all streams or by stream.

    Notes
    -----
    Rows without an arrival time have no age.
    """
    from pyspark.sql import functions as F

    event, arrival, stream = F.col(EVENT), F.col(ARRIVAL), F.col("_stream")
    unnamed = F.concat(F.lit(f"column {options.by} names no stream: "), F.coalesce(stream_of(options), F.lit("null")))
    bound = F.try_add(F.coalesce(arrival, F.lit(clock_us)), F.lit(options.max_future_us))
    problems = [
        F.col("_problem"),
        F.when(stream == UNKNOWN, unnamed),
        F.col(PROBLEM),
        F.when(event > bound, F.lit("event time is too far in the future")),
        F.when(
            (event < options.earliest_us) | (arrival < options.earliest_us),
            F.lit(f"time is before {_day(options.earliest_us)}, the earliest allowed"),
        ),
        F.when(
            (event > LATEST_US) | (arrival > LATEST_US), F.lit(f"time is after {_day(LATEST_US)}, the latest allowed")
        ),
    ]
    if isinstance(max_age_us, int):
        bounds = [(F.lit(True), max_age_us)]
    else:
        bounds = [(stream == name, age_us) for name, age_us in sorted(max_age_us.items())]
    for of_stream, age_us in bounds:
        problem = f"{CLOCK}the event is more than {format_duration(age_us)} older than its arrival"
        problems.append(F.when(of_stream & (F.try_subtract(arrival, event) > age_us), F.lit(problem)))
    return rows.withColumn("_problem", F.coalesce(*problems)).drop(PROBLEM)


def with_streams(rows: DataFrame, options: IngestOptions, usual: Sequence[str] = ()) -> DataFrame:
    """Add ``_stream`` to rows; `UNKNOWN` where a row names none.

    `usual` are names of streams that :func:`stream_of` takes as they are; all of them are valid.
    """
    from pyspark.sql import functions as F

    named = rows.withColumn("_named", stream_of(options, usual))  # a column, so that a name is read once for each row
    valid = F.coalesce(F.col("_named").rlike(rf"^(?:{STREAM.pattern})\z"), F.lit(False))
    valid = F.when(F.col("_named").isin(list(usual)), F.lit(True)).otherwise(valid) if usual else valid
    return named.withColumn("_stream", F.when(valid, F.col("_named")).otherwise(F.lit(UNKNOWN))).drop("_named")


def _day(time_us: int) -> str:
    return str(np.datetime64(time_us, "us").astype("datetime64[D]"))


# --------------------------------------------------------------------------------------------------------------- types


def with_types(rows: DataFrame, texts: set[str], types: Mapping[str, str], options: IngestOptions) -> DataFrame:
    """Give the payload columns their types; a row with a value that does not fit its column's type gets a problem.

    Parameters
    ----------
    texts
        Columns that are text only because their format is.
    """
    from pyspark.sql import functions as F

    kinds = types_of(rows)
    to_convert = {n: k for n, k in types.items() if n in texts and kinds[n] == "string" and k != "string"}
    if to_convert:
        rows = _converted(rows, to_convert, options)
    casts, problems = {}, [F.col("_problem")]
    for name, kind in types.items():
        if name in to_convert or (kinds[name] == kind and kind != "timestamp_ntz"):
            continue
        value = F.col(quoted(name))
        casts[name] = _cast(value, kinds[name], kind, options.timezone)
        wrong = F.concat(F.lit(f"column {name} is not {kind}: "), value.cast("string"))
        problems.append(F.when(value.isNotNull() & casts[name].isNull(), wrong))
    return rows.withColumns({"_problem": F.coalesce(*problems), **casts}) if casts else rows


def _cast(value: Column, kind: str, target: str, zone: str) -> Column:
    """Convert typed values to another type; null where a value does not fit. Times are UTC in tables."""
    from pyspark.sql import functions as F

    if target in _TIMES and kind == "timestamp_ntz":
        return instant(value, kind, zone).cast(target)
    cast = value.try_cast(target)
    if not (is_number(kind) and is_number(target)) or (kind, target) in WIDENS:
        return cast
    return F.when(cast.try_cast(kind) == value, cast)  # it would be cut or rounded


def _converted(rows: DataFrame, types: Mapping[str, str], options: IngestOptions) -> DataFrame:
    from pyspark.sql import types as T

    schema = T.StructType()
    for item in rows.schema.fields:
        kind = types.get(item.name)
        schema = schema.add(item if kind is None else T.StructField(item.name, T._parse_datatype_string(kind)))
    function = partial(
        convert_columns, types=dict(types), zone=options.timezone, decimal_comma=options.layout.decimal_comma
    )
    return map_rows(rows, function, schema)


def convert_columns(table: pa.Table, types: Mapping[str, str], zone: str, decimal_comma: bool) -> pa.Table:
    """Replace columns of text by typed ones, and complete ``_problem`` by the first value that does not fit."""
    problem = one_chunk(table, "_problem")
    for name, kind in types.items():
        text = one_chunk(table, name)
        values, fits = convert(text, kind, zone, decimal_comma)
        if not fits.all():
            reason = pc.binary_join_element_wise(pa.scalar(f"column {name} is not {kind}: "), text, "")
            problem = pc.coalesce(problem, pc.if_else(pa.array(~fits), reason, pa.scalar(None, pa.string())))
        table = table.set_column(table.column_names.index(name), name, values)
    return table.set_column(table.column_names.index("_problem"), "_problem", problem)


def validated(rows: DataFrame, types: Mapping[str, str], options: IngestOptions, by_seq: bool) -> DataFrame:
    """Return the rows as tables take them, with ``_stream`` and ``_order``; ``_raw`` where there is a problem.

    ``_order`` is the source's ``seq`` where it orders the call (`by_seq`), else the arrival in us, null where there is
    none.
    """
    from pyspark.sql import functions as F

    def timestamp(us: str) -> Column:
        in_tables = F.col(us).between(options.earliest_us, LATEST_US)
        return F.timestamp_micros(F.when(in_tables, F.col(us)))

    keeps_raw = F.col("_problem").isNotNull() | F.lit(options.on_duplicate == "quarantine" and bool(options.key))
    return rows.select(
        timestamp(EVENT).alias("event_ts"),
        timestamp(ARRIVAL).alias("arrival_ts"),
        *(F.col(quoted(name)).alias(column_in_table(name)) for name in types),
        "_file",
        "_row",
        "_line",
        F.when(keeps_raw, F.col("_raw")).alias("_raw"),
        "_problem",
        "_stream",
        (_seq(types["seq"]) if by_seq else F.col(ARRIVAL)).alias("_order"),
    )
