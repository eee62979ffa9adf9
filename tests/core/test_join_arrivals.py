"""Counted arrivals and late rows of a join, in one block and in several, against the definitions row by row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.core.arrivals import Arrivals
from latecomer.core.join.arrival_counts import ArrivalCounts
from latecomer.core.join.control import Horizons, held_bucket_us
from latecomer.core.join.retention_policies import RetentionParameters
from latecomer.core.join.statistics import delay_bucket
from latecomer.core.time import FOREVER, NEVER
from latecomer.spark.join.arrival_tasks import late_roles

from tests.support.arrival_blocks import Blocks

INTERVAL, GRANULARITY, WINDOW = 50, 5, 30
rows = st.lists(st.tuples(st.integers(-300, 300), st.integers(0, 1)), min_size=1, max_size=60)
cuts = st.lists(st.integers(0, 60), max_size=4)


def arrays(given_rows, is_self):
    ts, side = (np.array(column, np.int64) for column in zip(*given_rows, strict=True))
    n = len(ts)
    return np.arange(n) * 3, ts, np.zeros(n, np.int64) if is_self else side, np.zeros(n, np.int64)


def both(given_rows, places, is_self):
    columns = arrays(given_rows, is_self)
    carry = [NEVER] if is_self else [NEVER, NEVER]
    return Blocks(columns, [min(place, len(given_rows)) for place in places], carry), Arrivals.of(*columns, carry)


def parameters():
    return RetentionParameters(
        **dict.fromkeys(RetentionParameters.__dataclass_fields__, 1)
        | {"interval_us": INTERVAL, "granularity_us": GRANULARITY}
    )


@pytest.mark.parametrize("is_self", [False, True])
@pytest.mark.parametrize("lateness", [False, True])
@settings(deadline=None, max_examples=50)
@given(given_rows=rows, places=cuts)
def test_arrivals_are_counted_by_interval_side_time_and_delay(given_rows, places, is_self, lateness):
    cut, whole = both(given_rows, places, is_self)
    counted = ArrivalCounts.of(cut, parameters(), is_self, lateness=lateness)
    assert repr(counted) == repr(ArrivalCounts.of(whole, parameters(), is_self, lateness=lateness))
    width = held_bucket_us(INTERVAL, GRANULARITY)
    by_time, by_delay, unplaced = {}, {}, 0
    for i, (ts, time) in enumerate(zip(whole.event_time_us.tolist(), whole.stream_time_us.tolist(), strict=True)):
        if time == NEVER:
            unplaced += 1
            continue
        behind = whole.lateness_us[i] if lateness else whole.delay_us[i]
        delay = int(delay_bucket(np.array([behind]), GRANULARITY)[0])
        for side in (0, 1) if is_self else (int(whole.side[i]),):
            place = (time // INTERVAL, side)
            for counts, bucket in ((by_time, ts // width), (by_delay, delay)):
                counts.setdefault(place, {}).setdefault(bucket, 0)
                counts[place][bucket] += 1
    assert counted.unplaced == unplaced and counted.rows == len(given_rows)
    for name, expected in (("by_time", by_time), ("by_delay", by_delay)):
        given_counts = {
            (interval.number, side): dict(zip(*(a.tolist() for a in getattr(interval, name)[side]), strict=True))
            for interval in counted.intervals
            for side in (0, 1)
            if len(getattr(interval, name)[side][0])
        }
        assert given_counts == expected
    ends = {time // INTERVAL: time for time in whole.stream_time_us.tolist() if time > NEVER}
    assert {interval.number: interval.stream_time_us for interval in counted.intervals} == ends


@pytest.mark.parametrize("is_self", [False, True])
@settings(deadline=None, max_examples=50)
@given(given_rows=rows, places=cuts, retention=st.sampled_from([0, 10, FOREVER]))
def test_late_rows_are_those_whose_window_reaches_behind_the_opposite_horizon(given_rows, places, is_self, retention):
    cut, whole = both(given_rows, places, is_self)
    numbers = np.unique(whole.stream_time_us[whole.stream_time_us > NEVER] // INTERVAL)
    base, keep = np.full(len(numbers), -200), np.full(len(numbers), retention)
    horizons = Horizons(numbers, (base, base), (keep, keep))
    roles = late_roles(cut, horizons, INTERVAL, WINDOW, is_self=is_self)
    for side in (0, 1):
        expected = []
        for seq, ts, of, time in zip(
            *(a.tolist() for a in (whole.seq, whole.event_time_us, whole.side, whole.stream_time_us)), strict=True
        ):
            horizon = NEVER
            if time > NEVER:
                horizon = -200 if retention == FOREVER else max(-200, time - WINDOW - retention)
            if (is_self or of == side) and horizon >= ts - WINDOW:
                expected.append((seq, ts, time, horizon))
        assert list(zip(*(column.tolist() for column in roles[side]), strict=True)) == expected
