"""Windowed kinds, one tuple at a time: when windows close, which rows were on time, which are late. For tests only.

Everything a policy is shown is recomputed from scratch; nothing is shared with the fast path but the policy itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

FAR = 1 << 61


@dataclass
class Arrival:
    """One row: place in the arrival order, stream number, event time in us, payload; `ok` says whether the query counts it."""

    seq: int
    stream: int
    ts: int
    row: dict[str, Any]
    ok: bool = True


@dataclass
class Outcome:
    """Per closed window: the arrival that closed it and its rows then; late rows with the windows they missed.

    A window of which every row was late is not among the closed: it held nothing when it closed.
    """

    closed: dict[int, int] = field(default_factory=dict)
    on_time: dict[int, list[Arrival]] = field(default_factory=dict)
    final: dict[int, list[Arrival]] = field(default_factory=dict)
    late: dict[int, list[int]] = field(default_factory=dict)


def run(
    arrivals: list[Arrival],
    *,
    size: int,
    slide: int,
    streams: int,
    policy: Any,
    observe: Callable[[int, list[tuple[Arrival, int]], int], Any] | None = None,
    observe_us: int | None = None,
    end: int | None = None,
) -> Outcome:
    """Close windows as the stream goes by.

    Parameters
    ----------
    observe
        Window number, its rows so far with their stream time, and the time of the cut -> what the policy is shown; None: nothing.
    end
        The arrival that would come next, which is what a flush is published by.
    """
    out = Outcome()
    most: list[int | None] = [None] * streams
    seen: list[tuple[Arrival, int]] = []
    mark, interval, slack, largest, pending, delivered, began = -FAR, None, 0, 0, 0, None, 0
    marks: list[tuple[int, int]] = []

    def close(upto: int, by: int) -> None:
        held: dict[int, list[Arrival]] = {}
        for a, _ in seen:
            if a.ok:
                for window in windows(a.ts, size, slide):
                    if window not in out.late.get(a.seq, []):
                        held.setdefault(window, []).append(a)
        for window, rows in held.items():
            if window * slide + size <= upto and window not in out.closed:
                out.closed[window], out.on_time[window] = by, rows

    for a in arrivals:
        before = most[a.stream]
        most[a.stream] = a.ts if before is None else max(before, a.ts)
        if any(m is None for m in most):
            seen.append((a, -FAR))
            continue
        t = min(m for m in most if m is not None)
        number = t // slide
        if number != interval:
            if interval is not None:
                largest = max(largest, pending)
                policy.delays(pending)
                pending = 0
                marks.append((mark, slack))
            if policy.needs_observation:
                if delivered is None:
                    delivered, began = (number * slide - size) // slide, number
                far = reached([(b.ts, u) for b, u in seen if u > -FAR], began, size, slide)
                for window in range(delivered + 1, number):
                    shown = look(window, number, interval, largest, far, policy, size, slide, observe_us)
                    if shown is None:
                        continue
                    cut = number * slide
                    rows = [(b, u) for b, u in seen if b.ok and window in windows(b.ts, size, slide) and u < cut]
                    seen_now = observe(window, rows, cut) if rows and observe is not None else None
                    if seen_now is not None:
                        at_close = next((k for m, k in marks if m >= window * slide + size), FAR)
                        policy.observe(replace(seen_now, final=shown), at_close, number)
                    if shown:
                        delivered = window
            interval = number
            slack = policy.choose(number)
        pending = max(pending, (most[a.stream] or 0) - a.ts)
        if slack < FAR:
            mark = max(mark, t - slack)
        close(mark, a.seq)
        missed = [w for w in windows(a.ts, size, slide) if w * slide + size <= mark]
        if a.ok and missed:
            out.late[a.seq] = missed
        seen.append((a, t))
    close(FAR, len(arrivals) if end is None else end)
    for a, _ in seen:
        if a.ok:
            for w in windows(a.ts, size, slide):
                out.final.setdefault(w, []).append(a)
    return out


def look(
    window: int,
    number: int,
    before: int | None,
    largest: int,
    far: int,
    policy: Any,
    size: int,
    slide: int,
    observe_us: int | None,
) -> bool | None:
    """Is a window looked at when interval `number` is entered from `before`, and is that the last time? None: not now."""
    age = number * slide - (window * slide + size)
    if observe_us is not None or not policy.provisional:
        done = age >= (min(max(size, largest), 16 * size) if observe_us is None else observe_us)
        return True if done else None
    per = -(-size // slide)
    if age < size or (before is not None and number // per == before // per):
        return None
    span = min(max(16 * size, 2 * largest), max(64 * size, 2 * far))
    reach = size
    while before is not None and reach < span and number // per // (reach // size) != before // per // (reach // size):
        reach *= 2
    if before is None or reach >= span:
        return age >= span
    return False if age < reach else None


def reached(rows: list[tuple[int, int]], began: int, size: int, slide: int) -> int:
    """Within which lateness, a power of two of sizes, all but one in a thousand of the rows came (event time, stream time); 0: of 32 sizes.

    Lateness is that of the interval against the row's pane; rows from before the first interval, `began`, are nobody's.
    """
    pane, bits = math.gcd(size, slide), []
    for ts, t in rows:
        until = ts // pane * pane + pane
        behind = (t // slide * slide - until) // size
        if behind >= 32 and until > began * slide:
            bits.append(behind.bit_length())
    most = max(bits, default=0)
    while most and 1000 * sum(b >= most for b in bits) <= len(rows):
        most -= 1
    return min(size << most, slide * 8192) if most else 0


def windows(ts: int, size: int, slide: int) -> list[int]:
    """Numbers of the windows that hold a time."""
    return list(range((ts - size) // slide + 1, ts // slide + 1))
