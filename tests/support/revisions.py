"""The revisions of answers that late rows move, by their definition: one arrival at a time, over all rows so far."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from latecomer.core.time import NEVER
from latecomer.core.windows.grid import Grid

Answers = Mapping[Hashable, Any]


def by_definition(
    rows: Sequence[tuple[int, Any]],
    grid: Grid,
    period_us: int,
    slack_us: int,
    answers: Callable[[list[Any]], Answers],
    moved: Callable[[Any, Any], bool],
    *,
    flush: bool = False,
) -> tuple[list[tuple[int, int, Hashable, Any]], dict[int, dict[int, tuple[Answers, Answers]]]]:
    """Apply the rule after every step to the windows of open periods that a late row came for in the step.

    Parameters
    ----------
    rows
        Event time and row, in arrival order.
    answers
        Answers the rows of a window, by group.
    moved
        Whether the second answer is to be published in place of the first (None: there was none).

    Returns
    -------
    revisions : list of (completion, window, group, answer)
    closed : dict
        Period -> window -> the published answers and the right ones when the period closed.
    """
    published: dict[int, dict[Hashable, Any]] = {}
    revisions, closed = [], {}
    step, base, watermark, clock = None, NEVER, NEVER, NEVER
    late: set[int] = set()

    def of(time_us):
        return range(grid.first_of(time_us), grid.last_of(time_us) + 1)

    def inside(window, before):
        return [row for time_us, row in rows[:before] if window in of(time_us)]

    def period_of(window):
        return (grid.end(window) - 1) // period_us * period_us

    def complete(seq):
        for window in sorted(late):
            known = published.setdefault(window, {})
            for group, answer in answers(inside(window, seq)).items():
                if moved(known.get(group), answer):
                    known[group] = answer
                    revisions.append((seq, window, group, answer))

    for seq, (time_us, _) in enumerate(rows):
        if step is not None and max(clock, time_us) // grid.slide_us > step:
            complete(seq)
            base, late = watermark, set()
            for window, known in published.items():
                if period_of(window) + 2 * period_us <= base:
                    right = answers(inside(window, seq))
                    closed.setdefault(period_of(window), {}).setdefault(window, (dict(known), right))
        clock = max(clock, time_us)
        step = clock // grid.slide_us
        before, watermark = watermark, max(watermark, clock - slack_us)
        for window in {window for earlier, _ in rows[:seq] for window in of(earlier)}:
            if before < grid.end(window) <= watermark:
                published[window] = dict(answers(inside(window, seq)))
        late |= {w for w in of(time_us) if grid.end(w) <= watermark and period_of(w) + 2 * period_us > base}
    if flush:
        complete(len(rows))
    return revisions, closed
