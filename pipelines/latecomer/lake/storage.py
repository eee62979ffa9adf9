"""A place that holds Delta tables: a local folder, or a prefix of a bucket in an S3-compatible store."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from pyarrow import fs

from latecomer.lake import certificates
from latecomer.lake.errors import InputError

STORE_REMEDY = "check the bucket, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION"
AUTHORITY_REMEDY = "name the authority of the store's certificate in AWS_CA_BUNDLE (a PEM file)"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""What delta-rs writes into errors for terminals."""
_UNUSABLE = re.compile(r"[\[\]^|\\]|%[0-9A-Fa-f]{2}")
"""Parts of a path over which delta-rs panics, or which it takes for something else."""


def told(error: Exception, most: int = 400) -> str:
    """Return the text of an error in one line of at most so many letters."""
    return " ".join(_COLOUR.sub("", str(error)).split())[:most]


def store_remedy(error: Exception) -> str:
    """Return what to do about an error of an object store."""
    return AUTHORITY_REMEDY if "certificate" in str(error).lower() else STORE_REMEDY


def escape_pattern(path: str) -> str:
    """Escape the characters of a path that Spark would take for a pattern (``data[1].json``)."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", path)


def region() -> str:
    """Return the region of the object store, by either name that its tools know; a private store has any region."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def object_store() -> fs.S3FileSystem:
    """Return the object store that the environment names; paths in it are ``BUCKET/KEY``."""
    endpoint, authorities = os.environ.get("AWS_ENDPOINT_URL"), certificates.bundle()
    trusted = {} if authorities is None else {"tls_ca_file_path": authorities}
    if not endpoint:
        return fs.S3FileSystem(region=region(), **trusted)
    parts = urlsplit(endpoint)
    return fs.S3FileSystem(region=region(), endpoint_override=parts.netloc, scheme=parts.scheme, **trusted)


def spark_uri(uri: str) -> str:
    """Return a path or URI as Spark's file systems name it."""
    return "s3a://" + uri.removeprefix("s3://") if uri.startswith("s3://") else uri


class Storage:
    """A place by its URI.

    Parameters
    ----------
    uri
        A local path, a ``file://`` URI, or ``s3://BUCKET/PREFIX`` (``s3a://`` means the same). The store's address and
        credentials come from the usual environment variables: ``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``,
        ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION`` or ``AWS_DEFAULT_REGION``, and ``AWS_CA_BUNDLE``
        (:mod:`latecomer.lake.certificates`).

    Attributes
    ----------
    uri : str
        The absolute path, or ``s3://BUCKET/PREFIX`` without a slash at its end.
    is_local : bool
        Does it lie in a local or mounted folder?

    Raises
    ------
    InputError
        The URI names no place that can hold a lake.
    """

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        text = str(uri)
        if not text.strip():
            remedy = "write a folder, for example ./lake (is a variable unset?)"
            raise InputError("--lake", text, "names no place", remedy)
        scheme = urlsplit(text).scheme if "://" in text else ""
        if not scheme and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
            meant = text.replace(":/", ":///" if text.startswith("file:") else "://", 1)
            raise InputError("--lake", text, "is neither a path nor a URI", f"write {meant}")
        self.is_local = scheme in ("", "file")
        if self.is_local:
            self.uri = _local_path(text, text.removeprefix("file://") if scheme else text)
        elif scheme in ("s3", "s3a"):
            self.uri = _bucket_prefix(text)
        else:
            remedy = "use a local path or s3://BUCKET/PREFIX"
            raise InputError("--lake", text, f"the scheme {scheme!r} is not supported", remedy)
        if unusable := _UNUSABLE.search(self.uri):
            problem = f"holds {unusable[0]!r}, which the path of a Delta table cannot"
            raise InputError(
                "--lake", self.uri, problem, f"choose another {'directory' if self.is_local else 'prefix'}"
            )

    @property
    def delta_options(self) -> dict[str, str]:
        """Options with which delta-rs reaches the place; empty for a local one."""
        if self.is_local:
            return {}
        certificates.bundle()
        options = {"AWS_REGION": region(), "AWS_CONDITIONAL_PUT": "etag"}
        endpoint = os.environ.get("AWS_ENDPOINT_URL")
        if endpoint:
            options["AWS_ENDPOINT_URL"] = endpoint
            options["AWS_ALLOW_HTTP"] = str(endpoint.startswith("http://")).lower()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            if os.environ.get(name):
                options[name] = os.environ[name]
        return options

    def filesystem(self) -> tuple[fs.FileSystem, str]:
        """Return the file system of the place, and the path of the place in it, for files that are not tables."""
        if self.is_local:
            return fs.LocalFileSystem(), self.uri
        return object_store(), self.uri.removeprefix("s3://")

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


def _bucket_prefix(text: str) -> str:
    uri = "s3://" + text.split("://", 1)[1].rstrip("/")
    if not urlsplit(uri).netloc:
        raise InputError("--lake", text, "has no bucket name", "write s3://BUCKET/PREFIX")
    if "//" in uri.removeprefix("s3://"):
        raise InputError("--lake", text, "holds an empty name, between two slashes", "write s3://BUCKET/PREFIX")
    return uri
