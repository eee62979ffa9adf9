"""Keys of query files that say by which periods `check` judges a promise: ``over``, ``since`` and ``exclude``.

They change no result, and no verdict about a single period.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from latecomer.specs.errors import SpecError
from latecomer.specs.fragments import MAPPING, fullmatch
from latecomer.specs.reader import Reader

OVER = 100
"""Judged periods that a promise is judged by, where the query states neither `over` nor `since`."""
_PERIODS = re.compile(r"\s*([0-9]{1,6})\s*periods?\s*")
_TIME = fullmatch(r"\d{4}-?(W\d|\d\d).*")
"""JSON Schema of a time, which tells times from other texts."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A range of time, ``[from_us, to_us)``, whose periods do not count, and the author's reason."""

    from_us: int
    to_us: int
    why: str


@dataclass(frozen=True, slots=True)
class Judging:
    """The periods by which a promise is judged.

    Attributes
    ----------
    over : int
        The most judged periods that count, the newest ones. It does not bound those of `since`.
    since_us : int or None
        Periods that start earlier do not count, microseconds; None: the last `over` periods count.
    exclude : tuple of Exclusion
        Periods that overlap one of these ranges do not count.
    """

    over: int = OVER
    since_us: int | None = None
    exclude: tuple[Exclusion, ...] = ()


def parse_judging(quality: Reader) -> Judging:
    """Read ``over``, ``since`` and ``exclude`` in ``quality: {...}``.

    Raises
    ------
    SpecError
        A value cannot be read, or the file states both `over` and `since`.
    """
    over = quality.take("over", None, schema=fullmatch(rf"(?=[^1-9]*[1-9]){_PERIODS.pattern}"))
    since = quality.take("since", None, schema=_TIME)
    if over is not None and since is not None:
        raise quality.fail("since", str(since), "stands beside over", "state one: both say which periods count")
    return Judging(
        over=OVER if over is None else _parse_over(quality, over),
        since_us=None if since is None else parse_time(since, source=quality.source, key=quality.key("since")),
        exclude=_parse_exclude(quality),
    )


def _parse_over(quality: Reader, value: object) -> int:
    match = _PERIODS.fullmatch(value) if isinstance(value, str) else None
    if match is None or not int(match[1]):
        count = f"{value} periods" if isinstance(value, int) and value > 0 else f"{OVER} periods"
        raise quality.fail("over", value, "is not a number of periods", f"write {count}")
    return int(match[1])


def _parse_exclude(quality: Reader) -> tuple[Exclusion, ...]:
    value = quality.take("exclude", None, schema={"type": "array", "items": MAPPING, "minItems": 1})
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not value:
        remedy = "write [{from: 2013-01-31, to: 2013-02-01, why: the gateway was down}]"
        raise quality.fail("exclude", value, "must be a list of ranges of time", remedy)
    ranges = []
    for place, entry in enumerate(value):
        inner = Reader(entry, quality.source, f"{quality.key('exclude')}[{place}]")
        start, end = (
            parse_time(inner.take(name, schema=_TIME), source=quality.source, key=inner.key(name))
            for name in ("from", "to")
        )
        why = " ".join(inner.text("why").split())
        inner.done()
        if start >= end:
            raise inner.fail("from", format_time(start), f"is not before to ({format_time(end)})", "exchange them")
        ranges.append(Exclusion(start, end, why))
    return tuple(ranges)


def parse_time(value: object, *, source: str, key: str) -> int:
    """Parse a time in ISO 8601, or a date for its first moment; in UTC if it names no zone.

    Parameters
    ----------
    value
        The value in the file: text, or a date or time of YAML.
    source, key
        The file and the dotted key, for error messages.

    Returns
    -------
    int
        Microseconds since 1970.

    Raises
    ------
    SpecError
        The value is not a time.

    Examples
    --------
    >>> parse_time("1970-01-01T01:00:00+01:00", source="query.yaml", key="quality.since")
    0
    """
    try:
        if isinstance(value, datetime):
            moment = value
        elif isinstance(value, str | date):
            moment = datetime.fromisoformat(str(value))
        else:
            raise ValueError
    except ValueError:
        raise SpecError(source, key, value, "is not a time", "write it as 2013-01-31T12:00:00Z") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def format_time(time_us: int) -> str:
    """Format microseconds since 1970 as a time in UTC, without the time of day at midnight."""
    text = (_EPOCH + timedelta(microseconds=time_us)).isoformat(sep=" ")
    return text.removesuffix("+00:00").removesuffix(" 00:00:00")
