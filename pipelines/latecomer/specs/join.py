"""``kind: join``: pairs of rows of two streams within a window of event time, with a recall target.

Defaults, with their source: ``adapt_every`` P/60 and ``granularity``, ``basic_window`` w/200 scale the paper's L 1 s,
g 10 ms and b 10 ms (P 60 s, w 2 s; QJoin, section 2.1) to other periods and windows. ``estimator: calibrated`` and
``confidence: 0.95`` are ours (:mod:`latecomer.core.join.calibrated_control`). ``gamma``, the span of late rows that makes a repair batch,
is one period.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from latecomer.specs import expressions as ex
from latecomer.specs.clauses import (
    STORED,
    fixed_columns_of,
    jsonable,
    of_another,
    quality_of,
    select_of,
    strategy_of,
    where_of,
)
from latecomer.specs.durations import shown
from latecomer.specs.names import stored_name
from latecomer.specs.reader import Reader, streams_of
from latecomer.specs.spec import CONFIDENCE, Spec, bounds_of, rest_of

STRATEGIES = ("qjoin", "mp_k_slack", "k_slack", "aq_k_slack", "exact")
REORDERING = ("mp_k_slack", "k_slack", "aq_k_slack")
"""Strategies that join rows in the order of their event times, each once the watermark has reached it."""
ESTIMATORS = ("paper", "delay_aware", "empirical", "calibrated")
_ADAPTIVE = ("qjoin", "aq_k_slack")
_MOST_GRANULES = 10_000_000
"""Of a period or a window."""
_USES = {
    **dict.fromkeys(("estimator", "basic_window", "confidence"), ("qjoin",)),
    **dict.fromkeys(("adapt_every", "granularity"), _ADAPTIVE),
    "slack": ("k_slack",),
}


@dataclass(frozen=True, slots=True)
class JoinStrategy:
    """How the join is run; durations in microseconds. ``slack_us`` is None but for ``k_slack``."""

    name: str
    estimator: str
    adapt_every_us: int
    granularity_us: int
    basic_window_us: int
    slack_us: int | None
    gamma_us: int
    confidence: float

    @property
    def reorders(self) -> bool:
        """Does a row wait in a reorder buffer before it is joined?"""
        return self.name in REORDERING


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSpec(Spec):
    """A join query. `keys` are pairs (left column, right column); `select` None means every column."""

    kind: ClassVar[str] = "join"
    keys: tuple[tuple[str, str], ...]
    window_us: int
    where: ex.Expr | None
    select: tuple[ex.SelectItem, ...] | None
    recall: float
    strategy: JoinStrategy

    @property
    def adapts(self) -> bool:
        """Retention follows what was seen; where nothing may be lost, all is kept."""
        return self.strategy.name == "qjoin" and not (self.strategy.estimator == "calibrated" and self.target >= 1)

    @property
    def target(self) -> float:
        """Least share of a period's pairs that are produced on time."""
        return self.recall

    @property
    def confidence(self) -> float:
        """Share of periods that retention is chosen to keep."""
        return self.strategy.confidence

    @property
    def result_keys(self) -> tuple[str, ...]:
        """The two rows of a pair."""
        return tuple(f"{alias}_seq" for alias, _ in self.streams)

    @property
    def selects_all(self) -> bool:
        """Nothing is selected."""
        return self.select is None

    def everything(self, columns: Mapping[str, Sequence[str]]) -> list[tuple[str, str, str]]:
        """All columns of both streams, ``seq`` and ``event_ts`` first."""
        if not self.selects_all:
            return []
        first = ("seq", "event_ts")
        named = [(alias, (*first, *(n for n in columns[stream] if n not in first))) for alias, stream in self.streams]
        return [(f"{alias}_{name}", alias, name) for alias, names in named for name in names]

    def expressions(self) -> Iterator[tuple[str, ex.Expr, str | None]]:
        """Keys are comparable."""
        left, right = (alias for alias, _ in self.streams)
        for a, b in self.keys:
            yield "keys", ex.Binary("=", ex.Column(left, a), ex.Column(right, b)), None
        if self.where is not None:
            yield "where", self.where, "bool"
        for place, item in enumerate(self.select or ()):
            yield f"select[{place}]", item.expr, None

    def question(self) -> dict[str, Any]:
        """The rest of what the query computes."""
        return {
            "keys": jsonable(self.keys),
            "window_us": self.window_us,
            "where": jsonable(self.where),
            "select": jsonable(self.select),
            "quality": {"recall": self.recall, "period_us": self.period_us},
            "strategy": jsonable(self.strategy),
        }


def parse(reader: Reader, name: str) -> JoinSpec:
    """A join's spec from the rest of its file.

    Raises
    ------
    SpecError
        With file, key, value and remedy.
    """
    streams = streams_of(reader, 2, 2)
    aliases = tuple(alias for alias, _ in streams)
    fixed_columns_of(reader, aliases)
    window_us = reader.duration("window")
    keys = _keys(reader, aliases)
    where = where_of(reader, aliases)
    carried = {f"{alias}_{column}": ex.Column(alias, column) for alias in aliases for column in ("seq", "event_ts")}
    select = select_of(reader, aliases, (), STORED, carried)
    inner, strategy_name = strategy_of(reader, STRATEGIES, "qjoin", _USES)
    quality = _quality(reader, strategy_name, streams)
    strategy = _strategy(inner, strategy_name, window_us, quality["period_us"])
    return JoinSpec(
        name=name,
        streams=streams,
        keys=keys,
        window_us=window_us,
        where=where,
        select=select,
        strategy=strategy,
        **quality,
        **rest_of(reader),
    )


def _keys(reader: Reader, aliases: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """``keys: [column]``, of both streams, or ``{left: column, right: column}``, each with or without its alias in front."""
    value = reader.take("keys", ())
    if isinstance(value, dict):
        inner = Reader(value, reader.source, "keys")
        sides = []
        for alias in aliases:
            columns = inner.take(alias)
            listed = columns if isinstance(columns, list) else [columns]
            if not listed or not all(isinstance(column, str) and column for column in listed):
                raise inner.fail(alias, columns, "must be a column or a list of columns", "write a column's name")
            for column in listed:
                of = _alias(column, aliases)
                if of not in (None, alias):
                    raise of_another(inner, alias, column, of)
            sides.append([column.removeprefix(f"{alias}.") for column in listed])
        inner.done()
        if len(sides[0]) != len(sides[1]):
            raise reader.fail("keys", value, "has more columns for one stream than for the other", "pair them up")
        return tuple((stored_name(a), stored_name(b)) for a, b in zip(sides[0], sides[1], strict=True))
    if value == ():
        return ()
    if not isinstance(value, list) or not value or not all(isinstance(column, str) and column for column in value):
        raise reader.fail(
            "keys", value, "must be a list of columns", f"write [column] or {{{aliases[0]}: a, {aliases[1]}: b}}"
        )
    for place, column in enumerate(value):
        of = _alias(column, aliases)
        if of is not None:
            name = column.removeprefix(f"{of}.")
            problem = f"is a column of {of} alone, but is taken of both streams"
            remedy = f"write {name}, or {{{aliases[0]}: {name}, {aliases[1]}: {name}}}"
            raise reader.fail(f"keys[{place}]", column, problem, remedy)
    return tuple((stored_name(column), stored_name(column)) for column in value)


def _alias(column: str, aliases: tuple[str, ...]) -> str | None:
    """The alias in front of a column's name; None: there is none."""
    return next((alias for alias in aliases if column.startswith(f"{alias}.") and column != f"{alias}."), None)


def _quality(reader: Reader, strategy: str, streams: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    inner = quality_of(reader, strategy, _ADAPTIVE, "recall: 0.95, period: 60 s")
    steered = strategy in _ADAPTIVE
    bounds: dict[str, Any] = {"low": 0.0, "high": 1.0, "open_low": True}
    recall = inner.number("recall", **bounds) if steered else inner.number("recall", 0.95, **bounds)
    period_us = inner.duration("period") if steered else inner.duration("period", 60_000_000)
    stated = steered or inner.given("recall")
    return {"recall": recall, "period_us": period_us, "stated": stated, **bounds_of(inner, streams)}


def _strategy(inner: Reader, name: str, window_us: int, period_us: int) -> JoinStrategy:
    estimator, adapt_every_us = "calibrated", max(period_us // 60, 1)
    granularity_us = basic_window_us = max(window_us // 200, 1_000)
    slack_us, confidence = None, CONFIDENCE
    if name == "qjoin":
        estimator = inner.choice("estimator", ESTIMATORS, estimator)
        basic_window_us = inner.duration("basic_window", basic_window_us)
        confidence = inner.number("confidence", confidence, low=0.5, high=0.9999)
    if name in _ADAPTIVE:
        adapt_every_us = inner.duration("adapt_every", adapt_every_us)
        longest_us = max(period_us, window_us)
        finest_us = max(granularity_us, -(-longest_us // _MOST_GRANULES))
        granularity_us = inner.duration("granularity", finest_us)
        if adapt_every_us > period_us:
            raise inner.fail(
                "adapt_every", shown(adapt_every_us), "is longer than the quality period", "choose a shorter time"
            )
        if longest_us // granularity_us > _MOST_GRANULES:
            raise inner.fail(
                "granularity", shown(granularity_us), "is too fine for this period or window", "choose a longer time"
            )
    if name == "k_slack":
        slack_us = inner.duration("slack", zero=True)
    gamma_us = inner.duration("gamma", period_us)
    inner.done()
    return JoinStrategy(
        name, estimator, adapt_every_us, granularity_us, basic_window_us, slack_us, gamma_us, confidence
    )
