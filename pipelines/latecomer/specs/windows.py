"""The base classes of the kinds whose answers are per window, and how windows are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import TypedDict

from latecomer.core.windows.grid import Grid
from latecomer.specs import expressions as ex
from latecomer.specs.clauses import to_json
from latecomer.specs.durations import DURATION, parse_duration
from latecomer.specs.fragments import MAPPING, any_of
from latecomer.specs.reader import Reader
from latecomer.specs.spec import CONFIDENCE, Signature, Spec, Strategy, parse_confidence

MOST_SLIDES = 1_000_000
"""Most windows that may contain one row. A query with more has a mistaken unit."""
WAITS = ("max_wait_us", "expect_us")
"""Attributes that bound the waits that a strategy learns; without one the signature is that of earlier versions."""
WITHOUT_SLACK = "write quality: {recall: 0.95} without a slack, or remove it"
"""The remedy for `parse_waits` where a :class:`WaitingSpec` has a constant slack."""
WINDOW = ("window_start", "window_end")
"""Columns of a result row that identify its window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedSpec(Spec):
    """Base of the kinds whose answers are per window.

    Attributes
    ----------
    window : Grid
        The windows that result rows identify.
    group_by : tuple of str
        Columns whose values divide a window's rows into groups with an answer each; result rows begin with them.
    group_fields : tuple of (str, Column)
        The names in `group_by` that are no columns of the stream but fields inside one, and these fields.
    max_wait_us : int or None
        The longest wait that anybody would accept, microseconds; None: the longest credible wait.
    expect_us : int or None
        Lateness that is expected of streams that nobody has seen, microseconds; None: the file does not say.
    """

    window: Grid
    group_by: tuple[str, ...] = ()
    group_fields: tuple[tuple[str, ex.Column], ...] = ()
    max_wait_us: int | None = None
    expect_us: int | None = None

    @property
    def group_columns(self) -> tuple[ex.Column, ...]:
        """The column of the stream, or the field inside one, of each name in `group_by`."""
        inside, alias = dict(self.group_fields), self.streams[0][0]
        return tuple(inside.get(name) or ex.Column(alias, name) for name in self.group_by)

    def signature(self) -> Signature:
        """Return everything that determines the query's results, as JSON-able values."""
        base = Spec.signature(self)
        stated = {name: getattr(self, name) for name in WAITS if getattr(self, name) is not None}
        quality = base["quality"]
        assert isinstance(quality, Mapping)
        return {**base, "quality": {**quality, **stated}} if stated else base

    def _group_signature(self) -> list[object]:
        """Return the names in `group_by`, with the fields that some of them stand for, as JSON."""
        inside = dict(self.group_fields)
        return [[name, to_json(inside[name])] if name in inside else name for name in self.group_by]

    @property
    def shards(self) -> int:
        """Number of parts of the groups that have a slack of their own."""
        return 1

    @property
    def observe_us(self) -> int | None:
        """Time after a window's end until its final observation, microseconds; None: it follows the delays."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisedStrategy(Strategy):
    """Base of the strategies of a `RevisedSpec`.

    Attributes
    ----------
    revise : bool or None
        ``revise`` of the file; None where it does not say, which is the same as false.
    """

    revise: bool | None = None

    def signature(self) -> Signature:
        """Return the attributes that determine the query's results; lakes of earlier versions know no ``revise``."""
        signature = Strategy.signature(self)
        return {name: value for name, value in signature.items() if name != "revise" or value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisedSpec(WindowedSpec):
    """Base of the kinds whose answers are replaced by newer ones."""

    strategy: RevisedStrategy

    @property
    def revises(self) -> bool:
        """True where `run` publishes answers again that late rows move; not with several shards."""
        return bool(self.strategy.revise) and self.shards == 1


def parse_revise(strategy: Reader, shards: int = 1) -> bool | None:
    """Read ``strategy: {revise: true}``; None where the file does not say.

    Raises
    ------
    SpecError
        It is true beside several shards.
    """
    revise = strategy.flag("revise")
    if revise and shards > 1:
        problem = "is not possible with several shards, whose stream times differ"
        raise strategy.fail("revise", True, problem, "remove it, or remove shards")
    return revise


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingSpec(WindowedSpec):
    """Base of the kinds whose windows have many results, each exact: the target is the share of them on time.

    Where no recall is stated, `promises` is False and `target` is 1, which repair alone reaches.

    Attributes
    ----------
    slack_us : int or None
        Constant slack after a window's end in stream time, microseconds; None: it is chosen for the target.
    stated_guarantee : bool or None
        ``guarantee`` of the file; None where it does not say: see `guarantee`.
    """

    slack_us: int | None = 0
    stated_guarantee: bool | None = None

    @property
    def guarantee(self) -> bool:
        """True where a new query has the recall guarantee: by default each that promises a recall."""
        return self.promises and self.stated_guarantee is not False

    def filter_on(self, alias: str) -> ex.Expr | None:
        """Return the condition that one stream's rows must meet to take part; None: there is none."""
        conditions = [] if self.where is None else ex.conjuncts(self.where)
        of_stream = [part for part in conditions if alias in {column.alias for column in ex.columns(part)}]
        return reduce(partial(ex.Binary, "and"), of_stream) if of_stream else None

    @property
    def adapts(self) -> bool:
        """True where the slack is chosen for the target."""
        return self.slack_us is None

    def _quality_signature(self) -> Signature:
        return {self.target_key: self.target} if self.promises else {}

    def _strategy_signature(self) -> Signature:
        confidence = {"confidence": self.confidence} if self.promises else {}
        # lakes of earlier versions know no guarantee
        guarantee = {} if self.stated_guarantee is None else {"guarantee": self.stated_guarantee}
        return {"slack_us": self.slack_us, **confidence, **guarantee}


class Waits(TypedDict):
    """Arguments of a :class:`WindowedSpec`: bounds of the waits that its strategy learns."""

    max_wait_us: int | None
    expect_us: int | None


def parse_waits(quality: Reader, *, learns: bool, remedy: str) -> Waits:
    """Read ``quality: {max_wait: 2 d, expect: 2 h}``; `remedy` is for a strategy that learns no wait by a promise.

    Raises
    ------
    SpecError
        A value is no duration, the expected lateness is longer than the longest wait, or nothing is learnt.
    """
    for key in ("max_wait", "expect"):
        if not learns:
            quality.refuse(key, "is of a wait that the query does not learn", remedy)
    max_wait_us, expect_us = quality.duration("max_wait", None), quality.duration("expect", None)
    if max_wait_us is not None and expect_us is not None and expect_us > max_wait_us:
        raise quality.fail("expect", f"{expect_us} us", "is longer than max_wait", "write a longer max_wait")
    return {"max_wait_us": max_wait_us, "expect_us": expect_us}


class Slack(TypedDict):
    """Arguments of a :class:`WaitingSpec`: how long its windows wait, and for what."""

    target: float
    promises: bool
    slack_us: int | None
    confidence: float
    stated_guarantee: bool | None


def parse_slack(quality: Reader, strategy: Reader) -> Slack:
    """Read ``quality: {recall: 0.95}`` and ``strategy: {slack: 1 min, guarantee: true}``.

    A recall without a slack has the slack chosen for it; with both, the slack is constant and the recall is judged.
    Without either the slack is 0 and nothing is promised.

    Raises
    ------
    SpecError
        A confidence or a guarantee without a recall, or a number out of range.
    """
    recall = quality.number("recall", None, low=0.0, high=1.0, above_low=True)
    slack_us = strategy.duration("slack", 0 if recall is None else None, zero=True)
    if recall is not None:
        return {
            "target": recall,
            "promises": True,
            "slack_us": slack_us,
            "confidence": parse_confidence(strategy),
            "stated_guarantee": strategy.flag("guarantee"),
        }
    for key in ("confidence", "guarantee"):
        remedy = "write quality: {recall: 0.95}, or remove it"
        strategy.refuse(key, "is of a recall that the query does not state", remedy)
    return {"target": 1.0, "promises": False, "slack_us": slack_us, "confidence": CONFIDENCE, "stated_guarantee": None}


WINDOW_SCHEMA = any_of(DURATION, MAPPING)
"""JSON Schema of ``window``, with the keys of its mapping to be noted."""


def parse_window(reader: Reader, name: str = "window") -> Grid:
    """Read ``window: {size: 1 h, slide: 10 min}``, or ``window: 1 h`` for windows that do not overlap.

    Raises
    ------
    SpecError
        The value is not a window, the slide is longer than the size, or a row is in more than `MOST_SLIDES` windows.
    """
    value = reader.take(name, schema=WINDOW_SCHEMA)
    if isinstance(value, str):
        size_us = parse_duration(value, source=reader.source, key=reader.key(name))
        return Grid(size_us, size_us)
    if not isinstance(value, Mapping):
        raise reader.fail(name, value, "is not a window", "write, for example, {size: 1 h, slide: 10 min}")
    inner = Reader(value, reader.source, reader.key(name))
    size_us = inner.duration("size")
    slide_us = inner.duration("slide", size_us)
    inner.done()
    if slide_us > size_us:
        problem = "is longer than the size, so rows would fall between windows"
        raise inner.fail("slide", value["slide"], problem, "choose a shorter slide")
    if size_us > slide_us * MOST_SLIDES:
        problem = f"puts each row into more than {MOST_SLIDES:,} windows"
        raise inner.fail("slide", value["slide"], problem, "choose a longer slide")
    return Grid(size_us, slide_us)
