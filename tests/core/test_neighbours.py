"""Neighbours of public reports about zones and names of files: the right value, or none and a remedy."""

import pyarrow as pa
import pytest
from latecomer.ingest.find_files import format_of
from latecomer.ingest.source_file import look
from latecomer.ingest.values.times import parse_times, remedies

ABBREVIATIONS = [
    *("IST", "MST", "HST", "ACT", "JST", "AST", "BST", "CST", "PST", "EST", "EDT", "CEST", "AEST", "UT", "WET", "MET"),
    *("EET", "NZ", "Zulu", "utc", "gmt", "ECT", "VST"),
]
NOON_US = 1_719_835_200_000_000
"""2024-07-01T12:00Z."""


@pytest.mark.parametrize("between", [" ", ""])
def test_abbreviations_of_zones_are_no_times_whatever_java_makes_of_them(between):
    texts = pa.array([f"2024-07-01 12:00:00{between}{zone}" for zone in ABBREVIATIONS])
    assert not parse_times(texts, "Asia/Kolkata").valid.any()
    assert remedies(texts).to_pylist() == [
        "abbreviations of zones mean different offsets: write the offset, or Area/City"
    ] * len(ABBREVIATIONS)


@pytest.mark.parametrize(
    ("zone", "hours"),
    [("Z", 0), (" UTC", 0), ("+01", 1), ("+0530", 5.5), ("-03:30", -3.5), ("+14:00", 14), (" Europe/Berlin", 2)],
)
def test_offsets_and_areas_mean_the_same_everywhere(zone, hours):
    times = parse_times(pa.array([f"2024-07-01T12:00:00{zone}"]), "America/New_York")
    assert times.valid.tolist() == [True] and times.us.tolist() == [NOON_US - int(hours * 3_600_000_000)]


@pytest.mark.parametrize(
    "zone", ["GMT+1", "UTC+01:00", "[Europe/Berlin]", "+02:00[Europe/Berlin]", "B", "+1", "+25:00"]
)
def test_what_the_grammar_of_zones_does_not_name_is_no_time(zone):
    assert not parse_times(pa.array([f"2024-07-01T12:00:00{zone}"]), "UTC").valid.any()


def test_formats_of_names(tmp_path):
    names = {"a.tsv": "csv", "b.TSV.gz": "csv", "c.ndjson.zst": "json", "d.csv.bz2": "csv", "e.txt": None, "f.gz": None}
    for name, kind in names.items():
        (tmp_path / name).write_bytes(b"")
        assert format_of(look(str(tmp_path / name)), None) == kind, name
