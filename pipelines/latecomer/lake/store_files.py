"""A store's files as a file system of PyArrow, reached by delta-rs: with one login for tables and for other files."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs


class StoreFiles(fs.FileSystemHandler):  # type: ignore[misc]  # PyArrow states no types
    """The files of all buckets of a store; the first part of a path is the bucket.

    A store may keep folders of their own, as empty files by their names or without any file in them. They are told from
    files, and :meth:`delete_dir` deletes them, too.

    Parameters
    ----------
    scheme
        The scheme of the store's URIs, as delta-rs knows it.
    options
        The options of delta-rs for the store.
    """

    def __init__(self, scheme: str, options: dict[str, str]) -> None:
        self._scheme, self._options = scheme, options
        self._buckets: dict[str, DeltaStorageHandler] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreFiles) and (self._scheme, self._options) == (other._scheme, other._options)

    __hash__ = None  # type: ignore[assignment]

    def _within(self, path: str) -> tuple[DeltaStorageHandler, str, str]:
        """Return the bucket of a path, its name and the key within it."""
        name, _, key = path.strip("/").partition("/")
        if name not in self._buckets:
            self._buckets[name] = DeltaStorageHandler(f"{self._scheme}://{name}", self._options)
        return self._buckets[name], name, key

    def get_type_name(self) -> str:
        """Return the name of this kind of file system."""
        return self._scheme

    def normalize_path(self, path: str) -> str:
        """Return a path as it is."""
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        """Return whether files or folders are at paths, and the sizes and times of the files."""
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> fs.FileInfo:
        bucket, name, key = self._within(path)
        if key:
            (info,) = bucket.get_file_info([key])
            if info.is_file and not info.size:
                inside = bucket.get_file_info_selector(fs.FileSelector(key, allow_not_found=True))
                if any(entry.path.strip("/") != key for entry in inside):
                    return fs.FileInfo(path, fs.FileType.Directory)
            return _at(name, info)
        try:
            bucket.get_file_info_selector(fs.FileSelector("", allow_not_found=False))
        except FileNotFoundError:
            return fs.FileInfo(path, fs.FileType.NotFound)
        return fs.FileInfo(path, fs.FileType.Directory)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """Return what is in a folder."""
        bucket, name, key = self._within(selector.base_dir)
        chosen = fs.FileSelector(key, allow_not_found=selector.allow_not_found, recursive=selector.recursive)
        infos = [info for info in bucket.get_file_info_selector(chosen) if info.path.strip("/") != key]
        folders = {info.path.strip("/") for info in infos if info.type == fs.FileType.Directory}
        return [_at(name, info) for info in infos if not (info.is_file and info.path in folders)]

    def create_dir(self, path: str, recursive: bool) -> None:
        """Return at once: a folder comes with its first file."""

    def delete_dir(self, path: str) -> None:
        """Delete a folder with all that it holds."""
        bucket, _, key = self._within(path)
        bucket.delete_dir(key)
        left = bucket.get_file_info_selector(fs.FileSelector(key, allow_not_found=True, recursive=True))
        for folder in sorted({info.path for info in left} | {key}, key=len, reverse=True):
            with contextlib.suppress(FileNotFoundError):
                bucket.delete_file(folder)  # refused unless it is empty

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        """Delete all that a folder holds."""
        bucket, _, key = self._within(path)
        bucket.delete_dir_contents(key, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        """Refuse to delete all buckets."""
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        """Delete a file."""
        bucket, _, key = self._within(path)
        bucket.delete_file(key)

    def move(self, src: str, dest: str) -> None:
        """Refuse to move a file, which many stores cannot."""
        raise NotImplementedError

    def copy_file(self, src: str, dest: str) -> None:
        """Refuse to copy a file within the store."""
        raise NotImplementedError

    def open_input_stream(self, path: str) -> pa.PythonFile:
        """Open a file to be read from its beginning."""
        bucket, _, key = self._within(path)
        return bucket.open_input_stream(key)

    def open_input_file(self, path: str) -> pa.PythonFile:
        """Open a file to be read at any place."""
        bucket, _, key = self._within(path)
        return bucket.open_input_file(key)

    def open_output_stream(self, path: str, metadata: Any) -> pa.PythonFile:
        """Open a file to be written; it is there once it is closed."""
        bucket, _, key = self._within(path)
        return pa.PythonFile(_Output(bucket._handler.open_output_stream(key, None)), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> pa.PythonFile:
        """Refuse to append to a file, which many stores cannot."""
        raise NotImplementedError


class _Output(io.RawIOBase):
    """A file of delta-rs that is written to: delta-rs takes bytes, and PyArrow gives buffers of its own."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return int(self._file.write(bytes(data)))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _at(bucket: str, info: fs.FileInfo) -> fs.FileInfo:
    """Return what is known of a file, by its path in the store instead of that in its bucket."""
    path = f"{bucket}/{info.path.strip('/')}"
    if info.type != fs.FileType.File:
        return fs.FileInfo(path, info.type)
    return fs.FileInfo(path, info.type, size=info.size, mtime_ns=info.mtime_ns)
