"""Keep the alarm of delta-rs from a user's sight: where a file cannot be written, its threads panic as they end.

A panic of that kind changes nothing: the call raises the error of the write, which a command reports in one line. But
Rust prints each panic to the process's stderr itself, some ten lines of it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_PANIC = re.compile(
    rb"\n?thread '[^']*' (\(\d+\) )?panicked at [^\n]*object_store[^\n]*:\nAlready shut down\n"
    rb"(stack backtrace:\n([ ]+[^\n]*\n)*)?(note: [^\n]*\n)?"
)
_LAST_ALARM_S = 0.1
"""Seconds after an error in which the threads of delta-rs still end."""
_holding = threading.Lock()


@contextmanager
def unseen() -> Iterator[None]:
    """Hold back what is written to stderr until the block ends, and leave out panics over a file that is shut down.

    Other lines follow at the end of the block, also from other threads. Where another thread is in such a block, or the
    system has no files in memory, nothing is held back.
    """
    if not hasattr(os, "memfd_create") or not _holding.acquire(blocking=False):
        yield
        return
    try:
        held = os.memfd_create("latecomer-stderr")
        sys.stderr.flush()
        stderr = os.dup(2)
    except (OSError, AttributeError, ValueError):  # the process has no stderr
        _holding.release()
        yield
        return
    os.dup2(held, 2)
    try:
        yield
    except BaseException:
        time.sleep(_LAST_ALARM_S)
        raise
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        size = os.fstat(held).st_size
        lines = os.pread(held, size, 0) if size else b""
        os.close(held)
        _holding.release()
        if rest := _PANIC.sub(b"", lines):
            os.write(2, rest)
