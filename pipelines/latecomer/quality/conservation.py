"""Is what the tables hold what was counted when it was written?

Every row is counted once by who wrote it: arrivals and on-time rows in the state of `run`, corrections by `repair` in
``repairs``. The laws here count the stored rows again, up to where the writers have committed, so that a row which is gone, or
there without having been published, breaks one of them; a writer that is at work meanwhile does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from latecomer.lake import journal, small, views
from latecomer.lake.location import Lake


@dataclass(frozen=True)
class Reach:
    """How far a query's writers have committed: `run` before arrival `seq_to`, `repair` to arrival `closed_to` (-1: nothing)."""

    seq_to: int
    flushed: bool
    closed_to: int

    @classmethod
    def of(cls, lake: Lake, query: str, state: journal.RunState) -> Reach:
        """Of the state, and of the repairs that are committed now."""
        closes = views.closing_arrivals(lake, query)
        return cls(state.seq_to, state.flushed, int(closes[-1]) if len(closes) else -1)

    def filters(self) -> dict[str, pc.Expression]:
        """Per table of results, which rows are within reach. What a flush released is published by arrival `seq_to`."""
        last = self.seq_to if self.flushed else self.seq_to - 1
        published = pc.field("published_seq")
        return {"on_time": published <= last, "corrections": published <= self.closed_to}


def laws(lake: Lake, spec: Any, state: journal.RunState, reach: Reach, late: pa.Table) -> list[dict[str, Any]]:
    """``law``, ``left`` and ``right``, which must be equal.

    `late` are the registered late rows, see :func:`latecomer.lake.views.late`.
    """
    late = late.filter(pc.less(late["seq"], reach.seq_to))
    registered, pending = (
        pc.count_distinct(rows["seq"]).as_py() for rows in (late, late.filter(pc.is_null(late["repaired_in"])))
    )
    in_time = state.counts["rows_read"] - state.counts["late"]
    published, seq = state.counts["on_time"], pc.field("published_seq")
    kept = _count(lake, "on_time", spec.name, seq < reach.seq_to)
    if reach.flushed:
        at_end = _count(lake, "on_time", spec.name, seq == reach.seq_to)
        going_on = journal.planned(lake, spec.name, "run", state.number + 1)  # it publishes by the same arrival
        kept += min(at_end, sum(rows for rows, _ in state.released.values())) if going_on else at_end
    return [
        {
            "law": "rows in = on time + late pending + late repaired",
            "left": _arrived(lake, spec, reach.seq_to),
            "right": in_time + pending + (registered - pending),
        },
        {"law": "late rows counted = late rows registered", "left": state.counts["late"], "right": registered},
        {"law": "results published on time = results kept", "left": published, "right": kept},
        {
            "law": "corrections published = corrections kept",
            "left": sum(views.repaired(lake, spec.name).values()),
            "right": _count(lake, "corrections", spec.name, reach.filters()["corrections"]),
        },
    ]


def _arrived(lake: Lake, spec: Any, seq_to: int) -> int:
    streams = set(dict(spec.streams).values())
    return sum(_count(lake, "events", stream, pc.field("seq") < seq_to) for stream in streams)


def _count(lake: Lake, area: str, name: str, filter: pc.Expression) -> int:
    table = small.open_table(lake, area, name)
    return 0 if table is None else int(table.to_pyarrow_dataset().count_rows(filter=filter))
