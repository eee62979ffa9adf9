"""A lake that all tests of this folder share: the DAGs fill it, then a scheduler backfills it."""

import pytest

from tests.dags.support import QUERIES, Project
from tests.support import events


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A project with a query of each kind over two streams, and no database yet."""
    made = Project(tmp_path_factory.mktemp("airflow") / "project").write()
    (made.landing / "_by_stream").mkdir()
    events.write(events.disordered(11, rows=300).drop_columns(["seq"]), made.folder / "rows.parquet")
    return made


@pytest.fixture(scope="session")
def database(project):
    """The project with Airflow's metadata database."""
    return project.migrate()


@pytest.fixture(scope="session")
def filled(database):
    """The project after ``dag.test()`` of every DAG, and the outcome of each run."""
    landed = database.landing / "_by_stream" / "rows.parquet"
    (database.folder / "rows.parquet").rename(landed)
    calls = ["latecomer_ingest", f"touch={landed}", "latecomer_ingest", "latecomer_ingest"]
    calls += ["near", 'near__repair={"flush": true}']
    calls += [name for query in QUERIES for name in (query, f"{query}__repair")]
    calls += [f"{name}__adapt" for name in ("near", "sums", "best", "both") if name in QUERIES]
    calls += ["pairs__repair", "pairs__backfill", 'pairs__audit={"periods": 2}']
    return database, database.run_dags(*calls)[0]
