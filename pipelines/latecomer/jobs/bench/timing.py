"""The time a call takes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of wall clock, and the answer; collection of garbage is off meanwhile."""
    gc.disable()
    try:
        start = time.perf_counter()
        answer = work()
        return (time.perf_counter() - start) * 1000, answer
    finally:
        gc.enable()
