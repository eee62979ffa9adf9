"""The join's retention policies behind one interface, chosen by a query's strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from latecomer.core.histogram import UNCENSORED, IntervalStats
from latecomer.core.join import IntervalSummary
from latecomer.core.time import FOREVER


@dataclass(frozen=True)
class RetentionParameters:
    """What a policy needs to know of the query; durations in microseconds."""

    strategy: str
    estimator: str
    target: float
    confidence: float
    window_us: int
    period_us: int
    interval_us: int
    granularity_us: int
    basic_window_us: int

    @staticmethod
    def of(spec: Any) -> RetentionParameters:
        """From a join's spec."""
        chosen = spec.strategy
        return RetentionParameters(
            chosen.name,
            chosen.estimator,
            spec.target,
            chosen.confidence,
            spec.window_us,
            spec.period_us,
            chosen.adapt_every_us,
            chosen.granularity_us,
            chosen.basic_window_us,
        )


class KeepAll:
    """Strategy ``exact``: no tuple ever leaves its buffer."""

    needs_pairs = False
    needs_candidates = False

    def observe(self, stats: IntervalStats) -> None:
        """Nothing to learn."""

    def choose(self, interval: int) -> tuple[int, int]:
        """Everything."""
        return FOREVER, FOREVER

    def to_dict(self) -> dict[str, Any]:
        """No state."""
        return {}


class Constant:
    """The same retention always: for what-if questions and tests."""

    needs_pairs = False
    needs_candidates = False

    def __init__(self, left_us: int, right_us: int) -> None:
        self.retention = (left_us, right_us)

    def observe(self, stats: IntervalStats) -> None:
        """Nothing to learn."""

    def choose(self, interval: int) -> tuple[int, int]:
        """The constant."""
        return self.retention

    def to_dict(self) -> dict[str, Any]:
        """The constant."""
        return {"retention": list(self.retention)}


class PeriodGreatest:
    """The greatest of the last periods' own quantiles of required retention."""

    needs_pairs = True
    needs_candidates = False

    def __init__(self, settings: RetentionParameters) -> None:
        self.settings = settings
        self.first: int | None = None
        self.period: int | None = None
        self.current: dict[int, int] = {}
        self.past: list[int] = []

    def observe(self, stats: IntervalStats) -> None:
        """Add an interval to its period."""
        period = stats.interval * self.settings.interval_us // self.settings.period_us
        if self.first is None:
            self.first = stats.interval
        if self.period is not None and period > self.period:
            self.finish()
        self.period = period
        for side in (stats.left, stats.right):
            for bucket, pairs in zip(side.required_bucket.tolist(), side.pairs.tolist(), strict=True):
                self.current[bucket] = self.current.get(bucket, 0) + pairs

    def finish(self) -> None:
        """Close the current period."""
        if self.current:
            buckets = np.array(sorted(self.current))
            weight = np.cumsum([self.current[b] for b in buckets.tolist()])
            aim = self.settings.target + 0.8 * (1 - self.settings.target)
            self.past.append(
                int((buckets[np.searchsorted(weight, aim * weight[-1])] + 1) * self.settings.granularity_us)
            )
            self.past = self.past[-40:]
        self.current = {}

    def choose(self, interval: int) -> tuple[int, int]:
        """Everything during the first full period, then the greatest."""
        warm = self.first is None or (interval - self.first) * self.settings.interval_us < self.settings.period_us
        if warm or not self.past:
            return FOREVER, FOREVER
        return max(self.past), max(self.past)

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values."""
        return {"first": self.first, "period": self.period, "current": sorted(self.current.items()), "past": self.past}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `to_dict`'s value."""
        self.first, self.period, self.past = state["first"], state["period"], list(state["past"])
        self.current = dict(state["current"])


def adapted_parameters(settings: RetentionParameters, summaries: list[IntervalSummary]) -> dict[str, Any]:
    """What `adapt` writes: per past period, the least retention that would have met the aim, from complete history."""
    policy = PeriodGreatest(settings)
    for summary in summaries:
        policy.observe(summary.stats([UNCENSORED, UNCENSORED]))
    policy.finish()
    return {"past": policy.past}


def restore_policy(
    settings: RetentionParameters, state: dict[str, Any] | None, parameters: dict[str, Any] | None
) -> Any:
    """The policy of a query, as its state left it."""
    if settings.strategy == "exact":
        return KeepAll()
    policy = PeriodGreatest(settings)
    if state is not None:
        policy.restore(state)
    return policy
