"""`ingest`: turn landing files into event tables; every row gets its place in one global arrival order, once.

The rows of one call are ordered by the source's ``seq``, else by arrival, else as in the files; ties are broken by file
and position. They follow everything ingested before. Rows that cannot be used go to ``quarantine/<stream>`` and get no
place. A call may have several streams, each with its own files and column types, in one order.

Commit order: plan (``ingest/journal``), event and quarantine tables, ``ingest/committed``. Readers trust arrivals below
the last committed ``seq``. An interrupted ingestion is resumed if the same content comes again, and taken back if other
content comes first.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.ingest import union, validate
from latecomer.ingest.find_files import find, format_of, readable
from latecomer.ingest.known_files import (
    KnownFile,
    changed_while_read,
    content_digest,
    identify,
    map_files,
    size_of,
    stat_fingerprint,
    without_format,
)
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.source_file import LandingFile
from latecomer.ingest.staging import Staging
from latecomer.ingest.write_tables import StreamCounts, TableWriter
from latecomer.lake import crash_points
from latecomer.lake.errors import InputError, LeaseLost
from latecomer.lake.ingest_log import (
    among_ingested,
    committed_seq,
    last_arrivals,
    last_committed,
    streams_of,
    uncommitted,
)
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.lake.maintenance import compact_and_vacuum
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import quoted
from latecomer.spark.engine.session import tuned
from latecomer.spark.engine.types import types_of
from latecomer.specs.errors import quantity
from latecomer.specs.expressions import ALWAYS_THERE
from latecomer.specs.names import STREAM, STREAM_REMEDY
from latecomer.specs.streams import is_zone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

HOUR_US = 3_600_000_000
ROW_BYTES = 16
"""Least bytes of a landing file that may be a row, as in a compressed file."""


@dataclass(frozen=True)
class IngestResult:
    """The counts of one call.

    Attributes
    ----------
    rows_ingested, rows_quarantined
        Rows by stream.
    skipped_files
        Files whose content had been ingested before.
    left_out_files
        Files of a folder whose format their names do not tell, and its folders.
    changed_files
        Files that had been ingested into the same stream before with other content or options; rows that they still
        hold came again.
    seq_from, seq_to
        The places in the arrival order that the call gave, ``[seq_from, seq_to)``.
    event_times_us
        First and last event time ingested, us; None where no row was.
    reasons
        Quarantined rows by reason, without the values.
    """

    rows_read: int
    rows_ingested: dict[str, int]
    rows_quarantined: dict[str, int]
    skipped_files: list[str]
    left_out_files: list[str]
    changed_files: list[str]
    seq_from: int
    seq_to: int
    event_times_us: tuple[int, int] | None
    reasons: dict[str, int]
    seconds: float


def ingest(
    lake: Lake,
    paths: Sequence[str] | Mapping[str, Sequence[str]],
    options: IngestOptions,
    progress: Callable[[str], None] | None = None,
    with_stream_file: Callable[[IngestOptions], IngestOptions] = lambda options: options,
) -> IngestResult:
    """Ingest landing files as one call.

    Parameters
    ----------
    paths
        Files and folders; or files and folders by stream, where `options` name no stream.
    progress
        Called with lines about the ingestion.
    with_stream_file
        Completes the options of a stream, or of a column that names streams, by its stream file.

    Raises
    ------
    InputError
        The call, or a file as a whole, cannot be used. Nothing was written, but an interrupted ingestion may have been
        taken back.
    LeaseHeld
        Another ingestion is at work.
    """
    started = time.monotonic()
    progress = progress or (lambda line: None)
    left_out: list[str] = []
    calls: list[tuple[IngestOptions, list[LandingFile], list[str | None]]] = []
    for stream_options, stream_paths in _by_stream(paths, options):
        _check_options(stream_options)
        full_options = with_stream_file(stream_options)
        files, others = find(stream_paths, full_options.format, full_options.recursive)
        left_out += others
        calls.append((full_options, files, map_files(stat_fingerprint, files, repeat(full_options))))
    fingerprints = (mark for _, _, marks in calls for mark in marks if mark is not None)
    known_fingerprints = among_ingested(lake, "looks", fingerprints)
    identified = [
        (call_options, map_files(identify, files, repeat(call_options), marks, repeat(known_fingerprints)))
        for call_options, files, marks in calls
    ]
    with Lease(lake, "ingest") as lease:
        digests = (file.digest for _, known_files in identified for file in known_files if file.digest is not None)
        known_digests = among_ingested(
            lake, "digests", (form for digest in digests for form in (digest, without_format(digest)))
        )
        sources: list[_Source] = []
        skipped: list[str] = []
        known_again: list[str] = []
        for call_options, known_files in identified:
            new = []
            for file in known_files:
                if file.digest is None or known_digests & {file.digest, without_format(file.digest)}:
                    skipped.append(str(file.file))
                    if file.digest is not None and file.fingerprint:
                        known_again.append(file.fingerprint)
                else:
                    known_digests.add(file.digest)
                    new.append(file)
            if new:
                sources.append(_Source(call_options, new))
        start = committed_seq(lake)
        if not sources:
            return IngestResult(0, {}, {}, skipped, left_out, [], start, start, None, {}, time.monotonic() - started)
        streams_before = streams_of(lake, (file.place for source in sources for file in source.files))
        ingestion = _Ingestion(lake, sources, start, lease, known_again)
        with ingestion:
            ingestion.check_unchanged()
            progress(f"ingest: {quantity(len(ingestion.files), 'file')} read")
            try:
                counts = ingestion.write(progress)
            except Exception:
                ingestion.check_in_place()
                raise
        ingested = {stream: count["rows"] for stream, count in counts.items() if count["rows"]}
        quarantined = {stream: count["quarantined"] for stream, count in counts.items() if count["quarantined"]}
        total = sum(ingested.values())
        changed = [str(f) for f in ingestion.files if streams_before.get(f.place, set()) & counts.keys()]
        return IngestResult(
            total + sum(quarantined.values()),
            ingested,
            quarantined,
            skipped,
            left_out,
            changed,
            start,
            start + total,
            ingestion.event_times_us,
            ingestion.reasons,
            time.monotonic() - started,
        )


@dataclass(frozen=True)
class _Source:
    """New files that are read by the same options: those of a whole call, or of one of its streams."""

    options: IngestOptions
    known_files: list[KnownFile]

    @property
    def files(self) -> list[LandingFile]:
        return [known.file for known in self.known_files]


@dataclass(frozen=True)
class _Part:
    """A source that was read: its rows, and the types and temporary names of its payload columns."""

    options: IngestOptions
    unified: union.UnifiedInput
    types: dict[str, str]
    inner: dict[str, str]

    @property
    def columns(self) -> dict[str, str]:
        """The names of the payload columns until tables are written, by their names in the table."""
        return {validate.column_in_table(name): self.inner[name] for name in self.types}

    def validated(self, clock_us: int, by_seq: bool) -> DataFrame:
        """Return the rows of :func:`latecomer.ingest.validate.validate_rows` with inner names."""
        rows = validate.validate_rows(self.unified, self.types, self.options, clock_us, by_seq)
        return rows.withColumnsRenamed({outer: inner for outer, inner in self.columns.items() if outer != inner})


class _Ingestion:
    """The work of one call, from reading its files to the committed row of the log."""

    def __init__(self, lake: Lake, sources: list[_Source], start: int, lease: Lease, known_again: list[str]) -> None:
        """`known_again` are stat fingerprints of files whose content was known, to be kept in the log from now on."""
        self.lake, self.sources, self.start, self.lease = lake, sources, start, lease
        self.known_again = known_again
        self.files = [file for source in sources for file in source.files]
        self.digests = [str(known.digest) for source in sources for known in source.known_files]
        self.spark = tuned(lake, sum(map(size_of, self.files)) // ROW_BYTES)
        self._stamps = {
            file: file.stamp() for s in sources for file in s.files if format_of(file, s.options.format) == "parquet"
        }
        self.unfinished = self._unfinished()
        self.event_times_us: tuple[int, int] | None = None
        self.reasons: dict[str, int] = {}
        self.staging = Staging(lake)
        self.staging.sweep()
        try:
            self.parts = self._read()
            self.by_seq = self._is_by_seq()
        except BaseException:
            self.staging.close()
            raise

    def __enter__(self) -> _Ingestion:
        return self

    def __exit__(self, *_: object) -> None:
        self.staging.close()

    def check_unchanged(self) -> None:
        """Refuse files that changed while they were read: their digests do not stand for the rows."""
        for source in self.sources:
            for known in source.known_files:
                digest = None
                with readable(known.file), contextlib.suppress(FileNotFoundError):
                    digest = content_digest(known.file, source.options)
                if digest != known.digest:
                    raise changed_while_read(known.file)

    def check_in_place(self) -> None:
        """Refuse Parquet files that changed: they are read in place until their rows are written."""
        for file, stamp in self._stamps.items():
            if file.stamp() != stamp:
                raise changed_while_read(file)

    def _read(self) -> list[_Part]:
        """Read every source, and resolve the types of its columns with the tables that exist."""
        parts: list[_Part] = []
        first = 0
        for number, source in enumerate(self.sources):
            unified = union.read(self.spark, source.files, source.options, self.staging, first)
            first += len(source.files)
            types = validate.resolve_types(unified, self._existing(source, unified), source.options, source.files)
            names = {name: validate.column_in_table(name) for name in types}
            if len(self.sources) > 1:  # two streams may have columns of one name and two types
                names = {name: f"_{number}_{outer}" for name, outer in names.items()}
            parts.append(_Part(source.options, unified, types, names))
        return parts

    def _existing(self, source: _Source, unified: union.UnifiedInput) -> dict[str, dict[str, str]]:
        """Return columns and Spark types of the tables to which the source's rows go."""
        stream = source.options.stream
        if stream is None:
            streams = validate.streams(unified, source.options, self.lake.names("events"))
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

    def _unfinished(self) -> tuple[int, int] | None:
        """Return number and clock (us) of an interrupted ingestion of the same content; take back one of other content.

        An ingestion of Parquet files that were written to since is taken back too: they are read in place, so the
        tables may hold rows of either content. First its plan is made void, for the tables keep the number of a commit
        that was taken back, and would leave out its rows if the ingestion were resumed.
        """
        done = last_committed(self.lake)
        planned = self.lake.table("ingest", "journal").last_version("ingest")
        if planned is None or planned <= done:
            return None
        rows = self.lake.table("ingest", "journal").read(filter=pc.field("number") == planned)
        plan = json.loads(rows["plan"][0].as_py()) if rows is not None and rows.num_rows else {}
        content = self._content()
        if {key: plan.get(key) for key in content} == content:
            return planned, plan["clock_us"]
        if plan:
            self._note(planned + 1, {})
        self.lease.confirm()
        for area in ("events", "quarantine"):
            for stream in self.lake.names(area):
                self.lake.table(area, stream).take_back("ingest", uncommitted(self.lake))
        return None

    def _content(self) -> dict[str, object]:
        """Return the part of a plan that tells the content of the call."""
        stamps = [list(stamp) for stamp in self._stamps.values()]
        options = [asdict(source.options) for source in self.sources]
        return {"digests": self.digests, "options": options[0] if len(options) == 1 else options, "stamps": stamps}

    def _plan(self) -> tuple[int, int]:
        """Return number and clock (us) of the interrupted ingestion, or record a new plan."""
        if self.unfinished is not None:
            return self.unfinished
        planned = self.lake.table("ingest", "journal").last_version("ingest")
        number, clock = 0 if planned is None else planned + 1, time.time_ns() // 1000
        self._note(number, {**self._content(), "clock_us": clock, "files": [str(path) for path in self.files]})
        return number, clock

    def _note(self, number: int, plan: dict[str, object]) -> None:
        row = {"number": number, "plan": json.dumps(plan)}
        self.lease.confirm()
        self.lake.table("ingest", "journal").append(pa.Table.from_pylist([row]), "ingest", number)

    def write(self, progress: Callable[[str], None]) -> StreamCounts:
        """Write every table, commit, and return the counts of each stream."""
        number, clock = self._plan()
        crash_points.point("ingest:planned")
        for name in dict.fromkeys(name for part in self.parts for name in part.types):
            if validate.column_in_table(name) != name:
                progress(f"ingest: column {name!r} is stored as {validate.column_in_table(name)}")
        if not self.by_seq and any("seq" in part.types for part in self.parts):
            progress("ingest: not every file has a column seq, so it orders nothing")
        rows, *others = (part.validated(clock, self.by_seq) for part in self.parts)
        for other in others:
            rows = rows.unionByName(other, allowMissingColumns=True)
        rows = rows.persist()
        try:
            return self._write(rows, number, progress)
        finally:
            rows.unpersist()

    def _write(self, rows: DataFrame, number: int, progress: Callable[[str], None]) -> StreamCounts:
        """Count the validated rows, refuse too many unusable ones, write the tables and commit."""
        from pyspark.sql import functions as F

        usable, arrived = (F.when(F.col("_problem").isNull(), F.col(name)) for name in ("event_ts", "arrival_ts"))
        texts = [name for name, kind in rows.dtypes if kind in ("string", "binary")]
        totals = rows.groupBy("_stream").agg(
            F.count_if(F.col("_problem").isNull()).alias("rows"),
            F.count_if(F.col("_problem").isNotNull()).alias("quarantined"),
            *(F.unix_micros(function(usable)).alias(name) for name, function in (("first", F.min), ("last", F.max))),
            F.unix_micros(F.min(arrived)).alias("arrived_from"),
            F.unix_micros(F.max(arrived)).alias("arrived_to"),
            *(F.sum(F.octet_length(quoted(name))).alias(f"_bytes_{place}") for place, name in enumerate(texts)),
        )
        streams = totals.collect()
        text_bytes = sum(row[f"_bytes_{place}"] or 0 for row in streams for place in range(len(texts)))
        counts = {row["_stream"]: {"rows": row["rows"], "quarantined": row["quarantined"]} for row in streams}
        for row in streams:
            if row["last"] is not None:
                counts[row["_stream"]]["event_to"] = row["last"]
        for part in self.parts:
            self._refuse_unusable(part.options, rows, counts, number)
        if not self.by_seq:
            arrivals = {row["_stream"]: row for row in streams if row["arrived_to"] is not None}
            self._note_arrivals(arrivals, counts, progress)
        if any(count["quarantined"] for count in counts.values()):
            self.reasons = _count_reasons(rows)
        spans = [(row["first"], row["last"]) for row in streams if row["rows"]]
        if spans:
            self.event_times_us = min(first for first, _ in spans), max(last for _, last in spans)
        writer = TableWriter(self.lake, self.lease, number, self.start, self.files, self._columns)
        writer.write(rows, counts, text_bytes, progress)
        return self._commit(counts, sum(count["rows"] for count in counts.values()), number)

    def _refuse_unusable(self, options: IngestOptions, rows: DataFrame, counts: StreamCounts, number: int) -> None:
        """Refuse the call if more rows of a stream would go to quarantine than its options allow.

        Rows that name no stream are compared with all rows. The plan becomes void: by its clock some rows may lie in
        the future that will not when the same files come again.
        """
        from pyspark.sql import functions as F

        share = Fraction(str(options.max_quarantined))  # 0.29 of 100 is 29 as it is written, not 28.999...
        total = sum(count["rows"] + count["quarantined"] for count in counts.values())
        for stream in sorted(counts.keys() if options.stream is None else {options.stream} & counts.keys()):
            usable, unusable = (counts[stream][name] for name in ("rows", "quarantined"))
            compared = total if stream == validate.UNKNOWN else usable + unusable
            allowed = math.floor(share * compared)
            if unusable <= allowed:
                continue
            quarantined = rows.where(F.col("_problem").isNotNull() & (F.col("_stream") == stream))
            first = quarantined.sort("_file", "_row").select("_file", "_line", "_problem").first()
            assert first is not None
            self._note(number + 1, {})
            problem = (
                f"{unusable:,} of {quantity(compared, 'row')} cannot be used, and max_quarantined, "
                f"{options.max_quarantined:g} of them, allows {allowed:,}; nothing was ingested. The first is in "
                f"{self.files[first['_file']]}, line {first['_line']}: {first['_problem']}"
            )
            remedy = (
                "mend or remove the files, or raise max_quarantined (--max-quarantined): with 1 such rows go to "
                "quarantine and the others come in"
            )
            raise InputError(f"stream {stream}", None, problem, remedy)

    def _note_arrivals(self, arrivals: dict[str, Row], counts: StreamCounts, progress: Callable[[str], None]) -> None:
        """Add the arrival times of each stream to `counts`.

        Report a stream of an earlier call whose rows arrived much later.
        """
        before = last_arrivals(self.lake)
        for stream, row in arrivals.items():
            counts[stream] |= {"arrived_from": row["arrived_from"], "arrived_to": row["arrived_to"]}
            later = {
                other: time
                for other, time in before.items()
                if other not in counts and time > row["arrived_from"] + HOUR_US
            }
            if later:
                other, time = max(later.items(), key=lambda item: item[1])
                progress(
                    f"ingest: rows of {stream} arrived from {_instant(row['arrived_from'])} on, but stand after those "
                    f"of {other}, which arrived up to {_instant(time)} and were ingested by an earlier call; a query "
                    f"over both sees such an order of arrival. One call orders its streams by arrival: latecomer "
                    f"ingest {other}=PATH {stream}=PATH"
                )

    def _commit(self, counts: StreamCounts, rows: int, number: int) -> StreamCounts:
        self.check_in_place()
        self.lease.confirm()
        named = [source.options.stream for source in self.sources if source.options.stream is not None]
        nothing = {stream: {"rows": 0, "quarantined": 0} for stream in named}  # a stream is known also without rows
        row = {
            "number": number,
            "seq_from": self.start,
            "seq_to": self.start + rows,
            "counts": json.dumps(nothing | counts, sort_keys=True),
            "digests": self.digests,
            "files": [file.place for file in self.files],
            "looks": [*self._fingerprints(), *self.known_again],
        }
        if not self.lake.table("ingest", "committed").append(pa.Table.from_pylist([row]), "ingest", number):
            raise LeaseLost("ingest", "another process")
        crash_points.point("ingest:committed")
        # only written tables: of another one an earlier version may still be the one that counts
        for area, name in (("events", "rows"), ("quarantine", "quarantined")):
            compact_and_vacuum([self.lake.table(area, stream) for stream, count in counts.items() if count[name]])
        compact_and_vacuum([self.lake.table("ingest", name) for name in ("committed", "journal")])
        return counts

    def _fingerprints(self) -> list[str]:
        """Return the stat fingerprints of the files that were read.

        An empty text for a file that changed or has none.
        """
        files = (known for source in self.sources for known in source.known_files)
        return [known.fingerprint if known.fingerprint and known.file.is_as_listed else "" for known in files]

    def _columns(self, stream: str) -> dict[str, str]:
        """Return the columns of a stream's table, with their names until it is written."""
        part = next((part for part in self.parts if part.options.stream == stream), self.parts[0])
        return {name: name for name in ALWAYS_THERE} | part.columns


def _count_reasons(rows: DataFrame) -> dict[str, int]:
    """Count quarantined rows by reason, without the values; the most frequent reason first."""
    from pyspark.sql import functions as F

    reason = F.substring_index("_problem", ": ", 1).alias("reason")
    counts = rows.where(F.col("_problem").isNotNull()).groupBy(reason).count().collect()
    return {row["reason"]: row["count"] for row in sorted(counts, key=lambda row: (-row["count"], row["reason"]))}


def _by_stream(
    paths: Sequence[str] | Mapping[str, Sequence[str]], options: IngestOptions
) -> list[tuple[IngestOptions, Sequence[str]]]:
    """Return options with the paths that are read by them: all paths, or those of each stream."""
    if not isinstance(paths, Mapping):
        return [(options, paths)]
    return [(replace(options, stream=stream), stream_paths) for stream, stream_paths in paths.items()]


def _check_options(options: IngestOptions) -> None:
    if (options.stream is None) == (options.by is None):
        raise InputError(
            "ingest", None, "needs --stream NAME or --by COLUMN, one of them", "say which stream the rows are"
        )
    if options.stream is not None and not STREAM.fullmatch(options.stream):
        raise InputError("--stream", options.stream, "is not a stream name", STREAM_REMEDY)
    if not is_zone(options.timezone):
        raise InputError("--timezone", options.timezone, "is not a time zone", "write one such as Europe/Berlin")
    if not 0 <= options.max_quarantined <= 1:
        raise InputError("--max-quarantined", options.max_quarantined, "is no share of rows", "write one from 0 to 1")


def _instant(time_us: int) -> str:
    return f"{np.datetime64(time_us, 'us').astype('datetime64[s]')}Z"
