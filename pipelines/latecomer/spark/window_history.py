"""The arrival order of a windowed query and what the control plane learns from it: scans, and windows as they are known now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from latecomer.core.arrivals import Arrivals, Checkpoint
from latecomer.core.histogram import merge_counts
from latecomer.core.order import distinct
from latecomer.core.thinning import Thinning, crowded
from latecomer.core.time import NEVER
from latecomer.core.windows import Lookout, Observed
from latecomer.spark import scan, tables
from latecomer.spark.columns import EARLIEST_US, LATEST_US
from latecomer.spark.thinning import thinned, thinnings
from latecomer.spark.window_rows import WindowRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PIECE_ROWS = 1 << 22
"""Arrivals that are looked at together when history is read again."""


class WindowHistory(WindowRows):
    """Reads arrivals in order, and observes windows whose rows are in."""

    def observed(
        self, rows: DataFrame, wanted: list[dict[int, tuple[int, int]]], thinning: list[Thinning]
    ) -> list[dict[int, list[Observed]]]:
        """Per shard and interval, the windows that were asked for; `rows` and `thinning` as :meth:`waited` gives them."""
        raise NotImplementedError

    def _start(self) -> Checkpoint:
        return Checkpoint(0, [NEVER] * (self.shards * len(self.sources)))

    def _passed(self, mark: Checkpoint, lookouts: list[Lookout]) -> bool:
        """Can a scan begin here? Only if no row of a window that is still to be observed came before."""
        for shard, lookout in enumerate(lookouts):
            if lookout.delivered is None and lookout.interval is not None:
                return False
            oldest = lookout.observed_from()
            own = mark.carry[shard :: self.shards]
            if oldest > NEVER and max(own) >= oldest * self.grid.slide_us:
                return False
        return True

    def _arrivals(self, seq_from: int, seq_to: int, carry: list[int]) -> Arrivals:
        """Arrivals of all sources in order, with stream time."""

        def shard_of(groups: pa.Table) -> np.ndarray:
            return tables.computed(self.spark, groups.rename_columns(self.groups), self.shard_sql())

        sharded = shard_of if self.shards > 1 else None
        return scan.arrivals(self.lake, self.sources, seq_from, seq_to, carry, self.shards, self.leading, sharded)

    def _pieces(self, start: Checkpoint, seq_to: int) -> Iterator[Arrivals]:
        """All arrivals from a checkpoint on, some at a time."""
        seq, carry = start.seq, start.carry
        while seq < seq_to:
            following = min(seq + PIECE_ROWS, seq_to)
            piece = self._arrivals(seq, following, carry)
            seq, carry = following, piece.carry
            yield piece

    def history(self, seq_to: int) -> list[list[Observed]]:
        """Per shard, every window of the arrivals before `seq_to` as it is known now, in order; nothing is left out as too late."""

        low = high = last = None
        for piece in self._pieces(self._start(), seq_to):
            spoken = piece.stream_time_us > NEVER
            if spoken.any():
                times = piece.event_time_us[spoken]
                low = int(times.min()) if low is None else min(low, int(times.min()))
                high = int(times.max()) if high is None else max(high, int(times.max()))
                last = int(piece.stream_time_us.max()) // self.grid.slide_us
        if low is None or high is None or last is None:
            return [[] for _ in range(self.shards)]
        wanted = [{last + 1: (self.grid.first_of(low), self.grid.last_of(high))} for _ in range(self.shards)]
        waited, thinning = self.waited(self._pieces(self._start(), seq_to), 0, seq_to, wanted)
        found = self.observed(waited, wanted, thinning)
        return [each.get(last + 1, []) for each in found]

    def waited(
        self, pieces: Iterable[Arrivals], seq_from: int, seq_to: int, wanted: list[dict[int, tuple[int, int]]]
    ) -> tuple[DataFrame, list[Thinning]]:
        """Stored rows of the windows wanted; `pieces` are the arrivals ``[seq_from, seq_to)``.

        Returns
        -------
        DataFrame
            Payload, ``seq``, ``ts``, ``side``, ``shard``, and ``grp`` (hash of the groups), ``pane``, ``bucket``: granules waited past
            the end of the first window that holds the row, and ``j``: interval of its arrival; both -1 where it came before that end.
        list of Thinning
            Per shard, the panes of which not all groups are there.
        """
        from pyspark.sql import functions as F

        spans = [span for each in wanted for span in each.values()]
        low = min(first for first, _ in spans) * self.grid.slide_us
        high = self.grid.end(max(last for _, last in spans))
        parts, held = [], 0
        none = np.empty(0, np.int64)
        in_time = [(none, none)] * self.shards
        for piece in pieces:
            end = self.grid.end(self.first_of(piece.event_time_us, piece.side))
            inside = (piece.event_time_us >= low) & (piece.event_time_us < high)
            held += int(np.count_nonzero(inside))
            own = inside & (piece.stream_time_us >= end)
            time = piece.stream_time_us[own]
            bucket, interval = (time - end[own]) // self.grid.granularity_us, time // self.grid.slide_us
            parts.append(pa.table({"seq": piece.seq[own], "bucket": bucket, "j": interval}))
            if self.groups:  # by shard: how far the others have come depends on the cut
                before = inside & ~own
                for shard in range(self.shards):
                    (pane,), count = distinct(piece.event_time_us[before & (piece.shard == shard)] // self.grid.pane_us)
                    in_time[shard] = merge_counts(*in_time[shard], pane, count)
        waits = pa.concat_tables(parts)
        rows = self.stored(
            seq_from=seq_from, seq_to=seq_to, low_us=max(low, EARLIEST_US), high_us=min(high - 1, LATEST_US)
        )
        rows = rows.withColumn("grp", F.expr(f"xxhash64({', '.join(self.groups)})" if self.groups else "0L"))
        marked = self._listed(waits) if waits.num_rows else None
        rows = self.paned(tables.compiled_once(rows))
        early = rows.where("ok") if marked is None else rows.where("ok").join(marked, "seq", "left_anti")
        thin = thinnings(early, [crowded(*each) for each in in_time])
        rows = thinned(rows, thin).drop("pane")
        rows = self.reduced(rows, marked, held * self.grid.pane_us // (high - low))[0].where("ok")
        if marked is not None:
            rows = rows.join(marked, "seq", "left")
        waited = {name: "-1L" if marked is None else f"coalesce({name}, -1L)" for name in ("bucket", "j")}
        return self.paned(rows.withColumns({name: F.expr(text) for name, text in waited.items()})), thin
