"""The benchmark of memory, quick: the memory of a command's children counts, and a command that fails is told."""

import csv
import sys
from pathlib import Path

import pytest
from latecomer.bench import memory, speed


def test_quick_benchmark_measures_every_command(tmp_path: Path):
    summary = memory.run(None, tmp_path, lambda line: None, quick=True)
    with (tmp_path / "memory.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["command"] for line in lines] == ["ingest", "run of aggregate"]
    assert all(int(line["peak_mb"]) > 300 for line in lines)  # a JVM and Python
    assert [goal["met"] for goal in summary["goals"]] == [True, True]


def test_the_memory_of_children_counts():
    child = "import time; kept = bytearray(300 << 20); time.sleep(3)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    _, peak = memory.watched([sys.executable, "-c", parent])
    assert 300 << 20 < peak < 500 << 20


def test_a_child_that_has_only_been_forked_does_not_count():
    forked = "import os, time; kept = bytearray(300 << 20); os.fork(); time.sleep(3)"
    _, peak = memory.watched([sys.executable, "-c", forked])
    assert 300 << 20 < peak < 500 << 20


def test_a_command_that_fails_is_told():
    with pytest.raises(RuntimeError, match="exit code 3: no room"):
        memory.watched([sys.executable, "-c", "import sys; print('no room'); sys.exit(3)"])


def test_events_of_several_files_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import pyarrow.parquet as pq

    monkeypatch.setattr(speed, "FILE_ROWS", 1_000)
    files = speed.draw_files(tmp_path, 2_500)
    tables = [pq.read_table(file) for file in files]
    assert [table.num_rows for table in tables] == [1_000, 1_000, 500]
    times = [table["event_ts"].to_numpy() for table in tables]
    assert abs(times[1].min() - times[0].max()) < 5e4 and abs(times[2].min() - times[1].max()) < 5e4
