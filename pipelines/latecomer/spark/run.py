"""`run`: micro-batches of any query kind, each planned, produced and committed once.

Commit order inside a micro-batch: plan, results, late rows, recalls, ledger, state. The stage decides *what* is
written; this module decides *when it counts*. While one micro-batch is committed, the next ones may be prefetched
(:mod:`latecomer.spark.prefetch`), which writes nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError

from latecomer.lake import adapted_parameters, crash_points, journal, result_views, stream_schemas
from latecomer.lake.errors import InputError, LatecomerError, LeaseHeld
from latecomer.lake.ingest_log import committed_seq
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.lake.maintenance import compact_and_vacuum
from latecomer.spark.engine import connect, tables
from latecomer.spark.engine.session import session
from latecomer.spark.engine.tuning import tune, tuning
from latecomer.spark.prefetch import PrefetchedBatch, Prefetcher
from latecomer.spark.registry import stage_of
from latecomer.spark.stage import Batch, StageState
from latecomer.specs.join import JoinSpec
from latecomer.specs.windows import RevisedSpec, WaitingSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from latecomer.specs.spec import Spec

ROWS_PER_BATCH = 4_000_000
"""Arrivals per micro-batch where the caller names no number; see ``docs/experiments/variants.md``."""
COMMITTED_AREAS = ("on_time", "late", "recalls", "ledger")
"""Tables that a micro-batch writes before its state, in the order of their commits."""


@dataclass(frozen=True)
class RunReport:
    """What one call of `run` did; the counts are of this call."""

    rows_read: int
    on_time: int
    late: int
    micro_batches: int
    seq_to: int
    seconds: float


def run(
    lake: Lake,
    spec: Spec,
    *,
    rows_per_batch: int | None = None,
    until_seq: int | None = None,
    flush: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> RunReport:
    """Process the arrivals that were ingested and not yet processed.

    Parameters
    ----------
    rows_per_batch
        Arrivals (of all streams of the lake) per micro-batch; None: `ROWS_PER_BATCH`.
    until_seq
        Last arrival to process, inclusive; None: all.
    flush
        The input is complete: close every window and period, once the last arrival is processed.
    progress
        Called with one line per micro-batch.

    Raises
    ------
    InputError, SpecError, LeaseHeld
        Nothing was written then, or only whole micro-batches.
    """
    started = time.monotonic()
    if not lake.table("ingest", "committed").exists():
        raise InputError("--lake", lake.uri, "has nothing ingested", "ingest first, or check the path")
    stream_schemas.check(lake, spec)  # before a JVM is started, and before a mistake is taken for a changed query
    with Lease(lake, f"run-{spec.name}") as lease:
        state = journal.load_state(lake, spec.name, spec)
        available = committed_seq(lake)  # under the lease: another process may have processed arrivals just before
        end = available if until_seq is None else min(available, until_seq + 1)
        last_flush = flush and end == available
        if flush and not last_flush:
            progress(f"{spec.name}: not flushed, the last arrival is {available - 1}, after --until-seq {until_seq}")
        counts_before = dict(state.counts) if state else {}
        micro_batches = 0
        plans = _Plans(lake, spec, end, rows_per_batch or ROWS_PER_BATCH, last_flush)
        with Prefetcher(plans.after) as prefetcher:
            for batch in plans.batches(state, lease.confirm):
                try:
                    state = _process(plans, batch, state, prefetcher, lease.confirm)
                except LeaseHeld:
                    raise
                except Exception as error:
                    if isinstance(error, DeltaError):  # a refused commit: another process may have taken over
                        with contextlib.suppress(DeltaError, OSError):
                            lease.confirm()
                    if not connect.is_lost(error):  # a server that was not reached may be writing still
                        _take_back(lake, spec, batch, lease.confirm)
                    raise
                micro_batches += 1
                arrivals = f"arrivals {batch.seq_from} to {batch.seq_to - 1} of {end - 1}"
                done = arrivals if batch.seq_to > batch.seq_from else "flush"
                progress(f"{spec.name}: micro-batch {batch.number}, {done}")
        if micro_batches:
            areas = (*COMMITTED_AREAS, "state", "journal")
            compact_and_vacuum([lake.table(area, spec.name) for area in areas], micro_batches)
        counts = state.counts if state else {}
        change = {key: counts.get(key, 0) - counts_before.get(key, 0) for key in ("rows_read", "on_time", "late")}
        seq_to = state.seq_to if state else 0
        return RunReport(**change, micro_batches=micro_batches, seq_to=seq_to, seconds=time.monotonic() - started)


@dataclass(frozen=True)
class _Plans:
    """Micro-batches of at most `size` arrivals, up to arrival `end`; `flush`: the last one flushes."""

    lake: Lake
    spec: Spec
    end: int
    size: int
    flush: bool

    def batches(self, state: journal.RunState | None, confirm: Callable[[], None]) -> Iterator[Batch]:
        """Yield the micro-batches still to be done, an unfinished one first; each is planned before it is yielded."""
        number = state.number + 1 if state else 0
        seq = state.seq_to if state else 0
        flushed = state.flushed if state else False
        unfinished = _unfinished(self.lake, self.spec, number)
        while unfinished is not None or seq < self.end or (self.flush and not flushed):
            plan = unfinished
            if plan is None:
                plan = self._next(seq) | {"parameters": self._newest_parameters(seq)} | self._repaired_to()
                # the state of the first micro-batch tells later ones which query they answer
                signature = {"asked": self.spec.signature()} if number == 0 else {}
                confirm()
                journal.plan(self.lake, self.spec.name, "run", number, plan | signature)
            unfinished = None
            crash_points.point("run:planned")
            # plans of earlier versions name no parameters
            parameters = plan["parameters"] if "parameters" in plan else self._newest_parameters(seq)
            repaired_to = plan.get("repaired_to", -1)
            yield Batch(number, plan["seq_from"], plan["seq_to"], plan["flush"], parameters, repaired_to=repaired_to)
            number, seq, flushed = number + 1, plan["seq_to"], plan["flush"]

    def after(self, batch: Batch) -> Batch | None:
        """Return the micro-batch that will be planned after `batch`, as far as Spark is tuned alike for both.

        Else None.
        """
        if batch.flush or batch.seq_to >= self.end:  # nothing follows, or only the flush
            return None
        following = Batch(batch.number + 1, **self._next(batch.seq_to))
        settings = [tuning(*self.size_of(b)) for b in (batch, following)]
        return following if settings[0] == settings[1] else None

    def size_of(self, batch: Batch) -> tuple[int, int, int]:
        """Return the micro-batch's new rows, the arrivals so far, and a bound of its results: 0 where none is known."""
        rows, spec = batch.seq_to - batch.seq_from, self.spec
        most_results = 0
        if isinstance(spec, RevisedSpec) and spec.group_by:  # an answer per window of each row, at most
            most_results = rows * spec.window.per_row
        return rows, batch.seq_to, most_results

    def _next(self, seq: int) -> dict[str, Any]:
        """Return the plan of the arrivals from `seq` on."""
        seq_to = seq + self.size
        return {"seq_from": seq, "seq_to": min(seq_to, self.end), "flush": self.flush and seq_to >= self.end}

    def _repaired_to(self) -> dict[str, int]:
        """Return the part of a plan that says what `repair` has done, which recalls depend on."""
        spec = self.spec
        revises = isinstance(spec, RevisedSpec) and spec.revises
        if not (revises or (isinstance(spec, JoinSpec | WaitingSpec) and spec.guarantee)):
            return {}
        return {"repaired_to": result_views.repairs_planned_to(self.lake, self.spec.name)}

    def _newest_parameters(self, seq: int) -> int | None:
        return adapted_parameters.effective(self.lake, self.spec.name, seq)


def _unfinished(lake: Lake, spec: Spec, number: int) -> dict[str, Any] | None:
    """Return the plan that a killed writer left, if there is one.

    Raises
    ------
    InputError
        It is the plan of a query that computes something else.
    """
    plan = journal.planned(lake, spec.name, "run", number)
    signature = None if plan is None else plan.get("asked")
    if signature is not None and signature != journal.as_stored(spec.signature()):
        raise journal.changed(spec.name, signature, spec.signature())
    return plan


def _take_back(lake: Lake, spec: Spec, batch: Batch, confirm: Callable[[], None]) -> None:
    """Undo the plan of a micro-batch that failed, so that the next plan may be smaller or of another query.

    It stays where anything was written, and where another process holds the lease by now: then it is that process's
    plan.
    """
    with contextlib.suppress(LatecomerError, DeltaError, OSError):
        confirm()
        if not any(lake.table(area, spec.name).has_committed("run", batch.number) for area in COMMITTED_AREAS):
            journal.take_back(lake, spec.name, "run", batch.number)


def _scan(plans: _Plans, spark: SparkSession, batch: Batch, state: StageState | None) -> PrefetchedBatch:
    """Scan a micro-batch with a stage of its own, which the caller releases.

    The parameters of `adapt` play no part in it.
    """
    stage = stage_of(plans.spec, spark, plans.lake)
    try:
        return PrefetchedBatch(batch, stage, stage.scan(batch, state))
    except BaseException:
        stage.release()
        raise


def _process(
    plans: _Plans,
    batch: Batch,
    state: journal.RunState | None,
    prefetcher: Prefetcher,
    confirm: Callable[[], None],
) -> journal.RunState:
    """Produce and commit one micro-batch. `confirm` is called before every commit."""
    lake, spec = plans.lake, plans.spec
    spark = session(lake, rows=plans.end - batch.seq_from)
    tune(spark, *plans.size_of(batch))
    before = state.stage if state else None
    scan = partial(_scan, plans, spark)
    prefetched = prefetcher.take() or scan(batch, before)
    stage = prefetched.stage
    try:
        prefetcher.follow(prefetched, scan)
        prefetched.observe()
        parameters = adapted_parameters.parameters(lake, spec.name, batch.parameters)
        batch = replace(batch, flushed_before=state.flushed_results if state else {})
        outcome = stage.process(batch, before, prefetched.observation, parameters)
        for area, rows in (("on_time", outcome.on_time), ("late", outcome.late)):
            confirm()
            table = lake.table(area, spec.name)
            if rows is not None and not table.has_committed("run", batch.number):
                driver_local = area in outcome.driver_local or None
                tables.append(rows, table, "run", batch.number, driver_local=driver_local)
            crash_points.point(f"run:{area}")
        published = outcome.on_time is not None
        if outcome.recall is not None:
            recalled, table = outcome.recall(), lake.table("on_time", spec.name)
            confirm()
            if recalled is not None and not table.has_committed("recall", batch.number):
                tables.append(recalled, table, "recall", batch.number)
            published |= recalled is not None
            crash_points.point("run:recalled")
        commit = outcome.finalize(batch.count_published(lake, spec.name) if published else {})
    finally:
        stage.release()
    confirm()
    if commit.recalls is not None:
        lake.table("recalls", spec.name).append(commit.recalls, "run", batch.number)
    crash_points.point("run:recalls")
    confirm()
    if commit.ledger is not None:
        lake.table("ledger", spec.name).append(commit.ledger, "run", batch.number)
    crash_points.point("run:ledger")
    after = journal.RunState(
        number=batch.number,
        seq_to=batch.seq_to,
        flushed=batch.flush,
        fingerprint=spec.fingerprint(),
        stage=commit.state,
        counts=commit.counts,
        flushed_results=batch.flushed_results(lake, spec.name) if batch.flush else {},
        signature=spec.signature(),
    )
    confirm()
    journal.save_state(lake, spec.name, after)
    crash_points.point("run:state")
    return after
