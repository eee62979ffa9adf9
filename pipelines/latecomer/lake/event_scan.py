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
"""Closed ranges, such as :func:`latecomer.core.gamma_batches.spans` has them."""


def arrivals(
    lake: Lake, stream: str, seq_from: int, seq_to: int, columns: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray, pa.Table]:
    """Stored events with ``seq_from <= seq < seq_to`` in arrival order: ``seq`` and event time (us), int64, and `columns`.

    Read here, not by Spark: few and narrow columns, and only of the files that hold the range.
    """
    seq, event_time_us = np.empty((2, max(seq_to - seq_from, 0)), np.int64)
    table = ingest_log.open_events(lake, stream)
    if table is None:
        return seq[:0], event_time_us[:0], pa.table({name: pa.nulls(0) for name in columns})
    inside = within_bounds(seq_from, seq_to, None, None)
    dataset, rows, others = table.to_pyarrow_dataset(), 0, []
    wanted = pa.schema([dataset.schema.field(name) for name in columns])
    read = list(dict.fromkeys(["seq", "event_ts", *columns]))
    for batch in dataset.scanner(columns=read, filter=inside).to_batches():
        here = slice(rows, rows := rows + batch.num_rows)
        seq[here], event_time_us[here] = batch["seq"].to_numpy(), batch["event_ts"].cast(pa.int64()).to_numpy()
        if columns:
            others.append(pa.record_batch([batch[name] for name in columns], schema=wanted))
    seq, event_time_us, other = seq[:rows], event_time_us[:rows], pa.Table.from_batches(others, wanted)
    if len(seq) > 1 and not (seq[1:] > seq[:-1]).all():
        order = np.argsort(seq, kind="stable")
        seq, event_time_us, other = seq[order], event_time_us[order], other.take(order) if columns else other
    return seq, event_time_us, other


def first_above(lake: Lake, stream: str, seq_to: int, above_us: int) -> int | None:
    """The earliest arrival before `seq_to` with an event time above a bound (us); None where there is none."""
    table = ingest_log.open_events(lake, stream)
    if table is None or above_us >= LATEST_US:
        return None
    inside = within_bounds(None, seq_to, above_us + 1 if above_us > EARLIEST_US else None, None)
    found = pc.min(table.to_pyarrow_dataset().to_table(columns=["seq"], filter=inside)["seq"]).as_py()
    return None if found is None else int(found)


def within_bounds(seq_from: int | None, seq_to: int | None, low_us: int | None, high_us: int | None) -> pc.Expression:
    """The bounds of `events` for Arrow."""
    arrived = _within("seq", seq_from, None if seq_to is None else seq_to - 1, pa.int64())
    return arrived & _within("event_ts", low_us, high_us, delta.TIMESTAMP)


def _within(column: str, low: int | None, high: int | None, kind: pa.DataType) -> pc.Expression:
    """``low <= column <= high`` for Arrow, of a column of that type; None leaves a bound out."""
    kept = pc.scalar(True)
    if low is not None:
        kept = kept & (pc.field(column) >= pa.scalar(low, kind))
    if high is not None:
        kept = kept & (pc.field(column) <= pa.scalar(high, kind))
    return kept


def in_spans(column: str, spans: Spans, kind: pa.DataType) -> pc.Expression:
    """Is a column of that type in one of the ranges? For Arrow."""
    bounds = clip_to_timestamps(spans) if pa.types.is_timestamp(kind) else spans
    each = [_within(column, low, high, kind) for low, high in bounds]
    return reduce(or_, each) if each else pc.scalar(False)


def clip_to_timestamps(spans: Spans) -> Spans:
    """Ranges of times, us, that timestamps hold."""
    return [(max(low, EARLIEST_US), min(high, LATEST_US)) for low, high in spans]
