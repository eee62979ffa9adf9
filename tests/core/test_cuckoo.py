"""The cuckoo filter against a Counter: nothing inserted is lost, and the false positives stay under the bound."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from latecomer.baselines.membership.filters import BloomFilter
from latecomer.core.membership.cuckoo import CuckooFilter, size_for

ABSENT = np.arange(1 << 20, (1 << 20) + 200_000, dtype=np.uint64)


def random_hashes(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def as_hashes(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


def implied(one: CuckooFilter) -> float:
    """Share of false positives that the present fill implies, ``sum of 2 * cells used / (buckets * 2**f)``."""
    filled = sum(float(t.count[0]) / t.cells.shape[0] / float(t.values) for t in one._tables)
    return min(1.0, 2 * filled)


class AgainstCounter(RuleBasedStateMachine):
    """Differential: a filter and a Counter see the same inserts, and deletes of inserted elements."""

    @initialize(
        rows=st.integers(0, 40),
        bits=st.sampled_from([2, 4, 8, 12, 16, 24, 32]),
        bucket=st.sampled_from([1, 2, 3, 4, 8]),
        seed=st.integers(0, 2**64 - 1),
    )
    def start(self, rows: int, bits: int, bucket: int, seed: int) -> None:
        self.filter = CuckooFilter(rows, bits, bucket, seed)
        self.model: Counter[int] = Counter()

    @rule(values=st.lists(st.integers(0, 60), max_size=40))
    def insert(self, values: list[int]) -> None:
        self.filter.insert(as_hashes(values))
        self.model.update(values)

    @rule(count=st.integers(1, 400), first=st.integers(0, 2**40))
    def insert_many(self, count: int, first: int) -> None:
        values = range(first, first + count)
        self.filter.insert(as_hashes(list(values)))
        self.model.update(values)

    @rule(data=st.data(), share=st.floats(0, 1))
    def delete_some(self, data: st.DataObject, share: float) -> None:
        present = sorted(self.model.elements())
        order = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(len(present))
        chosen = [present[i] for i in order[: int(share * len(present))]]
        assert self.filter.delete(as_hashes(chosen)).all()
        self.model.subtract(chosen)
        self.model = +self.model

    @rule(values=st.lists(st.integers(100, 2**50), max_size=20))
    def delete_absent(self, values: list[int]) -> None:
        absent = [v for v in values if v not in self.model]
        certain = [v for v in absent if not self.filter.contains(as_hashes([v]))[0]]
        before = self.filter.to_bytes()
        assert not self.filter.delete(as_hashes(certain)).any()
        assert self.filter.to_bytes() == before

    @rule()
    def serialise(self) -> None:
        stored = self.filter.to_bytes()
        again = CuckooFilter.from_bytes(stored)
        assert again.to_bytes() == stored
        assert again.load_factors == self.filter.load_factors
        self.filter = again

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.filter) == self.model.total()
        assert self.filter.contains(as_hashes(list(self.model))).all()
        assert implied(self.filter) <= self.filter.false_positive_bound() + 1e-12


TestAgainstCounter = AgainstCounter.TestCase
TestAgainstCounter.settings = settings(max_examples=60, stateful_step_count=20, deadline=None, derandomize=True)
TestAgainstCounter.pytestmark = [pytest.mark.slow]


@pytest.mark.parametrize(("bits", "bucket"), [(4, 4), (8, 4), (12, 4), (13, 4), (16, 4), (12, 2), (20, 4), (9, 8)])
def test_false_positives_stay_under_the_bound(bits: int, bucket: int) -> None:
    """Oracle: 10 seeds, filled to the expected rows; one-sided binomial margin of four sigma on the sum of them."""
    bound, wrong, lookups = 0.0, 0, 0
    for seed in range(10):
        one = CuckooFilter(20_000, bits, bucket, seed)
        one.insert(random_hashes(20_000, seed))
        assert len(one.load_factors) == 1
        bound = one.false_positive_bound()
        assert bound == 2 * bucket / 2**bits
        wrong += int(one.contains(ABSENT).sum())
        lookups += ABSENT.size
        assert implied(one) <= bound
    assert wrong / lookups <= bound + 4 * (bound * (1 - bound) / lookups) ** 0.5
    estimate = implied(one)
    assert wrong / lookups >= 0.5 * estimate, "fewer than the fill implies: does contains look at both buckets?"


def test_false_positives_of_a_full_and_of_a_chained_filter() -> None:
    for rows, tables in ((32_000, 1), (90_000, 3)):
        one = CuckooFilter(20_000, 8, 4, seed=5)
        one.insert(random_hashes(rows, 6)[: 31_100 if tables == 1 else rows])
        assert len(one.load_factors) == tables
        bound = one.false_positive_bound()
        assert bound == tables * 8 / 256
        assert one.contains(ABSENT).mean() <= bound + 4 * (bound / ABSENT.size) ** 0.5


@pytest.mark.parametrize("rows", [3_800, 15_500, 120_000, 450_000])
@pytest.mark.parametrize("bits", [12, 16])
def test_a_bucket_of_four_is_filled_to_95_percent(rows: int, bits: int) -> None:
    """Filled until the first insert fails, whatever the table's size."""
    for seed in range(3):
        one = CuckooFilter(rows, bits, 4, seed)
        hashes = random_hashes(3 * rows, seed + 50)
        one.insert(hashes[:rows])
        assert len(one.load_factors) == 1, "the expected rows must fit"
        one.insert(hashes[rows:])
        assert len(one.load_factors) > 1
        assert one.load_factors[0] >= 0.95
        assert one.contains(hashes).all()


def test_number_of_buckets_need_not_be_a_power_of_two() -> None:
    sizes = [size_for(rows, 0.01).buckets for rows in range(100_000, 1_000_000, 50_000)]
    assert sum(size & (size - 1) != 0 for size in sizes) > 10
    assert all(rows / (4 * size) > 0.8 for rows, size in zip(range(100_000, 1_000_000, 50_000), sizes, strict=True))


@pytest.mark.parametrize(("rate", "bits"), [(0.01, 12), (0.002, 12), (0.001, 13), (1e-6, 23)])
def test_sizing_meets_the_stated_rate(rate: float, bits: int) -> None:
    sizing = size_for(50_000, rate)
    assert sizing.fingerprint_bits == bits and sizing.false_positive_bound <= rate
    one = CuckooFilter(50_000, sizing.fingerprint_bits, sizing.bucket)
    assert (one.size_bytes - sizing.bytes) < 1_000
    one.insert(random_hashes(50_000, 1))
    assert one.false_positive_bound() == sizing.false_positive_bound
    assert one.contains(ABSENT).mean() <= rate + 4 * (rate / ABSENT.size) ** 0.5


def test_a_rate_no_fingerprint_meets_is_refused() -> None:
    with pytest.raises(ValueError, match="lower bucket"):
        size_for(10, 1e-10)


@pytest.mark.parametrize("copies", [2, 3, 9, 100])
@pytest.mark.parametrize("bucket", [1, 2, 4, 8])
def test_copies_beyond_two_buckets_are_counted(copies: int, bucket: int) -> None:
    hashes = np.repeat(random_hashes(2_000, copies), copies)
    np.random.default_rng(0).shuffle(hashes)
    one = CuckooFilter(hashes.size, 16, bucket)
    one.insert(hashes)
    assert len(one) == hashes.size
    distinct = np.unique(hashes)
    for left in range(copies - 1, -1, -1):
        assert one.contains(distinct).all()
        assert one.delete(distinct).all()
        assert len(one) == left * distinct.size
    assert not one.contains(distinct).any()


def test_deletes_from_a_chain_lose_no_class_mate() -> None:
    """Four-bit fingerprints, five tables: elements of one class everywhere; oracle after every batch of deletes."""
    hashes = random_hashes(4_000, 3)
    one = CuckooFilter(200, 4, 4)
    one.insert(hashes)
    assert len(one.load_factors) >= 4
    order = np.random.default_rng(4).permutation(hashes.size)
    for cut in range(0, hashes.size, 100):
        assert one.delete(hashes[order[cut : cut + 100]]).all()
        assert one.contains(hashes[order[cut + 100 :]]).all()
    assert len(one) == 0 and len(one.load_factors) == 1
    assert not one.contains(hashes).any()


def test_apparent_members_can_be_deleted_absent_ones_not() -> None:
    one = CuckooFilter(1_000, 4, 4)
    one.insert(random_hashes(900, 1))
    apparent = one.contains(ABSENT[:1_000])
    assert 0 < apparent.sum() < 1_000
    removed = one.delete(ABSENT[:1_000])
    assert not removed[~apparent].any() and removed.any()
    assert len(one) == 900 - removed.sum()


@given(st.lists(st.integers(0, 2**64 - 1), max_size=300), st.integers(0, 5), st.integers(0, 300))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_answers_do_not_depend_on_order_or_batches(values: list[int], shuffle: int, cut: int) -> None:
    """Differential: as long as nothing is chained, answers are those of the multiset."""
    hashes = as_hashes(values)
    other = hashes[np.random.default_rng(shuffle).permutation(hashes.size)]
    one, two = CuckooFilter(400, 6, 4), CuckooFilter(400, 6, 4)
    one.insert(hashes)
    two.insert(other[:cut])
    two.insert(other[cut:])
    assert len(one.load_factors) == len(two.load_factors) == 1
    assert np.array_equal(one.contains(ABSENT[:5_000]), two.contains(ABSENT[:5_000]))


def test_a_failed_walk_leaves_the_table_as_it_was() -> None:
    one = CuckooFilter(100, 12, 4)
    hashes = random_hashes(2_000, 8)
    for n in range(hashes.size):
        before = np.sort(one._tables[0].cells.ravel())
        one.insert(hashes[n : n + 1])
        if len(one.load_factors) > 1:
            break
    assert np.array_equal(np.sort(one._tables[0].cells.ravel()), before)
    assert one.contains(hashes[: n + 1]).all()


@pytest.mark.parametrize("damage", ["magic", "version", "cut", "bit", "empty"])
def test_other_bytes_are_refused(damage: str) -> None:
    one = CuckooFilter(100)
    one.insert(random_hashes(100, 1))
    stored = bytearray(one.to_bytes())
    if damage == "magic":
        stored[0] ^= 1
    elif damage == "version":
        stored[4] += 1
    elif damage == "bit":
        stored[len(stored) // 2] ^= 8
    else:
        stored = stored[:-5] if damage == "cut" else stored[:0]
    with pytest.raises(ValueError, match="cuckoo filter"):
        CuckooFilter.from_bytes(bytes(stored))


def test_a_restored_filter_goes_on_as_the_original() -> None:
    one = CuckooFilter(1_000, 12, 4, seed=9)
    one.insert(random_hashes(950, 1))
    two = CuckooFilter.from_bytes(one.to_bytes())
    for filter_ in (one, two):
        filter_.insert(random_hashes(3_000, 2))
        filter_.delete(random_hashes(3_000, 2)[:500])
    assert one.to_bytes() == two.to_bytes()


def test_inputs_are_checked_and_not_changed() -> None:
    for rows, bits, bucket in ((-1, 12, 4), (1, 0, 4), (1, 33, 4), (1, 12, 0), (1, 12, 65)):
        with pytest.raises(ValueError, match="want rows"):
            CuckooFilter(rows, bits, bucket)
    one = CuckooFilter(10)
    with pytest.raises(ValueError, match="uint64"):
        one.insert(np.arange(3))
    hashes = random_hashes(20, 1)
    copy = hashes.copy()
    hashes.flags.writeable = False
    one.insert(hashes)
    one.insert(np.repeat(hashes, 2)[::2])
    assert one.contains(hashes[::-1]).all() and one.delete(hashes).all()
    assert np.array_equal(hashes, copy)
    one.insert(hashes[:0])
    assert one.contains(hashes[:0]).shape == (0,) and len(one) == 20


def test_bloom_filter_keeps_everything_under_its_rate_and_refuses_deletes() -> None:
    for rate in (0.1, 0.01, 0.002):
        one = BloomFilter(20_000, rate, seed=3)
        hashes = random_hashes(20_000, 2)
        one.insert(hashes)
        assert one.contains(hashes).all()
        assert one.contains(ABSENT).mean() <= 1.15 * rate
        assert abs(one.false_positive_bound() / rate - 1) < 0.15
        again = BloomFilter.from_bytes(one.to_bytes())
        assert again.to_bytes() == one.to_bytes() and np.array_equal(again.contains(ABSENT), one.contains(ABSENT))
    with pytest.raises(TypeError, match="cannot delete"):
        one.delete(hashes)
    with pytest.raises(ValueError, match="Bloom"):
        BloomFilter.from_bytes(one.to_bytes()[:-1])
    with pytest.raises(ValueError, match="rate"):
        BloomFilter(10, 0.0)


def test_a_table_whose_cells_hold_one_fingerprint_less_is_never_quite_full() -> None:
    """255 fingerprints, not 256: at most 255/256 of the cells are used, which keeps the bound 2b / 2**f."""
    one = CuckooFilter(10, 8, 64)
    one.insert(random_hashes(2_000, 1))
    assert len(one.load_factors) > 1
    assert max(one.load_factors) <= 255 / 256
