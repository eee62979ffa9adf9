"""When registered late rows become a repair batch: the Gamma rule of HPM, for every query kind.

Late rows are taken in arrival order; the batch that is being gathered closes at the first row that makes the span of
its event times exceed Gamma, that row included. So the batches are a function of the
arrival order alone, however often repair is called. What is still open at the end is closed by a flush, at its last row.

Yang, Xu, Lv and Li, "distributed aggregate queries over out-of-order streams based on a hybrid processing
model", Guangxi Sciences 26(4), 2019.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

MOST_SPANS = 32
"""Ranges of event time that are read apart: each is a condition on files and rows."""


@njit(cache=True)
def gamma_batches(event_time_us: NDArray[np.int64], gamma_us: int) -> NDArray[np.int64]:
    """Places (indices into the input, in arrival order) at which a batch closes.

    Parameters
    ----------
    event_time_us
        int64[n], event times of pending late rows in arrival order, from the first row after the last closed batch.
    gamma_us
        Gamma; a batch closes when ``max - min > gamma_us``.

    Returns
    -------
    int64[m]
        Increasing; rows after the last are pending.
    """
    closes = np.empty(len(event_time_us), np.int64)
    count = 0
    low = high = np.int64(0)
    empty = True
    for place in range(len(event_time_us)):
        value = event_time_us[place]
        if empty:
            low = high = value
            empty = False
        elif value < low:
            low = value
        elif value > high:
            high = value
        if high - low > gamma_us:
            closes[count] = place
            count += 1
            empty = True
    return closes[:count]


def spans(low: NDArray[np.int64], high: NDArray[np.int64], most: int = MOST_SPANS) -> list[tuple[int, int]]:
    """What closed ranges cover together: disjoint ranges, ascending; at most so many, the closest of them made one.

    Parameters
    ----------
    low, high
        int64[n], ``low <= high``, in any order.
    """
    if not len(low):
        return []
    order = np.argsort(low, kind="stable")
    begin, reach = low[order], np.maximum.accumulate(high[order])
    gap = begin[1:] - reach[:-1]
    apart = np.flatnonzero(gap > 1)
    if len(apart) >= most:
        apart = np.sort(apart[np.argsort(gap[apart], kind="stable")[len(apart) - most + 1 :]])
    first, last = np.append(0, apart + 1), np.append(apart, len(begin) - 1)
    return list(zip(begin[first].tolist(), reach[last].tolist(), strict=True))


def assign(seq: NDArray[np.int64], closes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Closing arrival of the batch each late row belongs to, -1 while it is pending. int64[n]."""
    if len(closes) == 0:
        return np.full(len(seq), -1, np.int64)
    place = np.searchsorted(closes, seq)
    return np.where(place < len(closes), closes[np.minimum(place, len(closes) - 1)], -1)
