"""`adapt`: recompute a query's adaptation statistics from all stored rows.

The statistics that a join gathers as it runs are censored (a missed pair is not seen), those of windows end with their observation;
history has neither limit. `adapt` counts which retention or wait every pair, answer or member required, and writes the controller
that would have seen them all. It holds from the first arrival of the next micro-batch that is planned, since a run may be at work.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from latecomer.lake import crash_points, journal
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.lake.maintenance import compact_and_vacuum
from latecomer.spark.engine.session import tuned
from latecomer.strategies.join import adapted_parameters

if TYPE_CHECKING:
    from latecomer.specs.spec import Spec


_REMEDIES = {
    "join": "choose qjoin",
    "aggregate": "choose calibrated or hpm",
    "topk": "choose calibrated or adaptive_wait",
}
"""Remedy for a strategy that takes nothing from `adapt`, by query kind."""


def adapt(lake: Lake, spec: Spec) -> tuple[int, dict[str, Any]]:
    """Write new parameters, and return the arrival from which they hold together with them.

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
        learnt = _learnt(lake, spec, state)
        last = lake.table("parameters", spec.name).last_version("adapt")
        number = 0 if last is None else last + 1
        reached = journal.run_state(lake, spec.name, spec)
        following, seq = _planned(lake, spec.name, reached.number + 1, reached.seq_to)
        row = {"number": number, "effective_seq": seq, "parameters": json.dumps(learnt)}
        lease.confirm()
        lake.table("parameters", spec.name).append(pa.Table.from_pylist([row]), "adapt", number)
        crash_points.point("adapt:parameters")
        compact_and_vacuum([lake.table("parameters", spec.name)])
        return _planned(lake, spec.name, following, seq, number)[1], learnt


def _planned(lake: Lake, query: str, number: int, seq: int, learnt: int | None = None) -> tuple[int, int]:
    """The first micro-batch from `number` on, which begins with arrival `seq`, that is not planned yet, or goes by parameters `learnt`."""
    while (plan := journal.planned(lake, query, "run", number)) is not None:
        if learnt is not None and plan.get("parameters") == learnt:
            break
        number, seq = number + 1, plan["seq_to"]
    return number, seq


def _learnt(lake: Lake, spec: Any, state: Any) -> dict[str, Any]:
    """What the query's controllers should have known."""
    if spec.kind == "join":
        from latecomer.spark.join.stage import JoinStage

        stage = JoinStage(spec, tuned(lake, state.seq_to), lake.snapshot())
        return adapted_parameters(stage.settings, stage.history(state.seq_to).intervals)
    from latecomer.spark.registry import stage_of
    from latecomer.spark.windows.stage import WindowedStage
    from latecomer.strategies.windows import slack_policies, window_controls

    windows = stage_of(spec, tuned(lake, state.seq_to), lake)
    assert isinstance(windows, WindowedStage)
    policies = slack_policies(spec)
    known = window_controls(spec, state.stage)
    for policy, control, seen in zip(policies, known, windows.history(state.seq_to), strict=True):
        policy.delays(max(control.lookout.delay_us, control.lookout.pending_delay_us))
        for each in seen:
            interval = each.window + windows.grid.size_us // windows.grid.slide_us
            policy.observe(each, policy.choose(interval), interval)
    return {"policies": [policy.to_dict() for policy in policies]}
