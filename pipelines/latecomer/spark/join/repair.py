"""Repair of a join: the pairs that registered late rows missed, found in the stored events and written once.

A registered row `y` carries the part of its window that lay behind the opposite horizon when it arrived
(``partners_from`` to ``partners_to``, both inclusive, on the opposite stream). Its missed pairs are exactly the
matching stored rows of that range that arrived before it; no other row can have missed a pair (see
:mod:`latecomer.spark.join.stage`). `run` recalls pairs in the same way (:mod:`latecomer.spark.join.recall`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from latecomer.core.gamma_batches import spans
from latecomer.core.time import NEVER
from latecomer.lake.event_scan import Spans
from latecomer.spark.engine import tables
from latecomer.spark.join.rows import LETTERS, JoinRows
from latecomer.spark.stage import StageCache

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ANY_TIME = (NEVER // 2, -(NEVER // 2))


class JoinRepair:
    """Finds the missed pairs of late rows. All strategies share it; they differ only in which rows they register."""

    def __init__(self, rows: JoinRows, cache: StageCache) -> None:
        self.rows, self.cache = rows, cache

    def corrections(self, late: DataFrame, repaired_in: pa.Table, provenance: str = "repaired") -> DataFrame:
        """Return the missed pairs of at least one registered late row as results.

        Arguments as for :meth:`latecomer.spark.stage.Stage.repair`.
        """
        from pyspark.sql import functions as F

        count = repaired_in.num_rows
        chosen = tables.broadcast_if_small(tables.to_spark(self.rows.spark, repaired_in), count)
        late = self.cache.materialize(late.join(chosen, "seq"))
        low, high = F.unix_micros("partners_from").alias("low"), F.unix_micros("partners_to").alias("high")
        ranges = late.select(low, high).toArrow()
        partner_spans = spans(ranges["low"].to_numpy(), ranges["high"].to_numpy())
        seq = repaired_in["seq"].to_numpy()
        bounds = int(seq.min()), int(seq.max())
        parts = [self._missed(late, count, side, *bounds, partner_spans, provenance) for side in (0, 1)]
        return parts[0].unionByName(parts[1])

    def _missed(
        self,
        late: DataFrame,
        count: int,
        side: int,
        seq_from: int,
        seq_last: int,
        partner_spans: Spans,
        provenance: str,
    ) -> DataFrame:
        """Return the pairs that late rows of one side missed.

        `partner_spans` hold the event times of all their partners.
        """
        from pyspark.sql import functions as F

        letter, other = LETTERS[side], LETTERS[1 - side]
        registered = late.where(F.col("alias") == self.rows.aliases[side]).select(
            F.col("seq").alias(f"{letter}_seq"),
            F.unix_micros("partners_from").alias(f"{letter}_from"),
            F.unix_micros("partners_to").alias(f"{letter}_to"),
            F.col("repaired_in").alias(f"{letter}_repaired_in"),
            F.unix_micros("period_start").alias(f"{letter}_period"),
        )
        rows = self.rows.stored(side, seq_last + 1, NEVER, *_ANY_TIME, seq_from=seq_from)
        rows = rows.join(tables.broadcast_if_small(registered, count), f"{letter}_seq")
        partners = self.rows.stored(1 - side, seq_last, NEVER, *_ANY_TIME, spans=partner_spans)
        missed = F.expr(f"{other}_seq < {letter}_seq and {other}_ts between {letter}_from and {letter}_to")
        left, right = (rows, partners) if side == 0 else (partners, rows)
        pairs = self.rows.pairs(left, right, missed, where=True, copy_left=side == 0)
        published, period = F.col(f"{letter}_repaired_in"), F.col(f"{letter}_period")
        return self.rows.results(pairs, provenance=F.lit(provenance), published=published, period=period)
