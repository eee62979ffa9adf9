"""Columns are read as another type where they are calculated with or compared, and keep their own type."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from latecomer.lake import result_views
from latecomer.quality.checks import check
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.loading import parse_query

from tests.support.lakes import load

QUERIES = {
    "aggregate": "streams: {s: a}\nwindow: 10 s\nselect: {x: sum(i * i), n: count(-s), m: max(abs(b) * s)}\n"
    "where: i + i > 0\nstrategy: {name: k_slack, slack: 1 s}\n",
    "topk": "streams: {s: a}\nwindow: 10 s\nscore: i * i\nk: 1\nselect: [i, s * s as x]\nstrategy: none\n",
    "theta_join": "streams: {r: a, t: b}\nwindow: 10 s\nconditions: [r.i * r.i = t.i * t.i]\n"
    "select: [r.b, r.i * t.i as x]\n",
    "join": "streams: {r: a, t: b}\nwindow: 1 s\nwhere: r.i * t.i = coalesce(r.i, t.i) * t.i\n"
    "select: [r.i, r.i * t.i as x]\n"
    "strategy: exact\n",
}
SQUARE = 50_000**2


@pytest.mark.parametrize("kind", QUERIES)
def test_products_of_narrow_columns_are_found(lake, tmp_path, kind):
    columns = {
        "stream": ["a", "b"] * 3,
        "event_ts": np.arange(6) * 100_000 + 1_700_000_000_000_000,
        "i": pa.array([50_000] * 6, pa.int32()),
        "s": pa.array([-(2**15)] * 6, pa.int16()),
        "b": pa.array([-(2**7)] * 6, pa.int8()),
    }
    load(lake, pa.table(columns), tmp_path)
    spec = parse_query(f"name: q\nkind: {kind}\n{QUERIES[kind]}")
    run(lake, spec, flush=True)
    repair(lake, spec, flush=True)
    found = result_views.results(lake, spec)
    first = found.to_pylist()[0]
    if kind == "aggregate":
        assert (first["x"], first["n"], first["m"]) == (3 * SQUARE, 3, -(2**22))
    elif kind == "topk":
        assert (first["score"], first["x"], found["i"].type) == (SQUARE, 2**30, pa.int32())
    else:
        assert found.num_rows == 9 and first["x"] == SQUARE
        assert found["r_i" if kind == "join" else "r_b"].type == (pa.int32() if kind == "join" else pa.int8())
    assert check(lake, spec, audit=5).success


STRATEGIES = ("fast_theta_join", "cfs", "one_bucket", "cross_product", "spark_sql")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_decimals_are_compared_with_doubles_by_the_nearest_double(lake, tmp_path, strategy):
    """0.35 and 0.70 among them, of which Arrow's cast to a double is off by a bit."""
    cents = [1, 10, 35, 41, 70, 99, 113, 999]
    at = np.arange(8) * 1_000 + 1_700_000_000_000_000
    rows = {"price": pa.array([Decimal(c).scaleb(-2) for c in cents], pa.decimal128(10, 2)), "id": cents}
    load(lake, pa.table({"stream": ["a"] * 8, "event_ts": at} | rows), tmp_path)
    rows = {"price": pa.array([c / 100 for c in cents]), "id": cents}
    load(lake, pa.table({"stream": ["b"] * 8, "event_ts": at} | rows), tmp_path)
    asked = "kind: theta_join\nstreams: {a: a, b: b}\nwindow: 10 s\nselect: [a.id as a, b.id as b]\n"
    for op, wanted in (("=", 8), ("<=", 36), ("<", 28)):
        name = f"q{wanted}"
        spec = parse_query(f"name: {name}\n{asked}conditions: [a.price {op} b.price]\nstrategy: {strategy}\n")
        run(lake, spec, flush=True)
        assert result_views.results(lake, spec).num_rows == wanted
        assert check(lake, spec, audit=1).success


@pytest.fixture
def wide(lake, tmp_path):
    """Decimals of (38,0) and (10,2), of which Spark by itself makes (38,0): streams `a` and `b`."""
    rows = {"event_ts": [1_000, 2_000], "qty": pa.array([Decimal(2), Decimal(1)], pa.decimal128(38, 0))}
    load(lake, pa.table({"stream": ["a"] * 2} | rows), tmp_path)
    rows = {"event_ts": [1_000, 2_000], "least": pa.array([Decimal("1.75"), Decimal(1)], pa.decimal128(10, 2))}
    load(lake, pa.table({"stream": ["b"] * 2} | rows), tmp_path)
    return lake


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_decimals_whose_common_type_has_no_room_are_compared_exactly(wide, strategy):
    asked = "kind: theta_join\nstreams: {a: a, b: b}\nwindow: 10 s\nselect: [a.qty as q, b.least as l]\n"
    for name, op, wanted in (("equal", "=", [(1, 1)]), ("above", ">", [(2, Decimal("1.75")), (2, 1)])):
        spec = parse_query(f"name: {name}\n{asked}conditions: [a.qty {op} b.least]\nstrategy: {strategy}\n")
        run(wide, spec, flush=True)
        found = result_views.results(wide, spec)
        assert sorted(zip(found["q"].to_pylist(), found["l"].to_pylist(), strict=True)) == sorted(wanted)
        assert check(wide, spec, audit=1).success


def test_such_decimals_join_exactly(wide):
    join = "kind: join\nstreams: {a: a, b: b}\nwindow: 1 s\nstrategy: exact\n"
    for name, more, rows in (("keyed", "keys: {a: qty, b: least}", 1), ("near", "where: a.qty > b.least", 2)):
        spec = parse_query(f"name: {name}\n{join}{more}\n")
        run(wide, spec, flush=True)
        assert result_views.results(wide, spec).num_rows == rows


def test_a_decimal_times_a_whole_number_keeps_its_digits(lake, tmp_path):
    columns = {
        "stream": ["a"],
        "event_ts": [1_000],
        "price": pa.array([Decimal("0.0000000123")], pa.decimal128(20, 10)),
        "n": pa.array([3], pa.int32()),
        "m": pa.array([50_000], pa.int32()),
    }
    load(lake, pa.table(columns), tmp_path)
    selected = "price * n as x, n * price * 2 as y, m * m + price as z, price - 9223372036854775807 as far"
    spec = parse_query(
        "name: q\nkind: topk\nstreams: {s: a}\nwindow: 10 s\nk: 9\nscore: price * -2\nstrategy: none\n"
        f"select: [{selected}]\n"
    )
    run(lake, spec, flush=True)
    (found,) = result_views.results(lake, spec).to_pylist()
    assert found["score"] == Decimal("-2.46E-8") and found["x"] == Decimal("3.69E-8") and found["y"] == 2 * found["x"]
    assert found["z"] == 2_500_000_000 + Decimal("1.23E-8")
    assert found["far"] == Decimal("-9223372036854775806.9999999877")
    assert check(lake, spec, audit=1).success


@pytest.mark.parametrize("kind", ["join", "theta_join"])
def test_fields_of_structs_may_have_any_name(lake, tmp_path, kind):
    heads = pa.array([{"user-agent": "x", "a`b": [{"ö.k": 1}]}] * 2)
    load(lake, pa.table({"stream": ["a"] * 2, "event_ts": [1_000, 2_000], "n": [1, 2], "heads": heads}), tmp_path)
    asked = {"join": "where: l.n < r.n\nstrategy: exact", "theta_join": "conditions: [l.n < r.n]"}[kind]
    spec = parse_query(f"name: q\nkind: {kind}\nstreams: {{l: a, r: a}}\nwindow: 1 s\n{asked}\n")
    run(lake, spec, flush=True)
    (found,) = result_views.results(lake, spec).to_pylist()
    assert found["l_heads"] == found["r_heads"] == heads[0].as_py()
    assert check(lake, spec, audit=1).success


def test_times_without_a_zone_are_compared_as_utc(lake, tmp_path):
    """With an instant in quotes, whatever its zone, and with times that have a zone."""
    hours = [0, 2, 4]
    seen = np.array(hours, "datetime64[h]").astype("datetime64[us]")
    columns = {"event_ts": [1_000, 7_200_000_000, 14_400_000_001], "seen": pa.array(seen), "id": hours}
    for stream in "ab":
        load(lake, pa.table({"stream": [stream] * 3} | columns), tmp_path)
    assert DeltaTable(lake.table("events", "a").uri).schema().to_arrow().field("seen").type.tz is None

    def found(text):
        spec = parse_query(text)
        run(lake, spec, flush=True)
        assert check(lake, spec, audit=5).success
        return sorted(result_views.results(lake, spec)["id"].to_pylist())

    join = "kind: join\nstreams: {a: a, b: b}\nkeys: [id]\nwindow: 1 s\nselect: [a.id as id]\nstrategy: exact\n"
    assert found(f"name: q1\n{join}where: a.seen >= '1970-01-01T05:00:00+03:00'\n") == [2, 4]
    assert found(f"name: q2\n{join}where: b.seen in ('1970-01-01T03:00:00-01:00')\n") == [4]
    assert found(f"name: q3\n{join}where: coalesce(a.seen, b.event_ts) < b.event_ts\n") == [0, 4]
    theta = "kind: theta_join\nstreams: {a: a, b: b}\nwindow: 10 h\nselect: [a.id as id]\n"
    assert found(f"name: q4\n{theta}conditions: [a.seen < b.event_ts, a.id = b.id]\n") == [0, 4]
    best = "name: q5\nkind: topk\nstreams: {s: a}\nwindow: 10 h\nk: 9\nscore: id\nselect: [id]\nstrategy: none\n"
    assert found(f"{best}where: seen = '1970-01-01T02:00:00Z'\n") == [2]


def test_what_no_whole_number_holds_has_no_floor(lake, tmp_path):
    values = [0.5, float("nan"), float("inf"), 1e308, -(2.0**63), 2.0**63, None]
    load(lake, pa.table({"stream": ["a"] * 7, "event_ts": np.arange(7), "x": values}), tmp_path)
    asked = "kind: topk\nstreams: {s: a}\nwindow: 10 s\nk: 9\nscore: x\nstrategy: none\n"
    spec = parse_query(f"name: q\n{asked}select: [floor(x) as low, ceil(x) as high]\n")
    run(lake, spec, flush=True)
    found = result_views.results(lake, spec)
    kept = sorted(set(zip(found["low"].to_pylist(), found["high"].to_pylist(), strict=True)) - {(None, None)})
    assert kept == [(-(2**63), -(2**63)), (0, 1)]
    spec = parse_query(f"name: r\n{asked}where: floor(x) = 0\n")
    run(lake, spec, flush=True)
    assert result_views.results(lake, spec).num_rows == 1
    assert check(lake, spec, audit=1).success


def test_a_distance_that_rounds_to_the_radius_is_within(lake, tmp_path):
    """Two cells of the radius lie between them."""
    for stream, x in (("a", 1 - 2.0**-53), ("b", 2.0)):
        load(lake, pa.table({"stream": [stream], "event_ts": [1_000], "x": [x], "y": [0.0]}), tmp_path)
    spec = parse_query(
        "name: q\nkind: join\nstreams: {a: a, b: b}\nwindow: 1 s\nwhere: within_distance(a.x, a.y, b.x, b.y, 1)\n"
        "strategy: exact\n"
    )
    run(lake, spec, flush=True)
    assert result_views.results(lake, spec).num_rows == 1


def test_event_times_that_are_float32_are_read(lake, tmp_path):
    load(lake, pa.table({"stream": ["a"] * 2, "event_ts": pa.array([1_000, 2_000], pa.float32())}), tmp_path)
    times = DeltaTable(lake.table("events", "a").uri).to_pyarrow_table()["event_ts"].cast(pa.int64())
    assert sorted(times.to_pylist()) == [1_000, 2_000]
