"""The quick benchmark of speed, and that all its jobs of a kind give the same answers."""

import csv
from pathlib import Path

import pytest
from latecomer.bench import plans, speed, timing
from latecomer.specs.loading import parse_query


def test_quick_benchmark_compares_commands_with_plain_jobs(tmp_path: Path):
    ((summary, compared),) = timing.run_in_processes(_run, [(tmp_path,)])  # a session of its own
    with (tmp_path / "speed.csv").open() as file:
        jobs = {row["job"]: row for row in csv.DictReader(file)}
    assert list(jobs) == ["ingest", "aggregate", "check", "publish"]
    for job in ("ingest", "aggregate"):
        assert all(float(value) > 0 for name, value in jobs[job].items() if name != "job")
    assert float(jobs["check"]["cold_ratio"]) > 0 and jobs["check"]["warm_s"] == ""
    assert len(summary["goals"]) == 2 + 2 + 1 + 1
    assert compared == list(speed.QUERIES)


def _run(folder: Path) -> tuple[dict[str, object], list[str]]:
    summary = speed.run(None, folder, lambda line: None, quick=True)
    place = folder / "compared"
    place.mkdir()
    lake, compared = speed.draw(place, 5_000), []
    for kind in speed.QUERIES:
        jobs = speed.KindJobs(kind, lake, place)
        jobs.call()
        jobs.spark()
        jobs.duckdb()
        jobs.compare()
        compared.append(kind)
    return summary, compared


def test_goals_are_ratios_and_growth():
    measured = [
        speed.Measured("join", 1_000, 12.0, 10.0, 2.0, 1.0, 0.1),
        speed.Measured("join", 10_000, 30.0, 10.0, 23.0, 20.0, 1.0),
        speed.Measured("check", 10_000, cold=1.0, spark_cold=9.0),
    ]
    met = {goal["name"]: goal["met"] for goal in speed.goals(measured, lambda line: None).lines}
    assert met == {
        "join of 1,000 rows, cold: time over that of plain Spark": True,
        "join of 1,000 rows, warm: time over that of plain Spark": False,
        "join of 10,000 rows, cold: time over that of plain Spark": False,
        "join of 10,000 rows, warm: time over that of plain Spark": True,
        "check of 10,000 rows, cold: time over that of run": False,
        "join: time for ten times the rows": False,
    }


@pytest.mark.parametrize("kind", plans.KINDS)
@pytest.mark.parametrize("per_row", [0.1, 1.0, 40.0])
def test_queries_of_the_sweep_are_queries(kind: str, per_row: float):
    spec = parse_query(plans.query(kind, "q", 500, per_row))
    assert spec.kind == kind


def test_quick_sweep_runs_every_plan(tmp_path: Path):
    summary = plans.run(None, tmp_path, lambda line: None, quick=True)
    lines = summary["plans"]
    assert isinstance(lines, list)
    assert [(line["kind"], line["rows"]) for line in lines] == [(kind, 500) for kind in plans.KINDS]
    for line in lines:
        assert 100 < line["results"] < 5_000
        assert line["ratio"] == line["chosen_s"] / min(line["interpreted_s"], line["compiled_s"])
