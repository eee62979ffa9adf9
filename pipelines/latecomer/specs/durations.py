"""Durations of query files: parse ``10 min``, and format microseconds as such a text."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from latecomer.specs.errors import SpecError
from latecomer.specs.fragments import fullmatch

UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
"""Units and their lengths in microseconds."""
LONGEST_US = 3650 * UNITS_US["d"]
"""The longest duration, microseconds."""
_UNIT_PREFIXES = {
    "micro": "us",
    "milli": "ms",
    "msec": "ms",
    "sec": "s",
    "min": "min",
    "ho": "h",
    "hr": "h",
    "day": "d",
}
"""First letters of other words for units, for the remedy of an unknown one."""
_DURATION = re.compile(r"[ \t]*([0-9]{1,15}(?:\.[0-9]{1,9})?)[ \t]*([A-Za-z]{1,12})[ \t]*")
_KNOWN = _DURATION.pattern.replace("[A-Za-z]{1,12}", "|".join(UNITS_US)).replace("(", "(?:").replace("(?:?:", "(?:")
DURATION_OR_ZERO = fullmatch(_KNOWN)
DURATION = fullmatch(f"(?=[^1-9]*[1-9]){_KNOWN}")
"""JSON Schemas of durations. They admit durations that are too long or finer than a microsecond."""


def parse_duration(value: object, *, source: str, key: str, zero: bool = False) -> int:
    """Parse a duration such as ``250 ms``, ``10 s``, ``5 min``, ``1 h`` or ``1 d`` (also ``us``).

    Parameters
    ----------
    value
        The value in the file.
    source, key
        The file and the dotted key, for error messages.
    zero
        True where a duration of 0 is allowed.

    Returns
    -------
    int
        Microseconds.

    Raises
    ------
    SpecError
        The value is not a duration, not a whole number of microseconds, not positive, or longer than ten years.

    Examples
    --------
    >>> parse_duration("1.5 h", source="query.yaml", key="window")
    5400000000
    """
    remedy = "write a number and a unit: 250 ms, 10 s, 5 min, 1 h or 1 d"
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise SpecError(source, key, value, "is not a duration", remedy)
    number, unit = match.groups()
    if unit not in UNITS_US:
        raise SpecError(source, key, value, f"has the unknown unit {unit!r}", _unit_remedy(unit.lower()))
    try:
        exact = Decimal(number) * UNITS_US[unit]
    except InvalidOperation:
        raise SpecError(source, key, value, "is not a duration", remedy) from None
    if exact != int(exact):
        raise SpecError(source, key, value, "is finer than a microsecond", "round it")
    if exact > LONGEST_US:
        raise SpecError(source, key, value, "is longer than ten years", "choose a shorter duration")
    if exact == 0 and not zero:
        raise SpecError(source, key, value, "must be longer than zero", remedy)
    return int(exact)


def _unit_remedy(unit: str) -> str:
    """Return the remedy of an unknown unit, which is in lower case."""
    if unit == "ns" or unit.startswith("nano"):
        return "us is the finest there is"
    meant = next((known for prefix, known in _UNIT_PREFIXES.items() if unit.startswith(prefix)), None)
    meant = "min" if unit == "m" else unit if unit in UNITS_US else meant
    return f"did you mean {meant!r}?" if meant else f"use one of {', '.join(UNITS_US)}"


def format_duration(duration_us: int) -> str:
    """Format whole microseconds as a duration, in the largest unit that keeps the number whole.

    >>> format_duration(90_000_000)
    '90 s'
    """
    unit = max((unit for unit, unit_us in UNITS_US.items() if duration_us % unit_us == 0), key=UNITS_US.__getitem__)
    return f"{duration_us // UNITS_US[unit]} {unit}"
