"""``kind: aggregate``: sums, counts and quantiles over sliding windows, with a bound on their error.

The target is the least share of a period's windows whose error is below `error`: ``P(error < bound) >= target``.

Defaults: ``kp`` 0.2, ``kd`` 4, ``gamma`` 5 s, ``error`` 0.05 and ``probability`` 0.95 are the paper's (HPM, its
evaluation; :mod:`latecomer.core.windows.slack_policies`). These are ours:

* The strategy is ``calibrated``, which reached the target where ``hpm`` did not (see the benchmark).
* ``alpha`` starts at 1, the whole largest delay, so the first windows wait longest.
* ``observe`` is the time after a window's end until the controller learns from its late rows: one window size for
  ``hpm``; for ``calibrated`` 16 to 64 windows, as the delays need, and longer where more than one row in a thousand
  comes later.
* ``period`` is 60 s or a window, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from latecomer.core.windows.grid import Grid
from latecomer.specs import expressions as ex
from latecomer.specs.clauses import (
    check_result_name,
    open_quality,
    open_strategy,
    parse_group_by,
    parse_where,
    to_json,
)
from latecomer.specs.fragments import MAPPING, TEXT
from latecomer.specs.names import ALIAS
from latecomer.specs.reader import Reader, parse_streams
from latecomer.specs.spec import (
    Answers,
    RequiredType,
    Signature,
    parse_bounds,
    parse_confidence,
    parse_details,
    parse_period,
)
from latecomer.specs.windows import WINDOW, RevisedSpec, RevisedStrategy, parse_revise, parse_waits, parse_window

STRATEGIES = ("hpm", "calibrated", "mp_k_slack", "aq_k_slack", "k_slack", "exact")
DEFAULT_STRATEGY = "calibrated"
FUNCTIONS = {
    "count": (0, 1),
    "sum": (1, 1),
    "avg": (1, 1),
    "min": (1, 1),
    "max": (1, 1),
    "median": (1, 1),
    "quantile": (2, 2),
}
"""Aggregate functions -> the least and most arguments they take."""
FIXED = (*WINDOW, "rows", "coverage")
"""Result columns that every query has."""
_ADAPTIVE = ("hpm", "calibrated", "aq_k_slack")
_USES = {
    "kp": ("hpm", "aq_k_slack"),
    "kd": ("hpm", "aq_k_slack"),
    "alpha": ("hpm", "aq_k_slack"),
    "observe": _ADAPTIVE,
    "confidence": ("calibrated",),
    "slack": ("k_slack",),
}


_SELECT = MAPPING | {
    "minProperties": 1,
    "patternProperties": {f"^{ALIAS.pattern}$": TEXT},
    "additionalProperties": {"type": "null"},
}
"""JSON Schema of ``select``. Editors split ``{p90: quantile(x, 0.9)}`` at its comma, and see a key without a value."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate as a result column. `argument` is None for ``count()``; `q` is None except for ``quantile``."""

    name: str
    function: str
    argument: ex.Expr | None
    q: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateStrategy(RevisedStrategy):
    """The strategy of an aggregate: how long windows wait. Durations are in microseconds.

    Attributes
    ----------
    kp, kd, alpha : float
        Gains of the proportional-derivative controller, and its first slack as a share of the largest delay.
    observe_us : int or None
        Time after a window's end until its final observation; None: it follows the delays.
    slack_us : int or None
        The constant slack of ``k_slack``; None for other strategies.
    shards : int
        Number of parts of the groups that have a slack of their own.
    """

    kp: float
    kd: float
    alpha: float
    observe_us: int | None
    slack_us: int | None
    shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSpec(RevisedSpec):
    """An aggregate query.

    Attributes
    ----------
    aggregates : tuple of Aggregate
        The result columns beside groups and windows.
    error : float
        The bound: the relative error of an answer is to be below it.
    """

    kind: ClassVar[str] = "aggregate"
    target_key: ClassVar[str] = "probability"
    adaptive: ClassVar[tuple[str, ...]] = _ADAPTIVE
    aggregates: tuple[Aggregate, ...]
    error: float
    strategy: AggregateStrategy

    @property
    def answers(self) -> Answers:
        """One row per group and window."""
        return Answers.REVISED

    @property
    def result_keys(self) -> tuple[str, ...]:
        """The group and the window."""
        return (*self.group_by, *WINDOW)

    @property
    def shards(self) -> int:
        """The strategy's number of shards; 1 without groups."""
        return self.strategy.shards if self.group_by else 1

    @property
    def observe_us(self) -> int | None:
        """The strategy's time until a window's final observation, microseconds; None: it follows the delays."""
        return self.strategy.observe_us

    def _kind_expressions(self) -> Iterator[tuple[str, ex.Expr, RequiredType]]:
        for place, column in enumerate(self.group_columns):
            yield f"group_by[{place}]", column, "plain"
        required: dict[str, RequiredType] = {"count": None, "min": "plain", "max": "plain"}
        for aggregate in self.aggregates:
            if aggregate.argument is not None:
                yield f"select.{aggregate.name}", aggregate.argument, required.get(aggregate.function, "number")

    def _kind_signature(self) -> Signature:
        return {
            "group_by": self._group_signature(),
            "window": to_json(self.window),
            "select": to_json(self.aggregates),
            "where": to_json(self.where),
        }

    def _quality_signature(self) -> Signature:
        return {"error": self.error, self.target_key: self.target}


def parse(reader: Reader, name: str) -> AggregateSpec:
    """Read an aggregate's spec from the keys that are left of its file.

    Raises
    ------
    SpecError
        For any fault: file, key, value, problem and remedy.
    """
    streams = parse_streams(reader, 1, 1)
    alias = streams[0][0]
    window = parse_window(reader)
    group_by, group_fields = parse_group_by(reader, alias, FIXED)
    aggregates = _parse_aggregates(reader, alias, group_by)
    where = parse_where(reader, (alias,))
    inner, strategy = open_strategy(reader, STRATEGIES, DEFAULT_STRATEGY, _USES)
    quality = open_quality(reader, strategy, _ADAPTIVE, "error: 0.05, probability: 0.95, period: 1 d")
    return AggregateSpec(
        name=name,
        streams=streams,
        group_by=group_by,
        group_fields=group_fields,
        window=window,
        aggregates=aggregates,
        where=where,
        error=quality.number("error", 0.05, low=0.0, high=1.0, above_low=True),
        target=quality.number("probability", 0.95, low=0.5, high=0.9999),
        period_us=parse_period(quality, window.size_us),
        promises=strategy in _ADAPTIVE or quality.given("error") or quality.given("probability"),
        **parse_waits(quality, learns=strategy == "calibrated", remedy="choose calibrated, or remove it"),
        **parse_bounds(quality, streams),
        confidence=parse_confidence(inner),
        strategy=_parse_strategy(inner, strategy, window),
        **parse_details(reader),
    )


def _parse_aggregates(reader: Reader, alias: str, group_by: tuple[str, ...]) -> tuple[Aggregate, ...]:
    inner = reader.mapping("select", _SELECT)
    aggregates: list[Aggregate] = []
    for name, text in inner.items():
        check_result_name(inner, name, (*group_by, *FIXED, *(other.name for other in aggregates)))
        if not isinstance(text, str):
            raise inner.fail(name, text, "is not an aggregate", "write, for example, count() or avg(column)")
        aggregates.append(_parse_aggregate(inner, name, text, alias))
    if not aggregates:
        raise reader.fail("select", None, "has no aggregate", "write, for example, {rows_seen: count()}")
    return tuple(aggregates)


def _parse_aggregate(inner: Reader, name: str, text: str, alias: str) -> Aggregate:
    key = inner.key(name)
    function, args = ex.parse_call(text, source=inner.source, key=key, aliases=(alias,), functions=FUNCTIONS)
    if function not in FUNCTIONS:
        raise inner.fail(name, text, f"{function}() is not an aggregate", f"use one of {', '.join(FUNCTIONS)}")
    q = None
    if function == "quantile":
        share = ex.literal_number(args[1])
        if share is None or not 0 <= share <= 1:
            problem = "the second argument of quantile() is not a number from 0 to 1"
            raise inner.fail(name, text, problem, "write, for example, quantile(x, 0.9)")
        q = float(share)  # signatures tell 1 from 1.0
    return Aggregate(name, function, args[0] if args else None, q)


def _parse_strategy(inner: Reader, name: str, window: Grid) -> AggregateStrategy:
    shards = inner.whole_number("shards", 1, low=1, high=10_000)
    strategy = AggregateStrategy(
        name=name,
        revise=parse_revise(inner, shards),
        gamma_us=inner.duration("gamma", 5_000_000),
        kp=inner.number("kp", 0.2, low=0.0, high=1_000.0),
        kd=inner.number("kd", 4.0, low=0.0, high=1_000.0),
        alpha=inner.number("alpha", 1.0, low=0.0, high=1.0),
        observe_us=inner.duration("observe", None if name == "calibrated" else window.size_us),
        slack_us=inner.duration("slack", zero=True) if name == "k_slack" else None,
        shards=shards,
    )
    inner.done()
    return strategy
