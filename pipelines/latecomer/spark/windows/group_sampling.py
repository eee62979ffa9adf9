"""Group sampling on Spark: find panes with very many groups, and keep the rows of their observed groups.

See :mod:`latecomer.core.windows.group_sampling`. Rows have ``shard``, ``pane`` and ``grp``, the hash of their group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from latecomer.core.windows import group_sampling as core
from latecomer.core.windows.group_sampling import GroupSample, Int64
from latecomer.spark.engine import tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def group_samples(rows: DataFrame, panes: Sequence[Int64]) -> list[GroupSample]:
    """Choose the observed groups of each shard's `panes` from the rows before the end of their first window."""
    from pyspark.sql import functions as F

    if not any(map(len, panes)):
        return [GroupSample.all_groups() for _ in panes]
    counted = rows.where(f"shiftrightunsigned(grp, {64 - core.COUNTED_BITS}) = 0L").select("shard", "pane", "grp")
    counts = counted.distinct().groupBy("shard", "pane").agg(F.count("*")).toArrow()
    shard, pane, count = (column.to_numpy() for column in counts.columns)
    in_shards = [(shard == number) & np.isin(pane, listed) for number, listed in enumerate(panes)]
    return [GroupSample.of_counts(pane[inside], count[inside]) for inside in in_shards]


def observed_groups(rows: DataFrame, samples: Sequence[GroupSample]) -> DataFrame:
    """Keep the rows of observed groups; one sample per shard."""
    from pyspark.sql import functions as F

    sizes = [len(sample.panes) for sample in samples]
    if not sum(sizes):
        return rows
    listed = pa.table(
        {
            "shard": pa.array(np.repeat(np.arange(len(sizes)), sizes), pa.int32()),
            "pane": np.concatenate([sample.panes for sample in samples]),
            "_shift": pa.array(np.concatenate([sample.shift for sample in samples]), pa.int32()),
        }
    )
    known = rows.join(F.broadcast(tables.to_spark(rows.sparkSession, listed)), ["shard", "pane"], "left")
    sampled = "shiftrightunsigned(shiftrightunsigned(grp, 1), 63 - coalesce(_shift, 0)) = 0L"
    return known.where(sampled).drop("_shift")
