"""Theta joins over windows on Spark: every window is one task that sorts and takes prefixes, never a nested loop.

Rows of the windows that close are brought together by window, and :class:`latecomer.core.theta_window.WindowJoin` answers each:
rows, a count, or the factorised ranges. A task of ``emit: rows`` with many rows is cut: the first stream's rows into blocks, the
other streams' rows to each block. Nothing is estimated: a window closes `slack` after stream time has reached its end, what comes later is
registered, and `repair` produces the results that late rows add (rows), or the new count or ranges of the windows they changed.

A stream that stands under two aliases plays both parts; a row may then match itself where the conditions allow it (write ``<``
where it should not). Null and NaN never match.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from latecomer.baselines import theta_join as baselines
from latecomer.core.theta_window import RANGES, Operand, WindowJoin
from latecomer.spark.columns import join_null_safe, quoted, refuse_twice
from latecomer.spark.query import check_expressions, sql
from latecomer.spark.windowed import Closing, Due, WindowedStage
from latecomer.specs import expressions as ex
from latecomer.specs.theta_join import ThetaJoinSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BLOCK_ROWS = 1 << 18
"""Rows of a window above which a task of ``emit: rows`` is cut into blocks."""


class ThetaJoinStage(WindowedStage):
    """``kind: theta_join``; see the module docstring."""

    spec: ThetaJoinSpec

    def check(self) -> None:
        """Columns exist, and every condition compares like with like."""
        wanted: list[tuple[str, ex.Expr, str | None]] = [
            (f"conditions[{i}]", ex.Binary(c.op, c.left, c.right), "bool") for i, c in enumerate(self.spec.conditions)
        ]
        wanted += [(f"select[{i}]", item.expr, None) for i, item in enumerate(self.spec.select or ())]
        check_expressions(self.spec, self.events, wanted)
        refuse_twice(self.spec.name, [name for name, _ in self.outputs])

    # ------------------------------------------------------------------------------------------------------- names

    @cached_property
    def aliases(self) -> list[str]:
        """The query's aliases, in its order."""
        return [alias for alias, _ in self.spec.streams]

    @cached_property
    def side_of(self) -> dict[str, int]:
        """Alias -> the source it reads."""
        return {alias: self.sources.index(stream) for alias, stream in self.spec.streams}

    @cached_property
    def outputs(self) -> list[tuple[str, ex.Expr]]:
        """Result columns of ``emit: rows`` after the ``<alias>_seq``s: public name and expression."""
        if self.spec.emit != "rows":
            return []
        seqs = {f"{alias}_seq" for alias in self.aliases}
        if self.spec.select is not None:
            return [(item.name, item.expr) for item in self.spec.select if item.name not in seqs]
        return [
            (f"{alias}_{name}", ex.Column(alias, name))
            for alias, stream in self.spec.streams
            for name in self.events[stream].columns
            if name != "seq"
        ]

    @cached_property
    def carried(self) -> list[list[str]]:
        """Per source, columns that results need."""
        found: list[dict[str, None]] = [{} for _ in self.sources]
        for _, expression in self.outputs:
            for column in sorted(ex.columns(expression), key=lambda c: (c.alias, c.name)):
                found[self.side_of[column.alias]][column.name] = None
        return [list(each) for each in found]

    @cached_property
    def operands(self) -> list[list[ex.Expr]]:
        """Per source, distinct sides of conditions (aliases that read the source share them)."""
        found: list[dict[str, ex.Expr]] = [{} for _ in self.sources]
        for condition in self.spec.conditions:
            for expression, alias in zip((condition.left, condition.right), condition.aliases, strict=True):
                found[self.side_of[alias]].setdefault(sql(expression), expression)
        return [list(each.values()) for each in found]

    def _operand(self, expression: ex.Expr, alias: str) -> Operand:
        side = self.side_of[alias]
        place = [sql(each) for each in self.operands[side]].index(sql(expression))
        return Operand(self.aliases.index(alias), f"s{side}_o{place}")

    def payload(self, source: int) -> dict[str, str]:
        """Operands ``s{i}_o{j}``, carried columns ``s{i}_p{j}``, ``ok``."""
        return (
            {f"s{source}_o{j}": sql(each) for j, each in enumerate(self.operands[source])}
            | {f"s{source}_p{j}": quoted(name) for j, name in enumerate(self.carried[source])}
            | {"ok": "true"}
        )

    @cached_property
    def window_join(self) -> WindowJoin:
        """What a task runs."""
        conditions = tuple(
            (self._operand(c.left, c.aliases[0]), c.op, self._operand(c.right, c.aliases[1]))
            for c in self.spec.conditions
        )
        payload = tuple(
            tuple(f"s{self.side_of[alias]}_p{j}" for j in range(len(self.carried[self.side_of[alias]])))
            for alias in self.aliases
        )
        strategy = self.spec.strategy
        ours = strategy.name in ("fast_theta_join", "spark_sql")
        method = None if ours else getattr(baselines, strategy.name)
        sides = tuple(self.side_of[alias] for alias in self.aliases)
        return WindowJoin(tuple(self.aliases), sides, conditions, payload, method, strategy.partitions)

    # ----------------------------------------------------------------------------------------------------- answers

    def answers(self, rows: DataFrame, closing: Closing) -> DataFrame:
        """Windows that close."""
        from pyspark.sql import functions as F

        wide = self.in_windows(rows, self.open_from("ts"), F.least(self.last_of("ts"), F.lit(closing.after[0])))
        closed = wide.join(F.broadcast(closing.table.drop("shard")), "m").drop("c", "ok", "ts", "shard")
        keys = ["m", "closed_seq", "wait_us"]
        if self.spec.emit == "rows" and self.spec.strategy.name == "spark_sql":
            return self._by_sql(closed, keys)
        return self._solved(closed, keys, None)

    def _solved(self, rows: DataFrame, keys: list[str], new: str | None) -> DataFrame:
        """Answers per key, in Arrow tasks; with `new` (``emit: rows``) only results with a new row."""
        from pyspark.sql import types as T

        if self.spec.emit == "count":
            return self._counted(rows, keys)
        if self.spec.emit == "ranges":
            return self._factorised(rows, keys)
        grouped = self._in_blocks(rows) if self.spec.strategy.name == "fast_theta_join" else rows
        by = [*keys, "block"] if "block" in grouped.columns else keys
        join, kinds = self.window_join, dict(rows.dtypes)
        fields = [(key, kinds[key]) for key in keys]
        for place in range(len(self.aliases)):
            fields.append((f"a{place}_seq", "bigint"))
            fields += [(f"a{place}_{name}", kinds[name]) for name in join.payload[place]]
        fields += [("_new", "bigint")] if new else []
        schema = T.StructType([T.StructField(name, _parsed(kind)) for name, kind in fields])

        def solve(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            table = pa.Table.from_batches(list(batches))
            for found in join.rows(table, new):
                n = found.num_rows
                columns = [pa.repeat(table[key][0], n) for key in keys]
                columns += [found[name.removeprefix("a")] for name, _ in fields[len(keys) :]]
                yield from pa.table(columns, names=[name for name, _ in fields]).combine_chunks().to_batches()

        found = grouped.groupBy(*by).applyInArrow(solve, schema)
        return self._public(found, keys, new)

    def _in_blocks(self, rows: DataFrame) -> DataFrame:
        """Cut the first stream of large windows into blocks; the other streams go to each."""
        from pyspark.sql import functions as F

        if self.spec.emit != "rows" or self.side_of[self.aliases[0]] in [self.side_of[a] for a in self.aliases[1:]]:
            return rows
        most = rows.groupBy("m").count().agg(F.max("count")).collect()[0][0] or 0
        if most <= BLOCK_ROWS:
            return rows
        blocks = min(-(-most // BLOCK_ROWS), 64)
        first = F.col("side") == self.side_of[self.aliases[0]]
        own = F.array(F.pmod(F.col("seq"), F.lit(blocks)))
        every = F.array(*(F.lit(block).cast("bigint") for block in range(blocks)))
        return rows.withColumn("block", F.explode(F.when(first, own).otherwise(every)))

    def _public(self, found: DataFrame, keys: list[str], new: str | None) -> DataFrame:
        from pyspark.sql import functions as F

        def name_of(column: ex.Column) -> str:
            side, place = self.side_of[column.alias], self.aliases.index(column.alias)
            return f"a{place}_s{side}_p{self.carried[side].index(column.name)}"

        seqs = [F.col(f"a{place}_seq").alias(f"{alias}_seq") for place, alias in enumerate(self.aliases)]
        columns = [F.expr(ex.to_spark_sql(expression, name_of)).alias(name) for name, expression in self.outputs]
        return found.select(*seqs, *columns, *keys, *([F.col("_new").alias("repaired_in")] if new else []))

    def _counted(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        join, kinds = self.window_join, dict(rows.dtypes)
        schema = ", ".join(f"{key} {kinds[key]}" for key in keys) + ", matches decimal(38,0)"

        def solve(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from decimal import Decimal

            table = pa.Table.from_batches(list(batches))
            count = pa.array([Decimal(join.count(table))], pa.decimal128(38, 0))
            columns = [pa.repeat(table[key][0], 1) for key in keys]
            yield pa.RecordBatch.from_arrays([*columns, count], names=[*keys, "matches"])

        counted = rows.groupBy(*keys).applyInArrow(solve, schema)
        return counted.selectExpr("try_cast(matches as bigint) as matches", *keys)

    def _factorised(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        join, kinds = self.window_join, dict(rows.dtypes)
        inner = "edge int, part string, near string, far string, seq bigint, position bigint, first bigint, last bigint"
        schema = ", ".join(f"{key} {kinds[key]}" for key in keys) + ", " + inner

        def solve(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            table = pa.Table.from_batches(list(batches))
            found = join.ranges(table)
            columns = [pa.repeat(table[key][0], found.num_rows) for key in keys] + list(found.columns)
            yield from pa.table(columns, names=[*keys, *RANGES.names]).combine_chunks().to_batches()

        found = rows.groupBy(*keys).applyInArrow(solve, schema)
        return found.select(*RANGES.names, *keys)

    def _by_sql(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        """The baseline ``spark_sql``: one join per stream, conditions as written."""
        from pyspark.sql import functions as F

        joined = None
        reached: list[str] = []
        for place, alias in enumerate(self.aliases):
            side = self.side_of[alias]
            own = rows.where(F.col("side") == side).select(
                *(F.col(key).alias(key if place == 0 else f"a{place}_{key}") for key in keys),
                F.col("seq").alias(f"a{place}_seq"),
                *(F.col(c).alias(f"a{place}_{c}") for c in rows.columns if c.startswith(f"s{side}_")),
            )
            reached.append(alias)
            if joined is None:
                joined = own
                continue
            condition: Column = F.col("m") == F.col(f"a{place}_m")
            for c in self.spec.conditions:
                if alias in c.aliases and all(a in reached for a in c.aliases):
                    left, right = (
                        f"a{self.aliases.index(a)}_{self._operand(e, a).column}"
                        for e, a in zip((c.left, c.right), c.aliases, strict=True)
                    )
                    condition = condition & F.expr(
                        _matching(left, c.op, right, dict(rows.dtypes), left.split("_", 1)[1])
                    )
            joined = joined.join(own, condition).drop(*(f"a{place}_{key}" for key in keys))
        assert joined is not None
        return self._public(joined, keys, None)

    # ------------------------------------------------------------------------------------------------------ repair

    def corrected(self, due: Due) -> DataFrame:
        """``rows``: what late rows add, each result with the latest repair of its rows; else the windows' new answers."""
        from pyspark.sql import functions as F

        touched = self.in_windows(due.rows, F.col("m_from"), F.col("m_to"))
        marks = touched.select("m", "seq", "repaired_in")
        stored = self.in_windows(self.stored_in(due), self.first_of("ts"), self.last_of("ts")).drop("ok", "ts", "shard")
        if self.spec.emit == "rows":
            windows = marks.select("m").distinct()
            rows = stored.join(F.broadcast(windows), "m").join(marks, ["m", "seq"], "left")
            return self._solved(
                rows.withColumn("_new", F.coalesce("repaired_in", F.lit(-1))).drop("repaired_in"), ["m"], "_new"
            )
        batches = marks.select("m", "repaired_in").distinct()
        rows = join_null_safe(stored, batches, ["m"], condition=F.col("seq") <= F.col("repaired_in"))
        answers = self._solved(rows, ["m", "repaired_in"], None)
        # an answer may have no rows (ranges), and still is a revision: batches are numbered, not answers
        return answers.join(self.numbered(batches, ["m"], due), ["m", "repaired_in"])


def _parsed(kind: str) -> Any:
    from pyspark.sql.types import _parse_datatype_string

    return _parse_datatype_string(kind)


def _matching(left: str, op: str, right: str, kinds: dict[str, str], column: str) -> str:
    text = f"{left} {op} {right}"
    if kinds.get(column) in ("double", "float"):
        text += f" and not isnan({left}) and not isnan({right})"
    return text
