"""What a micro-batch's scan leaves to the control plane of the windowed kinds: counts by interval and pane, and running maxima."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from latecomer.core.time import NEVER
from latecomer.core.windows import IntervalRows


@dataclass(frozen=True)
class Checkpoint:
    """Running maxima before arrival `seq`: per source, per shard."""

    seq: int
    carry: list[int]


@dataclass
class Arrived:
    """One micro-batch's new rows as the control plane takes them: intervals per shard, peaks per source and shard.

    `waiting` are panes and rows per shard that came before every stream had spoken.
    """

    rows: int
    intervals: list[list[IntervalRows]]
    waiting: list[tuple[np.ndarray, np.ndarray]]
    peaks: list[int]

    @staticmethod
    def of(table: pa.Table, shards: int, sources: int) -> Arrived:
        """From counts by shard, j, side and pane."""
        columns = {name: table[name].to_numpy() for name in ("shard", "j", "side", "pane", "n", "t", "delay", "hi")}
        peaks = [NEVER] * (shards * sources)
        for side in range(sources):
            for shard in range(shards):
                own = columns["hi"][(columns["side"] == side) & (columns["shard"] == shard)]
                peaks[side * shards + shard] = int(own.max()) if len(own) else NEVER
        intervals, waiting = [], []
        for shard in range(shards):
            mine = (columns["shard"] == shard) & (columns["t"] > NEVER)
            intervals.append(_by_interval({name: values[mine] for name, values in columns.items()}))
            unplaced = (columns["shard"] == shard) & (columns["t"] <= NEVER)
            waiting.append((columns["pane"][unplaced], columns["n"][unplaced]))
        return Arrived(int(columns["n"].sum()), intervals, waiting, peaks)


def _by_interval(columns: dict[str, np.ndarray]) -> list[IntervalRows]:
    if not len(columns["j"]):
        return []
    order = np.lexsort((columns["pane"], columns["j"]))
    columns = {name: values[order] for name, values in columns.items()}
    numbers, starts = np.unique(columns["j"], return_index=True)
    found = []
    for number, first, end in zip(numbers.tolist(), starts, [*starts[1:], len(order)], strict=True):
        own = slice(first, end)
        panes, place = np.unique(columns["pane"][own], return_inverse=True)
        rows = np.zeros(len(panes), np.int64)
        np.add.at(rows, place, columns["n"][own])
        last, delay = int(columns["t"][own].max()), int(columns["delay"][own].max())
        found.append(IntervalRows(number, last, delay, int(rows.sum()), panes, rows))
    return found
