"""A handle of one Delta table, read and committed to by delta-rs, without a JVM; each commit counts once.

Idempotence rests on Delta's own transaction identifiers: a writer names itself (`app_id`) and numbers its commits
(`version`), and a commit whose number the table already holds is left out. A table has a single writer. Where two race
all the same, for a lease or because one slept between its look and its write, the commit itself refuses the second.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, SchemaMismatchError
from pyarrow import fs

from latecomer.lake import crash_points, panics
from latecomer.lake.errors import InputError
from latecomer.lake.storage import Storage, spark_uri, told

TIMESTAMP = pa.timestamp("us", tz="UTC")
"""Type of every time that Latecomer itself writes."""
CHECKPOINT_EVERY = 10
_SHORT_LOG = 100
"""Log files that are deleted one after another.

`forget` alone deletes longer logs, and it reads no table whose deletion it has begun.
"""
APPENDED = {"delta.checkpointInterval": str(CHECKPOINT_EVERY), "delta.enableExpiredLogCleanup": "false"}
"""Properties of tables to which rows are appended.

Opening a table reads its log from the last checkpoint on. delta-rs would make a checkpoint every hundred commits, Spark
every ten. A commit that makes one would also remove log entries that are a month old, and could then not be undone
(:meth:`Table.before`); maintenance removes them instead.
"""
REPLACED_HOURS = 1
REPLACED = APPENDED | {
    "delta.deletedFileRetentionDuration": f"interval {REPLACED_HOURS} hours",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.enableExpiredLogCleanup": "true",
}
"""Properties of tables whose rows are replaced at each commit.

A checkpoint lists every file that was replaced and is still kept: without this, for a week.
"""
REPLACED_AREAS = frozenset({"state", "checks", "lease"})
"""Areas whose tables are replaced at each commit."""


def properties(area: str) -> dict[str, str]:
    """Return the properties of the tables of an area."""
    return REPLACED if area in REPLACED_AREAS else APPENDED


def timestamp(time_us: int) -> pa.Scalar:
    """Return microseconds since 1970 as a value to which times in tables are compared."""
    return pa.scalar(time_us, pa.int64()).cast(TIMESTAMP)


@dataclass(frozen=True)
class Table:
    """The table ``<area>/<name>`` of a lake. It need not exist; each call opens it anew."""

    storage: Storage
    area: str
    name: str

    @property
    def uri(self) -> str:
        """Where the table lies, as delta-rs names it."""
        return f"{self.storage.uri}/{self.area}/{self.name}"

    @property
    def spark_path(self) -> str:
        """Where the table lies, as Spark's file systems name it."""
        return spark_uri(self.uri)

    @property
    def is_replaced(self) -> bool:
        """Does each commit replace all rows?"""
        return self.area in REPLACED_AREAS

    # ------------------------------------------------------------------------------------------------------------ read

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Add the table's place to an error of reading it: files may be gone or damaged, or the store may be away."""
        try:
            yield
        except (DeltaError, pa.ArrowException, OSError) as error:
            error.add_note(f"{self.uri}: cannot be read")
            raise

    def exists(self) -> bool:
        """Return whether a Delta table lies here.

        Raises
        ------
        InputError
            The store does not answer, refuses the credentials, or has no such bucket.
        """
        if self.storage.is_local:
            return Path(self.uri, "_delta_log").is_dir() and DeltaTable.is_deltatable(self.uri)
        try:
            return DeltaTable.is_deltatable(self.uri, storage_options=self.storage.delta_options)
        except OSError as error:
            problem = f"the store cannot be used ({told(error)})"
            raise InputError(f"lake {self.storage.uri}", None, problem, self.storage.remedy(error)) from None

    def open(self) -> DeltaTable | None:
        """Open the newest version; None where the table is absent."""
        with self.naming_errors():
            return self.open_version() if self.exists() else None

    def open_version(self, version: int | None = None) -> DeltaTable:
        """Open an earlier version, None: the newest; a DeltaError where there is no table, or no such version."""
        return DeltaTable(self.uri, version=version, storage_options=self.storage.delta_options)

    def schema(self) -> pa.Schema:
        """Return the table's columns; none where the table is absent."""
        table = self.open()
        return pa.schema([]) if table is None else table.to_pyarrow_dataset().schema

    def read(self, columns: list[str] | None = None, filter: pc.Expression | None = None) -> pa.Table | None:
        """Read all rows, or the rows that pass `filter`, in no particular order; None where the table is absent."""
        table = self.open()
        if table is None:
            return None
        with self.naming_errors():
            return table.to_pyarrow_dataset().to_table(columns=columns, filter=filter)

    def read_known(self, columns: Iterable[str]) -> pa.Table | None:
        """Read those of the columns that the table has, each once; None where the table is absent."""
        table = self.open()
        if table is None:
            return None
        with self.naming_errors():
            dataset = table.to_pyarrow_dataset()
            return dataset.to_table(columns=[name for name in dict.fromkeys(columns) if name in dataset.schema.names])

    def batches(self, columns: list[str], filter: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows some ten thousand at a time, without empty batches; nothing where the table is absent."""
        table = self.open()
        if table is None:
            return
        with self.naming_errors():
            for batch in table.to_pyarrow_dataset().scanner(columns=columns, filter=filter).to_batches():
                if batch.num_rows:
                    yield batch

    def count(self, filter: pc.Expression | None = None) -> int:
        """Count the rows, or the rows that pass `filter`; 0 where the table is absent."""
        table = self.open()
        if table is None:
            return 0
        with self.naming_errors():
            return int(table.to_pyarrow_dataset().count_rows(filter=filter))

    def count_by(self, column: str, filter: pc.Expression | None = None) -> dict[int, int]:
        """Count the rows per value of a timestamp column, in us."""
        return self._aggregate_by(column, [column], "count", filter)

    def sum_by(self, column: str, summed: str, filter: pc.Expression | None = None) -> dict[int, int]:
        """Sum an integer column per value of a timestamp column, in us; nulls count as 0."""
        return self._aggregate_by(column, [column, summed], "sum", filter)

    def _aggregate_by(
        self, column: str, columns: list[str], function: str, filter: pc.Expression | None
    ) -> dict[int, int]:
        """Aggregate the last of the columns by the first, batch by batch, in memory that does not grow."""
        totals: dict[int, int] = {}
        for batch in self.batches(columns, filter):
            groups = pa.Table.from_batches([batch]).group_by(column).aggregate([(columns[-1], function)])
            keys = groups[column].cast(pa.int64()).to_pylist()
            for key, amount in zip(keys, groups[f"{columns[-1]}_{function}"].to_pylist(), strict=True):
                totals[key] = totals.get(key, 0) + (amount or 0)
        return totals

    # ----------------------------------------------------------------------------------------------------------- write

    def last_version(self, app_id: str) -> int | None:
        """Return the number of the writer's last commit to the table; None where it never committed."""
        table = self.open()
        return None if table is None else table.transaction_version(app_id)

    def has_committed(self, app_id: str, version: int) -> bool:
        """Return whether the table holds that commit of the writer."""
        last = self.last_version(app_id)
        return last is not None and last >= version

    def append(self, rows: pa.Table, app_id: str, version: int, undone: Callable[[int], bool] | None = None) -> bool:
        """Append `rows` as commit `version` of writer `app_id`; in `REPLACED_AREAS` they replace all other rows.

        Every column becomes nullable, as in the tables that Spark writes. Where the table ends with commits of the
        writer that are `undone`, by their numbers, they are taken back first (:meth:`take_back`).

        Returns
        -------
        bool
            False where that commit had been made before; nothing is written then.

        Raises
        ------
        DeltaError
            Another process has committed in between.
        """
        table = self.open() if undone is None else self.take_back(app_id, undone)
        done = None if table is None else table.transaction_version(app_id)
        if done is not None and done >= version:
            return False
        self.commit(table, rows, Transaction(app_id, version))
        return True

    def commit(self, table: DeltaTable | None, rows: pa.Table, transaction: Transaction | None = None) -> None:
        """Commit `rows` to the version that was opened as `table` (None: there was none).

        A later commit refuses this one.

        Raises
        ------
        DeltaError, OSError
            The commit was refused; also where a column has another type than the table's: it would be cast, whatever
            that does to its values.
        """
        rows = rows.cast(pa.schema([field.with_nullable(True) for field in rows.schema]))
        if table is not None and not self.is_replaced:
            self._refuse_cast(table, rows)
        once = CommitProperties(app_transactions=None if transaction is None else [transaction], max_commit_retries=0)
        with panics.unseen():
            if table is None:
                options = self.storage.delta_options or None
                wanted = properties(self.area)
                write_deltalake(
                    self.uri, rows, mode="error", storage_options=options, configuration=wanted, commit_properties=once
                )
            elif self.is_replaced:
                write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite", commit_properties=once)
            else:
                write_deltalake(table, rows, mode="append", schema_mode="merge", commit_properties=once)

    def _refuse_cast(self, table: DeltaTable, rows: pa.Table) -> None:
        stored = {field.name: _type(field) for field in table.schema().fields}
        for field in Schema.from_arrow(rows.schema).fields:
            kind = _type(field)
            if kind != '"void"' and not _only_adds_fields(stored.get(field.name, kind), kind):
                problem = f"column {field.name} is {stored[field.name]} in the table, and {kind} in the rows"
                raise SchemaMismatchError(f"{self.uri}: {problem}")

    # ------------------------------------------------------------------------------------------------------------ undo

    def before(self, table: DeltaTable, app_id: str, undone: Callable[[int], bool]) -> DeltaTable | None:
        """Return the version before the writer's last commits that are `undone`, by their numbers.

        `table` is the version to begin with. None: the table began with such a commit.
        """
        while (done := table.transaction_version(app_id)) is not None and undone(done):
            if table.version() == 0:
                return None
            with self.naming_errors():
                table = self.open_version(table.version() - 1)
        return table

    def take_back(self, app_id: str, undone: Callable[[int], bool]) -> DeltaTable | None:
        """Undo the writer's last commits that are `undone`, by their numbers, and return the table as it is then.

        Rows, columns and types are again those before these commits; a table that began with one is deleted, and None
        is returned. Nobody else may have written since. A second call does nothing.
        """
        table = self.open()
        if table is None:
            return None
        earlier = self.before(table, app_id, undone)
        if earlier is None:
            self.drop()
            return None
        if earlier.schema() == table.schema() and set(earlier.file_uris()) == set(table.file_uris()):
            return table
        table.restore(earlier.version())
        return self.open()

    def drop(self) -> None:
        """Delete the table, or the remains that a killed call left of it.

        The log goes first, for without it nothing is a table. Of the log its first commit goes last: until then a
        reader sees a table of that commit alone, and after it none.
        """
        filesystem, root = self.storage.filesystem()
        place = f"{root}/{self.area}/{self.name}"
        log = filesystem.get_file_info(fs.FileSelector(f"{place}/_delta_log", allow_not_found=True))
        newest_first = sorted((entry.path for entry in log if entry.is_file), reverse=True)
        if len(newest_first) <= _SHORT_LOG:
            for path in sorted(newest_first, key=lambda path: path.endswith(f"/{0:020}.json")):
                filesystem.delete_file(path)
                crash_points.point("drop:file")
        for what, folder in (("log", f"{place}/_delta_log"), ("rest", place)):
            if filesystem.get_file_info(folder).type == fs.FileType.Directory:
                filesystem.delete_dir(folder)
            crash_points.point(f"drop:{what}")


def _only_adds_fields(stored: str, kind: str) -> bool:
    """Return whether values of a type need no cast to be stored as another, which gets their further fields."""

    def fits(old: Any, new: Any) -> bool:
        if not isinstance(old, dict) or not isinstance(new, dict) or old["type"] != new["type"]:
            return bool(old == new)
        if old["type"] != "struct":
            return old.keys() == new.keys() and all(fits(old[key], new[key]) for key in old.keys() - {"type"})
        known = {field["name"]: field["type"] for field in old["fields"]}
        return all(fits(known.get(field["name"], field["type"]), field["type"]) for field in new["fields"])

    return stored == kind or fits(json.loads(_CLOSING.sub(r"\1", stored)), json.loads(_CLOSING.sub(r"\1", kind)))


_CLOSING = re.compile(r",([}\]])")
"""A comma that `_type` leaves before a closing bracket."""


def _type(field: Field) -> str:
    """Return a column's type without its marks of what may be null."""
    return re.sub(r'"(nullable|containsNull|valueContainsNull)":(true|false),?', "", field.type.to_json())
