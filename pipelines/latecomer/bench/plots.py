"""Figures of the benchmarks: lines and bars, each as a PNG and as the CSV that it was drawn from."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

_MARKERS = "osD^v<>PX*hp"
FEW_POINTS = 20
"""Points of a line up to which each has a marker, and a tick on the axis."""


def table(out: Path, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Write ``out/name.csv``; returns its path."""
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
    beside: bool = False,
) -> Path:
    """Lines over one axis: ``out/name.png`` and ``out/name.csv``.

    Parameters
    ----------
    x
        float[n], shared by all lines.
    series
        Name of a line -> float[n]; None leaves a point out.
    log
        Logarithmic in y; points that are not positive are left out of the picture, not of the CSV.
    reference
        float[n], drawn as a thin dashed line (say, the target itself).
    beside
        The legend stands beside the axes, and lines that lie on one another share an entry: for many lines.

    Returns
    -------
    Path
        Of the PNG.

    Raises
    ------
    ValueError
        A line has more or fewer points than `x`.
    """
    figure, axes = pyplot.subplots(figsize=(8.2 if beside else 6.4, 4.2), layout="constrained")
    _lines(axes, x, series, log=log, together=beside)
    if reference is not None:
        axes.plot(x, reference, color="black", linestyle="--", linewidth=0.8)
    if len(x) <= FEW_POINTS:
        axes.set_xticks(list(x))
    rows = ((at, *(values[i] for values in series.values())) for i, at in enumerate(x))
    table(out, name, (x_label, *series), rows)
    return _finish(figure, axes, out, name, (x_label, y_label, title), log, beside=beside)


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
    """Two quantities or more over one axis, side by side, one legend: ``out/name.png`` and ``out/name.csv``.

    Parameters
    ----------
    panels
        Label of a panel's y axis -> name of a line -> float[n]. All panels draw the same lines.
    log_x
        Logarithmic in x.
    """
    figure, every = pyplot.subplots(1, len(panels), figsize=(4.2 * len(panels) + 2, 4.2), layout="constrained")
    for axes, (label, series) in zip(every, panels.items(), strict=True):
        _lines(axes, x, series)
        if log_x:
            axes.set_xscale("log")
        axes.set_xticks(list(x), [f"{at:g}" for at in x])
        axes.minorticks_off()
        axes.ticklabel_format(axis="y", useOffset=False)
        low, high = axes.get_ylim()
        if high - low < 0.02 * abs(high):  # lines that do not move are drawn flat, not magnified
            axes.set_ylim(0.95 * low, 1.05 * high)
        axes.set_xlabel(x_label)
        axes.set_ylabel(label)
        axes.grid(visible=True, linewidth=0.3)
    figure.legend(*every[0].get_legend_handles_labels(), fontsize=8, loc="outside right center")
    figure.suptitle(title, fontsize=10)
    columns = [(f"{label}: {line}", values) for label, series in panels.items() for line, values in series.items()]
    rows = ((at, *(values[i] for _, values in columns)) for i, at in enumerate(x))
    table(out, name, (x_label, *(column for column, _ in columns)), rows)
    return _saved(figure, out, name)


def _lines(
    axes: Any,
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
        place = places.index(labels[0])  # a line looks alike in every figure, whatever it shares an entry with
        marker = _MARKERS[place % len(_MARKERS)] if len(x) <= FEW_POINTS else ""
        style = {"color": f"C{place % 10}", "marker": marker}
        axes.plot(x, drawn, **style, markersize=4, linewidth=1.2, label=",\n".join(labels))


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
    """Grouped bars: ``out/name.png`` and ``out/name.csv``; `series` maps a colour's name to one value per group."""
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
    return _finish(figure, axes, out, name, (x_label, y_label, title), log, beside=True)


def _finish(
    figure: Any, axes: Any, out: Path, name: str, labels: tuple[str, str, str], log: bool, *, beside: bool = False
) -> Path:
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_title(labels[2], fontsize=10)
    if log:
        axes.set_yscale("log")
    axes.grid(visible=True, linewidth=0.3)
    if beside:
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    else:
        axes.legend(fontsize=7)
    return _saved(figure, out, name)


def _saved(figure: Any, out: Path, name: str) -> Path:
    path = out / f"{name}.png"
    figure.savefig(path, dpi=130, metadata={"Software": None})
    pyplot.close(figure)
    return path
