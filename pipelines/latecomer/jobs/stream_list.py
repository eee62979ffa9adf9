"""`streams`: what a lake has of each stream, from its log and its tables' schemas. It starts no Spark."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypedDict

from latecomer.ingest.values.arrow_types import spark_type
from latecomer.jobs import formatting
from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import by_stream, columns, inferred_types, lateness
from latecomer.lake.lake import Lake
from latecomer.specs.errors import did_you_mean, quantity
from latecomer.specs.expressions import ALWAYS_THERE


class Stream(TypedDict):
    """A stream of a lake.

    ``columns`` has the types of the payload columns, ``inferred`` those among them whose types their values told, with
    a text about values that contradict, else an empty text; ``lateness`` the numbers of rows by lateness, as
    :data:`latecomer.core.time.LATENESS_BOUNDS_US` bounds it; ``last_event`` and ``last_arrival`` are ISO 8601.
    """

    name: str
    rows: int
    quarantined: int
    repeated: int
    last_event: str | None
    last_arrival: str | None
    columns: dict[str, str]
    inferred: dict[str, str]
    lateness: list[int]


def list_streams(lake: Lake, only: Collection[str] = ()) -> list[Stream]:
    """Return the streams of a lake, or those named in `only`, sorted by name.

    Raises
    ------
    InputError
        A name in `only` is no stream of the lake.
    """
    counts, late, told = by_stream(lake), lateness(lake), inferred_types(lake)
    wrong = next((name for name in only if name not in counts), None)
    if wrong is not None:
        raise InputError("streams", wrong, "is no stream of the lake", did_you_mean(wrong, sorted(counts)))
    kinds = {
        name: {item.name: spark_type(item.type) for item in columns(lake, name) if item.name not in ALWAYS_THERE}
        for name in sorted(counts)
        if not only or name in only
    }
    return [
        Stream(
            name=name,
            rows=count["rows"],
            quarantined=count["quarantined"],
            repeated=count["duplicates"],
            last_event=_instant(count.get("event_to")),
            last_arrival=_instant(count.get("arrived_to")),
            columns=of_stream,
            inferred={
                column: why for column, (kind, why) in told.get(name, {}).items() if of_stream.get(column) == kind
            },
            lateness=late.get(name, []),
        )
        for name, of_stream in kinds.items()
        for count in [counts[name]]
    ]


def _instant(time_us: int | None) -> str | None:
    return None if time_us is None else formatting.instant(time_us)


def show(streams: list[Stream]) -> str:
    """Return the streams as text for a terminal."""
    if not streams:
        return "no stream was ingested into this lake"
    lines = []
    for stream in streams:
        last = f", last event {stream['last_event']}" if stream["last_event"] else ""
        lines.append(
            f"{stream['name']}: {quantity(stream['rows'], 'row')}, {stream['quarantined']:,} in quarantine, "
            f"{stream['repeated']:,} repeated{last}"
        )
        for name, kind in stream["columns"].items():
            why = stream["inferred"].get(name)
            lines.append(f"  {name}: {kind}" + ("" if why is None else f" (inferred{why and f': {why}'})"))
        lines += formatting.lateness(stream["lateness"])
    return "\n".join(lines)
