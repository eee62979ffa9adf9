"""`explain`: what every retention would have given, counted from history, and where today's choice stands.

For each constant retention the control plane is run again over the counts of the whole history (no row is read twice), so
recall, the share of periods that meet the target and the rows held are what `run` would have had. The
*clairvoyant* is the least constant that meets the target in the promised share of periods.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from latecomer.core.join import IntervalSummary, JoinControl
from latecomer.core.policies import Constant, RetentionParameters
from latecomer.jobs import text
from latecomer.lake import journal
from latecomer.lake.errors import InputError
from latecomer.lake.location import Lake
from latecomer.quality import ledger as books

if TYPE_CHECKING:
    from latecomer.spark.join import History

POINTS = 24


@dataclass(frozen=True)
class Point:
    """One constant retention: its recall, share of periods that met the target, mean rows held."""

    retention_us: int
    recall: float
    periods_met: float
    rows_held: float


@dataclass(frozen=True)
class Explained:
    """The curve, the clairvoyant (None where no constant reaches the promise), and what was done."""

    query: str
    target: float
    confidence: float
    points: list[Point]
    clairvoyant: Point | None
    done: Point | None
    knob: str = "retention"
    share: str = "recall"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    def to_text(self) -> str:
        """A table for a terminal."""
        rows = [
            (f"{p.retention_us / 1e6:,.3f} s", f"{p.recall:.4f}", f"{p.periods_met:.2f}", f"{p.rows_held:,.0f}")
            for p in self.points
        ]
        lines = [
            f"{self.query}: target {self.target:g}, to be met in {self.confidence:.4g} of all periods",
            "",
            text.table((self.knob, self.share, "periods met", "rows held"), rows),
            "",
        ]
        for name, point in (("clairvoyant", self.clairvoyant), ("as run", self.done)):
            if point is not None:
                lines.append(
                    f"{name}: {self.knob} {point.retention_us / 1e6:,.3f} s, {self.share} {point.recall:.4f}, periods met {point.periods_met:.2f}, rows held {point.rows_held:,.0f}"
                )
        lines.append(
            f"(clairvoyant: the shortest constant {self.knob} that would have met the target in enough periods)"
        )
        return "\n".join(lines)


def explain(lake: Lake, spec: Any, *, plot: Path | None = None) -> Any:
    """Count history and evaluate a grid of constants.

    Raises
    ------
    InputError
        The query has not been run, or computed something else when it was run.
    """
    state = journal.state_for(lake, spec)
    if plot is not None and plot.suffix != ".png":
        raise InputError("--plot", str(plot), "is not a .png file", "end it in .png")
    if spec.kind != "join":
        from latecomer.jobs import explain_windows

        return explain_windows.explain(lake, spec, state, plot)
    from latecomer.spark.join import JoinStage
    from latecomer.spark.session import session

    stage = JoinStage(spec, session(lake, rows=state.seq_to), lake)
    history = stage.history(state.seq_to)
    settings = RetentionParameters.of(spec)
    confidence = settings.confidence
    points = [evaluate(history, settings, retention) for retention in candidates(history.intervals, settings)]
    clairvoyant = next((p for p in points if p.periods_met >= confidence), None)
    found = Explained(spec.name, spec.target, confidence, points, clairvoyant, _done(lake, spec))
    if plot is not None:
        draw(found, plot)
    return found


def candidates(history: list[IntervalSummary], settings: RetentionParameters) -> list[int]:
    """Retentions worth a look, in us: quantiles of what pairs needed, on the grid of `g`."""
    cells = np.concatenate([s.cells for s in history]) if history else np.empty((0, 6), np.int64)
    if not len(cells):
        return [0]
    order = np.argsort(cells[:, 1], kind="stable")
    bucket, weight = cells[order, 1], np.cumsum(cells[order, 4])
    shares = 1 - np.geomspace(1.0, 1e-5, POINTS - 1)
    places = np.minimum(np.searchsorted(weight, shares * weight[-1]), len(bucket) - 1)
    return sorted({int(b + 1) * settings.granularity_us for b in [*bucket[places], bucket[-1]]})


def evaluate(history: History, settings: RetentionParameters, retention_us: int) -> Point:
    """What one constant would have given."""
    control = JoinControl(
        Constant(retention_us, retention_us),
        window_us=settings.window_us,
        interval_us=settings.interval_us,
        granularity_us=settings.granularity_us,
        period_us=settings.period_us,
    )
    control.wait_for_speech(history.before_speech)
    control.step(history.intervals)
    produced: dict[int, int] = {}
    expected: dict[int, int] = {}
    for summary in history.intervals:
        period = summary.interval * settings.interval_us // settings.period_us
        seen = summary.cells[:, 1] < retention_us // settings.granularity_us
        expected[period] = expected.get(period, 0) + int(summary.cells[:, 4].sum())
        produced[period] = produced.get(period, 0) + int(summary.cells[seen, 4].sum())
    area = sum(a.held_area for a in control.accounts.values())
    weight = sum(a.weight_us for a in control.accounts.values())
    met = [produced[p] >= settings.target * expected[p] for p in expected]
    whole = sum(expected.values())
    return Point(
        retention_us,
        sum(produced.values()) / whole if whole else 1.0,
        sum(met) / len(met) if met else 1.0,
        area / weight if weight else 0.0,
    )


def _done(lake: Lake, spec: Any) -> Point | None:
    rows = books.ledger(lake, spec).to_pandas()
    rows = rows[rows["achieved_on_time"].notna()] if len(rows) else rows
    if not len(rows):
        return None
    columns = [c for c in rows.columns if c.startswith("retention_")]
    chosen = rows[columns].max(axis=1).dropna()
    return Point(
        int(chosen.mean()) if len(chosen) else 0,
        float(rows["on_time"].sum() / max(rows["expected"].sum(), 1)),
        float((rows["achieved_on_time"] >= rows["target"]).mean()),
        float(rows["rows_held_mean"].mean()),
    )


@contextmanager
def picture(path: Path, panels: int) -> Iterator[tuple[Any, list[Any]]]:
    """A figure with its axes side by side, written to `path` at the end.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, panels, figsize=(max(8, 4 * panels), 4.5), layout="constrained", squeeze=False)
    try:
        yield figure, list(axes[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError("--plot", str(path), reason, "choose a folder that can be written") from None
    finally:
        plt.close(figure)


def draw(found: Explained, path: Path) -> None:
    """Recall and share of periods met against rows held; the target, the clairvoyant and the run marked."""
    held = [p.rows_held for p in found.points]
    with picture(path, 1) as (_, (axis,)):
        axis.plot(held, [p.recall for p in found.points], "o-", label=f"{found.share}, constant {found.knob}")
        met = [p.periods_met for p in found.points]
        axis.plot(held, met, "s--", color="0.5", label="share of periods that meet the target")
        axis.axhline(found.target, color="k", linewidth=0.8, linestyle=":", label=f"target {found.target:g}")
        marks = (("as run", found.done, "D", 12, "tab:green"), ("clairvoyant", found.clairvoyant, "*", 14, "tab:red"))
        for name, point, mark, size, colour in marks:  # the smaller in front: they may coincide
            if point is not None:
                label = f"{name}: {point.rows_held:,.0f} rows"
                at = [point.rows_held], [point.recall]
                axis.plot(*at, mark, markersize=size, color=colour, markeredgecolor="white", alpha=0.9, label=label)
        axis.set(xlabel="rows held, mean", ylabel="share", title=found.query)
        axis.legend(fontsize="small", loc="lower right")
