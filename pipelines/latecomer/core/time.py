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
_MINUTE, _HOUR, _DAY = 60_000_000, 3_600_000_000, 86_400_000_000
LATENESS_BOUNDS_US = (
    0, 1_000_001, 10_000_001, _MINUTE + 1, 10 * _MINUTE + 1, _HOUR + 1, 6 * _HOUR + 1, _DAY + 1, 7 * _DAY + 1,
    30 * _DAY + 1,
)  # fmt: skip
"""Bounds of the classes of lateness, us; a class lies below its bound, and a last one above them all."""
LATENESS_LABELS = (
    "ahead of arrival", "up to 1 s", "up to 10 s", "up to 1 min", "up to 10 min", "up to 1 h", "up to 6 h", "up to 1 d",
    "up to 7 d", "up to 30 d", "more than 30 d",
)  # fmt: skip
"""Names of the classes of lateness."""


def running_max(values: NDArray[np.int64], carry: int = NEVER) -> NDArray[np.int64]:
    """Return the prefix maximum along arrivals, continued from `carry`: int64, shape of `values`."""
    if len(values) == 0:
        return values.astype(np.int64)
    return np.maximum(np.maximum.accumulate(values), carry)


def stream_time(max_ts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return `T`, the least of the streams' running maxima: int64 us, `NEVER` until every stream has had an event."""
    least: NDArray[np.int64] = np.minimum.reduce(max_ts)
    return least
