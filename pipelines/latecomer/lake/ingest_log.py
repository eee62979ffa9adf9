"""What ingestions have committed, read without a JVM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from latecomer.lake.lake import Lake


def committed_seq(lake: Lake) -> int:
    """Next place in the arrival order: every arrival below it is complete. 0 for an empty lake."""
    rows = lake.table("ingest", "committed").read(columns=["seq_to"])
    return 0 if rows is None or rows.num_rows == 0 else int(pc.max(rows["seq_to"]).as_py())


def last_committed(lake: Lake) -> int:
    """Number of the last ingestion that was committed; -1 where none was."""
    done = lake.table("ingest", "committed").last_version("ingest")
    return -1 if done is None else done


def is_committed(lake: Lake, number: int) -> bool:
    """Was the ingestion of that number committed? Not where it is under way, or was taken back."""
    if number not in lake.known_ingestions:  # what was committed once stays so
        rows = lake.table("ingest", "committed").read(columns=["number"])
        lake.known_ingestions.update([] if rows is None else rows["number"].to_pylist())
    return number in lake.known_ingestions


def undone(lake: Lake, but: int | None = None) -> Callable[[int], bool]:
    """Of numbers of ingestions, those whose commits do not count: they were never committed, nor are they the one that is at work (`but`)."""
    return lambda number: number != but and not is_committed(lake, number)


def open_ingested(lake: Lake, area: str, stream: str) -> DeltaTable | None:
    """A stream's table, of ``events`` or ``quarantine``, as ingestions have committed it; None where none has.

    By their numbers, not by the order of these: a writer that was asleep may have committed to a table what another has taken back
    and followed by an ingestion of its own.
    """
    table = lake.table(area, stream).open()
    if table is None:
        return None
    return lake.table(area, stream).before(table, "ingest", undone(lake))


def open_events(lake: Lake, stream: str) -> DeltaTable | None:
    """The stream's events, as `open_ingested`.

    An ingestion that is under way, or was killed, may be taken back: its rows are beyond :func:`committed_seq`, and its columns and their
    types are not the stream's yet. A lake that is :meth:`~latecomer.lake.lake.Lake.snapshot` it gives the one it opened first.
    """
    if lake.opened_events is None:
        return open_ingested(lake, "events", stream)
    if stream not in lake.opened_events:
        lake.opened_events[stream] = open_ingested(lake, "events", stream)
    return lake.opened_events[stream]


def kept_out(lake: Lake, stream: str, last: int) -> pa.Table | None:
    """The stream's rows in quarantine, of committed ingestions up to number `last`; None where none ever was."""
    table = open_ingested(lake, "quarantine", stream)
    if table is None:
        return None
    with lake.table("quarantine", stream).naming_errors():
        return table.to_pyarrow_dataset().to_table(filter=pc.field("ingest_id") <= last)


def count_kept_out(lake: Lake, stream: str, last: int) -> int:
    """How many rows `kept_out` has."""
    table = open_ingested(lake, "quarantine", stream)
    if table is None:
        return 0
    with lake.table("quarantine", stream).naming_errors():
        return int(table.to_pyarrow_dataset().count_rows(filter=pc.field("ingest_id") <= last))


def columns(lake: Lake, stream: str) -> pa.Schema:
    """The stream's columns; none where no row of it was ingested."""
    table = open_events(lake, stream)
    return pa.schema([]) if table is None else table.to_pyarrow_dataset().schema


def streams(lake: Lake) -> list[str]:
    """Streams of which a row was ingested, sorted."""
    return [stream for stream in lake.names("events") if open_events(lake, stream) is not None]


_SUMS, _LATEST = ("rows", "quarantined"), ("arrived_to", "event_to")


def by_stream(lake: Lake, last: int | None = None) -> dict[str, dict[str, int]]:
    """What all ingestions, or those up to number `last`, counted of each stream.

    ``rows`` and ``quarantined``; ``arrived_to``, when the last row arrived, and ``event_to``, the latest event time, us, where rows say so
    (earlier versions noted no ``event_to``).
    """
    committed = None if last is None else pc.field("number") <= last
    rows = lake.table("ingest", "committed").read(columns=["counts"], filter=committed)
    found: dict[str, dict[str, int]] = {}
    for text in [] if rows is None else rows["counts"].to_pylist():
        for stream, counts in json.loads(text).items():
            all_of_it = found.setdefault(stream, dict.fromkeys(_SUMS, 0))
            for key in _SUMS:
                all_of_it[key] += counts.get(key, 0)
            for key in counts.keys() & set(_LATEST):
                all_of_it[key] = max(counts[key], all_of_it.get(key, counts[key]))
    return found


def stream_totals(lake: Lake, last: int | None = None) -> dict[str, dict[str, int]]:
    """Rows and quarantined rows per stream, of all ingestions or those up to number `last`."""
    return {stream: {key: each[key] for key in _SUMS} for stream, each in by_stream(lake, last).items()}


def last_arrivals(lake: Lake) -> dict[str, int]:
    """When the last row of each stream arrived, us; without those whose rows say nothing of it."""
    return _noted(lake, "arrived_to")


def last_events(lake: Lake) -> dict[str, int]:
    """Latest event time of each stream, us; without those of which an earlier version noted none."""
    return _noted(lake, "event_to")


def _noted(lake: Lake, key: str) -> dict[str, int]:
    return {stream: each[key] for stream, each in by_stream(lake).items() if key in each}


def quarantined(lake: Lake, streams: Iterable[str], last: int | None = None) -> int:
    """Rows of these streams that ingestions put into quarantine: all, or those up to number `last`."""
    totals = stream_totals(lake, last)
    return sum(totals[stream]["quarantined"] for stream in set(streams) & totals.keys())


def among_ingested(lake: Lake, what: str, asked: Iterable[str]) -> set[str]:
    """Which of the ``digests`` of contents, or the ``looks`` of files (which earlier versions did not note), are those of files that were ingested."""
    sought = pa.array(sorted(set(asked)), pa.string())
    rows = lake.table("ingest", "committed").read_known((what,)) if len(sought) else None
    if rows is None or what not in rows.column_names:
        return set()
    noted = pc.list_flatten(rows[what])
    return set(noted.filter(pc.is_in(noted, sought)).to_pylist())


def streams_of(lake: Lake, places: Iterable[str]) -> dict[str, set[str]]:
    """Into which streams files went that were ingested from these places."""
    rows = lake.table("ingest", "committed").read_known(("files", "counts"))
    found: dict[str, set[str]] = {}
    if rows is None:
        return found
    files = rows["files"].combine_chunks()
    noted, call = pc.list_flatten(files), pc.list_parent_indices(files)
    mine = pc.is_in(noted, pa.array(sorted(set(places)), pa.string()))
    noted, call = noted.filter(mine), call.filter(mine)
    calls = pc.unique(call)
    counts = dict(zip(calls.to_pylist(), map(json.loads, rows["counts"].take(calls).to_pylist()), strict=True))
    for place, number in zip(noted.to_pylist(), call.to_pylist(), strict=True):
        found.setdefault(place, set()).update(counts[number])
    return found
