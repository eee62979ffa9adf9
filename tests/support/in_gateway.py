"""The ``latecomer`` command as a process that shares the JVM of the test session: killing it costs no JVM start.

As a program it is started with ``PYSPARK_GATEWAY_PORT`` and ``PYSPARK_GATEWAY_SECRET`` of the running JVM, and with
the arguments of the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]


def call(spark: SparkSession, *arguments: object, crash_at: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; with `crash_at` it kills itself at that crash point."""
    parameters = spark.sparkContext._gateway.java_parameters
    environment = os.environ | {
        "PYSPARK_GATEWAY_PORT": str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
    }
    if crash_at is not None:
        environment["LATECOMER_CRASH_AT"] = crash_at
    return subprocess.run(
        [sys.executable, __file__, *map(str, arguments)], env=environment, capture_output=True, text=True, cwd=ROOT
    )


def attach() -> None:
    """Make the Spark session of the running JVM the session of this process."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
    session = SparkSession(SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jconf=context.getConf())))
    assert SparkSession.getActiveSession() is not None and session is not None


if __name__ == "__main__":
    attach()
    from latecomer.jobs.cli import main

    try:
        main(sys.argv[1:])
        code = 0
    except SystemExit as exit_:
        code = exit_.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
