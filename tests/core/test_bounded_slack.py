"""The bounded slack: no clock, device or stretch of arrivals moves the wait of the others; and the start is safe."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from latecomer.bench import promise_streams as streams
from latecomer.bench.promise_simulator import WindowCase
from latecomer.core.arrivals import Arrivals
from latecomer.core.state import OtherVersion
from latecomer.core.time import NEVER
from latecomer.core.windows.arrivals import ArrivalCounts
from latecomer.core.windows.bounded_slack import BoundedSlack
from latecomer.core.windows.calibrated_slack import CalibratedSlack
from latecomer.core.windows.control import WindowControl
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import IntervalRows, Observed
from latecomer.core.windows.longest_wait import LongestWait
from latecomer.core.windows.observation import spans_of
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import parse_query
from latecomer.strategies.windows import learns_safely, policies_to_adapt, slack_policy, window_controls

MINUTE, HOUR, DAY = 60_000_000, 3_600_000_000, 86_400_000_000
START = 1_717_200_000_000_000 // DAY * DAY
DAYS, DEVICES = 32, 12
GRID = Grid(HOUR, HOUR)
AGGREGATE = """\
name: q
kind: aggregate
streams: {s: s}
window: 1 h
select: {n: count()}
quality: {error: 0.1, probability: 0.9, period: 1 d%s}
%s"""


def readings():
    """Return event time, device and arrival of readings; a row in seven is up to an hour late."""
    rng = np.random.default_rng(1)
    event = START + np.sort(rng.integers(0, DAYS * DAY, DAYS * DEVICES * 60))
    device = rng.integers(0, DEVICES, len(event))
    lag = np.where(rng.random(len(event)) < 1 / 7, rng.exponential(8 * MINUTE, len(event)), rng.exponential(5e6))
    return event, device, event + np.minimum(lag, HOUR).astype(np.int64)


def slacks(event, device, arrival, policy=None, cuts=()):
    """Return the slack of each interval of the days after the first two, us, and the control in its final state."""
    order = np.argsort(arrival, kind="stable")
    event, device = event[order], device[order]
    n = len(event)
    stream = streams.Stream(
        "s", event, np.zeros(n, np.int8), device, device, np.ones(n), np.ones(n, bool), DAY, GRID, HOUR
    )
    case = WindowCase(stream, "aggregate")
    control = WindowControl(GRID, DAY, policy or BoundedSlack(0.95, GRID, DAY, 0.95))
    carry, chosen = [NEVER], {}
    for low, high in itertools.pairwise([0, *cuts, n]):
        part = slice(low, high)
        zeros = np.zeros(high - low, np.int8)
        new = Arrivals.of(np.arange(low, high), event[part], zeros, zeros.astype(np.int32), carry)
        [intervals], carry = ArrivalCounts.of(new, GRID, 1).intervals, new.carry
        due = replace(control.schedule).advance(intervals)
        table = control.step(intervals, dict(zip(due, case.observed(spans_of(GRID, due)), strict=True)))
        chosen |= dict(zip(table.interval.tolist(), table.slack.tolist(), strict=True))
        control = resumed(control)
    hours = [interval for interval in sorted(chosen) if interval >= (START + 2 * DAY) // HOUR]
    return np.array([chosen[hour] for hour in hours]), control


def resumed(control):
    """Return the control plane from its state through JSON."""
    if not isinstance(control.policy, BoundedSlack):
        return control
    state = json.loads(json.dumps(control.to_dict()))
    return WindowControl.from_dict(state, GRID, DAY, BoundedSlack.from_dict(state["policy"], 0.95, GRID, DAY, 0.95))


def broken(name):
    """Return the readings with one thing that is wrong, and without its rows."""
    usual = event, device, arrival = readings()
    event, arrival = event.copy(), arrival.copy()
    rng, bad = np.random.default_rng(2), device == 5
    odd = np.zeros(len(event), bool)
    if name == "clocks of 1970":
        odd = rng.random(len(event)) < 0.005
        event[odd] = rng.integers(0, DAY, odd.sum())
    elif name == "a clock a year behind":
        odd = bad
        event[bad] -= 365 * DAY
    elif name == "a dead device":
        alive = ~bad | (event < START + 10 * DAY)
        event, device, arrival = event[alive], device[alive], arrival[alive]
    elif name == "a device that was away for two days":
        odd = bad & (event > START + 21 * DAY) & (event < START + 23 * DAY)
        arrival[odd] = START + 23 * DAY + rng.integers(0, 20 * MINUTE, odd.sum())
    elif name == "a backfilled month":
        first = np.flatnonzero(device < 3)
        event, device = np.append(event, event[first] - 30 * DAY), np.append(device, device[first])
        arrival = np.append(arrival, START + 22 * DAY + rng.integers(0, HOUR // 2, len(first)))
    elif name == "a replayed day":
        day = np.flatnonzero((event >= START + 20 * DAY) & (event < START + 21 * DAY))
        event, device = np.append(event, event[day]), np.append(device, device[day])
        arrival = np.append(arrival, START + 21 * DAY + rng.integers(0, HOUR // 2, len(day)))
    elif name == "a row ahead":
        event[np.searchsorted(event, START + 22 * DAY)] += 2 * DAY
    return (event, device, arrival), tuple(column[~odd] for column in usual)


BROKEN = ("clocks of 1970", "a clock a year behind", "a dead device", "a device that was away for two days",
          "a backfilled month", "a replayed day", "a row ahead")  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_the_wait_of_the_others_does_not_move(name):
    of_all, of_others = (slacks(*rows_)[0].mean() for rows_ in broken(name))
    assert of_all == pytest.approx(of_others, rel=0.05)


def test_the_rule_of_earlier_versions_moves():
    by_name = {name: slacks(*broken(name)[0], CalibratedSlack(0.95, GRID, DAY, 0.95))[0].mean() for name in BROKEN[-2:]}
    assert min(by_name.values()) > 3 * slacks(*readings(), CalibratedSlack(0.95, GRID, DAY, 0.95))[0].mean(), by_name


def test_lateness_that_comes_again_is_followed():
    event, device, arrival = readings()
    for day in range(5, DAYS):  # two devices sync at night what they recorded on the day before
        syncs = (device < 2) & (event >= START + (day - 1) * DAY) & (event < START + day * DAY)
        arrival[syncs] = np.maximum(arrival[syncs], START + day * DAY)
    slack = slacks(event, device, arrival)[0]
    assert slack[: 2 * 24].max() < 2 * HOUR and (slack[6 * 24 :] > 12 * HOUR).all()


def test_any_cut_and_state_through_json_decide_the_same():
    event, device, arrival = broken("a replayed day")[0]
    whole, control = slacks(event, device, arrival)
    rng = np.random.default_rng(3)
    for number in (1, 40):
        cuts = np.sort(rng.choice(np.arange(1, len(event)), number, replace=False)).tolist()
        other, again = slacks(event, device, arrival, cuts=cuts)
        assert np.array_equal(other, whole) and again.to_dict() == control.to_dict()


def rows(interval, *late_us):
    """Return the rows of an interval: one in time, and late ones."""
    event = interval * HOUR - np.array(late_us, np.int64)
    panes, place = np.unique(np.append(event // HOUR, interval), return_inverse=True)
    delays = np.zeros(len(panes), np.int64)
    np.maximum.at(delays, place, np.append(np.array(late_us, np.int64), 0))
    count = np.bincount(place)
    return IntervalRows(interval, interval * HOUR, int(delays.max()), int(count.sum()), panes, count, delays)


def longest(*intervals, share=0.0):
    """Return the longest wait after intervals of rows."""
    longest_wait = LongestWait(GRID, 100 * HOUR, share)
    for interval in intervals:
        longest_wait.add(interval)
        longest_wait.end_interval()
    return longest_wait.wait_us()


def test_a_wait_is_credible_from_its_second_stretch_of_arrivals_on():
    quiet = [rows(1_000 + hour) for hour in range(30)]
    late = rows(1_030, *range(5 * HOUR, 9 * HOUR, HOUR))
    assert longest(*quiet, late) == 0, "one stretch"
    assert longest(*quiet, late, rows(1_032, 8 * HOUR)) == 0, "two hours later is the same stretch for eight hours"
    assert 8 * HOUR <= longest(*quiet, late, rows(1_045, 8 * HOUR)) <= 9 * HOUR
    assert longest(*quiet, late, rows(1_400, 8 * HOUR)) == 0, "forgotten"
    assert longest(*quiet, late, rows(1_045, 8 * HOUR), share=0.2) == 0, "few rows"
    assert longest(*quiet, rows(1_030, 500 * HOUR), rows(1_045, 500 * HOUR)) == 0, "from before the first interval"


def test_the_policy_is_learning_until_the_promise_needs_no_more_periods():
    policy = BoundedSlack(0.95, GRID, DAY, 0.95, expect_us=5 * HOUR)
    assert policy.learning and policy.choose(0) == 5 * HOUR
    learning = {}
    for hour in range(25 * 24):
        policy.arrived(rows(hour, *([3 * HOUR] if hour % 6 == 0 else [])))
        policy.delays(HOUR)
        policy.observe(Observed(hour, np.array([HOUR // 10]), np.ones(1), 1.0), policy.choose(hour), hour)
        learning[hour // 24] = policy.learning, policy.choose(hour)
    assert [day for day, (known, _) in learning.items() if known] == list(range(19))
    assert learning[18][1] == 5 * HOUR > 2 * HOUR > learning[24][1]
    bounded = BoundedSlack(0.95, GRID, DAY, 0.95, max_wait_us=2 * HOUR, expect_us=3 * HOUR)
    assert bounded.choose(0) == 2 * HOUR


def test_what_no_accepted_wait_saves_is_set_aside():
    policy = BoundedSlack(0.95, GRID, DAY, 0.95, max_wait_us=HOUR)
    for hour in range(40 * 24):
        policy.arrived(rows(hour, 2 * HOUR, 20 * HOUR))
        policy.delays(20 * HOUR)
        policy.observe(Observed(hour, np.array([HOUR // 2, 20 * HOUR]), np.array([1.0, 9.0]), 10.0), 0, hour)
    assert not policy.learning and HOUR // 2 <= policy.choose(0) <= HOUR


def test_a_query_goes_on_with_the_rule_that_it_began_with():
    plain, bounded = parse_query(AGGREGATE % ("", "")), parse_query(AGGREGATE % (", max_wait: 2 d", ""))
    earlier = CalibratedSlack(0.95, plain.window, plain.period_us, 0.95).to_dict()
    for spec, began, rule in (
        (plain, earlier, CalibratedSlack),
        (plain, None, BoundedSlack),
        (bounded, None, BoundedSlack),
    ):
        [control] = window_controls(spec, None)
        if began is not None:
            control.policy = slack_policy(spec, began)
        assert isinstance(control.policy, rule)
        control.policy.arrived(rows(1_000, HOUR))
        state = {"controls": [control.to_dict()]}
        [again], [adapted] = window_controls(spec, state), policies_to_adapt(spec, state)
        assert isinstance(again.policy, rule) and isinstance(adapted, rule)
        assert learns_safely(spec, state) == (rule is BoundedSlack)
    assert adapted.longest.to_dict() == control.policy.longest.to_dict(), "adapt keeps what the arrivals say"
    with pytest.raises(OtherVersion, match="version"):
        slack_policy(bounded, {**control.policy.to_dict(), "version": 5})


@pytest.mark.parametrize(
    ("name", "kind"),
    [("exponential", "aggregate"), ("pareto", "topk"), ("bursts", "theta_join"), ("nightly_days", "membership"),
     ("regime_up", "aggregate")],
)  # fmt: skip
def test_as_many_periods_are_kept_as_before(name, kind):
    case = WindowCase(streams.draw(name, 1), kind)
    settings = 0.95, case.stream.grid, case.stream.period_us, 0.95
    before, after = (case.run(policy(*settings), 0.95) for policy in (CalibratedSlack, BoundedSlack))
    kept, periods = after.kept(0.95)
    assert kept >= before.kept(0.95)[0] - 1 and kept >= 0.9 * periods


def test_bounds_of_the_wait_are_read_and_belong_to_the_results():
    plain, stated = parse_query(AGGREGATE % ("", "")), parse_query(AGGREGATE % (", max_wait: 2 d, expect: 2 h", ""))
    assert (stated.max_wait_us, stated.expect_us) == (2 * DAY, 2 * HOUR)
    assert plain.fingerprint() != stated.fingerprint()
    without = stated.without_target(stated.signature())
    assert without["quality"] == {"period_us": DAY, "max_wait_us": 2 * DAY, "expect_us": 2 * HOUR}
    policy = slack_policy(stated, None)
    assert (policy.max_wait_us, policy.expect_us) == (2 * DAY, 2 * HOUR)


@pytest.mark.parametrize(
    ("keys", "strategy", "message"),
    [
        (", expect: 2 h, max_wait: 1 h", "", "longer than max_wait"),
        (", max_wait: 1 h", "strategy: hpm", "does not learn"),
        (", expect: soon", "", "expect"),
    ],
)
def test_bounds_that_cannot_be_are_refused(keys, strategy, message):
    with pytest.raises(SpecError, match=message):
        parse_query(AGGREGATE % (keys, strategy))
