"""Give columns of a stored stream another type: its events are rewritten as one commit that every query sees, or none.

It is an ingestion without rows, with a number that only it has: plan (``ingest/journal``), events, quarantine,
``ingest/committed``. Readers see the events of committed ingestions alone: the old columns until the last of these
commits, and the new ones from then on. What was killed in between is taken back by the next ingestion or the next
`retype`, as any other ingestion is.

Rows whose value the new type cannot hold move to quarantine; their places in the arrival order stay empty. Queries
count the rows that they have read, so no row moves under a query that has run: it has to be forgotten first. A query
whose results have a column of the old type has to be forgotten too.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction
from numpy.typing import NDArray

from latecomer.ingest.order_ranges import MOST_ROWS
from latecomer.ingest.values.arrow_types import arrow_type, spark_type
from latecomer.ingest.values.convert import convert
from latecomer.lake import crash_points
from latecomer.lake.errors import InputError, LeaseLost
from latecomer.lake.event_scan import within_bounds
from latecomer.lake.ingest_log import COMMITTED, committed_seq, last_committed, open_events, streams, uncommitted
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.lake.maintenance import compact_and_vacuum
from latecomer.lake.stored_queries import StoredQuery, stored_queries
from latecomer.specs.column_types import (
    EXACT_IN_DOUBLE,
    FLOATING,
    WHOLE,
    ColumnTypeError,
    element_types,
    is_number,
    is_widening,
    needs_bound,
    normal_type,
)
from latecomer.specs.errors import did_you_mean, quantity
from latecomer.specs.expressions import ALWAYS_THERE

Changes = dict[str, tuple[str, str]]
"""Columns -> their types before and after."""
_CHUNK_BYTES = 256 << 20
"""Bytes of rows, estimated, that are held at a time."""
_TEXT_BYTES = 32
"""Estimate of the bytes of a text or a nested value."""
_ROW_GROUP = 1 << 17
_DAY_US = 86_400_000_000
_SHOWN = 200
"""Most characters of a value that a reason shows."""


@dataclass(frozen=True)
class RetypeResult:
    """The outcome of a call.

    Attributes
    ----------
    columns
        The columns that have another type now, with the types before and after; empty: they had it already.
    rows
        Rows of the stream.
    moved
        Rows that moved to quarantine, by column.
    seconds
        How long it took.
    """

    columns: Changes = field(default_factory=dict)
    rows: int = 0
    moved: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def reasons(self) -> dict[str, int]:
        """Rows that moved, by the reason that they have in quarantine, without the values."""
        return {f"column {name} is not {self.columns[name][1]}": count for name, count in self.moved.items()}


def retype(
    lake: Lake,
    stream: str,
    columns: Mapping[str, str],
    progress: Callable[[str], None] | None = None,
    *,
    zone: str = "UTC",
    decimal_comma: bool = False,
    widen: bool = False,
    lease: Lease | None = None,
) -> RetypeResult:
    """Give columns of a stream other types.

    Parameters
    ----------
    columns
        Types by column, as a stream file states them.
    progress
        Called with lines about the work.
    zone
        The zone of times in texts that name none.
    decimal_comma
        Whether a comma stands before the fraction of a number in texts.
    widen
        Refuse every change under which a stored value would not stay what it is.
    lease
        The lease ``ingest``, where the caller holds it.

    Raises
    ------
    InputError
        The stream or a column does not exist, a type is none, no value would be left, or a query that has run stands
        against it. Nothing was written.
    LeaseHeld
        An ingestion is at work.
    """
    started = time.monotonic()
    progress = progress or (lambda line: None)
    with Lease(lake, "ingest") if lease is None else contextlib.nullcontext(lease) as held:
        table, changes = _changes(lake, stream, columns)
        if not changes:
            return RetypeResult(rows=_count(table), seconds=time.monotonic() - started)
        work = _Retype(lake, stream, table, changes, zone, decimal_comma, held)
        work.refuse(widen)
        rows = work.write(progress)
        return RetypeResult(changes, rows, work.misfits, time.monotonic() - started)


def obstacle(lake: Lake, stream: str, columns: Mapping[str, str]) -> str | None:
    """Return why columns of a stream cannot become wider; None where :func:`retype` with `widen` would do it."""
    try:
        table, changes = _changes(lake, stream, columns)
        if changes:
            _Retype(lake, stream, table, changes, "UTC", False, None).refuse(widen=True)
    except InputError as error:
        return f"{error.problem}; {error.remedy}"
    return None


def _count(table: DeltaTable) -> int:
    return int(table.to_pyarrow_dataset().count_rows())


def _changes(lake: Lake, stream: str, columns: Mapping[str, str]) -> tuple[DeltaTable, Changes]:
    """Return the stream's events as they are committed, and the columns that change."""
    table = open_events(lake, stream)
    if table is None:
        known = streams(lake)
        remedy = did_you_mean(stream, known) if known else "ingest some first"
        raise InputError(f"stream {stream}", None, f"no row of it is in {lake.uri}", remedy)
    schema = table.to_pyarrow_dataset().schema
    changes: Changes = {}
    for name, text in columns.items():
        where = f"stream {stream}: column {name}"
        if name in ALWAYS_THERE:
            raise InputError(where, None, "has one type in every stream", "name another column")
        if name not in schema.names:
            options = [other for other in schema.names if other not in ALWAYS_THERE]
            raise InputError(where, None, "does not exist", did_you_mean(name, options))
        try:
            after = normal_type(text)
        except ColumnTypeError as error:
            raise InputError(where, text, error.problem, error.remedy) from None
        before = spark_type(schema.field(name).type)
        if before != after:
            if before in ("binary", "void") or element_types(before) or element_types(after):
                raise InputError(where, text, f"cannot be made of {before}", "name a column of single values")
            changes[name] = before, after
    return table, changes


@dataclass
class _Retype:
    """The work of one call: first it is checked, then it is written."""

    lake: Lake
    stream: str
    table: DeltaTable
    changes: Changes
    zone: str
    decimal_comma: bool
    lease: Lease | None
    misfits: dict[str, int] = field(default_factory=dict)
    """Rows that move to quarantine, by the first of the columns whose value does not fit."""

    # ---------------------------------------------------------------------------------------------------------- check

    def refuse(self, widen: bool) -> None:
        """Refuse a change that loses all values, breaks a query that has run, or is not the widening it should be."""
        for name, (before, after) in self.changes.items():
            if widen and not is_widening(before, after):
                raise self._error(name, f"is {before}, and not every value of that is a {after}", "retype it by hand")
        values, odd = self._count_misfits()
        for name, count in values.items():
            if count and self.misfits.get(name) == count:
                after, text = self.changes[name][1], odd[name]
                raise self._error(name, f"has no value that is {after}, but such as {text!r}", "choose another type")
        if widen and self.misfits:
            name, count = next(iter(self.misfits.items()))
            before, after = self.changes[name]
            problem = f"has {quantity(count, 'value')} that {after} does not hold exactly, such as {odd[name]}"
            raise self._error(name, problem, f"it stays {before}")
        self.refuse_queries()

    def refuse_queries(self) -> None:
        """Refuse the change where a query that has run stands against it."""
        reading = [query for query in stored_queries(self.lake) if query.reads(self.stream)]
        moved = sum(self.misfits.values())
        if moved and reading:
            name = next(iter(self.misfits))
            problem = (
                f"{quantity(moved, 'row')} would go to quarantine, and {_names(reading)} counted the stream's rows"
            )
            raise self._error(name, problem, _forget(reading))
        for name, (before, after) in self.changes.items():
            wider = is_widening(before, after) and is_number(before)
            using = [query for query in reading if (query.shows if wider else query.uses)(self.stream, name)]
            if using:
                verb = "has results of" if wider else "uses"
                problem = f"cannot become {after}: {_names(using)} {verb} the column as {before}"
                raise self._error(name, problem, _forget(using))

    def _error(self, column: str, problem: str, remedy: str) -> InputError:
        return InputError(f"stream {self.stream}: column {column}", None, problem, remedy)

    def _count_misfits(self) -> tuple[dict[str, int], dict[str, str]]:
        """Count the rows that move, and return for every column the number of its values, and one that does not fit."""
        values = dict.fromkeys(self.changes, 0)
        odd: dict[str, str] = {}
        doubtful = [name for name in self.changes if not self._fits_surely(name)]
        if not doubtful:
            return values, odd
        dataset = self.table.to_pyarrow_dataset()
        with self.lake.table("events", self.stream).naming_errors():
            for batch in dataset.scanner(columns=doubtful).to_batches():
                fit = np.ones(batch.num_rows, np.bool_)
                for name in doubtful:
                    column = batch.column(name)
                    values[name] += len(column) - column.null_count
                    _, fits = self._convert(name, column)
                    if not fits.all():
                        new = int(np.count_nonzero(fit & ~fits))
                        self.misfits[name] = self.misfits.get(name, 0) + new
                        least = pc.min(_as_text(column.filter(pa.array(~fits)), self.changes[name][0])).as_py()[:_SHOWN]
                        odd[name] = min(odd.get(name, least), least)
                    fit &= fits
        self.misfits = {name: count for name, count in self.misfits.items() if count}
        return values, odd

    def _fits_surely(self, name: str) -> bool:
        """Return whether types alone, or the statistics of the files, tell that every value fits."""
        before, after = self.changes[name]
        if not is_widening(before, after):
            return after == "string"
        if not needs_bound(before, after):
            return True
        actions = pa.table(self.table.get_add_actions(flatten=True))
        bounds = [f"{side}.{name}" for side in ("min", "max")]
        if not {*bounds, "num_records", f"null_count.{name}"} <= {*actions.column_names}:
            return False
        without = pc.fill_null(pc.equal(actions["num_records"], actions[f"null_count.{name}"]), False)
        actions = actions.filter(pc.invert(without))
        sides = [actions[bound] for bound in bounds]
        if any(side.null_count or not pa.types.is_integer(side.type) for side in sides):
            return False
        return all(
            bool(
                pc.all(pc.and_(pc.less_equal(side, EXACT_IN_DOUBLE), pc.greater_equal(side, -EXACT_IN_DOUBLE))).as_py()
            )
            for side in sides
            if len(side)
        )

    def _convert(self, name: str, column: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
        return _change(column, *self.changes[name], self.zone, self.decimal_comma)

    # ---------------------------------------------------------------------------------------------------------- write

    def write(self, progress: Callable[[str], None]) -> int:
        """Write the events anew, and the rows that move; commit, and return the number of rows that stay."""
        changed = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in self.changes.items())
        progress(f"retype: {self.stream}: {changed}")
        number = self._plan()
        crash_points.point("retype:planned")
        handle = self.lake.table("events", self.stream)
        newest = handle.take_back("ingest", uncommitted(self.lake, number))
        assert newest is not None
        self.table = newest
        paths: list[str] = []
        try:
            with handle.naming_errors():
                schema, actions, moved, rows = self._write_files(paths, progress)
            crash_points.point("retype:files")
            self.refuse_queries()
            self._confirm()
            newest.create_write_transaction(
                actions,
                "overwrite",
                Schema.from_arrow(schema),
                commit_properties=CommitProperties(
                    app_transactions=[Transaction("ingest", number)], max_commit_retries=0
                ),
            )
        except BaseException:
            filesystem, _ = self.lake.filesystem()
            for path in paths:
                with contextlib.suppress(OSError):
                    filesystem.delete_file(path)
            raise
        crash_points.point("retype:events")
        if moved is not None:
            quarantined = moved.append_column("ingest_id", pa.array([number] * len(moved), pa.int64()))
            self.lake.table("quarantine", self.stream).append(
                quarantined, "ingest", number, undone=uncommitted(self.lake, number)
            )
        crash_points.point("retype:quarantine")
        self._commit(number, 0 if moved is None else len(moved))
        return rows

    def _confirm(self) -> None:
        if self.lease is not None:
            self.lease.confirm()

    def _plan(self) -> int:
        """Record a plan, which makes void any other that was not carried out, and take back what that had written."""
        journal = self.lake.table("ingest", "journal")
        planned = journal.last_version("ingest")
        number = 0 if planned is None else planned + 1
        self._confirm()
        plan = {"retype": {self.stream: self.changes}, "clock_us": time.time_ns() // 1000}
        journal.append(pa.Table.from_pylist([{"number": number, "plan": json.dumps(plan)}]), "ingest", number)
        if planned is not None and planned > last_committed(self.lake):
            for area in ("events", "quarantine"):
                for stream in self.lake.names(area):
                    self.lake.table(area, stream).take_back("ingest", uncommitted(self.lake))
        return number

    def _commit(self, number: int, moved: int) -> None:
        seq = committed_seq(self.lake)
        row = {
            "number": number,
            "seq_from": seq,
            "seq_to": seq,
            "counts": json.dumps({self.stream: {"rows": -moved, "quarantined": moved}}),
            "digests": [],
            "files": [],
            "looks": [],
            "positions": "{}",
        }
        self._confirm()
        committed = self.lake.table("ingest", "committed")
        if not committed.append(pa.Table.from_pylist([row], schema=COMMITTED), "ingest", number):
            raise LeaseLost("ingest", "another process")
        crash_points.point("retype:committed")
        compact_and_vacuum([self.lake.table("ingest", name) for name in ("committed", "journal")])
        if moved:
            compact_and_vacuum([self.lake.table("quarantine", self.stream)])

    def _write_files(
        self, paths: list[str], progress: Callable[[str], None]
    ) -> tuple[pa.Schema, list[AddAction | RemoveAction], pa.Table | None, int]:
        """Write the rows in their order, some files one after another, and return what Delta has to know of them.

        Their paths are added to `paths` before they are written.

        Returns
        -------
        schema, actions, moved, rows
            The new schema, the new files, the rows for quarantine, and the number of rows that stay.
        """
        dataset = self.table.to_pyarrow_dataset()
        schema = dataset.schema
        for name, (_, after) in self.changes.items():
            place = schema.get_field_index(name)
            schema = schema.set(place, pa.field(name, arrow_type(after)))
        filesystem, root = self.lake.filesystem()
        folder = f"{root}/events/{self.stream}"
        actions: list[AddAction | RemoveAction] = []
        moved: list[pa.Table] = []
        stay = 0
        ranges = _ranges(dataset.to_table(columns=["seq"])["seq"].to_numpy(), _rows_at_a_time(schema))
        for place, (low, high) in enumerate(ranges):
            rows = dataset.to_table(filter=within_bounds(low, high, None, None)).sort_by("seq")
            rows, odd = self._split(rows)
            rows = rows.cast(schema)
            stay += rows.num_rows
            moved += [] if odd is None else [odd]
            if rows.num_rows:
                name = f"part-{place:05}-{uuid.uuid4()}-c000.snappy.parquet"
                paths.append(f"{folder}/{name}")
                pq.write_table(rows, paths[-1], filesystem=filesystem, row_group_size=_ROW_GROUP)
                size = filesystem.get_file_info(paths[-1]).size
                actions.append(AddAction(name, size, {}, time.time_ns() // 1_000_000, True, json.dumps(_stats(rows))))
            if place % 10 == 9:
                progress(f"retype: {place + 1} of {len(ranges)} files written")
        return schema, actions, pa.concat_tables(moved) if moved else None, stay

    def _split(self, rows: pa.Table) -> tuple[pa.Table, pa.Table | None]:
        """Convert the columns, and return the rows that fit and those for quarantine; None where there are none."""
        before = rows
        fit = np.ones(rows.num_rows, np.bool_)
        reasons = pa.nulls(rows.num_rows, pa.string())
        for name, (old, new) in self.changes.items():
            column = before[name].combine_chunks()
            values, fits = self._convert(name, column)
            if not fits.all():
                text = pc.utf8_slice_codeunits(_as_text(column, old), 0, _SHOWN)
                said = pc.binary_join_element_wise(f"column {name} is not {new}: '", text, "'", "")
                reasons = pc.if_else(pa.array(~fits & fit), said, reasons)
                fit &= fits
            rows = rows.set_column(rows.schema.get_field_index(name), name, values)
        if fit.all():
            return rows, None
        odd = before.filter(pa.array(~fit))
        moved = pa.table(
            {
                "raw": _as_json(odd),
                "file": pa.array([f"events/{self.stream}"] * odd.num_rows, pa.string()),
                "line": odd["seq"],
                "reason": reasons.filter(pa.array(~fit)),
            }
        )
        return rows.filter(pa.array(fit)), moved


def _names(queries: Sequence[StoredQuery]) -> str:
    names = [query.name for query in queries]
    return f"query {names[0]}" if len(names) == 1 else f"queries {', '.join(names)}"


def _forget(queries: Sequence[StoredQuery]) -> str:
    return f"forget and run again: {' && '.join(f'latecomer forget {query.name}' for query in queries)}"


# ---------------------------------------------------------------------------------------------------------------- rows


def _rows_at_a_time(schema: pa.Schema) -> int:
    """Return the number of rows of a file: fewer where rows are wide."""
    width = sum(8 if pa.types.is_primitive(column.type) else _TEXT_BYTES for column in schema)
    return max(1, min(MOST_ROWS, _CHUNK_BYTES // width))


def _ranges(seq: NDArray[np.int64], size: int) -> list[tuple[int, int]]:
    """Return ranges ``[low, high)`` of arrivals that hold `size` rows each."""
    ordered = np.sort(seq)
    lows = ordered[::size].tolist()
    highs = [*lows[1:], int(ordered[-1]) + 1] if len(lows) else []
    return list(zip(lows, highs, strict=True))


def _stats(rows: pa.Table) -> dict[str, object]:
    """Return the statistics of a file, by which readers leave files out."""
    least: dict[str, object] = {}
    most: dict[str, object] = {}
    nulls = {}
    for name in rows.column_names:
        column = rows[name]
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        bounds = _bounds(column)
        if bounds is not None:
            least[name], most[name] = bounds
    return {"numRecords": rows.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _bounds(column: pa.ChunkedArray) -> tuple[object, object] | None:
    """Return a lower and an upper bound of the values as statistics have them; None where there are none.

    Every file has them, since some readers leave out files without the bounds that others have.
    """
    types, kind = pa.types, column.type
    if column.null_count == len(column) or types.is_binary(kind):
        return None
    if types.is_floating(kind):
        if not pc.all(pc.is_finite(column)).as_py():  # JSON has no such numbers
            largest = float(np.finfo(kind.to_pandas_dtype()).max)
            return -largest, largest
        low, high = (bound.as_py() for bound in pc.min_max(column).values())
        return low or -0.0, high or 0.0  # either zero may be among the values
    low, high = pc.min_max(column).values()
    if types.is_timestamp(kind):
        form = "%Y-%m-%dT%H:%M:%SZ" if kind.tz else "%Y-%m-%d %H:%M:%S"
        return pc.strftime(low, form).as_py(), pc.strftime(high, form).as_py()
    if types.is_date(kind):
        return low.cast(pa.string()).as_py(), high.cast(pa.string()).as_py()
    if types.is_string(kind):
        return _prefix(low.as_py(), ""), _prefix(high.as_py(), chr(sys.maxunicode))
    if types.is_decimal(kind):
        numbers = [int(bound.as_py()) if kind.scale == 0 else float(bound.as_py()) for bound in (low, high)]
        exact = all(Decimal(repr(number)) == bound.as_py() for number, bound in zip(numbers, (low, high), strict=True))
        return (numbers[0], numbers[1]) if exact else None
    return low.as_py(), high.as_py()


def _prefix(text: str, behind: str) -> str:
    """Return a long text's beginning, and behind it a character after which no other comes."""
    return text if len(text) <= _TEXT_BYTES else text[:_TEXT_BYTES] + behind


# -------------------------------------------------------------------------------------------------------------- values


def _change(
    values: pa.Array, before: str, after: str, zone: str, decimal_comma: bool
) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Convert values of one type to another, and return whether they fit it.

    What is no text and no widening is converted as the text that stands for the value.
    """
    target = arrow_type(after)
    if before == "string":
        return convert(values, after, zone, decimal_comma)
    if after == "string":
        return _as_text(values, before), np.ones(len(values), np.bool_)
    if before in WHOLE and after in FLOATING:
        return _nearest(values, target)
    if is_widening(before, after):
        return values.cast(target), np.ones(len(values), np.bool_)
    if before.startswith("timestamp"):
        return _of_times(values, after)
    return convert(_as_text(values, before), after, zone)


def _nearest(values: pa.Array, target: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Convert whole numbers to floating ones; they fit where they stay what they are."""
    numbers = pc.fill_null(values, 0).to_numpy().astype(np.int64)
    floating = numbers.astype(target.to_pandas_dtype())
    inside = (floating >= -(2.0**63)) & (floating < 2.0**63)  # beyond, the way back has no value
    fits = inside & (np.where(inside, floating, 0).astype(np.int64) == numbers)
    nulls = pc.is_null(values).to_numpy(zero_copy_only=False)
    return pa.array(floating, target, mask=nulls | ~fits), fits


def _of_times(values: pa.Array, after: str) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Convert times to dates, where they are midnight in UTC, and to times with or without a zone."""
    target, nulls = arrow_type(after), pc.is_null(values).to_numpy(zero_copy_only=False)
    us = pc.fill_null(values.cast(pa.int64()), 0).to_numpy()
    if after.startswith("timestamp"):
        return pa.array(us, mask=nulls).cast(target), np.ones(len(values), np.bool_)
    if after != "date":
        return pa.nulls(len(values), target), nulls
    fits = us % _DAY_US == 0
    return pa.array((us // _DAY_US).astype(np.int32), mask=nulls | ~fits).cast(target), fits | nulls


def _as_text(values: pa.Array, kind: str) -> pa.Array:
    """Return the texts that stand for values: the shortest that gives a floating number, ISO 8601 for times."""
    if kind == "string":
        return values.cast(pa.string())
    if kind.startswith("timestamp"):
        zone = "Z" if kind == "timestamp" else ""
        return pc.strftime(values, f"%Y-%m-%dT%H:%M:%S{zone}")
    text = values.cast(pa.string())
    if kind in FLOATING:
        for plain, name in (("nan", "NaN"), ("-nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
            text = pc.if_else(pc.equal(text, plain), name, text)
    return text


def _as_json(rows: pa.Table) -> pa.Array:
    """Return every row as a JSON object without its nulls, as rows of Parquet files are kept in quarantine."""
    members = [
        pc.binary_join_element_wise(json.dumps(name, ensure_ascii=False) + ":", text, "")
        for name in rows.column_names
        if (text := _json_values(rows[name].combine_chunks())) is not None
    ]
    joined = pc.binary_join_element_wise(*members, ",", null_handling="skip")
    whole = pc.binary_join_element_wise("{", joined, "}", "")
    return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole


def _json_values(values: pa.Array) -> pa.Array:
    """Return values as JSON."""
    types, kind = pa.types, values.type
    if types.is_nested(kind) or types.is_binary(kind) or types.is_null(kind):
        return pa.array([None if v is None else json.dumps(v, default=str) for v in values.to_pylist()], pa.string())
    text = _as_text(values, spark_type(kind))
    if types.is_integer(kind) or types.is_decimal(kind) or types.is_boolean(kind):
        return text
    quoted = pc.binary_join_element_wise('"', _escaped(text), '"', "")
    if types.is_floating(kind):
        return pc.if_else(pc.is_finite(values), text, quoted)
    return quoted


def _escaped(text: pa.Array) -> pa.Array:
    text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]")).as_py():
        for code in range(32):
            text = pc.replace_substring(text, chr(code), json.dumps(chr(code))[1:-1])
    return text
