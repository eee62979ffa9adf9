"""``kind: join``: pairs of rows of two streams within a window of event time, with a target for the recall.

Defaults: ``adapt_every`` P/60, and ``granularity`` and ``basic_window`` w/200, scale the paper's L 1 s, g 10 ms and b
10 ms (P 60 s, w 2 s; QJoin, section 2.1) to other periods P and windows w. The ``calibrated`` estimator and the
confidence 0.95 are ours (:mod:`latecomer.core.join.calibrated_control`). ``gamma``, the span of late rows that makes a
repair batch, is one period.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict

from latecomer.specs import expressions as ex
from latecomer.specs.clauses import (
    STORED,
    open_quality,
    open_strategy,
    parse_select,
    parse_where,
    sequence_columns,
    to_json,
    wrong_stream,
)
from latecomer.specs.durations import format_duration
from latecomer.specs.fragments import MAPPING, Fragment, any_of
from latecomer.specs.names import stored_name
from latecomer.specs.reader import Reader, parse_streams
from latecomer.specs.spec import (
    CONFIDENCE,
    SHORTEST_PERIOD_US,
    RequiredType,
    Signature,
    Spec,
    Strategy,
    parse_bounds,
    parse_confidence,
    parse_details,
)

STRATEGIES = ("qjoin", "mp_k_slack", "k_slack", "aq_k_slack", "exact")
DEFAULT_STRATEGY = "qjoin"
REORDERING = ("mp_k_slack", "k_slack", "aq_k_slack")
"""Strategies that join rows in the order of their event times, each row once the watermark has reached it."""
ESTIMATORS = ("paper", "delay_aware", "empirical", "calibrated")
_STEERED = ("qjoin", "aq_k_slack")
"""Strategies that are steered by the target."""
_MOST_GRANULES = 10_000_000
"""Most granules in a period or a window."""
_USES = {
    **dict.fromkeys(("estimator", "basic_window", "confidence", "guarantee"), ("qjoin",)),
    **dict.fromkeys(("adapt_every", "granularity"), _STEERED),
    "slack": ("k_slack",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinStrategy(Strategy):
    """The strategy of a join: how long rows are retained. Durations are in microseconds.

    Attributes
    ----------
    estimator : str
        The recall estimator of ``qjoin``, one of `ESTIMATORS`.
    adapt_every_us, granularity_us, basic_window_us : int
        The paper's L, g and b: time between two adaptations, width of a bucket of delays, and of a part of the window.
    slack_us : int or None
        The constant slack of ``k_slack``; None for other strategies.
    guarantee : bool or None
        ``guarantee`` of the file; None where it does not say: see `JoinSpec.guarantee`.
    """

    estimator: str
    adapt_every_us: int
    granularity_us: int
    basic_window_us: int
    slack_us: int | None
    guarantee: bool | None = None

    def signature(self) -> Signature:
        """Return the attributes that determine the query's results; lakes of earlier versions know no guarantee."""
        signature = Strategy.signature(self)
        return {name: value for name, value in signature.items() if name != "guarantee" or value is not None}

    @property
    def reorders(self) -> bool:
        """True where a row waits in a reorder buffer before it is joined."""
        return self.name in REORDERING


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSpec(Spec):
    """A join query.

    Attributes
    ----------
    keys : tuple of (left column, right column)
        Columns that are equal in the two rows of a pair, or fields inside columns; `key_columns` tells which.
    window_us : int
        Most that the event times of a pair may differ, microseconds.
    """

    kind: ClassVar[str] = "join"
    adaptive: ClassVar[tuple[str, ...]] = ("qjoin",)
    keys: tuple[tuple[str, str], ...]
    window_us: int
    strategy: JoinStrategy

    @property
    def guarantee(self) -> bool:
        """True where a new query has the recall guarantee: by default those of ``qjoin`` with ``calibrated``.

        With a target of 1 all rows are kept, and no pair is missed.
        """
        strategy = self.strategy
        if strategy.name != "qjoin" or strategy.estimator != "calibrated" or self.target >= 1:
            return False
        return strategy.guarantee is not False

    @property
    def adapts(self) -> bool:
        """True where the retention is learned. With a target of 1 ``calibrated`` keeps all rows and learns nothing."""
        keeps_all = self.strategy.estimator == "calibrated" and self.target >= 1
        return self.strategy.name in self.adaptive and not keeps_all

    @property
    def result_keys(self) -> tuple[str, ...]:
        """The sequence numbers of the two rows of a pair."""
        return tuple(f"{alias}_seq" for alias, _ in self.streams)

    def _default_names(self, names: Sequence[str]) -> tuple[str, ...]:
        first = ("seq", "event_ts")
        return (*first, *(name for name in names if name not in first))

    def _kind_expressions(self) -> Iterator[tuple[str, ex.Expr, RequiredType]]:
        (left, _), (right, _) = self.streams
        for left_name, right_name in self.keys:
            yield "keys", ex.Binary("=", ex.Column(left, left_name), ex.Column(right, right_name)), None

    def key_columns(self, known: Mapping[str, Collection[str]]) -> list[tuple[ex.Column, ex.Column]]:
        """Return the columns, or fields inside columns, of `keys`, among the columns of each alias.

        A name with dots is that of a column where the stream has it, as files of flat tables do, and else leads to a
        field.
        """
        (left, _), (right, _) = self.streams
        pairs = [(ex.Column(left, name), ex.Column(right, other)) for name, other in self.keys]
        return [(ex.find_column(a, known[left]), ex.find_column(b, known[right])) for a, b in pairs]

    def _located(self, key: str, expression: ex.Expr, known: Mapping[str, Sequence[str]]) -> ex.Expr:
        if key != "keys" or not isinstance(expression, ex.Binary):
            return expression
        sides = (side for side in (expression.left, expression.right) if isinstance(side, ex.Column))
        return ex.Binary("=", *(ex.find_column(side, known[side.alias]) for side in sides))

    def _kind_signature(self) -> Signature:
        return {
            "keys": to_json(self.keys),
            "window_us": self.window_us,
            "where": to_json(self.where),
            "select": to_json(self.select),
        }


def parse(reader: Reader, name: str) -> JoinSpec:
    """Read a join's spec from the keys that are left of its file.

    Raises
    ------
    SpecError
        For any fault: file, key, value, problem and remedy.
    """
    streams = parse_streams(reader, 2, 2)
    aliases = tuple(alias for alias, _ in streams)
    sequence_columns(reader, aliases)
    window_us = reader.duration("window")
    keys = _parse_keys(reader, aliases)
    where = parse_where(reader, aliases)
    carried = {f"{alias}_{column}": ex.Column(alias, column) for alias in aliases for column in ("seq", "event_ts")}
    select = parse_select(reader, aliases, (), STORED, carried)
    inner, strategy = open_strategy(reader, STRATEGIES, DEFAULT_STRATEGY, _USES)
    quality = open_quality(reader, strategy, _STEERED, "recall: 0.95, period: 60 s")
    target = _parse_target(quality, strategy in _STEERED)
    return JoinSpec(
        name=name,
        streams=streams,
        keys=keys,
        window_us=window_us,
        where=where,
        select=select,
        **target,
        **parse_bounds(quality, streams),
        confidence=parse_confidence(inner) if strategy == "qjoin" else CONFIDENCE,
        strategy=_parse_strategy(inner, strategy, window_us, target["period_us"]),
        **parse_details(reader),
    )


_COLUMN: Fragment = {"type": "string", "minLength": 1}
_COLUMNS: Fragment = {"type": "array", "items": _COLUMN, "minItems": 1}
_SIDE = any_of(_COLUMN, _COLUMNS)
_KEYS = any_of(_COLUMNS, MAPPING | {"minProperties": 2, "maxProperties": 2, "additionalProperties": _SIDE})


def _parse_keys(reader: Reader, aliases: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read ``keys: [column]``, of both streams, or ``{left: column, right: column}``, aliases in front allowed."""
    value = reader.take("keys", (), schema=_KEYS)
    if isinstance(value, dict):
        left, right = _parse_sides(Reader(value, reader.source, "keys"), aliases)
        if len(left) != len(right):
            raise reader.fail("keys", value, "has more columns for one stream than for the other", "pair them up")
        return tuple(zip(left, right, strict=True))
    if value == ():
        return ()
    if not isinstance(value, list) or not value or not all(isinstance(column, str) and column for column in value):
        remedy = f"write [column] or {{{aliases[0]}: a, {aliases[1]}: b}}"
        raise reader.fail("keys", value, "must be a list of columns", remedy)
    for place, column in enumerate(value):
        alias = _alias_of(column, aliases)
        if alias is not None:
            name = column.removeprefix(f"{alias}.")
            problem = f"is a column of {alias} alone, but is taken of both streams"
            remedy = f"write {name}, or {{{aliases[0]}: {name}, {aliases[1]}: {name}}}"
            raise reader.fail(f"keys[{place}]", column, problem, remedy)
    return tuple((_key_name(column), _key_name(column)) for column in value)


def _parse_sides(inner: Reader, aliases: tuple[str, ...]) -> list[list[str]]:
    """Read the columns of each alias in ``keys: {...}``."""
    sides = []
    for alias in aliases:
        value = inner.take(alias, schema=_SIDE)
        entries = value if isinstance(value, list) else [value]
        columns = [entry for entry in entries if isinstance(entry, str) and entry]
        if not entries or len(columns) < len(entries):
            raise inner.fail(alias, value, "must be a column or a list of columns", "write a column's name")
        for column in columns:
            other = _alias_of(column, aliases)
            if other not in (None, alias):
                raise wrong_stream(inner, alias, column, other)
        sides.append([_key_name(column.removeprefix(f"{alias}.")) for column in columns])
    inner.done()
    return sides


def _key_name(text: str) -> str:
    """Return the name that a text of ``keys`` has, which is no expression; quotes around all of it may stay."""
    inner = re.fullmatch(r'"((?:[^"]|"")+)"', text)
    return stored_name(inner[1].replace('""', '"') if inner else text)


def _alias_of(column: str, aliases: tuple[str, ...]) -> str | None:
    """Return the alias in front of a column's name, None without one."""
    return next((alias for alias in aliases if column.startswith(f"{alias}.") and column != f"{alias}."), None)


class _Target(TypedDict):
    """Arguments of a :class:`JoinSpec`."""

    target: float
    period_us: int
    promises: bool


def _parse_target(quality: Reader, steered: bool) -> _Target:
    """Read the recall and the period, which a strategy that is steered by them needs."""
    if steered:
        recall, period_us = quality.number("recall", low=0.0, high=1.0, above_low=True), quality.duration("period")
    else:
        recall = quality.number("recall", 0.95, low=0.0, high=1.0, above_low=True)
        period_us = quality.duration("period", SHORTEST_PERIOD_US)
    return {"target": recall, "period_us": period_us, "promises": steered or quality.given("recall")}


def _parse_strategy(inner: Reader, name: str, window_us: int, period_us: int) -> JoinStrategy:
    estimator, adapt_every_us, guarantee = "calibrated", max(period_us // 60, 1), None
    granularity_us = basic_window_us = max(window_us // 200, 1_000)
    if name == "qjoin":
        estimator = inner.choice("estimator", ESTIMATORS, estimator)
        basic_window_us = inner.duration("basic_window", basic_window_us)
        guarantee = inner.flag("guarantee")
        if guarantee and estimator != "calibrated":
            problem = f"is not offered by estimator {estimator}, which steers by what it produced"
            raise inner.fail("guarantee", True, problem, "remove it, or remove estimator")
    if name in _STEERED:
        adapt_every_us = inner.duration("adapt_every", adapt_every_us)
        longest_us = max(period_us, window_us)
        finest_us = max(granularity_us, -(-longest_us // _MOST_GRANULES))
        granularity_us = inner.duration("granularity", finest_us)
        if adapt_every_us > period_us:
            problem, value = "is longer than the quality period", format_duration(adapt_every_us)
            raise inner.fail("adapt_every", value, problem, "choose a shorter time")
        if longest_us // granularity_us > _MOST_GRANULES:
            problem, value = "is too fine for this period or window", format_duration(granularity_us)
            raise inner.fail("granularity", value, problem, "choose a longer time")
    slack_us = inner.duration("slack", zero=True) if name == "k_slack" else None
    gamma_us = inner.duration("gamma", period_us)
    inner.done()
    return JoinStrategy(
        name=name,
        gamma_us=gamma_us,
        estimator=estimator,
        adapt_every_us=adapt_every_us,
        granularity_us=granularity_us,
        basic_window_us=basic_window_us,
        slack_us=slack_us,
        guarantee=guarantee,
    )
