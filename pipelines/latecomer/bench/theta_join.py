"""Does the planned theta join beat its baselines in time, comparisons and rows shuffled, and how does it grow?

Where the workload comes from: chapter 4 of the source thesis. Its generator takes a rate, a window span and a value
range per stream; rows of one window have uniform whole values in the range of their stream. Two streams joined by ``>``
(Figures 4.4 to 4.7) and four by three conditions (Table 4.5), windows of 1,000 rows, 10 partitions, 8 to 10 repetitions.

Where it departs from it: one process instead of a cluster of 14 machines, so no network is paid for; rows shuffled are
counted instead. Ranges are ours, since the source does not give them (the second stream reaches half as far again as
the first, further in the test of ranges). Times depend on the machine; comparisons, candidates and rows shuffled do not.
Windows grow past the source's where a method's memory and time allow it; counting and factorising go to 4,000,000 rows
a side, which no method that forms pairs reaches.

A hot window is run by Spark whole and in pieces: the whole run of a query over it, from stored rows to the commit.

Spark SQL (two local threads), DuckDB and Polars (two threads; the extra ``bench`` installs the latter two) count beside us
where they can be imported, each in a process of its own with at most 6 GB and a minute. ``duckdb_rewritten`` is what an
expert would write by hand for one inequality: a running count over the union of both sides, which forms no pair. Case
``one`` has half of all pairs as its result, ``two`` (two independent inequalities) a quarter, ``band`` (two that enclose
a value) four per row: what an inequality join is best at.
"""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latecomer.baselines import theta_join as baselines
from latecomer.bench import plots
from latecomer.bench.goals import Goal, Goals
from latecomer.bench.theta_engines import LIMIT_S, engine, engines
from latecomer.bench.theta_hot import hot_window
from latecomer.bench.theta_workloads import (  # fmt: skip
    CASES,
    GREATER,
    LARGE_ROWS,
    RANGE,
    SEED,
    TWO,
    case_streams,
    two_ranges,
    window,
)
from latecomer.bench.timing import best_of, timed
from latecomer.core.theta_join import join as theta
from latecomer.core.theta_join.edges import Comparison
from latecomer.core.theta_join.plan import PARTITIONS
from latecomer.core.theta_join.ranks import Stats
from latecomer.spark.engine.session import usable_cores

METHODS: dict[str, Callable[..., list[NDArray[np.int64]]]] = {
    "fast_theta_join": theta.rows,
    "cfs": baselines.cfs,
    "one_bucket": baselines.one_bucket,
    "cross_product": baselines.cross_product,
}
LARGE: dict[str, Callable[..., list[NDArray[np.int64]]]] = {
    "fast_theta_join": theta.rows,
    "cfs": baselines.cfs,
    "cfs_any_order": partial(baselines.cfs, ordered=False),
}
FOUR = ((">", ">=", "<"), (">=", ">", "<"), ("<", ">", "<"))
TENFOLD = 1_000_000
"""Rows a side at which the goals for growth and against DuckDB are read."""
MARKS = ("comparisons", "candidates", "rows_kept", "rows_shuffled")


def measure(
    streams: list[list[NDArray[Any]]],
    conditions: list[Comparison],
    methods: Sequence[str],
    repeats: int,
    partitions: int = PARTITIONS,
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
            call = METHODS.get(name) or LARGE[name]
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
        Figures by name; times in ms. ``goals`` says what was to be reached.
    """
    _warm()
    found: dict[str, Any] = {
        "machine": {"cores": usable_cores(), "python": platform.python_version(), "numpy": np.__version__}
    }
    for name, part in (
        ("figure_4_4", _two_streams),
        ("windows", _windows),
        ("figure_4_7", _partitions),
        ("ranges", _value_ranges),
        ("table_4_5", _four_streams),
        ("count", _counts),
        ("engines", engines),
        ("cfs_large", _cfs_large),
        ("hot_window", hot_window),
    ):
        progress(f"theta join: {name}")
        start = time.perf_counter()
        found[name] = part(out, quick)
        progress(f"  {time.perf_counter() - start:.0f} s: {_short(found[name])}")
    return found | {"goals": goals(found, progress)}


def goals(found: dict[str, Any], progress: Callable[[str], None]) -> list[Goal]:
    """What was to be reached, beside what was measured; what was not measured is left out, and said."""
    lines = Goals(progress)
    add = lines.add
    add("two streams, per cent faster than cfs", 30, found["figure_4_4"]["faster_than_cfs_percent"], "at least")
    for ops, row in found["table_4_5"].items():
        add(f"four streams ({ops}), per cent faster than cfs", 33, row["faster_than_cfs_percent"], "at least")
    for work, row in found["cfs_large"].items():
        if row["rows"] < LARGE_ROWS:
            progress(f"{work}: fewer than the goal speaks of")
            continue
        for label, ratio in row["times_cfs"].items():
            add(f"{work}, {label}: cfs's time to ours", 3, ratio, "at least")
        ours, copy = row["fast_theta_join"]["ms"], row["copy_ms"]
        progress(
            f"{work}: to copy the {row['fast_theta_join']['results']:,} results alone takes {copy:.3g} of {ours:.3g} ms"
        )
    sizes, steps = found["count"]["sizes"], found["count"]["times_per_step"]
    for name, times in steps.items():
        tenfold = times[sizes.index(TENFOLD) - 1] if TENFOLD in sizes else None
        add(f"{name}: times the time for {TENFOLD // 10:,} to {TENFOLD:,} rows", 11, tenfold, "at most")
    for emit in ("count", "ranges"):
        row = found["hot_window"].get(emit, {})
        add(f"{emit} through run: times the time for ten times the rows", 11, row.get("tenfold"), "at most")
    for case, by_size in found["engines"].items():
        row = by_size.get(str(TENFOLD), {})
        duckdb = row.get("duckdb", {})
        ratio = duckdb.get("ratio")
        if ratio is None and duckdb.get("why", "").startswith("not done after"):  # it needs that long at least
            ratio = round(LIMIT_S * 1000 / row["latecomer"]["ms"], 1)
        add(f"count, case {case}, {TENFOLD:,} rows: DuckDB's time to ours", 1, ratio, "at least")
    for case in ("one", "band"):
        row = found["engines"].get(case, {}).get(str(LARGE_ROWS), {})
        spark = row.get("spark_sql", {})
        ratio = spark.get("ratio")
        if ratio is None and spark.get("why", "").startswith("not done after"):
            ratio = round(2 * LIMIT_S * 1000 / row["latecomer"]["ms"], 1)
        add(f"count, case {case}, {LARGE_ROWS:,} rows: Spark SQL's time to ours", 50, ratio, "at least")
    return lines.lines


def _short(part: dict[str, Any]) -> str:
    """Times and ratios of a part, by their path, for a reader who waits."""
    told: list[str] = []

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{path} {key}".strip(), inner)
        elif path.rsplit(" ", 1)[-1] in (
            "ms",
            "ratio",
            "faster_than_cfs_percent",
            "whole",
            "pieces",
            "tenfold",
            "why",
            "copy_ms",
        ):
            told.append(f"{path} {value:.4g}" if isinstance(value, float | int) else f"{path}: {value}")
        elif "times_cfs" in path or "times_per_step" in path:
            told.append(f"{path} {value}")

    walk("", part)
    return "; ".join(told)


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
    spark: dict[str, Any] = (
        {"measured": False, "why": "quick"} if quick else engine("spark_sql", "window", 1000, repeats)
    )
    if spark["measured"]:
        series["spark_sql"] = spark["times_ms"]
    plots.line_figure(
        out,
        "theta_join_figure_4_4",
        "repetition",
        "time (ms)",
        list(range(1, repeats + 1)),
        series,
        title=f"Two streams, window of 1,000 rows, {PARTITIONS} partitions",
        log=True,
    )
    return {"methods": seen, "spark_sql": spark, "faster_than_cfs_percent": _saved(seen)}


def _windows(out: Path, quick: bool) -> dict[str, Any]:
    """Figures 4.5 and 4.6: growing windows; a method stops growing where its pairs or memory do not allow more."""
    sizes = (1000, 2000) if quick else (1000, 4000, 8000, 12_000, 16_000)
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
    numbers = (1, 4) if quick else (1, 4, 10, 16, 24, 32, 48, 64)
    size, names = (1000 if quick else 4000), ["fast_theta_join", "cfs"]
    streams = window(7, size / 10, 10, two_ranges(size))
    seen = {p: measure(streams, GREATER, names, 1 if quick else 5, p) for p in numbers}
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
    sizes = (1000, 10_000) if quick else (10_000, 100_000, 1_000_000, 4_000_000)
    chain = [Comparison(i, 0, ">", i + 1, 0) for i in range(3)]
    found: dict[str, Any] = {"sizes": list(sizes)}
    lines: dict[str, list[float]] = {}
    for size in sizes:
        rng = np.random.default_rng([SEED, size])
        streams = [[rng.integers(0, size, size), rng.random(size)] for _ in range(4)]
        cases: list[tuple[str, Callable[..., Any], list[list[NDArray[Any]]], list[Comparison]]] = [
            ("count, one inequality", theta.count, streams[:2], GREATER),
            ("count, two inequalities", theta.count, streams[:2], TWO),
            ("count, chain of four", theta.count, streams, chain),
            ("ranges, one inequality", theta.ranges, streams[:2], GREATER),
            ("ranges, two inequalities", theta.ranges, streams[:2], TWO),
        ]
        for name, function, given, conditions in cases:
            spent, answer = best_of(partial(function, given, conditions), max(3, min(9, 5_000_000 // size)))
            lines.setdefault(name, []).append(spent)
            if isinstance(answer, int):
                found.setdefault("results", {}).setdefault(name, []).append(str(answer))
            del answer
    found["ms"] = lines
    found["times_per_step"] = {n: [round(b / a, 1) for a, b in pairwise(v)] for n, v in lines.items()}
    plots.bar_figure(
        out,
        "theta_join_count",
        "rows per window and stream",
        "time (ms)",
        [f"{size:,}" for size in sizes],
        lines,
        title="Counted and factorised, no pair built",
        log=True,
    )
    return found


def _cfs_large(out: Path, quick: bool) -> dict[str, Any]:
    """Beside cross filter and sort from 100,000 rows on: little overlap of ranges, or a band whose filter keeps all.

    `times_cfs` has cross filter and sort's time to ours by what we give: rows, its own rows as it finds them (it need
    not sort them, ours come in order), a count and ranges (it must form pairs for both). `copy_ms` is what copying the
    result rows takes: no method that writes them does in less.
    """
    found: dict[str, Any] = {}
    work: list[tuple[str, list[list[NDArray[Any]]], list[Comparison], int]] = []
    for size in (2000,) if quick else (100_000, 200_000, 400_000):
        low = size - min(size, 6000)
        streams = window(3, size / 10, 10, [(0, size), (low, low + size)])
        work.append((f"overlap of 6,000, {size:,} rows", streams, GREATER, 1 if quick else 3))
    size = 1000 if quick else 100_000
    work.append((f"band, {size:,} rows", case_streams("band", size), CASES["band"], 1))
    for name, streams, conditions, repeats in work:
        measure(streams, conditions, ["fast_theta_join"], 1)  # pages
        seen = measure(
            streams, conditions, list(LARGE) if repeats > 1 or quick else ["fast_theta_join", "cfs"], repeats
        )
        rows = theta.rows(streams, conditions)
        copy = statistics.median(sum(timed(column.copy)[0] for column in rows) for _ in range(3))
        del rows
        counted, ranged = (
            statistics.median(timed(partial(function, streams, conditions))[0] for _ in range(3))
            for function in (theta.count, theta.ranges)
        )
        cfs, ours = seen["cfs"]["ms"], seen["fast_theta_join"]["ms"]
        ratios = {"emit rows": cfs / ours, "emit count": cfs / counted, "emit ranges": cfs / ranged}
        if "cfs_any_order" in seen:
            ratios["emit rows, its rows unsorted"] = seen["cfs_any_order"]["ms"] / ours
        found[name] = {n: {k: m[k] for k in ("ms", "results", *MARKS)} for n, m in seen.items()} | {
            "rows": len(streams[0][0]),
            "count": {"ms": counted},
            "ranges": {"ms": ranged},
            "copy_ms": copy,
            "times_cfs": {label: round(ratio, 1) for label, ratio in ratios.items()},
        }
    bars: dict[str, list[float]] = {
        name: [seen.get(name, {}).get("ms", float("nan")) for seen in found.values()]
        for name in (*LARGE, "count", "ranges")
    }
    bars["copy of the rows"] = [seen["copy_ms"] for seen in found.values()]
    plots.bar_figure(
        out,
        "theta_join_cfs_large",
        "workload",
        "time (ms)",
        [name.replace(", ", "\n") for name in found],
        bars,
        title="Ours (rows, count, ranges) and cross filter and sort",
        log=True,
    )
    return found


def _saved(seen: dict[str, dict[str, Any]]) -> float | None:
    """By how many per cent ours is faster than cross filter and sort."""
    if "cfs" not in seen or not seen["cfs"]["ms"]:
        return None
    return round(100 * (1 - seen["fast_theta_join"]["ms"] / seen["cfs"]["ms"]), 1)
