"""Read what a call would ingest, and report it without writing to the lake."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from latecomer.ingest.call import find_call
from latecomer.ingest.content import Content, Counted
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.staging import Staging
from latecomer.lake.lake import Lake

MOST_EXAMPLES = 20
"""Most reasons for quarantine of which an example is shown."""


@dataclass(frozen=True)
class Example:
    """A row that would go to quarantine, as an example of `rows` rows with the same reason."""

    reason: str
    rows: int
    file: str
    line: int
    raw: str


@dataclass(frozen=True)
class StreamReport:
    """The outcome that a call would have for a stream.

    Attributes
    ----------
    columns
        Types of the payload columns.
    rows, quarantined, repeated
        Numbers of rows.
    lateness
        Numbers of rows by their lateness, as :data:`latecomer.core.time.LATENESS_BOUNDS_US` bound it.
    """

    columns: dict[str, str]
    rows: int
    quarantined: int
    repeated: int
    lateness: list[int]


@dataclass(frozen=True)
class DryRun:
    """The outcome that a call would have.

    Attributes
    ----------
    refused
        Why it would be refused; None where it would not be.
    notes
        Sentences about what was assumed, and about clocks that look wrong.
    """

    streams: dict[str, StreamReport] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped_files: list[str] = field(default_factory=list)
    left_out_files: list[str] = field(default_factory=list)
    event_times_us: tuple[int, int] | None = None
    refused: str | None = None


def dry_run(
    lake: Lake,
    paths: Sequence[str] | Mapping[str, Sequence[str]],
    options: IngestOptions,
    with_stream_file: Callable[[IngestOptions], IngestOptions] = lambda options: options,
) -> DryRun:
    """Read and count the content of a call of :func:`latecomer.ingest.ingest.ingest`; the parameters are the same.

    Raises
    ------
    InputError
        The call, or a file as a whole, cannot be used.
    """
    notes: list[str] = []
    call = find_call(lake, paths, options, with_stream_file)
    sources = call.new_sources(lake, notes.append)
    if not sources:
        return DryRun(notes=notes, skipped_files=call.skipped, left_out_files=call.left_out)
    with (
        tempfile.TemporaryDirectory() as folder,
        Content(lake, sources, time.time_ns() // 1000, Staging(Lake(folder))) as content,
    ):
        counted = content.count_rows()
        return DryRun(
            {stream: _report(content, counted, stream) for stream in sorted(counted.counts)},
            [Example(*values) for values in content.examples(counted, MOST_EXAMPLES)],
            notes + content.notes + content.suspicions(counted),
            call.skipped,
            call.left_out,
            counted.event_times_us,
            content.refusal(counted),
        )


def _report(content: Content, counted: Counted, stream: str) -> StreamReport:
    counts = counted.counts[stream]
    return StreamReport(
        content.types_of(stream),
        counts["rows"],
        counts["quarantined"],
        counts.get("duplicates", 0),
        counted.lateness[stream],
    )
