"""`latecomer doctor`: what is right is said, what is wrong has a remedy, and nothing of the examination stays."""

import json

import pytest
from latecomer.lake.lake import Lake

from tests.support import events
from tests.support.commands import call
from tests.support.lakes import load


def findings(done):
    return {row["subject"]: row for row in json.loads(done.stdout)["findings"]}


def test_a_whole_installation_is_right(tmp_path, spark):
    lake = Lake(tmp_path / "lake")
    load(lake, events.disordered(5, rows=100), tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = call("doctor", "--lake", lake.uri)
    assert done.returncode == 0, done.stdout + done.stderr
    states = {line.split(": ")[0].split(maxsplit=1)[1]: line.split()[0] for line in done.stdout.splitlines()}
    assert {"Python", "packages", "Java", "jars", "memory", "Spark", "lake", "one writer", "contents"} <= set(states)
    assert states["Spark"] == "ok" and states["one writer"] == "ok"
    assert "one writer: 1 of 8 writers won" in done.stdout and "100 rows of 2 streams, 0 queries" in done.stdout
    assert [path for path in sorted(tmp_path.rglob("*")) if "lease" not in path.parts] == [
        path for path in before if "lease" not in path.parts
    ]


def test_a_lake_that_is_not_there_is_not_made(tmp_path):
    assert call("doctor", "--no-spark", "--lake", tmp_path / "lake").returncode == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "value", "subject", "says"),
    [
        ("JAVA_HOME", "/nowhere", "Java", "does not answer"),
        ("LATECOMER_JARS", "/nowhere", "jars", "holds no jar files"),
        ("LATECOMER_DRIVER_MEMORY", "plenty", "memory", "'plenty'"),
    ],
)
def test_what_is_wrong_has_a_remedy_and_an_exit_code(monkeypatch, name, value, subject, says):
    monkeypatch.setenv(name, value)
    done = call("doctor", "--json")
    subjects = findings(done)
    assert done.returncode == 2 and subjects[subject]["state"] == "WRONG"
    assert says in subjects[subject]["says"] and subjects[subject]["remedy"]
    assert {row["state"] for other, row in subjects.items() if other != subject} <= {"ok", "warning"}
    assert "Spark" not in subjects, "it is not started without what it needs"


def test_more_memory_than_there_is_is_a_warning(monkeypatch):
    monkeypatch.setenv("LATECOMER_DRIVER_MEMORY", "4t")
    done = call("doctor", "--no-spark", "--json")
    assert done.returncode == 0 and findings(done)["memory"]["state"] == "warning"


@pytest.mark.parametrize(
    ("lake", "subject", "says"),
    [("ftp://somewhere", "lake", "scheme"), ("/proc/lake", "one writer", "/proc/lake")],
)
def test_a_place_that_holds_no_lake(lake, subject, says):
    done = call("doctor", "--no-spark", "--json", "--lake", lake)
    assert done.returncode == 2 and says in findings(done)[subject]["says"]


def test_a_damaged_lake_is_named(tmp_path, spark):
    from latecomer.spark.run import run
    from latecomer.specs.loading import parse_query

    lake = Lake(tmp_path / "lake")
    load(lake, events.disordered(5, rows=100), tmp_path)
    run(lake, parse_query("name: q\nkind: membership\nstreams: {x: a, y: b}\nelement: k\nwindow: 4 s\n"), flush=True)
    (tmp_path / "lake" / "state" / "q" / "_delta_log" / "00000000000000000000.json").write_text("half a li")
    done = call("doctor", "--no-spark", "--json", "--lake", lake.uri)
    assert done.returncode == 2 and "q" in findings(done)["contents"]["says"]


@pytest.mark.parametrize(
    ("server", "says"),
    [("sc://127.0.0.1:1", "does not answer"), ("warm", "is not running"), ("sparky", "is no address")],
)
def test_a_server_that_is_named_is_examined_in_place_of_java(monkeypatch, tmp_path, server, says):
    monkeypatch.setenv("LATECOMER_SPARK", server)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    done = call("doctor", "--json")
    subjects = findings(done)
    assert done.returncode == 2 and subjects["Spark"]["state"] == "WRONG" and says in subjects["Spark"]["says"]
    assert not {"Java", "jars", "memory"} & set(subjects)


def test_a_server_runs_a_job(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert call("spark", "start").returncode == 0
    try:
        monkeypatch.setenv("LATECOMER_SPARK", "warm")
        done = call("doctor", "--lake", tmp_path / "lake", "--json")
    finally:
        call("spark", "stop")
    assert done.returncode == 0 and "ran a job" in findings(done)["Spark"]["says"]
