"""Top-k by sorting the rows of each window that have arrived. Slow and short on purpose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One tuple; times in microseconds, `arrival_us` is stream time at its arrival."""

    seq: int
    event_time_us: int
    arrival_us: int
    score: float
    group: int = 0


def stream_times(event_times: Sequence[int]) -> list[int]:
    """Return stream time after each arrival of one stream."""
    return [max(event_times[: i + 1]) for i in range(len(event_times))]


def window_ends(event_time_us: int, size_us: int, slide_us: int) -> list[int]:
    """Return the ends of the windows that contain an event time."""
    first = (event_time_us - size_us) // slide_us + 1
    return [w * slide_us + size_us for w in range(first, event_time_us // slide_us + 1)]


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with a score, best first: higher score, then earlier event time, then earlier arrival."""
    return sorted((r for r in rows if not math.isnan(r.score)), key=lambda r: (-r.score, r.event_time_us, r.seq))


def top_k(rows: Sequence[Row], k: int, end_us: int, size_us: int, wait_us: float = math.inf) -> list[Row]:
    """Return a window's answer after a wait: the k best of its rows that arrived before ``end_us + wait_us``."""
    member = [r for r in rows if end_us - size_us <= r.event_time_us < end_us and r.arrival_us < end_us + wait_us]
    return ranked(member)[:k]


def hit_rate(rows: Sequence[Row], k: int, end_us: int, size_us: int, wait_us: float) -> float:
    """Return the share of the final answer that the answer after a wait contains."""
    final = set(top_k(rows, k, end_us, size_us))
    return len(final & set(top_k(rows, k, end_us, size_us, wait_us))) / len(final)


def skyband(keyed: Sequence[tuple[int, Row]], k: int) -> list[Row]:
    """Return the rows of one pane, given as (closing, row), that fewer than k others outrank without closing later."""
    place = {r.seq: i for i, r in enumerate(ranked([row for _, row in keyed]))}
    return [
        row
        for closing, row in keyed
        if row.seq in place
        and sum(c <= closing and place[o.seq] < place[row.seq] for c, o in keyed if o.seq in place) < k
    ]
