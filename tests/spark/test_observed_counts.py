"""Results that are counted once per window give what each observation of the window, by itself, would count."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.core.windows.grid import Grid
from latecomer.spark.theta_join import windows as theta_windows
from latecomer.spark.windows.assigner import WindowAssigner
from latecomer.spark.windows.lateness import Observations
from pyspark.sql import functions as F

GRID = Grid(10, 5)
entries = st.dictionaries(st.tuples(st.integers(0, 4), st.integers(-1, 40)), st.integers(1, 1 << 70), max_size=25)
observed = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 45)), min_size=1, max_size=12)


def observations(spans):
    unique = {(span, window): known for window, span, known in spans}
    rows = [(window, span, known) for (span, window), known in sorted(unique.items())]
    columns = dict(zip(("_m", "_span", "_known"), map(np.array, zip(*rows, strict=True)), strict=True))
    return Observations(pa.table(columns), [100, 200, 300], WindowAssigner(GRID), None), rows


def counts(entries):
    keys = [*entries]
    columns = {"_m": pa.array([m for m, _ in keys], pa.int64()), "_wait": pa.array([w for _, w in keys], pa.int64())}
    return pa.table(columns | {"results": pa.array(list(entries.values()), pa.decimal128(38, 0))})


def seen(observed):
    (by_interval,) = observed.by_interval
    return {
        (interval, window.window): (window.required_us.tolist(), window.weight.tolist(), window.total)
        for interval, windows in by_interval.items()
        for window in windows
    }


@settings(deadline=None)
@given(entries, observed)
@pytest.mark.parametrize("level", [lambda wait: wait, theta_windows._levels], ids=["exact", "rounded"])
def test_every_observation_takes_the_waits_that_it_knows(level, entries, spans):
    together, rows = observations(spans)
    expected = {}
    for window, span, known in rows:  # each alone, of the entries that it knows
        alone, _ = observations([(window, span, known)])
        of_window = {key: count for key, count in entries.items() if key[0] == window and key[1] < known}
        rounded = {}
        for (_, wait), count in of_window.items():
            key = window, int(level(np.array([wait]))[0])
            rounded[key] = rounded.get(key, 0) + count
        reached, _ = observations([(window, span, 1 << 40)])
        expected |= seen(reached.observed(counts(rounded)))
        assert seen(alone.observed(counts(of_window), level)) == seen(reached.observed(counts(rounded)))
    assert seen(together.observed(counts(entries), level)) == expected


def test_waits_are_rounded_alike_in_python_and_in_spark(spark):
    waits = sorted({-1, 0, *(base + off for bits in range(45) for base in [1 << bits] for off in (-1, 0, 1))})
    frame = spark.createDataFrame([(wait,) for wait in waits], "_wait long").withColumn(
        "up", F.expr(theta_windows._LEVEL)
    )
    assert [row["up"] for row in frame.collect()] == theta_windows._levels(np.array(waits)).tolist()


def test_a_row_knows_up_to_which_wait_the_same_observations_know_it(spark):
    together, _ = observations([(0, 0, 3), (0, 1, 9), (1, 0, 9)])
    together = Observations(together.table, together.intervals, together.assigner, spark)
    rows = [(0, window, bucket) for window in (0, 1, 2) for bucket in (-1, 0, 2, 3, 8, 9)]
    frame = spark.createDataFrame(rows, "ts long, _m long, bucket long").withColumn("side", F.lit(0))
    known = together.known(frame, until=True).select("_m", "_wait", "_until").distinct().collect()
    first = GRID.first_of(0)
    expected = set()
    for _, window, bucket in rows:
        wait = max(bucket - (window - first) * 5, -1) if bucket >= 0 else -1
        cuts = {0: [3, 9], 1: [9]}.get(window, [])
        expected |= (
            {(window, wait, min(cut for cut in cuts if cut > wait) - 1)} if any(c > wait for c in cuts) else set()
        )
    assert {tuple(row) for row in known} == expected
