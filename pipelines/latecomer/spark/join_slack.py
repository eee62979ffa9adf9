"""Join, the K-slack family on Spark: reorder first, then join in order (``k_slack``, ``mp_k_slack``, ``aq_k_slack``).

A tuple waits until the watermark ``W(a) = running max of (T(a) - K(a))`` has reached its event time, and is then joined with
what was released before it. A tuple that comes behind the watermark is inserted at once and does not probe. As a set,
for a pair whose later arrival is `y` and earlier arrival is `x`::

    produced(x, y)  <=>  |x.ts - y.ts| <= w  and  predicate  and  not (y.ts < W(seq_y) and x.ts <= W(seq_y))

because a pair is lost only where `y` comes behind the watermark and `x` had been released by then (module test: the
tuple-at-a-time reference). It is published when the later *released* of the two is released. `y` is then what
:mod:`latecomer.spark.join_repair` repairs.

Slacks (one for both streams, as Ji et al. 2016 show to be best): ``k_slack`` a constant; ``mp_k_slack`` the largest delay
so far (Mutschler and Philippsen 2013); ``aq_k_slack`` once per adaptation interval, from the delays of the last period.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from latecomer.core.policies import slack_policy
from latecomer.core.time import FOREVER, NEVER
from latecomer.spark.join import Arrivals, JoinStage, floor_period, summaries
from latecomer.spark.ledger import late_counts
from latecomer.spark.scan import Chunks, running_maxima
from latecomer.spark.stage import Batch, Outcome, Settled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SlackJoinStage(JoinStage):
    """Strategies ``k_slack``, ``mp_k_slack`` and ``aq_k_slack``; see the module docstring."""

    def process(self, batch: Batch, state: dict[str, Any] | None) -> Outcome:
        """Answer one micro-batch; a flush releases everything."""
        from pyspark.sql import functions as F

        control, books = self.restore(state)
        carry = [NEVER] * len(self.rows.sources) if state is None else list(state["carry"])
        slack, reached = (NEVER, NEVER) if state is None else (state["slack"], state["watermark"])
        chunks = Chunks.over(batch.seq_from, batch.seq_to, self.spark.sparkContext.defaultParallelism)
        new = self._scanned(batch, carry, chunks).persist()
        arrived = self._count_arrivals(new)
        control.wait_for_speech(arrived.before_speech)
        horizons = control.step(summaries(arrived, None))
        marked, slack = self._watermarked(new, horizons, slack, reached, chunks)
        marked = marked.persist()
        steps = marked.groupBy("mark").agg(F.min("seq").alias("seq")).where(F.col("mark") > reached).toArrow()
        marks, places = _steps(steps)
        after = max(reached, int(marks[-1])) if len(marks) else reached
        if batch.flush:
            after = FOREVER
        late = self._slack_late(marked)
        late_count = late_counts(late) if arrived.rows else {}
        pairs = None
        if after > reached and reached < FOREVER:
            pairs = self._released_pairs(marked, batch, reached, after, marks, places, arrived)
        on_time = None
        if pairs is not None:
            published = F.greatest("l_released", "r_released")
            on_time = self.rows.results(
                pairs, provenance="on_time", published=published, period=F.lit(0)
            ).withColumn("period_start", self._period_of_publication(marked, carry, control.t_last_us))
        for side, peak in enumerate(arrived.peaks):
            carry[side] = max(carry[side], peak)

        def settle(produced: dict[int, int]) -> Settled:
            rows = arrived.by_period(self.settings.interval_us, self.spec.period_us)
            books.add(produced, late_count, rows, arrived.unplaced, {})
            closed = books.close(control, flush=batch.flush)
            following = {
                "control": control.to_dict(),
                "books": books.to_dict(),
                "carry": carry,
                "slack": slack,
                "watermark": after,
                "parameters": None,
            }
            return Settled(closed, following, dict(books.totals))

        def release() -> None:
            marked.unpersist()
            new.unpersist()

        return Outcome(on_time, late, settle, release)


_ = (np, pd, pa, Arrivals, slack_policy, floor_period)
