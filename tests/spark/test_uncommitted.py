"""What an ingestion wrote that was killed is no part of the lake: neither its rows, nor their columns and types, nor its streams."""

import signal

import numpy as np
import pytest
from latecomer.lake import small, views
from latecomer.lake.ingestions import columns
from latecomer.quality.checks import check
from latecomer.spark import tables
from latecomer.spark.ingest import IngestOptions, ingest
from latecomer.spark.run import run
from latecomer.specs.common import SpecError
from latecomer.specs.loading import parse_query

from tests.support import commands

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


def test_columns_of_an_ingestion_that_never_counted_reach_no_query(lake, tmp_path):
    """It was killed when its rows stood in the table, a query ran, and other content came, in which the same columns are of other types."""
    for name, text in [
        ("a", minutes(0, 300, "v")), ("killed", minutes(300, 400, "v,extra,code", "7", "7")),
        ("other", minutes(400, 800, "v,extra,code", "7.75", "007")),
    ]:  # fmt: skip
        (tmp_path / f"{name}.csv").write_text(text)
    query, of_s = parse_query(QUERY_OF_ALL), IngestOptions(stream="s")
    ingest(lake, [str(tmp_path / "a.csv")], of_s)
    command = ["ingest", "--lake", lake.uri, "--stream", "s", tmp_path / "killed.csv"]
    assert commands.call(*command, crash_at="ingest:events").returncode == -signal.SIGKILL
    assert "extra" in small.shape(lake, "events", "s").names and "extra" not in columns(lake, "s").names
    run(lake, query)
    assert not {"extra", "code"} & set(views.results(lake, query).column_names)
    ingest(lake, [str(tmp_path / "other.csv")], of_s)
    run(lake, query, flush=True)
    found = views.results(lake, query).to_pylist()
    assert {(row["extra"], row["code"]) for row in found} == {(None, None), (7.75, "007")}
    assert not check(lake, query, audit=3).broken


def test_a_stream_of_which_no_row_counts_is_not_there(lake, tmp_path):
    (tmp_path / "o.csv").write_text(minutes(0, 300, "v"))
    (tmp_path / "killed.csv").write_text(minutes(0, 300, "v"))
    (tmp_path / "other.csv").write_text(minutes(0, 600, "v", "25").replace(",25\n", ".25\n"))
    sums = "kind: aggregate\nname: sums\nstreams: {f: s}\nselect: {m: max(v)}\nwindow: 1 h\nquality: {error: 0.05, probability: 0.95, period: 1 d}\n"
    query, of_s = parse_query(sums), IngestOptions(stream="s")
    ingest(lake, [str(tmp_path / "o.csv")], IngestOptions(stream="o"))
    command = ["ingest", "--lake", lake.uri, "--stream", "s", tmp_path / "killed.csv"]
    assert commands.call(*command, crash_at="ingest:events").returncode == -signal.SIGKILL
    with pytest.raises(SpecError, match=r"no row of it was ever ingested; ingest some first; use one of o"):
        run(lake, query)
    ingest(lake, [str(tmp_path / "other.csv")], of_s)
    run(lake, query, flush=True)
    assert views.results(lake, query)["m"].to_pylist()[:2] == [59.25, 119.25]
    assert not check(lake, query, audit=3).broken


@pytest.mark.parametrize("few", [True, False])
def test_spark_reads_the_stream_as_it_was_committed(lake, tmp_path, spark, few, monkeypatch):
    (tmp_path / "a.csv").write_text(minutes(0, 30, "v"))
    (tmp_path / "killed.csv").write_text(minutes(30, 40, "v,extra", "7"))
    ingest(lake, [str(tmp_path / "a.csv")], IngestOptions(stream="s"))
    command = ["ingest", "--lake", lake.uri, "--stream", "s", tmp_path / "killed.csv"]
    assert commands.call(*command, crash_at="ingest:events").returncode == -signal.SIGKILL
    monkeypatch.setattr(tables, "expects_few", lambda session: few)
    monkeypatch.setattr(tables, "MOST_FILES", 0)  # Delta's own reader
    found = tables.events(spark, lake, "s")
    assert found.columns == ["seq", "event_ts", "arrival_ts", "v"] and found.count() == 30
