"""The outcome of a query's last check, which `publish`, `status` and the next check read."""

from __future__ import annotations

from typing import Any

from latecomer.lake.lake import Lake


def last_outcome(lake: Lake, query: str) -> dict[str, Any]:
    """Return the row that the last check stored, without its nulls; empty before the first."""
    rows = lake.table("checks", query).read()
    return {} if rows is None or not rows.num_rows else {k: v for k, v in rows.to_pylist()[0].items() if v is not None}
