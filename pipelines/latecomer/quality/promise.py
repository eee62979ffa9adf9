"""Which periods a promise is judged by, and how many of them may miss: one definition for `check`, `explain` and the demo.

A promise is about the periods in which something was due. One in which nothing was has nothing to be late; counted as kept, it
would make up for one that was not: a shop that is closed at night would have half its hours kept whatever happens by day.
"""

from __future__ import annotations

import pandas as pd

from latecomer.specs.aggregate import AggregateSpec
from latecomer.specs.membership import MembershipSpec
from latecomer.specs.spec import Spec

LEVEL = 0.05
"""Chance at which an honest query, or the filters of one, may fail a check."""


def known(ledger: pd.DataFrame) -> pd.DataFrame:
    """Periods whose truth is known: nothing registered there is pending."""
    return ledger[ledger["achieved_on_time"].notna()].reset_index(drop=True) if len(ledger) else ledger


def judged(ledger: pd.DataFrame) -> pd.DataFrame:
    """Of these, the ones in which something was due."""
    rows = known(ledger)
    return rows[rows["expected"] > 0].reset_index(drop=True) if len(rows) else rows


def kept(ledger: pd.DataFrame) -> tuple[int, int]:
    """Periods that reached the target itself, and judged ones."""
    rows = judged(ledger)
    return (int((rows["achieved_on_time"] >= rows["target"]).sum()) if len(rows) else 0), len(rows)


def bounds(spec: Spec, ledger: pd.DataFrame) -> pd.DataFrame:
    """The periods by which `check` judges what the query promises of answers on time, with what it holds each of them to.

    ``least`` is what ``achieved_on_time`` has to reach: the target, of an aggregate less what chance alone takes from a small number of
    answers.
    """
    rows = judged(ledger)
    if not len(rows):
        return rows
    if not isinstance(spec, AggregateSpec):
        return rows.assign(least=rows["target"])
    windows = rows["windows"].astype(int)
    return rows.assign(
        least=(windows - [allowed_misses(n, spec.target, 1 - spec.confidence) for n in windows]) / windows
    )


def filter_bounds(spec: Spec, ledger: pd.DataFrame) -> pd.DataFrame:
    """Of a membership, the periods by which `check` judges its filters; of other kinds none.

    ``passed`` and ``most_passed`` are absent elements that passed the filters, and how many may: at a level that all periods share, so
    that a long ledger of honest filters does not fail by its length.
    """
    rows = known(ledger)
    if not isinstance(spec, MembershipSpec) or not len(rows):
        return rows[:0]
    rows = rows[rows["tested"] > rows["confirmed"]].reset_index(drop=True)
    absent = (rows["tested"] - rows["confirmed"]).astype(int)
    most = [allowed_misses(n, 1.0 - spec.false_positive_rate, LEVEL / len(rows)) for n in absent]
    return rows.assign(passed=rows["candidates"] - rows["confirmed"], most_passed=most)


def allowed_misses(periods: int, confidence: float, level: float = LEVEL) -> int:
    """Most periods that may miss before it is no longer chance: the `1 - level` quantile of Binomial(n, 1 - confidence).

    A promise kept in 95% of periods is broken now and then; with few periods one miss says little.
    """
    from scipy.stats import binom

    return int(binom.isf(level, periods, 1 - confidence)) if periods else 0
