"""Rows keyed by several integer columns: packed into one number each, sorted, counted, and cut into runs of equal rows.

Ordering: by the first column, then by the second, and so on; equal rows keep their order. Cost: O(n log n) comparisons
of one number where the columns' ranges fit into 63 bits together, else one stable sort per column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

DENSE = 4
"""Greatest number of possible rows per row for which rows are counted with a counter each instead of a sort."""


def pack_columns(columns: Sequence[Int64]) -> tuple[Int64, list[int], list[int]] | None:
    """Pack each row of several columns into one number that sorts as the row does.

    Parameters
    ----------
    columns
        Integer columns of n rows.

    Returns
    -------
    code : int64[n]
    least, widths : list of int
        Per column, its least value and the number of values from the least to the greatest.

    None instead of the three where the widths do not fit into 63 bits together.
    """
    least = [int(column.min()) if len(column) else 0 for column in columns]
    widths = [int(column.max()) - low + 1 if len(column) else 1 for column, low in zip(columns, least, strict=True)]
    if math.prod(widths) >= 1 << 63:
        return None
    code = np.zeros(len(columns[0]), np.int64)
    for column, low, width in zip(columns, least, widths, strict=True):
        code = code * width + (column.astype(np.int64) - low)
    return code, least, widths


def unpack_columns(code: Int64, least: Sequence[int], widths: Sequence[int]) -> list[Int64]:
    """Return the columns from which :func:`pack_columns` made `code`, `least` and `widths`."""
    columns = []
    for low, width in zip(reversed(least), reversed(widths), strict=True):
        columns.append(code % width + low)
        code = code // width
    return columns[::-1]


def sort_order(*columns: Int64) -> Int64:
    """Return the row numbers in ascending order of the rows, int64[n]; each column is integer[n]."""
    packed = pack_columns(columns)
    return np.lexsort(columns[::-1]) if packed is None else np.argsort(packed[0], kind="stable")


def distinct_rows(*columns: Int64) -> tuple[list[Int64], Int64]:
    """Count the distinct rows of several columns.

    Parameters
    ----------
    *columns
        integer[n] each.

    Returns
    -------
    rows : list of int64[m]
        The distinct rows in ascending order, as columns.
    count : int64[m]
        Number of occurrences of each.
    """
    packed = pack_columns(columns)
    if packed is None:
        order = np.lexsort(columns[::-1])
        ordered = [np.asarray(column, np.int64)[order] for column in columns]
        bounds = run_bounds(*ordered)
        return [column[bounds[:-1]] for column in ordered], np.diff(bounds)
    code, least, widths = packed
    if math.prod(widths) <= DENSE * len(code):
        counters = np.bincount(code)
        present = np.flatnonzero(counters)
        return unpack_columns(present, least, widths), counters[present]
    _sort_in_place(code, columns[0])
    bounds = run_bounds(code)
    return unpack_columns(code[bounds[:-1]], least, widths), np.diff(bounds)


def _sort_in_place(code: Int64, first: Int64) -> None:
    """Sort packed rows; where their first column ascends already, sort within its runs unless these are short."""
    runs = run_bounds(first) if len(first) and (first[1:] >= first[:-1]).all() else np.array([0, len(code)])
    if len(runs) > len(code) // 64:
        runs = np.array([0, len(code)])
    for start, end in zip(runs[:-1].tolist(), runs[1:].tolist(), strict=True):
        code[start:end].sort()


def run_bounds(*keys: np.ndarray) -> NDArray[np.intp]:
    """Return the start of each run of equal rows, and the number of rows at the end, intp[runs + 1].

    Parameters
    ----------
    *keys
        Columns of one length and of any type, in which equal rows are neighbours.
    """
    size = len(keys[0])
    starts_run = np.ones(size + 1, np.bool_)
    if size:
        starts_run[1:-1] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return np.flatnonzero(starts_run) if size else np.zeros(1, np.intp)
