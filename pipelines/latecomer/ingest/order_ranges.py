"""Divide rows into ranges of the arrival order, so that each range is sorted by itself and its first place is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import TYPE_CHECKING

from latecomer.spark.engine import connect
from latecomer.spark.engine.columns import quoted
from latecomer.spark.engine.types import types_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ORDER = ("_order", "_file", "_row")
"""The columns that order the rows of a call; a null comes last."""
LEAST_ROWS, MOST_ROWS = 250_000, 1_000_000
"""The least rows for which a range is made, about, and the most rows that are sorted together."""
_SAMPLED = 200
"""Rows of a range, about, from whose places in the order its bounds follow."""
_PER_RANGE, _MOST_BOUNDS = 4, 400
"""Narrow ranges of which a range is made, so that ranges become alike; and the most bounds of narrow ranges."""
_PARTITION_BITS = 33
"""Bits of Spark's increasing ids that count the rows of a partition."""

Bounds = Sequence[tuple[str | None, ...]]
"""The first row of each range but the first one: its values of `ORDER` as text, None for a null."""


@dataclass(frozen=True)
class OrderRanges:
    """Ranges of the arrival order, and the number of rows in each."""

    bounds: Bounds
    sizes: Sequence[int]

    def with_seq(self, rows: DataFrame, start: int) -> DataFrame:
        """Return the rows that have these ranges with their ``seq``; each range is sorted in a partition of its own.

        Parameters
        ----------
        start
            The ``seq`` of the first row.
        """
        from pyspark.sql import functions as F

        if self.bounds:
            together = rows.repartitionById(len(self.sizes), range_of(rows, self.bounds))
        else:
            together = rows.coalesce(1)
        numbered = together.sortWithinPartitions(*_order()).withColumn("_place", F.monotonically_increasing_id())
        firsts = list(accumulate(self.sizes[:-1], initial=start))
        first = F.element_at(F.array(*map(F.lit, firsts)), F.shiftright("_place", _PARTITION_BITS).cast("int") + 1)
        place = F.col("_place").bitwiseAND(F.lit((1 << _PARTITION_BITS) - 1))
        return numbered.withColumn("seq", first + place).drop("_place")


def narrow_bounds(rows: DataFrame, most_rows: int) -> Bounds:
    """Return bounds of ranges that are narrow enough to be joined to ranges of like size, from a sample of the rows.

    Parameters
    ----------
    most_rows
        A bound on the number of rows; few rows are one range.
    """
    ranges = _PER_RANGE * _number_of_ranges(rows.sparkSession, most_rows)
    if ranges == _PER_RANGE:
        return []
    sample = rows.select(*ORDER).sample(min(1.0, ranges * _SAMPLED / most_rows), seed=0)
    in_order = sample.repartition(1).sortWithinPartitions(*_order())
    places = [tuple(row) for row in in_order.selectExpr(*(f"cast({name} as string)" for name in ORDER)).collect()]
    ranges = min(ranges, _MOST_BOUNDS + 1)
    return list(dict.fromkeys(places[len(places) * number // ranges] for number in range(1, ranges) if places))


def join_ranges(spark: SparkSession, bounds: Bounds, sizes: Mapping[int, int]) -> OrderRanges:
    """Join neighbouring ranges to ranges of like size; `sizes` has their rows by number."""
    left = sum(sizes.values())
    like_size = left / _number_of_ranges(spark, left)
    firsts, joined = list[tuple[str | None, ...]](), [0]
    for number in range(len(bounds) + 1):
        size = sizes.get(number, 0)
        if number and joined[-1] and joined[-1] + size / 2 > like_size:
            firsts.append(bounds[number - 1])
            joined.append(0)
        joined[-1] += size
    return OrderRanges(firsts, joined)


def _number_of_ranges(spark: SparkSession, rows: int) -> int:
    """Return how many ranges rows are divided into: one a core, as long as they have `LEAST_ROWS`."""
    of_cores = min(connect.parallelism(spark), rows // LEAST_ROWS)
    return max(1, of_cores, -(-rows // MOST_ROWS))


def _order() -> list[Column]:
    from pyspark.sql import functions as F

    return [F.col(ORDER[0]).asc_nulls_last(), *map(F.col, ORDER[1:])]


def range_of(rows: DataFrame, bounds: Bounds) -> Column:
    """Return the number of the range to which a row belongs, by bisection."""
    from pyspark.sql import functions as F

    kinds = types_of(rows)

    def number(first: int, last: int) -> Column:
        if first == last:
            return F.lit(first)
        middle = (first + last) // 2
        below = _is_before(bounds[middle], kinds)
        return F.when(below, number(first, middle)).otherwise(number(middle + 1, last))

    return number(0, len(bounds))


def _is_before(bound: tuple[str | None, ...], kinds: dict[str, str]) -> Column:
    """Return whether a row stands before another one in the order."""
    from pyspark.sql import functions as F

    def is_before(rest: Column, place: tuple[str, str | None]) -> Column:
        name, text = place
        value = F.col(quoted(name))
        if text is None:
            return value.isNotNull() | rest
        at = F.lit(text).cast(kinds[name])
        return F.coalesce((value < at) | ((value == at) & rest), F.lit(False))

    return reduce(is_before, reversed(list(zip(ORDER, bound, strict=True))), F.lit(False))
