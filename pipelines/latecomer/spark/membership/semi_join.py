"""A semi-join reducer with filters: which elements occur in every stream of a window, filters first, then exactly.

A semi-join reducer [1]_ with a cuckoo filter in place of the column that it would send:

1. *Lead.* In each window the stream with the fewest rows leads, of equals the first in the query. Hashes of its rows
   (``xxhash64``, cut to the bits that a filter needs, sorted, packed) give its filter. A stream without rows leads:
   nothing moves.
2. *Others.* A row of another stream goes on only if the lead's filter knows its element. Only hashes of these rows
   travel, and give the filter of that stream, a small one. Filters differ by seed: an element that passes one by
   mistake is no likelier to pass another.
3. *Candidates* are rows of any stream whose element the filters of all others know. They meet by element and window
   and are confirmed exactly: a result was seen in every stream.

So the hashes of one stream move, the survivors of the others, and of elements only candidates. The answer is exact;
``false_positive_rate`` bounds the work done in vain. A window with more than `SHARD_ROWS` rows of a stream has
several filters. The shard of an element is its hash modulo their number, a function of the number of rows alone. The
bound of a query's filter is that of one shard, as an element asks one per stream.

Filters are built in parallel, a task per shard at most, of sorted distinct hashes: each is a function of its windows'
elements alone. They are collected and sent to every task; rows are tested where they were read. Where few rows are
expected, all passes run at the driver, after one job that collects the rows: the same functions, so the same answers
and ledger. Strategies: ``mcf`` as above, ``bloom`` a Bloom filter in place of the cuckoo filter, ``one_filter`` one
filter per stream for all windows that close.

The ledger's figures are sums over windows of functions of their rows, whatever the cut into micro-batches: ``tested``
distinct elements of the lead, ``candidates`` and ``confirmed`` of them; ``filter_bytes``; ``moved_bytes`` of hashes
(distinct, packed together), filters (once) and candidates of all streams; ``exact_bytes`` of the elements of all
rows, which a semi-join would move, the lead's made distinct (taken at the mean length of their rows). ``tested``
counts hashes: it is short by one where two elements share the bits that travel, which is expected in one of thirty
full shards. Answers, ``confirmed`` and, but for that, ``tested`` and ``exact_bytes`` do not depend on `SHARD_ROWS`.
Which absent elements are candidates by mistake does, and so do ``candidates``, ``filter_bytes`` and ``moved_bytes``.
The errors of ``one_filter`` depend on which windows close together, so it counts nothing.

References
----------
.. [1] P. A. Bernstein, D.-M. W. Chiu, Using semi-joins to solve relational queries, Journal of the ACM 28, 1981.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.baselines.membership.filters import BloomFilter
from latecomer.core.arrays.packed_hashes import HASH_BITS, bits_needed, packed_size
from latecomer.core.membership.cuckoo import CuckooFilter, size_for
from latecomer.spark.engine import tables
from latecomer.spark.engine.tuning import is_driver_local
from latecomer.spark.engine.types import WHOLE_OR_FLOATING
from latecomer.spark.membership.filters import Bits, Filter, FilterData, Filters, all_bits, filled, packed, passing
from latecomer.spark.stage import StageCache
from latecomer.specs.membership import MembershipSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SHARD_ROWS = 1 << 18
"""Rows of one stream in one window up to which they share a filter; more are split by hash into about equal shards."""
_PLAIN = (*WHOLE_OR_FLOATING, "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz")
"""Types of elements that the driver compares as Spark does; decimals too."""
Leads = Mapping[int, tuple[int, int]]
"""Rows and bytes of elements of the lead of every window, by the window's number."""


@dataclass
class FilterCounts:
    """Sums of the ledger's figures about filters, by window.

    Attributes
    ----------
    by_window
        Window number -> ledger column -> sum.
    """

    by_window: dict[int, dict[str, int]] = field(default_factory=dict)

    def add(self, window: int, counts: Mapping[str, int]) -> None:
        """Add to the sums of a window."""
        sums = self.by_window.setdefault(window, {})
        for name, count in counts.items():
            sums[name] = sums.get(name, 0) + count


@dataclass(frozen=True)
class FilterSemiJoin:
    """Finds the elements that occur in every stream.

    Parameters
    ----------
    spec
        The query: its strategy and its bound.
    element_type
        Spark type of ``element``.
    spark, cache
        The session, and where rows and values are kept that are used more than once.
    """

    spec: MembershipSpec
    element_type: str
    spark: SparkSession
    cache: StageCache

    def confirmed(self, roles: list[DataFrame]) -> tuple[DataFrame, FilterCounts]:
        """Find the elements in every role, one per stream: rows with ``_m`` (window number) and ``element``.

        Returns
        -------
        DataFrame
            ``_m`` and ``element`` of what passes the filters of the other roles and is seen in all of them.
        FilterCounts
            Figures about the filters; empty unless the strategy counts them (`MembershipSpec.counts_filters`).
        """
        from pyspark.sql import functions as F

        counts = FilterCounts()
        parts = [
            role.select(F.lit(place).alias("place"), "_m", "element", F.xxhash64("element").alias("hash"))
            for place, role in enumerate(roles)
        ]
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.unionByName(part)
        collected = self._collected(rows)
        elements = self._by_tasks(rows, counts) if collected is None else self._at_driver(collected, counts)
        return elements, counts

    def _by_tasks(self, rows: DataFrame, counts: FilterCounts) -> DataFrame:
        """Find the elements in tasks."""
        from pyspark.sql import functions as F

        rows = self.cache.keep(rows)
        sizes = rows.groupBy("place", "_m").agg(F.count("*"), F.sum(self._width)).collect()
        filters, leads = self._planned([tuple(row) for row in sizes], counts)
        shares: list[object] = [self.cache.share(filters)]
        for others in (False, True):
            built = self._built(rows, filters, shares[:], others)
            shares.append(self.cache.share(self._collect_filters(built, leads, filters.bits, others, counts)))
        passed = rows.mapInArrow(partial(passing, shares=shares), f"rank int, _m bigint, element {self.element_type}")
        bit = F.call_function("shiftleft", F.lit(1).cast("bigint"), "rank")
        seen = self.cache.keep(passed.groupBy("_m", "element").agg(F.bit_or(bit).alias("ranks")))
        ranks, in_all = F.col("ranks"), all_bits(filters.places)
        if self.spec.counts_filters:
            counted = seen.groupBy("_m").agg(
                F.count_if(ranks.bitwiseAND(1) == 1),
                F.count_if(ranks == in_all),
                F.sum(self._width * F.bit_count(ranks)),
            )
            _add_candidates(counts, (tuple(row) for row in counted.collect()))
        return seen.where(ranks == in_all).select("_m", "element")

    def _at_driver(self, table: pa.Table, counts: FilterCounts) -> DataFrame:
        """Find the elements of collected rows, which have a ``width``, by the functions that tasks run."""
        sizes = table.group_by(["place", "_m"]).aggregate([("width", "count"), ("width", "sum")])
        columns = (column.to_pylist() for column in sizes.columns)
        filters, leads = self._planned(zip(*columns, strict=True), counts)
        shares: list[object] = [filters]
        for others in (False, True):
            hashes = list(packed(table.to_batches(), shares, others))
            shares.append(self._collect_filters(filled(hashes, self._new), leads, filters.bits, others, counts))
        passed = pa.Table.from_batches(
            passing(table.to_batches(), shares), pa.schema([("rank", pa.int32()), *list(table.schema)[1:]]).remove(3)
        )
        if self.element_type == "double":  # as the engine groups: zero has no sign
            passed = passed.set_column(2, "element", pc.add(passed["element"], 0.0))
        kinds = [("rank", "count_distinct"), ("rank", "min"), ("width", "max")]
        seen = passed.group_by(["_m", "element"]).aggregate(kinds)
        in_all = pc.equal(seen["rank_count_distinct"], filters.places)
        if self.spec.counts_filters:
            counted = pa.table(
                {
                    "_m": seen["_m"],
                    "candidate": pc.equal(seen["rank_min"], 0).cast(pa.int64()),
                    "confirmed": in_all.cast(pa.int64()),
                    "moved": pc.multiply(seen["width_max"], seen["rank_count_distinct"]),
                }
            ).group_by("_m")
            sums = counted.aggregate([(name, "sum") for name in ("candidate", "confirmed", "moved")])
            _add_candidates(counts, zip(*(column.to_pylist() for column in sums.columns), strict=True))
        return tables.to_spark(self.spark, seen.filter(in_all).select(["_m", "element"]))

    def _collected(self, rows: DataFrame) -> pa.Table | None:
        """Collect the rows with the bytes of their elements, where they are expected to be few and are; else None."""
        plain = self.element_type in _PLAIN or self.element_type.startswith("decimal")
        if not is_driver_local(self.spark) or not plain:
            return None
        return tables.collect_if_small(rows.withColumn("width", self._width.cast("bigint")))

    def _built(self, rows: DataFrame, filters: Filters, shares: list[object], others: bool) -> list[pa.RecordBatch]:
        """Build filters of the leads or, by theirs, of the `others`, in parallel; returns rows of `filters.BUILT`."""
        from pyspark.sql import functions as F

        leads = set(filters.leads.tolist())
        places = [place for place in range(filters.places) if (leads != {place} if others else place in leads)]
        tasks = int(self.spark.conf.get("spark.sql.shuffle.partitions") or 1)
        pieces = len(places) * filters.windows.size + sum(filters.shards.values())
        hashes = (
            rows.where(F.col("place").isin(places))
            .select("place", "_m", "hash")
            .mapInArrow(partial(packed, shares=shares, others=others), "place int, _m bigint, shard int, data binary")
            .repartition(min(tasks, pieces) or 1, "place", "_m", "shard")
        )
        types = "place int, _m bigint, shard int, rows bigint, data binary"
        batches: list[pa.RecordBatch] = hashes.mapInArrow(partial(filled, new=self._new), types).toArrow().to_batches()
        return batches

    @property
    def _error(self) -> float:
        """The false-positive rate asked of one filter: an element asks one of every other stream."""
        return self.spec.false_positive_rate / (len(self.spec.streams) - 1)

    @property
    def _new(self) -> Callable[[int, int], Filter]:
        """A function that makes an empty filter of a stream, by its place, for so many elements; called in tasks."""
        error, strategy = self._error, self.spec.strategy
        if strategy.name == "bloom":  # a tiny one errs more than its size says
            return lambda place, count: BloomFilter(count + 32, error, seed=place)
        size = size_for(0, error, strategy.fingerprint_bits, strategy.bucket)
        return lambda place, count: CuckooFilter(count, size.fingerprint_bits, size.bucket, seed=place)

    def _planned(self, given: Iterable[tuple[int, int, int, int]], counts: FilterCounts) -> tuple[Filters, Leads]:
        """Plan the filters of all windows, and count what a semi-join would move of the streams that do not lead.

        Parameters
        ----------
        given
            Place, window, rows and bytes of elements.

        Returns
        -------
        Filters
            What tasks know before there are filters.
        Leads
            Rows and bytes of the leads.
        """
        name, places = self.spec.strategy.name, len(self.spec.streams)
        together = name == "one_filter"
        sizes: dict[int, list[int]] = {}
        widths: dict[int, list[int]] = {}
        for place, window, count, width in given:
            key = 0 if together else window
            sizes.setdefault(key, [0] * places)[place] += count
            widths.setdefault(key, [0] * places)[place] += width
        leads = {window: size.index(min(size)) for window, size in sorted(sizes.items())}
        error = self._error
        if name != "bloom":
            strategy = self.spec.strategy
            error = size_for(0, error, strategy.fingerprint_bits, strategy.bucket).false_positive_bound
        shards: dict[tuple[int, int], int] = {}
        bits: dict[tuple[int, int], int] = {}
        for window, size in sorted(sizes.items()):
            for place, count in enumerate(size):
                if count > SHARD_ROWS:
                    shards[place, window] = -(-count // SHARD_ROWS)
                enough = bits_needed(min(count, SHARD_ROWS), error)
                if enough > HASH_BITS:
                    bits[place, window] = enough
            # of a window whose lead is empty nothing moves, and a late row may be all that brought it here
            if self.spec.counts_filters and min(size):
                counts.add(window, {"exact_bytes": sum(widths[window]) - widths[window][leads[window]]})
        of_leads = {window: (sizes[window][place], widths[window][place]) for window, place in leads.items()}
        numbers = np.array(list(leads), np.int64), np.array(list(leads.values()), np.int32)
        return Filters(places, together, name == "bloom", shards, bits, *numbers), of_leads

    def _collect_filters(
        self, built: Iterable[pa.RecordBatch], leads: Leads, bits: Bits, others: bool, counts: FilterCounts
    ) -> FilterData:
        """Return filters as tasks get them, from rows of `filters.BUILT`, and count their bytes and those of hashes."""
        data_by_shard: FilterData = {}
        tested: dict[int, int] = {}
        for batch in built:
            for place, window, shard, count, data in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                data_by_shard[place, window, shard] = data
                tested[window] = tested.get(window, 0) + count
                if self.spec.counts_filters:
                    hashes = packed_size(count, bits.get((place, window), HASH_BITS))
                    counts.add(window, {"filter_bytes": len(data), "moved_bytes": len(data) + hashes})
        if self.spec.counts_filters and not others:
            for window, count in tested.items():
                rows, width = leads[window]
                counts.add(window, {"tested": count, "exact_bytes": count * width // rows})
        return data_by_shard

    @property
    def _width(self) -> Column:
        """Bytes that an element takes on its way to another machine."""
        from pyspark.sql import functions as F

        return F.octet_length("element") if self.element_type in ("string", "binary") else F.lit(8)


def _add_candidates(counts: FilterCounts, counted: Iterable[tuple[int, int, int, int]]) -> None:
    """Add per window number: candidates of the lead, confirmed elements, bytes of the candidates of all streams."""
    for window, *numbers in counted:
        counts.add(window, dict(zip(("candidates", "confirmed", "moved_bytes"), numbers, strict=True)))
