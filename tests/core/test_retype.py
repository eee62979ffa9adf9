"""A column of a stored stream gets another type: every reader sees the old one or the new one, and no value is lost."""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from latecomer.ingest import retype as module
from latecomer.ingest.retype import obstacle, retype
from latecomer.lake import journal, result_views
from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import (
    columns,
    committed_seq,
    count_quarantine,
    last_committed,
    last_position,
    open_events,
    stream_totals,
)
from latecomer.lake.lake import Lake
from latecomer.specs.loading import parse_query

ROOT = Path(__file__).resolve().parents[2]
UTC_US = pa.timestamp("us", tz="UTC")


def ingested(lake: Lake, number: int, **values: list | pa.Array) -> None:
    """Store rows as an ingestion does."""
    start, count = committed_seq(lake), len(next(iter(values.values())))
    seq = np.arange(start, start + count)
    rows = {"seq": seq, "event_ts": pa.array(seq * 1_000_003).cast(UTC_US), "arrival_ts": pa.nulls(count, UTC_US)}
    lake.table("ingest", "journal").append(pa.table({"number": [number], "plan": ["{}"]}), "ingest", number)
    lake.table("events", "s").append(pa.table(rows | values), "ingest", number)
    row = {"number": number, "seq_from": start, "seq_to": start + count, "digests": [f"d{number}"], "files": ["f"],
           "counts": json.dumps({"s": {"rows": count, "quarantined": 0}}), "looks": ["l"],
           "positions": json.dumps({"s": {"at": number}})}  # fmt: skip
    lake.table("ingest", "committed").append(pa.Table.from_pylist([row]), "ingest", number)


def stored(lake: Lake) -> pa.Table:
    return open_events(Lake(lake.uri), "s").to_pyarrow_dataset().to_table().sort_by("seq")


@pytest.fixture
def lake(tmp_path) -> Lake:
    lake = Lake(tmp_path / "lake")
    ingested(lake, 0, v=["1.5", None, "nil", " 7"], w=["a", 'b"\\\n', "c\x01é", "d"])
    ingested(lake, 1, v=["1e3", "ERR"], w=["e", "f"])
    return lake


def run_in(lake: Lake, text: str, only_planned: bool = False) -> None:
    """Leave in the lake what a query leaves that has run."""
    spec = parse_query(text)
    journal.plan(lake, spec.name, "run", 0, {"seq_from": 0, "seq_to": 1, "asked": spec.signature()})
    if not only_planned:
        counts = {"rows_read": 1, "on_time": 0, "late": 0}
        journal.save_state(
            lake, spec.name, journal.RunState(0, 1, False, spec.fingerprint(), {}, counts, {}, spec.signature())
        )


AGGREGATE = (
    "name: {name}\nkind: aggregate\nstreams: {{x: {stream}}}\nwindow: 1 h\nselect: {{{select}}}\nwhere: {where}\n"
    "quality: {{error: 0.1}}\n"
)


def aggregate(name="q", stream="s", select="n: count()", where="x.seq > 0"):
    return AGGREGATE.format(name=name, stream=stream, select=select, where=where)


def test_what_does_not_fit_moves_to_quarantine(lake):
    lines = []
    done = retype(lake, "s", {"v": "double"}, lines.append)
    assert (done.columns, done.rows, done.moved) == ({"v": ("string", "double")}, 4, {"v": 2})
    assert done.reasons == {"column v is not double": 2} and lines == ["retype: s: v string -> double"]
    rows = stored(lake)
    assert rows["seq"].to_pylist() == [0, 1, 3, 4] and rows["v"].to_pylist() == [1.5, None, 7.0, 1000.0]
    assert rows["w"].to_pylist() == ["a", 'b"\\\n', "d", "e"] and rows.schema.field("v").type == pa.float64()
    assert columns(lake, "s").names == ["seq", "event_ts", "arrival_ts", "v", "w"]
    moved = result_views.quarantine(lake, ["s"]).to_pylist()
    assert [(row["line"], row["reason"], row["file"], row["ingest_id"]) for row in moved] == [
        (2, "column v is not double: 'nil'", "events/s", 2), (5, "column v is not double: 'ERR'", "events/s", 2),
    ]  # fmt: skip
    assert [json.loads(row["raw"]) for row in moved] == [
        {"seq": 2, "event_ts": "1970-01-01T00:00:02.000006Z", "v": "nil", "w": "c\x01é"},
        {"seq": 5, "event_ts": "1970-01-01T00:00:05.000015Z", "v": "ERR", "w": "f"},
    ]
    assert stream_totals(lake) == {"s": {"rows": 4, "quarantined": 2}} and count_quarantine(lake, "s", 2) == 2
    assert committed_seq(lake) == 6 and last_committed(lake) == 2 and last_position(lake, "s") == {"at": 1}
    ingested(lake, 3, v=[2.5], w=["g"])
    assert stored(lake)["v"].to_pylist()[-1] == 2.5


def test_a_column_that_has_the_type_already_is_left_alone(lake):
    done = retype(lake, "s", {"v": "Text"})
    assert (done.columns, done.rows, last_committed(lake)) == ({}, 6, 1)


POINTS = ["planned", "files", "events", "quarantine", "committed"]
SCRIPT = """\
import sys
from latecomer.ingest.retype import retype
from latecomer.lake.lake import Lake
retype(Lake(sys.argv[1]), "s", {"v": "double"})
"""


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_it_shows_the_old_column_or_the_new_one(lake, point):
    before = stored(lake)
    environment = os.environ | {"LATECOMER_CRASH_AT": f"retype:{point}", "PYTHONPATH": str(ROOT / "pipelines")}
    killed = subprocess.run([sys.executable, "-c", SCRIPT, lake.uri], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    counts = stream_totals(lake)["s"]
    if point == "committed":
        assert stored(lake).schema.field("v").type == pa.float64() and counts == {"rows": 4, "quarantined": 2}
        assert retype(lake, "s", {"v": "double"}).columns == {}
    else:
        assert stored(lake).equals(before) and counts == {"rows": 6, "quarantined": 0}
        assert count_quarantine(lake, "s", last_committed(lake)) == 0
        assert retype(lake, "s", {"v": "double"}).moved == {"v": 2}
    assert stored(lake)["v"].to_pylist() == [1.5, None, 7.0, 1000.0]
    assert result_views.quarantine(lake, ["s"])["line"].to_pylist() == [2, 5]
    assert stream_totals(lake) == {"s": {"rows": 4, "quarantined": 2}}


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS[:-1])
def test_a_killed_one_is_taken_back_by_another(lake, point):
    environment = os.environ | {"LATECOMER_CRASH_AT": f"retype:{point}", "PYTHONPATH": str(ROOT / "pipelines")}
    subprocess.run([sys.executable, "-c", SCRIPT, lake.uri], env=environment, check=False)
    retype(lake, "s", {"w": "string", "v": "string"})  # nothing to do
    rows = stored(lake)
    with pytest.raises(InputError, match="has no value that is bigint, but such as 'a'"):
        retype(lake, "s", {"w": "bigint"})
    assert stored(lake).equals(rows)
    done = retype(lake, "s", {"v": "decimal(6,2)"})
    assert done.moved == {"v": 2}
    assert stored(lake)["v"].to_pylist() == [Decimal("1.50"), None, Decimal("7.00"), Decimal("1000.00")]
    assert lake.table("quarantine", "s").count() == 2


@pytest.mark.parametrize(
    ("query", "only_planned", "problem"),
    [
        (aggregate(), False, "2 rows would go to quarantine, and query q counted the stream's rows"),
        (aggregate(), True, "2 rows would go to quarantine, and query q counted"),
        (aggregate(stream="t"), False, None),
    ],
)
def test_no_row_moves_under_a_query_that_has_run(lake, query, only_planned, problem):
    run_in(lake, query, only_planned)
    if problem is None:
        assert retype(lake, "s", {"v": "double"}).moved == {"v": 2}
        return
    before = stored(lake)
    with pytest.raises(InputError, match=problem) as refused:
        retype(lake, "s", {"v": "double"})
    assert str(refused.value).startswith("stream s: column v: ") and "latecomer forget q" in str(refused.value)
    assert stored(lake).equals(before) and last_committed(lake) == 1
    assert lake.table("ingest", "journal").last_version("ingest") == 1


NUMBERS = {"v": [5, None, -7], "u": ["1", "2", None]}


@pytest.fixture
def whole(tmp_path) -> Lake:
    lake = Lake(tmp_path / "lake")
    ingested(lake, 0, **NUMBERS)
    return lake


TOPK = "name: q\nkind: topk\nstreams: {x: s}\nwindow: 1 h\nscore: x.seq\nk: 1\n"
USES = [
    (aggregate(), (True, True)), (aggregate(where="x.v > 5"), (True, False)),
    (aggregate(where="x.u = 'x.v'"), (True, False)),
    (aggregate(select="a: avg(x.v), m: 'quantile(x.v, 0.9)'"), (True, False)),
    (aggregate(select="a: sum(x.v)"), (False, False)), (aggregate(select="a: max(-x.v)"), (False, False)),
    (TOPK + "select: [x.u as v]\n", (True, True)),
    (TOPK, (False, False)),
    (TOPK + "group_by: [v]\nselect: [x.u]\n", (False, False)),
    ("name: q\nkind: join\nstreams: {x: s, y: t}\nwindow: 1 h\nwhere: x.u = y.v\nselect: [y.v]\n", (True, True)),
    ("name: q\nkind: join\nstreams: {x: t, y: s}\nwindow: 1 h\nwhere: x.u = y.v\nselect: [x.v]\n", (True, False)),
]  # fmt: skip


@pytest.mark.parametrize(("query", "allowed"), USES)
def test_a_query_stands_against_what_would_change_its_results(whole, query, allowed):
    """The first change is a widening, the second is none; of both no row moves."""
    run_in(whole, query + "strategy: none\n" * ("topk" in query) + "strategy: exact\n" * ("join" in query))
    wider, other = allowed
    assert (obstacle(whole, "s", {"v": "double"}) is None) == wider
    for kind, fine in (("string", other), ("double", wider)):
        if fine:
            continue
        with pytest.raises(InputError, match=f"cannot become {kind}: query q .* the column as bigint.*forget q"):
            retype(whole, "s", {"v": kind})
    if wider:
        assert retype(whole, "s", {"v": "double"}, widen=True).columns == {"v": ("bigint", "double")}
        assert stored(whole)["v"].to_pylist() == [5.0, None, -7.0]


def test_a_query_of_an_earlier_version_uses_everything(whole):
    counts = {"rows_read": 1, "on_time": 0, "late": 0}
    journal.save_state(whole, "old", journal.RunState(0, 1, False, "f", {}, counts))
    with pytest.raises(InputError, match="query old has results of the column as bigint"):
        retype(whole, "s", {"v": "double"})


@pytest.mark.parametrize("statistics", [True, False])
def test_a_column_is_widened_only_where_every_value_stays_exact(whole, statistics, monkeypatch):
    if not statistics:
        monkeypatch.setattr(module._Retype, "_fits_surely", lambda self, name: False)
    assert obstacle(whole, "s", {"v": "double"}) is None
    ingested(whole, 1, v=[2**53, -(2**53)], u=["3", "4"])
    assert obstacle(whole, "s", {"v": "double"}) is None
    ingested(whole, 2, v=[2**53 + 1], u=["5"])
    assert "has 1 value that double does not hold exactly, such as 9007199254740993" in obstacle(
        whole, "s", {"v": "double"}
    )
    with pytest.raises(InputError, match="it stays bigint"):
        retype(whole, "s", {"v": "double"}, widen=True)
    assert "is string, and not every value of that is a double" in obstacle(whole, "s", {"u": "double"})
    assert retype(whole, "s", {"v": "decimal(38,0)"}, widen=True).moved == {}
    assert retype(whole, "s", {"v": "bigint"}).moved == {}
    assert retype(whole, "s", {"v": "double"}).moved == {"v": 1}
    assert stored(whole)["v"].to_pylist() == [5.0, None, -7.0, 2.0**53, -(2.0**53)]


@pytest.mark.parametrize(
    ("values", "kind", "after", "odd"),
    [
        (pa.array([1, None, 300], pa.int32()), "tinyint", [1, None], ["300"]),
        (pa.array([1, -3], pa.int8()), "decimal(3,0)", [Decimal(1), Decimal(-3)], []),
        (pa.array([1.0, 2.5, float("nan"), None]), "bigint", [1, None], ["2.5", "NaN"]),
        (pa.array([0.1, 1e300, float("-inf")]), "float", [float(np.float32(0.1)), float("-inf")], ["1e+300"]),
        (pa.array([0.1], pa.float32()), "double", [float(np.float32(0.1))], []),
        (pa.array([0.25, 0.125]), "decimal(5,2)", [Decimal("0.25")], ["0.125"]),
        (pa.array([Decimal("1.50"), Decimal("7.00")]), "bigint", [7], ["1.50"]),
        (pa.array([Decimal("1.50"), None]), "decimal(6,3)", [Decimal("1.500"), None], []),
        (pa.array([True, None]), "string", ["true", None], []),
        (pa.array([16777217, 4], pa.int64()), "float", [4.0], ["16777217"]),
        (pa.array([2**63 - 1, -(2**63), 0]), "double", [-(2.0**63), 0.0], ["9223372036854775807"]),
        (pa.array([1.5, float("inf"), -0.0]), "string", ["1.5", "Infinity", "-0"], []),
        (pa.array([0, 1], UTC_US), "date", [date(1970, 1, 1)], ["1970-01-01T00:00:00.000001Z"]),
        (pa.array([0, None], UTC_US), "string", ["1970-01-01T00:00:00.000000Z", None], []),
        (pa.array([date(2024, 1, 1)]), "timestamp", [datetime(2023, 12, 31, 23, tzinfo=UTC)], []),
        (pa.array(["2024-07-01 12:00", "x"]), "timestamp", [datetime(2024, 7, 1, 10, tzinfo=UTC)], ["x"]),
        (pa.array(["1,5", "1.5"]), "double", [1.5], ["1.5"]),
    ],
)  # fmt: skip
def test_values_of_every_type_become_those_of_another_or_move(tmp_path, values, kind, after, odd):
    lake = Lake(tmp_path / "lake")
    ingested(lake, 0, v=values)
    done = retype(lake, "s", {"v": kind}, zone="Europe/Berlin", decimal_comma=True)
    assert stored(lake)["v"].to_pylist() == after and done.rows == len(after)
    assert done.moved == ({"v": len(odd)} if odd else {})
    reasons = [row["reason"] for row in result_views.quarantine(lake, ["s"]).to_pylist()]
    assert reasons == [f"column v is not {kind}: '{text}'" for text in odd]


def test_two_columns_are_retyped_at_once(whole):
    ingested(whole, 1, v=[300, 300, 1], u=["x", "6", "x"])
    done = retype(whole, "s", {"v": "tinyint", "u": "bigint"})
    assert done.moved == {"v": 2, "u": 1} and stored(whole)["u"].to_pylist() == [1, 2, None]
    reasons = result_views.quarantine(whole, ["s"])["reason"].to_pylist()
    assert reasons == ["column v is not tinyint: '300'"] * 2 + ["column u is not bigint: 'x'"]


def test_files_hold_rows_in_their_order_with_true_statistics(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 100)
    lake, rng = Lake(tmp_path / "lake"), np.random.default_rng(5)
    for number in range(5):
        n = 90
        floats = rng.random(n)
        floats[rng.integers(n)] = -0.0 if number % 2 else float("nan")
        words = [None if i % 7 == 0 else f"{i}" * (1 + 30 * (number == 2)) for i in rng.integers(0, 99, n).tolist()]
        eighths = [Decimal(int(i)) / 8 for i in rng.integers(-99, 99, n)]
        ingested(
            lake,
            number,
            v=pa.array(rng.integers(-99, 99, n)),
            f=floats,
            t=pa.array(rng.integers(0, 2**50, n)).cast(pa.timestamp("us")),
            b=[True, None, False] * 30,
            m=pa.array(eighths, pa.decimal128(20, 3)),
            d=pa.array(rng.integers(0, 20_000, n).astype(np.int32)).cast(pa.date32()),
            l=pa.array([["a"], None, []] * 30),
            w=pa.array(words),
        )
    lake.table("events", "s").open().optimize.compact()
    before = stored(lake)
    retype(lake, "s", {"v": "double"})
    after, table = stored(lake), open_events(lake, "s")
    assert repr(after.drop_columns("v").to_pylist()) == repr(before.drop_columns("v").to_pylist())  # NaN among them
    assert after["v"].equals(before["v"].cast(pa.float64()))
    actions = pa.table(table.get_add_actions(flatten=True)).sort_by("min.seq").to_pylist()
    assert [(a["min.seq"], a["max.seq"], a["num_records"]) for a in actions] == [
        (0, 99, 100), (100, 199, 100), (200, 299, 100), (300, 399, 100), (400, 449, 50)
    ]  # fmt: skip
    dataset = table.to_pyarrow_dataset()
    for fragment in dataset.get_fragments():
        seq = pa.Table.from_batches(fragment.to_batches(columns=["seq"]))["seq"].to_numpy()
        assert (np.diff(seq) > 0).all()
    for name in ("seq", "event_ts", "v", "f", "t", "d", "w", "b", "m"):
        for value in [*after[name].to_pylist()[::40], pc.min(after[name]).as_py(), pc.max(after[name]).as_py()]:
            if value is None or value != value:
                continue
            kind = after.schema.field(name).type
            rows = dataset.to_table(filter=pc.field(name) == pa.scalar(value, kind), columns=["seq"])
            assert rows.num_rows == pc.sum(pc.equal(after[name], pa.scalar(value, kind))).as_py(), (name, value)


@pytest.mark.parametrize(
    ("stream", "change", "problem"),
    [
        ("t", {"v": "double"}, "no row of it is in .*; did you mean|no row of it is in .*use one of s"),
        ("s", {"vv": "double"}, "column vv: does not exist; did you mean 'v'"),
        ("s", {"seq": "double"}, "column seq: has one type in every stream"),
        ("s", {"v": "floaty"}, "column v: 'floaty': is no type of a column"),
        ("s", {"v": "array<string>"}, "column v: 'array<string>': cannot be made of string"),
        ("s", {"w": "double"}, "column w: has no value that is double, but such as 'a'"),
    ],
)
def test_errors_name_the_column_and_the_remedy(lake, stream, change, problem):
    before = stored(lake)
    with pytest.raises(InputError, match=problem):
        retype(lake, stream, change)
    assert stored(lake).equals(before) and lake.table("ingest", "journal").last_version("ingest") == 1
