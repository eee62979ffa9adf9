"""Several streams that have news are ingested in one call; where that fails each folder has its turn, as if there were no such call."""

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
    found = session.query(AssetEvent).order_by(AssetEvent.id)
    print(json.dumps([[e.source_run_id, e.source_task_id, e.asset.uri.rsplit("/", 1)[-1]] for e in found]))
"""


def told(project):
    """Per run of the ingestion that updated anything: tasks and streams."""
    found = {}
    for run, task, stream in project.python(EVENTS):
        found.setdefault(run, set()).add((task, stream))
    return list(found.values())


@pytest.fixture(scope="module")
def landed(tmp_path_factory):
    """A project with a folder of each stream, the tasks' states of five runs of the ingestion, and what these told.

    In the first one stream's file is broken; then it is whole; then two streams have news; then none; then the lake is gone, but for
    one stream that was ingested by hand since.
    """
    project = Project(tmp_path_factory.mktemp("together") / "project").write(("near",))

    def offer(seed, stream):
        table = events.disordered(seed, rows=40).drop_columns(["seq", "stream"])
        (project.landing / stream).mkdir(exist_ok=True)
        return events.write(table, project.folder / f"{seed}.parquet"), project.landing / stream

    for seed, stream in ((7, "a"), (9, "c")):
        file, folder = offer(seed, stream)
        shutil.move(file, folder / "rows.parquet")
    whole, folder = offer(8, "b")
    (folder / "rows.parquet").write_bytes(b"PAR1 this is no Parquet file PAR1")
    more = ["move={}>{}/more.parquet".format(*offer(seed, stream)) for seed, stream in ((17, "a"), (19, "c"))]
    project.migrate()
    ingest = "latecomer_ingest"
    runs, _ = project.run_dags(ingest, f"move={whole}>{folder}/rows.parquet", ingest, *more, ingest, ingest)
    streams = json.loads(project.call("latecomer", "status", "--lake", str(project.lake), "--json"))["streams"]
    assert {stream: each["rows"] for stream, each in streams.items()} == {"a": 80, "b": 40, "c": 80}
    shutil.rmtree(project.lake)
    project.call("latecomer", "ingest", "--lake", str(project.lake), f"c={project.landing / 'c'}")
    runs += project.run_dags(ingest)[0]
    return [tasks for _, _, tasks in runs], told(project)


def states(together, **ingested):
    """Of all tasks of a run that did not fail."""
    tasks = {f"ingest_{stream}": ingested.get(stream, "skipped") for stream in "abc"}
    return {"together": together, **tasks, "every_folder": "success"}


def test_a_folder_that_cannot_be_ingested_holds_up_no_other(landed):
    (first, *_), updates = landed
    assert first["together"] == "failed" and first["every_folder"] != "success"
    assert [first[f"ingest_{stream}"] for stream in "abc"] == ["success", "failed", "success"]
    assert updates[0] == {("ingest_a", "a"), ("ingest_c", "c")}


def test_a_stream_that_alone_has_news_is_ingested_by_its_own_task(landed):
    (_, one, *_), updates = landed
    assert one == states("skipped", b="success")
    assert updates[1] == {("ingest_b", "b")}


def test_streams_with_news_come_together(landed):
    (_, _, two, _, _), updates = landed
    assert two == states("success")
    assert updates[2] == {("together", "a"), ("together", "c")}


def test_where_nothing_is_new_nothing_is_told(landed):
    (_, _, _, none, _), updates = landed
    assert none == states("skipped")
    assert len(updates) == 4


def test_folders_of_a_lake_that_was_removed_are_news_where_their_stream_is_not_there_again(landed):
    (*_, last), updates = landed
    assert last["together"] == "success"
    assert updates[3] == {("together", "a"), ("together", "b")}
