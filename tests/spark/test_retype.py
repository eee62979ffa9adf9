"""A stream whose column got another type is ingested and queried on."""

import pytest
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.retype import retype
from latecomer.lake import result_views
from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import by_stream, open_events
from latecomer.quality.checks import check
from latecomer.spark.run import run
from latecomer.specs.loading import parse_query

QUERY = (
    "name: {name}\nkind: aggregate\nstreams: {{x: s}}\nwindow: 1 h\nselect: {{{select}}}\nwhere: x.v >= 5\n"
    "quality: {{error: 0.1}}\nstrategy: {{name: k_slack, slack: 1 s}}\n"
)


def file_of(folder, name, day, *values):
    lines = "".join(f"2024-01-0{day}T00:0{minute}:00Z,{value}\n" for minute, value in enumerate(values))
    (folder / name).write_text(f"event_ts,v\n{lines}")
    return [str(folder / name)]


def values_of(lake):
    return open_events(lake, "s").to_pyarrow_dataset().to_table().sort_by("seq")["v"].to_pylist()


def test_whole_numbers_on_the_first_day_and_fractions_on_the_second(lake, tmp_path, spark):
    """A query whose results have one type with either column goes on, and its check passes."""
    of_s = IngestOptions(stream="s")
    ingest(lake, file_of(tmp_path, "a.csv", 1, 5, 7), of_s)
    goes_on = parse_query(QUERY.format(name="mean", select="mean: avg(x.v), n: count(x.v)"))
    run(lake, goes_on)
    assert retype(lake, "s", {"v": "double"}, widen=True).columns == {"v": ("bigint", "double")}
    ingest(lake, file_of(tmp_path, "b.csv", 2, 5.5, 7.25, 8), of_s)
    assert values_of(lake) == [5.0, 7.0, 5.5, 7.25, 8.0]
    assert by_stream(lake)["s"]["quarantined"] == 0
    run(lake, goes_on, flush=True)
    assert result_views.results(lake, goes_on)["mean"].to_pylist() == [6.0, 20.75 / 3]
    assert check(lake, goes_on, audit=5).success


def test_text_becomes_numbers_and_the_rest_is_in_quarantine(lake, tmp_path, spark):
    of_s = IngestOptions(stream="s")
    ingest(lake, file_of(tmp_path, "a.csv", 1, 5, "ERR", 7.5), of_s)
    assert values_of(lake) == ["5", "ERR", "7.5"]
    assert retype(lake, "s", {"v": "double"}).reasons == {"column v is not double": 1}
    ingest(lake, file_of(tmp_path, "b.csv", 2, "ERR", 9), of_s)
    assert values_of(lake) == [5.0, 7.5, 9.0]
    counts = by_stream(lake)["s"]
    assert (counts["rows"], counts["quarantined"]) == (3, 2)
    total = parse_query(QUERY.format(name="total", select="total: sum(x.v)"))
    run(lake, total, flush=True)
    assert result_views.results(lake, total)["total"].to_pylist() == [12.5, 9.0]
    assert check(lake, total, audit=5).success
    with pytest.raises(InputError, match=r"query total uses the column as double; .*latecomer forget total"):
        retype(lake, "s", {"v": "string"})
