"""Windowed kinds once more: corrections of windows that missed rows, and backfills of a range of windows.

`repair` takes Gamma batches of late rows: the answer of a touched window after the batch that arrival `C` closed is the
answer over all its rows with ``seq <= C``, whatever was on time. So corrections are a function of the arrival order too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from latecomer.core.gamma_batches import spans
from latecomer.core.time import EARLIEST_US, LATEST_US
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import floor_div, join_null_safe, quoted
from latecomer.spark.engine.tuning import is_driver_local
from latecomer.spark.windows.rows import Closing, WindowRows
from latecomer.strategies.windows import window_controls

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEW_BATCHES = 100
"""Gamma batches that a row's own is looked for one by one."""


@dataclass
class Due:
    """Late rows to repair.

    Attributes
    ----------
    rows : DataFrame
        Payload, ``seq``, ``ts``, ``side``, ``m_from``, ``m_to`` (windows that missed the row) and ``repaired_in``; cached.
    spans : list of (first, last)
        Ranges of window numbers that hold all which missed a row, and few others: rows that are late by very different
        times touch windows that lie far apart.
    closes : int64[b]
        Arrivals that closed the Gamma batches, ascending.
    """

    rows: Any
    spans: list[tuple[int, int]]
    closes: np.ndarray

    @property
    def seq(self) -> int:
        """Arrival that closed the last Gamma batch."""
        return int(self.closes[-1])


class WindowRepair(WindowRows):
    """Answers windows again, from all their rows up to an arrival."""

    def corrected(self, due: Due) -> DataFrame:
        """Corrections: result columns with ``_m``, ``revision`` and ``repaired_in``."""
        raise NotImplementedError

    def recompute(self, from_us: int, to_us: int, seq_to: int, state: dict[str, Any]) -> DataFrame:
        """Answers, from all rows before `seq_to`, of closed windows that start in ``[from_us, to_us)``."""
        from pyspark.sql import functions as F

        slide, size = self.grid.slide_us, self.grid.size_us
        first, last = -(-from_us // slide), (to_us - 1) // slide
        controls = window_controls(self.spec, state)
        after = [min(last, self.grid.last_closed(control.watermark())) for control in controls]
        low = max(first * slide - self.lookback_us, EARLIEST_US)
        high = min(last * slide + size, LATEST_US) - 1
        rows = self.stored(seq_to=seq_to, low_us=low, high_us=high).where("ok").withColumn("c", F.lit(first - 1))
        last_closed = F.least(self.last_of("ts"), self._by_shard(after))
        windows = self.in_windows(rows, self.open_from("ts"), last_closed).select("shard", "_m").distinct()
        table = windows.withColumn("closed_seq", F.lit(seq_to - 1).cast("bigint")).withColumn(
            "wait_us", F.lit(0).cast("bigint")
        )
        closing = Closing(first, after, self.cache.keep(table), table.count())
        return self._results(self.answers(rows, closing), "repaired", "closed_seq")

    def repair(self, late: DataFrame, repaired_in: pa.Table) -> DataFrame:
        """Corrections for registered late rows; ``seq`` and ``repaired_in`` (int64) say which and in which Gamma batch."""
        from pyspark.sql import functions as F

        chosen = tables.broadcast_if_small(tables.to_spark(self.spark, repaired_in), repaired_in.num_rows)
        size, slide = self.grid.size_us, self.grid.slide_us
        windows = late.join(chosen, "seq").select(
            "seq",
            "repaired_in",
            floor_div(F.unix_micros("windows_from"), slide).alias("m_from"),
            floor_div(F.unix_micros("windows_to") - size, slide).alias("m_to"),
        )
        bounds = repaired_in["seq"].to_numpy()
        near = self.stored(seq_from=int(bounds.min()), seq_to=int(bounds.max()) + 1)
        rows = self.cache.materialize(near.join(tables.broadcast_if_small(windows, repaired_in.num_rows), "seq"))
        closes = np.unique(repaired_in["repaired_in"].to_numpy())
        missed = rows.select("m_from", "m_to").toArrow()
        due = Due(rows, spans(missed["m_from"].to_numpy(), missed["m_to"].to_numpy()), closes)
        return self._results(self.corrected(due), "repaired", "repaired_in")

    def stored_in(self, due: Due) -> DataFrame:
        """All stored rows of the windows that late rows touch, up to the last Gamma batch; payload, ``seq``, ``ts``, ``side``."""
        slide = self.grid.slide_us
        held = [(first * slide - self.lookback_us, self.grid.end(last) - 1) for first, last in due.spans]
        return self.stored(seq_to=due.seq + 1, spans=held).where("ok")

    def counted_from(self, due: Due) -> DataFrame:
        """As :meth:`stored_in`, with ``pane`` and ``repaired_in``: the first Gamma batch whose answers count the row."""
        from pyspark.sql import functions as F

        rows, closes = self.paned(self.stored_in(due)), due.closes
        if len(closes) == 1:
            return rows.withColumn("repaired_in", F.lit(due.seq).cast("bigint"))
        if len(closes) <= FEW_BATCHES and is_driver_local(self.spark):  # Python's processes would take seconds to start
            listed = ", ".join(f"{close}L" for close in closes.tolist())
            return rows.withColumn("repaired_in", F.expr(f"array_min(filter(array({listed}), x -> x >= seq))"))

        @F.pandas_udf("bigint")  # type: ignore[call-overload]
        def first_close(seq):  # type: ignore[no-untyped-def]
            import pandas as pd

            return pd.Series(closes[np.searchsorted(closes, seq.to_numpy())])

        return rows.withColumn("repaired_in", first_close("seq"))

    def written(self, area: str, due: Due) -> DataFrame:
        """Committed result rows of the windows that missed rows, with their window number ``_m``."""
        from pyspark.sql import functions as F

        slide = self.grid.slide_us
        starts = [(first * slide, last * slide) for first, last in due.spans]
        rows = tables.read_ranges(self.spark, self.lake.table(area, self.spec.name), "window_start", starts)
        return rows.withColumn("_m", floor_div(F.unix_micros("window_start"), slide))

    def numbered(self, rows: DataFrame, keys: list[str], due: Due) -> DataFrame:
        """Rows with ``revision``: the answers of a window count up, by ``repaired_in``, from the last one written before.

        `keys` are the group columns' names in `rows`, in the query's order, and ``_m``.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        groups = [F.col(quoted(name)).alias(key) for name, key in zip(self.leading, keys[:-1], strict=True)]
        parts = [
            self.written(area, due).select(*groups, "_m", "revision")
            for area in ("on_time", "corrections")
            if self.lake.table(area, self.spec.name).exists()
        ]
        written = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
        by = [F.col(quoted(key)) for key in keys]
        last = written.groupBy(*by).agg(F.max("revision").alias("_last"))
        nth = F.dense_rank().over(Window.partitionBy(*by).orderBy("repaired_in"))
        joined = join_null_safe(rows.withColumn("_nth", nth), last, keys, "left")
        revision = (F.col("_nth") + F.coalesce(F.col("_last"), F.lit(-1))).cast("int")
        return joined.withColumn("revision", revision).drop("_nth", "_last")
