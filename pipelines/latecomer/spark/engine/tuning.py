"""Tune Spark's plans to the number of rows that a job goes through. Results do not depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SMALL_ROWS = 50_000
"""Most new rows of a driver-local job, and most arrivals so far of a job whose plans are not compiled."""
MANY_RESULTS = 200_000
"""Most results of a job whose plans are not compiled: making and writing more takes longer than compiling."""
ONE_TASK_ROWS = 5_000
"""Most arrivals so far of a job that runs in one task, which takes less time than several stages."""
_DRIVER_LOCAL, _COMPILED = "spark.latecomer.driverLocal", "spark.sql.codegen.wholeStage"
_PARTITIONS = ("spark.sql.shuffle.partitions", "spark.sql.leafNodeDefaultParallelism")


def tune(spark: SparkSession, rows: int, arrived: int | None = None, results: int = 0) -> None:
    """Tune the session for a job of so many new `rows`, of the arrivals that `arrived` so far (None: these rows alone).

    The driver itself reads and writes few new rows. A job over few arrivals gets no adaptive stages and no generated
    code, which is compiled anew for every micro-batch's bounds; up to `ONE_TASK_ROWS` it gets one partition. Both
    numbers count: a job of few new rows may read many earlier ones, in open windows and in the windows of late rows.
    A job that may have more than `MANY_RESULTS` results is one of many rows: `results` is an upper bound, or 0 where
    none is known. Then `tuned_for_many_results` is used once the results turn out to be many.
    """
    settings = tuning(rows, arrived, results)
    for key in _PARTITIONS:
        backup = f"spark.latecomer.given.{key}"  # the session's own value, which is put back for a larger job
        given = spark.conf.get(backup, None)
        if key in settings and given is None:
            spark.conf.set(backup, spark.conf.get(key, None) or "")
        elif key not in settings and given is not None:
            spark.conf.unset(backup)
            if given:
                spark.conf.set(key, given)
            else:
                spark.conf.unset(key)
    for key, value in settings.items():
        spark.conf.set(key, value)


@contextmanager
def tuned_for_many_results(spark: SparkSession) -> Iterator[None]:
    """Tune the session for a job that turned out to have many results, however few rows it goes through.

    Without generated code, Delta's statistics of a written file take most of the time: they are computed value by
    value. The session is as before afterwards.
    """
    keys = [*tuning(1), *(f"spark.latecomer.given.{key}" for key in _PARTITIONS)]
    before = {key: spark.conf.get(key, None) for key in keys}
    tune(spark, 1 << 40)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)


def tuning(rows: int, arrived: int | None = None, results: int = 0) -> dict[str, str]:
    """Return the settings that :func:`tune` makes.

    Numbers of partitions that are not among them stay the session's own.
    """
    reached = rows if arrived is None else arrived
    if results > MANY_RESULTS:
        rows, reached = max(rows, SMALL_ROWS + 1), max(reached, SMALL_ROWS + 1)
    compiled = str(reached > SMALL_ROWS).lower()
    return {
        _DRIVER_LOCAL: str(rows <= SMALL_ROWS).lower(),
        "spark.sql.adaptive.enabled": compiled,
        _COMPILED: compiled,
        "spark.sql.codegen.factoryMode": "FALLBACK" if compiled == "true" else "NO_CODEGEN",
        **dict.fromkeys(_PARTITIONS if reached <= min(ONE_TASK_ROWS, SMALL_ROWS) else (), "1"),
    }


def is_driver_local(spark: SparkSession) -> bool:
    """Return whether the session was last tuned for few new rows, which the driver itself reads and writes."""
    return spark.conf.get(_DRIVER_LOCAL, "false") == "true"


def compiles(spark: SparkSession) -> bool:
    """Return whether the session generates code for its plans."""
    return spark.conf.get(_COMPILED, "true") == "true"


def in_one_task(spark: SparkSession) -> bool:
    """Return whether Arrow tables become one partition."""
    return spark.conf.get(_PARTITIONS[1], None) == "1"
