"""Commands on Spark Connect servers and on a cluster: the embedded session's tables, and one line where they fail."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from latecomer.ingest.delta_source import file_uri
from latecomer.jobs import init_project
from latecomer.jobs.cli import main
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.spark.engine import connect
from latecomer.spark.engine.jars import jars
from latecomer.spark.engine.session import settings
from latecomer.specs.loading import load_query

from tests.support import lakes, spark_servers
from tests.support.spark_servers import call, environment

ROWS = 1500
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project folder with a query of each kind, and a file of events."""
    folder = tmp_path_factory.mktemp("project") / "shop"
    init_project.make(folder)
    pq.write_table(init_project.example(ROWS), folder / "events.parquet")
    return folder


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """The folder of the server of `latecomer spark start`, which runs as long as this module's tests."""
    folder = tmp_path_factory.mktemp("state")
    started = call(environment(folder), "spark", "start")
    assert started.returncode == 0, started.stderr
    yield folder
    stopped = call(environment(folder), "spark", "stop", timeout=15)
    assert stopped.returncode == 0, stopped.stderr


@pytest.fixture(scope="module")
def embedded(project, spark):
    """The lake that the embedded session of the tests has made."""
    lake = project / "embedded"
    for arguments in steps(project, lake):
        ran = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert ran.exit_code in (0, 1), ran.output
    return Lake(lake)


def steps(project, lake):
    """Return the commands that take all queries from files of events to checked and published answers."""
    events, queries = project / "events.parquet", project / "queries"
    return ["ingest", "--lake", lake, "--by", "stream", events], ["advance", queries, "--lake", lake, "--flush"]


def specs(project):
    return [load_query(path) for path in sorted((project / "queries").glob("*.yaml"))]


def tables(lake, queries):
    """Return every table of the answers, by query, and the events."""
    read = {(spec.name, name): rows for spec in queries for name, rows in lakes.exported(lake, spec).items()}
    for spec in queries:
        published = lake.table("results", spec.name).read().drop_columns(["published_at"])  # the time of the commit
        read[spec.name, "published"] = published.sort_by([(name, "ascending") for name in order(published)])
        if (verdicts := lake.table("verdicts", spec.name).read()) is not None:
            rows = verdicts.drop_columns(["judged"])  # the time of the check
            read[spec.name, "verdicts"] = rows.sort_by([("period_start", "ascending"), ("judgement", "ascending")])
    for stream in ("views", "clicks"):
        read[stream, "events"] = lake.table("events", stream).read().sort_by("seq")
    return read


def order(rows):
    """Return the columns by which rows can be sorted."""
    return [field.name for field in rows.schema if not re.match(r"list|struct|map", str(field.type))]


def same_tables(embedded, lake, queries):
    left, right = tables(embedded, queries), tables(Lake(lake), queries)
    assert left.keys() == right.keys()
    assert sum(rows.num_rows for rows in left.values()) > len(queries) * ROWS / 2
    lakes.same(left, right)


def one_line(ran, *words):
    """Assert that a command failed with one line that has these words, and exit code 4."""
    lines = [line for line in ran.stderr.strip().splitlines() if "micro-batch" not in line]
    assert ran.returncode == 4, (ran.returncode, ran.stderr)
    assert len(lines) == 1 and all(word in lines[0] for word in words), ran.stderr


# ---- the same tables


def test_all_kinds_have_the_tables_of_the_embedded_session(state, project, embedded):
    lake = project / "warm"
    for arguments in steps(project, lake):
        ran = call(environment(state), *arguments, "--spark", "warm")
        assert ran.returncode in (0, 1) and "internal" not in ran.stderr, ran.stderr
        assert "Warning" not in ran.stderr, ran.stderr
    same_tables(embedded, lake, specs(project))


def test_a_server_without_the_package_gets_it_from_the_session(tmp_path, project, embedded):
    """The `latecomer` of this server's workers cannot be imported: it is the session's, or the test fails."""
    other = tmp_path / "other" / "latecomer"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise ImportError('the package of the server was imported')\n")
    path = ":".join(map(str, jars()))
    values = DELTA | {"spark.driver.extraClassPath": path, "spark.executor.extraClassPath": path}
    lake = project / "foreign"
    ingest, _ = steps(project, lake)
    queries = [project / "queries" / f"{kind}.yaml" for kind in ("theta_join", "membership")]  # they use the workers
    with spark_servers.plain_server(tmp_path / "server", values, PYTHONPATH=str(other.parent)) as address:
        for arguments in (ingest, ["advance", *queries, "--lake", lake, "--flush"]):
            ran = call(environment(tmp_path, SPARK_REMOTE=address), *arguments, many_rows=True)
            assert ran.returncode in (0, 1) and "internal" not in ran.stderr, ran.stderr
    same_tables(embedded, lake, [load_query(query) for query in queries])


# ---- a cluster of two workers


EXECUTOR = {"spark.executor.memory": "640m", "spark.executor.cores": "1"}
SEVERAL_TASKS = "from latecomer.spark.engine import tuning; tuning.ONE_TASK_ROWS = 0\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The URL of a master on loopback, and its two workers."""
    with spark_servers.standalone_cluster(tmp_path_factory.mktemp("cluster")) as (master, workers):
        yield master, workers


def test_all_kinds_on_a_cluster_by_spark_submit(cluster, tmp_path, project, embedded):
    master, _ = cluster
    values = {key: value for key, value in settings(Lake(".")).items() if key != "spark.master"}
    values |= EXECUTOR | {"spark.executorEnv.PYSPARK_PYTHON": sys.executable}
    values |= {"spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    properties, program, lake = tmp_path / "properties", tmp_path / "submit.py", project / "submitted"
    properties.write_text("".join(f"{key} {value}\n" for key, value in values.items()))
    program.write_text(SEVERAL_TASKS + "from latecomer.jobs.cli import command\ncommand()\n")
    submit = [
        spark_servers.SPARK / "bin" / "spark-submit",
        "--master",
        master,
        "--properties-file",
        properties,
        program,
    ]
    given = environment(tmp_path, SPARK_HOME=str(spark_servers.SPARK), PYSPARK_PYTHON=sys.executable)
    for arguments in steps(project, lake):
        line = [str(part) for part in (*submit, *arguments)]
        ran = subprocess.run(line, env=given, capture_output=True, text=True, timeout=400)
        assert ran.returncode in (0, 1) and "internal" not in ran.stderr, ran.stderr
    same_tables(embedded, lake, specs(project))


def test_all_kinds_on_a_cluster_that_loses_a_worker(cluster, tmp_path, project, embedded):
    """Through a server whose master is the cluster; one worker is killed after the first micro-batch."""
    master, workers = cluster
    state, defaults = tmp_path / "state", tmp_path / "conf"
    defaults.mkdir()
    (defaults / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in EXECUTOR.items()))
    given = environment(state, SPARK_CONF_DIR=str(defaults))
    assert call(given, "spark", "start", "--master", master).returncode == 0
    try:
        lake = project / "cluster"
        ingest, advance = steps(project, lake)
        assert call(given, *ingest, "--spark", "warm").returncode == 0
        program = SEVERAL_TASKS + "from latecomer.jobs.cli import command; command()"
        line = [sys.executable, "-c", program, *map(str, advance), "--spark", "warm"]
        running = subprocess.Popen(line, env=given, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        first = running.stderr.readline()
        assert "micro-batch 0" in first, first + running.stderr.read()
        assert psutil.Process(workers[0].pid).children(recursive=True), "the worker has no executor"
        spark_servers.end_executors(workers[0])
        _, errors = running.communicate(timeout=400)
        assert running.returncode in (0, 1) and "internal" not in errors, errors
    finally:
        call(given, "spark", "stop")
    same_tables(embedded, lake, specs(project))


# ---- servers that cannot be used


def test_no_server_answers(tmp_path, project):
    port = spark_servers.free_port()
    started = time.monotonic()
    ran = call(environment(tmp_path), *steps(project, tmp_path / "lake")[0], "--spark", f"sc://127.0.0.1:{port}")
    one_line(ran, f"sc://127.0.0.1:{port}", "does not answer", "latecomer spark start")
    assert time.monotonic() - started < 15


def test_warm_without_a_server(tmp_path, project):
    ran = call(environment(tmp_path, LATECOMER_SPARK="warm"), *steps(project, tmp_path / "lake")[0])
    one_line(ran, "warm", "is not running", "latecomer spark start")
    assert call(environment(tmp_path), "spark", "status").returncode == 1


def test_a_wrong_token_is_refused(state, tmp_path, project):
    port = json.loads((state / "latecomer" / "spark-server.json").read_text())["port"]
    address = f"sc://127.0.0.1:{port}"
    started = time.monotonic()
    ran = call(environment(tmp_path), *steps(project, tmp_path / "lake")[0], "--spark", f"{address}/;token=other")
    one_line(ran, address, "refuses the token")
    assert "other" not in ran.stderr and time.monotonic() - started < 15


def test_a_server_without_delta_lake(tmp_path, project):
    with spark_servers.plain_server(tmp_path / "server", {}) as address:
        ran = call(environment(tmp_path), *steps(project, tmp_path / "lake")[0], "--spark", address)
    one_line(ran, address, "without Delta Lake", "docs/install.md")


def test_a_server_that_has_the_settings_of_delta_lake_but_not_its_jars(tmp_path, project):
    with spark_servers.plain_server(tmp_path / "server", DELTA) as address:
        ran = call(environment(tmp_path), *steps(project, tmp_path / "lake")[0], "--spark", address)
    one_line(ran, address, "Delta Lake", "docs/install.md")


@pytest.mark.parametrize("value", ["localhost:15002", "sc://", "http://localhost:1", "sc://host:1/;token", "wram"])
def test_what_is_no_address_is_an_error_of_the_input(monkeypatch, value):
    monkeypatch.setenv(connect.VARIABLE, value)
    with pytest.raises(InputError, match="is no address"):
        connect.named()


def test_messages_show_no_token(monkeypatch):
    monkeypatch.setenv(connect.VARIABLE, "http://host:1/;token=secret;x=y")
    with pytest.raises(InputError) as error:
        connect.named()
    assert "secret" not in str(error.value)
    server = connect.Server("sc://host:1/;token=secret")
    assert "secret" not in repr(server) + server.address
    assert connect.Server("sc://127.0.0.1:7/;token=t;x=y").for_pyspark() == "sc://localhost:7/;token=t;x=y"


def test_the_option_wins_over_both_variables(monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://a:1")
    assert connect.named().address == "sc://a:1"
    monkeypatch.setenv(connect.VARIABLE, "sc://b:2")
    assert connect.named().address == "sc://b:2"
    monkeypatch.setenv(connect.VARIABLE, connect.EMBEDDED)
    assert connect.named() is None
    monkeypatch.setenv(connect.VARIABLE, "sc://b:2")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(InputError, match="spark-submit"):
        connect.named()


# ---- a server that ends, and commands that end


def begun(state, project, lake):
    """Begin a run of many micro-batches on a server, and return its process after the first micro-batch."""
    query = project / "queries" / "join.yaml"
    line = ["run", query, "--lake", lake, "--rows-per-batch", 100, "--flush", "--spark", "warm"]
    command = [sys.executable, "-m", "latecomer.jobs.cli", *map(str, line)]
    running = subprocess.Popen(command, env=environment(state), stderr=subprocess.PIPE, text=True)
    first = running.stderr.readline()
    assert "micro-batch 0" in first, first + running.stderr.read()
    return running


def test_a_server_that_is_lost_in_the_middle(tmp_path, project, embedded):
    """The command ends within seconds; the same command, on another server, completes the tables."""
    state, lake = tmp_path / "state", tmp_path / "lake"
    started = json.loads(call(environment(state), "spark", "start", "--json").stdout)
    ingest, _ = steps(project, lake)
    assert call(environment(state), *ingest, "--spark", "warm").returncode == 0
    running = begun(state, project, lake)
    psutil.Process(started["pid"]).kill()
    killed = time.monotonic()
    _, errors = running.communicate(timeout=60)
    ended_s = time.monotonic() - killed
    one_line(subprocess.CompletedProcess([], running.returncode, "", errors), started["address"], "was lost")
    assert ended_s < 15
    assert call(environment(state), "spark", "start").returncode == 0
    try:
        begin = time.monotonic()
        for arguments in steps(project, lake)[1:]:  # no lease is held
            ran = call(environment(state), *arguments, "--spark", "warm")
            assert ran.returncode in (0, 1), ran.stderr
        assert time.monotonic() - begin < 200
        same_tables(embedded, lake, specs(project))
    finally:
        call(environment(state), "spark", "stop")


def test_a_command_that_is_terminated_ends_its_work_on_the_server(state, tmp_path, project):
    lake = tmp_path / "lake"
    ingest, _ = steps(project, lake)
    assert call(environment(state), *ingest, "--spark", "warm").returncode == 0
    running = begun(state, project, lake)
    running.send_signal(signal.SIGTERM)
    sent = time.monotonic()
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 143 and time.monotonic() - sent < 10, errors
    assert "terminated" in errors


# ---- latecomer spark


def test_the_server_is_started_once_and_tells_its_secret_to_nobody(state):
    """Neither a list of processes, nor a log, nor the properties of the server have the token."""
    again = json.loads(call(environment(state), "spark", "start", "--json").stdout)
    shown = call(environment(state), "spark", "status", "--json")
    status = json.loads(shown.stdout)
    assert again["started"] is False and again["pid"] == status["pid"] and shown.returncode == 0
    assert status["uptime_s"] > 0
    folder = state / "latecomer"
    token = json.loads((folder / "spark-server.json").read_text())["token"]
    assert (folder / "spark-server.json").stat().st_mode & 0o077 == 0
    process = psutil.Process(status["pid"])
    assert token not in " ".join(process.cmdline()) and token in process.environ().values()
    others = [path for path in folder.iterdir() if path.name != "spark-server.json"]
    assert others and not any(token in path.read_text(errors="replace") for path in others)
    addresses = {connection.laddr.ip for connection in process.net_connections() if connection.status == "LISTEN"}
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}


def test_a_file_of_the_token_that_others_may_read_is_refused(state, monkeypatch):
    file = state / "latecomer" / "spark-server.json"
    file.chmod(0o644)
    try:
        ran = call(environment(state), "spark", "status")
    finally:
        file.chmod(0o600)
    one_line(ran, str(file), "others may read")


def test_a_server_is_stopped_within_ten_seconds(tmp_path):
    started = json.loads(call(environment(tmp_path), "spark", "start", "--json").stdout)
    process = psutil.Process(started["pid"])
    begin = time.monotonic()
    stopped = json.loads(call(environment(tmp_path), "spark", "stop", "--json").stdout)
    assert stopped["stopped"] == started["pid"] and time.monotonic() - begin < 10
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert json.loads(call(environment(tmp_path), "spark", "stop", "--json").stdout) == {"stopped": None}
    assert os.listdir(tmp_path / "latecomer") and not (tmp_path / "latecomer" / "spark-server.json").exists()


def test_a_server_that_cannot_start_says_why(tmp_path):
    ran = call(environment(tmp_path), "spark", "start", "--master", "nowhere")
    one_line(ran, "ended while it was starting", "Master must", "spark-server.log")
    assert call(environment(tmp_path), "spark", "status").returncode == 1


# ---- places of files, which no JVM is asked for


def test_places_of_files_are_written_as_hadoop_writes_them(spark):
    path = spark._jvm.org.apache.hadoop.fs.Path
    letters = [chr(code) for code in (*range(1, 0x250), *range(0x1FF0, 0x2070), 0x3000, 0xFEFF, 0x1F600)]
    for letter in letters:
        place = f"/lake/a{letter}b=c/file.parquet"
        assert file_uri(place) == str(path(place).toUri().toString()), hex(ord(letter))
    assert file_uri("s3a://bucket/a b/%20.parquet") == "s3a://bucket/a%20b/%2520.parquet"
