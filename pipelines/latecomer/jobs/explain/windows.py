"""Explain the windowed kinds: quality by slack, the plan of a theta join, the filters of a membership.

The history of a query with a target gives the slack that every answer (result, or member of a final top-k) required, so
one pass gives the whole curve. The *clairvoyant* is the least constant slack that meets the target in the promised
share of periods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.core.theta_join.edges import Comparison
from latecomer.core.theta_join.plan import plan_join
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import Observed
from latecomer.jobs import formatting
from latecomer.jobs.explain.by_column import Breakdown
from latecomer.jobs.explain.curve import Explained, explained
from latecomer.jobs.explain.picture import picture
from latecomer.jobs.explain.requirements import Requirements
from latecomer.lake.lake import Lake
from latecomer.ledger.ledger import ledger
from latecomer.specs import expressions as ex
from latecomer.specs.membership import MembershipSpec
from latecomer.specs.theta_join import Condition
from latecomer.specs.windows import WaitingSpec, WindowedSpec

if TYPE_CHECKING:
    import pandas as pd

    from latecomer.core.theta_join.plan import Plan as ThetaPlan
    from latecomer.lake.journal import RunState
    from latecomer.spark.theta_join.windows import ThetaJoinWindows
    from latecomer.spark.windows.stage import WindowedStage


@dataclass(frozen=True)
class Text:
    """An explanation in words.

    Attributes
    ----------
    query : str
        Name of the query.
    lines : list of str
        The explanation, for people.
    values : dict
        The same as JSON-able values, for programs.
    by : Breakdown, optional
        Lateness by the values of a column.
    """

    query: str
    lines: list[str]
    values: dict[str, float | str]
    by: Breakdown | None = None

    def to_dict(self) -> dict[str, object]:
        """Return a JSON-able dictionary of all attributes."""
        return asdict(self)

    def to_text(self) -> str:
        """Return the lines for a terminal, under the name of the query."""
        by = [] if self.by is None else ["", self.by.to_text()]
        return "\n".join([f"{self.query}:", *self.lines, *by])


def explain(lake: Lake, spec: WindowedSpec, state: RunState, plot: Path | None) -> Explained | Text:
    """Evaluate the history of a query over constant slacks.

    A theta join adds its plan and a membership its filters; without a promise, that is the whole explanation, and it
    is drawn to `plot`.
    """
    curved = spec.promises or not isinstance(spec, WaitingSpec)
    rows = ledger(lake, spec, state).to_pandas()
    if isinstance(spec, MembershipSpec) and not curved:
        return _filters(rows, spec, plot)
    from latecomer.spark.engine.session import tuned
    from latecomer.spark.registry import windowed_stage
    from latecomer.spark.theta_join.windows import ThetaJoinWindows

    stage = windowed_stage(spec, tuned(lake, state.seq_to), lake)
    more: tuple[str, ...] = ()
    if isinstance(stage.kind, ThetaJoinWindows):
        plan = _plan(stage, stage.kind, state.seq_to, None if curved else plot)
        if not curved:
            return plan
        more = tuple(plan.lines)
    if isinstance(spec, MembershipSpec):
        more = tuple(_filters(rows, spec, None).lines)
    history = stage.observation.history(state.seq_to, whole=state.flushed, per_answer=True)

    def costs(slacks_us: Sequence[int]) -> list[tuple[float, float]]:
        return stage.observation.costs(state.seq_to, history, spec.period_us, slacks_us)

    needs = requirements([window for windows in history for window in windows], stage.grid, spec.period_us)
    return explained(spec, needs, costs, rows, stage.grid.slide_us, more)


def requirements(history: list[Observed], grid: Grid, period_us: int) -> Requirements:
    """Return the slacks that the contributions of history required."""
    window = np.array([window.window for window in history], np.int64)
    period = (grid.end(window) - 1) // period_us * period_us
    none, nothing = np.empty(0, np.int64), np.empty(0)
    required = np.concatenate([none, *(window.required_us for window in history)])
    weight = np.concatenate([nothing, *(window.weight for window in history)])
    required_in = np.repeat(period, [len(window.required_us) for window in history])
    due = np.array([window.total for window in history], np.float64)
    return Requirements.of(period_us, period, due, required_in, required, weight)


def _plan(stage: WindowedStage, kind: ThetaJoinWindows, seq_to: int, plot: Path | None) -> Text:
    """Plan the largest window so far; the text has the predicted comparisons, the figure the partition pairs joined."""
    from pyspark.sql import functions as F

    assigner, stored = kind.assigner, stage.rows.stored(seq_to=seq_to).where("ok")
    rows = assigner.in_windows(stored, assigner.first_of("ts"), assigner.last_of("ts"))
    counts = rows.groupBy("_m").count().orderBy(F.desc("count"), "_m").limit(1).collect()
    if not counts:
        return Text(kind.spec.name, ["no rows yet"], {})
    window = counts[0]["_m"]
    table = rows.where(F.col("_m") == window).drop("ok", "shard", "ts").toArrow()
    parts, streams, comparisons = kind.window_join.encode(table)
    plan = plan_join(streams, comparisons, kind.spec.strategy.partitions)
    start = window * stage.grid.slide_us
    names, conditions = (
        [alias for alias, _ in kind.spec.streams],
        [_query_text(condition) for condition in kind.spec.conditions],
    )
    cuts = []
    for edge in plan.edges:
        operands = zip(
            kind.window_join.conditions[edge.condition][::2], _operands(comparisons[edge.condition]), strict=True
        )
        known = [(streams[place][column], parts[place][operand.column]) for operand, (place, column) in operands]
        cuts.append([_value(cut, known) for cut in edge.cuts])
    shown = plan.to_text(names, conditions, cuts)
    if plot is not None:
        _draw_plan(plan, names, conditions, f"{kind.spec.name}: the largest window so far", plot)
    largest = f"largest window starts at {formatting.instant(start)}, {counts[0]['count']:,} rows"
    name = kind.spec.strategy.name
    if name != "fast_theta_join":
        largest += f"; {name} compares in its own way, fast_theta_join would go by this plan"
    return Text(kind.spec.name, [largest, shown], {"window_start_us": start, "rows": counts[0]["count"], "plan": shown})


def _query_text(condition: Condition) -> str:
    """Return a condition in the syntax of query files."""
    left, right = (
        ex.to_spark_sql(side, lambda column: f"{column.alias}.{column.name}").replace("`", "")
        for side in (condition.left, condition.right)
    )
    return f"{left} {condition.op} {right}"


def _operands(comparison: Comparison) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return stream and operand column of both sides."""
    return (comparison.left, comparison.left_column), (comparison.right, comparison.right_column)


def _value(code: float, known: Sequence[tuple[NDArray[np.int64], pa.ChunkedArray]]) -> str:
    """Return the value that an operand's code stands for, read from a row with that code."""
    for codes, values in known:
        at = np.flatnonzero(codes == code)
        if len(at):
            value = values[int(at[0])].as_py()
            return f"{value:g}" if isinstance(value, float) else formatting.one_line(value, 40)
    return str(code)


def _draw_plan(plan: ThetaPlan, names: list[str], conditions: list[str], title: str, path: Path) -> None:
    """Draw, per edge of the plan, which pairs of partitions are joined, compared or ruled out."""
    colours = {"ruled out": "#e6e9ee", "compared row by row": "#f0a35e", "joined whole": "#5b8def"}
    names_of_axes = [str(place) for place in range(max(len(plan.edges), 1))]
    with picture(path, [names_of_axes]) as (figure, axes):
        from matplotlib.colors import ListedColormap

        for axis, edge in zip(axes.values(), plan.edges, strict=False):
            shades = ListedColormap(list(colours.values()))
            axis.imshow(edge.kinds.T, origin="lower", aspect="auto", cmap=shades, vmin=-0.5, vmax=2.5)
            left, right = names[edge.left], names[edge.right]
            axis.set(
                xlabel=f"partition of {left}, values rising",
                ylabel=f"partition of {right}, values rising",
                title=f"{formatting.one_line(conditions[edge.condition], 36)}\n{edge.comparisons:,} comparisons",
            )
        marks = [axes["0"].plot([], [], "s", color=colour, label=name)[0] for name, colour in colours.items()]
        figure.legend(handles=marks, loc="outside lower center", ncols=3, fontsize="small")
        figure.suptitle(f"{title}, {plan.comparisons:,} comparisons")


def _filters(rows: pd.DataFrame, spec: MembershipSpec, plot: Path | None) -> Text:
    """Sum up the elements that the filters passed and the bytes that they saved; the figure has them by period.

    `rows` is the ledger.
    """
    if not spec.counts_filters:
        return Text(spec.name, [f"strategy {spec.strategy.name} counts nothing about filters; mcf and bloom do"], {})
    if plot is not None:
        _draw_filters(rows, spec, plot)
    names = ("tested", "candidates", "confirmed", "filter_bytes", "moved_bytes", "exact_bytes")
    values = {name: int(rows[name].sum()) if len(rows) else 0 for name in names}
    absent = values["tested"] - values["confirmed"]
    rate = (values["candidates"] - values["confirmed"]) / absent if absent else 0.0
    lines = [
        f"{values['tested']:,} elements tested, {values['candidates']:,} passed the filters, "
        f"{values['confirmed']:,} were in every stream (before repair)",
        f"false-positive rate of the filters {rate:.2g}, bound {spec.false_positive_rate:g}",
        f"{values['moved_bytes']:,} bytes moved between streams; "
        f"an exact semi-join would move {values['exact_bytes']:,}",
    ]
    return Text(spec.name, lines, {**values, "false_positive_rate": rate, "bound": spec.false_positive_rate})


def _draw_filters(rows: pd.DataFrame, spec: MembershipSpec, path: Path) -> None:
    """Draw the bytes moved between streams by period, beside those of an exact semi-join."""
    with picture(path, [["bytes"]]) as (_, axes):
        axis = axes["bytes"]
        if len(rows):
            axis.plot(rows["period_start"], rows["exact_bytes"], color="0.6", label="an exact semi-join would move")
            axis.plot(rows["period_start"], rows["moved_bytes"], "o-", markersize=3, label="moved")
            axis.legend(fontsize="small")
        axis.set(xlabel="period", ylabel="bytes", title=f"{spec.name}: bytes moved between streams", ylim=(0, None))
        axis.tick_params(axis="x", labelrotation=20)
