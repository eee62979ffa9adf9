"""`status`: streams, queries, rows, backlog, last check: one screen, and no Spark."""

from __future__ import annotations

from typing import Any

from latecomer.jobs import text
from latecomer.lake import journal, small, views
from latecomer.lake.location import Lake


def status(lake: Lake) -> dict[str, Any]:
    """Everything `render` shows, as JSON-able values."""
    from latecomer.spark.ingest import committed_seq, stream_totals

    available = committed_seq(lake)
    queries = []
    for name in lake.names("state"):
        state = journal.load_state(lake, name)
        if state is None:
            continue
        late = small.read(lake, "late", name, columns=["seq"])
        done_to = views.closing_arrivals(lake, name)
        seqs = set() if late is None else set(late["seq"].to_pylist())
        pending = sum(1 for seq in seqs if not len(done_to) or seq > done_to[-1])
        queries.append(
            {
                "query": name,
                "processed_to": state.seq_to,
                "backlog": available - state.seq_to,
                "micro_batches": state.number + 1,
                "flushed": state.flushed,
                **state.counts,
                "late_pending": pending,
                "late_repaired": len(seqs) - pending,
            }
        )
    return {"lake": lake.uri, "next_seq": available, "streams": stream_totals(lake), "queries": queries}


def render(found: dict[str, Any]) -> str:
    """One screen of text."""
    lines = [f"lake {found['lake']}: {found['next_seq']:,} rows ingested"]
    streams = [
        (name, *(f"{totals.get(key, 0):,}" for key in ("rows", "quarantined")))
        for name, totals in sorted(found["streams"].items())
    ]
    if streams:
        lines += ["", text.table(("stream", "rows", "quarantined"), streams)]
    header = ("query", "rows_read", "backlog", "on_time", "late", "late_pending", "micro_batches")
    rows = [(q["query"], *(f"{q[key]:,}" for key in header[1:])) for q in found["queries"]]
    lines += ["", text.table(header, rows)] if rows else ["", "no query has been run yet"]
    return "\n".join(lines)
