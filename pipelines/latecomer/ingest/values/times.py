"""Read text as instants: ISO 8601, a stated pattern, or numbers that count a unit since 1970.

The grammar of a text without a stated pattern, blanks around it aside::

    YYYY-MM-DD [ (T | blank) hh:mm [ :ss [ .fraction ] ] [ blank ] [ zone ] ]
    zone = Z | z | UTC | GMT | (+|-) hh [ [:] mm ] | Area/City of the time zone database
    number = [+|-] digits [ .fraction ] [ exponent ]

Abbreviations of zones (BST, CST, EST) mean different offsets to different readers, so they are no times. Every part has
as many digits as the grammar says, and names a day and a time that exist: no second 60, no hour 24. Offsets are at most
18 hours. A fraction beyond microseconds is cut. Week dates (2024-W05-1) and ordinal dates (2024-032) are no times;
:func:`remedies` says so. A number has at most 18 digits before its fraction and 2 in its exponent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit
from numpy.typing import NDArray

from latecomer.ingest.values import zones

UInt8 = NDArray[np.uint8]
Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Times:
    """Texts read as instants.

    Attributes
    ----------
    us : int64[n]
        Microseconds since 1970, UTC; 0 where there is no instant.
    valid : bool[n]
        Whether there is an instant.
    later_us : int64[n]
        Of a local time that a clock shows twice, when summer time ends, the second instant; elsewhere `us`.
    skipped : bool[n]
        Whether the text is a local time that no clock shows, when summer time begins. It has no instant.
    """

    us: Int64
    valid: Bools
    later_us: Int64
    skipped: Bools


def parse_times(text: pa.Array, zone: str, *, unit_us: int = 1, pattern: str | None = None) -> Times:
    """Read each text as an instant.

    Parameters
    ----------
    text : string[n]
        Null gives no instant.
    zone
        The zone of times that name none.
    unit_us
        Microseconds in the unit that numbers count: 1, 1,000 or 1,000,000. A fraction of microseconds must be zero; a
        fraction of a longer unit is cut at microseconds, toward the past as that of a text is.
    pattern
        How the texts are written, in the letters of C's strptime; then nothing else is a time, numbers neither. A
        number may lack its leading zeros unless another number follows at once. ``%f`` takes any number of digits,
        ``%z`` an offset as above, names are English, and parts that contradict one another are no time.
    """
    data, offsets, has = _buffers(text)
    us, status = np.zeros(len(has), np.int64), np.zeros(len(has), np.int8)
    if pattern is None:
        _read_iso(data, offsets, has, len(str(unit_us)) - 1, us, status)
    else:
        codes, full = _compile(pattern)
        _read_pattern(data, offsets, has, codes, full, _MONTHS, us, status)
    times = Times(us, status == _INSTANT, us.copy(), np.zeros(len(us), np.bool_))
    _add_local(times, np.flatnonzero(status == _LOCAL), zone)
    named = np.flatnonzero(status == _NAMED)
    if len(named):
        names = zones.area_names()
        zone_of = pc.index_in(_suffixes(data, offsets, named), pa.array(names, pa.string()).cast(pa.large_binary()))
        zone_of = zone_of.fill_null(-1).to_numpy(zero_copy_only=False)
        for place in np.unique(zone_of).tolist():
            if place >= 0:
                _add_local(times, named[zone_of == place], names[place])
        unknown = named[zone_of < 0]
        times.us[unknown] = times.later_us[unknown] = 0
    return times


def local_times(wall_us: NDArray[np.int64], zone: str) -> Times:
    """Return the instants at which clocks of a zone show these times, us since 1970 on that clock."""
    us, later_us, shown = zones.to_utc(np.ascontiguousarray(wall_us, np.int64), zone)
    return Times(us, shown, later_us, ~shown)


def remedies(text: pa.Array) -> pa.Array:
    """Return what to write instead of texts that are no times though they look like one; null elsewhere."""
    text = text.cast(pa.string())
    remedy = pa.nulls(len(text), pa.string())
    for form, says in _REMEDIES:
        here = pc.and_(pc.match_substring_regex(text, form), pc.is_null(remedy))
        remedy = pc.if_else(pc.fill_null(here, False), says, remedy)
    return remedy


FRACTION = "a fraction of a microsecond is not read: if numbers count seconds, say time_unit: s"
_REMEDIES = (
    (r"^\s*[0-9]{4}-?W[0-9]{2}", "a week date is not read: write the day, YYYY-MM-DD"),
    (r"^\s*[0-9]{4}-[0-9]{3}([T ][0-9:.]+.*)?\s*$", "an ordinal date is not read: write YYYY-MM-DD, or state %j"),
    (
        r"^\s*[+-]?[0-9]+[.][0-9]*[1-9][0-9]*\s*$",
        FRACTION,
    ),
    (r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]24:", "a day ends at hour 24, which is hour 00 of the next: write that"),
    (r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:60", "a leap second is not read: write second 59"),
    (
        r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.]+ ?[A-Za-z]{2,5}\s*$",
        "abbreviations of zones mean different offsets: write the offset, or Area/City",
    ),
)


def _add_local(times: Times, rows: NDArray[np.intp], zone: str) -> None:
    """Convert the clock times in `us` of some rows to instants."""
    if not len(rows):
        return
    us, later_us, shown = zones.to_utc(times.us[rows], zone)
    times.us[rows], times.later_us[rows], times.valid[rows], times.skipped[rows] = us, later_us, shown, ~shown


def _buffers(text: pa.Array) -> tuple[UInt8, Int64, Bools]:
    """Return the bytes of texts, their n + 1 offsets, and which are not null."""
    if isinstance(text, pa.ChunkedArray):
        text = text.combine_chunks()
    if not (pa.types.is_string(text.type) or pa.types.is_large_string(text.type)):
        text = text.cast(pa.large_string())
    _, places, content = text.buffers()
    size = np.int64 if pa.types.is_large_string(text.type) else np.int32
    if len(text) == 0:
        offsets = np.zeros(1, np.int64)
    else:
        offsets = np.frombuffer(places, size)[text.offset : text.offset + len(text) + 1].astype(np.int64)
    data = np.frombuffer(content if content is not None and content.size else b"\0", np.uint8)
    return data, offsets, text.is_valid().to_numpy(zero_copy_only=False)


def _suffixes(data: UInt8, offsets: Int64, rows: NDArray[np.intp]) -> pa.Array:
    """Return the names of zones that end the texts of some rows; empty where one is longer than all names."""
    begins, ends = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    _find_suffixes(data, offsets, rows, begins, ends)
    bounds = np.concatenate([[0], np.cumsum(ends - begins)]).astype(np.int64)
    content = np.empty(int(bounds[-1]), np.uint8)
    _copy_parts(data, begins, ends, content)
    return pa.Array.from_buffers(pa.large_binary(), len(rows), [None, pa.py_buffer(bounds), pa.py_buffer(content)])


_LONGEST_NAME = 60
_NONE, _INSTANT, _LOCAL, _NAMED = 0, 1, 2, 3
"""What a text is: no time, an instant, a local time of the zone that is stated, or of a zone that it names."""
_DAY_US, _HOUR_US, _MINUTE_US, _SECOND_US = 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000
_LATEST_OFFSET_US = 18 * _HOUR_US
_MISSING = -(1 << 62)
"""No day, no offset, no number."""
_BLANK, _PLUS, _MINUS, _POINT, _ZERO, _COLON = 32, 43, 45, 46, 48, 58
_UPPER_T, _UPPER_Z, _LOWER_Z = 84, 90, 122
_MIN_INT64 = -(1 << 63)


@njit(cache=True, nogil=True)
def _read_iso(data: UInt8, offsets: Int64, has: Bools, zeros: int, us: Int64, status: NDArray[np.int8]) -> None:
    """Read texts by the grammar of this module; numbers count units of ``10**zeros`` microseconds."""
    for i in range(len(has)):
        if not has[i]:
            continue
        at, end = _strip(data, offsets[i], offsets[i + 1])
        if end - at >= 10 and data[at + 4] == _MINUS:
            kind, value = _iso(data, at, end)
        else:
            kind, value = _number(data, at, end, zeros)
        status[i] = kind
        us[i] = value if kind != _NONE else 0


@njit(cache=True, nogil=True)
def _strip(data: UInt8, at: int, end: int) -> tuple[int, int]:
    """Leave out blanks, tabs and line ends around a text."""
    while at < end and (data[at] == _BLANK or 9 <= data[at] <= 13):
        at += 1
    while at < end and (data[end - 1] == _BLANK or 9 <= data[end - 1] <= 13):
        end -= 1
    return at, end


@njit(cache=True, nogil=True)
def _digit(byte: int) -> int:
    return int(np.int64(byte)) - _ZERO


@njit(cache=True, nogil=True)
def _digits(data: UInt8, at: int, end: int) -> int:
    """Return the number that some bytes write; -1 where they are not digits alone."""
    value = 0
    for place in range(at, end):
        digit = _digit(data[place])
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@njit(cache=True, nogil=True)
def _month_days(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


@njit(cache=True, nogil=True)
def _day_number(year: int, month: int, day: int) -> int:
    """Return days since 1970; `_MISSING` where the calendar has no such day in the years 1 to 9999."""
    if year < 1 or year > 9999 or month < 1 or month > 12 or day < 1 or day > _month_days(year, month):
        return _MISSING
    if month <= 2:  # years that begin in March have their leap day at the end
        year, month = year - 1, month + 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719_469


@njit(cache=True, nogil=True)
def _iso(data: UInt8, at: int, end: int) -> tuple[int, int]:
    """Return what a text of ten or more bytes is, and its time in us."""
    if data[at + 7] != _MINUS:
        return _NONE, 0
    day = _day_number(_digits(data, at, at + 4), _digits(data, at + 5, at + 7), _digits(data, at + 8, at + 10))
    if day == _MISSING:
        return _NONE, 0
    if end == at + 10:
        return _LOCAL, day * _DAY_US
    if end < at + 16 or (data[at + 10] != _UPPER_T and data[at + 10] != _BLANK):
        return _NONE, 0
    clock, after = _clock(data, at + 11, end)
    if clock == _MISSING:
        return _NONE, 0
    return _with_zone(data, after, end, day * _DAY_US + clock)


@njit(cache=True, nogil=True)
def _clock(data: UInt8, at: int, end: int) -> tuple[int, int]:
    """Read ``hh:mm[:ss[.fraction]]`` of at least five bytes: us since midnight, or `_MISSING`, and the place after."""
    hour, minute, second, fraction = _digits(data, at, at + 2), _digits(data, at + 3, at + 5), 0, 0
    if data[at + 2] != _COLON or not (0 <= hour <= 23 and 0 <= minute <= 59):
        return _MISSING, at
    at += 5
    if at < end and data[at] == _COLON:
        if end < at + 3:
            return _MISSING, at
        second = _digits(data, at + 1, at + 3)
        if not 0 <= second <= 59:
            return _MISSING, at
        at += 3
        if at < end and data[at] == _POINT:
            fraction, after = _fraction(data, at + 1, end)
            if after == at + 1:
                return _MISSING, at
            at = after
    return hour * _HOUR_US + minute * _MINUTE_US + second * _SECOND_US + fraction, at


@njit(cache=True, nogil=True)
def _fraction(data: UInt8, at: int, end: int) -> tuple[int, int]:
    """Read digits of a fraction of a second, cut at microseconds: us, and the place after them."""
    value, scale = 0, 100_000
    while at < end and _ZERO <= data[at] < _ZERO + 10:
        value += _digit(data[at]) * scale
        scale //= 10
        at += 1
    return value, at


@njit(cache=True, nogil=True)
def _with_zone(data: UInt8, at: int, end: int, wall: int) -> tuple[int, int]:
    """Return what a time is, and its us, by the zone that ends its text."""
    if at == end:
        return _LOCAL, wall
    if data[at] == _BLANK:
        at += 1
    offset, after = _offset(data, at, end)
    if offset != _MISSING and after == end:
        return _INSTANT, wall - offset
    if _is_letter(data[at]):
        return _NAMED, wall
    return _NONE, 0


@njit(cache=True, nogil=True)
def _is_letter(byte: int) -> bool:
    return 65 <= byte <= 90 or 97 <= byte <= 122


@njit(cache=True, nogil=True)
def _offset(data: UInt8, at: int, end: int) -> tuple[int, int]:
    """Read the offset that begins at a place: us, or `_MISSING`, and the place after it."""
    if at >= end:
        return _MISSING, at
    if data[at] == _UPPER_Z or data[at] == _LOWER_Z:
        return 0, at + 1
    if end >= at + 3 and (_is_text(data, at, 85, 84, 67) or _is_text(data, at, 71, 77, 84)):  # UTC, GMT
        return 0, at + 3
    if end < at + 3 or (data[at] != _PLUS and data[at] != _MINUS):
        return _MISSING, at
    sign, hours, minutes = (-1 if data[at] == _MINUS else 1), _digits(data, at + 1, at + 3), -1
    at += 3
    colon = 1 if at < end and data[at] == _COLON else 0
    if end >= at + colon + 2:
        minutes = _digits(data, at + colon, at + colon + 2)
    if minutes >= 0:
        at += colon + 2
    offset = hours * _HOUR_US + max(minutes, 0) * _MINUTE_US
    if hours < 0 or minutes > 59 or offset > _LATEST_OFFSET_US:
        return _MISSING, at
    return sign * offset, at


@njit(cache=True, nogil=True)
def _is_text(data: UInt8, at: int, first: int, second: int, third: int) -> bool:
    return bool(data[at] == first and data[at + 1] == second and data[at + 2] == third)


@njit(cache=True, nogil=True)
def _number(data: UInt8, at: int, end: int, zeros: int) -> tuple[int, int]:
    """Return what a text that begins with no date is, and its microseconds, in whole numbers throughout."""
    negative = at < end and data[at] == _MINUS
    if at < end and (data[at] == _PLUS or negative):
        at += 1
    begin, point = at, _skip_digits(data, at, end)
    last = point
    if point == begin or point - begin > 18:
        return _NONE, 0
    if last < end and data[last] == _POINT:
        last = _skip_digits(data, last + 1, end)
    exponent = _exponent(data, last, end)
    if exponent == _MISSING:
        return _NONE, 0
    # The first `whole` digits, the point aside, are whole microseconds; missing ones are zeros.
    whole, value, rest = point - begin + exponent + zeros, 0, False
    count = last - begin - (1 if last > point else 0)
    for place in range(max(whole, count)):
        digit = 0
        if place < count:
            digit = _digit(data[begin + place + (1 if begin + place >= point else 0)])
        if place < whole:
            if value < (_MIN_INT64 + digit) // 10 + ((_MIN_INT64 + digit) % 10 != 0):
                return _NONE, 0
            value = value * 10 - digit  # int64 has one more number below zero
        elif digit != 0:
            rest = True
            break
    if (rest and zeros == 0) or (not negative and value == _MIN_INT64):
        return _NONE, 0
    if not negative:
        return _INSTANT, -value
    if rest and value == _MIN_INT64:
        return _NONE, 0
    return _INSTANT, value - (1 if rest else 0)


@njit(cache=True, nogil=True)
def _skip_digits(data: UInt8, at: int, end: int) -> int:
    while at < end and _ZERO <= data[at] < _ZERO + 10:
        at += 1
    return at


@njit(cache=True, nogil=True)
def _exponent(data: UInt8, at: int, end: int) -> int:
    """Return the exponent that ends a number, 0 where it has none, `_MISSING` where something else follows."""
    if at == end:
        return 0
    if data[at] != 69 and data[at] != 101:  # E, e
        return _MISSING
    at += 1
    negative = at < end and data[at] == _MINUS
    if at < end and (data[at] == _PLUS or negative):
        at += 1
    exponent = _digits(data, at, end)
    if end == at or end > at + 2 or exponent < 0:
        return _MISSING
    return -exponent if negative else exponent


@njit(cache=True, nogil=True)
def _find_suffixes(data: UInt8, offsets: Int64, rows: NDArray[np.intp], begins: Int64, ends: Int64) -> None:
    """Find what follows the time of day in the texts of some rows, from its first letter on."""
    for i in range(len(rows)):
        at, end = _strip(data, offsets[rows[i]], offsets[rows[i] + 1])
        at += 11
        while at < end and not _is_letter(data[at]):
            at += 1
        begins[i], ends[i] = at, (end if end - at <= _LONGEST_NAME else at)


@njit(cache=True, nogil=True)
def _copy_parts(data: UInt8, begins: Int64, ends: Int64, content: UInt8) -> None:
    at = 0
    for i in range(len(begins)):
        for place in range(begins[i], ends[i]):
            content[at] = data[place]
            at += 1


_DIRECTIVE = 256
"""What is added to the letter of a directive among the bytes of a compiled pattern."""
_CODES = {letter: _DIRECTIVE + place for place, letter in enumerate("YymdjHIMSfbBpz")}
_LAST_NUMBER, _LETTER_F, _LETTER_B, _NAME_B, _LETTER_P = 8, 9, 10, 11, 12
_YEAR, _MONTH, _DAY, _YEAR_DAY, _HOUR, _HALF_DAY_HOUR, _MINUTE, _SECOND, _FRACTION, _HALF_DAY, _OFFSET = range(11)
_FIELD = np.array([_YEAR, _YEAR, _MONTH, _DAY, _YEAR_DAY, _HOUR, _HALF_DAY_HOUR, _MINUTE, _SECOND])
_LEAST = np.array([4, 2, 1, 1, 1, 1, 1, 1, 1])
_MOST = np.array([4, 2, 2, 2, 3, 2, 2, 2, 2])
"""Fields and numbers of digits of the directives up to `_LAST_NUMBER`."""
_NAMES = ["january", "february", "march", "april", "may", "june", "july", "august"]
_NAMES += ["september", "october", "november", "december"]
_MONTHS = np.array([list(name.encode().ljust(9, b"\0")) for name in _NAMES], np.uint8)


def _compile(pattern: str) -> tuple[Int64, Bools]:
    """Return a pattern as bytes and directives, and which of them must have all digits: a number follows at once."""
    codes: list[int] = []
    content, place = pattern.strip(" \t\r\n\v\f").encode(), 0
    while place < len(content):
        code = content[place]
        if code == ord("%"):
            place += 1
            letter = content[place : place + 1].decode("latin-1")
            if letter != "%" and letter not in _CODES:
                raise ValueError(f"{pattern!r}: no directive %{letter}")
            code = _CODES.get(letter, code)
        codes.append(code)
        place += 1
    follows = [*codes[1:], ord(" ")]
    numbers = {*range(_DIRECTIVE, _DIRECTIVE + _LETTER_F + 1), *range(ord("0"), ord("9") + 1)}
    return np.array(codes, np.int64), np.array([code in numbers for code in follows], np.bool_)


@njit(cache=True, nogil=True)
def _read_pattern(
    data: UInt8,
    offsets: Int64,
    has: Bools,
    codes: Int64,
    full: Bools,
    months: UInt8,
    us: Int64,
    status: NDArray[np.int8],
) -> None:
    """Read texts by a compiled pattern."""
    fields = np.empty(11, np.int64)
    for i in range(len(has)):
        if not has[i]:
            continue
        at, end = _strip(data, offsets[i], offsets[i + 1])
        fields[:] = _MISSING
        for place in range(len(codes)):
            if codes[place] < _DIRECTIVE:
                at = at + 1 if at < end and data[at] == codes[place] else -1
            elif codes[place] - _DIRECTIVE <= _LAST_NUMBER:
                at = _read_number(data, at, end, codes[place] - _DIRECTIVE, full[place], fields)
            else:
                at = _read_other(data, at, end, codes[place] - _DIRECTIVE, full[place], months, fields)
            if at < 0:
                break
        if at == end:
            wall = _wall(fields)
            if wall != _MISSING:
                local = fields[_OFFSET] == _MISSING
                status[i] = _LOCAL if local else _INSTANT
                us[i] = wall if local else wall - fields[_OFFSET]


@njit(cache=True, nogil=True)
def _set(fields: Int64, field: int, value: int, after: int) -> int:
    """Set a field and return the place after its text; -1 where the field has another value already."""
    if fields[field] != _MISSING and fields[field] != value:
        return -1
    fields[field] = value
    return after


@njit(cache=True, nogil=True)
def _read_number(data: UInt8, at: int, end: int, directive: int, full: bool, fields: Int64) -> int:
    """Read a directive of digits; return the place after it, or -1."""
    field, least, most = _FIELD[directive], _LEAST[directive], _MOST[directive]
    if field == _DAY and not full and at + 1 < end and data[at] == _BLANK:
        at, most = at + 1, 1  # as C's %e pads the day
    after = _skip_digits(data, at, min(end, at + most))
    if after - at < (most if full else least):
        return -1
    value = _digits(data, at, after)
    if directive == 1:  # %y, as POSIX reads it
        value += 1900 if value >= 69 else 2000
    return _set(fields, field, value, after)


@njit(cache=True, nogil=True)
def _read_other(data: UInt8, at: int, end: int, directive: int, full: bool, months: UInt8, fields: Int64) -> int:
    """Read a directive that is a fraction, a name or an offset; return the place after it, or -1."""
    if directive == _LETTER_F:
        value, after = _fraction(data, at, min(end, at + 6) if full else end)
        return -1 if after == at or (full and after < at + 6) else _set(fields, _FRACTION, value, after)
    if directive in (_LETTER_B, _NAME_B):
        for month in range(12):
            after = _after_name(data, at, end, months[month], 3 if directive == _LETTER_B else 9)
            if after > 0:
                return _set(fields, _MONTH, month + 1, after)
        return -1
    if directive == _LETTER_P:
        if at + 2 > end or data[at + 1] | 32 != 109 or (data[at] | 32 != 97 and data[at] | 32 != 112):  # am, pm
            return -1
        return _set(fields, _HALF_DAY, 1 if data[at] | 32 == 112 else 0, at + 2)
    offset, after = _offset(data, at, end)
    return -1 if offset == _MISSING else _set(fields, _OFFSET, offset, after)


@njit(cache=True, nogil=True)
def _after_name(data: UInt8, at: int, end: int, name: UInt8, size: int) -> int:
    """Return the place after a name that begins at a place, in small or capital letters; -1 where it does not."""
    for place in range(size):
        if name[place] == 0:
            return at + place
        if at + place >= end or data[at + place] | 32 != name[place]:
            return -1
    return at + size


@njit(cache=True, nogil=True)
def _wall(fields: Int64) -> int:
    """Return the clock's time in us that the fields tell; `_MISSING` where none or two."""
    day, hour = _day_of(fields), _hour_of(fields)
    minute, second = max(int(fields[_MINUTE]), 0), max(int(fields[_SECOND]), 0)
    fraction = max(int(fields[_FRACTION]), 0)
    if day == _MISSING or hour == _MISSING or minute > 59 or second > 59:
        return _MISSING
    return day * _DAY_US + hour * _HOUR_US + minute * _MINUTE_US + second * _SECOND_US + fraction


@njit(cache=True, nogil=True)
def _day_of(fields: Int64) -> int:
    """Return the day number of year, month and day, or of year and day of the year; both must agree."""
    year, month, day, year_day = int(fields[_YEAR]), int(fields[_MONTH]), int(fields[_DAY]), int(fields[_YEAR_DAY])
    if year_day == _MISSING:
        return _day_number(year, month, day)
    begin = _day_number(year, 1, 1)
    if begin == _MISSING or year_day < 1 or year_day > 337 + _month_days(year, 2):
        return _MISSING
    number = begin + year_day - 1
    for other in range(1, 13):
        first = _day_number(year, other, 1)
        inside = first <= number < first + _month_days(year, other)
        if inside and (month not in (_MISSING, other) or day not in (_MISSING, number - first + 1)):
            return _MISSING
    return number


@njit(cache=True, nogil=True)
def _hour_of(fields: Int64) -> int:
    """Return the hour of the day; an hour from 1 to 12 needs the half of the day, and both forms must agree."""
    hour, half_day_hour, half = int(fields[_HOUR]), int(fields[_HALF_DAY_HOUR]), int(fields[_HALF_DAY])
    if half_day_hour != _MISSING:
        if half == _MISSING or not 1 <= half_day_hour <= 12:
            return _MISSING
        told = half_day_hour % 12 + 12 * half
        return told if hour in (_MISSING, told) else _MISSING
    if hour == _MISSING:
        return 0 if half == _MISSING else _MISSING
    if hour > 23 or (half != _MISSING and hour // 12 != half):
        return _MISSING
    return hour
