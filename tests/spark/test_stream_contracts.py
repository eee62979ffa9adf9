"""Streams as contracts: what a stream file states holds, what breaks it goes to quarantine, and `ingest` says so.

Inputs and right values follow public reports of such problems.
"""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from latecomer.ingest import row_counts
from latecomer.ingest.dry_run import dry_run
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.jobs.cli import main
from latecomer.lake import result_views
from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import stream_totals
from latecomer.spark.engine import tables
from latecomer.specs.streams import TextLayout

OF_S = IngestOptions(stream="s")
HOUR = timedelta(hours=1)


def rows_of(lake, stream="s"):
    return lake.table("events", stream).read().sort_by("seq").to_pylist()


def put(folder, name, text):
    (folder / name).write_text(text)
    return [str(folder / name)]


def reasons(lake, stream="s"):
    return [row["reason"] for row in result_views.quarantine(lake, [stream]).sort_by("line").to_pylist()]


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_abbreviations_of_zones_are_no_times(lake, tmp_path):
    zones = ["UTC", "GMT", "Z", "BST", "CST", "PST", "AST", "CET", "EST", "EDT", "CEST"]
    lines = "".join(f"2024-07-01 12:00:00 {zone},{zone}\n" for zone in zones)
    done = ingest(lake, put(tmp_path, "a.csv", f"event_ts,zone\n{lines}"), OF_S)
    assert [(row["zone"], row["event_ts"]) for row in rows_of(lake)] == [
        (zone, at("2024-07-01T12:00")) for zone in zones[:3]
    ]
    assert done.rows_quarantined == {"s": 8}
    assert all("abbreviations of zones" in reason for reason in reasons(lake))


@pytest.mark.parametrize("arrives", [False, True])
def test_the_hour_that_occurs_twice_is_told_by_arrival_or_order(lake, tmp_path, arrives):
    """A meter in New York, every 15 minutes from 05:00Z to 07:45Z on the day on which summer time ends."""
    first = at("2024-11-03T05:00")
    moments = [first + timedelta(minutes=15 * number) for number in range(12)]
    offsets = [4 if moment < at("2024-11-03T06:00") else 5 for moment in moments]
    local = [
        (moment - offset * HOUR).strftime("%Y-%m-%d %H:%M:%S") for moment, offset in zip(moments, offsets, strict=True)
    ]
    order = np.random.default_rng(5).permutation(12) if arrives else range(12)
    arrival = [f",{(moments[i] + timedelta(seconds=20)).isoformat()}" if arrives else "" for i in range(12)]
    lines = "".join(f"{local[i]},{i}{arrival[i]}\n" for i in order)
    options = IngestOptions(stream="s", timezone="America/New_York")
    header = "event_ts,v,arrival_ts\n" if arrives else "event_ts,v\n"
    ingest(lake, put(tmp_path, "a.csv", header + lines), options)
    assert {row["v"]: row["event_ts"] for row in rows_of(lake)} == dict(enumerate(moments))
    ingest(lake, put(tmp_path, "b.csv", "event_ts,v\n2024-03-10 02:30:00,1\n2024-11-03 01:30:00,2\n"), options)
    assert [reason.partition(":")[0] for reason in reasons(lake)] == [
        "event time does not exist on a clock in America/New_York",
        "local time occurs twice, and nothing tells which is meant",
    ]


def test_a_stray_quote_swallows_no_rows(lake, tmp_path):
    lines = [f"2024-01-01T00:00:{v:02d}Z,a,{v}" for v in range(14)]
    lines[5], lines[12] = '2024-01-01T00:00:05Z,"abc,5', '2024-01-01T00:00:12Z,"def",12'
    done = ingest(lake, put(tmp_path, "a.csv", "event_ts,k,v\n" + "\n".join(lines)), OF_S)
    assert done.rows_ingested == {"s": 13} and done.rows_quarantined == {"s": 1}
    assert [row["v"] for row in rows_of(lake)] == [v for v in range(14) if v != 5]


def test_names_that_are_kept_for_the_product_are_refused_by_name(lake, tmp_path):
    for name in ("_line", "_row", "_raw", "_problem", "_file"):
        with pytest.raises(InputError, match=f"a\\.csv: has a column '{name}', a name kept for the product"):
            ingest(lake, put(tmp_path, "a.csv", f"event_ts,{name}\n1,5\n"), OF_S)


def test_rows_in_quarantine_decide_no_type(lake, tmp_path):
    text = "event_ts,v\n2024-01-01T00:00:00Z,1\nevent_ts,v\nnonsense,many\n2024-01-01T00:00:00Z,2\n"
    ingest(lake, put(tmp_path, "a.csv", text), OF_S)
    ingest(lake, put(tmp_path, "b.csv", "event_ts,v\n2024-01-01T01:00:00Z,5\n"), OF_S)
    assert [row["v"] for row in rows_of(lake)] == [1, 2, 5] and stream_totals(lake)["s"]["quarantined"] == 2


def test_texts_that_mean_no_value_are_none_and_odd_values_are_named(lake, tmp_path):
    file = put(tmp_path, "a.csv", "event_ts,v\n1,1.5\n2,NA\n3,nil\n4,2\n5,7\n")
    ingest(lake, file, IngestOptions(stream="s", layout=TextLayout(null_values=("NA", "nil"))))
    assert [row["v"] for row in rows_of(lake)] == [1.5, None, None, 2.0, 7.0]
    done = ingest(lake, file, IngestOptions(stream="t"))
    assert any("v: string, 2 of 5 values are no number: 'NA', 'nil'" in note for note in done.notes)
    assert rows_of(lake, "t")[1]["v"] == "NA"
    typed = IngestOptions(stream="u", columns=(("v", "double"),))
    assert (
        ingest(lake, file, typed).rows_quarantined == {"u": 2} and reasons(lake, "u")[0] == "column v is not double: NA"
    )


def test_whole_numbers_become_fractions_where_later_values_need_it(lake, tmp_path):
    for name, values in (("a.csv", "57"), ("b.csv", ["5.5", "7.25", "8"]), ("c.csv", ["9.0"])):
        ingest(lake, put(tmp_path, name, "event_ts,v\n" + "".join(f"1,{v}\n" for v in values)), OF_S)
    assert [row["v"] for row in rows_of(lake)] == [5.0, 7.0, 5.5, 7.25, 8.0, 9.0]
    assert sum(row["v"] for row in rows_of(lake)) == 41.75 and stream_totals(lake)["s"]["quarantined"] == 0
    ingest(lake, put(tmp_path, "d.csv", "event_ts,v\n1,5\n"), IngestOptions(stream="whole"))
    ingest(lake, put(tmp_path, "e.csv", "event_ts,v\n1,9.0\n"), IngestOptions(stream="whole"))
    assert [row["v"] for row in rows_of(lake, "whole")] == [5, 9]
    ingest(lake, put(tmp_path, "f.csv", f"event_ts,v\n1,{2**53 + 1}\n"), IngestOptions(stream="large"))
    done = ingest(lake, put(tmp_path, "g.csv", "event_ts,v\n1,0.5\n2,6\n"), IngestOptions(stream="large"))
    assert [row["v"] for row in rows_of(lake, "large")] == [2**53 + 1, 6] and done.rows_quarantined == {"large": 1}
    assert any("v: 1 value of 2 are no bigint" in note for note in done.notes)


def test_a_type_is_declared_or_given_to_a_stored_column(lake, tmp_path):
    file = put(tmp_path, "a.csv", "event_ts,v,w\n1,1,x\n2,ERR,y\n3,3,z\n")
    strict = IngestOptions(stream="t", columns=(("v", "double"),), strict=True)
    with pytest.raises(InputError, match=r"column w: is not declared, and strict: true allows no other"):
        ingest(lake, file, strict)
    ingest(lake, file, OF_S)
    with pytest.raises(InputError, match=r"is declared as double, and the table's is string; .*--retype s v=double"):
        ingest(lake, put(tmp_path, "b.csv", "event_ts,v\n9,9\n"), IngestOptions(stream="s", columns=(("v", "double"),)))
    shown = CliRunner().invoke(main, ["ingest", "--lake", lake.uri, "--retype", "s", "v=double", "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["columns"] == {"v": ["string", "double"]}
    assert [row["v"] for row in rows_of(lake)] == [1.0, 3.0] and "ERR" in reasons(lake)[0]
    ingest(lake, put(tmp_path, "b.csv", "event_ts,v\n9,9\n"), IngestOptions(stream="s", columns=(("v", "double"),)))
    listed = CliRunner().invoke(main, ["streams", "--lake", lake.uri, "--json"])
    (stream,) = json.loads(listed.stdout)["streams"]
    assert stream["columns"] == {"v": "double", "w": "string"} and (stream["rows"], stream["quarantined"]) == (3, 1)


def test_clocks_that_are_years_off_go_to_quarantine(lake, tmp_path):
    rng = np.random.default_rng(3)
    base, n = 1_717_200_000_000_000, 4_000
    event = base + np.sort(rng.integers(0, 86_400_000_000, n))
    arrival = event + rng.exponential(3_600_000_000, n).astype(np.int64)
    event[::250] = rng.integers(0, 1_000_000_000, len(event[::250]))  # 1970
    event[1::250] -= 366 * 86_400_000_000
    stamp = pa.timestamp("us", "UTC")
    rows = pa.table({"event_ts": pa.array(event).cast(stamp), "arrival_ts": pa.array(arrival).cast(stamp)})
    pq.write_table(rows, tmp_path / "a.parquet")
    done = ingest(lake, [str(tmp_path / "a.parquet")], OF_S)
    assert done.reasons == {"clock": 32} and done.rows_ingested == {"s": n - 32}
    late = ingest(lake, put(tmp_path, "late.csv", "event_ts,arrival_ts\n2020-01-01T00:00Z,2024-06-01T00:00Z\n"), OF_S)
    assert late.reasons == {"clock": 1}
    stated = IngestOptions(stream="s", max_age_us=10**18)
    late = ingest(lake, put(tmp_path, "old.csv", "event_ts,arrival_ts\n2020-01-01T00:00Z,2024-06-02T00:00Z\n"), stated)
    assert late.rows_ingested == {"s": 1}


def test_times_that_no_clock_can_show_are_compared_with_nothing(lake, tmp_path):
    far = 9_000_000_000_000_000_000
    rows = pa.table({"event_ts": [-far, far, 1], "arrival_ts": [far, -far, 2], "v": [1, 2, 3]})
    pq.write_table(rows, tmp_path / "a.parquet")
    done = ingest(lake, [str(tmp_path / "a.parquet")], OF_S)
    assert done.rows_ingested == {"s": 1} and done.rows_quarantined == {"s": 2} and rows_of(lake)[0]["v"] == 3


def test_the_driver_and_spark_count_alike(spark):
    rng = np.random.default_rng(8)
    n, stamp = 500, pa.timestamp("us", "UTC")
    event = 1_717_200_000_000_000 + rng.integers(0, 10**12, n)
    arrival = event + rng.choice([-5, 0, 1_000_000, 1_000_001, 10**9, 10**11, 10**13], n)
    rows = pa.table(
        {
            "_stream": rng.choice(["a", "b", "ü"], n),
            "_file": pa.array(rng.integers(0, 4, n), pa.int32()),
            "_row": np.arange(n),
            "_order": pa.array(rng.integers(249, 252, n), mask=rng.random(n) < 0.1),
            "_problem": pa.array(rng.choice([None, None, "clock: x", "clock: y", "has no event time"], n), pa.string()),
            "_repeated": rng.random(n) < 0.3,
            "event_ts": pa.array(event, mask=rng.random(n) < 0.1).cast(stamp),
            "arrival_ts": pa.array(arrival, mask=rng.random(n) < 0.3).cast(stamp),
            "v": pa.array(rng.choice([None, "", "text", "ü"], n), pa.string()),
        }
    )
    in_driver = row_counts.count_in_driver(rows)
    in_spark, sizes = row_counts.count_in_spark(
        tables.to_spark(spark, rows), [("250", "2", "300"), ("250", None, None)]
    )
    stored = rows.filter(pc.and_(rows["_problem"].is_null(), pc.invert(rows["_repeated"])))
    order = list(zip(*(stored[name].to_pylist() for name in ("_order", "_file", "_row")), strict=True))
    numbers = [2 if o is None or o > 250 else int((o, f, r) >= (250, 2, 300)) for o, f, r in order]
    assert {number: size for number, size in sizes.items() if size} == Counter(numbers)
    assert len(in_driver) == 12 and sum(part.read for part in in_driver) == n
    assert sorted(in_spark, key=str) == sorted(in_driver, key=str)
    reasons = row_counts.reasons_in_driver(rows)
    assert row_counts.reasons_in_spark(tables.to_spark(spark, rows)) == reasons and set(reasons) == {"a", "b", "ü"}


def test_a_forgotten_zone_is_suspected(lake, tmp_path):
    moments = [at("2024-06-01T00:00") + timedelta(minutes=number) for number in range(600)]
    lines = "".join(f"{moment + 2 * HOUR:%Y-%m-%d %H:%M:%S},{moment.isoformat()}\n" for moment in moments)
    done = ingest(lake, put(tmp_path, "a.csv", f"event_ts,arrival_ts\n{lines}"), OF_S)
    assert any("time zone missing" in note for note in done.notes), done.notes


def test_a_date_and_a_time_of_day_in_two_columns_are_one_time(lake, tmp_path):
    text = "day;at;v\n03.11.2024;01:15:00;1,5\n03.11.2024;;2\n"
    options = IngestOptions(
        stream="s", event_column="day", event_clock_column="at", time_format="%d.%m.%Y %H:%M:%S",
        layout=TextLayout(separator=";", decimal_comma=True),
    )  # fmt: skip
    ingest(lake, put(tmp_path, "a.csv", text), options)
    assert rows_of(lake) == [{"event_ts": at("2024-11-03T01:15"), "arrival_ts": None, "v": 1.5, "seq": 0}]
    assert reasons(lake) == ["has no event time"]


def test_a_bound_on_quarantine_is_not_diluted_by_good_files(lake, tmp_path):
    good = put(tmp_path, "good.csv", "event_ts\n" + "1\n" * 1_000)
    bad = put(tmp_path, "bad.csv", "event_ts\nx\n1\n1\n1\n")
    with pytest.raises(InputError, match=r"stream s: 1 of 4 rows in .*bad\.csv cannot be used"):
        ingest(lake, good + bad, IngestOptions(stream="s", max_quarantined=0.2))
    assert stream_totals(lake) == {}


def test_a_dry_run_reports_and_writes_nothing(lake, tmp_path):
    lines = "1,1,a\n2,x,b\nnever,3,c\n4,4,d\n"
    file = put(tmp_path, "a.csv", f"event_ts,v,w\n{lines}")
    options = IngestOptions(stream="s", columns=(("v", "bigint"),), max_quarantined=0.1)
    outcome = dry_run(lake, file, options)
    assert outcome.streams["s"].columns == {"v": "bigint", "w": "string"}
    assert (outcome.streams["s"].rows, outcome.streams["s"].quarantined) == (2, 2)
    assert [(e.reason, e.rows, e.line, e.raw) for e in outcome.examples] == [
        ("column v is not bigint: x", 1, 3, "2,x,b"),
        ("event time cannot be read: never", 1, 4, "never,3,c"),
    ]
    assert outcome.refused is not None and "2 of 4 rows" in outcome.refused
    assert not lake.names("events") and not lake.table("ingest", "committed").exists()
    shown = CliRunner().invoke(main, ["ingest", "--lake", lake.uri, "--stream", "s", "--dry-run", *file])
    assert shown.exit_code == 0 and "nothing was written" in shown.stdout and "v: string" in shown.stdout
    assert not lake.table("ingest", "committed").exists()


def test_a_thousand_columns_take_seconds(lake, tmp_path):
    names = ",".join(f"c{i}" for i in range(1_000))
    rows = "".join(f"2024-01-01T00:00:{j:02d}Z," + ",".join(str(i * j) for i in range(1_000)) + "\n" for j in range(3))
    done = ingest(lake, put(tmp_path, "a.csv", f"event_ts,{names}\n{rows}"), OF_S)
    assert done.rows_ingested == {"s": 3} and rows_of(lake)[2]["c999"] == 1998
    assert done.seconds < 40
