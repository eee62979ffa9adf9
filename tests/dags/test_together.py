"""Streams with new files are ingested in one call; if that fails, each folder has its turn, as without such a call."""

import json
import shutil

import pytest

from tests.dags.support import Project
from tests.support import events

EVENTS = """
import json
from airflow.models.asset import AssetEvent
from airflow.utils.session import create_session
with create_session() as session:
    events = session.query(AssetEvent).order_by(AssetEvent.id)
    print(json.dumps([[e.source_run_id, e.source_task_id, e.asset.uri.rsplit("/", 1)[-1]] for e in events]))
"""


def updates_by_run(project):
    """Return the tasks and streams of each run of the ingestion that updated an asset."""
    updates = {}
    for run, task, stream in project.python(EVENTS):
        updates.setdefault(run, set()).add((task, stream))
    return list(updates.values())


@pytest.fixture(scope="module")
def landed(tmp_path_factory):
    """The states of five runs of the ingestion and of their tasks, and the assets that they updated.

    In the first run one stream's file is broken. It still is in the second, when the two others have new files. In the
    third it is whole. In the fourth nothing is new. Before the fifth the lake was removed, and one stream was ingested
    by hand.
    """
    project = Project(tmp_path_factory.mktemp("together") / "project").write(("near",))

    def write(seed, path):
        return events.write(events.disordered(seed, rows=40).drop_columns(["seq", "stream"]), path)

    a, b, c = (project.landing / stream for stream in "abc")
    for folder in (a, b, c):
        folder.mkdir()
    write(7, a / "rows.parquet")
    (b / "rows.parquet").write_bytes(b"PAR1 this is no Parquet file PAR1")
    write(9, c / "rows.parquet")
    mended = f"move={write(8, project.folder / 'b.parquet')}>{b / 'rows.parquet'}"
    more = [f"move={write(17, project.folder / 'a.parquet')}>{a / 'more.parquet'}"]
    more += [f"move={write(19, project.folder / 'c.parquet')}>{c / 'more.parquet'}"]
    project.migrate()
    ingest = "latecomer_ingest"
    runs, _ = project.run_dags(ingest, *more, ingest, mended, ingest, ingest)
    streams = json.loads(project.call("latecomer", "status", "--lake", str(project.lake), "--json"))["streams"]
    assert {stream: totals["rows"] for stream, totals in streams.items()} == {"a": 80, "b": 40, "c": 80}
    shutil.rmtree(project.lake)
    project.call("latecomer", "ingest", "--lake", str(project.lake), f"c={c}")
    runs += project.run_dags(ingest)[0]
    return [(state, tasks) for _, state, tasks in runs], updates_by_run(project)


def succeeded(together, **ingested):
    """Return the state of a run that did not fail, and of its tasks."""
    tasks = {f"ingest_{stream}": ingested.get(stream, "skipped") for stream in "abc"}
    return "success", {"together": together, **tasks, "every_folder": "success"}


def test_a_folder_that_cannot_be_ingested_holds_up_no_other(landed):
    ((state, tasks), *_), updates = landed
    assert (state, tasks["together"]) == ("failed", "failed")
    assert [tasks[f"ingest_{stream}"] for stream in "abc"] == ["success", "failed", "success"]
    assert updates[0] == {("ingest_a", "a"), ("ingest_c", "c")}


def test_a_stream_that_alone_has_new_files_is_ingested_by_its_own_task(landed):
    (_, _, third, *_), updates = landed
    assert third == succeeded("skipped", b="success")
    assert updates[2] == {("ingest_b", "b")}


def test_streams_with_new_files_come_together_without_one_that_is_still_broken(landed):
    (_, (state, tasks), *_), updates = landed
    assert state == "failed" and tasks["together"] == "success"
    assert [tasks[f"ingest_{stream}"] for stream in "abc"] == ["skipped", "failed", "skipped"]
    assert updates[1] == {("together", "a"), ("together", "c")}


def test_if_nothing_is_new_no_asset_is_updated(landed):
    (*_, none, _), updates = landed
    assert none == succeeded("skipped")
    assert len(updates) == 4


def test_folders_of_a_removed_lake_are_new_unless_their_stream_is_back(landed):
    (*_, (_, tasks)), updates = landed
    assert tasks["together"] == "success"
    assert updates[3] == {("together", "a"), ("together", "b")}
