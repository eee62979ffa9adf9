"""The curve of `explain`: quality and cost by constant retention or slack, as values and as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from latecomer.core.time import FOREVER
from latecomer.jobs import formatting
from latecomer.jobs.explain.by_column import Breakdown
from latecomer.jobs.explain.requirements import Requirements
from latecomer.ledger.means import rows_held_mean, wait_mean_us
from latecomer.quality import promise
from latecomer.quality.messages import duration
from latecomer.specs.spec import Spec
from latecomer.specs.windows import WindowedSpec

TARGETS = (0.9, 0.95, 0.99)
"""Targets whose cost is told."""

Costs = Callable[[Sequence[int]], list[tuple[float, float]]]
"""From constants to the mean rows held and the mean wait (us) of each."""


@dataclass(frozen=True)
class Point:
    """One constant with its quality and cost.

    Attributes
    ----------
    constant_us : float
        The retention of a join, or the slack of a windowed kind; of the run itself its mean over stream time.
    wait_us : float
        The mean wait of the answers. It is longer than the slack where stream time jumps; 0 in a join.
    share : float
        Recall, hit rate or share of answers within the error, over the whole history.
    periods_met : float
        Share of the periods that met the target. Periods of a few stray rows do not count.
    rows_held : float
        Mean rows held, as the ledger has it.
    """

    constant_us: float
    wait_us: float
    share: float
    periods_met: float
    rows_held: float


@dataclass(frozen=True)
class TargetCost:
    """The least constant that meets a target in enough periods; None where no acceptable one does."""

    target: float
    point: Point | None


@dataclass(frozen=True)
class PeriodChoice:
    """One period of the history.

    Attributes
    ----------
    start_us : int
        Its start.
    chosen_us, needed_us : float, optional
        The constant that the run used, as a mean over stream time, and the least that meets the target; None where
        there is none.
    """

    start_us: int
    chosen_us: float | None
    needed_us: float | None


@dataclass(frozen=True)
class Explained:
    """The curve of a query over constants.

    Attributes
    ----------
    query : str
        Name of the query.
    target, confidence : float
        Target of a period, and share of the periods that must meet it.
    constant, share : str
        Names of what is constant and of the quality.
    points : list of Point
        The curve, ascending in the constant.
    clairvoyant : Point, optional
        The least constant that keeps the promise; None if no acceptable one does.
    done : Point, optional
        The run itself; None before its first period is known.
    same_cost : Point, optional
        The constant that holds as many rows as the run: a fixed watermark of the same cost.
    costs : list of TargetCost
        What other targets cost.
    history : list of PeriodChoice
        The run's choices and the needs, by period.
    longest_us : int
        The longest constant that is acceptable: the query's ``max_wait``, where it states one.
    beyond, due : float
        Contributions that would have needed more than that, and all contributions.
    by : Breakdown, optional
        Lateness by the values of a column.
    more : tuple of str
        Further lines about the work of the query.
    """

    query: str
    target: float
    confidence: float
    constant: str
    share: str
    points: list[Point]
    clairvoyant: Point | None
    done: Point | None
    same_cost: Point | None
    costs: list[TargetCost]
    history: list[PeriodChoice]
    longest_us: int
    beyond: float
    due: float
    by: Breakdown | None = None
    more: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether answers wait; a join answers at once."""
        return self.constant == "slack"

    @property
    def marked(self) -> list[tuple[str, Point]]:
        """The run, the clairvoyant, and the constant of the same cost, as far as there are such, by name."""
        named = {
            "as run": self.done,
            "clairvoyant": self.clairvoyant,
            f"fixed {self.constant}, as many rows": self.same_cost,
        }
        return [(name, point) for name, point in named.items() if point is not None]

    def to_dict(self) -> dict[str, object]:
        """Return a JSON-able dictionary of all attributes."""
        return asdict(self)

    def to_text(self) -> str:
        """Return tables and sentences for a terminal."""
        within = f"to be met in {self.confidence:.4g} of all periods"
        marked = [self._cells(name, point) for name, point in self.marked]
        curve = [self._cells("", point) for point in self.points]
        header = ["", self.constant, *(["wait"] if self.waits else []), self.share, "periods met", "rows held"]
        lines = [
            f"{self.query}: target {self.target:g}, {within}",
            "",
            formatting.table(header, [*marked, *curve]),
            "",
            self.cost_sentence(),
            *self.remarks(),
        ]
        if self.by is not None:
            lines += ["", self.by.to_text()]
        return "\n".join([*lines, *(["", *self.more] if self.more else [])])

    def cost_sentence(self) -> str:
        """Return in one sentence what other targets cost."""
        parts = []
        for cost in self.costs:
            if cost.point is None:
                parts.append(f"{cost.target:g} no {self.constant} up to {duration(self.longest_us)} reaches")
                continue
            point = cost.point
            wait = f" (answers wait {duration(point.wait_us)})" if self.waits else ""
            parts.append(f"{cost.target:g} costs {duration(point.constant_us)}{wait} and {rows(point.rows_held)} rows")
        return f"In hindsight, as a constant {self.constant}, a target of {', '.join(parts)}."

    def remarks(self) -> list[str]:
        """Return sentences that say what the words mean, and what no acceptable constant keeps."""
        lines = [
            f"(clairvoyant: the shortest constant {self.constant} that would have met the target in enough periods"
            f"{f'; fixed {self.constant}, as many rows: one that holds as many as the run' if self.same_cost else ''})"
        ]
        if self.beyond:
            lines.append(
                f"{self.beyond:,.0f} of {self.due:,.0f} results ({self.beyond / self.due:.2%}) would have needed a "
                f"{self.constant} of more than {duration(self.longest_us)}; they are left to repair, and not shown."
            )
        return lines

    def _cells(self, name: str, point: Point) -> list[str]:
        wait = [duration(point.wait_us)] if self.waits else []
        constant = "everything" if point.constant_us >= FOREVER else duration(point.constant_us)
        return [name, constant, *wait, f"{point.share:.4f}", f"{point.periods_met:.2f}", rows(point.rows_held)]


def rows(count: float) -> str:
    """Return a number of rows with at most four digits: ``850``, ``9,120``, ``12.3 k``, ``4.56 M``."""
    for unit, size in ((" M", 1_000_000), (" k", 1_000)):
        if count >= 10 * size or (unit == " M" and count >= size):
            return f"{count / size:,.{2 if count < 10 * size else 1}f}{unit}"
    return "unknown" if math.isnan(count) else f"{count:,.0f}" if count >= 10 else f"{count:.2g}"


def explained(
    spec: Spec, needs: Requirements, costs: Costs, ledger: pd.DataFrame, at_least_us: int, more: tuple[str, ...] = ()
) -> Explained:
    """Evaluate a curve.

    Parameters
    ----------
    needs
        What the contributions of history required.
    costs
        The cost of constants.
    ledger
        The query's ledger.
    at_least_us
        A constant that is acceptable in any case, where the query states no ``max_wait``.
    """
    target, confidence = spec.target, spec.confidence
    accepted = spec.max_wait_us if isinstance(spec, WindowedSpec) else None
    longest = needs.longest(target, confidence, at_least_us) if accepted is None else accepted
    least = {goal: needs.least(goal, confidence) for goal in {target, *TARGETS}}
    possible = {goal: constant for goal, constant in least.items() if constant <= longest}
    constants = sorted({*needs.candidates(longest), *possible.values()})
    points = {
        constant: Point(constant, wait, needs.recall(constant), needs.periods_met(constant, target), held)
        for constant, (held, wait) in zip(constants, costs(constants), strict=True)
    }
    by_target = {goal: points[constant] for goal, constant in possible.items()}
    done = as_run(spec, ledger)
    shown = set(needs.candidates(longest))
    return Explained(
        spec.name,
        target,
        confidence,
        "retention" if spec.kind == "join" else "slack",
        {"aggregate": "answers within error", "topk": "hit rate"}.get(spec.kind, "recall"),
        [point for constant, point in points.items() if constant in shown],
        by_target.get(target) if needs.votes.any() else None,
        done,
        None if done is None else same_cost(needs, target, list(points.values()), done.rows_held),
        [TargetCost(goal, by_target.get(goal)) for goal in TARGETS],
        choices(needs, target, ledger),
        longest,
        needs.beyond(longest),
        needs.total,
        more=more,
    )


def same_cost(needs: Requirements, target: float, points: list[Point], rows_held: float) -> Point | None:
    """Return the constant that holds so many rows, between two points of a curve; None beyond its ends."""
    held = np.maximum.accumulate([point.rows_held for point in points])
    if not held[0] <= rows_held <= held[-1]:
        return None
    constant = int(np.interp(rows_held, held, [point.constant_us for point in points]))
    wait = float(np.interp(constant, [point.constant_us for point in points], [point.wait_us for point in points]))
    return Point(constant, wait, needs.recall(constant), needs.periods_met(constant, target), rows_held)


def as_run(spec: Spec, ledger: pd.DataFrame) -> Point | None:
    """Return the point of the run itself; None before its first period is known."""
    judged = promise.judged(ledger)
    if not len(judged):
        return None
    due = judged["expected"].to_numpy(float)
    votes = judged[~promise.is_small(due)]
    answers = judged["windows"].to_numpy(float) if "windows" in judged else due  # what `achieved_on_time` is a share of
    chosen = _chosen(ledger).dropna()
    return Point(
        float(chosen.mean()) if len(chosen) else 0.0,
        wait_mean_us(ledger) if spec.kind != "join" else 0.0,
        float(answers @ judged["achieved_on_time"].to_numpy(float) / answers.sum()),
        float((votes["achieved_on_time"] >= spec.target).mean()),
        rows_held_mean(ledger),
    )


def choices(needs: Requirements, target: float, ledger: pd.DataFrame) -> list[PeriodChoice]:
    """Return the periods that count, with the run's constant and the one they needed."""
    needed = dict(zip(needs.start_us[needs.votes].tolist(), needs.needed(target)[needs.votes].tolist(), strict=True))
    chosen: dict[int, float] = {}
    if len(ledger):
        values = _chosen(ledger)
        start = promise.microseconds(ledger["period_start"])
        known = values.notna().to_numpy()
        chosen = dict(zip(start[known].tolist(), values[known].tolist(), strict=True))
    return [PeriodChoice(start, chosen.get(start), needed[start]) for start in sorted(needed)]


def _chosen(ledger: pd.DataFrame) -> pd.Series:
    """Return the run's constant per period, microseconds: the mean slack, or the longer of the two retentions."""
    names = [name for name in ledger if name == "slack_mean_us" or str(name).startswith("retention_")]
    return ledger[names].astype(float).max(axis=1)
