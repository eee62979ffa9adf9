"""Top-k on Spark: first answers equal the tuple-at-a-time reference, answers after repair a sort of all rows.

Any cut into micro-batches gives the same tables.
"""

from datetime import date

import numpy as np
import pyarrow as pa
import pytest
from latecomer.core.windows import group_sampling
from latecomer.core.windows.interfaces import Observed
from latecomer.lake import result_views
from latecomer.lake.delta import Table
from latecomer.ledger import ledger as books
from latecomer.quality.checks import check
from latecomer.reference import windows as reference
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import parse_query
from latecomer.strategies.windows import slack_policies

from tests.support import events
from tests.support.lakes import load, whole_and_cut

QUERY = """
name: best
kind: topk
streams: {{s: a}}
{group}
score: v
k: {k}
window: {{size: 4 s, slide: 1 s}}
select: [note, k + 1 as more]
quality: {{hit_rate: 0.9, period: 10 s}}
strategy: {{name: {strategy}{more}}}
"""


def query(strategy="adaptive_wait", k=3, group="group_by: [k]", more=""):
    return parse_query(QUERY.format(strategy=strategy, k=k, group=group, more=more), "test.yaml")


def data(seed, rows=300, keys=2):
    table = events.disordered(seed, rows, keys=keys)
    value = [
        None if i % 11 == 0 else float("nan") if i % 13 == 0 else round(v) for i, v in enumerate(table["v"].to_pylist())
    ]
    return table.set_column(4, "v", pa.array([None if v is None else float(v) for v in value]))


def rows_of(table):
    return [
        reference.Arrival(r["seq"], 0, r["event_ts"], r, r["v"] is not None and r["v"] == r["v"])
        for r in table.to_pylist()
        if r["stream"] == "a"
    ]


def top(rows, spec):
    """Per group, the k best: (seq, rank)."""
    groups = {}
    for a in rows:
        groups.setdefault(a.row["k"] if spec.group_by else None, []).append(a)
    best = lambda a: (-a.row["v"], a.ts, a.seq)  # noqa: E731
    return {g: sorted(own, key=best)[: spec.k] for g, own in groups.items()}


def expected(table, spec):
    grid = spec.window
    g = grid.granularity_us

    def observe(window, rows, cut):
        time = {a.seq: t for a, t in rows}
        waits = [time[a.seq] - grid.end(window) for own in top([a for a, _ in rows], spec).values() for a in own]
        levels, counts = np.unique(np.array([(w // g + 1) * g for w in waits if w >= 0], np.int64), return_counts=True)
        return Observed(window, levels, counts.astype(float), float(len(waits)))

    return reference.run(
        rows_of(table), size=grid.size_us, slide=grid.slide_us, streams=1,
        policy=slack_policies(spec)[0], observe=observe,
        end=table.num_rows,
    )  # fmt: skip


def answers(windows, spec):
    return {
        (group, number * spec.window.slide_us): [a.seq for a in own]
        for number, rows in windows.items()
        for group, own in top(rows, spec).items()
    }


def found(table, spec):
    out = {}
    for row in sorted(table.to_pylist(), key=lambda r: r["rank"]):
        key = (row["k"] if spec.group_by else None, int(row["window_start"].timestamp() * 1_000_000))
        out.setdefault(key, []).append(row["seq"])
        assert row["rank"] == len(out[key]) and row["more"] is not None
    return out


@pytest.mark.parametrize(
    ("strategy", "k", "group", "more"),
    [("adaptive_wait", 3, "group_by: [k]", ", initial_wait: 200 ms, windows: 3"), ("min_topk", 40, "", "")],
)
def test_equals_the_reference_and_becomes_exact(lake, tmp_path, strategy, k, group, more):
    table, spec = data(3), query(strategy, k, group, more)
    load(lake, table, tmp_path)
    run(lake, spec, rows_per_batch=140, flush=True)
    truth = expected(table, spec)
    first = answers(truth.on_time, spec)
    assert found(result_views.view(lake, spec, "on_time"), spec) == first
    assert set(result_views.view(lake, spec, "late")["seq"].to_pylist()) == set(truth.late)
    repair(lake, spec, flush=True)
    final = answers(truth.final, spec)
    assert found(result_views.results(lake, spec), spec) == final and final != first
    ledger = books.ledger(lake, spec).to_pylist()
    hits = sum(len(set(own) & set(first.get(key, []))) for key, own in final.items())
    assert sum(r["on_time"] for r in ledger) == hits and sum(r["expected"] for r in ledger) == sum(
        map(len, final.values())
    )


@pytest.mark.parametrize(("k", "here"), [(3, True), (10_000, False)])
def test_few_late_rows_whose_corrections_may_be_many_are_answered_once(lake, tmp_path, monkeypatch, k, here):
    """Not first for this process, and then, as they are too many, again for Spark to write."""
    table, spec, brought = data(3), query("min_topk", k, ""), list[str]()
    load(lake, table, tmp_path)
    run(lake, spec, flush=True)
    append = Table.append
    monkeypatch.setattr(Table, "append", lambda table, *more: brought.append(table.area) or append(table, *more))
    repair(lake, spec, flush=True)
    assert ("corrections" in brought) == here
    assert found(result_views.results(lake, spec), spec) == answers(expected(table, spec).final, spec)


def test_a_column_named_as_a_fixed_one_is_refused_not_lost(lake, tmp_path):
    load(lake, data(3, 40).append_column("error", pa.array(["none"] * 40)), tmp_path)
    text = "name: q\nkind: topk\nstreams: {s: a}\nscore: v\nk: 2\nwindow: 4 s\nstrategy: none\n"
    with pytest.raises(SpecError, match=r"error.*select"):
        run(lake, parse_query(text), flush=True)
    spec = parse_query(text + "select: [error as problem]\n")
    run(lake, spec, flush=True)
    assert set(result_views.results(lake, spec)["problem"].to_pylist()) == {"none"}


@pytest.mark.parametrize(
    ("name", "score", "refused"), [("rank", "v", True), ("Score", "v", True), ("Score", "Score", False)]
)
def test_a_column_named_as_rank_or_score_is_not_left_out_unsaid(lake, tmp_path, name, score, refused):
    """Unless it is what ranks: then it stands there as `score`."""
    table = data(3, 40)
    load(lake, table.append_column(name, table["v"]), tmp_path)
    text = f"name: q\nkind: topk\nstreams: {{s: a}}\nscore: {score}\nk: 2\nwindow: 4 s\nstrategy: none\n"
    if refused:
        with pytest.raises(SpecError, match=rf"{name}.*select.*under a new name"):
            run(lake, parse_query(text), flush=True)
        text += f"select: [{name} as place]\n"
    run(lake, parse_query(text), flush=True)
    rows = result_views.results(lake, parse_query(text))
    assert (
        rows.num_rows and (rows["place"].to_pylist() if refused else rows["v"].to_pylist()) == rows["score"].to_pylist()
    )


def test_a_date_column_is_compared_with_days(lake, tmp_path):
    table = data(3, 60)
    days = [None if row % 7 == 0 else date(2023, 11, 10 + row % 10) for row in range(60)]
    load(lake, table.append_column("day", pa.array(days, pa.date32())), tmp_path)
    text = "name: q\nkind: topk\nstreams: {s: a}\nscore: v\nk: 60\nwindow: 400 s\nstrategy: none\n"
    text += "select: [day, seq as n]\nwhere: "
    spec = parse_query(text + "day >= '2023-11-14' and not day in ('2023-11-15', '2023-11-18')\n")
    run(lake, spec, flush=True)
    repair(lake, spec, flush=True)
    of_a = [
        s == "a" and v is not None for s, v in zip(table["stream"].to_pylist(), table["v"].to_pylist(), strict=True)
    ]
    wanted = {n for n, day in enumerate(days) if day and of_a[n] and day.day in (14, 16, 17, 19)}
    assert set(result_views.results(lake, spec)["n"].to_pylist()) == wanted and len(wanted) > 5
    assert check(lake, spec, audit=5).success


def test_any_cut_gives_the_same_tables(tmp_path, spark):
    table, spec = data(5), query("calibrated")
    tables = whole_and_cut(tmp_path, table, spec, (90,), stop=170)
    assert found(tables["results"], spec) == answers(expected(table, query("none")).final, spec)


def test_any_cut_gives_the_same_tables_where_some_groups_are_looked_at(tmp_path, spark, monkeypatch):
    monkeypatch.setattr(group_sampling, "SAMPLED_GROUPS", 2)
    monkeypatch.setattr(group_sampling, "CROWDED", 1)
    monkeypatch.setattr(group_sampling, "COUNTED_BITS", 1)
    table, spec = data(5, keys=60), query("calibrated", k=2)
    tables = whole_and_cut(tmp_path, table, spec, (90,), stop=170)
    assert found(tables["results"], spec) == answers(expected(table, query("none", k=2)).final, spec)
