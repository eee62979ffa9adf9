"""The retention policies behind their one interface, with their state as the lake stores it and `adapt` writes it."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from latecomer.core.join.control import IntervalSummary, JoinControl
from latecomer.core.join.k_slack import KSlackRetention
from latecomer.core.join.recall_estimators import SeparableRecall
from latecomer.core.join.retention_policies import (
    CalibratedRetention,
    ConstantRetention,
    QJoinRetention,
    RetentionParameters,
    UnlimitedRetention,
)
from latecomer.core.join.statistics import SAMPLE_FRACTION, IntervalStats
from latecomer.core.time import FOREVER
from latecomer.strategies.join import adapted_parameters, retention_parameters, retention_policy

from tests.support.evidence import empirical
from tests.support.join_sim import make_case, simulate

SECOND = 1_000_000
G = 10_000
P = 10 * SECOND
USUAL = RetentionParameters("qjoin", "calibrated", 0.9, 0.95, 2 * SECOND, P, SECOND, G, G)
EVERY = [
    replace(USUAL, strategy="exact"),
    replace(USUAL, strategy="k_slack", slack_us=70_000),
    replace(USUAL, strategy="mp_k_slack"),
    replace(USUAL, strategy="aq_k_slack"),
    *(replace(USUAL, estimator=name) for name in ("paper", "delay_aware", "empirical", "calibrated")),
]


def named(settings: RetentionParameters) -> str:
    return settings.strategy if settings.strategy != "qjoin" else settings.estimator


def history(seconds: int = 60, seed: int = 3) -> list[IntervalStats]:
    """Return the statistics of every interval of a small join that drops nothing."""
    rng = np.random.default_rng(seed)
    n = seconds * 40
    ts = np.sort((rng.random(n) * seconds * SECOND).astype(np.int64))
    order = np.argsort(ts + (rng.exponential(0.4, n) * SECOND).astype(np.int64), kind="stable")
    case = make_case("small", ts[order], (rng.random(n) < 0.5).astype(np.int8), 2 * SECOND)
    seen: list[IntervalStats] = []

    class Watch:
        def observe(self, stats: IntervalStats) -> None:
            seen.append(stats)

        def choose(self, interval: int) -> tuple[int, int]:
            return FOREVER, FOREVER

    simulate(case, Watch(), P, SECOND, G, SAMPLE_FRACTION)
    return seen


HISTORY = history()


def summary(stats: IntervalStats) -> IntervalSummary:
    """Return the same interval as the data plane counts it, results only."""
    rows = [
        (side, int(bucket), -1, int(pairs), int(pairs), int(sampled))
        for side, counts in enumerate((stats.left, stats.right))
        for bucket, pairs, sampled in zip(counts.required_bucket, counts.pairs, counts.sampled_pairs, strict=True)
    ]
    none = np.zeros(0, np.int64)
    left, right = ((counts.delay_bucket, counts.delay_rows) for counts in (stats.left, stats.right))
    cells = np.array(rows, np.int64).reshape(len(rows), 6)
    return IntervalSummary(stats.interval, stats.interval * SECOND, ((none, none), (none, none)), (left, right), cells)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_parameters_of_a_spec() -> None:
    strategy = SimpleNamespace(
        name="qjoin",
        estimator="paper",
        adapt_every_us=1,
        granularity_us=2,
        basic_window_us=3,
        slack_us=4,
    )
    spec = SimpleNamespace(strategy=strategy, target=0.8, confidence=0.9, window_us=5, period_us=6, guarantee=True)
    given = ("qjoin", "paper", 0.8, 0.9, 5, 6, 1, 2, 3, 4)
    assert retention_parameters(spec) == RetentionParameters(*given, guarantee=True)
    assert retention_parameters(spec, guarantee=False) == RetentionParameters(*given, guarantee=False)


@pytest.mark.parametrize(
    ("settings", "kind", "pairs", "candidates"),
    zip(
        EVERY,
        [
            UnlimitedRetention,
            ConstantRetention,
            KSlackRetention,
            KSlackRetention,
            *[QJoinRetention] * 3,
            CalibratedRetention,
        ],
        [False] * 4 + [True] * 4,
        [False] * 4 + [True, True, False, False],
        strict=True,
    ),
    ids=map(named, EVERY),
)
def test_strategy_chooses_the_policy_and_what_the_data_plane_counts(
    settings: RetentionParameters, kind: type, pairs: bool, candidates: bool
) -> None:
    policy = retention_policy(settings, None, None)
    assert type(policy) is kind
    assert (policy.needs_pairs, policy.needs_candidates) == (pairs, candidates)


@pytest.mark.parametrize("settings", EVERY, ids=named)
def test_state_through_json_after_every_interval_changes_nothing(settings: RetentionParameters) -> None:
    straight, killed = retention_policy(settings, None, None), retention_policy(settings, None, None)
    for stats in HISTORY:
        killed = retention_policy(settings, through_json(killed.to_dict()), None)
        assert killed.choose(stats.interval) == straight.choose(stats.interval)
        straight.observe(stats)
        killed.observe(IntervalStats.from_dict(through_json(stats.to_dict())))
    assert through_json(killed.to_dict()) == through_json(straight.to_dict())


@pytest.mark.parametrize("settings", EVERY, ids=named)
def test_retentions_are_plain_integers_no_lower_than_a_window(settings: RetentionParameters) -> None:
    policy = retention_policy(settings, None, None)
    for stats in HISTORY:
        chosen = policy.choose(stats.interval)
        assert all(type(us) is int and -settings.window_us <= us <= FOREVER for us in chosen)
        policy.observe(stats)


@pytest.mark.parametrize("settings", [s for s in EVERY if s.strategy in ("qjoin", "aq_k_slack")], ids=named)
def test_everything_is_retained_before_the_first_full_period_and_less_after(settings: RetentionParameters) -> None:
    policy = retention_policy(settings, None, None)
    first, bound = HISTORY[0].interval, (FOREVER, FOREVER)
    for stats in HISTORY:
        if (stats.interval - first) * SECOND < P:
            assert policy.choose(stats.interval) == bound
        policy.observe(stats)
    assert max(policy.choose(HISTORY[-1].interval + 1)) < 10 * SECOND


@pytest.mark.parametrize("seed", range(3))
def test_scarce_pairs_are_held_for_twice_the_largest_delay_of_the_opposite_stream_or_more(seed: int) -> None:
    policy = retention_policy(replace(USUAL, target=0.99), None, None)
    late, pairs, periods = [0, 0], 0, 0
    for stats in history(60, seed):
        if stats.interval % 10 == 0:
            periods += 1
        thin = replace_pairs(stats)
        chosen = policy.choose(stats.interval)
        if stats.interval > 10:
            assert 0 < pairs < 500
            factor = max(2.0, 20 / (periods + 0.0))
            assert chosen == tuple(int(factor * late[1 - side]) for side in (0, 1))
        policy.observe(thin)
        pairs += sum(int(s.pairs.sum()) for s in (thin.left, thin.right))
        for side, counts in enumerate((stats.left, stats.right)):
            late[side] = max(late[side], (int(counts.delay_bucket[-1]) + 1) * G)


def replace_pairs(stats: IntervalStats) -> IntervalStats:
    """Return the same interval with one pair on either side."""
    sides = [
        replace(
            s, required_bucket=s.required_bucket[:1], pairs=np.minimum(s.pairs[:1], 1), sampled_pairs=0 * s.pairs[:1]
        )
        for s in (stats.left, stats.right)
    ]
    return IntervalStats(stats.interval, sides[0], sides[1])


def test_a_state_from_before_delays_were_kept_keeps_everything() -> None:
    policy = retention_policy(USUAL, None, None)
    for stats in HISTORY:
        policy.observe(stats)
    state, following = policy.to_dict(), HISTORY[-1].interval + 1
    assert max(policy.choose(following)) < FOREVER
    del state["largest_us"]
    again = retention_policy(USUAL, through_json(state), None)
    assert again.choose(following) == (FOREVER, FOREVER)


def test_differential_running_evidence_equals_evidence_from_scratch() -> None:
    settings = replace(USUAL, estimator="empirical")
    policy, mirror = retention_policy(settings, None, None), []
    for stats in HISTORY:
        policy.observe(stats)
        mirror = [s for s in [*mirror, stats] if s.interval > stats.interval - P // SECOND]
        slow = empirical(mirror, settings.window_us, G, SAMPLE_FRACTION)
        fast = policy._recall()
        assert isinstance(fast, SeparableRecall) and isinstance(slow, SeparableRecall)
        np.testing.assert_array_equal(fast.left_us, slow.left_us)
        np.testing.assert_array_equal(fast.right_us, slow.right_us)
        np.testing.assert_allclose(fast.left, slow.left, rtol=1e-12)
        np.testing.assert_allclose(fast.right, slow.right, rtol=1e-12)


def test_empirical_keeps_at_least_the_window_where_it_could_not_see_the_loss() -> None:
    rng = np.random.default_rng(8)
    n, follows = 400, rng.random(400) < 0.5
    first = np.sort((rng.random(n) * 40 * P).astype(np.int64))
    ts = np.concatenate([first, first[follows] + rng.integers(0, SECOND, follows.sum())])
    side = np.append(np.zeros(n, np.int8), np.ones(follows.sum(), np.int8))
    key = np.append(np.arange(n), np.flatnonzero(follows))
    order = np.argsort(ts + (rng.exponential(0.5, len(ts)) * SECOND).astype(np.int64), kind="stable")
    case = make_case("sparse", ts[order], side[order], 2 * SECOND, key[order])
    policy = retention_policy(replace(USUAL, estimator="empirical"), None, None)
    outcome = simulate(case, policy, P, SECOND, G, SAMPLE_FRACTION)
    assert outcome.total_recall > 0.85, "ten pairs a period: no loss would ever be in the sample"
    assert outcome.chosen.min() >= 0


def test_unlimited_and_constant_and_largest_delay_retentions() -> None:
    keep, fixed, largest = (retention_policy(s, None, None) for s in EVERY[:3])
    most = 0
    for stats in HISTORY:
        assert keep.choose(stats.interval) == (FOREVER, FOREVER)
        assert fixed.choose(stats.interval) == (70_000, 70_000)
        assert largest.choose(stats.interval) == (most, most)
        for policy in (keep, fixed, largest):
            policy.observe(stats)
        most = max(most, *((int(s.delay_bucket[-1]) + 1) * G for s in (stats.left, stats.right) if s.rows))


def test_an_unknown_estimator_is_named() -> None:
    with pytest.raises(ValueError, match="'papr'"):
        retention_policy(replace(USUAL, estimator="papr"), None, None)


@pytest.mark.parametrize("estimator", ["empirical", "calibrated"])
def test_adapt_makes_the_policy_that_had_seen_every_pair(estimator: str) -> None:
    settings = replace(USUAL, estimator=estimator)
    summaries = [summary(s) for s in HISTORY]
    parameters = through_json(adapted_parameters(settings, summaries))
    assert parameters == through_json(adapted_parameters(settings, summaries))
    adapted = retention_policy(settings, None, parameters)
    live = retention_policy(settings, None, None)
    for stats in HISTORY:
        live.choose(stats.interval)
        live.observe(stats)
    following = HISTORY[-1].interval + 1
    assert max(adapted.choose(following)) < FOREVER
    if estimator == "calibrated":
        assert adapted.choose(following) == live.choose(following)
    # adapted parameters replace the state
    assert (
        retention_policy(settings, live.to_dict(), parameters).to_dict()
        == retention_policy(settings, None, parameters).to_dict()
    )


def test_a_target_of_all_pairs_keeps_everything():
    policy = retention_policy(replace(USUAL, target=1.0), None, None)
    assert policy.choose(3) == (FOREVER, FOREVER) and not policy.needs_pairs
    assert isinstance(
        retention_policy(replace(USUAL, target=1.0), through_json(policy.to_dict()), None), UnlimitedRetention
    )


def test_a_recall_of_one_keeps_everything_where_the_recall_decides():
    for settings in EVERY:
        policy = retention_policy(replace(settings, target=1.0), None, None)
        keeps = settings.strategy == "exact" or named(settings) == "calibrated"
        assert isinstance(policy, UnlimitedRetention) == keeps and policy.expires != keeps, named(settings)
        assert settings.strategy != "k_slack" or policy.choose(5) == (70_000, 70_000)


def test_rows_that_never_expire_are_one_count():
    spans = {"window_us": SECOND, "interval_us": SECOND, "granularity_us": G, "period_us": P}
    control = JoinControl(UnlimitedRetention(), **spans)
    for j in range(2_000):
        if j % 500 == 250:
            state = json.loads(json.dumps(control.to_dict()))
            control = JoinControl.from_dict(state, UnlimitedRetention(), **spans)
        rows = np.array([j * 10]), np.array([3])
        delays = np.array([0]), np.array([3])
        control.step([IntervalSummary(j, j * SECOND, (rows, rows), (delays, delays), np.empty((0, 6), np.int64))])
    assert [held.count for held in control.held] == [6_000, 6_000]
    assert control.account(control.closed_periods()[-1]).held_max == 2 * 3 * 1_990
    assert len(json.dumps(control.to_dict()["held"])) < 100
