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
    "zero": LEADING_ZERO,
    "integer": INTEGER,
    "number": NUMBER,
    "boolean": BOOLEAN,
    "timestamp": STAMP,
    "endless": ENDLESS,
    "long": LONG,
    "special": SPECIAL,
}


def guess(values: int, counts: dict[str, int]) -> str | None:
    """Return the narrowest Spark type that holds every value of a text column; None for a column without a value.

    Whole numbers are ids as often as amounts, so a column of them is never rounded: where some do not fit ``bigint``,
    it is a decimal. A column that mixes them with fractions holds amounts, and becomes ``double``. ``007`` is a name
    and not a number, so one leading zero keeps the column text. ``NaN`` and ``Infinity`` are numbers, as Python and
    NumPy write them, unless a whole number in the same column would be rounded.

    Parameters
    ----------
    values
        Number of values.
    counts
        Number of values that match each of `PATTERNS`, and under ``bigint`` the whole numbers that fit that type.
    """
    if values == 0:
        return None
    if counts["zero"] == 0 and counts["integer"] == values:
        return "bigint" if counts["bigint"] == values else "decimal(38,0)"
    rounded = counts["endless"] or (counts["long"] and counts["special"])
    if counts["zero"] == 0 and counts["number"] + counts["special"] == values and not rounded:
        return "double"
    return next((name for name in ("boolean", "timestamp") if counts[name] == values), "string")
