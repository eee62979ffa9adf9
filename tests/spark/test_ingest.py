"""Ingestion: one arrival order, once, and nothing lost."""

import gzip
import json
import math
import os
import signal
import time
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from latecomer.ingest import ingest as ingestion
from latecomer.ingest import known_files, order_ranges, read_text, source_file, sources, staging, write_tables
from latecomer.ingest.find_files import digest
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.source_file import look
from latecomer.lake import result_views
from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import committed_seq, quarantined, stream_totals
from latecomer.spark.engine import tables

from tests.support import commands, events, in_gateway


def rows_of(lake, stream):
    return lake.table("events", stream).read().sort_by("seq").to_pylist()


def test_order_is_by_arrival_then_file_then_position(lake, tmp_path):
    rng = np.random.default_rng(3)
    files, truth = [], []
    for number in range(3):
        arrival = rng.integers(0, 30, 40) * 1_000_000
        table = pa.table(
            {
                "event_ts": pa.array(arrival - 500, pa.int64()),
                "arrival_ts": pa.array(arrival, pa.int64()),
                "id": [f"{number}-{i}" for i in range(40)],
            }
        )
        pq.write_table(table, tmp_path / f"f{number}.parquet")
        files.append(str(tmp_path / f"f{number}.parquet"))
        truth += [(a, number, i, f"{number}-{i}") for i, a in enumerate(arrival.tolist())]
    done = ingest(lake, files, IngestOptions(stream="s"))
    assert (done.rows_read, done.seq_from, done.seq_to) == (120, 0, 120)
    assert [row["id"] for row in rows_of(lake, "s")] == [t[3] for t in sorted(truth)]
    assert [row["seq"] for row in rows_of(lake, "s")] == list(range(120))


@pytest.mark.parametrize("bad", [0, 97])
def test_many_rows_are_ordered_in_pieces_as_a_whole(lake, tmp_path, monkeypatch, bad):
    monkeypatch.setattr(order_ranges, "MOST_ROWS", 40_000)
    rng = np.random.default_rng(7)
    rows = 240_000
    arrival = rng.integers(0, 1_000, rows) * 1_000_000
    event = pa.array(arrival - 500, pa.int64(), mask=np.isin(np.arange(rows), rng.choice(rows, bad, replace=False)))
    stream = rng.choice(["a", "b"], rows)
    table = pa.table({"event_ts": event, "arrival_ts": arrival, "id": np.arange(rows), "of": stream})
    half = rows // 2
    for name, part in (("1.parquet", table.slice(0, half)), ("2.parquet", table.slice(half))):
        pq.write_table(part, tmp_path / name)
    done = ingest(lake, [str(tmp_path)], IngestOptions(by="of"))
    assert (done.rows_read, done.seq_to, sum(done.rows_quarantined.values())) == (rows, rows - bad, bad)
    places = np.flatnonzero(event.is_valid())
    places = places[np.argsort(arrival[places], kind="stable")]
    for name in ("a", "b"):
        own = lake.table("events", name).read().sort_by("seq")
        wanted = np.flatnonzero(stream[places] == name)
        assert np.array_equal(own["seq"].to_numpy(), wanted)
        assert np.array_equal(own["id"].to_numpy(), places[wanted])
        kept_out = lake.table("quarantine", name).read()
        ids = [json.loads(raw)["id"] for raw in (kept_out["raw"].to_pylist() if kept_out else [])]
        assert sorted(ids) == [i for i in np.flatnonzero(~event.is_valid().to_numpy(False)) if stream[i] == name]


def test_a_source_seq_orders_and_is_kept(lake, tmp_path):
    (tmp_path / "a.csv").write_text("seq,event_ts,v\n3,3000000,c\n1,1000000,a\n2,2000000,b\n")
    ingest(lake, [str(tmp_path / "a.csv")], IngestOptions(stream="s"))
    assert [(r["seq"], r["source_seq"], r["v"]) for r in rows_of(lake, "s")] == [(0, 1, "a"), (1, 2, "b"), (2, 3, "c")]


def test_the_same_content_twice_is_one_ingestion(lake, tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("event_ts,v\n1,1\n2,2\n")
    first = ingest(lake, [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], IngestOptions(stream="s"))
    again = ingest(lake, [str(tmp_path / "b.csv")], IngestOptions(stream="s"))
    assert (first.rows_read, len(first.skipped_files)) == (2, 1)
    assert (again.rows_read, len(again.skipped_files), committed_seq(lake)) == (0, 1, 2)
    assert first.changed_files == again.changed_files == []


def test_what_was_read_as_another_format_by_mistake_comes_in_again(lake, tmp_path):
    (tmp_path / "a.csv").write_text("event_ts,v\n1,1\n2,2\n")
    (tmp_path / "copy.txt").write_text("event_ts,v\n1,1\n2,2\n")
    wrong = ingest(lake, [str(tmp_path / "a.csv")], IngestOptions(stream="s", format="json"))
    assert (wrong.rows_ingested, wrong.rows_quarantined) == ({}, {"s": 3})
    right = ingest(lake, [str(tmp_path / "a.csv")], IngestOptions(stream="s"))
    assert (right.rows_ingested, right.skipped_files, len(right.changed_files)) == ({"s": 2}, [], 1)
    for name, forced in (("a.csv", "csv"), ("copy.txt", "csv"), ("a.csv", "json")):
        again = ingest(lake, [str(tmp_path / name)], IngestOptions(stream="s", format=forced))
        assert (again.rows_read, len(again.skipped_files)) == (0, 1), name


def test_what_an_earlier_version_ingested_is_not_ingested_again(lake, tmp_path, monkeypatch):
    """Its digests did not tell the format."""
    (tmp_path / "a.txt").write_text("event_ts,v\n1,1\n2,2\n")
    with monkeypatch.context() as earlier:
        noted = digest(look(str(tmp_path / "a.txt")), '["s", null, "event_ts", "arrival_ts", "UTC"]')
        earlier.setattr(known_files, "content_digest", lambda path, options: noted)
        earlier.setattr(sources, "content_digest", lambda path, options: noted)
        ingest(lake, [str(tmp_path / "a.txt")], IngestOptions(stream="s", format="csv"))
    again = ingest(lake, [str(tmp_path / "a.txt")], IngestOptions(stream="s", format="csv"))
    assert (again.rows_read, len(again.skipped_files)) == (0, 1)


def test_stream_files_say_how_files_are_read_and_the_command_has_the_last_word(lake, tmp_path):
    for name, text in {
        "views/2026/11/a.log": "ts,got,v\n1000,2000,1\n",
        "views/b.log": "ts,got,v\n3000,4000,2\n",
        "views/_old/c.log": "ts,got,v\n5000,6000,3\n",
        "buys/a.csv": "event_ts,v\n1970-01-01 01:00:07,4\n",
        "streams/views.yaml": "event_column: ts\narrival_column: got\ntime_unit: ms\nformat: csv\nrecursive: true\n",
        "streams/buys.yaml": "timezone: Europe/Berlin\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "views" / "back").symlink_to(tmp_path / "views")
    call = ["ingest", "--lake", lake.uri, "--streams", str(tmp_path / "streams"), "--json"]
    paths = [f"views={tmp_path / 'views'}", f"buys={tmp_path / 'buys'}"]
    assert in_this_jvm(*call, *paths)["streams"] == {"buys": 1, "views": 2}
    times = {row["v"]: row["event_ts"].timestamp() for stream in ("views", "buys") for row in rows_of(lake, stream)}
    assert times == {1: 1.0, 2: 3.0, 4: 7.0}
    again = in_this_jvm(*call, "--time-unit", "s", "--stream", "views", str(tmp_path / "views" / "b.log"))
    assert again["streams"] == {"views": 1} and rows_of(lake, "views")[-1]["event_ts"].timestamp() == 3000.0


def in_this_jvm(*arguments):
    """What a command says, run in this process."""
    from click.testing import CliRunner
    from latecomer.jobs.cli import main

    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1])


def test_a_file_that_looks_as_it_did_is_not_read_again(lake, tmp_path, monkeypatch):
    old, new, parquet = (tmp_path / name for name in ("old.csv", "new.csv", "p.parquet"))
    old.write_text("event_ts,v\n1,1\n")
    events.write(pa.table({"event_ts": [2], "v": [2]}), parquet)
    looked: list[str] = []
    real = digest

    def spied(file, options):
        looked.append(file.name)
        return real(file, options)

    monkeypatch.setattr(known_files, "digest", spied)

    def again(stream="s", **more):
        looked.clear()
        done = ingest(lake, [str(tmp_path)], IngestOptions(stream=stream, **more))
        return done.rows_read, sorted(set(looked))

    now = time.time()
    assert again() == (2, ["old.csv", "p.parquet"])
    assert again() == (0, ["old.csv", "p.parquet"]), "they are too young for their times to say that they are the same"
    monkeypatch.setattr(source_file.time, "time", lambda: now + 100)
    assert again("t") == (2, ["old.csv", "p.parquet"])
    assert again("t") == (0, [])
    new.write_text("event_ts,v\n3,3\n")
    assert again("t") == (1, ["new.csv"]) and again("t") == (0, [])
    stat = old.stat()
    old.write_text("event_ts,v\n1,9\n")
    os.utime(old, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as big, and as old by the time that can be set
    assert again("t") == (1, ["old.csv"]) and again("t") == (0, [])
    assert again("t", timezone="Europe/Berlin")[1] == ["new.csv", "old.csv", "p.parquet"], "it is read in another way"
    os.utime(new)
    assert again("t") == (0, ["new.csv"]), "touched only: what it holds is known"


def test_a_file_that_grew_comes_in_again_whole_and_is_named(lake, tmp_path, monkeypatch):
    file, other = tmp_path / "a.csv", tmp_path / "b.csv"
    file.write_text("event_ts,v\n1,1\n")
    ingest(lake, [str(file)], IngestOptions(stream="s"))
    assert ingest(lake, [str(file)], IngestOptions(stream="t")).changed_files == []
    file.write_text("event_ts,v\n1,1\n2,2\n")
    other.write_text("event_ts,v\n3,3\n")
    done = ingest(lake, [str(file), str(other)], IngestOptions(stream="s"))
    assert (done.rows_read, done.changed_files) == (3, [str(file)])
    assert [row["v"] for row in rows_of(lake, "s")] == [1, 1, 2, 3]
    (tmp_path / "next").mkdir()
    for folder, again in ((tmp_path / "next", []), (tmp_path, ["a.csv"])):
        monkeypatch.chdir(folder)
        Path("a.csv").write_text(f"event_ts,v\n5,{len(again)}\n")
        assert ingest(lake, ["a.csv"], IngestOptions(stream="s")).changed_files == again


def test_bad_rows_go_to_quarantine_with_their_line(lake, tmp_path):
    (tmp_path / "a.csv").write_bytes(
        b'\xef\xbb\xbfevent_ts,v,note\r\n2024-01-01T00:00:00Z,1,"two\nlines"\r\nnonsense,2,x\r\n,3,x\r\n1,2\r\n'
        b"2024-01-01T01:00:00+01:00,4,\xff\r\n2999-01-01T00:00:00Z,5,x\r\n1704067200000000,6,x\r\n"
        b"1899-12-31T23:59:59.999999Z,7,x\r\n"
    )
    done = ingest(lake, [str(tmp_path / "a.csv")], IngestOptions(stream="s"))
    bad = result_views.quarantine(lake, ["s"]).to_pylist()
    assert done.rows_read == 8 and done.rows_ingested == {"s": 2} and done.rows_quarantined == {"s": 6}
    reasons = {row["line"]: row["reason"] for row in bad}
    assert "cannot be read" in reasons[4] and "no event time" in reasons[5] and "2 fields" in reasons[6]
    assert "UTF-8" in reasons[7] and "future" in reasons[8] and "before 1900-01-01" in reasons[10]
    assert all(row["file"].endswith("a.csv") and row["raw"] for row in bad)
    assert [row["note"] for row in rows_of(lake, "s")] == ["two\nlines", "x"]
    assert stream_totals(lake) == {"s": {"rows": 2, "quarantined": 6}} and quarantined(lake, ["s", "s", "none"]) == 6


def test_files_with_more_bad_rows_than_allowed_are_refused(lake, tmp_path):
    """A feed whose time column broke would else end in quarantine, call by call, and every check of its queries would
    pass.
    """
    (tmp_path / "a.csv").write_text("event_ts,v\n1,1\nnonsense,2\n3,3\n4,4\n")
    (tmp_path / "b.csv").write_text("event_ts,v\n1,1\n2,2\n")
    some = [str(tmp_path / "b.csv"), str(tmp_path / "a.csv")]
    with pytest.raises(InputError) as refused:
        ingest(lake, some, IngestOptions(stream="s", max_quarantined=0.24))
    line = str(refused.value)
    assert line.startswith(
        f"stream s: 1 of 4 rows in {some[1]} cannot be used, and max_quarantined, 0.24 of them, allows 0; nothing was "
        "ingested. The first is in line 3: event time cannot be read: nonsense; mend or remove the file, or raise"
    )
    assert stream_totals(lake) == {} and not lake.table("quarantine", "s").exists() and committed_seq(lake) == 0
    # of several streams each has its own share, and one that exceeds it holds up all of the call
    own = {"good": some[:1], "bad": some[1:]}
    with pytest.raises(InputError, match="stream bad: 1 of 4 rows"):
        ingest(lake, own, IngestOptions(max_quarantined=0.2))
    assert stream_totals(lake) == {}
    done = ingest(lake, some, IngestOptions(stream="s", max_quarantined=0.25))
    assert done.rows_ingested == {"s": 5} and done.rows_quarantined == {"s": 1} and done.seq_to == 5
    # of a column's streams each has its own too, and rows that name none are a share of all
    (tmp_path / "c.csv").write_text("event_ts,kind\nx,a\n1,a\n2,b\n3,b\n4,no name\n5,b\n")
    for share, wrong in ((0, "stream a: 1 of 2"), (0.2, "stream a: 1 of 2")):
        with pytest.raises(InputError, match=wrong):
            ingest(lake, [str(tmp_path / "c.csv")], IngestOptions(by="kind", max_quarantined=share))
    assert ingest(lake, [str(tmp_path / "c.csv")], IngestOptions(by="kind", max_quarantined=0.5)).seq_from == 5


def test_a_share_of_bad_rows_is_as_it_was_written(lake, tmp_path):
    """0.29 * 100 is 28.999999999999996."""
    (tmp_path / "a.csv").write_text("event_ts\n" + "oops\n" * 29 + "1\n" * 71)
    assert ingest(lake, [str(tmp_path / "a.csv")], IngestOptions(stream="s", max_quarantined=0.29)).rows_ingested == {
        "s": 71
    }
    for share in (float("nan"), 1.5, -0.1):
        with pytest.raises(InputError, match=r"--max-quarantined: .*: is no share of rows; write one from 0 to 1"):
            ingest(lake, [str(tmp_path / "a.csv")], IngestOptions(stream="s", max_quarantined=share))


def test_files_that_were_refused_are_judged_by_the_clock_of_the_next_call(lake, tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text(f"event_ts\n{time.time_ns() // 1000}\n")
    call = [str(tmp_path / "a.csv")], IngestOptions(stream="s", max_quarantined=0)
    earlier = time.time_ns() - 2 * 86_400_000_000_000
    with monkeypatch.context() as clock:
        clock.setattr(ingestion.time, "time_ns", lambda: earlier)
        with pytest.raises(InputError, match="event time is too far in the future"):
            ingest(lake, *call)
    assert ingest(lake, *call).rows_ingested == {"s": 1}


def test_times_that_leave_no_room_for_a_window_go_to_quarantine(lake, tmp_path):
    """A row of the year 9950 was in no window, and one of the last microsecond there is had no event time at all."""
    last = "9999-12-31T23:59:59.999999Z"
    lines = [
        "2024-01-01T00:00:00Z,2024-01-01T00:00:00Z",
        f"2024-01-01T00:00:00Z,{last}",
        f"{last},{last}",
        "9891-12-31T00:00:00Z,9891-12-31T00:00:00Z",
    ]
    (tmp_path / "a.csv").write_text(
        "\n".join(["event_ts,arrival_ts", *lines, "9950-01-01T00:00:00Z,9950-01-01T00:00:00Z"])
    )
    done = ingest(lake, [str(tmp_path / "a.csv")], IngestOptions(stream="s"))
    assert done.rows_ingested == {"s": 2} and done.rows_quarantined == {"s": 3}
    reasons = {row["line"]: row["reason"] for row in result_views.quarantine(lake, ["s"]).to_pylist()}
    assert sorted(reasons) == [3, 4, 6] and all("after 9892-03-" in reason for reason in reasons.values())


def test_text_that_says_more_than_its_column_holds_goes_to_quarantine(lake, tmp_path):
    """Rounded it would be another value: no equality would find it."""
    first = pa.table(
        {
            "event_ts": [0],
            "d": pa.array([Decimal("0.50")]).cast(pa.decimal128(5, 2)),
            "w": pa.array([Decimal(1)]).cast(pa.decimal128(38, 0)),
            "f": pa.array([0.5], pa.float32()),
            "day": pa.array([date(2024, 1, 1)]),
        }
    )
    pq.write_table(first, tmp_path / "first.parquet")
    ingest(lake, [str(tmp_path / "first.parquet")], IngestOptions(stream="s"))
    names = ["d", "w", "f", "day"]
    good = [
        ("0.25", "7", "1.5", "2024-01-02"),
        ("-3.100", "9" * 38, "0.1", "2024-01-02T00:00:00"),
        ("1e2", "1.0", "Infinity", ""),
        (".5", "", "-inf", ""),
    ]
    bad = [
        ("d", "0.125"),
        ("d", "0.004"),
        ("d", "99999"),
        ("w", "0.4"),
        ("w", "12345678901234567890.5"),
        ("f", "1e-400"),
        ("f", "1e400"),
        ("f", "-1e309"),
        ("day", "2024-01-02T10:00:00"),
    ]
    lines = [",".join(each) for each in good] + [
        ",".join(value if n == name else "" for n in names) for name, value in bad
    ]
    (tmp_path / "a.csv").write_text(
        "event_ts,d,w,f,day\n" + "".join(f"{i},{line}\n" for i, line in enumerate(lines, 1))
    )
    ingest(lake, [str(tmp_path / "a.csv")], IngestOptions(stream="s"))
    stored = [tuple(row[name] for name in names) for row in rows_of(lake, "s")[1:]]
    day, most = date(2024, 1, 2), Decimal("9" * 38)
    tenth = 0.1  # the column became double, which holds more of the texts
    assert stored == [
        (Decimal("0.25"), 7, 1.5, day), (Decimal("-3.10"), most, tenth, day), (100, 1, math.inf, None),
        (Decimal("0.50"), None, -math.inf, None),
    ]  # fmt: skip
    reasons = [row["reason"] for row in result_views.quarantine(lake, ["s"]).sort_by("line").to_pylist()]
    assert [reason.split()[1] for reason in reasons] == [name for name, _ in bad]


@pytest.mark.parametrize(
    "column", [["10", "-5", "007", "-12", "-0", "99999999999999999999", "-99999999999999999999", "+3"]]
)
def test_whole_numbers_of_any_length_and_sign_order_rows(lake, tmp_path, column):
    pq.write_table(pa.table({"seq": column, "event_ts": [0] * len(column)}), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("seq,event_ts\n" + "".join(f"{each},0\n" for each in column))
    for stream, name in (("a", "a.parquet"), ("b", "b.csv")):
        ingest(lake, [str(tmp_path / name)], IngestOptions(stream=stream))
        assert [int(row["source_seq"]) for row in rows_of(lake, stream)] == sorted(map(int, column))
    (tmp_path / "c.csv").write_text("seq,event_ts\n10,0\n-5,0\nx,0\n")
    with pytest.raises(InputError, match="column seq: 'x'"):
        ingest(lake, [str(tmp_path / "c.csv")], IngestOptions(stream="c"))


@pytest.mark.parametrize("few", [True, False])
def test_hundreds_of_small_files_are_as_one(lake, tmp_path, monkeypatch, few):
    """Of three formats and several sets of columns; every row has its file's name and place."""
    if not few:
        monkeypatch.setattr(tables, "DRIVER_LOCAL_ROWS", 10)
    folder, wanted = tmp_path / "in", []
    folder.mkdir()
    for i in range(120):
        if i % 3 == 0:
            (folder / f"{i:03}.csv").write_text(
                f"event_ts,v\n{i},{i}\nnever,{i}\n" if i % 2 else f"v,event_ts,w\n{i},{i},x\n"
            )
        elif i % 3 == 1:
            (folder / f"{i:03}.json").write_text(
                json.dumps({"event_ts": i, "v": i} | ({"w": {"a": 1}} if i % 2 else {})) + "\n"
            )
        elif i % 20 == 2:
            pq.write_table(pa.table({"event_ts": [i], "v": [i]}), folder / f"{i:03}.parquet")
        else:
            (folder / f"{i:03}.csv").write_text("event_ts,v\n" if i % 2 else "")
            continue
        wanted.append((i, ("x" if i % 6 == 0 else '{"a":1}' if i % 6 == 1 else None)))
    made, folder_of = [], staging.Staging.folder
    monkeypatch.setattr(staging.Staging, "folder", lambda self: made.append(1) or folder_of(self))
    done = ingest(lake, [str(folder)], IngestOptions(stream="s"))
    assert len(made) == 4, "a header without rows is as one with rows; an empty file, and JSON, are the others"
    assert done.rows_ingested == {"s": len(wanted)}
    assert [(row["v"], row["w"]) for row in rows_of(lake, "s")] == wanted
    bad = result_views.quarantine(lake, ["s"]).to_pylist()
    assert sorted((Path(row["file"]).name, row["line"]) for row in bad) == [
        (f"{i:03}.csv", 3) for i in range(3, 120, 6)
    ]


def test_files_of_more_layouts_than_are_written_at_a_time_keep_their_columns(lake, tmp_path, monkeypatch):
    """The first JSON file is written out when the CSV file comes, so the second is not with it."""
    monkeypatch.setattr(read_text, "_MOST_OPEN", 1)
    (tmp_path / "0.json").write_text('{"event_ts": 0, "a": 1}\n')
    (tmp_path / "1.csv").write_text("event_ts,c\n1,5\n")
    (tmp_path / "2.json").write_text('{"event_ts": 2, "b": 2.5}\n')
    ingest(lake, [str(tmp_path / name) for name in ("0.json", "1.csv", "2.json")], IngestOptions(stream="s"))
    found = [(row["a"], row["c"], row["b"]) for row in rows_of(lake, "s")]
    assert found == [(1, None, None), (None, 5, None), (None, None, 2.5)]


def test_numbers_that_json_does_not_have_hide_no_key(lake, tmp_path):
    """Of several files too; a file of no row is a stream that is known."""
    for i in range(3):
        (tmp_path / f"{i}.json").write_text(f'{{"event_ts": {i}, "v": NaN, "only{i}": [NaN, {i}]}}\n')
    (tmp_path / "empty.csv").write_text("event_ts,v\n")
    ingest(lake, [str(tmp_path / f"{i}.json") for i in range(3)], IngestOptions(stream="s"))
    found = rows_of(lake, "s")
    assert [math.isnan(row["v"]) for row in found] == [True] * 3
    assert [row[f"only{i}"] is not None for i, row in enumerate(found)] == [True] * 3
    ingest(lake, [str(tmp_path / "empty.csv")], IngestOptions(stream="none"))
    assert stream_totals(lake)["none"] == {"rows": 0, "quarantined": 0}


def test_times_in_96_bits_inside_a_column_are_times(lake, tmp_path):
    """As Spark and Hive write them."""
    times = pa.table({"event_ts": [0], "o": pa.array([[datetime(2024, 1, 1)]], pa.list_(pa.timestamp("us")))})
    pq.write_table(times, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    ingest(lake, [str(tmp_path / "a.parquet")], IngestOptions(stream="s"))
    assert rows_of(lake, "s")[0]["o"][0].replace(tzinfo=None) == datetime(2024, 1, 1)


def test_a_file_among_many_is_named(lake, tmp_path):
    for i in range(5):
        (tmp_path / f"{i}.json").write_text('{"event_ts": 1, "v": 1}\n')
    (tmp_path / "3.json").write_text('{"event_ts": 1, "V": 1}\n')
    with pytest.raises(InputError, match=r"3.json: column V: .*case only"):
        ingest(lake, [str(tmp_path)], IngestOptions(stream="s"))
    (tmp_path / "3.json").write_text('{"event_ts": 1, "v": 1, "V": 2}\n')
    with pytest.raises(InputError, match=r"3.json: .*more than one column"):
        ingest(lake, [str(tmp_path)], IngestOptions(stream="s"))


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (pa.list_(pa.timestamp("ns")), [[1500]], "nanoseconds inside column 'o'"),
        (pa.struct([("a b", pa.int64())]), [{"a b": 1}], "a field 'a b' in column 'o'"),
        (pa.list_(pa.struct([("c,d", pa.int64())])), [[{"c,d": 1}]], "a field 'c,d' in column 'o'"),
        (pa.list_(pa.time64("us")), [[5]], "'o' of type list<"),
    ],
)
def test_what_a_table_cannot_hold_inside_a_column_is_refused(lake, tmp_path, kind, values, says):
    pq.write_table(pa.table({"event_ts": [0], "o": pa.array(values, kind)}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=says):
        ingest(lake, [str(tmp_path / "a.parquet")], IngestOptions(stream="s"))


def test_numbers_too_large_for_a_time_go_to_quarantine(lake, tmp_path):
    (tmp_path / "a.csv").write_text("event_ts,v\n100,1\n1e28,2\n999999999999999999,3\n")
    large = [Decimal(100), Decimal("9" * 35)]
    pq.write_table(pa.table({"event_ts": pa.array(large, pa.decimal128(38, 0)), "v": [1, 2]}), tmp_path / "a.parquet")
    for name, unit in (("a.csv", "s"), ("a.parquet", "ms")):
        done = ingest(lake, [str(tmp_path / name)], IngestOptions(stream=unit, time_unit=unit))
        assert done.rows_ingested == {unit: 1} and done.rows_quarantined[unit] >= 1


def test_few_rows_of_long_text_are_not_brought_to_the_driver(lake, tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("event_ts,v\n" + "".join(f"{i},{'x' * 1000}\n" for i in range(50)) + "never,1\n")
    few = []
    monkeypatch.setattr(write_tables.TableWriter, "write_in_driver", lambda *_: few.append(True))
    monkeypatch.setattr(tables, "DRIVER_LOCAL_BYTES", 50_000)
    assert ingest(lake, [str(tmp_path / "a.csv")], IngestOptions(stream="s")).rows_ingested == {"s": 50}
    assert not few and len(rows_of(lake, "s")) == 50 and quarantined(lake, ["s"]) == 1


def test_json_lines_gzip_and_nested_values(lake, tmp_path):
    lines = [
        json.dumps({"event_ts": "2024-01-01T00:00:00Z", "v": 1, "tags": ["a", 1, {"b": 0.5, "c": None}]}),
        "{broken",
        "[1]",
        json.dumps({"event_ts": 5, "v": 2}),
    ]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as handle:
        handle.write("\n".join(lines))
    done = ingest(lake, [str(tmp_path / "a.jsonl.gz")], IngestOptions(stream="s"))
    assert done.rows_ingested == {"s": 2} and done.rows_quarantined == {"s": 2}
    assert [(r["v"], r["tags"]) for r in rows_of(lake, "s")] == [
        (1, '["a",1,{"b":0.5,"c":null}]'),
        (2, None),
    ]


def test_drift(lake, tmp_path):
    def put(name, text):
        (tmp_path / name).write_text(text)
        return ingest(lake, [str(tmp_path / name)], IngestOptions(stream="s"))

    put("a.csv", "event_ts,v,code\n1,1,007\n")
    put("b.csv", "event_ts,new\n2,x\n")
    mixed = put("c.csv", "event_ts,v\n3,3\n4,oops\n")
    assert mixed.rows_quarantined == {"s": 1}
    with pytest.raises(InputError, match=r"bigint.*string"):
        put("d.csv", "event_ts,v\n5,abc\n")
    assert committed_seq(lake) == 3
    assert [(r["v"], r["code"], r["new"]) for r in rows_of(lake, "s")] == [
        (1, "007", None),
        (None, None, "x"),
        (3, None, None),
    ]


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.parquet", b"not parquet", {"stream": "s"}),
        ("a.json", b'[{"event_ts": 1}]', {"stream": "s"}),
        ("a.csv", b"event_ts,a,A\n1,2,3\n", {"stream": "s"}),
        ("a.csv", b"event_ts,,b\n1,2,3\n", {"stream": "s"}),
        ("a.csv", b"when,b\n1,2\n", {"stream": "s"}),
        ("a.csv", b"event_ts,b\n1,2\n", {"by": "stream"}),
        ("a.csv", b"event_ts\n1\n", {"stream": "../x"}),
        ("a.csv", b"event_ts\n1\n", {}),
        ("a.csv", b"event_ts\n1\n", {"stream": "s", "timezone": "Mars/Olympus"}),
        ("a.txt", b"event_ts\n1\n", {"stream": "s"}),
        ("a.csv.gz", b"not gzip", {"stream": "s"}),
    ],
)
def test_what_cannot_be_used_as_a_whole_is_refused_in_one_line(lake, tmp_path, name, content, options):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        ingest(lake, [str(tmp_path / name)], IngestOptions(**options))
    assert "\n" not in str(error.value)
    assert committed_seq(lake) == 0 and lake.names("events") == []


def test_generated_files_end_in_rows_or_quarantine(lake, tmp_path):
    rng = np.random.default_rng(11)
    pieces = [
        b"event_ts",
        b"v",
        b",",
        b"\n",
        b"1",
        b"x",
        b'"',
        b"\xff",
        b"2024-01-01T00:00:00Z",
        b"-",
        b"9" * 25,
        b"\r\n",
        b"\x00",
        b"{",
        b"null",
    ]
    files = []
    for number in range(60):
        body = b"".join(pieces[i] for i in rng.integers(0, len(pieces), 40))
        path = tmp_path / f"g{number}.csv"
        path.write_bytes(b"event_ts,v\n" + body)
        files.append(str(path))
    read = kept = 0
    for start in range(0, 60, 6):
        try:
            done = ingest(lake, files[start : start + 6], IngestOptions(stream=f"s{start}"))
        except InputError as error:
            assert "\n" not in str(error)
            continue
        read += done.rows_read
        kept += sum(done.rows_ingested.values()) + sum(done.rows_quarantined.values())
    assert read == kept


@pytest.mark.parametrize("point", ["planned", "events", "events@2", "quarantine", "committed"])
def test_killed_anywhere_and_called_again(spark, lake, tmp_path, point):
    (tmp_path / "a.csv").write_text("event_ts,stream,v\n1,a,1\n2,b,2\nx,a,3\n4,b,4\n")
    command = ["ingest", "--lake", lake.uri, "--by", "stream", tmp_path / "a.csv"]
    crash_at = f"ingest:{point}"
    if point == "events@2":  # the whole command dies, its JVM too; elsewhere the process that called it
        killed = commands.call(*command, crash_at=crash_at)
    else:
        killed = in_gateway.call(spark, *command, crash_at=crash_at)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-500:]
    ingest(lake, [str(tmp_path / "a.csv")], IngestOptions(by="stream"))
    assert [r["seq"] for r in rows_of(lake, "a")] == [0] and [r["seq"] for r in rows_of(lake, "b")] == [1, 2]
    assert result_views.quarantine(lake, ["a", "b"]).num_rows == 1 and committed_seq(lake) == 3


def test_other_files_after_a_kill_find_the_tables_as_they_were(spark, lake, tmp_path):
    """Columns, types and streams of rows that never counted are gone with them."""
    (tmp_path / "first.csv").write_text("event_ts,stream,v\n1,a,1\n")
    (tmp_path / "wrong.csv").write_text("event_ts,stream,w,oops\n2,a,text,1\n3,b,text,1\n4,c,text,1\n")
    (tmp_path / "right.csv").write_text("event_ts,stream,w\n2,a,5\n3,b,6\n")
    by = IngestOptions(by="stream")
    ingest(lake, [str(tmp_path / "first.csv")], by)
    for _ in range(2):
        command = ["ingest", "--lake", lake.uri, "--by", "stream", tmp_path / "wrong.csv"]
        killed = in_gateway.call(spark, *command, crash_at="ingest:events@3")
        assert killed.returncode == -signal.SIGKILL and lake.names("events") == ["a", "b", "c"]
    ingest(lake, [str(tmp_path / "right.csv")], by)
    assert lake.names("events") == ["a", "b"]
    found = {stream: lake.table("events", stream).read().sort_by("seq") for stream in ("a", "b")}
    assert [(r["seq"], r["v"], r["w"]) for r in found["a"].to_pylist()] == [(0, 1, None), (1, None, 5)]
    assert "oops" not in found["a"].column_names + found["b"].column_names
    assert found["b"]["w"].to_pylist() == [6] and committed_seq(lake) == 3


def test_what_was_taken_back_is_ingested_when_it_comes_again(spark, lake, tmp_path):
    """Also where the ingestion that took it back was refused."""
    (tmp_path / "first.csv").write_text("event_ts,v\n1,1\n")
    (tmp_path / "second.csv").write_text("event_ts,v\n2,2\n3,3\n")
    (tmp_path / "wrong.csv").write_text("when,v\n4,4\n")
    of_s = IngestOptions(stream="s")
    ingest(lake, [str(tmp_path / "first.csv")], of_s)
    command = ["ingest", "--lake", lake.uri, "--stream", "s", tmp_path / "second.csv"]
    killed = in_gateway.call(spark, *command, crash_at="ingest:events")
    assert killed.returncode == -signal.SIGKILL and len(rows_of(lake, "s")) == 3
    for _ in range(2):
        with pytest.raises(InputError, match="event_ts"):
            ingest(lake, [str(tmp_path / "wrong.csv")], of_s)
        assert len(rows_of(lake, "s")) == 1
    done = ingest(lake, [str(tmp_path / "second.csv")], of_s)
    assert done.rows_ingested == {"s": 2} and [row["v"] for row in rows_of(lake, "s")] == [1, 2, 3]
    assert committed_seq(lake) == 3


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("by_seq", [False, True])
def test_streams_of_one_call_are_in_one_order_and_keep_their_own_types(lake, tmp_path, monkeypatch, many, by_seq):
    if many:
        monkeypatch.setattr(tables, "DRIVER_LOCAL_ROWS", 0)
    order = "seq" if by_seq else "arrival_ts"
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "1.csv").write_text(f"event_ts,{order},value,odd name\n1,10,x,1\n2,30,,2\n")
    (tmp_path / "views" / "2.csv").write_text(f"event_ts,{order},value\n3,50,007\nbad,55,y\n")
    pq.write_table(
        pa.table({"event_ts": [4, 5, 6], order: [20, 40, 60], "value": [0.5, 1.5, 2.5]}), tmp_path / "b.parquet"
    )
    paths = {"views": [str(tmp_path / "views")], "buys": [str(tmp_path / "b.parquet")]}
    done = ingest(lake, paths, IngestOptions())
    assert done.rows_ingested == {"views": 3, "buys": 3} and done.rows_quarantined == {"views": 1}
    assert done.reasons == {"event time cannot be read": 1}
    views, buys = rows_of(lake, "views"), rows_of(lake, "buys")
    assert [(row["seq"], row["value"], row["odd_name"]) for row in views] == [
        (0, "x", 1),
        (2, None, 2),
        (4, "007", None),
    ]
    assert [(row["seq"], row["value"]) for row in buys] == [(1, 0.5), (3, 1.5), (5, 2.5)]
    assert lake.table("quarantine", "views").read().to_pylist()[0]["file"] == str(tmp_path / "views" / "2.csv")
    more = "source_seq" if by_seq else None
    wanted = {"event_ts", "arrival_ts", "seq", "value", more} - {None}
    assert set(buys[0]) == wanted and set(views[0]) == wanted | {"odd_name"}
    again = ingest(lake, {"views": paths["views"]}, IngestOptions())
    assert again.rows_read == 0 and len(again.skipped_files) == 2
    assert ingest(lake, [paths["buys"][0]], IngestOptions(stream="buys")).rows_read == 0


def test_a_call_of_several_streams_is_all_or_nothing(lake, tmp_path):
    (tmp_path / "a.csv").write_text("event_ts\n1\n")
    (tmp_path / "b.csv").write_text("time\n1\n")
    with pytest.raises(InputError, match=r"b\.csv: 'event_ts': no such column"):
        ingest(lake, {"a": [str(tmp_path / "a.csv")], "b": [str(tmp_path / "b.csv")]}, IngestOptions())
    assert not lake.names("events")


def test_streams_of_one_call_that_number_their_rows_in_two_ways_are_refused(lake, tmp_path):
    (tmp_path / "a.csv").write_text("event_ts,seq\n1,1\n")
    (tmp_path / "b.csv").write_text("event_ts,seq\n1,2024-01-01T00:00:00Z\n")
    with pytest.raises(InputError, match=r"column seq.*it is to order them all"):
        ingest(lake, {"a": [str(tmp_path / "a.csv")], "b": [str(tmp_path / "b.csv")]}, IngestOptions())


def test_a_stream_that_arrived_before_another_ingested_earlier_is_said(lake, tmp_path):
    said: list[str] = []
    hours = [1_700_000_000 + 3600 * n for n in range(4)]
    (tmp_path / "a.csv").write_text(f"event_ts,arrival_ts\n0,{hours[3]}\n")
    (tmp_path / "b.csv").write_text(f"event_ts,arrival_ts\n0,{hours[0]}\n")
    (tmp_path / "c.csv").write_text(f"event_ts,arrival_ts\n0,{hours[2]}\n")
    seconds = IngestOptions(time_unit="s")
    for name in "abc":
        ingest(lake, {name: [str(tmp_path / f"{name}.csv")]}, seconds, said.append)
    told = [line for line in said if "earlier call" in line]
    assert len(told) == 1 and "rows of b arrived from 2023-11-14T22:13:20Z" in told[0] and "a=PATH b=PATH" in told[0]


@pytest.mark.parametrize("kind", ["text", "json", "double", "decimal", "bigint"])
@pytest.mark.parametrize("unit", ["us", "ms", "s"])
def test_numbers_in_time_columns_count_the_unit_that_is_said(lake, tmp_path, kind, unit):
    scale = {"us": 1, "ms": 1_000, "s": 1_000_000}[unit]
    times = [1_735_689_600, 1_735_689_601]
    fraction = ".25" if unit != "us" and kind != "bigint" else ""
    wanted = [int((t + (0.25 if fraction else 0)) * scale) for t in times]
    path = tmp_path / ("a.csv" if kind == "text" else "a.json" if kind == "json" else "a.parquet")
    if kind == "text":
        path.write_text("event_ts\n" + "".join(f"{t}{fraction}\n" for t in times))
    elif kind == "json":
        path.write_text("".join(f'{{"event_ts": {t}{fraction}}}\n' for t in times))
    else:
        of = {"double": pa.float64(), "decimal": pa.decimal128(20, 2), "bigint": pa.int64()}[kind]
        pq.write_table(pa.table({"event_ts": pa.array([Decimal(f"{t}{fraction}") for t in times]).cast(of)}), path)
    done = ingest(lake, [str(path)], IngestOptions(stream="s", time_unit=unit))
    assert done.rows_quarantined == {} and done.event_times_us == (wanted[0], wanted[1])
    assert [row["event_ts"].timestamp() * 1e6 for row in rows_of(lake, "s")] == wanted
