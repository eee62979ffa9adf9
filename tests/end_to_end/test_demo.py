"""The demo on its first month: the real DAGs, spark-submit, Delta tables, the report."""

import json
import subprocess
import sys
from pathlib import Path


def test_one_month_through_airflow(tmp_path):
    command = [
        sys.executable,
        "-m",
        "latecomer.jobs.demo",
        "--months",
        "1",
        "--per-file",
        "1",
        "--only",
        "flights_with_weather",
        "seen_everywhere",
        "--out",
        str(tmp_path / "demo"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    for row in summary:
        assert row["achieved_final"] == 1.0
        assert row["achieved_on_time"] >= row["target"] or row["target"] == 1.0
        assert row["rows_on_time"] + row["rows_late"] == row["rows_in"] and row["rows_repaired"] == row["rows_late"]
        assert row["rows_held_mean"] > 0
    assert {row["query"] for row in summary} == {"flights_with_weather", "seen_everywhere"}
    assert summary[0]["rows_quarantined"] > 0
    page = Path(summary[0]["report"])
    assert page.is_file() and (page.parent / "data_docs" / "index.html").is_file()
    assert "flights_with_weather" in page.read_text() and "flights_with_weather" in done.stdout
