"""Theta join by nested loops: every combination of rows, every condition, one after the other."""

from __future__ import annotations

from itertools import product
from operator import eq, ge, gt, le, lt

OPS = {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq}


def rows(streams, conditions):
    """Row numbers of all results as a list of tuples, in lexicographic order.

    Whole numbers beside floating-point ones are compared as such, as in SQL; NaN matches nothing.
    """
    values = [[column.tolist() for column in columns] for columns in streams]
    found = []
    for result in product(*(range(len(columns[0])) for columns in streams)):
        for c in conditions:
            left = values[c.left][c.left_column][result[c.left]]
            right = values[c.right][c.right_column][result[c.right]]
            if isinstance(left, float) != isinstance(right, float):
                left, right = float(left), float(right)
            if not OPS[c.op](left, right):
                break
        else:
            found.append(result)
    return found
