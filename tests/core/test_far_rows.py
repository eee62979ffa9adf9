"""Rows that come after the usual observation of windows.

Where many do, windows are observed until then. A few such rows, and clocks that are wrong, change nothing.
"""

import json

import numpy as np
import pytest
from latecomer.bench.window_simulator import run_pass
from latecomer.core.windows.calibrated_slack import CalibratedSlack
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import IntervalRows
from latecomer.core.windows.observation_schedule import (
    FAR_SHARE,
    LONGEST_OBSERVATION,
    MOST_OBSERVED,
    ObservationSchedule,
)

MINUTE = 60_000_000
HOUR = 60 * MINUTE
GRID = Grid(MINUTE, MINUTE)
START = 1_700_000_040_000_000 // MINUTE * MINUTE


def phones(seed, share, hours=60, rate=4):
    """Return event times in order of arrival; some rows sync two to three hours later."""
    rng = np.random.default_rng(seed)
    event = START + np.sort(rng.integers(0, hours * HOUR, hours * 60 * rate))
    delay = np.where(
        rng.random(len(event)) < share, rng.uniform(2, 3, len(event)) * HOUR, rng.exponential(5e6, len(event))
    )
    return event[np.argsort(event + delay.astype(np.int64), kind="stable")]


def intervals(event, grid=GRID):
    """Count arrivals by interval of stream time, as the control plane takes them in."""
    time = np.maximum.accumulate(event)
    found = []
    for number in np.unique(time // grid.slide_us):
        inside = time // grid.slide_us == number
        panes, place, rows = np.unique(event[inside] // grid.pane_us, return_inverse=True, return_counts=True)
        delays = np.zeros(len(panes), np.int64)
        np.maximum.at(delays, place, time[inside] - event[inside])
        delay = int(delays.max())
        found.append(IntervalRows(int(number), int(time[inside].max()), delay, int(inside.sum()), panes, rows, delays))
    return found


def schedule_after(event, grid=GRID):
    """Return the schedule after all arrivals, in the interval that follows."""
    schedule, rows = ObservationSchedule(grid, True, True), intervals(event, grid)
    schedule.advance(rows)
    schedule.enter(rows[-1].interval + 1)
    return schedule


def sizes_of_observation(event):
    """Return the number of sizes from the end of a window to its final observation, after all arrivals."""
    schedule = schedule_after(event)
    return schedule.interval - 1 - schedule.delivered


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_windows_wait_hours_for_a_large_share_of_late_rows(seed):
    event = phones(seed, 0.3)
    policy = CalibratedSlack(0.95, GRID, 2 * HOUR, 0.95)
    closed = run_pass(event, np.ones(len(event)), GRID, policy)
    later = (closed.window >= (START + 20 * HOUR) // MINUTE) & (closed.window < (START + 56 * HOUR) // MINUTE)
    first, final = closed.first_rows[later].sum(), closed.final_rows[later].sum()
    assert first / final > 0.95, "an observation after 64 sizes, an hour, sees nine rows in ten in time"


@pytest.mark.parametrize("share, most", [(0.3, 512), (0.0002, 64)])
def test_windows_are_observed_until_all_but_a_few_rows_are_in(share, most):
    assert most // 2 < sizes_of_observation(phones(7, share)) <= 2 * most


def test_clocks_that_were_never_set_and_one_row_from_long_ago_change_nothing():
    event = phones(1, 0.0)
    never = event.copy()
    never[np.arange(50, len(event), 20)] = 5 * MINUTE
    assert schedule_after(never).far == [] or schedule_after(never)._usual_lateness() == 0
    once = event.copy()
    once[len(once) // 2] -= 20 * HOUR
    assert len(once) > FAR_SHARE and schedule_after(once)._usual_lateness() == 0 and sum(schedule_after(once).far) == 1


def test_tiny_windows_are_under_observation_up_to_a_number():
    grid = Grid(1_000, 1_000)
    event = phones(2, 0.3, hours=6, rate=10)
    assert schedule_after(event, grid)._usual_lateness() == 1_000 * MOST_OBSERVED // 2


def test_any_cut_observes_the_same_windows():
    rows = intervals(phones(3, 0.2, hours=20))
    whole = ObservationSchedule(GRID, True, True)
    expected, parts = whole.advance(rows), {}
    state = None
    rng = np.random.default_rng(0)
    for piece in np.split(np.arange(len(rows)), np.sort(rng.integers(0, len(rows), 15))):
        schedule = ObservationSchedule(GRID, True, True)
        if state is not None:
            schedule = ObservationSchedule.from_dict(json.loads(json.dumps(state)), GRID, True, True)
        parts |= schedule.advance([rows[i] for i in piece])
        state = schedule.to_dict()
    assert parts == expected and state == whole.to_dict() and max(whole.far) > 0
    wide = max(number - first for number, (first, _) in expected.items())
    assert wide > 8 * LONGEST_OBSERVATION


def test_a_state_of_an_earlier_version_counts_from_now_on():
    whole = schedule_after(phones(4, 0.2, hours=20))
    earlier = {
        name: value
        for name, value in whole.to_dict().items()
        if name in ("interval", "delay_us", "pending_delay_us", "delivered")
    }
    schedule = ObservationSchedule.from_dict(earlier, GRID, True, True)
    assert (schedule.rows, schedule.far, schedule.delivered) == (0, [], whole.delivered)
    assert schedule.began == schedule.interval, "rows of clocks that were never set stay out"
    schedule.enter(schedule.interval + 64)
    assert schedule.delivered >= whole.delivered
