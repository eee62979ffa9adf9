"""A landing file in a local or mounted folder, or as an object in a bucket of an S3-compatible store.

The store's address and credentials come from the environment (:func:`latecomer.lake.storage.object_store`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs

from latecomer.lake.errors import InputError
from latecomer.lake.storage import STORE_REMEDY, object_store

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
        Its full name: an absolute path, or ``s3://BUCKET/KEY``.
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
        return self.store, self.place.removeprefix("s3://")

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """Open the stored bytes from the beginning; OSError where the file cannot be read."""
        if self.store is None:
            with open(self.text, "rb") as handle:
                yield handle
            return
        store, key = self.source
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
    """A folder's files and the names of its folders, in the order of names.

    Hidden ones and folders whose names begin with ``_`` are left out.

    A folder that was searched recursively has the files of its folders among its own. Of its folders only links remain,
    which may lead back.
    """

    text: str
    files: list[LandingFile]
    folders: list[str]

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
    if scheme not in ("s3", "s3a"):
        raise InputError("PATH", text, f"the scheme {scheme!r} is not supported", "use a local path or s3://BUCKET/KEY")
    key = rest.rstrip("/")
    if not key or key.startswith("/"):
        raise InputError("PATH", text, "has no bucket name", "write s3://BUCKET/KEY")
    if "//" in key:
        raise InputError("PATH", text, "holds an empty name, between two slashes", "write s3://BUCKET/KEY")
    try:
        return _object(key, recursive, rest.endswith("/"))
    except (OSError, pa.ArrowException) as error:
        raise unreachable(text, error) from None


def look_into(text: str, recursive: bool = False) -> Folder:
    """Return the folder at a path or URI; an empty one where there is none. Errors are those of `look`."""
    there = look(f"{text.rstrip('/')}/", recursive)
    return there if isinstance(there, Folder) else Folder(text, [], [])


def unreachable(text: str, error: Exception) -> InputError:
    """Return the error of a store that does not answer, refuses the credentials, or has no such bucket."""
    said = " ".join(str(error).split())[:400]
    return InputError(text, None, f"the object store cannot be used ({said})", STORE_REMEDY)


def _local(text: str, recursive: bool) -> LandingFile | Folder | None:
    path = Path(text)
    if path.is_dir():
        inside = sorted(each for each in path.iterdir() if each.name[0] != ".")
        files = [LandingFile(str(each), str(each.resolve())) for each in inside if each.is_file()]
        folders = [each.name for each in inside if each.name[0] != "_" and each.is_dir()]
        if not recursive:
            return Folder(text, files, folders)
        links = [name for name in folders if (path / name).is_symlink()]
        for name in folders:
            if name not in links and isinstance(within := _local(str(path / name), True), Folder):
                files += within.files
                links += [f"{name}/{link}" for link in within.folders]
        return Folder(text, sorted(files, key=str), links)
    return LandingFile(text, str(path.resolve())) if path.is_file() else None


def _object(key: str, recursive: bool, folder: bool) -> LandingFile | Folder | None:
    """Return the object or folder of a key; `folder`: a folder is meant, not an object of the same name."""
    store = object_store()

    def of(info: fs.FileInfo) -> LandingFile:
        return LandingFile(f"s3://{info.path}", f"s3://{info.path}", store, _marks(info))

    there = store.get_file_info(key)
    if there.type == fs.FileType.File and not folder:
        return of(there)
    if there.type == fs.FileType.NotFound:
        bucket = key.partition("/")[0]
        if store.get_file_info(bucket).type == fs.FileType.NotFound:
            raise FileNotFoundError(f"there is no bucket {bucket}")
        return None
    inside = sorted(store.get_file_info(fs.FileSelector(key, recursive=recursive)), key=lambda info: info.path)
    parts = [(info, info.path.removeprefix(f"{key}/").split("/")) for info in inside]
    seen = [info for info, names in parts if names[-1][:1] not in ("", ".") and not _notes(names[:-1])]
    files = [of(info) for info in seen if info.type == fs.FileType.File]
    folders = [info.base_name for info in seen if info.type == fs.FileType.Directory and not _notes([info.base_name])]
    return Folder(f"s3://{key}", files, [] if recursive else folders)


def _notes(folders: list[str]) -> bool:
    """Return whether one of these folders holds notes of other tools, not data."""
    return any(name[:1] in ("", ".", "_") for name in folders)


def _marks(info: fs.FileInfo) -> tuple[int, int]:
    return info.size or 0, info.mtime_ns or 0
