"""Build the retention policy of a join, which its strategy names, and restore it from a micro-batch's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from latecomer.core.join.control import IntervalSummary, RetentionPolicy
from latecomer.core.join.k_slack import KSlackRetention, KSlackState
from latecomer.core.join.least_rows import KIND as LEAST_ROWS
from latecomer.core.join.least_rows import LeastRows, LeastRowsState
from latecomer.core.join.retention_policies import (
    CalibratedRetention,
    CalibratedRetentionState,
    ConstantRetention,
    QJoinRetention,
    QJoinState,
    RetentionParameters,
    UnlimitedRetention,
)
from latecomer.core.join.statistics import UNCENSORED
from latecomer.core.state import StateDocument
from latecomer.specs.join import JoinSpec


def guarantees(spec: JoinSpec, state: Mapping[str, Any] | None) -> bool:
    """Return whether the recall of a query is guaranteed.

    Parameters
    ----------
    spec
        The query. Where its file does not say, ``qjoin`` with the estimator ``calibrated`` has the guarantee.
    state
        The state of its stage; None: before the first micro-batch. A query whose state has no recall budget began
        without the guarantee, and goes on without it.
    """
    if state is None:
        return spec.guarantee
    return state["control"]["policy"].get("kind") == LEAST_ROWS or "recall" in state["books"]


def retention_parameters(spec: JoinSpec, *, guarantee: bool | None = None) -> RetentionParameters:
    """Return the parameters of the query that its retention policy depends on.

    `guarantee` is what :func:`guarantees` returns; None: that of a query which has not been run.
    """
    strategy = spec.strategy
    return RetentionParameters(
        strategy.name,
        strategy.estimator,
        spec.target,
        spec.confidence,
        spec.window_us,
        spec.period_us,
        strategy.adapt_every_us,
        strategy.granularity_us,
        strategy.basic_window_us,
        strategy.slack_us,
        spec.guarantee if guarantee is None else guarantee,
    )


def adapted_parameters(settings: RetentionParameters, summaries: list[IntervalSummary]) -> dict[str, StateDocument]:
    """Return the document of `adapt`: under ``policy`` the policy that has observed every pair, produced or missed."""
    policy = retention_policy(settings, None, None)
    for summary in summaries:
        policy.observe(summary.stats([UNCENSORED, UNCENSORED]))
    return {"policy": policy.to_dict()}


def retention_policy(
    settings: RetentionParameters, state: StateDocument | None, parameters: StateDocument | None
) -> RetentionPolicy:
    """Build the policy that the strategy names.

    Parameters
    ----------
    settings
        The parameters of the query.
    state
        The policy's state after a micro-batch; None: before the first.
    parameters
        The result of `adapt` since then, which replaces `state` in strategies that adapt; None: none.
    """
    if settings.strategy == "exact" or (
        settings.strategy == "qjoin" and settings.estimator == "calibrated" and settings.target >= 1
    ):
        return UnlimitedRetention()  # a target of every pair leaves nothing to choose
    if settings.strategy == "k_slack":
        return ConstantRetention(settings.slack_us or 0, settings.slack_us or 0)
    if settings.strategy in ("mp_k_slack", "aq_k_slack"):
        if state is None:
            return KSlackRetention(settings)
        return KSlackRetention.from_dict(cast(KSlackState, state), settings)
    start = parameters["policy"] if parameters else state
    if settings.guarantee:
        if start is None:
            return LeastRows(settings.target, **settings.spans)
        return LeastRows.from_dict(cast(LeastRowsState, start), settings.target, **settings.spans)
    if settings.estimator == "calibrated":
        if start is not None:
            return CalibratedRetention.from_dict(cast(CalibratedRetentionState, start))
        return CalibratedRetention.build(
            settings.target,
            window_us=settings.window_us,
            period_us=settings.period_us,
            interval_us=settings.interval_us,
            granularity_us=settings.granularity_us,
            share=settings.confidence,
        )
    if start is not None:
        return QJoinRetention.from_dict(cast(QJoinState, start))
    return QJoinRetention(
        settings.estimator,
        settings.target,
        settings.window_us,
        settings.period_us,
        settings.interval_us,
        settings.granularity_us,
        settings.basic_window_us,
    )
