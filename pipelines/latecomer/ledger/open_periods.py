"""Restore the open periods of a query, and a join's control plane, from the state of its last micro-batch.

`run` continues from them. `check`, `status` and `export` read their ledger rows without Spark: everything here is
computed from the state alone. The control planes of windows are restored by :mod:`latecomer.strategies.windows`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from latecomer.core.join.control import JoinControl
from latecomer.core.time import FOREVER
from latecomer.ledger.join_accounts import JoinAccounts
from latecomer.ledger.window_accounts import WindowAccounts
from latecomer.specs.join import JoinSpec
from latecomer.specs.spec import Spec
from latecomer.specs.windows import WindowedSpec
from latecomer.strategies.join import retention_parameters, retention_policy
from latecomer.strategies.windows import window_controls


def restore_join(
    spec: JoinSpec, state: dict[str, Any] | None, parameters: dict[str, Any] | None = None
) -> tuple[JoinControl, JoinAccounts]:
    """Restore a join's control plane and period accounts from a micro-batch's state.

    Parameters
    ----------
    state
        State after the micro-batch; None: both are initial, as before the first micro-batch.
    parameters
        Parameters that `adapt` wrote since; they replace the policy of the state. None: it wrote none.
    """
    settings = retention_parameters(spec)
    policy = retention_policy(settings, None if state is None else state["control"]["policy"], parameters)
    spans = {
        "window_us": settings.window_us,
        "interval_us": settings.interval_us,
        "granularity_us": settings.granularity_us,
        "period_us": settings.period_us,
    }
    if state is None:
        control = JoinControl(policy, **spans)
    else:
        control = JoinControl.from_dict(state["control"], policy, **spans)
    accounts = JoinAccounts(spec.period_us, spec.target, tuple(alias for alias, _ in spec.streams))
    if state is not None:
        accounts.restore(state["books"])
    return control, accounts


def restore_window_accounts(spec: WindowedSpec, state: dict[str, Any] | None) -> WindowAccounts:
    """Restore the period accounts of a windowed query from a micro-batch's state; None: before the first."""
    accounts = WindowAccounts(spec.period_us, spec.target)
    if state is not None:
        accounts.restore(state["books"])
    return accounts


def open_ledger(spec: Spec, state: dict[str, Any]) -> pa.Table:
    """Return the ledger rows of the periods that are still open."""
    if isinstance(spec, JoinSpec):
        control, accounts = restore_join(spec, state)
        return accounts.open(control)
    assert isinstance(spec, WindowedSpec)
    return restore_window_accounts(spec, state).open(window_controls(spec, state))


def joined_to(spec: JoinSpec, state: dict[str, Any]) -> int:
    """Return the event time (us) up to which a join has joined every row that arrived.

    Later rows still wait in the reorder buffer of the K-slack strategies; the others join a row when it arrives.
    """
    return int(state["watermark"]) if spec.strategy.reorders else FOREVER


def last_closed(spec: WindowedSpec, state: dict[str, Any]) -> int:
    """Return the number of the last window up to which none is open in any shard."""
    controls = window_controls(spec, state)
    waiting = [control for control in controls if len(control.panes)]
    closed = [control.grid.last_closed(control.watermark()) for control in waiting or controls]
    return min(closed) if waiting else max(closed)
