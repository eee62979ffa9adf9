"""A whole stream through the control plane of an aggregate, in memory: what `run` does on Spark, on arrays.

One pass gives, for every window, when it closed, the slack in force, its first answer and the final one. Used by benchmarks and
tests of the promise; the Spark stage reads the same controllers from the same summaries.

Ordering: none. Cost: O(n log n) for n rows and O(1) per interval and window.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from latecomer.core.aggregate.coverage import Cells, Function, required_answers, required_coverage
from latecomer.core.arrays.composite_keys import run_bounds, sort_order
from latecomer.core.arrivals import Arrivals
from latecomer.core.time import FOREVER, NEVER, running_max
from latecomer.core.windows.arrivals import Arrived
from latecomer.core.windows.control import WindowControl
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import Observed, SlackPolicy
from latecomer.core.windows.observation import Span, spans_of

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Closed:
    """Windows of one pass, in order; arrays of one length.

    Attributes
    ----------
    window, close_us, wait_us : int64[w]
        Number; stream time at which it closed; that minus its end.
    slack_us : int64[w]
        Slack of the interval in which it closed.
    first_sum, final_sum, first_rows, final_rows : float64[w]
        Sum of values and rows when it closed, and in the end.
    held_mean : float
        Rows in open windows, averaged over stream time.
    """

    window: Int64
    close_us: Int64
    wait_us: Int64
    slack_us: Int64
    first_sum: Float64
    final_sum: Float64
    first_rows: Float64
    final_rows: Float64
    held_mean: float

    def error(self, *, count: bool = False) -> Float64:
        """Relative error of each first answer: of the sum, or of the count."""
        first, final = (self.first_rows, self.final_rows) if count else (self.first_sum, self.final_sum)
        with np.errstate(divide="ignore", invalid="ignore"):
            off = np.abs(first - final) / np.abs(final)
        off = np.where(first == final, 0.0, np.where(np.isnan(off), np.inf, off))
        return np.where(self.first_rows > 0, off, np.inf)


def run_pass(
    event_time_us: Int64,
    value: Float64,
    grid: Grid,
    policy: SlackPolicy,
    *,
    functions: Sequence[Function] = (Function("sum", 0),),
    error: float = 0.05,
    delta: float = 0.05,
    period_us: int = 60_000_000,
    by_answer: bool = False,
    group: Int64 | None = None,
    observe_us: int | None = None,
) -> Closed:
    """Run one stream to its end.

    Parameters
    ----------
    event_time_us, value : int64[n], float64[n]
        In arrival order.
    by_answer
        The policy learns from answers per group (``calibrated``), not from rows.
    group : int64[n], optional
        Groups, for what the policy is shown; sums are over all of them.
    """
    t = np.maximum.accumulate(event_time_us)
    cells = _cells(event_time_us, t, value, group, grid)

    def observed(spans: Sequence[Span]) -> list[list[Observed]]:
        if by_answer:
            return required_answers(cells, grid, spans, functions, error)
        return required_coverage(cells, grid, spans, functions, error, delta)

    placed = place(event_time_us, grid, policy, observed, period_us=period_us, observe_us=observe_us)
    return _answers(event_time_us, t, value, placed, grid)


@dataclass(frozen=True)
class Placed:
    """What the control plane decided: the watermark after each arrival and the slack then (int64[n]), and its books."""

    watermark_us: Int64
    slack_us: Int64
    control: WindowControl


def place(
    event_time_us: Int64,
    grid: Grid,
    policy: SlackPolicy,
    observed: Callable[[Sequence[Span]], list[list[Observed]]],
    *,
    period_us: int = 60_000_000,
    observe_us: int | None = None,
    cuts: Sequence[int] = (),
) -> Placed:
    """Run the control plane of one stream to its end; of whatever kind.

    Parameters
    ----------
    event_time_us : int64[n]
        In arrival order.
    observed
        What the policy is shown of the windows of each span.
    cuts
        Places in the arrival order where one micro-batch ends and the next begins; they make no difference.
    """
    side, shard = np.zeros(len(event_time_us), np.int8), np.zeros(len(event_time_us), np.int32)
    t, seq, carry = running_max(event_time_us), np.arange(len(event_time_us)), [NEVER]
    interval = t // grid.slide_us
    control = WindowControl(grid, period_us, policy, observe_us)
    slack, base = np.empty(len(t), np.int64), np.empty(len(t), np.int64)
    for low, high in itertools.pairwise([0, *cuts, len(t)]):
        if low == high:
            continue
        part = slice(low, high)
        new = Arrivals.of(seq[part], event_time_us[part], side[part], shard[part], carry)
        intervals, carry = Arrived.of(new, grid, 1).intervals[0], new.carry
        wanted = replace(control.lookout).schedule(intervals)
        placement = control.step(intervals, dict(zip(wanted, observed(spans_of(grid, wanted)), strict=True)))
        at = np.searchsorted(placement.interval, interval[part])
        slack[part], base[part] = placement.slack[at], placement.base[at]
    mark = np.maximum(base, np.where(slack >= FOREVER, base, t - slack))
    return Placed(mark, slack, control)


def required_in_hindsight(
    event_time_us: Int64,
    value: Float64,
    grid: Grid,
    *,
    functions: Sequence[Function] = (Function("sum", 0),),
    error: float = 0.05,
    group: Int64 | None = None,
) -> list[Observed]:
    """What every answer of the stream would have required, all rows known; parameters as for :func:`run_pass`."""
    t = np.maximum.accumulate(event_time_us)
    windows = (int(grid.first_of(int(event_time_us.min()))), int(grid.last_of(int(event_time_us.max()))))
    cells = _cells(event_time_us, t, value, group, grid)
    return required_answers(cells, grid, [Span(*windows, FOREVER)], functions, error)[0]


def lost_answers(required: Sequence[Observed], wait_us: Int64, grid: Grid) -> tuple[Float64, Float64]:
    """Answers that were off when their windows closed after these waits, and all answers; int64[w] -> float64[w] each.

    A wait inside a granule counts as its lower end, so this never counts too few.
    """
    whole = wait_us // grid.granularity_us * grid.granularity_us
    lost = [each.lost(wait) for each, wait in zip(required, whole.tolist(), strict=True)]
    return np.array(lost, np.float64), np.array([each.total for each in required], np.float64)


def clairvoyant_slack(required: Sequence[Observed], target: float) -> int:
    """The least constant slack, microseconds, that keeps the share `target` of all answers."""
    need = np.concatenate([each.required_us for each in required]) if required else np.empty(0, np.int64)
    weight = np.concatenate([each.weight for each in required]) if required else np.empty(0)
    may_lose = (1.0 - target) * sum(each.total for each in required) + 1e-9
    order = np.argsort(need, kind="stable")
    lost = float(weight.sum()) - np.cumsum(weight[order])
    if float(weight.sum()) <= may_lose:
        return 0
    return int(need[order][np.argmax(lost <= may_lose)])


def _cells(event_time_us: Int64, t: Int64, value: Float64, group: Int64 | None, grid: Grid) -> Cells:
    """Rows by (group, pane, wait), in the order of panes."""
    pane = event_time_us // grid.pane_us
    wait = t - (grid.first_of(event_time_us) * grid.slide_us + grid.size_us)
    bucket = np.where(wait >= 0, wait // grid.granularity_us, -1)
    owner = np.zeros(len(pane), np.int64) if group is None else group
    order = sort_order(pane, owner, bucket)
    pane, bucket, owner, value = pane[order], bucket[order], owner[order], value[order]
    bounds = run_bounds(pane, owner, bucket)
    starts, rows = bounds[:-1], np.diff(bounds)
    sums = [np.add.reduceat(value, starts), np.add.reduceat(value * value, starts)]
    ends = [np.minimum.reduceat(value, starts), np.maximum.reduceat(value, starts)]
    return Cells(
        owner[starts],
        pane[starts],
        bucket[starts],
        rows,
        rows[None, :].astype(float),
        *(a[None, :] for a in (*sums, *ends)),
    )


def _answers(event_time_us: Int64, t: Int64, value: Float64, placed: Placed, grid: Grid) -> Closed:
    mark, slack, control = placed.watermark_us, placed.slack_us, placed.control
    first, last = grid.first_of(event_time_us), grid.last_of(event_time_us)
    low = int(first.min())
    count = int(last.max()) - low + 1
    # prefix differences: a row adds to windows [from, last]; on time to those after the last one closed
    opened = np.maximum(first, (mark - grid.size_us) // grid.slide_us + 1)
    final = _spans(first - low, last - low, value, count)
    on_time = _spans(np.minimum(opened, last + 1) - low, last - low, value, count)
    ends = (np.arange(count) + low) * grid.slide_us + grid.size_us
    place = np.minimum(np.searchsorted(mark, ends), len(mark) - 1)
    used = final[1] > 0
    closed = t[place]
    held = sum(a.held_area for a in control.accounts.values())
    weight = sum(a.weight_us for a in control.accounts.values())
    chosen = np.where(slack[place] >= FOREVER, closed - ends, slack[place])
    arrays = (
        np.arange(count) + low,
        closed,
        np.maximum(closed - ends, 0),
        chosen,
        on_time[0],
        final[0],
        on_time[1],
        final[1],
    )
    kept = [np.asarray(a[used]) for a in arrays]
    return Closed(
        kept[0], kept[1], kept[2], kept[3], kept[4], kept[5], kept[6], kept[7], held / weight if weight else 0.0
    )


def _spans(first: Int64, last: Int64, value: Float64, count: int) -> tuple[Float64, Float64]:
    """Sums of values and numbers of rows over windows, each row adding to ``[first, last]``."""
    found = []
    for weights in (value, np.ones(len(value))):
        steps = (
            np.bincount(first, weights, count + 1)[: count + 1] - np.bincount(last + 1, weights, count + 1)[: count + 1]
        )
        found.append(np.cumsum(steps)[:count])
    return np.asarray(np.round(found[0], 9), np.float64), np.asarray(np.round(found[1]), np.float64)
