"""Theta joins over windows on Spark: a task sorts and takes prefixes, never a nested loop.

Rows of the windows that close are shipped by window, and :class:`latecomer.core.theta_join.window_task.WindowJoin`
answers each: rows, a count, or the factorised ranges. Windows of few rows are counted and joined together, with the
window as an equality, so that many of them cost as much as one window of all their rows; each has its own ranges. A
window of many rows is cut into pieces, each a task of its own: see :mod:`latecomer.spark.theta_join.skew_partitions`.
Event times in the lake say whether a window may be that large, so small windows pay for no job. Ranges are cut for
two streams with two inequalities at most.

A window closes when stream time has passed its end by a constant `slack`, or by the slack that its results are learnt
to require for a recall. A result waits for the last of its rows. These waits are counted as repairs are, by the
growth of the count at each wait, and no result is formed. Rows that come later are registered. `repair`, or a recall,
produces the results that they add (rows), or the new count or ranges of the windows that they changed.

A stream that stands under two aliases plays both parts. A row may then match itself where the conditions allow it;
write ``<`` where it should not. Null and NaN never match.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.baselines import theta_join as baselines
from latecomer.core.theta_join import plan
from latecomer.core.theta_join.window_task import Operand, WindowJoin
from latecomer.core.windows.observation import windows_of
from latecomer.lake import ingest_log
from latecomer.lake.delta import TIMESTAMP
from latecomer.lake.event_scan import Spans, in_spans
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import join_null_safe, quoted, refuse_twice
from latecomer.spark.engine.query_columns import any_passes, of_passing, sql
from latecomer.spark.engine.types import FLOATING, types_of
from latecomer.spark.theta_join import skew_partitions as pieces
from latecomer.spark.theta_join.tasks import Answer, Counts, Increments, Ranges, Rows
from latecomer.spark.windows.due_rows import DueRows
from latecomer.spark.windows.kind import WindowAnswers, WindowKind
from latecomer.spark.windows.lateness import ObservedSpans, ObservedWindows, RowsWithLateness
from latecomer.spark.windows.rows import ClosedWindowTable
from latecomer.specs import expressions as ex
from latecomer.specs.clauses import ENVELOPE, INNER
from latecomer.specs.theta_join import ThetaJoinSpec
from latecomer.specs.windows import WINDOW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LINEAR_FACTOR = 4
"""A window is cut at so many times the rows where no result row is formed."""
WAIT_BITS = 3
"""Leading bits of a wait that are kept with three streams and more, where each wait is a count of its own: it is
rounded up by a quarter at most."""
_REST = f"greatest(length(bin(_wait)) - {WAIT_BITS}, 0)"
_LEVEL = f"if(_wait < 0L, _wait, shiftleft(shiftright(_wait + shiftleft(1L, {_REST}) - 1L, {_REST}), {_REST}))"
"""SQL of a wait in granules that is rounded up to `WAIT_BITS`, as `_levels` rounds."""
_POWERS = np.int64(1) << np.arange(63)
GROWS = 2
"""Repair batches from which on a count is added up from its growth by batch, of rows that are shipped once."""


class ThetaJoinWindows(WindowKind[ThetaJoinSpec]):
    """The windows of ``kind: theta_join``; see the module docstring."""

    counts_results = True

    def check(self) -> None:
        """Refuse columns that do not exist, conditions that compare unlike values, and names that occur twice."""
        super().check()
        refuse_twice(self.query.asked, [name for name, _ in self.outputs], (*ENVELOPE, *INNER, *WINDOW))

    # ------------------------------------------------------------------------------------------------------- names

    @cached_property
    def aliases(self) -> list[str]:
        """The aliases of the query, in its order."""
        return [alias for alias, _ in self.spec.streams]

    @cached_property
    def side_of(self) -> dict[str, int]:
        """The source that each alias reads."""
        return {alias: self.query.sources.index(stream) for alias, stream in self.spec.streams}

    @cached_property
    def outputs(self) -> list[tuple[str, ex.Expr]]:
        """Result columns of ``emit: rows`` after the columns ``<alias>_seq``: public name and expression."""
        if self.spec.emit != "rows":
            return []
        seqs = {f"{alias}_seq" for alias in self.aliases}
        if self.spec.select is not None:
            return [(item.name, item.expr) for item in self.spec.select if item.name not in seqs]
        columns = {stream: rows.columns for stream, rows in self.query.events.items()}
        return [(name, ex.Column(alias, column)) for name, alias, column in self.spec.default_columns(columns)]

    @cached_property
    def carried(self) -> list[list[str]]:
        """The columns that results need, per source."""
        names_of: list[dict[str, None]] = [{} for _ in self.query.sources]
        for _, expression in self.outputs:
            for column in sorted(ex.columns(expression), key=lambda c: (c.alias, c.name)):
                names_of[self.side_of[column.alias]][column.name] = None
        return [list(names) for names in names_of]

    @cached_property
    def operands(self) -> list[list[str]]:
        """The SQL of distinct sides of conditions, per source; aliases of the same rows of a source share them."""
        texts_of: list[dict[str, None]] = [{} for _ in self.query.sources]
        for condition in self.spec.conditions:
            for expression, alias in zip((condition.left, condition.right), condition.aliases, strict=True):
                texts_of[self.side_of[alias]][self._operand_sql(expression, alias)] = None
        return [list(texts) for texts in texts_of]

    def _operand_sql(self, expression: ex.Expr, alias: str) -> str:
        """Return the SQL of a side of a condition; null, which matches nothing, for rows that `where` leaves out."""
        return of_passing(self.spec.filter_on(alias), sql(expression))

    def _operand(self, expression: ex.Expr, alias: str) -> Operand:
        side = self.side_of[alias]
        place = self.operands[side].index(self._operand_sql(expression, alias))
        return Operand(self.aliases.index(alias), f"s{side}_o{place}")

    def payload(self, source: int) -> dict[str, str]:
        """Return operands ``s{i}_o{j}``, carried columns ``s{i}_p{j}`` and ``ok``."""
        operands = {f"s{source}_o{j}": text for j, text in enumerate(self.operands[source])}
        carried = {f"s{source}_p{j}": quoted(name) for j, name in enumerate(self.carried[source])}
        filters = [self.spec.filter_on(alias) for alias in self.aliases if self.side_of[alias] == source]
        return operands | carried | {"ok": any_passes(filters)}

    @cached_property
    def window_join(self) -> WindowJoin:
        """The join of one window, which a task runs."""
        conditions = tuple(
            (self._operand(c.left, c.aliases[0]), c.op, self._operand(c.right, c.aliases[1]))
            for c in self.spec.conditions
        )
        payload = tuple(
            tuple(f"s{self.side_of[alias]}_p{j}" for j in range(len(self.carried[self.side_of[alias]])))
            for alias in self.aliases
        )
        strategy = self.spec.strategy
        sorted_prefixes = strategy.name in ("fast_theta_join", "spark_sql")
        method = None if sorted_prefixes else getattr(baselines, strategy.name)
        sides = tuple(self.side_of[alias] for alias in self.aliases)
        return WindowJoin(tuple(self.aliases), sides, conditions, payload, method, strategy.partitions)

    # ----------------------------------------------------------------------------------------------------- observe

    def observed(self, rows: RowsWithLateness, spans: ObservedSpans, *, per_answer: bool = False) -> ObservedWindows:
        """Count the results of windows by the wait of the last of their rows."""
        from pyspark.sql import functions as F

        observations = rows.observations(spans[0])
        wide = self.assigner.in_windows(rows.rows, self.assigner.first_of("ts"), self.assigner.last_of("ts"))
        rounds = len(self.aliases) > 2
        new = F.least(F.expr(_LEVEL), "_until") if rounds else F.col("_wait")
        wide = observations.known(wide, until=rounds).withColumn("_new", new)
        windows = [(int(rows.windows[0]), int(rows.windows[-1]))] if len(rows.windows) else []
        growth = self._growth(wide, ["_m"], windows)
        sums = growth.groupBy("_m", F.col("_new").alias("_wait")).agg(F.sum("matches").alias("results"))
        return observations.observed(sums.toArrow(), _levels if rounds else None)

    def _growth(self, wide: DataFrame, keys: list[str], spans: Spans) -> DataFrame:
        """Count by how much each value of ``_new`` made the results of a window grow; no result is formed."""
        operands = [f"s{side}_o{place}" for side, texts in enumerate(self.operands) for place, _ in enumerate(texts)]
        wide = wide.select("seq", "side", *operands, *keys, "_new")
        answer = Increments(replace(self.window_join, method=None), keys, types_of(wide), "_new")
        bound = plan.PIECE_ROWS * LINEAR_FACTOR
        return self._found(wide, answer, pieces.hot(wide, keys, answer.join, self._crowded(spans, bound), bound))

    # ----------------------------------------------------------------------------------------------------- answers

    def answers(self, rows: DataFrame, closed: ClosedWindowTable, *, many_answers: bool = False) -> WindowAnswers:
        """Answer closed windows by a join of each."""
        from pyspark.sql import functions as F

        assigner = self.assigner
        wide = assigner.in_windows(rows, assigner.open_from("ts"), assigner.last_of("ts"))
        wide = wide.join(F.broadcast(closed.rows.drop("shard")), "_m").drop("c", "ok", "ts", "shard")
        keys = ["_m", "closed_seq", "wait_us"]
        if self.spec.emit == "rows" and self.spec.strategy.name == "spark_sql":
            return WindowAnswers(self._by_sql(wide, keys))
        return WindowAnswers(self._solved(wide, keys, None, self._cut([(closed.first, max(closed.after))])))

    @property
    def _bound(self) -> int:
        """Most rows of a window that is not cut; more for counts and ranges, which cost less than shipping."""
        return plan.PIECE_ROWS * (1 if self.spec.emit == "rows" else LINEAR_FACTOR)

    def _cut(self, spans: Spans) -> list[int]:
        """Return the windows of some ranges of numbers that may have so many rows that they are to be cut."""
        if self.spec.strategy.name != "fast_theta_join" or (
            self.spec.emit == "ranges" and not self.window_join.ranges_can_unite
        ):
            return []
        return self._crowded(spans, self._bound)

    def _crowded(self, spans: Spans, bound: int) -> list[int]:
        """Return the windows of some ranges of numbers that may have more rows than a bound, with late rows."""
        grid = self.query.grid
        times = [(first * grid.slide_us, grid.end(last) - 1) for first, last in spans]
        panes: list[np.ndarray] = []
        rows: list[np.ndarray] = []
        for stream in self.query.sources:
            table = ingest_log.open_events(self.query.lake, stream)
            if table is None:
                continue
            inside = in_spans("event_ts", times, TIMESTAMP)
            data = table.to_pyarrow_dataset()
            for part in data.scanner(columns=["event_ts"], filter=inside).to_batches():
                event_times = part["event_ts"].drop_null().cast(pa.int64()).to_numpy()
                pane, count = np.unique(event_times // grid.pane_us, return_counts=True)
                panes.append(pane)
                rows.append(count)
        if sum(int(counts.sum()) for counts in rows) <= bound:
            return []
        pane = np.concatenate(panes)
        order = np.argsort(pane, kind="stable")
        start, sums = pane[order] * grid.pane_us, np.cumsum([0, *np.concatenate(rows)[order]])
        numbers = windows_of(grid, np.unique(pane))
        begin = numbers * grid.slide_us
        low, high = (np.searchsorted(start, limit) for limit in (begin, begin + grid.size_us))
        in_range = np.any([(first <= numbers) & (numbers <= last) for first, last in spans], axis=0)
        return [int(number) for number in numbers[(sums[high] - sums[low] > bound) & in_range]]

    def _solved(self, rows: DataFrame, keys: list[str], new: str | None, crowded: list[int]) -> DataFrame:
        """Answer the rows of each key, in Arrow tasks; windows in `crowded` may be cut.

        With `new`, a column of -1 for old rows, ``emit: rows`` gives only results with a new row. ``emit: count``
        gives by how much each value of the column made the count grow, ``_new`` and ``matches``, in parts that add up
        and are not 0.
        """
        answer = self._answer(keys, types_of(rows), new)
        hot = pieces.hot(rows, keys, answer.join, crowded, self._bound)
        answers = self._found(rows, answer, hot)
        if isinstance(answer, Rows):
            return self._public(answers, keys, new)
        if isinstance(answer, Counts):
            answers = self._counted(answers, keys, hot)
        return answers.select(*(name for name, _ in answer.columns), *keys)

    @staticmethod
    def _found(rows: DataFrame, answer: Answer, hot: pieces.Hot | None) -> DataFrame:
        """Answer the rows of each of `answer.keys` in Arrow tasks; a piece of a cut window is a task of its own."""
        keys, schema = answer.keys, answer.schema
        if hot is None:
            return rows.repartition(*keys).sortWithinPartitions(*keys).mapInArrow(answer.of_windows, schema)
        return pieces.shipped(rows, keys, answer.join, hot).mapInArrow(answer.of_pieces, schema)

    def _answer(self, keys: list[str], kinds: dict[str, str], new: str | None) -> Answer:
        if self.spec.emit == "rows":
            return Rows(self.window_join, keys, kinds, new)
        if self.spec.emit == "ranges":
            return Ranges(self.window_join, keys, kinds)
        return Increments(self.window_join, keys, kinds, new) if new else Counts(self.window_join, keys, kinds)

    def _counted(self, counts: DataFrame, keys: list[str], hot: pieces.Hot | None) -> DataFrame:
        """Add up the counts of pieces to those of their windows; null where 64 bits have no room for one."""
        from pyspark.sql import functions as F

        if hot is not None:  # a cut window may have no piece with a row
            none = [F.col(f"_k{i}").alias(key) for i, key in enumerate(keys)]
            windows = tables.to_spark(self.query.spark, hot.table.select([f"_k{i}" for i, _ in enumerate(keys)]))
            zeros = windows.select(*none, F.lit(0).cast("decimal(38,0)").alias("matches"))
            counts = counts.unionByName(zeros).groupBy(*keys).agg(F.sum("matches").alias("matches"))
        return counts.selectExpr("try_cast(matches as bigint) as matches", *keys)

    def _public(self, results: DataFrame, keys: list[str], new: str | None) -> DataFrame:
        from pyspark.sql import functions as F

        def name_of(column: ex.Column) -> str:
            side, place = self.side_of[column.alias], self.aliases.index(column.alias)
            return f"a{place}_s{side}_p{self.carried[side].index(column.name)}"

        seqs = [F.col(f"a{place}_seq").alias(f"{alias}_seq") for place, alias in enumerate(self.aliases)]
        columns = [F.expr(ex.to_spark_sql(expression, name_of)).alias(name) for name, expression in self.outputs]
        return results.select(*seqs, *columns, *keys, *([F.col("_new").alias("repaired_in")] if new else []))

    def _by_sql(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        """Answer as the baseline ``spark_sql``: one join per stream, conditions as written."""
        from pyspark.sql import functions as F

        joined = None
        reached: list[str] = []
        kinds = dict(rows.dtypes)
        for place, alias in enumerate(self.aliases):
            side = self.side_of[alias]
            of_alias = rows.where(F.col("side") == side).select(
                *(F.col(key).alias(key if place == 0 else f"a{place}_{key}") for key in keys),
                F.col("seq").alias(f"a{place}_seq"),
                *(F.col(c).alias(f"a{place}_{c}") for c in rows.columns if c.startswith(f"s{side}_")),
            )
            reached.append(alias)
            if joined is None:
                joined = of_alias
                continue
            condition: Column = F.col("_m") == F.col(f"a{place}__m")
            for c in self.spec.conditions:
                if alias in c.aliases and all(a in reached for a in c.aliases):
                    columns = {a: self._operand(e, a).column for e, a in zip((c.left, c.right), c.aliases, strict=True)}
                    operands = {f"a{self.aliases.index(a)}_{name}": kinds[name] for a, name in columns.items()}
                    condition = condition & F.expr(_matching(c.op, operands))
            joined = joined.join(of_alias, condition).drop(*(f"a{place}_{key}" for key in keys))
        assert joined is not None
        return self._public(joined, keys, None)

    # ------------------------------------------------------------------------------------------------------ repair

    def corrected(self, due: DueRows) -> DataFrame:
        """Return the results that late rows add, each with the latest repair of its rows; or new counts or ranges."""
        from pyspark.sql import functions as F

        assigner = self.assigner
        marks = self._marks(due)
        crowded = self._cut(due.spans)
        stored = assigner.in_windows(due.stored(), assigner.first_of("ts"), assigner.last_of("ts"))
        stored = stored.drop("ok", "ts", "shard")
        batches = marks.select("_m", "repaired_in").distinct()
        grows = self.spec.emit == "count" and len(due.closes) >= GROWS
        if self.spec.emit == "rows" or grows:
            results = self._solved(self._marked(stored, marks), ["_m"], "_new", crowded)
            return due.numbered(self._summed(results, batches), ["_m"]) if grows else results
        rows = join_null_safe(stored, batches, ["_m"], condition=F.col("seq") <= F.col("repaired_in"))
        # An answer without rows (ranges) leaves no trace, so it is no revision: else the number of repairs would show.
        return due.numbered(self._solved(rows, ["_m", "repaired_in"], None, crowded), ["_m"])

    def added(self, due: DueRows) -> DataFrame:
        """Count the results that late rows add."""
        from pyspark.sql import functions as F

        assigner = self.assigner
        stored = assigner.in_windows(due.stored(), assigner.first_of("ts"), assigner.last_of("ts"))
        growth = self._growth(self._marked(stored, self._marks(due)), ["_m"], due.spans).where("_new >= 0")
        return growth.groupBy("_m", F.col("_new").alias("repaired_in")).agg(F.sum("matches").alias("results"))

    def _marks(self, due: DueRows) -> DataFrame:
        """Return the windows that missed each late row: ``_m``, ``seq`` and ``repaired_in``."""
        from pyspark.sql import functions as F

        touched = self.assigner.in_windows(due.late, F.col("m_from"), F.col("m_to"))
        return touched.select("_m", "seq", "repaired_in")

    @staticmethod
    def _marked(stored: DataFrame, marks: DataFrame) -> DataFrame:
        """Return the rows of windows that missed some, with ``_new``: the repair of a late row, -1 for others."""
        from pyspark.sql import functions as F

        windows = marks.select("_m").distinct()
        rows = stored.join(F.broadcast(windows), "_m").join(marks, ["_m", "seq"], "left")
        return rows.withColumn("_new", F.coalesce("repaired_in", F.lit(-1))).drop("repaired_in")

    @staticmethod
    def _summed(grown: DataFrame, batches: DataFrame) -> DataFrame:
        """Return the counts of windows after each of their repair batches, from the growth by batch (-1: before)."""
        from pyspark.sql import functions as F

        zero = F.lit(0).cast("decimal(38,0)").alias("matches")
        zeros = batches.select(zero, F.col("repaired_in").alias("_new"), "_m")
        sums = grown.unionByName(zeros).groupBy("_m", "_new").agg(F.sum("matches").alias("s"))
        after = "sum(s) over (partition by _m order by _new rows between unbounded preceding and current row)"
        known = sums.withColumn("s", F.expr(after)).where("_new >= 0")
        return known.selectExpr("try_cast(s as bigint) as matches", "_m", "_new as repaired_in")


def _levels(wait: NDArray[np.int64]) -> NDArray[np.int64]:
    """Round waits in granules up to `WAIT_BITS`; those in time are -1."""
    rest = np.maximum(np.searchsorted(_POWERS, wait, "right") - WAIT_BITS, 0)
    return np.where(wait < 0, wait, ((wait + (np.int64(1) << rest) - 1) >> rest) << rest)


def _matching(op: str, operands: dict[str, str]) -> str:
    """Return the SQL of a condition on two operands (name to type); NaN matches nothing, unlike in Spark."""
    numbers = (f" and not isnan({name})" for name, kind in operands.items() if kind in FLOATING)
    return f" {op} ".join(operands) + "".join(numbers)
