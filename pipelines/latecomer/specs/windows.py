"""What the windowed kinds share: windows, and specs whose answers are of windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from latecomer.specs import expressions as ex
from latecomer.specs.durations import parse_duration
from latecomer.specs.reader import Reader
from latecomer.specs.spec import CONFIDENCE, Spec

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


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a window waits for its stragglers where each result is there or not, whatever else came.

    Attributes
    ----------
    recall : float or None
        Share of a period's results to be published at once; None: nothing is promised before repair.
    slack_us : int or None
        A constant wait, microseconds; None: chosen for the recall.
    confidence : float
        Share of periods that have to reach the recall.
    """

    recall: float | None = None
    slack_us: int | None = 0
    confidence: float = CONFIDENCE

    def question(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What it adds to a query's ``quality`` and ``strategy``: of a constant wait that promises nothing, that wait alone."""
        if self.recall is None:
            return {}, {"slack_us": self.slack_us}
        return {"recall": self.recall}, {"slack_us": self.slack_us, "confidence": self.confidence}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingSpec(WindowedSpec):
    """Base of the kinds whose answers are results of windows, each exact: a promise is about their number.

    Attributes
    ----------
    where : Expr or None
        What rows have to pass, each part of it those of one stream (:meth:`filter_on`).
    wait : Wait
        How long a window waits for its stragglers.
    """

    where: ex.Expr | None = None
    wait: Wait = Wait()

    def filter_on(self, alias: str) -> ex.Expr | None:
        """What rows of one stream have to pass to take part; None: nothing."""
        parts = [] if self.where is None else ex.conjuncts(self.where)
        mine = [part for part in parts if alias in {column.alias for column in ex.columns(part)}]
        return reduce(partial(ex.Binary, "and"), mine) if mine else None

    def filters(self) -> Iterator[tuple[str, ex.Expr, str | None]]:
        """`where`, of :meth:`expressions`."""
        if self.where is not None:
            yield "where", self.where, "bool"

    @property
    def adapts(self) -> bool:
        """The wait follows what results required."""
        return self.wait.slack_us is None

    @property
    def target(self) -> float:
        """The recall; 1 where none is stated: then repair alone is promised."""
        return 1.0 if self.wait.recall is None else self.wait.recall

    @property
    def confidence(self) -> float:
        """Share of periods that have to reach the recall."""
        return self.wait.confidence


def wait_of(quality: Reader, strategy: Reader) -> Wait:
    """``quality: {recall: 0.95}``, ``strategy: {slack: 1 min}`` or both (the wait is constant then, and judged); neither: no wait.

    Raises
    ------
    SpecError
        A confidence without a recall; a number out of range.
    """
    recall = quality.number("recall", None, low=0.0, high=1.0, open_low=True)
    slack_us = strategy.duration("slack", 0 if recall is None else None, zero=True)
    if recall is None and strategy.has("confidence"):
        value = strategy.take("confidence")
        raise strategy.fail(
            "confidence",
            value,
            "is of a recall that the query does not state",
            "write quality: {recall: 0.95}, or remove it",
        )
    return Wait(recall, slack_us, strategy.number("confidence", CONFIDENCE, low=0.5, high=0.9999))


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
