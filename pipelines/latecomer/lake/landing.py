"""Landing files: found, told apart by their content, read."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from latecomer.core.landing import FileProblem
from latecomer.lake.errors import InputError

SUFFIXES = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
GZIP = b"\x1f\x8b"
PIECE_BYTES = 1 << 20


def find(paths: Sequence[str], forced: str | None) -> tuple[list[Path], list[Path]]:
    """Files in the order given, a folder's in name order; and what is left out of it: files whose format is not known, and folders.

    Hidden files (names with a dot in front) are no data: file systems and editors keep notes in them; nor are folders whose names
    begin with ``_``, where others keep theirs. With a `forced` format a folder's other files all count.

    Raises
    ------
    InputError
        A path that does not exist or cannot be read, or a file given by name whose format is not known.
    """
    found: list[Path] = []
    others: list[Path] = []
    for text in paths:
        if not text:
            raise InputError("PATH", text, "names no file and no folder", "check the path (is a variable unset?)")
        path = Path(text)
        with readable(path):
            if path.is_dir():
                inside = sorted(p for p in path.iterdir() if p.is_file() and p.name[0] != ".")
                found += [p for p in inside if format_of(p, forced)]
                others += [p for p in inside if not format_of(p, forced)]
                others += sorted(p for p in path.iterdir() if p.is_dir() and p.name[0] not in "._")
            elif path.is_file():
                found.append(path)
            else:
                raise InputError(text, None, "no such file or folder", "check the path")
    for path in found:
        if format_of(path, forced) is None:
            raise InputError(
                str(path),
                path.suffix,
                "the format does not follow from the suffix",
                "say --format csv, json or parquet",
            )
    folders = [path.name for path in others if path.is_dir()]
    if not found and folders:
        problem = f"holds no file that can be ingested, but folders ({', '.join(folders[:3])}{', ...' if len(folders) > 3 else ''})"
        raise InputError(" ".join(paths), None, problem, "files are read from a folder itself: name those folders")
    if not found:
        raise InputError(
            " ".join(paths), None, "holds no file that can be ingested", "expected .csv, .json(l) or .parquet"
        )
    return found, others


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """What the operating system refuses (permissions, a broken disk, a name too long) is a problem of the path, in one line."""
    try:
        yield
    except OSError as error:
        where = str(error.filename or path)
        raise InputError(where, None, f"cannot be read ({error.strerror or error})", "check its permissions") from None


def format_of(path: Path, forced: str | None) -> str | None:
    """csv, json or parquet: the `forced` one, else by the suffix; None where that does not say."""
    suffixes = [suffix for suffix in map(str.lower, path.suffixes) if suffix != ".gz"]
    return forced or (SUFFIXES.get(suffixes[-1]) if suffixes else None)


def digest(path: Path, options: str) -> str:
    """SHA-256 of a file's content and of the options that change what it means."""
    hasher = hashlib.sha256(options.encode())
    with open(path, "rb") as handle:
        while block := handle.read(PIECE_BYTES):
            hasher.update(block)
    return hasher.hexdigest()


def content(path: Path) -> Iterator[bytes]:
    """The file from its beginning, piece by piece; gzip is taken apart, also where the suffix does not say so.

    Raises
    ------
    FileProblem
        It cannot be read.
    """
    try:
        with open(path, "rb") as handle:
            packed = handle.read(len(GZIP)) == GZIP or path.suffix.lower() == ".gz"
            handle.seek(0)
            with gzip.open(handle) if packed else contextlib.nullcontext(handle) as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece
    except (OSError, EOFError, zlib.error) as error:
        raise FileProblem(f"cannot be read ({error})", "check the file") from None
