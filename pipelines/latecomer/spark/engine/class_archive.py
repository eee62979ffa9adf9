"""Run Spark once through what jobs do, so that the JVM can archive the classes it loaded.

``latecomer jars fetch`` runs it with ``-XX:ArchiveClassesAtExit=FILE`` in ``LATECOMER_JAVA_OPTIONS``.
"""

from __future__ import annotations

import tempfile

import pyarrow as pa

from latecomer.lake.lake import Lake
from latecomer.spark.engine import session as sessions
from latecomer.spark.engine import tables


def main() -> None:
    """Append, read, join, window, group and collect."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder)
        spark = sessions.session(lake)
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        for version in range(3):
            rows = spark.range(1000).selectExpr("id", "id % 7 k", "timestamp_micros(id) ts", "cast(id as string) s")
            tables.append(rows, lake.table("on_time", "warm"), "warm", version)
        rows = tables.read(spark, lake.table("on_time", "warm")).where("ts > timestamp'1970-01-01'")
        running = rows.withColumn("m", F.max("id").over(Window.partitionBy("k").orderBy("id"))).persist()
        running.groupingSets([["k", "s"], ["k"]], "k", "s").agg(F.count("*"), F.max("m")).toArrow()
        small = tables.to_spark(spark, pa.table({"k": [1, 2]}))
        joined = running.join(F.broadcast(small), "k").join(rows.select("id", F.col("s").alias("t")), "id")
        tables.append(joined.select("id", "t"), lake.table("corrections", "warm"), "warm", 0)
        source = f"{folder}/in.parquet"
        rows.coalesce(1).write.parquet(source)
        read = spark.read.parquet(source).select("*", "_metadata.row_index", F.to_json(F.struct("id")).alias("j"))
        read.repartitionByRange(2, "id").sortWithinPartitions("id").selectExpr("try_cast(s as bigint)").toArrow()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends with its standard input, and archives as it ends
        gateway.proc.wait(timeout=120)


if __name__ == "__main__":
    main()
