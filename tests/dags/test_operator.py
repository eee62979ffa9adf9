"""The operator and the factory by themselves: where Spark runs, how a command ends with its task, which files count."""

import json
import subprocess
import sys
import time

import psutil
import pytest
from latecomer.airflow.submit import Process

from tests.dags.support import Project
from tests.support import events

PLACES = """
import json, os
def connection(**values):
    return json.dumps(values)
os.environ |= {
    "AIRFLOW_CONN_SERVER": connection(
        conn_type="spark_connect", host="spark.example", port=15002, password="s3cret", extra={"use_ssl": True}
    ),
    "AIRFLOW_CONN_WEB": connection(conn_type="http", host="example"),
    "AIRFLOW_CONN_STORE": connection(
        conn_type="aws", login="key", password="s3cret", extra={"endpoint_url": "http://store:9000"}
    ),
}
from airflow.sdk.exceptions import AirflowFailException
from latecomer.airflow import submit
answers = {"none": submit.spark_connection("nowhere") is None, "without": submit.spark_connection(None) is None}
answers["kind"] = submit.spark_connection("server").conn_type
answers["variables"] = submit.connect_variables("server")
try:
    submit.spark_connection("web")
except AirflowFailException as error:
    answers["refused"] = str(error)
answers["before"] = submit.store_variables()
os.environ["LATECOMER_STORE_CONN_ID"] = "store"
answers["store"] = submit.store_variables()
print(json.dumps(answers))
"""


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path / "project").write(("near", "pairs"))


def test_a_connection_says_where_spark_runs_and_its_token_is_in_the_environment_alone(project):
    answers = project.python(PLACES)
    assert answers["none"] and answers["without"] and answers["kind"] == "spark_connect"
    (variable,) = answers["variables"].items()
    assert variable[0] == "LATECOMER_SPARK" and variable[1].startswith("sc://spark.example:15002/;")
    assert "token=s3cret" in variable[1]
    assert answers["refused"].startswith("connection web: type 'http': is none by which Latecomer submits; make it ")
    assert answers["before"] == {}
    assert answers["store"] == {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "AWS_ENDPOINT_URL": "http://store:9000",
    }


def test_a_command_ends_with_its_task_and_so_does_java(tmp_path):
    rows = events.write(events.disordered(3, rows=200).drop_columns(["seq"]), tmp_path / "rows.parquet")
    process = Process(["ingest", "--lake", str(tmp_path / "lake"), "--by", "stream", str(rows)], {})
    leader = psutil.Process(process._process.pid)
    deadline = time.monotonic() + 120
    started = [leader]
    while not any(child.name() == "java" for child in started[1:]):
        assert time.monotonic() < deadline and leader.is_running()
        time.sleep(0.05)
        started = [leader, *leader.children(recursive=True)]
    stopped = time.monotonic()
    process.end()
    assert time.monotonic() - stopped < 15
    gone, alive = psutil.wait_procs(started, timeout=5)
    assert not alive and len(gone) >= 2


FACTORY = """
import json, sys
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
print(json.dumps({
    "errors": bag.import_errors,
    "dags": {name: dag.doc_md for name, dag in bag.dags.items()},
    "queries": sorted({str(t.query) for dag in bag.dags.values() for t in dag.tasks if getattr(t, "query", None)}),
    "lakes": sorted({str(t.lake) for dag in bag.dags.values() for t in dag.tasks if hasattr(t, "lake")}),
}))
"""


def test_files_are_relative_to_the_dag_file_and_problems_have_a_dag(project):
    """The DAG file lies with the query files, as in a Git bundle, and no setting names a place."""
    dags = project.folder / "bundle"
    (dags / "more").mkdir(parents=True)
    near, pairs = ((project.queries / f"{name}.yaml").read_text() for name in ("near", "pairs"))
    (dags / "near.yaml").write_text(near)
    (dags / "more" / "pairs.yml").write_text(pairs)
    (dags / "more" / "wrong.yaml").write_text(near.replace("name: near", "name: <script>"))
    (dags / "latecomer.py").write_text(
        "from latecomer.airflow import latecomer_dags\n"
        'globals().update(latecomer_dags(["near.yaml", "more"], lake="{{ var.value.lake }}", ingest=False))\n'
    )
    parsed = project.python(FACTORY, str(dags))
    assert parsed["errors"] == {}
    assert {"near", "pairs", "latecomer_problems"} <= set(parsed["dags"]) and "latecomer_ingest" not in parsed["dags"]
    problems = parsed["dags"]["latecomer_problems"]
    assert "wrong.yaml:1: name: '<script>'" in problems and "`" in problems.split("<script>")[0]
    assert parsed["queries"] == [str(dags / "more" / "pairs.yml"), str(dags / "near.yaml")]
    assert parsed["lakes"] == ["{{ var.value.lake }}"]


CONNECT = """
import json, os, sys
from pathlib import Path
server = json.loads(Path(sys.argv[1], "latecomer", "spark-server.json").read_text())
os.environ["AIRFLOW_CONN_LATECOMER_SPARK"] = json.dumps(
    {"conn_type": "spark_connect", "host": "localhost", "port": server["port"], "password": server["token"]}
)
from airflow.dag_processing.dagbag import DagBag
dags = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]).dags
states = {}
for name in ("latecomer_ingest", "near"):
    run = dags[name].test()
    states |= {t.task_id: str(getattr(t.state, "value", t.state)) for t in run.get_task_instances()}
print(server["token"] in str([(t.conn_id, t.arguments) for t in dags["near"].tasks]))
print(json.dumps(states))
"""


def test_a_query_is_answered_on_the_server_of_a_connection(project, tmp_path):
    """The server is the one of `latecomer spark start`; neither tasks nor logs have its token."""
    project.migrate()
    (project.landing / "_by_stream").mkdir()
    events.write(events.disordered(11, rows=300).drop_columns(["seq"]), project.landing / "_by_stream" / "rows.parquet")
    server = project.environment | {"XDG_STATE_HOME": str(tmp_path / "state")}
    start, stop = ([sys.executable, "-m", "latecomer.jobs.cli", "spark", step] for step in ("start", "stop"))
    subprocess.run(start, env=server, check=True, timeout=200)
    try:
        token = json.loads((tmp_path / "state" / "latecomer" / "spark-server.json").read_text())["token"]
        said = project.call(sys.executable, "-c", CONNECT, str(tmp_path / "state"), timeout=600, both=True)
    finally:
        subprocess.run(stop, env=server, check=True, timeout=60)
    states = [json.loads(line) for line in said.splitlines() if line.startswith('{"')]
    assert {"ingest__by_stream": "success", "every_folder": "success", "advance": "success"} in states, said[-3000:]
    assert token not in said
    assert project.table("near", "results").num_rows > 0
