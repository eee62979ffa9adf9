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

    Returns
    -------
    Path
        Of the PNG.

    Raises
    ------
    ValueError
        A line has more or fewer points than `x`.
    """
    figure, axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    for place, (label, values) in enumerate(series.items()):
        if len(values) != len(x):
            raise ValueError(
                f"line {label!r} has {len(values)} points, the axis {len(x)}: give as many, None for a gap"
            )
        drawn = [float("nan") if v is None or (log and v <= 0) else float(v) for v in values]
        axes.plot(x, drawn, marker=_MARKERS[place % len(_MARKERS)], markersize=4, linewidth=1.2, label=label)
    if reference is not None:
        axes.plot(x, reference, color="black", linestyle="--", linewidth=0.8)
    axes.set_xticks(list(x))
    rows = ((at, *(values[i] for values in series.values())) for i, at in enumerate(x))
    table(out, name, (x_label, *series), rows)
    return _finish(figure, axes, out, name, (x_label, y_label, title), log)


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
    figure, axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    width = 0.8 / max(len(series), 1)
    for place, (label, values) in enumerate(series.items()):
        if len(values) != len(groups):
            raise ValueError(f"{label!r} has {len(values)} bars for {len(groups)} groups: give one per group")
        left = [i + (place - (len(series) - 1) / 2) * width for i in range(len(groups))]
        axes.bar(left, values, width, label=label)
    axes.set_xticks(range(len(groups)), groups)
    rows = ((group, *(values[i] for values in series.values())) for i, group in enumerate(groups))
    table(out, name, (x_label, *series), rows)
    return _finish(figure, axes, out, name, (x_label, y_label, title), log)


def _finish(figure: Any, axes: Any, out: Path, name: str, labels: tuple[str, str, str], log: bool) -> Path:
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_title(labels[2], fontsize=10)
    if log:
        axes.set_yscale("log")
    axes.grid(visible=True, linewidth=0.3)
    axes.legend(fontsize=7)
    path = out / f"{name}.png"
    figure.savefig(path, dpi=130, metadata={"Software": None})
    pyplot.close(figure)
    return path
