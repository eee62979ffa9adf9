"""Texts as instants: against plain Python's regular expressions, datetime, zoneinfo and decimal."""

import calendar
import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal
from math import floor
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.ingest.values.times import local_times, parse_times, remedies
from latecomer.ingest.values.zones import area_names, to_utc, zone_table
from latecomer.specs.errors import SpecError
from latecomer.specs.streams import load_stream

EPOCH = datetime(1970, 1, 1)
ABBREVIATIONS = ["BST", "CST", "PST", "AST", "CET", "EST", "EDT", "PDT", "CEST", "MST", "VST", "SST"]
OTHER_NAMES = ["SystemV/PST8", "posix/Europe/Berlin", "UT", "Zulu", "utc"]
ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.]([0-9]+))?)?"
    r"(?: ?(?:(Z|z|UTC|GMT)|([+-])([0-9]{2})(?::?([0-9]{2}))?|([A-Za-z][A-Za-z_0-9/+-]*)))?)?"
)
NUMBER = re.compile("[+-]?[0-9]{1,18}([.][0-9]*)?([eE][+-]?[0-9]{1,2})?")
EXACT = Context(prec=400)


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def candidates(wall: datetime, zone: str) -> list[int]:
    """Return the instants (us) at which a zone's clock shows a time, by zoneinfo: none, one or two."""
    if wall.year in (1, 9999):  # zoneinfo overflows; the calendar repeats every 400 years
        years = 400 if wall.year == 1 else -400
        other = wall.replace(year=wall.year + years)
        return [us + micros(wall) - micros(other) for us in candidates(other, zone)]
    zone_info, shown = ZoneInfo(zone), set()
    for fold in (0, 1):
        moment = wall.replace(tzinfo=zone_info, fold=fold)
        offset = moment.utcoffset()
        utc = (wall - offset).replace(tzinfo=UTC)
        if utc.astimezone(zone_info).replace(tzinfo=None) == wall:
            shown.add(micros(utc.replace(tzinfo=None)))
    return sorted(shown)


def expected(text: str, zone: str, unit_us: int) -> list[int]:
    """Return the instants that a text may mean."""
    text = text.strip(" \t\n\v\f\r")
    if NUMBER.fullmatch(text):
        value = EXACT.multiply(Decimal(text), Decimal(unit_us))
        whole = floor(value)
        fits = -(2**63) <= whole < 2**63 and (unit_us > 1 or value == whole)
        return [whole] if fits else []
    match = ISO.fullmatch(text)
    if match is None:
        return []
    year, month, day, hour, minute, second, fraction, utc, sign, hours, minutes, name = match.groups()
    if sign and (int(minutes or 0) > 59 or int(hours) * 60 + int(minutes or 0) > 18 * 60):
        return []
    if name and name not in area_names():
        return []
    try:
        clock = [int(part or 0) for part in (hour, minute, second)]
        wall = datetime(int(year), int(month), int(day), *clock, int((fraction or "").ljust(6, "0")[:6]))
    except ValueError:
        return []
    if utc:
        return [micros(wall)]
    if sign:
        offset = (1 if sign == "+" else -1) * (int(hours) * 60 + int(minutes or 0))
        return [micros(wall) - offset * 60_000_000]
    return candidates(wall, name or zone)


def assert_as_expected(texts: list[str | None], zone: str, unit_us: int) -> None:
    times = parse_times(pa.array(texts, pa.string()), zone, unit_us=unit_us)
    for place, text in enumerate(texts):
        meant = [] if text is None else expected(text, zone, unit_us)
        got = (bool(times.valid[place]), int(times.us[place]), int(times.later_us[place]))
        assert got == ((True, meant[0], meant[-1]) if meant else (False, 0, 0)), text


def digits(count: int) -> st.SearchStrategy[str]:
    return st.text("0123456789", min_size=count, max_size=count)


DAYS = st.one_of(
    st.dates().map(str),
    st.sampled_from(["2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "0000-01-01", "9999-12-31", "0001-01-01"]),
    st.sampled_from(["2024-10-27", "2024-03-31", "2024-11-03", "2024-03-10", "2024-04-31", "2024-1-05", "2011-12-30"]),
    st.builds("{}-{}-{}".format, digits(4), digits(2), digits(2)),
)
CLOCKS = st.one_of(
    st.times().map(str),
    st.builds("0{}:{:02}".format, st.integers(0, 9), st.integers(0, 59)),
    st.builds("{:02}:{:02}:{:02}.{}".format, st.integers(0, 25), *[st.integers(0, 61)] * 2, st.text("0123456789")),
    st.sampled_from(["24:00:00", "12", "1:02:03", "12:3", "12:30:5", "12:30:", "12:30:45,5", "123045"]),
)
ZONES = st.one_of(
    st.sampled_from(["", "", "Z", "z", "UTC", "GMT", "utc", "BST", "CST", "EST", "EST5EDT", "UTC+2", "Zulu", "ZZ"]),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Etc/GMT+5", "Mars/Olympus", "Asia/"]),
    st.builds("{}{}".format, st.sampled_from("+-"), st.sampled_from(["02", "0200", "02:00", "2", "18", "18:01", "0"])),
    st.builds(
        "{}{:02}{}{:02}".format,
        st.sampled_from("+-"),
        st.integers(0, 20),
        st.sampled_from([":", ""]),
        *[st.integers(0, 61)],
    ),
)
TEXTS = st.one_of(
    st.builds(
        "{}{}{}{}{}{}{}".format,
        st.sampled_from(["", " ", "\t"]),
        DAYS,
        st.sampled_from(["T", " ", "T", "t", "  "]),
        CLOCKS,
        st.sampled_from(["", " ", "", "  "]),
        ZONES,
        st.sampled_from(["", "", " ", "x", "\n"]),
    ),
    DAYS,
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(["", "+", "-", " -"]),
        st.integers(0, 10**20),
        st.one_of(st.just(""), st.text("0123456789").map(".{}".format)),
        st.one_of(st.just(""), st.builds("{}{}".format, st.sampled_from(["e", "E-", "e+"]), st.integers(0, 120))),
    ),
    st.text("0123456789-:T .eZ+", max_size=30),
    st.text(max_size=8),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(st.none(), TEXTS), max_size=12),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "EST"]),
    st.sampled_from([1, 1_000, 1_000_000]),
)
def test_texts_mean_what_the_grammar_says(texts, zone, unit_us):
    assert_as_expected(texts, zone, unit_us)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("2024-07-01 12:00:00 UTC", "2024-07-01T12:00:00"),
        ("2024-07-01T12:00Z", "2024-07-01T12:00:00"),
        ("2024-07-01 12:00:00z", "2024-07-01T12:00:00"),
        ("2024-07-01 12:00 GMT", "2024-07-01T12:00:00"),
        ("2024-07-01T12:00:00.1234567+02", "2024-07-01T10:00:00.123456"),
        ("2024-07-01T12:00:00+0230", "2024-07-01T09:30:00"),
        ("2024-07-01T12:00:00 -02:30", "2024-07-01T14:30:00"),
        ("1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.999999"),
        ("2024-07-01 12:00 Europe/Berlin", "2024-07-01T10:00:00"),
        ("2024-07-01 12:00 America/Argentina/Buenos_Aires", "2024-07-01T15:00:00"),
        ("2024-07-01", "2024-06-30T22:00:00"),
        (" 2024-07-01 12:00 ", "2024-07-01T10:00:00"),
        ("2024-02-29T00:00Z", "2024-02-29T00:00:00"),
        *((f"2024-07-01 12:00:00 {name}", None) for name in ABBREVIATIONS),
        *((f"2024-07-01 12:00:00 {name}", None) for name in OTHER_NAMES),
        ("2023-02-29T00:00Z", None),
        ("2024-07-01T24:00Z", None),
        ("2024-06-30T23:59:60Z", None),
        ("2024-W05-1", None),
        ("2024-032", None),
        ("2024-07", None),
        ("2024-07-01Z", None),
        ("2024-07-01T12Z", None),
        ("20240701T120000Z", None),
        ("01.07.2024 12:00", None),
        ("2024-07-01T12:00:00+18:01", None),
        ("２０２４-07-01", None),
        ("12:00", None),
        ("nan", None),
        ("", None),
        (None, None),
    ],
)
def test_each_form_of_a_time(text, means):
    times = parse_times(pa.array([text], pa.string()), "Europe/Berlin")
    assert bool(times.valid[0]) == (means is not None)
    if means is not None:
        assert times.us[0] == micros(datetime.fromisoformat(means)) == times.later_us[0]


@pytest.mark.parametrize(
    ("text", "unit_us", "us"),
    [
        ("1704067200", 1_000_000, 1_704_067_200_000_000),
        ("1704067200.25", 1_000_000, 1_704_067_200_250_000),
        ("1704067200.0000019", 1_000_000, 1_704_067_200_000_001),
        ("-0.0000001", 1_000_000, -1),
        ("1.7040672e9", 1_000_000, 1_704_067_200_000_000),
        ("1704067200123.4567", 1_000, 1_704_067_200_123_456),
        ("1704067200123456.0", 1, 1_704_067_200_123_456),
        ("1704067200123456.5", 1, None),
        ("5.", 1, 5),
        ("1e-2", 1, None),
        ("100e-2", 1, 1),
        ("0e99", 1_000_000, 0),
        ("1e28", 1, None),
        ("999999999999999999", 1_000_000, None),
        ("922337203685477580.7e1", 1, 2**63 - 1),
        ("922337203685477580.8e1", 1, None),
        ("-922337203685477580.8e1", 1, -(2**63)),
        ("-922337203685477580.9e1", 1, None),
        ("1234567890123456789", 1, None),
        (".5", 1_000, None),
        ("1_000", 1, None),
        ("0x10", 1, None),
        ("1e", 1, None),
        ("1e+", 1, None),
        ("1e100", 1, None),
        ("+-1", 1, None),
    ],
)
def test_numbers_count_the_unit_exactly(text, unit_us, us):
    times = parse_times(pa.array([text]), "UTC", unit_us=unit_us)
    assert (bool(times.valid[0]), int(times.us[0])) == (us is not None, us or 0)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_slices_and_kinds_of_arrays_are_read_alike(kind):
    texts = ["x" * 20, "2024-07-01T12:00Z", None, "2024-07-01 12:00 Asia/Kathmandu", "7", "y"]
    array = pa.array(texts, pa.string()).cast(kind)
    for part in (array[1:5], pa.chunked_array([array[1:3], array[3:5]])):
        times = parse_times(part, "UTC")
        assert times.valid.tolist() == [True, False, True, True]
        assert times.us.tolist() == [1_719_835_200_000_000, 0, 1_719_814_500_000_000, 7]
    assert len(parse_times(array[:0], "UTC").us) == 0 and not parse_times(pa.nulls(3), "UTC").valid.any()
    assert not parse_times(pa.array(["", ""]), "UTC").valid.any()


def test_many_names_of_zones_in_one_array():
    names = list(area_names())
    moment = datetime(2024, 7, 1, 12)
    times = parse_times(pa.array([f"{moment} {name}" for name in [*names, "No/Where", "A" * 500 + "/B"]]), "UTC")
    assert times.us.tolist() == [candidates(moment, name)[0] for name in names] + [0, 0]
    assert times.valid.tolist() == [True] * len(names) + [False, False]


DAYLIGHT = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "UTC"]
DAYLIGHT += ["Africa/Casablanca", "America/Sao_Paulo", "Europe/Dublin", "Asia/Gaza", "Antarctica/Troll", "EST5EDT"]


@pytest.mark.parametrize("zone", DAYLIGHT)
def test_local_times_are_the_fold_and_the_gap_of_zoneinfo(zone):
    """Around every change of a zone's offset, and at random times of the years 1 to 9999."""
    table, rng = zone_table(zone), np.random.default_rng(5)
    edges = np.concatenate([table.starts[1:], table.ends[:-1]])
    edges = edges[rng.random(len(edges)) < 300 / max(len(edges), 300)]
    near = (edges[:, None] + np.array([-1, 0, 1, -1_800_000_000, 1_799_999_999, 7_200_000_000])).ravel()
    low, high = micros(datetime(1, 1, 3)), micros(datetime(9999, 12, 29))
    wall = np.concatenate([near, rng.integers(low, high, 500), rng.integers(0, 1 << 51, 500)])
    wall = wall[(wall > low) & (wall < high)]
    times = local_times(wall, zone)
    for place, time in enumerate(wall.tolist()):
        meant = candidates(EPOCH + timedelta(microseconds=time), zone)
        assert times.skipped[place] == (not meant) and times.valid[place] == bool(meant)
        assert [times.us[place], times.later_us[place]] == ([meant[0], meant[-1]] if meant else [0, 0])


def test_hours_that_are_repeated_or_skipped():
    texts = ["2024-11-03 01:30", "2024-11-03 00:59:59", "2024-11-03 02:00", "2024-03-10 02:30", "2024-03-10 03:00"]
    times = parse_times(pa.array(texts), "America/New_York")
    hours = (times.us / 3.6e9 % 24).tolist()
    assert (times.later_us - times.us).tolist() == [3_600_000_000, 0, 0, 0, 0]
    assert times.skipped.tolist() == [False, False, False, True, False] and times.valid.tolist() == [
        *[True] * 3,
        False,
        True,
    ]
    assert hours[0] == 5.5 and hours[2] == 7 and hours[4] == 7
    apia = parse_times(pa.array(["2011-12-30", "2011-12-30 23:59", "2011-12-31", "2024-12-30"]), "Pacific/Apia")
    assert apia.skipped.tolist() == [True, True, False, False]
    howe = local_times(np.array([micros(datetime(2024, 4, 7, 1, 45))]), "Australia/Lord_Howe")
    assert howe.later_us[0] - howe.us[0] == 1_800_000_000


def test_times_beyond_all_calendars_have_no_instant():
    us, later, shown = to_utc(np.array([2**63 - 1, -(2**63 - 1), 0]), "Europe/Berlin")
    assert shown.tolist() == [False, False, True] and us.tolist() == later.tolist() == [0, 0, -3_600_000_000]
    with pytest.raises(ZoneInfoNotFoundError):
        zone_table("Europe/Atlantis")


FORMATS = [
    "%Y-%m-%d %H:%M:%S",
    "%d.%m.%Y %H:%M",
    "%d/%b/%Y:%H:%M:%S %z",
    "%B %d, %Y %I:%M %p",
    "%Y%m%dT%H%M%S.%f",
    "%y%j%H",
    "%m/%d/%y %I:%M:%S%p",
    "%Y%%%j à %Hh%M",
    "%Y%m%d%H%M%S%f",
]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.datetimes(datetime(1970, 1, 1), datetime(2068, 1, 1)), min_size=1, max_size=5), st.integers(-840, 840)
)
@pytest.mark.parametrize("pattern", FORMATS)
def test_patterns_are_read_as_strptime_reads_them(pattern, moments, minutes):
    zone = timezone(timedelta(minutes=minutes))
    texts = [moment.replace(tzinfo=zone).strftime(pattern) for moment in moments]
    times = parse_times(pa.array(texts), "UTC", pattern=pattern)
    for place, text in enumerate(texts):
        moment = datetime.strptime(text, pattern)
        moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC).replace(tzinfo=None)
        assert times.valid[place] and times.us[place] == micros(moment) == times.later_us[place], text


PIECES = st.sampled_from(
    ["1", "01", "7", "07", "12", "13", "31", "60", "2024", "24", " ", ".", ":", "jul", "July", "PM"]
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(PIECES, max_size=9).map("".join), st.sampled_from(["%d.%m.%Y", "%d %b %Y", "%Y %B %d", "%I:%M %p %Y %j"])
)
def test_what_a_pattern_takes_strptime_takes(text, pattern):
    times = parse_times(pa.array([text]), "UTC", pattern=pattern)
    try:
        moment = datetime.strptime(text.strip(), pattern)
    except ValueError:
        moment = None
    exact = moment is not None and re.sub(r"\s+", " ", text.strip()) == text.strip()  # strptime takes any white space
    assert bool(times.valid[0]) == exact or (times.valid[0] and moment is not None)
    if times.valid[0]:
        assert times.us[0] == micros(moment)


@pytest.mark.parametrize(
    ("text", "pattern", "means"),
    [
        ("1.7.2024 9:05", "%d.%m.%Y %H:%M", datetime(2024, 7, 1, 9, 5)),
        ("Jul  1 2024", "%b %d %Y", datetime(2024, 7, 1)),
        ("JULY 1 2024", "%B %d %Y", datetime(2024, 7, 1)),
        ("2024-07-01 12:00:00.123456789", "%Y-%m-%d %H:%M:%S.%f", datetime(2024, 7, 1, 12, 0, 0, 123456)),
        ("01.07.2024 12:30 AM", "%d.%m.%Y %I:%M %p", datetime(2024, 7, 1, 0, 30)),
        ("2024-07-01T12:00Z", "%Y-%m-%dT%H:%M%z", datetime(2024, 7, 1, 12)),
        ("2024-07-01T12:00+02", "%Y-%m-%dT%H:%M%z", datetime(2024, 7, 1, 10)),
        ("690101", "%y%m%d", datetime(1969, 1, 1)),
        ("680101", "%y%m%d", datetime(2068, 1, 1)),
        ("2024366", "%Y%j", datetime(2024, 12, 31)),
        ("2023366", "%Y%j", None),
        ("2024183 Jul", "%Y%j %b", datetime(2024, 7, 1)),
        ("2024183 Jun", "%Y%j %b", None),
        ("2024711", "%Y%m%d", None),  # which digit is the day's?
        ("01.07.2024 13:00 AM", "%d.%m.%Y %H:%M %p", None),
        ("01.07.2024 01:00", "%d.%m.%Y %I:%M", None),
        ("01.07.2024", "%d.%m.%Y %H", None),
        ("01.07.2024x", "%d.%m.%Y", None),
        ("31.06.2024", "%d.%m.%Y", None),
        ("1719835200", "%d.%m.%Y", None),
        ("2024-07-01", "%d.%m.%Y", None),
        ("Mai 1 2024", "%b %d %Y", None),
        ("2024-07-01 12:00 CEST", "%Y-%m-%d %H:%M %z", None),
        ("", "%d.%m.%Y", None),
        (None, "%d.%m.%Y", None),
    ],
)
def test_each_form_of_a_pattern(text, pattern, means):
    times = parse_times(pa.array([text], pa.string()), "UTC", pattern=pattern)
    assert bool(times.valid[0]) == (means is not None)
    assert times.us[0] == (micros(means) if means else 0)


def test_a_pattern_without_an_offset_is_local_time():
    times = parse_times(pa.array(["27.10.2024 02:30", "31.03.2024 02:30"]), "Europe/Berlin", pattern="%d.%m.%Y %H:%M")
    assert times.later_us[0] - times.us[0] == 3_600_000_000 and times.skipped.tolist() == [False, True]
    with pytest.raises(ValueError, match="%U"):
        parse_times(pa.array(["x"]), "UTC", pattern="%U")


def test_every_day_of_the_calendar():
    days = np.arange(date(1, 1, 1).toordinal(), date(9999, 12, 31).toordinal() + 1, 11)
    texts = [date.fromordinal(day).isoformat() for day in days.tolist()]
    times = parse_times(pa.array(texts), "UTC")
    assert times.valid.all() and ((times.us // 86_400_000_000) == days - date(1970, 1, 1).toordinal()).all()
    for year in (1900, 2000, 2023, 2024):
        for month in range(1, 13):
            last = calendar.monthrange(year, month)[1]
            read = parse_times(pa.array([f"{year}-{month:02}-{day:02}" for day in range(100)]), "UTC").valid
            assert np.flatnonzero(read).tolist() == list(range(1, last + 1))


def test_texts_that_resemble_a_time_have_a_remedy():
    texts = ["2024-W05-1", "2024-032", "2024-01-01 12:00 BST", "2024-06-30T23:59:60Z", "2024-01-01T24:00Z", "x", None]
    says = remedies(pa.array(texts)).to_pylist()
    assert [text and text.split()[1] for text in says] == ["week", "ordinal", "of", "leap", "day", None, None]


@pytest.mark.parametrize("pattern", [*FORMATS, "%d.%m.%Y %I:%M"])
def test_a_stream_file_takes_the_patterns_that_can_be_read(tmp_path, pattern):
    (tmp_path / "s.yaml").write_text(f"time_format: '{pattern}'\n")
    if "%I" in pattern and "%p" not in pattern:
        with pytest.raises(SpecError, match="half a day"):
            load_stream(tmp_path / "s.yaml")
    else:
        assert load_stream(tmp_path / "s.yaml")["time_format"] == pattern
