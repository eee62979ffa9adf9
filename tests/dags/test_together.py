"""Several streams that have news are ingested in one call; where that fails each folder has its turn, as if there were no such call."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.dags.support import Project
from tests.support import events

STREAMS = {"a": 7, "b": 8, "c": 9}
EVENTS = """
import json
from airflow.models.asset import AssetEvent
from airflow.utils.session import create_session
with create_session() as session:
    found = session.query(AssetEvent).order_by(AssetEvent.id)
    print(json.dumps([[e.source_run_id, e.source_task_id, e.asset.uri.rsplit("/", 1)[-1]] for e in found]))
"""


def offered():
    """Does the command take several streams in one call?"""
    done = subprocess.run(
        [sys.executable, "-m", "latecomer.jobs.cli", "ingest", "--help"], capture_output=True, text=True
    )
    return "NAME=PATH" in done.stdout


def land(project, stream, seed, name="rows.parquet"):
    """A file in the stream's own folder."""
    table = events.disordered(seed, rows=40).drop_columns(["seq", "stream"])
    (project.landing / stream).mkdir(exist_ok=True)
    return events.write(table, project.landing / stream / name)


def told(project):
    """Per run of the ingestion, what it updated: task and stream."""
    found = {}
    for run, task, stream in project.python(EVENTS):
        found.setdefault(run, set()).add((task, stream))
    return list(found.values())


@pytest.fixture
def landed(tmp_path):
    """A project with a file of each stream."""
    project = Project(tmp_path / "project").write(("near",))
    for stream, seed in STREAMS.items():
        land(project, stream, seed)
    return project.migrate()


@pytest.mark.skipif(not offered(), reason="this command takes one stream at a time")
def test_streams_with_news_come_together_and_alone(landed):
    first, again = landed.run_dags("latecomer_ingest", "latecomer_ingest")[0]
    skipped = dict.fromkeys(("ingest_a", "ingest_b", "ingest_c"), "skipped")
    assert first[2] == {"together": "success", **skipped, "every_folder": "success"}
    assert again[2] == {"together": "skipped", **skipped, "every_folder": "success"}
    assert told(landed) == [{("together", stream) for stream in STREAMS}]
    land(landed, "a", 17, "more.parquet")
    land(landed, "c", 19, "more.parquet")
    (two,), _ = landed.run_dags("latecomer_ingest")
    land(landed, "b", 28, "more.parquet")
    (one,), _ = landed.run_dags("latecomer_ingest")
    assert two[2] == first[2]
    assert one[2] == {"together": "skipped", **skipped, "ingest_b": "success", "every_folder": "success"}
    assert told(landed)[1:] == [{("together", "a"), ("together", "c")}, {("ingest_b", "b")}]
    streams = json.loads(landed.call("latecomer", "status", "--lake", str(landed.lake), "--json"))["streams"]
    assert {stream: each["rows"] for stream, each in streams.items()} == {"a": 80, "b": 80, "c": 80}


@pytest.mark.skipif(not offered(), reason="this command takes one stream at a time")
def test_folders_of_a_lake_that_was_removed_are_news_where_their_stream_is_not_there_again(landed):
    landed.run_dags("latecomer_ingest")
    shutil.rmtree(landed.lake)
    landed.call("latecomer", "ingest", "--lake", str(landed.lake), f"c={landed.landing / 'c'}")
    ((_, _, tasks),), _ = landed.run_dags("latecomer_ingest")
    assert tasks["together"] == "success"
    assert told(landed)[-1] == {("together", "a"), ("together", "b")}


def test_a_folder_that_cannot_be_ingested_holds_up_no_other(landed):
    (landed.landing / "b" / "rows.parquet").write_bytes(b"PAR1 this is no Parquet file PAR1")
    ((_, state, tasks),), _ = landed.run_dags("latecomer_ingest")
    assert (state, tasks["together"]) == ("failed", "failed")
    assert [tasks[f"ingest_{stream}"] for stream in STREAMS] == ["success", "failed", "success"]
    assert told(landed) == [{("ingest_a", "a"), ("ingest_c", "c")}]
