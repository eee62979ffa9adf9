"""Generate the football workloads of the benchmarks, seeded stand-ins for the papers' data, and load the real data.

The papers describe their football data (DEBS 2013 Grand Challenge) by a table of figures only. The generators draw
event times and transmission lags whose *delays* have the published share of late tuples, mean and maximum. A delay is
the largest event time so far on the tuple's own stream minus the tuple's event time.

Lags are a mixture. The body is exponential: many tuples are slightly late. The tail is a Pareto distribution cut at the
published maximum, drawn at evenly spaced quantiles so that the mean does not depend on luck. Tail tuples gather in bad
stretches of ten seconds, because lateness outside papers comes in bursts. The two free parameters, the scale of the
body and the weight of the tail, are solved for. With the distribution of lags `F`, the rate of the stream `r` and the
integral ``G(u)`` of `F` up to `u`::

    share on time = E[exp(-r G(lag))],   mean delay = integral of (1 - F(s)) (1 - exp(-r G(s))) ds

Departures from the originals: positions are synthetic (players roam about a home and pass one ball among them); event
times are Poisson instead of sensor ticks; the papers give neither the split of tuples over streams (here 2,000 ball
tuples/s) nor the shape of the tail nor the rate of the games that are aggregated (here 1,000 tuples/s).

Cost: O(n log n); `football_pairs` O(n + pairs tried).

References
----------
Mutschler, Ziekow and Jerzak, "The DEBS 2013 grand challenge", DEBS 2013. QJoin, Table 1: Guangxi Sciences 27(3), 2020.
HPM, Table 1: 2019.
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
    """The published figures of a data set.

    Attributes
    ----------
    rates : tuple of float
        Tuples per second, one rate per stream.
    rows : int
        Tuples of all streams.
    late : float
        Share of tuples with a positive delay.
    mean_us, max_us : float, int
        Mean and largest delay.
    """

    rates: tuple[float, ...]
    rows: int
    late: float
    mean_us: float
    max_us: int


FOOTBALL_JOIN = {
    "D1": Disorder((2_000.0, 6_568.6), 7_122_060, 5_940_703 / 7_122_060, 34_133.0, 142_146_640),
    "D2": Disorder((2_000.0, 8_473.2), 4_022_600, 3_493_068 / 4_022_600, 29_597.0, 170_959_260),
}
"""QJoin's Table 1. Its rows over its total time (831.17 and 384.08 s) are 8,569 and 10,473 tuples/s; the rates that it
prints are 8,514 and 10,037."""

FOOTBALL_AGGREGATE = {
    1: Disorder((1_000.0,), 544_223, 0.5758, 34_000.0, 14_200_000),
    2: Disorder((1_000.0,), 559_211, 0.6682, 64_000.0, 17_100_000),
}
"""HPM's Table 1; the paper gives no rate, 1,000 tuples/s is our choice."""


def delays(event_time_us: Int64) -> Int64:
    """Return the delay of every tuple of one stream in arrival order, int64[n] us."""
    return np.maximum.accumulate(event_time_us) - event_time_us


def football_join(seed: int, which: str = "D1", seconds: float | None = None, keep: float = 1.0) -> pa.Table:
    """Generate QJoin's D1 or D2: two streams of positions on a pitch, in arrival order.

    Parameters
    ----------
    seed : int
        Seed of the generator.
    which : str
        ``"D1"`` or ``"D2"``.
    seconds : float, optional
        Length of the game; None takes the published length (831 and 384 s). The tail of a game shorter than twice the
        largest delay is cut at half the length of the game, so such a game does not reach the published maximum.
    keep : float
        Share of tuples kept, drawn at random after delays were generated at the full rate. The buffer that a tuple
        requires is unchanged; rates fall, and the share of *slightly* late tuples falls with them.

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
    """Return the pairs of a ball row and a player row within `window_us` and `radius_m` of each other.

    Parameters
    ----------
    rows : pa.Table
        As `football_join` returns it.
    window_us, radius_m : int, float
        Largest distance in event time and in space.

    Returns
    -------
    int64[m, 2]
        Row numbers, ball first.
    """
    ts, side, x, y = (rows[c].to_numpy() for c in ("event_time_us", "stream", "x", "y"))
    by_side = [np.flatnonzero(side == s) for s in (BALL, PLAYERS)]
    by_side = [places[np.argsort(ts[places], kind="stable")] for places in by_side]
    (lt, rt), (lx, rx), (ly, ry) = ([column[places] for places in by_side] for column in (ts, x, y))
    count = _near_pairs(lt, lx, ly, rt, rx, ry, window_us, radius_m**2, np.empty((0, 2), np.int64))
    pairs = np.empty((count, 2), np.int64)
    _near_pairs(lt, lx, ly, rt, rx, ry, window_us, radius_m**2, pairs)
    return np.stack([by_side[s][pairs[:, s]] for s in (BALL, PLAYERS)], axis=1)


def football_aggregate(seed: int, game: int = 1, rows: int | None = None) -> pa.Table:
    """Generate one of HPM's games: one stream of speeds in arrival order.

    Parameters
    ----------
    seed : int
        Seed of the generator.
    game : int
        1 or 2.
    rows : int, optional
        Tuples; None takes the published number. The tail of a short game is cut as in `football_join`.

    Returns
    -------
    pa.Table
        ``event_time_us`` int64, ``sensor`` int16 (1 to 16), ``value`` float64 (a speed in m/s, smooth per sensor).

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
    """Generate one stream in arrival order: Poisson event times and exponential lags.

    Parameters
    ----------
    seed, rows : int
        Seed of the generator and number of tuples.
    rate : float
        Tuples per second of event time.
    mean_delay_us : float
        Mean lag from event to arrival. Mean delays are somewhat smaller, because the newest tuple has a lag, too.

    Returns
    -------
    pa.Table
        ``event_time_us`` int64, ``value`` float64 (standard normal).
    """
    rng = np.random.default_rng([seed, 3])
    ts = EPOCH_US + np.cumsum(rng.exponential(SECOND / rate, rows)).astype(np.int64)
    order = np.argsort(ts + rng.exponential(mean_delay_us, rows).astype(np.int64), kind="stable")
    return pa.table({"event_time_us": ts[order], "value": rng.normal(size=rows)[order]})


def zeek(data: Path, left: str, right: str, key: str) -> pa.Table:
    """Load two network logs in arrival order, without the rows that have no `key`.

    Parameters
    ----------
    data : Path
        Folder of ``zeek_events.parquet``.
    left, right : str
        Names of the logs.
    key : str
        Column to join on.

    Returns
    -------
    pa.Table
        ``seq`` int64 (arrival number in the whole capture), ``event_time_us`` int64, ``stream`` int8 (0 left, 1
        right), ``key`` int64 (codes from 0, equal where the values of the column are).
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
    """Load one network log in arrival order with all columns; ``event_ts`` is renamed to ``event_time_us``."""
    rows = pq.read_table(data / "zeek_events.parquet", filters=[("stream", "=", name)])
    return _renamed(rows)


def ooo(data: Path, session: str) -> pa.Table:
    """Load one session of the telemetry data (``d-1`` to ``d-5``) in arrival order; columns as `zeek_stream`."""
    rows = pq.read_table(data / "ooo_events.parquet", filters=[("session", "=", session)])
    return _renamed(rows)


def _renamed(rows: pa.Table) -> pa.Table:
    names = ["event_time_us" if name == "event_ts" else name for name in rows.column_names]
    return rows.rename_columns(names).sort_by("seq")


def _disordered(rng: np.random.Generator, facts: Disorder, length_us: int) -> tuple[Int64, NDArray[np.int8]]:
    """Draw event times from 0 and the stream of every tuple, in arrival order, with the published delays."""
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
    ts, arrival = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    stream = np.repeat(np.arange(len(parts), dtype=np.int8), [len(times) for times, _ in parts])
    order = np.argsort(arrival, kind="stable")
    ts, stream = ts[order], stream[order]
    if most == facts.max_us and len(ts):
        delay = _own_delays(ts, stream)
        worst = int(np.argmax(np.where(ts + delay >= facts.max_us, delay, -1)))  # its new event time is not negative
        ts[worst] += delay[worst] - facts.max_us
    return ts, stream


def _own_delays(ts: Int64, stream: NDArray[np.int8]) -> Int64:
    """Return the delay of every tuple on its own stream."""
    delay = np.zeros(len(ts), np.int64)
    for name in np.unique(stream):
        delay[stream == name] = delays(ts[stream == name])
    return delay


def _pareto(quantile: Float64, most: float) -> Float64:
    """Return quantiles of the tail, a Pareto distribution cut at `most`, us."""
    reached = 1 - (_TAIL_LEAST_US / most) ** _TAIL_SHAPE
    lag: Float64 = _TAIL_LEAST_US * (1 - quantile * reached) ** (-1 / _TAIL_SHAPE)
    return lag


def _solve(facts: Disorder, most: float) -> tuple[float, list[float]]:
    """Solve for the weight of the tail and the scale of the body per stream (us) by bisection."""
    at = np.concatenate([[0.0], np.geomspace(1.0, most, 2_000)])
    cut = 1 - (_TAIL_LEAST_US / most) ** _TAIL_SHAPE
    pareto = np.where(at > _TAIL_LEAST_US, (1 - (_TAIL_LEAST_US / np.maximum(at, 1.0)) ** _TAIL_SHAPE) / cut, 0.0)
    weights = np.array(facts.rates) / sum(facts.rates)

    def figures(rate: float, body: float, tail: float) -> tuple[float, float]:
        """Return the share of late tuples and the mean delay of a mixture, by the module's formulas."""
        share = (1 - tail) * -np.expm1(-at / body) + tail * np.minimum(pareto, 1.0)
        step = np.diff(at)
        behind = np.concatenate([[0.0], np.cumsum((share[1:] + share[:-1]) / 2 * step)])
        overtaken = -np.expm1(-rate / SECOND * behind)
        missing = (1 - share) * overtaken
        late = float(((overtaken[1:] + overtaken[:-1]) / 2 * np.diff(share)).sum())
        return late, float(((missing[1:] + missing[:-1]) / 2 * step).sum())

    def bodies(tail: float) -> list[float]:
        """Return the scale of the body per stream that gives the published share of late tuples."""
        scales = []
        for rate in facts.rates:
            low, high = 1.0, 1e7
            for _ in range(40):
                middle = (low * high) ** 0.5
                low, high = (middle, high) if figures(rate, middle, tail)[0] < facts.late else (low, middle)
            scales.append((low * high) ** 0.5)
        return scales

    low, high = 0.0, 0.5
    for _ in range(30):
        tail = (low + high) / 2
        means = [figures(rate, body, tail)[1] for rate, body in zip(facts.rates, bodies(tail), strict=True)]
        low, high = (tail, high) if float(weights @ means) < facts.mean_us else (low, tail)
    return low, bodies(low)


def _paths(rng: np.random.Generator, length_us: int) -> Float64:
    """Draw positions every `_KNOT_US`, float64[2, knots, 1 + players] m: the ball, then the players."""
    time = np.arange(length_us // _KNOT_US + 2) * (_KNOT_US / SECOND)
    size = np.array(PITCH_M)[:, None, None]
    home = rng.uniform(0.15, 0.85, (2, 1, _PLAYERS)) * size
    paths = np.repeat(home, len(time), axis=1)
    for period_s, radius in ((90.0, 8.0), (31.0, 5.0), (11.0, 2.5)):
        turn, phase = rng.uniform(0.7, 1.4, (2, 1, _PLAYERS)), rng.uniform(0, 2 * np.pi, (2, 1, _PLAYERS))
        paths += radius * np.sin(2 * np.pi * turn * time[None, :, None] / period_s + phase)
    paths = np.clip(paths, 0.0, size)
    # In a spell, a player keeps the ball; in its last second the ball rolls to the next player.
    ends = np.cumsum(rng.uniform(1.5, 6.0, int(time[-1] / 1.5) + 2))
    holder = rng.integers(0, _PLAYERS, len(ends) + 1)
    spell = np.searchsorted(ends, time, side="right")
    rolled = np.clip(1.0 - (ends[spell] - time), 0.0, 1.0)
    knots = np.arange(len(time))
    ball = (1 - rolled) * paths[:, knots, holder[spell]] + rolled * paths[:, knots, holder[spell + 1]]
    return np.concatenate([ball[:, :, None], paths], axis=2)


def _position(paths: Float64, sensor: NDArray[np.int16], ts: Int64) -> tuple[Float64, Float64]:
    """Interpolate the position of every sensor at its event time between two knots, m."""
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
    """Count the pairs near in time and space and write them to `out` until it is full; sides are sorted by time."""
    count, low = 0, 0
    for i in range(len(lt)):
        while low < len(rt) and rt[low] < lt[i] - window_us:
            low += 1
        j = low
        while j < len(rt) and rt[j] <= lt[i] + window_us:
            if (lx[i] - rx[j]) ** 2 + (ly[i] - ry[j]) ** 2 <= radius_2:
                if count < len(out):
                    out[count, 0], out[count, 1] = i, j
                count += 1
            j += 1
    return count
