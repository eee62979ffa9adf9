"""Continuous top-k on Spark: candidates per pane in parallel, answers merged per window, corrected until exact.

The k best of every (group, pane, first window on time) are enough for every window made of those panes, so only they
leave a task; a sliding window then costs a merge of few rows. Ties: higher score, then earlier event time, then
earlier arrival. Null and NaN scores never rank. Strategies ``sma``, ``min_topk``, ``gs_topk`` and ``none`` wait for
nothing: they differ in what they keep (:mod:`latecomer.baselines.topk.immediate`), not in what they answer here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from latecomer.core.topk.required_waits import Candidates, required_members
from latecomer.core.windows.observation import spans_of
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import join_null_safe, quoted
from latecomer.spark.engine.query_columns import passes, sql
from latecomer.spark.engine.tuning import is_driver_local
from latecomer.spark.windows.due_rows import DueRows
from latecomer.spark.windows.kind import WindowAnswers, WindowKind
from latecomer.spark.windows.lateness import ObservedSpans, ObservedWindows, RowsWithLateness
from latecomer.spark.windows.rows import ClosedWindowTable
from latecomer.specs.clauses import ENVELOPE, INNER
from latecomer.specs.expressions import Column
from latecomer.specs.names import fold_case
from latecomer.specs.topk import TopKSpec
from latecomer.specs.windows import WINDOW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUPS_PER_K = 4
"""Groups of the rows of a pane for each of the k: with 4, about a sixth more than k rows reach the bound."""
SAMPLED_PER_K = 64
"""Rows of a pane in the sample that gives the bound, for each of the k."""
LEAST_SAMPLE = 16
"""The sample has at least one row in so many."""


def _power_of_two(number: int) -> int:
    """Return the least power of two that is not below a number, at least 1."""
    return 1 << max(number - 1, 0).bit_length()


class TopKWindows(WindowKind[TopKSpec]):
    """The windows of ``kind: topk``; see the module docstring."""

    def check(self) -> None:
        """Refuse columns that do not exist or have the name of a fixed result column, and a score that is no number."""
        super().check()
        fixed = {*ENVELOPE, *INNER, *WINDOW}
        names = [name for name, _ in self.selected]
        if self.spec.select is None:
            # `default_columns` leaves out what has the name of a result column, which is right of the score itself only
            fixed |= {"rank", "score"}
            scored = self.spec.score.name if isinstance(self.spec.score, Column) else ""
            names = [name for name in self.query.events[self.spec.streams[0][1]].columns if name != scored]
        for name in names:
            if fold_case(name) in fixed:
                remedy = "list the columns you want with `select`, this one under a new name: `... as name`"
                problem = "a column of the stream has the name of a fixed result column"
                raise self.query.asked.fail("select", name, problem, remedy)

    @property
    def answer_rows(self) -> int:
        """The k of the query."""
        return self.spec.k

    @cached_property
    def selected(self) -> list[tuple[str, str]]:
        """The result columns beside the fixed ones: public name and SQL."""
        if self.spec.select is not None:
            return [(item.name, sql(item.expr)) for item in self.spec.select]
        columns = {stream: rows.columns for stream, rows in self.query.events.items()}
        return [(name, quoted(column)) for name, _, column in self.spec.default_columns(columns)]

    def payload(self, source: int) -> dict[str, str]:
        """Return groups ``g{i}``, selected columns ``x{i}``, ``score`` and ``ok``."""
        score, where = sql(self.spec.score), passes(self.spec.where)
        groups = {f"g{i}": sql(column) for i, column in enumerate(self.spec.group_columns)}
        selected = {f"x{i}": text for i, (_, text) in enumerate(self.selected)}
        ok = f"{where} and {score} is not null and not isnan(cast({score} as double))"
        return groups | selected | {"score": score, "ok": ok}

    def _best(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        """Return the k best rows per key, with their ``rank``."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        order = Window.partitionBy(*keys).orderBy(F.col("score").desc(), "ts", "seq")
        return rows.withColumn("rank", F.row_number().over(order)).where(F.col("rank") <= self.spec.k)

    def reduced(self, rows: DataFrame, marked: DataFrame | None, density: int) -> tuple[DataFrame, bool]:
        """Leave out most rows that cannot be among the k best: k others of their pane score more and are on time.

        An aggregation of numbers, which is cheap, finds the best score of each of some groups by hash, of a sample of
        the rows where a pane has many. The k-th best of these bounds the k-th best of all from below. Marked rows
        bound nothing, but are bounded.
        """
        from pyspark.sql import functions as F

        if is_driver_local(self.query.spark):
            return rows, False
        groups, k = self.query.groups, self.spec.k
        keys = [*groups, "pane"]
        rows = self.assigner.paned(rows)
        places = _power_of_two(GROUPS_PER_K * k)
        share = 1 if groups else min(_power_of_two(density // (SAMPLED_PER_K * k)), LEAST_SAMPLE)
        rows = rows.withColumn("_place", F.xxhash64("seq").bitwiseAND(share * places - 1))
        sample = rows.where(F.expr(f"not ok or _place < {places}"))
        bounding = F.expr(f"ok and _place < {places}")
        if marked is not None:
            late = marked.select("seq", F.lit(True).alias("_late"))
            sample, bounding = sample.join(late, "seq", "left"), bounding & F.col("_late").isNull()
        best = sample.groupBy(*keys, "_place").agg(
            F.max(F.when(bounding, F.col("score"))).alias("_best"), F.count_if(~F.col("ok")).alias("_idle")
        )
        kth = F.expr(f"get(sort_array(collect_list(_best), false), {k - 1})")
        known = best.groupBy(*keys).agg(kth.alias("_least"), F.sum("_idle").alias("_idle")).toArrow()
        idle = pc.sum(known["_idle"]).as_py() or 0
        bounds = known.drop_columns("_idle").filter(pc.is_valid(known["_least"]))
        if 0 < bounds.num_rows <= tables.BROADCAST_ROWS:
            bounds = bounds.rename_columns({"pane": "_pane"})
            same_pane = F.col("pane") == F.col("_pane")
            in_spark = F.broadcast(tables.to_spark(self.query.spark, bounds))
            rows = join_null_safe(rows, in_spark, groups, "left", same_pane)
            rows = rows.where("_least is null or score >= _least").drop("_least", "_pane")
        return rows.drop("pane", "_place"), idle == 0

    def _ranked(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        """Return the k best rows per key, by an aggregation: a task keeps k rows of a key and ships no more."""
        from pyspark.sql import functions as F

        rest = [name for name in rows.columns if name not in keys]
        better = F.struct("score", -F.col("ts"), -F.col("seq"))
        best = rows.groupBy(*keys).agg(F.max_by(F.struct(*rest), better, self.spec.k).alias("best"))
        return best.select(*keys, F.explode("best").alias("row")).select(*keys, "row.*")

    # ----------------------------------------------------------------------------------------------------- observe

    def observed(self, rows: RowsWithLateness, spans: ObservedSpans, *, per_answer: bool = False) -> ObservedWindows:
        """Count what the members of the final top-k of observed windows required."""
        from pyspark.sql import functions as F

        (by_interval,), (sample,) = spans, rows.samples
        table = (
            self._ranked(rows.rows, [*self.query.groups, "pane", "j"])
            .select("grp", "pane", "bucket", F.col("score").cast("double").alias("score"), "ts", "seq")
            .toArrow()
            .sort_by("pane")
        )
        columns = [table[name].to_numpy() for name in ("grp", "pane", "bucket", "score", "ts", "seq")]
        candidates = Candidates(*columns)
        grid = self.query.grid
        windows = required_members(candidates, self.spec.k, grid, spans_of(grid, by_interval), sample)
        groups = sample.estimate_groups(len(np.unique(candidates.group)))
        return ObservedWindows([dict(zip(by_interval, windows, strict=True))], groups)

    # ----------------------------------------------------------------------------------------------------- answers

    def answers(self, rows: DataFrame, closed: ClosedWindowTable, *, many_answers: bool = False) -> WindowAnswers:
        """Answer closed windows: the best of each pane, then the best of each window."""
        from pyspark.sql import functions as F

        groups = self.query.groups
        best = self._ranked(self.assigner.paned(rows), [*groups, "pane", "c"])
        wide = self.assigner.spread(best, self.assigner.open_from).join(F.broadcast(closed.rows.drop("shard")), "_m")
        return WindowAnswers(self._public(self._best(wide, [*groups, "_m"]), ["_m", "closed_seq", "wait_us"]))

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
        """Return the rows of a whole answer for each window of each late row."""
        return late * self.query.grid.per_row * self.answer_rows

    def revised(self, due: DueRows, published: Mapping[str, str]) -> DataFrame:
        """Return the answers that a late row entered: each is published, so it does not matter what was before."""
        return self.corrected(due)

    def corrected(self, due: DueRows) -> DataFrame:
        """Return new answers of the windows whose top-k a late row entered, from the best of each pane and batch."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        groups, assigner = self.query.groups, self.assigner
        touched = assigner.in_windows(due.late.where("ok"), F.col("m_from"), F.col("m_to"))
        entered = touched.select("seq", "_m", F.col("repaired_in").alias("entered"))
        windows = touched.select(*groups, "_m", "repaired_in").distinct()
        first = self._ranked(due.counted_from(), [*groups, "pane", "repaired_in"])
        wide = assigner.spread(first.withColumnRenamed("repaired_in", "_from"), assigner.first_of)
        by_then = F.col("repaired_in") >= F.col("_from")
        rows = join_null_safe(wide, windows, [*groups, "_m"], condition=by_then).drop("pane", "_from")
        best = self._best(rows, [*groups, "_m", "repaired_in"]).join(entered, ["seq", "_m"], "left")
        answer = Window.partitionBy(*groups, "_m", "repaired_in")
        new = F.max((F.col("entered") == F.col("repaired_in")).cast("int")).over(answer)
        changed = best.withColumn("_new", new).where("_new = 1").drop("_new", "entered")
        return self._public(due.numbered(changed, [*groups, "_m"]), ["_m", "repaired_in", "revision"])
