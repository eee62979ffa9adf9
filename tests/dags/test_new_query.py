"""A query file that comes when its streams have their rows: a real scheduler runs it once by itself, and not again after a restart."""

import time

import pytest

from tests.dags.support import LONG, Project, free_port
from tests.support import events

pytestmark = pytest.mark.skipif(not LONG, reason="minutes long: `make test-long`")

RUNS = """
import json
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
with create_session() as session:
    print(json.dumps({
        "runs": [
            [r.run_type, str(getattr(r.state, "value", r.state)), sorted([t.task_id, t.state] for t in r.task_instances)]
            for r in session.query(DagRun).filter(DagRun.dag_id == "near").order_by(DagRun.id)
        ],
        "parsed": session.get(DagModel, "near").last_parsed_time.timestamp() if session.get(DagModel, "near") else 0,
    }))
"""


def until(project, done, seconds=300):
    """What the database says of the query's DAG, as soon as it is as wanted."""
    deadline = time.monotonic() + seconds
    while not done(found := project.python(RUNS)):
        assert time.monotonic() < deadline, found
        time.sleep(3)
    return found


def test_it_runs_once(tmp_path):
    project = Project(tmp_path / "project").write(("near",))
    rows = events.write(events.disordered(3, rows=120).drop_columns(["seq"]), tmp_path / "rows.parquet")
    project.call("latecomer", "ingest", "--lake", str(project.lake), "--by", "stream", rows)
    settings = project.folder / "settings.env"
    changed = project.settings | {"AIRFLOW__API__PORT": str(free_port())}
    settings.write_text("".join(f"{key}={value}\n" for key, value in changed.items()))
    once = ["scheduled", "success", [["check", "success"], ["run", "success"]]]
    try:
        project.call("bash", "infra/airflow.sh", "up", str(settings), timeout=400)
        until(project, lambda found: found["runs"] == [once])
        project.call("bash", "infra/airflow.sh", "down", str(settings))
        stopped = time.time()
        project.call("bash", "infra/airflow.sh", "up", str(settings), timeout=400)
        until(project, lambda found: found["parsed"] > stopped)
        time.sleep(30)  # some turns of the scheduler, about a second each
        assert project.python(RUNS)["runs"] == [once]
    finally:
        project.call("bash", "infra/airflow.sh", "down", str(settings))
