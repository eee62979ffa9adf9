"""Audit a query: recompute the answers of some periods by plain SQL, and compare them with the published results.

The accounts (:mod:`latecomer.quality.conservation`) compare tables with the counts of the time of writing. A result
that was wrong from the start, or was changed later, passes them. An audit recomputes the answers from all stored rows
(:mod:`latecomer.spark.recompute`) and compares them with what users read, identity by identity and column by column.

Answers that may still change are left out: answers of open windows, answers that an unrepaired late row concerns, and
a join's pairs with an unrepaired late row or with a row that waits in a buffer. A period is compared as a range of
event time (:class:`latecomer.spark.recompute.TimeRange`). The ledger counts a join's pairs by the stream time of their
publication instead, which the pairs do not store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from latecomer.spark.recompute import ABOUT, WINDOW_NO, RecomputedAnswers, SqlRecompute, TimeRange
from latecomer.specs.clauses import ENVELOPE
from latecomer.specs.join import JoinSpec
from latecomer.specs.spec import Spec
from latecomer.specs.theta_join import ThetaJoinSpec
from latecomer.specs.windows import WINDOW, WindowedSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_PAIRS = 4_000_000_000
"""Most pairs of rows compared for a period. A period that needs more (minutes, on few cores) is passed over."""
SHOWN = 4
"""Most differing results that are listed for a period."""
IN_WORDS = "in words"
"""Column that says how a result differs, after the columns that identify the result."""
_EXPECTED, _STORED, _OUTCOME = "`the expected`", "`the stored`", "`the outcome`"
_PROVENANCE = ("coverage", *ENVELOPE)
"""Result columns that say how an answer came about. They are not compared."""


@dataclass(frozen=True)
class Audited:
    """The comparison of one period.

    Attributes
    ----------
    period_us
        Start of the period.
    results
        Number of expected result rows.
    missing, extra, other
        Numbers of expected rows that are not stored, of stored rows that are not expected, and of stored rows with
        other values.
    examples
        The first of the differing rows: the columns that identify a result, and `IN_WORDS`.
    """

    period_us: int
    results: int
    missing: int
    extra: int
    other: int
    examples: pa.Table


def audit(
    lake: Lake,
    spec: Spec,
    state: journal.RunState,
    committed: dict[str, pc.Expression],
    closed_to: int,
    periods: list[int],
    most: int,
    progress: Callable[[str], None],
) -> list[Audited]:
    """Compare the first `most` of the given periods that can be audited.

    Parameters
    ----------
    state
        State of `run` when the check began.
    committed
        Filter of the rows that were committed by then, per table of results.
    closed_to
        The last arrival whose late rows were repaired by then.
    periods
        Starts of periods (us), in the order in which they are tried.
    progress
        Called with one line per period.
    """
    spark = tuned(lake, state.seq_to)
    auditor = _Auditor(lake, spec, state, committed, closed_to, spark)
    comparisons: list[Audited] = []
    for period in periods:
        if len(comparisons) == most:
            break
        start = pa.scalar(period, delta.TIMESTAMP).as_py()
        outcome = auditor.compare(period)
        if isinstance(outcome, str):
            progress(f"{spec.name}: period {start} not audited, {outcome}")
            continue
        progress(f"{spec.name}: audited period {start}, {outcome.results:,} results")
        comparisons.append(outcome)
    return comparisons


class _Auditor:
    """An auditor of one query: the state that all its periods share."""

    def __init__(
        self,
        lake: Lake,
        spec: Spec,
        state: journal.RunState,
        committed: dict[str, pc.Expression],
        closed_to: int,
        spark: SparkSession,
    ) -> None:
        self.lake, self.spec, self.spark, self.seq_to = lake, spec, spark, state.seq_to
        self.committed = {"backfill": pc.field("published_seq") < state.seq_to, **committed}
        self.recompute = SqlRecompute(spec, spark, lake)
        self.closed = last_closed(spec, state.stage) if isinstance(spec, WindowedSpec) else None
        self.joined_us: int | None = None
        if isinstance(spec, JoinSpec):
            self.joined_us = min(max(joined_to(spec, state.stage), EARLIEST_US), LATEST_US)
        pending = (pc.field("seq") > closed_to) & (pc.field("seq") < state.seq_to)
        columns = ["seq"] if self.closed is None else ["windows_from", "windows_to"]
        self.pending = lake.table("late", spec.name).read(columns, pending)

    def compare(self, period_us: int) -> Audited | str:
        """Compare one period; return a sentence where it cannot be compared."""
        over, spec = TimeRange(period_us, period_us + self.spec.period_us), self.spec
        if isinstance(spec, WindowedSpec) and self.closed is not None and over.windows(spec.window)[0] > self.closed:
            return "its windows are open"
        answers = self.recompute.answers(over, self.seq_to)
        if answers.pairs > MOST_PAIRS:
            return f"it takes {answers.pairs:.1e} comparisons"
        if isinstance(spec, WindowedSpec):
            stored, expected, keys = self._windowed(spec, over, answers)
        else:
            stored, expected, keys = self._pairs(over, answers)
        return self._compared(period_us, expected, stored, keys)

    # -------------------------------------------------------------------------------------------- rows to compare

    def _read(self, column: str, low_us: int, high_us: int) -> pa.Table:
        """Read the results, as users read them, whose time in a column is in ``[low_us, high_us)``."""
        inside = (pc.field(column) >= delta.timestamp(low_us)) & (pc.field(column) < delta.timestamp(high_us))
        filters = {area: inside & committed for area, committed in self.committed.items()}
        rows = result_views.results(self.lake, self.spec, filters)
        return rows.drop_columns([name for name in _PROVENANCE if name in rows.column_names])

    def _pairs(self, over: TimeRange, answers: RecomputedAnswers) -> tuple[pa.Table, DataFrame, list[str]]:
        """Return a join's stored and expected pairs without rows that wait to be joined or repaired, and the keys."""
        keys = list(self.spec.result_keys)
        times = [f"{alias}_event_ts" for alias, _ in self.spec.streams]
        joined = " and ".join(f"unix_micros({quoted(time)}) <= {self.joined_us}L" for time in times)
        rows, expected = self._read(times[0], over.from_us, over.to_us), answers.rows.where(joined)
        if self.pending is not None and self.pending.num_rows:
            late = pc.unique(self.pending["seq"])
            for key in keys:
                rows = rows.filter(pc.invert(pc.is_in(rows[key], late)))
                listed = tables.to_spark(self.spark, pa.table({key: late}))
                expected = expected.join(listed, key, "left_anti")
        return rows, expected, keys

    def _windowed(
        self, spec: WindowedSpec, over: TimeRange, answers: RecomputedAnswers
    ) -> tuple[pa.Table, DataFrame, list[str]]:
        """Return the stored and the expected rows of closed windows that no pending late row concerns, and their keys.

        Windows are identified by number.
        """
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
        expected = answers.rows.where(f"{quoted(WINDOW_NO)} <= {last}L")
        if self.pending is not None and self.pending.num_rows:
            low = self.pending["windows_from"].cast(pa.int64()).to_numpy() // slide
            high = (self.pending["windows_to"].cast(pa.int64()).to_numpy() - spec.window.size_us) // slide
            low, high = np.maximum(low, first), np.minimum(high, last)
            overlaps = low <= high
            unrepaired = pa.array(np.unique(every_number(low[overlaps], high[overlaps])[1]))
            if len(unrepaired):
                rows = rows.filter(pc.invert(pc.is_in(rows[WINDOW_NO], unrepaired)))
                listed = tables.to_spark(self.spark, pa.table({WINDOW_NO: unrepaired}))
                expected = expected.join(listed, WINDOW_NO, "left_anti")
        if isinstance(spec, ThetaJoinSpec) and spec.emit == "ranges":
            rows = self._expanded(rows)
            return rows, expected, rows.column_names
        keys = [WINDOW_NO if name == WINDOW[0] else name for name in spec.result_keys if name != WINDOW[1]]
        return rows, expected, keys

    def _expanded(self, ranges: pa.Table) -> pa.Table:
        """Expand the ranges of a theta join into the rows that they stand for."""
        aliases = [alias for alias, _ in self.spec.streams]
        parts = [pa.table({name: pa.array([], pa.int64()) for name in (WINDOW_NO, *(f"{a}_seq" for a in aliases))})]
        for number in pc.unique(ranges[WINDOW_NO]).to_pylist():
            seqs = expand(ranges.filter(pc.equal(ranges[WINDOW_NO], number)), aliases)
            columns = {f"{alias}_seq": seqs[alias] for alias in aliases}
            parts.append(pa.table({WINDOW_NO: np.full(len(seqs[aliases[0]]), number, np.int64)} | columns))
        return pa.concat_tables(parts)

    # --------------------------------------------------------------------------------------------------- comparison

    def _compared(self, period_us: int, expected: DataFrame, stored: pa.Table, keys: list[str]) -> Audited:
        """Match expected and stored rows by their keys, and compare their values.

        Values agree if they are equal (null and NaN equal themselves), or differ by no more than the tolerance of
        their column.
        """
        from pyspark.sql import functions as F

        if stored.num_columns > len(keys) or stored.num_rows:
            results = tables.to_spark(self.spark, stored)
        else:  # nothing was ever written
            columns = [F.col(quoted(name)) for name in expected.columns if not name.startswith(ABOUT)]
            results = expected.select(*columns).limit(0)
        kinds = types_of(results)
        values = [name for name in results.columns if name not in keys]
        about = [name for name in expected.columns if name.startswith(ABOUT)]
        lost = _lost(types_of(expected), kinds, values)

        def side(rows: DataFrame, name: str, tolerances: list[str], texts: dict[str, str]) -> DataFrame:
            columns = [*values, *tolerances]
            casts = {column: f"try_cast({quoted(column)} as {kinds.get(column, 'double')})" for column in columns}
            fields = ", ".join(named({"is there": "true"} | casts | texts))
            identity = named({key: f"try_cast({quoted(key)} as {kinds[key]})" for key in keys})
            return rows.selectExpr(*identity, f"struct({fields}) as {name}")

        both = side(expected, _EXPECTED, about, lost).unionByName(
            side(results, _STORED, [], {}), allowMissingColumns=True
        )
        both = both.groupBy(*(F.col(quoted(key)) for key in keys)).agg(
            *(F.expr(f"any_value({name}, true) as {name}") for name in (_EXPECTED, _STORED))
        )
        cases = [f"when {_STORED} is null then 'missing'", f"when {_EXPECTED} is null then 'extra'"]
        texts = [f"when {_STORED} is null then 'is missing'", f"when {_EXPECTED} is null then 'should not be there'"]
        for name in values:
            same = _same(quoted(name), kinds[name], quoted(ABOUT + name) if ABOUT + name in about else None)
            should = f"string({_EXPECTED}.{quoted(name)})"
            if _LOST + name in lost:
                lost_text = f"{_EXPECTED}.{quoted(_LOST + name)}"
                same, should = f"{lost_text} is null and {same}", f"coalesce({lost_text}, {should})"
            arguments = f"coalesce(string({_STORED}.{quoted(name)}), 'null'), coalesce({should}, 'null')"
            template = "has {} %s, should be %s".format(name.replace("%", "%%"))
            template = template.replace("\\", "\\\\").replace("'", "\\'")
            cases.append(f"when not ({same}) then 'other'")
            texts.append(f"when not ({same}) then format_string('{template}', {arguments})")
        compared = both.selectExpr(
            *(quoted(key) for key in keys),
            f"case {' '.join(cases)} else 'right' end as {_OUTCOME}",
            f"case {' '.join(texts)} end as {quoted(IN_WORDS)}",
        ).persist()
        try:
            counts = {row[0]: row[1] for row in compared.groupBy(F.expr(_OUTCOME)).count().collect()}
            wrong = compared.where(f"{_OUTCOME} <> 'right'").drop(_OUTCOME.strip("`"))
            examples = (
                wrong.orderBy(*(F.col(quoted(key)) for key in keys)).limit(SHOWN).toArrow()
                if len(counts) > 1 or "right" not in counts
                else pa.table({})
            )
        finally:
            compared.unpersist()
        missing, extra, other = (counts.get(outcome, 0) for outcome in ("missing", "extra", "other"))
        results_expected = sum(counts.values()) - extra
        return Audited(period_us, results_expected, missing, extra, other, self._with_starts(examples))

    def _with_starts(self, examples: pa.Table) -> pa.Table:
        """Replace the number of a window by its start."""
        if WINDOW_NO not in examples.column_names:
            return examples
        assert isinstance(self.spec, WindowedSpec)
        start = pa.array(examples[WINDOW_NO].to_numpy() * self.spec.window.slide_us).cast(delta.TIMESTAMP)
        return examples.set_column(examples.column_names.index(WINDOW_NO), WINDOW[0], start)


_LOST = "lost "
"""Prefix of a column with an expected value as text, where the type of the stored column cannot hold the value."""


def _lost(expected: dict[str, str], stored: dict[str, str], columns: list[str]) -> dict[str, str]:
    """Return the SQL of the columns with prefix `_LOST`, by name, given the types of expected and stored columns.

    A stored float has none, since it is rounded anyway; nor has a map, since Spark does not compare maps.
    """
    texts = {}
    for name in columns:
        source, kind, value = expected.get(name), stored[name], quoted(name)
        if source not in (None, kind) and kind not in ("float", "double") and "map<" not in f"{source}{kind}":
            back = f"try_cast(try_cast({value} as {kind}) as {source})"
            texts[_LOST + name] = f"if({back} <=> {value}, null, string({value}))"
    return texts


def _same(name: str, kind: str, about: str | None) -> str:
    """Return the SQL of whether the stored value of a column is the expected one.

    Parameters
    ----------
    kind
        The column's Spark type.
    about
        Name of the column with its tolerance; None: values have to be equal.
    """
    expected, stored = f"{_EXPECTED}.{name}", f"{_STORED}.{name}"
    if "map<" in kind:  # Spark does not compare maps
        return f"string({expected}) <=> string({stored})"
    if about is None:
        return f"{expected} <=> {stored}"
    tolerance = f"{_EXPECTED}.{about}"
    near = f"{tolerance} < double('infinity') and abs(double({expected}) - double({stored})) <= {tolerance}"
    return f"({expected} <=> {stored} or coalesce({near}, false))"
