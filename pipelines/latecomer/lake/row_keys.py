"""Rows of tables told apart by columns of any type: a number per identity, or a hash.

Values are never converted: two 64-bit integers differ whatever stands beside them. A null equals a null and no value, NaN equals NaN
and no null, as in the groups of Spark and SQL; zero has no sign.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from latecomer.core.arrays.composite_keys import run_bounds, sort_order
from latecomer.core.arrays.xxhash import GOLDEN_RATIO, hash_longs, hash_values, validity

_NULL = np.uint64(0x9AE16A3B2F90404F)


def codes(tables: Sequence[pa.Table], keys: Sequence[str]) -> list[NDArray[np.int64]]:
    """For each table of n rows int64[n]: the same number, of any table, where all `keys` are the same; from 0 without a gap."""
    sizes = [table.num_rows for table in tables]
    rows = pa.concat_tables([table.select(list(keys)) for table in tables], promote_options="default")
    columns = [_coded(rows[name]) for name in keys]
    found = np.zeros(rows.num_rows, np.int64)
    if rows.num_rows:
        order = sort_order(*columns)
        starts = run_bounds(*(column[order] for column in columns))
        found[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return list(np.split(found, np.cumsum(sizes)[:-1]))


def last_of_each(rows: pa.Table, keys: Sequence[str]) -> NDArray[np.bool_]:
    """For sorted rows bool[n]: True where the next row is not the same in all `keys`."""
    found = np.zeros(rows.num_rows, np.bool_)
    found[run_bounds(*(_coded(rows[name]) for name in keys))[1:] - 1] = True
    return found


def _coded(column: pa.ChunkedArray) -> NDArray[np.int64]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_integer(column.type) and not column.null_count:
        return column.to_numpy().astype(np.int64)
    coded = _unsigned_zero(column).dictionary_encode().unify_dictionaries()
    places = [chunk.indices.fill_null(-1).to_numpy().astype(np.int64) for chunk in coded.chunks]
    return np.concatenate([np.empty(0, np.int64), *places])


def hashes(batch: pa.RecordBatch, keys: Sequence[str]) -> NDArray[np.uint64]:
    """A 64-bit hash of all `keys` of each row, uint64[n]: the same in any batch of any table where the values are the same."""
    found = np.zeros(batch.num_rows, np.uint64)
    for name in keys:
        column = batch.column(name)
        own = hash_values(_hashable(column))
        if column.null_count:  # a null is none of the values that happen to hash to what it is given
            own[~validity(column)] = _NULL
        found = hash_longs((found * GOLDEN_RATIO + own).view(np.int64))
    return found


def _hashable(column: pa.Array) -> pa.Array:
    """The column as one of integers, times or text; equal where values are."""
    kind = column.type
    if pa.types.is_floating(kind):
        values = np.array(_unsigned_zero(column).cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False))
        values[np.isnan(values)] = np.nan  # one of many
        return pa.array(values.view(np.int64))
    if pa.types.is_boolean(kind):
        return column.cast(pa.int64())
    if pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.string())
    return column


def _unsigned_zero(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.add(column, 0.0) if pa.types.is_floating(column.type) else column
