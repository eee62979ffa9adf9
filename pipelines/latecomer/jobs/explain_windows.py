"""`explain` for the windowed kinds: error or hit rate against the wait, the plan of a theta join, the filters of a membership.

For aggregates and top-k, history says what wait every answer (or member of a final top-k) would have required, so one pass gives
the whole curve. Rows held at a wait are the measured arrival rate times window and wait. The *clairvoyant* is the least constant wait
that keeps the promise in the promised share of periods.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from latecomer.core.windows import Grid, Observed
from latecomer.jobs.explain import POINTS, Explained, Point, draw
from latecomer.lake.errors import InputError
from latecomer.lake.location import Lake
from latecomer.quality import ledger as books

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from latecomer.lake.journal import RunState


@dataclass(frozen=True)
class Text:
    """An explanation in words: the query, and lines that may be parsed as `values`."""

    query: str
    lines: list[str]
    values: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    def to_text(self) -> str:
        """For a terminal."""
        return "\n".join([f"{self.query}:", *self.lines])


def explain(lake: Lake, spec: Any, state: RunState, spark: SparkSession, plot: Path | None) -> Explained | Text:
    """What every wait would have given; or, where nothing waits, what the work is.

    Raises
    ------
    InputError
        A plot was asked for where there is no curve.
    """
    from latecomer.spark.kinds import stage_of

    stage: Any = stage_of(spec, spark, lake)
    if spec.kind in ("theta_join", "membership"):
        if plot is not None:
            raise InputError("--plot", str(plot), f"a {spec.kind} has no curve", "leave --plot out")
        return _plan(stage, state.seq_to) if spec.kind == "theta_join" else _filters(lake, spec)
    if spec.kind == "aggregate":
        stage.by_answer = True
    history = [each for shard in stage.history(state.seq_to) for each in shard]
    confidence = spec.strategy.confidence
    rows = books.ledger(lake, spec).to_pandas()
    grid = stage.grid
    seconds = max((len(rows) * spec.period_us), 1)
    rate = float(rows["rows"].sum()) / seconds if len(rows) else 0.0
    points = [_point(history, grid, spec, wait, rate) for wait in _waits(history)]
    clairvoyant = next((p for p in points if p.periods_met >= confidence), None)
    share = "answers within error" if spec.kind == "aggregate" else "hit rate"
    found = Explained(spec.name, spec.target, confidence, points, clairvoyant, _done(rows), "wait", share)
    if plot is not None:
        draw(found, plot)
    return found


def _waits(history: list[Observed]) -> list[int]:
    """Waits worth a look: quantiles of what was required."""
    required = np.concatenate([h.required_us for h in history]) if history else np.empty(0, np.int64)
    weight = np.concatenate([h.weight for h in history]) if history else np.empty(0)
    if not len(required):
        return [0]
    order = np.argsort(required, kind="stable")
    sums = np.cumsum(weight[order])
    shares = 1 - np.geomspace(1.0, 1e-5, POINTS - 1)
    places = np.minimum(np.searchsorted(sums, shares * sums[-1]), len(order) - 1)
    return sorted({0, *(int(required[order[p]]) for p in places), int(required[order[-1]])})


def _point(history: list[Observed], grid: Grid, spec: Any, wait_us: int, rate: float) -> Point:
    lost: dict[int, float] = {}
    total: dict[int, float] = {}
    for each in history:
        period = (grid.end(each.window) - 1) // spec.period_us
        lost[period] = lost.get(period, 0.0) + each.lost(wait_us)
        total[period] = total.get(period, 0.0) + each.total
    whole = sum(total.values())
    met = [lost[p] <= (1 - spec.target) * total[p] + 1e-9 for p in total]
    return Point(
        wait_us,
        1.0 - sum(lost.values()) / whole if whole else 1.0,
        sum(met) / len(met) if met else 1.0,
        rate * (grid.size_us + wait_us),
    )


def _done(rows: Any) -> Point | None:
    rows = rows[rows["achieved_on_time"].notna()] if len(rows) else rows
    if not len(rows):
        return None
    wait = rows["wait_mean_us"].mean()
    return Point(
        int(wait),
        float(rows["achieved_on_time"].mean()),
        float((rows["achieved_on_time"] >= rows["target"]).mean()),
        float(rows["rows_held_mean"].mean()),
    )


def _plan(stage: Any, seq_to: int) -> Text:
    """The plan of the largest window so far, with its predicted comparisons."""
    from pyspark.sql import functions as F

    from latecomer.core import theta_join as theta

    rows = stage.in_windows(stage._stored(seq_to=seq_to), stage.first_of("ts"), stage.last_of("ts"))
    counts = rows.groupBy("m").count().orderBy(F.desc("count"), "m").limit(1).collect()
    if not counts:
        return Text(stage.spec.name, ["no rows yet"], {})
    window = counts[0]["m"]
    table = rows.where(F.col("m") == window).drop("ok", "shard", "ts").toArrow()
    _, streams, comparisons = stage.window_join.encoded(table)
    strategy = stage.spec.strategy
    plan = theta.plan(streams, comparisons, strategy.partitions, strategy.boundaries)
    start = window * stage.grid.slide_us
    lines = [f"largest window starts at {start} us, {counts[0]['count']:,} rows", plan.to_text()]
    return Text(stage.spec.name, lines, {"window_start_us": start, "rows": counts[0]["count"], "plan": plan.to_text()})


def _filters(lake: Lake, spec: Any) -> Text:
    """What the filters let through, and what they saved."""
    rows = books.ledger(lake, spec).to_pandas()
    names = ("tested", "candidates", "confirmed", "filter_bytes", "moved_bytes", "exact_bytes")
    values = {name: int(rows[name].sum()) if len(rows) else 0 for name in names}
    absent = values["tested"] - values["confirmed"]
    rate = (values["candidates"] - values["confirmed"]) / absent if absent else 0.0
    values_all: dict[str, Any] = values | {"false_positive_rate": rate, "bound": spec.false_positive_rate}
    lines = [
        f"{values['tested']:,} elements tested, {values['candidates']:,} candidates, {values['confirmed']:,} confirmed",
        f"false-positive rate {rate:.2g}, asked for {spec.false_positive_rate:g}",
        f"bytes moved {values['moved_bytes']:,}, of an exact semi-join {values['exact_bytes']:,}",
    ]
    return Text(spec.name, lines, values_all)
