"""`adapt`: recompute a query's adaptation statistics from all stored rows.

The statistics that a join gathers as it runs are censored, since it does not see a missed pair. The statistics of
windows end with their observation. The stored history has neither limit. `adapt` counts the retention or the wait that
every pair, answer or member required, and writes the controller that would have observed them all. The controller
holds from the first arrival of the next micro-batch that is not planned yet, since a run may be at work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa

from latecomer.lake import crash_points, journal
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.lake.maintenance import compact_and_vacuum
from latecomer.spark.engine.session import tuned
from latecomer.specs.join import JoinSpec
from latecomer.specs.spec import Spec
from latecomer.specs.windows import WindowedSpec
from latecomer.strategies.join import adapted_parameters, guarantees, retention_parameters

_REMEDIES = {
    "join": "choose qjoin",
    "aggregate": "choose calibrated or hpm",
    "topk": "choose calibrated or adaptive_wait",
}
"""Remedy for a strategy that takes nothing from `adapt`, by query kind."""


def adapt(lake: Lake, spec: Spec) -> tuple[int, Mapping[str, object]]:
    """Write new parameters; return the first arrival for which they hold, and the parameters.

    Raises
    ------
    InputError
        The query has not been run, or has changed since.
    SpecError
        Its strategy does not adapt.
    """
    if not spec.adapts:
        problem = "takes nothing from adapt: it learns as it runs, or not at all"
        remedy = _REMEDIES.get(spec.kind, "write quality: {recall: 0.95} in place of its slack, and its wait adapts")
        raise spec.fail("strategy", spec.strategy.name, problem, remedy)
    with Lease(lake, f"adapt-{spec.name}") as lease:
        state = journal.run_state(lake, spec.name, spec)
        parameters = _adapted(lake, spec, state)
        last = lake.table("parameters", spec.name).last_version("adapt")
        number = 0 if last is None else last + 1
        reached = journal.run_state(lake, spec.name, spec)
        following, seq = _planned(lake, spec.name, reached.number + 1, reached.seq_to)
        row = {"number": number, "effective_seq": seq, "parameters": json.dumps(parameters)}
        lease.confirm()
        lake.table("parameters", spec.name).append(pa.Table.from_pylist([row]), "adapt", number)
        crash_points.point("adapt:parameters")
        compact_and_vacuum([lake.table("parameters", spec.name)])
        return _planned(lake, spec.name, following, seq, number)[1], parameters


def _planned(lake: Lake, query: str, number: int, seq: int, parameters: int | None = None) -> tuple[int, int]:
    """Find the first micro-batch that is not planned yet, or is planned with the given parameters.

    The search begins at micro-batch `number`, whose first arrival is `seq`.

    Returns
    -------
    number, seq
        The micro-batch and its first arrival.
    """
    while (plan := journal.planned(lake, query, "run", number)) is not None:
        if parameters is not None and plan.get("parameters") == parameters:
            break
        number, seq = number + 1, plan["seq_to"]
    return number, seq


def _adapted(lake: Lake, spec: Spec, state: journal.RunState) -> Mapping[str, object]:
    """Return the parameters that the query's controllers would have learnt from the complete history."""
    if isinstance(spec, JoinSpec):
        from latecomer.spark.join.stage import JoinStage

        join = JoinStage(spec, tuned(lake, state.seq_to), lake.snapshot())
        settings = retention_parameters(spec, guarantee=guarantees(spec, state.stage))
        return adapted_parameters(settings, join.history(state.seq_to).intervals)
    from latecomer.spark.registry import windowed_stage
    from latecomer.strategies.windows import observation_schedules, policies_to_adapt

    assert isinstance(spec, WindowedSpec)
    stage = windowed_stage(spec, tuned(lake, state.seq_to), lake)
    history = stage.observation.history(state.seq_to)
    policies = policies_to_adapt(spec, state.stage)
    schedules = observation_schedules(spec, state.stage)
    for policy, schedule, observations in zip(policies, schedules, history, strict=True):
        policy.delays(max(schedule.delay_us, schedule.pending_delay_us))
        for observation in observations:
            interval = observation.window + stage.grid.size_us // stage.grid.slide_us
            policy.observe(observation, policy.choose(interval), interval)
    return {"policies": [policy.to_dict() for policy in policies]}
