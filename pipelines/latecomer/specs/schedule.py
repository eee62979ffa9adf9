"""``schedule:`` of a query file: when Airflow runs the query's commands. It changes no result."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from latecomer.specs.fragments import any_of, choice, fullmatch
from latecomer.specs.reader import Reader

_PRESETS = ("@once", "@hourly", "@daily", "@weekly", "@monthly", "@yearly")
_CRON = re.compile(r"\S+(\s+\S+){4}")
TASKS = ("one", "each")
"""The ways in which Airflow takes the steps of a query: in one task, or each in a task of its own."""
_FIELD = re.compile(r"[0-9A-Za-z*/,\-?#L]+")


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedules of a query's DAGs.

    Attributes
    ----------
    start : str or None
        First day, in ISO format, that the DAGs may run for.
    interval : str or None
        Cron expression or preset of the DAG that can be run for past ranges; None: there is no such DAG.
    run, repair, adapt : str
        Cron expression or preset of each command.
    audit : str or None
        The same of `audit`; None: it is not scheduled.
    tasks : str or None
        One of `TASKS`; None: ``one`` unless the query publishes unchecked answers.
    """

    start: str | None
    interval: str | None
    run: str
    repair: str
    adapt: str
    audit: str | None
    tasks: str | None = None


DEFAULT = Schedule(None, None, "@hourly", "@hourly", "@daily", None)


def parse_schedule(reader: Reader) -> Schedule:
    """Read ``schedule: {...}``; without it, the schedule is `DEFAULT`.

    Raises
    ------
    SpecError
        A value is not a cron expression or not a date.
    """
    inner = reader.optional_mapping("schedule")
    if inner is None:
        return DEFAULT
    start = inner.take("start", None, schema=fullmatch(r"\d{4}-?(W\d|\d\d).*"))
    if start is not None:
        start = str(start)
        try:
            datetime.fromisoformat(start)
        except ValueError:
            raise inner.fail("start", start, "is not a date", "write it as 2013-01-31") from None
    schedule = Schedule(
        start,
        _parse_cron(inner, "interval"),
        _parse_cron(inner, "run") or DEFAULT.run,
        _parse_cron(inner, "repair") or DEFAULT.repair,
        _parse_cron(inner, "adapt") or DEFAULT.adapt,
        _parse_cron(inner, "audit"),
        inner.optional_choice("tasks", TASKS),
    )
    inner.done()
    return schedule


def _parse_cron(inner: Reader, name: str) -> str | None:
    presets = [preset for preset in _PRESETS if name != "interval" or preset != "@once"]
    cron = fullmatch(rf"\s*{_FIELD.pattern}(\s+{_FIELD.pattern}){{4}}\s*")
    value = inner.take(name, None, schema=any_of(choice(presets), cron))
    if value is None:
        return None
    if isinstance(value, str) and (value in presets or _is_cron(value.strip())):
        return value.strip()
    raise inner.fail(name, value, "is not a cron expression", f"write five fields, or one of {', '.join(presets)}")


def _is_cron(text: str) -> bool:
    return bool(_CRON.fullmatch(text)) and all(map(_FIELD.fullmatch, text.split()))
