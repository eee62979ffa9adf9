"""SQL over the tables of a lake, and the page that asks one question in several engines."""

import json
import re
import subprocess
from pathlib import Path

import latecomer as lc
import pandas as pd
import pyarrow as pa
import pytest
from latecomer.jobs import init_project
from latecomer.jobs.status import status
from latecomer.lake import sql
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake

from tests.support import commands

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reading-results.md"


@pytest.fixture(scope="module")
def shop(spark, tmp_path_factory):
    """The project of the quickstart, whose join has been published, with repairs."""
    folder = tmp_path_factory.mktemp("sql") / "shop"
    init_project.make(folder, True)
    lake = lc.Lake(folder / "lake")
    lake.ingest(by="stream", paths=folder / "landing" / "_by_stream")
    query = lc.Query.load(folder / "queries" / "join.yaml")
    lake.run(query, flush=True)
    lake.repair(query, flush=True)
    lake.publish(query, unchecked=True)
    return folder


def test_every_engine_of_the_page_gives_the_same_rows(spark, shop, monkeypatch):
    monkeypatch.chdir(shop)
    text = PAGE.read_text(encoding="utf-8")
    [shell] = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    answer = subprocess.run(
        ["bash", "-c", shell.replace("latecomer sql", f"{' '.join(commands.line())} sql").rstrip() + " --json"],
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    expected = json.loads(answer.stdout)
    assert expected["columns"] == ["page", "clicks", "repaired"]
    assert len(expected["rows"]) == 5 and sum(row[2] for row in expected["rows"]) > 0
    blocks = re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", text, re.M | re.S)
    assert [name for name, _ in blocks] == ["DuckDB", "Spark SQL", "Polars", "pandas"]
    for name, block in blocks:
        names = {"spark": spark}
        exec(block, names)
        rows = names["rows"]
        assert isinstance(rows, pd.DataFrame) and list(rows.columns) == expected["columns"], name
        assert rows.astype(object).to_numpy().tolist() == expected["rows"], name
    head = re.search(r"^```\n(page .*?)^```", text, re.M | re.S)[1].splitlines()[2:]
    assert [line.split() for line in head] == [list(map(str, row)) for row in expected["rows"][: len(head)]]


def test_a_file_has_all_rows_and_the_terminal_some(shop):
    lake, target = shop / "lake", shop / "rows.csv"
    done = commands.call("sql", "from views", "--rows", 2, "--lake", lake)
    assert done.returncode == 0 and done.stdout.rstrip().endswith("or --to FILE for all of them")
    assert len(done.stdout.splitlines()) == 2 + 2 + 1
    done = commands.call("sql", "from views", "--to", target, "--lake", lake, "--json")
    assert json.loads(done.stdout) == {"rows": 2500, "file": str(target)}
    assert len(target.read_text().splitlines()) == 2501
    assert commands.call("sql", "--lake", lake).stdout.split() == [
        "results.clicks_after_views",
        "events.clicks",
        "events.views",
    ]


def test_status_shows_the_last_publication(shop):
    lake = lc.Lake(shop / "lake")
    [shown] = status(lake.tables)["queries"]
    opened = lake.tables.table("results", "clicks_after_views").open()
    [written] = set(lake.sql("select max(published_at) from clicks_after_views").column(0).to_pylist())
    assert shown["last_publication"] == f"{written:%Y-%m-%d %H:%M:%SZ} version {opened.version()}"
    text = commands.call("status", "--lake", shop / "lake").stdout
    assert "last_publication" in text and shown["last_publication"] in text


def small(folder, **tables):
    lake = Lake(folder)
    for place, rows in tables.items():
        area, _, name = place.partition("__")
        lake.table(area, name).append(pa.table(rows), "test", 0)
    return lake


def test_names(tmp_path):
    lake = small(tmp_path / "lake", results__twice={"a": [1]}, results__q={"a": [2]}, verdicts__twice={"a": [4]})
    rows = pa.table({"a": [3, 3]})
    for number, stream in enumerate(["twice", "with-dash.x", "Big", "big"]):
        lake.table("events", stream).append(rows, "ingest", number)
    lake.table("ingest", "committed").append(
        pa.table({"number": range(4), "seq_to": [2] * 4, "counts": ["{}"] * 4}), "ingest", 3
    )
    first = {
        'select sum(a) from "with-dash.x"': 6,
        'select sum(a) from events."with-dash.x"': 6,
        "select a from Q": 2,
        "select a from RESULTS.Q": 2,
        "select a from results.twice": 1,
        "select sum(a) from events.twice": 6,
        "select a from verdicts.twice": 4,
        "with q as (select 7 as a) select a from q": 7,
        "select r.a + e.a from results.twice r, events.twice e limit 1": 4,
        "select (select max(a) from q) + (select count(*) from events.twice)": 4,
    }
    for statement, value in first.items():
        assert sql.query(lake, statement).column(0)[0].as_py() == value, statement
    for statement, message in {
        "select a from twice": "'twice': is ambiguous: results.twice and events.twice; say which by its schema",
        "select a from events.BIG": "'big': is ambiguous: events.Big and events.big",
        "select a from results.qq": "'results.qq': is no table of the lake; did you mean 'q'?",
        "select a from qq": "'qq': is no table of the lake; did you mean 'q'?",
        "select b from q": 'Referenced column "b" not found',
        "show tables": "leave the statement out to list them",
    }.items():
        with pytest.raises(InputError, match=re.escape(message)):
            sql.query(lake, statement)


def test_rows_of_an_ingestion_that_was_not_committed_are_not_read(tmp_path):
    lake = Lake(tmp_path / "lake")
    for number in range(2):
        lake.table("events", "s").append(pa.table({"a": [number]}), "ingest", number)
    committed = pa.table({"number": [0], "seq_to": [1], "counts": ["{}"]})
    lake.table("ingest", "committed").append(committed, "ingest", 0)
    assert sql.query(lake, "from s").to_pydict() == {"a": [0]}


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("insert into q values (1)", "is refused: tables of a lake can only be read"),
        ("delete from q", "is refused: tables of a lake can only be read"),
        ("create table x as select * from q", "is refused: tables of a lake can only be read"),
        ("copy (from q) to 'x.csv'", "is refused: tables of a lake can only be read"),
        ("attach 'x.db'", "is refused: tables of a lake can only be read"),
        ("set threads = 1", "is refused: tables of a lake can only be read"),
        ("select 1; drop view q", "holds 2 statements"),
        ("", "holds no statement"),
        ("selct 1", "syntax error"),
        ("from read_csv('/etc/passwd')", "file system operations are disabled"),
        ("from '/etc/passwd'", "is no table of the lake"),
    ],
)
def test_it_only_reads(tmp_path, monkeypatch, statement, message):
    monkeypatch.chdir(tmp_path)
    lake = small(tmp_path / "lake", results__q={"a": [1]})
    before = sorted(tmp_path.rglob("*"))
    done = commands.call("sql", statement, "--lake", lake.uri)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_table_is_named(tmp_path):
    lake = small(tmp_path / "lake", results__q={"a": [1]})
    [file] = (tmp_path / "lake" / "results" / "q").glob("*.parquet")
    file.unlink()
    done = commands.call("sql", "from q", "--lake", lake.uri)
    assert done.returncode == 4 and len(done.stderr.splitlines()) == 1
    assert f"{lake.uri}/results/q: cannot be read" in done.stderr


def test_what_is_not_installed_is_named(tmp_path, monkeypatch):
    lake = small(tmp_path / "lake", results__q={"a": [1]})
    real = sql.import_module
    monkeypatch.setattr(sql, "import_module", lambda name: real("no_" + name))
    with pytest.raises(InputError, match=r"sql: needs DuckDB; install latecomer\[sql\] \(duckdb\)"):
        sql.query(lake, "from q")


def test_values_of_many_types(tmp_path):
    rows = {
        "b": pa.array([b"\x01", None]),
        "l": [[1, 2], None],
        "m": pa.array([{"x": 1}, None]),
        "t": pa.array([0, None], pa.timestamp("us", "UTC")),
    }
    lake = small(tmp_path / "lake", results__q=rows)
    done = commands.call("sql", "select *, sum(1) over () as n, n / 4 as f from q", "--lake", lake.uri, "--json")
    first = [["01", [1, 2], {"x": 1}, "1970-01-01T00:00:00+00:00", 2, 0.5], [None, None, None, None, 2, 0.5]]
    assert json.loads(done.stdout)["rows"] == first, done.stderr
