"""Calibrated: the controller of a join's buffers, that aims at the share of periods which keep the promise.

Ordering: none inside an interval; intervals in order of stream time. Cost: O(cells) per interval and
O(periods x cells) per decision, cells fixed (`CELLS`), whatever the delays. State: one sparse histogram per remembered
period. First published: here.

A buffer's knob is its retention `d`, and the loss falls as the knob grows. The value each contribution *requires* is known
whatever was chosen, so a completed period is a curve: loss as a function of the knob. (Windowed kinds have the same
curves per window, not per period: :class:`latecomer.core.windows.calibrated_slack.CalibratedSlack`.)
The user promised that at least `target` of a period's contributions are on time, in at least `share` of periods.

The rule
--------
Least cost ``sum over knobs of cost_rate * (knob - floor)`` such that *every remembered period, and the current one so
far,* would have lost at most the share ``aim`` of its contributions. With two knobs (the two buffers of a join) the
feasible set is a staircase and one two-pointer sweep finds its cheapest point.

1. *Conformal memory.* Under exchangeability the next period's loss exceeds the greatest of the last `n` with
   probability at most ``1 / (n + 1)`` (split conformal prediction). The least `n` that makes this ``1 - share`` is
   ``M = share / (1 - share)``, 19 periods for 0.95. With `k` knobs chosen by cost up to `k` periods hold the optimum up, and the bound is
   ``k / (n + 1)`` (the scenario approach): so exactly ``k / (1 - share) - 1`` periods are remembered, 39 for two. More would pay for a
   guarantee nobody asked for, and would forget a past regime later. Five kinds of streams with delays of many periods (200 periods
   of 250 pairs, the last 100 of them): with 19 remembered 0.88 of the periods were kept, with 39 0.93, for a fifth more rows.
2. *Margin while few periods are known.* With ``n < M`` periods the same bound gives only ``1 / (n + 1)``. We ask for
   more on-time contributions instead: ``aim = (1 - target) * ((n + 1) / (M + 1))^gamma``. If the tail of a period's loss is
   no heavier than ``P(loss > x) ~ x^(-1 / gamma)``, the chance of a miss is again ``1 - share``. The index is learned from the
   scatter of the remembered periods: the standard deviation of their log losses at the knobs that the whole aim would choose, and as if
   `PRIOR_PERIODS` more periods had scattered by `PRIOR_SCATTER` (a period that lost nothing counts as one that lost one
   contribution). So streams whose periods resemble each other pay little, streams with wild ones up to ``gamma = 1``, the
   heaviest tail whose scale a linear factor can make up for. The margin is gone once `M` periods are known. It is a
   modelling assumption, not a theorem; the experiments show what it buys.
3. *Steering inside the period*, as equation (3) of QJoin: from what the current period has lost so far, the share that
   its rest may still lose. If that is less than `aim`, aim is reduced by the same factor (no lower than a twentieth).
   It is never raised: an unspent budget is not spent at the end of a period, because the horizon, once moved, does
   not come back and the next period would pay. A period that has lost all it may is lost whatever is kept: its rest aims at
   half, for the sake of the next.
4. *Regime change.* The current period joins the remembered ones from its first interval, its losses measured against
   a whole period's contributions, so that a handful of early pairs does not decide and a burst does at once. A
   regime that ends is forgotten with its last remembered period: memory is spent on the promise first.
5. *Feedback from broken promises*, as in adaptive conformal inference: periods are not exchangeable when delays drift,
   and every new one exceeds all before. So with `m` remembered periods that (by estimate) broke the promise where
   ``m0 = (1 - share)(n + 1)`` may, aim is divided by ``1 + (m - m0)+``; each breach counts while it is remembered. Of this and
   the margin of rule 2 the stronger holds, not both: a breach is one of the periods that the margin learns its index from.
6. *Knobs are chosen apart.* Often one stream of a join is late and the other is not; a common value pays twice.
7. *A margin that stays.* The least cost that the remembered periods would have kept leaves nothing over: the bound of rule 1 is then met
   with equality at best, and what rules 2 to 5 know is estimated. So the knob's span above its floor is raised by `MARGIN`.
   On six kinds of streams looked at for the first time (10 to 22 periods, 90 to 1,200 pairs each, targets 0.85 to 0.99) a margin of 1.07
   raised the share of periods kept from 0.933 to 0.950 for 5% more rows; 1.05 does since more periods are remembered and the scatter
   of what was not seen counts (`histogram.TailEstimator`). A smaller aim buys less for more (0.8 of it: 6% more rows for 1.6% of periods,
   and fifteen times the rows where tails are heavy).

Before the first full period, and as long as no contribution has been seen, nothing can be chosen and the answer is
`FOREVER`. Rule 2 makes up for few periods but not for few contributions, nor for periods in which nothing was late: the
join widens what is chosen while evidence is thin (:mod:`latecomer.core.join.retention_policies`).

Tried and left out, since held-out streams or promises on network logs were worse: a fixed index in rule 2 (1: a fifth more rows
on games at a target of 0.99; 0.5: two foreseeable periods missed on dns with ssl); the index by Hill's estimator or from a
predictive distribution with a prior of index 1 (most of the rows that were to be saved stay: the first periods decide), or with the losses of
quiet periods counted as an eighth of what a period may lose (12 kinds of streams: no difference; dns with ssl: fewer rows, and a period more missed), or up
to 1.5 (rows, no promise); limits lowered by the Poisson error of a period's count, and rule 2 over parts of a period instead
of periods; a lost period left to the whole aim or a twentieth (dns with ssl at 0.9: 1.4 times the clairvoyant's rows in place of 1.3 with a
twentieth, as one burst decides; the whole: more of the following periods missed); the remembered requirements carried on along
their trend, by the slope less its standard error (delays that grow are kept in 0.95 of periods instead of 0.90, but a walk
costs a third more rows, and `MARGIN` does as well for all); the one old period left out that saves most, where 25 are known and it
halves the cost (a single bad period spreads over two or three, so nothing is saved: 23 kinds, rows and periods kept as before; left
out already for a sixth of the cost and from the fifth last on, mixtures of delays kept 0.90 of periods in place of 0.94).

What it cannot do: foresee the first period of a worse regime. Retention cannot bring back what was dropped, so a jump
in the required value costs at least the periods in which it is first seen. That is why the promise is reported from
measured recall in the ledger and never from this module's expectation.

References
----------
Gibbs and Candes, "Adaptive conformal inference under distribution shift", 2021; Angelopoulos, Candes and Tibshirani,
"Conformal PID control for time series prediction", 2023 (the starting point: a quantile of past periods' requirements
and a correction from measured losses); QJoin 2020, equation (3) (the budget).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.core.arrays.knob_cells import CELLS, Int64Array, cell_edges
from latecomer.core.state import check_version
from latecomer.core.time import FOREVER

Float64Array = NDArray[np.float64]

LEAST_STEER, LOST_STEER = 0.05, 0.5
"""A period in trouble aims at no less than the first part of its aim: below, one pair would decide; a lost one at the second."""
MARGIN = 1.05
"""Times the span that the remembered periods required (rule 7)."""
PRIOR_PERIODS = 2.0
PRIOR_SCATTER = 0.7
"""What rule 2 believes of the log losses of a stream's periods before it has seen them, and how many periods that is worth."""
STATE_VERSION = 1


@dataclass(frozen=True)
class IntervalLoss:
    """What one interval required of each knob.

    Attributes
    ----------
    interval : int
        Number of the adaptation interval since the epoch.
    required_us : tuple of int64[n_k], one per knob
        The least knob value that keeps the contribution.
    weight : tuple of float64[n_k], one per knob
        Contributions, estimated where they could not be seen.
    lost : float
        Estimated contributions lost under the knob that was in force.
    cost_rate : tuple of float, one per knob
        Cost of one more microsecond of the knob, in any unit common to all knobs (rows that arrived).
    """

    interval: int
    required_us: tuple[Int64Array, ...]
    weight: tuple[Float64Array, ...]
    lost: float
    cost_rate: tuple[float, ...]


@dataclass
class _Period:
    """One period's histogram (float64[knobs, CELLS]), estimated losses, cost rates summed over intervals."""

    required: Float64Array
    lost: float = 0.0
    cost: list[float] = field(default_factory=list)
    intervals: int = 0

    @property
    def total(self) -> float:
        return float(self.required.sum())

    def to_dict(self) -> dict[str, Any]:
        cells = [np.flatnonzero(row) for row in self.required]
        weights = [row[at].tolist() for row, at in zip(self.required, cells, strict=True)]
        return {
            "cells": [at.tolist() for at in cells],
            "weights": weights,
            "lost": self.lost,
            "cost": list(self.cost),
            "intervals": self.intervals,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> _Period:
        required = np.zeros((len(data["cells"]), CELLS))
        for row, cells, weights in zip(required, data["cells"], data["weights"], strict=True):
            row[np.asarray(cells, dtype=np.int64)] = weights
        return cls(required, float(data["lost"]), [float(c) for c in data["cost"]], int(data["intervals"]))


@dataclass(frozen=True)
class _Curves:
    """What the remembered periods say, worked out once per period.

    `tails` is float64[p + 1, knobs, CELLS]: what each period loses by knob and cell; the last row is the current period's, to be
    filled in. `totals` is float64[p], `contributions` and `mean` their sum and mean, `cost_rate` the mean cost of a knob per
    interval, float64[knobs]. From cell `end` on the last knob loses nothing of the p periods.
    """

    tails: Float64Array
    totals: Float64Array
    contributions: float
    mean: float
    missed: int
    cost_rate: Float64Array
    end: int

    @classmethod
    def of(cls, past: list[_Period], target: float) -> _Curves:
        """Of `past`, which is not empty."""
        tails = np.zeros((len(past) + 1, *past[0].required.shape))
        end = max(_tail(p.required, tail) for p, tail in zip(past, tails, strict=False))
        totals = np.array([p.total for p in past])
        missed = sum(p.lost > (1 - target) * total for p, total in zip(past, totals, strict=True))
        intervals = sum(p.intervals for p in past)
        cost_rate = [sum(p.cost[k] for p in past) / intervals for k in range(len(past[0].cost))]
        return cls(tails, totals, float(sum(totals)), float(totals.mean()), missed, np.array(cost_rate), end)


class Calibrated:
    """A deterministic state machine: ``observe`` every complete interval, ``choose`` for the next.

    Parameters
    ----------
    target : float
        Share of a period's contributions to be on time, in (0, 1).
    period_us, interval_us, granularity_us : int
        `P`, `L` and `g`.
    floor_us : tuple of int, one or two (left and right retention)
        Least useful value of each knob, where its cost is nil: ``-w`` for retention.
    share : float
        Share of periods that must meet the target.

    Raises
    ------
    ValueError
        For values out of range; the message names the value and what to do.
    """

    def __init__(
        self,
        target: float,
        period_us: int,
        interval_us: int,
        granularity_us: int,
        floor_us: tuple[int, ...],
        share: float = 0.95,
    ) -> None:
        if not 0 < target < 1:
            raise ValueError(f"target is {target}: give a share between 0 and 1, both excluded")
        if not 0 < share < 1:
            raise ValueError(f"share is {share}: give a share of periods between 0 and 1, both excluded")
        if not 0 < interval_us <= period_us or granularity_us < 1:
            raise ValueError(
                f"interval {interval_us} us, period {period_us} us, granularity {granularity_us} us: "
                "give positive spans, the interval no longer than the period"
            )
        if len(floor_us) not in (1, 2):
            raise ValueError(f"{len(floor_us)} knobs: one or two are supported")
        self.target, self.share = float(target), float(share)
        self.period_us, self.interval_us, self.granularity_us = int(period_us), int(interval_us), int(granularity_us)
        self.floor_us = tuple(int(f) for f in floor_us)
        self.memory = max(math.ceil(share / (1 - share) - 1e-9), 1)
        self.most_periods = max(math.ceil(len(floor_us) / (1 - share) - 1 - 1e-9), 1)
        self._edges = cell_edges(self.granularity_us)
        self._first: int | None = None
        self._period: int | None = None
        self._past: list[_Period] = []
        self._curves: _Curves | None = None
        self._current = self._blank()

    def observe(self, loss: IntervalLoss) -> None:
        """Take in one complete interval; intervals come in order, those without arrivals may be left out."""
        if self._first is None:
            self._first = loss.interval
        self._enter(self._period_of(loss.interval))
        current = self._current
        for knob, floor in enumerate(self.floor_us):
            required = np.asarray(loss.required_us[knob], dtype=np.int64)
            _count(required, np.asarray(loss.weight[knob], np.float64), floor, self._edges, current.required[knob])
            current.cost[knob] += float(loss.cost_rate[knob])
        current.lost += float(loss.lost)
        current.intervals += 1

    def choose(self, interval: int) -> tuple[int, ...]:
        """Knob values in microseconds for `interval`, one per knob; `FOREVER` keeps everything."""
        everything = (FOREVER,) * len(self.floor_us)
        if not self.warm(interval):
            return everything
        self._enter(self._period_of(interval))
        if not self._past:
            return everything
        tails, limits, end = self._constraints(interval)
        at = self._least(tails, limits, end)
        caution = self._caution(tails, at)
        if caution < 1:
            at = self._least(tails, caution * limits, end)
        spans = (min(int(self._edges[cell] * MARGIN), FOREVER) for cell in at)
        return tuple(floor + span for floor, span in zip(self.floor_us, spans, strict=False))

    def warm(self, interval: int) -> bool:
        """Has one period of stream time passed between the first interval and `interval`?"""
        return self._first is not None and (interval - self._first) * self.interval_us >= self.period_us

    def known(self) -> tuple[int, float]:
        """Periods remembered, without the current one, and the contributions in them."""
        return len(self._past), self._past_curves().contributions if self._past else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Parameters and state, JSON-able; floats survive JSON exactly (shortest repr that reads back the same)."""
        return {
            "version": STATE_VERSION,
            "target": self.target,
            "period_us": self.period_us,
            "interval_us": self.interval_us,
            "granularity_us": self.granularity_us,
            "floor_us": list(self.floor_us),
            "share": self.share,
            "first": self._first,
            "period": self._period,
            "past": [p.to_dict() for p in self._past],
            "current": self._current.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Calibrated:
        """Inverse of ``to_dict``."""
        check_version("state of the calibrated retention", data, STATE_VERSION)
        self = cls(
            data["target"],
            data["period_us"],
            data["interval_us"],
            data["granularity_us"],
            tuple(data["floor_us"]),
            data["share"],
        )
        self._first, self._period = data["first"], data["period"]
        self._past = [_Period.from_dict(p) for p in data["past"]]
        self._current = _Period.from_dict(data["current"])
        return self

    def _period_of(self, interval: int) -> int:
        return interval * self.interval_us // self.period_us

    def _blank(self) -> _Period:
        knobs = len(self.floor_us)
        return _Period(np.zeros((knobs, CELLS)), cost=[0.0] * knobs)

    def _enter(self, period: int) -> None:
        if self._period is not None and period <= self._period:
            return
        if self._current.total > 0:
            self._past = [*self._past, self._current][-self.most_periods :]
            self._curves = None
        self._period, self._current = period, self._blank()

    def _past_curves(self) -> _Curves:
        if self._curves is None:
            self._curves = _Curves.of(self._past, self.target)
        return self._curves

    def _constraints(self, interval: int) -> tuple[Float64Array, Float64Array, int]:
        """Losses float64[p, knobs, CELLS] and their `end` (see `_Curves`), what each period may lose float64[p]: rules 1, 3, 4."""
        known, current = self._past_curves(), self._current
        assert self._period is not None
        aim = 1 - self.target
        so_far = current.total
        elapsed = (interval * self.interval_us - self._period * self.period_us) / self.period_us
        if so_far <= 0 or elapsed <= 0:
            return known.tails[:-1], aim * known.totals, known.end
        rest = so_far * max(1 - elapsed, 0.0) / elapsed
        if rest > 0:
            may_lose = ((1 - self.target) * (so_far + rest) - max(current.lost, 0.0)) / rest
            left = may_lose / (1 - self.target)
            aim *= min(1.0, max(left, LEAST_STEER)) if left > 0 else LOST_STEER
        end = max(_tail(current.required, known.tails[-1]), known.end)
        return known.tails, aim * np.append(known.totals, max(so_far, known.mean)), end

    def _least(self, tails: Float64Array, limits: Float64Array, end: int) -> tuple[int, int]:
        """Cells of the knobs that meet every limit at least cost."""
        return _cheapest(tails, limits * (1 + 1e-12) + 1e-9, self._past_curves().cost_rate, self._edges, end)

    def _caution(self, tails: Float64Array, at: tuple[int, int]) -> float:
        """What the aim is multiplied by, in (0, 1], rules 2 and 5: `at` are the cells that the whole aim would choose."""
        known = self._past_curves()
        periods = len(known.totals)
        caution = 1 / (1 + max(known.missed - (1 - self.share) * (periods + 1), 0.0))
        few = (periods + 1) / (self.memory + 1)
        if few >= 1:
            return caution
        lost = sum(tails[:periods, knob, at[knob]] for knob in range(len(self.floor_us)))
        scatter = np.log(np.maximum(lost, 1.0) / known.totals)
        spread = PRIOR_PERIODS * PRIOR_SCATTER**2 + float(((scatter - scatter.mean()) ** 2).sum())
        index = math.sqrt(spread / (PRIOR_PERIODS + periods - 1))
        return min(caution, few ** min(index, 1.0))


@njit(cache=True)
def _count(required: Int64Array, weight: Float64Array, floor: int, edges: Int64Array, counts: Float64Array) -> None:
    """Add weights to the cells, float64[CELLS], that the required values (us) fall into."""
    for i in range(len(required)):
        need = max(required[i] - floor, 0)
        low, high = 0, len(edges) - 1
        while low < high:
            middle = (low + high) // 2
            if edges[middle] < need:
                low = middle + 1
            else:
                high = middle
        counts[low] += weight[i]


@njit(cache=True)
def _tail(required: Float64Array, out: Float64Array) -> int:
    """Contributions that each knob loses at each cell, float64[knobs, CELLS] into `out`; where the last knob's end."""
    knobs, cells = required.shape
    end = 0
    for knob in range(knobs):
        lost, end = 0.0, 0
        for cell in range(cells - 1, -1, -1):
            lost += required[knob, cell]
            out[knob, cell] = lost - required[knob, cell]
            if end == 0 and required[knob, cell] != 0:
                end = cell
    return end


@njit(cache=True)
def _refuses(tail: Float64Array, limits: Float64Array, left: int, right: int, first: int) -> int:
    """A period that loses more than it may, or -1; period `first` is asked first."""
    periods, two = tail.shape[0], tail.shape[1] == 2
    for i in range(-1, periods):
        period = first if i < 0 else i
        lost = tail[period, 0, left]
        if two:
            lost += tail[period, 1, right]
        if lost > limits[period]:
            return period
    return -1


@njit(cache=True)
def _cheapest(
    tail: Float64Array, limits: Float64Array, rate: Float64Array, edges: Int64Array, end: int
) -> tuple[int, int]:
    """Cells of the knobs (the second is 0 where there is one knob) that meet every limit at least cost.

    ``tail[p, k, c]``: contributions of period p that knob k loses at cell c, non-increasing in c, 0 in the last and for the
    second knob from `end` on. So as the first knob rises the least second knob falls, and both pointers move one way
    only. The sweep ends where the first knob alone costs what the best pair does.
    """
    cells = tail.shape[2]
    two = tail.shape[1] == 2
    best_left, best_right, best_cost = cells - 1, cells - 1 if two else 0, np.inf
    right, last = end if two else 0, 0
    for left in range(cells):
        if edges[left] * rate[0] >= best_cost:
            break
        refused = _refuses(tail, limits, left, right, last)
        if refused >= 0:
            last = refused
            continue
        while right > 0:
            refused = _refuses(tail, limits, left, right - 1, last)
            if refused >= 0:
                last = refused
                break
            right -= 1
        cost = edges[left] * rate[0]
        if two:
            cost += edges[right] * rate[1]
        if cost < best_cost:
            best_left, best_right, best_cost = left, right, cost
    return best_left, best_right
