"""The sources of the rows of a call: new files here; tables and topics in modules of their own.

A source tells its content from any other by digests, which a plan of an ingestion keeps: an ingestion that was
interrupted is resumed if the same content comes again. What the ingest log keeps of a source that goes on from call to
call is its position.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from latecomer.ingest import union
from latecomer.ingest.find_files import format_of, readable
from latecomer.ingest.known_files import KnownFile, changed_while_read, content_digest, size_of
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.staging import Staging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROW_BYTES = 16
"""Least bytes of a landing file that may be a row, as in a compressed file."""


class Source(ABC):
    """New content that is read by the same options: that of a whole call, or of one of its streams."""

    options: IngestOptions

    @property
    @abstractmethod
    def origins(self) -> list[str]:
        """The names of the parts of the content, by the numbers that rows have in ``_file``, counted from 0."""

    @property
    @abstractmethod
    def digests(self) -> list[str]:
        """Texts that tell the content from any other."""

    @property
    @abstractmethod
    def most_rows(self) -> int:
        """A bound on the number of rows, by which the Spark session is tuned."""

    @abstractmethod
    def read(self, spark: SparkSession, staging: Staging, first: int) -> union.UnifiedInput:
        """Read the rows; the parts are numbered from `first`.

        Raises
        ------
        InputError
            A part as a whole cannot be used.
        """

    @property
    def places(self) -> list[str]:
        """Full names of files, for the ingest log."""
        return []

    @property
    def fingerprints(self) -> list[str]:
        """Marks of files that tell them from later content without reading them, for the ingest log."""
        return []

    @property
    def stamps(self) -> list[list[int]]:
        """Marks of what is read in place, which differ once it is written to."""
        return []

    @property
    def position(self) -> dict[str, object] | None:
        """The place at which the next call goes on, as JSON for the ingest log; None for files, which have none."""
        return None

    def check_unchanged(self) -> None:  # noqa: B027 - a source that cannot change needs no check
        """Refuse content that changed while it was read: its digests do not stand for the rows."""

    def check_in_place(self) -> None:  # noqa: B027
        """Refuse content that is read in place, until its rows are written, and changed."""


class FileSource(Source):
    """New files."""

    def __init__(self, options: IngestOptions, known_files: list[KnownFile]) -> None:
        self.options, self.known_files = options, known_files
        self.files = [known.file for known in known_files]
        self._stamps = {f: f.stamp() for f in self.files if format_of(f, options.format) == "parquet"}

    @property
    def origins(self) -> list[str]:
        """The names of the files."""
        return [str(file) for file in self.files]

    @property
    def digests(self) -> list[str]:
        """The digests of their contents."""
        return [str(known.digest) for known in self.known_files]

    @property
    def most_rows(self) -> int:
        """Their bytes, by the least that a row takes."""
        return sum(map(size_of, self.files)) // ROW_BYTES

    def read(self, spark: SparkSession, staging: Staging, first: int) -> union.UnifiedInput:
        """Read the files."""
        return union.read(spark, self.files, self.options, staging, first)

    @property
    def places(self) -> list[str]:
        """Their full names."""
        return [file.place for file in self.files]

    @property
    def fingerprints(self) -> list[str]:
        """Stat fingerprints; an empty text for a file that changed or has none."""
        return [
            known.fingerprint if known.fingerprint and known.file.is_as_listed else "" for known in self.known_files
        ]

    @property
    def stamps(self) -> list[list[int]]:
        """Marks of the Parquet files."""
        return [list(stamp) for stamp in self._stamps.values()]

    def check_unchanged(self) -> None:
        """Compare the contents with their digests."""
        for known in self.known_files:
            digest = None
            with readable(known.file), contextlib.suppress(FileNotFoundError):
                digest = content_digest(known.file, self.options)
            if digest != known.digest:
                raise changed_while_read(known.file)

    def check_in_place(self) -> None:
        """Compare the Parquet files with their marks."""
        for file, stamp in self._stamps.items():
            if file.stamp() != stamp:
                raise changed_while_read(file)
