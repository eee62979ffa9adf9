"""Benchmarks: one module per query kind, which redraws the figures of its paper; one of promises; and some of commands.

Every such module has a function ``run(data, out, progress, *, quick)``. It writes a PNG and a CSV per figure into `out`
and returns a JSON-able summary. All methods of a benchmark are measured in one run, on one seeded workload.
What the measurements taught is written down in ``docs/experiments``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from latecomer.bench.goals import Goal, Progress, Summary
from latecomer.lake.errors import InputError

_KINDS = ("join", "aggregate", "topk", "theta_join", "membership")
NAMES = (*_KINDS, "promise", "ingest", "publish", "speed", "plans", "scale", "memory")

SPARK_ROWS = {"join": 2_000_000, "aggregate": 10_000_000, "topk": 10_000_000}
"""Generated events for the comparison with Spark's own operators."""


def run(
    name: str, data: Path | None, out: Path, progress: Progress, quick: bool = False, held_out: bool = False
) -> Summary:
    """Run one benchmark.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    data : Path or None
        Folder of the real data sets (``zeek_events.parquet``, ``ooo_events.parquet``); None leaves out the parts that
        need them.
    out : Path
        Folder for figures; it is created if it does not exist.
    progress : callable
        Called with a line of text now and then.
    quick : bool
        Run the same code on a workload of seconds, for tests.
    held_out : bool
        Draw the streams of `promise` with the seeds that are for its report alone.

    Returns
    -------
    dict
        JSON-able measurements; ``goals`` lists the goals of the benchmark and whether each was met.

    Raises
    ------
    ValueError
        No benchmark has that name, or it has no streams that are held out.
    InputError
        Matplotlib, which draws the figures, is not installed.
    """
    if name not in NAMES:
        raise ValueError(f"benchmark is {name!r}: choose one of {', '.join(NAMES)}")
    if held_out and name != "promise":
        raise ValueError(f"held_out is of the benchmark promise, not of {name}")
    if find_spec("matplotlib") is None:
        raise InputError("bench", name, "needs Matplotlib", "install latecomer[plot] (matplotlib)")
    out.mkdir(parents=True, exist_ok=True)
    options = {"held_out": True} if held_out else {}
    summary: Summary = import_module(f"latecomer.bench.{name}").run(data, out, progress, quick=quick, **options)
    if name in SPARK_ROWS and not quick:
        from latecomer.bench import spark_speed

        speed = spark_speed.measure(name, SPARK_ROWS[name], progress)
        goals = summary["goals"]
        assert isinstance(goals, list)
        speed_goals: list[Goal] = spark_speed.goals(name, speed, progress)
        summary |= {"spark_speed": speed, "goals": [*goals, *speed_goals]}
    return summary
