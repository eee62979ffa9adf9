"""The calibrated controller: its sweep, its state, and its promise on synthetic regimes and on real logs."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.core.arrays.knob_cells import CELLS, cell_edges
from latecomer.core.join.calibrated_control import MARGIN, Calibrated, IntervalLoss, _cheapest, _tail
from latecomer.core.join.retention_policies import CalibratedRetention
from latecomer.core.join.statistics import IntervalStats
from latecomer.core.time import FOREVER

from tests.support.join_sim import (
    UNDEFINED,
    JoinCase,
    Outcome,
    clairvoyant,
    constant_rows,
    make_case,
    period_recall,
    simulate,
    zeek_case,
)

SECOND = 1_000_000
MINUTE = 60 * SECOND
G = 10_000


def loss(interval: int, *needs: list[int], lost: float = 0.0, rates: tuple[float, ...] | None = None) -> IntervalLoss:
    required = tuple(np.array(n, dtype=np.int64) for n in needs)
    return IntervalLoss(interval, required, tuple(np.ones(len(n)) for n in needs), lost, rates or (1.0,) * len(needs))


def least(controller: Calibrated, interval: int) -> tuple[int, ...]:
    """Return the choice in us without the margin that stays."""
    chosen = zip(controller.choose(interval), controller.floor_us, strict=True)
    return tuple(value if value == FOREVER else floor + round((value - floor) / MARGIN) for value, floor in chosen)


def run(case: JoinCase, target: float = 0.95, period_us: int = MINUTE, fraction: float = 0.005) -> Outcome:
    policy = CalibratedRetention.build(
        target,
        window_us=case.window_us,
        period_us=period_us,
        interval_us=SECOND,
        granularity_us=G,
        sample_fraction=fraction,
    )
    return simulate(case, policy, period_us, SECOND, G, fraction)


def exponential(seed: int, mean_s: tuple[float, ...], periods: int = 12, rate: int = 24) -> JoinCase:
    """Return streams with delays of the given means, one third of the time each for three; 8 keys, window 5 s."""
    rng = np.random.default_rng(seed)
    n = periods * 60 * rate
    ts = np.sort((rng.random(n) * periods * MINUTE).astype(np.int64))
    regime = np.minimum((ts * len(mean_s)) // (periods * MINUTE), len(mean_s) - 1)
    arrival = ts + (rng.exponential(1.0, n) * np.array(mean_s)[regime] * SECOND).astype(np.int64)
    order = np.argsort(arrival, kind="stable")
    which, key = (rng.random(n) < 0.5).astype(np.int8), rng.integers(0, 8, n)
    return make_case("exponential", ts[order], which[order], 5 * SECOND, key[order])


def clocks(kind: str, seed: int, periods: int = 80, rate: int = 200) -> JoinCase:
    """Return streams with delays of mean 2 s, a window of 4 s and 6 keys, and wrong clocks in the left stream.

    Either some rows are from the future, or the clock of one key is 20 s fast.
    """
    rng = np.random.default_rng(seed)
    n = periods * rate
    ts, which, key = np.sort(rng.integers(0, periods * MINUTE, n)), rng.integers(0, 2, n), rng.integers(0, 6, n)
    order = np.argsort(ts + rng.exponential(2 * SECOND, n).astype(np.int64), kind="stable")
    if kind == "future":
        wrong = rng.choice(np.flatnonzero(which == 0), 3, replace=False)
        ts[wrong] += rng.integers(5 * MINUTE, 30 * MINUTE, 3)
    else:
        ts += np.where((which == 0) & (key == 0), 20 * SECOND, 0)
    return make_case(kind, ts[order], which[order].astype(np.int8), 4 * SECOND, key[order])


# -- cells and the sweep -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("granularity", [1, 1_000, 10_000, 60 * SECOND])
def test_cells_are_on_the_grid_and_within_two_percent(granularity: int) -> None:
    edges = cell_edges(granularity)
    assert edges.size == CELLS
    assert (np.diff(edges) >= 0).all()
    inside = edges[edges < FOREVER] // granularity
    np.testing.assert_array_equal(inside[:51], np.arange(51))
    assert (inside[51:] / inside[50:-1] <= 1.0201).all()
    assert edges[-1] > 800 * SECOND


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 2), st.integers(1, 4), st.integers(2, 7), st.integers(0, 2**32 - 1))
def test_sweep_against_every_combination(knobs: int, periods: int, cells: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    required = rng.integers(0, 4, (periods, knobs, cells)).astype(float)
    required[:, :, rng.integers(1, cells + 1) :] = 0
    tail = np.empty_like(required)
    end = max(_tail(period, out) for period, out in zip(required, tail, strict=True))
    np.testing.assert_array_equal(tail, required[:, :, ::-1].cumsum(2)[:, :, ::-1] - required)
    assert not tail[:, -1, end:].any() and (end == 0 or tail[:, -1, end - 1].any())
    limits = rng.random(periods) * required.sum((1, 2))
    rate, edges = rng.integers(0, 4, knobs).astype(float), np.cumsum(rng.integers(1, 5, cells))
    at = _cheapest(tail, limits, rate, edges, end)[:knobs]

    def meets(choice: tuple[int, ...]) -> bool:
        return all(sum(tail[p, k, c] for k, c in enumerate(choice)) <= limits[p] for p in range(periods))

    def cost(choice: tuple[int, ...]) -> float:
        return float(sum(edges[c] * rate[k] for k, c in enumerate(choice)))

    assert meets(at)
    assert cost(at) == min(cost(c) for c in product(range(cells), repeat=knobs) if meets(c))


# -- the rule ----------------------------------------------------------------------------------------------------------


def test_everything_is_retained_until_a_full_period_has_passed_and_something_was_seen() -> None:
    controller = Calibrated(0.9, 10 * SECOND, SECOND, G, (0,))
    assert least(controller, 3) == (FOREVER,)
    for interval in range(3, 13):
        controller.observe(loss(interval, [], rates=(1.0,)))
        assert least(controller, interval + 1) == (FOREVER,)
    for interval in range(13, 20):
        controller.observe(loss(interval, [5 * G] * 10))
    assert least(controller, 20) == (5 * G,)


def test_the_slack_is_the_least_that_every_remembered_period_accepts() -> None:
    controller = Calibrated(0.5, SECOND, SECOND, G, (0,), share=0.5)
    assert controller.memory == 1
    controller.observe(loss(0, [G, 2 * G, 3 * G, 40 * G]))
    assert least(controller, 1) == (2 * G,)
    controller.observe(loss(1, [7 * G] * 4))
    assert least(controller, 2) == (7 * G,)
    controller.observe(loss(2, [G] * 4))
    assert least(controller, 3) == (G,)


def test_the_margin_shrinks_as_periods_are_known() -> None:
    controller = Calibrated(0.9, SECOND, SECOND, G, (0,))
    chosen = []
    for interval in range(25):
        controller.observe(loss(interval, [G * i for i in range(1, 1001)]))
        chosen.append(least(controller, interval + 1)[0])
    assert chosen[0] > chosen[8] > chosen[18] == chosen[24]
    assert 900 * G <= chosen[18] <= 920 * G


@pytest.mark.parametrize("known", [2, 6, 12])
def test_periods_alike_pay_a_smaller_margin_than_wild_ones_and_none_pays_more_than_the_linear(known: int) -> None:
    chosen = {}
    for name, scale in (("alike", 0), ("wild", 4)):
        controller = Calibrated(0.9, SECOND, SECOND, G, (0,))
        for interval in range(known):
            # one period's delays stay as they are: what the greatest of the remembered losses asks for is the same
            step = 2 ** -(scale * (interval % 3 + 1)) if interval else 1
            controller.observe(loss(interval, [int(G * i * step) for i in range(1, 1001)]))
        chosen[name] = least(controller, known)[0]
    aim = 0.1 * (known + 1) / 20
    assert 900 * G < chosen["alike"] < chosen["wild"] <= 1.02 * (1 - aim) * 1000 * G + G


def test_the_late_knob_pays_and_the_punctual_does_not() -> None:
    controller = Calibrated(0.9, SECOND, SECOND, G, (-SECOND, -SECOND))
    for interval in range(20):
        controller.observe(loss(interval, [-50 * G] * 100, [300 * G] * 100))
    left, right = least(controller, 20)
    assert -50 * G <= left <= -49 * G
    assert 300 * G <= right <= 306 * G


def test_a_period_in_trouble_is_steered() -> None:
    def after(lost: float) -> int:
        controller = Calibrated(0.9, 10 * SECOND, SECOND, G, (0,))
        for interval in range(200):
            controller.observe(loss(interval, [G * i for i in range(1, 101)]))
        controller.observe(loss(200, [G * i for i in range(1, 101)], lost=lost))
        return least(controller, 201)[0]

    assert after(0.0) == after(9.0) < after(50.0) <= after(99.0)
    assert after(0.0) < after(101.0) < after(99.0), "a lost period must not cost as much as one that can be saved"


def test_quick_reaction_to_a_worse_regime() -> None:
    controller = Calibrated(0.9, 60 * SECOND, SECOND, G, (0,))
    for interval in range(600):
        controller.observe(loss(interval, [G] * 10))
    assert least(controller, 600) == (G,)
    for interval in range(600, 620):
        controller.observe(loss(interval, [1000 * G] * 10, lost=10))
    assert least(controller, 620)[0] >= 1000 * G


def test_broken_promises_tighten_the_aim_until_they_are_forgotten() -> None:
    def after(broken: int, then: int) -> int:
        controller = Calibrated(0.9, SECOND, SECOND, G, (0,))
        for interval in range(40 + broken + then):
            lost = 500.0 if 40 <= interval < 40 + broken else 0.0
            controller.observe(loss(interval, [G * i for i in range(1, 1001)], lost=lost))
        return controller.choose(40 + broken + then)[0]

    assert after(0, 0) == after(1, 0) < after(2, 0) < after(4, 0)
    assert after(4, 19) == after(0, 0)


def test_gaps_and_empty_periods_are_no_evidence() -> None:
    controller = Calibrated(0.9, 10 * SECOND, SECOND, G, (0,))
    for interval in range(20):
        controller.observe(loss(interval, [9 * G] * 10))
    before = controller.choose(20)
    controller.observe(loss(5_000, [], rates=(1.0,)))
    assert controller.choose(5_001) == before == controller.choose(9_999)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 2), st.integers(0, 2**32 - 1))
def test_state_survives_json_anywhere(knobs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    straight = Calibrated(0.93, 7 * SECOND, 2 * SECOND, G, (-SECOND, 0)[:knobs])
    killed = straight
    for interval in np.cumsum(rng.integers(1, 4, 40)).tolist():
        needs = tuple(rng.integers(-200, 80_000, 5) * G for _ in range(knobs))
        weights = tuple(rng.random(5) * 100 for _ in range(knobs))
        lost = IntervalLoss(interval, needs, weights, float(rng.random()), tuple(rng.random(knobs).tolist()))
        killed = Calibrated.from_dict(json.loads(json.dumps(killed.to_dict())))
        assert straight.choose(interval) == killed.choose(interval)
        straight.observe(lost)
        killed.observe(lost)
    assert straight.to_dict() == killed.to_dict()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"target": 1.0}, "target is 1.0"),
        ({"share": 1.0}, "share is 1.0"),
        ({"interval_us": 2 * MINUTE}, "no longer than the period"),
        ({"floor_us": (0, 0, 0)}, "3 knobs"),
    ],
)
def test_impossible_parameters_are_refused(kwargs: dict[str, object], message: str) -> None:
    usual = {"target": 0.9, "period_us": MINUTE, "interval_us": SECOND, "granularity_us": G, "floor_us": (0,)}
    with pytest.raises(ValueError, match=message):
        Calibrated(**{**usual, **kwargs})  # type: ignore[arg-type]


def test_state_of_another_version_is_refused() -> None:
    state = Calibrated(0.9, MINUTE, SECOND, G, (0,)).to_dict() | {"version": 99}
    with pytest.raises(ValueError, match="version 99"):
        Calibrated.from_dict(state)


# -- the join's policy -------------------------------------------------------------------------------------------------


def test_policy_state_survives_json_at_every_interval() -> None:
    case = exponential(1, (0.5,), periods=4)
    fresh = {"window_us": case.window_us, "period_us": MINUTE, "interval_us": SECOND, "granularity_us": G}

    class Killed:
        policy = CalibratedRetention.build(0.9, **fresh)  # type: ignore[arg-type]
        needs_lateness = True
        expires = True

        def observe(self, stats: IntervalStats) -> None:
            self.policy = CalibratedRetention.from_dict(json.loads(json.dumps(self.policy.to_dict())))
            self.policy.observe(stats)

        def choose(self, interval: int) -> tuple[int, int]:
            return self.policy.choose(interval)

    a = simulate(case, CalibratedRetention.build(0.9, **fresh), MINUTE, SECOND, G, 0.005)  # type: ignore[arg-type]
    b = simulate(case, Killed(), MINUTE, SECOND, G, 0.005)
    np.testing.assert_array_equal(a.chosen, b.chosen)


def test_less_than_a_window_is_kept_only_where_the_sample_would_notice() -> None:
    for rate, below in ((3, False), (60, True)):
        outcome = run(exponential(2, (0.02,), periods=6, rate=rate), target=0.7, fraction=0.02)
        assert bool((outcome.chosen < 0).any()) == below


@pytest.mark.parametrize("seed", [1])
def test_promise_under_steady_delays(seed: int) -> None:
    outcome = run(exponential(seed, (1.0,), periods=20))
    assert outcome.met(0.95) >= 0.95


@pytest.mark.parametrize("seed", [4])
def test_a_jump_costs_the_period_in_which_it_is_first_seen_and_is_then_held(seed: int) -> None:
    outcome = run(exponential(seed, (0.5, 5.0, 0.5), periods=24))
    missed = np.flatnonzero(outcome.recall < 0.95)
    assert missed[0] == 8
    assert missed.size <= 2


# -- real logs ---------------------------------------------------------------------------------------------------------


def test_conventions_reproduce_the_published_table() -> None:
    case = zeek_case("dns", "ssl", 10 * SECOND)
    start = int(case.stream_time[case.stream_time > UNDEFINED // 2][0])
    for d, recall, met, rows in ((3_710_000, 0.950, 0.86, 914), (8_000_000, 0.990, 0.95, 1242)):
        assert float((case.rho < d).mean()) == pytest.approx(recall, abs=6e-4)
        assert float(np.mean(period_recall(case, d, MINUTE, start) >= 0.95)) == pytest.approx(met, abs=6e-3)
        assert constant_rows(case, d) == pytest.approx(rows, abs=1)


@pytest.mark.slow
def test_promise_on_zeek_at_most_1_3_times_the_clairvoyant() -> None:
    case = zeek_case("dns", "ssl", 10 * SECOND)
    outcome = run(case)
    _, rows = clairvoyant(case, 0.95, MINUTE, G)
    assert outcome.recall.size == 22
    assert outcome.met(0.95) >= 0.95
    assert outcome.rows_held + outcome.sample_held <= 1.3 * rows


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["future", "fast"])
def test_a_stream_with_a_fast_clock_costs_no_memory(kind: str) -> None:
    """Stream time waits for the other one, so its rows are late on their own stream only."""
    case = clocks(kind, 1)
    outcome, (_, rows) = run(case, 0.9), clairvoyant(case, 0.9, MINUTE, G)
    assert outcome.met(0.9) >= 0.95
    assert np.quantile(case.delay, 0.9) > 3 * np.quantile(case.lateness, 0.9)
    assert outcome.rows_held + outcome.sample_held <= 1.4 * rows
