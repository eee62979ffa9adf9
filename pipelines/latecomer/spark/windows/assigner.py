"""Assign rows to windows and to panes: of Spark columns, and of the control plane's int64 arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from latecomer.core.windows.grid import Grid
from latecomer.spark.engine.columns import floor_div, floor_div_sql, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Int64 = NDArray[np.int64]
Int8 = NDArray[np.int8]


class WindowAssigner:
    """Assigns rows to the windows of a grid by their event time.

    Windows go by their number in the grid. Rows have the columns ``ts`` (event time, us) and ``side`` (number of
    their source).

    Attributes
    ----------
    grid
        The query's windows.
    lookback_us
        How far before the start of a window its rows may lie, microseconds; 0: they lie in it.
    """

    def __init__(self, grid: Grid, lookback_us: int = 0) -> None:
        self.grid, self.lookback_us = grid, lookback_us

    @property
    def tumbling(self) -> bool:
        """True where a row is in one window at most."""
        return self.grid.size_us <= self.grid.slide_us and not self.lookback_us

    @overload
    def first_of(self, time: Int64, side: Int8) -> Int64: ...
    @overload
    def first_of(self, time: Column | str) -> Column: ...
    def first_of(self, time: Any, side: Any = "side") -> Any:
        """Return the number of the first window that holds a time: a column, its name, or an array with its `side`."""
        if isinstance(time, str):
            from pyspark.sql import functions as F

            return F.expr(floor_div_sql(f"{quoted(time)} - {self.grid.size_us}L", self.grid.slide_us) + " + 1L")
        return floor_div(time - self.grid.size_us, self.grid.slide_us) + 1

    @overload
    def last_of(self, time: Int64, side: Int8) -> Int64: ...
    @overload
    def last_of(self, time: Column | str) -> Column: ...
    def last_of(self, time: Any, side: Any = "side") -> Any:
        """Return the number of the last window that holds an event time; arguments as for `first_of`."""
        return floor_div(time, self.grid.slide_us)

    def open_from(self, time: Column | str) -> Column:
        """Return the number of the first window for which a row is on time; those up to its ``c`` were closed."""
        from pyspark.sql import functions as F

        return F.greatest(F.col("c") + 1, self.first_of(time))

    def paned(self, rows: DataFrame) -> DataFrame:
        """Add ``pane``, the number of the pane that holds a row."""
        return rows.withColumn("pane", floor_div("ts", self.grid.pane_us))

    def spread(self, panes: DataFrame, first_of: Callable[[Column], Column]) -> DataFrame:
        """Repeat rows of panes for every window ``_m`` of their pane, from `first_of` (the pane's start) on."""
        from pyspark.sql import functions as F

        start = F.col("pane") * self.grid.pane_us
        return self.in_windows(panes, first_of(start), self.last_of(start))

    def in_windows(self, rows: DataFrame, first: Column, last: Column) -> DataFrame:
        """Repeat rows for every window number ``_m`` in ``[first, last]``; rows without one are left out."""
        from pyspark.sql import functions as F

        window = first if self.tumbling else F.explode(F.sequence(first, last))
        return rows.where(first <= last).select("*", window.alias("_m"))


def number_of_shard(numbers: Sequence[int]) -> Column:
    """Return a column with the number that belongs to a row's ``shard``; one number per shard."""
    from pyspark.sql import functions as F

    column: Column = F.lit(numbers[0])
    for shard, number in enumerate(numbers[1:], 1):
        column = F.when(F.col("shard") == shard, F.lit(number)).otherwise(column)
    return column
