"""Hashes on their way between tasks: packed to few bits and back, and split into shards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from latecomer.core.arrays.packed_hashes import HASH_BITS, bits_needed, pack, packed_size, shard_of, unpack


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9), max_size=50), st.sampled_from([1, 7, 8, 40, 41, 63, 64]))
@example([2**64 - 1], 64)
@example([], 64)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_packed_hashes_are_unpacked(values: list[int], bits: int) -> None:
    hashes = np.unique(np.array(values, np.uint64) >> np.uint64(64 - bits))
    data = pack(hashes, bits)
    assert len(data) == packed_size(hashes.size, bits)
    again = unpack(data)
    assert again.dtype == np.uint64 and again.tolist() == hashes.tolist()
    for wrong in (data + b"x", data[:-1], data[:4], b""):
        with pytest.raises(ValueError, match="packed"):
            unpack(wrong)


def test_another_number_of_hashes_than_the_header_says_is_refused() -> None:
    data = bytearray(pack(np.arange(5, dtype=np.uint64), 40))
    data[-1] ^= 1
    with pytest.raises(ValueError, match="another number"):
        unpack(bytes(data))


@pytest.mark.parametrize("bits", [40, 54, 64])
def test_packed_hashes_take_two_bits_more_than_they_must(bits: int) -> None:
    """Elias and Fano's bound: at most ``2 + log2(2**bits / n)`` bits each, rounded up."""
    for count in (1 << 10, (1 << 16) - 1, 1 << 16, 100_000):
        hashes = np.sort(np.random.default_rng(1).integers(0, 2**bits - 1, count, dtype=np.uint64))
        assert (len(pack(hashes, bits)) - 7) * 8 / count <= 2 + bits - np.log2(count)


def test_bits_are_enough_for_the_rate() -> None:
    """Elements that share their bits with one of `rows` others add a 64th to the rate, at most."""
    for rows in (0, 1, 1_000, 1 << 18):
        for error in (0.5, 1e-3, 2e-9):
            bits = bits_needed(rows, error)
            assert HASH_BITS <= bits <= 64 and rows / 2**bits <= error / 64
    assert bits_needed(1 << 18, 1e-3) == HASH_BITS < bits_needed(1 << 18, 2e-9)
    assert bits_needed(1 << 40, 1e-12) == 64


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 1), st.integers(0, 2**64 - 1)), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_shards_are_a_function_of_stream_window_and_hash(rows: list[tuple[int, int, int]]) -> None:
    shards = {(0, 0): 3, (1, -1): 2**31}
    place, window = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    hashes = np.array([row[2] for row in rows], np.uint64)
    want = [h % shards.get((p, m), 1) for p, m, h in rows]
    assert shard_of(place, window, hashes, shards).tolist() == want
    for stream in range(3):
        chosen = place == stream
        assert shard_of(stream, window[chosen], hashes[chosen], shards).tolist() == np.array(want)[chosen].tolist()
