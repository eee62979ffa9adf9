"""The calibrated slack policy: choose the wait so that the promised share of periods meets the target."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NotRequired, TypedDict

import numpy as np

from latecomer.core.arrays.knob_cells import CELLS, cell_edges
from latecomer.core.state import StateDocument, check_version
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import Float64, Int64, Observed, SlackPolicy

MEMORY = 80
"""Window sizes after which a finally observed window counts 1/e: four times the sizes in which a loss of 0.05 is seen
once on average."""

RESERVE = 0.5
"""Least share of the promised loss that is aimed at: the other half pays for what is learnt too late."""

STEER = 4.0
"""How strongly the aim falls with losses above it."""

LEAST_AIM = 0.05
"""The aim never falls below this share of the promised loss: below, one answer would decide."""

REACH = 1.5
"""Requirements of single periods count up to so many times what all answers together require."""

MARGIN = 1.2
"""Factor on the requirement that was learnt (rule 6)."""

STATE_VERSION = 3
FIRST_VERSION = 2
"""The oldest version of a state that is read; versions from 4 on are of the bounded slack."""


class CalibratedSlackState(TypedDict):
    """The state of `CalibratedSlack` as JSON; version 2 lacks ``worst`` and ``recent``."""

    version: int
    largest_us: int
    past: tuple[list[int], list[float], float]
    open: list[tuple[int, list[int], list[float], float]]
    worst: NotRequired[list[tuple[int, int, float]]]
    recent: NotRequired[list[tuple[int, list[int], list[float]]]]


def is_calibrated(state: StateDocument) -> bool:
    """Return whether a policy's state is that of a `CalibratedSlack`."""
    version = state.get("version")
    return isinstance(version, int) and FIRST_VERSION <= version <= STATE_VERSION


class CalibratedSlack(SlackPolicy):
    """The slack that loses at most the promised share of answers, learnt from what they required.

    There is no model of delays.

    A contribution is one answer (of an aggregate: one group's window; of a top-k: one member). It requires the least
    slack that would have kept its promise. With ``delta = 1 - target``, ``lambda`` the share of remembered answers
    that were lost and `base` the share of `delta` that is aimed at:

    ``aim = delta * clip(base - STEER * excess, LEAST_AIM, base)``, ``excess = lambda / delta - base``

    ``K = Q_{1 - aim}(required) * (1 + max(excess, 0))``, at most the largest delay so far (unless the quantile is
    more itself).

    1. *Memory over windows, not periods.* `Q` is the greater of two quantiles: of all remembered answers, where a
       window fades after `MEMORY` window sizes, and of those whose observation is not over. The first is the
       conformal one. The second makes it follow a regime that has just begun. Nothing but forgetting makes it fall
       again.
    2. *Provisional observation* (:mod:`latecomer.core.windows.control`): a window counts from one size after its end
       with what is known then. Its requirement can only look smaller than it is, and grows to the truth as the window
       is observed again.
    3. *Feedback from losses*, as in adaptive conformal inference [1]_ [2]_: quantiles of the past are too small while
       delays grow. First a higher quantile is asked for. When the past holds none that is high enough, the second
       factor goes beyond it. Both end as losses are diluted. An unspent budget is not spent: `aim` never exceeds
       ``base * delta``.
    4. *Periods.* With `n` disjoint windows in a period, ``base = 1 - z * sqrt((1 - delta) / (delta n))``, `z` the
       normal quantile of `share`, makes a period of independent answers keep the promise with probability `share`.
       `RESERVE` is its least value: where a period has few windows, answers are not independent but go wrong
       together, and no margin on their number is right.
    5. *The worst period.* So `K` is at least the slack with which each of the last ``ceil(share / (1 - share))``
       periods would have lost no more than `delta` of its own answers (the newest: of as many as the others had on
       average). As in :mod:`latecomer.core.join.calibrated_control`, the next of exchangeable periods exceeds all of
       them with probability ``1 - share``. But `K` is never more than `REACH` times the above, so that one absurd row
       does not cost a hundredfold wait for as many periods. A requirement that came, went and came again is not
       absurd: where periods before and after one required it and that one did with far less, `K` is that requirement,
       whatever the above say. (An outage over midnight and a regime that ended are in periods that follow each
       other.)
    6. *A margin that stays.* The above leaves nothing over for what is learnt too late, so `K` is raised by `MARGIN`,
       but not beyond the largest delay so far.
    7. *Start.* Until ``1 / delta`` answers were seen the slack is the largest delay so far.

    Late rows are registered, so nothing is censored but by time: rows that come after the final observation are not
    seen. The promise is reported from measured answers, never from the expectation of this class. Rejected variants
    and their numbers: docs/experiments/variants.md, "The slack of windows".

    Parameters
    ----------
    target : float
        Share of answers that must be within the error, in (0, 1).
    grid : Grid
        The windows.
    period_us : int
        Period of the promise, microseconds.
    share : float
        Share of periods that must keep it, in (0, 1).

    Raises
    ------
    ValueError
        A share is not between 0 and 1.

    References
    ----------
    .. [1] Gibbs and Candes, "Adaptive conformal inference under distribution shift", 2021.
    .. [2] Angelopoulos, Candes and Tibshirani, "Conformal PID control for time series prediction", 2023.
    """

    needs_observation = True
    provisional = True

    def __init__(self, target: float, grid: Grid, period_us: int, share: float) -> None:
        if not 0 < target < 1:
            raise ValueError(f"target is {target}: give a share between 0 and 1, both excluded")
        if not 0 < share < 1:
            raise ValueError(f"share is {share}: give a share of periods between 0 and 1, both excluded")
        self.delta, self.granularity_us = 1.0 - target, grid.granularity_us
        disjoint = max(period_us / grid.size_us, 1.0)
        margin = max(NormalDist().inv_cdf(share), 0.0) * math.sqrt((1.0 - self.delta) / (self.delta * disjoint))
        self.base = max(1.0 - margin, RESERVE)
        self._keep = 1.0 - grid.slide_us / (MEMORY * grid.size_us)
        self._edges = cell_edges(grid.granularity_us)
        self.grid, self.period_us = grid, period_us
        self.periods = max(math.ceil(share / (1.0 - share) - 1e-9), 1)
        self.largest_us = 0
        self._worst: dict[int, tuple[int, float]] = {}
        self._recent: dict[int, Float64] = {}
        self._need: dict[int, int] = {}
        self._past, self._past_lost = np.zeros(CELLS), 0.0
        self._open: dict[int, tuple[Int64, Float64, float]] = {}
        self._now, self._now_lost = np.zeros(CELLS), 0.0

    def delays(self, largest_us: int) -> None:
        """Remember the largest delay, for the start and as the bound of what losses may add."""
        self.largest_us = max(self.largest_us, largest_us)

    def observe(self, seen: Observed, slack_us: int, interval: int) -> None:
        """Count the answers of a window; they replace what was known of it."""
        cell = np.minimum(np.searchsorted(self._edges, seen.required_us, side="left"), CELLS - 1)
        counts: Float64 = np.bincount(cell, seen.weight, CELLS).astype(np.float64)
        counts[0] += max(seen.total - float(seen.weight.sum()), 0.0)
        known, lost = np.flatnonzero(counts), seen.lost(slack_us)
        period = int((self.grid.end(seen.window) - 1) // self.period_us)
        recent = self._recent.setdefault(period, np.zeros(CELLS))
        recent += counts
        self._need.pop(period, None)
        before = self._open.pop(seen.window, None)
        if before is not None:
            recent[before[0]] -= before[1]
            self._now[before[0]] -= before[1]
            self._now_lost -= before[2]
        if seen.final:
            self._finish_periods(period)
            self._past *= self._keep
            self._past += counts
            self._past_lost = self._past_lost * self._keep + lost
            return
        self._open[seen.window] = (np.asarray(known, np.int64), counts[known], lost)
        self._now[known] += counts[known]
        self._now_lost += lost

    @property
    def answers(self) -> float:
        """The number of remembered answers."""
        return float(self._past.sum() + self._now.sum())

    @property
    def known_periods(self) -> int:
        """The number of remembered periods but for the newest, which is not over."""
        return len(self._worst.keys() | self._recent.keys()) - 1

    def choose(self, interval: int) -> int:
        """Return the slack; the largest delay so far while too little is known."""
        required = self._past + self._now
        total = float(required.sum())
        if total * self.delta < 1.0 - 1e-9:
            return self.largest_us
        # rule 3: the aim falls with the losses above it
        excess = (self._past_lost + self._now_lost) / (total * self.delta) - self.base
        aim = self.delta * min(max(self.base - STEER * excess, LEAST_AIM), self.base)
        slack = self._quantile(required, aim)
        if self._open:  # rule 1: the quantile of those whose observation is not over
            slack = max(slack, self._quantile(self._now, aim))
        slack = max(slack, min(int(slack * (1.0 + max(excess, 0.0))), self.largest_us))
        worst, again = self._worst_periods()  # rule 5
        slack = max(slack, min(worst, int(slack * REACH)), again)
        slack = max(slack, min(int(slack * MARGIN), self.largest_us))  # rule 6
        return -(-slack // self.granularity_us) * self.granularity_us

    def _quantile(self, required: Float64, aim: float, answers: float = 0.0) -> int:
        """Return the least slack that loses at most the share `aim` of the answers, or of `answers` if that is more."""
        lost = required[::-1].cumsum()[::-1] - required
        return int(self._edges[np.argmax(lost <= aim * max(float(required.sum()), answers) + 1e-9)])

    def _finish_periods(self, period: int) -> None:
        """Keep only the requirement and the number of answers of periods before one; windows become final in order."""
        for finished in sorted(before for before in self._recent if before < period):
            answers = float(self._recent[finished].sum())
            slack, before = self._worst.get(finished, (0, 0.0))  # known already where statistics were adapted since
            self._worst[finished] = (max(slack, self._needed(finished)), max(before, answers))
            self._recent.pop(finished), self._need.pop(finished)
        while len(self._worst) > self.periods:
            del self._worst[min(self._worst)]

    def _worst_periods(self) -> tuple[int, int]:
        """Return the largest requirement of a remembered period, and the largest that came again; 0 for none.

        A requirement came again where periods before and after one had it, and that one did with so much less that the
        requirement is out of its `REACH`.
        """
        needs = {period: known[0] for period, known in self._worst.items()}
        if self._recent:
            *others, newest = sorted(self._recent)
            answers = {period: known[1] for period, known in self._worst.items()}
            for period in others:
                needs[period], answers[period] = self._needed(period), float(self._recent[period].sum())
            whole = sum(answers[period] for period in sorted(answers)) / max(len(answers), 1)
            needs[newest] = self._quantile(self._recent[newest], self.delta, whole)
        kept = np.array([needs[period] for period in sorted(needs)[-self.periods - 1 :]], np.int64)
        if len(kept) < 3:
            return int(kept.max(initial=0)), 0
        before, after = np.maximum.accumulate(kept)[:-2], np.maximum.accumulate(kept[::-1])[::-1][2:]
        both = np.minimum(before, after)
        return int(kept.max()), int(both[both > REACH * kept[1:-1]].max(initial=0))

    def _needed(self, period: int) -> int:
        """Return what a recent period requires, as known now."""
        if period not in self._need:
            self._need[period] = self._quantile(self._recent[period], self.delta)
        return self._need[period]

    def to_dict(self) -> CalibratedSlackState:
        """Return the state as JSON; floats survive JSON exactly."""
        cells = np.flatnonzero(self._past)
        recent = []
        for period, counts in sorted(self._recent.items()):
            at = np.flatnonzero(counts)
            recent.append((period, at.tolist(), counts[at].tolist()))
        return {
            "version": STATE_VERSION,
            "largest_us": self.largest_us,
            "past": (cells.tolist(), self._past[cells].tolist(), self._past_lost),
            "open": [(w, at.tolist(), count.tolist(), lost) for w, (at, count, lost) in sorted(self._open.items())],
            "worst": [(period, *known) for period, known in sorted(self._worst.items())],
            "recent": recent,
        }

    @classmethod
    def from_dict(
        cls, state: CalibratedSlackState, target: float, grid: Grid, period_us: int, share: float
    ) -> CalibratedSlack:
        """Continue from the state that `to_dict` wrote; version 2 remembered no periods and begins to do so now.

        Raises
        ------
        OtherVersion
            Another version of the program wrote the state.
        """
        check_version("state of the calibrated slack", state, FIRST_VERSION, STATE_VERSION)
        policy = cls(target, grid, period_us, share)
        policy.largest_us = int(state["largest_us"])
        cells, counts, lost = state["past"]
        policy._past_lost = float(lost)
        policy._past[np.array(cells, np.int64)] = counts
        for period, slack, answers in state.get("worst", ()):
            policy._worst[int(period)] = int(slack), float(answers)
        for period, at, count in state.get("recent", ()):
            policy._recent[int(period)] = np.zeros(CELLS)
            policy._recent[int(period)][np.array(at, np.int64)] = count
        for window, at, count, lost in state["open"]:
            known, weights = np.array(at, np.int64), np.array(count, np.float64)
            policy._open[int(window)] = (known, weights, float(lost))
            # counts are whole numbers, so this sum is exact in whatever order
            policy._now[known] += weights
            policy._now_lost += float(lost)
        return policy
