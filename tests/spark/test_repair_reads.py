"""What a repair reads is what its late rows touch, also where one is a day late and another a year."""

import numpy as np
import pyarrow as pa
import pytest
from latecomer.lake import result_views
from latecomer.quality.checks import check
from latecomer.spark.engine import tables
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.loading import parse_query

from tests.support.lakes import load

HOUR = 3_600_000_000
START = 1_700_000_000_000_000 // HOUR * HOUR
ROWS = 3_000
QUERIES = {
    "join": "streams: {l: a, r: b}\nkeys: [k]\nwindow: 2 h\nquality: {recall: 0.5, period: 200 d}\n"
    "strategy: {name: k_slack, slack: 1 s}\n",
    "aggregate": "streams: {s: a}\nwindow: {size: 4 h, slide: 1 h}\nselect: {n: sum(v)}\ngroup_by: [k]\n"
    "strategy: {name: k_slack, slack: 1 s}\n"
    "quality: {error: 0.5, probability: 0.5, period: 200 d}\n",
    "topk": "streams: {s: a}\nwindow: 4 h\nscore: v\nk: 2\nstrategy: none\nquality: {hit_rate: 0.5, period: 200 d}\n",
    "theta_join": "streams: {l: a, r: b}\nwindow: 4 h\nconditions: [l.v < r.v]\nemit: count\n"
    "quality: {period: 200 d}\n",
    "membership": "streams: {l: a, r: b}\nwindow: {l: 4 h, r: {size: 6 h, slide: 2 h}}\nelement: k\n"
    "quality: {period: 200 d}\n",
}


@pytest.mark.parametrize(
    ("kind", "planned"), [*((kind, "few") for kind in QUERIES), ("join", "many"), ("aggregate", "many")]
)
def test_rows_between_far_apart_late_ones_are_not_read(lake, tmp_path, monkeypatch, kind, planned):
    if planned == "many":
        monkeypatch.setattr(tables, "DRIVER_LOCAL_ROWS", 0)
    rng = np.random.default_rng(3)
    times = START + np.arange(ROWS) * HOUR
    times = np.append(
        times, [START + 40 * HOUR + 7, START + (ROWS - 40) * HOUR + 7, times[-1] + HOUR, times[-1] + HOUR]
    )
    stream = np.where(np.arange(len(times)) % 2, "a", "b")
    stream[-4:] = ["a", "a", "a", "b"]
    keys, values = rng.integers(0, 3, len(times)), rng.integers(0, 9, len(times)).astype(float)
    load(lake, pa.table({"stream": stream, "event_ts": times, "k": keys, "v": values}), tmp_path)
    spec = parse_query(f"name: q\nkind: {kind}\n{QUERIES[kind]}")
    run(lake, spec, flush=True)
    assert set(result_views.view(lake, spec, "late")["seq"].to_pylist()) == {ROWS, ROWS + 1}
    read, events = [], tables.events

    def spied(*args, **bounds):
        rows = events(*args, **bounds)
        read.append(rows.count())
        return rows

    monkeypatch.setattr(tables, "events", spied)
    repair(lake, spec, flush=True)
    assert 0 < sum(read) < 80, read
    monkeypatch.undo()
    assert check(lake, spec, audit=2).success
