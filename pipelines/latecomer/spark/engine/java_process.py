"""The Java process of a session: how it ended, and that it ends with the Python process that started it.

Python cannot rely on the Java process to answer: one without memory may keep its sockets open for ever. So its exit
code and its process number are used here, and never a call to it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

OUT_OF_MEMORY_CODE = 3
"""The exit code of a Java process that runs out of memory, by ``-XX:+ExitOnOutOfMemoryError``."""
ORPHAN_S = 5
"""Seconds that a Java process has to end by itself once the Python process has been killed."""
POLL_S = 1.0
"""Seconds between two looks at the parent process, where that is the Java process."""
_GUARD = """
if read -r _; then exit; fi
i=0
while [ $i -lt "$2" ]; do kill -0 "$1" 2>/dev/null || exit; sleep 0.2; i=$((i + 1)); done
kill -9 "$1"
"""
"""A shell script that kills process `$1`, `$2` fifths of a second after its input was closed without a line."""

_PARENT = os.getppid()

_guards: list[subprocess.Popen[bytes]] = []
"""Shells that run `_GUARD`. The pipes to them close when this process ends, however it does."""
_watched: set[int] = set()
"""Process numbers of Java processes that have a guard; 0 is the one that started this process."""


def executable() -> str:
    """Return the ``java`` that is started: of ``JAVA_HOME`` where that is set, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java") or "java"


def started() -> subprocess.Popen[bytes] | None:
    """Return the Java process that this process has started; None: there is none, or spark-submit started it."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    return None if gateway is None else getattr(gateway, "proc", None)


def _starting() -> list[psutil.Process]:
    """Return the Java processes below this one that PySpark holds no handle for yet."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        group, below = os.getpgrp(), psutil.Process().children(recursive=True)
        return [child for child in below if _is_spark_of(child, group)]
    return []


def _is_spark_of(process: psutil.Process, group: int) -> bool:
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        words = process.cmdline()
        return os.getpgid(process.pid) == group and "pyspark-shell" in words
    return False


def guard() -> None:
    """Make sure that the Java process ends with this process, even if this one is killed and that one does not answer.

    Java ends when its standard input is closed, if it has the memory for that. A shell waits with it, and kills it
    after `ORPHAN_S` seconds.
    """
    java = started()
    if java is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return
    key = 0 if java is None else java.pid
    if key in _watched:
        return
    _watched.add(key)
    if _when_ended is not None:
        threading.Thread(target=_watch, args=(_when_ended,), daemon=True, name="end of the Java process").start()
    if java is None:
        return
    with contextlib.suppress(OSError):  # there is no shell: Java is left to notice by itself
        guarding = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "latecomer-guard", str(java.pid), str(5 * ORPHAN_S)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal to the terminal's processes is not for it
        )
        _guards.append(guarding)


def exit_code(wait_s: float = 0.0) -> int | None:
    """Return the exit code of the Java process that this process started; None: there is none, or it is alive.

    Parameters
    ----------
    wait_s
        Seconds to wait for its end. A process is collected a moment after its sockets are closed.
    """
    java = started()
    if java is None:
        return None
    with contextlib.suppress(subprocess.TimeoutExpired):
        return java.wait(wait_s)
    return None


def is_orphan() -> bool:
    """Return whether spark-submit started this process and has ended."""
    return "PYSPARK_GATEWAY_PORT" in os.environ and os.getppid() != _PARENT


def stop(number: signal.Signals) -> None:
    """Send a signal to the Java process that this process started, also while it is starting."""
    import psutil

    java = started()
    with contextlib.suppress(OSError, psutil.Error):
        if java is not None:
            java.send_signal(number)
            return
        for process in _starting():
            process.send_signal(number)


def end(wait_s: float) -> None:
    """End the Java process: it has `wait_s` seconds after SIGTERM to remove its temporary files, and is killed then."""
    java = started()
    if java is None:
        stop(signal.SIGKILL)
    elif exit_code() is None:
        stop(signal.SIGTERM)
        if exit_code(wait_s) is None:
            stop(signal.SIGKILL)
            exit_code(wait_s)
    for guarding in _guards:
        if guarding.stdin is not None and exit_code() is not None:
            with contextlib.suppress(OSError):
                guarding.stdin.write(b"ended\n")
                guarding.stdin.flush()


def when_ended(call: Callable[[], None]) -> None:
    """Call `call`, from a thread, when a Java process has ended that :func:`guard` sees from here on."""
    global _when_ended
    _when_ended = call


_when_ended: Callable[[], None] | None = None


def _watch(call: Callable[[], None]) -> None:
    """Wait for the end of the Java process, and call `call` then."""
    java = started()
    if java is not None:
        java.wait()
    else:
        while not is_orphan():
            time.sleep(POLL_S)
    call()
