"""Views of a query for its readers, joined from tables that have one writer each, without a JVM.

``results`` is on-time rows plus corrections and backfills, in their latest revision; ``late`` gains ``repaired_in``
from the repairs. Every view is sorted by the identity of its rows, so two lakes that hold the same rows export the same
file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from latecomer.core.gamma_batches import assign
from latecomer.lake import delta, ingest_log, journal, row_keys
from latecomer.lake.atomic_file import atomic_file
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.specs.clauses import ENVELOPE, STORED
from latecomer.specs.spec import Answers, Spec
from latecomer.specs.windows import WINDOW, WindowedSpec

_ANSWERS = ["on_time", "corrections", "backfill"]


def view(lake: Lake, spec: Spec, name: str) -> pa.Table:
    """Return ``results``, ``on_time``, ``corrections``, ``late`` or ``quarantine`` as a table.

    The ledger is not among them: :mod:`latecomer.ledger.ledger` has it.

    Raises
    ------
    InputError
        The query has not been run in this lake, or computed something else when it was run.
    """
    if name == "quarantine":
        return quarantine(lake, spec.stream_names)
    journal.state_for(lake, spec)
    return {
        "results": results,
        "on_time": lambda lake, spec: _sorted_rows(lake, spec, ["on_time"], latest=False),
        "corrections": lambda lake, spec: _sorted_rows(lake, spec, ["corrections"], latest=False),
        "late": late,
    }[name](lake, spec)


def results(lake: Lake, spec: Spec, within: Mapping[str, pc.Expression] | None = None) -> pa.Table:
    """Return on-time rows, corrections and backfills without duplicates.

    Each answer appears in its newest revision; where answers only grow, in its first. A backfilled answer is
    ``repaired``, one revision after the last that `run` and `repair` have written; where answers only grow, it is left
    out once they have written it.

    Parameters
    ----------
    within
        Filters by table: only rows that pass are read. They keep all rows of an answer or none.
    """
    return _sorted_rows(lake, spec, _ANSWERS, latest=True, within=within)


def _sorted_rows(
    lake: Lake, spec: Spec, areas: list[str], *, latest: bool, within: Mapping[str, pc.Expression] | None = None
) -> pa.Table:
    read = {area: lake.table(area, spec.name).read(filter=(within or {}).get(area)) for area in areas}
    written = {area: rows for area, rows in read.items() if rows is not None}
    if "backfill" in written and isinstance(spec, WindowedSpec):
        added = spec.answers is Answers.ADDED
        answer = spec.result_keys if added else (*spec.group_by, "window_start")
        written["backfill"] = _continued(written, answer, drop=added)
    parts = list(written.values())
    if not parts:  # no correction was ever written: the columns of the on-time rows, and no row
        empty = lake.table("on_time", spec.name).read(filter=pc.scalar(False))
        parts = [] if empty is None else [empty]
    if not parts:
        return pa.table({})
    rows = _with_all_columns(lake, spec, pa.concat_tables(parts, promote_options="default"))
    keys = [name for name in spec.result_keys if name in rows.column_names]
    if latest and spec.answers is Answers.REPLACED:
        rows = _newest_windows(rows)
    grows = spec.answers is Answers.ADDED
    newest = [("published_seq", "descending" if grows else "ascending"), ("revision", "ascending")]
    rows = rows.take(pc.sort_indices(rows, sort_keys=[*((name, "ascending") for name in keys), *newest]))
    if latest and rows.num_rows > 1:
        rows = rows.filter(row_keys.last_of_each(rows, keys))
    if spec.kind == "aggregate":
        rows = _with_coverage(lake, spec, rows, keys, read)
    return _without_stored(rows)


def as_results(lake: Lake, spec: Spec, rows: pa.Table) -> pa.Table:
    """Return stored rows, each an answer that no other row revises, with the columns of `results`."""
    return _without_stored(_with_all_columns(lake, spec, rows))


def _without_stored(rows: pa.Table) -> pa.Table:
    """Leave out the columns that stored tables have beside the result's."""
    return rows.drop_columns([name for name in STORED if name in rows.column_names])


def _continued(parts: Mapping[str, pa.Table], keys: Sequence[str], *, drop: bool) -> pa.Table:
    """Continue the revisions of backfilled rows after the last one of the same answer (rows with equal `keys`).

    `drop`: leave out the rows whose answer has been written elsewhere, instead.
    """
    backfill = parts["backfill"]
    others = [rows for area, rows in parts.items() if area != "backfill"]
    *codes, backfill_code = row_keys.codes([*others, backfill], keys)
    answers = 1 + max(int(code.max(initial=-1)) for code in (backfill_code, *codes))
    last = np.full(answers, -1, np.int32)
    for rows, code in zip(others, codes, strict=True):
        np.maximum.at(last, code, rows["revision"].to_numpy())
    if drop:
        return backfill.filter(pa.array(last[backfill_code] < 0))
    place = backfill.column_names.index("revision")
    return backfill.set_column(place, "revision", pa.array(last[backfill_code] + 1, pa.int32()))


def _with_all_columns(lake: Lake, spec: Spec, rows: pa.Table) -> pa.Table:
    """Return rows of a query without `select` with all columns that its streams have by now, in the streams' order.

    A column that came later is last in the stored table or missing there, depending on the cut into micro-batches.
    """
    if not spec.selects_all:
        return rows
    streams = dict(spec.streams)
    shapes = {stream: ingest_log.columns(lake, stream) for stream in spec.stream_names}
    # a stream may have gained a column with the name of a fixed one: `run` refuses it
    fixed = {*ENVELOPE, *STORED, *WINDOW}
    columns = {stream: shape.names for stream, shape in shapes.items()}
    carried = [each for each in spec.default_columns(columns) if each[0] not in fixed]
    for name, alias, column in carried:
        if name not in rows.column_names:
            kind = shapes[streams[alias]].field(column).type
            rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
    carried_names = {name for name, _, _ in carried}
    others = [name for name in rows.column_names if name not in carried_names]
    place = others.index(ENVELOPE[0])
    return rows.select([*others[:place], *(name for name, _, _ in carried), *others[place:]])


def _newest_windows(rows: pa.Table) -> pa.Table:
    """Return the rows of each window's newest answer, where an answer consists of many rows.

    A flush publishes under the number of the next arrival, so a correction by that arrival has the same
    ``published_seq``.
    """
    (window,) = row_keys.codes([rows], ["window_start"])
    published, revision = (rows[name].to_numpy() for name in ("published_seq", "revision"))
    order = np.lexsort((revision, published, window))
    newest = np.empty(int(window.max(initial=-1)) + 1, np.int64)
    newest[window[order]] = order  # the last assignment stays
    newest = newest[window]
    return rows.filter(pa.array((published == published[newest]) & (revision == revision[newest])))


def _with_coverage(
    lake: Lake, spec: Spec, rows: pa.Table, keys: list[str], read: Mapping[str, pa.Table | None]
) -> pa.Table:
    """Replace ``coverage`` by the rows in the first answer divided by the rows known now.

    0 where there was no first answer.

    `read` holds the answer tables that were read whole already; the others are read here.
    """
    columns = [*keys, "rows", "provenance"]
    first, *again = (
        read[area] if area in read else lake.table(area, spec.name).read(columns=columns) for area in _ANSWERS
    )
    if first is not None:  # `run` may have published an answer again
        recalled = pc.equal(first["provenance"], "recalled")
        first, again = first.filter(pc.invert(recalled)), [first.filter(recalled), *again]
    corrected = [part for part in again if part is not None and part.num_rows]
    if not corrected or not rows.num_rows:
        return rows
    parts = [rows, *corrected] if first is None else [rows, *corrected, first]
    codes = row_keys.codes(parts, keys)
    answers = 1 + max(int(code.max(initial=-1)) for code in codes)
    rows_at_first, rows_now = np.zeros(answers, np.int64), np.zeros(answers, np.int64)
    for part, code in zip(parts, codes, strict=True):
        np.maximum.at(rows_now, code, part["rows"].to_numpy())
    if first is not None:
        rows_at_first[codes[-1]] = first["rows"].to_numpy()
    share = rows_at_first[codes[0]] / np.maximum(rows_now[codes[0]], 1)
    place = rows.column_names.index("coverage")
    return rows.set_column(place, "coverage", pa.array(share, pa.float64()))


def late(lake: Lake, spec: Spec) -> pa.Table:
    """Return the registered late rows with the arrival that closed their Gamma batch, null while pending."""
    rows = lake.table("late", spec.name).read()
    if rows is None:
        return pa.table({"seq": pa.array([], pa.int64()), "repaired_in": pa.array([], pa.int64())})
    order = [("seq", "ascending")] + [(n, "ascending") for n in ("alias", "window_start") if n in rows.column_names]
    rows = rows.take(pc.sort_indices(rows, sort_keys=order))
    batch = assign(rows["seq"].to_numpy(), closing_arrivals(lake, spec.name))
    rows = rows.append_column("repaired_in", pa.array(batch, pa.int64(), mask=batch < 0))
    return _without_stored(rows)


def closing_arrivals(lake: Lake, query: str) -> np.ndarray:
    """Return the arrivals that closed a repaired Gamma batch, int64[n], increasing."""
    rows = lake.table("repairs", query).read(columns=["closes"])
    if rows is None:
        return np.empty(0, np.int64)
    return np.sort(pc.list_flatten(rows["closes"].combine_chunks()).to_numpy(zero_copy_only=False).astype(np.int64))


def closed_to(lake: Lake, query: str) -> int:
    """Return the last arrival up to which all late rows are repaired; -1 before the first repair."""
    return repaired_to(lake, query)[0]


def repaired_to(lake: Lake, query: str) -> tuple[int, int]:
    """Return the last arrival up to which all late rows are repaired, and the corrections counted by then.

    The arrival is -1 before the first repair. Both come from one version of the table.
    """
    rows = lake.table("repairs", query).read(columns=["closes", "repaired"])
    if rows is None:
        return -1, 0
    closes = pc.list_flatten(rows["closes"].combine_chunks())
    last, counted = pc.max(closes).as_py(), pc.sum(rows["repaired"]).as_py()
    return -1 if last is None else last, counted or 0


def repairs_planned_to(lake: Lake, query: str) -> int:
    """Return the last arrival up to which all late rows are repaired, or will be by a repair that is planned; or -1."""
    last = lake.table("repairs", query).last_version("repair")
    plan = journal.planned(lake, query, "repair", 0 if last is None else last + 1)
    return closed_to(lake, query) if plan is None else int(plan["closes"][-1])


def pending(lake: Lake, query: str, seq_to: int) -> int:
    """Count the late rows among the first `seq_to` arrivals that await repair."""
    seq = pc.field("seq")
    waiting = lake.table("late", query).read(columns=["seq"], filter=(seq > closed_to(lake, query)) & (seq < seq_to))
    return 0 if waiting is None else int(pc.count_distinct(waiting["seq"]).as_py())


def quarantine(lake: Lake, streams: Sequence[str]) -> pa.Table:
    """Return the quarantined rows of the given streams with the stream's name.

    An uncommitted ingestion's rows are not among them.
    """
    parts = []
    last = ingest_log.last_committed(lake)
    for stream in dict.fromkeys(streams):
        rows = ingest_log.read_quarantine(lake, stream, last)
        if rows is not None:
            parts.append(rows.add_column(0, "stream", pa.array([stream] * rows.num_rows, pa.string())))
    if not parts:
        names = [
            ("stream", pa.string()),
            ("raw", pa.string()),
            ("file", pa.string()),
            ("line", pa.int64()),
            ("reason", pa.string()),
        ]
        return pa.schema(names).empty_table()
    rows = pa.concat_tables(parts, promote_options="default")
    return rows.take(
        pc.sort_indices(rows, sort_keys=[("stream", "ascending"), ("file", "ascending"), ("line", "ascending")])
    )


def write_file(rows: pa.Table, path: Path) -> None:
    """Write one Parquet or CSV file, whole or not at all; timestamps in UTC microseconds.

    Raises
    ------
    InputError
        The suffix is neither ``.parquet`` nor ``.csv``, or the folder cannot be written.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise InputError("--to", str(path), "is neither a .parquet nor a .csv file", "end the name in .parquet or .csv")
    rows = rows.cast(pa.schema([field.with_type(_utc(field.type)) for field in rows.schema]))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as part:
            if path.suffix == ".parquet":
                pa.parquet.write_table(rows, part)
            else:
                pa.csv.write_csv(_flat(rows), part)
    except OSError as error:
        raise InputError(
            "--to", str(path), error.strerror or str(error), "choose a folder that can be written"
        ) from None


def _utc(kind: pa.DataType) -> pa.DataType:
    return delta.TIMESTAMP if pa.types.is_timestamp(kind) else kind


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=lambda v: v.hex() if isinstance(v, bytes) else str(v))


def _flat(rows: pa.Table) -> pa.Table:
    """Lists and structs as JSON, bytes as hexadecimal digits: CSV has neither."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
            values = rows[field.name].to_pylist()
            text = pa.array(
                [None if v is None else v.hex() if isinstance(v, bytes) else _json(v) for v in values], pa.string()
            )
            rows = rows.set_column(place, field.name, text)
    return rows
