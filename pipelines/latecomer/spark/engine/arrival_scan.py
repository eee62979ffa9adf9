"""Scan the arrivals of a micro-batch in order, in the driver, and join values per arrival to rows in Spark.

Running maxima, stream time and delays follow from the arrival order alone. They need two narrow columns, ``seq`` and
event time, and one pass over arrays (:mod:`latecomer.core.arrivals`), so Spark sorts and numbers nothing. Memory is
about 40 bytes per arrival of a micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from latecomer.core.arrivals import Arrivals
from latecomer.lake import event_scan
from latecomer.lake.lake import Lake
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import with_columns
from latecomer.spark.engine.tuning import is_driver_local

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame


def arrivals(
    lake: Lake,
    sources: Sequence[str],
    seq_from: int,
    seq_to: int,
    carry: list[int],
    shards: int = 1,
    groups: Sequence[tuple[str, ...]] = (),
    shard_of: Callable[[pa.Table], np.ndarray] | None = None,
) -> Arrivals:
    """Read the arrivals ``[seq_from, seq_to)`` of the streams in `sources`, in order.

    Parameters
    ----------
    carry
        Running maxima of event time before them: entry ``side * shards + shard``, ``NEVER`` where nothing came yet.
    shards, groups, shard_of
        With more than one shard, `shard_of` returns the shard of every arrival, int32[n], by the values at the paths
        `groups` in its stream.
    """
    parts = [event_scan.arrivals(lake, stream, seq_from, seq_to, groups if shard_of else ()) for stream in sources]
    side = np.repeat(np.arange(len(parts), dtype=np.int8), [len(part[0]) for part in parts])
    shards_of = [shard_of(part[2]) if shard_of and len(part[0]) else np.zeros(len(part[0]), np.int32) for part in parts]
    seq, times, shard = parts[0][0], parts[0][1], shards_of[0]
    if len(parts) > 1:
        seq, times = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        order = np.argsort(seq, kind="stable")
        seq, times, side, shard = seq[order], times[order], side[order], np.concatenate(shards_of)[order]
    return Arrivals.of(seq, times, side, shard, carry, shards)


_BLOCK = 1024
"""Arrivals whose values go to Spark as one row, since arrays are faster to convert and to join than a row each."""


def with_arrival_values(rows: DataFrame, seq: np.ndarray, columns: dict[str, np.ndarray]) -> DataFrame:
    """Join bigint columns with one value per arrival to rows, by ``seq``.

    Parameters
    ----------
    rows
        Any rows with a ``seq`` that is in `seq`.
    seq
        int64[n], ascending.
    columns
        Name to int64[n].
    """
    from pyspark.sql import functions as F

    spark = rows.sparkSession
    if is_driver_local(spark) or not len(seq):
        return rows.join(F.broadcast(tables.to_spark(spark, pa.table({"seq": seq} | columns))), "seq")
    block = seq // _BLOCK
    fresh = np.diff(block, prepend=-1) > 0
    blocks, of = block[fresh], np.cumsum(fresh) - 1
    table: dict[str, pa.Array] = {"_block": pa.array(blocks)}
    for name, values in columns.items():
        spread = np.zeros(len(blocks) * _BLOCK, np.int64)
        spread[of * _BLOCK + seq % _BLOCK] = values
        table[f"_{name}"] = pa.ListArray.from_arrays(
            pa.array(np.arange(0, len(spread) + 1, _BLOCK, dtype=np.int32)), spread
        )
    listed = F.broadcast(tables.to_spark(spark, pa.table(table)))
    joined = rows.withColumn("_block", F.expr(f"seq div {_BLOCK}")).join(listed, "_block")
    looked_up = {name: F.expr(f"_{name}[cast(seq % {_BLOCK} as int)]") for name in columns}
    return with_columns(joined, looked_up).drop(*table)
