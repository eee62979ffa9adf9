"""The batch journal: what was planned, and where each writer of a query stands.

A micro-batch is planned (which range of ``seq``) and the plan committed before anything is written; then its tables, in
one fixed order, each with the batch's number as transaction version; the state last. Whoever finds a plan without its
state runs that very plan again: tables that had it ignore the repeat, the others get it now. A writer that failed without being
killed, and had written nothing, takes its plan back, so that a smaller one may follow where memory did not do.

``journal/<query>`` holds one row per plan of ``run``, ``repair_journal/<query>`` one per plan of ``repair``, since both may work at
once and a table has one writer. ``state/<query>`` has one row, replaced at each commit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.state import OtherVersion
from latecomer.lake import state_json
from latecomer.lake.errors import InputError, LeaseLost
from latecomer.lake.forget import refuse_forgotten
from latecomer.lake.lake import Lake
from latecomer.specs.diff import differences
from latecomer.specs.spec import Spec

STATE_FORMAT = 1
"""Layout of states and plans; what was written with another one is refused, never misread. Without a number it is 1."""

_PLAN = pa.schema([("number", pa.int64()), ("plan", pa.string())])
_AGAIN = _PLAN.append(pa.field("again", pa.int64()))
_PLANS = {"run": "journal", "repair": "repair_journal"}
"""Writer to the area of its plans."""


@dataclass(frozen=True)
class RunState:
    """Where `run` of a query stands: its last committed batch, the next ``seq`` to process, and the stage's state.

    `flushed_results` are the result rows that this batch's flush published, and the sum of their waits (us), by period (us). `signature` is
    that of the query that ran (:meth:`latecomer.specs.spec.Spec.signature`), None where an earlier version wrote the state.
    """

    number: int
    seq_to: int
    flushed: bool
    fingerprint: str
    stage: dict[str, Any]
    counts: dict[str, int]
    flushed_results: dict[int, tuple[int, int]] = field(default_factory=dict)
    signature: dict[str, Any] | None = None


def load_state(lake: Lake, query: str, spec: Spec | None = None) -> RunState | None:
    """State of the query's last committed micro-batch, None before the first.

    Raises
    ------
    OtherVersion
        The state was written by a version with another layout; so does the state where it lacks what this version asks of it.
    InputError
        With `spec`: the query that wrote it has another signature. Or it is half forgotten.
    """
    refuse_forgotten(lake, query)
    table = lake.table("state", query).read()
    if table is None or table.num_rows == 0:
        return None
    where = f"state of {query}"
    row = state_json.StoredObject(table.to_pylist()[0], where)
    _check_format(row.get("format", 1), where)
    # absent where an earlier version wrote it
    signature = json.loads(row.get("asked") or "null")
    if spec is not None and row["fingerprint"] != spec.fingerprint():
        raise changed(query, signature, spec.signature())
    return RunState(
        row["number"],
        row["seq_to"],
        row["flushed"],
        row["fingerprint"],
        state_json.loads(row["stage"], where),
        state_json.loads(row["counts"], where),
        {int(period): (rows, wait) for period, (rows, wait) in json.loads(row.get("released") or "{}").items()},
        signature,
    )


def run_state(lake: Lake, query: str, spec: Spec | None = None) -> RunState:
    """State of a query that has been run; errors as for `load_state`, and one where it has not."""
    found = load_state(lake, query, spec)
    if found is None:
        raise InputError(f"query {query}", None, f"has not been run in {lake.uri}", "run it first")
    return found


def state_for(lake: Lake, spec: Spec) -> RunState:
    """As `run_state`, for commands that read what a query left: its file may state another target, and nothing else.

    Raises
    ------
    InputError
        Also where the query that ran computed something other than `spec` does.
    """
    found = run_state(lake, spec.name)
    if found.signature is not None:
        before, now = spec.without_target(found.signature), spec.without_target(as_stored(spec.signature()))
        if before != now:
            raise changed(spec.name, before, now, "; only its target may be another")
    return found


def as_stored(signature: dict[str, Any]) -> dict[str, Any]:
    """Return a signature as it comes back from a table."""
    stored: dict[str, Any] = json.loads(json.dumps(signature))
    return stored


def changed(query: str, before: dict[str, Any] | None, now: dict[str, Any], besides: str = "") -> InputError:
    """Return the error of a query whose signature has changed; `besides` ends the remedy."""
    problem = "has changed since it was first run in this lake, and its results would mix two questions"
    found = [] if before is None else differences(before, as_stored(now))
    if found:
        problem = f"has changed since it ran: {'; '.join(found)}"
    remedy = f"restore the file, give it a new name, or begin it again after `latecomer forget {query}`"
    return InputError(f"query {query}", None, problem, f"{remedy}{besides}")


def save_state(lake: Lake, query: str, state: RunState) -> None:
    """Commit the state: with this the micro-batch is done."""
    row = {
        "format": STATE_FORMAT,
        "number": state.number,
        "seq_to": state.seq_to,
        "flushed": state.flushed,
        "fingerprint": state.fingerprint,
        "stage": json.dumps(state.stage, separators=(",", ":")),
        "counts": json.dumps(state.counts),
        "released": json.dumps(state.flushed_results),
        "asked": json.dumps(state.signature, separators=(",", ":")),
    }
    lake.table("state", query).append(pa.Table.from_pylist([row]), "run", state.number)


def plan(lake: Lake, query: str, writer: str, number: int, what: dict[str, Any]) -> None:
    """Record plan `number` of a writer (``run``, ``repair``), of which there is none but what was taken back.

    Raises
    ------
    LeaseLost
        There is one: another process took over, after this one last looked.
    """
    area, row = _PLANS[writer], _row(number, what)
    if not lake.table(area, query).append(pa.Table.from_pylist([row], schema=_PLAN), writer, number):
        if planned(lake, query, writer, number) is not None:
            raise LeaseLost(f"{writer}-{query}", "another process")
        _replan(lake, query, writer, row)


def take_back(lake: Lake, query: str, writer: str, number: int) -> None:
    """Undo plan `number`, of which nothing was written nor can be any more."""
    _replan(lake, query, writer, _row(number, {"taken_back": True}))


def _row(number: int, what: dict[str, Any]) -> dict[str, Any]:
    return {"number": number, "plan": json.dumps({"format": STATE_FORMAT, **what})}


def _replan(lake: Lake, query: str, writer: str, row: dict[str, Any]) -> None:
    """Record a plan in place of the one that has its number."""
    area, again = _PLANS[writer], f"{writer}_again"
    last = lake.table(area, query).last_version(again)
    version = 0 if last is None else last + 1
    lake.table(area, query).append(pa.Table.from_pylist([row | {"again": version}], schema=_AGAIN), again, version)


def planned(lake: Lake, query: str, writer: str, number: int) -> dict[str, Any] | None:
    """The plan of that number, if one was recorded; the last of them."""
    done = lake.table(_PLANS[writer], query).last_version(writer)
    if done is None or done < number:
        return None
    rows = lake.table(_PLANS[writer], query).read(filter=pc.field("number") == number)
    if rows is None or rows.num_rows == 0:
        return None
    last = max(rows.to_pylist(), key=lambda row: -1 if row.get("again") is None else row["again"])
    where = f"plan of {query}"
    found: dict[str, Any] = state_json.loads(last["plan"], where)
    _check_format(found.pop("format", 1), where)
    return None if found.get("taken_back") else found


def _check_format(found: int, where: str) -> None:
    if found != STATE_FORMAT:
        raise OtherVersion(where, f"has format {found}, this program reads {STATE_FORMAT}")
