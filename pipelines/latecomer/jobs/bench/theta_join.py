"""Does the planned theta join beat its baselines in time, comparisons and rows shuffled, and how does it grow?

Where the workload comes from: chapter 4 of the source thesis. Its generator takes a rate, a window span and a value
range per stream; rows of one window have uniform whole values in the range of their stream. Two streams joined by ``>``
(Figures 4.4 to 4.7) and four by three conditions (Table 4.5), windows of 1,000 rows, 10 partitions, 8 to 10 repetitions.

Where it departs from it: one process instead of a cluster of 14 machines, so no network is paid for; rows shuffled are
counted instead. Ranges are ours, since the source does not give them (the second stream reaches half as far again as
the first, further in the test of ranges). Spark SQL is not run here. Times depend on the machine; comparisons,
candidates and rows shuffled do not. Windows grow past the source's where a method's memory and time allow it; counting
and factorising go to 1,000,000 rows a side, which no method that forms pairs reaches. DuckDB and Polars count beside us
where they can be imported.
"""

from __future__ import annotations

import gc
import importlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latecomer.baselines import theta_join as baselines
from latecomer.core import theta_join as theta
from latecomer.core.theta_join import Comparison, Stats
from latecomer.jobs.bench import plots

SEED = 20
METHODS: dict[str, Callable[..., list[NDArray[np.int64]]]] = {
    "fast_theta_join": theta.rows,
    "cfs": baselines.cfs,
    "one_bucket": baselines.one_bucket,
    "cross_product": baselines.cross_product,
}
RANGE = 1_000
GREATER = [Comparison(0, 0, ">", 1, 0)]
FOUR = ((">", ">=", "<"), (">=", ">", "<"), ("<", ">", "<"))
MARKS = ("comparisons", "candidates", "rows_kept", "rows_shuffled")


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


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of wall clock, and the answer; collection of garbage is off meanwhile."""
    gc.disable()
    try:
        start = time.perf_counter()
        answer = work()
        return (time.perf_counter() - start) * 1000, answer
    finally:
        gc.enable()


def measure(
    streams: list[list[NDArray[Any]]],
    conditions: list[Comparison],
    methods: Sequence[str],
    repeats: int,
    partitions: int = 10,
) -> dict[str, dict[str, Any]]:
    """Every method on one window, methods taking turns; median time in ms and the counts.

    Raises
    ------
    RuntimeError
        If two methods disagree about the number of results.
    """
    gc.collect()
    times: dict[str, list[float]] = {name: [] for name in methods}
    counts: dict[str, Stats] = {}
    for _ in range(repeats):
        for name in methods:
            counts[name] = Stats()
            call = METHODS[name]
            spent, _ = timed(partial(call, streams, conditions, partitions=partitions, stats=counts[name]))
            times[name].append(spent)
    if len({stats.results for stats in counts.values()}) > 1:
        raise RuntimeError(f"methods disagree: { ({name: stats.results for name, stats in counts.items()}) }")
    return {
        name: {"ms": statistics.median(times[name]), "times_ms": times[name], "results": counts[name].results}
        | {mark: getattr(counts[name], mark) for mark in MARKS}
        for name in methods
    }


def run(data: Path | None, out: Path, progress: Callable[[str], None], *, quick: bool = False) -> dict[str, Any]:
    """Measure everything; one PNG and one CSV per figure in `out`.

    Parameters
    ----------
    data
        Not used: the workload is generated.
    out
        Folder for figures, which exists.
    progress
        Called with a line of text now and then.
    quick
        Small windows and few repetitions.

    Returns
    -------
    dict
        Figures by name; times in ms.
    """
    _warm()
    found: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__}
    }
    for name, part in (
        ("figure_4_4", _two_streams),
        ("windows", _windows),
        ("figure_4_7", _partitions),
        ("ranges", _value_ranges),
        ("table_4_5", _four_streams),
        ("count", _counts),
    ):
        progress(f"theta join: {name}")
        found[name] = part(out, quick)
    progress("theta join: done")
    return found


def _warm() -> None:
    """Compile every loop before a clock runs."""
    streams = window(0, 20, 1, [(0, 9)] * 4)
    conditions = [Comparison(i, 0, ">", i + 1, 0) for i in range(3)]
    two = [*GREATER, Comparison(0, 0, "<", 1, 0)]
    for method in METHODS.values():
        method(streams, conditions)
    theta.count(streams, conditions)
    theta.count(streams[:2], two)
    theta.expand(theta.ranges(streams[:2], two))


def _two_streams(out: Path, quick: bool) -> dict[str, Any]:
    """Figure 4.4: a window of 1,000 rows, 10 partitions, 8 repetitions, all methods."""
    repeats = 3 if quick else 8
    seen = measure(window(1, 100, 10, two_ranges(1000)), GREATER, list(METHODS), repeats)
    series: dict[str, Sequence[float | None]] = {name: m["times_ms"] for name, m in seen.items()}
    plots.line_figure(
        out,
        "theta_join_figure_4_4",
        "repetition",
        "time (ms)",
        list(range(1, repeats + 1)),
        series,
        title="Two streams, window of 1,000 rows, 10 partitions",
        log=True,
    )
    return {"methods": seen, "faster_than_cfs_percent": _saved(seen)}


def _windows(out: Path, quick: bool) -> dict[str, Any]:
    """Figures 4.5 and 4.6: growing windows; a method stops growing where its pairs or memory do not allow more."""
    sizes = (1000, 2000) if quick else (1000, 2000, 4000, 8000, 16_000)
    largest = {"fast_theta_join": 16_000, "cfs": 8000, "one_bucket": 8000, "cross_product": 8000}
    by_size = {}
    for size in sizes:
        methods = [name for name in METHODS if size <= largest[name]]
        by_size[size] = measure(
            window(size, size / 10, 10, two_ranges(size)), GREATER, methods, 3 if size < 8000 and not quick else 1
        )
    for figure, mark, label in (
        ("figure_4_5", "ms", "time (ms)"),
        ("figure_4_6", "candidates", "candidate pairs"),
        ("comparisons", "comparisons", "comparisons"),
        ("shuffled", "rows_shuffled", "rows shuffled"),
    ):
        series = {name: [by_size[size].get(name, {}).get(mark) for size in sizes] for name in METHODS}
        plots.line_figure(
            out,
            f"theta_join_{figure}",
            "rows per window and stream",
            label,
            list(sizes),
            series,
            title=f"Growing windows: {label}",
            log=True,
        )
    return {
        str(size): {name: {k: v for k, v in m.items() if k != "times_ms"} for name, m in seen.items()}
        | {"faster_than_cfs_percent": _saved(seen)}
        for size, seen in by_size.items()
    }


def _partitions(out: Path, quick: bool) -> dict[str, Any]:
    """Figure 4.7: 1 to 64 partitions on one window."""
    numbers = (1, 4) if quick else (1, 2, 4, 8, 10, 16, 32, 64)
    size, names = (1000 if quick else 4000), ["fast_theta_join", "cfs"]
    streams = window(7, size / 10, 10, two_ranges(size))
    seen = {p: measure(streams, GREATER, names, 1 if quick else 3, p) for p in numbers}
    series: dict[str, Sequence[float | None]] = {name: [seen[p][name]["ms"] for p in numbers] for name in names}
    plots.line_figure(
        out,
        "theta_join_figure_4_7",
        "partitions",
        "time (ms)",
        list(numbers),
        series,
        title=f"Partitions, window of {size:,} rows, one process",
        log=True,
    )
    return {str(p): {n: {k: m[k] for k in ("ms", *MARKS)} for n, m in methods.items()} for p, methods in seen.items()}


def _value_ranges(out: Path, quick: bool) -> dict[str, Any]:
    """The further apart the streams' ranges, the more the coarse filter drops."""
    size = 1000 if quick else 4000
    shifts = (0.0, 0.5) if quick else (0.0, 0.25, 0.5, 0.75, 0.9)
    seen = {}
    for shift in shifts:
        ranges = [(0, size), (int(shift * size), int((1 + shift) * size))]
        seen[shift] = measure(window(9, size / 10, 10, ranges), GREATER, list(METHODS), 1 if quick else 2)
    series = {name: [seen[shift][name]["ms"] for shift in shifts] for name in METHODS}
    plots.line_figure(
        out,
        "theta_join_ranges",
        "shift of the second range",
        "time (ms)",
        list(shifts),
        series,
        title=f"Difference between ranges, window of {size:,} rows",
        log=True,
    )
    return {
        str(s): {n: {k: m[k] for k in ("ms", "results", *MARKS)} for n, m in ms.items()}
        | {"faster_than_cfs_percent": _saved(ms)}
        for s, ms in seen.items()
    }


def _four_streams(out: Path, quick: bool) -> dict[str, Any]:
    """Table 4.5: four streams, three conditions.

    Uniform streams of one range would give some 10**10 results of 1,000 rows each; ranges are shifted so that
    neighbouring streams overlap by little, as a window that can be answered row by row must (a run of conditions of one
    direction shares the shift).
    """
    size = 60 if quick else 1000
    names = ["fast_theta_join", "cfs"]
    found: dict[str, Any] = {}
    for ops in FOUR:
        conditions = [Comparison(i, 0, op, i + 1, 0) for i, op in enumerate(ops)]
        up = [op in (">", ">=") for op in ops]
        low, ranges = 0, [(0, RANGE * 100)]
        for i in range(len(ops)):
            run = 1 + sum(up[j] == up[i] for j in (i - 1, i + 1) if 0 <= j < len(ops))
            low += int(0.94 / run * RANGE * 100) * (1 if up[i] else -1)
            ranges.append((low, low + RANGE * 100))
        streams = window(5, size / 10, 10, ranges)
        seen = measure(streams, conditions, names, 1 if quick else 8)
        found[" ".join(ops)] = {n: {k: m[k] for k in ("ms", "results", *MARKS)} for n, m in seen.items()} | {
            "faster_than_cfs_percent": _saved(seen)
        }
    plots.bar_figure(
        out,
        "theta_join_table_4_5",
        "conditions",
        "time (ms)",
        list(found),
        {name: [row[name]["ms"] for row in found.values()] for name in names},
        title=f"Four streams, windows of {size:,} rows",
        log=True,
    )
    columns = ("conditions", "method", "ms", "results", *MARKS)
    rows = [(ops, n, *(row[n][k] for k in columns[2:])) for ops, row in found.items() for n in names]
    plots.table(out, "theta_join_table_4_5_counts", columns, rows)
    return found


def _counts(out: Path, quick: bool) -> dict[str, Any]:
    """Counting and factorising: no pair is built, so a window of a million rows a side is a matter of a second."""
    sizes = (1000, 10_000) if quick else (10_000, 100_000, 1_000_000)
    two = [Comparison(0, 0, ">", 1, 0), Comparison(0, 1, "<", 1, 1)]
    chain = [Comparison(i, 0, ">", i + 1, 0) for i in range(3)]
    found: dict[str, Any] = {"sizes": list(sizes)}
    lines: dict[str, list[float | None]] = {}
    for size in sizes:
        rng = np.random.default_rng([SEED, size])
        streams = [[rng.integers(0, size, size), rng.random(size)] for _ in range(4)]
        cases: list[tuple[str, Callable[..., Any], list[list[NDArray[Any]]], list[Comparison]]] = [
            ("count, one inequality", theta.count, streams[:2], GREATER),
            ("count, two inequalities", theta.count, streams[:2], two),
            ("count, chain of four", theta.count, streams, chain),
            ("ranges, one inequality", theta.ranges, streams[:2], GREATER),
            ("ranges, two inequalities", theta.ranges, streams[:2], two),
        ]
        for name, function, given, conditions in cases:
            work = partial(function, given, conditions)
            runs = [timed(work) for _ in range(1 if size >= 1_000_000 else 3)]
            lines.setdefault(name, []).append(min(spent for spent, _ in runs))
            if isinstance(runs[0][1], int):
                found.setdefault("results", {}).setdefault(name, []).append(str(runs[0][1]))
            del runs
        found.setdefault("others", {})[str(size)] = {name: _other(name, streams[:2]) for name in ("duckdb", "polars")}
    found["ms"] = lines
    plots.line_figure(
        out,
        "theta_join_count",
        "rows per window and stream",
        "time (ms)",
        list(sizes),
        lines,
        title="Counted and factorised, no pair built",
        log=True,
    )
    return found


def _other(name: str, streams: list[list[NDArray[Any]]]) -> dict[str, Any]:
    """Another engine's count for one inequality; says why where it is not measured."""
    try:
        engine: Any = importlib.import_module(name)
    except ImportError:
        return {"measured": False, "why": f"{name} is not installed"}
    left, right = streams[0][0], streams[1][0]
    if len(left) > 100_000:
        return {"measured": False, "why": "it forms every pair: measured up to 100,000 rows only"}
    if name == "duckdb":
        import pyarrow as pa

        session = engine.connect()
        session.register("r", pa.table({"b": left}))
        session.register("s", pa.table({"b": right}))
        spent, answer = timed(lambda: session.sql("select count(*) from r, s where r.b > s.b").fetchone()[0])
    else:
        frames = [engine.DataFrame({key: values}).lazy() for key, values in (("b", left), ("c", right))]
        query = frames[0].join_where(frames[1], engine.col("b") > engine.col("c")).select(engine.len())
        spent, answer = timed(lambda: query.collect().item())
    return {"measured": True, "rows": len(left), "ms": spent, "results": str(answer)}


def _saved(seen: dict[str, dict[str, Any]]) -> float | None:
    """By how many per cent ours is faster than cross filter and sort."""
    if "cfs" not in seen or not seen["cfs"]["ms"]:
        return None
    return round(100 * (1 - seen["fast_theta_join"]["ms"] / seen["cfs"]["ms"]), 1)
