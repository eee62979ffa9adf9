"""Workloads of the benchmarks: seeded stand-ins for the football data of the papers, and loaders of real data.

The football data (DEBS 2013 Grand Challenge) is described in the papers by a table of figures only. The generators draw
event times and transmission lags whose *delays*, as this project defines them (largest event time so far on the tuple's
own stream, minus its own), have the published share of late tuples, mean and maximum. Lags are a mixture: a body
(exponential: many tuples slightly late) and a tail (Pareto, cut at the published maximum; drawn at evenly spaced
quantiles, so that the mean does not hang on luck). Tail tuples gather in bad stretches of ten seconds, as lateness does
outside papers. The two free parameters, scale of the body and weight of the tail, are solved for, not tuned. With `F`
the distribution of lags, `r` the stream's rate and ``G(u)`` the integral of `F` up to `u`::

    share on time = E[exp(-r G(lag))],   mean delay = integral of (1 - F(s)) (1 - exp(-r G(s))) ds

Departures from the originals. Positions are synthetic: players roam about a home, one ball is passed among them. Event
times are Poisson, not the ticks of sensors. The split of tuples over streams (2,000 ball tuples/s), the shape of
the tail, the rate of the aggregate's games (1,000 tuples/s; the paper gives none) are choices of ours.

Cost: O(n log n), and O(n + pairs tried) for `football_pairs`. References: Mutschler, Ziekow, Jerzak, "The DEBS 2013 grand challenge"; Table 1 of QJoin (Guangxi
Sciences 27(3), 2020) and of HPM (2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

SECOND = 1_000_000
EPOCH_US = 1_700_000_040 * SECOND
"""Event time of the first tuples: a whole minute, so that periods of a minute start with the game."""

BALL, PLAYERS = 0, 1
"""Values of column ``stream`` of `football_join`."""

PITCH_M = (105.0, 68.0)
_PLAYERS = 16
_TAIL_SHAPE, _TAIL_LEAST_US = 1.2, 50_000.0
_KNOT_US = 100_000


@dataclass(frozen=True)
class Disorder:
    """What a paper says of a data set. Rates in tuples/s (one per stream), delays in us, `late` a share."""

    rates: tuple[float, ...]
    rows: int
    late: float
    mean_us: float
    max_us: int


FOOTBALL_JOIN = {
    "D1": Disorder((2_000.0, 6_568.6), 7_122_060, 5_940_703 / 7_122_060, 34_133.0, 142_146_640),
    "D2": Disorder((2_000.0, 8_473.2), 4_022_600, 3_493_068 / 4_022_600, 29_597.0, 170_959_260),
}
"""QJoin's Table 1. Rows over total time (831.17 and 384.08 s) make 8,569 and 10,473 tuples/s, printed as 8,514 and 10,037."""

FOOTBALL_AGGREGATE = {
    1: Disorder((1_000.0,), 544_223, 0.5758, 34_000.0, 14_200_000),
    2: Disorder((1_000.0,), 559_211, 0.6682, 64_000.0, 17_100_000),
}
"""HPM's table; the rate is ours."""


def delays(event_time_us: Int64) -> Int64:
    """Delay of each tuple of one stream in arrival order, int64[n] us."""
    return np.maximum.accumulate(event_time_us) - event_time_us


def football_join(seed: int, which: str = "D1", seconds: float | None = None, keep: float = 1.0) -> pa.Table:
    """Two streams on a pitch, in arrival order: QJoin's D1 and D2.

    Parameters
    ----------
    which
        ``"D1"`` or ``"D2"``.
    seconds
        Length of the game; None: as published (831 and 384 s). A game shorter than twice the greatest delay has
        its tail cut at half its length, its published maximum not reached.
    keep
        Share of tuples kept, drawn at random after delays were made at the full rate: what a tuple needed of a
        buffer stays, rates fall, and the share of tuples that are *slightly* late falls with them.

    Returns
    -------
    pa.Table
        ``event_time_us`` int64, ``stream`` int8 (`BALL`, `PLAYERS`), ``sensor`` int16, ``x``, ``y`` float64 (m).

    Raises
    ------
    ValueError
        Unknown game, or `keep` outside (0, 1].
    """
    if which not in FOOTBALL_JOIN:
        raise ValueError(f"game is {which!r}: choose one of {', '.join(FOOTBALL_JOIN)}")
    if not 0 < keep <= 1:
        raise ValueError(f"keep is {keep}: a share of tuples lies in (0, 1]")
    facts = FOOTBALL_JOIN[which]
    length_us = facts.rows / sum(facts.rates) * SECOND if seconds is None else seconds * SECOND
    rng = np.random.default_rng([seed, 1, list(FOOTBALL_JOIN).index(which)])
    ts, stream = _disordered(rng, facts, int(length_us))
    sensor = np.where(stream == BALL, 0, rng.integers(1, _PLAYERS + 1, len(ts))).astype(np.int16)
    paths = _paths(rng, int(length_us))
    if keep < 1:
        kept = rng.random(len(ts)) < keep
        kept[int(np.argmax(_own_delays(ts, stream)))] = True
        ts, stream, sensor = ts[kept], stream[kept], sensor[kept]
    x, y = _position(paths, sensor, ts)
    columns = {"event_time_us": ts + EPOCH_US, "stream": stream, "sensor": sensor, "x": x, "y": y}
    return pa.table(columns)


def football_pairs(rows: pa.Table, window_us: int, radius_m: float) -> Int64:
    """Rows of `football_join`'s table that lie within `window_us` and `radius_m`: int64[m, 2], ball first."""
    ts, side, x, y = (rows[c].to_numpy() for c in ("event_time_us", "stream", "x", "y"))
    own = [np.flatnonzero(side == s) for s in (BALL, PLAYERS)]
    own = [place[np.argsort(ts[place], kind="stable")] for place in own]
    (lt, rt), (lx, rx), (ly, ry) = ([each[place] for place in own] for each in (ts, x, y))
    count = _near_pairs(lt, lx, ly, rt, rx, ry, window_us, radius_m**2, np.empty((0, 2), np.int64))
    pairs = np.empty((count, 2), np.int64)
    _near_pairs(lt, lx, ly, rt, rx, ry, window_us, radius_m**2, pairs)
    return np.stack([own[s][pairs[:, s]] for s in (BALL, PLAYERS)], axis=1)


def football_aggregate(seed: int, game: int = 1, rows: int | None = None) -> pa.Table:
    """One stream of readings in arrival order: HPM's games.

    Parameters
    ----------
    game
        1 or 2.
    rows
        Tuples; None: as published. As in `football_join`, a short game has its tail cut.

    Returns
    -------
    pa.Table
        ``event_time_us`` int64, ``sensor`` int16 (1 to 16), ``value`` float64: a speed in m/s, smooth per sensor.

    Raises
    ------
    ValueError
        Unknown game.
    """
    if game not in FOOTBALL_AGGREGATE:
        raise ValueError(f"game is {game!r}: choose one of {', '.join(map(str, FOOTBALL_AGGREGATE))}")
    facts = FOOTBALL_AGGREGATE[game]
    count = facts.rows if rows is None else rows
    rng = np.random.default_rng([seed, 2, game])
    length_us = int(count / facts.rates[0] * SECOND)
    ts, _ = _disordered(rng, facts, length_us)
    sensor = rng.integers(1, _PLAYERS + 1, len(ts)).astype(np.int16)
    paths = _paths(rng, length_us)
    speed = np.hypot(*np.gradient(paths, axis=1)) * (SECOND / _KNOT_US)
    value = speed.T[sensor, np.clip(ts // _KNOT_US, 0, paths.shape[1] - 1)] + rng.normal(0, 0.1, len(ts))
    return pa.table({"event_time_us": ts + EPOCH_US, "sensor": sensor, "value": value})


def exponential(seed: int, rows: int, rate: float, mean_delay_us: float) -> pa.Table:
    """One stream in arrival order: Poisson event times at `rate` tuples/s, exponential lags of the given mean.

    Returns
    -------
    pa.Table
        ``event_time_us`` int64, ``value`` float64 (standard normal). A lag counts from a perfect clock, so mean delays
        are somewhat below `mean_delay_us`: even the newest tuple seen is not from now.
    """
    rng = np.random.default_rng([seed, 3])
    ts = EPOCH_US + np.cumsum(rng.exponential(SECOND / rate, rows)).astype(np.int64)
    order = np.argsort(ts + rng.exponential(mean_delay_us, rows).astype(np.int64), kind="stable")
    return pa.table({"event_time_us": ts[order], "value": rng.normal(size=rows)[order]})


def zeek(data: Path, left: str, right: str, key: str) -> pa.Table:
    """Two network logs in arrival order, rows without `key` left out.

    Returns
    -------
    pa.Table
        ``seq`` int64 (arrival number in the whole capture), ``event_time_us`` int64, ``stream`` int8 (0 left, 1
        right), ``key`` int64 (codes from 0, equal where the column is).
    """
    rows = pq.read_table(data / "zeek_events.parquet", columns=["seq", "event_ts", "stream", key])
    rows = rows.filter(pc.and_(pc.is_in(rows["stream"], pa.array([left, right])), pc.is_valid(rows[key])))
    rows = rows.sort_by("seq")
    code = rows[key].combine_chunks().dictionary_encode().indices
    side = pc.equal(rows["stream"], right).to_numpy().astype(np.int8)
    return pa.table(
        {
            "seq": rows["seq"],
            "event_time_us": rows["event_ts"],
            "stream": side,
            "key": pc.cast(code, pa.int64()),
        }
    )


def zeek_stream(data: Path, name: str) -> pa.Table:
    """One network log in arrival order, all its columns; ``event_ts`` is called ``event_time_us``."""
    rows = pq.read_table(data / "zeek_events.parquet", filters=[("stream", "=", name)])
    return _renamed(rows)


def ooo(data: Path, session: str) -> pa.Table:
    """One session of the telemetry data (``d-1`` to ``d-5``) in arrival order, all its columns; see `zeek_stream`."""
    rows = pq.read_table(data / "ooo_events.parquet", filters=[("session", "=", session)])
    return _renamed(rows)


def _renamed(rows: pa.Table) -> pa.Table:
    names = ["event_time_us" if name == "event_ts" else name for name in rows.column_names]
    return rows.rename_columns(names).sort_by("seq")


def _disordered(rng: np.random.Generator, facts: Disorder, length_us: int) -> tuple[Int64, NDArray[np.int8]]:
    """Event times from 0 and stream of each tuple, in arrival order, with the delays that `facts` asks for."""
    most = float(min(facts.max_us, length_us / 2))
    tail, bodies = _solve(facts, most)
    stretches = rng.lognormal(0.0, 0.6, max(1, -(-length_us // (10 * SECOND))))
    parts = []
    for rate, body in zip(facts.rates, bodies, strict=True):
        count = round(rate * length_us / SECOND)
        ts = np.sort(rng.integers(0, length_us, count))
        lag = rng.exponential(body, count)
        share = stretches[np.minimum(ts // (10 * SECOND), len(stretches) - 1)]
        late = np.flatnonzero(rng.random(count) < np.minimum(tail * share / share.mean(), 1.0))
        lag[late] = rng.permutation(_pareto((np.arange(len(late)) + 0.5) / max(len(late), 1), most))
        parts.append((ts, (ts + lag).astype(np.int64)))
    ts, arrival = (np.concatenate(each) for each in zip(*parts, strict=True))
    stream = np.repeat(np.arange(len(parts), dtype=np.int8), [len(each) for each, _ in parts])
    order = np.argsort(arrival, kind="stable")
    ts, stream = ts[order], stream[order]
    if most == facts.max_us and len(ts):
        own = _own_delays(ts, stream)
        worst = int(np.argmax(np.where(ts + own >= facts.max_us, own, -1)))  # one whose event time stays in the game
        ts[worst] += own[worst] - facts.max_us
    return ts, stream


def _own_delays(ts: Int64, stream: NDArray[np.int8]) -> Int64:
    """Delay of each tuple on its own stream."""
    found = np.zeros(len(ts), np.int64)
    for name in np.unique(stream):
        found[stream == name] = delays(ts[stream == name])
    return found


def _pareto(quantile: Float64, most: float) -> Float64:
    """Quantiles of the tail: Pareto cut at `most`, us."""
    reached = 1 - (_TAIL_LEAST_US / most) ** _TAIL_SHAPE
    return _TAIL_LEAST_US * (1 - quantile * reached) ** (-1 / _TAIL_SHAPE)


def _solve(facts: Disorder, most: float) -> tuple[float, list[float]]:
    """Weight of the tail and the body's scale per stream (us) for the published late share and mean delay."""
    at = np.concatenate([[0.0], np.geomspace(1.0, most, 2_000)])
    cut = 1 - (_TAIL_LEAST_US / most) ** _TAIL_SHAPE
    pareto = np.where(at > _TAIL_LEAST_US, (1 - (_TAIL_LEAST_US / np.maximum(at, 1.0)) ** _TAIL_SHAPE) / cut, 0.0)
    weights = np.array(facts.rates) / sum(facts.rates)

    def figures(rate: float, body: float, tail: float) -> tuple[float, float]:
        share = (1 - tail) * -np.expm1(-at / body) + tail * np.minimum(pareto, 1.0)
        step = np.diff(at)
        behind = np.concatenate([[0.0], np.cumsum((share[1:] + share[:-1]) / 2 * step)])
        overtaken = -np.expm1(-rate / SECOND * behind)
        missing = (1 - share) * overtaken
        late = float(((overtaken[1:] + overtaken[:-1]) / 2 * np.diff(share)).sum())
        return late, float(((missing[1:] + missing[:-1]) / 2 * step).sum())

    def bodies(tail: float) -> list[float]:
        found = []
        for rate in facts.rates:
            low, high = 1.0, 1e7
            for _ in range(40):
                middle = (low * high) ** 0.5
                low, high = (middle, high) if figures(rate, middle, tail)[0] < facts.late else (low, middle)
            found.append((low * high) ** 0.5)
        return found

    low, high = 0.0, 0.5
    for _ in range(30):
        tail = (low + high) / 2
        means = [figures(rate, body, tail)[1] for rate, body in zip(facts.rates, bodies(tail), strict=True)]
        low, high = (tail, high) if float(weights @ means) < facts.mean_us else (low, tail)
    return low, bodies(low)


def _paths(rng: np.random.Generator, length_us: int) -> Float64:
    """Positions every `_KNOT_US`, float64[2, knots, 1 + players] m: the ball, then the players."""
    time = np.arange(length_us // _KNOT_US + 2) * (_KNOT_US / SECOND)
    size = np.array(PITCH_M)[:, None, None]
    home = rng.uniform(0.15, 0.85, (2, 1, _PLAYERS)) * size
    paths = np.repeat(home, len(time), axis=1)
    for period_s, radius in ((90.0, 8.0), (31.0, 5.0), (11.0, 2.5)):
        turn, phase = rng.uniform(0.7, 1.4, (2, 1, _PLAYERS)), rng.uniform(0, 2 * np.pi, (2, 1, _PLAYERS))
        paths += radius * np.sin(2 * np.pi * turn * time[None, :, None] / period_s + phase)
    paths = np.clip(paths, 0.0, size)
    # A spell: a player keeps the ball at the feet, then it rolls to the next in a second.
    ends = np.cumsum(rng.uniform(1.5, 6.0, int(time[-1] / 1.5) + 2))
    holder = rng.integers(0, _PLAYERS, len(ends) + 1)
    spell = np.searchsorted(ends, time, side="right")
    rolled = np.clip(1.0 - (ends[spell] - time), 0.0, 1.0)
    knots = np.arange(len(time))
    ball = (1 - rolled) * paths[:, knots, holder[spell]] + rolled * paths[:, knots, holder[spell + 1]]
    return np.concatenate([ball[:, :, None], paths], axis=2)


def _position(paths: Float64, sensor: NDArray[np.int16], ts: Int64) -> tuple[Float64, Float64]:
    """Where each sensor was at its event time, between two knots, m."""
    ts = np.maximum(ts, 0)
    knot, part = ts // _KNOT_US, (ts % _KNOT_US) / _KNOT_US
    x, y = (1 - part) * paths[:, knot, sensor] + part * paths[:, knot + 1, sensor]
    return x, y


@njit(cache=True)
def _near_pairs(
    lt: Int64,
    lx: Float64,
    ly: Float64,
    rt: Int64,
    rx: Float64,
    ry: Float64,
    window_us: int,
    radius_2: float,
    out: Int64,
) -> int:
    """Places of pairs near in time and space, both sides sorted by time; fills `out` where it has room, counts always."""
    found, low = 0, 0
    for i in range(len(lt)):
        while low < len(rt) and rt[low] < lt[i] - window_us:
            low += 1
        j = low
        while j < len(rt) and rt[j] <= lt[i] + window_us:
            if (lx[i] - rx[j]) ** 2 + (ly[i] - ry[j]) ** 2 <= radius_2:
                if found < len(out):
                    out[found, 0], out[found, 1] = i, j
                found += 1
            j += 1
    return found
