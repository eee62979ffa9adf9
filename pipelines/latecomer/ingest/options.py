"""The options of `ingest`, which reading files and validating rows need too."""

from __future__ import annotations

from dataclasses import dataclass, field

from latecomer.specs.streams import StreamSource, TextLayout

DAY_US = 86_400_000_000
EARLIEST_EVENT_US = -2_208_988_800_000_000
"""1900. An earlier event time is the error of a clock."""


@dataclass(frozen=True)
class IngestOptions:
    """The contract of a stream: where its rows come from, how they are read, and which are believed.

    Exactly one of `stream` and `by` is set.

    Attributes
    ----------
    stream
        The stream of all rows.
    by
        The column that names each row's stream.
    source
        The table or topic that the rows come from; None: files.
    format
        csv, json or parquet; None: as each file's suffix tells.
    layout
        How text files are written.
    event_column, arrival_column
        Columns of event time and arrival time.
    event_clock_column
        The column with the time of day, where `event_column` holds the date alone.
    timezone
        The zone of times that name none.
    timezone_stated
        Whether somebody stated that zone.
    time_unit
        Unit in which numbers in the two time columns count since 1970, one of
        :data:`latecomer.specs.streams.TIME_UNITS`.
    time_format
        How text in the two time columns is written, with the letters of C's strptime; None: as ISO 8601 has it.
    max_future_us
        Most microseconds by which an event time may lie after its arrival.
    max_age_us
        Most microseconds by which an arrival may lie after its event time; None: derived from the stream's lateness.
    earliest_us
        Earliest time allowed, us since 1970.
    recursive
        Read the files in folders of a folder too.
    max_quarantined
        Largest share (0 to 1) of a stream's rows that may be unusable; a call with more is refused.
    columns
        Declared columns with Spark's names of their types.
    strict
        Refuse columns that are not declared.
    key
        Columns whose equal values, at most `within_us` of event time apart, tell that two rows are one event; empty:
        every row is an event.
    within_us
        Most microseconds of event time between two rows of one event; None is allowed where the event time is part of
        the key.
    on_duplicate
        ``first``: the first row in the arrival order stays, and later ones are counted; ``quarantine``: they are kept
        there too.
    """

    stream: str | None = None
    by: str | None = None
    source: StreamSource | None = None
    format: str | None = None
    layout: TextLayout = field(default_factory=TextLayout)
    event_column: str = "event_ts"
    event_clock_column: str | None = None
    arrival_column: str = "arrival_ts"
    timezone: str = "UTC"
    timezone_stated: bool = False
    time_unit: str = "us"
    time_format: str | None = None
    max_future_us: int = DAY_US
    max_age_us: int | None = None
    earliest_us: int = EARLIEST_EVENT_US
    recursive: bool = False
    max_quarantined: float = 1.0
    columns: tuple[tuple[str, str], ...] = ()
    strict: bool = False
    key: tuple[str, ...] = ()
    within_us: int | None = None
    on_duplicate: str = "first"
