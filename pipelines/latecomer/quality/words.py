"""What an expectation found, in the words of the query's author; Great Expectations' own name stays beside them.

Periods are named by their start. A value that misses its bound never looks as if it met it: it is written with as many digits
as that takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa

from latecomer.specs.membership import MembershipSpec
from latecomer.specs.spec import Spec

SHOWN = 3
"""Most periods, counts or results that a message lists."""
_SHARES = {"join": "recall on time", "aggregate": "answers within the error", "topk": "hit rate"}


def describe(spec: Spec, subject: str, each: Any, frame: pd.DataFrame, allowed: int) -> dict[str, Any]:
    """One expectation's outcome.

    Parameters
    ----------
    subject
        What was looked at: ``promises``, ``ledger``, ``books``, ``results`` or ``audit``.
    each
        Great Expectations' result.
    frame
        The rows it judged.
    allowed
        Periods that may miss what the query promises before that is more than chance.

    Returns
    -------
    dict
        ``expectation`` (Great Expectations' name), ``subject``, ``success``, ``says`` (what is expected, in two or three words),
        ``observed``, ``expected``, ``message`` (all of it on one line).
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
    rows = list(zip(broken["period_start"], broken["achieved_on_time"], broken["least"], strict=True))
    if spec.kind == "aggregate":  # every period has a bound of its own
        lines = [(start, f"{_beside(value, least)}, at least {least:.4g}") for start, value, least in rows]
        below, enough = f"too far below {spec.target:g}", f"at least {spec.target:g} (less where there are few answers)"
    else:
        target = float(frame["least"].iloc[0])
        lines = [(start, _beside(value, least)) for start, value, least in rows]
        below, enough = f"below {target:g}", f"at least {target:g}"
    periods = f"in {len(frame) - allowed} of {len(frame)} periods" if allowed else "in every period"
    return _SHARES[spec.kind], _periods(frame, lines, below, enough), f"{enough} {periods}"


def _passed(spec: MembershipSpec, frame: Any, broken: Any, how: Any, allowed: int) -> tuple[str, str, str]:
    rows = zip(broken["period_start"], broken["passed"], broken["most_passed"], strict=True)
    lines = [(start, f"{int(passed):,}, at most {int(most):,}") for start, passed, most in rows]
    bound = f"a rate of {spec.false_positive_rate:g}, and what chance adds"
    return "false positives", _periods(frame, lines, f"above {bound}", f"at most {bound},"), f"at most {bound}"


def _complete(spec: Spec, frame: Any, broken: Any, how: Any, allowed: int) -> tuple[str, str, str]:
    rows = zip(broken["period_start"], broken["achieved_final"], strict=True)
    lines = [(start, _beside(value, 1.0)) for start, value in rows]
    return "complete after repair", _periods(frame, lines, "below 1", "everything"), "everything in every period"


def _held(spec: Spec, frame: Any, broken: Any, how: Any, allowed: int) -> tuple[str, str, str]:
    most = f"{int(how['max_value']):,}"
    lines = [(start, f"{int(n):,}") for start, n in zip(broken["period_start"], broken["rows_held_max"], strict=True)]
    source = "quality.rows_held" if spec.rows_held else "twice the rows read"
    return "rows held", _periods(frame, lines, f"above {most}", f"at most {most}"), f"at most {most} ({source})"


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
    periods = ", ".join(_moment(start) for start in frame["period_start"][:SHOWN]) + (
        ", ..." if len(frame) > SHOWN else ""
    )
    observed = f"all {int(frame['results'].sum()):,} results of {len(frame)} periods agree ({periods})"
    if len(broken):
        lines = []
        for row in broken.itertuples():
            counts = {"missing": row.missing, "too many": row.extra, "other": row.other}
            lines.append((row.period_start, ", ".join(f"{n:,} {what}" for what, n in counts.items() if n) + row.some))
        observed = f"{len(broken)} of {len(frame)} audited periods differ{_some(lines)}"
    return "results as recomputed", observed, "what plain SQL over all stored rows answers"


_WORDS: dict[str, Callable[..., tuple[str, str, str]]] = {
    "expect_recall_to_meet_target": _promise,
    "expect_error_within_promise": _promise,
    "expect_false_positives_bounded": _passed,
    "expect_complete_after_repair": _complete,
    "expect_rows_held_bounded": _held,
    "expect_conservation": _equal,
    "expect_no_duplicate_result": _once,
    "expect_results_as_recomputed": _recomputed,
}


def _periods(frame: pd.DataFrame, lines: list[tuple[Any, str]], missed: str, kept: str) -> str:
    if lines:
        return f"{len(lines)} of {len(frame)} periods {missed}{_some(lines)}"
    return f"{kept} in all {len(frame)} periods" if len(frame) > 1 else f"{kept} in the only period"


def _some(lines: list[tuple[Any, str]]) -> str:
    shown = [f"{_moment(name)}: {value}" if value else str(name) for name, value in lines[:SHOWN]]
    return f" ({'; '.join(shown)}{'; ...' if len(lines) > SHOWN else ''})"


def some_of(rows: pa.Table) -> str:
    """Some rows of a table, by column."""
    shown = rows.slice(0, SHOWN + 1).to_pylist()  # one more tells that there are more
    return _some([(", ".join(f"{key} {_moment(value)}" for key, value in row.items()), "") for row in shown])


def differing(rows: pa.Table) -> str:
    """Some results of an audit: what names each, and in the last column what it is and should be."""
    lines = []
    for row in rows.to_pylist():
        what = row.pop(rows.column_names[-1])
        lines.append((f"{', '.join(f'{key} {_moment(value)}' for key, value in row.items())} {what}", ""))
    return _some(lines)


def _moment(value: Any) -> str:
    """A period's start without what is the same for all: the zone, which is UTC, and midnight."""
    return str(value).removesuffix("+00:00").removesuffix(" 00:00:00")


def _beside(value: float, bound: float) -> str:
    """The number with as many digits as tell it from a bound that it misses."""
    for digits in (4, 6, 9):
        text = f"{value:.{digits}g}"
        if (float(text) < bound) == (value < bound):
            return text
    return repr(float(value))


def _place(entry: Any) -> int:
    return int(next(iter(entry.values()))) if isinstance(entry, dict) else int(entry)
