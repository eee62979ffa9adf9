"""Prefetching the next micro-batches while one is written: nothing but the time that a run takes depends on it."""

import threading

import pytest
from latecomer.lake import journal
from latecomer.lake.lake import Lake
from latecomer.spark import run as runs
from latecomer.spark.adapt import adapt
from latecomer.spark.prefetch import Prefetcher
from latecomer.spark.run import run
from latecomer.spark.stage import Batch
from latecomer.spark.windows.stage import WindowedStage
from latecomer.specs.loading import parse_query

from tests.support.events import disordered
from tests.support.lakes import exported, load, same

QUERY = (
    "name: sums\nkind: aggregate\nstreams: {s: a}\ngroup_by: [k]\nwindow: {size: 4 s, slide: 1 s}\n"
    "select: {total: sum(v), n: count()}\nquality: {error: 0.1, probability: 0.9, period: 10 s}\n"
)
MAIN = "main"


def thread() -> str:
    return MAIN if threading.current_thread() is threading.main_thread() else threading.current_thread().name


@pytest.fixture
def begun(monkeypatch):
    """Record each scan and observation that begins: step, thread, first arrival."""
    found = []
    for step in ("scan", "observe"):
        monkeypatch.setattr(WindowedStage, step, recording(found, step, getattr(WindowedStage, step)))
    return found


def recording(found, step, method):
    def recorded(stage, batch, other):
        found.append((step, thread(), batch.seq_from))
        return method(stage, batch, other)

    return recorded


def without_prefetching(monkeypatch):
    monkeypatch.setattr(Prefetcher, "follow", lambda *_: None)


@pytest.fixture
def filled(tmp_path, spark):
    """A lake of 300 arrivals, by name."""

    def make(name):
        lake = Lake(tmp_path / name)
        load(lake, disordered(5, keys=3), tmp_path)
        return lake

    return make


def test_every_micro_batch_is_read_once_and_all_but_the_first_in_a_thread(filled, begun):
    lake, spec = filled("lake"), parse_query(QUERY)
    before = threading.active_count()
    run(lake, spec, rows_per_batch=60, flush=True)
    turns = [(MAIN, 0), ("micro-batch 1", 60), ("micro-batch 2", 120), ("micro-batch 3", 180), ("micro-batch 4", 240)]
    for expected in ("scan", "observe"):
        assert sorted((name, seq) for step, name, seq in begun if step == expected) == sorted(turns)
    assert [seq for step, _, seq in begun if step == "scan"] == [0, 60, 120, 180, 240]
    assert threading.active_count() == before


def test_no_more_than_two_are_prefetched(filled, begun, monkeypatch):
    decided, process = [], WindowedStage.process

    def processing(stage, batch, *given):
        decided.append((batch.number, max(seq for step, _, seq in begun if step == "scan") // 30))
        return process(stage, batch, *given)

    monkeypatch.setattr(WindowedStage, "process", processing)
    run(filled("lake"), parse_query(QUERY), rows_per_batch=30, flush=True)
    assert [number for number, _ in decided] == list(range(10))
    assert all(number <= scanned <= number + 2 for number, scanned in decided)
    assert any(scanned == number + 2 for number, scanned in decided)


def test_a_single_micro_batch_starts_no_thread(filled, begun):
    run(filled("lake"), parse_query(QUERY), flush=True)
    assert begun == [("scan", MAIN, 0), ("observe", MAIN, 0)]


@pytest.mark.parametrize("failing", ["scan", "observe"])
def test_a_prefetch_that_fails_is_done_again_in_its_turn(filled, begun, monkeypatch, failing):
    spec, method = parse_query(QUERY), getattr(WindowedStage, failing)

    def fails(stage, batch, other):
        found = method(stage, batch, other)
        if thread() != MAIN:
            raise OSError("the store was away")
        return found

    monkeypatch.setattr(WindowedStage, failing, fails)
    lake = filled("lake")
    run(lake, spec, rows_per_batch=100, flush=True)
    assert [seq for *step, seq in begun if tuple(step) == (failing, MAIN)] == [0, 100, 200]
    assert (failing, "micro-batch 1", 100) in begun
    other = filled("other")
    without_prefetching(monkeypatch)
    run(other, spec, rows_per_batch=100, flush=True)
    same(exported(lake, spec), exported(other, spec))


def test_parameters_hold_from_the_micro_batch_whose_plan_names_them(filled, begun, monkeypatch):
    """Micro-batches that were prefetched before are not read again: the same tables as without prefetching."""
    spec, found = parse_query(QUERY), {}
    for name in ("lake", "other"):
        lake = filled(name)
        lines = []

        def learn(line, lake=lake, lines=lines):
            lines.append(line)
            if len(lines) == 1:
                for running in threading.enumerate():
                    if running.name.startswith("micro-batch "):
                        running.join()
                adapt(lake, spec)

        if name == "other":
            without_prefetching(monkeypatch)
        begun.clear()
        run(lake, spec, rows_per_batch=75, flush=True, progress=learn)
        assert [seq for step, _, seq in begun if step == "scan"] == [0, 75, 150, 225]
        plans = [journal.planned(lake, spec.name, "run", number)["parameters"] for number in range(4)]
        assert plans == [None, 0, 0, 0]
        found[name] = exported(lake, spec)
    same(found["lake"], found["other"])


def test_nothing_begins_after_an_error(filled, begun, monkeypatch):
    """A running scan ends; the observation after it and the next scan do not begin."""
    method, going_on, noticed = WindowedStage.scan, threading.Event(), threading.Event()

    def scan(stage, batch, state):
        if batch.seq_from == 60:
            going_on.set()
            assert noticed.wait(60)
        return method(stage, batch, state)

    def fails(stage, batch, *given):
        assert going_on.wait(60)
        raise OSError("the store was away")

    close = Prefetcher.close

    def closing(prefetcher):
        if prefetcher._pending:
            threading.Timer(1, noticed.set).start()  # once it waits
        close(prefetcher)

    monkeypatch.setattr(WindowedStage, "scan", scan)
    monkeypatch.setattr(WindowedStage, "process", fails)
    monkeypatch.setattr(Prefetcher, "close", closing)
    with pytest.raises(OSError, match="the store was away"):
        run(filled("lake"), parse_query(QUERY), rows_per_batch=60)
    assert begun == [("scan", MAIN, 0), ("observe", MAIN, 0), ("scan", "micro-batch 1", 60)]
    assert not [running for running in threading.enumerate() if running.name.startswith("micro-batch ")]


def test_a_thread_that_cannot_begin_is_a_prefetch_that_failed(filled, begun, monkeypatch):
    """PySpark asks the JVM for something before a thread's work, which may fail where no connection is left."""
    from pyspark import InheritableThread

    begin, lost = InheritableThread.run, []

    def run_or_not(self):
        if not lost:
            return lost.append(self.name)
        return begin(self)

    monkeypatch.setattr(InheritableThread, "run", run_or_not)
    lake, spec = filled("lake"), parse_query(QUERY)
    run(lake, spec, rows_per_batch=100, flush=True)
    assert lost == ["micro-batch 1"]
    assert [seq for step, _, seq in begun if step == "observe"] == [0, 100, 200]


@pytest.mark.parametrize("failing", ["scan", "observe"])
def test_an_error_is_raised_in_its_turn_and_earlier_micro_batches_count(filled, monkeypatch, failing):
    lake, spec, method = filled("lake"), parse_query(QUERY), getattr(WindowedStage, failing)

    def fails(stage, batch, other):
        if batch.seq_from == 200:
            raise OSError(f"raised in {thread()}")
        return method(stage, batch, other)

    monkeypatch.setattr(WindowedStage, failing, fails)
    with pytest.raises(OSError, match=f"raised in {MAIN}"):
        run(lake, spec, rows_per_batch=100)
    assert journal.run_state(lake, spec.name, spec).seq_to == 200
    assert journal.planned(lake, spec.name, "run", 2) is None
    monkeypatch.undo()
    run(lake, spec, rows_per_batch=50, flush=True)
    whole = filled("whole")
    run(whole, spec, flush=True)
    same(exported(whole, spec), exported(lake, spec))


def test_a_micro_batch_that_spark_plans_otherwise_is_not_prefetched(lake, monkeypatch):
    monkeypatch.setattr(runs.adapted_parameters, "effective", lambda *_: None)
    many = 10 * 50_000
    plans = runs._Plans(lake, parse_query(QUERY), 2 * many + 100, many, True)
    assert plans.after(Batch(0, 0, many)) == Batch(1, many, 2 * many, False, None)
    assert plans.after(Batch(1, many, 2 * many)) is None  # 100 rows are read here, and not in Spark
    assert plans.after(Batch(2, 2 * many, 2 * many + 100, True)) is None
