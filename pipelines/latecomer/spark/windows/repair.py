"""Answer windows again: corrections of windows that missed rows, and backfills of a range of windows.

`repair` takes Gamma batches of late rows: the answer of a touched window after the batch that arrival `C` closed is
the answer over all its rows with ``seq <= C``, whatever was on time. So corrections are a function of the arrival
order too. A late row that `run` has recalled (:mod:`latecomer.spark.windows.recall`) needs no correction: where
results only grow, for its period; where answers are replaced, for the windows that were answered again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from latecomer.core.gamma_batches import spans
from latecomer.core.time import EARLIEST_US, LATEST_US
from latecomer.lake.lake import Lake
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import floor_div, floor_div_sql
from latecomer.spark.stage import StageState
from latecomer.spark.windows.assigner import number_of_shard
from latecomer.spark.windows.due_rows import DueRows
from latecomer.spark.windows.kind import WindowKind
from latecomer.spark.windows.query import WindowQuery
from latecomer.spark.windows.rows import ClosedWindowTable, WindowRows, listed, result_rows
from latecomer.specs.windows import RevisedSpec, WaitingSpec, WindowedSpec
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
        if recalled := recalled_to(query.lake, query.spec):
            windows = self._not_recalled(windows, recalled)
        closes = np.unique(repaired_in["repaired_in"].to_numpy())
        due = self.due(tables.broadcast_if_small(windows, repaired_in.num_rows), repaired_in["seq"], closes)
        if self._has_revisions():
            due = replace(due, late=query.cache.materialize(due.unrevised()), revised=True)
        return result_rows(query, self._kind.corrected(due), "repaired", "repaired_in")

    def due(self, windows: DataFrame, seq: pa.ChunkedArray, closes: NDArray[np.int64]) -> DueRows:
        """Return late rows with their payload.

        Parameters
        ----------
        windows
            ``seq``, ``m_from``, ``m_to`` and ``repaired_in``.
        seq
            The rows, or more.
        closes
            As in :class:`~latecomer.spark.windows.due_rows.DueRows`.
        """
        query, bounds = self._query, pc.min_max(seq)
        near = self._rows.stored(seq_from=bounds["min"].as_py(), seq_to=bounds["max"].as_py() + 1)
        rows = query.cache.materialize(near.join(windows, "seq"))
        missed = rows.select("m_from", "m_to").toArrow()
        touched = spans(missed["m_from"].to_numpy(), missed["m_to"].to_numpy())
        return DueRows(rows, touched, closes, query, self._kind.assigner, self._rows)

    def _has_revisions(self) -> bool:
        """Return whether `run` has published an answer again."""
        spec, recalled = self._query.spec, pc.field("provenance") == "recalled"
        return (
            isinstance(spec, RevisedSpec)
            and spec.revises
            and self._query.lake.table("on_time", spec.name).count(recalled) > 0
        )

    def _not_recalled(self, windows: DataFrame, recalled: dict[int, int]) -> DataFrame:
        """Leave out the windows of periods that were recalled after the row came.

        `recalled` maps the start of a period (us) to its last recall.
        """
        from pyspark.sql import functions as F

        grid, period_us = self._query.grid, self._query.spec.period_us
        starts = pa.table({"_period": [start // period_us for start in recalled], "_to": list(recalled.values())})

        def period_of(window: str) -> str:
            return floor_div_sql(f"{window} * {grid.slide_us}L + {grid.size_us - 1}L", period_us)

        number = F.explode(F.sequence(F.expr(period_of("m_from")), F.expr(period_of("m_to"))))
        parts = windows.withColumn("_period", number).join(
            tables.to_spark(self._query.spark, starts), "_period", "left"
        )
        first = f"-({floor_div_sql(f'{grid.size_us - 1}L - _period * {period_us}L', grid.slide_us)})"
        last = floor_div_sql(f"(_period + 1L) * {period_us}L - {grid.size_us}L", grid.slide_us)
        parts = parts.where("_to is null or seq >= _to").selectExpr(
            "seq", "repaired_in", f"greatest(m_from, {first}) as m_from", f"least(m_to, {last}) as m_to"
        )
        return parts.where("m_from <= m_to")


def recalled_to(lake: Lake, spec: WindowedSpec) -> dict[int, int]:
    """Return the last recall of each period (us): all results of rows before that arrival are published."""
    if not (isinstance(spec, WaitingSpec) and spec.guarantee):
        return {}
    table, recalled = lake.table("on_time", spec.name), pc.field("provenance") == "recalled"
    last: dict[int, int] = {}
    for batch in table.batches(["period_start", "published_seq"], recalled):
        groups = pa.Table.from_batches([batch]).group_by("period_start").aggregate([("published_seq", "max")])
        starts = groups["period_start"].cast(pa.int64()).to_pylist()
        for start, seq in zip(starts, groups["published_seq_max"].to_pylist(), strict=True):
            last[start] = max(seq, last.get(start, seq))
    return last
