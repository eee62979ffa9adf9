"""Where the tables of a lake are: a local directory or a bucket of an S3-compatible store.

Layout: ``<lake>/<area>/<name>`` is one Delta table. Areas that a query's user reads: ``events``, ``quarantine`` (by
stream), ``on_time``, ``corrections``, ``backfill``, ``late``, ``ledger`` (by query). Areas the product keeps for itself: ``state``,
``journal``, ``repair_journal``, ``repairs``, ``parameters``, ``checks``, ``forgetting`` (by query), ``ingest`` (by lake), ``lease`` (by
purpose).
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from deltalake import DeltaTable
from pyarrow import fs

from latecomer.lake.errors import InputError

AREAS = (
    "events",
    "quarantine",
    "on_time",
    "corrections",
    "backfill",
    "late",
    "ledger",
    "state",
    "journal",
    "repair_journal",
    "repairs",
    "parameters",
    "ingest",
    "lease",
    "checks",
    "forgetting",
)


_UNUSABLE = re.compile(r"[\[\]^|\\]|%[0-9A-Fa-f]{2}")
"""What delta-rs ends in a panic over, or takes for something else, in a path."""


def region() -> str:
    """Region of the object store, by the two names that its tools know; stores of one's own have any."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


STORE_REMEDY = "check the bucket, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION"


def object_store() -> fs.S3FileSystem:
    """The object store that the environment names; paths in it are ``BUCKET/KEY``."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    parts = urlsplit(endpoint) if endpoint else None
    return fs.S3FileSystem(
        region=region(),
        **({"endpoint_override": parts.netloc, "scheme": parts.scheme} if parts else {}),
    )


class Lake:
    """A lake by its URI.

    Parameters
    ----------
    uri
        A local path, ``file://`` URI, or ``s3://BUCKET/PREFIX`` (``s3a://`` is the same). The store's address and
        credentials come from the usual environment: ``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``,
        ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION`` or ``AWS_DEFAULT_REGION``.
    """

    def __init__(self, uri: str) -> None:
        self.held: dict[str, DeltaTable | None] | None = None
        self.ingested: set[int] = set()
        text = str(uri)
        if not text.strip():
            raise InputError(
                "--lake", text, "names no place", "write a folder, for example ./lake (is a variable unset?)"
            )
        scheme = urlsplit(text).scheme if "://" in text else ""
        if not scheme and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
            meant = text.replace(":/", ":///" if text.startswith("file:") else "://", 1)
            raise InputError("--lake", text, "is neither a path nor a URI", f"write {meant}")
        if scheme in ("s3", "s3a"):
            self.uri = "s3://" + text.split("://", 1)[1].rstrip("/")
            if not urlsplit(self.uri).netloc:
                raise InputError("--lake", text, "has no bucket name", "write s3://BUCKET/PREFIX")
            if "//" in self.uri.removeprefix("s3://"):
                raise InputError("--lake", text, "holds an empty name, between two slashes", "write s3://BUCKET/PREFIX")
            self._refuse_unusable("prefix")
            self.is_local = False
        elif scheme in ("", "file"):
            try:
                path = Path(text[len("file://") :] if scheme else text).expanduser()
                if path.exists() and not path.is_dir():
                    raise InputError("--lake", text, "is a file", "give a directory")
                self.uri = str(path.resolve())
            except (OSError, RuntimeError) as error:
                # a name too long, a folder that may not be looked into; the home of a user that does not exist
                problem = (getattr(error, "strerror", None) or str(error)).rstrip(".")
                raise InputError("--lake", text, f"cannot be used ({problem})", "give another directory") from None
            self._refuse_unusable("directory")
            self.is_local = True
        else:
            raise InputError(
                "--lake", text, f"the scheme {scheme!r} is not supported", "use a local path or s3://BUCKET/PREFIX"
            )

    def _refuse_unusable(self, place: str) -> None:
        unusable = _UNUSABLE.search(self.uri)
        if unusable:
            problem = f"holds {unusable[0]!r}, which the path of a Delta table cannot"
            raise InputError("--lake", self.uri, problem, f"choose another {place}")

    def __repr__(self) -> str:
        return f"Lake({self.uri!r})"

    def holding(self) -> Lake:
        """The same lake for a reader of events that were there before it began: it opens the table of a stream once, and not for every read."""
        found = Lake(self.uri)
        found.held, found.ingested = {}, self.ingested
        return found

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return Lake, (self.uri,)

    @property
    def storage_options(self) -> dict[str, str]:
        """Options for delta-rs; empty for a local lake."""
        if self.is_local:
            return {}
        options = {"AWS_REGION": region(), "AWS_CONDITIONAL_PUT": "etag"}
        endpoint = os.environ.get("AWS_ENDPOINT_URL")
        if endpoint:
            options["AWS_ENDPOINT_URL"] = endpoint
            options["AWS_ALLOW_HTTP"] = str(endpoint.startswith("http://")).lower()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            if os.environ.get(name):
                options[name] = os.environ[name]
        return options

    def table(self, area: str, name: str) -> str:
        """URI of one table, for delta-rs (Spark wants :meth:`spark_path`)."""
        if area not in AREAS:
            raise ValueError(f"no such area: {area}")
        return f"{self.uri}/{area}/{name}"

    def spark_path(self, area: str, name: str) -> str:
        """The same table as Spark's file systems name it."""
        return self.spark_uri(self.table(area, name))

    @staticmethod
    def spark_uri(uri: str) -> str:
        """A path or URI in the lake as Spark's file systems name it."""
        return "s3a://" + uri[len("s3://") :] if uri.startswith("s3://") else uri

    def exists(self, area: str, name: str) -> bool:
        """Is there a Delta table at this place?

        Raises
        ------
        InputError
            The store does not answer, refuses the credentials, or has no such bucket.
        """
        if self.is_local:
            return Path(self.table(area, name), "_delta_log").is_dir() and DeltaTable.is_deltatable(
                self.table(area, name)
            )
        try:
            return DeltaTable.is_deltatable(self.table(area, name), storage_options=self.storage_options)
        except OSError as error:
            raise InputError(
                f"lake {self.uri}",
                None,
                f"the object store cannot be used ({' '.join(str(error).split())[:400]})",
                STORE_REMEDY,
            ) from None

    def unwritable(self) -> str | None:
        """Why nothing can be written to a local lake, before delta-rs tries it and panics; None if it seems possible, or is in a store."""
        if not self.is_local:
            return None
        place = next(each for each in (Path(self.uri), *Path(self.uri).parents) if each.exists())
        if os.access(place, os.W_OK | os.X_OK):
            return None
        return os.strerror(errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES)

    def names(self, area: str) -> list[str]:
        """Tables of an area, sorted."""
        filesystem, root = self.filesystem()
        base = f"{root}/{area}"
        infos = filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True))
        found = [info.base_name for info in infos if info.type == fs.FileType.Directory]
        return sorted(name for name in found if self.exists(area, name))

    def filesystem(self) -> tuple[fs.FileSystem, str]:
        """File system of the lake, and the lake's place in it: for files that are not tables."""
        if self.is_local:
            return fs.LocalFileSystem(), self.uri
        return object_store(), self.uri[len("s3://") :]
