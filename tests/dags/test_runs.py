"""Every DAG of every kind, run for real by ``dag.test()``: spark-submit, a small lake, a report."""

from tests.dags.support import QUERIES


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
    assert repairs == [{"repair": state, "check": state} for state in ("success", "skipped")]


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
