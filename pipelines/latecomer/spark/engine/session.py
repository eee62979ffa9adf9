"""The Spark session of a job: local by default, a cluster by configuration, or a session of a Spark Connect server.

Which server that is, :mod:`latecomer.spark.engine.connect` says. Settings that a deployment gives to ``spark-submit``
or in ``spark-defaults.conf`` win over those of this module. The jars that Spark needs (Delta Lake; for object stores
Hadoop's S3 file system) are used by path: see `jars`. On a cluster whose images hold them, set ``LATECOMER_JARS`` to
the empty string.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from latecomer.lake import certificates
from latecomer.lake.delta import APPENDED
from latecomer.lake.lake import Lake
from latecomer.spark.engine import connect, java_process
from latecomer.spark.engine.jars import archive, jars, require
from latecomer.spark.engine.store_settings import store_settings
from latecomer.spark.engine.tuning import tune

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_COMPILER_ROWS = 1_000_000
"""Most rows of a job for which the JVM's second compiler costs more time than it saves."""
FIRST_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""JVM options for the first compiler alone; it would reserve 48 MB for code, which plans of many columns fill."""
HEAP_REGIONS = "-XX:G1HeapRegionSize=4m"
"""JVM option for heap regions of which half holds the 1 MB into which Spark writes a task's result.

G1 would take it for a humongous object in smaller regions, and mark the heap every few seconds.
"""

END_WITHOUT_MEMORY = "-XX:+ExitOnOutOfMemoryError -XX:+DisplayVMOutputToStderr"
"""JVM options to end where memory runs out.

Without them the thread that wanted memory ends alone, whatever waits for it. What Java says of it goes to stderr.
"""

AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{name}.maxLength={most}"
    for name, most in (("string", 64 << 20), ("bytes", 64 << 20), ("collectionItems", 4 << 20))
)
"""JVM options for the longest text, bytes and collections that Avro may read.

A broken record may state any length, and a JVM that makes room for it dies. No record of a topic is as long.
"""


def java_options(rows: int | None = None) -> str:
    """Return the options of the driver's JVM.

    The class archive of ``latecomer jars fetch`` starts Spark about three times faster.

    Parameters
    ----------
    rows
        Rows that the job will go through, about; None: unknown.

    Notes
    -----
    ``LATECOMER_JAVA_OPTIONS`` adds to the options, and wins.
    """
    classes = archive()
    quiet = (
        f"-Dlog4j2.configurationFile=file:{Path(__file__).with_name('log4j2.properties')} -Xlog:disable -Xlog:all=off"
    )
    more, trusted = os.environ.get("LATECOMER_JAVA_OPTIONS", ""), certificates.java_options()
    archived = f"-XX:SharedArchiveFile={classes} -Xshare:auto" if classes else ""
    compiler = FIRST_COMPILER if rows is not None and rows <= FIRST_COMPILER_ROWS else ""
    return " ".join(
        option
        for option in (archived, quiet, HEAP_REGIONS, END_WITHOUT_MEMORY, AVRO_LIMITS, compiler, trusted, more)
        if option
    )


RESULT_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    # without it 2 and 1.75 are equal as decimal(38,0) and decimal(10,2)
    "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": "true",
    # pandas writes nanoseconds; ingest/read_parquet.py turns them into timestamps
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 is read as nanoseconds, which end in 2262
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.parquet.binaryAsString": "false",
    # The version before an uncommitted ingestion may be older than a week. Its files exist, but Delta would refuse to
    # read it.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    "spark.sql.variable.substitute": "false",  # a query's text is what it says, also where it says ${env:HOME}
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}
"""Settings on which results depend.

They always hold, whatever a deployment or an earlier user of the session has set.
"""


def session(
    lake: Lake, app_name: str = "latecomer", *, rows: int | None = None, more: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the session of this process, made at the first call. `RESULT_SETTINGS` hold in it from now on.

    It is one of the Spark Connect server that the environment names, where it names one.

    Parameters
    ----------
    rows
        Rows that the job will go through, about; None: unknown.
    more
        Settings that win over all others if the session is made here.

    Raises
    ------
    InputError, ServerError
        As for :func:`latecomer.spark.engine.connect.session`.
    """
    from pyspark.sql import SparkSession

    server = connect.named()
    if server is not None:
        _quiet_errors()
        return connect.session(server, lake, _preferred(lake, rows) | dict(more or {}), RESULT_SETTINGS)
    if lake.store is not None:
        require(lake.store.jars)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if os.environ.get("LC_ALL") in ("C", "POSIX"):  # Java could name no file with a letter outside ASCII
        os.environ["LC_ALL"] = "C.UTF-8"
    _quiet_errors()
    spark = SparkSession.getActiveSession()
    if spark is None:
        builder = SparkSession.builder.appName(app_name)
        for key, value in (settings(lake, rows) | dict(more or {})).items():
            builder = builder.config(key, value)
        with _quiet_start():
            spark = builder.getOrCreate()
        _end_with_a_thread(spark)
        spark.sparkContext.setLogLevel(os.environ.get("LATECOMER_SPARK_LOG", "ERROR"))
    java_process.guard()
    _cache_jvm_classes(spark)
    for key, value in RESULT_SETTINGS.items():
        if spark.conf.get(key, None) != value:
            spark.conf.set(key, value)
    return spark


def _quiet_errors() -> None:
    """Keep PySpark from logging the errors that it raises: the command reports them itself."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "pyspark.sql.connect"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _end_with_a_thread(spark: SparkSession) -> None:
    """Make an error that no thread of the JVM handles end it, as Spark's executors do.

    Without it the thread ends alone: the scheduler's, and every job waits for ever.
    """
    jvm = spark._jvm
    assert jvm is not None  # it is there from the start of the session
    handler = jvm.org.apache.spark.util.SparkUncaughtExceptionHandler(True)
    jvm.java.lang.Thread.setDefaultUncaughtExceptionHandler(handler)


_JVM_CLASSES = {
    "functions": ("col", "lit"),
    "org.apache.spark.sql.functions": ("col", "lit", "expr", "when", "coalesce", "greatest", "pmod", "call_function"),
    "org.apache.spark.sql.classic.SparkSession": ("setActiveSession", "getActiveSession"),
    "org.apache.spark.sql.expressions.Window": ("partitionBy",),
    "PythonUtils": ("toSeq", "toList"),
    "PythonSQLUtils": ("readArrowStreamFromFile", "toDataFrame"),
    "PythonRDD": ("readRDDFromFile",),
    "SerDeUtil": ("pythonToJava", "toJavaArray"),
    "SimplePythonFunction": (),
}
"""Classes of the JVM, with static members, that PySpark looks up by name whenever it builds an expression."""


def _cache_jvm_classes(spark: SparkSession) -> None:
    """Look up `_JVM_CLASSES` once.

    They stay the same while the JVM lives, and each look-up of a star import searches all jars.

    The look-ups would take a fifth of the CPU time of small micro-batches.
    """
    jvm = spark._jvm
    for name, members in _JVM_CLASSES.items():
        if name not in vars(jvm):
            jvm_class = getattr(jvm, name)
            for member in members:
                setattr(jvm_class, member, getattr(jvm_class, member))
            setattr(jvm, name, jvm_class)


_JAVA_NOTES = (b"WARNING: Using incubator modules", b"Terminating due to java.lang.OutOfMemoryError")


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Drop the notes that Java writes to stderr when it starts and when its memory runs out, whatever its settings.

    The command reports the second one itself. All other lines that the JVM and its children ever write to stderr pass
    through.
    """
    try:
        stderr = os.dup(2)
    except OSError:  # the process has no stderr
        yield
        return
    out, into = os.pipe()

    def pump() -> None:
        with open(out, "rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                if not line.startswith(_JAVA_NOTES):
                    os.write(stderr, line)

    threading.Thread(target=pump, daemon=True, name="stderr of Spark").start()
    os.dup2(into, 2)
    os.close(into)
    try:
        yield
    finally:
        os.dup2(stderr, 2)


ANSWER_S = 3.0
"""Seconds within which a JVM answers that has memory and processor time."""


def is_gone() -> bool:
    """Return whether this process had a JVM that has ended, or does not answer within `ANSWER_S` seconds."""
    from pyspark import SparkContext

    gateway, answers = SparkContext._gateway, threading.Event()
    if gateway is None:
        return False
    if java_process.exit_code() is not None or java_process.is_orphan():
        return True

    def ask() -> None:
        with contextlib.suppress(Exception):  # in any shape: the connection is lost
            if gateway.jvm.java.lang.System.currentTimeMillis():
                answers.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    return not answers.is_set()


def tuned(lake: Lake, rows: int) -> SparkSession:
    """Return the session of this process, tuned for a job that goes through about so many `rows` at once."""
    spark = session(lake, rows=rows)
    tune(spark, rows)
    return spark


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


def driver_memory() -> str:
    """Return the most memory of a JVM of this process, as Spark writes it, such as ``4g``.

    Java takes what it may before it cleans up, so the default is what tasks need that run at the same time: 1 GB and
    512 MB per core, up to 4 GB.
    """
    return os.environ.get("LATECOMER_DRIVER_MEMORY") or f"{min(1024 + 512 * usable_cores(), 4096)}m"


def settings(lake: Lake, rows: int | None = None) -> dict[str, str]:
    """Return the settings of a job of about so many `rows`, less `RESULT_SETTINGS` and those of the deployment."""
    given = _given()
    return {key: value for key, value in _preferred(lake, rows).items() if key not in given}


def _preferred(lake: Lake, rows: int | None = None) -> dict[str, str]:
    """Return the settings of a job of about so many `rows`, less `RESULT_SETTINGS`."""
    cores = usable_cores()
    path = ":".join(str(jar) for jar in jars())
    wanted = {
        "spark.master": f"local[{cores}]",
        "spark.driver.extraClassPath": path,
        "spark.executor.extraClassPath": path,
        "spark.driver.extraJavaOptions": java_options(rows),
        "spark.executor.extraJavaOptions": f"{END_WITHOUT_MEMORY} {AVRO_LIMITS}",
        "spark.driver.memory": driver_memory(),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # hot keys: split a shuffle partition that is twice the others, also when it is small
        "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "2",
        "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "16m",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
        # joins: no sort where the parts fit in memory; cached rows are read once or twice, and compressing them costs
        # more
        "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "64m",
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        # aggregations that keep rows (top-k): by hash for as many keys as a task may meet
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
        # Spark keeps the code of 100 plans by default, and one micro-batch has 30: jobs that take turns in a session
        # would evict and compile one another's code again and again
        "spark.sql.codegen.cache.maxEntries": "1000",
        # an embedded machine: as many partitions as cores are enough, and Delta's log is small
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.databricks.delta.properties.defaults.dataSkippingNumIndexedCols": "8",
        "spark.databricks.delta.stats.collect": "true",
        # as properties of the table, which delta-rs reads too
        **{
            key.replace("delta.", "spark.databricks.delta.properties.defaults."): value
            for key, value in APPENDED.items()
        },
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # call sites cost a round trip per expression
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # a long list of arrivals is data, not part of a plan: planning would go through its rows again and again
        "spark.sql.execution.arrow.localRelationThreshold": "1m",
        # Tasks are short, and allocate a page per sort and aggregation and a block per plan. Pages of 64 MB and blocks
        # of 4 MB, the defaults, are humongous objects to G1 (see `HEAP_REGIONS`). A task may still have 8,192 pages,
        # which is 15 GB.
        "spark.buffer.pageSize": "1900k",
        "spark.broadcast.blockSize": "256k",
        "spark.broadcast.compress": "false",
        "spark.sql.warehouse.dir": str(Path(os.environ.get("TMPDIR", "/tmp")) / "latecomer-warehouse"),
    }
    return wanted | store_settings(lake.store)


def _given() -> set[str]:
    """Return the names of the settings that a deployment gave to ``spark-submit`` or in ``spark-defaults.conf``."""
    from pyspark import SparkConf, SparkContext

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # the JVM that started this process knows the settings
        SparkContext._ensure_initialized()
        return {key for key, _ in SparkConf().getAll()}
    folder = os.environ.get("SPARK_CONF_DIR") or str(Path(os.environ.get("SPARK_HOME", "/nowhere")) / "conf")
    defaults = Path(folder) / "spark-defaults.conf"
    if not defaults.is_file():
        return set()
    lines = (line.strip() for line in defaults.read_text(encoding="utf-8").splitlines())
    return {re.split(r"[\s=:]", line, maxsplit=1)[0] for line in lines if line and line[0] not in "#!"}
