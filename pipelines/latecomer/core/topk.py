"""How long a top-k window waits for its late rows: the paper's adaptive wait.

Ordering: windows are observed once each, in order of their ends. Cost: O(k m) per window, O(m) per decision. State: one
interval, m sums. First published: the top-k method of 2021 (interval, candidates, sub-interval); widening is ours.

A window with end `e` is answered at the first arrival with ``T >= e + wait`` from what has arrived by then. A member of
its final top-k *requires* the wait ``T(seq) - e``, whatever wait is chosen; it counts for a candidate wait `c` if and
only if it arrived before that answer, ``T(seq) < e + c``, or needs no wait (``T(seq) <= e``). Members of the final
answer that have arrived always rank among the k best of what has arrived, so the share that counts is the hit rate
``|answer and final answer| / min(k, rows)`` exactly, for every candidate at once.

The rule of `AdaptiveWait`, after every `windows` observed windows
-----------------------------------------------------------------
Interval ``(low, high]``, m candidates at the upper ends of its equal sub-intervals, mean hit rate of each.

1. *Some but not all reach the target:* the least that does becomes the wait, its sub-interval the interval.
2. *None does:* the interval moves up by its own width; the wait is its new upper end.
3. *All do* (the least one does): the interval moves down until its upper end is that least candidate, the only lower one
   whose rate is known, and that is the wait. So the wait is never set to an untried value on the way down. An interval
   that starts at 0 cannot move down: rule 1 applies.
4. *Erratum.* Sub-intervals shrink m-fold, so the printed shift may chase a change for ever. From the second shift in a
   row in one direction on, the width doubles before each shift, past the initial width too while shifts go on.
5. *Least step.* Candidates lie no closer than ``min_step_us``. A sub-interval narrower than ``m * min_step_us`` is
   widened to that around the wait, half below and half above, so that it follows small changes without shifting.

Choices where the sources are silent: a window without rows is not an observation; the mean is over windows, each with
weight one; the rate is compared with a tolerance of 1e-9 (means of fractions).

How soon it follows
-------------------
Let ``w = m * min_step_us`` (0.2 s by default), `g` the distance from the interval to the wait the new regime needs, and
`n` = `windows`. Upwards `j` shifts cover ``w (2^j - 1)``, downwards ``(m - 1) / m`` of it; the first decision may see
both regimes, and narrowing takes ``ceil(log_m 2^(j-1))`` decisions. So an upward change is met after ``n (1 + j)`` windows and a
change in either direction is followed to the least step after ``n (2 + j + ceil(log_m 2^(j-1)))``: ``windows_to_follow``.
With the defaults, 1 s to 10 s or back takes at most 300 windows; that is logarithmic in the change where the printed rule is linear.
To these comes the observation period, during which a window's late rows are awaited (:mod:`latecomer.core.windows`).

The target is met on average at best, not in every span of windows: the wait is the least that *reached* it, so about half of
all spans fall below, and as loss is convex in the wait, a wait that fluctuates loses a little more than a constant one. Measured at
0.95, three seeds, 60 rows/s: 0.950, 0.953 and 0.948 at mean lags of 4, 10 and 20 s. That is the method, not its reading here: it
asks for no margin. `CalibratedSlack` aims below the promised loss, keeps the promise (0.977 to 0.979) and waits longer.

Where it departs from the source besides: rule 2 and 3 shift by the width of the interval and to the least candidate, the source by one
sub-interval, which the erratum makes too slow to follow anything.

References
----------
Wu and Fang, continuous top-k query method over high-speed out-of-order data streams, 2021, section 2.1 and Table 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latecomer.core.time import FOREVER

Int64Array = NDArray[np.int64]

STATE_VERSION = 1
TOLERANCE = 1e-9


class AdaptiveWait:
    """A deterministic state machine: ``observe`` every window, read ``wait_us`` for the next.

    Parameters
    ----------
    hit_rate : float
        Least mean hit rate, in (0, 1].
    candidates : int
        `m`, at least 2.
    windows : int
        `n`, observed windows per decision.
    initial_wait_us : int
        The first wait, and width of the first interval, microseconds.
    min_step_us : int or None
        Least distance of candidates, microseconds; None: a tenth of the first, but 1 ms at least.
    slide_us : int
        Distance of windows, microseconds.

    Raises
    ------
    ValueError
        For values out of range; the message names the value and what to do.
    """

    def __init__(
        self,
        hit_rate: float,
        candidates: int = 10,
        windows: int = 30,
        initial_wait_us: int = 2_000_000,
        min_step_us: int | None = None,
        *,
        slide_us: int,
    ) -> None:
        _check(hit_rate, initial_wait_us, slide_us)
        if candidates < 2 or windows < 1:
            raise ValueError(f"{candidates} candidates over {windows} windows: give at least 2 over at least 1")
        if min_step_us is None:
            min_step_us = max(initial_wait_us // candidates // 10, 1_000)
        if min_step_us < 1:
            raise ValueError(f"min_step_us is {min_step_us}: give 1 or more")
        self.hit_rate, self.candidates, self.windows = float(hit_rate), int(candidates), int(windows)
        self.initial_wait_us, self.min_step_us, self.slide_us = int(initial_wait_us), int(min_step_us), int(slide_us)
        self.low_us, self.high_us = 0, max(self.initial_wait_us, self.least_width_us)
        self._wait_us = self.initial_wait_us
        self._sums = np.zeros(self.candidates)
        self._seen = 0
        self._direction, self._shifts = 0, 0

    @property
    def wait_us(self) -> int:
        """The wait in force, microseconds."""
        return self._wait_us

    @property
    def least_width_us(self) -> int:
        """Width at which the interval stops shrinking, microseconds."""
        return self.candidates * self.min_step_us

    @property
    def candidates_us(self) -> Int64Array:
        """Upper ends of the sub-intervals, int64[m], microseconds."""
        width, m = self.high_us - self.low_us, self.candidates
        return np.array([self.low_us + width * i // m for i in range(1, m + 1)], np.int64)

    def observe(self, required_wait_us: Int64Array, best: int) -> None:
        """Take in one window whose observation is over; windows in order of their ends.

        Parameters
        ----------
        required_wait_us : int64[n]
            ``T(seq) - window_end`` of each member of the final top-k; 0 or less: needs no wait.
        best : int
            ``min(k, rows of the window)``; 0 for an empty window, which is left out.
        """
        if best == 0:
            return
        needs = np.maximum(np.asarray(required_wait_us, np.int64), 0)
        self._sums += ((needs[:, None] < self.candidates_us) | (needs[:, None] == 0)).sum(axis=0) / best
        self._seen += 1
        if self._seen == self.windows:
            self._decide()
            self._sums, self._seen = np.zeros(self.candidates), 0

    def windows_to_follow(self, gap_us: int) -> int:
        """Observed windows until a change that lies `gap_us` beyond a settled interval is followed to the least step.

        Exact for hit rates without noise; see the module's text.
        """
        m, width = self.candidates, self.least_width_us
        shifts = max(math.ceil(math.log2(gap_us * m / (m - 1) / width + 1) - TOLERANCE), 0)
        narrowing = math.ceil((max(shifts, 1) - 1) / math.log2(m) - TOLERANCE)
        return self.windows * (2 + shifts + narrowing)

    def to_dict(self) -> dict[str, Any]:
        """Parameters and state, JSON-able; floats survive JSON exactly."""
        return {
            "version": STATE_VERSION,
            "hit_rate": self.hit_rate,
            "candidates": self.candidates,
            "windows": self.windows,
            "initial_wait_us": self.initial_wait_us,
            "min_step_us": self.min_step_us,
            "slide_us": self.slide_us,
            "interval_us": [self.low_us, self.high_us],
            "wait_us": self._wait_us,
            "sums": self._sums.tolist(),
            "seen": self._seen,
            "shifts": [self._direction, self._shifts],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AdaptiveWait:
        """Inverse of ``to_dict``."""
        _check_version(data)
        self = cls(
            data["hit_rate"],
            data["candidates"],
            data["windows"],
            data["initial_wait_us"],
            data["min_step_us"],
            slide_us=data["slide_us"],
        )
        self.low_us, self.high_us = data["interval_us"]
        self._wait_us, self._seen = data["wait_us"], data["seen"]
        self._sums = np.array(data["sums"], np.float64)
        self._direction, self._shifts = data["shifts"]
        return self

    def _decide(self) -> None:
        reach = np.flatnonzero(self._sums / self._seen >= self.hit_rate - TOLERANCE)
        ends = [self.low_us, *self.candidates_us.tolist()]
        if len(reach) == 0:
            width = self._shift(1)
            self.low_us, self.high_us = self.high_us, min(self.high_us + width, FOREVER)
            self._wait_us = self.high_us
        elif reach[0] == 0 and self.low_us > 0:
            width = self._shift(-1)
            self._wait_us = self.high_us = ends[1]
            self.low_us = max(self.high_us - width, 0)
        else:
            self._direction, self._shifts = 0, 0
            self.low_us, self.high_us = ends[reach[0]], ends[reach[0] + 1]
            self._wait_us = self.high_us
        if self.high_us - self.low_us < self.least_width_us:
            self.low_us = max(self._wait_us - self.candidates // 2 * self.min_step_us, 0)
            self.high_us = self.low_us + self.least_width_us

    def _shift(self, direction: int) -> int:
        """Count a shift; the width to shift by."""
        self._shifts = self._shifts + 1 if direction == self._direction else 1
        self._direction = direction
        width = self.high_us - self.low_us
        return min(2 * width, FOREVER) if self._shifts >= 2 else width


def _check(hit_rate: float, initial_wait_us: int, slide_us: int) -> None:
    if not 0 < hit_rate <= 1:
        raise ValueError(f"hit_rate is {hit_rate}: give a share above 0, at most 1")
    if initial_wait_us < 1 or slide_us < 1:
        raise ValueError(f"initial_wait_us {initial_wait_us}, slide_us {slide_us}: give positive microseconds")


def _check_version(data: dict[str, Any]) -> None:
    if data["version"] != STATE_VERSION:
        raise ValueError(f"state of version {data['version']}, this is version {STATE_VERSION}: adapt from history")
