"""Scan the arrivals of a micro-batch in order, and join values per arrival to rows in Spark.

Running maxima, stream time and delays follow from the arrival order alone. They need two narrow columns, ``seq`` and
event time, and one pass over arrays (:mod:`latecomer.core.arrivals`). There are two places for that pass:

* *The driver* reads both columns itself; Spark sorts and numbers nothing. Memory is about 40 bytes per arrival, and
  the values go to Spark's tasks in a broadcast. With few cores this is the fastest.
* *Spark's tasks.* Arrivals are cut into blocks by their number. The maxima of a block need no order, so one aggregation
  finds them; added up along the blocks they are the running maxima before each, and from there every block is a pass of
  its own. The driver sees what the blocks are reduced to: entries per interval and late row, none per arrival.

The setting ``spark.latecomer.arrivals`` of a session names the place: ``driver``, ``tasks``, or ``auto``, which takes
the tasks from `TASK_ROWS` arrivals and `TASK_CORES` cores on. Answers do not depend on it.
"""

from __future__ import annotations

import pickle
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from latecomer.core.arrivals import ArrivalBlocks, Arrivals, Checkpoint
from latecomer.core.time import NEVER
from latecomer.lake import event_scan
from latecomer.lake.lake import Lake
from latecomer.spark.engine import arrival_blocks, connect, tables
from latecomer.spark.engine.columns import with_columns
from latecomer.spark.engine.tuning import is_driver_local

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from latecomer.spark.stage import StageCache

T = TypeVar("T")
PLACE = "spark.latecomer.arrivals"
"""The setting that names the place of the pass."""
TASK_ROWS, TASK_CORES = 1 << 20, 32
"""Fewest arrivals of a micro-batch, and fewest cores of a session, with which ``auto`` takes Spark's tasks."""
BLOCK_ROWS = 1 << 16
"""Arrivals of the lake that one block spans; those of a query are as many at most."""


# ----------------------------------------------------------------------------------------------------------- the driver


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


# -------------------------------------------------------------------------------------------------------- Spark's tasks


def is_for_tasks(spark: SparkSession, rows: int) -> bool:
    """Return whether Spark's tasks, and not the driver, follow the order of at most so many arrivals."""
    place = spark.conf.get(PLACE, "auto")
    if place != "auto":
        return place == "tasks"
    return rows >= TASK_ROWS and not is_driver_local(spark) and connect.parallelism(spark) >= TASK_CORES


class TaskArrivals:
    """Consecutive arrivals in blocks that Spark's tasks reduce; see :class:`latecomer.core.arrivals.ArrivalBlocks`.

    Parameters
    ----------
    rows
        The arrivals, in any order: ``seq``, ``ts`` (event time, us), ``side`` and, with more than one shard, ``shard``.
    carry
        Running maxima before them, as in :class:`~latecomer.core.arrivals.Checkpoint`.
    shards
        Number of shards.
    cache
        Keeps the two columns of the arrivals while their stage is at work.

    Attributes
    ----------
    received : int
        Bytes of all that blocks were reduced to in this process, since it began.
    """

    received = 0

    def __init__(self, rows: DataFrame, carry: list[int], shards: int, cache: StageCache) -> None:
        from pyspark.sql import functions as F

        shard = F.col("shard") if shards > 1 else F.lit(0)
        narrow = rows.select(
            F.expr(f"seq div {BLOCK_ROWS}").alias("block"),
            "seq",
            "ts",
            F.col("side").cast("int").alias("side"),
            shard.cast("int").alias("shard"),
        )
        partitions = 2 * connect.parallelism(rows.sparkSession)
        self._rows = cache.keep(narrow.repartition(partitions, "block"))
        self._shards = shards
        maxima = self._rows.groupBy("block", "side", "shard").agg(F.max("ts").alias("last"), F.count("*").alias("rows"))
        block, side, of_shard, last, count = (column.to_numpy() for column in maxima.toArrow().columns)
        self._blocks, place = np.unique(block, return_inverse=True)
        self._carries = np.full((len(self._blocks) + 1, len(carry)), NEVER, np.int64)
        self._carries[0] = carry
        self._carries[place + 1, side * shards + of_shard] = last
        np.maximum.accumulate(self._carries, axis=0, out=self._carries)
        self._counts = np.zeros(len(self._blocks), np.int64)
        np.add.at(self._counts, place, count)

    @property
    def rows(self) -> int:
        """The number of arrivals."""
        return int(self._counts.sum())

    @property
    def carry(self) -> list[int]:
        """The running maxima after them."""
        return [int(maximum) for maximum in self._carries[-1]]

    def of_blocks(self, task: Callable[[Arrivals], T]) -> list[T]:
        """Return what `task` makes of each block, in their order."""
        if not len(self._blocks):
            return [task(arrival_blocks.empty(self.carry, self._shards))]
        rows = self._mapped(partial(arrival_blocks.reduced, task=task), "block bigint, result binary").toArrow()
        TaskArrivals.received += rows["result"].nbytes
        results = dict(zip(rows["block"].to_pylist(), rows["result"], strict=True))
        return [pickle.loads(results[block].as_buffer()) for block in self._blocks.tolist()]  # our own

    def values(self, names: Sequence[str]) -> DataFrame:
        """Return ``seq`` and columns of the arrivals: ``t``, the stream time after each, and ``delay``, both in us."""
        columns = {name: _VALUES[name] for name in names}
        schema = ", ".join(f"{name} bigint" for name in ["seq", *names])
        return self._mapped(partial(arrival_blocks.valued, columns=columns), schema)

    def checkpoints(self, every: int) -> list[Checkpoint]:
        """Return the checkpoints before blocks that begin `every` so many arrivals, or somewhat more, after another."""
        marks, since = [], 0
        for place in range(1, len(self._blocks)):
            since += int(self._counts[place - 1])
            if since >= every:
                carry = [int(maximum) for maximum in self._carries[place]]
                marks.append(Checkpoint(int(self._blocks[place]) * BLOCK_ROWS, carry))
                since = 0
        return marks

    def _mapped(self, function: Callable[..., pa.Table], schema: str) -> DataFrame:
        """Return what a function of :mod:`latecomer.spark.engine.arrival_blocks` makes of each block, as rows."""
        carries = {int(block): self._carries[place].tolist() for place, block in enumerate(self._blocks)}
        shards = self._shards

        def of_block(key: tuple[pa.Scalar, ...], rows: pa.Table) -> pa.Table:  # Spark counts a function's parameters
            return function(key[0].as_py(), rows, carries=carries, shards=shards)

        return self._rows.groupBy("block").applyInArrow(of_block, schema)


_VALUES = {"t": "stream_time_us", "delay": "delay_us"}


# ------------------------------------------------------------------------------------------------- values of arrivals


def with_stream_times(rows: DataFrame, new: ArrivalBlocks, names: Sequence[str]) -> DataFrame:
    """Join values of arrivals to rows by ``seq``: ``t``, the stream time after each, and ``delay``, both in us."""
    if isinstance(new, TaskArrivals):
        return rows.join(new.values(names), "seq")
    assert isinstance(new, Arrivals)
    return with_arrival_values(rows, new.seq, {name: getattr(new, _VALUES[name]) for name in names})


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
