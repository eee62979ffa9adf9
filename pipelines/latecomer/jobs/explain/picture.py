"""Draw the curve of `explain`: quality against wait and against rows held, and the run's choices over stream time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from latecomer.jobs.explain.curve import Explained, Point, rows
from latecomer.lake.errors import InputError
from latecomer.quality.messages import duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Float64 = NDArray[np.float64]
UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000))
"""Units of a time axis, the longest first."""
BEST = 1e-4
"""Shares above 1 less this are drawn as 1."""
MARKS = {"as run": ("D", 9, "tab:green"), "clairvoyant": ("*", 15, "tab:red")}
"""Mark, size and colour of points; others are a square."""


@contextmanager
def picture(
    path: Path, layout: Sequence[Sequence[str]], height: float = 4.5
) -> Iterator[tuple[Figure, dict[str, Axes]]]:
    """Open a figure with axes as `layout` names them, and write it to `path` at the end.

    Raises
    ------
    InputError
        The folder cannot be written, or Matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise InputError("--plot", str(path), "needs Matplotlib", "install latecomer[plot] (matplotlib)") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    size = (max(8.0, 4.8 * len(layout[0])), height)
    figure, axes = plt.subplot_mosaic([list(row) for row in layout], figsize=size, layout="constrained")
    try:
        yield figure, axes
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError("--plot", str(path), reason, "choose a folder that can be written") from None
    finally:
        plt.close(figure)


def draw(curve: Explained, path: Path) -> None:
    """Draw a curve in two panels, and the history of the choices below."""
    with picture(path, [["wait", "rows"], ["history", "history"]], 8.5) as (figure, axes):
        _against(axes["wait"], curve, time=True)
        _against(axes["rows"], curve, time=False)
        _history(axes["history"], curve)
        within = f"target {curve.target:g}, to be met in {curve.confidence:.4g} of all periods"
        figure.suptitle(f"{curve.query}: {within}")


def _against(axis: Axes, curve: Explained, *, time: bool) -> None:
    """Draw the shares against the wait (of a join: the retention), or against the rows held."""

    def at(points: Sequence[Point]) -> Float64:
        if not time:
            return np.array([point.rows_held for point in points])
        return np.array([point.wait_us if curve.waits else point.constant_us for point in points])

    marked = curve.marked
    unit, size = _unit(at([*curve.points, *(point for _, point in marked)])) if time else ("", 1)
    values = at(curve.points) / size
    axis.plot(values, _scaled([p.share for p in curve.points]), "o-", markersize=4, label=curve.share)
    met = _scaled([p.periods_met for p in curve.points])
    axis.plot(values, met, "s--", color="0.55", markersize=3, label="periods that meet the target")
    axis.axhline(_scaled([curve.target])[0], color="k", linewidth=0.8, linestyle=":", label=f"target {curve.target:g}")
    for name, point in reversed(marked):  # the run is in front
        mark, points, colour = MARKS.get(name, ("s", 6, "tab:purple"))
        place = at([point]) / size, _scaled([point.share])
        cost = duration(at([point])[0]) if time else f"{rows(point.rows_held)} rows"
        label = f"{name}: {cost}"
        axis.plot(*place, mark, markersize=points, color=colour, markeredgecolor="white", zorder=4, label=label)
    name = ("mean wait of an answer" if curve.waits else "retention") if time else "rows held, mean"
    axis.set(xlabel=f"{name}, {unit}" if time else name)
    _share_axis(axis)
    axis.legend(fontsize="small", loc="best")
    if not time:
        from matplotlib.ticker import FuncFormatter

        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: rows(value) if value > 0 else "0"))


def _scaled(shares: ArrayLike) -> Float64:
    """Return the heights of shares on an axis that gives every nine the same room."""
    return np.asarray(-np.log10(np.maximum(1 - np.asarray(shares, float), BEST)))


def _share_axis(axis: Axes) -> None:
    ticks = [0, 0.5, 0.9, 0.95, 0.99, 0.999, 1]
    axis.set_yticks(_scaled(ticks), [f"{tick:g}" for tick in ticks])
    axis.set(ylim=(-0.12, _scaled([1])[0] + 0.25))
    axis.grid(axis="y", linewidth=0.3)


def _unit(times_us: Float64) -> tuple[str, int]:
    """Return the longest unit that is at most half the greatest time, by name and microseconds."""
    largest = float(np.nanmax(times_us, initial=0.0))
    return next(((name, size) for name, size in UNITS if largest >= 2 * size), ("us", 1))


def _history(axis: Axes, curve: Explained) -> None:
    """Draw the run's constant and the least that would have met the target, by period.

    The axis follows the bulk of the values. What lies above it is counted.
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    periods = curve.history
    when = np.array([period.start_us for period in periods], "datetime64[us]")
    chosen = np.array([np.nan if p.chosen_us is None else p.chosen_us for p in periods], float)
    needed = np.array([np.nan if p.needed_us is None else p.needed_us for p in periods], float)
    both = [values[~np.isnan(values)] for values in (chosen, needed)]
    bulk = [float(np.quantile(values, 0.98)) for values in both if len(values)]
    best = [curve.clairvoyant.constant_us] if curve.clairvoyant else []
    top = 1.3 * max(min(max([*bulk, *best, 1.0]), 2.0 * curve.longest_us), 1.0)
    unit, size = _unit(np.array([top]))
    line = "-" if len(periods) > 60 else "o-"
    axis.plot(when, needed / size, ".", color="0.6", markersize=5, label="needed by the period")
    axis.plot(when, chosen / size, line, color="tab:green", markersize=3, label="as run")
    if curve.clairvoyant:
        axis.axhline(best[0] / size, color="tab:red", linewidth=1, label=f"clairvoyant: {duration(best[0])}")
    above = int((needed > top).sum())
    if above:
        axis.plot([], [], " ", label=f"{above:,} periods need more than the axis shows")
    lowest = min([0.0, *(float(values.min()) for values in both if len(values))])
    axis.set(ylabel=f"{curve.constant}, {unit}", ylim=(lowest / size, top / size), xlabel="period (UTC)")
    if periods:
        locator = AutoDateLocator(minticks=4, maxticks=12)  # type: ignore[no-untyped-call]
        axis.xaxis.set_major_locator(locator)
        axis.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axis.legend(fontsize="small", loc="upper left", ncols=4)
