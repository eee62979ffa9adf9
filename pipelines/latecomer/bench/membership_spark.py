"""What filters save on Spark: bytes that strategies move, and connections seen in several network logs.

Bytes moved are Spark's own figures: what tasks wrote for a shuffle, and what they sent to the driver, counted twice, as it goes
out again to one more machine. Each strategy's whole `run` over the same lake, commits included, beside plain semi-joins of the landing
files without and with Spark's Bloom filter join, all by shuffle (no side is small enough to broadcast). Elements of 64 bytes, one
stream against others that share 1, 10 and 50% of them.

The network logs: which connections (`uid`) stand in the logs ``ssl``, ``analyzer`` and ``weird`` of one minute, by every strategy, on time and
after repair, against sets.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from latecomer.bench import plots
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


def _landing(folder: Path, rows: int, shared: Sequence[int]) -> None:
    """``a.parquet``, and for every share of `shared` a stream with so many percent of its elements, in their windows of 1 s."""
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", np.uint8)
    rng = np.random.default_rng(SEED)
    times = np.arange(rows, dtype=np.int64) * 4_000_000 // rows
    base = letters[rng.integers(0, 64, (rows, ELEMENT_BYTES))]
    for share in (100, *shared):
        own = np.where(rng.random((rows, 1)) * 100 < share, base, letters[rng.integers(0, 64, base.shape)])
        offsets = np.arange(rows + 1, dtype=np.int32) * ELEMENT_BYTES
        elements = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(own)))
        name = "a" if share == 100 else f"b{share}"
        pq.write_table(pa.table({"event_ts": times, "e": elements}), folder / f"{name}.parquet")


def _moved(spark: SparkSession, work: Callable[[], Any]) -> dict[str, int]:
    """Bytes that Spark's tasks wrote for shuffles and sent to the driver while `work` ran."""

    def stages() -> list[Any]:
        context: Any = spark.sparkContext
        scala = context._jsc.sc()
        scala.listenerBus().waitUntilEmpty()
        none = context._gateway.new_array(context._jvm.double, 0)
        found = scala.statusStore().stageList(None, False, False, none, None)
        return [found.apply(i) for i in range(found.size())]

    last = max((stage.stageId() for stage in stages()), default=-1)  # Spark forgets old stages: no difference of sums
    work()
    own = [stage for stage in stages() if stage.stageId() > last]
    shuffled, collected = sum(stage.shuffleWriteBytes() for stage in own), sum(stage.resultSize() for stage in own)
    return {"shuffled": shuffled, "collected": collected, "moved": shuffled + 2 * collected}


def moved_bytes(
    out: Path, progress: Callable[[str], None], rows: int, shared: Sequence[int] = SHARED
) -> dict[str, Any]:
    """Bytes that strategies move, as Spark counts them, by the share of elements that occur in both streams of `rows` each."""
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
            found = first.distinct().join(other.where("e >= ''"), ["m", "e"], "left_semi")  # Spark wants a predicate
            if bloom and "might_contain" not in found._jdf.queryExecution().optimizedPlan().toString():
                raise RuntimeError("Spark chose no Bloom filter: its conditions for one have changed")
            found.write.format("noop").mode("overwrite").save()

        found: dict[str, dict[str, dict[str, int]]] = {}
        for share in shared:
            ways: dict[str, Callable[[], Any]] = {
                name: lambda name=name, share=share: run_query(  # type: ignore[misc]
                    lake, parse_query(_QUERY.format(name, share)), flush=True
                )
                for name in STRATEGIES
            }
            ways["plain semi-join"] = lambda share=share: plain(share, False)  # type: ignore[misc]
            ways["Spark's Bloom filter join"] = lambda share=share: plain(share, True)  # type: ignore[misc]
            for name, work in ways.items():
                spark.conf.set(f"{_BLOOM_CONF}.enabled", "false")  # but for the way that is about it
                found.setdefault(name, {})[f"{share}%"] = _moved(spark, work)
            parts = found["mcf"][f"{share}%"]["moved"], found["exact"][f"{share}%"]["moved"]
            progress(f"{share}% shared: mcf moves {parts[0]:,} bytes, an exact semi-join {parts[1]:,}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for key, value in before.items():
            spark.conf.set(key, value)
    lines = [(name, share, *counts.values()) for name, shares in found.items() for share, counts in shares.items()]
    plots.table(out, "membership_moved_parts", ("way", "shared", "shuffled", "collected", "moved"), lines)
    exact = found["exact"]
    of_exact = {
        name: {share: counts["moved"] / exact[share]["moved"] for share, counts in shares.items()}
        for name, shares in found.items()
    }
    drawn = {name: shares for name, shares in of_exact.items() if name not in ("exact", "plain semi-join")}
    series = {name: list(shares.values()) for name, shares in drawn.items()}
    labels = "elements in both streams", "bytes moved, of an exact semi-join's"
    title = f"{rows:,} elements of {ELEMENT_BYTES} bytes a stream; goal: at most {MOVED_GOAL}"
    plots.bar_figure(out, "membership_moved", *labels, [f"{share}%" for share in shared], series, title=title)
    return {"rows_per_stream": rows, "bytes": found, "of_exact": of_exact}


_LOGS = ("ssl", "analyzer", "weird")
_UIDS = "name: uids_{}\nkind: membership\nstreams: {{x: ssl, y: analyzer, z: weird}}\nelement: uid\nwindow: 1 min\nstrategy: {}\n"


def zeek(data: Path, progress: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Answers on time, after repair and `wrong` ones (sets disagree), the filters' bytes and errors, by strategy."""
    from latecomer.ingest.ingest import ingest
    from latecomer.ingest.options import IngestOptions
    from latecomer.lake import result_views
    from latecomer.lake.lake import Lake
    from latecomer.ledger import ledger
    from latecomer.spark.repair import repair
    from latecomer.spark.run import run as run_query
    from latecomer.specs.loading import parse_query

    file, want = data / "zeek_events.parquet", _in_all_logs(data / "zeek_events.parquet")
    folder = Path(tempfile.mkdtemp(prefix="latecomer-bench-"))
    found: dict[str, dict[str, float]] = {}
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
            books = ledger.ledger(lake, spec).to_pandas()
            found[name] = {"on_time": on_time, "results": len(answers), "wrong": len(answers ^ want)}
            found[name] |= {
                column: float(books[column].sum())
                for column in ("tested", "candidates", "confirmed", "filter_bytes", "moved_bytes", "exact_bytes")
                if column in books
            }
            progress(
                f"network logs, {name}: {on_time:,} on time, {len(answers):,} after repair, {len(answers ^ want)} wrong"
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _in_all_logs(file: Path) -> set[tuple[int, str]]:
    """Window start (us) and `uid` of connections that stand in all logs of a window."""
    rows = pq.read_table(file, columns=["stream", "event_ts", "uid"], filters=[("stream", "in", _LOGS)])
    minute = pa.scalar(60_000_000)
    start = pc.multiply(pc.divide(rows["event_ts"].cast(pa.int64()), minute), minute)
    known = pa.table({"start": start, "uid": rows["uid"], "stream": rows["stream"]}).filter(pc.is_valid(rows["uid"]))
    counted = known.group_by(["start", "uid"]).aggregate([("stream", "count_distinct")])
    own = counted.filter(pc.equal(counted["stream_count_distinct"], len(_LOGS)))
    return set(zip(own["start"].to_pylist(), own["uid"].to_pylist(), strict=True))
