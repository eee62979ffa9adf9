"""Run the ``latecomer`` command in a process of its own that shares the test's JVM: it can be killed without one more JVM start.

Started with ``PYSPARK_GATEWAY_PORT`` and ``PYSPARK_GATEWAY_SECRET`` of the running JVM; arguments are those of the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def call(spark, *arguments: str, crash_at: str | None = None) -> subprocess.CompletedProcess:
    """Run the command; with `crash_at` it kills itself there."""
    parameters = spark.sparkContext._gateway.java_parameters
    environment = os.environ | {
        "PYSPARK_GATEWAY_PORT": str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
    }
    if crash_at is not None:
        environment["LATECOMER_CRASH_AT"] = crash_at
    return subprocess.run(
        [sys.executable, __file__, *arguments], env=environment, capture_output=True, text=True, cwd=ROOT
    )


def attach() -> None:
    """Make the JVM's Spark session this process's."""
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
    except SystemExit as leave:
        code = leave.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
