"""`status`: show streams, queries, rows, backlog and the last check on one screen. It starts no Spark."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, NotRequired, TypeAlias, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from latecomer.core.state import OtherVersion
from latecomer.jobs import formatting
from latecomer.lake import journal, result_views, results_table
from latecomer.lake.errors import InputError
from latecomer.lake.forget import half_forgotten
from latecomer.lake.ingest_log import by_stream, committed_seq
from latecomer.lake.lake import Lake
from latecomer.lake.last_check import last_outcome
from latecomer.specs.errors import quantity
from latecomer.specs.names import NAME

QueryStatus: TypeAlias = dict[str, Any]
"""The row of a query: numbers and times as in the table, or ``problem``; the counts of its state are among them."""


class StreamStatus(TypedDict):
    """The rows of a stream, and its latest event time (None: no row has been ingested)."""

    rows: int
    quarantined: int
    last_event: str | None


class LakeStatus(TypedDict):
    """The status of a lake; ``never_run`` has the requested queries that have not been run here."""

    lake: str
    next_seq: int
    streams: dict[str, StreamStatus]
    queries: list[QueryStatus]
    never_run: NotRequired[list[str]]


def status(lake: Lake, only: Collection[str] = ()) -> LakeStatus:
    """Return the status of a lake, as values that JSON can hold.

    Parameters
    ----------
    only
        Names of the queries to return; empty: all.

    Raises
    ------
    InputError
        A name in `only` is no name that a query can have.
    """
    for name in only:
        if not NAME.fullmatch(name):
            raise InputError("--query", name, "is not a name of a query", "write the value of `name:` in its file")
    available = committed_seq(lake)
    queries: list[QueryStatus] = []
    for name in sorted(set(only) or {*lake.names("state"), *half_forgotten(lake)}):
        try:
            row = _query(lake, name, available)
        except (OtherVersion, InputError, DeltaError, pa.ArrowException, OSError) as error:
            # an unreadable query does not hide the others
            row = {"query": name, "problem": formatting.one_line(str(error))}
        if row is not None:
            queries.append(row)
    streams: dict[str, StreamStatus] = {
        name: {
            "rows": totals["rows"],
            "quarantined": totals["quarantined"],
            "last_event": _iso(totals["event_to"] / 1e6) if "event_to" in totals else None,
        }
        for name, totals in by_stream(lake).items()
    }
    report: LakeStatus = {"lake": lake.uri, "next_seq": available, "streams": streams, "queries": queries}
    never = sorted(set(only) - {query["query"] for query in queries})
    if never:
        report["never_run"] = never
    return report


def _query(lake: Lake, name: str, available: int) -> QueryStatus | None:
    """Return the status of one query; None where it has not been run."""
    state = journal.load_state(lake, name)
    if state is None:
        return None
    pending = result_views.pending(lake, name, state.seq_to)  # a micro-batch at work does not count yet
    return {
        "query": name,
        "processed_to": state.seq_to,
        "backlog": _backlog(lake, state, available),
        "micro_batches": state.number + 1,
        "flushed": state.flushed,
        **state.counts,
        "late_pending": pending,
        "late_repaired": state.counts["late"] - pending,
        "last_run": _written(lake, name),
        "last_check": _checked(lake, name),
        "last_publication": _published(lake, name),
    }


def _backlog(lake: Lake, state: journal.RunState, available: int) -> int:
    """Count the unread rows of the query's streams; of all streams if an earlier version ran the query."""
    if state.signature is None or state.seq_to >= available:
        return max(available - state.seq_to, 0)
    new = (pc.field("seq") >= state.seq_to) & (pc.field("seq") < available)
    return sum(
        lake.table("events", stream).count(new) for stream in {stream for _, stream in state.signature["streams"]}
    )


def _written(lake: Lake, query: str) -> str | None:
    """Return the time (UTC) at which the query's state was last committed."""
    table = lake.table("state", query).open()
    if table is None:
        return None
    return _iso(table.history(1)[0]["timestamp"] / 1000)


def _checked(lake: Lake, query: str) -> str | None:
    row = last_outcome(lake, query)
    if not row:
        return None
    unjudged = f", {quantity(row['unjudged'], 'period')} not judged" if row.get("unjudged") else ""
    missed = f", {row['missed']} of {quantity(row['judged'], 'period')} missed" if row.get("missed") else ""
    return f"{_iso(row['checked'])} {'passed' if row['success'] else 'FAILED'}{missed}{unjudged}"


def _published(lake: Lake, query: str) -> str | None:
    """Return the time (UTC) of the last publication, and the version of the table that it wrote."""
    table = lake.table("results", query)
    opened = table.open()
    number = None if opened is None else opened.transaction_version("publish")
    if opened is None or number is None:
        return None
    _, published_at = results_table.plan(lake.table("publications", query), number)
    return f"{_iso(published_at.timestamp())} version {opened.version()}"


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def render(report: LakeStatus) -> str:
    """Render a status as one screen of text."""
    lines = [f"lake {report['lake']}: {report['next_seq']:,} rows ingested"]
    if not report["next_seq"] and not report["queries"]:
        lines[0] += " (nothing was ingested here yet; is this the right place?)"
    streams = [
        (name, *(f"{totals.get(key, 0):,}" for key in ("rows", "quarantined")), totals["last_event"] or "")
        for name, totals in sorted(report["streams"].items())
    ]
    if streams:
        lines += ["", formatting.table(("stream", "rows", "quarantined", "last_event"), streams)]
    header = (
        "query",
        "rows_read",
        "backlog",
        "on_time",
        "late",
        "late_pending",
        "micro_batches",
        "last_run",
        "last_check",
        "last_publication",
    )
    shown = [query for query in report["queries"] if "problem" not in query]
    rows = [(q["query"], *(_cell(q.get(key)) for key in header[1:])) for q in shown]
    lines += (
        ["", formatting.table(header, rows)]
        if rows
        else ["", "no query has been run yet"]
        if not (report["queries"] or report.get("never_run"))
        else []
    )
    lines += [f"{q['query']}: {q['problem']}" for q in report["queries"] if "problem" in q]
    lines += [f"{name}: has not been run here" for name in report.get("never_run", ())]
    return "\n".join(lines)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value or "never")
