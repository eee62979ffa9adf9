"""The arrival order of a windowed query and what the control plane learns from it: scans, and windows as they are known now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from latecomer.core.arrays.composite_keys import distinct_rows
from latecomer.core.arrays.sparse_counts import merge_counts
from latecomer.core.arrivals import Arrivals, Checkpoint
from latecomer.core.time import EARLIEST_US, FOREVER, LATEST_US, NEVER
from latecomer.core.windows.group_sampling import Thinning, crowded
from latecomer.core.windows.interfaces import Observed
from latecomer.core.windows.observation import by_window, every_number, spans_of
from latecomer.core.windows.observation_schedule import Lookout
from latecomer.spark.engine import arrival_scan, tables
from latecomer.spark.windows.group_sampling import thinned, thinnings
from latecomer.spark.windows.rows import WindowRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXACT_BITS = 44
"""Results of a window are counted to so many bits, where they are more: so those of 512 windows have one sum, in whatever order they are added."""
PIECE_ROWS = 1 << 22
"""Arrivals that are looked at together when history is read again."""


@dataclass(frozen=True)
class Waited:
    """Stored rows of windows that are looked at.

    Attributes
    ----------
    rows : DataFrame
        Payload, ``seq``, ``ts``, ``side``, ``shard``, and ``grp`` (hash of the groups), ``pane``, ``bucket``: granules waited past
        the end of the first window that holds the row, and ``j``: interval of its arrival; both -1 where it came before that end.
    thinning : list of Thinning
        Per shard, the panes of which not all groups are there.
    windows : int64[n]
        Numbers of all windows that hold one of the rows, ascending; empty unless the kind `counts_results`.
    """

    rows: DataFrame
    thinning: list[Thinning]
    windows: np.ndarray


class WindowHistory(WindowRows):
    """Reads arrivals in order, and observes windows whose rows are in."""

    counts_results = False
    """Is a contribution a result, of rows that may have waited differently long? Then see ``looked_at``."""

    def observed(self, waited: Waited, wanted: list[dict[int, tuple[int, int]]]) -> list[dict[int, list[Observed]]]:
        """Per shard and interval, the windows that were asked for."""
        raise NotImplementedError

    def looked_at(self, waited: Waited, wanted: Mapping[int, tuple[int, int]]) -> tuple[pa.Table, DataFrame]:
        """Windows as they are known when they are looked at, of a kind that `counts_results`.

        Parameters
        ----------
        wanted
            Interval -> first and last window that is looked at when it is entered; a window may be among several.

        Returns
        -------
        Table
            A row per window and look: ``_look``, its number; ``_m``, the window's; ``_span``, the interval's place in `wanted`; ``_known``:
            what waited so many microseconds past the window's end, or more, is not known then.
        DataFrame
            The same, for :meth:`waits`.
        """
        first, last, cut_us = np.array(spans_of(self.grid, wanted), np.int64).reshape(-1, 3).T
        low, high = np.searchsorted(waited.windows, first), np.searchsorted(waited.windows, last, "right")
        span, at = every_number(low, high - 1)
        window = waited.windows[at]
        columns = {"_look": np.arange(len(span)), "_m": window, "_span": span}
        table = pa.table(columns | {"_known": cut_us[span] - self.grid.end(window)})
        return table, tables.to_spark(self.spark, table.drop_columns("_span"))

    def waits(self, rows: DataFrame, looks: DataFrame) -> DataFrame:
        """Rows by window (``_m``), once per look that knows them: with ``_look``, and ``_wait`` in granules past the window's end (-1: in time)."""
        from pyspark.sql import functions as F

        each = self.grid.slide_us // self.grid.granularity_us
        later = F.col("bucket") - (F.col("_m") - F.col("_first")) * each
        known = rows.withColumn("_first", self.first_of("ts")).join(F.broadcast(looks), "_m")
        known = known.withColumn("_wait", F.when(F.col("bucket") >= 0, F.greatest(later, F.lit(-1))).otherwise(-1))
        return known.where(F.col("_wait") * self.grid.granularity_us < F.col("_known")).drop("_first", "_known")

    def required(
        self, looks: pa.Table, found: pa.Table, wanted: Mapping[int, tuple[int, int]]
    ) -> list[dict[int, list[Observed]]]:
        """What `observed` gives, of the one shard: `found` has results by ``_look`` and ``_wait``, their number as ``results``."""
        seen: list[list[Observed]] = [[] for _ in wanted]
        if found.num_rows:
            order = np.lexsort([found[name].to_numpy() for name in ("_wait", "_look")])
            look, wait = (found[name].to_numpy()[order] for name in ("_look", "_wait"))
            number, place = np.unique(look, return_inverse=True)
            weight = _whole(found["results"].take(pa.array(order)).to_pylist(), place)
            window, span = (looks[name].to_numpy()[number] for name in ("_m", "_span"))
            shown = by_window(window, place, wait, weight, self.grid.granularity_us)
            for at, each in zip(span.tolist(), shown, strict=True):
                seen[at].append(each)
        return [dict(zip(wanted, seen, strict=True))]

    def _start(self) -> Checkpoint:
        return Checkpoint(0, [NEVER] * (self.shards * len(self.sources)))

    def _passed(self, mark: Checkpoint, lookouts: list[Lookout]) -> bool:
        """Can a scan begin here? Only if no row of a window that is still to be observed came before."""
        for shard, lookout in enumerate(lookouts):
            if lookout.delivered is None and lookout.interval is not None:
                return False
            oldest = lookout.observed_from()
            own = mark.carry[shard :: self.shards]
            if oldest > NEVER and max(own) >= oldest * self.grid.slide_us - self.lookback_us:
                return False
        return True

    def _arrivals(self, seq_from: int, seq_to: int, carry: list[int]) -> Arrivals:
        """Arrivals of all sources in order, with stream time."""

        def shard_of(groups: pa.Table) -> np.ndarray:
            return tables.evaluate(self.spark, groups.rename_columns(self.groups), self.shard_sql())

        sharded = shard_of if self.shards > 1 else None
        return arrival_scan.arrivals(
            self.lake, self.sources, seq_from, seq_to, carry, self.shards, self.leading, sharded
        )

    def _pieces(self, start: Checkpoint, seq_to: int) -> Iterator[Arrivals]:
        """All arrivals from a checkpoint on, some at a time."""
        seq, carry = start.seq, start.carry
        while seq < seq_to:
            following = min(seq + PIECE_ROWS, seq_to)
            piece = self._arrivals(seq, following, carry)
            seq, carry = following, piece.carry
            yield piece

    def history(self, seq_to: int, *, whole: bool = False) -> list[list[Observed]]:
        """Per shard, every window of the arrivals before `seq_to` as it is known now, in order; nothing is left out as too late.

        `whole`: also windows that stream time has not left, as a flush closes them.
        """
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
        span = self.grid.first_of(low), self.grid.last_of(high + self.lookback_us)
        now = max(last, self.grid.end(span[1]) // self.grid.slide_us) + 1 if whole else last + 1
        wanted = [{now: span} for _ in range(self.shards)]
        found = self.observed(self.waited(self._pieces(self._start(), seq_to), 0, seq_to, wanted), wanted)
        return [each.get(now, []) for each in found]

    def held(self, seq_to: int, waits_us: Sequence[int]) -> list[float]:
        """Rows that each constant wait would have held on average over stream time, of the arrivals before `seq_to`: a row from its
        arrival until its last window closes."""
        area, low, high = np.zeros(len(waits_us)), FOREVER, NEVER
        for piece in self._pieces(self._start(), seq_to):
            spoken = piece.stream_time_us > NEVER
            time = piece.stream_time_us[spoken]
            if not len(time):
                continue
            low, high = min(low, int(time.min())), max(high, int(time.max()))
            until = self.grid.end(self.last_of(piece.event_time_us[spoken], piece.side[spoken])) - time
            area += [np.maximum(until + wait, 0).sum(dtype=np.float64) for wait in waits_us]
        return [each / max(high - low, 1) for each in area.tolist()]

    def waited(
        self, pieces: Iterable[Arrivals], seq_from: int, seq_to: int, wanted: list[dict[int, tuple[int, int]]]
    ) -> Waited:
        """Stored rows of the windows wanted; `pieces` are the arrivals ``[seq_from, seq_to)``."""
        from pyspark.sql import functions as F

        spans = [span for each in wanted for span in each.values()]
        low = min(first for first, _ in spans) * self.grid.slide_us - self.lookback_us
        high = self.grid.end(max(last for _, last in spans))
        parts, held = [], 0
        there = np.empty(0, np.int64)
        none = np.empty(0, np.int64)
        in_time = [(none, none)] * self.shards
        for piece in pieces:
            first = self.first_of(piece.event_time_us, piece.side)
            end = self.grid.end(first)
            inside = (piece.event_time_us >= low) & (piece.event_time_us < high)
            held += int(np.count_nonzero(inside))
            own = inside & (piece.stream_time_us >= end)
            time = piece.stream_time_us[own]
            bucket, interval = (time - end[own]) // self.grid.granularity_us, time // self.grid.slide_us
            parts.append(pa.table({"seq": piece.seq[own], "bucket": bucket, "j": interval}))
            if self.counts_results:
                own_last = self.last_of(piece.event_time_us[inside], piece.side[inside])
                ranges, _ = distinct_rows(first[inside], own_last)
                there = np.union1d(there, every_number(*ranges)[1])
            if self.groups:  # by shard: how far the others have come depends on the cut
                before = inside & ~own
                for shard in range(self.shards):
                    (pane,), count = distinct_rows(
                        piece.event_time_us[before & (piece.shard == shard)] // self.grid.pane_us
                    )
                    in_time[shard] = merge_counts(*in_time[shard], pane, count)
        waits = pa.concat_tables(parts)
        rows = self.stored(
            seq_from=seq_from, seq_to=seq_to, low_us=max(low, EARLIEST_US), high_us=min(high - 1, LATEST_US)
        )
        rows = rows.withColumn("grp", F.expr(f"xxhash64({', '.join(self.groups)})" if self.groups else "0L"))
        marked = self._listed(waits) if waits.num_rows else None
        rows = self.paned(tables.codegen_barrier(rows))
        early = rows.where("ok") if marked is None else rows.where("ok").join(marked, "seq", "left_anti")
        thin = thinnings(early, [crowded(*each) for each in in_time])
        rows = thinned(rows, thin).drop("pane")
        rows = self.reduced(rows, marked, held * self.grid.pane_us // (high - low))[0].where("ok")
        if marked is not None:
            rows = rows.join(marked, "seq", "left")
        waited = {name: "-1L" if marked is None else f"coalesce({name}, -1L)" for name in ("bucket", "j")}
        rows = self.paned(rows.withColumns({name: F.expr(text) for name, text in waited.items()}))
        return Waited(rows, thin, there)


def _whole(counts: list[Any], place: np.ndarray) -> np.ndarray:
    """Numbers of results as int64[n], those of a window (its `place`) so small that sums over windows are exact as doubles: in shares they stay what they are."""
    weight, sums = [int(each) for each in counts], [0] * (int(place[-1]) + 1)
    for at, each in zip(place.tolist(), weight, strict=True):
        sums[at] += each
    shift = [max(each.bit_length() - EXACT_BITS, 0) for each in sums]
    return np.array([each >> shift[at] for at, each in zip(place.tolist(), weight, strict=True)], np.int64)
