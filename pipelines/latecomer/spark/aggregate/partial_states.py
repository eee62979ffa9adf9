"""Partial states of aggregates, in SQL: fold rows into states, merge states, and add them up over batches.

Value column ``v{i}`` is the i-th aggregated expression. The states of counts, extremes and sums are a few columns. The
states of quantiles are not here: they are the number of rows of each value
(:mod:`latecomer.spark.aggregate.quantiles`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from latecomer.core.aggregate.coverage import Function
from latecomer.spark.aggregate.exact_sum import ExactSum
from latecomer.spark.engine.columns import named
from latecomer.spark.engine.types import FLOATING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.window import WindowSpec


@dataclass(frozen=True)
class States:
    """The states of one query's aggregates.

    Parameters
    ----------
    kinds
        Spark types of the value columns.
    functions
        The aggregates, by value column.
    tame
        No summed value is known to be wild (:class:`latecomer.spark.aggregate.exact_sum.ExactSum`).
    """

    kinds: Sequence[str]
    functions: Sequence[Function]
    tame: bool = False

    def reads(self, column: int, *names: str) -> bool:
        """Return whether one of the named aggregates reads a value column."""
        return any(function.column == column and function.name in names for function in self.functions)

    @cached_property
    def sums(self) -> list[ExactSum]:
        """The exact sums of the columns that are summed."""
        return [ExactSum(f"v{i}", kind, self.tame) for i, kind in enumerate(self.kinds) if self.reads(i, "sum", "avg")]

    @cached_property
    def _counts(self) -> tuple[dict[str, str], dict[str, str]]:
        """The aggregates of counts and extremes: over rows, and over states."""
        partial, merge = {"rows": "count(*)"}, {"rows": "sum(rows)"}
        for i, kind in enumerate(self.kinds):
            if self.reads(i, "count"):
                partial[f"v{i}_count"], merge[f"v{i}_count"] = f"count(v{i})", f"sum(v{i}_count)"
            value = f"v{i} + cast(0 as {kind})" if kind in FLOATING else f"v{i}"  # the two zeros are one
            for name in ("min", "max"):
                if self.reads(i, name):
                    partial[f"v{i}_{name}"], merge[f"v{i}_{name}"] = f"{name}({value})", f"{name}(v{i}_{name})"
        return partial, merge

    def folded(self, rows: DataFrame, keys: list[str], more: Mapping[str, str] | None = None) -> DataFrame:
        """Fold rows by `keys` into states: one of a key, or several where values are wild.

        `more` are further aggregates, name to SQL.
        """
        from pyspark.sql import functions as F

        partial = dict(self._counts[0])
        prepared: dict[str, str] = {}
        for total in self.sums:
            prepared |= total.prepare()
            partial |= total.partial()
        by = [*keys, *(total.wild for total in self.sums if total.may_be_wild)]
        return with_columns(rows, prepared).groupBy(*by).agg(*map(F.expr, named({**partial, **(more or {})})))

    def merged(self, states: DataFrame, keys: list[str]) -> DataFrame:
        """Merge states by `keys` into one of each."""
        from pyspark.sql import functions as F

        merge = dict(self._counts[1])
        for total in self.sums:
            merge |= total.merge()
        return states.groupBy(*keys).agg(*map(F.expr, named(merge)))

    def running(self, merged: DataFrame, keys: list[str], window: WindowSpec) -> DataFrame:
        """Add to every merged state those before it in the `window`."""
        from pyspark.sql import functions as F

        columns: dict[str, Column] = {name: F.expr(how).over(window) for name, how in self._counts[1].items()}
        for total in self.sums:
            columns |= total.running(window)
        return merged.select(*keys, *(value.alias(name) for name, value in columns.items()))


def with_columns(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Add columns, which may read those before them: one select per step of reading, however many columns there are."""
    step: dict[str, int] = {}
    for name, text in columns.items():
        step[name] = 1 + max((step.get(word, 0) for word in re.findall(r"\w+", text)), default=0)
    for number in range(1, max(step.values(), default=0) + 1):
        rows = rows.selectExpr("*", *named({name: text for name, text in columns.items() if step[name] == number}))
    return rows
