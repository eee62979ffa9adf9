"""The Spark Connect server of this machine and user: ``latecomer spark start``, ``stop`` and ``status``.

It listens on loopback alone and asks for a token, which is drawn at its start. Address, process and token are kept in a
file that only its owner may read; the server gets the token by its environment, so that neither a list of processes nor
a log shows it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import psutil

from latecomer.lake.atomic_file import atomic_file
from latecomer.lake.errors import LatecomerError
from latecomer.lake.lake import Lake
from latecomer.spark.engine import connect
from latecomer.spark.engine.server_file import WARM, Running, ServerError, file, folder, running
from latecomer.spark.engine.session import RESULT_SETTINGS, settings
from latecomer.spark.engine.store_settings import settings_of_all_stores

START_S = 120.0
"""Seconds within which a server answers that is starting."""
STOP_S = 6.0
"""Seconds that a server has to end by itself; it is killed then."""
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_ABANDONED = {
    "spark.connect.execute.manager.detachedTimeout": "10s",
    "spark.connect.execute.manager.maintenanceInterval": "5s",
}
"""Settings by which a server ends, within seconds, what it does for a command that was killed."""
_NOT_INHERITED = ("SPARK_REMOTE", connect.VARIABLE, "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")


def start(master: str | None = None, more: Mapping[str, str] | None = None) -> tuple[Running, bool]:
    """Start the server and wait until it answers; a running one is left as it is.

    Parameters
    ----------
    master
        Spark's master; None: of ``spark-defaults.conf``, else all cores of this machine.
    more
        Settings that win over those of jobs.

    Returns
    -------
    server : Running
        The server.
    is_new : bool
        Whether it was started here.

    Raises
    ------
    ServerError
        It ended, or does not answer within `START_S` seconds.
    """
    place = folder()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _only_one():
        server = running()
        if server is not None:
            return server, False
        server = _launch(master, more or {})
        try:
            _wait(server)
        except BaseException:
            _end(server)
            raise
        return server, True


def stop() -> Running | None:
    """Stop the server and return it; None where none runs. What it does for a command fails."""
    with _only_one():
        server = running()
        if server is not None:
            _end(server)
        return server


@contextlib.contextmanager
def _only_one() -> Iterator[None]:
    """Hold the lock of starts and stops."""
    if not folder().is_dir():
        yield
        return
    with open(folder() / "spark-server.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _launch(master: str | None, more: Mapping[str, str]) -> Running:
    import pyspark

    port, token, log = _free_port(), secrets.token_urlsafe(32), folder() / "spark-server.log"
    values = settings(Lake(".")) | RESULT_SETTINGS | settings_of_all_stores() | _ABANDONED | dict(more)
    values |= {
        "spark.app.name": "latecomer",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    if master is not None:
        values["spark.master"] = master
    is_local = values.get("spark.master", "").startswith("local")
    if is_local:  # workers of a cluster get the package from each session
        values[connect.PACKAGE] = connect.digest()
    spark = Path(pyspark.__file__).parent
    roots = [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH", "")]
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    environment |= {
        "SPARK_HOME": str(spark),
        "PYTHONPATH": os.pathsep.join(filter(None, roots)),
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
    }
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if is_local:
        environment["PYSPARK_PYTHON"] = sys.executable
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    properties = folder() / "spark-server.properties"
    with atomic_file(properties) as part:
        part.write_text("".join(f"{key} {value}\n" for key, value in sorted(values.items())), encoding="utf-8")
    command: list[str | Path] = [
        spark / "bin" / "spark-submit",
        "--properties-file",
        properties,
        "--load-spark-defaults",
    ]
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
        process = subprocess.Popen(
            [*command, "--class", _CLASS, "spark-internal"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder(),
            start_new_session=True,  # it outlives the terminal and the command
        )
    created = psutil.Process(process.pid).create_time()
    server = Running(port, token, process.pid, created, values.get("spark.master", ""), str(log))
    with atomic_file(file()) as part, open(os.open(part, os.O_WRONLY | os.O_CREAT, 0o600), "w") as written:
        json.dump(asdict(server), written)
    return server


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _wait(server: Running) -> None:
    """Wait until the server listens, then open a session on it, which examines it."""
    until_s = time.monotonic() + START_S
    while True:
        if server.process() is None:
            said = Path(server.log).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            error = next((line for line in said if "Exception" in line or "rror" in line), (said or ["no output"])[-1])
            raise ServerError(WARM, f"ended while it was starting ({error.strip()})", f"see {server.log}")
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", server.port), timeout=connect.ANSWER_S).close()
            break
        if time.monotonic() > until_s:
            problem = f"does not answer within {START_S:.0f} s of its start"
            raise ServerError(WARM, problem, f"see {server.log}")
        time.sleep(0.1)
    with tempfile.TemporaryDirectory() as place:
        connect.session(connect.Server(f"{server.address}/;token={server.token}"), Lake(place), {}, {})
        connect.close(connect.ANSWER_S)


def _end(server: Running) -> None:
    """End the process of a server, and remove its file."""
    process = server.process()
    if process is not None:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(STOP_S)
            if server.process() is not None:
                process.kill()
                process.wait(2.0)
    with contextlib.suppress(OSError, LatecomerError):
        file().unlink()
