"""Small lakes for tests: load, run in cuts, export everything a query has written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake import journal, result_views
from latecomer.lake.lake import Lake
from latecomer.ledger import ledger as books
from latecomer.quality import conservation, duplicates
from latecomer.spark import repair as repairing
from latecomer.spark.engine import tuning
from latecomer.spark.repair import repair
from latecomer.spark.run import run

from tests.support import events


def load(lake: Lake, table: pa.Table, folder: Any) -> None:
    """Ingest the table's streams."""
    ingest(lake, [events.write(table, folder / "in.parquet")], IngestOptions(by="stream"))


def laws(lake: Lake, spec: Any) -> list[dict[str, Any]]:
    """The conservation laws as `check` reads them."""
    state = journal.run_state(lake, spec.name)
    reach = conservation.CommittedBounds.of(lake, spec.name, state)
    results = duplicates.count_results(lake, spec, reach.filters())
    assert results.surplus == 0, results.duplicates
    return [*conservation.invariants(lake, spec, state, reach, results.rows), *results.invariants]


def exported(lake: Lake, spec: Any) -> dict[str, pa.Table]:
    """Every table of a query, in its exported order; its books balance."""
    for law in laws(lake, spec):
        assert law["left"] == law["right"], law
    tables = {name: result_views.view(lake, spec, name) for name in ("results", "on_time", "corrections", "late")}
    return tables | {"ledger": books.ledger(lake, spec)}


def bits(table: pa.Table) -> pa.Table:
    """Doubles as the integers of their bits: as doubles, the two zeros are equal."""
    for place, field in enumerate(table.schema):
        if pa.types.is_float64(field.type):
            column = table[field.name].combine_chunks()
            same = pa.Array.from_buffers(pa.int64(), len(column), column.buffers(), offset=column.offset)
            table = table.set_column(place, field.name, same)
    return table


def same(left: dict[str, pa.Table], right: dict[str, pa.Table], what: Any = None) -> None:
    """Asserts that the tables of `left`, by name, are to the bit those of `right`."""
    for name, rows in left.items():
        assert bits(rows).equals(bits(right[name])), (name, what)


def whole_and_cut(folder: Any, table: pa.Table, spec: Any, sizes: tuple[int, ...], stop: int) -> dict[str, pa.Table]:
    """Tables of a query run in one micro-batch; asserts that other cuts give the same.

    `sizes` are rows per micro-batch; the last run stops after arrival `stop`, repairs, and goes on; its repairs are of a few late rows each. The first is planned for several
    partitions, the others for one.
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
            found = exported(lake, spec)
        first = first or found
        same(first, found, size)
    return first
