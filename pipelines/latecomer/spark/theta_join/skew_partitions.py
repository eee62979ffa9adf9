"""Cut hot windows of a theta join into pieces, and ship each row only to the pieces in which it can match.

A window of more rows than a bound (`plan.PIECE_ROWS`) is cut along one condition, at boundaries that both sides share
[1]_. Partitions are ordered, so the pairs that match wholly form few rectangles: of the two halves of the values the
upper one of one side with the lower one of the other, and so on within each half. A rectangle is a piece in which
that condition is not tested again. A partition with itself is a piece on the diagonal, where all conditions are
tested. Every pair of rows that can match stands in exactly one piece: counts of pieces add up, their rows and ranges
unite. Rows beyond the other side's least or greatest value are not shipped at all.

One aggregation finds the boundaries: rows per window, least and greatest values, and one row at random of each of
`SAMPLES` groups of a side. All of it is a function of the window's rows alone, so the pieces are too, and any cut into
micro-batches gives the same tables.

Ordering: none. Cost: one scan; a row of the cut pair goes to ``1 + log2(p) / 2`` pieces on average for an inequality
and p partitions, to one for an equality. A stream whose conditions do not lead to the operand that is cut goes to
every piece.

With three streams and more only the first pair is cut: a piece holds its part of that pair and, of every stream
linked to it, the rows that can match. Links are followed from stream to stream as long as the same operand leads on
in one direction (``r.v > s.v, s.v > l.v, l.v >= t.v``). So far streams of a chain are reduced too, and rows beyond
the least or greatest value that bounds them are not shipped. Later rounds of the plan run inside the piece. So
results are shared out among pieces. The reduction of the streams that go to every piece is repeated in each, O(n log
n) rows of work but no result twice. A window of at most `plan.PIECE_ROWS` rows is one task, whatever it yields: its
results leave the task in chunks, and no intermediate one is larger than the last, so the number of results bounds the
time of the task, and its rows bound the memory.

References
----------
.. [1] The FastThetaJoin algorithm, chapter 4 of the source thesis, 2020 (shared boundaries, whole and diagonal pairs,
       MaxSize).
.. [2] A. Okcan and M. Riedewald, Processing theta-joins using MapReduce, SIGMOD 2011 (a matrix of pairs as tasks).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.core.arrays.composite_keys import run_bounds, sort_order
from latecomer.core.theta_join import plan
from latecomer.core.theta_join.edges import MIRROR
from latecomer.core.theta_join.encode import encode
from latecomer.core.theta_join.window_task import Operand, WindowJoin
from latecomer.spark.engine.columns import quoted
from latecomer.spark.engine.types import FLOATING, WHOLE_OR_FLOATING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SAMPLES = 512
"""Groups of the rows of a side; one row of each stands for all in the choice of boundaries."""
SLOTS = 64
"""Most tasks of a micro-batch; further pieces share them."""
WINDOW = "_window"
"""Column of a table of small windows: the number of the window of a row."""
TOGETHER_ROWS = 1 << 17
"""Rows of whole windows that a task joins at once, about, or those of one window that has more."""
_SPREAD = 64


@dataclass(frozen=True)
class Shipping:
    """The pieces of a cut window, and the pieces that each of its rows goes to.

    Attributes
    ----------
    pieces
        Number of pieces.
    spread
        Number of groups by hash of the rows of a partition; 1: no piece is cut further.
    lists
        Entry ``(alias * partitions + partition) * spread + group``: for each piece that gets the row
        ``(2 * piece + whole) * aliases + alias``.
    """

    pieces: int
    spread: int
    lists: list[list[int]]


def cells(op: str, partitions: int) -> list[tuple[range, range, bool]]:
    """Return the cells of a condition: left partitions, right partitions, and whether all their pairs match.

    Every pair that can match is in exactly one cell.
    """
    covered: list[tuple[range, range, bool]] = []

    def halve(low: int, high: int) -> None:
        middle = (low + high) // 2
        if high - low == 1:
            covered.append((range(low, high), range(low, high), False))
            return
        lower, upper = range(low, middle), range(middle, high)
        if op != "=":
            covered.append((upper, lower, True) if op in (">", ">=") else (lower, upper, True))
        halve(low, middle)
        halve(middle, high)

    halve(0, partitions)
    return covered


def shipping(
    op: str,
    left: Sequence[float],
    right: Sequence[float],
    aliases: int = 2,
    places: tuple[int, int] = (0, 1),
    links: Mapping[int, tuple[int, str]] | None = None,
) -> Shipping:
    """Decide to which pieces rows go, from the estimated rows per partition alone.

    A cell above twice MaxSize (rows of the window / partitions) is cut further, its larger side by a hash of the row,
    and the other side goes to every part: so a value that half of the window holds does not make one task of it.

    Parameters
    ----------
    op
        Operator of the condition that is cut.
    left, right
        Rows per partition of either side.
    aliases, places
        Number of streams, and which two of them are cut.
    links
        Streams that an operand of the cut bounds: which of the two (0, 1), and its `op` to their operand.
    """
    parts = len(left)
    most = 2 * max(1.0, (sum(left) + sum(right)) / parts)
    numbers = []
    for left_parts, right_parts, _ in cells(op, parts):
        size = sum(left[p] for p in left_parts), sum(right[p] for p in right_parts)
        number = min(int(-(-sum(size) // most)), _SPREAD) if sum(size) > most else 1
        numbers.append((number, places[0] if size[0] >= size[1] else places[1]))
    spread = _SPREAD if any(number > 1 for number, _ in numbers) else 1
    lists: list[list[int]] = [[] for _ in range(aliases * parts * spread)]
    piece = 0
    for cell, (number, larger) in zip(cells(op, parts), numbers, strict=True):
        for alias in range(aliases):
            for part in range(parts):
                if not _goes(alias, part, cell[:2], places, links or {}):
                    continue
                for group in range(spread):
                    parts_of_cell = [group * number // spread] if alias == larger else range(number)
                    codes = [(2 * (piece + place) + cell[2]) * aliases + alias for place in parts_of_cell]
                    lists[(alias * parts + part) * spread + group] += codes
        piece += number
    return Shipping(piece, spread, lists)


def _goes(
    alias: int, part: int, sides: tuple[range, range], places: tuple[int, int], links: Mapping[int, tuple[int, str]]
) -> bool:
    """Return whether a row of a partition can match in a cell."""
    if alias in places:
        return part in sides[places.index(alias)]
    if alias not in links:
        return True
    role, op = links[alias]
    if op == "=":
        return part in sides[role]
    return sides[role].stop > part if op in (">", ">=") else sides[role].start <= part


@dataclass(frozen=True)
class Layout:
    """The operands along which the windows of a query are cut.

    Attributes
    ----------
    op, kind
        The condition's op, and the SQL type both of its sides have (or are cast to, which keeps their order).
    places
        The two aliases, left and right.
    values
        Alias -> SQL of the value that its partition follows; null where the row matches nothing.
    links
        As for `shipping`.
    """

    op: str
    kind: str
    places: tuple[int, int]
    values: dict[int, str]
    links: dict[int, tuple[int, str]]

    @staticmethod
    def of(join: WindowJoin, kinds: Mapping[str, str]) -> Layout | None:
        """Return the layout for column types; None where no type orders the values of both sides."""
        planned = join.planned_condition
        left, op, right = join.conditions[planned]
        types = {kinds[left.column], kinds[right.column]}
        if len(types) > 1 and not types <= set(WHOLE_OR_FLOATING):
            return None
        kind = types.pop() if len(types) == 1 else "double" if types & set(FLOATING) else "bigint"

        def value(alias: int, column: str) -> str:
            text = quoted(column) if kinds[column] == kind else f"cast({quoted(column)} as {kind})"
            if kinds[column] in FLOATING:
                text = f"nullif({text}, cast('NaN' as {kind}))"
            return f"case when side = {join.sides[alias]} then {text} end"

        places = (left.alias, right.alias)
        values = {side.alias: value(side.alias, side.column) for side in (left, right)}
        links: dict[int, tuple[int, str]] = {}
        for operand, (role, seen) in _bounded(join, (left, right)).items():
            known = operand.alias in places or kinds[operand.column] != kind
            if not known and (operand.alias not in links or seen == "="):
                links[operand.alias] = (role, seen)
                values[operand.alias] = value(operand.alias, operand.column)
        return Layout(op, kind, places, values, links)


def _bounded(join: WindowJoin, cut: tuple[Operand, Operand]) -> dict[Operand, tuple[int, str]]:
    """Return the operands that one of the two cut operands bounds, equal ones first: which of the two, and its op.

    An operand that stands in two conditions passes the bound on: ``s.v > l.v`` and ``l.v >= t.v`` bound ``t.v`` by
    ``s.v``.
    """
    bounded = {operand: (role, "=") for role, operand in enumerate(cut)}
    for equal in (True, False):
        waiting = list(bounded)
        for near in waiting:
            role, seen = bounded[near]
            for left, sign, right in join.conditions:
                for start, op, far in ((left, sign, right), (right, MIRROR[sign], left)):
                    way = seen if op == "=" else op
                    bounds = op == "=" if equal else seen[0] in ("=", way[0])
                    if bounds and start == near and far not in bounded:
                        bounded[far] = (role, way)
                        waiting.append(far)
    return bounded


class _CutWindow(NamedTuple):
    """A window that is cut: its keys, bounds, boundaries, shipping, and number of partitions."""

    keys: list[int]
    bounds: list[pa.Scalar | None]
    cuts: list[pa.Scalar]
    shipping: Shipping
    partitions: int


@dataclass(frozen=True)
class Hot:
    """Windows that are cut.

    Attributes
    ----------
    layout
        The operands of the cut.
    table
        One row per window: its keys, bounds, boundaries and lists.
    cuts
        Most boundaries of a window.
    slots
        Number of tasks.
    """

    layout: Layout
    table: pa.Table
    cuts: int
    slots: int


def hot(rows: DataFrame, keys: list[str], join: WindowJoin, windows: list[int], bound: int) -> Hot | None:
    """Find the windows with too many rows for one task, and cut them; None where there is none.

    Parameters
    ----------
    rows
        One row per row and window: `keys` (bigint, ``_m`` among them), ``seq``, ``side``, operands.
    windows
        Numbers of windows that may be hot.
    bound
        Rows of a window above which it is cut, and about how many make a partition.
    """
    from pyspark.sql import functions as F

    layout = Layout.of(join, dict(rows.dtypes))
    if layout is None or not windows:
        return None
    given = rows.where(F.col("_m").isin(windows)).select(
        *keys,
        F.xxhash64("seq").alias("_h"),
        *(F.expr(layout.values[alias]).alias(f"_v{i}") for i, alias in enumerate(layout.places)),
    )
    aggregates = [F.count("*").alias("_n")]
    for i in (0, 1):
        value, turn = F.col(f"_v{i}"), F.when(F.col(f"_v{i}").isNotNull(), F.col("_h"))
        aggregates += [F.count(value).alias(f"_n{i}"), F.min(value).alias(f"_low{i}"), F.max(value).alias(f"_high{i}")]
        aggregates += [F.min_by(value, turn).alias(f"_any{i}")]
    seen = given.groupBy(*keys, F.pmod("_h", F.lit(SAMPLES)).alias("_g")).agg(*aggregates).toArrow()
    if not seen.num_rows:
        return None
    _, which = np.unique(np.stack([seen[key].to_numpy() for key in keys]), axis=1, return_inverse=True)
    order = np.argsort(which.ravel(), kind="stable")
    starts = np.flatnonzero(np.diff(which.ravel()[order], prepend=-1))
    made = []
    for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
        groups = seen.take(pa.array(order[start:stop]))
        total = int(groups["_n"].to_numpy().sum())
        if total > bound:
            made.append(
                _planned(groups, keys, layout, len(join.aliases), join.partitions or plan.partitions_for(total, bound))
            )
    if not made:
        return None
    return _assembled(made, keys, layout, seen.schema.field("_any0").type, rows)


def _planned(groups: pa.Table, keys: list[str], layout: Layout, aliases: int, parts: int) -> _CutWindow:
    """Cut one window, from its groups."""
    names = [f"_any{i}" for i in (0, 1)] + [f"_{end}{i}" for i in (0, 1) for end in ("low", "high")]
    columns = [groups[name] for name in names]
    codes, valid = encode(columns)
    bounds: list[pa.Scalar | None] = []
    for i in range(2, 6):
        good = np.flatnonzero(valid[i])
        known = codes[i][good]
        bounds.append(columns[i][int(good[known.argmin() if i % 2 == 0 else known.argmax()])] if len(good) else None)
    weights = [np.where(valid[i], groups[f"_n{i}"].to_numpy(), 0) for i in (0, 1)]
    every, weight = np.concatenate(codes[:2]), np.concatenate(weights)
    order = np.argsort(every, kind="stable")
    order = order[weight[order] > 0]
    cuts: NDArray[np.int64] = np.empty(0, np.int64)
    if len(order):
        sums = np.cumsum(weight[order])
        cuts = order[np.searchsorted(sums, sums[-1] * np.arange(1, parts) / parts)]
    both = pa.chunked_array([*columns[0].chunks, *columns[1].chunks], type=columns[0].type)
    left, right = (
        np.bincount(np.searchsorted(every[cuts], codes[i], "right"), weights[i], minlength=parts).tolist()
        for i in (0, 1)
    )
    shipped = shipping(layout.op, left, right, aliases, layout.places, layout.links)
    numbers = [groups[key][0].as_py() for key in keys]
    return _CutWindow(numbers, bounds, [both[int(at)] for at in cuts], shipped, parts)


def _assembled(made: list[_CutWindow], keys: list[str], layout: Layout, kind: pa.DataType, rows: DataFrame) -> Hot:
    """Put the cut windows into one table, which is copied to every task."""
    cuts = max(len(window.cuts) for window in made)
    pieces = [window.shipping.pieces for window in made]
    columns: dict[str, pa.Array] = {
        f"_k{i}": pa.array([window.keys[i] for window in made], pa.int64()) for i, _ in enumerate(keys)
    }
    for i, name in enumerate(("_low0", "_high0", "_low1", "_high1")):
        columns[name] = _column([window.bounds[i] for window in made], kind)
    for i in range(cuts):
        columns[f"_cut{i}"] = _column([window.cuts[i] if i < len(window.cuts) else None for window in made], kind)
    columns["_parts"] = pa.array([window.partitions for window in made], pa.int32())
    columns["_spread"] = pa.array([window.shipping.spread for window in made], pa.int32())
    columns["_first"] = pa.array(np.cumsum([0, *pieces[:-1]]), pa.int32())
    columns["_lists"] = pa.array([window.shipping.lists for window in made], pa.list_(pa.list_(pa.int32())))
    least = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions", "4") or 4)
    return Hot(layout, pa.table(columns), cuts, max(min(sum(pieces), SLOTS), least))


def _column(values: Sequence[pa.Scalar | None], kind: pa.DataType) -> pa.Array:
    """Return Arrow scalars, some of them None, as one column."""
    parts = [pa.nulls(1, kind) if value is None else pa.array([value], kind) for value in values]
    return pa.concat_arrays(parts)


def shipped(rows: DataFrame, keys: list[str], join: WindowJoin, hot: Hot) -> DataFrame:
    """Repeat every row for each piece that it goes to, pieces apart, with ``piece``: -1 where the window is not cut.

    ``piece`` is ``2 * number + whole``; with one, ``side`` is the alias of the row.
    """
    from pyspark.sql import functions as F

    from latecomer.spark.engine import tables  # not where Spark's Python workers import this module

    layout, aliases = hot.layout, len(join.aliases)
    windows = tables.to_spark(rows.sparkSession, hot.table)
    on = [F.col(key) == F.col(f"_k{i}") for i, key in enumerate(keys)]
    wide = rows.join(F.broadcast(windows), on, "left")
    for alias, text in layout.values.items():
        wide = wide.withColumn(f"_v{alias}", F.expr(text))
    group = "cast(pmod(xxhash64(seq), _spread) as int)"
    choices = []
    for side in sorted(set(join.sides)):
        lists = []
        for alias in [place for place, source in enumerate(join.sides) if source == side]:
            part = "0"
            if alias in layout.values:
                part = " + ".join([f"if(_v{alias} >= _cut{i}, 1, 0)" for i in range(hot.cuts)]) or "0"
            chosen = f"_lists[({alias} * _parts + {part}) * _spread + {group}]"
            lists.append(f"if({_passes(layout, alias)}, {chosen}, cast(array() as array<int>))")
        choices.append(f"when side = {side} then concat({', '.join(lists)})")
    codes = f"case when _parts is null then array(-1) {' '.join(choices)} end"
    wide = wide.withColumn("_code", F.explode(F.expr(codes)))
    slot = f"if(_code < 0, pmod(hash(_m), {hot.slots}), pmod(_first + _code div {2 * aliases}, {hot.slots}))"
    kept = [F.col(name) for name in rows.columns if name != "side"]
    return wide.repartitionById(hot.slots, F.expr(f"cast({slot} as int)")).select(
        *kept,
        F.expr(f"if(_code < 0, side, cast(_code % {aliases} as int))").alias("side"),
        F.expr(f"if(_code < 0, -1, cast(_code div {aliases} as int))").alias("piece"),
    )


def _passes(layout: Layout, alias: int) -> str:
    """Return the SQL of the coarse filter, which is never strict: casts may have made two values one."""
    value, op = f"_v{alias}", layout.op
    if alias not in layout.values:
        return "true"
    if alias in layout.places:
        other = 1 - layout.places.index(alias)
        op = op if other == 1 else MIRROR[op]
    else:
        other, seen = layout.links[alias]
        op = MIRROR[seen]
    if op == "=":
        return f"{value} between _low{other} and _high{other}"
    upper = op in (">", ">=")
    return f"{value} >= _low{other}" if upper else f"{value} <= _high{other}"


def parts_of(table: pa.Table, keys: list[str]) -> Iterator[tuple[pa.Table, int]]:
    """Yield the rows of each window or piece in the table of a task, with its ``piece``."""
    columns = [table[name].to_numpy() for name in (*keys, "piece")]
    if all((column == column[0]).all() for column in columns):
        yield table, int(columns[-1][0])
        return
    order = sort_order(*columns)
    table = table.take(pa.array(order))
    for start, stop in pairwise(run_bounds(*(column[order] for column in columns)).tolist()):
        yield table.slice(start, stop - start), int(columns[-1][order[start]])


def whole_windows(batches: Iterator[pa.RecordBatch], keys: list[str]) -> Iterator[pa.Table]:
    """Yield the rows of a task, sorted by `keys`, as tables of whole windows.

    A table has `TOGETHER_ROWS` rows or more; the last one has the rest.
    """
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        edges = run_bounds(*(batch.column(key).to_numpy() for key in keys))
        ends_held = bool(held) and any(held[-1].column(key)[-1] != batch.column(key)[0] for key in keys)
        at = int(edges[-2])
        if count + at >= TOGETHER_ROWS and (at or ends_held):
            yield pa.Table.from_batches([*held, batch.slice(0, at)])
            held, count, batch = [], 0, batch.slice(at)
        held.append(batch)
        count += batch.num_rows
    if held:
        yield pa.Table.from_batches(held)


def by_size(table: pa.Table, keys: list[str], most: int) -> tuple[pa.Table, pa.Table, list[pa.Table]]:
    """Split windows into those of at most `most` rows and the others.

    Returns
    -------
    small
        The rows of small windows; the column `WINDOW` says to which row of `windows` they belong.
    windows
        The `keys` of the small windows.
    alone
        One table per other window.
    """
    edges = run_bounds(*(table[key].to_numpy() for key in keys))
    starts, sizes = edges[:-1], np.diff(edges)
    is_small = sizes <= most
    alone = [table.slice(start, size) for start, size in zip(starts[~is_small], sizes[~is_small], strict=True)]
    small = table.filter(pa.array(np.repeat(is_small, sizes))) if alone else table
    which = np.repeat(np.arange(int(is_small.sum())), sizes[is_small])
    return small.append_column(WINDOW, pa.array(which)), table.select(keys).take(pa.array(starts[is_small])), alone
