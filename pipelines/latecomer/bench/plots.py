"""Draw the figures of the benchmarks: lines and bars, each as a PNG and as the CSV that it was drawn from."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_MARKERS = "osD^v<>PX*hp"
MARKED_POINTS = 20
"""Longest line whose points have markers and ticks on the axis."""


def table(out: Path, name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Write ``out/name.csv`` and return its path."""
    path = out / f"{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    return path


def line_figure(
    out: Path,
    name: str,
    x_label: str,
    y_label: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    *,
    title: str = "",
    log: bool = False,
    reference: Sequence[float] | None = None,
    legend_outside: bool = False,
) -> Path:
    """Draw lines over one axis to ``out/name.png`` and ``out/name.csv``.

    Parameters
    ----------
    x : float[n]
        Shared by all lines.
    series : mapping of str to float[n]
        Lines by name; None leaves a point out.
    log : bool
        Draw y on a logarithmic axis; points that are not positive appear in the CSV only.
    reference : float[n], optional
        A thin dashed line, such as the target.
    legend_outside : bool
        Put the legend beside the axes and let coinciding lines share an entry; for many lines.

    Returns
    -------
    Path
        The PNG.

    Raises
    ------
    ValueError
        A line has more or fewer points than `x`.
    """
    figure, axes = pyplot.subplots(figsize=(8.2 if legend_outside else 6.4, 4.2), layout="constrained")
    _draw_lines(axes, x, series, log=log, together=legend_outside)
    if reference is not None:
        axes.plot(x, reference, color="black", linestyle="--", linewidth=0.8)
    if len(x) <= MARKED_POINTS:
        axes.set_xticks(list(x))
    rows = ((at, *(values[i] for values in series.values())) for i, at in enumerate(x))
    table(out, name, (x_label, *series), rows)
    return _finished(figure, axes, out, name, (x_label, y_label, title), log, legend_outside=legend_outside)


def panel_figure(
    out: Path,
    name: str,
    x_label: str,
    x: Sequence[float],
    panels: Mapping[str, Mapping[str, Sequence[float | None]]],
    *,
    title: str = "",
    log_x: bool = False,
) -> Path:
    """Draw two or more quantities over one axis, side by side, to ``out/name.png`` and ``out/name.csv``.

    Parameters
    ----------
    x : float[n]
        Shared by all lines.
    panels : mapping of str to mapping of str to float[n]
        Lines by name, by the label of their panel's y axis. All panels draw the same lines and share a legend.
    log_x : bool
        Draw x on a logarithmic axis.

    Returns
    -------
    Path
        The PNG.
    """
    size = (4.2 * len(panels) + 2, 4.2)
    figure, grid = pyplot.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    all_axes: list[Axes] = list(grid[0])
    for axes, (label, series) in zip(all_axes, panels.items(), strict=True):
        _draw_lines(axes, x, series)
        if log_x:
            axes.set_xscale("log")
        axes.set_xticks(list(x), [f"{at:g}" for at in x])
        axes.minorticks_off()
        axes.ticklabel_format(axis="y", useOffset=False)
        low, high = axes.get_ylim()
        if high - low < 0.02 * abs(high):  # draw flat lines flat instead of magnifying their noise
            axes.set_ylim(0.95 * low, 1.05 * high)
        axes.set_xlabel(x_label)
        axes.set_ylabel(label)
        axes.grid(visible=True, linewidth=0.3)
    figure.legend(*all_axes[0].get_legend_handles_labels(), fontsize=8, loc="outside right center")
    figure.suptitle(title, fontsize=10)
    columns = [(f"{label}: {line}", values) for label, series in panels.items() for line, values in series.items()]
    rows = ((at, *(values[i] for _, values in columns)) for i, at in enumerate(x))
    table(out, name, (x_label, *(column for column, _ in columns)), rows)
    return _saved(figure, out, name)


def _draw_lines(
    axes: Axes,
    x: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    *,
    log: bool = False,
    together: bool = False,
) -> None:
    groups: dict[tuple[float | None, ...], list[str]] = {}
    for label, values in series.items():
        if len(values) != len(x):
            raise ValueError(
                f"line {label!r} has {len(values)} points, the axis {len(x)}: give as many, None for a gap"
            )
        key = (*values, None if together else float(len(groups)))
        groups.setdefault(key, []).append(label)
    places = list(series)
    for values, labels in groups.items():
        drawn = [float("nan") if v is None or (log and v <= 0) else float(v) for v in values[:-1]]
        place = places.index(labels[0])  # a line has the same style in every figure, whatever shares its entry
        marker = _MARKERS[place % len(_MARKERS)] if len(x) <= MARKED_POINTS else ""
        label = ",\n".join(labels)
        axes.plot(x, drawn, color=f"C{place % 10}", marker=marker, markersize=4, linewidth=1.2, label=label)


def bar_figure(
    out: Path,
    name: str,
    x_label: str,
    y_label: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    title: str = "",
    log: bool = False,
) -> Path:
    """Draw grouped bars to ``out/name.png`` and ``out/name.csv``.

    Parameters
    ----------
    groups : str[n]
        Labels of the groups along the axis.
    series : mapping of str to float[n]
        One bar per group, by the name of their colour.
    log : bool
        Draw y on a logarithmic axis.

    Returns
    -------
    Path
        The PNG.

    Raises
    ------
    ValueError
        A series has more or fewer bars than there are groups.
    """
    figure, axes = pyplot.subplots(figsize=(8.2, 4.2), layout="constrained")
    width = 0.8 / max(len(series), 1)
    for place, (label, values) in enumerate(series.items()):
        if len(values) != len(groups):
            raise ValueError(f"{label!r} has {len(values)} bars for {len(groups)} groups: give one per group")
        left = [i + (place - (len(series) - 1) / 2) * width for i in range(len(groups))]
        axes.bar(left, values, width, label=label)
    axes.set_xticks(range(len(groups)), groups)
    rows = ((group, *(values[i] for values in series.values())) for i, group in enumerate(groups))
    table(out, name, (x_label, *series), rows)
    return _finished(figure, axes, out, name, (x_label, y_label, title), log, legend_outside=True)


def dot_figure(
    out: Path,
    name: str,
    x_label: str,
    groups: Sequence[str],
    panels: Mapping[str, Mapping[str, Sequence[float | None]]],
    *,
    reference: float | None = None,
    log: bool = False,
) -> Path:
    """Draw one row per group with a dot per series, a panel beside the other, to ``out/name.png`` and ``.csv``.

    Parameters
    ----------
    groups : str[n]
        Labels of the rows, from the top.
    panels : mapping of str to mapping of str to float[n]
        Series by name, by the title of their panel; None leaves a dot out.
    reference : float, optional
        A thin dashed line across all rows, such as the goal.
    log : bool
        Draw x on a logarithmic axis.

    Returns
    -------
    Path
        The PNG.
    """
    size = (2.4 * len(panels) + 2.5, 0.19 * len(groups) + 1.4)
    figure, grid = pyplot.subplots(1, len(panels), figsize=size, layout="constrained", sharey=True, squeeze=False)
    places = [-place for place in range(len(groups))]
    for axes, (title, series) in zip(grid[0], panels.items(), strict=True):
        for number, (label, values) in enumerate(series.items()):
            drawn = [float("nan") if value is None else value for value in values]
            filled = "none" if number == 0 and len(series) > 1 else f"C{number}"
            axes.scatter(drawn, places, s=16, facecolors=filled, edgecolors=f"C{number}", label=label, zorder=3)
        if reference is not None:
            axes.axvline(reference, color="black", linestyle="--", linewidth=0.8)
        if log:
            axes.set_xscale("log")
        axes.set_yticks(places, groups, fontsize=7)
        axes.tick_params(axis="x", labelsize=7)
        axes.set_title(title, fontsize=9)
        axes.grid(visible=True, linewidth=0.3)
    figure.legend(*grid[0][0].get_legend_handles_labels(), fontsize=8, loc="outside lower right")
    figure.supxlabel(x_label, fontsize=9)
    columns = [(f"{title}: {label}", values) for title, series in panels.items() for label, values in series.items()]
    rows = ((group, *(values[i] for _, values in columns)) for i, group in enumerate(groups))
    table(out, name, ("", *(column for column, _ in columns)), rows)
    return _saved(figure, out, name)


def _finished(
    figure: Figure,
    axes: Axes,
    out: Path,
    name: str,
    labels: tuple[str, str, str],
    log: bool,
    *,
    legend_outside: bool = False,
) -> Path:
    """Label the axes (x, y, title), place the legend and save the figure."""
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_title(labels[2], fontsize=10)
    if log:
        axes.set_yscale("log")
    axes.grid(visible=True, linewidth=0.3)
    if legend_outside:
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    else:
        axes.legend(fontsize=7)
    return _saved(figure, out, name)


def _saved(figure: Figure, out: Path, name: str) -> Path:
    """Write ``out/name.png``, without the version of matplotlib in it, and return its path."""
    path = out / f"{name}.png"
    figure.savefig(path, dpi=130, metadata={"Software": None})
    pyplot.close(figure)
    return path
