"""Interfaces between the control plane of windows and its slack policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from latecomer.core.state import StateDocument

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Observed:
    """A window as known when it is observed.

    Attributes
    ----------
    window : int
        Its number.
    required_us : int64[n]
        Slack that contributions require: 0, or the least multiple of the granularity above their wait.
    weight : float64[n]
        Contributions with that requirement.
    total : float
        All contributions, whatever they required.
    needed_coverage : float
        For policies that steer by coverage: least share of the window's rows that keeps the promise; 1 for others.
    final : bool
        False: a provisional observation; the window is observed again with all that came until then.
    """

    window: int
    required_us: Int64
    weight: Float64
    total: float
    needed_coverage: float = 1.0
    final: bool = True

    def lost(self, slack_us: int) -> float:
        """Return the contributions that a slack would have lost."""
        return float(self.weight[self.required_us > slack_us].sum())


class SlackPolicy(Protocol):
    """A policy that chooses the slack: deterministic, with a state that is a JSON document.

    Attributes
    ----------
    needs_observation
        False: no window is observed for it.
    provisional
        True: windows are observed before their observation is over, too.
    """

    needs_observation: bool
    provisional: bool

    @property
    def learning(self) -> bool:
        """True while too little is known for the promise; by default never."""
        return False

    def arrived(self, rows: IntervalRows) -> None:
        """Learn from rows of the current interval; by default nothing."""
        return

    def delays(self, largest_us: int) -> None:
        """Learn the largest delay of a complete interval."""

    def observe(self, seen: Observed, slack_us: int, interval: int) -> None:
        """Learn from an observed window, in order; `slack_us` was in force when it closed."""

    def choose(self, interval: int) -> int:
        """Return the slack for an interval, microseconds; `FOREVER` closes nothing."""

    def to_dict(self) -> StateDocument:
        """Return the state as JSON; ``from_dict`` of the same class continues from it exactly."""


@dataclass(frozen=True)
class IntervalRows:
    """Rows of one interval of stream time, of one shard.

    Attributes
    ----------
    interval : int
        Its number: stream time in ``[interval * slide, (interval + 1) * slide)``.
    t_last_us : int
        Last stream time in it.
    delay_us : int
        Largest delay of its rows.
    rows : int
        Its rows.
    panes, pane_rows : int64[k]
        Panes of the rows, ascending, and the rows in each.
    pane_delay_us : int64[k]
        Largest delay of the rows of each pane.
    """

    interval: int
    t_last_us: int
    delay_us: int
    rows: int
    panes: Int64
    pane_rows: Int64
    pane_delay_us: Int64


@dataclass
class SlackAccount:
    """Rows held and slack over one period of stream time: integrals in row-microseconds and microseconds squared.

    `learning`: 1 if the slack of some interval was chosen while the policy was learning.
    """

    held_area: int = 0
    weight_us: int = 0
    held_max: int = 0
    slack_area: int = 0
    slack_weight_us: int = 0
    rows: int = 0
    learning: int = 0


@dataclass(frozen=True)
class WatermarkTable:
    """The decisions of the control plane: the watermark inside each interval is ``max(base, T - slack)``.

    Attributes
    ----------
    interval, base, slack : int64[n]
        The interval's number, and both terms in microseconds.
    """

    interval: Int64
    base: Int64
    slack: Int64
