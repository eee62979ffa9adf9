"""A window's theta join as Arrow tables: rows, new rows only, counts and ranges, against nested loops."""

import itertools
import operator

import numpy as np
import pyarrow as pa
import pytest
from latecomer.core.theta_window import Operand, WindowJoin, expand

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
