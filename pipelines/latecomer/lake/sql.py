"""SQL over the tables of a lake, by DuckDB: statements that read, on rows that delta-rs and Arrow deliver.

DuckDB opens no file, loads no extension and reaches no network here. It scans Arrow datasets, which pass its columns
and conditions on to the Parquet files of the version that was opened, of a local lake and of a bucket alike.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import open_ingested
from latecomer.lake.lake import Lake
from latecomer.specs.errors import did_you_mean
from latecomer.specs.names import fold_case

SCHEMAS = ("results", "events", "quarantine", "verdicts")
"""Areas of a lake whose tables statements can name, as ``area.name``."""
BY_NAME = ("results", "events")
"""Areas whose tables need no schema, where one table alone has the name."""
_READS = "SELECT, FROM, WITH, VALUES, DESCRIBE or SUMMARIZE"


def tables(lake: Lake) -> list[tuple[str, str]]:
    """Return area and name of every table that a statement can read, sorted by area."""
    return [(area, name) for area in SCHEMAS for name in lake.names(area)]


def query(lake: Lake, statement: str, rows: int | None = None) -> pa.Table:
    """Return the rows of one statement that reads.

    A query's published answers are the table ``results.<query>``, and a stream's events ``events.<stream>``. Either is
    also known by its name alone, unless a query and a stream share it. Names with other characters than letters, digits
    and ``_`` stand in double quotes. Times are in UTC.

    Parameters
    ----------
    statement
        SQL in DuckDB's dialect. Names are compared regardless of case.
    rows
        Return this many rows at most; None: all.

    Raises
    ------
    InputError
        DuckDB is not installed, the statement is wrong, or it does more than read.
    """
    try:
        duckdb = import_module("duckdb")
    except ImportError:
        raise InputError("sql", None, "needs DuckDB", "install latecomer[sql] (duckdb)") from None
    with tempfile.TemporaryDirectory() as spill:
        settings = {"temp_directory": spill, "python_enable_replacements": "false"}
        with duckdb.connect(":memory:", config=settings) as session:
            session.execute("set TimeZone = 'UTC'; set enable_external_access = false; set lock_configuration = true")
            scans: list[str] = []
            try:
                _define(session, lake, list(_named(session, duckdb, statement)), scans)
                return _first(session.sql(statement).to_arrow_reader(), rows)
            except duckdb.Error as error:
                if (scan := re.search(r"'_scan(\d+)'", str(error))) is not None:
                    error.add_note(f"{scans[int(scan[1])]}: cannot be read")
                    raise
                raise _refusal(lake, str(error)) from None


def _named(session: Any, duckdb: Any, statement: str) -> Iterator[tuple[str, str]]:
    """Yield schema and name of every table that a statement names; an InputError where it does not only read."""
    parts = session.extract_statements(statement)
    if len(parts) != 1:
        problem = "holds no statement" if not parts else f"holds {len(parts)} statements"
        raise InputError("sql", statement, problem, f"write one statement, with {_READS}")
    tree: dict[str, Any] = {"error": True}
    if parts[0].type == duckdb.StatementType.SELECT:
        tree = json.loads(session.execute("select json_serialize_sql(?::varchar)", [statement]).fetchone()[0])
    if tree["error"]:
        remedy = f"write one statement that reads, with {_READS}"
        raise InputError("sql", statement, "is refused: tables of a lake can only be read", remedy)
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict) and node.get("type") == "BASE_TABLE":
            yield node["schema_name"], node["table_name"]
        if isinstance(node, dict) and node.get("type") == "SHOW_REF" and not node.get("query"):
            raise InputError("sql", statement, "lists no table of the lake", "leave the statement out to list them")
        if isinstance(node, dict | list):
            stack.extend(node.values() if isinstance(node, dict) else node)


def _define(session: Any, lake: Lake, named: list[tuple[str, str]], scans: list[str]) -> None:
    """Make a view of every named table of the lake, and append its place to `scans`.

    An InputError where a name is ambiguous.
    """
    by_key: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for area, name in tables(lake):
        for schema in {area, "" if area in BY_NAME else area}:
            by_key.setdefault((schema, fold_case(name)), []).append((area, name))
    for schema in SCHEMAS:
        session.execute(f"create schema {schema}")
    for schema, table in dict.fromkeys((fold_case(schema), fold_case(table)) for schema, table in named):
        stored = by_key.get((schema, table), [])
        if len(stored) > 1:
            problem = f"is ambiguous: {' and '.join('.'.join(place) for place in stored)}"
            raise InputError("sql", table, problem, "say which by its schema; names that differ in case only are one")
        if not stored:
            if schema in SCHEMAS:
                known = sorted(name for area, name in tables(lake) if area == schema)
                raise InputError("sql", f"{schema}.{table}", "is no table of the lake", did_you_mean(table, known))
            continue  # of the statement itself, or DuckDB says what it is not
        [(area, name)] = stored
        scan, view = f"_scan{len(scans)}", f"{schema}.{_quoted(name)}" if schema else _quoted(name)
        session.register(scan, _opened(lake, area, name).to_pyarrow_dataset())
        session.execute(f"create view {view} as select * from {scan}")
        scans.append(lake.table(area, name).uri)


def _opened(lake: Lake, area: str, name: str) -> DeltaTable:
    ingested = area in ("events", "quarantine")
    table = open_ingested(lake, area, name) if ingested else lake.table(area, name).open()
    if table is None:
        raise InputError("sql", f"{area}.{name}", "holds nothing yet", "its first writer is at work; try again")
    return table


def _refusal(lake: Lake, text: str) -> InputError:
    """Return the error of a statement from the text of DuckDB's."""
    unknown = re.search(r"Table with name (.+?) does not exist", text)
    if unknown is not None:
        known = sorted({name for area, name in tables(lake) if area in BY_NAME})
        return InputError("sql", unknown[1], "is no table of the lake", did_you_mean(unknown[1], known))
    problem = " ".join(text.partition("\n\nLINE ")[0].split())
    return InputError("sql", None, problem.rstrip(".!"), "correct the statement")


def _first(reader: pa.RecordBatchReader, rows: int | None) -> pa.Table:
    """Read a table of so many rows at most; None: all."""
    if rows is None:
        return reader.read_all()
    batches, count = [], 0
    while count < rows and (batch := next(reader, None)) is not None:
        batches.append(batch)
        count += batch.num_rows
    return pa.Table.from_batches(batches, reader.schema).slice(0, rows)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
