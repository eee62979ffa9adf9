"""`explain`: what other choices would have given, counted from history; each kind in its own terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from latecomer.jobs import explain_join, explain_windows
from latecomer.lake import journal
from latecomer.lake.errors import InputError
from latecomer.lake.location import Lake


def explain(lake: Lake, spec: Any, *, plot: Path | None = None) -> Any:
    """An explanation with `to_text` and `to_dict`, drawn to `plot` where it is given.

    Raises
    ------
    InputError
        The query has not been run, or computed something else when it was run; `plot` is not a .png file or cannot be written.
    """
    state = journal.state_for(lake, spec)
    if plot is not None and plot.suffix != ".png":
        raise InputError("--plot", str(plot), "is not a .png file", "end it in .png")
    kind = explain_join if spec.kind == "join" else explain_windows
    return kind.explain(lake, spec, state, plot)
