"""The constants that the contributions of a history required, and what each constant would have lost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from latecomer.quality import promise

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

POINTS = 24
"""Constants on a curve, about."""
FAR = 4
"""Times the constant that reaches 0.99: longer ones are not acceptable."""


@dataclass(frozen=True)
class Requirements:
    """Contributions (answers, members, results, pairs) by the constant (wait, retention) that each required.

    Attributes
    ----------
    period_us : int
        Length of a period.
    start_us : int64[periods]
        Starts of the periods in which something was due, ascending.
    due : float64[periods]
        Contributions of each.
    period : int64[n]
        Place of a contribution's period.
    required_us : int64[n]
        The least constant that would have kept it.
    weight : float64[n]
        How many contributions required that; others of the period require nothing.
    """

    period_us: int
    start_us: Int64
    due: Float64
    period: Int64
    required_us: Int64
    weight: Float64

    @staticmethod
    def of(
        period_us: int,
        due_in: Int64,
        due: Float64,
        required_in: Int64,
        required_us: Int64,
        weight: Float64,
    ) -> Requirements:
        """Sum up contributions by period.

        Parameters
        ----------
        due_in, due
            Periods (us), and contributions of each; a period may stand several times.
        required_in, required_us, weight
            Periods (us), constants, and contributions that required them.
        """
        start, place = np.unique(due_in, return_inverse=True)
        totals = np.bincount(place, due, len(start)).astype(np.float64)
        some = totals > 0
        number = np.cumsum(some) - 1
        at = np.searchsorted(start, required_in)
        return Requirements(period_us, start[some], totals[some], number[at], required_us, weight)

    @cached_property
    def votes(self) -> NDArray[np.bool_]:
        """Whether a period counts: not one of a few stray rows (:func:`latecomer.quality.promise.is_small`)."""
        return ~promise.is_small(self.due)

    @property
    def total(self) -> float:
        """All contributions."""
        return float(self.due.sum())

    def recall(self, constant_us: int) -> float:
        """Return the share of contributions that a constant keeps; 1 where nothing is due."""
        return 1.0 - self.beyond(constant_us) / self.total if self.total else 1.0

    def beyond(self, constant_us: int) -> float:
        """Return the contributions that a constant loses."""
        return float(self.weight[self.required_us > constant_us].sum())

    def periods_met(self, constant_us: int, target: float) -> float:
        """Return the share of the periods that meet a target; 1 where there is none."""
        if not self.votes.any():
            return 1.0
        above = self.required_us > constant_us
        lost = np.bincount(self.period[above], self.weight[above], len(self.due))
        return float((lost <= (1 - target) * self.due + 1e-9)[self.votes].mean())

    def needed(self, target: float) -> Int64:
        """Return the least constant that meets a target in each period; int64[periods]."""
        order = np.lexsort((-self.required_us, self.period))
        period, required = self.period[order], self.required_us[order]
        sums = np.cumsum(self.weight[order])
        starts = np.searchsorted(period, np.arange(len(self.due)))
        before = np.append(0.0, sums)[starts]
        lost = sums - before[period]  # from the greatest requirement of the period on
        fails = lost > (1 - target) * self.due[period] + 1e-9
        least = np.full(len(self.due), self.floor_us)
        at = np.flatnonzero(fails)
        np.maximum.at(least, period[at], required[at])
        return least

    def least(self, target: float, confidence: float) -> int:
        """Return the least constant that meets a target in the promised share of periods; the floor without any."""
        needed = np.sort(self.needed(target)[self.votes])
        place = math.ceil(confidence * len(needed) - 1e-9) - 1
        return int(needed[max(place, 0)]) if len(needed) else self.floor_us

    @cached_property
    def floor_us(self) -> int:
        """The shortest constant that is considered."""
        return min(0, int(self.required_us.min())) if len(self.required_us) else 0

    def longest(self, target: float, confidence: float, at_least_us: int) -> int:
        """Return the longest constant that is acceptable.

        That is `FAR` times what the target, or 0.99, needs, and not more than all periods that count together. A single
        row of 1970 does not move it.
        """
        far = FAR * max(self.least(max(target, 0.99), confidence), 0)
        return max(min(far, int(self.votes.sum()) * self.period_us), at_least_us)

    def candidates(self, longest_us: int) -> list[int]:
        """Return constants for a curve: quantiles of the acceptable requirements, and the greatest of them."""
        acceptable = self.required_us <= longest_us
        required, weight = self.required_us[acceptable], self.weight[acceptable]
        if not len(required):
            return [self.floor_us]
        order = np.argsort(required, kind="stable")
        sums = np.cumsum(weight[order])
        shares = 1 - np.geomspace(1.0, 1e-5, POINTS - 1)
        places = np.minimum(np.searchsorted(sums, shares * sums[-1]), len(order) - 1)
        quantiles = {int(required[order[place]]) for place in places}
        return sorted({min(0, self.floor_us), *quantiles, int(required.max())})
