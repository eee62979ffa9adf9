"""A Delta table as a source: its appended rows come in once, in the order of its versions, whatever the table is."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import committed_seq
from latecomer.lake.lake import Lake
from latecomer.specs.streams import DeltaTableSource

ROOT = Path(__file__).resolve().parents[2]
START = datetime(2024, 5, 1, tzinfo=UTC)


def call(lake, table, on_change="refuse", progress=None, **more):
    """Ingest stream s from a table, as the command does for a stream file that states it."""
    stated = {"source": DeltaTableSource(str(table), on_change), **more}
    return ingest(lake, {"s": []}, IngestOptions(), progress, lambda options: replace(options, **stated))


def stored(lake, *columns):
    rows = lake.table("events", "s").read().sort_by("seq")
    assert rows["seq"].to_pylist() == list(range(rows.num_rows))
    return [tuple(row[name] for name in columns) for row in rows.to_pylist()]


def append(folder, first, count, **more):
    """Append rows v = first, first + 1, ... whose event times fall."""
    numbers = range(first, first + count)
    rows = {"event_ts": [START - timedelta(seconds=v) for v in numbers], "v": pa.array(numbers, pa.int64())}
    write_deltalake(str(folder), pa.table(rows), mode="append", **more)


def test_a_deleted_row_does_not_come_back(lake, tmp_path):
    append(tmp_path / "t", 0, 4)
    DeltaTable(str(tmp_path / "t")).delete("v = 2")
    assert call(lake, tmp_path / "t").rows_ingested == {"s": 3}
    assert stored(lake, "v") == [(0,), (1,), (3,)]
    again = call(lake, tmp_path / "t")
    assert (again.rows_read, committed_seq(lake)) == (0, 3)


def test_any_split_into_calls_stores_the_same(lake, tmp_path):
    """Every set of stops between the versions: appends, an optimisation, a new column, an empty commit."""
    folder = tmp_path / "t"
    steps = [
        lambda: append(folder, 0, 3),
        lambda: append(folder, 3, 2),
        lambda: DeltaTable(str(folder)).optimize.compact(),
        lambda: write_deltalake(
            str(folder),
            pa.table({"event_ts": [START, None], "v": pa.array([5, 6], pa.int64()), "w": ["x", "y"]}),
            mode="append",
            schema_mode="merge",
        ),
    ]
    lakes = {stops: Lake(tmp_path / f"lake{number}") for number, stops in enumerate(product((0, 1), repeat=3))}
    for place, step in enumerate(steps):
        step()
        for stops, target in lakes.items():
            if place == 3 or stops[place]:
                call(target, folder)
    results = [
        (
            stored(target, "event_ts", "arrival_ts", "v", "w"),
            sorted(target.table("quarantine", "s").read(["raw", "file", "line", "reason"]).to_pylist(), key=str),
        )
        for target in lakes.values()
    ]
    assert all(result == results[0] for result in results)
    rows, quarantined = results[0]
    assert [(v, w) for _, _, v, w in rows] == [*((v, None) for v in range(5)), (5, "x")]
    commits = [json.loads(log.read_text().splitlines()[0]) for log in sorted(folder.glob("_delta_log/*.json"))]
    times = [START.fromtimestamp(0, UTC) + timedelta(milliseconds=c["commitInfo"]["timestamp"]) for c in commits]
    assert [row[1] for row in rows] == [times[0]] * 3 + [times[1]] * 2 + [times[3]]
    assert quarantined[0]["file"] == f"{folder}, version 3" and quarantined[0]["line"] == 2
    assert json.loads(quarantined[0]["raw"]) == {"v": 6, "w": "y"}


CHILD = """
import sys
from dataclasses import replace
from tests.support.in_gateway import attach
attach()
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake.lake import Lake
from latecomer.specs.streams import DeltaTableSource
source = DeltaTableSource(sys.argv[2])
ingest(Lake(sys.argv[1]), {"s": []}, IngestOptions(), None, lambda options: replace(options, source=source))
"""


def killed_call(spark, lake, table, point):
    """Make a call in a process that kills itself at a crash point."""
    parameters = spark.sparkContext._gateway.java_parameters
    environment = os.environ | {
        "PYSPARK_GATEWAY_PORT": str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        "LATECOMER_CRASH_AT": point,
    }
    command = [sys.executable, "-c", CHILD, lake.uri, str(table)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]


@pytest.mark.parametrize("has_more", [False, True])
@pytest.mark.parametrize("point", ["ingest:planned", "ingest:events", "ingest:committed"])
def test_killed_anywhere_every_row_comes_once(spark, lake, tmp_path, point, has_more):
    folder = tmp_path / "t"
    append(folder, 0, 2)
    call(lake, folder)
    append(folder, 2, 2)
    killed_call(spark, lake, folder, point)
    if has_more:
        append(folder, 4, 2)
    call(lake, folder)
    assert call(lake, folder).rows_read == 0
    assert stored(lake, "v") == [(v,) for v in range(6 if has_more else 4)]


def test_partition_values_have_the_types_of_their_columns(lake, tmp_path):
    folder = tmp_path / "t"
    rows = {
        "event_ts": [START, START + timedelta(seconds=1), START + timedelta(seconds=2)],
        "v": pa.array([0, 1, 2], pa.int32()),
        "s": ["a b/é:%+", None, "x"],
        "d": [date(2024, 2, 29), date(1969, 12, 31), None],
        "t": pa.array([START + timedelta(microseconds=1), None, START], pa.timestamp("us", "UTC")),
        "m": pa.array([Decimal("1.50"), Decimal("12.05"), None], pa.decimal128(5, 2)),
        "b": [True, None, False],
        "n": pa.array([1 << 40, -1, None], pa.int64()),
        "l": [["p", None], [], None],
        "o": [{"a": 1, "b": None}, None, {"a": None, "b": "z"}],
    }
    table = pa.table(rows)
    write_deltalake(str(folder), table, partition_by=["s", "d", "t", "m", "b", "n"])
    call(lake, folder)
    write_deltalake(str(folder), table, mode="append")
    call(lake, folder)
    read = lake.table("events", "s").read().sort_by([("event_ts", "ascending"), ("seq", "ascending")])
    truth = [row for row in table.to_pylist() for _ in range(2)]
    assert read.select(table.column_names).to_pylist() == truth


def test_a_table_with_arrival_times_is_ordered_by_them(lake, tmp_path):
    times = [START, START - timedelta(hours=2), START - timedelta(hours=1)]
    rows = pa.table({"measured": times, "arrival_ts": times, "v": [0, 1, 2]})
    write_deltalake(str(tmp_path / "t"), rows)
    with pytest.raises(InputError, match=r"'event_ts': no such column; .* \(has: measured, arrival_ts, v\)"):
        call(lake, tmp_path / "t")
    call(lake, tmp_path / "t", event_column="measured")
    assert stored(lake, "arrival_ts", "v") == [(times[v], v) for v in (1, 2, 0)]


def test_a_table_that_changes_while_it_is_a_stream(lake, tmp_path):
    folder, said = tmp_path / "t", []
    append(folder, 0, 2, configuration={"delta.enableChangeDataFeed": "true"})
    call(lake, folder)
    table = DeltaTable(str(folder))
    rows = pa.table({"event_ts": [START, START], "v": pa.array([1, 9], pa.int64())})
    merge = table.merge(rows, "t.v = s.v", source_alias="s", target_alias="t")
    merge.when_matched_update({"event_ts": "s.event_ts"}).when_not_matched_insert_all().execute()
    append(folder, 10, 1)
    with pytest.raises(InputError, match=r"version 1 \(MERGE\)"):
        call(lake, folder)
    other = Lake(tmp_path / "other")
    shutil.copytree(lake.uri, other.uri)
    call(lake, folder, "insert_only", said.append)
    assert stored(lake, "v") == [(0,), (1,), (9,), (10,)]
    call(other, folder, "skip", said.append)
    assert stored(other, "v") == [(0,), (1,), (10,)]
    assert sum("version 1 (MERGE)" in line for line in said) == 2
    last = lake.table("ingest", "committed").read()["positions"].to_pylist()
    assert {json.loads(position)["s"]["version"] for position in last} == {0, 2}


# ---- tables of Spark


def sql(spark, text):
    for statement in text.split(";"):
        if statement.strip():
            spark.sql(statement)


def test_features_of_tables_that_spark_writes(spark, lake, tmp_path):
    """Renamed columns, marks of deleted rows, and generated columns, before and after the first call."""
    place = f"delta.`{tmp_path / 't'}`"
    values = "timestamp'2024-05-01 00:00:0{0}', {0}, named_struct('x', {0}), '{1}'"
    insert = f"insert into {place} (event_ts, old, o, p) values ({{}})"
    sql(
        spark,
        f"""
        create table {place} (event_ts timestamp, old int, o struct<x: int>, p string,
            twice int generated always as (old * 2)) using delta partitioned by (p)
            tblproperties ('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true');
        insert into {place} (event_ts, old, o, p) select /*+ coalesce(1) */ timestamp'2024-05-01 00:00:00', id,
            named_struct('x', cast(id as int)), 'a b' from (select cast(id as int) id from range(0, 4));
        delete from {place} where old = 2;
        alter table {place} rename column o to `in side`;
        alter table {place} rename column `in side`.x to y
        """,
    )
    call(lake, tmp_path / "t")
    assert stored(lake, "old", "twice", "in_side", "p") == [(v, 2 * v, {"y": v}, "a b") for v in (0, 1, 3)]
    insert = insert.replace("o,", "`in side`,")
    spark.sql(insert.format(values.format(5, "b")))
    spark.sql(f"optimize {place}")
    call(lake, tmp_path / "t")
    assert stored(lake, "old", "twice", "in_side", "p")[3:] == [(5, 10, {"y": 5}, "b")]
    spark.sql(insert.format(values.format(6, "c")))
    sql(
        spark,
        f"alter table {place} rename column p to q; {insert.replace(', p)', ', q)').format(values.format(7, 'd'))}",
    )
    call(lake, tmp_path / "t")
    assert stored(lake, "old", "p", "q")[4:] == [(6, "c", None), (7, None, "d")]
    sql(spark, f"delete from {place} where old = 6")
    with pytest.raises(InputError, match=r"version \d+ \(DELETE\)"):
        call(lake, tmp_path / "t")


def test_wider_types_and_columns_by_id(spark, lake, tmp_path):
    place = f"delta.`{tmp_path / 't'}`"
    sql(
        spark,
        f"""
        create table {place} (event_ts timestamp, a int, b int) using delta tblproperties
            ('delta.columnMapping.mode' = 'id', 'delta.enableTypeWidening' = 'true');
        insert into {place} values (timestamp'2024-05-01', 1, 10)
        """,
    )
    source = tmp_path / "t"
    call(lake, source)
    assert stored(lake, "a", "b") == [(1, 10)]
    sql(
        spark,
        f"""
        insert into {place} values (timestamp'2024-05-01', 2, 20);
        alter table {place} alter column a type bigint;
        insert into {place} values (timestamp'2024-05-01', {1 << 40}, 30);
        """,
    )
    other = Lake(tmp_path / "other")
    call(other, source)
    assert stored(other, "a", "b") == [(1, 10), (2, 20), (1 << 40, 30)]


def test_a_table_of_the_catalog(spark, lake):
    spark.sql("create database if not exists bronze")
    try:
        spark.sql("create table bronze.readings using delta as select timestamp'2024-05-01' as event_ts, 1 as v")
        call(lake, "bronze.readings")
        spark.sql("insert into bronze.readings values (timestamp'2024-05-02', 2)")
        call(lake, "spark_catalog.bronze.readings")
        assert stored(lake, "v") == [(1,), (2,)]
        with pytest.raises(InputError, match="is neither a folder nor in Spark's catalog"):
            call(lake, "bronze.missing")
    finally:
        spark.sql("drop database bronze cascade")
