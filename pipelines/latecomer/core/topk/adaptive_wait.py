"""The adaptive wait of a top-k query: how long a window waits for its late rows.

Ordering: windows are observed once each, in order of their ends. Cost: O(k m) per window, O(m) per decision. State: one
interval, m sums, and the shortfall of the answers. First published: the top-k method of 2021 (interval, candidates,
sub-interval). Ours are the widening and the rule that makes up for a shortfall.

A window with end `e` is answered at the first arrival with ``T >= e + wait``, from the rows that have arrived by then.
A member of its final top-k *requires* the wait ``T(seq) - e``, whichever wait is chosen. It counts for a candidate wait
`c` if and only if it arrived before that answer, ``T(seq) < e + c``, or needs no wait, ``T(seq) <= e``. Members of the
final answer that have arrived always rank among the k best rows that have arrived. So the share of members that count
is the hit rate ``|answer and final answer| / min(k, rows)`` exactly, for every candidate at once.

The rule of `AdaptiveWait`, after every `windows` observed windows
------------------------------------------------------------------
The interval ``(low, high]`` has m candidates, the upper ends of its m equal sub-intervals, each with its mean hit rate.

1. *Some but not all reach the target:* the least candidate that does becomes the wait, its sub-interval the interval.
2. *None does:* the interval moves up by its own width. The wait is its new upper end.
3. *All do* (the least candidate does): the interval moves down until its upper end is that least candidate, the only
   lower one with a known rate, and this is the wait. So the wait is never set to an untried value on the way down. An
   interval that starts at 0 cannot move down: rule 1 applies.
4. *Erratum.* Sub-intervals shrink m-fold, so the printed shift may chase a change for ever. From the second shift in a
   row in one direction on, the width doubles before each shift, also beyond the initial width.
5. *Least step.* Candidates lie no closer than ``min_step_us``. A sub-interval narrower than ``m * min_step_us`` is
   widened to that around the wait, half below and half above, so that it follows small changes without a shift.

Choices where the sources are silent: a window without rows is not an observation; the mean is over windows, each with
weight one; the rate is compared with a tolerance of 1e-9 (means of fractions).

How soon it follows a change
----------------------------
Let ``w = m * min_step_us`` (0.2 s by default), `g` the distance from the interval to the wait that the new regime
needs, and `n` = `windows`. Upwards `j` shifts cover ``w (2^j - 1)``, downwards ``(m - 1) / m`` of it. The first
decision may see both regimes, and narrowing takes ``ceil(log_m 2^(j-1))`` decisions. So an upward change is met after
``n (1 + j)`` windows, and a change in either direction is followed to the least step after ``n (2 + j + ceil(log_m
2^(j-1)))`` windows (``windows_to_follow``). With the defaults, 1 s to 10 s or back takes at most 300 windows:
logarithmic in the change, where the printed rule is linear. The observation period of a window, during which its late
rows are awaited, comes on top (:mod:`latecomer.core.windows.control`).

How a shortfall is made up for
------------------------------
*Erratum.* The printed rule takes the least wait with a *measured* mean that reaches the target. Of several noisy means
the least that passes was often lucky (the winner's curse). And loss is convex in the wait, so a wait that fluctuates
loses more than a constant one. So the printed rule ends below the target by construction, the more so the longer the
tail of the delays.

6. Candidates are judged against ``hit_rate + shortfall``. After `n` observed windows, before the decision, ``shortfall
   += (1 - hit_rate) * (hit_rate - mean hit rate of the wait in force)``, over windows from which that wait was not
   chosen. It is kept between 0 and ``1 - hit_rate``. This is an integral controller, as in adaptive conformal
   inference. It can only make the rule stricter, up to every member. The step is no constant of its own: the sum
   forgets in ``1 / (1 - hit_rate)`` decisions.
7. *A change is not a bias.* No shortfall counts before rule 1 has applied once, nor from the second shift in a row in
   one direction on. When such shifts have doubled or halved the wait, the shortfall returns to its value before them.
   Otherwise a wait that has followed a change would stay far too long until the sum has forgotten.

While the shortfall is inside its bounds and every decision counts, ``shortfall / (1 - hit_rate)`` bounds the sum of the
decisions' misses, whatever the delays, so the mean comes to the target. Rule 7 gives some of this away where shifts are
many, as with long tails. Measurements and rejected variants: docs/experiments/topk-adaptive-wait.md. A promise for each
period is the job of :class:`~latecomer.core.windows.calibrated_slack.CalibratedSlack`, which waits longer.

Another departure from the source: rules 2 and 3 shift by the width of the interval and to the least candidate, the
source by one sub-interval.

References
----------
Wu and Fang, continuous top-k query method over high-speed out-of-order data streams, 2021, section 2.1 (steps 1 to 3 in
the comments) and Table 1; Gibbs and Candes, "Adaptive conformal inference under distribution shift", 2021 (rule 6).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latecomer.core.state import check_version
from latecomer.core.time import FOREVER

Int64Array = NDArray[np.int64]

STATE_VERSION = 2
TOLERANCE = 1e-9
"""By how much a mean of fractions may stay below the target and still reach it."""


class AdaptiveWait:
    """A deterministic state machine that observes every window and decides the wait of the next ones.

    Parameters
    ----------
    hit_rate : float
        Target: least mean hit rate, in (0, 1].
    candidates : int
        `m`, at least 2.
    windows : int
        `n`, observed windows per decision.
    initial_wait_us : int
        The first wait and the width of the first interval, microseconds.
    min_step_us : int or None
        Least distance between candidates, microseconds; None: a tenth of their first distance, at least 1 ms.
    slide_us : int
        Distance between window starts, microseconds.

    Raises
    ------
    ValueError
        If a value is out of range; the message names it and the remedy.
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
        # Step 1 of the source: the interval (0, K].
        self.low_us, self.high_us = 0, max(self.initial_wait_us, self.least_width_us)
        self._wait_us = self.initial_wait_us
        self._sums = np.zeros(self.candidates)
        self._observed = 0
        self._direction, self._shifts = 0, 0
        self._shortfall, self._hits, self._settled = 0.0, 0.0, False
        self._before_shifts = (0.0, self._wait_us)  # shortfall and wait

    @property
    def judged_hit_rate(self) -> float:
        """The mean hit rate that a candidate must reach now: the target plus the shortfall."""
        return self.hit_rate + self._shortfall

    @property
    def wait_us(self) -> int:
        """The wait in force, microseconds."""
        return self._wait_us

    @property
    def least_width_us(self) -> int:
        """The width at which the interval stops shrinking, microseconds."""
        return self.candidates * self.min_step_us

    @property
    def candidates_us(self) -> Int64Array:
        """The upper ends of the sub-intervals, int64[m], microseconds."""
        width, m = self.high_us - self.low_us, self.candidates
        return np.array([self.low_us + width * i // m for i in range(1, m + 1)], np.int64)

    def observe(self, required_wait_us: Int64Array, best: int, members: Int64Array | None = None) -> None:
        """Count one window whose observation period is over; windows come in order of their ends.

        Parameters
        ----------
        required_wait_us : int64[n]
            ``T(seq) - window_end`` of each member of the final top-k, microseconds; 0 or less: no wait.
        best : int
            ``min(k, rows of the window)``; 0 for an empty window, which is left out.
        members : int64[n], optional
            Number of members that each of these stands for; None: one.
        """
        if best == 0:
            return
        required = np.maximum(np.asarray(required_wait_us, np.int64), 0)
        count = np.ones(len(required), np.int64) if members is None else members
        # Step 2 of the source: the hit rate of every candidate, and here also of the wait in force.
        self._sums += count @ ((required[:, None] < self.candidates_us) | (required[:, None] == 0)) / best
        self._hits += float(count @ ((required < self._wait_us) | (required == 0))) / best
        self._observed += 1
        if self._observed == self.windows:
            self._update_shortfall()
            self._decide()
            self._sums, self._observed, self._hits = np.zeros(self.candidates), 0, 0.0

    def windows_to_follow(self, gap_us: int) -> int:
        """Return after how many observed windows a change is followed to the least step.

        Exact for hit rates without noise; the module's docstring derives it.

        Parameters
        ----------
        gap_us
            Distance from the settled interval to the wait that is needed now, microseconds.
        """
        m, width = self.candidates, self.least_width_us
        shifts = max(math.ceil(math.log2(gap_us * m / (m - 1) / width + 1) - TOLERANCE), 0)
        narrowing = math.ceil((max(shifts, 1) - 1) / math.log2(m) - TOLERANCE)
        return self.windows * (2 + shifts + narrowing)

    def to_dict(self) -> dict[str, Any]:
        """Return parameters and state as JSON values; floats survive JSON exactly."""
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
            "seen": self._observed,
            "shifts": [self._direction, self._shifts],
            "lack": self._shortfall,
            "hits": self._hits,
            "settled": self._settled,
            "before": list(self._before_shifts),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AdaptiveWait:
        """Restore the state that ``to_dict`` returned; a state of version 1, without a shortfall, starts with none."""
        check_version("state of the adaptive wait", data, 1, STATE_VERSION)
        self = cls(
            data["hit_rate"],
            data["candidates"],
            data["windows"],
            data["initial_wait_us"],
            data["min_step_us"],
            slide_us=data["slide_us"],
        )
        self.low_us, self.high_us = data["interval_us"]
        self._wait_us, self._observed = data["wait_us"], data["seen"]
        self._sums = np.array(data["sums"], np.float64)
        self._direction, self._shifts = data["shifts"]
        self._shortfall, self._settled = data.get("lack", 0.0), data.get("settled", False)
        self._hits = data.get("hits", self.hit_rate * self._observed)
        shortfall, wait_us = data.get("before", (0.0, self._wait_us))
        self._before_shifts = (float(shortfall), int(wait_us))
        return self

    def _update_shortfall(self) -> None:
        """Apply rule 6, and remember the shortfall before shifts began for rule 7."""
        if self._shifts == 0:
            self._before_shifts = (self._shortfall, self._wait_us)
        if self._settled and self._shifts < 2:
            allowed = 1.0 - self.hit_rate
            shortfall = self._shortfall + allowed * (self.hit_rate - self._hits / self._observed)
            self._shortfall = min(max(shortfall, 0.0), allowed)

    def _decide(self) -> None:
        """Choose the next interval and its wait (step 3 of the source)."""
        reaching = np.flatnonzero(self._sums / self._observed >= self.judged_hit_rate - TOLERANCE)
        ends = [self.low_us, *self.candidates_us.tolist()]
        if len(reaching) == 0:  # rule 2
            width = self._shift(1)
            self.low_us, self.high_us = self.high_us, min(self.high_us + width, FOREVER)
            self._wait_us = self.high_us
        elif reaching[0] == 0 and self.low_us > 0:  # rule 3
            width = self._shift(-1)
            self._wait_us = self.high_us = ends[1]
            self.low_us = max(self.high_us - width, 0)
        else:  # rule 1
            self._direction, self._shifts, self._settled = 0, 0, True
            self.low_us, self.high_us = ends[reaching[0]], ends[reaching[0] + 1]
            self._wait_us = self.high_us
        if self.high_us - self.low_us < self.least_width_us:  # rule 5
            self.low_us = max(self._wait_us - self.candidates // 2 * self.min_step_us, 0)
            self.high_us = self.low_us + self.least_width_us
        shortfall, wait_us = self._before_shifts
        if self._shifts >= 2 and not wait_us < 2 * self._wait_us < 4 * wait_us:  # rule 7
            self._shortfall = shortfall

    def _shift(self, direction: int) -> int:
        """Count a shift and return the width to shift by (rule 4)."""
        self._shifts = self._shifts + 1 if direction == self._direction else 1
        self._direction = direction
        width = self.high_us - self.low_us
        return min(2 * width, FOREVER) if self._shifts >= 2 else width


def _check(hit_rate: float, initial_wait_us: int, slide_us: int) -> None:
    """Raise ValueError if a parameter is out of range."""
    if not 0 < hit_rate <= 1:
        raise ValueError(f"hit_rate is {hit_rate}: give a share above 0, at most 1")
    if initial_wait_us < 1 or slide_us < 1:
        raise ValueError(f"initial_wait_us {initial_wait_us}, slide_us {slide_us}: give positive microseconds")
