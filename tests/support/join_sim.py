"""A vectorised simulator of the symmetric join with retention, for tests and experiments of the control plane.

It knows all pairs and their required retention, and gives a controller the statistics that the data plane would count:
pairs whose earlier tuple is behind the horizon are in the sample alone. The semantics are those of
``latecomer.core.join.statistics``. Only its two dataclasses are shared, so that an error in one shows against the
other.

Conventions (they reproduce the published table, see ``tests/core/test_calibrated.py``):

* a pair belongs to the period, and to the adaptation interval, that contains ``T(seq_y)``, ``y`` its later arrival;
  periods are multiples of P since the epoch (the published table counted them from the first defined T);
* rows held are averaged over stream time: after each arrival, the rows of both views, weighted by the stream time that
  passes until the next; a view changes only when an arrival moves T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd
import pytest
from latecomer.core.join.statistics import IntervalStats, SideStats

UNDEFINED = np.iinfo(np.int64).min // 4
"""Stream time before both streams are seen."""


SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
"""The folder of real out-of-order data beside the repository, which the project may not redistribute."""


def shared_data(name: str) -> Path:
    """Return the path of a shared data file; skip the test with a message where it is absent."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{name} is not in ../shared/data, so nothing is measured on real data here")
    return path


def zeek_case(left: str, right: str, window_us: int, key: str = "orig_h") -> JoinCase:
    """Return two of the network logs, joined on a host column; skip the test where the data is absent."""
    rows = pd.read_parquet(shared_data("zeek_events.parquet"), columns=["seq", "event_ts", "stream", key])
    rows = rows[rows["stream"].isin([left, right]) & rows[key].notna()].sort_values("seq")
    side = (rows["stream"] == right).to_numpy(np.int8)
    codes = pd.factorize(rows[key])[0]
    ts, seq = rows["event_ts"].to_numpy(np.int64), rows["seq"].to_numpy(np.int64)
    return make_case(f"{left}+{right}", ts, side, window_us, codes, seq=seq)


class Controller(Protocol):
    """The interface of a controller to the simulator, in microseconds."""

    def observe(self, stats: IntervalStats) -> None: ...

    def choose(self, interval: int) -> tuple[int, int]: ...


@dataclass(frozen=True)
class JoinCase:
    """Two streams with all their pairs.

    Attributes
    ----------
    ts, side, seq : int64[n], int8[n], int64[n]
        Event time in microseconds, 0 left / 1 right, and arrival order, in arrival order.
    stream_time : int64[n]
        ``T(a)``; ``UNDEFINED`` until both streams are seen.
    delay : int64[n]
        Delay on the tuple's own stream.
    lateness : int64[n]
        ``T(a)`` less the event time, negative for a tuple ahead of it; the delay before both streams are seen.
    pair_x, pair_y : int64[m]
        Row of the earlier and of the later arrival, ordered by the later arrival.
    is_result : bool[m]
        The predicate's verdict.
    rho : int64[m]
        Required retention ``T(seq_y) - w - x.ts``.
    """

    name: str
    window_us: int
    ts: np.ndarray
    side: np.ndarray
    seq: np.ndarray
    stream_time: np.ndarray
    delay: np.ndarray
    pair_x: np.ndarray
    pair_y: np.ndarray
    is_result: np.ndarray
    rho: np.ndarray

    @property
    def lateness(self) -> np.ndarray:
        """Return the lateness of every row, int64[n] us."""
        return np.where(self.stream_time > UNDEFINED // 2, self.stream_time - self.ts, self.delay)

    @property
    def pair_time(self) -> np.ndarray:
        """Return stream time at the later arrival, int64[m]."""
        return self.stream_time[self.pair_y]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run of a controller.

    Attributes
    ----------
    recall : float64[p]
        Recall of each period that has at least one result.
    period : int64[p]
        Number of the period since the epoch.
    rows_held : float
        Mean rows in the two views, averaged over stream time, without the sample.
    sample_held : float
        Mean sampled rows beyond the horizon, kept only to be counted.
    rows_after : float
        ``rows_held + sample_held`` after the first full period, when a controller may first act.
    """

    recall: np.ndarray
    period: np.ndarray
    total_recall: float
    rows_held: float
    sample_held: float
    rows_after: float
    chosen: np.ndarray = field(repr=False)

    def met(self, target: float, skip: int = 0) -> float:
        """Return the share of periods, after the first ``skip``, whose recall reaches ``target``."""
        return float(np.mean(self.recall[skip:] >= target)) if self.recall.size > skip else 1.0


def make_case(
    name: str,
    ts: np.ndarray,
    side: np.ndarray,
    window_us: int,
    key: np.ndarray | None = None,
    predicate: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    seq: np.ndarray | None = None,
) -> JoinCase:
    """Find every pair of two streams given in arrival order.

    Parameters
    ----------
    name : str
        For messages.
    window_us : int
        `w`.
    seq : int64[n], optional
        Arrival order as the sample sees it; row numbers when not given.
    ts, side : int64[n], int8[n]
        Event time in microseconds and 0 (left) or 1 (right), in arrival order.
    key : int64[n], optional
        Equality key.
    predicate : callable, optional
        ``predicate(left_rows, right_rows) -> bool[m]`` over row numbers.
    """
    ts = np.ascontiguousarray(ts, dtype=np.int64)
    side = np.ascontiguousarray(side, dtype=np.int8)
    seq = np.arange(ts.size, dtype=np.int64) if seq is None else np.asarray(seq, dtype=np.int64)
    maxima = [np.maximum.accumulate(np.where(side == s, ts, UNDEFINED)) for s in (0, 1)]
    stream_time = np.minimum(*maxima)
    delay = np.where(side == 0, maxima[0], maxima[1]) - ts

    codes = (
        np.zeros(ts.size, dtype=np.int64) if key is None else np.unique(key, return_inverse=True)[1].astype(np.int64)
    )
    span = int(ts.max() - ts.min()) + 2 * window_us + 2
    place = codes * span + (ts - ts.min()) + window_us
    left, right = np.flatnonzero(side == 0), np.flatnonzero(side == 1)
    right = right[np.argsort(place[right], kind="stable")]
    low = np.searchsorted(place[right], place[left] - window_us, side="left")
    high = np.searchsorted(place[right], place[left] + window_us, side="right")
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    count = high - low
    cuts = np.searchsorted(np.cumsum(count), np.arange(0, int(count.sum()) + 1, 4_000_000), side="left")
    for a, b in zip(cuts, [*cuts[1:], left.size], strict=True):
        n = count[a:b]
        if not n.sum():
            continue
        left_row = np.repeat(left[a:b], n)
        offset = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
        right_row = right[np.repeat(low[a:b], n) + offset]
        good = np.ones(left_row.size, dtype=bool) if predicate is None else predicate(left_row, right_row)
        parts.append((np.minimum(left_row, right_row), np.maximum(left_row, right_row), good))
    if parts:
        x, y, good = (np.concatenate(column) for column in zip(*parts, strict=True))
    else:
        x, y, good = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, bool)
    order = np.argsort(y, kind="stable")
    x, y, good = x[order], y[order], good[order]
    return JoinCase(name, window_us, ts, side, seq, stream_time, delay, x, y, good, stream_time[y] - window_us - ts[x])


def in_sample(seq: np.ndarray, fraction: float) -> np.ndarray:
    """Select the deterministic sample of tuples: ``seq * 40503 mod 65536 < fraction * 65536``."""
    return (seq * 40503) % 65536 < fraction * 65536


def simulate(
    case: JoinCase,
    controller: Controller,
    period_us: int,
    interval_us: int,
    granularity_us: int,
    sample_fraction: float = 0.0,
) -> Outcome:
    """Run a controller over a case, interval by interval, with censored statistics."""
    lateness = getattr(controller, "needs_lateness", False)
    run = _Run(case, interval_us, granularity_us, sample_fraction, lateness)
    for interval in run.intervals():
        d = controller.choose(interval)
        controller.observe(run.step(interval, d))
    return run.outcome(period_us)


def constant_rows(case: JoinCase, d_us: int | tuple[int, int], after_us: int = 0) -> float:
    """Return mean rows held under a constant retention, from ``after_us`` after the start, by a closed integral."""
    d = np.array((d_us, d_us) if np.isscalar(d_us) else d_us, dtype=np.int64)
    alive = case.stream_time > UNDEFINED // 2
    start, end = case.stream_time[alive][0] + after_us, case.stream_time[-1]
    begin = np.maximum(case.stream_time, start)
    until = np.minimum(_next_step(case, case.ts + case.window_us + d[case.side]), end)
    return float(np.maximum(until - begin, 0).sum() / max(end - start, 1))


def _next_step(case: JoinCase, time: np.ndarray) -> np.ndarray:
    """Return the least stream time that occurs at or after ``time``: a view changes only when stream time does."""
    steps = np.unique(case.stream_time)
    return steps[np.minimum(np.searchsorted(steps, time, side="left"), steps.size - 1)]


def period_recall(case: JoinCase, d_us: int | tuple[int, int], period_us: int, origin_us: int = 0) -> np.ndarray:
    """Return the recall of each period under a constant retention, float64[p]; periods begin at `origin_us`."""
    d = np.array((d_us, d_us) if np.isscalar(d_us) else d_us, dtype=np.int64)
    good = case.is_result
    period = (case.pair_time[good] - origin_us) // period_us
    _, index = np.unique(period, return_inverse=True)
    made = case.rho[good] < d[case.side[case.pair_x[good]]]
    return np.bincount(index, weights=made) / np.bincount(index)


def clairvoyant(
    case: JoinCase, target: float, period_us: int, granularity_us: int, share: float = 0.95
) -> tuple[int, float]:
    """Return the least constant retention, same on both sides, that meets the target in ``share`` of the periods.

    Returns
    -------
    d_us, rows_held
    """
    good = case.is_result
    period = case.pair_time[good] // period_us
    rho = case.rho[good]
    numbers, index = np.unique(period, return_inverse=True)
    need = np.empty(numbers.size)
    order = np.lexsort((rho, index))
    ends = np.cumsum(np.bincount(index))
    starts = np.r_[0, ends[:-1]]
    for p, (a, b) in enumerate(zip(starts, ends, strict=True)):
        needed = int(np.ceil(target * (b - a) - 1e-9))
        need[p] = (rho[order[a + max(needed, 1) - 1]] // granularity_us + 1) * granularity_us
    need.sort()
    d = int(need[max(int(np.ceil(share * need.size - 1e-9)), 1) - 1])
    return d, constant_rows(case, d)


class _Run:
    """One pass over the intervals, with the two horizons and the counts."""

    def __init__(
        self, case: JoinCase, interval_us: int, granularity_us: int, fraction: float, lateness: bool = False
    ) -> None:
        self.case, self.g, self.fraction = case, granularity_us, fraction
        alive = np.flatnonzero(case.stream_time > UNDEFINED // 2)
        self.first_row = int(alive[0]) if alive.size else case.ts.size
        self.row_interval = case.stream_time // interval_us
        self.pair_interval = case.pair_time // interval_us
        self.sampled = in_sample(case.seq, fraction) if fraction else np.zeros(case.ts.size, dtype=bool)
        self.pair_side = case.side[case.pair_x]
        self.bucket = case.rho // granularity_us
        self.delay = case.lateness if lateness else case.delay
        behind = np.maximum(-(-self.delay // granularity_us) - 1, 0)
        self.delay_bucket = np.where(self.delay < 0, self.delay // granularity_us, behind)
        self.horizon = np.full(2, UNDEFINED, dtype=np.int64)
        self.produced = np.zeros(case.pair_x.size, dtype=bool)
        numbers, self.row_start = np.unique(self.row_interval[self.first_row :], return_index=True)
        self.row_start = np.r_[self.row_start + self.first_row, case.ts.size]
        self.numbers = numbers
        self.pair_start = np.searchsorted(self.pair_interval, numbers, side="left")
        self.pair_end = np.searchsorted(self.pair_interval, numbers, side="right")
        self.at = 0
        self.begin_time: list[int] = []
        self.chosen: list[tuple[int, int]] = []
        self.horizons: list[tuple[int, int]] = []

    def intervals(self) -> Iterator[int]:
        for at, number in enumerate(self.numbers):
            self.at = at
            yield int(number)

    def step(self, interval: int, d: tuple[int, int]) -> IntervalStats:
        case = self.case
        rows = slice(self.row_start[self.at], self.row_start[self.at + 1])
        pairs = slice(self.pair_start[self.at], self.pair_end[self.at])
        time, side = case.stream_time[rows], self.pair_side[pairs]
        retention = np.asarray(d, dtype=np.int64)
        x_ts, y_time = case.ts[case.pair_x[pairs]], case.pair_time[pairs]
        horizon = np.maximum(self.horizon[side], y_time - case.window_us - retention[side])
        held = x_ts > horizon
        self.produced[pairs] = held
        effective = np.minimum(retention, time[0] - case.window_us - self.horizon)
        sides = tuple(self._side(s, rows, pairs, held, [int(e // self.g) for e in effective]) for s in (0, 1))
        self.horizon = np.maximum(self.horizon, time[-1] - case.window_us - retention)
        self.begin_time.append(int(time[0]))
        self.chosen.append((int(d[0]), int(d[1])))
        self.horizons.append((int(self.horizon[0]), int(self.horizon[1])))
        return IntervalStats(interval, *sides)

    def _side(self, s: int, rows: slice, pairs: slice, held: np.ndarray, censored: list[int]) -> SideStats:
        case = self.case
        censored_from, other_censored = censored[s], censored[1 - s]
        on_stream = case.side[rows] == s
        delay_bucket, index = np.unique(self.delay_bucket[rows][on_stream], return_inverse=True)
        probe = (case.side[case.pair_y[pairs]] == s) & held & ~(self.bucket[pairs] >= other_censored)
        place = np.searchsorted(delay_bucket, self.delay_bucket[case.pair_y[pairs]][probe])
        good = case.is_result[pairs]
        candidates = np.bincount(place, minlength=delay_bucket.size)
        results = np.bincount(place[good[probe]], minlength=delay_bucket.size)
        on_side = (self.pair_side[pairs] == s) & good
        sampled = self.sampled[case.pair_x[pairs]]
        seen = on_side & (held | sampled)
        bucket, where = np.unique(self.bucket[pairs][seen], return_inverse=True)
        # Counts at or above ``censored_from`` depend on where a micro-batch was cut: the data plane forgets them.
        made = np.bincount(where, weights=held[seen], minlength=bucket.size).astype(np.int64)
        made[bucket >= censored_from] = 0
        drawn = np.bincount(where, weights=sampled[seen], minlength=bucket.size).astype(np.int64)
        return SideStats(
            rows=int(on_stream.sum()),
            delay_bucket=delay_bucket.astype(np.int64),
            delay_rows=np.bincount(index, minlength=delay_bucket.size).astype(np.int64),
            delay_candidates=candidates.astype(np.int64),
            delay_results=results.astype(np.int64),
            required_bucket=bucket.astype(np.int64),
            pairs=made,
            sampled_pairs=drawn,
            censored_from=censored_from,
        )

    def outcome(self, period_us: int) -> Outcome:
        case = self.case
        good = case.is_result
        numbers, index = np.unique(case.pair_time[good] // period_us, return_inverse=True)
        recall = np.bincount(index, weights=self.produced[good]) / np.bincount(index)
        start, end = int(case.stream_time[self.first_row]), int(case.stream_time[-1])
        chosen, horizons = np.array(self.chosen), np.array(self.horizons)
        begin = np.maximum(case.stream_time, start)
        until = np.empty(case.ts.size, dtype=np.int64)
        for s in (0, 1):
            on_stream = case.side == s
            ts = case.ts[on_stream]
            at = np.searchsorted(horizons[:, s], ts, side="left")
            inside = np.minimum(at, len(horizons) - 1)
            gone = np.maximum(np.array(self.begin_time)[inside], ts + case.window_us + chosen[inside, s])
            until[on_stream] = np.where(at < len(horizons), gone, end)
        until = np.minimum(_next_step(case, until), end)
        held = np.maximum(until - begin, 0)
        # A sampled row stays for the largest delay the other stream has shown by the time it arrives.
        reach = np.stack([np.maximum.accumulate(np.where(case.side == s, self.delay, 0)) for s in (1, 0)])
        reach = reach[case.side, np.arange(case.ts.size)]
        total = np.maximum(np.minimum(case.ts + case.window_us + reach, end) - begin, 0)
        extra = np.where(self.sampled, np.maximum(total - held, 0), 0)
        span = max(end - start, 1)
        first = min(start + period_us, end)
        later = np.maximum(until - np.maximum(begin, first), 0)
        drawn = np.minimum(case.ts + case.window_us + reach, end) - np.maximum(np.maximum(until, begin), first)
        after = (later + np.where(self.sampled, np.maximum(drawn, 0), 0)).sum() / max(end - first, 1)
        return Outcome(
            recall=recall,
            period=numbers,
            total_recall=float(self.produced[good].mean()) if good.any() else 1.0,
            rows_held=float(held.sum() / span),
            sample_held=float(extra.sum() / span),
            rows_after=float(after),
            chosen=chosen,
        )
