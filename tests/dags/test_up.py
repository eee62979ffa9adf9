"""`make up` seen from outside: a new query runs once, also over a restart; every port listens on this machine only."""

import os
import time
from pathlib import Path

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
            [
                r.run_type,
                str(getattr(r.state, "value", r.state)),
                sorted([t.task_id, t.state] for t in r.task_instances),
            ]
            for r in session.query(DagRun).filter(DagRun.dag_id == "near").order_by(DagRun.id)
        ],
        "parsed": session.get(DagModel, "near").last_parsed_time.timestamp() if session.get(DagModel, "near") else 0,
    }))
"""


def until(project, done, seconds=300):
    """Wait until `done` holds for the runs of the query's DAG in Airflow's database, and return them."""
    deadline = time.monotonic() + seconds
    while not done(runs := project.python(RUNS)):
        assert time.monotonic() < deadline, runs
        time.sleep(3)
    return runs


def listening(home):
    """Return the addresses and ports that Airflow's processes listen on, as the kernel writes them."""
    groups = {int(line) for line in (home / "pids").read_text().split()}
    sockets = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) in groups:
                sockets |= {os.readlink(file) for file in (process / "fd").iterdir()}
        except OSError:
            continue  # it has ended
    addresses = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *more = line.split()
            if state == "0A" and f"socket:[{more[5]}]" in sockets:
                addresses.add(tuple(local.split(":")))
    return addresses


def test_a_new_query_runs_once_and_nothing_listens_outside(tmp_path):
    project = Project(tmp_path / "project").write(("near",))
    rows = events.write(events.disordered(3, rows=120).drop_columns(["seq"]), tmp_path / "rows.parquet")
    project.call("latecomer", "ingest", "--lake", str(project.lake), "--by", "stream", rows)
    settings = project.folder / "settings.env"
    port = free_port()
    changed = project.settings | {"AIRFLOW__API__PORT": str(port)}
    settings.write_text("".join(f"{key}={value}\n" for key, value in changed.items()))
    once = ["scheduled", "success", [["advance", "success"]]]
    try:
        project.call("bash", "infra/airflow.sh", "up", str(settings), timeout=400)
        until(project, lambda answer: answer["runs"] == [once])
        addresses = listening(project.folder / "airflow")
        assert addresses == {("0100007F", f"{port:04X}")}  # 127.0.0.1
        project.call("bash", "infra/airflow.sh", "down", str(settings))
        stopped = time.time()
        project.call("bash", "infra/airflow.sh", "up", str(settings), timeout=400)
        until(project, lambda answer: answer["parsed"] > stopped)
        time.sleep(30)  # some turns of the scheduler, about a second each
        first, *others = project.python(RUNS)["runs"]
        # its schedule, should the hour be over meanwhile, finds nothing to do
        assert first == once and all({state for _, state in tasks} == {"skipped"} for _, _, tasks in others)
    finally:
        project.call("bash", "infra/airflow.sh", "down", str(settings))
