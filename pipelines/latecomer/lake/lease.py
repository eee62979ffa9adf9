"""One writer per table: a lease in the lake refuses a second writer and names the first.

A lease is a Delta table of its own. Each change of the holder is one commit, and the commit protocol (put if absent of
the next log entry, on a disk as on an object store) decides a race. The holder renews the lease from a thread. A dead
holder is replaced:

- on the same boot of the same machine and in the same process namespace, when its process is gone (host names do not
  tell, since containers share them);
- elsewhere, when it has not renewed the lease for `EXPIRY_S`, nor, as clocks differ, while it was watched for
  `WATCH_S`.

A holder that only slept confirms the lease before every commit (:meth:`Lease.confirm`) and finds that it was replaced.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from latecomer.lake.errors import InputError, LatecomerError, LeaseHeld, LeaseLost, is_full
from latecomer.lake.lake import Lake
from latecomer.lake.maintenance import compact_and_vacuum

RENEW_S = 15.0
"""Seconds between two renewals."""
EXPIRY_S = 60.0
"""Seconds without a renewal after which a holder on another machine may be dead."""
WATCH_S = 2 * RENEW_S + 5
"""Seconds for which such a holder is watched before it is replaced."""
GIVE_UP_S = 30.0
"""Seconds after which a store that fails is not asked for the lease again; delta-rs has repeated its requests then."""
_FREE = ""
_SCHEMA = pa.schema(
    [
        ("holder", pa.string()),
        ("place", pa.string()),
        ("pid", pa.int64()),
        ("started", pa.float64()),
        ("acquired", pa.float64()),
        ("renewed", pa.float64()),
    ]
)


class Lease:
    """A context manager that holds the tables of one writer.

    Parameters
    ----------
    name
        The writer: ``ingest``, or ``run``, ``repair``, ``adapt``, ``backfill`` or ``check`` with a query's name
        (``run-pairs``).

    Raises
    ------
    LeaseHeld
        A live process holds it.
    InputError
        The lake cannot be written to.
    """

    def __init__(self, lake: Lake, name: str) -> None:
        self._lake, self._name = lake, name
        self._table = lake.table("lease", name)
        self._stop = threading.Event()
        self._renewer: threading.Thread | None = None
        self._acquired = 0.0
        self._confirmed_at = (0.0, 0.0)
        """Clocks when the lease was last known to belong to this process."""
        self._taken_by: str | None = None
        self._commits = 1  # counts the commit before, which freed the lease
        self._refused: Exception | None = None

    def __enter__(self) -> Lease:
        if (problem := self._lake.unwritable()) is not None:
            raise self._unwritable(problem)
        started = time.monotonic()
        for _ in range(5):
            table = self._open()
            row = _row(table)
            if row is not None and self._is_own(row):
                break  # the commit had succeeded, only its answer was lost
            if row is not None and row["holder"] != _FREE and not self._is_dead(row):
                raise LeaseHeld(self._name, row["holder"], time.time() - row["acquired"])
            if time.monotonic() - started > GIVE_UP_S and not isinstance(self._refused, CommitFailedError | None):
                raise self._failure(self._refused)
            self._acquired = time.time()
            if self._commit(table, _me()):
                break
        else:
            row = _row(self._open())
            if (row is None or row["holder"] == _FREE) and not isinstance(self._refused, CommitFailedError):
                raise self._failure(self._refused)
            raise LeaseHeld(self._name, "another process that has just started", 0.0)
        self._confirmed_at = _clocks()
        self._renewer = threading.Thread(target=self._renew, name=f"lease-{self._name}", daemon=True)
        self._renewer.start()
        _held.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self in _held:
            _held.remove(self)
        if self._renewer is not None:
            self._renewer.join()
        # The work is done, or has failed for a reason of its own; a lease that cannot be freed ends with its holder.
        with contextlib.suppress(LatecomerError, DeltaError, OSError):
            table = self._open_own()
            if table is not None and compact_and_vacuum([self._table], self._commits):
                table = self._open_own()
            if table is not None:
                self._commit(table, _FREE)

    def abandon(self) -> None:
        """Free the lease from another thread, right before the process ends; :meth:`confirm` fails from here on."""
        self._stop.set()
        table = self._open_own()
        self._taken_by = self._taken_by or "nobody: this process is ending"
        if table is not None:
            self._commit(table, _FREE)

    def confirm(self) -> None:
        """Confirm before a commit that this process is still the holder.

        Raises
        ------
        LeaseLost
            This process did not renew the lease for so long that another one took it.
        """
        passed_s = max(now - then for then, now in zip(self._confirmed_at, _clocks(), strict=True))
        if self._taken_by is None and passed_s > 2 * RENEW_S:
            self._open_own()
        if self._taken_by is not None:
            raise LeaseLost(self._name, self._taken_by)

    def _unwritable(self, reason: object) -> InputError:
        return InputError("--lake", self._lake.uri, f"cannot be written to ({reason})", self._lake.remedy(reason))

    def _failure(self, reason: Exception | None) -> Exception:
        """Return the error of a place that refuses every commit."""
        return reason if reason is not None and is_full(reason) else self._unwritable(reason)

    def _open_own(self) -> DeltaTable | None:
        """Open the lease's table; None where the lease belongs to this process no longer, which is noted."""
        table = self._open()
        row = _row(table)
        if row is None or not self._is_own(row):
            self._taken_by = "nobody" if row is None else row["holder"] or "a process that has ended"
            return None
        self._confirmed_at = _clocks()
        return table

    def _is_own(self, row: dict[str, Any]) -> bool:
        return bool(row["holder"] == _me() and row["acquired"] == self._acquired)

    def _is_dead(self, row: dict[str, Any]) -> bool:
        """Return whether the holder is gone for good."""
        if _seems_alive(row):
            return False
        if row.get("place") == _place():
            return True
        time.sleep(WATCH_S)
        now = _row(self._open())
        return now is not None and all(now[name] == row[name] for name in ("holder", "acquired", "renewed"))

    def _open(self) -> DeltaTable | None:
        return self._table.open()

    def _commit(self, table: DeltaTable | None, holder: str) -> bool:
        row = {
            "holder": holder,
            "place": _place(),
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "acquired": self._acquired,
            "renewed": time.time(),
        }
        data = pa.Table.from_pylist([row], schema=_SCHEMA)
        try:
            self._table.commit(table, data)
        except (CommitFailedError, DeltaError, FileExistsError, OSError) as error:
            self._refused = error
            return False
        self._commits += 1
        return True

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_S):
            try:
                table = self._open_own()
                if table is not None and not self._commit(table, _me()):
                    table = self._open_own()  # another process may have been first
            except (LatecomerError, DeltaError, OSError):
                continue  # the store does not answer: again at the next turn
            if table is None:
                return


def is_held(lake: Lake, name: str) -> bool:
    """Return whether a live process holds a lease, by its last commit; nothing is written, and nobody is waited for.

    A holder elsewhere that has not renewed the lease for `EXPIRY_S` counts as dead.
    """
    row = _row(lake.table("lease", name).open())
    return row is not None and row["holder"] != _FREE and _seems_alive(row)


_held: list[Lease] = []
"""The leases that this process holds."""


def abandon_all(within_s: float) -> None:
    """Free the leases of this process, which ends next. It takes `within_s` seconds at most."""

    def abandon() -> None:
        for lease in list(_held):
            with contextlib.suppress(LatecomerError, DeltaError, OSError):
                lease.abandon()

    abandoning = threading.Thread(target=abandon, daemon=True)
    abandoning.start()
    abandoning.join(within_s)


def _row(table: DeltaTable | None) -> dict[str, Any] | None:
    """Return the last commit to a lease's table; None where there is none."""
    rows = [] if table is None else table.to_pyarrow_table().to_pylist()
    return rows[0] if rows else None


def _seems_alive(row: dict[str, Any]) -> bool:
    """Return whether the holder runs on this machine, or has renewed the lease elsewhere within `EXPIRY_S`."""
    if row.get("place") == _place():
        return _is_running(row)
    return bool(abs(time.time() - row["renewed"]) < EXPIRY_S)


def _is_running(row: dict[str, Any]) -> bool:
    """Return whether the holder, a process of this machine, is alive."""
    # a new process may have been given the same number: the start time tells
    return bool(psutil.pid_exists(row["pid"]) and abs(_started(row["pid"]) - row["started"]) < 2.0)


def _me() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _place() -> str:
    """Return the scope of process numbers: a boot of a machine and a process namespace; elsewhere the host's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> float:
    """Return when a process started, in ticks since boot.

    No change of the clock moves these; where they are not known, the value is seconds since 1970. It is 0 for a process
    that has ended, also while it keeps its number because its parent has not collected it.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return 0.0 if fields[0] in "ZX" else float(fields[19])
    except (OSError, IndexError):
        pass
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0


def _clocks() -> tuple[float, float]:
    """Return seconds by two clocks: the first goes on while the machine sleeps, the second may be set by hand."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)), time.time()
