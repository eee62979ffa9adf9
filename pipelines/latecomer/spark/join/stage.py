"""The join on Spark: band joins over Delta tables, with the retention that the control plane decides.

One micro-batch, arrivals ``[seq_from, seq_to)``:

1. *Scan* ``seq`` and event time of the new rows (:mod:`latecomer.spark.engine.arrival_scan` says where): stream time,
   and with it the adaptation interval of every arrival.
2. *Join* the new rows with one another and with the rows still held, and count the pairs by interval and required
   retention, unless the strategy does not use pairs. Up to `MANY_PAIRS` pairs are counted in the driver, from 16 bytes
   of each: they make about as many groups as pairs, and grouping them in Spark takes twice as long.
3. *Decide*: :class:`latecomer.core.join.control.JoinControl` turns the counts into a short table of horizons.
4. *Retain* the pairs with ``x.ts > H_X(seq_y)``. New rows whose window reaches behind the opposite horizon are
   registered as late.

Counted results are cached for step 4. The estimators ``paper`` and ``delay_aware`` count candidates, which are pairs
before the predicate and may be far more than the results; then the join is computed twice.

With a recall guarantee (:mod:`latecomer.core.join.recall_budget`) the retention is decided from the arrivals alone, so
the horizons are known before the join. Step 2 then also joins the stored rows behind the horizon that late rows may
match, and where a row is late, produced and missed pairs are counted. Step 4 publishes the missed pairs that the budget
recalls, beside the retained ones.

Held rows are no copy: they are a range of the stored events (``H_X < ts``, ``seq < seq_from``), found by file
statistics. `repair` joins registered late rows with the part of their window that lay behind the horizon; the two
conditions exclude each other and together are the exact join.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.arrays.composite_keys import distinct_rows, sort_order
from latecomer.core.arrays.sparse_counts import Int64Array, SparseCounts
from latecomer.core.arrivals import ArrivalBlocks
from latecomer.core.join.arrival_counts import PAIR_CELL, RESULTS, ArrivalCounts
from latecomer.core.join.control import Horizons, IntervalSummary, JoinControl
from latecomer.core.join.recall_budget import PAIR_COUNTS, Recall, RecallBudget
from latecomer.core.join.statistics import required_bucket
from latecomer.core.time import FOREVER, NEVER
from latecomer.lake.delta import TIMESTAMP
from latecomer.lake.event_scan import Spans
from latecomer.lake.lake import Lake
from latecomer.ledger.join_accounts import JoinAccounts, late_counts, restore_join
from latecomer.spark.engine import arrival_scan, tables
from latecomer.spark.engine.columns import ceil_div, floor_div, floor_to, with_columns
from latecomer.spark.join import recall
from latecomer.spark.join.arrival_tasks import LateRoles, late_roles
from latecomer.spark.join.repair import JoinRepair
from latecomer.spark.join.rows import LETTERS, JoinRows, in_sample
from latecomer.spark.stage import Batch, BatchCommit, Observation, Outcome, Stage
from latecomer.specs.join import JoinSpec
from latecomer.strategies.join import retention_parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession


PRODUCED, MISSED = PAIR_COUNTS.index("produced"), PAIR_COUNTS.index("missed")
MANY_PAIRS = 8_000_000
"""Most pairs of a micro-batch that are counted in the driver: 128 MB, and the memory to sort them."""


class History(NamedTuple):
    """The counted arrivals of a join: rows per side from before every stream had been seen, and the intervals after."""

    before_all_streams_seen: tuple[SparseCounts, SparseCounts]
    intervals: list[IntervalSummary]


class JoinStage(Stage):
    """The stage of the strategies ``qjoin`` (all estimators) and ``exact``; see the module docstring."""

    spec: JoinSpec

    def __init__(self, spec: JoinSpec, spark: SparkSession, lake: Lake) -> None:
        super().__init__(spark, lake)
        self.spec = spec
        self.rows = JoinRows(spec, spark, lake)
        self.settings = retention_parameters(spec)
        self._repair = JoinRepair(self.rows, self.cache)

    # -- run -----------------------------------------------------------------------------------------------------

    def process(
        self,
        batch: Batch,
        state: dict[str, Any] | None,
        observation: Observation | None,
        parameters: dict[str, Any] | None,
    ) -> Outcome:
        """Answer one micro-batch; see the module docstring."""
        from pyspark.sql import functions as F

        fresh = parameters if parameters and parameters["number"] != (state or {}).get("parameters") else None
        control, accounts = restore_join(self.spec, state, fresh)
        carry = [NEVER] * len(self.rows.sources) if state is None else list(state["carry"])
        new = self._arrivals(batch, carry)
        policy = control.policy
        arrivals = ArrivalCounts.of(new, self.settings, self.rows.is_self, lateness=policy.needs_lateness)
        finish = partial(self._finish, batch, control, accounts, arrivals, new.carry, parameters)
        if accounts.budget is not None:
            return self._process_guaranteed(batch, control, accounts.budget, new, arrivals, finish)
        pairs = self._pairs(new, batch, [control.horizon(0), control.horizon(1)], arrivals, control)
        counts_results = policy.needs_pairs and not policy.needs_candidates
        if counts_results:
            pairs = self.cache.keep(self.rows.outlined(pairs, ["t"]))
        cells = None
        if policy.needs_pairs and arrivals.rows:
            cells = self._count_pairs(pairs, control, are_results=counts_results)
        control.hold_until_all_streams_seen(arrivals.before_all_streams_seen)
        horizons = control.step(arrivals.summaries(cells))
        late = self._late_rows(self._late_roles(new, horizons))
        if policy.needs_candidates:
            pairs = pairs.where(self.rows.where_sql)
        on_time: DataFrame | None = self.rows.results(
            self._retained(pairs, horizons),
            provenance=F.lit("on_time"),
            published=_later("seq"),
            period=floor_to("t", self.spec.period_us),
        )
        if not arrivals.rows and batch.number > 0:
            on_time = None

        few_results = cells is not None and cells[:, RESULTS].sum() <= tables.DRIVER_LOCAL_ROWS
        registered = late if late.num_rows or batch.number == 0 else None
        return Outcome(on_time, registered, partial(finish, late, []), {"on_time"} if few_results else set())

    def _process_guaranteed(
        self,
        batch: Batch,
        control: JoinControl,
        budget: RecallBudget,
        new: ArrivalBlocks,
        arrivals: ArrivalCounts,
        finish: Callable[[pa.Table, list[Recall], dict[int, int]], BatchCommit],
    ) -> Outcome:
        """Answer one micro-batch of a join whose recall is guaranteed."""
        from pyspark.sql import functions as F

        window_us, interval_us = self.spec.window_us, self.settings.interval_us
        before = [control.horizon(0), control.horizon(1)]
        entries = arrivals.entries((control.arrivals[0], control.arrivals[1]))
        control.hold_until_all_streams_seen(arrivals.before_all_streams_seen)
        horizons = control.step(arrivals.summaries(None))
        roles = self._late_roles(new, horizons)
        late = self._late_rows(roles)
        budget.note_repaired(batch.repaired_to, batch.seq_from)
        behind = recall.spans_behind(roles, before, window_us)
        pairs, counts = self._pairs(new, batch, before, arrivals, control, behind=behind), None
        if late.num_rows or budget.awaits_decision:
            pairs = self.cache.keep(self.rows.outlined(pairs, ["t"]))
            counts = self._count_missed(pairs, horizons)
        recalls = budget.step(entries, counts, recall.late_spans(roles, window_us, interval_us))
        if batch.flush:
            recalls += budget.flush(batch.seq_to, control.t_last_us)
        period = floor_to("t", self.spec.period_us)
        chosen = self._with_published(pairs, horizons, recalls)
        provenance = F.when(F.col("held"), F.lit("on_time")).otherwise(F.lit("recalled"))
        parts = []
        if arrivals.rows or batch.number == 0:
            parts = [self.rows.results(chosen, provenance=provenance, published=F.col("published"), period=period)]
        earlier = recall.registered_before(self.lake, self.spec.name, recalls, batch.seq_from)
        if earlier.num_rows:
            ends = pc.min_max(earlier["seq"])
            span = (ends["min"].as_py(), ends["max"].as_py())
            registered = tables.read_ranges(self.spark, self.lake.table("late", self.spec.name), "seq", [span])
            parts.append(self._repair.corrections(registered, earlier, "recalled"))
        results = reduce(lambda left, right: left.unionByName(right), parts) if parts else None

        def finalize(published: dict[int, int]) -> BatchCommit:
            if counts is None:
                budget.add_produced(published)
            return finish(late, recalls, published)

        driver_local = counts is not None and counts[:, [PRODUCED, MISSED]].sum() <= tables.DRIVER_LOCAL_ROWS
        return Outcome(
            results,
            late if late.num_rows or batch.number == 0 else None,
            finalize,
            {"on_time"} if driver_local else set(),
        )

    def _finish(
        self,
        batch: Batch,
        control: JoinControl,
        accounts: JoinAccounts,
        arrivals: ArrivalCounts,
        carry: list[int],
        parameters: dict[str, Any] | None,
        late: pa.Table,
        recalls: list[Recall],
        published: dict[int, int],
    ) -> BatchCommit:
        """Count what was published, close periods and return the commit of a micro-batch."""
        recalled: dict[int, int] = {}
        for decision in recalls:
            recalled[decision.period_us] = recalled.get(decision.period_us, 0) + decision.pairs
        rows = arrivals.by_period(self.settings.interval_us, self.spec.period_us)
        accounts.add(published, late_counts(late), rows, arrivals.unplaced, {}, recalled)
        closed = accounts.close(control, flush=batch.flush)
        next_state = {
            "control": control.to_dict(),
            "books": accounts.to_dict(),
            "carry": carry,
            "parameters": parameters["number"] if parameters else None,
        }
        return BatchCommit(closed, next_state, dict(accounts.totals), recall.recalls_table(recalls))

    def repair(self, late: DataFrame, repaired_in: pa.Table) -> DataFrame:
        """Return the pairs that registered late rows missed and `run` has not recalled."""
        rest = recall.without_recalled(self.lake, self.spec.name, repaired_in)
        if rest.num_rows:
            return self._repair.corrections(late, rest)
        return self._repair.corrections(late, repaired_in.slice(0, 1)).limit(0)

    def history(self, seq_to: int) -> History:
        """Count all arrivals before `seq_to`, and every pair of theirs, missed or not."""
        batch = Batch(-1, 0, seq_to)
        new = self._arrivals(batch, [NEVER] * len(self.rows.sources))
        control, _ = restore_join(self.spec, None)
        arrivals = ArrivalCounts.of(new, self.settings, self.rows.is_self, lateness=control.policy.needs_lateness)
        if not arrivals.rows:
            return History(arrivals.before_all_streams_seen, [])
        try:
            pairs = self._pairs(new, batch, [NEVER, NEVER], arrivals, control)
            cells = self._count_pairs(pairs, control, are_results=False)
            return History(arrivals.before_all_streams_seen, arrivals.summaries(cells))
        finally:
            self.release()

    def _arrivals(self, batch: Batch, carry: list[int]) -> ArrivalBlocks:
        """Read the arrivals of a micro-batch in order, with stream time continued from `carry`."""
        if arrival_scan.is_for_tasks(self.spark, batch.seq_to - batch.seq_from):
            return arrival_scan.TaskArrivals(self.rows.arrivals(batch), carry, 1, self.cache)
        return arrival_scan.arrivals(self.lake, self.rows.sources, batch.seq_from, batch.seq_to, carry)

    def _pairs(
        self,
        new: ArrivalBlocks,
        batch: Batch,
        before: list[int],
        arrivals: ArrivalCounts,
        control: JoinControl,
        behind: tuple[Spans, Spans] = ((), ()),
    ) -> DataFrame:
        """Return the pairs with a new row, and ``t``, the stream time of the later row.

        Where candidates are counted, they also have its delay, and the predicate is not applied.

        Parameters
        ----------
        before
            The horizons before the micro-batch.
        behind
            Per side, spans of event time (us) at or behind that horizon in which stored rows are joined too.
        """
        from pyspark.sql import functions as F

        policy = control.policy
        known = ["t", "delay"] if policy.needs_candidates else ["t"]
        rows = arrival_scan.with_stream_times(self.rows.arrivals(batch), new, known)
        if policy.needs_candidates:
            rows = self.cache.keep(rows)
        carried, sampled = {name: F.col(name) for name in known}, policy.needs_pairs
        left, right = self._sides(rows, batch, before, arrivals, carried, sampled=sampled, behind=behind)
        either_new = F.col("l_t").isNotNull() | F.col("r_t").isNotNull()
        where = not policy.needs_candidates
        pairs = self.rows.pairs(left, right, either_new, where=where, copy_left=arrivals.left_is_smaller)
        return pairs.withColumn("t", _later("t"))

    def _count_pairs(self, pairs: DataFrame, control: JoinControl, *, are_results: bool) -> Int64Array:
        """Count pairs per cell, with the columns of `PAIR_CELL`.

        Cached results are counted in the driver, up to `MANY_PAIRS`.
        """
        if are_results and pairs.count() <= MANY_PAIRS:
            return self._count_in_driver(pairs)
        return self._count_in_spark(pairs, control)

    def _count_in_driver(self, pairs: DataFrame) -> Int64Array:
        from pyspark.sql import functions as F

        side, sampled = F.expr("if(l_seq > r_seq, 1, 0)"), in_sample("if(l_seq > r_seq, r_seq, l_seq)").cast("int")
        # three values in one number: four times an event time is far from the end of 64 bits
        packed = pairs.select("t", (_earlier("ts") * 4 + side * 2 + sampled).alias("x")).toArrow()
        t, x = packed["t"].to_numpy(), packed["x"].to_numpy()
        bucket = required_bucket(t - self.spec.window_us - (x >> 2), self.settings.granularity_us)
        columns, count = distinct_rows(t // self.settings.interval_us, x >> 1 & 1, bucket, x & 1)
        return np.stack([*columns[:3], np.full(len(count), -1), count, count, count * columns[3]], axis=1)

    def _count_missed(self, pairs: DataFrame, horizons: Horizons) -> Int64Array:
        """Count cached pairs with the columns of `PAIR_COUNTS`; up to `MANY_PAIRS` in the driver."""
        from pyspark.sql import functions as F

        interval_us = self.settings.interval_us
        if pairs.count() <= MANY_PAIRS:
            side = F.expr("if(l_seq > r_seq, 1, 0)")
            packed = pairs.select("t", (_earlier("ts") * 2 + side).alias("x")).toArrow()
            t, x = packed["t"].to_numpy(), packed["x"].to_numpy()
            return recall.count_pairs(t, x >> 1, x & 1, horizons, self.spec, interval_us)
        offset = F.when(F.col("held"), F.lit(0)).otherwise(F.col("t") - self._interval() * interval_us)
        counted = (
            self._with_held(pairs, horizons)
            .groupBy(self._interval().alias("interval"), floor_to("t", self.spec.period_us).alias("period_us"))
            .agg(
                F.count_if(F.col("held")).alias("produced"),
                F.count_if(~F.col("held")).alias("missed"),
                F.sum(offset).alias("missed_offset_us"),
            )
            .toArrow()
        )
        return np.stack([counted[name].to_numpy().astype(np.int64) for name in PAIR_COUNTS], axis=1)

    def _with_published(self, pairs: DataFrame, horizons: Horizons, recalls: list[Recall]) -> DataFrame:
        """Return the pairs that are retained or recalled, with ``held`` and ``published``, the arrival that did it."""
        from pyspark.sql import functions as F

        known = self._with_held(pairs, horizons).withColumn("published", F.when(F.col("held"), _later("seq")))
        if not recalls:
            return known.where("held")
        decided = pa.table(
            {
                "_decided_j": pa.array([decision.interval for decision in recalls], pa.int64()),
                "_decided_p": pa.array([decision.period_us for decision in recalls], pa.int64()),
                "_recalled": pa.array([decision.published_seq for decision in recalls], pa.int64()),
            }
        )
        same = (self._interval() == F.col("_decided_j")) & (floor_to("t", self.spec.period_us) == F.col("_decided_p"))
        chosen = known.join(F.broadcast(tables.to_spark(self.spark, decided)), same, "left")
        chosen = chosen.withColumn("published", F.coalesce("published", "_recalled"))
        return chosen.where("published is not null")

    def _count_in_spark(self, pairs: DataFrame, control: JoinControl) -> Int64Array:
        from pyspark.sql import functions as F

        g, w = self.settings.granularity_us, self.spec.window_us
        candidates = control.policy.needs_candidates
        delay = _later("delay") if candidates else F.lit(-1)
        keys = [
            self._interval().alias("j"),
            F.expr("if(l_seq > r_seq, 1, 0)").alias("x"),
            floor_div(F.col("t") - F.lit(w) - _earlier("ts"), g).alias("b"),
            (F.when(delay <= g, F.lit(0)).otherwise(ceil_div(delay, g) - 1) if candidates else delay).alias("db"),
        ]
        passed = F.expr(self.rows.where_sql) if candidates else F.lit(True)
        counts = [
            F.count("*").alias("candidates"),
            F.count_if(passed).alias("results"),
            F.count_if(passed & in_sample("if(l_seq > r_seq, r_seq, l_seq)")).alias("sampled"),
        ]
        counted = pairs.groupBy(*keys).agg(*counts).toArrow()
        cells = np.stack([counted[name].to_numpy().astype(np.int64) for name in PAIR_CELL], axis=1)
        return cells[sort_order(*cells[:, :3].T)]

    def _interval(self) -> Column:
        """Return the number of the adaptation interval in which a pair's later row arrived."""
        interval: Column = floor_div("t", self.settings.interval_us)
        return interval

    def _retained(self, pairs: DataFrame, horizons: Horizons) -> DataFrame:
        """Return the pairs whose earlier row was still held."""
        return self._with_held(pairs, horizons).where("held")

    def _with_held(self, pairs: DataFrame, horizons: Horizons) -> DataFrame:
        """Return pairs with ``held``, true where the earlier row was: :meth:`Horizons.at` as a join with one table."""
        from pyspark.sql import functions as F

        retentions = zip(horizons.retention, horizons.base, strict=True)
        if not any(((retention < FOREVER) | (base > NEVER)).any() for retention, base in retentions):
            return pairs.withColumn("held", F.lit(True))
        table = pa.table(
            {"_j": horizons.interval}
            | {f"_b{side}": horizons.base[side] for side in (0, 1)}
            | {f"_k{side}": pa.array(span, mask=span >= FOREVER) for side, span in enumerate(horizons.retention)}
        )
        within = pairs.join(F.broadcast(tables.to_spark(self.spark, table)), self._interval() == F.col("_j"), "left")
        behind = F.col("t") - F.lit(self.spec.window_us) - F.expr("if(l_seq > r_seq, _k1, _k0)")
        horizon = F.greatest(F.expr("if(l_seq > r_seq, _b1, _b0)"), behind)
        # a pair without an interval has no horizon: not all streams had been seen
        return within.withColumn("held", F.coalesce(_earlier("ts") > horizon, F.lit(True)))

    def _sides(
        self,
        new: DataFrame,
        batch: Batch,
        before: list[int],
        arrivals: ArrivalCounts,
        carried: dict[str, Column],
        *,
        sampled: bool = False,
        behind: tuple[Spans, Spans] = ((), ()),
    ) -> list[DataFrame]:
        """Return both sides: new rows with the columns `carried`, and stored ones as `_pairs` says."""
        from pyspark.sql import functions as F

        low, high = arrivals.low_us - self.spec.window_us, arrivals.high_us + self.spec.window_us
        sides = []
        for side, letter in enumerate(LETTERS):
            fresh = self.rows.as_side(new, side, carried)
            if batch.seq_from == 0:
                sides.append(fresh)
                continue
            held = self.rows.stored(side, batch.seq_from, before[side], low, high, sampled=sampled)
            if behind[side]:
                bounds = (behind[side][0][0], behind[side][-1][1])
                held = held.unionByName(self.rows.stored(side, batch.seq_from, NEVER, *bounds, spans=behind[side]))
            # a held row is never the later row of a pair that counts, so nobody reads what is carried for later rows
            blank = {f"{letter}_{name}": F.lit(None).cast("bigint") for name in carried}
            sides.append(fresh.unionByName(with_columns(held, blank)))
        return sides

    # -- late ----------------------------------------------------------------------------------------------------

    def _late_roles(self, new: ArrivalBlocks, horizons: Horizons) -> LateRoles:
        return late_roles(new, horizons, self.settings.interval_us, self.spec.window_us, is_self=self.rows.is_self)

    def _late_rows(self, late: LateRoles) -> pa.Table:
        """Return the late rows as they are registered."""
        parts = []
        for side, alias in enumerate(self.rows.aliases):
            seq, times, stream_time, horizon = late[side]
            period = stream_time // self.spec.period_us * self.spec.period_us
            columns: dict[str, Any] = {
                "seq": seq,
                "stream": pa.repeat(pa.scalar(self.rows.streams[side]), len(seq)),
                "alias": pa.repeat(pa.scalar(alias), len(seq)),
                "event_ts": pa.array(times).cast(TIMESTAMP),
                "partners_from": pa.array(times - self.spec.window_us).cast(TIMESTAMP),
                "partners_to": pa.array(np.minimum(horizon, times + self.spec.window_us)).cast(TIMESTAMP),
                "period_start": pa.array(period).cast(TIMESTAMP),
            }
            parts.append(pa.table(columns))
        return pa.concat_tables(parts)


def _later(name: str) -> Column:
    """Return a column of a pair's later arrival."""
    from pyspark.sql import functions as F

    return F.expr(f"if(l_seq > r_seq, l_{name}, r_{name})")


def _earlier(name: str) -> Column:
    """Return a column of a pair's earlier arrival."""
    from pyspark.sql import functions as F

    return F.expr(f"if(l_seq > r_seq, r_{name}, l_{name})")
