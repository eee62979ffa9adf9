"""XXH64 of Arrow columns, bit for bit equal to Spark's ``xxhash64(column)``, and the constants that mix bits elsewhere.

A filter built here and a hash column computed by the engine must name an element by the same 64 bits: one differing bit
is a false negative.

* string, binary: XXH64 of the bytes, seed 42.
* bigint, timestamp: XXH64 of the eight little-endian bytes. Every integer type is widened to int64 first, so a caller
  on the engine's side casts to bigint (the engine hashes a plain ``int`` as four bytes, another value). A timestamp
  counts microseconds.
* null: the seed itself, as the engine gives; `validity` tells it from a value that happens to hash there.

Ordering: none needed; row by row.
Cost: O(bytes) time, 8 bytes per row of result; no per-row Python.
First published: XXH64, Y. Collet, 2014.

References
----------
Y. Collet, xxHash fast digest algorithm, specification 0.1.1 (XXH64; the steps in the comments are its steps).
A. Appleby, MurmurHash3, 2011 (`mix`, its 64-bit finalizer). D. Knuth, The Art of Computer Programming 3, section 6.4
(`GOLDEN_RATIO`, multiplicative hashing).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

SEED = 42
"""The seed of the engine's ``xxhash64``."""

GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio, as an odd number: its multiples spread evenly over 64 bits."""
MURMUR_1 = np.uint64(0xFF51AFD7ED558CCD)
MURMUR_2 = np.uint64(0xC4CEB9FE1A85EC53)
"""The two multipliers of MurmurHash3's 64-bit finalizer."""

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_LOW = np.uint64(0xFFFFFFFF)


@njit(cache=True)
def mix(word):  # type: ignore[no-untyped-def]
    """Return MurmurHash3's 64-bit finalizer of a uint64: each bit of the result depends on each bit of `word`."""
    word = (word ^ (word >> np.uint64(33))) * MURMUR_1
    word = (word ^ (word >> np.uint64(33))) * MURMUR_2
    return word ^ (word >> np.uint64(33))


@njit(cache=True)
def _rotl(x, r):  # type: ignore[no-untyped-def]
    """Rotate `x` left by `r` bits, 0 < r < 64."""
    return (x << np.uint64(r)) | (x >> np.uint64(64 - r))


@njit(cache=True)
def _round(acc, lane):  # type: ignore[no-untyped-def]
    """Add one lane of eight bytes to an accumulator."""
    return _rotl(acc + lane * _P2, 31) * _P1


@njit(cache=True)
def _merge(acc, lane):  # type: ignore[no-untyped-def]
    """Fold one of the four accumulators into the result."""
    return (acc ^ _round(np.uint64(0), lane)) * _P1 + _P4


@njit(cache=True)
def _avalanche(h):  # type: ignore[no-untyped-def]
    """Return the hash: step 6, final mix."""
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


@njit(cache=True)
def _word(data, at, count):  # type: ignore[no-untyped-def]
    """Read `count` bytes from `at` as a little-endian unsigned integer."""
    word = np.uint64(0)
    for i in range(count):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@njit(cache=True)
def _hash_bytes(data, at, end, seed):  # type: ignore[no-untyped-def]
    """Return XXH64 of ``data[at:end]``."""
    length = end - at
    if length >= 32:
        # Step 1: initialize the four accumulators. Step 2: process stripes of 32 bytes.
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while at + 32 <= end:
            a = _round(a, _word(data, at, 8))
            b = _round(b, _word(data, at + 8, 8))
            c = _round(c, _word(data, at + 16, 8))
            d = _round(d, _word(data, at + 24, 8))
            at += 32
        # Step 3: the accumulators converge.
        h = _rotl(a, 1) + _rotl(b, 7) + _rotl(c, 12) + _rotl(d, 18)
        h = _merge(_merge(_merge(_merge(h, a), b), c), d)
    else:
        h = seed + _P5
    # Step 4: add the input's length. Step 5: consume the remaining input, 8 bytes, 4 bytes and 1 byte at a time.
    h += np.uint64(length)
    while at + 8 <= end:
        h = _rotl(h ^ _round(np.uint64(0), _word(data, at, 8)), 27) * _P1 + _P4
        at += 8
    if at + 4 <= end:
        h = _rotl(h ^ (_word(data, at, 4) * _P1), 23) * _P2 + _P3
        at += 4
    while at < end:
        h = _rotl(h ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += 1
    return _avalanche(h)


@njit(cache=True)
def _hash_ragged(data, offsets, seed, out):  # type: ignore[no-untyped-def]
    """Write XXH64 of each slice between consecutive offsets to `out`."""
    for i in range(out.size):
        out[i] = _hash_bytes(data, np.int64(offsets[i]), np.int64(offsets[i + 1]), seed)


@njit(cache=True)
def _hash_longs(values, seed, out):  # type: ignore[no-untyped-def]
    """Write XXH64 of the eight little-endian bytes of each value to `out`."""
    base = seed + _P5 + np.uint64(8)
    for i in range(out.size):
        h = base ^ _round(np.uint64(0), values[i])
        out[i] = _avalanche(_rotl(h, 27) * _P1 + _P4)


def xxh64(data: bytes, seed: int = 0) -> int:
    """Return XXH64 of one byte string, for checks against published vectors.

    Parameters
    ----------
    data : bytes
        Any length.
    seed : int
        0 <= seed < 2**64.
    """
    return int(_hash_bytes(np.frombuffer(data or b"\0", np.uint8), 0, len(data), np.uint64(seed)))


def hash_longs(values: NDArray[np.int64], seed: int = SEED) -> NDArray[np.uint64]:
    """Hash int64 values as the engine hashes a bigint, uint64[n]."""
    out = np.empty(values.size, np.uint64)
    _hash_longs(np.ascontiguousarray(values, np.int64).view(np.uint64), np.uint64(seed), out)
    return out


def validity(array: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return the rows that are not null, bool[n]."""
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


def hash_values(array: pa.Array | pa.ChunkedArray, seed: int = SEED) -> NDArray[np.uint64]:
    """Hash each value of a column; a null hashes to `seed` (see `validity`).

    Parameters
    ----------
    array : pyarrow.Array or pyarrow.ChunkedArray
        Strings, binary, integers or timestamps, dictionary-encoded or not, sliced or not; n rows.
    seed : int
        0 <= seed < 2**64; the engine's is 42.

    Returns
    -------
    uint64[n]

    Raises
    ------
    TypeError
        If the type has no hash here (float, decimal, boolean, date, nested): cast it to string or to an integer, on
        the engine's side too.
    pyarrow.ArrowInvalid
        If an unsigned value does not fit int64, or a timestamp is finer than a microsecond.
    """
    if isinstance(array, pa.ChunkedArray):
        parts = [hash_values(chunk, seed) for chunk in array.chunks]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)
    kind = array.type
    if pa.types.is_dictionary(kind):
        return hash_values(array.dictionary_decode(), seed)
    if pa.types.is_null(kind):
        return np.full(len(array), seed, np.uint64)
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        wide = array.cast(pa.timestamp("us", kind.tz)) if pa.types.is_timestamp(kind) else array
        wide = wide.cast(pa.int64())
        values = np.frombuffer(wide.buffers()[1] or b"", np.int64)[wide.offset : wide.offset + len(wide)]
        out = hash_longs(values, seed)
    else:
        out = _hash_strings(array, seed)
    if array.null_count:
        out[~validity(array)] = seed
    return out


def _hash_strings(array: pa.Array, seed: int) -> NDArray[np.uint64]:
    kind = array.type
    wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    if not (wide or pa.types.is_string(kind) or pa.types.is_binary(kind)):
        if not (pa.types.is_fixed_size_binary(kind) or str(kind).endswith("_view")):
            raise TypeError(f"a column of type {kind} has no hash here: cast it to string or to an integer")
        array, wide = array.cast(pa.large_binary()), True
    out = np.empty(len(array), np.uint64)
    _, offsets, data = array.buffers()
    if len(array):
        all_offsets = np.frombuffer(offsets, np.int64 if wide else np.int32)
        content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
        _hash_ragged(content, all_offsets[array.offset : array.offset + len(array) + 1], np.uint64(seed), out)
    return out
