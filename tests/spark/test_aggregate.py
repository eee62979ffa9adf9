"""Aggregates on Spark against a tuple-at-a-time reference and pandas over the complete input.

Oracle family: first answers and late rows equal the reference, results after repair a batch query. Differential family:
any cut and any number of repairs give the same tables, byte for byte.
"""

import math
import random
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from latecomer.core.aggregate.coverage import needed_coverage
from latecomer.core.windows import group_sampling
from latecomer.core.windows.interfaces import Observed
from latecomer.lake import result_views
from latecomer.lake.lake import Lake
from latecomer.ledger import ledger as books
from latecomer.quality.checks import check
from latecomer.reference import windows as reference
from latecomer.spark.aggregate.exact_sum import ExactSum
from latecomer.spark.aggregate.partial_states import with_columns
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import named
from latecomer.spark.engine.decimals import digits_of
from latecomer.spark.engine.tuning import tune
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.spark.windows import observation, stage
from latecomer.specs.loading import parse_query
from latecomer.strategies.windows import slack_policies
from pyspark.sql import Window
from pyspark.sql import functions as F

from tests.support import events
from tests.support.lakes import load, whole_and_cut

QUERY = """
name: sums
kind: aggregate
streams: {{s: {stream}}}
{group}
window: {window}
select:
  {{n: count(), total: sum(v), mean: avg(v), low: min(v), high: max(v), mid: median(v), p90: quantile(v, 0.9),
    notes: count(note), whole: sum(k)}}
{where}
quality: {{error: 0.05, probability: 0.9, period: 10 s}}
strategy: {{name: {strategy}, gamma: 3 s{more}}}
"""
WINDOW = "{size: 4 s, slide: 1 s}"
JOIN = (
    "name: pairs\nkind: join\nstreams: {l: a, r: b}\nkeys: [k]\nwindow: 2 s\nstrategy: {name: k_slack, slack: 1 us}\n"
)


def query(strategy="hpm", stream="a", group="group_by: [g]", window=WINDOW, where="", more=""):
    text = QUERY.format(strategy=strategy, stream=stream, group=group, window=window, where=where, more=more)
    return parse_query(text, "test.yaml")


def data(seed, rows=300):
    table = events.disordered(seed, rows)
    rng = np.random.default_rng(seed)
    group = [None if each == 3 else f"g{each}" for each in rng.integers(0, 4, rows)]
    value = np.where(rng.random(rows) < 0.1, 1e-13, np.round(rng.normal(5, 3, rows), 3))
    return table.append_column("g", pa.array(group, pa.string())).set_column(4, "v", pa.array(value))


def rows_of(table, spec):
    stream = spec.streams[0][1]
    found = []
    for row in table.to_pylist():
        if row["stream"] == stream:
            ok = spec.where is None or row["v"] > 4
            found.append(reference.Arrival(row["seq"], 0, row["event_ts"], row, ok))
    return found


def expected(table, spec):
    grid = spec.window
    policy = slack_policies(spec)[0]
    g = grid.granularity_us

    def observe(window, rows, cut):
        waits = [u - grid.end(window) for _, u in rows]
        needed = [(w // g + 1) * g for w in waits if w >= 0]
        levels, counts = np.unique(np.array(needed, np.int64), return_counts=True)
        groups = {a.row["g"] for a, _ in rows} if spec.group_by else {0}
        values = np.array([a.row["v"] for a, _ in rows if a.row["v"] is not None])
        tame = np.where(np.abs(values) < 2.0**-43, 0.0, values)
        cv = tame.std() / abs(tame.mean())
        size = len(rows) / len(groups)
        share = max(needed_coverage(f.function, size, cv, 0.05, 0.1) for f in spec.aggregates)
        return Observed(window, levels, counts.astype(float), float(len(rows)), min(share, 1.0))

    return reference.run(
        rows_of(table, spec), size=grid.size_us, slide=grid.slide_us, streams=1, policy=policy, observe=observe,
        observe_us=spec.strategy.observe_us, end=table.num_rows,
    )  # fmt: skip


def answer(rows):
    values = [a.row["v"] for a in rows]
    return {
        "n": len(rows), "total": math.fsum(values), "mean": math.fsum(values) / len(values),
        "low": min(values), "high": max(values), "mid": float(np.median(values)),
        "p90": float(np.quantile(values, 0.9)),
        "notes": sum(a.row["note"] is not None for a in rows),
        "whole": sum(a.row["k"] for a in rows), "rows": len(rows),
    }  # fmt: skip


def grouped(windows, spec):
    found = {}
    for number, rows in windows.items():
        for row in rows:
            found.setdefault((row.row["g"] if spec.group_by else None, number * spec.window.slide_us), []).append(row)
    return {key: answer(rows) for key, rows in found.items()}


def compare(table, wanted, spec):
    found = {}
    for row in table.to_pylist():
        key = (row["g"] if spec.group_by else None, int(row["window_start"].timestamp() * 1_000_000))
        assert key not in found
        found[key] = row
    assert found.keys() == wanted.keys()
    for key, truth in wanted.items():
        for name, value in truth.items():
            assert found[key][name] == pytest.approx(value, rel=1e-12, abs=1e-12), (key, name)


CASES = [
    ("hpm", "group_by: [g]", WINDOW, ""),
    ("hpm", "", "{size: 4 s, slide: 4 s}", "where: v > 4"),
    ("k_slack", "group_by: [g]", "{size: 3 s, slide: 2 s}", ""),
    ("mp_k_slack", "", WINDOW, ""),
    ("exact", "", WINDOW, ""),
]


@pytest.mark.parametrize(("strategy", "group", "window", "where"), CASES)
def test_equals_the_reference_and_becomes_exact(lake, tmp_path, strategy, group, window, where):
    table = data(1)
    more = ", slack: 500 ms" if strategy == "k_slack" else ", alpha: 0.2" if strategy == "hpm" else ""
    spec = query(strategy, group=group, window=window, where=where, more=more)
    load(lake, table, tmp_path)
    run(lake, spec, rows_per_batch=110, flush=True)
    truth = expected(table, spec)
    compare(result_views.view(lake, spec, "on_time"), grouped(truth.on_time, spec), spec)
    late = result_views.view(lake, spec, "late")
    assert set(late["seq"].to_pylist()) == set(truth.late)
    assert (strategy == "exact") == (not truth.late)
    if strategy != "exact":
        closed = {row["published_seq"] for row in result_views.view(lake, spec, "on_time").to_pylist()}
        assert closed == set(truth.closed.values())
    repair(lake, spec, flush=True)
    compare(result_views.results(lake, spec), grouped(truth.final, spec), spec)
    ledger = books.ledger(lake, spec).to_pylist()
    assert sum(row["expected"] for row in ledger) == sum(len(rows) for rows in truth.final.values())
    assert sum(row["on_time"] for row in ledger) == sum(len(rows) for rows in truth.on_time.values())
    assert {row["achieved_final"] for row in ledger} == {1.0}


@pytest.mark.parametrize(
    ("strategy", "more", "window", "size"),
    [
        ("hpm", ", shards: 3, alpha: 0.3", WINDOW, 67),
        ("calibrated", "", WINDOW, 67),
        ("aq_k_slack", ", alpha: 0.1", WINDOW, 67),
        ("k_slack", ", slack: 1 us", "7 s", 23),  # periods of 10 s end inside windows, and between two micro-batches
    ],
)
def test_any_cut_gives_the_same_tables(tmp_path, spark, monkeypatch, strategy, more, window, size):
    monkeypatch.setattr(observation, "CHECKPOINT_ROWS", 10)  # what is observed is read from inside a micro-batch on
    table = data(7)
    spec = query(strategy, more=more, window=window)
    found = whole_and_cut(tmp_path, table, spec, (size,), stop=150)
    assert sum(found["ledger"]["rows"].to_pylist()) == sum(row["stream"] == "a" for row in table.to_pylist())
    results = found["results"]
    wanted = grouped(expected(table, query("exact", window=window)).final, spec)
    compare(results, wanted, spec)


@pytest.mark.parametrize("strategy", ["calibrated", "hpm"])
def test_any_cut_gives_the_same_tables_where_groups_are_sampled(tmp_path, spark, monkeypatch, strategy):
    monkeypatch.setattr(group_sampling, "SAMPLED_GROUPS", 3)
    monkeypatch.setattr(group_sampling, "CROWDED", 1)
    monkeypatch.setattr(group_sampling, "COUNTED_BITS", 1)
    of_counts, shifts = group_sampling.GroupSample.of_counts, []

    def noted(panes, counted):
        found = of_counts(panes, counted)
        shifts.extend(found.shift.tolist())
        return found

    monkeypatch.setattr(group_sampling.GroupSample, "of_counts", noted)
    table = data(7)
    groups = np.random.default_rng(9).integers(0, 60, table.num_rows)
    table = table.set_column(table.column_names.index("g"), "g", pa.array([f"g{each}" for each in groups]))
    window = "{size: 6 s, slide: 3 s}" if strategy == "calibrated" else "12 s"
    spec = query(strategy, window=window, more=", shards: 2")
    found = whole_and_cut(tmp_path, table, spec, (67,), stop=150)
    assert {1, 2} <= set(shifts)
    compare(found["results"], grouped(expected(table, query("exact", window=window)).final, spec), spec)


GROUPS = {
    "bigint": pa.array([2**60, 2**60 + 1, None, 2**60, None, 2**60, 2**60 + 1, None], pa.int64()),
    "double": pa.array([float("nan"), None, 1.5, float("nan"), None, float("nan"), 1.5, None], pa.float64()),
}


@pytest.mark.parametrize("kind", ["aggregate", "topk"])
@pytest.mark.parametrize("group", list(GROUPS))
def test_groups_that_look_alike_elsewhere_are_told_apart(tmp_path, group, kind):
    """Integers beyond 2^53 beside a null, NaN beside a null: results, coverage, ledger and checks know each group."""
    second = 1_000_000
    late = [0, 1, 2, 60 * second, 61 * second, 3, 4, 5]
    table = pa.table(
        {
            "stream": ["a"] * 8,
            "event_ts": pa.array([1_700_000_000 * second + each for each in late], pa.int64()),
            "g": GROUPS[group],
            "v": [float(i) for i in range(8)],
        }
    )
    ask = (
        "select: {n: count()}\nstrategy: {name: k_slack, slack: 1 s}"
        if kind == "aggregate"
        else "score: v\nk: 2\nstrategy: none"
    )
    spec = parse_query(f"name: q\nkind: {kind}\nstreams: {{s: a}}\ngroup_by: [g]\nwindow: 5 s\n{ask}\n")
    lake = Lake(tmp_path / "lake")
    load(lake, table, tmp_path)
    run(lake, spec, flush=True)
    repair(lake, spec, flush=True)
    groups = [str(g) for g in table["g"].to_pylist()]
    windows = [0 if each < 60 * second else 1 for each in late]
    rows = result_views.results(lake, spec).to_pylist()
    begins = sorted({row["window_start"] for row in rows})
    found, wanted = {}, {}
    for row in rows:
        key = str(row["g"]), begins.index(row["window_start"])
        found.setdefault(key, []).append((row["n"], row["coverage"]) if kind == "aggregate" else row["seq"])
    for seq, key in enumerate(zip(groups, windows, strict=True)):
        wanted.setdefault(key, []).append(seq)
    if kind == "aggregate":  # the three late rows came after their windows were published
        first = {key: sum(seq < 5 for seq in seqs) for key, seqs in wanted.items()}
        wanted = {key: [(len(seqs), first[key] / len(seqs))] for key, seqs in wanted.items()}
        assert [row["expected"] for row in books.ledger(lake, spec).to_pylist()] == [6, 2]
    else:
        wanted = {key: sorted(seqs, reverse=True)[:2] for key, seqs in wanted.items()}
    assert found == wanted
    broken = [each for each in check(lake, spec).results if each["subject"] != "ledger" and not each["success"]]
    assert not broken


def test_a_late_null_leaves_the_error_of_the_rows_before_it(lake, tmp_path):
    """Three Gamma batches of one window: two move its median, the third brings nulls alone.

    Then comes a null in a window without rows. The user's columns have names of columns that stages make.
    """
    rows = [(1, 1.0), (2, 1.0), (3, 1.0), (30, 5.0)]
    rows += [(1, 9.0), (1, 9.0), (2, 9.0), (3, 9.0), (1, 9.0), (2, None), (1, None), (12, None)]
    times = pa.array([1_700_000_000_000_000 + at * 1_000_000 for at, _ in rows], pa.int64())
    values, groups = pa.array([v for _, v in rows]), ["often", "pane", "value", "g1"]
    table = pa.table(
        {"stream": ["a"] * len(rows), "event_ts": times, "v": values} | {name: ["x"] * len(rows) for name in groups}
    )
    spec = parse_query(
        f"name: q\nkind: aggregate\nstreams: {{s: a}}\nwindow: 10 s\nselect: {{w: median(v)}}\ngroup_by: {groups}\n"
        "quality: {error: 0.05, probability: 0.9, period: 1 h}\nstrategy: {name: k_slack, slack: 1 us, gamma: 1 us}\n"
    )
    load(lake, table, tmp_path)
    run(lake, spec, flush=True)
    repair(lake, spec, flush=True)
    found = {
        row["window_start"].second: (row["rows"], row["w"]) for row in result_views.results(lake, spec).to_pylist()
    }
    assert found == {20: (10, 9.0), 30: (1, None), 50: (1, 5.0)}
    stored = lake.table("corrections", "q").read().sort_by([("window_start", "ascending"), ("revision", "ascending")])
    errors = list(zip(stored["rows"].to_pylist(), stored["error"].to_pylist(), strict=True))
    # the first answer, 1, is three of six values, then three of eight
    assert errors == [(6, 0.0), (8, 0.5 - 3 / 8), (10, 0.5 - 3 / 8), (1, math.inf)]


@pytest.mark.parametrize("wild", [False, True], ids=["tame", "wild"])
@pytest.mark.parametrize("window", ["4 s", WINDOW], ids=["tumbling", "sliding"])
def test_many_answers_are_computed_otherwise_and_are_the_same(tmp_path, spark, monkeypatch, window, wild):
    table = data(7)
    rng = np.random.default_rng(8)
    odd = rng.choice([0.0, -0.0, -1.5, 1e-9, 3.0], table.num_rows)
    value = pa.array(np.where(rng.random(table.num_rows) < 0.3, odd, np.round(rng.normal(0, 3, table.num_rows), 2)))
    if wild:
        extremes = pa.array(rng.choice([math.inf, -math.inf, math.nan, 1e-300, -1e300, 1e300], table.num_rows))
        value = pa.compute.if_else(pa.array(rng.random(table.num_rows) < 0.1), extremes, value)
    value = pa.compute.if_else(pa.array(rng.random(table.num_rows) < 0.2), None, value)
    spec = query("k_slack", window=window, where="where: g is not null or k > 2", more=", slack: 500 ms, shards: 2")
    found = []
    for name, many in (("few", stage.MANY_ANSWERS), ("many", -1)):
        monkeypatch.setattr(stage, "MANY_ANSWERS", many)
        lake = Lake(tmp_path / name)
        load(lake, table.set_column(table.column_names.index("v"), "v", value), tmp_path)
        run(lake, spec, rows_per_batch=110, flush=True)
        repair(lake, spec, flush=True)
        order = [(key, "ascending") for key in ("g", "window_start", "revision")]
        found.append([result_views.view(lake, spec, area).sort_by(order) for area in ("on_time", "corrections")])
    for few, many in zip(*found, strict=True):
        assert few.num_rows > 10
        for name in few.column_names:
            assert [repr(v) for v in few[name].to_pylist()] == [repr(v) for v in many[name].to_pylist()], name


def test_a_sum_of_integers_that_fits_is_found(spark):
    """Its high half alone, or what comes before the last row, may not fit."""
    cases = [[-(2**62), -(2**62), -1, 5], [2**63 - 1, 2**63 - 1, -(2**63)], [2**63 - 1, 1], [None], [-(2**63)]]
    table = pa.table(
        {
            "case": [i for i, each in enumerate(cases) for _ in each],
            "v": pa.array([v for each in cases for v in each], pa.int64()),
        }
    )
    total = ExactSum("v", "bigint")
    rows = spark.createDataFrame(table).groupBy("case").agg(*map(F.expr, named(total.partial())))
    found = dict(tuple(row) for row in with_columns(rows, total.totals()).select("case", total.total).collect())
    sums = [sum(v for v in each if v is not None) if any(v is not None for v in each) else None for each in cases]
    wanted = [v if v is not None and -(2**63) <= v < 2**63 else None for v in sums]
    assert [found[i] for i in range(len(cases))] == wanted


@pytest.mark.parametrize(
    "kind", ["decimal(38,0)", "decimal(38,7)", "decimal(38,38)", "decimal(30,24)", "decimal(28,5)"]
)
def test_a_sum_of_decimals_is_exact_whatever_it_leaves_on_its_way(spark, kind):
    """Whether it fits is asked of the sum, not of what an order or a division of the rows comes by."""
    rng, total, (digits, scale) = random.Random(5), ExactSum("v", kind), digits_of(kind)
    most = 10**digits - 1
    cases: list[list[int | None]] = [[most, most, -most], [-most, -most, most, None], [most, 1, -2], [1, most, -1]]
    cases += [[-most, -1], [None], [most, most], [10**20 - 1, -(10**20) - 1], [0, None, 0], [-1, 10**25, -(10**25)]]
    for _ in range(60):
        values = [rng.choice((-1, 1)) * rng.randrange(10 ** rng.randint(1, digits)) for _ in range(rng.randint(1, 12))]
        cases.append(values + [-v + rng.randint(-3, 3) * (abs(v) < most - 3) for v in values[1:]])
    rows = [(i, rng.randrange(3), v) for i, each in enumerate(cases) for v in each]
    rng.shuffle(rows)
    exact = [(i, pane, None if v is None else Context(40).scaleb(Decimal(v), -scale)) for i, pane, v in rows]
    table = spark.createDataFrame(exact, f"key int, pane int, v {kind}").repartition(3)
    panes = table.groupBy("key", "pane").agg(*map(F.expr, named(total.partial())))
    merged = with_columns(panes.groupBy("key").agg(*map(F.expr, named(total.merge()))), total.totals())
    so_far = total.running(Window.partitionBy("key").orderBy("pane"))
    after = panes.select("key", "pane", *(value.alias(name) for name, value in so_far.items()))

    def fits(values: list[int | None]) -> Decimal | None:
        there = [v for v in values if v is not None]
        inside = there and abs(sum(there)) < 10**38
        return Context(40).scaleb(Decimal(sum(there)), -scale) if inside else None

    for key, found, mean in merged.selectExpr("key", total.total, total.mean()).collect():
        values = [v for v in cases[key] if v is not None]
        assert found == fits(values), cases[key]
        if not values:
            assert mean is None
        elif found is not None:
            assert mean == float(found) / len(values), cases[key]
        else:
            assert mean == pytest.approx(sum(values) / len(values) / 10**scale, rel=1e-15), cases[key]
    for key, pane, found in with_columns(after, total.totals()).select("key", "pane", total.total).collect():
        before = [v for i, other, v in rows if i == key and other <= pane]
        assert found == fits(before), before


def test_a_sum_of_large_doubles_is_infinite_only_where_it_is(spark):
    large, far = 1.5e308, math.inf
    cases = [
        [large, large, -large],
        [-large, -large, far],
        [large, large],
        [far, -far, 1.0],
        [large, large, 1e-300, -large],
    ]
    wanted = [(large, large / 3), (far, far), (far, large), (math.nan, math.nan), (large, large / 4)]
    rows = [(i, v) for i, each in enumerate(cases) for v in each]
    total = ExactSum("v", "double")
    table = with_columns(spark.createDataFrame(rows, "key int, v double"), total.prepare())
    parts = table.groupBy("key", total.wild).agg(*map(F.expr, named(total.partial())))
    merged = with_columns(parts.groupBy("key").agg(*map(F.expr, named(total.merge()))), total.totals())
    found = {key: (whole, mean) for key, whole, mean in merged.selectExpr("key", total.total, total.mean()).collect()}
    for key, values in enumerate(wanted):
        assert found[key] == pytest.approx(values, rel=1e-15, nan_ok=True), cases[key]


def test_an_answer_that_a_late_row_does_not_change_is_not_off(lake, tmp_path):
    """A ninth tenth between two of five values is at no rank within 0.05 of its own."""
    values = [*range(1, 6), None, None, None, None, None, 9, None]
    times = pa.array([1_700_000_000_000_000 + (30 if v == 9 else 1) * 1_000_000 for v in values], pa.int64())
    load(
        lake, pa.table({"stream": ["a"] * len(values), "event_ts": times, "v": pa.array(values, pa.int64())}), tmp_path
    )
    spec = parse_query(
        "name: q\nkind: aggregate\nstreams: {s: a}\nwindow: 10 s\nselect: {p: quantile(v, 0.9)}\n"
        "quality: {error: 0.05, probability: 0.9, period: 1 h}\nstrategy: {name: k_slack, slack: 0 s, gamma: 1 us}\n"
    )
    run(lake, spec, flush=True)
    repair(lake, spec, flush=True)
    [fixed] = lake.table("corrections", "q").read().to_pylist()
    assert (fixed["rows"], fixed["p"], fixed["error"]) == (11, 4.6, 0.0)


@pytest.mark.parametrize("kind", ["bigint", "double"])
def test_many_values_that_cancel_leave_their_exact_sum(spark, kind):
    """Three million of -1, as many of 1, and a rest: the halves of the negative numbers alone exceed a double."""
    rows = 6_000_000
    tune(spark, rows)
    total = ExactSum("v", kind, tame=True)
    value = f"cast(case when id < {rows} then 1 - 2 * (id % 2) else 7 end as {kind})"
    table = with_columns(spark.range(rows + 1).selectExpr(f"{value} as v"), total.prepare())
    found = with_columns(table.agg(*map(F.expr, named(total.partial()))), total.totals())
    assert tuple(found.selectExpr(total.total, total.mean()).collect()[0]) == (7, 7 / (rows + 1))


def test_a_sum_of_doubles_is_the_exact_one_to_its_last_bit_but_one(spark):
    rng = np.random.default_rng(5)
    cases = []
    for _ in range(300):
        values = np.ldexp(rng.normal(size=rng.integers(1, 40)), rng.integers(-30, 55))
        values = np.where(abs(values) < 2.0**-43, 0.0, values)
        if rng.random() < 0.5:  # all but cancel
            values = np.concatenate([values, -values * (1 + rng.choice([0.0, 2.0**-52, 2.0**-40, 1e-9], len(values)))])
        cases.append(values.tolist())
    table = pa.table(
        {"case": [i for i, each in enumerate(cases) for _ in each], "v": [v for each in cases for v in each]}
    )
    total = ExactSum("v", "double", tame=True)
    rows = (
        with_columns(spark.createDataFrame(table), total.prepare())
        .groupBy("case")
        .agg(*map(F.expr, named(total.partial())))
    )
    found = dict(tuple(row) for row in with_columns(rows, total.totals()).select("case", total.total).collect())
    assert any(0 < abs(math.fsum(each)) < 1e-9 * max(map(abs, each)) for each in cases)
    for i, each in enumerate(cases):
        exact = float(sum(map(Fraction, each)))
        assert abs(found[i] - exact) <= 2 * math.ulp(exact) or abs(found[i] - exact) < 2.0**-90, (each, found[i], exact)


def test_sixty_sums_are_planned_as_one(lake, tmp_path):
    """A plan as deep for sixty columns as for one: nested, it overflowed the JVM's stack."""
    rows, columns = 40, [f"c{i}" for i in range(60)]
    times = pa.array([1_700_000_000_000_000 + at * 1_000_000 for at in range(rows)], pa.int64())
    values = {name: [float(place)] * rows for place, name in enumerate(columns)}
    load(lake, pa.table({"stream": ["a"] * rows, "event_ts": times} | values), tmp_path)
    select = ", ".join(f"s_{name}: sum({name})" for name in columns)
    spec = parse_query(
        f"name: q\nkind: aggregate\nstreams: {{s: a}}\nwindow: 10 s\nselect: {{{select}}}\n"
        "quality: {error: 0.05, probability: 0.9, period: 20 s}\n"
    )
    run(lake, spec, flush=True)
    for row in result_views.results(lake, spec).to_pylist():
        assert [row[f"s_{name}"] for name in columns] == [10.0 * place for place in range(60)]


def test_signs_of_zero_and_sums_of_tiny_numbers_do_not_depend_on_the_cut(tmp_path, spark):
    table, rng = data(7), np.random.default_rng(3)
    tiny = rng.choice([0.0, -0.0, 3.3e-14, 7.1e-15], table.num_rows)
    table = table.set_column(table.column_names.index("v"), "v", pa.array(tiny))
    spec = query("k_slack", group="", window="{size: 12 s, slide: 1 s}", more=", slack: 500 ms")
    results = whole_and_cut(tmp_path, table, spec, (67, 23), stop=150)["results"]
    assert not any(math.copysign(1, v) < 0 for name in ("low", "high", "mid") for v in results[name].to_pylist())


@pytest.mark.parametrize("strategy", ["calibrated", "hpm"])
def test_the_unit_of_a_column_changes_no_wait(lake, tmp_path, strategy):
    """The same values in other units (powers of two), and as counts of bytes."""
    table, units = data(5, 2_000), {"v": 1.0, "small": 2.0**-60, "large": 2.0**60, "larger": 2.0**500, "bytes": 2.0**31}
    value = table["v"].to_numpy()
    for name, unit in units.items():
        if name != "v":
            table = table.append_column(name, pa.array(value * unit))
    load(lake, table, tmp_path)
    found = {}
    for name in units:
        spec = parse_query(
            f"name: of_{name}\nkind: aggregate\nstreams: {{s: a}}\nwindow: {{size: 4 s, slide: 1 s}}\n"
            f"select: {{x: sum({name}), y: avg({name}), z: max({name})}}\n"
            f"quality: {{error: 0.05, probability: 0.9, period: 10 s}}\nstrategy: {strategy}\n"
        )
        run(lake, spec, flush=True)
        repair(lake, spec, flush=True)
        rows = books.ledger(lake, spec)
        found[name] = [rows[column].to_pylist() for column in ("slack_mean_us", "windows_off", "wait_mean_us")]
        assert found[name] == found["v"], name
    assert max(slack or 0 for slack in found["v"][0]) > 0


def test_a_time_without_a_zone_is_repaired_and_keeps_its_type(tmp_path, spark, monkeypatch):
    table = data(7)
    naive = table["event_ts"].cast(pa.timestamp("us"))
    table = table.append_column("at", naive)
    spec = parse_query(
        "name: q\nkind: aggregate\nstreams: {s: a}\nwindow: 4 s\nselect: {last: max(at), n: count()}\n"
        "quality: {error: 0.05, probability: 0.9, period: 10 s}\nstrategy: {name: k_slack, slack: 1 us}\n"
    )
    found = []
    for few in (200_000, 5):
        monkeypatch.setattr(tables, "DRIVER_LOCAL_ROWS", few)
        lake = Lake(tmp_path / f"lake{few}")
        load(lake, table, tmp_path)
        if few < 10:
            monkeypatch.setattr("latecomer.spark.engine.tuning.SMALL_ROWS", 0)
        run(lake, spec, rows_per_batch=100, flush=True)
        assert repair(lake, spec, flush=True).corrections > 0
        found.append(result_views.results(lake, spec))
    assert found[0].equals(found[1]) and found[0]["last"].type == pa.timestamp("us")


def test_late_rows_that_are_too_many_for_copies_are_repaired_alike(tmp_path, spark, monkeypatch):
    found = []
    for most in (tables.BROADCAST_ROWS, 0):
        monkeypatch.setattr(tables, "BROADCAST_ROWS", most)
        lake = Lake(tmp_path / f"lake{most}")
        load(lake, data(7), tmp_path)
        for spec in (query("k_slack", more=", slack: 1 us"), parse_query(JOIN)):
            run(lake, spec, rows_per_batch=110, flush=True)
            assert repair(lake, spec, flush=True).corrections > 0
            found.append(result_views.results(lake, spec))
    assert found[0].equals(found[2]) and found[1].equals(found[3])


def test_arguments_that_differ_in_the_type_of_a_number_are_calculated_apart(lake, tmp_path):
    times = pa.array([1_700_000_000_000_000 + at for at in range(4)], pa.int64())
    load(lake, pa.table({"stream": ["a"] * 4, "event_ts": times, "v": [2**62 + 1] * 4}), tmp_path)
    names = {
        "a": "sum(v * 1)",
        "b": "sum(v * 1.0)",
        "c": "sum(1)",
        "d": "max(true)",
        "e": "max(coalesce(v, 0))",
        "f": "max(coalesce(v, 0.0))",
    }
    wanted = {"a": None, "b": 4.0 * (2**62 + 1), "c": 4, "d": True, "e": 2**62 + 1, "f": float(2**62 + 1)}
    for place, order in enumerate((list(names), list(names)[::-1])):
        select = ", ".join(f"{name}: {names[name]}" for name in order)
        spec = parse_query(
            f"name: q{place}\nkind: aggregate\nstreams: {{s: a}}\nwindow: 5 s\nselect: {{{select}}}\nstrategy: exact\n"
        )
        run(lake, spec, flush=True)
        (row,) = result_views.results(lake, spec).select(order).to_pylist()
        assert row == wanted and [type(row[name]) for name in order] == [type(wanted[name]) for name in order]
        assert check(lake, spec, audit=1).success
