"""Is `run` of an aggregate on Spark faster with more cores, and what do shards do to it?

Workload: sixteen of HPM's Game 2 by our generator at once (16,000 tuples/s; one game is so sparse that deciding, once per window and
shard, costs more than its rows do, and no shard is faster than the whole), SUM per sensor over windows of 0.5 s every 0.1 s, ``hpm``
with 1 and 2 shards (ranges of the sensors' hash, a controller each), whole `run`s with their commits. Cores are fixed when a session
starts, so every number of cores has a process with a session of its own (``local[1]``, ``local[2]``), which is held on so many cores
with its children (the driver, the JVM and its compiler too), over the same events. Departure from the paper: there a task is a shard. Here shards split decisions, not rows; Spark's tasks split rows, whatever the
shards. So throughput should grow with cores and not fall with shards; both are shown, as rows/s and as a ratio in one run.

What was late is repaired and compared with sums over all rows: ``wrong_after_repair`` answers differ.

A tenth of the rows goes first, to warm up, and gives the fixed cost of a run: ``marginal`` is the rate of the rows beyond that tenth,
``rows_per_second`` of all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from latecomer.jobs.bench import data as sources
from latecomer.jobs.bench import plots
from latecomer.spark.session import usable_cores

SHARDS = (1, 2)
WINDOW_US, SLIDE_US = 500_000, 100_000
GAMES, GAME_ROWS = 16, 140_000
"""Games at once, and tuples of each: 2.2 M tuples, 23,000 answers."""
_QUERY = (
    "name: sums_{0}\nkind: aggregate\nstreams: {{s: a}}\ngroup_by: [sensor]\nwindow: {{size: 500 ms, slide: 100 ms}}\n"
    "select: {{total: sum(value)}}\nquality: {{error: 0.05, probability: 0.95, period: 60 s}}\n"
    "strategy: {{name: hpm, shards: {0}}}\n"
)


def cores_to_try() -> tuple[int, ...]:
    """1, 2, 4, ... up to the cores that this process may use."""
    return tuple(1 << n for n in range(usable_cores().bit_length()))


def events(games: int = GAMES, rows: int = GAME_ROWS) -> pa.Table:
    """Games at once, merged by stream time: ``event_ts``, ``value``, ``sensor``, in arrival order."""
    found = pa.concat_tables(sources.football_aggregate(each, 2, rows) for each in range(games))
    times = found["event_time_us"].to_numpy()
    start = [0, *np.cumsum([rows] * (games - 1)).tolist()]
    now = np.concatenate([np.maximum.accumulate(times[at : at + rows]) for at in start])
    order = np.argsort(now, kind="stable")
    return pa.table(
        {"event_ts": times[order], "value": found["value"].take(order), "sensor": found["sensor"].take(order)}
    )


def measure(out: Path, progress: Callable[[str], None], *, games: int = GAMES, rows: int = GAME_ROWS) -> dict[str, Any]:
    """Rows per second of every number of cores and shards, and by how much the cores help; a figure beside the in-memory one.

    Returns
    -------
    dict
        ``<cores>.<shards>``: ``seconds``, ``rows_per_second``, ``marginal``; ``speedup.<shards>``: rate of most cores over that of one.
    """
    folder = Path(tempfile.mkdtemp(prefix="latecomer-bench-"))
    found: dict[str, Any] = {}
    cores = cores_to_try()
    try:
        table = events(games, rows)
        pq.write_table(table, folder / "all.parquet")
        pq.write_table(table.slice(0, len(table) // 10), folder / "tenth.parquet")
        for each in cores:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                spent, wrong = pool.submit(on_cores, folder, each, SHARDS).result()
            found["wrong_after_repair"] = found.get("wrong_after_repair", 0) + wrong
            for shards, (tenth, whole) in spent.items():
                rate, marginal = len(table) / whole, 0.9 * len(table) / (whole - tenth)
                found[f"{each}.{shards}"] = {"seconds": whole, "rows_per_second": rate, "marginal": marginal}
                progress(f"{each} cores, {shards} shards on Spark: {rate:,.0f} rows/s, {marginal:,.0f} beyond a tenth")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for shards in SHARDS:
        pair = found[f"{cores[-1]}.{shards}"], found[f"1.{shards}"]
        found[f"speedup.{shards}"] = {key: pair[0][key] / pair[1][key] for key in ("rows_per_second", "marginal")}
    series = {f"local[{each}]": [found[f"{each}.{shards}"]["rows_per_second"] for shards in SHARDS] for each in cores}
    plots.bar_figure(
        out, "fig6_throughput_spark", "shards", "rows/s", [str(s) for s in SHARDS], series, title="Figure 6, on Spark"
    )
    return found


def on_cores(folder: Path, cores: int, shards: Sequence[int]) -> tuple[dict[int, tuple[float, float]], int]:
    """In a fresh process: seconds of `run` over a tenth and over all events, by number of shards; wrong answers after repair."""
    from pyspark.sql import SparkSession

    from latecomer.lake import views
    from latecomer.lake.location import Lake
    from latecomer.spark.ingest import IngestOptions, ingest
    from latecomer.spark.repair import repair
    from latecomer.spark.run import run
    from latecomer.spark.session import session, settings
    from latecomer.specs.loading import parse_query

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    own = folder / str(cores)
    lakes = {name: Lake(str(own / name)) for name in ("tenth", "all")}
    wanted = settings(lakes["all"]) | {
        "spark.master": f"local[{cores}]",
        "spark.sql.shuffle.partitions": str(2 * cores),
    }
    builder = SparkSession.builder
    for key, value in wanted.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    assert session(lakes["all"]) is spark and spark.sparkContext.defaultParallelism == cores
    spark.sparkContext.setLogLevel("ERROR")
    try:
        found: dict[int, tuple[float, float]] = {}
        for name, lake in lakes.items():
            ingest(lake, [str(folder / f"{name}.parquet")], IngestOptions(stream="a"))
        run(lakes["tenth"], parse_query(_QUERY.format(3)), rows_per_batch=1 << 40, flush=True)  # to warm up
        for count in shards:
            spec, spent = parse_query(_QUERY.format(count)), []
            for lake in lakes.values():
                started = time.perf_counter()
                run(lake, spec, rows_per_batch=1 << 40, flush=True)
                spent.append(time.perf_counter() - started)
            found[count] = spent[0], spent[1]
        repair(lakes["tenth"], spec, flush=True)
        return found, wrong(views.results(lakes["tenth"], spec), pq.read_table(folder / "tenth.parquet"))
    finally:
        spark.stop()
        shutil.rmtree(own, ignore_errors=True)


def wrong(results: pa.Table, rows: pa.Table) -> int:
    """Answers that are missing, too many, or other than the sums over all rows (which are rounded as they are added: to 1e-12)."""
    sizes = WINDOW_US // SLIDE_US
    last = rows["event_ts"].to_numpy() // SLIDE_US
    window = (last[:, None] - np.arange(sizes)[None, :]).ravel()
    key = window * 100 + np.repeat(rows["sensor"].to_numpy().astype(np.int64), sizes)
    keys, place = np.unique(key, return_inverse=True)
    totals = np.bincount(place, np.repeat(rows["value"].to_numpy(), sizes))
    start = results["window_start"].cast(pa.int64()).to_numpy() // SLIDE_US
    own = start * 100 + results["sensor"].to_numpy().astype(np.int64)
    order = np.argsort(own)
    if not np.array_equal(own[order], keys):
        return len(np.setxor1d(own, keys)) + len(own) - len(np.unique(own))
    return int((np.abs(results["total"].to_numpy()[order] - totals) > 1e-12 * np.abs(totals)).sum())
