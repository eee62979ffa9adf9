"""The join's retention policies behind one interface, chosen by a query's strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from latecomer.core.estimators import aq_k_slack
from latecomer.core.histogram import UNCENSORED, IntervalStats, from_dict, to_dict
from latecomer.core.join import IntervalSummary
from latecomer.core.retention import CalibratedRetention, QJoinRetention
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
    slack_us: int | None = None

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
            chosen.slack_us,
        )


class KeepAll:
    """Strategy ``exact``: no tuple ever leaves its buffer."""

    needs_pairs = False
    needs_candidates = False
    needs_lateness = False
    expires = False

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
    needs_lateness = False
    expires = True

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


class KSlackRetention:
    """Slack of the K-slack family as a retention: a buffer behind a watermark ``T - K`` holds what ``d = K`` holds.

    ``mp_k_slack`` takes the largest delay so far (in whole granules, for the books only: the join itself follows each
    arrival), ``aq_k_slack`` the least slack that the delays of the last period call for, everything before.
    """

    needs_pairs = False
    needs_candidates = False
    needs_lateness = False
    expires = True

    def __init__(self, settings: RetentionParameters, state: dict[str, Any] | None) -> None:
        self.settings = settings
        self.largest = state["largest"] if state else 0
        self.first: int | None = state["first"] if state else None
        self.recent = [from_dict(each) for each in state["recent"]] if state else []

    def observe(self, stats: IntervalStats) -> None:
        """Take in an interval's delays."""
        self.first = stats.interval if self.first is None else self.first
        for side in (stats.left, stats.right):
            if len(side.delay_bucket):
                self.largest = max(self.largest, (int(side.delay_bucket[-1]) + 1) * self.settings.granularity_us)
        if self.settings.strategy == "aq_k_slack":
            oldest = stats.interval - self.settings.period_us // self.settings.interval_us
            self.recent = [each for each in self.recent if each.interval > oldest] + [stats]

    def choose(self, interval: int) -> tuple[int, int]:
        """The slack, for both streams."""
        if self.settings.strategy == "mp_k_slack":
            return self.largest, self.largest
        warm = self.first is None or (interval - self.first) * self.settings.interval_us < self.settings.period_us
        slack = None if warm else aq_k_slack(self.recent, self.settings.granularity_us, self.settings.target)
        return (FOREVER, FOREVER) if slack is None else (slack, slack)

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values."""
        return {"largest": self.largest, "first": self.first, "recent": [to_dict(each) for each in self.recent]}


def adapted_parameters(settings: RetentionParameters, summaries: list[IntervalSummary]) -> dict[str, Any]:
    """What `adapt` writes: the policy as it would stand now had it seen every pair, missed or not."""
    policy = restore_policy(settings, None, None)
    for summary in summaries:
        policy.observe(summary.stats([UNCENSORED, UNCENSORED]))
    return {"policy": policy.to_dict()}


def restore_policy(
    settings: RetentionParameters, state: dict[str, Any] | None, parameters: dict[str, Any] | None
) -> Any:
    """The policy of a query: from parameters that `adapt` wrote, else as its state left it, else at the start."""
    if settings.strategy == "exact" or (
        settings.strategy == "qjoin" and settings.estimator == "calibrated" and settings.target >= 1
    ):
        return KeepAll()  # every pair on time leaves nothing to choose
    if settings.strategy == "k_slack":
        return Constant(settings.slack_us or 0, settings.slack_us or 0)
    if settings.strategy in ("mp_k_slack", "aq_k_slack"):
        return KSlackRetention(settings, state)
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
