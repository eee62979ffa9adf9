"""Landing files in all shapes: names, zones, types and columns that fit their stream, or are refused before anything is
written.
"""

import gzip
import json
import math
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from latecomer.ingest import ingest as ingesting
from latecomer.ingest import sources
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake import result_views
from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import committed_seq
from latecomer.lake.lake import Lake
from latecomer.spark.backfill import backfill
from latecomer.spark.engine import tables
from latecomer.spark.run import run
from latecomer.specs.loading import parse_query


@pytest.fixture(params=["few rows", "many rows"])
def either_way(request, monkeypatch):
    """Both ways in which rows are written: from the driver, and by Spark."""
    if request.param == "many rows":
        monkeypatch.setattr(tables, "DRIVER_LOCAL_ROWS", 0)


def put(lake, path, content, **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return ingest(lake, [str(path)], IngestOptions(**({"stream": "s"} | options)))


def rows_of(lake, stream="s"):
    return lake.table("events", stream).read().sort_by("seq").to_pylist()


def type_of(lake, stream, column):
    return str(lake.table("events", stream).schema().field(column).type)


def test_a_header_over_two_lines_after_blank_ones(lake, tmp_path):
    done = put(lake, tmp_path / "a.csv", '\n\nevent_ts,"Amount\n(EUR)"\n\n1,2\nx,3\n')
    assert done.rows_ingested == {"s": 1} and rows_of(lake)[0]["Amount__EUR_"] == 2
    assert [row["line"] for row in lake.table("quarantine", "s").read().to_pylist()] == [7]


@pytest.mark.parametrize("other", ["text", "number"])
def test_streams_that_are_not_in_the_call_have_no_say_in_its_types(lake, tmp_path, other):
    put(lake, tmp_path / "text.csv", "event_ts,value\n1,abc\n", stream="text")
    if other == "number":
        put(lake, tmp_path / "number.csv", "event_ts,value\n2,1\n", stream="number")
    done = put(lake, tmp_path / "by.csv", "event_ts,kind,value\n3,a,0.5\n4,b,2\n", stream=None, by="kind")
    assert done.rows_ingested == {"a": 1, "b": 1} and type_of(lake, "a", "value") == "double"
    (tmp_path / "more").mkdir()
    put(lake, tmp_path / "more" / "by.csv", "event_ts,kind,value\n5,a,3\n", stream=None, by="kind")
    assert type_of(lake, "a", "value") == "double" and [row["value"] for row in rows_of(lake, "a")] == [0.5, 3.0]


def test_streams_of_one_call_that_disagree_are_named(lake, tmp_path):
    put(lake, tmp_path / "text.csv", "event_ts,value\n1,abc\n", stream="text")
    put(lake, tmp_path / "number.csv", "event_ts,value\n2,1\n", stream="number")
    with pytest.raises(InputError, match=r"by.csv: column value: is string in stream text and bigint in stream number"):
        put(lake, tmp_path / "by.csv", "event_ts,kind,value\n3,text,1\n4,number,1\n", stream=None, by="kind")
    assert committed_seq(lake) == 2


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("event_ts,temp", r"b\.csv: column temp: differs from column 'Temp' of stream s in case only; name it Temp"),
        ("event_ts,SEQ", r"column SEQ: is the name of seq"),
        ("event_ts,Event_TS", r"has more than one column 'Event_TS'"),
        ("event_ts,Σ,ς", r"has more than one column 'Σ'"),
        ("event_ts,ſeq", r"column ſeq: is the name of seq"),
        ("event_ts,ARRIVAL_TS", r"column ARRIVAL_TS: is the name of arrival_ts"),
        ("event_ts,Source_SEQ", r"column Source_SEQ: differs from column 'source_seq' of stream s in case only"),
        ("event_ts,seq,source_seq", r"column source_seq: is stored as source_seq, and so is column seq"),
    ],
)
def test_columns_that_only_case_tells_apart_are_refused_before_anything_is_written(
    lake, tmp_path, either_way, header, says
):
    put(lake, tmp_path / "a.csv", "event_ts,seq,Temp\n1,1,1\n")
    for _ in range(2):
        with pytest.raises(InputError, match=says):
            put(lake, tmp_path / "b.csv", f"{header}\n2,3{',4' * (header.count(',') - 1)}\n")
        assert lake.table("ingest", "journal").last_version("ingest") == 0 and committed_seq(lake) == 1
    assert put(lake, tmp_path / "c.csv", "event_ts,Temp\n2,3\n").rows_ingested == {"s": 1}
    assert [row["Temp"] for row in rows_of(lake)] == [1, 3]


def test_a_call_that_is_refused_leaves_nothing_staged(lake, tmp_path):
    put(lake, tmp_path / "a.csv", "event_ts,v\n1,1\n")
    for content in ("event_ts,V\n2,2\n", "event_ts,v\n2,abc\n", "when,v\n2,2\n"):
        with pytest.raises(InputError):
            put(lake, tmp_path / "b.csv", content)
    assert list((tmp_path / "lake" / "_staging").iterdir()) == []
    (tmp_path / "lake" / "_staging" / "of one that was killed").mkdir()
    put(lake, tmp_path / "good.csv", "event_ts\n1\n")
    assert list((tmp_path / "lake" / "_staging").iterdir()) == []


TIMES = {
    "2024-01-01 10:00:00": "09:00:00",
    "2024-01-01T10:00": "09:00:00",
    "2024-01-01 10:00:00.5": "09:00:00.500000",
    "2024-01-01 10:00:00+05": "05:00:00",
    "2024-01-01 10:00:00 +05:30": "04:30:00",
    "2024-01-01T10:00+02:00": "08:00:00",
    "2024-01-01T10:00:00-0130": "11:30:00",
    "2024-01-01T10:00:00Z": "10:00:00",
    "2024-01-01T10:00:00z": "10:00:00",
    "2024-01-01 10:00 UTC": "10:00:00",
    "2024-01-01 10:00:00 Asia/Tokyo": "01:00:00",
    "2024-01-01 10:00:00 America/La_Paz": "14:00:00",
    "2023-07-01 10:00:00": "08:00:00",
    "1704103200000000": "10:00:00",
}


def test_the_time_zone_is_that_of_times_that_name_none(lake, tmp_path):
    lines = "\n".join(f"{text},2024-01-02 00:00:00,{i}" for i, text in enumerate(TIMES))
    put(
        lake,
        tmp_path / "a.csv",
        f"event_ts,arrival_ts,seq\n{lines}\n2024-01-01,2024-01-02 00:00:00,99",
        timezone="Europe/Berlin",
        max_age_us=366 * 86_400_000_000,
    )
    rows = rows_of(lake)
    assert [row["event_ts"].time().isoformat() for row in rows] == [*TIMES.values(), "23:00:00"]
    assert {row["arrival_ts"] for row in rows} == {datetime(2024, 1, 1, 23, tzinfo=UTC)}


def test_the_time_zone_holds_for_every_column(lake, tmp_path, either_way):
    content = "event_ts,scheduled\n2024-01-01 10:00:00,2024-01-01 10:30:00\n2024-01-01T10:00:00Z,2024-01-01T10:30:00Z\n"
    put(lake, tmp_path / "a.csv", content, timezone="Europe/Berlin")
    put(
        lake, tmp_path / "b.csv", content.replace("10:30:00", "10:40:00"), timezone="Europe/Berlin"
    )  # by the table's type
    naive = pa.table(
        {"event_ts": pa.array([datetime(2024, 1, 1, 10)] * 2), "planned": [datetime(2024, 1, 1, 10, 30), None]}
    )
    for name, stream in (("c", "n"), ("d", "n"), ("e", "s")):
        rows = naive.rename_columns(["event_ts", "scheduled"]) if stream == "s" else naive
        pq.write_table(rows.slice(0, 1 if name == "d" else 2), tmp_path / f"{name}.parquet")
        ingest(lake, [str(tmp_path / f"{name}.parquet")], IngestOptions(stream=stream, timezone="Europe/Berlin"))
    minutes = [(row["scheduled"] - row["event_ts"]).total_seconds() / 60 for row in rows_of(lake) if row["scheduled"]]
    assert minutes == [30, 30, 40, 40, 30]
    planned = [row["planned"] for row in rows_of(lake, "n")]
    assert [p and p.replace(tzinfo=None) for p in planned] == [
        datetime(2024, 1, 1, 9, 30),
        None,
        datetime(2024, 1, 1, 9, 30),
    ]


@pytest.mark.parametrize("others", ["csv", "jsonl", "naive"])
def test_the_time_zone_is_not_that_of_times_that_name_one_in_another_file_of_the_call(lake, tmp_path, others):
    """Ten o'clock in Berlin in one file, eight as UTC in the other: the same instant, in whatever order."""
    local, utc = (
        datetime(2024, 7, 1, 10, 0, 0, 5),
        pa.array([datetime(2024, 7, 1, 8, 0, 0, 5)], pa.timestamp("us", "UTC")),
    )
    if others == "naive":
        pq.write_table(pa.table({"event_ts": [local], "planned": [local]}), tmp_path / "b.parquet")
        files = [tmp_path / f"{name}.parquet" for name in "abc"]
    else:
        row = {"event_ts": str(local), "planned": str(local)}
        text = json.dumps(row) if others == "jsonl" else "event_ts,planned\n" + ",".join(row.values())
        (tmp_path / f"b.{others}").write_text(text + "\n")
        files = [tmp_path / "a.parquet", tmp_path / f"b.{others}", tmp_path / "c.parquet"]
    for number, name in enumerate("ac"):
        columns = {"event_ts": utc, "planned": utc, "n": [number]}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    ingest(lake, list(map(str, files)), IngestOptions(stream="s", timezone="Europe/Berlin"))
    rows = rows_of(lake)
    assert len(rows) == 3 and type_of(lake, "s", "planned").startswith("timestamp[us")
    assert {row[name].replace(tzinfo=UTC) for row in rows for name in ("event_ts", "planned")} == {utc[0].as_py()}


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_text_for_a_column_of_lists_is_read_as_json(lake, tmp_path, format_):
    first = {"event_ts": [1], "tags": [["x"]], "heads": [{"user-agent": "x"}]}
    pq.write_table(pa.table(first), tmp_path / "a.parquet")
    ingest(lake, [str(tmp_path / "a.parquet")], IngestOptions(stream="s"))
    put(lake, tmp_path / "d.jsonl", '{"event_ts": 2, "heads": {"user-agent": "y"}}\n')
    text = {
        "csv": 'event_ts,tags\n3,"[""z""]"\n4,no list\n',
        "jsonl": '{"event_ts": 3, "tags": ["z"]}\n{"event_ts": 4, "tags": "no list"}\n',
    }[format_]
    assert put(lake, tmp_path / f"b.{format_}", text).rows_quarantined == {"s": 1}
    put(lake, tmp_path / "c.csv", "event_ts,tags\n5,\n")
    assert [row["tags"] for row in rows_of(lake)] == [["x"], None, ["z"], None]
    assert rows_of(lake)[1]["heads"] == {"user-agent": "y"}


def test_a_row_of_a_far_year_can_be_read(lake, tmp_path, either_way):
    put(lake, tmp_path / "a.csv", "event_ts,arrival_ts\n2024-01-01,2024-01-01\n2999-12-31,2999-12-31\n")
    spec = parse_query(
        "name: q\nkind: aggregate\nstreams: {s: s}\nwindow: 1 d\nselect: {n: count()}\nstrategy: exact\n"
    )
    run(lake, spec, flush=True)
    assert [row["window_start"].year for row in result_views.results(lake, spec).to_pylist()] == [2024, 2999]


def test_a_time_without_its_date_is_no_timestamp(lake, tmp_path):
    """Spark would take today's."""
    put(lake, tmp_path / "a.csv", "event_ts,t\n1,2024-01-01 10:00:00\n")
    assert put(lake, tmp_path / "b.csv", "event_ts,t\n2,2024-01-01 11:00:00\n3,12:30\n").rows_quarantined == {"s": 1}


def test_columns_that_begin_with_an_underscore_are_stored(lake, tmp_path, either_way):
    put(lake, tmp_path / "a.csv", "event_ts,_id\n1,x\n")
    assert [row["_id"] for row in rows_of(lake)] == ["x"]


NAMES = ["data[1]", "data1", "{a}", "a", "x*", "xyz", "q?", "back\\slash", "10:30", "_under", "100%20"]


@pytest.mark.parametrize("format_", ["csv", "json", "parquet"])
def test_names_are_taken_by_the_letter(spark, tmp_path, format_):
    """Also where a folder's name, or the lake's, looks like a pattern, and where another file matches."""
    lake = Lake(tmp_path / "lake {of} *")
    folder = tmp_path / "in [a-z]{1,2}*"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        path = folder / f"{name}.{format_}"
        if format_ == "parquet":
            pq.write_table(pa.table({"event_ts": [number], "name": [name]}), path)
        elif format_ == "json":
            path.write_text(json.dumps({"event_ts": number, "name": name, "key": {"of": number}}))
        else:
            path.write_text(f"event_ts,name\n{number},{name}\n")
    done = ingest(lake, [str(folder)], IngestOptions(stream="s"))
    assert done.rows_ingested == {"s": len(NAMES)}
    assert {row["name"]: row["event_ts"].microsecond for row in rows_of(lake)} == {
        name: i for i, name in enumerate(NAMES)
    }


@pytest.mark.parametrize("encode", [lambda text: text.encode("utf-16"), lambda text: gzip.compress(text.encode())])
def test_keys_of_json_are_those_of_the_text_that_was_decoded(lake, tmp_path, encode):
    done = put(
        lake,
        tmp_path / "a.json",
        encode('{"event_ts": 1, "späť": 2}\n{"event_ts": 2, "_corrupt_record": "x"}\n{broken\n'),
    )
    assert done.rows_ingested == {"s": 2} and done.rows_quarantined == {"s": 1}
    assert [(row["späť"], row["_corrupt_record"]) for row in rows_of(lake)] == [(2, None), (None, "x")]


def test_keys_of_json_that_only_case_tells_apart_are_refused(lake, tmp_path):
    with pytest.raises(InputError, match="case does not tell columns apart"):
        put(lake, tmp_path / "a.json", '{"event_ts": 1, "a": 1}\n{"event_ts": 2, "A": 2}\n')
    with pytest.raises(InputError, match="kept for the product"):
        put(lake, tmp_path / "a.json", '{"event_ts": 1, "_row": 1}\n')


def test_parquet_columns_that_only_the_jvm_takes_for_one_are_refused(lake, tmp_path):
    """The two small sigmas: neither is the other in lower case, but both are capital sigma in upper case."""

    def put_columns(file, *columns):
        pq.write_table(pa.table({name: [1] for name in ("event_ts", *columns)}), tmp_path / file)
        return ingest(lake, [str(tmp_path / file)], IngestOptions(stream="s"))

    with pytest.raises(InputError, match=r"a\.parquet: has more than one column 'Σ'"):
        put_columns("a.parquet", "ς", "Σ")
    put_columns("b.parquet", "ς")
    with pytest.raises(InputError, match=r"column σ: differs from column 'ς' of stream s in case only"):
        put_columns("c.parquet", "σ")


@pytest.mark.parametrize("name", ["_tmp", ".x", "a/b", "", "a b", "é", "x" * 101, "a\n"])
def test_one_rule_for_names_of_streams(lake, tmp_path, name):
    with pytest.raises(InputError, match="is not a stream name"):
        put(lake, tmp_path / "a.csv", "event_ts\n1\n", stream=name)
    quoted = '"' + name + '"'
    done = put(lake, tmp_path / "b.csv", f"event_ts,kind,v\n1,{quoted},1\n2,a.B-c_9,2\n", stream=None, by="kind")
    mapped = {"a/b": "a_b", "a b": "a_b", "a\n": "a_"}.get(name)  # in a column, one rule makes a name of it
    assert done.rows_ingested == {"a.B-c_9": 1} | ({mapped: 1} if mapped else {})
    assert done.rows_quarantined == ({} if mapped else {"_unknown": 1})


def test_names_that_delta_cannot_hold_are_stored_with_underscores(lake, tmp_path, either_way):
    """In query files both spellings are the column; two columns of one stored name are refused."""
    said = []
    (tmp_path / "a.csv").write_text(
        "event_ts,Departure Delay,a=b;{}\n" + "".join(f"{i},{i % 3},x\n" for i in range(40))
    )
    ingest(lake, [str(tmp_path / "a.csv")], IngestOptions(stream="s"), said.append)
    assert "ingest: column 'Departure Delay' is stored as Departure_Delay" in said
    assert set(rows_of(lake)[0]) == {"seq", "event_ts", "arrival_ts", "Departure_Delay", "a_b___"}
    text = (
        "name: q\nkind: theta_join\nstreams: {r: s, t: s}\nwindow: 10 us\n"
        "conditions: ['r.\"Departure Delay\" < t.Departure_Delay']\n"
    )
    spec = parse_query(text)
    run(lake, spec, flush=True)
    backfill(lake, spec, 0, 1000)
    answers = result_views.results(lake, spec).to_pylist()
    assert answers and all(row["r_Departure_Delay"] < row["t_Departure_Delay"] for row in answers)
    with pytest.raises(InputError, match="is stored as a_b, and so is column"):
        put(lake, tmp_path / "b.csv", "event_ts,a b,a_b\n1,2,3\n", stream="other")


VALUES = {
    "text": pa.array(["a", "b"]),
    "double": pa.array([1.5, 2.5]),
    "moment": pa.array([1, 2], pa.timestamp("us", "UTC")),
    "flag": pa.array([True, False]),
    "list": pa.array([[1], [2]]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_parquet_column_without_a_value_goes_with_every_type(spark, tmp_path, kind):
    """pandas writes it with the type null; before, after, and in one call with a file that has values."""
    none, some = tmp_path / "none.parquet", tmp_path / "some.parquet"
    for number, (path, values) in enumerate(((none, pa.nulls(2)), (some, VALUES[kind]))):
        pq.write_table(pa.table({"event_ts": [2 * number, 2 * number + 1], "v": values}), path)
    for name, calls in {"first": [[none], [some]], "then": [[some], [none]], "at once": [[none, some]]}.items():
        lake = Lake(tmp_path / name.replace(" ", "_"))
        for files in calls:
            ingest(lake, [str(path) for path in files], IngestOptions(stream="s"))
        found = {row["event_ts"].microsecond: row["v"] for row in rows_of(lake)}
        assert found == dict(enumerate([None, None, *VALUES[kind].to_pylist()])), name


def test_parquet_files_of_one_call_that_disagree_are_both_named(lake, tmp_path):
    for name, values in (("a", [1, 2]), ("b", [1.5, 2.5]), ("c", ["x", "y"])):
        pq.write_table(pa.table({"event_ts": [1, 2], "v": values, "name": [name] * 2}), tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match=r"c\.parquet: column v: is string, and .* in .*[ab]\.parquet"):
        ingest(lake, [str(tmp_path / f"{name}.parquet") for name in "abc"], IngestOptions(stream="s"))
    assert not lake.table("ingest", "committed").exists()


def test_nanoseconds_before_1970_are_rounded_down(lake, tmp_path):
    moments = pa.array([-1, -1000, -1001, 1999], pa.timestamp("ns"))
    pq.write_table(pa.table({"event_ts": moments, "at": moments}), tmp_path / "a.parquet")
    ingest(lake, [str(tmp_path / "a.parquet")], IngestOptions(stream="s"))
    rows = lake.table("events", "s").read().sort_by("seq")
    assert rows["event_ts"].cast(pa.int64()).to_pylist() == [-1, -1, -2, 1]


def test_a_name_that_spark_keeps_for_itself_is_refused(lake, tmp_path):
    pq.write_table(pa.table({"event_ts": [1, 2], "_metadata": ["x", "y"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="has a column '_metadata', a name kept for the product; rename it"):
        ingest(lake, [str(tmp_path / "a.parquet")], IngestOptions(stream="s"))


LONG = {
    "bigint": ["1541815603606036480", "1541815603606036481", "-9223372036854775808", "9223372036854775807", "7"],
    "decimal(38,0)": ["9223372036854775808", "18446744073709551615", "7", "-5", "9" * 38],
    "string": ["9" * 39, "7", "8", "-5", "1.5"],
}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("format", ["csv", "json"])
def test_long_whole_numbers_are_kept_to_the_last_digit(lake, tmp_path, format, kind):
    """Ids of 19 digits (snowflakes, hashes) were stored as doubles, and became equal."""
    values = LONG[kind]
    if format == "csv":
        lines = ["event_ts,id", *(f"{i},{value}" for i, value in enumerate(values))]
    else:
        lines = [f'{{"event_ts": {i}, "id": {value}}}' for i, value in enumerate(values)]
    put(lake, tmp_path / f"a.{format}", "\n".join(lines) + "\n")
    found = type_of(lake, "s", "id")
    assert {"int64": "bigint", "decimal128(38, 0)": "decimal(38,0)"}.get(found, found) == kind
    assert [str(row["id"]) for row in rows_of(lake)] == values
    more = "event_ts,id\n9,99999999999999999999999999999999999999999\n"
    if kind == "string":
        put(lake, tmp_path / "b.csv", more)
    else:
        with pytest.raises(InputError, match="has changed its type"):
            put(lake, tmp_path / "b.csv", more)


def test_whole_numbers_beside_doubles_of_another_file_are_not_rounded(lake, tmp_path):
    """pandas writes a column of whole numbers as doubles where one is missing."""
    for name, values in (("ids", [1541815603606036480, 1541815603606036481]), ("few", [7, 8]), ("gaps", [1.0, None])):
        pq.write_table(pa.table({"event_ts": [1, 2], "id": values}), tmp_path / f"{name}.parquet")
    pq.write_table(pa.table({"event_ts": [1], "id": [Decimal("1.10")]}), tmp_path / "exact.parquet")
    files = {name: str(tmp_path / f"{name}.parquet") for name in ("ids", "few", "gaps", "exact")}
    with pytest.raises(InputError, match=r"ids\.parquet: column id.*1541815603606036480.*would be rounded"):
        ingest(lake, [files["gaps"], files["ids"]], IngestOptions(stream="s"))
    with pytest.raises(InputError, match=r"column id: is decimal\(.*and double in|column id: is double, and decimal"):
        ingest(lake, [files["gaps"], files["exact"]], IngestOptions(stream="s"))
    for order in (("few", "exact", "gaps"), ("exact", "few", "gaps"), ("few", "gaps", "exact")):
        with pytest.raises(
            InputError, match=r"column id: is decimal\(.*and double in|column id: is double, and decimal"
        ):
            ingest(lake, [files[name] for name in order], IngestOptions(stream="s"))
    assert not lake.table("ingest", "committed").exists()
    ingest(lake, [files["few"], files["gaps"]], IngestOptions(stream="s"))
    assert sorted(row["id"] or 0 for row in rows_of(lake)) == [0, 1, 7, 8]


def test_files_that_write_their_times_otherwise_come_by_a_call_each(lake, tmp_path):
    times = pa.array([1_700_000_000_000_000])
    kinds = {"number": times, "moment": times.cast(pa.timestamp("us", "UTC"))}
    files = {name: str(tmp_path / f"{name}.parquet") for name in kinds}
    for name, column in kinds.items():
        pq.write_table(pa.table({"event_ts": column, "id": [1]}), files[name])
    with pytest.raises(InputError, match=r"column event_ts: is .*; ingest the files by a call each"):
        ingest(lake, list(files.values()), IngestOptions(stream="s"))
    for path in files.values():
        ingest(lake, [path], IngestOptions(stream="s"))
    assert len({row["event_ts"] for row in rows_of(lake)}) == 1 and len(rows_of(lake)) == 2


def test_objects_on_one_line_and_what_stands_beside_them(lake, tmp_path):
    lines = '{"event_ts": 1, "v": 1}{"event_ts": 2, "v": 2}\n{"event_ts": 3, "v": 3} {"event_ts": 4\n{"event_ts": 5}x\n'
    done = put(lake, tmp_path / "a.json", lines)
    assert done.rows_read == 4 and [row["v"] for row in rows_of(lake)] == [1, 2]
    kept_out = lake.table("quarantine", "s").read().to_pylist()
    assert sorted((row["line"], row["reason"]) for row in kept_out) == [
        (2, "has something beside its object"),
        (3, "has something beside its object"),
    ]


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ("grown", "was changed while it was read"),
        ("gone", "was changed while it was read"),
        ("out of reach", "cannot be read"),
    ],
)
def test_a_file_that_changes_while_it_is_read_is_refused_and_comes_in_once(lake, tmp_path, monkeypatch, after, said):
    path, read = tmp_path / "a.csv", sources.union.read

    def silent(*args):
        raise TimeoutError("no answer")

    def meanwhile(*args):
        found = read(*args)
        if after == "out of reach":
            monkeypatch.setattr(sources, "content_digest", silent)
        elif after == "gone":
            path.unlink()
        else:
            path.write_text("event_ts\n1\n2\n", encoding="utf-8")
        return found

    monkeypatch.setattr(sources.union, "read", meanwhile)
    with pytest.raises(InputError, match=rf"a\.csv: {said}"):
        put(lake, path, "event_ts\n1\n")
    monkeypatch.undo()
    assert not lake.table("ingest", "committed").exists()
    assert put(lake, path, "event_ts\n1\n2\n").rows_ingested == {"s": 2}


@pytest.mark.parametrize("then", [[1, 2], [1]], ids=["new", "as it was"])
@pytest.mark.parametrize("after", ["replaced", "gone"])
@pytest.mark.parametrize("point", ["ingest:planned", "ingest:events"])
def test_parquet_that_changes_while_it_is_written_is_refused_and_comes_in_once(
    lake, tmp_path, monkeypatch, either_way, after, point, then
):
    path, other = tmp_path / "a.parquet", tmp_path / "new"
    pq.write_table(pa.table({"event_ts": [1]}), path)
    pq.write_table(pa.table({"event_ts": [1, 2]}), other)

    def meanwhile(name):
        if name == point and other.exists():
            other.replace(path)
            if after == "gone":
                path.unlink()

    monkeypatch.setattr(ingesting.crash_points, "point", meanwhile)
    with pytest.raises(InputError, match=r"a\.parquet: was changed while it was read"):
        ingest(lake, [str(path)], IngestOptions(stream="s"))
    assert committed_seq(lake) == 0
    pq.write_table(pa.table({"event_ts": then}), path)
    assert ingest(lake, [str(path)], IngestOptions(stream="s")).rows_ingested == {"s": len(then)}
    assert len(rows_of(lake)) == len(then)


def test_parquet_without_a_column_is_named(lake, tmp_path):
    pq.write_table(pa.table({}), tmp_path / "none.parquet")
    with pytest.raises(InputError, match=r"none\.parquet: has no column"):
        ingest(lake, [str(tmp_path / "none.parquet")], IngestOptions(stream="s"))


@pytest.mark.parametrize("zone", ["localtime", "posix/Europe/Berlin", "Mars/Olympus"])
def test_zones_that_the_engine_does_not_know_are_refused(lake, tmp_path, zone):
    with pytest.raises(InputError, match="is not a time zone"):
        put(lake, tmp_path / "a.csv", "event_ts\n1\n", timezone=zone)


def test_leading_zeros_are_not_taken_from_names_that_come_after_numbers(lake, tmp_path):
    put(lake, tmp_path / "a.csv", "event_ts,zip\n1,10001\n")
    with pytest.raises(InputError, match="column zip: has values with leading zeros, which the table's bigint"):
        put(lake, tmp_path / "b.csv", "event_ts,zip\n2,01234\n")
    assert [row["zip"] for row in rows_of(lake)] == [10001]


def test_a_year_may_begin_with_a_zero(lake, tmp_path):
    put(lake, tmp_path / "a.csv", "event_ts,seen\n1,2024-05-01T10:00:00\n")
    put(lake, tmp_path / "b.csv", "event_ts,seen\n2,0001-01-01T00:00:00\n")  # .NET's least
    assert [row["seen"].year for row in rows_of(lake)] == [2024, 1]


def test_a_sequence_that_only_some_files_have_orders_nothing(lake, tmp_path):
    (tmp_path / "a.csv").write_text("event_ts,arrival_ts,seq\n1,1000000,7\n5,5000000,8\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("event_ts,arrival_ts\n3,3000000\n", encoding="utf-8")
    (tmp_path / "c.csv").write_text("", encoding="utf-8")
    ingest(lake, [str(tmp_path / name) for name in ("a.csv", "b.csv", "c.csv")], IngestOptions(stream="s"))
    assert [(row["event_ts"].microsecond, row["source_seq"]) for row in rows_of(lake)] == [(1, 7), (3, None), (5, 8)]


ENDLESS = "49590338271490256608559692538361571095921575989136588898"


@pytest.mark.parametrize(
    ("values", "order"),
    [
        (["3.0", "1.0", "2.0"], [2, 3, 1]),  # whole numbers, as pandas writes them beside a missing one
        (["3.0", "", "2.0"], [3, 1, 2]),
        ([str(2 * 10**19), str(10**19), "3"], [3, 2, 1]),
        ([ENDLESS, "7", "012"], [2, 3, 1]),  # digits as text
        (["-5", "1e3", "2.5"], [1, 3, 2]),
        (["2024-01-02 00:00:00", "2024-01-01 00:00:00", "2024-01-01 12:00:00"], [2, 3, 1]),
    ],
)
@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_sequence_of_any_numbers_orders(lake, tmp_path, values, order, format):
    text = "event_ts,seq\n" + "\n".join(f"{i},{value}" for i, value in enumerate(values, 1))
    if format == "json":
        rows = [{"event_ts": i} | ({"seq": value} if value else {}) for i, value in enumerate(values, 1)]
        text = "\n".join(map(json.dumps, rows))
    put(lake, tmp_path / f"a.{format}", text)
    assert [row["event_ts"].microsecond for row in rows_of(lake)] == order


def test_an_object_with_a_key_twice_is_in_quarantine(lake, tmp_path):
    put(
        lake, tmp_path / "a.json", '{"event_ts": 1, "v": 1}\n{"event_ts": 2, "v": 2, "v": 3}\n{"v": 4, "event_ts": 3}\n'
    )
    assert [(row["event_ts"].microsecond, row["v"]) for row in rows_of(lake)] == [(1, 1), (3, 4)]
    (bad,) = result_views.quarantine(lake, ["s"]).to_pylist()
    assert (bad["line"], bad["reason"]) == (2, "has a key more than once") and '"v": 3' in bad["raw"]
    with pytest.raises(InputError, match="more than one column"):  # two columns that only case tells apart
        put(lake, tmp_path / "b.json", '{"event_ts": 1, "v": 1, "V": 2}\n')


def test_a_sequence_that_cannot_order_is_refused(lake, tmp_path):
    with pytest.raises(InputError, match=r"a\.csv: column seq: 'ACGT': is to order the rows, and is neither"):
        put(lake, tmp_path / "a.csv", "event_ts,seq\n1,7\n2,ACGT\n")
    pq.write_table(pa.table({"event_ts": [1, 2], "seq": [[2], [1]]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"column seq: .* is to order the rows"):
        ingest(lake, [str(tmp_path / "b.parquet")], IngestOptions(stream="s"))
    assert committed_seq(lake) == 0


def test_times_in_96_bits_are_times(lake, tmp_path, spark):
    """Spark's, Hive's and Impala's way to write them, unless told otherwise."""
    moments = ["1850-01-01 00:00:00", "2024-05-01 10:00:00.123456", "1969-12-31 23:59:59.999999"]
    rows = spark.createDataFrame([(m,) for m in moments], "t string").selectExpr(
        "cast('2024-01-01' as timestamp) + make_interval(0, 0, 0, 0, 0, 0, row_number() over (order by t)) as event_ts",
        "cast(t as timestamp) as seen",
    )
    kept = spark.conf.get("spark.sql.parquet.outputTimestampType")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        rows.coalesce(1).write.parquet(str(tmp_path / "out"))
    finally:
        spark.conf.set("spark.sql.parquet.outputTimestampType", kept)
    (file,) = (tmp_path / "out").glob("*.parquet")
    assert pq.ParquetFile(file).schema.column(1).physical_type == "INT96"
    ingest(lake, [str(file)], IngestOptions(stream="s"))
    found = [row["seen"].strftime("%Y-%m-%d %H:%M:%S.%f") for row in rows_of(lake)]
    assert sorted(found) == sorted(f"{m}.000000" if "." not in m else m for m in moments)


@pytest.mark.parametrize("column", [pa.array([1, 2], pa.time64("ns")), pa.array([1, 2], pa.time32("ms"))])
def test_types_that_no_table_has_are_named(lake, tmp_path, column):
    pq.write_table(pa.table({"event_ts": [1, 2], "at": column}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: has a column 'at' of type time.*, which tables do not have"):
        ingest(lake, [str(tmp_path / "a.parquet")], IngestOptions(stream="s"))


@pytest.mark.parametrize("format", ["csv", "json"])
def test_not_a_number_is_one(lake, tmp_path, format):
    values = ["1.5", "NaN", "Infinity", "-Infinity", "2"]
    if format == "csv":
        content = "event_ts,v,name\n" + "".join(f"{at},{value},NaN\n" for at, value in enumerate(values))
    else:
        content = "".join(f'{{"event_ts": {at}, "v": {value}, "name": "Nan"}}\n' for at, value in enumerate(values))
    put(lake, tmp_path / f"a.{format}", content)
    found = [row["v"] for row in rows_of(lake)]
    assert type_of(lake, "s", "v") == "double"
    assert found[0] == 1.5 and math.isnan(found[1]) and found[2:] == [math.inf, -math.inf, 2.0]
    assert type_of(lake, "s", "name") == ("double" if format == "csv" else "string")


def test_whole_numbers_beside_not_a_number_are_not_rounded(lake, tmp_path):
    put(lake, tmp_path / "a.csv", "event_ts,id\n1,9007199254740993\n2,nan\n")
    assert [row["id"] for row in rows_of(lake)] == ["9007199254740993", "nan"]


@pytest.mark.parametrize("kind", [pa.uint64(), pa.float64(), pa.decimal128(21, 2), pa.string()])
def test_event_times_in_whole_microseconds_of_any_type(lake, tmp_path, kind):
    times = [1_704_067_200_000_001, None, 1_704_067_200_000_002]
    if kind == pa.string():
        column = pa.array(["1704067200000001.0", None, "1704067200000002."])
    else:
        column = pa.array(times, pa.int64()).cast(kind)
    pq.write_table(pa.table({"event_ts": column, "v": [1, 2, 3]}), tmp_path / "a.parquet")
    done = ingest(lake, [str(tmp_path / "a.parquet")], IngestOptions(stream="s"))
    assert done.rows_ingested == {"s": 2} and done.rows_quarantined == {"s": 1}
    assert done.event_times_us == (times[0], times[2])


def test_event_times_that_are_not_whole_are_not_rounded(lake, tmp_path):
    pq.write_table(pa.table({"event_ts": [1_704_067_200.25, 5.0, float("nan"), 1e300]}), tmp_path / "a.parquet")
    done = ingest(lake, [str(tmp_path / "a.parquet")], IngestOptions(stream="s"))
    assert done.rows_ingested == {"s": 1} and done.rows_quarantined == {"s": 3}
    assert lake.table("quarantine", "s").read().sort_by("line")["raw"][0].as_py() == '{"event_ts":1.70406720025E9}'
