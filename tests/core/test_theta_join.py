"""Theta join: core against brute force (oracle), and its forms and the baselines against one another (differential)."""

from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.baselines import theta_join as baselines
from latecomer.core.theta_join import join as theta
from latecomer.core.theta_join import kernels as kernels
from latecomer.core.theta_join.edges import Comparison, Query
from latecomer.core.theta_join.encode import encode, float_codes, rows_within, stable_sort
from latecomer.core.theta_join.plan import DIAGONAL, NONE, WHOLE, plan_join
from latecomer.core.theta_join.ranks import Stats
from latecomer.reference import theta_join as reference

OPS = ("<", "<=", ">", ">=", "=")
MIRRORS = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
SETTINGS = settings(deadline=None, derandomize=True, max_examples=60)
CHAIN3 = [(0, 1), (1, 2)]
CHAIN4 = [(0, 1), (1, 2), (2, 3)]
GRAPHS = {
    "chain 3": CHAIN3,
    "chain 4": CHAIN4,
    "chain out of order": [(0, 2), (2, 1), (1, 3)],
    "star at 0": [(0, 1), (0, 2), (0, 3)],
    "star at 3": [(3, 0), (3, 1), (3, 2)],
    "star at 2": [(2, 0), (1, 2), (2, 3)],
    "triangle": [(0, 1), (1, 2), (2, 0)],
    "cycle 4": [*CHAIN4, (3, 0)],
    "clique 4": [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)],
    "not connected": [(0, 1), (2, 3)],
}


def column(rng, size, shape):
    """A column full of ties; the shapes are what a join may meet."""
    if shape == "int":
        return rng.integers(-3, 4, size)
    if shape == "constant":
        return np.full(size, 2)
    if shape == "skew":
        return np.minimum(rng.geometric(0.6, size), 6)
    values = rng.integers(-3, 4, size) / 2
    values[rng.random(size) < 0.2] = np.nan
    if shape == "odd" and size:
        values[rng.integers(0, size)] = rng.choice([np.inf, -np.inf, -0.0, 1e300, -5e-324])
    return values


SHAPES = ("int", "constant", "skew", "float", "odd")


def streams_of(seed, sizes, columns=3):
    rng = np.random.default_rng(seed)
    return [[column(rng, size, rng.choice(SHAPES)) for _ in range(columns)] for size in sizes]


def tuples(columns):
    assert all(len(c) == len(columns[0]) and c.dtype == np.int64 for c in columns)
    return list(zip(*(c.tolist() for c in columns), strict=True))


def check_all(streams, conditions, partitions=3, chunk=5):
    """Every form of the answer against brute force."""
    want = reference.rows(streams, conditions)
    assert theta.count(streams, conditions) == len(want)
    assert tuples(theta.rows(streams, conditions, partitions=partitions)) == want
    assert tuples(theta.expand(theta.ranges(streams, conditions))) == want
    for of in range(len(streams)):
        expected = np.bincount([w[of] for w in want], minlength=len(streams[of][0])) if want else 0
        assert np.array_equal(theta.matches(streams, conditions, of), np.zeros(len(streams[of][0]), int) + expected)
    chunks = [tuples(c) for c in theta.iter_rows(streams, conditions, chunk)]
    assert all(0 < len(c) <= chunk for c in chunks)
    assert [row for c in chunks for row in c] == want
    return want


# --- oracle -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", SHAPES)
@pytest.mark.parametrize("op", OPS)
def test_oracle_every_op_and_its_mirror(op, left):
    rng = np.random.default_rng([OPS.index(op), SHAPES.index(left)])
    found = 0
    for right in SHAPES:
        streams = [[column(rng, 17, left)], [column(rng, 13, right)]]
        one = check_all(streams, [Comparison(0, 0, op, 1, 0)])
        other = check_all(streams, [Comparison(1, 0, MIRRORS[op], 0, 0)])
        assert one == other
        found += len(one)
    assert found > 0


two_way = st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 2), st.integers(0, 2), st.booleans()), max_size=5)


@SETTINGS
@given(st.integers(0, 10**9), st.integers(0, 14), st.integers(0, 14), two_way, st.integers(1, 6), st.integers(1, 30))
def test_oracle_two_streams_any_conjunction(seed, n, m, drawn, partitions, chunk):
    conditions = [
        Comparison(1, b, MIRRORS[op], 0, a) if turned else Comparison(0, a, op, 1, b) for op, a, b, turned in drawn
    ]
    check_all(streams_of(seed, (n, m)), conditions, partitions, chunk)


@SETTINGS
@given(st.integers(0, 10**9), st.integers(0, 14), st.integers(0, 14), two_way, st.integers(1, 9))
def test_oracle_latest_counts_every_result_at_its_greatest_rank(seed, n, m, drawn, ranks):
    conditions = [
        Comparison(1, b, MIRRORS[op], 0, a) if turned else Comparison(0, a, op, 1, b) for op, a, b, turned in drawn
    ]
    streams, rng = streams_of(seed, (n, m)), np.random.default_rng(seed)
    rank = [rng.integers(0, ranks, size) for size in (n, m)]
    expected = [np.zeros(n, int), np.zeros(m, int)]
    for i, j in reference.rows(streams, conditions):
        of, row = (0, i) if rank[0][i] >= rank[1][j] else (1, j)
        expected[of][row] += 1
    counts = theta.latest(streams, conditions, rank)
    assert all(np.array_equal(count, want) for count, want in zip(counts, expected, strict=True))


def test_latest_takes_two_streams():
    with pytest.raises(ValueError, match="3 streams"):
        theta.latest([[np.arange(2)]] * 3, [], [np.arange(2)] * 3)


@pytest.mark.parametrize("graph", GRAPHS)
@settings(deadline=None, derandomize=True, max_examples=12)
@given(data=st.data())
def test_oracle_many_streams(graph, data):
    links = GRAPHS[graph]
    number = max(max(link) for link in links) + 1
    sizes = data.draw(st.lists(st.integers(0, 6), min_size=number, max_size=number))
    streams = streams_of(data.draw(st.integers(0, 10**9)), sizes)
    choice = st.tuples(st.sampled_from(OPS), st.integers(0, 2), st.integers(0, 2))
    conditions = [Comparison(a, x, op, b, y) for a, b in links for op, x, y in [data.draw(choice)]]
    extra = data.draw(st.lists(st.tuples(st.sampled_from(links), choice), max_size=3))
    conditions += [Comparison(a, x, op, b, y) for (a, b), (op, x, y) in extra]
    check_all(streams, conditions, chunk=data.draw(st.integers(1, 9)))


def test_oracle_empty_and_unmatched_sides():
    some, none = [np.array([1, 2, 3])], [np.array([], np.int64)]
    for streams in ([some, none], [none, some], [none, none], [some, [np.array([9, 9])]]):
        assert check_all(streams, [Comparison(0, 0, ">", 1, 0)]) == []
    assert check_all([some, [np.array([np.nan, np.nan])]], [Comparison(0, 0, "<=", 1, 0)]) == []


@pytest.mark.filterwarnings("error")
def test_oracle_large_numbers_compare_as_sql_does():
    whole = np.array([2**53, 2**53 + 1, 2**63 - 1, -(2**63) + 1, -1, 0], np.int64)
    real = np.array([2.0**53, 2.0**63, -(2.0**63), np.inf, np.inf, -np.inf, -1e-300, -2e-300, 0.5])
    for op in OPS:
        check_all([[whole], [real]], [Comparison(0, 0, op, 1, 0)])
        check_all([[whole], [whole[::-1] - 1]], [Comparison(0, 0, op, 1, 0)])
    assert theta.count([[whole], [real]], [Comparison(0, 0, "=", 1, 0)]) == 4


def test_oracle_levels_on_a_size_with_all_depths():
    for size in (1, 2, 3, 4, 7, 8, 9, 31, 32, 33):
        rng = np.random.default_rng(size)
        streams = [[rng.permutation(size), rng.permutation(size)] for _ in range(2)]
        check_all(streams, [Comparison(0, 0, ">=", 1, 0), Comparison(0, 1, "<", 1, 1)], chunk=50)


def test_oracle_count_beyond_63_bits():
    """A chain of five streams of 20,000 equal rows has 20,000**5 results, more than 2**71."""
    streams = [[np.zeros(20_000, np.int64), np.arange(20_000)] for _ in range(5)]
    conditions = [Comparison(i, 0, "<=", i + 1, 0) for i in range(4)]
    assert theta.count(streams, conditions) == 20_000**5
    with pytest.raises(OverflowError):
        theta.matches([*streams, streams[0]], [*conditions, Comparison(4, 0, "=", 5, 0)], 0)
    triples = [Comparison(i, 1, "<", i + 1, 1) for i in range(4)]
    n = 20_000  # increasing choices of five out of n
    assert theta.count(streams, triples) == n * (n - 1) * (n - 2) * (n - 3) * (n - 4) // 120


def test_oracle_matches_stay_exact_near_the_limit():
    """55,108**4 is just below 2**63; the bound on bits is above it, so the wide path must give it back."""
    size = 55_108
    streams = [[np.zeros(1, np.int64)]] + [[np.zeros(size, np.int64)] for _ in range(4)]
    conditions = [Comparison(0, 0, "=", i, 0) for i in range(1, 5)]
    assert theta.matches(streams, conditions, 0).tolist() == [size**4]
    assert size**4 < 2**63 < (size + 1) ** 4
    bigger = [streams[0]] + [[np.zeros(size + 1, np.int64)] for _ in range(4)]
    with pytest.raises(OverflowError):
        theta.matches(bigger, conditions, 0)


def test_oracle_encode_orders_values():
    text = pa.chunked_array([["b", None, "é"], ["B", "a"]])
    other = pa.chunked_array([["z", "a", ""]])
    (one, two), (good, fine) = encode([text, other])
    values = ["b", None, "é", "B", "a", "z", "a", ""]
    codes = np.concatenate([one, two])
    assert np.concatenate([good, fine]).tolist() == [v is not None for v in values]
    for i, a in enumerate(values):
        for j, b in enumerate(values):
            if a is not None and b is not None:
                assert (codes[i] < codes[j]) == (a.encode() < b.encode())
                assert (codes[i] == codes[j]) == (a == b)


def test_oracle_encode_mixes_numbers_and_time_units():
    whole = pa.chunked_array([pa.array([2**53 + 1, None, 3], pa.int64())])
    real = pa.chunked_array([pa.array([2.0**53, float("nan"), 3.0, None])])
    (a, b), (good, fine) = encode([whole, real])
    assert good.tolist() == [True, False, True] and fine.tolist() == [True, False, True, False]
    assert a[0] == b[0] > a[2] == b[2]
    decimal = pa.chunked_array([pa.array([Decimal("3.00"), None, Decimal("2.99")])])
    (a, b, c), good = encode([real, decimal, whole])
    assert a[2] == b[0] == c[2] > b[2] and good[1].tolist() == [True, False, True]
    seconds = pa.chunked_array([pa.array([1, 2], pa.timestamp("s"))])
    micros = pa.chunked_array([pa.array([1_000_000, 1_500_000, None], pa.timestamp("us"))])
    (a, b), (good, fine) = encode([seconds, micros])
    assert a[0] == b[0] < b[1] < a[1]
    assert fine.tolist() == [True, True, False]
    zoned = pa.chunked_array([pa.array([1_000_000_000, 1_600_000_000], pa.timestamp("ns", "Europe/Berlin"))])
    (a, b), _ = encode([micros, zoned])
    assert a[0] == b[0] < a[1] < b[1], "a time without a zone is UTC"
    cents = pa.chunked_array([pa.array([Decimal(c).scaleb(-2) for c in range(1_000)])])
    (a, b), _ = encode([cents, pa.chunked_array([[c / 100 for c in range(1_000)]])])
    assert a.tolist() == b.tolist(), "a decimal beside doubles is the nearest double"
    nothing = encode([pa.chunked_array([], pa.string()), pa.chunked_array([["x"]])])
    assert [len(c) for c in nothing[0]] == [0, 1]
    with pytest.raises(TypeError, match="cannot be compared"):
        encode([seconds, whole])


def drawn(seed, graph):
    """Streams of a graph, one condition a link, on some links two; and the generator, for what is drawn next."""
    links = GRAPHS.get(graph, [(0, 1)])
    rng = np.random.default_rng(seed)
    number = max(max(link) for link in links) + 1
    streams = streams_of(seed, rng.integers(0, 9, number))
    conditions = [Comparison(a, 0, str(rng.choice(OPS)), b, 1) for a, b in links]
    conditions += [Comparison(a, 2, str(rng.choice(OPS)), b, 0) for a, b in links[: rng.integers(0, 2)]]
    return rng, streams, conditions


# --- differential -------------------------------------------------------------------------------------------------


@SETTINGS
@given(st.integers(0, 10**9), st.sampled_from(["pair", "chain 3", "star at 3", "triangle"]), st.integers(1, 12))
def test_differential_baselines_equal_ours(seed, graph, partitions):
    _, streams, conditions = drawn(seed, graph)
    want = tuples(theta.rows(streams, conditions))
    for method in (baselines.cross_product, baselines.cfs, baselines.one_bucket):
        assert tuples(method(streams, conditions, partitions=partitions)) == want
    assert tuples(baselines.one_bucket(streams, conditions, partitions=partitions, seed=seed)) == want


def test_differential_partitions_do_not_change_the_answer():
    rng = np.random.default_rng(5)
    streams = [[rng.zipf(1.5, 400) % 50], [rng.integers(0, 60, 300)], [rng.normal(20, 10, 200)]]
    for conditions in ([Comparison(0, 0, "<", 1, 0)], [Comparison(0, 0, ">=", 1, 0)]):
        want = theta.rows(streams[:2], conditions, partitions=1)
        assert len(want[0]) == theta.count(streams[:2], conditions) > 1000
        for partitions in (2, 3, 10, 64, 1000):
            got = theta.rows(streams[:2], conditions, partitions=partitions)
            assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    chain = [Comparison(0, 0, ">", 1, 0), Comparison(1, 0, ">", 2, 0)]
    want = theta.rows(streams, chain, partitions=1)
    for partitions in (7, 64):
        got = theta.rows(streams, chain, partitions=partitions)
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("kinds", [">", ">,<=", "=,<", "=,<,>=", "<,>,<=", "=,="])
def test_differential_forms_agree_on_thousands_of_rows(kinds):
    rng = np.random.default_rng(11)
    ops = kinds.split(",")
    streams = [[rng.integers(0, 40, size) for _ in ops] for size in (1500, 1100)]
    conditions = [Comparison(0, i, op, 1, i) for i, op in enumerate(ops)]
    mask = np.ones((1500, 1100), bool)
    compare = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "=": np.equal}
    for i, op in enumerate(ops):
        mask &= compare[op](streams[0][i][:, None], streams[1][i][None, :])
    want = [*np.nonzero(mask)]
    assert len(want[0]) > 500
    for got in (
        theta.rows(streams, conditions),
        theta.expand(theta.ranges(streams, conditions)),
        [np.concatenate(c) for c in zip(*theta.iter_rows(streams, conditions, 700), strict=True)],
    ):
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    assert theta.count(streams, conditions) == len(want[0])
    assert np.array_equal(theta.matches(streams, conditions, 0), mask.sum(1))
    assert np.array_equal(theta.matches(streams, conditions, 1), mask.sum(0))


def test_differential_count_of_chains_agrees_with_matches():
    rng = np.random.default_rng(3)
    streams = [[rng.integers(0, 300, 500), rng.random(500)] for _ in range(4)]
    conditions = [Comparison(0, 0, ">", 1, 0), Comparison(1, 1, "<", 2, 1), Comparison(3, 0, "=", 2, 0)]
    total = theta.count(streams, conditions)
    assert total > 0
    for of in range(4):
        assert int(theta.matches(streams, conditions, of).sum()) == total


@pytest.mark.parametrize(("near", "far"), [(1, 1), (3, 900), (900, 3), (400, 400), (70, 5000)])
@pytest.mark.parametrize("groups", [1, 6])
def test_differential_sorted_prefixes(near, far, groups):
    """Lists that grow by no row, one, a few (sorted) and many rows (marked), in any order of near rows, with groups."""
    rng = np.random.default_rng([near, far, groups])
    ours, theirs = np.sort(rng.integers(0, groups, near)), np.sort(rng.integers(0, groups, far))
    order = rng.permutation(3 * far)[:far]
    first = np.searchsorted(theirs, ours)
    last = np.sort(rng.integers(first, np.searchsorted(theirs, ours, "right") + 1))
    first = np.minimum(first, last)
    rows = rng.permutation(2 * near)[:near]
    starts, found = kernels.expand_prefixes(rows, first, last, order, 2 * near, 3 * far)
    want = {row: sorted(order[a:b].tolist()) for row, a, b in zip(rows.tolist(), first, last, strict=True)}
    assert len(starts) == 2 * near + 1 and len(found) == starts[-1]
    assert [found[a:b].tolist() for a, b in pairwise(starts)] == [want.get(row, []) for row in range(2 * near)]
    assert np.array_equal(kernels.repeated(starts), np.repeat(np.arange(2 * near), np.diff(starts)))


@pytest.mark.parametrize("rows", [300, 2000])
@pytest.mark.parametrize("ops", [(">",), ("=",), (">", "<"), ("=", "<="), (">", "<", ">=")])
def test_differential_rows_of_little_overlap(rows, ops):
    """A coarse filter that keeps a twentieth of either side: kept rows are renumbered inside, not in the result."""
    rng = np.random.default_rng([rows, len(ops)])
    near = [rng.integers(0, rows, rows), rng.random(rows), rng.random(rows)]
    far = [rng.integers(0, rows, rows) + rows * 19 // 20, rng.random(rows), rng.random(rows)]
    conditions = [Comparison(0, i, op, 1, i) for i, op in enumerate(ops)]
    keep = np.ones((rows, rows), bool)
    for i, op in enumerate(ops):
        left, right = near[i][:, None], far[i][None, :]
        keep &= {">": left > right, "=": left == right, "<": left < right, "<=": left <= right, ">=": left >= right}[op]
    assert keep.any()
    for results in (
        theta.rows([near, far], conditions),
        theta.expand(theta.ranges([near, far], conditions)),
        [np.concatenate(parts) for parts in zip(*theta.iter_rows([near, far], conditions, 700), strict=True)],
        baselines.cfs([near, far], conditions),
    ):
        assert all(np.array_equal(a, b) for a, b in zip(results, np.nonzero(keep), strict=True))
    loose = baselines.cfs([near, far], conditions, ordered=False)
    assert np.array_equal(np.sort(loose[0] * rows + loose[1]), np.flatnonzero(keep))


@pytest.mark.parametrize("out", [0, 1, 3, 4, 5, 1000])
def test_coarse_filter_may_keep_a_few_rows_too_many(out):
    codes = np.random.default_rng(out).permutation(1000)
    for rows in (np.arange(1000), np.flatnonzero(codes != 500)):
        kept = rows_within(codes, rows, out, 999)
        inside = rows[codes[rows] >= out]
        assert np.array_equal(kept, rows if len(rows) - len(inside) <= 3 else inside)


def test_differential_ranges_are_small():
    rng = np.random.default_rng(8)
    n = 3000
    streams = [[rng.random(n), rng.random(n)] for _ in range(2)]
    one = theta.ranges(streams, [Comparison(0, 0, ">", 1, 0)])
    assert len(one.edges[0].row) <= n and len(one.edges[0].order) <= n
    two = theta.ranges(streams, [Comparison(0, 0, ">", 1, 0), Comparison(0, 1, ">", 1, 1)])
    assert len(two.edges[0].limits) == 0, "two inequalities leave no filter"
    assert len(two.edges[0].row) <= n * 12 and len(two.edges[0].order) <= n * 12
    assert theta.count(streams, [Comparison(0, 0, ">", 1, 0)]) > 100 * n


@SETTINGS
@given(st.integers(0, 10**9), st.integers(0, 300), st.sampled_from(["narrow", "wide", "close", "floats", "ends"]))
def test_differential_stable_sort_equals_numpy(seed, size, kind):
    """`close`: codes that differ only in bits which do not fit beside the place, among others that are far away."""
    rng = np.random.default_rng(seed)
    codes = {
        "narrow": lambda: rng.integers(-3, 4, size),
        "wide": lambda: rng.integers(-(2**62), 2**62, size),
        "close": lambda: rng.choice([-(2**63), 0, 2**63 - 9], size) + rng.integers(0, 9, size),
        "floats": lambda: float_codes(rng.normal(0, 1, size)),
        "ends": lambda: rng.choice([-(2**63), 2**63 - 1, 0, -1], size),
    }[kind]()
    order, ranked = stable_sort(codes)
    assert np.array_equal(order, np.argsort(codes, kind="stable")) and np.array_equal(ranked, codes[order])


@pytest.mark.parametrize("shape", ["permutation", "ties", "groups"])
def test_differential_sums_over_several_blocks(shape):
    """More positions than one block of counters holds, against a plain comparison of all pairs."""
    rng = np.random.default_rng(4)
    n, m = 700, 9000
    top = {"permutation": 10**12, "ties": 40, "groups": 10**12}[shape]
    streams = [[rng.integers(0, top, k), rng.integers(0, top, k), rng.integers(0, 5, k)] for k in (n, m)]
    conditions = [Comparison(0, 0, ">", 1, 0), Comparison(0, 1, "<=", 1, 1)]
    (a, b, g), (c, d, h) = streams
    mask = (a[:, None] > c) & (b[:, None] <= d)
    if shape == "groups":
        conditions.append(Comparison(0, 2, "=", 1, 2))
        mask &= g[:, None] == h
    assert np.array_equal(theta.matches(streams, conditions, 0), mask.sum(1))
    assert np.array_equal(theta.matches(streams, conditions, 1), mask.sum(0))
    found = theta.ranges(streams, conditions).edges[0]
    per_row = np.bincount(found.row, weights=found.last - found.first, minlength=n)
    assert np.array_equal(per_row, mask.sum(1))


# --- the source's errata and examples -----------------------------------------------------------------------------


R = np.array([4, 0, 4, 6, 9, 10, 16, 19, 18, 17])
S = np.array([7, 10, 11, 17, 20, 23, 21])


@pytest.mark.parametrize(
    ("op", "left", "right"),
    [
        (">", S.min() < R, R.max() > S),
        (">=", S.min() <= R, R.max() >= S),
        ("<", S.max() > R, R.min() < S),
        ("<=", S.max() >= R, R.min() <= S),
    ],
)
def test_errata_coarse_filter_keeps_what_can_match(op, left, right):
    """The source's case ``<=`` exchanges min and max, and its listing filters S of ``>`` by the minimum of R."""
    stats = Stats()
    kept = Query([[R], [S]], [Comparison(0, 0, op, 1, 0)]).coarse(stats)
    assert kept[0].tolist() == np.flatnonzero(left).tolist()
    assert kept[1].tolist() == np.flatnonzero(right).tolist()
    assert stats.rows_kept == left.sum() + right.sum()
    assert len(check_all([[R], [S]], [Comparison(0, 0, op, 1, 0)])) > 0


def test_errata_printed_filter_would_lose_results():
    """With ``<=`` the printed rule drops r > min(S) and s < max(R); 8 <= 20 is a result it would lose."""
    assert tuples(theta.rows([[np.array([8, 19])], [np.array([7, 20])]], [Comparison(0, 0, "<=", 1, 0)])) == [
        (0, 1),
        (1, 1),
    ]


def test_plan_orders_partition_pairs():
    """Three partitions a side after the filter: six partition pairs instead of nine, as in the source's example."""
    left, right = np.arange(0, 30), np.arange(0, 30)
    made = plan_join([[left], [right]], [Comparison(0, 0, ">=", 1, 0)], 3)
    (edge,) = made.edges
    assert edge.kinds.tolist() == [[DIAGONAL, NONE, NONE], [WHOLE, DIAGONAL, NONE], [WHOLE, WHOLE, DIAGONAL]]
    assert edge.left_rows.tolist() == edge.right_rows.tolist() == [10, 10, 10]
    assert edge.candidates == 600 < 900
    mirrored = plan_join([[left], [right]], [Comparison(0, 0, "<", 1, 0)], 3).edges[0]
    assert np.array_equal(mirrored.kinds, edge.kinds.T)
    equal = plan_join([[left], [right]], [Comparison(0, 0, "=", 1, 0)], 3).edges[0]
    assert np.array_equal(equal.kinds, np.eye(3))
    assert "whole" in made.to_text() and "predicted" in made.to_text()


@SETTINGS
@given(st.integers(0, 10**9), st.sampled_from(OPS), st.integers(1, 9))
def test_oracle_partition_kinds_hold_for_every_pair(seed, op, partitions):
    streams = streams_of(seed, (20, 15), 1)
    made = plan_join(streams, [Comparison(0, 0, op, 1, 0)], partitions).edges[0]
    cuts = np.array(made.cuts)
    nothing = not made.left_rows.any() and not made.right_rows.any()
    assert len(cuts) == (0 if nothing else partitions - 1) and all(a <= b for a, b in pairwise(made.cuts))
    results = {(i, j) for i, j in reference.rows(streams, [Comparison(0, 0, op, 1, 0)])}
    place = [[int((cuts <= v).sum()) for v in stream[0].tolist()] for stream in streams]
    kept = Query(streams, [Comparison(0, 0, op, 1, 0)]).coarse()
    for i in kept[0]:
        for j in kept[1]:
            kind = made.kinds[place[0][i], place[1][j]]
            assert kind == DIAGONAL or ((i, j) in results) == (kind == WHOLE)
    assert made.left_rows.tolist() == np.bincount([place[0][i] for i in kept[0]], minlength=partitions).tolist()


def test_plan_cuts_skewed_partitions_as_in_the_source():
    skewed = [np.full(95, 7), np.arange(5)]
    made = plan_join([[np.concatenate(skewed)], [np.arange(100)]], [Comparison(0, 0, "<", 1, 0)], 10)
    assert max(made.edges[0].left_pieces) == 10


def test_plan_rounds_pair_neighbours_first():
    column_ = [np.arange(4)]
    four = plan_join([column_] * 4, [Comparison(i, 0, ">", i + 1, 0) for i in range(3)])
    assert four.rounds == ((((0,), (1,)), ((2,), (3,))), (((0, 1), (2, 3)),))
    three = plan_join([column_] * 3, [Comparison(i, 0, ">", i + 1, 0) for i in range(2)])
    assert three.rounds == ((((0,), (1,)),), (((0, 1), (2,)),))
    star = plan_join([column_] * 4, [Comparison(3, 0, ">", i, 0) for i in range(3)])
    assert star.rounds[0] == (((0,), (3,)),)


def test_stats_whole_pairs_cost_no_comparison():
    rng = np.random.default_rng(1)
    streams = [[rng.permutation(2000) + 500], [rng.permutation(2000)]]
    conditions = [Comparison(0, 0, ">", 1, 0)]
    seen = {}
    for name, method in {
        "ours": theta.rows,
        "cfs": baselines.cfs,
        "one_bucket": baselines.one_bucket,
        "cross_product": baselines.cross_product,
    }.items():
        stats = seen[name] = Stats()
        method(streams, conditions, stats=stats)
    assert len({s.results for s in seen.values()}) == 1
    assert seen["cross_product"].comparisons == seen["one_bucket"].comparisons == 2000 * 2000
    assert seen["ours"].comparisons < seen["cfs"].comparisons / 10
    assert seen["ours"].candidates < seen["cfs"].candidates <= seen["cross_product"].candidates
    assert seen["ours"].rows_shuffled < seen["cfs"].rows_shuffled


def test_predictions_follow_what_happens():
    rng = np.random.default_rng(2)
    streams = [[rng.random(3000)], [rng.random(2000) * 2]]
    conditions = [Comparison(0, 0, ">", 1, 0)]
    made, stats = plan_join(streams, conditions), Stats()
    theta.rows(streams, conditions, stats=stats)
    assert made.edges[0].candidates == stats.candidates
    assert made.edges[0].shuffled == stats.rows_shuffled
    assert 0.8 < made.output / stats.results < 1.25


def test_inputs_are_not_changed():
    streams = streams_of(4, (9, 8, 7))
    before = [[c.copy() for c in s] for s in streams]
    conditions = [Comparison(0, 0, "<", 1, 0), Comparison(1, 1, ">=", 2, 1), Comparison(2, 2, "=", 0, 2)]
    check_all(streams, conditions)
    plan_join(streams, conditions)
    for old, new in zip(before, streams, strict=True):
        assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(old, new, strict=True))


@pytest.mark.parametrize(
    ("conditions", "options", "message"),
    [
        ([Comparison(0, 0, "!=", 1, 0)], {}, "unknown"),
        ([Comparison(0, 0, "<", 0, 0)], {}, "itself"),
        ([Comparison(0, 0, "<", 1, 4)], {}, "no column 4"),
        ([Comparison(0, 0, "<", 2, 0)], {}, "of stream 2"),
        ([Comparison(0, 0, "<", 1, 0)], {"partitions": 0}, "1 or more"),
    ],
)
def test_mistakes_are_named(conditions, options, message):
    with pytest.raises(ValueError, match=message):
        theta.rows([[np.arange(3)], [np.arange(3)]], conditions, **options)
