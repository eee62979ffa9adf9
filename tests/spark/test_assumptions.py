"""Assumptions of `ingest` where nothing is stated: it names them with a remedy, and `streams` lists inferred types."""

import json

import pytest
from click.testing import CliRunner
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.validate import with_streams
from latecomer.jobs.cli import main
from latecomer.lake import result_views
from latecomer.lake.errors import InputError
from latecomer.specs.streams import TextLayout

OF_S = IngestOptions(stream="s", timezone_stated=True)


def put(folder, name, text):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return [str(folder / name)]


def test_types_that_were_inferred_are_listed_with_what_contradicts_them(lake, tmp_path):
    values = ["0.5"] * 20 + ["nil"] * 3 + ["7"]
    file = put(
        tmp_path, "a.csv", "event_ts,isig,k,empty,when\n" + "".join(f"{i},{v},x,,\n" for i, v in enumerate(values))
    )
    notes = ingest(lake, file, OF_S).notes
    assert notes == [
        "isig: string, 3 of 24 values are no number: 'nil'; name marks of no value under null_values, or state a type "
        "under columns; later: latecomer ingest --retype s isig=double",
        "types as the values tell them: isig string, k string; to fix a type, state it under columns in the stream "
        "file",
        "empty, when are left out, because no row has a value from which a type follows; state types under columns in "
        "the stream file to store them",
    ]
    shown = CliRunner().invoke(main, ["streams", "--lake", lake.uri])
    assert "isig: string (inferred: 3 of 24 values are no number: 'nil')\n  k: string (inferred)\n" in shown.stdout
    CliRunner().invoke(main, ["ingest", "--lake", lake.uri, "--retype", "s", "isig=double"])
    listed = json.loads(CliRunner().invoke(main, ["streams", "--lake", lake.uri, "--json"]).stdout)["streams"]
    assert listed[0]["columns"] == {"isig": "double", "k": "string"} and listed[0]["inferred"] == {"k": ""}
    later = put(tmp_path, "b.csv", "event_ts,isig,k\n1,nil,y\n2,3,z\n")
    notes = ingest(lake, later, OF_S).notes
    assert notes == [
        "isig: 1 value of 2 are no double and went to quarantine: 'nil'; name marks of no value under null_values, or "
        "change the type with --retype"
    ]
    stated = IngestOptions(
        stream="t", columns=(("isig", "double"), ("k", "string")), layout=TextLayout(null_values=("nil",)),
        timezone_stated=True,
    )  # fmt: skip
    assert ingest(lake, later, stated).notes == []


def test_fields_of_objects_that_have_no_type_yet_are_named(lake, tmp_path):
    row = {"event_ts": 1, "a": [], "c": None, "d": {"e": [], "f": 1, "g": None}, "h": [{"x": None, "y": 2}]}
    done = ingest(lake, put(tmp_path, "a.json", json.dumps(row)), OF_S)
    assert lake.table("events", "s").read().select(["d", "h"]).to_pylist() == [{"d": {"f": 1}, "h": [{"y": 2}]}]
    (left_out,) = [note for note in done.notes if "left out" in note]
    assert left_out.startswith("a, c, d.e, d.g, h[].x are left out, because no row has a value")
    (inferred,) = [note for note in done.notes if "values tell" in note]
    assert "d struct<f:bigint>, h array<struct<y:bigint>>;" in inferred


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_times_without_a_zone_are_said_to_be_read_as_utc(lake, tmp_path, format_):
    texts = ["2024-05-01T10:00:00Z", "2024-05-01 10:00"]
    csv = "event_ts,v\n" + "".join(f"{text},1\n" for text in texts)
    lines = "".join(json.dumps({"event_ts": text, "v": 1}) + "\n" for text in texts)
    file = put(tmp_path, f"a.{format_}", csv if format_ == "csv" else lines)
    said = "event times without a zone, such as 2024-05-01 10:00, were read as UTC, because no zone was stated"
    of = ["ingest", "--lake", lake.uri, "--json", "--stream"]
    assert [n for n in json.loads(CliRunner().invoke(main, [*of, "s", *file]).stdout)["notes"] if said in n]
    done = json.loads(CliRunner().invoke(main, [*of, "t", "--timezone", "UTC", *file]).stdout)
    assert done["ingested"] == 2 and not [note for note in done["notes"] if "zone" in note]
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "u.yaml").write_text("timezone: UTC\n")
    done = json.loads(CliRunner().invoke(main, [*of, "u", "--streams", str(tmp_path / "streams"), *file]).stdout)
    assert done["ingested"] == 2 and not [note for note in done["notes"] if "zone" in note]
    zoned = put(tmp_path, "b.csv", "event_ts\n2024-05-01T10:00:00+02:00\n1714557600000000\nnever\n")
    assert not [note for note in ingest(lake, zoned, IngestOptions(stream="v")).notes if "zone" in note]


def test_the_age_that_is_believed_by_default_is_said_with_its_reason(lake, tmp_path):
    rows = "".join(f"2024-05-01T10:00:0{i}Z,2024-05-01T10:00:3{i}Z\n" for i in range(10))
    done = ingest(lake, put(tmp_path, "a.csv", f"event_ts,arrival_ts\n{rows}"), OF_S)
    assert done.notes == [
        "s: 90% of the rows arrived within 30 s of their events; max_age is 90 d, the least, or ten times that, and "
        "max_future 1 d: events that are older at their arrival, or later than it, go to quarantine"
    ]
    slow = "".join(f"2023-0{i}-01T00:00:00Z,2023-0{i}-21T00:00:00Z\n" for i in range(1, 7))
    done = ingest(lake, put(tmp_path, "b.csv", f"event_ts,arrival_ts\n{slow}"), IngestOptions(stream="t"))
    assert any("within 20 d of their events; max_age is 200 d, ten times that" in note for note in done.notes)
    again = ingest(lake, put(tmp_path, "c.csv", f"event_ts,arrival_ts,v\n{slow[:-1]},1\n"), IngestOptions(stream="t"))
    assert not any("max_age" in note for note in again.notes)


def test_a_name_in_a_path_that_is_no_column_is_said(lake, tmp_path):
    put(tmp_path, "in/day=2024-05-01/a.csv", "event_ts,v\n1,1\n")
    put(tmp_path, "in/day=2024-05-02/b.csv", "event_ts,v\n2,2\n")
    done = ingest(lake, [str(tmp_path / "in")], IngestOptions(stream="s", recursive=True))
    assert any(
        note.startswith("the folder day=2024-05-01 names a value that the rows do not have") for note in done.notes
    )
    put(tmp_path, "with/day=2024-05-01/a.csv", "event_ts,day\n1,2024-05-01\n")
    done = ingest(lake, [str(tmp_path / "with")], IngestOptions(stream="t", recursive=True))
    assert not any("folder" in note for note in done.notes)


def test_names_of_streams_follow_a_rule_and_names_that_meet_are_said(lake, tmp_path):
    names = ["page view", "Büro 1", " a ", "a/b", "a b", "", "..", "_x"]
    file = put(tmp_path, "a.csv", "event_ts,x\n" + "".join(f"{i},{name}\n" for i, name in enumerate(names)))
    done = ingest(lake, file, IngestOptions(by="x"))
    assert done.rows_ingested == {"page_view": 1, "B_ro_1": 1, "a": 1, "a_b": 2}
    assert done.rows_quarantined == {"_unknown": 3}
    assert [row["reason"] for row in result_views.quarantine(lake, ["_unknown"]).sort_by("line").to_pylist()] == [
        f"column x names no stream: {name}" for name in ("null", "..", "_x")
    ]
    assert "stream a_b has the rows that the column calls 'a b', 'a/b'" in done.notes


def test_usual_names_of_streams_change_no_stream(spark):
    names = ["a", " a ", "a b", "a/b", "a_b", "A", "", "..", "_x", None, "_unknown", "x" * 100, "x" * 101, "a\n"]
    rows = spark.createDataFrame([(name,) for name in names], "x string")
    plain, with_usual = (
        [row["_stream"] for row in with_streams(rows, IngestOptions(by="x"), usual).collect()]
        for usual in ([], ["a", "a_b", "x" * 100])
    )
    assert with_usual == plain
    assert plain[:6] == ["a", "a", "a_b", "a_b", "a_b", "A"] and plain[6:11] == ["_unknown"] * 5


def test_remedies_of_numbers_documents_and_tabs(lake, tmp_path):
    seconds = put(tmp_path, "a.csv", "event_ts,v\n1717200000.25,1\n1717200001.50,2\n")
    hint = "if numbers count seconds, say time_unit: s"
    assert ingest(lake, seconds, OF_S).rows_quarantined == {"s": 2}
    assert all(hint in row["reason"] for row in result_views.quarantine(lake, ["s"]).to_pylist())
    done = ingest(lake, seconds, IngestOptions(stream="t", time_unit="s"))
    times = [str(row["event_ts"]) for row in lake.table("events", "t").read().sort_by("seq").to_pylist()]
    assert done.rows_ingested == {"t": 2} and times == [
        "2024-06-01 00:00:00.250000+00:00",
        "2024-06-01 00:00:01.500000+00:00",
    ]
    nested = put(tmp_path, "b.json", '{"data": {"records": [{"event_ts": 1}, {"event_ts": 2}]}}')
    with pytest.raises(
        InputError, match=r"'event_ts': no such column; .*write records: data\.records in the stream file"
    ):
        ingest(lake, nested, OF_S)
    stated = IngestOptions(stream="u", layout=TextLayout(records="data.records"))
    assert ingest(lake, nested, stated).rows_ingested == {"u": 2}
    tabs = put(tmp_path, "tabs/c.tsv", "event_ts\tv\n1\t5\n")
    with pytest.raises(InputError, match="write separator: tab in the stream file"):
        ingest(lake, [str(tmp_path / "tabs")], OF_S)
    done = ingest(lake, tabs, IngestOptions(stream="w", layout=TextLayout(separator="\t")))
    assert done.rows_ingested == {"w": 1} and done.event_times_us == (1, 1)
