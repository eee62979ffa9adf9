"""The wheel in an Airflow of one's own, outside the checkout: a DAG file of two lines answers a dropped file.

The newest Airflow runs with its scheduler, DAG processor, triggerer and API server; the oldest that the package allows
runs the same DAGs by ``dag.test()``.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.dags.support import free_port
from tests.end_to_end.test_wheel import ROOT, UV, checked, newest_python
from tests.support import events
from tests.support.livy import Livy

DAG_FILE = "from latecomer.airflow import latecomer_dags\nglobals().update(latecomer_dags())\n"
QUERY = """name: sums
kind: aggregate
streams: {s: a}
group_by: [k]
window: {size: 10 s, slide: 5 s}
select: {rows_seen: count(), total: sum(v)}
quality: {error: 0.3, probability: 0.5, period: 20 s}
strategy: {name: hpm, gamma: 5 s}
"""
TESTED = """
import json
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import conf
bag = DagBag(conf.get("core", "dags_folder"))
assert not bag.import_errors, bag.import_errors
states = {}
for name in ("latecomer_ingest", "sums", "sums__repair"):
    run = bag.dags[name].test()
    states[name] = {t.task_id: str(getattr(t.state, "value", t.state)) for t in run.get_task_instances()}
print(json.dumps(states))
"""
KNOWN = """
import json
from airflow import plugins_manager
from airflow.providers_manager import ProvidersManager
from airflow.configuration import conf
plugins, errors = plugins_manager._get_plugins()
manager = ProvidersManager()
manager.initialize_providers_configuration()
print(json.dumps({
    "plugins": [plugin.name for plugin in plugins if plugin.name == "latecomer"],
    "errors": [error for error in errors if "latecomer" in error],
    "provider": "latecomer" in manager.providers,
    "links": sorted(link for link in manager.extra_links_class_names if "latecomer" in link),
    "section": conf.has_section("latecomer"),
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    checked(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (file,) = folder.glob("*.whl")
    return file


def own_airflow(wheel, folder, python, *versions):
    """Install the wheel with Airflow, write the DAG file and a query, and return commands and environment."""
    install = os.environ | {"UV_SYSTEM_CERTS": "1"}
    checked(UV, "venv", "--quiet", "--python", python, folder / "venv")
    target = ["--python", folder / "venv" / "bin" / "python"]
    checked(UV, "pip", "install", "--quiet", *target, f"latecomer[airflow] @ file://{wheel}", *versions, env=install)
    home = folder / "airflow"
    (home / "dags" / "queries").mkdir(parents=True)
    (home / "dags" / "latecomer.py").write_text(DAG_FILE)
    (home / "dags" / "queries" / "sums.yaml").write_text(QUERY)
    (home / "latecomer" / "landing" / "a").mkdir(parents=True)
    ours = ("LATECOMER_", "PYTHON", "SPARK_", "AIRFLOW_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    environment |= {
        "HOME": str(folder),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "LATECOMER_JARS": str(ROOT / ".jvm" / "jars"),
        "LATECOMER_DRIVER_MEMORY": "1g",
    }
    commands = folder / "venv" / "bin"
    checked(commands / "airflow", "db", "migrate", env=environment, cwd=folder)
    return commands, environment


def drop_file(folder, minute=0):
    """Put a file of rows into the landing folder, whole at once; their event times are of that minute."""
    table = events.disordered(3, rows=200)
    times = pc.add(table["event_ts"], minute * 60_000_000)
    table = table.set_column(table.column_names.index("event_ts"), "event_ts", times)
    rows = table.filter([name == "a" for name in table["stream"].to_pylist()]).drop_columns(["seq", "stream"])
    events.write(rows, folder / "rows.parquet")
    shutil.move(folder / "rows.parquet", folder / "airflow" / "latecomer" / "landing" / "a" / f"rows{minute}.parquet")


def published(folder, query="sums"):
    """Return the number of published answers; None if nothing is published."""
    from deltalake import DeltaTable

    table = folder / "airflow" / "latecomer" / "lake" / "results" / query
    return DeltaTable(str(table)).to_pyarrow_table().num_rows if (table / "_delta_log").is_dir() else None


def test_the_oldest_airflow_answers_a_dropped_file(wheel, tmp_path):
    """Airflow 3.2 has no retry policies and no events of several partitions; the DAGs need neither.

    It needs packages of its time, as its constraint files state them.
    """
    of_its_time = ("fastapi<0.137", "cadwyn<6.2", "starlette>=1.0.1,<1.1", "svcs<26")
    oldest = ("apache-airflow>=3.2,<3.3", "apache-airflow-core>=3.2,<3.3", *of_its_time)
    commands, environment = own_airflow(wheel, tmp_path, sys.executable, *oldest)
    drop_file(tmp_path)
    ran = checked(commands / "python", "-c", TESTED, env=environment, cwd=tmp_path)
    states = json.loads(ran.splitlines()[-1])
    assert states["latecomer_ingest"] == {"ingest_a": "success", "every_folder": "success"}
    assert states["sums"] == {"advance": "success"}
    assert set(states["sums__repair"]) == {"repair", "check", "publish"}
    assert published(tmp_path) > 10


def git_bundle(folder):
    """Return the settings of two DAG bundles: the folder of DAG files, and a bare Git repository with another."""
    work, bare = folder / "work", folder / "dags.git"
    (work / "team" / "queries").mkdir(parents=True)
    (work / "team" / "latecomer_dags.py").write_text(
        DAG_FILE.replace("latecomer_dags())", "latecomer_dags(ingest=False))")
    )
    (work / "team" / "queries" / "of_git.yaml").write_text(QUERY.replace("name: sums", "name: of_git"))
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "init.defaultBranch=main"]
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["commit", "-q", "-m", "queries"],
        ["clone", "-q", "--bare", ".", bare],
    ):
        checked(*git, *command, cwd=work)
    bundles = [
        {"name": "dags-folder", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {}},
        {
            "name": "team",
            "classpath": "airflow.providers.git.bundles.git.GitDagBundle",
            "kwargs": {"repo_url": str(bare), "tracking_ref": "main", "subdir": "team"},
        },
    ]
    return {"AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles)}


class Parts:
    """Airflow's processes, each the leader of a group, and rows of its database."""

    def __init__(self, commands, folder, environment):
        self.commands, self.folder, self.environment = commands, folder, environment
        self.processes = {}

    def start(self, name, *options):
        with open(self.folder / f"{name}.log", "a") as log:
            command = [str(self.commands / "airflow"), name, *options]
            settings = {"stdout": log, "stderr": log, "cwd": self.folder, "env": self.environment}
            self.processes[name] = subprocess.Popen(command, start_new_session=True, **settings)

    def kill(self, name):
        part = self.processes.pop(name)
        os.killpg(part.pid, signal.SIGKILL)
        part.wait()

    def rows(self, sql):
        database = f"file:{self.folder / 'airflow' / 'airflow.db'}?mode=ro"
        with closing(sqlite3.connect(database, uri=True, timeout=30)) as connection:
            return connection.execute(sql).fetchall()

    def until(self, done, seconds=400):
        """Wait until something holds; return the seconds."""
        started = time.monotonic()
        while not done():
            logs = sorted(self.folder.glob("*.log"))
            tails = "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in logs)
            assert all(part.poll() is None for part in self.processes.values()), tails
            assert time.monotonic() - started < seconds, tails
            time.sleep(0.5)
        return time.monotonic() - started

    def end(self):
        for part in self.processes.values():
            os.killpg(part.pid, signal.SIGTERM)
        for part in self.processes.values():
            try:
                part.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(part.pid, signal.SIGKILL)


RUNS_OF_INGEST = "select run_type, state from dag_run where dag_id = 'latecomer_ingest' order by id"
WATCHED = "select count(*) from trigger where triggerer_id is not null and classpath like 'latecomer.airflow.watch.%'"


@pytest.fixture(scope="module")
def newest(wheel, tmp_path_factory):
    """The newest Airflow with providers for Git and Livy: its folder, its commands and their environment."""
    folder = tmp_path_factory.mktemp("newest")
    providers = [f"apache-airflow-providers-{name}" for name in ("git", "apache-livy")]
    return folder, *own_airflow(wheel, folder, newest_python(), *providers)


def test_the_newest_airflow_answers_a_dropped_file(newest):
    """The triggerer notices the file; a DAG file and a query that lie in a Git repository are there too."""
    tmp_path, commands, environment = newest
    known = json.loads(checked(commands / "python", "-c", KNOWN, env=environment, cwd=tmp_path).splitlines()[-1])
    links = [f"latecomer.airflow.links.{name}" for name in ("ReportLink", "SparkUiLink")]
    assert known == {"plugins": ["latecomer"], "errors": [], "provider": True, "links": links, "section": True}
    port = free_port()
    environment |= git_bundle(tmp_path) | {
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API_AUTH__JWT_SECRET": "x" * 64,
        "AIRFLOW__LATECOMER__WATCH_SECONDS": "2",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
    }
    airflow = Parts(commands, tmp_path, environment)
    try:
        for name in ("api-server", "dag-processor"):
            airflow.start(name)
        for name in ("scheduler", "triggerer"):
            airflow.start(name, "--skip-serve-logs")
        names = {"latecomer_ingest", "sums", "of_git"}
        airflow.until(lambda: names <= {name for (name,) in airflow.rows("select dag_id from dag where not is_paused")})
        airflow.until(lambda: airflow.rows(WATCHED) == [(1,)])
        drop_file(tmp_path)  # into an Airflow that runs
        seconds = airflow.until(lambda: published(tmp_path))
        print(f"answered {seconds:.0f} s after the file was dropped")
        airflow.until(lambda: published(tmp_path, "of_git"))
        time.sleep(8)  # some more looks
        assert airflow.rows(RUNS_OF_INGEST) == [("asset_triggered", "success")]
        before = published(tmp_path)
        airflow.kill("triggerer")
        drop_file(tmp_path, minute=2)
        airflow.start("triggerer", "--skip-serve-logs")
        seconds = airflow.until(lambda: published(tmp_path) > before)
        print(f"answered {seconds:.0f} s after the triggerer was killed")
        airflow.until(lambda: airflow.rows(RUNS_OF_INGEST) == [("asset_triggered", "success")] * 2)
        folders = dict(airflow.rows("select dag_id, bundle_name from dag"))
        assert (folders["sums"], folders["of_git"]) == ("dags-folder", "team")
    finally:
        airflow.end()
    assert published(tmp_path, "of_git") > 10
    assert {"sums.html", "of_git.html"} <= {page.name for page in (tmp_path / "airflow/latecomer/reports").iterdir()}
    assert not Path(tmp_path, "build").exists()


INGEST_BY_LIVY = """
with DAG("ingest_by_livy", schedule=None):
    for name, file in (("ingest", os.environ["ROWS"]), ("fail", "/no/such/file.parquet")):
        arguments = ["--stream", "a", file]
        LivyLatecomerOperator(task_id=name, action="ingest", arguments=arguments, conn_id="latecomer_livy")
"""
BY_LIVY = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from latecomer.airflow.submit import application, submit_hook
bag = DagBag(sys.argv[1])
assert not bag.import_errors, bag.import_errors
states = {}
for name in ("ingest_by_livy", "sums_by_livy"):
    run = bag.dags[name].test()
    states |= {t.task_id: str(getattr(t.state, "value", t.state)) for t in run.get_task_instances()}
hook = submit_hook("latecomer_submit", sys.argv[2:], name="n", memory="1g", properties="")
line = hook._build_spark_submit_command(application())
print(json.dumps({"states": states, "line": line[line.index(application()):]}))
"""


def test_livy_submits_the_command_line_of_spark_submit(newest, tmp_path):
    """The example DAG, over HTTP, with a server that holds requests against the documented schema; it is no Livy."""
    _, commands, environment = newest
    dags, lake = tmp_path / "dags", tmp_path / "lake"
    dags.mkdir()
    example = (ROOT / "include" / "dags" / "answers_by_livy.py").read_text()
    (dags / "answers_by_livy.py").write_text(example + INGEST_BY_LIVY)
    (dags / "sums.yaml").write_text(QUERY)
    table = events.disordered(3, rows=200).drop_columns(["seq", "stream"]).sort_by("event_ts")  # nothing to repair
    rows = events.write(table, tmp_path / "rows.parquet")
    properties = tmp_path / "cluster.properties"
    checked(sys.executable, ROOT / "infra" / "spark_properties.py", properties, cwd=ROOT)
    submit = [str(commands / "spark-submit"), "--properties-file", str(properties)]
    batches = environment | {"PYSPARK_PYTHON": str(commands / "python")}
    with Livy(submit, batches, tmp_path) as livy:
        connection = {"conn_type": "livy", "host": "127.0.0.1", "port": livy.server_port, "schema": "http"}
        more = {
            "AIRFLOW_CONN_LATECOMER_LIVY": json.dumps(connection),
            "AIRFLOW_CONN_LATECOMER_SUBMIT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
            "LATECOMER_LIVY_QUERY": str(dags / "sums.yaml"),
            "LATECOMER_LAKE": str(lake),
            "LATECOMER_REPORTS": str(tmp_path / "reports"),
            "ROWS": str(rows),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        }
        run = ["run", str(dags / "sums.yaml"), "--lake", str(lake)]
        said = checked(commands / "python", "-c", BY_LIVY, dags, *run, env=environment | more, cwd=tmp_path)
    done = json.loads(said.splitlines()[-1])
    logs = "".join(path.read_text()[-1500:] for path in sorted(tmp_path.glob("batch-*.log")))
    assert done["states"] == {"ingest": "success", "fail": "failed", "advance": "success"}, logs
    assert livy.refused == [] and "/no/such/file.parquet: no such file" in logs
    assert [request["args"][0] for request in livy.requests] == ["ingest", "ingest", "run"]
    request = livy.requests[2]
    assert [request["file"], *request["args"]] == done["line"] and request["driverMemory"] == "1g"
    table = lake / "results" / "sums"
    assert (table / "_delta_log").is_dir() and (tmp_path / "reports" / "sums.html").is_file()
