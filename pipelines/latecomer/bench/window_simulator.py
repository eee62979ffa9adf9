"""Simulate the windowed strategies on arrays in memory, for benchmarks and tests.

`run_control_plane` runs the control plane of `run` over a whole stream; the Spark stages feed the same controllers with
the same summaries. `run_pass` adds the answers of a SUM or COUNT: for every window, when it closed, the slack in force,
its first answer and its final one.

Ordering: arrival order. Cost: O(n log n) for n rows, O(1) per interval and window.
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
from latecomer.core.windows.arrivals import ArrivalCounts
from latecomer.core.windows.control import WindowControl
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import Observed, SlackPolicy
from latecomer.core.windows.observation import Span, spans_of

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class ClosedWindows:
    """The windows of one pass with at least one row, ascending.

    Attributes
    ----------
    window : int64[w]
        Number of the window.
    close_us, wait_us : int64[w]
        Stream time at which the window closed, and that minus its end.
    slack_us : int64[w]
        Slack of the interval in which the window closed.
    first_sum, first_rows : float64[w]
        Sum of the values and number of rows when the window closed.
    final_sum, final_rows : float64[w]
        Sum of the values and number of rows at the end of the stream.
    held_mean : float
        Rows held in open windows, averaged over stream time.
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
        """Return the relative error of each first answer, of its sum or (`count`) its count; float64[w]."""
        first, final = (self.first_rows, self.final_rows) if count else (self.first_sum, self.final_sum)
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.abs(first - final) / np.abs(final)
        error = np.where(first == final, 0.0, np.where(np.isnan(error), np.inf, error))
        return np.where(self.first_rows > 0, error, np.inf)


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
) -> ClosedWindows:
    """Run an aggregate over one stream to its end.

    Parameters
    ----------
    event_time_us, value : int64[n], float64[n]
        Rows in arrival order.
    grid : Grid
        Windows.
    policy : SlackPolicy
        The policy in its initial state; it is advanced.
    functions : sequence of Function
        Aggregate functions whose answers the policy observes.
    error, delta : float
        Largest relative error of an answer, and largest share of answers that may exceed it.
    period_us : int
        Length of a ledger period.
    by_answer : bool
        Show the policy the answers of the groups (``calibrated``) instead of rows.
    group : int64[n], optional
        Group of every row, for the policy's observations; the returned sums are over all groups.
    observe_us : int, optional
        Time after the end of a window for which it is observed; None leaves it to the control plane.

    Returns
    -------
    ClosedWindows
        All windows with at least one row.
    """
    t = np.maximum.accumulate(event_time_us)
    cells = _cells(event_time_us, t, value, group, grid)

    def observed(spans: Sequence[Span]) -> list[list[Observed]]:
        if by_answer:
            return required_answers(cells, grid, spans, functions, error)
        return required_coverage(cells, grid, spans, functions, error, delta)

    decisions = run_control_plane(event_time_us, grid, policy, observed, period_us=period_us, observe_us=observe_us)
    return _answers(event_time_us, t, value, decisions, grid)


@dataclass(frozen=True)
class Decisions:
    """The decisions of the control plane over a whole stream.

    Attributes
    ----------
    watermark_us, slack_us : int64[n]
        Watermark after each arrival, and the slack in force.
    control : WindowControl
        The control plane in its final state, with its accounts.
    """

    watermark_us: Int64
    slack_us: Int64
    control: WindowControl


def run_control_plane(
    event_time_us: Int64,
    grid: Grid,
    policy: SlackPolicy,
    observed: Callable[[Sequence[Span]], list[list[Observed]]],
    *,
    period_us: int = 60_000_000,
    observe_us: int | None = None,
    cuts: Sequence[int] = (),
) -> Decisions:
    """Run the control plane of one stream to its end, for any query kind.

    Parameters
    ----------
    event_time_us : int64[n]
        Event times in arrival order.
    grid, policy, period_us, observe_us
        As for `run_pass`.
    observed : callable
        Return the observations of the windows of each span.
    cuts : sequence of int
        Arrivals at which a micro-batch ends and the next begins; decisions do not depend on them.
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
        intervals, carry = ArrivalCounts.of(new, grid, 1).intervals[0], new.carry
        due = replace(control.schedule).advance(intervals)
        watermarks = control.step(intervals, dict(zip(due, observed(spans_of(grid, due)), strict=True)))
        at = np.searchsorted(watermarks.interval, interval[part])
        slack[part], base[part] = watermarks.slack[at], watermarks.base[at]
    watermark = np.maximum(base, np.where(slack >= FOREVER, base, t - slack))
    return Decisions(watermark, slack, control)


def required_in_hindsight(
    event_time_us: Int64,
    value: Float64,
    grid: Grid,
    *,
    functions: Sequence[Function] = (Function("sum", 0),),
    error: float = 0.05,
    group: Int64 | None = None,
) -> list[Observed]:
    """Return the waits that the answers of every window required, with all rows known; parameters as for `run_pass`."""
    t = np.maximum.accumulate(event_time_us)
    windows = (int(grid.first_of(int(event_time_us.min()))), int(grid.last_of(int(event_time_us.max()))))
    cells = _cells(event_time_us, t, value, group, grid)
    return required_answers(cells, grid, [Span(*windows, FOREVER)], functions, error)[0]


def lost_answers(required: Sequence[Observed], wait_us: Int64, grid: Grid) -> tuple[Float64, Float64]:
    """Count, per window, the answers beyond the error after the given waits, and all answers.

    Parameters
    ----------
    required : sequence of Observed
        As `required_in_hindsight` returns them, w windows.
    wait_us : int64[w]
        Wait of each window; it is rounded down to the granularity, so that no lost answer is missed.
    grid : Grid
        Windows.

    Returns
    -------
    lost, answers : float64[w]
        Answers beyond the error, and all answers.
    """
    whole = wait_us // grid.granularity_us * grid.granularity_us
    lost = [window.lost(wait) for window, wait in zip(required, whole.tolist(), strict=True)]
    return np.array(lost, np.float64), np.array([window.total for window in required], np.float64)


def clairvoyant_slack(required: Sequence[Observed], target: float) -> int:
    """Return the least constant slack in us that keeps the share `target` of all answers within the error."""
    need = np.concatenate([window.required_us for window in required]) if required else np.empty(0, np.int64)
    weight = np.concatenate([window.weight for window in required]) if required else np.empty(0)
    may_lose = (1.0 - target) * sum(window.total for window in required) + 1e-9
    order = np.argsort(need, kind="stable")
    lost = float(weight.sum()) - np.cumsum(weight[order])
    if float(weight.sum()) <= may_lose:
        return 0
    return int(need[order][np.argmax(lost <= may_lose)])


def _cells(event_time_us: Int64, t: Int64, value: Float64, group: Int64 | None, grid: Grid) -> Cells:
    """Collect rows into cells by (pane, group, wait), ascending."""
    pane = event_time_us // grid.pane_us
    wait = t - (grid.first_of(event_time_us) * grid.slide_us + grid.size_us)
    bucket = np.where(wait >= 0, wait // grid.granularity_us, -1)
    return collect_cells(np.zeros(len(pane), np.int64) if group is None else group, pane, bucket, value)


def collect_cells(group: Int64, pane: Int64, bucket: Int64, value: Float64) -> Cells:
    """Collect rows with one value each into cells by (pane, group, bucket), ascending; all arrays have n rows."""
    order = sort_order(pane, group, bucket)
    pane, bucket, group, value = pane[order], bucket[order], group[order], value[order]
    bounds = run_bounds(pane, group, bucket)
    starts, rows = bounds[:-1], np.diff(bounds)
    return Cells(
        group[starts],
        pane[starts],
        bucket[starts],
        rows,
        counted={0: rows.astype(float)},
        total={0: np.add.reduceat(value, starts)},
        squares={0: np.add.reduceat(value * value, starts)},
        least={0: np.minimum.reduceat(value, starts)},
        most={0: np.maximum.reduceat(value, starts)},
    )


def _answers(event_time_us: Int64, t: Int64, value: Float64, decisions: Decisions, grid: Grid) -> ClosedWindows:
    """Compute the first and the final answer of every window under the decisions of the control plane."""
    watermark, slack, control = decisions.watermark_us, decisions.slack_us, decisions.control
    first, last = grid.first_of(event_time_us), grid.last_of(event_time_us)
    low = int(first.min())
    count = int(last.max()) - low + 1
    # A row adds to the windows [first, last]; on time, to those of them that are still open when it arrives.
    first_open = np.maximum(first, (watermark - grid.size_us) // grid.slide_us + 1)
    final_sum, final_rows = _sums_by_window(first - low, last - low, value, count)
    first_sum, first_rows = _sums_by_window(np.minimum(first_open, last + 1) - low, last - low, value, count)
    window = np.arange(count) + low
    ends = window * grid.slide_us + grid.size_us
    place = np.minimum(np.searchsorted(watermark, ends), len(watermark) - 1)
    close_us = t[place]
    slack_us = np.where(slack[place] >= FOREVER, close_us - ends, slack[place])
    held = sum(account.held_area for account in control.accounts.values())
    weight = sum(account.weight_us for account in control.accounts.values())
    used = final_rows > 0
    return ClosedWindows(
        window=window[used],
        close_us=close_us[used],
        wait_us=np.maximum(close_us - ends, 0)[used],
        slack_us=slack_us[used],
        first_sum=first_sum[used],
        final_sum=final_sum[used],
        first_rows=first_rows[used],
        final_rows=final_rows[used],
        held_mean=held / weight if weight else 0.0,
    )


def _sums_by_window(first: Int64, last: Int64, value: Float64, count: int) -> tuple[Float64, Float64]:
    """Sum values and count rows over `count` windows; each row adds to the windows ``[first, last]``."""
    sums = []
    for weights in (value, np.ones(len(value))):
        entering = np.bincount(first, weights, count + 1)[: count + 1]
        leaving = np.bincount(last + 1, weights, count + 1)[: count + 1]
        sums.append(np.cumsum(entering - leaving)[:count])
    return np.asarray(np.round(sums[0], 9), np.float64), np.asarray(np.round(sums[1]), np.float64)
