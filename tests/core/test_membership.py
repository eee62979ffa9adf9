"""Membership: hashes as the engine's, no candidate missed, answers equal to plain sets once confirmed."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.baselines.membership.filters import BloomFilter, OneFilter, multi_bloom, multi_exact
from latecomer.baselines.membership.multi_cuckoo import MultiCuckoo, query_bound, starts_of, windows_touched
from latecomer.core.arrays.xxhash import hash_longs, hash_values, validity, xxh64
from latecomer.core.windows.grid import Grid
from latecomer.reference import membership as reference

MAKERS = {
    "mcf": lambda windows: MultiCuckoo(windows, 20),
    "bloom": lambda windows: multi_bloom(windows, 20),
    "exact": multi_exact,
    "one_filter": lambda windows: OneFilter(windows, 50),
}


def hashed(elements: list[int]) -> np.ndarray:
    return hash_longs(np.array(elements, np.int64))


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([t for t, _ in rows], np.int64), hashed([e for _, e in rows])


# --- hashing -----------------------------------------------------------------------------------------------------


def test_published_vectors() -> None:
    assert xxh64(b"") == 0xEF46DB3751D8E999
    assert xxh64(b"abc") == 0x44BC2CF5AD770999
    chained = xxh64(b"Spark", 42)
    for number in (123, 2):
        chained = xxh64(number.to_bytes(4, "little"), chained)
    assert chained == 5602566077635097486, "the engine's documentation: xxhash64('Spark', array(123), 2)"


def test_every_length_as_the_engine_hashes_it() -> None:
    """Oracle: recorded from the engine's own XXH64 class, lengths 0 to 130 and seven bigints, seed 42."""
    data = bytes((i * 37 + 11) & 255 for i in range(200))
    found = hash_values(pa.array([data[:n] for n in range(131)], pa.binary()))
    assert xxh64(found.tobytes()) == 0x8D7CF54076CE3A94
    assert found[[31, 32, 33, 64, 130]].view(np.int64).tolist() == [
        -5332473137393748457, 4142458235023934348, -2047895433078909212, -2851660219090349786, -5523810222469150175,
    ]  # fmt: skip
    values = [0, 1, -1, 123, 2**63 - 1, -(2**63), 1_700_000_000_000_000]
    assert hash_values(pa.array(values, pa.int64())).view(np.int64).tolist() == [
        -5252525462095825812, -7001672635703045582, 3858142552250413010, -3178482946328430151,
        -3246596055638297850, -8619748838626508300, 6483947384059677160,
    ]  # fmt: skip
    assert hash_values(pa.array(["Zürich 日本 🚲"])).view(np.int64)[0] == 5018880397530852948


@given(st.lists(st.none() | st.text(max_size=40), max_size=30), st.integers(0, 30), st.integers(0, 30))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_strings_of_any_arrow_layout_hash_the_same(values: list[str | None], start: int, length: int) -> None:
    """Differential: the columns' kernel against one value at a time."""
    want = [42 if v is None else xxh64(v.encode(), 42) for v in values]
    plain = pa.array(values, pa.string())
    raw = [None if v is None else v.encode() for v in values]
    layouts = [plain, plain.cast(pa.large_string()), plain.dictionary_encode(), plain.cast(pa.string_view())]
    layouts += [pa.array(raw, pa.binary()), pa.array(raw, pa.large_binary()), pa.chunked_array([plain[:3], plain[3:]])]
    for layout in layouts:
        assert hash_values(layout).tolist() == want, layout.type
        assert hash_values(layout.slice(start, length)).tolist() == want[start : start + length]
        assert validity(layout).tolist() == [v is not None for v in values]


@given(st.lists(st.none() | st.integers(0, 127), max_size=20), st.integers(0, 20))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_integers_are_widened_and_timestamps_count_microseconds(values: list[int | None], start: int) -> None:
    want = [42 if v is None else xxh64(v.to_bytes(8, "little"), 42) for v in values]
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        assert hash_values(pa.array(values, kind).slice(start)).tolist() == want[start:]
    for unit in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        assert hash_values(pa.array(values, pa.int64()).cast(unit)).tolist() == want
    seconds = pa.array(values, pa.int64()).cast(pa.timestamp("s"))
    assert hash_values(seconds).tolist() == [
        42 if v is None else xxh64((v * 1_000_000).to_bytes(8, "little"), 42) for v in values
    ]


def test_what_has_no_hash_is_refused() -> None:
    for array in (pa.array([1.5]), pa.array([True]), pa.array([datetime.date(2024, 1, 1)]), pa.array([[1]])):
        with pytest.raises(TypeError, match="cast it"):
            hash_values(array)
    with pytest.raises(pa.ArrowInvalid):
        hash_values(pa.array([2**63], pa.uint64()))
    with pytest.raises(pa.ArrowInvalid):
        hash_values(pa.array([1], pa.timestamp("ns")))
    assert hash_values(pa.nulls(2)).tolist() == [42, 42]
    assert hash_values(pa.chunked_array([], pa.string())).shape == (0,)


# --- windows -----------------------------------------------------------------------------------------------------

specs = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(lambda p: (max(p), min(p)))


@given(specs, specs, st.integers(-5, 5))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_windows_touched_as_the_definition_says(first: tuple[int, int], other: tuple[int, int], k: int) -> None:
    start = k * first[1]
    found = windows_touched((start, start + first[0]), Grid(*other), same=first == other)
    assert found == reference.touched(start, first, other)


def test_windows_touched_examples() -> None:
    assert windows_touched((0, 10), Grid(10, 5), same=True) == [0]
    assert windows_touched((0, 10), Grid(5, 5)) == [0, 5]
    assert windows_touched((0, 10), Grid(20, 5)) == [-15, -10]
    assert windows_touched((0, 10), Grid(60, 60)) == [-60], "none ends inside: the last one before"
    assert windows_touched((50, 60), Grid(60, 60)) == [0], "it ends at 60, which is in (50, 60]"


@given(st.lists(st.integers(-100, 100), max_size=20), specs)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_each_row_is_in_the_windows_that_hold_it(times: list[int], spec: tuple[int, int]) -> None:
    found: list[list[int]] = [[] for _ in times]
    for rows, starts in starts_of(Grid(*spec), np.array(times, np.int64)):
        for row, start in zip(rows, starts, strict=True):
            found[row].append(int(start))
    assert [sorted(f) for f in found] == [reference.windows_of(t, spec) for t in times]


def test_query_bound() -> None:
    assert query_bound(0.0, 4, 100, 10, 5) == 0.0
    assert query_bound(0.01, 1, 10, 10, 10) == pytest.approx(0.01)
    assert query_bound(0.01, 2, 100, 10, 10) == pytest.approx(1 - 0.99**20)
    for wrong in ((1.1, 1, 1, 1, 1), (0.1, 0, 1, 1, 1), (0.1, 1, 1, 2, 1), (0.1, 1, 1, 1, 0)):
        with pytest.raises(ValueError, match="query_bound"):
            query_bound(*wrong)


def test_measured_query_rate_is_under_the_query_bound() -> None:
    """Oracle: s streams, m rows each in tumbling windows of w rows; an absent element asked of all of them."""
    s, m, w = 2, 8_000, 1_000
    rng = np.random.default_rng(7)
    wrong = asked = 0
    for seed in range(10):
        query = MultiCuckoo([Grid(m, m)] + [Grid(w, w)] * s, w, 12, 4, seed)
        for stream in range(1, s + 1):
            query.insert(stream, np.arange(m), rng.integers(0, 2**63, m, np.uint64))
        absent = rng.integers(2**63, 2**64 - 1, 50_000, np.uint64)
        union = np.zeros(absent.size, bool)
        for stream in range(1, s + 1):
            for start in range(0, m, w):
                union |= query._filters[stream, start].contains(absent)
        wrong, asked = wrong + int(union.sum()), asked + absent.size
        assert not (query.candidates_in(0, absent) & ~union).any()
        assert query.candidates_in(0, absent).mean() <= query.false_positive_bound(0)
    bound = query_bound(8 / 4096, s, m, w, w)
    assert wrong / asked <= bound + 4 * (bound / asked) ** 0.5
    assert wrong / asked >= bound / 5


# --- the query ---------------------------------------------------------------------------------------------------

rows_of = st.lists(st.tuples(st.integers(-30, 60), st.integers(0, 12)), max_size=25)
cases = st.integers(2, 4).flatmap(
    lambda n: st.tuples(
        st.lists(rows_of, min_size=n, max_size=n),
        st.lists(specs, min_size=n, max_size=n) | specs.map(lambda one: [one] * n),
    )
)


@pytest.mark.parametrize("name", MAKERS)
@given(case=cases, order=st.integers(0, 9))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_candidates_miss_nothing(name: str, case: tuple, order: int) -> None:
    """Differential against plain sets, and between all filters; exact sets have no other candidate."""
    streams, windows = case
    query = MAKERS[name]([Grid(*w) for w in windows])
    rng = np.random.default_rng(order)
    for stream in rng.permutation(len(streams)):
        rows = [streams[stream][i] for i in rng.permutation(len(streams[stream]))]
        for cut in (slice(0, 7), slice(7, None)):
            assert not query.insert(int(stream), *columns(rows[cut])).any()
    want = reference.results(streams, windows)
    times, hashes = columns(streams[0])
    mask = query.candidates(hashes, times)
    in_result = [any((s, e) in want for s in reference.windows_of(t, windows[0])) for t, e in streams[0]]
    assert not (np.array(in_result, bool) & ~mask).any()
    if name == "exact":
        assert mask.tolist() == in_result
    elements = list(range(13))
    for start in {s for t, _ in streams[0] for s in reference.windows_of(t, windows[0])}:
        found = query.candidates_in(start, hashed(elements))
        there = {e for t, e in streams[0] if start <= t < start + windows[0][0]}
        result = {e for e in elements if (start, e) in want}
        passed = {e for e in there if found[e]}
        assert result <= passed
        if name == "exact":
            assert result == passed


@pytest.mark.parametrize("name", MAKERS)
@given(case=cases, watermarks=st.lists(st.integers(-40, 80), min_size=1, max_size=4))
@settings(max_examples=35, deadline=None, derandomize=True)
def test_expiry_never_touches_what_is_open(name: str, case: tuple, watermarks: list[int]) -> None:
    """Rows arrive in turns with moving watermarks; results of open windows stay, whatever was not reported late."""
    streams, windows = case
    query = MAKERS[name]([Grid(*w) for w in windows])
    accepted: list[list[tuple[int, int]]] = [[] for _ in streams]
    for turn, watermark in enumerate([*watermarks, max(watermarks)]):
        for stream, rows in enumerate(streams):
            part = rows[turn :: len(watermarks) + 1]
            query.insert(stream, *columns(part))
            accepted[stream] += part
        query.expire(watermark)
    now = max(watermarks)
    assert query.watermark_us == now
    for start, element in reference.results(accepted, windows):
        if start + windows[0][0] > now:
            assert query.candidates_in(start, hashed([element])).all()
    closed = (now - windows[0][0]) // windows[0][1] * windows[0][1]
    assert query.candidates_in(closed, hashed([99, 100])).all(), "a closed window cannot be judged: all pass"


def test_late_rows_are_reported_and_filters_dropped() -> None:
    query = MultiCuckoo([Grid(10, 10)] * 2, 100)
    for stream in (0, 1):
        assert not query.insert(stream, np.arange(0, 40, dtype=np.int64), hashed(list(range(40)))).any()
    assert query.filters == 8
    held = query.size_bytes
    assert query.expire(20) == 4 and query.filters == 4 and query.size_bytes == held // 2
    assert query.expire(5) == 0 and query.watermark_us == 20, "the watermark does not go back"
    late = query.insert(1, np.array([5, 19, 20], np.int64), hashed([1, 2, 3]))
    assert late.tolist() == [True, True, False]
    assert query.candidates(hashed([3, 77]), np.array([21, 21], np.int64)).tolist() == [True, False]


def test_a_window_of_another_stream_stays_while_an_open_window_may_touch_it() -> None:
    query = MultiCuckoo([Grid(60, 60), Grid(10, 10)], 10)
    query.insert(1, np.array([3], np.int64), hashed([7]))
    query.expire(59)
    assert query.candidates_in(0, hashed([7, 8])).tolist() == [True, False]
    assert query.expire(60) == 1


@pytest.mark.parametrize("name", ["mcf", "bloom"])
def test_stored_and_read_again(name: str) -> None:
    query = MAKERS[name]([Grid(10, 5), Grid(20, 10)])
    rng = np.random.default_rng(3)
    for stream in (0, 1):
        query.insert(stream, rng.integers(0, 100, 500), rng.integers(0, 2**64, 500, np.uint64))
    query.expire(30)
    extra = {"load": BloomFilter.from_bytes, "make_filter": lambda n, s: BloomFilter(n, seed=s)}
    again = MultiCuckoo.from_bytes(query.to_bytes(), **(extra if name == "bloom" else {}))
    times, asked = rng.integers(0, 100, 3_000), rng.integers(0, 2**64, 3_000, np.uint64)
    assert np.array_equal(again.candidates(asked, times), query.candidates(asked, times))
    for each in (query, again):
        each.insert(1, times, asked)
    assert again.to_bytes() == query.to_bytes() and again.watermark_us == 30
    for wrong in (b"", b"other bytes", query.to_bytes()[:-3]):
        with pytest.raises(ValueError):
            MultiCuckoo.from_bytes(wrong)


def test_one_filter_passes_elements_of_other_windows() -> None:
    """What the rival costs: the element was there, but not then."""
    windows = [Grid(10, 10)] * 2
    rows = np.array([5], np.int64), hashed([1])
    ours, rival = MultiCuckoo(windows, 10), OneFilter(windows, 10)
    for query in (ours, rival):
        query.insert(1, *rows)
    assert not ours.candidates_in(50, hashed([1])).any() and rival.candidates_in(50, hashed([1])).all()
    assert rival.expire(40) == 1 and not rival.candidates_in(50, hashed([1])).any()


def test_wrong_parameters_are_refused() -> None:
    for size, slide in ((10, 11), (10, 0), (0, 0)):
        with pytest.raises(ValueError, match="slide_us"):
            MultiCuckoo([Grid(size, slide)] * 2, 10)
    with pytest.raises(ValueError, match="two streams"):
        MultiCuckoo([Grid(1, 1)], 10)
    with pytest.raises(ValueError, match="two streams"):
        MultiCuckoo([Grid(1, 1)] * 2, [10, 10, 10])
    query = MultiCuckoo([Grid(1, 1)] * 2, 10)
    with pytest.raises(ValueError, match="uint64"):
        query.insert(0, np.arange(3), np.arange(3))
