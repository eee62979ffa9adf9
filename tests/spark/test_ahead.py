"""Deciding the next micro-batch while one is written: nothing but the time it takes depends on it."""

import threading

import pytest
from latecomer.lake import journal
from latecomer.lake.location import Lake
from latecomer.spark import run as runs
from latecomer.spark.adapt import adapt
from latecomer.spark.ahead import Ahead
from latecomer.spark.run import run
from latecomer.spark.stage import Batch
from latecomer.spark.windowed import WindowedStage
from latecomer.specs.loading import parse_query

from tests.support.events import disordered
from tests.support.lakes import exported, load, same

QUERY = (
    "name: sums\nkind: aggregate\nstreams: {s: a}\ngroup_by: [k]\nwindow: {size: 4 s, slide: 1 s}\n"
    "select: {total: sum(v), n: count()}\nquality: {error: 0.1, probability: 0.9, period: 10 s}\n"
)
MAIN, BESIDE = threading.main_thread().name, "next micro-batch"


@pytest.fixture
def decisions(monkeypatch):
    """Of each decision that was begun: thread, first arrival."""
    found, decide = [], WindowedStage.decide

    def noted(stage, batch, state):
        found.append((threading.current_thread().name, batch.seq_from))
        return decide(stage, batch, state)

    monkeypatch.setattr(WindowedStage, "decide", noted)
    return found


@pytest.fixture
def filled(tmp_path, spark):
    """A lake of 300 arrivals, by name."""

    def make(name):
        lake = Lake(tmp_path / name)
        load(lake, disordered(5, keys=3), tmp_path)
        return lake

    return make


def test_every_micro_batch_is_decided_once_and_all_but_the_first_beside_another(filled, decisions):
    lake, spec = filled("lake"), parse_query(QUERY)
    run(lake, spec, rows_per_batch=100, flush=True)
    assert decisions == [(MAIN, 0), (BESIDE, 100), (BESIDE, 200)]
    assert BESIDE not in {thread.name for thread in threading.enumerate()}


def test_what_fails_ahead_is_done_in_its_turn(filled, decisions, monkeypatch):
    spec, noted = parse_query(QUERY), WindowedStage.decide

    def failing(stage, batch, state):
        found = noted(stage, batch, state)
        if threading.current_thread().name == BESIDE:
            raise OSError("the store was away")
        return found

    monkeypatch.setattr(WindowedStage, "decide", failing)
    lake = filled("lake")
    run(lake, spec, rows_per_batch=100, flush=True)
    assert decisions == [(MAIN, 0), (BESIDE, 100), (MAIN, 100), (BESIDE, 200), (MAIN, 200)]
    other = filled("other")
    monkeypatch.setattr(Ahead, "start", lambda *_: None)
    run(other, spec, rows_per_batch=100, flush=True)
    same(exported(lake, spec), exported(other, spec))


def test_what_adapt_learns_meanwhile_holds_from_the_micro_batch_whose_plan_names_it(filled, decisions, monkeypatch):
    """Plans ahead of the one that is made do not know it yet; then the same tables as where nothing is decided ahead."""
    spec, found = parse_query(QUERY), {}
    for name, ahead in (("lake", True), ("other", False)):
        lake = filled(name)
        begun = []

        def learn(line, lake=lake, begun=begun, ahead=ahead):
            begun.append(line)
            if len(begun) == 1:
                for thread in threading.enumerate():
                    if thread.name == BESIDE:
                        thread.join()
                adapt(lake, spec)

        if not ahead:
            monkeypatch.setattr(Ahead, "start", lambda *_: None)
        decisions.clear()
        run(lake, spec, rows_per_batch=100, flush=True, progress=learn)
        beside = [(BESIDE, 100), (MAIN, 100), (BESIDE, 200)] if ahead else [(MAIN, 100), (MAIN, 200)]
        assert decisions == [(MAIN, 0), *beside]
        plans = [journal.planned(lake, spec.name, "run", number)["parameters"] for number in range(3)]
        assert plans == [None, 0, 0]
        found[name] = exported(lake, spec)
    same(found["lake"], found["other"])


def test_an_error_is_the_one_of_its_turn_and_what_came_before_counts(filled, monkeypatch):
    lake, spec, decide = filled("lake"), parse_query(QUERY), WindowedStage.decide

    def failing(stage, batch, state):
        if batch.seq_from == 200:
            raise OSError(f"said in {threading.current_thread().name}")
        return decide(stage, batch, state)

    monkeypatch.setattr(WindowedStage, "decide", failing)
    with pytest.raises(OSError, match=f"said in {MAIN}"):
        run(lake, spec, rows_per_batch=100)
    assert journal.run_state(lake, spec.name, spec).seq_to == 200
    assert journal.planned(lake, spec.name, "run", 2) is None
    monkeypatch.undo()
    run(lake, spec, rows_per_batch=50, flush=True)
    whole = filled("whole")
    run(whole, spec, flush=True)
    same(exported(whole, spec), exported(lake, spec))


def test_nothing_is_decided_ahead_that_spark_plans_otherwise(lake, monkeypatch):
    monkeypatch.setattr(runs, "effective", lambda *_: None)
    many = 10 * 50_000
    plans = runs._Plans(lake, parse_query(QUERY), 2 * many + 100, many, True)
    assert plans.after(Batch(0, 0, many)) == Batch(1, many, 2 * many, False, None)
    assert plans.after(Batch(1, many, 2 * many)) is None  # 100 rows are read here, and not in Spark
    assert plans.after(Batch(2, 2 * many, 2 * many + 100, True)) is None
