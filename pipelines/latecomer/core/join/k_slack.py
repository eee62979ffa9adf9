"""Join on arrays: the data plane in memory, for benchmarks, transcripts and what-if questions.

The same three steps as on Spark (scan, count, decide, join), over NumPy arrays that hold the whole input, cut into
micro-batches only where the caller says so. Cost: O(n log n + pairs).

The K-slack family (`reordered`) waits instead: a tuple is released when the watermark ``W(a) = running max of (T(a) - K(a))``
has reached its event time, and joined with what was released before; one that comes behind the watermark is inserted at
once and does not probe. Ordering: arrival order. First published: K-slack, Babu, Srivastava and Widom 2004; K the
largest delay so far, Mutschler and Philippsen 2013. Its pairs wait, and `waits` says how long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latecomer.core.time import NEVER, running_max

Int64 = NDArray[np.int64]


def slack_watermark(
    now: Int64, delay: Int64, slack_us: int | None, carry: tuple[int, int] = (NEVER, 0)
) -> tuple[Int64, tuple[int, int]]:
    """Watermark of the K-slack family after each arrival of a micro-batch.

    Parameters
    ----------
    now, delay
        int64[n] us, per arrival: stream time (``NEVER`` before it is defined) and delay on the tuple's own stream.
    slack_us
        `K`; None: the largest delay so far (``mp_k_slack``), each arrival's own included.
    carry
        Watermark and largest delay that the micro-batch before ended with.

    Returns
    -------
    watermark
        int64[n] us, non-decreasing; ``NEVER`` while there is none.
    carry
        For the next micro-batch.
    """
    largest = running_max(delay, carry[1])
    slack = largest if slack_us is None else np.int64(slack_us)
    mark = running_max(np.where(now > NEVER, now - slack, NEVER), carry[0])
    return mark, (int(mark[-1]), int(largest[-1])) if len(mark) else carry


@dataclass
class ArrivalClock:
    """Stream time at past arrivals, to the adaptation interval: what a waiting pair's later tuple arrived at.

    A pair of the K-slack family is published when the later *released* of its rows is, so its later *arrival* may belong to
    an earlier micro-batch, and events are stored without the stream time of their arrival. This keeps one entry per
    interval that saw an arrival: its first arrival number and the stream time there. So a wait is overstated by less
    than one interval, alike for rows of this micro-batch and stored ones: the entries are a function of the arrival order,
    and any cut gives the same ledger. `forget` bounds them by the slack: ``K / L`` entries.

    Attributes
    ----------
    seq, stream_time_us
        int64[n]: first arrival number and stream time of each interval, both increasing.
    """

    seq: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    stream_time_us: Int64 = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, seq: Int64, stream_time_us: Int64, interval_us: int) -> None:
        """Take in the first arrivals of a micro-batch's intervals, int64[m] in order; intervals known already are skipped.

        Stream times of ``NEVER`` (before every stream has spoken) must be left out.
        """
        last = int(self.stream_time_us[-1]) // interval_us if len(self.seq) else NEVER
        fresh = stream_time_us // interval_us > last
        self.seq = np.concatenate([self.seq, seq[fresh]])
        self.stream_time_us = np.concatenate([self.stream_time_us, stream_time_us[fresh]])

    def at(self, seq: Int64) -> Int64:
        """Stream time at arrivals, int64 us, shape of `seq`: that of their interval's first arrival, the first known before it."""
        if not len(self.seq):
            return np.full(np.shape(seq), NEVER, np.int64)
        return self.stream_time_us[np.maximum(np.searchsorted(self.seq, seq, side="right") - 1, 0)]

    def forget(self, seq: int) -> None:
        """No arrival before `seq` will be asked for any more."""
        keep = max(int(np.searchsorted(self.seq, seq, side="right")) - 1, 0)
        self.seq, self.stream_time_us = self.seq[keep:], self.stream_time_us[keep:]

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values."""
        return {"seq": self.seq.tolist(), "stream_time_us": self.stream_time_us.tolist()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ArrivalClock:
        """Inverse of ``to_dict``."""
        return cls(np.array(data["seq"], np.int64), np.array(data["stream_time_us"], np.int64))
