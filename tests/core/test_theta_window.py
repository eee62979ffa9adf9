"""A window's theta join as Arrow tables: rows, new rows only, counts and ranges, against nested loops."""

import itertools
import operator

import numpy as np
import pyarrow as pa
import pytest
from latecomer.core.theta_window import Operand, WindowJoin, expand, united

OPS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}


def table(seed, sides, n=40):
    rng = np.random.default_rng(seed)
    side = rng.integers(0, sides, n)
    values = [None if v == 0 else float("nan") if v == 1 else float(v) for v in rng.integers(0, 12, n)]
    words = [None if v == 0 else "äbz"[v % 3] * (v % 4) for v in rng.integers(0, 12, n)]
    return pa.table(
        {
            "side": pa.array(side, pa.int32()),
            "seq": pa.array(rng.permutation(n), pa.int64()),
            "v": pa.array(values),
            "w": pa.array(rng.integers(0, 12, n)),
            "s": pa.array(words),
            "new": pa.array(np.where(rng.random(n) < 0.2, rng.integers(0, 3, n), -1)),
        }
    )


def brute(rows, join):
    parts = [[r for r in rows.to_pylist() if r["side"] == side] for side in join.sides]
    for chosen in itertools.product(*parts):
        pairs = [(chosen[a.alias][a.column], op, chosen[b.alias][b.column]) for a, op, b in join.conditions]
        if all(x is not None and y is not None and OPS[op](x, y) for x, op, y in pairs):
            yield chosen


JOINS = [
    WindowJoin(("r", "s"), (0, 1), ((Operand(0, "v"), ">", Operand(1, "w")),), (("v",), ("s",))),
    WindowJoin(("r", "s"), (0, 0), ((Operand(0, "v"), "<", Operand(1, "v")), (Operand(0, "w"), ">", Operand(1, "w"))), ((), ())),
    WindowJoin(("r", "s"), (0, 1), ((Operand(0, "s"), "<=", Operand(1, "s")), (Operand(0, "w"), "=", Operand(1, "w"))), ((), ())),
    WindowJoin(("r", "s", "l"), (0, 1, 2), ((Operand(0, "v"), ">", Operand(1, "w")), (Operand(1, "w"), ">=", Operand(2, "v"))), ((), (), ())),
    WindowJoin(("r", "s", "l"), (0, 1, 1), ((Operand(0, "v"), ">", Operand(1, "w")), (Operand(1, "w"), ">=", Operand(2, "w")), (Operand(2, "v"), "<", Operand(0, "w"))), ((), (), ())),
    WindowJoin(("r", "s"), (0, 1), ((Operand(0, "v"), ">", Operand(1, "w")), (Operand(0, "w"), "<", Operand(1, "w")), (Operand(0, "w"), "<=", Operand(1, "v"))), ((), ())),
]  # fmt: skip


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("seed", range(4))
def test_equals_nested_loops(join, seed):
    rows = table(seed, max(join.sides) + 1)
    wanted = sorted(tuple(r["seq"] for r in chosen) for chosen in brute(rows, join))
    names = [f"{i}_seq" for i in range(len(join.aliases))]
    found = list(join.rows(rows))
    got = (
        sorted(zip(*(np.concatenate([p[n].to_numpy() for p in found]).tolist() for n in names), strict=True))
        if found
        else []
    )
    assert got == wanted and join.count(rows) == len(wanted)
    opened = expand(join.ranges(rows), join.aliases)
    assert sorted(zip(*(opened[a].tolist() for a in join.aliases), strict=True)) == wanted
    fresh = sorted(
        (*(r["seq"] for r in chosen), max(r["new"] for r in chosen))
        for chosen in brute(rows, join)
        if max(r["new"] for r in chosen) >= 0
    )
    found = list(join.rows(rows, "new"))
    got = [row for p in found for row in zip(*(p[n].to_pylist() for n in [*names, "_new"]), strict=True)]
    assert sorted(got) == fresh


def seqs_of(join, tables):
    names = [f"{i}_seq" for i in range(len(join.aliases))]
    return sorted(row for p in tables for row in zip(*(p[n].to_pylist() for n in names), strict=True))


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize(("seed", "partitions"), [(0, 1), (1, 3), (2, 8), (3, 100)])
def test_pieces_unite_to_the_whole_without_duplicates(join, seed, partitions):
    rows = table(seed, max(join.sides) + 1)
    whole, fresh, pieces = (
        seqs_of(join, join.rows(rows)),
        seqs_of(join, join.rows(rows, "new")),
        list(join.pieces(rows, partitions)),
    )
    assert seqs_of(join, (found for part, own in pieces for found in part.rows(own))) == whole
    assert seqs_of(join, (found for part, own in pieces for found in part.rows(own, "new"))) == fresh
    assert sum(part.count(own) for part, own in pieces) == join.count(rows) == len(whole)
    ranges = [part.ranges(own) for part, own in pieces]
    opened = [expand(found, join.aliases) for found in ranges]
    assert sorted(row for o in opened for row in zip(*(o[a].tolist() for a in join.aliases), strict=True)) == whole
    if len(join.aliases) == 2 and len(join.conditions) < 3:
        one = expand(united(ranges), join.aliases)
        assert sorted(zip(*(one[a].tolist() for a in join.aliases), strict=True)) == whole
    if len(whole) > 20 and partitions > 1 and join.conditions[0][1] != "=":
        assert len(pieces) > 1 and any(len(part.conditions) < len(join.conditions) for part, _ in pieces)


def test_pieces_with_filters_are_not_united():
    join = JOINS[-1]
    ranges = [part.ranges(own) for part, own in join.pieces(table(1, 2), 3)]
    with pytest.raises(ValueError, match="expand each piece"):
        united(ranges)
    with pytest.raises(ValueError, match="several edges"):
        united([part.ranges(own) for part, own in JOINS[3].pieces(table(1, 3), 3)])
    assert united([]).num_rows == 0


VALUES = {
    "strings": pa.array(["b", None, "a", "é", "b", "", "ab"]),
    "timestamps": pa.array([5, None, 3, 9, 5, -1, 4], pa.timestamp("us", "UTC")),
    "floats": pa.array([0.5, None, float("nan"), -0.0, 0.0, float("inf"), 0.5]),
    "one value": pa.array([7] * 7),
    "only null": pa.nulls(7, pa.float64()),
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", VALUES)
def test_every_condition_over_every_kind_of_value(kind, op):
    """Also the mirror, and every form of the answer; null and NaN match nothing, not even themselves."""
    values = VALUES[kind]
    rows = pa.table({"side": pa.array([0, 0, 0, 0, 1, 1, 1], pa.int32()), "seq": range(7), "v": values})
    mirror = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}[op]
    for sides in ((0, 1), (0, 0)):
        one = WindowJoin(("r", "s"), sides, ((Operand(0, "v"), op, Operand(1, "v")),), ((), ()))
        other = WindowJoin(("r", "s"), sides, ((Operand(1, "v"), mirror, Operand(0, "v")),), ((), ()))
        want = sorted(tuple(r["seq"] for r in chosen) for chosen in brute(rows, one))
        for join in (one, other):
            assert seqs_of(join, join.rows(rows)) == want and join.count(rows) == len(want)
            assert seqs_of(join, (found for part, own in join.pieces(rows, 3) for found in part.rows(own))) == want


@pytest.mark.parametrize("side", [0, 1, 2])
def test_empty_sides(side):
    rows = table(3, 2)
    rows = rows.filter(pa.array(rows["side"].to_numpy() == side))
    join = JOINS[0]
    assert list(join.rows(rows)) == [] and join.count(rows) == 0 and list(join.pieces(rows)) == []
    assert join.ranges(rows).num_rows == 0 and expand(join.ranges(rows), join.aliases)["r"].tolist() == []
