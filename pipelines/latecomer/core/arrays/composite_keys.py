"""Rows keyed by several integer columns: packed into one number each, sorted, counted, and cut into runs of equal rows.

Ordering: by the first column, then the second, and so on; equal rows stay as they stand. Cost: O(n log n) comparisons of one number
where the columns' ranges fit into 63 bits together, else one stable sort per column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

DENSE = 4
"""Possible rows per row up to which counting needs no sort: a counter for each."""


def packed(columns: Sequence[Int64]) -> tuple[Int64, list[int], list[int]] | None:
    """Integer columns of n rows as one int64[n] that sorts alike, each column's least value and its width; None where it has no room."""
    least = [int(column.min()) if len(column) else 0 for column in columns]
    widths = [int(column.max()) - low + 1 if len(column) else 1 for column, low in zip(columns, least, strict=True)]
    if math.prod(widths) >= 1 << 63:
        return None
    code = np.zeros(len(columns[0]), np.int64)
    for column, low, width in zip(columns, least, widths, strict=True):
        code = code * width + (column.astype(np.int64) - low)
    return code, least, widths


def unpacked(code: Int64, least: Sequence[int], widths: Sequence[int]) -> list[Int64]:
    """The columns of which `packed` made `code`."""
    found = []
    for low, width in zip(reversed(least), reversed(widths), strict=True):
        found.append(code % width + low)
        code = code // width
    return found[::-1]


def order_of(*columns: Int64) -> Int64:
    """Places of the rows in order, int64[n]; each column is integer[n], the first weighs most."""
    one = packed(columns)
    return np.lexsort(columns[::-1]) if one is None else np.argsort(one[0], kind="stable")


def distinct(*columns: Int64) -> tuple[list[Int64], Int64]:
    """Distinct rows of columns integer[n], in order, as columns int64[m], and how often each occurs, int64[m]."""
    one = packed(columns)
    if one is None:
        order = np.lexsort(columns[::-1])
        ordered = [np.asarray(column, np.int64)[order] for column in columns]
        at = cuts(*ordered)
        return [column[at[:-1]] for column in ordered], np.diff(at)
    code, least, widths = one
    if math.prod(widths) <= DENSE * len(code):
        often = np.bincount(code)
        there = np.flatnonzero(often)
        return unpacked(there, least, widths), often[there]
    _sort(code, columns[0])
    at = cuts(code)
    return unpacked(code[at[:-1]], least, widths), np.diff(at)


def _sort(code: Int64, first: Int64) -> None:
    """Sort in place; where `first`, what weighs most in `code`, does not fall, only inside its runs, unless these are short."""
    runs = cuts(first) if len(first) and (first[1:] >= first[:-1]).all() else np.array([0, len(code)])
    if len(runs) > len(code) // 64:
        runs = np.array([0, len(code)])
    for start, end in zip(runs[:-1].tolist(), runs[1:].tolist(), strict=True):
        code[start:end].sort()


def cuts(*keys: np.ndarray) -> NDArray[np.intp]:
    """Where a run of equal keys begins, and the length at the end; of arrays of one length."""
    size = len(keys[0])
    new = np.ones(size + 1, np.bool_)
    if size:
        new[1:-1] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return np.flatnonzero(new) if size else np.zeros(1, np.intp)
