"""Read-side views of a query: what its user reads, joined from tables with one writer each. No JVM.

``results`` is on-time rows plus corrections, latest revision; ``late`` gains ``repaired_in`` from the repairs;
a join's ``ledger`` joins the run's half (published, registered, held) with the repair's (missed and repaired). Every view is
sorted by its rows' identity, so two lakes that hold the same rows export the same file.
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
    """``results``, ``on_time``, ``corrections``, ``late`` or ``quarantine`` as a table.

    Not the ledger, which differs by kind: :mod:`latecomer.ledger.ledger` has it.

    Raises
    ------
    InputError
        The query has not been run in this lake, or computed something else when it was run.
    """
    if name == "quarantine":
        return quarantine(lake, [stream for _, stream in spec.streams])
    journal.state_for(lake, spec)
    return {
        "results": results,
        "on_time": lambda lake, spec: _sorted_rows(lake, spec, ["on_time"], latest=False),
        "corrections": lambda lake, spec: _sorted_rows(lake, spec, ["corrections"], latest=False),
        "late": late,
    }[name](lake, spec)


def results(lake: Lake, spec: Spec, within: Mapping[str, pc.Expression] | None = None) -> pa.Table:
    """On-time rows, corrections and backfills, no duplicates: the newest answer, or the first where answers only grow.

    A backfill's answer is ``repaired``, and one revision after the last that `run` and `repair` have written of it. Where answers
    only grow, it is only shown until they have written it too.
    With `within`, of the rows that pass it, by table; ``coverage`` then is what the newest row says of itself.
    """
    return _sorted_rows(lake, spec, _ANSWERS, latest=True, within=within)


def _sorted_rows(
    lake: Lake, spec: Spec, areas: list[str], *, latest: bool, within: Mapping[str, pc.Expression] | None = None
) -> pa.Table:
    read = {area: lake.table(area, spec.name).read(filter=(within or {}).get(area)) for area in areas}
    known = {area: part for area, part in read.items() if part is not None}
    if "backfill" in known and isinstance(spec, WindowedSpec):
        added = spec.answers is Answers.ADDED
        answer = spec.result_keys if added else (*spec.group_by, "window_start")
        known["backfill"] = _continued(known, answer, drop=added)
    parts = list(known.values())
    if not parts:
        # no correction was ever written: the same columns, no row
        shape = lake.table("on_time", spec.name).read(filter=pc.scalar(False))
        parts = [] if shape is None else [shape]
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
    if spec.kind == "aggregate" and within is None:
        rows = _with_coverage(lake, spec, rows, keys, read)
    return rows.drop_columns([name for name in STORED if name in rows.column_names])


def _continued(parts: Mapping[str, pa.Table], keys: Sequence[str], *, drop: bool) -> pa.Table:
    """The backfill's rows, the revision of each one after the last of its answer (rows with the same `keys`); or without those that have one."""
    others = [rows for area, rows in parts.items() if area != "backfill"]
    *codes, own = row_keys.codes([*others, parts["backfill"]], keys)
    last = np.full(1 + max(int(each.max(initial=-1)) for each in (own, *codes)), -1, np.int32)
    for rows, code in zip(others, codes, strict=True):
        np.maximum.at(last, code, rows["revision"].to_numpy())
    if drop:
        return parts["backfill"].filter(pa.array(last[own] < 0))
    place = parts["backfill"].column_names.index("revision")
    return parts["backfill"].set_column(place, "revision", pa.array(last[own] + 1, pa.int32()))


def _with_all_columns(lake: Lake, spec: Spec, rows: pa.Table) -> pa.Table:
    """Rows of a query without `select`, with the columns that its streams have by now, in their order.

    A column that came later stands last in the table, or is not there, as the cut into micro-batches had it.
    """
    if not spec.selects_all:
        return rows
    streams = dict(spec.streams)
    shapes = {stream: ingest_log.columns(lake, stream) for stream in streams.values()}
    # a column of such a name may have come since: `run` refuses it
    fixed = {*ENVELOPE, *STORED, *WINDOW}
    columns = {stream: shape.names for stream, shape in shapes.items()}
    carried = [each for each in spec.default_columns(columns) if each[0] not in fixed]
    for name, alias, column in carried:
        if name not in rows.column_names:
            kind = shapes[streams[alias]].field(column).type
            rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
    own = {name for name, _, _ in carried}
    others = [name for name in rows.column_names if name not in own]
    place = others.index(ENVELOPE[0])
    return rows.select([*others[:place], *(name for name, _, _ in carried), *others[place:]])


def _newest_windows(rows: pa.Table) -> pa.Table:
    """Rows of each window's newest answer, where an answer is many rows that stand together.

    A flush publishes before the next arrival, under its number: what that arrival corrects has the same `published_seq`.
    """
    (window,) = row_keys.codes([rows], ["window_start"])
    published, revision = (rows[name].to_numpy() for name in ("published_seq", "revision"))
    order = np.lexsort((revision, published, window))
    newest = np.empty(int(window.max(initial=-1)) + 1, np.int64)
    newest[window[order]] = order  # the last one stays
    newest = newest[window]
    return rows.filter(pa.array((published == published[newest]) & (revision == revision[newest])))


def _with_coverage(
    lake: Lake, spec: Spec, rows: pa.Table, keys: list[str], read: Mapping[str, pa.Table | None]
) -> pa.Table:
    """``coverage``: rows of the first answer, as a share of those the window is known to have by now; 0 without a first.

    `read` are tables of answers that were read already, whole; the others are read here.
    """
    columns = [*keys, "rows"]
    first, *again = (
        read[area] if area in read else lake.table(area, spec.name).read(columns=columns) for area in _ANSWERS
    )
    known = [part for part in again if part is not None and part.num_rows]
    if not known or not rows.num_rows:
        return rows
    parts = [rows, *known] if first is None else [rows, *known, first]
    codes = row_keys.codes(parts, keys)
    here, last = codes[0], 1 + max(int(each.max(initial=-1)) for each in codes)
    published, by_now = np.zeros(last, np.int64), np.zeros(last, np.int64)
    for part, code in zip(parts, codes, strict=True):
        np.maximum.at(by_now, code, part["rows"].to_numpy())
    if first is not None:
        published[codes[-1]] = first["rows"].to_numpy()
    share = published[here] / np.maximum(by_now[here], 1)
    place = rows.column_names.index("coverage")
    return rows.set_column(place, "coverage", pa.array(share, pa.float64()))


def late(lake: Lake, spec: Spec) -> pa.Table:
    """Registered late rows with the arrival that closed their repair batch, null while pending."""
    rows = lake.table("late", spec.name).read()
    if rows is None:
        return pa.table({"seq": pa.array([], pa.int64()), "repaired_in": pa.array([], pa.int64())})
    order = [("seq", "ascending")] + [(n, "ascending") for n in ("alias", "window_start") if n in rows.column_names]
    rows = rows.take(pc.sort_indices(rows, sort_keys=order))
    batch = assign(rows["seq"].to_numpy(), closing_arrivals(lake, spec.name))
    rows = rows.append_column("repaired_in", pa.array(batch, pa.int64(), mask=batch < 0))
    return rows.drop_columns([name for name in STORED if name in rows.column_names])


def closing_arrivals(lake: Lake, query: str) -> np.ndarray:
    """All arrivals that closed a repaired Gamma batch, increasing int64."""
    rows = lake.table("repairs", query).read(columns=["closes"])
    if rows is None:
        return np.empty(0, np.int64)
    return np.sort(pc.list_flatten(rows["closes"].combine_chunks()).to_numpy(zero_copy_only=False).astype(np.int64))


def closed_to(lake: Lake, query: str) -> int:
    """The last arrival whose late rows are all repaired; -1 before the first repair."""
    return repaired_to(lake, query)[0]


def repaired_to(lake: Lake, query: str) -> tuple[int, int]:
    """The last arrival whose late rows are all repaired (-1: none), and how many corrections were counted till then, of one look at them."""
    rows = lake.table("repairs", query).read(columns=["closes", "repaired"])
    if rows is None:
        return -1, 0
    closes = pc.list_flatten(rows["closes"].combine_chunks())
    last, counted = pc.max(closes).as_py(), pc.sum(rows["repaired"]).as_py()
    return -1 if last is None else last, counted or 0


def pending(lake: Lake, query: str, seq_to: int) -> int:
    """Late rows among the first `seq_to` arrivals that no repair has looked at."""
    seq = pc.field("seq")
    waiting = lake.table("late", query).read(columns=["seq"], filter=(seq > closed_to(lake, query)) & (seq < seq_to))
    return 0 if waiting is None else int(pc.count_distinct(waiting["seq"]).as_py())


def quarantine(lake: Lake, streams: Sequence[str]) -> pa.Table:
    """Rows kept out of the given streams, with their stream; those of an ingestion at work are not there yet."""
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
