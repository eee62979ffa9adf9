"""Follow the order of one block of arrivals in a task of Spark.

Spark's Python workers import this module, so it imports no more than a task needs.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from latecomer.core.arrivals import Arrivals


def empty(carry: list[int], shards: int) -> Arrivals:
    """Return a block without arrivals."""
    none = np.empty(0, np.int64)
    return Arrivals.of(none, none, none.astype(np.int8), none.astype(np.int32), carry, shards)


def reduced(
    block: int, rows: pa.Table, carries: Mapping[int, list[int]], shards: int, task: Callable[[Arrivals], Any]
) -> pa.Table:
    """Return what a task makes of a block: its number, and the pickled result.

    Parameters
    ----------
    rows
        The arrivals of the block in any order: ``seq``, ``ts`` (event time, us), ``side``, ``shard``.
    carries
        Running maxima before each block, as in :class:`~latecomer.core.arrivals.Checkpoint`.
    """
    result = pickle.dumps(task(_in_order(rows, carries[block], shards)))
    return pa.table({"block": pa.array([block], pa.int64()), "result": pa.array([result], pa.binary())})


def valued(
    block: int, rows: pa.Table, carries: Mapping[int, list[int]], shards: int, columns: Mapping[str, str]
) -> pa.Table:
    """Return ``seq`` and attributes of the arrivals of a block, under the names that `columns` gives them."""
    arrivals = _in_order(rows, carries[block], shards)
    return pa.table({"seq": arrivals.seq} | {name: getattr(arrivals, column) for name, column in columns.items()})


def _in_order(rows: pa.Table, carry: list[int], shards: int) -> Arrivals:
    seq, times, side, shard = (rows[name].to_numpy() for name in ("seq", "ts", "side", "shard"))
    order = np.argsort(seq, kind="stable")
    columns = seq[order], times[order], side[order].astype(np.int8), shard[order].astype(np.int32)
    return Arrivals.of(*columns, carry, shards)
