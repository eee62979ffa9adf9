"""Build the slack policies of a windowed query, and restore its control plane from the state of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, cast

from latecomer.core.state import StateDocument
from latecomer.core.time import FOREVER
from latecomer.core.topk.adaptive_wait import AdaptiveWait
from latecomer.core.topk.slack_policy import AdaptiveWaitSlack
from latecomer.core.windows.bounded_slack import BoundedSlack, BoundedSlackState
from latecomer.core.windows.calibrated_slack import CalibratedSlack, CalibratedSlackState, is_calibrated
from latecomer.core.windows.control import ControlState, WindowControl
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import SlackPolicy
from latecomer.core.windows.observation_schedule import ObservationSchedule, ScheduleState
from latecomer.core.windows.recall_budget import RecallBudget, RecallBudgetState
from latecomer.core.windows.slack_policies import (
    Fixed,
    LargestDelay,
    LargestDelayState,
    Proportional,
    ProportionalState,
)
from latecomer.specs.aggregate import AggregateSpec
from latecomer.specs.topk import TopKSpec
from latecomer.specs.windows import RevisedSpec, WaitingSpec, WindowedSpec

HIGHEST_TARGET = 0.9999
"""Target that `calibrated` aims at where a query states a higher one: no finite wait can promise 1."""


class ControlsState(TypedDict):
    """The part of a micro-batch's state that restores controls: one per shard."""

    controls: list[ControlState]


class SchedulesState(TypedDict):
    """The part of a scan's state that restores observation schedules: one per shard."""

    controls: list[ScheduleState]


def slack_policies(spec: WindowedSpec) -> list[SlackPolicy]:
    """Build one slack policy per shard, in its state before the first arrival."""
    return [slack_policy(spec, None) for _ in range(spec.shards)]


def policies_to_adapt(spec: WindowedSpec, state: StateDocument | None) -> list[SlackPolicy]:
    """Build one slack policy per shard that has observed no window, by the rule of the state of a micro-batch.

    It knows the arrivals that the policy of the state has seen.
    """
    fresh = slack_policies(spec)
    if state is None:
        return fresh
    policies = []
    for control, policy in zip(cast(ControlsState, state)["controls"], fresh, strict=True):
        known = slack_policy(spec, control["policy"])
        if isinstance(known, CalibratedSlack):
            policy = CalibratedSlack(*_settings(spec))
        elif isinstance(policy, BoundedSlack) and isinstance(known, BoundedSlack):
            policy.longest = known.longest
        policies.append(policy)
    return policies


def window_controls(
    spec: WindowedSpec, state: StateDocument | None, adapted: Sequence[StateDocument] | None = None
) -> list[WindowControl]:
    """Restore one control plane per shard.

    Parameters
    ----------
    state
        The state of a micro-batch; None: before the first.
    adapted
        The policies that `adapt` has written since, one per shard, which replace those of the state; None: none.
    """
    given = spec.window, spec.period_us
    if state is None:
        fresh: Sequence[StateDocument | None] = adapted or [None] * spec.shards
        return [WindowControl(*given, slack_policy(spec, policy), spec.observe_us) for policy in fresh]
    stored = cast(ControlsState, state)["controls"]
    policies = adapted or [control["policy"] for control in stored]
    return [
        WindowControl.from_dict(control, *given, slack_policy(spec, policy), spec.observe_us)
        for control, policy in zip(stored, policies, strict=True)
    ]


def observation_schedules(spec: WindowedSpec, state: StateDocument | None) -> list[ObservationSchedule]:
    """Restore the observation schedule of each shard from the state of a micro-batch or of the scan of its arrivals."""
    policy = slack_policy(spec, None)
    observed = policy.needs_observation, policy.provisional
    if state is None:
        return [ObservationSchedule(spec.window, *observed, spec.observe_us) for _ in range(spec.shards)]
    stored = cast(SchedulesState, state)["controls"]
    return [ObservationSchedule.from_dict(schedule, spec.window, *observed, spec.observe_us) for schedule in stored]


def learns_safely(spec: WindowedSpec, state: StateDocument | None) -> bool:
    """Return whether the slack of a query says when it is learning."""
    first = None if state is None else cast(ControlsState, state)["controls"][0]["policy"]
    return isinstance(slack_policy(spec, first), BoundedSlack)


def recall_budget(spec: WindowedSpec, state: StateDocument | None) -> RecallBudget | None:
    """Restore the recall budget of a query; None where `run` publishes nothing for late rows.

    A query whose state has no budget began without one, and goes on so.
    """
    replaces = isinstance(spec, RevisedSpec)
    target = 1.0 if replaces else spec.target
    if state is None:
        recalls = spec.revises if isinstance(spec, RevisedSpec) else isinstance(spec, WaitingSpec) and spec.guarantee
        return RecallBudget(target, spec.period_us, replaces) if recalls else None
    if "recall" not in state:
        return None
    known = cast(RecallBudgetState, state["recall"])
    return RecallBudget.from_dict(known, target, spec.period_us, replaces=replaces)


def slack_policy(spec: WindowedSpec, state: StateDocument | None) -> SlackPolicy:
    """Build the slack policy that the strategy of a query names, or restore it from its state."""
    if isinstance(spec, AggregateSpec):
        return _aggregate_policy(spec, state)
    if isinstance(spec, TopKSpec):
        return _topk_policy(spec, state)
    assert isinstance(spec, WaitingSpec)
    return _calibrated(spec, state) if spec.slack_us is None else Fixed(spec.slack_us)


def _aggregate_policy(spec: AggregateSpec, state: StateDocument | None) -> SlackPolicy:
    strategy = spec.strategy
    if strategy.name in ("hpm", "aq_k_slack"):
        gains, granularity_us = (strategy.kp, strategy.kd), spec.window.granularity_us
        if state is None:
            return Proportional(*gains, strategy.alpha, granularity_us)
        return Proportional.from_dict(cast(ProportionalState, state), *gains, granularity_us)
    if strategy.name == "calibrated":
        return _calibrated(spec, state)
    if strategy.name == "mp_k_slack":
        return LargestDelay() if state is None else LargestDelay.from_dict(cast(LargestDelayState, state))
    return Fixed(FOREVER if strategy.slack_us is None else strategy.slack_us)


def _topk_policy(spec: TopKSpec, state: StateDocument | None) -> SlackPolicy:
    strategy = spec.strategy
    if strategy.name == "calibrated":
        return _calibrated(spec, state)
    if strategy.name != "adaptive_wait":
        return Fixed(0)
    if state is not None:
        return AdaptiveWaitSlack.from_dict(cast(dict[str, Any], state))
    wait = AdaptiveWait(
        spec.target,
        strategy.candidates,
        strategy.windows,
        strategy.initial_wait_us,
        strategy.min_step_us,
        slide_us=spec.window.slide_us,
    )
    return AdaptiveWaitSlack(wait)


def _calibrated(spec: WindowedSpec, state: StateDocument | None) -> SlackPolicy:
    settings = _settings(spec)
    if state is not None and is_calibrated(state):  # the query began with an earlier version, and goes on as it did
        return CalibratedSlack.from_dict(cast(CalibratedSlackState, state), *settings)
    bounds = spec.max_wait_us, spec.expect_us or 0
    if state is None:
        return BoundedSlack(*settings, *bounds)
    return BoundedSlack.from_dict(cast(BoundedSlackState, state), *settings, *bounds)


def _settings(spec: WindowedSpec) -> tuple[float, Grid, int, float]:
    """Return the target, the windows, the period and the share of periods that a calibrated slack is for."""
    return min(spec.target, HIGHEST_TARGET), spec.window, spec.period_us, spec.confidence
