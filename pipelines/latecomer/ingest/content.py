"""The content of one call: the rows of its sources with their types, streams and problems, and how many they are.

Nothing is written here. `ingest` writes what was counted; a dry run only reports it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from latecomer.core.time import EARLIEST_US, LATEST_US
from latecomer.ingest import assumptions, duplicates, nested, row_counts, typed_text, validate
from latecomer.ingest.arrow_rows import collect_if_local, one_chunk
from latecomer.ingest.clocks import USUAL_SHARE, default_max_age_us, suspicions
from latecomer.ingest.column_types import ColumnTypes, column_in_table, count_texts, resolve_types
from latecomer.ingest.event_times import ARRIVAL, EVENT, event_text, is_read_in_python, with_times
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.order_ranges import OrderRanges, join_ranges, narrow_bounds
from latecomer.ingest.retype import obstacle
from latecomer.ingest.row_counts import PartCounts
from latecomer.ingest.sources import FileSource, Source
from latecomer.ingest.staging import RESERVED, Staging
from latecomer.ingest.typed_text import UnusableRows
from latecomer.ingest.union import UnifiedInput, unite
from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import StreamCounts, max_ages
from latecomer.lake.lake import Lake
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import quoted
from latecomer.spark.engine.session import tuned
from latecomer.spark.engine.tuning import is_driver_local
from latecomer.spark.engine.types import types_of
from latecomer.specs.errors import quantity
from latecomer.specs.expressions import ALWAYS_THERE
from latecomer.specs.names import STREAM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


MOST_INFERRED = 1_000
"""Most columns whose inferred types the ingest log keeps."""
MOST_READ_AGAIN = 64
"""Most files with types that are read in every pass over the rows; each takes a task of its own."""
MOST_USUAL = 1_000
"""Most names of streams that are told without a regular expression."""
MOST_SUSPECTED = 100_000
"""Most rows of a source whose clocks are checked."""


class TooManyUnusable(InputError):
    """More rows of a file would go to quarantine than the options of its stream allow."""


@dataclass(frozen=True)
class Part:
    """A source that was read: its rows with their problems so far, and the types of its payload columns.

    Attributes
    ----------
    rows
        Rows with times, streams and problems; payload columns are as they were read.
    columns
        The names of the payload columns until tables are written, by their names in the table.
    stored_streams
        Those of its streams that have a table.
    is_typed
        Whether the payload columns of `rows` have their types.
    is_cheap
        Whether Spark reads `rows` from files and computes nothing of them in Python.
    notes
        Sentences about its times and names of streams.
    """

    options: IngestOptions
    unified: UnifiedInput
    rows: DataFrame
    resolved: ColumnTypes
    columns: dict[str, str]
    stored_streams: list[str]
    is_typed: bool
    is_cheap: bool
    notes: list[str]

    @property
    def has_arrivals(self) -> bool:
        """Whether the source knows when rows arrived."""
        return self.unified.arrived is not None or self.options.arrival_column in self.unified.rows.columns

    @property
    def types(self) -> dict[str, str]:
        """The types of the payload columns, by their names in the source."""
        return self.resolved.types

    def key(self, lake: Lake) -> duplicates.EventKey | None:
        """Return the key of the part's streams; None where they have none."""
        types = {column_in_table(name): kind for name, kind in self.types.items()}
        untyped = [name for name in self.unified.rows.columns if name not in {*RESERVED, *self.types}]
        empty = [column_in_table(name) for name in untyped]
        return duplicates.event_key(lake, self.options, self.columns, types, empty)

    def validated(self, by_seq: bool) -> DataFrame:
        """Return the rows of :func:`latecomer.ingest.validate.validated` with the names of `columns`."""
        typed = self.rows
        if not self.is_typed:
            typed = validate.with_types(typed, self.unified.text, self.types, self.options)
        rows = validate.validated(typed, self.types, self.options, by_seq)
        return rows.withColumnsRenamed({outer: inner for outer, inner in self.columns.items() if outer != inner})


@dataclass
class Counted:
    """The validated rows of a call, and how many they are.

    Attributes
    ----------
    rows
        The rows, which are gone through several times.
    counts
        By stream: rows read, rows to store, rows for quarantine, repeated rows, and times in us.
    by_part
        Number of rows for quarantine and of all rows, by stream and number of the part.
    event_times_us
        First and last event time, us; None where no row is to be stored.
    lateness
        By stream: numbers of rows by their lateness, as :data:`latecomer.core.time.LATENESS_BOUNDS_US` bound it.
    collected
        The rows, if they are few, in the driver.
    ranges
        The ranges of the arrival order of rows to store; None where the driver has the rows.
    reasons
        By stream: rows for quarantine by reason, without the values; the most frequent first.
    """

    rows: DataFrame
    counts: StreamCounts
    by_part: dict[tuple[str, int], tuple[int, int]]
    event_times_us: tuple[int, int] | None
    lateness: dict[str, list[int]]
    collected: pa.Table | None = None
    ranges: OrderRanges | None = None
    reasons: dict[str, dict[str, int]] = field(default_factory=dict)


class Content:
    """The sources of one call, read; a context that frees what it stored."""

    def __init__(self, lake: Lake, sources: Sequence[Source], clock_us: int, staging: Staging) -> None:
        """`clock_us` is the arrival time of rows without one."""
        self.lake, self.sources, self.clock_us, self.staging = lake, sources, clock_us, staging
        self.origins = [origin for source in sources for origin in source.origins]
        self.most_rows = sum(source.most_rows for source in sources)
        self.spark = tuned(lake, self.most_rows)
        self.max_age_us = max_ages(lake)
        self.derived_us: dict[str, int] = {}
        self.usual_us: dict[str, int] = {}
        self._kept: list[DataFrame] = []
        self._samples: dict[int, pa.Table] = {}
        try:
            self.parts = self._read()
            self.keys = [key for part in self.parts if (key := part.key(lake)) is not None]
            self.by_seq = self._is_by_seq()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Content:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the rows that are cached, and the staging folders."""
        for rows in self._kept:
            rows.unpersist()
        self._kept.clear()
        self.staging.close()

    @property
    def notes(self) -> list[str]:
        """Sentences about what was assumed of the columns."""
        notes = [
            f"column {name!r} is stored as {column_in_table(name)}"
            for name in dict.fromkeys(name for part in self.parts for name in part.types)
            if column_in_table(name) != name
        ]
        if not self.by_seq and any("seq" in part.types for part in self.parts):
            notes.append("not every file has a column seq, so it orders nothing")
        for part in self.parts:
            if not self.by_seq and not part.has_arrivals and len(self.origins) > 1:
                notes.append(
                    f"rows have no arrival time, so they arrive in the order of the files: {self.origins[0]} first, "
                    f"{self.origins[-1]} last"
                )
                break
        for source, part in zip(self.sources, self.parts, strict=True):
            notes += part.resolved.notes
            notes += assumptions.inferred_types({name: part.types[name] for name in part.resolved.inferred})
            notes += assumptions.without_values([*part.resolved.empty, *part.unified.untyped])
            notes += part.notes
            if isinstance(source, FileSource):
                notes += assumptions.names_in_paths(map(str, source.files), part.unified.rows.columns)
        return notes + assumptions.bounds_of_age(self.derived_us, self.usual_us, self._max_future_us())

    def _max_future_us(self) -> int:
        """Return the bound of the first part whose streams had an age derived."""
        return next(
            (part.options.max_future_us for part in self.parts if part.options.stream in self.derived_us),
            self.parts[0].options.max_future_us,
        )

    def part_of(self, stream: str) -> Part:
        """Return the part that holds the rows of a stream."""
        return next((part for part in self.parts if part.options.stream == stream), self.parts[0])

    def columns_of(self, stream: str) -> dict[str, str]:
        """Return the columns of a stream's table, with their names until it is written."""
        return {name: name for name in ALWAYS_THERE} | self.part_of(stream).columns

    def types_of(self, stream: str) -> dict[str, str]:
        """Return the payload columns of a stream, as its table names them, with their types."""
        return {column_in_table(name): kind for name, kind in self.part_of(stream).types.items()}

    # --------------------------------------------------------------------------------------------------------- reading

    def _read(self) -> list[Part]:
        """Read every source, and resolve the types of its columns with the tables that exist."""
        from pyspark.sql import functions as F

        parts: list[Part] = []
        first = 0
        for number, source in enumerate(self.sources):
            unified, options = source.read(self.spark, self.staging, first), source.options
            first += len(source.origins)
            in_place = not unified.text and len(source.origins) <= MOST_READ_AGAIN
            is_computed = is_read_in_python(unified.rows, options) or not in_place
            names_of = self._names_of_streams(unified.rows, options)
            usual = [name for name, given in names_of.items() if name in given and STREAM.fullmatch(name)][:MOST_USUAL]
            notes = self._assumed(unified.rows, options) + assumptions.joined_names(names_of)
            rows = validate.with_streams(with_times(unified.rows, options, unified.arrived), options, usual)
            rows = validate.with_problems(rows, options, self.clock_us, self._bound_ages(rows, options))
            unusable = self._unusable(unified, rows)
            if unified.text and unusable is None and not is_driver_local(self.spark):
                rows = self._keep(rows)  # its texts are gone through twice: for their types, and to convert them
            unified = replace(unified, rows=rows)
            existing = self._existing(source, unified)
            unified = nested.type_columns(unified, existing, options)
            rows = unified.rows
            usable = rows.where(F.col("_problem").isNull())
            why_not = partial(self._obstacle, sorted(existing))
            count = partial(count_texts, usable, options=options)
            if unusable is not None:
                count = partial(typed_text.count_staged, unified.staged, unusable, options=options)
            resolved = resolve_types(unified, count, existing, options, source.origins, why_not)
            if unusable is not None:
                typed = typed_text.stage_typed(
                    self.spark, unified.staged, self.staging, unusable, resolved.types, options
                )
                rows = validate.with_streams(unite(typed), options, usual)
            names = {column_in_table(name): column_in_table(name) for name in resolved.types}
            if len(self.sources) > 1:  # two streams may have columns of one name and two types
                names = {outer: f"_{number}_{outer}" for outer in names}
            is_typed = unusable is not None
            is_cheap = is_typed or not is_computed
            parts.append(Part(options, unified, rows, resolved, names, sorted(existing), is_typed, is_cheap, notes))
        return parts

    def _assumed(self, rows: DataFrame, options: IngestOptions) -> list[str]:
        """Return sentences about times without a zone."""
        text = event_text(rows, options)
        return [] if text is None else assumptions.times_without_zone(rows, text, options)

    def _names_of_streams(self, rows: DataFrame, options: IngestOptions) -> dict[str, list[str]]:
        """Return how a column calls the streams, as :func:`latecomer.ingest.assumptions.names_of_streams` does."""
        from pyspark.sql import functions as F

        if options.by is None:
            return {}
        given = F.trim(F.col(quoted(options.by)).cast("string"))
        return assumptions.names_of_streams(rows, given, validate.stream_of(options))

    def inferred(self, stream: str) -> dict[str, list[str]]:
        """Return the columns of a stream whose types its values told: the type, and why it is text, or an empty text.

        Where they are many, only columns with such a text are returned.
        """
        part = self.part_of(stream)
        why = part.resolved.inferred
        kept = {name: text for name, text in why.items() if text or len(why) <= MOST_INFERRED}
        return {column_in_table(name): [part.types[name], text] for name, text in kept.items()}

    def _unusable(self, unified: UnifiedInput, rows: DataFrame) -> UnusableRows | None:
        """Return the rows with a problem, if the rows are staged to get their types in this process; else None.

        They are not where other rows are needed to tell a time, or where very many cannot be used.
        """
        from pyspark.sql import functions as F

        if not unified.staged or is_driver_local(self.spark) or typed_text.have_repeated_hours(unified.staged):
            return None
        unusable = tables.collect_if_small(
            rows.where(F.col("_problem").isNotNull()).select("_file", "_row", "_problem")
        )
        return None if unusable is None else UnusableRows.of(unusable)

    def _is_cheap(self) -> bool:
        """Return whether rows are read again in less time than it takes to cache them.

        Of files with types Spark reads only the columns that it needs, and computes all others of a row itself.
        """
        of_files = all(isinstance(source, FileSource) for source in self.sources)
        return of_files and all(part.is_cheap for part in self.parts)

    def _keep(self, rows: DataFrame) -> DataFrame:
        """Cache rows until the content is closed."""
        rows = rows.persist()
        self._kept.append(rows)
        return rows

    def _bound_ages(self, rows: DataFrame, options: IngestOptions) -> Mapping[str, int] | int:
        """Return the most microseconds by which an arrival may lie after its event time, of all streams or by stream.

        It is stated; else it is derived once, when the first rows of a stream come that have arrival times.
        """
        if options.max_age_us is not None:
            return options.max_age_us
        if options.stream not in self.max_age_us:
            for stream, usual_us in self._usual_lateness(rows, options).items():
                if stream not in self.max_age_us:
                    self.max_age_us[stream] = self.derived_us[stream] = default_max_age_us(usual_us)
                    self.usual_us[stream] = usual_us
        streams = self.max_age_us.keys() if options.stream is None else {options.stream} & self.max_age_us.keys()
        return {stream: self.max_age_us[stream] for stream in streams}

    def _usual_lateness(self, rows: DataFrame, options: IngestOptions) -> dict[str, int]:
        """Return the lateness that is usual in each stream, us."""
        from pyspark.sql import functions as F

        if not is_driver_local(self.spark):
            lateness = (F.col(ARRIVAL) - F.col(EVENT)).alias("lateness")
            late = _with_both_times(rows).where(F.col("_stream") != validate.UNKNOWN).select("_stream", lateness)
            usual = F.percentile_approx("lateness", USUAL_SHARE, 10_000).alias("usual_us")
            return {row["_stream"]: row["usual_us"] for row in late.groupBy("_stream").agg(usual).collect()}
        times = self._sample(rows, options)
        lateness_us = times[ARRIVAL].to_numpy() - times[EVENT].to_numpy()
        streams = one_chunk(times, "_stream").dictionary_encode()
        codes = streams.indices.to_numpy(zero_copy_only=False)
        return {
            name: int(np.quantile(lateness_us[codes == code], USUAL_SHARE, method="higher"))
            for code, name in enumerate(streams.dictionary.to_pylist())
            if name != validate.UNKNOWN
        }

    def _sample(self, rows: DataFrame, options: IngestOptions) -> pa.Table:
        """Return the stream, `EVENT` and `ARRIVAL` of at most `MOST_SUSPECTED` rows that have both times."""
        key = id(options)
        if key not in self._samples:
            times = _with_both_times(rows).select("_stream", EVENT, ARRIVAL)
            self._samples[key] = times.limit(MOST_SUSPECTED).toArrow()
        return self._samples[key]

    def _obstacle(self, streams: Sequence[str], column: str, kind: str) -> str | None:
        """Return why a column of these streams' tables cannot become wider; None where it can."""
        reasons = (obstacle(self.lake, stream, {column: kind}) for stream in streams)
        return next((reason for reason in reasons if reason is not None), None)

    def _existing(self, source: Source, unified: UnifiedInput) -> dict[str, dict[str, str]]:
        """Return columns and Spark types of the tables to which the source's rows go."""
        stream = source.options.stream
        if stream is None:
            streams = validate.streams(unified.rows, self.lake.names("events"))
        else:
            streams = [stream] if self.lake.table("events", stream).exists() else []
        return {name: types_of(tables.read(self.spark, self.lake.table("events", name))) for name in streams}

    def _is_by_seq(self) -> bool:
        """Return whether the source's ``seq`` orders the call: every file has one.

        A ``seq`` that cannot order is refused.
        """
        if not all(validate.orders(part.unified, part.types) for part in self.parts):
            return False
        for part in self.parts:
            validate.refuse_unordered(part.unified, part.types)
        first, *others = self.parts
        for part in others:
            if part.types["seq"] != first.types["seq"]:
                kind, file = first.types["seq"], first.unified.origin["seq"]
                problem = f"is {part.types['seq']}, and {kind} in {file}; it is to order them all"
                raise InputError(
                    f"{part.unified.origin['seq']}: column seq", None, problem, "rename or mend one of them"
                )
        return True

    # --------------------------------------------------------------------------------------------------------- counting

    def count_rows(self) -> Counted:
        """Validate all rows, and count them."""
        from pyspark.sql import functions as F

        rows, *others = (part.validated(self.by_seq) for part in self.parts)
        for other in others:
            rows = rows.unionByName(other, allowMissingColumns=True)
        if self.keys if is_driver_local(self.spark) else not self._is_cheap():
            rows = self._keep(rows)  # they are gone through several times
        validated = rows
        rows = duplicates.mark_repeated(self.spark, self.lake, rows, self.keys)
        collected = collect_if_local(rows)
        if collected is not None:
            counted = self._counted(tables.to_spark(self.spark, collected), row_counts.count_in_driver(collected))
            counted.collected, counted.reasons = collected, row_counts.reasons_in_driver(collected)
            return counted
        bounds = narrow_bounds(validated.where(F.col("_problem").isNull()), self.most_rows)
        parts, sizes = row_counts.count_in_spark(rows, bounds)
        counted = self._counted(rows, parts)
        counted.ranges = join_ranges(self.spark, bounds, sizes)
        if any(count["quarantined"] for count in counted.counts.values()):
            counted.reasons = row_counts.reasons_in_spark(rows)
        return counted

    def _counted(self, rows: DataFrame, parts: Sequence[PartCounts]) -> Counted:
        """Add the counts of parts by stream."""
        counted = Counted(rows, {}, {}, None, {})
        spans: list[tuple[int, int]] = []
        for part in parts:
            count = counted.counts.setdefault(part.stream, {"read": 0, "rows": 0, "quarantined": 0})
            for name in ("read", "rows", "quarantined"):
                count[name] += getattr(part, name)
            if part.duplicates:
                count["duplicates"] = count.get("duplicates", 0) + part.duplicates
            if part.first is not None and part.last is not None:
                spans.append((part.first, part.last))
                count["event_to"] = max(count.get("event_to", part.last), part.last)
            # where a seq orders the rows, it does not matter when they arrived
            if part.arrived_from is not None and part.arrived_to is not None and not self.by_seq:
                count["arrived_from"] = min(count.get("arrived_from", part.arrived_from), part.arrived_from)
                count["arrived_to"] = max(count.get("arrived_to", part.arrived_to), part.arrived_to)
            counted.by_part[part.stream, part.part] = part.quarantined, part.read
            known = counted.lateness.get(part.stream, [0] * len(part.lateness))
            counted.lateness[part.stream] = [a + b for a, b in zip(known, part.lateness, strict=True)]
        if spans:
            counted.event_times_us = min(first for first, _ in spans), max(last for _, last in spans)
        for stream in counted.counts.keys() & self.derived_us.keys():
            counted.counts[stream]["max_age_us"] = self.derived_us[stream]
        return counted

    def examples(self, counted: Counted, most: int) -> list[tuple[str, int, str, int, str]]:
        """Return the first row of each reason for quarantine: reason, number of rows, part, line, values as text."""
        from pyspark.sql import functions as F

        reason = F.substring_index("_problem", ": ", 1).alias("reason")
        first = F.min(F.struct("_file", "_row", "_line", "_raw", "_problem")).alias("first")
        rows = counted.rows.where(F.col("_problem").isNotNull()).groupBy(reason).agg(F.count("*").alias("rows"), first)
        examples = rows.sort(F.desc("rows"), "reason").limit(most).collect()
        return [
            (row["first"]["_problem"], row["rows"], self.origins[row["first"]["_file"]], row["first"]["_line"],
             row["first"]["_raw"] or "")
            for row in examples
        ]  # fmt: skip

    def suspicions(self, counted: Counted) -> list[str]:
        """Return sentences about clocks that look wrong, of rows that have arrival times."""
        if not any(any(bins) for bins in counted.lateness.values()):
            return []
        sentences: list[str] = []
        for part in self.parts:
            times, options = self._sample(part.rows, part.options), part.options
            event_us, arrival_us = times[EVENT].to_numpy(), times[ARRIVAL].to_numpy()
            sentences += suspicions(event_us, arrival_us, zone=options.timezone, time_unit=options.time_unit)
        return sentences

    def refuse_unusable(self, counted: Counted) -> None:
        """Refuse the call if more rows of a file would go to quarantine than the options of its stream allow.

        Each file counts by itself, so that good files of a call do not hide a bad one. Rows that name no stream are
        compared with all rows of their file.

        Raises
        ------
        TooManyUnusable
            For the file with the largest share.
        """
        worst: tuple[Fraction, str, int] | None = None
        options_of = self._options_of_parts()
        for (stream, part), (unusable, rows) in counted.by_part.items():
            share = Fraction(str(options_of[part].max_quarantined))  # 0.29 of 100 is 29 as written, not 28.999...
            compared = self._compared(counted, stream, part, rows)
            if unusable > math.floor(share * compared):
                worst = max(worst or (Fraction(0), stream, part), (Fraction(unusable, compared), stream, part))
        if worst is not None:
            raise self._too_many(counted, *worst[1:])

    def refusal(self, counted: Counted) -> str | None:
        """Return why the call would be refused; None where it would not be."""
        try:
            self.refuse_unusable(counted)
        except TooManyUnusable as error:
            return str(error)
        return None

    def _options_of_parts(self) -> list[IngestOptions]:
        return [source.options for source in self.sources for _ in source.origins]

    def _compared(self, counted: Counted, stream: str, part: int, rows: int) -> int:
        if stream != validate.UNKNOWN:
            return rows
        return sum(total for (_, number), (_, total) in counted.by_part.items() if number == part)

    def _too_many(self, counted: Counted, stream: str, part: int) -> TooManyUnusable:
        from pyspark.sql import functions as F

        unusable, rows = counted.by_part[stream, part]
        compared, share = self._compared(counted, stream, part, rows), self._options_of_parts()[part].max_quarantined
        allowed = math.floor(Fraction(str(share)) * compared)
        quarantined = counted.rows.where(F.col("_problem").isNotNull())
        of_part = quarantined.where((F.col("_stream") == stream) & (F.col("_file") == part))
        first = of_part.sort("_row").select("_line", "_problem").first()
        assert first is not None
        problem = (
            f"{unusable:,} of {quantity(compared, 'row')} in {self.origins[part]} cannot be used, and max_quarantined, "
            f"{share:g} of them, allows {allowed:,}; nothing was ingested. The first is in line {first['_line']}: "
            f"{first['_problem']}"
        )
        remedy = (
            "mend or remove the file, or raise max_quarantined (--max-quarantined): with 1 such rows go to quarantine "
            "and the others come in"
        )
        return TooManyUnusable(f"stream {stream}", None, problem, remedy)


def _with_both_times(rows: DataFrame) -> DataFrame:
    """Return the rows that have an event time and an arrival time which tables can hold."""
    bounds = f"between {EARLIEST_US}L and {LATEST_US}L"
    return rows.where(f"{EVENT} {bounds} and {ARRIVAL} {bounds}")
