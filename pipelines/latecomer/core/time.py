"""Event time, stream time and horizons as integers.

All times are int64 microseconds since the epoch. `NEVER` stands for minus infinity, before every event, and `FOREVER`
for plus infinity. Both leave room for the sum and the difference of any two real times without overflow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NEVER = -(1 << 61)
FOREVER = 1 << 61
EARLIEST_US, LATEST_US = -60_000_000_000_000_000, 250_000_000_000_000_000
"""The event times, years 68 to 9892, that Spark's timestamps hold with room to add a window.

A bound beyond them is left out of a scan, and `ingest` accepts no later event.
"""


def running_max(values: NDArray[np.int64], carry: int = NEVER) -> NDArray[np.int64]:
    """Return the prefix maximum along arrivals, continued from `carry`: int64, shape of `values`."""
    if len(values) == 0:
        return values.astype(np.int64)
    return np.maximum(np.maximum.accumulate(values), carry)


def stream_time(max_ts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return `T`, the least of the streams' running maxima: int64 us, `NEVER` until every stream has had an event."""
    least: NDArray[np.int64] = np.minimum.reduce(max_ts)
    return least
