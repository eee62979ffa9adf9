"""The same answers by plain Spark and by DuckDB: each reads the stored events of a lake, computes, and writes.

A plain job knows the whole input and nothing of lateness: it has no watermark, no ledger, no late rows to register, and
answers once. So its time is what the same answers cost at least to somebody who writes the query by hand. The join is
bucketed by time, as one would write it for Spark: buckets of the window's length, and each row of the right side in
three of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from latecomer.lake.lake import Lake
from latecomer.spark.engine.session import session
from latecomer.spark.engine.tuning import tune

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_SQL = {
    "join": """
        select l.value as l_value, r.value as r_value, l.event_ts as l_ts, r.event_ts as r_ts
        from (select *, unix_micros(event_ts) div 1000000 as bucket from a) l
        join (select *, explode(array(u - 1, u, u + 1)) as bucket
              from (select *, unix_micros(event_ts) div 1000000 as u from b)) r
        on l.key = r.key and l.bucket = r.bucket
        and abs(unix_micros(l.event_ts) - unix_micros(r.event_ts)) <= 1000000""",
    "aggregate": """
        select w.start as window_start, key, count(*) as n, sum(value) as total, avg(value) as mean
        from (select key, value, window(event_ts, '10 seconds', '2 seconds') as w from a) group by w.start, key""",
    "topk": """
        select * from (
            select w.start as window_start, value, seq,
                   row_number() over (partition by w.start order by value desc, event_ts, seq) as rank
            from (select *, window(event_ts, '10 seconds') as w from a)) where rank <= 5""",
    "membership": """
        select * from (select distinct w.start as window_start, user
                       from (select user, window(event_ts, '10 seconds') as w from a))
        intersect
        select * from (select distinct w.start as window_start, user
                       from (select user, window(event_ts, '10 seconds') as w from b))""",
    "theta_join": """
        select l.value as l_value, r.value as r_value, l.w.start as window_start
        from (select *, window(event_ts, '4 seconds') as w from a) l
        join (select *, window(event_ts, '4 seconds') as w from b) r
        on l.w.start = r.w.start and l.key = r.key and l.value < r.value""",
}
"""A query of each kind over the views `a` and `b` of the streams of that name."""

_START = "time_bucket(interval '{size} seconds', event_ts, timestamptz '1970-01-01 00:00:00+00')"
DUCKDB_SQL = {
    "join": """
        select l.value as l_value, r.value as r_value, l.event_ts as l_ts, r.event_ts as r_ts
        from (select *, epoch_us(event_ts) // 1000000 as bucket from a) l
        join (select *, unnest([u - 1, u, u + 1]) as bucket
              from (select *, epoch_us(event_ts) // 1000000 as u from b)) r
        on l.key = r.key and l.bucket = r.bucket and abs(epoch_us(l.event_ts) - epoch_us(r.event_ts)) <= 1000000""",
    "aggregate": f"""
        select w, key, count(*) as n, sum(value) as total, avg(value) as mean from (
            select key, value, {_START.format(size=2)} - to_seconds(2 * unnest([0, 1, 2, 3, 4])) as w from a)
        group by w, key""",
    "topk": f"""
        select {_START.format(size=10)} as w, value, seq from a
        qualify row_number() over (partition by w order by value desc, event_ts, seq) <= 5""",
    "membership": f"""
        select {_START.format(size=10)} as w, user from a
        intersect
        select {_START.format(size=10)} as w, user from b""",
    "theta_join": f"""
        select l.value as l_value, r.value as r_value, l.w as w
        from (select *, {_START.format(size=4)} as w from a) l join (select *, {_START.format(size=4)} as w from b) r
        on l.w = r.w and l.key = r.key and l.value < r.value""",
}
"""The same queries for DuckDB."""


def spark_job(kind: str, lake: Lake, out: str) -> None:
    """Answer the query of a kind with Spark SQL and write a Delta table to the folder `out`.

    The session has the settings of ours: the same memory, cores and Java options.
    """
    spark: SparkSession = session(lake)
    tune(spark, 1 << 40)
    for stream in ("a", "b"):
        spark.read.format("delta").load(lake.table("events", stream).spark_path).createOrReplaceTempView(stream)
    spark.sql(SPARK_SQL[kind]).write.format("delta").mode("overwrite").save(out)


def duckdb_job(kind: str, lake: Lake, out: str) -> int:
    """Answer the query of a kind with DuckDB, write a Parquet file to `out`, and return the number of answers.

    DuckDB has as many threads as the machine has cores.
    """
    import duckdb
    from deltalake import DeltaTable

    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        for stream in ("a", "b"):
            files = DeltaTable(lake.table("events", stream).uri).file_uris()
            connection.read_parquet(files).create_view(stream)
        (answers,) = connection.execute(f"copy ({DUCKDB_SQL[kind]}) to '{out}' (format parquet)").fetchall()[0]
        return int(answers)
