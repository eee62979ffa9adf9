"""Sum decimals exactly in SQL, also where a partial sum exceeds the 38 digits of Spark's type.

A partial sum of decimals may exceed 38 digits although the total does not. So that the order of the rows does not
matter, every value is split at 10^20 units of its last digit into two numbers. The sum of either has room for 10^10
rows and more, and only the two totals are put together.
"""

from __future__ import annotations

CUT = 20
"""Digits, counted from the last one, at which a value is split."""
_UNITS = f"{10**CUT}BD"
_ROOM = 38
_ROWS = 10
"""Digits by which a sum of 10^10 values may exceed them."""


def digits_of(kind: str) -> tuple[int, int]:
    """Return precision and scale of ``decimal(p,s)``."""
    precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


def is_wide(kind: str) -> bool:
    """Return whether a sum of decimals of this type may exceed 38 digits."""
    return digits_of(kind)[0] + _ROWS > _ROOM


def halves(value: str, scale: int) -> tuple[str, str]:
    """Return the SQL of a decimal's two parts: whole steps of 10^20 units, and the remainder.

    Both have the value's sign.
    """
    whole = f"cast({value} as decimal({_ROOM},{scale}))"
    step = f"{10 ** (CUT - scale)}BD" if scale <= CUT else f"0.{'0' * (scale - CUT - 1)}1BD"
    return f"cast({whole} div {step} as decimal({_ROOM},0))", f"cast({whole} % {step} as decimal({_ROOM},{scale}))"


def together(high: str, low: str, scale: int) -> str:
    """Return the SQL of the decimal whose two parts were summed; null where it has more than 38 digits.

    The total is assembled from digits: Spark's addition gives up the last digit after the point for a possible carry.
    """
    units = f"cast(replace(cast({low} as string), '.', '') as decimal({_ROOM},0))"
    steps, rest = f"({high} + {units} div {_UNITS})", f"({units} % {_UNITS})"
    lent = f"(case when {steps} > 0 and {rest} < 0 then 1 when {steps} < 0 and {rest} > 0 then -1 else 0 end)"
    steps, rest = f"({steps} - {lent})", f"({rest} + {lent} * {_UNITS})"
    sign = f"case when {steps} < 0 or {rest} < 0 then '-' else '' end"
    digits = f"replace(cast({steps} as string), '-', ''), lpad(replace(cast({rest} as string), '-', ''), {CUT}, '0')"
    return f"try_cast(concat({sign}, {digits}, 'E-{scale}') as decimal({_ROOM},{scale}))"
