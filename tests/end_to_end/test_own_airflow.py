"""The wheel in an Airflow of one's own, outside the checkout: a DAG file of two lines answers a dropped file.

The newest Airflow runs with its scheduler, DAG processor and API server; the oldest that the package allows runs the
same DAGs by ``dag.test()``.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.dags.support import free_port
from tests.end_to_end.test_wheel import ROOT, UV, checked, newest_python
from tests.support import events

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
        "AIRFLOW__LATECOMER__INGEST_SCHEDULE": "* * * * *",
        "LATECOMER_JARS": str(ROOT / ".jvm" / "jars"),
        "LATECOMER_DRIVER_MEMORY": "1g",
    }
    commands = folder / "venv" / "bin"
    checked(commands / "airflow", "db", "migrate", env=environment, cwd=folder)
    return commands, environment


def drop_file(folder):
    """Put a file of rows into the landing folder, whole at once."""
    table = events.disordered(3, rows=200)
    rows = table.filter([name == "a" for name in table["stream"].to_pylist()]).drop_columns(["seq", "stream"])
    events.write(rows, folder / "rows.parquet")
    shutil.move(folder / "rows.parquet", folder / "airflow" / "latecomer" / "landing" / "a" / "rows.parquet")


def published(folder):
    """Return the number of published answers; None if nothing is published."""
    from deltalake import DeltaTable

    table = folder / "airflow" / "latecomer" / "lake" / "results" / "sums"
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


def test_the_newest_airflow_answers_a_dropped_file(wheel, tmp_path):
    commands, environment = own_airflow(wheel, tmp_path, newest_python())
    known = json.loads(checked(commands / "python", "-c", KNOWN, env=environment, cwd=tmp_path).splitlines()[-1])
    links = [f"latecomer.airflow.links.{name}" for name in ("ReportLink", "SparkUiLink")]
    assert known == {"plugins": ["latecomer"], "errors": [], "provider": True, "links": links, "section": True}
    port = free_port()
    environment |= {
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API_AUTH__JWT_SECRET": "x" * 64,
    }
    parts, logs = [], tmp_path / "logs"
    logs.mkdir()
    try:
        for part in (["api-server"], ["dag-processor"], ["scheduler", "--skip-serve-logs"]):
            with open(logs / part[0], "w") as log:
                command = [str(commands / "airflow"), *part]
                options = {"stdout": log, "stderr": log, "cwd": tmp_path, "env": environment}
                parts.append(subprocess.Popen(command, start_new_session=True, **options))
        time.sleep(20)  # the file is dropped into an Airflow that runs
        drop_file(tmp_path)
        started = time.monotonic()
        while not published(tmp_path):
            tails = "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in sorted(logs.iterdir()))
            assert all(part.poll() is None for part in parts), tails
            assert time.monotonic() - started < 400, tails
            time.sleep(2)
        print(f"answered {time.monotonic() - started:.0f} s after the file was dropped")
    finally:
        for part in parts:
            os.killpg(part.pid, signal.SIGTERM)
        for part in parts:
            try:
                part.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(part.pid, signal.SIGKILL)
    assert published(tmp_path) > 10
    assert (tmp_path / "airflow" / "latecomer" / "reports" / "sums.html").is_file()
    assert not Path(tmp_path, "build").exists()
