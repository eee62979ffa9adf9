"""Measure the time of a call, and run calls side by side in fresh processes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar, TypeVarTuple

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Call `work` without garbage collection; return the milliseconds of wall clock and the result."""
    gc.disable()
    try:
        start = time.perf_counter()
        result = work()
        return (time.perf_counter() - start) * 1000, result
    finally:
        gc.enable()


def best_of(work: Callable[[], Result], repeats: int) -> tuple[float, Result]:
    """Call `work` several times; return the shortest time in milliseconds and the last result."""
    spent, result = timed(work)
    for _ in range(repeats - 1):
        del result  # large results of two calls do not fit into memory together
        again, result = timed(work)
        spent = min(spent, again)
    return spent, result


def run_in_processes(work: Callable[[*Arguments], Result], tasks: Sequence[tuple[*Arguments]]) -> list[Result]:
    """Call `work` with every tuple of arguments at the same time, each in a fresh process; return results in order."""
    with ProcessPoolExecutor(len(tasks), mp_context=get_context("spawn")) as pool:
        running = [pool.submit(work, *task) for task in tasks]
        return [future.result() for future in running]
