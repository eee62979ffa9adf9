"""Find landing files, compute the digests of their content, and read their bytes."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import pyarrow as pa

from latecomer.ingest.source_file import Folder, LandingFile, look, table_around, unreachable
from latecomer.lake.errors import InputError

SUFFIXES = {
    **{".csv": "csv", ".tsv": "csv"},
    **{".json": "json", ".jsonl": "json", ".ndjson": "json"},
    ".parquet": "parquet",
}
PACKED_SUFFIXES = (".gz", ".bz2", ".zst", ".xz", ".zip")
"""Suffixes of compressed files, which follow that of the format."""
_PIECE_BYTES = 1 << 20


def find(paths: Sequence[str], forced: str | None, recursive: bool = False) -> tuple[list[LandingFile], list[str]]:
    """Find the files at paths: in the order given, and those of a folder in the natural order of their names.

    Hidden files, whose names begin with a dot, are no data: file systems and editors keep notes in them. Nor are
    folders whose names begin with ``_``, in which other tools keep notes, nor files of a folder whose names say that
    they are still written.

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
        Files of folders that are not complete or whose format is not known, and folders.

    Raises
    ------
    InputError
        A path does not exist or cannot be read, is part of a table of a table format, or the format of a file given by
        name is not known.
    """
    tables_known: dict[str, str | None] = {}
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
        _refuse_table(entry, tables_known)
        if isinstance(entry, LandingFile):
            if format_of(entry, forced) is None:
                problem, remedy = "the format does not follow from the suffix", "say --format csv, json or parquet"
                raise InputError(str(entry), PurePosixPath(entry.name).suffix, problem, remedy)
            files.append(entry)
            continue
        files += [file for file in entry.files if format_of(file, forced)]
        left_out += [str(file) for file in entry.files if not format_of(file, forced)]
        left_out += [*entry.unfinished, *entry.paths]
        folders += entry.folders
    if not files and folders:
        some = f"{', '.join(folders[:3])}{', ...' if len(folders) > 3 else ''}"
        remedy = "files are read from a folder itself: name those folders, or say --recursive"
        raise InputError(" ".join(paths), None, f"holds no file that can be ingested, but folders ({some})", remedy)
    if not files:
        remedy = "expected .csv, .json(l) or .parquet, and names of files that are complete"
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


def _refuse_table(entry: LandingFile | Folder, known: dict[str, str | None]) -> None:
    """Refuse the files of a table format, which hold deleted rows and earlier versions too."""
    table = table_around(entry, known)
    if table is None:
        return
    path, mark = table
    name, remedy = _TABLE_FORMATS[mark]
    problem = f"is part of {name} table: {path} holds {mark}, and its files are not its rows"
    raise InputError(str(entry) if isinstance(entry, LandingFile) else entry.text, None, problem, remedy.format(path))


_EXPORT = "export its rows to files outside of {}"
_TABLE_FORMATS = {
    "_delta_log": ("a Delta", "write source: delta, table: {} in the stream file"),
    ".hoodie": ("a Hudi", _EXPORT),
    "metadata": ("an Iceberg", _EXPORT),
}


def format_of(path: LandingFile, forced: str | None) -> str | None:
    """Return csv, json or parquet: the `forced` format, else the one of the suffix; None where that tells none."""
    suffixes = [suffix for suffix in map(str.lower, path.suffixes) if suffix not in PACKED_SUFFIXES]
    return forced or (SUFFIXES.get(suffixes[-1]) if suffixes else None)


def digest(path: LandingFile, options: str) -> str:
    """Return the SHA-256 of a file's content and of the options that change its meaning."""
    hasher = hashlib.sha256(options.encode())
    with path.opened() as handle:
        while block := handle.read(_PIECE_BYTES):
            hasher.update(block)
    return hasher.hexdigest()
