"""``kind: aggregate``: sums, counts and quantiles over sliding windows, with a bound on their error.

Defaults, with their source: ``kp`` 0.2, ``kd`` 4, ``gamma`` 5 s, ``error`` 0.05 and ``probability`` 0.95 are the paper's (HPM, its
evaluation; :mod:`latecomer.core.windows.slack_policies`). Ours: the strategy ``calibrated``, which kept the promise where ``hpm`` did not (see the
benchmark); ``alpha`` starts at 1, the whole of the largest delay, so the first windows wait longest; ``observe``, how long after its end
a window's stragglers are counted before the controller learns from it, is one window size for ``hpm`` and as long as the largest delay so
far, at most 16 windows, for ``calibrated``; the quality period of a query without one is 60 s or a window, whichever is longer.

`target` is the probability: the share of a period's windows whose error must stay below `error`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from latecomer.specs import expressions as ex
from latecomer.specs.clauses import group_by_of, jsonable, quality_of, result_name, strategy_of, where_of
from latecomer.specs.reader import Reader, streams_of
from latecomer.specs.spec import CONFIDENCE, Answers, bounds_of, rest_of
from latecomer.specs.windows import WINDOW, Window, WindowedSpec, window_of

STRATEGIES = ("hpm", "calibrated", "mp_k_slack", "aq_k_slack", "k_slack", "exact")
FUNCTIONS = {
    "count": (0, 1),
    "sum": (1, 1),
    "avg": (1, 1),
    "min": (1, 1),
    "max": (1, 1),
    "median": (1, 1),
    "quantile": (2, 2),
}
"""Function to the least and most arguments it takes."""
FIXED = (*WINDOW, "rows", "coverage")
_STEERED = ("hpm", "calibrated", "aq_k_slack")
_USES = {
    "kp": ("hpm", "aq_k_slack"),
    "kd": ("hpm", "aq_k_slack"),
    "alpha": ("hpm", "aq_k_slack"),
    "observe": _STEERED,
    "confidence": ("calibrated",),
    "slack": ("k_slack",),
}


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One result column. `argument` is None for ``count()``; `q` is None but for ``quantile``."""

    name: str
    function: str
    argument: ex.Expr | None
    q: float | None


@dataclass(frozen=True, slots=True)
class AggregateStrategy:
    """How windows are closed; durations in microseconds. ``slack_us`` is None but for ``k_slack``,
    ``observe_us`` where it follows the delays."""

    name: str
    gamma_us: int
    kp: float
    kd: float
    alpha: float
    observe_us: int | None
    slack_us: int | None
    shards: int
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSpec(WindowedSpec):
    """An aggregate query: ``P(error >= error) <= 1 - probability`` per period of `period_us`."""

    kind: ClassVar[str] = "aggregate"
    select: tuple[Aggregate, ...]
    where: ex.Expr | None
    error: float
    probability: float
    strategy: AggregateStrategy

    @property
    def adapts(self) -> bool:
        """The slack follows what was seen."""
        return self.strategy.name in _STEERED

    @property
    def target(self) -> float:
        """Least share of windows that are within the error."""
        return self.probability

    @property
    def confidence(self) -> float:
        """Share of periods that the slack is chosen to keep."""
        return self.strategy.confidence

    @property
    def answers(self) -> Answers:
        """One row per group and window."""
        return Answers.REVISED

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Group and window."""
        return (*self.group_by, *WINDOW)

    @property
    def shards(self) -> int:
        """As many as the strategy says, of groups; without groups there is nothing to share out."""
        return self.strategy.shards if self.group_by else 1

    @property
    def observe_us(self) -> int | None:
        """As long as the strategy says."""
        return self.strategy.observe_us

    def expressions(self) -> Iterator[tuple[str, ex.Expr, str | None]]:
        """Aggregated values are numbers; ``min`` and ``max`` take any plain value, ``count`` anything."""
        alias = self.streams[0][0]
        for place, name in enumerate(self.group_by):
            yield f"group_by[{place}]", ex.Column(alias, name), "plain"
        for each in self.select:
            if each.argument is not None:
                kind = {"count": None, "min": "plain", "max": "plain"}.get(each.function, "number")
                yield f"select.{each.name}", each.argument, kind
        if self.where is not None:
            yield "where", self.where, "bool"

    def question(self) -> dict[str, Any]:
        """The rest of what the query computes."""
        return {
            "group_by": jsonable(self.group_by),
            "window": jsonable(self.window),
            "select": jsonable(self.select),
            "where": jsonable(self.where),
            "quality": {"error": self.error, "probability": self.probability, "period_us": self.period_us},
            "strategy": jsonable(self.strategy),
        }


def parse(reader: Reader, name: str) -> AggregateSpec:
    """An aggregate's spec from the rest of its file.

    Raises
    ------
    SpecError
        With file, key, value and remedy.
    """
    streams = streams_of(reader, 1, 1)
    alias = streams[0][0]
    window = window_of(reader)
    group_by = group_by_of(reader, alias, FIXED)
    select = _select(reader, alias, group_by)
    where = where_of(reader, (alias,))
    inner, strategy_name = strategy_of(reader, STRATEGIES, "calibrated", _USES)
    quality = quality_of(reader, strategy_name, _STEERED, "error: 0.05, probability: 0.95, period: 1 d")
    error = quality.number("error", 0.05, low=0.0, high=1.0, open_low=True)
    probability = quality.number("probability", 0.95, low=0.5, high=0.9999)
    period_us = quality.duration("period", max(60_000_000, window.size_us))
    stated = strategy_name in _STEERED or quality.given("error") or quality.given("probability")
    bounds = bounds_of(quality, streams)
    strategy = _strategy(inner, strategy_name, window)
    return AggregateSpec(
        name=name,
        streams=streams,
        group_by=group_by,
        window=window,
        select=select,
        where=where,
        error=error,
        probability=probability,
        period_us=period_us,
        strategy=strategy,
        stated=stated,
        **bounds,
        **rest_of(reader),
    )


def _select(reader: Reader, alias: str, group_by: tuple[str, ...]) -> tuple[Aggregate, ...]:
    inner = reader.mapping("select")
    assert inner is not None
    found: list[Aggregate] = []
    for name, text in inner.items():
        result_name(inner, name, name, (*group_by, *FIXED, *(other.name for other in found)))
        if not isinstance(text, str):
            raise inner.fail(name, text, "is not an aggregate", "write, for example, count() or avg(column)")
        found.append(_aggregate(inner, name, text, alias))
    if not found:
        raise reader.fail("select", None, "has no aggregate", "write, for example, {rows_seen: count()}")
    return tuple(found)


def _aggregate(inner: Reader, name: str, text: str, alias: str) -> Aggregate:
    key = inner.key(name)
    function, args = ex.parse_call(text, source=inner.source, key=key, aliases=(alias,), functions=FUNCTIONS)
    if function not in FUNCTIONS:
        raise inner.fail(name, text, f"{function}() is not an aggregate", f"use one of {', '.join(FUNCTIONS)}")
    q = None
    if function == "quantile":
        given = args[1].value if isinstance(args[1], ex.Literal) else None
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1:
            raise inner.fail(
                name,
                text,
                "the second argument of quantile() is not a number from 0 to 1",
                "write, for example, quantile(x, 0.9)",
            )
        q = float(given)
    return Aggregate(name, function, args[0] if args else None, q)


def _strategy(inner: Reader, name: str, window: Window) -> AggregateStrategy:
    found = AggregateStrategy(
        name=name,
        gamma_us=inner.duration("gamma", 5_000_000),
        kp=inner.number("kp", 0.2, low=0.0, high=1_000.0),
        kd=inner.number("kd", 4.0, low=0.0, high=1_000.0),
        alpha=inner.number("alpha", 1.0, low=0.0, high=1.0),
        observe_us=inner.duration("observe", None if name == "calibrated" else window.size_us),
        slack_us=inner.duration("slack", zero=True) if name == "k_slack" else None,
        shards=inner.number("shards", 1, low=1, high=10_000, whole=True),
        confidence=inner.number("confidence", CONFIDENCE, low=0.5, high=0.9999),
    )
    inner.done()
    return found
