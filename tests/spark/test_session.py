"""Spark's settings: what a deployment gives wins over what the product sets, but for what results depend on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from latecomer.lake.lake import Lake
from latecomer.spark.engine.query_columns import sql
from latecomer.spark.engine.session import FIRST_COMPILER_ROWS, java_options, session, settings
from latecomer.spark.engine.tuning import (
    MANY_RESULTS,
    ONE_TASK_ROWS,
    SMALL_ROWS,
    tune,
    tuned_for_many_results,
    tuning,
)
from latecomer.specs.expressions import Literal
from py4j.java_gateway import JavaClass, JVMView
from pyspark.sql import functions as F

PRINTED = """
import json
from latecomer.lake.lake import Lake
from latecomer.spark.engine.session import settings
print("SET", json.dumps(settings(Lake("lake"))))
"""
NAMES = {"spark.master", "spark.sql.shuffle.partitions"}


def test_spark_submit_wins(tmp_path):
    script = tmp_path / "printed.py"
    script.write_text(PRINTED, encoding="utf-8")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    given = ["--master", "local[1]", "--conf", "spark.sql.shuffle.partitions=7"]
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([submit, *given, script], capture_output=True, text=True, check=True, env=env, timeout=120)
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("SET ")]
    found = json.loads(line.removeprefix("SET "))
    assert not NAMES & set(found)
    assert "spark.driver.memory" in found


def test_spark_defaults_win(tmp_path, monkeypatch):
    assert set(settings(Lake("lake"))) >= NAMES
    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment\nspark.master  spark://host:7077\nspark.sql.shuffle.partitions=7\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert not NAMES & set(settings(Lake("lake")))


def test_times_do_not_depend_on_the_zone_of_a_deployment(tmp_path):
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.sql.session.timeZone Europe/Berlin\nspark.sql.ansi.enabled false\nspark.sql.caseSensitive true\n"
    )
    (tmp_path / "a.csv").write_text("event_ts,at\n2024-06-01T12:00:00,2024-06-01T00:30:00\n")
    command = [sys.executable, "-m", "latecomer.jobs.cli", "ingest", "--lake", "lake", "--stream", "s", "a.csv"]
    env = os.environ | {"SPARK_CONF_DIR": str(tmp_path)}
    subprocess.run(
        [*command, "--timezone", "UTC"], capture_output=True, text=True, check=True, cwd=tmp_path, env=env, timeout=120
    )
    (row,) = Lake(tmp_path / "lake").table("events", "s").read().to_pylist()
    assert [row[name].isoformat() for name in ("event_ts", "at")] == [
        "2024-06-01T12:00:00+00:00",
        "2024-06-01T00:30:00+00:00",
    ]


def test_a_session_that_was_there_before_is_made_to_mean_the_same(spark, tmp_path):
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        assert session(Lake(tmp_path)) is spark and spark.conf.get("spark.sql.session.timeZone") == "UTC"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_text_of_a_query_is_what_it_says(spark, tmp_path):
    """Spark would put a variable of the environment in the place of ``${env:NAME}``: a password, at worst."""
    texts = [
        "${env:HOME}",
        "${spark.master}",
        "${nothing} $x $",
        "a'b\"c\\n{}`%_",
        "\\u0024",
        "Köln \U0001d11e",
        "".join(map(chr, range(1, 128))),
    ]
    odd = {"spark.sql.variable.substitute": "true", "spark.sql.parser.escapedStringLiterals": "true"}
    for key, value in odd.items():
        spark.conf.set(key, value)
    session(Lake(tmp_path))
    assert not {key: spark.conf.get(key) for key in odd}.items() & odd.items()
    written = [sql(Literal(text)) for text in texts]
    assert list(spark.range(1).selectExpr(*written).first()) == texts
    spark.conf.set("spark.sql.variable.substitute", "true")
    try:
        assert list(spark.range(1).selectExpr(*written).first()) == texts, "whatever a session says"
    finally:
        spark.conf.set("spark.sql.variable.substitute", "false")


def test_one_partition_for_few_rows_and_as_many_as_were_given_for_more(spark):
    given = {"spark.sql.shuffle.partitions": "7", "spark.sql.leafNodeDefaultParallelism": "3"}
    before = {key: spark.conf.get(key, None) for key in given}

    def partitions():
        table = pa.table({"k": list(range(50))})
        grouped = spark.range(50).groupBy(F.col("id") % 10).count()
        return spark.createDataFrame(table).rdd.getNumPartitions(), grouped.rdd.getNumPartitions()

    tune(spark, SMALL_ROWS + 1)  # whatever other tests left
    try:
        for key, value in given.items():
            spark.conf.set(key, value)
        for rows, arrived in ((ONE_TASK_ROWS, None), (9, ONE_TASK_ROWS), (10, 10)):
            tune(spark, rows, arrived)
            assert partitions() == (1, 1), (rows, arrived)
        for rows, arrived in ((ONE_TASK_ROWS + 1, None), (9, ONE_TASK_ROWS + 1)):
            tune(spark, rows, arrived)
            assert partitions() == (3, 7), (rows, arrived)
        spark.conf.unset("spark.sql.leafNodeDefaultParallelism")
        tune(spark, 1)
        tune(spark, 1 << 40)
        assert spark.conf.get("spark.sql.leafNodeDefaultParallelism", None) is None
        assert {key: spark.conf.get(key, None) for key in given} == given | {
            "spark.sql.leafNodeDefaultParallelism": None
        }
    finally:
        for key, value in before.items():
            spark.conf.unset(key) if value is None else spark.conf.set(key, value)


def test_a_small_job_with_many_results_is_planned_as_a_large_one(spark):
    uncompiled = tuning(1_000)
    assert uncompiled["spark.sql.codegen.wholeStage"] == "false" and tuning(1_000, results=MANY_RESULTS) == uncompiled
    assert tuning(1_000, results=MANY_RESULTS + 1) == tuning(SMALL_ROWS + 1)
    assert tuning(10, ONE_TASK_ROWS, MANY_RESULTS + 1) == tuning(SMALL_ROWS + 1)
    tune(spark, SMALL_ROWS + 1)
    given = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        spark.conf.set("spark.sql.shuffle.partitions", "7")
        tune(spark, 10)
        before = {key: spark.conf.get(key) for key in uncompiled}
        with pytest.raises(ZeroDivisionError), tuned_for_many_results(spark):
            assert spark.conf.get("spark.sql.codegen.wholeStage") == "true"
            assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
            raise ZeroDivisionError
        assert {key: spark.conf.get(key) for key in uncompiled} == before
        tune(spark, SMALL_ROWS + 1)
        assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", given)


def test_classes_of_the_jvm_are_looked_up_once(spark, monkeypatch):
    """PySpark asks for them by name for each expression; some lookups go through every jar."""
    asked = []
    for kind in (JVMView, JavaClass):
        lookup = kind.__getattr__
        monkeypatch.setattr(kind, "__getattr__", lambda self, name, f=lookup: asked.append(name) or f(self, name))
    rows = spark.createDataFrame(pa.table({"a": [1, 2, 3]})).where(F.col("a") > F.lit(1))
    found = rows.select((F.col("a") + 1).alias("b"), F.expr("a * 2")).groupBy("b").agg(F.sum("b").alias("c")).toArrow()
    assert sorted(found["c"].to_pylist()) == [3, 4]
    assert not {"functions", "PythonUtils", "PythonSQLUtils", "col", "lit", "expr", "toSeq"} & set(asked), asked
    assert spark._jvm.functions.col is spark._jvm.functions.col
    assert spark._jvm.java is not spark._jvm.java, "what is not looked up once is seen here"
    assert asked.count("java") == 2


def test_tasks_of_airflow_start_from_the_class_archive(tmp_path):
    script, root = tmp_path / "mapped.py", Path(__file__).parents[2]
    script.write_text(
        "from pathlib import Path\nfrom pyspark.sql import SparkSession\n"
        "jvm = SparkSession.builder.getOrCreate()._jvm.java.lang.ProcessHandle.current().pid()\n"
        "print('MAPPED', 'latecomer.jsa' in Path(f'/proc/{jvm}/maps').read_text())\n",
        encoding="utf-8",
    )
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    given = ["--master", "local[1]", "--properties-file", root / ".jvm" / "spark.properties"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    ran = subprocess.run(
        [submit, *given, script],
        capture_output=True,
        text=True,
        check=True,
        env=env | {"PYSPARK_PYTHON": sys.executable},
        timeout=120,
    )
    assert "MAPPED True" in ran.stdout.splitlines()
    lines = (root / "infra" / "airflow.env").read_text(encoding="utf-8").splitlines()
    assert "LATECOMER_SPARK_PROPERTIES=$ROOT/.jvm/spark.properties" in lines
    assert not any(line.startswith("SPARK_CONF_DIR") for line in lines), (
        "a folder in the class path shuts the archive out"
    )


def test_the_quick_compiler_is_for_jobs_known_to_be_small(monkeypatch):
    monkeypatch.setenv("LATECOMER_JAVA_OPTIONS", "-XX:TieredStopAtLevel=4")
    quick = "-XX:TieredStopAtLevel=1"
    assert quick in java_options(FIRST_COMPILER_ROWS)
    assert quick not in java_options(FIRST_COMPILER_ROWS + 1) and quick not in java_options()
    assert java_options(1).endswith("-XX:TieredStopAtLevel=4"), "what the user says wins, as the JVM takes the last one"
    assert quick in settings(Lake("lake"), 1)["spark.driver.extraJavaOptions"]


def test_a_folder_with_any_letters_under_any_locale(tmp_path):
    folder = tmp_path / "Größe é 数"
    folder.mkdir()
    (folder / "ä.csv").write_text("event_ts,v\n1,1\n2,2\n")
    command = [sys.executable, "-m", "latecomer.jobs.cli", "ingest", "--lake", "lake", "--stream", "s", "ä.csv"]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert (folder / "lake").is_dir()


def test_a_working_directory_that_is_gone(tmp_path):
    code = "import os, sys; os.rmdir(os.getcwd()); from latecomer.jobs.cli import command; command()"
    for arguments in (["status"], ["ingest", "--stream", "s", "a.csv"]):
        folder = tmp_path / arguments[0]
        folder.mkdir()
        ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=folder)
        assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1), ran.stderr
        assert "working directory" in ran.stderr
