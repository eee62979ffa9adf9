"""Continuous top-k on Spark: candidates per pane in parallel, answers merged per window, corrected until exact.

The k best of every (group, pane, first window on time) are enough for every window made of those panes, so only they leave a
task; a sliding window then costs a merge of few rows. Ties: higher score, then earlier event time, then earlier arrival. Null
and NaN scores never rank. Strategies ``sma``, ``min_topk``, ``gs_topk`` and ``none`` wait for nothing: they differ in what they keep
(:mod:`latecomer.baselines.topk.immediate`), not in what they answer here.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from latecomer.core.topk.required_waits import Candidates, required_members
from latecomer.core.windows.interfaces import Observed
from latecomer.core.windows.observation import spans_of
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import join_null_safe, quoted
from latecomer.spark.engine.query_columns import check_columns, passes, sql
from latecomer.spark.engine.tuning import is_driver_local
from latecomer.spark.windows.observation import Waited
from latecomer.spark.windows.repair import Due
from latecomer.spark.windows.rows import Closing
from latecomer.spark.windows.stage import WindowedStage
from latecomer.specs.clauses import ENVELOPE, INNER
from latecomer.specs.expressions import Column
from latecomer.specs.names import fold_case
from latecomer.specs.topk import TopKSpec
from latecomer.specs.windows import WINDOW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUPS_PER_K = 4
"""Groups of a pane's rows for each of the k: with 4, about a sixth more than k rows reach the bound that the groups give."""
SAMPLED_PER_K, LEAST_SAMPLE = 64, 16
"""The bound is taken from a sample of the rows: so many of a pane for each of the k, but one row in so many at least."""


def _power_of_two(number: int) -> int:
    """The least power of two from a number on, at least 1."""
    return 1 << max(number - 1, 0).bit_length()


class TopKStage(WindowedStage):
    """``kind: topk``; see the module docstring."""

    spec: TopKSpec
    asked: TopKSpec

    def check(self) -> None:
        """Columns exist, the score is a number."""
        check_columns(self.asked, self.events)
        fixed = {*ENVELOPE, *INNER, *WINDOW}
        names = [name for name, _ in self.selected]
        if self.spec.select is None:
            # `default_columns` leaves out what has the name of a result column, which is right of the score itself only
            fixed |= {"rank", "score"}
            scored = self.spec.score.name if isinstance(self.spec.score, Column) else ""
            names = [name for name in self.events[self.spec.streams[0][1]].columns if name != scored]
        for name in names:
            if fold_case(name) in fixed:
                remedy = "list the columns you want with `select`, this one under a new name: `... as name`"
                problem = "a column of the stream has the name of a fixed result column"
                raise self.asked.fail("select", name, problem, remedy)

    @property
    def answer_rows(self) -> int:
        """k."""
        return self.spec.k

    @cached_property
    def selected(self) -> list[tuple[str, str]]:
        """Result columns beside the fixed ones: public name and SQL."""
        if self.spec.select is not None:
            return [(item.name, sql(item.expr)) for item in self.spec.select]
        columns = {stream: rows.columns for stream, rows in self.events.items()}
        return [(name, quoted(column)) for name, _, column in self.spec.default_columns(columns)]

    def payload(self, source: int) -> dict[str, str]:
        """Groups ``g{i}``, selected columns ``x{i}``, ``score``, ``ok``."""
        score = sql(self.spec.score)
        where = passes(self.spec.where)
        return (
            {f"g{i}": quoted(name) for i, name in enumerate(self.spec.group_by)}
            | {f"x{i}": text for i, (_, text) in enumerate(self.selected)}
            | {"score": score, "ok": f"{where} and {score} is not null and not isnan(cast({score} as double))"}
        )

    def _best(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        """The k best rows per key, with their ``rank``."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        order = Window.partitionBy(*keys).orderBy(F.col("score").desc(), "ts", "seq")
        return rows.withColumn("rank", F.row_number().over(order)).where(F.col("rank") <= self.spec.k)

    def reduced(self, rows: DataFrame, marked: DataFrame | None, density: int) -> tuple[DataFrame, bool]:
        """Rows less most of those that cannot be among the k best: k others of their pane are known to score more, and came in time for all its windows.

        The best score of each of some groups by hash, of a sample of the rows where a pane has many, is found by an aggregation of numbers,
        which is cheap; the k-th best of these bounds the k-th best of all from below. Marked rows bound nothing, but are bounded.
        """
        from pyspark.sql import functions as F

        if is_driver_local(self.spark):
            return rows, False
        keys, k = [*self.groups, "pane"], self.spec.k
        rows = self.paned(rows)
        places = _power_of_two(GROUPS_PER_K * k)
        share = 1 if self.groups else min(_power_of_two(density // (SAMPLED_PER_K * k)), LEAST_SAMPLE)
        rows = rows.withColumn("_place", F.xxhash64("seq").bitwiseAND(share * places - 1))
        looked_at = rows.where(F.expr(f"not ok or _place < {places}"))
        bounding = F.expr(f"ok and _place < {places}")
        if marked is not None:
            late = marked.select("seq", F.lit(True).alias("_late"))
            looked_at, bounding = looked_at.join(late, "seq", "left"), bounding & F.col("_late").isNull()
        best = looked_at.groupBy(*keys, "_place").agg(
            F.max(F.when(bounding, F.col("score"))).alias("_best"), F.count_if(~F.col("ok")).alias("_idle")
        )
        kth = F.expr(f"get(sort_array(collect_list(_best), false), {k - 1})")
        known = best.groupBy(*keys).agg(kth.alias("_least"), F.sum("_idle").alias("_idle")).toArrow()
        idle = pc.sum(known["_idle"]).as_py() or 0
        bounds = known.drop_columns("_idle").filter(pc.is_valid(known["_least"]))
        if 0 < bounds.num_rows <= tables.BROADCAST_ROWS:
            bounds = bounds.rename_columns({"pane": "_pane"})
            here = F.col("pane") == F.col("_pane")
            rows = join_null_safe(rows, F.broadcast(tables.to_spark(self.spark, bounds)), self.groups, "left", here)
            rows = rows.where("_least is null or score >= _least").drop("_least", "_pane")
        return rows.drop("pane", "_place"), idle == 0

    def _ranked(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        """The k best rows per key, by an aggregation: a task keeps k rows a key, and hands no more on."""
        from pyspark.sql import functions as F

        rest = [name for name in rows.columns if name not in keys]
        better = F.struct("score", -F.col("ts"), -F.col("seq"))
        best = rows.groupBy(*keys).agg(F.max_by(F.struct(*rest), better, self.spec.k).alias("best"))
        return best.select(*keys, F.explode("best").alias("row")).select(*keys, "row.*")

    # ----------------------------------------------------------------------------------------------------- observe

    def observed(self, waited: Waited, wanted: list[dict[int, tuple[int, int]]]) -> list[dict[int, list[Observed]]]:
        """What the members of the final top-k of observed windows required."""
        from pyspark.sql import functions as F

        thinning = waited.thinning
        table = (
            self._ranked(waited.rows, [*self.groups, "pane", "j"])
            .select("grp", "pane", "bucket", F.col("score").cast("double").alias("score"), "ts", "seq")
            .toArrow()
            .sort_by("pane")
        )
        columns = [table[name].to_numpy() for name in ("grp", "pane", "bucket", "score", "ts", "seq")]
        candidates = Candidates(*columns)
        self.groups_seen = thinning[0].about(len(np.unique(candidates.group)))
        found = required_members(candidates, self.spec.k, self.grid, spans_of(self.grid, wanted[0]), thinning[0])
        return [dict(zip(wanted[0], found, strict=True))]

    # ----------------------------------------------------------------------------------------------------- answers

    def answers(self, rows: DataFrame, closing: Closing) -> DataFrame:
        """Windows that close: the best of each pane, then the best of each window."""
        from pyspark.sql import functions as F

        best = self._ranked(self.paned(rows), [*self.groups, "pane", "c"])
        closed = self.spread(best, self.open_from).join(F.broadcast(closing.table.drop("shard")), "_m")
        return self._public(self._best(closed, [*self.groups, "_m"]), ["_m", "closed_seq", "wait_us"])

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

    def most_corrections(self, late: int) -> int:
        """A whole answer for each window of each row."""
        return late * self.grid.per_row * self.answer_rows

    def corrected(self, due: Due) -> DataFrame:
        """New answers of the windows whose top-k a late row entered: of the best of each pane that come with each Gamma batch."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        touched = self.in_windows(due.rows.where("ok"), F.col("m_from"), F.col("m_to"))
        entered = touched.select("seq", "_m", F.col("repaired_in").alias("entered"))
        windows = touched.select(*self.groups, "_m", "repaired_in").distinct()
        first = self._ranked(self.counted_from(due), [*self.groups, "pane", "repaired_in"])
        wide = self.spread(first.withColumnRenamed("repaired_in", "_from"), self.first_of)
        by_then = F.col("repaired_in") >= F.col("_from")
        rows = join_null_safe(wide, windows, [*self.groups, "_m"], condition=by_then).drop("pane", "_from")
        best = self._best(rows, [*self.groups, "_m", "repaired_in"]).join(entered, ["seq", "_m"], "left")
        answer = Window.partitionBy(*self.groups, "_m", "repaired_in")
        new = F.max((F.col("entered") == F.col("repaired_in")).cast("int")).over(answer)
        changed = best.withColumn("_new", new).where("_new = 1").drop("_new", "entered")
        return self._public(self.numbered(changed, [*self.groups, "_m"], due), ["_m", "repaired_in", "revision"])
