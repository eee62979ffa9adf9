"""Event time, stream time and horizons as integers.

All times are int64 microseconds since the epoch; `NEVER` stands for minus infinity (before every event), `FOREVER` for
plus infinity. Both leave room for sums and differences of any two real times without overflow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NEVER = -(1 << 61)
FOREVER = 1 << 61


def running_max(values: NDArray[np.int64], carry: int = NEVER) -> NDArray[np.int64]:
    """Prefix maximum along arrivals, continued from `carry`. Shape and dtype of `values`, int64."""
    if len(values) == 0:
        return values.astype(np.int64)
    return np.maximum(np.maximum.accumulate(values), carry)


def stream_time(max_ts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """`T`: the least of the streams' running maxima; `NEVER` until each stream has spoken."""
    return np.minimum.reduce(max_ts)


EARLIEST_US, LATEST_US = -60_000_000_000_000_000, 250_000_000_000_000_000
"""Event times that Spark's timestamps hold with room to add a window (years 68 to 9892); bounds beyond them are left out, and `ingest` takes in no later ones."""
