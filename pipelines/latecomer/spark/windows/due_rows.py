"""Late rows that are due for repair, with the stored rows and the written answers of their windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import floor_div, join_null_safe, quoted
from latecomer.spark.engine.tuning import is_driver_local
from latecomer.spark.windows.assigner import WindowAssigner
from latecomer.spark.windows.query import WindowQuery
from latecomer.spark.windows.rows import WindowRows
from latecomer.specs.windows import WindowedSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCHES_IN_SQL = 100
"""Most Gamma batches among which the batch of a row is found by comparing one after the other."""


@dataclass(frozen=True)
class DueRows:
    """Late rows that are due for repair, with the stored rows and the written answers of their windows.

    Attributes
    ----------
    late : DataFrame
        Payload, ``seq``, ``ts``, ``side``, ``m_from``, ``m_to`` (windows that missed the row) and ``repaired_in``;
        cached.
    spans : list of (first, last)
        Ranges of window numbers that hold all which missed a row, and few others: rows that are late by very different
        times touch windows that lie far apart.
    closes : int64[b]
        Arrivals that closed the Gamma batches, ascending.
    query, assigner, rows
        The query, which windows hold a row, and its stored rows.
    revised : bool
        True where `run` has published answers again.
    """

    late: DataFrame
    spans: list[tuple[int, int]]
    closes: NDArray[np.int64]
    query: WindowQuery[WindowedSpec]
    assigner: WindowAssigner
    rows: WindowRows
    revised: bool = False

    @property
    def seq(self) -> int:
        """The arrival that closed the last Gamma batch."""
        return int(self.closes[-1])

    def stored(self) -> DataFrame:
        """Read all rows of the windows that late rows touch, up to the last Gamma batch."""
        grid, lookback_us = self.query.grid, self.assigner.lookback_us
        times = [(first * grid.slide_us - lookback_us, grid.end(last) - 1) for first, last in self.spans]
        return self.rows.stored(seq_to=self.seq + 1, spans=times).where("ok")

    def counted_from(self) -> DataFrame:
        """Read these rows with ``pane`` and ``repaired_in``: the first Gamma batch whose answers count the row."""
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.functions import pandas_udf

        rows, closes = self.assigner.paned(self.stored()), self.closes
        if len(closes) == 1:
            return rows.withColumn("repaired_in", F.lit(self.seq).cast("bigint"))
        if len(closes) <= BATCHES_IN_SQL and is_driver_local(self.query.spark):
            # Python's processes would take seconds to start
            literals = ", ".join(f"{close}L" for close in closes.tolist())
            return rows.withColumn("repaired_in", F.expr(f"array_min(filter(array({literals}), x -> x >= seq))"))

        @pandas_udf("bigint")  # type: ignore[call-overload]
        def first_close(seq):  # type: ignore[no-untyped-def]
            import pandas as pd

            return pd.Series(closes[np.searchsorted(closes, seq.to_numpy())])

        return rows.withColumn("repaired_in", first_close("seq"))

    def written(self, area: str) -> DataFrame:
        """Read the committed result rows of the windows that missed rows, with their window number ``_m``."""
        from pyspark.sql import functions as F

        slide = self.query.grid.slide_us
        starts = [(first * slide, last * slide) for first, last in self.spans]
        table = self.query.lake.table(area, self.query.spec.name)
        rows = tables.read_ranges(self.query.spark, table, "window_start", starts)
        return rows.withColumn("_m", floor_div(F.unix_micros("window_start"), slide))

    def unrevised(self) -> DataFrame:
        """Return the late rows by window, without rows that `run` has answered again for their group and window."""
        from pyspark.sql import functions as F

        groups = self.query.groups
        names = (F.col(quoted(name)).alias(key) for name, key in zip(self.query.spec.group_by, groups, strict=True))
        recalled = self.written("on_time").where("provenance = 'recalled'").select(*names, "_m", "published_seq")
        revised = recalled.groupBy(*groups, "_m").agg(F.max("published_seq").alias("_to"))
        late = self.assigner.in_windows(self.late, F.col("m_from"), F.col("m_to"))
        late = join_null_safe(late, revised, [*groups, "_m"], "left").where("_to is null or seq >= _to").drop("_to")
        return late.withColumn("m_from", F.col("_m")).withColumn("m_to", F.col("_m")).drop("_m")

    def numbered(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        """Add ``revision``: the answers of a window count up, by ``repaired_in``, from the last one written before.

        `keys` are the names of the group columns in `rows`, in the query's order, and ``_m``.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        spec, lake = self.query.spec, self.query.lake
        groups = [F.col(quoted(name)).alias(key) for name, key in zip(spec.group_by, keys[:-1], strict=True)]
        parts = [
            self.written(area).select(*groups, "_m", "revision")
            for area in ("on_time", "corrections")
            if lake.table(area, spec.name).exists()
        ]
        written = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
        by = [F.col(quoted(key)) for key in keys]
        last = written.groupBy(*by).agg(F.max("revision").alias("_last"))
        nth = F.dense_rank().over(Window.partitionBy(*by).orderBy("repaired_in"))
        joined = join_null_safe(rows.withColumn("_nth", nth), last, keys, "left")
        revision = (F.col("_nth") + F.coalesce(F.col("_last"), F.lit(-1))).cast("int")
        return joined.withColumn("revision", revision).drop("_nth", "_last")
