"""Delta tables through Spark: read, and append once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from latecomer.lake import small
from latecomer.lake.location import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEW_ROWS = 200_000
"""Rows that are brought to the driver and committed from there: Spark's own commit takes seconds, whatever it writes."""


def read(spark: SparkSession, lake: Lake, area: str, name: str) -> DataFrame:
    """The table's rows, in no particular order."""
    return spark.read.format("delta").load(lake.spark_path(area, name))


def append(rows: DataFrame, lake: Lake, area: str, name: str, app_id: str, version: int, *, few: bool = False) -> None:
    """Append as commit `version` of writer `app_id`; a commit the table already holds is left out by Delta.

    With `few` the rows are expected to be at most `FEW_ROWS` and are committed without Spark's writer; where they turn out to be
    more, they are computed again and written by it.
    """
    if few:
        found = rows.limit(FEW_ROWS + 1).toArrow()
        if found.num_rows <= FEW_ROWS:
            nullable = pa.schema([field.with_nullable(True) for field in found.schema])
            small.append(lake, area, name, found.cast(nullable), app_id, version)
            return
    (
        rows.write.format("delta")
        .mode("append")
        .option("mergeSchema", "true")
        .option("txnAppId", app_id)
        .option("txnVersion", version)
        .save(lake.spark_path(area, name))
    )
