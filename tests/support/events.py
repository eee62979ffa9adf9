"""Small disordered inputs for tests, as tables, as arrivals of the reference and as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from latecomer.reference.join import Arrival


def disordered(seed: int, rows: int = 300, span_us: int = 60_000_000, keys: int = 4) -> pa.Table:
    """Return two streams in one arrival order: mostly in order, with late rows, bursts and ties."""
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
    """Return the rows of two streams as arrivals of the reference."""
    rows = []
    for row in table.to_pylist():
        if row["stream"] in (left, right):
            side = 2 if left == right else (0 if row["stream"] == left else 1)
            rows.append(Arrival(row["seq"], side, row["event_ts"], row))
    return rows


def write(table: pa.Table, path: Path) -> str:
    """Write a table as a Parquet landing file, and return its path."""
    pq.write_table(table, path)
    return str(path)
