"""A theta join of one window as Arrow tables: what a Spark task runs, for rows, counts and ranges.

A task is handed the rows of one window, all streams in one table, and gives back result rows. Which rows are new (registered
late, repaired now) can be said by a column: then only results with at least one new row are produced, each once, and each
carries the latest repair of its rows. That is done without looking at the others: the results whose first new row is of
stream `k` are a join in which streams before `k` give old rows, stream `k` new rows, and later streams all of theirs.

Ordering: none. Cost: that of :mod:`latecomer.core.theta_join`, at most once per stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from latecomer.core import theta_join as theta
from latecomer.core import theta_plan as plan
from latecomer.core.theta_edges import Comparison

Int64 = NDArray[np.int64]
Method = Callable[..., list[Int64]]

CHUNK_ROWS = 1 << 18
"""Result rows per Arrow batch."""

RANGES = pa.schema(
    [
        ("edge", pa.int32()),
        ("part", pa.string()),
        ("near", pa.string()),
        ("far", pa.string()),
        ("seq", pa.int64()),
        ("position", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
    ]
)
"""A factorised result as rows.

``order``: far row `seq` stands at `position`. ``run``: near row `seq` matches the far rows at positions ``[first, last)``.
``near_filter`` and ``far_filter``: a pair of this edge counts only where, for each filter number `position`, the far row's `first` is less
than the near row's `first`.
"""


@dataclass(frozen=True)
class Operand:
    """One side of a condition: position of the alias, name of its column in the table."""

    alias: int
    column: str


@dataclass(frozen=True)
class WindowJoin:
    """A theta join's conditions over one window's table.

    Parameters
    ----------
    aliases, sides
        Names of the streams as the query has them, and which source (value of column ``side``) each reads.
    conditions
        Triples of operand, op, operand.
    payload
        Per alias, the columns of the table that a result row needs, beside ``seq``.
    method
        A rival with the signature of :func:`latecomer.core.theta_join.rows`, in its place; None: ours.
    partitions
        For rivals, as in the query.
    """

    aliases: tuple[str, ...]
    sides: tuple[int, ...]
    conditions: tuple[tuple[Operand, str, Operand], ...]
    payload: tuple[tuple[str, ...], ...]
    method: Method | None = None
    partitions: int = 10

    def rows(self, table: pa.Table, new: str | None = None) -> Iterator[pa.Table]:
        """Result rows, chunk by chunk: ``<position>_seq``, ``<position>_<payload column>``, and with `new` its greatest value.

        Parameters
        ----------
        new
            An int64 column, -1 for old rows; only results with a row that is not old are produced.
        """
        parts = self._parts(table)
        if new is None:
            yield from self._produced(parts, None)
            return
        fresh = [part[new].to_numpy() >= 0 for part in parts]
        for k in range(len(parts)):
            if fresh[k].any():
                chosen = [
                    part.filter(pa.array(~own if i < k else own)) if i <= k else part
                    for i, (part, own) in enumerate(zip(parts, fresh, strict=True))
                ]
                yield from self._produced(chosen, new)

    def _produced(self, parts: list[pa.Table], new: str | None) -> Iterator[pa.Table]:
        parts, streams, comparisons = self._encoded(parts)
        for found in self._iterate(streams, comparisons):
            columns: dict[str, Any] = {}
            latest = None
            for place, (part, at) in enumerate(zip(parts, found, strict=True)):
                columns[f"{place}_seq"] = part["seq"].take(pa.array(at))
                for name in self.payload[place]:
                    columns[f"{place}_{name}"] = part[name].take(pa.array(at))
                if new is not None:
                    own = part[new].to_numpy()[at]
                    latest = own if latest is None else np.maximum(latest, own)
            if latest is not None:
                columns["_new"] = pa.array(latest)
            yield pa.table(columns)

    def _iterate(self, streams: list[list[Int64]], comparisons: list[Comparison]) -> Iterator[list[Int64]]:
        if any(not len(columns[0]) for columns in streams):
            return
        if self.method is None:
            yield from theta.iter_rows(streams, comparisons, chunk_rows=CHUNK_ROWS)
            return
        whole = self.method(streams, comparisons, partitions=self.partitions)
        for start in range(0, len(whole[0]), CHUNK_ROWS):
            yield [each[start : start + CHUNK_ROWS] for each in whole]

    def count(self, table: pa.Table) -> int:
        """Number of results."""
        _, streams, comparisons = self._encoded(self._parts(table))
        if any(not len(columns[0]) for columns in streams):
            return 0
        if self.method is None:
            return theta.count(streams, comparisons)
        return len(self.method(streams, comparisons, partitions=self.partitions)[0])

    def ranges(self, table: pa.Table) -> pa.Table:
        """The factorised result in rows of `RANGES`; :func:`expand` is its inverse."""
        parts, streams, comparisons = self._encoded(self._parts(table))
        if any(not len(columns[0]) for columns in streams):
            return RANGES.empty_table()
        found = theta.ranges(streams, comparisons)
        seqs = [part["seq"].to_numpy() for part in parts]
        tables = []
        for number, edge in enumerate(found.edges):
            names = (self.aliases[edge.near], self.aliases[edge.far])
            order = seqs[edge.far][edge.order]
            tables.append(_part(number, "order", names, order, position=np.arange(len(order))))
            tables.append(_part(number, "run", names, seqs[edge.near][edge.row], first=edge.first, last=edge.last))
            tables += _filters(number, names, seqs[edge.near], seqs[edge.far], edge.limits, edge.places)
        for number, (near, far, limits, places) in enumerate(found.closing, len(found.edges)):
            names = (self.aliases[near], self.aliases[far])
            tables += _filters(number, names, seqs[near], seqs[far], limits, places)
        return pa.concat_tables(tables)

    def pieces(self, table: pa.Table, partitions: int | None = None) -> Iterator[tuple[WindowJoin, pa.Table]]:
        """The join cut by :func:`latecomer.core.theta_plan.pieces`: per piece a smaller join and its table.

        `rows` of the pieces (also with `new`) are those of the whole, each once; `count` adds up; `ranges` of two streams
        unite by :func:`united`, and of more by expanding each.

        Parameters
        ----------
        partitions
            As for the plan; None: the query's.
        """
        parts, streams, comparisons = self._encoded(self._parts(table))
        if any(not len(columns[0]) for columns in streams):
            return
        cut = plan.pieces(streams, comparisons, self.partitions if partitions is None else partitions)
        for piece, left in zip(cut.pieces, cut.conditions, strict=True):
            chosen = list(parts)
            chosen[cut.left] = parts[cut.left].take(pa.array(cut.left_rows[piece.left]))
            chosen[cut.right] = parts[cut.right].take(pa.array(cut.right_rows[piece.right]))
            numbered = []
            for alias, part in enumerate(chosen):
                at = part.schema.get_field_index("side")
                numbered.append(part.set_column(at, "side", pa.repeat(pa.scalar(alias, pa.int32()), part.num_rows)))
            conditions = tuple(self.conditions[i] for i in left)
            yield (
                replace(self, sides=tuple(range(len(parts))), conditions=conditions),
                pa.concat_tables(numbered),
            )

    def encoded(self, table: pa.Table) -> tuple[list[pa.Table], list[list[Int64]], list[Comparison]]:
        """Rows of every alias that can match, their operands as integers, and the comparisons between them."""
        return self._encoded(self._parts(table))

    def _parts(self, table: pa.Table) -> list[pa.Table]:
        """The rows of every alias, in the order of their arrival."""
        table = table.sort_by("seq")
        side = table["side"]
        return [table.filter(pc.equal(side, source)) for source in self.sides]

    def _encoded(self, parts: list[pa.Table]) -> tuple[list[pa.Table], list[list[Int64]], list[Comparison]]:
        """Rows that can match at all, and their operands as integers that compare as the values do."""
        codes: list[list[Int64]] = [[] for _ in parts]
        masks = [np.ones(part.num_rows, bool) for part in parts]
        comparisons = []
        for left, op, right in self.conditions:
            encoded, valid = theta.encode([parts[o.alias][o.column] for o in (left, right)])
            for operand, values, mask in zip((left, right), encoded, valid, strict=True):
                codes[operand.alias].append(values)
                masks[operand.alias] &= mask
            comparisons.append(
                Comparison(left.alias, len(codes[left.alias]) - 1, op, right.alias, len(codes[right.alias]) - 1)
            )
        kept = [part.filter(pa.array(mask)) for part, mask in zip(parts, masks, strict=True)]
        for own, mask in zip(codes, masks, strict=True):
            if not own:  # a stream without a condition still has a number of rows
                own.append(np.zeros(len(mask), np.int64))
        return kept, [[each[mask] for each in own] for own, mask in zip(codes, masks, strict=True)], comparisons


def _part(number: int, part: str, names: tuple[str, str], seq: Int64, **columns: Int64) -> pa.Table:
    n = len(seq)
    arrays: dict[str, Any] = {
        "edge": np.full(n, number, np.int32),
        "part": pa.array([part] * n, pa.string()),
        "near": pa.array([names[0]] * n, pa.string()),
        "far": pa.array([names[1]] * n, pa.string()),
        "seq": seq,
    }
    for name in ("position", "first", "last"):
        arrays[name] = pa.array(columns[name], pa.int64()) if name in columns else pa.nulls(n, pa.int64())
    return pa.table(arrays, schema=RANGES)


def _filters(
    number: int, names: tuple[str, str], near: Int64, far: Int64, limits: Int64, places: Int64
) -> list[pa.Table]:
    found = []
    for place in range(len(limits)):
        at = np.full(len(near), place, np.int64)
        found.append(_part(number, "near_filter", names, near, position=at, first=limits[place]))
        at = np.full(len(far), place, np.int64)
        found.append(_part(number, "far_filter", names, far, position=at, first=places[place]))
    return found


def united(tables: Iterable[pa.Table]) -> pa.Table:
    """One factorised result from those of the pieces of a join of two streams, far rows of one piece after another.

    Raises
    ------
    ValueError
        If a piece has filters (three inequalities or more) or more than one edge: expand each piece instead.
    """
    found, base = [], 0
    for table in tables:
        if table.num_rows and not set(table["part"].unique().to_pylist()) <= {"order", "run"}:
            raise ValueError("a piece has filters, which hold within it only: expand each piece")
        if table.num_rows and table["edge"].unique().to_pylist() != [0]:
            raise ValueError("a piece has several edges: expand each piece")
        for name in ("position", "first", "last"):
            table = table.set_column(table.schema.get_field_index(name), RANGES.field(name), pc.add(table[name], base))
        found.append(table)
        base += pc.sum(pc.equal(table["part"], "order")).as_py() or 0
    return pa.concat_tables(found) if found else RANGES.empty_table()


def expand(table: pa.Table, aliases: Sequence[str]) -> dict[str, Int64]:
    """The result rows of one window's factorised result.

    Parameters
    ----------
    table
        Rows of `RANGES`, in any order.
    aliases
        Streams in the order of the query.

    Returns
    -------
    dict of int64[n]
        Alias to the `seq` of each result's row, results in lexicographic order.
    """
    found: dict[str, Int64] = {}
    numbers = sorted(set(table["edge"].to_pylist()))
    for number in numbers:
        edge = table.filter(pc.equal(table["edge"], number))
        near, far = edge["near"][0].as_py(), edge["far"][0].as_py()
        if far not in found:
            runs = edge.filter(pc.equal(edge["part"], "run"))
            order = edge.filter(pc.equal(edge["part"], "order")).sort_by("position")["seq"].to_numpy()
            found = _follow(found, near, far, runs, order)
        found = _kept(found, near, far, edge)
    if len(found) < len(aliases):  # an edge without a row: there is no result
        return {alias: np.empty(0, np.int64) for alias in aliases}
    place = np.lexsort([found[alias] for alias in reversed(aliases)])
    return {alias: found[alias][place] for alias in aliases}


def _follow(found: dict[str, Int64], near: str, far: str, runs: pa.Table, order: Int64) -> dict[str, Int64]:
    seq, first, last = (runs[name].to_numpy() for name in ("seq", "first", "last"))
    by = np.argsort(seq, kind="stable")
    seq, first, last = seq[by], first[by], last[by]
    known = found or {near: np.unique(seq)}
    low, high = np.searchsorted(seq, known[near], "left"), np.searchsorted(seq, known[near], "right")
    at = np.repeat(np.arange(len(known[near])), high - low)
    run = np.repeat(low, high - low) + _within(high - low)
    length = last[run] - first[run]
    again = np.repeat(at, length)
    position = np.repeat(first[run], length) + _within(length)
    return {alias: values[again] for alias, values in known.items()} | {far: order[position]}


def _kept(found: dict[str, Int64], near: str, far: str, edge: pa.Table) -> dict[str, Int64]:
    ours = edge.filter(pc.equal(edge["part"], "near_filter"))
    for number in sorted(set(ours["position"].to_pylist())):
        values = []
        for part, alias in (("near_filter", near), ("far_filter", far)):
            own = edge.filter(pc.and_(pc.equal(edge["part"], part), pc.equal(edge["position"], number))).sort_by("seq")
            values.append(own["first"].to_numpy()[np.searchsorted(own["seq"].to_numpy(), found[alias])])
        keep = values[1] < values[0]
        found = {alias: each[keep] for alias, each in found.items()}
    return found


def _within(lengths: Int64) -> Int64:
    return np.asarray(np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths), np.int64)
