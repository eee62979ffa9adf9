"""Membership on Spark: which elements occur in every stream.

An element is published once. Late rows of a window can only add elements, each at the repair, or the recall, that made
it complete.
Null and NaN are no elements. With one `window` for all streams, an element has to occur in the same window of each;
with a window per stream see :func:`latecomer.baselines.membership.multi_cuckoo.windows_touched`. Strategy ``exact``
is a plain semi-join, the others are :mod:`latecomer.spark.membership.semi_join`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from latecomer.core.windows.grid import Grid
from latecomer.spark.engine.columns import as_column, ceil_div, floor_to, greatest
from latecomer.spark.engine.decimals import digits_of
from latecomer.spark.engine.query_columns import of_passing, sql, type_inside
from latecomer.spark.engine.types import FLOATING, WHOLE
from latecomer.spark.membership.semi_join import FilterCounts, FilterSemiJoin
from latecomer.spark.windows.assigner import WindowAssigner
from latecomer.spark.windows.due_rows import DueRows
from latecomer.spark.windows.kind import WindowAnswers, WindowKind
from latecomer.spark.windows.lateness import ObservedSpans, ObservedWindows, RowsWithLateness
from latecomer.spark.windows.query import WindowQuery
from latecomer.spark.windows.rows import ClosedWindowTable
from latecomer.specs.membership import MembershipSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


class StreamWindows(WindowAssigner):
    """Assigns rows to windows of the first stream, where other streams may have windows of their own.

    Parameters
    ----------
    grid
        The windows of the first stream.
    windows
        The windows of every stream of the query.
    side_of
        The source that each of these streams reads.
    """

    def __init__(self, grid: Grid, windows: Sequence[Grid], side_of: Sequence[int]) -> None:
        self._windows, self._side_of = windows, side_of
        self._alike = len(set(windows)) == 1
        # rows of a stream with windows of its own may lie before the window that they belong to
        super().__init__(grid, 0 if self._alike else max(window.size_us + window.slide_us for window in windows))

    def first_of(self, time: Any, side: Any = "side") -> Any:
        """Return the number of the first window of the first stream that a row belongs to."""
        return super().first_of(time, side) if self._alike else self._by_side(time, side, 0)

    def last_of(self, time: Any, side: Any = "side") -> Any:
        """Return the number of the last window of the first stream that a row belongs to."""
        return super().last_of(time, side) if self._alike else self._by_side(time, side, 1)

    def _by_side(self, time: Any, side: Any, end: int) -> Any:
        """Return the first (0) or last (1) window, over all streams of the query that read the source of a row."""
        from pyspark.sql import functions as F

        time = as_column(time)
        edges = []
        for source in range(max(self._side_of) + 1):
            places = [place for place, read in enumerate(self._side_of) if read == source]
            ends = [self.span(place, time)[end] for place in places]
            edges.append(greatest(*ends) if end else -greatest(*(-edge for edge in ends)))
        if isinstance(time, np.ndarray):
            return np.select([side == source for source in range(len(edges))], edges)
        number = edges[0]
        for source, edge in enumerate(edges[1:], 1):
            number = F.when(F.col(side) == source, edge).otherwise(number)
        return number

    def span(self, place: int, time: Any) -> tuple[Any, Any]:
        """Return the first and last window of the first stream for which a row of stream `place` counts.

        These are the windows that hold the row, if the stream has the windows of the first.
        """
        window = self._windows[place]
        if window == self._windows[0]:
            return super().first_of(time), super().last_of(time)
        size, slide = self.grid.size_us, self.grid.slide_us
        first_end = floor_to(time - window.size_us, window.slide_us) + window.slide_us + window.size_us
        last_end = floor_to(time, window.slide_us) + window.size_us
        first = ceil_div(first_end - size, slide)
        touched = ceil_div(last_end, slide) - 1
        following = ceil_div(last_end + window.slide_us - size, slide) - 1
        return first, greatest(touched, following)


class MembershipWindows(WindowKind[MembershipSpec]):
    """The windows of ``kind: membership``; see the module docstring."""

    counts_results = True
    assigner: StreamWindows

    def __init__(self, query: WindowQuery[MembershipSpec]) -> None:
        self.side_of = [query.sources.index(stream) for _, stream in query.spec.streams]
        super().__init__(query, StreamWindows(query.grid, query.spec.windows, self.side_of))

    @cached_property
    def element_type(self) -> str:
        """The Spark type in which elements are compared and published."""
        kinds = {
            type_inside(self.query.events[stream].schema, column)
            for (_, stream), column in zip(self.spec.streams, self.spec.elements, strict=True)
        }
        if len(kinds) == 1 and not (kinds & {"float"}):
            (only,) = kinds
            return "bigint" if only in WHOLE else only
        if kinds <= set(WHOLE):
            return "bigint"
        if kinds <= {"timestamp", "timestamp_ntz"}:
            return "timestamp"
        return "double" if kinds & set(FLOATING) else _common_decimal(kinds)

    def payload(self, source: int) -> dict[str, str]:
        """Return elements ``e{place}`` of the streams that read the source, and ``ok``."""
        floating = self.element_type == "double"
        element = "nullif(try_cast({} as double), double('NaN'))" if floating else "try_cast({} as {})"
        elements = {
            f"e{place}": of_passing(self.spec.filter_on(column.alias), element.format(sql(column), self.element_type))
            for place, column in enumerate(self.spec.elements)
            if self.side_of[place] == source
        }
        some = " or ".join(f"({text}) is not null" for text in elements.values())
        return elements | {"ok": some}

    # ----------------------------------------------------------------------------------------------------- observe

    def observed(self, rows: RowsWithLateness, spans: ObservedSpans, *, per_answer: bool = False) -> ObservedWindows:
        """Count the elements of windows by the wait of the stream in which they came last; that needs no filters."""
        from pyspark.sql import functions as F

        observations = rows.observations(spans[0])
        places = range(len(self.side_of))
        every = None
        for place in places:
            role = observations.known(self._role(rows.rows, place, None, None))
            role = role.select("_m", "element", F.lit(place).alias("place"), "_wait")
            every = role if every is None else every.unionByName(role)
        assert every is not None
        firsts = [F.min(F.when(F.col("place") == place, F.col("_wait"))).alias(f"w{place}") for place in places]
        complete = every.groupBy("_m", "element").agg(*firsts).na.drop()
        last = complete.select("_m", F.array_max(F.array(*(f"w{place}" for place in places))).alias("_wait"))
        return observations.observed(last.groupBy("_m", "_wait").agg(F.count("*").alias("results")).toArrow())

    # ----------------------------------------------------------------------------------------------------- answers

    def _role(self, rows: DataFrame, place: int, first: Column | None, last: Column | None) -> DataFrame:
        """Return the rows of a stream by window, with ``_m`` and ``element``; `first` and `last` bound the windows."""
        from pyspark.sql import functions as F

        rows = rows.where(F.col("side") == self.side_of[place]).withColumn("element", F.col(f"e{place}"))
        rows = rows.where(F.col("element").isNotNull())
        low, high = self.assigner.span(place, F.col("ts"))
        low = low if first is None else F.greatest(low, first)
        high = high if last is None else F.least(high, last)
        return self.assigner.in_windows(rows, low, high)

    def answers(self, rows: DataFrame, closed: ClosedWindowTable, *, many_answers: bool = False) -> WindowAnswers:
        """Find the elements of closed windows, and what the filters cost per period."""
        from pyspark.sql import functions as F

        last = F.lit(closed.after[0])
        windows = closed.rows.drop("shard")
        roles = [
            self._role(rows, place, self.assigner.open_from("ts"), last)
            .join(F.broadcast(windows.select("_m")), "_m")
            .select("_m", "element")
            for place in range(len(self.side_of))
        ]
        counts = FilterCounts()
        if self.spec.strategy.name == "exact":
            elements = roles[0].distinct()
            for role in roles[1:]:
                elements = elements.join(role, ["_m", "element"], "left_semi")
        else:
            join = FilterSemiJoin(self.spec, self.element_type, self.query.spark, self.query.cache)
            elements, counts = join.confirmed(roles)
        elements = elements.join(F.broadcast(windows), "_m").select("element", "_m", "closed_seq", "wait_us")
        return WindowAnswers(elements, self._by_period(counts))

    def _by_period(self, counts: FilterCounts) -> dict[int, dict[str, int]]:
        """Add up the figures of windows by the period (us) that holds their last microsecond."""
        by_period = FilterCounts()
        for window, sums in counts.by_window.items():
            last_us = self.query.grid.end(window) - 1
            by_period.add(last_us - last_us % self.spec.period_us, sums)
        return by_period.by_window

    # ------------------------------------------------------------------------------------------------------ repair

    def corrected(self, due: DueRows) -> DataFrame:
        """Return the elements that late rows complete, each at the Gamma batch that did."""
        from pyspark.sql import functions as F

        places = range(len(self.side_of))
        late = [
            self._role(due.late, p, F.col("m_from"), F.col("m_to")).select("_m", "element", "seq", "repaired_in")
            for p in places
        ]
        keys = late[0].select("_m", "element")
        for part in late[1:]:
            keys = keys.unionByName(part.select("_m", "element"))
        keys = self.query.cache.materialize(keys.distinct())
        stored = due.stored()
        complete_from = None
        for place in places:
            role = self._role(stored, place, None, None).select("_m", "element", "seq")
            role = role.join(keys, ["_m", "element"], "left_semi")
            marked = role.join(late[place], ["_m", "element", "seq"], "left")
            since = marked.groupBy("_m", "element").agg(F.min(F.coalesce("repaired_in", F.lit(-1))).alias(f"c{place}"))
            complete_from = since if complete_from is None else complete_from.join(since, ["_m", "element"])
        assert complete_from is not None
        when = F.greatest(*(f"c{place}" for place in places))
        complete = complete_from.withColumn("repaired_in", when).where(F.col("repaired_in") >= 0)
        return complete.select("element", "_m", "repaired_in")

    def added(self, due: DueRows) -> DataFrame:
        """Count the elements that late rows complete."""
        from pyspark.sql import functions as F

        return self.corrected(due).groupBy("_m", "repaired_in").agg(F.count("*").alias("results"))


def _common_decimal(kinds: Iterable[str]) -> str:
    """Return the decimal type in which whole numbers and decimals are compared.

    A value that one of the types cannot hold is an element of no stream with that type.
    """
    sizes = []
    for kind in kinds:
        digits, scale = digits_of(kind) if kind.startswith("decimal") else (_DIGITS[kind], 0)
        sizes.append((digits - scale, scale))
    scale = max(scale for _, scale in sizes)
    return f"decimal({max(min(whole for whole, _ in sizes) + scale, 1)},{scale})"
