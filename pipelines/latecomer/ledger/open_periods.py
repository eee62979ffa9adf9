"""The open periods of a query as the state of its last micro-batch has them.

`check`, `status` and `export` read their ledger rows without Spark: everything here is computed from the state alone.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from latecomer.core.time import FOREVER, NEVER
from latecomer.core.windows.control import WindowControl
from latecomer.ledger.join_accounts import restore_join
from latecomer.ledger.window_accounts import restore_window_accounts
from latecomer.specs.join import JoinSpec
from latecomer.specs.spec import Spec
from latecomer.specs.windows import WindowedSpec
from latecomer.strategies.windows import recall_budget, window_controls


def open_ledger(spec: Spec, state: dict[str, Any]) -> pa.Table:
    """Return the ledger rows of the periods that are still open."""
    if isinstance(spec, JoinSpec):
        control, accounts = restore_join(spec, state)
        return accounts.open(control)
    assert isinstance(spec, WindowedSpec)
    return restore_window_accounts(spec, state).open(window_controls(spec, state))


def complete_to(spec: Spec, state: dict[str, Any]) -> int:
    """Return the time (us) so that no row is expected any more for periods that end at it or before.

    A join's period is settled when stream time has left it, because it holds what arrived in it. A period of windows
    is settled when all of them are closed and the usual lateness has passed since; with a recall guarantee, when it is
    closed, too.
    """
    if isinstance(spec, JoinSpec):
        control, _ = restore_join(spec, state)
        if control.interval is None:
            return NEVER
        return control.interval * control.interval_us // spec.period_us * spec.period_us
    assert isinstance(spec, WindowedSpec)
    budget = recall_budget(spec, state)
    closed_to_us = FOREVER if budget is None else budget.closed_to_us
    return min(closed_to_us, *map(_complete_to, window_controls(spec, state)))


def _complete_to(control: WindowControl) -> int:
    if control.interval is None:
        return NEVER
    stream_time = max(control.t_last_us, control.interval * control.interval_us)
    return min(control.final_until(), stream_time - control.schedule.expected_lateness())


def joined_to(spec: JoinSpec, state: dict[str, Any]) -> int:
    """Return the event time (us) up to which a join has joined every row that arrived.

    Later rows still wait in the reorder buffer of the K-slack strategies; the others join a row when it arrives.
    """
    return int(state["watermark"]) if spec.strategy.reorders else FOREVER


def decided_to(spec: Spec, state: dict[str, Any]) -> int:
    """Return the first arrival whose missed results `run` may still publish itself.

    `repair` takes only late rows before it. It is `FOREVER` where `run` publishes nothing for late rows.
    """
    if isinstance(spec, JoinSpec):
        _, accounts = restore_join(spec, state)
        return FOREVER if accounts.budget is None else accounts.budget.decided_to
    assert isinstance(spec, WindowedSpec)
    budget = recall_budget(spec, state)
    return FOREVER if budget is None else budget.decided_to


def last_closed(spec: WindowedSpec, state: dict[str, Any]) -> int:
    """Return the number of the last window up to which none is open in any shard."""
    controls = window_controls(spec, state)
    waiting = [control for control in controls if len(control.panes)]
    closed = [control.grid.last_closed(control.watermark()) for control in waiting or controls]
    return min(closed) if waiting else max(closed)
