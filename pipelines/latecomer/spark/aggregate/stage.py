"""Aggregates over sliding windows on Spark: panes, partial states, exact answers, measured errors.

A row is folded once, into the partial state of (group, pane, first window it is on time for); only those states, few as they
are, are spread over windows. So a sliding window costs about what a tumbling one does. MEDIAN and QUANTILE have no small
state: their partial state is how often each value occurred, still exact (:mod:`latecomer.spark.aggregate.quantiles`). Sums are independent of row
order (:mod:`latecomer.spark.aggregate.exact_sum`). Where answers are many, as of many groups, the same bits are found with less per answer.

Nulls are ignored, as in SQL; an aggregate without a value is null; ``count()`` counts rows. NaN is greater than every
number and makes sums and means NaN, as in Spark. Controllers: :mod:`latecomer.core.windows.slack_policies`, one per shard of groups.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from latecomer.core.aggregate import coverage as core
from latecomer.core.windows.interfaces import Observed
from latecomer.core.windows.observation import spans_of
from latecomer.spark.aggregate import quantiles
from latecomer.spark.aggregate.exact_sum import ExactSum
from latecomer.spark.aggregate.partial_states import States, with_columns
from latecomer.spark.engine.columns import join_null_safe, named, quoted
from latecomer.spark.engine.query_columns import check_columns, passes, sql
from latecomer.spark.engine.types import is_number
from latecomer.spark.windows.observation import Waited
from latecomer.spark.windows.repair import Due
from latecomer.spark.windows.rows import Closing
from latecomer.spark.windows.stage import WindowedStage
from latecomer.specs import expressions as ex
from latecomer.specs.aggregate import Aggregate, AggregateSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.window import WindowSpec

_CLAMP = repr(2.0**1000)
_PLAIN, _PLAIN_SQUARES = (2.0**-43, 2.0**62), (2.0**-20, 2.0**30)
"""Sizes of values that, with their squares, are summed exactly as they are; others first come between 2^-20 and 2^20 by steps of `_STEP_BITS` bits."""
_STEP_BITS, _MOST_STEPS = 40, 25


class AggregateStage(WindowedStage):
    """``kind: aggregate``; see the module docstring."""

    spec: AggregateSpec
    asked: AggregateSpec

    def check(self) -> None:
        """Columns exist, aggregated values are numbers (``min`` and ``max`` take any plain value, ``count`` anything)."""
        check_columns(self.asked, self.events)

    answer_rows = 1

    @cached_property
    def by_answer(self) -> bool:
        """Is a contribution an answer (what `calibrated` learns from; may be set) or a row (the other controllers)?"""
        return self.spec.strategy.name == "calibrated"

    @cached_property
    def arguments(self) -> list[ex.Expr]:
        """Distinct aggregated expressions; value column ``v{i}`` holds the i-th."""
        return list(dict.fromkeys(each.argument for each in self.spec.aggregates if each.argument is not None))

    @cached_property
    def kinds(self) -> list[str]:
        """Spark types of the value columns."""
        from pyspark.sql import functions as F

        events = self.events[self.sources[0]]
        return [
            kind
            for _, kind in events.select(*(F.expr(sql(a)).alias(f"v{i}") for i, a in enumerate(self.arguments))).dtypes
        ]

    def payload(self, source: int) -> dict[str, str]:
        """Groups ``g{i}``, values ``v{i}``, ``ok``."""
        where = passes(self.spec.where)
        return (
            {f"g{i}": quoted(name) for i, name in enumerate(self.spec.group_by)}
            | {f"v{i}": sql(argument) for i, argument in enumerate(self.arguments)}
            | {"ok": where}
        )

    def shard_sql(self) -> str:
        """Shards are ranges of the groups' hash."""
        if self.shards == 1:
            return "0"
        return f"pmod(xxhash64({', '.join(self.groups)}), {self.shards})"

    # ----------------------------------------------------------------------------------------------------- observe

    def observed(self, waited: Waited, wanted: list[dict[int, tuple[int, int]]]) -> list[dict[int, list[Observed]]]:
        """Windows' rows by wait, as the strategy's controller wants them."""
        cells, thinning = self._cells(waited.rows), waited.thinning
        self.groups_seen = sum(thinning[shard].about(len(np.unique(each.group))) for shard, each in cells.items())
        functions = self.functions
        found: list[dict[int, list[Observed]]] = []
        for shard, asked in enumerate(wanted):
            own, spans = cells.get(shard), spans_of(self.grid, asked)
            if own is None:
                found.append({})
                continue
            if self.by_answer:
                seen = core.required_answers(own, self.grid, spans, functions, self.spec.error, thinning[shard])
            else:
                delta = 1.0 - self.spec.target
                seen = core.required_coverage(own, self.grid, spans, functions, self.spec.error, delta, thinning[shard])
            found.append(dict(zip(asked, seen, strict=True)))
        return found

    @cached_property
    def functions(self) -> list[core.Function]:
        """The query's aggregates by value column."""
        return [
            core.Function(each.function, None if each.argument is None else self.arguments.index(each.argument))
            for each in self.spec.aggregates
        ]

    def _cells(self, rows: DataFrame) -> dict[int, core.Cells]:
        """Per shard, what is needed of the rows, by (group, pane, wait).

        Exact sums are of values within some ninety bits. Others are scaled by a power of two, and what is scaled alike is a cell of
        its own: so the controllers see the same whatever the unit of a column is.
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
            prepared |= {
                f"z{i}": f"case when v{i} is null then null when isnan({value}) then 0D else greatest(least({value}, {_CLAMP}D), -{_CLAMP}D) end"
            }
            if extremes:
                counts |= {f"lo{i}": f"min(z{i})", f"hi{i}": f"max(z{i})"}
            if not summed:
                continue
            size, (least, most) = f"abs(z{i})", _PLAIN if self.by_answer else _PLAIN_SQUARES
            step = f"greatest(least(floor((log2({size}) + {_STEP_BITS // 2}) / {_STEP_BITS}), {_MOST_STEPS}), -{_MOST_STEPS})"
            prepared |= {
                f"j{i}": f"case when {size} >= {most!r}D or ({size} < {least!r}D and z{i} != 0D) then cast({step} as int) end",
                f"s{i}": f"case when j{i} is null then z{i} else z{i} * pow(2D, -{_STEP_BITS} * j{i}) end",
            }
            keys.append(f"j{i}")
            sums = [ExactSum(f"s{i}", "double")]
            if not self.by_answer:
                prepared |= {f"q{i}": f"s{i} * s{i}"}
                sums.append(ExactSum(f"q{i}", "double"))
            for each in sums:
                prepared |= each.prepare()
                counts |= each.partial()
            reduced += sums
        table = with_columns(rows, prepared).groupBy(*keys).agg(*map(F.expr, named(counts)))
        kept = [*keys, "n", *(name for name in counts if name[:1] == "c" or name[:2] in ("lo", "hi"))]
        return self._as_cells(table.selectExpr(*kept, *named({s.column: s.tame_total() for s in reduced})).toArrow())

    def _as_cells(self, table: pa.Table) -> dict[int, core.Cells]:
        columns = len(self.kinds)
        scaled = [name for i in range(columns) if (name := f"j{i}") in table.column_names]
        if any(
            table[name].null_count < table.num_rows for name in scaled
        ):  # cells that differ in nothing else: in one order
            table = table.sort_by([(name, "ascending") for name in scaled])

        def stack(prefix: str, missing: float, steps: int = 0) -> np.ndarray:
            out = np.full((columns, table.num_rows), missing)
            for i in range(columns):
                if f"{prefix}{i}" in table.column_names:
                    out[i] = table[f"{prefix}{i}"].cast(pa.float64()).to_numpy()
                    if steps and table[f"j{i}"].null_count < table.num_rows:
                        with np.errstate(over="ignore"):
                            out[i] = np.ldexp(out[i], steps * _STEP_BITS * table[f"j{i}"].fill_null(0).to_numpy())
            return out

        shard = table["shard"].to_numpy()
        flat = [table[name].to_numpy() for name in ("grp", "pane", "bucket", "n")]
        sums = [stack("s", 0.0, 1), stack("q", 0.0, 2)]
        deep = [stack("c", 0.0), *sums, stack("lo", np.nan), stack("hi", np.nan)]
        found = {}
        for each in np.unique(shard).tolist():
            mine = shard == each
            found[each] = core.Cells(*(a[mine] for a in flat), *(a[:, mine] for a in deep)).ordered()
        return found

    # ----------------------------------------------------------------------------------------------------- answers

    def answers(self, rows: DataFrame, closing: Closing) -> DataFrame:
        """Windows that close, from partial states per (group, pane, first window on time)."""
        from pyspark.sql import functions as F

        inner = [*self.groups, "shard", "pane", "c"]
        windows = F.broadcast(closing.table)
        tame = self.many_answers and self._all_tame(rows)
        if tame and self.tumbling:
            own = self.in_windows(rows, self.open_from("ts"), self.last_of("ts"))
            own = own.where(F.col("_m") <= self._by_shard(closing.after))
            return self._answered_whole(own, [*self.groups, "shard", "_m"]).join(windows, ["shard", "_m"])

        def spread(partial: DataFrame) -> DataFrame:
            return self.spread(partial, self.open_from).join(windows, ["shard", "_m"])

        outer = [*self.groups, "shard", "_m", "closed_seq", "wait_us"]
        return self._answered(self.paned(rows), inner, spread, outer, tame=tame)

    def _all_tame(self, rows: DataFrame) -> bool:
        """Is no summed value of the rows wild? A pass over them, which costs far less than lists of wild values for many answers."""
        from pyspark.sql import functions as F

        wild = [each.is_wild() for each in self._states().sums if each.floating]
        return not wild or not rows.select(F.expr(f"bool_or({' or '.join(wild)})")).collect()[0][0]

    def _states(self, *, tame: bool = False) -> States:
        return States(self.kinds, self.functions, tame)

    def _answered_whole(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        """Answers of rows that are in one window each, and tame: their states by `keys` are the answers."""
        from pyspark.sql import functions as F

        states, picks = self._states(tame=True), dict[str, str]()
        for i, shares in self._ranked_shares().items():
            rows = quantiles.placed(rows, keys, f"v{i}", "1")
            picks |= quantiles.picks(f"v{i}", shares)
        found = states.folded(rows, keys, picks)
        for i, shares in self._ranked_shares().items():
            found = found.withColumn(f"r{i}", F.expr(quantiles.picked(f"v{i}", shares)))
        return self._public(found, keys, states.sums)

    def _answered(
        self,
        rows: DataFrame,
        inner: list[str],
        spread: Callable[[DataFrame], DataFrame],
        outer: list[str],
        *,
        tame: bool,
    ) -> DataFrame:
        """Answers by `outer`: rows are folded by `inner`, and their states merged once they are `spread` over windows."""
        from pyspark.sql import functions as F

        states = self._states(tame=tame)
        found = states.merged(spread(states.folded(rows, inner)), outer)
        for i, shares in self._ranked_shares().items():
            values = spread(self._values(rows, inner, i))
            if self.many_answers:
                own = map(F.expr, named(quantiles.picks(f"v{i}", shares)))
                ranked = quantiles.placed(values, outer, f"v{i}", "often").groupBy(*outer).agg(*own)
                ranked = ranked.select(*outer, F.expr(quantiles.picked(f"v{i}", shares)).alias(f"r{i}"))
            else:
                of_values = F.expr(quantiles.percentiles(f"v{i}", shares, "often"))
                ranked = values.groupBy(*outer).agg(of_values.alias(f"r{i}"))
            found = join_null_safe(found, ranked, outer, "left")
        return self._public(found, outer, states.sums)

    def _answered_after_batches(
        self,
        rows: DataFrame,
        inner: list[str],
        spread: Callable[[DataFrame], DataFrame],
        outer: list[str],
        due: DataFrame,
    ) -> DataFrame:
        """As :meth:`_answered`, where the last key of `outer` is a batch: an answer counts the rows of its batch and of all before.

        `due` has the rows of `outer` that are to be answered, and ``w``, the number of their other keys, which `spread` adds.
        """
        states, batch = self._states(), outer[-1]
        merged = states.merged(spread(states.folded(rows, inner)), outer)
        found = join_null_safe(states.running(merged, outer, _so_far(outer)), due, outer)
        for i, shares in self._ranked_shares().items():
            values = spread(self._values(rows, inner, i))
            counts = values.selectExpr("w", batch, f"cast(v{i} as double) as value", "often").where("often > 0")
            ranked = quantiles.after_batches(counts, due.select("w", batch), batch, shares)
            found = found.join(ranked.withColumnRenamed("r", f"r{i}"), ["w", batch], "left")
        return self._public(found, outer, states.sums)

    def _public(self, found: DataFrame, keys: list[str], sums: list[ExactSum]) -> DataFrame:
        """Answers with the names that users know; of `keys`, what is no group stays beside them."""
        found = with_columns(found, {name: text for each in sums for name, text in each.totals().items()})
        groups = {name: f"g{i}" for i, name in enumerate(self.spec.group_by)}
        answers = {each.name: self._output(each, sums) for each in self.spec.aggregates}
        inner = (name for name in keys if name not in self.groups)
        return found.selectExpr(*named(groups), *named(answers), "rows", "1D as coverage", *inner)

    def _ranked_shares(self) -> dict[int, list[float]]:
        """The quantiles asked for, by value column."""
        found: dict[int, list[float]] = {}
        for each in self.spec.aggregates:
            if each.function in core.RANKED and each.argument is not None:
                found.setdefault(self.arguments.index(each.argument), []).append(0.5 if each.q is None else each.q)
        return found

    @staticmethod
    def _values(rows: DataFrame, inner: list[str], column: int) -> DataFrame:
        """How often each value of a column stands in the rows of each `inner`: ``v{column}``, ``often``; 0 for a null."""
        from pyspark.sql import functions as F

        return rows.groupBy(*inner, f"v{column}").agg(F.count(f"v{column}").alias("often"))

    def _output(self, each: Aggregate, sums: list[ExactSum]) -> str:
        if each.argument is None:
            return "rows"
        i = self.arguments.index(each.argument)
        if each.function in ("count", "min", "max"):
            return f"v{i}_{each.function}"
        if each.function in core.RANKED:
            same = [f for f in self.spec.aggregates if f.function in core.RANKED and f.argument == each.argument]
            return f"r{i}[{same.index(each)}]"
        total = next(s for s in sums if s.column == f"v{i}")
        return total.total if each.function == "sum" else total.mean()

    # ------------------------------------------------------------------------------------------------------ repair

    def corrected(self, due: Due) -> DataFrame:
        """Every touched window after every Gamma batch that touched it, with its error against the first answer.

        A row is folded once, into the state of (group, pane, first batch whose answers count it); a window's states add up batch by
        batch. So the cost is that of the rows plus that of the answers, however many batches there are.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        wide = self.in_windows(due.rows, F.col("m_from"), F.col("m_to"))
        missed = self.cache.materialize(wide.select(*self.groups, "_m", "repaired_in").distinct())
        number = F.row_number().over(Window.orderBy("_m", *self.groups))
        windows = missed.select(*self.groups, "_m").distinct().withColumn("w", number.cast("bigint"))
        touched = join_null_safe(missed, windows, [*self.groups, "_m"])
        rows = self.counted_from(due)
        inner, outer = [*self.groups, "pane", "repaired_in"], [*self.groups, "_m", "repaired_in"]

        def spread(partial: DataFrame) -> DataFrame:
            return join_null_safe(self.spread(partial, self.first_of), windows, [*self.groups, "_m"])

        def values(column: int) -> DataFrame:
            return spread(self._values(rows, inner, column))

        found = self._answered_after_batches(rows, inner, spread, outer, touched)
        return self._with_errors(found, self._first_answers(due), values, due)

    def _first_answers(self, due: Due) -> DataFrame:
        """On-time answers of the windows that missed rows: groups, ``_m``, ``_first_rows``, ``_first_<i>`` per aggregate."""
        from pyspark.sql import functions as F

        return self.written("on_time", due).select(
            *(F.col(quoted(name)) for name in self.spec.group_by),
            "_m",
            F.col("rows").alias("_first_rows"),
            *(F.col(each.name).alias(f"_first_{i}") for i, each in enumerate(self.spec.aggregates)),
        )

    def _with_errors(
        self, found: DataFrame, first: DataFrame, values: Callable[[int], DataFrame], due: Due
    ) -> DataFrame:
        from pyspark.sql import functions as F

        keys = [*self.spec.group_by, "_m"]
        joined = join_null_safe(found, first, keys, "left")
        kinds = dict(found.dtypes)
        errors: list[Column] = []
        for i, each in enumerate(self.spec.aggregates):
            answer = F.col(f"_first_{i}")
            same = F.col(each.name).eqNullSafe(answer)
            if each.function in core.RANKED:
                ranks_off = self._rank_error(first, values, i)
                joined = join_null_safe(joined, ranks_off, [*keys, "repaired_in"], "left")
                # between two of few values, an answer may be at no rank near its own
                errors.append(F.when(same, 0.0).otherwise(F.coalesce(F.col(f"_error_{i}"), F.lit(0.0))))
            elif not is_number(kinds[each.name]):
                errors.append(F.when(same, 0.0).otherwise(F.lit(float("inf"))))
            else:
                errors.append(_relative(answer.cast("double"), F.col(each.name).cast("double")))
        worst = F.greatest(*errors) if len(errors) > 1 else errors[0]
        error = F.when(F.col("_first_rows").isNull(), F.lit(float("inf"))).otherwise(worst)
        numbered = self.numbered(joined.withColumn("error", error), keys, due)
        return numbered.select(*(F.col(quoted(name)) for name in found.columns), "error", "revision")

    def _rank_error(self, first: DataFrame, values: Callable[[int], DataFrame], place: int) -> DataFrame:
        """Column ``_error_<place>``: how far the first answer's rank among all values is from `q`, as a share of the values."""
        from pyspark.sql import functions as F

        each = self.spec.aggregates[place]
        assert each.argument is not None
        i, q = self.arguments.index(each.argument), 0.5 if each.q is None else each.q
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


def _so_far(keys: list[str]) -> WindowSpec:
    """The rows of the same keys but the last, up to a row's own last key, which stands once."""
    from pyspark.sql import Window

    *same, last = keys
    return Window.partitionBy(*same).orderBy(last).rowsBetween(Window.unboundedPreceding, Window.currentRow)


def _relative(answer: Column, truth: Column) -> Column:
    from pyspark.sql import functions as F

    off = F.abs(answer - truth) / F.abs(F.when(truth != 0, truth))
    return F.when(answer.eqNullSafe(truth), F.lit(0.0)).otherwise(F.coalesce(off, F.lit(float("inf"))))
