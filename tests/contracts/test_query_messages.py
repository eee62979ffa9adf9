"""Every fault of a query file is one line that begins with file and line, even if only the lake shows the fault."""

import pyarrow as pa
import pytest
from latecomer.lake import stream_schemas
from latecomer.lake.lake import Lake
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import load_query, parse_query

from tests.support.commands import call

UTC = pa.timestamp("us", tz="UTC")
ROWS = pa.table(
    {
        "seq": pa.array([0], pa.int64()),
        "event_ts": pa.array([0], UTC),
        "arrival_ts": pa.array([0], UTC),
        "temp": [1.5],
        "sensor": ["x"],
        "tags": [["a"]],
    }
)
QUALITY = "quality: {error: 0.05, probability: 0.95, period: 1 d}\n"
AGGREGATE = (
    "name: q\nkind: aggregate\nstreams:\n  r: readings\ngroup_by: [sensor]\nwindow: 1 h\n"
    "select:\n  n: count()\n  a: avg(temp)\n"
)
JOIN = (
    "name: q\nkind: join\nstreams: {l: readings, r: readings}\nkeys: [sensor]\nwindow: 1 s\n"
    "quality: {recall: 0.9, period: 1 h}\n"
)
THETA = (
    "name: q\nkind: theta_join\nstreams: {l: readings, r: readings}\nwindow: 1 s\n"
    "conditions:\n  - l.temp < r.temp\n  - l.sensor = r.sensor\n"
)
TOPK = (
    "name: q\nkind: topk\nstreams: {l: readings}\nwindow: 1 h\nk: 2\n"
    "quality: {hit_rate: 0.9, period: 1 h}\nscore: temp\n"
)
MEMBERSHIP = (
    "name: q\nkind: membership\nstreams: {l: readings, r: readings}\nwindow: 1 s\n"
    "quality: {false_positive_rate: 0.1}\nelement: sensor\n"
)
WRONG = [
    (AGGREGATE + QUALITY, "avg(temp)", "avg(tmep)",
        "q.yaml:9: select.a: 'r.tmep': its stream has no such column; did you mean"),
    (AGGREGATE + QUALITY, "readings", "reading", "q.yaml:4: streams.r: 'reading': is not a stream of"),
    (AGGREGATE + QUALITY, "[sensor]", "[senor]", "q.yaml:5: group_by[0]: 'r.senor': its stream has no"),
    (AGGREGATE + QUALITY, "[sensor]", "[tags]", "q.yaml:5: group_by[0]: 'r.tags': is a list"),
    (AGGREGATE + QUALITY, "avg(temp)", "avg(sensor)", "q.yaml:9: select.a: 'r.sensor': is a string, not a number"),
    (JOIN, "[sensor]", "[senor]", "q.yaml:4: keys: 'l.senor': its stream has no"),
    (JOIN, "quality", "where: l.temp\nquality", "q.yaml:6: where: 'l.temp': is a number, not a condition"),
    (THETA, "l.sensor =", "l.temp =", "q.yaml:7: conditions[1]: "),
    (TOPK, "score: temp", "score: sensor", "q.yaml:7: score: 'l.sensor': is a string, not a number"),
    (MEMBERSHIP, "element: sensor", "element: tags", "q.yaml:6: element: "),
]  # fmt: skip


@pytest.fixture
def lake(tmp_path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.table("events", "readings").append(ROWS, "ingest", 0)
    lake.table("ingest", "committed").append(pa.table({"number": [0], "seq_to": [1]}), "ingest", 0)
    return lake


@pytest.mark.parametrize("text", [AGGREGATE + QUALITY, JOIN, THETA, TOPK, MEMBERSHIP])
def test_a_valid_query_passes(lake, text):
    stream_schemas.check(lake, parse_query(text))


@pytest.mark.parametrize(("text", "right", "wrong", "message"), WRONG)
def test_a_fault_that_the_lake_shows_has_file_and_line(lake, tmp_path, text, right, wrong, message):
    path = tmp_path / "q.yaml"
    path.write_text(text.replace(right, wrong))
    with pytest.raises(SpecError) as refused:
        stream_schemas.check(lake, load_query(path))
    assert f"{tmp_path}/{message}" in str(refused.value)


def test_the_error_of_a_missing_key_has_the_line_of_the_typo():
    with pytest.raises(SpecError, match=r"^q\.yaml:7: select: is missing; is 'selct' a typo"):
        parse_query((AGGREGATE + QUALITY).replace("select:", "selct:"), "q.yaml")


def test_run_reports_a_missing_column_before_it_starts_spark_and_before_a_changed_query(lake, tmp_path):
    path = tmp_path / "q.yaml"
    path.write_text((AGGREGATE + QUALITY).replace("[sensor]", "[senor]"))
    lake.table("state", "q").append(pa.table({"fingerprint": ["another"]}), "run", 0)
    done = call("run", path, "--lake", lake.uri, timeout=100)
    assert done.returncode == 2 and done.stderr.startswith(f"{path}:5: group_by[0]: 'r.senor'"), done.stderr
    assert "sensor" in done.stderr and not lake.table("lease", "run-q").exists()
