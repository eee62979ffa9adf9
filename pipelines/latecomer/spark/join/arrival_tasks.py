"""Reduce a block of arrivals to the late rows of a join.

A late row's window reaches behind the opposite horizon, so `run` may have missed pairs of it. The function runs where
the block is: in the driver, or in a Python worker of Spark, which imports this module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from latecomer.core.arrays.sparse_counts import Int64Array
from latecomer.core.arrivals import ArrivalBlocks, Arrivals
from latecomer.core.join.control import Horizons


class LateArrivals(NamedTuple):
    """Late rows in one role, in the order of their arrival.

    Attributes
    ----------
    seq, event_time_us, stream_time_us : int64[n]
        The arrival, its event time, and stream time after it, in microseconds.
    horizon_us : int64[n]
        The opposite horizon when it arrived, in microseconds.
    """

    seq: Int64Array
    event_time_us: Int64Array
    stream_time_us: Int64Array
    horizon_us: Int64Array


LateRoles = list[LateArrivals]
"""The late rows in the role of the left side, and in that of the right side."""


def late_roles(
    arrivals: ArrivalBlocks, horizons: Horizons, interval_us: int, window_us: int, *, is_self: bool
) -> LateRoles:
    """Return the arrivals, per role, whose window reaches behind the opposite horizon.

    Parameters
    ----------
    horizons
        The decisions for the intervals of these arrivals.
    interval_us, window_us
        The adaptation interval and the join's window, in microseconds.
    is_self
        Whether every row has both roles.
    """
    task = partial(_late_roles, horizons=horizons, interval_us=interval_us, window_us=window_us, is_self=is_self)
    blocks = arrivals.of_blocks(task)
    return [
        LateArrivals(*(np.concatenate(column) for column in zip(*of_role, strict=True)))
        for of_role in zip(*blocks, strict=True)
    ]


def _late_roles(arrivals: Arrivals, horizons: Horizons, interval_us: int, window_us: int, is_self: bool) -> LateRoles:
    def horizon_of(side: int, at: Int64Array) -> Int64Array:
        return horizons.at(side, arrivals.stream_time_us[at], interval_us, window_us)

    return late_by_role(arrivals, horizon_of, window_us, is_self=is_self)


def late_by_role(
    arrivals: Arrivals, horizon_of: Callable[[int, Int64Array], Int64Array], window_us: int, *, is_self: bool
) -> LateRoles:
    """Return the late rows of one block; `horizon_of` returns the horizon (us) of a side at places of it."""
    roles = []
    for side in (0, 1):
        at = np.flatnonzero(arrivals.side == (0 if is_self else side))
        horizon = horizon_of(1 - side, at)
        late = horizon >= arrivals.event_time_us[at] - window_us
        at = at[late]
        columns = (arrivals.seq[at], arrivals.event_time_us[at], arrivals.stream_time_us[at])
        roles.append(LateArrivals(*columns, horizon[late]))
    return roles
