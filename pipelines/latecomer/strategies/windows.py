"""Build the slack policies of a windowed query, and restore its control plane from a micro-batch's state."""

from __future__ import annotations

from typing import Any

from latecomer.core.time import FOREVER
from latecomer.core.topk.adaptive_wait import AdaptiveWait
from latecomer.core.topk.slack_policy import AdaptiveWaitSlack
from latecomer.core.windows.calibrated_slack import CalibratedSlack
from latecomer.core.windows.control import WindowControl
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import SlackPolicy
from latecomer.core.windows.observation_schedule import Lookout
from latecomer.core.windows.slack_policies import Fixed, LargestDelay, Proportional
from latecomer.specs.aggregate import AggregateSpec
from latecomer.specs.topk import TopKSpec
from latecomer.specs.windows import WaitingSpec, WindowedSpec

HIGHEST_TARGET = 0.9999
"""Target that `calibrated` aims at where a query states a higher one: no finite wait can promise 1."""


def grid_of(spec: WindowedSpec) -> Grid:
    """Return the grid on which the query's windows lie."""
    return Grid(spec.window.size_us, spec.window.slide_us)


def slack_policies(spec: WindowedSpec) -> list[SlackPolicy]:
    """Build one slack policy per shard, as it stands before the first arrival."""
    return [_slack_policy(spec, grid_of(spec)) for _ in range(spec.shards)]


def window_controls(spec: WindowedSpec, state: dict[str, Any] | None) -> list[WindowControl]:
    """Restore one control plane per shard from a micro-batch's state; None stands for the state before the first."""
    grid = grid_of(spec)
    controls = [WindowControl(grid, spec.period_us, policy, spec.observe_us) for policy in slack_policies(spec)]
    if state is not None:
        for control, stored in zip(controls, state["controls"], strict=True):
            control.restore(stored)
    return controls


def observation_schedules(spec: WindowedSpec, state: dict[str, Any] | None) -> list[Lookout]:
    """Restore each shard's observation schedule from the state of a micro-batch, or of the scan of its arrivals."""
    schedules = [control.lookout for control in window_controls(spec, None)]
    if state is not None:
        for schedule, stored in zip(schedules, state["controls"], strict=True):
            schedule.restore(stored)
    return schedules


def _slack_policy(spec: WindowedSpec, grid: Grid) -> SlackPolicy:
    if isinstance(spec, AggregateSpec):
        return _aggregate_policy(spec, grid)
    if isinstance(spec, TopKSpec):
        return _topk_policy(spec, grid)
    assert isinstance(spec, WaitingSpec)
    return _calibrated(spec, grid) if spec.slack_us is None else Fixed(spec.slack_us)


def _aggregate_policy(spec: AggregateSpec, grid: Grid) -> SlackPolicy:
    strategy = spec.strategy
    if strategy.name in ("hpm", "aq_k_slack"):
        return Proportional(strategy.kp, strategy.kd, strategy.alpha, grid.granularity_us)
    if strategy.name == "calibrated":
        return _calibrated(spec, grid)
    if strategy.name == "mp_k_slack":
        return LargestDelay()
    return Fixed(FOREVER if strategy.slack_us is None else strategy.slack_us)


def _topk_policy(spec: TopKSpec, grid: Grid) -> SlackPolicy:
    strategy = spec.strategy
    if strategy.name == "calibrated":
        return _calibrated(spec, grid)
    if strategy.name != "adaptive_wait":
        return Fixed(0)
    wait = AdaptiveWait(
        spec.target,
        strategy.candidates,
        strategy.windows,
        strategy.initial_wait_us,
        strategy.min_step_us,
        slide_us=grid.slide_us,
    )
    return AdaptiveWaitSlack(wait)


def _calibrated(spec: WindowedSpec, grid: Grid) -> SlackPolicy:
    return CalibratedSlack(min(spec.target, HIGHEST_TARGET), grid, spec.period_us, spec.confidence)
