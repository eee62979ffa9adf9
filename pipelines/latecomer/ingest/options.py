"""What a caller of `ingest` decides; apart from it, as reading the files and judging their rows go by it too."""

from __future__ import annotations

from dataclasses import dataclass

DAY_US = 86_400_000_000
EARLIEST_EVENT_US = -2_208_988_800_000_000
"""1900: an earlier event time is taken for a clock that is wrong."""


@dataclass(frozen=True)
class IngestOptions:
    """How landing files are read; exactly one of `stream` and `by`. Bounds in microseconds.

    `time_unit` is what numbers in the two time columns count since 1970, one of
    :data:`latecomer.specs.streams.TIME_UNITS`; `recursive` reads the files in folders of a folder too. A call of which a larger share of a
    stream's rows than `max_quarantined` (0 to 1) cannot be used is refused.
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
