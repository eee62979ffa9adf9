"""Infer the type of a text column from its values."""

from __future__ import annotations

LEADING_ZERO = r"^[+-]?0[0-9]"


INTEGER = r"^[+-]?[0-9]{1,38}$"


NUMBER = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$"


ENDLESS = r"^[+-]?[0-9]{39,}$"


LONG = r"^[+-]?[0-9]{16,}$"


SPECIAL = r"^(nan|NaN|NAN|[+-]?(inf|Inf|INF|Infinity))$"


BOOLEAN = r"^(true|false|True|False|TRUE|FALSE)$"


STAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?$"


PATTERNS = {
    "zero": LEADING_ZERO, "integer": INTEGER, "number": NUMBER, "boolean": BOOLEAN, "timestamp": STAMP, "endless": ENDLESS,
    "long": LONG, "special": SPECIAL,
}  # fmt: skip


def guess(values: int, counts: dict[str, int]) -> str | None:
    """Narrowest Spark type of a text column, from how many of its `values` match each of `PATTERNS`; None: no value.

    ``bigint`` in `counts`: how many of the whole numbers fit it. Whole numbers are ids as often as amounts, so a column of them is never
    rounded: where some have more digits, it is a decimal. Beside fractions they are amounts, and all are doubles. ``007`` is a name,
    not a number, so one leading zero keeps the column text. ``NaN`` and ``Infinity`` are numbers, as Python and NumPy write them, but
    where a whole number beside them would be rounded.
    """
    if values == 0:
        return None
    if counts["zero"] == 0 and counts["integer"] == values:
        return "bigint" if counts["bigint"] == values else "decimal(38,0)"
    rounded = counts["endless"] or (counts["long"] and counts["special"])
    if counts["zero"] == 0 and counts["number"] + counts["special"] == values and not rounded:
        return "double"
    return next((name for name in ("boolean", "timestamp") if counts[name] == values), "string")
