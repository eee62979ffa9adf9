"""Is what the tables hold what was counted when it was written?

Every row is counted once by who wrote it: arrivals and on-time rows in the state of `run`, corrections by `repair` in
``repairs``. The laws here count the stored rows again, up to where the writers have committed, so that a row which is gone, or
there without having been published, breaks one of them; a writer that is at work meanwhile does not. So does a period that is gone
from the ledger, or a row that is gone from quarantine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from latecomer.lake import journal, result_views
from latecomer.lake.ingest_log import count_quarantine, last_committed, quarantined
from latecomer.lake.lake import Lake
from latecomer.ledger.open_periods import open_ledger
from latecomer.specs.join import JoinSpec
from latecomer.specs.spec import Spec
from latecomer.specs.windows import WindowedSpec


@dataclass(frozen=True)
class Reach:
    """How far a query's writers have committed: `run` before arrival `seq_to`, `repair` to arrival `closed_to` (-1: nothing).

    By then `repair` had counted so many `corrections`.
    """

    seq_to: int
    flushed: bool
    closed_to: int
    corrections: int

    @classmethod
    def of(cls, lake: Lake, query: str, state: journal.RunState) -> Reach:
        """Of the state, and of the repairs that are committed now."""
        return cls(state.seq_to, state.flushed, *result_views.repaired_to(lake, query))

    def filters(self) -> dict[str, pc.Expression]:
        """Per table of results, which rows are within reach. What a flush released is published by arrival `seq_to`."""
        last = self.seq_to if self.flushed else self.seq_to - 1
        published = pc.field("published_seq")
        return {"on_time": published <= last, "corrections": published <= self.closed_to}


def laws(
    lake: Lake, spec: Spec, state: journal.RunState, reach: Reach, results: Mapping[str, int]
) -> list[dict[str, Any]]:
    """``law``, ``left`` and ``right``, which must be equal; `results` are the rows within reach, per table."""
    seq = pc.field("seq")
    arrived = sum(lake.table("events", each).count(seq < reach.seq_to) for each in {name for _, name in spec.streams})
    named = (
        ["seq", "alias"] if isinstance(spec, JoinSpec) else ["seq"]
    )  # a row may be late in both roles of a self join
    late = lake.table("late", spec.name).read(columns=named, filter=seq < reach.seq_to)
    registered = 0 if late is None else pc.count_distinct(late["seq"]).as_py()
    again = 0 if late is None else late.num_rows - late.group_by(named).aggregate([]).num_rows
    published = state.counts["on_time"]
    return [
        {
            "law": "rows in = on time + late pending + late repaired",
            "left": arrived,
            "right": state.counts["rows_read"] - state.counts["late"] + registered,
        },
        {
            "law": "late rows counted = late rows registered, each once",
            "left": state.counts["late"],
            "right": registered + again,
        },
        {
            "law": "results published on time = results kept",
            "left": published,
            "right": results["on_time"] - _not_yet_counted(lake, spec.name, state),
        },
        # a micro-batch at work may have booked more
        {
            "law": "results published on time = results in the ledger",
            "left": published,
            "right": min(_booked(lake, spec, state), published),
        },
        {
            "law": "corrections published = corrections kept",
            "left": reach.corrections,
            "right": results["corrections"],
        },
        {"law": "rows kept out = rows in quarantine", **_kept_out(lake, {name for _, name in spec.streams})},
    ]


def _booked(lake: Lake, spec: Spec, state: journal.RunState) -> int:
    """Results published on time by the ledger's periods, closed and open; a period's books only grow."""
    name = "published" if isinstance(spec, WindowedSpec) else "on_time"
    read = (lake.table("ledger", spec.name).read(), open_ledger(spec, state.stage))
    parts = [rows.select(["period_start", name]) for rows in read if rows is not None]
    most = pa.concat_tables(parts, promote_options="default").group_by("period_start").aggregate([(name, "max")])
    return int(pc.sum(most[f"{name}_max"]).as_py() or 0)


def _kept_out(lake: Lake, streams: set[str]) -> dict[str, int]:
    """Rows that ingestions counted as quarantined, and those that are; an ingestion at work does not count."""
    last = last_committed(lake)
    kept = sum(count_quarantine(lake, stream, last) for stream in streams)
    return {"left": quarantined(lake, streams, last), "right": kept}


def _not_yet_counted(lake: Lake, query: str, state: journal.RunState) -> int:
    """On-time rows of a micro-batch at work that a flush before it makes look committed: both publish by the same arrival."""
    if not state.flushed or not journal.planned(lake, query, "run", state.number + 1):
        return 0
    there = lake.table("on_time", query).count(pc.field("published_seq") == state.seq_to)
    return max(there - sum(rows for rows, _ in state.flushed_results.values()), 0)
