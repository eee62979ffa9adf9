"""Every DAG of every kind, run by ``dag.test()`` with spark-submit, a small lake and a report."""

from deltalake import DeltaTable

from tests.dags.support import QUERIES
from tests.support import events


def test_every_dag_of_every_kind_succeeds(filled):
    _, runs = filled
    assert {call.partition("=")[0] for call, _, _ in runs} == {
        "latecomer_ingest",
        *QUERIES,
        *(f"{name}__repair" for name in QUERIES),
        *(f"{name}__adapt" for name in ("near", "sums", "best", "both") if name in QUERIES),
        "pairs__backfill",
        "pairs__audit",
    }
    assert [(call, state, tasks) for call, state, tasks in runs if state != "success"] == []


def test_nothing_new_starts_no_query(filled):
    _, runs = filled
    ingested = [tasks["ingest__by_stream"] for call, _, tasks in runs if call == "latecomer_ingest"]
    assert ingested == ["success", "success", "skipped"]


def test_a_repair_of_nothing_is_skipped(filled):
    _, runs = filled
    repairs = [tasks for call, _, tasks in runs if call == "pairs__repair"]
    assert repairs == [dict.fromkeys(("repair", "check", "publish"), state) for state in ("success", "skipped")]


EVENTS = """
import json
from airflow.models.asset import AssetEvent, AssetModel
from airflow.utils.session import create_session
with create_session() as session:
    named = session.query(AssetModel.name, AssetEvent.extra, AssetEvent.partition_key).select_from(AssetEvent)
    rows = named.join(AssetModel, AssetModel.id == AssetEvent.asset_id).order_by(AssetEvent.id).all()
print(json.dumps([list(row) for row in rows]))
"""


def test_answers_are_published_and_the_periods_that_changed_are_partitions(filled):
    project, _ = filled
    events_of = {}
    for name, extra, partition in project.python(EVENTS):
        events_of.setdefault(name, []).append((extra, partition))
    for name in QUERIES:
        published = [extra for extra, _ in events_of[f"latecomer.{name}"]]
        assert published[0]["inserted"] > 0 and published[0]["table"].endswith(f"/results/{name}"), published
        assert {partition for _, partition in events_of[f"latecomer.{name}"]} == {None}
        assert events_of[f"latecomer.{name}.run"]
        partitions = {partition for _, partition in events_of[f"latecomer.{name}.periods"]}
        assert "2023-11-14T22:13:20" in partitions and None not in partitions, partitions
        rows = DeltaTable(published[-1]["table"]).to_pyarrow_table()
        assert rows.num_rows == project.table(name, "results").num_rows == published[-1]["rows"]


def test_a_repair_by_hand_leaves_nothing_pending(filled):
    project, _ = filled
    for name in QUERIES:
        late, results = project.table(name, "late"), project.table(name, "results")
        assert results.num_rows > 0 and late.num_rows > 0
        assert late["repaired_in"].null_count == 0, name


def test_the_report_has_every_query(filled):
    project, _ = filled
    pages = {path.name for path in (project.folder / "reports").glob("*.html")}
    assert {"index.html", *(f"{name}.html" for name in QUERIES)} <= pages


STARTS = """
import json, os, sys
sys.path.insert(0, os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowSkipException
from latecomer.specs.loading import load_query
task = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]).dags["pairs"].task_dict["run"]
task.lake = os.environ["LATECOMER_LAKE"]
def start(run_type):
    try:
        task.prepare({"dag_run": type("Run", (), {"run_type": run_type})}, load_query(task.query))
    except AirflowSkipException as error:
        return str(error)
print(json.dumps({run_type: start(run_type) for run_type in ("manual", "scheduled", "asset_triggered")}))
"""


def test_a_run_that_has_read_every_row_and_was_checked_is_for_runs_by_hand(filled, tmp_path):
    project, _ = filled
    done = "pairs has read every row of its streams"
    assert project.python(STARTS) == {"manual": None, "scheduled": done, "asset_triggered": done}
    rows = events.write(events.disordered(12, rows=9).drop_columns(["seq"]), tmp_path / "rows.parquet")
    project.call("latecomer", "ingest", "--lake", str(project.lake), "--by", "stream", rows)
    assert set(project.python(STARTS).values()) == {None}
    project.call("latecomer", "run", str(project.queries / "pairs.yaml"), "--lake", str(project.lake))
    assert set(project.python(STARTS).values()) == {None}, "as after a process that died when all was committed"
