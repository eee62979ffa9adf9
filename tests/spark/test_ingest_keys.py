"""Events that come more than once: one row is stored, whatever the split into calls, and nothing is lost."""

import itertools
import json
import math
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from latecomer.ingest import duplicates
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake.ingest_log import by_stream, stream_totals
from latecomer.lake.lake import Lake
from latecomer.quality.conservation import of_ingestions
from latecomer.spark.engine import tables

from tests.support import in_gateway

WITHIN = 40
KEYED = IngestOptions(stream="s", key=("Device", "value", "tags"), within_us=WITHIN, time_unit="us")


def readings(rows=240):
    """Rows in the order of their arrival; the last 40 have no device."""
    rng = np.random.default_rng(11)
    device = [int(d) if d else None for d in rng.integers(0, 3, rows - 40)] + [None] * 40
    value = [(0.0, -0.0, math.nan, None)[place] for place in rng.integers(0, 4, rows)]
    tags = [(["a"], [None], None)[place] for place in rng.integers(0, 3, rows)]
    return pa.table(
        {
            "event_ts": pa.array(1_000_000 + rng.integers(0, 400, rows), pa.int64()),
            "arrival_ts": pa.array(2_000_000 + np.arange(rows) // 3, pa.int64()),
            "device": pa.array(device, pa.int32()),
            "value": pa.array(value, pa.float64()),
            "tags": pa.array(tags, pa.list_(pa.string())),
            "id": np.arange(rows),
        }
    )


def first_of_events(rows):
    """Return the numbers of the rows that are stored, by comparison with every row stored before."""
    kept = []
    for row in rows.to_pylist():
        value = "nan" if row["value"] is not None and math.isnan(row["value"]) else row["value"]
        key = row["device"], value, str(row["tags"])
        if not any(key == other and abs(row["event_ts"] - at) <= WITHIN for other, at, _ in kept):
            kept.append((key, row["event_ts"], row["id"]))
    return [number for _, _, number in kept]


def store(lake, folder, calls, options=KEYED):
    """Ingest calls of several files each."""
    for call, files in enumerate(calls):
        (folder / str(call)).mkdir(parents=True)
        for number, rows in enumerate(files):
            pq.write_table(rows, folder / str(call) / f"{number}.parquet")
        ingest(lake, [str(folder / str(call))], options)


def stored(lake, stream="s"):
    return lake.table("events", stream).read().sort_by("seq")["id"].to_pylist()


def cut(rows, *places):
    bounds = [0, *places, rows.num_rows]
    return [rows.slice(low, high - low) for low, high in itertools.pairwise(bounds)]


@pytest.mark.parametrize("size", ["small", "large", "huge"])
def test_any_split_into_calls_and_files_stores_the_same_rows(spark, tmp_path, monkeypatch, size):
    if size != "small":  # as where a call has many rows
        monkeypatch.setattr(duplicates, "_SMALL_CALL", 0)
    if size == "huge":  # as where rows and hashes are too many for the driver
        monkeypatch.setattr(duplicates, "_DRIVER_HASHES", 0)
        monkeypatch.setattr(tables, "DRIVER_LOCAL_ROWS", 0)
    rows = readings()
    expected = first_of_events(rows)
    splits = {
        "small": {
            "once": [[rows]],
            "files": [cut(rows, 17, 90)],
            "calls": [[part] for part in cut(rows, 1, 31, 60, 100, 150, 200)],
        },
        "large": {"calls": [[rows.slice(0, 100)], [rows.slice(100)]]},
        "huge": {"calls": [cut(rows.slice(0, 100), 30), [rows.slice(100)]]},
    }[size]
    for name, calls in splits.items():
        lake = Lake(tmp_path / name)
        store(lake, tmp_path / f"{name}-in", calls)
        assert stored(lake) == expected, name
        counts = by_stream(lake)["s"]
        assert (counts["read"], counts["rows"], counts["quarantined"]) == (240, len(expected), 0), name
        assert counts["duplicates"] == 240 - len(expected) > 50
        assert all(law["left"] == law["right"] for law in of_ingestions(lake, ["s"])), of_ingestions(lake, ["s"])
    lake.table("events", "s").open().delete("seq = 3")
    assert [law["left"] - law["right"] for law in of_ingestions(lake, ["s"])] == [0, 1]


def test_repeated_rows_of_a_column_s_streams_go_to_quarantine_with_their_keys(lake, tmp_path):
    (tmp_path / "1.csv").write_text("at,kind,device,id\n1970-01-01T00:00:09Z,a,3,0\n1970-01-01T00:00:09Z,b,3,1\n")
    (tmp_path / "2.csv").write_text(
        "at,kind,device,id\n1970-01-01T00:00:09Z,a,3,2\n1970-01-01T00:00:09Z,a,,3\n1970-01-01T00:00:09Z,a,,4\nx,a,3,5\n"
    )
    options = IngestOptions(
        by="kind", event_column="at", key=("at", "device", "kind"), on_duplicate="quarantine", earliest_us=0
    )
    said = []
    for name in ("1.csv", "2.csv"):
        done = ingest(lake, [str(tmp_path / name)], options, said.append)
    assert (stored(lake, "a"), stored(lake, "b"), done.rows_repeated) == ([0, 3], [1], {})
    assert done.reasons == {"repeats an event": 2, "event time cannot be read": 1}
    kept_out = lake.table("quarantine", "a").read().sort_by("line").to_pylist()
    assert [json.loads(row["raw"])["id"] if row["raw"][0] == "{" else row["raw"][-1] for row in kept_out] == list("245")
    reason = "repeats an event: key (at=1970-01-01 00:00:09Z, device={}, kind=a) stored before"
    assert [row["reason"] for row in kept_out[:2]] == [reason.format("3"), reason.format("null")]
    assert stream_totals(lake) == {"a": {"rows": 2, "quarantined": 3}, "b": {"rows": 1, "quarantined": 0}}
    assert all(law["left"] == law["right"] for law in of_ingestions(lake, ["a", "b"]))
    assert not any("left out" in line for line in said)


def test_streams_of_one_call_have_keys_of_their_own(lake, tmp_path):
    (tmp_path / "a.csv").write_text("event_ts,k,id\n1,1,0\n1,1,1\n5,1,2\n")
    (tmp_path / "b.csv").write_text("event_ts,k,id\n1,x,0\n1,x,1\n5,x,2\n")
    (tmp_path / "c.csv").write_text("event_ts,k,id\n1,x,0\n1,x,1\n5,x,2\n")
    keys = {"a": {"key": ("k",), "within_us": 3}, "b": {"key": ("k",), "within_us": 4, "on_duplicate": "quarantine"}}

    def with_key(options):
        return IngestOptions(stream=options.stream, earliest_us=0, **keys.get(options.stream, {}))

    said = []
    paths = {name: [str(tmp_path / f"{name}.csv")] for name in "abc"}
    done = ingest(lake, paths, IngestOptions(), said.append, with_key)
    assert {name: stored(lake, name) for name in "abc"} == {"a": [0, 2], "b": [0], "c": [0, 1, 2]}
    assert (done.rows_read, done.rows_repeated, done.rows_quarantined) == (9, {"a": 1}, {"b": 2})
    assert "ingest: a: left out 1 row that repeats an event (key: k)" in said


@pytest.mark.parametrize("point", ["events", "quarantine"])
def test_killed_anywhere_and_called_again_the_same_rows_are_repeated(spark, lake, tmp_path, point):
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "s.yaml").write_text("key: [k]\nwithin: 4 us\n")
    (tmp_path / "1.csv").write_text("event_ts,k,id\n1000000,1,0\n")
    (tmp_path / "2.csv").write_text("event_ts,k,id\n1000004,1,1\n1000005,1,2\n1000009,1,3\nx,1,4\n1000005,2,5\n")
    options = IngestOptions(stream="s", key=("k",), within_us=4)
    ingest(lake, [str(tmp_path / "1.csv")], options)
    command = ["ingest", "--lake", lake.uri, "--streams", tmp_path / "streams", "--stream", "s", tmp_path / "2.csv"]
    killed = in_gateway.call(spark, *command, crash_at=f"ingest:{point}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-500:]
    done = ingest(lake, [str(tmp_path / "2.csv")], options)
    assert done.rows_repeated == {"s": 2}
    assert stored(lake) == [0, 2, 5]
    counts = by_stream(lake)["s"]
    assert [counts[name] for name in ("read", "rows", "quarantined", "duplicates")] == [6, 3, 1, 2]
    assert all(law["left"] == law["right"] for law in of_ingestions(lake, ["s"]))
