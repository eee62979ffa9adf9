"""`run`: micro-batches of any query kind, each planned, produced and committed once.

Commit order inside a micro-batch: plan, on-time results, late rows, ledger, state. The stage decides *what*; this
module decides *when it counts*. While one is committed, the next ones may be looked at (:mod:`latecomer.spark.prefetch`): that writes nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError

from latecomer.lake import crash_points, delta, journal, stream_schemas
from latecomer.lake.adapted_parameters import effective, parameters
from latecomer.lake.errors import InputError, LatecomerError, LeaseHeld
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.lake.maintenance import tend
from latecomer.spark.engine import tables
from latecomer.spark.engine.session import session
from latecomer.spark.engine.tuning import tune, tuning
from latecomer.spark.prefetch import Ahead, Look
from latecomer.spark.registry import stage_of
from latecomer.spark.stage import Batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from latecomer.specs.spec import Spec

ROWS_PER_BATCH = 4_000_000
"""Arrivals per micro-batch where the caller does not say. With 2 M, a history of 4 to 10 M rows took 1.05 to 1.4 times as long, by kind;
with more, what the driver holds of three micro-batches at a time leaves a 4 GB machine less and less."""


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
    """Process what was ingested and not yet processed.

    Parameters
    ----------
    rows_per_batch
        Arrivals (of all streams of the lake) per micro-batch.
    until_seq
        Last arrival to process, inclusive; None: all.
    flush
        The input is complete: close every window and period; not before the last arrival is processed.
    progress
        Called with one line per micro-batch.

    Raises
    ------
    InputError, SpecError, LeaseHeld
        Nothing was written then, or only whole micro-batches.
    """
    from latecomer.lake.ingest_log import committed_seq

    started = time.monotonic()
    if not lake.exists("ingest", "committed"):
        raise InputError("--lake", lake.uri, "has nothing ingested", "ingest first, or check the path")
    stream_schemas.check(lake, spec)  # before a JVM is started, and before a mistake is taken for a change
    with Lease(lake, f"run-{spec.name}") as lease:
        state = journal.load_state(lake, spec.name, spec)
        available = committed_seq(lake)  # not before: another may have processed what was ingested since
        end = available if until_seq is None else min(available, until_seq + 1)
        last_flush = flush and end == available
        if flush and not last_flush:
            progress(f"{spec.name}: not flushed, the last arrival is {available - 1}, after --until-seq {until_seq}")
        before = dict(state.counts) if state else {}
        count = 0
        plans = _Plans(lake, spec, end, rows_per_batch or ROWS_PER_BATCH, last_flush)
        with Ahead(plans.after) as ahead:
            for batch in plans.batches(state, lease.confirm):
                try:
                    state = _process(plans, batch, state, ahead, lease.confirm)
                except LeaseHeld:
                    raise
                except Exception as error:
                    if isinstance(error, DeltaError):  # a commit that was refused: another process may have taken over
                        with contextlib.suppress(DeltaError, OSError):
                            lease.confirm()
                    _take_back(lake, spec, batch, lease.confirm)
                    raise
                count += 1
                rows = f"arrivals {batch.seq_from} to {batch.seq_to - 1} of {end - 1}"
                what = rows if batch.seq_to > batch.seq_from else "flush"
                progress(f"{spec.name}: micro-batch {batch.number}, {what}")
        if count:
            tend(lake, [(area, spec.name) for area in ("on_time", "late", "ledger", "state", "journal")], count)
        after = state.counts if state else {}
        change = {key: after.get(key, 0) - before.get(key, 0) for key in ("rows_read", "on_time", "late")}
        return RunReport(
            **change, micro_batches=count, seq_to=state.seq_to if state else 0, seconds=time.monotonic() - started
        )


@dataclass(frozen=True)
class _Plans:
    """Micro-batches of at most `size` arrivals, up to arrival `end`; the last is to `flush` or not."""

    lake: Lake
    spec: Spec
    end: int
    size: int
    flush: bool

    def batches(self, state: journal.RunState | None, confirm: Callable[[], None]) -> Iterator[Batch]:
        """Those still to be done, each planned before it is given: an unfinished one first, then new ones."""
        number = state.number + 1 if state else 0
        seq = state.seq_to if state else 0
        flushed = state.flushed if state else False
        unfinished = _unfinished(self.lake, self.spec, number)
        while unfinished is not None or seq < self.end or (self.flush and not flushed):
            agreed = unfinished
            if agreed is None:
                agreed = self._next(seq) | {"parameters": effective(self.lake, self.spec.name, seq)}
                signature = {"asked": self.spec.signature()} if number == 0 else {}  # later, the state has it
                confirm()
                journal.plan(self.lake, self.spec.name, "run", number, agreed | signature)
            unfinished = None
            crash_points.point("run:planned")
            # plans of earlier versions do not say
            learnt = agreed["parameters"] if "parameters" in agreed else effective(self.lake, self.spec.name, seq)
            yield Batch(number, agreed["seq_from"], agreed["seq_to"], agreed["flush"], learnt)
            number, seq, flushed = number + 1, agreed["seq_to"], agreed["flush"]

    def after(self, batch: Batch) -> Batch | None:
        """The arrivals that will be planned after those of `batch`, if Spark is to plan alike for them; None: there are none."""
        if batch.flush or batch.seq_to >= self.end:  # unless it is only the flush that is left
            return None
        found = Batch(batch.number + 1, **self._next(batch.seq_to))
        alike = [tuning(each.seq_to - each.seq_from, each.seq_to) for each in (batch, found)]
        return found if alike[0] == alike[1] else None

    def _next(self, seq: int) -> dict[str, Any]:
        """What a plan says of the arrivals from `seq` on."""
        upto = seq + self.size
        return {"seq_from": seq, "seq_to": min(upto, self.end), "flush": self.flush and upto >= self.end}


def _unfinished(lake: Lake, spec: Spec, number: int) -> dict[str, Any] | None:
    """The plan that a killed writer left.

    Raises
    ------
    InputError
        It is of a query with another signature.
    """
    found = journal.planned(lake, spec.name, "run", number)
    signature = None if found is None else found.get("asked")
    if signature is not None and signature != journal.as_stored(spec.signature()):
        raise journal.changed(spec.name, signature, spec.signature())
    return found


def _take_back(lake: Lake, spec: Spec, batch: Batch, confirm: Callable[[], None]) -> None:
    """Undo the plan of a micro-batch that failed: the next may be smaller, or ask something else; not where anything was written.

    Nor where another process holds the lease by now: the plan is its own.
    """
    with contextlib.suppress(LatecomerError, DeltaError, OSError):
        confirm()
        if not any(_committed(lake, area, spec.name, batch.number) for area in ("on_time", "late", "ledger")):
            journal.take_back(lake, spec.name, "run", batch.number)


def _scanned(plans: _Plans, spark: SparkSession, batch: Batch, state: dict[str, Any] | None) -> Look:
    """A stage for the micro-batch, which is the caller's to release, and what it scanned: the same whatever `adapt` has learnt."""
    stage = stage_of(plans.spec, spark, plans.lake)
    try:
        return Look(batch, stage, stage.scan(batch, state))
    except BaseException:
        stage.release()
        raise


def _process(
    plans: _Plans, batch: Batch, state: journal.RunState | None, ahead: Ahead, confirm: Callable[[], None]
) -> journal.RunState:
    """`confirm` is asked before every commit."""
    lake, spec = plans.lake, plans.spec
    spark = session(lake, rows=plans.end - batch.seq_from)
    tune(spark, batch.seq_to - batch.seq_from, batch.seq_to)
    before = state.stage if state else None
    scan = partial(_scanned, plans, spark)
    look = ahead.take() or scan(batch, before)
    try:
        ahead.follow(look, scan)
        if look.looked is None:
            look.observe()
        look.stage.parameters = parameters(lake, spec.name, batch.parameters)
        batch = replace(batch, released=state.released if state else {})
        outcome = look.stage.process(batch, before, look.looked)
        for area, rows in (("on_time", outcome.on_time), ("late", outcome.late)):
            confirm()
            if rows is not None and not _committed(lake, area, spec.name, batch.number):
                tables.append(rows, lake, area, spec.name, "run", batch.number, few=area in outcome.few or None)
            crash_points.point(f"run:{area}")
        settled = outcome.settle(batch.produced(lake, spec.name) if outcome.on_time is not None else {})
    finally:
        look.stage.release()
    confirm()
    if settled.ledger is not None:
        delta.append(lake, "ledger", spec.name, settled.ledger, "run", batch.number)
    crash_points.point("run:ledger")
    released = batch.releases(lake, spec.name) if batch.flush else {}
    after = journal.RunState(
        batch.number,
        batch.seq_to,
        batch.flush,
        spec.fingerprint(),
        settled.state,
        settled.counts,
        released,
        spec.signature(),
    )
    confirm()
    journal.save_state(lake, spec.name, after)
    crash_points.point("run:state")
    return after


def _committed(lake: Lake, area: str, query: str, number: int) -> bool:
    done = delta.last_version(lake, area, query, "run")
    return done is not None and done >= number
