"""Stream files: how the landing files of a stream are read, stated once for everyone who ingests them.

``<folder>/clicks.yaml`` is the file of stream ``clicks``. ``<folder>/_by_type.yaml`` is that of landing files whose
column ``type`` names each row's stream. Every key is an option of `ingest`; without a stream file the command's options
hold.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from latecomer.specs.errors import SpecError
from latecomer.specs.loading import load_mapping
from latecomer.specs.names import STREAM, STREAM_REMEDY
from latecomer.specs.reader import Reader

FORMATS = ("csv", "parquet", "json")
TIME_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000}
"""Units of numbers in the two time columns, which count since 1970 -> their lengths in microseconds."""
_SUFFIXES = (".yaml", ".yml")


def is_zone(name: str) -> bool:
    """Return whether a name is a time zone that the JVM knows too."""
    return name in _zones()


@cache
def _zones() -> frozenset[str]:
    from zoneinfo import available_timezones

    return frozenset(available_timezones() - {"localtime", "Factory"})


def stream_file(folder: Path, name: str) -> Path | None:
    """Return the stream file of a stream, or of ``_by_<column>``; None where there is none."""
    return next((path for suffix in _SUFFIXES if (path := folder / f"{name}{suffix}").is_file()), None)


def stream_files(folder: Path) -> list[Path]:
    """Return all stream files of a folder, sorted."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in paths if path.suffix in _SUFFIXES and path.is_file())


def load_stream(path: Path) -> dict[str, Any]:
    """Read a stream file.

    Returns
    -------
    dict
        The stated options, by their names in :class:`latecomer.ingest.options.IngestOptions`; durations in
        microseconds.

    Raises
    ------
    SpecError
        For any fault of the file or its name: one line with file, key, value, problem and remedy.
    """
    if not STREAM.fullmatch(path.stem.removeprefix("_by_")):
        raise SpecError(str(path), "", path.stem, "is no name of a stream", f"{STREAM_REMEDY}; or _by_ and a column")
    if (other := stream_file(path.parent, path.stem)) != path:
        raise SpecError(str(path), "", None, f"is of the same stream as {other}", "remove one of them")
    return load_mapping(path, _parse_options)


def _parse_options(reader: Reader) -> dict[str, Any]:
    file_format = reader.optional_choice("format", FORMATS)
    event_column, arrival_column = reader.text("event_column", None), reader.text("arrival_column", None)
    zone = reader.text("timezone", None)
    options = {
        "format": file_format,
        "event_column": event_column,
        "arrival_column": arrival_column,
        "timezone": zone,
        "time_unit": reader.optional_choice("time_unit", TIME_UNITS),
        "max_future_us": reader.duration("max_future", None),
        "max_quarantined": reader.number("max_quarantined", None, low=0, high=1),
        "recursive": (recursive := reader.take("recursive", None)),
    }
    if zone is not None and not is_zone(zone):
        raise reader.fail("timezone", zone, "is not a time zone", "write one such as Europe/Berlin")
    if not (recursive is None or isinstance(recursive, bool)):
        raise reader.fail("recursive", recursive, "must be true or false", "write true or false")
    reader.done()
    return {key: value for key, value in options.items() if value is not None}
