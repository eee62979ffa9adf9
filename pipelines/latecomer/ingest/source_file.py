"""A landing file in a local or mounted folder, or as an object in a bucket of a store.

A store's address and credentials come from the environment (:mod:`latecomer.lake.stores`).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs

from latecomer.lake.errors import InputError
from latecomer.lake.storage import told
from latecomer.lake.stores import Store, store_at, store_of
from latecomer.specs.streams import is_unfinished

READ_AHEAD = 1 << 24
"""Bytes of an object that are requested at a time."""
_SETTLED_S = {True: 10.0, False: 60.0}
"""Seconds after which a file's times tell it from later content, by whether it is local.

File systems count in ticks of up to two seconds, and stores in seconds, by clocks of their own.
"""


@dataclass(frozen=True)
class LandingFile:
    """One file or object.

    Attributes
    ----------
    text
        The name under which it was given, for messages and for quarantine.
    place
        Its full name: an absolute path, or a URI as ``s3://BUCKET/KEY``.
    store
        The bucket's file system; None for a local file.
    listed
        Size in bytes and time in ns since 1970 of an object when it was listed.
    """

    text: str
    place: str
    store: fs.FileSystem | None = field(default=None, compare=False, repr=False)
    listed: tuple[int, int] = field(default=(0, 0), compare=False, repr=False)

    @property
    def is_as_listed(self) -> bool:
        """Is an object still as it was listed? True for a local file, whose times tell."""
        return self.store is None or self.stamp()[1:] == self.listed

    def __str__(self) -> str:
        return self.text

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.text).name

    @property
    def suffixes(self) -> list[str]:
        """The suffixes of the name, each with its dot."""
        return PurePosixPath(self.text).suffixes

    @property
    def is_local(self) -> bool:
        """Does it lie in a local or mounted folder, where Spark's processes find it too?"""
        return self.store is None

    @property
    def source(self) -> tuple[fs.FileSystem, str]:
        """The file system, and the path in it."""
        if self.store is None:
            return fs.LocalFileSystem(), self.place
        return self.store, self.place.partition("://")[2]

    @contextlib.contextmanager
    def opened(self, seekable: bool = False) -> Iterator[Any]:
        """Open the stored bytes from the beginning; OSError where the file cannot be read."""
        if self.store is None:
            with open(self.text, "rb") as handle:
                yield handle
            return
        store, key = self.source
        if seekable:
            with store.open_input_file(key) as handle:
                yield handle
            return
        with store.open_input_stream(key, compression=None, buffer_size=READ_AHEAD) as stream:
            yield stream

    def size(self) -> int:
        """Return the size in bytes; OSError where the file is gone."""
        if self.store is None:
            return os.stat(self.text).st_size
        return self.listed[0]

    def stamp(self) -> tuple[int, int, int]:
        """Return a mark that differs once the file was written to or replaced; zeros where it is gone."""
        try:
            if self.store is None:
                found = os.stat(self.text)
                return found.st_ino, found.st_size, found.st_mtime_ns
            store, key = self.source
            return 0, *_marks(store.get_file_info(key))
        except OSError:
            return 0, 0, 0

    def marks(self) -> tuple[int, ...]:
        """Return the marks that differ between a file and its later content.

        Of an object they are size and time as listed, of a local file device, inode, size and two times. Times are in
        ns since 1970 and come last. OSError where the file is gone.
        """
        if self.store is not None:
            return self.listed
        found = os.stat(self.text)
        # any change sets the last one, also a change of the other time
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def stat_fingerprint(self) -> str | None:
        """Return a text that tells the file from its later content without reading it.

        None where its times are too recent for that, or the file is gone.
        """
        try:
            marks = self.marks()
        except OSError:
            return None
        changed_ns = max(marks[-2:] if self.is_local else marks[-1:])
        settled = changed_ns > 0 and time.time() - changed_ns / 1e9 > _SETTLED_S[self.is_local]
        return " ".join([self.place, *map(str, marks)]) if settled else None


@dataclass(frozen=True)
class Folder:
    """A folder's files and the names of its folders, in the natural order of names.

    Hidden ones and folders whose names begin with ``_`` are left out.

    A folder that was searched recursively has the files of its folders among its own. Of its folders only links remain,
    which may lead back.

    Attributes
    ----------
    unfinished
        Files whose names say that they are still written; they are not among the files.
    tables
        Folders in it, or the folder itself, that are tables of a table format: path and the name that tells.
    """

    text: str
    files: list[LandingFile]
    folders: list[str]
    unfinished: list[str] = field(default_factory=list)
    tables: list[tuple[str, str]] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """The paths of the folders."""
        return [f"{self.text.rstrip('/')}/{name}" for name in self.folders]


def look(text: str, recursive: bool = False) -> LandingFile | Folder | None:
    """Return the file or folder at a path or URI, searched recursively with `recursive`; None where there is none.

    Raises
    ------
    OSError
        The place may not be read.
    InputError
        The URI names neither a local file nor an object of a bucket.
    """
    scheme, _, rest = text.partition("://")
    if "://" not in text:
        return _local(text, recursive)
    if scheme == "file":
        if not rest:
            raise InputError("PATH", text, "names no file and no folder", "write file:///FOLDER")
        return _local(rest, recursive)
    store = store_of("PATH", text, "a local path")
    key = store.path("PATH", text)
    try:
        return _object(store, key, recursive, rest.endswith("/"))
    except (OSError, pa.ArrowException) as error:
        raise unreachable(text, error) from None


def look_into(text: str, recursive: bool = False) -> Folder:
    """Return the folder at a path or URI; an empty one where there is none. Errors are those of `look`."""
    there = look(f"{text.rstrip('/')}/", recursive)
    return there if isinstance(there, Folder) else Folder(text, [], [])


def unreachable(text: str, error: Exception) -> InputError:
    """Return the error of a store that does not answer, refuses the credentials, or has no such bucket."""
    store = store_of("PATH", text, "a local path")
    return InputError(text, None, f"the store cannot be used ({told(error)})", store.remedy(error))


def natural_order(path: str) -> tuple[list[list[str | int]], str]:
    """Return a key that orders paths by their parts, and numbers in the parts by their values.

    >>> sorted(["a-10.csv", "a-2.csv", "a-02.csv"], key=natural_order)
    ['a-02.csv', 'a-2.csv', 'a-10.csv']
    """
    parts = (re.split("([0-9]+)", part) for part in path.split("/"))
    return [[int(piece) if place % 2 else piece for place, piece in enumerate(part)] for part in parts], path


def table_around(entry: LandingFile | Folder, known: dict[str, str | None]) -> tuple[str, str] | None:
    """Return the table of a table format that a file or folder is part of: its path and the name that tells.

    `known` keeps the answers for the folders above, which files share.
    """
    if isinstance(entry, Folder) and entry.tables:
        return entry.tables[0]
    place = entry.place if isinstance(entry, LandingFile) else entry.text
    store = store_at(place)
    above = Path(place).resolve() if store is None else PurePosixPath(place.partition("://")[2])
    for folder in map(str, above.parents):
        name = folder if store is None else store.uri(folder)
        if name not in known:
            known[name] = _table_mark(Path(folder)) if store is None else _table_mark_of_key(store, folder)
        if mark := known[name]:
            return name, mark
    return None


_TABLE_MARKS = ("_delta_log", ".hoodie")
"""Folders in which Delta and Hudi keep the log of a table."""
_ICEBERG_MARK = "metadata"
_ICEBERG_FILE = ".metadata.json"


def _table_mark(folder: Path) -> str | None:
    """Return the name of the folder that makes this one a table, in which not every file is part of the content."""
    for mark in _TABLE_MARKS:
        if os.path.isdir(folder / mark):
            return mark
    with contextlib.suppress(OSError):
        if any(_ICEBERG_FILE in name for name in os.listdir(folder / _ICEBERG_MARK)):
            return _ICEBERG_MARK
    return None


def _table_mark_of_key(kind: Store, key: str) -> str | None:
    """Return the mark of a table in a bucket; None also where the store does not let it be seen."""
    if key == ".":
        return None
    store = kind.files()
    with contextlib.suppress(OSError, pa.ArrowException):
        infos = store.get_file_info([f"{key}/{mark}" for mark in _TABLE_MARKS])
        for mark, info in zip(_TABLE_MARKS, infos, strict=True):
            if info.type == fs.FileType.Directory:
                return mark
        listed = store.get_file_info(fs.FileSelector(f"{key}/{_ICEBERG_MARK}", allow_not_found=True))
        return _ICEBERG_MARK if any(_ICEBERG_FILE in info.base_name for info in listed) else None
    return None


def _local(text: str, recursive: bool) -> LandingFile | Folder | None:
    path = Path(text)
    if path.is_dir():
        inside = sorted(
            (entry for entry in path.iterdir() if entry.name[0] != "."), key=lambda entry: natural_order(entry.name)
        )
        files = [LandingFile(str(entry), str(entry.resolve())) for entry in inside if entry.is_file()]
        folders = [entry.name for entry in inside if entry.name[0] != "_" and entry.is_dir()]
        mark = _table_mark(path)
        tables = [(text, mark)] if mark else []
        unfinished = [str(file) for file in files if is_unfinished(file.name)]
        files = [file for file in files if not is_unfinished(file.name)]
        if not recursive:
            return Folder(text, files, folders, unfinished, tables)
        links = [name for name in folders if (path / name).is_symlink()]
        for name in folders:
            if name not in links and isinstance(within := _local(str(path / name), True), Folder):
                files += within.files
                links += [f"{name}/{link}" for link in within.folders]
                unfinished += within.unfinished
                tables += within.tables
        return Folder(text, sorted(files, key=lambda file: natural_order(str(file))), links, unfinished, tables)
    return LandingFile(text, str(path.resolve())) if path.is_file() else None


def _object(kind: Store, key: str, recursive: bool, folder: bool) -> LandingFile | Folder | None:
    """Return the object or folder of a key; `folder`: a folder is meant, not an object of the same name."""
    store, place = kind.files(), kind.uri(key)

    def of(info: fs.FileInfo) -> LandingFile:
        return LandingFile(kind.uri(info.path), kind.uri(info.path), store, _marks(info))

    there = store.get_file_info(key)
    if there.type == fs.FileType.File and not folder:
        return of(there)
    if there.type == fs.FileType.NotFound:
        bucket = key.partition("/")[0]
        if store.get_file_info(bucket).type == fs.FileType.NotFound:
            raise FileNotFoundError(f"there is no {kind.part} {bucket}")
        return None
    listed = store.get_file_info(fs.FileSelector(key, recursive=recursive))
    inside = sorted(listed, key=lambda info: natural_order(info.path))
    parts = [(info, info.path.removeprefix(f"{key}/").split("/")) for info in inside]
    seen = [info for info, names in parts if names[-1][:1] not in ("", ".") and not _notes(names[:-1])]
    files = [of(info) for info in seen if info.type == fs.FileType.File]
    unfinished = [str(file) for file in files if is_unfinished(file.name)]
    files = [file for file in files if not is_unfinished(file.name)]
    folders = [info.base_name for info in seen if info.type == fs.FileType.Directory and not _notes([info.base_name])]
    if recursive:
        tables = [table for info, names in parts if (table := _table_of_object(place, info, names))]
    else:
        mark = _table_mark_of_key(kind, key)
        tables = [(place, mark)] if mark else []
    return Folder(place, files, [] if recursive else folders, unfinished, tables)


def _table_of_object(folder: str, info: fs.FileInfo, names: list[str]) -> tuple[str, str] | None:
    """Return the table that an entry of a folder makes of one of the folders above it, and the name that tells."""
    folders = names if info.type == fs.FileType.Directory else names[:-1]
    mark = next((mark for mark in _TABLE_MARKS if mark in folders), None)
    if mark is None and folders[-1:] == [_ICEBERG_MARK] and folders != names and _ICEBERG_FILE in names[-1]:
        mark = _ICEBERG_MARK
        return "/".join([folder, *folders[:-1]]), mark
    return ("/".join([folder, *folders[: folders.index(mark)]]), mark) if mark else None


def _notes(folders: list[str]) -> bool:
    """Return whether one of these folders holds notes of other tools, not data."""
    return any(name[:1] in ("", ".", "_") for name in folders)


def _marks(info: fs.FileInfo) -> tuple[int, int]:
    return info.size or 0, info.mtime_ns or 0
