"""Membership with plain sets: each row in each of its windows, each pair of windows that is compared, no filter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Row = tuple[int, object]
"""Event time in microseconds, and element."""
Spec = tuple[int, int]
"""Size and slide of a stream's windows in microseconds."""


def windows_of(time: int, spec: Spec) -> list[int]:
    """Return the starts of the half-open windows that contain an event time."""
    size, slide = spec
    return [
        start
        for start in range(time - time % slide - size, time + 1)
        if start % slide == 0 and start <= time < start + size
    ]


def touched(start: int, first: Spec, other: Spec) -> list[int]:
    """Return the starts of the other stream's windows that the first stream's window at `start` is compared with.

    Equal windows: the same one. Otherwise the windows that lie inside it, or else the last one that ends by its end.
    """
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
    """Return ``(window start of stream 0, element)`` for each element with a compared window in every stream."""
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
