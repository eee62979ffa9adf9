"""Slack policies: how long the windowed kinds wait. One interface, :class:`latecomer.core.windows.SlackPolicy`.

=================  ==========================================================  ======================================
policy             slack `K`                                                   first published
=================  ==========================================================  ======================================
Fixed              a constant (``k_slack``; 0 for ``none``; never: ``exact``)  K-slack, Babu et al. 2004
LargestDelay       the largest delay so far (``mp_k_slack``)                   Mutschler and Philippsen 2013
Proportional       ``alpha`` times that, PD-controlled (``hpm``,               Yang, Xu, Lv and Li 2019;
                   ``aq_k_slack``: the same controller without repair)         Ji et al. 2016
AdaptiveSlack      the adaptive wait of top-k (``adaptive_wait``)              Wu and Fang 2021, :mod:`latecomer.core.topk`
CalibratedSlack    least that every remembered period would have been kept by  here, :mod:`latecomer.core.calibrated`
=================  ==========================================================  ======================================

All are functions of complete intervals and observed windows, so they do not see micro-batch cuts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from latecomer.core.calibrated import Calibrated, IntervalLoss
from latecomer.core.time import FOREVER
from latecomer.core.topk import AdaptiveWait
from latecomer.core.windows import Grid, Observed


class Fixed:
    """A constant slack."""

    needs_observation = False

    def __init__(self, slack_us: int) -> None:
        self.slack_us = slack_us

    def delays(self, largest_us: int) -> None:
        """Nothing to learn."""

    def observe(self, seen: Observed, slack_us: int, interval: int) -> None:
        """Nothing to learn."""

    def choose(self, interval: int) -> int:
        """The constant."""
        return self.slack_us

    def to_dict(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing was kept."""


class LargestDelay(Fixed):
    """MP-K-slack: the largest delay of all complete intervals."""

    def __init__(self) -> None:
        super().__init__(0)

    def delays(self, largest_us: int) -> None:
        """Grow to the largest delay."""
        self.slack_us = max(self.slack_us, largest_us)

    def to_dict(self) -> dict[str, Any]:
        """The slack."""
        return {"slack_us": self.slack_us}

    def restore(self, state: dict[str, Any]) -> None:
        """The slack."""
        self.slack_us = int(state["slack_us"])


class Proportional:
    """HPM's controller: ``K = alpha * k``, `k` the largest delay so far, and per observed window

    ``alpha += Kp * err(i) + Kd * (err(i) - err(i - 1))``, ``err(i) = lambda_thr - lambda_i``, clipped to [0, 1].

    ``lambda_i = n_rcv / (n_rcv + n_late)`` with `n_late` counted until the window's observation is over. A window that was
    still open then has lost nothing: its lambda is 1. The slack is rounded up to the granularity of waits, so that what counts
    as late here is exactly what the data plane registers.
    """

    needs_observation = True

    def __init__(self, kp: float, kd: float, alpha: float, granularity_us: int) -> None:
        self.kp, self.kd, self.alpha, self.granularity_us = kp, kd, alpha, granularity_us
        self.largest_us = 0
        self.error: float | None = None

    def delays(self, largest_us: int) -> None:
        """`k` grows."""
        self.largest_us = max(self.largest_us, largest_us)

    def observe(self, seen: Observed, slack_us: int, interval: int) -> None:
        """One step of the controller."""
        if seen.total <= 0:
            return
        reached = 1.0 - seen.lost(slack_us) / seen.total
        error = seen.needed_coverage - reached
        before = error if self.error is None else self.error
        self.alpha = min(max(self.alpha + self.kp * error + self.kd * (error - before), 0.0), 1.0)
        self.error = error

    def choose(self, interval: int) -> int:
        """``alpha * k``, up to the next granule."""
        return -int(-self.alpha * self.largest_us // self.granularity_us) * self.granularity_us

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values."""
        return {"alpha": self.alpha, "largest_us": self.largest_us, "error": self.error}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `to_dict`'s value."""
        self.alpha, self.largest_us, self.error = state["alpha"], int(state["largest_us"]), state["error"]


class CalibratedSlack:
    """The shared ``calibrated`` controller with one knob, the slack, floor 0.

    A contribution is one answer (of an aggregate: one group's window; of a top-k: one member), and requires the least slack that
    would have kept its promise. Nothing is censored here: late rows are registered, so a window's truth is known once it has
    been observed. Until the first full period the slack is the largest delay so far.
    """

    needs_observation = True

    def __init__(self, target: float, grid: Grid, period_us: int, share: float) -> None:
        whole = max(period_us, grid.slide_us)
        self.controller = Calibrated(target, whole, grid.slide_us, grid.granularity_us, (0,), share)
        self.largest_us = 0

    def delays(self, largest_us: int) -> None:
        """Remembered for the first period."""
        self.largest_us = max(self.largest_us, largest_us)

    def observe(self, seen: Observed, slack_us: int, interval: int) -> None:
        """One window's answers."""
        free = max(seen.total - float(seen.weight.sum()), 0.0)
        required = np.append(seen.required_us, 0)
        weight = np.append(seen.weight, free)
        self.controller.observe(IntervalLoss(interval, (required,), (weight,), seen.lost(slack_us), (1.0,)))

    def choose(self, interval: int) -> int:
        """The controller's slack, the largest delay so far while it knows too little."""
        (slack,) = self.controller.choose(interval)
        return self.largest_us if slack >= FOREVER else slack

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values."""
        return {"controller": self.controller.to_dict(), "largest_us": self.largest_us}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `to_dict`'s value."""
        self.controller = Calibrated.from_dict(state["controller"])
        self.largest_us = int(state["largest_us"])


class AdaptiveSlack:
    """The paper's adaptive wait as a slack policy; contributions are members of final top-k answers."""

    needs_observation = True

    def __init__(self, wait: AdaptiveWait) -> None:
        self.wait = wait

    def delays(self, largest_us: int) -> None:
        """Nothing to learn from delays."""

    def observe(self, seen: Observed, slack_us: int, interval: int) -> None:
        """One window: a wait `c` keeps a member if it exceeds the member's own wait, so one less than what it requires."""
        needs = np.repeat(np.maximum(seen.required_us - 1, 0), seen.weight.astype(np.int64))
        self.wait.observe(needs, int(seen.total))

    def choose(self, interval: int) -> int:
        """The wait in force."""
        return self.wait.wait_us

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values."""
        return self.wait.to_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `to_dict`'s value."""
        self.wait = AdaptiveWait.from_dict(state)
