"""The benchmark of memory: how much a command needs for many rows, in micro-batches of the default size.

Where the workload comes from: the events and queries of :mod:`latecomer.bench.speed`. It is not from a paper.

How it is measured: `ingest`, and `run --flush` of each query, as commands in processes of their own. ``peak_mb`` is the
most resident memory that a command and its children (the JVM, Python's workers) had in one of the samples, every
`SAMPLE_S`. Memory that processes share counts for each of them, files in the page cache do not. The JVM's heap may grow
to its default size, or to that of ``LATECOMER_DRIVER_MEMORY``.

Results: ``docs/performance.md``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from latecomer.bench import plots, speed
from latecomer.bench.goals import Goals, Progress, Summary

ROWS, QUICK_ROWS = 100_000_000, 20_000
KINDS, QUICK_KINDS = ("aggregate", "join"), ("aggregate",)
SAMPLE_S = 0.5
MOST_MB = 4_096
"""Goal: the most memory of a command, in MiB."""


@dataclass(frozen=True)
class Measured:
    """A command over so many rows: its seconds, and the most memory (MiB) that its processes had together."""

    command: str
    rows: int
    seconds: float
    peak_mb: int


def run(data: Path | None, out: Path, progress: Progress, *, quick: bool = False) -> Summary:
    """Measure `ingest`, and `run` of each query, write the table, and judge the goal; `data` is not used."""
    rows = QUICK_ROWS if quick else ROWS
    folder = Path(tempfile.mkdtemp(prefix="latecomer-bench-"))
    measured: list[Measured] = []

    def measure(name: str, *arguments: str) -> None:
        seconds, peak = watched(
            [sys.executable, "-m", "latecomer.jobs.cli", *arguments, "--lake", str(folder / "lake")]
        )
        measured.append(Measured(name, rows, round(seconds, 1), round(peak / 2**20)))
        progress(f"{name} of {rows:,} rows: {seconds:.0f} s, {measured[-1].peak_mb:,} MiB")

    try:
        files = speed.draw_files(folder, rows)
        measure("ingest", "ingest", "--by", "stream", *map(str, files))
        for file in files:
            file.unlink()
        for kind in QUICK_KINDS if quick else KINDS:
            query = folder / f"{kind}.yaml"
            query.write_text(speed.query(kind, kind), encoding="utf-8")
            measure(f"run of {kind}", "run", str(query), "--flush")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    plots.table(out, "memory", list(asdict(measured[0])), [list(asdict(m).values()) for m in measured])
    goals = Goals(progress)
    for m in measured:
        goals.add(f"{m.command} of {m.rows:,} rows: MiB", MOST_MB, m.peak_mb, "at most")
    return {"memory": [asdict(m) for m in measured], "goals": goals.lines}


def watched(command: list[str]) -> tuple[float, int]:
    """Run a command; return its seconds, and the most bytes of memory that it and its children had together.

    Raises
    ------
    RuntimeError
        It failed.
    """
    started, peak = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        while process.poll() is None:
            peak = max(peak, _resident(psutil.Process(process.pid)))
            time.sleep(SAMPLE_S)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}: {output.read()[-500:]}")
    return time.monotonic() - started, peak


def _resident(process: psutil.Process) -> int:
    """Return the resident memory of a process and its children, in bytes.

    A child of exactly its parent's virtual size was forked a moment ago, and has no memory of its own yet: a JVM that
    starts a program would count twice.
    """
    sizes = {}
    with suppress(psutil.NoSuchProcess):
        for part in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                sizes[part.pid] = part.ppid(), part.memory_info()
    forked = {pid for pid, (parent, size) in sizes.items() if parent in sizes and size.vms == sizes[parent][1].vms}
    return sum(size.rss for pid, (_, size) in sizes.items() if pid not in forked)
