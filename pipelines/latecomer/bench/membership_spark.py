"""The benchmark of memberships on Spark: how many bytes do filters save, and do all strategies give the same answers?

Bytes moved: one stream of elements of 64 bytes against others that share 1, 10 and 50% of them. Every strategy has a
whole `run` over one lake, commits included, beside plain semi-joins of the landing files with and without Spark's Bloom
filter join. All joins shuffle; no side is broadcast. Bytes are Spark's own figures: the bytes that tasks wrote for a
shuffle, and the bytes that they sent to the driver. The latter count twice, because the driver sends them on to at
least one machine.

Network logs: the connections (`uid`) that occur in the logs ``ssl``, ``analyzer`` and ``weird`` in the same minute, by
every strategy, on time and after repair, against Python sets.

Neither workload is from the thesis.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from latecomer.bench import plots
from latecomer.bench.goals import Progress
from latecomer.specs.membership import STRATEGIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 28
ELEMENT_BYTES = 64
SHARED = (1, 10, 50)
MOVED_GOAL = 0.2
_BLOOM_CONF = "spark.sql.optimizer.runtime.bloomFilter"
_BLOOM_JOIN = {"enabled": "true", "applicationSideScanSizeThreshold": "0", "creationSideThreshold": str(1 << 40)}
_QUERY = "name: q_{0}_{1}\nkind: membership\nstreams: {{x: a, y: b{1}}}\nelement: e\nwindow: 1 s\nstrategy: {0}\n"


class Moved(TypedDict):
    """Bytes moved by way, share of common elements and kind; and over those of the exact strategy, by way and share."""

    rows_per_stream: int
    bytes: dict[str, dict[str, dict[str, int]]]
    of_exact: dict[str, dict[str, float]]


def _landing(folder: Path, rows: int, shared: Sequence[int]) -> None:
    """Write stream ``a`` of 4 s and, per percentage in `shared`, a stream that has so many of its elements.

    A shared element occurs in the same window of 1 s in both streams.
    """
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", np.uint8)
    rng = np.random.default_rng(SEED)
    times = np.arange(rows, dtype=np.int64) * 4_000_000 // rows
    base = letters[rng.integers(0, 64, (rows, ELEMENT_BYTES))]
    for share in (100, *shared):
        spelling = np.where(rng.random((rows, 1)) * 100 < share, base, letters[rng.integers(0, 64, base.shape)])
        offsets = np.arange(rows + 1, dtype=np.int32) * ELEMENT_BYTES
        elements = pa.StringArray.from_buffers(
            rows, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(spelling))
        )
        name = "a" if share == 100 else f"b{share}"
        pq.write_table(pa.table({"event_ts": times, "e": elements}), folder / f"{name}.parquet")


def _moved(spark: SparkSession, work: Callable[[], object]) -> dict[str, int]:
    """Return the bytes that Spark's tasks wrote for shuffles and sent to the driver while `work` ran."""

    def stages() -> list[Any]:
        context: Any = spark.sparkContext  # py4j objects have no types
        scala = context._jsc.sc()
        scala.listenerBus().waitUntilEmpty()
        quantiles = context._gateway.new_array(context._jvm.double, 0)
        stored = scala.statusStore().stageList(None, False, False, quantiles, None)
        return [stored.apply(i) for i in range(stored.size())]

    last = max((stage.stageId() for stage in stages()), default=-1)  # Spark forgets old stages, so sums do not subtract
    work()
    new = [stage for stage in stages() if stage.stageId() > last]
    shuffled, collected = sum(stage.shuffleWriteBytes() for stage in new), sum(stage.resultSize() for stage in new)
    return {"shuffled": shuffled, "collected": collected, "moved": shuffled + 2 * collected}


def moved_bytes(out: Path, progress: Progress, rows: int, shared: Sequence[int] = SHARED) -> Moved:
    """Measure the bytes that the strategies move, by the percentage of elements that both streams share."""
    from latecomer.ingest.ingest import ingest
    from latecomer.ingest.options import IngestOptions
    from latecomer.lake.lake import Lake
    from latecomer.spark.engine.session import session
    from latecomer.spark.engine.tuning import tune
    from latecomer.spark.run import run as run_query
    from latecomer.specs.loading import parse_query

    folder = Path(tempfile.mkdtemp(prefix="latecomer-bench-"))
    lake = Lake(str(folder / "lake"))
    spark = session(lake)
    keys = [*(f"{_BLOOM_CONF}.{name}" for name in _BLOOM_JOIN), "spark.sql.autoBroadcastJoinThreshold"]
    before = {key: str(spark.conf.get(key)) for key in keys}
    try:
        _landing(folder, rows, shared)
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
        for name in ("a", *(f"b{share}" for share in shared)):
            ingest(lake, [str(folder / f"{name}.parquet")], IngestOptions(stream=name))

        def plain(share: int, bloom: bool) -> None:
            tune(spark, rows)
            for key, value in (_BLOOM_JOIN | ({} if bloom else {"enabled": "false"})).items():
                spark.conf.set(f"{_BLOOM_CONF}.{key}", value)
            first, other = (
                spark.read.parquet(str(folder / f"{name}.parquet")).selectExpr("event_ts div 1000000 as m", "e")
                for name in ("a", f"b{share}")
            )
            # Spark uses a Bloom filter only if the side that creates it has a predicate.
            joined = first.distinct().join(other.where("e >= ''"), ["m", "e"], "left_semi")
            if bloom and "might_contain" not in joined._jdf.queryExecution().optimizedPlan().toString():
                raise RuntimeError("Spark chose no Bloom filter: its conditions for one have changed")
            joined.write.format("noop").mode("overwrite").save()

        def run_strategy(name: str, share: int) -> None:
            run_query(lake, parse_query(_QUERY.format(name, share)), flush=True)

        moved: dict[str, dict[str, dict[str, int]]] = {}
        for share in shared:
            ways: dict[str, Callable[[], None]] = {name: partial(run_strategy, name, share) for name in STRATEGIES}
            ways["plain semi-join"] = partial(plain, share, False)
            ways["Spark's Bloom filter join"] = partial(plain, share, True)
            for name, work in ways.items():
                spark.conf.set(f"{_BLOOM_CONF}.enabled", "false")  # the last way enables it itself
                moved.setdefault(name, {})[f"{share}%"] = _moved(spark, work)
            mcf, exact = moved["mcf"][f"{share}%"]["moved"], moved["exact"][f"{share}%"]["moved"]
            progress(f"{share}% shared: mcf moves {mcf:,} bytes, an exact semi-join {exact:,}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for key, value in before.items():
            spark.conf.set(key, value)
    lines = [(name, share, *counts.values()) for name, shares in moved.items() for share, counts in shares.items()]
    plots.table(out, "membership_moved_parts", ("way", "shared", "shuffled", "collected", "moved"), lines)
    of_exact = {
        name: {share: counts["moved"] / moved["exact"][share]["moved"] for share, counts in shares.items()}
        for name, shares in moved.items()
    }
    series = {
        name: list(shares.values()) for name, shares in of_exact.items() if name not in ("exact", "plain semi-join")
    }
    plots.bar_figure(
        out, "membership_moved", "elements in both streams", "bytes moved, of an exact semi-join's",
        [f"{share}%" for share in shared], series,
        title=f"{rows:,} elements of {ELEMENT_BYTES} bytes a stream; goal: at most {MOVED_GOAL}",
    )  # fmt: skip
    return {"rows_per_stream": rows, "bytes": moved, "of_exact": of_exact}


_LOGS = ("ssl", "analyzer", "weird")
_UIDS = (
    "name: uids_{}\nkind: membership\nstreams: {{x: ssl, y: analyzer, z: weird}}\nelement: uid\nwindow: 1 min\n"
    "strategy: {}\n"
)


def zeek(data: Path, progress: Progress) -> dict[str, dict[str, float]]:
    """Count, by strategy, answers on time, after repair and wrong ones, and bytes and errors of the filters."""
    from latecomer.ingest.ingest import ingest
    from latecomer.ingest.options import IngestOptions
    from latecomer.lake import result_views
    from latecomer.lake.lake import Lake
    from latecomer.ledger import ledger
    from latecomer.spark.repair import repair
    from latecomer.spark.run import run as run_query
    from latecomer.specs.loading import parse_query

    file, expected = data / "zeek_events.parquet", _in_all_logs(data / "zeek_events.parquet")
    folder = Path(tempfile.mkdtemp(prefix="latecomer-bench-"))
    strategies: dict[str, dict[str, float]] = {}
    try:
        lake = Lake(str(folder / "lake"))
        ingest(lake, [str(file)], IngestOptions(by="stream"))
        for name in STRATEGIES:
            spec = parse_query(_UIDS.format(name, name))
            run_query(lake, spec, flush=True)
            on_time = result_views.view(lake, spec, "on_time").num_rows
            repair(lake, spec, flush=True)
            rows = result_views.results(lake, spec)
            start = rows["window_start"].cast(pa.int64()).to_pylist()
            answers = set(zip(start, rows["element"].to_pylist(), strict=True))
            periods = ledger.ledger(lake, spec).to_pandas()
            strategies[name] = {"on_time": on_time, "results": len(answers), "wrong": len(answers ^ expected)}
            strategies[name] |= {
                column: float(periods[column].sum())
                for column in ("tested", "candidates", "confirmed", "filter_bytes", "moved_bytes", "exact_bytes")
                if column in periods
            }
            progress(
                f"network logs, {name}: {on_time:,} on time, {len(answers):,} after repair, "
                f"{len(answers ^ expected)} wrong"
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return strategies


def _in_all_logs(file: Path) -> set[tuple[int, str]]:
    """Find the connections that occur in all logs in one minute: window start (us) and `uid`."""
    rows = pq.read_table(file, columns=["stream", "event_ts", "uid"], filters=[("stream", "in", _LOGS)])
    minute = pa.scalar(60_000_000)
    start = pc.multiply(pc.divide(rows["event_ts"].cast(pa.int64()), minute), minute)
    known = pa.table({"start": start, "uid": rows["uid"], "stream": rows["stream"]}).filter(pc.is_valid(rows["uid"]))
    counted = known.group_by(["start", "uid"]).aggregate([("stream", "count_distinct")])
    common = counted.filter(pc.equal(counted["stream_count_distinct"], len(_LOGS)))
    return set(zip(common["start"].to_pylist(), common["uid"].to_pylist(), strict=True))
