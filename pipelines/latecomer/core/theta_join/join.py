"""Theta join of one window on arrays: counted, factorised, or row by row, and never more work than the form asks.

A result takes one row of every stream such that all conditions hold; conditions compare a column of one stream with a
column of another by ``<, <=, >, >=, =``. NaN matches nothing. Answers do not depend on how many partitions are asked
for, and row numbers come in lexicographic order.

Ordering: none asked of the input. Cost, for n rows in all and two streams or an acyclic join graph:

* `count`, `matches`: O(n log n) where no two streams share more than two inequalities (any number of equalities), by
  dynamic programming along the tree; no pair is built. Three and more inequalities on an edge: the two that rule out
  most shape the runs and the pairs they let through are tested one by one, without being stored.
* `rows`: O(n log n + output). With at most one inequality on an edge a row's list of matches is the one before it and
  some rows more, so it is merged and copied, at the speed of memory. With two, lists shorter than 1/64 of the far rows
  that are left are sorted, with a logarithm of their own length. Streams are first reduced to rows that take part in
  some result, so no intermediate result is larger than the last one. The rounds of `plan` (neighbouring pairs, then
  pairs of results) are for an executor that runs the pairs of a round at once; here the tree is followed stream by
  stream, which on reduced streams is bounded alike.
* `latest`: as two or three times `matches`; with two inequalities once more per bit of the ranks.
* `ranges`: linear space per edge with at most one inequality, O(n log n) runs with two; a third stays as a filter.

A cyclic join graph is enumerated along a spanning tree in chunks; the conditions that close a cycle filter as soon as
both of their streams are reached.

References
----------
.. [1] The FastThetaJoin algorithm, chapters 3 and 4 of the source thesis, 2020.
.. [2] M. Yannakakis, Algorithms for acyclic database schemes, VLDB 1981 (reduction before joining).
.. [3] B. Chazelle, A functional approach to data structures and its use in multidimensional searching, 1988.
.. [4] Z. Khayyat et al., Lightning fast and space efficient inequality joins, VLDB 2015 (two inequalities by
   permutations and positions).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latecomer.core.theta_join import kernels as kernels
from latecomer.core.theta_join.edges import Comparison, Edge, Query, Residuals, Step, Streams
from latecomer.core.theta_join.plan import PARTITIONS, check_partitions, partitioned_edge
from latecomer.core.theta_join.ranks import Stats
from latecomer.core.theta_join.sums import Sums

Int64 = NDArray[np.int64]
_CHUNK = 1 << 20


@dataclass(frozen=True)
class RangeEdge:
    """The pairs between two streams as runs, lossless.

    Attributes
    ----------
    near, far
        Stream numbers; `near` is reached first.
    order
        Integers, row numbers of the far stream, sorted by the first inequality (with two, once per level of blocks).
    row, first, last
        Integers [k], in any order: near row ``row[i]`` matches ``order[first[i]:last[i]]``, half-open. A row may have
        several runs, which share no far row. With two inequalities these four are int32 where that holds them.
    limits, places
        int64[r, rows of near] and int64[r, rows of far], usually r = 0: filters kept for the third and further
        inequalities; a pair counts where ``places[:, far] < limits[:, near]`` everywhere.
    """

    near: int
    far: int
    order: kernels.Ints
    row: kernels.Ints
    first: kernels.Ints
    last: kernels.Ints
    limits: Int64
    places: Int64


@dataclass(frozen=True)
class Ranges:
    """A factorised result: a tree of edges from stream 0, and filters that close cycles.

    Attributes
    ----------
    sizes
        Rows per stream.
    edges
        In the order in which streams are reached.
    closing
        For cyclic graphs: ``(near, far, limits, places)``, read as in `RangeEdge`.
    """

    sizes: tuple[int, ...]
    edges: tuple[RangeEdge, ...]
    closing: tuple[tuple[int, int, Int64, Int64], ...]


def count(streams: Streams, conditions: Sequence[Comparison], *, stats: Stats | None = None) -> int:
    """Number of results, exact at any size.

    Parameters
    ----------
    streams
        ``streams[i][c]`` is operand column c of stream i, int64[n_i] or float64[n_i].
    conditions
        All must hold.
    stats
        Added to.

    Returns
    -------
    int
        A Python int; beyond 63 bits the sum is taken modulo 2**64 and several primes and put together at the end.

    Raises
    ------
    ValueError, TypeError
        As `latecomer.core.theta_join.edges.Query`.
    """
    query = Query(streams, conditions)
    kept = query.coarse(stats)
    if query.tree(0)[1]:
        total = sum(len(chunk[0]) for chunk in _chunks(query, kept, _CHUNK, 0, stats))
    else:
        total = _tree_count(query, kept, stats)
    if stats is not None:
        stats.results += total
    return total


def matches(streams: Streams, conditions: Sequence[Comparison], of: int, *, stats: Stats | None = None) -> Int64:
    """Per row of stream `of`, in how many results it takes part.

    Parameters and errors as `count`.

    Returns
    -------
    int64[n_of]
        Zero for rows that match nothing. Its sum is `count`; weighted by a key it counts per key.

    Raises
    ------
    OverflowError
        If a row takes part in more than 2**63 - 1 results.
    """
    query = Query(streams, conditions)
    if not 0 <= of < len(streams):
        raise ValueError(f"of is {of}: there are streams 0 to {len(streams) - 1}")
    kept = query.coarse(stats)
    found: NDArray[Any] = np.zeros(query.sizes[of], np.int64)
    if query.tree(of)[1]:
        for chunk in _chunks(query, kept, _CHUNK, 0, stats):
            found += np.bincount(chunk[of], minlength=query.sizes[of])
    else:
        found = _tree_matches(query, of, kept, stats)
        if found.dtype == object:
            if max(found, default=0) > np.iinfo(np.int64).max:
                raise OverflowError(f"a row of stream {of} takes part in more than 2**63 - 1 results: use count()")
            found = found.astype(np.int64)
    if stats is not None:
        stats.results += int(found.astype(object).sum())
    return found


def latest(streams: Streams, conditions: Sequence[Comparison], ranks: Sequence[Int64]) -> list[Int64]:
    """Per row of two streams, in how many results it is the one of greater rank, or of equal rank and of stream 0.

    Every result is counted once, at the rank that it has as a whole: so one pass tells how the number of results grew while rows
    came rank by rank. The comparison of ranks is one more inequality; where that would be a third, which is tested pair by pair,
    it is an equality per bit instead: the greater rank has the first bit that differs.

    Parameters
    ----------
    streams, conditions
        As for `count`, two streams.
    ranks
        int64[n_0] and int64[n_1], 0 or greater; small numbers are less work.

    Returns
    -------
    list of int64[n_0], int64[n_1]
        Their sum is `count`.

    Raises
    ------
    ValueError, TypeError
        As `count`; or there are not two streams.
    """
    if len(streams) != 2:
        raise ValueError(f"there are {len(streams)} streams: give 2")
    found = [np.zeros(len(rank), np.int64) for rank in ranks]
    if sum(c.op != "=" for c in conditions) != 2:
        last = len(streams[0]), len(streams[1])
        known = [[*columns, rank] for columns, rank in zip(streams, ranks, strict=True)]
        for of, op in enumerate((">=", "<")):
            found[of] += matches(known, [*conditions, Comparison(0, last[0], op, 1, last[1])], of)
        return found
    most = max((int(rank.max(initial=0)) for rank in ranks), default=0)
    for bit in range(most.bit_length()):
        above = [rank >> (bit + 1) for rank in ranks]
        upper = [rank >> bit & 1 == 1 for rank in ranks]
        for of in (0, 1):
            chosen = [upper[side] if side == of else ~upper[side] for side in (0, 1)]
            _add(found[of], chosen, streams, conditions, above, of)
    _add(found[0], [np.ones(len(rank), np.bool_) for rank in ranks], streams, conditions, ranks, 0)
    return found


def _add(
    found: Int64,
    chosen: Sequence[NDArray[np.bool_]],
    streams: Streams,
    conditions: Sequence[Comparison],
    same: Sequence[Int64],
    of: int,
) -> None:
    """Add to `found` the matches of the chosen rows of stream `of` with those of the other whose `same` is equal."""
    if not all(each.any() for each in chosen):
        return
    some = [
        [column[own] for column in (*columns, extra)] for columns, extra, own in zip(streams, same, chosen, strict=True)
    ]
    equal = Comparison(0, len(streams[0]), "=", 1, len(streams[1]))
    found[chosen[of]] += matches(some, [*conditions, equal], of)


def rows(
    streams: Streams,
    conditions: Sequence[Comparison],
    *,
    partitions: int = PARTITIONS,
    stats: Stats | None = None,
) -> list[Int64]:
    """All results as row numbers.

    Parameters
    ----------
    streams, conditions, stats
        As for `count`.
    partitions
        As for `plan`; it changes the work, not the answer. An edge with one inequality follows the plan: partition
        pairs that match wholly are produced without a comparison, the diagonal is sorted and searched.

    Returns
    -------
    list of int64[results]
        One array per stream, in lexicographic order of (row of stream 0, row of stream 1, ...).

    Raises
    ------
    ValueError, TypeError
        As `plan`. Memory is the caller's to watch: `count` says how many, `iter_rows` bounds it.
    """
    check_partitions(partitions)
    query = Query(streams, conditions)
    stats = stats if stats is not None else Stats()
    out = _expanded(query, query.coarse(stats), partitions, stats)
    stats.results += len(out[0])
    return out


def iter_rows(
    streams: Streams, conditions: Sequence[Comparison], chunk_rows: int, *, stats: Stats | None = None
) -> Iterator[list[Int64]]:
    """The results of `rows`, in the same order, in chunks of at most `chunk_rows` results.

    Memory is O(n log n + chunk_rows). Every chunk costs O(n) or, with three streams and more, O(n log n) besides its
    results, so choose chunks of n rows or more. For a cyclic graph a chunk is cut before the closing filters and may be
    small; empty ones are left out.

    Raises
    ------
    ValueError
        For `chunk_rows` below 1.
    """
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows is {chunk_rows}: give 1 or more")
    query = Query(streams, conditions)
    for chunk in _chunks(query, query.coarse(stats), chunk_rows, 0, stats):
        if stats is not None:
            stats.results += len(chunk[0])
        yield chunk


def ranges(streams: Streams, conditions: Sequence[Comparison], *, stats: Stats | None = None) -> Ranges:
    """The result factorised: per edge of the join tree, runs of sorted far rows.

    Space is O(n) per edge with at most one inequality and any equalities, O(n log n) with two or more (the answer of
    two inequalities is cut into canonical runs, so no filter is left; a third and further ones stay as filters).
    With three streams and more, rows that take part in no result are removed first.

    Parameters and errors as `count`.
    """
    query = Query(streams, conditions)
    kept = query.coarse(stats)
    if len(streams) > 2:
        kept = _reduced(query, kept, stats)
    steps, closing = query.tree(0)
    edges = []
    for step in steps:
        edge = query.edge(step, kept, stats)
        limits, places = edge.residuals.limits, edge.residuals.places
        edges.append(RangeEdge(step.near, step.far, *edge.runs(), limits, places))
    filters = []
    for step in closing:
        kept_back = query.residuals(step, query.between(step.near, step.far))
        filters.append((step.near, step.far, kept_back.limits, kept_back.places))
    return Ranges(tuple(query.sizes), tuple(edges), tuple(filters))


def expand(factorised: Ranges) -> list[Int64]:
    """The rows of a factorised result: equal to `rows` of what it was made from, in the same order."""
    steps = [Step(edge.near, edge.far) for edge in factorised.edges]
    adjacency = []
    for edge in factorised.edges:
        near_size, far_size = factorised.sizes[edge.near], factorised.sizes[edge.far]
        if not len(edge.limits) and np.bincount(edge.row, minlength=1).max() < 2:
            starts, far = kernels.expand_prefixes(edge.row, edge.first, edge.last, edge.order, near_size, far_size)
        else:
            starts, far = kernels.expand_runs(
                edge.row, edge.first, edge.last, edge.order, edge.limits, edge.places, near_size
            )
            kernels.sort_runs(starts, far, far_size)
        adjacency.append((starts, far))
    filters = [(Step(near, far), Residuals(limits, places)) for near, far, limits, places in factorised.closing]
    return _followed(factorised.sizes, np.arange(factorised.sizes[0]), steps, adjacency, filters)


def _tree_count(query: Query, kept: Sequence[Int64], stats: Stats | None) -> int:
    """Results of an acyclic query. Its root is a stream with one edge, whose sums need no order and are not stored by row."""
    linked = [stream for step in query.tree(0)[0] for stream in (step.near, step.far)]
    root = min(range(len(query.sizes)), key=linked.count)
    steps = query.tree(root)[0]
    edges = [query.sums(step, kept, stats) for step in steps]
    found = []
    for modulus in _moduli(kept):
        weights = _weights(query, steps[1:], edges[1:], modulus)
        value = edges[0].total(weights[steps[0].far], modulus)
        found.append((np.array([value], object), modulus or 1 << 64))
    return int(_joined([value for value, _ in found], [modulus for _, modulus in found])[0])


def _moduli(bounded: Sequence[Int64]) -> list[int | None]:
    """What to compute modulo, None for 2**64, so that a product of these streams' rows is known."""
    bits = sum(len(rows).bit_length() for rows in bounded)
    return [None, *_primes(-(-(bits - 64) // 30) if bits > 64 else 0)]


def _weights(
    query: Query, steps: Sequence[Step], edges: Sequence[Sums | Edge], modulus: int | None
) -> list[Int64 | None]:
    """Per stream and row the results of the streams reached from it by these steps; None: 1 for every kept row."""
    weights: list[Int64 | None] = [None] * len(query.sizes)
    for step, edge in zip(reversed(steps), reversed(edges), strict=True):
        sums = edge.by_row(weights[step.far], query.sizes[step.near], modulus)
        own = weights[step.near]
        if own is not None:
            sums *= own
            if modulus is not None:
                sums %= modulus
        weights[step.near] = sums
    return weights


def _tree_matches(query: Query, root: int, kept: Sequence[Int64], stats: Stats | None) -> NDArray[Any]:
    """Results per row of `root` along its tree: int64, or object where int64 could overflow."""
    steps, _ = query.tree(root)
    edges = [query.sums(step, kept, stats) for step in steps]
    bounded = [rows for i, rows in enumerate(kept) if i != root]
    moduli = _moduli(bounded)
    parts = [weights for modulus in moduli if (weights := _weights(query, steps, edges, modulus)[root]) is not None]
    if sum(len(rows).bit_length() for rows in bounded) <= 63:
        return parts[0]
    values = [
        w.view(np.uint64).astype(object) if m is None else w.astype(object) for w, m in zip(parts, moduli, strict=True)
    ]
    return _joined(values, [m or 1 << 64 for m in moduli])


def _joined(values: Sequence[NDArray[np.object_]], moduli: Sequence[int]) -> NDArray[np.object_]:
    """The numbers with these residues (Garner's form of the Chinese remainder theorem)."""
    total, product = values[0], moduli[0]
    for value, modulus in zip(values[1:], moduli[1:], strict=True):
        total = total + (value - total) * pow(product, -1, modulus) % modulus * product
        product *= modulus
    return total


def _primes(number: int) -> list[int]:
    """The largest primes below 2**31."""
    found: list[int] = []
    candidate = (1 << 31) - 1
    while len(found) < number:
        if np.all(candidate % np.arange(3, 46_342, 2)):
            found.append(candidate)
        candidate -= 2
    return found


def _reduced(query: Query, kept: Sequence[Int64], stats: Stats | None) -> list[Int64]:
    """Rows that take part in some result of the tree: once from the leaves to stream 0, once back."""
    left = list(kept)
    steps, _ = query.tree(0)
    for step in [*reversed(steps), *(Step(step.far, step.near) for step in steps)]:
        sums = query.sums(step, left, stats).by_row(None, query.sizes[step.near])
        left[step.near] = left[step.near][sums[left[step.near]] > 0]
    return left


def _expanded(
    query: Query, kept: Sequence[Int64], partitions: int | None, stats: Stats | None, known: Edge | None = None
) -> list[Int64]:
    """All results between the kept rows; `known` is the first edge, where the caller has it already."""
    steps, closing = query.tree(0)
    if len(query.sizes) > 2:
        kept = _reduced(query, kept, stats)
    adjacency = []
    for step in steps:
        if known is not None:
            edge = known
        elif partitions is not None:
            edge = partitioned_edge(query, step, kept, partitions, stats if stats is not None else Stats())
        else:
            edge = query.edge(step, kept, stats)
        adjacency.append(edge.adjacency(query.sizes[step.near], query.sizes[step.far]))
    filters = [(step, query.residuals(step, query.between(step.near, step.far))) for step in closing]
    return _followed(query.sizes, kept[0], steps, adjacency, filters)


def _followed(
    sizes: Sequence[int],
    start: Int64,
    steps: Sequence[Step],
    adjacency: Sequence[tuple[Int64, Int64]],
    filters: Sequence[tuple[Step, Residuals]],
) -> list[Int64]:
    """Follow the tree from stream 0, filter where a cycle closes, and put results in lexicographic order."""
    columns: dict[int, Int64] = {0: start}
    waiting = list(filters)
    for step, (starts, far) in zip(steps, adjacency, strict=True):
        if len(columns) == 1:  # the first step: `start` holds every row that has matches, so its list is the answer
            columns, child = {0: kernels.repeated(starts)}, far
        else:
            origin, child = kernels.follow(columns[step.near], starts, far)
            columns = {stream: column[origin] for stream, column in columns.items()}
        columns[step.far] = child
        for closing in [f for f in waiting if f[0].near in columns and f[0].far in columns]:
            waiting.remove(closing)
            (near, far_stream), residuals = (closing[0].near, closing[0].far), closing[1]
            keep = np.ones(len(child), np.bool_)
            for limit, place in zip(residuals.limits, residuals.places, strict=True):
                keep &= place[columns[far_stream]] < limit[columns[near]]
            columns = {stream: column[keep] for stream, column in columns.items()}
            child = columns[step.far]
    reached = [0, *(step.far for step in steps)]
    if reached != sorted(reached):
        order = np.arange(len(columns[0]))
        for stream in sorted(reached, reverse=True):
            order = kernels.stable_order(columns[stream], order, sizes[stream])
        return [columns[stream][order] for stream in sorted(reached)]
    return [columns[stream] for stream in reached]


def _chunks(
    query: Query, kept: Sequence[Int64], chunk_rows: int, level: int, stats: Stats | None
) -> Iterator[list[Int64]]:
    """Cut the results by rows of stream `level`; a row with too many of its own is cut by the next stream."""
    two = len(query.sizes) == 2 and level == 0
    found = _tree_matches(query, level, kept, stats)[kept[level]]
    per_row = np.minimum(found, chunk_rows + 1).astype(np.int64)
    active, per_row = kept[level][per_row > 0], per_row[per_row > 0]
    edge = query.edge(query.tree(0)[0][0], [active, kept[1]]) if two and len(active) else None
    ends = np.cumsum(per_row)
    start = 0
    while start < len(active):
        done = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, done + chunk_rows, "right"))
        here = [*kept[:level], active[start : max(stop, start + 1)], *kept[level + 1 :]]
        if stop == start:
            yield from _chunks(query, here, chunk_rows, level + 1, stats)
            start += 1
            continue
        known = edge.take(int(active[start]), int(active[stop - 1]) + 1) if edge is not None else None
        chunk = _expanded(query, here, None, stats, known)
        if len(chunk[0]):
            yield chunk
        start = stop
