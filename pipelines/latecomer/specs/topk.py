"""``kind: topk``: the k best rows by a score over sliding windows, with a target for the hit rate.

Defaults: ``candidates`` 10, ``windows`` 30, ``initial_wait`` 2 s, ``hit_rate`` 0.95, and ``k`` 5 in the examples, are
the paper's (:mod:`latecomer.core.topk.adaptive_wait`). These are ours:

* The strategy is ``calibrated``, which reaches the hit rate in 95% of periods. ``adaptive_wait`` reaches it on average.
* ``min_step``, the least difference between candidate waits, is a tenth of the first step, ``initial_wait /
  candidates``, and at least 1 ms.
* ``gamma`` is one period, and ``period`` is 60 s or a window, whichever is longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from latecomer.specs import expressions as ex
from latecomer.specs.clauses import open_quality, open_strategy, parse_group_by, parse_select, parse_where, to_json
from latecomer.specs.errors import SpecError
from latecomer.specs.names import fold_case
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

STRATEGIES = ("adaptive_wait", "calibrated", "sma", "min_topk", "gs_topk", "none")
DEFAULT_STRATEGY = "calibrated"
FIXED = (*WINDOW, "rank", "score", "seq", "event_ts")
"""Result columns that every query has."""
_ORDERED = re.compile(r"(.*\S)\s+(?:asc|desc)\s*", re.IGNORECASE | re.DOTALL)
_ADAPTIVE = ("adaptive_wait", "calibrated")
_USES = {
    "candidates": ("adaptive_wait",),
    "windows": ("adaptive_wait",),
    "initial_wait": ("adaptive_wait",),
    "min_step": ("adaptive_wait",),
    "confidence": ("calibrated",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKStrategy(RevisedStrategy):
    """The strategy of a top-k query: how long windows wait. Durations are in microseconds.

    Attributes
    ----------
    candidates : int
        Number of waits among which ``adaptive_wait`` chooses.
    windows : int
        Number of observed windows between two choices.
    initial_wait_us, min_step_us : int
        The first wait, and the least difference between two candidates.
    """

    candidates: int
    windows: int
    initial_wait_us: int
    min_step_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKSpec(RevisedSpec):
    """A top-k query. Its target is the least hit rate: rows in both the first and the final answer, divided by k.

    Attributes
    ----------
    score : Expr
        The number by which rows are ranked, highest first.
    k : int
        Number of rows in an answer.
    """

    kind: ClassVar[str] = "topk"
    target_key: ClassVar[str] = "hit_rate"
    adaptive: ClassVar[tuple[str, ...]] = _ADAPTIVE
    score: ex.Expr
    k: int
    strategy: TopKStrategy

    @property
    def answers(self) -> Answers:
        """The ranks of a group and window."""
        return Answers.RANKED

    @property
    def result_keys(self) -> tuple[str, ...]:
        """The group, the window and the rank."""
        return (*self.group_by, *WINDOW, "rank")

    def _default_names(self, names: Sequence[str]) -> list[str]:
        fixed = {"seq", "event_ts", "score", "rank", *map(fold_case, self.group_by)}
        return [name for name in names if fold_case(name) not in fixed]

    def _kind_expressions(self) -> Iterator[tuple[str, ex.Expr, RequiredType]]:
        for place, column in enumerate(self.group_columns):
            yield f"group_by[{place}]", column, "plain"
        yield "score", self.score, "number"

    def _kind_signature(self) -> Signature:
        return {
            "group_by": self._group_signature(),
            "score": to_json(self.score),
            "k": self.k,
            "window": to_json(self.window),
            "select": to_json(self.select),
            "where": to_json(self.where),
        }


def parse(reader: Reader, name: str) -> TopKSpec:
    """Read a top-k query's spec from the keys that are left of its file.

    Raises
    ------
    SpecError
        For any fault: file, key, value, problem and remedy.
    """
    streams = parse_streams(reader, 1, 1)
    aliases = (streams[0][0],)
    window = parse_window(reader)
    group_by, group_fields = parse_group_by(reader, aliases[0], FIXED)
    score = _parse_score(reader, aliases)
    k = reader.whole_number("k", low=1, high=10_000)
    select = parse_select(reader, aliases, (*group_by, *FIXED))
    where = parse_where(reader, aliases)
    inner, strategy = open_strategy(reader, STRATEGIES, DEFAULT_STRATEGY, _USES)
    quality = open_quality(reader, strategy, _ADAPTIVE, "hit_rate: 0.95, period: 1 d")
    target = quality.number("hit_rate", 0.95, low=0.0, high=1.0, above_low=True)
    period_us = parse_period(quality, window.size_us)
    return TopKSpec(
        name=name,
        streams=streams,
        group_by=group_by,
        group_fields=group_fields,
        score=score,
        k=k,
        window=window,
        select=select,
        where=where,
        target=target,
        period_us=period_us,
        promises=strategy in _ADAPTIVE or quality.given("hit_rate"),
        **parse_waits(quality, learns=strategy == "calibrated", remedy="choose calibrated, or remove it"),
        **parse_bounds(quality, streams),
        confidence=parse_confidence(inner),
        strategy=_parse_strategy(inner, strategy, period_us),
        **parse_details(reader),
    )


def _parse_score(reader: Reader, aliases: tuple[str, ...]) -> ex.Expr:
    text = reader.text("score")
    try:
        score = ex.parse(text, source=reader.source, key="score", aliases=aliases)
    except SpecError:
        ordered = _ORDERED.fullmatch(text)
        if ordered is None:
            raise
        value = ordered[1].strip()
        lowest = f"-{value}" if re.fullmatch(r"[\w.]+", value) else f"-({value})"
        problem = "names an order, but the highest scores are always taken"
        raise reader.fail("score", text, problem, f"write {value}, or {lowest} for the lowest") from None
    if not ex.columns(score):
        raise reader.fail("score", ex.to_text(score), "reads no column", "score rows by one of their columns")
    return score


def _parse_strategy(inner: Reader, name: str, period_us: int) -> TopKStrategy:
    candidates = inner.whole_number("candidates", 10, low=2, high=1_000)
    windows = inner.whole_number("windows", 30, low=1, high=100_000)
    initial_wait_us = inner.duration("initial_wait", 2_000_000)
    min_step_us = inner.duration("min_step", max(initial_wait_us // candidates // 10, 1_000))
    gamma_us = inner.duration("gamma", period_us)
    revise = parse_revise(inner)
    inner.done()
    return TopKStrategy(
        name=name,
        gamma_us=gamma_us,
        revise=revise,
        candidates=candidates,
        windows=windows,
        initial_wait_us=initial_wait_us,
        min_step_us=min_step_us,
    )
