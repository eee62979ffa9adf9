"""The contract between the runner and the Spark stage of a query kind.

The runner hands a stage a micro-batch (a range of the arrival order) and the state that its predecessor left. The stage
returns rows to write and, once they are written, the next state. It never commits: the runner does, in one order, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from latecomer.lake.lake import Lake
from latecomer.spark.engine import connect, tables
from latecomer.spark.engine.tuning import is_driver_local
from latecomer.specs.spec import Spec

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
StageState = dict[str, Any]
"""The state of a stage after a micro-batch: a JSON document, whose keys its kind chooses."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch: arrivals ``[seq_from, seq_to)``.

    Attributes
    ----------
    number
        Number of the micro-batch, from 0.
    flush
        The input is complete: nothing comes after these arrivals.
    parameters
        Number of the parameters of `adapt` that hold here; None where it had written none.
    flushed_before
        Result rows of the flush before this micro-batch, and the sum of their waits (us), per period (us). A flush has
        no arrival of its own: its rows carry the number of the next one, `seq_from`, and must not be counted again
        here.
    repaired_to
        The last arrival up to which all late rows were repaired when the micro-batch was planned; -1: none.
    """

    number: int
    seq_from: int
    seq_to: int
    flush: bool = False
    parameters: int | None = None
    flushed_before: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    repaired_to: int = -1

    def count_published(self, lake: Lake, query: str) -> dict[int, int]:
        """Count the committed on-time rows of this micro-batch per period (us).

        A flush publishes under the number of the arrival that would have come next.
        """
        counts = lake.table("on_time", query).count_by("period_start", self._published)
        return self._without_flushed(counts, 0)

    def sum_waits(self, lake: Lake, query: str) -> dict[int, int]:
        """Sum the waits (us) of these rows per period (us)."""
        waits = lake.table("on_time", query).sum_by("period_start", "wait_us", self._published)
        return self._without_flushed(waits, 1)

    def flushed_results(self, lake: Lake, query: str) -> dict[int, tuple[int, int]]:
        """Return what a flush has published, once it is committed: the `flushed_before` of the next micro-batch."""
        flushed = pc.field("published_seq") == self.seq_to
        table = lake.table("on_time", query)
        counts = table.count_by("period_start", flushed)
        # joins that publish a pair at its arrival store no wait
        waits = table.sum_by("period_start", "wait_us", flushed) if counts and "wait_us" in table.schema().names else {}
        return {period: (count, waits.get(period, 0)) for period, count in counts.items()}

    @property
    def _published(self) -> pc.Expression:
        last = self.seq_to if self.flush else self.seq_to - 1
        return (pc.field("published_seq") >= self.seq_from) & (pc.field("published_seq") <= last)

    def _without_flushed(self, totals: dict[int, int], place: int) -> dict[int, int]:
        rest = {period: total - self.flushed_before.get(period, (0, 0))[place] for period, total in totals.items()}
        return {period: total for period, total in rest.items() if total or period not in self.flushed_before}


@dataclass(frozen=True)
class BatchCommit:
    """The commit after the rows of a micro-batch: ledger rows, the next state, and running counts for people.

    `recalls` says which late rows' missed results are among the published ones, so that `repair` skips them; None: of
    none.
    """

    ledger: pa.Table | None
    state: StageState
    counts: dict[str, int]
    recalls: pa.Table | None = None


@dataclass(frozen=True)
class Outcome:
    """What a micro-batch produced.

    Attributes
    ----------
    on_time, late
        Rows to append; None where there are none.
    finalize
        Called once both are committed, with the number of committed on-time rows per period (us).
    driver_local
        Names among ``on_time`` and ``late`` whose rows are expected to be few: the driver collects and commits them.
    recall
        Called once both are committed, and before ``finalize``: returns results of late rows to append to the on-time
        rows, None where there are none. None: the kind recalls nothing.
    """

    on_time: DataFrame | None
    late: DataFrame | pa.Table | None
    finalize: Callable[[dict[int, int]], BatchCommit]
    driver_local: Set[str] = frozenset()
    recall: Callable[[], DataFrame | None] | None = None


@dataclass(frozen=True)
class BatchScan:
    """What the arrival order of a micro-batch says.

    Attributes
    ----------
    following
        All that the scan of the next micro-batch needs of the state; None at a flush.
    """

    following: StageState | None


@dataclass(frozen=True)
class Observation:
    """What was read of a micro-batch before it is decided: its scan, and what the kind observed because of it."""

    scan: BatchScan
    observed: Any


class StageCache:
    """Rows and values that a stage keeps in Spark, to be freed together whatever happened in between."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._cached: list[DataFrame | Broadcast[Any] | connect.Shared] = []

    def keep(self, rows: DataFrame) -> DataFrame:
        """Cache rows that are read more than once."""
        cached = rows.persist()
        self._cached.append(cached)
        return cached

    def share(self, value: T) -> Broadcast[T] | connect.Shared:
        """Copy a value to every task, where it is the attribute ``value`` of what is returned."""
        shared = connect.share(self._spark, value)
        self._cached.append(shared)
        return shared

    def materialize(self, rows: DataFrame) -> DataFrame:
        """Compute rows that are read more than once: in the driver where they are few, else cached in Spark."""
        collected = tables.collect_if_small(rows) if is_driver_local(self._spark) else None
        return self.keep(rows) if collected is None else tables.to_spark(self._spark, collected)

    def detach(self, rows: DataFrame) -> DataFrame:
        """Compute rows that plans are built on step by step, which would else repeat all steps before them.

        Few rows are collected in the driver; many are kept in Spark until nothing refers to them.
        """
        kept = self.keep(rows)
        collected = tables.collect_if_small(kept)
        return kept.localCheckpoint() if collected is None else tables.to_spark(self._spark, collected)

    def release(self) -> None:
        """Free all of them."""
        while self._cached:
            self._cached.pop().unpersist()


class Stage:
    """One query kind on Spark.

    Attributes
    ----------
    cache
        Rows and values that the stage keeps in Spark while it is at work; :meth:`release` frees them.
    """

    spec: Spec

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self.spark, self.lake = spark, lake
        self.cache = StageCache(spark)

    def scan(self, batch: Batch, state: StageState | None) -> BatchScan | None:
        """Scan a micro-batch before its predecessor is decided, let alone committed; None where the kind needs no scan.

        Writes nothing. `state` is what the predecessor, or its scan, left; None at the first micro-batch.
        """
        return None

    def observe(self, batch: Batch, scan: BatchScan) -> Any:
        """Read what the decisions about a scanned micro-batch need. Writes nothing."""
        raise NotImplementedError

    def process(
        self,
        batch: Batch,
        state: StageState | None,
        observation: Observation | None,
        parameters: dict[str, Any] | None,
    ) -> Outcome:
        """Answer one micro-batch.

        Parameters
        ----------
        state
            What the predecessor left; None at the first micro-batch.
        observation
            What this stage scanned and observed of the micro-batch; None where the kind needs no scan.
        parameters
            What `adapt` has written that holds here, with its ``number``; None: nothing.
        """
        raise NotImplementedError

    def repair(self, late: DataFrame, repaired_in: pa.Table) -> DataFrame:
        """Return the corrections for rows of the query's late table.

        `repaired_in` holds ``seq`` and ``repaired_in`` (int64): the late rows to repair, and the arrival that closed
        the Gamma batch of each.
        """
        raise NotImplementedError

    def most_corrections(self, late: int) -> int:
        """Return an upper bound of the corrections that so many late rows bring; 0 where none is known."""
        return 0

    def release(self) -> None:
        """Free what the stage keeps in Spark."""
        self.cache.release()
