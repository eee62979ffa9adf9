"""Conservation invariants: the stored rows are as many as were counted when they were written.

Every writer counts its rows once: `ingest` counts the rows that it reads in its log, `run` counts arrivals and on-time
rows in its state, `repair` counts corrections in ``repairs``. The invariants count the stored rows again, up to the
writers' last commits. A lost row, a row that nobody published, a period lost from the ledger, a row lost from
quarantine or from the table of results breaks one of them; a writer that works meanwhile does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from latecomer.lake import journal, result_views
from latecomer.lake.ingest_log import by_stream, committed_seq, count_quarantine, last_committed
from latecomer.lake.lake import Lake
from latecomer.lake.results_table import published_bounds
from latecomer.ledger.open_periods import open_ledger
from latecomer.quality import duplicates
from latecomer.quality.duplicates import Invariant
from latecomer.specs.join import JoinSpec
from latecomer.specs.spec import Answers, Spec
from latecomer.specs.windows import WindowedSpec


@dataclass(frozen=True)
class CommittedBounds:
    """The bounds up to which a query's writers have committed.

    Attributes
    ----------
    seq_to
        `run` has committed the arrivals before this one.
    flushed
        It has also committed a flush.
    closed_to
        `repair` has committed the Gamma batches up to the one that this arrival closed; -1: none.
    corrections
        Corrections that `repair` had counted by then.
    """

    seq_to: int
    flushed: bool
    closed_to: int
    corrections: int

    @classmethod
    def of(cls, lake: Lake, query: str, state: journal.RunState) -> CommittedBounds:
        """Return the bounds of a state of `run` and of the repairs that are committed now."""
        return cls(state.seq_to, state.flushed, *result_views.repaired_to(lake, query))

    def filters(self) -> dict[str, pc.Expression]:
        """Return filters of committed rows, by table of results; a flush publishes with ``published_seq = seq_to``."""
        last = self.seq_to if self.flushed else self.seq_to - 1
        published = pc.field("published_seq")
        return {"on_time": published <= last, "corrections": published <= self.closed_to}


def invariants(
    lake: Lake, spec: Spec, state: journal.RunState, bounds: CommittedBounds, results: Mapping[str, int]
) -> list[Invariant]:
    """Count both sides of every invariant.

    `results` are the numbers of committed rows by table of results.
    """
    seq = pc.field("seq")
    arrived = sum(lake.table("events", stream).count(seq < bounds.seq_to) for stream in spec.stream_names)
    # a row may be late in both roles of a self join
    keys = ["seq", "alias"] if isinstance(spec, JoinSpec) else ["seq"]
    late = lake.table("late", spec.name).read(columns=keys, filter=seq < bounds.seq_to)
    registered = 0 if late is None else pc.count_distinct(late["seq"]).as_py()
    repeated = 0 if late is None else late.num_rows - late.group_by(keys).aggregate([]).num_rows
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
            "right": registered + repeated,
        },
        {
            "law": "results published on time = results kept",
            "left": published,
            "right": results["on_time"] - _not_yet_counted(lake, spec.name, state),
        },
        # a micro-batch at work may have counted more
        {
            "law": "results published on time = results in the ledger",
            "left": published,
            "right": min(_in_ledger(lake, spec, state), published),
        },
        {
            "law": "corrections published = corrections kept",
            "left": bounds.corrections,
            "right": results["corrections"],
        },
        *of_ingestions(lake, spec.stream_names),
        *of_publications(lake, spec),
    ]


def of_publications(lake: Lake, spec: Spec) -> list[Invariant]:
    """Compare the rows of ``results/<query>`` with the answers that were to be published; nothing before the first.

    Answers are counted by hashes of their keys, as in :mod:`latecomer.quality.duplicates`.
    """
    bounds = published_bounds(lake, spec.name)
    if bounds is None:
        return []
    within = bounds.filters()
    if spec.answers is Answers.REPLACED:
        answers = result_views.results(lake, spec, within).num_rows
    elif spec.answers is Answers.ADDED and bounds.backfill < 0:
        answers = sum(lake.table(area, spec.name).count(rows) for area, rows in within.items())
    else:
        answers = duplicates.count_keys(lake, spec, within)
    stored = lake.table("results", spec.name).count()
    return [{"law": "answers that were published = rows of results", "left": answers, "right": stored}]


def _in_ledger(lake: Lake, spec: Spec, state: journal.RunState) -> int:
    """Sum the results published on time over the ledger's periods, closed and open; a period's count only grows."""
    still_open = open_ledger(spec, state.stage)
    names = [name for name in ("published", "on_time", "recalled") if name in still_open.column_names]
    names = names[:1] if isinstance(spec, WindowedSpec) else names
    read = (lake.table("ledger", spec.name).read(), still_open)
    parts = [rows.select(["period_start", *names]) for rows in read if rows is not None]
    rows = pa.concat_tables(parts, promote_options="default").group_by("period_start")
    most = rows.aggregate([(name, "max") for name in names])
    return sum(int(pc.sum(most[f"{name}_max"]).as_py() or 0) for name in names)


def of_ingestions(lake: Lake, streams: Sequence[str]) -> list[Invariant]:
    """Compare what ingestions counted of these streams with the rows that they stored; both of committed ingestions."""
    last = last_committed(lake)
    seq_to, totals = committed_seq(lake, last), by_stream(lake, last)
    counted = [totals[stream] for stream in set(streams) & totals.keys()]
    read, kept_out, repeated = (sum(c[name] for c in counted) for name in ("read", "quarantined", "duplicates"))
    stored = sum(lake.table("events", stream).count(pc.field("seq") < seq_to) for stream in set(streams))
    in_quarantine = sum(count_quarantine(lake, stream, last) for stream in set(streams))
    return [
        {"law": "rows kept out = rows in quarantine", "left": kept_out, "right": in_quarantine},
        {
            "law": "rows read = rows stored + rows in quarantine + rows that repeat an event",
            "left": read,
            "right": stored + in_quarantine + repeated,
        },
    ]


def _not_yet_counted(lake: Lake, query: str, state: journal.RunState) -> int:
    """Count the on-time rows of an unfinished micro-batch after a flush, whose rows have the same ``published_seq``."""
    if not state.flushed or not journal.planned(lake, query, "run", state.number + 1):
        return 0
    stored = lake.table("on_time", query).count(pc.field("published_seq") == state.seq_to)
    return max(stored - sum(rows for rows, _ in state.flushed_results.values()), 0)
