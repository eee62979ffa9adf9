"""Find rows that repeat an event: rows in sequence, compared with the earlier rows of their key that were kept."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.core.time import EARLIEST_US, FOREVER, LATEST_US, NEVER

LONGEST_US = LATEST_US - EARLIEST_US
"""The greatest difference of two event times."""


def repeated(
    key_id: NDArray[np.int64], event_us: NDArray[np.int64], is_stored: NDArray[np.bool_], within_us: int
) -> NDArray[np.bool_]:
    """Mark the rows whose key an earlier kept row has, at an event time at most `within_us` away.

    Parameters
    ----------
    key_id : int64[n]
        The keys, as numbers that are equal where the keys are. Rows of one key are in sequence.
    event_us : int64[n]
        Event times, us.
    is_stored : bool[n]
        Whether a row was stored before: it is kept whatever precedes it.
    within_us
        The greatest distance, at least 0.

    Returns
    -------
    bool[n]
        False for rows that are kept.

    Notes
    -----
    Two rows of one key in one bucket of ``within_us + 1`` repeat each other. So a row is compared with any row
    kept in its bucket, and with the nearest ones of the two buckets beside it: work per row is independent of how many
    rows its key has.
    """
    within_us = min(within_us, LONGEST_US)
    bucket = event_us // (within_us + 1)
    order = np.lexsort((bucket, key_id))
    key, place = key_id[order], bucket[order]
    same_key = key[1:] == key[:-1]
    cell = np.empty(len(order), np.int64)
    cell[order] = np.cumsum(np.append(True, ~same_key | (place[1:] != place[:-1]))[: len(order)]) - 1
    follows = np.zeros(len(order) + 1, np.bool_)
    follows[cell[order[1:]][same_key & (place[1:] == place[:-1] + 1)]] = True
    return np.asarray(_repeated(cell, follows, event_us, is_stored, within_us))


@njit(cache=True, nogil=True)
def _repeated(cell, follows, event_us, is_stored, within_us):  # type: ignore[no-untyped-def]
    """`follows` tells of a cell, a bucket of one key, whether the cell before it is the bucket before it."""
    is_repeated = np.zeros(len(cell), np.bool_)
    first = np.full(len(follows), FOREVER, np.int64)
    last = np.full(len(follows), NEVER, np.int64)
    for i in range(len(cell)):
        c, time = cell[i], event_us[i]
        if not is_stored[i]:
            near = first[c] <= last[c]
            near = near or (follows[c] and time - last[c - 1] <= within_us)
            near = near or (follows[c + 1] and first[c + 1] - time <= within_us)
            if near:
                is_repeated[i] = True
                continue
        first[c], last[c] = min(first[c], time), max(last[c], time)
    return is_repeated
