"""Forget a query: delete all that the lake holds of it, so that it can begin again as in a fresh lake.

Events and quarantine stay. A marker, ``forgetting/<query>``, is committed first and deleted last. While it exists every
command refuses the query (:func:`refuse_forgotten`). So a process that is killed in between leaves the query whole,
marked as half forgotten, or gone. The leases of all its writers are held meanwhile; their tables stay.
"""

from __future__ import annotations

from contextlib import ExitStack

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyarrow import fs

from latecomer.lake import crash_points
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.specs.errors import did_you_mean

OF_A_QUERY = (
    "on_time",
    "corrections",
    "backfill",
    "late",
    "ledger",
    "repairs",
    "recalls",
    "parameters",
    "checks",
    "verdicts",
    "results",
    "publications",
    "repair_journal",
    "journal",
    "state",
)
"""Areas that hold a table per query."""
WRITERS = ("run", "repair", "adapt", "backfill", "check", "publish")
"""Commands that write under a lease of the query."""
_MARKER = "forgetting"


def stored_rows(lake: Lake, query: str) -> dict[str, int | None]:
    """Count the rows that the lake holds of a query, by area; None for a table that cannot be read.

    Raises
    ------
    InputError
        No query of that name ever ran here.
    """
    marked = lake.table(_MARKER, query).exists()
    rows = {area: _rows(lake, area, query) for area in OF_A_QUERY if _folder_exists(lake, area, query)}
    if not rows and not marked and not any(lake.table("lease", f"{writer}-{query}").exists() for writer in WRITERS):
        known = lake.names("state")
        remedy = did_you_mean(query, known) if known else "none was run there"
        raise InputError("forget", query, f"is not a query of {lake.uri}", remedy)
    return rows


def forget(lake: Lake, query: str) -> dict[str, int | None]:
    """Delete all that the lake holds of a query, and return its :func:`stored_rows`.

    Goes on where a killed call stopped.

    Raises
    ------
    InputError
        As for `stored_rows`.
    LeaseHeld
        A command works on the query; nothing was deleted.
    """
    stored_rows(lake, query)  # refuses an unknown query before a lease is written
    with ExitStack() as stack:
        leases = [stack.enter_context(Lease(lake, f"{writer}-{query}")) for writer in WRITERS]
        rows = stored_rows(lake, query)
        marker = lake.table(_MARKER, query)
        if rows or marker.exists():
            marker.append(pa.table({"query": [query]}), "forget", 0)
            crash_points.point("forget:marked")
            for area in (*rows, _MARKER):
                for lease in leases:
                    lease.confirm()
                lake.table(area, query).drop()
        return rows


def refuse_forgotten(lake: Lake, query: str) -> None:
    """Refuse a query that is half forgotten.

    Raises
    ------
    InputError
        A `forget` of the query was stopped.
    """
    if lake.table(_MARKER, query).exists():
        raise InputError(
            f"query {query}", None, "is half forgotten: that was stopped", f"run `latecomer forget {query} --yes` again"
        )


def half_forgotten(lake: Lake) -> list[str]:
    """Return the queries whose `forget` was stopped."""
    return lake.names(_MARKER)


def _folder_exists(lake: Lake, area: str, query: str) -> bool:
    """Return whether a table lies there, or the remains of one."""
    filesystem, root = lake.filesystem()
    kind = filesystem.get_file_info(f"{root}/{area}/{query}").type
    return bool(kind == fs.FileType.Directory)


def _rows(lake: Lake, area: str, query: str) -> int | None:
    try:
        return lake.table(area, query).count()
    except (DeltaError, pa.ArrowException, OSError):
        return None
