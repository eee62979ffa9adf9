"""Measure a run over one hot window of a theta join on Spark, whole and in the pieces of its plan."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np

from latecomer.bench import plots
from latecomer.bench.theta_workloads import SEED, HotWindow, last_json_line
from latecomer.bench.timing import timed

ROWS = 1_000_000
QUERIES = {
    "count": "[r.v > s.v, r.w < s.w]",
    "rows": "[r.v > s.v, r.v < s.above]",
    "ranges": "[r.v > s.v]",
}
"""Conditions by `emit`; `rows` has a band with about one result per row."""


def hot_window(out: Path) -> dict[str, HotWindow]:
    """Run a window of a million rows per side whole and in pieces, in turn, in one session; return times by `emit`."""
    measured = {emit: _measured(emit, ROWS) for emit in QUERIES}
    for emit in ("count", "ranges"):
        tenth = _measured(emit, ROWS // 10)
        if tenth["measured"] and measured[emit]["measured"]:
            measured[emit]["tenth"] = tenth["whole"]
            measured[emit]["tenfold"] = round(measured[emit]["whole"] / tenth["whole"], 2)
    rows = {emit: row for emit, row in measured.items() if row["measured"]}
    if rows:
        plots.bar_figure(
            out,
            "theta_join_hot_window",
            "emit",
            "time (s)",
            list(rows),
            {"whole": [row["whole"] for row in rows.values()], "pieces": [row["pieces"] for row in rows.values()]},
            title=f"A run over one window of {ROWS:,} rows a side",
        )
    return measured


def _measured(emit: str, rows: int) -> HotWindow:
    """Run `print_times` in a process of its own."""
    code = f"from latecomer.bench.theta_hot import print_times; print_times({emit!r}, {rows}, 3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"measured": False, "why": (done.stderr.strip().splitlines() or ["no message"])[-1][:160]}
    times: HotWindow = json.loads(last_json_line(done.stdout))
    return {**times, "measured": True}


def print_times(emit: str, size: int, repeats: int) -> None:
    """Print the best seconds of a run with the window whole and in pieces, as one line of JSON.

    Values ``v`` and ``w`` are independent. ``above`` is ``v`` plus the mean distance of two values, so that a band from
    ``v`` to ``above`` has about one result per row.
    """
    import tempfile

    import pyarrow as pa
    import pyarrow.parquet as pq

    from latecomer.core.theta_join import plan
    from latecomer.ingest.ingest import ingest
    from latecomer.ingest.options import IngestOptions
    from latecomer.lake.lake import Lake
    from latecomer.spark.engine.session import session
    from latecomer.spark.run import run as run_query
    from latecomer.spark.theta_join import windows as theta_windows
    from latecomer.specs.loading import parse_query

    rng = np.random.default_rng([SEED, size])
    side = np.arange(2 * size) % 2
    value = rng.integers(0, 10**9, 2 * size)
    rows = {
        "stream": pa.array(np.where(side == 0, "a", "b")),
        "event_ts": pa.array(1_700_000_000_000_000 + np.arange(2 * size) * 1_000_000 // (2 * size)),
        "v": pa.array(value),
        "above": pa.array(value + 10**9 // size),
        "w": pa.array(rng.random(2 * size)),
    }
    times: dict[str, list[float]] = {"whole": [], "pieces": []}
    theta_windows.LINEAR_FACTOR = 1  # cut the windows of counts and ranges, too
    bounds = {"whole": 1 << 62, "pieces": plan.PIECE_ROWS}
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table(rows), Path(folder) / "rows.parquet")
        lake = Lake(f"{folder}/lake")
        session(lake)  # its compiler is chosen for many rows
        ingest(lake, [str(Path(folder) / "rows.parquet")], IngestOptions(by="stream"))
        for turn in range(repeats + 1):
            for name, bound in bounds.items():
                plan.PIECE_ROWS = bound
                text = (
                    f"name: {name}{turn}\nkind: theta_join\nstreams: {{r: a, s: b}}\n"
                    f"window: {{size: 1 s, slide: 1 s}}\nconditions: {QUERIES[emit]}\nemit: {emit}\n"
                    "strategy: {name: fast_theta_join}\n"
                )
                if emit == "rows":
                    text += "select: [r.w]\n"
                spec = parse_query(text, "bench")
                spent, _ = timed(partial(run_query, lake, spec, rows_per_batch=2 * size, flush=True))
                if turn:  # the first turn compiles
                    times[name].append(spent / 1000)
    least = {name: min(seconds) for name, seconds in times.items()}
    ratio = round(least["whole"] / least["pieces"], 2)
    print(json.dumps({**least, "times_s": times, "ratio": ratio}))
