"""Kill a run or a repair between any two commits, go on, and compare with a run that was never touched."""

import os
import signal
import subprocess

import psutil
import pytest
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.loading import load_query

from tests.spark.test_join import QUERY
from tests.support import commands, events, in_gateway
from tests.support.lakes import exported, load

RUN = [f"run:{area}@{nth}" for nth in (1, 2) for area in ("planned", "on_time", "late", "recalls", "ledger", "state")]
WITH_ITS_JVM = ("run:on_time@1", "run:ledger@2", "repair:corrections")
"""Points at which the whole command dies, its JVM too; at the others a process that shares the test's JVM."""
REPAIR = [f"repair:{area}" for area in ("planned", "corrections", "repairs")]


@pytest.fixture(scope="module")
def truth(tmp_path_factory, spark):
    folder = tmp_path_factory.mktemp("truth")
    path = folder / "q.yaml"
    path.write_text(
        QUERY.format(left="a", right="b", where="left.v <= right.v + 6", recall=0.6, strategy="qjoin", more="")
    )
    table = events.disordered(21, rows=200)
    lake = Lake(folder / "lake")
    load(lake, table, folder)
    spec = load_query(path)
    run(lake, spec, rows_per_batch=100, flush=True)
    repair(lake, spec, flush=True)
    return path, table, exported(lake, spec)


@pytest.mark.parametrize("point", RUN + REPAIR)
def test_killed_and_resumed(truth, spark, lake, tmp_path, point):
    path, table, expected = truth
    load(lake, table, tmp_path)
    spec = load_query(path)
    if point.startswith("run"):
        command = ["run", str(path), "--lake", lake.uri, "--rows-per-batch", "100", "--flush"]
    else:
        run(lake, spec, rows_per_batch=100, flush=True)
        command = ["repair", str(path), "--lake", lake.uri, "--flush"]
    if point in WITH_ITS_JVM:
        killed = commands.call(*command, crash_at=point)
    else:
        killed = in_gateway.call(spark, *command, crash_at=point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-500:]
    run(lake, spec, rows_per_batch=100, flush=True)
    repair(lake, spec, flush=True)
    found = exported(lake, spec)
    for name, rows in expected.items():
        assert found[name].equals(rows), name


def test_a_second_writer_is_told_who_holds_the_lake(lake, tmp_path, truth):
    from latecomer.lake.lease import Lease

    path, table, _ = truth
    load(lake, table, tmp_path)
    with Lease(lake, "run-pairs"):
        done = commands.call("run", path, "--lake", lake.uri)
    assert done.returncode == 3 and f":{os.getpid()}" in done.stderr and "Traceback" not in done.stderr


STOPPED = {"interrupted": (signal.SIGINT, 130), "terminated": (signal.SIGTERM, 143)}


@pytest.mark.parametrize("how", ["java is killed", "interrupted", "terminated"])
def test_a_run_that_is_stopped_says_so_in_one_line(truth, lake, tmp_path, how):
    path, table, expected = truth
    load(lake, table, tmp_path)
    whole = commands.line("run", path, "--lake", lake.uri, "--rows-per-batch", 20, "--flush")
    running = subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = running.stderr.readline()
    while first and "micro-batch" not in first:
        first = running.stderr.readline()
    if how in STOPPED:
        running.send_signal(STOPPED[how][0])
    else:
        for child in psutil.Process(running.pid).children(recursive=True):
            child.kill()
    _, errors = running.communicate()
    code, says = (STOPPED[how][1], how) if how in STOPPED else (4, "Java process ended")
    assert running.returncode == code and says in errors.strip().splitlines()[-1], errors[-1000:]
    assert "Traceback" not in errors
    run(lake, load_query(path), rows_per_batch=100, flush=True)
    repair(lake, load_query(path), flush=True)
    assert exported(lake, load_query(path))["results"].equals(expected["results"])


@pytest.mark.parametrize("crash_at", [None, "drop:rest@3"])
def test_a_forgotten_query_begins_again_with_another_target(truth, spark, lake, tmp_path, crash_at):
    """As in a fresh lake; half forgotten, it is refused."""
    path, table, expected = truth
    load(lake, table, tmp_path)
    before = tmp_path / "before.yaml"
    before.write_text(path.read_text().replace("recall: 0.6", "recall: 0.9"))
    run(lake, load_query(before), rows_per_batch=70)
    repair(lake, load_query(before), flush=True)
    with pytest.raises(
        InputError, match=r"has changed since it ran: quality.recall was 0.9, is 0.6; .*latecomer forget pairs"
    ):
        run(lake, load_query(path))
    if crash_at:
        assert commands.call("forget", before, "--lake", lake.uri, "--yes", crash_at=crash_at).returncode < 0
        for job in (run, repair, exported):
            with pytest.raises(InputError, match="half forgotten"):
                job(lake, load_query(path))
    done = commands.call("forget", "pairs", "--lake", lake.uri, "--yes")
    assert done.returncode == 0, done.stderr
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # commands have each their own
    run(lake, load_query(path), rows_per_batch=100, flush=True)
    repair(lake, load_query(path), flush=True)
    for name, rows in exported(lake, load_query(path)).items():
        assert rows.equals(expected[name]), name
