"""Filters of memberships as tasks use them: pack hashes, fill filters, let rows pass.

The passes that use them: :mod:`latecomer.spark.membership.semi_join`.

All functions are of Arrow batches and of plain values, so the driver runs the same ones where rows are few. Rows have
``place`` (of their stream in the query), ``_m`` (window) and ``hash``; none needs an order. Cost: O(n log n) of a
task's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.baselines.membership.filters import BloomFilter
from latecomer.core.arrays.composite_keys import run_bounds, sort_order
from latecomer.core.arrays.packed_hashes import HASH_BITS, Shards, pack, shard_of, unpack
from latecomer.core.membership.cuckoo import CuckooFilter

PIECE_BYTES = 1 << 26
"""Bytes of packed hashes or filters in a batch, about."""
Bits = Mapping[tuple[int, int], int]
"""Bits of a hash that travel, by (place of the stream, window number), where they are more than `HASH_BITS`."""
FilterData = dict[tuple[int, int, int], bytes]
"""Serialised filters by (place, window, shard); there is none where no row was."""
Filter: TypeAlias = BloomFilter | CuckooFilter
Packed: TypeAlias = tuple[int, int, int, bytes]
"""Place, window, shard, and packed hashes."""
Built: TypeAlias = tuple[int, int, int, int, bytes]
"""Place, window, shard, number of distinct hashes, and the serialised filter."""
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]


class Filters(NamedTuple):
    """The windows as tasks know them, and the filters built so far.

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
    windows: Int64
    leads: Int32
    data: FilterData = {}  # never written to


def all_bits(places: int) -> int:
    """Return a signed 64-bit integer whose first `places` bits are set."""
    return (1 << places) - 1 if places < 64 else -1


class _OpenFilters:
    """Filters that are opened when they are first asked."""

    def __init__(self, shares: Iterable[object]) -> None:
        values: list[Any] = [getattr(share, "value", share) for share in shares]
        filters, *data = values
        self.filters: Filters = filters._replace(data={key: packed for part in data for key, packed in part.items()})
        self._opened: dict[tuple[int, int, int], Filter | None] = {}

    def rows_of(self, batch: pa.RecordBatch) -> tuple[Int32, Int64, UInt64, Int32]:
        """Return place, window, hash, and the place that leads in the window, of each row."""
        place, hashes = batch["place"].to_numpy(), batch["hash"].to_numpy().view(np.uint64)
        window = np.zeros(place.size, np.int64) if self.filters.together else batch["_m"].to_numpy()
        return place, window, hashes, self.filters.leads[np.searchsorted(self.filters.windows, window)]

    def known(self, place: NDArray[Any], window: Int64, hashes: UInt64) -> NDArray[np.bool_]:
        """Return whether the filter of a place and window knows a hash, bool[n]."""
        filters, known = self.filters, np.zeros(hashes.size, np.bool_)
        shard = shard_of(place, window, hashes, filters.shards)
        order = sort_order(place, window, shard)
        ends = run_bounds(place[order], window[order], shard[order])
        for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            rows = order[a:b]
            key = int(place[rows[0]]), int(window[rows[0]]), int(shard[rows[0]])
            if key not in self._opened:
                load = BloomFilter.from_bytes if filters.bloom else CuckooFilter.from_bytes
                self._opened[key] = load(filters.data[key]) if key in filters.data else None
            opened = self._opened[key]
            if opened is not None:
                known[rows] = opened.contains(_cut_to(hashes[rows], filters.bits.get(key[:2], HASH_BITS)))
        return known


def _cut_to(hashes: UInt64, bits: int) -> UInt64:
    """Return the leading bits of every hash."""
    return hashes >> np.uint64(64 - bits)


def packed(batches: Iterable[pa.RecordBatch], shares: Sequence[object], others: bool) -> Iterator[pa.RecordBatch]:
    """Pack the distinct hashes of a task's rows per (place, window, shard).

    These are the rows of the leads or, for `others`, rows of the other streams that the leads' filters know.
    """
    opened = _OpenFilters(shares)
    filters = opened.filters
    given = []
    for batch in batches:
        place, window, hashes, lead = opened.rows_of(batch)
        rows = np.flatnonzero((place != lead) == others)
        if others:
            rows = rows[opened.known(lead[rows], window[rows], hashes[rows])]
        given.append((place[rows], window[rows], hashes[rows]))
    if not given:
        return
    place, window, hashes = (np.concatenate(column) for column in zip(*given, strict=True))
    shard = shard_of(place, window, hashes, filters.shards)
    order = np.lexsort((hashes, shard, window, place))
    place, window, shard, hashes = place[order], window[order], shard[order], hashes[order]

    def piece(a: int, b: int) -> Packed:
        bits = filters.bits.get((int(place[a]), int(window[a])), HASH_BITS)
        leading = _cut_to(hashes[a:b], bits)
        return int(place[a]), int(window[a]), int(shard[a]), pack(leading[run_bounds(leading)[:-1]], bits)

    ends = run_bounds(place, window, shard)
    yield from _batched((piece(a, b) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)), _PACKED)


def filled(batches: Iterable[pa.RecordBatch], new: Callable[[int, int], Filter]) -> Iterator[pa.RecordBatch]:
    """Fill a filter per (place, window, shard) with packed hashes, and count its distinct hashes."""
    packs: dict[tuple[int, int, int], list[bytes]] = {}
    for batch in batches:
        for place, window, shard, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            packs.setdefault((place, window, shard), []).append(data)

    def fill(key: tuple[int, int, int]) -> Built:
        hashes = np.unique(np.concatenate([unpack(data) for data in packs.pop(key)]))
        filter_ = new(key[0], hashes.size)
        filter_.insert(hashes)
        return (*key, hashes.size, filter_.to_bytes())

    yield from _batched((fill(key) for key in sorted(packs)), BUILT)


_PACKED = pa.schema([("place", pa.int32()), ("_m", pa.int64()), ("shard", pa.int32()), ("data", pa.binary())])
BUILT = pa.schema([*list(_PACKED)[:3], ("rows", pa.int64()), ("data", pa.binary())])


def _batched(rows: Iterable[Packed] | Iterable[Built], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Put rows whose last column is bytes into batches of about `PIECE_BYTES`."""
    pending: list[Packed | Built] = []
    held = 0
    for row in rows:
        pending.append(row)
        held += len(row[-1])
        if held > PIECE_BYTES:
            yield _batch(pending, schema)
            pending, held = [], 0
    if pending:
        yield _batch(pending, schema)


def _batch(rows: Sequence[Packed | Built], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array(column, kind.type) for column, kind in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def passing(batches: Iterable[pa.RecordBatch], shares: Sequence[object]) -> Iterator[pa.RecordBatch]:
    """Keep the rows whose element the filters of all other places know.

    ``rank``, the place counted from the lead, replaces place and hash.
    """
    opened = _OpenFilters(shares)
    places = opened.filters.places
    for batch in batches:
        place, window, hashes, lead = opened.rows_of(batch)
        rank = (place - lead) % places
        rows = np.arange(place.size)
        for other in range(places):  # the lead first: it knows the fewest
            of_other = rank[rows] == other
            asking = rows[~of_other]
            passed = opened.known((lead[asking] + other) % places, window[asking], hashes[asking])
            rows = np.sort(np.concatenate([rows[of_other], asking[passed]]))
        if rows.size:
            kept = batch.drop_columns(["place", "hash"]).take(pa.array(rows))
            yield kept.add_column(0, "rank", pa.array(rank[rows], pa.int32()))
