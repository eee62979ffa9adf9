"""Read what ingestions have committed, without a JVM: the arrival order, events, quarantine, counts per stream."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from latecomer.lake.lake import Lake

_TEXTS = pa.list_(pa.string())
COMMITTED = pa.schema(
    {
        **dict.fromkeys(("number", "seq_from", "seq_to"), pa.int64()),
        "counts": pa.string(),
        **dict.fromkeys(("digests", "files", "looks"), _TEXTS),
        "positions": pa.string(),
    }
)
"""The columns of the ingest log. A call without files has no value from which the type of their names would follow."""
StreamCounts = dict[str, dict[str, int]]
"""Stream -> numbers of rows (``read``, ``rows``, ``quarantined``, ``duplicates``) and times that the log keeps."""


def committed_seq(lake: Lake, last: int | None = None) -> int:
    """Return the next place in the arrival order: every arrival below it is complete. 0 for an empty lake.

    With `last`, return the place after the rows of ingestions up to that number.
    """
    committed = None if last is None else pc.field("number") <= last
    rows = lake.table("ingest", "committed").read(columns=["seq_to"], filter=committed)
    return 0 if rows is None or rows.num_rows == 0 else int(pc.max(rows["seq_to"]).as_py())


def last_committed(lake: Lake) -> int:
    """Return the number of the last ingestion that was committed; -1 where none was."""
    done = lake.table("ingest", "committed").last_version("ingest")
    return -1 if done is None else done


def is_committed(lake: Lake, number: int) -> bool:
    """Return whether that ingestion was committed: not while it is at work, nor once it was taken back."""
    if number not in lake.known_ingestions:  # a committed ingestion stays committed
        rows = lake.table("ingest", "committed").read(columns=["number"])
        lake.known_ingestions.update([] if rows is None else rows["number"].to_pylist())
    return number in lake.known_ingestions


def uncommitted(lake: Lake, current: int | None = None) -> Callable[[int], bool]:
    """Return a predicate over numbers of ingestions: their commits do not count.

    They were never committed, and they are not the `current` ingestion, which is at work.
    """
    return lambda number: number != current and not is_committed(lake, number)


def open_ingested(lake: Lake, area: str, stream: str) -> DeltaTable | None:
    """Open a stream's table in ``events`` or ``quarantine`` as ingestions have committed it; None where none has.

    Commits count by the numbers of their ingestions, not by their order: a writer that slept may have committed an
    ingestion that another process had taken back and followed by one of its own.
    """
    table = lake.table(area, stream).open()
    if table is None:
        return None
    return lake.table(area, stream).before(table, "ingest", uncommitted(lake))


def open_events(lake: Lake, stream: str) -> DeltaTable | None:
    """Open a stream's events as ingestions have committed them; None where none has.

    An ingestion that is under way, or was killed, may be taken back: its rows are beyond :func:`committed_seq`, and its
    columns and their types do not belong to the stream yet. A :meth:`~latecomer.lake.lake.Lake.snapshot` returns the
    table that it opened first.
    """
    if lake.opened_events is None:
        return open_ingested(lake, "events", stream)
    if stream not in lake.opened_events:
        lake.opened_events[stream] = open_ingested(lake, "events", stream)
    return lake.opened_events[stream]


def read_quarantine(lake: Lake, stream: str, last: int) -> pa.Table | None:
    """Read the stream's quarantined rows of committed ingestions up to number `last`.

    None where there never was one.
    """
    table = open_ingested(lake, "quarantine", stream)
    if table is None:
        return None
    with lake.table("quarantine", stream).naming_errors():
        return table.to_pyarrow_dataset().to_table(filter=pc.field("ingest_id") <= last)


def count_quarantine(lake: Lake, stream: str, last: int) -> int:
    """Count the rows that `read_quarantine` returns."""
    table = open_ingested(lake, "quarantine", stream)
    if table is None:
        return 0
    with lake.table("quarantine", stream).naming_errors():
        return int(table.to_pyarrow_dataset().count_rows(filter=pc.field("ingest_id") <= last))


def columns(lake: Lake, stream: str) -> pa.Schema:
    """Return the stream's columns; none where no row of it was ingested."""
    table = open_events(lake, stream)
    return pa.schema([]) if table is None else table.to_pyarrow_dataset().schema


def streams(lake: Lake) -> list[str]:
    """Return the names of the streams of which a row was ingested, sorted."""
    return [stream for stream in lake.names("events") if open_events(lake, stream) is not None]


def _counted(lake: Lake, last: int | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what each ingestion counted of each stream, in the order of ingestions; of those up to number `last`."""
    committed = None if last is None else pc.field("number") <= last
    rows = lake.table("ingest", "committed").read(columns=["number", "counts"], filter=committed)
    for text in [] if rows is None else rows.sort_by("number")["counts"].to_pylist():
        yield from json.loads(text).items()


_SUMS, _LATEST = ("read", "rows", "quarantined", "duplicates"), ("arrived_to", "event_to")


def by_stream(lake: Lake, last: int | None = None) -> dict[str, dict[str, int]]:
    """Return what ingestions counted of each stream: all of them, or those up to number `last`.

    Returns
    -------
    dict of stream to counts
        ``read``, ``rows``, ``quarantined`` and ``duplicates``, the rows that were read, stored, put in quarantine, and
        left out since they repeat an event; ``arrived_to``, the arrival time of the last row, and ``event_to``, the
        latest event time, both in us. ``arrived_to`` is missing where rows have no arrival time, ``event_to`` where an
        earlier version ingested them.
    """
    totals: dict[str, dict[str, int]] = {}
    for stream, counts in _counted(lake, last):
        total = totals.setdefault(stream, dict.fromkeys(_SUMS, 0))
        earlier = {"read": counts.get("rows", 0) + counts.get("quarantined", 0)}  # what was not counted then
        for key in _SUMS:
            total[key] += counts.get(key, earlier.get(key, 0))
        for key in counts.keys() & set(_LATEST):
            total[key] = max(counts[key], total.get(key, counts[key]))
    return totals


def stream_totals(lake: Lake, last: int | None = None) -> dict[str, dict[str, int]]:
    """Return ``rows`` and ``quarantined`` per stream, of all ingestions or of those up to number `last`."""
    names = ("rows", "quarantined")
    return {stream: {name: counts[name] for name in names} for stream, counts in by_stream(lake, last).items()}


def last_arrivals(lake: Lake) -> dict[str, int]:
    """Return the arrival time (us) of each stream's last row; without streams whose rows have none."""
    return _latest(lake, "arrived_to")


def last_events(lake: Lake) -> dict[str, int]:
    """Return the latest event time (us) of each stream; without streams that an earlier version alone ingested."""
    return _latest(lake, "event_to")


def _latest(lake: Lake, key: str) -> dict[str, int]:
    return {stream: counts[key] for stream, counts in by_stream(lake).items() if key in counts}


def quarantined(lake: Lake, streams: Iterable[str], last: int | None = None) -> int:
    """Sum the rows of these streams that ingestions (up to number `last`) counted as quarantined."""
    totals = stream_totals(lake, last)
    return sum(totals[stream]["quarantined"] for stream in set(streams) & totals.keys())


def among_ingested(lake: Lake, column: str, candidates: Iterable[str]) -> set[str]:
    """Return the candidates that are marks of ingested files.

    Parameters
    ----------
    column
        ``digests``, of the contents of files, or ``looks``, their stat fingerprints (which earlier versions did not
        keep).
    """
    sought = pa.array(sorted(set(candidates)), pa.string())
    rows = lake.table("ingest", "committed").read_known((column,)) if len(sought) else None
    if rows is None or column not in rows.column_names:
        return set()
    marks = pc.list_flatten(rows[column])
    return set(marks.filter(pc.is_in(marks, sought)).to_pylist())


def streams_of(lake: Lake, places: Iterable[str]) -> dict[str, set[str]]:
    """Return the streams into which the files at these places were ingested."""
    rows = lake.table("ingest", "committed").read_known(("files", "counts"))
    streams: dict[str, set[str]] = {}
    if rows is None:
        return streams
    files = rows["files"].combine_chunks()
    place, call = pc.list_flatten(files), pc.list_parent_indices(files)
    sought = pc.is_in(place, pa.array(sorted(set(places)), pa.string()))
    place, call = place.filter(sought), call.filter(sought)
    calls = pc.unique(call)
    counts = dict(zip(calls.to_pylist(), map(json.loads, rows["counts"].take(calls).to_pylist()), strict=True))
    for name, number in zip(place.to_pylist(), call.to_pylist(), strict=True):
        streams.setdefault(name, set()).update(counts[number])
    return streams


def last_position(lake: Lake, stream: str) -> dict[str, object] | None:
    """Return the place at which the next ingestion of a stream's table or topic goes on; None at first."""
    rows = lake.table("ingest", "committed").read_known(("number", "positions"))
    if rows is None or "positions" not in rows.column_names:
        return None
    positions = rows.sort_by([("number", "descending")])["positions"]
    of_stream = (json.loads(text).get(stream) for text in positions.to_pylist() if text is not None)
    return next((position for position in of_stream if position is not None), None)


def max_ages(lake: Lake) -> dict[str, int]:
    """Return the most microseconds from event to arrival that were derived for streams, by stream."""
    ages: dict[str, int] = {}
    for stream, counts in _counted(lake):
        if "max_age_us" in counts:
            ages.setdefault(stream, counts["max_age_us"])
    return ages


def lateness(lake: Lake) -> dict[str, list[int]]:
    """Return the numbers of rows by lateness, by stream; without streams whose rows have no arrival times."""
    bins: dict[str, list[int]] = {}
    for stream, counts in _counted(lake):
        if more := counts.get("lateness"):
            known = bins.get(stream, [0] * len(more))
            bins[stream] = [a + b for a, b in zip(known, more, strict=True)]
    return bins


def inferred_types(lake: Lake) -> dict[str, dict[str, list[str]]]:
    """Return the columns whose types followed from values, by stream and column.

    Each has the type, and a text that says why it is text although many of its values are not, else an empty text.
    Earlier versions did not keep them.
    """
    inferred: dict[str, dict[str, list[str]]] = {}
    for stream, counts in _counted(lake):
        inferred.setdefault(stream, {}).update(counts.get("inferred", {}))
    return inferred


def quarantine_reasons(lake: Lake, streams: Iterable[str], last: int | None = None) -> dict[str, int]:
    """Return the rows that ingestions (up to number `last`) put into quarantine by reason, the most frequent first.

    Earlier versions did not keep the reasons.
    """
    of_query = set(streams)
    return add_reasons(c.get("reasons", {}) for stream, c in _counted(lake, last) if stream in of_query)


def add_reasons(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add the numbers of rows by reason; the most frequent reason comes first."""
    total: Counter[str] = Counter()
    for reasons in parts:
        total.update(reasons)
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
