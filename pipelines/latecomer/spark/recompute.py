"""Recompute a query's answers with Spark SQL over all stored rows, independently of `run` and `repair`.

Rows are put into every window that contains them, joined as the conditions are written, grouped and ranked: without
panes, partial states, filters or sorted prefixes. That is slow. It shares with the stages the streams, the meaning of
an expression, the addition of decimals of many digits, and the names of result columns. A result that agrees with it
is therefore right, not only consistent.

Auxiliary columns have a space in their names, as no column of a stream has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from latecomer.core.time import EARLIEST_US, LATEST_US
from latecomer.core.windows.grid import Grid
from latecomer.lake.lake import Lake
from latecomer.spark.engine import decimals, tables
from latecomer.spark.engine.columns import floor_div_sql, named, quoted
from latecomer.spark.engine.query_columns import open_streams, passes, sql, with_wide_columns
from latecomer.spark.engine.types import FLOATING
from latecomer.spark.registry import stage_of
from latecomer.specs import expressions as ex
from latecomer.specs.aggregate import Aggregate, AggregateSpec
from latecomer.specs.join import JoinSpec
from latecomer.specs.membership import MembershipSpec
from latecomer.specs.spec import Spec
from latecomer.specs.theta_join import Condition, ThetaJoinSpec
from latecomer.specs.topk import TopKSpec
from latecomer.specs.windows import WindowedSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TOLERANCE = 1e-9
"""Tolerance of a sum of doubles, relative to the sum of absolute values: Spark adds in any order and rounds."""
WINDOW_NO = "window no"
"""Column of `RecomputedAnswers.rows` with the number of the window."""
ABOUT = "about "
"""Prefix of a column of `RecomputedAnswers.rows`: the tolerance of another column, where Spark's arithmetic rounds."""
_TIME, _SLOT, _LOW, _HIGH, _SCORE, _RANK = "`at us`", "`slot no`", "`low us`", "`high us`", "`the score`", "`the rank`"
_WINDOW, _COUNT = quoted(WINDOW_NO), "`how many`"


@dataclass(frozen=True)
class TimeRange:
    """A range of event times, ``[from_us, to_us)``.

    A join's pair is in the range of its row of the first stream, a window in the range of its last microsecond.
    """

    from_us: int
    to_us: int

    def windows(self, window: Grid) -> tuple[int, int]:
        """Return the numbers of the first and the last window that end in the range."""
        first = -(-(self.from_us + 1 - window.size_us) // window.slide_us)
        return first, (self.to_us - window.size_us) // window.slide_us


@dataclass(frozen=True)
class RecomputedAnswers:
    """The recomputed answers of a time range.

    Attributes
    ----------
    rows
        Result columns, without the columns that say how an answer came about; `WINDOW_NO` in place of the bounds of a
        window; columns with the prefix `ABOUT`. Ranges of a theta join are expanded into the rows that they stand for.
    pairs
        Approximate number of pairs of rows that Spark compares.
    """

    rows: DataFrame
    pairs: int


class SqlRecompute:
    """An SQL recompute of one query over one lake.

    Raises
    ------
    InputError, SpecError
        The query's stage refuses the query: a stream or a column is absent.
    """

    def __init__(self, spec: Spec, spark: SparkSession, lake: Lake) -> None:
        self.spark, self.lake = spark, lake.snapshot()
        self.stage = stage_of(spec, spark, lake)  # refuses a query that cannot be answered
        self.streams = dict(spec.streams)
        events = open_streams(spec, spark, self.lake)
        self.shapes = {alias: events[stream] for alias, stream in spec.streams}
        self.spec = with_wide_columns(spec, events)

    def answers(self, over: TimeRange, seq_to: int) -> RecomputedAnswers:
        """Return the answers of a time range, from all rows with ``seq < seq_to``."""
        match self.spec:
            case AggregateSpec() as spec:
                return self._aggregate(spec, over, seq_to)
            case TopKSpec() as spec:
                return self._topk(spec, over, seq_to)
            case JoinSpec() as spec:
                return self._join(spec, over, seq_to)
            case ThetaJoinSpec() as spec:
                return self._theta_join(spec, over, seq_to)
            case MembershipSpec() as spec:
                return self._membership(spec, over, seq_to)
        raise NotImplementedError(self.spec.kind)

    # ------------------------------------------------------------------------------------------------------- rows

    def _events(self, alias: str, low_us: int, high_us: int, seq_to: int) -> DataFrame:
        """Read a stream's rows with ``low_us <= event_ts < high_us``."""
        low, high = max(low_us, EARLIEST_US), min(high_us - 1, LATEST_US)
        rows = tables.events(self.spark, self.lake, self.streams[alias], seq_to=seq_to, low_us=low, high_us=high)
        return rows.selectExpr("*", f"unix_micros(event_ts) as {_TIME}")

    def _windowed(self, window: Grid, alias: str, over: TimeRange, seq_to: int) -> DataFrame:
        """Read a stream's rows, one copy per window of the range that contains the row."""
        size, slide = window.size_us, window.slide_us
        first, last = over.windows(window)
        rows = self._events(alias, first * slide, last * slide + size, seq_to)
        low = f"greatest({first}L, {floor_div_sql(f'{_TIME} - {size}L', slide)} + 1L)"
        high = f"least({last}L, {floor_div_sql(_TIME, slide)})"
        rows = rows.selectExpr("*", f"{low} as {_LOW}", f"{high} as {_HIGH}").where(f"{_LOW} <= {_HIGH}")
        return rows.selectExpr(f"* except ({_LOW}, {_HIGH})", f"explode(sequence({_LOW}, {_HIGH})) as {_WINDOW}")

    def _of_one_stream(self, spec: WindowedSpec, over: TimeRange, seq_to: int) -> DataFrame:
        """Read the rows of the only stream that pass `where`, one copy per window."""
        ((alias, _),) = spec.streams
        return _passing(self._windowed(spec.window, alias, over, seq_to), spec.where)

    # ------------------------------------------------------------------------------------------------------- kinds

    def _aggregate(self, spec: AggregateSpec, over: TimeRange, seq_to: int) -> RecomputedAnswers:
        rows = self._of_one_stream(spec, over, seq_to)
        columns = {"rows": "count(*)"}
        for aggregate in spec.aggregates:
            kind = "" if aggregate.argument is None else rows.selectExpr(sql(aggregate.argument)).dtypes[0][1]
            columns[aggregate.name], about = _aggregated(aggregate, kind)
            columns |= {} if about is None else {ABOUT + aggregate.name: about}
        keys = [_column(text) for text in named({**_groups(spec), WINDOW_NO: _WINDOW})]
        return RecomputedAnswers(rows.groupBy(*keys).agg(*map(_column, named(columns))), 0)

    def _topk(self, spec: TopKSpec, over: TimeRange, seq_to: int) -> RecomputedAnswers:
        rows = self._of_one_stream(spec, over, seq_to).selectExpr("*", f"{sql(spec.score)} as {_SCORE}")
        rows = rows.where(f"{_SCORE} is not null and not isnan(cast({_SCORE} as double))")
        by = ", ".join((*_groups(spec).values(), _WINDOW))
        rank = f"row_number() over (partition by {by} order by {_SCORE} desc, {_TIME}, seq)"
        best = rows.selectExpr("*", f"{rank} as {_RANK}").where(f"{_RANK} <= {spec.k}L")
        columns = _groups(spec)
        columns |= {"rank": _RANK, "score": _SCORE, "seq": "seq", "event_ts": "event_ts"}
        columns |= {item.name: sql(item.expr) for item in spec.select or ()}
        columns |= {name: quoted(column) for name, _, column in self._default_columns()}
        return RecomputedAnswers(best.selectExpr(*named(columns), _WINDOW), 0)

    def _join(self, spec: JoinSpec, over: TimeRange, seq_to: int) -> RecomputedAnswers:
        """Join by time slots as long as the window; each row of the second stream is in three slots."""
        (left, left_stream), (right, right_stream) = spec.streams
        a, b, width = quoted(left), quoted(right), max(spec.window_us, 1)
        slot = floor_div_sql(_TIME, width)
        left_rows = self._events(left, over.from_us, over.to_us, seq_to).selectExpr("*", f"{slot} as {_SLOT}")
        right_rows = self._events(right, over.from_us - width, over.to_us + width, seq_to)
        right_rows = right_rows.selectExpr("*", f"explode(array({slot} - 1L, {slot}, {slot} + 1L)) as {_SLOT}")
        key_pairs = spec.key_columns({alias: shape.columns for alias, shape in self.shapes.items()})
        left_rows = _with_keys(left_rows, [key for key, _ in key_pairs])
        right_rows = _with_keys(right_rows, [key for _, key in key_pairs])
        keys = [f"key {place}" for place, _ in enumerate(key_pairs)]
        shapes = {left: left_rows, right: right_rows}
        equal = [Condition(ex.Column(left, name), "=", ex.Column(right, name)) for name in keys]
        meet = [f"{a}.{_SLOT} = {b}.{_SLOT}", *(_matching(condition, shapes) for condition in equal)]
        conditions = [*meet, f"abs({a}.{_TIME} - {b}.{_TIME}) <= {spec.window_us}L"]
        conditions += [] if spec.where is None else [_joined_sql(spec.where)]
        conditions += [f"{a}.seq <> {b}.seq"] if left_stream == right_stream else []
        joined = left_rows.alias(left).join(right_rows.alias(right), _column(" and ".join(conditions)))
        columns = {
            f"{alias}_{name}": f"{quoted(alias)}.{name}" for alias in (left, right) for name in ("seq", "event_ts")
        }
        left_counts = _counted(left_rows, keys)
        right_counts = _counted(right_rows, keys)
        both = left_counts.alias(left).join(right_counts.alias(right), _column(" and ".join(meet)))
        pairs = both.selectExpr(f"sum(cast({a}.{_COUNT} as double) * {b}.{_COUNT})")
        return RecomputedAnswers(joined.selectExpr(*named(columns | self._selected())), _number(pairs))

    def _theta_join(self, spec: ThetaJoinSpec, over: TimeRange, seq_to: int) -> RecomputedAnswers:
        """Join one stream after another, by all conditions between it and the streams before it."""
        sides = {
            alias: _passing(self._windowed(spec.window, alias, over, seq_to), spec.filter_on(alias))
            for alias in self.streams
        }
        order, left = [next(iter(sides))], list(sides)[1:]
        joined, cost = sides[order[0]].alias(order[0]), ["cast(n0 as double)"]
        while left:
            alias = next(
                candidate
                for candidate in left
                if any({candidate} < {*c.aliases} <= {candidate, *order} for c in spec.conditions)
            )
            left.remove(alias)
            order.append(alias)
            with_earlier = [c for c in spec.conditions if {alias} < {*c.aliases} <= {*order}]
            if all(c.op != "=" for c in with_earlier):
                cost.append(f"n{len(order) - 1}")
            conditions = [f"{quoted(order[0])}.{_WINDOW} = {quoted(alias)}.{_WINDOW}"]
            conditions += [_matching(condition, self.shapes) for condition in with_earlier]
            joined = joined.join(sides[alias].alias(alias), _column(" and ".join(conditions)))
        counts = [
            sides[alias].groupBy(WINDOW_NO).count().withColumnRenamed("count", f"n{i}") for i, alias in enumerate(order)
        ]
        met = reduce(lambda left, right: left.join(right, WINDOW_NO), counts)
        pairs = _number(met.selectExpr(f"sum({' * '.join(cost)})"))
        number = f"{quoted(order[0])}.{_WINDOW}"
        if spec.emit == "count":
            windows = reduce(lambda left, right: left.union(right), (rows.select(WINDOW_NO) for rows in sides.values()))
            matches = joined.selectExpr(number).groupBy(WINDOW_NO).count()
            answers = windows.distinct().join(matches, WINDOW_NO, "left")
            return RecomputedAnswers(answers.selectExpr(_WINDOW, "coalesce(count, 0L) as matches"), pairs)
        columns = {f"{alias}_seq": f"{quoted(alias)}.seq" for alias in self.streams} | self._selected()
        return RecomputedAnswers(joined.selectExpr(*named(columns), number), pairs)

    def _membership(self, spec: MembershipSpec, over: TimeRange, seq_to: int) -> RecomputedAnswers:
        """Intersect the elements of all streams, in the windows in which the first stream has an element."""
        from latecomer.spark.membership.windows import MembershipWindows
        from latecomer.spark.windows.stage import WindowedStage

        assert isinstance(self.stage, WindowedStage) and isinstance(self.stage.kind, MembershipWindows)
        kind = self.stage.kind.element_type
        main = spec.window
        first, last = over.windows(main)
        elements: list[DataFrame] = []
        pairs = 0
        for column, window in zip(spec.elements, spec.windows, strict=True):
            if window == main:
                rows = self._windowed(main, column.alias, over, seq_to)
            else:
                low, high = _matched_times(main, window)
                numbers = elements[0].selectExpr(_WINDOW).distinct()
                starts = numbers.selectExpr(_WINDOW, f"{_WINDOW} * {main.slide_us}L as start")
                spans = starts.selectExpr(_WINDOW, f"{low} as {_LOW}", f"{high} as {_HIGH}")
                start = first * main.slide_us - window.size_us - window.slide_us
                events = self._events(column.alias, start, last * main.slide_us + main.size_us, seq_to)
                rows = events.join(spans, _column(f"{_TIME} >= {_LOW} and {_TIME} < {_HIGH}"))
                pairs += events.count() * spans.count()
            rows = _passing(rows, spec.filter_on(column.alias))
            rows = rows.selectExpr(_WINDOW, f"try_cast({sql(column)} as {kind}) as element")
            usable = "element is not null" + (" and not isnan(element)" if kind == "double" else "")
            elements.append(rows.where(usable).distinct())
        common = reduce(lambda left, right: left.join(right, [WINDOW_NO, "element"]), elements)
        return RecomputedAnswers(common, pairs)

    # ------------------------------------------------------------------------------------------------- expressions

    def _default_columns(self) -> list[tuple[str, str, str]]:
        columns = {stream: self.shapes[alias].columns for alias, stream in self.spec.streams}
        return self.spec.default_columns(columns)

    def _selected(self) -> dict[str, str]:
        """Return the SQL of the result columns of joined rows, by name."""
        columns = {name: _joined_sql(ex.Column(alias, column)) for name, alias, column in self._default_columns()}
        return columns | {item.name: _joined_sql(item.expr) for item in self.spec.select or ()}


def _matching(condition: Condition, shapes: Mapping[str, DataFrame]) -> str:
    """Return the SQL of a comparison of two rows, whose columns `shapes` have by alias.

    NaN matches nothing; to Spark it is equal to itself and greater than every other number.
    """
    text = f"{_joined_sql(condition.left)} {condition.op} {_joined_sql(condition.right)}"
    for side, alias in zip((condition.left, condition.right), condition.aliases, strict=True):
        if shapes[alias].selectExpr(sql(side)).dtypes[0][1] in FLOATING:
            text += f" and not isnan({_joined_sql(side)})"
    return text


def _passing(rows: DataFrame, where: ex.Expr | None) -> DataFrame:
    """Keep the rows of a stream that pass a condition."""
    return rows if where is None else rows.where(passes(where))


def _groups(spec: WindowedSpec) -> dict[str, str]:
    """Return the SQL of the groups of a query of one stream, by the names of the result columns."""
    return {name: sql(column) for name, column in zip(spec.group_by, spec.group_columns, strict=True)}


def _with_keys(rows: DataFrame, keys: list[ex.Column]) -> DataFrame:
    """Add the values that are equal in the two rows of a pair: ``key 0`` ..."""
    return rows.selectExpr("*", *named({f"key {i}": sql(column) for i, column in enumerate(keys)}))


def _counted(rows: DataFrame, keys: list[str]) -> DataFrame:
    """Count rows per time slot and key."""
    columns = [_column(quoted(name)) for name in keys]
    return rows.groupBy(_column(_SLOT), *columns).agg(_column(f"count(*) as {_COUNT}"))


def _aggregated(aggregate: Aggregate, kind: str) -> tuple[str, str | None]:
    """Return the SQL of an aggregate over values of a Spark type, and of its tolerance; None where Spark is exact."""
    if aggregate.argument is None:
        return "count(*)", None
    value = sql(aggregate.argument)
    number = f"cast({value} as double)"
    if aggregate.function in ("count", "min", "max"):
        return f"{aggregate.function}({value})", None
    if aggregate.function == "sum" and kind.startswith("decimal"):
        scale = decimals.digits_of(kind)[1]
        high, low = decimals.halves(value, scale)
        return decimals.together(f"sum({high})", f"sum({low})", scale), None
    if aggregate.function == "sum" and kind not in FLOATING:
        return f"try_cast(sum(cast({value} as decimal(38,0))) as bigint)", None
    if aggregate.function in ("sum", "avg"):
        total, about = (f"{aggregate.function}({size})" for size in (number, f"abs({number})"))
        # large values are added in units of 2^100, so that no partial sum is infinite
        steps, about_steps = (f"{aggregate.function}({size} * {2.0**-100!r}D)" for size in (number, f"abs({number})"))
        large = f"max(abs({number})) >= {2.0**900!r}D"
        return (
            f"case when {large} then {steps} * {2.0**100!r}D else {total} end",
            f"case when {large} then {TOLERANCE!r}D * {about_steps} * {2.0**100!r}D else {TOLERANCE!r}D * {about} end",
        )
    share = 0.5 if aggregate.q is None else aggregate.q
    return (
        f"percentile({number}, {share!r}D)",
        f"{TOLERANCE!r}D * max(case when not isnan({number}) then abs({number}) end)",
    )


def _matched_times(main: Grid, other: Grid) -> tuple[str, str]:
    """Return the bounds, ``[low, high)``, of the event times of another stream that count for a window of the first.

    Both are SQL over the window's ``start``.

    They span all windows of the other stream that end within the window; if none does, the last window that ended
    before it.
    """
    size, slide = other.size_us, other.slide_us
    last = f"({floor_div_sql(f'start + {main.size_us - size}L', slide)}) * {slide}L + {size}L"
    following = f"({floor_div_sql(f'start - {size}L', slide)} + 1L) * {slide}L + {size}L"
    return f"least({last}, {following}) - {size}L", last


def _joined_sql(expression: ex.Expr) -> str:
    """Return the SQL of an expression over the columns of joined streams, which are qualified by their aliases."""
    return ex.to_spark_sql(expression, lambda column: f"{quoted(column.alias)}.{quoted(column.name)}")


def _column(text: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(text)


def _number(rows: DataFrame) -> int:
    """Return the only value, a double, as a whole number of at most 62 bits; 0 where it is null."""
    return int(min(rows.collect()[0][0] or 0.0, 2.0**62))
