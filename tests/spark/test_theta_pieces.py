"""Pieces of a hot window: every matching pair in exactly one, and all tables as without a cut, whatever the cut."""

import itertools
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.core.theta_join import plan
from latecomer.core.theta_join.window_task import Operand, WindowJoin, expand
from latecomer.spark.theta_join import skew_partitions, windows

from tests.spark.test_theta_join import OPS, SLIDING, brute, expected, query, start
from tests.support import events
from tests.support.lakes import whole_and_cut

SIZES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=7)


@settings(deadline=None, max_examples=60)
@given(SIZES, st.sampled_from(sorted(OPS)), st.sampled_from(sorted(OPS)), st.integers(0, 1))
def test_every_pair_that_can_match_meets_once(sizes, op, sign, role):
    """Also with a third stream, compared with one side of the condition that is cut, and with skew."""
    left, right = zip(*sizes, strict=True)
    found = skew_partitions.shipping(op, left, right, 3, (0, 1), {2: (role, sign)})
    parts = len(sizes)

    def places(alias, part, group):
        codes = found.lists[(alias * parts + part) * found.spread + group]
        assert len(set(codes)) == len(codes) and all(code % 3 == alias for code in codes)
        return {code // 3 for code in codes}

    groups = sorted({0, found.spread // 2, found.spread - 1})
    for a, b, c in itertools.product(range(parts), repeat=3):
        for g in itertools.product(groups, repeat=3):
            one, other, third = (
                places(alias, part, h) for alias, (part, h) in enumerate(zip((a, b, c), g, strict=True))
            )
            pair = one & other
            may = a == b or (op in (">", ">=") and a > b) or (op in ("<", "<=") and a < b)
            assert len(pair) == int(may) and all(each & 1 == int(a != b) for each in pair)
            near = (a, b)[role]
            if pair and (near == c or (sign != "=" and OPS[sign](near, c))):
                assert len(pair & third) == 1
            assert all(piece >> 1 < found.pieces for piece in one | other | third)


DRAWN = st.lists(
    st.tuples(
        st.sampled_from([(0, 1), (1, 2), (2, 3), (0, 2), (3, 1)]), st.sampled_from(sorted(OPS)), st.integers(0, 3)
    ),
    max_size=4,
)


@settings(deadline=None, derandomize=True, max_examples=80)
@given(st.sampled_from(sorted(OPS)), DRAWN, st.integers(0, 10**6))
def test_streams_that_are_linked_from_afar_are_where_they_match(op, drawn, seed):
    """Conditions of four streams, some on another column: every result is in exactly one piece, with all its rows."""
    conditions = [(0, 0, op, 1, 0)] + [(a, how & 1, sign, b, how >> 1) for (a, b), sign, how in drawn]
    triples = tuple(
        (Operand(a, f"a{a}{'vw'[x]}"), sign, Operand(b, f"a{b}{'vw'[y]}")) for a, x, sign, b, y in conditions
    )
    join = WindowJoin(("r", "s", "l", "t"), (0, 1, 2, 3), triples, ((),) * 4)
    layout = skew_partitions.Layout.of(join, {f"a{a}{c}": "bigint" for a in range(4) for c in "vw"})
    place, cut = join.planned_condition, join.conditions[join.planned_condition]
    values = np.random.default_rng(seed).integers(0, 12, (4, 6, 2))
    cuts = [3, 6, 9]
    parts = {}  # alias -> partition per row, of the operand that it is shipped by
    for alias, text in layout.values.items():
        column = "vw".index(text.split("`")[1][2])
        parts[alias] = np.searchsorted(cuts, values[alias, :, column], "right")
    sizes = [np.bincount(parts[alias], minlength=4).tolist() for alias in layout.places]
    found = skew_partitions.shipping(layout.op, *sizes, 4, layout.places, layout.links)
    assert layout.op == cut[1] and 0 <= place < len(conditions)

    def codes(alias, row):
        part = parts[alias][row] if alias in parts else 0
        return {code // 4 for code in found.lists[(alias * 4 + part) * found.spread]}

    for rows in itertools.product(range(6), repeat=4):
        if all(OPS[sign](values[a, rows[a], x], values[b, rows[b], y]) for a, x, sign, b, y in conditions):
            assert len(set.intersection(*(codes(alias, row) for alias, row in enumerate(rows)))) == 1


def test_a_chain_ships_its_far_streams_to_fewer_pieces():
    """``r > s > l > t`` bounds all of them; a turn of direction ends it."""
    for signs, linked in (((">", ">", ">="), {2, 3}), ((">", ">", "<"), {2}), (("<", "=", "<="), {2, 3})):
        triples = tuple((Operand(i, f"v{i}"), sign, Operand(i + 1, f"v{i + 1}")) for i, sign in enumerate(signs))
        join = WindowJoin(("r", "s", "l", "t"), (0, 1, 2, 3), triples, ((),) * 4)
        layout = skew_partitions.Layout.of(join, dict.fromkeys((f"v{i}" for i in range(4)), "double"))
        assert set(layout.links) == linked
        found = skew_partitions.shipping(layout.op, [10] * 8, [10] * 8, 4, layout.places, layout.links)
        size = 8 * found.spread
        copies = [sum(map(len, found.lists[alias * size : (alias + 1) * size])) / size for alias in (2, 3)]
        for alias, each in zip((2, 3), copies, strict=True):
            assert each < 0.7 * found.pieces if alias in linked else each == found.pieces


def test_skew_is_cut_further():
    """One value in half of the window is more than one task, and no task holds all of both sides."""
    found = skew_partitions.shipping("=", [10, 1000, 10, 10], [10, 30, 10, 10])
    assert found.pieces == 5 and found.spread > 1
    halves = {tuple(found.lists[found.spread + h]) for h in range(found.spread)}
    assert len(halves) == 2 and all(len(half) == 1 for half in halves)
    assert len(found.lists[(4 + 1) * found.spread]) == 2


def odd_values(seed, rows=160):
    """Rows with null, NaN and ties, a value that a third of them share, and whole and floating-point numbers."""
    rng = np.random.default_rng(seed)
    table = events.disordered(seed, rows=rows)
    v = [
        None if x == 0 else float("nan") if x == 1 else 4.0 if x < 9 else float(x % 11)
        for x in rng.integers(0, 24, rows)
    ]
    return table.set_column(table.schema.get_field_index("v"), "v", pa.array(v))


ROWS = [
    query(conditions="[r.v > s.v, r.k = s.k]", window=SLIDING, select="select: [r.note, s.v, r.v - s.v as gap]"),
    query("{r: a, s: a}", "[r.event_ts < s.event_ts, r.v > s.v]", slack=", slack: 3 s, partitions: 5"),
    query("{r: a, s: b, l: a}", "[r.v >= s.k, s.k < l.k, s.v <= l.v]"),
]


@pytest.mark.parametrize("spec", ROWS)
def test_rows_are_those_without_a_cut(tmp_path, spark, monkeypatch, spec):
    """An equality in sliding windows, a self join, a chain of three with whole and floating-point numbers compared."""
    compared(tmp_path, monkeypatch, odd_values(4), spec)


COUNTS = [
    query(emit="count", conditions="[r.v < s.v, r.k >= s.k]"),
    query("{r: a, s: b, l: a, t: b}", "[r.v > s.v, s.v > l.v, l.v >= t.v]", emit="count"),
]


@pytest.mark.parametrize("spec", COUNTS)
def test_counts_are_those_without_a_cut(tmp_path, spark, monkeypatch, spec):
    """Two inequalities, and a chain of four whose far streams are reduced by way of one another."""
    compared(tmp_path, monkeypatch, odd_values(6, 120), spec)


@pytest.mark.parametrize("conditions", ["[r.v > s.v, r.k <= s.k]", "[s.note = r.note, r.v >= s.v]"])
def test_ranges_of_pieces_unite_with_any_cut_into_micro_batches(tmp_path, spark, monkeypatch, conditions):
    table, spec = odd_values(6, 120), query(emit="ranges", conditions=conditions)
    tables = cut_into_pieces(monkeypatch, tmp_path, table, spec, (55,))
    assert answered(tables["results"], spec) == brute(expected(table, spec).final, spec)


def compared(folder, monkeypatch, table, spec):
    """Every table of a run in one task per window and of one whose windows are cut; what they hold after repair."""
    for name in ("whole", "cut"):
        (folder / name).mkdir()
    whole = whole_and_cut(folder / "whole", table, spec, (), stop=100)
    cut = cut_into_pieces(monkeypatch, folder / "cut", table, spec, ())
    for name, rows in whole.items():
        assert rows.equals(cut[name]), name
    assert cut["corrections"].num_rows
    final = brute(expected(table, spec).final, spec)
    assert answered(cut["results"], spec) == (counted(final) if spec.emit == "count" else final)


def cut_into_pieces(monkeypatch, folder, table, spec, sizes):
    """The tables of a query whose windows of more than 6 rows are cut, repairs too."""
    seen = []
    kept = skew_partitions.hot
    monkeypatch.setattr(plan, "PIECE_ROWS", 6)
    monkeypatch.setattr(windows, "LINEAR_FACTOR", 1)
    monkeypatch.setattr(skew_partitions, "hot", lambda *given: seen.append(kept(*given)) or seen[-1])
    tables = whole_and_cut(folder, table, spec, sizes, stop=100)
    cut = [each.table.num_rows for each in seen if each is not None]
    assert len(cut) > 2 and sum(cut) > 8
    parts = {part for each in seen if each is not None for part in each.table["_parts"].to_pylist()}
    assert parts == {spec.strategy.partitions} if spec.strategy.partitions else len(parts) > 1
    return tables


def counted(rows):
    found = {}
    for row in rows:
        found[row[0]] = found.get(row[0], 0) + 1
    return found


def answered(results, spec):
    if spec.emit == "count":
        return {start(row): row["matches"] for row in results.to_pylist() if row["matches"]}
    aliases = [alias for alias, _ in spec.streams]
    if spec.emit == "rows":
        rows = [(start(row), *(row[f"{alias}_seq"] for alias in aliases)) for row in results.to_pylist()]
    else:
        rows = []
        for window in pc.unique(results["window_start"]).to_pylist():
            pairs = expand(results.filter(pc.equal(results["window_start"], window)), aliases)
            at = int(window.timestamp() * 1_000_000)
            rows += [(at, *pair) for pair in zip(*(pairs[alias].tolist() for alias in aliases), strict=True)]
    assert len(rows) == len(set(rows))
    return set(rows)


@pytest.mark.parametrize("most", [1, 7, 30, 1000])
def test_a_task_takes_up_whole_windows_and_parts_the_small_ones(monkeypatch, most):
    """Any batches of sorted rows: every window is in one table, in order, and the small ones are numbered."""
    monkeypatch.setattr(skew_partitions, "TOGETHER_ROWS", most)
    rng = np.random.default_rng(most)
    keys = np.sort(rng.integers(0, 12, 90))
    rows = pa.table({"m": keys, "wait_us": keys % 2, "at": np.arange(90)})
    cuts = [0, *np.sort(rng.integers(0, 90, 9)).tolist(), 90]
    batches = [rows.slice(a, b - a).combine_chunks().to_batches() for a, b in pairwise(cuts)]
    given = iter([batch for each in batches for batch in each])
    tables = list(skew_partitions.whole_windows(given, ["m", "wait_us"]))
    assert pa.concat_tables(tables).equals(rows)
    assert len(tables) == 1 if most == 1000 else len(tables) > 1
    seen = [set(each["m"].to_pylist()) for each in tables]
    assert sum(map(len, seen)) == len(set(keys.tolist()))
    counts = np.bincount(keys)
    for each in tables:
        small, windows, alone = skew_partitions.by_size(each, ["m", "wait_us"], 7)
        numbers = windows["m"].to_numpy()
        assert (numbers[small[skew_partitions.WINDOW].to_numpy()] == small["m"].to_numpy()).all()
        assert (counts[numbers] <= 7).all() and all(table.num_rows > 7 for table in alone)
        assert small.num_rows + sum(table.num_rows for table in alone) == each.num_rows
