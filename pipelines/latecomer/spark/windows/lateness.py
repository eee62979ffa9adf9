"""Rows of observed windows with their lateness, and how the results of such windows are counted by wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.core.windows.group_sampling import GroupSample
from latecomer.core.windows.interfaces import Observed
from latecomer.core.windows.observation import by_window, every_number, spans_of
from latecomer.spark.engine import tables
from latecomer.spark.windows.assigner import WindowAssigner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Int64 = NDArray[np.int64]
ObservedSpans = list[dict[int, tuple[int, int]]]
"""Per shard: interval -> first and last window that is observed when the interval is entered."""
EXACT_BITS = 44
"""Bits to which the results of a window are counted, where there are more: the sums of 512 windows are then exact as
doubles, whatever the order in which they are added."""


@dataclass(frozen=True)
class ObservedWindows:
    """Windows as known when they are observed.

    Attributes
    ----------
    by_interval
        Per shard and interval, the windows that are observed when it is entered.
    groups
        About how many groups they have; None where that is not known.
    """

    by_interval: list[dict[int, list[Observed]]]
    groups: int | None = None


@dataclass(frozen=True)
class RowsWithLateness:
    """Stored rows of observed windows.

    Attributes
    ----------
    rows : DataFrame
        Payload, ``seq``, ``ts``, ``side``, ``shard``, and ``grp`` (hash of the groups), ``pane``, ``bucket``:
        granules waited past the end of the first window that holds the row, and ``j``: interval of its arrival; both
        -1 where it came before that end.
    samples : list of GroupSample
        Per shard, the groups that are observed.
    windows : int64[n]
        Numbers of all windows that hold one of the rows, ascending; empty unless the kind `counts_results`.
    assigner
        Which windows hold a row.
    """

    rows: DataFrame
    samples: list[GroupSample]
    windows: Int64
    assigner: WindowAssigner

    def observations(self, spans: Mapping[int, tuple[int, int]]) -> Observations:
        """Return the observations of these windows, of a kind that `counts_results`; it has one shard, with `spans`."""
        grid = self.assigner.grid
        first, last, cut_us = np.array(spans_of(grid, spans), np.int64).reshape(-1, 3).T
        low, high = np.searchsorted(self.windows, first), np.searchsorted(self.windows, last, "right")
        span, at = every_number(low, high - 1)
        window = self.windows[at]
        columns = {"_observation": np.arange(len(span)), "_m": window, "_span": span}
        table = pa.table(columns | {"_known": cut_us[span] - grid.end(window)})
        return Observations(table, list(spans), self.assigner, self.rows.sparkSession)


@dataclass(frozen=True)
class Observations:
    """Observations of windows; a window may be observed several times.

    Attributes
    ----------
    table : Table
        A row per observation: ``_observation``, its number; ``_m``, its window; ``_span``, a place in `intervals`;
        ``_known``: what waited so many microseconds past the end of the window, or more, is not known then.
    intervals
        The intervals in which windows are observed.
    assigner
        Which windows hold a row.
    """

    table: pa.Table
    intervals: list[int]
    assigner: WindowAssigner
    spark: SparkSession

    @cached_property
    def _in_spark(self) -> DataFrame:
        return tables.to_spark(self.spark, self.table.drop_columns("_span"))

    def known(self, rows: DataFrame) -> DataFrame:
        """Repeat rows in windows (``_m``) for every observation that knows them.

        Adds ``_observation``, and ``_wait`` in granules past the end of the window (-1: in time).
        """
        from pyspark.sql import functions as F

        grid = self.assigner.grid
        granules = grid.slide_us // grid.granularity_us  # in a slide
        later = F.col("bucket") - (F.col("_m") - F.col("_first")) * granules
        known = rows.withColumn("_first", self.assigner.first_of("ts")).join(F.broadcast(self._in_spark), "_m")
        known = known.withColumn("_wait", F.when(F.col("bucket") >= 0, F.greatest(later, F.lit(-1))).otherwise(-1))
        return known.where(F.col("_wait") * grid.granularity_us < F.col("_known")).drop("_first", "_known")

    def observed(self, counts: pa.Table) -> ObservedWindows:
        """Return the observed windows from their numbers of ``results`` by ``_observation`` and ``_wait``."""
        seen: list[list[Observed]] = [[] for _ in self.intervals]
        if counts.num_rows:
            order = np.lexsort([counts[name].to_numpy() for name in ("_wait", "_observation")])
            observation, wait = (counts[name].to_numpy()[order] for name in ("_observation", "_wait"))
            number, place = np.unique(observation, return_inverse=True)
            weight = _exact_weights(counts["results"].take(pa.array(order)).to_pylist(), place)
            window, span = (self.table[name].to_numpy()[number] for name in ("_m", "_span"))
            windows = by_window(window, place, wait, weight, self.assigner.grid.granularity_us)
            for at, observed in zip(span.tolist(), windows, strict=True):
                seen[at].append(observed)
        return ObservedWindows([dict(zip(self.intervals, seen, strict=True))])


def _exact_weights(counts: list[Decimal | int], place: Int64) -> Int64:
    """Scale numbers of results so that sums over windows are exact as doubles; shares of a window stay what they are.

    Parameters
    ----------
    counts : list of Decimal or int
        Numbers of results, of any size.
    place : int64[n]
        The place of their window, ascending.
    """
    weight, sums = [int(count) for count in counts], [0] * (int(place[-1]) + 1)
    for at, count in zip(place.tolist(), weight, strict=True):
        sums[at] += count
    shift = [max(total.bit_length() - EXACT_BITS, 0) for total in sums]
    return np.array([count >> shift[at] for at, count in zip(place.tolist(), weight, strict=True)], np.int64)
