"""The demo on its first month: the real DAGs, a Spark server of its own, Delta tables, the report."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable


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
        answers = DeltaTable(str(tmp_path / "demo" / "lake" / "results" / row["query"])).to_pyarrow_table()
        assert answers.num_rows > 0 and (row["corrections"] > 0) == ("repaired" in answers["provenance"].to_pylist())
    assert {row["query"] for row in summary} == {"flights_with_weather", "seen_everywhere"}
    assert summary[0]["rows_quarantined"] > 0
    page = Path(summary[0]["report"])
    assert page.is_file()
    for name in (row["query"] for row in summary):
        assert list((page.parent / "data_docs" / name / "validations").rglob("*.html")), f"no Data Docs of {name}"
    assert not list((tmp_path / "demo" / "state").rglob("spark-server.json")), "the server ended with the demo"
    assert "flights_with_weather" in page.read_text() and "flights_with_weather" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"), [(["--out", "{}"], "letter.txt"), (["--only", "flights"], "flights_with_weather")]
)
def test_a_folder_that_is_no_demo_is_not_replaced(tmp_path, arguments, says):
    (tmp_path / "letter.txt").write_text("dear")
    command = [sys.executable, "-m", "latecomer.jobs.demo", *(argument.format(tmp_path) for argument in arguments)]
    if "--out" not in command:
        command += ["--out", str(tmp_path / "new")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and says in done.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize(
    ("folders", "more"),
    [(["lake", "landing"], []), (["made_by_the_demo", "lake", "summary.json"], ["--only", "nothing"])],
)
def test_a_refused_call_replaces_nothing(tmp_path, folders, more):
    """A lake with its landing files is no demo, and a call with a mistake is refused."""
    for name in folders:
        (tmp_path / name).mkdir()
    command = [sys.executable, "-m", "latecomer.jobs.demo", "--out", str(tmp_path), *more]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and ("--only" if more else "lake") in done.stderr.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(folders)
