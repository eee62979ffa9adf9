"""Join, batch side: the pairs that registered late rows missed, found in the stored events and written once.

A registered row `y` carries the part of its window that was gone when it came (``partners_from`` to ``partners_to``,
both inclusive, on the opposite stream). Its missing pairs are exactly the stored rows of that range that arrived before it
and match; no other row can have missed a pair (module docstring of :mod:`latecomer.spark.join.stage`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from latecomer.core.gamma_batches import spans
from latecomer.core.time import NEVER
from latecomer.lake.event_scan import Spans
from latecomer.spark.engine import tables
from latecomer.spark.join.rows import LETTERS, JoinRows
from latecomer.spark.stage import Stage
from latecomer.specs.join import JoinSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class JoinRepair(Stage):
    """The part of a join's stage that repairs; strategies differ only in which rows they register."""

    spec: JoinSpec
    rows: JoinRows

    def repair(self, late: DataFrame, repaired_in: pa.Table) -> DataFrame:
        """Corrections for registered late rows.

        Parameters
        ----------
        late
            Rows of the query's late table.
        repaired_in
            ``seq`` and ``repaired_in`` (the arrival that closed its Gamma batch), int64: the rows to repair.
        """
        from pyspark.sql import functions as F

        count = repaired_in.num_rows
        due = self.cache.materialize(
            late.join(tables.broadcast_if_small(tables.to_spark(self.spark, repaired_in), count), "seq")
        )
        gone = due.select(F.unix_micros("partners_from").alias("low"), F.unix_micros("partners_to").alias("high"))
        ranges = gone.toArrow()
        low, high = (ranges[name].to_numpy() for name in ("low", "high"))
        seq = repaired_in["seq"].to_numpy()
        parts = [self._missing(due, count, side, int(seq.min()), int(seq.max()), spans(low, high)) for side in (0, 1)]
        return parts[0].unionByName(parts[1])

    def _missing(self, due: DataFrame, count: int, side: int, seq_from: int, seq_last: int, held: Spans) -> DataFrame:
        from pyspark.sql import functions as F

        own, other = LETTERS[side], LETTERS[1 - side]
        registered = due.where(F.col("alias") == self.rows.aliases[side]).select(
            F.col("seq").alias(f"{own}_seq"),
            F.unix_micros("partners_from").alias(f"{own}_from"),
            F.unix_micros("partners_to").alias(f"{own}_to"),
            F.col("repaired_in").alias(f"{own}_repaired_in"),
            F.unix_micros("period_start").alias(f"{own}_period"),
        )
        everywhere = (NEVER // 2, -(NEVER // 2))
        late = self.rows.stored(side, seq_last + 1, NEVER, *everywhere, seq_from=seq_from)
        late = late.join(tables.broadcast_if_small(registered, count), f"{own}_seq")
        partners = self.rows.stored(1 - side, seq_last, NEVER, *everywhere, spans=held)
        gone = F.expr(f"{other}_seq < {own}_seq and {other}_ts between {own}_from and {own}_to")
        sides = [late, partners] if side == 0 else [partners, late]
        pairs = self.rows.pairs(sides[0], sides[1], gone, where=True, copy_left=side == 0)
        return self.rows.results(
            pairs, provenance="repaired", published=F.col(f"{own}_repaired_in"), period=F.col(f"{own}_period")
        )
