"""Join, data plane: bucketed band joins over Delta tables, told by the control plane what is retained.

One micro-batch, arrivals ``[seq_from, seq_to)``:

1. *Scan* the new rows' ``seq`` and event time, here and not in Spark (:mod:`latecomer.spark.engine.arrival_scan`): stream time, and with it the
   adaptation interval of every arrival.
2. *Join* them with one another and with the rows still held, and count the pairs by interval and required retention; not
   counted where the strategy does not look at pairs. Up to `MANY_PAIRS` are counted here, from 16 bytes of each: they make about as many
   groups as pairs, and grouping them in Spark takes twice as long.
3. *Decide*: :class:`latecomer.core.join.control.JoinControl` turns the counts into one short table of horizons.
4. *Keep* the pairs with ``x.ts > H_X(seq_y)``. New rows whose window reaches behind the opposite horizon are registered as late.

Pairs that were counted are cached for step 4. Where it is candidates that are counted, pairs before the predicate (estimators
``paper`` and ``delay_aware``), they may be far more than the results, and the join is computed twice.

Held rows are no copy: they are a range of the stored events (``H_X < ts``, ``seq < seq_from``), found by file
statistics. `repair` joins registered late rows with the part of their window that was gone; the two conditions
exclude each other and together are the exact join.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from latecomer.core.arrays.composite_keys import distinct_rows, run_bounds, sort_order
from latecomer.core.arrays.sparse_counts import SparseCounts
from latecomer.core.arrivals import Arrivals
from latecomer.core.join.control import Horizons, IntervalSummary, JoinControl, held_bucket_us
from latecomer.core.join.retention_policies import RetentionParameters
from latecomer.core.join.statistics import delay_bucket, required_bucket
from latecomer.core.time import FOREVER, NEVER
from latecomer.lake.delta import TIMESTAMP
from latecomer.lake.lake import Lake
from latecomer.ledger.join_accounts import late_counts
from latecomer.ledger.open_periods import restore_join
from latecomer.spark.engine import arrival_scan, tables
from latecomer.spark.engine.columns import ceil_div, floor_div, floor_to
from latecomer.spark.join.repair import JoinRepair
from latecomer.spark.join.rows import LETTERS, JoinRows, in_sample
from latecomer.spark.stage import Batch, BatchCommit, Observation, Outcome
from latecomer.specs.join import JoinSpec
from latecomer.strategies.join import retention_parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession


MANY_PAIRS = 8_000_000
"""Pairs of a micro-batch that are counted in the driver: 128 MB and what sorting them takes."""
_CELL = ("j", "x", "b", "db", "candidates", "results", "sampled")
"""Columns of counted pairs, int64[n, 7], in order: interval, side of x, required bucket, delay bucket of y (-1: not asked), counts."""
_RESULTS = _CELL.index("results")


class History(NamedTuple):
    """The counted arrivals of a join: rows per side from before every stream had been seen, and the intervals after."""

    before_all_streams_seen: tuple[SparseCounts, SparseCounts]
    intervals: list[IntervalSummary]


class JoinStage(JoinRepair):
    """Strategies ``qjoin`` (all estimators) and ``exact``; see the module docstring."""

    def __init__(self, spec: JoinSpec, spark: SparkSession, lake: Lake) -> None:
        super().__init__(spark, lake)
        self.spec = spec
        self.rows = JoinRows(spec, spark, lake)
        self.settings = retention_parameters(spec)

    # -- run -----------------------------------------------------------------------------------------------------

    def process(
        self,
        batch: Batch,
        state: dict[str, Any] | None,
        observation: Observation | None,
        parameters: dict[str, Any] | None,
    ) -> Outcome:
        """Answer one micro-batch."""
        fresh = parameters if parameters and parameters["number"] != (state or {}).get("parameters") else None
        control, accounts = restore_join(self.spec, state, fresh)
        carry = [NEVER] * len(self.rows.sources) if state is None else list(state["carry"])
        new = arrival_scan.arrivals(self.lake, self.rows.sources, batch.seq_from, batch.seq_to, carry)
        arrived = Counted.of(new, self.settings, self.rows.is_self, lateness=control.policy.needs_lateness)
        pairs = self._pairs(new, batch, [control.horizon(0), control.horizon(1)], arrived, control)
        kept = control.policy.needs_pairs and not control.policy.needs_candidates
        if kept:
            pairs = self.cache.keep(self.rows.outlined(pairs, ["t"]))
        cells = self._counted(pairs, control, kept=kept) if control.policy.needs_pairs and arrived.rows else None
        control.hold_until_all_streams_seen(arrived.before_all_streams_seen)
        horizons = control.step(summaries(arrived, cells))
        late = self._late_rows(new, lambda side, at: self._horizon_at(horizons, side, new.stream_time_us[at]))
        late_count = late_counts(late)
        if control.policy.needs_candidates:
            pairs = pairs.where(self.rows.where_sql)
        on_time: DataFrame | None = self.rows.results(
            self._retained(pairs, horizons),
            provenance="on_time",
            published=_later("seq"),
            period=floor_to("t", self.spec.period_us),
        )
        if not arrived.rows and batch.number > 0:
            on_time = None

        def finalize(produced: dict[int, int]) -> BatchCommit:
            accounts.add(
                produced,
                late_count,
                arrived.by_period(self.settings.interval_us, self.spec.period_us),
                arrived.unplaced,
                {},
            )
            closed = accounts.close(control, flush=batch.flush)
            next_state = {
                "control": control.to_dict(),
                "books": accounts.to_dict(),
                "carry": new.carry,
                "parameters": parameters["number"] if parameters else None,
            }
            return BatchCommit(closed, next_state, dict(accounts.totals))

        few = cells is not None and cells[:, _RESULTS].sum() <= tables.DRIVER_LOCAL_ROWS
        return Outcome(
            on_time, late if late.num_rows or batch.number == 0 else None, finalize, {"on_time"} if few else set()
        )

    def history(self, seq_to: int) -> History:
        """All arrivals before `seq_to`, every pair counted, missed or not; takes 40 bytes an arrival."""
        batch = Batch(-1, 0, seq_to)
        new = arrival_scan.arrivals(self.lake, self.rows.sources, 0, seq_to, [NEVER] * len(self.rows.sources))
        control, _ = restore_join(self.spec, None)
        arrived = Counted.of(new, self.settings, self.rows.is_self, lateness=control.policy.needs_lateness)
        if not arrived.rows:
            return History(arrived.before_all_streams_seen, [])
        try:
            pairs = self._pairs(new, batch, [NEVER, NEVER], arrived, control)
            return History(
                arrived.before_all_streams_seen, summaries(arrived, self._counted(pairs, control, kept=False))
            )
        finally:
            self.release()

    def _pairs(
        self,
        new: Arrivals,
        batch: Batch,
        before: list[int],
        arrived: Counted,
        control: JoinControl,
    ) -> DataFrame:
        """Pairs with a new row, with the later one's stream time ``t`` and delay; without the predicate where candidates are counted."""
        from pyspark.sql import functions as F

        policy = control.policy
        known = {"t": new.stream_time_us} | ({"delay": new.delay_us} if policy.needs_candidates else {})
        rows = arrival_scan.with_arrival_values(self.rows.arrivals(batch), new.seq, known)
        if policy.needs_candidates:
            rows = self.cache.keep(rows)
        sampled = policy.needs_pairs
        left, right = self._sides(rows, batch, before, arrived, {name: F.col(name) for name in known}, sampled=sampled)
        either_new = F.col("l_t").isNotNull() | F.col("r_t").isNotNull()
        where = not policy.needs_candidates
        pairs = self.rows.pairs(left, right, either_new, where=where, copy_left=arrived.left_is_smaller)
        return pairs.withColumn("t", _later("t"))

    def _counted(self, pairs: DataFrame, control: JoinControl, *, kept: bool) -> np.ndarray:
        """Pairs per cell: see `_CELL`. Those `kept` are results, and counted here where they are not too many."""
        if kept and pairs.count() <= MANY_PAIRS:
            return self._counted_here(pairs)
        return self._counted_there(pairs, control)

    def _counted_here(self, pairs: DataFrame) -> np.ndarray:
        from pyspark.sql import functions as F

        side, sampled = F.expr("if(l_seq > r_seq, 1, 0)"), in_sample("if(l_seq > r_seq, r_seq, l_seq)").cast("int")
        # one number of three: an event time times four is far from the end of 64 bits
        seen = pairs.select("t", (_earlier("ts") * 4 + side * 2 + sampled).alias("x")).toArrow()
        t, x = seen["t"].to_numpy(), seen["x"].to_numpy()
        bucket = required_bucket(t - self.spec.window_us - (x >> 2), self.settings.granularity_us)
        columns, count = distinct_rows(t // self.settings.interval_us, x >> 1 & 1, bucket, x & 1)
        return np.stack([*columns[:3], np.full(len(count), -1), count, count, count * columns[3]], axis=1)

    def _counted_there(self, pairs: DataFrame, control: JoinControl) -> np.ndarray:
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
        cells = np.stack([counted[name].to_numpy().astype(np.int64) for name in _CELL], axis=1)
        return cells[sort_order(*cells[:, :3].T)]

    def _interval(self) -> Column:
        """Number of the adaptation interval in which a pair's later row arrived."""
        return floor_div("t", self.settings.interval_us)

    def _retained(self, pairs: DataFrame, horizons: Horizons) -> DataFrame:
        """Pairs whose earlier row was still held: :meth:`Horizons.at` as a join with one short table."""
        from pyspark.sql import functions as F

        moves = [
            (keep < FOREVER) | (base > NEVER) for keep, base in zip(horizons.retention, horizons.base, strict=True)
        ]
        if not any(each.any() for each in moves):
            return pairs
        table = pa.table(
            {"_j": horizons.interval}
            | {f"_b{side}": horizons.base[side] for side in (0, 1)}
            | {f"_k{side}": pa.array(keep, mask=keep >= FOREVER) for side, keep in enumerate(horizons.retention)}
        )
        placed = pairs.join(F.broadcast(tables.to_spark(self.spark, table)), self._interval() == F.col("_j"), "left")
        behind = F.col("t") - F.lit(self.spec.window_us) - F.expr("if(l_seq > r_seq, _k1, _k0)")
        horizon = F.greatest(F.expr("if(l_seq > r_seq, _b1, _b0)"), behind)
        # no interval, no horizon: not every source had spoken
        return placed.where(F.coalesce(_earlier("ts") > horizon, F.lit(True)))

    def _sides(
        self,
        new: DataFrame,
        batch: Batch,
        before: list[int],
        arrived: Counted,
        carried: dict[str, Column],
        *,
        sampled: bool = False,
    ) -> list[DataFrame]:
        """Both sides: rows still held, and the new ones with the columns `carried`."""
        from pyspark.sql import functions as F

        low, high = arrived.low - self.spec.window_us, arrived.high + self.spec.window_us
        sides = []
        for side, letter in enumerate(LETTERS):
            fresh = self.rows.as_side(new, side, carried)
            if batch.seq_from == 0:
                sides.append(fresh)
                continue
            held = self.rows.stored(side, batch.seq_from, before[side], low, high, sampled=sampled)
            # a held row is never the later of a pair that counts here, so what is carried for later rows is not looked at
            blank = {f"{letter}_{name}": F.lit(None).cast("bigint") for name in carried}
            sides.append(fresh.unionByName(held.withColumns(blank)))
        return sides

    def _horizon_at(self, horizons: Horizons, side: int, stream_time_us: np.ndarray) -> np.ndarray:
        """Horizon of one side at arrivals of these stream times, int64 us."""
        return horizons.at(side, stream_time_us, self.settings.interval_us, self.spec.window_us)

    # -- late ----------------------------------------------------------------------------------------------------

    def _late_rows(self, new: Arrivals, horizon_of: Callable[[int, np.ndarray], np.ndarray]) -> pa.Table:
        """New rows, per role, whose window reaches behind the opposite horizon: `horizon_of` (side, places in `new`), int64 us."""
        parts = []
        for side, alias in enumerate(self.rows.aliases):
            source = 0 if self.rows.is_self else side
            at = np.flatnonzero(new.side == source)
            horizon = horizon_of(1 - side, at)
            late = horizon >= new.event_time_us[at] - self.spec.window_us
            at, horizon = at[late], horizon[late]
            times, period = new.event_time_us[at], new.stream_time_us[at] // self.spec.period_us * self.spec.period_us
            columns: dict[str, Any] = {
                "seq": new.seq[at],
                "stream": pa.repeat(pa.scalar(self.rows.streams[side]), len(at)),
                "alias": pa.repeat(pa.scalar(alias), len(at)),
                "event_ts": pa.array(times).cast(TIMESTAMP),
                "partners_from": pa.array(times - self.spec.window_us).cast(TIMESTAMP),
                "partners_to": pa.array(np.minimum(horizon, times + self.spec.window_us)).cast(TIMESTAMP),
                "period_start": pa.array(period).cast(TIMESTAMP),
            }
            parts.append(pa.table(columns))
        return pa.concat_tables(parts)


class Counted:
    """What one micro-batch's new rows look like to the control plane."""

    def __init__(self) -> None:
        self.rows = 0
        self.low, self.high = 0, 0
        self.longest_delay_us = NEVER
        self.before_all_streams_seen: tuple[SparseCounts, SparseCounts] = (_NONE, _NONE)
        self.unplaced = 0
        self._placed: list[tuple[int, int]] = []
        self.intervals: list[tuple[int, int, tuple[SparseCounts, SparseCounts], tuple[SparseCounts, SparseCounts]]] = []
        self.left_is_smaller = False

    @staticmethod
    def of(new: Arrivals, settings: RetentionParameters, is_self: bool, *, lateness: bool = False) -> Counted:
        """Rows by interval: of each side by event time (rows held) and by delay, or by `lateness`."""
        found = Counted()
        found.rows = len(new.seq)
        if not found.rows:
            return found
        times, t = new.event_time_us, new.stream_time_us
        found.longest_delay_us = int(new.delay_us.max())
        found.low, found.high = int(times.min()), int(times.max())
        totals = np.bincount(new.side, minlength=2)
        found.left_is_smaller = not is_self and bool(totals[0] < totals[1])
        number = t // settings.interval_us
        held = times // held_bucket_us(settings.interval_us, settings.granularity_us)
        by_time = _by_interval(new.side, number, held, is_self)
        waited = delay_bucket(new.lateness_us if lateness else new.delay_us, settings.granularity_us)
        by_delay = _by_interval(new.side, number, waited, is_self)
        edges = np.flatnonzero(np.diff(number, prepend=number[0] - 1))
        ends = np.append(edges[1:], found.rows)
        for each, t_last, count in zip(
            number[edges].tolist(), t[ends - 1].tolist(), (ends - edges).tolist(), strict=True
        ):
            if t_last <= NEVER:
                found.before_all_streams_seen, found.unplaced = by_time[each], count
            else:
                found._placed.append((each, count))
                found.intervals.append((each, t_last, by_time[each], by_delay[each]))
        return found

    def by_period(self, interval_us: int, period_us: int) -> dict[int, int]:
        """Arrivals per period, by the period in which their interval begins."""
        found: dict[int, int] = {}
        for number, count in self._placed:
            start = number * interval_us // period_us * period_us
            found[start] = found.get(start, 0) + count
        return found


_NONE: SparseCounts = (np.empty(0, np.int64), np.empty(0, np.int64))


def _by_interval(
    side: np.ndarray, number: np.ndarray, bucket: np.ndarray, is_self: bool
) -> dict[int, tuple[SparseCounts, SparseCounts]]:
    """Per interval, one sparse histogram per role; a self join's rows play both."""
    (number, side, bucket), count = distinct_rows(number, side, bucket)
    numbers, starts = np.unique(number, return_index=True)
    found: dict[int, tuple[SparseCounts, SparseCounts]] = {}
    for each, first, end in zip(numbers.tolist(), starts, [*starts[1:], len(number)], strict=True):
        middle = first + np.searchsorted(side[first:end], 1)
        left, right = (bucket[first:middle], count[first:middle]), (bucket[middle:end], count[middle:end])
        found[each] = (left, left) if is_self else (left, right)
    return found


def summaries(arrived: Counted, cells: np.ndarray | None) -> list[IntervalSummary]:
    """Counts of one micro-batch as the control plane takes them, by interval; `cells` are in order of it."""
    per_interval: dict[int, np.ndarray] = {}
    if cells is not None and len(cells):
        starts = run_bounds(cells[:, 0])[:-1]
        per_interval = dict(zip(cells[starts, 0].tolist(), np.split(cells[:, 1:], starts[1:]), strict=True))
    empty = np.empty((0, len(_CELL) - 1), np.int64)
    return [
        IntervalSummary(number, t_last, times, delays, per_interval.get(number, empty))
        for number, t_last, times, delays in arrived.intervals
    ]


def _later(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(f"if(l_seq > r_seq, l_{name}, r_{name})")


def _earlier(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(f"if(l_seq > r_seq, r_{name}, l_{name})")
