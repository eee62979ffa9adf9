"""Convert times on the clocks of a zone to instants, for whole arrays, by the time zone database that Python uses.

A zone's offsets are constant between its changes, so a table of changes tells every instant. The database lists the
changes of the past one by one and has a rule for the later ones. The rule repeats with the calendar, every 400 years,
so the table holds one such cycle after the last listed change, and later times are read in it.
"""

from __future__ import annotations

import io
import struct
from calendar import isleap
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from pathlib import Path
from zoneinfo import TZPATH, ZoneInfo, ZoneInfoNotFoundError, available_timezones

import numpy as np
from numba import njit
from numpy.typing import NDArray

_SECOND_US = 1_000_000
_CYCLE_YEARS = 400
_CYCLE_US = 146_097 * 86_400 * _SECOND_US
"""The length of the Gregorian calendar's cycle; it is a whole number of weeks."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400
_WEEK = 7 * _DAY
_FAR_US = (1 << 63) - 1
_ROOM_US = 1 << 60
"""Clock times beyond this are no instants: sums with an offset could overflow."""


@dataclass(frozen=True)
class ZoneTable:
    """The periods of constant offset of a zone, ascending.

    Attributes
    ----------
    starts, ends : int64[n]
        The clock's times at which each period begins and ends, us since 1970 on that clock.
    offsets : int64[n]
        How far the clock is before UTC in each period, us.
    cycle_from
        The clock's time (us) from which the table repeats every 400 years, after one cycle of its own.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    offsets: NDArray[np.int64]
    cycle_from: int


@cache
def area_names() -> tuple[str, ...]:
    """Return the names of zones that name an area and a place (Europe/Berlin), sorted; abbreviations are not among."""
    return tuple(sorted(name for name in _names() if "/" in name))


@cache
def _names() -> frozenset[str]:
    return frozenset(available_timezones())


@cache
def zone_table(name: str) -> ZoneTable:
    """Return the table of a zone.

    Raises
    ------
    zoneinfo.ZoneInfoNotFoundError
        The database has no such zone.
    """
    content = _database_entry(name)
    zone = ZoneInfo.from_file(io.BytesIO(content), name)
    listed, has_rule = _listed_changes(content)
    last_year = max([1970, *((_EPOCH + timedelta(seconds=second)).year for second in listed[-1:])])
    cycle_from, after = _year_begin(last_year + 2), listed[-1] if listed else 0
    changes = listed + (_changes_by_rule(zone, after, last_year + 2 + _CYCLE_YEARS) if has_rule else [])
    offsets = [_offset(zone, second - 1) for second in changes[:1]] or [_offset(zone, 0)]
    times: list[int] = []
    for second in changes:
        offset = _offset(zone, second)
        if offset != offsets[-1]:  # others change the name or the kind of the time only
            times.append(second)
            offsets.append(offset)
    shift, edge = np.array(offsets, np.int64), np.array(times, np.int64)
    return ZoneTable(
        np.concatenate([[-_FAR_US], (edge + shift[1:]) * _SECOND_US]),
        np.concatenate([(edge + shift[:-1]) * _SECOND_US, [_FAR_US]]),
        shift * _SECOND_US,
        cycle_from * _SECOND_US if has_rule else _FAR_US,
    )


def to_utc(wall_us: NDArray[np.int64], name: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Convert the times that a zone's clock shows to instants.

    Returns
    -------
    us, later_us : int64[n]
        The first and the last instant at which the clock shows the time; they differ where an hour is repeated.
    shown : bool[n]
        Whether the clock ever shows it: when summer time begins it skips an hour, and some zones skipped a day.
    """
    table = zone_table(name)
    us, later_us = np.empty(len(wall_us), np.int64), np.empty(len(wall_us), np.int64)
    shown = np.empty(len(wall_us), np.bool_)
    _to_utc(wall_us, table.starts, table.ends, table.offsets, table.cycle_from, us, later_us, shown)
    return us, later_us, shown


@njit(cache=True, nogil=True)
def _to_utc(
    wall_us: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    offsets: NDArray[np.int64],
    cycle_from: int,
    us: NDArray[np.int64],
    later_us: NDArray[np.int64],
    shown: NDArray[np.bool_],
) -> None:
    first = 0
    for i in range(len(wall_us)):
        wall, shift = wall_us[i], 0
        if abs(wall) > _ROOM_US:
            us[i], later_us[i], shown[i] = 0, 0, False
            continue
        if wall - _CYCLE_US >= cycle_from:
            shift = (wall - cycle_from) // _CYCLE_US * _CYCLE_US
            wall -= shift
        # Neighbours in a file are mostly in one period: the first that ends after the time, `first`.
        if wall >= ends[first] or (first > 0 and wall < ends[first - 1]):
            first = np.searchsorted(ends, wall, side="right")
        last = first
        while last + 1 < len(starts) and starts[last + 1] <= wall:
            last += 1
        shown[i] = starts[first] <= wall
        us[i] = wall - offsets[first] + shift if shown[i] else 0
        later_us[i] = wall - offsets[last] + shift if shown[i] else 0


def _database_entry(name: str) -> bytes:
    """Return the compiled entry of a zone, from where zoneinfo takes it."""
    if name not in _names():
        raise ZoneInfoNotFoundError(f"no time zone found with key {name}")
    for root in TZPATH:
        path = Path(root) / name
        if path.is_file():
            return path.read_bytes()
    package = resources.files("tzdata").joinpath("zoneinfo", *name.split("/"))
    return package.read_bytes()


def _listed_changes(content: bytes) -> tuple[list[int], bool]:
    """Return the listed changes of an entry, in seconds since 1970, and whether a rule tells later ones.

    RFC 8536: a block with 32-bit times, one with 64-bit times, and the rule in a last line.
    """

    def size(at: int, width: int) -> tuple[int, int]:
        ut_flags, standard_flags, leaps, times, types, letters = struct.unpack(">6l", content[at + 20 : at + 44])
        return times, times * (width + 1) + 6 * types + letters + leaps * (width + 4) + standard_flags + ut_flags

    second_block = 44 + size(0, 4)[1]
    if content[4:5] < b"2":
        raise ValueError("the time zone database is of a version before 2005")
    times, length = size(second_block, 8)
    begin = second_block + 44
    listed = struct.unpack(f">{times}q", content[begin : begin + 8 * times])
    rule = content[begin + length :].strip()
    earliest = _year_begin(2)
    return [second for second in listed if second > earliest], b"," in rule


def _changes_by_rule(zone: ZoneInfo, after: int, last_year: int) -> list[int]:
    """Return the changes of a zone's offset after its last listed change, to the end of a year.

    A rule names weeks and days of a year, so it depends on the weekday that begins the year, and on leap years.
    """
    year = (_EPOCH + timedelta(seconds=after)).year
    changes = _scan(zone, after, _year_begin(year + 1))
    by_calendar: dict[tuple[int, ...], list[int]] = {}
    for later in range(year + 1, last_year + 1):
        begin = _year_begin(later)
        calendar = (begin // _DAY % 7, *(isleap(near) for near in (later - 1, later, later + 1)))
        if calendar not in by_calendar:
            by_calendar[calendar] = [second - begin for second in _scan(zone, begin, _year_begin(later + 1))]
        changes += [begin + second for second in by_calendar[calendar]]
    return changes


def _scan(zone: ZoneInfo, begin: int, end: int) -> list[int]:
    """Return the changes of a zone's offset after `begin` and to `end`, where no two are within one week."""
    changes = []
    before = _offset(zone, begin)
    for low in range(begin, end, _WEEK):
        lower, upper = low, min(low + _WEEK, end)
        after = _offset(zone, upper)
        if after != before:
            while upper - lower > 1:
                middle = (lower + upper) // 2
                if _offset(zone, middle) == before:
                    lower = middle
                else:
                    upper = middle
            changes.append(upper)
        before = after
    return changes


def _offset(zone: ZoneInfo, second: int) -> int:
    """Return a zone's offset from UTC at an instant, in seconds."""
    offset = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def _year_begin(year: int) -> int:
    return int((datetime(year, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())
