"""Whatever dies, in whichever thread, the command ends within seconds, says so in a line, and leaves no process behind.

The command under test has one subcommand more, which holds a lease and starves its Java process in a stated way.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease

from tests.support import commands, events

SCRIPT = """
import sys, threading, time
import click
from latecomer.jobs import cli
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease

@cli.main.command()
@click.argument("how")
def starve(how):
    from latecomer.spark.engine.session import session
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started
    with Lease(Lake("lake"), "run-q"):
        spark = session(Lake("lake"))
        gateway = SparkContext._gateway
        print("ready", gateway.proc.pid, flush=True)
        sys.stdin.readline()
        if how == "memory of a call":
            arrays = [gateway.new_array(gateway.jvm.long, 50_000_000) for _ in range(100)]
        elif how == "memory of a task":
            spark.sql("select sum(length(repeat('x', 2000000000 + cast(id as int)))) from range(1)").collect()
        elif how == "a thread":
            class Fails:
                def run(self):
                    raise ValueError("this thread dies")
                class Java:
                    implements = ["java.lang.Runnable"]
            ensure_callback_server_started(gateway)
            gateway.jvm.java.lang.Thread(Fails()).start()
            threading.Event().wait()
        elif how == "a call waits":
            gateway.jvm.java.lang.Thread.sleep(1 << 40)
        elif how == "a job runs":
            spark.range(1 << 50).selectExpr("sum(id % 7)").collect()
        elif how == "python waits":
            threading.Event().wait()

cli.command()
"""
MOST_S = 10
"""Seconds within which nothing of a command is left."""


class Starving:
    """A command that starves in the way `how`, and what is left of it."""

    def __init__(self, folder, how):
        (folder / "command.py").write_text(SCRIPT, encoding="utf-8")
        environment = os.environ | {"LATECOMER_DRIVER_MEMORY": "1g", "PYTHONPATH": os.pathsep.join(sys.path)}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "command.py", "starve", how]
        self.python = subprocess.Popen(command, **pipes, text=True, cwd=folder, env=environment)
        ready = self.python.stdout.readline().split()
        assert ready[:1] == ["ready"], self.python.stderr.read()
        self.java = psutil.Process(int(ready[1]))
        self.below = psutil.Process(self.python.pid).children(recursive=True)
        assert self.java in self.below
        self.python.stdin.write("go\n")
        self.python.stdin.flush()

    def ended(self):
        """Wait for the end of it all; return the exit code and what was written to standard error."""
        since = time.monotonic()
        out, errors = self.python.communicate(timeout=60)
        while any(map(is_alive, self.below)) and time.monotonic() - since < 60:
            time.sleep(0.05)
        assert time.monotonic() - since < MOST_S, errors
        assert out == ""
        return self.python.returncode, errors


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("memory of a call", "its memory of 1g was not enough"),
        ("memory of a task", "its memory of 1g was not enough"),
        ("a thread", "exit code 50"),
    ],
)
def test_java_without_memory_or_without_a_thread(tmp_path, how, says):
    code, errors = Starving(tmp_path, how).ended()
    (line,) = errors.splitlines()
    assert code == 4 and says in line and "LATECOMER_DRIVER_MEMORY" in line and "run the command again" in line
    lease_is_free(tmp_path)


@pytest.mark.parametrize("how", ["a call waits", "a job runs", "python waits"])
def test_java_is_killed(tmp_path, how):
    starving = Starving(tmp_path, how)
    time.sleep(0.5)
    starving.java.kill()
    code, errors = starving.ended()
    (line,) = errors.splitlines()
    assert code == 4 and "Java process ended (killed by signal 9" in line
    assert "more memory, or with a smaller LATECOMER_DRIVER_MEMORY" in line
    lease_is_free(tmp_path)


@pytest.fixture
def container():
    """A control group with a limit of 450 MB, for a process and what it starts; for a user who may make one."""
    first = Path("/sys/fs/cgroup/memory")  # of version 1; version 2 has one folder for all that is controlled
    folder, limit = (first, "memory.limit_in_bytes") if first.is_dir() else (first.parent, "memory.max")
    folder /= f"latecomer-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(450 << 20))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    if not in_container(folder, sys.executable, "-c", "b'x' * (600 << 20)").returncode:
        folder.rmdir()
        pytest.skip("the limit of a control group has no effect here")
    yield folder
    since = time.monotonic()
    while (folder / "cgroup.procs").read_text() and time.monotonic() - since < MOST_S:
        time.sleep(0.1)
    folder.rmdir()  # refused while a process is left in it


def in_container(folder, *command):
    inside = ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh", *command]
    return subprocess.run(inside, capture_output=True, text=True, timeout=120)


def test_a_container_without_memory_is_one_line_and_loses_nothing(tmp_path, container):
    events.write(events.disordered(5, rows=60_000), tmp_path / "rows.parquet")
    arguments = ("ingest", "--by", "stream", str(tmp_path / "rows.parquet"), "--lake", str(tmp_path / "lake"))
    done = in_container(container, *commands.line(*arguments))
    *told, line = done.stderr.splitlines()
    assert done.returncode == 4 and all(line.startswith("ingest: ") for line in told), done.stderr
    assert "killed by signal 9" in line or "ended while it was starting" in line
    assert "60,000 rows into 2 streams" in commands.call(*arguments).stdout


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize(
    ("number", "code", "says"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_stopped_command_whose_java_answers_or_not(tmp_path, number, code, says, answers):
    starving = Starving(tmp_path, "a job runs")
    time.sleep(0.5)
    if not answers:
        starving.java.suspend()
    starving.python.send_signal(number)
    assert starving.ended() == (code, f"latecomer: {says}; finished work is kept; run the command again to continue\n")
    lease_is_free(tmp_path)


@pytest.mark.parametrize("answers", [True, False])
def test_java_does_not_outlive_a_killed_command(tmp_path, answers):
    starving = Starving(tmp_path, "a job runs")
    time.sleep(0.5)
    if not answers:
        starving.java.suspend()
    starving.python.kill()
    assert starving.ended() == (-signal.SIGKILL, "")
    lease_is_free(tmp_path)


def lease_is_free(folder):
    """Take the lease, which waits for nothing."""
    since = time.monotonic()
    with Lease(Lake(folder / "lake"), "run-q"):
        assert time.monotonic() - since < 2


def test_a_lease_that_was_abandoned_is_no_longer_confirmed(tmp_path):
    from latecomer.lake.errors import LeaseLost
    from latecomer.lake.lease import abandon_all

    lake = Lake(tmp_path / "lake")
    with Lease(lake, "run-q") as lease:
        lease.confirm()
        abandon_all(5)
        with pytest.raises(LeaseLost):
            lease.confirm()
        with Lease(lake, "run-q"):
            pass


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "LATECOMER_DRIVER_MEMORY",
            "100m",
            "LATECOMER_DRIVER_MEMORY: '100m': is less than Spark needs to start (450m)",
        ),
        ("LATECOMER_JAVA_OPTIONS", "-Xmx12x", "Spark's Java process ended while it was starting; see whether"),
    ],
)
def test_java_that_cannot_start_is_one_line(tmp_path, name, value, says):
    (tmp_path / "command.py").write_text(SCRIPT, encoding="utf-8")
    environment = os.environ | {name: value, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "command.py", "starve", "nothing"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60)
    *of_java, line = ran.stderr.splitlines()
    assert ran.returncode == 4 and line.startswith(f"latecomer: {says}"), ran.stderr
    assert not any(words.startswith(("Traceback", "\tat ")) for words in of_java)
    lease_is_free(tmp_path)
