"""Explain a join: recall, periods met and rows held by constant retention, counted from history.

The history is counted once. For each constant retention the control plane runs again over these counts, which gives
the rows held of a `run` with that constant. The *clairvoyant* is the least constant that meets the target in the
promised share of periods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from latecomer.core.join.control import REQUIRED, RESULTS, JoinControl
from latecomer.core.join.retention_policies import ConstantRetention, RetentionParameters
from latecomer.jobs.explain.curve import Explained, explained
from latecomer.jobs.explain.requirements import Requirements
from latecomer.lake.journal import RunState
from latecomer.lake.lake import Lake
from latecomer.ledger.ledger import ledger
from latecomer.specs.join import JoinSpec

if TYPE_CHECKING:
    from latecomer.core.join.control import IntervalSummary
    from latecomer.spark.join.stage import History


def explain(lake: Lake, spec: JoinSpec, state: RunState) -> Explained:
    """Count the history of a join and evaluate a grid of constant retentions."""
    from latecomer.spark.engine.session import tuned
    from latecomer.spark.join.stage import JoinStage

    stage = JoinStage(spec, tuned(lake, state.seq_to), lake.snapshot())
    history, settings = stage.history(state.seq_to), stage.settings

    def costs(retentions_us: Sequence[int]) -> list[tuple[float, float]]:
        return [(rows_held(history, settings, retention), 0.0) for retention in retentions_us]

    rows = ledger(lake, spec, state).to_pandas()
    return explained(spec, requirements(history.intervals, settings), costs, rows, settings.interval_us)


def requirements(history: list[IntervalSummary], settings: RetentionParameters) -> Requirements:
    """Return the retentions that the pairs of history required."""
    none = np.empty((0, RESULTS + 1), np.int64)
    cells = np.concatenate([none, *(summary.cells[:, : RESULTS + 1] for summary in history)])
    interval = np.repeat(
        np.array([summary.interval for summary in history], np.int64), [len(summary.cells) for summary in history]
    )
    period = interval * settings.interval_us // settings.period_us * settings.period_us
    required = (cells[:, REQUIRED] + 1) * settings.granularity_us
    results = cells[:, RESULTS].astype(np.float64)
    return Requirements.of(settings.period_us, period, results, period, required, results)


def rows_held(history: History, settings: RetentionParameters, retention_us: int) -> float:
    """Return the mean rows held under a constant retention, over the periods in which rows arrived."""
    control = JoinControl(ConstantRetention(retention_us, retention_us), **settings.spans)
    control.hold_until_all_streams_seen(history.before_all_streams_seen)
    control.step(history.intervals)
    arrived = {summary.interval * settings.interval_us // settings.period_us for summary in history.intervals}
    accounts = [control.account(period * settings.period_us, as_of_now=True) for period in sorted(arrived)]
    return float(np.mean([account.held_area / max(account.weight_us, 1) for account in accounts])) if accounts else 0.0
