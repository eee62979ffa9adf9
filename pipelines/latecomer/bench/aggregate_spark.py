"""The benchmark of shards of an aggregate: is `run` on Spark faster with more cores, and with as many shards?

Where the workload comes from: sixteen of HPM's Game 2 at once by our generator (16,000 tuples/s), SUM per sensor over
windows of 0.5 s every 0.1 s, ``hpm`` with 1 and 2 shards (ranges of the sensors' hash, a controller each), in
micro-batches of `BATCH_ROWS` with their commits. A single game is too sparse
(``docs/experiments/aggregate-on-spark.md``).

Where it departs from the paper: there a task is a shard. Here shards split decisions and Spark's tasks split rows,
whatever the shards. So the throughput of as many shards as cores is compared with that of one shard on one core.

How it is measured: the cores of a session are fixed when it starts, so every number of cores has a process and a
session of its own (``local[1]``, ``local[2]``). The process is bound to as many cores with its children, the JVM and
its compiler included. All read the same events. Every query runs `TURNS` times, in turn.

* ``rows_per_second``: all rows over the time of the fastest run; other processes slow a run down and never speed it up.
  Two micro-batches are read while one is written, so a single one has no rate. ``seconds`` is the time of the last run.
* ``speedup``: throughput of the most cores over that of one.
* ``sequential``: the share of the work that one core did alone (scan of arrivals, planning, commits), by Amdahl's law.
* ``ceiling``: throughput of as many copies, a core each, at the same time, over that of one alone. Caches, memory and
  clock are shared and bound any program.
* ``wrong_after_repair``: answers of a smaller lake that differ from sums over all rows once all late rows are repaired.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from latecomer.bench import data as sources
from latecomer.bench import plots
from latecomer.bench.goals import Progress
from latecomer.bench.timing import run_in_processes
from latecomer.spark.engine.session import usable_cores

SHARDS = (1, 2)
WINDOW_US, SLIDE_US = 500_000, 100_000
GAMES, GAME_ROWS = 16, 625_000
"""Games at once, and tuples per game: 10 M tuples, 100,000 answers."""
TURNS = 4
"""Runs of each query over all events; during most of the first two the JVM still compiles."""
BATCH_ROWS = GAMES * GAME_ROWS // 5
"""Arrivals per micro-batch, 125 s of stream time: half of the default, so that there are five micro-batches."""
Seconds: TypeAlias = dict[int, tuple[float, float]]
"""Seconds of the last run over all events and rows per second of the fastest, by number of shards."""
_QUERY = (
    "name: sums_{0}_{1}\nkind: aggregate\nstreams: {{s: a}}\ngroup_by: [sensor]\n"
    "window: {{size: 500 ms, slide: 100 ms}}\n"
    "select: {{total: sum(value)}}\nquality: {{error: 0.05, probability: 0.95, period: 60 s}}\n"
    "strategy: {{name: hpm, shards: {1}}}\n"
)


def cores_to_try() -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to the cores that this process may use."""
    return tuple(1 << n for n in range(usable_cores().bit_length()))


def events(games: int = GAMES, rows: int = GAME_ROWS) -> pa.Table:
    """Generate games of `rows` tuples each and merge them by stream time.

    Returns
    -------
    pa.Table
        ``event_ts``, ``value``, ``sensor`` in arrival order.
    """
    table = pa.concat_tables(sources.football_aggregate(seed, 2, rows) for seed in range(games))
    times = table["event_time_us"].to_numpy()
    starts = [0, *np.cumsum([rows] * (games - 1)).tolist()]
    stream_time = np.concatenate([np.maximum.accumulate(times[start : start + rows]) for start in starts])
    order = np.argsort(stream_time, kind="stable")
    return pa.table(
        {"event_ts": times[order], "value": table["value"].take(order), "sensor": table["sensor"].take(order)}
    )


def measure(
    out: Path, progress: Progress, *, games: int = GAMES, rows: int = GAME_ROWS, turns: int = TURNS
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Measure `run` with every number of cores and shards and draw figure 6, on Spark.

    Returns
    -------
    rates : dict
        By ``<cores>.<shards>``: ``seconds`` and ``rows_per_second``.
    totals : dict
        ``wrong_after_repair``; with more than one core also ``speedup``, ``sequential`` and ``ceiling``.
    """
    folder = Path(tempfile.mkdtemp(prefix="latecomer-bench-"))
    rates: dict[str, dict[str, float]] = {}
    totals: dict[str, float] = {"wrong_after_repair": 0}
    numbers = cores_to_try()
    try:
        table = events(games, rows)
        pq.write_table(table, folder / "all.parquet")
        pq.write_table(table.slice(0, len(table) // 20), folder / "small.parquet")
        for cores in numbers:
            ((spent, wrong),) = run_in_processes(measure_on_cores, [(folder, range(cores), SHARDS, turns)])
            totals["wrong_after_repair"] += wrong
            for shards, (seconds, rate) in spent.items():
                rates[f"{cores}.{shards}"] = {"seconds": seconds, "rows_per_second": rate}
                progress(f"{cores} cores, {shards} shards on Spark: {rate:,.0f} rows/s")
        if numbers[-1] > 1:
            single_cores = [range(place, place + 1) for place in range(numbers[-1])]
            copies = run_in_processes(measure_on_cores, [(folder, core, SHARDS, turns) for core in single_cores])
            totals["ceiling"] = sum(spent[1][1] for spent, _ in copies) / rates["1.1"]["rows_per_second"]
            totals["wrong_after_repair"] += sum(wrong for _, wrong in copies)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if numbers[-1] > 1:
        shards = min(numbers[-1], max(SHARDS))
        rate = rates[f"{numbers[-1]}.{shards}"]["rows_per_second"]
        totals |= amdahl(rate, rates["1.1"]["rows_per_second"], numbers[-1])
        progress(
            f"{numbers[-1]} cores: {totals['speedup']:.2f} times one, "
            f"{totals['sequential']:.0%} of the work is sequential; "
            f"as many copies, a core each: {totals['ceiling']:.2f} times one"
        )
    series = {
        f"local[{cores}]": [rates[f"{cores}.{shards}"]["rows_per_second"] for shards in SHARDS] for cores in numbers
    }
    plots.bar_figure(
        out, "fig6_throughput_spark", "shards", "rows/s", [str(s) for s in SHARDS], series, title="Figure 6, on Spark"
    )
    return rates, totals


def amdahl(rate: float, single_rate: float, cores: int) -> dict[str, float]:
    """Return the ``speedup`` of several cores over one and the ``sequential`` share of the work, by Amdahl's law.

    Both are NaN where the speedup exceeds the number of cores by more than a tenth: the machine was busy elsewhere.

    Parameters
    ----------
    rate, single_rate : float
        Rows per second on `cores` cores and on one.
    cores : int
        At least 2.
    """
    speedup = rate / single_rate
    if speedup > 1.1 * cores:
        return {"speedup": math.nan, "sequential": math.nan}
    return {"speedup": speedup, "sequential": min(max((cores / speedup - 1) / (cores - 1), 0.0), 1.0)}


def measure_on_cores(folder: Path, places: range, shards: Sequence[int], turns: int) -> tuple[Seconds, int]:
    """Measure in this fresh process, bound to the cores that have these places among its own.

    Returns
    -------
    seconds : Seconds
        Times and rates by number of shards.
    wrong : int
        Wrong answers of the smaller lake after repair.

    Raises
    ------
    RuntimeError
        Spark raised an error; its own errors cannot be sent to another process.
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
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, [usable[place] for place in places])
    cores, lake_folder = len(places), folder / f"cores-{places.start}-{places.stop}"
    lakes = {name: Lake(str(lake_folder / name)) for name in ("small", "all")}
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
        measured = {count: (spent[-1], rows / min(spent)) for count, spent in seconds.items()}
        run(lakes["small"], spec, flush=True)
        repair(lakes["small"], spec, flush=True)
        results = result_views.results(lakes["small"], spec)
        return measured, count_wrong(results, pq.read_table(folder / "small.parquet"))
    except PySparkException as error:
        raise RuntimeError(f"Spark on {cores} cores: {error}") from None
    finally:
        spark.stop()
        shutil.rmtree(lake_folder, ignore_errors=True)


def count_wrong(results: pa.Table, rows: pa.Table) -> int:
    """Count answers that are missing, repeated, superfluous, or not the sum over all rows.

    Sums are compared to a relative 1e-12, because plain addition rounds.
    """
    windows_per_row = WINDOW_US // SLIDE_US
    last = rows["event_ts"].to_numpy() // SLIDE_US
    window = (last[:, None] - np.arange(windows_per_row)[None, :]).ravel()
    key = window * 100 + np.repeat(rows["sensor"].to_numpy().astype(np.int64), windows_per_row)
    due, place = np.unique(key, return_inverse=True)
    totals = np.bincount(place, np.repeat(rows["value"].to_numpy(), windows_per_row))
    start = results["window_start"].cast(pa.int64()).to_numpy() // SLIDE_US
    answered = start * 100 + results["sensor"].to_numpy().astype(np.int64)
    order = np.argsort(answered)
    if not np.array_equal(answered[order], due):
        return len(np.setxor1d(answered, due)) + len(answered) - len(np.unique(answered))
    return int((np.abs(results["total"].to_numpy()[order] - totals) > 1e-12 * np.abs(totals)).sum())
