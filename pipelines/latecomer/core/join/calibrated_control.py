"""The calibrated controller of a join's buffers: it aims at the share of periods that meet the target.

A buffer's knob is its retention `d`, and the loss falls as the knob grows. The knob value that a contribution
*requires* does not depend on the knob in force, so a completed period is a curve: loss as a function of the knob. The
promise to keep: at least `target` of a period's contributions are on time, in at least `share` of the periods.
(Windowed kinds have such curves per window, not per period:
:class:`latecomer.core.windows.calibrated_slack.CalibratedSlack`.)

The rule
--------
Choose the least cost ``sum over knobs of cost_rate * (knob - floor)`` such that *every remembered period, and the
current one so far,* would have lost at most the share ``aim`` of its contributions. With two knobs (the two buffers of
a join) the feasible set is bounded by a staircase, and one two-pointer sweep finds its cheapest point.

1. *Conformal memory.* Under exchangeability the next period's loss exceeds the greatest of the last `n` with
   probability at most ``1 / (n + 1)`` (split conformal prediction). The least `n` that makes this ``1 - share`` is ``M
   = share / (1 - share)``: 19 periods for 0.95. With `k` knobs chosen by cost, up to `k` periods support the optimum,
   and the bound is ``k / (n + 1)`` (the scenario approach). So exactly ``k / (1 - share) - 1`` periods are remembered,
   39 for two knobs. A longer memory would exceed the promise, and would forget a past regime later.
2. *Margin while few periods are known.* With ``n < M`` periods the bound is only ``1 / (n + 1)``. The aim is reduced
   in its place: ``aim = (1 - target) * ((n + 1) / (M + 1))^gamma``. If the tail of a period's loss is no heavier than
   ``P(loss > x) ~ x^(-1 / gamma)``, the chance of a miss is again ``1 - share``. The index is learned: it is the
   standard deviation of the remembered periods' log losses at the knobs that the whole aim would choose, with
   `PRIOR_PERIODS` more periods of scatter `PRIOR_SCATTER` (a period without loss counts as one that lost one
   contribution). So streams whose periods resemble each other pay little. The index is at most 1, the heaviest tail
   whose scale a linear factor can make up for. The margin ends when `M` periods are known. It is a modelling
   assumption, not a theorem.
3. *Steering inside the period*, after equation (3) of QJoin: the current period's losses so far determine the share
   that its rest may still lose. Where that is below `aim`, the aim is reduced by the same factor, to at least
   `LEAST_STEER`. It is never raised: a horizon that has moved does not come back, so spending a budget at the end of a
   period would cost the next one. A period that has exceeded its whole allowance is lost in any case; its rest aims at
   `LOST_STEER`, for the sake of the next period.
4. *Regime change.* The current period is a constraint from its first interval. Its losses are measured against a whole
   period's contributions, so a handful of early ones does not decide, and a burst does at once. A past regime is
   forgotten with its last remembered period: memory is spent on the promise first.
5. *Feedback from broken promises*, as in adaptive conformal inference: where delays drift, every new period exceeds
   all before. With `m` remembered periods that (by estimate) broke the promise, where ``m0 = (1 - share)(n + 1)`` may,
   the aim is divided by ``1 + max(m - m0, 0)``. The stronger of this and the margin of rule 2 holds, not both: a
   broken period already widens the scatter that the margin learns its index from.
6. *Separate knobs.* Often one stream of a join is late and the other is not; a common value would cost twice.
7. *A margin that stays.* The least cost that the remembered periods would have met leaves nothing over: the bound of
   rule 1 then holds with equality at best, and rules 2 to 5 work with estimates. So the knob's span above its floor is
   multiplied by `MARGIN`.

Before the first full period, and while no contribution has been seen, the answer is `FOREVER`. Rule 2 makes up for few
periods, but not for few contributions, nor for periods in which nothing was late: there the join widens the choice
(:mod:`latecomer.core.join.retention_policies`).

The controller cannot foresee the first period of a worse regime. Retention does not bring back rows that were dropped,
so a jump in the required value costs at least the periods in which it first occurs. Therefore the ledger reports the
promise from measured recall, never from this module's expectation. The measurements behind the rules, and the variants
that were rejected, are in ``docs/experiments/variants.md``.

Ordering: intervals in order of stream time, any order inside an interval. Cost: O(cells) per interval and
O(periods x cells) per decision, with `CELLS` cells whatever the delays. State: one sparse histogram per remembered
period.

References
----------
Gibbs and Candes, "Adaptive conformal inference under distribution shift", 2021; Angelopoulos, Candes and Tibshirani,
"Conformal PID control for time series prediction", 2023 (the starting point: a quantile of past periods' requirements
and a correction from measured losses); QJoin 2020, equation (3) (the budget). The controller is first published here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np
from numba import njit

from latecomer.core.arrays.knob_cells import CELLS, cell_edges
from latecomer.core.arrays.sparse_counts import Float64Array, Int64Array
from latecomer.core.state import check_version
from latecomer.core.time import FOREVER

LEAST_STEER = 0.05
"""The least factor on the aim of a period in trouble (rule 3): below, one pair would decide."""
LOST_STEER = 0.5
"""The factor on the aim of a period that has exceeded its allowance (rule 3)."""
MARGIN = 1.05
"""The factor on the span that the remembered periods required (rule 7)."""
PRIOR_PERIODS = 2.0
"""The number of periods that the prior of rule 2 is worth."""
PRIOR_SCATTER = 0.7
"""The standard deviation of the log losses of periods in the prior of rule 2."""
STATE_VERSION = 1


@dataclass(frozen=True)
class IntervalLoss:
    """The knob values that the contributions of one interval required.

    Attributes
    ----------
    interval : int
        The number of the adaptation interval since the epoch.
    required_us : tuple of int64[n_k], one per knob
        The least knob values that keep the contributions.
    weight : tuple of float64[n_k], one per knob
        Contributions per value, estimated where they could not be seen.
    lost : float
        Estimated contributions lost under the knobs that were in force.
    cost_rate : tuple of float, one per knob
        The cost of one more microsecond of the knob, in a unit common to all knobs (rows that arrived).
    """

    interval: int
    required_us: tuple[Int64Array, ...]
    weight: tuple[Float64Array, ...]
    lost: float
    cost_rate: tuple[float, ...]


class PeriodState(TypedDict):
    """The state of one period as JSON: per knob its non-empty cells and their weights, then losses and costs."""

    cells: list[list[int]]
    weights: list[list[float]]
    lost: float
    cost: list[float]
    intervals: int


class CalibratedState(TypedDict):
    """The parameters and the state of a `Calibrated` as JSON."""

    version: int
    target: float
    period_us: int
    interval_us: int
    granularity_us: int
    floor_us: list[int]
    share: float
    first: int | None
    period: int | None
    past: list[PeriodState]
    current: PeriodState


@dataclass
class _Period:
    """One period: its histogram float64[knobs, CELLS], estimated losses, and cost rates summed over its intervals."""

    required: Float64Array
    lost: float = 0.0
    cost: list[float] = field(default_factory=list)
    intervals: int = 0

    @property
    def total(self) -> float:
        return float(self.required.sum())

    def to_dict(self) -> PeriodState:
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
    def from_dict(cls, state: PeriodState) -> _Period:
        required = np.zeros((len(state["cells"]), CELLS))
        for row, cells, weights in zip(required, state["cells"], state["weights"], strict=True):
            row[np.asarray(cells, dtype=np.int64)] = weights
        return cls(required, float(state["lost"]), [float(c) for c in state["cost"]], int(state["intervals"]))


@dataclass(frozen=True)
class _Curves:
    """The loss curves of the remembered periods, computed once per period.

    Attributes
    ----------
    tails : float64[p + 1, knobs, CELLS]
        The loss of each period by knob and cell; the last row is reserved for the current period.
    totals : float64[p]
        The contributions of each period.
    contributions, mean : float
        The sum and the mean of `totals`.
    missed : int
        The periods that broke the promise, by estimate.
    cost_rate : float64[knobs]
        The mean cost rate of a knob per interval.
    end : int
        The first cell from which the last knob loses nothing of any period.
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
        """Return the curves of `past`, which is not empty."""
        tails = np.zeros((len(past) + 1, *past[0].required.shape))
        end = max(_tail(p.required, tail) for p, tail in zip(past, tails, strict=False))
        totals = np.array([p.total for p in past])
        missed = sum(p.lost > (1 - target) * total for p, total in zip(past, totals, strict=True))
        intervals = sum(p.intervals for p in past)
        cost_rate = [sum(p.cost[k] for p in past) / intervals for k in range(len(past[0].cost))]
        return cls(tails, totals, float(sum(totals)), float(totals.mean()), missed, np.array(cost_rate), end)


class Calibrated:
    """The calibrated controller, a deterministic state machine: `observe` each complete interval, `choose` for the
    next.

    Parameters
    ----------
    target : float
        The share of a period's contributions to be on time, in (0, 1).
    period_us, interval_us, granularity_us : int
        `P`, `L` and `g`.
    floor_us : tuple of int, one or two (left and right retention)
        The least useful value of each knob, where its cost is nil: ``-w`` for retention.
    share : float
        The share of periods that must meet the target.

    Attributes
    ----------
    memory : int
        `M`, the periods after which the margin of rule 2 ends.
    most_periods : int
        The periods remembered (rule 1).

    Raises
    ------
    ValueError
        For a value out of range; the message names the value and the remedy.
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
        """Learn from one complete interval; in order, intervals without arrivals may be left out."""
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
        """Return a value in microseconds per knob for `interval`; `FOREVER` retains everything."""
        everything = (FOREVER,) * len(self.floor_us)
        if not self.warmed_up(interval):
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

    def warmed_up(self, interval: int) -> bool:
        """Return whether a whole period lies between the first interval and `interval`."""
        return self._first is not None and (interval - self._first) * self.interval_us >= self.period_us

    def remembered(self) -> tuple[int, float]:
        """Return the number of remembered periods, without the current one, and of the contributions in them."""
        return len(self._past), self._past_curves().contributions if self._past else 0.0

    def to_dict(self) -> CalibratedState:
        """Return parameters and state as JSON, which floats survive: the shortest text that reads back the same."""
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
    def from_dict(cls, state: CalibratedState) -> Calibrated:
        """Return the controller that `to_dict` wrote.

        Raises
        ------
        OtherVersion
            If another version of the program wrote the state.
        """
        check_version("state of the calibrated retention", state, STATE_VERSION)
        controller = cls(
            state["target"],
            state["period_us"],
            state["interval_us"],
            state["granularity_us"],
            tuple(state["floor_us"]),
            state["share"],
        )
        controller._first, controller._period = state["first"], state["period"]
        controller._past = [_Period.from_dict(p) for p in state["past"]]
        controller._current = _Period.from_dict(state["current"])
        return controller

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
        """Return the constraints of rules 1, 3 and 4.

        Returns
        -------
        tails : float64[p, knobs, CELLS]
            The loss of each period by knob and cell.
        limits : float64[p]
            The loss that each period may have.
        end : int
            As in `_Curves`.
        """
        past, current = self._past_curves(), self._current
        assert self._period is not None
        aim = 1 - self.target
        so_far = current.total
        elapsed = (interval * self.interval_us - self._period * self.period_us) / self.period_us
        if so_far <= 0 or elapsed <= 0:
            return past.tails[:-1], aim * past.totals, past.end
        rest = so_far * max(1 - elapsed, 0.0) / elapsed
        if rest > 0:
            # QJoin's equation (3), solved for the share that the rest of the period may lose
            may_lose = ((1 - self.target) * (so_far + rest) - max(current.lost, 0.0)) / rest
            steer = may_lose / (1 - self.target)
            aim *= min(1.0, max(steer, LEAST_STEER)) if steer > 0 else LOST_STEER
        end = max(_tail(current.required, past.tails[-1]), past.end)
        return past.tails, aim * np.append(past.totals, max(so_far, past.mean)), end

    def _least(self, tails: Float64Array, limits: Float64Array, end: int) -> tuple[int, int]:
        """Return the cells of the knobs that meet every limit at least cost."""
        cells: tuple[int, int] = _cheapest(
            tails, limits * (1 + 1e-12) + 1e-9, self._past_curves().cost_rate, self._edges, end
        )
        return cells

    def _caution(self, tails: Float64Array, at: tuple[int, int]) -> float:
        """Return the factor on the aim, in (0, 1], of rules 2 and 5; `at` are the cells that the whole aim chooses."""
        past = self._past_curves()
        periods = len(past.totals)
        caution = 1 / (1 + max(past.missed - (1 - self.share) * (periods + 1), 0.0))
        known = (periods + 1) / (self.memory + 1)
        if known >= 1:
            return caution
        lost = sum(tails[:periods, knob, at[knob]] for knob in range(len(self.floor_us)))
        scatter = np.log(np.maximum(lost, 1.0) / past.totals)
        spread = PRIOR_PERIODS * PRIOR_SCATTER**2 + float(((scatter - scatter.mean()) ** 2).sum())
        index = math.sqrt(spread / (PRIOR_PERIODS + periods - 1))
        return float(min(caution, known ** min(index, 1.0)))


@njit(cache=True)
def _count(required: Int64Array, weight: Float64Array, floor: int, edges: Int64Array, counts: Float64Array) -> None:
    """Add the weights to `counts`, float64[CELLS], at the cells of the required values (us)."""
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
    """Write each knob's loss per cell to `out`, float64[knobs, CELLS], and return the last knob's `end` (`_Curves`)."""
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
    """Return a period that exceeds its limit, or -1; period `first` is tested first."""
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
    """Return the cells of the knobs that meet every limit at least cost; the second is 0 where there is one knob.

    ``tail[p, k, c]`` is the loss of period `p` by knob `k` at cell `c`: non-increasing in `c`, 0 in the last cell and
    for the last knob from `end` on. So as the first knob rises the least second knob falls, and either pointer moves
    one way only. The sweep ends where the first knob alone costs as much as the best pair.
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
