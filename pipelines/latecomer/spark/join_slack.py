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

from latecomer.core.join import Horizons
from latecomer.core.time import FOREVER, NEVER
from latecomer.spark.columns import floor_to
from latecomer.spark.join import JoinStage, restore, summaries
from latecomer.spark.ledger import late_counts
from latecomer.spark.scan import Chunks, running_maxima
from latecomer.spark.stage import Batch, Outcome, Settled

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class SlackJoinStage(JoinStage):
    """Strategies ``k_slack``, ``mp_k_slack`` and ``aq_k_slack``; see the module docstring."""

    def process(self, batch: Batch, state: dict[str, Any] | None) -> Outcome:
        """Answer one micro-batch; a flush releases everything."""
        control, books = restore(self.spec, state)
        carry = [NEVER] * len(self.rows.sources) if state is None else list(state["carry"])
        slack, reached = (NEVER, NEVER) if state is None else (state["slack"], state["watermark"])
        chunks = Chunks.over(batch.seq_from, batch.seq_to, self.spark.sparkContext.defaultParallelism)
        new = self.keep(self._scanned(batch, carry, chunks))
        arrived = self._count_arrivals(new)
        control.wait_for_speech(arrived.before_speech)
        horizons = control.step(summaries(arrived, None))
        marked = self.keep(self._watermarked(new, horizons, slack, reached, chunks))
        steps = _Steps.of(marked, reached, batch, control.t_last_us)
        late = self._late_rows(marked.withColumn("h0", _behind("mark")).withColumn("h1", _behind("mark")))
        late_count = late_counts(late) if arrived.rows else {}
        on_time = self._released(marked, batch, reached, steps) if reached < FOREVER else None
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
                "slack": max(slack, arrived.longest_delay_us),
                "watermark": FOREVER if batch.flush else steps.after,
                "parameters": None,
            }
            return Settled(closed, following, dict(books.totals))

        return Outcome(on_time, late if late_count or batch.number == 0 else None, settle)

    def _watermarked(self, new: DataFrame, horizons: Horizons, slack: int, reached: int, chunks: Chunks) -> DataFrame:
        """New rows with ``mark``, the watermark after each arrival (``NEVER`` before there is one)."""
        from pyspark.sql import functions as F

        defined = F.col("t") > NEVER
        if self.spec.strategy.name == "aq_k_slack":
            placed = self._place(new, horizons)
            mark = F.when(F.col("h0") > NEVER, F.col("h0") + self.spec.window_us).otherwise(NEVER)
            return placed.withColumn("mark", F.greatest(mark, F.lit(reached)))
        if self.spec.strategy.name == "k_slack":
            mark = F.when(defined, F.col("t") - F.lit(self.spec.strategy.slack_us)).otherwise(NEVER)
            return new.withColumn("mark", F.greatest(mark, F.lit(reached)))
        longest = running_maxima(new, {"k": F.col("delay")}, {"k": slack}, chunks)
        edge = F.when(defined, F.col("t") - F.col("k"))
        return running_maxima(longest, {"mark": edge}, {"mark": reached}, chunks)

    def _released(self, marked: DataFrame, batch: Batch, reached: int, steps: _Steps) -> DataFrame:
        """Pairs whose later release falls into this micro-batch, as result rows."""
        from pyspark.sql import functions as F

        low, high = steps.span(marked, reached, self.spec.window_us)
        sides = []
        for side, letter in enumerate(("l", "r")):
            fresh = self.rows.as_side(marked, side, {"t": F.col("t"), "mark": F.col("mark")})
            behind = F.col(f"{letter}_ts") < F.col(f"{letter}_mark")
            fresh = fresh.withColumn(f"{letter}_late", behind)
            both = fresh
            if batch.seq_from > 0:
                stored = self.rows.stored(side, batch.seq_from, NEVER, low, high)
                blank = {f"{letter}_{name}": F.lit(None).cast("bigint") for name in ("t", "mark")}
                both = fresh.unionByName(stored.withColumns(blank | {f"{letter}_late": F.lit(False)}))
            both = both.where(F.col(f"{letter}_ts") <= steps.after)
            waits = ~F.col(f"{letter}_late") & (F.col(f"{letter}_ts") > reached)
            sides.append(steps.released(both, letter, waits))
        active = (F.col("l_released") >= batch.seq_from) | (F.col("r_released") >= batch.seq_from)
        lost = F.expr("if(l_seq > r_seq, l_late and r_ts <= l_mark, r_late and l_ts <= r_mark)")
        pairs = self.rows.pairs(
            sides[0], sides[1], active & ~F.coalesce(lost, F.lit(False)), where=True, copy_left=False
        )
        when = F.expr("if(l_released > r_released, l_when, r_when)")
        return self.rows.results(
            pairs,
            provenance="on_time",
            published=F.greatest("l_released", "r_released"),
            period=floor_to(when, self.spec.period_us),
        )


class _Steps:
    """The watermark as a staircase over this micro-batch: from which arrival on it has reached which event time."""

    def __init__(self, marks: np.ndarray, seqs: np.ndarray, times: np.ndarray, reached: int) -> None:
        order = np.argsort(marks)
        self.marks, self.seqs, self.times = marks[order], seqs[order], times[order]
        self.after = int(self.marks[-1]) if len(marks) else reached

    @staticmethod
    def of(marked: DataFrame, reached: int, batch: Batch, t_last_us: int) -> _Steps:
        """One step per value of the watermark above `reached`; a flush adds the last, at the arrival after all."""
        from pyspark.sql import functions as F

        table = (
            marked.where(F.col("mark") > reached)
            .groupBy("mark")
            .agg(F.min("seq").alias("seq"), F.min("t").alias("t"))
            .toArrow()
        )
        marks, seqs, times = (table[name].to_numpy() for name in ("mark", "seq", "t"))
        if batch.flush and t_last_us > NEVER:
            marks, seqs, times = np.append(marks, FOREVER), np.append(seqs, batch.seq_to), np.append(times, t_last_us)
        return _Steps(marks, seqs, times, reached)

    def released(self, rows: DataFrame, letter: str, waits: Column) -> DataFrame:
        """Add ``released`` and ``when`` (arrival and stream time at which a waiting row is released), -1 for the others."""
        from pyspark.sql import functions as F

        marks, seqs, times = self.marks, self.seqs, self.times

        @F.pandas_udf("struct<released bigint, at bigint>")  # type: ignore[call-overload]
        def find(ts):  # type: ignore[no-untyped-def]
            import pandas as pd

            place = np.minimum(np.searchsorted(marks, ts.to_numpy(), "left"), max(len(marks) - 1, 0))
            return pd.DataFrame({"released": seqs[place], "at": times[place]})

        if not len(marks):
            return rows.withColumn(f"{letter}_released", F.lit(-1).cast("bigint")).withColumn(
                f"{letter}_when", F.lit(None).cast("bigint")
            )
        found = rows.withColumn("_step", find(F.col(f"{letter}_ts")))
        own = F.col(f"{letter}_seq") > F.col("_step.released")
        released = F.when(waits, F.greatest(F.col("_step.released"), F.col(f"{letter}_seq"))).otherwise(F.lit(-1))
        when = F.when(own, F.coalesce(F.col(f"{letter}_t"), F.col("_step.at"))).otherwise(F.col("_step.at"))
        return found.withColumn(f"{letter}_released", released).withColumn(f"{letter}_when", when).drop("_step")

    def span(self, marked: DataFrame, reached: int, window_us: int) -> tuple[int, int]:
        """Event times of stored rows that may be in a pair of this micro-batch: [low, high]."""
        from pyspark.sql import functions as F

        lowest = marked.agg(F.min("ts")).collect()[0][0]
        low = reached if lowest is None else min(reached, lowest)
        return max(low, NEVER // 2) - window_us, min(self.after, FOREVER // 2)


def _behind(name: str) -> Column:
    """Horizon that makes `_late_rows` register what came behind the watermark, and nothing else."""
    from pyspark.sql import functions as F

    return F.when(F.col("ts") < F.col(name), F.col(name)).otherwise(F.lit(NEVER))
