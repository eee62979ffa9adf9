"""Looking at the next micro-batches while one is written: nothing but the time it takes depends on it."""

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
def looks(monkeypatch):
    """Of each scan and observation that was begun: what, thread, first arrival."""
    found = []
    for what in ("scan", "observe"):
        monkeypatch.setattr(WindowedStage, what, noted(found, what, getattr(WindowedStage, what)))
    return found


def noted(found, what, begun):
    def looked(stage, batch, other):
        found.append((what, thread(), batch.seq_from))
        return begun(stage, batch, other)

    return looked


def without_looking_ahead(monkeypatch):
    monkeypatch.setattr(Prefetcher, "follow", lambda *_: None)


@pytest.fixture
def filled(tmp_path, spark):
    """A lake of 300 arrivals, by name."""

    def make(name):
        lake = Lake(tmp_path / name)
        load(lake, disordered(5, keys=3), tmp_path)
        return lake

    return make


def test_every_micro_batch_is_looked_at_once_and_all_but_the_first_beside_others(filled, looks):
    lake, spec = filled("lake"), parse_query(QUERY)
    before = threading.active_count()
    run(lake, spec, rows_per_batch=60, flush=True)
    turns = [(MAIN, 0), ("micro-batch 1", 60), ("micro-batch 2", 120), ("micro-batch 3", 180), ("micro-batch 4", 240)]
    for what in ("scan", "observe"):
        assert sorted(each[1:] for each in looks if each[0] == what) == sorted(turns)
    assert [seq for what, _, seq in looks if what == "scan"] == [0, 60, 120, 180, 240]
    assert threading.active_count() == before


def test_no_more_than_two_are_looked_at_before_their_turn(filled, looks, monkeypatch):
    decided, process = [], WindowedStage.process

    def processing(stage, batch, *given):
        decided.append((batch.number, max(seq for what, _, seq in looks if what == "scan") // 30))
        return process(stage, batch, *given)

    monkeypatch.setattr(WindowedStage, "process", processing)
    run(filled("lake"), parse_query(QUERY), rows_per_batch=30, flush=True)
    assert [number for number, _ in decided] == list(range(10))
    assert all(number <= scanned <= number + 2 for number, scanned in decided)
    assert any(scanned == number + 2 for number, scanned in decided)


def test_a_single_micro_batch_starts_no_thread(filled, looks):
    run(filled("lake"), parse_query(QUERY), flush=True)
    assert looks == [("scan", MAIN, 0), ("observe", MAIN, 0)]


@pytest.mark.parametrize("failing", ["scan", "observe"])
def test_what_fails_ahead_is_done_in_its_turn(filled, looks, monkeypatch, failing):
    spec, begun = parse_query(QUERY), getattr(WindowedStage, failing)

    def fails(stage, batch, other):
        found = begun(stage, batch, other)
        if thread() != MAIN:
            raise OSError("the store was away")
        return found

    monkeypatch.setattr(WindowedStage, failing, fails)
    lake = filled("lake")
    run(lake, spec, rows_per_batch=100, flush=True)
    assert [each[2] for each in looks if each[:2] == (failing, MAIN)] == [0, 100, 200]
    assert (failing, "micro-batch 1", 100) in looks
    other = filled("other")
    without_looking_ahead(monkeypatch)
    run(other, spec, rows_per_batch=100, flush=True)
    same(exported(lake, spec), exported(other, spec))


def test_what_adapt_learns_meanwhile_holds_from_the_micro_batch_whose_plan_names_it(filled, looks, monkeypatch):
    """What was looked at before it was learnt is not looked at again: the same tables as where nothing is looked at ahead."""
    spec, found = parse_query(QUERY), {}
    for name in ("lake", "other"):
        lake = filled(name)
        begun = []

        def learn(line, lake=lake, begun=begun):
            begun.append(line)
            if len(begun) == 1:
                for each in threading.enumerate():
                    if each.name.startswith("micro-batch "):
                        each.join()
                adapt(lake, spec)

        if name == "other":
            without_looking_ahead(monkeypatch)
        looks.clear()
        run(lake, spec, rows_per_batch=75, flush=True, progress=learn)
        assert [each[2] for each in looks if each[0] == "scan"] == [0, 75, 150, 225]
        plans = [journal.planned(lake, spec.name, "run", number)["parameters"] for number in range(4)]
        assert plans == [None, 0, 0, 0]
        found[name] = exported(lake, spec)
    same(found["lake"], found["other"])


def test_what_was_not_begun_is_not_begun_after_an_error(filled, looks, monkeypatch):
    """A scan that is under way ends; the observation after it, and the next scan, are not begun."""
    begun, going_on, noticed = WindowedStage.scan, threading.Event(), threading.Event()

    def scan(stage, batch, state):
        if batch.seq_from == 60:
            going_on.set()
            assert noticed.wait(60)
        return begun(stage, batch, state)

    def fails(stage, batch, *given):
        assert going_on.wait(60)
        raise OSError("the store was away")

    close = Prefetcher.close

    def closing(ahead):
        if ahead._pending:
            threading.Timer(1, noticed.set).start()  # once it waits
        close(ahead)

    monkeypatch.setattr(WindowedStage, "scan", scan)
    monkeypatch.setattr(WindowedStage, "process", fails)
    monkeypatch.setattr(Prefetcher, "close", closing)
    with pytest.raises(OSError, match="the store was away"):
        run(filled("lake"), parse_query(QUERY), rows_per_batch=60)
    assert looks == [("scan", MAIN, 0), ("observe", MAIN, 0), ("scan", "micro-batch 1", 60)]
    assert not [each for each in threading.enumerate() if each.name.startswith("micro-batch ")]


def test_a_thread_that_cannot_begin_is_a_look_that_failed(filled, looks, monkeypatch):
    """PySpark asks the JVM for something before a thread's own work, which may fail where no connection is left."""
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
    assert [each[2] for each in looks if each[0] == "observe"] == [0, 100, 200]


@pytest.mark.parametrize("failing", ["scan", "observe"])
def test_an_error_is_the_one_of_its_turn_and_what_came_before_counts(filled, monkeypatch, failing):
    lake, spec, begun = filled("lake"), parse_query(QUERY), getattr(WindowedStage, failing)

    def fails(stage, batch, other):
        if batch.seq_from == 200:
            raise OSError(f"said in {thread()}")
        return begun(stage, batch, other)

    monkeypatch.setattr(WindowedStage, failing, fails)
    with pytest.raises(OSError, match=f"said in {MAIN}"):
        run(lake, spec, rows_per_batch=100)
    assert journal.run_state(lake, spec.name, spec).seq_to == 200
    assert journal.planned(lake, spec.name, "run", 2) is None
    monkeypatch.undo()
    run(lake, spec, rows_per_batch=50, flush=True)
    whole = filled("whole")
    run(whole, spec, flush=True)
    same(exported(whole, spec), exported(lake, spec))


def test_nothing_is_looked_at_ahead_that_spark_plans_otherwise(lake, monkeypatch):
    monkeypatch.setattr(runs.adapted_parameters, "effective", lambda *_: None)
    many = 10 * 50_000
    plans = runs._Plans(lake, parse_query(QUERY), 2 * many + 100, many, True)
    assert plans.after(Batch(0, 0, many)) == Batch(1, many, 2 * many, False, None)
    assert plans.after(Batch(1, many, 2 * many)) is None  # 100 rows are read here, and not in Spark
    assert plans.after(Batch(2, 2 * many, 2 * many + 100, True)) is None
