"""Exact quantiles of groups on Spark, three ways to the same bits.

A quantile `q` of `n` values stands at position ``(n - 1) q``, counted from 0; between two values it is interpolated, as SQL's
``percentile`` does. NaN is greater than every number, nulls do not count.

- ``percentile``, Spark's own: a table of values per group in memory. For few groups, however many rows each has.
- :func:`placed`, :func:`picks`, :func:`picked`: rows are sorted, and those at the positions looked for are picked out by an aggregation of
  numbers. For many groups: tables of values are then what takes the time (the medians of 600,000 groups of four
  rows: 7 s against 19).
- :func:`after_batches`: after each of many batches of the same group's rows, for repairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from latecomer.core.aggregate import running_quantiles
from latecomer.spark.engine import tables
from latecomer.spark.engine.tuning import is_driver_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def percentiles(value: str, shares: Sequence[float], often: str) -> str:
    """SQL of an aggregate: array<double> of the quantiles of values that occur so often."""
    return f"percentile(cast({value} as double), array({', '.join(f'{s!r}D' for s in shares)}), {often})"


def placed(rows: DataFrame, keys: Sequence[str], value: str, often: str) -> DataFrame:
    """Rows with the place of their value among those of the same `keys`, for :func:`picks`.

    Parameters
    ----------
    value
        Name of a numeric column without characters that need quoting; nulls do not count.
    often
        SQL: how often the value occurs in the row, 0 or more.

    Returns
    -------
    DataFrame
        More columns: ``<value>_x`` (as a double), positions ``[<value>_from, <value>_upto)`` and the group's number of values, ``<value>_all``.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    x, upto, count = f"{value}_x", f"{value}_upto", f"{value}_often"
    same = Window.partitionBy(*keys)
    so_far = same.orderBy(x).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    valued = rows.withColumns(
        {
            x: F.expr(f"cast({value} as double) + 0D"),  # no -0, which SQL's groups do not tell from 0
            count: F.expr(f"case when {value} is null then 0L else cast({often} as bigint) end"),
        }
    )
    ranked = valued.withColumns({upto: F.sum(count).over(so_far), f"{value}_all": F.sum(count).over(same)})
    return ranked.withColumn(f"{value}_from", F.col(upto) - F.col(count)).drop(count)


def picks(value: str, shares: Sequence[float]) -> dict[str, str]:
    """Aggregates over the :func:`placed` rows of a group, name to SQL, for :func:`picked`."""
    found = {f"{value}_all": f"max({value}_all)"}
    for place, share in enumerate(shares):
        for name in ("floor", "ceil"):
            at = f"{name}({_position(value, share)})"
            here = f"{value}_from <= {at} and {at} < {value}_upto"
            found[f"{value}_{name}{place}"] = f"max(case when {here} then {value}_x end)"
    return found


def picked(value: str, shares: Sequence[float]) -> str:
    """SQL over these aggregates: array<double> of the quantiles; of nulls where there are no values."""
    found = []
    for place, share in enumerate(shares):
        low, high, at = f"{value}_floor{place}", f"{value}_ceil{place}", _position(value, share)
        between = f"(ceil({at}) - {at}) * {low} + ({at} - floor({at})) * {high}"
        found.append(f"case when {low} = {high} then {low} else {between} end")
    return f"array({', '.join(found)})"


def _position(value: str, share: float) -> str:
    return f"(({value}_all - 1L) * {share!r}D)"


def after_batches(values: DataFrame, due: DataFrame, batch: str, shares: Sequence[float]) -> DataFrame:
    """Columns ``w``, `batch` and ``r``, array<double>: for what is due, quantiles of the values of its window in its batch and before.

    `values` has ``w``, `batch`, ``value``, ``often``; `due` ``w`` and `batch`, each once.
    """
    from pyspark.sql import functions as F

    asked = due.select("w", batch, F.lit(0.0).alias("value"), F.lit(0).cast("bigint").alias("often"))
    rows = values.unionByName(asked)
    here = tables.collect_if_small(rows) if is_driver_local(rows.sparkSession) else None
    if here is not None:
        own = here.sort_by([("w", "ascending"), (batch, "ascending"), ("often", "descending")])
        return tables.to_spark(rows.sparkSession, _of_table(own, shares))
    rows = rows.repartition("w").sortWithinPartitions("w", batch, F.desc("often"))
    return rows.mapInArrow(partial(_of_batches, shares=shares), f"w bigint, {batch} bigint, r array<double>")


def _of_batches(batches: Iterator[pa.RecordBatch], shares: Sequence[float]) -> Iterator[pa.RecordBatch]:
    """Whole windows at a time: the last one that has begun waits for its rest."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        if batch[0][-1] != waiting[0][0][0]:
            rows = pa.Table.from_batches(waiting).combine_chunks()
            whole = int(np.searchsorted(rows["w"].to_numpy(), batch[0][-1].as_py()))
            yield from _of_table(rows.slice(0, whole), shares).to_batches()
            waiting = rows.slice(whole).to_batches()
    if waiting:
        yield from _of_table(pa.Table.from_batches(waiting), shares).to_batches()


def _of_table(rows: pa.Table, shares: Sequence[float]) -> pa.Table:
    window, batch, value, often = (rows.column(i).to_numpy() for i in range(4))
    place, found = running_quantiles.after_batches(window, value, often, np.array(shares))
    ends = np.arange(0, found.size + 1, len(shares), dtype=np.int32)
    lists = pa.ListArray.from_arrays(pa.array(ends), pa.array(found.ravel()))
    names = [rows.column_names[0], rows.column_names[1], "r"]
    return pa.table([window[place], batch[place], lists], names=names)
