"""What a benchmark was to reach, beside what it measured: one list, printed as it grows and kept in the summary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Goals:
    """Collects goals; `lines` holds a dictionary each: `name`, `goal` in words, `measured`, `met`."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self.lines: list[dict[str, Any]] = []
        self._progress = progress

    def add(self, name: str, goal: float, value: float | None, sense: str) -> None:
        """A goal, `sense` "at least" or "at most", and what was measured; None was not measured: that is said, and not counted."""
        if value is None:
            self._progress(f"{name}: not measured")
            return
        met = value <= goal if sense == "at most" else value >= goal
        self.lines.append({"name": name, "goal": f"{sense} {goal:.6g}", "measured": value, "met": bool(met)})
        self._progress(f"{name}: {value:.4g}, goal {sense} {goal:.6g}: {'met' if met else 'MISSED'}")
