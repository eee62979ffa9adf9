"""Windows that close, against a loop over windows and arrivals that follows the definition word for word."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.core.arrivals import Arrivals
from latecomer.core.time import NEVER
from latecomer.core.windows.arrivals import ArrivalCounts, ClosingSteps
from latecomer.core.windows.closing import closed_windows
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.observation import windows_of

SHARDS = 2
rows = st.lists(st.tuples(st.integers(-300, 300), st.integers(0, SHARDS - 1)), max_size=40)
grids = st.sampled_from([Grid(40, 20), Grid(20, 20), Grid(30, 20), Grid(10, 20)])


def windows_with(grid, times):
    """Return the numbers of the windows that hold the panes of some times."""
    found = set()
    for start in {time // grid.pane_us * grid.pane_us for time in times}:
        numbers = range(start // grid.slide_us - grid.size_us // grid.slide_us - 1, start // grid.slide_us + 1)
        found |= {m for m in numbers if m * grid.slide_us <= start < m * grid.slide_us + grid.size_us}
    return found


@settings(deadline=None, max_examples=200)
@given(
    grids, rows, st.lists(st.integers(-300, 300), max_size=10), st.integers(0, 60), st.booleans(), st.integers(-20, 10)
)
def test_windows_close_at_the_first_arrival_that_reaches_them(grid, given_rows, open_times, slack, flush, before):
    ts, shard = (np.array([row[i] for row in given_rows], np.int64) for i in (0, 1))
    side = np.zeros(len(ts), np.int8)
    new = Arrivals.of(np.arange(len(ts)), ts, side, shard.astype(np.int32), [NEVER] * SHARDS, SHARDS)
    reached = np.maximum((new.stream_time_us - slack - grid.size_us) // grid.slide_us, before)
    panes = [np.unique(np.array(open_times, np.int64) // grid.pane_us), np.empty(0, np.int64)]
    ends = [int(new.stream_time_us[shard == s][-1]) if (shard == s).any() else None for s in range(SHARDS)]
    counts = ArrivalCounts.of(new, grid, SHARDS)
    steps = [ClosingSteps.of(new, reached, number) for number in range(SHARDS)]
    found = closed_windows(grid, steps, counts, [before] * SHARDS, panes, (len(ts), ends) if flush else None)
    expected, after = [], []
    for number in range(SHARDS):
        times = [time for time, place in given_rows if place == number] + (open_times if number == 0 else [])
        last = before
        for m in sorted(windows_with(grid, times)):
            at = next((i for i in range(len(ts)) if shard[i] == number and reached[i] >= m), None)
            end = m * grid.slide_us + grid.size_us
            if m > before and at is not None:
                expected.append((number, m, at, max(int(new.stream_time_us[at]) - end, 0)))
            elif m > before and flush and ends[number] is not None:
                expected.append((number, m, len(ts), max(ends[number] - end, 0)))
                last = m
        after.append(max([last, *(int(last_closed) for i, last_closed in enumerate(reached) if shard[i] == number)]))
    columns = (found.shard, found.window, found.seq, found.wait_us)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert list(found.after) == after


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from([Grid(40, 20), Grid(20, 20), Grid(30, 20), Grid(10, 20), Grid(70, 30), Grid(600, 1)]),
    st.lists(st.integers(-300, 300), max_size=30, unique=True),
)
def test_windows_of_panes_are_the_windows_of_every_pane(grid, panes):
    found = windows_of(grid, np.array(sorted(panes), np.int64)).tolist()
    assert found == sorted(windows_with(grid, [pane * grid.pane_us for pane in panes]))


def test_windows_of_a_day_by_the_second_are_listed_once():
    """One row in each of 86,400 panes: a list per pane would have 7.5 billion windows."""
    found = windows_of(Grid(86_400, 1), np.arange(86_400))
    assert len(found) == 2 * 86_400 - 1 and found[0] == 1 - 86_400 and (np.diff(found) == 1).all()
