"""One lake for the tests that run DAGs: filled by the DAGs themselves, then backfilled by a scheduler."""

import pytest

from tests.dags.support import QUERIES, Project
from tests.support import events


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """Five queries over two streams."""
    made = Project(tmp_path_factory.mktemp("airflow") / "project").write()
    (made.landing / "_by_stream").mkdir()
    events.write(events.disordered(11, rows=300).drop_columns(["seq"]), made.folder / "rows.parquet")
    return made


@pytest.fixture(scope="session")
def database(project):
    """Airflow's metadata database."""
    return project.migrate()


@pytest.fixture(scope="session")
def filled(database):
    """The project after every DAG was run by ``dag.test()``, ingestion with and without news; and what each run gave."""
    landed = database.landing / "_by_stream" / "rows.parquet"
    (database.folder / "rows.parquet").rename(landed)
    wanted = ["latecomer_ingest", f"touch={landed}", "latecomer_ingest", "latecomer_ingest"]
    wanted += ["near", 'near__repair={"flush": false}']
    wanted += [name for query in QUERIES for name in (query, f"{query}__repair")]
    wanted += [f"{name}__adapt" for name in ("near", "sums", "best", "both") if name in QUERIES]
    wanted += ["pairs__repair", "pairs__backfill", 'pairs__audit={"periods": 2}']
    return database, database.run_dags(*wanted)[0]
