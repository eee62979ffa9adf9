"""A test project for Airflow: one small query per kind, landing files, an Airflow home."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LONG = bool(os.environ.get("LATECOMER_LONG_TESTS"))
"""Whether every DAG of every kind runs, a scheduler and a browser (`make test-long`), or the DAGs of two kinds only."""
ALL_QUERIES = {
    "near": """
kind: join
streams: {left: a, right: b}
keys: [k]
window: 2 s
select: [left.v, right.v]
quality: {recall: 0.5, period: 20 s}
strategy: {name: qjoin, adapt_every: 2 s, granularity: 100 ms, basic_window: 100 ms, gamma: 5 s}
""",
    "sums": """
kind: aggregate
streams: {s: a}
group_by: [k]
window: {size: 10 s, slide: 5 s}
select: {rows_seen: count(), total: sum(v)}
quality: {error: 0.3, probability: 0.5, period: 20 s}
strategy: {name: hpm, gamma: 5 s}
""",
    "best": """
kind: topk
streams: {s: a}
score: v
k: 3
window: {size: 10 s, slide: 5 s}
select: [note]
quality: {hit_rate: 0.5, period: 20 s}
strategy: {name: adaptive_wait, candidates: 5, windows: 4, initial_wait: 2 s, gamma: 5 s}
""",
    "pairs": """
kind: theta_join
streams: {r: a, s: b}
window: {size: 5 s, slide: 5 s}
conditions: [r.v > s.v, r.k = s.k]
select: [r.note, s.v]
quality: {period: 20 s}
strategy: {name: fast_theta_join, partitions: 2, gamma: 5 s}
schedule: {start: 2023-01-01, interval: "* 22 14 11 *", audit: "@weekly", run: "@once", tasks: each}
""",
    "both": """
kind: membership
streams: {x: a, y: b}
element: note
window: {size: 10 s, slide: 10 s}
quality: {recall: 0.5, false_positive_rate: 0.01}
strategy: {name: mcf, gamma: 5 s}
""",
}
QUERIES = ALL_QUERIES if LONG else {name: ALL_QUERIES[name] for name in ("near", "pairs")}

DONE = "DAGS "
RUNS = """
import json, os, sys
sys.path.insert(0, os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
from airflow.dag_processing.dagbag import DagBag
files = {"touch": os.utime, "move": lambda both: os.replace(*both.split(">"))}
bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
assert not bag.import_errors, bag.import_errors
done = []
for call in sys.argv[1:]:
    name, _, conf = call.partition("=")
    if name in files:
        files[name](conf)
        continue
    run = bag.dags[name].test(run_conf=json.loads(conf or "null"))
    states = {t.task_id: str(getattr(t.state, "value", t.state)) for t in run.get_task_instances()}
    done.append([call, str(getattr(run.state, "value", run.state)), states])
print("DAGS " + json.dumps(done))
"""
"""A program that runs DAGs by ``dag.test()``. The first run of a DAG renders the templates of its tasks in place.

``NAME=JSON`` is a run with a configuration, ``touch=FILE`` makes a file look new, ``move=FROM>TO`` lands a file.
"""


_MIGRATED: list[bytes] = []


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Project:
    """The folders of one test project, and the environment that points Airflow and the command at them."""

    folder: Path
    watched: str | None = None
    """The landing folder, if it is outside the project."""
    retries: int = 0
    """The number of times that a failed task is tried again, half a minute later each time."""

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def landing(self) -> Path:
        return self.folder / "landing"

    @property
    def queries(self) -> Path:
        return self.folder / "queries"

    @property
    def settings(self) -> dict[str, str]:
        """The settings that differ from ``infra/airflow.env``."""
        home = self.folder / "airflow"
        return {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
            "LATECOMER_QUERIES": str(self.queries),
            "LATECOMER_STREAMS": str(self.folder / "streams"),
            "LATECOMER_LANDING": self.watched or str(self.landing),
            "LATECOMER_LAKE": str(self.lake),
            "LATECOMER_REPORTS": str(self.folder / "reports"),
            "LATECOMER_RETRIES": str(self.retries),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The environment of this process, updated by ``infra/airflow.env``, updated by `settings`."""
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        for line in (ROOT / "infra" / "airflow.env").read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.startswith("#"):
                key, _, value = line.partition("=")
                environment[key] = value.replace("$ROOT", str(ROOT))
        return environment | self.settings

    def write(self, kinds: tuple[str, ...] = tuple(QUERIES)) -> Project:
        """Write the folders and the query files, and return the project."""
        self.queries.mkdir(parents=True)
        self.landing.mkdir()
        (self.folder / "airflow").mkdir()
        for name in kinds:
            (self.queries / f"{name}.yaml").write_text(f"name: {name}{ALL_QUERIES[name]}", encoding="utf-8")
        return self

    def migrate(self) -> Project:
        """Write Airflow's metadata database, and return the project.

        ``airflow db migrate`` takes half a minute, so it runs once per process; later projects get a copy.
        """
        made = self.folder / "airflow" / "airflow.db"
        if _MIGRATED:
            made.write_bytes(_MIGRATED[0])
        else:
            self.call("airflow", "db", "migrate")
            _MIGRATED.append(made.read_bytes())
        return self

    def call(self, *command: str, codes: tuple[int, ...] = (0,), timeout: float = 300, both: bool = False) -> str:
        """Run a command and return its standard output; with `both`, its standard error follows."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=timeout, cwd=ROOT)
        assert done.returncode in codes, f"{command}: {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-2500:]}"
        return done.stdout + done.stderr if both else done.stdout

    def python(self, code: str, *arguments: str) -> Any:
        """Run a program and return the JSON of its last line.

        It runs in a new process, because Airflow's state is per process.
        """
        return json.loads(self.call(sys.executable, "-c", code, *arguments, timeout=850).strip().splitlines()[-1])

    def run_dags(self, *calls: str) -> tuple[list[Any], str]:
        """Run DAGs, as `RUNS` reads `calls`.

        Returns
        -------
        runs : list of [call, state of the run, {task: state}]
        logs : str
        """
        logs = self.call(sys.executable, "-c", RUNS, *calls, timeout=850, both=True)
        (done,) = [line for line in logs.splitlines() if line.startswith(DONE)]
        return json.loads(done.removeprefix(DONE)), logs

    def table(self, query: str, name: str) -> Any:
        """Export one of the query's tables and read it."""
        import pyarrow.parquet as pq

        target = self.folder / f"{query}.{name}.parquet"
        file = str(self.queries / f"{query}.yaml")
        self.call("latecomer", "export", file, "--lake", str(self.lake), "--table", name, "--to", str(target))
        return pq.read_table(target)

    def stored(self, area: str, query: str) -> list[dict[str, Any]]:
        """Return the rows of a lake table without any view over them, sorted."""
        from deltalake import DeltaTable

        rows = DeltaTable(str(self.lake / area / query)).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: json.dumps(row, default=str, sort_keys=True))
