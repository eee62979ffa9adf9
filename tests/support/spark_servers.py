"""Spark Connect servers, and the ``latecomer`` command that runs on them, as processes of their own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pyspark

SPARK = Path(pyspark.__file__).parent
MANY_ROWS = (
    "from latecomer.spark.engine import tuning; tuning.SMALL_ROWS = 100; tuning.ONE_TASK_ROWS = 0; "
    "from latecomer.jobs.cli import command; command()"
)
"""The command, with small jobs planned as large ones are: in several tasks, with Python workers."""


def environment(state: Path, **more: str) -> dict[str, str]:
    """Return the environment of commands whose server is kept in the folder `state`."""
    given = {key: value for key, value in os.environ.items() if key not in ("LATECOMER_SPARK", "SPARK_REMOTE")}
    return given | {"XDG_STATE_HOME": str(state), "LATECOMER_DRIVER_MEMORY": "1g"} | more


def call(
    environment: Mapping[str, str], *arguments: object, many_rows: bool = False, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; `many_rows`: with small jobs planned as large ones."""
    program = ["-c", MANY_ROWS] if many_rows else ["-m", "latecomer.jobs.cli"]
    line = [sys.executable, *program, *map(str, arguments)]
    return subprocess.run(line, env=dict(environment), capture_output=True, text=True, timeout=timeout)


def free_port() -> int:
    """Return a port of loopback that nothing listens at."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def answers(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a process that was started listens at a port of loopback."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace")[-2000:])


@contextlib.contextmanager
def running(
    folder: Path, command: list[str | Path], port: int, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of Spark in a folder, from the moment it listens at a port to the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        answers(port, process, log)
        yield process
    finally:
        process.kill()
        process.wait(30)


@contextlib.contextmanager
def plain_server(folder: Path, settings: Mapping[str, str], **more: str) -> Iterator[str]:
    """Run a server as Spark itself starts it, with these settings alone; give its address."""
    port = free_port()
    values = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    folder.mkdir(parents=True, exist_ok=True)
    properties = folder / "properties"
    properties.write_text("".join(f"{key} {value}\n" for key, value in (values | dict(settings)).items()))
    command: list[str | Path] = [SPARK / "bin" / "spark-submit", "--properties-file", properties]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    given = environment(folder, SPARK_HOME=str(SPARK), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    with running(folder, command, port, given | more):
        yield f"sc://127.0.0.1:{port}"


@contextlib.contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Run a master and workers of one core and 1 GB as processes on loopback; give the master's URL and the workers."""
    port = free_port()
    given = environment(folder, SPARK_HOME=str(SPARK), SPARK_LOCAL_IP="127.0.0.1", SPARK_DAEMON_MEMORY="512m")
    start: list[str | Path] = [SPARK / "bin" / "spark-class"]
    with contextlib.ExitStack() as processes:
        master = [*start, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        master += ["--webui-port", str(free_port())]
        processes.enter_context(running(folder / "master", master, port, given))
        started = []
        for number in range(workers):
            place, listening = folder / f"worker{number}", free_port()
            worker = [*start, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--port", str(listening)]
            worker += ["--cores", "1", "--memory", "1g", "--webui-port", str(free_port()), "--work-dir", place / "work"]
            worker += [f"spark://127.0.0.1:{port}"]
            started.append(processes.enter_context(running(place, worker, listening, given)))
            processes.callback(end_executors, started[-1])
        yield f"spark://127.0.0.1:{port}", started


def end_executors(worker: subprocess.Popen[bytes]) -> None:
    """Kill a worker and the executors that it has started."""
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(worker.pid).children(recursive=True)
        worker.kill()
        for process in below:
            with contextlib.suppress(psutil.Error):
                process.kill()
