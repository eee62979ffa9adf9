"""The ledger of a query: one row per period, with the periods that are still open as the last micro-batch left them."""

from __future__ import annotations

import pyarrow as pa

from latecomer.lake import journal
from latecomer.lake.lake import Lake
from latecomer.ledger import window_ledger
from latecomer.ledger.join_ledger import join_ledger
from latecomer.ledger.open_periods import open_ledger
from latecomer.specs.spec import Spec
from latecomer.specs.windows import WindowedSpec


def ledger(lake: Lake, spec: Spec, state: journal.RunState | None = None) -> pa.Table:
    """Return one row per period, closed and open.

    `state` is the state of `run` that tells the open periods; None: the last one. Starts no Spark.

    Raises
    ------
    InputError
        The query has not been run in this lake, or computed something else when it was run.
    """
    still_open = open_ledger(spec, (state or journal.state_for(lake, spec)).stage)
    if isinstance(spec, WindowedSpec):
        return window_ledger.ledger(lake, spec, still_open)
    return join_ledger(lake, spec, still_open)
