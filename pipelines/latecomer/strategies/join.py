"""The join's retention policies behind one interface, chosen by a query's strategy."""

from __future__ import annotations

from typing import Any

from latecomer.core.join.control import IntervalSummary
from latecomer.core.join.retention_policies import (
    CalibratedRetention,
    ConstantRetention,
    KSlackRetention,
    QJoinRetention,
    RetentionParameters,
    UnlimitedRetention,
)
from latecomer.core.join.statistics import UNCENSORED


def adapted_parameters(settings: RetentionParameters, summaries: list[IntervalSummary]) -> dict[str, Any]:
    """What `adapt` writes: the policy as it would stand now had it seen every pair, missed or not."""
    policy = retention_policy(settings, None, None)
    for summary in summaries:
        policy.observe(summary.stats([UNCENSORED, UNCENSORED]))
    return {"policy": policy.to_dict()}


def retention_policy(
    settings: RetentionParameters, state: dict[str, Any] | None, parameters: dict[str, Any] | None
) -> Any:
    """The policy of a query: from parameters that `adapt` wrote, else as its state left it, else at the start."""
    if settings.strategy == "exact" or (
        settings.strategy == "qjoin" and settings.estimator == "calibrated" and settings.target >= 1
    ):
        return UnlimitedRetention()  # every pair on time leaves nothing to choose
    if settings.strategy == "k_slack":
        return ConstantRetention(settings.slack_us or 0, settings.slack_us or 0)
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
