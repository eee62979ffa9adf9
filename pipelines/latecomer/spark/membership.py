"""Membership on Spark: which elements occur in every stream, filters first, then exactly.

1. Every stream but the first gives one cuckoo filter per window, built in parallel from 64-bit hashes (`xxhash64`, the same on both
   sides). Hashes are sorted and made distinct before they are inserted, so a filter is a function of its window's elements alone.
2. Filters are collected and handed to every task; the first stream's elements that pass all of them are *candidates*.
3. Candidates, few as they are, travel to the other streams and are confirmed exactly.

So whole elements move only for candidates, and the answer is exact; ``false_positive_rate`` bounds the work done in vain. Strategies:
``mcf`` as above, ``one_filter`` one filter per stream for all windows that close, ``bloom`` a Bloom filter per window, ``exact`` a semi-join.

An element is published once: a window's late rows can only add elements, each at the repair that made it complete. Null and
NaN are no elements. Windows: with one `window` for all streams, an element has to occur in the same window of each; with a window per
stream see :func:`latecomer.core.membership.windows_touched`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from latecomer.baselines.membership import BloomFilter
from latecomer.core.cuckoo import CuckooFilter, size_for
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
        found = roles[0].distinct()
        if self.spec.strategy.name != "exact":
            found = self._candidates(found, roles[1:])
        for role in roles[1:]:
            found = found.join(role, ["m", "element"], "left_semi")
        if self.spec.strategy.name != "exact":
            found = self.keep(found)
            self._count(found, "confirmed")
        return found.join(F.broadcast(closed), "m").select("element", "m", "closed_seq", "wait_us")

    def _candidates(self, first: DataFrame, others: list[DataFrame]) -> DataFrame:
        """Elements of the first stream that pass every other stream's filter of their window."""
        from pyspark.sql import functions as F

        filters = self._filters(others)
        hashed = self.keep(first.withColumn("hash", F.xxhash64("element")))
        self._count(hashed, "tested", "exact_bytes")
        per_window = self.spec.strategy.name != "one_filter"
        bloom = self.spec.strategy.name == "bloom"
        shared = self.spark.sparkContext.broadcast(filters)
        self._kept.append(shared)
        places = len(others)

        def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            opened: dict[tuple[int, int], Any] = {}
            kind = BloomFilter if bloom else CuckooFilter
            for batch in batches:
                window = batch["m"].to_numpy()
                hashes = batch["hash"].to_numpy().view(np.uint64)
                keep = np.ones(len(window), bool)
                for number in np.unique(window).tolist():
                    at = np.flatnonzero(window == number)
                    for place in range(places):
                        key = (place, number if per_window else 0)
                        if key not in opened:
                            data = shared.value.get(key)
                            opened[key] = None if data is None else kind.from_bytes(data)
                        if opened[key] is None:
                            keep[at] = False
                            break
                        mine = at[keep[at]]
                        keep[mine] = opened[key].contains(hashes[mine])
                yield batch.filter(pa.array(keep))

        schema = f"m bigint, element {self.kind}, hash bigint"
        passed = self.keep(hashed.select("m", "element", "hash").mapInArrow(passing, schema).drop("hash"))
        self._count(passed, "candidates", "moved_bytes")
        return passed

    def _filters(self, others: list[DataFrame]) -> dict[tuple[int, int], bytes]:
        """Serialised filters by (place, window); notes their bytes, and what an exact semi-join would move of these streams."""
        from pyspark.sql import functions as F

        strategy, name = self.spec.strategy, self.spec.strategy.name
        rate = self.spec.false_positive_rate / len(others)
        parts = [
            role.select(F.lit(p).alias("place"), "m", F.xxhash64("element").alias("hash"), self._width.alias("width"))
            for p, role in enumerate(others)
        ]
        hashes = parts[0]
        for part in parts[1:]:
            hashes = hashes.unionByName(part)
        hashes = self.keep(hashes.groupBy("place", "m", "hash").agg(F.max("width").alias("width")))
        for row in hashes.groupBy("m").agg(F.sum("width").alias("bytes"), F.count("*").alias("n")).collect():
            self._add(row["m"], "exact_bytes", row["bytes"])
            if name != "one_filter":
                self._add(row["m"], "moved_bytes", row["n"] * HASH_BYTES)
        if name == "one_filter":
            hashes = hashes.withColumn("m", F.lit(0).cast("bigint")).select("place", "m", "hash").distinct()

        def build(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            table = pa.Table.from_batches(list(batches))
            own = np.unique(table["hash"].to_numpy().view(np.uint64))
            if name == "bloom":
                found: Any = BloomFilter(len(own), rate)
            else:
                size = size_for(len(own), rate, strategy.fingerprint_bits, strategy.bucket)
                found = CuckooFilter(len(own), size.fingerprint_bits, size.bucket)
            found.insert(own)
            yield pa.RecordBatch.from_arrays(
                [table["place"].chunk(0)[:1], table["m"].chunk(0)[:1], pa.array([found.to_bytes()])],
                names=["place", "m", "data"],
            )

        built = hashes.select("place", "m", "hash").groupBy("place", "m")
        filters: dict[tuple[int, int], bytes] = {}
        for row in built.applyInArrow(build, "place int, m bigint, data binary").toLocalIterator():
            filters[row["place"], row["m"]] = bytes(row["data"])
            if name != "one_filter":
                self._add(row["m"], "filter_bytes", len(row["data"]))
                self._add(row["m"], "moved_bytes", len(row["data"]))
        return filters

    # ------------------------------------------------------------------------------------------------------- books

    def _period(self, window: int) -> int:
        end = self.grid.end(window) - 1
        return int(end - end % self.spec.period_us)

    def _add(self, window: int, name: str, count: int) -> None:
        own = self.extras.setdefault(self._period(window), {})
        own[name] = own.get(name, 0) + count

    @property
    def _width(self) -> Column:
        """Bytes that an element takes on its way to another machine."""
        from pyspark.sql import functions as F

        return F.octet_length("element") if self.kind in ("string", "binary") else F.lit(8)

    def _count(self, rows: DataFrame, name: str, size: str | None = None) -> None:
        """Note elements per window as `name`, and their bytes as `size`."""
        from pyspark.sql import functions as F

        for row in rows.groupBy("m").agg(F.count("*").alias("n"), F.sum(self._width).alias("bytes")).collect():
            self._add(row["m"], name, row["n"])
            if size is not None:
                self._add(row["m"], size, row["bytes"])

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
