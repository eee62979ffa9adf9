"""XXH64 of Arrow columns, bit for bit what Spark's ``xxhash64(column)`` gives.

What depends on it: a filter built here and a hash column computed by the engine must name an element by the same 64
bits; one differing bit is a false negative.

* string, binary: XXH64 of the bytes, seed 42.
* bigint, timestamp: XXH64 of the eight little-endian bytes. Every integer type is widened to int64 first, so a caller
  on the engine's side casts to bigint (the engine hashes a plain ``int`` as four bytes, another value). A timestamp
  counts microseconds.
* null: the seed itself, as the engine gives; `validity` tells it from a value that happens to hash there.

On their way between tasks hashes are cut to `enough_bits`, sorted and packed (`pack`, `unpack`); `shard_of` splits the many of one window.

Card
----
ordering : none needed; row by row
cost : O(bytes) time, 8 bytes per row of result; no per-row Python
first published : XXH64, Y. Collet, 2014

References
----------
Y. Collet, xxHash fast digest algorithm, specification 0.1.1 (XXH64).
P. Elias, Efficient storage and retrieval by content and address of static files, Journal of the ACM 21, 1974. R. M. Fano, On the
number of bits required to implement an associative memory, 1971. (The code of `pack`.)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

Shards = Mapping[tuple[int, int], int]
"""Number of shards by (place of the stream, window number), where there is more than one."""
SEED = 42
"""The seed of the engine's ``xxhash64``."""
HASH_BITS = 40
"""Bits of a hash that always travel."""
_HEAD = struct.Struct("<IB")

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_LOW = np.uint64(0xFFFFFFFF)


@njit(cache=True)
def _rotl(x, r):  # type: ignore[no-untyped-def]
    """`x` rotated left by `r` bits, 0 < r < 64."""
    return (x << np.uint64(r)) | (x >> np.uint64(64 - r))


@njit(cache=True)
def _round(acc, lane):  # type: ignore[no-untyped-def]
    """One accumulator step."""
    return _rotl(acc + lane * _P2, 31) * _P1


@njit(cache=True)
def _merge(acc, lane):  # type: ignore[no-untyped-def]
    """Fold one of the four accumulators into the result."""
    return (acc ^ _round(np.uint64(0), lane)) * _P1 + _P4


@njit(cache=True)
def _avalanche(h):  # type: ignore[no-untyped-def]
    """Final mixing."""
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


@njit(cache=True)
def _word(data, at, count):  # type: ignore[no-untyped-def]
    """`count` bytes from `at` as a little-endian unsigned integer."""
    word = np.uint64(0)
    for i in range(count):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@njit(cache=True)
def _hash_bytes(data, at, end, seed):  # type: ignore[no-untyped-def]
    """XXH64 of ``data[at:end]``."""
    length = end - at
    if length >= 32:
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while at + 32 <= end:
            a = _round(a, _word(data, at, 8))
            b = _round(b, _word(data, at + 8, 8))
            c = _round(c, _word(data, at + 16, 8))
            d = _round(d, _word(data, at + 24, 8))
            at += 32
        h = _rotl(a, 1) + _rotl(b, 7) + _rotl(c, 12) + _rotl(d, 18)
        h = _merge(_merge(_merge(_merge(h, a), b), c), d)
    else:
        h = seed + _P5
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
    """XXH64 of each slice between consecutive offsets."""
    for i in range(out.size):
        out[i] = _hash_bytes(data, np.int64(offsets[i]), np.int64(offsets[i + 1]), seed)


@njit(cache=True)
def _hash_longs(values, seed, out):  # type: ignore[no-untyped-def]
    """XXH64 of the eight little-endian bytes of each value."""
    base = seed + _P5 + np.uint64(8)
    for i in range(out.size):
        h = base ^ _round(np.uint64(0), values[i])
        out[i] = _avalanche(_rotl(h, 27) * _P1 + _P4)


def xxh64(data: bytes, seed: int = 0) -> int:
    """XXH64 of one byte string, for checks against published vectors.

    Parameters
    ----------
    data : bytes
        Any length.
    seed : int
        0 <= seed < 2**64.
    """
    return int(_hash_bytes(np.frombuffer(data or b"\0", np.uint8), 0, len(data), np.uint64(seed)))


def hash_longs(values: NDArray[np.int64], seed: int = SEED) -> NDArray[np.uint64]:
    """XXH64 of int64 values, as the engine hashes a bigint. Shape of `values`."""
    out = np.empty(values.size, np.uint64)
    _hash_longs(np.ascontiguousarray(values, np.int64).view(np.uint64), np.uint64(seed), out)
    return out


def validity(array: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """Which rows are not null, bool[n]."""
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


def hash_values(array: pa.Array | pa.ChunkedArray, seed: int = SEED) -> NDArray[np.uint64]:
    """Hash each value of a column; rows that are null get `seed` (see `validity`).

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
        The type has no hash here (float, decimal, boolean, date, nested): cast it to string or to an integer, on the
        engine's side too.
    pyarrow.ArrowInvalid
        An unsigned value does not fit int64, or a timestamp is finer than a microsecond.
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


def shard_of(
    places: int | NDArray[np.integer], windows: NDArray[np.int64], hashes: NDArray[np.uint64], shards: Shards
) -> NDArray[np.int64]:
    """Shard of each hash, int64[n]: the hash modulo its window's number of shards; `places` is one number or int[n]."""
    found = np.zeros(hashes.size, np.int64)
    for (place, window), count in shards.items():
        own = np.flatnonzero((windows == window) & (places == place))
        found[own] = hashes[own] % np.uint64(count)
    return found


def enough_bits(rows: int, error: float) -> int:
    """Leading bits of a hash that a filter of `rows` and a false-positive rate of `error` needs: 40 to 64.

    Elements that share these bits add less than ``error / 64`` to the rate; 40 bits tell 2**18 elements apart but for 0.03 pairs
    on average.
    """
    return min(64, max(HASH_BITS, math.ceil(math.log2(max(1, rows) / error)) + 6))


def _low_bits(count: int, bits: int) -> int:
    return max(0, bits - count.bit_length())


def packed_size(count: int, bits: int) -> int:
    """Bytes that `pack` writes for `count` hashes of `bits` bits: about ``(bits - log2(count) + 2) / 8`` each."""
    low = _low_bits(count, bits)
    return _HEAD.size + -(-count * low // 8) + -(-(count + (1 << bits - low)) // 8)


def pack(hashes: NDArray[np.uint64], bits: int) -> bytes:
    """Ascending hashes (uint64[n], each below ``2**bits``) in Elias and Fano's code; `packed_size` bytes.

    The low bits are written as they are, the high ones as a bit map: bit ``high + i`` is set for hash number i.
    """
    count = hashes.size
    low = _low_bits(count, bits)
    narrow = hashes.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : -(-low // 8)]
    lows = np.unpackbits(narrow, axis=1, count=low, bitorder="little") if low else np.empty(0, np.uint8)
    above = np.zeros(count + (1 << bits - low), np.uint8)
    above[(hashes >> np.uint64(low)).astype(np.int64) + np.arange(count)] = 1
    return _HEAD.pack(count, bits) + np.packbits(lows).tobytes() + np.packbits(above).tobytes()


def unpack(data: bytes) -> NDArray[np.uint64]:
    """What `pack` wrote, uint64[n]; ValueError if these bytes are none that it writes."""
    count, bits = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (0, 65)
    if bits > 64 or len(data) != packed_size(count, bits):
        raise ValueError("these bytes are no packed hashes, or were cut short")
    low = _low_bits(count, bits)
    split = _HEAD.size + -(-count * low // 8)
    highs = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8, offset=split)))
    if highs.size != count:
        raise ValueError("these bytes are no packed hashes: another number of them than was said")
    found = (highs - np.arange(count)).astype(np.uint64) << np.uint64(low)
    if low and count:
        lows = np.unpackbits(np.frombuffer(data, np.uint8, split - _HEAD.size, _HEAD.size), count=count * low)
        wide = np.zeros((count, 8), np.uint8)
        wide[:, : -(-low // 8)] = np.packbits(lows.reshape(count, low), axis=1, bitorder="little")
        found |= wide.view("<u8").ravel()
    return found
