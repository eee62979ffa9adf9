"""Micro-batches planned for many rows, for few, and for few with many results give the same tables.

Only the place of the work differs: tasks or the driver, with generated code or without.
"""

import pytest
from latecomer.lake.lake import Lake
from latecomer.spark.engine import tables, tuning
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.spark.topk import windows
from latecomer.specs.loading import parse_query

from tests.support import events
from tests.support.lakes import exported, load, same

JOIN = "kind: join\nstreams: {l: a, r: b}\nkeys: [k]\nwindow: 2 s\nwhere: l.v <= r.v + 6\n"
WINDOWED = "window: {size: 4 s, slide: 2 s}\n"
QUERIES = {
    "qjoin": JOIN + "quality: {recall: 0.6, period: 10 s}\nstrategy: {name: qjoin, gamma: 3 s}",
    "paper": JOIN + "quality: {recall: 0.9, period: 10 s}\nstrategy: {name: qjoin, estimator: paper}",
    "mp_k_slack": JOIN + "quality: {recall: 0.9, period: 10 s}\nstrategy: mp_k_slack",
    "aggregate": "kind: aggregate\nstreams: {s: a}\ngroup_by: [note]\nwhere: k > 0\n" + WINDOWED
    + "select: {n: count(), total: sum(v), middle: median(v)}\nquality: {error: 0.05, probability: 0.9, period: 10 s}",
    "topk": "kind: topk\nstreams: {s: a}\ngroup_by: [note]\nscore: v\nk: 2\n" + WINDOWED
    + "quality: {hit_rate: 0.9, period: 10 s}",
    "topk_of_all": "kind: topk\nstreams: {s: a}\nscore: v\nwhere: k > 0\nk: 2\nwindow: {size: 20 s, slide: 5 s}\n"
    + "quality: {hit_rate: 0.9, period: 10 s}",
    "theta_join": "kind: theta_join\nstreams: {l: a, r: b}\nconditions: [l.v > r.v, l.k = r.k]\n" + WINDOWED,
    "membership": "kind: membership\nstreams: {x: a, y: b}\nelement: k\n" + WINDOWED,
}  # fmt: skip


@pytest.mark.parametrize("name", QUERIES)
def test_plans_for_few_and_many_rows_agree(tmp_path, spark, monkeypatch, name):
    table, spec = events.disordered(11, rows=220), parse_query(f"name: q\n{QUERIES[name]}\n")
    monkeypatch.setattr(windows, "SAMPLED_PER_K", 2)
    found = []
    cases = (
        (120, 200_000, 200_000),  # the first 120 few, the next few in a lake of many
        (-1, 200_000, 200_000),  # many both times
        (1_000, 0, 200_000),  # few, with many results by their bound
        (1_000, 200_000, 3),  # few, whose results turn out to be many
    )
    for small_rows, many_results, driver_local_rows in cases:
        monkeypatch.setattr(tuning, "SMALL_ROWS", small_rows)
        monkeypatch.setattr(tuning, "MANY_RESULTS", many_results)
        monkeypatch.setattr(tables, "DRIVER_LOCAL_ROWS", driver_local_rows)
        lake = Lake(tmp_path / f"lake{len(found)}")
        load(lake, table, tmp_path)
        run(lake, spec, rows_per_batch=120, flush=True)
        repair(lake, spec, flush=True)
        found.append(exported(lake, spec))
    assert found[0]["results"].num_rows and found[0]["late"].num_rows
    for other in found[1:]:
        same(found[0], other)
