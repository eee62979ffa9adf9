"""Is `run` of an aggregate on Spark faster with more cores, and do shards keep up with them?

Workload: a long steady stream, sixteen of HPM's Game 2 by our generator at once (16,000 tuples/s; one game is so sparse that deciding,
once per window and shard, costs more than its rows do, and no shard is faster than the whole), SUM per sensor over windows of 0.5 s
every 0.1 s, ``hpm`` with 1 and 2 shards (ranges of the sensors' hash, a controller each), in micro-batches of `BATCH_ROWS` with their
commits. Every query runs `TURNS` times, in turn. Two micro-batches are read while one is written, so none has a rate of its own:
``rows_per_second`` is that of all rows in the fastest run (a machine is disturbed, never helped), ``seconds`` the last run's. Cores are fixed when a session starts, so every number of cores has a process with a session of its own (``local[1]``, ``local[2]``), which is held on so many cores
with its children (the driver, the JVM and its compiler too), over the same events. Departure from the paper: there a task is a shard.
Here shards split decisions, not rows; Spark's tasks split rows, whatever the shards. So the throughput that grows with cores is that of
as many shards as cores, over that of one shard on one core: ``speedup``. Amdahl's law makes of it the share of the work that one core
did alone (the scan of the order, planning, commits): ``sequential``. What cores share (caches, memory, their clock) bounds any program, so as
many copies on a core each, which share nothing else, run at once for comparison: ``ceiling`` is their throughput over that of one alone.

What was late in a smaller lake is repaired and compared with sums over all rows: ``wrong_after_repair`` answers differ.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from latecomer.bench import data as sources
from latecomer.bench import plots
from latecomer.bench.timing import run_in_processes
from latecomer.spark.engine.session import usable_cores

SHARDS = (1, 2)
WINDOW_US, SLIDE_US = 500_000, 100_000
GAMES, GAME_ROWS = 16, 625_000
"""Games at once, and tuples of each: 10 M tuples, 100,000 answers."""
TURNS = 4
"""Times that each query runs over all events: the JVM compiles, beside the work, for most of the first two."""
BATCH_ROWS = GAMES * GAME_ROWS // 5
"""Arrivals per micro-batch, 125 s of stream time: half of what `run` takes by itself, so that there are five."""
_QUERY = (
    "name: sums_{0}_{1}\nkind: aggregate\nstreams: {{s: a}}\ngroup_by: [sensor]\nwindow: {{size: 500 ms, slide: 100 ms}}\n"
    "select: {{total: sum(value)}}\nquality: {{error: 0.05, probability: 0.95, period: 60 s}}\n"
    "strategy: {{name: hpm, shards: {1}}}\n"
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


def measure(
    out: Path, progress: Callable[[str], None], *, games: int = GAMES, rows: int = GAME_ROWS, turns: int = TURNS
) -> dict[str, Any]:
    """Rows per second of every number of cores and shards, and by how much the cores help; a figure beside the in-memory one.

    Returns
    -------
    dict
        ``<cores>.<shards>``: ``seconds``, ``rows_per_second``; with more than one core, ``speedup``, ``sequential`` and ``ceiling``.
    """
    folder = Path(tempfile.mkdtemp(prefix="latecomer-bench-"))
    found: dict[str, Any] = {}
    cores = cores_to_try()
    try:
        table = events(games, rows)
        pq.write_table(table, folder / "all.parquet")
        pq.write_table(table.slice(0, len(table) // 20), folder / "small.parquet")
        for each in cores:
            ((spent, wrong),) = run_in_processes(on_cores, [(folder, range(each), SHARDS, turns)])
            found["wrong_after_repair"] = found.get("wrong_after_repair", 0) + wrong
            for shards, (whole, rate) in spent.items():
                found[f"{each}.{shards}"] = {"seconds": whole, "rows_per_second": rate}
                progress(f"{each} cores, {shards} shards on Spark: {rate:,.0f} rows/s")
        if cores[-1] > 1:
            alone = [range(place, place + 1) for place in range(cores[-1])]
            copies = run_in_processes(on_cores, [(folder, each, SHARDS, turns) for each in alone])
            found["ceiling"] = sum(spent[1][1] for spent, _ in copies) / found["1.1"]["rows_per_second"]
            found["wrong_after_repair"] += sum(wrong for _, wrong in copies)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if cores[-1] > 1:
        shards = min(cores[-1], max(SHARDS))
        many, one = (found[name]["rows_per_second"] for name in (f"{cores[-1]}.{shards}", "1.1"))
        found |= amdahl(many, one, cores[-1])
        progress(
            f"{cores[-1]} cores: {found['speedup']:.2f} times one, {found['sequential']:.0%} of the work is sequential; "
            f"as many copies, a core each: {found['ceiling']:.2f} times one"
        )
    series = {f"local[{each}]": [found[f"{each}.{shards}"]["rows_per_second"] for shards in SHARDS] for each in cores}
    plots.bar_figure(
        out, "fig6_throughput_spark", "shards", "rows/s", [str(s) for s in SHARDS], series, title="Figure 6, on Spark"
    )
    return found


def amdahl(many: float, one: float, cores: int) -> dict[str, float]:
    """``speedup`` of `cores` cores over one, and the share of the work that must be ``sequential`` for it; rates in rows/s.

    Both are NaN where `cores` cores were more than a tenth faster than they can be: the machine was busy with something else.
    """
    speedup = many / one
    if speedup > 1.1 * cores:
        return {"speedup": math.nan, "sequential": math.nan}
    return {"speedup": speedup, "sequential": min(max((cores / speedup - 1) / (cores - 1), 0.0), 1.0)}


Measured = tuple[dict[int, tuple[float, float]], int]
"""Seconds of the last `run` over all events and rows per second of the fastest, by number of shards; wrong answers after repair."""


def on_cores(folder: Path, places: range, shards: Sequence[int], turns: int) -> Measured:
    """In a fresh process, held on those of its cores that have these places.

    Raises RuntimeError for whatever Spark raised: its own errors cannot leave the process.
    """
    from pyspark.errors import PySparkException

    from latecomer.ingest.ingest import ingest
    from latecomer.ingest.options import IngestOptions
    from latecomer.lake import result_views
    from latecomer.lake.lake import Lake
    from latecomer.spark.engine.session import session
    from latecomer.spark.repair import repair
    from latecomer.spark.run import run
    from latecomer.specs.loading import parse_query

    if hasattr(os, "sched_setaffinity"):
        own_cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, [own_cores[place] for place in places])
    cores, own = len(places), folder / f"cores-{places.start}-{places.stop}"
    lakes = {name: Lake(str(own / name)) for name in ("small", "all")}
    spark = session(
        lakes["all"], more={"spark.master": f"local[{cores}]", "spark.sql.shuffle.partitions": str(2 * cores)}
    )
    assert spark.sparkContext.defaultParallelism == cores
    try:
        seconds: dict[int, list[float]] = {count: [] for count in shards}
        for name, lake in lakes.items():
            ingest(lake, [str(folder / f"{name}.parquet")], IngestOptions(stream="a"))
        rows = pq.read_metadata(folder / "all.parquet").num_rows
        for turn, count in itertools.product(range(turns), shards):
            spec, started = parse_query(_QUERY.format(turn, count)), time.perf_counter()
            run(lakes["all"], spec, rows_per_batch=min(BATCH_ROWS, -(-rows // 3)))
            seconds[count].append(time.perf_counter() - started)
        found = {count: (spent[-1], rows / min(spent)) for count, spent in seconds.items()}
        run(lakes["small"], spec, flush=True)
        repair(lakes["small"], spec, flush=True)
        return found, wrong(result_views.results(lakes["small"], spec), pq.read_table(folder / "small.parquet"))
    except PySparkException as error:
        raise RuntimeError(f"Spark on {cores} cores: {error}") from None
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
