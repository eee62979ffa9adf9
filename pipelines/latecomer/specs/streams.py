"""Stream files: how the landing files of a stream are read, said once for everyone who ingests them.

``<folder>/clicks.yaml`` is of stream ``clicks``; ``<folder>/_by_type.yaml`` of files whose column ``type`` names each row's stream. Every key
is an option of `ingest`; a stream without a file is read as the command says.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from latecomer.specs.errors import SpecError, did_you_mean
from latecomer.specs.loading import load_mapping
from latecomer.specs.names import STREAM, STREAM_REMEDY
from latecomer.specs.reader import Reader

FORMATS = ("csv", "parquet", "json")
TIME_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000}
"""What numbers in the two time columns may count since 1970, in microseconds."""
_ENDINGS = (".yaml", ".yml")


def is_zone(name: str) -> bool:
    """Is it a time zone that the JVM knows too?"""
    return name in _zones()


@cache
def _zones() -> frozenset[str]:
    from zoneinfo import available_timezones

    return frozenset(available_timezones() - {"localtime", "Factory"})


def file_of(folder: Path, name: str) -> Path | None:
    """The file of a stream, or of ``_by_<column>``; None where it has none."""
    return next((path for ending in _ENDINGS if (path := folder / f"{name}{ending}").is_file()), None)


def files(folder: Path) -> list[Path]:
    """All stream files of a folder, sorted."""
    inside = folder.iterdir() if folder.is_dir() else ()
    return sorted(each for each in inside if each.suffix in _ENDINGS and each.is_file())


def load_stream(path: Path) -> dict[str, Any]:
    """What a stream file states, by the names of `IngestOptions`' fields; durations in microseconds.

    Raises
    ------
    SpecError
        Whatever is wrong with the file or its name: one line with file, key, value and remedy.
    """
    if not STREAM.fullmatch(path.stem.removeprefix("_by_")):
        raise SpecError(str(path), "", path.stem, "is no name of a stream", f"{STREAM_REMEDY}; or _by_ and a column")
    if (other := file_of(path.parent, path.stem)) != path:
        raise SpecError(str(path), "", None, f"is of the same stream as {other}", "remove one of them")
    return load_mapping(path, _options)


def _options(reader: Reader) -> dict[str, Any]:
    found = {
        "format": _one_of(reader, "format", FORMATS),
        "event_column": reader.text("event_column", None),
        "arrival_column": reader.text("arrival_column", None),
        "timezone": reader.text("timezone", None),
        "time_unit": _one_of(reader, "time_unit", TIME_UNITS),
        "max_future_us": reader.duration("max_future", None),
        "max_quarantined": reader.number("max_quarantined", None, low=0, high=1),
        "recursive": reader.take("recursive", None),
    }
    zone, recursive = found["timezone"], found["recursive"]
    if zone is not None and not is_zone(zone):
        raise reader.fail("timezone", zone, "is not a time zone", "write one such as Europe/Berlin")
    if not (recursive is None or isinstance(recursive, bool)):
        raise reader.fail("recursive", recursive, "must be true or false", "write true or false")
    reader.done()
    return {key: value for key, value in found.items() if value is not None}


def _one_of(reader: Reader, name: str, words: Iterable[str]) -> str | None:
    value = reader.take(name, None)
    if value is None or (isinstance(value, str) and value in words):
        return value
    raise reader.fail(name, value, "is unknown here", did_you_mean(str(value), words))
