"""Filters of memberships, what tasks do with them: pack hashes, fill filters, let rows pass (:mod:`latecomer.spark.membership.stage`).

All functions are of Arrow batches and of plain values, so the driver runs the same ones where rows are few. Rows have ``place`` (of their
stream in the query), ``_m`` (window) and ``hash``; none needs an order. Cost: O(n log n) of a task's rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.baselines.membership.filters import BloomFilter
from latecomer.core.arrays.composite_keys import run_bounds, sort_order
from latecomer.core.arrays.packed_hashes import HASH_BITS, Shards, pack, shard_of, unpack
from latecomer.core.membership.cuckoo import CuckooFilter

PIECE_BYTES = 1 << 26
"""Bytes of packed hashes or filters that a batch holds, about."""
Bits = Mapping[tuple[int, int], int]
"""Bits of a hash that travel, by (place of the stream, window number), where they are more than `HASH_BITS`."""
FilterData = dict[tuple[int, int, int], bytes]
"""Serialised filters by (place, window, shard); none where no row was."""


class Filters(NamedTuple):
    """What tasks are told of the windows, and the filters that there are.

    Attributes
    ----------
    places : int
        Streams of the query.
    together : bool
        One filter (window number 0) for all windows of a stream.
    bloom : bool
        Bloom filters, not cuckoo filters.
    shards, bits : mapping
        See :data:`latecomer.core.arrays.packed_hashes.Shards` and `Bits`.
    windows : numpy.ndarray
        Numbers of all windows with rows, int64[k], ascending.
    leads : numpy.ndarray
        Place of the stream that leads in each, int32[k].
    data : dict
        See `FilterData`.
    """

    places: int
    together: bool
    bloom: bool
    shards: Shards
    bits: Bits
    windows: NDArray[np.int64]
    leads: NDArray[np.int32]
    data: FilterData = {}  # never written to


def all_bits(places: int) -> int:
    """The first `places` bits of a signed 64-bit integer, all set."""
    return (1 << places) - 1 if places < 64 else -1


class _Asked:
    """Filters, each opened at the first question."""

    def __init__(self, shares: Iterable[Any]) -> None:
        filters, *data = (getattr(share, "value", share) for share in shares)
        self.filters: Filters = filters._replace(data={key: one for part in data for key, one in part.items()})
        self._opened: dict[tuple[int, int, int], BloomFilter | CuckooFilter | None] = {}

    def rows_of(self, batch: pa.RecordBatch) -> tuple[NDArray[Any], ...]:
        """Place, window, hash and the place that leads in the window, of each row."""
        place, hashes = batch["place"].to_numpy(), batch["hash"].to_numpy().view(np.uint64)
        window = np.zeros(place.size, np.int64) if self.filters.together else batch["_m"].to_numpy()
        return place, window, hashes, self.filters.leads[np.searchsorted(self.filters.windows, window)]

    def known(self, place: NDArray[Any], window: NDArray[np.int64], hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which hashes does the filter of that place and window know? bool[n]."""
        filters, found = self.filters, np.zeros(hashes.size, np.bool_)
        shard = shard_of(place, window, hashes, filters.shards)
        order = sort_order(place, window, shard)
        ends = run_bounds(place[order], window[order], shard[order])
        for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            rows = order[a:b]
            key = int(place[rows[0]]), int(window[rows[0]]), int(shard[rows[0]])
            if key not in self._opened:
                load = BloomFilter.from_bytes if filters.bloom else CuckooFilter.from_bytes
                self._opened[key] = load(filters.data[key]) if key in filters.data else None
            one = self._opened[key]
            if one is not None:
                found[rows] = one.contains(_cut_to(hashes[rows], filters.bits.get(key[:2], HASH_BITS)))
        return found


def _cut_to(hashes: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    """The leading bits of each."""
    return hashes >> np.uint64(64 - bits)


def packed(batches: Iterable[pa.RecordBatch], shares: list[Any], others: bool) -> Iterator[pa.RecordBatch]:
    """Distinct hashes of a task's rows, packed per (place, window, shard): of the leads, or of what they know of the `others`."""
    asked = _Asked(shares)
    filters = asked.filters
    given = []
    for batch in batches:
        place, window, hashes, lead = asked.rows_of(batch)
        rows = np.flatnonzero((place != lead) == others)
        if others:
            rows = rows[asked.known(lead[rows], window[rows], hashes[rows])]
        given.append((place[rows], window[rows], hashes[rows]))
    if not given:
        return
    place, window, hashes = (np.concatenate(column) for column in zip(*given, strict=True))
    shard = shard_of(place, window, hashes, filters.shards)
    order = np.lexsort((hashes, shard, window, place))
    place, window, shard, hashes = place[order], window[order], shard[order], hashes[order]

    def piece(a: int, b: int) -> tuple[int, int, int, bytes]:
        bits = filters.bits.get((int(place[a]), int(window[a])), HASH_BITS)
        own = _cut_to(hashes[a:b], bits)
        return int(place[a]), int(window[a]), int(shard[a]), pack(own[run_bounds(own)[:-1]], bits)

    ends = run_bounds(place, window, shard)
    yield from _batched((piece(a, b) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)), _PACKED)


def filled(batches: Iterable[pa.RecordBatch], new: Any) -> Iterator[pa.RecordBatch]:
    """A filter per (place, window, shard) of packed hashes, with the number of its distinct hashes."""
    packs: dict[tuple[int, int, int], list[bytes]] = {}
    for batch in batches:
        for place, window, shard, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            packs.setdefault((place, window, shard), []).append(data)

    def fill(key: tuple[int, int, int]) -> tuple[Any, ...]:
        hashes = np.unique(np.concatenate([unpack(data) for data in packs.pop(key)]))
        one = new(key[0], hashes.size)
        one.insert(hashes)
        return (*key, hashes.size, one.to_bytes())

    yield from _batched((fill(key) for key in sorted(packs)), BUILT)


_PACKED = pa.schema([("place", pa.int32()), ("_m", pa.int64()), ("shard", pa.int32()), ("data", pa.binary())])
BUILT = pa.schema([*list(_PACKED)[:3], ("rows", pa.int64()), ("data", pa.binary())])


def _batched(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows whose last column is bytes, about `PIECE_BYTES` of them at a time."""
    found: list[tuple[Any, ...]] = []
    held = 0
    for row in rows:
        found.append(row)
        held += len(row[-1])
        if held > PIECE_BYTES:
            yield _batch(found, schema)
            found, held = [], 0
    if found:
        yield _batch(found, schema)


def _batch(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array(column, kind.type) for column, kind in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def passing(batches: Iterable[pa.RecordBatch], shares: list[Any]) -> Iterator[pa.RecordBatch]:
    """Rows whose element all other places' filters know; ``rank``, the place counted from the lead, stands for place and hash."""
    asked = _Asked(shares)
    places = asked.filters.places
    for batch in batches:
        place, window, hashes, lead = asked.rows_of(batch)
        rank = (place - lead) % places
        rows = np.arange(place.size)
        for other in range(places):  # the lead first: it knows the fewest
            own = rank[rows] == other
            asking = rows[~own]
            passed = asked.known((lead[asking] + other) % places, window[asking], hashes[asking])
            rows = np.sort(np.concatenate([rows[own], asking[passed]]))
        if rows.size:
            kept = batch.drop_columns(["place", "hash"]).take(pa.array(rows))
            yield kept.add_column(0, "rank", pa.array(rank[rows], pa.int32()))
