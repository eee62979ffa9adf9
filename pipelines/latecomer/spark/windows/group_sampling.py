"""Thinning on Spark: which panes have very many groups, and their rows less those of groups that are not looked at.

See :mod:`latecomer.core.windows.group_sampling`. Rows have ``shard``, ``pane`` and ``grp``, the hash of their group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from latecomer.core.windows import group_sampling as core
from latecomer.core.windows.group_sampling import Int64, Thinning
from latecomer.spark.engine import tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def thinnings(rows: DataFrame, panes: Sequence[Int64]) -> list[Thinning]:
    """How the `panes` of each shard are thinned; `rows` are those that came before the first window of their pane ended."""
    from pyspark.sql import functions as F

    if not any(map(len, panes)):
        return [Thinning.none() for _ in panes]
    some = (
        rows.where(f"shiftrightunsigned(grp, {64 - core.COUNTED_BITS}) = 0L").select("shard", "pane", "grp").distinct()
    )
    counts = some.groupBy("shard", "pane").agg(F.count("*")).toArrow()
    shard, pane, count = (column.to_numpy() for column in counts.columns)
    own = [(shard == number) & np.isin(pane, each) for number, each in enumerate(panes)]
    return [Thinning.of_counts(pane[mine], count[mine]) for mine in own]


def thinned(rows: DataFrame, by_shard: Sequence[Thinning]) -> DataFrame:
    """Rows of the groups that are looked at."""
    from pyspark.sql import functions as F

    sizes = [len(each.panes) for each in by_shard]
    if not sum(sizes):
        return rows
    listed = pa.table(
        {
            "shard": pa.array(np.repeat(np.arange(len(sizes)), sizes), pa.int32()),
            "pane": np.concatenate([each.panes for each in by_shard]),
            "_shift": pa.array(np.concatenate([each.shift for each in by_shard]), pa.int32()),
        }
    )
    known = rows.join(F.broadcast(tables.to_spark(rows.sparkSession, listed)), ["shard", "pane"], "left")
    sampled = "shiftrightunsigned(shiftrightunsigned(grp, 1), 63 - coalesce(_shift, 0)) = 0L"
    return known.where(sampled).drop("_shift")
