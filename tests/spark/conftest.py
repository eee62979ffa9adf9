"""One Spark for all tests of this folder, a lake of its own for each test."""

import pytest
from latecomer.lake.lake import Lake


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from latecomer.spark.engine.session import session

    return session(Lake(tmp_path_factory.mktemp("lake")))


@pytest.fixture
def lake(tmp_path, spark):
    return Lake(tmp_path / "lake")
