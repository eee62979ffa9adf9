"""A lake: the Delta tables of streams and queries at one place.

Layout: ``<lake>/<area>/<name>`` is one Delta table. Users read the areas ``events`` and ``quarantine`` (one table per
stream), ``on_time``, ``corrections``, ``backfill``, ``late``, ``ledger`` and ``verdicts`` (one table per query). The
product keeps the others for itself: ``state``, ``journal``, ``repair_journal``, ``repairs``, ``recalls``,
``parameters``, ``checks`` and ``forgetting`` (per query), ``ingest`` (per lake), ``lease`` (per purpose).
"""

from __future__ import annotations

from deltalake import DeltaTable
from pyarrow import fs

from latecomer.lake.delta import Table
from latecomer.lake.storage import Storage

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
    "recalls",
    "parameters",
    "ingest",
    "lease",
    "checks",
    "verdicts",
    "results",
    "publications",
    "forgetting",
)


class Lake(Storage):
    """A lake by its URI; see :class:`~latecomer.lake.storage.Storage` for which URIs there are.

    Attributes
    ----------
    opened_events : dict of stream to DeltaTable, or None
        The events tables of a lake that reads a snapshot (:meth:`snapshot`), as they were first opened; else None.
    known_ingestions : set of int
        Numbers of ingestions that are known to be committed. A committed ingestion stays committed.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.opened_events: dict[str, DeltaTable | None] | None = None
        self.known_ingestions: set[int] = set()

    def __repr__(self) -> str:
        return f"Lake({self.uri!r})"

    def __reduce__(self) -> tuple[type[Lake], tuple[str]]:
        return Lake, (self.uri,)

    def table(self, area: str, name: str) -> Table:
        """Return a handle of one table, which need not exist.

        Raises
        ------
        ValueError
            There is no such area.
        """
        if area not in AREAS:
            raise ValueError(f"no such area: {area}")
        return Table(self, area, name)

    def names(self, area: str) -> list[str]:
        """Return the names of an area's tables, sorted."""
        filesystem, root = self.filesystem()
        entries = filesystem.get_file_info(fs.FileSelector(f"{root}/{area}", allow_not_found=True))
        folders = sorted(entry.base_name for entry in entries if entry.type == fs.FileType.Directory)
        return [name for name in folders if self.table(area, name).exists()]

    def snapshot(self) -> Lake:
        """Return the same lake for a reader that opens each stream's events once and keeps that version."""
        lake = Lake(self.uri)
        lake.opened_events, lake.known_ingestions = {}, self.known_ingestions
        return lake
