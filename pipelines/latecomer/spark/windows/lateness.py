"""Rows of observed windows with their lateness, and how the results of such windows are counted by wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.core.arrays.composite_keys import run_bounds, sort_order
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
        known = -((grid.end(window) - cut_us[span]) // grid.granularity_us)  # rounded up
        table = pa.table({"_m": window, "_span": span, "_known": known})
        return Observations(table, list(spans), self.assigner, self.rows.sparkSession)


@dataclass(frozen=True)
class Observations:
    """Observations of windows; a window may be observed several times.

    Observations of one window differ only in which waits they know, and a result is known with the last of its rows. So
    results are counted once, by that wait, for the observation that knows most, and each observation takes the waits
    that it knows.

    Attributes
    ----------
    table : Table
        A row per observation: ``_m``, its window; ``_span``, a place in `intervals`; ``_known``: what waited so many
        granules past the end of the window, or more, is not known then.
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
    def _windows(self) -> DataFrame:
        """The windows (``_m``), with what their observations know: each value (``_cuts``), the greatest (``_most``)."""
        by_window = self.table.group_by("_m").aggregate([("_known", "distinct"), ("_known", "max")])
        columns = {"_m": by_window["_m"], "_cuts": by_window["_known_distinct"], "_most": by_window["_known_max"]}
        return tables.to_spark(self.spark, pa.table(columns))

    def known(self, rows: DataFrame, *, until: bool = False) -> DataFrame:
        """Keep the rows in windows (``_m``) that an observation knows.

        Adds ``_wait`` in granules past the end of the window (-1: in time). With `until` also ``_until``, the greatest
        wait that is known to the same observations.
        """
        from pyspark.sql import functions as F

        grid = self.assigner.grid
        granules = grid.slide_us // grid.granularity_us  # in a slide
        later = F.col("bucket") - (F.col("_m") - F.col("_first")) * granules
        known = rows.withColumn("_first", self.assigner.first_of("ts"))
        known = known.join(F.broadcast(self._windows), "_m")
        known = known.withColumn("_wait", F.when(F.col("bucket") >= 0, F.greatest(later, F.lit(-1))).otherwise(-1))
        known = known.where("_wait < _most")
        if until:
            known = known.withColumn("_until", F.expr("array_min(filter(_cuts, cut -> cut > _wait)) - 1"))
        return known.drop("_first", "_most", "_cuts")

    def observed(self, counts: pa.Table, level: Callable[[Int64], Int64] | None = None) -> ObservedWindows:
        """Return the observed windows.

        Parameters
        ----------
        counts
            Numbers of ``results`` by window ``_m`` and ``_wait``.
        level
            Rounds waits up, a greater wait to no smaller one; None: waits stay as they are.
        """
        seen: list[list[Observed]] = [[] for _ in self.intervals]
        observation, at, order = self._entries(counts["_m"].to_numpy(), counts["_wait"].to_numpy())
        if len(at):
            wait = counts["_wait"].to_numpy()[order][at]
            if level is not None:
                wait = level(wait)
            results = np.array([int(count) for count in counts["results"].take(pa.array(order)).to_pylist()], object)
            starts = run_bounds(observation, wait)[:-1]
            number, place = np.unique(observation[starts], return_inverse=True)
            weight = _exact_weights(np.add.reduceat(results[at], starts).tolist(), place)
            window, span = (self.table[name].to_numpy()[number] for name in ("_m", "_span"))
            windows = by_window(window, place, wait[starts], weight, self.assigner.grid.granularity_us)
            for where, observed in zip(span.tolist(), windows, strict=True):
                seen[where].append(observed)
        return ObservedWindows([dict(zip(self.intervals, seen, strict=True))])

    def _entries(self, window: Int64, wait: Int64) -> tuple[Int64, Int64, Int64]:
        """Return the entries that each observation knows.

        Parameters
        ----------
        window, wait : int64[n]
            The window and the wait of each entry.

        Returns
        -------
        observation, at : int64[k]
            The number of an observation, ascending, and a place in `order` that holds one of its entries.
        order : int64[n]
            The entries by window and wait.
        """
        order = sort_order(window, wait)
        waits, rank = np.unique(wait, return_inverse=True)
        numbers, place = np.unique(window, return_inverse=True)
        key = (place * (len(waits) + 1) + rank)[order]
        observed, known = self.table["_m"].to_numpy(), self.table["_known"].to_numpy()
        of_window = np.searchsorted(numbers, observed) * (len(waits) + 1)
        first = np.searchsorted(key, of_window)
        after = np.searchsorted(key, of_window + np.searchsorted(waits, known))
        after[~np.isin(observed, numbers)] = 0
        return *every_number(first, after - 1), order


def _exact_weights(counts: list[int], place: Int64) -> Int64:
    """Scale numbers of results so that sums over windows are exact as doubles; shares of a window stay what they are.

    Parameters
    ----------
    counts : list of int
        Numbers of results, of any size.
    place : int64[n]
        The place of their window, ascending.
    """
    sums = [0] * (int(place[-1]) + 1)
    for at, count in zip(place.tolist(), counts, strict=True):
        sums[at] += count
    shift = [max(total.bit_length() - EXACT_BITS, 0) for total in sums]
    return np.array([count >> shift[at] for at, count in zip(place.tolist(), counts, strict=True)], np.int64)
