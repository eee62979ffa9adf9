"""Small tables: a commit changes no value."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake.exceptions import SchemaMismatchError
from latecomer.lake import delta, maintenance
from latecomer.lake.delta import CHECKPOINT_EVERY
from latecomer.lake.lake import Lake
from latecomer.lake.maintenance import MANY_FILES, compact_and_vacuum

ROW = {"v": pa.array([1], pa.int32()), "tags": pa.array([["a"]]), "of": pa.array([{"x": 1}])}


@pytest.fixture
def lake(tmp_path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.table("late", "q").append(pa.table(ROW), "w", 0)
    return lake


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("v", pa.array([7.75])), ("v", pa.array([1], pa.int64())), ("v", pa.array(["007"])),
        ("tags", pa.array([[1.5]])), ("of", pa.array([{"x": 1.5}])),
        ("of", pa.array([[{"x": 1}]])), ("of", pa.array([{"y": 1, "x": 1.5}])),
    ],
)  # fmt: skip
def test_a_column_of_another_type_is_refused_not_cast(lake, name, values):
    with pytest.raises(SchemaMismatchError, match=rf"late/q: column {name} is .* in the table, and .* in the rows"):
        lake.table("late", "q").append(pa.table({**ROW, name: values}), "w", 1)
    assert lake.table("late", "q").read().num_rows == 1


@pytest.mark.parametrize(
    "rows",
    [
        {"v": pa.array([2], pa.int32())},
        {**ROW, "v": pa.nulls(1)},
        {**ROW, "new": pa.array(["x"])},
        {**ROW, "of": pa.array([{"x": 2, "y": [{"z": 1.5}]}])},
        {**ROW, "of": pa.array([{"y": "a"}])},
        {"tags": pa.array([["b"]], pa.list_(pa.field("item", pa.large_string(), nullable=False)))},
    ],
)
def test_columns_may_come_and_stay_away(lake, rows):
    lake.table("late", "q").append(pa.table(rows), "w", 1)
    assert lake.table("late", "q").read().num_rows == 2


def test_a_table_as_it_was_before_a_commit(lake):
    for version in (1, 2):
        lake.table("late", "q").append(pa.table({**ROW, f"c{version}": pa.array([1])}), "w", version)
    table = lake.table("late", "q").open()
    found = {version: lake.table("late", "q").before(table, "w", version.__le__) for version in range(4)}
    assert found[0] is None and [found[v].to_pyarrow_table().num_rows for v in (1, 2, 3)] == [1, 2, 3]
    assert lake.table("late", "q").before(table, "another", lambda _: True) is table


@pytest.mark.parametrize("commits", range(6, 14))
def test_the_version_before_the_last_commit_is_there_however_old(lake, commits):
    """Also where the commit made a checkpoint."""
    for version in range(1, commits):
        lake.table("late", "q").append(pa.table(ROW), "w", version)
    logs = Path(lake.table("late", "q").uri, "_delta_log")
    for log in logs.iterdir():
        os.utime(log, (0, 0))
    lake.table("late", "q").append(pa.table(ROW), "w", commits)
    table = lake.table("late", "q").open()
    assert lake.table("late", "q").before(table, "w", commits.__eq__).to_pyarrow_table().num_rows == commits


def test_housekeeping_shortens_the_log(lake):
    for version in range(1, MANY_FILES + 2):
        lake.table("late", "q").append(pa.table(ROW), "w", version)
    logs = Path(lake.table("late", "q").uri, "_delta_log")
    for log in logs.iterdir():
        os.utime(log, (0, 0))
    assert Path(logs, f"{0:020}.json").exists()
    assert compact_and_vacuum([lake.table("late", "q")], MANY_FILES)
    assert len(list(logs.glob("*.json"))) <= CHECKPOINT_EVERY + 1
    assert lake.table("late", "q").read().num_rows == MANY_FILES + 2


@pytest.mark.parametrize("commits", [1, 13])
def test_a_table_whose_deletion_stops_anywhere_can_be_read_or_is_gone(lake, monkeypatch, commits):
    """And then it is deleted for good. Spark leaves checksums beside the log."""
    for number in range(1, commits):
        lake.table("late", "q").append(pa.table(ROW), "w", number)
    log = Path(lake.table("late", "q").uri, "_delta_log")
    (log / f"{0:020}.crc").write_text("{}")
    seen = []

    def stop(name):
        seen.append(name)
        if name == "drop:file":
            raise InterruptedError

    monkeypatch.setattr(delta.crash_points, "point", stop)
    for _ in range(60):
        try:
            lake.table("late", "q").drop()
            break
        except InterruptedError:
            table = lake.table("late", "q").open()
            assert table is None or lake.table("late", "q").count() >= 1
    assert seen.count("drop:file") > commits and not Path(lake.table("late", "q").uri).exists()


def test_large_files_are_not_compacted_again_and_again(lake, monkeypatch):
    for number in range(1, MANY_FILES + 3):
        lake.table("late", "q").append(pa.table(ROW), "w", number)
    size = max(path.stat().st_size for path in Path(lake.table("late", "q").uri).glob("*.parquet"))
    monkeypatch.setattr(maintenance, "TARGET_BYTES", size)
    version = lake.table("late", "q").open().version() % MANY_FILES
    assert version and not compact_and_vacuum([lake.table("late", "q")]), "none is small"
    monkeypatch.undo()
    assert compact_and_vacuum([lake.table("late", "q")]) and len(lake.table("late", "q").open().file_uris()) == 1
