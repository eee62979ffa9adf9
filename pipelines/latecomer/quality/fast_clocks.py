"""Name the rows that were ahead of their arrivals while a period missed its promise, and the devices they came from.

Such a row moves stream time ahead, so that the rows of right clocks come late. `check` looks for them only where a
promise is broken.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.lake.delta import Table, timestamp
from latecomer.lake.lake import Lake
from latecomer.quality import messages, promise
from latecomer.quality.verdicts import FAST_US
from latecomer.specs.errors import quantity
from latecomer.specs.spec import Spec

MOST_ROWS, MOST_COLUMNS, MOST_VALUES = 200_000, 30, 3
"""Most rows ahead of their arrivals that are looked at, columns that are compared, and values that are named."""
SHARE = 0.9
"""Least share of these rows that the named values have."""
_OWN = ("seq", "event_ts", "arrival_ts", "source_seq")


def describe(lake: Lake, spec: Spec, missed: pd.DataFrame, slack_us: float, seq_to: int) -> str:
    """Describe the rows that were ahead of their arrivals when rows of the missed periods arrived.

    Parameters
    ----------
    missed
        Verdicts of the periods, at least one.
    slack_us
        The usual slack; rows that were ahead by less did no harm, microseconds.
    seq_to
        Later arrivals are not read.

    Returns
    -------
    str
        A sentence with the remedy; empty where there are no such rows.
    """
    first = timestamp(int(promise.microseconds(missed["period_start"]).min()))
    last = timestamp(int(promise.microseconds(missed["period_end"]).max()))
    least = pa.scalar(max(FAST_US, int(slack_us)), pa.duration("us"))
    sentences = []
    for stream in spec.stream_names:
        table = lake.table("events", stream)
        if "arrival_ts" not in table.schema().names:
            continue
        arrival = pc.field("arrival_ts")
        during = (pc.field("seq") < seq_to) & (arrival < last) & (pc.field("event_ts") > first)
        fast = pc.field("event_ts") > arrival + least
        count = table.count(during & fast)
        if not count:
            continue
        columns = _columns(table)
        rows = _rows(table, columns, during & fast)
        source = next((text for name in columns if (text := _values(table, rows, name, during & ~fast))), "")
        most = pc.max(pc.subtract(rows["event_ts"], rows["arrival_ts"]).cast(pa.int64())).as_py()
        whose = f"{quantity(count, 'row')} of stream {stream}{source} came up to {messages.duration(most)}"
        sentences.append(f"{whose} ahead of {'its arrival' if count == 1 else 'their arrivals'}")
    if not sentences:
        return ""
    remedy = "a clock that is ahead makes the rows of right clocks late, so bound it by max_future in the stream's file"
    return f"{'; '.join(sentences)}: {remedy}"


def _columns(table: Table) -> list[str]:
    """Return the columns that may name a source: those of text and of whole numbers."""
    fields = [field for field in table.schema() if field.name not in _OWN]
    text = [field.name for field in fields if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    whole = [field.name for field in fields if pa.types.is_integer(field.type)]
    return [*text, *whole][:MOST_COLUMNS]


def _rows(table: Table, columns: list[str], filter: pc.Expression) -> pa.Table:
    def some() -> Iterator[pa.RecordBatch]:
        read = 0
        for batch in table.batches(["event_ts", "arrival_ts", *columns], filter):
            yield batch
            read += batch.num_rows
            if read >= MOST_ROWS:
                return

    return pa.Table.from_batches(some())


def _values(table: Table, rows: pa.Table, name: str, others: pc.Expression) -> str:
    """Return the few values of a column that nearly all of the rows have and few of the others; empty without such."""
    counts = rows[name].value_counts()
    order = pc.array_sort_indices(counts.field("counts"), order="descending")
    top = counts.take(order[:MOST_VALUES]).to_pylist()
    values, covered = [], 0
    for entry in top:
        if entry["values"] is not None and covered < SHARE * rows.num_rows:
            values.append(entry["values"])
            covered += entry["counts"]
    if covered < SHARE * rows.num_rows:
        return ""
    same = pc.field(name).isin(pa.array(values, rows.schema.field(name).type))
    if table.count(others & same) > covered:
        return ""
    return f", {name} {', '.join(map(str, values))},"
