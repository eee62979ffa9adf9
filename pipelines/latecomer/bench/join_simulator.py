"""Simulate the join strategies on arrays in memory, for benchmarks and tests.

`qjoin` runs QJoin's set formula under the control plane of `run`. `reordered` computes which pairs the K-slack family
produces, and `waits` how long each pair waited. Both start from the pairs of the exact join, which `band_pairs` finds.

Ordering: arrival order. Cost: O(n log n + pairs).

References
----------
QJoin: Guangxi Sciences 27(3), 2020. K-slack: Babu, Srivastava and Widom, 2004; with K as the largest delay so far:
Mutschler and Philippsen, 2013.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latecomer.core.arrays.sparse_counts import Int64Array, SparseCounts
from latecomer.core.join.control import (
    CANDIDATES,
    DELAY,
    RESULTS,
    SAMPLED,
    Horizons,
    IntervalSummary,
    JoinControl,
    held_bucket_us,
)
from latecomer.core.join.recall_budget import IntervalEntry, LateSpans, RecallBudget, pair_counts
from latecomer.core.join.statistics import SAMPLE_FRACTION, delay_bucket, in_sample
from latecomer.core.time import NEVER, running_max, stream_time


@dataclass(frozen=True)
class Input:
    """Two streams in one arrival order.

    Attributes
    ----------
    seq, ts : pair of int64[n]
        Arrival numbers (increasing) and event times in us, per side.
    pairs : int64[m, 2]
        Row numbers (left, right) of all pairs that match within the window. Both sides of a self join are the same
        arrays, and no row is paired with itself.
    """

    seq: tuple[Int64Array, Int64Array]
    ts: tuple[Int64Array, Int64Array]
    pairs: Int64Array


@dataclass(frozen=True)
class Output:
    """The pairs, late rows and decisions of a strategy for an `Input`.

    Attributes
    ----------
    produced : bool[m]
        Whether each pair of the input is an on-time result.
    stream_time : int64[m]
        Stream time at the pair's later arrival, us.
    required : int64[m]
        Required retention of the pair, us.
    earlier_side : int8[m]
        Stream of the pair's earlier arrival.
    late : pair of bool[n]
        Rows registered as late, per side.
    horizons : Horizons
        Decisions of the control plane.
    """

    produced: NDArray[np.bool_]
    stream_time: Int64Array
    required: Int64Array
    earlier_side: NDArray[np.int8]
    late: tuple[NDArray[np.bool_], NDArray[np.bool_]]
    horizons: Horizons


def band_pairs(
    left_ts: Int64Array, right_ts: Int64Array, window_us: int, left_key: Int64Array, right_key: Int64Array
) -> Int64Array:
    """Find all pairs with equal keys and event times at most `window_us` apart.

    Parameters
    ----------
    left_ts, right_ts : int64[n], int64[m]
        Event times, us.
    window_us : int
        Largest difference of event times.
    left_key, right_key : int64[n], int64[m]
        Codes, at least 0.

    Returns
    -------
    int64[pairs, 2]
        Row numbers (left, right), ascending in the left.

    Raises
    ------
    ValueError
        Codes times the span of event times exceed 62 bits.
    """
    if len(left_ts) == 0 or len(right_ts) == 0:
        return np.empty((0, 2), np.int64)
    low = min(int(left_ts.min()), int(right_ts.min())) - window_us
    span = max(int(left_ts.max()), int(right_ts.max())) + window_us - low + 1
    if (int(max(left_key.max(), right_key.max())) + 1) * span >= 1 << 62:
        raise ValueError("keys x time span exceeds 62 bits: join fewer keys at once")
    order = np.lexsort((right_ts, right_key))
    ranked = right_key[order] * span + (right_ts[order] - low)
    base = left_key * span - low
    first = np.searchsorted(ranked, base + left_ts - window_us, "left")
    count = np.searchsorted(ranked, base + left_ts + window_us, "right") - first
    left = np.repeat(np.arange(len(left_ts)), count)
    offset = np.arange(len(left)) - np.repeat(np.cumsum(count) - count, count)
    return np.stack([left, order[np.repeat(first, count) + offset]], axis=1)


def stream_times(data: Input) -> tuple[tuple[Int64Array, Int64Array], tuple[Int64Array, Int64Array]]:
    """Return, per side, stream time at each arrival and its delay on its own stream.

    Both are int64[n] us; stream time is ``NEVER`` until every stream has been seen.
    """
    arrivals = np.union1d(data.seq[0], data.seq[1])
    maxima = []
    for side in (0, 1):
        raised = np.full(len(arrivals), NEVER, np.int64)
        raised[np.searchsorted(arrivals, data.seq[side])] = data.ts[side]
        maxima.append(running_max(raised))
    combined = stream_time(maxima)
    places = [np.searchsorted(arrivals, data.seq[side]) for side in (0, 1)]
    delays = [maxima[side][places[side]] - data.ts[side] for side in (0, 1)]
    return (combined[places[0]], combined[places[1]]), (delays[0], delays[1])


def qjoin(data: Input, control: JoinControl, cuts: list[int] | None = None) -> Output:
    """Run QJoin's set formula under a control plane.

    Parameters
    ----------
    data : Input
        Two streams with all their pairs.
    control : JoinControl
        The control plane in its initial state; it is advanced.
    cuts : list of int, optional
        Arrival numbers at which micro-batches end (exclusive); None runs one micro-batch.

    Returns
    -------
    Output
        It does not depend on `cuts`.
    """
    stream_time_us, delay = stream_times(data)
    left, right = data.pairs[:, 0], data.pairs[:, 1]
    left_later = data.seq[0][left] > data.seq[1][right]
    later_t = np.where(left_later, stream_time_us[0][left], stream_time_us[1][right])
    earlier_ts = np.where(left_later, data.ts[1][right], data.ts[0][left])
    side = left_later.astype(np.int8)
    required = later_t - control.window_us - earlier_ts
    later_seq = np.where(left_later, data.seq[0][left], data.seq[1][right])
    ends = sorted({*(cuts or []), 1 << 62})
    parts, start = [], -(1 << 62)
    for end in ends:
        rows = [(data.seq[s] >= start) & (data.seq[s] < end) for s in (0, 1)]
        pairs = (later_seq >= start) & (later_seq < end)
        for s in (0, 1):
            early = rows[s] & (stream_time_us[s] <= NEVER)
            if early.any():
                empty = (np.empty(0, np.int64), np.empty(0, np.int64))
                held = _count(data.ts[s][early] // control.held[s].bucket_us)
                control.hold_until_all_streams_seen((held, empty) if s == 0 else (empty, held))
        parts.append(
            control.step(summaries(data, control, stream_time_us, delay, rows, pairs, later_t, side, required))
        )
        start = end
    horizons = _concatenate(parts)
    at_later = np.where(
        side == 0,
        horizons.at(0, later_t, control.interval_us, control.window_us),
        horizons.at(1, later_t, control.interval_us, control.window_us),
    )
    late = tuple(
        horizons.at(1 - s, stream_time_us[s], control.interval_us, control.window_us) >= data.ts[s] - control.window_us
        for s in (0, 1)
    )
    return Output(earlier_ts > at_later, later_t, required, side, (late[0], late[1]), horizons)


def recalled(
    data: Input, output: Output, control: JoinControl, budget: RecallBudget, cuts: list[int] | None = None
) -> NDArray[np.bool_]:
    """Run a recall budget over the outcome of `qjoin`, as the Spark stage does, to the end of the input.

    Parameters
    ----------
    data, output
        The input of `qjoin`, and what it returned.
    control
        The control plane of that run.
    budget
        The budget in its initial state; it is advanced.
    cuts
        As for `qjoin`, but the result does not depend on them.

    Returns
    -------
    bool[m]
        Whether each pair of the input is recalled.
    """
    length, period_us = control.interval_us, budget.period_us
    stream_time_us, _ = stream_times(data)
    seq = np.union1d(data.seq[0], data.seq[1])
    time = np.full(len(seq), NEVER, np.int64)
    for side in (0, 1):
        time[np.searchsorted(seq, data.seq[side])] = stream_time_us[side]
    left_later = output.earlier_side == 1
    later_seq = np.where(left_later, data.seq[0][data.pairs[:, 0]], data.seq[1][data.pairs[:, 1]])
    interval, period = output.stream_time // length, output.stream_time // period_us * period_us
    late = [np.flatnonzero(output.late[side]) for side in (0, 1)]
    known = np.searchsorted(time, NEVER, "right")
    counted = [np.searchsorted(data.seq[side], seq[known] if known < len(seq) else 1 << 62) for side in (0, 1)]
    chosen, start = np.zeros(len(data.pairs), np.bool_), -(1 << 62)
    for end in sorted({*(cuts or []), 1 << 62}):
        here = np.flatnonzero((seq >= start) & (seq < end) & (time > NEVER))
        number = time[here] // length
        first = here[np.flatnonzero(np.diff(number, prepend=-(1 << 62)))]
        entries = [
            IntervalEntry(int(time[at] // length), int(seq[at]), int(time[at]), _rows_before(data, counted, seq[at]))
            for at in first
        ]
        pairs = np.flatnonzero((later_seq >= start) & (later_seq < end))
        cells = pair_counts(output.stream_time[pairs], output.produced[pairs], interval_us=length, period_us=period_us)
        spans = []
        for buffer in (0, 1):
            side = 1 - buffer
            rows = late[side][(data.seq[side][late[side]] >= start) & (data.seq[side][late[side]] < end)]
            times, at = data.ts[side][rows], stream_time_us[side][rows]
            horizon = output.horizons.at(buffer, at, length, control.window_us)
            spans.append(LateSpans.behind(horizon, times, at, window_us=control.window_us, interval_us=length))
        decisions = budget.step(entries, cells, (spans[0], spans[1]))
        if end == 1 << 62:
            decisions += budget.flush(end, int(time[-1]) if len(time) else NEVER)
        for decision in decisions:
            chosen |= (
                (interval == decision.interval)
                & (period == decision.period_us)
                & (later_seq >= decision.seq_from)
                & (later_seq < decision.published_seq)
                & ~output.produced
            )
        start = end
    return chosen


def _rows_before(data: Input, counted: list[np.intp], seq: np.int64) -> tuple[int, int]:
    """Return the rows of either side before an arrival and after all streams were seen."""
    left, right = (max(int(np.searchsorted(data.seq[side], seq) - counted[side]), 0) for side in (0, 1))
    return left, right


def summaries(
    data: Input,
    control: JoinControl,
    stream_time_us: tuple[Int64Array, Int64Array],
    delay: tuple[Int64Array, Int64Array],
    rows: list[NDArray[np.bool_]],
    pairs: NDArray[np.bool_],
    later_t: Int64Array,
    side: NDArray[np.int8],
    required: Int64Array,
) -> list[IntervalSummary]:
    """Summarise the rows and pairs of a micro-batch per adaptation interval, as the Spark stage does with group-bys.

    Parameters
    ----------
    data, control
        As for `qjoin`.
    stream_time_us, delay : pair of int64[n]
        As `stream_times` returns them.
    rows : pair of bool[n]
        Rows of the micro-batch, per side.
    pairs : bool[m]
        Pairs whose later arrival is in the micro-batch.
    later_t, side, required : int64[m], int8[m], int64[m]
        Stream time at the pair's later arrival, stream of its earlier arrival, required retention; us.
    """
    length, g = control.interval_us, control.granularity_us
    bucket = held_bucket_us(length, g)
    timed = [np.flatnonzero(rows[s] & (stream_time_us[s] > NEVER)) for s in (0, 1)]
    numbers = [stream_time_us[s][timed[s]] // length for s in (0, 1)]
    chosen = np.flatnonzero(pairs)
    earlier = np.where(side == 0, data.seq[0][data.pairs[:, 0]], data.seq[1][data.pairs[:, 1]])[chosen]
    later_delay = np.where(side == 0, delay[1][data.pairs[:, 1]], delay[0][data.pairs[:, 0]])[chosen]
    level = delay_bucket(later_delay, g) if control.policy.needs_candidates else np.full(len(chosen), -1)
    cells = np.stack([later_t[chosen] // length, side[chosen].astype(np.int64), required[chosen] // g, level], axis=1)
    cells, place, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    sampled = np.bincount(place.ravel(), in_sample(earlier, SAMPLE_FRACTION), len(counts)).astype(np.int64)
    lateness = [stream_time_us[s] - data.ts[s] if control.policy.needs_lateness else delay[s] for s in (0, 1)]
    intervals = []
    for number in np.union1d(numbers[0], numbers[1]).tolist():
        inside = [timed[s][numbers[s] == number] for s in (0, 1)]
        arrived = tuple(_count(data.ts[s][inside[s]] // bucket) for s in (0, 1))
        delays = tuple(_count(delay_bucket(lateness[s][inside[s]], g)) for s in (0, 1))
        part = slice(*np.searchsorted(cells[:, 0], [number, number + 1]))
        table = np.zeros((part.stop - part.start, SAMPLED + 1), np.int64)
        table[:, : DELAY + 1] = cells[part, 1:]
        table[:, CANDIDATES] = table[:, RESULTS] = counts[part]
        table[:, SAMPLED] = sampled[part]
        last = max(int(stream_time_us[s][inside[s]].max()) for s in (0, 1) if len(inside[s]))
        intervals.append(IntervalSummary(number, last, (arrived[0], arrived[1]), (delays[0], delays[1]), table))
    return intervals


def reordered(
    ts: Int64Array, watermark_us: Int64Array, early: Int64Array, late: Int64Array
) -> tuple[NDArray[np.bool_], Int64Array]:
    """Compute which pairs a reorder buffer followed by an ordered join produces, and when (the K-slack family).

    Parameters
    ----------
    ts, watermark_us : int64[n]
        Event time, and the watermark after the arrival (non-decreasing), in arrival order; us.
    early, late : int64[m]
        Row of the earlier and of the later arrival of each pair that matches.

    Returns
    -------
    produced : bool[m]
        Whether the pair is a result.
    output : int64[m]
        Row at whose arrival the pair is output: the later of the two releases. `n` stands for the flush that ends the
        input.
    """
    rows = np.arange(len(ts))
    behind = ts < watermark_us
    release = np.maximum(np.searchsorted(watermark_us, ts, side="left"), rows)
    release[behind] = rows[behind]
    output = np.maximum(release[early], release[late])
    # A tuple behind the watermark meets the tuples released after it; its own arrival cannot raise the watermark.
    one_behind = behind[early] != behind[late]
    prober = np.where(behind[early], late, early)
    seen = release[prober] >= np.where(behind[early], early, late)
    return np.where(one_behind, seen, ~behind[early]), output


def waits(stream_time_us: Int64Array, output: Int64Array, late: Int64Array) -> Int64Array:
    """Return the latency of each pair: stream time at its output minus at the arrival of its later tuple.

    Parameters
    ----------
    stream_time_us : int64[n]
        Stream time after each arrival, us. Until every stream has been seen, the first defined stream time counts.
    output, late : int64[m]
        Rows, as `reordered` returns and takes them. The flush, ``output == n``, happens at the last stream time. A join
        that answers on arrival (QJoin) has ``output == late`` and latency 0.

    Returns
    -------
    int64[m]
        Latency in us, at least 0.
    """
    if not len(late):
        return np.zeros(0, np.int64)
    started = np.searchsorted(stream_time_us, NEVER, side="right")
    clock = np.maximum(stream_time_us, stream_time_us[started] if started < len(stream_time_us) else 0)
    return np.append(clock, clock[-1])[output] - clock[late]


def _count(buckets: Int64Array) -> SparseCounts:
    values, counts = np.unique(buckets, return_counts=True)
    return values.astype(np.int64), counts.astype(np.int64)


def _concatenate(parts: list[Horizons]) -> Horizons:
    """Concatenate the decisions of micro-batches; an interval cut by their border keeps its first decisions."""
    interval = np.concatenate([p.interval for p in parts])
    _, first = np.unique(interval, return_index=True)
    columns = [
        np.concatenate([getattr(p, name)[s] for p in parts])[first] for name in ("base", "retention") for s in (0, 1)
    ]
    return Horizons(interval[first], (columns[0], columns[1]), (columns[2], columns[3]))
