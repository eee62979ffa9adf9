"""Compiled passes over the bytes of Arrow string arrays: what a text is, and which value it has.

The grammar of a number, blanks around it aside, with ``.`` or the decimal comma as the point::

    number = [+|-] ( digits [ point [ digits ] ] | point digits ) [ (e|E) [+|-] digits ]
    special = nan | NaN | NAN | [+|-] ( inf | Inf | INF | Infinity )

Every pass takes the bytes, the offsets of the texts in them (n + 1), and the bitmap of texts that are not null with the
place of its first bit; an empty bitmap: none is null.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Buffers = tuple[Bytes, NDArray[np.int64], Bytes, int]
"""Bytes, offsets, bitmap and first bit, as the passes take them."""

NO_NUMBER: Final = 0
WHOLE: Final = 1
FRACTION: Final = 2
NAN: Final = 3
INFINITE: Final = 4
"""Forms of a text. `WHOLE` is of digits alone; `FRACTION` has a point or an exponent."""

OTHER: Final = 0
NUMBER: Final = 1
BOOLEAN: Final = 2
TIME: Final = 3
"""Categories of texts."""
COUNTS = ("values", "zero", "integer", "number", "boolean", "timestamp", "endless", "long", "special", "bigint")
"""What `classify` counts, in this order."""

_ZERO: Final = 48
_NINE: Final = 57
_PLUS: Final = 43
_MINUS: Final = 45
_HUGE: Final = 1 << 40
"""An exponent that no type holds; greater ones are read as it."""
_MOST_PLAIN: Final = 38
"""Most digits of a whole number that a decimal holds."""
_LONG: Final = 16
"""Least digits of a whole number that a double may round."""
_TEN = np.uint64(10)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_NO_BITS = np.empty(0, np.uint8)


def buffers(text: pa.Array) -> Buffers:
    """Return the parts of a string array that the passes take; nothing is copied but 32-bit offsets."""
    bitmap, offsets, data = text.buffers()
    wide = np.int64 if pa.types.is_large_string(text.type) else np.int32
    if offsets is None or len(text) == 0:
        return _NO_BITS, np.zeros(len(text) + 1, np.int64), _NO_BITS, 0
    place = np.frombuffer(offsets, wide)[text.offset : text.offset + len(text) + 1].astype(np.int64)
    bits = _NO_BITS if bitmap is None or text.null_count == 0 else np.frombuffer(bitmap, np.uint8)
    return _NO_BITS if data is None else np.frombuffer(data, np.uint8), place, bits, text.offset


@njit(cache=True, inline="always")
def _is_null(bits: Bytes, place: int) -> bool:
    return bits.size > 0 and not (bits[place >> 3] >> (place & 7)) & 1


@njit(cache=True, inline="always")
def _is_digit(sign: int) -> bool:
    return _ZERO <= sign <= _NINE


@njit(cache=True, inline="always")
def _trimmed(data: Bytes, start: int, stop: int) -> tuple[int, int]:
    """Return where the text begins and ends without the blanks of ASCII around it."""
    while start < stop and (data[start] == 32 or 9 <= data[start] <= 13):
        start += 1
    while stop > start and (data[stop - 1] == 32 or 9 <= data[stop - 1] <= 13):
        stop -= 1
    return start, stop


@njit(cache=True)
def _is_word(data: Bytes, start: int, stop: int, lower: Bytes) -> bool:
    """Return whether the text is a word in small letters, in capitals, or with a capital at its beginning."""
    if stop - start != lower.size:
        return False
    small = capital = 0
    for place in range(lower.size):
        sign = data[start + place]
        if sign == lower[place]:
            small += 1
        elif sign == lower[place] - 32:
            capital += 1
        else:
            return False
    return small == lower.size or capital == lower.size or (capital == 1 and data[start] < 97)


_TRUE = np.frombuffer(b"true", np.uint8)
_FALSE = np.frombuffer(b"false", np.uint8)
_INF = np.frombuffer(b"inf", np.uint8)
_INFINITY = np.frombuffer(b"Infinity", np.uint8)


@njit(cache=True)
def _special(data: Bytes, start: int, stop: int, signed: bool) -> int:
    """Return whether the text behind a sign, if there is one, is an infinity or no number at all."""
    size = stop - start
    if size == 3:
        if not signed and (data[start] | 32) == 110 and (data[start + 2] | 32) == 110:
            middle, outer = data[start + 1], data[start]
            same = data[start + 2] == outer
            if same and ((middle == 97) or (middle == 65 and outer == 78)):
                return NAN
        return INFINITE if _is_word(data, start, stop, _INF) else NO_NUMBER
    if size != _INFINITY.size:
        return NO_NUMBER
    for place in range(size):
        if data[start + place] != _INFINITY[place]:
            return NO_NUMBER
    return INFINITE


@njit(cache=True)
def _exponent(data: Bytes, place: int, stop: int) -> tuple[bool, int]:
    """Return whether an exponent, behind its letter, goes to the end of the text, and its value."""
    below = False
    if place < stop and (data[place] == _PLUS or data[place] == _MINUS):
        below = data[place] == _MINUS
        place += 1
    if place == stop:
        return False, 0
    value = 0
    while place < stop and _is_digit(data[place]):
        value = min(value * 10 + data[place] - _ZERO, _HUGE)
        place += 1
    return place == stop, -value if below else value


@njit(cache=True)
def _scan(data: Bytes, start: int, stop: int, point: int) -> tuple[int, bool, int, int, int, int, int, bool]:
    """Read a text without blanks around it as a number.

    Returns
    -------
    form, negative
        One of the forms, and its sign.
    first, last, digits
        The places of the first and the last digit other than zero, and the number of digits from one to the other; 0
        digits: the number is zero.
    power
        The power of ten of the last of these digits.
    size
        Number of all digits before the exponent.
    padded
        Whether the number begins with a zero that another digit follows.
    """
    signed = start < stop and (data[start] == _PLUS or data[start] == _MINUS)
    negative = signed and data[start] == _MINUS
    place = start + 1 if signed else start
    begin, first, last, dot, size = place, -1, -1, -1, 0
    while place < stop:
        sign = data[place]
        if _is_digit(sign):
            size += 1
            if sign != _ZERO:
                if first < 0:
                    first = place
                last = place
        elif sign == point and dot < 0:
            dot = place
        else:
            break
        place += 1
    if size == 0:
        form = NO_NUMBER
        if dot < 0 and (stop - begin == 3 or stop - begin == _INFINITY.size):
            form = _special(data, begin, stop, signed)
        return form, negative, 0, 0, 0, 0, 0, False
    end, power = place, 0
    form = WHOLE if dot < 0 else FRACTION
    if place < stop and (data[place] | 32) == 101:
        form = FRACTION
        valid, power = _exponent(data, place + 1, stop)
        place = stop if valid else place
    if place != stop:
        return NO_NUMBER, negative, 0, 0, 0, 0, 0, False
    padded = data[begin] == _ZERO and begin + 1 < stop and _is_digit(data[begin + 1])
    if first < 0:
        return form, negative, 0, 0, 0, 0, size, padded
    digits = last - first + 1
    if first < dot < last:
        digits -= 1
    if dot < 0:
        power += end - 1 - last
    else:
        power += dot - 1 - last if last < dot else dot - last
    return form, negative, first, last, digits, power, size, padded


@njit(cache=True, inline="always")
def _magnitude(data: Bytes, first: int, last: int) -> np.uint64:
    """Return the number that at most 19 digits make, the point left out."""
    value = np.uint64(0)
    for place in range(first, last + 1):
        if _is_digit(data[place]):
            value = value * _TEN + np.uint64(data[place] - _ZERO)
    return value


@njit(cache=True)
def read_whole(
    data: Bytes, offsets: NDArray[np.int64], bits: Bytes, shift: int, point: int, most: int, values: Any, fits: Any
) -> None:
    """Read whole numbers from ``-most - 1`` to `most` into int64 `values`."""
    above = np.uint64(most)
    below = above + np.uint64(1)
    for row in range(values.size):
        if _is_null(bits, shift + row):
            continue
        start, stop = _trimmed(data, offsets[row], offsets[row + 1])
        form, negative, first, last, digits, power, _, _ = _scan(data, start, stop, point)
        fits[row] = form in (WHOLE, FRACTION) and (digits == 0 or (power >= 0 and digits + power <= 19))
        if not fits[row] or digits == 0:
            continue
        value = _magnitude(data, first, last)
        for _ in range(power):
            value *= _TEN
        if negative:
            fits[row] = value <= below
            if fits[row]:
                values[row] = -np.int64(value - np.uint64(1)) - 1  # the least number has no positive twin
        else:
            fits[row] = value <= above
            if fits[row]:
                values[row] = np.int64(value)


@njit(cache=True)
def read_floating(
    data: Bytes,
    offsets: NDArray[np.int64],
    bits: Bytes,
    shift: int,
    point: int,
    powers: Any,
    exact: int,
    values: Any,
    fits: Any,
    open_: Any,
) -> None:
    """Read floating-point numbers where one operation gives the nearest one, and mark the others in `open_`.

    Parameters
    ----------
    powers
        The powers of ten from 0 on that the type holds exactly.
    exact
        The greatest whole number below which it holds them all.
    """
    limit = np.uint64(exact)
    for row in range(values.size):
        if _is_null(bits, shift + row):
            continue
        start, stop = _trimmed(data, offsets[row], offsets[row + 1])
        form, negative, first, last, digits, power, _, _ = _scan(data, start, stop, point)
        fits[row] = form != NO_NUMBER
        if form == NAN:
            values[row] = np.nan
        elif form == INFINITE:
            values[row] = -np.inf if negative else np.inf
        elif form != NO_NUMBER and digits == 0:
            values[row] = -0.0 if negative else 0.0
        elif form != NO_NUMBER:
            if digits <= 19 and -powers.size < power < powers.size:
                value = _magnitude(data, first, last)
                if value <= limit:
                    values[row] = value
                    values[row] = values[row] * powers[power] if power >= 0 else values[row] / powers[-power]
                    if negative:
                        values[row] = -values[row]
                    continue
            open_[row] = True


@njit(cache=True)
def read_decimal(
    data: Bytes,
    offsets: NDArray[np.int64],
    bits: Bytes,
    shift: int,
    point: int,
    precision: int,
    scale: int,
    values: Any,
    fits: Any,
) -> None:
    """Read decimals into the low and the high half of 128-bit integers, uint64[n, 2]."""
    unit, zero = np.uint64(1), np.uint64(0)
    for row in range(values.shape[0]):
        if _is_null(bits, shift + row):
            continue
        start, stop = _trimmed(data, offsets[row], offsets[row + 1])
        form, negative, first, last, digits, power, _, _ = _scan(data, start, stop, point)
        power += scale
        fits[row] = form in (WHOLE, FRACTION) and (digits == 0 or (power >= 0 and digits + power <= precision))
        if not fits[row] or digits == 0:
            continue
        low, high = zero, zero
        for place in range(first, last + 1 + power):
            digit = zero
            if place <= last:
                if not _is_digit(data[place]):
                    continue
                digit = np.uint64(data[place] - _ZERO)
            right = (low & _LOW) * _TEN + digit
            left = (low >> _HALF) * _TEN + (right >> _HALF)
            low = (left << _HALF) | (right & _LOW)
            high = high * _TEN + (left >> _HALF)
        if negative:
            low = ~low + unit
            high = ~high + (unit if low == zero else zero)
        values[row, 0], values[row, 1] = low, high


@njit(cache=True)
def read_boolean(data: Bytes, offsets: NDArray[np.int64], bits: Bytes, shift: int, values: Any, fits: Any) -> None:
    """Read truth values."""
    for row in range(values.size):
        if _is_null(bits, shift + row):
            continue
        start, stop = _trimmed(data, offsets[row], offsets[row + 1])
        values[row] = _is_word(data, start, stop, _TRUE)
        fits[row] = values[row] or _is_word(data, start, stop, _FALSE)


@njit(cache=True)
def _two_digits(data: Bytes, place: int, stop: int) -> int:
    """Return the number that two digits make; -1 where there are none."""
    if place + 2 > stop or not _is_digit(data[place]) or not _is_digit(data[place + 1]):
        return -1
    return int(data[place] - _ZERO) * 10 + int(data[place + 1] - _ZERO)


@njit(cache=True)
def _day(data: Bytes, start: int, stop: int) -> tuple[bool, int]:
    """Return whether the text begins with a date, ``YYYY-MM-DD``, and its day since 1970."""
    if stop - start < 10 or data[start + 4] != _MINUS or data[start + 7] != _MINUS:
        return False, 0
    century, rest = _two_digits(data, start, stop), _two_digits(data, start + 2, stop)
    month, day = _two_digits(data, start + 5, stop), _two_digits(data, start + 8, stop)
    if century < 0 or rest < 0 or not 1 <= month <= 12 or day < 1:
        return False, 0
    year = century * 100 + rest
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    longest = 28 + leap if month == 2 else 30 + (month + month // 8) % 2
    if year == 0 or day > longest:
        return False, 0
    years = year - 1 if month <= 2 else year  # of years that begin in March the leap day is the last
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return True, years * 365 + years // 4 - years // 100 + years // 400 + day_of_year - 719468


@njit(cache=True)
def _clock(data: Bytes, place: int, stop: int) -> tuple[int, bool]:
    """Return where a time of day ends that begins here, and whether it is midnight.

    The time is ``hh:mm[:ss[.fraction]]``; -1 where there is none.
    """
    hour, minute, second = _two_digits(data, place, stop), -1, 0
    if place + 5 <= stop and data[place + 2] == 58:
        minute = _two_digits(data, place + 3, stop)
    if not 0 <= hour <= 23 or not 0 <= minute <= 59:
        return -1, False
    place += 5
    midnight = hour == 0 and minute == 0
    if place < stop and data[place] == 58:
        second = _two_digits(data, place + 1, stop)
        if not 0 <= second <= 59:
            return -1, False
        place += 3
        midnight = midnight and second == 0
        if place < stop and data[place] == 46:
            begin = place + 1
            place = begin
            while place < stop and _is_digit(data[place]):
                midnight = midnight and data[place] == _ZERO
                place += 1
            if place == begin:
                return -1, False
    return place, midnight


@njit(cache=True)
def read_date(data: Bytes, offsets: NDArray[np.int64], bits: Bytes, shift: int, values: Any, fits: Any) -> None:
    """Read dates, also with the time of day 00:00 and without a zone, as days since 1970."""
    for row in range(values.size):
        if _is_null(bits, shift + row):
            continue
        start, stop = _trimmed(data, offsets[row], offsets[row + 1])
        valid, day = _day(data, start, stop)
        if valid and stop - start > 10:
            end, midnight = -1, False
            if data[start + 10] == 84 or data[start + 10] == 32:
                end, midnight = _clock(data, start + 11, stop)
            valid = midnight and end == stop
        if valid:
            values[row], fits[row] = day, True


@njit(cache=True)
def _is_time(data: Bytes, start: int, stop: int) -> bool:
    """Return whether the text is a date with a time of day, and perhaps ``Z`` or an offset."""
    valid, _ = _day(data, start, stop)
    if not valid or stop - start < 16 or not (data[start + 10] == 84 or data[start + 10] == 32):
        return False
    place, _ = _clock(data, start + 11, stop)
    if place < 0 or place == stop:
        return place == stop
    if data[place] == 90:
        return place + 1 == stop
    if data[place] != _PLUS and data[place] != _MINUS:
        return False
    hour = _two_digits(data, place + 1, stop)
    place += 4 if place + 3 < stop and data[place + 3] == 58 else 3
    return 0 <= hour <= 14 and 0 <= _two_digits(data, place, stop) <= 59 and place + 2 == stop


@njit(cache=True)
def classify(
    data: Bytes, offsets: NDArray[np.int64], bits: Bytes, shift: int, point: int, counts: Any, categories: Any
) -> None:
    """Add to `COUNTS`, int64[10], and set the category of every text; that of a null stays."""
    most = np.uint64(0x7FFFFFFFFFFFFFFF)
    for row in range(categories.size):
        if _is_null(bits, shift + row):
            continue
        counts[0] += 1
        start, stop = _trimmed(data, offsets[row], offsets[row + 1])
        form, negative, first, last, digits, power, size, padded = _scan(data, start, stop, point)
        if form in (NAN, INFINITE):
            counts[8] += 1
            categories[row] = NUMBER
        elif form != NO_NUMBER:
            categories[row] = NUMBER
            counts[1] += padded
            counts[3] += 1
            if form == WHOLE:
                counts[2] += size <= _MOST_PLAIN
                counts[6] += size > _MOST_PLAIN
                counts[7] += size >= _LONG
                if digits + power <= 18:
                    counts[9] += size <= _MOST_PLAIN
                elif size <= _MOST_PLAIN and digits + power == 19:
                    value = _magnitude(data, first, last)
                    for _ in range(power):
                        value *= _TEN
                    counts[9] += value <= most or (negative and value - np.uint64(1) <= most)
        elif stop - start >= 16 and _is_time(data, start, stop):
            counts[5] += 1
            categories[row] = TIME
        elif 4 <= stop - start <= 5 and (_is_word(data, start, stop, _TRUE) or _is_word(data, start, stop, _FALSE)):
            counts[4] += 1
            categories[row] = BOOLEAN
        else:
            categories[row] = OTHER
