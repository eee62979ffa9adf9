"""Identify rows of tables by key columns of any type: by a code per identity, or by a hash.

Values are never converted: two different 64-bit integers stay different. A null equals a null and no value, NaN equals
NaN and no null, as in the groups of Spark and SQL; zero has no sign.
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
    """Number the identities of the rows of all tables: equal `keys` have equal codes, from 0 without a gap.

    Returns
    -------
    list of int64[n]
        The codes of the n rows of each table.
    """
    sizes = [table.num_rows for table in tables]
    rows = pa.concat_tables([table.select(list(keys)) for table in tables], promote_options="default")
    columns = [_column_codes(rows[name]) for name in keys]
    code = np.zeros(rows.num_rows, np.int64)
    if rows.num_rows:
        order = sort_order(*columns)
        starts = run_bounds(*(column[order] for column in columns))
        code[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return list(np.split(code, np.cumsum(sizes)[:-1]))


def last_of_each(rows: pa.Table, keys: Sequence[str]) -> NDArray[np.bool_]:
    """Mark the last row of each identity among sorted rows, bool[n]."""
    is_last = np.zeros(rows.num_rows, np.bool_)
    is_last[run_bounds(*(_column_codes(rows[name]) for name in keys))[1:] - 1] = True
    return is_last


def _column_codes(column: pa.ChunkedArray) -> NDArray[np.int64]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_integer(column.type) and not column.null_count:
        numbers: NDArray[np.int64] = column.to_numpy().astype(np.int64)
        return numbers
    encoded = _unsigned_zero(column).dictionary_encode().unify_dictionaries()
    indices = [chunk.indices.fill_null(-1).to_numpy().astype(np.int64) for chunk in encoded.chunks]
    return np.concatenate([np.empty(0, np.int64), *indices])


def hashes(batch: pa.RecordBatch, keys: Sequence[str]) -> NDArray[np.uint64]:
    """Hash all `keys` of each row to 64 bits, uint64[n]; equal values have equal hashes in any batch of any table."""
    row_hash = np.zeros(batch.num_rows, np.uint64)
    for name in keys:
        column = batch.column(name)
        column_hash = hash_values(_hashable(column))
        if column.null_count:  # a null must not hash as the value that fills its place
            column_hash[~validity(column)] = _NULL
        row_hash = hash_longs((row_hash * GOLDEN_RATIO + column_hash).view(np.int64))
    return row_hash


def _hashable(column: pa.Array) -> pa.Array:
    """Convert a column to integers, times or text that are equal where its values are."""
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
