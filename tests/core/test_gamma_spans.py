"""The ranges of event time that late rows touch, merged: nothing is left out, and little is added."""

import itertools

import numpy as np
import pytest
from latecomer.core.gamma_batches import spans


def inside(ranges, value):
    return any(low <= value <= high for low, high in ranges)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("most", [1, 3, 32])
def test_the_ranges_are_disjoint_and_cover_all_but_the_widest_gaps(seed, most):
    rng = np.random.default_rng(seed)
    low = rng.integers(-300, 300, rng.integers(1, 40))
    high = low + rng.integers(0, 12, len(low))
    ranges = spans(low, high, most)
    assert 1 <= len(ranges) <= most and ranges == sorted(ranges)
    assert all(low <= high for low, high in ranges)
    assert all(first[1] + 1 < second[0] for first, second in itertools.pairwise(ranges))
    covered = {int(v) for a, b in zip(low, high, strict=True) for v in range(a, b + 1)}
    missing = [v for v in range(int(low.min()), int(high.max()) + 1) if v not in covered]
    assert all(inside(ranges, v) for v in covered)
    # the values between, as runs: the longest runs are left out
    runs = [len(run) for run in np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1)] if missing else []
    left_out = sorted(second[0] - first[1] - 1 for first, second in itertools.pairwise(ranges))
    assert left_out == sorted(runs)[len(runs) - len(left_out) :]
    assert len(left_out) == min(len(runs), most - 1)


def test_no_rows_have_no_ranges_and_far_ends_fit():
    assert spans(np.array([], np.int64), np.array([], np.int64)) == []
    far = np.array([-(1 << 61), 1 << 61])
    assert spans(far, far) == [(-(1 << 61),) * 2, (1 << 61,) * 2]
