"""Messages about the outcomes of expectations, in the words of the query's author and with Great Expectations' name.

Periods are named by their start. A value that misses its bound is written with enough digits to differ from the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TypedDict

import pandas as pd
import pyarrow as pa

from latecomer.quality import promise
from latecomer.specs.errors import quantity
from latecomer.specs.membership import MembershipSpec
from latecomer.specs.spec import Spec

if TYPE_CHECKING:
    from great_expectations.core import ExpectationValidationResult

SHOWN = 3
"""Most periods, counts or results that a message lists."""
_UNITS = {"s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000}
_MOST = {"min": 60, "h": 24, "d": float("inf")}
_SHARES = {"aggregate": "answers within the error", "topk": "hit rate"}
_GROUPS = {"large": "large periods", "small": "small periods"}
_PROMISES = ("promises", *_GROUPS, "whole")
"""Subjects of a promise."""


Message = tuple[str, str, str]
"""Name of an expectation, observed value and expected value."""


class Description(TypedDict):
    """The outcome of one expectation.

    Attributes
    ----------
    expectation
        Great Expectations' name.
    subject, success
        The subject of the check, and whether the expectation held.
    says
        The expectation in two or three words.
    observed, expected
        The observed and the expected value as text.
    message
        All of it on one line.
    """

    expectation: str
    subject: str
    success: bool
    says: str
    observed: str
    expected: str
    message: str


def describe(
    spec: Spec, subject: str, result: ExpectationValidationResult, frame: pd.DataFrame, remedy: str = ""
) -> Description:
    """Describe the outcome of one expectation.

    Parameters
    ----------
    subject
        The subject of the check: ``promises``, ``large``, ``small``, ``whole``, ``filters``, ``ledger``, ``books``,
        ``results``, ``streams`` or ``audit``.
    result
        Great Expectations' result.
    frame
        The validated rows.
    remedy
        What to do if the expectation is of a promise and is broken.
    """
    config = result.expectation_config
    assert config is not None
    name = config.type
    counts = result.result or {}
    broken = frame.loc[sorted(_place(entry) for entry in counts.get("unexpected_index_list") or [])]
    says, observed, expected = _MESSAGES[name](spec, frame, broken, config.kwargs)
    if "unexpected_count" not in counts:
        observed = f"could not be judged ({' '.join(str(result.exception_info).split())[:300]})"
    says = f"{says}, {_GROUPS[subject]}" if subject in _GROUPS else says
    advice = f"; {remedy}" if remedy and not result.success and subject in _PROMISES else ""
    return {
        "expectation": name,
        "subject": subject,
        "success": bool(result.success),
        "says": says,
        "observed": observed,
        "expected": expected,
        "message": f"{says}: {observed}; expected: {expected}{advice} [{name}]",
    }


def _promise(spec: Spec, frame: pd.DataFrame, broken: pd.DataFrame, bounds: Mapping[str, float]) -> Message:
    allowed = promise.allowed_misses(len(frame), spec.confidence)
    periods = f"in {len(frame) - allowed} of {len(frame)} periods" if allowed else "in every period"
    chance = f" (by chance, {allowed} may miss, at {1 - promise.LEVEL:.0%})" if allowed else ""
    target = spec.target if spec.kind == "aggregate" else float(frame["needed"].iloc[0])
    lowest = _extreme(frame, frame["achieved"], "lowest", lambda value: number(value, target))
    broken = broken.sort_values("new", ascending=False, kind="stable")
    unit = " rows" if spec.kind == "aggregate" else ""
    on_time = [f"{row.on_time:,} of {row.due:,}{unit} on time" for row in broken.itertuples()]
    if spec.kind == "aggregate":  # each period has its own bound
        lines = [
            (row.period_start, f"{_within(row)} answers, needed {_needed(row):,}, {rows}")
            for row, rows in zip(broken.itertuples(), on_time, strict=True)
        ]
        worst = next(frame.loc[[frame["achieved"].idxmin()]].itertuples())
        needed = f"{moment(worst.period_start)}: needed {_needed(worst):,} of {worst.answers:,}"
        enough = f"at least {target:g} of a period's answers, fewer where chance explains it ({needed}),"
        missed = "with too few answers within the error"
    else:
        lines = [
            (row.period_start, f"{number(row.achieved, row.needed)}, {rows}")
            for row, rows in zip(broken.itertuples(), on_time, strict=True)
        ]
        missed, enough = f"below {target:g}", f"at least {target:g}"
    new = int(broken["new"].sum())
    if len(broken):
        missed += f", {new} new and {len(broken) - new} known before" if new < len(broken) else ", all new"
    observed = _periods(frame, lines, missed, lowest)
    reached = int((frame["achieved"] >= target).sum())
    if spec.kind == "aggregate" and reached < len(frame):
        observed += f"; {reached:,} of {len(frame):,} periods reach {target:g} itself"
    return _SHARES.get(spec.kind, "recall on time"), observed, f"{enough} {periods}{chance}"


def _whole(spec: Spec, frame: pd.DataFrame, broken: pd.DataFrame, bounds: Mapping[str, float]) -> Message:
    (row,) = frame.itertuples()
    share, needed = row.on_time / row.due, row.needed / row.due
    observed = f"{number(share, needed)} of {row.due:,.0f} results"
    expected = f"at least {number(needed, share)} ({spec.target:g} in {spec.confidence:g} of the periods, less chance)"
    return "all periods together", observed, expected


class _PeriodAnswers(Protocol):
    """The row of a period: its answers, the answers beyond the error, and the share that had to be within it."""

    answers: int
    answers_off: int
    needed: float


def _within(row: _PeriodAnswers) -> str:
    return f"{row.answers - row.answers_off:,} of {row.answers:,}"


def _needed(row: _PeriodAnswers) -> int:
    """Return the number of answers that had to be within the error."""
    needed: int = round(row.needed * row.answers)
    return needed


def _passed(spec: MembershipSpec, frame: pd.DataFrame, broken: pd.DataFrame, bounds: Mapping[str, float]) -> Message:
    rows = zip(broken["period_start"], broken["passed"], broken["most_passed"], strict=True)
    lines = [(start, f"{int(passed):,}, at most {int(most):,}") for start, passed, most in rows]
    bound = f"a rate of {spec.false_positive_rate:g}, and what chance adds"
    passed, absent = int(frame["passed"].sum()), int((frame["tested"] - frame["confirmed"]).sum())
    kept = f"{passed:,} of {absent:,} elements that are not in every stream passed the filters"
    return "false positives", _periods(frame, lines, f"above {bound}", kept), f"at most {bound}"


def _complete(spec: Spec, frame: pd.DataFrame, broken: pd.DataFrame, bounds: Mapping[str, float]) -> Message:
    rows = zip(broken["period_start"], broken["achieved_final"], strict=True)
    lines = [(start, number(value, 1.0)) for start, value in rows]
    everything = f"everything {_all(frame)}"
    return "complete after repair", _periods(frame, lines, "below 1", everything), "everything in every period"


def _held(spec: Spec, frame: pd.DataFrame, broken: pd.DataFrame, bounds: Mapping[str, float]) -> Message:
    most = f"{int(bounds['max_value']):,}"
    lines = [(start, f"{int(n):,}") for start, n in zip(broken["period_start"], broken["rows_held_max"], strict=True)]
    bound = f"at most {most} (quality.rows_held)"
    if not spec.rows_held:
        bound = f"no bound stated (quality.rows_held), so only {most}, twice the rows read"
    kept = _extreme(frame, frame["rows_held_max"], "most", lambda n: f"{int(n):,}")
    return "rows held", _periods(frame, lines, f"above {most}", kept), bound


def _silence(spec: Spec, frame: pd.DataFrame, broken: pd.DataFrame, bounds: Mapping[str, float]) -> Message:
    most = duration(bounds["max_value"])
    observed = silent(broken) or f"each within {duration(frame['behind_us'].max())} of the last"
    return "streams heard", observed, f"none more than {most} behind the others (quality.silence)"


def silent(frame: pd.DataFrame) -> str:
    """Name the silent streams, their last event time, and the time by which they are behind; empty without any."""
    return "; ".join(
        f"nothing of stream {row.stream} after {moment(row.last_event)}, "
        f"{duration(row.behind_us)} before the last of {row.ahead}"
        for row in frame.itertuples()
    )


def _invariants(spec: Spec, frame: pd.DataFrame, broken: pd.DataFrame, bounds: Mapping[str, float]) -> Message:
    rows = zip(broken["law"], broken["left"], broken["right"], strict=True)
    lines = [(law, f"{int(left):,} against {int(right):,}") for law, left, right in rows]
    observed = f"{len(lines)} of {len(frame)} counts differ{_listed(lines)}" if lines else "all counts agree"
    return "every row accounted for", observed, "both sides of every count are equal"


def _unique(spec: Spec, frame: pd.DataFrame, broken: pd.DataFrame, bounds: Mapping[str, float]) -> Message:
    (row,) = frame.itertuples()
    observed = f"all {row.rows:,} rows are unique"
    if row.rows != row.distinct:
        observed = f"{row.rows - row.distinct:,} of {row.rows:,} rows are duplicates{row.some}"
    return "no result twice", observed, f"every {row.names} once"


def _recomputed(spec: Spec, frame: pd.DataFrame, broken: pd.DataFrame, bounds: Mapping[str, float]) -> Message:
    periods = ", ".join(moment(start) for start in frame["period_start"][:SHOWN])
    periods += ", ..." if len(frame) > SHOWN else ""
    observed = f"all {int(frame['results'].sum()):,} results of {len(frame)} periods agree ({periods})"
    if len(broken):
        lines = []
        for row in broken.itertuples():
            counts = {"missing": row.missing, "too many": row.extra, "other": row.other}
            differences = ", ".join(f"{n:,} {name}" for name, n in counts.items() if n) + row.some
            lines.append((row.period_start, f"{differences}, as of {row.audited}"))
        observed = (
            f"{len(broken)} of {len(frame)} audited periods differ{_listed(lines)}; "
            "they count as wrong until `check --audit` finds them right"
        )
    return "results as recomputed", observed, "the answers of plain SQL over all stored rows"


_MESSAGES: dict[str, Callable[..., Message]] = {
    "expect_recall_to_meet_target": _promise,
    "expect_error_within_promise": _promise,
    "expect_whole_to_meet_promise": _whole,
    "expect_false_positives_bounded": _passed,
    "expect_complete_after_repair": _complete,
    "expect_rows_held_bounded": _held,
    "expect_streams_heard": _silence,
    "expect_conservation": _invariants,
    "expect_no_duplicate_result": _unique,
    "expect_results_as_recomputed": _recomputed,
}


def _periods(frame: pd.DataFrame, lines: Sequence[tuple[object, str]], missed: str, kept: str) -> str:
    return f"{len(lines)} of {len(frame)} periods {missed}{_listed(lines)}" if lines else kept


def _all(frame: pd.DataFrame) -> str:
    return f"in all {len(frame)} periods" if len(frame) > 1 else "in the only period"


def _extreme(frame: pd.DataFrame, values: pd.Series, which: str, show: Callable[[float], str]) -> str:
    """Return the lowest or the highest value as text, and the first period that has it."""
    at = values.idxmin() if which == "lowest" else values.idxmax()
    if values.nunique() == 1:
        return f"{show(values[at])} {_all(frame)}"
    return f"{which} {show(values[at])} ({moment(frame['period_start'][at])}), of {len(frame)} periods"


def _listed(lines: Sequence[tuple[object, str]]) -> str:
    """List the first lines in brackets."""
    shown = [f"{moment(name)}: {value}" if value else str(name) for name, value in lines[:SHOWN]]
    return f" ({'; '.join(shown)}{'; ...' if len(lines) > SHOWN else ''})"


def examples(rows: pa.Table) -> str:
    """List the first rows of a table, by column."""
    shown = rows.slice(0, SHOWN + 1).to_pylist()  # one row more shows whether the list is cut
    return _listed([(", ".join(f"{key} {moment(value)}" for key, value in row.items()), "") for row in shown])


def differing(rows: pa.Table) -> str:
    """List the first differing results of an audit; the last column says how each differs."""
    lines: list[tuple[object, str]] = []
    for row in rows.to_pylist():
        difference = row.pop(rows.column_names[-1])
        identity = ", ".join(f"{key} {moment(value)}" for key, value in row.items())
        lines.append((f"{identity} {difference}", ""))
    return _listed(lines)


def moment(value: object) -> str:
    """Return a time as text, without the zone (UTC) and without midnight."""
    return str(value).removesuffix("+00:00").removesuffix(" 00:00:00")


def number(value: float, bound: float) -> str:
    """Return a number with enough digits to show on which side of a bound it is."""
    for digits in (4, 6, 9):
        text = f"{value:.{digits}g}"
        if (float(text) < bound) == (value < bound):
            return text
    return repr(float(value))


def duration(time_us: float) -> str:
    """Return a duration in its two largest units, rounded; below a minute in one unit."""
    sign, length_us = ("-" if time_us < 0 else ""), abs(time_us)
    for unit, size in (("us", 1), ("ms", 1_000), ("s", 1_000_000)):
        shown = f"{length_us / size:.3g}"
        if float(shown) < (60 if unit == "s" else 1_000):
            return f"{sign}{shown} {unit}" if float(shown) else "0 s"
    for (large, many), small in ((("min", 60), "s"), (("h", 60), "min"), (("d", 24), "h")):
        units = round(length_us / _UNITS[small])
        if units < many * _MOST[large]:
            break
    more = f" {units % many} {small}" if units % many else ""
    return f"{sign}{units // many:,} {large}{more}"


def unjudged(standing: pd.Series, pending: int) -> str:
    """Return a sentence about the periods without a verdict; empty without any.

    Parameters
    ----------
    standing
        As of :func:`latecomer.quality.promise.standing`.
    pending
        Late rows that await repair.
    """
    coming, waiting, learning = (
        int((standing == name).sum()) for name in (promise.COMING_IN, promise.AWAITS_REPAIR, promise.LEARNING)
    )
    parts = [f"{coming:,} still coming in"] if coming else []
    if waiting:
        rows, wait = quantity(pending, "late row"), "awaits" if pending == 1 else "await"
        parts.append(f"{waiting:,} with late rows that await repair" if coming else f"{rows} {wait} repair")
    sentences = (
        [f"{coming + waiting:,} of {len(standing):,} periods not judged yet, {', '.join(parts)}"] if parts else []
    )
    sentences += [f"{quantity(learning, 'period')} not judged, because the strategy was learning"] if learning else []
    return "; ".join(sentences)


def promise_line(
    spec: Spec, judgement: promise.Judgement, last_check: float | None, *, repaired: int, recalled: int, pending: int
) -> str:
    """Return a sentence about a promise: whether it is kept, what missed, what is new, and the late rows.

    Parameters
    ----------
    last_check
        When the query was last checked, seconds since 1970; None: never.
    repaired, recalled, pending
        Late rows that are repaired, results that `run` published for late rows, and late rows that await repair.
    """
    if not spec.promises:
        return ""
    counts = {"repaired": quantity(repaired, "late row"), "recalled": f"{recalled:,}", "pending": f"{pending:,}"}
    rows = ", ".join(f"{count} {name}" for name, count in counts.items() if name != "recalled" or recalled)
    if not judgement.groups:
        return f"promise not judged yet; {rows}"
    parts = []
    for group in judgement.groups:
        name = group.name if len(group.rows) != 1 else group.name.removesuffix("s")
        may = f"at most {group.allowed} may, by chance, at {1 - promise.LEVEL:.0%}" if group.allowed else "none may"
        parts.append(f"{group.missed:,} of {len(group.rows):,} {name} missed ({may})")
    missed = pd.concat([group.rows[~group.rows["kept"].astype(bool)] for group in judgement.groups])
    if len(missed) and last_check is not None:
        new = missed.loc[missed["new"].astype(bool), "period_start"].nunique()
        when = f"{datetime.fromtimestamp(last_check, UTC):%Y-%m-%d %H:%M} UTC"
        parts.append(f"{f'{new:,}' if new else 'none'} of them new since the check of {when}")
    votes = judgement.periods["vote"]
    for value, text in (
        (promise.CLOCKS, "of suspected clocks"),
        (promise.EXCLUDED, "excluded"),
        (promise.SMALL_VOTE, "too small to vote"),
    ):
        count = int((votes == value).sum())
        if count and not (value == promise.SMALL_VOTE and count >= promise.MANY_SMALL):
            parts.append(f"{quantity(count, 'period')} {text}")
    if judgement.on_time < judgement.needed:
        parts.append(f"of everything due, {number(judgement.on_time / judgement.due, 1.0)} was on time")
    return f"promise {'kept' if judgement.kept else 'broken'}: {', '.join(parts)}; {rows}"


def _place(entry: int | dict[str, int]) -> int:
    """Return the row number of an unexpected value; Great Expectations gives it alone or by column."""
    return int(next(iter(entry.values()))) if isinstance(entry, dict) else int(entry)
