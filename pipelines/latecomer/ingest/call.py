"""The files, tables and topics of one call of `ingest`, and which of these hold something new."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from latecomer.ingest import stream_sources
from latecomer.ingest.duplicates import refuse_unbounded
from latecomer.ingest.find_files import find
from latecomer.ingest.known_files import KnownFile, identify, map_files, stat_fingerprint, without_format
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.source_file import LandingFile
from latecomer.ingest.sources import FileSource, Source
from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import among_ingested
from latecomer.lake.lake import Lake
from latecomer.specs.names import STREAM, STREAM_REMEDY
from latecomer.specs.streams import is_zone


@dataclass
class Call:
    """The files of a call with their digests, and the options of streams that come from elsewhere.

    Attributes
    ----------
    identified
        Files by the options that read them.
    elsewhere
        Options of streams whose files state a source of their own.
    left_out
        Files of a folder whose format their names do not tell, and its folders.
    skipped
        Files whose content had been ingested before, once `new_sources` was called.
    known_again
        New stat fingerprints of such files.
    """

    identified: list[tuple[IngestOptions, list[KnownFile]]]
    elsewhere: list[IngestOptions]
    left_out: list[str]
    skipped: list[str] = field(default_factory=list)
    known_again: list[str] = field(default_factory=list)

    def new_sources(self, lake: Lake, progress: Callable[[str], None]) -> list[Source]:
        """Return what the lake does not have yet. Only the holder of the ingestion's lease may act on it."""
        sources: list[Source] = [*self._new_files(lake)]
        for options in self.elsewhere:
            source = stream_sources.new_content(lake, options, progress)
            sources += [] if source is None else [source]
        return sources

    def _new_files(self, lake: Lake) -> list[FileSource]:
        digests = (file.digest for _, known_files in self.identified for file in known_files if file.digest is not None)
        known_digests = among_ingested(
            lake, "digests", (form for digest in digests for form in (digest, without_format(digest)))
        )
        sources: list[FileSource] = []
        for options, known_files in self.identified:
            new = []
            for file in known_files:
                if file.digest is None or known_digests & {file.digest, without_format(file.digest)}:
                    self.skipped.append(str(file.file))
                    if file.digest is not None and file.fingerprint:
                        self.known_again.append(file.fingerprint)
                else:
                    known_digests.add(file.digest)
                    new.append(file)
            if new:
                sources.append(FileSource(options, new))
        return sources


def find_call(
    lake: Lake,
    paths: Sequence[str] | Mapping[str, Sequence[str]],
    options: IngestOptions,
    with_stream_file: Callable[[IngestOptions], IngestOptions],
) -> Call:
    """Find the files of a call and compute the digests of the new ones among them.

    Raises
    ------
    InputError
        The options or a path cannot be used.
    """
    left_out: list[str] = []
    calls: list[tuple[IngestOptions, list[LandingFile], list[str | None]]] = []
    elsewhere: list[IngestOptions] = []
    for stream_options, stream_paths in _by_stream(paths, options):
        _check_options(stream_options)
        full_options = with_stream_file(stream_options)
        refuse_unbounded(full_options)
        if full_options.source is not None:
            _refuse_paths(full_options, stream_paths)
            elsewhere.append(full_options)
            continue
        if not stream_paths:
            remedy = "give a path, or state its source in its stream file (--streams)"
            raise InputError(f"stream {full_options.stream}", None, "has no path, and no source of its own", remedy)
        files, others = find(stream_paths, full_options.format, full_options.recursive)
        left_out += others
        calls.append((full_options, files, map_files(stat_fingerprint, files, repeat(full_options))))
    fingerprints = (mark for _, _, marks in calls for mark in marks if mark is not None)
    known_fingerprints = among_ingested(lake, "looks", fingerprints)
    identified = [
        (call_options, map_files(identify, files, repeat(call_options), marks, repeat(known_fingerprints)))
        for call_options, files, marks in calls
    ]
    return Call(identified, elsewhere, left_out)


def _by_stream(
    paths: Sequence[str] | Mapping[str, Sequence[str]], options: IngestOptions
) -> list[tuple[IngestOptions, Sequence[str]]]:
    """Return options with the paths that are read by them: all paths, or those of each stream."""
    if not isinstance(paths, Mapping):
        return [(options, paths)]
    return [(replace(options, stream=stream), stream_paths) for stream, stream_paths in paths.items()]


def _refuse_paths(options: IngestOptions, paths: Sequence[str]) -> None:
    """Refuse paths of a stream whose file states where its rows come from, and such a source of a column's streams."""
    if options.stream is None:
        remedy = "state the source in the file of one stream, or remove it"
        raise InputError("--by", options.by, "has a stream file with a source that is no files", remedy)
    if paths:
        remedy = f"name the stream without a path: latecomer ingest {options.stream}"
        raise InputError(f"stream {options.stream}", paths[0], "has a stream file with a source of its own", remedy)


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
