"""Forget a query: delete all that the lake holds of it, so that it can begin again as in a fresh lake. Events and quarantine stay.

A marker, ``forgetting/<query>``, is committed first and deleted last. While it is there every command refuses the query
(:func:`refuse_forgotten`, by way of its state), so whoever is killed in between leaves a query that is whole, one that says that it is
half forgotten, or none. The leases of all its writers are held meanwhile; they are no answer, and stay.
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
    "parameters",
    "checks",
    "repair_journal",
    "journal",
    "state",
)
"""Areas with a table for each query."""
WRITERS = ("run", "repair", "adapt", "backfill")
"""What of a query holds a lease of its own."""
_MARKER = "forgetting"


def held(lake: Lake, query: str) -> dict[str, int | None]:
    """Area -> rows of all that the lake holds of the query; None where they cannot be read.

    Raises
    ------
    InputError
        No query of that name was ever at work here.
    """
    marked = lake.table(_MARKER, query).exists()
    found = {area: _rows(lake, area, query) for area in OF_A_QUERY if _is_there(lake, area, query)}
    if not found and not marked and not any(lake.table("lease", f"{writer}-{query}").exists() for writer in WRITERS):
        known = lake.names("state")
        remedy = did_you_mean(query, known) if known else "none was run there"
        raise InputError("forget", query, f"is not a query of {lake.uri}", remedy)
    return found


def forget(lake: Lake, query: str) -> dict[str, int | None]:
    """Delete all that the lake holds of the query; returns what :func:`held` said of it. Goes on where a killed call stopped.

    Raises
    ------
    InputError
        As for `held`.
    LeaseHeld
        A command is at work on the query; nothing was deleted.
    """
    held(lake, query)  # before a lease is written
    with ExitStack() as leases:
        own = [leases.enter_context(Lease(lake, f"{writer}-{query}")) for writer in WRITERS]
        found = held(lake, query)
        if found or lake.table(_MARKER, query).exists():
            lake.table(_MARKER, query).append(pa.table({"query": [query]}), "forget", 0)
            crash_points.point("forget:marked")
            for area in (*found, _MARKER):
                for lease in own:
                    lease.confirm()
                lake.table(area, query).drop()
        return found


def refuse_forgotten(lake: Lake, query: str) -> None:
    """Refuse a query of which a part is gone.

    Raises
    ------
    InputError
        A `forget` was stopped.
    """
    if lake.table(_MARKER, query).exists():
        raise InputError(
            f"query {query}", None, "is half forgotten: that was stopped", f"run `latecomer forget {query} --yes` again"
        )


def half_forgotten(lake: Lake) -> list[str]:
    """Queries whose `forget` was stopped."""
    return lake.names(_MARKER)


def _is_there(lake: Lake, area: str, query: str) -> bool:
    """Also true of what is no table any more."""
    filesystem, root = lake.filesystem()
    kind = filesystem.get_file_info(f"{root}/{area}/{query}").type
    return bool(kind == fs.FileType.Directory)


def _rows(lake: Lake, area: str, query: str) -> int | None:
    try:
        return lake.table(area, query).count()
    except (DeltaError, pa.ArrowException, OSError):
        return None
