"""Exact quantiles of groups on Spark, in three ways that give the same bits.

A quantile `q` of `n` values stands at position ``(n - 1) q``, counted from 0; between two values it is interpolated,
as SQL's ``percentile`` does. NaN is greater than every number, nulls do not count.

- ``percentile``, Spark's own: a table of values per group in memory. For few groups, however many rows each has.
- :func:`with_positions`, :func:`picks`, :func:`picked`: rows are sorted, and an aggregation of numbers picks the values
  at the positions of the quantiles. For many groups, where tables of values would take most of the time:
  docs/experiments/variants.md.
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
    """Return the SQL of an aggregate: array<double>, the quantiles of values that occur so often."""
    return f"percentile(cast({value} as double), array({', '.join(f'{s!r}D' for s in shares)}), {often})"


def with_positions(rows: DataFrame, keys: Sequence[str], value: str, often: str) -> DataFrame:
    """Add the positions of every value among those of the same `keys`, for :func:`picks`.

    Parameters
    ----------
    value
        Name of a numeric column without characters that need quoting; nulls do not count.
    often
        SQL: how often the value occurs in the row, 0 or more.

    Returns
    -------
    DataFrame
        With ``<value>_x`` (the value as a double), its positions ``[<value>_from, <value>_upto)`` and the number of
        values of the group, ``<value>_all``.
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
    """Return aggregates over the rows of a group with positions, name to SQL, for :func:`picked`."""
    aggregates = {f"{value}_all": f"max({value}_all)"}
    for place, share in enumerate(shares):
        for name in ("floor", "ceil"):
            at = f"{name}({_position(value, share)})"
            inside = f"{value}_from <= {at} and {at} < {value}_upto"
            aggregates[f"{value}_{name}{place}"] = f"max(case when {inside} then {value}_x end)"
    return aggregates


def picked(value: str, shares: Sequence[float]) -> str:
    """Return the SQL of array<double>, the quantiles, over these aggregates; nulls where there are no values."""
    quantiles = []
    for place, share in enumerate(shares):
        low, high, at = f"{value}_floor{place}", f"{value}_ceil{place}", _position(value, share)
        between = f"(ceil({at}) - {at}) * {low} + ({at} - floor({at})) * {high}"
        quantiles.append(f"case when {low} = {high} then {low} else {between} end")
    return f"array({', '.join(quantiles)})"


def _position(value: str, share: float) -> str:
    return f"(({value}_all - 1L) * {share!r}D)"


def after_batches(values: DataFrame, due: DataFrame, batch: str, shares: Sequence[float]) -> DataFrame:
    """Find the quantiles of windows after batches: of the values of the window in that batch and before.

    Parameters
    ----------
    values
        Columns ``w`` (window), `batch`, ``value`` and ``often``.
    due
        The windows and batches that are asked for, each once: ``w`` and `batch`.

    Returns
    -------
    DataFrame
        Columns ``w``, `batch` and ``r``, array<double>.
    """
    from pyspark.sql import functions as F

    no_values = due.select("w", batch, F.lit(0.0).alias("value"), F.lit(0).cast("bigint").alias("often"))
    rows = values.unionByName(no_values)
    collected = tables.collect_if_small(rows) if is_driver_local(rows.sparkSession) else None
    if collected is not None:
        in_order = collected.sort_by([("w", "ascending"), (batch, "ascending"), ("often", "descending")])
        return tables.to_spark(rows.sparkSession, _of_table(in_order, shares))
    rows = rows.repartition("w").sortWithinPartitions("w", batch, F.desc("often"))
    return rows.mapInArrow(partial(_of_batches, shares=shares), f"w bigint, {batch} bigint, r array<double>")


def _of_batches(batches: Iterator[pa.RecordBatch], shares: Sequence[float]) -> Iterator[pa.RecordBatch]:
    """Answer whole windows at a time; the rows of the last one wait for the next batch."""
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
    place, quantiles = running_quantiles.after_batches(window, value, often, np.array(shares))
    ends = np.arange(0, quantiles.size + 1, len(shares), dtype=np.int32)
    lists = pa.ListArray.from_arrays(pa.array(ends), pa.array(quantiles.ravel()))
    names = [rows.column_names[0], rows.column_names[1], "r"]
    return pa.table([window[place], batch[place], lists], names=names)
