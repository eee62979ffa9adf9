"""A theta join of one window as Arrow tables: what a Spark task runs, for rows, counts and ranges.

A task is handed the rows of one window, all streams in one table, and gives back result rows. Which rows are new (registered
late, repaired now) can be said by a column: then only results with at least one new row are produced, each once, and each
carries the latest repair of its rows. That is done without looking at the others: the results whose first new row is of
stream `k` are a join in which streams before `k` give old rows, stream `k` new rows, and later streams all of theirs.

Ordering: none. Cost: that of :mod:`latecomer.core.theta_join.join`, at most once per stream; `increments` of three streams and more: once per
value of the column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from latecomer.core.arrays.composite_keys import run_bounds, sort_order
from latecomer.core.theta_join import join as theta
from latecomer.core.theta_join.edges import Comparison
from latecomer.core.theta_join.encode import encode

Int64 = NDArray[np.int64]
Method = Callable[..., list[Int64]]

PIECE_BITS = 40
"""Positions of one piece's factorised result lie within this many bits, above them its number."""
CHUNK_ROWS = 1 << 18
"""Result rows per Arrow batch."""
SMALL_ROWS = 1 << 12
"""Rows of a window up to which it shares a join with others: see `WindowJoin.for_many_windows`."""

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

``order``: far row `seq` stands at `position`; positions ascend and may have gaps. ``run``: near row `seq` matches the far rows at positions ``[first, last)``.
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
        A rival with the signature of :func:`latecomer.core.theta_join.join.rows`, in its place; None: ours.
    partitions
        As in the query: for rivals, and for windows that are cut; None: the rivals' default, by a window's rows.
    """

    aliases: tuple[str, ...]
    sides: tuple[int, ...]
    conditions: tuple[tuple[Operand, str, Operand], ...]
    payload: tuple[tuple[str, ...], ...]
    method: Method | None = None
    partitions: int | None = None

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
        whole = self.method(streams, comparisons, **self._asked)
        for start in range(0, len(whole[0]), CHUNK_ROWS):
            yield [each[start : start + CHUNK_ROWS] for each in whole]

    def count(self, table: pa.Table) -> int:
        """Number of results."""
        _, streams, comparisons = self._encoded(self._parts(table))
        return self._count(streams, comparisons)

    def _count(self, streams: list[list[Int64]], comparisons: list[Comparison]) -> int:
        if any(not len(columns[0]) for columns in streams):
            return 0
        if self.method is None:
            return theta.count(streams, comparisons)
        return len(self.method(streams, comparisons, **self._asked)[0])

    @property
    def _asked(self) -> dict[str, int]:
        return {} if self.partitions is None else {"partitions": self.partitions}

    def for_many_windows(self, key: str) -> WindowJoin:
        """The join of several windows in one table, whose int64 column `key` says which a row is of.

        The window becomes an equality along every compared pair of streams, so many small windows cost what one of all their rows
        does. `rows` gives the column back as ``0_<key>``; for counts see `counts_by_window`. Ranges are per window and are not shared.
        """
        pairs = sorted({tuple(sorted((left.alias, right.alias))) for left, _, right in self.conditions})
        reached = {0}
        for _ in self.aliases:
            reached |= {alias for pair in pairs if reached & set(pair) for alias in pair}
            lone = [alias for alias in range(len(self.aliases)) if alias not in reached]
            if lone and not any(reached & set(pair) and set(pair) - reached for pair in pairs):
                pairs.append((0, lone[0]))
        same = tuple((Operand(one, key), "=", Operand(other, key)) for one, other in pairs)
        payload = ((*self.payload[0], key), *self.payload[1:])
        return replace(self, conditions=(*self.conditions, *same), payload=payload)

    def counts_by_window(self, table: pa.Table, key: str, windows: int) -> Int64:
        """int64[windows], the number of results of each window of a table for `for_many_windows`.

        Raises
        ------
        OverflowError
            If a row takes part in more than 2**63 - 1 results.
        """
        parts, streams, comparisons = self._encoded(self._parts(table))
        out = np.zeros(windows, np.int64)
        if all(len(columns[0]) for columns in streams):
            np.add.at(out, parts[0][key].to_numpy(), theta.matches(streams, comparisons, 0))
        return out

    def increments(self, table: pa.Table, new: str, key: str | None = None) -> tuple[Int64, Int64, list[int]]:
        """By how much the number of results grew with each value of `new`: results whose greatest value it is.

        Two streams: one pass. More, or a rival: counted again with each value, but only windows that have that many.

        Parameters
        ----------
        new
            An int64 column, -1 for old rows.
        key
            For a table of several windows (`for_many_windows`): the int64 column that says which a row is of.

        Returns
        -------
        key, new, results
            int64[k], int64[k] and k whole numbers, every pair of the first two once, in order; the key is 0 where there is none.
            Only what is not 0.
        """
        parts, streams, comparisons = self._encoded(self._parts(table))
        if any(not len(columns[0]) for columns in streams):
            return np.empty(0, np.int64), np.empty(0, np.int64), []
        keys = [np.zeros(part.num_rows, np.int64) if key is None else part[key].to_numpy() for part in parts]
        both = np.concatenate(keys), np.concatenate([part[new].to_numpy() for part in parts])
        order, rank = sort_order(*both), np.empty(len(both[0]), np.int64)
        begins = run_bounds(*(column[order] for column in both))[:-1]
        first = run_bounds(both[0][order[begins]])  # per key, the first of its distinct values
        each = np.diff(first)
        number = np.arange(len(begins)) - np.repeat(first[:-1], each)
        rank[order] = np.repeat(number, np.diff(np.append(begins, len(order))))
        ends = np.cumsum([part.num_rows for part in parts])[:-1]
        ranks = np.split(rank, ends)
        if self.method is None and len(streams) == 2:
            found = theta.latest(streams, comparisons, ranks)
            sums = np.add.reduceat(np.concatenate(found)[order], begins).astype(object)
        else:
            which = np.searchsorted(both[0][order[begins[first[:-1]]]], both[0])
            sums = self._grown(streams, comparisons, ranks, np.split(which, ends), each)
        some = np.flatnonzero(sums > 0)
        at = order[begins[some]]
        return both[0][at], both[1][at], sums[some].tolist()

    def _grown(
        self,
        streams: list[list[Int64]],
        comparisons: list[Comparison],
        ranks: list[Int64],
        windows: list[Int64],
        each: Int64,
    ) -> NDArray[np.object_]:
        """Per window and rank, one after the other, the results that are there with it and not without; windows have `each` many ranks."""
        sums = np.zeros(int(each.sum()), object)
        first = np.cumsum(each) - each
        for number in range(int(each.max())):
            chosen = [(rank <= number) & (each[own] > number) for rank, own in zip(ranks, windows, strict=True)]
            known = [[column[own] for column in columns] for columns, own in zip(streams, chosen, strict=True)]
            if any(not len(columns[0]) for columns in known):
                continue
            if len(each) == 1:
                sums[number] = self._count(known, comparisons)
            else:
                matches = theta.matches(known, comparisons, 0)
                there = np.zeros(len(each), np.int64)
                np.add.at(there, windows[0][chosen[0]], matches)
                live = each > number
                sums[first[live] + number] = there[live]
        before = np.append([0], sums[:-1])
        before[first] = 0
        return sums - before

    def ranges(self, table: pa.Table, piece: int = 0) -> pa.Table:
        """The factorised result in rows of `RANGES`; :func:`expand` is its inverse. Positions begin at ``piece << 40``."""
        parts, streams, comparisons = self._encoded(self._parts(table))
        if any(not len(columns[0]) for columns in streams):
            return RANGES.empty_table()
        found = theta.ranges(streams, comparisons)
        seqs = [part["seq"].to_numpy() for part in parts]
        tables = []
        for number, edge in enumerate(found.edges):
            names = (self.aliases[edge.near], self.aliases[edge.far])
            order = seqs[edge.far][edge.order]
            base = np.int64(piece) << PIECE_BITS
            tables.append(_part(number, "order", names, order, position=base + np.arange(len(order))))
            runs = {"first": base + edge.first, "last": base + edge.last}
            tables.append(_part(number, "run", names, seqs[edge.near][edge.row], **runs))
            tables += _filters(number, names, seqs[edge.near], seqs[edge.far], edge.limits, edge.places)
        for number, (near, far, limits, places) in enumerate(found.closing, len(found.edges)):
            names = (self.aliases[near], self.aliases[far])
            tables += _filters(number, names, seqs[near], seqs[far], limits, places)
        return pa.concat_tables(tables)

    @property
    def can_join_many_windows(self) -> bool:
        """May small windows be joined `for_many_windows`? Not by a rival; and no count of one may need more than 63 bits."""
        return self.method is None and SMALL_ROWS ** len(self.aliases) < 1 << 63

    @property
    def planned_condition(self) -> int:
        """Number of the condition along which a window is cut: of the first two streams that are compared, the first equality, else
        the first inequality."""
        pairs = [tuple(sorted((left.alias, right.alias))) for left, _, right in self.conditions]
        own = [place for place, pair in enumerate(pairs) if pair == min(pairs)]
        return next((place for place in own if self.conditions[place][1] == "="), own[0])

    @property
    def ranges_can_unite(self) -> bool:
        """Do the `ranges` of pieces unite to those of the window? Not where a filter or a second edge would hold for one piece only."""
        return len(self.aliases) == 2 and sum(op != "=" for _, op, _ in self.conditions) < 3

    def for_piece(self, whole: bool) -> WindowJoin:
        """The join of one piece of a cut window, where column ``side`` numbers the aliases; with `whole` the planned condition holds.

        `rows` of the pieces (also with `new`) are those of the whole, each once; `count` adds up; `ranges`, see `ranges_can_unite`.
        """
        left = tuple(c for place, c in enumerate(self.conditions) if not whole or place != self.planned_condition)
        return replace(self, sides=tuple(range(len(self.aliases))), conditions=left)

    def encode(self, table: pa.Table) -> tuple[list[pa.Table], list[list[Int64]], list[Comparison]]:
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
            encoded, valid = encode([parts[o.alias][o.column] for o in (left, right)])
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
            if not runs.num_rows:  # there is no result; edges that close a cycle may hold rows all the same
                break
            order = edge.filter(pc.equal(edge["part"], "order")).sort_by("position")
            found = _follow(found, near, far, runs, order)
        found = _kept(found, near, far, edge)
    if len(found) < len(aliases):  # an edge without a row: there is no result
        return {alias: np.empty(0, np.int64) for alias in aliases}
    place = np.lexsort([found[alias] for alias in reversed(aliases)])
    return {alias: found[alias][place] for alias in aliases}


def _follow(found: dict[str, Int64], near: str, far: str, runs: pa.Table, stood: pa.Table) -> dict[str, Int64]:
    positions, order = stood["position"].to_numpy(), stood["seq"].to_numpy()
    seq = runs["seq"].to_numpy()
    first, last = (np.searchsorted(positions, runs[name].to_numpy()) for name in ("first", "last"))
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
