"""The statistics of an interval add up in any order, survive JSON exactly, and follow the rules for buckets."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.core.arrays.sparse_counts import add_sparse, merge_counts
from latecomer.core.join.statistics import (
    UNCENSORED,
    IntervalStats,
    SideStats,
    delay_bucket,
    empty_side,
    exact_below,
    merge,
    recall_curve,
    required_bucket,
)
from latecomer.core.join.tail_estimator import _exposure


@st.composite
def sides(draw: st.DrawFn) -> SideStats:
    late = sorted(draw(st.sets(st.integers(0, 80_000), max_size=6)))
    need = sorted(draw(st.sets(st.integers(-5_000, 80_000), max_size=6)))

    def column(size: int) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(0, 2**40), min_size=size, max_size=size)), dtype=np.int64)

    rows = column(len(late))
    return SideStats(
        int(rows.sum()),
        np.array(late, dtype=np.int64),
        rows,
        column(len(late)),
        column(len(late)),
        np.array(need, dtype=np.int64),
        column(len(need)),
        column(len(need)),
        draw(st.one_of(st.integers(-100, 1000), st.just(UNCENSORED))),
    )


intervals = st.builds(IntervalStats, st.just(7), sides(), sides())


def nothing(interval: int) -> IntervalStats:
    return IntervalStats(interval, empty_side(), empty_side())


def same(a: IntervalStats, b: IntervalStats) -> bool:
    return a.to_dict() == b.to_dict()


@settings(max_examples=60, deadline=None)
@given(intervals, intervals, intervals)
def test_merge_is_a_commutative_monoid(a: IntervalStats, b: IntervalStats, c: IntervalStats) -> None:
    assert same(merge(a, b), merge(b, a))
    assert same(merge(merge(a, b), c), merge(a, merge(b, c)))
    assert same(merge(a, nothing(7)), a)


@settings(max_examples=60, deadline=None)
@given(intervals)
def test_json_round_trip_is_exact(a: IntervalStats) -> None:
    back = IntervalStats.from_dict(json.loads(json.dumps(a.to_dict())))
    assert same(back, a)
    assert all(v.dtype == np.int64 for v in vars(back.left).values() if isinstance(v, np.ndarray))


@settings(max_examples=60, deadline=None)
@given(intervals, intervals)
def test_merge_loses_no_count(a: IntervalStats, b: IntervalStats) -> None:
    both = merge(a, b)
    for name in ("left", "right"):
        x, y, z = getattr(a, name), getattr(b, name), getattr(both, name)
        assert z.rows == x.rows + y.rows == z.delay_rows.sum()
        assert z.pairs.sum() == x.pairs.sum() + y.pairs.sum()
        assert z.delay_results.sum() == x.delay_results.sum() + y.delay_results.sum()
        assert z.censored_from == min(x.censored_from, y.censored_from)
        assert (np.diff(z.required_bucket) > 0).all()


def test_merge_refuses_two_intervals() -> None:
    with pytest.raises(ValueError, match="3 and 4"):
        merge(nothing(3), nothing(4))


def test_delay_buckets_are_the_papers() -> None:
    # [0, g] -> 0, (g, 2g] -> 1, (2g, 3g] -> 2
    np.testing.assert_array_equal(delay_bucket(np.array([0, 1, 10, 11, 20, 21, 30]), 10), [0, 0, 0, 1, 1, 2, 2])


def test_buckets_of_lateness_are_those_of_delays_and_go_on_below_zero() -> None:
    late = np.array([-21, -20, -11, -10, -1, 0, 1, 10, 11, 30])
    np.testing.assert_array_equal(delay_bucket(late, 10), [-3, -2, -2, -1, -1, 0, 0, 0, 1, 2])


def test_a_tuple_more_than_a_window_before_stream_time_was_exposed_to_no_partner() -> None:
    buckets = np.array([-300, -100, -50, 0, 50, 100, 250])
    exposure = _exposure(buckets, np.full(7, 2), 1_000, 0, 1, 100)[0]
    np.testing.assert_allclose(exposure, 2 * np.array([0, 0.5, 50.5, 100.5, 150.5, 200, 200]))


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=20), st.integers(1, 10**6))
def test_required_bucket_is_produced_whole_by_the_next_grid_value(rho: list[int], g: int) -> None:
    values = np.array(rho, dtype=np.int64)
    bucket = required_bucket(values, g)
    assert (values < (bucket + 1) * g).all()
    assert (values >= bucket * g).all()


def test_exact_below() -> None:
    assert exact_below(30, 10) == 3  # rho < 30: buckets 0, 1, 2
    assert exact_below(39, 10) == 3
    assert exact_below(-1, 10) == -1
    assert exact_below(2**70, 10) == UNCENSORED


def test_add_sparse_of_nothing_and_of_repeats() -> None:
    bucket, (weight,) = add_sparse([], [])
    assert bucket.size == weight.size == 0
    bucket, (weight,) = add_sparse([np.array([3, 1, 3])], [np.array([1, 2, 4])])
    np.testing.assert_array_equal(bucket, [1, 3])
    np.testing.assert_array_equal(weight, [2, 5])


counts = st.dictionaries(st.integers(-(2**50), 2**50) | st.integers(-3, 3), st.integers(1, 2**40), max_size=8)


@settings(max_examples=100, deadline=None)
@given(counts, counts)
def test_two_sorted_histograms_merge_as_any_histograms_add(a: dict[int, int], b: dict[int, int]) -> None:
    first, second = [(np.array(sorted(x), np.int64), np.array([x[k] for k in sorted(x)], np.int64)) for x in (a, b)]
    bucket, rows = merge_counts(*first, *second)
    assert dict(zip(bucket.tolist(), rows.tolist(), strict=True)) == {k: a.get(k, 0) + b.get(k, 0) for k in {*a, *b}}
    assert (np.diff(bucket) > 0).all()


@given(st.dictionaries(st.integers(-50, 50), st.integers(1, 9), min_size=1, max_size=12))
def test_recall_curve_against_counting(counts: dict[int, int]) -> None:
    bucket = np.array(sorted(counts), dtype=np.int64)
    weight = np.array([counts[b] for b in bucket.tolist()])
    at, recall = recall_curve(bucket, weight)
    total = sum(counts.values())
    for b, r in zip(at.tolist(), recall.tolist(), strict=True):
        assert r == pytest.approx(sum(c for k, c in counts.items() if k <= b) / total)
    assert recall[-1] == pytest.approx(1.0)
    np.testing.assert_allclose(recall_curve(bucket, weight, 2 * total)[1], recall / 2)
