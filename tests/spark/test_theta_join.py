"""Theta joins on Spark: on-time results are those of the rows before a window closed, after repair those of all rows.

The oracle is brute force; all methods agree.
"""

import itertools
import operator
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from latecomer.core.theta_join.window_task import expand
from latecomer.core.windows.interfaces import Observed
from latecomer.lake import result_views
from latecomer.lake.lake import Lake
from latecomer.ledger import ledger as books
from latecomer.ledger.means import rows_held_mean, wait_mean_us
from latecomer.quality.checks import check
from latecomer.reference import windows as reference
from latecomer.reference.expressions import evaluate
from latecomer.spark.registry import windowed_stage
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.spark.theta_join import windows
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import parse_query
from latecomer.strategies.windows import slack_policies

from tests.support import events
from tests.support.lakes import load, whole_and_cut

QUERY = """
name: pairs
kind: theta_join
streams: {streams}
window: {window}
conditions: {conditions}
emit: {emit}
{select}
quality: {{{quality}period: 10 s}}
strategy: {{name: {strategy}, gamma: {gamma}}}
"""
PLAIN = ", guarantee: false"
"""Late rows are left to repair; with the guarantee: ``test_recall.py``."""
TUMBLING, SLIDING = "{size: 5 s, slide: 5 s}", "{size: 4 s, slide: 2 s}"


def query(
    streams="{r: a, s: b}",
    conditions="[r.v > s.v]",
    emit="rows",
    strategy="fast_theta_join",
    window=TUMBLING,
    select="",
    slack="",
    gamma="3 s",
    recall=None,
):
    quality = "" if recall is None else f"recall: {recall}, "
    kept = {"quality": quality, "strategy": strategy + slack, "window": window, "select": select, "gamma": gamma}
    text = QUERY.format(streams=streams, conditions=conditions, emit=emit, **kept)
    return parse_query(text, "test.yaml")


def expected(table, spec):
    sources = list(dict.fromkeys(stream for _, stream in spec.streams))
    arrivals = [
        reference.Arrival(r["seq"], sources.index(r["stream"]), r["event_ts"], r, any(plays(spec, r)))
        for r in table.to_pylist()
        if r["stream"] in sources
    ]
    grid = spec.window
    g = grid.granularity_us

    def observe(window, rows, cut):
        time = {a.seq: t for a, t in rows}
        results = brute({window: [a for a, _ in rows]}, spec)
        waits = [max(time[seq] for seq in result[1:]) - grid.end(window) for result in results]
        granules = [rounded(w // g, len(spec.streams)) for w in waits if w >= 0]
        levels, counts = np.unique(np.array([(w + 1) * g for w in granules], np.int64), return_counts=True)
        return Observed(window, levels, counts.astype(float), float(len(waits))) if waits else None

    return reference.run(
        arrivals,
        size=grid.size_us,
        slide=grid.slide_us,
        streams=len(sources),
        policy=slack_policies(spec)[0],
        observe=observe,
        end=table.num_rows,
    )


def rounded(wait, streams):
    """A wait in granules, of three streams and more up to its three leading bits."""
    step = 1 << max(wait.bit_length() - 3, 0)
    return wait if streams == 2 else -(-wait // step) * step


OPS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}


def brute(windows, spec):
    found = set()
    aliases = [alias for alias, _ in spec.streams]
    for number, rows in windows.items():
        parts = zip(*([a.row if part else None for part in plays(spec, a.row)] for a in rows), strict=True)
        parts = [[row for row in part if row is not None] for part in parts]
        for chosen in itertools.product(*parts):
            row = dict(zip(aliases, chosen, strict=True))
            if all(_holds(c, row) for c in spec.conditions):
                found.add((number * spec.window.slide_us, *(r["seq"] for r in chosen)))
    return found


def plays(spec, row):
    """Does a row play the part of each alias?"""
    wheres = [(stream, spec.filter_on(alias)) for alias, stream in spec.streams]
    value = lambda column: row[column.name]  # noqa: E731
    return [row["stream"] == stream and (where is None or evaluate(where, value) is True) for stream, where in wheres]


def _holds(condition, row):
    left, right = (row[side.alias][side.name] for side in (condition.left, condition.right))
    return left is not None and right is not None and OPS[condition.op](left, right)


def start(row):
    return int(row["window_start"].timestamp() * 1_000_000)


def found(table, spec):
    rows = [(start(row), *(row[f"{alias}_seq"] for alias, _ in spec.streams)) for row in table.to_pylist()]
    assert len(rows) == len(set(rows))
    return set(rows)


SOME_ROWS = "r.k > 0 and s.note != 'n1' and s.v + s.k > 2"
CASES = [
    query(),
    query(conditions="[r.v > s.v, r.k = s.k]", window=SLIDING, select="select: [r.note, s.v, r.v - s.v as gap]"),
    query("{r: a, s: a}", "[r.event_ts < s.event_ts, r.v > s.v]", slack=", slack: 3 s"),
    query("{r: a, s: b, l: a}", "[r.v > s.v, s.note <= l.note, r.k = s.k, s.k = l.k]"),
    query("{r: a, s: a}", "[r.event_ts < s.event_ts, r.v > s.v]", window=SLIDING, slack=PLAIN, recall=0.8),
    query(
        "{r: a, s: b, l: a}", "[r.v > s.v, r.k = s.k, s.k <= l.k]", window=SLIDING, recall=0.7, strategy="cfs" + PLAIN
    ),
    query(
        "{r: a, s: a}",
        "[r.v > s.v]",
        select="where: r.k > 0 and s.note != 'n1' and s.v + s.k > 2",
        slack=PLAIN,
        recall=0.8,
    ),
]


@pytest.mark.parametrize("spec", CASES)
def test_rows_on_time_and_exact_after_repair(lake, tmp_path, spec):
    table = events.disordered(4, rows=160)
    load(lake, table, tmp_path)
    run(lake, spec, rows_per_batch=100, flush=True)
    truth = expected(table, spec)
    first = brute(truth.on_time, spec)
    assert found(result_views.view(lake, spec, "on_time"), spec) == first
    assert set(result_views.view(lake, spec, "late")["seq"].to_pylist()) == set(truth.late)
    repair(lake, spec, flush=True)
    final = brute(truth.final, spec)
    assert found(result_views.results(lake, spec), spec) == final and len(first) < len(final)
    ledger = books.ledger(lake, spec).to_pylist()
    assert sum(r["expected"] for r in ledger) == len(final) and sum(r["on_time"] for r in ledger) == len(first)


@pytest.mark.parametrize("emit", ["count", "ranges"])
def test_revisions_do_not_tell_how_often_repair_was_called(tmp_path, spark, emit):
    """Of four late rows the first two make no pair."""
    rows = [("a", 1, 1), ("b", 2, 5), ("a", 100, 0), ("b", 100, 0), ("a", 3, 2), ("a", 6, 2), ("a", 3, 9), ("a", 6, 9)]
    times = pa.array([1_700_000_000_000_000 + at * 1_000_000 for _, at, _ in rows], pa.int64())
    table = pa.table({"stream": [each[0] for each in rows], "event_ts": times, "v": [each[2] for each in rows]})
    spec = parse_query(
        "name: q\nkind: theta_join\nstreams: {r: a, s: b}\nwindow: 10 s\nconditions: [r.v > s.v]\n"
        f"emit: {emit}\nquality: {{period: 1 h}}\nstrategy: {{name: fast_theta_join, gamma: 1 s}}\n"
    )
    tables = whole_and_cut(tmp_path, table, spec, (3,), stop=5)
    expected, on_time = (sum(tables["ledger"][name].to_pylist()) for name in ("expected", "on_time"))
    assert (expected, on_time) == ((2, 0) if emit == "count" else (1, 0))  # matches; windows that have an answer


COUNTED = [
    query(emit="count", conditions="[r.v > s.v, r.k <= s.k]", window=SLIDING, gamma="1 ms"),
    query("{r: a, s: a}", "[r.event_ts < s.event_ts, r.k = s.k]", emit="count", gamma="100 ms"),
    query("{r: a, s: b, t: a}", "[r.v > s.v, r.k <= s.k, s.k < t.k]", emit="count", window=SLIDING, gamma="100 ms"),
    query(emit="count", strategy="cfs", gamma="100 ms"),
]


@pytest.mark.parametrize("spec", COUNTED)
def test_counts_after_each_of_many_repair_batches(tmp_path, spark, monkeypatch, spec):
    """Each batch's answer is what its rows and all before it give, counted alone."""
    table = events.disordered(6, rows=400)
    lakes = [Lake(tmp_path / name) for name in ("grown", "alone")]
    load(lakes[0], table, tmp_path)
    run(lakes[0], spec, flush=True)
    shutil.copytree(lakes[0].uri, lakes[1].uri)
    assert repair(lakes[0], spec, flush=True).batches > 10
    monkeypatch.setattr(windows, "GROWS", 1 << 40)
    repair(lakes[1], spec, flush=True)
    first, second = (result_views.view(lake, spec, "corrections") for lake in lakes)
    assert first.equals(second) and first["revision"].to_numpy().max() >= 3
    truth, last = (
        Counter(row[0] for row in brute(expected(table, spec).final, spec)),
        result_views.results(lakes[0], spec),
    )
    assert {start(row): row["matches"] for row in last.to_pylist() if row["matches"]} == truth


def test_history_says_what_a_constant_wait_would_have_given(lake, tmp_path, spark):
    slack_s, table = 2, events.disordered(6, rows=160)
    spec = query(emit="count", conditions="[r.v > s.v, r.k <= s.k]", window=SLIDING, slack=f", slack: {slack_s} s")
    load(lake, table, tmp_path)
    run(lake, spec, flush=True)
    repair(lake, spec, flush=True)
    stage = windowed_stage(spec, spark, lake)
    (seen,) = stage.observation.history(table.num_rows, whole=True)
    ((held, wait_us),) = stage.observation.costs(table.num_rows, [seen], spec.period_us, [slack_s * 1_000_000])
    ledger = books.ledger(lake, spec).to_pandas()
    assert held == pytest.approx(rows_held_mean(ledger)), "explain and the ledger have one definition"
    assert wait_us == pytest.approx(wait_mean_us(ledger), rel=0.1), "but for what is weighed by late results"
    on_time = {each.window: each.total - each.lost(slack_s * 1_000_000) for each in seen}
    for name, numbers in (("on_time", on_time), ("results", {each.window: each.total for each in seen})):
        rows = result_views.view(lake, spec, name).to_pylist()
        counted = {start(row) // spec.window.slide_us: row["matches"] for row in rows}
        ended = {window: count for window, count in counted.items() if window <= max(numbers)}  # the others: not yet
        assert +Counter(ended) == +Counter(numbers) and len(counted) - len(ended) < 3, name


@pytest.mark.parametrize(
    ("emit", "recall", "where"),
    [("count", 0.8, ""), ("ranges", None, ""), ("ranges", None, "where: r.v > 3 and s.k < 3")],
)
def test_count_and_ranges_with_any_cut(tmp_path, spark, emit, recall, where):
    conditions = "[r.v > s.v, r.k <= s.k]"
    table, spec = events.disordered(6, rows=160), query(emit=emit, conditions=conditions, recall=recall, select=where)
    tables = whole_and_cut(tmp_path, table, spec, (55,), stop=100)
    final = brute(expected(table, spec).final, spec)
    wanted = {}
    for row in final:
        wanted[row[0]] = wanted.get(row[0], 0) + 1
    results = tables["results"]
    if emit == "count":
        assert {start(r): r["matches"] for r in results.to_pylist() if r["matches"]} == wanted
        return
    assert sorted(expanded(results)) == sorted(final)


def expanded(results) -> list[tuple]:
    """Window and both `seq` of every pair that ranges stand for, as often as they do."""
    found = []
    for each in sorted({start(r) for r in results.to_pylist()}):
        mine = results.filter(pa.array([start(r) == each for r in results.to_pylist()]))
        pairs = expand(mine, ("r", "s"))
        found += [(each, *pair) for pair in zip(pairs["r"].tolist(), pairs["s"].tolist(), strict=True)]
    return found


def test_ranges_that_a_flush_answered_and_the_next_arrival_corrects(lake, tmp_path):
    """Both answers are published at the same arrival; the correction alone stands in `results`."""
    times = [1_700_000_000_000_000 + i for i in range(3)]
    table = pa.table({"stream": ["a", "b", "b"], "event_ts": times, "seq": range(3), "v": [5, 3, 2]})
    spec = query(emit="ranges")
    for rows in (table.slice(0, 2), table.slice(2)):
        load(lake, rows, tmp_path)
        run(lake, spec, flush=True)
    repair(lake, spec, flush=True)
    for area in ("on_time", "corrections"):
        assert set(result_views.view(lake, spec, area)["published_seq"].to_pylist()) == {2}
    assert sorted(expanded(result_views.results(lake, spec))) == [(times[0], 0, 1), (times[0], 0, 2)]
    assert not [each for each in check(lake, spec).failures if "twice" in each]


def test_all_methods_give_the_same_rows(lake, tmp_path):
    table = events.disordered(8, rows=120)
    v = [float("nan") if i % 9 == 0 else x for i, x in enumerate(table["v"].to_pylist())]
    load(lake, table.set_column(table.schema.get_field_index("v"), "v", pa.array(v)), tmp_path)
    kept = {}
    for strategy in ("fast_theta_join", "cfs", "one_bucket", "cross_product", "spark_sql"):
        where = "where: s.note is not null and r.k + 1 > 1"
        spec = query(strategy=strategy, conditions="[r.k <= s.v, r.k = s.k]", select=where)
        object.__setattr__(spec, "name", f"by_{strategy}")
        run(lake, spec, flush=True)
        kept[strategy] = found(result_views.view(lake, spec, "on_time"), spec)
    assert len(kept["fast_theta_join"]) > 20
    for strategy, rows in kept.items():
        assert rows == kept["fast_theta_join"], strategy


@pytest.mark.parametrize("kind", ["theta_join", "join"])
@pytest.mark.parametrize("alias", ["window", "wait", "period"])
def test_a_column_that_would_have_the_name_of_a_fixed_one(lake, tmp_path, kind, alias):
    """Where no `select` names them, aliases and columns of streams make up the results' names."""
    table = events.disordered(8, rows=20)
    column = {"window": "start", "wait": "us", "period": "start"}[alias]
    load(lake, table.append_column(column, table["v"]), tmp_path)
    text = f"name: pairs\nkind: {kind}\nstreams: {{{alias}: a, s: b}}\nwindow: 5 s\n"
    if kind == "theta_join":
        text += f"conditions: [{alias}.v < s.v]\n"
    else:
        text += f"where: {alias}.v < s.v\nquality: {{recall: 0.9, period: 1 min}}\n"
    if (kind, alias) == ("join", "window"):
        assert run(lake, parse_query(text), flush=True).on_time
        return
    with pytest.raises(SpecError, match=f"{alias}_{column}.*two result columns"):
        run(lake, parse_query(text), flush=True)


@pytest.mark.parametrize("condition", ["r.whole < s.real", "r.whole = s.real", "s.real <= r.whole"])
def test_whole_numbers_beside_doubles_are_compared_as_sql_does(lake, tmp_path, condition):
    """Beyond 2^53, where doubles cannot tell them apart: by all strategies, and as in a join's condition."""
    top = 2**53
    table = pa.table(
        {
            "stream": ["a", "b"] * 12,
            "event_ts": pa.array(range(24), pa.int64()),
            "whole": pa.array([top + i % 7 - 3 for i in range(24)], pa.int64()),
            "real": [float(top + i % 5 - 2) for i in range(24)],
        }
    )
    load(lake, table, tmp_path)
    rows = table.to_pylist()
    left, op, right = condition.split()
    values = {"r": lambda x, y: float(x["whole"]), "s": lambda x, y: y["real"]}
    want = {
        (i, j)
        for i, x in enumerate(rows)
        for j, y in enumerate(rows)
        if (x["stream"], y["stream"]) == ("a", "b") and OPS[op](values[left[0]](x, y), values[right[0]](x, y))
    }
    for strategy in ("fast_theta_join", "cfs", "one_bucket", "spark_sql", "cross_product"):
        spec = replace(query(conditions=f"[{condition}]", strategy=strategy), name=strategy)
        run(lake, spec, flush=True)
        result = result_views.results(lake, spec)
        assert set(zip(*(result[f"{alias}_seq"].to_pylist() for alias in "rs"), strict=True)) == want, strategy
    spec = parse_query(
        f"name: joined\nkind: join\nstreams: {{r: a, s: b}}\nwindow: 5 s\nwhere: {condition}\n"
        "quality: {recall: 0.9, period: 10 s}\nstrategy: exact\n"
    )
    run(lake, spec, flush=True)
    result = result_views.results(lake, spec)
    assert set(zip(*(result[f"{alias}_seq"].to_pylist() for alias in "rs"), strict=True)) == want
