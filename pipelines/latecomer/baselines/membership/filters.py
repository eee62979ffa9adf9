"""Rivals of the multiple cuckoo filter: Bloom filters, one filter for all windows, exact sets.

All have the interface of :class:`~latecomer.baselines.membership.multi_cuckoo.MultiCuckoo`; their candidates are
supersets of the same result, so that confirmed answers are equal.

* `multi_bloom`: a Bloom filter per (stream, window). Smaller at a high false-positive rate; it cannot delete.
* `OneFilter`: one cuckoo filter per stream for all windows. One insert per row and one lookup per element, but an
  element passes for a window if it occurred in *any* window held: its false positives have no bound.
* `ExactSet`: sorted hashes; the yardstick for memory.

References
----------
B. H. Bloom, Space/time trade-offs in hash coding with allowable errors, CACM 1970. A. Kirsch, M. Mitzenmacher, Less
hashing, same performance, ESA 2006 (k probes from two hashes).
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.baselines.membership.multi_cuckoo import MultiCuckoo
from latecomer.core.arrays.xxhash import mix
from latecomer.core.membership.cuckoo import CuckooFilter
from latecomer.core.time import NEVER
from latecomer.core.windows.grid import Grid

UInt64Array = NDArray[np.uint64]
Int64Array = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_HEADER = struct.Struct("<4sHHQQQQd")
_MAGIC, _VERSION = b"LCBF", 1
_S32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@njit(cache=True)
def _probe(hashed, seed):  # type: ignore[no-untyped-def]
    """Return two 32-bit hashes, the second odd."""
    x = mix(hashed ^ seed)
    return x >> _S32, (x & _LOW) | np.uint64(1)


@njit(cache=True)
def _bloom(words, size, k, seed, hashes, out, write):  # type: ignore[no-untyped-def]
    """Set (`write`) or test the k bits of each hash."""
    for n in range(hashes.size):
        a, b = _probe(hashes[n], seed)
        present = True
        for _ in range(k):
            bit = ((a & _LOW) * size) >> _S32
            mask = np.uint64(1) << (bit & np.uint64(63))
            if write:
                words[bit >> np.uint64(6)] |= mask
            elif not words[bit >> np.uint64(6)] & mask:
                present = False
                break
            a += b
        if not write:
            out[n] = present


class BloomFilter:
    """A Bloom filter over 64-bit hashes.

    Parameters
    ----------
    expected_rows : int
        Distinct hashes for which it is sized.
    false_positive_rate : float
        Rate at that fill, in (0, 1).
    seed : int
        Mixed into every hash.

    Raises
    ------
    ValueError
        If the rate is not in (0, 1), or more than 2**32 bits are needed.
    """

    def __init__(self, expected_rows: int, false_positive_rate: float = 2 * 4 / 2**12, seed: int = 0) -> None:
        if not 0 < false_positive_rate < 1:
            raise ValueError(f"false_positive_rate {false_positive_rate}: want a number in (0, 1)")
        self.rate, self.seed, self.rows = false_positive_rate, seed % 2**64, 0
        self.bits = max(64, math.ceil(-max(1, expected_rows) * math.log(false_positive_rate) / math.log(2) ** 2))
        if self.bits >= 1 << 32:
            raise ValueError(f"expected_rows {expected_rows} needs more than 2**32 bits: shard the elements")
        self.hashes = max(1, round(-math.log2(false_positive_rate)))
        self._words = np.zeros(-(-self.bits // 64), np.uint64)

    def insert(self, hashes: UInt64Array) -> None:
        """Insert uint64[n]."""
        _bloom(
            self._words, np.uint64(self.bits), self.hashes, np.uint64(self.seed), hashes, np.empty(0, np.bool_), True
        )
        self.rows += hashes.size

    def contains(self, hashes: UInt64Array) -> BoolArray:
        """Return whether each hash may be inside, bool[n]."""
        out = np.empty(hashes.size, np.bool_)
        _bloom(self._words, np.uint64(self.bits), self.hashes, np.uint64(self.seed), hashes, out, False)
        return out

    def delete(self, hashes: UInt64Array) -> BoolArray:
        """Raise TypeError: a bit may belong to several elements."""
        raise TypeError("a Bloom filter cannot delete: use a cuckoo filter, or rebuild")

    def __len__(self) -> int:
        return self.rows

    @property
    def size_bytes(self) -> int:
        """The memory of the bits, in bytes."""
        return self._words.nbytes

    def false_positive_bound(self) -> float:
        """Return the rate at the present fill: the share of set bits to the power of the number of hashes."""
        return float(np.bitwise_count(self._words).sum() / self.bits) ** self.hashes

    def to_bytes(self) -> bytes:
        """Return magic, version, bits and checksum."""
        head = _HEADER.pack(_MAGIC, _VERSION, self.hashes, self.bits, self.seed, self.rows, 0, self.rate)
        body = head + self._words.tobytes()
        return body + struct.pack("<I", zlib.crc32(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> BloomFilter:
        """Return the filter that `to_bytes` wrote; raise ValueError for other bytes."""
        if len(data) < _HEADER.size + 4 or data[:4] != _MAGIC:
            raise ValueError("these bytes are not a Bloom filter")
        _, version, hashes, bits, seed, rows, _, rate = _HEADER.unpack_from(data)
        if version != _VERSION or zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
            raise ValueError(f"a Bloom filter of version {version}, or damaged: rebuild it from the stored rows")
        made = cls(1, rate, seed)
        made.hashes, made.bits, made.rows = hashes, bits, rows
        made._words = np.frombuffer(data, np.uint64, -(-bits // 64), _HEADER.size).copy()
        return made


class ExactSet:
    """Sorted distinct hashes with the interface of a filter; only equal hashes are false positives."""

    def __init__(self, expected_rows: int = 0, seed: int = 0) -> None:
        self._sorted: UInt64Array = np.empty(0, np.uint64)

    def insert(self, hashes: UInt64Array) -> None:
        """Insert uint64[n]."""
        self._sorted = np.union1d(self._sorted, hashes)

    def contains(self, hashes: UInt64Array) -> BoolArray:
        """Return whether each hash is inside, bool[n]."""
        if not self._sorted.size:
            return np.zeros(hashes.size, np.bool_)
        at = np.minimum(np.searchsorted(self._sorted, hashes), self._sorted.size - 1)
        return np.asarray(self._sorted[at] == hashes, np.bool_)

    @property
    def size_bytes(self) -> int:
        """The memory: eight bytes per distinct hash."""
        return self._sorted.nbytes

    def false_positive_bound(self) -> float:
        """Return the probability that an absent element has the hash of an inserted one."""
        return self._sorted.size / 2.0**64

    def to_bytes(self) -> bytes:
        """Return the hashes."""
        return self._sorted.tobytes()


def multi_bloom(
    windows: Sequence[Grid],
    expected_rows: int | Sequence[int],
    false_positive_rate: float = 2 * 4 / 2**12,
    seed: int = 0,
) -> MultiCuckoo:
    """Return the query with a Bloom filter per (stream, window)."""
    return MultiCuckoo(
        windows, expected_rows, seed=seed, make_filter=lambda n, s: BloomFilter(n, false_positive_rate, s)
    )


def multi_exact(windows: Sequence[Grid]) -> MultiCuckoo:
    """Return the query with a set of hashes per (stream, window)."""
    return MultiCuckoo(windows, 0, make_filter=ExactSet)


class OneFilter:
    """One cuckoo filter per stream for all windows, with the interface of `MultiCuckoo`.

    Rows are deleted one by one once no open window of stream 0 can touch a window that holds them, so their hashes
    and event times are kept, 16 bytes a row.
    """

    def __init__(
        self,
        windows: Sequence[Grid],
        expected_rows: int | Sequence[int],
        fingerprint_bits: int = 12,
        bucket: int = 4,
        seed: int = 0,
    ) -> None:
        self.windows = tuple(windows)
        rows = [expected_rows] * len(self.windows) if isinstance(expected_rows, int) else list(expected_rows)
        self._filters = [CuckooFilter(n, fingerprint_bits, bucket, seed + i) for i, n in enumerate(rows)]
        self._times: list[Int64Array] = [np.empty(0, np.int64) for _ in rows]
        self._hashes: list[UInt64Array] = [np.empty(0, np.uint64) for _ in rows]
        self.watermark_us = NEVER

    def _expired_until(self, stream: int) -> int:
        """Return the event time at or before which rows are in no window that is still needed."""
        if self.watermark_us <= NEVER:
            return NEVER
        return self.watermark_us - self.windows[0].size_us - self.windows[stream].size_us

    def insert(self, stream: int, event_time_us: Int64Array, hashes: UInt64Array) -> BoolArray:
        """Insert rows of a stream; return which were late for every window that is still needed, bool[n]."""
        late = event_time_us <= self._expired_until(stream)
        self._filters[stream].insert(hashes[~late])
        self._times[stream] = np.concatenate([self._times[stream], event_time_us[~late]])
        self._hashes[stream] = np.concatenate([self._hashes[stream], hashes[~late]])
        return np.asarray(late, np.bool_)

    def expire(self, watermark_us: int) -> int:
        """Move the watermark forward and delete rows that no window needs; return how many."""
        self.watermark_us = max(self.watermark_us, watermark_us)
        total = 0
        for i, stream_filter in enumerate(self._filters):
            expired = self._times[i] <= self._expired_until(i)
            total += int(stream_filter.delete(self._hashes[i][expired]).sum())
            self._times[i], self._hashes[i] = self._times[i][~expired], self._hashes[i][~expired]
        return total

    def candidates_in(self, window_start_us: int, hashes: UInt64Array) -> BoolArray:
        """Return which elements every other stream may hold in any window; all elements if the window is closed."""
        mask = np.ones(hashes.size, np.bool_)
        if window_start_us + self.windows[0].size_us <= self.watermark_us:
            return mask
        for stream_filter in self._filters[1:]:
            mask[mask] = stream_filter.contains(hashes[mask])
        return mask

    def candidates(self, hashes: UInt64Array, event_time_us: Int64Array) -> BoolArray:
        """Return which rows of stream 0 may be results in at least one of their windows, bool[n]."""
        mask = np.ones(hashes.size, np.bool_)
        size, slide = self.windows[0].size_us, self.windows[0].slide_us
        first_end = (np.floor_divide(event_time_us - size, slide) + 1) * slide + size
        undecided = np.flatnonzero(first_end > self.watermark_us)
        for stream_filter in self._filters[1:]:
            answer = stream_filter.contains(hashes[undecided])
            mask[undecided[~answer]] = False
            undecided = undecided[answer]
        return mask

    @property
    def filters(self) -> int:
        """The number of filters held."""
        return len(self._filters)

    @property
    def size_bytes(self) -> int:
        """The memory of filters and kept rows, in bytes."""
        return sum(
            f.size_bytes + t.nbytes + h.nbytes for f, t, h in zip(self._filters, self._times, self._hashes, strict=True)
        )
