"""Membership on Spark: which elements occur in every stream, filters first, then exactly.

A semi-join reducer (Bernstein and Chiu, 1981), with a cuckoo filter for the column that it would send:

1. *Lead.* In each window the stream with the fewest rows leads, of equals the first in the query. Its rows' hashes (``xxhash64``,
   cut to the bits that a filter needs, sorted, packed) give its filter. A stream without rows leads nobody: nothing moves.
2. *Others.* A row of another stream goes on only if the lead's filter knows its element; only hashes of these rows travel, and give that
   stream's filter, a small one. Filters differ by seed: what passes one by mistake is no likelier to make another err.
3. *Candidates* are rows of any stream whose element the filters of all others know. They meet by element and window and are
   confirmed exactly: a result was seen in every stream.

So one stream's hashes move, the others' survivors, and of elements only candidates; the answer is exact, and ``false_positive_rate`` bounds
the work done in vain. A window of more than `SHARD_ROWS` rows of a stream has several filters, an element's shard being its hash modulo
their number, a function of the number of rows alone; the bound of a query's filter is that of one shard, as an element asks one per stream.
Filters are built in parallel, a task per shard at most, of sorted distinct hashes: each is a function of its windows' elements alone. They
are collected and handed to every task; rows are tested where they were read. Where few rows are expected, all passes run at the
driver, after one job that brings the rows: the same functions, so the same answers and ledger. Strategies: ``mcf`` as above, ``bloom`` a
Bloom filter in the cuckoo filter's place, ``one_filter`` one filter per stream for all windows that close, ``exact`` a semi-join.

The ledger's figures are sums over windows of functions of their rows, whatever the cut into micro-batches: ``tested`` distinct elements of the
lead, ``candidates`` and ``confirmed`` of them; ``filter_bytes``; ``moved_bytes`` of hashes (distinct, packed together), filters (once) and
candidates of all streams; ``exact_bytes`` of the elements of all rows, which a semi-join would move, the lead's made distinct (taken at
their rows' mean length). ``tested`` counts hashes: it is short by one where two elements share the bits that travel, which is
expected in one of thirty full shards. Answers, ``confirmed`` and, but for that, ``tested`` and ``exact_bytes`` do not depend on `SHARD_ROWS`;
which absent elements are candidates by mistake, and so ``candidates``, ``filter_bytes`` and ``moved_bytes``, do. ``one_filter`` errs by what
happens to close together, so it notes nothing in the ledger.

An element is published once: a window's late rows can only add elements, each at the repair that made it complete. Null and
NaN are no elements. Windows: with one `window` for all streams, an element has to occur in the same window of each; with a window per
stream see :func:`latecomer.baselines.membership.multi_cuckoo.windows_touched`.

References
----------
P. A. Bernstein, D.-M. W. Chiu, Using semi-joins to solve relational queries, Journal of the ACM 28, 1981.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.baselines.membership.filters import BloomFilter
from latecomer.core.arrays.packed_hashes import HASH_BITS, bits_needed, packed_size
from latecomer.core.membership.cuckoo import CuckooFilter, size_for
from latecomer.core.windows.interfaces import Observed
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import as_column, ceil_div, floor_to, greatest, quoted
from latecomer.spark.engine.decimals import digits_of
from latecomer.spark.engine.query_columns import check_columns, of_passing
from latecomer.spark.engine.tuning import is_driver_local
from latecomer.spark.engine.types import FLOATING, WHOLE, WHOLE_OR_FLOATING
from latecomer.spark.membership.filters import Bits, FilterData, Filters, all_bits, filled, packed, passing
from latecomer.spark.windows.observation import Waited
from latecomer.spark.windows.repair import Due
from latecomer.spark.windows.rows import Closing
from latecomer.spark.windows.stage import WindowedStage
from latecomer.specs.membership import MembershipSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_PLAIN = (*WHOLE_OR_FLOATING, "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz")
SHARD_ROWS = 1 << 18
"""Rows of one stream in one window up to which they share a filter; more are split by hash into about equal shards."""


class MembershipStage(WindowedStage):
    """``kind: membership``; see the module docstring."""

    spec: MembershipSpec
    asked: MembershipSpec

    def check(self) -> None:
        """Element columns exist and are comparable."""
        check_columns(self.asked, self.events)

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
            return "bigint" if only in WHOLE else only
        if kinds <= set(WHOLE):
            return "bigint"
        if kinds <= {"timestamp", "timestamp_ntz"}:
            return "timestamp"
        return "double" if kinds & set(FLOATING) else _common_decimal(kinds)

    def payload(self, source: int) -> dict[str, str]:
        """Elements ``e{place}`` of the streams that read the source, ``ok``."""
        element = "nullif(try_cast({} as double), double('NaN'))" if self.kind == "double" else "try_cast({} as {})"
        found = {
            f"e{place}": of_passing(self.spec.filter_on(column.alias), element.format(quoted(column.name), self.kind))
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
        """First and last window of the first stream for which a row of stream `place` counts: its own, if the stream's windows are the first's."""
        if self.spec.windows[place] == self.spec.window:
            return super().first_of(time), super().last_of(time)
        size, slide = self.grid.size_us, self.grid.slide_us
        own = self.spec.windows[place]
        first_end = floor_to(time - own.size_us, own.slide_us) + own.slide_us + own.size_us
        last_end = floor_to(time, own.slide_us) + own.size_us
        first = ceil_div(first_end - size, slide)
        touched = ceil_div(last_end, slide) - 1
        following = ceil_div(last_end + own.slide_us - size, slide) - 1
        return first, greatest(touched, following)

    # ----------------------------------------------------------------------------------------------------- observe

    counts_results = True

    def observed(self, waited: Waited, wanted: list[dict[int, tuple[int, int]]]) -> list[dict[int, list[Observed]]]:
        """How long the elements of windows waited, each for the stream in which it came last; without filters, of waits and elements alone."""
        from pyspark.sql import functions as F

        looks, handed_looks = self.looked_at(waited, wanted[0])
        parts = []
        for place, _ in enumerate(self.side_of):
            own = self.waits(self._role(waited.rows, place, None, None), handed_looks)
            parts.append(own.select("_look", "element", F.lit(place).alias("place"), "_wait"))
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.unionByName(part)
        first = rows.groupBy("_look", "element", "place").agg(F.min("_wait").alias("_wait"))
        each = first.groupBy("_look", "element").agg(F.max("_wait").alias("_wait"), F.count("*").alias("_n"))
        found = each.where(F.col("_n") == len(parts)).groupBy("_look", "_wait").agg(F.count("*").alias("results"))
        return self.required(looks, found.toArrow(), wanted[0])

    # ----------------------------------------------------------------------------------------------------- answers

    def _role(self, rows: DataFrame, place: int, first: Column | None, last: Column | None) -> DataFrame:
        """Rows of one stream by window, as ``_m`` and ``element``; `first` and `last` bound the windows further."""
        from pyspark.sql import functions as F

        own = rows.where(F.col("side") == self.side_of[place]).withColumn("element", F.col(f"e{place}"))
        own = own.where(F.col("element").isNotNull())
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
            .join(F.broadcast(closed.select("_m")), "_m")
            .select("_m", "element")
            for place in range(len(self.side_of))
        ]
        if self.spec.strategy.name == "exact":
            found = roles[0].distinct()
            for role in roles[1:]:
                found = found.join(role, ["_m", "element"], "left_semi")
        else:
            found = self._confirmed(roles)
        return found.join(F.broadcast(closed), "_m").select("element", "_m", "closed_seq", "wait_us")

    def _confirmed(self, roles: list[DataFrame]) -> DataFrame:
        """Elements in every role, ``_m`` and ``element``: what passes the other roles' filters, seen in all of them."""
        from pyspark.sql import functions as F

        parts = [
            role.select(F.lit(place).alias("place"), "_m", "element", F.xxhash64("element").alias("hash"))
            for place, role in enumerate(roles)
        ]
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.unionByName(part)
        here = self._brought(rows)
        if here is not None:
            return self._confirmed_here(here)
        rows = self.cache.keep(rows)
        counts = rows.groupBy("place", "_m").agg(F.count("*"), F.sum(self._width)).collect()
        filters, lead = self._planned([tuple(row) for row in counts])
        shares: list[Any] = [self.cache.share(filters)]
        for others in (False, True):
            shares.append(
                self.cache.share(
                    self._learnt(self._built(rows, filters, shares[:], others), lead, filters.bits, others)
                )
            )
        passed = rows.mapInArrow(partial(passing, shares=shares), f"rank int, _m bigint, element {self.kind}")
        bit = F.call_function("shiftleft", F.lit(1).cast("bigint"), "rank")
        seen = self.cache.keep(passed.groupBy("_m", "element").agg(F.bit_or(bit).alias("ranks")))
        ranks, wanted = F.col("ranks"), all_bits(len(roles))
        if self._noted:
            counted = seen.groupBy("_m").agg(
                F.count_if(ranks.bitwiseAND(1) == 1),
                F.count_if(ranks == wanted),
                F.sum(self._width * F.bit_count(ranks)),
            )
            self._note_candidates(tuple(row) for row in counted.collect())
        return seen.where(ranks == wanted).select("_m", "element")

    def _built(self, rows: DataFrame, filters: Filters, shares: list[Any], others: bool) -> list[pa.RecordBatch]:
        """Filters of the leads or, by the leads', of the `others`, in parallel: rows of `BUILT`."""
        from pyspark.sql import functions as F

        leads = set(filters.leads.tolist())
        asked = [place for place in range(filters.places) if (leads != {place} if others else place in leads)]
        tasks = int(self.spark.conf.get("spark.sql.shuffle.partitions") or 1)
        pieces = len(asked) * filters.windows.size + sum(filters.shards.values())
        hashes = (
            rows.where(F.col("place").isin(asked))
            .select("place", "_m", "hash")
            .mapInArrow(partial(packed, shares=shares, others=others), "place int, _m bigint, shard int, data binary")
            .repartition(min(tasks, pieces) or 1, "place", "_m", "shard")
        )
        types = "place int, _m bigint, shard int, rows bigint, data binary"
        batches: list[pa.RecordBatch] = hashes.mapInArrow(partial(filled, new=self._new), types).toArrow().to_batches()
        return batches

    def _brought(self, rows: DataFrame) -> pa.Table | None:
        """The rows with the bytes of their elements, where they are expected to be few and are."""
        if not is_driver_local(self.spark) or not (self.kind in _PLAIN or self.kind.startswith("decimal")):
            return None
        return tables.collect_if_small(rows.withColumn("width", self._width.cast("bigint")))

    def _confirmed_here(self, table: pa.Table) -> DataFrame:
        """As `_confirmed`, of rows that are here."""
        counts = table.group_by(["place", "_m"]).aggregate([("width", "count"), ("width", "sum")])
        filters, lead = self._planned(zip(*(column.to_pylist() for column in counts.columns), strict=True))
        shares: list[Any] = [filters]
        for others in (False, True):
            hashes = list(packed(table.to_batches(), shares, others))
            shares.append(self._learnt(filled(hashes, self._new), lead, filters.bits, others))
        passed = pa.Table.from_batches(
            passing(table.to_batches(), shares), pa.schema([("rank", pa.int32()), *list(table.schema)[1:]]).remove(3)
        )
        if self.kind == "double":  # as the engine groups: zero has no sign
            passed = passed.set_column(2, "element", pc.add(passed["element"], 0.0))
        kinds = [("rank", "count_distinct"), ("rank", "min"), ("width", "max")]
        seen = passed.group_by(["_m", "element"]).aggregate(kinds)
        whole = pc.equal(seen["rank_count_distinct"], filters.places)
        if self._noted:
            counted = pa.table(
                {
                    "_m": seen["_m"],
                    "candidate": pc.equal(seen["rank_min"], 0).cast(pa.int64()),
                    "confirmed": whole.cast(pa.int64()),
                    "moved": pc.multiply(seen["width_max"], seen["rank_count_distinct"]),
                }
            ).group_by("_m")
            sums = counted.aggregate([(name, "sum") for name in ("candidate", "confirmed", "moved")])
            self._note_candidates(zip(*(column.to_pylist() for column in sums.columns), strict=True))
        return tables.to_spark(self.spark, seen.filter(whole).select(["_m", "element"]))

    @cached_property
    def _error(self) -> float:
        """False-positive rate asked of one filter: an element asks one of every other stream."""
        return self.spec.false_positive_rate / (len(self.side_of) - 1)

    @property
    def _new(self) -> Callable[[int, int], BloomFilter | CuckooFilter]:
        """Makes an empty filter of a stream, by its place, for so many elements; called in tasks."""
        error, strategy = self._error, self.spec.strategy
        if strategy.name == "bloom":  # a tiny one errs more than its size says
            return lambda place, count: BloomFilter(count + 32, error, seed=place)
        size = size_for(0, error, strategy.fingerprint_bits, strategy.bucket)
        return lambda place, count: CuckooFilter(count, size.fingerprint_bits, size.bucket, seed=place)

    def _planned(self, counts: Iterable[tuple[int, int, int, int]]) -> tuple[Filters, dict[int, tuple[int, int]]]:
        """What tasks know before there are filters, and the rows and bytes of every window's lead.

        `counts` are place, window, rows and bytes of elements. Notes what a semi-join would move of the others.
        """
        name, places = self.spec.strategy.name, len(self.side_of)
        together = name == "one_filter"
        sizes: dict[int, list[int]] = {}
        widths: dict[int, list[int]] = {}
        for place, window, count, width in counts:
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
            if self._noted and min(size):
                self._add(window, {"exact_bytes": sum(widths[window]) - widths[window][leads[window]]})
        lead = {window: (sizes[window][place], widths[window][place]) for window, place in leads.items()}
        numbers = np.array(list(leads), np.int64), np.array(list(leads.values()), np.int32)
        return Filters(places, together, name == "bloom", shards, bits, *numbers), lead

    def _learnt(
        self, built: Iterable[pa.RecordBatch], lead: dict[int, tuple[int, int]], bits: Bits, others: bool
    ) -> FilterData:
        """Filters as tasks get them, from rows of `BUILT`; notes what they and their hashes cost."""
        found: FilterData = {}
        tested: dict[int, int] = {}
        for batch in built:
            for place, window, shard, count, data in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                found[place, window, shard] = data
                tested[window] = tested.get(window, 0) + count
                if self._noted:
                    hashes = packed_size(count, bits.get((place, window), HASH_BITS))
                    self._add(window, {"filter_bytes": len(data), "moved_bytes": len(data) + hashes})
        if self._noted and not others:
            for window, count in tested.items():
                rows, width = lead[window]
                self._add(window, {"tested": count, "exact_bytes": count * width // rows})
        return found

    # ------------------------------------------------------------------------------------------------------- books

    def _period(self, window: int) -> int:
        end = self.grid.end(window) - 1
        return int(end - end % self.spec.period_us)

    @property
    def _noted(self) -> bool:
        """Are the filters' figures a function of the windows alone, and so of the ledger?"""
        return self.spec.counts_filters

    def _add(self, window: int, counts: dict[str, int]) -> None:
        own = self.extras.setdefault(self._period(window), {})
        for name, count in counts.items():
            own[name] = own.get(name, 0) + count

    @property
    def _width(self) -> Column:
        """Bytes that an element takes on its way to another machine."""
        from pyspark.sql import functions as F

        return F.octet_length("element") if self.kind in ("string", "binary") else F.lit(8)

    def _note_candidates(self, counted: Iterable[tuple[int, int, int, int]]) -> None:
        """Note per window, by its number: the lead's candidates, those confirmed, and the bytes of all streams' candidates."""
        for window, *counts in counted:
            self._add(window, dict(zip(("candidates", "confirmed", "moved_bytes"), counts, strict=True)))

    # ------------------------------------------------------------------------------------------------------ repair

    def corrected(self, due: Due) -> DataFrame:
        """Elements that late rows complete, each at the Gamma batch that did."""
        from pyspark.sql import functions as F

        places = range(len(self.side_of))
        late = [
            self._role(due.rows, p, F.col("m_from"), F.col("m_to")).select("_m", "element", "seq", "repaired_in")
            for p in places
        ]
        keys = late[0].select("_m", "element")
        for part in late[1:]:
            keys = keys.unionByName(part.select("_m", "element"))
        keys = self.cache.materialize(keys.distinct())
        stored = self.stored_in(due)
        found = None
        for place in places:
            own = (
                self._role(stored, place, None, None)
                .select("_m", "element", "seq")
                .join(keys, ["_m", "element"], "left_semi")
            )
            marked = own.join(late[place], ["_m", "element", "seq"], "left")
            since = marked.groupBy("_m", "element").agg(F.min(F.coalesce("repaired_in", F.lit(-1))).alias(f"c{place}"))
            found = since if found is None else found.join(since, ["_m", "element"])
        assert found is not None
        when = F.greatest(*(f"c{place}" for place in places))
        complete = found.withColumn("repaired_in", when).where(F.col("repaired_in") >= 0)
        return complete.select("element", "_m", "repaired_in")


def _common_decimal(kinds: Iterable[str]) -> str:
    """The decimal type in which whole numbers and decimals are compared: what one of the types cannot hold is no element of all."""
    sizes = []
    for kind in kinds:
        digits, scale = digits_of(kind) if kind.startswith("decimal") else (_DIGITS[kind], 0)
        sizes.append((digits - scale, scale))
    scale = max(scale for _, scale in sizes)
    return f"decimal({max(min(whole for whole, _ in sizes) + scale, 1)},{scale})"
