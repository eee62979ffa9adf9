"""`run` recalls what late rows changed while the period is open.

Results that only grow: every period closes with its target reached. Answers that are replaced: each that moved.
"""

import itertools
import math
import shutil
import signal
import statistics
from functools import partial

import pyarrow.compute as pc
import pytest
from latecomer.lake.lake import Lake
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.clauses import ENVELOPE
from latecomer.specs.loading import load_query, parse_query

from tests.support import events, in_gateway
from tests.support.lakes import exported, load, same, whole_and_cut
from tests.support.revisions import by_definition

TARGET = 0.9
QUERIES = {
    "rows": "kind: theta_join\nstreams: {r: a, s: b}\nwindow: {size: 4 s, slide: 2 s}\n"
    "conditions: [r.v > s.v, r.k = s.k]\n",
    "count": "kind: theta_join\nstreams: {r: a, s: b}\nwindow: 4 s\nconditions: [r.v > s.v]\nemit: count\n",
    "membership": "kind: membership\nstreams: {x: a, y: b}\nelement: k\nwindow: {size: 4 s, slide: 2 s}\n",
    "own windows": "kind: membership\nstreams: {x: a, y: b}\nelement: k\n"
    "window: {x: {size: 4 s, slide: 4 s}, y: {size: 6 s, slide: 3 s}}\n",
}
ERROR = 0.1
REPLACED = {
    "aggregate": "kind: aggregate\nstreams: {s: a}\ngroup_by: [k]\nwindow: {size: 4 s, slide: 2 s}\n"
    "select: {n: count(), total: sum(v), middle: median(v)}\n"
    f"quality: {{error: {ERROR}, probability: 0.9, period: 10 s}}\nstrategy: {{name: k_slack, slack: 500 ms, ",
    "topk": "kind: topk\nstreams: {s: a}\ngroup_by: [k]\nwindow: {size: 4 s, slide: 2 s}\nscore: v\nk: 2\n"
    "quality: {hit_rate: 0.9, period: 10 s}\nstrategy: {name: none, ",
}


def text(kind, strategy="slack: 500 ms, gamma: 3 s", period="10 s"):
    if kind in REPLACED:
        return f"name: q\n{REPLACED[kind]}gamma: 3 s, revise: true}}\n"
    return f"name: q\n{QUERIES[kind]}quality: {{recall: {TARGET}, period: {period}}}\nstrategy: {{{strategy}}}\n"


@pytest.fixture(scope="module")
def truth(tmp_path_factory, spark):
    """Per kind: the query file, a lake with the events, and the tables of a run that nobody killed."""
    prepared = {}
    folder = tmp_path_factory.mktemp("truth")
    raw = folder / "raw"
    load(Lake(raw), events.disordered(5, rows=160, keys=9), folder)
    for kind in ("count", "membership", "aggregate"):
        path, done = folder / f"{kind}.yaml", Lake(folder / f"{kind}-done")
        path.write_text(text(kind))
        shutil.copytree(raw, done.uri)
        run(done, load_query(path), rows_per_batch=80, flush=True)
        repair(done, load_query(path), flush=True)
        prepared[kind] = path, raw, exported(done, load_query(path))
        assert "recalled" in prepared[kind][2]["on_time"]["provenance"].to_pylist()
    return prepared


@pytest.mark.parametrize("kind", QUERIES)
def test_any_cut_recalls_the_same_and_periods_close_at_their_target(spark, tmp_path, kind):
    table = events.disordered(5, rows=240, keys=9)
    spec = parse_query(text(kind), "test.yaml")
    tables = whole_and_cut(tmp_path, table, spec, (60, 41), 170)
    rows = tables["ledger"].to_pandas()
    closed = rows[rows["achieved_at_close"].notna()]
    assert len(closed) > 3 and (closed["achieved_at_close"] >= TARGET).all(), closed
    assert rows["recalled"].sum() > 0 and rows["missed"].sum() > 0, "the data has rows that come too late for a recall"
    assert (rows["expected"] == rows["on_time"] + rows["recalled"] + rows["repaired"]).all()
    assert (rows["achieved_final"] == 1).all()

    lake, plain = Lake(tmp_path / "plain"), parse_query(text(kind, "slack: 500 ms, gamma: 3 s, guarantee: false"), "q")
    load(lake, table, tmp_path)
    run(lake, plain, flush=True)
    repair(lake, plain, flush=True)
    without = exported(lake, plain)
    assert not {"recalled", "achieved_at_close"} & {*without["ledger"].column_names}
    assert (without["ledger"].to_pandas()["achieved_on_time"] < TARGET).any(), "the target is not met without recall"
    payload = [name for name in without["results"].column_names if name not in ENVELOPE]
    assert tables["results"].select(payload).equals(without["results"].select(payload))
    on_time = tables["on_time"]
    first = on_time.filter(pc.equal(on_time["provenance"], "on_time"))
    assert first.equals(without["on_time"])


@pytest.mark.parametrize(
    ("kind", "point"),
    [*itertools.product(["count", "membership"], ["run:late@2", "run:recalled", "run:recalled@2"]),
     ("aggregate", "run:recalled@2")],
)  # fmt: skip
def test_killed_between_commits_and_resumed(truth, spark, tmp_path, kind, point):
    path, raw, expected = truth[kind]
    lake = Lake(tmp_path / "lake")
    shutil.copytree(raw, lake.uri)
    command = ["run", str(path), "--rows-per-batch", "80", "--lake", lake.uri, "--flush"]
    killed = in_gateway.call(spark, *command, crash_at=point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-800:]
    spec = load_query(path)
    run(lake, spec, rows_per_batch=80, flush=True)
    repair(lake, spec, flush=True)
    same(expected, exported(lake, spec), point)


@pytest.mark.parametrize("kind", ["count", "membership", "aggregate"])
def test_a_flush_of_repair_before_a_period_closes_publishes_in_time(spark, tmp_path, kind):
    """`run` goes on from what was repaired: no result comes twice, and revisions count up."""
    table, spec, lake = (
        events.disordered(5, rows=240, keys=9),
        parse_query(text(kind), "test.yaml"),
        Lake(tmp_path / "l"),
    )
    load(lake, table, tmp_path)
    run(lake, spec, until_seq=120)
    assert repair(lake, spec).pending > 0
    assert repair(lake, spec, flush=True).pending == 0
    run(lake, spec, rows_per_batch=70, flush=True)
    repair(lake, spec, flush=True)
    tables = exported(lake, spec)
    rows = tables["ledger"].to_pandas()
    least = 0 if kind in REPLACED else TARGET
    assert (rows["achieved_at_close"].dropna() >= least).all() and (rows["achieved_final"] == 1).all()
    assert (
        rows["recalled"].sum() >= tables["on_time"]["provenance"].to_pylist().count("recalled") > 0 or kind == "count"
    )
    other = Lake(tmp_path / "other")
    load(other, table, tmp_path)
    run(other, spec, flush=True)
    repair(other, spec, flush=True)
    payload = [name for name in tables["results"].column_names if name not in ENVELOPE]
    assert tables["results"].select(payload).equals(exported(other, spec)["results"].select(payload))


def answers(kind, rows):
    """Return the answers of the query file by group, over the rows of a window."""
    groups = {}
    for row in rows:
        groups.setdefault(row["k"], []).append(row)
    if kind == "topk":
        best = lambda row: (-row["v"], row["event_ts"], row["seq"])  # noqa: E731
        return {group: [row["seq"] for row in sorted(some, key=best)[:2]] for group, some in groups.items()}
    values = {group: [row["v"] for row in some] for group, some in groups.items()}
    return {group: (len(some), math.fsum(some), statistics.median(some), some) for group, some in values.items()}


def moved(kind, known, new):
    """Return whether the error of an answer is not below the query's, or a row has entered the top k."""
    if known is None or kind == "topk":
        return known is None or bool(set(new) - set(known))
    relative = [abs(old - right) / abs(right) for old, right in zip(known[:2], new[:2], strict=True)]
    below, upto = (sum(map(is_below, new[3])) / new[0] for is_below in (known[2].__gt__, known[2].__ge__))
    return max(*relative, below - 0.5 if known[2] != new[2] else 0, 0.5 - upto if known[2] != new[2] else 0) >= ERROR


@pytest.mark.parametrize("kind", REPLACED)
def test_answers_that_late_rows_moved_are_published_again_in_any_cut(spark, tmp_path, kind):
    table, spec = events.disordered(5, rows=160, keys=3), parse_query(text(kind), "test.yaml")
    tables = whole_and_cut(tmp_path, table, spec, (41,), 110)
    rows = [row for row in table.to_pylist() if row["stream"] == "a"]
    slack_us = spec.strategy.slack_us if kind == "aggregate" else 0
    revisions, _ = by_definition(
        [(row["event_ts"], row) for row in rows], spec.window, spec.period_us, slack_us,
        partial(answers, kind), partial(moved, kind), flush=True,
    )  # fmt: skip
    seqs = [*(row["seq"] for row in rows), table.num_rows]
    expected = [(seqs[at], window, group, answer) for at, window, group, answer in revisions]
    by_run = tables["on_time"].to_pandas()
    by_run["window"] = by_run["window_start"].astype("datetime64[us, UTC]").astype("int64") // spec.window.slide_us
    again = by_run[by_run["provenance"] == "recalled"].groupby(["published_seq", "window", "k"])
    assert len(again) == len(expected) > 10
    for *key, answer in expected:
        published = again.get_group(tuple(key))
        if kind == "topk":
            assert published["seq"].tolist() == answer
        else:
            assert published[["n", "total", "middle"]].values.tolist() == [pytest.approx(answer[:3])]
    newest = by_run.groupby(["window", "k"])["revision"]
    assert (newest.max() + 1 == newest.nunique()).all() and newest.max().max() > 1

    ledger = tables["ledger"].to_pandas()
    assert (ledger["expected"] == ledger["on_time"] + ledger["recalled"] + ledger["repaired"]).all()
    assert (ledger["achieved_at_close"] >= ledger["achieved_on_time"]).all() and (ledger["achieved_final"] == 1).all()
    assert ledger["achieved_at_close"].max() == 1 and ledger["achieved_at_close"].min() < 1, "some rows came too late"
    every = answers_of_all(kind, spec, rows)
    results = tables["results"].to_pandas()
    results["window"] = results["window_start"].astype("datetime64[us, UTC]").astype("int64") // spec.window.slide_us
    column = "seq" if kind == "topk" else "n"
    last = results.groupby(["window", "k"])[column].apply(list).to_dict()
    assert last == every


def answers_of_all(kind, spec, rows):
    """Return the final answers by window and group: the members of a top-k, or the number of rows."""
    windows = {}
    for row in rows:
        for window in range(spec.window.first_of(row["event_ts"]), spec.window.last_of(row["event_ts"]) + 1):
            windows.setdefault(window, []).append(row)
    return {
        (window, group): answer if kind == "topk" else [answer[0]]
        for window, some in windows.items()
        for group, answer in answers(kind, some).items()
    }
