"""The promise of aggregates by simulation: ``P(error >= eps) <= delta``, with policies and control plane as in `run`.

Delays are exponential, or Pareto with bursts in which all rows of some seconds are late together. Errors are measured
here, from the rows that had arrived when a window closed, not by the code that the policy learns from. Windows overlap
in time and a burst hits several, so a run is one observation: the bound of the mean over seeds is a one-sided t
interval of the runs' shares.

HPM assumes that the rows in time are a random sample. There its required coverage must keep the promise by itself.
"""

from __future__ import annotations

import itertools
import json
import math
from functools import lru_cache

import numpy as np
import pytest
from latecomer.bench.window_simulator import (
    clairvoyant_slack,
    lost_answers,
    required_in_hindsight,
    run_control_plane,
    run_pass,
)
from latecomer.core.aggregate.coverage import Function, needed_coverage
from latecomer.core.windows.calibrated_slack import MARGIN, REACH, CalibratedSlack
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import Observed
from latecomer.core.windows.slack_policies import LargestDelay, Proportional

SECOND = 1_000_000
ERROR, DELTA = 0.05, 0.05
GRID = Grid(2 * SECOND, SECOND)
PERIOD_US = 60 * SECOND
SEEDS = range(20)
FUNCTIONS = {
    "sum": Function("sum", 0), "count": Function("count", None), "avg": Function("avg", 0), "min": Function("min", 0),
    "max": Function("max", 0), "median": Function("median", 0), "quantile": Function("quantile", 0),
}  # fmt: skip
T_95_19 = 1.729
"""Student's t, 19 degrees of freedom, one-sided 0.95."""


@lru_cache(maxsize=64)
def stream(seed: int, kind: str, seconds: int = 200, rate: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Return event times and values in arrival order."""
    rng = np.random.default_rng([seed, len(kind)])
    n = seconds * rate
    event = np.sort(rng.integers(0, seconds * SECOND, n))
    if kind == "exponential":
        delay = rng.exponential(0.5, n) * SECOND
    else:
        delay = np.minimum(0.05 * rng.pareto(1.5, n), 60) * SECOND
        for start in rng.uniform(0, seconds, seconds // 50) * SECOND:
            end = start + rng.uniform(1, 6) * SECOND
            held = (event >= start) & (event < end) & (rng.random(n) < 0.6)
            delay[held] = np.maximum(delay[held], end - event[held])
    order = np.argsort(event + delay, kind="stable")
    return event[order], rng.gamma(4.0, 25.0, n)[order]


def share_off(event, value, waits, windows, name: str, grid: Grid = GRID) -> float:
    """Return the share of windows whose answer at the close is off by `ERROR` or more, by brute force."""
    order = np.argsort(event)
    t, event, value = np.maximum.accumulate(event)[order], event[order], value[order]
    off = 0
    for window, wait in zip(windows.tolist(), waits.tolist(), strict=True):
        end = grid.end(window)
        member = slice(*np.searchsorted(event, (window * grid.slide_us, end)))
        rows = value[member]
        arrived = rows[t[member] < end + wait]
        off += error_of(name, rows, arrived) >= ERROR - 1e-12
    return off / len(windows)


def error_of(name: str, rows: np.ndarray, arrived: np.ndarray) -> float:
    if not len(arrived):
        return math.inf
    if name in ("median", "quantile"):
        rank = 0.5 if name == "median" else 0.9
        answer = np.quantile(arrived, rank)
        # ranks of an answer between two rows are an interval
        low, high = (rows < answer).mean(), (rows <= answer).mean()
        return max(low - rank, rank - high, 0.0)
    function = {"sum": np.sum, "count": len, "avg": np.mean, "min": np.min, "max": np.max}[name]
    answer, truth = float(function(arrived)), float(function(rows))
    return abs(answer - truth) / abs(truth)


@lru_cache(maxsize=64)
def slowest_wait(seed: int, kind: str) -> float:
    return float(run_pass(*stream(seed, kind), GRID, LargestDelay()).wait_us.mean())


def upper_bound(shares: list[float]) -> float:
    """Return the one-sided 0.95 bound of the mean share."""
    assert len(shares) == 20
    return float(np.mean(shares) + T_95_19 * np.std(shares, ddof=1) / math.sqrt(len(shares)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exponential", "bursts"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_calibrated_keeps_the_promise(name, kind):
    shares, waits, slowest = [], [], []
    for seed in SEEDS:
        event, value = stream(seed, kind)
        closed = run_pass(
            event, value, GRID, CalibratedSlack(1 - DELTA, GRID, PERIOD_US, 0.95), functions=[FUNCTIONS[name]],
            error=ERROR, delta=DELTA, period_us=PERIOD_US, by_answer=True,
        )  # fmt: skip
        shares.append(share_off(event, value, closed.wait_us, closed.window, name))
        waits.append(closed.wait_us.mean())
        slowest.append(slowest_wait(seed, kind))
    assert upper_bound(shares) <= DELTA, shares
    assert np.mean(waits) < 0.8 * np.mean(slowest), "waiting for the slowest row is no art"


@pytest.mark.slow
def test_calibrated_waits_at_most_twice_as_long_as_the_best_constant():
    ratios = []
    for seed in SEEDS:
        event, value = stream(seed, "exponential")
        required = required_in_hindsight(event, value, GRID)
        policy = CalibratedSlack(1 - DELTA, GRID, PERIOD_US, 0.95)
        closed = run_pass(event, value, GRID, policy, by_answer=True, period_us=PERIOD_US)
        ratios.append(closed.wait_us.mean() / clairvoyant_slack(required, 1 - DELTA))
    assert np.mean(ratios) < 2.0


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("n", [400, 2_000])
def test_required_coverage_keeps_the_promise_on_a_random_sample(name, n):
    """The promise of HPM holds for a window after a random share `lambda_thr` of its rows has arrived."""
    rng = np.random.default_rng(len(name) * n)
    # values of one sign, as the one-sided bound of SUM assumes; least and greatest are far from the rest
    draws, off = 2_000, 0
    cv = math.sqrt(1 / 4)
    share = needed_coverage(name, n, cv, ERROR, DELTA)
    for _ in range(draws):
        rows = rng.gamma(4.0, 25.0, n)
        if name in ("min", "max"):
            rows[rng.integers(n)] = 1e-3 if name == "min" else 1e6
        here = rng.random(n) < share if name == "sum" else rng.permutation(n) < math.ceil(share * n)
        off += error_of(name, rows, rows[here]) >= ERROR + 1e-9
    # 0.999 quantile of a binomial with the promised probability, normal approximation
    assert off <= draws * DELTA + 3.1 * math.sqrt(draws * DELTA * (1 - DELTA)) + 1
    if name in ("min", "max"):
        assert off > draws * DELTA / 2, "the bound is tight, so a laxer one would be seen"


@pytest.mark.parametrize("name", ["sum", "avg", "median"])
def test_hpm_reaches_its_coverage_where_rows_are_late_at_random(name):
    """HPM steers the mean coverage of windows: it is reached on average, not in a share of windows."""
    reached, needed = [], []
    for seed in SEEDS:
        event, value = stream(seed, "exponential")
        policy = Proportional(0.2, 4.0, 1.0, GRID.granularity_us)
        closed = run_pass(event, value, GRID, policy, functions=[FUNCTIONS[name]], observe_us=GRID.size_us)
        late = slice(len(closed.window) // 4, -10)
        reached.append((closed.first_rows / closed.final_rows)[late].mean())
        needed.append(needed_coverage(name, closed.final_rows[late].mean(), 0.5, ERROR, DELTA))
    assert np.mean(reached) >= np.mean(needed) - 0.02


@pytest.mark.parametrize("kind", ["exponential", "bursts"])
def test_any_cut_and_any_resumption_decide_the_same(kind):
    event, value = stream(5, kind, seconds=150)
    event = event - 75 * SECOND  # times before and after the epoch

    def decided(cuts, resume):
        policy = CalibratedSlack(1 - DELTA, GRID, PERIOD_US, 0.95)
        if resume:
            policy = Resumed(policy)
        seen: list[Observed] = []
        required = required_in_hindsight(event, value, GRID)

        def observed(spans):
            by_span = [[window for window in required if first <= window.window <= last] for first, last, _ in spans]
            seen.extend(itertools.chain(*by_span))
            return by_span

        decisions = run_control_plane(event, GRID, policy, observed, period_us=PERIOD_US, cuts=cuts)
        return decisions, policy.to_dict(), [window.window for window in seen]

    whole = decided((), False)
    assert len(np.unique(whole[0].slack_us)) > 5
    rng = np.random.default_rng(3)
    for cuts in ((1,), tuple(range(0, len(event), 97)), tuple(np.sort(rng.choice(len(event), 40)).tolist())):
        other = decided(cuts, True)
        assert np.array_equal(other[0].watermark_us, whole[0].watermark_us)
        assert other[0].control.to_dict() == whole[0].control.to_dict()
        assert other[1:] == whole[1:]


class Resumed:
    """A policy whose state goes through JSON before every choice."""

    needs_observation = True
    provisional = True

    def __init__(self, policy):
        self.policy = policy

    def __getattr__(self, name):
        return getattr(self.policy, name)

    def choose(self, interval):
        state = json.loads(json.dumps(self.policy.to_dict()))
        self.policy = CalibratedSlack.from_dict(state, 1 - DELTA, GRID, PERIOD_US, 0.95)
        return self.policy.choose(interval)


def steps(change_s: int, before: float, after: float, seconds: int = 2_400):
    """Yield the slack after each window; windows require one value before the change and another after it."""
    policy = CalibratedSlack(1 - DELTA, GRID, PERIOD_US, 0.95)
    policy.delays(100 * SECOND)
    for window in range(seconds):
        required = int((before if window < change_s else after) * SECOND)
        slack = policy.choose(window)
        policy.observe(Observed(window, np.array([required]), np.ones(1), 1.0), slack, window)
        yield window, policy.choose(window + 1)


def test_the_slack_follows_a_change_both_ways():
    """The slack rises at once when windows of the new regime are seen.

    It falls as windows are forgotten, within four memories, to the most that the worst remembered period may add, and
    then, as periods are forgotten, to the new regime.
    """
    up = dict(steps(600, 1.0, 10.0))
    assert 1.0 * SECOND <= up[599] <= 1.1 * MARGIN * SECOND
    assert up[600 + 20] >= 10 * SECOND, "followed upwards within 20 windows"
    down = dict(steps(600, 10.0, 1.0, seconds=2_600))
    assert down[599] >= 10 * SECOND
    memory = 80 * GRID.size_us // GRID.slide_us
    assert down[600 + 4 * memory] <= 1.1 * REACH * MARGIN * SECOND, "followed downwards within 640 windows"
    remembered = 20 * PERIOD_US // (GRID.slide_us)
    assert down[600 + remembered + 4 * memory] <= 1.1 * MARGIN * SECOND, (
        "and all the way when the periods are forgotten"
    )


def bad_days(policy, seed, days=300, windows=20, bad=0.1, mild=1.0, severe=1.4):
    """Return the share of periods kept and the mean slack; all windows of a bad day require more than on other days."""
    rng = np.random.default_rng(seed)
    grid, kept, waits = policy.grid, [], []
    for day in range(days):
        level = severe if rng.random() < bad else mild
        required = (
            (level * SECOND * rng.uniform(0.9, 1.0, windows)).astype(np.int64)
            // grid.granularity_us
            * grid.granularity_us
        )
        slack = policy.choose(day * windows)
        policy.delays(5 * SECOND)
        for i in range(windows):
            window = day * windows + i
            policy.observe(Observed(window, required[i : i + 1], np.ones(1), 1.0), slack, window)
        kept.append((required > slack).sum() <= DELTA * windows)
        waits.append(slack)
    return float(np.mean(kept[40:])), float(np.mean(waits[40:])) / SECOND


@pytest.mark.slow
def test_days_that_are_bad_as_a_whole_are_remembered():
    """All windows of a bad day miss together: a margin on their number does not help, the worst remembered day does."""
    grid = Grid(SECOND, SECOND)
    with_rule, without = [], []
    for seed in range(4):
        policy = CalibratedSlack(1 - DELTA, grid, 20 * SECOND, 0.95)
        assert policy.periods == 19
        with_rule.append(bad_days(policy, seed))
        forgetful = CalibratedSlack(1 - DELTA, grid, 20 * SECOND, 0.95)
        forgetful._worst_periods = lambda: (0, 0)
        without.append(bad_days(forgetful, seed))
    kept, waits = np.mean(with_rule, axis=0)
    kept_without, waits_without = np.mean(without, axis=0)
    assert kept >= 0.98
    assert 1 - kept <= 0.6 * (1 - kept_without), "of the days that were lost, most are kept"
    assert waits <= waits_without, "the losses do not raise the slack"


def test_one_absurd_period_is_remembered_no_further_than_it_may_reach():
    policy = CalibratedSlack(1 - DELTA, GRID, PERIOD_US, 0.95)
    policy.delays(1_000 * SECOND)
    chosen = {}
    per_period = PERIOD_US // GRID.slide_us
    for window in range(42 * per_period):
        absurd = 20 * per_period <= window < 20 * per_period + 6
        seen = Observed(window, np.array([1_000 * SECOND if absurd else SECOND]), np.ones(1), 1.0)
        chosen[window] = policy.choose(window)
        policy.observe(seen, chosen[window], window)
    usual = chosen[20 * per_period - 1]
    assert usual == pytest.approx(MARGIN * SECOND, rel=0.05)
    later = [chosen[period * per_period] for period in range(30, 37)]
    assert all(slack == pytest.approx(REACH * usual, rel=0.05) for slack in later), "within reach, not a thousandfold"
    assert chosen[42 * per_period - 1] == pytest.approx(usual, rel=0.05), "forgotten after nineteen periods"


@pytest.mark.parametrize(("second", "follows"), [(21, False), (27, True)])
def test_lateness_that_comes_again_is_not_absurd(second, follows):
    """One event may lie in two periods that follow each other; later lateness of the same size is another event."""
    policy = CalibratedSlack(1 - DELTA, GRID, PERIOD_US, 0.95)
    policy.delays(1_000 * SECOND)
    chosen = {}
    per_period = PERIOD_US // GRID.slide_us
    for window in range(48 * per_period):
        late = any(period * per_period <= window < period * per_period + 6 for period in (20, second))
        seen = Observed(window, np.array([60 * SECOND if late else SECOND]), np.ones(1), 1.0)
        chosen[window] = policy.choose(window)
        policy.observe(seen, chosen[window], window)
    after = [chosen[period * per_period] for period in range(second + 6, 38)]
    assert all((slack >= 60 * SECOND) == follows for slack in after)
    assert chosen[48 * per_period - 1] < 2 * SECOND, "forgotten after nineteen periods"


def test_state_and_parameters_are_checked():
    policy = CalibratedSlack(0.9, GRID, PERIOD_US, 0.95)
    with pytest.raises(ValueError, match="version"):
        CalibratedSlack.from_dict({**policy.to_dict(), "version": 1}, 0.9, GRID, PERIOD_US, 0.95)
    for window in range(100):
        policy.observe(Observed(window, np.array([SECOND]), np.ones(1), 1.0), SECOND, window)
    older = {key: value for key, value in policy.to_dict().items() if key not in ("worst", "recent")} | {"version": 2}
    fresh = CalibratedSlack.from_dict(older, 0.9, GRID, PERIOD_US, 0.95)
    assert fresh.choose(100) == policy.choose(100) and fresh.to_dict()["worst"] == [] != policy.to_dict()["worst"]
    with pytest.raises(ValueError, match="target"):
        CalibratedSlack(1.0, GRID, PERIOD_US, 0.95)
    with pytest.raises(ValueError, match="share"):
        CalibratedSlack(0.9, GRID, PERIOD_US, 1.0)
    assert CalibratedSlack(0.95, GRID, 10_000 * PERIOD_US, 0.95).base > 0.98, "a long period needs little margin"
    assert policy.base == 0.5


def test_lost_answers_count_what_a_brute_force_finds():
    event, value = stream(2, "bursts", seconds=120)
    required = required_in_hindsight(event, value, GRID)
    closed = run_pass(event, value, GRID, CalibratedSlack(0.95, GRID, PERIOD_US, 0.95), by_answer=True)
    lost, answers = lost_answers(required, closed.wait_us, GRID)
    off = share_off(event, value, closed.wait_us, closed.window, "sum")
    assert answers.sum() == len(closed.window)
    assert 0 < off <= lost.sum() / answers.sum() <= off + 0.02
