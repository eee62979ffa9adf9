"""Small disordered inputs for tests: as arrays, as files, as a lake."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from latecomer.reference.join import Arrival


def disordered(seed: int, rows: int = 300, span_us: int = 60_000_000, keys: int = 4) -> pa.Table:
    """Two streams in one arrival order: mostly in order, a tail of late rows, bursts, ties."""
    rng = np.random.default_rng(seed)
    true = np.sort(rng.integers(0, span_us, rows))
    delay = (
        np.where(rng.random(rows) < 0.4, rng.exponential(3_000_000, rows), 0) + (rng.random(rows) < 0.05) * 20_000_000
    )
    event = np.maximum(true - delay.astype(np.int64), 0) // 1000 * 1000
    return pa.table(
        {
            "stream": pa.array(np.where(rng.random(rows) < 0.5, "a", "b")),
            "event_ts": pa.array(event + 1_700_000_000_000_000, pa.int64()),
            "seq": pa.array(np.arange(rows), pa.int64()),
            "k": pa.array(rng.integers(0, keys, rows), pa.int64()),
            "v": pa.array(np.round(rng.random(rows) * 10, 2)),
            "note": pa.array([None if i % 7 == 0 else f"n{i % 5}" for i in range(rows)]),
        }
    )


def arrivals(table: pa.Table, left: str, right: str) -> list[Arrival]:
    """The table's rows as the reference sees them."""
    found = []
    for row in table.to_pylist():
        if row["stream"] in (left, right):
            side = 2 if left == right else (0 if row["stream"] == left else 1)
            found.append(Arrival(row["seq"], side, row["event_ts"], row))
    return found


def write(table: pa.Table, path) -> str:
    """A Parquet landing file."""
    pq.write_table(table, path)
    return str(path)
