"""Results that only grow: `run` recalls what late rows added, so that every period closes with its target reached."""

import shutil
import signal

import pytest
from latecomer.core.windows.recall_budget import windows_of_period
from latecomer.lake import result_views
from latecomer.lake.lake import Lake
from latecomer.ledger.ledger import ledger
from latecomer.spark.repair import repair
from latecomer.spark.run import run
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
    payload = [name for name in without["results"].column_names if name not in ("revision", "published_seq", "provenance")]
    assert tables["results"].select(payload).equals(without["results"].select(payload))
    on_time = tables["on_time"].to_pandas()
    first = without["on_time"].to_pandas()
    assert on_time[on_time["provenance"] == "on_time"].reset_index(drop=True).equals(first)
