"""What an ingestion wrote that was killed is no part of the lake: neither its rows, nor their columns and types, nor
its streams.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake import result_views
from latecomer.lake.ingest_log import columns, open_events
from latecomer.quality.checks import check
from latecomer.spark.engine import tables
from latecomer.spark.run import run
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import parse_query

from tests.support import in_gateway

QUERY_OF_ALL = """\
name: top
kind: topk
streams: {f: s}
score: v
k: 2
window: 1 h
quality: {hit_rate: 0.95, period: 1 d}
"""


def minutes(first, end, header, *more):
    """A CSV file of one row a minute: its number, and columns with one value."""
    day, tail = np.datetime64("2024-01-01", "s"), "".join(f",{each}" for each in more)
    return f"event_ts,{header}\n" + "".join(f"{day + np.timedelta64(m, 'm')}Z,{m}{tail}\n" for m in range(first, end))


def test_columns_of_an_ingestion_that_never_counted_reach_no_query(lake, tmp_path, spark):
    """It was killed when its rows stood in the table, a query ran, and other content came, in which the same columns
    are of other types.
    """
    for name, text in [
        ("a", minutes(0, 300, "v")), ("killed", minutes(300, 400, "v,extra,code", "7", "7")),
        ("other", minutes(400, 800, "v,extra,code", "7.75", "007")),
    ]:  # fmt: skip
        (tmp_path / f"{name}.csv").write_text(text)
    query, of_s = parse_query(QUERY_OF_ALL), IngestOptions(stream="s")
    ingest(lake, [str(tmp_path / "a.csv")], of_s)
    command = ["ingest", "--lake", lake.uri, "--stream", "s", tmp_path / "killed.csv"]
    assert in_gateway.call(spark, *map(str, command), crash_at="ingest:events").returncode == -signal.SIGKILL
    assert "extra" in lake.table("events", "s").schema().names and "extra" not in columns(lake, "s").names
    run(lake, query)
    assert not {"extra", "code"} & set(result_views.results(lake, query).column_names)
    ingest(lake, [str(tmp_path / "other.csv")], of_s)
    run(lake, query, flush=True)
    found = result_views.results(lake, query).to_pylist()
    assert {(row["extra"], row["code"]) for row in found} == {(None, None), (7.75, "007")}
    assert not check(lake, query, audit=3).broken


def test_a_stream_of_which_no_row_counts_is_not_there(lake, tmp_path, spark):
    (tmp_path / "o.csv").write_text(minutes(0, 300, "v"))
    (tmp_path / "killed.csv").write_text(minutes(0, 300, "v"))
    (tmp_path / "other.csv").write_text(minutes(0, 600, "v", "25").replace(",25\n", ".25\n"))
    sums = (
        "kind: aggregate\nname: sums\nstreams: {f: s}\nselect: {m: max(v)}\nwindow: 1 h\n"
        "quality: {error: 0.05, probability: 0.95, period: 1 d}\n"
    )
    query, of_s = parse_query(sums), IngestOptions(stream="s")
    ingest(lake, [str(tmp_path / "o.csv")], IngestOptions(stream="o"))
    command = ["ingest", "--lake", lake.uri, "--stream", "s", tmp_path / "killed.csv"]
    assert in_gateway.call(spark, *map(str, command), crash_at="ingest:events").returncode == -signal.SIGKILL
    with pytest.raises(SpecError, match=r"no row of it was ever ingested; ingest some first; use one of o"):
        run(lake, query)
    ingest(lake, [str(tmp_path / "other.csv")], of_s)
    run(lake, query, flush=True)
    assert result_views.results(lake, query)["m"].to_pylist()[:2] == [59.25, 119.25]
    assert not check(lake, query, audit=3).broken


@pytest.mark.parametrize("few", [True, False])
def test_spark_reads_the_stream_as_it_was_committed(lake, tmp_path, spark, few, monkeypatch):
    (tmp_path / "a.csv").write_text(minutes(0, 30, "v"))
    (tmp_path / "killed.csv").write_text(minutes(30, 40, "v,extra", "7"))
    ingest(lake, [str(tmp_path / "a.csv")], IngestOptions(stream="s"))
    command = ["ingest", "--lake", lake.uri, "--stream", "s", tmp_path / "killed.csv"]
    assert in_gateway.call(spark, *map(str, command), crash_at="ingest:events").returncode == -signal.SIGKILL
    monkeypatch.setattr(tables, "is_driver_local", lambda session: few)
    monkeypatch.setattr(tables, "MOST_FILES", 0)  # Delta's own reader
    found = tables.events(spark, lake, "s")
    assert found.columns == ["seq", "event_ts", "arrival_ts", "v"] and found.count() == 30


def test_a_version_before_a_killed_ingestion_is_read_however_old_it_is(lake, tmp_path, spark, monkeypatch):
    """Delta refuses one older than a week, but for the newest."""
    (tmp_path / "a.csv").write_text(minutes(0, 30, "v"))
    (tmp_path / "killed.csv").write_text(minutes(30, 40, "v"))
    ingest(lake, [str(tmp_path / "a.csv")], IngestOptions(stream="s"))
    for log in Path(lake.table("events", "s").uri, "_delta_log").iterdir():
        os.utime(log, (time.time() - 20 * 86_400,) * 2)
    command = ["ingest", "--lake", lake.uri, "--stream", "s", tmp_path / "killed.csv"]
    assert in_gateway.call(spark, *map(str, command), crash_at="ingest:events").returncode == -signal.SIGKILL
    monkeypatch.setattr(tables, "is_driver_local", lambda session: False)
    monkeypatch.setattr(tables, "_files", lambda *given: None)
    assert tables.events(spark, lake, "s").count() == 30


@pytest.mark.parametrize("few", [True, False])
def test_what_wakes_up_when_its_ingestion_was_taken_back_is_never_seen(lake, tmp_path, spark, few, monkeypatch):
    """It was asleep before its second table; meanwhile another took it back, and other content was committed to the
    first.
    """
    if not few:
        monkeypatch.setattr("latecomer.spark.engine.tables.DRIVER_LOCAL_ROWS", 10)
    for name, first, end in (("old", 0, 30), ("asleep", 30, 60), ("other", 60, 90), ("last", 90, 120)):
        (tmp_path / f"{name}.csv").write_text(minutes(first, end, "v"))

    for stream in ("s", "t"):
        ingest(lake, [str(tmp_path / "old.csv")], IngestOptions(stream=stream))
    command = ["ingest", "--lake", lake.uri, "s=" + str(tmp_path / "asleep.csv"), "t=" + str(tmp_path / "asleep.csv")]
    assert in_gateway.call(spark, *map(str, command), crash_at="ingest:planned").returncode == -signal.SIGKILL
    ingest(lake, [str(tmp_path / "other.csv")], IngestOptions(stream="s"))
    late = open_events(lake, "t").to_pyarrow_table().append_column("woke", pa.array([1] * 30))
    assert lake.table("events", "t").append(late, "ingest", 2)  # the number of what was planned and taken back
    assert open_events(lake, "t").to_pyarrow_table().num_rows == 30 and "woke" not in columns(lake, "t").names
    assert tables.events(spark, lake, "t").count() == 30
    ingest(lake, [str(tmp_path / "last.csv")], IngestOptions(stream="t"))
    for stream in ("s", "t"):
        rows = open_events(lake, stream).to_pyarrow_table()
        assert rows.num_rows == 60 and "woke" not in rows.column_names
    places = [open_events(lake, stream).to_pyarrow_table()["seq"].to_pylist() for stream in ("s", "t")]
    assert sorted(places[0] + places[1]) == list(range(120))
