"""Explain a join: recall, periods met and rows held by constant retention, counted from history.

The history is counted once. For each constant retention the control plane runs again over these counts, which gives
the recall, the periods met and the rows held of a `run` with that constant. The *clairvoyant* is the least constant
that meets the target in the promised share of periods.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from latecomer.core.join.control import REQUIRED, RESULTS, SAMPLED, IntervalSummary, JoinControl
from latecomer.core.join.retention_policies import ConstantRetention, RetentionParameters
from latecomer.jobs.explain.curve import POINTS, Explained, Point, draw
from latecomer.lake.journal import RunState
from latecomer.lake.lake import Lake
from latecomer.ledger.ledger import ledger
from latecomer.quality import promise
from latecomer.specs.join import JoinSpec

if TYPE_CHECKING:
    from latecomer.spark.join.stage import History


_ROWS = ("rows_held_mean", "rows_recalled_mean")


def explain(lake: Lake, spec: JoinSpec, state: RunState, plot: Path | None) -> Explained:
    """Count the history of a join and evaluate a grid of constant retentions."""
    from latecomer.spark.engine.session import tuned
    from latecomer.spark.join.stage import JoinStage

    stage = JoinStage(spec, tuned(lake, state.seq_to), lake.snapshot())
    history = stage.history(state.seq_to)
    settings = stage.settings
    confidence = settings.confidence
    points = [evaluate(history, settings, retention) for retention in candidates(history.intervals, settings)]
    clairvoyant = next((p for p in points if p.periods_met >= confidence), None)
    curve = Explained(spec.name, spec.target, confidence, points, clairvoyant, _done(lake, spec, state))
    if plot is not None:
        draw(curve, plot)
    return curve


def candidates(history: list[IntervalSummary], settings: RetentionParameters) -> list[int]:
    """Return the retentions to evaluate, in us: quantiles of the pairs' required retentions, multiples of `g`."""
    cells = np.concatenate([s.cells for s in history]) if history else np.empty((0, SAMPLED + 1), np.int64)
    if not len(cells):
        return [0]
    order = np.argsort(cells[:, REQUIRED], kind="stable")
    bucket, weight = cells[order, REQUIRED], np.cumsum(cells[order, RESULTS])
    shares = 1 - np.geomspace(1.0, 1e-5, POINTS - 1)
    places = np.minimum(np.searchsorted(weight, shares * weight[-1]), len(bucket) - 1)
    return sorted({int(b + 1) * settings.granularity_us for b in [*bucket[places], bucket[-1]]})


def evaluate(history: History, settings: RetentionParameters, retention_us: int) -> Point:
    """Evaluate one constant retention over the history."""
    control = JoinControl(
        ConstantRetention(retention_us, retention_us),
        **settings.spans,
    )
    control.hold_until_all_streams_seen(history.before_all_streams_seen)
    control.step(history.intervals)
    produced: dict[int, int] = {}
    expected: dict[int, int] = {}
    for summary in history.intervals:
        period = summary.interval * settings.interval_us // settings.period_us
        seen = summary.cells[:, REQUIRED] < retention_us // settings.granularity_us
        expected[period] = expected.get(period, 0) + int(summary.cells[:, RESULTS].sum())
        produced[period] = produced.get(period, 0) + int(summary.cells[seen, RESULTS].sum())
    area = sum(account.held_area for account in control.accounts.values())
    weight = sum(account.weight_us for account in control.accounts.values())
    met = [produced[p] >= settings.target * expected[p] for p in expected]
    whole = sum(expected.values())
    return Point(
        retention_us,
        sum(produced.values()) / whole if whole else 1.0,
        sum(met) / len(met) if met else 1.0,
        area / weight if weight else 0.0,
    )


def _done(lake: Lake, spec: JoinSpec, state: RunState) -> Point | None:
    """Return the point of the run itself, from the periods of the ledger that are known."""
    rows = promise.known(ledger(lake, spec, state).to_pandas())
    if not len(rows):
        return None
    kept, judged = promise.kept(rows)
    columns = [c for c in rows.columns if c.startswith("retention_")]
    chosen = rows[columns].max(axis=1).dropna()
    return Point(
        int(chosen.mean()) if len(chosen) else 0,
        float((rows["expected"] - rows["missed"]).sum() / max(rows["expected"].sum(), 1)),
        kept / judged if judged else 1.0,
        float(rows[[name for name in _ROWS if name in rows]].sum(axis=1).mean()),
    )
