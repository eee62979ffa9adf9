"""Arrivals in order, with the stream time after each.

Two columns of a micro-batch, ``seq`` and event time, decide it, in one pass along the arrival order; no payload is
read. Counts for the windowed kinds: :mod:`latecomer.core.windows.arrivals`. Cost: O(n). Memory: about 40 bytes an
arrival.

The arrivals may lie in *blocks*: runs of consecutive arrivals, each with the running maxima before it. A block alone
decides about its arrivals, so blocks can be reduced side by side, in this process or in the tasks of a cluster. What
they are reduced to is merged in their order, and does not depend on where they were cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoint:
    """Running maxima of event time (us) before arrival `seq`: entry ``side * shards + shard`` of `carry`."""

    seq: int
    carry: list[int]


class ArrivalBlocks(Protocol):
    """Consecutive arrivals in order, in one or more blocks."""

    @property
    def rows(self) -> int:
        """The number of arrivals."""

    @property
    def carry(self) -> list[int]:
        """The running maxima after them, laid out as in :class:`Checkpoint`."""

    def of_blocks(self, task: Callable[[Arrivals], T]) -> list[T]:
        """Return what `task` makes of each block, in their order; it may run elsewhere, and so is pickled.

        Without arrivals there is one block, which is empty.
        """

    def checkpoints(self, every: int) -> list[Checkpoint]:
        """Return checkpoints inside these arrivals, about `every` so many of them, in order."""


@dataclass(frozen=True)
class Arrivals:
    """Consecutive arrivals in order: one block of :class:`ArrivalBlocks`, in memory.

    Attributes
    ----------
    seq, event_time_us : int64[n]
    side : int8[n]
        The source that a row belongs to, from 0.
    shard : int32[n]
        The shard of its group.
    stream_time_us : int64[n]
        `T` of the row's shard after it: the least of its sources' running maxima, ``NEVER`` until all sources are seen.
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
        """Continue stream time from `carry` (as in :class:`Checkpoint`) along rows that are sorted by `seq`."""
        before = np.array(carry, np.int64).reshape(-1, shards)
        after, time = before.copy(), np.empty_like(event_time_us)
        _follow(event_time_us, side, shard, after, time)
        return Arrivals(seq, event_time_us, side, shard, time, before, after)

    @property
    def rows(self) -> int:
        """The number of arrivals."""
        return len(self.seq)

    @property
    def carry(self) -> list[int]:
        """The running maxima `after` these arrivals, laid out as in :class:`Checkpoint`."""
        return [int(maximum) for maximum in self.after.ravel()]

    def of_blocks(self, task: Callable[[Arrivals], T]) -> list[T]:
        """Return what `task` makes of these arrivals."""
        return [task(self)]

    def checkpoints(self, every: int) -> list[Checkpoint]:
        """Return checkpoints inside these arrivals: before every so many of them, not before the first."""
        places = np.arange(every, len(self.seq), every)
        maxima = _maxima(self.event_time_us, self.side, self.shard, self.before.copy(), places)
        return [
            Checkpoint(int(seq), carry.ravel().tolist()) for seq, carry in zip(self.seq[places], maxima, strict=True)
        ]

    @cached_property
    def delay_us(self) -> Int64:
        """Running maximum of each row's source less its event time, >= 0, int64[n]."""
        delay = np.empty_like(self.event_time_us)
        _delays(self.event_time_us, self.side, self.shard, self.before.copy(), delay)
        return delay

    @property
    def lateness_us(self) -> Int64:
        """Stream time after each row less its event time, int64[n].

        Negative for rows ahead of stream time; meaningless before all sources are seen.
        """
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
    """Return the running maxima before the rows at ascending places, int64[places, sources, shards]."""
    at_places, i = np.empty((len(places), *maxima.shape), np.int64), 0
    for at in range(len(places)):
        while i < places[at]:
            s, g = side[i], shard[i]
            maxima[s, g] = max(maxima[s, g], ts[i])
            i += 1
        at_places[at] = maxima
    return at_places


@njit(cache=True, nogil=True)
def _delays(ts, side, shard, maxima, delay):  # type: ignore[no-untyped-def]
    for i in range(len(ts)):
        s, g = side[i], shard[i]
        maxima[s, g] = max(maxima[s, g], ts[i])
        delay[i] = maxima[s, g] - ts[i]
