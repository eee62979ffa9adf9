"""Tell whether a landing folder holds files that no ingestion has taken in, again and again, at little cost.

The ingest log decides, as for ``ingest`` itself, but files are seldom read: a file under a name that the log does not
have is new, whatever it holds, until somebody asks to be sure.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import pyarrow as pa

from latecomer.ingest.find_files import find
from latecomer.ingest.known_files import content_digest, map_files, stat_fingerprint, without_format
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.source_file import LandingFile, look_into
from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import among_ingested, last_committed, streams_of
from latecomer.lake.lake import Lake


class FolderObserver:
    """The files of one folder, as they are known to the ingest log.

    An object keeps what it has learnt about files. That saves reading, and decides nothing: a new object gives the same
    answers.

    Parameters
    ----------
    folder
        A folder, or a prefix of a bucket. It may be missing.
    options
        The options by which ``ingest`` reads the folder, with those of its stream file.
    """

    def __init__(self, folder: str, options: IngestOptions) -> None:
        self.folder, self.options = folder, options
        self._ingested: set[str] = set()
        """Marks of files whose content the log has, by their digests."""
        self._observed: tuple[frozenset[str], int] | None = None
        self._new: dict[str, LandingFile] = {}

    def new(self, lake: Lake, *, surely: bool = False) -> frozenset[str]:
        """Return marks of the files that are new or have changed; each tells a file from its later content.

        Parameters
        ----------
        surely
            Compute the digests of files under new names too, which may be copies of content that was ingested.

        Raises
        ------
        InputError
            The folder or the lake cannot be read, or the folder holds files and none can be ingested.
        """
        files = self._files()
        number = last_committed(lake)
        if self._observed is not None and number < self._observed[1]:
            self._ingested.clear()  # another lake has taken its place
        if self._observed != (frozenset(files), number):
            self._new = self._unknown(lake, files)
            self._observed = frozenset(files), number
        if surely:
            self._learn(lake, self._new)
            self._new = {mark: file for mark, file in self._new.items() if mark not in self._ingested}
        return frozenset(self._new)

    def _files(self) -> dict[str, LandingFile]:
        """Return the files that can be ingested, by their marks."""
        recursive = self.options.recursive
        try:
            files, _ = find([self.folder], self.options.format, recursive)
        except InputError:
            listed = look_into(self.folder, recursive)
            if listed.files or listed.folders:
                raise
            return {}
        by_marks = {}
        for file in files:
            with suppress(OSError):  # it has gone in between
                by_marks[" ".join([file.place, *map(str, file.marks())])] = file
        return by_marks

    def _unknown(self, lake: Lake, files: dict[str, LandingFile]) -> dict[str, LandingFile]:
        """Return the files that the log does not know by fingerprint or, where it has their names, by content."""
        rest = {mark: file for mark, file in files.items() if mark not in self._ingested}
        fingerprints = {mark: stat_fingerprint(file, self.options) for mark, file in rest.items()}
        known = among_ingested(lake, "looks", filter(None, fingerprints.values()))
        rest = {mark: file for mark, file in rest.items() if fingerprints[mark] not in known}
        places = streams_of(lake, (file.place for file in rest.values()))
        self._learn(lake, {mark: file for mark, file in rest.items() if file.place in places})
        return {mark: file for mark, file in rest.items() if mark not in self._ingested}

    def _learn(self, lake: Lake, files: dict[str, LandingFile]) -> None:
        """Note the files among these whose content the log has."""
        digests = dict(zip(files, map_files(self._digest, list(files.values())), strict=True))
        known = among_ingested(lake, "digests", _forms(filter(None, digests.values())))
        self._ingested |= {mark for mark, digest in digests.items() if digest and known & {*_forms([digest])}}

    def _digest(self, file: LandingFile) -> str | None:
        """Return the digest of a file's content; None where it cannot be read."""
        try:
            return content_digest(file, self.options)
        except (OSError, pa.ArrowException):
            return None


def _forms(digests: Iterable[str]) -> list[str]:
    """Return digests as this version and as earlier ones kept them."""
    return [form for digest in digests for form in (digest, without_format(digest))]
