"""The retention of a join whose recall is guaranteed: the one that reads and holds the fewest rows.

With a recall budget (:mod:`latecomer.core.join.recall_budget`) the retention keeps no promise: a missed pair is read
again in time, where it matters. So a buffer is a cache of the stored events, and its size is a matter of cost, as long
as most pairs are still published when their later row arrives.

Cost
----
Let buffer X retain `d`, so that it spans ``w + d`` of event time. A row `y` of the other stream that arrives `u` behind
stream time is late where ``u >= d``. Its window then reaches ``min(u - d, 2 w)`` behind the horizon, and the rows of X
in there are read again. The spans of the late rows of an interval overlap: together they are no longer than ``max u -
d``. So with rows that are spread evenly over event time, the rows of X that an interval holds and reads again are, in
units of X's rate::

    (w + d) + U(d),   U(d) = min(sum over late y of min(u_y - d, 2 w),  max u - d)

`LeastRows` chooses the `d` with the least mean of that over stream time, for each buffer by itself, where older
intervals count less: a sum that fades over `MEMORY` periods. Among retentions within `TOLERANCE` of the least cost it
takes the longest one, which leaves fewer pairs to be recalled.

*Answers on arrival.* Where rows are scarce it would cost least to hold next to nothing, and to read the partners of
every row again. Then nearly all pairs would wait for the end of their interval. So `d` is at least the lateness that
the share `target` of the other stream's rows does not exceed, by the same fading sum: of these rows no pair is missed.
An interval counts there with at most `BULK` times the rows of a usual one, so that a backfill or a replay, which comes
in bulk within a moment of stream time, is left to recall. Nor is `d` longer than what costs `ACCEPTABLE` times the
least: where a target of 0.99 meets one row in a hundred whose clock is a year behind, no buffer spans a year.

*Outliers.* One row adds at most ``2 w`` to `U`, over all `d` below its lateness: it moves the mean by as much at every
retention that could be chosen, and so hardly moves the choice, however late it is. Nor does it move a quantile.

Before the first full period everything is retained. The rule is first published here.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numba import njit

from latecomer.core.arrays.knob_cells import CELLS, cell_edges
from latecomer.core.arrays.sparse_counts import Float64Array, Int64Array
from latecomer.core.join.statistics import IntervalStats
from latecomer.core.state import OtherVersion, check_version
from latecomer.core.time import FOREVER

MEMORY = 20
"""Periods over which the mean cost fades."""
TOLERANCE = 0.02
"""The share by which a longer retention may cost more than the least."""
ACCEPTABLE = 3
"""The most, times the least cost, that is spent on answers on arrival."""
BULK = 2
"""The most usual intervals as which a full one may count."""
KIND = "least_rows"
"""The name of the policy in its state."""
STATE_VERSION = 1


class LeastRowsState(TypedDict):
    """The state of a `LeastRows` as JSON; of each curve the values up to the last that is not 0."""

    kind: str
    version: int
    first: int | None
    last: int | None
    time_us: float
    intervals: float
    read: list[list[float]]
    rows: list[list[float]]


class LeastRows:
    """The policy, a deterministic state machine: `observe` each complete interval, `choose` for the next.

    Parameters
    ----------
    target
        The share of a stream's rows that meet all their partners on arrival, (0, 1].
    window_us, period_us, interval_us, granularity_us
        `w`, `P`, `L` and `g` in microseconds.

    Attributes
    ----------
    read_us2
        float64[2, CELLS]: per buffer and retention, `U` times `L`, summed over intervals, with fading.
    time_us
        The stream time over which that is summed.
    rows
        float64[2, CELLS]: per buffer and retention, the rows of the other stream that need this retention and no
        shorter one, with fading.
    intervals
        The intervals over which these are summed, with fading.
    """

    needs_pairs = False
    needs_candidates = False
    needs_lateness = True
    expires = True

    def __init__(self, target: float, *, window_us: int, period_us: int, interval_us: int, granularity_us: int) -> None:
        self.target, self.window_us, self.period_us = target, window_us, period_us
        self.interval_us, self.granularity_us = interval_us, granularity_us
        self.edges = cell_edges(granularity_us)
        self.first: int | None = None
        self.last: int | None = None
        self.time_us = 0.0
        self.read_us2: Float64Array = np.zeros((2, CELLS))
        self.rows: Float64Array = np.zeros((2, CELLS))
        self.intervals = 0.0

    def observe(self, stats: IntervalStats) -> None:
        """Learn from one complete interval; in order, intervals without arrivals left out."""
        passed_us = self.interval_us * (1 if self.last is None else stats.interval - self.last)
        fade = 1 / (1 + passed_us / (MEMORY * self.period_us))
        self.first = stats.interval if self.first is None else self.first
        self.last = stats.interval
        self.time_us = self.time_us * fade + passed_us
        self.read_us2 *= fade
        self.rows *= fade
        self.intervals = self.intervals * fade + 1
        for buffer, late in ((0, stats.right), (1, stats.left)):
            lateness = (late.delay_bucket + 1) * self.granularity_us
            _add_read(self.read_us2[buffer], lateness, late.delay_rows, self.edges, self.window_us, self.interval_us)
            cell = np.clip(np.searchsorted(self.edges, lateness), 1, CELLS - 1)
            most = BULK * float(self.rows[buffer].sum()) / max(self.intervals - 1, 1.0)
            weight = min(most / late.rows, 1.0) if late.rows and most else 1.0
            np.add.at(self.rows[buffer], cell, late.delay_rows * weight)

    def choose(self, interval: int) -> tuple[int, int]:
        """Return ``(d_left, d_right)`` in us for `interval`; `FOREVER` retains everything."""
        if self.first is None or (interval - self.first) * self.interval_us < self.period_us:
            return FOREVER, FOREVER
        return self._retention(0), self._retention(1)

    def _retention(self, buffer: int) -> int:
        """Return the retention of one buffer: of the least cost, or longer for answers on arrival."""
        cost = self.window_us + self.edges[1:] + self.read_us2[buffer][1:] / self.time_us
        least = cost.min()
        cheapest, acceptable = (
            int(self.edges[1:][np.flatnonzero(cost <= least * most)[-1]]) for most in (1 + TOLERANCE, ACCEPTABLE)
        )
        return max(cheapest, min(self._on_arrival(buffer), acceptable))

    def _on_arrival(self, buffer: int) -> int:
        """Return the least retention that the share `target` of the other stream's rows does not exceed."""
        known = np.cumsum(self.rows[buffer])
        return int(self.edges[min(int(np.searchsorted(known, self.target * known[-1])), CELLS - 1)])

    def to_dict(self) -> LeastRowsState:
        """Return the state as JSON, exactly."""
        return {
            "kind": KIND,
            "version": STATE_VERSION,
            "first": self.first,
            "last": self.last,
            "time_us": self.time_us,
            "intervals": self.intervals,
            "read": [_stored(curve) for curve in self.read_us2],
            "rows": [_stored(curve) for curve in self.rows],
        }

    @classmethod
    def from_dict(
        cls,
        state: LeastRowsState,
        target: float,
        *,
        window_us: int,
        period_us: int,
        interval_us: int,
        granularity_us: int,
    ) -> LeastRows:
        """Continue from the state that `to_dict` wrote."""
        where = "state of the join's retention"
        if state["kind"] != KIND:
            raise OtherVersion(where, f"is of a policy {state['kind']}, this program reads {KIND}")
        check_version(where, state, STATE_VERSION)
        spans = {"window_us": window_us, "period_us": period_us, "interval_us": interval_us}
        policy = cls(target, **spans, granularity_us=granularity_us)
        policy.first, policy.last, policy.time_us = state["first"], state["last"], float(state["time_us"])
        policy.intervals = float(state["intervals"])
        for curves, documents in ((policy.read_us2, state["read"]), (policy.rows, state["rows"])):
            for curve, stored in zip(curves, documents, strict=True):
                curve[: len(stored)] = stored
        return policy


def _stored(curve: Float64Array) -> list[float]:
    """Return the values of a curve up to the last that is not 0."""
    values: list[float] = curve[: int(np.flatnonzero(curve)[-1]) + 1 if curve.any() else 0].tolist()
    return values


@njit(cache=True)
def _add_read(
    curve: Float64Array,
    lateness_us: Int64Array,
    rows: Int64Array,
    edges: Int64Array,
    window_us: int,
    weight_us: int,
) -> None:
    """Add ``U(d) * weight`` of one interval to a curve over the retentions `edges`.

    Parameters
    ----------
    curve
        float64[c], changed in place.
    lateness_us, rows
        int64[n], ascending lateness and the rows that have it.
    edges
        int64[c], ascending.
    window_us, weight_us
        `w`, and the interval's length.
    """
    n = len(lateness_us)
    if n == 0:
        return
    longest = lateness_us[n - 1]
    # rows and sums of lateness from a place to the end
    count, total = np.zeros(n + 1), np.zeros(n + 1)
    for i in range(n - 1, -1, -1):
        count[i] = count[i + 1] + rows[i]
        total[i] = total[i + 1] + np.float64(rows[i]) * np.float64(lateness_us[i])
    partly = wholly = 0
    for cell in range(len(edges)):
        d = edges[cell]
        if d >= longest:
            return
        while partly < n and lateness_us[partly] <= d:
            partly += 1
        while wholly < n and lateness_us[wholly] - d <= 2 * window_us:
            wholly += 1
        inside = total[partly] - total[wholly] - np.float64(d) * (count[partly] - count[wholly])
        apart = inside + 2.0 * window_us * count[wholly]
        curve[cell] += min(apart, np.float64(longest - d)) * weight_us
