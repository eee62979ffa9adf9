"""Scan: running maxima along the arrival order, without a global window.

A running maximum is a prefix sum over (max): the arrivals are cut into chunks by ``seq``, each chunk's maximum is taken
in parallel, a prefix over the chunks (a few numbers, on the driver) carries them forward, and inside its
chunk every row's running maximum is taken in parallel again. Chunk borders do not change any value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from latecomer.core.time import NEVER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CHUNK_ROWS = 1 << 16
"""Least number of arrivals in a chunk: smaller ones cost more in tasks than they save in sorting."""


@dataclass(frozen=True)
class Chunks:
    """How ``[seq_from, seq_to)`` is cut: chunk of a row = ``(seq - seq_from) div rows``."""

    seq_from: int
    rows: int
    count: int

    @staticmethod
    def over(seq_from: int, seq_to: int, parallelism: int) -> Chunks:
        """About four chunks a core, none under `CHUNK_ROWS`."""
        span = max(seq_to - seq_from, 1)
        rows = max(CHUNK_ROWS, -(-span // (4 * parallelism)))
        return Chunks(seq_from, rows, -(-span // rows))


def running_maxima(
    rows: DataFrame,
    values: dict[str, Column],
    carry: dict[str, int] | dict[str, list[int]],
    chunks: Chunks,
    *,
    by: str | None = None,
    groups: int = 1,
) -> DataFrame:
    """Add one running maximum per entry of `values`, along ``seq``, the row itself included.

    Parameters
    ----------
    rows
        Any rows with a ``seq`` column (bigint) inside the range of `chunks`.
    values
        Name of the new column -> bigint expression; null does not raise the maximum.
    carry
        Same names -> maximum over all earlier arrivals, int64; ``NEVER`` where there is none. A list with `by`: one per group.
    chunks
        The cut.
    by, groups
        An int column with values ``0 .. groups - 1``: each group has maxima of its own.

    Returns
    -------
    DataFrame
        `rows` and the new bigint columns, ``NEVER`` where nothing has raised the maximum yet.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    known = {name: list(value) if isinstance(value, (list, tuple)) else [value] for name, value in carry.items()}
    number = F.expr(f"(seq - {chunks.seq_from}) div {chunks.rows}")
    parts = ["_chunk"] if by is None else ["_chunk", by]
    inside = Window.partitionBy(*parts).orderBy("seq").rowsBetween(Window.unboundedPreceding, 0)
    numbered = rows.withColumn("_chunk", number)
    if chunks.count == 1 and by is None:
        before = {name: F.lit(known[name][0]) for name in values}
    else:
        prefix = _prefix(numbered, values, known, chunks, by, groups)
        numbered = numbered.join(F.broadcast(prefix), parts, "left")
        before = {name: F.col(f"_before_{name}") for name in values}
    for name, value in values.items():
        numbered = numbered.withColumn(name, F.greatest(before[name], F.max(value).over(inside)))
    return numbered.drop("_chunk", *(f"_before_{name}" for name in values))


def _prefix(
    numbered: DataFrame,
    values: dict[str, Column],
    carry: dict[str, list[int]],
    chunks: Chunks,
    by: str | None,
    groups: int,
) -> DataFrame:
    """Maximum of everything before each chunk (of each group): one row per chunk and group."""
    from pyspark.sql import functions as F

    keys = ["_chunk"] if by is None else ["_chunk", by]
    peaks = numbered.groupBy(*keys).agg(*(F.max(value).alias(name) for name, value in values.items())).toArrow()
    place = peaks["_chunk"].to_numpy()
    group = np.zeros(len(place), np.int64) if by is None else peaks[by].to_numpy()
    columns: dict[str, pa.Array] = {"_chunk": pa.array(np.repeat(np.arange(chunks.count), groups), pa.int64())}
    if by is not None:
        columns[by] = pa.array(np.tile(np.arange(groups), chunks.count), pa.int32())
    for name in values:
        per_chunk = np.full((chunks.count, groups), NEVER, np.int64)
        per_chunk[place, group] = peaks[name].fill_null(NEVER).to_numpy()
        before = np.concatenate([np.array(carry[name], np.int64)[None, :], per_chunk[:-1]])
        columns[f"_before_{name}"] = pa.array(np.maximum.accumulate(before, axis=0).ravel(), pa.int64())
    return numbered.sparkSession.createDataFrame(pa.table(columns))
