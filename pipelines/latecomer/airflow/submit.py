"""Run ``latecomer`` commands for a task: as a process of its own, by spark-submit, or against a Spark Connect server.

The type of a connection says which. Where there is no such connection, Spark runs within the command's process.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latecomer.airflow.settings import setting
from latecomer.specs.streams import KafkaTopicSource, StreamSource

if TYPE_CHECKING:
    from airflow.sdk import Connection

LINES = 2_000
"""The most lines of a command that are kept; all are logged."""
GRACE_S = 9.0
"""Seconds within which a command that is stopped ends by itself, with its leases released."""
_CODE = re.compile(r"(?:Kubernetes spark exit code is|Error code is): (\d+)\.?")


def spark_connection(conn_id: str | None, types: Sequence[str] = ("spark", "spark_connect")) -> Connection | None:
    """Return the connection that says where Spark runs, or None where there is none.

    Raises
    ------
    AirflowFailException
        Its type is none of `types`.
    """
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

    if not conn_id:
        return None
    try:
        connection: Connection = Connection.get(conn_id)
    except AirflowNotFoundException:
        return None
    if connection.conn_type not in types:
        kind = f"connection {conn_id}: type {connection.conn_type!r}: is none by which Latecomer submits"
        raise AirflowFailException(f"{kind}; make it {' or '.join(types)}, or remove the connection")
    return connection


def store_variables() -> dict[str, str]:
    """Return the variables of the environment with the credentials of the connection ``store_conn_id``, if any."""
    name = setting("store_conn_id")
    if not name:
        return {}
    from airflow.sdk import Connection

    connection = Connection.get(name)
    extra = connection.extra_dejson
    variables = {
        "AWS_ACCESS_KEY_ID": connection.login,
        "AWS_SECRET_ACCESS_KEY": connection.password,
        "AWS_SESSION_TOKEN": extra.get("aws_session_token"),
        "AWS_REGION": extra.get("region_name"),
        "AWS_ENDPOINT_URL": extra.get("endpoint_url"),
    }
    return {variable: value for variable, value in variables.items() if value}


def log_in(source: StreamSource | None) -> None:
    """Put the login of a topic's connection into the environment of this process, which its command inherits.

    So it stands in no argument, template or log. Without a connection the environment stays as it is.
    """
    if not isinstance(source, KafkaTopicSource) or source.connection is None:
        return
    from airflow.sdk import Connection

    from latecomer.ingest.kafka_client import PREFIX, Security

    name = source.connection
    login = Connection.get(name)
    variables = Security.variables_of_connection(name, login.login, login.password, login.extra_dejson)
    for variable in [variable for variable in os.environ if variable.startswith(PREFIX)]:
        del os.environ[variable]
    os.environ.update(variables)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Put variables into the environment of this process, and restore it at the end."""
    before = dict(os.environ)
    try:
        os.environ.update(variables)
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def logged_in(source: StreamSource | None) -> Iterator[None]:
    """Put the login of a topic's connection into the environment of this process, and restore it at the end."""
    with environment({}):
        log_in(source)
        yield


class Process:
    """A command as a process group of its own, whose lines go to a log."""

    def __init__(self, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            # -P: a file `latecomer.py` in the working directory is no package
            [sys.executable, "-P", "-m", "latecomer.jobs.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env=os.environ | variables,
        )

    def follow(self, log: Callable[[str], None]) -> tuple[int, list[str]]:
        """Log each line; return the exit code and the last lines."""
        lines: deque[str] = deque(maxlen=LINES)
        with self._process as process:
            for line in map(str.rstrip, process.stdout or ()):
                log(line)
                lines.append(line)
        return process.returncode, list(lines)

    def end(self) -> None:
        """End the command and whatever it has started.

        The command is asked first, because it ends its Java process and releases its leases by itself.
        """
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def connect_variables(conn_id: str) -> dict[str, str]:
    """Return the variable that names the server of a ``spark_connect`` connection, with its token.

    No command line has it, since every user of a machine can read those.
    """
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

    return {"LATECOMER_SPARK": SparkConnectHook(conn_id).get_connection_url()}


def submit_hook(conn_id: str, arguments: Sequence[str], *, name: str, memory: str, properties: str) -> Any:
    """Return the provider's hook that submits the package's application to the master of a ``spark`` connection.

    ``spark-submit`` is looked for beside this Python too, where pyspark puts it.
    """
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    scripts = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    if scripts not in path.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([path, scripts])
    return SparkSubmitHook(
        conn_id=conn_id,
        conf={} if properties else _java_settings(),
        properties_file=properties or None,
        driver_memory=memory or None,
        application_args=list(arguments),
        name=name,
        verbose=False,
    )


def application() -> str:
    """Return the path of the application that spark-submit starts."""
    return str(Path(__file__).resolve().parents[1] / "jobs" / "submit.py")


def _java_settings() -> dict[str, str]:
    """Return the settings that a JVM needs before Python runs: its class path, its options and its memory."""
    from latecomer.lake.lake import Lake
    from latecomer.spark.engine.session import settings as of_session

    values = of_session(Lake("."))
    names = [f"spark.{part}.extra{kind}" for part in ("driver", "executor") for kind in ("ClassPath", "JavaOptions")]
    return {name: values[name] for name in (*names, "spark.driver.memory") if values.get(name)}


def outcome_of_hook(error: BaseException) -> tuple[int, list[str]] | None:
    """Return exit code and last lines of a command from the error of the hook that submitted it.

    Returns
    -------
    tuple or None
        None if the error is another one.
    """
    codes = [*_CODE.finditer(str(error))]
    if not codes:
        return None
    return int(codes[-1][1]), str(error)[codes[-1].end() :].splitlines()


def ending(code: int, lines: Iterable[str], *, query: str | None, permanent: tuple[str, ...]) -> Exception | None:
    """Return the exception with which a task ends whose command ended with this exit code; None where it is 0.

    A check that failed, and a command that refused its input by a line that begins as one of `permanent`, fail for
    good: the next try would end alike. An unreachable store is exit code 2 as well, but its line is about the lake, and
    it may answer later. A broken landing file is tried again too, because its writer may not have finished.
    """
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    if code == 0:
        return None
    said = [line for line in lines if line.strip()]
    if code == 1 and (failures := [line for line in said if query and line.startswith(f"{query}: FAILED ")]):
        return AirflowFailException("\n".join(failures))
    if code == 2 and (line := next((line for line in said if line.startswith(permanent)), None)):
        return AirflowFailException(f"no other try, it would end alike: {line}")
    return AirflowException(f"exit code {code}" + (f": {said[-1]}" if said else ""))
