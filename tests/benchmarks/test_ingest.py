"""The quick benchmark of ingestion: every job runs, cold and warm, and its goals are judged."""

import csv
from pathlib import Path

import pyarrow.parquet as pq
from latecomer.bench import ingest as bench
from latecomer.bench import timing


def test_quick_benchmark_runs_every_job_and_judges_its_goals(tmp_path: Path):
    ((summary, rows),) = timing.run_in_processes(_run, [(tmp_path,)])  # a session of its own
    assert summary["rows"] == bench.QUICK_ROWS == rows
    with (tmp_path / "ingest.csv").open() as file:
        jobs = {row["job"]: row for row in csv.DictReader(file)}
    assert tuple(jobs) == bench.JOBS
    assert all(float(job["warm_seconds"]) > 0 and float(job["warm_rows_per_second"]) > 0 for job in jobs.values())
    assert float(jobs["parquet"]["cold_ratio"]) > 0 and jobs["csv"]["cold_ratio"] == ""
    assert {job["compared_with"] for job in jobs.values()} == {"", "parquet_spark", "parquet", "csv_spark"}
    assert len(summary["goals"]) == 4


def _run(folder: Path) -> tuple[dict[str, object], int]:
    summary = bench.run(None, folder, lambda line: None, quick=True)
    bench.draw(folder, bench.QUICK_ROWS)
    return summary, pq.read_metadata(folder / "events.parquet").num_rows


def test_goals_compare_jobs_of_one_start():
    cold = {"parquet_spark": 10.0, "parquet": 21.0, "keyed": 30.0, "csv_spark": 5.0, "csv": 20.0}
    warm = {"parquet_spark": 5.0, "parquet": 9.0, "keyed": 15.0, "csv_spark": 5.0, "csv": 8.0}
    met = [goal["met"] for goal in bench.goals(cold, warm, 4_000_000, lambda line: None).lines]
    assert met == [False, True, True, False, True]
