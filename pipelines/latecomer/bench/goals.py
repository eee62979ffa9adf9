"""The goals of a benchmark beside its measurements: printed as they are judged and kept in the summary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, TypedDict

Progress: TypeAlias = Callable[[str], None]
"""A function that shows a line of text to whoever waits for the benchmark."""

Summary: TypeAlias = dict[str, object]
"""The JSON-able measurements of a benchmark, by name."""


class Goal(TypedDict):
    """A goal that was judged: `goal` in words, the value `measured`, and whether it was `met`."""

    name: str
    goal: str
    measured: float
    met: bool


class Goals:
    """A list of goals that prints every goal as it is added.

    Attributes
    ----------
    lines : list of Goal
        The goals judged so far.
    """

    def __init__(self, progress: Progress) -> None:
        self.lines: list[Goal] = []
        self._progress = progress

    def add(self, name: str, goal: float, value: float | None, sense: Literal["at least", "at most"]) -> None:
        """Judge a measured value by its goal; None was not measured, which is printed and not judged."""
        if value is None:
            self._progress(f"{name}: not measured")
            return
        met = value <= goal if sense == "at most" else value >= goal
        self.lines.append({"name": name, "goal": f"{sense} {goal:.6g}", "measured": value, "met": bool(met)})
        self._progress(f"{name}: {value:.4g}, goal {sense} {goal:.6g}: {'met' if met else 'MISSED'}")
