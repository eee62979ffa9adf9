"""Composite keys: rows of several integer columns, sorted and counted, with and without room for them in one number."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.core.arrays import composite_keys
from latecomer.core.arrays.composite_keys import distinct_rows, pack_columns, sort_order

VALUES = st.one_of(st.integers(-3, 3), st.sampled_from([-(1 << 62), 1 << 61, 1 << 40]))


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[VALUES] * n), min_size=1, max_size=40)))
@settings(max_examples=200, deadline=None)
def test_rows_in_order_and_how_often_each_occurs(rows):
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    assert [rows[at] for at in sort_order(*columns)] == sorted(rows)
    distinct, count = distinct_rows(*columns)
    expected = sorted(Counter(rows).items())
    assert list(zip(*(column.tolist() for column in distinct), strict=True)) == [row for row, _ in expected]
    assert count.tolist() == [often for _, often in expected]


@pytest.mark.parametrize("columns", [1, 3])
def test_no_rows(columns):
    distinct, count = distinct_rows(*[np.empty(0, np.int64)] * columns)
    assert [len(column) for column in (*distinct, count)] == [0] * (columns + 1)


def test_wide_columns_have_no_room_in_one_number():
    assert pack_columns([np.array([0, 1 << 40]), np.array([0, 1 << 30])]) is None


@pytest.mark.parametrize("runs", [1, 5, 500])
def test_rows_whose_first_column_rises_already(runs, monkeypatch):
    monkeypatch.setattr(composite_keys, "DENSE", 0)
    rng = np.random.default_rng(runs)
    columns = [np.sort(rng.integers(-7, runs, 5_000)), rng.integers(0, 2, 5_000), rng.integers(-9, 9, 5_000)]
    distinct, count = distinct_rows(*columns)
    rows, expected_count = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
    assert np.array_equal(np.stack(distinct, axis=1), rows) and np.array_equal(count, expected_count)
