"""Housekeeping: many small files become few, and files no version needs any more are removed, and the log of old versions.

Each writer tends, after its work, the tables that it alone writes (what checks found is tended by whichever check was first), so a table
never has two writers. Compaction changes no row and no transaction version; killed anywhere, it leaves the table as it was. Files are kept
for a week after they were replaced (an hour where every commit replaces all rows): longer than any reader takes, and repairs read the
newest version anyway, since nothing is ever removed from a table but by compaction.

``events`` are written in arrival order and compacted in pieces of `TARGET_BYTES`, so that a file keeps to the few ingestions it was made of,
a narrow range of ``seq`` and ``event_ts``: a micro-batch finds by file statistics what its retention needs, and reads little more.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from deltalake.exceptions import DeltaError

from latecomer.lake import crash_points
from latecomer.lake.delta import Table, properties

MANY_FILES = 32
"""Small files in a table from which on it is compacted; those of half a `TARGET_BYTES` or more are not small."""
TARGET_BYTES = 32 * 1024 * 1024


def compact_and_vacuum(tables: Iterable[Table], commits: int = 1) -> list[str]:
    """Compact and vacuum the given tables that have grown many files or versions; returns the URIs of these.

    `commits` is how many the caller has made to each, or about: of tables that are replaced, whose files are few, files no version
    needs any more are removed every `MANY_FILES` versions. A store that refuses leaves the table as it was: the work is done, tidiness can wait for the next call.
    """
    tended = []
    for handle in tables:
        table = handle.open()
        if table is None:
            continue
        sizes = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
        many = sum(size < TARGET_BYTES // 2 for size in sizes) >= MANY_FILES
        version = table.version()
        if not many and version // MANY_FILES == max(version - commits, 0) // MANY_FILES:
            continue
        tended.append(handle.uri)
        wanted = properties(handle.area)
        try:
            if not wanted.items() <= table.metadata().configuration.items():  # an earlier version made it
                table.alter.set_table_properties(wanted)
            if many:
                table.optimize.compact(target_size=TARGET_BYTES)
                crash_points.point("tend:compacted")
            if table.version():
                # by what lies there: a checkpoint forgets a file once it may be removed, so the log does not know all of them
                table.vacuum(dry_run=False, full=True)
                table.cleanup_metadata()
        except (DeltaError, OSError):
            continue
    return tended
