"""Clocks: the meaning of a local time that occurs twice, the ages that are believed, and what is said about clocks."""

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.ingest import clocks
from latecomer.ingest.values.times import local_times, parse_times

MINUTE, HOUR, DAY = 60_000_000, 3_600_000_000, 86_400_000_000
START = int(datetime(2024, 11, 3, 4, tzinfo=UTC).timestamp()) * 1_000_000
"""Two hours before New York's clocks show the hour from 1 to 2 for the second time."""


def wall_of(us: np.ndarray, zone: str) -> np.ndarray:
    """Return what a zone's clock shows at instants, by zoneinfo."""
    epoch = datetime(1970, 1, 1)
    shown = [
        (epoch + timedelta(microseconds=time)).replace(tzinfo=UTC).astimezone(ZoneInfo(zone)) for time in us.tolist()
    ]
    return np.array([(time.replace(tzinfo=None) - epoch) // timedelta(microseconds=1) for time in shown], np.int64)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_readings_at_the_end_of_summer_time_are_four_in_an_hour():
    walls = [f"2024-11-03 0{hour}:{minute:02}:00" for hour in (1, 1, 2) for minute in (0, 15, 30, 45)]
    times = parse_times(pa.array([*walls, "2024-03-10 02:30:00"]), "America/New_York")
    assert times.skipped.tolist() == [False] * 12 + [True]
    us, later_us, order = times.us[:12], times.later_us[:12], np.arange(12)
    resolved, ambiguous = clocks.resolve_by_order(us, later_us, np.zeros(12, np.int64), order)
    assert not ambiguous.any() and ((resolved - START) // MINUTE).tolist() == list(range(60, 240, 15))
    shuffled = np.random.default_rng(1).permutation(12)
    again, _ = clocks.resolve_by_order(us[shuffled], later_us[shuffled], np.zeros(12, np.int64), order[shuffled])
    assert again.tolist() == resolved[shuffled].tolist()
    by_arrival = clocks.resolve_by_arrival(us, later_us, resolved + 30_000_000, np.ones(12, np.bool_))
    assert by_arrival.tolist() == resolved.tolist()


@pytest.mark.parametrize(
    ("minutes", "means"),
    [
        ("1:00 1:30 2:00", "? ? 7:00"),  # either pass
        ("0:30 1:00 1:30", "4:30 ? ?"),
        ("1:30 1:00", "5:30 6:00"),
        ("1:30 1:30", "? ?"),
        ("1:30 1:30 1:10 2:10", "5:30 5:30 6:10 7:10"),
        ("1:30 0:59 1:00", "? 4:59 ?"),  # a straggler; the clock does not run backward inside the hour
        ("1:30 1:20 1:10", "? ? ?"),  # an order that no clock explains
        ("1:30 1:20 0:50", "? ? 4:50"),
        ("2:00 1:30", "7:00 ?"),
        ("2:00 3:00 2:59", "7:00 8:00 7:59"),
        ("1:30 1:00 | 1:20", "5:30 6:00 | ?"),
        ("6:10Z 1:20 7:05Z", "6:10 6:20 7:05"),
        ("1:20 1:40 5:50Z", "5:20 5:40 5:50"),
        ("6:10Z 1:20 1:05Z", "6:10 ? 1:05"),
    ],
)
def test_the_order_of_a_group_tells_the_pass(minutes, means):
    group, us, later = [], [], []
    for word in minutes.split():
        if word != "|":
            hour, minute = map(int, word.rstrip("Z").split(":"))
            wall = START - 4 * HOUR + hour * HOUR + minute * MINUTE
            times = local_times(integers(wall), "UTC" if word.endswith("Z") else "America/New_York")
            us, later = [*us, times.us[0]], [*later, times.later_us[0]]
        group.append(group[-1] + (word == "|") if group else 0)
    group = [number for number, word in zip(group, minutes.split(), strict=True) if word != "|"]
    resolved, ambiguous = clocks.resolve_by_order(integers(*us), integers(*later), integers(*group), np.arange(len(us)))
    minute = (resolved - START + 4 * HOUR) // MINUTE
    says = ["?" if unclear else f"{m // 60}:{m % 60:02}" for m, unclear in zip(minute.tolist(), ambiguous, strict=True)]
    assert says == [word for word in means.split() if word != "|"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 16), min_size=1, max_size=7), st.sampled_from([0, 20 * MINUTE]))
def test_order_decides_what_all_readings_have_in_common(steps, disorder):
    """Against every choice of instants, where a choice that fits the order exists."""
    wall = START - 4 * HOUR + integers(*steps) * 15 * MINUTE
    times = local_times(wall, "America/New_York")
    pairs = zip(times.us.tolist(), times.later_us.tolist(), strict=True)
    readings = [
        reading
        for reading in itertools.product(*(sorted({*pair}) for pair in pairs))
        if all(after >= before - disorder for before, after in itertools.pairwise(reading))
    ]
    zeros = np.zeros(len(wall), np.int64)
    resolved, ambiguous = clocks.resolve_by_order(times.us, times.later_us, zeros, np.arange(len(wall)), disorder)
    assert not (ambiguous & (times.us == times.later_us)).any()
    if readings:
        for place, choices in enumerate(zip(*readings, strict=True)):
            assert ambiguous[place] == (len({*choices}) > 1)
            assert resolved[place] == min(choices)


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "Australia/Lord_Howe"])
def test_devices_that_report_at_once_or_were_offline(zone):
    """The truth are devices with readings every minute or so, in order; half of them upload hours later, at once."""
    rng, instants, arrivals, group = np.random.default_rng(3), [], [], []
    change = {"America/New_York": (2024, 11, 3, 6), "Europe/Berlin": (2024, 10, 27, 1)}.get(zone, (2024, 4, 6, 15))
    middle = int(datetime(*change, tzinfo=UTC).timestamp()) * 1_000_000
    for device in range(20):
        us = middle - 3 * HOUR + np.cumsum(rng.integers(30_000_000, 3 * MINUTE, 300))
        instants.append(us)
        arrivals.append(us + rng.integers(0, MINUTE, 300) if device % 2 else np.full(300, us[-1] + MINUTE))
        group.append(np.full(300, device))
    us, arrival, group = (np.concatenate(part) for part in (instants, arrivals, group))
    times = local_times(wall_of(us, zone), zone)
    assert times.valid.all() and (times.us != times.later_us).sum() > 500
    some, position = np.ones(len(us), np.bool_), np.arange(len(us))
    resolved, ambiguous = clocks.resolve(times.us, times.later_us, arrival, some, group, position)
    assert not ambiguous.any() and (resolved == us).all()
    without, ambiguous = clocks.resolve(times.us, times.later_us, arrival, ~some, group, position)
    assert not ambiguous.any() and (without == us).all()
    prompt = group % 2 == 1
    assert (clocks.resolve_by_arrival(times.us, times.later_us, arrival, some) == us)[prompt].all()
    order = np.argsort(arrival[prompt] + rng.integers(0, 20 * MINUTE, prompt.sum()))  # a file in another order
    rows = np.flatnonzero(prompt)[order]
    resolved, _ = clocks.resolve(
        times.us[rows], times.later_us[rows], arrival[rows], some[rows], group[rows], position[: len(rows)]
    )
    assert (resolved == us[rows]).all()


def test_an_arrival_tells_the_pass_within_a_clock_error():
    us, later = np.full(5, START), np.full(5, START + HOUR)
    arrival = START + integers(0, 54, 55, 120, -60) * MINUTE
    resolved = clocks.resolve_by_arrival(us, later, arrival, np.array([True] * 5))
    assert ((resolved - START) // HOUR).tolist() == [0, 0, 1, 1, 0]
    assert clocks.resolve_by_arrival(us, later, arrival, np.array([False] * 5)).tolist() == us.tolist()
    _, ambiguous = clocks.resolve(us, later, arrival, np.array([True, True, True, True, False]), np.arange(5), us * 0)
    assert ambiguous.tolist() == [False] * 4 + [True]


def test_the_default_age_refuses_wrong_clocks_and_no_archive():
    rng = np.random.default_rng(7)
    late = rng.exponential(HOUR, 10_000).astype(np.int64)
    late[:500] = rng.integers(300 * DAY, 20_000 * DAY, 500)  # a twentieth of wrong clocks
    usual = int(np.quantile(late, clocks.USUAL_SHARE, method="higher"))
    assert clocks.default_max_age_us(usual) == 90 * DAY
    archive = rng.integers(2_000 * DAY, 2_100 * DAY, 10_000)
    usual = int(np.quantile(archive, clocks.USUAL_SHARE, method="higher"))
    assert archive.max() < clocks.default_max_age_us(usual) <= 100_000 * DAY
    assert clocks.default_max_age_us(0) == clocks.default_max_age_us(-5) == 90 * DAY
    assert clocks.default_max_age_us(20 * DAY) == 200 * DAY


NOW = int(datetime(2024, 7, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000
RNG = np.random.default_rng(11)
EVENTS = NOW + RNG.integers(0, 20 * DAY, 20_000)
PROMPT = EVENTS + RNG.exponential(5_000_000, 20_000).astype(np.int64)


def test_usable_clocks_are_not_suspected():
    hourly = (EVENTS // HOUR + 1) * HOUR  # uploads once an hour
    quarter = np.full(len(EVENTS), 15 * MINUTE) + RNG.integers(0, 5_000_000, len(EVENTS))
    slow = RNG.exponential(2 * HOUR, len(EVENTS)).astype(np.int64)
    for arrival in (PROMPT, hourly, EVENTS + quarter, EVENTS + slow, EVENTS, EVENTS + 400 * DAY + slow, None):
        assert clocks.suspicions(EVENTS, arrival) == []
    assert clocks.suspicions(integers(), integers()) == []
    small = np.arange(1_000, dtype=np.int64)
    assert clocks.suspicions(small, small + 5) == clocks.suspicions(small) == []


@pytest.mark.parametrize(
    ("true", "stated", "says"),
    [
        ("Europe/Berlin", "UTC", ["2 h after", "UTC+02:00", "Europe/Berlin"]),
        ("America/New_York", "UTC", ["4 h before", "UTC-04:00", "America/New_York"]),
        ("Asia/Kathmandu", "UTC", ["345 min after", "UTC+05:45", "Asia/Kathmandu"]),
        ("UTC", "Europe/Berlin", ["2 h before", "UTC+00:00", "UTC"]),
        ("America/Los_Angeles", "America/New_York", ["3 h before", "UTC-07:00", "America/"]),
    ],
)
def test_a_missing_zone_is_suspected(true, stated, says):
    wall = wall_of(EVENTS[:2_000], true)
    told = clocks.suspicions(local_times(wall, stated).us, PROMPT[:2_000], zone=stated)
    assert len(told) == 1 and "is the time zone missing?" in told[0]
    assert all(part in told[0] for part in says), told


def test_a_missing_zone_is_suspected_over_the_end_of_summer_time():
    events = EVENTS[:2_000] + 110 * DAY
    arrival = events + RNG.exponential(5_000_000, 2_000).astype(np.int64)
    arrival[:60] += 5 * HOUR  # of devices that were offline
    told = clocks.suspicions(wall_of(events, "Europe/Berlin"), arrival)
    assert len(told) == 1 and "is the time zone missing?" in told[0]


@pytest.mark.parametrize(
    ("event_by", "arrival_by", "unit", "says"),
    [
        (1_000, 1, "us", ["event times", "1,000 times smaller than arrival", "as ms read as us"]),
        (1_000_000, 1, "us", ["event times", "1,000,000 times smaller than arrival", "as s read as us"]),
        (1, 1_000, "ms", ["arrival times", "1,000 times smaller than event", "as s read as ms"]),
        (1_000, 1_000, "us", ["they count ms", "time_unit: ms"]),
        (1_000_000, 1_000_000, "us", ["they count s", "time_unit: s"]),
        (1_000, None, "ms", ["they count s", "time_unit: s"]),
    ],
)
def test_units_that_differ_are_suspected(event_by, arrival_by, unit, says):
    told = clocks.suspicions(EVENTS // event_by, None if arrival_by is None else PROMPT // arrival_by, time_unit=unit)
    assert len(told) == 1 and all(part in told[0] for part in says), told


def test_clocks_that_were_never_set_and_fast_clocks_are_suspected():
    events = EVENTS.copy()
    events[:40] = RNG.integers(0, DAY, 40)
    told = clocks.suspicions(events, PROMPT)
    assert len(told) == 1 and told[0].startswith("0.2% of the event times are before 2000, from 1970-01-01T")
    assert clocks.suspicions(events) == told
    events[100:1_100] += 23 * HOUR
    told = clocks.suspicions(events, PROMPT)
    assert len(told) == 2 and told[1].startswith("5% of the events lie more than 1 min after their arrivals")
    assert "1379 min or more" in told[1]
    assert clocks.suspicions(np.arange(5) * DAY + DAY) == []  # all of long ago
