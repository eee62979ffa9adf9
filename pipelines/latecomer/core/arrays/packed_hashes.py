"""Hashes on their way between tasks: cut to the bits that a filter needs, packed to few bytes, and split into shards.

Ordering: `pack` asks for ascending hashes. Cost: O(n) to pack, to unpack and to assign shards.

References
----------
P. Elias, Efficient storage and retrieval by content and address of static files, Journal of the ACM 21, 1974. R. M.
Fano, On the number of bits required to implement an associative memory, 1971. (The code of `pack`.)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Shards = Mapping[tuple[int, int], int]
"""Number of shards by (place of the stream, window number), for windows with more than one."""
HASH_BITS = 40
"""Least number of bits to which a hash is cut."""
_HEAD = struct.Struct("<IB")


def shard_of(
    places: int | NDArray[np.integer], windows: NDArray[np.int64], hashes: NDArray[np.uint64], shards: Shards
) -> NDArray[np.int64]:
    """Return the shard of each hash, int64[n]: the hash modulo the number of shards of its window.

    Parameters
    ----------
    places
        Place of the stream, one number for all hashes or int[n].
    windows
        Window number, int64[n].
    hashes
        uint64[n].
    shards
        Numbers of shards; a window that is not named has one.
    """
    shard = np.zeros(hashes.size, np.int64)
    for (place, window), count in shards.items():
        rows = np.flatnonzero((windows == window) & (places == place))
        shard[rows] = hashes[rows] % np.uint64(count)
    return shard


def bits_needed(rows: int, error: float) -> int:
    """Return how many leading bits of a hash a filter of `rows` and of false-positive rate `error` needs, 40 to 64.

    Elements that share these bits add less than ``error / 64`` to the rate. Among 2**18 elements, 0.03 pairs share 40
    bits on average.
    """
    return min(64, max(HASH_BITS, math.ceil(math.log2(max(1, rows) / error)) + 6))


def _low_bits(count: int, bits: int) -> int:
    """Return how many low bits of each of `count` hashes are written unchanged."""
    return max(0, bits - count.bit_length())


def packed_size(count: int, bits: int) -> int:
    """Return the bytes that `pack` writes for `count` hashes: about ``(bits - log2(count) + 2) / 8`` each."""
    low = _low_bits(count, bits)
    return _HEAD.size + -(-count * low // 8) + -(-(count + (1 << bits - low)) // 8)


def pack(hashes: NDArray[np.uint64], bits: int) -> bytes:
    """Write ascending hashes (uint64[n], each below ``2**bits``) in Elias and Fano's code, `packed_size` bytes.

    The low bits are written unchanged, the high bits as a bit map: bit ``high + i`` is set for hash number i.
    """
    count = hashes.size
    low = _low_bits(count, bits)
    narrow = hashes.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : -(-low // 8)]
    lows = np.unpackbits(narrow, axis=1, count=low, bitorder="little") if low else np.empty(0, np.uint8)
    above = np.zeros(count + (1 << bits - low), np.uint8)
    above[(hashes >> np.uint64(low)).astype(np.int64) + np.arange(count)] = 1
    return _HEAD.pack(count, bits) + np.packbits(lows).tobytes() + np.packbits(above).tobytes()


def unpack(data: bytes) -> NDArray[np.uint64]:
    """Return the hashes that `pack` wrote, uint64[n].

    Raises
    ------
    ValueError
        If `pack` does not write such bytes.
    """
    count, bits = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (0, 65)
    if bits > 64 or len(data) != packed_size(count, bits):
        raise ValueError("these bytes are no packed hashes, or were cut short")
    low = _low_bits(count, bits)
    split = _HEAD.size + -(-count * low // 8)
    highs = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8, offset=split)))
    if highs.size != count:
        raise ValueError("these bytes are no packed hashes: another number of them than the header says")
    hashes = (highs - np.arange(count)).astype(np.uint64) << np.uint64(low)
    if low and count:
        lows = np.unpackbits(np.frombuffer(data, np.uint8, split - _HEAD.size, _HEAD.size), count=count * low)
        wide = np.zeros((count, 8), np.uint8)
        wide[:, : -(-low // 8)] = np.packbits(lows.reshape(count, low), axis=1, bitorder="little")
        hashes |= wide.view("<u8").ravel()
    return hashes
