"""A cuckoo filter: an approximate multiset of 64-bit hashes with deletes, which never loses an inserted element.

For a membership query ``contains`` of an inserted element must be true: a false negative drops a result before anything
could confirm it. So a filter that cannot place a fingerprint chains a further table, and never drops.

*Classes.* A hash is reduced to its class: a fingerprint of ``f`` bits and the unordered pair of buckets ``i1``,
``i2 = i1 xor hash(fingerprint)``. Elements of one class cannot be told apart. The answer of one table depends on the
multiset of classes alone, not on the order of inserts, on the kicks, or on how calls were cut into batches.

*Delete* removes one copy of the class. A certainly absent element is refused. An element that only appears to be
present (a false positive) is removed in place of its class mate: no cuckoo filter can know better, so delete only
elements that were inserted. Under that rule no element is lost.

*Copies.* A table holds up to ``bucket // 2`` (at least one) copies of a class; further copies are counted in an exact
overflow. Copies beyond two buckets could not be placed at all, and below that they crowd out other classes. Deletes
take from the overflow first. Hence a class in the overflow is also in the table, and ``contains`` does not read the
overflow.

*Table size.* Any number of buckets: the xor acts within aligned chunks of a power of two. It sets a chunk's top bit, so
the two buckets differ. A chunk (32,768 buckets at most) stays within the second-level cache.

*Blocks.* The hashes of a call are processed in blocks: all buckets of a block are requested from memory before the
first is compared. The effect is measured in docs/experiments/variants.md.

*Chain.* Tables have m, m, 2m, 4m, ... buckets; bucket numbers and offsets of a larger table extend those of a smaller
table by low bits. So a class of a larger table lies inside one class of each smaller table, and a delete that tries the
largest table first takes either the element's own copy or one whose owner is still answered by the element's copy.

*False positives.* An absent element meets on average ``2 n / m`` entries, each equal with probability ``1 / 2**f``: at
most ``2b / 2**f`` per table. Where ``f`` fills a cell (8, 16, 32) one value means empty; the table then takes at most
``(2**f - 1) / 2**f`` of its cells, which keeps the same bound. An overflow adds nothing.

Ordering: none; inserts commute as far as answers go (one table).

Cost: lookup two buckets per table; insert amortised O(1), a bounded random walk; memory f bits rounded up to 8, 16
or 32, divided by the load (0.95 of the cells at bucket 4), and 16 bytes per overflow slot.

First published: Fan, Andersen, Kaminsky, Mitzenmacher, 2014

References
----------
B. Fan, D. Andersen, M. Kaminsky, M. Mitzenmacher, Cuckoo filter: practically better than Bloom, CoNEXT 2014 (algorithms
1 to 3 in the comments). H. Chen et al., The dynamic cuckoo filter, ICNP 2017 (chaining). M. Wang et al., Vacuum
filters, VLDB 2020 (chunks).
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.core.arrays.xxhash import GOLDEN_RATIO, MURMUR_1, mix

UInt64Array = NDArray[np.uint64]
BoolArray = NDArray[np.bool_]

MAX_KICKS = 500
"""Length of the random walk after which a table counts as full, as in the paper."""

_MAGIC, _VERSION = b"LCCF", 1
_HEADER = struct.Struct("<4sHBBQQH")
_TABLE = struct.Struct("<QQQQQQ")
_BLOCK = 64
"""Hashes whose buckets are requested from memory together."""
_SMALL, _LARGE = 1 << 12, 1 << 15
"""Buckets of a chunk: of few rows up to the first, of many up to the second."""
_PEAK = {1: 0.41, 2: 0.85, 3: 0.92}
"""Load that tables reach before an insert fails, by bucket size; 0.955 from 4 on (docs/experiments/variants.md)."""

_LOW = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)
_ONE = np.uint64(1)
_LANES = np.uint64(0x0001000100010001)
_TOPS = np.uint64(0x8000800080008000)


@njit(cache=True)
def _spot(hashed, seed, buckets, values):  # type: ignore[no-untyped-def]
    """Return the first bucket and the fingerprint (1 to `values`) of a hash."""
    x = mix(hashed ^ seed)
    return ((x >> _S32) * buckets) >> _S32, (((x & _LOW) * values) >> _S32) + _ONE


@njit(cache=True)
def _other(bucket, fingerprint, half, shift):  # type: ignore[no-untyped-def]
    """Return the other bucket of a fingerprint: an involution inside one chunk of ``2 * half`` buckets."""
    return bucket ^ (((fingerprint * GOLDEN_RATIO) >> shift) | half)


@njit(cache=True)
def _spots(cells, hashes, start, seed, values, half, shift, at):  # type: ignore[no-untyped-def]
    """Write both buckets and the fingerprint of a block of hashes, from `start` on, to `at`; return the block's size.

    The buckets are read into the cache, in a loop without a branch, so that the memory answers many requests at a time.
    """
    buckets = np.uint64(cells.shape[0])
    size = min(at.shape[1], hashes.size - start)
    for k in range(size):
        at[0, k], at[2, k] = _spot(hashes[start + k], seed, buckets, values)
        at[1, k] = _other(at[0, k], at[2, k], half, shift)
    for k in range(size):
        at[3, k] = np.uint64(cells[at[0, k], 0]) ^ np.uint64(cells[at[1, k], 0])
    return size


@njit(cache=True)
def _contains(cells, hashes, seed, values, half, shift, out):  # type: ignore[no-untyped-def]
    """Set `out` where a hash's fingerprint is in one of its buckets (Algorithm 2, Lookup)."""
    b = cells.shape[1]
    at = np.empty((4, _BLOCK), np.uint64)
    for start in range(0, hashes.size, _BLOCK):
        for k in range(_spots(cells, hashes, start, seed, values, half, shift, at)):
            i1, i2, fp = at[0, k], at[1, k], at[2, k]
            found = False
            for j in range(b):
                found |= (np.uint64(cells[i1, j]) == fp) | (np.uint64(cells[i2, j]) == fp)
            out[start + k] |= found


@njit(cache=True)
def _contains_4x16(words, hashes, seed, values, half, shift, out):  # type: ignore[no-untyped-def]
    """Do as `_contains`, and read a bucket of four 16-bit cells as one word."""
    at = np.empty((4, _BLOCK), np.uint64)
    for start in range(0, hashes.size, _BLOCK):
        for k in range(_spots(words, hashes, start, seed, values, half, shift, at)):
            lanes = at[2, k] * _LANES
            x, y = words[at[0, k], 0] ^ lanes, words[at[1, k], 0] ^ lanes
            out[start + k] |= ((((x - _LANES) & ~x) | ((y - _LANES) & ~y)) & _TOPS) != np.uint64(0)


@njit(cache=True)
def _slot(keys, key):  # type: ignore[no-untyped-def]
    """Return the place of `key`, or the free place for it, in an open-addressing table of a power of two."""
    mask = np.uint64(keys.size - 1)
    at = ((key * MURMUR_1) >> _S32) & mask
    while keys[at] != key and keys[at] != np.uint64(0):
        at = (at + _ONE) & mask
    return at


@njit(cache=True)
def _walk(cells, bucket, fp, half, shift, rng, path):  # type: ignore[no-untyped-def]
    """Place `fp` by relocating other fingerprints (Algorithm 1, lines 6 to 13); return whether it was placed.

    A failure takes every relocation back.
    """
    b = np.uint64(cells.shape[1])
    steps = path.shape[0]
    for k in range(steps):
        rng[0] ^= rng[0] << np.uint64(13)
        rng[0] ^= rng[0] >> np.uint64(7)
        rng[0] ^= rng[0] << np.uint64(17)
        j = ((rng[0] >> _S32) * b) >> _S32
        path[k, 0], path[k, 1] = bucket, j
        evicted = np.uint64(cells[bucket, j])
        cells[bucket, j] = fp
        fp = evicted
        bucket = _other(bucket, fp, half, shift)
        for i in range(b):
            if cells[bucket, i] == 0:
                cells[bucket, i] = fp
                return True
    for k in range(steps - 1, -1, -1):
        evicted = np.uint64(cells[path[k, 0], path[k, 1]])
        cells[path[k, 0], path[k, 1]] = fp
        fp = evicted
    return False


@njit(cache=True)
def _insert(  # type: ignore[no-untyped-def]
    cells, hashes, start, seed, values, half, shift, copies, limit, count, rng, path, keys, extra
):
    """Insert hashes from `start` on (Algorithm 1, Insert); return the first hash not inserted, and a reason.

    The reason is 0: all inserted, 1: the table is full, 2: the overflow is full. `count` holds the used cells, the
    copies in the overflow and the keys in the overflow. The emptier bucket takes a fingerprint, which needs fewer
    relocations.
    """
    b = cells.shape[1]
    at = np.empty((4, _BLOCK), np.uint64)
    for first in range(start, hashes.size, _BLOCK):
        for k in range(_spots(cells, hashes, first, seed, values, half, shift, at)):
            i1, i2, fp = at[0, k], at[1, k], at[2, k]
            same, empty1, empty2, free1, free2 = 0, 0, 0, 0, 0
            for j in range(b):
                c1, c2 = np.uint64(cells[i1, j]), np.uint64(cells[i2, j])
                same += (c1 == fp) + (c2 == fp)
                empty1 += c1 == np.uint64(0)
                empty2 += c2 == np.uint64(0)
                free1 = j if c1 == np.uint64(0) else free1
                free2 = j if c2 == np.uint64(0) else free2
            if same >= copies:
                if 4 * (count[2] + 1) > 3 * keys.size:
                    return first + k, 2
                key = (min(i1, i2) << _S32) | fp
                slot = _slot(keys, key)
                if keys[slot] == np.uint64(0):
                    keys[slot] = key
                    count[2] += 1
                extra[slot] += 1
                count[1] += 1
                continue
            if count[0] >= limit:
                return first + k, 1
            if empty1 + empty2 > 0:
                i, j = (i1, free1) if empty1 >= empty2 else (i2, free2)
                cells[i, j] = fp
            elif not _walk(cells, i1, fp, half, shift, rng, path):
                return first + k, 1
            count[0] += 1
    return hashes.size, 0


@njit(cache=True)
def _delete(cells, hashes, seed, values, half, shift, count, keys, extra, done):  # type: ignore[no-untyped-def]
    """Remove one copy for each hash not yet `done`, and mark it (Algorithm 3, Delete)."""
    b = cells.shape[1]
    at = np.empty((4, _BLOCK), np.uint64)
    for first in range(0, hashes.size, _BLOCK):
        for k in range(_spots(cells, hashes, first, seed, values, half, shift, at)):
            n = first + k
            if done[n]:
                continue
            i1, i2, fp = at[0, k], at[1, k], at[2, k]
            if count[1] > 0:
                slot = _slot(keys, (min(i1, i2) << _S32) | fp)
                if extra[slot] > 0:
                    extra[slot] -= 1
                    count[1] -= 1
                    done[n] = True
                    continue
            for i in (i1, i2):
                for j in range(b):
                    if not done[n] and np.uint64(cells[i, j]) == fp:
                        cells[i, j] = 0
                        count[0] -= 1
                        done[n] = True


@njit(cache=True)
def _rehash(keys, extra, new_keys, new_extra):  # type: ignore[no-untyped-def]
    """Copy the live entries of an overflow; return their number."""
    live = 0
    for i in range(keys.size):
        if extra[i] > 0:
            at = _slot(new_keys, keys[i])
            new_keys[at], new_extra[at] = keys[i], extra[i]
            live += 1
    return live


@dataclass(frozen=True, slots=True)
class Sizing:
    """The geometry of a filter.

    Attributes
    ----------
    fingerprint_bits, bucket, buckets
        Bits of a fingerprint, cells of a bucket, and buckets of the table.
    bytes
        Size of the table.
    false_positive_bound
        Greatest probability that an absent element is answered with yes.
    """

    fingerprint_bits: int
    bucket: int
    buckets: int
    bytes: int
    false_positive_bound: float


def size_for(expected_rows: int, false_positive_rate: float, fingerprint_bits: int = 12, bucket: int = 4) -> Sizing:
    """Return the geometry of the smallest filter that meets a false-positive rate.

    Parameters
    ----------
    expected_rows
        Inserts, duplicates counted.
    false_positive_rate
        Greatest rate wanted.
    fingerprint_bits
        Least bits of a fingerprint; more are taken if the rate needs them.
    bucket
        Cells per bucket.

    Raises
    ------
    ValueError
        If not even 32 bits meet the rate with this bucket, or a parameter is out of range.

    Examples
    --------
    >>> size_for(50_000, 0.001).fingerprint_bits
    13
    """
    _check(expected_rows, fingerprint_bits, bucket)
    bits = fingerprint_bits
    while bits <= 32 and 2 * bucket / 2**bits > false_positive_rate:
        bits += 1
    if bits > 32:
        raise ValueError(f"false_positive_rate {false_positive_rate} needs more than 32 bits: lower bucket {bucket}")
    buckets, _ = _geometry(expected_rows, bucket)
    return Sizing(bits, bucket, buckets, buckets * bucket * _cell(bits).itemsize, 2 * bucket / 2**bits)


def _check(expected_rows: int, bits: int, bucket: int) -> None:
    """Raise ValueError if a parameter is out of range."""
    if expected_rows < 0 or not 1 <= bits <= 32 or not 1 <= bucket <= 64:
        raise ValueError(
            f"expected_rows {expected_rows}, fingerprint_bits {bits}, bucket {bucket}: "
            "want rows >= 0, bits 1..32, bucket 1..64"
        )


def _cell(bits: int) -> np.dtype[np.unsignedinteger]:
    """Return the type of a cell."""
    return np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)


def _geometry(rows: int, bucket: int) -> tuple[int, int]:
    """Return the buckets of a table for `rows`, and of a chunk.

    The fill of a chunk scatters, that of a small chunk more: four sigma are left free.
    """
    peak = _PEAK.get(bucket, 0.955)
    chunk = 2
    while chunk < _SMALL and rows * (1 + 4 / (chunk * bucket) ** 0.5) > peak * chunk * bucket:
        chunk *= 2
    while chunk < _LARGE and rows > 8 * chunk * bucket:
        chunk *= 2
    per_chunk = peak * chunk * bucket / (1 + 4 / (chunk * bucket) ** 0.5)
    buckets = chunk * max(1, -int(-rows // per_chunk))
    if buckets >= 1 << 32:
        raise ValueError(f"expected_rows {rows} is beyond 2**32 buckets: shard the elements")
    return buckets, chunk


class _Table:
    """One table of a filter: its cells, exact overflow, counters, and the state of its random walk."""

    def __init__(self, buckets: int, chunk: int, bits: int, bucket: int, seed: int) -> None:
        self.cells: NDArray[np.unsignedinteger] = np.zeros((buckets, bucket), _cell(bits))
        self.chunk = chunk
        full = bits in (8, 16, 32)
        self.values = np.uint64(2**bits - full)
        self.limit = self.cells.size * int(self.values) >> bits
        self.half, self.shift = np.uint64(chunk // 2), np.uint64(65 - chunk.bit_length())
        self.seed = np.uint64(seed)
        self.copies = max(1, bucket // 2)
        self.count = np.zeros(3, np.int64)
        self.rng = np.array([seed | 1], np.uint64)
        self.keys, self.extra = np.zeros(16, np.uint64), np.zeros(16, np.int64)

    def insert(self, hashes: UInt64Array, start: int) -> int:
        """Insert from `start` on; return the first hash for which the table has no place."""
        path = np.empty((MAX_KICKS, 2), np.uint64)
        while True:
            start, reason = _insert(
                self.cells, hashes, start, self.seed, self.values, self.half, self.shift, self.copies, self.limit,
                self.count, self.rng, path, self.keys, self.extra,
            )  # fmt: skip
            if reason != 2:
                return int(start)
            self.rehash()

    def rehash(self) -> None:
        """Make room in the overflow, for twice the live entries at least."""
        live = int(np.count_nonzero(self.extra))
        size = 16
        while size < 2 * live + 2:
            size *= 2
        keys, extra = np.zeros(size, np.uint64), np.zeros(size, np.int64)
        self.count[2] = _rehash(self.keys, self.extra, keys, extra)
        self.keys, self.extra = keys, extra

    def contains(self, hashes: UInt64Array) -> BoolArray:
        """Return whether the table holds the class of each hash, bool[n]."""
        out = np.zeros(hashes.size, np.bool_)
        arguments = hashes, self.seed, self.values, self.half, self.shift, out
        if self.cells.dtype == np.uint16 and self.cells.shape[1] == 4:
            _contains_4x16(self.cells.view(np.uint64), *arguments)
        else:
            _contains(self.cells, *arguments)
        return out

    def delete(self, hashes: UInt64Array, done: BoolArray) -> None:
        """Remove one copy for each hash that is not marked in `done`, and mark it."""
        _delete(
            self.cells, hashes, self.seed, self.values, self.half, self.shift, self.count, self.keys, self.extra, done
        )


class CuckooFilter:
    """A multiset of 64-bit hashes with false positives and without false negatives.

    Parameters
    ----------
    expected_rows : int
        Inserts, duplicates counted, for which the first table is sized. Further tables take more.
    fingerprint_bits : int
        ``f``, 1 to 32; cells are 8, 16 or 32 bits wide.
    bucket : int
        ``b``, cells per bucket, 1 to 64.
    seed : int
        Mixed into every hash. Filters of one seed and geometry err on the same elements, filters of different seeds do
        not.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Examples
    --------
    >>> filtered = CuckooFilter(1_000)
    >>> filtered.insert(np.arange(10, dtype=np.uint64))
    >>> bool(filtered.contains(np.arange(10, dtype=np.uint64)).all()), len(filtered)
    (True, 10)
    """

    def __init__(self, expected_rows: int, fingerprint_bits: int = 12, bucket: int = 4, seed: int = 0) -> None:
        _check(expected_rows, fingerprint_bits, bucket)
        self.fingerprint_bits, self.bucket, self.seed = fingerprint_bits, bucket, seed % 2**64
        self._tables = [self._table(*_geometry(expected_rows, bucket))]

    def _table(self, buckets: int, chunk: int) -> _Table:
        """Return an empty table of this filter."""
        if buckets >= 1 << 32:
            raise ValueError("more than 2**32 buckets in one table: shard the elements")
        return _Table(buckets, chunk, self.fingerprint_bits, self.bucket, self.seed)

    def insert(self, hashes: UInt64Array) -> None:
        """Insert every hash (uint64[n]), each duplicate again; a full table gets a successor."""
        hashes = _as_hashes(hashes)
        done = self._tables[-1].insert(hashes, 0)
        while done < hashes.size:
            last = self._tables[-1]
            factor = 2 if len(self._tables) > 1 else 1
            self._tables.append(self._table(last.cells.shape[0] * factor, last.chunk * factor))
            done = self._tables[-1].insert(hashes, done)

    def contains(self, hashes: UInt64Array) -> BoolArray:
        """Return whether each hash may be in the multiset, bool[n]: true for each that was inserted and not deleted."""
        hashes = _as_hashes(hashes)
        out = self._tables[0].contains(hashes)
        for table in self._tables[1:]:
            out |= table.contains(hashes)
        return out

    def delete(self, hashes: UInt64Array) -> BoolArray:
        """Remove one copy per hash, in order, and return whether there was one, bool[n].

        Only hashes that were inserted may be removed.
        """
        hashes = _as_hashes(hashes)
        done = np.zeros(hashes.size, np.bool_)
        for table in reversed(self._tables):
            table.delete(hashes, done)
        self._tables = [table for table in self._tables if table.count[0]] or self._tables[:1]
        return done

    def __len__(self) -> int:
        return int(sum(table.count[0] + table.count[1] for table in self._tables))

    @property
    def load_factor(self) -> float:
        """The share of used cells in all tables."""
        used = sum(int(table.count[0]) for table in self._tables)
        return used / sum(table.cells.size for table in self._tables)

    @property
    def load_factors(self) -> tuple[float, ...]:
        """The share of used cells of each chained table."""
        return tuple(float(table.count[0] / table.cells.size) for table in self._tables)

    @property
    def size_bytes(self) -> int:
        """The memory of cells and overflows, in bytes."""
        return int(sum(t.cells.nbytes + t.keys.nbytes + t.extra.nbytes for t in self._tables))

    def false_positive_bound(self) -> float:
        """Return the bound of the false-positive rate: ``2b / 2**f`` times the number of tables, at most 1."""
        return min(1.0, len(self._tables) * 2 * self.bucket / float(2**self.fingerprint_bits))

    def to_bytes(self) -> bytes:
        """Return magic, version, tables and checksum; the same filter gives the same bytes."""
        parts = [_HEADER.pack(
            _MAGIC, _VERSION, self.fingerprint_bits, self.bucket, self.seed, len(self), len(self._tables)
        )]  # fmt: skip
        for t in self._tables:
            t.rehash()
            live = np.flatnonzero(t.extra)
            live = live[np.argsort(t.keys[live])]
            used, extra, _ = (int(c) for c in t.count)
            parts.append(_TABLE.pack(t.cells.shape[0], t.chunk, used, extra, int(t.rng[0]), live.size))
            parts += [t.cells.tobytes(), t.keys[live].tobytes(), t.extra[live].tobytes()]
        body = b"".join(parts)
        return body + struct.pack("<I", zlib.crc32(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> CuckooFilter:
        """Return the filter that `to_bytes` wrote.

        Raises
        ------
        ValueError
            If the bytes are no filter, of another version, cut short or damaged.
        """
        if len(data) < _HEADER.size + 4 or data[:4] != _MAGIC:
            raise ValueError("these bytes are not a cuckoo filter")
        _, version, bits, bucket, seed, rows, tables = _HEADER.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"version {version} of a cuckoo filter is not known here (want {_VERSION}): rebuild it")
        if zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
            raise ValueError("the cuckoo filter is damaged or cut short: rebuild it from the stored rows")
        restored = cls(0, bits, bucket, seed)
        restored._tables, at = [], _HEADER.size
        for _ in range(tables):
            buckets, chunk, used, extra, rng, live = _TABLE.unpack_from(data, at)
            at += _TABLE.size
            table = restored._table(buckets, chunk)
            table.cells = np.frombuffer(data, table.cells.dtype, buckets * bucket, at).reshape(buckets, bucket).copy()
            at += table.cells.nbytes
            keys, counts = np.frombuffer(data, np.uint64, live, at), np.frombuffer(data, np.int64, live, at + 8 * live)
            at += 16 * live
            table.keys, table.extra = keys, counts
            table.rehash()
            table.count[:2], table.rng[0] = (used, extra), rng
            restored._tables.append(table)
        if at != len(data) - 4 or len(restored) != rows:
            raise ValueError("the cuckoo filter's parts do not add up: rebuild it from the stored rows")
        return restored


def _as_hashes(hashes: UInt64Array) -> UInt64Array:
    """Return hashes as a contiguous array; raise ValueError if they are not uint64[n]."""
    array = np.asarray(hashes)
    if array.dtype != np.uint64 or array.ndim != 1:
        raise ValueError(f"hashes must be a one-dimensional array of uint64, not {array.ndim}-d {array.dtype}")
    return np.ascontiguousarray(array)
