"""Small lakes for tests: load rows, run a query in different cuts, and export all of its tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake import journal, result_views
from latecomer.lake.lake import Lake
from latecomer.ledger.ledger import ledger
from latecomer.quality import conservation, duplicates
from latecomer.quality.duplicates import Invariant
from latecomer.spark import repair as repairing
from latecomer.spark.engine import tuning
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.spec import Spec

from tests.support import events


def load(lake: Lake, table: pa.Table, folder: Path) -> None:
    """Ingest the table's streams."""
    ingest(lake, [events.write(table, folder / "in.parquet")], IngestOptions(by="stream"))


def invariants(lake: Lake, spec: Spec) -> list[Invariant]:
    """Return both sides of every invariant that `check` compares; no result may be stored twice."""
    state = journal.run_state(lake, spec.name)
    bounds = conservation.CommittedBounds.of(lake, spec.name, state)
    results = duplicates.count_results(lake, spec, bounds.filters())
    assert results.surplus == 0, results.duplicates
    return [*conservation.invariants(lake, spec, state, bounds, results.rows), *results.invariants]


def exported(lake: Lake, spec: Spec) -> dict[str, pa.Table]:
    """Assert that the invariants of a query hold, and return all of its tables in their exported order."""
    for invariant in invariants(lake, spec):
        assert invariant["left"] == invariant["right"], invariant
    tables = {name: result_views.view(lake, spec, name) for name in ("results", "on_time", "corrections", "late")}
    return tables | {"ledger": ledger(lake, spec)}


def bits(table: pa.Table) -> pa.Table:
    """Replace doubles by the integers of their bits, since the two zeros are equal as doubles."""
    for place, field in enumerate(table.schema):
        if pa.types.is_float64(field.type):
            column = table[field.name].combine_chunks()
            integers = pa.Array.from_buffers(pa.int64(), len(column), column.buffers(), offset=column.offset)
            table = table.set_column(place, field.name, integers)
    return table


def same(left: dict[str, pa.Table], right: dict[str, pa.Table], remark: object = None) -> None:
    """Assert that every table of `left` has the bits of the table of that name of `right`."""
    for name, rows in left.items():
        assert bits(rows).equals(bits(right[name])), (name, remark)


def whole_and_cut(folder: Path, table: pa.Table, spec: Spec, sizes: tuple[int, ...], stop: int) -> dict[str, pa.Table]:
    """Assert that every cut of a query into micro-batches gives the same tables, and return the tables.

    Parameters
    ----------
    sizes
        Rows per micro-batch of the cuts after the first, which is one micro-batch and is planned for several
        partitions; the others are planned for one. The last cut stops after arrival `stop`, repairs in batches of few
        late rows, and continues.
    """
    first: dict[str, pa.Table] = {}
    for number, size in enumerate((table.num_rows, *sizes)):
        last = number == len(sizes)
        lake = Lake(folder / f"lake{number}")
        with pytest.MonkeyPatch.context() as patched:
            if number == 0:
                patched.setattr(tuning, "ONE_TASK_ROWS", 0)
            load(lake, table, folder)
            if last:
                patched.setattr(repairing, "MOST_LATE", 20)
                run(lake, spec, rows_per_batch=size, until_seq=stop)
                repair(lake, spec)
            run(lake, spec, rows_per_batch=size, flush=True)
            repair(lake, spec)
            repair(lake, spec, flush=True)
            tables = exported(lake, spec)
        first = first or tables
        same(first, tables, size)
    return first
