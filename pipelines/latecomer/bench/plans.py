"""The benchmark of plans: does any input of few rows take much longer than the better of both plans takes?

`run` has two plans (:mod:`latecomer.spark.engine.tuning`): without generated code, which suits few rows with few
results, and with it. Which one is chosen follows from the rows and from what is known of the results.

Where the workload comes from: generated events of one stream with a key and a number, in windows such that a row has
about as many results as the sweep says. It is not from a paper.

How it is measured: for every number of rows and results per row, `run --flush` in a process of its own, once with the
plan that is chosen, once with each plan forced. Jobs take turns, and the best of `TURNS` counts, since other processes
slow a job down and never speed it up. ``ratio`` is the time of the chosen plan over that of the better one.

Results: ``docs/performance.md``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from latecomer.bench import plots
from latecomer.bench.goals import Goals, Progress, Summary
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake.lake import Lake
from latecomer.spark.engine import tuning
from latecomer.spark.run import run as run_query
from latecomer.specs.loading import parse_query

ROWS = (500, 5_000, 20_000, 49_000)
RESULTS_PER_ROW = (0.1, 1.0, 10.0, 40.0)
QUICK_ROWS, QUICK_RESULTS_PER_ROW = (500,), (1.0,)
TURNS = 2
MOST_RATIO = 1.5
DAY_US = 86_400_000_000
PLANS: dict[str, int | None] = {"chosen": None, "interpreted": 1 << 60, "compiled": 0}
"""Most rows and results of a plan without generated code; None: as `run` chooses."""
KINDS = ("join", "aggregate", "theta_join")
_PROCESS = "import sys; from latecomer.bench.plans import run_planned; run_planned(*sys.argv[1:])"


@dataclass(frozen=True)
class Measured:
    """The seconds of one query with the plan that was chosen, and with each plan."""

    kind: str
    rows: int
    results: int
    chosen_s: float
    interpreted_s: float
    compiled_s: float

    @property
    def ratio(self) -> float:
        """The time of the chosen plan over that of the better one."""
        return self.chosen_s / min(self.interpreted_s, self.compiled_s)


def run(data: Path | None, out: Path, progress: Progress, *, quick: bool = False) -> Summary:
    """Sweep rows and results per row, draw the ratios, and judge the goal; `data` is not used."""
    measured: list[Measured] = []
    for rows in QUICK_ROWS if quick else ROWS:
        for per_row in QUICK_RESULTS_PER_ROW if quick else RESULTS_PER_ROW:
            folder = Path(tempfile.mkdtemp(prefix="latecomer-bench-"))
            try:
                _draw_lake(folder, rows)
                for kind in KINDS:
                    measured.append(_measure(folder, kind, rows, per_row, 1 if quick else TURNS))
                    line = asdict(measured[-1]) | {"ratio": measured[-1].ratio}
                    progress("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items()))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    columns = ["kind", "rows", "results", "chosen_s", "interpreted_s", "compiled_s"]
    plots.table(out, "plans", [*columns, "ratio"], [[*asdict(m).values(), m.ratio] for m in measured])
    judged = Goals(progress)
    for kind in KINDS:
        worst = max(m.ratio for m in measured if m.kind == kind)
        judged.add(f"{kind}: most time over that of the better plan", MOST_RATIO, worst, "at most")
    return {"plans": [asdict(m) | {"ratio": m.ratio} for m in measured], "goals": judged.lines}


def query(kind: str, name: str, rows: int, per_row: float) -> str:
    """Return a query file of a kind whose rows have about so many results each, over a day with so many rows.

    A join and a theta join have no key, so the window alone says how many partners a row has. An aggregate has windows
    of an hour that slide by its share, and groups that hardly two rows of a window share; with fewer results than rows,
    the groups are few.
    """
    near_us = max(int(per_row * DAY_US / rows), 1)
    head = f"name: {name}\nkind: {kind}\n"
    if kind == "join":
        return (
            f"{head}streams: {{l: s, r: s}}\nwindow: {max(near_us // 2, 1)} us\nselect: [l.v, r.v]\n"
            "quality: {recall: 0.9, period: 1 d}\n"
        )
    if kind == "theta_join":
        return f"{head}streams: {{l: s, r: s}}\nwindow: {2 * near_us} us\nconditions: [l.v < r.v]\nselect: [l.k, r.k]\n"
    slide = int(3_600_000_000 / per_row) if per_row > 1 else 3_600_000_000
    group = "k" if per_row >= 1 else "few"
    return (
        f"{head}streams: {{s: s}}\nwindow: {{size: 1 h, slide: {slide} us}}\ngroup_by: [{group}]\n"
        "select: {n: count(), m: avg(v)}\nquality: {error: 0.05, probability: 0.95, period: 1 d}\n"
    )


def _draw_lake(folder: Path, rows: int) -> None:
    """Generate a day of events and ingest them into a lake."""
    rng = np.random.default_rng([54, rows])
    event_us = 1_704_067_200_000_000 + np.sort(rng.integers(0, DAY_US, rows))
    table = {
        "event_ts": pa.array(event_us, pa.timestamp("us", "UTC")),
        "k": rng.integers(0, 20_000, rows),
        "few": rng.integers(0, max(rows // 240, 1), rows),
        "v": rng.normal(size=rows),
    }
    pq.write_table(pa.table(table), folder / "events.parquet")
    ingest(Lake(str(folder / "lake")), [str(folder / "events.parquet")], IngestOptions(stream="s"))


def _measure(folder: Path, kind: str, rows: int, per_row: float, turns: int) -> Measured:
    """Measure a query with every plan; each turn is a new query in a process of its own."""
    best: dict[str, float] = {}
    results = 0
    for turn in range(turns):
        for plan in PLANS:
            name = f"{kind}_{per_row:g}_{plan}_{turn}".replace(".", "_")
            path = folder / f"{name}.yaml"
            path.write_text(query(kind, name, rows, per_row), encoding="utf-8")
            started = time.perf_counter()
            arguments = [sys.executable, "-c", _PROCESS, plan, str(path), str(folder / "lake")]
            done = subprocess.run(arguments, check=True, capture_output=True, text=True)
            spent = time.perf_counter() - started
            best[plan] = min(best.get(plan, spent), spent)
            results = int(done.stdout.split()[-1])
    return Measured(kind, rows, results, best["chosen"], best["interpreted"], best["compiled"])


def run_planned(plan: str, path: str, lake: str) -> None:
    """Run a query by one of the `PLANS`, as the body of a process, and print how many results it had."""
    most = PLANS[plan]
    if most is not None:
        tuning.SMALL_ROWS = tuning.MANY_RESULTS = most
    print(run_query(Lake(lake), parse_query(Path(path).read_text(encoding="utf-8")), flush=True).on_time)
