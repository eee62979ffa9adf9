"""Rows held and waits have one definition: the control planes' accounts, and the curve of `explain`. No Spark."""

import numpy as np
import pytest
from latecomer.bench.window_simulator import run_pass
from latecomer.core.join.control import IntervalSummary, JoinControl, held_bucket_us
from latecomer.core.join.retention_policies import ConstantRetention
from latecomer.core.rows_held import held_between
from latecomer.core.windows.constant_slack import AnswerWaits, HeldFrom, mean_rows_held
from latecomer.core.windows.control import WindowControl
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import IntervalRows

HOUR = 3_600_000_000
DAY = 24 * HOUR


class Fixed:
    """A constant slack."""

    needs_observation = provisional = learning = False

    def __init__(self, slack_us):
        self.slack_us = slack_us

    def delays(self, largest_us):
        pass

    def arrived(self, rows):
        pass

    def choose(self, interval):
        return self.slack_us

    def to_dict(self):
        return {}


def intervals_of(event_us, grid):
    """The intervals of rows in arrival order."""
    time = np.maximum.accumulate(event_us)
    number = time // grid.slide_us
    intervals = []
    for j in np.unique(number):
        rows = number == j
        panes, count = np.unique(event_us[rows] // grid.pane_us, return_counts=True)
        intervals.append(IntervalRows(int(j), int(time[rows].max()), 0, int(rows.sum()), panes, count, 0 * count))
    return intervals


def means(control):
    """The mean rows held per period in which rows came."""
    accounts = {period: control.account(period, as_of_now=True) for period in control.accounts}
    return {period: account.held_area / account.weight_us for period, account in accounts.items() if account.rows}


def events(seed, rows=400, nights=3):
    """Rows with delays, in bursts with long gaps between them."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(20, rows).astype(np.int64)
    gaps[rng.choice(rows, nights)] += rng.integers(500, 6_000, nights)
    delays = (rng.exponential(30, rows) * (rng.random(rows) < 0.4)).astype(np.int64)
    return np.cumsum(gaps) - delays + 5_000


@pytest.mark.parametrize("seed", range(12))
def test_the_curve_of_a_constant_slack_has_the_accounts_of_the_control_plane(seed):
    size, slide = [(100, 100), (100, 20), (60, 45), (300, 10)][seed % 4]
    grid, period = Grid(size, slide), [300, 1_000, 7_777][seed % 3]
    intervals = intervals_of(events(seed), grid)
    held = HeldFrom.of(grid, intervals)
    for slack in (0, 7, 50, 250, 4_000, 90_000):
        control = WindowControl(grid, period, Fixed(slack))
        for interval in intervals:  # in two micro-batches each
            half = interval.pane_rows // 2
            for rows in (half, interval.pane_rows - half):
                last = interval.t_last_us - (1 if rows is half else 0)
                last = max(last, interval.interval * slide)
                columns = interval.panes, rows, 0 * rows
                control.step([IntervalRows(interval.interval, last, 0, int(rows.sum()), *columns)], {})
                control = WindowControl.from_dict(control.to_dict(), grid, period, Fixed(slack))
        expected = means(control)
        curve = mean_rows_held(held, grid, period, slack)
        assert {p: curve[p] for p in expected} == pytest.approx(expected), slack


def test_rows_go_on_the_way_through_a_night():
    """Ten rows an hour by day, none from 20:00 to 08:00, windows of an hour that wait for two."""
    grid = Grid(HOUR, HOUR)
    hours = np.array([day * 24 + hour for day in range(10) for hour in range(8, 20)])
    intervals = [
        IntervalRows(int(h), int(h) * HOUR + HOUR - 1, 0, 10, *(np.array([value]) for value in (h, 10, 0)))
        for h in hours
    ]
    control = WindowControl(grid, DAY, Fixed(2 * HOUR))
    control.step(intervals, {})
    account = control.account(5 * DAY)
    assert account.held_area == 12 * 10 * 2.5 * HOUR, "each row is held from the middle of its hour for 2.5 hours"
    assert account.weight_us == 14 * HOUR, "from 08:00 until the last window closes at 22:00"
    held = HeldFrom.of(grid, intervals)
    assert mean_rows_held(held, grid, DAY, 2 * HOUR)[5 * DAY] == pytest.approx(300 / 14)
    assert mean_rows_held(held, grid, DAY, 0)[5 * DAY] == pytest.approx(5), "half of the window's rows"


def test_one_row_of_1970_changes_nothing_else():
    grid = Grid(HOUR, HOUR)
    at = np.sort(np.random.default_rng(1).integers(400_000 * HOUR, 400_048 * HOUR, 2_000))
    old = np.insert(at, 1_000, 12_345)
    plain, absurd = (mean_rows_held(HeldFrom.of(grid, intervals_of(x, grid)), grid, DAY, HOUR) for x in (at, old))
    assert absurd == pytest.approx(plain)


@pytest.mark.parametrize("times", [[], [5], [5, 5, 4], [5, 3_000]])
def test_hardly_any_rows_and_none(times):
    grid = Grid(100, 50)
    intervals = intervals_of(np.array(times, np.int64), grid)
    held = HeldFrom.of(grid, intervals)
    if not times:
        assert held is None
        return
    control = WindowControl(grid, 1_000, Fixed(30))
    control.step(intervals, {})
    expected = means(control)
    assert mean_rows_held(held, grid, 1_000, 30) == pytest.approx(expected)


def test_rows_from_before_all_streams_were_seen_are_held_from_the_first_interval():
    grid, before = Grid(100, 100), (np.array([3, 4]), np.array([2, 5]))
    intervals = intervals_of(np.array([520, 560, 610, 980]), grid)
    control = WindowControl(grid, 10_000, Fixed(40))
    control.hold(*before)
    control.step(intervals, {})
    expected = means(control)
    assert mean_rows_held(HeldFrom.of(grid, intervals, [before]), grid, 10_000, 40) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
def test_waits_are_those_at_which_windows_close(seed):
    """A window is answered by the first arrival at or after its end plus the slack: a gap makes the wait longer."""
    grid, at = Grid(100, 50), events(seed)
    slacks = [0, 30, 400, 50_000]
    closed = {slack: run_pass(at, np.ones(len(at)), grid, Fixed(slack)) for slack in slacks}
    ends = grid.end(closed[0].window)
    waits = AnswerWaits(ends, np.ones(len(ends)), slacks)
    time = np.maximum.accumulate(at)
    for piece in np.array_split(time, 7):
        waits.add(piece)
    expected = [closed[slack].wait_us.sum() for slack in slacks]
    assert waits.totals(int(time[-1])) == pytest.approx(expected)
    assert expected[1] > 30 * len(ends), "gaps"


def test_what_leaves_in_a_span_is_held_until_it_leaves():
    until, rows = np.array([5, 10, 30]), np.array([1, 2, 4])
    assert held_between(until, rows, 8, 20) == (2 * 2 + 4 * 12, 12)
    assert held_between(until, rows, 8, 50) == (2 * 2 + 4 * 22, 22)
    assert held_between(until, rows, 40, 50) == (0, 0)
    assert held_between(until[:0], rows[:0], 0, 9) == (0, 0) == held_between(until, rows, 9, 9)


@pytest.mark.parametrize("earlier", [False, True])
def test_rows_of_a_join_go_in_a_gap(earlier):
    """A row an instant on each side for ten intervals, then nothing for long; a state of version 0.1.0 goes on."""
    length, window, keep, far = 1_000_000, 5_000_000, 2_000_000, 200
    spans = {"window_us": window, "interval_us": length, "granularity_us": 100_000, "period_us": 50 * length}
    policy = ConstantRetention(keep, keep)
    plane = JoinControl(policy, **spans)
    none, single = (np.empty(0, np.int64),) * 2, np.array([1])

    def step(j):
        bucket = np.array([j * length // held_bucket_us(length, 100_000)])
        plane.step([IntervalSummary(j, j * length, ((bucket, single),) * 2, (none, none), np.empty((0, 6), np.int64))])

    for j in range(10):
        step(j)
    if earlier:
        state = plane.to_dict()
        del state["rows_held"]
        plane = JoinControl.from_dict(state, policy, **spans)
    step(far)
    first = plane.account(0)
    held = [min(j + 1, 8) for j in range(10)]  # seven intervals and the one in which they came
    assert plane.account(far // 50 * 50 * length).retention_weight_us == 0
    if earlier:
        assert first.weight_us == 50 * length and first.held_area == 2 * (sum(held) + 40 * held[-1]) * length
        return
    left = sum((j * length + 100_000 + window + keep) - 10 * length for j in range(3, 10))
    assert first.weight_us == 9 * length + 100_000 + window + keep, "until the last row could match"
    assert first.held_area == 2 * (sum(held) * length + left)
