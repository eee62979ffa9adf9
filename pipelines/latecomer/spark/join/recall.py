"""The recall of missed pairs on Spark, for joins whose recall is guaranteed.

:mod:`latecomer.core.join.recall_budget` decides. Here are the rows that it is decided from, and what is published:

* *Behind the horizon.* A micro-batch joins its new rows with the rows still held, and with the stored rows behind the
  horizon that lie in the window of a new row. So every pair whose later row is new is known, and missed ones are
  counted exactly.
* *An interval cut by micro-batches.* Its late rows of earlier micro-batches are in the table of late rows. Where their
  pairs are recalled, they are found again as `repair` finds them.
* *Repair.* The table ``recalls/<query>`` says which late rows have had their pairs recalled; `repair` skips these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.arrays.sparse_counts import Int64Array
from latecomer.core.gamma_batches import spans
from latecomer.core.join.control import Horizons
from latecomer.core.join.recall_budget import LateSpans, Recall, pair_counts
from latecomer.lake.delta import TIMESTAMP
from latecomer.lake.event_scan import Spans
from latecomer.lake.lake import Lake
from latecomer.spark.join.arrival_tasks import LateRoles

if TYPE_CHECKING:
    from latecomer.specs.join import JoinSpec

RECALLS = pa.schema(
    [
        ("seq_from", pa.int64()),
        ("period_start", TIMESTAMP),
        ("published_seq", pa.int64()),
        ("pairs", pa.int64()),
    ]
)
"""Columns of ``recalls/<query>``: the late rows ``[seq_from, published_seq)`` of a period had their pairs recalled."""


def late_spans(late: LateRoles, window_us: int, interval_us: int) -> tuple[LateSpans, LateSpans]:
    """Return, per stream, the spans behind its horizon that lie in the windows of late rows of the other stream."""
    touched = []
    for side in (1, 0):
        _, times, stream_time, horizon = late[side]
        touched.append(LateSpans.behind(horizon, times, stream_time, window_us=window_us, interval_us=interval_us))
    return touched[0], touched[1]


def spans_behind(late: LateRoles, before: Sequence[int], window_us: int) -> tuple[Spans, Spans]:
    """Return, per stream, spans of the stored rows behind the horizon `before` the new rows that may match late ones.

    They cover more where there are many of them: :func:`latecomer.core.gamma_batches.spans`.
    """
    behind = []
    for buffer in (0, 1):
        times = late[1 - buffer].event_time_us
        times = times[times - window_us <= before[buffer]]
        behind.append(spans(times - window_us, np.minimum(before[buffer], times + window_us)))
    return behind[0], behind[1]


def count_pairs(
    stream_time_us: Int64Array,
    earlier_us: Int64Array,
    side: Int64Array,
    horizons: Horizons,
    spec: JoinSpec,
    interval_us: int,
) -> Int64Array:
    """Count pairs with the columns of :data:`latecomer.core.join.recall_budget.PAIR_COUNTS`.

    Parameters
    ----------
    stream_time_us, earlier_us, side
        int64[m] per pair: stream time (us) at the later row, event time (us) and stream of the earlier one.
    """
    produced = np.ones(len(side), np.bool_)
    for buffer in (0, 1):
        at = np.flatnonzero(side == buffer)
        produced[at] = earlier_us[at] > horizons.at(buffer, stream_time_us[at], interval_us, spec.window_us)
    return pair_counts(stream_time_us, produced, interval_us=interval_us, period_us=spec.period_us)


def recalls_table(recalls: Sequence[Recall]) -> pa.Table | None:
    """Return the rows of ``recalls/<query>`` for decisions; None where there are none."""
    if not recalls:
        return None
    rows = [
        {"seq_from": r.seq_from, "period_start": r.period_us, "published_seq": r.published_seq, "pairs": r.pairs}
        for r in recalls
    ]
    return pa.Table.from_pylist(rows, schema=RECALLS)


def registered_before(lake: Lake, query: str, recalls: Sequence[Recall], seq_from: int) -> pa.Table:
    """Return the late rows before arrival `seq_from` whose pairs are recalled now: ``seq`` and ``repaired_in``."""
    carried = [recall for recall in recalls if recall.seq_from < seq_from]
    if not carried:
        return pa.table({"seq": pa.array([], pa.int64()), "repaired_in": pa.array([], pa.int64())})
    seq = pc.field("seq")
    inside = (seq >= min(recall.seq_from for recall in carried)) & (seq < seq_from)
    rows = lake.table("late", query).read(columns=["seq", "period_start"], filter=inside)
    assert rows is not None, "pairs were missed, so late rows are registered"
    published = {recall.period_us: recall.published_seq for recall in carried}
    periods = rows["period_start"].cast(pa.int64()).to_numpy()
    chosen = np.isin(periods, list(published))
    seqs, first = np.unique(rows["seq"].to_numpy()[chosen], return_index=True)
    return pa.table(
        {"seq": seqs, "repaired_in": np.array([published[p] for p in periods[chosen][first].tolist()], np.int64)}
    )


def without_recalled(lake: Lake, query: str, repaired_in: pa.Table) -> pa.Table:
    """Return the late rows to repair whose pairs `run` has not recalled; `repaired_in` has ``seq`` and more."""
    seq = repaired_in["seq"].to_numpy()
    if not len(seq):
        return repaired_in
    recalls = lake.table("recalls", query).read(filter=pc.field("published_seq") > int(seq.min()))
    if recalls is None or not recalls.num_rows:
        return repaired_in
    inside = (pc.field("seq") >= int(seq.min())) & (pc.field("seq") <= int(seq.max()))
    late = lake.table("late", query).read(columns=["seq", "period_start"], filter=inside)
    assert late is not None
    rows, periods = late["seq"].to_numpy(), late["period_start"].cast(pa.int64()).to_numpy()
    start, published = recalls["seq_from"].to_numpy(), recalls["published_seq"].to_numpy()
    of_period = recalls["period_start"].cast(pa.int64()).to_numpy()
    recalled = np.zeros(len(rows), np.bool_)
    for period in np.unique(of_period):
        decisions = np.flatnonzero(of_period == period)
        decisions = decisions[np.argsort(start[decisions])]
        at = np.flatnonzero(periods == period)
        place = np.searchsorted(start[decisions], rows[at], "right") - 1
        recalled[at] = (place >= 0) & (rows[at] < published[decisions][np.maximum(place, 0)])
    return repaired_in.filter(pa.array(~np.isin(seq, rows[recalled])))
