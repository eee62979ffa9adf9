"""``kind: theta_join``: streams joined by ``<, <=, >, >=, =`` within each window.

A window is answered once; what comes later is recalled, where a recall is stated, and repaired. The slack, how long a
window waits after its end in stream time, is chosen for ``quality: {recall: ...}``, the share of a period's results
(matches, where they are counted) that are on time. It may also be the constant ``slack``; where neither is given it is
0. ``emit: ranges`` takes no recall.

``period`` is 60 s or a window, whichever is longer, and ``gamma`` is one period. ``partitions`` changes the speed
alone, so it may be changed at any time. It is the number of parts into which a window is cut that is too large for one
task (:data:`latecomer.core.theta_join.plan.PIECE_ROWS`); without it, the window's rows decide. The published baselines
cut every window, by default into :data:`latecomer.core.theta_join.plan.PARTITIONS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from latecomer.specs import expressions as ex
from latecomer.specs.clauses import (
    open_quality,
    open_strategy,
    parse_filters,
    parse_select,
    sequence_columns,
    to_json,
)
from latecomer.specs.fragments import TEXTS, note
from latecomer.specs.reader import Reader, parse_streams
from latecomer.specs.spec import (
    Answers,
    RequiredType,
    Signature,
    Strategy,
    parse_bounds,
    parse_details,
    parse_period,
)
from latecomer.specs.windows import WINDOW, WITHOUT_SLACK, WaitingSpec, parse_slack, parse_waits, parse_window

STRATEGIES = ("fast_theta_join", "cfs", "one_bucket", "spark_sql", "cross_product")
DEFAULT_STRATEGY = "fast_theta_join"
EMITS = ("rows", "count", "ranges")
OPERATORS = ("<", "<=", ">", ">=", "=")
_USES = {"partitions": ("fast_theta_join", "cfs", "one_bucket")}


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition ``left op right``. Each side reads exactly one alias, and the two aliases differ."""

    left: ex.Expr
    op: str
    right: ex.Expr

    @property
    def aliases(self) -> tuple[str, str]:
        """The alias that each side reads."""
        return _alias_of(self.left), _alias_of(self.right)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThetaJoinStrategy(Strategy):
    """The algorithm of a theta join, which changes no result. With `partitions` None a window's rows decide it."""

    partitions: int | None

    def signature(self) -> Signature:
        """Return the attributes that determine the query's results: not the partitions."""
        return {**Strategy.signature(self), "partitions": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ThetaJoinSpec(WaitingSpec):
    """A theta join.

    Attributes
    ----------
    conditions : tuple of Condition
        All of them hold for the rows of a match.
    emit : str
        The results: ``rows`` (one per match), ``count`` (the number of a window's matches) or ``ranges`` (sorted rows,
        and ranges of their positions that stand for the matches). `select` applies to ``rows`` and is empty for the
        others.
    """

    kind: ClassVar[str] = "theta_join"
    conditions: tuple[Condition, ...]
    emit: str
    strategy: ThetaJoinStrategy

    @property
    def answers(self) -> Answers:
        """Each row is an answer; a window's count, or its ranges, are one answer."""
        return {"rows": Answers.ADDED, "count": Answers.REVISED, "ranges": Answers.REPLACED}[self.emit]

    @property
    def result_keys(self) -> tuple[str, ...]:
        """The window and, in it, the rows of a match or the position of a range."""
        keys = {
            "rows": tuple(f"{alias}_seq" for alias, _ in self.streams),
            "count": (),
            "ranges": ("edge", "part", "position", "seq", "first"),
        }
        return (*WINDOW, *keys[self.emit])

    def _default_names(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name != "seq"]  # `result_keys` has it

    def _kind_expressions(self) -> Iterator[tuple[str, ex.Expr, RequiredType]]:
        for place, condition in enumerate(self.conditions):
            key = f"conditions[{place}]"
            yield key, ex.Binary(condition.op, condition.left, condition.right), "bool"
            yield key, condition.left, "plain"
            yield key, condition.right, "plain"

    def _kind_signature(self) -> Signature:
        return {
            "window": to_json(self.window),
            "conditions": to_json(self.conditions),
            **({} if self.where is None else {"where": to_json(self.where)}),
            "emit": self.emit,
            "select": to_json(self.select or None),
        }


def parse(reader: Reader, name: str) -> ThetaJoinSpec:
    """Read a theta join's spec from the keys that are left of its file.

    Raises
    ------
    SpecError
        For any fault: file, key, value, problem and remedy.
    """
    streams = parse_streams(reader, 2, 64)
    aliases = tuple(alias for alias, _ in streams)
    window = parse_window(reader)
    conditions = _parse_conditions(reader, aliases)
    remedy = "compare two streams in `conditions`, or let each part between `and` read one"
    where = parse_filters(reader, aliases, remedy)
    emit = reader.choice("emit", EMITS, "rows")
    fixed = (*WINDOW, *sequence_columns(reader, aliases))
    if emit != "rows":
        reader.refuse("select", f"has no rows to apply to with emit: {emit}", "remove it")
    select = parse_select(reader, aliases, fixed)
    inner, strategy = open_strategy(reader, STRATEGIES, DEFAULT_STRATEGY, _USES)
    if emit == "ranges" and strategy != "fast_theta_join":
        raise reader.fail("emit", emit, f"is not possible with {strategy}", "choose fast_theta_join, or emit rows")
    quality = open_quality(reader, strategy, (), "recall: 0.95, period: 1 d")
    period_us = parse_period(quality, window.size_us)
    slack = parse_slack(quality, inner)
    if emit == "ranges" and slack["promises"]:
        remedy = "choose emit: rows or count, or write strategy: {slack: ...} in its place"
        raise quality.fail("recall", slack["target"], "is not counted of results with emit: ranges", remedy)
    waits = parse_waits(quality, learns=slack["slack_us"] is None, remedy=WITHOUT_SLACK)
    bounds = parse_bounds(quality, streams)
    partitions = inner.whole_number("partitions", None, low=1, high=256)
    gamma_us = inner.duration("gamma", period_us)
    inner.done()
    return ThetaJoinSpec(
        name=name,
        streams=streams,
        window=window,
        conditions=conditions,
        where=where,
        emit=emit,
        select=select if emit == "rows" else (),
        period_us=period_us,
        strategy=ThetaJoinStrategy(name=strategy, gamma_us=gamma_us, partitions=partitions),
        **slack,
        **waits,
        **bounds,
        **parse_details(reader),
    )


def _alias_of(side: ex.Expr) -> str:
    return next(iter(ex.columns(side))).alias


def _parse_conditions(reader: Reader, aliases: tuple[str, ...]) -> tuple[Condition, ...]:
    conditions: list[Condition] = []
    note(reader.key("conditions"), TEXTS, True)
    for place, text in enumerate(reader.optional_texts("conditions")):
        key = f"conditions[{place}]"
        parsed = ex.parse(text, source=reader.source, key=key, aliases=aliases)
        conditions += [_to_condition(reader, key, text, part) for part in ex.conjuncts(parsed)]
    if not conditions:
        remedy = f"write, for example, [{aliases[0]}.event_ts < {aliases[1]}.event_ts]"
        raise reader.fail("conditions", None, "is missing", remedy)
    connected = {aliases[0]}
    for _ in aliases:
        for condition in conditions:
            if connected & set(condition.aliases):
                connected |= set(condition.aliases)
    for alias in aliases:
        if alias not in connected:
            problem = f"is not connected with {aliases[0]} by any condition"
            raise reader.fail("conditions", alias, problem, "add one, or remove the stream")
    return tuple(conditions)


def _to_condition(reader: Reader, key: str, text: str, part: ex.Expr) -> Condition:
    read = {column.alias for column in ex.columns(part)}
    if len(read) == 1:
        remedy = "compare it with another stream, or write it as `where`, which says what rows take part"
        raise reader.fail(key, text, f"reads no stream but {read.pop()}", remedy)
    if not isinstance(part, ex.Binary) or part.op not in OPERATORS:
        raise reader.fail(key, text, f"is not a comparison by {', '.join(OPERATORS)}", "write, for example, r.x < s.x")
    for name, side in (("left", part.left), ("right", part.right)):
        read = {column.alias for column in ex.columns(side)}
        if len(read) != 1:
            problem = f"reads {f'{len(read)} streams' if read else 'no stream'} on its {name} side"
            raise reader.fail(key, text, problem, "let each side read exactly one stream")
    return Condition(part.left, part.op, part.right)
