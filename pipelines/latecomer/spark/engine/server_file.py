"""The file of the Spark Connect server that this user has started: its address, its process and its token."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from latecomer.lake.errors import LatecomerError

WARM = "warm"
"""The value that means the server of ``latecomer spark start``."""
_STOPPED = "is not running"
_REMEDY = "start it with `latecomer spark start`"


class ServerError(LatecomerError):
    """A Spark Connect server cannot be used, or was lost.

    Parameters
    ----------
    address
        The server, without its token.
    problem, remedy
        The fault, and the way to mend it.
    """

    exit_code = 4

    def __init__(self, address: str, problem: str, remedy: str) -> None:
        self.address, self.problem, self.remedy = address, problem, remedy
        super().__init__(address, problem, remedy)

    def __str__(self) -> str:
        return f"Spark server {self.address}: {self.problem}; {self.remedy}"


@dataclass(frozen=True)
class Running:
    """A server that this user has started.

    Attributes
    ----------
    port
        The port on loopback.
    token
        What a session has to send; secret.
    pid, created
        The process: its number, and when it was created (s since 1970), which tells it from a later one of that number.
    master
        Spark's master: ``local[N]``, or a cluster.
    log
        The file that its output goes to.
    """

    port: int
    token: str = field(repr=False)
    pid: int
    created: float
    master: str
    log: str

    @property
    def address(self) -> str:
        """The address without the token."""
        return f"sc://localhost:{self.port}"

    @property
    def uptime_s(self) -> float:
        """Seconds since its start."""
        return max(0.0, time.time() - self.created)

    def process(self) -> psutil.Process | None:
        """Return the process; None where it has ended."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.created) < 1.0 and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


def folder() -> Path:
    """Return the folder of the server's file and log, which need not exist."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "latecomer"


def file() -> Path:
    """Return the file of the server, which only its owner may read."""
    return folder() / "spark-server.json"


def running() -> Running | None:
    """Return the server of this user; None where none runs.

    Raises
    ------
    ServerError
        Others than its owner may read or write the file with the token.
    """
    kept = file()
    try:
        status = kept.stat()
        text = kept.read_text(encoding="utf-8")
    except OSError:
        return None
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        problem = f"has a token that others may read or write: {kept} is not its owner's alone"
        raise ServerError(WARM, problem, "remove that file, end the server, and start it again")
    with contextlib.suppress(ValueError, TypeError):
        server = Running(**json.loads(text))
        return server if server.process() is not None else None
    return None


def url() -> str:
    """Return the URL of the running server, with its token.

    Raises
    ------
    ServerError
        None runs.
    """
    server = running()
    if server is None:
        raise ServerError(WARM, _STOPPED, _REMEDY)
    return f"{server.address}/;token={server.token}"
