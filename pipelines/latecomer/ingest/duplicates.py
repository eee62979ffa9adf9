"""Mark rows of events that are stored already, or that come more than once in a call, by the key of their stream.

Rows of one stream are taken in the arrival order. A row is repeated if an earlier row that was stored has equal values
in the key's columns and an event time at most `within` away. It is compared with stored rows alone, so the outcome does
not depend on how rows are divided into calls.

Few rows need that comparison. Rows whose key has a hash that no other row of the call has, nor a stored row of the
call's time, repeat nothing. The others are grouped by the values of their keys themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.core.gamma_batches import spans
from latecomer.ingest.column_types import column_in_table
from latecomer.ingest.options import DAY_US, IngestOptions
from latecomer.ingest.values.repeated import LONGEST_US, repeated
from latecomer.lake import ingest_log
from latecomer.lake.delta import TIMESTAMP
from latecomer.lake.errors import InputError
from latecomer.lake.event_scan import Spans, in_spans
from latecomer.lake.lake import Lake
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import floor_div, quoted
from latecomer.spark.engine.types import types_of
from latecomer.specs.errors import quantity
from latecomer.specs.names import fold_case

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REASON = "repeats an event"
_SMALL_CALL = tables.DRIVER_LOCAL_ROWS
"""Most rows of a call that are compared without a look at which of their keys come more than once."""
_DRIVER_HASHES = 1 << 24
"""Most hashes that the driver compares, which takes a fraction of the time that Spark needs to group them."""


@dataclass(frozen=True)
class KeyColumn:
    """A column of a key.

    Attributes
    ----------
    name
        As the stream file has it.
    in_rows, in_table
        The name in the rows of the call, None where no row of the call has a value; and in the stream's table.
    """

    name: str
    in_rows: str | None
    in_table: str


@dataclass(frozen=True)
class EventKey:
    """The rule by which two rows of a call are one event.

    Attributes
    ----------
    stream
        The stream whose rows it is about; None: every stream of the call, each for itself.
    within_us
        Most microseconds of event time between two rows of one event.
    quarantines
        Whether repeated rows go to quarantine.
    """

    stream: str | None
    columns: tuple[KeyColumn, ...]
    within_us: int
    quarantines: bool

    @property
    def compared(self) -> dict[str, KeyColumn]:
        """The columns that are compared, beside stream and event time, by temporary names."""
        fixed = ("_stream", "event_ts")
        return {f"_key_{place}": column for place, column in enumerate(self.columns) if column.in_rows not in fixed}

    @property
    def has_event_time(self) -> bool:
        """Whether the event time is part of the key."""
        return any(column.in_rows == "event_ts" for column in self.columns)

    def is_of(self) -> Column:
        """Return whether the key is about a row."""
        from pyspark.sql import functions as F

        return F.lit(True) if self.stream is None else F.col("_stream") == self.stream


def left_out(rows: int, key: Sequence[str]) -> str:
    """Return the words for rows that repeat events.

    >>> left_out(3, ["device", "measured_at"])
    'left out 3 rows that repeat an event (key: device, measured_at)'
    """
    verb = "repeats" if rows == 1 else "repeat"
    return f"left out {quantity(rows, 'row')} that {verb} an event (key: {', '.join(key)})"


def refuse_unbounded(options: IngestOptions) -> None:
    """Refuse a key that would make one event of rows that are years apart.

    Raises
    ------
    InputError
        The key has no event time, and nothing says how far apart rows of one event may be.
    """
    times = {fold_case(name) for name in _event_names(options)}
    if options.key and options.within_us is None and not times & set(map(fold_case, options.key)):
        problem = "has no event time, and nothing bounds how far apart in time the rows of one event may be"
        raise InputError(_where(options), ", ".join(options.key), problem, "say within: 7 d in the stream file")


def event_key(
    lake: Lake, options: IngestOptions, columns: Mapping[str, str], types: Mapping[str, str], empty: Collection[str]
) -> EventKey | None:
    """Find the columns of a stream's key; None where the stream has no key.

    Parameters
    ----------
    columns
        The names of the payload columns in the validated rows, by their names in the table.
    types
        Their Spark types, by their names in the table.
    empty
        Names that columns without any value would have in the table.

    Raises
    ------
    InputError
        A column does not exist or cannot be compared, or the key needs ``within``.
    """
    if not options.key:
        return None
    refuse_unbounded(options)
    known = {fold_case(name): (inner, name) for name, inner in columns.items()}
    known |= {fold_case(name): ("arrival_ts", "arrival_ts") for name in (options.arrival_column, "arrival_ts")}
    known |= {fold_case(name): ("_stream", "_stream") for name in (options.by,) if name is not None}
    known |= {fold_case(name): ("event_ts", "event_ts") for name in _event_names(options)}
    without_value = {fold_case(name): name for name in empty}
    key: list[KeyColumn] = []
    for name in options.key:
        folded = next((form for form in map(fold_case, (name, column_in_table(name))) if form in known), None)
        if folded is not None:
            in_rows, in_table = known[folded]
            if "map<" in (kind := types.get(in_table, "")) or "variant" in kind:
                problem = f"is {kind}, whose values cannot be compared"
                raise InputError(_where(options), name, problem, "name other columns in the stream file")
            key.append(KeyColumn(name, in_rows, in_table))
            continue
        folded = fold_case(column_in_table(name))
        if folded not in without_value and not _is_stored(lake, options, folded):
            names = ", ".join(sorted({"event_ts", *columns}))
            raise InputError(_where(options), name, "no such column", f"mend key in the stream file (has: {names})")
        key.append(KeyColumn(name, None, column_in_table(name)))
    within_us = 0 if options.within_us is None else min(options.within_us, LONGEST_US)
    return EventKey(options.stream, tuple(key), within_us, options.on_duplicate == "quarantine")


def _where(options: IngestOptions) -> str:
    return f"stream {options.stream}: key" if options.by is None else f"streams of column {options.by}: key"


def _event_names(options: IngestOptions) -> list[str]:
    names = ("event_ts", options.event_column, options.event_clock_column)
    return [name for name in names if name is not None]


def _is_stored(lake: Lake, options: IngestOptions, folded: str) -> bool:
    """Return whether a table of the call's streams has a column of that name."""
    streams = lake.names("events") if options.stream is None else [options.stream]
    return any(folded in map(fold_case, ingest_log.columns(lake, stream).names) for stream in streams)


def mark_repeated(spark: SparkSession, lake: Lake, rows: DataFrame, keys: Sequence[EventKey]) -> DataFrame:
    """Add ``_repeated`` to validated rows; with ``on_duplicate: quarantine``, set ``_problem`` of such rows instead.

    Parameters
    ----------
    rows
        The rows of :func:`latecomer.ingest.validate.validated`, which are gone through several times.
        ``_file`` and ``_row`` tell them apart.
    keys
        The keys of the call's streams.

    Notes
    -----
    Stored rows are those of committed ingestions. An ingestion that is resumed finds the same, and marks the same rows.
    """
    from pyspark.sql import functions as F

    marked = [marks for key in keys if (marks := _repeated_rows(spark, lake, rows, key)) is not None]
    if not marked:
        return rows.withColumn("_repeated", F.lit(False))
    places, count = marked[0]
    for others, further in marked[1:]:
        places, count = places.unionByName(others), count + further
    places = tables.broadcast_if_small(places.withColumn("_again", F.lit(True)), count)
    again = F.col("_again").isNotNull()
    problems = [F.when(again & key.is_of(), _problem(rows, key)) for key in keys if key.quarantines]
    problem = F.coalesce("_problem", *problems)
    kept = [quoted(name) if name != "_problem" else problem.alias(name) for name in rows.columns]
    return rows.join(places, ["_file", "_row"], "left").select(*kept, (again & problem.isNull()).alias("_repeated"))


def _problem(rows: DataFrame, key: EventKey) -> Column:
    """Return the reason for quarantine, with the values of the key as text."""
    from pyspark.sql import functions as F

    kinds = types_of(rows)
    texts: list[Column] = []
    for column in key.columns:
        text = F.lit(None).cast("string")
        if column.in_rows is not None:
            value, kind = F.col(quoted(column.in_rows)), kinds[column.in_rows]
            text = F.hex(value) if kind == "binary" else value.cast("string")
            text = F.concat(text, F.lit("Z")) if kind == "timestamp" else text
        texts += [F.lit(f"{', ' if texts else ''}{column.name}="), F.coalesce(text, F.lit("null"))]
    return F.concat(F.lit(f"{REASON}: key ("), *texts, F.lit(") stored before"))


def _repeated_rows(spark: SparkSession, lake: Lake, rows: DataFrame, key: EventKey) -> tuple[DataFrame, int] | None:
    """Return ``_file`` and ``_row`` of the rows that repeat an event, and their number; None where no row does."""
    new = _new_rows(rows, key)
    count, near = _times(new, key.within_us)
    if not count:
        return None
    stored = _stored_rows(spark, lake, new, key, near)
    if count <= _SMALL_CALL:
        return _compare(spark, _with_same_key(new, stored, key), key, rows)
    both = _hashed(new if stored is None else new.unionByName(stored), key)
    hashes = _more_than_once(both, count + _count_stored(lake, near)).persist()
    try:
        among = hashes.count()
        if not among:
            return None
        return _compare(spark, both.join(tables.broadcast_if_small(hashes, among), "_hash", "left_semi"), key, rows)
    finally:
        hashes.unpersist()


def _new_rows(rows: DataFrame, key: EventKey) -> DataFrame:
    """Return the usable rows of the call with the values that are compared and the values that order them."""
    from pyspark.sql import functions as F

    values = [F.col(quoted(c.in_rows)).alias(name) for name, c in key.compared.items() if c.in_rows is not None]
    return rows.where(F.col("_problem").isNull() & key.is_of()).select(
        "_stream",
        F.unix_micros("event_ts").alias("_event_us"),
        F.lit(False).alias("_stored"),
        "_order",
        "_file",
        "_row",
        *values,
    )


def _times(new: DataFrame, within_us: int) -> tuple[int, dict[str, Spans]]:
    """Return the number of rows, and by stream the ranges of event time in which stored rows may be the same events."""
    from pyspark.sql import functions as F

    days = new.groupBy("_stream", floor_div("_event_us", DAY_US).alias("day"))
    bounds = days.agg(F.count("*").alias("n"), F.min("_event_us").alias("low"), F.max("_event_us").alias("high"))
    count, by_stream = 0, dict[str, list[tuple[int, int]]]()
    for stream, _, n, low, high in bounds.collect():
        count += n
        by_stream.setdefault(stream, []).append((low - within_us, high + within_us))
    ranges = {stream: np.array(pairs, np.int64).T for stream, pairs in by_stream.items()}
    return count, {stream: spans(low, high) for stream, (low, high) in ranges.items()}


def _stored_rows(
    spark: SparkSession, lake: Lake, new: DataFrame, key: EventKey, near: Mapping[str, Spans]
) -> DataFrame | None:
    """Return the stored rows of the streams in these ranges of event time, with the columns of `new`."""
    from pyspark.sql import functions as F

    parts: list[DataFrame] = []
    for stream in sorted(near):
        if ingest_log.open_events(lake, stream) is None:
            continue
        names = {fold_case(name): name for name in ingest_log.columns(lake, stream).names}
        held = {place: names.get(fold_case(column.in_table)) for place, column in key.compared.items()}
        read = dict.fromkeys(["event_ts", *(name for name in held.values() if name is not None)])
        part = tables.events(spark, lake, stream, columns=list(read), spans=near[stream])
        values = []
        for place, name in held.items():
            if place in new.columns:
                value = F.lit(None) if name is None else F.col(quoted(name))
                values.append(value.alias(place))
            elif name is not None:  # no row of the call has a value
                part = part.where(F.col(quoted(name)).isNull())
        parts.append(
            part.select(
                F.lit(stream).alias("_stream"),
                F.unix_micros("event_ts").alias("_event_us"),
                F.lit(True).alias("_stored"),
                *(F.lit(None).alias(name) for name in ("_order", "_file", "_row")),
                *values,
            )
        )
    while len(parts) > 1:  # a union of unions, for the plan's depth
        pairs = [parts[place : place + 2] for place in range(0, len(parts), 2)]
        parts = [pair[0].unionByName(pair[1]) if len(pair) > 1 else pair[0] for pair in pairs]
    return parts[0] if parts else None


def _compared(rows: DataFrame, key: EventKey) -> list[str]:
    """Return the columns that are equal in rows of one event."""
    values = [name for name in key.compared if name in rows.columns]
    return ["_stream", *(["_event_us"] if key.has_event_time else []), *values]


def _hashed(rows: DataFrame, key: EventKey) -> DataFrame:
    """Add ``_hash``, which is equal where keys are. Spark's hash leaves nulls out, so it gets their places too."""
    from pyspark.sql import functions as F

    names = _compared(rows, key)
    nulls = [F.col(name).isNull() for name in names if name.startswith("_key_")]
    return rows.withColumn("_hash", F.xxhash64(*names, *nulls))


def _with_same_key(new: DataFrame, stored: DataFrame | None, key: EventKey) -> DataFrame:
    """Return few new rows with the stored rows that may have their keys."""
    from pyspark.sql import functions as F

    if stored is None:
        return _hashed(new, key)
    both = _hashed(new.unionByName(stored), key)  # the union gives both sides the types that are hashed
    hashes = both.where(~F.col("_stored")).select("_hash").distinct()
    return both.join(F.broadcast(hashes), "_hash", "left_semi")


def _count_stored(lake: Lake, near: Mapping[str, Spans]) -> int:
    """Count the stored rows of streams in ranges of event time; most files are counted by their statistics."""
    count = 0
    for stream, ranges in near.items():
        opened = ingest_log.open_events(lake, stream)
        if opened is not None:
            count += opened.to_pyarrow_dataset().count_rows(filter=in_spans("event_ts", ranges, TIMESTAMP))
    return count


def _more_than_once(both: DataFrame, count: int) -> DataFrame:
    """Return the hashes, of `count`, of new rows that a stored row, or another row of the call, has too."""
    from pyspark.sql import functions as F

    if count <= _DRIVER_HASHES:
        collected = both.select("_hash", "_stored").toArrow()
        is_stored = np.asarray(collected["_stored"].to_numpy(), np.bool_)
        again = _hashes_again(_numbers(collected, "_hash"), is_stored)
        return tables.to_spark(both.sparkSession, pa.table({"_hash": again}))
    counts = both.groupBy("_hash").agg(F.count("*").alias("n"), F.min("_stored").alias("all_stored"))
    return counts.where((F.col("n") > 1) & ~F.col("all_stored")).select("_hash")


def _hashes_again(hashes: NDArray[np.int64], is_stored: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the hashes of rows that are not stored which another row has, each once."""
    new, stored = np.sort(hashes[~is_stored]), np.sort(hashes[is_stored])
    twice = np.zeros(len(new), np.bool_)
    twice[1:] = new[1:] == new[:-1]
    place = np.searchsorted(stored, new)
    inside = place < len(stored)
    twice[inside] |= stored[place[inside]] == new[inside]
    return np.unique(new[twice])


def _compare(spark: SparkSession, both: DataFrame, key: EventKey, rows: DataFrame) -> tuple[DataFrame, int] | None:
    """Compare rows in sequence: in the driver where they are few, else the rows of a key in one task.

    ``_hash`` and ``_rank`` together are equal where the values of the keys are.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    ranked = both.withColumn("_rank", F.dense_rank().over(Window.partitionBy("_hash").orderBy(*_compared(both, key))))
    in_sequence = [F.col("_stored").desc(), F.col("_order").asc_nulls_last(), F.col("_file"), F.col("_row")]
    sequence = ranked.sortWithinPartitions("_hash", "_rank", *in_sequence).select(
        "_hash", "_rank", "_event_us", "_stored", "_file", "_row"
    )
    collected = tables.collect_if_small(sequence.withColumn("_place", F.monotonically_increasing_id()))
    if collected is not None:
        places = _repeated_places(collected.sort_by("_place"), key.within_us)
        return (tables.to_spark(spark, places), places.num_rows) if places.num_rows else None
    kinds = types_of(rows)
    types = f"_file {kinds['_file']}, _row {kinds['_row']}"
    many = sequence.mapInArrow(partial(_of_partition, within_us=key.within_us), types).localCheckpoint()
    count = many.count()
    return (many, count) if count else None


def _of_partition(batches: Iterator[pa.RecordBatch], within_us: int) -> Iterator[pa.RecordBatch]:
    """Compare the rows of a partition, which holds keys whole."""
    together = list(batches)
    if together:
        yield from _repeated_places(pa.Table.from_batches(together), within_us).to_batches()


def _repeated_places(sequence: pa.Table, within_us: int) -> pa.Table:
    """Return ``_file`` and ``_row`` of repeated rows; the rows of a key stand together, in sequence."""
    hashes, rank, event_us = (_numbers(sequence, name) for name in ("_hash", "_rank", "_event_us"))
    starts = (hashes[1:] != hashes[:-1]) | (rank[1:] != rank[:-1])
    key_id = np.append(0, np.cumsum(starts))[: len(hashes)]
    is_stored = np.asarray(sequence["_stored"].to_numpy(), np.bool_)
    marks = repeated(key_id.astype(np.int64), event_us, is_stored, within_us)
    return sequence.select(["_file", "_row"]).filter(pa.array(marks))


def _numbers(table: pa.Table, name: str) -> NDArray[np.int64]:
    return np.asarray(table[name].to_numpy(), np.int64)
