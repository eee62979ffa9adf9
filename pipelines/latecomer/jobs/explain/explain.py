"""The command `explain`: count from history which quality and cost other waits would have had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from latecomer.jobs.explain import join, windows
from latecomer.jobs.explain.by_column import by_column
from latecomer.jobs.explain.curve import Explained
from latecomer.jobs.explain.picture import draw
from latecomer.lake import journal
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.specs.join import JoinSpec
from latecomer.specs.spec import Spec
from latecomer.specs.windows import WindowedSpec


def explain(lake: Lake, spec: Spec, *, plot: Path | None = None, by: str | None = None) -> Explained | windows.Text:
    """Explain a query by its history, and draw the explanation.

    Parameters
    ----------
    lake : Lake
        Lake in which the query was run.
    spec : Spec
        The query.
    plot : Path, optional
        PNG file to draw to.
    by : str, optional
        Column by whose values lateness is broken down.

    Returns
    -------
    Explained or Text
        A curve over slacks or retentions, or lines of text.

    Raises
    ------
    InputError
        The query has not been run, or its file has changed since in more than its target; `plot` is not a .png file
        or cannot be written; no stream has the column `by`.
    """
    state = journal.state_for(lake, spec)
    if plot is not None and plot.suffix != ".png":
        raise InputError("--plot", str(plot), "is not a .png file", "end it in .png")
    breakdown = None if by is None else by_column(lake, spec, state.seq_to, by)
    explained: Explained | windows.Text
    if isinstance(spec, JoinSpec):
        explained = join.explain(lake, spec, state)
    else:
        assert isinstance(spec, WindowedSpec)
        explained = windows.explain(lake, spec, state, plot)
    if isinstance(explained, Explained) and plot is not None:
        draw(explained, plot)
    return replace(explained, by=breakdown)
