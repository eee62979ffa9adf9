"""Benchmarks: one module per kind of query, each redraws the figures of the paper that it follows.

Every module has one function, ``run(data, out, progress, *, quick)``: it writes a PNG and a CSV per figure into `out` and
returns its figures as JSON-able values. All methods of a benchmark are measured in one run on one seeded workload.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

NAMES = ("join", "aggregate", "topk", "theta_join", "membership")

SPARK_ROWS = {"join": 2_000_000, "aggregate": 10_000_000, "topk": 10_000_000}
"""Generated events for the comparison with Spark's own ways."""


def run(
    name: str, data: Path | None, out: Path, progress: Callable[[str], None], quick: bool = False
) -> dict[str, Any]:
    """Run one benchmark.

    Parameters
    ----------
    name
        One of `NAMES`.
    data
        Folder of the real data sets (``zeek_events.parquet``, ``ooo_events.parquet``); None: what needs them is left out.
    out
        Folder for figures; made where it is missing.
    progress
        Called with a line of text now and then.
    quick
        A version of seconds, for tests: same code, small workload.

    Raises
    ------
    ValueError
        No benchmark has that name.
    """
    if name not in NAMES:
        raise ValueError(f"benchmark is {name!r}: choose one of {', '.join(NAMES)}")
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = import_module(f"latecomer.bench.{name}").run(data, out, progress, quick=quick)
    if name in SPARK_ROWS and not quick:
        from latecomer.bench import spark_speed

        found["spark_speed"] = spark_speed.measure(name, SPARK_ROWS[name], progress)
        found["goals"] = [*found["goals"], *spark_speed.goals(name, found["spark_speed"], progress)]
    return found
