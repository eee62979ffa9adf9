"""The benchmark of scale: the work of the driver and of the executors, with 1, 2 and 4 executors of one core.

The order of arrivals is followed in the driver, or by Spark's tasks (:mod:`latecomer.spark.engine.arrival_scan`). What
the driver does is the serial share of a job: no number of cores makes it shorter.

Where the workload comes from: the events and queries of :mod:`latecomer.bench.speed`. It is not from a paper.

How it is measured: Spark's own master, workers and executors as processes of this machine (``local-cluster``). Since
they share its cores, work is counted in seconds of CPU and not by the clock: of the driver (Python and JVM), and of the
executors (JVMs and Python workers). The job is `run --flush` of a session that has done it twice before.
``limit_100`` is what 100 cores would give by Amdahl's law, over one core: ``1 / (s + (1 - s) / 100)`` with ``s`` the
driver's share. ``bytes`` is what blocks of arrivals were reduced to for the driver; where it follows the order itself,
it reads 40 bytes of each arrival.

Results: ``docs/performance.md``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from latecomer.bench import plots, speed
from latecomer.bench.goals import Goals, Progress, Summary
from latecomer.lake.lake import Lake
from latecomer.spark.engine import arrival_scan
from latecomer.spark.engine.session import session
from latecomer.spark.run import run as run_query
from latecomer.specs.loading import parse_query

ROWS, QUICK_ROWS = 4_000_000, 20_000
WORKERS, QUICK_WORKERS = (1, 2, 4), (1,)
KINDS, QUICK_KINDS = ("join", "aggregate"), ("aggregate",)
PLACES = ("driver", "tasks")
MOST_BYTES = 1_000
"""Goal: bytes per thousand arrivals that the driver sees, where Spark's tasks follow the order."""
_TURNS = 3
_READ_BYTES = 40
_PROCESS = "import sys; from latecomer.bench.scale import measure; measure(*sys.argv[1:])"


@dataclass(frozen=True)
class Measured:
    """The work of one job, in seconds of CPU.

    Attributes
    ----------
    kind, place, workers
        The query kind, where the order of arrivals is followed, and the number of executors.
    driver_python, driver_jvm, executor_jvm, executor_python
        Seconds of CPU of these processes.
    arrivals, bytes
        Arrivals of the query, and what the driver saw of them.
    """

    kind: str
    place: str
    workers: int
    driver_python: float
    driver_jvm: float
    executor_jvm: float
    executor_python: float
    arrivals: int
    bytes: int

    @property
    def serial(self) -> float:
        """The driver's share of all work."""
        driver = self.driver_python + self.driver_jvm
        return driver / (driver + self.executor_jvm + self.executor_python)

    @property
    def limit_100(self) -> float:
        """The speed of 100 cores over that of one, by Amdahl's law."""
        return 1 / (self.serial + (1 - self.serial) / 100)


def run(data: Path | None, out: Path, progress: Progress, *, quick: bool = False) -> Summary:
    """Measure both places by number of executors, write the table, and judge the goal; `data` is not used."""
    folder = Path(tempfile.mkdtemp(prefix="latecomer-bench-"))
    measured: list[Measured] = []
    try:
        speed.draw(folder, QUICK_ROWS if quick else ROWS)
        for workers in QUICK_WORKERS if quick else WORKERS:
            for kind in QUICK_KINDS if quick else KINDS:
                command = [sys.executable, "-c", _PROCESS, str(folder), kind, str(workers)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    raise RuntimeError(f"{kind} on {workers} executors: {done.stderr[-2000:]}")
                measured += [Measured(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
                for m in measured[-len(PLACES) :]:
                    progress(f"{m.kind} on {m.workers}, order in {m.place}: serial {m.serial:.2f}, {m.bytes:,} bytes")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = [asdict(m) | {"serial": round(m.serial, 3), "limit_100": round(m.limit_100, 1)} for m in measured]
    plots.table(out, "scale", list(lines[0]), [list(line.values()) for line in lines])
    goals = Goals(progress)
    for kind in dict.fromkeys(m.kind for m in measured):
        most = max(1000 * m.bytes / m.arrivals for m in measured if m.kind == kind and m.place == "tasks")
        goals.add(f"{kind}: bytes in the driver per thousand arrivals", MOST_BYTES, most, "at most")
    return {"work": lines, "goals": goals.lines}


def measure(folder: str, kind: str, workers: str) -> None:
    """Print what both places of a kind measure on so many executors, a JSON object a line, as the body of a process."""
    lake = Lake(f"{folder}/lake")
    cluster = {"spark.master": f"local-cluster[{workers},1,1024]", "spark.executor.memory": "1g"}
    spark = session(lake, more=cluster)
    streams = ("a",) if "s: a" in speed.QUERIES[kind] else ("a", "b")
    arrivals = sum(lake.table("events", stream).count() for stream in streams)
    for place in PLACES:
        spark.conf.set(arrival_scan.PLACE, place)
        for turn in range(_TURNS):
            spec = parse_query(speed.query(kind, f"{kind}_{workers}_{place}_{turn}"))
            before, received = _work(), arrival_scan.TaskArrivals.received
            run_query(lake, spec, flush=True)
            spent = {name: round(seconds - before[name], 2) for name, seconds in _work().items()}
        received = arrival_scan.TaskArrivals.received - received
        seen = {"arrivals": arrivals, "bytes": received if place == "tasks" else _READ_BYTES * arrivals}
        print(json.dumps({"kind": kind, "place": place, "workers": int(workers)} | spent | seen), flush=True)


def _work() -> dict[str, float]:
    """Return the seconds of CPU that each kind of process has used so far."""
    spent = dict.fromkeys(("driver_python", "driver_jvm", "executor_jvm", "executor_python"), 0.0)
    driver_process = psutil.Process()
    spent["driver_python"] = _seconds(driver_process)
    for driver in driver_process.children():
        if "java" not in driver.name():
            continue
        spent["driver_jvm"] += _seconds(driver)
        for process in driver.children(recursive=True):
            spent["executor_jvm" if "java" in process.name() else "executor_python"] += _seconds(process)
    return spent


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
