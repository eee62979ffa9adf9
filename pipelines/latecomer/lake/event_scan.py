"""Read stored events by arrival and by event time, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.time import EARLIEST_US, LATEST_US
from latecomer.lake import delta, ingest_log
from latecomer.lake.lake import Lake

Spans = Sequence[tuple[int, int]]
"""Closed ranges ``[low, high]``, as :func:`latecomer.core.gamma_batches.spans` returns them."""


def arrivals(
    lake: Lake, stream: str, seq_from: int, seq_to: int, paths: Sequence[tuple[str, ...]] = ()
) -> tuple[np.ndarray, np.ndarray, pa.Table]:
    """Read the stored events with ``seq_from <= seq < seq_to`` in arrival order.

    Only the files that may hold the range are read, and of them only these columns. A path is a column's name, and
    after it the names of fields or keys inside it.

    Returns
    -------
    seq, event_time_us : int64[n]
        The arrivals, and their event times in microseconds.
    rows : Table
        The values at the `paths` in the same rows, named by their places.
    """
    seq, event_time_us = np.empty((2, max(seq_to - seq_from, 0)), np.int64)
    table = ingest_log.open_events(lake, stream)
    if table is None:
        return seq[:0], event_time_us[:0], pa.table({str(place): pa.nulls(0) for place, _ in enumerate(paths)})
    dataset = table.to_pyarrow_dataset()
    empty = dataset.schema.empty_table()
    schema = pa.schema([(str(place), values_at(path, empty).type) for place, path in enumerate(paths)])
    columns = list(dict.fromkeys(["seq", "event_ts", *(path[0] for path in paths)]))
    scanner = dataset.scanner(columns=columns, filter=within_bounds(seq_from, seq_to, None, None))
    count, batches = 0, []
    for batch in scanner.to_batches():
        place = slice(count, count := count + batch.num_rows)
        seq[place], event_time_us[place] = batch["seq"].to_numpy(), batch["event_ts"].cast(pa.int64()).to_numpy()
        if paths:
            batches.append(pa.record_batch([values_at(path, batch) for path in paths], schema=schema))
    seq, event_time_us, rows = seq[:count], event_time_us[:count], pa.Table.from_batches(batches, schema)
    if len(seq) > 1 and not (seq[1:] > seq[:-1]).all():
        order = np.argsort(seq, kind="stable")
        seq, event_time_us, rows = seq[order], event_time_us[order], rows.take(order) if paths else rows
    return seq, event_time_us, rows


def values_at(path: tuple[str, ...], rows: pa.RecordBatch | pa.Table) -> pa.Array | pa.ChunkedArray:
    """Return the values of a column, or of a field inside it; null where a struct or a key is missing."""
    name, *fields = path
    values = rows[name]
    for field in fields:
        if pa.types.is_map(values.type):
            values = pc.map_lookup(values, pa.scalar(field), "first")
        else:
            values = pc.struct_field(values, field)
    return values


def first_above(lake: Lake, stream: str, seq_to: int, above_us: int) -> int | None:
    """Return the earliest arrival before `seq_to` whose event time is above a bound (us); None where there is none."""
    table = ingest_log.open_events(lake, stream)
    if table is None or above_us >= LATEST_US:
        return None
    above = within_bounds(None, seq_to, above_us + 1 if above_us > EARLIEST_US else None, None)
    first = pc.min(table.to_pyarrow_dataset().to_table(columns=["seq"], filter=above)["seq"]).as_py()
    return None if first is None else int(first)


def within_bounds(seq_from: int | None, seq_to: int | None, low_us: int | None, high_us: int | None) -> pc.Expression:
    """Return the Arrow filter ``seq_from <= seq < seq_to and low_us <= event_ts <= high_us``.

    None leaves a bound out.
    """
    arrived = _between("seq", seq_from, None if seq_to is None else seq_to - 1, pa.int64())
    return arrived & _between("event_ts", low_us, high_us, delta.TIMESTAMP)


def _between(column: str, low: int | None, high: int | None, kind: pa.DataType) -> pc.Expression:
    """Return the Arrow filter ``low <= column <= high`` over a column of that type; None leaves a bound out."""
    condition = pc.scalar(True)
    if low is not None:
        condition = condition & (pc.field(column) >= pa.scalar(low, kind))
    if high is not None:
        condition = condition & (pc.field(column) <= pa.scalar(high, kind))
    return condition


def in_spans(column: str, spans: Spans, kind: pa.DataType) -> pc.Expression:
    """Return the Arrow filter of a column of that type that lies in one of the ranges."""
    bounds = clip_to_timestamps(spans) if pa.types.is_timestamp(kind) else spans
    conditions = [_between(column, low, high, kind) for low, high in bounds]
    return reduce(or_, conditions) if conditions else pc.scalar(False)


def clip_to_timestamps(spans: Spans) -> Spans:
    """Clip ranges of times (us) to the times that a timestamp can hold."""
    return [(max(low, EARLIEST_US), min(high, LATEST_US)) for low, high in spans]
