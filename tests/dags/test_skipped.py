"""The DAGs of a query while one of its streams has no row: they are skipped, and their logs say why."""

import pytest
from deltalake import write_deltalake

from tests.dags.support import ALL_QUERIES, Project
from tests.support import events

NEVER = "near has not been run in {lake} yet: stream b has no row yet"


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A project whose queries read `a` and `b` while only `a` has rows; the outcome of each DAG, and the logs.

    A third stream, which no query reads, takes its rows from a Delta table.
    """
    project = Project(tmp_path_factory.mktemp("half") / "project").write(("near", "pairs"))
    assert all("b" in ALL_QUERIES[name] for name in ("near", "pairs"))
    table = events.disordered(5, rows=60)
    (project.landing / "a").mkdir()
    ours = table.filter([name == "a" for name in table["stream"].to_pylist()])
    events.write(ours.drop_columns(["seq", "stream"]), project.landing / "a" / "rows.parquet")
    write_deltalake(str(project.folder / "bronze"), ours.drop_columns(["seq", "stream"]))
    (project.folder / "streams").mkdir()
    (project.folder / "streams" / "c.yaml").write_text(f"source: delta\ntable: {project.folder / 'bronze'}\n")
    project.migrate()
    calls = ["latecomer_ingest", "latecomer_ingest", "near", "near__repair", "near__adapt"]
    return project, *project.run_dags(*calls, "pairs__audit", "pairs__backfill")


def test_a_query_waits_for_its_second_stream(half):
    _, runs, _ = half
    first, again, *queries = runs
    for task in ("ingest_a", "ingest_c"):
        assert first[2][task] == "success" and again[2][task] == "skipped", task
    tasks = {f"{name}.{task}": state for name, _, states in queries for task, state in states.items()}
    waiting = ["near__adapt.adapt", "pairs__audit.audit"]
    waiting += ["near.advance"]
    for dag, task in (("near__repair", "repair"), ("pairs__backfill", "backfill")):
        waiting += [f"{dag}.{name}" for name in (task, "check", "publish")]
    assert tasks == dict.fromkeys(waiting, "skipped")


def test_the_log_says_why(half):
    project, _, said = half
    assert "Skipped: stream b has no row yet" in said
    assert f"Skipped: {NEVER.format(lake=project.lake)}" in said
    assert f"Skipped: nothing new in {project.landing / 'a'}" in said
    assert "Skipped: nothing new in the source of c" in said
