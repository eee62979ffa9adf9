"""Arrivals that Spark's tasks follow in many small blocks: the tables of the driver's own pass, bit for bit."""

import numpy as np
import pyarrow as pa
import pytest
from latecomer.core.arrivals import Arrivals
from latecomer.core.time import NEVER
from latecomer.jobs.explain.explain import explain
from latecomer.lake.lake import Lake
from latecomer.spark.adapt import adapt
from latecomer.spark.engine import arrival_scan
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.spark.stage import StageCache
from latecomer.specs.loading import parse_query

from tests.support import events, lakes

ROWS = 400
ERROR = "quality: {error: 0.2, probability: 0.8, period: 10 s}\n"
QUERIES = {
    "guaranteed": "kind: join\nstreams: {l: a, r: b}\nkeys: [k]\nwindow: 2 s\nquality: {recall: 0.9, period: 5 s}\n",
    "by_delay": "kind: join\nstreams: {l: a, r: b}\nkeys: [k]\nwindow: 2 s\nwhere: l.v <= r.v + 20\n"
    "quality: {recall: 0.9, period: 5 s}\nstrategy: {name: qjoin, estimator: delay_aware}\n",
    "self": "kind: join\nstreams: {l: a, r: a}\nkeys: {l: k, r: k}\nwindow: 1500 ms\n"
    "quality: {recall: 0.9, period: 5 s}\nstrategy: {name: qjoin, estimator: paper}\n",
    "sums": "kind: aggregate\nstreams: {s: a}\nwindow: {size: 4 s, slide: 1 s}\ngroup_by: [k]\n"
    "select: {n: count(), total: sum(v)}\n" + ERROR,
    "shards": "kind: aggregate\nstreams: {s: a}\nwindow: 3 s\ngroup_by: [k]\nselect: {total: sum(v * 0.1)}\n"
    + ERROR
    + "strategy: {name: hpm, shards: 3}\n",
    "best": "kind: topk\nstreams: {s: a}\nscore: v\nk: 3\nwindow: {size: 4 s, slide: 2 s}\n"
    "quality: {hit_rate: 0.8, period: 10 s}\n",
    "theta": "kind: theta_join\nstreams: {r: a, s: b}\nwindow: {size: 2 s, slide: 1 s}\n"
    "conditions: [r.v < s.v, r.k = s.k]\nquality: {recall: 0.9, period: 10 s}\n",
    "reaching": "kind: membership\nstreams: {r: a, s: b}\nelement: k\n"
    "window: {r: {size: 4 s, slide: 2 s}, s: {size: 3 s, slide: 3 s}}\nquality: {recall: 0.9, period: 10 s}\n",
}


@pytest.fixture(scope="module")
def rows():
    return events.disordered(11, rows=ROWS)


@pytest.fixture
def in_tasks(spark, monkeypatch):
    """Return a function that says where the order is followed from then on; blocks are of 16 arrivals."""
    monkeypatch.setattr(arrival_scan, "BLOCK_ROWS", 16)

    def choose(place):
        spark.conf.set(arrival_scan.PLACE, place)

    yield choose
    spark.conf.unset(arrival_scan.PLACE)


def answered(lake, spec):
    """Answer in three micro-batches, repair and adapt after the second; return all tables, and what was learnt."""
    run(lake, spec, rows_per_batch=150, until_seq=299)
    repair(lake, spec)
    learnt = adapt(lake, spec)
    run(lake, spec, rows_per_batch=150, flush=True)
    repair(lake, spec, flush=True)
    return lakes.exported(lake, spec), repr(learnt)


@pytest.mark.parametrize("name", QUERIES)
def test_tasks_give_the_tables_of_the_driver(tmp_path, rows, in_tasks, name):
    spec, told, learnt, tables = parse_query(f"name: {name}\n{QUERIES[name]}"), {}, {}, {}
    for place in ("driver", "tasks"):
        in_tasks(place)
        lake = Lake(tmp_path / place)
        lakes.load(lake, rows, tmp_path)
        tables[place], learnt[place] = answered(lake, spec)
        told[place] = repr(explain(lake, spec))
    assert tables["driver"]["results"].num_rows > 10 and tables["driver"]["late"].num_rows
    lakes.same(tables["driver"], tables["tasks"], name)
    assert learnt["driver"] == learnt["tasks"]
    assert told["driver"] == told["tasks"]


def test_blocks_are_the_arrivals_in_order(spark, in_tasks, rows):
    """Values, checkpoints and what tasks reduce are of the same arrivals, whatever partition they come from."""
    columns = {"seq": [], "ts": [], "side": []}
    for place, (stream, ts) in enumerate(zip(rows["stream"].to_pylist(), rows["event_ts"].to_pylist(), strict=True)):
        columns["seq"].append(2 * place)
        columns["ts"].append(ts)
        columns["side"].append(0 if stream == "a" else 1)
    arrays = [np.array(column, np.int64) for column in columns.values()]
    frame = spark.createDataFrame(pa.table(columns)).orderBy("ts")
    cache = StageCache(spark)
    try:
        blocks = arrival_scan.TaskArrivals(frame, [NEVER, NEVER], 1, cache)
        whole = Arrivals.of(*arrays, np.zeros(len(arrays[0]), np.int32), [NEVER, NEVER])
        assert blocks.carry == whole.carry and blocks.rows == whole.rows
        assert sum(blocks.of_blocks(lambda block: block.rows)) == whole.rows
        assert max(blocks.of_blocks(lambda block: block.rows)) <= 8
        seq = np.concatenate(blocks.of_blocks(lambda block: block.seq))
        assert seq.tolist() == whole.seq.tolist()
        values = blocks.values(["t", "delay"]).orderBy("seq").toArrow()
        assert values["t"].to_pylist() == whole.stream_time_us.tolist()
        assert values["delay"].to_pylist() == whole.delay_us.tolist()
        marks = blocks.checkpoints(40)
        assert len(marks) >= ROWS // 50
        for mark in marks:
            following = np.searchsorted(whole.seq, mark.seq)
            rest = Arrivals.of(*(array[:following] for array in arrays), np.zeros(following, np.int32), [NEVER, NEVER])
            assert mark.carry == rest.carry
        none = arrival_scan.TaskArrivals(frame.where("seq < 0"), [5, 7], 1, cache)
        assert none.of_blocks(lambda block: (block.rows, block.carry)) == [(0, [5, 7])] and none.checkpoints(1) == []
    finally:
        cache.release()


@pytest.mark.parametrize(("place", "expected"), [("driver", False), ("tasks", True), ("auto", False)])
def test_the_setting_names_the_place(spark, in_tasks, place, expected):
    in_tasks(place)
    assert arrival_scan.is_for_tasks(spark, 10) is expected


def test_many_arrivals_on_many_cores_are_for_tasks(spark, monkeypatch):
    assert not arrival_scan.is_for_tasks(spark, arrival_scan.TASK_ROWS), "this machine's session has few cores"
    monkeypatch.setattr(arrival_scan, "TASK_CORES", 1)
    spark.conf.set("spark.latecomer.driverLocal", "false")
    assert arrival_scan.is_for_tasks(spark, arrival_scan.TASK_ROWS)
    assert not arrival_scan.is_for_tasks(spark, arrival_scan.TASK_ROWS - 1)
