"""The benchmark of speed: every command beside plain Spark and DuckDB, cold and warm, and by number of rows.

Where the workload comes from: generated events with exponential delays of mean 100 ms, 10,000 per second of event time,
in two streams, with 5,000 keys. It is not from a paper.

How it is measured: the jobs take turns in one run on the same data, and the best turn of each counts, since other
processes slow a job down and never speed it up.

* ``ingest``: the rows of a Parquet file sorted by arrival (:mod:`latecomer.bench.ingest`).
* ``join``, ``aggregate`` (SUM, COUNT, AVG in windows of 10 s every 2 s for each key), ``topk`` (the five highest in
  10 s), ``membership`` (users of both streams in 10 s), ``theta_join`` (rows with a condition ``=`` and a condition
  ``<`` in 4 s): `run --flush` with the quality that the query states, beside the queries of
  :mod:`latecomer.bench.plain_jobs`. These know all rows and answer once, without watermark, ledger and late rows.
* ``check`` and ``publish``: of the aggregate, beside its `run`.

``cold`` is a process of its own from start to end, by `COLD_TURNS` processes each. ``warm`` is a job of a session that
has done the same job before, by `WARM_TURNS` turns. DuckDB has no cold start to speak of; its one figure is of its job,
if it is installed.
``tenfold`` is the time of the most rows over that of a tenth of them.

Results: ``docs/performance.md``.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from latecomer.bench import ingest as bench_ingest
from latecomer.bench import plain_jobs, plots
from latecomer.bench.data import SECOND, exponential
from latecomer.bench.goals import Goals, Progress, Summary
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake.lake import Lake
from latecomer.spark.engine.session import session
from latecomer.spark.run import run as run_query
from latecomer.specs.loading import parse_query

ROWS, QUICK_ROWS = (1_000_000, 4_000_000, 10_000_000), (20_000,)
RATE, KEYS, USERS = 10_000.0, 5_000, 200_000
FILE_ROWS = 10_000_000
"""Most events of a file; the next file goes on where it ends."""
COLD_TURNS, WARM_TURNS = 2, 3
QUICK_KINDS = ("aggregate",)
HAS_DUCKDB = importlib.util.find_spec("duckdb") is not None
"""Whether DuckDB is installed (the extra ``bench``); else its column is empty."""
MOST_RATIO = {"ingest": 2.0, "check": 0.1, "publish": 0.1}
"""Goals over plain Spark (of `check` and `publish`: over `run`); `RUN_RATIO` for the queries."""
RUN_RATIO, TENFOLD = 1.5, 11.0
_TWO = "streams: {l: a, r: b}\nquality: {recall: 0.95, period: 10 s}\n"
QUERIES = {
    "join": "streams: {l: a, r: b}\nkeys: [key]\nwindow: 1 s\nselect: [l.value, r.value]\n"
    "quality: {recall: 0.95, period: 10 s}\n",
    "aggregate": "streams: {s: a}\nwindow: {size: 10 s, slide: 2 s}\ngroup_by: [key]\n"
    "select: {n: count(), total: sum(value), mean: avg(value)}\n"
    "quality: {error: 0.05, probability: 0.95, period: 10 s}\n",
    "topk": "streams: {s: a}\nscore: value\nk: 5\nwindow: 10 s\nselect: [value]\n"
    "quality: {hit_rate: 0.95, period: 10 s}\n",
    "membership": _TWO + "element: user\nwindow: 10 s\n",
    "theta_join": _TWO + "window: 4 s\nconditions: [l.key = r.key, l.value < r.value]\nselect: [l.value, r.value]\n",
}
_COLUMNS = (("", "s"), ("spark_", "s"), ("", "ratio"))
_PROCESS = "import sys; from latecomer.bench.speed import plain_job; plain_job(*sys.argv[1:])"


@dataclass(frozen=True)
class Measured:
    """The seconds of one job over a number of rows; None where it was not measured.

    Attributes
    ----------
    job, rows
        The name of the job, and the rows that it went through.
    cold, spark_cold, warm, spark_warm, duckdb
        Seconds of ours, of plain Spark and of DuckDB. Of `check` and `publish` the place of plain Spark has our `run`.
    """

    job: str
    rows: int
    cold: float | None = None
    spark_cold: float | None = None
    warm: float | None = None
    spark_warm: float | None = None
    duckdb: float | None = None

    @property
    def cold_ratio(self) -> float | None:
        """Our time over plain Spark's, cold."""
        return self.cold / self.spark_cold if self.cold and self.spark_cold else None

    @property
    def warm_ratio(self) -> float | None:
        """Our time over plain Spark's, warm."""
        return self.warm / self.spark_warm if self.warm and self.spark_warm else None


def run(data: Path | None, out: Path, progress: Progress, *, quick: bool = False) -> Summary:
    """Measure every job by number of rows, write the table, and judge the goals; `data` is not used."""
    sizes = QUICK_ROWS if quick else ROWS
    measured: list[Measured] = []
    for rows in sizes:
        folder = Path(tempfile.mkdtemp(prefix="latecomer-bench-"))
        try:
            progress(f"speed: {rows:,} rows")
            measured += _measure(folder, rows, progress, quick=quick)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    columns = [
        "job",
        "rows",
        "cold_s",
        "spark_cold_s",
        "cold_ratio",
        "warm_s",
        "spark_warm_s",
        "warm_ratio",
        "duckdb_s",
    ]
    lines = [[m.job, m.rows, *map(_rounded, _figures(m))] for m in measured]
    plots.table(out, "speed", columns, lines)
    return {"jobs": [dict(zip(columns, line, strict=True)) for line in lines], "goals": goals(measured, progress).lines}


def goals(measured: Sequence[Measured], progress: Progress) -> Goals:
    """Judge every ratio to plain Spark, and growth from a tenth of the most rows to the most."""
    judged = Goals(progress)
    for m in measured:
        most, other = MOST_RATIO.get(m.job, RUN_RATIO), "run" if m.job in ("check", "publish") else "plain Spark"
        for start, ratio in (("cold", m.cold_ratio), ("warm", m.warm_ratio)):
            if ratio is not None:
                judged.add(f"{m.job} of {m.rows:,} rows, {start}: time over that of {other}", most, ratio, "at most")
    most_rows = max(m.rows for m in measured)
    spent = {(m.job, m.rows): m.warm or m.cold for m in measured}
    for job in dict.fromkeys(m.job for m in measured):
        all_rows, tenth = spent.get((job, most_rows)), spent.get((job, most_rows // 10))
        if all_rows and tenth:
            judged.add(f"{job}: time for ten times the rows", TENFOLD, all_rows / tenth, "at most")
    return judged


def _figures(m: Measured) -> tuple[float | None, ...]:
    return m.cold, m.spark_cold, m.cold_ratio, m.warm, m.spark_warm, m.warm_ratio, m.duckdb


def _rounded(value: float | None) -> float | str:
    return "" if value is None else round(value, 2)


def _measure(folder: Path, rows: int, progress: Progress, *, quick: bool) -> list[Measured]:
    """Measure every job over so many rows."""
    turns = (1, 1) if quick else (COLD_TURNS, WARM_TURNS)
    measured = [_measure_ingest(folder, rows, turns, progress)]
    lake = draw(folder, rows)
    for kind in QUICK_KINDS if quick else QUERIES:
        query = KindJobs(kind, lake, folder)
        cold = _best({"latecomer": query.command, "spark": query.spark_process}, turns[0])
        session(lake)  # its compiler is chosen for many rows
        jobs = {"latecomer": query.call, "spark": query.spark} | ({"duckdb": query.duckdb} if HAS_DUCKDB else {})
        for name in ("latecomer", "spark"):
            jobs[name]()  # the turn that compiles
        warm = _best(jobs, turns[1])
        query.compare()
        of_kind = Measured(
            kind, rows, cold["latecomer"], cold["spark"], warm["latecomer"], warm["spark"], warm.get("duckdb")
        )
        measured.append(of_kind)
        progress("  ".join([kind, *(f"{value:.2f}" for value in _figures(of_kind) if value is not None)]))
        if kind == "aggregate":
            measured += query.check_and_publish(of_kind.cold)
    return measured


def _measure_ingest(folder: Path, rows: int, turns: tuple[int, int], progress: Progress) -> Measured:
    bench_ingest.draw(folder, rows)
    names = ("parquet_spark", "parquet")
    cold = _best({name: partial(bench_ingest.in_process, name, folder) for name in names}, turns[0])
    session(Lake(str(folder / "lake")))
    jobs = {name: partial(bench_ingest.job, name, str(folder)) for name in names}
    for job in jobs.values():
        job()
    warm = _best(jobs | ({"duckdb": partial(_duckdb_ingest, folder)} if HAS_DUCKDB else {}), turns[1])
    cold_s, warm_s = ((of["parquet"], of["parquet_spark"]) for of in (cold, warm))
    measured = Measured("ingest", rows, *cold_s, *warm_s, warm.get("duckdb"))
    progress("  ".join(["ingest", *(f"{value:.2f}" for value in _figures(measured) if value is not None)]))
    return measured


def _duckdb_ingest(folder: Path) -> None:
    import duckdb

    read = f"select * from read_parquet('{folder}/events.parquet') order by arrival_ts"
    with duckdb.connect() as connection:
        connection.execute(f"copy ({read}) to '{folder}/duckdb.parquet' (format parquet)")


def query(kind: str, name: str) -> str:
    """Return the query file of a kind, under a name."""
    return f"name: {name}\nkind: {kind}\n{QUERIES[kind]}"


class KindJobs:
    """The jobs of one query kind; every turn is a new query, so that it begins with the first arrival."""

    def __init__(self, kind: str, lake: Lake, folder: Path) -> None:
        self.kind, self.lake, self.folder = kind, lake, folder
        self.turns, self.name = 0, ""
        self.of_duckdb: int | None = None
        self.out = str(folder / f"plain_{kind}")

    def _next(self) -> Path:
        self.turns += 1
        self.name = f"{self.kind}_{self.turns}"
        path = self.folder / f"{self.name}.yaml"
        path.write_text(query(self.kind, self.name), encoding="utf-8")
        return path

    def command(self) -> None:
        """Run ``latecomer run`` in a process of its own."""
        _latecomer("run", str(self._next()), "--lake", self.lake.uri, "--flush")

    def spark_process(self) -> None:
        """Run the plain Spark job in a process of its own."""
        subprocess.run([sys.executable, "-c", _PROCESS, self.kind, self.lake.uri, self.out], check=True)

    def call(self) -> None:
        """Run the query in this session."""
        run_query(self.lake, parse_query(self._next().read_text(encoding="utf-8")), flush=True)

    def spark(self) -> None:
        """Run the plain Spark job in this session."""
        plain_jobs.spark_job(self.kind, self.lake, self.out)

    def duckdb(self) -> None:
        """Run DuckDB's job in this process."""
        self.of_duckdb = plain_jobs.duckdb_job(self.kind, self.lake, str(self.folder / "duckdb.parquet"))

    def compare(self) -> None:
        """Compare the numbers of answers, so that no job is fast because it does less.

        Raises
        ------
        RuntimeError
            The plain jobs have different numbers, or ours published fewer than 0.9 of them, or more.
        """
        from deltalake import DeltaTable

        of_spark = DeltaTable(self.out).count()
        on_time = self.lake.table("on_time", self.name)
        ours = DeltaTable(on_time.uri).count()
        if self.of_duckdb not in (None, of_spark) or not 0.9 * of_spark <= ours <= of_spark:
            raise RuntimeError(f"{self.kind}: {ours} answers, plain Spark has {of_spark}, DuckDB {self.of_duckdb}")

    def check_and_publish(self, run_s: float | None) -> list[Measured]:
        """Measure both commands once over the answers of the last turn, beside the seconds of a cold `run`."""
        path = str(self.folder / f"{self.name}.yaml")
        commands = {
            "check": lambda: _latecomer("check", path, "--lake", self.lake.uri, codes=(0, 1)),
            "publish": lambda: _latecomer("publish", path, "--lake", self.lake.uri, "--unchecked"),
        }
        rows = sum(self.lake.table("events", stream).count() for stream in ("a", "b"))
        spent = _best(commands, 1)
        return [Measured(name, rows, cold=spent[name], spark_cold=run_s) for name in commands]


def _latecomer(*arguments: str, codes: tuple[int, ...] = (0,)) -> None:
    done = subprocess.run([sys.executable, "-m", "latecomer.jobs.cli", *arguments], capture_output=True, text=True)
    if done.returncode not in codes:
        raise RuntimeError(f"latecomer {' '.join(arguments)}: exit code {done.returncode}: {done.stderr[-500:]}")


def plain_job(kind: str, lake: str, out: str) -> None:
    """Answer the query of a kind with plain Spark, as the body of a process."""
    plain_jobs.spark_job(kind, Lake(lake), out)


def draw(folder: Path, rows: int) -> Lake:
    """Generate events (`draw_files`) and ingest them into a new lake."""
    files = draw_files(folder, rows)
    lake = Lake(str(folder / "lake"))
    session(lake)
    ingest(lake, [str(file) for file in files], IngestOptions(by="stream"))
    return lake


def draw_files(folder: Path, rows: int) -> list[Path]:
    """Write events in arrival order to Parquet files of `FILE_ROWS`: half of them in the stream `a`, half in `b`."""
    files = []
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        inside = min(FILE_ROWS, rows - first)
        table = exponential(5 + number, inside, RATE, 100_000.0)
        rng = np.random.default_rng(5 + number)
        columns = {
            "stream": pa.array(np.where(rng.random(inside) < 0.5, "a", "b")),
            "event_ts": pc.add(table["event_time_us"], int(first / RATE * SECOND)),
            "value": table["value"],
            "key": pa.array(rng.integers(0, KEYS, inside)),
            "user": pa.array(rng.integers(0, USERS, inside)),
        }
        files.append(folder / f"streams_{number:03d}.parquet")
        pq.write_table(pa.table(columns), files[-1])
    return files


def _best(jobs: Mapping[str, Callable[[], None]], turns: int) -> dict[str, float]:
    """Return the seconds of each job in its best turn; jobs take turns."""
    best: dict[str, float] = {}
    for _ in range(turns):
        for name, job in jobs.items():
            started = time.perf_counter()
            job()
            spent = time.perf_counter() - started
            best[name] = min(best.get(name, spent), spent)
    return best
