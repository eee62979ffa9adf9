"""Count theta joins with Spark SQL, DuckDB and Polars, each in a process of its own, where they can be imported."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latecomer.bench import plots
from latecomer.bench.theta_workloads import (
    CASES,
    GREATER,
    LARGE_ROWS,
    EngineResult,
    case_streams,
    last_json_line,
)
from latecomer.bench.timing import best_of, timed
from latecomer.core.theta_join import join as theta

if TYPE_CHECKING:
    import pyarrow as pa

ENGINES = {"duckdb": "duckdb", "duckdb_rewritten": "duckdb", "polars": "polars", "spark_sql": "pyspark"}
"""The Python package of each engine."""
LIMIT_S, LIMIT_BYTES = 60, 6 << 30
"""Limits of an engine's process; Spark SQL may take twice the time."""


def engines(out: Path, quick: bool) -> dict[str, dict[str, dict[str, EngineResult]]]:
    """Count the same rows under the same conditions with every engine, one after the other.

    Returns
    -------
    dict
        Times by case, rows per side and engine; ``latecomer`` is ours.
    """
    sizes = (1000,) if quick else (10_000, 100_000, 1_000_000)
    cases: dict[str, dict[str, dict[str, EngineResult]]] = {}
    for case, conditions in CASES.items():
        by_size = cases[case] = {}
        given_up: dict[str, EngineResult] = {}
        for size in sizes:
            streams = case_streams(case, size)
            spent, answer = best_of(partial(theta.count, streams, conditions), 2 if size >= 1_000_000 else 5)
            row: dict[str, EngineResult] = {"latecomer": {"measured": True, "ms": spent, "results": str(answer)}}
            for name in _engines_of(case, size, quick):
                result = given_up.get(name) or engine(name, case, size, 1)
                if not result["measured"]:
                    given_up[name] = result
                elif result["results"] != str(answer):
                    raise RuntimeError(f"{name} counts {result['results']}, not {answer}: {case}, {size} rows")
                else:
                    result["ratio"] = round(result["ms"] / spent, 1)
                row[name] = result
            by_size[str(size)] = row
        _draw(out, case, by_size)
    return cases


def _engines_of(case: str, size: int, quick: bool) -> list[str]:
    """Return the engines that count a case: the rewritten query has one inequality, Spark SQL is slow."""
    spark = not quick and case != "two" and size == LARGE_ROWS
    skipped = {"duckdb_rewritten": case != "one", "spark_sql": not spark}
    return [name for name in ENGINES if not skipped.get(name)]


def _draw(out: Path, case: str, by_size: Mapping[str, Mapping[str, EngineResult]]) -> None:
    """Draw the times of one case by rows per side."""
    names = dict.fromkeys(name for row in by_size.values() for name in row)
    bars = {
        name: [row[name].get("ms", math.nan) if name in row else math.nan for row in by_size.values()] for name in names
    }
    plots.bar_figure(
        out,
        f"theta_join_engines_{case}",
        "rows per stream",
        "time (ms)",
        [f"{int(size):,}" for size in by_size],
        bars,
        title=f"Count, case {case}: no bar where an engine gave up or was not asked",
        log=True,
    )


def engine(name: str, case: str, size: int, repeats: int) -> EngineResult:
    """Count with another engine in a process of its own."""
    if importlib.util.find_spec(ENGINES[name]) is None:
        return {"measured": False, "why": f"{ENGINES[name]} is not installed"}
    code = f"from latecomer.bench.theta_engines import print_count; print_count({name!r}, {case!r}, {size}, {repeats})"
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
    result: EngineResult = json.loads(last_json_line(done.stdout))
    return {**result, "measured": True}


def print_count(name: str, case: str, size: int, repeats: int) -> None:
    """Warm an engine up on 100 rows, count, and print times and result as one line of JSON."""
    import pyarrow as pa

    ops = [(c.left_column, c.op, c.right_column) for c in CASES.get(case, GREATER)]
    prepare = {"duckdb": _duckdb, "duckdb_rewritten": _duckdb, "polars": _polars, "spark_sql": _spark}[name]
    if name != "spark_sql":  # the JVM reserves more address space than it uses
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    times = []
    for rows in (100, *[size] * repeats):
        tables = [pa.table(dict(zip("ab", columns, strict=True))) for columns in case_streams(case, rows)]
        work = prepare(tables, ops, name.endswith("rewritten"))
        spent, answer = timed(work)
        times.append(spent)
    version = getattr(sys.modules[ENGINES[name]], "__version__", "")
    print(json.dumps({"ms": min(times[1:]), "times_ms": times[1:], "results": str(answer), "version": version}))


def _condition(ops: list[tuple[int, str, int]]) -> str:
    """Return the join condition in SQL."""
    return " and ".join(f"r.{'ab'[i]} {op} s.{'ab'[j]}" for i, op, j in ops)


def _duckdb(tables: list[pa.Table], ops: list[tuple[int, str, int]], rewritten: bool) -> Callable[[], int]:
    """Load the tables into DuckDB and return a function that counts."""
    session: Any = importlib.import_module("duckdb").connect()
    session.execute("set threads = 2")
    session.execute("set enable_progress_bar = false")
    for name, table in zip("rs", tables, strict=True):
        session.register("given", table)
        session.execute(f"create table {name} as select * from given")
    text = f"select count(*) from r join s on {_condition(ops)}"
    if rewritten:  # at equal values rows of r come first, so that only lesser rows of s are counted
        text = """select sum(below) from (select from_r, sum(1 - from_r) over (
            order by a, from_r desc rows unbounded preceding) as below
            from (select a, 0 as from_r from s union all select a, 1 from r)) where from_r = 1"""
    return lambda: int(session.execute(text).fetchone()[0])


def _polars(tables: list[pa.Table], ops: list[tuple[int, str, int]], rewritten: bool) -> Callable[[], int]:
    """Load the tables into Polars and return a function that counts."""
    polars: Any = importlib.import_module("polars")
    left, right = (
        polars.from_arrow(table).rename({c: n + c for c in "ab"}) for n, table in zip("rs", tables, strict=True)
    )
    tests = []
    for i, op, j in ops:
        r, s = polars.col("r" + "ab"[i]), polars.col("s" + "ab"[j])
        tests.append(r > s if op == ">" else r < s)
    query = left.lazy().join_where(right.lazy(), *tests).select(polars.len())
    return lambda: int(query.collect().item())


def _spark(tables: list[pa.Table], ops: list[tuple[int, str, int]], rewritten: bool) -> Callable[[], int]:
    """Cache the tables in Spark and return a function that counts with Spark SQL."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder: Any = importlib.import_module("pyspark.sql").SparkSession.builder
    spark = builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    for name, table in zip("rs", tables, strict=True):
        frame = spark.createDataFrame(table.to_pandas()).repartition(2).cache()
        frame.count()
        frame.createOrReplaceTempView(name)
    return lambda: int(spark.sql(f"select count(*) from r join s on {_condition(ops)}").collect()[0][0])
