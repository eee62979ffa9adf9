"""Results that only grow: `run` recalls what late rows added, so that every period closes with its target reached."""

import shutil
import signal

import pyarrow.compute as pc
import pytest
from latecomer.lake.lake import Lake
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.clauses import ENVELOPE
from latecomer.specs.loading import load_query, parse_query

from tests.support import events, in_gateway
from tests.support.lakes import exported, load, same, whole_and_cut

TARGET = 0.9
QUERIES = {
    "rows": "kind: theta_join\nstreams: {r: a, s: b}\nwindow: {size: 4 s, slide: 2 s}\n"
    "conditions: [r.v > s.v, r.k = s.k]\n",
    "count": "kind: theta_join\nstreams: {r: a, s: b}\nwindow: 4 s\nconditions: [r.v > s.v]\nemit: count\n",
    "membership": "kind: membership\nstreams: {x: a, y: b}\nelement: k\nwindow: {size: 4 s, slide: 2 s}\n",
    "own windows": "kind: membership\nstreams: {x: a, y: b}\nelement: k\n"
    "window: {x: {size: 4 s, slide: 4 s}, y: {size: 6 s, slide: 3 s}}\n",
}


def text(kind, strategy="slack: 500 ms, gamma: 3 s", period="10 s"):
    return f"name: q\n{QUERIES[kind]}quality: {{recall: {TARGET}, period: {period}}}\nstrategy: {{{strategy}}}\n"


@pytest.fixture(scope="module")
def truth(tmp_path_factory, spark):
    """Per kind: the query file, a lake with the events, and the tables of a run that nobody killed."""
    prepared = {}
    folder = tmp_path_factory.mktemp("truth")
    raw = folder / "raw"
    load(Lake(raw), events.disordered(5, rows=160, keys=9), folder)
    for kind in ("count", "membership"):
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


@pytest.mark.parametrize("kind", ["count", "membership"])
@pytest.mark.parametrize("point", ["run:late@2", "run:recalled", "run:recalled@2"])
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


@pytest.mark.parametrize("kind", ["count", "membership"])
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
    assert (rows["achieved_at_close"].dropna() >= TARGET).all() and (rows["achieved_final"] == 1).all()
    assert (
        rows["recalled"].sum() >= tables["on_time"]["provenance"].to_pylist().count("recalled") > 0 or kind == "count"
    )
    other = Lake(tmp_path / "other")
    load(other, table, tmp_path)
    run(other, spec, flush=True)
    repair(other, spec, flush=True)
    payload = [name for name in tables["results"].column_names if name not in ENVELOPE]
    assert tables["results"].select(payload).equals(exported(other, spec)["results"].select(payload))
