"""Edges of the windowed kinds: the control plane closes and observes windows as the tuple-at-a-time reference.

The reference recomputes everything from single rows, provisional rounds included. Only the class of the policy is
shared, with one instance each.
"""

from __future__ import annotations

import itertools
import json
import math
import tracemalloc
from collections import Counter
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.bench.window_simulator import run_control_plane, run_pass
from latecomer.core.aggregate.coverage import Cells, Function, needed_coverage, required_answers, required_coverage
from latecomer.core.topk.required_waits import Candidates, required_members
from latecomer.core.windows import observation
from latecomer.core.windows.calibrated_slack import CalibratedSlack
from latecomer.core.windows.control import WindowControl
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import IntervalRows, Observed
from latecomer.core.windows.observation import Span
from latecomer.core.windows.slack_policies import Fixed, LargestDelay, Proportional
from latecomer.reference import windows as ref

COUNT = Function("count", None)
GRIDS = [(60, 20), (20, 20), (50, 20), (10, 1), (30, 7), (1_000, 500)]


def policies(grid):
    return {
        "fixed": lambda: Fixed(15),
        "largest": LargestDelay,
        "hpm": lambda: Proportional(0.2, 4.0, 0.3, grid.granularity_us),
        "calibrated": lambda: CalibratedSlack(0.8, grid, 200, 0.9),
    }


def by_rows(grid, groups):
    """Observe windows for the reference: per group, the least slack that leaves out less than half of its rows."""

    def observe(window, rows, cut):
        del cut
        required = []
        for group in sorted({groups[a.seq] for a, _ in rows}):
            waits = sorted((u - grid.end(window) for a, u in rows if groups[a.seq] == group), reverse=True)
            need = 0
            for lost, wait in enumerate(waits, 1):
                tied = lost < len(waits) and waits[lost] // grid.granularity_us == wait // grid.granularity_us
                if wait >= 0 and not tied and lost / len(waits) >= 0.5:
                    need = (wait // grid.granularity_us + 1) * grid.granularity_us
                    break
            required.append(need)
        levels, counts = np.unique([r for r in required if r > 0], return_counts=True)
        return Observed(window, levels.astype(np.int64), counts.astype(float), float(len(required)))

    return observe


def cells_of(event, value, group, grid) -> Cells:
    """One cell per row, in order."""
    event, value = np.asarray(event, np.int64), np.asarray(value, np.float64)
    t = np.maximum.accumulate(event)
    wait = t - (grid.first_of(event) * grid.slide_us + grid.size_us)
    bucket = np.where(wait >= 0, wait // grid.granularity_us, -1)
    known = ~np.isnan(value)
    tame = np.where(known, value, 0.0)
    return Cells(
        np.asarray(group, np.int64), event // grid.pane_us, bucket, np.ones(len(event), np.int64),
        {0: known.astype(float)}, {0: tame}, {0: tame * tame}, {0: value}, {0: value},
    ).ordered()  # fmt: skip


def both(event, groups, grid, make, cuts=(), observe_us=None):
    """Run the reference and the control plane, and compare closing arrivals, late rows and policies."""
    rows = [ref.Arrival(i, 0, ts, {}) for i, ts in enumerate(event)]
    slow = ref.run(
        rows,
        size=grid.size_us,
        slide=grid.slide_us,
        streams=1,
        policy=(of_reference := make()),
        observe=by_rows(grid, groups),
        observe_us=observe_us,
    )
    times = np.array(event, np.int64)
    cells = cells_of(event, np.ones(len(event)), groups, grid)

    def observed(spans):
        return required_answers(cells, grid, spans, [COUNT], 0.5)

    decisions = run_control_plane(times, grid, (policy := make()), observed, observe_us=observe_us, cuts=cuts)
    mark = decisions.watermark_us
    closed, late = {}, {}
    for i, ts in enumerate(event):
        for window in ref.windows(ts, grid.size_us, grid.slide_us):
            if mark[i] >= grid.end(window):
                late.setdefault(i, []).append(window)
            else:
                closed[window] = int(np.searchsorted(mark, grid.end(window)))
    assert of_reference.to_dict() == policy.to_dict()
    assert closed == slow.closed
    assert late == slow.late
    return slow, decisions


@st.composite
def arrivals(draw):
    """Draw times with ties, long gaps, rows far behind, before and after 0; and groups, some of which come late."""
    steps = draw(
        st.lists(st.tuples(st.sampled_from([0, 0, 1, 3, 9, 40, 700]), st.integers(0, 90)), min_size=1, max_size=70)
    )
    now, event = draw(st.integers(-900, 50)), []
    for step, delay in steps:
        now += step
        event.append(now - delay)
    return event, [draw(st.integers(0, 1 + i // 20)) for i in range(len(event))]


@settings(deadline=None, max_examples=150)
@given(arrivals(), st.sampled_from(GRIDS), st.sampled_from(["fixed", "largest", "hpm", "calibrated"]), st.data())
def test_core_equals_the_reference_whatever_the_cuts(stream, window, name, data):
    event, groups = stream
    grid = Grid(*window)
    cuts = tuple(sorted(data.draw(st.lists(st.integers(0, len(event)), max_size=6))))
    observe_us = data.draw(st.sampled_from([None, grid.size_us]))
    both(event, groups, grid, policies(grid)[name], cuts, observe_us)


def test_the_round_at_the_epoch_observes_everything():
    grid = Grid(10, 1)
    both([-11, 10, 10, 10], [0] * 4, grid, policies(grid)["calibrated"])


def test_a_long_stream_is_observed_in_rounds_and_equals_the_reference():
    rng = np.random.default_rng(4)
    grid = Grid(20, 10)
    event = np.arange(0, 1_500, 3)[np.argsort(np.arange(500) * 3 + rng.exponential(30, 500), kind="stable")].tolist()
    slow, decisions = both(event, [i % 3 for i in range(500)], grid, policies(grid)["calibrated"], (100, 101, 333))
    assert len(np.unique(decisions.slack_us)) > 5 and slow.late
    assert decisions.control.policy.to_dict()["past"][0], "some windows were observed finally"


@pytest.mark.parametrize("window", [(10, 10), (20, 10), (15, 10)])
@pytest.mark.parametrize("wrong", [False, True])
def test_rows_that_come_far_too_late_are_waited_for_as_the_reference_has_it(window, wrong):
    """Cut anywhere, also inside intervals; with clocks that were never set, and rows from before the first."""
    rng = np.random.default_rng(window[0])
    grid, time = Grid(*window), 5_000 + np.arange(750) * window[0] * 2 // 5
    delay = np.where(rng.random(750) < 0.3, rng.integers(60, 130, 750) * grid.size_us, rng.integers(0, 8, 750))
    event = time[np.argsort(time + delay, kind="stable")]
    if wrong:
        event[np.arange(20, 750, 15)] = 7
    cuts = tuple(np.sort(rng.integers(0, 750, 20)).tolist())
    _, decisions = both(event.tolist(), [i % 3 for i in range(750)], grid, policies(grid)["calibrated"], cuts)
    schedule = decisions.control.schedule
    watched = schedule.interval * grid.slide_us - grid.end(schedule.delivered)
    assert sum(schedule.far) > 50 and watched > 100 * grid.size_us


def test_every_window_is_shown_early_again_and_once_for_the_last_time():
    grid, seen = Grid(20, 10), []

    class Watch(CalibratedSlack):
        def observe(self, each, slack_us, interval):
            seen.append((each.window, interval * grid.slide_us - grid.end(each.window), each.final))
            super().observe(each, slack_us, interval)

    event = np.arange(0, 6_000, 5)
    cells = cells_of(event, np.ones(len(event)), np.zeros(len(event)), grid)
    run_control_plane(
        event, grid, Watch(0.9, grid, 60, 0.9), lambda spans: required_answers(cells, grid, spans, [COUNT], 0.5)
    )
    per_window = {}
    for window, age, final in seen:
        per_window.setdefault(window, []).append((age, final))
    settled = [ages for window, ages in per_window.items() if 0 <= window < 500]
    assert len(settled) == 500
    for found in settled:
        ages = [age for age, _ in found]
        assert ages == sorted(ages) and 20 <= ages[0] <= 40
        assert [final for _, final in found] == [False] * (len(found) - 1) + [True]
        assert all(later <= 3 * age + 20 for age, later in itertools.pairwise(ages)), "observed again in time"
    assert np.mean([len(observation) for observation in settled]) < 8, "not once per interval: that would be 30"


def test_ties_close_nothing_twice_and_the_row_that_closes_is_late():
    grid = Grid(10, 10)
    # the third row moves stream time to the end: the window is closed when the fourth comes, and by the third itself
    slow, decisions = both([3, 3, 10, 9, 10, 3], [0] * 6, grid, lambda: Fixed(0))
    assert slow.closed[0] == 2 and slow.late == {3: [0], 5: [0]}
    assert decisions.watermark_us.tolist() == [3, 3, 10, 10, 10, 10]


def test_empty_windows_are_no_windows():
    grid = Grid(10, 10)
    closed = run_pass(np.array([1, 95, 120]), np.ones(3), grid, Fixed(0))
    assert closed.window.tolist() == [0, 9, 12]
    slow, _ = both([1, 95, 120], [0] * 3, grid, lambda: Fixed(0))
    assert sorted(slow.closed) == [0, 9, 12]
    cells = cells_of([1, 95, 120], [1, 1, 1], [0, 0, 0], grid)
    assert [each.window for each in required_answers(cells, grid, [Span(0, 12, 10**9)], [COUNT], 0.5)[0]] == [0, 9, 12]
    assert required_answers(cells, grid, [Span(1, 8, 10**9)], [COUNT], 0.5)[0] == []
    assert required_coverage(cells, grid, [Span(1, 8, 10**9)], [COUNT], 0.5, 0.05)[0] == []


@pytest.mark.parametrize("name", ["count", "sum", "avg", "min", "max", "median", "quantile"])
def test_a_single_row_that_is_late_must_be_waited_for(name):
    grid = Grid(10, 10)
    cells = cells_of([25, 4], [7.0, 7.0], [0, 0], grid)
    first, _ = required_answers(cells, grid, [Span(0, 2, 10**9)], [Function(name, 0)], 0.5)[0]
    assert first.window == 0 and first.total == 1.0
    # it came 15 after the window's end: the least multiple of the granularity above that
    assert first.required_us.tolist() == [16]
    closed = run_pass(np.array([25, 4]), np.full(2, 7.0), grid, Fixed(15))
    assert closed.first_rows[0] == 0 and closed.error()[0] == math.inf
    assert run_pass(np.array([25, 4]), np.full(2, 7.0), grid, Fixed(16)).first_rows[0] == 1


def test_a_group_that_appears_late_is_an_answer_of_its_own():
    grid = Grid(10, 10)
    event, group = [1, 2, 3, 4, 27, 5], [0, 0, 0, 0, 0, 1]
    cells = cells_of(event, np.ones(6), group, grid)
    apart = required_answers(cells, grid, [Span(0, 0, 10**9)], [COUNT], 0.5)[0][0]
    assert apart.total == 2.0 and apart.required_us.tolist() == [18] and apart.weight.tolist() == [1.0]
    together = required_answers(cells_of(event, np.ones(6), [0] * 6, grid), grid, [Span(0, 0, 10**9)], [COUNT], 0.5)[0][
        0
    ]
    assert together.total == 1.0 and together.required_us.tolist() == [], "one of five rows is less than half"
    early = required_answers(cells, grid, [Span(0, 0, 27)], [COUNT], 0.5)[0][0]
    assert early.total == 1.0, "before the cut nobody knew of the group"


def test_huge_values_of_one_group_do_not_blur_another():
    """A running sum over all groups would have no digits left for the second one's ones."""
    grid = Grid(10, 10)
    cells = cells_of([1, 2, 25, 3, 4], [2.0**60, 1.0, 1.0, 1.0, 2.0**60], [0, 1, 1, 1, 0], grid)
    found = required_answers(cells, grid, [Span(0, 0, 10**9)], [Function("sum", 0)], 0.4)[0][0]
    assert found.total == 2.0 and found.required_us.tolist() == [16] and found.weight.tolist() == [2.0]


def test_null_values_count_as_rows_and_change_no_sum():
    grid, null = Grid(10, 10), math.nan
    cells = cells_of([1, 2, 25, 3, 4], [5.0, null, 1.0, null, null], [0] * 5, grid)

    def needed(name, column=0):
        found = required_answers(cells, grid, [Span(0, 0, 10**9)], [Function(name, column)], 0.5)[0][0]
        return found.required_us.tolist()

    assert needed("count", None) == [16], "two of four rows were late"
    assert needed("count") == needed("sum") == needed("avg") == needed("min") == needed("max") == []
    assert needed("median") == [], "the share lost is of values"
    only = cells_of([25, 3], [1.0, null], [0, 0], grid)
    for name in ("sum", "avg", "min", "max"):
        found = required_answers(only, grid, [Span(0, 0, 10**9)], [Function(name, 0)], 0.5)[0][0]
        assert found.required_us.tolist() == [16], f"{name}: an answer that is missing altogether is off"


@pytest.mark.parametrize("name", ["sum", "avg", "median", "quantile"])
def test_an_aggregate_of_a_column_is_steered_by_its_values_and_not_by_rows(name):
    """Two rows of a hundred have a value and come late; of a thousand, one in fifty has one, as of twenty rows."""
    grid, null, far = Grid(1_000, 1_000), math.nan, [Span(0, 0, 10**9)]
    late = cells_of([*range(98), 1_500, 98, 99], [*[null] * 98, null, 2.0, 3.0], [0] * 101, grid)
    seen = required_answers(late, grid, far, [Function(name, 0)], 0.05)[0][0]
    assert seen.required_us.tolist() == [502], "every value would be missing"
    values = np.random.default_rng(2).normal(10, 3, 20)
    sparse = np.full(1_000, null)
    sparse[::50] = values
    found = [
        required_coverage(
            cells_of(np.arange(len(v)), v, [0] * len(v), grid), grid, far, [Function(name, 0)], 0.05, 0.05
        )[0][0]
        for v in (sparse, values, np.full(1_000, null))
    ]
    assert found[0].needed_coverage == found[1].needed_coverage > 0.5
    assert found[2].needed_coverage == 0.0, "there is nothing to be off"


def test_sums_that_are_nan_are_nan_whatever_is_missing():
    """Nothing can be off by a share of NaN, so nothing waits; but coverage that cannot be bounded must be whole."""
    grid = Grid(10, 10)
    rows = cells_of([1, 25, 3], [5.0, 1.0, 2.0], [0] * 3, grid)
    total = {0: np.array([math.nan, 1.0, 2.0])}
    cells = Cells(rows.group, rows.pane, rows.bucket, rows.rows, rows.counted, total, total, rows.least, rows.most)
    for name in ("sum", "avg"):
        assert (
            required_answers(cells, grid, [Span(0, 0, 10**9)], [Function(name, 0)], 0.5)[0][0].required_us.tolist()
            == []
        )
    assert required_answers(cells, grid, [Span(0, 0, 10**9)], [Function("count", 0)], 0.5)[0][
        0
    ].required_us.tolist() == [16]
    seen = required_coverage(cells, grid, [Span(0, 0, 10**9)], [Function("avg", 0)], 0.05, 0.05)[0][0]
    assert seen.needed_coverage == 1.0, "what varies without bound needs every row"


def test_windows_longer_than_the_stream_close_with_the_flush():
    grid = Grid(1_000, 500)
    slow, decisions = both([10, 30, 20, 40], [0] * 4, grid, lambda: Fixed(0))
    assert set(slow.closed.values()) == {4} and not slow.late, "closed by the flush, after the last arrival"
    assert decisions.control.flush() == 0 and decisions.control.base == 1_000
    closed = run_pass(np.array([10, 30, 20, 40]), np.ones(4), grid, LargestDelay())
    assert closed.window.tolist() == [-1, 0] and closed.first_rows.tolist() == closed.final_rows.tolist() == [4, 4]


def test_a_flush_keeps_the_account_of_its_interval():
    grid = Grid(100, 100)

    def taken(control, *times):
        rows = [
            IntervalRows(time // 100, time, 0, 1, *(np.array([value]) for value in (time // 100, 1, 0)))
            for time in times
        ]
        control.step(rows, {})

    control = WindowControl(grid, 1_000, Fixed(50))
    taken(control, 20, 60)
    before = control.account(0, as_of_now=True)
    assert (before.held_max, before.held_area, before.weight_us) == (2, 60, 60)
    control.flush()
    assert control.account(0, as_of_now=True) == before, "what was held until the flush was held"
    control.flush()
    again = WindowControl.from_dict(json.loads(json.dumps(control.to_dict())), grid, 1_000, Fixed(50))
    assert again.account(0, as_of_now=True) == before, "twice is once"
    taken(again, 80, 130)
    after = again.account(0)
    assert (after.held_max, after.rows) == (2, 4)
    assert (after.held_area, after.weight_us) == (60, 100), "what comes behind the flush is late, and not held"
    whole = WindowControl(grid, 1_000, Fixed(50))
    taken(whole, 20, 60, 80, 130)
    assert whole.account(0).weight_us == 100


def test_slide_equal_to_size_puts_every_row_in_one_window():
    grid = Grid(20, 20)
    assert grid.pane_us == 20 and grid.first_of(19) == grid.last_of(19) == 0 and grid.first_of(-1) == -1
    closed = run_pass(np.arange(0, 100, 5), np.ones(20), grid, Fixed(0))
    assert closed.final_rows.tolist() == [4.0] * 5


def test_a_slide_that_does_not_divide_the_size_uses_their_greatest_common_divisor():
    grid = Grid(50, 20)
    assert grid.pane_us == 10
    for time in range(-100, 100):
        assert list(range(grid.first_of(time), grid.last_of(time) + 1)) == ref.windows(time, 50, 20)
    closed = run_pass(np.arange(0, 200, 10), np.ones(20), grid, Fixed(0))
    inner = (closed.window >= 0) & (grid.end(closed.window) <= 200)
    assert closed.final_rows[inner].tolist() == [5.0] * int(inner.sum())


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(-80, 120), st.integers(0, 3), st.floats(-5, 5)), min_size=1, max_size=60),
    st.sampled_from([(60, 20), (20, 20), (50, 20), (10, 1)]),
    st.integers(-10, 10), st.integers(0, 8), st.integers(-4, 12),
)  # fmt: skip
def test_what_windows_are_shown_is_what_their_rows_say(rows, spans, first, more, slides):
    """Row by row, from the definition."""
    grid, windows = Grid(*spans), (first, first + more)
    cut = slides * grid.slide_us
    event, group, value = (np.array(each) for each in zip(*rows, strict=True))
    cells = cells_of(event, value, group, grid).ordered()
    functions, now = [Function("sum", 0), COUNT], np.maximum.accumulate(event)
    found = required_coverage(cells, grid, [Span(*windows, cut)], functions, 0.05, 0.05)[0]
    expected = {}
    for window in range(first, first + more + 1):
        end = grid.end(window)
        own = [i for i in range(len(event)) if end - grid.size_us <= event[i] < end and (now[i] < max(cut, end))]
        own = [i for i in own if now[i] >= end or -1 * grid.granularity_us < cut - end]
        if not own:
            continue
        needs: dict[int, int] = {}
        for i in own:
            if now[i] >= end:
                need = int((now[i] - end) // grid.granularity_us + 1) * grid.granularity_us
                needs[need] = needs.get(need, 0) + 1
        values, groups = value[own], len({int(group[i]) for i in own})
        mean, spread = values.mean(), values.var()
        expected[window] = (needs, len(own), groups, mean, spread)
    assert [each.window for each in found] == list(expected)
    for each in found:
        needs, count, groups, mean, spread = expected[each.window]
        assert each.total == count and dict(zip(each.required_us.tolist(), each.weight.tolist(), strict=True)) == needs
        assert each.required_us.tolist() == sorted(needs)
        if abs(mean) > 0.5:
            needed = needed_coverage("sum", count / groups, math.sqrt(max(spread, 0)) / abs(mean), 0.05, 0.05)
            assert each.needed_coverage == pytest.approx(max(needed, 0.95), abs=1e-6)
    answers = required_answers(cells, grid, [Span(*windows, cut)], functions, 0.05)[0]
    assert [each.window for each in answers] == list(expected)
    assert [each.total for each in answers] == [groups for _, _, groups, _, _ in expected.values()]


@settings(deadline=None, max_examples=80)
@given(
    st.lists(
        st.tuples(st.integers(-80, 120), st.integers(0, 3), st.sampled_from([0.1, 3.3, -7.7, 1e9, math.nan])),
        min_size=1, max_size=60,
    ),
    st.sampled_from([(60, 20), (20, 20), (50, 20), (10, 1)]),
    st.lists(st.tuples(st.integers(-10, 10), st.integers(0, 8), st.integers(-4, 12)), max_size=8),
    st.sampled_from([1, 40, 1 << 20]),
)  # fmt: skip
def test_spans_observed_together_equal_each_alone(rows, sizes, asked, together):
    """Both agree to the bit, whatever else is observed and however many at a time, in any order, overlapping or not."""
    grid = Grid(*sizes)
    event, group, value = (np.array(each) for each in zip(*rows, strict=True))
    cells = cells_of(event, value, group, grid)
    cells = replace(cells, total={0: np.where(cells.counted[0] > 0, cells.total[0], math.nan)})
    best = Candidates(cells.group, cells.pane, cells.bucket, cells.most[0], cells.pane, np.arange(len(cells.pane)))
    spans = [Span(first, first + more, slides * grid.slide_us) for first, more, slides in asked]
    functions = [Function(name, 0) for name in ("sum", "avg", "max")]
    ways = [
        lambda these: required_coverage(cells, grid, these, functions, 0.05, 0.05),
        lambda these: required_answers(cells, grid, these, functions, 0.05),
        lambda these: required_members(best, 2, grid, these),
    ]
    for way in ways:
        alone = [way([span])[0] for span in spans]
        with mock.patch.object(observation, "ENTRIES_AT_ONCE", together):
            assert [list(map(as_values, seen)) for seen in way(spans)] == [list(map(as_values, seen)) for seen in alone]


def test_wide_windows_are_expanded_in_parts():
    """One row in each pane, each in 200 windows: about as many entries at once as asked for, not all 80,000."""
    grid, n = Grid(2_000, 10), 400
    pane, bucket = np.arange(n), np.full(n, -1)
    with mock.patch.object(observation, "ENTRIES_AT_ONCE", 5_000):
        parts = list(observation.window_entries(grid, pane, bucket, [Span(-199, n, 10**9), Span(0, 3, 10**9)]))
    assert max(len(each.at) for each in parts) <= 2 * 5_000 and len(parts) > 10
    assert np.concatenate([each.span for each in parts]).tolist() == [0] * (n + 199) + [1] * 4
    assert np.concatenate([each.window for each in parts]).tolist() == [*range(-199, n), *range(4)]


def as_values(seen):
    return seen.window, seen.required_us.tolist(), seen.weight.tolist(), seen.total, seen.needed_coverage


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 5)), max_size=8, unique_by=lambda p: p[0])))
def test_rows_by_pane_add_up(parts):
    control, total = WindowControl(Grid(20, 10), 100, Fixed(0)), dict[int, int]()
    for part in parts:
        control.hold(*np.array(sorted(part), np.int64).reshape(-1, 2).T.copy())
        for pane, rows in part:
            total[pane] = total.get(pane, 0) + rows
    assert list(zip(control.panes.tolist(), control.pane_rows.tolist(), strict=True)) == sorted(total.items())


@pytest.mark.parametrize("observe", [required_coverage, required_answers, required_members])
@pytest.mark.parametrize("policy", ["hpm", "calibrated"])
def test_a_gap_in_the_data_costs_nothing(policy, observe):
    """Half a century without a row, billions of windows: deciding takes memory for those with rows only."""
    grid, rng, half = Grid(500_000, 100_000), np.random.default_rng(3), np.arange(0, 20_000_000, 20_000)
    event = np.concatenate([half, half + 50 * 365 * 86_400_000_000]) - rng.integers(0, 400_000, 2 * len(half))
    cells = cells_of(event, np.ones(len(event)), np.zeros(len(event), np.int64), grid).ordered()
    rows = Candidates(
        cells.group, cells.pane, cells.bucket, cells.total[0], cells.pane * grid.pane_us, np.arange(len(cells.pane))
    )
    shown = []

    def observed(spans):
        shown.extend(spans)
        if observe is required_members:
            return observe(rows, 3, grid, spans)
        bounds = (0.05,) if observe is required_answers else (0.05, 0.05)
        return observe(cells, grid, spans, [COUNT], *bounds)

    tracemalloc.start()
    decisions = run_control_plane(event, grid, policies(grid)[policy](), observed, period_us=4_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
    assert len(decisions.watermark_us) == len(event)
    assert max(last - first for first, last, _ in shown) > 1e10


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(-80, 120), st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=60),
    st.sampled_from([(60, 20), (20, 20), (50, 20)]), st.integers(-10, 10), st.integers(0, 8), st.integers(-4, 12),
    st.integers(1, 4),
)  # fmt: skip
def test_what_members_of_a_top_k_require_is_what_their_rows_say(rows, spans, first, more, slides, k):
    """Row by row, from the definition: the k best of a group that had come, and how long each was waited for."""
    grid, cut = Grid(*spans), slides * spans[1]
    event, group, score = (np.array(each) for each in zip(*rows, strict=True))
    now = np.maximum.accumulate(event)
    behind = now - (grid.first_of(event) * grid.slide_us + grid.size_us)
    bucket = np.where(behind >= 0, behind // grid.granularity_us, -1)
    columns = (group, event // grid.pane_us, bucket, score.astype(float), event, np.arange(len(event)))
    order = np.argsort(columns[1], kind="stable")
    found = required_members(Candidates(*(each[order] for each in columns)), k, grid, [Span(first, first + more, cut)])[
        0
    ]
    expected = {}
    for window in range(first, first + more + 1):
        end = grid.end(window)
        own = [i for i in range(len(event)) if end - grid.size_us <= event[i] < end and now[i] < max(cut, end)]
        own = [i for i in own if now[i] >= end or -1 * grid.granularity_us < cut - end]
        members = []
        for each in {int(group[i]) for i in own}:
            best = sorted((i for i in own if group[i] == each), key=lambda i: (-score[i], event[i], i))
            members += best[:k]
        waits = [(int(now[i]) - end) // grid.granularity_us for i in members]
        if members:
            needs = [(wait + 1) * grid.granularity_us for wait in waits if wait >= 0]
            expected[window] = (Counter(needs), len(members))
    assert {
        each.window: (dict(zip(each.required_us, each.weight, strict=True)), each.total) for each in found
    } == expected
