"""A window's theta join as Arrow tables: rows, new rows only, counts and ranges, against nested loops."""

import itertools
import operator
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from latecomer.baselines import theta_join as baselines
from latecomer.core.theta_join.window_task import Operand, WindowJoin, expand

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


def join_of(sides, *conditions, payload=None):
    """The join of one alias per side; a condition is (alias, column, op, alias, column)."""
    aliases = ("r", "s", "l")[: len(sides)]
    operands = tuple((Operand(a, x), op, Operand(b, y)) for a, x, op, b, y in conditions)
    return WindowJoin(aliases, sides, operands, payload or ((),) * len(sides))


JOINS = [
    join_of((0, 1), (0, "v", ">", 1, "w"), payload=(("v",), ("s",))),
    join_of((0, 0), (0, "v", "<", 1, "v"), (0, "w", ">", 1, "w")),
    join_of((0, 1), (0, "s", "<=", 1, "s"), (0, "w", "=", 1, "w")),
    join_of((0, 1, 2), (0, "v", ">", 1, "w"), (1, "w", ">=", 2, "v")),
    join_of((0, 1, 1), (0, "v", ">", 1, "w"), (1, "w", ">=", 2, "w"), (2, "v", "<", 0, "w")),
    join_of((0, 1), (0, "v", ">", 1, "w"), (0, "w", "<", 1, "w"), (0, "w", "<=", 1, "v")),
]


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("seed", range(4))
def test_equals_nested_loops(join, seed):
    rows = table(seed, max(join.sides) + 1)
    expected = sorted(tuple(r["seq"] for r in chosen) for chosen in brute(rows, join))
    names = [f"{i}_seq" for i in range(len(join.aliases))]
    found = list(join.rows(rows))
    got = (
        sorted(zip(*(np.concatenate([p[n].to_numpy() for p in found]).tolist() for n in names), strict=True))
        if found
        else []
    )
    assert got == expected and join.count(rows) == len(expected)
    opened = expand(join.ranges(rows), join.aliases)
    assert sorted(zip(*(opened[a].tolist() for a in join.aliases), strict=True)) == expected
    fresh = sorted(
        (*(r["seq"] for r in chosen), max(r["new"] for r in chosen))
        for chosen in brute(rows, join)
        if max(r["new"] for r in chosen) >= 0
    )
    found = list(join.rows(rows, "new"))
    got = [row for p in found for row in zip(*(p[n].to_pylist() for n in [*names, "_new"]), strict=True)]
    assert sorted(got) == fresh
    grown = Counter(max(r["new"] for r in chosen) for chosen in brute(rows, join))
    assert grew(join, rows) == {(0, new): count for new, count in grown.items()}


@pytest.mark.parametrize("join", [JOINS[0], JOINS[3]])
def test_a_rivals_increments(join):
    rival, rows = replace(join, method=baselines.cfs), table(5, max(join.sides) + 1)
    assert grew(rival, rows) == grew(join, rows) != {}


def grew(join, rows, key=None):
    """Results by key and greatest value, each pair once."""
    windows, news, counts = join.increments(rows, "new", key)
    found = {(window, new): n for window, new, n in zip(windows.tolist(), news.tolist(), counts, strict=True)}
    assert len(found) == len(counts) and list(found) == sorted(found)
    return found


def seqs_of(join, tables):
    names = [f"{i}_seq" for i in range(len(join.aliases))]
    return sorted(row for p in tables for row in zip(*(p[n].to_pylist() for n in names), strict=True))


def cut_at(join, rows, value):
    """Yield the join's pieces for partitions below and from `value` on; the planned condition holds between them."""
    left, op, right = join.conditions[join.planned_condition]

    def part(alias, column, upper):
        chosen = [r for r in rows.to_pylist() if r["side"] == join.sides[alias]]
        if upper is not None:
            valid = [r for r in chosen if r[column] is not None and r[column] == r[column]]  # not NaN
            chosen = [r for r in valid if (r[column] >= value) == upper]
        return [r | {"side": alias} for r in chosen]

    for whole, upper, lower in [(False, False, False), (False, True, True), (True, op[0] == ">", op[0] == "<")]:
        if whole and op == "=":
            continue
        chosen = {left.alias: (left.column, upper), right.alias: (right.column, lower)}
        given = [r for alias in range(len(join.aliases)) for r in part(alias, *chosen.get(alias, (None, None)))]
        yield join.for_piece(whole), pa.Table.from_pylist(given, rows.schema)


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize(("seed", "value"), [(0, 5), (1, 1), (2, 8), (3, 100)])
def test_pieces_unite_to_the_whole_without_duplicates(join, seed, value):
    rows = table(seed, max(join.sides) + 1)
    pieces = list(
        cut_at(join, rows, value if join.conditions[join.planned_condition][0].column != "s" else "b" * value)
    )
    whole, fresh = seqs_of(join, join.rows(rows)), seqs_of(join, join.rows(rows, "new"))
    assert seqs_of(join, (found for part, own in pieces for found in part.rows(own))) == whole
    assert seqs_of(join, (found for part, own in pieces for found in part.rows(own, "new"))) == fresh
    assert sum(part.count(own) for part, own in pieces) == join.count(rows) == len(whole)
    if join.ranges_can_unite:
        one = expand(pa.concat_tables([part.ranges(own, i) for i, (part, own) in enumerate(pieces)]), join.aliases)
        assert sorted(zip(*(one[a].tolist() for a in join.aliases), strict=True)) == whole
    assert join.ranges_can_unite == (join in JOINS[:3])
    assert sum((Counter(grew(part, own)) for part, own in pieces), Counter()) == grew(join, rows)


def test_the_planned_condition_is_an_equality_of_the_first_two_streams_compared():
    assert [join.planned_condition for join in JOINS] == [0, 0, 1, 0, 0, 0]
    assert [len(join.for_piece(True).conditions) - len(join.conditions) for join in JOINS] == [-1] * 6


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


@pytest.mark.parametrize("side", [0, 1, 2])
def test_empty_sides(side):
    rows = table(3, 2)
    rows = rows.filter(pa.array(rows["side"].to_numpy() == side))
    join = JOINS[0]
    assert list(join.rows(rows)) == [] and join.count(rows) == 0
    assert join.ranges(rows).num_rows == 0 and expand(join.ranges(rows), join.aliases)["r"].tolist() == []


def test_filters_of_a_window_without_results_expand_to_none():
    """Of the edge that closes a cycle, and of one with three conditions."""
    columns = {"seq": [0, 1, 2], "side": [0, 1, 2], "a": [5, 4, 9], **{name: [1, 1, 2] for name in "bcd"}}
    pairs = [(0, "a", 1), (1, "a", 2), (0, "b", 2), (0, "c", 2), (0, "d", 2)]
    conditions = tuple((Operand(left, name), "<", Operand(right, name)) for left, name, right in pairs)
    join = WindowJoin(("r", "s", "t"), (0, 1, 2), conditions, ((), (), ()))
    found = join.ranges(pa.table(columns))
    assert found.num_rows and {alias: rows.tolist() for alias, rows in expand(found, join.aliases).items()} == {
        "r": [],
        "s": [],
        "t": [],
    }


@pytest.mark.parametrize(
    "join", [*JOINS, replace(JOINS[0], aliases=("r", "s", "l"), sides=(0, 1, 1), payload=((), (), ("s",)))]
)
def test_windows_that_share_a_join_give_what_each_gives_alone(join):
    """Five windows in one table, one without a row of the first stream; also a stream that no condition names."""
    parts = [table(seed, max(join.sides) + 1, 18) for seed in range(5)]
    parts[3] = parts[3].filter(pc.not_equal(parts[3]["side"], join.sides[0]))
    windows = np.repeat(np.arange(5), [part.num_rows for part in parts])
    order = np.random.default_rng(1).permutation(len(windows))
    rows = pa.concat_tables(parts).append_column("_at", pa.array(windows)).take(pa.array(order))
    both = join.for_many_windows("_at")
    assert both.counts_by_window(rows, "_at", 6).tolist() == [*(join.count(part) for part in parts), 0]
    alone = {(w, new): count for w, part in enumerate(parts) for (_, new), count in grew(join, part).items()}
    assert grew(both, rows, "_at") == alone and any(new >= 0 for _, new in alone)
    for new in (None, "new"):
        names = [f"{place}_seq" for place in range(len(join.aliases))]
        wanted = {
            (w, *row) for w, part in enumerate(parts) for found in join.rows(part, new) for row in seqs(found, names)
        }
        got = [row for found in both.rows(rows, new) for row in seqs(found, ["0__at", *names])]
        assert wanted and sorted(got) == sorted(wanted)


def seqs(found, names):
    return zip(*(found[name].to_pylist() for name in names), strict=True)
