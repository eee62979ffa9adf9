"""What a query's answers must be: its question put to Spark SQL over all stored rows, with none of what `run` and `repair` do.

No panes, no partial states, no filters, no sorted prefixes: rows are put into every window that holds them, joined as the conditions
are written, grouped, ranked. That is slow, and shares nothing with the stages but the streams, the meaning of an expression, how decimals
of many digits are added, and the names of result columns. So what agrees with it is right, and not merely consistent.

Columns that are needed on the way have a space in their names, as no column of a stream has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from latecomer.core.time import EARLIEST_US, LATEST_US
from latecomer.lake.lake import Lake
from latecomer.spark.engine import decimals, tables
from latecomer.spark.engine.columns import floor_div_sql, named, quoted
from latecomer.spark.engine.query_columns import with_wide_columns
from latecomer.spark.engine.types import FLOATING
from latecomer.spark.registry import stage_of
from latecomer.specs import expressions as ex
from latecomer.specs.aggregate import Aggregate
from latecomer.specs.theta_join import Condition
from latecomer.specs.windows import Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOLERANCE = 1e-9
"""Of a sum of doubles, in sizes of what is added: Spark adds in any order, and rounds each time."""
WINDOW_NO = "window no"
"""Column of `Truth.rows`: number of the window."""
ABOUT = "about "
"""What begins the name of a column of `Truth.rows`: how far the column named after it may be off, where Spark's arithmetic rounds."""
_TIME, _SLOT, _LOW, _HIGH, _SCORE, _RANK = "`at us`", "`slot no`", "`low us`", "`high us`", "`the score`", "`the rank`"
_WINDOW, _COUNT = quoted(WINDOW_NO), "`how many`"


@dataclass(frozen=True)
class TimeRange:
    """Event times ``[from_us, to_us)``: of a join the first stream's, else of the last microsecond of a window."""

    from_us: int
    to_us: int

    def windows(self, window: Window) -> tuple[int, int]:
        """Numbers of the first and the last window that end in it."""
        first = -(-(self.from_us + 1 - window.size_us) // window.slide_us)
        return first, (self.to_us - window.size_us) // window.slide_us


@dataclass(frozen=True)
class Truth:
    """Answers of a time range.

    Attributes
    ----------
    rows
        Result columns but for those that say how an answer came about; `WINDOW_NO` where there are windows, in place of their bounds; `ABOUT`.
        Of a theta join's ranges, the rows that they stand for.
    pairs
        Rows that are compared with one another to get there, about.
    """

    rows: DataFrame
    pairs: int


class Question:
    """One query over one lake.

    Raises
    ------
    InputError, SpecError
        As of the query's stage: a stream or a column is not there.
    """

    def __init__(self, spec: Any, spark: SparkSession, lake: Lake) -> None:
        self.spark, self.lake = spark, lake
        self.stage: Any = stage_of(spec, spark, lake)  # refuses what cannot be asked
        self.streams = dict(spec.streams)
        self.shapes = {alias: tables.no_events(spark, lake, stream) for alias, stream in spec.streams}
        self.spec: Any = with_wide_columns(spec, {stream: self.shapes[alias] for alias, stream in spec.streams})

    def truth(self, over: TimeRange, seq_to: int) -> Truth:
        """Answers of a time range, of all rows with ``seq < seq_to``."""
        found: Truth = getattr(self, f"_{self.spec.kind}")(over, seq_to)
        return found

    # ------------------------------------------------------------------------------------------------------- rows

    def _events(self, alias: str, low_us: int, high_us: int, seq_to: int) -> DataFrame:
        """A stream's rows with ``low_us <= event_ts < high_us``."""
        low, high = max(low_us, EARLIEST_US), min(high_us - 1, LATEST_US)
        rows = tables.events(self.spark, self.lake, self.streams[alias], seq_to=seq_to, low_us=low, high_us=high)
        return rows.selectExpr("*", f"unix_micros(event_ts) as {_TIME}")

    def _windowed(self, alias: str, over: TimeRange, seq_to: int) -> DataFrame:
        """A stream's rows, each once for every window of the range that holds it."""
        window: Window = self.spec.window
        size, slide = window.size_us, window.slide_us
        first, last = over.windows(window)
        rows = self._events(alias, first * slide, last * slide + size, seq_to)
        low = f"greatest({first}L, {floor_div_sql(f'{_TIME} - {size}L', slide)} + 1L)"
        high = f"least({last}L, {floor_div_sql(_TIME, slide)})"
        rows = rows.selectExpr("*", f"{low} as {_LOW}", f"{high} as {_HIGH}").where(f"{_LOW} <= {_HIGH}")
        return rows.selectExpr(f"* except ({_LOW}, {_HIGH})", f"explode(sequence({_LOW}, {_HIGH})) as {_WINDOW}")

    def _of_one_stream(self, over: TimeRange, seq_to: int) -> DataFrame:
        """Rows in windows, those that pass `where`."""
        ((alias, _),) = self.spec.streams
        return _passing(self._windowed(alias, over, seq_to), self.spec.where)

    # ------------------------------------------------------------------------------------------------------- kinds

    def _aggregate(self, over: TimeRange, seq_to: int) -> Truth:
        rows = self._of_one_stream(over, seq_to)
        found = {"rows": "count(*)"}
        for each in self.spec.aggregates:
            kind = "" if each.argument is None else rows.selectExpr(_sql(each.argument)).dtypes[0][1]
            found[each.name], about = _aggregated(each, kind)
            found |= {} if about is None else {ABOUT + each.name: about}
        keys = [_column(quoted(name)) for name in (*self.spec.group_by, WINDOW_NO)]
        return Truth(rows.groupBy(*keys).agg(*map(_column, named(found))), 0)

    def _topk(self, over: TimeRange, seq_to: int) -> Truth:
        rows = self._of_one_stream(over, seq_to).selectExpr("*", f"{_sql(self.spec.score)} as {_SCORE}")
        rows = rows.where(f"{_SCORE} is not null and not isnan(cast({_SCORE} as double))")
        by = ", ".join(map(quoted, (*self.spec.group_by, WINDOW_NO)))
        rank = f"row_number() over (partition by {by} order by {_SCORE} desc, {_TIME}, seq)"
        best = rows.selectExpr("*", f"{rank} as {_RANK}").where(f"{_RANK} <= {self.spec.k}L")
        columns = {name: quoted(name) for name in self.spec.group_by}
        columns |= {"rank": _RANK, "score": _SCORE, "seq": "seq", "event_ts": "event_ts"}
        columns |= {item.name: _sql(item.expr) for item in self.spec.select or ()}
        columns |= {name: quoted(column) for name, _, column in self._default_columns()}
        return Truth(best.selectExpr(*named(columns), _WINDOW), 0)

    def _join(self, over: TimeRange, seq_to: int) -> Truth:
        """Rows meet by a time slot as long as the window: of the second stream each stands in three."""
        (left, first), (right, second) = self.spec.streams
        a, b, width = quoted(left), quoted(right), max(self.spec.window_us, 1)
        slot = floor_div_sql(_TIME, width)
        ones = self._events(left, over.from_us, over.to_us, seq_to).selectExpr("*", f"{slot} as {_SLOT}")
        others = self._events(right, over.from_us - width, over.to_us + width, seq_to)
        others = others.selectExpr("*", f"explode(array({slot} - 1L, {slot}, {slot} + 1L)) as {_SLOT}")
        keys = [Condition(ex.Column(left, one), "=", ex.Column(right, other)) for one, other in self.spec.keys]
        meet = [f"{a}.{_SLOT} = {b}.{_SLOT}", *map(self._matching, keys)]
        conditions = [*meet, f"abs({a}.{_TIME} - {b}.{_TIME}) <= {self.spec.window_us}L"]
        conditions += [] if self.spec.where is None else [_beside(self.spec.where)]
        conditions += [f"{a}.seq <> {b}.seq"] if first == second else []
        joined = ones.alias(left).join(others.alias(right), _column(" and ".join(conditions)))
        columns = {
            f"{alias}_{name}": f"{quoted(alias)}.{name}" for alias in (left, right) for name in ("seq", "event_ts")
        }
        counted = [
            rows.groupBy(_column(_SLOT), *(_column(quoted(name)) for name in dict.fromkeys(names))).agg(
                _column(f"count(*) as {_COUNT}")
            )
            for rows, names in (
                (ones, [one for one, _ in self.spec.keys]),
                (others, [each for _, each in self.spec.keys]),
            )
        ]
        both = counted[0].alias(left).join(counted[1].alias(right), _column(" and ".join(meet)))
        pairs = both.selectExpr(f"sum(cast({a}.{_COUNT} as double) * {b}.{_COUNT})")
        return Truth(joined.selectExpr(*named(columns | self._selected())), _number(pairs))

    def _theta_join(self, over: TimeRange, seq_to: int) -> Truth:
        """Streams one after the other, each by all conditions on those before it."""
        spec, windowed = self.spec, self._windowed
        sides = {alias: _passing(windowed(alias, over, seq_to), spec.filter_on(alias)) for alias in self.streams}
        order, left = [next(iter(sides))], list(sides)[1:]
        joined, cost = sides[order[0]].alias(order[0]), ["cast(n0 as double)"]
        while left:
            alias = next(
                each for each in left if any({each} < {*c.aliases} <= {each, *order} for c in self._conditions)
            )
            left.remove(alias)
            order.append(alias)
            mine = [c for c in self._conditions if {alias} < {*c.aliases} <= {*order}]
            if all(c.op != "=" for c in mine):
                cost.append(f"n{len(order) - 1}")
            conditions = [f"{quoted(order[0])}.{_WINDOW} = {quoted(alias)}.{_WINDOW}", *map(self._matching, mine)]
            joined = joined.join(sides[alias].alias(alias), _column(" and ".join(conditions)))
        counts = [
            sides[alias].groupBy(WINDOW_NO).count().withColumnRenamed("count", f"n{i}") for i, alias in enumerate(order)
        ]
        met = reduce(lambda one, other: one.join(other, WINDOW_NO), counts)
        pairs = _number(met.selectExpr(f"sum({' * '.join(cost)})"))
        number = f"{quoted(order[0])}.{_WINDOW}"
        if self.spec.emit == "count":
            windows = reduce(lambda one, other: one.union(other), (side.select(WINDOW_NO) for side in sides.values()))
            found = joined.selectExpr(number).groupBy(WINDOW_NO).count()
            answers = windows.distinct().join(found, WINDOW_NO, "left")
            return Truth(answers.selectExpr(_WINDOW, "coalesce(count, 0L) as matches"), pairs)
        columns = {f"{alias}_seq": f"{quoted(alias)}.seq" for alias in self.streams} | self._selected()
        return Truth(joined.selectExpr(*named(columns), number), pairs)

    @property
    def _conditions(self) -> tuple[Condition, ...]:
        found: tuple[Condition, ...] = self.spec.conditions
        return found

    def _membership(self, over: TimeRange, seq_to: int) -> Truth:
        """Windows of the others are looked at where the first stream has an element: only there may a result be."""
        main: Window = self.spec.window
        first, last = over.windows(main)
        found: list[DataFrame] = []
        pairs = 0
        for column, window in zip(self.spec.elements, self.spec.windows, strict=True):
            if window == main:
                rows = self._windowed(column.alias, over, seq_to)
            else:
                low, high = _reach(main, window)
                held = found[0].selectExpr(_WINDOW).distinct()
                numbers = held.selectExpr(_WINDOW, f"{_WINDOW} * {main.slide_us}L as start")
                spans = numbers.selectExpr(_WINDOW, f"{low} as {_LOW}", f"{high} as {_HIGH}")
                start = first * main.slide_us - window.size_us - window.slide_us
                events = self._events(column.alias, start, last * main.slide_us + main.size_us, seq_to)
                rows = events.join(spans, _column(f"{_TIME} >= {_LOW} and {_TIME} < {_HIGH}"))
                pairs += events.count() * spans.count()
            rows = _passing(rows, self.spec.filter_on(column.alias))
            rows = rows.selectExpr(_WINDOW, f"try_cast({quoted(column.name)} as {self.stage.kind}) as element")
            some = "element is not null" + (" and not isnan(element)" if self.stage.kind == "double" else "")
            found.append(rows.where(some).distinct())
        return Truth(reduce(lambda one, other: one.join(other, [WINDOW_NO, "element"]), found), pairs)

    # ------------------------------------------------------------------------------------------------- expressions

    def _default_columns(self) -> list[tuple[str, str, str]]:
        columns = {stream: self.shapes[alias].columns for alias, stream in self.spec.streams}
        found: list[tuple[str, str, str]] = self.spec.default_columns(columns)
        return found

    def _selected(self) -> dict[str, str]:
        """Result columns of rows of all streams, beside one another: name to SQL."""
        found = {name: _beside(ex.Column(alias, column)) for name, alias, column in self._default_columns()}
        return found | {item.name: _beside(item.expr) for item in self.spec.select or ()}

    def _matching(self, condition: Condition) -> str:
        """A comparison of two rows; NaN matches nothing, where Spark has it equal to itself and greater than all else."""
        text = f"{_beside(condition.left)} {condition.op} {_beside(condition.right)}"
        for side, alias in zip((condition.left, condition.right), condition.aliases, strict=True):
            if self.shapes[alias].selectExpr(_sql(side)).dtypes[0][1] in FLOATING:
                text += f" and not isnan({_beside(side)})"
        return text


def _passing(rows: DataFrame, where: ex.Expr | None) -> DataFrame:
    """Rows of a stream that pass a condition."""
    # one that is the literal null has no type of its own
    return rows if where is None else rows.where(f"coalesce({_sql(where)}, false)")


def _aggregated(each: Aggregate, kind: str) -> tuple[str, str | None]:
    """SQL of an aggregate over values of a Spark type, and of how far it may be off; None where Spark is exact."""
    if each.argument is None:
        return "count(*)", None
    value = _sql(each.argument)
    number = f"cast({value} as double)"
    if each.function in ("count", "min", "max"):
        return f"{each.function}({value})", None
    if each.function == "sum" and kind.startswith("decimal"):
        scale = decimals.digits_of(kind)[1]
        high, low = decimals.halves(value, scale)
        return decimals.together(f"sum({high})", f"sum({low})", scale), None
    if each.function == "sum" and kind not in FLOATING:
        return f"try_cast(sum(cast({value} as decimal(38,0))) as bigint)", None
    if each.function in ("sum", "avg"):
        total, about = (f"{each.function}({size})" for size in (number, f"abs({number})"))
        # where values are large, in steps of 2^100, so that no sum of them is infinite on its way
        steps, about_steps = (f"{each.function}({size} * {2.0**-100!r}D)" for size in (number, f"abs({number})"))
        large = f"max(abs({number})) >= {2.0**900!r}D"
        return (
            f"case when {large} then {steps} * {2.0**100!r}D else {total} end",
            f"case when {large} then {TOLERANCE!r}D * {about_steps} * {2.0**100!r}D else {TOLERANCE!r}D * {about} end",
        )
    share = 0.5 if each.q is None else each.q
    return (
        f"percentile({number}, {share!r}D)",
        f"{TOLERANCE!r}D * max(case when not isnan({number}) then abs({number}) end)",
    )


def _reach(main: Window, other: Window) -> tuple[str, str]:
    """Which event times of another stream count for a window of the first, ``[low, high)``: SQL over its ``start``.

    Those of all windows of its own that end within the window, or, if none does, of the last that ended before.
    """
    size, slide = other.size_us, other.slide_us
    last = f"({floor_div_sql(f'start + {main.size_us - size}L', slide)}) * {slide}L + {size}L"
    following = f"({floor_div_sql(f'start - {size}L', slide)} + 1L) * {slide}L + {size}L"
    return f"least({last}, {following}) - {size}L", last


def _sql(expression: ex.Expr) -> str:
    """Over the columns of one stream."""
    return ex.to_spark_sql(expression, lambda column: quoted(column.name))


def _beside(expression: ex.Expr) -> str:
    """Over the columns of all streams, which go by their aliases."""
    return ex.to_spark_sql(expression, lambda column: f"{quoted(column.alias)}.{quoted(column.name)}")


def _column(text: str) -> Any:
    from pyspark.sql import functions as F

    return F.expr(text)


def _number(one: DataFrame) -> int:
    """The only value, of a double that may be missing; no more than 64 bits hold."""
    return int(min(one.collect()[0][0] or 0.0, 2.0**62))
