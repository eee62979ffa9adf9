"""Sensor readings with two broken clocks: their rows go to quarantine, and move nobody's wait.

One device stamps 1970, the other is a year behind, as in a stream in which 576 of 162,000 rows doubled every wait.
"""

import numpy as np
import pytest
from latecomer.bench.window_simulator import run_pass
from latecomer.core.windows.calibrated_slack import CalibratedSlack
from latecomer.core.windows.grid import Grid
from latecomer.ingest.clocks import default_max_age_us, suspicions

HOUR = 3_600_000_000
DAY = 24 * HOUR
START = 1_717_200_000_000_000 // DAY * DAY
DAYS, DEVICES, EVERY = 4, 15, 120_000_000
GRID = Grid(HOUR, HOUR)


@pytest.fixture(scope="module")
def readings():
    """Event time, device and arrival of every reading; three devices are offline for some hours a day."""
    rng = np.random.default_rng(1)
    times = (START + np.arange(DAYS * DAY // EVERY) * EVERY)[:, None]
    event = times + rng.integers(0, EVERY, (len(times), DEVICES))
    delay = rng.exponential(40e6, event.shape)
    for device in range(3):
        for day in range(DAYS):
            since = START + day * DAY + rng.integers(0, 18 * HOUR)
            until = since + rng.integers(2 * HOUR, 6 * HOUR)
            offline = (event[:, device] >= since) & (event[:, device] < until)
            delay[offline, device] = until - event[offline, device] + rng.exponential(20e6, offline.sum())
    device = np.broadcast_to(np.arange(DEVICES), event.shape)
    return event.ravel(), device.ravel().astype(np.int64), (event + delay.astype(np.int64)).ravel()


def waits(event, device, arrival):
    """Return the waits of the windows of the four days, in an aggregate over groups of devices."""
    order = np.argsort(arrival, kind="stable")
    policy = CalibratedSlack(0.95, GRID, DAY, 0.95)
    closed = run_pass(
        event[order], np.ones(len(order)), GRID, policy, period_us=DAY, by_answer=True, group=device[order]
    )
    return closed.wait_us[closed.window >= START // HOUR]


@pytest.mark.slow
def test_broken_clocks_go_to_quarantine_and_move_nobodys_wait(readings):
    event, device, arrival = readings
    stamped, rng = event.copy(), np.random.default_rng(2)
    broken = (device >= DEVICES - 2) & (rng.random(len(event)) < 0.03)
    stamped[broken & (device == DEVICES - 2)] = rng.integers(0, HOUR, len(event))[broken & (device == DEVICES - 2)]
    stamped[broken & (device == DEVICES - 1)] -= 366 * DAY
    share = broken.mean()
    assert 0.003 < share < 0.006
    max_age = default_max_age_us(int(np.quantile(arrival - stamped, 0.9, method="higher")))
    believed = arrival - stamped <= max_age
    assert max_age == 90 * DAY and (believed == ~broken).all()
    assert any("before 2000" in sentence for sentence in suspicions(stamped, arrival))
    of_others = waits(event[~broken], device[~broken], arrival[~broken])
    with_broken = waits(stamped[believed], device[believed], arrival[believed])
    assert with_broken.mean() == pytest.approx(of_others.mean(), rel=0.05)
    assert np.median(of_others) < 3 * HOUR


@pytest.mark.slow
def test_rows_that_are_believed_and_absurdly_late_count_with_bounded_weight(readings):
    event, device, arrival = readings
    late, odd = event.copy(), np.random.default_rng(3).random(len(event)) < 0.0005
    late[odd] -= 60 * DAY
    assert waits(late, device, arrival).mean() == pytest.approx(waits(event, device, arrival).mean(), rel=0.15)
