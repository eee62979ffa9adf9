"""Counts of theta joins by other engines: Spark SQL, DuckDB and Polars, each in a process of its own, where they can be imported."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from latecomer.bench import plots
from latecomer.bench.theta_workloads import CASES, GREATER, LARGE_ROWS, case_streams, last_json_line
from latecomer.bench.timing import best_of, timed
from latecomer.core.theta_join import join as theta

ENGINES = {"duckdb": "duckdb", "duckdb_rewritten": "duckdb", "polars": "polars", "spark_sql": "pyspark"}
LIMIT_S, LIMIT_BYTES = 60, 6 << 30


def engines(out: Path, quick: bool) -> dict[str, Any]:
    """Count beside other engines: the same rows, the same conditions, one after the other; `ratio` is theirs to ours."""
    sizes = (1000,) if quick else (10_000, 100_000, 1_000_000)
    found: dict[str, Any] = {}
    for case, conditions in CASES.items():
        bars: dict[str, list[float]] = {"latecomer": []}
        given_up: dict[str, str] = {}
        for size in sizes:
            streams = case_streams(case, size)
            spent, answer = best_of(partial(theta.count, streams, conditions), 2 if size >= 1_000_000 else 5)
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


def engine(name: str, case: str, size: int, repeats: int) -> dict[str, Any]:
    """Another engine's count in a process of its own: times, result, version; or why it was not measured."""
    if importlib.util.find_spec(ENGINES[name]) is None:
        return {"measured": False, "why": f"{ENGINES[name]} is not installed"}
    code = f"from latecomer.bench.theta_engines import engine_alone as e; e({name!r}, {case!r}, {size}, {repeats})"
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
    return {"measured": True, **last_json_line(done.stdout)}


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
