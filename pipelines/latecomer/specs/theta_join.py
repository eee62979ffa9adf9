"""``kind: theta_join``: streams joined by ``<, <=, >, >=, =`` within each window.

A window is answered once, and repair adds what came later. How long it waits after its end in stream time is chosen for ``quality: {recall:
...}``, the share of a period's results that are to be there at once (matches, where they are counted; ranges are not), or it is the
constant ``slack`` (0 where neither is given). The ledger's period is 60 s or a window, whichever is longer, and ``gamma`` is one period. ``partitions`` is for speed alone and may be changed at any time: into how many a window that is too large for one task
(:data:`latecomer.core.theta_join.plan.PIECE_ROWS`) is cut, by its rows where it is not given; for rivals, any window, into
:data:`latecomer.core.theta_join.plan.PARTITIONS` where it is not given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from latecomer.specs import expressions as ex
from latecomer.specs.clauses import filters_of, fixed_columns_of, jsonable, quality_of, select_of, strategy_of
from latecomer.specs.reader import Reader, streams_of, texts
from latecomer.specs.spec import Answers, bounds_of, rest_of
from latecomer.specs.windows import WINDOW, WaitingSpec, wait_of, window_of

STRATEGIES = ("fast_theta_join", "cfs", "one_bucket", "spark_sql", "cross_product")
EMITS = ("rows", "count", "ranges")
OPERATORS = ("<", "<=", ">", ">=", "=")
_USES = {"partitions": ("fast_theta_join", "cfs", "one_bucket")}


@dataclass(frozen=True, slots=True)
class Condition:
    """``left op right``; each side reads exactly one alias, and the two aliases differ."""

    left: ex.Expr
    op: str
    right: ex.Expr

    @property
    def aliases(self) -> tuple[str, str]:
        """The alias of each side."""
        return _alias(self.left), _alias(self.right)


@dataclass(frozen=True, slots=True)
class ThetaJoinStrategy:
    """How the join is run; the result is the same for all. `partitions` None: as many as a window's rows need."""

    name: str
    partitions: int | None
    gamma_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThetaJoinSpec(WaitingSpec):
    """A theta join. `select` None means every column; it applies to ``emit: rows`` only."""

    kind: ClassVar[str] = "theta_join"
    conditions: tuple[Condition, ...]
    emit: str
    select: tuple[ex.SelectItem, ...] | None
    strategy: ThetaJoinStrategy

    @property
    def answers(self) -> Answers:
        """Rows are answers themselves; their number, and the ranges that stand for them, are one answer a window."""
        return {"rows": Answers.ADDED, "count": Answers.REVISED, "ranges": Answers.REPLACED}[self.emit]

    @property
    def result_keys(self) -> tuple[str, ...]:
        """The window, and in it the row of each stream, or the place of a range."""
        rest = {
            "rows": tuple(f"{alias}_seq" for alias, _ in self.streams),
            "count": (),
            "ranges": ("edge", "part", "position", "seq", "first"),
        }
        return (*WINDOW, *rest[self.emit])

    @property
    def selects_all(self) -> bool:
        """Rows are emitted, and nothing is selected."""
        return self.select is None and self.emit == "rows"

    def everything(self, columns: Mapping[str, Sequence[str]]) -> list[tuple[str, str, str]]:
        """All columns of every stream, ``seq`` apart: it stands before them."""
        if not self.selects_all:
            return []
        return [
            (f"{alias}_{name}", alias, name)
            for alias, stream in self.streams
            for name in columns[stream]
            if name != "seq"
        ]

    def expressions(self) -> Iterator[tuple[str, ex.Expr, str | None]]:
        """Every condition compares like with like."""
        for place, each in enumerate(self.conditions):
            yield f"conditions[{place}]", ex.Binary(each.op, each.left, each.right), "bool"
            yield f"conditions[{place}]", each.left, "plain"
            yield f"conditions[{place}]", each.right, "plain"
        yield from self.filters()
        for place, item in enumerate(self.select or ()):
            yield f"select[{place}]", item.expr, None

    def question(self) -> dict[str, Any]:
        """The rest of what the query computes."""
        quality, strategy = self.wait.question()
        return {
            "window": jsonable(self.window),
            "conditions": jsonable(self.conditions),
            **({} if self.where is None else {"where": jsonable(self.where)}),
            "emit": self.emit,
            "select": jsonable(self.select),
            "quality": {"period_us": self.period_us, **quality},
            "strategy": {**jsonable(replace(self.strategy, partitions=None)), **strategy},
        }


def parse(reader: Reader, name: str) -> ThetaJoinSpec:
    """A theta join's spec from the rest of its file.

    Raises
    ------
    SpecError
        With file, key, value and remedy.
    """
    streams = streams_of(reader, 2, 64)
    aliases = tuple(alias for alias, _ in streams)
    window = window_of(reader)
    conditions = _conditions(reader, aliases)
    where = filters_of(reader, aliases, "compare two streams in `conditions`, or let each part between `and` read one")
    emit = reader.choice("emit", EMITS, "rows")
    fixed = (*WINDOW, *fixed_columns_of(reader, aliases))
    if emit != "rows" and reader.has("select"):
        raise reader.fail(
            "select", reader.take("select", None), f"has no rows to apply to with emit: {emit}", "remove it"
        )
    select = select_of(reader, aliases, fixed)
    inner, strategy_name = strategy_of(reader, STRATEGIES, "fast_theta_join", _USES)
    if emit == "ranges" and strategy_name != "fast_theta_join":
        raise reader.fail("emit", emit, f"is not possible with {strategy_name}", "choose fast_theta_join, or emit rows")
    quality = quality_of(reader, strategy_name, (), "recall: 0.95, period: 1 d")
    period_us = quality.duration("period", max(60_000_000, window.size_us))
    wait = wait_of(quality, inner)
    if emit == "ranges" and wait.recall is not None:
        remedy = "choose emit: rows or count, or write strategy: {slack: ...} in its place"
        raise quality.fail("recall", wait.recall, "is not counted of results with emit: ranges", remedy)
    bounds = bounds_of(quality, streams)
    strategy = ThetaJoinStrategy(
        strategy_name,
        inner.number("partitions", None, low=1, high=256, whole=True),
        inner.duration("gamma", period_us),
    )
    inner.done()
    return ThetaJoinSpec(
        name=name,
        streams=streams,
        window=window,
        conditions=conditions,
        where=where,
        emit=emit,
        select=select,
        period_us=period_us,
        strategy=strategy,
        wait=wait,
        stated=wait.recall is not None,
        **bounds,
        **rest_of(reader),
    )


def _alias(side: ex.Expr) -> str:
    return next(iter(ex.columns(side))).alias


def _conditions(reader: Reader, aliases: tuple[str, ...]) -> tuple[Condition, ...]:
    found: list[Condition] = []
    for place, text in enumerate(texts(reader, "conditions", ())):
        key = f"conditions[{place}]"
        parsed = ex.parse(text, source=reader.source, key=key, aliases=aliases)
        for part in ex.conjuncts(parsed):
            found.append(_condition(reader, key, text, part))
    if not found:
        raise reader.fail(
            "conditions", None, "is missing", f"write, for example, [{aliases[0]}.event_ts < {aliases[1]}.event_ts]"
        )
    reached = {aliases[0]}
    for _ in aliases:
        for condition in found:
            if reached & set(condition.aliases):
                reached |= set(condition.aliases)
    for alias in aliases:
        if alias not in reached:
            raise reader.fail(
                "conditions",
                alias,
                f"is not connected with {aliases[0]} by any condition",
                "add one, or remove the stream",
            )
    return tuple(found)


def _condition(reader: Reader, key: str, text: str, part: ex.Expr) -> Condition:
    read = {column.alias for column in ex.columns(part)}
    if len(read) == 1:
        remedy = "compare it with another stream, or write it as `where`, which says what rows take part"
        raise reader.fail(key, text, f"reads no stream but {read.pop()}", remedy)
    if not isinstance(part, ex.Binary) or part.op not in OPERATORS:
        raise reader.fail(key, text, f"is not a comparison by {', '.join(OPERATORS)}", "write, for example, r.x < s.x")
    sides = [{column.alias for column in ex.columns(side)} for side in (part.left, part.right)]
    for side, name in zip(sides, ("left", "right"), strict=True):
        if len(side) != 1:
            what = "no stream" if not side else f"{len(side)} streams"
            raise reader.fail(key, text, f"reads {what} on its {name} side", "let each side read exactly one stream")
    return Condition(part.left, part.op, part.right)
