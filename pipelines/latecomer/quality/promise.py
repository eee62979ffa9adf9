"""Judge the periods of a query, and its promise by the periods that were judged; for `check`, `explain` and the demo.

A *verdict* is about one period. It falls once, when the period is closed (stream time has left it, and the usual
lateness has passed since), no late row of it awaits repair, something was due in it, and the strategy was not learning.
Learning excuses a miss, not a loss: if the learning periods that are complete hold at least `ENOUGH_WINDOWS` windows,
and less than half of what the target asks of them was on time, they are judged as all others.
The period kept its promise if ``achieved_on_time`` reaches the target; of an aggregate, the target less what chance
takes from so few answers. A period is judged again only if its counts, or the target in the query file, have changed. A
period that turns pending keeps its verdict, so the promise is a function of the set of verdicts: it stays as it is
while nothing new is judged, in whatever order periods were closed, repaired and checked.

The *promise* is judged by the last `over` verdicts, or those `since` a time. Periods that the query file excludes do
not count, nor do periods of *suspected clocks*: more than half of their rows are more than a minute ahead of their
arrivals, while less than half of everything due is of such periods. All four tests have to pass:

1. Of the periods that hold at least a tenth (`SMALL`) of a usual period's results (the median), at most
   ``allowed_misses`` missed: 9 of 100. So stray rows make no period that votes.
2. The same for the *large* ones alone. They hold at least a tenth of what half of all results have in their period or
   more. So many quiet nights do not hide the days.
3. The same for the smaller periods alone, if there are at least 20 (`MANY_SMALL`) of them: they are part of the stream.
   So days do not hide the nights.
4. Of everything that was due, ``target * confidence`` was on time, less what chance takes from so many results. This is
   what the promise comes to if the periods that may miss lose all. So a large period that missed by far shows among
   few periods, where the other tests call it chance.

Wrong alarms. Tests 1 to 3 fail an honest query, whose periods miss independently with probability ``1 - confidence``,
in at most 5% (`LEVEL`) of the checks each: 2.8% for 100 equal periods, for which 1 to 3 are one test. Test 4 adds none
where a missed period loses at most a fifth of its results and five or more are judged. Where it loses all (an outage),
an honest query fails 6% of the checks over 100 periods, 27% over 20 and 40% over ten: one outage in ten periods is
reported, and `exclude` answers it.

Hidden misses. A query that misses twice as many periods as it may passes 45% of the checks over 100 periods, three
times as many 5.5%, four times 0.2%. Over 20 periods it is 87, 65 and 41%. Hence the default of 100 periods
(:data:`latecomer.specs.judging.OVER`): fewer tell little, and over many more a bad month hides in a good year.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from latecomer.specs.aggregate import AggregateSpec
from latecomer.specs.membership import MembershipSpec
from latecomer.specs.spec import Spec
from latecomer.specs.windows import RevisedSpec, WindowedSpec

LEVEL = 0.05
"""Probability at which a query that keeps its promise, or a filter that keeps its rate, may fail a test."""
SMALL = 10
"""A period is small if it holds less than one part in so many of a usual one."""
MANY_SMALL = 20
"""Number of small periods from which they are judged among themselves."""
ENOUGH_WINDOWS = 20
"""Windows of learning periods from which a loss is no accident of the start: the first windows close unwarned."""
RULE = 1
"""Number of the rule that this module states. Verdicts are stored with it."""
DECIDING = ("due", "on_time", "answers", "answers_off", "achieved", "needed", "target")
"""Columns of a verdict whose change makes a new verdict."""
VOTES, SMALL_VOTE, CLOCKS, EXCLUDED = "votes", "small", "clocks", "excluded"
"""Values of ``vote`` in ``Judgement.periods``."""

JUDGED, LEARNING, COMING_IN = "judged", "learning", "coming in"
AWAITS_REPAIR, NOTHING_DUE = "awaits repair", "nothing due"
"""Values of :func:`standing`."""


def known(ledger: pd.DataFrame) -> pd.DataFrame:
    """Return the periods whose completeness is known: no late row of theirs awaits repair."""
    return ledger[ledger["achieved_on_time"].notna()].reset_index(drop=True) if len(ledger) else ledger


def judged(ledger: pd.DataFrame) -> pd.DataFrame:
    """Return the known periods in which a result was due."""
    rows = known(ledger)
    return rows[rows["expected"] > 0].reset_index(drop=True) if len(rows) else rows


def kept(ledger: pd.DataFrame) -> tuple[int, int]:
    """Return the number of known periods that reached the target, and of all known periods with results due."""
    rows = judged(ledger)
    return (int((rows["achieved_on_time"] >= rows["target"]).sum()) if len(rows) else 0), len(rows)


def is_learning(ledger: pd.DataFrame) -> NDArray[np.bool_]:
    """Return in which periods of a ledger the strategy was learning; in none where the ledger does not say."""
    if "learning" not in ledger:
        return np.zeros(len(ledger), np.bool_)
    return np.asarray(ledger["learning"].eq(True), np.bool_)


def standing(ledger: pd.DataFrame, judged: pd.Series, complete_to_us: int) -> pd.Series:
    """Return of each period of a ledger why it has no verdict yet, or ``judged``.

    The other values are ``learning``, ``coming in``, ``awaits repair`` and ``nothing due``. `judged` has the starts of
    the periods that have a verdict.
    """
    values = np.full(len(ledger), NOTHING_DUE, object)
    if len(ledger):
        values[is_learning(ledger)] = LEARNING
        values[ledger["achieved_on_time"].isna()] = AWAITS_REPAIR
        values[microseconds(ledger["period_end"]) > complete_to_us] = COMING_IN
        if len(judged):
            values[np.isin(microseconds(ledger["period_start"]), microseconds(judged))] = JUDGED
    return pd.Series(values, index=ledger.index, dtype=object)


def verdicts(spec: Spec, ledger: pd.DataFrame, complete_to_us: int, again: pd.Series | None = None) -> pd.DataFrame:
    """Judge each period that can be judged by now.

    Parameters
    ----------
    ledger
        The query's ledger, with times in UTC.
    complete_to_us
        Periods that end later are still coming in, microseconds.
    again
        Starts of periods that were judged before; they are judged again, also if they are coming in once more.

    Returns
    -------
    DataFrame
        One row per period, by start: ``period_start``, ``period_end``, ``due`` and ``on_time`` (in the ledger's unit;
        where results only grow, what `run` recalled is on time), ``answers`` and ``answers_off`` (of an aggregate, else
        null), ``achieved``, ``needed``, ``target`` and ``kept``.
    """
    rows = ledger[~is_learning(ledger) | _is_lost(spec, ledger, complete_to_us)] if len(ledger) else ledger
    rows = judged(rows.reset_index(drop=True))
    if not len(rows):
        return pd.DataFrame(columns=["period_start", "period_end", *DECIDING, "kept"])
    complete = microseconds(rows["period_end"]) <= complete_to_us
    if again is not None and len(again):
        complete |= np.isin(microseconds(rows["period_start"]), microseconds(again))
    rows = rows[complete]
    unknown = pd.Series(pd.NA, index=rows.index, dtype="Int64")
    # an answer that is replaced is judged by its first version
    counts = "recalled" in rows and not isinstance(spec, RevisedSpec)
    recalled = rows["recalled"].fillna(0) if counts else 0
    current = pd.DataFrame(
        {
            "period_start": rows["period_start"],
            "period_end": rows["period_end"],
            "due": rows["expected"].astype("Int64"),
            "on_time": (rows["on_time"] + recalled).astype("Int64"),
            "answers": rows["windows"].astype("Int64") if "windows" in rows else unknown,
            "answers_off": rows["windows_off"].astype("Int64") if "windows_off" in rows else unknown,
            "achieved": rows["achieved_on_time"].astype(float),
            "needed": spec.target,
            "target": spec.target,
        }
    )
    if isinstance(spec, AggregateSpec):
        allowed = {n: allowed_misses(n, spec.target, 1 - spec.confidence) for n in current["answers"].unique()}
        current["needed"] = [(n - allowed[n]) / n for n in current["answers"]]
    current["kept"] = current["achieved"] >= current["needed"]
    return current.sort_values("period_start").reset_index(drop=True)


def _is_lost(spec: Spec, ledger: pd.DataFrame, complete_to_us: int) -> bool:
    """Return whether the complete learning periods lost so much that learning does not excuse it."""
    rows = judged(ledger[is_learning(ledger)].reset_index(drop=True))
    if not len(rows) or not isinstance(spec, WindowedSpec):
        return False
    rows = rows[microseconds(rows["period_end"]) <= complete_to_us]
    due = rows["expected"].astype(float)
    on_time = float((due * rows["achieved_on_time"].astype(float)).sum())
    windows = len(rows) * spec.period_us / spec.window.size_us
    return windows >= ENOUGH_WINDOWS and on_time < float(due.sum()) * spec.target / 2


def changed(stored: pd.DataFrame, current: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts of `current` that are new or differ from the stored ones.

    Parameters
    ----------
    stored
        The last stored verdict of each period.
    current
        As of :func:`verdicts`.

    Returns
    -------
    DataFrame
        Rows of `current` with ``judgement``: 0 for the first verdict of a period, 1 for the next.
    """
    if not len(stored) or not len(current):
        return current.assign(judgement=np.zeros(len(current), np.int64))
    before = stored.set_index("period_start").reindex(current["period_start"]).reset_index(drop=True)
    same = before["judgement"].notna().to_numpy(np.bool_)
    for name in DECIDING:
        old, new = (frame[name].astype(float).to_numpy() for frame in (before, current))
        same &= (old == new) | (np.isnan(old) & np.isnan(new))
    number = before["judgement"].fillna(-1).astype(np.int64).to_numpy() + 1
    return current.assign(judgement=number)[~same].reset_index(drop=True)


def merged(stored: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Return the last verdict of each period, by start, from stored and new ones."""
    parts = [frame for frame in (stored, new) if len(frame)]
    if not parts:
        return new
    rows = pd.concat(parts, ignore_index=True).sort_values(["period_start", "judgement"])
    return rows.drop_duplicates("period_start", keep="last").reset_index(drop=True)


@dataclass(frozen=True)
class Group:
    """Periods that are judged among themselves.

    Attributes
    ----------
    name
        ``periods``, ``large periods`` or ``small periods``.
    rows
        Their verdicts.
    missed, allowed
        Periods that missed, and the most that may by chance.
    """

    name: str
    rows: pd.DataFrame
    missed: int
    allowed: int

    @property
    def kept(self) -> bool:
        """Whether no more periods missed than chance explains."""
        return self.missed <= self.allowed


@dataclass(frozen=True)
class Judgement:
    """The outcome of a promise.

    Attributes
    ----------
    periods
        The verdicts that `over` or `since` selects, with ``vote`` (one of `VOTES`, `SMALL_VOTE`, `CLOCKS` and
        `EXCLUDED`) and ``why``, the reason of an exclusion.
    groups
        The groups that were judged; empty where no verdict counts.
    due, on_time
        Results due in the periods that count, and those of them that were on time. Of an aggregate, rows weigh answers.
    needed
        The least of `on_time`.
    """

    periods: pd.DataFrame
    groups: tuple[Group, ...] = ()
    due: float = 0.0
    on_time: float = 0.0
    needed: float = 0.0

    @property
    def kept(self) -> bool:
        """Whether all tests pass."""
        return all(group.kept for group in self.groups) and self.on_time >= self.needed


def weigh(spec: Spec, verdicts: pd.DataFrame) -> Judgement:
    """Judge the promise by verdicts, the last of each period, by start, with ``rows`` and ``rows_ahead``."""
    judging, rows = spec.judging, verdicts
    if not len(rows):
        return Judgement(rows.assign(vote=pd.Series(dtype=str), why=pd.Series(dtype=str)))
    start = microseconds(rows["period_start"])
    why = np.full(len(rows), "", object)
    for exclusion in judging.exclude:
        inside = (start < exclusion.to_us) & (microseconds(rows["period_end"]) > exclusion.from_us)
        why[inside & (why == "")] = exclusion.why
    rows = rows.assign(why=why, vote=np.where(why != "", EXCLUDED, VOTES))
    if judging.since_us is not None:
        rows = rows[start >= judging.since_us]
    else:  # `over` periods count; the excluded ones between them are shown
        counted = np.flatnonzero(why == "")
        rows = rows[counted[-judging.over] :] if len(counted) > judging.over else rows
    rows = rows.reset_index(drop=True)
    due = rows["due"].to_numpy(float)
    counts = (rows["vote"] == VOTES).to_numpy()
    clocks = counts & (2 * rows["rows_ahead"].to_numpy(float) > rows["rows"].to_numpy(float))
    if 2 * due[clocks].sum() < due[counts].sum():
        counts &= ~clocks
        rows.loc[clocks, "vote"] = CLOCKS
    if not counts.any():
        return Judgement(rows)
    small = counts.copy()
    small[counts] = is_small(due[counts])
    rows.loc[small, "vote"] = SMALL_VOTE
    votes = counts & ~small
    large = votes & (due * SMALL >= _half_lie_in(due[counts]))
    named: list[tuple[str, NDArray[np.bool_]]] = [("periods", votes)]
    if large.sum() < votes.sum():
        named.append(("large periods", large))
    if small.sum() >= MANY_SMALL:
        named.append(("small periods", small))
    groups = []
    for name, members in named:
        those = rows[members].reset_index(drop=True)
        missed, allowed = int((~those["kept"].astype(bool)).sum()), allowed_misses(len(those), spec.confidence)
        groups.append(Group(name, those, missed, allowed))
    total = float(due[counts].sum())
    share = spec.target * spec.confidence
    return Judgement(
        rows,
        tuple(groups),
        total,
        float((due * rows["achieved"].to_numpy(float))[counts].sum()),
        total - allowed_misses(int(total), share),
    )


def is_small(due: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which periods hold less than a tenth (`SMALL`) of a usual one's results (the median of `due`)."""
    return due * SMALL < (np.quantile(due, 0.5, method="higher") if len(due) else 0.0)


def _half_lie_in(due: NDArray[np.float64]) -> float:
    """Return the size so that half of everything due lies in periods of that size or more."""
    sizes = np.sort(due)[::-1]
    return float(sizes[np.searchsorted(np.cumsum(sizes), due.sum() / 2)])


def filter_bounds(spec: Spec, ledger: pd.DataFrame) -> pd.DataFrame:
    """Return the periods by which `check` judges the filters of a membership; none for other kinds.

    ``passed`` counts the absent elements that passed the filters, and ``most_passed`` bounds it. All periods share the
    level, so that a long ledger does not fail by its length.
    """
    rows = known(ledger)
    if not isinstance(spec, MembershipSpec) or not len(rows):
        return rows[:0]
    rows = rows[rows["tested"] > rows["confirmed"]].reset_index(drop=True)
    absent = (rows["tested"] - rows["confirmed"]).astype(int)
    most = [allowed_misses(n, 1.0 - spec.false_positive_rate, LEVEL / len(rows)) for n in absent]
    return rows.assign(passed=rows["candidates"] - rows["confirmed"], most_passed=most)


def allowed_misses(periods: int, confidence: float, level: float = LEVEL) -> int:
    """Return the most periods that may miss by chance: the `1 - level` quantile of Binomial(n, 1 - confidence).

    A promise of 95% of periods is missed now and then, and among few periods one miss says little.
    """
    from scipy.stats import binom

    return int(binom.isf(level, periods, 1 - confidence)) if periods else 0


def microseconds(times: pd.Series) -> NDArray[np.int64]:
    """Return times in UTC as microseconds since 1970, int64[n]."""
    return np.asarray(times.dt.tz_localize(None).to_numpy("datetime64[us]").astype(np.int64))
