"""What the benchmark of theta joins measures on: the thesis' windows, cases for counting, and a clock.

Rows of one window have uniform whole values in the range of their stream; see :mod:`latecomer.bench.theta_join`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latecomer.core.theta_join.edges import Comparison

SEED = 20
RANGE = 1_000
GREATER = [Comparison(0, 0, ">", 1, 0)]
TWO = [Comparison(0, 0, ">", 1, 0), Comparison(0, 1, "<", 1, 1)]
CASES = {"one": GREATER, "two": TWO, "band": [Comparison(0, 0, "<", 1, 0), Comparison(0, 1, ">", 1, 1)]}
LARGE_ROWS = 100_000
"""Rows a side from which on the larger goal against cross filter and sort holds, and at which Spark SQL counts beside us."""


def window(seed: int, rate_per_s: float, span_s: float, ranges: Sequence[tuple[int, int]]) -> list[list[NDArray[Any]]]:
    """One window: per stream one column of ``rate x span`` uniform whole values in a half-open range.

    Parameters
    ----------
    seed
        Of the generator.
    rate_per_s, span_s
        Rows per second and seconds per window.
    ranges
        Per stream, lowest value and the first that is too high.
    """
    rng = np.random.default_rng([SEED, seed])
    rows = round(rate_per_s * span_s)
    return [[rng.integers(low, high, rows)] for low, high in ranges]


def two_ranges(size: int) -> list[tuple[int, int]]:
    """Value ranges of two streams for a window: overlapping for the most part, the second shifted upward by half."""
    reach = max(RANGE, size)
    return [(0, reach), (reach // 2, reach + reach // 2)]


def case_streams(case: str, size: int) -> list[list[NDArray[Any]]]:
    """Two streams of two columns for one of `CASES`, or ``window``: the rows of Figure 4.4."""
    if case == "window":
        return [[column, column] for (column,) in window(1, size / 10, 10, two_ranges(size))]
    rng = np.random.default_rng([SEED, size])
    one, other = (rng.integers(0, size, size) for _ in range(2))
    if case == "band":
        return [[one - 2, one + 3], [other, other]]
    return [[one, rng.random(size)], [other, rng.random(size)]]


def last_json_line(text: str) -> dict[str, Any]:
    """Parse the last line of JSON that a process printed; an engine may print its progress before it on the line."""
    line = next(line for line in reversed(text.splitlines()) if line.rstrip().endswith("}"))
    document: dict[str, Any] = json.loads(line[line.index("{") :])
    return document
