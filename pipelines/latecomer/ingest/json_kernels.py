"""Kernels that find JSON objects on lines, and the elements of an array or object."""

from __future__ import annotations

import numpy as np
from numba import njit

OBJECT, OTHER, MIXED = range(3)
"""What an element is: an object alone, anything else, or an object and something beside it."""
FINE, MISMATCH, LINE_END, UNFINISHED = range(4)
"""What became of a search for elements: the third is a line end in a string, which JSON does not allow."""


@njit(cache=True)
def find_objects(text, cuts, more):  # type: ignore[no-untyped-def]  # noqa: C901 - one compiled kernel
    """Find further objects on a line, and lines with an object and something else.

    The first are places where an object begins after another one on a line of objects; lines count from 1.

    Commas and blanks may separate objects. The places are written to `cuts` and the lines to `more` as far as these
    have room; both numbers are returned.
    """
    found = others = 0
    line, depth, objects, before = 1, 0, 0, 0
    in_string = escaped = False
    alone = True
    for i in range(len(text) + 1):
        sign = 10 if i == len(text) else text[i]
        if sign == 10:
            if objects > 0 and (not alone or depth > 0):
                found = before
                if others < len(more):
                    more[others] = line
                others += 1
            line, depth, objects, before = line + 1, 0, 0, found
            in_string, escaped, alone = False, False, True
        elif in_string:
            if escaped:
                escaped = False
            elif sign == 92:
                escaped = True
            elif sign == 34:
                in_string = False
        elif depth > 0:
            if sign == 34:
                in_string = True
            elif sign == 123 or sign == 91:
                depth += 1
            elif sign == 125 or sign == 93:
                depth -= 1
                objects += depth == 0
        elif sign == 123:
            if objects > 0:
                if found < len(cuts):
                    cuts[found] = i
                found += 1
            depth = 1
        elif not (sign == 32 or sign == 9 or sign == 13 or (sign == 44 and objects > 0)):
            alone = False
    return found, others


@njit(cache=True)
def find_elements(text, i, begins, ends, kinds):  # type: ignore[no-untyped-def]  # noqa: C901 - one compiled kernel
    """Find the elements of the array, or the members of the object, that begins at place `i`.

    Parameters
    ----------
    text : uint8[n]
    i
        The place of the opening bracket.
    begins, ends, kinds : int64[m], int64[m], uint8[m]
        Receive place and kind of the elements, without the white space around them, as far as there is room.

    Returns
    -------
    tuple
        Number of elements; the place behind the closing bracket, or of the fault; what became of the search. A comma
        before the closing bracket is followed by an empty element.
    """
    open_brackets = np.empty(64, np.uint8)
    open_brackets[0] = text[i]
    depth, count, start, last, kind = 1, 0, -1, -1, OTHER
    in_string = escaped = False
    for place in range(i + 1, len(text)):
        sign = text[place]
        if in_string:
            if escaped:
                escaped = False
            elif sign == 92:
                escaped = True
            elif sign == 34:
                in_string = False
                last = place + 1
            elif sign == 10:
                return count, place, LINE_END
            continue
        if sign == 32 or sign == 9 or sign == 13 or sign == 10:
            continue
        if depth == 1 and (sign == 44 or sign == 93 or sign == 125):
            if sign == 44 or start >= 0 or count > 0:
                if count < len(begins):
                    begins[count] = start if start >= 0 else place
                    ends[count] = last if start >= 0 else place
                    kinds[count] = kind if start >= 0 else OTHER
                count += 1
            if sign == 44:
                start = -1
                continue
        elif depth == 1:
            if start < 0:
                start, kind = place, OBJECT if sign == 123 else OTHER
            elif kind == OBJECT:
                kind = MIXED
        last = place + 1
        if sign == 34:
            in_string = True
        elif sign == 123 or sign == 91:
            if depth == len(open_brackets):
                open_brackets = np.append(open_brackets, np.empty(depth, np.uint8))
            open_brackets[depth] = sign
            depth += 1
        elif sign == 125 or sign == 93:
            depth -= 1
            if open_brackets[depth] != sign - 2:
                return count, place, MISMATCH
            if depth == 0:
                return count, place + 1, FINE
    return count, len(text), UNFINISHED
