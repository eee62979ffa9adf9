"""Aggregates over sliding windows on Spark: panes, partial states, exact answers, measured errors.

A row is folded once, into the partial state of (group, pane, first window it is on time for); only those states, few
as they are, are spread over windows. So a sliding window costs about what a tumbling one does. MEDIAN and QUANTILE
have no small state: their partial state is how often each value occurred, still exact
(:mod:`latecomer.spark.aggregate.quantiles`). Sums are independent of row order
(:mod:`latecomer.spark.aggregate.exact_sum`). Where answers are many, as of many groups, the same bits are found with
less per answer.

Nulls are ignored, as in SQL; an aggregate without a value is null; ``count()`` counts rows. NaN is greater than every
number and makes sums and means NaN, as in Spark. Controllers: :mod:`latecomer.core.windows.slack_policies`, one per
shard of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.aggregate import coverage as core
from latecomer.core.windows.interfaces import Observed
from latecomer.core.windows.observation import spans_of
from latecomer.spark.aggregate import quantiles
from latecomer.spark.aggregate.exact_sum import ExactSum
from latecomer.spark.aggregate.partial_states import States, with_columns
from latecomer.spark.engine.columns import join_null_safe, named, quoted
from latecomer.spark.engine.query_columns import passes, sql
from latecomer.spark.windows.assigner import number_of_shard
from latecomer.spark.windows.due_rows import DueRows
from latecomer.spark.windows.kind import WindowAnswers, WindowKind
from latecomer.spark.windows.lateness import ObservedSpans, ObservedWindows, RowsWithLateness
from latecomer.spark.windows.rows import ClosedWindowTable
from latecomer.specs import expressions as ex
from latecomer.specs.aggregate import Aggregate, AggregateSpec
from latecomer.specs.column_types import is_number

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.window import WindowSpec

_CLAMP = repr(2.0**1000)
_PLAIN, _PLAIN_SQUARES = (2.0**-43, 2.0**62), (2.0**-20, 2.0**30)
"""Sizes of values that are summed exactly as they are, without and with their squares. Others are scaled to between
2^-20 and 2^20 first, in steps of `_STEP_BITS` bits."""
_STEP_BITS, _MOST_STEPS = 40, 25


class AggregateWindows(WindowKind[AggregateSpec]):
    """The windows of ``kind: aggregate``; see the module docstring."""

    answer_rows = 1

    @cached_property
    def arguments(self) -> list[ex.Expr]:
        """The distinct aggregated expressions; value column ``v{i}`` holds the i-th."""
        return list(
            dict.fromkeys(aggregate.argument for aggregate in self.spec.aggregates if aggregate.argument is not None)
        )

    @cached_property
    def kinds(self) -> list[str]:
        """The Spark types of the value columns."""
        from pyspark.sql import functions as F

        events = self.query.events[self.query.sources[0]]
        values = events.select(*(F.expr(sql(argument)).alias(f"v{i}") for i, argument in enumerate(self.arguments)))
        return [kind for _, kind in values.dtypes]

    def payload(self, source: int) -> dict[str, str]:
        """Return groups ``g{i}``, values ``v{i}`` and ``ok``."""
        groups = {f"g{i}": sql(column) for i, column in enumerate(self.spec.group_columns)}
        values = {f"v{i}": sql(argument) for i, argument in enumerate(self.arguments)}
        return groups | values | {"ok": passes(self.spec.where)}

    def shard_sql(self) -> str:
        """Return the hash of the groups modulo the number of shards."""
        if self.spec.shards == 1:
            return "0"
        return f"pmod(xxhash64({', '.join(self.query.groups)}), {self.spec.shards})"

    # ----------------------------------------------------------------------------------------------------- observe

    def observed(self, rows: RowsWithLateness, spans: ObservedSpans, *, per_answer: bool = False) -> ObservedWindows:
        """Count the rows of windows by wait, or their answers where `calibrated` learns from them."""
        per_answer = per_answer or self.spec.strategy.name == "calibrated"
        cells, samples = self._cells(rows.rows, squares=not per_answer), rows.samples
        groups = sum(
            samples[shard].estimate_groups(len(np.unique(shard_cells.group))) for shard, shard_cells in cells.items()
        )
        by_shard: list[dict[int, list[Observed]]] = []
        for shard, by_interval in enumerate(spans):
            shard_cells, shard_spans = cells.get(shard), spans_of(self.query.grid, by_interval)
            if shard_cells is None:
                by_shard.append({})
                continue
            given = shard_cells, self.query.grid, shard_spans, self.functions, self.spec.error
            if per_answer:
                windows = core.required_answers(*given, samples[shard])
            else:
                windows = core.required_coverage(*given, 1.0 - self.spec.target, samples[shard])
            by_shard.append(dict(zip(by_interval, windows, strict=True)))
        return ObservedWindows(by_shard, groups)

    @cached_property
    def functions(self) -> list[core.Function]:
        """The query's aggregates by value column."""
        return [
            core.Function(
                aggregate.function, None if aggregate.argument is None else self.arguments.index(aggregate.argument)
            )
            for aggregate in self.spec.aggregates
        ]

    def _cells(self, rows: DataFrame, *, squares: bool) -> dict[int, core.Cells]:
        """Fold the rows of each shard into cells by (group, pane, wait), with sums of squares where they are needed.

        Exact sums are of values within some ninety bits. Others are scaled by a power of two, and values that are
        scaled alike are a cell of their own: so the controllers see the same whatever the unit of a column is.
        """
        from pyspark.sql import functions as F

        counts = {"n": "count(*)"}
        reduced: list[ExactSum] = []
        prepared: dict[str, str] = {}
        states, keys = self._states(), ["shard", "grp", "pane", "bucket"]
        for i, kind in enumerate(self.kinds):
            counts |= {f"c{i}": f"count(v{i})"}
            summed, extremes = states.reads(i, "sum", "avg"), states.reads(i, "min", "max")
            if not summed and not extremes:
                continue
            value = f"cast(v{i} as double)" if is_number(kind) else "0D"
            clamped = f"greatest(least({value}, {_CLAMP}D), -{_CLAMP}D)"
            prepared[f"z{i}"] = f"case when v{i} is null then null when isnan({value}) then 0D else {clamped} end"
            if extremes:
                counts |= {f"lo{i}": f"min(z{i})", f"hi{i}": f"max(z{i})"}
            if not summed:
                continue
            size, (least, most) = f"abs(z{i})", _PLAIN_SQUARES if squares else _PLAIN
            steps = f"floor((log2({size}) + {_STEP_BITS // 2}) / {_STEP_BITS})"
            step = f"cast(greatest(least({steps}, {_MOST_STEPS}), -{_MOST_STEPS}) as int)"
            prepared |= {
                f"j{i}": f"case when {size} >= {most!r}D or ({size} < {least!r}D and z{i} != 0D) then {step} end",
                f"s{i}": f"case when j{i} is null then z{i} else z{i} * pow(2D, -{_STEP_BITS} * j{i}) end",
            }
            keys.append(f"j{i}")
            sums = [ExactSum(f"s{i}", "double")]
            if squares:
                prepared |= {f"q{i}": f"s{i} * s{i}"}
                sums.append(ExactSum(f"q{i}", "double"))
            for total in sums:
                prepared |= total.prepare()
                counts |= total.partial()
            reduced += sums
        table = with_columns(rows, prepared).groupBy(*keys).agg(*map(F.expr, named(counts)))
        kept = [*keys, "n", *(name for name in counts if name[:1] == "c" or name[:2] in ("lo", "hi"))]
        return self._as_cells(table.selectExpr(*kept, *named({s.column: s.tame_total() for s in reduced})).toArrow())

    def _as_cells(self, table: pa.Table) -> dict[int, core.Cells]:
        scaled = [name for i in range(len(self.kinds)) if (name := f"j{i}") in table.column_names]
        if any(
            table[name].null_count < table.num_rows for name in scaled
        ):  # cells that differ in nothing else: in one order
            table = table.sort_by([(name, "ascending") for name in scaled])

        def by_column(prefix: str, cells: pa.Table, steps: int = 0) -> core.Values:
            values = {}
            for i in range(len(self.kinds)):
                if (name := f"{prefix}{i}") not in cells.column_names:
                    continue
                values[i] = cells[name].cast(pa.float64()).to_numpy()
                if steps and cells[f"j{i}"].null_count < cells.num_rows:
                    with np.errstate(over="ignore"):
                        step = steps * _STEP_BITS * cells[f"j{i}"].fill_null(0).to_numpy()
                        values[i] = np.ldexp(values[i], step)
            return values

        by_shard = {}
        for shard in np.unique(table["shard"].to_numpy()).tolist():
            cells = table if self.spec.shards == 1 else table.filter(pc.equal(table["shard"], shard))
            group, pane, bucket, number = (cells[name].to_numpy() for name in ("grp", "pane", "bucket", "n"))
            by_shard[shard] = core.Cells(
                group,
                pane,
                bucket,
                number,
                counted=by_column("c", cells),
                total=by_column("s", cells, 1),
                squares=by_column("q", cells, 2),
                least=by_column("lo", cells),
                most=by_column("hi", cells),
            ).ordered()
        return by_shard

    # ----------------------------------------------------------------------------------------------------- answers

    def answers(self, rows: DataFrame, closed: ClosedWindowTable, *, many_answers: bool = False) -> WindowAnswers:
        """Answer closed windows from partial states per (group, pane, first window on time)."""
        from pyspark.sql import functions as F

        assigner, groups = self.assigner, self.query.groups
        windows = F.broadcast(closed.rows)
        tame = many_answers and self._all_tame(rows)
        if tame and assigner.tumbling:
            wide = assigner.in_windows(rows, assigner.open_from("ts"), assigner.last_of("ts"))
            wide = wide.where(F.col("_m") <= number_of_shard(closed.after))
            whole = self._answered_whole(wide, [*groups, "shard", "_m"])
            return WindowAnswers(whole.join(windows, ["shard", "_m"]))

        def spread(partial: DataFrame) -> DataFrame:
            return assigner.spread(partial, assigner.open_from).join(windows, ["shard", "_m"])

        inner = [*groups, "shard", "pane", "c"]
        outer = [*groups, "shard", "_m", "closed_seq", "wait_us"]
        paned = assigner.paned(rows)
        return WindowAnswers(self._answered(paned, inner, spread, outer, tame=tame, many_answers=many_answers))

    def _all_tame(self, rows: DataFrame) -> bool:
        """Return whether no summed value is wild, by a pass over the rows.

        For many answers that costs far less than lists of wild values.
        """
        from pyspark.sql import functions as F

        wild = [total.is_wild() for total in self._states().sums if total.floating]
        return not wild or not rows.select(F.expr(f"bool_or({' or '.join(wild)})")).collect()[0][0]

    def _states(self, *, tame: bool = False) -> States:
        return States(self.kinds, self.functions, tame)

    def _answered_whole(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        """Answer rows that are in one window each and tame: their states by `keys` are the answers."""
        from pyspark.sql import functions as F

        states, picks = self._states(tame=True), dict[str, str]()
        for i, shares in self._ranked_shares().items():
            rows = quantiles.with_positions(rows, keys, f"v{i}", "1")
            picks |= quantiles.picks(f"v{i}", shares)
        answers = states.folded(rows, keys, picks)
        for i, shares in self._ranked_shares().items():
            answers = answers.withColumn(f"r{i}", F.expr(quantiles.picked(f"v{i}", shares)))
        return self._public(answers, keys, states.sums)

    def _answered(
        self,
        rows: DataFrame,
        inner: list[str],
        spread: Callable[[DataFrame], DataFrame],
        outer: list[str],
        *,
        tame: bool,
        many_answers: bool,
    ) -> DataFrame:
        """Answer by `outer`: fold rows by `inner`, and merge their states once they are `spread` over windows."""
        from pyspark.sql import functions as F

        states = self._states(tame=tame)
        answers = states.merged(spread(states.folded(rows, inner)), outer)
        for i, shares in self._ranked_shares().items():
            values = spread(self._values(rows, inner, i))
            if many_answers:
                picks = map(F.expr, named(quantiles.picks(f"v{i}", shares)))
                ranked = quantiles.with_positions(values, outer, f"v{i}", "often").groupBy(*outer).agg(*picks)
                ranked = ranked.select(*outer, F.expr(quantiles.picked(f"v{i}", shares)).alias(f"r{i}"))
            else:
                of_values = F.expr(quantiles.percentiles(f"v{i}", shares, "often"))
                ranked = values.groupBy(*outer).agg(of_values.alias(f"r{i}"))
            answers = join_null_safe(answers, ranked, outer, "left")
        return self._public(answers, outer, states.sums)

    def _answered_after_batches(
        self,
        rows: DataFrame,
        inner: list[str],
        spread: Callable[[DataFrame], DataFrame],
        outer: list[str],
        due: DataFrame,
    ) -> DataFrame:
        """Answer by `outer`, whose last key is a batch: an answer counts the rows of its batch and of all before.

        `due` has the rows of `outer` that are to be answered, and ``w``, the number of their other keys, which
        `spread` adds.
        """
        states, batch = self._states(), outer[-1]
        merged = states.merged(spread(states.folded(rows, inner)), outer)
        answers = join_null_safe(states.running(merged, outer, _so_far(outer)), due, outer)
        for i, shares in self._ranked_shares().items():
            values = spread(self._values(rows, inner, i))
            counts = values.selectExpr("w", batch, f"cast(v{i} as double) as value", "often").where("often > 0")
            ranked = quantiles.after_batches(counts, due.select("w", batch), batch, shares)
            answers = answers.join(ranked.withColumnRenamed("r", f"r{i}"), ["w", batch], "left")
        return self._public(answers, outer, states.sums)

    def _public(self, answers: DataFrame, keys: list[str], sums: list[ExactSum]) -> DataFrame:
        """Give answers their public names; the `keys` that are no groups stay."""
        answers = with_columns(answers, {name: text for total in sums for name, text in total.totals().items()})
        groups = {name: f"g{i}" for i, name in enumerate(self.spec.group_by)}
        outputs = {aggregate.name: self._output(aggregate, sums) for aggregate in self.spec.aggregates}
        inner = (name for name in keys if name not in self.query.groups)
        return answers.selectExpr(*named(groups), *named(outputs), "rows", "1D as coverage", *inner)

    def _ranked_shares(self) -> dict[int, list[float]]:
        """Return the quantiles of the query by value column."""
        shares: dict[int, list[float]] = {}
        for aggregate in self.spec.aggregates:
            if aggregate.function in core.RANKED and aggregate.argument is not None:
                shares.setdefault(self.arguments.index(aggregate.argument), []).append(
                    0.5 if aggregate.q is None else aggregate.q
                )
        return shares

    @staticmethod
    def _values(rows: DataFrame, inner: list[str], column: int) -> DataFrame:
        """Count the rows of each value of a column by `inner`: ``v{column}`` and ``often``, which is 0 for a null."""
        from pyspark.sql import functions as F

        return rows.groupBy(*inner, f"v{column}").agg(F.count(f"v{column}").alias("often"))

    def _output(self, aggregate: Aggregate, sums: list[ExactSum]) -> str:
        if aggregate.argument is None:
            return "rows"
        i = self.arguments.index(aggregate.argument)
        if aggregate.function in ("count", "min", "max"):
            return f"v{i}_{aggregate.function}"
        if aggregate.function in core.RANKED:
            same = [f for f in self.spec.aggregates if f.function in core.RANKED and f.argument == aggregate.argument]
            return f"r{i}[{same.index(aggregate)}]"
        total = next(s for s in sums if s.column == f"v{i}")
        return total.total if aggregate.function == "sum" else total.mean()

    # ------------------------------------------------------------------------------------------------------ repair

    def corrected(self, due: DueRows) -> DataFrame:
        """Answer every touched window after every Gamma batch that touched it, with its error against the first answer.

        Where `run` has published answers again, ``error_at_close`` is that of the last answer of `run`.
        """
        from pyspark.sql import functions as F

        answers, values = self._answered_again(due)
        answers = self._with_error(answers, self._first_answers(due), values, "error")
        if due.revised:
            answers = self._with_error(answers, self._published(due, {"on_time": "true"}), values, "error_at_close")
            # a null says that the error is that of the first answer
            answers = answers.withColumn("error_at_close", F.nanvl("error_at_close", F.lit(float("inf"))))
        return due.numbered(answers, [*self.spec.group_by, "_m"])

    def revised(self, due: DueRows, published: Mapping[str, str]) -> DataFrame | None:
        """Return each answer whose newest published one has an error that is not below the query's, step by step.

        A step may have moved an answer from one that an earlier step of the same micro-batch moved. So the first move
        of every answer is found, then the first since that one: in as many passes as an answer moves, and one more.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        answers, count_values = self._answered_again(due)
        keys, cache = [*self.spec.group_by, "_m"], self.query.cache
        counted = {i: cache.detach(count_values(i)) for i in self._ranked_shares()}
        values = counted.__getitem__
        waiting, newest = cache.detach(answers), self._published(due, published)
        first = Window.partitionBy(*(F.col(quoted(key)) for key in keys)).orderBy("repaired_in")
        moved: list[DataFrame] = []
        while True:
            off = self._with_error(waiting, newest, values, "error").where(F.col("error") >= self.spec.error)
            off = off.withColumn("_nth", F.row_number().over(first)).where("_nth = 1").drop("_nth", "error")
            off = cache.detach(off)
            if off.isEmpty():
                break
            moved.append(off)
            newest = self._as_answers(off)
            since = off.select(*(F.col(quoted(key)) for key in keys), F.col("repaired_in").alias("_last"))
            waiting = cache.detach(join_null_safe(waiting, since, keys).where("repaired_in > _last").drop("_last"))
        if not moved:
            return None
        answers = self._with_error(_together(moved), self._first_answers(due), values, "error")
        return due.numbered(answers, keys)

    def _answered_again(self, due: DueRows) -> tuple[DataFrame, Callable[[int], DataFrame]]:
        """Answer every touched window after every Gamma batch that touched it, and return how its values are counted.

        A row is folded once, into the state of (group, pane, first batch whose answers count it); a window's states
        add up batch by batch. So the cost is that of the rows plus that of the answers, however many batches there
        are.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        assigner, groups = self.assigner, self.query.groups
        wide = assigner.in_windows(due.late, F.col("m_from"), F.col("m_to"))
        missed = self.query.cache.materialize(wide.select(*groups, "_m", "repaired_in").distinct())
        number = F.row_number().over(Window.orderBy("_m", *groups))
        windows = missed.select(*groups, "_m").distinct().withColumn("w", number.cast("bigint"))
        touched = join_null_safe(missed, windows, [*groups, "_m"])
        rows = due.counted_from()
        inner, outer = [*groups, "pane", "repaired_in"], [*groups, "_m", "repaired_in"]

        def spread(partial: DataFrame) -> DataFrame:
            return join_null_safe(assigner.spread(partial, assigner.first_of), windows, [*groups, "_m"])

        def values(column: int) -> DataFrame:
            return spread(self._values(rows, inner, column))

        return self._answered_after_batches(rows, inner, spread, outer, touched), values

    def _first_answers(self, due: DueRows) -> DataFrame:
        """Read the on-time answers of windows that missed rows, as ones to be measured."""
        return self._as_answers(due.written("on_time").where("provenance = 'on_time'"))

    def _published(self, due: DueRows, conditions: Mapping[str, str]) -> DataFrame:
        """Read the newest published answers of windows that missed rows, as ones to be measured.

        `conditions` say in SQL, by table of results, what rows are read.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        lake, keys = self.query.lake, [*self.spec.group_by, "_m"]
        parts = [
            self._as_answers(due.written(area).where(condition), "revision")
            for area, condition in conditions.items()
            if lake.table(area, self.spec.name).exists()
        ]
        newest_first = Window.partitionBy(*(F.col(quoted(key)) for key in keys)).orderBy(F.desc("revision"))
        nth = _together(parts).withColumn("_nth", F.row_number().over(newest_first))
        return nth.where("_nth = 1").drop("_nth", "revision")

    def _as_answers(self, rows: DataFrame, *more: str) -> DataFrame:
        """Return answers as ones to be measured: groups, ``_m``, ``_first_rows``, ``_first_<i>``, and `more`."""
        from pyspark.sql import functions as F

        return rows.select(
            *(F.col(quoted(name)) for name in self.spec.group_by),
            "_m",
            F.col("rows").alias("_first_rows"),
            *(F.col(aggregate.name).alias(f"_first_{i}") for i, aggregate in enumerate(self.spec.aggregates)),
            *more,
        )

    def _with_error(
        self, answers: DataFrame, first: DataFrame, values: Callable[[int], DataFrame], name: str
    ) -> DataFrame:
        """Add the error of earlier answers against `answers`, as a column of that name; infinite where none was."""
        from pyspark.sql import functions as F

        keys = [*self.spec.group_by, "_m"]
        joined = join_null_safe(answers, first, keys, "left")
        kinds = dict(answers.dtypes)
        errors: list[Column] = []
        for i, aggregate in enumerate(self.spec.aggregates):
            first_answer = F.col(f"_first_{i}")
            same = F.col(aggregate.name).eqNullSafe(first_answer)
            if aggregate.function in core.RANKED:
                ranks_off = self._rank_error(first, values, i)
                joined = join_null_safe(joined, ranks_off, [*keys, "repaired_in"], "left")
                # between two of few values, an answer may be at no rank near its own
                errors.append(F.when(same, 0.0).otherwise(F.coalesce(F.col(f"_error_{i}"), F.lit(0.0))))
            elif not is_number(kinds[aggregate.name]):
                errors.append(F.when(same, 0.0).otherwise(F.lit(float("inf"))))
            else:
                errors.append(_relative(first_answer.cast("double"), F.col(aggregate.name).cast("double")))
        worst = F.greatest(*errors) if len(errors) > 1 else errors[0]
        error = F.when(F.col("_first_rows").isNull(), F.lit(float("inf"))).otherwise(worst)
        return joined.select(*(F.col(quoted(column)) for column in answers.columns), error.alias(name))

    def _rank_error(self, first: DataFrame, values: Callable[[int], DataFrame], place: int) -> DataFrame:
        """Measure the distance of the first answer's rank from `q`, as a share of all values: ``_error_<place>``."""
        from pyspark.sql import functions as F

        aggregate = self.spec.aggregates[place]
        assert aggregate.argument is not None
        i, q = self.arguments.index(aggregate.argument), 0.5 if aggregate.q is None else aggregate.q
        keys = [*self.spec.group_by, "_m"]
        valued = values(i).select(
            *(F.col(f"g{k}").alias(name) for k, name in enumerate(self.spec.group_by)),
            "_m", "repaired_in", F.col(f"v{i}").cast("double").alias("_value"), F.col("often").alias("_often"),
        )  # fmt: skip
        answer = F.col(f"_first_{place}")
        both = join_null_safe(valued, first.select(*(F.col(quoted(k)) for k in keys), answer), keys)
        by = [*(F.col(quoted(k)) for k in keys), F.col("repaired_in")]
        often = {"_below": F.col("_value") < answer, "_upto": F.col("_value") <= answer, "_all": F.lit(True)}
        often["_none"] = answer.isNull()
        counts = both.groupBy(*by).agg(
            *(F.sum(F.when(c, F.col("_often")).otherwise(0)).alias(n) for n, c in often.items())
        )
        so_far = _so_far([*map(quoted, keys), "repaired_in"])
        below, upto, every, none = (F.sum(name).over(so_far) for name in often)
        given = F.nullif(every, F.lit(0))  # a batch may bring nulls alone
        off = F.greatest(F.lit(0.0), below / given - q, F.lit(q) - upto / given)
        return counts.select(*by, F.when(none > 0, float("inf")).otherwise(off).alias(f"_error_{place}"))


def _together(parts: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of frames with the same columns."""
    return reduce(lambda rows, more: rows.unionByName(more), parts)


def _so_far(keys: list[str]) -> WindowSpec:
    """Return the Spark window of the rows with the same keys but the last, up to the last key of a row."""
    from pyspark.sql import Window

    *same, last = keys
    return Window.partitionBy(*same).orderBy(last).rowsBetween(Window.unboundedPreceding, Window.currentRow)


def _relative(answer: Column, truth: Column) -> Column:
    from pyspark.sql import functions as F

    off = F.abs(answer - truth) / F.abs(F.when(truth != 0, truth))
    return F.when(answer.eqNullSafe(truth), F.lit(0.0)).otherwise(F.coalesce(off, F.lit(float("inf"))))
