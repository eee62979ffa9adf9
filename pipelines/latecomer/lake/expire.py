"""Expire files: remove what no kept version of a table needs, and what killed writers have left.

Each writer maintains its tables itself (:mod:`latecomer.lake.maintenance`), but only while it works: tables of a query
that runs no more, or of a lake at rest, keep their old files. :func:`expire` removes these, under the leases of the
tables' writers. Rows do not expire, and every version that a reader may still read stays: the files of a table are kept
for a week after they were replaced, or for an hour where every commit replaces all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from deltalake.exceptions import DeltaError
from pyarrow import fs

from latecomer.lake.delta import Table
from latecomer.lake.errors import LeaseHeld
from latecomer.lake.forget import OF_A_QUERY, WRITERS
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease


@dataclass
class Expired:
    """The counts of one call.

    Attributes
    ----------
    files, size_bytes
        Files that were removed, or would be, and their bytes.
    busy
        Queries, and ``ingest``, at whose tables a command is at work; they were left alone.
    unread
        Tables that could not be read or written to.
    """

    files: int = 0
    size_bytes: int = 0
    busy: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def expire(lake: Lake, *, dry_run: bool = False) -> Expired:
    """Remove the files of all tables that no kept version needs.

    A call that is killed leaves every table as it was, with fewer old files.

    Parameters
    ----------
    dry_run
        Count the files, and remove none.

    Raises
    ------
    InputError
        The lake cannot be written to, or the store does not answer.
    """
    done = Expired()
    for owner, leases, tables in _owners(lake):
        with ExitStack() as stack:
            try:
                held = [stack.enter_context(Lease(lake, name)) for name in ([] if dry_run else leases)]
            except LeaseHeld:
                done.busy.append(owner)
                continue
            for table in tables:
                for lease in held:
                    lease.confirm()
                try:
                    files, size_bytes = _vacuum(lake, table, dry_run)
                except (DeltaError, OSError):
                    done.unread.append(f"{table.area}/{table.name}")
                    continue
                done.files += files
                done.size_bytes += size_bytes
    return done


def _owners(lake: Lake) -> Iterator[tuple[str, list[str], list[Table]]]:
    """Yield the writers of tables: a name, the leases of these writers, and their tables."""
    ingested = [lake.table(area, stream) for area in ("events", "quarantine") for stream in lake.names(area)]
    tables = [*ingested, *(lake.table("ingest", name) for name in lake.names("ingest"))]
    if tables:
        yield "ingest", ["ingest"], tables
    by_query: dict[str, list[Table]] = {}
    for area in OF_A_QUERY:
        for query in lake.names(area):
            by_query.setdefault(query, []).append(lake.table(area, query))
    for query, of_query in sorted(by_query.items()):
        yield query, [f"{writer}-{query}" for writer in WRITERS], of_query


def _vacuum(lake: Lake, table: Table, dry_run: bool) -> tuple[int, int]:
    """Remove a table's old files; return their number and bytes."""
    opened = table.open()
    if opened is None:
        return 0, 0
    filesystem, root = lake.filesystem()
    listed = [f"{root}/{table.area}/{table.name}/{file}" for file in opened.vacuum(dry_run=True, full=True)]
    # the log names removed files for a while
    files = [info for info in filesystem.get_file_info(listed) if info.type == fs.FileType.File]
    if files and not dry_run:  # removing nothing would be a commit all the same
        opened.vacuum(dry_run=False, full=True)
    return len(files), sum(info.size or 0 for info in files)
