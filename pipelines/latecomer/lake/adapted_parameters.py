"""Read the parameters that `adapt` has written, and which of them hold at an arrival."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from latecomer.lake import state_json
from latecomer.lake.lake import Lake


def effective(lake: Lake, query: str, seq: int) -> int | None:
    """Return the number of the newest parameters that hold at arrival `seq`; None where there are none.

    A micro-batch goes by the number in its plan, also where the plan is carried out again: newer parameters hold for
    later plans.
    """
    rows = lake.table("parameters", query).read(columns=["number"], filter=pc.field("effective_seq") <= seq)
    return None if rows is None else pc.max(rows["number"]).as_py()


def parameters(lake: Lake, query: str, number: int | None) -> dict[str, Any] | None:
    """Return the parameters of that number, with the number itself under ``number``; None where there are none."""
    rows = None if number is None else lake.table("parameters", query).read(filter=pc.field("number") == number)
    if rows is None:
        return None
    document: dict[str, Any] = state_json.loads(rows["parameters"][0].as_py(), f"parameters of {query}")
    document["number"] = number
    return document
