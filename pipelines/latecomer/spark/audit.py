"""Are published results what plain SQL answers? Some periods at random, each answered anew over all stored rows and compared.

The books (:mod:`latecomer.quality.conservation`) hold tables against what was counted when they were written, so a result that was wrong
when it was written, or was changed since, passes them. An audit computes again (:mod:`latecomer.spark.recompute`) and compares what
users read, identity by identity and column by column.

Answers that may still change are left out: of windows that are open, and those that a late row concerns which is not repaired yet; of a
join, pairs of such a row, or of one that waits in a buffer. The range that stands for a period is one of event time, as in :class:`latecomer.spark.recompute.TimeRange`: the ledger books a join's
pairs by the stream time at which they came, which the pairs do not tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.theta_join.window_task import expand
from latecomer.core.time import EARLIEST_US, LATEST_US
from latecomer.core.windows.observation import every_number
from latecomer.lake import delta, journal, result_views
from latecomer.lake.lake import Lake
from latecomer.ledger.open_periods import joined_to, last_closed
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import named, quoted
from latecomer.spark.engine.session import tuned
from latecomer.spark.engine.types import types_of
from latecomer.spark.recompute import ABOUT, WINDOW_NO, Question, TimeRange, Truth
from latecomer.specs.clauses import ENVELOPE
from latecomer.specs.join import JoinSpec
from latecomer.specs.spec import Spec
from latecomer.specs.windows import WINDOW, WindowedSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_PAIRS = 4_000_000_000
"""Rows that SQL may have to compare with one another for a period; one that needs more (minutes, on few cores) is passed over."""
SHOWN = 4
"""Results that differ which are told one by one."""
IN_WORDS = "in words"
"""Column beside those that name a result."""
_TRUTH, _RESULT, _VERDICT = "`the truth`", "`the result`", "`the verdict`"
_APART = ("coverage", *ENVELOPE)
"""Result columns that say how an answer came about, not what it is."""


@dataclass(frozen=True)
class Audited:
    """One period's comparison.

    Attributes
    ----------
    period_us
        Its start.
    results
        Rows of its results, as they should be.
    missing, extra, other
        Those that are not there, rows that should not be there, and those with other values.
    some
        Of these, the first few: columns that name a result, and `IN_WORDS`, what is wrong.
    """

    period_us: int
    results: int
    missing: int
    extra: int
    other: int
    some: pa.Table


def audit(
    lake: Lake,
    spec: Spec,
    state: journal.RunState,
    reach: dict[str, pc.Expression],
    closed_to: int,
    periods: list[int],
    most: int,
    progress: Callable[[str], None],
) -> list[Audited]:
    """Compare `most` of the periods, in the order given; fewer where there are not so many that can be.

    Parameters
    ----------
    state
        Where `run` stood when the check began.
    reach
        Per table of results, which rows were committed by then.
    closed_to
        The last arrival whose late rows were repaired by then.
    periods
        Starts of periods (us).
    progress
        Called with one line per period.
    """
    spark = tuned(lake, state.seq_to)
    one = _Audit(lake, spec, state, reach, closed_to, spark)
    found: list[Audited] = []
    for period in periods:
        if len(found) == most:
            break
        start = pa.scalar(period, delta.TIMESTAMP).as_py()
        done = one.of(period)
        if isinstance(done, str):
            progress(f"{spec.name}: period {start} not audited, {done}")
            continue
        progress(f"{spec.name}: audited period {start}, {done.results:,} results")
        found.append(done)
    return found


class _Audit:
    """What is the same for all periods."""

    def __init__(
        self,
        lake: Lake,
        spec: Spec,
        state: journal.RunState,
        reach: dict[str, pc.Expression],
        closed_to: int,
        spark: SparkSession,
    ) -> None:
        self.lake, self.spec, self.spark, self.seq_to = lake, spec, spark, state.seq_to
        self.reach = {"backfill": pc.field("published_seq") < state.seq_to, **reach}
        self.question = Question(spec, spark, lake)
        self.closed = last_closed(spec, state.stage) if isinstance(spec, WindowedSpec) else None
        self.joined_us: int | None = None
        if isinstance(spec, JoinSpec):
            self.joined_us = min(max(joined_to(spec, state.stage), EARLIEST_US), LATEST_US)
        waits = (pc.field("seq") > closed_to) & (pc.field("seq") < state.seq_to)
        columns = ["seq"] if self.closed is None else ["windows_from", "windows_to"]
        self.waiting = lake.table("late", spec.name).read(columns, waits)

    def of(self, period_us: int) -> Audited | str:
        """The comparison, or why there is none."""
        over, spec = TimeRange(period_us, period_us + self.spec.period_us), self.spec
        if isinstance(spec, WindowedSpec) and self.closed is not None and over.windows(spec.window)[0] > self.closed:
            return "its windows are open"
        truth = self.question.truth(over, self.seq_to)
        if truth.pairs > MOST_PAIRS:
            return f"it takes {truth.pairs:.1e} comparisons"
        stored, expected, keys = self._windowed(over, truth) if self.closed is not None else self._pairs(over, truth)
        return self._compared(period_us, expected, stored, keys)

    # ------------------------------------------------------------------------------------------ what there is to compare

    def _read(self, column: str, low_us: int, high_us: int) -> pa.Table:
        """What users read, of results whose time in a column is in ``[low, high)``."""
        low, high = (pa.scalar(each, pa.int64()).cast(delta.TIMESTAMP) for each in (low_us, high_us))
        own = (pc.field(column) >= low) & (pc.field(column) < high)
        rows = result_views.results(self.lake, self.spec, {area: own & within for area, within in self.reach.items()})
        return rows.drop_columns([name for name in _APART if name in rows.column_names])

    def _pairs(self, over: TimeRange, truth: Truth) -> tuple[pa.Table, DataFrame, list[str]]:
        """A join's results, less those of rows that wait to be joined or for repair."""
        keys = list(self.spec.result_keys)
        times = [f"{alias}_event_ts" for alias, _ in self.spec.streams]
        joined = " and ".join(f"unix_micros({quoted(time)}) <= {self.joined_us}L" for time in times)
        rows, expected = self._read(times[0], over.from_us, over.to_us), truth.rows.where(joined)
        if self.waiting is not None and self.waiting.num_rows:
            late = pc.unique(self.waiting["seq"])
            for key in keys:
                rows = rows.filter(pc.invert(pc.is_in(rows[key], late)))
                listed = tables.to_spark(self.spark, pa.table({key: late}))
                expected = expected.join(listed, key, "left_anti")
        return rows, expected, keys

    def _windowed(self, over: TimeRange, truth: Truth) -> tuple[pa.Table, DataFrame, list[str]]:
        """Results of windows that are closed and that no row concerns which waits for repair; windows by number."""
        spec: Any = self.spec
        slide = spec.window.slide_us
        first, last = over.windows(spec.window)
        last = min(last, self.closed) if self.closed is not None else last
        rows = self._read("window_start", first * slide, (last + 1) * slide)
        number = pa.array(
            rows["window_start"].cast(pa.int64()).to_numpy() // slide if rows.num_columns else [], pa.int64()
        )
        rows = rows.drop_columns([name for name in WINDOW if name in rows.column_names]).append_column(
            WINDOW_NO, number
        )
        expected = truth.rows.where(f"{quoted(WINDOW_NO)} <= {last}L")
        if self.waiting is not None and self.waiting.num_rows:
            low = self.waiting["windows_from"].cast(pa.int64()).to_numpy() // slide
            high = (self.waiting["windows_to"].cast(pa.int64()).to_numpy() - spec.window.size_us) // slide
            low, high = np.maximum(low, first), np.minimum(high, last)
            some = low <= high
            open_again = pa.array(np.unique(every_number(low[some], high[some])[1]))
            if len(open_again):
                rows = rows.filter(pc.invert(pc.is_in(rows[WINDOW_NO], open_again)))
                listed = tables.to_spark(self.spark, pa.table({WINDOW_NO: open_again}))
                expected = expected.join(listed, WINDOW_NO, "left_anti")
        if getattr(spec, "emit", None) == "ranges":
            rows = self._expanded(rows)
            return rows, expected, rows.column_names
        keys = [WINDOW_NO if name == WINDOW[0] else name for name in spec.result_keys if name != WINDOW[1]]
        return rows, expected, keys

    def _expanded(self, ranges: pa.Table) -> pa.Table:
        """The rows that ranges stand for."""
        aliases = [alias for alias, _ in self.spec.streams]
        parts = [pa.table({name: pa.array([], pa.int64()) for name in (WINDOW_NO, *(f"{a}_seq" for a in aliases))})]
        for number in pc.unique(ranges[WINDOW_NO]).to_pylist():
            seqs = expand(ranges.filter(pc.equal(ranges[WINDOW_NO], number)), aliases)
            columns = {f"{alias}_seq": seqs[alias] for alias in aliases}
            parts.append(pa.table({WINDOW_NO: np.full(len(seqs[aliases[0]]), number, np.int64)} | columns))
        return pa.concat_tables(parts)

    # --------------------------------------------------------------------------------------------------- comparison

    def _compared(self, period_us: int, expected: DataFrame, stored: pa.Table, keys: list[str]) -> Audited:
        """Both sides by identity; a value agrees if it is the same, null and NaN too, or as near as the engine's own rounding comes."""
        from pyspark.sql import functions as F

        if stored.num_columns > len(keys) or stored.num_rows:
            here = tables.to_spark(self.spark, stored)
        else:  # nothing was ever written
            here = expected.select(*(F.col(quoted(n)) for n in expected.columns if not n.startswith(ABOUT))).limit(0)
        kinds = types_of(here)
        values = [name for name in here.columns if name not in keys]
        about = [name for name in expected.columns if name.startswith(ABOUT)]
        lost = _lost(types_of(expected), kinds, values)

        def side(rows: DataFrame, name: str, more: list[str], besides: dict[str, str]) -> DataFrame:
            own = {each: f"try_cast({quoted(each)} as {kinds.get(each, 'double')})" for each in (*values, *more)}
            fields = ", ".join(named({"is there": "true"} | own | besides))
            identity = named({key: f"try_cast({quoted(key)} as {kinds[key]})" for key in keys})
            return rows.selectExpr(*identity, f"struct({fields}) as {name}")

        truth, result = side(expected, _TRUTH, about, lost), side(here, _RESULT, [], {})
        both = truth.unionByName(result, allowMissingColumns=True)
        both = both.groupBy(*(F.col(quoted(key)) for key in keys)).agg(
            *(F.expr(f"any_value({name}, true) as {name}") for name in (_TRUTH, _RESULT))
        )
        cases = [f"when {_RESULT} is null then 'missing'", f"when {_TRUTH} is null then 'extra'"]
        shown = [f"when {_RESULT} is null then 'is missing'", f"when {_TRUTH} is null then 'should not be there'"]
        for name in values:
            same = _same(quoted(name), kinds[name], quoted(ABOUT + name) if ABOUT + name in about else None)
            should = f"string({_TRUTH}.{quoted(name)})"
            if _LOST + name in lost:
                whole = f"{_TRUTH}.{quoted(_LOST + name)}"
                same, should = f"{whole} is null and {same}", f"coalesce({whole}, {should})"
            text = f"coalesce(string({_RESULT}.{quoted(name)}), 'null'), coalesce({should}, 'null')"
            words = "has {} %s, should be %s".format(name.replace("%", "%%")).replace("\\", "\\\\").replace("'", "\\'")
            cases.append(f"when not ({same}) then 'other'")
            shown.append(f"when not ({same}) then format_string('{words}', {text})")
        judged = both.selectExpr(
            *(quoted(key) for key in keys),
            f"case {' '.join(cases)} else 'right' end as {_VERDICT}",
            f"case {' '.join(shown)} end as {quoted(IN_WORDS)}",
        ).persist()
        try:
            counts = {row[0]: row[1] for row in judged.groupBy(F.expr(_VERDICT)).count().collect()}
            wrong = judged.where(f"{_VERDICT} <> 'right'").drop(_VERDICT.strip("`"))
            some = (
                wrong.orderBy(*(F.col(quoted(key)) for key in keys)).limit(SHOWN).toArrow()
                if len(counts) > 1 or "right" not in counts
                else pa.table({})
            )
        finally:
            judged.unpersist()
        missing, extra, other = (counts.get(each, 0) for each in ("missing", "extra", "other"))
        results = sum(counts.values()) - extra
        return Audited(period_us, results, missing, extra, other, self._named(some))

    def _named(self, some: pa.Table) -> pa.Table:
        """Windows by their start again."""
        if WINDOW_NO not in some.column_names:
            return some
        spec: Any = self.spec
        start = pa.array(some[WINDOW_NO].to_numpy() * spec.window.slide_us).cast(delta.TIMESTAMP)
        return some.set_column(some.column_names.index(WINDOW_NO), WINDOW[0], start)


_LOST = "lost "
"""Before the name of a column: its true value as text, where the type of the stored one cannot hold it."""


def _lost(expected: dict[str, str], stored: dict[str, str], columns: list[str]) -> dict[str, str]:
    """Such columns, as SQL; not of a stored float, which is a rounded number anyway, nor of maps, which Spark does not compare."""
    found = {}
    for name in columns:
        own, kind, value = expected.get(name), stored[name], quoted(name)
        if own not in (None, kind) and kind not in ("float", "double") and "map<" not in f"{own}{kind}":
            back = f"try_cast(try_cast({value} as {kind}) as {own})"
            found[_LOST + name] = f"if({back} <=> {value}, null, string({value}))"
    return found


def _same(name: str, kind: str, about: str | None) -> str:
    """SQL: do result and truth agree in a column of a Spark type; `about` names the column that says how far they may be off."""
    truth, result = f"{_TRUTH}.{name}", f"{_RESULT}.{name}"
    if "map<" in kind:  # Spark does not compare maps
        return f"string({truth}) <=> string({result})"
    if about is None:
        return f"{truth} <=> {result}"
    most = f"{_TRUTH}.{about}"
    near = f"{most} < double('infinity') and abs(double({truth}) - double({result})) <= {most}"
    return f"({truth} <=> {result} or coalesce({near}, false))"
