"""The benchmark of publications: does their cost follow what has changed, and not the size of the table of results?

Where the workload comes from: generated answers of an aggregate, `GROUPS` groups in each window of a minute. They are
written into the tables of `run` and `repair` as these write them; no query is run.

How it is measured: one publication after the other, each once.

* ``first``: the table is made of all answers.
* ``recent``: corrections of all groups in two neighbouring windows, 10,000 rows, as late rows bring them.
* ``scattered``: as many corrections, in a hundred windows all over the table: the worst case, in which every file is
  rewritten.
* ``new``: two more windows.
* ``nothing``: nothing is new.

Results: ``docs/experiments/publish-speed.md``.
"""

from __future__ import annotations

import csv
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.bench.goals import Goals, Progress, Summary
from latecomer.lake import journal
from latecomer.lake.delta import TIMESTAMP
from latecomer.lake.lake import Lake
from latecomer.lake.results_table import Publication, publish
from latecomer.spark.repair import REPAIRS
from latecomer.specs.loading import parse_query

WINDOWS, QUICK_WINDOWS = 10_000, 300
GROUPS, QUICK_GROUPS = 5_000, 50
MINUTE_US, DAY_US = 60_000_000, 86_400_000_000
SCATTERED = 100
_APPENDED = 200
"""Windows of a micro-batch."""
_QUERY = parse_query(
    "name: q\nkind: aggregate\nstreams: {s: a}\ngroup_by: [g]\nwindow: 1 min\nselect: {n: count(), t: sum(v)}\n"
    "quality: {error: 0.05, probability: 0.9, period: 1 d}\n"
)


def run(data: Path | None, out: Path, progress: Progress, *, quick: bool = False) -> Summary:
    """Measure the publications, and judge the goal; `data` is not used."""
    windows, groups = (QUICK_WINDOWS, QUICK_GROUPS) if quick else (WINDOWS, GROUPS)
    folder = Path(tempfile.mkdtemp(prefix="latecomer-bench-"))
    lines: list[dict[str, object]] = []
    seconds: dict[str, float] = {}
    try:
        lake = Lake(str(folder / "lake"))
        for name, done, cpu_s in _publications(lake, windows, groups):
            line = {"publication": name, "rows": done.rows, "inserted": done.inserted, "updated": done.updated}
            seconds[name] = done.seconds
            lines.append(line | {"seconds": round(done.seconds, 2), "cpu_seconds": round(cpu_s, 2)})
            progress("  ".join(f"{key} {value}" for key, value in lines[-1].items()))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with (out / "publish.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([list(lines[0]), *(line.values() for line in lines)])
    judged = Goals(progress)
    judged.add("10,000 changed answers in 50 M, in windows side by side: seconds", 10, seconds["recent"], "at most")
    return {"windows": windows, "groups": groups, "publications": lines, "goals": judged.lines}


def _publications(lake: Lake, windows: int, groups: int) -> list[tuple[str, Publication, float]]:
    """Return name, outcome and CPU seconds of the publications."""
    done: list[tuple[str, Publication, float]] = []

    def measure(name: str) -> None:
        started = time.process_time()
        done.append((name, publish(lake, _QUERY), time.process_time() - started))

    numbers = np.arange(windows)
    parts = np.array_split(numbers, -(-windows // _APPENDED))
    for number, part in enumerate(parts):
        lake.table("on_time", "q").append(_answers(part, groups, part * 100 + 50), "run", number)
    _ran(lake, len(parts) - 1, windows)
    measure("first")
    _repaired(lake, 0, _answers(numbers[windows // 2 :][:2], groups, 7, revision=1))
    measure("recent")
    scattered = np.linspace(0, windows - 1, SCATTERED).astype(np.int64)
    _repaired(lake, 1, _answers(scattered, 2 * groups // SCATTERED, 9, revision=2))
    measure("scattered")
    lake.table("on_time", "q").append(_answers(windows + np.arange(2), groups, windows * 100 + 50), "run", len(parts))
    _ran(lake, len(parts), windows + 2)
    measure("new")
    measure("nothing")
    return done


def _answers(
    windows: NDArray[np.int64], groups: int, published_seq: int | NDArray[np.int64], revision: int = 0
) -> pa.Table:
    """Return answers of all groups in some windows, as `run` writes them, or `repair` from revision 1 on."""
    rows = len(windows) * groups
    start_us = np.repeat(windows * MINUTE_US, groups)
    provenance = pa.array(["repaired" if revision else "on_time"]).take(pa.array(np.zeros(rows, np.int64)))
    times = {"window_start": start_us, "window_end": start_us + MINUTE_US, "period_start": start_us // DAY_US * DAY_US}
    number = np.full(rows, 10 + revision)
    return pa.table(
        {
            "g": np.tile(np.arange(groups), len(windows)),
            "n": number,
            "t": np.random.default_rng(53).random(rows),
            "rows": number,
            "coverage": np.ones(rows),
            "provenance": provenance,
            "revision": np.full(rows, revision, np.int32),
            "published_seq": np.repeat(np.broadcast_to(published_seq, len(windows)), groups),
            "wait_us": np.zeros(rows, np.int64),
            "error": np.zeros(rows),
            **{name: pa.array(time_us).cast(TIMESTAMP) for name, time_us in times.items()},
        }
    )


def _ran(lake: Lake, number: int, windows: int) -> None:
    """Commit the state of a micro-batch that has closed so many windows."""
    counts = {"rows_read": 1, "on_time": 1, "late": 0}
    state = journal.RunState(number, windows * 100, False, _QUERY.fingerprint(), {}, counts)
    journal.save_state(lake, "q", state)


def _repaired(lake: Lake, number: int, corrections: pa.Table) -> None:
    """Commit the corrections of a repair, which fills one batch."""
    lake.table("corrections", "q").append(corrections, "repair", number)
    closes = [corrections["published_seq"][0].as_py()]
    row = {"number": number, "period_start": None, "repaired": None, "closes": closes}
    lake.table("repairs", "q").append(pa.Table.from_pylist([row], schema=REPAIRS), "repair", number)
