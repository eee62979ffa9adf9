"""Membership with plain sets: every row in every window, every window that counts, no filter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Row = tuple[int, object]
"""Event time in microseconds, element."""
Spec = tuple[int, int]
"""Size and slide in microseconds."""


def windows_of(time: int, spec: Spec) -> list[int]:
    """Starts of the half-open windows that hold an event time."""
    size, slide = spec
    return [
        start
        for start in range(time - time % slide - size, time + 1)
        if start % slide == 0 and start <= time < start + size
    ]


def touched(start: int, first: Spec, other: Spec) -> list[int]:
    """Starts of the other stream's windows that count for a window of the first stream."""
    if first == other:
        return [start]
    end = start + first[0]
    size, slide = other
    ends = range(start - size - 2 * slide, end + size + 2 * slide)
    starts = [s for s in ends if s % slide == 0]
    inside = [s for s in starts if start < s + size <= end]
    if inside:
        return inside
    return [max(s for s in starts if s + size <= end)]


def results(streams: Sequence[Iterable[Row]], specs: Sequence[Spec]) -> set[tuple[int, object]]:
    """``(window start of stream 0, element)`` for every element that the definition makes a result."""
    held: list[dict[int, set[object]]] = []
    for rows, spec in zip(streams, specs, strict=True):
        sets: dict[int, set[object]] = {}
        for time, element in rows:
            for start in windows_of(time, spec):
                sets.setdefault(start, set()).add(element)
        held.append(sets)
    return {
        (start, element)
        for start, elements in held[0].items()
        for element in elements
        if all(
            any(element in held[i].get(s, ()) for s in touched(start, specs[0], specs[i])) for i in range(1, len(specs))
        )
    }
