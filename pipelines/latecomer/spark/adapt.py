"""`adapt`: recompute a query's adaptation statistics from everything that was stored.

Live statistics of a join are censored (a pair that was missed was not seen), those of windows end with their observation; history
has neither limit. `adapt` counts what every pair, answer or member would have needed, and writes what the controller should
have known, effective from the arrival with which the next micro-batch begins that is planned after it was written: a run may be at work.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.policies import adapted_parameters
from latecomer.lake import crash, journal, small, stored
from latecomer.lake.housekeeping import tend
from latecomer.lake.lease import Lease
from latecomer.lake.location import Lake
from latecomer.spark.session import tuned

if TYPE_CHECKING:
    from latecomer.specs.spec import Spec


_REMEDIES = {
    "join": "choose qjoin",
    "aggregate": "choose calibrated or hpm",
    "topk": "choose calibrated or adaptive_wait",
}
"""What to write in place of a strategy that takes nothing from `adapt`."""


def adapt(lake: Lake, spec: Spec) -> tuple[int, dict[str, Any]]:
    """Write new parameters; returns the arrival from which they hold, and the parameters.

    Raises
    ------
    InputError
        The query has not been run or has changed since.
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
        last = small.last_version(lake, "parameters", spec.name, "adapt")
        number = 0 if last is None else last + 1
        reached = journal.run_state(lake, spec.name, spec)
        following, seq = _planned(lake, spec.name, reached.number + 1, reached.seq_to)
        row = {"number": number, "effective_seq": seq, "parameters": json.dumps(learnt)}
        lease.confirm()
        small.append(lake, "parameters", spec.name, pa.Table.from_pylist([row]), "adapt", number)
        crash.point("adapt:parameters")
        tend(lake, [("parameters", spec.name)])
        return _planned(lake, spec.name, following, seq, number)[1], learnt


def _planned(lake: Lake, query: str, number: int, seq: int, learnt: int | None = None) -> tuple[int, int]:
    """The first micro-batch from `number` on, which begins with arrival `seq`, that is not planned yet, or goes by parameters `learnt`."""
    while (plan := journal.planned(lake, query, "run", number)) is not None:
        if learnt is not None and plan.get("parameters") == learnt:
            break
        number, seq = number + 1, plan["seq_to"]
    return number, seq


def effective(lake: Lake, query: str, seq: int) -> int | None:
    """Number of the newest parameters that hold at arrival `seq`, None where there are none.

    A micro-batch's plan says which it goes by: what `adapt` writes meanwhile is for later ones, also where the plan is carried out again.
    """
    rows = small.read(lake, "parameters", query, columns=["number"], filter=pc.field("effective_seq") <= seq)
    return None if rows is None else pc.max(rows["number"]).as_py()


def parameters(lake: Lake, query: str, number: int | None) -> dict[str, Any] | None:
    """What `adapt` wrote under that number."""
    rows = None if number is None else small.read(lake, "parameters", query, filter=pc.field("number") == number)
    if rows is None:
        return None
    found: dict[str, Any] = stored.loads(rows["parameters"][0].as_py(), f"parameters of {query}")
    found["number"] = number
    return found


def _learnt(lake: Lake, spec: Any, state: Any) -> dict[str, Any]:
    """What the query's controllers should have known."""
    if spec.kind == "join":
        from latecomer.spark.join import JoinStage

        stage = JoinStage(spec, tuned(lake, state.seq_to), lake.holding())
        return adapted_parameters(stage.settings, stage.history(state.seq_to).intervals)
    from latecomer.spark.kinds import stage_of
    from latecomer.spark.window_rows import controls_of
    from latecomer.spark.windowed import WindowedStage

    windows = stage_of(spec, tuned(lake, state.seq_to), lake)
    assert isinstance(windows, WindowedStage)
    policies = windows.policies()
    known = controls_of(spec, windows.policies(), state.stage)
    for policy, control, seen in zip(policies, known, windows.history(state.seq_to), strict=True):
        policy.delays(max(control.lookout.delay_us, control.lookout.pending_delay_us))
        for each in seen:
            interval = each.window + windows.grid.size_us // windows.grid.slide_us
            policy.observe(each, policy.choose(interval), interval)
    return {"policies": [policy.to_dict() for policy in policies]}
