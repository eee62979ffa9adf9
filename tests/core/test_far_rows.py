"""Rows that come later than windows are usually observed: where many do, windows are observed until then; a few, and clocks that are wrong, change nothing."""

import json

import numpy as np
import pytest
from latecomer.bench.window_simulator import run_pass
from latecomer.core.windows.calibrated_slack import CalibratedSlack
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import IntervalRows
from latecomer.core.windows.observation_schedule import FAR_SHARE, LONGEST_OBSERVATION, MOST_OBSERVED, Lookout

MINUTE = 60_000_000
HOUR = 60 * MINUTE
GRID = Grid(MINUTE, MINUTE)
START = 1_700_000_040_000_000 // MINUTE * MINUTE


def phones(seed, share, hours=60, rate=4):
    """Event times in order of arrival: some rows sync two to three hours later."""
    rng = np.random.default_rng(seed)
    event = START + np.sort(rng.integers(0, hours * HOUR, hours * 60 * rate))
    delay = np.where(
        rng.random(len(event)) < share, rng.uniform(2, 3, len(event)) * HOUR, rng.exponential(5e6, len(event))
    )
    return event[np.argsort(event + delay.astype(np.int64), kind="stable")]


def intervals(event, grid=GRID):
    """What arrivals give the control plane, an interval each time that stream time enters one."""
    time = np.maximum.accumulate(event)
    found = []
    for number in np.unique(time // grid.slide_us):
        own = time // grid.slide_us == number
        panes, rows = np.unique(event[own] // grid.pane_us, return_counts=True)
        delay = int((time[own] - event[own]).max())
        found.append(IntervalRows(int(number), int(time[own].max()), delay, int(own.sum()), panes, rows))
    return found


def looked(event, grid=GRID):
    """The lookout after all arrivals, in the interval that follows."""
    lookout, every = Lookout(grid, True, True), intervals(event, grid)
    lookout.schedule(every)
    lookout.enter(every[-1].interval + 1)
    return lookout


def until(event):
    """So many sizes after their end windows are observed then."""
    lookout = looked(event)
    return lookout.interval - 1 - lookout.delivered


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_what_comes_hours_late_is_waited_for_where_it_is_a_large_share(seed):
    event = phones(seed, 0.3)
    policy = CalibratedSlack(0.95, GRID, 2 * HOUR, 0.95)
    closed = run_pass(event, np.ones(len(event)), GRID, policy)
    later = (closed.window >= (START + 20 * HOUR) // MINUTE) & (closed.window < (START + 56 * HOUR) // MINUTE)
    first, final = closed.first_rows[later].sum(), closed.final_rows[later].sum()
    assert first / final > 0.95, "a look at 64 sizes, an hour, sees nine rows in ten in time"


@pytest.mark.parametrize("share, most", [(0.3, 512), (0.0002, 64)])
def test_windows_are_observed_until_all_but_a_few_rows_are_in(share, most):
    assert most // 2 < until(phones(7, share)) <= 2 * most


def test_clocks_that_were_never_set_and_one_row_from_long_ago_change_nothing():
    event = phones(1, 0.0)
    never = event.copy()
    never[np.arange(50, len(event), 20)] = 5 * MINUTE
    assert looked(never).far == [] or looked(never)._reached() == 0
    once = event.copy()
    once[len(once) // 2] -= 20 * HOUR
    assert len(once) > FAR_SHARE and looked(once)._reached() == 0 and sum(looked(once).far) == 1


def test_of_tiny_windows_so_many_are_observed_and_no_more():
    grid = Grid(1_000, 1_000)
    event = phones(2, 0.3, hours=6, rate=10)
    assert looked(event, grid)._reached() == 1_000 * MOST_OBSERVED // 2


def test_any_cut_looks_at_the_same_windows():
    every = intervals(phones(3, 0.2, hours=20))
    whole = Lookout(GRID, True, True)
    expected, parts = whole.schedule(every), {}
    state = None
    rng = np.random.default_rng(0)
    for piece in np.split(np.arange(len(every)), np.sort(rng.integers(0, len(every), 15))):
        lookout = Lookout(GRID, True, True)
        if state is not None:
            lookout.restore(json.loads(json.dumps(state)))
        parts |= lookout.schedule([every[i] for i in piece])
        state = lookout.to_dict()
    assert parts == expected and state == whole.to_dict() and max(whole.far) > 0
    wide = max(number - first for number, (first, _) in expected.items())
    assert wide > 8 * LONGEST_OBSERVATION


def test_a_state_of_an_earlier_version_counts_from_now_on():
    whole = looked(phones(4, 0.2, hours=20))
    earlier = {
        name: value
        for name, value in whole.to_dict().items()
        if name in ("interval", "delay_us", "pending_delay_us", "delivered")
    }
    lookout = Lookout(GRID, True, True)
    lookout.restore(earlier)
    assert (lookout.rows, lookout.far, lookout.delivered) == (0, [], whole.delivered)
    assert lookout.began == lookout.interval, "a clock that was never set is nobody's then, too"
    lookout.enter(lookout.interval + 64)
    assert lookout.delivered >= whole.delivered
