"""Quantiles after batches, against a recomputation of every answer."""

import math

import numpy as np
import pytest
from latecomer.core.aggregate.running_quantiles import after_batches


def percentile(values, share):
    """Spark's definition: linear interpolation between the two values around ``(n - 1) * share``."""
    ordered = sorted(values, key=lambda v: (math.isnan(v), v))
    position = (len(ordered) - 1) * share
    low, high = math.floor(position), math.ceil(position)
    first, last = ordered[low], ordered[high]
    if low == high or first == last or (math.isnan(first) and math.isnan(last)):
        return first
    return (high - position) * first + (position - low) * last


@pytest.mark.parametrize("seed", range(30))
def test_equals_a_recomputation_of_every_answer(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 200))
    window = np.sort(rng.integers(0, 1 + n // 8, n)) - 3
    often = rng.integers(0, 4, n)
    value = rng.choice([np.round(rng.normal(0, 3, n), 1), rng.integers(-2, 3, n).astype(float)])
    value[rng.random(n) < 0.05] = np.nan
    value[rng.random(n) < 0.05] = np.inf
    shares = np.array([0.0, 0.5, 0.9, 1.0, 1 / 3])
    place, quantiles = after_batches(window, value, often, shares)
    expected = []
    for row in np.flatnonzero(often == 0):
        before = np.flatnonzero((window[:row] == window[row]) & (often[:row] > 0))
        values = np.repeat(value[before], often[before]).tolist()
        if values:
            expected.append((row, [percentile(values, share) for share in shares.tolist()]))
    assert place.tolist() == [row for row, _ in expected]
    np.testing.assert_array_equal(quantiles, np.array([row for _, row in expected]).reshape(-1, len(shares)))


def test_no_request_no_quantile():
    place, quantiles = after_batches(np.zeros(2, np.int64), np.ones(2), np.ones(2, np.int64), np.array([0.5]))
    assert len(place) == 0 and quantiles.shape == (0, 1)
    place, quantiles = after_batches(np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64), np.array([0.5]))
    assert len(place) == 0
