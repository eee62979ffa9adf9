"""`latecomer advance`: what is due of many queries is done in one call, and nothing else."""

import json

import pytest
from latecomer.lake.lake import Lake
from latecomer.specs.loading import load_query

from tests.support import commands, events
from tests.support.in_gateway import call
from tests.support.lakes import exported, load, same

WINDOWED = "window: {size: 4 s, slide: 2 s}\n"
SUMS = (
    "name: sums\nkind: aggregate\nstreams: {s: a}\n" + WINDOWED + "select: {n: count()}\n"
    "quality: {error: 0.3, probability: 0.5, period: 10 s}\nstrategy: {name: k_slack, slack: 1 s, gamma: 3 s}\n"
)
BOTH = "name: both\nkind: membership\nstreams: {x: a, y: b}\nelement: k\n" + WINDOWED
LATER = "name: later\nkind: membership\nstreams: {x: a, y: none_yet}\nelement: k\n" + WINDOWED


@pytest.fixture
def project(tmp_path, spark):
    """Return the folder of query files and a lake that has the rows of their streams."""
    queries = tmp_path / "queries"
    queries.mkdir()
    for text in (SUMS, BOTH, LATER):
        (queries / f"{text.split()[1]}.yaml").write_text(text)
    lake = Lake(tmp_path / "lake")
    load(lake, events.disordered(5, rows=300), tmp_path)
    return queries, lake


def advanced(spark, lake, *arguments):
    """Return the exit code, the printed lines by query, and the errors of a call."""
    done = call(spark, "advance", *arguments, "--lake", lake.uri)
    lines = {}
    for line in done.stdout.splitlines():
        if not line.startswith(" "):
            lines.setdefault(line.partition(":")[0], []).append(line.partition(": ")[2])
    return done.returncode, lines, [line for line in done.stderr.splitlines() if "micro-batch" not in line]


def test_each_query_takes_the_steps_that_are_due_and_no_other(project, spark):
    queries, lake = project
    code, lines, _ = advanced(spark, lake, queries, "--flush")
    assert code == 0
    assert len(lines["both"]) == 4
    run, repair, check, publish = lines["sums"]
    assert "results on time" in run and "repaired in" in repair and "checks passed" in check and "new;" in publish
    assert lines["later"] == ["waits, stream none_yet has no row yet"]
    assert lake.table("results", "sums").count() and not lake.table("state", "later").exists()
    again = advanced(spark, lake, queries, "--flush")[1]
    assert again == {name: ["nothing to do"] for name in ("sums", "both")} | {"later": lines["later"]}


def test_what_single_commands_did_is_seen(project, spark):
    queries, lake = project
    query = queries / "sums.yaml"
    for command in (("run", "--flush"), ("check",), ("repair", "--flush")):
        assert call(spark, command[0], query, "--lake", lake.uri, *command[1:]).returncode == 0
    check, publish = advanced(spark, lake, query)[1]["sums"]
    assert "checks passed" in check and "new;" in publish, "no check has seen the repair"
    lake.table("publications", "sums").drop()
    lake.table("results", "sums").drop()
    (publish,) = advanced(spark, lake, query)[1]["sums"]
    assert "new;" in publish
    assert advanced(spark, lake, query)[1]["sums"] == ["nothing to do"]


def test_the_tables_are_those_of_the_single_commands(project, spark, tmp_path):
    queries, lake = project
    assert advanced(spark, lake, queries / "sums.yaml", "--flush")[0] == 0
    other = Lake(tmp_path / "other")
    load(other, events.disordered(5, rows=300), tmp_path)
    spec = load_query(queries / "sums.yaml")
    for command in ("run", "repair"):
        done = call(spark, command, queries / "sums.yaml", "--lake", other.uri, "--flush")
        assert done.returncode == 0, done.stderr
    same(exported(lake, spec), exported(other, spec))


def test_a_query_that_fails_keeps_no_other_from_its_steps(project, spark):
    queries, lake = project
    (queries / "a_broken.yaml").write_text("name: broken\nkind: agg\n")
    hard = SUMS.replace("sums", "hard").replace("error: 0.3, probability: 0.5", "error: 0.001, probability: 0.999")
    (queries / "hard.yaml").write_text(hard.replace("slack: 1 s", "slack: 0 s"))
    code, lines, errors = advanced(spark, lake, queries, "--flush")
    assert code == 2  # graver than the check that failed
    assert "a_broken.yaml" in errors[0] and "'agg'" in errors[0]
    assert len(lines["hard"]) == 3 and "checks failed" in lines["hard"][2], "no answer of it is published"
    assert any(line.startswith("hard: FAILED") for line in errors)
    assert len(lines["sums"]) == 4 and not lake.table("results", "hard").exists()
    (queries / "a_broken.yaml").unlink()
    assert advanced(spark, lake, queries)[0] == 0, "the check that failed is not repeated where nothing is new"


def test_new_rows_are_due_again_and_steps_are_json(project, spark, tmp_path):
    queries, lake = project
    assert advanced(spark, lake, queries)[0] == 0
    more = events.disordered(6, rows=100)
    load(lake, more, tmp_path)
    done = call(spark, "advance", queries / "both.yaml", "--lake", lake.uri, "--json")
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and steps[0]["rows_read"] == 100 and steps[-1]["table"].endswith("results/both")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["nothing.yaml"], "cannot be read"), (["empty"], "holds no query file"), ([], "QUERY.yaml|DIR")],
)
def test_what_is_no_query_is_said_in_a_line(tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    done = commands.call("advance", *arguments, "--lake", "lake")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert says in done.stderr
