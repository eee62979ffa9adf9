"""`repair`: turn registered late rows into corrections, Gamma batch by Gamma batch, each once.

Repair reads what `run` has committed and writes tables of its own (``corrections``, ``repairs``), so both may work at
the same time. Commit order: plan, corrections, repairs; the last commit makes the repair count.

Where `run` guarantees a recall, it may yet publish what the late rows of the current adaptation interval missed, so
these rows are left alone. A flush takes them too, under the lease of `run`, so that no run is at work meanwhile; the
next plan of `run` says that they are repaired (:mod:`latecomer.core.join.recall_budget`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from latecomer.core.gamma_batches import assign, gamma_batches
from latecomer.lake import crash_points, delta, journal, result_views
from latecomer.lake.errors import LeaseHeld
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.lake.maintenance import compact_and_vacuum
from latecomer.ledger import open_periods
from latecomer.spark.engine import tables
from latecomer.spark.engine.session import session
from latecomer.spark.engine.tuning import tune
from latecomer.spark.registry import stage_of
from latecomer.specs.errors import quantity

if TYPE_CHECKING:
    from latecomer.specs.spec import Spec

REPAIR_WEIGHT = 10
"""Stored rows that are read for a late row, about. Spark is tuned for that many."""
MOST_LATE = 1_000_000
"""Late rows that one plan repairs, about.

A long backlog takes several plans, and a repair that dies begins again with its last.
"""
REPAIRS = pa.schema(
    [
        ("number", pa.int64()),
        ("period_start", delta.TIMESTAMP),
        ("repaired", pa.int64()),
        ("closes", pa.list_(pa.int64())),
    ]
)
"""Columns of ``repairs/<query>``.

A plan has one row without a period, which lists the closing arrivals, and one row per period.
"""


@dataclass(frozen=True)
class RepairReport:
    """The counts of one call of `repair`."""

    late_repaired: int
    corrections: int
    batches: int
    pending: int
    seconds: float


def repair(
    lake: Lake, spec: Spec, *, flush: bool = False, progress: Callable[[str], None] = lambda line: None
) -> RepairReport:
    """Repair the late rows whose Gamma batch is complete; with `flush`, all that are pending.

    Raises
    ------
    InputError
        The query has not been run in this lake.
    """
    started = time.monotonic()
    with Lease(lake, f"repair-{spec.name}") as lease:
        state = journal.run_state(lake, spec.name, spec)
        repairs = _Repairs(lake, spec, lease.confirm, progress)
        decided_to = open_periods.decided_to(spec, state.stage)
        if not flush or not _registered(lake, spec.name, decided_to, state.seq_to):
            repairs.work(state.seq_to, min(decided_to, state.seq_to), flush=flush)
        else:
            repairs.work(state.seq_to, decided_to, flush=False)
            with contextlib.ExitStack() as stack:
                if _run_is_idle(lake, spec.name, stack):
                    state = journal.run_state(lake, spec.name, spec)
                    decided_to = state.seq_to
                else:
                    progress(f"{spec.name}: the late rows of the current interval are left to the run at work")
                repairs.work(state.seq_to, min(decided_to, state.seq_to), flush=True)
        if repairs.batches:
            compact_and_vacuum([lake.table(area, spec.name) for area in ("corrections", "repairs", "repair_journal")])
        pending = result_views.pending(lake, spec.name, state.seq_to)
        seconds = time.monotonic() - started
        return RepairReport(repairs.late, repairs.corrections, repairs.batches, pending, seconds)


def _registered(lake: Lake, query: str, seq_from: int, seq_to: int) -> bool:
    """Return whether a late row is registered among the arrivals ``[seq_from, seq_to)``."""
    seq = pc.field("seq")
    return seq_from < seq_to and lake.table("late", query).count((seq >= seq_from) & (seq < seq_to)) > 0


def _run_is_idle(lake: Lake, query: str, stack: contextlib.ExitStack) -> bool:
    """Return whether no micro-batch is at work or was left unfinished; then the stack holds the lease of `run`."""
    try:
        stack.enter_context(Lease(lake, f"run-{query}"))
    except LeaseHeld:
        return False
    state = journal.run_state(lake, query)
    return journal.planned(lake, query, "run", state.number + 1) is None


@dataclass
class _Repairs:
    """The repairs of one call, and what they have done."""

    lake: Lake
    spec: Spec
    confirm: Callable[[], None]
    progress: Callable[[str], None]
    late: int = 0
    corrections: int = 0
    batches: int = 0

    def work(self, seq_to: int, bound: int, *, flush: bool) -> None:
        """Repair the late rows before arrival `bound` whose Gamma batch is complete; with `flush`, all of them.

        `run` has committed the arrivals before `seq_to`. A repair that was killed may have planned later rows than
        `bound`, and is finished first.
        """
        lake, spec = self.lake, self.spec
        done_to = result_views.closed_to(lake, spec.name)
        pending = _pending(lake, spec.name, done_to, seq_to)
        for plan in _plans(lake, spec, done_to, pending, bound, flush, self.confirm):
            crash_points.point("repair:planned")
            written = _carry_out(lake, spec, plan, seq_to, self.confirm)
            done = quantity(len(plan.seq), "late row"), quantity(len(plan.closes), "batch", "batches")
            self.progress(f"{spec.name}: repaired {' in '.join(done)}, {quantity(written, 'correction')}")
            self.late += len(plan.seq)
            self.corrections += written
            self.batches += len(plan.closes)


@dataclass(frozen=True)
class _Plan:
    """Gamma batches to repair.

    Attributes
    ----------
    closes : int64[b]
        The arrivals that close the batches, increasing.
    done_to : int
        The arrival that closed the batch before them; -1: none.
    seq : int64[n]
        The late rows in the batches, increasing.
    """

    number: int
    closes: NDArray[np.int64]
    done_to: int
    seq: NDArray[np.int64]


def _plans(
    lake: Lake,
    spec: Spec,
    done_to: int,
    pending: tuple[np.ndarray, np.ndarray],
    bound: int,
    flush: bool,
    confirm: Callable[[], None],
) -> Iterator[_Plan]:
    """Yield the plan that a killed repair left, then plans of the complete batches of late rows before arrival `bound`.

    Each is recorded before it is yielded. The caller carries a plan out before it takes the next.
    """
    seq, event_time = pending
    last = lake.table("repairs", spec.name).last_version("repair")
    number = 0 if last is None else last + 1
    unfinished = journal.planned(lake, spec.name, "repair", number)
    if unfinished is not None:
        closes = np.array(unfinished["closes"], np.int64)
        yield _Plan(number, closes, done_to, seq[seq <= closes[-1]])
        number, done_to = number + 1, int(closes[-1])
    rest = (seq > done_to) & (seq < bound)
    seq, event_time = seq[rest], event_time[rest]
    for closes in _portions(seq, _closes(seq, event_time, spec.gamma_us, flush)):
        confirm()
        journal.plan(lake, spec.name, "repair", number, {"closes": closes.tolist()})
        yield _Plan(number, closes, done_to, seq[(seq > done_to) & (seq <= closes[-1])])
        number, done_to = number + 1, int(closes[-1])


def _portions(seq: np.ndarray, closes: np.ndarray) -> list[np.ndarray]:
    """Group batches, given by their closing arrivals, into plans of at most `MOST_LATE` late rows, or of one batch.

    The grouping changes no correction.
    """
    portion = np.searchsorted(seq, closes, side="right") // MOST_LATE
    return np.split(closes, np.flatnonzero(np.diff(portion)) + 1) if len(closes) else []


def _pending(lake: Lake, query: str, done_to: int, seq_to: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the late rows that await repair, in arrival order: arrival and event time (us), int64[n] each."""
    awaiting = (pc.field("seq") > done_to) & (pc.field("seq") < seq_to)
    rows = lake.table("late", query).read(columns=["seq", "event_ts"], filter=awaiting)
    if rows is None or rows.num_rows == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    seq, first = np.unique(rows["seq"].to_numpy(), return_index=True)
    return seq, rows["event_ts"].cast(pa.int64()).to_numpy()[first]


def _closes(seq: np.ndarray, event_time: np.ndarray, gamma_us: int, flush: bool) -> np.ndarray:
    closes = seq[gamma_batches(event_time, gamma_us)]
    if flush and len(seq) and (len(closes) == 0 or closes[-1] < seq[-1]):
        closes = np.append(closes, seq[-1])
    return closes


def _carry_out(lake: Lake, spec: Spec, plan: _Plan, arrivals: int, confirm: Callable[[], None]) -> int:
    """Commit a plan's corrections and their counts, and return how many there are.

    `confirm` is called before either commit.
    """
    if not lake.table("corrections", spec.name).has_committed("repair", plan.number):
        spark = session(lake, rows=arrivals)
        tune(spark, len(plan.seq) * REPAIR_WEIGHT, arrivals)
        stage = stage_of(spec, spark, lake)
        late = tables.read_ranges(
            spark, lake.table("late", spec.name), "seq", [(int(plan.seq.min()), int(plan.seq.max()))]
        )
        try:
            corrections = stage.repair(late, pa.table({"seq": plan.seq, "repaired_in": assign(plan.seq, plan.closes)}))
            # few late rows may bring many corrections, which Spark would compute twice if the driver tried to collect
            # them
            many = stage.most_corrections(len(plan.seq)) > tables.DRIVER_LOCAL_ROWS
            driver_local = False if many else None
            table = lake.table("corrections", spec.name)
            confirm()
            tables.append(corrections, table, "repair", plan.number, driver_local=driver_local)
        finally:
            stage.release()
    crash_points.point("repair:corrections")
    published = (pc.field("published_seq") > plan.done_to) & (pc.field("published_seq") <= int(plan.closes[-1]))
    per_period = lake.table("corrections", spec.name).count_by("period_start", published)
    rows = [{"number": plan.number, "period_start": None, "repaired": None, "closes": plan.closes.tolist()}]
    rows += [
        {"number": plan.number, "period_start": start, "repaired": count, "closes": []}
        for start, count in sorted(per_period.items())
    ]
    confirm()
    lake.table("repairs", spec.name).append(pa.Table.from_pylist(rows, schema=REPAIRS), "repair", plan.number)
    crash_points.point("repair:repairs")
    return sum(per_period.values())
