"""Rows of tables told apart by columns of any type: a number per identity.

Values are never converted: two 64-bit integers differ whatever stands beside them. A null equals a null and no value, NaN equals NaN
and no null, as in the groups of Spark and SQL; zero has no sign.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from latecomer.core.order import cuts, order_of


def codes(tables: Sequence[pa.Table], keys: Sequence[str]) -> list[NDArray[np.int64]]:
    """For each table of n rows int64[n]: the same number, of any table, where all `keys` are the same; from 0 without a gap."""
    sizes = [table.num_rows for table in tables]
    rows = pa.concat_tables([table.select(list(keys)) for table in tables], promote_options="default")
    columns = [_coded(rows[name]) for name in keys]
    found = np.zeros(rows.num_rows, np.int64)
    if rows.num_rows:
        order = order_of(*columns)
        starts = cuts(*(column[order] for column in columns))
        found[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return list(np.split(found, np.cumsum(sizes)[:-1]))


def last_of_each(rows: pa.Table, keys: Sequence[str]) -> NDArray[np.bool_]:
    """For sorted rows bool[n]: True where the next row is not the same in all `keys`."""
    found = np.zeros(rows.num_rows, np.bool_)
    found[cuts(*(_coded(rows[name]) for name in keys))[1:] - 1] = True
    return found


def _coded(column: pa.ChunkedArray) -> NDArray[np.int64]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_integer(column.type) and not column.null_count:
        return column.to_numpy().astype(np.int64)
    coded = _unsigned_zero(column).dictionary_encode().unify_dictionaries()
    places = [chunk.indices.fill_null(-1).to_numpy().astype(np.int64) for chunk in coded.chunks]
    return np.concatenate([np.empty(0, np.int64), *places])


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column as one that pandas tells apart by value: integers among nulls would become floating, a null NaN."""
    if not column.null_count or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return column
    return pc.fill_null(_unsigned_zero(column).cast(pa.string()), "null")


def _unsigned_zero(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.add(column, 0.0) if pa.types.is_floating(column.type) else column
