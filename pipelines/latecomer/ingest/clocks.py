"""Believable clocks: what local times of a repeated hour mean, which ages are believed, what looks like a wrong clock.

All functions are pure, over arrays of microseconds since 1970. Lateness is arrival minus event time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.specs.durations import UNITS_US, format_duration

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

CLOCK_ERROR_US = 5 * UNITS_US["min"]
"""How far a clock may be fast, where an arrival tells which of two local times is meant."""
DISORDER_US = 15 * UNITS_US["min"]
"""How far rows with arrivals may be out of order, where their order tells which of two local times is meant.

It is half of the shortest time that clocks repeat.
"""
LEAST_MAX_AGE_US = 90 * UNITS_US["d"]
MOST_MAX_AGE_US = 100_000 * UNITS_US["d"]
"""Bounds of the default of `max_age`."""
USUAL_SHARE = 0.9
"""The share of rows whose lateness is usual."""
OCCURS_TWICE = "local time occurs twice, and nothing tells which is meant"
"""The reason of rows that neither arrival nor order resolves."""


def resolve(
    us: Int64, later_us: Int64, arrival_us: Int64, has_arrival: Bools, group: Int64, position: Int64
) -> tuple[Int64, Bools]:
    """Resolve local times that occur twice by arrival, by order where arrivals allow both, or not at all.

    An arrival before the second instant leaves the first one, and an arrival within :data:`CLOCK_ERROR_US` of the
    second instant means that one. Other arrivals are after both, as those of a device that was offline: there the order
    of the group's rows decides, in which a row may stand up to :data:`DISORDER_US` too late, and where it decides
    nothing :func:`resolve_by_arrival`. A row without an arrival and without a deciding order stays ambiguous.

    Parameters
    ----------
    us, later_us : int64[n]
        The first and the second instant that a row's time may mean; equal where it means one.
    arrival_us : int64[n]
        Arrival times, read where `has_arrival`.
    group, position : int64[n]
        The rows of a group, such as those of a device in a file, are ordered by position.

    Returns
    -------
    us : int64[n]
        The instant that is meant; the first one of ambiguous rows.
    ambiguous : bool[n]
        Whether nothing tells which is meant.
    """
    by_arrival = resolve_by_arrival(us, later_us, arrival_us, has_arrival)
    prompt = has_arrival & (np.abs(arrival_us - later_us) <= CLOCK_ERROR_US)
    first = np.where(prompt, later_us, us)
    last = np.where(has_arrival & (later_us > arrival_us + CLOCK_ERROR_US), us, later_us)
    by_order, unclear = resolve_by_order(first, last, group, position)
    if has_arrival.any():
        loosely, loose = resolve_by_order(first, last, group, position, DISORDER_US)
        by_order = np.where(has_arrival, np.where(loose, by_arrival, loosely), by_order)
    return by_order, unclear & ~has_arrival


def resolve_by_arrival(us: Int64, later_us: Int64, arrival_us: Int64, has_arrival: Bools) -> Int64:
    """Return the latest instant that a row's time may mean and that is not after its arrival.

    An arrival may precede its event by :data:`CLOCK_ERROR_US`. Where both instants are after it, or a row has no
    arrival, the first one is returned.
    """
    return np.where(has_arrival & (later_us <= arrival_us + CLOCK_ERROR_US), later_us, us)


def resolve_by_order(
    us: Int64, later_us: Int64, group: Int64, position: Int64, disorder_us: int = 0
) -> tuple[Int64, Bools]:
    """Resolve local times that occur twice by the order of the rows of a group.

    Within a group time does not run backward, or by at most `disorder_us` from a row to the next. So where the local
    clock does, the repeated hour has begun its second pass, and rows before that are in the first one. A row is
    resolved if every such reading of its group gives it the same instant. Rows that stand before an earlier time which
    no repeated hour explains are read apart from the rows after it; the rows of a repeated hour at which that happens
    are ambiguous, because their order tells nothing.

    Returns
    -------
    us : int64[n]
        The instant that is meant; the first one of ambiguous rows.
    ambiguous : bool[n]
        Whether the order does not tell it.
    """
    resolved, ambiguous = us.copy(), np.zeros(len(us), np.bool_)
    twice = later_us != us
    if twice.any():
        rows = np.flatnonzero(np.isin(group, np.unique(group[twice])))
        rows = rows[np.lexsort((position[rows], group[rows]))]
        chosen, unclear = _read_in_order(us[rows], later_us[rows], group[rows], disorder_us)
        resolved[rows], ambiguous[rows] = chosen, unclear
    return resolved, ambiguous


@njit(cache=True, nogil=True)
def _read_in_order(us: Int64, later_us: Int64, group: Int64, disorder_us: int) -> tuple[Int64, Bools]:
    """Resolve rows that are sorted by group and position; see :func:`resolve_by_order`.

    The least reading goes forward and takes the first instant that its predecessor's allows; the greatest goes backward
    and takes the last that its successor's allows. Where they agree, all readings do.
    """
    n = len(us)
    least, chosen, unclear = us.copy(), us.copy(), np.zeros(n, np.bool_)
    begins, stretch = np.ones(n, np.bool_), np.zeros(n, np.int64)  # a stretch: neighbours of a repeated hour
    contradicts = np.zeros(n, np.bool_)
    for k in range(1, n):
        same = group[k] == group[k - 1]
        twice, twice_before = us[k] != later_us[k], us[k - 1] != later_us[k - 1]
        stretch[k] = stretch[k - 1] if same and twice and twice_before else k
        bound = least[k - 1] - disorder_us
        if same and later_us[k] >= bound:
            begins[k] = False
            least[k] = us[k] if us[k] >= bound else later_us[k]
        elif same:
            contradicts[stretch[k]] |= twice
            contradicts[stretch[k - 1]] |= twice_before
    greatest = np.int64(0)
    for k in range(n - 1, -1, -1):
        if k == n - 1 or begins[k + 1] or later_us[k] <= greatest + disorder_us:
            greatest = later_us[k]
        else:
            greatest = us[k]
        unclear[k] = greatest != least[k] or (us[k] != later_us[k] and contradicts[stretch[k]])
        if not unclear[k]:
            chosen[k] = greatest
    return chosen, unclear


def default_max_age_us(usual_us: int) -> int:
    """Return the age at arrival beyond which an event is not believed, where its stream does not state one.

    It is ten times the lateness `usual_us` that :data:`USUAL_SHARE` of the rows keep, and at least 90 days. So clocks
    that stand at 1970 or are a year slow are refused in a stream whose rows come within days, and an archive that was
    loaded years later is not refused, as long as less than a tenth of the rows have a wrong clock.
    """
    return min(max(LEAST_MAX_AGE_US, 10 * usual_us), MOST_MAX_AGE_US)


_HOUR_US, _MINUTE_US = UNITS_US["h"], UNITS_US["min"]
_YEAR_2000_US = 946_684_800_000_000
_UNIT_NAMES = ("us", "ms", "s")
_NEAR_FACTOR = 2.0
"""How far the ratio of two times may be from the ratio of two units: events of 1997 that arrive in 2024."""
_NEARLY_ALL = 0.99
_FAST_SHARE = 0.01
"""The share of rows with a fast clock that is reported."""
_QUARTERS = (210, 270, 330, 345, 390, 525, 570, 630, 765, 825)
"""The offsets in use that are no whole hours, minutes."""
_OFFSETS_US = np.array([sign * size for size in (*range(60, 900, 60), *_QUARTERS) for sign in (-1, 1)]) * _MINUTE_US
_BEFORE_US, _AFTER_US = _MINUTE_US, 10 * _MINUTE_US
"""How far from a whole shift lateness may lie: clocks go wrong by seconds, and rows need minutes to arrive."""
_EXAMPLES = (
    *("UTC", "Europe/Berlin", "Europe/London", "America/New_York", "America/Chicago", "America/Denver"),
    *("America/Los_Angeles", "Europe/Athens", "Asia/Kolkata", "Asia/Shanghai", "Asia/Tokyo", "Australia/Sydney"),
    *("America/Sao_Paulo", "Europe/Moscow", "Asia/Dubai", "Asia/Karachi", "Asia/Kathmandu", "Asia/Dhaka"),
    *("Asia/Yangon", "Asia/Bangkok", "Asia/Tehran", "Asia/Kabul", "Australia/Adelaide", "Australia/Brisbane"),
    *("Pacific/Auckland", "Pacific/Noumea", "Pacific/Honolulu", "America/Anchorage", "America/Halifax"),
    *("America/St_Johns", "America/Noronha", "Atlantic/Azores", "Pacific/Apia", "Pacific/Kiritimati", "Pacific/Niue"),
    *("Etc/GMT+12", "Pacific/Marquesas", "Australia/Lord_Howe", "Australia/Eucla", "Pacific/Chatham"),
)


def suspicions(
    event_us: Int64, arrival_us: Int64 | None = None, *, zone: str = "UTC", time_unit: str = "us"
) -> list[str]:
    """Return sentences about clocks that look wrong, for `ingest` to print.

    The rules, the first that applies of 1 and 2 silencing the later ones that it explains:

    1. Units: in 90% of the rows, event and arrival times differ by a factor near 1,000 or 1,000,000; or 99% of the
       event times lie in the minutes or days after 1970 at which times of this century lie that are read in a shorter
       unit.
    2. Zone: in 99% of the rows lateness lies within 1 min before and 10 min after one whole offset of a zone, or of two
       offsets an hour apart (summer time). Where the events are after their arrivals, 90% suffice.
    3. Clocks that were never set: some event times are before 2000, and half of them are not.
    4. Fast clocks: more than 1% of the events are more than 1 min after their arrivals.

    Parameters
    ----------
    event_us, arrival_us : int64[n]
        Event and arrival times of the same rows, a sample or all; None without arrival times.
    zone
        The zone in which local times were read.
    time_unit
        The unit in which numbers were read.
    """
    if not len(event_us):
        return []
    sentence = _suspect_units(event_us, arrival_us, time_unit) if arrival_us is not None else None
    sentence = sentence or _suspect_unit(event_us, time_unit)
    if sentence is not None:
        return [sentence]
    sentences = [_suspect_unset(event_us)]
    if arrival_us is not None:
        lateness_us = arrival_us - event_us
        shift = _suspect_zone(lateness_us, int(np.median(event_us)), zone)
        sentences = [shift, *sentences] if shift else [*sentences, _suspect_fast(lateness_us)]
    return [sentence for sentence in sentences if sentence is not None]


def _suspect_units(event_us: Int64, arrival_us: Int64, time_unit: str) -> str | None:
    """Report event and arrival times that count different units."""
    positive = (event_us > 0) & (arrival_us > 0)
    ratio = arrival_us[positive] / event_us[positive]
    for steps, factor in ((1, 1e3), (2, 1e6)):
        for name, other, by in (("event", "arrival", ratio), ("arrival", "event", 1 / ratio)):
            near = (by > factor / _NEAR_FACTOR) & (by < factor * _NEAR_FACTOR)
            if np.count_nonzero(near) < USUAL_SHARE * len(event_us):
                continue
            small, large = (event_us, arrival_us) if name == "event" else (arrival_us, event_us)
            place = _UNIT_NAMES.index(time_unit) + steps
            unit = f", as {_UNIT_NAMES[place]} read as {time_unit} are" if place < len(_UNIT_NAMES) else ""
            return (
                f"{name} times (half of them after {_instant(small)}) are about {factor:,.0f} times smaller than "
                f"{other} times (half after {_instant(large)}){unit}: do the two columns count different units? "
                "time_unit (--time-unit) holds for both: write them in one unit, or as ISO 8601"
            )
    return None


def _suspect_unit(event_us: Int64, time_unit: str) -> str | None:
    """Report event times of this century that were read in too short a unit."""
    first = _UNIT_NAMES.index(time_unit)
    for steps, unit in enumerate(_UNIT_NAMES[first + 1 :], 1):
        low, high = _YEAR_2000_US // 1000**steps, 2 * _YEAR_2000_US // 1000**steps + _YEAR_2000_US // 1000**steps // 2
        if np.mean((event_us >= low) & (event_us < high)) >= _NEARLY_ALL:
            return (
                f"event times lie about {_instant(event_us)}, where those of this century lie if {unit} are read as "
                f"{time_unit}: do they count {unit}? Then write time_unit: {unit} (--time-unit {unit})"
            )
    return None


def _suspect_zone(lateness_us: Int64, moment_us: int, zone: str) -> str | None:
    """Report lateness that lies near one whole offset of a zone."""
    median = int(np.median(lateness_us))
    shifts = _OFFSETS_US[(median >= _OFFSETS_US - _BEFORE_US) & (median <= _OFFSETS_US + _AFTER_US)]
    for shift in shifts.tolist():
        share, hour_share = _share_near(lateness_us, shift), 0.0
        for other in (shift - _HOUR_US, shift + _HOUR_US):
            if other != 0 or shift < 0:  # rows in time beside rows an hour late are no sign of a zone
                hour_share = max(hour_share, _share_near(lateness_us, other))
        if share + hour_share < (_NEARLY_ALL if shift > 0 else USUAL_SHARE):
            continue
        offset_us = _offset_us(zone, moment_us) - shift
        example = next((name for name in _EXAMPLES if _offset_us(name, moment_us) == offset_us), None)
        distance, side = format_duration(abs(shift)), "before" if shift > 0 else "after"
        state = f", such as {example}" if example is not None else ""
        return (
            f"{_percent(share)} of the events lie {distance} {side} their arrivals, within minutes: is the time zone "
            f"missing? The clocks seem to show {_offset_name(offset_us)}: state their timezone (--timezone){state}"
        )
    return None


def _share_near(lateness_us: Int64, shift: int) -> float:
    return float(np.mean((lateness_us >= shift - _BEFORE_US) & (lateness_us <= shift + _AFTER_US)))


def _suspect_unset(event_us: Int64) -> str | None:
    """Report clocks that were never set."""
    unset = event_us < _YEAR_2000_US
    if not unset.any() or np.median(event_us) < _YEAR_2000_US:
        return None
    return (
        f"{_percent(float(np.mean(unset)))} of the event times are before 2000, from {_instant(event_us.min())} on, "
        f"and half after {_instant(event_us)}: clocks that were never set? max_age (--max-age) refuses them"
    )


def _suspect_fast(lateness_us: Int64) -> str | None:
    """Report events after their arrivals."""
    fast = lateness_us < -_MINUTE_US
    share = float(np.mean(fast))
    if share <= _FAST_SHARE:
        return None
    usual = int(-np.median(lateness_us[fast])) // _MINUTE_US * _MINUTE_US
    return (
        f"{_percent(share)} of the events lie more than 1 min after their arrivals, half of these by "
        f"{format_duration(usual)} or more: clocks that are fast? max_future (--max-future) bounds what is believed"
    )


def _percent(share: float) -> str:
    """Format a share; neither a few nor nearly all become none or all by rounding."""
    return "all" if share == 1 else f"{min(max(100 * share, 0.01), 99.99):.2f}".rstrip("0").rstrip(".") + "%"


def _instant(times_us: Int64 | np.int64) -> str:
    """Format the median of times."""
    return f"{np.datetime64(int(np.median(times_us)), 'us').astype('datetime64[s]')}Z"


def _offset_us(zone: str, moment_us: int) -> int:
    """Return the offset of a zone from UTC about an instant of the years 2 to 9998."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment_us)
    offset = moment.astimezone(ZoneInfo(zone)).utcoffset()
    assert offset is not None
    return offset // timedelta(microseconds=1)


def _offset_name(offset_us: int) -> str:
    hours, rest = divmod(abs(offset_us), _HOUR_US)
    return f"UTC{'-' if offset_us < 0 else '+'}{hours:02}:{rest // _MINUTE_US:02}"
