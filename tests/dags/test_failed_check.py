"""A check that fails says which promise was broken: as an error in its log, and as the message of what the task raises."""

from tests.dags.support import Project
from tests.support import events


def test_a_broken_promise_is_an_error_that_names_it(tmp_path):
    project = Project(tmp_path / "project").write(("near",))
    file = project.queries / "near.yaml"
    file.write_text(file.read_text().replace("recall: 0.5", "recall: 0.5, rows_held: 1"))
    (project.landing / "_by_stream").mkdir()
    events.write(events.disordered(11, rows=300).drop_columns(["seq"]), project.landing / "_by_stream" / "rows.parquet")
    project.migrate()
    (_, (_, state, tasks)), said = project.run_dags("latecomer_ingest", "near")
    assert (state, tasks) == ("failed", {"run": "success", "check": "failed"})
    lines = said.splitlines()
    broken = "near: FAILED "
    assert [line for line in lines if broken in line and "[error" in line]
    assert [line for line in lines if line.startswith(f"airflow.sdk.exceptions.AirflowFailException: {broken}")]
    assert "all 4 checks" not in said and (project.folder / "reports" / "near.html").is_file()
