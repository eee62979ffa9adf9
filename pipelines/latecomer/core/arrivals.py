"""Arrivals: stream time after each; for the windowed kinds also what the control plane is told, and which windows each is late for.

Joins use the stream time alone. Two columns of a micro-batch, ``seq`` and event time, decide all of this, in one pass along the
arrival order; no payload is looked at. Cost: O(n) along the order, and sorting the counts by interval and pane. Memory: about 40 bytes an arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Checkpoint:
    """Running maxima of event time before arrival `seq`, int64 us: entry ``side * shards + shard``."""

    seq: int
    carry: list[int]


@dataclass(frozen=True)
class Arrivals:
    """Consecutive arrivals in order.

    Attributes
    ----------
    seq, event_time_us : int64[n]
    side : int8[n]
        Which source a row belongs to, from 0.
    shard : int32[n]
        Which shard of groups.
    stream_time_us : int64[n]
        `T` of the row's shard after it: the least of its sources' running maxima, ``NEVER`` until each has spoken.
    before, after : int64[sources, shards]
        Running maxima before the first and after the last of them.
    """

    seq: Int64
    event_time_us: Int64
    side: NDArray[np.int8]
    shard: NDArray[np.int32]
    stream_time_us: Int64
    before: Int64
    after: Int64

    @staticmethod
    def of(
        seq: Int64,
        event_time_us: Int64,
        side: NDArray[np.int8],
        shard: NDArray[np.int32],
        carry: list[int],
        shards: int = 1,
    ) -> Arrivals:
        """Stream time of rows sorted by `seq`, continued from `carry`, which is laid out as in :class:`Checkpoint`."""
        before = np.array(carry, np.int64).reshape(-1, shards)
        after, time = before.copy(), np.empty_like(event_time_us)
        _follow(event_time_us, side, shard, after, time)
        return Arrivals(seq, event_time_us, side, shard, time, before, after)

    @property
    def carry(self) -> list[int]:
        """`after` as in :class:`Checkpoint`."""
        return [int(each) for each in self.after.ravel()]

    def checkpoints(self, every: int) -> list[Checkpoint]:
        """Where a later scan may begin inside these arrivals: before every so many of them, not before the first."""
        places = np.arange(every, len(self.seq), every)
        maxima = _maxima(self.event_time_us, self.side, self.shard, self.before.copy(), places)
        return [
            Checkpoint(int(seq), found.ravel().tolist()) for seq, found in zip(self.seq[places], maxima, strict=True)
        ]

    @cached_property
    def delay_us(self) -> Int64:
        """Running maximum of each row's own source less its event time, >= 0, int64[n]."""
        found = np.empty_like(self.event_time_us)
        _delays(self.event_time_us, self.side, self.shard, self.before.copy(), found)
        return found

    @property
    def lateness_us(self) -> Int64:
        """Stream time after each row less its event time, int64[n]; negative for rows ahead of it, meaningless before each source has spoken."""
        return self.stream_time_us - self.event_time_us


@njit(cache=True, nogil=True)
def _follow(ts, side, shard, maxima, time):  # type: ignore[no-untyped-def]
    for i in range(len(ts)):
        g = shard[i]
        if ts[i] > maxima[side[i], g]:
            maxima[side[i], g] = ts[i]
        least = maxima[0, g]
        for other in range(1, maxima.shape[0]):
            least = min(least, maxima[other, g])
        time[i] = least


@njit(cache=True, nogil=True)
def _maxima(ts, side, shard, maxima, places):  # type: ignore[no-untyped-def]
    """Running maxima before the rows at these ascending places, int64[places, sources, shards]."""
    found, i = np.empty((len(places), *maxima.shape), np.int64), 0
    for at in range(len(places)):
        while i < places[at]:
            s, g = side[i], shard[i]
            maxima[s, g] = max(maxima[s, g], ts[i])
            i += 1
        found[at] = maxima
    return found


@njit(cache=True, nogil=True)
def _delays(ts, side, shard, maxima, delay):  # type: ignore[no-untyped-def]
    for i in range(len(ts)):
        s, g = side[i], shard[i]
        maxima[s, g] = max(maxima[s, g], ts[i])
        delay[i] = maxima[s, g] - ts[i]
