"""Products, sums and negations of columns of few bits do not overflow in any kind; the columns themselves keep their types."""

import numpy as np
import pyarrow as pa
import pytest
from latecomer.lake import views
from latecomer.quality.checks import check
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.loading import parse_query

from tests.support.lakes import load

QUERIES = {
    "aggregate": "streams: {s: a}\nwindow: 10 s\nselect: {x: sum(i * i), n: count(-s), m: max(abs(b) * s)}\n"
    "where: i + i > 0\nstrategy: {name: k_slack, slack: 1 s}\n",
    "topk": "streams: {s: a}\nwindow: 10 s\nscore: i * i\nk: 1\nselect: [i, s * s as x]\nstrategy: none\n",
    "theta_join": "streams: {r: a, t: b}\nwindow: 10 s\nconditions: [r.i * r.i = t.i * t.i]\nselect: [r.b, r.i * t.i as x]\n",
    "join": "streams: {r: a, t: b}\nwindow: 1 s\nwhere: r.i * t.i = coalesce(r.i, t.i) * t.i\nselect: [r.i, r.i * t.i as x]\n"
    "strategy: exact\n",
}
SQUARE = 50_000**2


@pytest.mark.parametrize("kind", QUERIES)
def test_products_of_narrow_columns_are_found(lake, tmp_path, kind):
    columns = {
        "stream": ["a", "b"] * 3,
        "event_ts": np.arange(6) * 100_000 + 1_700_000_000_000_000,
        "i": pa.array([50_000] * 6, pa.int32()),
        "s": pa.array([-(2**15)] * 6, pa.int16()),
        "b": pa.array([-(2**7)] * 6, pa.int8()),
    }
    load(lake, pa.table(columns), tmp_path)
    spec = parse_query(f"name: q\nkind: {kind}\n{QUERIES[kind]}")
    run(lake, spec, flush=True)
    repair(lake, spec, flush=True)
    found = views.results(lake, spec)
    first = found.to_pylist()[0]
    if kind == "aggregate":
        assert (first["x"], first["n"], first["m"]) == (3 * SQUARE, 3, -(2**22))
    elif kind == "topk":
        assert (first["score"], first["x"], found["i"].type) == (SQUARE, 2**30, pa.int32())
    else:
        assert found.num_rows == 9 and first["x"] == SQUARE
        assert found["r_i" if kind == "join" else "r_b"].type == (pa.int32() if kind == "join" else pa.int8())
    assert check(lake, spec, audit=5).success
