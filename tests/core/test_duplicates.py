"""Duplicate rows in the tables of results are counted, in lakes that are written row by row. Starts no Spark."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from latecomer.lake.lake import Lake
from latecomer.quality import duplicates
from latecomer.specs.loading import parse_query

WINDOWED = "name: q\nkind: {kind}\nstreams: {{s: a}}\nwindow: 1 s\nquality: {quality}\n{rest}"
SPECS = {
    "join": "name: q\nkind: join\nstreams: {l: a, r: b}\nwindow: 1 s\nquality: {recall: 0.9, period: 10 s}\n",
    "aggregate": WINDOWED.format(
        kind="aggregate",
        quality="{error: 0.1, probability: 0.9, period: 10 s}",
        rest="group_by: [g]\nselect: {n: count()}\n",
    ),
    "topk": WINDOWED.format(
        kind="topk", quality="{hit_rate: 0.9, period: 10 s}", rest="score: v\nk: 2\ngroup_by: [g]\n"
    ),
    "ranges": "name: q\nkind: theta_join\nstreams: {r: a, s: b}\nwindow: 1 s\nconditions: [r.v < s.v]\nemit: ranges\n",
}
WITHIN = {"on_time": pc.field("published_seq") <= 100, "corrections": pc.field("published_seq") <= 50}


def window(start):
    return {"window_start": pa.scalar(start, pa.timestamp("us", tz="UTC")).as_py(), "window_end": None}


@pytest.fixture(autouse=True, params=[duplicates.ROWS_AT_ONCE, 2], ids=["at once", "in passes"])
def rows_at_once(request, monkeypatch):
    monkeypatch.setattr(duplicates, "ROWS_AT_ONCE", request.param)


def stored(folder, kind, **tables):
    lake, spec = Lake(folder / "lake"), parse_query(SPECS[kind])
    for area, rows in tables.items():
        names = dict.fromkeys(name for row in rows for name in row)
        shape = {name: [row.get(name) for row in rows] for name in names}
        table = pa.table(
            {n: pa.array(v, pa.timestamp("us", tz="UTC") if "window" in n else None) for n, v in shape.items()}
        )
        for part in range(0, len(rows), 2):  # files of two rows
            write_deltalake(lake.table(area, "q").uri, table.slice(part, 2), mode="append")
    return duplicates.count_results(lake, spec, WITHIN)


def pair(left, right, published=1):
    return {"l_seq": left, "r_seq": right, "published_seq": published, "revision": 0}


def answer(start, group, revision, published=1):
    return window(start) | {"g": group, "revision": revision, "published_seq": published}


def test_a_pair_on_time_and_again_as_a_correction_is_a_duplicate(tmp_path):
    on_time = [pair(1, 2), pair(2, 1), pair(3, 4), pair(5, 6, published=101)]
    results = stored(tmp_path, "join", on_time=on_time, corrections=[pair(3, 4), pair(5, 6), pair(1, 2), pair(1, 2)])
    assert results.rows == {"on_time": 3, "corrections": 4} and results.surplus == 3
    assert {tuple(row.values()) for row in results.duplicates.to_pylist()} == {(3, 4), (1, 2)}
    assert results.invariants == [{"law": "results = on time + repaired", "left": 4, "right": 7}]


def test_uncommitted_rows_do_not_count(tmp_path):
    results = stored(
        tmp_path, "join", on_time=[pair(1, 2), pair(1, 2, published=101)], corrections=[pair(1, 2, published=51)]
    )
    assert results.rows == {"on_time": 1, "corrections": 0} and results.surplus == 0 and not results.duplicates.num_rows


def test_a_query_without_tables_has_no_rows(tmp_path):
    results = stored(tmp_path, "join")
    assert results.rows == {"on_time": 0, "corrections": 0} and results.surplus == 0
    assert results.invariants == [{"law": "results = on time + repaired", "left": 0, "right": 0}]


def test_each_revision_is_stored_once_and_none_is_left_out(tmp_path):
    on_time = [answer(0, "x", 0), answer(0, None, 0), answer(1, "x", 0)]
    good = stored(tmp_path / "1", "aggregate", on_time=on_time, corrections=[answer(0, "x", 1), answer(0, "x", 2)])
    assert good.surplus == 0 and good.invariants[0]["left"] == good.invariants[0]["right"] == 5
    gap = stored(tmp_path / "2", "aggregate", on_time=on_time, corrections=[answer(0, "x", 2)])
    assert gap.surplus == 0 and (gap.invariants[0]["left"], gap.invariants[0]["right"]) == (5, 4)
    twice = stored(tmp_path / "3", "aggregate", on_time=on_time, corrections=[answer(0, None, 0)])
    assert twice.surplus == 1 and twice.duplicates.to_pylist()[0]["g"] is None
    assert (twice.invariants[0]["left"], twice.invariants[0]["right"]) == (3, 4)


@pytest.mark.parametrize(("ranks", "even"), [((1, 2), True), ((1, 3), False), ((2,), False)])
def test_ranks_count_up_from_one(tmp_path, ranks, even):
    rows = [answer(0, "x", 0) | {"rank": rank} for rank in ranks] + [answer(0, "y", 0) | {"rank": 1}]
    results = stored(
        tmp_path, "topk", on_time=rows, corrections=[answer(0, "y", 1) | {"rank": rank} for rank in (1, 2)]
    )
    assert results.surplus == 0 and (results.invariants[0]["left"] == results.invariants[0]["right"]) == even


def test_another_answer_of_a_window_may_repeat_rows_but_one_answer_may_not(tmp_path):
    row = window(0) | {"edge": 0, "part": 0, "position": 1, "seq": 7, "first": 0, "revision": 0}
    good = stored(
        tmp_path / "1", "ranges", on_time=[row | {"published_seq": 9}], corrections=[row | {"published_seq": 12}]
    )
    assert good.surplus == 0 and good.invariants == []
    assert stored(tmp_path / "2", "ranges", on_time=[row | {"published_seq": 9}] * 3).surplus == 2


def test_equal_hashes_of_different_rows_are_no_duplicates(tmp_path, monkeypatch):
    real = duplicates.row_keys.hashes
    monkeypatch.setattr(duplicates.row_keys, "hashes", lambda batch, keys: real(batch, keys) % np.uint64(3))
    rows = [pair(n, n) for n in range(40)]
    results = stored(tmp_path, "join", on_time=[*rows, pair(7, 7)])
    assert results.surplus == 1 and results.duplicates.to_pylist() == [{"l_seq": 7, "r_seq": 7}]
