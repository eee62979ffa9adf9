"""The options of `ingest`, which reading files and validating rows need too."""

from __future__ import annotations

from dataclasses import dataclass

DAY_US = 86_400_000_000
EARLIEST_EVENT_US = -2_208_988_800_000_000
"""1900. An earlier event time is the error of a clock."""


@dataclass(frozen=True)
class IngestOptions:
    """How landing files are read. Exactly one of `stream` and `by` is set.

    Attributes
    ----------
    stream
        The stream of all rows.
    by
        The column that names each row's stream.
    format
        csv, json or parquet; None: as each file's suffix tells.
    event_column, arrival_column
        Columns of event time and arrival time.
    timezone
        The zone of times that name none.
    time_unit
        Unit in which numbers in the two time columns count since 1970, one of
        :data:`latecomer.specs.streams.TIME_UNITS`.
    max_future_us
        Most microseconds by which an event time may lie after its arrival.
    earliest_us
        Earliest time allowed, us since 1970.
    recursive
        Read the files in folders of a folder too.
    max_quarantined
        Largest share (0 to 1) of a stream's rows that may be unusable; a call with more is refused.
    """

    stream: str | None = None
    by: str | None = None
    format: str | None = None
    event_column: str = "event_ts"
    arrival_column: str = "arrival_ts"
    timezone: str = "UTC"
    time_unit: str = "us"
    max_future_us: int = DAY_US
    earliest_us: int = EARLIEST_EVENT_US
    recursive: bool = False
    max_quarantined: float = 1.0
