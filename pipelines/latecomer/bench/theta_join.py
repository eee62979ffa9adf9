"""The benchmark of theta joins: does the planned join beat its baselines, and how do its time and comparisons grow?

Where the workload comes from: chapter 4 of the source thesis. Its generator takes a rate, a window span and a range of
values per stream; rows of one window have uniform whole values in the range of their stream. Two streams are joined by
``>`` (Figures 4.4 to 4.7) and four by three conditions (Table 4.5), with windows of 1,000 rows, 10 partitions and 8 to
10 repetitions.

Where it departs from the thesis:

* One process takes the place of a cluster of 14 machines, so no network is paid for; rows shuffled are counted instead.
* The thesis gives no ranges. In ours the second stream reaches half as far again as the first, and further in the test
  of ranges.
* Windows grow as far as the memory and time of a method allow. Counting and factorising go to 4,000,000 rows per side,
  which no method that forms pairs reaches.

Times depend on the machine; comparisons, candidates and rows shuffled do not.

Added here: a hot window, which `run` answers whole and in pieces, from stored rows to the commit
(:mod:`latecomer.bench.theta_hot`); and other engines (:mod:`latecomer.bench.theta_engines`). Spark SQL (two local
threads), DuckDB and Polars (two threads; the extra ``bench`` installs the latter two) count where they can be imported,
each in a process of its own with at most 6 GB and a minute. ``duckdb_rewritten`` is the query that an expert would
write by hand for one inequality: a running count over the union of both sides, which forms no pair. Case ``one`` has
half of all pairs as its result, ``two`` (two independent inequalities) a quarter, ``band`` (two that enclose a value)
four per row, the best case of an inequality join.
"""

from __future__ import annotations

import gc
import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeAlias, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from latecomer.baselines import theta_join as baselines
from latecomer.bench import plots
from latecomer.bench.goals import Goals, Progress, Summary
from latecomer.bench.theta_engines import LIMIT_S, engine, engines
from latecomer.bench.theta_hot import hot_window
from latecomer.bench.theta_workloads import (  # fmt: skip
    CASES,
    GREATER,
    LARGE_ROWS,
    RANGE,
    SEED,
    TWO,
    Columns,
    EngineResult,
    HotWindow,
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

Figures: TypeAlias = dict[str, float]
"""Figures of one method by name: ``ms``, ``results`` and `MARKS`."""
Result = TypeVar("Result")


class Method(Protocol):
    """A theta join that returns row numbers per stream."""

    def __call__(
        self,
        streams: Columns,
        conditions: Sequence[Comparison],
        *,
        partitions: int = PARTITIONS,
        stats: Stats | None = None,
    ) -> list[NDArray[np.int64]]:
        """Join the rows of one window."""


class TwoStreams(TypedDict):
    """Figure 4.4, with Spark SQL on the same rows."""

    methods: dict[str, dict[str, object]]
    spark_sql: EngineResult
    faster_than_cfs_percent: float | None


class FourStreams(TypedDict):
    """A row of Table 4.5."""

    fast_theta_join: Figures
    cfs: Figures
    faster_than_cfs_percent: float | None


class Counts(TypedDict):
    """Times of counting and factorising by rows per side, exact results, and growth from size to size."""

    sizes: list[int]
    results: dict[str, list[str]]
    ms: dict[str, list[float]]
    times_per_step: dict[str, list[float]]


class LargeWindow(TypedDict, total=False):
    """A large window by both methods; `times_cfs` is the time of cross filter and sort over ours, by form of result."""

    fast_theta_join: Figures
    cfs: Figures
    cfs_any_order: Figures
    rows: int
    count: Figures
    ranges: Figures
    copy_ms: float
    times_cfs: dict[str, float]


METHODS: dict[str, Method] = {
    "fast_theta_join": theta.rows,
    "cfs": baselines.cfs,
    "one_bucket": baselines.one_bucket,
    "cross_product": baselines.cross_product,
}
LARGE: dict[str, Method] = {
    "fast_theta_join": theta.rows,
    "cfs": baselines.cfs,
    "cfs_any_order": partial(baselines.cfs, ordered=False),
}
FOUR = ((">", ">=", "<"), (">=", ">", "<"), ("<", ">", "<"))
TENFOLD = 1_000_000
"""Rows per side at which the goals for growth and against DuckDB are judged."""
MARKS = ("comparisons", "candidates", "rows_kept", "rows_shuffled")


@dataclass(frozen=True)
class Measured:
    """The times of one method on one window, and the counts of its last call."""

    times_ms: list[float]
    stats: Stats

    @property
    def ms(self) -> float:
        """The median time."""
        return statistics.median(self.times_ms)

    def figures(self, *names: str) -> Figures:
        """Return ``ms`` and `MARKS`, with the named counts between them."""
        return {"ms": self.ms} | {name: getattr(self.stats, name) for name in (*names, *MARKS)}


def measure(
    streams: Columns,
    conditions: list[Comparison],
    methods: Sequence[str],
    repeats: int,
    partitions: int = PARTITIONS,
) -> dict[str, Measured]:
    """Run every method on one window, methods taking turns.

    Parameters
    ----------
    streams, conditions
        The operand columns of every stream, and the conditions.
    methods : sequence of str
        Names in `METHODS` or `LARGE`.
    repeats : int
        Turns of every method.
    partitions : int
        Partitions of every stream.

    Raises
    ------
    RuntimeError
        Two methods disagree about the number of results.
    """
    gc.collect()
    times: dict[str, list[float]] = {name: [] for name in methods}
    counts: dict[str, Stats] = {}
    for _ in range(repeats):
        for name in methods:
            counts[name] = Stats()
            method = METHODS.get(name) or LARGE[name]
            spent, _ = timed(partial(method, streams, conditions, partitions=partitions, stats=counts[name]))
            times[name].append(spent)
    if len({stats.results for stats in counts.values()}) > 1:
        raise RuntimeError(f"methods disagree: { ({name: stats.results for name, stats in counts.items()}) }")
    return {name: Measured(times[name], counts[name]) for name in methods}


def run(data: Path | None, out: Path, progress: Progress, *, quick: bool = False) -> Summary:
    """Run the benchmark; as :func:`latecomer.bench.run`. `data` is not used, because the workload is generated."""

    def part(name: str, work: Callable[[Path, bool], Result]) -> Result:
        progress(f"theta join: {name}")
        start = time.perf_counter()
        result = work(out, quick)
        progress(f"  {time.perf_counter() - start:.0f} s: {_short(result)}")
        return result

    _warm()
    two_streams = part("figure_4_4", _two_streams)
    windows = part("windows", _windows)
    by_partitions = part("figure_4_7", _partitions)
    by_range = part("ranges", _value_ranges)
    four_streams = part("table_4_5", _four_streams)
    counts = part("count", _counts)
    by_engine = part("engines", engines)
    large = part("cfs_large", _cfs_large)
    hot = part("hot_window", lambda out, quick: {} if quick else hot_window(out))
    judged = Goals(progress)
    _add_method_goals(judged, two_streams, four_streams, large, progress)
    _add_growth_goals(judged, counts, hot)
    _add_engine_goals(judged, by_engine)
    return {
        "machine": {"cores": usable_cores(), "python": platform.python_version(), "numpy": np.__version__},
        "figure_4_4": two_streams,
        "windows": windows,
        "figure_4_7": by_partitions,
        "ranges": by_range,
        "table_4_5": four_streams,
        "count": counts,
        "engines": by_engine,
        "cfs_large": large,
        "hot_window": hot or {"measured": False, "why": "quick"},
        "goals": judged.lines,
    }


def _add_method_goals(
    judged: Goals,
    two_streams: TwoStreams,
    four_streams: Mapping[str, FourStreams],
    large: Mapping[str, LargeWindow],
    progress: Progress,
) -> None:
    """Judge the time beside cross filter and sort."""
    judged.add("two streams, per cent faster than cfs", 30, two_streams["faster_than_cfs_percent"], "at least")
    for ops, four in four_streams.items():
        judged.add(f"four streams ({ops}), per cent faster than cfs", 33, four["faster_than_cfs_percent"], "at least")
    for work, row in large.items():
        if row["rows"] < LARGE_ROWS:
            progress(f"{work}: fewer than the goal speaks of")
            continue
        for label, ratio in row["times_cfs"].items():
            judged.add(f"{work}, {label}: cfs's time to ours", 3, ratio, "at least")
        ours = row["fast_theta_join"]
        progress(
            f"{work}: to copy the {ours['results']:,} results alone takes {row['copy_ms']:.3g} of {ours['ms']:.3g} ms"
        )


def _add_growth_goals(judged: Goals, counts: Counts, hot: Mapping[str, HotWindow]) -> None:
    """Judge the growth of the time from a tenth of the rows."""
    sizes = counts["sizes"]
    for name, times in counts["times_per_step"].items():
        tenfold = times[sizes.index(TENFOLD) - 1] if TENFOLD in sizes else None
        judged.add(f"{name}: times the time for {TENFOLD // 10:,} to {TENFOLD:,} rows", 11, tenfold, "at most")
    for emit in ("count", "ranges"):
        tenfold = hot[emit].get("tenfold") if emit in hot else None
        judged.add(f"{emit} through run: times the time for ten times the rows", 11, tenfold, "at most")


def _add_engine_goals(judged: Goals, by_engine: Mapping[str, Mapping[str, Mapping[str, EngineResult]]]) -> None:
    """Judge the time beside DuckDB and Spark SQL."""
    for case, by_size in by_engine.items():
        ratio = _least_ratio(by_size.get(str(TENFOLD), {}), "duckdb", LIMIT_S)
        judged.add(f"count, case {case}, {TENFOLD:,} rows: DuckDB's time to ours", 1, ratio, "at least")
    for case in ("one", "band"):
        ratio = _least_ratio(by_engine.get(case, {}).get(str(LARGE_ROWS), {}), "spark_sql", 2 * LIMIT_S)
        judged.add(f"count, case {case}, {LARGE_ROWS:,} rows: Spark SQL's time to ours", 50, ratio, "at least")


def _least_ratio(row: Mapping[str, EngineResult], engine_name: str, limit_s: float) -> float | None:
    """Return the engine's time over ours; that of its limit where it was not done by then, None if not measured."""
    result = row.get(engine_name)
    if result is None:
        return None
    if result.get("why", "").startswith("not done after"):
        return round(limit_s * 1000 / row["latecomer"]["ms"], 1)
    return result.get("ratio")


def _short(part: object) -> str:
    """Return the times and ratios of a part by their path, as one line of progress."""
    texts: list[str] = []
    shown = ("ms", "ratio", "faster_than_cfs_percent", "whole", "pieces", "tenfold", "why", "copy_ms")

    def walk(path: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{path} {key}".strip(), inner)
        elif path.rsplit(" ", 1)[-1] in shown:
            texts.append(f"{path} {value:.4g}" if isinstance(value, float | int) else f"{path}: {value}")
        elif "times_cfs" in path or "times_per_step" in path:
            texts.append(f"{path} {value}")

    walk("", part)
    return "; ".join(texts)


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


def _two_streams(out: Path, quick: bool) -> TwoStreams:
    """Measure figure 4.4: a window of 1,000 rows, 10 partitions, 8 repetitions, all methods."""
    repeats = 3 if quick else 8
    measured = measure(window(1, 100, 10, two_ranges(1000)), GREATER, list(METHODS), repeats)
    series: dict[str, Sequence[float | None]] = {name: m.times_ms for name, m in measured.items()}
    spark: EngineResult = {"measured": False, "why": "quick"}
    if not quick:
        spark = engine("spark_sql", "window", 1000, repeats)
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
    return {
        "methods": {name: {**m.figures("results"), "times_ms": m.times_ms} for name, m in measured.items()},
        "spark_sql": spark,
        "faster_than_cfs_percent": _saved(measured),
    }


def _windows(out: Path, quick: bool) -> Summary:
    """Measure figures 4.5 and 4.6: growing windows, up to the pairs and the memory that a method allows."""
    sizes = (1000, 2000) if quick else (1000, 4000, 8000, 12_000, 16_000)
    largest = {"fast_theta_join": 16_000, "cfs": 8000, "one_bucket": 8000, "cross_product": 8000}
    by_size: dict[int, dict[str, Measured]] = {}
    for size in sizes:
        methods = [name for name in METHODS if size <= largest[name]]
        repeats = 3 if size < 8000 and not quick else 1
        by_size[size] = measure(window(size, size / 10, 10, two_ranges(size)), GREATER, methods, repeats)
    figures = {size: {name: m.figures("results") for name, m in measured.items()} for size, measured in by_size.items()}
    for figure, mark, label in (
        ("figure_4_5", "ms", "time (ms)"),
        ("figure_4_6", "candidates", "candidate pairs"),
        ("comparisons", "comparisons", "comparisons"),
        ("shuffled", "rows_shuffled", "rows shuffled"),
    ):
        series = {name: [figures[size].get(name, {}).get(mark) for size in sizes] for name in METHODS}
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
    return {str(size): {**figures[size], "faster_than_cfs_percent": _saved(by_size[size])} for size in sizes}


def _partitions(out: Path, quick: bool) -> Summary:
    """Measure figure 4.7: 1 to 64 partitions on one window."""
    numbers = (1, 4) if quick else (1, 4, 10, 16, 24, 32, 48, 64)
    size, names = (1000 if quick else 4000), ["fast_theta_join", "cfs"]
    streams = window(7, size / 10, 10, two_ranges(size))
    measured = {p: measure(streams, GREATER, names, 1 if quick else 5, p) for p in numbers}
    series: dict[str, Sequence[float | None]] = {name: [measured[p][name].ms for p in numbers] for name in names}
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
    return {str(p): {name: m.figures() for name, m in methods.items()} for p, methods in measured.items()}


def _value_ranges(out: Path, quick: bool) -> Summary:
    """Measure windows with ranges further and further apart; the coarse filter drops more and more rows."""
    size = 1000 if quick else 4000
    shifts = (0.0, 0.5) if quick else (0.0, 0.25, 0.5, 0.75, 0.9)
    measured: dict[float, dict[str, Measured]] = {}
    for shift in shifts:
        ranges = [(0, size), (int(shift * size), int((1 + shift) * size))]
        measured[shift] = measure(window(9, size / 10, 10, ranges), GREATER, list(METHODS), 1 if quick else 2)
    series = {name: [measured[shift][name].ms for shift in shifts] for name in METHODS}
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
        str(shift): {name: m.figures("results") for name, m in methods.items()}
        | {"faster_than_cfs_percent": _saved(methods)}
        for shift, methods in measured.items()
    }


def _four_streams(out: Path, quick: bool) -> dict[str, FourStreams]:
    """Measure Table 4.5: four streams, three conditions.

    Uniform streams of one range would have some 10**10 results per 1,000 rows. So neighbouring streams overlap by
    little, as in any window that can be answered row by row. Neighbouring conditions of one direction share the shift.
    """
    size = 60 if quick else 1000
    table: dict[str, FourStreams] = {}
    for ops in FOUR:
        conditions = [Comparison(i, 0, op, i + 1, 0) for i, op in enumerate(ops)]
        up = [op in (">", ">=") for op in ops]
        low, ranges = 0, [(0, RANGE * 100)]
        for i in range(len(ops)):
            same_direction = 1 + sum(up[j] == up[i] for j in (i - 1, i + 1) if 0 <= j < len(ops))
            low += int(0.94 / same_direction * RANGE * 100) * (1 if up[i] else -1)
            ranges.append((low, low + RANGE * 100))
        measured = measure(window(5, size / 10, 10, ranges), conditions, ["fast_theta_join", "cfs"], 1 if quick else 8)
        table[" ".join(ops)] = {
            "fast_theta_join": measured["fast_theta_join"].figures("results"),
            "cfs": measured["cfs"].figures("results"),
            "faster_than_cfs_percent": _saved(measured),
        }
    by_method = {
        "fast_theta_join": [row["fast_theta_join"] for row in table.values()],
        "cfs": [row["cfs"] for row in table.values()],
    }
    plots.bar_figure(
        out,
        "theta_join_table_4_5",
        "conditions",
        "time (ms)",
        list(table),
        {name: [figures["ms"] for figures in rows] for name, rows in by_method.items()},
        title=f"Four streams, windows of {size:,} rows",
        log=True,
    )
    columns = ("conditions", "method", "ms", "results", *MARKS)
    lines = [
        (ops, name, *(rows[place][column] for column in columns[2:]))
        for place, ops in enumerate(table)
        for name, rows in by_method.items()
    ]
    plots.table(out, "theta_join_table_4_5_counts", columns, lines)
    return table


def _counts(out: Path, quick: bool) -> Counts:
    """Count and factorise without forming a pair, up to millions of rows per side."""
    sizes = [1000, 10_000] if quick else [10_000, 100_000, 1_000_000, 4_000_000]
    chain = [Comparison(i, 0, ">", i + 1, 0) for i in range(3)]
    results: dict[str, list[str]] = {}
    lines: dict[str, list[float]] = {}
    for size in sizes:
        rng = np.random.default_rng([SEED, size])
        streams: Columns = [[rng.integers(0, size, size), rng.random(size)] for _ in range(4)]
        repeats = max(3, min(9, 5_000_000 // size))
        counted: list[tuple[str, Columns, list[Comparison]]] = [
            ("count, one inequality", streams[:2], GREATER),
            ("count, two inequalities", streams[:2], TWO),
            ("count, chain of four", streams, chain),
        ]
        for name, columns, conditions in counted:
            spent, answer = best_of(partial(theta.count, columns, conditions), repeats)
            lines.setdefault(name, []).append(spent)
            results.setdefault(name, []).append(str(answer))
        for name, conditions in (("ranges, one inequality", GREATER), ("ranges, two inequalities", TWO)):
            lines.setdefault(name, []).append(best_of(partial(theta.ranges, streams[:2], conditions), repeats)[0])
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
    growth = {name: [round(b / a, 1) for a, b in pairwise(times)] for name, times in lines.items()}
    return {"sizes": sizes, "results": results, "ms": lines, "times_per_step": growth}


def _cfs_large(out: Path, quick: bool) -> dict[str, LargeWindow]:
    """Measure ours and cross filter and sort from 100,000 rows on: ranges that overlap by little, and a band.

    The coarse filter keeps all rows of the band. `times_cfs` is the time of cross filter and sort over ours by form of
    our result: rows; its rows as it finds them (it need not sort them; ours come in order); a count; and ranges. It
    must form pairs for the latter two. `copy_ms` is the time to copy the result rows, a lower bound of any method that
    writes them.
    """
    table: dict[str, LargeWindow] = {}
    work: list[tuple[str, Columns, list[Comparison], int]] = []
    for size in (2000,) if quick else (100_000, 200_000, 400_000):
        low = size - min(size, 6000)
        streams = window(3, size / 10, 10, [(0, size), (low, low + size)])
        work.append((f"overlap of 6,000, {size:,} rows", streams, GREATER, 1 if quick else 3))
    size = 1000 if quick else 100_000
    work.append((f"band, {size:,} rows", case_streams("band", size), CASES["band"], 1))
    for name, streams, conditions, repeats in work:
        measure(streams, conditions, ["fast_theta_join"], 1)  # the first call pays for memory pages
        methods = list(LARGE) if repeats > 1 or quick else ["fast_theta_join", "cfs"]
        measured = measure(streams, conditions, methods, repeats)
        rows = theta.rows(streams, conditions)
        copy = statistics.median(sum(timed(column.copy)[0] for column in rows) for _ in range(3))
        del rows
        counted = statistics.median(timed(partial(theta.count, streams, conditions))[0] for _ in range(3))
        ranged = statistics.median(timed(partial(theta.ranges, streams, conditions))[0] for _ in range(3))
        cfs, ours = measured["cfs"].ms, measured["fast_theta_join"].ms
        ratios = {"emit rows": cfs / ours, "emit count": cfs / counted, "emit ranges": cfs / ranged}
        if "cfs_any_order" in measured:
            ratios["emit rows, its rows unsorted"] = measured["cfs_any_order"].ms / ours
        table[name] = {
            "fast_theta_join": measured["fast_theta_join"].figures("results"),
            "cfs": measured["cfs"].figures("results"),
            "rows": len(streams[0][0]),
            "count": {"ms": counted},
            "ranges": {"ms": ranged},
            "copy_ms": copy,
            "times_cfs": {label: round(ratio, 1) for label, ratio in ratios.items()},
        }
        if "cfs_any_order" in measured:
            table[name]["cfs_any_order"] = measured["cfs_any_order"].figures("results")
    bars = {
        "fast_theta_join": [row["fast_theta_join"]["ms"] for row in table.values()],
        "cfs": [row["cfs"]["ms"] for row in table.values()],
        "cfs_any_order": [row.get("cfs_any_order", {}).get("ms", math.nan) for row in table.values()],
        "count": [row["count"]["ms"] for row in table.values()],
        "ranges": [row["ranges"]["ms"] for row in table.values()],
        "copy of the rows": [row["copy_ms"] for row in table.values()],
    }
    plots.bar_figure(
        out,
        "theta_join_cfs_large",
        "workload",
        "time (ms)",
        [name.replace(", ", "\n") for name in table],
        bars,
        title="Ours (rows, count, ranges) and cross filter and sort",
        log=True,
    )
    return table


def _saved(measured: Mapping[str, Measured]) -> float | None:
    """Return by how many per cent ours is faster than cross filter and sort."""
    if "cfs" not in measured or not measured["cfs"].ms:
        return None
    return round(100 * (1 - measured["fast_theta_join"].ms / measured["cfs"].ms), 1)
