"""Apply a function of Arrow tables to the rows of a DataFrame: in the driver where they are few, else in Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from latecomer.spark.engine import tables
from latecomer.spark.engine.tuning import is_driver_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ArrowFunction = Callable[[pa.Table], pa.Table]
"""Returns a table for a part of the rows. It must not depend on which rows make the part."""


def map_rows(rows: DataFrame, function: ArrowFunction, schema: StructType) -> DataFrame:
    """Return the rows that a function makes of each part of the rows.

    Parameters
    ----------
    schema
        Columns and types of the result, as Spark names them.
    """
    collected = collect_if_local(rows)
    if collected is not None:
        return tables.to_spark(rows.sparkSession, function(collected))
    return rows.mapInArrow(partial(_map_batches, function=function), schema)


def collect_mapped(rows: DataFrame, function: ArrowFunction, schema: StructType) -> pa.Table:
    """Return in the driver what a function makes of each part of the rows: few rows for many."""
    collected = collect_if_local(rows)
    if collected is not None:
        return function(collected)
    return rows.mapInArrow(partial(_map_batches, function=function), schema).toArrow()


def collect_if_local(rows: DataFrame) -> pa.Table | None:
    """Collect rows in the driver if the session is tuned for few of them; None otherwise, or if they are too many."""
    return tables.collect_if_small(rows) if is_driver_local(rows.sparkSession) else None


def _map_batches(batches: Iterable[pa.RecordBatch], function: ArrowFunction) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            yield from function(pa.Table.from_batches([batch])).combine_chunks().to_batches()


def one_chunk(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array."""
    column = table[name].combine_chunks()
    return column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
