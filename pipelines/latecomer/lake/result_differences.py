"""The rows by which the results within some bounds differ from the rows of ``results/<query>``.

The rows of results are numbered by ``published_seq``, so what was committed since a publication has numbers beyond
its bounds. Where answers only grow and none is backfilled, they are the difference. Else the answers of every
window that has such a row are read again, within the bounds, and compared with those in the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError
from numpy.typing import NDArray

from latecomer.lake import journal, result_views, row_keys
from latecomer.lake.delta import TIMESTAMP, Table, timestamp
from latecomer.lake.lake import Lake
from latecomer.specs.spec import Answers, Spec
from latecomer.specs.windows import WindowedSpec

AREAS = ("on_time", "corrections", "backfill")
CHANGE = "_latecomer_change"
"""Column of differences: `INSERT`, `UPDATE` or `DELETE`, int8."""
INSERT, UPDATE, DELETE = 0, 1, 2
ROWS_AT_ONCE = 1_000_000
"""Result rows that are read and compared at a time, about; a window is compared at once."""
MOST_RANGES = 64
"""The most ranges of windows that a filter names."""
_VERSION = ("published_seq", "revision", "provenance", "coverage")
"""Columns that differ between two versions of an answer."""


@dataclass(frozen=True)
class Bounds:
    """The last results that their writers have committed.

    Attributes
    ----------
    on_time_to : int
        `run` has committed its rows whose ``published_seq`` is this or less.
    repaired_to : int
        `repair` has committed its rows whose ``published_seq`` is this or less; -1: none.
    backfill : int
        The Delta version of the backfilled rows; -1: there are none.
    """

    on_time_to: int = -1
    repaired_to: int = -1
    backfill: int = -1

    @classmethod
    def of(cls, lake: Lake, query: str, state: journal.RunState) -> Bounds:
        """Return the bounds of a state of `run`, and of what is repaired and backfilled now."""
        backfill = lake.table("backfill", query).open()
        return cls(
            state.seq_to if state.flushed else state.seq_to - 1,
            result_views.closed_to(lake, query),
            -1 if backfill is None else backfill.version(),
        )

    def union(self, other: Bounds) -> Bounds:
        """Return the bounds of what is within either."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Bounds(*(max(pair) for pair in pairs))

    def filters(self) -> dict[str, pc.Expression]:
        """Return filters of the rows within these bounds, by table; backfilled rows are not filtered."""
        published = pc.field("published_seq")
        everything = pc.scalar(self.backfill >= 0)
        return {
            "on_time": published <= self.on_time_to,
            "corrections": published <= self.repaired_to,
            "backfill": everything,
        }


@dataclass
class Differences:
    """The step of a query's results from the bounds `since` to the bounds `to`.

    Attributes
    ----------
    windows : int64[n]
        Starts of the windows that have new rows, increasing, in us; none where the new rows are the difference.
    """

    lake: Lake
    spec: Spec
    since: Bounds
    to: Bounds
    windows: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.windows = np.empty(0, np.int64) if self.only_grows else self._windows()

    @property
    def only_grows(self) -> bool:
        """Whether every new row is a new answer."""
        grows = not isinstance(self.spec, WindowedSpec) or self.spec.answers is Answers.ADDED
        return grows and self.to.backfill < 0

    def schema(self) -> pa.Schema:
        """Return the columns of the results."""
        nothing = dict.fromkeys(AREAS, pc.scalar(False))
        return result_views.results(self.lake, self.spec, nothing).schema

    def periods(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the starts of the periods with new rows of `run`, and of the periods with other new rows, in us."""
        published, repaired, backfilled = (self._new_starts[area]["period_start"] for area in AREAS)
        return np.array(sorted(published), np.int64), np.array(sorted(repaired | backfilled), np.int64)

    def rows(self, table: Table, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the differences from what `table` holds, as rows of `schema` with `CHANGE`; empty parts are left out.

        A deleted row has the keys of the row that it deletes.
        """
        parts = self._new_rows(table) if self.only_grows else self._compared(table)
        columns = schema.append(pa.field(CHANGE, pa.int8()))
        for part in parts:
            if part.num_rows:
                yield _as(part, columns)

    def target_filter(self) -> str:
        """Return a condition in SQL on the rows of the table, named ``target``, that may differ."""
        ranges = _ranges(self.windows)
        return " or ".join(
            f"(target.window_start >= arrow_cast({low}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
            f" and target.window_start <= arrow_cast({high}, 'Timestamp(Microsecond, Some(\"UTC\"))'))"
            for low, high in ranges
        )

    # ------------------------------------------------------------------------------------------------- new rows

    def _since(self, area: str) -> pc.Expression:
        """Return the filter of the rows of a table that are new.

        After a flush the next micro-batch may publish under the last number of the flush, so rows with that number are
        looked at again.
        """
        published = pc.field("published_seq")
        if area == "on_time":
            return (published >= self.since.on_time_to) & (published <= self.to.on_time_to)
        return (published > self.since.repaired_to) & (published <= self.to.repaired_to)

    @cached_property
    def _new_starts(self) -> dict[str, dict[str, set[int]]]:
        """Starts of the periods and windows of the new rows of each table, in us; of windows where they are needed."""
        columns = ["period_start"] if self.only_grows else ["period_start", "window_start"]
        starts: dict[str, dict[str, set[int]]] = {area: {column: set() for column in columns} for area in AREAS}
        for area in AREAS:
            for batch in self._new_batches(area, columns):
                for column in columns:
                    starts[area][column].update(pc.unique(batch[column]).cast(pa.int64()).to_pylist())
        return starts

    def _new_batches(self, area: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the new rows of a table."""
        if area != "backfill":
            yield from self.lake.table(area, self.spec.name).batches(columns, self._since(area))
            return
        for fragment in self._new_backfill():
            yield from fragment.to_table(columns=columns).to_batches()

    def _new_backfill(self) -> list[ds.Fragment]:
        """Return the files of backfilled rows that came since the last publication."""
        if self.to.backfill in (-1, self.since.backfill):
            return []
        table = self.lake.table("backfill", self.spec.name)
        known: set[str] = set()
        if self.since.backfill >= 0:
            try:
                known = set(table.open_version(self.since.backfill).file_uris())
            except (DeltaError, OSError):  # the log has been cleaned: every file may be new
                known = set()
        names = {uri.rsplit("/", 1)[-1] for uri in known}
        opened = table.open()
        fragments = [] if opened is None else list(opened.to_pyarrow_dataset().get_fragments())
        return [fragment for fragment in fragments if fragment.path.rsplit("/", 1)[-1] not in names]

    def _new_rows(self, table: Table) -> Iterator[pa.Table]:
        boundary = self.since.on_time_to
        keys = list(self.spec.result_keys)
        for area in AREAS[:2]:
            source = self.lake.table(area, self.spec.name)
            names = source.schema().names
            for rows in _gathered(source.batches(names, self._since(area))):
                if area == "on_time" and pc.any(pc.equal(rows["published_seq"], boundary)).as_py():
                    rows = self._without_known(rows, table, keys)
                rows = result_views.as_results(self.lake, self.spec, rows)
                yield rows.append_column(CHANGE, pa.array(np.zeros(rows.num_rows, np.int8)))

    def _without_known(self, rows: pa.Table, table: Table, keys: list[str]) -> pa.Table:
        """Leave out the rows that the table has, among those with the last number that was published."""
        known = table.read(columns=keys, filter=pc.field("published_seq") == self.since.on_time_to)
        if known is None or not known.num_rows:
            return rows
        code, known_code = row_keys.codes([rows, known], keys)
        return rows.filter(pa.array(~np.isin(code, known_code)))

    # ------------------------------------------------------------------------------------------------- windows

    def _windows(self) -> NDArray[np.int64]:
        starts = set[int]().union(*(self._new_starts[area]["window_start"] for area in AREAS))
        return np.array(sorted(starts), np.int64)

    def _compared(self, table: Table) -> Iterator[pa.Table]:
        bounds = self.to.filters()
        for windows in self._portions(bounds):
            inside = _inside(windows)
            within = {area: inside & committed for area, committed in bounds.items()}
            rows = result_views.results(self.lake, self.spec, within)
            keys = list(self.spec.result_keys)
            version = [name for name in _VERSION if name in rows.column_names]
            yield _difference(rows, table.read(columns=[*keys, *version], filter=inside), keys, version)

    def _portions(self, bounds: dict[str, pc.Expression]) -> list[NDArray[np.int64]]:
        """Divide the windows into portions of about `ROWS_AT_ONCE` rows."""
        if not len(self.windows):
            return []
        inside, counts = _inside(self.windows), np.zeros(len(self.windows), np.int64)
        for area in AREAS:
            per_window = self.lake.table(area, self.spec.name).count_by("window_start", inside & bounds[area])
            counts += np.array([per_window.get(start, 0) for start in self.windows.tolist()], np.int64)
        portion = np.cumsum(counts) // ROWS_AT_ONCE
        return np.split(self.windows, np.flatnonzero(np.diff(portion)) + 1)


def _difference(rows: pa.Table, known: pa.Table | None, keys: list[str], version: list[str]) -> pa.Table:
    """Return the rows that are new or of another version than the known ones, and the keys of deleted rows."""
    if known is None or not known.num_rows:
        return rows.append_column(CHANGE, pa.array(np.zeros(rows.num_rows, np.int8)))
    code, known_code = row_keys.codes([rows, known], keys)
    place = np.full(1 + max(int(code.max(initial=-1)), int(known_code.max(initial=-1))), -1, np.int64)
    place[known_code] = np.arange(known.num_rows)
    place = place[code]
    change = np.full(rows.num_rows, INSERT, np.int8)
    old = np.flatnonzero(place >= 0)
    before, after = known.take(pa.array(place[old])), rows.take(pa.array(old))
    other = np.zeros(len(old), np.bool_)
    for name in version:
        equal = pc.equal(before[name].cast(after[name].type), after[name])
        other |= ~equal.fill_null(False).to_numpy()
    change[old] = UPDATE
    chosen = np.ones(rows.num_rows, np.bool_)
    chosen[old[~other]] = False
    changed = rows.filter(pa.array(chosen)).append_column(CHANGE, pa.array(change[chosen]))
    gone = known.filter(pa.array(~np.isin(known_code, code))).select(keys)
    if not gone.num_rows:
        return changed
    gone = gone.append_column(CHANGE, pa.array(np.full(gone.num_rows, DELETE, np.int8)))
    return pa.concat_tables([changed, gone], promote_options="permissive")


def _ranges(windows: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Cover the windows by at most `MOST_RANGES` ranges of starts, both ends included."""
    gaps = np.diff(windows)
    widest = np.sort(np.argsort(-gaps, kind="stable")[: MOST_RANGES - 1])
    parts = np.split(windows, widest + 1) if len(windows) else []
    return [(int(part[0]), int(part[-1])) for part in parts]


def _inside(windows: NDArray[np.int64]) -> pc.Expression:
    """Return the filter of the rows of windows; its ranges can be compared with the statistics of files."""
    start = pc.field("window_start")
    ranges = pc.scalar(False)
    for low, high in _ranges(windows):
        ranges |= (start >= timestamp(low)) & (start <= timestamp(high))
    return ranges & start.isin(pa.array(windows).cast(TIMESTAMP))


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Gather batches into tables of about `ROWS_AT_ONCE` rows."""
    kept: list[pa.RecordBatch] = []
    for batch in batches:
        kept.append(batch)
        if sum(part.num_rows for part in kept) >= ROWS_AT_ONCE:
            yield pa.Table.from_batches(kept)
            kept = []
    if kept:
        yield pa.Table.from_batches(kept)


def _as(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema; a column that they lack is null."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
