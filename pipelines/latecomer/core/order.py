"""The order of rows by several integer columns.

Ordering: by the first column, then the second, and so on; equal rows stay as they stand. Cost: O(n log n) comparisons of one number
where the columns' ranges fit into 63 bits together, else one stable sort per column.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def order_of(*columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places of the rows in order, int64[n]; each column is integer[n], the first weighs most."""
    if not len(columns[0]):
        return np.empty(0, np.int64)
    low = [int(column.min()) for column in columns]
    spans = [int(column.max()) - least + 1 for column, least in zip(columns, low, strict=True)]
    if math.prod(spans) >= 1 << 63:
        return np.lexsort(columns[::-1])
    key = np.zeros(len(columns[0]), np.int64)
    for column, least, span in zip(columns, low, spans, strict=True):
        key = key * span + (column.astype(np.int64) - least)
    return np.argsort(key, kind="stable")
