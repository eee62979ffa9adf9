"""What `explain` shows of a knob: the curve over its values, with the clairvoyant's and the run's marked; as text and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from latecomer.jobs import formatting
from latecomer.lake.errors import InputError

POINTS = 24
"""Values of the knob that are looked at."""


@dataclass(frozen=True)
class Point:
    """One constant retention: its recall, share of periods that met the target, mean rows held."""

    retention_us: int
    recall: float
    periods_met: float
    rows_held: float


@dataclass(frozen=True)
class Explained:
    """The curve, the clairvoyant (None where no constant reaches the promise), what was done, and what else there is to say."""

    query: str
    target: float
    confidence: float
    points: list[Point]
    clairvoyant: Point | None
    done: Point | None
    knob: str = "retention"
    share: str = "recall"
    more: tuple[str, ...] = ()

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
            formatting.table((self.knob, self.share, "periods met", "rows held"), rows),
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
        return "\n".join([*lines, *(["", *self.more] if self.more else [])])


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
