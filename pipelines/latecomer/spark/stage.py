"""What every query kind's Spark stage offers to the runner, and nothing more.

A stage is handed a micro-batch (a range of the arrival order) and the state its predecessor left; it answers with rows
to write and, once they are written, with the next state. It never commits: the runner does, in one order, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from latecomer.lake import delta
from latecomer.lake.lake import Lake
from latecomer.spark.engine import tables
from latecomer.spark.engine.tuning import expects_few
from latecomer.specs.spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Batch:
    """A micro-batch: arrivals ``[seq_from, seq_to)``; `flush` says that nothing comes after them.

    `parameters` is the number of what `adapt` learnt that holds here, None where it had learnt nothing. `released` are the result rows
    of a flush just before, and the sum of their waits (us), by period: they look as if arrival `seq_from` had published them.
    """

    number: int
    seq_from: int
    seq_to: int
    flush: bool = False
    parameters: int | None = None
    released: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def produced(self, lake: Lake, query: str) -> dict[int, int]:
        """Committed on-time rows of this micro-batch per period: what a flush releases is published by the arrival that would have come next."""
        found = delta.count_by(lake, "on_time", query, "period_start", self._published)
        return self._own(found, 0)

    def waits(self, lake: Lake, query: str) -> dict[int, int]:
        """Sum of the waits (us) of these rows, per period."""
        found = delta.count_by(lake, "on_time", query, "period_start", self._published, "wait_us")
        return self._own({period: wait or 0 for period, wait in found.items()}, 1)

    def releases(self, lake: Lake, query: str) -> dict[int, tuple[int, int]]:
        """At a flush, once its rows are committed: what the next micro-batch has as `released`."""
        last = pc.field("published_seq") == self.seq_to
        rows = delta.count_by(lake, "on_time", query, "period_start", last)
        waits = delta.count_by(lake, "on_time", query, "period_start", last, "wait_us") if rows else {}
        return {period: (count, waits.get(period) or 0) for period, count in rows.items()}

    @property
    def _published(self) -> pc.Expression:
        last = self.seq_to if self.flush else self.seq_to - 1
        return (pc.field("published_seq") >= self.seq_from) & (pc.field("published_seq") <= last)

    def _own(self, found: dict[int, int], place: int) -> dict[int, int]:
        rest = {period: total - self.released.get(period, (0, 0))[place] for period, total in found.items()}
        return {period: total for period, total in rest.items() if total or period not in self.released}


@dataclass(frozen=True)
class Settled:
    """What a micro-batch leaves behind: rows for the ledger, the next state, and counts for people."""

    ledger: pa.Table | None
    state: dict[str, Any]
    counts: dict[str, int]


@dataclass(frozen=True)
class Outcome:
    """What a micro-batch produced.

    Attributes
    ----------
    on_time, late
        Rows to append, in Spark or here; None where there are none.
    settle
        Called once both are committed, with the number of committed on-time rows per period (start in us).
    few
        Of ``on_time`` and ``late``, those whose rows are expected to be few.
    """

    on_time: DataFrame | None
    late: DataFrame | pa.Table | None
    settle: Callable[[dict[int, int]], Settled]
    few: Set[str] = frozenset()


@dataclass(frozen=True)
class Scanned:
    """What the order of a micro-batch's arrivals says; `following` is all that the next one's `scan` needs of the state, None at a flush."""

    following: dict[str, Any] | None


@dataclass(frozen=True)
class Looked:
    """What is read of a micro-batch before it is decided: its order, and what a kind's stage wanted to see because of that."""

    scanned: Scanned
    seen: Any


class Stage:
    """One query kind on Spark. What it caches is freed by :meth:`release`, whatever happened in between."""

    spec: Spec
    spark: SparkSession
    lake: Lake
    parameters: dict[str, Any] | None = None
    """What `adapt` has learnt that holds for the micro-batch at hand; :meth:`process` reads it, and nothing that comes before."""

    def scan(self, batch: Batch, state: dict[str, Any] | None) -> Scanned | None:
        """First of what can be read before the predecessor is decided, let alone committed; None where that is nothing. Writes nothing.

        `state` is what the predecessor's scan, or the predecessor, left; None at the first.
        """
        return None

    def observe(self, batch: Batch, scanned: Scanned) -> Any:
        """The rest of it. Reads, and writes nothing."""
        raise NotImplementedError

    def process(self, batch: Batch, state: dict[str, Any] | None, looked: Looked | None) -> Outcome:
        """Answer one micro-batch. `state` is None at the first; `looked` is what this stage scanned and observed of it."""
        raise NotImplementedError

    def repair(self, late: DataFrame, repaired_in: pa.Table) -> DataFrame:
        """Corrections for rows of the query's late table.

        `repaired_in` holds ``seq`` and ``repaired_in`` (int64): which rows to repair, and the arrival that closed
        the Gamma batch of each.
        """
        raise NotImplementedError

    def most_corrections(self, late: int) -> int:
        """Most corrections that so many late rows bring; 0 where nothing is known of it but that few bring few."""
        return 0

    def keep(self, rows: DataFrame) -> DataFrame:
        """Cache rows that are read more than once, until `release`."""
        self._kept.append(rows.persist())
        return self._kept[-1]

    def settled(self, rows: DataFrame) -> DataFrame:
        """Rows that are read more than once, computed now: here where few are expected and found, else kept."""
        found = tables.brought(rows) if expects_few(self.spark) else None
        return self.keep(rows) if found is None else tables.handed(self.spark, found)

    def release(self) -> None:
        """Free what was kept."""
        while self._kept:
            self._kept.pop().unpersist()

    @cached_property
    def _kept(self) -> list[Any]:
        return []
