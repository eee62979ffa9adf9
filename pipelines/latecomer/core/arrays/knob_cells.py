"""The cells of a knob (retention, slack or wait): the grid on which losses are counted."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from latecomer.core.time import FOREVER

Int64Array = NDArray[np.int64]

CELLS = 1200
"""Number of cells of a knob: each multiple of the granularity up to 50, then steps of 2%, up to 10^11 granules."""


@lru_cache(maxsize=16)
def cell_edges(granularity_us: int) -> Int64Array:
    """Return the upper edges of the cells above the floor.

    Parameters
    ----------
    granularity_us
        Width of the narrowest cell, microseconds.

    Returns
    -------
    int64[CELLS]
        Multiples of the granularity in microseconds, ascending, read-only.
    """
    edges = [0, 1]
    while len(edges) < CELLS:
        edges.append(max(edges[-1] + 1, edges[-1] * 51 // 50))
    # Knobs beyond the range of time do not differ. The clip keeps sums with event times inside int64.
    scaled = np.array([min(edge * granularity_us, FOREVER) for edge in edges], dtype=np.int64)
    scaled.setflags(write=False)
    return scaled
