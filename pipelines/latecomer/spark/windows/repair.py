"""Answer windows again: corrections of windows that missed rows, and backfills of a range of windows.

`repair` takes Gamma batches of late rows: the answer of a touched window after the batch that arrival `C` closed is
the answer over all its rows with ``seq <= C``, whatever was on time. So corrections are a function of the arrival
order too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from latecomer.core.gamma_batches import spans
from latecomer.core.time import EARLIEST_US, LATEST_US
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import floor_div
from latecomer.spark.stage import StageState
from latecomer.spark.windows.assigner import number_of_shard
from latecomer.spark.windows.due_rows import DueRows
from latecomer.spark.windows.kind import WindowKind
from latecomer.spark.windows.query import WindowQuery
from latecomer.spark.windows.rows import ClosedWindowTable, WindowRows, listed, result_rows
from latecomer.specs.windows import WindowedSpec
from latecomer.strategies.windows import window_controls

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class WindowRepair:
    """Answers windows again, from all their rows up to an arrival."""

    def __init__(self, query: WindowQuery[WindowedSpec], kind: WindowKind[WindowedSpec], rows: WindowRows) -> None:
        self._query, self._kind, self._rows = query, kind, rows

    def recompute(self, from_us: int, to_us: int, seq_to: int, state: StageState) -> DataFrame:
        """Answer, from all rows before `seq_to`, the closed windows that start in ``[from_us, to_us)``."""
        from pyspark.sql import functions as F

        query, assigner, grid = self._query, self._kind.assigner, self._query.grid
        slide = grid.slide_us
        first, last = -(-from_us // slide), (to_us - 1) // slide
        controls = window_controls(query.spec, state)
        after = [min(last, grid.last_closed(control.watermark())) for control in controls]
        low = max(first * slide - assigner.lookback_us, EARLIEST_US)
        high = min(last * slide + grid.size_us, LATEST_US) - 1
        rows = self._rows.stored(seq_to=seq_to, low_us=low, high_us=high).where("ok")
        rows = rows.withColumn("c", F.lit(first - 1))
        last_closed = F.least(assigner.last_of("ts"), number_of_shard(after))
        windows = assigner.in_windows(rows, assigner.open_from("ts"), last_closed).select("shard", "_m").distinct()
        windows = windows.withColumn("closed_seq", F.lit(seq_to - 1).cast("bigint"))
        windows = windows.withColumn("wait_us", F.lit(0).cast("bigint"))
        closed = ClosedWindowTable(first, after, query.cache.keep(windows), windows.count())
        return result_rows(query, self._kind.answers(rows, closed).rows, "repaired", "closed_seq")

    def repair(self, late: DataFrame, repaired_in: pa.Table) -> DataFrame:
        """Return the corrections for the late rows that ``seq`` lists; ``repaired_in`` is the Gamma batch of each."""
        from pyspark.sql import functions as F

        query, grid = self._query, self._query.grid
        windows = late.join(listed(query.spark, repaired_in), "seq").select(
            "seq",
            "repaired_in",
            floor_div(F.unix_micros("windows_from"), grid.slide_us).alias("m_from"),
            floor_div(F.unix_micros("windows_to") - grid.size_us, grid.slide_us).alias("m_to"),
        )
        bounds = repaired_in["seq"].to_numpy()
        near = self._rows.stored(seq_from=int(bounds.min()), seq_to=int(bounds.max()) + 1)
        rows = query.cache.materialize(near.join(tables.broadcast_if_small(windows, repaired_in.num_rows), "seq"))
        closes = np.unique(repaired_in["repaired_in"].to_numpy())
        missed = rows.select("m_from", "m_to").toArrow()
        touched = spans(missed["m_from"].to_numpy(), missed["m_to"].to_numpy())
        due = DueRows(rows, touched, closes, query, self._kind.assigner, self._rows)
        return result_rows(query, self._kind.corrected(due), "repaired", "repaired_in")
