"""`adapt`: recompute a query's adaptation statistics from everything that was stored.

Live statistics are censored (a pair that was missed was not seen); history is not. `adapt` counts, for every period, the
retention each pair would have needed, and writes what the controller should have known, effective from the
arrival the next micro-batch starts with.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.policies import adapted_parameters
from latecomer.lake import crash, journal, small
from latecomer.lake.errors import InputError
from latecomer.lake.lease import Lease
from latecomer.lake.location import Lake
from latecomer.spark.session import session

if TYPE_CHECKING:
    from latecomer.specs.common import Spec


def adapt(lake: Lake, spec: Spec) -> tuple[int, dict[str, Any]]:
    """Write new parameters; returns the arrival from which they hold, and the parameters.

    Raises
    ------
    InputError
        The query has not been run, or its strategy does not adapt.
    """
    with Lease(lake, f"adapt-{spec.name}"):
        state = journal.load_state(lake, spec.name)
        if state is None:
            raise InputError(f"query {spec.name}", None, f"has not been run in {lake.uri}", "run it first")
        stage = _stage(lake, spec)
        parameters = adapted_parameters(stage.settings, stage.history(state.seq_to))
        last = small.last_version(lake, "parameters", spec.name, "adapt")
        number = 0 if last is None else last + 1
        row = {"number": number, "effective_seq": state.seq_to, "parameters": json.dumps(parameters)}
        small.append(lake, "parameters", spec.name, pa.Table.from_pylist([row]), "adapt", number)
        crash.point("adapt:parameters")
        return state.seq_to, parameters


def effective(lake: Lake, query: str, seq: int) -> dict[str, Any] | None:
    """The newest parameters that hold at arrival `seq`, None where there are none."""
    rows = small.read(lake, "parameters", query)
    if rows is None:
        return None
    rows = rows.filter(pc.less_equal(rows["effective_seq"], seq))
    if rows.num_rows == 0:
        return None
    newest = pc.index(rows["number"], pc.max(rows["number"])).as_py()
    return {"number": rows["number"][newest].as_py(), **json.loads(rows["parameters"][newest].as_py())}


def _stage(lake: Lake, spec: Spec) -> Any:
    if spec.kind != "join":
        raise InputError(f"query {spec.name}: kind", spec.kind, "does not adapt from history", "only a join does")
    from latecomer.spark.join import JoinStage

    return JoinStage(spec, session(lake), lake)  # type: ignore[arg-type]
