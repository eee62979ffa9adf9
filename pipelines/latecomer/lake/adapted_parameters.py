"""Read what `adapt` has written: the number of the parameters that hold at an arrival, and the parameters."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from latecomer.lake import state_json
from latecomer.lake.lake import Lake


def effective(lake: Lake, query: str, seq: int) -> int | None:
    """Number of the newest parameters that hold at arrival `seq`, None where there are none.

    A micro-batch's plan says which it goes by: what `adapt` writes meanwhile is for later ones, also where the plan is carried out again.
    """
    rows = lake.table("parameters", query).read(columns=["number"], filter=pc.field("effective_seq") <= seq)
    return None if rows is None else pc.max(rows["number"]).as_py()


def parameters(lake: Lake, query: str, number: int | None) -> dict[str, Any] | None:
    """What `adapt` wrote under that number."""
    rows = None if number is None else lake.table("parameters", query).read(filter=pc.field("number") == number)
    if rows is None:
        return None
    found: dict[str, Any] = state_json.loads(rows["parameters"][0].as_py(), f"parameters of {query}")
    found["number"] = number
    return found
