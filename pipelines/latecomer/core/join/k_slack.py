"""The K-slack family for joins: wait until rows are in order, then join them.

A row waits in a reorder buffer until the watermark ``W(a) = running max of (T(a) - K(a))`` has reached its event time.
It is then released, and joined with the rows released before it. A row that arrives behind the watermark is inserted
at once and does not probe. A pair is published when the later *released* of its rows is, so results wait.

The strategies differ in the slack `K`, which is one for both streams: a constant (``k_slack``), the largest delay so
far (``mp_k_slack``), or the least slack whose estimated recall reaches the target (``aq_k_slack``). A reorder buffer
behind the watermark ``T - K`` holds the rows that a buffer of the symmetric join with retention ``d = K`` holds, so
the rows held are counted by the same control plane, :mod:`latecomer.core.join.control`.

References
----------
Babu, Srivastava and Widom, 2004 (K-slack); Mutschler and Philippsen, 2013 (the largest delay so far); Ji et al., 2016
(a recall target; one slack for both streams). QJoin 2020, section 2.3, restates the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np

from latecomer.core.arrays.sparse_counts import Int64Array
from latecomer.core.join.retention_policies import RetentionParameters
from latecomer.core.join.statistics import IntervalStats, IntervalStatsState, merge_sides
from latecomer.core.time import FOREVER, NEVER, running_max

_TOLERANCE = 1e-12


def slack_watermark(
    stream_time_us: Int64Array, delay_us: Int64Array, slack_us: int | None, carry: tuple[int, int] = (NEVER, 0)
) -> tuple[Int64Array, tuple[int, int]]:
    """Return the watermark after each arrival of a micro-batch.

    Parameters
    ----------
    stream_time_us, delay_us
        int64[n] us, per arrival: stream time (`NEVER` before all streams are seen) and the delay on the row's own
        stream.
    slack_us
        `K`; None: the largest delay so far (``mp_k_slack``), which includes each arrival's own.
    carry
        The watermark and the largest delay at the end of the micro-batch before.

    Returns
    -------
    watermark
        int64[n] us, non-decreasing; `NEVER` while there is none.
    carry
        For the next micro-batch.
    """
    # QJoin, section 2.3, step 1): K = max(K, D(x)), with D(x) = t_curr - x.ts
    largest = running_max(delay_us, carry[1])
    slack = largest if slack_us is None else np.int64(slack_us)
    # step 2): rows with x.ts + K <= t_curr are released
    watermark = running_max(np.where(stream_time_us > NEVER, stream_time_us - slack, NEVER), carry[0])
    return watermark, (int(watermark[-1]), int(largest[-1])) if len(watermark) else carry


def least_slack(stats: Sequence[IntervalStats], granularity_us: int, target: float) -> int | None:
    """Return the least slack (us) whose estimated recall reaches `target`, or None without arrivals.

    After Ji et al. 2016: a row whose delay exceeds `K` is released out of order and does not probe. So recall is
    estimated by the share of rows, on both streams, with a delay of at most `K`.
    """
    both = merge_sides([s for interval in stats for s in (interval.left, interval.right)])
    if both.rows == 0:
        return None
    recall = np.cumsum(both.delay_rows) / both.rows
    at = int(np.searchsorted(recall, min(target, 1.0) - _TOLERANCE, side="left"))
    return (int(both.delay_bucket[min(at, both.delay_bucket.size - 1)]) + 1) * granularity_us


class KSlackState(TypedDict):
    """The state of a `KSlackRetention` as JSON."""

    largest: int
    first: int | None
    recent: list[IntervalStatsState]


class KSlackRetention:
    """The slacks of ``mp_k_slack`` and ``aq_k_slack`` as a retention policy.

    ``aq_k_slack`` retains everything before the first full period, then joins with the slack chosen here.
    ``mp_k_slack`` joins with the largest delay at each arrival; its retention, in whole granules, only serves to count
    rows held.

    Parameters
    ----------
    settings
        The parameters of the query.
    """

    needs_pairs = False
    needs_candidates = False
    needs_lateness = False
    expires = True

    def __init__(self, settings: RetentionParameters) -> None:
        self.settings = settings
        self.largest = 0
        self.first: int | None = None
        self.recent: list[IntervalStats] = []

    def observe(self, stats: IntervalStats) -> None:
        """Learn from the delays of one complete interval."""
        self.first = stats.interval if self.first is None else self.first
        for side in (stats.left, stats.right):
            if len(side.delay_bucket):
                self.largest = max(self.largest, (int(side.delay_bucket[-1]) + 1) * self.settings.granularity_us)
        if self.settings.strategy == "aq_k_slack":
            oldest = stats.interval - self.settings.period_us // self.settings.interval_us
            self.recent = [s for s in self.recent if s.interval > oldest] + [stats]

    def choose(self, interval: int) -> tuple[int, int]:
        """Return the slack in us for `interval`, the same for both streams; `FOREVER` before the first full period."""
        if self.settings.strategy == "mp_k_slack":
            return self.largest, self.largest
        warming_up = self.first is None or (interval - self.first) * self.settings.interval_us < self.settings.period_us
        slack = None if warming_up else least_slack(self.recent, self.settings.granularity_us, self.settings.target)
        return (FOREVER, FOREVER) if slack is None else (slack, slack)

    def to_dict(self) -> KSlackState:
        """Return the state as JSON."""
        return {"largest": self.largest, "first": self.first, "recent": [stats.to_dict() for stats in self.recent]}

    @classmethod
    def from_dict(cls, state: KSlackState, settings: RetentionParameters) -> KSlackRetention:
        """Continue from the state that `to_dict` wrote."""
        policy = cls(settings)
        policy.largest, policy.first = state["largest"], state["first"]
        policy.recent = [IntervalStats.from_dict(stats) for stats in state["recent"]]
        return policy


class ArrivalClockState(TypedDict):
    """The attributes of an `ArrivalClock` as JSON."""

    seq: list[int]
    stream_time_us: list[int]


@dataclass
class ArrivalClock:
    """Stream time at past arrivals, to the adaptation interval: the start of the wait of a pair.

    The later *arrival* of a published pair may belong to an earlier micro-batch, and events are stored without the
    stream time of their arrival. The clock has one entry per interval that saw an arrival: its first arrival number
    and the stream time there. So a wait is overstated by less than one interval, alike for rows of this micro-batch
    and stored ones. The entries are a function of the arrival order, so any cut gives the same ledger. `forget` bounds
    their number by ``K / L``.

    Attributes
    ----------
    seq, stream_time_us
        int64[n]: first arrival number and stream time of each interval, both increasing.
    """

    seq: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    stream_time_us: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, seq: Int64Array, stream_time_us: Int64Array, interval_us: int) -> None:
        """Add the first arrivals of a micro-batch's intervals; known intervals are skipped.

        Parameters
        ----------
        seq, stream_time_us
            int64[m], increasing: arrival numbers, and the stream times there, none of them `NEVER`.
        interval_us
            `L`.
        """
        last = int(self.stream_time_us[-1]) // interval_us if len(self.seq) else NEVER
        fresh = stream_time_us // interval_us > last
        self.seq = np.concatenate([self.seq, seq[fresh]])
        self.stream_time_us = np.concatenate([self.stream_time_us, stream_time_us[fresh]])

    def at(self, seq: Int64Array) -> Int64Array:
        """Return stream time (us) at the first arrival of the interval of each `seq`: int64, shape of `seq`.

        An arrival before the first entry gets the stream time of that entry, and `NEVER` where there is no entry.
        """
        if not len(self.seq):
            return np.full(np.shape(seq), NEVER, np.int64)
        return self.stream_time_us[np.maximum(np.searchsorted(self.seq, seq, side="right") - 1, 0)]

    def forget(self, seq: int) -> None:
        """Drop the entries that no arrival from `seq` on needs."""
        keep = max(int(np.searchsorted(self.seq, seq, side="right")) - 1, 0)
        self.seq, self.stream_time_us = self.seq[keep:], self.stream_time_us[keep:]

    def to_dict(self) -> ArrivalClockState:
        """Return the entries as JSON."""
        return {"seq": self.seq.tolist(), "stream_time_us": self.stream_time_us.tolist()}

    @classmethod
    def from_dict(cls, state: ArrivalClockState) -> ArrivalClock:
        """Return the clock that `to_dict` wrote."""
        return cls(np.array(state["seq"], np.int64), np.array(state["stream_time_us"], np.int64))
