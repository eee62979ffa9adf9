"""The ledger with the periods that are still open, as the last micro-batch left them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from latecomer.lake import journal, views
from latecomer.lake.location import Lake
from latecomer.quality import windowed
from latecomer.spark.kinds import open_ledger


def ledger(lake: Lake, spec: Any) -> pa.Table:
    """One row per period, closed and open. Starts no Spark.

    Raises
    ------
    InputError
        The query has not been run in this lake.
    """
    state = journal.run_state(lake, spec.name)
    still_open = open_ledger(spec, state.stage)
    return views.ledger(lake, spec, still_open) if spec.kind == "join" else windowed.ledger(lake, spec, still_open)
