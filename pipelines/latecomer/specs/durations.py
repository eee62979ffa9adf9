"""Durations of query files: parse `10 min`, and write a number of microseconds as one."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from latecomer.specs.errors import SpecError

UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


LONGEST_US = 3650 * UNITS_US["d"]


_UNIT_WORDS = {"micro": "us", "milli": "ms", "msec": "ms", "sec": "s", "min": "min", "ho": "h", "hr": "h", "day": "d"}


_DURATION = re.compile(r"[ \t]*([0-9]{1,15}(?:\.[0-9]{1,9})?)[ \t]*([A-Za-z]{1,12})[ \t]*")


def parse_duration(value: object, *, source: str, key: str, zero: bool = False) -> int:
    """``250 ms``, ``10 s``, ``5 min``, ``1 h``, ``1 d`` (also ``us``) as whole microseconds.

    Raises
    ------
    SpecError
        Not a duration, not a whole number of microseconds, not positive, or longer than ten years.
    """
    remedy = "write a number and a unit: 250 ms, 10 s, 5 min, 1 h or 1 d"
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise SpecError(source, key, value, "is not a duration", remedy)
    if match[2] not in UNITS_US:
        written = match[2].lower()
        meant = next((unit for word, unit in _UNIT_WORDS.items() if written.startswith(word)), None)
        meant = "min" if written == "m" else written if written in UNITS_US else meant
        hint = f"did you mean {meant!r}?" if meant else f"use one of {', '.join(UNITS_US)}"
        if written == "ns" or written.startswith("nano"):
            hint = "us is the finest there is"
        raise SpecError(source, key, value, f"has the unknown unit {match[2]!r}", hint)
    try:
        exact = Decimal(match[1]) * UNITS_US[match[2]]
    except InvalidOperation:
        raise SpecError(source, key, value, "is not a duration", remedy) from None
    if exact != int(exact):
        raise SpecError(source, key, value, "is finer than a microsecond", "round it")
    if exact > LONGEST_US:
        raise SpecError(source, key, value, "is longer than ten years", "choose a shorter duration")
    if exact == 0 and not zero:
        raise SpecError(source, key, value, "must be longer than zero", remedy)
    return int(exact)


def shown(duration_us: int) -> str:
    """Whole microseconds as a duration of a query file, in the largest unit that keeps them whole."""
    unit = max((each for each in UNITS_US if duration_us % UNITS_US[each] == 0), key=UNITS_US.__getitem__)
    return f"{duration_us // UNITS_US[unit]} {unit}"
