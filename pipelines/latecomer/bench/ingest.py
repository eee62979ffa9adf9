"""The benchmark of speed: how fast is `ingest` beside a plain Spark job that sorts the same rows and writes Delta?

Where the workload comes from: generated readings of `DEVICES` devices, a time, an id, two numbers and a text each, with
exponential delays of mean 60 s between event and arrival. It is not from a paper.

How it is measured: jobs take turns in one run, and the best time of each counts, since other processes slow a job down
and never speed it up.

* ``parquet``: a file in the order of events, whose arrival times tell the order of arrival. ``spark`` is a job with the
  same settings that reads the file, sorts the rows by arrival, and appends them to a Delta table.
* ``csv``: the same readings in their order of arrival, without an arrival time. ``spark`` reads the file with types
  that it is told, and appends the rows to a Delta table.
* ``keyed``: the Parquet file with the key ``device, event_ts`` within an hour; a hundredth of its rows are repeated.
  Its time is compared with that of ``parquet``.

``cold`` is a process of its own, from its start to its end, by `COLD_TURNS` processes each. ``warm`` is a job of a
session that has done all jobs before, by `WARM_TURNS` turns. Results: ``docs/experiments/ingest-speed.md``.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from latecomer.bench.goals import Goals, Progress, Summary
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake.lake import Lake
from latecomer.spark.engine.session import session
from latecomer.spark.engine.tuning import tune

ROWS, QUICK_ROWS = 4_000_000, 60_000
DEVICES = 5_000
DELAY_S = 60
COLD_TURNS, WARM_TURNS = 2, 4
HOUR_US = 3_600_000_000
JOBS = ("parquet_spark", "parquet", "keyed", "csv_spark", "csv")
_PROCESS = "import sys; from latecomer.bench.ingest import job; job(*sys.argv[1:])"
_SCHEMA = "measured_at timestamp, device string, temp double, battery bigint, note string"


def run(data: Path | None, out: Path, progress: Progress, *, quick: bool = False) -> Summary:
    """Measure every job, cold and warm, and judge the goals; `data` is not used."""
    rows = QUICK_ROWS if quick else ROWS
    folder = Path(tempfile.mkdtemp(prefix="latecomer-bench-"))
    try:
        draw(folder, rows)
        progress(f"ingest: {rows:,} rows")
        processes = {name: partial(in_process, name, folder) for name in (JOBS[:2] if quick else JOBS)}
        cold = _best(processes, 1 if quick else COLD_TURNS, progress)
        session(Lake(str(folder / "lake")))  # its compiler is chosen for many rows
        warm = _best({name: partial(job, name, str(folder)) for name in JOBS}, 1 if quick else WARM_TURNS, progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = figures(cold, warm, rows)
    with (out / "ingest.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([list(table[0]), *(row.values() for row in table)])
    for row in table:
        progress("  ".join(f"{name} {value}" for name, value in row.items()))
    return {"rows": rows, "jobs": table, "goals": goals(cold, warm, rows, progress).lines}


def figures(cold: Mapping[str, float], warm: Mapping[str, float], rows: int) -> list[dict[str, object]]:
    """Return a line per job: seconds, rows per second, and the ratio to the job with which it is compared."""
    compared = {"parquet": "parquet_spark", "csv": "csv_spark", "keyed": "parquet"}
    lines: list[dict[str, object]] = []
    for name in JOBS:
        other = compared.get(name)
        line: dict[str, object] = {"job": name}
        for start, seconds in (("cold", cold), ("warm", warm)):
            spent, ratio = seconds.get(name), _ratio(seconds, name, other)
            line[f"{start}_seconds"] = "" if spent is None else round(spent, 2)
            line[f"{start}_rows_per_second"] = "" if spent is None else round(rows / spent)
            line[f"{start}_ratio"] = "" if ratio is None else round(ratio, 2)
        lines.append(line | {"compared_with": other or ""})
    return lines


def goals(cold: Mapping[str, float], warm: Mapping[str, float], rows: int, progress: Progress) -> Goals:
    """Judge the speed of `ingest` by its goals."""
    judged = Goals(progress)
    for start, seconds in (("cold", cold), ("warm", warm)):
        ratio = _ratio(seconds, "parquet", "parquet_spark")
        judged.add(f"ingest of Parquet, {start}: time over that of a plain Spark job", 2, ratio, "at most")
        ratio = _ratio(seconds, "keyed", "parquet")
        judged.add(f"ingest with a key, {start}: time over that without", 1.5, ratio, "at most")
    judged.add("ingest of CSV, warm: rows per second", 500_000, rows / warm["csv"], "at least")
    return judged


def _ratio(seconds: Mapping[str, float], name: str, other: str | None) -> float | None:
    """Return the time of a job over that of another one; None where one of them was not measured."""
    spent, compared = seconds.get(name), None if other is None else seconds.get(other)
    return None if spent is None or compared is None else spent / compared


def draw(folder: Path, rows: int) -> None:
    """Write ``events.parquet``, in the order of events, and ``events.csv``, in the order of arrival."""
    rng = np.random.default_rng(51)
    event_us = 1_750_000_000_000_000 + np.sort(rng.integers(0, rows * 1_000, rows))
    arrival_us = event_us + rng.exponential(DELAY_S * 1e6, rows).astype(np.int64)
    notes = np.array([f"note {number} of a reading" for number in range(1_000)])
    device = rng.integers(0, DEVICES, rows)
    repeated = rng.choice(rows - 1, rows // 100, replace=False)
    event_us[repeated + 1], device[repeated + 1] = event_us[repeated], device[repeated]
    kind = pa.timestamp("us", "UTC")
    table = pa.table(
        {
            "measured_at": pa.array(event_us, kind),
            "arrival_ts": pa.array(arrival_us, kind),
            "device": pc.binary_join_element_wise("device-", pa.array(device).cast(pa.string()), ""),
            "temp": np.round(rng.normal(20, 5, rows), 2),
            "battery": rng.integers(0, 100_000, rows),
            "note": notes[rng.integers(0, len(notes), rows)],
        }
    )
    pq.write_table(table, folder / "events.parquet")
    arrived = table.take(pa.array(np.argsort(arrival_us, kind="stable"))).drop_columns(["arrival_ts"])
    pa_csv.write_csv(arrived, folder / "events.csv", pa_csv.WriteOptions(quoting_style="needed"))


def _best(work: Mapping[str, Callable[[], None]], turns: int, progress: Progress) -> dict[str, float]:
    """Return the seconds of each job in its best turn; jobs take turns."""
    spent: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(turns):
        for name, call in work.items():
            started = time.perf_counter()
            call()
            spent[name].append(time.perf_counter() - started)
    for name, seconds in spent.items():
        progress(f"{name}: " + ", ".join(f"{second:.2f}" for second in seconds) + " s")
    return {name: min(seconds) for name, seconds in spent.items()}


def in_process(name: str, folder: Path) -> None:
    """Run one of the `JOBS` in a process of its own."""
    subprocess.run([sys.executable, "-c", _PROCESS, name, str(folder)], check=True)


def job(name: str, folder: str) -> None:
    """Run one of the `JOBS` in a new lake."""
    place = Path(tempfile.mkdtemp(dir=folder))
    lake = Lake(str(place / "lake"))
    if name.endswith("_spark"):
        _plain(lake, Path(folder), name)
    else:
        options = IngestOptions(stream="readings", event_column="measured_at")
        if name == "keyed":
            options = IngestOptions(
                stream="readings", event_column="measured_at", key=("device", "measured_at"), within_us=HOUR_US
            )
        ingest(lake, [f"{folder}/events.{'csv' if name == 'csv' else 'parquet'}"], options)
    shutil.rmtree(place)


def _plain(lake: Lake, folder: Path, name: str) -> None:
    spark = session(lake)
    tune(spark, ROWS)
    if name == "csv_spark":
        rows = spark.read.schema(_SCHEMA).option("header", True).csv(f"{folder}/events.csv")
    else:
        rows = spark.read.parquet(f"{folder}/events.parquet").sort("arrival_ts")
    rows.write.format("delta").mode("append").save(f"{lake.uri}/plain")
