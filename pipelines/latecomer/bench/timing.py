"""The time a call takes, and calls that take it side by side."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

Found = TypeVar("Found")


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of wall clock, and the answer; collection of garbage is off meanwhile."""
    gc.disable()
    try:
        start = time.perf_counter()
        answer = work()
        return (time.perf_counter() - start) * 1000, answer
    finally:
        gc.enable()


def at_once(work: Callable[..., Found], tasks: Sequence[tuple[Any, ...]]) -> list[Found]:
    """What `work` finds for each of these arguments, in a fresh process each, at the same time."""
    with ProcessPoolExecutor(len(tasks), mp_context=get_context("spawn")) as pool:
        running = [pool.submit(work, *task) for task in tasks]
        return [each.result() for each in running]
