"""Join, tuple at a time: two buffers, a horizon that only moves forward, and a controller called between intervals.

Written from the paper's story, not from the set formula: an arrival is matched with what the opposite buffer still
holds, then stored in its own buffer, then both buffers are swept. Slow and short on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
    """One tuple in arrival order. `side` is 0 (left) or 1 (right); a self join's tuple arrives as both (side 2)."""

    seq: int
    side: int
    ts: int
    row: Any = None


@dataclass
class Answer:
    """Pairs are ``(left seq, right seq)``; late entries ``(seq, side, partners_from, partners_to)``."""

    on_time: dict[tuple[int, int], int] = field(default_factory=dict)
    late: list[tuple[int, int, int, int]] = field(default_factory=list)
    retention: list[tuple[int, int, int]] = field(default_factory=list)


Match = Callable[[Arrival, Arrival], bool]


def exact_join(arrivals: Sequence[Arrival], window: int, match: Match) -> set[tuple[int, int]]:
    """Every pair the complete input implies."""
    left = [a for a in arrivals if a.side in (0, 2)]
    right = [a for a in arrivals if a.side in (1, 2)]
    return {
        (a.seq, b.seq) for a in left for b in right if a.seq != b.seq and abs(a.ts - b.ts) <= window and match(a, b)
    }


def qjoin(
    arrivals: Sequence[Arrival],
    *,
    window: int,
    interval: int,
    granularity: int,
    policy: Any,
    match: Match,
    meet: Match | None = None,
) -> Answer:
    """Symmetric join with adaptive retention; times in microseconds, `policy` as in :mod:`latecomer.core.join.control`.

    `meet` tells candidates, which the policy may look at beside results: pairs with the same keys, before the predicate.

    Returns
    -------
    Answer
        ``on_time`` maps each produced pair to the stream time at which it was produced.
    """
    answer = Answer()
    self_join = any(a.side == 2 for a in arrivals)
    max_ts = [NEVER, NEVER]
    buffers: list[list[Arrival]] = [[], []]
    sample: list[list[Arrival]] = [[], []]
    horizon = [NEVER, NEVER]
    keep = [FOREVER, FOREVER]
    censored = [0, 0]
    current: int | None = None
    seen: list[dict[str, list]] = _nothing()
    for arrival in arrivals:
        roles = (0, 1) if arrival.side == 2 else (arrival.side,)
        for side in roles:
            max_ts[side] = max(max_ts[side], arrival.ts)
        now = min(max_ts)
        if now > NEVER:
            number = now // interval
            if current is None or number > current:
                if current is not None:
                    policy.observe(_stats(current, seen, censored, granularity))
                keep, current, seen = list(policy.choose(number)), number, _nothing()
                answer.retention.append((number, keep[0], keep[1]))
                censored = [
                    exact_below(min(keep[s], number * interval - window - horizon[s]), granularity) for s in (0, 1)
                ]
            for side in (0, 1):
                if keep[side] < FOREVER:
                    horizon[side] = max(horizon[side], now - window - keep[side])
                buffers[side] = [x for x in buffers[side] if x.ts > horizon[side]]
        for side in roles:
            delay = max_ts[side] - arrival.ts
            if now > NEVER:
                seen[side]["delay"].append(now - arrival.ts if policy.needs_lateness else delay)
            for partner in buffers[1 - side]:
                pair = (arrival, partner) if side == 0 else (partner, arrival)
                required = (now - window - partner.ts) // granularity
                near = abs(arrival.ts - partner.ts) <= window
                if near and (meet or match)(*pair) and required < censored[1 - side]:
                    seen[side]["candidates"].append(delay)
                if near and match(*pair):
                    answer.on_time[pair[0].seq, pair[1].seq] = now
                    seen[1 - side]["required"].append(required)
                    if required < censored[1 - side]:
                        seen[side]["results"].append(delay)
            if horizon[1 - side] >= arrival.ts - window:
                answer.late.append(
                    (arrival.seq, side, arrival.ts - window, min(horizon[1 - side], arrival.ts + window))
                )
            for partner in sample[1 - side]:
                pair = (arrival, partner) if side == 0 else (partner, arrival)
                if abs(arrival.ts - partner.ts) <= window and match(*pair):
                    seen[1 - side]["sampled"].append((now - window - partner.ts) // granularity)
        for side in roles:
            if arrival.ts > horizon[side]:
                buffers[side].append(arrival)
            if in_sample(np.array([arrival.seq]), SAMPLE_FRACTION)[0]:
                sample[side].append(arrival)
    assert self_join or all(a.side in (0, 1) for a in arrivals)
    return answer


def watermarks(arrivals: Sequence[Arrival], slack: int | None) -> Iterator[tuple[Arrival, int]]:
    """Every arrival with the watermark after it; slack None: the largest delay so far."""
    max_ts = [NEVER, NEVER]
    watermark, largest = NEVER, 0
    for arrival in arrivals:
        max_ts[arrival.side] = max(max_ts[arrival.side], arrival.ts)
        largest = max(largest, max_ts[arrival.side] - arrival.ts)
        if min(max_ts) > NEVER:
            watermark = max(watermark, min(max_ts) - (largest if slack is None else slack))
        yield arrival, watermark


def behind(arrivals: Sequence[Arrival], slack: int | None) -> list[tuple[int, int]]:
    """``(seq, watermark)`` of arrivals that come behind the watermark; slack None: the largest delay so far."""
    return [(arrival.seq, mark) for arrival, mark in watermarks(arrivals, slack) if arrival.ts < mark]


def k_slack(arrivals: Sequence[Arrival], window: int, slack: int | None, match: Match) -> set[tuple[int, int]]:
    """Pairs of a reorder buffer followed by an ordered join; a flush ends the input. Slack None: the largest delay so far."""
    waiting: list[Arrival] = []
    windows: list[list[Arrival]] = [[], []]
    found: set[tuple[int, int]] = set()

    def probe(arrival: Arrival) -> None:
        for partner in windows[1 - arrival.side]:
            pair = (arrival, partner) if arrival.side == 0 else (partner, arrival)
            if abs(arrival.ts - partner.ts) <= window and match(*pair):
                found.add((pair[0].seq, pair[1].seq))

    def release(until: int) -> None:
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
    return found


def _nothing() -> list[dict[str, list]]:
    return [{"delay": [], "candidates": [], "results": [], "required": [], "sampled": []} for _ in (0, 1)]


def _stats(number: int, seen: list[dict[str, list]], censored: list[int], granularity: int) -> IntervalStats:
    sides = []
    for side in (0, 1):
        delays = delay_bucket(np.array(seen[side]["delay"], np.int64), granularity)
        candidates, results = (
            delay_bucket(np.array(seen[side][name], np.int64), granularity) for name in ("candidates", "results")
        )
        bucket, rows = np.unique(delays, return_counts=True)
        met, kept = (np.array([int((each == b).sum()) for b in bucket], np.int64) for each in (candidates, results))
        required = np.array(seen[side]["required"], np.int64)
        required = required[required < censored[side]]
        sampled = np.array(seen[side]["sampled"], np.int64)
        places = np.unique(np.concatenate([required, sampled]))
        pairs = np.array([int((required == p).sum()) for p in places], np.int64)
        drawn = np.array([int((sampled == p).sum()) for p in places], np.int64)
        sides.append(SideStats(len(delays), bucket, rows, met, kept, places, pairs, drawn, censored[side]))
    return IntervalStats(number, sides[0], sides[1])
