"""The theta join by nested loops: every combination of rows, every condition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from operator import eq, ge, gt, le, lt

import numpy as np
from numpy.typing import NDArray

from latecomer.core.theta_join.edges import Comparison

OPS = {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq}


def rows(
    streams: Sequence[Sequence[NDArray[np.int64] | NDArray[np.float64]]], conditions: Sequence[Comparison]
) -> list[tuple[int, ...]]:
    """Return all results in lexicographic order, as one row number per stream.

    A comparison of an integer with a float compares floats, as in SQL; NaN matches nothing.

    Parameters
    ----------
    streams
        Per stream: its columns, arrays of one length.
    conditions
        Comparisons of columns of two streams.
    """
    values = [[column.tolist() for column in columns] for columns in streams]
    results = []
    for result in product(*(range(len(columns[0])) for columns in streams)):
        for c in conditions:
            left = values[c.left][c.left_column][result[c.left]]
            right = values[c.right][c.right_column][result[c.right]]
            if isinstance(left, float) != isinstance(right, float):
                left, right = float(left), float(right)
            if not OPS[c.op](left, right):
                break
        else:
            results.append(result)
    return results
