"""`status`: streams, queries, rows, backlog, last check: one screen, and no Spark."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from latecomer.core.state import OtherVersion
from latecomer.jobs import formatting
from latecomer.lake import journal, result_views
from latecomer.lake.errors import InputError
from latecomer.lake.forget import half_forgotten
from latecomer.lake.lake import Lake
from latecomer.specs.errors import quantity
from latecomer.specs.names import NAME


def status(lake: Lake, only: Collection[str] = ()) -> dict[str, Any]:
    """Everything `render` shows, as JSON-able values; of these queries, where `only` names any.

    Raises
    ------
    InputError
        One of `only` is no name that a query can have.
    """
    from latecomer.lake.ingest_log import by_stream, committed_seq

    for name in only:
        if not NAME.fullmatch(name):
            raise InputError("--query", name, "is no name of a query", "write what its file says after `name:`")
    available = committed_seq(lake)
    queries = []
    for name in sorted(set(only) or {*lake.names("state"), *half_forgotten(lake)}):
        try:
            found = _query(lake, name, available)
        except (OtherVersion, InputError, DeltaError, pa.ArrowException, OSError) as error:
            # what cannot be read of one query hides no other
            found = {"query": name, "problem": formatting.one_line(str(error))}
        if found is not None:
            queries.append(found)
    streams = {
        name: {
            "rows": each["rows"],
            "quarantined": each["quarantined"],
            "last_event": _iso(each["event_to"] / 1e6) if "event_to" in each else None,
        }
        for name, each in by_stream(lake).items()
    }
    found = {"lake": lake.uri, "next_seq": available, "streams": streams, "queries": queries}
    never = sorted(set(only) - {each["query"] for each in queries})
    return found | ({"never_run": never} if never else {})


def _query(lake: Lake, name: str, available: int) -> dict[str, Any] | None:
    """What is shown of one query; None where it was never run."""
    state = journal.load_state(lake, name)
    if state is None:
        return None
    pending = result_views.pending(lake, name, state.seq_to)  # those of a micro-batch that is at work do not count yet
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
    }


def _backlog(lake: Lake, state: journal.RunState, available: int) -> int:
    """Rows of the query's streams that it has not read; of a query that an earlier version ran, of all streams."""
    if state.signature is None or state.seq_to >= available:
        return max(available - state.seq_to, 0)
    new = (pc.field("seq") >= state.seq_to) & (pc.field("seq") < available)
    return sum(
        lake.table("events", stream).count(new) for stream in {stream for _, stream in state.signature["streams"]}
    )


def _written(lake: Lake, query: str) -> str | None:
    """When the query's state was last committed, UTC."""
    table = lake.table("state", query).open()
    if table is None:
        return None
    return _iso(table.history(1)[0]["timestamp"] / 1000)


def _checked(lake: Lake, query: str) -> str | None:
    rows = lake.table("checks", query).read()
    if rows is None or not rows.num_rows:
        return None
    row = rows.to_pylist()[0]
    unjudged = f", {quantity(row['unjudged'], 'period')} not judged" if row.get("unjudged") else ""
    return f"{_iso(row['checked'])} {'passed' if row['success'] else 'FAILED'}{unjudged}"


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def render(found: dict[str, Any]) -> str:
    """One screen of text."""
    lines = [f"lake {found['lake']}: {found['next_seq']:,} rows ingested"]
    if not found["next_seq"] and not found["queries"]:
        lines[0] += " (nothing was ingested here yet; is this the right place?)"
    streams = [
        (name, *(f"{totals.get(key, 0):,}" for key in ("rows", "quarantined")), totals["last_event"] or "")
        for name, totals in sorted(found["streams"].items())
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
    )
    shown = [query for query in found["queries"] if "problem" not in query]
    rows = [(q["query"], *(_cell(q.get(key)) for key in header[1:])) for q in shown]
    lines += (
        ["", formatting.table(header, rows)]
        if rows
        else ["", "no query has been run yet"]
        if not (found["queries"] or found.get("never_run"))
        else []
    )
    lines += [f"{q['query']}: {q['problem']}" for q in found["queries"] if "problem" in q]
    lines += [f"{name}: has not been run here" for name in found.get("never_run", ())]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value or "never")
