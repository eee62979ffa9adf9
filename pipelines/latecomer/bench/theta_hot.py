"""A run over one hot window of a theta join on Spark: whole, and in the pieces of its plan."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from latecomer.bench import plots
from latecomer.bench.theta_workloads import SEED, last_json_line
from latecomer.bench.timing import timed

ROWS = 1_000_000
QUERIES = {
    "count": "[r.v > s.v, r.w < s.w]",
    "rows": "[r.v > s.v, r.v < s.above]",
    "ranges": "[r.v > s.v]",
}
"""Emit to conditions: `rows` takes a band, a result per row."""


def hot_window(out: Path, quick: bool) -> dict[str, Any]:
    """One window of a million rows a side, run whole and in pieces, one after the other in one session.

    `ratio` is whole to pieces; `tenfold`, for counts and ranges, the time of a whole window to that of one with a tenth of the rows.
    """
    if quick:
        return {"measured": False, "why": "quick"}
    found: dict[str, Any] = {emit: _measured(emit, ROWS) for emit in QUERIES}
    for emit in ("count", "ranges"):
        tenth = _measured(emit, ROWS // 10)
        if tenth["measured"] and found[emit]["measured"]:
            found[emit] |= {"tenth": tenth["whole"], "tenfold": round(found[emit]["whole"] / tenth["whole"], 2)}
    seen = {emit: row for emit, row in found.items() if row["measured"]}
    if seen:
        plots.bar_figure(
            out,
            "theta_join_hot_window",
            "emit",
            "time (s)",
            list(seen),
            {name: [row[name] for row in seen.values()] for name in ("whole", "pieces")},
            title=f"A run over one window of {ROWS:,} rows a side",
        )
    return found


def _measured(emit: str, rows: int) -> dict[str, Any]:
    """`hot_alone` in a process of its own."""
    code = f"from latecomer.bench.theta_hot import hot_alone as h; h({emit!r}, {rows}, 3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"measured": False, "why": (done.stderr.strip().splitlines() or ["no message"])[-1][:160]}
    return {"measured": True, **last_json_line(done.stdout)}


def hot_alone(emit: str, size: int, repeats: int) -> None:
    """What a process of `hot_window` runs: least seconds of a run with windows whole and in pieces, as one line of JSON.

    Values ``v`` and ``w`` are independent; ``above`` is ``v`` and the mean distance of two values, so a band of that is a result per row.
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
    from latecomer.spark.theta_join import stage as stage
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
    stage.LINEAR_FACTOR = 1  # counts and ranges too
    bounds = {"whole": 1 << 62, "pieces": plan.PIECE_ROWS}
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table(rows), Path(folder) / "rows.parquet")
        lake = Lake(f"{folder}/lake")
        session(lake)  # compiled as for many rows
        ingest(lake, [str(Path(folder) / "rows.parquet")], IngestOptions(by="stream"))
        for turn in range(repeats + 1):
            for name, bound in bounds.items():
                plan.PIECE_ROWS = bound
                text = f"{{name: {name}{turn}, kind: theta_join, streams: {{r: a, s: b}}, window: {{size: 1 s, slide: 1 s}}, "
                text += f"conditions: {QUERIES[emit]}, emit: {emit}, strategy: {{name: fast_theta_join}}}}"
                if emit == "rows":
                    text = text[:-1] + ", select: [r.w]}"
                spec = parse_query(text, "bench")
                spent, _ = timed(partial(run_query, lake, spec, rows_per_batch=2 * size, flush=True))
                if turn:  # the first compiles
                    times[name].append(spent / 1000)
    least = {name: min(each) for name, each in times.items()}
    ratio = round(least["whole"] / least["pieces"], 2)
    print(json.dumps({**least, "times_s": times, "ratio": ratio}))
