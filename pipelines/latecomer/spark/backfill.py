"""`backfill`: answer the closed windows of a range of event time again, and replace earlier backfills.

A backfill reads the same history as `run` and `repair` and writes a table of its own (``backfill/<query>``), whose
range it replaces in one commit, so that a second call changes nothing. Its answers equal on-time rows plus corrections,
and include late rows that still await repair; `results` shows the newest answer of each window.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from latecomer.lake import crash_points, journal
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.lake.maintenance import compact_and_vacuum
from latecomer.spark.engine import connect
from latecomer.spark.engine.session import tuned
from latecomer.spark.registry import windowed_stage
from latecomer.specs.windows import WindowedSpec

if TYPE_CHECKING:
    from latecomer.specs.spec import Spec


@dataclass(frozen=True)
class BackfillReport:
    """The counts of one call of `backfill`, of the windows that start in ``[from_us, to_us)``."""

    from_us: int
    to_us: int
    rows: int
    seconds: float


def backfill(lake: Lake, spec: Spec, from_us: int, to_us: int) -> BackfillReport:
    """Recompute and replace the answers of closed windows that start in ``[from_us, to_us)``.

    Raises
    ------
    InputError
        The query has not been run in this lake, has no windows, or the range is empty.
    """
    started = time.monotonic()
    if not isinstance(spec, WindowedSpec):
        raise spec.fail("kind", spec.kind, "has no windows of its own to backfill", "repair makes a join exact")
    if from_us >= to_us:
        raise InputError("--from", from_us, "is not before --to", "give a range of event time")
    with Lease(lake, f"backfill-{spec.name}") as lease:
        state = journal.run_state(lake, spec.name, spec)
        spark = tuned(lake, state.seq_to)
        stage, table = windowed_stage(spec, spark, lake), lake.table("backfill", spec.name)
        rows = stage.recompute(from_us, to_us, state.seq_to, state.stage).persist()
        try:
            count = rows.count()
            # a stream may have a column more by now
            write = connect.storable(rows).write.format("delta").option("mergeSchema", "true")
            if existed := table.exists():
                inside = f"window_start >= timestamp_micros({from_us}L) and window_start < timestamp_micros({to_us}L)"
                write = write.mode("overwrite").option("replaceWhere", inside)
            else:
                write = write.mode("append")
            lease.confirm()
            if count or existed:
                write.save(table.spark_path)
        finally:
            rows.unpersist()
            stage.release()
        crash_points.point("backfill:rows")
        compact_and_vacuum([table])
        return BackfillReport(from_us, to_us, count, time.monotonic() - started)
