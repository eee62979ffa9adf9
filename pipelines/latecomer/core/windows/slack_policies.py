"""Slack policies: how long the windowed kinds wait.

They have one interface, :class:`latecomer.core.windows.interfaces.SlackPolicy`.

=================  ==========================================================  ======================================
policy             slack `K`                                                   first published
=================  ==========================================================  ======================================
Fixed              a constant (``k_slack``; 0 for ``none``; never: ``exact``)  K-slack, Babu et al. 2004
LargestDelay       the largest delay so far (``mp_k_slack``)                   Mutschler and Philippsen 2013
Proportional       ``alpha`` times that, PD-controlled (``hpm``,               Yang, Xu, Lv and Li 2019;
                   ``aq_k_slack``: in `run` the same)                          Ji et al. 2016
AdaptiveWaitSlack  the adaptive wait of top-k (``adaptive_wait``)              Wu and Fang 2021,
                                                                               :mod:`latecomer.core.topk.adaptive_wait`
CalibratedSlack    quantile of what answers required, at an aim steered by     here
                   the losses so far; and what the worst period required
BoundedSlack       the same from waits that more than one stretch of            here
                   arrivals speaks for, with a safe start (``max_wait``)
=================  ==========================================================  ======================================

All are functions of complete intervals and observed windows, so they do not see micro-batch cuts. Ordering: intervals
and windows in order. Cost per interval and per observed window: O(1), for CalibratedSlack O(`CELLS`) and O(periods),
whatever the delays.
"""

from __future__ import annotations

from typing import TypedDict

from latecomer.core.state import StateDocument
from latecomer.core.windows.interfaces import Observed, SlackPolicy


class Fixed(SlackPolicy):
    """A constant slack, microseconds."""

    needs_observation = False
    provisional = False

    def __init__(self, slack_us: int) -> None:
        self.slack_us = slack_us

    def delays(self, largest_us: int) -> None:
        """Learn nothing."""

    def observe(self, seen: Observed, slack_us: int, interval: int) -> None:
        """Learn nothing."""

    def choose(self, interval: int) -> int:
        """Return the constant."""
        return self.slack_us

    def to_dict(self) -> StateDocument:
        """Return an empty state."""
        return {}


class LargestDelayState(TypedDict):
    """The state of `LargestDelay` as JSON."""

    slack_us: int


class LargestDelay(SlackPolicy):
    """MP-K-slack: the largest delay of all complete intervals."""

    needs_observation = False
    provisional = False

    def __init__(self) -> None:
        self.slack_us = 0

    def delays(self, largest_us: int) -> None:
        """Grow to the largest delay."""
        self.slack_us = max(self.slack_us, largest_us)

    def observe(self, seen: Observed, slack_us: int, interval: int) -> None:
        """Learn nothing."""

    def choose(self, interval: int) -> int:
        """Return the largest delay so far."""
        return self.slack_us

    def to_dict(self) -> LargestDelayState:
        """Return the state as JSON."""
        return {"slack_us": self.slack_us}

    @classmethod
    def from_dict(cls, state: LargestDelayState) -> LargestDelay:
        """Continue from the state that `to_dict` wrote."""
        policy = cls()
        policy.slack_us = int(state["slack_us"])
        return policy


class ProportionalState(TypedDict):
    """The state of `Proportional` as JSON."""

    alpha: float
    largest_us: int
    error: float | None


class Proportional(SlackPolicy):
    """HPM's controller: ``K = alpha * k``, `k` the largest delay so far, and per observed window

    ``alpha += Kp * err(i) + Kd * (err(i) - err(i - 1))``, ``err(i) = lambda_thr - lambda_i``, clipped to [0, 1].

    ``lambda_i = n_rcv / (n_rcv + n_late)``, with `n_late` counted until the observation of the window is over. A window
    that was still open then has lost nothing: its lambda is 1. The slack is rounded up to the granularity of waits, so
    that the same rows count as late here as the data plane registers.

    The controller brings the *mean* of lambda to ``lambda_thr``, while the promise asks it of a share of windows: see
    docs/experiments/variants.md, "The slack of windows". ``calibrated``, the default, keeps the promise.

    Parameters
    ----------
    kp, kd : float
        Gains of the controller.
    alpha : float
        Its first value.
    granularity_us : int
        Resolution of waits, microseconds.
    """

    needs_observation = True
    provisional = False

    def __init__(self, kp: float, kd: float, alpha: float, granularity_us: int) -> None:
        self.kp, self.kd, self.alpha, self.granularity_us = kp, kd, alpha, granularity_us
        self.largest_us = 0
        self.error: float | None = None

    def delays(self, largest_us: int) -> None:
        """Let `k` grow to the largest delay."""
        self.largest_us = max(self.largest_us, largest_us)

    def observe(self, seen: Observed, slack_us: int, interval: int) -> None:
        """Take one step of the controller."""
        if seen.total <= 0:
            return
        reached = 1.0 - seen.lost(slack_us) / seen.total
        error = seen.needed_coverage - reached
        before = error if self.error is None else self.error
        self.alpha = min(max(self.alpha + self.kp * error + self.kd * (error - before), 0.0), 1.0)
        self.error = error

    def choose(self, interval: int) -> int:
        """Return ``alpha * k``, rounded up to the next granule."""
        return -int(-self.alpha * self.largest_us // self.granularity_us) * self.granularity_us

    def to_dict(self) -> ProportionalState:
        """Return the state as JSON."""
        return {"alpha": self.alpha, "largest_us": self.largest_us, "error": self.error}

    @classmethod
    def from_dict(cls, state: ProportionalState, kp: float, kd: float, granularity_us: int) -> Proportional:
        """Continue from the state that `to_dict` wrote."""
        policy = cls(kp, kd, state["alpha"], granularity_us)
        policy.largest_us, policy.error = int(state["largest_us"]), state["error"]
        return policy
