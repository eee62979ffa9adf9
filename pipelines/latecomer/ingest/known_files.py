"""Tell files that were ingested before from new and from changed ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from latecomer.ingest.find_files import digest, format_of, readable
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.source_file import LandingFile
from latecomer.lake.errors import InputError
from latecomer.specs.streams import TextLayout

_LAYOUT = asdict(TextLayout())
_READERS = 16
"""Objects of a bucket that are read at a time for their digests: a store answers many requests as fast as one."""


@dataclass(frozen=True)
class KnownFile:
    """A file of a call.

    Attributes
    ----------
    fingerprint
        Its stat fingerprint before it was read, with the options; None where that does not tell it from later content.
    digest
        Digest of its content; None where a file of that fingerprint was ingested before, so that it was not read.
    """

    file: LandingFile
    fingerprint: str | None
    digest: str | None


def map_files(function: Callable[..., Any], files: list[LandingFile], *more: Iterable[Any]) -> list[Any]:
    """Call a function with each file, for several at a time where they are objects of a bucket; return its values."""
    with ThreadPoolExecutor(1 if all(file.is_local for file in files) else _READERS) as pool:
        return list(pool.map(function, files, *more))


def stat_fingerprint(file: LandingFile, options: IngestOptions) -> str | None:
    """Return a file's stat fingerprint with its options; None where that does not tell it from later content."""
    fingerprint = file.stat_fingerprint()
    return fingerprint and f"{_options_text(file, options)} {fingerprint}"


def identify(
    file: LandingFile, options: IngestOptions, fingerprint: str | None, known_fingerprints: set[str]
) -> KnownFile:
    """Compute the digest of a file, which reads it from end to end, unless its fingerprint is known."""
    if fingerprint in known_fingerprints:
        return KnownFile(file, fingerprint, None)
    with readable(file):
        return KnownFile(file, fingerprint, content_digest(file, options))


def size_of(file: LandingFile) -> int:
    """Return the size of a file in bytes; an InputError where it cannot be read."""
    with readable(file):
        return file.size()


def changed_while_read(file: LandingFile) -> InputError:
    """Return the error of a file whose content changed between the start and the end of its reading."""
    remedy = "ingest it when it is complete: write elsewhere, then move it here"
    return InputError(str(file), None, "was changed while it was read; nothing was ingested", remedy)


def _options_text(file: LandingFile, options: IngestOptions) -> str:
    """Return the options that change what a file's content means, as text."""
    named = [options.stream, options.by, options.event_column, options.arrival_column, options.timezone]
    named += [] if options.time_unit == "us" else [options.time_unit]
    kind = format_of(file, options.format)
    stated = {"time_format": options.time_format, "event_clock_column": options.event_clock_column}
    if kind != "parquet":
        stated |= {key: value for key, value in asdict(options.layout).items() if value != _LAYOUT[key]}
    stated = {key: value for key, value in stated.items() if value is not None}
    return f"{json.dumps(named + [stated] * bool(stated))} {kind}"


def content_digest(file: LandingFile, options: IngestOptions) -> str:
    """Return the digest of a file's content and options, followed by its format.

    Read in another format it is other content, and comes in again, as it should after a mistake.
    """
    named, _, kind = _options_text(file, options).rpartition(" ")
    return f"{digest(file, named)} {kind}"


def without_format(known: str) -> str:
    """Return the digest as earlier versions kept it: content that they ingested stays ingested in whatever format."""
    return known.split()[0]
