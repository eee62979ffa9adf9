"""What the windowed kinds share: windows, and specs whose answers are of windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from latecomer.specs.common import Reader, parse_duration
from latecomer.specs.spec import Spec

MOST_SLIDES = 1_000_000
"""Windows one row may fall into. More is a unit mixed up."""


@dataclass(frozen=True, slots=True)
class Window:
    """Half-open windows ``[start, start + size_us)``, `start` a multiple of `slide_us` since the epoch."""

    size_us: int
    slide_us: int


WINDOW = ("window_start", "window_end")
"""Columns by which a result row names its window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedSpec(Spec):
    """Base of the kinds whose answers are of windows.

    Attributes
    ----------
    window : Window
        The one that a result row names.
    group_by : tuple of str
        Columns by whose values a window has several answers; results begin with them.
    """

    window: Window
    group_by: tuple[str, ...] = ()

    @property
    def shards(self) -> int:
        """Parts of the groups that have a slack of their own."""
        return 1

    @property
    def observe_us(self) -> int | None:
        """How long after its end a window's stragglers are counted, microseconds; None: as the delays have it."""
        return None


def window_of(reader: Reader, name: str = "window") -> Window:
    """``{size: 1 h, slide: 10 min}``, or just a size; the slide is then the size (tumbling windows).

    Raises
    ------
    SpecError
        No window, a slide longer than the size, or more windows to a row than `MOST_SLIDES`.
    """
    value = reader.take(name)
    if isinstance(value, str):
        size_us = parse_duration(value, source=reader.source, key=reader.key(name))
        return Window(size_us, size_us)
    if not isinstance(value, Mapping):
        raise reader.fail(name, value, "is not a window", "write, for example, {size: 1 h, slide: 10 min}")
    inner = Reader(value, reader.source, reader.key(name))
    size_us = inner.duration("size")
    slide_us = inner.duration("slide", size_us)
    inner.done()
    if slide_us > size_us:
        raise inner.fail(
            "slide",
            value["slide"],
            "is longer than the size, so rows would fall between windows",
            "choose a shorter slide",
        )
    if size_us > slide_us * MOST_SLIDES:
        raise inner.fail(
            "slide", value["slide"], f"puts each row into more than {MOST_SLIDES:,} windows", "choose a longer slide"
        )
    return Window(size_us, slide_us)
