"""The benchmark of speed: how fast is `run` on Spark beside Spark's own operators and the least that any job must do?

Where the workload comes from: generated events with exponential delays of mean 100 ms, 10,000 events per second of
event time, ingested once, untimed. It is not from a paper.

How it is measured: per query kind, in one session, in one micro-batch, because the other jobs are one job each.

* ``latecomer``: the whole of `run` with its commits; for the join also with a constant slack, ``latecomer_k_slack``.
* ``spark``: Spark's own way to the same answer. Windowed streaming aggregation and stream-stream join with a watermark
  and the available-now trigger; for top-k a window function, which is not told which rows came too late.
* ``floor``: a plain job that reads the same columns of the same events and writes the same result rows.

A tenth of the rows goes first, to warm up, and once more at the end, timed: ``tenfold`` is the time of all rows over
that of a tenth. Jobs take turns, `TURNS` of them, and the best time of each counts, because the first turns pay for
compiling. Ratios tell more than times, which depend on the machine. Results: ``docs/performance.md``.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from latecomer.bench.data import exponential
from latecomer.bench.goals import Goal, Goals, Progress
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake.lake import Lake
from latecomer.spark.engine.session import session
from latecomer.spark.engine.tuning import tune
from latecomer.spark.run import run
from latecomer.specs.loading import parse_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RATE = 10_000.0
TURNS = 5
SPARK_TURNS = {"aggregate": TURNS, "topk": TURNS, "join": 2}
"""Turns of Spark's own way. Its stream-stream join takes minutes, in which everything is compiled."""
_JOIN = "streams: {l: a, r: b}\nkeys: [key]\nwindow: 1 s\nselect: [l.value, r.value]\n"
QUERIES = {
    "aggregate": {
        "latecomer": "streams: {s: a}\nwindow: {size: 10 s, slide: 2 s}\nselect: {total: sum(value)}\n"
        "strategy: {name: k_slack, slack: 1 s}",
    },
    "topk": {
        "latecomer": "streams: {s: a}\nscore: value\nk: 5\nwindow: {size: 10 s, slide: 10 s}\nselect: [value]\n"
        "strategy: none",
    },
    "join": {
        "latecomer": _JOIN + "quality: {recall: 0.99, period: 10 s}",
        "latecomer_k_slack": _JOIN + "strategy: {name: k_slack, slack: 1 s}",
    },
}


def measure(kind: str, rows: int, progress: Progress) -> dict[str, float]:
    """Measure the jobs of a query kind over `rows` events.

    Returns
    -------
    dict
        By job, ``<job>_seconds`` and ``<job>_rows_per_second``; by query, ``<query>_times_spark`` (Spark's time over
        ours), ``<query>_times_floor`` (our time over the floor's) and ``<query>_tenfold``.
    """
    folder = Path(tempfile.mkdtemp(prefix="latecomer-bench-"))
    try:
        runs = []
        for place, (share, label) in enumerate(((rows // 10, "warm up"), (rows, "measured"), (rows // 10, "a tenth"))):
            lake = _lake(folder / str(place), kind, share)
            progress(f"{kind}: {label}, {share:,} rows")
            runs.append(_best_turns(kind, lake, alone=place == 2))
        spent = runs[1]
        figures = {f"{name}_seconds": seconds for name, seconds in spent.items()}
        figures |= {f"{name}_rows_per_second": rows / seconds for name, seconds in spent.items() if seconds}
        for name in QUERIES[kind]:
            figures[f"{name}_times_spark"] = spent["spark"] / spent[name]
            figures[f"{name}_times_floor"] = spent[name] / spent["floor"]
            figures[f"{name}_tenfold"] = spent[name] / runs[2][name]
        return figures
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def goals(kind: str, figures: Mapping[str, float], progress: Progress) -> list[Goal]:
    """Judge the speed of `run` by its goals."""
    judged = Goals(progress)
    if kind == "join":
        judged.add("join: times as fast as Spark's stream-stream join", 5, figures["latecomer_times_spark"], "at least")
        judged.add("join: time over the floor's", 2, figures["latecomer_times_floor"], "at most")
    else:
        judged.add(f"{kind}: rows per second", 2e6, figures["latecomer_rows_per_second"], "at least")
        judged.add(f"{kind}: times as fast as Spark's own way", 1, figures["latecomer_times_spark"], "at least")
    if kind == "aggregate":
        judged.add("aggregate: time over the floor's", 2, figures["latecomer_times_floor"], "at most")
    judged.add(f"{kind}: time for ten times the rows", 11, figures["latecomer_tenfold"], "at most")
    return judged.lines


def _lake(folder: Path, kind: str, rows: int) -> Lake:
    """Generate events and ingest them into a new lake."""
    folder.mkdir(parents=True)
    table = exponential(5, rows, RATE, 100_000.0)
    rng = np.random.default_rng(5)
    names = np.where(rng.random(rows) < 0.5, "a", "b") if kind == "join" else np.full(rows, "a")
    columns = {
        "stream": pa.array(names),
        "event_ts": table["event_time_us"],
        "value": table["value"],
        "key": pa.array(rng.integers(0, 5_000, rows)),
    }
    pq.write_table(pa.table(columns), folder / "events.parquet")
    lake = Lake(str(folder / "lake"))
    session(lake)  # its compiler is chosen for many rows; the warm-up alone would choose the one for few
    ingest(lake, [str(folder / "events.parquet")], IngestOptions(by="stream"))
    return lake


def _best_turns(kind: str, lake: Lake, *, alone: bool) -> dict[str, float]:
    """Return the seconds of each job in its best turn; `alone` runs our queries only."""
    turns = [_turn(kind, lake, number, alone=alone) for number in range(TURNS)]
    return {name: min(turn[name] for turn in turns if name in turn) for name in turns[0]}


def _turn(kind: str, lake: Lake, number: int, *, alone: bool) -> dict[str, float]:
    """Run each job once and return its seconds."""
    spark = session(lake)
    spent = {}
    for name, query in QUERIES[kind].items():
        spec = parse_query(f"name: {name}_{number}\nkind: {kind}\n{query}\n")
        started = time.perf_counter()
        run(lake, spec, rows_per_batch=1 << 40, flush=True)
        spent[name] = time.perf_counter() - started
    if alone:
        return spent
    tune(spark, 1 << 40)
    if number < SPARK_TURNS[kind]:
        started = time.perf_counter()
        {"aggregate": _stream_aggregate, "join": _stream_join, "topk": _window_function}[kind](spark, lake)
        spent["spark"] = time.perf_counter() - started
    started = time.perf_counter()
    _floor(spark, lake, ["a", "b"] if kind == "join" else ["a"], f"latecomer_{number}")
    spent["floor"] = time.perf_counter() - started
    return spent


def _stream_aggregate(spark: SparkSession, lake: Lake) -> None:
    """Sum with Spark's windowed streaming aggregation."""
    from pyspark.sql import functions as F

    events = spark.readStream.format("delta").load(lake.table("events", "a").spark_path)
    marked = events.withWatermark("event_ts", "1 second")
    sums = marked.groupBy(F.window("event_ts", "10 seconds", "2 seconds")).agg(F.sum("value").alias("total"))
    _stream(sums, lake)


def _stream_join(spark: SparkSession, lake: Lake) -> None:
    """Join with Spark's stream-stream join."""
    from pyspark.sql import functions as F

    sides = []
    for name, stream in (("l", "a"), ("r", "b")):
        events = spark.readStream.format("delta").load(lake.table("events", stream).spark_path)
        columns = [F.col(c).alias(f"{name}_{c}") for c in ("seq", "event_ts", "value", "key")]
        sides.append(events.select(*columns).withWatermark(f"{name}_event_ts", "1 second"))
    near = "l_key = r_key and l_event_ts between r_event_ts - interval 1 second and r_event_ts + interval 1 second"
    _stream(sides[0].join(sides[1], F.expr(near)), lake)


def _stream(rows: DataFrame, lake: Lake) -> None:
    """Run a streaming query over all rows that are there and wait for its end."""
    folder = f"{lake.uri}/_bench"
    shutil.rmtree(folder, ignore_errors=True)
    query = (
        rows.writeStream.format("delta")
        .outputMode("append")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/out")
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _window_function(spark: SparkSession, lake: Lake) -> None:
    """Find the five highest with a window function."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    events = spark.read.format("delta").load(lake.table("events", "a").spark_path)
    start = F.window("event_ts", "10 seconds").start
    order = Window.partitionBy("w").orderBy(F.col("value").desc(), "event_ts", "seq")
    best = events.withColumn("w", start).withColumn("rank", F.row_number().over(order)).where("rank <= 5")
    best.select("w", "rank", "value", "seq").write.format("delta").mode("overwrite").save(f"{lake.uri}/_bench/topk")


def _floor(spark: SparkSession, lake: Lake, streams: list[str], query: str) -> None:
    """Read the columns that the query reads, and write the rows that it wrote."""
    for stream in streams:
        events = spark.read.format("delta").load(lake.table("events", stream).spark_path)
        events.select("seq", "event_ts", "value", "key").write.format("noop").mode("overwrite").save()
    results = spark.read.format("delta").load(lake.table("on_time", query).spark_path)
    results.write.format("delta").mode("overwrite").save(f"{lake.uri}/_bench/copy")
