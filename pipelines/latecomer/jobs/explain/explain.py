"""The command `explain`: count from history which quality and cost other waits would have had."""

from __future__ import annotations

from pathlib import Path

from latecomer.jobs.explain import join, windows
from latecomer.jobs.explain.curve import Explained
from latecomer.lake import journal
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.specs.join import JoinSpec
from latecomer.specs.spec import Spec
from latecomer.specs.windows import WindowedSpec


def explain(lake: Lake, spec: Spec, *, plot: Path | None = None) -> Explained | windows.Text:
    """Explain a query by its history, and draw the explanation.

    Parameters
    ----------
    lake : Lake
        Lake in which the query was run.
    spec : Spec
        The query.
    plot : Path, optional
        PNG file to draw to.

    Returns
    -------
    Explained or Text
        A curve over waits, or lines of text.

    Raises
    ------
    InputError
        The query has not been run, or its file has changed since in more than its target; `plot` is not a .png file
        or cannot be written.
    """
    state = journal.state_for(lake, spec)
    if plot is not None and plot.suffix != ".png":
        raise InputError("--plot", str(plot), "is not a .png file", "end it in .png")
    if isinstance(spec, JoinSpec):
        return join.explain(lake, spec, state, plot)
    assert isinstance(spec, WindowedSpec)
    return windows.explain(lake, spec, state, plot)
