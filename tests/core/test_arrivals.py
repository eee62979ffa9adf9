"""Arrivals of the windowed kinds against loops that follow the definitions word for word."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.core.arrivals import Arrivals
from latecomer.core.time import FOREVER, NEVER
from latecomer.core.windows.arrivals import ArrivalCounts, ClosingSteps, last_closed
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import WatermarkTable
from latecomer.core.windows.recall_budget import steps_of
from latecomer.spark.windows.arrival_tasks import closed_along
from latecomer.spark.windows.assigner import WindowAssigner

from tests.support.arrival_blocks import Blocks

rows = st.lists(st.tuples(st.integers(-300, 300), st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=60)


def arrays(given_rows):
    ts, side, shard = (np.array(column, np.int64) for column in zip(*given_rows, strict=True))
    return np.arange(len(ts), dtype=np.int64) * 3, ts, side, shard


def followed(given_rows):
    """Return stream time and delay of every row, by the definition."""
    found = []
    for place, (ts, side, shard) in enumerate(given_rows):
        peaks = [
            max((t for t, s, g in given_rows[: place + 1] if s == source and g == shard), default=NEVER)
            for source in (0, 1)
        ]
        found.append((min(peaks), peaks[side] - ts))
    return found


@settings(deadline=None, max_examples=60)
@given(rows, st.integers(0, 60))
def test_stream_time_is_the_least_running_maximum_whatever_the_cut(given_rows, cut):
    columns = arrays(given_rows)
    first = Arrivals.of(*(c[:cut] for c in columns), [NEVER] * 6, 3)
    second = Arrivals.of(*(c[cut:] for c in columns), first.carry, 3)
    time = np.concatenate([first.stream_time_us, second.stream_time_us]).tolist()
    delay = np.concatenate([first.delay_us, second.delay_us]).tolist()
    assert list(zip(time, delay, strict=True)) == followed(given_rows)


@settings(deadline=None, max_examples=60)
@given(rows, st.integers(1, 70))
def test_a_scan_from_a_checkpoint_continues_as_the_whole_scan(given_rows, every):
    columns = arrays(given_rows)
    whole = Arrivals.of(*columns, [NEVER] * 6, 3)
    found = whole.checkpoints(every)
    assert [mark.seq for mark in found] == columns[0][every::every].tolist()
    for mark in found:
        at = mark.seq // 3
        rest = Arrivals.of(*(c[at:] for c in columns), mark.carry, 3)
        assert rest.stream_time_us.tolist() == whole.stream_time_us[at:].tolist() and rest.carry == whole.carry


@settings(deadline=None, max_examples=60)
@given(rows)
def test_counts_by_interval_and_pane(given_rows):
    grid = Grid(40, 20)
    new = Arrivals.of(*arrays(given_rows), [NEVER] * 6, 3)
    counted = ArrivalCounts.of(new, grid, 3)
    assert counted.rows == len(given_rows)
    expected, before_time = {}, {}
    for (ts, _, shard), (time, delay) in zip(given_rows, followed(given_rows), strict=True):
        if time == NEVER:
            before_time[shard, ts // 20] = before_time.get((shard, ts // 20), 0) + 1
            continue
        interval = expected.setdefault((shard, time // 20), [time, delay, {}])
        interval[0], interval[1] = max(interval[0], time), max(interval[1], delay)
        interval[2][ts // 20] = interval[2].get(ts // 20, 0) + 1
    found = {}
    for shard, intervals in enumerate(counted.intervals):
        assert [rows.interval for rows in intervals] == sorted({rows.interval for rows in intervals})
        for interval in intervals:
            panes = dict(zip(interval.panes.tolist(), interval.pane_rows.tolist(), strict=True))
            found[shard, interval.interval] = [interval.t_last_us, interval.delay_us, panes]
            assert interval.rows == sum(panes.values())
    assert found == expected
    held = {
        (shard, pane): count
        for shard, (panes, counts) in enumerate(counted.before_time)
        for pane, count in zip(panes.tolist(), counts.tolist(), strict=True)
    }
    assert held == before_time


@settings(deadline=None, max_examples=60)
@given(rows, st.sampled_from([0, 15, 55, FOREVER]))
def test_windows_closed_after_each_arrival(given_rows, slack):
    grid = Grid(40, 20)
    new = Arrivals.of(*arrays(given_rows), [NEVER] * 6, 3)
    numbers = [np.unique(new.stream_time_us[(new.shard == s) & (new.stream_time_us > NEVER)] // 20) for s in range(3)]
    bases = [np.full(len(n), -200, np.int64) for n in numbers]
    watermarks = [WatermarkTable(n, b, np.full(len(n), slack)) for n, b in zip(numbers, bases, strict=True)]
    closed = last_closed(new, watermarks, grid)
    for place, (time, _) in enumerate(followed(given_rows)):
        mark = NEVER if time == NEVER else max(-200, time - slack) if slack < FOREVER else -200
        assert closed[place] == (mark - 40) // 20
    for shard in range(3):
        of_shard = [i for i, row in enumerate(given_rows) if row[2] == shard]
        values, seq, time = ClosingSteps.of(new, closed, shard)
        firsts = {}
        for i in of_shard:
            firsts.setdefault(int(closed[i]), i)
        assert values.tolist() == sorted(firsts)
        assert seq.tolist() == [int(new.seq[firsts[v]]) for v in values.tolist()]
        assert time.tolist() == [int(new.stream_time_us[firsts[v]]) for v in values.tolist()]


cuts = st.lists(st.integers(0, 60), max_size=4)


@settings(deadline=None, max_examples=60)
@given(rows, cuts)
def test_blocks_are_counted_as_one(given_rows, places):
    columns, grid = arrays(given_rows), Grid(40, 20)
    cut = Blocks(columns, [min(place, len(given_rows)) for place in places], [NEVER] * 6, 3)
    whole = Arrivals.of(*columns, [NEVER] * 6, 3)
    assert cut.carry == whole.carry
    counted, expected = ArrivalCounts.of(cut, grid, 3), ArrivalCounts.of(whole, grid, 3)
    assert repr(counted) == repr(expected)


@settings(deadline=None, max_examples=60)
@given(rows, cuts, st.sampled_from([0, 15, 55, FOREVER]), st.sampled_from([0, 30]))
def test_windows_close_in_blocks_as_in_one(given_rows, places, slack, lookback):
    columns, grid = arrays(given_rows), Grid(40, 20)
    cut = Blocks(columns, [min(place, len(given_rows)) for place in places], [NEVER] * 6, 3)
    whole = Arrivals.of(*columns, [NEVER] * 6, 3)
    watermarks = []
    for shard in range(3):
        numbers = np.unique(whole.stream_time_us[(whole.shard == shard) & (whole.stream_time_us > NEVER)] // 20)
        watermarks.append(WatermarkTable(numbers, np.full(len(numbers), -200), np.full(len(numbers), slack)))
    assigner = WindowAssigner(grid, lookback)
    (steps, late), (expected_steps, expected_late) = (closed_along(a, watermarks, grid, assigner) for a in (cut, whole))
    assert [repr(s) for s in steps] == [repr(s) for s in expected_steps]
    assert repr(late) == repr(expected_late)
    closed = last_closed(whole, watermarks, grid)
    behind = closed >= (columns[1] - 40) // 20 + 1
    assert late.seq.tolist() == columns[0][behind].tolist() and late.closed.tolist() == closed[behind].tolist()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-300, 300), min_size=1, max_size=60), cuts, st.sampled_from([None, -3, 2]))
def test_steps_begin_in_blocks_as_in_one(times, places, interval):
    n = len(times)
    zeros = np.zeros(n, np.int64)
    columns = np.arange(n), np.array(times), zeros, zeros
    carry = [NEVER if interval is None else 20 * interval + 19]
    cut = Blocks(columns, [min(place, n) for place in places], carry)
    whole = Arrivals.of(*columns, carry)
    numbers = np.unique(whole.stream_time_us // 20)
    table = WatermarkTable(numbers, numbers * 7, zeros[: len(numbers)])
    steps = steps_of(cut, table, interval, 20, None)
    assert repr(steps) == repr(steps_of(whole, table, interval, 20, None))
    reached = [carry[0] // 20 if interval is not None else NEVER, *(whole.stream_time_us // 20).tolist()]
    assert steps.begins.tolist() == [i for i in range(n) if reached[i + 1] > reached[i]]


def test_nothing_arrived():
    none = np.empty(0, np.int64)
    new = Arrivals.of(none, none, none, none, [NEVER], 1)
    assert new.carry == [NEVER] and ArrivalCounts.of(new, Grid(10, 10), 1).intervals == [[]]
    assert last_closed(new, [WatermarkTable(none, none, none)], Grid(10, 10)).tolist() == []


@pytest.mark.parametrize("shards", [1, 4])
def test_carry_reaches_the_first_row(shards):
    carry = list(range(100, 100 + shards))
    last = shards - 1
    new = Arrivals.of(np.array([7]), np.array([5]), np.array([0]), np.array([last]), carry, shards)
    assert new.stream_time_us.tolist() == [carry[last]] and new.delay_us.tolist() == [carry[last] - 5]
