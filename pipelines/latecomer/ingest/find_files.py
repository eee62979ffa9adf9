"""Landing files: found, told apart by their content, read."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import pyarrow as pa

from latecomer.ingest.source_file import LandingFile, look, unreachable
from latecomer.ingest.text_parser import FileProblem
from latecomer.lake.errors import InputError

SUFFIXES = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
GZIP = b"\x1f\x8b"
PIECE_BYTES = 1 << 20


def find(paths: Sequence[str], forced: str | None, recursive: bool = False) -> tuple[list[LandingFile], list[str]]:
    """Files in the order given, a folder's in name order; and what is left out of it: files whose format is not known, and folders.

    Hidden files (names with a dot in front) are no data: file systems and editors keep notes in them; nor are folders whose names
    begin with ``_``, where others keep theirs. With a `forced` format a folder's other files all count; `recursive` looks into its folders
    too, all the way down, and takes the files in order of their paths.

    Raises
    ------
    InputError
        A path that does not exist or cannot be read, or a file given by name whose format is not known.
    """
    found: list[LandingFile] = []
    others: list[str] = []
    folders: list[str] = []
    for text in paths:
        if not text:
            raise InputError("PATH", text, "names no file and no folder", "check the path (is a variable unset?)")
        with readable(text):
            there = look(text, recursive)
        if there is None:
            raise InputError(text, None, "no such file or folder", "check the path")
        if isinstance(there, LandingFile):
            if format_of(there, forced) is None:
                problem, remedy = "the format does not follow from the suffix", "say --format csv, json or parquet"
                raise InputError(str(there), PurePosixPath(there.name).suffix, problem, remedy)
            found.append(there)
            continue
        found += [file for file in there.files if format_of(file, forced)]
        others += [str(file) for file in there.files if not format_of(file, forced)]
        others += there.paths
        folders += there.folders
    if not found and folders:
        problem = f"holds no file that can be ingested, but folders ({', '.join(folders[:3])}{', ...' if len(folders) > 3 else ''})"
        raise InputError(
            " ".join(paths),
            None,
            problem,
            "files are read from a folder itself: name those folders, or say --recursive",
        )
    if not found:
        raise InputError(
            " ".join(paths), None, "holds no file that can be ingested", "expected .csv, .json(l) or .parquet"
        )
    return found, others


@contextlib.contextmanager
def readable(path: object) -> Iterator[None]:
    """What the operating system or a store refuses (permissions, a broken disk, a name too long) is a problem of the path, in one line."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        if not isinstance(error, OSError) or (isinstance(path, LandingFile) and not path.is_local):
            raise unreachable(str(path), error) from None
        where = str(error.filename or path)
        raise InputError(where, None, f"cannot be read ({error.strerror or error})", "check its permissions") from None


def format_of(path: LandingFile, forced: str | None) -> str | None:
    """csv, json or parquet: the `forced` one, else by the suffix; None where that does not say."""
    suffixes = [suffix for suffix in map(str.lower, path.suffixes) if suffix != ".gz"]
    return forced or (SUFFIXES.get(suffixes[-1]) if suffixes else None)


def digest(path: LandingFile, options: str) -> str:
    """SHA-256 of a file's content and of the options that change what it means."""
    hasher = hashlib.sha256(options.encode())
    with path.opened() as handle:
        while block := handle.read(PIECE_BYTES):
            hasher.update(block)
    return hasher.hexdigest()


def content(path: LandingFile) -> Iterator[bytes]:
    """The file from its beginning, piece by piece; gzip is taken apart, also where the suffix does not say so.

    Raises
    ------
    FileProblem
        It cannot be read.
    """
    try:
        with path.opened() as handle:
            begins = io.BufferedReader(handle, PIECE_BYTES)
            packed = begins.peek(len(GZIP))[: len(GZIP)] == GZIP or path.name.lower().endswith(".gz")
            with gzip.open(begins) if packed else contextlib.nullcontext(begins) as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise FileProblem(f"cannot be read ({error})", "check the file") from None
