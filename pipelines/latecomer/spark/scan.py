"""Scan: the arrival order of a micro-batch, read here, and looked up in Spark.

What follows from the order alone (running maxima, stream time, delays) needs two narrow columns, ``seq`` and event time, and is a
single pass over arrays: :mod:`latecomer.core.arrivals`. So nothing in Spark is sorted or numbered. The size of a micro-batch
bounds the memory, about 40 bytes an arrival.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from latecomer.core.arrivals import Arrivals
from latecomer.lake.location import Lake
from latecomer.spark import tables
from latecomer.spark.session import expects_few

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
    shard_of: Callable[[], np.ndarray] | None = None,
) -> Arrivals:
    """Arrivals ``[seq_from, seq_to)`` of the streams in `sources`, in order.

    Parameters
    ----------
    carry
        Running maxima before them: entry ``side * shards + shard``, ``NEVER`` where nothing came yet.
    shards, shard_of
        With more than one shard, gives the shard of each arrival, in order.
    """
    parts = [tables.arrivals(lake, stream, seq_from, seq_to) for stream in sources]
    seq, times = parts[0]
    side = np.repeat(np.arange(len(parts), dtype=np.int8), [len(part[0]) for part in parts])
    if len(parts) > 1:
        seq, times = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.argsort(seq, kind="stable")
        seq, times, side = seq[order], times[order], side[order]
    shard = np.zeros(len(seq), np.int32) if shard_of is None or not len(seq) else shard_of()
    return Arrivals.of(seq, times, side, shard, carry, shards)


def looked_up(rows: DataFrame, seq: np.ndarray, columns: dict[str, np.ndarray]) -> DataFrame:
    """Rows with bigint columns that belong to their arrivals.

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
    if expects_few(spark) or not len(seq):
        return rows.join(F.broadcast(tables.handed(spark, pa.table({"seq": seq} | columns))), "seq")
    shared = spark.sparkContext.broadcast((seq, columns))

    def lookup(name: str) -> Any:
        def find(own: pa.Array) -> pa.Array:
            known, values = shared.value
            return pa.array(values[name][np.searchsorted(known, own.to_numpy())])

        return F.arrow_udf(find, "bigint")  # type: ignore[call-overload]

    for name in columns:
        rows = rows.withColumn(name, lookup(name)("seq"))
    return rows
