"""A place that holds Delta tables: a local folder, or a prefix of a bucket in a store."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from latecomer.lake.errors import InputError
from latecomer.lake.stores import Store, store_at, store_of

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""What delta-rs writes into errors for terminals."""
_UNUSABLE = re.compile(r"[\[\]^|\\]|%[0-9A-Fa-f]{2}")
"""Parts of a path over which delta-rs panics, or which it takes for something else."""


def told(error: Exception, most: int = 400) -> str:
    """Return the text of an error in one line of at most so many letters."""
    return " ".join(_COLOUR.sub("", str(error)).split())[:most]


def escape_pattern(path: str) -> str:
    """Escape the characters of a path that Spark would take for a pattern (``data[1].json``)."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", path)


def spark_uri(uri: str) -> str:
    """Return a path or URI as Spark's file systems name it."""
    store = store_at(uri)
    return uri if store is None else f"{store.spark_scheme()}://{uri.partition('://')[2]}"


def lake_uri(uri: str) -> str:
    """Return a path or URI of Spark's file systems as lakes name places."""
    if uri.startswith("file:"):
        return str(Path(unquote(urlsplit(uri).path)))
    store = store_at(uri)
    return uri if store is None else store.uri(uri.partition("://")[2])


class Storage:
    """A place by its URI.

    Parameters
    ----------
    uri
        A local path, a ``file://`` URI, or a place in one of the stores (:mod:`latecomer.lake.stores`), as
        ``s3://BUCKET/PREFIX``. A store's address and credentials come from the usual variables of the environment.

    Attributes
    ----------
    uri : str
        The absolute path, or a URI as ``s3://BUCKET/PREFIX``, without a slash at its end.
    store : Store or None
        The store that it lies in; None for a local or mounted folder.

    Raises
    ------
    InputError
        The URI names no place that can hold a lake.
    """

    store: Store | None

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        text = str(uri)
        if not text.strip():
            remedy = "write a folder, for example ./lake (is a variable unset?)"
            raise InputError("--lake", text, "names no place", remedy)
        scheme = urlsplit(text).scheme if "://" in text else ""
        if not scheme and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
            meant = text.replace(":/", ":///" if text.startswith("file:") else "://", 1)
            raise InputError("--lake", text, "is neither a path nor a URI", f"write {meant}")
        self.store = None if scheme in ("", "file") else store_of("--lake", text, "a local path")
        if self.store is None:
            self.uri = _local_path(text, text.removeprefix("file://") if scheme else text)
        else:
            self.uri = self.store.uri(self.store.path("--lake", text))
        letters = "" if self.store is None else self.store.unusable
        unusable = _UNUSABLE.search(self.uri) or (letters and re.search(f"[{letters}]", self.uri))
        if unusable:
            problem = f"holds {unusable[0]!r}, which the path of a Delta table cannot"
            raise InputError(
                "--lake", self.uri, problem, f"choose another {'directory' if self.is_local else 'prefix'}"
            )

    @property
    def is_local(self) -> bool:
        """Whether it lies in a local or mounted folder."""
        return self.store is None

    @property
    def delta_options(self) -> dict[str, str]:
        """Options with which delta-rs reaches the place; empty for a local one."""
        return {} if self.store is None else self.store.delta_options()

    def filesystem(self) -> tuple[fs.FileSystem, str]:
        """Return the file system of the place, and the path of the place in it, for files that are not tables."""
        if self.store is None:
            return fs.LocalFileSystem(), self.uri
        return self.store.files(), self.uri.partition("://")[2]

    def remedy(self, error: object = "") -> str:
        """Return what to do where the place cannot be written to, or its store reports an error."""
        return "choose a place that this user may write to" if self.store is None else self.store.remedy(error)

    def unwritable(self) -> str | None:
        """Return the reason why a local place cannot be written to; None where it seems possible, or lies in a store.

        delta-rs panics where it tries.
        """
        if not self.is_local:
            return None
        place = next(folder for folder in (Path(self.uri), *Path(self.uri).parents) if folder.exists())
        if os.access(place, os.W_OK | os.X_OK):
            return None
        return os.strerror(errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES)


def _local_path(text: str, path_text: str) -> str:
    try:
        path = Path(path_text).expanduser()
        if path.exists() and not path.is_dir():
            raise InputError("--lake", text, "is a file", "give a directory")
        return str(path.resolve())
    except (OSError, RuntimeError) as error:
        # the name is too long, the folder may not be read, or its user's home does not exist
        problem = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        raise InputError("--lake", text, f"cannot be used ({problem})", "give another directory") from None
