"""The recall guarantee of a join: every period reaches its target, at the end of every interval, whatever arrives."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.bench.join_simulator import Input, band_pairs, qjoin, recalled
from latecomer.core.arrays.knob_cells import cell_edges
from latecomer.core.join import least_rows
from latecomer.core.join.control import JoinControl
from latecomer.core.join.least_rows import LeastRows
from latecomer.core.join.recall_budget import IntervalEntry, LateSpans, RecallBudget
from latecomer.core.join.retention_policies import ConstantRetention
from latecomer.core.join.statistics import UNCENSORED, IntervalStats, SideStats, delay_bucket
from latecomer.reference.join import recalled as by_rule

from tests.core import test_join_promise as drawn

SECOND = 1_000_000
NONE = LateSpans(*(np.empty(0, np.int64) for _ in range(3)))


def budget(target: float = 0.9) -> RecallBudget:
    return RecallBudget(target, period_us=100, interval_us=10)


def stored(state: RecallBudget) -> RecallBudget:
    document = json.loads(json.dumps(state.to_dict()))
    return RecallBudget.from_dict(document, state.target, period_us=state.period_us, interval_us=state.interval_us)


def counts(*rows: tuple[int, int, int, int, int]) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, 5)


def test_missed_pairs_are_left_to_repair_while_the_period_can_spare_them() -> None:
    plan = budget()
    assert plan.step([IntervalEntry(0, 0, 3, (0, 0))], counts((0, 0, 9, 1, 4)), (NONE, NONE)) == []
    assert plan.awaits_decision and plan.decided_to == 0
    # 9 of 10 are there: enough; then 9 of 11 would be too few
    assert plan.step([IntervalEntry(1, 5, 12, (3, 3))], counts((1, 0, 0, 1, 2)), (NONE, NONE)) == []
    (decision,) = stored(plan).step([IntervalEntry(4, 9, 41, (5, 4))], counts(), (NONE, NONE))
    assert (decision.interval, decision.period_us, decision.seq_from, decision.published_seq) == (1, 0, 5, 9)
    assert decision.pairs == 1
    plan.step([IntervalEntry(4, 9, 41, (5, 4))], counts(), (NONE, NONE))
    period = plan.periods[0]
    assert (period.due, period.unpublished, period.recalled) == (11, 1, 1)
    assert period.wait_us == 41 - 12


def test_an_interval_over_the_end_of_a_period_is_decided_for_both() -> None:
    plan = RecallBudget(0.5, period_us=15, interval_us=10)
    plan.step([IntervalEntry(1, 0, 12, (0, 0))], counts((1, 0, 1, 2, 4), (1, 15, 1, 1, 6)), (NONE, NONE))
    (decision,) = plan.step([IntervalEntry(2, 8, 20, (0, 0))], None, (NONE, NONE))
    assert (decision.period_us, decision.pairs) == (0, 2)
    assert plan.periods[15].unpublished == 1


def test_a_flush_decides_at_once_and_later_arrivals_anew() -> None:
    plan = budget()
    plan.step([IntervalEntry(0, 0, 3, (0, 0))], counts((0, 0, 1, 1, 3)), (NONE, NONE))
    assert plan.account(0).due == 1, "a pair that is not decided is not due yet"
    (decision,) = plan.flush(7, 5)
    assert (decision.published_seq, plan.decided_to, plan.periods[0].wait_us) == (7, 7, 2)
    plan.step([IntervalEntry(0, 7, 6, (2, 2))], counts((0, 0, 0, 1, 6)), (NONE, NONE))
    (decision,) = plan.flush(9, 6)
    assert (decision.seq_from, decision.published_seq, decision.pairs) == (7, 9, 1)
    assert plan.account(0).due == 3


def test_what_a_repair_has_published_before_counts_as_published() -> None:
    plan = budget()
    plan.step([IntervalEntry(0, 0, 3, (0, 0))], counts((0, 0, 1, 1, 3)), (NONE, NONE))
    plan.note_repaired(-1, 4)
    assert plan.awaits_decision
    plan.note_repaired(2, 4)
    assert not plan.awaits_decision and plan.decided_to == 4
    assert plan.step([IntervalEntry(1, 4, 11, (2, 2))], None, (NONE, NONE)) == []
    assert (plan.periods[0].repaired_early, plan.periods[0].unpublished) == (1, 0)


def test_rows_recalled_are_the_rows_of_a_union_of_spans() -> None:
    plan = budget()
    plan.step([IntervalEntry(0, 0, 3, (0, 0))], None, (NONE, NONE))
    spans = LateSpans(np.array([4, 4, 4]), np.array([10, 15, 30]), np.array([19, 24, 34]))
    plan.step([IntervalEntry(4, 6, 40, (8, 4))], counts((4, 0, 1, 0, 0)), (spans, NONE))
    plan = stored(plan)
    more = LateSpans(np.array([4]), np.array([25]), np.array([27]))
    plan.step([IntervalEntry(4, 9, 41, (0, 0))], counts(), (more, NONE))
    # 23 us of event time, at 8 rows in 40 us, held for an interval of 10 us
    assert plan.account(0).recalled_area == 23 * 8 * 10 // 40
    plan.step([IntervalEntry(5, 11, 50, (9, 9))], None, (NONE, NONE))
    assert plan.account(0).recalled_area == 46 == plan.periods[0].recalled_area


@st.composite
def inputs(draw: st.DrawFn) -> tuple[Input, int, int]:
    n = draw(st.integers(2, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([1.0, 20.0, 300.0]))
    event = np.sort(rng.integers(0, 400, n))
    event = event[np.argsort(event + rng.exponential(scale, n) * (rng.random(n) < 0.4), kind="stable")]
    key = rng.integers(0, 2, n)
    if draw(st.booleans()):
        rows = [np.arange(n)] * 2
    else:
        side = rng.integers(0, 2, n)
        rows = [np.flatnonzero(side == s) for s in (0, 1)]
    pairs = band_pairs(event[rows[0]], event[rows[1]], 12, key[rows[0]], key[rows[1]])
    pairs = pairs[rows[0][pairs[:, 0]] != rows[1][pairs[:, 1]]]
    return Input((rows[0], rows[1]), (event[rows[0]], event[rows[1]]), pairs), draw(st.integers(1, 30)), n


@settings(max_examples=300, deadline=None)
@given(inputs(), st.sampled_from([0.5, 0.9, 0.95, 1.0]), st.sampled_from([25, 60, 100]), st.data())
def test_any_cut_recalls_what_the_rule_says(
    drawn_input: tuple[Input, int, int], target: float, period_us: int, data: st.DataObject
) -> None:
    rows, retention, n = drawn_input
    spans = {"window_us": 12, "period_us": period_us, "interval_us": 7, "granularity_us": 1}
    cuts = data.draw(st.lists(st.integers(1, n), max_size=4))
    outcomes = []
    for ends in (None, cuts):
        control = JoinControl(ConstantRetention(retention, retention), **spans)
        output = qjoin(rows, control)
        plan = RecallBudget(target, period_us=period_us, interval_us=7)
        chosen = recalled(rows, output, control, plan, ends)
        outcomes.append((set(np.flatnonzero(chosen).tolist()), plan.to_dict()))
    assert outcomes[0] == outcomes[1]
    times = {(pair, pair): time for pair, time in enumerate(output.stream_time.tolist())}
    produced = {(pair, pair) for pair in np.flatnonzero(output.produced).tolist()}
    assert outcomes[0][0] == {pair for pair, _ in by_rule(times, produced, target, period_us, 7)}
    for start, period in plan.periods.items():
        if not period.due:
            continue
        of_period = output.stream_time // period_us * period_us == start
        assert period.due == of_period.sum()
        assert period.recalled == (chosen & of_period).sum()
        assert Fraction(int((output.produced | chosen)[of_period].sum()), period.due) >= Fraction(str(target))


@pytest.mark.parametrize("kind", [*drawn.CALM, "outage", "jump", "lognormal"])
@pytest.mark.parametrize("target", [0.9, 0.99])
def test_every_period_is_kept_on_streams_of_all_kinds(kind: str, target: float) -> None:
    """Also those whose first outage no learning can foresee."""
    data, window = drawn.stream(kind, 1)
    spans = {"window_us": window, "period_us": drawn.P, "interval_us": SECOND, "granularity_us": window // 200}
    control = JoinControl(LeastRows(target, **spans), **spans)
    output = qjoin(data, control)
    chosen = recalled(data, output, control, RecallBudget(target, period_us=drawn.P, interval_us=SECOND))
    period = output.stream_time // drawn.P
    due = np.bincount(period)
    in_time = np.bincount(period, output.produced | chosen)
    assert (in_time[due > 0] / due[due > 0] >= target).all()


def side(lateness: list[int], granularity: int) -> SideStats:
    bucket, rows = np.unique(delay_bucket(np.array(lateness, np.int64), granularity), return_counts=True)
    none = np.zeros(0, np.int64)
    return SideStats(len(lateness), bucket, rows, none, none, none, none, none, UNCENSORED)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-50, 5_000), max_size=12), st.lists(st.integers(-50, 5_000), max_size=12))
def test_the_cost_of_a_retention_is_what_late_rows_read(left: list[int], right: list[int]) -> None:
    policy = LeastRows(0.9, window_us=100, period_us=1_000, interval_us=10, granularity_us=10)
    policy.observe(IntervalStats(3, side(left, 10), side(right, 10)))
    edges = cell_edges(10)
    for buffer, lateness in ((0, right), (1, left)):
        upper = [(int(bucket) + 1) * 10 for bucket in delay_bucket(np.array(lateness, np.int64), 10)]
        for cell in (0, 1, 5, 49, 60, 120, 1000):
            d = int(edges[cell])
            read = sum(min(max(u - d, 0), 200) for u in upper)
            assert policy.read_us2[buffer][cell] == min(read, max([u - d for u in upper] + [0])) * 10
    again = LeastRows.from_dict(
        json.loads(json.dumps(policy.to_dict())), 0.9, window_us=100, period_us=1_000, interval_us=10, granularity_us=10
    )
    assert again.to_dict() == policy.to_dict() and (again.read_us2 == policy.read_us2).all()
    for buffer, lateness in ((0, right), (1, left)):
        retention = again.choose(1_000)[buffer]
        late = sum((int(bucket) + 1) * 10 > retention for bucket in delay_bucket(np.array(lateness, np.int64), 10))
        cost = 100 + edges + again.read_us2[buffer] / again.time_us
        longer_costs = cost[np.searchsorted(edges, retention) + 1]
        too_dear = longer_costs > least_rows.ACCEPTABLE * cost[1:].min()
        assert late <= 0.1 * len(lateness) + 1e-9 or too_dear, "most rows meet all their partners on arrival"


@pytest.mark.parametrize("most_late_us", [10**6, 10**9, 10**12])
def test_no_buffer_spans_what_one_row_in_fifty_needs_if_that_is_much_dearer(most_late_us: int) -> None:
    """Clocks that are a year behind are left to recall, however high the target is."""
    rng = np.random.default_rng(52)
    policies = [LeastRows(0.99, window_us=100, period_us=1_000, interval_us=10, granularity_us=10) for _ in range(2)]
    for interval in range(400):
        lateness = rng.exponential(40, 5).astype(np.int64).tolist()
        for policy, more in zip(policies, ([], [most_late_us] if interval % 10 == 0 else []), strict=True):
            policy.observe(IntervalStats(interval, side(lateness, 10), side([*lateness, *more], 10)))
    (calm, _), (hit, _) = (policy.choose(400) for policy in policies)
    assert calm <= hit <= 4 * (100 + calm)


def test_one_absurdly_late_row_does_not_move_the_retention() -> None:
    policies = [LeastRows(0.95, window_us=100, period_us=1_000, interval_us=10, granularity_us=10) for _ in range(2)]
    rng = np.random.default_rng(5)
    for interval in range(400):
        lateness = rng.exponential(40, 3).astype(np.int64).tolist()
        for policy, more in zip(policies, ([], [10**12] if interval == 390 else []), strict=True):
            policy.observe(IntervalStats(interval, side(lateness, 10), side([*lateness, *more], 10)))
    (calm, _), (hit, _) = (policy.choose(400) for policy in policies)
    assert calm <= hit <= 1.05 * calm
    assert policies[0].choose(50) == (1 << 61, 1 << 61), "everything is retained before the first period is over"
