"""Continuous top-k on Spark: candidates per pane in parallel, answers merged per window, corrected until exact.

The k best of every (group, pane, first window on time) are enough for every window made of those panes, so only they leave a
task; a sliding window then costs a merge of few rows. Ties: higher score, then earlier event time, then earlier arrival. Null
and NaN scores never rank. Strategies ``sma``, ``min_topk``, ``gs_topk`` and ``none`` wait for nothing: they differ in what they keep
(:mod:`latecomer.baselines.topk`), not in what they answer here.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from latecomer.core.slack import AdaptiveSlack, CalibratedSlack, Fixed
from latecomer.core.topk import AdaptiveWait
from latecomer.core.topk_members import Candidates, required_members
from latecomer.core.windows import Grid, Observed, SlackPolicy
from latecomer.spark import tables
from latecomer.spark.query import check_expressions, quoted, sql
from latecomer.spark.windowed import Closing, WindowedStage, _div, _div_of
from latecomer.specs import expressions as ex
from latecomer.specs.topk import TopKSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def policies_of(spec: TopKSpec, grid: Grid) -> list[SlackPolicy]:
    """The one slack policy, at its start."""
    strategy = spec.strategy
    if strategy.name == "adaptive_wait":
        wait = AdaptiveWait(
            spec.hit_rate,
            strategy.candidates,
            strategy.windows,
            strategy.initial_wait_us,
            strategy.min_step_us,
            slide_us=grid.slide_us,
        )
        return [AdaptiveSlack(wait)]
    if strategy.name == "calibrated":
        return [CalibratedSlack(min(spec.hit_rate, 0.9999), grid, spec.period_us, strategy.confidence)]
    return [Fixed(0)]


class TopKStage(WindowedStage):
    """``kind: topk``; see the module docstring."""

    spec: TopKSpec

    def check(self) -> None:
        """Columns exist, the score is a number."""
        alias = self.spec.streams[0][0]
        wanted: list[tuple[str, ex.Expr, str | None]] = [
            (f"group_by[{i}]", ex.Column(alias, name), None) for i, name in enumerate(self.spec.group_by)
        ]
        wanted.append(("score", self.spec.score, "number"))
        wanted += [(f"select[{i}]", item.expr, None) for i, item in enumerate(self.spec.select or ())]
        if self.spec.where is not None:
            wanted.append(("where", self.spec.where, "bool"))
        check_expressions(self.spec, self.events, wanted)

    def policies(self) -> list[SlackPolicy]:
        """Adaptive wait, calibrated, or none."""
        return policies_of(self.spec, self.grid)

    @cached_property
    def selected(self) -> list[tuple[str, str]]:
        """Result columns beside the fixed ones: public name and SQL."""
        if self.spec.select is not None:
            return [(item.name, sql(item.expr)) for item in self.spec.select]
        fixed = {"seq", "event_ts", "score", "rank", *self.spec.group_by}
        return [(name, quoted(name)) for name in self.events[self.sources[0]].columns if name not in fixed]

    def payload(self, source: int) -> dict[str, str]:
        """Groups ``g{i}``, selected columns ``x{i}``, ``score``, ``ok``."""
        score = sql(self.spec.score)
        where = "true" if self.spec.where is None else f"coalesce({sql(self.spec.where)}, false)"
        return (
            {f"g{i}": quoted(name) for i, name in enumerate(self.spec.group_by)}
            | {f"x{i}": text for i, (_, text) in enumerate(self.selected)}
            | {"score": score, "ok": f"{where} and {score} is not null and not isnan(cast({score} as double))"}
        )

    @property
    def groups(self) -> list[str]:
        """Names of the group columns inside the stage."""
        return [f"g{i}" for i in range(len(self.spec.group_by))]

    def _best(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        """The k best rows per key, with their ``rank``."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        order = Window.partitionBy(*keys).orderBy(F.col("score").desc(), "ts", "seq")
        return rows.withColumn("rank", F.row_number().over(order)).where(F.col("rank") <= self.spec.k)

    # ----------------------------------------------------------------------------------------------------- observe

    def observed(self, scanned: DataFrame, wanted: list[dict[int, tuple[int, int]]]) -> list[dict[int, list[Observed]]]:
        """What the members of the final top-k of observed windows required."""
        from pyspark.sql import functions as F

        spans = wanted[0]
        low = min(first for first, _ in spans.values()) * self.grid.slide_us
        high = self.grid.end(max(last for _, last in spans.values()))
        rows = scanned.where(F.col("ok") & (F.col("ts") >= low) & (F.col("ts") < high))
        rows = rows.withColumn("pane", _div("ts", self.grid.pane_us))
        first_end = self.first_of("ts") * self.grid.slide_us + self.grid.size_us
        wait = F.col("t") - first_end
        bucket = F.when(wait >= 0, _div_of(wait, self.grid.granularity_us)).otherwise(F.lit(-1)).cast("bigint")
        group = F.expr(f"xxhash64({', '.join(self.groups)})") if self.groups else F.lit(0).cast("bigint")
        table = (
            self._best(rows.withColumn("bucket", bucket), [*self.groups, "pane", "j"])
            .select(group.alias("grp"), "pane", "bucket", F.col("score").cast("double").alias("score"), "ts", "seq")
            .toArrow()
        )
        columns = [table[name].to_numpy() for name in ("grp", "pane", "bucket", "score", "ts", "seq")]
        candidates = Candidates(*columns)
        found = {
            interval: required_members(candidates, self.spec.k, self.grid, windows, interval * self.grid.slide_us)
            for interval, windows in spans.items()
        }
        return [found]

    # ----------------------------------------------------------------------------------------------------- answers

    def answers(self, rows: DataFrame, closing: Closing) -> DataFrame:
        """Windows that close: the best of each pane, then the best of each window."""
        from pyspark.sql import functions as F

        last = F.least(self.last_of("ts"), F.lit(closing.after[0]))
        keyed = rows.withColumn("pane", _div("ts", self.grid.pane_us)).withColumn("last", last)
        best = self._best(keyed.where(F.col("o") <= F.col("last")), [*self.groups, "pane", "o"]).drop("rank")
        wide = self.in_windows(best, F.col("o"), F.col("last"))
        closed = wide.join(F.broadcast(closing.table.drop("shard")), "m")
        return self._public(self._best(closed, [*self.groups, "m"]), ["m", "closed_seq", "wait_us"])

    def _public(self, rows: DataFrame, inner: list[str]) -> DataFrame:
        from pyspark.sql import functions as F

        return rows.select(
            *(F.col(f"g{i}").alias(name) for i, name in enumerate(self.spec.group_by)),
            F.col("rank").cast("int").alias("rank"),
            "score",
            "seq",
            F.timestamp_micros("ts").alias("event_ts"),
            *(F.col(f"x{i}").alias(name) for i, (name, _) in enumerate(self.selected)),
            *inner,
        )

    # ------------------------------------------------------------------------------------------------------ repair

    def corrected(self, due: DataFrame) -> DataFrame:
        """New answers of the windows whose top-k a late row entered."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        touched = self.in_windows(due.where("ok"), F.col("m_from"), F.col("m_to"))
        entered = touched.select("seq", "m", F.col("repaired_in").alias("entered"))
        windows = touched.select(*self.groups, "m", "repaired_in").distinct()
        stored = self.in_windows(self.stored_in(due), self.first_of("ts"), self.last_of("ts"))
        renamed = windows.select(*(F.col(name).alias(f"_{name}") for name in windows.columns))
        same: Column = F.col("m") == F.col("_m")
        for name in self.groups:
            same = same & F.col(name).eqNullSafe(F.col(f"_{name}"))
        pairs = stored.join(renamed, same & (F.col("seq") <= F.col("_repaired_in")))
        rows = pairs.withColumn("repaired_in", F.col("_repaired_in")).drop(*renamed.columns)
        best = self._best(rows, [*self.groups, "m", "repaired_in"]).join(entered, ["seq", "m"], "left")
        answer = Window.partitionBy(*self.groups, "m", "repaired_in")
        new = F.max((F.col("entered") == F.col("repaired_in")).cast("int")).over(answer)
        changed = best.withColumn("_new", new).where("_new = 1").drop("_new", "entered")
        order = Window.partitionBy(*self.groups, "m").orderBy("repaired_in")
        numbered = changed.withColumn("_nth", F.dense_rank().over(order))
        before = self._revisions()
        same = F.col("m") == F.col("_m")
        for name in self.groups:
            same = same & F.col(name).eqNullSafe(F.col(f"_{name}"))
        joined = numbered.join(before, same, "left")
        revision = (F.col("_nth") + F.coalesce(F.col("_last"), F.lit(-1))).cast("int")
        return self._public(joined.withColumn("revision", revision), ["m", "repaired_in", "revision"])

    def _revisions(self) -> DataFrame:
        """Last revision of every window answered so far."""
        from pyspark.sql import functions as F

        areas = [area for area in ("on_time", "corrections") if self.lake.exists(area, self.spec.name)]
        keys = [*(F.col(quoted(name)).alias(f"_g{i}") for i, name in enumerate(self.spec.group_by))]
        m = _div_of(F.unix_micros("window_start"), self.grid.slide_us).alias("_m")
        parts = [
            tables.read(self.spark, self.lake, area, self.spec.name).select(*keys, m, "revision") for area in areas
        ]
        both = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
        return both.groupBy(*(f"_{name}" for name in self.groups), "_m").agg(F.max("revision").alias("_last"))


def open_ledger(spec: TopKSpec, state: dict[str, Any]) -> pa.Table | None:
    """Ledger rows of periods that are still open. Needs no Spark."""
    from latecomer.spark.windowed import books_of, controls_of

    grid = Grid(spec.window.size_us, spec.window.slide_us)
    return books_of(spec, state).open(controls_of(spec, policies_of(spec, grid), state))
