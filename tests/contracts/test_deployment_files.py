"""Files that are deployed together: `validate` refuses what the DAG files refuse, by one definition."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.jobs.cli import main
from latecomer.specs import deployment
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import parse_query

QUERY = """name: {name}
kind: aggregate
streams: {{s: a}}
window: {{size: 10 s, slide: 5 s}}
select: {{rows_seen: count()}}
quality: {{error: 0.3, probability: 0.5, period: 20 s}}
schedule: {{{schedule}}}
"""
FIELDS = ["*", "0", "5", "59", "31", "7", "L", "?", "mon", "jan", "R", "r", "H", "5#3", "5#6", "L5", "1-5", "5-1"]
FIELDS += ["*/2", "*/0", "*/70", "1,2", "1,,2", "sat#2", "24", "-1"]


def query(name="q", schedule=""):
    return QUERY.format(name=name, schedule=schedule)


@pytest.mark.parametrize(
    ("name", "schedule", "says"),
    [
        ("a__b", "", r"q\.yaml:1: name: 'a__b': is reserved for DAG ids; choose another name, without __"),
        ("latecomer_ingest", "", "name: 'latecomer_ingest': is reserved"),
        ("q", 'run: "0 0 30 2 *"', r"q\.yaml:7: schedule\.run: '0 0 30 2 \*': never fires"),
        ("q", 'repair: "0 24 * * *"', "schedule.repair: '0 24 .*': is not a valid cron expression"),
        ("q", 'adapt: "H * * * *"', "schedule.adapt: .*is not a valid cron"),
        ("q", 'audit: "R * * * *"', "schedule.audit: .*has other times whenever it is read; write numbers"),
        ("q", "start: 0001-01-01", "schedule.start: '0001-01-01': is a day from which Airflow cannot count"),
        ("q", "start: 9999-12-31", "schedule.start: .*write one from 1900 to 2199"),
    ],
)
def test_validate_refuses_what_airflow_would(tmp_path, name, schedule, says):
    file = tmp_path / "q.yaml"
    file.write_text(query(name, schedule))
    done = CliRunner().invoke(main, ["validate", str(file)])
    assert done.exit_code == 2 and re.search(says, done.stderr), done.output
    assert list(deployment.read_query_files([file]).problems.values()) == [
        done.stderr.strip().removeprefix("latecomer: ")
    ]


def test_files_of_a_folder_are_checked_together(tmp_path):
    queries, streams = tmp_path / "queries", tmp_path / "streams"
    queries.mkdir(), streams.mkdir()
    (queries / "a.yaml").write_text(query("q"))
    (queries / "b.yml").write_text(query("q"))
    (queries / "c.yaml").write_text(query("c", "start: 1969-12-31"))
    (streams / "a.yaml").write_text("time_units: ms\n")
    (streams / "b.yaml").write_text("source: kafka\ntopic: a b\nservers: broker:9092\n")
    (streams / "c.yaml").write_text("source: kafka\ntopic: a\nservers: broker\n")
    (streams / "_by__kind.yaml").write_text("time_unit: ms\n")
    (streams / "_by_kind.yaml").write_text("source: delta\ntable: t\n")
    (streams / "not a stream.yaml").write_text("")
    done = CliRunner().invoke(main, ["validate", str(queries), str(queries / "a.yaml"), "--streams", str(streams)])
    assert done.exit_code == 2 and done.stdout == "2 of 3 query files valid, 1 of 6 stream files valid\n"
    for says in (
        r"b\.yml:1: name: 'q': is taken by a\.yaml; give each query a name of its own",
        r"streams/a\.yaml:1: time_units: 'ms': is not a key here; did you mean 'time_unit'\?",
        r"streams/b\.yaml:2: topic: 'a b': is no name of a topic",
        r"streams/c\.yaml:3: servers: 'broker': names no broker; write HOST:PORT",
        r"_by_kind\.yaml:1: source: is of one stream, and this file is of a column",
        r"not a stream\.yaml: 'not a stream': is no name of a stream",
    ):
        assert re.search(says, done.stderr), (says, done.stderr)
    done = CliRunner().invoke(main, ["validate", str(queries / "b.yml"), "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout) == {"valid": 1, "problems": {}}
    for arguments, says in (([], "names no file"), ([str(tmp_path)], "holds no query file")):
        done = CliRunner().invoke(main, ["validate", *arguments])
        assert done.exit_code == 2 and says in done.output


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(FIELDS), min_size=5, max_size=5).map(" ".join))
def test_a_schedule_that_is_taken_fires_at_the_same_times_whenever_it_is_read(cron):
    """Airflow reads an expression anew twice a minute, and follows it by croniter."""
    try:
        spec = parse_query(query("q", f'run: "{cron}"'))
        deployment.check_deployable(Path("q.yaml"), spec)
    except SpecError:
        return
    start = datetime(2024, 1, 1, tzinfo=UTC)
    first, second = (croniter(cron, start).get_next(datetime) for _ in range(2))
    assert first == second > start
