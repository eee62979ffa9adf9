"""A writer that slept while another took its place writes nothing more: no plan and no table. It reverts nothing."""

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake import crash_points, delta, journal, lease, stream_schemas
from latecomer.lake.errors import LeaseLost
from latecomer.lake.ingest_log import committed_seq
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.loading import parse_query

from tests.support import events
from tests.support.lakes import invariants, load

QUERY = """
name: q
kind: join
streams: {l: a, r: b}
keys: [k]
window: 2 s
quality: {recall: 0.6, period: 10 s}
strategy: {name: k_slack, slack: 1 ms, gamma: 3 s}
"""


@pytest.fixture
def asleep(lake, monkeypatch):
    """At a point between two commits, another process takes the lease of that name."""

    def at(point, name):
        def meanwhile(reached):
            if reached == point:
                monkeypatch.setattr(crash_points, "point", lambda _: None)
                row = {"holder": "host:1", "place": "", "pid": 1, "started": 0.0, "acquired": 0.0, "renewed": 0.0}
                write_deltalake(lake.table("lease", name).uri, pa.Table.from_pylist([row]), mode="overwrite")
                monkeypatch.setattr(lease, "_clocks", lambda: (1e12, 1e12))

        monkeypatch.setattr(crash_points, "point", meanwhile)

    return at


@pytest.fixture
def loaded(lake, tmp_path, spark):
    load(lake, events.disordered(5, rows=200), tmp_path)
    return parse_query(QUERY)


def test_run_plans_nothing_more(lake, loaded, asleep):
    asleep("run:state", "run-q")
    with pytest.raises(LeaseLost, match="host:1"):
        run(lake, loaded, rows_per_batch=100)
    assert journal.planned(lake, "q", "run", 0) and journal.planned(lake, "q", "run", 1) is None


@pytest.mark.parametrize("lost", [True, False])
def test_run_does_not_take_back_the_plan_of_another(lake, loaded, asleep, monkeypatch, lost):
    def fails(*args):
        crash_points.point("test:stage")
        raise RuntimeError("as it woke")

    monkeypatch.setattr("latecomer.spark.run.stage_of", fails)
    asleep("test:stage" if lost else "never", "run-q")
    with pytest.raises(RuntimeError):
        run(lake, loaded)
    assert (journal.planned(lake, "q", "run", 0) is not None) == lost


def test_a_commit_that_another_made_meanwhile_is_refused_by_name(lake, loaded, asleep, monkeypatch):
    """Between the look at a table and the write, where no lease is asked for."""
    real = delta.write_deltalake

    def overtaken(table, *given, **named):
        if table == lake.table("on_time", "q").uri:
            monkeypatch.setattr(delta, "write_deltalake", real)
            crash_points.point("test:write")
            real(table, *given, **named)
        return real(table, *given, **named)

    asleep("test:write", "run-q")
    monkeypatch.setattr(delta, "write_deltalake", overtaken)
    with pytest.raises(LeaseLost, match="host:1"):
        run(lake, loaded)


def test_repair_plans_nothing_more(lake, loaded, asleep, monkeypatch):
    run(lake, loaded, flush=True)
    real = journal.planned

    def planned(*args):
        crash_points.point("test:planned")
        return real(*args)

    monkeypatch.setattr(journal, "planned", planned)
    asleep("test:planned", "repair-q")
    with pytest.raises(LeaseLost, match="host:1"):
        repair(lake, loaded, flush=True)
    assert real(lake, "q", "repair", 0) is None and not lake.table("corrections", "q").exists()


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(("point", "written"), [("ingest:planned", 0), ("ingest:events", 1)])
def test_ingest_writes_no_further_table(lake, tmp_path, spark, asleep, monkeypatch, point, written, few):
    if not few:
        monkeypatch.setattr("latecomer.spark.engine.tables.DRIVER_LOCAL_ROWS", 10)
        monkeypatch.setattr("latecomer.ingest.write_tables.WRITERS", 1)
    path = events.write(events.disordered(5, rows=50), tmp_path / "in.parquet")
    asleep(point, "ingest")
    with pytest.raises(LeaseLost, match="host:1"):
        ingest(lake, [path], IngestOptions(by="stream"))
    assert committed_seq(lake) == 0
    assert sum(lake.table("events", name).read() is not None for name in ("a", "b")) == written


def test_a_run_that_waited_for_its_turn_goes_on_from_there(lake, tmp_path, spark, monkeypatch):
    """Between its look at the lake and its lease, more is ingested, and another processes it."""
    table, spec = events.disordered(5, rows=200), parse_query(QUERY)
    load(lake, table.slice(0, 100), tmp_path)
    real = stream_schemas.check

    def meanwhile(*given):
        monkeypatch.setattr(stream_schemas, "check", real)
        load(lake, table.slice(100), tmp_path)
        run(lake, spec)
        real(*given)

    monkeypatch.setattr(stream_schemas, "check", meanwhile)
    assert run(lake, spec, flush=True).seq_to == 200
    assert all(invariant["left"] == invariant["right"] for invariant in invariants(lake, spec))
