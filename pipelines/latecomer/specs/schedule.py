"""``schedule:`` of a query file: when Airflow runs what. It changes no result."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from latecomer.specs.reader import Reader

_PRESETS = ("@once", "@hourly", "@daily", "@weekly", "@monthly", "@yearly")
_CRON = re.compile(r"\S+(\s+\S+){4}")
_FIELD = re.compile(r"[0-9A-Za-z*/,\-?#L]+")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Cron expressions (or presets) of a query's DAGs; `start` is the first day they may run for, ISO. `audit` None: none."""

    start: str | None
    interval: str | None
    run: str
    repair: str
    adapt: str
    audit: str | None


DEFAULT = Schedule(None, None, "@hourly", "@hourly", "@daily", None)


def schedule_of(reader: Reader) -> Schedule:
    """The file's schedule, or the default.

    Raises
    ------
    SpecError
        A cron expression or date that is none.
    """
    inner = reader.mapping("schedule", None)
    if inner is None:
        return DEFAULT
    start = inner.take("start", None)
    if start is not None:
        start = str(start)
        try:
            datetime.fromisoformat(start)
        except ValueError:
            raise inner.fail("start", start, "is not a date", "write it as 2013-01-31") from None
    found = Schedule(
        start,
        _cron(inner, "interval", None),
        _cron(inner, "run", DEFAULT.run) or DEFAULT.run,
        _cron(inner, "repair", DEFAULT.repair) or DEFAULT.repair,
        _cron(inner, "adapt", DEFAULT.adapt) or DEFAULT.adapt,
        _cron(inner, "audit", DEFAULT.audit),
    )
    inner.done()
    return found


def _cron(inner: Reader, name: str, default: str | None) -> str | None:
    value = inner.take(name, default)
    if value is None or (value in _PRESETS and (name, value) != ("interval", "@once")):
        return value
    if (
        not isinstance(value, str)
        or not _CRON.fullmatch(value.strip())
        or not all(map(_FIELD.fullmatch, value.split()))
    ):
        presets = [each for each in _PRESETS if name != "interval" or each != "@once"]
        raise inner.fail(name, value, "is not a cron expression", f"write five fields, or one of {', '.join(presets)}")
    return value.strip()
