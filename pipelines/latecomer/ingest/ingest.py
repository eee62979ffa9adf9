"""`ingest`: landing files become event tables, every row with its place in one global arrival order, once.

Rows of one call are ordered by the source's ``seq``, else by arrival, else as they stand in the files; ties always by
file and position. They follow everything ingested before. Rows that cannot be used go to ``quarantine/<stream>``
and get no place. A call may be of several streams, each with its own files and types of columns, in one order.

Commit order: plan (``ingest/journal``), event and quarantine tables, ``ingest/committed``. Readers trust arrivals
below the last committed ``seq``. An interrupted ingestion is taken up again if the same content comes back, and
taken back if other content comes first.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
ROWS_PER_FILE = 1_000_000
_WRITERS = 4


@dataclass(frozen=True)
class IngestResult:
    """What one call did.

    Attributes
    ----------
    rows_ingested, rows_quarantined
        Per stream.
    skipped_files, left_out_files
        Files whose content had been ingested before; a folder's files whose names do not say what they hold, and its folders.
    changed_files
        Files that had been ingested into the same stream before, with other content or options: what they still hold of it came again.
    seq_from, seq_to
        The places it gave, ``[seq_from, seq_to)``.
    event_times_us
        First and last event time ingested, us; None where no row was.
    reasons
        Why rows were put into quarantine, and how many; without the values.
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
    own: Callable[[IngestOptions], IngestOptions] = lambda options: options,
) -> IngestResult:
    """Ingest landing files as one call.

    Parameters
    ----------
    paths
        Files and folders; or those of each stream, where `options` name none.
    progress
        Called with one line per thing worth saying.
    own
        What becomes of the options of a stream, or of a column that names streams: those of its stream file.

    Raises
    ------
    InputError
        The call or a file as a whole cannot be used; nothing was written then, but an interrupted ingestion may have been taken back.
    LeaseHeld
        Another ingestion is under way.
    """
    started = time.monotonic()
    say = progress or (lambda line: None)
    left_out: list[str] = []
    asked_for: list[tuple[IngestOptions, list[LandingFile], list[str | None]]] = []
    for asked, some in _by_stream(paths, options):
        _check_options(asked)
        each = own(asked)
        files, others = find(some, each.format, each.recursive)
        left_out += others
        asked_for.append((each, files, map_files(stat_fingerprint, files, repeat(each))))
    looked = among_ingested(lake, "looks", (one for _, _, looks in asked_for for one in looks if one is not None))
    found = [
        (each, map_files(identify, files, repeat(each), looks, repeat(looked))) for each, files, looks in asked_for
    ]
    with Lease(lake, "ingest") as lease:
        digests = (one.digest for _, seen in found for one in seen if one.digest is not None)
        ingested_before = among_ingested(
            lake, "digests", (each for one in digests for each in (one, without_format(one)))
        )
        sources: list[_Source] = []
        skipped: list[str] = []
        again: list[str] = []
        for read_so, seen in found:
            fresh = []
            for one in seen:
                if one.digest is None or ingested_before & {one.digest, without_format(one.digest)}:
                    skipped.append(str(one.file))
                    again += [one.looks] if one.digest is not None and one.looks else []
                else:
                    ingested_before.add(one.digest)
                    fresh.append(one)
            if fresh:
                sources.append(_Source(read_so, fresh))
        start = committed_seq(lake)
        if not sources:
            return IngestResult(0, {}, {}, skipped, left_out, [], start, start, None, {}, time.monotonic() - started)
        before = streams_of(lake, (one.file.place for source in sources for one in source.seen))
        job = _Ingestion(lake, sources, start, lease, again)
        with job:
            job.check_unchanged()
            say(f"ingest: {quantity(len(job.files), 'file')} read")
            try:
                counts = job.write(say)
            except Exception:
                job.check_in_place()
                raise
        ingested = {stream: c["rows"] for stream, c in counts.items() if c["rows"]}
        kept_out = {stream: c["quarantined"] for stream, c in counts.items() if c["quarantined"]}
        total = sum(ingested.values())
        return IngestResult(
            total + sum(kept_out.values()),
            ingested,
            kept_out,
            skipped,
            left_out,
            [str(file) for file in job.files if before.get(file.place, set()) & counts.keys()],
            start,
            start + total,
            job.event_times_us,
            job.reasons,
            time.monotonic() - started,
        )


ROW_BYTES = 16
"""Bytes of a landing file that may be a row; compressed ones have that few."""


@dataclass(frozen=True)
class _Source:
    """Files that are read alike: a whole call's, or those of one of its streams; none of them was ingested before."""

    options: IngestOptions
    seen: list[KnownFile]

    @property
    def files(self) -> list[LandingFile]:
        return [each.file for each in self.seen]


@dataclass(frozen=True)
class _Part:
    """A source that was read: its rows, the types of its payload columns, and what these are called until its tables are written."""

    options: IngestOptions
    landed: union.Landed
    types: dict[str, str]
    inner: dict[str, str]

    @property
    def columns(self) -> dict[str, str]:
        """Inner names of the payload columns, by those in the table."""
        return {validate.stored(name): self.inner[name] for name in self.types}

    def judged(self, clock_us: int, by_seq: bool) -> DataFrame:
        """Its rows as :func:`latecomer.ingest.validate.judge` has them, under inner names."""
        rows = validate.judge(self.landed, self.types, self.options, clock_us, by_seq)
        return rows.withColumnsRenamed({outer: inner for outer, inner in self.columns.items() if outer != inner})


class _Ingestion:
    """One call's work, from read files to the committed row."""

    def __init__(self, lake: Lake, sources: list[_Source], start: int, lease: Lease, again: list[str]) -> None:
        """`again`: looks of files of the call whose content was known, to be known from now on."""
        self.lake, self.sources, self.start, self.lease, self.again = lake, sources, start, lease, again
        self.files = [file for each in sources for file in each.files]
        self.digests = [str(seen.digest) for each in sources for seen in each.seen]
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
        """Refuse files that were written to while they were read: what was read is not what their digests stand for."""
        for each in self.sources:
            for seen in each.seen:
                now = None
                with readable(seen.file), contextlib.suppress(FileNotFoundError):
                    now = content_digest(seen.file, each.options)
                if now != seen.digest:
                    raise changed_while_read(seen.file)

    def check_in_place(self) -> None:
        """Refuse Parquet files that were written to since: they are not copied but read again and again until their rows are written."""
        for file, stamp in self._stamps.items():
            if file.stamp() != stamp:
                raise changed_while_read(file)

    def _read(self) -> list[_Part]:
        """Every source, with its columns' types agreed with the tables that exist."""
        parts: list[_Part] = []
        first = 0
        for k, each in enumerate(self.sources):
            landed = union.read(self.spark, each.files, each.options, self.staging, first)
            first += len(each.files)
            types = validate.agree(landed, self._existing(each, landed), each.options, each.files)
            names = {name: validate.stored(name) for name in types}
            if len(self.sources) > 1:  # a column of one stream is another than that of the next
                names = {name: f"_{k}_{outer}" for name, outer in names.items()}
            parts.append(_Part(each.options, landed, types, names))
        return parts

    def _existing(self, source: _Source, landed: union.Landed) -> dict[str, dict[str, str]]:
        """Columns and Spark types of the tables that the source's rows go to."""
        stream = source.options.stream
        if stream is None:
            found = validate.streams(landed, source.options, self.lake.names("events"))
        else:
            found = [stream] if self.lake.table("events", stream).exists() else []
        return {name: types_of(tables.read(self.spark, self.lake.table("events", name))) for name in found}

    def _is_by_seq(self) -> bool:
        """Does the source's ``seq`` order the call? Where every file has one; it has to be one that can."""
        if not all(validate.orders(part.landed, part.types) for part in self.parts):
            return False
        for part in self.parts:
            validate.refuse_unordered(part.landed, part.types)
        one, *others = self.parts
        for part in others:
            if part.types["seq"] != one.types["seq"]:
                kind, file = one.types["seq"], one.landed.origin["seq"]
                problem = f"is {part.types['seq']}, and {kind} in {file}; it is to order them all"
                raise InputError(
                    f"{part.landed.origin['seq']}: column seq", None, problem, "rename or mend one of them"
                )
        return True

    def _unfinished(self) -> tuple[int, int] | None:
        """(number, clock in us) of an interrupted ingestion of the same files; one of other files is taken back.

        So is one of Parquet that was written to since: it is read where it lies, and what stands in the tables may be of either content.
        First its plan is made void: tables keep the number of what was taken back, and would refuse those rows should it be resumed.
        """
        done = last_committed(self.lake)
        planned = self.lake.table("ingest", "journal").last_version("ingest")
        if planned is None or planned <= done:
            return None
        rows = self.lake.table("ingest", "journal").read(filter=pc.field("number") == planned)
        plan = json.loads(rows["plan"][0].as_py()) if rows is not None and rows.num_rows else {}
        what = self._what()
        if {key: plan.get(key) for key in what} == what:
            return planned, plan["clock_us"]
        if plan:
            self._note(planned + 1, {})
        self.lease.confirm()
        for area in ("events", "quarantine"):
            for stream in self.lake.names(area):
                self.lake.table(area, stream).take_back("ingest", uncommitted(self.lake))
        return None

    def _what(self) -> dict[str, object]:
        stamps = [list(stamp) for stamp in self._stamps.values()]
        options = [asdict(each.options) for each in self.sources]
        return {"digests": self.digests, "options": options[0] if len(options) == 1 else options, "stamps": stamps}

    def _plan(self) -> tuple[int, int]:
        """(number, clock in us): those of the interrupted ingestion, or new ones."""
        if self.unfinished is not None:
            return self.unfinished
        planned = self.lake.table("ingest", "journal").last_version("ingest")
        number, clock = 0 if planned is None else planned + 1, time.time_ns() // 1000
        self._note(number, {**self._what(), "clock_us": clock, "files": [str(path) for path in self.files]})
        return number, clock

    def _note(self, number: int, plan: dict[str, object]) -> None:
        row = {"number": number, "plan": json.dumps(plan)}
        self.lease.confirm()
        self.lake.table("ingest", "journal").append(pa.Table.from_pylist([row]), "ingest", number)

    def write(self, say: Callable[[str], None]) -> dict[str, dict[str, int]]:
        """Write every table and commit; rows and quarantined rows per stream."""
        number, clock = self._plan()
        crash_points.point("ingest:planned")
        for name in dict.fromkeys(name for part in self.parts for name in part.types):
            if validate.stored(name) != name:
                say(f"ingest: column {name!r} is stored as {validate.stored(name)}")
        if not self.by_seq and any("seq" in part.types for part in self.parts):
            say("ingest: not every file has a column seq, so it orders nothing")
        judged, *others = (part.judged(clock, self.by_seq) for part in self.parts)
        for other in others:
            judged = judged.unionByName(other, allowMissingColumns=True)
        judged = judged.persist()
        try:
            return self._write(judged, number, say)
        finally:
            judged.unpersist()

    def _write(self, judged: DataFrame, number: int, say: Callable[[str], None]) -> dict[str, dict[str, int]]:
        from pyspark.sql import functions as F

        usable, arrived = (F.when(F.col("_problem").isNull(), F.col(name)) for name in ("event_ts", "arrival_ts"))
        texts = [name for name, kind in judged.dtypes if kind in ("string", "binary")]
        totals = judged.groupBy("_stream").agg(
            F.count_if(F.col("_problem").isNull()).alias("rows"),
            F.count_if(F.col("_problem").isNotNull()).alias("quarantined"),
            *(F.unix_micros(each(usable)).alias(name) for name, each in (("first", F.min), ("last", F.max))),
            F.unix_micros(F.min(arrived)).alias("arrived_from"),
            F.unix_micros(F.max(arrived)).alias("arrived_to"),
            *(F.sum(F.octet_length(quoted(name))).alias(f"_bytes_{place}") for place, name in enumerate(texts)),
        )
        found = totals.collect()
        held = sum(row[f"_bytes_{place}"] or 0 for row in found for place in range(len(texts)))
        counts = {row["_stream"]: {"rows": row["rows"], "quarantined": row["quarantined"]} for row in found}
        for row in found:
            if row["last"] is not None:
                counts[row["_stream"]]["event_to"] = row["last"]
        for part in self.parts:
            self._refuse_unusable(part.options, judged, counts, number)
        if not self.by_seq:
            self._note_arrivals({row["_stream"]: row for row in found if row["arrived_to"] is not None}, counts, say)
        if any(c["quarantined"] for c in counts.values()):
            reason = F.substring_index("_problem", ": ", 1).alias("reason")
            why = judged.where(F.col("_problem").isNotNull()).groupBy(reason).count().collect()
            self.reasons = {
                row["reason"]: row["count"] for row in sorted(why, key=lambda row: (-row["count"], row["reason"]))
            }
        spans = [(row["first"], row["last"]) for row in found if row["rows"]]
        if spans:
            self.event_times_us = min(first for first, _ in spans), max(last for _, last in spans)
        good = sum(c["rows"] for c in counts.values())
        every = good + sum(c["quarantined"] for c in counts.values())
        ranked, ordered = self._ordered(judged.where(F.col("_problem").isNull()), good)
        try:
            if every <= tables.DRIVER_LOCAL_ROWS and held <= tables.DRIVER_LOCAL_BYTES:
                self._write_few(ordered, judged, counts, number)
                return self._commit(counts, good, number)
            ranked.count()
            if good == every:
                judged.unpersist()
            jobs = [("events", stream) for stream, c in sorted(counts.items()) if c["rows"]]
            jobs += [("quarantine", stream) for stream, c in sorted(counts.items()) if c["quarantined"]]

            def one(job: tuple[str, str]) -> None:
                area, stream = job
                rows = self._event_rows(ordered, stream) if area == "events" else self._bad_rows(judged, stream, number)
                self.lease.confirm()
                tables.append(
                    rows, self.lake.table(area, stream), "ingest", number, undone=uncommitted(self.lake, number)
                )
                crash_points.point(f"ingest:{area}")

            with ThreadPoolExecutor(_WRITERS) as pool:
                for place, _ in enumerate(pool.map(one, jobs)):
                    if place % 10 == 9:
                        say(f"ingest: {place + 1} of {len(jobs)} tables written")
        finally:
            ranked.unpersist()
        return self._commit(counts, good, number)

    def _refuse_unusable(
        self, options: IngestOptions, judged: DataFrame, counts: dict[str, dict[str, int]], number: int
    ) -> None:
        """Refuse the call if of a stream that is read by these options more rows would go to quarantine than they allow.

        Rows that name no stream are judged by their share of all. The plan becomes void: it has the clock of now, by which rows are of the
        future that will not be when the same files come again.
        """
        from pyspark.sql import functions as F

        share = Fraction(str(options.max_quarantined))  # 0.29 of 100 is 29, as it was written, and not 28.999...
        total = sum(c["rows"] + c["quarantined"] for c in counts.values())
        for stream in sorted(counts.keys() if options.stream is None else {options.stream} & counts.keys()):
            good, bad = (counts[stream][name] for name in ("rows", "quarantined"))
            every = total if stream == validate.UNKNOWN else good + bad
            allowed = math.floor(share * every)
            if bad <= allowed:
                continue
            kept_out = judged.where(F.col("_problem").isNotNull() & (F.col("_stream") == stream))
            first = kept_out.sort("_file", "_row").select("_file", "_line", "_problem").first()
            assert first is not None
            self._note(number + 1, {})
            problem = (
                f"{bad:,} of {quantity(every, 'row')} cannot be used, and max_quarantined, {options.max_quarantined:g} of them, allows "
                f"{allowed:,}; nothing was ingested. The first is in {self.files[first['_file']]}, line {first['_line']}: {first['_problem']}"
            )
            remedy = "mend or remove the files, or raise max_quarantined (--max-quarantined): with 1 such rows go to quarantine and the others come in"
            raise InputError(f"stream {stream}", None, problem, remedy)

    def _note_arrivals(
        self, found: dict[str, Row], counts: dict[str, dict[str, int]], say: Callable[[str], None]
    ) -> None:
        """Keep in `counts` when the rows of each stream arrived; say so where others, which came before them, arrived long after."""
        before = last_arrivals(self.lake)
        for stream, row in found.items():
            counts[stream] |= {"arrived_from": row["arrived_from"], "arrived_to": row["arrived_to"]}
            later = {
                other: time
                for other, time in before.items()
                if other not in counts and time > row["arrived_from"] + HOUR_US
            }
            if later:
                other, time = max(later.items(), key=lambda each: each[1])
                say(
                    f"ingest: rows of {stream} arrived from {_instant(row['arrived_from'])} on, but stand after those of {other}, which "
                    f"arrived up to {_instant(time)} and were ingested by an earlier call; a query over both sees such an order of "
                    f"arrival. One call orders its streams by arrival: latecomer ingest {other}=PATH {stream}=PATH"
                )

    def _write_few(self, ordered: DataFrame, judged: DataFrame, counts: dict[str, dict[str, int]], number: int) -> None:
        """Write every table from the driver: with few rows Spark's own commits would take all the time."""
        events = ordered.toArrow()
        for stream in sorted(stream for stream, c in counts.items() if c["rows"]):
            columns = self._columns(stream)
            own = events.filter(pc.equal(events["_stream"], stream)).select(list(columns.values())).sort_by("seq")
            own = own.rename_columns(list(columns))
            self.lease.confirm()
            self.lake.table("events", stream).append(own, "ingest", number, uncommitted(self.lake, number))
            crash_points.point("ingest:events")
        if any(c["quarantined"] for c in counts.values()):
            bad = self._bad_rows(judged, None, number).toArrow()
            for stream in sorted(stream for stream, c in counts.items() if c["quarantined"]):
                own = bad.filter(pc.equal(bad["_stream"], stream)).drop_columns(["_stream"])
                self.lease.confirm()
                self.lake.table("quarantine", stream).append(own, "ingest", number, uncommitted(self.lake, number))
                crash_points.point("ingest:quarantine")

    def _commit(self, counts: dict[str, dict[str, int]], good: int, number: int) -> dict[str, dict[str, int]]:
        self.check_in_place()
        self.lease.confirm()
        named = [each.options.stream for each in self.sources if each.options.stream is not None]
        nothing = {stream: {"rows": 0, "quarantined": 0} for stream in named}  # known all the same
        row = {
            "number": number,
            "seq_from": self.start,
            "seq_to": self.start + good,
            "counts": json.dumps(nothing | counts, sort_keys=True),
            "digests": self.digests,
            "files": [file.place for file in self.files],
            "looks": [*self._looks(), *self.again],
        }
        if not self.lake.table("ingest", "committed").append(pa.Table.from_pylist([row]), "ingest", number):
            raise LeaseLost("ingest", "another process")
        crash_points.point("ingest:committed")
        # only what was written: of other tables a version before the last may still be the one that counts
        for area, what in (("events", "rows"), ("quarantine", "quarantined")):
            compact_and_vacuum([self.lake.table(area, stream) for stream, c in counts.items() if c[what]])
        compact_and_vacuum([self.lake.table("ingest", name) for name in ("committed", "journal")])
        return counts

    def _looks(self) -> list[str]:
        """Of the files that were read, what will tell that they are the same; an empty one where nothing does."""
        every = (seen for each in self.sources for seen in each.seen)
        return [seen.looks if seen.looks and seen.file.is_as_listed else "" for seen in every]

    def _ordered(self, rows: DataFrame, count: int) -> tuple[DataFrame, DataFrame]:
        """Give each row its ``seq``: sort by ranges, number inside each range, add what precedes the range.

        Returns the sorted rows, kept until the caller lets them go, and the same with their ``seq``.
        """
        from pyspark.sql import functions as F

        keys = [F.col("_order").asc_nulls_last(), F.col("_file"), F.col("_row")]
        pieces = max(1, -(-count // ROWS_PER_FILE))
        spread = rows.repartitionByRange(pieces, *keys) if pieces > 1 else rows.coalesce(1)
        ranked = spread.sortWithinPartitions(*keys).withColumn("_place", F.monotonically_increasing_id()).persist()
        if pieces == 1:
            return ranked, ranked.withColumn("seq", F.col("_place") + F.lit(self.start)).drop("_place")
        piece = F.shiftright("_place", 33)
        sizes = {r["p"]: r["n"] for r in ranked.groupBy(piece.alias("p")).agg(F.count("*").alias("n")).collect()}
        offsets, total = [], self.start
        for number in range(max(sizes, default=-1) + 1):
            offsets.append(total)
            total += sizes.get(number, 0)
        before = F.element_at(F.array(*(F.lit(offset) for offset in offsets)), piece.cast("int") + 1)
        inside = F.col("_place").bitwiseAND(F.lit((1 << 33) - 1))
        return ranked, ranked.withColumn("seq", before + inside).drop("_place")

    def _event_rows(self, ordered: DataFrame, stream: str) -> DataFrame:
        from pyspark.sql import functions as F

        columns = (F.col(quoted(inner)).alias(outer) for outer, inner in self._columns(stream).items())
        return ordered.where(F.col("_stream") == stream).select(*columns)

    def _columns(self, stream: str) -> dict[str, str]:
        """Columns of a stream's table, and what they are called until it is written."""
        part = next((part for part in self.parts if part.options.stream == stream), self.parts[0])
        return {name: name for name in ALWAYS_THERE} | part.columns

    def _bad_rows(self, judged: DataFrame, stream: str | None, number: int) -> DataFrame:
        """Quarantined rows of a stream; None: of all, with ``_stream``."""
        from pyspark.sql import functions as F

        names = F.create_map(*(part for i, path in enumerate(self.files) for part in (F.lit(i), F.lit(str(path)))))
        bad = judged.where(F.col("_problem").isNotNull())
        bad = bad if stream is None else bad.where(F.col("_stream") == stream)
        return bad.select(
            *(["_stream"] if stream is None else []),
            F.col("_raw").alias("raw"),
            F.element_at(names, F.col("_file")).alias("file"),
            F.col("_line").alias("line"),
            F.col("_problem").alias("reason"),
            F.lit(number).cast("bigint").alias("ingest_id"),
        )


def _by_stream(
    paths: Sequence[str] | Mapping[str, Sequence[str]], options: IngestOptions
) -> list[tuple[IngestOptions, Sequence[str]]]:
    """What is read alike: all paths, or those of each stream."""
    if not isinstance(paths, Mapping):
        return [(options, paths)]
    return [(replace(options, stream=stream), some) for stream, some in paths.items()]


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
