"""Validate the rows of a call: resolve the types of its columns, then type every row or quarantine it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from latecomer.core.time import LATEST_US
from latecomer.ingest.source_file import LandingFile
from latecomer.ingest.staging import RESERVED
from latecomer.ingest.type_inference import PATTERNS, guess
from latecomer.ingest.union import WIDENS, UnifiedInput
from latecomer.lake.errors import InputError
from latecomer.spark.engine.columns import instant, quoted
from latecomer.spark.engine.decimals import digits_of
from latecomer.spark.engine.types import FLOATING, WHOLE, is_number, types_of
from latecomer.specs.expressions import ALWAYS_THERE
from latecomer.specs.names import STREAM, fold_case, stored_name
from latecomer.specs.streams import TIME_UNITS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from latecomer.ingest.options import IngestOptions


def column_in_table(name: str) -> str:
    """Return the name that a payload column of a file has in its table."""
    return "source_seq" if name == "seq" else stored_name(name)


def streams(unified: UnifiedInput, options: IngestOptions, known: Sequence[str]) -> list[str]:
    """Return those of the `known` streams to which rows belong, sorted."""
    from pyspark.sql import functions as F

    if not known:
        return []
    found = unified.rows.select(_stream(options).alias("_stream")).where(F.col("_stream").isin(list(known))).distinct()
    return sorted(row["_stream"] for row in found.collect())


def _stream(options: IngestOptions) -> Column:
    """Return the stream that a row names; null where it names none."""
    from pyspark.sql import functions as F

    return F.lit(options.stream) if options.by is None else F.col(quoted(options.by)).cast("string")


def resolve_types(
    unified: UnifiedInput, existing: dict[str, dict[str, str]], options: IngestOptions, files: list[LandingFile]
) -> dict[str, str]:
    """Return the Spark type of every payload column of the call, by its name in the files.

    A text column gets the type that its stream's table has, if a value fits it, else the narrowest type that holds its
    values. A column without a value has no type yet and is left out.

    Parameters
    ----------
    existing
        Columns and types of the tables of the call's streams.
    files
        The files of the call, for messages.

    Raises
    ------
    InputError
        No value of a column fits the type that its table has, or a table cannot hold its name beside the names that it
        has.
    """
    where = str(files[0]) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    skip = {*RESERVED, options.event_column, options.arrival_column, options.by}
    types = {name: kind for name, kind in types_of(unified.rows).items() if name not in skip}
    _refuse_clashing_names(unified, types, existing)
    texts = [name for name in types if name in unified.text and types[name] == "string"]
    before: dict[str, str] = {}
    owner: dict[str, str] = {}
    for stream, columns in existing.items():
        for name in types:
            kind = columns.get(column_in_table(name))
            if kind is None:
                continue
            if before.setdefault(name, kind) != kind:
                # streams of one call that disagree about a column keep their own types only if fed one by one
                raise InputError(
                    f"{unified.origin[name]}: column {name}",
                    None,
                    f"is {kind} in stream {stream} and {before[name]} in stream {owner[name]}",
                    "ingest the streams apart with --stream",
                )
            owner.setdefault(name, stream)
    counted = _count_text(unified.rows, texts, before, options.timezone) if texts else {}
    for name in texts:
        values, matches, fits, odd = counted[name]
        guessed = guess(values, matches)
        if name in before:
            if values and not fits:
                raise InputError(
                    f"{where}: column {name}",
                    odd,
                    f"has changed its type: the table's is {before[name]}, the file's {guessed}",
                    "rename the column, or mend the file",
                )
            if is_number(before[name]) and matches["zero"]:
                raise InputError(
                    f"{where}: column {name}",
                    None,
                    f"has values with leading zeros, which the table's {before[name]} cannot keep",
                    "rename the column, or write numbers without them",
                )
            types[name] = before[name]
        elif guessed is None:
            del types[name]
        else:
            types[name] = guessed
    for name, kind in list(types.items()):
        if name in texts:
            continue
        if name in before and kind != before[name]:
            if kind != "void" and (kind, before[name]) not in WIDENS:
                raise InputError(
                    f"{where}: column {name}",
                    kind,
                    f"has changed its type: the table's is {before[name]}, the file's {kind}",
                    "rename the column, or mend the file",
                )
            types[name] = before[name]
        elif kind == "void":
            del types[name]
    return types


def orders(unified: UnifiedInput, types: dict[str, str]) -> bool:
    """Return whether the source's ``seq`` orders the rows: every file has that column, and it has a value."""
    return "seq" in unified.shared and types.get("seq", "void") != "void"


def refuse_unordered(unified: UnifiedInput, types: dict[str, str]) -> None:
    """Refuse a ``seq`` that cannot order rows: they would silently keep the order of the files."""
    from pyspark.sql import functions as F

    kind, value = types["seq"], F.col("seq")
    if is_number(kind) or kind in (*_TIMES, "date"):
        return
    odd = value.isNotNull() & ~value.rlike(_WHOLE) if kind == "string" else F.lit(True)
    found = unified.rows.where(odd).select(value.cast("string")).head(1)
    if found:
        raise InputError(
            f"{unified.origin['seq']}: column seq",
            found[0][0],
            "is to order the rows, and is neither a whole number nor a time",
            "mend the value, or rename the column",
        )


def _seq(unified: UnifiedInput, types: dict[str, str], zone: str) -> Column:
    """Return the source's ``seq`` as a value that orders rows; see :func:`validate_rows`."""
    from pyspark.sql import functions as F

    value = _typed(F.col("seq"), types_of(unified.rows)["seq"], types["seq"], zone)
    if types["seq"] != "string":
        return value
    digits = F.regexp_replace(value, "^[+-]?0*(?=[0-9])", "")
    size = F.concat(F.lpad(F.length(digits).cast("string"), 9, "0"), digits)  # more digits are a greater number
    below = F.concat(F.lit("-"), F.translate(size, "0123456789", "9876543210"))  # and below zero a lesser one
    return F.when(value.rlike("^-0*[1-9]"), below).otherwise(size)


_WHOLE = "^[+-]?[0-9]+$"
"""A whole number of any length, as some services number records."""


def _refuse_clashing_names(unified: UnifiedInput, names: Iterable[str], existing: dict[str, dict[str, str]]) -> None:
    """Refuse names that no table can hold beside the names that it has: tables do not distinguish columns by case.

    This comes before anything is planned, so nothing is half written.
    """
    taken: dict[str, str] = {}
    for name in names:
        clash = _clash(column_in_table(name), taken, existing)
        if clash is not None:
            raise InputError(f"{unified.origin[name]}: column {name}", None, *clash)
        taken[fold_case(column_in_table(name))] = name


def _clash(name: str, taken: dict[str, str], existing: dict[str, dict[str, str]]) -> tuple[str, str] | None:
    """Return problem and remedy of a stored column's name; None where it has no problem."""
    same = fold_case(name)
    if same in ALWAYS_THERE:
        return (
            f"is the name of {same}, which every table has",
            "rename it, or say with --event-column or --arrival-column what it is",
        )
    if same in taken:
        return f"is stored as {name}, and so is column {taken[same]}", "rename one of them"
    for stream, columns in existing.items():
        other = next((column for column in columns if fold_case(column) == same), name)
        if other != name:
            return f"differs from column {other!r} of stream {stream} in case only", f"name it {other}"
    return None


def _count_text(
    rows: DataFrame, names: list[str], before: dict[str, str], zone: str
) -> dict[str, tuple[int, dict[str, int], int, str | None]]:
    """Count, per text column, its values, those that match each pattern, and those that fit its earlier type.

    With one that does not.
    """
    from pyspark.sql import functions as F

    wanted: list[Column] = []
    for i, name in enumerate(names):
        column = F.col(quoted(name))
        wanted.append(F.count(column).alias(f"n{i}"))
        wanted += [F.count_if(column.rlike(pattern)).alias(f"{key}{i}") for key, pattern in PATTERNS.items()]
        whole = column.rlike(PATTERNS["integer"]) & column.try_cast("bigint").isNotNull()
        wanted.append(F.count_if(whole).alias(f"bigint{i}"))
        fits = _typed(column, "string", before.get(name, "string"), zone)
        wanted.append(F.count(fits).alias(f"fit{i}"))
        wanted.append(F.min(F.when(fits.isNull(), column)).alias(f"odd{i}"))
    found = rows.agg(*wanted).collect()[0]
    return {
        name: (
            found[f"n{i}"],
            {key: found[f"{key}{i}"] for key in (*PATTERNS, "bigint")},
            found[f"fit{i}"],
            found[f"odd{i}"],
        )
        for i, name in enumerate(names)
    }


def validate_rows(
    unified: UnifiedInput, types: dict[str, str], options: IngestOptions, clock_us: int, by_seq: bool
) -> DataFrame:
    """Return typed rows with ``_stream`` and ``_order``, and with ``_problem`` and ``_raw`` where a row cannot be used.

    ``_order`` is the source's ``seq`` where it orders the call (`by_seq`; digits in text become text that sorts like
    the numbers), else the arrival in us, null where there is none. `clock_us` is the arrival time of rows without one.
    """
    from pyspark.sql import functions as F

    rows = unified.rows
    kinds = types_of(rows)
    event = _moment(options.event_column, kinds[options.event_column], options)
    has_arrival = options.arrival_column in kinds
    arrival = (
        _moment(options.arrival_column, kinds[options.arrival_column], options)
        if has_arrival
        else F.lit(None).cast("bigint")
    )
    given_event = F.col(quoted(options.event_column)).isNotNull()
    given_arrival = F.col(quoted(options.arrival_column)).isNotNull() if has_arrival else F.lit(False)
    named = _stream(options)
    valid = F.coalesce(named.rlike(rf"^(?:{STREAM.pattern})\z"), F.lit(False))
    unnamed = F.concat(F.lit(f"column {options.by} names no stream: "), F.coalesce(named, F.lit("null")))
    bound = F.try_add(F.coalesce(arrival, F.lit(clock_us)), F.lit(options.max_future_us))
    problems = [
        F.col("_problem"),
        F.when(~valid, unnamed),
        F.when(~given_event, F.lit("has no event time")),
        F.when(
            event.isNull(),
            F.concat(F.lit("event time cannot be read: "), F.col(quoted(options.event_column)).cast("string")),
        ),
        F.when(given_arrival & arrival.isNull(), F.lit("arrival time cannot be read")),
        F.when(event > bound, F.lit("event time is too far in the future")),
        F.when(
            (event < options.earliest_us) | (arrival < options.earliest_us),
            F.lit(f"time is before {_day(options.earliest_us)}, the earliest allowed"),
        ),
        F.when(
            (event > LATEST_US) | (arrival > LATEST_US), F.lit(f"time is after {_day(LATEST_US)}, the latest allowed")
        ),
    ]
    columns = []
    for name, kind in types.items():
        value = F.col(quoted(name))
        cast = _typed(value, kinds[name], kind, options.timezone)
        columns.append(cast.alias(column_in_table(name)))
        if kinds[name] != kind:
            problems.append(
                F.when(
                    value.isNotNull() & cast.isNull(),
                    F.concat(F.lit(f"column {name} is not {kind}: "), value.cast("string")),
                )
            )
    order = _seq(unified, types, options.timezone) if by_seq else arrival
    problem = F.coalesce(*problems)
    return rows.select(
        F.timestamp_micros(F.when((event >= options.earliest_us) & (event <= LATEST_US), event)).alias("event_ts"),
        F.timestamp_micros(F.when((arrival >= options.earliest_us) & (arrival <= LATEST_US), arrival)).alias(
            "arrival_ts"
        ),
        *columns,
        "_file",
        "_row",
        "_line",
        F.when(problem.isNotNull(), F.col("_raw")).alias("_raw"),
        problem.alias("_problem"),
        F.when(valid, named).otherwise(F.lit(UNKNOWN)).alias("_stream"),
        order.alias("_order"),
    )


UNKNOWN = "_unknown"
"""The stream of rows that name none."""


def _day(time_us: int) -> str:
    return str(np.datetime64(time_us, "us").astype("datetime64[D]"))


def _moment(name: str, kind: str, options: IngestOptions) -> Column:
    """Return a time column as bigint microseconds; null where it cannot be read.

    Numbers count the call's time unit, and may have a fraction of it.
    """
    from pyspark.sql import functions as F

    value, unit = F.col(quoted(name)), TIME_UNITS[options.time_unit]
    if kind in WHOLE:
        return F.try_multiply(value.cast("bigint"), F.lit(unit))
    if kind in FLOATING or kind.startswith("decimal"):  # whole numbers beside a missing one, or unsigned
        if unit > 1:
            value = (
                F.round(value.cast("double") * unit)
                if kind in FLOATING
                else F.try_multiply(value.try_cast("decimal(38,9)"), F.lit(unit))
            )
        return F.when(value == F.floor(value), value.try_cast("bigint"))
    if kind == "string":
        text = F.trim(value)
        found = F.when(text.rlike(_NUMBER), F.try_multiply(text.try_cast("decimal(38,9)"), F.lit(unit)))
        whole = F.floor(found)
        number = (F.when(found == whole, whole) if unit == 1 else whole).try_cast("bigint")
        return F.coalesce(number, F.unix_micros(instant(value, kind, options.timezone)))
    if kind in ("timestamp", "timestamp_ntz", "date"):
        return F.unix_micros(instant(value, kind, options.timezone))
    return F.lit(None).cast("bigint")


_NUMBER = "^[+-]?[0-9]{1,18}([.][0-9]*)?([eE][+-]?[0-9]{1,2})?$"
"""A number, also with an exponent, as Spark writes large numbers of JSON that have a fraction."""


def _typed(value: Column, kind: str, target: str, zone: str) -> Column:
    """Convert values of one type to another.

    Null where a value does not fit, or text has more digits, or a time of day, than it holds.

    Times are UTC in tables, also where their type has no zone.
    """
    from pyspark.sql import functions as F

    if target in _TIMES and kind in ("string", "timestamp_ntz"):
        return instant(value, kind, zone).cast(target)
    if kind == target:
        return value
    if kind == "string" and target.startswith(("array<", "map<", "struct<")):
        return F.lit(None).cast(target)
    found = value.try_cast(target)
    if kind != "string":
        return found
    if target.startswith("decimal"):
        precision, scale = digits_of(target)
        finest = value.try_cast(f"decimal(38,{38 - precision + scale})")
        longer = value.rlike(rf"^[^eE]*[.][0-9]{{{scale}}}0*[1-9][0-9]*\s*$")
        return F.when((found == finest) & (found.cast("double") == value.try_cast("double")) & ~longer, found)
    if target in FLOATING:
        beyond = (F.abs(found) == float("inf")) & ~value.rlike(r"(?i)^\s*[+-]?inf(inity)?\s*$")
        below = (found == 0) & value.rlike("^[^eE]*[1-9]")
        return F.when(~(beyond | below), found)
    if target == "date":
        return F.when(found.cast("timestamp_ntz") == value.try_cast("timestamp_ntz"), found)
    return found


_TIMES = ("timestamp", "timestamp_ntz")
