"""The sources of streams other than files, by what a stream file states."""

from __future__ import annotations

from collections.abc import Callable

from latecomer.ingest.options import IngestOptions
from latecomer.ingest.sources import Source
from latecomer.lake.lake import Lake
from latecomer.specs.streams import DeltaTableSource, StreamSource


def new_content(lake: Lake, options: IngestOptions, progress: Callable[[str], None]) -> Source | None:
    """Return what a stream's table or topic holds beyond the position of the last ingestion; None for nothing.

    Raises
    ------
    InputError
        The table or topic cannot be read, or has lost or changed what was not ingested yet.
    """
    if isinstance(options.source, DeltaTableSource):
        from latecomer.ingest import delta_source

        return delta_source.new_content(lake, options, progress)
    from latecomer.ingest import kafka_source

    return kafka_source.new_content(lake, options, progress)


def needs_spark(source: StreamSource) -> bool:
    """Return whether `new_content` starts Spark, because the source is a table that only Spark's catalog knows."""
    if not isinstance(source, DeltaTableSource):
        return False
    from latecomer.ingest import delta_source

    return delta_source.is_in_catalog(source.table)
