"""``results/<query>``: the current answers of a query, as one Delta table for readers of any engine.

`publish` is its only writer, under the lease ``publish-<query>``. A publication brings the table to what `run`,
`repair` and `backfill` have committed (:class:`~latecomer.lake.result_differences.Bounds`), in one commit: a reader
sees all of it or nothing. Its plan, a row of ``publications/<query>`` with the bounds and the time, is committed first.
A publication that is killed after its plan is carried out by the next call, and counts once.

The cost of a publication follows what is new. New answers are appended. Changed ones are merged, which rewrites the
files that hold their windows.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from numpy.typing import NDArray

from latecomer.lake import crash_points, journal, panics
from latecomer.lake.column_comments import comments
from latecomer.lake.delta import APPENDED, TIMESTAMP, Table
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.lake.maintenance import compact_and_vacuum
from latecomer.lake.result_differences import CHANGE, DELETE, INSERT, UPDATE, Bounds, Differences
from latecomer.specs.durations import format_duration
from latecomer.specs.spec import Spec

PUBLISHED_AT = "published_at"
"""The column that the table has beside those of ``export --table results``."""
PUBLICATIONS = pa.schema(
    [
        ("number", pa.int64()),
        ("published_at", TIMESTAMP),
        ("on_time_to", pa.int64()),
        ("repaired_to", pa.int64()),
        ("backfill", pa.int64()),
    ]
)
"""Columns of ``publications/<query>``; docs/tables.md says what they hold."""
BYTES_KEPT = 256 * 1024 * 1024
"""The most bytes of a publication that are kept in memory; of a larger one, all are in a temporary file."""
FILE_BYTES = 16 * 1024 * 1024
"""Size of the table's files, about: a correction rewrites a file."""
_PROPERTIES = APPENDED | {"delta.enableChangeDataFeed": "true"}


@dataclass
class Publication:
    """The changes that one call of `publish` has made.

    Attributes
    ----------
    uri, version
        The table, and its Delta version now; -1: there is no table, for the query has no answer yet.
    rows
        Rows of the table now.
    inserted, updated, deleted
        Rows that are new, that replace a row, and that are gone.
    periods_published, periods_corrected
        Starts of the periods with new rows of `run`, and of the periods with new rows of `repair` or `backfill`;
        microseconds, increasing.
    waiting
        Whether results have been committed that were not published, since they are beyond the bounds of the call.
    seconds
        The time that the call took.
    achieved_on_time, late_pending
        What the last check has found: the completeness of the last answers, and the late rows that waited for repair;
        None where no check has said it.
    registered, catalog_problem
        Names under which tables of the query are new in the catalog (``LATECOMER_CATALOG``), and the reason why they
        could not be registered; the answers are published all the same.
    """

    uri: str
    version: int = -1
    rows: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    periods_published: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    periods_corrected: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    waiting: bool = False
    seconds: float = 0.0
    achieved_on_time: float | None = None
    late_pending: int | None = None
    registered: list[str] = field(default_factory=list)
    catalog_problem: str | None = None

    @property
    def changed(self) -> int:
        """The number of rows that are new, replaced or gone."""
        return self.inserted + self.updated + self.deleted


def publish(lake: Lake, spec: Spec, to: Bounds | None = None) -> Publication:
    """Bring ``results/<query>`` to what `run`, `repair` and `backfill` have committed.

    Parameters
    ----------
    to
        Publish what is within these bounds; None: everything.

    Raises
    ------
    InputError
        The query has not been run in this lake, or computed something else when it was run.
    LeaseHeld
        Another process publishes the query.
    """
    started = time.monotonic()
    journal.state_for(lake, spec)
    table, plans = lake.table("results", spec.name), lake.table("publications", spec.name)
    publication = Publication(table.uri)
    with Lease(lake, f"publish-{spec.name}") as lease:
        while (step := _next_step(lake, spec, to, lease)) is not None:
            crash_points.point("publish:planned")
            step.commit(table, lease, publication)
            crash_points.point("publish:results")
        compact_and_vacuum([table, plans])
    publication.waiting = Bounds.of(lake, spec.name, journal.state_for(lake, spec)) != published_bounds(lake, spec.name)
    opened = table.open()
    if opened is not None:
        publication.version, publication.rows = opened.version(), table.count()
    publication.seconds = time.monotonic() - started
    return publication


def properties(spec: Spec) -> dict[str, str]:
    """Return the properties by which the table tells its readers which query it answers, and what that promises."""
    promise = f"{spec.target_key} {spec.target:g} per {format_duration(spec.period_us)}" if spec.promises else "none"
    about = {"query": spec.name, "kind": spec.kind, "promise": promise, "query_file": Path(spec.source).name}
    return {f"latecomer.{key}": value for key, value in about.items()}


def named(starts_us: NDArray[np.int64]) -> list[str]:
    """Return the names of periods: their starts in UTC, as 2013-01-31T00:00:00, with microseconds only where needed."""
    exact = (starts_us % 1_000_000).any()
    starts = starts_us.astype("datetime64[us]")
    return [str(start) for start in (starts if exact else starts.astype("datetime64[s]"))]


def published_bounds(lake: Lake, query: str) -> Bounds | None:
    """Return the bounds of the last publication; None before the first."""
    last = lake.table("results", query).last_version("publish")
    return None if last is None else plan(lake.table("publications", query), last)[0]


def plan(plans: Table, number: int) -> tuple[Bounds, datetime]:
    """Return the bounds and the time of a publication.

    Raises
    ------
    InputError
        The plan is gone: the lake was damaged.
    """
    rows = plans.read(filter=pc.field("number") == number)
    if rows is None or not rows.num_rows:
        raise InputError(plans.uri, number, "is a publication that is gone", "restore the lake's files from a copy")
    row = rows.to_pylist()[0]
    return Bounds(row["on_time_to"], row["repaired_to"], row["backfill"]), row["published_at"]


def is_behind(lake: Lake, spec: Spec) -> bool:
    """Return whether the query's published answers lack anything that its tables hold, or a call was killed."""
    table, plans = lake.table("results", spec.name), lake.table("publications", spec.name)
    last = table.last_version("publish")
    if last is None or plans.has_committed("publish", last + 1):
        return True
    return plan(plans, last)[0] != Bounds.of(lake, spec.name, journal.state_for(lake, spec))


def _next_step(lake: Lake, spec: Spec, limit: Bounds | None, lease: Lease) -> _Step | None:
    """Return the publication that a killed call has planned, else plan the next one; None where nothing is new.

    `limit` bounds what is new; None: it does not.
    """
    table, plans = lake.table("results", spec.name), lake.table("publications", spec.name)
    last = table.last_version("publish")
    number, since = (0, Bounds()) if last is None else (last + 1, plan(plans, last)[0])
    if not plans.has_committed("publish", number):
        current = Bounds.of(lake, spec.name, journal.state_for(lake, spec))
        to = since.union(current if limit is None else limit)
        answers = (lake.table(area, spec.name) for area in ("on_time", "corrections", "backfill"))
        if to == since or (last is None and not any(answer.exists() for answer in answers)):
            return None
        row = {"number": number, "published_at": datetime.now(UTC), **asdict(to)}
        lease.confirm()
        plans.append(pa.Table.from_pylist([row], schema=PUBLICATIONS), "publish", number)
    to, published_at = plan(plans, number)
    return _Step(number, published_at, Differences(lake, spec, since, to))


@dataclass(frozen=True)
class _Step:
    """One publication: its number, its time, and the differences that it writes."""

    number: int
    published_at: datetime
    differences: Differences

    def commit(self, table: Table, lease: Lease, publication: Publication) -> None:
        """Write the differences, and commit the publication even if there is none; count them in `publication`."""
        opened, schema = self._prepared(table, lease)
        once = CommitProperties(app_transactions=[Transaction("publish", self.number)], max_commit_retries=0)
        changes, counts = schema.append(pa.field(CHANGE, pa.int8())), np.zeros(DELETE + 1, np.int64)
        # delta-rs cannot read a table while it takes rows to write, so all differences are known before it writes
        with tempfile.SpooledTemporaryFile(BYTES_KEPT) as file:
            with pa.ipc.new_stream(file, changes) as writer:
                for part in self.differences.rows(table, schema):
                    counts += np.bincount(part[CHANGE].to_numpy(), minlength=len(counts))
                    moment = pa.array([self.published_at], TIMESTAMP).take(pa.array(np.zeros(part.num_rows, np.int64)))
                    writer.write_table(part.set_column(schema.get_field_index(PUBLISHED_AT), PUBLISHED_AT, moment))
            file.seek(0)
            rows = pa.ipc.open_stream(file)
            lease.confirm()
            with panics.unseen():
                if counts[UPDATE] == counts[DELETE] == 0:
                    rows = pa.RecordBatchReader.from_batches(schema, (batch.select(schema.names) for batch in rows))
                    write_deltalake(opened, rows, mode="append", target_file_size=FILE_BYTES, commit_properties=once)
                else:
                    self._merge(opened, rows, once)
        publication.inserted += int(counts[INSERT])
        publication.updated += int(counts[UPDATE])
        publication.deleted += int(counts[DELETE])
        published, corrected = self.differences.periods()
        publication.periods_published = np.union1d(publication.periods_published, published)
        publication.periods_corrected = np.union1d(publication.periods_corrected, corrected)

    def _prepared(self, table: Table, lease: Lease) -> tuple[DeltaTable, pa.Schema]:
        """Create the table, or add the columns and properties that it lacks; return the table and its columns."""
        spec = self.differences.spec
        schema = self.differences.schema().append(pa.field(PUBLISHED_AT, TIMESTAMP))
        known = table.schema()
        texts = comments(spec, schema.names)
        new = [column for column in schema if column.name not in known.names]
        fields = [_field(column, texts[column.name]) for column in new]
        opened, about = table.open(), properties(spec)
        if opened is None:
            lease.confirm()
            opened = DeltaTable.create(
                table.uri,
                Schema(fields),
                mode="error",
                description=f"The answers of the query {spec.name}. {spec.description}".strip(),
                configuration=_PROPERTIES | about,
                storage_options=table.storage.delta_options or None,
                raise_if_key_not_exists=False,
            )
        else:
            is_other = not about.items() <= opened.metadata().configuration.items()
            if fields or is_other:
                lease.confirm()
            if fields:
                opened.alter.add_columns(fields)
            if is_other:
                opened = table.open_version()
                opened.alter.set_table_properties(about, raise_if_not_exists=False)
            if fields or is_other:
                opened = table.open_version()
        order = [name for name in known.names if name in schema.names] + [column.name for column in new]
        return opened, pa.schema([schema.field(name) for name in order])

    def _merge(self, opened: DeltaTable, rows: pa.RecordBatchReader, once: CommitProperties) -> None:
        """Merge differences by the keys of results; a null equals a null."""
        keys = self.differences.spec.result_keys
        same = " and ".join(f"(target.{_quoted(key)} is not distinct from source.{_quoted(key)})" for key in keys)
        merger = opened.merge(
            rows,
            f"{same} and ({self.differences.target_filter()})",
            source_alias="source",
            target_alias="target",
            commit_properties=once,
        )
        merger = merger.when_matched_delete(predicate=f"source.{CHANGE} = {DELETE}")
        merger.when_matched_update_all(except_cols=[CHANGE]).when_not_matched_insert_all(except_cols=[CHANGE]).execute()


def _field(column: pa.Field, comment: str) -> Field:
    """Return a nullable column with a comment."""
    [plain] = Schema.from_arrow(pa.schema([column.with_nullable(True)])).fields
    return Field.from_json(json.dumps(json.loads(plain.to_json()) | {"metadata": {"comment": comment}}))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
