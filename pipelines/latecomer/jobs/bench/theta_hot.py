"""A run over one hot window of a theta join on Spark: whole, and in the pieces of its plan."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from latecomer.jobs.bench import plots
from latecomer.jobs.bench.theta_workloads import SEED, timed, told_by


def hot_window(out: Path, quick: bool) -> dict[str, Any]:
    """One window of a million rows a side, run whole and in pieces, one after the other in one session; `ratio` is whole to pieces."""
    if quick:
        return {"measured": False, "why": "quick"}
    found: dict[str, Any] = {}
    for emit, conditions in (
        ("count", "[r.v > s.v, r.w < s.w]"),
        ("rows", "[r.v > s.v, r.v < s.v + 1000]"),
        ("ranges", "[r.v > s.v]"),
    ):
        code = f"from latecomer.jobs.bench.theta_hot import hot_alone as h; h({emit!r}, {conditions!r}, 1_000_000, 3)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode:
            found[emit] = {"measured": False, "why": (done.stderr.strip().splitlines() or ["no message"])[-1][:160]}
            continue
        found[emit] = {"measured": True, **told_by(done.stdout)}
    seen = {emit: row for emit, row in found.items() if row["measured"]}
    if seen:
        plots.bar_figure(
            out,
            "theta_join_hot_window",
            "emit",
            "time (s)",
            list(seen),
            {name: [row[name] for row in seen.values()] for name in ("whole", "pieces")},
            title="A run over one window of 1,000,000 rows a side, two cores",
        )
    return found


def hot_alone(emit: str, conditions: str, size: int, repeats: int) -> None:
    """What a process of `hot_window` runs: least seconds of a run with windows whole and in pieces, as one line of JSON.

    Values ``v`` and ``w`` are independent; a million rows lie 1,000 apart in ``v``, so a band of 1,000 is a result per row.
    """
    import tempfile

    import pyarrow as pa
    import pyarrow.parquet as pq

    from latecomer.core import theta_plan
    from latecomer.lake.location import Lake
    from latecomer.spark import theta_join as stage
    from latecomer.spark.ingest import IngestOptions, ingest
    from latecomer.spark.run import run as run_query
    from latecomer.specs.loading import parse_query

    rng = np.random.default_rng([SEED, size])
    side = np.arange(2 * size) % 2
    rows = {
        "stream": pa.array(np.where(side == 0, "a", "b")),
        "event_ts": pa.array(1_700_000_000_000_000 + np.arange(2 * size) * 1_000_000 // (2 * size)),
        "v": pa.array(rng.integers(0, 10**9, 2 * size)),
        "w": pa.array(rng.random(2 * size)),
    }
    times: dict[str, list[float]] = {"whole": [], "pieces": []}
    stage.LINEAR_FACTOR = 1  # counts and ranges too
    bounds = {"whole": 1 << 62, "pieces": theta_plan.PIECE_ROWS}
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table(rows), Path(folder) / "rows.parquet")
        lake = Lake(f"{folder}/lake")
        ingest(lake, [str(Path(folder) / "rows.parquet")], IngestOptions(by="stream"))
        for turn in range(repeats + 1):
            for name, bound in bounds.items():
                theta_plan.PIECE_ROWS = bound
                text = f"{{name: {name}{turn}, kind: theta_join, streams: {{r: a, s: b}}, window: {{size: 1 s, slide: 1 s}}, "
                text += f"conditions: {conditions}, emit: {emit}, strategy: {{name: fast_theta_join}}}}"
                if emit == "rows":
                    text = text[:-1] + ", select: [r.w]}"
                spec = parse_query(text, "bench")
                spent, _ = timed(partial(run_query, lake, spec, rows_per_batch=2 * size, flush=True))
                if turn:  # the first compiles
                    times[name].append(spent / 1000)
    least = {name: min(each) for name, each in times.items()}
    ratio = round(least["whole"] / least["pieces"], 2)
    print(json.dumps({**least, "times_s": times, "ratio": ratio}))
