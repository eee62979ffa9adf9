"""The DAG folder as Airflow reads it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import json, os, sys
sys.path.insert(0, os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
print(json.dumps({
    "errors": {path.rsplit("/", 1)[-1]: text for path, text in bag.import_errors.items()},
    "dags": {name: {t.task_id: sorted(t.downstream_task_ids) for t in dag.tasks} for name, dag in bag.dags.items()},
    "connections": sorted({t._conn_id for dag in bag.dags.values() for t in dag.tasks if hasattr(t, "_conn_id")}),
}))
"""


def parse(tmp_path, queries):
    import json

    env = os.environ | {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(tmp_path / "none"),
        "LATECOMER_QUERIES": str(queries),
        "LATECOMER_LANDING": str(tmp_path / "landing"),
    }
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1500:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_a_dag_per_query_and_no_import_error(tmp_path):
    (tmp_path / "landing" / "clicks").mkdir(parents=True)
    (tmp_path / "landing" / "_by_kind").mkdir()
    found = parse(tmp_path, ROOT / "include" / "queries")
    assert found["errors"] == {}
    assert found["dags"]["flights_with_weather"] == {"run": ["repair"], "repair": ["check"], "check": []}
    assert found["dags"]["flights_with_weather__repair"] == {"repair": ["check"], "check": []}
    assert found["dags"]["flights_with_weather__adapt"] == {"adapt": []}
    assert found["dags"]["latecomer_ingest"] == {"ingest__by_kind": ["ingest_clicks"], "ingest_clicks": []}
    assert found["connections"] == ["latecomer_spark"]


def test_a_broken_query_file_costs_its_own_dags_only(tmp_path):
    queries = tmp_path / "queries"
    queries.mkdir()
    good = (ROOT / "include" / "queries" / "flights_with_weather.yaml").read_text()
    (queries / "good.yaml").write_text(good)
    (queries / "bad.yaml").write_text(good.replace("window: 1 h", "window: 1 hour"))
    found = parse(tmp_path, queries)
    assert "flights_with_weather" in found["dags"]
    assert list(found["errors"]) == ["latecomer_query_errors.py"]
    text = found["errors"]["latecomer_query_errors.py"]
    assert "bad.yaml" in text and "window" in text and "unknown unit" in text
