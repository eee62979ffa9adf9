"""Decide which periods a promise is judged by and how many may miss it, for `check`, `explain` and the demo.

A promise is about the periods in which a result was due. A period without one cannot miss. Counted as kept, it would
make up for a period that missed: a shop that is closed at night would keep half its periods whatever happens by day.
"""

from __future__ import annotations

import pandas as pd

from latecomer.specs.aggregate import AggregateSpec
from latecomer.specs.membership import MembershipSpec
from latecomer.specs.spec import Spec

LEVEL = 0.05
"""Probability at which a query that keeps its promise, or a filter that keeps its rate, may fail a check."""


def known(ledger: pd.DataFrame) -> pd.DataFrame:
    """Return the periods whose completeness is known: no late row of theirs awaits repair."""
    return ledger[ledger["achieved_on_time"].notna()].reset_index(drop=True) if len(ledger) else ledger


def judged(ledger: pd.DataFrame) -> pd.DataFrame:
    """Return the known periods in which a result was due."""
    rows = known(ledger)
    return rows[rows["expected"] > 0].reset_index(drop=True) if len(rows) else rows


def kept(ledger: pd.DataFrame) -> tuple[int, int]:
    """Return the number of judged periods that reached the target, and of all judged periods."""
    rows = judged(ledger)
    return (int((rows["achieved_on_time"] >= rows["target"]).sum()) if len(rows) else 0), len(rows)


def bounds(spec: Spec, ledger: pd.DataFrame) -> pd.DataFrame:
    """Return the periods by which `check` judges the promise, with the bound of each.

    ``least`` is the value that ``achieved_on_time`` has to reach: the target, or for an aggregate the target less what
    chance alone takes from the period's number of answers.
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
