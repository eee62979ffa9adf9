"""The join, one tuple at a time: two buffers, a horizon that only moves forward, and a controller between intervals.

The code follows the paper's steps, not the set formula of :mod:`latecomer.core.join.control`: an arrival is joined with
the rows that the opposite buffer still holds, is stored in its own buffer, and both buffers drop what is too old. It is
slow and short on purpose.

References
----------
Wei, Li, Xu, Lv and Yang, "QJoin", Guangxi Sciences 27(3), 2020: the steps of section 1.2; section 2.3 for K-slack.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from latecomer.core.join.control import RetentionPolicy
from latecomer.core.join.statistics import (
    SAMPLE_FRACTION,
    IntervalStats,
    SideStats,
    delay_bucket,
    exact_below,
    in_sample,
)
from latecomer.core.time import FOREVER, NEVER


@dataclass(frozen=True)
class Arrival:
    """One tuple in arrival order, with its event time in us and its columns.

    `side` is 0 (left) or 1 (right); the tuple of a self join arrives as both (2).
    """

    seq: int
    side: int
    ts: int
    row: Mapping[str, object] = field(default_factory=dict)


@dataclass
class Answer:
    """The outcome of `qjoin`.

    Attributes
    ----------
    on_time
        Each produced pair ``(left seq, right seq)`` and the stream time (us) at which it was produced.
    late
        Registered late rows ``(seq, side, partners_from, partners_to)``: missed partners lie in that closed range (us).
    retention
        The decisions ``(interval, d_left, d_right)``.
    """

    on_time: dict[tuple[int, int], int] = field(default_factory=dict)
    late: list[tuple[int, int, int, int]] = field(default_factory=list)
    retention: list[tuple[int, int, int]] = field(default_factory=list)


Match = Callable[[Arrival, Arrival], bool]
"""A predicate over a left and a right tuple."""


@dataclass
class _Seen:
    """The observations of one stream in one interval.

    Attributes
    ----------
    delays, candidates, results
        Delays (us) of the stream's arrivals, once per arrival, candidate and result.
    required, sampled
        Required buckets of results, and of sampled results, whose earlier tuple is on the stream.
    """

    delays: list[int] = field(default_factory=list)
    candidates: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    required: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)


def exact_join(arrivals: Sequence[Arrival], window: int, match: Match) -> set[tuple[int, int]]:
    """Return every pair ``(left seq, right seq)`` of the complete input."""
    left = [a for a in arrivals if a.side in (0, 2)]
    right = [a for a in arrivals if a.side in (1, 2)]
    return {
        (a.seq, b.seq) for a in left for b in right if a.seq != b.seq and abs(a.ts - b.ts) <= window and match(a, b)
    }


def qjoin(  # noqa: C901 - the published algorithm, in one piece
    arrivals: Sequence[Arrival],
    *,
    window: int,
    interval: int,
    granularity: int,
    policy: RetentionPolicy,
    match: Match,
    meet: Match | None = None,
) -> Answer:
    """Run the symmetric join with adaptive retention.

    Parameters
    ----------
    arrivals
        The input in arrival order.
    window, interval, granularity
        `w`, `L` and `g` in microseconds.
    policy
        The retention policy, at its start.
    match
        True for results.
    meet
        True for candidates, pairs with the same keys before the predicate; None: as `match`.
    """
    answer = Answer()
    max_ts = [NEVER, NEVER]
    buffers: list[list[Arrival]] = [[], []]
    sample: list[list[Arrival]] = [[], []]
    horizon = [NEVER, NEVER]
    retention = [FOREVER, FOREVER]
    censored = [0, 0]
    current: int | None = None
    seen = [_Seen(), _Seen()]
    for arrival in arrivals:
        roles = (0, 1) if arrival.side == 2 else (arrival.side,)
        for side in roles:
            max_ts[side] = max(max_ts[side], arrival.ts)
        stream_time = min(max_ts)
        if stream_time > NEVER:
            number = stream_time // interval
            if current is None or number > current:
                # section 1.4.1: once per L the retention adapts to the statistics so far
                if current is not None:
                    policy.observe(_stats(current, seen, censored, granularity))
                retention, current, seen = list(policy.choose(number)), number, [_Seen(), _Seen()]
                answer.retention.append((number, retention[0], retention[1]))
                censored = [
                    exact_below(min(retention[s], number * interval - window - horizon[s]), granularity) for s in (0, 1)
                ]
            # step 3: both buffers drop the tuples at or behind their horizon
            for side in (0, 1):
                if retention[side] < FOREVER:
                    horizon[side] = max(horizon[side], stream_time - window - retention[side])
                buffers[side] = [x for x in buffers[side] if x.ts > horizon[side]]
        for side in roles:
            delay = max_ts[side] - arrival.ts
            if stream_time > NEVER:
                seen[side].delays.append(stream_time - arrival.ts if policy.needs_lateness else delay)
            # steps 1 and 2: the tuple is joined with the opposite buffer
            for partner in buffers[1 - side]:
                pair = (arrival, partner) if side == 0 else (partner, arrival)
                required = (stream_time - window - partner.ts) // granularity
                near = abs(arrival.ts - partner.ts) <= window
                if near and (meet or match)(*pair) and required < censored[1 - side]:
                    seen[side].candidates.append(delay)
                if near and match(*pair):
                    answer.on_time[pair[0].seq, pair[1].seq] = stream_time
                    seen[1 - side].required.append(required)
                    if required < censored[1 - side]:
                        seen[side].results.append(delay)
            if horizon[1 - side] >= arrival.ts - window:
                partners_to = min(horizon[1 - side], arrival.ts + window)
                answer.late.append((arrival.seq, side, arrival.ts - window, partners_to))
            for partner in sample[1 - side]:
                pair = (arrival, partner) if side == 0 else (partner, arrival)
                if abs(arrival.ts - partner.ts) <= window and match(*pair):
                    seen[1 - side].sampled.append((stream_time - window - partner.ts) // granularity)
        # steps 1 and 2: the tuple is stored in its own buffer
        for side in roles:
            if arrival.ts > horizon[side]:
                buffers[side].append(arrival)
            if in_sample(np.array([arrival.seq]), SAMPLE_FRACTION)[0]:
                sample[side].append(arrival)
    return answer


def _stats(number: int, seen: list[_Seen], censored: list[int], granularity: int) -> IntervalStats:
    """Return the lists of one interval as statistics, counted value by value."""
    sides = []
    for side, lists in enumerate(seen):
        delays = delay_bucket(np.array(lists.delays, np.int64), granularity)
        candidates = delay_bucket(np.array(lists.candidates, np.int64), granularity)
        results = delay_bucket(np.array(lists.results, np.int64), granularity)
        buckets, rows = np.unique(delays, return_counts=True)
        required = np.array(lists.required, np.int64)
        required = required[required < censored[side]]
        sampled = np.array(lists.sampled, np.int64)
        places = np.unique(np.concatenate([required, sampled]))
        sides.append(
            SideStats(
                len(delays),
                buckets,
                rows,
                np.array([int((candidates == bucket).sum()) for bucket in buckets], np.int64),
                np.array([int((results == bucket).sum()) for bucket in buckets], np.int64),
                places,
                np.array([int((required == place).sum()) for place in places], np.int64),
                np.array([int((sampled == place).sum()) for place in places], np.int64),
                censored[side],
            )
        )
    return IntervalStats(number, sides[0], sides[1])


def pair_times(arrivals: Sequence[Arrival], pairs: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Return the stream time (us) at the later tuple of each pair."""
    max_ts = [NEVER, NEVER]
    times: dict[int, int] = {}
    for arrival in arrivals:
        for side in (0, 1) if arrival.side == 2 else (arrival.side,):
            max_ts[side] = max(max_ts[side], arrival.ts)
        times[arrival.seq] = min(max_ts)
    return {pair: times[max(pair)] for pair in pairs}


def recalled(
    times: Mapping[tuple[int, int], int],
    produced: Container[tuple[int, int]],
    target: float,
    period: int,
    interval: int,
) -> set[tuple[int, int]]:
    """Return the missed pairs that a recall guarantee publishes.

    Parameters
    ----------
    times
        Every pair of the complete input, with the stream time (us) at its later tuple.
    produced
        The pairs that were produced.
    target
        The recall that every period reaches.
    period, interval
        `P` and `L` in microseconds.
    """
    due: dict[int, int] = {}
    published: dict[int, int] = {}
    chosen: set[tuple[int, int]] = set()
    cells: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for pair, time in times.items():
        cells.setdefault((time // interval, time // period), []).append(pair)
    for (_, of), pairs in sorted(cells.items()):
        missed = {pair for pair in pairs if pair not in produced}
        due[of] = due.get(of, 0) + len(pairs)
        published[of] = published.get(of, 0) + len(pairs) - len(missed)
        if published[of] / due[of] < target:
            chosen |= missed
            published[of] += len(missed)
        assert published[of] / due[of] >= target, "the guarantee is broken"
    return chosen


def watermarks(arrivals: Sequence[Arrival], slack: int | None) -> Iterator[tuple[Arrival, int]]:
    """Yield every arrival with the watermark (us) after it; slack None: the largest delay so far (MP-K-slack)."""
    max_ts = [NEVER, NEVER]
    watermark, largest = NEVER, 0
    for arrival in arrivals:
        max_ts[arrival.side] = max(max_ts[arrival.side], arrival.ts)
        # section 2.3, step 1): K = max(K, D(x))
        largest = max(largest, max_ts[arrival.side] - arrival.ts)
        if min(max_ts) > NEVER:
            watermark = max(watermark, min(max_ts) - (largest if slack is None else slack))
        yield arrival, watermark


def behind(arrivals: Sequence[Arrival], slack: int | None) -> list[tuple[int, int]]:
    """Return ``(seq, watermark)`` of the arrivals behind the watermark; slack as in `watermarks`."""
    return [(arrival.seq, watermark) for arrival, watermark in watermarks(arrivals, slack) if arrival.ts < watermark]


def k_slack(arrivals: Sequence[Arrival], window: int, slack: int | None, match: Match) -> set[tuple[int, int]]:
    """Return the pairs of a reorder buffer followed by an ordered join, with a flush; slack as in `watermarks`."""
    waiting: list[Arrival] = []
    windows: list[list[Arrival]] = [[], []]
    pairs: set[tuple[int, int]] = set()

    def probe(arrival: Arrival) -> None:
        for partner in windows[1 - arrival.side]:
            pair = (arrival, partner) if arrival.side == 0 else (partner, arrival)
            if abs(arrival.ts - partner.ts) <= window and match(*pair):
                pairs.add((pair[0].seq, pair[1].seq))

    def release(until: int) -> None:
        # section 2.3, step 2): tuples with x.ts + K <= t_curr leave the buffer, in the order of their event times
        for arrival in sorted((a for a in waiting if a.ts <= until), key=lambda a: (a.ts, a.seq)):
            waiting.remove(arrival)
            probe(arrival)
            windows[arrival.side].append(arrival)

    for arrival, watermark in watermarks(arrivals, slack):
        if arrival.ts < watermark:
            windows[arrival.side].append(arrival)
        else:
            waiting.append(arrival)
        release(watermark)
    release(FOREVER)
    return pairs
