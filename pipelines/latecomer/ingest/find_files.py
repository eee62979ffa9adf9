"""Find landing files, compute the digests of their content, and read their bytes."""

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
    """Find the files at paths: in the order given, and those of a folder in the order of their names.

    Hidden files, whose names begin with a dot, are no data: file systems and editors keep notes in them. Nor are
    folders whose names begin with ``_``, in which other tools keep notes.

    Parameters
    ----------
    forced
        The format of all files; None: as their suffixes tell.
    recursive
        Take the files in folders of folders too, in the order of their paths.

    Returns
    -------
    files
        The files to ingest.
    left_out
        Files of folders whose format is not known, and folders.

    Raises
    ------
    InputError
        A path does not exist or cannot be read, or the format of a file given by name is not known.
    """
    files: list[LandingFile] = []
    left_out: list[str] = []
    folders: list[str] = []
    for text in paths:
        if not text:
            raise InputError("PATH", text, "names no file and no folder", "check the path (is a variable unset?)")
        with readable(text):
            entry = look(text, recursive)
        if entry is None:
            raise InputError(text, None, "no such file or folder", "check the path")
        if isinstance(entry, LandingFile):
            if format_of(entry, forced) is None:
                problem, remedy = "the format does not follow from the suffix", "say --format csv, json or parquet"
                raise InputError(str(entry), PurePosixPath(entry.name).suffix, problem, remedy)
            files.append(entry)
            continue
        files += [file for file in entry.files if format_of(file, forced)]
        left_out += [str(file) for file in entry.files if not format_of(file, forced)]
        left_out += entry.paths
        folders += entry.folders
    if not files and folders:
        some = f"{', '.join(folders[:3])}{', ...' if len(folders) > 3 else ''}"
        remedy = "files are read from a folder itself: name those folders, or say --recursive"
        raise InputError(" ".join(paths), None, f"holds no file that can be ingested, but folders ({some})", remedy)
    if not files:
        remedy = "expected .csv, .json(l) or .parquet"
        raise InputError(" ".join(paths), None, "holds no file that can be ingested", remedy)
    return files, left_out


@contextlib.contextmanager
def readable(path: object) -> Iterator[None]:
    """Turn an error of the operating system or of a store (permissions, disk, name) into an InputError of the path."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        if not isinstance(error, OSError) or (isinstance(path, LandingFile) and not path.is_local):
            raise unreachable(str(path), error) from None
        where = str(error.filename or path)
        raise InputError(where, None, f"cannot be read ({error.strerror or error})", "check its permissions") from None


def format_of(path: LandingFile, forced: str | None) -> str | None:
    """Return csv, json or parquet: the `forced` format, else the one of the suffix; None where that tells none."""
    suffixes = [suffix for suffix in map(str.lower, path.suffixes) if suffix != ".gz"]
    return forced or (SUFFIXES.get(suffixes[-1]) if suffixes else None)


def digest(path: LandingFile, options: str) -> str:
    """Return the SHA-256 of a file's content and of the options that change its meaning."""
    hasher = hashlib.sha256(options.encode())
    with path.opened() as handle:
        while block := handle.read(PIECE_BYTES):
            hasher.update(block)
    return hasher.hexdigest()


def content(path: LandingFile) -> Iterator[bytes]:
    """Yield the file's bytes piece by piece from the beginning; gzip is decompressed, whatever the suffix.

    Raises
    ------
    FileProblem
        The file cannot be read.
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
