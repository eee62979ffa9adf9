"""Files that no kept version needs are removed, under the leases of their tables' writers. Without a JVM."""

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from latecomer.lake.expire import expire
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease

from tests.support.commands import call

WEEK_S = 7 * 86_400


@pytest.fixture
def lake(tmp_path):
    """Events of a stream and the results of a query, each with a file that was replaced and one of a killed writer."""
    lake = Lake(tmp_path / "lake")
    for area, name in (("events", "s"), ("results", "q")):
        table = lake.table(area, name)
        for number in range(4):
            table.append(pa.table({"v": [number]}), "w", number)
        table.open().optimize.compact()
        Path(table.uri, "left-by-a-killed-writer.parquet").write_bytes(b"PAR1")
    return lake


def age(lake, seconds):
    """Make all files of data older; what was replaced, too, by the log's own times."""
    for file in Path(lake.uri).rglob("*.parquet"):
        if "checkpoint" not in file.name:
            os.utime(file, (time.time() - seconds,) * 2)
    for entry in Path(lake.uri).rglob("_delta_log/*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            for part in ("remove", "add"):
                for key in {"deletionTimestamp", "modificationTime"} & (action.get(part) or {}).keys():
                    action[part][key] -= int(seconds * 1000)
        entry.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def files(lake):
    return {path.relative_to(lake.uri) for path in Path(lake.uri).glob("*/*/*.parquet") if path.parts[-3] != "lease"}


def rows(lake):
    return {
        area: sorted(lake.table(area, name).read()["v"].to_pylist())
        for area, name in (("events", "s"), ("results", "q"))
    }


def test_old_files_go_and_rows_stay(lake):
    before = rows(lake)
    everything = files(lake)
    assert expire(lake).files == 0 and files(lake) == everything  # readers of the last week need them
    age(lake, WEEK_S + 3600)
    planned = expire(lake, dry_run=True)
    assert planned.files == 10 and planned.size_bytes > 0 and files(lake) == everything
    done = expire(lake)
    assert (done.files, done.size_bytes, done.busy, done.unread) == (10, planned.size_bytes, [], [])
    assert len(files(lake)) == 2 and rows(lake) == before
    versions = [lake.table(*name).open().version() for name in (("events", "s"), ("results", "q"))]
    assert expire(lake).files == 0  # and no commit
    assert versions == [lake.table(*name).open().version() for name in (("events", "s"), ("results", "q"))]


def test_tables_of_a_command_at_work_are_left_alone(lake):
    age(lake, WEEK_S + 3600)
    with Lease(lake, "repair-q"):
        done = call("expire", "--lake", lake.uri)
    assert done.returncode == 0 and done.stdout.startswith("removed 5 files ("), done.stderr
    assert "left alone, a command is at work: q" in done.stdout
    assert len(files(lake)) == 1 + 6
    with Lease(lake, "ingest"):
        assert expire(lake).busy == ["ingest"]


def test_the_command_says_what_it_would_do_and_what_it_cannot_read(lake):
    age(lake, WEEK_S + 3600)
    (entry,) = Path(lake.uri, "results", "q", "_delta_log").glob("*4.json")
    entry.write_text("no JSON")
    done = call("expire", "--lake", lake.uri, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unread"] == ["results/q"] and json.loads(done.stdout)["files"] == 5
    assert call("expire", "--lake", str(Path(lake.uri).parent / "none")).stdout.startswith("removed 0 files")
