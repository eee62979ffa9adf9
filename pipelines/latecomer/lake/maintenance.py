"""Maintain tables: compact small files, and remove files and log entries that no kept version needs.

After its work a writer maintains the tables that it alone writes (the first of several checks maintains ``checks``), so
a table never has two writers. Compaction changes no row and no transaction version; a process that is killed in it
leaves the table as it was. Files are kept for a week after they were replaced, or for an hour where every commit
replaces all rows: longer than any reader takes. Repairs read the newest version, since only compaction removes files.

``events`` are written in arrival order and compacted into files of `TARGET_BYTES`. So a file holds the rows of few
ingestions, a narrow range of ``seq`` and ``event_ts``, and a micro-batch finds by file statistics the rows that its
retention needs.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from deltalake.exceptions import DeltaError

from latecomer.lake import crash_points
from latecomer.lake.delta import Table, properties

MANY_FILES = 32
"""Number of small files at which a table is compacted; a file of half of `TARGET_BYTES` or more is not small."""
TARGET_BYTES = 32 * 1024 * 1024
"""Size of the files that compaction writes."""


def compact_and_vacuum(tables: Iterable[Table], commits: int = 1) -> list[str]:
    """Compact and vacuum the tables that have grown many files or versions, and return their URIs.

    Where a store refuses, the table stays as it was and the next call tries again.

    Parameters
    ----------
    commits
        Commits that the caller has made to each table, about. A table whose rows are replaced has few files; it is
        vacuumed every `MANY_FILES` versions.
    """
    maintained = []
    for table in tables:
        opened = table.open()
        if opened is None:
            continue
        sizes = pa.table(opened.get_add_actions())["size_bytes"].to_pylist()
        many = sum(size < TARGET_BYTES // 2 for size in sizes) >= MANY_FILES
        version = opened.version()
        if not many and version // MANY_FILES == max(version - commits, 0) // MANY_FILES:
            continue
        maintained.append(table.uri)
        current = properties(table.area)
        try:
            if (
                not current.items() <= opened.metadata().configuration.items()
            ):  # an earlier version of the program made it
                opened.alter.set_table_properties(current)
            if many:
                opened.optimize.compact(target_size=TARGET_BYTES)
                crash_points.point("tend:compacted")
            if opened.version():
                # full: a checkpoint forgets a file once it may be removed, so the log does not know all files that lie
                # there
                opened.vacuum(dry_run=False, full=True)
                opened.cleanup_metadata()
        except (DeltaError, OSError):
            continue
    return maintained
