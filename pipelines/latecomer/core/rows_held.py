"""Define the rows held: rows that must be kept for answers still to come.

A row is held from its arrival until no answer can need it: in a join until the horizon passes it, in a windowed query
until its last window closes. That is a moment of stream time, whether or not a row arrives just then. So where stream
time jumps, as in a night without events, rows leave on the way, as they would have without the gap.

The *mean* is over the stream time in which something is held: a window is open, or a row could still match. It is taken
per period, and of several periods over those in which rows arrived (:mod:`latecomer.ledger.means`).

The control planes count by intervals of stream time. An interval in which rows arrive counts whole; a windowed query
counts its rows from the middle of the interval. A *gap* lies between the end of an interval and the start of the next.
"""

from __future__ import annotations

from operator import mul

import numpy as np
from numpy.typing import NDArray

from latecomer.core.time import FOREVER

Int64 = NDArray[np.int64]
CURRENT = 1
"""Number of this definition in the state of `run`. In states of version 0.1.0, rows stay throughout a gap."""


def held_between(until_us: Int64, rows: Int64, from_us: int, to_us: int) -> tuple[int, int]:
    """Return the rows held times us in ``[from_us, to_us)``, and the us of it in which a row is held.

    Parameters
    ----------
    until_us, rows : int64[n]
        When rows leave, ascending, and how many they are. They are held at `from_us` unless they leave before.
    """
    if to_us <= from_us or not len(until_us):
        return 0, 0
    low, high = np.searchsorted(until_us, (from_us, to_us)).tolist()
    area = int(rows[high:].sum()) * (to_us - from_us)
    area += sum(map(mul, rows[low:high].tolist(), (until_us[low:high] - from_us).tolist()))
    return area, max(min(int(until_us[-1]), to_us) - from_us, 0)


def held_until(end_us: Int64, keep_us: int) -> Int64:
    """Return when rows leave that are kept for `keep_us` after `end_us`; for ever where that is `FOREVER`."""
    return np.full(len(end_us), FOREVER) if keep_us >= FOREVER else end_us + keep_us
