"""A query is forgotten whole, or says that it is half forgotten: killed anywhere, and run again. Without a JVM."""

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from latecomer.jobs.status import status
from latecomer.lake import forget, journal
from latecomer.lake.errors import InputError
from latecomer.lake.lake import AREAS, Lake
from latecomer.lake.lease import Lease

from tests.support.commands import call

BY_LAKE = {"events", "quarantine", "ingest", "lease", "forgetting"}
ROWS = pa.table({"seq": [1, 2, 3], "closes": [[1], [2], [3]], "checked": [0.0] * 3, "success": [True] * 3})
"""What `status` reads of any of them."""
LAST = len(forget.OF_A_QUERY) + 1


@pytest.fixture
def lake(tmp_path) -> Lake:
    """One with a table in every area, for queries `q` and `other`, and stream `q`."""
    lake = Lake(tmp_path / "lake")
    for query in ("q", "other"):
        for area in (*forget.OF_A_QUERY, "events", "quarantine"):
            if area != "state":
                lake.table(area, query).append(ROWS, "run", 0)
        state = journal.RunState(0, 3, False, "f", {}, {"rows_read": 3, "on_time": 3, "late": 0})
        journal.save_state(lake, query, state)
    for writer in forget.WRITERS:
        with Lease(lake, f"{writer}-q"):
            pass
    return lake


def left(lake: Lake, name: str) -> set[str]:
    return {path.parent.name for path in Path(lake.uri).glob(f"*/{name}") if path.is_dir()}


def test_every_area_of_a_query_is_known():
    assert {*AREAS} == {*forget.OF_A_QUERY} | BY_LAKE


@pytest.mark.slow
def test_forgotten_is_one_query_and_no_event(lake):
    asked = call("forget", "q", "--lake", lake.uri)
    assert asked.returncode == 2 and len(asked.stderr.splitlines()) == 1, asked.stderr
    assert "on_time (3 rows)" in asked.stderr and "add --yes" in asked.stderr
    assert left(lake, "q") == left(lake, "other")
    done = call("forget", "q", "--lake", lake.uri, "--yes")
    assert done.returncode == 0 and "on_time (3 rows)" in done.stdout, done.stderr
    assert left(lake, "q") == {"events", "quarantine"}
    assert left(lake, "other") == {*AREAS} - {"ingest", "lease", "forgetting"}
    assert [each["query"] for each in status(lake)["queries"]] == ["other"]
    for sure in (["--yes"], []):  # there is nothing left that could be lost, and nothing to be sure of
        again = call("forget", "q", "--lake", lake.uri, *sure)
        assert again.returncode == 0 and "no table" in again.stdout, again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("writer", forget.WRITERS)
def test_not_while_a_command_is_at_work_on_it(lake, writer):
    with Lease(lake, f"{writer}-q"):
        done = call("forget", "q", "--lake", lake.uri, "--yes")
    assert done.returncode == 3 and f":{os.getpid()}" in done.stderr, done.stderr
    assert left(lake, "q") == left(lake, "other")


def test_a_name_that_is_none_changes_nothing(lake, tmp_path):
    done = call("forget", "othr", "--lake", lake.uri, "--yes")
    assert done.returncode == 2 and "did you mean 'other'" in done.stderr, done.stderr
    done = call("forget", "q", "--lake", tmp_path / "lakke", "--yes")
    assert done.returncode == 2 and "is not a query of" in done.stderr, done.stderr
    assert not (tmp_path / "lakke").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["forget:marked", *(f"drop:{part}@{n}" for part in ("log", "rest") for n in (1, 2, 6, LAST - 1, LAST))]
)
def test_killed_and_run_again(lake, point):
    killed = call("forget", "q", "--lake", lake.uri, "--yes", crash_at=point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (half,) = (
        (each for each in status(lake)["queries"] if each["query"] == "q")
        if lake.table("forgetting", "q").exists()
        else [{}]
    )
    assert ("half forgotten" in half["problem"]) if half else left(lake, "q") <= {"events", "quarantine", "forgetting"}
    if half:
        with pytest.raises(InputError, match="latecomer forget q --yes"):
            journal.load_state(lake, "q")
    done = call("forget", "q", "--lake", lake.uri, "--yes")
    assert done.returncode == 0, done.stderr
    assert left(lake, "q") <= {"events", "quarantine", "forgetting"} and journal.load_state(lake, "q") is None
    assert left(lake, "other") == {*AREAS} - {"ingest", "lease", "forgetting"}


def test_a_table_that_cannot_be_read_can_be_forgotten(lake):
    for file in Path(lake.table("on_time", "q").uri).glob("*.parquet"):
        file.unlink()
    assert "on_time (damaged)" in call("forget", "q", "--lake", lake.uri).stderr
    assert call("forget", "q", "--lake", lake.uri, "--yes").returncode == 0
    assert left(lake, "q") == {"events", "quarantine"}
