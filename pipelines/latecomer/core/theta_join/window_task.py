"""The theta join of one window on Arrow tables, as a Spark task runs it: rows, counts and ranges.

A task receives the rows of one window, all streams in one table, and returns result rows. A column may mark new rows
(registered late, repaired now). Then only results with at least one new row are produced, each once, and each carries
the latest repair of its rows. No other result is formed: the results with their first new row in stream `k` are a join
of old rows of the streams before `k`, new rows of stream `k`, and all rows of the later streams.

Ordering: none. Cost: that of :mod:`latecomer.core.theta_join.join`, at most once per stream; `increments` of three
streams and more: once per value of the column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

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
"""Bits for the positions in the factorised result of one piece; the bits above hold the number of the piece."""
CHUNK_ROWS = 1 << 18
"""Result rows per Arrow batch."""
SMALL_ROWS = 1 << 12
"""Greatest number of rows of a window that shares a join with others: see `WindowJoin.for_many_windows`."""

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
"""The schema of a factorised result. The column `part` says what a row means.

* ``order``: the far row `seq` is at `position`; positions ascend and may have gaps.
* ``run``: the near row `seq` matches the far rows at positions ``[first, last)``.
* ``near_filter`` and ``far_filter``: a pair of this edge counts only if, for each filter number `position`, the far
  row's `first` is less than the near row's `first`.
"""


@dataclass(frozen=True)
class Operand:
    """One side of a condition: the position of its alias, and the name of its column in the table."""

    alias: int
    column: str


@dataclass(frozen=True)
class WindowJoin:
    """The theta join of one window's table.

    Parameters
    ----------
    aliases, sides
        Names of the streams in the query, and the source (value of column ``side``) that each reads.
    conditions
        Triples of operand, op, operand.
    payload
        Per alias, the columns of the table that a result row needs besides ``seq``.
    method
        A published rival with the signature of :func:`latecomer.core.theta_join.join.rows`; None: that function.
    partitions
        Partitions that the query names, for rivals and for windows that are cut; None: their default.
    """

    aliases: tuple[str, ...]
    sides: tuple[int, ...]
    conditions: tuple[tuple[Operand, str, Operand], ...]
    payload: tuple[tuple[str, ...], ...]
    method: Method | None = None
    partitions: int | None = None

    def rows(self, table: pa.Table, new: str | None = None) -> Iterator[pa.Table]:
        """Yield the result rows in chunks.

        Parameters
        ----------
        table
            Rows of one window, with columns ``side``, ``seq``, operands and payload.
        new
            An int64 column, -1 for old rows; only results with a new row are produced.

        Yields
        ------
        pyarrow.Table
            Columns ``<position>_seq`` and ``<position>_<payload column>``, and with `new` its greatest value as
            ``_new``.
        """
        parts = self._parts(table)
        if new is None:
            yield from self._produced(parts, None)
            return
        fresh = [part[new].to_numpy() >= 0 for part in parts]
        for k in range(len(parts)):
            if fresh[k].any():
                chosen = [
                    part.filter(pa.array(~is_new if i < k else is_new)) if i <= k else part
                    for i, (part, is_new) in enumerate(zip(parts, fresh, strict=True))
                ]
                yield from self._produced(chosen, new)

    def _produced(self, parts: list[pa.Table], new: str | None) -> Iterator[pa.Table]:
        """Yield the result rows of the given rows of every alias."""
        parts, streams, comparisons = self._encoded(parts)
        for chunk in self._iterate(streams, comparisons):
            columns: dict[str, pa.Array | pa.ChunkedArray] = {}
            latest: Int64 | None = None
            for place, (part, at) in enumerate(zip(parts, chunk, strict=True)):
                columns[f"{place}_seq"] = part["seq"].take(pa.array(at))
                for name in self.payload[place]:
                    columns[f"{place}_{name}"] = part[name].take(pa.array(at))
                if new is not None:
                    repair = part[new].to_numpy()[at]
                    latest = repair if latest is None else np.maximum(latest, repair)
            if latest is not None:
                columns["_new"] = pa.array(latest)
            yield pa.table(columns)

    def _iterate(self, streams: list[list[Int64]], comparisons: list[Comparison]) -> Iterator[list[Int64]]:
        """Yield chunks of results as row numbers, one array per stream."""
        if any(not len(columns[0]) for columns in streams):
            return
        if self.method is None:
            yield from theta.iter_rows(streams, comparisons, chunk_rows=CHUNK_ROWS)
            return
        whole = self.method(streams, comparisons, **self._partition_argument)
        for start in range(0, len(whole[0]), CHUNK_ROWS):
            yield [column[start : start + CHUNK_ROWS] for column in whole]

    def count(self, table: pa.Table) -> int:
        """Return the number of results."""
        _, streams, comparisons = self._encoded(self._parts(table))
        return self._count(streams, comparisons)

    def _count(self, streams: list[list[Int64]], comparisons: list[Comparison]) -> int:
        """Return the number of results of encoded streams."""
        if any(not len(columns[0]) for columns in streams):
            return 0
        if self.method is None:
            return theta.count(streams, comparisons)
        return len(self.method(streams, comparisons, **self._partition_argument)[0])

    @property
    def _partition_argument(self) -> dict[str, int]:
        """The number of partitions as a keyword argument, if the query names one."""
        return {} if self.partitions is None else {"partitions": self.partitions}

    def for_many_windows(self, key: str) -> WindowJoin:
        """Return the join of several windows in one table; its int64 column `key` numbers the window of a row.

        The window becomes an equality along every compared pair of streams. So many small windows cost as much as one
        window of all their rows. `rows` returns the column as ``0_<key>``; for counts see `counts_by_window`. Ranges
        exist for one window only.
        """
        pairs = sorted({tuple(sorted((left.alias, right.alias))) for left, _, right in self.conditions})
        reached = {0}
        for _ in self.aliases:
            reached |= {alias for pair in pairs if reached & set(pair) for alias in pair}
            lone = [alias for alias in range(len(self.aliases)) if alias not in reached]
            if lone and not any(reached & set(pair) and set(pair) - reached for pair in pairs):
                pairs.append((0, lone[0]))
        same = tuple((Operand(left, key), "=", Operand(right, key)) for left, right in pairs)
        payload = ((*self.payload[0], key), *self.payload[1:])
        return replace(self, conditions=(*self.conditions, *same), payload=payload)

    def counts_by_window(self, table: pa.Table, key: str, windows: int) -> Int64:
        """Return the number of results of each window of a table for `for_many_windows`, int64[windows].

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
        """Count the results by their greatest value of `new`: by how much each value made the number of results grow.

        Two streams take one pass. With more streams, or a rival, the results are counted again with each value, in the
        windows that have so many values.

        Parameters
        ----------
        table
            Rows of one window, or of several windows (`for_many_windows`).
        new
            An int64 column, -1 for old rows.
        key
            Of several windows, the int64 column that numbers the window of a row.

        Returns
        -------
        key, new, results
            int64[k], int64[k] and k whole numbers above 0, each pair of the first two once, in order. The key is 0 for
            a single window.
        """
        parts, streams, comparisons = self._encoded(self._parts(table))
        if any(not len(columns[0]) for columns in streams):
            return np.empty(0, np.int64), np.empty(0, np.int64), []
        keys = [np.zeros(part.num_rows, np.int64) if key is None else part[key].to_numpy() for part in parts]
        both = np.concatenate(keys), np.concatenate([part[new].to_numpy() for part in parts])
        order, rank = sort_order(*both), np.empty(len(both[0]), np.int64)
        begins = run_bounds(*(column[order] for column in both))[:-1]
        first = run_bounds(both[0][order[begins]])  # per key, the first of its distinct values
        values = np.diff(first)
        number = np.arange(len(begins)) - np.repeat(first[:-1], values)
        rank[order] = np.repeat(number, np.diff(np.append(begins, len(order))))
        ends = np.cumsum([part.num_rows for part in parts])[:-1]
        ranks = np.split(rank, ends)
        if self.method is None and len(streams) == 2:
            per_row = theta.latest(streams, comparisons, ranks)
            sums = np.add.reduceat(np.concatenate(per_row)[order], begins).astype(object)
        else:
            window = np.searchsorted(both[0][order[begins[first[:-1]]]], both[0])
            sums = self._grown(streams, comparisons, ranks, np.split(window, ends), values)
        positive = np.flatnonzero(sums > 0)
        at = order[begins[positive]]
        return both[0][at], both[1][at], sums[positive].tolist()

    def _grown(
        self,
        streams: list[list[Int64]],
        comparisons: list[Comparison],
        ranks: list[Int64],
        windows: list[Int64],
        ranks_per_window: Int64,
    ) -> NDArray[np.object_]:
        """Return per window and rank, in this order, the results that a rank adds to those of lower ranks."""
        sums = np.zeros(int(ranks_per_window.sum()), object)
        first = np.cumsum(ranks_per_window) - ranks_per_window
        for number in range(int(ranks_per_window.max())):
            chosen = [
                (rank <= number) & (ranks_per_window[window] > number)
                for rank, window in zip(ranks, windows, strict=True)
            ]
            known = [[column[rows] for column in columns] for columns, rows in zip(streams, chosen, strict=True)]
            if any(not len(columns[0]) for columns in known):
                continue
            if len(ranks_per_window) == 1:
                sums[number] = self._count(known, comparisons)
            else:
                matches = theta.matches(known, comparisons, 0)
                per_window = np.zeros(len(ranks_per_window), np.int64)
                np.add.at(per_window, windows[0][chosen[0]], matches)
                has_rank = ranks_per_window > number
                sums[first[has_rank] + number] = per_window[has_rank]
        before = np.append([0], sums[:-1])
        before[first] = 0
        grown: NDArray[np.object_] = sums - before
        return grown

    def ranges(self, table: pa.Table, piece: int = 0) -> pa.Table:
        """Return the factorised result in the schema `RANGES`; :func:`expand` is its inverse.

        Positions begin at ``piece << PIECE_BITS``.
        """
        parts, streams, comparisons = self._encoded(self._parts(table))
        if any(not len(columns[0]) for columns in streams):
            return RANGES.empty_table()
        factorised = theta.ranges(streams, comparisons)
        seqs = [part["seq"].to_numpy() for part in parts]
        tables = []
        for number, edge in enumerate(factorised.edges):
            names = (self.aliases[edge.near], self.aliases[edge.far])
            order = seqs[edge.far][edge.order]
            base = np.int64(piece) << PIECE_BITS
            tables.append(_part(number, "order", names, order, position=base + np.arange(len(order))))
            runs = {"first": base + edge.first, "last": base + edge.last}
            tables.append(_part(number, "run", names, seqs[edge.near][edge.row], **runs))
            tables += _filters(number, names, seqs[edge.near], seqs[edge.far], edge.limits, edge.places)
        for number, (near, far, limits, places) in enumerate(factorised.closing, len(factorised.edges)):
            names = (self.aliases[near], self.aliases[far])
            tables += _filters(number, names, seqs[near], seqs[far], limits, places)
        return pa.concat_tables(tables)

    @property
    def can_join_many_windows(self) -> bool:
        """May small windows share a join? Not by a rival; and no count of one window may need more than 63 bits."""
        return self.method is None and SMALL_ROWS ** len(self.aliases) < 1 << 63

    @property
    def planned_condition(self) -> int:
        """The number of the condition along which a window is cut.

        Of the first two streams that are compared, it is the first equality, else the first inequality.
        """
        pairs = [tuple(sorted((left.alias, right.alias))) for left, _, right in self.conditions]
        places = [place for place, pair in enumerate(pairs) if pair == min(pairs)]
        return next((place for place in places if self.conditions[place][1] == "="), places[0])

    @property
    def ranges_can_unite(self) -> bool:
        """Do the `ranges` of pieces unite to those of the window? Not if a filter or a second edge is of one piece."""
        return len(self.aliases) == 2 and sum(op != "=" for _, op, _ in self.conditions) < 3

    def for_piece(self, whole: bool) -> WindowJoin:
        """Return the join of one piece of a cut window, where column ``side`` numbers the aliases.

        With `whole` the planned condition holds for all pairs of the piece. The `rows` of all pieces (also with `new`)
        are the rows of the window, each once. Their `count` adds up. For `ranges` see `ranges_can_unite`.
        """
        conditions = tuple(c for place, c in enumerate(self.conditions) if not whole or place != self.planned_condition)
        return replace(self, sides=tuple(range(len(self.aliases))), conditions=conditions)

    def encode(self, table: pa.Table) -> tuple[list[pa.Table], list[list[Int64]], list[Comparison]]:
        """Return the rows of every alias that can match, their operands as integers, and the comparisons of these."""
        return self._encoded(self._parts(table))

    def _parts(self, table: pa.Table) -> list[pa.Table]:
        """Return the rows of every alias in the order of their arrival."""
        table = table.sort_by("seq")
        side = table["side"]
        return [table.filter(pc.equal(side, source)) for source in self.sides]

    def _encoded(self, parts: list[pa.Table]) -> tuple[list[pa.Table], list[list[Int64]], list[Comparison]]:
        """Return the rows that can match at all, and their operands as integers that compare as the values do."""
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
        for columns, mask in zip(codes, masks, strict=True):
            if not columns:  # a stream without a condition still has a number of rows
                columns.append(np.zeros(len(mask), np.int64))
        streams = [[column[mask] for column in columns] for columns, mask in zip(codes, masks, strict=True)]
        return kept, streams, comparisons


def _part(number: int, part: str, names: tuple[str, str], seq: Int64, **columns: Int64) -> pa.Table:
    """Return rows of one part of an edge in the schema `RANGES`."""
    n = len(seq)
    arrays: dict[str, pa.Array | np.ndarray] = {
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
    """Return the filters of an edge in the schema `RANGES`."""
    tables = []
    for place in range(len(limits)):
        at = np.full(len(near), place, np.int64)
        tables.append(_part(number, "near_filter", names, near, position=at, first=limits[place]))
        at = np.full(len(far), place, np.int64)
        tables.append(_part(number, "far_filter", names, far, position=at, first=places[place]))
    return tables


def expand(table: pa.Table, aliases: Sequence[str]) -> dict[str, Int64]:
    """Return the result rows of one window's factorised result.

    Parameters
    ----------
    table
        Rows in the schema `RANGES`, in any order.
    aliases
        Streams in the order of the query.

    Returns
    -------
    dict of int64[n]
        Per alias the `seq` of each result's row; results in lexicographic order.
    """
    results: dict[str, Int64] = {}
    numbers = sorted(set(table["edge"].to_pylist()))
    for number in numbers:
        edge = table.filter(pc.equal(table["edge"], number))
        near, far = edge["near"][0].as_py(), edge["far"][0].as_py()
        if far not in results:
            runs = edge.filter(pc.equal(edge["part"], "run"))
            if not runs.num_rows:  # there is no result, though edges that close a cycle may hold rows
                break
            order = edge.filter(pc.equal(edge["part"], "order")).sort_by("position")
            results = _follow(results, near, far, runs, order)
        results = _filtered(results, near, far, edge)
    if len(results) < len(aliases):  # an edge without rows: there is no result
        return {alias: np.empty(0, np.int64) for alias in aliases}
    place = np.lexsort([results[alias] for alias in reversed(aliases)])
    return {alias: results[alias][place] for alias in aliases}


def _follow(results: dict[str, Int64], near: str, far: str, runs: pa.Table, far_order: pa.Table) -> dict[str, Int64]:
    """Extend partial results along one edge."""
    positions, order = far_order["position"].to_numpy(), far_order["seq"].to_numpy()
    seq = runs["seq"].to_numpy()
    first, last = (np.searchsorted(positions, runs[name].to_numpy()) for name in ("first", "last"))
    by = np.argsort(seq, kind="stable")
    seq, first, last = seq[by], first[by], last[by]
    known = results or {near: np.unique(seq)}
    low, high = np.searchsorted(seq, known[near], "left"), np.searchsorted(seq, known[near], "right")
    at = np.repeat(np.arange(len(known[near])), high - low)
    run = np.repeat(low, high - low) + _within(high - low)
    length = last[run] - first[run]
    again = np.repeat(at, length)
    position = np.repeat(first[run], length) + _within(length)
    return {alias: values[again] for alias, values in known.items()} | {far: order[position]}


def _filtered(results: dict[str, Int64], near: str, far: str, edge: pa.Table) -> dict[str, Int64]:
    """Keep the partial results that pass the filters of an edge."""
    near_filters = edge.filter(pc.equal(edge["part"], "near_filter"))
    for number in sorted(set(near_filters["position"].to_pylist())):
        values = []
        for part, alias in (("near_filter", near), ("far_filter", far)):
            chosen = pc.and_(pc.equal(edge["part"], part), pc.equal(edge["position"], number))
            rows = edge.filter(chosen).sort_by("seq")
            values.append(rows["first"].to_numpy()[np.searchsorted(rows["seq"].to_numpy(), results[alias])])
        keep = values[1] < values[0]
        results = {alias: column[keep] for alias, column in results.items()}
    return results


def _within(lengths: Int64) -> Int64:
    """Return the numbers 0, 1, ... within runs of these lengths, one after the other."""
    return np.asarray(np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths), np.int64)
