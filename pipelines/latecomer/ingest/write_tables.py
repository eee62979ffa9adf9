"""Write the validated rows of an ingestion: events with their place in the arrival order, and quarantined rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from latecomer.ingest.source_file import LandingFile
from latecomer.lake import crash_points
from latecomer.lake.ingest_log import uncommitted
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_PER_FILE = 1_000_000
"""Rows that are sorted together, and written as one file."""
WRITERS = 4
"""Tables that are written at a time."""
StreamCounts = dict[str, dict[str, int]]
"""Stream -> ``rows``, ``quarantined`` and times that the ingest log keeps."""


@dataclass(frozen=True)
class TableWriter:
    """Writes the tables of one ingestion.

    Attributes
    ----------
    number
        Number of the ingestion.
    start
        Place of its first row in the arrival order.
    files
        Its files, by the numbers that rows have in ``_file``.
    columns_of
        Returns the columns of a stream's table, with the names that they have until it is written.
    """

    lake: Lake
    lease: Lease
    number: int
    start: int
    files: Sequence[LandingFile]
    columns_of: Callable[[str], Mapping[str, str]]

    def write(self, rows: DataFrame, counts: StreamCounts, text_bytes: int, progress: Callable[[str], None]) -> None:
        """Write every table: in the driver where rows are few, since Spark's own commits would take most of the time.

        Parameters
        ----------
        rows
            Validated rows, cached.
        counts
            Their numbers by stream.
        text_bytes
            Bytes of text and binary values that they hold.
        """
        from pyspark.sql import functions as F

        usable = sum(count["rows"] for count in counts.values())
        total = usable + sum(count["quarantined"] for count in counts.values())
        cached, ordered = self._ordered(rows.where(F.col("_problem").isNull()), usable)
        try:
            if total <= tables.DRIVER_LOCAL_ROWS and text_bytes <= tables.DRIVER_LOCAL_BYTES:
                self.write_in_driver(ordered, rows, counts)
                return
            cached.count()
            if usable == total:
                rows.unpersist()
            self._write_in_spark(ordered, rows, counts, progress)
        finally:
            cached.unpersist()

    def write_in_driver(self, ordered: DataFrame, rows: DataFrame, counts: StreamCounts) -> None:
        """Collect all rows, and commit each table from the driver."""
        events = ordered.toArrow()
        for stream in _streams(counts, "rows"):
            columns = self.columns_of(stream)
            of_stream = events.filter(pc.equal(events["_stream"], stream)).select(list(columns.values()))
            of_stream = of_stream.sort_by("seq").rename_columns(list(columns))
            self._append(of_stream, "events", stream)
        if any(count["quarantined"] for count in counts.values()):
            quarantined = self._quarantine_rows(rows, None).toArrow()
            for stream in _streams(counts, "quarantined"):
                of_stream = quarantined.filter(pc.equal(quarantined["_stream"], stream)).drop_columns(["_stream"])
                self._append(of_stream, "quarantine", stream)

    def _write_in_spark(
        self, ordered: DataFrame, rows: DataFrame, counts: StreamCounts, progress: Callable[[str], None]
    ) -> None:
        jobs = [("events", stream) for stream in _streams(counts, "rows")]
        jobs += [("quarantine", stream) for stream in _streams(counts, "quarantined")]

        def write(job: tuple[str, str]) -> None:
            area, stream = job
            of_stream = self._event_rows(ordered, stream) if area == "events" else self._quarantine_rows(rows, stream)
            self._append(of_stream, area, stream)

        with ThreadPoolExecutor(WRITERS) as pool:
            for done, _ in enumerate(pool.map(write, jobs), 1):
                if done % 10 == 0:
                    progress(f"ingest: {done} of {len(jobs)} tables written")

    def _append(self, rows: DataFrame | pa.Table, area: str, stream: str) -> None:
        """Commit rows under the ingestion's number, after commits that do not count are taken back."""
        self.lease.confirm()
        undone = uncommitted(self.lake, self.number)
        tables.append(rows, self.lake.table(area, stream), "ingest", self.number, undone=undone)
        crash_points.point(f"ingest:{area}")

    def _ordered(self, rows: DataFrame, count: int) -> tuple[DataFrame, DataFrame]:
        """Give each row its ``seq``: sort by ranges, number the rows of each, and add the rows of earlier ranges.

        Returns
        -------
        cached, ordered
            The sorted rows, which the caller frees, and the same rows with their ``seq``.
        """
        from pyspark.sql import functions as F

        keys = [F.col("_order").asc_nulls_last(), F.col("_file"), F.col("_row")]
        ranges = max(1, -(-count // ROWS_PER_FILE))
        spread = rows.repartitionByRange(ranges, *keys) if ranges > 1 else rows.coalesce(1)
        cached = spread.sortWithinPartitions(*keys).withColumn("_place", F.monotonically_increasing_id()).persist()
        if ranges == 1:
            return cached, cached.withColumn("seq", F.col("_place") + F.lit(self.start)).drop("_place")
        partition = F.shiftright("_place", 33)  # Spark puts the partition's number there
        sizes = {r["p"]: r["n"] for r in cached.groupBy(partition.alias("p")).agg(F.count("*").alias("n")).collect()}
        offsets, offset = [], self.start
        for number in range(max(sizes, default=-1) + 1):
            offsets.append(offset)
            offset += sizes.get(number, 0)
        before = F.element_at(F.array(*(F.lit(offset) for offset in offsets)), partition.cast("int") + 1)
        inside = F.col("_place").bitwiseAND(F.lit((1 << 33) - 1))
        return cached, cached.withColumn("seq", before + inside).drop("_place")

    def _event_rows(self, ordered: DataFrame, stream: str) -> DataFrame:
        from pyspark.sql import functions as F

        columns = (F.col(quoted(inner)).alias(name) for name, inner in self.columns_of(stream).items())
        return ordered.where(F.col("_stream") == stream).select(*columns)

    def _quarantine_rows(self, rows: DataFrame, stream: str | None) -> DataFrame:
        """Return the quarantined rows of a stream; None: of all streams, with ``_stream``."""
        from pyspark.sql import functions as F

        names = F.create_map(*(F.lit(entry) for i, file in enumerate(self.files) for entry in (i, str(file))))
        quarantined = rows.where(F.col("_problem").isNotNull())
        if stream is not None:
            quarantined = quarantined.where(F.col("_stream") == stream)
        return quarantined.select(
            *(["_stream"] if stream is None else []),
            F.col("_raw").alias("raw"),
            F.element_at(names, F.col("_file")).alias("file"),
            F.col("_line").alias("line"),
            F.col("_problem").alias("reason"),
            F.lit(self.number).cast("bigint").alias("ingest_id"),
        )


def _streams(counts: StreamCounts, name: str) -> list[str]:
    return sorted(stream for stream, count in counts.items() if count[name])
