"""The batch journal: the plans of a query's writers, and the state of its last committed micro-batch.

A plan (which range of ``seq``) is committed before anything else of its micro-batch; then come the micro-batch's tables
in one fixed order, each with the micro-batch's number as transaction version; the state comes last. A process that
finds a plan without its state carries that plan out again: tables that hold its commits ignore the repeat, the others
get them now. A writer that failed without being killed, and had written nothing, takes its plan back, so that a smaller
one may follow where memory ran out.

``journal/<query>`` holds one row per plan of ``run``, ``repair_journal/<query>`` one per plan of ``repair``: both may
work at once, and a table has one writer. ``state/<query>`` has one row, which each commit replaces.
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
"""Layout of states and plans. A document of another layout is refused, never misread.

One without a number has layout 1.
"""

_PLAN = pa.schema([("number", pa.int64()), ("plan", pa.string())])
_AGAIN = _PLAN.append(pa.field("again", pa.int64()))
_PLANS = {"run": "journal", "repair": "repair_journal"}
"""Area of the plans, by writer."""


@dataclass(frozen=True)
class RunState:
    """Where `run` of a query stands: its last committed batch, the next ``seq`` to process, and the stage's state.

    `flushed_results` are the result rows that this batch's flush published, and the sum of their waits (us), by period
    (us). `signature` is that of the query that ran (:meth:`latecomer.specs.spec.Spec.signature`), None where an earlier
    version wrote the state.
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
    """Load the state of the query's last committed micro-batch; None before the first.

    Raises
    ------
    OtherVersion
        Another version of the program wrote the state: its layout differs, or it lacks a key.
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
    """Load the state of a query that has been run; an InputError where it has not, and the errors of `load_state`."""
    state = load_state(lake, query, spec)
    if state is None:
        raise InputError(f"query {query}", None, f"has not been run in {lake.uri}", "run it first")
    return state


def state_for(lake: Lake, spec: Spec) -> RunState:
    """Load the state for a command that only reads: the query file may state another target, and nothing else.

    Raises
    ------
    InputError
        As for `run_state`; also where the query that ran computed something other than `spec` does.
    """
    state = run_state(lake, spec.name)
    if state.signature is not None:
        before, now = spec.without_target(state.signature), spec.without_target(as_stored(spec.signature()))
        if before != now:
            raise changed(spec.name, before, now, "; only its target may be another")
    return state


def as_stored(signature: dict[str, Any]) -> dict[str, Any]:
    """Return a signature as it comes back from a table."""
    stored: dict[str, Any] = json.loads(json.dumps(signature))
    return stored


def changed(query: str, before: dict[str, Any] | None, now: dict[str, Any], besides: str = "") -> InputError:
    """Return the error of a query whose signature has changed; `besides` ends the remedy."""
    problem = "has changed since it was first run in this lake, and its results would mix two questions"
    changes = [] if before is None else differences(before, as_stored(now))
    if changes:
        problem = f"has changed since it ran: {'; '.join(changes)}"
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


def plan(lake: Lake, query: str, writer: str, number: int, content: dict[str, Any]) -> None:
    """Record plan `number` of a writer (``run`` or ``repair``). Any earlier plan of that number was taken back.

    Raises
    ------
    LeaseLost
        There is such a plan: another process took over.
    """
    area, row = _PLANS[writer], _row(number, content)
    if not lake.table(area, query).append(pa.Table.from_pylist([row], schema=_PLAN), writer, number):
        if planned(lake, query, writer, number) is not None:
            raise LeaseLost(f"{writer}-{query}", "another process")
        _replan(lake, query, writer, row)


def take_back(lake: Lake, query: str, writer: str, number: int) -> None:
    """Undo plan `number`, of which nothing was written and nothing will be."""
    _replan(lake, query, writer, _row(number, {"taken_back": True}))


def _row(number: int, content: dict[str, Any]) -> dict[str, Any]:
    return {"number": number, "plan": json.dumps({"format": STATE_FORMAT, **content})}


def _replan(lake: Lake, query: str, writer: str, row: dict[str, Any]) -> None:
    """Record a plan that replaces the one of the same number."""
    area, again = _PLANS[writer], f"{writer}_again"
    last = lake.table(area, query).last_version(again)
    version = 0 if last is None else last + 1
    lake.table(area, query).append(pa.Table.from_pylist([row | {"again": version}], schema=_AGAIN), again, version)


def planned(lake: Lake, query: str, writer: str, number: int) -> dict[str, Any] | None:
    """Return the last plan recorded under that number; None where there is none, or it was taken back."""
    rows = lake.table(_PLANS[writer], query).read(filter=pc.field("number") == number)
    if rows is None or rows.num_rows == 0:
        return None
    last = max(rows.to_pylist(), key=lambda row: -1 if row.get("again") is None else row["again"])
    where = f"plan of {query}"
    content: dict[str, Any] = state_json.loads(last["plan"], where)
    _check_format(content.pop("format", 1), where)
    return None if content.get("taken_back") else content


def _check_format(format_number: int, where: str) -> None:
    if format_number != STATE_FORMAT:
        raise OtherVersion(where, f"has format {format_number}, this program reads {STATE_FORMAT}")
