"""Membership on Spark: which elements occur in every stream, filters first, then exactly.

1. Each stream gives one cuckoo filter per window; a window of more than `SHARD_ROWS` rows gives several, an element's shard being its
   hash modulo their number, which is a function of the number of rows alone. What travels are 64-bit hashes (`xxhash64`, the same on
   both sides), made distinct where they are read, sorted and packed. Filters are built in parallel, a task per shard at most; hashes are
   sorted and distinct once more before they are inserted, so a filter is a function of its window's elements alone.
2. Filters are collected and handed to every task. A row goes on only if the filters of all other streams know its element: these are
   *candidates*. All this happens where the row was read.
3. Candidates meet by element and window and are confirmed exactly: a result was seen in every stream.

So whole elements move only for candidates, of any stream, and the answer is exact; ``false_positive_rate`` bounds the work done in vain.
The bound of a query's filter is that of one shard, as an element asks one shard per stream. Strategies: ``mcf`` as above, ``bloom`` a
Bloom filter in the cuckoo filter's place, ``one_filter`` one filter per stream for all windows that close, ``exact`` a semi-join.

The ledger's figures are sums over windows of functions of their elements, whatever the cut into micro-batches: ``tested`` distinct elements
of the first stream, ``candidates`` and ``confirmed`` of them; ``filter_bytes``; ``moved_bytes`` of hashes, filters (once) and candidates of
all streams; ``exact_bytes`` of the distinct elements of all streams, which a semi-join would move. Answers, ``tested``, ``confirmed`` and
``exact_bytes`` do not depend on `SHARD_ROWS`; which absent elements are candidates by mistake, and so ``candidates``, ``filter_bytes`` and
``moved_bytes``, do. ``one_filter`` errs by what happens to close together, so it notes nothing in the ledger.

An element is published once: a window's late rows can only add elements, each at the repair that made it complete. Null and
NaN are no elements. Windows: with one `window` for all streams, an element has to occur in the same window of each; with a window per
stream see :func:`latecomer.core.membership.windows_touched`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.baselines.membership import BloomFilter
from latecomer.core.cuckoo import CuckooFilter, size_for
from latecomer.core.hashing import Shards, pack, shard_of, unpack
from latecomer.spark.columns import as_column, ceil_div, floor_to, greatest, quoted
from latecomer.spark.query import check_expressions
from latecomer.spark.windowed import Closing, Due, WindowedStage
from latecomer.specs import expressions as ex
from latecomer.specs.membership import MembershipSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_NUMBERS = (*_WHOLE, "float", "double")
HASH_BYTES = 8
SHARD_ROWS = 1 << 18
"""Rows of one stream in one window up to which they share a filter; more are split by hash into about equal shards."""
_PIECE_BYTES = 1 << 26


class MembershipStage(WindowedStage):
    """``kind: membership``; see the module docstring."""

    spec: MembershipSpec

    def check(self) -> None:
        """Element columns exist and are comparable."""
        first = self.spec.elements[0]
        wanted: list[tuple[str, ex.Expr, str | None]] = [
            (f"element.{column.alias}", ex.Binary("=", first, column), "bool") for column in self.spec.elements[1:]
        ]
        check_expressions(self.spec, self.events, wanted)

    @cached_property
    def side_of(self) -> list[int]:
        """The source that each stream of the query reads."""
        return [self.sources.index(stream) for _, stream in self.spec.streams]

    @cached_property
    def kind(self) -> str:
        """Spark type in which elements are compared and published."""
        kinds = {
            dict(self.events[stream].dtypes)[column.name]
            for (_, stream), column in zip(self.spec.streams, self.spec.elements, strict=True)
        }
        if len(kinds) == 1 and not (kinds & {"float"}):
            (only,) = kinds
            return "bigint" if only in _WHOLE else only
        if kinds <= set(_WHOLE):
            return "bigint"
        return "double" if kinds <= set(_NUMBERS) else "string"

    def payload(self, source: int) -> dict[str, str]:
        """Elements ``e{place}`` of the streams that read the source, ``ok``."""
        found = {
            f"e{place}": f"cast({quoted(column.name)} as {self.kind})"
            for place, column in enumerate(self.spec.elements)
            if self.side_of[place] == source
        }
        some = " or ".join(f"({text}) is not null" for text in found.values())
        return found | {"ok": some}

    # ----------------------------------------------------------------------------------------------------- windows

    @cached_property
    def alike(self) -> bool:
        """Have all streams the same windows?"""
        return len(set(self.spec.windows)) == 1

    @property
    def lookback_us(self) -> int:
        """Rows of a stream with windows of its own may lie before the window they belong to."""
        return 0 if self.alike else max(window.size_us + window.slide_us for window in self.spec.windows)

    def first_of(self, time: Any, side: Any = "side") -> Any:
        """Number of the first window of the first stream that a row belongs to."""
        return super().first_of(time) if self.alike else self._by_side(time, side, 0)

    def last_of(self, time: Any, side: Any = "side") -> Any:
        """Number of the last window of the first stream that a row belongs to."""
        return super().last_of(time) if self.alike else self._by_side(time, side, 1)

    def _by_side(self, time: Any, side: Any, which: int) -> Any:
        """First (0) or last (1) window, over all streams of the query that read a row's source."""
        from pyspark.sql import functions as F

        time = as_column(time)
        edges = []
        for source in range(len(self.sources)):
            own = [
                self._span(place, time)[which] for place in range(len(self.side_of)) if self.side_of[place] == source
            ]
            edges.append(greatest(*own) if which else -greatest(*(-edge for edge in own)))
        if isinstance(time, np.ndarray):
            return np.select([side == source for source in range(len(edges))], edges)
        found = edges[0]
        for source, edge in enumerate(edges[1:], 1):
            found = F.when(F.col(side) == source, edge).otherwise(found)
        return found

    def _span(self, place: int, time: Any) -> tuple[Any, Any]:
        """First and last window of the first stream for which a row of stream `place` counts."""
        if self.alike or place == 0:
            return super().first_of(time), super().last_of(time)
        size, slide = self.grid.size_us, self.grid.slide_us
        own = self.spec.windows[place]
        first_end = floor_to(time - own.size_us, own.slide_us) + own.slide_us + own.size_us
        last_end = floor_to(time, own.slide_us) + own.size_us
        first = ceil_div(first_end - size, slide)
        touched = ceil_div(last_end, slide) - 1
        following = ceil_div(last_end + own.slide_us - size, slide) - 1
        return first, greatest(touched, following)

    # ----------------------------------------------------------------------------------------------------- answers

    def _role(self, rows: DataFrame, place: int, first: Column | None, last: Column | None) -> DataFrame:
        """Rows of one stream by window, as ``m`` and ``element``; `first` and `last` bound the windows further."""
        from pyspark.sql import functions as F

        own = rows.where(F.col("side") == self.side_of[place]).withColumn("element", F.col(f"e{place}"))
        own = own.where(F.col("element").isNotNull())
        if self.kind == "double":
            own = own.where(~F.isnan("element"))
        low, high = self._span(place, F.col("ts"))
        low = low if first is None else F.greatest(low, first)
        high = high if last is None else F.least(high, last)
        return self.in_windows(own, low, high)

    def answers(self, rows: DataFrame, closing: Closing) -> DataFrame:
        """Elements of windows that close."""
        from pyspark.sql import functions as F

        last = F.lit(closing.after[0])
        closed = closing.table.drop("shard")
        roles = [
            self._role(rows, place, self.open_from("ts"), last)
            .join(F.broadcast(closed.select("m")), "m")
            .select("m", "element")
            for place in range(len(self.side_of))
        ]
        if self.spec.strategy.name == "exact":
            found = roles[0].distinct()
            for role in roles[1:]:
                found = found.join(role, ["m", "element"], "left_semi")
        else:
            found = self._confirmed(roles)
        return found.join(F.broadcast(closed), "m").select("element", "m", "closed_seq", "wait_us")

    def _confirmed(self, roles: list[DataFrame]) -> DataFrame:
        """Elements in every role, ``m`` and ``element``: what passes the other roles' filters, seen in all of them."""
        from pyspark.sql import functions as F

        parts = [
            role.select(F.lit(place).alias("place"), "m", "element", F.xxhash64("element").alias("hash"))
            for place, role in enumerate(roles)
        ]
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.unionByName(part)
        rows = self.keep(rows)
        shared = self.spark.sparkContext.broadcast(self._filters(rows))
        self._kept.append(shared)

        def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _passing(batches, shared.value)

        one = F.lit(1).cast("bigint")
        passed = rows.mapInArrow(passing, f"place int, m bigint, element {self.kind}")
        seen = passed.groupBy("m", "element").agg(F.bit_or(F.call_function("shiftleft", one, "place")).alias("places"))
        seen, wanted = self.keep(seen), _all(len(roles))
        if self._noted:
            self._note_candidates(seen, wanted)
        return seen.where(F.col("places") == wanted).select("m", "element")

    def _filters(self, rows: DataFrame) -> Filters:
        """Filters of all roles; `rows` has ``place``, ``m``, ``element``, ``hash``. Notes what they cost, and what a semi-join would."""
        from pyspark.sql import functions as F

        strategy, name = self.spec.strategy, self.spec.strategy.name
        rate = self.spec.false_positive_rate / (len(self.side_of) - 1)
        together = name == "one_filter"
        sizes: dict[tuple[int, int], int] = {}
        for row in rows.groupBy("place", "m").count().collect():
            key = (row["place"], 0 if together else row["m"])
            sizes[key] = sizes.get(key, 0) + row["count"]
        shards = {key: -(-count // SHARD_ROWS) for key, count in sorted(sizes.items()) if count > SHARD_ROWS}

        def new(count: int) -> BloomFilter | CuckooFilter:
            if name == "bloom":
                return BloomFilter(count, rate)
            size = size_for(count, rate, strategy.fingerprint_bits, strategy.bucket)
            return CuckooFilter(count, size.fingerprint_bits, size.bucket)

        tasks = int(self.spark.conf.get("spark.sql.shuffle.partitions") or 1)
        packed = (
            rows.select(
                "place", F.lit(0).cast("bigint").alias("m") if together else "m", "hash", self._width.alias("width")
            )
            .mapInArrow(partial(_packed, shards=shards), "place int, m bigint, shard int, data binary")
            .repartition(min(tasks, sum(shards.get(key, 1) for key in sizes)) or 1, "place", "m", "shard")
        )
        built = packed.mapInArrow(
            partial(_built, new=new), "place int, m bigint, shard int, rows bigint, bytes bigint, data binary"
        )
        filters: dict[tuple[int, int, int], bytes] = {}
        for batch in built.toArrow().to_batches():
            for place, window, shard, count, width, data in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                filters[place, window, shard] = data
                if self._noted:
                    own = {
                        "filter_bytes": len(data),
                        "moved_bytes": len(data) + count * HASH_BYTES,
                        "exact_bytes": width,
                    }
                    self._add(window, own | ({"tested": count} if place == 0 else {}))
        return Filters(len(self.side_of), together, name == "bloom", shards, filters)

    # ------------------------------------------------------------------------------------------------------- books

    def _period(self, window: int) -> int:
        end = self.grid.end(window) - 1
        return int(end - end % self.spec.period_us)

    @property
    def _noted(self) -> bool:
        """Are the filters' figures a function of the windows alone, and so of the ledger?"""
        return self.spec.strategy.name != "one_filter"

    def _add(self, window: int, counts: dict[str, int]) -> None:
        own = self.extras.setdefault(self._period(window), {})
        for name, count in counts.items():
            own[name] = own.get(name, 0) + count

    @property
    def _width(self) -> Column:
        """Bytes that an element takes on its way to another machine."""
        from pyspark.sql import functions as F

        return F.octet_length("element") if self.kind in ("string", "binary") else F.lit(8)

    def _note_candidates(self, seen: DataFrame, wanted: int) -> None:
        """Note candidates and results per window; `seen` has ``m``, ``element`` and ``places``, a bit per stream."""
        from pyspark.sql import functions as F

        places = F.col("places")
        moved = self._width * F.bit_count(places)
        counted = seen.groupBy("m").agg(
            F.count_if(places.bitwiseAND(1) == 1).alias("candidates"),
            F.count_if(places == wanted).alias("confirmed"),
            F.sum(moved).alias("moved_bytes"),
        )
        for row in counted.collect():
            self._add(row["m"], {name: row[name] for name in ("candidates", "confirmed", "moved_bytes")})

    # ------------------------------------------------------------------------------------------------------ repair

    def corrected(self, due: Due) -> DataFrame:
        """Elements that late rows complete, each at the Gamma batch that did."""
        from pyspark.sql import functions as F

        places = range(len(self.side_of))
        late = [
            self._role(due.rows, p, F.col("m_from"), F.col("m_to")).select("m", "element", "seq", "repaired_in")
            for p in places
        ]
        keys = late[0].select("m", "element")
        for part in late[1:]:
            keys = keys.unionByName(part.select("m", "element"))
        keys = self.keep(keys.distinct())
        stored = self.stored_in(due)
        found = None
        for place in places:
            own = (
                self._role(stored, place, None, None)
                .select("m", "element", "seq")
                .join(keys, ["m", "element"], "left_semi")
            )
            marked = own.join(late[place], ["m", "element", "seq"], "left")
            since = marked.groupBy("m", "element").agg(F.min(F.coalesce("repaired_in", F.lit(-1))).alias(f"c{place}"))
            found = since if found is None else found.join(since, ["m", "element"])
        assert found is not None
        when = F.greatest(*(f"c{place}" for place in places))
        complete = found.withColumn("repaired_in", when).where(F.col("repaired_in") >= 0)
        return complete.select("element", "m", "repaired_in")


# ------------------------------------------------------------------------------------------------------------ in tasks


class Filters(NamedTuple):
    """Filters of all streams, as tasks get them.

    Attributes
    ----------
    places : int
        Streams of the query.
    together : bool
        One filter (window number 0) for all windows of a stream.
    bloom : bool
        Bloom filters, not cuckoo filters.
    shards : mapping
        See :data:`latecomer.core.hashing.Shards`.
    data : dict
        Serialised filters by (place, window, shard); none where no row was.
    """

    places: int
    together: bool
    bloom: bool
    shards: Shards
    data: dict[tuple[int, int, int], bytes]


def _all(places: int) -> int:
    """The first `places` bits of a signed 64-bit integer, all set."""
    return (1 << places) - 1 if places < 64 else -1


def _cuts(*keys: NDArray[Any]) -> NDArray[np.intp]:
    """Where a run of equal keys begins, and the length at the end."""
    size = keys[0].size
    new = np.ones(size + 1, np.bool_)
    if size:
        new[1:-1] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return np.flatnonzero(new) if size else np.zeros(1, np.intp)


def _packed(batches: Iterable[pa.RecordBatch], shards: Shards) -> Iterator[pa.RecordBatch]:
    """Distinct hashes of a task's rows, packed per (place, window, shard)."""
    given = list(batches)
    if not given:
        return
    table = pa.Table.from_batches(given)
    place, window, widths = (table[name].to_numpy() for name in ("place", "m", "width"))
    hashes: NDArray[np.uint64] = table["hash"].to_numpy().view(np.uint64)
    shard = shard_of(place, window, hashes, shards)
    order = np.lexsort((hashes, shard, window, place))
    order = order[_cuts(place[order], window[order], shard[order], hashes[order])[:-1]]
    place, window, shard, widths, hashes = place[order], window[order], shard[order], widths[order], hashes[order]
    cuts = _cuts(place, window, shard)
    yield from _batched(
        (
            (int(place[a]), int(window[a]), int(shard[a]), pack(hashes[a:b], widths[a:b]))
            for a, b in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
        ),
        _PACKED,
    )


def _built(batches: Iterable[pa.RecordBatch], new: Any) -> Iterator[pa.RecordBatch]:
    """A filter per (place, window, shard) of packed hashes, with its distinct hashes' number and their elements' bytes."""
    packs: dict[tuple[int, int, int], list[bytes]] = {}
    for batch in batches:
        for place, window, shard, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            packs.setdefault((place, window, shard), []).append(data)

    def build(key: tuple[int, int, int]) -> tuple[Any, ...]:
        parts = [unpack(data) for data in packs.pop(key)]
        hashes, first = np.unique(np.concatenate([part[0] for part in parts]), return_index=True)
        width = np.concatenate([part[1] for part in parts])[first].sum()
        one = new(hashes.size)
        one.insert(hashes)
        return (*key, hashes.size, int(width), one.to_bytes())

    yield from _batched((build(key) for key in sorted(packs)), _BUILT)


_PACKED = pa.schema([("place", pa.int32()), ("m", pa.int64()), ("shard", pa.int32()), ("data", pa.binary())])
_BUILT = pa.schema([*list(_PACKED)[:3], ("rows", pa.int64()), ("bytes", pa.int64()), ("data", pa.binary())])


def _batched(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows whose last column is bytes, about `_PIECE_BYTES` of them at a time."""
    found: list[tuple[Any, ...]] = []
    held = 0
    for row in rows:
        found.append(row)
        held += len(row[-1])
        if held > _PIECE_BYTES:
            yield _batch(found, schema)
            found, held = [], 0
    if found:
        yield _batch(found, schema)


def _batch(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array(column, kind.type) for column, kind in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _passing(batches: Iterable[pa.RecordBatch], filters: Filters) -> Iterator[pa.RecordBatch]:
    """Rows whose element all other places' filters know, without their hash."""
    opened: dict[tuple[int, int, int], Any] = {}
    load = BloomFilter.from_bytes if filters.bloom else CuckooFilter.from_bytes
    for batch in batches:
        place, hashes = batch["place"].to_numpy(), batch["hash"].to_numpy().view(np.uint64)
        window = np.zeros(place.size, np.int64) if filters.together else batch["m"].to_numpy()
        keep = np.ones(place.size, np.bool_)
        for other in range(filters.places):
            rows = np.flatnonzero(keep & (place != other))
            shard = shard_of(other, window[rows], hashes[rows], filters.shards)
            order = np.lexsort((shard, window[rows]))
            rows, shard = rows[order], shard[order]
            cuts = _cuts(window[rows], shard)
            for a, b in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
                key = (other, int(window[rows[a]]), int(shard[a]))
                if key not in opened:
                    opened[key] = load(filters.data[key]) if key in filters.data else None
                asked = rows[a:b]
                keep[asked] = opened[key].contains(hashes[asked]) if opened[key] is not None else False
        if keep.any():
            yield batch.select(["place", "m", "element"]).filter(pa.array(keep))
