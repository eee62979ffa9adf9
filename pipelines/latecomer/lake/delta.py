"""Small tables without a JVM: delta-rs reads them and commits to them, each commit once.

Idempotence is Delta's own transaction identifiers: a writer names itself (`app_id`) and counts its commits
(`version`); a commit whose version the table already holds is left out. There is a single writer per table; where two
race all the same, for a lease or since one was asleep between its look and its write, the commit itself refuses the second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, SchemaMismatchError
from pyarrow import fs

from latecomer.lake import crash_points
from latecomer.lake.lake import Lake

TIMESTAMP = pa.timestamp("us", tz="UTC")
"""Type of every time that Latecomer itself writes."""
CHECKPOINT_EVERY = 10
_SHORT_LOG = 100
"""Files of a log that are deleted one after another. Longer ones are deleted by `forget` alone, which does not look into a table that it began to delete."""
TABLE = {"delta.checkpointInterval": str(CHECKPOINT_EVERY), "delta.enableExpiredLogCleanup": "false"}
"""Properties of every table. Opening one reads its log from the last checkpoint on; delta-rs would make one in a hundred commits, Spark in ten.

A commit that makes one would also remove what is a month old before it, and then could not be undone (:func:`before`): housekeeping does.
"""
REPLACED_HOURS = 1
REPLACED = TABLE | {
    "delta.deletedFileRetentionDuration": f"interval {REPLACED_HOURS} hours",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.enableExpiredLogCleanup": "true",
}
"""Those of tables whose rows are replaced at each commit: a checkpoint lists every file that was replaced and is kept, for a week else."""
REPLACED_AREAS = frozenset({"state", "checks", "lease"})
"""Where these tables are."""


def properties(area: str) -> dict[str, str]:
    """Properties of the tables of an area."""
    return REPLACED if area in REPLACED_AREAS else TABLE


@contextmanager
def named(lake: Lake, area: str, name: str) -> Iterator[None]:
    """Add the table's name to an error of reading it: its files may be gone or damaged, or their store may not answer."""
    try:
        yield
    except (DeltaError, pa.ArrowException, OSError) as error:
        error.add_note(f"{lake.table(area, name)}: cannot be read")
        raise


def open_table(lake: Lake, area: str, name: str) -> DeltaTable | None:
    """The Delta table at a place, None where there is none."""
    with named(lake, area, name):
        if not lake.exists(area, name):
            return None
        return DeltaTable(lake.table(area, name), storage_options=lake.storage_options)


def read(
    lake: Lake, area: str, name: str, columns: list[str] | None = None, filter: pc.Expression | None = None
) -> pa.Table | None:
    """All rows, or those that pass `filter`, in no particular order; None where the table is absent."""
    table = open_table(lake, area, name)
    if table is None:
        return None
    with named(lake, area, name):
        return table.to_pyarrow_dataset().to_table(columns=columns, filter=filter)


def read_known(lake: Lake, area: str, name: str, columns: Iterable[str]) -> pa.Table | None:
    """As :func:`read`; of `columns` those that the table has, each once."""
    table = open_table(lake, area, name)
    if table is None:
        return None
    with named(lake, area, name):
        rows = table.to_pyarrow_dataset()
        return rows.to_table(columns=[column for column in dict.fromkeys(columns) if column in rows.schema.names])


def batches(
    lake: Lake, area: str, name: str, columns: list[str], filter: pc.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    """The same rows, some ten thousand at a time; no batch where the table is absent."""
    table = open_table(lake, area, name)
    if table is None:
        return
    with named(lake, area, name):
        for batch in table.to_pyarrow_dataset().scanner(columns=columns, filter=filter).to_batches():
            if batch.num_rows:
                yield batch


def shape(lake: Lake, area: str, name: str) -> pa.Schema:
    """The table's columns; none where the table is absent."""
    table = open_table(lake, area, name)
    return pa.schema([]) if table is None else table.to_pyarrow_dataset().schema


def last_version(lake: Lake, area: str, name: str, app_id: str) -> int | None:
    """Version of the writer's last commit to the table; None if it never committed."""
    table = open_table(lake, area, name)
    return None if table is None else table.transaction_version(app_id)


def append(
    lake: Lake,
    area: str,
    name: str,
    rows: pa.Table,
    app_id: str,
    version: int,
    undone: Callable[[int], bool] | None = None,
) -> bool:
    """Append `rows` as commit `version` of writer `app_id`; in `REPLACED_AREAS` they take the place of all others.

    Every column becomes nullable, as in the tables that Spark writes. Where the table ends with commits of the writer that are `undone`,
    by their versions, they are taken back first (:func:`take_back`).

    Returns
    -------
    bool
        False where that commit had been made before (nothing is written).

    Raises
    ------
    DeltaError
        Somebody else has committed in between.
    """
    table = open_table(lake, area, name) if undone is None else take_back(lake, area, name, app_id, undone)
    done = None if table is None else table.transaction_version(app_id)
    if done is not None and done >= version:
        return False
    commit(lake, area, name, table, rows, Transaction(app_id, version))
    return True


def commit(
    lake: Lake, area: str, name: str, table: DeltaTable | None, rows: pa.Table, transaction: Transaction | None = None
) -> None:
    """Commit `rows` to a table that was looked at, None where there was none; a commit since then is not rebased on, but refused.

    Raises
    ------
    DeltaError, OSError
        It was refused; also where a column is of another type than the table's, and would be cast to it, whatever that does to its values.
    """
    replace = area in REPLACED_AREAS
    rows = rows.cast(pa.schema([field.with_nullable(True) for field in rows.schema]))
    if table is not None and not replace:
        _refuse_cast(lake, area, name, table, rows)
    write_deltalake(
        lake.table(area, name) if table is None else table,
        rows,
        mode="error" if table is None else "overwrite" if replace else "append",
        schema_mode=None if table is None else "overwrite" if replace else "merge",
        storage_options=None if table is not None else (lake.storage_options or None),
        configuration=properties(area) if table is None else None,
        commit_properties=CommitProperties(
            app_transactions=None if transaction is None else [transaction], max_commit_retries=0
        ),
    )


def _refuse_cast(lake: Lake, area: str, name: str, table: DeltaTable, rows: pa.Table) -> None:
    stored = {field.name: _type(field) for field in table.schema().fields}
    for field in Schema.from_arrow(rows.schema).fields:
        kind = _type(field)
        if kind != '"void"' and stored.get(field.name, kind) != kind:
            problem = f"column {field.name} is {stored[field.name]} in the table, and {kind} in the rows"
            raise SchemaMismatchError(f"{lake.table(area, name)}: {problem}")


def _type(field: Field) -> str:
    """A column's type, whichever parts of it may be null."""
    return re.sub(r'"(nullable|containsNull|valueContainsNull)":(true|false),?', "", field.type.to_json())


def before(
    lake: Lake, area: str, name: str, table: DeltaTable, app_id: str, undone: Callable[[int], bool]
) -> DeltaTable | None:
    """The table, opened as `table`, as it was before those last commits of the writer that are `undone`, by their versions; None where it began with one."""
    found = table
    while (done := found.transaction_version(app_id)) is not None and undone(done):
        if found.version() == 0:
            return None
        with named(lake, area, name):
            found = DeltaTable(
                lake.table(area, name), version=found.version() - 1, storage_options=lake.storage_options
            )
    return found


def take_back(lake: Lake, area: str, name: str, app_id: str, undone: Callable[[int], bool]) -> DeltaTable | None:
    """Undo the writer's last commits that are `undone`, by their versions: rows, columns and types are what they were before, a table it began is gone.

    Only for a table to which nobody else has written since. A second time it does nothing. Returns the table as it is then, if it is.
    """
    table = open_table(lake, area, name)
    if table is None:
        return None
    earlier = before(lake, area, name, table, app_id, undone)
    if earlier is None:
        drop(lake, area, name)
        return None
    if earlier.schema() == table.schema() and set(earlier.file_uris()) == set(table.file_uris()):
        return table
    table.restore(earlier.version())
    return open_table(lake, area, name)


def drop(lake: Lake, area: str, name: str) -> None:
    """Delete a table, or what a killed call left of it: the log first, for without it nothing is a table.

    Of the log its first commit goes last: until then there is a table that can be read, of that commit alone, and after it there is none.
    """
    filesystem, root = lake.filesystem()
    place = f"{root}/{area}/{name}"
    log = filesystem.get_file_info(fs.FileSelector(f"{place}/_delta_log", allow_not_found=True))
    newest_first = sorted((each.path for each in log if each.is_file), reverse=True)
    if len(newest_first) <= _SHORT_LOG:
        for path in sorted(newest_first, key=lambda path: path.endswith(f"/{0:020}.json")):
            filesystem.delete_file(path)
            crash_points.point("drop:file")
    for what, folder in (("log", f"{place}/_delta_log"), ("rest", place)):
        if filesystem.get_file_info(folder).type == fs.FileType.Directory:
            filesystem.delete_dir(folder)
        crash_points.point(f"drop:{what}")


def count(lake: Lake, area: str, name: str, filter: pc.Expression | None = None) -> int:
    """Rows, or those that pass `filter`; 0 where the table is absent."""
    table = open_table(lake, area, name)
    if table is None:
        return 0
    with named(lake, area, name):
        return int(table.to_pyarrow_dataset().count_rows(filter=filter))


def count_by(
    lake: Lake, area: str, name: str, column: str, filter: pc.Expression | None = None, value: str | None = None
) -> dict[int, int]:
    """Rows (or the sum of `value`) per value of a timestamp column, in us; read batch by batch, one column wide."""
    found: dict[int, int] = {}
    for batch in batches(lake, area, name, [column] if value is None else [column, value], filter):
        chunk = pa.Table.from_batches([batch])
        summed = chunk.group_by(column).aggregate([(column, "count") if value is None else (value, "sum")])
        for key, amount in zip(
            summed[column].cast(pa.int64()).to_pylist(),
            summed.column(1 if summed.column_names[0] == column else 0).to_pylist(),
            strict=True,
        ):
            found[key] = found.get(key, 0) + amount
    return found
