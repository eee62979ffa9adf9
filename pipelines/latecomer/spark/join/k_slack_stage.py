"""The join strategies of the K-slack family on Spark: reorder rows, then join them in the order of their event times.

A row waits in a reorder buffer until the watermark ``W(a) = running max of (T(a) - K(a))`` has reached its event time.
It is then released, and joined with the rows that were released before it. A row that arrives behind the watermark is
inserted at once and does not probe. As a set, for a pair whose later arrival is `y` and earlier arrival is `x`::

    produced(x, y)  <=>  |x.ts - y.ts| <= w  and  predicate  and  not (y.ts < W(seq_y) and x.ts <= W(seq_y))

A pair is missed only where `y` arrives behind the watermark and `x` had been released by then; repair finds it by `y`.
A produced pair is published when the row that is released last is released. The tuple-at-a-time reference tests this.

The slack `K` is one for both streams, which Ji et al. 2016 show to be best: a constant (``k_slack``), the largest delay
so far (``mp_k_slack``, Mutschler and Philippsen 2013), or chosen once per adaptation interval from the delays of the
last period (``aq_k_slack``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from latecomer.core.arrivals import Arrivals
from latecomer.core.join.arrival_counts import ArrivalCounts
from latecomer.core.join.control import Horizons
from latecomer.core.join.k_slack import ArrivalClock, slack_watermark
from latecomer.core.time import FOREVER, NEVER
from latecomer.lake.event_scan import first_above
from latecomer.ledger.join_accounts import late_counts, restore_join
from latecomer.spark.engine import arrival_scan
from latecomer.spark.engine.columns import floor_to, with_columns
from latecomer.spark.join.arrival_tasks import late_by_role
from latecomer.spark.join.rows import LETTERS
from latecomer.spark.join.stage import JoinStage
from latecomer.spark.stage import Batch, BatchCommit, Observation, Outcome

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class SlackJoinStage(JoinStage):
    """The stage of the strategies ``k_slack``, ``mp_k_slack`` and ``aq_k_slack``; see the module docstring."""

    def process(
        self,
        batch: Batch,
        state: dict[str, Any] | None,
        observation: Observation | None,
        parameters: dict[str, Any] | None,
    ) -> Outcome:
        """Answer one micro-batch; a flush releases everything."""
        control, accounts = restore_join(self.spec, state)
        carry = [NEVER] * len(self.rows.sources) if state is None else list(state["carry"])
        slack, reached = (NEVER, NEVER) if state is None else (state["slack"], state["watermark"])
        new = arrival_scan.arrivals(self.lake, self.rows.sources, batch.seq_from, batch.seq_to, carry)
        arrivals = ArrivalCounts.of(new, self.settings, self.rows.is_self)
        control.hold_until_all_streams_seen(arrivals.before_all_streams_seen)
        horizons = control.step(arrivals.summaries(None))
        mark = self._watermark(new, horizons, slack, reached)
        steps = _Steps.of(new, mark, reached, batch, control.t_last_us)
        clock = ArrivalClock.from_dict(state["clock"]) if state is not None else ArrivalClock()
        self._tick(clock, new)
        behind = np.where(new.event_time_us < mark, mark, NEVER)
        late = self._late_rows(
            late_by_role(new, lambda _, at: behind[at], self.spec.window_us, is_self=self.rows.is_self)
        )
        late_count = late_counts(late)
        on_time = self._released(new, mark, batch, reached, steps, clock) if reached < FOREVER else None

        def finalize(produced: dict[int, int]) -> BatchCommit:
            rows = arrivals.by_period(self.settings.interval_us, self.spec.period_us)
            waits = batch.sum_waits(self.lake, self.spec.name) if produced else {}
            accounts.add(produced, late_count, rows, arrivals.unplaced, waits)
            clock.forget(self._waiting_from(batch, steps))
            closed = accounts.close(control, flush=batch.flush)
            following = {
                "control": control.to_dict(),
                "books": accounts.to_dict(),
                "carry": new.carry,
                "slack": max(slack, arrivals.longest_delay_us),
                "watermark": FOREVER if batch.flush else steps.after,
                "parameters": None,
                "clock": clock.to_dict(),
            }
            return BatchCommit(closed, following, dict(accounts.totals))

        return Outcome(on_time, late if late.num_rows or batch.number == 0 else None, finalize)

    def _tick(self, clock: ArrivalClock, new: Arrivals) -> None:
        """Add the first arrival of every interval of the micro-batch, with its stream time, to the clock."""
        has_time = new.stream_time_us > NEVER
        seq, time = new.seq[has_time], new.stream_time_us[has_time]
        _, first = np.unique(time // self.settings.interval_us, return_index=True)
        clock.add(seq[first], time[first], self.settings.interval_us)

    def _waiting_from(self, batch: Batch, steps: _Steps) -> int:
        """Return the oldest arrival that still waits. No pair to come has a later row that arrived before it."""
        waiting = [first_above(self.lake, stream, batch.seq_to, steps.after) for stream in self.rows.sources]
        return min((seq for seq in waiting if seq is not None), default=batch.seq_to)

    def _watermark(self, new: Arrivals, horizons: Horizons, slack: int, reached: int) -> np.ndarray:
        """Return the watermark after each arrival, int64[n] us; ``NEVER`` before there is one."""
        strategy = self.spec.strategy
        if strategy.name == "aq_k_slack":
            horizon = horizons.at(0, new.stream_time_us, self.settings.interval_us, self.spec.window_us)
            return np.maximum(np.where(horizon > NEVER, horizon + self.spec.window_us, NEVER), reached)
        return slack_watermark(new.stream_time_us, new.delay_us, strategy.slack_us, (reached, slack))[0]

    def _released(
        self, new: Arrivals, mark: np.ndarray, batch: Batch, reached: int, steps: _Steps, clock: ArrivalClock
    ) -> DataFrame:
        """Return the pairs whose later release falls into this micro-batch, as result rows."""
        from pyspark.sql import functions as F

        marked = arrival_scan.with_arrival_values(
            self.rows.arrivals(batch), new.seq, {"t": new.stream_time_us, "mark": mark}
        )
        low, high = steps.span(new, reached, self.spec.window_us)
        sides = []
        for side, letter in enumerate(LETTERS):
            fresh = self.rows.as_side(marked, side, {"t": F.col("t"), "mark": F.col("mark")})
            behind = F.col(f"{letter}_ts") < F.col(f"{letter}_mark")
            # a row exactly at the watermark is not behind it, and is released by its own arrival
            at = F.col(f"{letter}_ts") == F.col(f"{letter}_mark")
            both = fresh = fresh.withColumn(f"{letter}_late", behind).withColumn(f"{letter}_at", at)
            if batch.seq_from > 0:
                stored = self.rows.stored(side, batch.seq_from, NEVER, low, high)
                blank = {f"{letter}_{name}": F.lit(None).cast("bigint") for name in ("t", "mark")}
                blank |= {f"{letter}_late": F.lit(False), f"{letter}_at": F.lit(False)}
                both = fresh.unionByName(with_columns(stored, blank))
            both = both.where(F.col(f"{letter}_ts") <= steps.after)
            waits = ~F.col(f"{letter}_late") & (F.col(f"{letter}_ts") > reached)
            sides.append(steps.released(both, letter, waits))
        active = (F.col("l_released") >= batch.seq_from) | (F.col("r_released") >= batch.seq_from)
        lost = F.expr("if(l_seq > r_seq, l_late and r_ts <= l_mark, r_late and l_ts <= r_mark)")
        pairs = self.rows.pairs(
            sides[0], sides[1], active & ~F.coalesce(lost, F.lit(False)), where=True, copy_left=False
        )
        when = F.expr("if(l_released > r_released, l_when, r_when)")

        @F.pandas_udf("bigint")  # type: ignore[call-overload]
        def arrived_at(seq):  # type: ignore[no-untyped-def]
            import pandas as pd

            return pd.Series(clock.at(seq.to_numpy()))

        # before all streams are seen the clock has its first value, as in bench.join_simulator.waits
        wait = F.greatest(when - arrived_at(F.greatest("l_seq", "r_seq")), F.lit(0))
        return self.rows.results(
            pairs,
            provenance=F.lit("on_time"),
            published=F.greatest("l_released", "r_released"),
            period=floor_to(when, self.spec.period_us),
            wait=wait,
        )


class _Steps:
    """The watermark as a staircase over a micro-batch: the arrival from which on it has reached an event time.

    Attributes
    ----------
    marks, seqs, times : int64[n]
        Values of the watermark (us), ascending, with arrival and stream time (us) at which it reached them.
    after : int
        The watermark after the micro-batch, us.
    """

    def __init__(self, marks: np.ndarray, seqs: np.ndarray, times: np.ndarray, reached: int) -> None:
        self.marks, self.seqs, self.times = marks, seqs, times
        self.after = int(self.marks[-1]) if len(marks) else reached

    @staticmethod
    def of(new: Arrivals, mark: np.ndarray, reached: int, batch: Batch, t_last_us: int) -> _Steps:
        """Return one step per value of the watermark above `reached`.

        A flush adds a last one, at the arrival after all.
        """
        first = np.flatnonzero(mark > np.concatenate([[reached], mark[:-1]]))
        marks, seqs, times = mark[first], new.seq[first], new.stream_time_us[first]
        if batch.flush and t_last_us > NEVER:
            marks, seqs, times = np.append(marks, FOREVER), np.append(seqs, batch.seq_to), np.append(times, t_last_us)
        return _Steps(marks, seqs, times, reached)

    def released(self, rows: DataFrame, letter: str, waits: Column) -> DataFrame:
        """Add ``released`` and ``when``: arrival and stream time at which a waiting row is released.

        -1 for other rows.
        """
        from pyspark.sql import functions as F

        marks, seqs, times = self.marks, self.seqs, self.times

        @F.pandas_udf("struct<released bigint, at bigint>")  # type: ignore[call-overload]
        def step_of(ts):  # type: ignore[no-untyped-def]
            import pandas as pd

            place = np.minimum(np.searchsorted(marks, ts.to_numpy(), "left"), max(len(marks) - 1, 0))
            return pd.DataFrame({"released": seqs[place], "at": times[place]})

        seq, at = F.col(f"{letter}_seq"), F.col(f"{letter}_at")
        if not len(marks):
            step, when = F.lit(-1).cast("bigint"), F.lit(None).cast("bigint")
        else:
            rows = rows.withColumn("_step", step_of(F.col(f"{letter}_ts")))
            step, when = F.col("_step.released"), F.col("_step.at")
        released = F.when(at, seq).when(waits, F.greatest(step, seq)).otherwise(F.lit(-1))
        arrival_time = F.coalesce(F.col(f"{letter}_t"), when)
        instant = F.when(at | (seq > step), arrival_time).otherwise(when)
        return rows.withColumn(f"{letter}_released", released).withColumn(f"{letter}_when", instant).drop("_step")

    def span(self, new: Arrivals, reached: int, window_us: int) -> tuple[int, int]:
        """Return the event times ``[low, high]`` (us) of stored rows that may be in a pair of this micro-batch."""
        low = min(reached, int(new.event_time_us.min())) if len(new.seq) else reached
        return max(low, NEVER // 2) - window_us, min(self.after, FOREVER // 2)
