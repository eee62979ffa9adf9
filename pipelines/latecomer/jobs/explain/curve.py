"""The curve of `explain`: quality and cost by constant retention or wait, as text and as a figure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from latecomer.jobs import formatting
from latecomer.lake.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 24
"""Values of the knob that are evaluated, about."""


@dataclass(frozen=True)
class Point:
    """One constant value of the knob with its quality and cost.

    Attributes
    ----------
    retention_us : int
        The retention of a join, or the wait of a windowed kind.
    recall : float
        Recall, hit rate or share of answers within the error, over the whole history.
    periods_met : float
        Share of the periods that met the target.
    rows_held : float
        Mean rows held over stream time.
    """

    retention_us: int
    recall: float
    periods_met: float
    rows_held: float


@dataclass(frozen=True)
class Explained:
    """The curve of a query over constant values of its knob.

    Attributes
    ----------
    query : str
        Name of the query.
    target, confidence : float
        Target of a period, and share of the periods that must meet it.
    points : list of Point
        The curve, ascending in the knob.
    clairvoyant : Point, optional
        The least constant that keeps the promise; None if no constant does.
    done : Point, optional
        The run itself; None before its first period is known.
    knob, share : str
        Names of the knob and of the quality.
    more : tuple of str
        Further lines about the work of the query.
    """

    query: str
    target: float
    confidence: float
    points: list[Point]
    clairvoyant: Point | None
    done: Point | None
    knob: str = "retention"
    share: str = "recall"
    more: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return a JSON-able dictionary of all attributes."""
        return asdict(self)

    def to_text(self) -> str:
        """Return a table for a terminal."""
        rows = [
            (f"{p.retention_us / 1e6:,.3f} s", f"{p.recall:.4f}", f"{p.periods_met:.2f}", f"{p.rows_held:,.0f}")
            for p in self.points
        ]
        lines = [
            f"{self.query}: target {self.target:g}, to be met in {self.confidence:.4g} of all periods",
            "",
            formatting.table((self.knob, self.share, "periods met", "rows held"), rows),
            "",
        ]
        for name, point in (("clairvoyant", self.clairvoyant), ("as run", self.done)):
            if point is not None:
                lines.append(
                    f"{name}: {self.knob} {point.retention_us / 1e6:,.3f} s, {self.share} {point.recall:.4f}, "
                    f"periods met {point.periods_met:.2f}, rows held {point.rows_held:,.0f}"
                )
        lines.append(
            f"(clairvoyant: the shortest constant {self.knob} that would have met the target in enough periods)"
        )
        return "\n".join([*lines, *(["", *self.more] if self.more else [])])


@contextmanager
def picture(path: Path, panels: int) -> Iterator[tuple[Figure, list[Axes]]]:
    """Open a figure with `panels` axes side by side and write it to `path` at the end.

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


def draw(curve: Explained, path: Path) -> None:
    """Draw quality and share of periods met by rows held, and mark the target, the run and the clairvoyant."""
    held = [p.rows_held for p in curve.points]
    with picture(path, 1) as (_, (axis,)):
        axis.plot(held, [p.recall for p in curve.points], "o-", label=f"{curve.share}, constant {curve.knob}")
        met = [p.periods_met for p in curve.points]
        axis.plot(held, met, "s--", color="0.5", label="share of periods that meet the target")
        axis.axhline(curve.target, color="k", linewidth=0.8, linestyle=":", label=f"target {curve.target:g}")
        marks = (("as run", curve.done, "D", 12, "tab:green"), ("clairvoyant", curve.clairvoyant, "*", 14, "tab:red"))
        for name, point, mark, size, colour in marks:  # the smaller mark is in front, because they may coincide
            if point is not None:
                label = f"{name}: {point.rows_held:,.0f} rows"
                at = [point.rows_held], [point.recall]
                axis.plot(*at, mark, markersize=size, color=colour, markeredgecolor="white", alpha=0.9, label=label)
        axis.set(xlabel="rows held, mean", ylabel="share", title=curve.query)
        axis.legend(fontsize="small", loc="lower right")
