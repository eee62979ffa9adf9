"""The join's retention policies behind one interface, chosen by a query's strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from latecomer.core.estimators import CalibratedRetention, QJoinRetention
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


def adapted_parameters(settings: RetentionParameters, summaries: list[IntervalSummary]) -> dict[str, Any]:
    """What `adapt` writes: the policy as it would stand now had it seen every pair, missed or not."""
    policy = restore_policy(settings, None, None)
    for summary in summaries:
        policy.observe(summary.stats([UNCENSORED, UNCENSORED]))
    return {"policy": policy.to_dict()}


def restore_policy(settings: RetentionParameters, state: dict[str, Any] | None, parameters: dict[str, Any] | None) -> Any:
    """The policy of a query: from parameters that `adapt` wrote, else as its state left it, else at the start."""
    if settings.strategy == "exact":
        return KeepAll()
    kept = parameters["policy"] if parameters else state
    if settings.estimator == "calibrated":
        if kept is not None:
            return CalibratedRetention.from_dict(kept)
        return CalibratedRetention.build(
            settings.target,
            window_us=settings.window_us,
            period_us=settings.period_us,
            interval_us=settings.interval_us,
            granularity_us=settings.granularity_us,
            share=settings.confidence,
        )
    if kept is not None:
        return QJoinRetention.from_dict(kept)
    return QJoinRetention(
        settings.estimator,
        settings.target,
        settings.window_us,
        settings.period_us,
        settings.interval_us,
        settings.granularity_us,
        settings.basic_window_us,
    )
