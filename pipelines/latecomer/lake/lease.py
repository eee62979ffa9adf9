"""One writer per table: a lease in the lake refuses a second writer and names the first.

A lease is a Delta table of its own; each change of hands is one commit, and the commit protocol (put if absent of the
next log entry, on a disk as on an object store) decides a race. The holder renews it from a thread; a holder
that is dead (same host: no such process; another host: no renewal for `EXPIRY_S`) is replaced. A holder that was only
asleep and comes back finds its commits ignored or refused: every write carries a transaction version, and what a
micro-batch writes is a function of the arrival order alone, so two holders would have written the same rows.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from types import TracebackType

import psutil
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from latecomer.lake.errors import InputError, LatecomerError, LeaseHeld
from latecomer.lake.housekeeping import tend
from latecomer.lake.location import Lake

RENEW_S = 15.0
EXPIRY_S = 60.0
_FREE = ""
_SCHEMA = pa.schema(
    [
        ("holder", pa.string()),
        ("host", pa.string()),
        ("pid", pa.int64()),
        ("started", pa.float64()),
        ("acquired", pa.float64()),
        ("renewed", pa.float64()),
    ]
)


class Lease:
    """Context manager: hold the lake for one purpose.

    Parameters
    ----------
    lake
        The lake.
    name
        The purpose: ``ingest``, or ``run``, ``repair``, ``adapt`` with a query's name.

    Raises
    ------
    LeaseHeld
        A live process holds it.
    InputError
        The lake cannot be written to.
    """

    def __init__(self, lake: Lake, name: str) -> None:
        self._lake, self._name = lake, name
        self._uri = lake.table("lease", name)
        self._stop = threading.Event()
        self._renewer: threading.Thread | None = None
        self._acquired = 0.0
        self._commits = 1  # the one before, which freed it
        self._refused: Exception | None = None

    def __enter__(self) -> Lease:
        for _ in range(5):
            table = self._open()
            row = self._row(table)
            if row is not None and row["holder"] == _me() and row["acquired"] == self._acquired:
                break  # our commit had succeeded, only its answer was lost
            if row is not None and row["holder"] != _FREE and _alive(row):
                raise LeaseHeld(self._name, row["holder"], time.time() - row["acquired"])
            self._acquired = time.time()
            if self._commit(table, _me()):
                break
        else:
            row = self._row(self._open())
            if (row is None or row["holder"] == _FREE) and not isinstance(self._refused, CommitFailedError):
                problem = f"cannot be written to ({self._refused})"
                raise InputError("--lake", self._lake.uri, problem, "choose a place that this user may write to")
            raise LeaseHeld(self._name, "another process that has just started", 0.0)
        self._renewer = threading.Thread(target=self._renew, name=f"lease-{self._name}", daemon=True)
        self._renewer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._renewer is not None:
            self._renewer.join()
        # what was to be done is done, or has failed for a reason of its own; a lease that stays ends with its holder
        with contextlib.suppress(LatecomerError, DeltaError, OSError):
            table = self._open()
            row = self._row(table)
            if row is not None and row["holder"] == _me():
                tended = tend(self._lake, [("lease", self._name)], self._commits)
                self._commit(self._open() if tended else table, _FREE)

    def _open(self) -> DeltaTable | None:
        if not self._lake.exists("lease", self._name):
            return None
        return DeltaTable(self._uri, storage_options=self._lake.storage_options)

    @staticmethod
    def _row(table: DeltaTable | None) -> dict | None:
        if table is None:
            return None
        rows = table.to_pyarrow_table().to_pylist()
        return rows[0] if rows else None

    def _commit(self, table: DeltaTable | None, holder: str) -> bool:
        row = {
            "holder": holder,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "acquired": self._acquired,
            "renewed": time.time(),
        }
        data = pa.Table.from_pylist([row], schema=_SCHEMA)
        try:
            write_deltalake(
                table if table is not None else self._uri,
                data,
                mode="overwrite" if table is not None else "error",
                storage_options=None if table is not None else (self._lake.storage_options or None),
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (CommitFailedError, DeltaError, FileExistsError, OSError) as error:
            self._refused = error
            return False
        self._commits += 1
        return True

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_S):
            try:
                table = self._open()
                row = self._row(table)
            except (LatecomerError, DeltaError, OSError):
                continue  # the store does not answer: again at the next turn
            if row is None or row["holder"] != _me():
                return
            self._commit(table, _me())


def _me() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _started(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return 0.0


def _alive(row: dict) -> bool:
    if row["host"] == socket.gethostname():
        # the same number may have been given to a new process: the start time tells
        return psutil.pid_exists(row["pid"]) and abs(_started(row["pid"]) - row["started"]) < 2.0
    return time.time() - row["renewed"] < EXPIRY_S
