"""The trigger that starts `latecomer_ingest`: as a DAG file states it, and in an event loop as in the triggerer."""

import json

import pytest

from tests.dags.support import Project

PROGRAM = """
import asyncio, json, os, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.module_loading import import_string
dag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]).dags["latecomer_ingest"]
condition = getattr(dag.timetable, "asset_condition", None)
assets = [] if condition is None else list(condition.objects)
done = {"timetable": type(dag.timetable).__name__, "assets": [asset.name for asset in assets]}
if assets:
    (watcher,) = assets[0].watchers
    path, arguments = watcher.trigger.serialize()
    done["arguments"] = json.loads(json.dumps(arguments))
    trigger = import_string(path)(**(arguments | json.loads(sys.argv[1])))
    before = dict(os.environ)
    async def first():
        async for event in trigger.run():
            return event.payload
    async def within(seconds):
        return await asyncio.wait_for(first(), seconds)
    done["event"] = asyncio.run(within(60))
    done["environment"] = os.environ == before
print(json.dumps(done))
"""


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path / "project").write(("near",))
    for name in ("a", "_by_kind", "lost+found"):
        (made.landing / name).mkdir()
    (made.landing / "a" / "rows.csv").write_text("event_ts,v\n1,2\n")
    (made.folder / "streams").mkdir()
    (made.folder / "streams" / "a.yaml").write_text("time_unit: ms\n")
    return made


def test_it_watches_the_folders_of_the_tasks_and_fires(project, monkeypatch):
    """The lake is a template, and a connection has the credentials of a store, which it takes back."""
    login = {"conn_type": "aws", "login": "reader", "password": "s3cret"}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(login))
    monkeypatch.setenv("LATECOMER_STORE_CONN_ID", "store")
    monkeypatch.setenv("AIRFLOW_VAR_LAKE", str(project.lake))
    done = project.python(PROGRAM, json.dumps({"seconds": 0.1, "lake": "{{ var.value.lake }}"}))
    assert done["timetable"] == "AssetTriggeredTimetable" and done["assets"] == ["latecomer.latecomer_ingest"]
    texts = {"_by_kind": "", "a": "time_unit: ms\n"}
    assert done["arguments"] == {"landing": str(project.landing), "watched": texts, "lake": None, "seconds": 5.0}
    assert done["event"] == {"a": 1} and done["environment"] is True


def test_a_schedule_takes_its_place(project, monkeypatch):
    monkeypatch.setenv("LATECOMER_INGEST_SCHEDULE", "*/5 * * * *")
    assert project.python(PROGRAM, "{}") == {"timetable": "CronTriggerTimetable", "assets": []}


def test_sources_are_observed_less_often(project):
    (project.folder / "streams" / "t.yaml").write_text("source: delta\ntable: /tables/t\n")
    done = project.python(PROGRAM, json.dumps({"seconds": 0.1, "watched": {"a": ""}}))
    assert done["arguments"]["seconds"] == 30.0 and set(done["arguments"]["watched"]) == {"_by_kind", "a", "t"}
