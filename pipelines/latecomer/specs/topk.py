"""``kind: topk``: the k best rows by a score over sliding windows, with a least hit rate.

Defaults, with their source: ``candidates`` 10, ``windows`` 30, ``initial_wait`` 2 s, ``hit_rate`` 0.95 and ``k`` 5 in the examples are
the paper's (:mod:`latecomer.core.topk.adaptive_wait`). Ours: the strategy ``calibrated``, which keeps the hit rate in
95% of periods where ``adaptive_wait`` keeps it on average; ``min_step``, the finest difference between candidate waits, is a tenth of the
first step (``initial_wait / candidates / 10``, at least 1 ms); ``gamma`` is one period; the period of a query without one is 60 s
or a window, whichever is longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from latecomer.specs import expressions as ex
from latecomer.specs.clauses import group_by_of, jsonable, quality_of, select_of, strategy_of, where_of
from latecomer.specs.errors import SpecError
from latecomer.specs.names import folded
from latecomer.specs.reader import Reader, streams_of
from latecomer.specs.spec import CONFIDENCE, Answers, bounds_of, rest_of
from latecomer.specs.windows import WINDOW, WindowedSpec, window_of

STRATEGIES = ("adaptive_wait", "calibrated", "sma", "min_topk", "gs_topk", "none")
FIXED = (*WINDOW, "rank", "score", "seq", "event_ts")
_ORDERED = re.compile(r"(.*\S)\s+(?:asc|desc)\s*", re.IGNORECASE | re.DOTALL)
_STEERED = ("adaptive_wait", "calibrated")
_USES = {
    "candidates": ("adaptive_wait",),
    "windows": ("adaptive_wait",),
    "initial_wait": ("adaptive_wait",),
    "min_step": ("adaptive_wait",),
    "confidence": ("calibrated",),
}


@dataclass(frozen=True, slots=True)
class TopKStrategy:
    """How long a window waits for its stragglers; durations in microseconds."""

    name: str
    candidates: int
    windows: int
    initial_wait_us: int
    min_step_us: int
    gamma_us: int
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKSpec(WindowedSpec):
    """A top-k query. `select` None means every column of the stream."""

    kind: ClassVar[str] = "topk"
    score: ex.Expr
    k: int
    select: tuple[ex.SelectItem, ...] | None
    where: ex.Expr | None
    hit_rate: float
    strategy: TopKStrategy

    @property
    def adapts(self) -> bool:
        """The wait follows what was seen."""
        return self.strategy.name in _STEERED

    @property
    def target(self) -> float:
        """Least hit rate, ``|answer and final answer| / k``."""
        return self.hit_rate

    @property
    def confidence(self) -> float:
        """Share of periods that the wait is chosen to keep."""
        return self.strategy.confidence

    @property
    def answers(self) -> Answers:
        """The ranks of a group and window."""
        return Answers.RANKED

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Group, window and rank."""
        return (*self.group_by, *WINDOW, "rank")

    @property
    def selects_all(self) -> bool:
        """Nothing is selected."""
        return self.select is None

    def everything(self, columns: Mapping[str, Sequence[str]]) -> list[tuple[str, str, str]]:
        """All columns of the stream that no fixed result column names."""
        (alias, stream) = self.streams[0]
        fixed = {"seq", "event_ts", "score", "rank", *map(folded, self.group_by)}
        return [] if not self.selects_all else [(n, alias, n) for n in columns[stream] if folded(n) not in fixed]

    def expressions(self) -> Iterator[tuple[str, ex.Expr, str | None]]:
        """The score is a number."""
        alias = self.streams[0][0]
        for place, name in enumerate(self.group_by):
            yield f"group_by[{place}]", ex.Column(alias, name), "plain"
        yield "score", self.score, "number"
        for place, item in enumerate(self.select or ()):
            yield f"select[{place}]", item.expr, None
        if self.where is not None:
            yield "where", self.where, "bool"

    def question(self) -> dict[str, Any]:
        """The rest of what the query computes."""
        return {
            "group_by": jsonable(self.group_by),
            "score": jsonable(self.score),
            "k": self.k,
            "window": jsonable(self.window),
            "select": jsonable(self.select),
            "where": jsonable(self.where),
            "quality": {"hit_rate": self.hit_rate, "period_us": self.period_us},
            "strategy": jsonable(self.strategy),
        }


def parse(reader: Reader, name: str) -> TopKSpec:
    """A top-k query's spec from the rest of its file.

    Raises
    ------
    SpecError
        With file, key, value and remedy.
    """
    streams = streams_of(reader, 1, 1)
    aliases = (streams[0][0],)
    window = window_of(reader)
    group_by = group_by_of(reader, aliases[0], FIXED)
    score = _score(reader, aliases)
    k = reader.number("k", low=1, high=10_000, whole=True)
    select = select_of(reader, aliases, (*group_by, *FIXED))
    where = where_of(reader, aliases)
    inner, strategy_name = strategy_of(reader, STRATEGIES, "calibrated", _USES)
    quality = quality_of(reader, strategy_name, _STEERED, "hit_rate: 0.95, period: 1 d")
    hit_rate = quality.number("hit_rate", 0.95, low=0.0, high=1.0, open_low=True)
    period_us = quality.duration("period", max(60_000_000, window.size_us))
    stated = strategy_name in _STEERED or quality.given("hit_rate")
    bounds = bounds_of(quality, streams)
    strategy = _strategy(inner, strategy_name, period_us)
    return TopKSpec(
        name=name,
        streams=streams,
        group_by=group_by,
        score=score,
        k=k,
        window=window,
        select=select,
        where=where,
        hit_rate=hit_rate,
        period_us=period_us,
        strategy=strategy,
        stated=stated,
        **bounds,
        **rest_of(reader),
    )


def _score(reader: Reader, aliases: tuple[str, ...]) -> ex.Expr:
    text = reader.text("score")
    try:
        found = ex.parse(text, source=reader.source, key="score", aliases=aliases)
    except SpecError:
        ordered = _ORDERED.fullmatch(text)
        if ordered is None:
            raise
        value = ordered[1].strip()
        lowest = f"-{value}" if re.fullmatch(r"[\w.]+", value) else f"-({value})"
        problem = "names an order, but the highest scores are always taken"
        raise reader.fail("score", text, problem, f"write {value}, or {lowest} for the lowest") from None
    if not ex.columns(found):
        raise reader.fail("score", ex.to_text(found), "reads no column", "score rows by one of their columns")
    return found


def _strategy(inner: Reader, name: str, period_us: int) -> TopKStrategy:
    candidates = inner.number("candidates", 10, low=2, high=1_000, whole=True)
    windows = inner.number("windows", 30, low=1, high=100_000, whole=True)
    initial_wait_us = inner.duration("initial_wait", 2_000_000)
    min_step_us = inner.duration("min_step", max(initial_wait_us // candidates // 10, 1_000))
    gamma_us = inner.duration("gamma", period_us)
    confidence = inner.number("confidence", CONFIDENCE, low=0.5, high=0.9999)
    inner.done()
    return TopKStrategy(name, candidates, windows, initial_wait_us, min_step_us, gamma_us, confidence)
