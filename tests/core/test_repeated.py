"""Rows that repeat an event, by the plainest comparison with every kept row."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from latecomer.core.time import EARLIEST_US, LATEST_US
from latecomer.ingest.duplicates import event_key
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.values.repeated import repeated
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake


def by_comparison(rows, within):
    kept, marks = [], []
    for key, event, stored in rows:
        mark = not stored and any(key == other and abs(event - at) <= within for other, at in kept)
        marks.append(mark)
        if not mark:
            kept.append((key, event))
    return marks


def marks_of(rows, within):
    key, event, stored = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = np.array(key, np.int64), np.array(event, np.int64), np.array(stored, bool)
    return repeated(*arrays, within).tolist()


ROWS = st.lists(st.tuples(st.integers(-1, 1), st.integers(-40, 40), st.booleans()), max_size=40)


@settings(max_examples=300, deadline=None)
@given(ROWS, st.integers(0, 30))
@example([(0, 0, True), (0, 3, True), (0, 5, False)], 3)  # stored rows may be near each other
@example([(0, 0, False), (0, 4, False), (0, 8, False)], 4)  # a repeated row hides no other
@example([(0, -1, False), (0, 0, False), (0, 1, False)], 0)
def test_rows_are_repeated_as_by_comparison_with_every_kept_row(rows, within):
    assert marks_of(rows, within) == by_comparison(rows, within)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(0, 30), st.lists(st.integers(0, 40), max_size=5))
def test_any_split_into_calls_marks_the_same_rows(rows, within, cuts):
    rows = [(key, event, False) for key, event, _ in rows]
    whole, marks, stored = marks_of(rows, within), [], []
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    for low, high in itertools.pairwise(bounds):
        part = marks_of([*stored, *rows[low:high]], within)[len(stored) :]
        stored += [(key, event, True) for (key, event, _), mark in zip(rows[low:high], part, strict=True) if not mark]
        marks += part
    assert marks == whole


@pytest.mark.parametrize("within", [0, 1, LATEST_US - EARLIEST_US, 10**30])
def test_the_first_and_the_last_time_are_compared_as_all_others(within):
    rows = [(7, EARLIEST_US, False), (7, LATEST_US, False), (7, LATEST_US, False), (7, EARLIEST_US + 1, True)]
    assert marks_of(rows, within) == by_comparison(rows, within)


def test_a_million_rows_of_one_key_are_compared_in_a_moment():
    event = np.random.default_rng(5).integers(0, 10**12, 1_000_000)
    key, nothing = np.zeros(len(event), np.int64), np.zeros(len(event), bool)
    repeated(key[:2], event[:2], nothing[:2], 10)  # compile
    started = time.process_time()
    marks = repeated(key, event, nothing, 1_000_000)
    assert time.process_time() - started < 3  # comparison with every kept row takes minutes
    kept = np.sort(event[~marks])
    assert 0 < len(kept) < len(event) and np.diff(kept).min() > 1_000_000


COLUMNS, TYPES = {"device": "_0_device", "source_seq": "seq", "seen": "seen"}, {"seen": "map<string,int>"}


@pytest.mark.parametrize(
    "options, says",
    [
        ({"key": ("device",)}, "stream s: key: 'device': has no event time, .*; say within: 7 d in the stream file"),
        ({"key": ("device", "nothing"), "within_us": 1}, "stream s: key: 'nothing': no such column; .* device, .*seen"),
        ({"key": ("seen",), "within_us": 1}, "stream s: key: 'seen': is map<string,int>, whose values cannot be"),
        ({"key": ("x",), "stream": None, "by": "kind"}, "streams of column kind: key: 'x': has no event time"),
    ],
)
def test_a_key_that_cannot_tell_events_is_refused_in_one_line(tmp_path, options, says):
    options = IngestOptions(**{"stream": "s", **options})
    with pytest.raises(InputError, match=says) as error:
        event_key(Lake(tmp_path / "lake"), options, COLUMNS, TYPES, ["empty_one"])
    assert "\n" not in str(error.value)


def test_names_of_a_key_are_those_of_the_files_regardless_of_case(tmp_path):
    names = ("DEVICE", "seq", "Measured", "event_ts", "kind", "empty one")
    options = IngestOptions(by="kind", event_column="measured", key=names)
    key = event_key(Lake(tmp_path / "lake"), options, COLUMNS, TYPES, ["empty_one"])
    in_rows = [column.in_rows for column in key.columns]
    assert in_rows == ["_0_device", "seq", "event_ts", "event_ts", "_stream", None]
    assert (key.within_us, key.has_event_time, list(key.compared)) == (0, True, ["_key_0", "_key_1", "_key_5"])
