"""Windows split into shards: the same answers, books that do not depend on partitions or cuts, rates under the bound."""

import datetime
from decimal import Decimal
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.baselines.membership import BloomFilter
from latecomer.core.cuckoo import CuckooFilter
from latecomer.core.windows import Grid
from latecomer.jobs.bench import membership_spark as bench
from latecomer.lake.location import Lake
from latecomer.spark import membership
from latecomer.spark.membership import Filters, _all, _built, _packed, _passing
from latecomer.spark.repair import repair
from latecomer.spark.run import run

from tests.spark.test_membership import OWN, SAME, data, expected, found, query, sets
from tests.support.lakes import exported, load, whole_and_cut

ERRORS = ("candidates", "filter_bytes", "moved_bytes", "false_positive_rate")
"""Ledger columns that follow from which absent elements a filter lets through, and from its size."""


@pytest.fixture
def split(monkeypatch):
    """Windows of more than five rows are split; returns the shards of every set of filters that was built."""
    seen, made = [], membership.MembershipStage._filters

    def noting(self, rows):
        filters = made(self, rows)
        seen.append(filters)
        return filters

    monkeypatch.setattr(membership.MembershipStage, "_filters", noting)
    monkeypatch.setattr(membership, "SHARD_ROWS", 5)
    return seen


@pytest.mark.parametrize("window", [SAME, OWN])
def test_split_windows_answer_as_whole_ones(tmp_path, spark, monkeypatch, split, window):
    table, spec = data(7), query(window=window)
    tables = whole_and_cut(tmp_path, table, spec, (70,), stop=90)
    assert max(max(filters.shards.values(), default=1) for filters in split) >= 3
    assert all(key[2] < filters.shards.get(key[:2], 1) for filters in split for key in filters.data)
    if window == SAME:
        assert found(tables["results"]) == sets(expected(table, spec).final, spec)
    monkeypatch.setattr(membership, "SHARD_ROWS", 1 << 18)
    monkeypatch.setattr(membership, "_PIECE_BYTES", 10)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    try:
        lake = Lake(tmp_path / "other")
        load(lake, table, tmp_path)
        run(lake, spec, flush=True)
        repair(lake, spec, flush=True)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert not split[-1].shards
    for name, rows in exported(lake, spec).items():
        less = [column for column in rows.column_names if column not in (ERRORS if name == "ledger" else ())]
        assert rows.num_rows and rows.select(less).equals(tables[name].select(less)), name


def test_one_filter_notes_nothing_that_depends_on_the_cut(tmp_path, spark, split):
    tables = whole_and_cut(tmp_path, data(3), query("one_filter"), (60,), stop=80)
    assert any(filters.shards for filters in split) and tables["results"].num_rows
    assert sum(tables["ledger"]["tested"].to_pylist()) == sum(tables["ledger"]["candidates"].to_pylist()) == 0


def batches_of(place, window, hashes, cuts):
    """Rows as tasks get them, a batch per cut."""
    table = pa.table(
        {
            "place": pa.array(place, pa.int32()),
            "m": pa.array(window, pa.int64()),
            "hash": pa.array(np.asarray(hashes, np.uint64).view(np.int64)),
            "width": pa.array(np.asarray(hashes, np.uint64) % 90, pa.int32()),
        }
    )
    edges = [0, *sorted(min(cut, table.num_rows) for cut in cuts), table.num_rows]
    return [table.slice(a, b - a).combine_chunks().to_batches() for a, b in pairwise(edges)]


def filters_of(parts, shards, new, places, bloom=False):
    packs = [batch for part in parts for batch in _packed(part, shards)]
    built = [row for batch in _built(packs, new) for row in batch.to_pylist()]
    keys = [(row["place"], row["m"], row["shard"]) for row in built]
    assert keys == sorted(set(keys))
    return built, Filters(places, False, bloom, shards, {k: row["data"] for k, row in zip(keys, built, strict=True)})


rows_of = st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 2), st.integers(0, 2**64 - 1) | st.integers(0, 9)))


@given(rows_of, st.lists(st.integers(0, 40), max_size=4), st.integers(0, 9), st.booleans())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_filters_are_a_function_of_the_elements_alone(rows, cuts, order, bloom):
    """Whatever the tasks: the same bytes and books, and every element of all streams passes everywhere (oracle: sets)."""
    rows = [*rows, (0, 0, 3), (1, 0, 3), (2, 0, 3), (0, 1, 2**64 - 1)]
    shards = {(0, 0): 3, (1, 0): 2, (2, 1): 4}
    new = BloomFilter if bloom else CuckooFilter
    shuffled = [rows[i] for i in np.random.default_rng(order).permutation(len(rows))]
    built, filters = filters_of(batches_of(*zip(*rows, strict=True), []), shards, new, 3, bloom)
    again, _ = filters_of(batches_of(*zip(*shuffled, strict=True), cuts), shards, new, 3, bloom)
    assert built == again
    sets_of = {(p, m): {h for q, n, h in rows if (q, n) == (p, m)} for p, m, _ in rows}
    for (place, window), inside in sets_of.items():
        own = [row for row in built if (row["place"], row["m"]) == (place, window)]
        assert sum(row["rows"] for row in own) == len(inside)
        assert sum(row["bytes"] for row in own) == sum(h % 90 for h in inside)
    (part,) = batches_of(*zip(*rows, strict=True), [])
    part = [b.append_column("element", b["hash"]) for b in part]
    passed = {(r["place"], r["m"], r["element"] % 2**64) for b in _passing(part, filters) for r in b.to_pylist()}
    wanted = {(p, m, h) for p, m, h in rows if all(h in sets_of.get((q, m), ()) for q in range(3))}
    assert wanted <= passed <= set(rows) and (0, 0, 3) in passed


@pytest.mark.parametrize("bloom", [False, True])
def test_rate_of_split_filters_is_under_the_bound(bloom):
    """Ten seeds, eight shards: absent elements that pass, with a margin of four sigma of a binomial."""
    bound, wrong, asked = 2 * 4 / 2**12, 0, 0
    new = partial(BloomFilter, false_positive_rate=bound) if bloom else CuckooFilter
    for seed in range(10):
        rng = np.random.default_rng(seed)
        inside, absent = (rng.integers(0, 2**64, 40_000, dtype=np.uint64) for _ in range(2))
        parts = batches_of(np.ones(40_000), np.zeros(40_000), inside, [9_000])
        _, filters = filters_of(parts, {(1, 0): 8}, new, 2, bloom)
        assert len(filters.data) == 8
        for hashes, all_pass in ((inside, True), (absent, False)):
            (batches,) = batches_of(np.zeros(40_000), np.zeros(40_000), hashes, [])
            passed = sum(
                b.num_rows for b in _passing([b.append_column("element", b["hash"]) for b in batches], filters)
            )
            assert not all_pass or passed == 40_000
        wrong, asked = wrong + passed, asked + 40_000
    assert 0 < wrong / asked <= bound * (1.1 if bloom else 1) + 4 * (bound / asked) ** 0.5


ELEMENTS = {
    "string": (["Zürich", "日本 🚲", "", "x" * 200], ["zürich", "日本", " ", "x" * 199]),
    "binary": ([b"\x00", b"", b"\xff\xfe", bytes(300)], [b"\x00\x00", b"a", b"\xfe", bytes(299)]),
    "bigint": ([0, -1, 2**63 - 1, -(2**63)], [1, -2, 2**62, 7]),
    "double": ([0.0, float("inf"), 1.5, 1e-320], [-1.5, float("-inf"), 2.0, 0.1]),
    "boolean": ([True], [False]),
    "date": ([datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)], [datetime.date(1970, 1, 1)]),
    "decimal(20,3)": ([Decimal("1.500"), Decimal("-12345678901234567.125")], [Decimal("1.501")]),
}


@pytest.mark.parametrize("name", ["mcf", "bloom", "one_filter"])
def test_every_type_of_element(spark, split, name):
    """What is in both streams is confirmed, whatever its type; zero has two signs and is one element."""
    for kind, (both, single) in ELEMENTS.items():
        stage = object.__new__(membership.MembershipStage)
        stage.spec, stage.spark, stage.extras = query(name), spark, {}
        stage.__dict__ |= {"kind": kind, "side_of": [0, 1], "grid": Grid(4_000_000, 2_000_000)}
        sides = [(both + single) * 3, [-x if kind == "double" and x == 0 else x for x in both]]
        roles = [spark.createDataFrame([(5, x) for x in side], f"m bigint, element {kind}") for side in sides]
        found = stage._confirmed(roles).select("element").collect()
        assert len(found) == len(both) and {_plain(row[0]) for row in found} == set(both), kind
        for own in stage.extras.values():
            assert (own["tested"], own["confirmed"]) == (len(both) + len(single), len(both))
        stage.release()
    assert any(filters.shards for filters in split)


def _plain(value):
    return bytes(value) if isinstance(value, bytearray) else value


def test_sixty_four_streams_fill_the_sign_bit(spark):
    from pyspark.sql import functions as F

    for places in (2, 63, 64):
        rows = spark.range(places).select(
            F.call_function("shiftleft", F.lit(1).cast("bigint"), F.col("id").cast("int")).alias("bit")
        )
        assert rows.agg(F.bit_or("bit")).collect()[0][0] == _all(places)


def test_fewer_bytes_than_an_exact_semi_join(tmp_path, spark):
    """Spark's own figures, few rows: the benchmark asks the question at a size where filters are worth it."""
    found = bench.moved_bytes(tmp_path, lambda line: None, 30_000, shared=(1,))["of_exact"]
    assert found["mcf"]["1%"] < 0.4 < found["Spark's Bloom filter join"]["1%"]
    assert (tmp_path / "membership_moved.png").is_file()
    assert spark.conf.get("spark.sql.autoBroadcastJoinThreshold") != "-1"
