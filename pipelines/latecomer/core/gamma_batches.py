"""The Gamma rule of HPM for every query kind: when registered late rows become a repair batch.

Late rows are taken in arrival order. The gathered batch closes at the first row that makes the span of its event times
exceed Gamma, and contains that row. So the batches are a function of the arrival order alone, however often `repair`
runs. A flush closes the last batch at its last row.

References
----------
Yang, Xu, Lv and Li, "distributed aggregate queries over out-of-order streams based on a hybrid processing model",
Guangxi Sciences 26(4), 2019.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

MOST_SPANS = 32
"""The most ranges of event time that are read apart: each is one condition on files and rows."""


@njit(cache=True)
def gamma_batches(event_time_us: NDArray[np.int64], gamma_us: int) -> NDArray[np.int64]:
    """Find the rows at which a batch closes.

    Parameters
    ----------
    event_time_us
        int64[n], event times of pending late rows in arrival order, from the first row after the last closed batch.
    gamma_us
        Gamma in microseconds; a batch closes where ``max - min > gamma_us``.

    Returns
    -------
    int64[m]
        Increasing indices into the input; rows after the last are pending.
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
    """Cover closed ranges with at most `most` disjoint ones, ascending; the narrowest gaps are covered too.

    Parameters
    ----------
    low, high
        int64[n], ``low <= high``, in any order.
    most
        The greatest number of ranges returned, at least 1.
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
    """Assign each late row to a batch, named by the arrival that closes it: int64[n], -1 while the batch is open.

    Parameters
    ----------
    seq
        int64[n], arrival numbers of late rows.
    closes
        int64[m], increasing arrival numbers at which batches closed.
    """
    if len(closes) == 0:
        return np.full(len(seq), -1, np.int64)
    place = np.searchsorted(closes, seq)
    return np.where(place < len(closes), closes[np.minimum(place, len(closes) - 1)], -1)
