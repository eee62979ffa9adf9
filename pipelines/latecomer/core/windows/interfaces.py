"""Interfaces between the control plane of windows and its slack policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Observed:
    """What is known about one window when its observation is over.

    Attributes
    ----------
    window : int
        Its number.
    required_us : int64[n]
        Slack each contribution requires: 0, or the least multiple of the granularity above its wait.
    weight : float64[n]
        Contributions with that requirement.
    total : float
        All contributions, those that required nothing included.
    needed_coverage : float
        For policies that steer by coverage: least share of its rows that keeps the promise (1 where it does not apply).
    final : bool
        False: provisional, the window will be shown again with all that came until then.
    """

    window: int
    required_us: Int64
    weight: Float64
    total: float
    needed_coverage: float = 1.0
    final: bool = True

    def lost(self, slack_us: int) -> float:
        """Contributions that the slack would have lost."""
        return float(self.weight[self.required_us > slack_us].sum())


class SlackPolicy(Protocol):
    """Chooses the slack; deterministic, JSON-able state."""

    needs_observation: bool
    provisional: bool

    def delays(self, largest_us: int) -> None:
        """The largest delay of a complete interval."""

    def observe(self, seen: Observed, slack_us: int, interval: int) -> None:
        """One window, in order, whose observation is over or (if `provisional`) goes on; `slack_us`: in force when it closed."""

    def choose(self, interval: int) -> int:
        """Slack in us for an interval; `FOREVER` closes nothing."""

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `to_dict`'s value."""


@dataclass(frozen=True)
class IntervalRows:
    """One interval of one shard: last stream time, largest delay, rows, and rows by pane (int64 arrays)."""

    interval: int
    t_last_us: int
    delay_us: int
    rows: int
    panes: Int64
    pane_rows: Int64


@dataclass
class SlackAccount:
    """Rows held and slack over one period of stream time. Integrals over stream time, in row-us and us."""

    held_area: int = 0
    weight_us: int = 0
    held_max: int = 0
    slack_area: int = 0
    slack_weight_us: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Placement:
    """The control plane's decisions: arrays with one entry per interval, int64 us. ``W = max(base, T - slack)``."""

    interval: Int64
    base: Int64
    slack: Int64
