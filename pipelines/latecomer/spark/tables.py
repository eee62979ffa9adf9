"""Delta tables through Spark: read, and append once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from latecomer.lake.location import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, lake: Lake, area: str, name: str) -> DataFrame:
    """The table's rows, in no particular order."""
    return spark.read.format("delta").load(lake.spark_path(area, name))


def append(rows: DataFrame, lake: Lake, area: str, name: str, app_id: str, version: int) -> None:
    """Append as commit `version` of writer `app_id`; a commit the table already holds is left out by Delta."""
    (
        rows.write.format("delta")
        .mode("append")
        .option("mergeSchema", "true")
        .option("txnAppId", app_id)
        .option("txnVersion", version)
        .save(lake.spark_path(area, name))
    )
