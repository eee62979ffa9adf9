"""The estimators against their definitions written out, and the sweep against every pair on the grid."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.core.join.k_slack import least_slack
from latecomer.core.join.recall_estimators import (
    ESTIMATORS,
    FINE_STEPS,
    PaperRecall,
    SeparableRecall,
    choose_retention,
    delay_aware,
    interval_target,
    knob_steps,
    paper,
)
from latecomer.core.join.retention_policies import QJoinRetention, interval_loss
from latecomer.core.join.statistics import (
    UNCENSORED,
    IntervalStats,
    SideStats,
    empty_side,
    in_sample,
    sampled_share,
    uncensor,
)
from latecomer.core.join.tail_estimator import TailEstimator
from latecomer.core.time import FOREVER

from tests.support.evidence import empirical
from tests.support.join_sim import JoinCase, clairvoyant, constant_rows, make_case, simulate

SECOND = 1_000_000
G = 10_000


def side(
    delays: dict[int, tuple[int, int, int]], required: dict[int, tuple[int, int]], censored_from: int = UNCENSORED
) -> SideStats:
    """Return statistics from tables by bucket.

    `delays` has rows, candidates and results per delay bucket, `required` pairs and sampled pairs per required bucket.
    """
    late, need = sorted(delays), sorted(required)

    def column(table: dict[int, tuple[int, ...]], keys: list[int], at: int) -> np.ndarray:
        return np.array([table[k][at] for k in keys], dtype=np.int64)

    columns = [column(delays, late, i) for i in range(3)]  # type: ignore[arg-type]
    return SideStats(
        int(columns[0].sum()),
        np.array(late, dtype=np.int64),
        *columns,
        np.array(need, dtype=np.int64),
        column(required, need, 0),  # type: ignore[arg-type]
        column(required, need, 1),  # type: ignore[arg-type]
        censored_from,
    )


def synthetic(seed: int, window_us: int = SECOND, spread: float = 0.3, seconds: int = 120, rate: int = 40) -> JoinCase:
    rng = np.random.default_rng(seed)
    n = seconds * rate
    ts = np.sort((rng.random(n) * seconds * SECOND).astype(np.int64))
    arrival = ts + (rng.exponential(spread, n) * SECOND).astype(np.int64)
    order = np.argsort(arrival, kind="stable")
    which = (rng.random(n) < 0.5).astype(np.int8)
    return make_case("synthetic", ts[order], which[order], window_us)


class Watch:
    """A controller that retains everything and records the statistics."""

    def __init__(self) -> None:
        self.seen: list[IntervalStats] = []

    def observe(self, stats: IntervalStats) -> None:
        self.seen.append(stats)

    def choose(self, interval: int) -> tuple[int, int]:
        return FOREVER // 2, FOREVER // 2


# -- the simulator that the other tests use ----------------------------------------------------------------------------


def test_simulator_against_tuple_at_a_time() -> None:
    case = synthetic(3, seconds=10, rate=12)
    d = (150_000, -300_000)
    horizon, top, held, produced = [-(2**60)] * 2, [-(2**60)] * 2, [[], []], set()
    for row, (ts, s) in enumerate(zip(case.ts.tolist(), case.side.tolist(), strict=True)):
        top[s] = max(top[s], ts)
        stream_time = min(top)
        horizon = [max(h, stream_time - case.window_us - k) for h, k in zip(horizon, d, strict=True)]
        produced |= {(x, row) for x, t in held[1 - s] if abs(t - ts) <= case.window_us and t > horizon[1 - s]}
        held[s].append((row, ts))

    class Constant(Watch):
        def choose(self, interval: int) -> tuple[int, int]:
            return d

    outcome = simulate(case, Constant(), 60 * SECOND, SECOND, G)
    made = case.rho < np.array(d)[case.side[case.pair_x]]
    assert produced == set(zip(case.pair_x[made].tolist(), case.pair_y[made].tolist(), strict=True))
    assert outcome.total_recall == pytest.approx(len(produced) / case.pair_x.size)
    assert outcome.rows_held == pytest.approx(constant_rows(case, d))


def test_statistics_of_the_simulator_are_censored_and_complete_when_nothing_is_dropped() -> None:
    case = synthetic(4)
    watch = Watch()
    simulate(case, watch, 60 * SECOND, SECOND, G, sample_fraction=1.0)
    assert sum(int(s.left.pairs.sum() + s.right.pairs.sum()) for s in watch.seen) == case.pair_x.size
    assert all((s.left.pairs == s.left.sampled_pairs).all() for s in watch.seen)
    assert sum(s.left.delay_results.sum() for s in watch.seen) == sum(s.right.pairs.sum() for s in watch.seen)


# -- sample and censoring ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.0, 0.005, 0.01, 0.3, 1.0])
def test_sampled_share_is_exact(fraction: float) -> None:
    assert in_sample(np.arange(123, 123 + 65536), fraction).mean() == sampled_share(fraction)


def test_uncensor_counts_seen_results_and_scales_sampled_ones() -> None:
    x = side({0: (1, 0, 0)}, {-3: (10, 1), 4: (7, 0), 5: (0, 3)}, censored_from=5)
    bucket, weight = uncensor(x, 0.5)
    np.testing.assert_array_equal(bucket, [-3, 4, 5])
    np.testing.assert_array_equal(weight, [10, 7, 6])
    bucket, weight = uncensor(x, 0.0)
    np.testing.assert_array_equal(bucket, [-3, 4])
    loss = interval_loss(IntervalStats(9, x, x), (uncensor(x, 0.5), uncensor(x, 0.5)), G)
    assert loss.lost == 12
    np.testing.assert_array_equal(loss.required_us[0], [-2 * G, 5 * G, 6 * G])


def test_tail_estimator_is_right_where_the_model_is_and_keeps_seen_results() -> None:
    case = synthetic(21, spread=0.6, seconds=240, rate=60)
    d = (-20 * G, -20 * G)

    class Short(Watch):
        tail = TailEstimator(SECOND, G, SECOND, 60 * SECOND, 0.02)
        total = 0.0

        def choose(self, interval: int) -> tuple[int, int]:
            return d

        def observe(self, stats: IntervalStats) -> None:
            for s, (bucket, weight) in zip((stats.left, stats.right), self.tail.estimate(stats), strict=True):
                seen = bucket < s.censored_from
                np.testing.assert_array_equal(weight[seen], s.pairs[s.required_bucket < s.censored_from])
                assert (weight >= 0).all()
                self.total += float(weight.sum())

    watch = Short()
    outcome = simulate(case, watch, 60 * SECOND, SECOND, G, 0.02)
    assert outcome.total_recall < 0.9
    assert watch.total == pytest.approx(case.pair_x.size, rel=0.1)


def test_tail_estimator_survives_json() -> None:
    case = synthetic(22)
    watch = Watch()
    simulate(case, watch, 60 * SECOND, SECOND, G, 0.02)
    straight, mean = (TailEstimator(SECOND, G, SECOND, 60 * SECOND, 0.02, deviations=value) for value in (1.6, 0.0))
    killed = straight
    for stats in watch.seen:
        killed = TailEstimator.from_dict(json.loads(json.dumps(killed.to_dict())))
        for (b1, w1), (b2, w2) in zip(straight.estimate(stats), killed.estimate(stats), strict=True):
            np.testing.assert_array_equal(b1, b2)
            np.testing.assert_array_equal(w1, w2)
        mean.estimate(stats)
    assert straight.sums == mean.sums, "the added deviations are never learned from"


def unseen_of_late(results: int, periods: int, delay: int = 400) -> tuple[float, float]:
    """Return the estimate beyond bucket 300 after `periods` periods, by the corrected model and by the model alone.

    A hundred punctual tuples have a result per 100 buckets; ten late ones have `results` in the 100 buckets below 300.
    """
    estimates = []
    for model_alone in (False, True):
        tail = TailEstimator(100 * G, G, SECOND, SECOND, 0.0)
        if model_alone:
            tail._density_ratio = lambda x, near: 1.0  # type: ignore[method-assign]
        late = side({0: (100, 0, 0), 400: (9, 0, 0), delay: (9 if delay == 400 else 1, 0, 0)}, {})
        held = side({}, {-50: (100, 0), 250: (results, 0)}, censored_from=300)
        for interval in range(periods):
            bucket, weight = tail.estimate(IntervalStats(interval, held, late))[0]
        estimates.append(float(weight[bucket >= 300].sum()))
    return estimates[0], estimates[1]


def test_results_near_the_retention_correct_the_model_of_those_beyond() -> None:
    for periods in (1, 20):
        corrected, model = unseen_of_late(9, periods)
        assert corrected == pytest.approx(model, rel=0.02), "right where the model is"
        corrected, model = unseen_of_late(36, periods)
        assert corrected > 2 * model, "late tuples with many partners count at once"
    ratios = [corrected / model for corrected, model in (unseen_of_late(0, periods) for periods in (1, 4, 20))]
    assert ratios[0] > 0.6 > ratios[1] > 2 * ratios[2], "late tuples with few partners count as periods show it"
    near, far = (np.subtract(*unseen_of_late(36, 20, delay)) for delay in (600, 3000))
    assert far < near, "a ratio near the retention counts less for tuples far beyond it"
    empty = TailEstimator(100 * G, G, SECOND, SECOND, 0.0).to_dict()
    older = {
        k: v for k, v in empty["sums"].items() if k in ("results", "exposure", "sampled", "long", "short", "square")
    }
    assert TailEstimator.from_dict({**empty, "sums": older}).to_dict() == empty


def test_the_scatter_of_unseen_results_is_added_and_nothing_else() -> None:
    case, added = synthetic(21, spread=0.6, seconds=240, rate=60), []
    wide, mean = (TailEstimator(SECOND, G, SECOND, 60 * SECOND, 0.0, deviations=value) for value in (2.0, 0.0))

    class Short(Watch):
        def choose(self, interval: int) -> tuple[int, int]:
            return -20 * G, -20 * G

        def observe(self, stats: IntervalStats) -> None:
            for s, (bucket, more), (same, less) in zip(
                (stats.left, stats.right), wide.estimate(stats), mean.estimate(stats), strict=True
            ):
                np.testing.assert_array_equal(bucket, same)
                np.testing.assert_array_equal(more[bucket < s.censored_from], less[bucket < s.censored_from])
                unseen = bucket >= s.censored_from
                added.append((float(less[unseen].sum()), float(more[unseen].sum() - less[unseen].sum())))

    simulate(case, Short(), 60 * SECOND, SECOND, G, 0.0)
    less, more = np.array(added).reshape(-1, 2, 2)[60:120].sum(axis=0).T  # a period, left and right
    assert (less > 100).all()
    # two deviations of a count, less the scatter of the estimates themselves
    assert (more > 0).all() and (more < 2 * np.sqrt(less)).all()


# -- the sweep ---------------------------------------------------------------------------------------------------------

steps = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=7)


@settings(max_examples=200, deadline=None)
@given(steps, steps, st.integers(0, 5), st.integers(0, 5), st.floats(0, 1))
def test_separable_sweep_finds_the_optimum(
    left: list[tuple[int, int]], right: list[tuple[int, int]], rate_l: int, rate_r: int, target: float
) -> None:
    def curve(items: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        knob, gain = np.array(items).T
        return np.cumsum(knob) * G - SECOND, np.cumsum(gain).astype(float)

    (kl, vl), (kr, vr) = curve(left), curve(right)
    total = max(vl[-1] + vr[-1], 1.0)
    recall = SeparableRecall(kl, vl / total, kr, vr / total)
    chosen = choose_retention(recall, rate_l, rate_r, target)
    costs = [a * rate_l + b * rate_r for a, b in product(kl.tolist(), kr.tolist()) if recall.at(a, b) >= target - 1e-12]
    if costs:
        assert recall.at(*chosen) >= target - 1e-9
        assert chosen[0] * rate_l + chosen[1] * rate_r == min(costs)
    else:
        assert chosen == (kl[-1], kr[-1])


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 4), st.integers(1, 4), st.floats(0, 1), st.randoms())
def test_paper_sweep_finds_the_optimum_of_a_monotone_model(
    n: int, m: int, rate_l: int, rate_r: int, target: float, random: object
) -> None:
    rng = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    left, right = np.cumsum(rng.random(n)), np.cumsum(rng.random(m))
    ones = [np.full(k, 5, dtype=np.int64) for k in (n, m)]
    knobs = np.arange(n), np.arange(m)
    recall = PaperRecall(G, knobs, (left, right), left[-1] + right[-1], (ones[0], ones[1]), (ones[0], ones[1]))
    chosen = choose_retention(recall, rate_l, rate_r, target)
    costs = [
        i * rate_l + j * rate_r
        for i, j in product(range(n), range(m))
        if recall.at(i * G, j * G) >= min(target, 1.0) - 1e-12
    ]
    assert (chosen[0] * rate_l + chosen[1] * rate_r) // G == min(costs)


def test_sweep_is_fast_on_80_000_sparse_and_dense_buckets() -> None:
    import time

    late = side({0: (900, 90, 9), 80_000: (1, 1, 1)}, {-5: (9, 0), 79_999: (1, 1)})
    stats = IntervalStats(0, late, late)
    models = [
        paper(stats, 2 * SECOND, G, SECOND, G),
        delay_aware(stats, 2 * SECOND, G, SECOND),
        empirical([stats], 2 * SECOND, G, 0.0),
    ]
    choose_retention(models[0], 1.0, 1.0, 0.5)  # type: ignore[arg-type]  # compiles
    begin = time.perf_counter()
    for model in models:
        assert model is not None
        choose_retention(model, 1.0, 1.0, 0.999)
    assert time.perf_counter() - begin < 0.5


def test_the_models_take_one_clock_that_says_1970() -> None:
    decades = 54 * 365 * 86_400 * SECOND // G
    on_time = side({0: (900, 90, 9), 300: (90, 9, 1)}, {-5: (9, 0)})
    one_late = side({0: (900, 90, 9), 300: (90, 9, 1), decades: (1, 0, 0)}, {-5: (9, 0)})
    without, with_late = (IntervalStats(0, counts, counts) for counts in (on_time, one_late))
    expected = delay_aware(without, 2 * SECOND, G, SECOND)
    model = delay_aware(with_late, 2 * SECOND, G, SECOND)
    assert expected is not None and model is not None
    for d in (-SECOND, 0, SECOND, 4 * SECOND):
        assert model.at(d, d) == pytest.approx(expected.at(d, d), abs=2e-3)
    assert model.at(decades * G + SECOND, decades * G + SECOND) == pytest.approx(1)
    assert choose_retention(model, 1.0, 1.0, 0.9)[0] < 10 * SECOND
    printed = paper(with_late, 2 * SECOND, G, SECOND, G)
    assert printed is not None
    # as printed it credits every tuple with the whole retained span, so one clock decides: that is why it is no default
    assert 0 < choose_retention(printed, 1.0, 1.0, 0.9)[0] <= (decades + 1) * G


@pytest.mark.parametrize("most", [0, 1, 300, FINE_STEPS, FINE_STEPS + 1, 3 * FINE_STEPS, 10**12])
def test_knobs_rise_to_the_greatest_delay(most: int) -> None:
    knob = knob_steps(most)
    assert knob[0] == 0 and knob[-1] == most and (np.diff(knob) > 0).all()
    assert len(knob) <= FINE_STEPS + 20_000


# -- the estimators ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_empirical_is_the_recall_itself_when_nothing_was_dropped(seed: int) -> None:
    case = synthetic(seed)
    watch = Watch()
    simulate(case, watch, 60 * SECOND, SECOND, G)
    model = empirical(watch.seen, case.window_us, G, 0.0)
    assert model is not None
    x_side = case.side[case.pair_x]
    for d in [(-SECOND, -SECOND), (-5 * G, 0), (20 * G, -30 * G), (SECOND, 2 * SECOND)]:
        assert model.at(*d) == pytest.approx(float((case.rho < np.array(d)[x_side]).mean()))


def test_empirical_retention_meets_its_target_on_the_data_it_was_made_from() -> None:
    case = synthetic(5)
    watch = Watch()
    simulate(case, watch, 60 * SECOND, SECOND, G)
    model = empirical(watch.seen, case.window_us, G, 0.0)
    assert model is not None
    for target in (0.5, 0.9, 0.99, 1.0):
        left, right = choose_retention(model, 1.0, 1.0, target)
        made = case.rho < np.array([left, right])[case.side[case.pair_x]]
        assert made.mean() >= target - 1e-9
        assert constant_rows(case, (left, right)) <= 1.05 * constant_rows(case, clairvoyant_total(case, target))


def clairvoyant_total(case: JoinCase, target: float) -> int:
    return clairvoyant(case, target, 10**15, G)[0]


def test_paper_against_equations_written_out() -> None:
    w, g, b, length = 2 * SECOND, G, 3 * G, SECOND
    left = side({0: (5, 60, 6), 1: (3, 20, 3), 40: (2, 9, 1)}, {0: (9, 0)})
    right = side({0: (4, 30, 2), 2: (4, 25, 5), 7: (1, 3, 1)}, {0: (5, 0)})
    model = paper(IntervalStats(0, left, right), w, g, length, b)
    assert model is not None

    def delay_share(s: SideStats, upto: int) -> float:
        return float(s.delay_rows[s.delay_bucket <= upto].sum() / s.rows)

    def cross(probing: SideStats, held: SideStats, d: int) -> float:  # (6) and (7)
        n = -(-(w + d) // b)
        rate = held.rows / length
        inner = sum(rate * b * delay_share(held, (i - 1) * b // g) for i in range(1, n))
        last = rate * (w + d - (n - 1) * b) * delay_share(held, (n - 1) * b // g)
        return probing.rows * (inner + last)

    def selectivity(dx: int, dy: int) -> float:  # (11), the right way up
        def upto(name: str) -> int:
            r, s = getattr(left, name), getattr(right, name)
            return int(r[left.delay_bucket <= dy // g].sum() + s[right.delay_bucket <= dx // g].sum())

        return upto("delay_results") / upto("delay_candidates")

    most = (41 * g, 8 * g)
    ideal = right.rows * left.rows / length * (w + most[0]) + left.rows * right.rows / length * (w + most[1])  # (10)
    for dx, dy in [(0, 0), (g, 3 * g), (41 * g, 8 * g), (7 * g, 0), (0, 8 * g)]:
        number = selectivity(dx, dy) * (cross(right, left, dx) + cross(left, right, dy))
        assert model.at(dx, dy) == pytest.approx(min(number / (selectivity(*most) * ideal), 1.0))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_delay_aware_is_near_the_truth_where_its_assumptions_hold(seed: int) -> None:
    # independent delays, constant rates, no keys: the model's own world
    case = synthetic(seed, spread=0.4, seconds=100, rate=150)
    watch = Watch()
    simulate(case, watch, 60 * SECOND, 100 * SECOND, G)
    model = delay_aware(max(watch.seen, key=lambda s: s.left.rows), case.window_us, G, 100 * SECOND)
    assert model is not None
    x_side = case.side[case.pair_x]
    for d in [-60 * G, -20 * G, 0, 50 * G, 150 * G]:
        assert model.at(d, d) == pytest.approx(float((case.rho < d).mean()), abs=0.05)
    assert (case.rho < 0)[x_side == 0].any()


def test_models_do_not_fall_when_retention_grows() -> None:
    case = synthetic(9)
    watch = Watch()
    simulate(case, watch, 60 * SECOND, 20 * SECOND, G)
    for model in (delay_aware(watch.seen[2], case.window_us, G, 20 * SECOND), empirical(watch.seen, SECOND, G, 0.0)):
        assert isinstance(model, SeparableRecall)
        for curve in (model.left, model.right):
            assert (np.diff(curve) >= 0).all()
        assert model.left[-1] + model.right[-1] == pytest.approx(1.0)


def test_an_interval_without_evidence_has_no_recall() -> None:
    nothing = IntervalStats(0, empty_side(), empty_side())
    assert paper(nothing, SECOND, G, SECOND, G) is None
    assert delay_aware(nothing, SECOND, G, SECOND) is None
    assert empirical([nothing], SECOND, G, 0.01) is None
    assert least_slack([nothing], G, 0.9) is None


def test_the_adaptive_slack_is_the_least_that_reaches_the_target() -> None:
    s = IntervalStats(0, side({0: (80, 0, 0), 9: (10, 0, 0)}, {}), side({0: (5, 0, 0), 50: (5, 0, 0)}, {}))
    assert least_slack([s], G, 0.85) == G
    assert least_slack([s], G, 0.86) == 10 * G
    assert least_slack([s], G, 0.96) == 51 * G
    assert least_slack([s], G, 1.0) == 51 * G


@pytest.mark.parametrize("interval_s", [1, 4, 7, 11, 25, 31, 60])
def test_at_exactly_the_target_the_next_interval_needs_the_target(
    interval_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 7 s: a period of 60 s has eight whole intervals, and an eighth of the results is due in each
    goals: list[float] = []
    monkeypatch.setattr(
        "latecomer.core.join.retention_policies.choose_retention", lambda *given: goals.append(given[-1]) or (0, 0)
    )
    monkeypatch.setattr(QJoinRetention, "_recall", lambda self: object())
    count = 60 // interval_s
    for produced, goal in ((95.0, 0.95), (96.0, 0.95 - (count - 1) / 100), (93.0, min(0.95 + (count - 1) / 50, 1.0))):
        account = [(number, produced, 100.0) for number in range(100 - count, 100)]
        policy = QJoinRetention("paper", 0.95, SECOND, 60 * SECOND, interval_s * SECOND, G, first=0, account=account)
        assert policy.choose(100) == (0, 0)
        assert goals.pop() == pytest.approx(max(goal, 0.0))
        if 60 % interval_s == 0:
            rest = produced * (count - 1)
            policy.choose(100)
            assert goals.pop() == interval_target(0.95, rest, 100.0 * count, interval_s * SECOND, 60 * SECOND)


def test_interval_target_is_equation_3() -> None:
    # 60 intervals, 100 results each should be 6000; 5610 made so far
    assert interval_target(0.95, 5610, 6000, SECOND, 60 * SECOND) == pytest.approx(0.9)
    assert interval_target(0.95, 5900, 6000, SECOND, 60 * SECOND) == 0.0
    assert interval_target(0.95, 5000, 6000, SECOND, 60 * SECOND) == 1.0
    assert interval_target(0.95, 0, 0, SECOND, 60 * SECOND) == 0.95


# -- QJoin's controller ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_qjoin_state_survives_json_at_every_interval(estimator: str) -> None:
    case = synthetic(11, seconds=60)
    straight = QJoinRetention(estimator, 0.9, case.window_us, 10 * SECOND, SECOND, G)

    class Killed:
        policy = QJoinRetention(estimator, 0.9, case.window_us, 10 * SECOND, SECOND, G)

        def observe(self, stats: IntervalStats) -> None:
            self.policy = QJoinRetention.from_dict(json.loads(json.dumps(self.policy.to_dict())))
            self.policy.observe(stats)

        def choose(self, interval: int) -> tuple[int, int]:
            self.policy = QJoinRetention.from_dict(json.loads(json.dumps(self.policy.to_dict())))
            return self.policy.choose(interval)

    a = simulate(case, straight, 10 * SECOND, SECOND, G, 0.05)
    b = simulate(case, Killed(), 10 * SECOND, SECOND, G, 0.05)
    np.testing.assert_array_equal(a.chosen, b.chosen)
    assert (a.chosen[0] == FOREVER).all()
    assert (a.chosen[-1] < FOREVER).all()


def test_qjoin_refuses_an_unknown_estimator() -> None:
    with pytest.raises(ValueError, match="choose one of paper"):
        QJoinRetention("papr", 0.9, SECOND, SECOND, SECOND, G)
