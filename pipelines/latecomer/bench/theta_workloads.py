"""Generate the workloads of the benchmark of theta joins: the windows of the thesis, and cases for counting.

Rows of one window have uniform whole values in the range of their stream; see :mod:`latecomer.bench.theta_join`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Required, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from latecomer.core.theta_join.edges import Comparison

Column: TypeAlias = NDArray[np.int64] | NDArray[np.float64]
Columns: TypeAlias = list[list[Column]]
"""The operand columns of every stream of a window."""


class EngineResult(TypedDict, total=False):
    """The time and result of an engine's count, or the reason why it was not measured.

    `ratio` is the engine's time over ours.
    """

    measured: Required[bool]
    why: str
    ms: float
    times_ms: list[float]
    results: str
    version: str
    ratio: float


class HotWindow(TypedDict, total=False):
    """The best seconds of a run with windows `whole` and in `pieces`, or the reason why it was not measured.

    `ratio` is whole over pieces; `tenth` is the time of a whole window with a tenth of the rows, `tenfold` whole over
    tenth.
    """

    measured: Required[bool]
    why: str
    whole: float
    pieces: float
    times_s: dict[str, list[float]]
    ratio: float
    tenth: float
    tenfold: float


SEED = 20
RANGE = 1_000
GREATER = [Comparison(0, 0, ">", 1, 0)]
TWO = [Comparison(0, 0, ">", 1, 0), Comparison(0, 1, "<", 1, 1)]
CASES = {"one": GREATER, "two": TWO, "band": [Comparison(0, 0, "<", 1, 0), Comparison(0, 1, ">", 1, 1)]}
LARGE_ROWS = 100_000
"""Rows per side at which the goals against cross filter and sort (from here on) and against Spark SQL are judged."""


def window(seed: int, rate_per_s: float, span_s: float, ranges: Sequence[tuple[int, int]]) -> Columns:
    """Generate one window: per stream one column of ``rate x span`` uniform whole values.

    Parameters
    ----------
    seed : int
        Seed of the generator.
    rate_per_s, span_s : float
        Rows per second and seconds per window.
    ranges : sequence of pairs of int
        Half-open range of values per stream.
    """
    rng = np.random.default_rng([SEED, seed])
    rows = round(rate_per_s * span_s)
    return [[rng.integers(low, high, rows)] for low, high in ranges]


def two_ranges(size: int) -> list[tuple[int, int]]:
    """Return the value ranges of two streams that overlap by half: the second is shifted upward by half a range."""
    reach = max(RANGE, size)
    return [(0, reach), (reach // 2, reach + reach // 2)]


def case_streams(case: str, size: int) -> Columns:
    """Generate two streams of two columns for one of `CASES`, or for ``window``, the rows of Figure 4.4."""
    if case == "window":
        return [[column, column] for (column,) in window(1, size / 10, 10, two_ranges(size))]
    rng = np.random.default_rng([SEED, size])
    left, right = (rng.integers(0, size, size) for _ in range(2))
    if case == "band":
        return [[left - 2, left + 3], [right, right]]
    return [[left, rng.random(size)], [right, rng.random(size)]]


def last_json_line(text: str) -> str:
    """Return the last JSON object that a process printed; an engine may print its progress before it on the line."""
    line = next(line for line in reversed(text.splitlines()) if line.rstrip().endswith("}"))
    return line[line.index("{") :]
