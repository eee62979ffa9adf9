"""The quick benchmark of scale: the work of an executor is counted apart from that of the driver."""

import csv
from pathlib import Path

import pytest
from latecomer.bench import scale, timing


def test_quick_benchmark_counts_the_work_of_driver_and_executors(tmp_path: Path):
    (summary,) = timing.run_in_processes(_run, [(tmp_path,)])  # a session of its own
    with (tmp_path / "scale.csv").open() as file:
        driver, tasks = csv.DictReader(file)
    assert (driver["place"], tasks["place"]) == scale.PLACES
    assert int(driver["bytes"]) == 40 * int(driver["arrivals"]) > 100 * int(tasks["bytes"]) > 0
    assert float(driver["executor_python"]) == 0 < float(tasks["executor_python"])
    assert all(float(line[name]) > 0 for line in (driver, tasks) for name in ("driver_jvm", "executor_jvm"))
    assert [goal["met"] for goal in summary["goals"]] == [True]


def _run(folder: Path) -> dict[str, object]:
    return scale.run(None, folder, lambda line: None, quick=True)


def test_amdahls_law():
    measured = scale.Measured("join", "tasks", 4, 1.0, 1.0, 6.0, 2.0, arrivals=1, bytes=1)
    assert measured.serial == pytest.approx(0.2)
    assert measured.limit_100 == pytest.approx(1 / (0.2 + 0.8 / 100))
