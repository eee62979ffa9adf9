"""Read the event time and the arrival time of every row, whatever type or text they come in.

Text is read by :mod:`latecomer.ingest.values.times`. A local time that a clock shows twice, when summer time ends, is
resolved by the row's arrival and by the order of the rows of a device in a file
(:func:`latecomer.ingest.clocks.resolve`); what neither resolves cannot be used. A local time that no clock shows cannot
be used either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from latecomer.ingest.arrow_rows import map_rows, one_chunk
from latecomer.ingest.clocks import OCCURS_TWICE, resolve
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.values.times import FRACTION, Times, local_times, parse_times, remedies
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import quoted
from latecomer.spark.engine.types import FLOATING, WHOLE, types_of
from latecomer.specs.streams import TIME_UNITS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EVENT, ARRIVAL, PROBLEM = "_event_us", "_arrival_us", "_time_problem"
"""Columns that `with_times` adds: bigint microseconds since 1970, and why a time cannot be used."""
_EVENT_GIVEN, _ARRIVAL_GIVEN = "_event_given", "_arrival_given"
LATER = "_later_us"
"""A column of the second instant that an event time may mean, until it is resolved."""
_HINT, _EVENT_SKIPPED, _ARRIVAL_SKIPPED = "_event_hint", "_event_skipped", "_arrival_skipped"
_HOUR_US = 3_600_000_000
_MOST_HOURS = 1_000
"""Most hours of a call that are resolved; the times of further ones stay ambiguous."""


@dataclass(frozen=True)
class _TimeColumn:
    """A time of the rows: as `text`, as time on a local clock (`wall`), or as an `instant`.

    `given` is the column as it is shown, `value` what is read: text, or microseconds since 1970.
    """

    form: str
    given: Column
    value: Column


def with_times(rows: DataFrame, options: IngestOptions, arrived: str | None = None) -> DataFrame:
    """Add the columns `EVENT`, `ARRIVAL` and `PROBLEM` to rows with the common columns.

    Parameters
    ----------
    arrived
        A timestamp column of the source with the arrival of rows that state none. Without it, their `ARRIVAL` is null.
    """
    from pyspark.sql import functions as F

    event, arrival = _event_column(rows, options), _arrival_column(rows, options)
    later: Column | None = None
    skipped: Column | None = None
    if EVENT in rows.columns:  # read when the rows were staged
        timed = _resolve_repeated_hours(rows, options)
        later, skipped = F.col(LATER).isNotNull(), F.col(_EVENT_SKIPPED)
    elif event.form == arrival.form == "instant":
        timed = _with_arrivals(rows.withColumns({EVENT: event.value, ARRIVAL: arrival.value}), arrival, arrived)
    else:
        timed = _with_arrivals(_read_in_arrow(rows, event, arrival, options), arrival, arrived)
        timed = _resolve_repeated_hours(timed, options)
        later, skipped = F.col(LATER).isNotNull(), F.col(_EVENT_SKIPPED)
    shown = event.given.cast("string")
    clock = f"on a clock in {options.timezone}"
    problems = [F.when(event.given.isNull(), F.lit("has no event time"))]
    if later is not None and skipped is not None:
        problems += [
            F.when(skipped, F.concat(F.lit(f"event time does not exist {clock}: "), shown)),
            F.when(later, F.concat(F.lit(f"{OCCURS_TWICE}: "), shown)),
            F.when(F.col(_ARRIVAL_SKIPPED), F.lit(f"arrival time does not exist {clock}")),
        ]
    hint = F.lit("") if later is None else F.coalesce(F.col(_HINT), F.lit(""))
    if types_of(rows)[options.event_column] in FLOATING and options.time_unit == "us":
        hint = F.when(F.abs(event.given) < float(1 << 53), F.lit(f" ({FRACTION})")).otherwise(F.lit(""))
    problems += [
        F.when(F.col(EVENT).isNull(), F.concat(F.lit("event time cannot be read: "), shown, hint)),
        F.when(arrival.given.isNotNull() & F.col(ARRIVAL).isNull(), F.lit("arrival time cannot be read")),
    ]
    return timed.withColumn(PROBLEM, F.coalesce(*problems)).drop(LATER, _HINT, _EVENT_SKIPPED, _ARRIVAL_SKIPPED)


def _with_arrivals(timed: DataFrame, arrival: _TimeColumn, arrived: str | None) -> DataFrame:
    """Give rows that state no arrival the one that their source knows."""
    from pyspark.sql import functions as F

    if arrived is None:
        return timed
    known = F.unix_micros(F.col(quoted(arrived)))
    return timed.withColumn(ARRIVAL, F.when(arrival.given.isNotNull(), F.col(ARRIVAL)).otherwise(known))


def is_read_in_python(rows: DataFrame, options: IngestOptions) -> bool:
    """Return whether times are text or local times, which `with_times` hands to Python."""
    return not _event_column(rows, options).form == _arrival_column(rows, options).form == "instant"


def event_text(rows: DataFrame, options: IngestOptions) -> Column | None:
    """Return the event time as text, where it is text or the time of a clock; None where it is an instant."""
    from pyspark.sql import functions as F

    kind = types_of(rows)[options.event_column]
    if options.event_clock_column is not None or kind == "string":
        return _event_column(rows, options).value
    return F.col(quoted(options.event_column)).cast("string") if kind in ("timestamp_ntz", "date") else None


def _event_column(rows: DataFrame, options: IngestOptions) -> _TimeColumn:
    from pyspark.sql import functions as F

    kinds, value = types_of(rows), F.col(quoted(options.event_column))
    if options.event_clock_column is None:
        return _time_column(value, kinds[options.event_column], options)
    clock = F.col(quoted(options.event_clock_column))
    text = F.concat(F.trim(value.cast("string")), F.lit(" "), F.trim(clock.cast("string")))
    return _TimeColumn("text", text, text)


def _arrival_column(rows: DataFrame, options: IngestOptions) -> _TimeColumn:
    from pyspark.sql import functions as F

    kinds = types_of(rows)
    if options.arrival_column not in kinds:
        nothing = F.lit(None).cast("bigint")
        return _TimeColumn("instant", nothing, nothing)
    return _time_column(F.col(quoted(options.arrival_column)), kinds[options.arrival_column], options)


def _time_column(value: Column, kind: str, options: IngestOptions) -> _TimeColumn:
    from pyspark.sql import functions as F

    unit = TIME_UNITS[options.time_unit]
    if kind == "string":
        return _TimeColumn("text", value, value)
    if kind in ("timestamp_ntz", "date"):
        wall = F.unix_micros(F.to_utc_timestamp(value.cast("timestamp"), "UTC"))
        return _TimeColumn("instant" if options.timezone == "UTC" else "wall", value, wall)
    if kind == "timestamp":
        return _TimeColumn("instant", value, F.unix_micros(value))
    if kind in WHOLE:
        return _TimeColumn("instant", value, F.try_multiply(value.cast("bigint"), F.lit(unit)))
    if kind in FLOATING or kind.startswith("decimal"):  # whole numbers beside a missing one, or unsigned
        number = value
        if unit > 1 and kind in FLOATING:
            number = F.round(value.cast("double") * unit)
        elif unit > 1:
            number = F.try_multiply(value.try_cast("decimal(38,9)"), F.lit(unit))
        return _TimeColumn("instant", value, F.when(number == F.floor(number), number.try_cast("bigint")))
    return _TimeColumn("instant", value, F.lit(None).cast("bigint"))


# ------------------------------------------------------------------------------------------------- text and local times


def _read_in_arrow(rows: DataFrame, event: _TimeColumn, arrival: _TimeColumn, options: IngestOptions) -> DataFrame:
    """Add `EVENT`, `ARRIVAL`, `LATER` (the second instant of an event time that occurs twice), and what is skipped."""
    from pyspark.sql import types as T

    prepared = rows.withColumns({_EVENT_GIVEN: event.value, _ARRIVAL_GIVEN: arrival.value})
    read = partial(_read_times, forms=(event.form, arrival.form), **_how_read(options))
    schema = T.StructType(list(rows.schema.fields))
    for name in (EVENT, ARRIVAL, LATER):
        schema = schema.add(name, T.LongType())
    schema = schema.add(_HINT, T.StringType())
    for name in (_EVENT_SKIPPED, _ARRIVAL_SKIPPED):
        schema = schema.add(name, T.BooleanType())
    return map_rows(prepared, read, schema)


def with_staged_times(table: pa.Table, options: IngestOptions) -> pa.Table:
    """Add the times to rows of text, so that `with_times` hands nothing to Python.

    Event times that occur twice have a second instant in `LATER`, for `with_times` to resolve.
    """
    for name, given in ((options.event_column, _EVENT_GIVEN), (options.arrival_column, _ARRIVAL_GIVEN)):
        texts = table[name] if name in table.column_names else pa.nulls(table.num_rows, pa.string())
        table = table.append_column(given, texts)
    return _read_times(table, ("text", "text"), **_how_read(options))


def _how_read(options: IngestOptions) -> dict[str, Any]:
    return {
        "zone": options.timezone,
        "unit_us": TIME_UNITS[options.time_unit],
        "pattern": options.time_format,
    }


def _read_times(table: pa.Table, forms: tuple[str, str], zone: str, unit_us: int, pattern: str | None) -> pa.Table:
    """Replace the columns with the given times by the instants that they mean."""
    event, arrival = (
        _instants(one_chunk(table, name), form, zone, unit_us, pattern)
        for name, form in zip((_EVENT_GIVEN, _ARRIVAL_GIVEN), forms, strict=True)
    )
    twice = event.valid & (event.later_us != event.us)
    nothing = pa.nulls(table.num_rows, pa.string())
    columns = {
        EVENT: _where(event.us, event.valid),
        ARRIVAL: _where(arrival.us, arrival.valid),
        LATER: _where(event.later_us, twice),
        _HINT: _hints(one_chunk(table, _EVENT_GIVEN), event.valid) if forms[0] == "text" else nothing,
        _EVENT_SKIPPED: pa.array(event.skipped),
        _ARRIVAL_SKIPPED: pa.array(arrival.skipped),
    }
    table = table.drop_columns([_EVENT_GIVEN, _ARRIVAL_GIVEN])
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def _hints(text: pa.Array, valid: NDArray[np.bool_]) -> pa.Array:
    """Return in brackets what to write instead of texts that are no times though they look like one."""
    if valid.all():
        return pa.nulls(len(text), pa.string())
    unread = pc.if_else(pa.array(valid), pa.scalar(None, pa.string()), text.cast(pa.string()))
    return pc.binary_join_element_wise(" (", remedies(unread), ")", "")


def _where(values: NDArray[np.int64], valid: NDArray[np.bool_]) -> pa.Array:
    return pa.array(values, mask=~valid)


def _instants(given: pa.Array, form: str, zone: str, unit_us: int, pattern: str | None) -> Times:
    if form == "text":
        return parse_times(given, zone, unit_us=unit_us, pattern=pattern)
    valid = given.is_valid().to_numpy(zero_copy_only=False)
    us = pc.fill_null(given.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    none = np.zeros(len(us), bool)
    if form != "wall":
        return Times(us, valid, us, none)
    times = local_times(us, zone)
    return Times(times.us, times.valid & valid, times.later_us, times.skipped & valid)


def _resolve_repeated_hours(timed: DataFrame, options: IngestOptions) -> DataFrame:
    """Resolve event times that occur twice; `LATER` stays where nothing resolves one.

    They are the rows of an hour a year, so the driver resolves them. A device is what the columns of the stream's key
    tell apart, beside the event time; without a key, a file is of one device.
    """
    from pyspark.sql import functions as F

    hours = timed.where(F.col(LATER).isNotNull()).select(F.expr(f"{LATER} div {_HOUR_US}").alias("hour")).distinct()
    repeated = sorted(row["hour"] for row in hours.limit(_MOST_HOURS).collect())
    if not repeated:
        return timed
    near = F.lit(False)
    for hour in repeated:
        near |= F.col(EVENT).between((hour - 3) * _HOUR_US, (hour + 3) * _HOUR_US)
    names = {options.event_column, options.event_clock_column, "event_ts"}
    device = [F.col(quoted(name)).cast("string") for name in options.key if name in timed.columns and name not in names]
    group = F.concat_ws("\0", F.col("_file").cast("string"), *(F.coalesce(value, F.lit("\1")) for value in device))
    around = timed.where(near).select("_file", "_row", EVENT, ARRIVAL, LATER, group.alias("group")).toArrow()
    times = around.sort_by([("_file", "ascending"), ("_row", "ascending")])
    resolved_us, ambiguous = resolve(
        times[EVENT].to_numpy(),
        pc.coalesce(times[LATER], times[EVENT]).to_numpy(),
        pc.fill_null(times[ARRIVAL], 0).to_numpy(),
        times[ARRIVAL].is_valid().to_numpy(),
        one_chunk(times, "group").dictionary_encode().indices.to_numpy().astype(np.int64),
        np.arange(times.num_rows),
    )
    columns = {
        "_file": times["_file"],
        "_row": times["_row"],
        "_resolved_us": pa.array(resolved_us),
        "_ambiguous": pa.array(ambiguous),
    }
    answers = tables.to_spark(timed.sparkSession, pa.table(columns).filter(times[LATER].is_valid()))
    joined = timed.join(F.broadcast(answers), ["_file", "_row"], "left")
    others = [F.col(quoted(name)) for name in timed.columns if name not in (EVENT, LATER)]
    return joined.select(
        *others,
        F.coalesce("_resolved_us", EVENT).alias(EVENT),
        F.when(F.coalesce("_ambiguous", F.lit(True)), F.col(LATER)).alias(LATER),
    )
