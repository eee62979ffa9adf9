"""Write the validated rows of an ingestion: events with their place in the arrival order, and quarantined rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.ingest import row_counts
from latecomer.ingest.order_ranges import OrderRanges
from latecomer.lake import crash_points
from latecomer.lake.ingest_log import StreamCounts, uncommitted
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WRITERS = 4
"""Tables that are written at a time."""


@dataclass(frozen=True)
class TableWriter:
    """Writes the tables of one ingestion.

    Attributes
    ----------
    number
        Number of the ingestion.
    start
        Place of its first row in the arrival order.
    origins
        The names of its files or other parts, by the numbers that rows have in ``_file``.
    columns_of
        Returns the columns of a stream's table, with the names that they have until it is written.
    """

    lake: Lake
    lease: Lease
    number: int
    start: int
    origins: Sequence[str]
    columns_of: Callable[[str], Mapping[str, str]]

    def write(
        self,
        rows: DataFrame,
        counts: StreamCounts,
        ranges: OrderRanges | None,
        progress: Callable[[str], None],
        collected: pa.Table | None = None,
    ) -> None:
        """Write every table: in the driver where rows are few, since Spark's own commits would take most of the time.

        Parameters
        ----------
        rows
            Validated rows, which are gone through several times.
        counts
            Their numbers by stream.
        ranges
            The ranges of the rows to store; None: they are one.
        collected
            The same rows, if the driver has them.
        """
        from pyspark.sql import functions as F

        usable = sum(count["rows"] for count in counts.values())
        total = usable + sum(count["quarantined"] for count in counts.values())
        if total <= tables.DRIVER_LOCAL_ROWS:
            size = row_counts.text_bytes(rows if collected is None else collected)
            if size <= tables.DRIVER_LOCAL_BYTES:
                self.write_in_driver(rows.toArrow() if collected is None else collected, counts)
                return
        stored = rows.where(F.col("_problem").isNull() & ~F.col("_repeated")).drop("_repeated")
        ordered = (ranges or OrderRanges([], [usable])).with_seq(stored, self.start)
        several = len(_streams(counts, "rows")) > 1
        if several:  # each stream is written by itself
            ordered = ordered.persist()
        try:
            self._write_in_spark(ordered, rows, counts, progress)
        finally:
            if several:
                ordered.unpersist()

    def write_in_driver(self, rows: pa.Table, counts: StreamCounts) -> None:
        """Order rows that were collected, and commit each table from the driver."""
        is_stored = pc.and_(rows["_problem"].is_null(), pc.invert(rows["_repeated"]))
        events = rows.filter(is_stored)
        keys = [(name, "ascending") for name in ("_order", "_file", "_row")]
        events = events.take(pc.sort_indices(events, sort_keys=keys))
        events = events.append_column("seq", pa.array(np.arange(self.start, self.start + events.num_rows)))
        for stream in _streams(counts, "rows"):
            columns = self.columns_of(stream)
            of_stream = events.filter(pc.equal(events["_stream"], stream)).select(list(columns.values()))
            self._append(of_stream.rename_columns(list(columns)), "events", stream)
        quarantined = rows.filter(rows["_problem"].is_valid())
        for stream in _streams(counts, "quarantined"):
            of_stream = quarantined.filter(pc.equal(quarantined["_stream"], stream))
            origins = pa.array(self.origins, pa.string()).take(of_stream["_file"].combine_chunks())
            columns = {
                "raw": of_stream["_raw"],
                "file": origins,
                "line": of_stream["_line"],
                "reason": of_stream["_problem"],
                "ingest_id": pa.repeat(pa.scalar(self.number, pa.int64()), of_stream.num_rows),
            }
            self._append(pa.table(columns), "quarantine", stream)

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

    def _event_rows(self, ordered: DataFrame, stream: str) -> DataFrame:
        from pyspark.sql import functions as F

        columns = (F.col(quoted(inner)).alias(name) for name, inner in self.columns_of(stream).items())
        return ordered.where(F.col("_stream") == stream).select(*columns)

    def _quarantine_rows(self, rows: DataFrame, stream: str) -> DataFrame:
        """Return the quarantined rows of a stream."""
        from pyspark.sql import functions as F

        names = F.create_map(*(F.lit(entry) for i, origin in enumerate(self.origins) for entry in (i, origin)))
        quarantined = rows.where(F.col("_problem").isNotNull() & (F.col("_stream") == stream))
        return quarantined.select(
            F.col("_raw").alias("raw"),
            F.element_at(names, F.col("_file")).alias("file"),
            F.col("_line").alias("line"),
            F.col("_problem").alias("reason"),
            F.lit(self.number).cast("bigint").alias("ingest_id"),
        )


def _streams(counts: StreamCounts, name: str) -> list[str]:
    return sorted(stream for stream, count in counts.items() if count[name])
