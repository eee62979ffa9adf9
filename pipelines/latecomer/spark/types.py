"""Which of Spark's types, by their names in SQL, are numbers; one place, so that no two stages judge a column differently."""

from __future__ import annotations

WHOLE = ("tinyint", "smallint", "int", "bigint")
"""Narrowest first."""
FLOATING = ("float", "double")
WHOLE_OR_FLOATING = (*WHOLE, *FLOATING)
"""Numbers of fixed width. Decimals are left to those who know how to compare them."""


def is_number(kind: str) -> bool:
    """Of a whole, floating or decimal type."""
    return kind in WHOLE_OR_FLOATING or kind.startswith("decimal")
