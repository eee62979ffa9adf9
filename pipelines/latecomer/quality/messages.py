"""What an expectation found, in the words of the query's author; Great Expectations' own name stays beside them.

Periods are named by their start. A value that misses its bound never looks as if it met it: it is written with as many
digits as that takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa

from latecomer.specs.errors import quantity
from latecomer.specs.membership import MembershipSpec
from latecomer.specs.spec import Spec

SHOWN = 3
"""Most periods, counts or results that a message lists."""
_UNITS = {"s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000}
_MOST = {"min": 60, "h": 24, "d": float("inf")}
_SHARES = {"aggregate": "answers within the error", "topk": "hit rate"}


def describe(spec: Spec, subject: str, each: Any, frame: pd.DataFrame, allowed: int) -> dict[str, Any]:
    """One expectation's outcome.

    Parameters
    ----------
    subject
        What was looked at: ``promises``, ``filters``, ``ledger``, ``books``, ``results``, ``streams`` or ``audit``.
    each
        Great Expectations' result.
    frame
        The rows it judged.
    allowed
        Periods that may miss what the query promises before that is more than chance.

    Returns
    -------
    dict
        ``expectation`` (Great Expectations' name), ``subject``, ``success``, ``says`` (what is expected, in two or
        three words), ``observed``, ``expected``, ``message`` (all of it on one line).
    """
    name = each.expectation_config.type
    found = each.result or {}
    broken = frame.loc[sorted(_place(entry) for entry in found.get("unexpected_index_list") or [])]
    says, observed, expected = _WORDS[name](spec, frame, broken, each.expectation_config.kwargs, allowed)
    if "unexpected_count" not in found:
        observed = f"could not be judged ({' '.join(str(each.exception_info).split())[:300]})"
    return {
        "expectation": name,
        "subject": subject,
        "success": bool(each.success),
        "says": says,
        "observed": observed,
        "expected": expected,
        "message": f"{says}: {observed}; expected: {expected} [{name}]",
    }


def _promise(spec: Spec, frame: Any, broken: Any, how: Any, allowed: int) -> tuple[str, str, str]:
    periods = f"in {len(frame) - allowed} of {len(frame)} periods" if allowed else "in every period"
    target = spec.target if spec.kind == "aggregate" else float(frame["least"].iloc[0])
    lowest = _extreme(frame, frame["achieved_on_time"], "lowest", lambda value: beside(value, target))
    if spec.kind == "aggregate":  # every period has a bound of its own
        lines = [(row.period_start, f"{_within(row)}, needed {_needed(row):,}") for row in broken.itertuples()]
        worst = next(frame.loc[[frame["achieved_on_time"].idxmin()]].itertuples())
        needed = f"{moment(worst.period_start)}: needed {_needed(worst):,} of {int(worst.windows):,}"
        enough = f"at least {target:g} of a period's answers, fewer where chance explains it ({needed}),"
        missed = "with too few answers within the error"
    else:
        lines = [(row.period_start, beside(row.achieved_on_time, row.least)) for row in broken.itertuples()]
        missed, enough = f"below {target:g}", f"at least {target:g}"
    observed = _periods(frame, lines, missed, lowest)
    reached = int((frame["achieved_on_time"] >= target).sum())
    if spec.kind == "aggregate" and reached < len(frame):
        observed += f"; {reached:,} of {len(frame):,} periods reach {target:g} itself"
    return _SHARES.get(spec.kind, "recall on time"), observed, f"{enough} {periods}"


def _within(row: Any) -> str:
    return f"{int(row.windows - row.windows_off):,} of {int(row.windows):,}"


def _needed(row: Any) -> int:
    """Answers that had to be within the error."""
    needed: int = round(row.least * row.windows)
    return needed


def _passed(spec: MembershipSpec, frame: Any, broken: Any, how: Any, allowed: int) -> tuple[str, str, str]:
    rows = zip(broken["period_start"], broken["passed"], broken["most_passed"], strict=True)
    lines = [(start, f"{int(passed):,}, at most {int(most):,}") for start, passed, most in rows]
    bound = f"a rate of {spec.false_positive_rate:g}, and what chance adds"
    passed, absent = int(frame["passed"].sum()), int((frame["tested"] - frame["confirmed"]).sum())
    kept = f"{passed:,} of {absent:,} elements that are not in every stream passed the filters"
    return "false positives", _periods(frame, lines, f"above {bound}", kept), f"at most {bound}"


def _complete(spec: Spec, frame: Any, broken: Any, how: Any, allowed: int) -> tuple[str, str, str]:
    rows = zip(broken["period_start"], broken["achieved_final"], strict=True)
    lines = [(start, beside(value, 1.0)) for start, value in rows]
    everything = f"everything {_all(frame)}"
    return "complete after repair", _periods(frame, lines, "below 1", everything), "everything in every period"


def _held(spec: Spec, frame: Any, broken: Any, how: Any, allowed: int) -> tuple[str, str, str]:
    most = f"{int(how['max_value']):,}"
    lines = [(start, f"{int(n):,}") for start, n in zip(broken["period_start"], broken["rows_held_max"], strict=True)]
    bound = f"at most {most} (quality.rows_held)"
    if not spec.rows_held:
        bound = f"no bound stated (quality.rows_held), so only {most}, twice the rows read"
    kept = _extreme(frame, frame["rows_held_max"], "most", lambda n: f"{int(n):,}")
    return "rows held", _periods(frame, lines, f"above {most}", kept), bound


def _heard(spec: Spec, frame: Any, broken: Any, how: Any, allowed: int) -> tuple[str, str, str]:
    most = duration(how["max_value"])
    observed = silent(broken) or f"each within {duration(frame['behind_us'].max())} of the last"
    return "streams heard", observed, f"none more than {most} behind the others (quality.silence)"


def silent(frame: pd.DataFrame) -> str:
    """Streams of which nothing was heard for long, empty where there are none: when, and how far that is behind the others."""
    return "; ".join(
        f"nothing of stream {row.stream} after {moment(row.last_event)}, {duration(row.behind_us)} before the last of {row.ahead}"
        for row in frame.itertuples()
    )


def _equal(spec: Spec, frame: Any, broken: Any, how: Any, allowed: int) -> tuple[str, str, str]:
    rows = zip(broken["law"], broken["left"], broken["right"], strict=True)
    lines = [(law, f"{int(left):,} against {int(right):,}") for law, left, right in rows]
    observed = f"{len(lines)} of {len(frame)} counts differ{_some(lines)}" if lines else "all counts agree"
    return "every row accounted for", observed, "both sides of every count are equal"


def _once(spec: Spec, frame: Any, broken: Any, how: Any, allowed: int) -> tuple[str, str, str]:
    (row,) = frame.itertuples()
    observed = f"all {row.rows:,} rows are unique"
    if row.rows != row.distinct:
        observed = f"{row.rows - row.distinct:,} of {row.rows:,} rows are there again{row.some}"
    return "no result twice", observed, f"every {row.names} once"


def _recomputed(spec: Spec, frame: Any, broken: Any, how: Any, allowed: int) -> tuple[str, str, str]:
    periods = ", ".join(moment(start) for start in frame["period_start"][:SHOWN]) + (
        ", ..." if len(frame) > SHOWN else ""
    )
    observed = f"all {int(frame['results'].sum()):,} results of {len(frame)} periods agree ({periods})"
    if len(broken):
        lines = []
        for row in broken.itertuples():
            counts = {"missing": row.missing, "too many": row.extra, "other": row.other}
            what = ", ".join(f"{n:,} {what}" for what, n in counts.items() if n) + row.some
            lines.append((row.period_start, f"{what}, as of {row.audited}"))
        observed = f"{len(broken)} of {len(frame)} audited periods differ{_some(lines)}; they count as wrong until `check --audit` finds them right"
    return "results as recomputed", observed, "what plain SQL over all stored rows answers"


_WORDS: dict[str, Callable[..., tuple[str, str, str]]] = {
    "expect_recall_to_meet_target": _promise,
    "expect_error_within_promise": _promise,
    "expect_false_positives_bounded": _passed,
    "expect_complete_after_repair": _complete,
    "expect_rows_held_bounded": _held,
    "expect_streams_heard": _heard,
    "expect_conservation": _equal,
    "expect_no_duplicate_result": _once,
    "expect_results_as_recomputed": _recomputed,
}


def _periods(frame: pd.DataFrame, lines: list[tuple[Any, str]], missed: str, kept: str) -> str:
    return f"{len(lines)} of {len(frame)} periods {missed}{_some(lines)}" if lines else kept


def _all(frame: pd.DataFrame) -> str:
    return f"in all {len(frame)} periods" if len(frame) > 1 else "in the only period"


def _extreme(frame: pd.DataFrame, values: pd.Series, which: str, show: Callable[[float], str]) -> str:
    """The lowest or the most of a value, and the first period that had it."""
    at = values.idxmin() if which == "lowest" else values.idxmax()
    if values.nunique() == 1:
        return f"{show(values[at])} {_all(frame)}"
    return f"{which} {show(values[at])} ({moment(frame['period_start'][at])}), of {len(frame)} periods"


def _some(lines: list[tuple[Any, str]]) -> str:
    shown = [f"{moment(name)}: {value}" if value else str(name) for name, value in lines[:SHOWN]]
    return f" ({'; '.join(shown)}{'; ...' if len(lines) > SHOWN else ''})"


def some_of(rows: pa.Table) -> str:
    """Some rows of a table, by column."""
    shown = rows.slice(0, SHOWN + 1).to_pylist()  # one more tells that there are more
    return _some([(", ".join(f"{key} {moment(value)}" for key, value in row.items()), "") for row in shown])


def differing(rows: pa.Table) -> str:
    """Some results of an audit: what names each, and in the last column what it is and should be."""
    lines = []
    for row in rows.to_pylist():
        what = row.pop(rows.column_names[-1])
        lines.append((f"{', '.join(f'{key} {moment(value)}' for key, value in row.items())} {what}", ""))
    return _some(lines)


def moment(value: Any) -> str:
    """A period's start without what is the same for all: the zone, which is UTC, and midnight."""
    return str(value).removesuffix("+00:00").removesuffix(" 00:00:00")


def beside(value: float, bound: float) -> str:
    """The number with as many digits as tell it from a bound that it misses."""
    for digits in (4, 6, 9):
        text = f"{value:.{digits}g}"
        if (float(text) < bound) == (value < bound):
            return text
    return repr(float(value))


def duration(time_us: float) -> str:
    """A length of time for reading: its two largest units, rounded; below a minute one unit."""
    sign, left = ("-" if time_us < 0 else ""), abs(time_us)
    for unit, size in (("us", 1), ("ms", 1_000), ("s", 1_000_000)):
        shown = f"{left / size:.3g}"
        if float(shown) < (60 if unit == "s" else 1_000):
            return f"{sign}{shown} {unit}" if float(shown) else "0 s"
    for (large, many), small in ((("min", 60), "s"), (("h", 60), "min"), (("d", 24), "h")):
        units = round(left / _UNITS[small])
        if units < many * _MOST[large]:
            break
    more = f" {units % many} {small}" if units % many else ""
    return f"{sign}{units // many:,} {large}{more}"


def unjudged(periods: int, of: int, pending: int) -> str:
    """What a check could not say, empty where there is nothing."""
    if not periods:
        return ""
    rows, wait = quantity(pending, "late row"), "awaits" if pending == 1 else "await"
    return f"{periods:,} of {of:,} periods not judged yet, {rows} {wait} repair"


def _place(entry: Any) -> int:
    return int(next(iter(entry.values()))) if isinstance(entry, dict) else int(entry)
