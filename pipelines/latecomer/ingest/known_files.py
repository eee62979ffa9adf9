"""Tell files that were ingested before from new and from changed ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from latecomer.ingest.find_files import digest, format_of, readable
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.source_file import LandingFile
from latecomer.lake.errors import InputError

_READERS = 16
"""Objects of a bucket that are read at a time, for their digests: a store answers many as fast as one."""


@dataclass(frozen=True)
class KnownFile:
    """A file of a call.

    Attributes
    ----------
    looks
        What it looked like before it was read, and how it is to be read; None where that does not tell it from what it may become.
    digest
        Of its content; None where one that looked like that was ingested before, so that it was not read.
    """

    file: LandingFile
    looks: str | None
    digest: str | None


def map_files(function: Callable[..., Any], files: list[LandingFile], *more: Iterable[Any]) -> list[Any]:
    """What a function makes of each file; of files that are not local of several at a time."""
    with ThreadPoolExecutor(1 if all(file.is_local for file in files) else _READERS) as pool:
        return list(pool.map(function, files, *more))


def stat_fingerprint(file: LandingFile, options: IngestOptions) -> str | None:
    """What a file looks like, and how it is to be read; None where that does not tell it from what it may become."""
    now = file.looks()
    return now and f"{_how(file, options)} {now}"


def identify(file: LandingFile, options: IngestOptions, looks: str | None, looked: set[str]) -> KnownFile:
    """A file and its digest, for which it is read from end to end unless its looks are among those of files that were ingested."""
    if looks in looked:
        return KnownFile(file, looks, None)
    with readable(file):
        return KnownFile(file, looks, content_digest(file, options))


def size_of(file: LandingFile) -> int:
    """Return the size of a file in bytes; an InputError where it cannot be read."""
    with readable(file):
        return file.size()


def changed_while_read(file: LandingFile) -> InputError:
    """Return the error of a file whose content changed between the start and the end of its reading."""
    remedy = "ingest it when it is complete: write elsewhere, then move it here"
    return InputError(str(file), None, "was changed while it was read; nothing was ingested", remedy)


def _how(file: LandingFile, options: IngestOptions) -> str:
    """How a file is read."""
    named = [options.stream, options.by, options.event_column, options.arrival_column, options.timezone]
    named += [] if options.time_unit == "us" else [options.time_unit]
    return f"{json.dumps(named)} {format_of(file, options.format)}"


def content_digest(file: LandingFile, options: IngestOptions) -> str:
    """Digest of a file's content and of how it is read, then its format: read as another it comes in again, as it should after a mistake."""
    named, _, kind = _how(file, options).rpartition(" ")
    return f"{digest(file, named)} {kind}"


def without_format(known: str) -> str:
    """What earlier versions noted: what they ingested stays ingested, as whatever format."""
    return known.split()[0]
