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
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
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
LARGE: dict[str, Callable[..., list[NDArray[np.int64]]]] = {
    "fast_theta_join": theta.rows,
    "cfs": baselines.cfs,
    "cfs_any_order": partial(baselines.cfs, ordered=False),
}
RANGE = 1_000
GREATER = [Comparison(0, 0, ">", 1, 0)]
FOUR = ((">", ">=", "<"), (">=", ">", "<"), ("<", ">", "<"))
TWO = [Comparison(0, 0, ">", 1, 0), Comparison(0, 1, "<", 1, 1)]
CASES = {"one": GREATER, "two": TWO, "band": [Comparison(0, 0, "<", 1, 0), Comparison(0, 1, ">", 1, 1)]}
ENGINES = {"duckdb": "duckdb", "duckdb_rewritten": "duckdb", "polars": "polars", "spark_sql": "pyspark"}
LIMIT_S, LIMIT_BYTES = 60, 6 << 30
TENFOLD = 1_000_000
"""Rows a side at which the goals for growth and against DuckDB are read."""
LARGE_ROWS = 100_000
"""Rows a side from which on the larger goal against cross filter and sort holds, and at which Spark SQL counts beside us."""
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
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__}
    }
    for name, part in (
        ("figure_4_4", _two_streams),
        ("windows", _windows),
        ("figure_4_7", _partitions),
        ("ranges", _value_ranges),
        ("table_4_5", _four_streams),
        ("count", _counts),
        ("engines", _engines),
        ("cfs_large", _cfs_large),
        ("hot_window", _hot_window),
    ):
        progress(f"theta join: {name}")
        start = time.perf_counter()
        found[name] = part(out, quick)
        progress(f"  {time.perf_counter() - start:.0f} s: {_short(found[name])}")
    return found | {"goals": goals(found, progress)}


def goals(found: dict[str, Any], progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """What was to be reached, beside what was measured; what was not measured is left out, and said."""
    lines: list[dict[str, Any]] = []

    def add(name: str, goal: float, value: float | None, sense: str) -> None:
        if value is None:
            progress(f"{name}: not measured")
            return
        met = value <= goal if sense == "at most" else value >= goal
        lines.append({"name": name, "goal": f"{sense} {goal:g}", "measured": value, "met": bool(met)})
        progress(f"{name}: {value:.4g}, goal {sense} {goal:g}: {'met' if met else 'MISSED'}")

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
    return lines


def _short(part: dict[str, Any]) -> str:
    """Times and ratios of a part, by their path, for a reader who waits."""
    told: list[str] = []

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{path} {key}".strip(), inner)
        elif path.rsplit(" ", 1)[-1] in ("ms", "ratio", "faster_than_cfs_percent", "whole", "pieces", "why", "copy_ms"):
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
        title="Two streams, window of 1,000 rows, 10 partitions",
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
            spent, answer = _least(partial(function, given, conditions), max(3, min(9, 5_000_000 // size)))
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


def _least(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """The least time in ms of several runs, and an answer."""
    spent, answer = timed(work)
    for _ in range(repeats - 1):
        del answer
        again, answer = timed(work)
        spent = min(spent, again)
    return spent, answer


def _engines(out: Path, quick: bool) -> dict[str, Any]:
    """Count beside other engines: the same rows, the same conditions, one after the other; `ratio` is theirs to ours."""
    sizes = (1000,) if quick else (10_000, 100_000, 1_000_000)
    found: dict[str, Any] = {}
    for case, conditions in CASES.items():
        bars: dict[str, list[float]] = {"latecomer": []}
        given_up: dict[str, str] = {}
        for size in sizes:
            streams = case_streams(case, size)
            spent, answer = _least(partial(theta.count, streams, conditions), 2 if size >= 1_000_000 else 5)
            row: dict[str, Any] = {"latecomer": {"measured": True, "ms": spent, "results": str(answer)}}
            bars["latecomer"].append(spent)
            for name in ENGINES:
                if (name == "duckdb_rewritten" and case != "one") or (
                    name == "spark_sql" and (quick or case == "two" or size != LARGE_ROWS)
                ):
                    continue
                why = given_up.get(name)
                seen: dict[str, Any] = {"measured": False, "why": why} if why else engine(name, case, size, 1)
                if not seen["measured"]:
                    given_up[name] = seen["why"]
                elif seen["results"] != str(answer):
                    raise RuntimeError(f"{name} counts {seen['results']}, not {answer}: {case}, {size} rows")
                else:
                    seen["ratio"] = round(seen["ms"] / spent, 1)
                row[name] = seen
                line = bars.setdefault(name, [float("nan")] * (len(bars["latecomer"]) - 1))
                line.append(seen["ms"] if seen["measured"] else float("nan"))
            for line in bars.values():
                line += [float("nan")] * (len(bars["latecomer"]) - len(line))
            found.setdefault(case, {})[str(size)] = row
        plots.bar_figure(
            out,
            f"theta_join_engines_{case}",
            "rows per stream",
            "time (ms)",
            [f"{size:,}" for size in sizes],
            bars,
            title=f"Count, case {case}: no bar where an engine gave up or was not asked",
            log=True,
        )
    return found


def case_streams(case: str, size: int) -> list[list[NDArray[Any]]]:
    """Two streams of two columns for one of `CASES`, or ``window``: the rows of Figure 4.4."""
    if case == "window":
        return [[column, column] for (column,) in window(1, size / 10, 10, two_ranges(size))]
    rng = np.random.default_rng([SEED, size])
    one, other = (rng.integers(0, size, size) for _ in range(2))
    if case == "band":
        return [[one - 2, one + 3], [other, other]]
    return [[one, rng.random(size)], [other, rng.random(size)]]


def engine(name: str, case: str, size: int, repeats: int) -> dict[str, Any]:
    """Another engine's count in a process of its own: times, result, version; or why it was not measured."""
    if importlib.util.find_spec(ENGINES[name]) is None:
        return {"measured": False, "why": f"{ENGINES[name]} is not installed"}
    code = f"from latecomer.jobs.bench.theta_join import engine_alone as e; e({name!r}, {case!r}, {size}, {repeats})"
    threads = {"POLARS_MAX_THREADS": "2", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **threads},
            timeout=LIMIT_S * (2 if name == "spark_sql" else 1),
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return {"measured": False, "why": f"not done after {late.timeout:.0f} s at {size:,} rows"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1][:160]
        return {"measured": False, "why": f"failed at {size:,} rows with {LIMIT_BYTES >> 30} GB: {last}"}
    return {"measured": True, **_told_by(done.stdout)}


def _told_by(text: str) -> dict[str, Any]:
    """The one line of JSON in what a process printed; an engine may print a bar of its progress beside it."""
    line = next(line for line in reversed(text.splitlines()) if line.rstrip().endswith("}"))
    found: dict[str, Any] = json.loads(line[line.index("{") :])
    return found


def engine_alone(name: str, case: str, size: int, repeats: int) -> None:
    """What the process of `engine` runs: warm up on few rows, then print times and result as one line of JSON."""
    import pyarrow as pa

    ops = [(c.left_column, c.op, c.right_column) for c in CASES.get(case, GREATER)]
    ask = {"duckdb": _duckdb, "duckdb_rewritten": _duckdb, "polars": _polars, "spark_sql": _spark}[name]
    if name != "spark_sql":  # its virtual machine reserves more than it uses
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    times = []
    for rows in (100, *[size] * repeats):
        tables = [pa.table(dict(zip("ab", columns, strict=True))) for columns in case_streams(case, rows)]
        work = ask(tables, ops, name.endswith("rewritten"))
        spent, answer = timed(work)
        times.append(spent)
    version = getattr(sys.modules[ENGINES[name]], "__version__", "")
    print(json.dumps({"ms": min(times[1:]), "times_ms": times[1:], "results": str(answer), "version": version}))


def _condition(ops: list[tuple[int, str, int]]) -> str:
    return " and ".join(f"r.{'ab'[i]} {op} s.{'ab'[j]}" for i, op, j in ops)


def _duckdb(tables: list[Any], ops: list[tuple[int, str, int]], rewritten: bool) -> Callable[[], int]:
    session: Any = importlib.import_module("duckdb").connect()
    session.execute("set threads = 2")
    session.execute("set enable_progress_bar = false")
    for name, table in zip("rs", tables, strict=True):
        session.register("given", table)
        session.execute(f"create table {name} as select * from given")
    text = f"select count(*) from r join s on {_condition(ops)}"
    if rewritten:  # at equal values r comes first, so that only lesser rows of s are counted
        text = """select sum(below) from (select own, sum(1 - own) over (
            order by a, own desc rows unbounded preceding) as below
            from (select a, 0 as own from s union all select a, 1 from r)) where own = 1"""
    return lambda: int(session.execute(text).fetchone()[0])


def _polars(tables: list[Any], ops: list[tuple[int, str, int]], rewritten: bool) -> Callable[[], int]:
    polars: Any = importlib.import_module("polars")
    left, right = (
        polars.from_arrow(table).rename({c: n + c for c in "ab"}) for n, table in zip("rs", tables, strict=True)
    )
    tests = []
    for i, op, j in ops:
        one, other = polars.col("r" + "ab"[i]), polars.col("s" + "ab"[j])
        tests.append(one > other if op == ">" else one < other)
    query = left.lazy().join_where(right.lazy(), *tests).select(polars.len())
    return lambda: int(query.collect().item())


def _spark(tables: list[Any], ops: list[tuple[int, str, int]], rewritten: bool) -> Callable[[], int]:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder: Any = importlib.import_module("pyspark.sql").SparkSession.builder
    spark = builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    for name, table in zip("rs", tables, strict=True):
        frame = spark.createDataFrame(table.to_pandas()).repartition(2).cache()
        frame.count()
        frame.createOrReplaceTempView(name)
    return lambda: int(spark.sql(f"select count(*) from r join s on {_condition(ops)}").collect()[0][0])


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


def _hot_window(out: Path, quick: bool) -> dict[str, Any]:
    """One window of a million rows a side, run whole and in pieces, one after the other in one session; `ratio` is whole to pieces."""
    if quick:
        return {"measured": False, "why": "quick"}
    found: dict[str, Any] = {}
    for emit, conditions in (
        ("count", "[r.v > s.v, r.w < s.w]"),
        ("rows", "[r.v > s.v, r.v < s.v + 1000]"),
        ("ranges", "[r.v > s.v]"),
    ):
        code = f"from latecomer.jobs.bench.theta_join import hot_alone as h; h({emit!r}, {conditions!r}, 1_000_000, 3)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode:
            found[emit] = {"measured": False, "why": (done.stderr.strip().splitlines() or ["no message"])[-1][:160]}
            continue
        found[emit] = {"measured": True, **_told_by(done.stdout)}
    seen = {emit: row for emit, row in found.items() if row["measured"]}
    if seen:
        plots.bar_figure(
            out,
            "theta_join_hot_window",
            "emit",
            "time (s)",
            list(seen),
            {name: [row[name] for row in seen.values()] for name in ("whole", "pieces")},
            title="A run over one window of 1,000,000 rows a side, two cores",
        )
    return found


def hot_alone(emit: str, conditions: str, size: int, repeats: int) -> None:
    """What a process of `_hot_window` runs: least seconds of a run with windows whole and in pieces, as one line of JSON.

    Values ``v`` and ``w`` are independent; a million rows lie 1,000 apart in ``v``, so a band of 1,000 is a result per row.
    """
    import tempfile

    import pyarrow as pa
    import pyarrow.parquet as pq

    from latecomer.core import theta_plan
    from latecomer.lake.location import Lake
    from latecomer.spark import theta_join as stage
    from latecomer.spark.ingest import IngestOptions, ingest
    from latecomer.spark.run import run as run_query
    from latecomer.specs.loading import parse_query

    rng = np.random.default_rng([SEED, size])
    side = np.arange(2 * size) % 2
    rows = {
        "stream": pa.array(np.where(side == 0, "a", "b")),
        "event_ts": pa.array(1_700_000_000_000_000 + np.arange(2 * size) * 1_000_000 // (2 * size)),
        "v": pa.array(rng.integers(0, 10**9, 2 * size)),
        "w": pa.array(rng.random(2 * size)),
    }
    times: dict[str, list[float]] = {"whole": [], "pieces": []}
    stage.LINEAR_FACTOR = 1  # counts and ranges too
    bounds = {"whole": 1 << 62, "pieces": theta_plan.PIECE_ROWS}
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table(rows), Path(folder) / "rows.parquet")
        lake = Lake(f"{folder}/lake")
        ingest(lake, [str(Path(folder) / "rows.parquet")], IngestOptions(by="stream"))
        for turn in range(repeats + 1):
            for name, bound in bounds.items():
                theta_plan.PIECE_ROWS = bound
                text = f"{{name: {name}{turn}, kind: theta_join, streams: {{r: a, s: b}}, window: {{size: 1 s, slide: 1 s}}, "
                text += f"conditions: {conditions}, emit: {emit}, strategy: {{name: fast_theta_join}}}}"
                if emit == "rows":
                    text = text[:-1] + ", select: [r.w]}"
                spec = parse_query(text, "bench")
                spent, _ = timed(partial(run_query, lake, spec, rows_per_batch=2 * size, flush=True))
                if turn:  # the first compiles
                    times[name].append(spent / 1000)
    least = {name: min(each) for name, each in times.items()}
    ratio = round(least["whole"] / least["pieces"], 2)
    print(json.dumps({**least, "times_s": times, "ratio": ratio}))


def _saved(seen: dict[str, dict[str, Any]]) -> float | None:
    """By how many per cent ours is faster than cross filter and sort."""
    if "cfs" not in seen or not seen["cfs"]["ms"]:
        return None
    return round(100 * (1 - seen["fast_theta_join"]["ms"] / seen["cfs"]["ms"]), 1)
