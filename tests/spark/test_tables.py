"""Stored events through Spark: the rows inside bounds, whichever way they are read, and code that is generated once."""

import itertools
import os
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake.lake import Lake
from latecomer.spark.engine import tables
from latecomer.spark.engine.tuning import tune
from pyspark.sql import functions as F

from tests.support import events

START_US = 1_700_000_000_000_000


def many_files(lake, folder, rows=600):
    """Three files whose event times overlap by microseconds; ``seq`` and event time of all rows."""
    time = np.arange(rows) * 371 + START_US
    time[::3] -= 40_123
    for number, part in enumerate(np.array_split(time, 3)):
        place = folder / f"{number}"
        place.mkdir()
        ingest(lake, [events.write(pa.table({"event_ts": part}), place / "in.parquet")], IngestOptions(stream="a"))
    return np.arange(rows), time


@pytest.mark.parametrize("how", ["few", "wide", "files", "delta"])
def test_events_inside_bounds(spark, lake, tmp_path, monkeypatch, how):
    """Statistics of event times are cut to milliseconds: rows in between must not be missed."""
    seq, time = many_files(lake, tmp_path)
    monkeypatch.setattr(tables, "MOST_FILES", 0 if how == "delta" else 32)
    monkeypatch.setattr(tables, "DRIVER_LOCAL_BYTES", 5_000 if how == "wide" else 256 << 20)
    tune(spark, 1 if how in ("few", "wide") else 1 << 40)
    rng = np.random.default_rng(4)
    bounds = [(0, 600, None, None), (590, 999, None, None), (600, 700, None, None), (None, None, int(time.max()), None)]
    edges = [int(time[at]) + step for at in (0, 200, 599) for step in (0, 1)]
    bounds += [(None, 400, low, None) for low in edges] + [(200, None, None, high) for high in edges]
    bounds += [(None, None, *sorted(rng.integers(time.min(), time.max(), 2).tolist())) for _ in range(3)]
    for first, end, low, high in bounds:
        found = tables.events(spark, lake, "a", seq_from=first, seq_to=end, low_us=low, high_us=high).toArrow()
        wanted = (seq >= (first or 0)) & (seq < (end or 600)) & (time >= (low or 0)) & (time <= (high or 1 << 60))
        assert sorted(found["seq"].to_pylist()) == seq[wanted].tolist(), (first, end, low, high)
        assert found.column_names == ["seq", "event_ts", "arrival_ts"]
    assert tables.no_events(spark, lake, "a").dtypes == tables.read(spark, lake.table("events", "a")).dtypes


def test_results_wider_than_the_driver_may_take_are_written_by_spark(lake, tmp_path):
    """Few, and here of two kilobytes each; of 1 GB by itself, Spark's ``spark.driver.maxResultSize`` is 1 MB here."""
    rows = 700
    table = pa.table({"event_ts": np.arange(rows) * 1_000_000, "k": np.arange(rows), "text": ["x" * 2_000] * rows})
    for stream in ("a", "b"):
        ingest(lake, [events.write(table, tmp_path / f"{stream}.parquet")], IngestOptions(stream=stream))
    query = tmp_path / "wide.yaml"
    query.write_text(
        "name: wide\nkind: join\nstreams: {l: a, r: b}\nkeys: [k]\nwindow: 1 s\n"
        "select: [l.text, r.text as other]\nstrategy: exact\n"
    )
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.maxResultSize 1m\n")
    done = subprocess.run(
        [sys.executable, "-m", "latecomer.jobs.cli", "run", str(query), "--lake", str(lake.uri), "--flush"],
        env=os.environ | {"SPARK_CONF_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = lake.table("on_time", "wide").read()
    assert found.num_rows == rows
    assert set(found["other"].to_pylist()) == {"x" * 2_000}


def test_a_place_whose_name_looks_like_a_pattern(spark, tmp_path):
    lake = Lake(tmp_path / "a lake {x} *")
    seq, _ = many_files(lake, tmp_path)
    tune(spark, 1 << 40)
    assert sorted(tables.events(spark, lake, "a", seq_from=7).toArrow()["seq"].to_pylist()) == seq[7:].tolist()


def test_what_only_delta_can_read_is_read_by_delta(spark, lake, tmp_path):
    seq, _ = many_files(lake, tmp_path)
    place = f"delta.`{lake.table('events', 'a').spark_path}`"
    spark.sql(f"alter table {place} set tblproperties ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"delete from {place} where seq % 10 = 3")
    tune(spark, 1 << 40)
    found = tables.events(spark, lake, "a", seq_from=0, seq_to=600).toArrow()
    assert sorted(found["seq"].to_pylist()) == seq[seq % 10 != 3].tolist()


def generated(rows):
    """Source code that Spark generates for a plan."""
    found = rows._jdf.queryExecution().debug().codegenToSeq()
    return [found.apply(at)._2() for at in range(found.size())]


def test_bounds_are_constants_only_of_code_that_is_next_to_the_scan(spark, lake, tmp_path):
    """Else each micro-batch would compile, and warm up, all that is done with its rows."""
    many_files(lake, tmp_path)
    tune(spark, 1 << 40)
    spark.conf.set("spark.sql.adaptive.enabled", "false")

    def counted(first, cut):
        rows = tables.events(spark, lake, "a", seq_from=first, seq_to=first + 100)
        return cut(rows).groupBy((F.unix_micros("event_ts") % 7).alias("k")).agg(F.sum("seq"), F.count("*"))

    one, other = (generated(counted(first, tables.codegen_barrier)) for first in (0, 137))
    assert sum(a != b for a, b in zip(one, other, strict=True)) == 1
    assert all("doAggregate" not in a for a, b in zip(one, other, strict=True) if a != b)
    fused, moved = (generated(counted(first, lambda rows: rows)) for first in (0, 137))
    assert any("doAggregate" in a for a, b in zip(fused, moved, strict=True) if a != b), "why it is done"
    found = counted(137, tables.codegen_barrier).collect()
    assert sum(row[2] for row in found) == 100 and sum(row[1] for row in found) == sum(range(137, 237))
    assert tables.codegen_barrier(spark.range(0, 100, 1, 5)).rdd.getNumPartitions() == 5
    tune(spark, 1 << 40)


def test_an_expression_over_distinct_rows_is_that_over_all(spark):
    """Nulls, NaN, both zeros, decimals, times; one column, several, none."""
    rng, rows = np.random.default_rng(8), 3_000
    doubles = np.array([0.0, -0.0, np.nan, 1.5, -7.25])
    columns = {
        "a": pa.array([None if i == 3 else f"é{i}" for i in rng.integers(0, 9, rows)]),
        "b c": pa.array(doubles[rng.integers(0, 5, rows)]),
        "d": pa.array([None, Decimal("1.50"), Decimal("-2.25")]).take(pa.array(rng.integers(0, 3, rows))),
        "e": pa.array(rng.integers(0, 50, rows) * 1_000_003).cast(pa.timestamp("us", tz="UTC")),
        "f": pa.array(rng.integers(0, 1 << 40, rows)),
        "g": pa.array(rng.random(rows) < 0.5),
    }
    for tuned in (1, 1 << 40):
        tune(spark, tuned)
        for names in (["a"], ["b c"], ["f"], ["a", "b c", "g"], list(columns)):
            table = pa.table({name: columns[name] for name in names})
            sql = f"pmod(xxhash64({', '.join(f'`{name}`' for name in names)}), 7)"
            wanted = spark.createDataFrame(table).selectExpr(f"{sql} as x").toArrow()["x"].to_numpy()
            found = tables.evaluate(spark, pa.concat_tables([table.slice(0, 1000), table.slice(1000)]), sql)
            assert found.dtype == np.int32 and np.array_equal(found, wanted), names
    assert len(tables.evaluate(spark, table.slice(0, 0), sql)) == 0


@pytest.mark.parametrize("sizes", [(2, 0, 0, 3), (0, 0, 3, 0, 2), (0, 0, 0), (0, 3), (1,) * 40])
def test_all_chunks_are_handed_over(spark, sizes):
    """Spark stops at two empty chunks."""
    ends = np.cumsum((0, *sizes)).tolist()
    chunks = [pa.table({"seq": pa.array(range(low, high), pa.int64())}) for low, high in itertools.pairwise(ends)]
    found = tables.to_spark(spark, pa.concat_tables(chunks)).toArrow()
    assert sorted(found["seq"].to_pylist()) == list(range(sum(sizes)))


def test_no_rows_are_handed_over_whatever_their_columns(spark):
    shape = pa.schema([("seq", pa.int64()), ("tags", pa.list_(pa.string())), ("at", pa.timestamp("us", "UTC"))])
    found = tables.to_spark(spark, pa.Table.from_batches([], shape))
    assert found.count() == 0 and [kind for _, kind in found.dtypes] == ["bigint", "array<string>", "timestamp"]


def test_rows_of_an_old_file_before_files_without_a_match(spark, lake, tmp_path):
    """Files whose event times span decades are not ruled out by statistics, and have none of the rows."""
    for day in range(5):
        place = tmp_path / str(day)
        place.mkdir()
        times = [START_US + day * 86_400_000_000, 946_684_800_000_000 if day else START_US]
        ingest(lake, [events.write(pa.table({"event_ts": times}), place / "in.parquet")], IngestOptions(stream="a"))
    tune(spark, 1)
    found = tables.events(spark, lake, "a", low_us=START_US, high_us=START_US + 1).toArrow()
    assert sorted(found["seq"].to_pylist()) == [0, 1]
