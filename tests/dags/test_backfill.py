"""``airflow backfill create`` with a real scheduler: its answers equal the live ones, and twice is once."""

import time

import pytest

from tests.dags.support import LONG, free_port

pytestmark = pytest.mark.skipif(not LONG, reason="minutes long: `make test-long`")

DAG = "pairs__backfill"
# cron gives one minute per run; the events lie between 22:13:20 and 22:14:20
RANGE = ("--from-date", "2023-11-14T22:13:00+00:00", "--to-date", "2023-11-14T22:14:00+00:00")
STATES = """
import json, sys
from airflow.models.backfill import Backfill
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
with create_session() as session:
    runs = session.query(DagRun).filter(DagRun.dag_id == sys.argv[1], DagRun.run_type == "backfill").all()
    backfills = session.query(Backfill).all()
    print(json.dumps({
        "done": len(backfills) >= int(sys.argv[2]) and all(b.completed_at for b in backfills),
        "runs": sorted(
            [r.logical_date.isoformat(), str(getattr(r.state, "value", r.state)), r.clear_number] for r in runs
        ),
    }))
"""


@pytest.fixture(scope="module")
def scheduler(filled):
    """A project with `airflow.sh up` on the filled lake and every DAG paused but the backfill's."""
    project, _ = filled
    settings = project.folder / "settings.env"
    changed = project.settings | {
        "AIRFLOW__API__PORT": str(free_port()),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
    }
    settings.write_text("".join(f"{key}={value}\n" for key, value in changed.items()))
    project.call("airflow", "dags", "pause", "--yes", "--treat-dag-id-as-regex", ".*", codes=(0, 1))
    try:
        project.call("bash", "infra/airflow.sh", "up", str(settings), timeout=400)
        project.call("airflow", "dags", "unpause", "--yes", DAG)
        yield project
    finally:
        project.call("bash", "infra/airflow.sh", "down", str(settings))


def backfill(project, number, *more):
    """Create a backfill, wait until Airflow says that it is complete, and return its runs."""
    deadline = time.monotonic() + 600
    command = ("airflow", "backfill", "create", "--dag-id", DAG, *RANGE, *more)
    # SQLite has one writer: if the scheduler writes just then, Airflow undoes the backfill and says so
    while "database is locked" in (said := project.call(*command, codes=(0, 1), both=True)):
        assert time.monotonic() < deadline, said
        time.sleep(2)
    while time.monotonic() < deadline:
        state = project.python(STATES, DAG, str(number))
        if state["done"]:
            return state["runs"]
        time.sleep(3)
    raise AssertionError(f"backfill {number} did not end (scheduler's log in {project.folder}): {state}")


def test_airflows_backfill_equals_the_live_answers_and_twice_is_once(scheduler):
    live = scheduler.table("pairs", "results")
    assert live.num_rows > 0
    runs = backfill(scheduler, 1)
    assert [state for _, state, _ in runs] == ["success", "success"], runs
    written = scheduler.stored("backfill", "pairs")
    keys = ("window_start", "window_end", "r_seq", "s_seq", "r_note", "s_v")
    assert {tuple(row[key] for key in keys) for row in written} == set(
        zip(*(live[key].to_pylist() for key in keys), strict=True)
    )
    assert scheduler.table("pairs", "results").equals(live)

    again = backfill(scheduler, 2, "--reprocess-behavior", "completed")
    assert [(day, state) for day, state, _ in again] == [(day, state) for day, state, _ in runs]
    assert scheduler.stored("backfill", "pairs") == written
    assert scheduler.table("pairs", "results").equals(live)
