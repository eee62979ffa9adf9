"""Choose how Spark plans a job by how many rows it will go through."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SMALL_ROWS = 50_000
"""New rows up to which a micro-batch is planned for latency, and arrivals up to which code for it takes longer to compile than they to read."""


ONE_TASK_ROWS = 5_000
"""Arrivals up to which one task takes less time than several stages of several tasks, also where each is compared with each."""


_FEW, _COMPILED = "spark.latecomer.few", "spark.sql.codegen.wholeStage"


_PARTITIONS = ("spark.sql.shuffle.partitions", "spark.sql.leafNodeDefaultParallelism")


def tune(spark: SparkSession, rows: int, arrived: int | None = None) -> None:
    """Plan what follows for so many new `rows` of those that `arrived` so far (None: of none before). Results do not depend on it.

    Few new rows are read, and written, here and not in Spark. Few that arrived: no adaptive stages and no generated code, which is compiled
    anew where plans hold other bounds; up to `ONE_TASK_ROWS`, one partition. That new rows are few says nothing of these: open windows and
    late rows' windows are read again, and may hold any of those before. (Windows of ten seconds, 20,000 rows each two: micro-batches took
    twice as long without generated code.)
    """
    wanted = tuning(rows, arrived)
    for key in _PARTITIONS:
        kept = f"spark.latecomer.given.{key}"  # what is put back, for many
        given = spark.conf.get(kept, None)
        if key in wanted and given is None:
            spark.conf.set(kept, spark.conf.get(key, None) or "")
        elif key not in wanted and given is not None:
            spark.conf.unset(kept)
            if given:
                spark.conf.set(key, given)
            else:
                spark.conf.unset(key)
    for key, value in wanted.items():
        spark.conf.set(key, value)


def tuning(rows: int, arrived: int | None = None) -> dict[str, str]:
    """The settings by which :func:`tune` does that; the session's own are those of partitions that are not among them."""
    reached = rows if arrived is None else arrived
    compiled = str(reached > SMALL_ROWS).lower()
    return {
        _FEW: str(rows <= SMALL_ROWS).lower(),
        "spark.sql.adaptive.enabled": compiled,
        _COMPILED: compiled,
        "spark.sql.codegen.factoryMode": "FALLBACK" if compiled == "true" else "NO_CODEGEN",
        **dict.fromkeys(_PARTITIONS if reached <= min(ONE_TASK_ROWS, SMALL_ROWS) else (), "1"),
    }


def is_driver_local(spark: SparkSession) -> bool:
    """Was the session last tuned for few rows?"""
    return spark.conf.get(_FEW, "false") == "true"


def compiles(spark: SparkSession) -> bool:
    """Does the session generate code for its plans?"""
    return spark.conf.get(_COMPILED, "true") == "true"


def in_one_task(spark: SparkSession) -> bool:
    """Are rows that are handed over planned for one partition?"""
    return spark.conf.get(_PARTITIONS[1], None) == "1"
