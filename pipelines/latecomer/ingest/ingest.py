"""`ingest`: turn files, tables and topics into event tables; every row gets its place in one arrival order, once.

The rows of one call are ordered by the source's ``seq``, else by arrival, else as in the files; ties are broken by file
and position. They follow everything ingested before. Rows that cannot be used go to ``quarantine/<stream>`` and get no
place; nor do rows that repeat an event of a stream whose file states a key. A call may have several streams, each with
its own source and column types, in one order.

Commit order: plan (``ingest/journal``), event and quarantine tables, ``ingest/committed``. Readers trust arrivals below
the last committed ``seq``. An interrupted ingestion is resumed if the same content comes again, and taken back if other
content comes first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.ingest.call import find_call
from latecomer.ingest.content import Content, Counted, TooManyUnusable
from latecomer.ingest.duplicates import left_out
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.retype import retype
from latecomer.ingest.sources import FileSource, Source
from latecomer.ingest.staging import Staging
from latecomer.ingest.write_tables import TableWriter
from latecomer.lake import crash_points
from latecomer.lake.errors import LeaseLost
from latecomer.lake.ingest_log import (
    COMMITTED,
    StreamCounts,
    add_reasons,
    committed_seq,
    last_arrivals,
    last_committed,
    streams_of,
    uncommitted,
)
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.lake.maintenance import compact_and_vacuum
from latecomer.specs.errors import quantity

HOUR_US = 3_600_000_000


@dataclass(frozen=True)
class IngestResult:
    """The counts of one call.

    Attributes
    ----------
    rows_ingested, rows_quarantined, rows_repeated
        Rows by stream; the repeated ones are of events that were stored before, by the stream's key.
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
    notes
        Sentences about what was assumed, and about clocks that look wrong.
    """

    rows_read: int
    rows_ingested: dict[str, int]
    rows_quarantined: dict[str, int]
    rows_repeated: dict[str, int]
    skipped_files: list[str]
    left_out_files: list[str]
    changed_files: list[str]
    seq_from: int
    seq_to: int
    event_times_us: tuple[int, int] | None
    reasons: dict[str, int]
    notes: list[str]
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
        Files and folders; or files and folders by stream, where `options` name no stream. A stream whose file states
        another source than files has no path.
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
    call = find_call(lake, paths, options, with_stream_file)
    with Lease(lake, "ingest") as lease:
        sources = call.new_sources(lake, progress)
        skipped, not_read = call.skipped, call.left_out
        start = committed_seq(lake)
        if not sources:
            return IngestResult(
                0, {}, {}, {}, skipped, not_read, [], start, start, None, {}, [], time.monotonic() - started
            )
        streams_before = streams_of(lake, (place for source in sources for place in source.places))
        ingestion = _Ingestion(lake, sources, start, lease, call.known_again)
        with ingestion.content as content:
            ingestion.check_unchanged()
            noun = "file" if all(isinstance(source, FileSource) for source in sources) else "part"
            progress(f"ingest: {quantity(len(content.origins), noun)} read")
            try:
                counted = ingestion.write(progress)
            except Exception:
                ingestion.check_in_place()
                raise
        counts = counted.counts
        of_each = {
            name: {stream: count[name] for stream, count in counts.items() if count.get(name)}
            for name in ("rows", "quarantined", "duplicates")
        }
        total = sum(of_each["rows"].values())
        files = [file for source in sources if isinstance(source, FileSource) for file in source.files]
        changed = [str(file) for file in files if streams_before.get(file.place, set()) & counts.keys()]
        return IngestResult(
            sum(sum(by_stream.values()) for by_stream in of_each.values()),
            of_each["rows"],
            of_each["quarantined"],
            of_each["duplicates"],
            skipped,
            not_read,
            changed,
            start,
            start + total,
            counted.event_times_us,
            add_reasons(counted.reasons.values()),
            ingestion.notes,
            time.monotonic() - started,
        )


class _Ingestion:
    """The work of one call, from reading its sources to the committed row of the log."""

    def __init__(self, lake: Lake, sources: list[Source], start: int, lease: Lease, known_again: list[str]) -> None:
        """`known_again` are stat fingerprints of files whose content was known, to be kept in the log from now on."""
        self.lake, self.sources, self.start, self.lease = lake, sources, start, lease
        self.known_again = known_again
        self.digests = [digest for source in sources for digest in source.digests]
        self.unfinished = self._unfinished()
        clock_us = time.time_ns() // 1000 if self.unfinished is None else self.unfinished[1]
        staging = Staging(lake)
        staging.sweep()
        self.content = Content(lake, sources, clock_us, staging)
        self.notes: list[str] = []

    def check_unchanged(self) -> None:
        """Refuse content that changed while it was read."""
        for source in self.sources:
            source.check_unchanged()

    def check_in_place(self) -> None:
        """Refuse content that is read in place until its rows are written, and changed."""
        for source in self.sources:
            source.check_in_place()

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
        stamps = [stamp for source in self.sources for stamp in source.stamps]
        options = [asdict(source.options) for source in self.sources]
        one_or_more = options[0] if len(options) == 1 else options
        content = {"digests": self.digests, "options": one_or_more, "stamps": stamps}
        return cast("dict[str, object]", json.loads(json.dumps(content)))

    def _plan(self) -> int:
        """Return the number of the interrupted ingestion, or record a new plan."""
        if self.unfinished is not None:
            return self.unfinished[0]
        planned = self.lake.table("ingest", "journal").last_version("ingest")
        number = 0 if planned is None else planned + 1
        content = self.content
        self._note(number, {**self._content(), "clock_us": content.clock_us, "files": content.origins})
        return number

    def _note(self, number: int, plan: dict[str, object]) -> None:
        row = {"number": number, "plan": json.dumps(plan)}
        self.lease.confirm()
        self.lake.table("ingest", "journal").append(pa.Table.from_pylist([row]), "ingest", number)

    def write(self, progress: Callable[[str], None]) -> Counted:
        """Write every table, commit, and return what was counted."""
        for part in self.content.parts:
            if part.resolved.widened:  # an ingestion of its own, before this one is planned
                for stream in part.stored_streams:
                    retype(self.lake, stream, part.resolved.widened, progress, widen=True, lease=self.lease)
                self.unfinished = None  # an interrupted ingestion was taken back with it
        number = self._plan()
        crash_points.point("ingest:planned")
        counted = self.content.count_rows()
        self.notes = self.content.notes + self.content.suspicions(counted)
        for stream, count in sorted(counted.counts.items()):
            if "duplicates" in count:
                key = self.content.part_of(stream).options.key
                self.notes.append(f"{stream}: {left_out(count['duplicates'], key)}")
        for note in self.notes:
            progress(f"ingest: {note}")
        try:
            self.content.refuse_unusable(counted)
        except TooManyUnusable:
            # by its clock some rows may lie in the future that will not when the same content comes again
            self._note(number + 1, {})
            raise
        if not self.content.by_seq:
            self._note_arrivals(counted.counts, progress)
        writer = TableWriter(self.lake, self.lease, number, self.start, self.content.origins, self.content.columns_of)
        writer.write(counted.rows, counted.counts, counted.ranges, progress, counted.collected)
        self._commit(counted, number)
        return counted

    def _note_arrivals(self, counts: StreamCounts, progress: Callable[[str], None]) -> None:
        """Report a stream of an earlier call whose rows arrived much later than those of this one."""
        before = last_arrivals(self.lake)
        for stream, count in counts.items():
            if "arrived_from" not in count:
                continue
            later = {
                other: time
                for other, time in before.items()
                if other not in counts and time > count["arrived_from"] + HOUR_US
            }
            if later:
                other, time = max(later.items(), key=lambda item: item[1])
                progress(
                    f"ingest: rows of {stream} arrived from {_instant(count['arrived_from'])} on, but stand after "
                    f"those of {other}, which arrived up to {_instant(time)} and were ingested by an earlier call; a "
                    f"query over both sees such an order of arrival. One call orders its streams by arrival: latecomer "
                    f"ingest {other}=PATH {stream}=PATH"
                )

    def _commit(self, counted: Counted, number: int) -> None:
        self.check_in_place()
        self.lease.confirm()
        counts = counted.counts
        rows = sum(count["rows"] for count in counts.values())
        named = [source.options.stream for source in self.sources if source.options.stream is not None]
        # a stream is known also without rows
        nothing = {stream: {"read": 0, "rows": 0, "quarantined": 0} for stream in named}
        more: dict[str, dict[str, object]] = {stream: {} for stream in counts}
        for stream, bins in counted.lateness.items():
            more[stream] |= {"lateness": bins} if any(bins) else {}
        for stream, reasons in counted.reasons.items():
            more[stream] |= {"reasons": reasons}
        for stream in counts:
            inferred = self.content.inferred(stream) if counts[stream]["rows"] else {}
            more[stream] |= {"inferred": inferred} if inferred else {}
        positions = {source.options.stream: source.position for source in self.sources if source.position is not None}
        row = {
            "number": number,
            "seq_from": self.start,
            "seq_to": self.start + rows,
            "counts": json.dumps(
                {stream: count | more.get(stream, {}) for stream, count in (nothing | counts).items()},
                sort_keys=True,
            ),
            "digests": self.digests,
            "files": [place for source in self.sources for place in source.places],
            "looks": [*(mark for source in self.sources for mark in source.fingerprints), *self.known_again],
            "positions": json.dumps(positions, sort_keys=True),
        }
        committed = pa.Table.from_pylist([row], COMMITTED)
        if not self.lake.table("ingest", "committed").append(committed, "ingest", number):
            raise LeaseLost("ingest", "another process")
        crash_points.point("ingest:committed")
        # only written tables: of another one an earlier version may still be the one that counts
        for area, name in (("events", "rows"), ("quarantine", "quarantined")):
            compact_and_vacuum([self.lake.table(area, stream) for stream, count in counts.items() if count[name]])
        compact_and_vacuum([self.lake.table("ingest", name) for name in ("committed", "journal")])


def _instant(time_us: int) -> str:
    return f"{np.datetime64(time_us, 'us').astype('datetime64[s]')}Z"
