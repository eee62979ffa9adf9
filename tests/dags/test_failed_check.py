"""Failures give their reason: a broken promise is an error in log and task; a wrong query is not tried again."""

from tests.dags.support import Project
from tests.support import events


def test_a_broken_promise_is_an_error_that_names_it_and_a_wrong_query_is_tried_once(tmp_path):
    project = Project(tmp_path / "project", retries=2).write(("near", "pairs"))
    wrong = project.queries / "pairs.yaml"
    wrong.write_text(wrong.read_text().replace("r.v > s.v", "r.nothing > s.v"))
    file = project.queries / "near.yaml"
    file.write_text(file.read_text().replace("recall: 0.5", "recall: 0.5, rows_held: 1"))
    (project.landing / "_by_stream").mkdir()
    events.write(events.disordered(11, rows=300).drop_columns(["seq"]), project.landing / "_by_stream" / "rows.parquet")
    project.migrate()
    (_, (_, state, tasks), (_, *failed)), said = project.run_dags("latecomer_ingest", "near", "pairs")
    assert (state, tasks) == ("failed", {"advance": "failed"})
    lines = said.splitlines()
    broken = "near: FAILED "
    assert [line for line in lines if broken in line and "[error" in line]
    assert [line for line in lines if line.startswith(f"airflow.sdk.exceptions.AirflowFailException: {broken}")]
    assert "all 4 checks" not in said and (project.folder / "reports" / "near.html").is_file()
    assert failed == ["failed", {"run": "failed", "check": "upstream_failed", "publish": "upstream_failed"}]
    assert said.count("no other try, it would end alike: ") == 1
    assert f"no other try, it would end alike: {wrong}:" in said
