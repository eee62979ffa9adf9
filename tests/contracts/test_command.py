"""The commands that need no Spark: help, exit codes, and errors of one line."""

import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest
from latecomer.jobs import exit_codes
from latecomer.lake.lake import Lake

from tests.support.commands import call

GOOD = "name: q\nkind: join\nstreams: {l: a, r: b}\nwindow: 1 s\nquality: {recall: 0.9, period: 10 s}\n"


def test_the_help_names_every_command():
    done = call("--help")
    assert done.returncode == 0
    names = (
        "ingest run repair backfill adapt check publish changes sql export explain validate status forget expire init"
    )
    for command in [*names.split(), "jars", "bench", "advance", "doctor", "spark"]:
        assert command in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "none.yaml", "--lake", "lake"], "cannot be read"),
        (["export", "q.yaml", "--lake", "lake", "--table", "results", "--to", "x.parquet"], "has not been run"),
        (["export", "q.yaml", "--lake", "lake", "--table", "ledger", "--to", "x.parquet"], "has not been run"),
        (["check", "q.yaml", "--lake", "lake"], "has not been run"),
        (["explain", "q.yaml", "--lake", "lake"], "has not been run"),
        (["repair", "q.yaml", "--lake", "lake"], "has not been run"),
        (["adapt", "q.yaml", "--lake", "lake"], "has not been run"),
        (["ingest", "--lake", "lake", "q.yaml"], "--stream"),
        (["ingest", "--lake", "lake", "--stream", "s", "nothing.csv"], "no such file"),
        (
            ["status", "--lake", "ftp://x/y"],
            "--lake: 'ftp://x/y': the scheme 'ftp' is not supported; write a local path, s3://BUCKET/PREFIX, "
            "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX, gs://BUCKET/PREFIX or hdfs://NAMENODE:PORT/FOLDER",
        ),
        (["ingest", "--lake", "lake", "--stream", "s", "ftp://x/y"], "PATH: 'ftp://x/y': the scheme 'ftp' is not"),
        (["status", "--lake", "abfss://c/lake"], "names no account; write abfss://CONTAINER@ACCOUNT.dfs.core.windows"),
        (["status", "--lake", "az://c/lake"], "names no account; write abfss://CONTAINER@ACCOUNT.dfs.core.windows"),
        (["status", "--lake", "gs:///lake"], "has no bucket name; write gs://BUCKET/PREFIX"),
        (["status", "--lake", "hdfs:///lake"], "has no namenode name; write hdfs://NAMENODE:PORT/FOLDER"),
        (["status", "--lake", "hdfs://n:1/a lake"], "holds ' ', which the path of a Delta table cannot; choose"),
        (["status", "--lake", "lakes[1]"], "holds '['"),
        (["status", "--lake", "a%20b"], "holds '%20'"),
        (
            ["status", "--lake", "s3://bucket/a%20b"],
            "holds '%20', which the path of a Delta table cannot; choose another prefix",
        ),
        (["status", "--lake", "s3://bucket/a//b"], "holds an empty name"),
        (["ingest", "--lake", "lake", "--stream", "s", ""], "PATH: '': names no file and no folder"),
        (["ingest", "--lake", "", "--stream", "s", "q.yaml"], "--lake: '': names no place"),
        (["status", "--lake", "file:/a/b"], "--lake: 'file:/a/b': is neither a path nor a URI; write file:///a/b"),
        (["status", "--lake", "s3:/a/b"], "--lake: 's3:/a/b': is neither a path nor a URI; write s3://a/b"),
        (["status", "--lake", "/tmp/" + "x" * 300], "cannot be used (File name too long); give another directory"),
        (["status", "--lake", "~no-such-user/lake"], "cannot be used (Could not determine home directory)"),
        (["init", "."], "not an empty folder"),
        (["status", "--lake", "s3:/bucket/lake"], "write s3://bucket/lake"),
        (["run", "q.yaml", "--lake", "lakke"], "has nothing ingested"),
        (["ingest", "--lake", "/proc/here", "--stream", "s", "--format", "csv", "q.yaml"], "cannot be written"),
        (["backfill", "q.yaml", "--lake", "lake", "--from", "2024-02-01", "--to", "2024-01-01"], "'2024-02-01'"),
        (["run", "q.yaml", "--lake", "lake", "--rows-per-batch", "0"], "--rows-per-batch"),
        (["export", "q.yaml", "--lake", "lake", "--table", "resluts", "--to", "x.csv"], "resluts"),
        (["ruin", "q.yaml"], "ruin"),
        (["--ruin"], "--ruin"),
        (["bench", "join", "--out", "q.yaml"], "--out: 'q.yaml': "),
        (["run"], "QUERY"),
        (["sql", "select 1 from q", "--lake", "lake"], "sql: 'q': is no table of the lake"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.yaml").write_text(GOOD)
    done = call(*arguments)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and message in done.stderr


@pytest.mark.parametrize(
    "query",
    [
        "kind: join\nstreams: {l: a, r: b}\nwindow: 1 s\nstrategy: exact",
        "kind: join\nstreams: {l: a, r: b}\nwindow: 1 s\nstrategy: {name: k_slack, slack: 1 s}",
        "kind: join\nstreams: {l: a, r: b}\nwindow: 1 s\nquality: {recall: 1, period: 1 s}",
        "kind: topk\nstreams: {s: a}\nscore: v\nk: 2\nwindow: 1 s\nstrategy: none",
        "kind: membership\nstreams: {s: a, t: b}\nelement: k\nwindow: 1 s",
    ],
)
def test_adapt_refuses_a_strategy_that_learns_nothing(tmp_path, query):
    """The refusal comes before anything is read or started, whether the query has been run or not."""
    (tmp_path / "q.yaml").write_text(f"name: q\n{query}\n")
    done = call("adapt", tmp_path / "q.yaml", "--lake", tmp_path / "lake")
    assert done.returncode == 2 and "takes nothing from adapt" in done.stderr, done.stderr
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("damage", ["cut", "gone", "log"])
def test_a_damaged_table_is_named(tmp_path, damage):
    lake = Lake(tmp_path / "lake")
    lake.table("ingest", "committed").append(pa.table({"seq_to": [1], "counts": ["{}"]}), "ingest", 0)
    place = tmp_path / "lake" / "ingest" / "committed"
    (file,) = place.glob("_delta_log/*.json" if damage == "log" else "*.parquet")
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(b"{" + file.read_bytes()[:20])
    done = call("status", "--lake", tmp_path / "lake")
    assert done.returncode == 4 and len(done.stderr.strip().splitlines()) == 1
    assert f"{place}: cannot be read (" in done.stderr and "restore its files" in done.stderr
    assert "<unknown>" not in done.stderr


def test_init_makes_queries_that_load(tmp_path):
    from latecomer.specs.loading import load_query

    assert call("init", str(tmp_path / "new")).returncode == 0
    kinds = {load_query(path).kind for path in (tmp_path / "new" / "queries").glob("*.yaml")}
    assert kinds == {"join", "aggregate", "topk", "theta_join", "membership"}


def test_init_makes_example_rows_in_the_order_of_arrival(tmp_path):
    import json

    import pyarrow.csv as pacsv

    done = call("init", tmp_path / "new", "--example", "--json")
    assert done.returncode == 0 and any("example.csv" in line for line in json.loads(done.stdout)["made"])
    rows = pacsv.read_csv(tmp_path / "new" / "landing" / "_by_stream" / "example.csv")
    assert set(rows["stream"].to_pylist()) == {"views", "clicks"} and rows.num_rows == 4000
    arrival = rows["arrival_ts"].to_pylist()
    assert arrival == sorted(arrival) and rows["event_ts"].to_pylist() != sorted(rows["event_ts"].to_pylist())


def test_status_of_an_empty_lake(tmp_path):
    done = call("status", "--lake", str(tmp_path / "lake"))
    assert done.returncode == 0 and "no query has been run yet" in done.stdout
    assert "is this the right place?" in done.stdout and not (tmp_path / "lake").exists()


def test_a_closed_output_is_not_an_internal_error(tmp_path):
    """The command ``latecomer status | head -1`` closes its output early."""
    (tmp_path / "lake").mkdir()
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "latecomer.jobs.cli", "status", "--lake", str(tmp_path / "lake")]
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_error_without_a_text_is_reported():
    """An error of a JVM that is gone has no text: it asks the JVM for it."""

    class Dead(Exception):
        def __str__(self):
            raise ConnectionRefusedError(111, "Connection refused")

    assert exit_codes._fault(Dead()) == "internal error: Dead: said no more"


def test_decimals_without_a_common_type_are_named():
    wide = ValueError(
        "[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION]  9e37 cannot be represented as Decimal(38, 2). If necessary"
    )
    message = exit_codes._fault(wide)
    assert "two decimals" in message and "(9e37 cannot be represented as Decimal(38, 2))" in message
    assert "ansi" not in message


def test_validate_reports_the_errors_of_all_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(GOOD.replace("join", "joint"))
    (tmp_path / "worse.yaml").write_text(GOOD.replace("1 s", "1 parsec"))
    done = call("validate", "good.yaml")
    assert (done.returncode, done.stdout.strip()) == (0, "1 of 1 query file valid")
    done = call("validate", *sorted(path.name for path in tmp_path.glob("*.yaml")))
    assert done.returncode == 2 and done.stdout.strip() == "1 of 3 query files valid"
    bad, worse = done.stderr.splitlines()
    assert "bad.yaml:2: kind: 'joint'" in bad and "worse.yaml:4: window: '1 parsec'" in worse
    done = call("validate", "good.yaml", "--lake", "lake", "--json")
    assert done.returncode == 2
    assert "streams.l: 'a': is not a stream of" in json.loads(done.stdout)["problems"]["good.yaml"]
