"""Average a ledger's rows held and waits over its periods, for `explain`, the report and the demo alike.

*Rows held* (:mod:`latecomer.core.rows_held`): the mean over the periods in which rows arrived. What a recall guarantee
read again counts. *Wait*: stream time from the end of a window (of a join: from the later row) to the publication of
its answer, as a mean over answers.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

HELD = ("rows_held_mean", "rows_recalled_mean")
"""Columns of a ledger that add up to the rows held."""


def rows_held_mean(ledger: pd.DataFrame) -> float:
    """Return the mean number of rows held, over the periods in which rows arrived; NaN where there is none."""
    rows = ledger[ledger["rows"] > 0]
    return float(rows[[name for name in HELD if name in rows]].sum(axis=1).mean()) if len(rows) else np.nan


def wait_mean_us(ledger: pd.DataFrame) -> float:
    """Return the mean wait over the answers that `run` published, microseconds; NaN where there is none."""
    if not len(ledger):
        return np.nan
    answers = ledger["windows" if "windows" in ledger else "on_time"].fillna(0).to_numpy(float)
    if "recalled" in ledger and "windows" not in ledger:
        answers = answers + ledger["recalled"].fillna(0).to_numpy(float)
    return float(answers @ ledger["wait_mean_us"].to_numpy(float) / answers.sum()) if answers.any() else np.nan
