"""The windowed kinds, one tuple at a time: when windows close, which rows are on time, and which are late.

Every observation of a policy is recomputed from all rows so far. Nothing is shared with the fast path but the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from latecomer.core.windows.interfaces import IntervalRows, Observed, SlackPolicy

FAR = 1 << 61
"""Infinity, in us."""


@dataclass
class Arrival:
    """One row: arrival number, stream number, event time in us and columns.

    `ok` is true for a row that belongs to the query's windows. Any row moves stream time.
    """

    seq: int
    stream: int
    ts: int
    row: Mapping[str, object]
    ok: bool = True


Timed = tuple[Arrival, int]
"""A row, and stream time (us) at its arrival."""
Observe = Callable[[int, list[Timed], int], Observed | None]
"""The observation of a window, from its number, its rows so far and the time (us) of the cut; None: none."""


@dataclass
class Outcome:
    """The outcome of `run`; windows are named by number.

    A window whose rows were all late is not closed: it was empty at the watermark.

    Attributes
    ----------
    closed
        Per closed window: the arrival that closed it.
    on_time
        Per closed window: its rows then.
    final
        Per window: all its rows.
    late
        Per late row: the windows that it missed.
    """

    closed: dict[int, int] = field(default_factory=dict)
    on_time: dict[int, list[Arrival]] = field(default_factory=dict)
    final: dict[int, list[Arrival]] = field(default_factory=dict)
    late: dict[int, list[int]] = field(default_factory=dict)


def run(  # noqa: C901 - the published algorithms, in one piece
    arrivals: list[Arrival],
    *,
    size: int,
    slide: int,
    streams: int,
    policy: SlackPolicy,
    observe: Observe | None = None,
    observe_us: int | None = None,
    end: int | None = None,
) -> Outcome:
    """Close windows as the stream goes by, and the rest by a flush.

    Parameters
    ----------
    arrivals
        The input in arrival order.
    size, slide
        The windows, in us.
    streams
        The number of streams.
    policy
        The slack policy, at its start.
    observe
        The observation for the policy; None: the policy observes nothing.
    observe_us
        The fixed time after its end at which a window is observed; None: it follows the lateness of the rows.
    end
        The number of the arrival after the last, by which a flush closes windows; None: the number of rows.
    """
    out = Outcome()
    max_ts: list[int | None] = [None] * streams
    seen: list[Timed] = []
    watermark, interval, slack, largest, pending, delivered, began = -FAR, None, 0, 0, 0, None, 0
    in_force: list[tuple[int, int]] = []  # watermark and slack at the end of each interval

    def close(upto: int, by: int) -> None:
        open_windows: dict[int, list[Arrival]] = {}
        for a, _ in seen:
            if a.ok:
                for window in windows(a.ts, size, slide):
                    if window not in out.late.get(a.seq, []):
                        open_windows.setdefault(window, []).append(a)
        for window, rows in open_windows.items():
            if window * slide + size <= upto and window not in out.closed:
                out.closed[window], out.on_time[window] = by, rows

    for a in arrivals:
        before = max_ts[a.stream]
        max_ts[a.stream] = a.ts if before is None else max(before, a.ts)
        if any(m is None for m in max_ts):
            seen.append((a, -FAR))
            continue
        stream_time = min(m for m in max_ts if m is not None)
        number = stream_time // slide
        if number != interval:
            if interval is not None:
                largest = max(largest, pending)
                policy.delays(pending)
                pending = 0
                in_force.append((watermark, slack))
            if policy.needs_observation:
                if delivered is None:
                    delivered, began = (number * slide - size) // slide, number
                bound = lateness_bound([(b.ts, t) for b, t in seen if t > -FAR], began, size, slide)
                for window in range(delivered + 1, number):
                    final = observation_due(window, number, interval, largest, bound, policy, size, slide, observe_us)
                    if final is None:
                        continue
                    cut = number * slide
                    rows = [(b, t) for b, t in seen if b.ok and window in windows(b.ts, size, slide) and t < cut]
                    observation = observe(window, rows, cut) if rows and observe is not None else None
                    if observation is not None:
                        at_close = next((k for mark, k in in_force if mark >= window * slide + size), FAR)
                        policy.observe(replace(observation, final=final), at_close, number)
                    if final:
                        delivered = window
            interval = number
            slack = policy.choose(number)
        delay = (max_ts[a.stream] or 0) - a.ts
        pending = max(pending, delay)
        pane = a.ts // math.gcd(size, slide)
        columns = (np.array([value]) for value in (pane, 1, delay))
        policy.arrived(IntervalRows(number, stream_time, delay, 1, *columns))
        if slack < FAR:
            watermark = max(watermark, stream_time - slack)
        close(watermark, a.seq)
        missed = [w for w in windows(a.ts, size, slide) if w * slide + size <= watermark]
        if a.ok and missed:
            out.late[a.seq] = missed
        seen.append((a, stream_time))
    close(FAR, len(arrivals) if end is None else end)
    for a, _ in seen:
        if a.ok:
            for w in windows(a.ts, size, slide):
                out.final.setdefault(w, []).append(a)
    return out


def observation_due(
    window: int,
    number: int,
    before: int | None,
    largest: int,
    bound: int,
    policy: SlackPolicy,
    size: int,
    slide: int,
    observe_us: int | None,
) -> bool | None:
    """Decide whether a window is observed when stream time enters interval `number` from interval `before`.

    Parameters
    ----------
    largest
        The largest delay so far, us.
    bound
        The result of `lateness_bound`, us.

    Returns
    -------
    True for the last observation, False for a provisional one, None for none.
    """
    age = number * slide - (window * slide + size)
    if observe_us is not None or not policy.provisional:
        over = age >= (min(max(size, largest), 16 * size) if observe_us is None else observe_us)
        return True if over else None
    per_size = -(-size // slide)
    if age < size or (before is not None and number // per_size == before // per_size):
        return None
    span = min(max(16 * size, 2 * largest), max(64 * size, 2 * bound))
    reach = size
    while (
        before is not None
        and reach < span
        and number // per_size // (reach // size) != before // per_size // (reach // size)
    ):
        reach *= 2
    if before is None or reach >= span:
        return age >= span
    return False if age < reach else None


def lateness_bound(rows: list[tuple[int, int]], began: int, size: int, slide: int) -> int:
    """Return the lateness (us) within which all but one in a thousand rows came: a power of two of sizes, or 0.

    Lateness is that of the interval against the end of the row's pane. It is counted from 32 sizes on, and for rows
    after the first interval, `began`. The bound is 0 where no lateness counts.

    Parameters
    ----------
    rows
        Event time and stream time (us) of each row.
    """
    pane, bits = math.gcd(size, slide), []
    for ts, stream_time in rows:
        pane_end = ts // pane * pane + pane
        sizes = (stream_time // slide * slide - pane_end) // size
        if sizes >= 32 and pane_end > began * slide:
            bits.append(sizes.bit_length())
    most = max(bits, default=0)
    while most and 1000 * sum(b >= most for b in bits) <= len(rows):
        most -= 1
    return min(size << most, slide * 8192) if most else 0


def windows(ts: int, size: int, slide: int) -> list[int]:
    """Return the numbers of the windows that contain an event time."""
    return list(range((ts - size) // slide + 1, ts // slide + 1))
