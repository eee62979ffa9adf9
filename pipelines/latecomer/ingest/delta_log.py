"""Read the log of a Delta table, and plan which files hold the rows of its versions, without a JVM.

The log holds one JSON file per version: the actions of a commit. A commit appends rows if it adds files with data and
removes none. Checkpoints, which replace commits that the log's retention removed, are read by delta-rs.

References
----------
Delta Transaction Log Protocol, https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from latecomer.lake.errors import InputError
from latecomer.lake.storage import Storage, told
from latecomer.specs.errors import quantity

READERS = 16
"""Files of the log, and footers of data files, that are read at a time."""
PHYSICAL_NAME = "delta.columnMapping.physicalName"
"""Key of a field's metadata: its name in files."""
_COMMIT = re.compile(r"(\d{20})\.json")
_KNOWN_FEATURES = {
    "columnmapping",
    "deletionvectors",
    "timestampntz",
    "timestampwithouttimezone",
    "typewidening",
    "typewideningpreview",
    "v2checkpoint",
    "vacuumprotocolcheck",
}
"""Features of tables that readers must know and that are known here, in lower case."""


@dataclass(frozen=True)
class Metadata:
    """The metadata of a table at a version.

    Attributes
    ----------
    table_id
        The identifier that the table got when it was made.
    schema
        The columns, as JSON.
    partition_columns
        Columns whose values are in the log and not in the files.
    configuration
        The table's properties.
    """

    table_id: str
    schema: str
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str]

    @property
    def has_change_feed(self) -> bool:
        """Whether a commit that changes rows writes down the changes."""
        return self.configuration.get("delta.enableChangeDataFeed", "").lower() == "true"

    @property
    def physical_names(self) -> dict[str, str]:
        """The names of columns in files and in the log, by their names in the table, where they may differ."""
        if self.mapping_mode == "none":
            return {}
        fields = json.loads(self.schema)["fields"]
        return {field["name"]: field["metadata"].get(PHYSICAL_NAME, field["name"]) for field in fields}

    @property
    def mapping_mode(self) -> str:
        """The way to find columns in files: by their names (``none``), by physical names (``name``) or by ``id``."""
        return self.configuration.get("delta.columnMapping.mode", "none").lower()


@dataclass(frozen=True)
class FileAction:
    """A file that a commit adds, with rows of the table or with changes of rows.

    Attributes
    ----------
    path
        The path as the log has it: encoded as a URI, relative to the table or absolute.
    values
        Partition values as text, by the physical names of their columns.
    size
        Bytes.
    rows
        Number of rows in the file; None: the log has no statistics.
    has_vector
        Are some of its rows marked as deleted?
    """

    path: str
    values: Mapping[str, str | None]
    size: int
    rows: int | None
    has_vector: bool = False


@dataclass(frozen=True)
class Commit:
    """The actions of one version that concern rows.

    Attributes
    ----------
    operation
        What the writer says it did, such as ``WRITE`` or ``MERGE``.
    time_us
        The time of the commit, us since 1970: by the commit itself, else that of its file.
    added
        Files with new rows.
    moved
        Files that hold rows which other files held before (``OPTIMIZE``).
    removed
        Paths of removed files whose rows are gone or changed.
    removed_all
        Paths of all removed files.
    changes
        Files of the change data feed.
    metadata
        The table's new metadata; None: they are unchanged.
    """

    version: int
    operation: str
    time_us: int
    added: tuple[FileAction, ...]
    moved: tuple[FileAction, ...]
    removed: frozenset[str]
    removed_all: frozenset[str]
    changes: tuple[FileAction, ...]
    metadata: Metadata | None

    @property
    def keeps_rows(self) -> bool:
        """Whether the rows after the commit are the same as before."""
        return not (self.added or self.removed or self.changes)

    @property
    def is_append(self) -> bool:
        """Whether the rows of the added files are new, and all earlier rows unchanged.

        RESTORE adds files again whose rows the table had before.
        """
        has_vectors = any(file.has_vector for file in self.added)
        return bool(self.added) and not self.removed and not has_vectors and self.operation != "RESTORE"


@dataclass(frozen=True)
class PlannedFile:
    """A file whose rows are read.

    Attributes
    ----------
    path
        Its place as Spark names it.
    part
        Number of the part of the content that its rows belong to.
    before
        Rows of the part in the files before this one.
    arrived_us
        The time of the commit that added the rows, not before that of any earlier commit.
    values
        Partition values as text, by the physical names of their columns.
    rows
        Number of rows in the file.
    metadata
        The table's metadata at that version.
    is_changes
        Is it a file of the change data feed, whose inserted rows alone are read?
    """

    path: str
    part: int
    before: int
    arrived_us: int
    values: Mapping[str, str | None]
    rows: int
    metadata: Metadata
    is_changes: bool = False


@dataclass(frozen=True)
class VersionPlan:
    """The files of the versions that a call ingests.

    Attributes
    ----------
    first
        The first version; None: the rows are those of `last`, whatever versions added them.
    last
        The last version.
    last_us
        Its time, not before that of any earlier version.
    parts
        Names of the parts: one per version with rows.
    metadata
        The table's metadata at the last version.
    deleted
        Rows of the files that are marked as deleted: ``path`` as in the files, and ``row``, counted from 0 in the
        file. None: there are none.
    """

    first: int | None
    last: int
    last_us: int
    parts: list[str]
    files: list[PlannedFile]
    metadata: Metadata
    deleted: pa.Table | None = None

    @property
    def digest(self) -> str:
        """A text that tells the content from any other."""
        return f"delta:{self.metadata.table_id}:{'all' if self.first is None else self.first}..{self.last}"


class DeltaLog:
    """The log of a Delta table.

    Parameters
    ----------
    uri
        A folder or ``s3://BUCKET/KEY``.
    name
        The table's name in messages.

    Raises
    ------
    InputError
        There is no Delta table, or it cannot be read.
    """

    def __init__(self, uri: str, name: str) -> None:
        self.name = name
        try:
            self.storage = Storage(unquote(re.sub("^file:/+", "/", uri)) if uri.startswith("file:") else uri)
        except InputError as error:
            raise InputError(f"table {name}", error.value, error.problem, error.remedy) from None
        with self.reading("the log"):
            self.filesystem, self.root = self.storage.filesystem()
            selector = fs.FileSelector(f"{self.root}/_delta_log", allow_not_found=True)
            entries = self.filesystem.get_file_info(selector)
        if not entries:
            remedy = "write the folder of a Delta table, s3://BUCKET/KEY, or CATALOG.SCHEMA.TABLE"
            raise InputError(f"table {name}", self.storage.uri, "is no Delta table", remedy)
        matches = ((_COMMIT.fullmatch(entry.base_name), entry) for entry in entries)
        self.entries = {int(match[1]): entry for match, entry in matches if match}
        self.current = max(self.entries, default=-1)
        if self.current < 0:
            self.current = self.open(None).version()

    @contextmanager
    def reading(self, part: str) -> Iterator[None]:
        """Turn an error of reading into an InputError."""
        try:
            yield
        except (OSError, pa.ArrowException, DeltaError, ValueError) as error:
            remedy = "check the table and its permissions" if self.storage.is_local else self.storage.remedy(error)
            problem = f"{part} cannot be read ({told(error, 300)})"
            raise InputError(f"table {self.name}", None, problem, remedy) from None

    def open(self, version: int | None) -> DeltaTable:
        """Open a version by delta-rs."""
        with self.reading("it" if version is None else f"version {version}"):
            return DeltaTable(self.storage.uri, version=version, storage_options=self.storage.delta_options or None)

    @cached_property
    def newest(self) -> DeltaTable:
        """The current version.

        Raises
        ------
        InputError
            Its readers must know something that is not known here.
        """
        table = self.open(self.current)
        features = [str(feature) for feature in table.protocol().reader_features or []]
        unknown = [name for name in features if re.sub("[^a-z0-9]", "", name.lower()) not in _KNOWN_FEATURES]
        if unknown:
            problem, remedy = f"readers must know {', '.join(unknown)}, which is not known here", "copy it to a table"
            raise InputError(f"table {self.name}", None, problem, f"{remedy} without that feature")
        return table

    def metadata(self, version: int) -> Metadata:
        """Return the metadata at a version."""
        table = self.newest if version == self.current else self.open(version)
        with self.reading(f"the schema of version {version}"):
            meta = table.metadata()
            columns = tuple(meta.partition_columns)
            return Metadata(str(meta.id), table.schema().to_json(), columns, dict(meta.configuration or {}))

    def commits(self, versions: Iterable[int]) -> list[Commit]:
        """Read the commits of versions whose files exist, in their order."""
        with self.reading("the log"), ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(self._commit, sorted(versions)))

    def _commit(self, version: int) -> Commit:
        entry = self.entries[version]
        with self.filesystem.open_input_stream(entry.path) as stream:
            text = stream.read().decode("utf-8")
        return parse_commit(version, text, (entry.mtime_ns or 0) // 1000)

    def live_files(self, latest: Mapping[str, FileAction], metadata: Metadata) -> Iterator[tuple[FileAction, int]]:
        """Yield the files of the current version, with the times at which they were written (us since 1970).

        Parameters
        ----------
        latest
            Files by path as commits of the log name them; a checkpoint has partition values as they are typed.
        """
        with self.reading("the list of its files"):
            names = ["path", "size_bytes", "modification_time", "num_records"]
            table = pa.table(self.newest.get_add_actions(flatten=False))
            files = table.select(names).to_pylist()
            typed = table["partition"].combine_chunks() if metadata.partition_columns else None
            texts: list[list[str | None]] = []
            if typed is not None:
                texts = [_as_text(typed.field(column)) for column in metadata.partition_columns]
        keys = [metadata.physical_names.get(column, column) for column in metadata.partition_columns]
        for place, row in enumerate(files):
            values = {key: text[place] for key, text in zip(keys, texts, strict=True)}
            if row["path"] in latest:
                values = dict(latest[row["path"]].values)
            file = FileAction(row["path"], values, row["size_bytes"], row["num_records"])
            yield file, row["modification_time"] * 1000

    def deleted_rows(self) -> pa.Table:
        """Return the rows of the current version's files that are marked as deleted, by ``path`` and ``row``."""
        paths, rows = [], []
        try:
            for batch in self.newest.deletion_vectors():
                for path, keeps in zip(*pa.record_batch(batch).columns, strict=True):
                    deleted = np.flatnonzero(~keeps.values.to_numpy(zero_copy_only=False))
                    rows.append(deleted)
                    paths.append(pa.repeat(self.spark_path(path.as_py()), len(deleted)))
        except (OSError, pa.ArrowException, DeltaError, ValueError) as error:
            text = " ".join(str(error).split())[:200]
            remedy = f"run REORG TABLE {sql_name(self)} APPLY (PURGE), which writes its files without these rows"
            problem = f"has deletion vectors that cannot be read ({text})"
            raise InputError(f"table {self.name}", None, problem, remedy) from None
        paths_type = pa.chunked_array(paths, pa.string())
        return pa.table({"path": paths_type, "row": pa.array(np.concatenate([np.zeros(0, np.int64), *rows]))})

    # -------------------------------------------------------------------------------- data files

    def place(self, path: str) -> str:
        """Return the place of a file in the file system of the table, by its path in the log."""
        decoded = unquote(path)
        if re.match("file:/", decoded):
            decoded = re.sub("^file:/+", "/", decoded)
        is_uri = re.match("[A-Za-z][A-Za-z0-9+.-]*://", decoded)
        store = self.storage.store
        if is_uri and (store is None or decoded.partition("://")[0] not in store.schemes):
            problem = "lies in another store than the table"
            raise InputError(f"table {self.name}", decoded, problem, "copy the table (a deep clone)")
        if is_uri:
            return decoded.partition("://")[2]
        return decoded if decoded.startswith("/") and self.storage.is_local else f"{self.root}/{decoded}"

    def spark_path(self, path: str) -> str:
        """Return the place of a file as Spark names it, by its path in the log."""
        store = self.storage.store
        return self.place(path) if store is None else f"{store.spark_scheme()}://{self.place(path)}"

    def _place_of(self, spark_path: str) -> str:
        """Return the place of a file in the file system of the table, by its place as Spark names it."""
        return spark_path if self.storage.is_local else spark_path.partition("://")[2]

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Return those of the places of files, as Spark names them, at which no file is."""
        places = list(map(self._place_of, paths))
        slices = [places[start : start + 256] for start in range(0, len(places), 256)]
        with self.reading("its files"), ThreadPoolExecutor(READERS) as pool:
            infos = [info for part in pool.map(self.filesystem.get_file_info, slices) for info in part]
        return [info.path for info in infos if info.type != fs.FileType.File]

    def count_rows(self, paths: list[str]) -> list[int]:
        """Return the numbers of rows that the footers of files at these places state."""
        with self.reading("its files"), ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(self._rows_in_footer, map(self._place_of, paths)))

    def _rows_in_footer(self, path: str) -> int:
        return int(pq.read_metadata(path, filesystem=self.filesystem).num_rows)


def _as_text(values: pa.Array) -> list[str | None]:
    """Return partition values as a log has them."""
    return cast("list[str | None]", values.cast(pa.string()).to_pylist())


def parse_commit(version: int, text: str, file_us: int) -> Commit:
    """Parse the file of a commit; `file_us` is its time where no action tells it.

    Raises
    ------
    ValueError
        It is no commit.
    """
    lists: dict[str, list[dict[str, Any]]] = {"add": [], "remove": [], "cdc": []}
    info: dict[str, Any] = {}
    metadata = None
    for line in text.splitlines():
        for kind, action in (json.loads(line) if line.strip() else {}).items():
            if kind in lists:
                lists[kind].append(action)
            elif kind == "commitInfo":
                info = action or {}
            elif kind == "metaData":
                columns = tuple(action.get("partitionColumns") or ())
                metadata = Metadata(action["id"], action["schemaString"], columns, action.get("configuration") or {})
    time_ms = info.get("inCommitTimestamp") or info.get("timestamp")
    removed_all = frozenset(action["path"] for action in lists["remove"])
    return Commit(
        version,
        str(info.get("operation") or "unknown operation"),
        file_us if time_ms is None else int(time_ms) * 1000,
        tuple(_file_action(action) for action in lists["add"] if action.get("dataChange", True)),
        tuple(_file_action(action) for action in lists["add"] if not action.get("dataChange", True)),
        frozenset(action["path"] for action in lists["remove"] if action.get("dataChange", True)),
        removed_all,
        tuple(_file_action(action) for action in lists["cdc"]),
        metadata,
    )


def _file_action(action: dict[str, Any]) -> FileAction:
    statistics = json.loads(action.get("stats") or "{}")
    values = action.get("partitionValues") or {}
    has_vector = action.get("deletionVector") is not None
    return FileAction(action["path"], values, int(action.get("size") or 0), statistics.get("numRecords"), has_vector)


# -------------------------------------------------------------------------------- plans


class _Planner:
    """Files in the order of their rows, in parts."""

    def __init__(self, log: DeltaLog) -> None:
        self.log = log
        self.parts: list[str] = []
        self._files: list[tuple[FileAction, int, int, Metadata, bool]] = []

    def add(self, part: str, files: Iterable[tuple[FileAction, int]], metadata: Metadata, is_changes: bool) -> None:
        """Add files, with their arrival times, as a part."""
        entries = [(file, len(self.parts), time_us, metadata, is_changes) for file, time_us in files]
        if entries:
            self.parts.append(part)
            self._files += entries

    def files(self) -> list[PlannedFile]:
        """Return the files with the places of their first rows.

        Raises
        ------
        InputError
            A file is gone.
        """
        paths = [self.log.spark_path(entry[0].path) for entry in self._files]
        if gone := self.log.missing(paths):
            raise vacuumed(self.log, gone)
        uncounted = [path for path, entry in zip(paths, self._files, strict=True) if entry[0].rows is None]
        counts = dict(zip(uncounted, self.log.count_rows(uncounted), strict=True))
        planned: list[PlannedFile] = []
        before, last_part = 0, -1
        for path, (file, part, time_us, metadata, is_changes) in zip(paths, self._files, strict=True):
            before, last_part = (before if part == last_part else 0), part
            rows = counts[path] if file.rows is None else file.rows
            planned.append(PlannedFile(path, part, before, time_us, file.values, rows, metadata, is_changes))
            before += rows
        return planned


def vacuumed(log: DeltaLog, gone: list[str]) -> InputError:
    """Return the error that files with rows to ingest are gone."""
    problem = f"{quantity(len(gone), 'file')} with rows that were not ingested yet {'is' if len(gone) == 1 else 'are'} "
    remedy = (
        "restore the files, or ingest the table as it is now as a stream of another name; ingest more often than "
        "VACUUM removes files"
    )
    return InputError(f"table {log.name}", gone[0], f"{problem}gone (VACUUM removes what the table replaced)", remedy)


def plan_start(log: DeltaLog) -> VersionPlan:
    """Plan the first ingestion of a table: the rows that it has now, in the order in which versions added them.

    Where the log tells every version and none took rows away, and all files still exist, the files that the versions
    added are read, so rows that OPTIMIZE moved keep their place and time. Else the files of the current version are
    read, in the order of the versions that added them; files of versions that the log does not hold any more come
    first, by the time at which they were written.
    """
    commits = log.commits(log.entries)
    times = _rising_times(commits, 0)
    metadata = log.metadata(log.current)
    last_us = times.get(log.current, 0)
    whole = len(commits) == log.current + 1 and all(commit.keeps_rows or commit.is_append for commit in commits)
    if whole and not log.missing(log.spark_path(file.path) for commit in commits for file in commit.added):
        planner = _Planner(log)
        for commit in commits:
            files = ((file, times[commit.version]) for file in commit.added)
            planner.add(f"version {commit.version}", files, metadata, is_changes=False)
        return VersionPlan(0, log.current, last_us, planner.parts, planner.files(), metadata)
    return _plan_snapshot(log, commits, times, metadata)


def _plan_snapshot(log: DeltaLog, commits: list[Commit], times: Mapping[int, int], metadata: Metadata) -> VersionPlan:
    """Plan the files of the current version."""
    adding: dict[str, tuple[int, int]] = {}  # path -> version and place in its commit, of the first known add
    latest: dict[str, FileAction] = {}
    for commit in commits:
        for place, file in enumerate((*commit.added, *commit.moved)):
            # a file that is removed and added at once gets marks of deleted rows; its rows are older
            adding.setdefault(file.path, (-1 if file.path in commit.removed_all else commit.version, place))
            latest[file.path] = file
    known: dict[int, list[tuple[int, FileAction]]] = {}
    unknown: list[tuple[int, FileAction]] = []
    live = list(log.live_files(latest, metadata))
    for file, written_us in live:
        version, place = adding.get(file.path, (-1, 0))
        if version < 0:
            unknown.append((written_us, file))
        else:
            known.setdefault(version, []).append((place, file))
    planner = _Planner(log)
    first_known = min(known, default=log.current + 1)
    latest_us = times.get(first_known)
    unknown.sort(key=lambda entry: (entry[0], entry[1].path))
    written = ((file, time if latest_us is None else min(time, latest_us)) for time, file in unknown)
    planner.add("files of earlier versions", written, metadata, is_changes=False)
    for version in sorted(known):
        in_commit = sorted(known[version], key=lambda entry: entry[0])
        files = ((file, times[version]) for _, file in in_commit)
        planner.add(f"version {version}", files, metadata, is_changes=False)
    last_us = max([times.get(log.current, 0), *(time for time, _ in unknown[-1:] if latest_us is None)])
    planned = planner.files()
    has_vectors = any(file.path not in latest or latest[file.path].has_vector for file, _ in live)
    deleted = log.deleted_rows() if has_vectors else None
    return VersionPlan(None, log.current, last_us, planner.parts, planned, metadata, deleted)


def plan_next(log: DeltaLog, after: int, after_us: int, on_change: str, progress: Callable[[str], None]) -> VersionPlan:
    """Plan the versions beyond `after`, whose time was `after_us`.

    Raises
    ------
    InputError
        Versions are gone from the log, files are gone, or a version changes rows and `on_change` does not allow it.
    """
    _refuse_gap(log, after)
    commits = log.commits(range(after + 1, log.current + 1))
    times = _rising_times(commits, after_us)
    planner = _Planner(log)
    latest = log.metadata(log.current)
    metadata = None if any(commit.metadata for commit in commits) else latest
    for commit in commits:
        metadata = commit.metadata or metadata
        if commit.keeps_rows:
            continue
        metadata = metadata or log.metadata(after)
        files, is_changes = _rows_of(log, commit, metadata, on_change, progress)
        timed = ((file, times[commit.version]) for file in files)
        planner.add(f"version {commit.version}", timed, metadata, is_changes)
    return VersionPlan(after + 1, log.current, times.get(log.current, after_us), planner.parts, planner.files(), latest)


def _rows_of(
    log: DeltaLog, commit: Commit, metadata: Metadata, on_change: str, progress: Callable[[str], None]
) -> tuple[tuple[FileAction, ...], bool]:
    """Return the files with the inserted rows of a commit, and whether they are of the change data feed."""
    if commit.is_append:
        return commit.added, False
    version = f"version {commit.version} ({commit.operation})"
    where = f"table {log.name}"
    if on_change == "skip":
        progress(f"ingest: {where}: {version} changes rows and is passed over (on_change: skip)")
        return (), False
    if on_change == "refuse":
        remedy = (
            "with on_change: insert_only the rows that such versions insert come in (the table needs its change data "
            "feed), with on_change: skip the versions are passed over; or ingest the table as it is now as a stream of "
            "another name"
        )
        raise InputError(where, None, f"{version} changes or deletes rows, and a stream is never changed", remedy)
    if commit.added and not metadata.has_change_feed:
        remedy = (
            f"ALTER TABLE {sql_name(log)} SET TBLPROPERTIES (delta.enableChangeDataFeed = true) tells the rows of "
            "later versions; for this one write on_change: skip, or ingest the table as it is now as a stream of "
            "another name"
        )
        problem = f"{version} changes rows, and the change data feed that tells the inserted ones was off"
        raise InputError(where, None, problem, remedy)
    if not (commit.added or commit.changes):
        return (), False
    progress(f"ingest: {where}: {version} changes rows; the rows that it inserts are taken (on_change: insert_only)")
    if commit.changes:
        return commit.changes, True
    if any(file.has_vector for file in commit.added):
        problem = f"{version} brings back files with deleted rows, and its change data feed has no files"
        raise InputError(where, None, problem, "write on_change: skip, or ingest the table as a stream of another name")
    return commit.added, False  # where no file of changes was written, all rows of added files were inserted


def sql_name(log: DeltaLog) -> str:
    """Return the name of a table in Spark's SQL."""
    return log.name if re.fullmatch(r"[\w`]+(\.[\w`]+)+", log.name) else f"delta.`{log.storage.uri}`"


def _refuse_gap(log: DeltaLog, after: int) -> None:
    """Refuse versions that the log does not hold any more."""
    where = f"table {log.name}"
    if log.current < after:
        problem = f"is at version {log.current}, and version {after} of it was ingested before"
        remedy = "if it was put back to an earlier state, ingest it as a stream of another name"
        raise InputError(where, None, problem, remedy)
    gone = [version for version in range(after + 1, log.current + 1) if version not in log.entries]
    if gone:
        problem = f"{_ranges(gone)} not ingested yet, and gone from its log"
        remedy = (
            "restore the files of the log, or ingest the table as it is now as a stream of another name; ingest more "
            "often than delta.logRetentionDuration"
        )
        raise InputError(where, None, problem, remedy)


def _ranges(versions: list[int]) -> str:
    """Write rising numbers of versions as ranges, the first three.

    >>> _ranges([3, 4, 5, 9])
    'versions 3 to 5, 9 are'
    >>> _ranges([7])
    'version 7 is'
    """
    spans: list[list[int]] = []
    for version in versions:
        if spans and spans[-1][1] == version - 1:
            spans[-1][1] = version
        else:
            spans.append([version, version])
    texts = [str(low) if low == high else f"{low} to {high}" for low, high in spans]
    named = ", ".join(texts[:3]) + (", ..." if len(texts) > 3 else "")
    return f"version {named} is" if len(versions) == 1 else f"versions {named} are"


def _rising_times(commits: list[Commit], before_us: int) -> dict[int, int]:
    """Return the times of commits by version, none before that of an earlier one."""
    times: dict[int, int] = {}
    latest = before_us
    for commit in commits:
        times[commit.version] = latest = max(latest, commit.time_us)
    return times
