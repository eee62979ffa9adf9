"""Comparable integers for the operand columns of a theta join, and the way to sort and to merge them.

Ordering: none asked of the input. Cost: O(n) for numbers, O(n log n) for other Arrow columns and for sorting. The
integers are order-preserving: a < b as values exactly if a < b as integers, so the join itself compares nothing but
int64.

Whole numbers compared with floating-point numbers are rounded to such, as SQL does and every strategy must: 2**53 + 1
equals 2.0**53 there, and only there.

NumPy allocates the long arrays of the compiled loops, here and in `kernels`: it requests large pages, and touching
memory page by page costs more than filling it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
_TOP = np.iinfo(np.int64).max
FEW = 256
"""A filter that need not be exact drops no row if it would drop less than one in so many."""


def number_column(values: np.ndarray) -> np.ndarray:
    """Return `values` as one-dimensional int64 or float64.

    Raises
    ------
    TypeError
        If the type is another one, or whole numbers may exceed int64.
    """
    values = np.asarray(values)
    if values.ndim != 1:
        raise TypeError(f"an operand column has {values.ndim} dimensions: give one")
    if values.dtype in (np.int64, np.float64):
        return values
    if values.dtype.kind == "b" or (values.dtype.kind in "iu" and np.can_cast(values.dtype, np.int64)):
        return values.astype(np.int64)
    if values.dtype.kind == "f" and values.dtype.itemsize < 8:
        return values.astype(np.float64)
    raise TypeError(f"an operand column is {values.dtype}: give int64 or float64, or encode() it first")


def float_codes(values: NDArray[np.float64]) -> Int64:
    """Return float64 values as order-preserving int64; both zeros get one code, NaN an arbitrary one."""
    return _float_codes((values + 0.0).view(np.int64))


def float_values(codes: Int64) -> NDArray[np.float64]:
    """Return the values from which `float_codes` made the codes."""
    return _float_codes(codes.copy()).view(np.float64)


@njit(cache=True)
def _float_codes(bits: Int64) -> Int64:
    """Turn the bits of floating-point numbers into codes, or back, in place."""
    for i in range(len(bits)):
        bits[i] ^= (bits[i] >> 63) & _TOP
    return bits


def shared_codes(columns: Sequence[np.ndarray]) -> tuple[list[Int64], list[Bool | None]]:
    """Return codes of number columns that are compared with one another, and the rows that can match (all but NaN).

    Parameters
    ----------
    columns
        int64 or float64, any lengths.

    Returns
    -------
    codes : list of int64[n]
        Order-preserving over all columns together; arbitrary where not valid.
    valid : list of bool[n]
        None where all rows are.
    """
    arrays = [number_column(column) for column in columns]
    valid = [None if a.dtype == np.int64 or not (nan := np.isnan(a)).any() else ~nan for a in arrays]
    if all(a.dtype == np.int64 for a in arrays):
        return list(arrays), valid
    return [float_codes(a.astype(np.float64, copy=False)) for a in arrays], valid


def encode(columns: Sequence[pa.ChunkedArray]) -> tuple[list[Int64], list[Bool]]:
    """Return order-preserving integers of Arrow columns that are compared with one another.

    Numbers of any width, decimals, strings (order of their UTF-8 bytes), binary, dates, times, durations, timestamps
    and booleans. Whole numbers and decimals compared with floating-point numbers are rounded to such.

    Parameters
    ----------
    columns
        Columns of one kind; lengths may differ.

    Returns
    -------
    codes : list of int64[n]
    valid : list of bool[n]
        False for null and NaN. The caller removes rows that are not valid in any operand.

    Raises
    ------
    TypeError
        If the kinds cannot be compared (a string with a number). A timestamp without a zone is UTC.
    """
    parts = [c if isinstance(c, pa.ChunkedArray) else pa.chunked_array([c]) for c in columns]
    if not parts:
        return [], []
    parts = [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in parts]
    lengths = [len(c) for c in parts]
    valid = [~_numpy(c.is_null(nan_is_null=pa.types.is_floating(c.type)), np.bool_) for c in parts]
    common = _common_type([c.type for c in parts])
    if common is None:
        numbers = []
        for column, good in zip(parts, valid, strict=True):
            floating = pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)
            if pa.types.is_decimal(column.type):
                column = column.cast(pa.string())  # digits give the nearest double; a direct cast is off by a bit
            filled = pc.fill_null(column.cast(pa.float64() if floating else pa.int64()), 0)
            values = _numpy(filled, np.float64 if floating else np.int64)
            numbers.append(np.where(good, values, values.dtype.type(0)))
        return shared_codes(numbers)[0], valid
    chunks = [chunk for c in parts for chunk in c.cast(common).chunks]
    encoded = pa.chunked_array(chunks, type=common).combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    by_value = _numpy(pc.array_sort_indices(encoded.dictionary), np.int64)
    ranks = np.zeros(max(len(by_value), 1), np.int64)
    ranks[by_value] = np.arange(len(by_value))
    return _cut(ranks[_numpy(pc.fill_null(encoded.indices, 0), np.int64)], lengths), valid


def _numpy(column: pa.Array | pa.ChunkedArray, dtype: type[np.generic]) -> np.ndarray:
    """Return a column as a NumPy array of type `dtype`."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    return np.asarray(values.to_numpy(zero_copy_only=False)).astype(dtype)


def _common_type(types: Sequence[pa.DataType]) -> pa.DataType | None:
    """Return the type to which all columns are cast; None for whole and floating-point numbers, also with decimals."""
    known = [t for t in types if not pa.types.is_null(t)]
    floating = any(pa.types.is_floating(t) for t in known)
    if all(pa.types.is_integer(t) or pa.types.is_floating(t) or (floating and pa.types.is_decimal(t)) for t in known):
        return None
    for test, target in (
        (lambda t: pa.types.is_string(t) or pa.types.is_large_string(t), pa.large_string()),
        (lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t), pa.large_binary()),
        (pa.types.is_boolean, pa.bool_()),
        (pa.types.is_date, pa.date64()),
        (lambda t: pa.types.is_decimal(t) or pa.types.is_integer(t), None),
        (pa.types.is_duration, None),
        (pa.types.is_time, None),
        (pa.types.is_timestamp, None),
    ):
        if all(test(t) for t in known):
            return target if target is not None else _finest(known)
    raise TypeError(f"columns of types {', '.join(map(str, types))} cannot be compared with one another")


def _finest(types: Sequence[pa.DataType]) -> pa.DataType:
    """Return a type that holds the values of all `types` (one family) without rounding."""
    if any(pa.types.is_decimal(t) for t in types):
        scale = max(t.scale if pa.types.is_decimal(t) else 0 for t in types)
        whole = max(t.precision - t.scale if pa.types.is_decimal(t) else 20 for t in types)
        return pa.decimal256(min(76, whole + scale), scale)
    unit = max((t.unit for t in types), key=("s", "ms", "us", "ns").index)
    if pa.types.is_timestamp(types[0]):
        return pa.timestamp(unit, "UTC")
    if pa.types.is_duration(types[0]):
        return pa.duration(unit)
    return pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit)


def _cut(values: Int64, lengths: Sequence[int]) -> list[Int64]:
    """Split an array into parts of these lengths."""
    return np.split(values, np.cumsum(lengths)[:-1]) if lengths else []


def stable_sort(codes: Int64) -> tuple[Int64, Int64]:
    """Return ``(order, codes[order])``, ties in the order given; O(n log n).

    Code and place are packed into one 64-bit word, and the words are sorted: no comparison follows an index. If code
    and place need more than 64 bits together (floating point), the lowest bits of the code are left out, and the few
    codes that differ in these alone are put in order afterwards.
    """
    if not len(codes):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    low, high = int(codes.min()), int(codes.max())
    bits = (len(codes) - 1).bit_length()
    cut = max(0, (high - low).bit_length() + bits - 64)
    packed, order, ranked = np.empty(len(codes), np.uint64), np.empty(len(codes), np.int64), np.empty_like(codes)
    _pack(codes, low, bits, cut, packed)
    packed.sort()
    _unpack(packed, codes, low, bits, cut, order, ranked)
    return order, ranked


@njit(cache=True)
def _pack(codes: Int64, low: int, bits: int, cut: int, out: NDArray[np.uint64]) -> None:
    for i in range(len(codes)):
        above = np.uint64(codes[i]) - np.uint64(low)
        out[i] = ((above >> np.uint64(cut)) << np.uint64(bits)) | np.uint64(i)


@njit(cache=True)
def _unpack(
    packed: NDArray[np.uint64], codes: Int64, low: int, bits: int, cut: int, order: Int64, ranked: Int64
) -> None:
    size = len(packed)
    shift, mask = np.uint64(bits), (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    for i in range(size):
        order[i] = np.int64(packed[i] & mask)
    if cut == 0:
        for i in range(size):
            ranked[i] = np.int64((packed[i] >> shift) + np.uint64(low))
        return
    rest = (np.uint64(1) << np.uint64(cut)) - np.uint64(1)
    begin = 0
    while begin < size:
        end = begin + 1
        while end < size and (packed[end] ^ packed[begin]) >> shift == 0:
            end += 1
        if end - begin > 1:
            for i in range(begin, end):
                below = (np.uint64(codes[order[i]]) - np.uint64(low)) & rest
                packed[i] = (below << shift) | np.uint64(order[i])
            packed[begin:end] = np.sort(packed[begin:end])
            for i in range(begin, end):
                order[i] = np.int64(packed[i] & mask)
        begin = end
    for i in range(size):
        ranked[i] = codes[order[i]]


def merged_bounds(far: Int64, near: Int64, inclusive: bool) -> Int64:
    """Count per value of `near` the values of `far` below it (with `inclusive`: or equal); both ascending; O(n + m)."""
    out = np.empty(len(near), np.int64)
    _merge(far, near, inclusive, out)
    return out


@njit(cache=True)
def _merge(far: Int64, near: Int64, inclusive: bool, out: Int64) -> None:
    i = at = 0
    while i < len(near) and at < len(far):  # one step on either side, without a branch that cannot be predicted
        below = int((far[at] < near[i]) | (inclusive & (far[at] == near[i])))
        out[i] = at
        at += below
        i += 1 - below
    out[i:] = at


@njit(cache=True)
def extremes(codes: Int64, rows: Int64) -> tuple[int, int]:
    """Return the least and the greatest code of at least one row."""
    low = high = codes[rows[0]]
    for row in rows:
        low, high = min(low, codes[row]), max(high, codes[row])
    return low, high


def rows_within(codes: Int64, rows: Int64, low: int, high: int) -> Int64:
    """Return the rows with ``low <= code <= high``; `rows` itself if fewer than one in `FEW` would be dropped.

    To drop so few rows, and to gather the rest afterwards, costs more than to keep them.
    """
    number = _within(codes, rows, low, high)
    if (len(rows) - number) * FEW <= len(rows):
        return rows
    out = np.empty(number + 1, np.int64)
    _rows_within(codes, rows, low, high, out)
    return out[:-1]


@njit(cache=True)
def _within(codes: Int64, rows: Int64, low: int, high: int) -> int:
    number = 0
    if len(rows) == len(codes):
        for code in codes:
            number += int((code >= low) & (code <= high))
    else:
        for row in rows:
            number += int((codes[row] >= low) & (codes[row] <= high))
    return number


@njit(cache=True)
def _rows_within(codes: Int64, rows: Int64, low: int, high: int, out: Int64) -> None:
    to = 0
    for row in rows:
        out[to] = row
        to += int((codes[row] >= low) & (codes[row] <= high))


@njit(cache=True)
def dense_pair(near: Int64, near_order: Int64, far: Int64, far_order: Int64) -> tuple[Int64, Int64, int]:
    """Number the distinct values of two sorted lists 0, 1, ...; return the numbers by unsorted place, and how many."""
    near_ids, far_ids = np.empty(len(near), np.int64), np.empty(len(far), np.int64)
    i = j = number = 0
    while i < len(near) or j < len(far):
        value = near[i] if j == len(far) or (i < len(near) and near[i] <= far[j]) else far[j]
        while i < len(near) and near[i] == value:
            near_ids[near_order[i]] = number
            i += 1
        while j < len(far) and far[j] == value:
            far_ids[far_order[j]] = number
            j += 1
        number += 1
    return near_ids, far_ids, number
