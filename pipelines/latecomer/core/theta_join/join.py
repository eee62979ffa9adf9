"""The theta join of one window on arrays: counted, factorised, or row by row, with no more work than the form needs.

A result takes one row of every stream such that all conditions hold; conditions compare a column of one stream with a
column of another by ``<, <=, >, >=, =``. NaN matches nothing. Answers do not depend on the number of partitions, and
row numbers come in lexicographic order.

Ordering: none asked of the input. Cost, for n rows in all and two streams or an acyclic join graph:

* `count`, `matches`: O(n log n) if no two streams share more than two inequalities (any number of equalities), by
  dynamic programming along the tree; no pair is built. With three or more inequalities on an edge, the two that rule
  out most shape the runs, and the pairs in the runs are tested one by one, without being stored.
* `rows`: O(n log n + output). With at most one inequality on an edge, the list of matches of a row is that of the row
  before it and further rows, so it is merged and copied at the speed of memory. With two inequalities, lists shorter
  than 1/64 of the remaining far rows are sorted, with a logarithm of their own length. Streams are first reduced to
  rows that take part in some result, so no intermediate result is larger than the last one. The rounds of `plan`
  (Algorithm 3: neighbouring pairs, then pairs of results) are for an executor that runs the pairs of a round at once.
  This module follows the tree stream by stream, with the same bound on reduced streams.
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

import numpy as np
from numpy.typing import NDArray

from latecomer.core.theta_join import kernels
from latecomer.core.theta_join.edges import Comparison, Edge, Query, Residuals, Step, Streams
from latecomer.core.theta_join.plan import PARTITIONS, check_partitions, partitioned_edge
from latecomer.core.theta_join.ranks import Stats
from latecomer.core.theta_join.sums import Sums

Int64 = NDArray[np.int64]
_CHUNK = 1 << 20


@dataclass(frozen=True)
class RangeEdge:
    """The pairs between two streams, as runs without loss.

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
    """Count the results, exactly at any size.

    Parameters
    ----------
    streams
        ``streams[i][c]`` is operand column c of stream i, int64[n_i] or float64[n_i].
    conditions
        The conditions, all of which must hold.
    stats
        Receives the work of the call, added to its own.

    Returns
    -------
    int
        Beyond 63 bits the sum is taken modulo 2**64 and several primes, and restored at the end.

    Raises
    ------
    ValueError, TypeError
        As :class:`latecomer.core.theta_join.edges.Query`.

    Examples
    --------
    >>> count([[np.array([1, 5])], [np.array([2, 3, 7])]], [Comparison(0, 0, "<", 1, 0)])
    4
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
    """Count the results in which each row of stream `of` takes part.

    Parameters and errors as `count`.

    Returns
    -------
    int64[n_of]
        0 for rows without a match. The sum is `count`; grouped by a key, the sums are counts per key.

    Raises
    ------
    OverflowError
        If a row takes part in more than 2**63 - 1 results.
    """
    query = Query(streams, conditions)
    if not 0 <= of < len(streams):
        raise ValueError(f"of is {of}: there are streams 0 to {len(streams) - 1}")
    kept = query.coarse(stats)
    counts = np.zeros(query.sizes[of], np.int64)
    if query.tree(of)[1]:
        for chunk in _chunks(query, kept, _CHUNK, 0, stats):
            counts += np.bincount(chunk[of], minlength=query.sizes[of])
    else:
        exact = _tree_matches(query, of, kept, stats)
        if exact.dtype == object and max(exact, default=0) > np.iinfo(np.int64).max:
            raise OverflowError(f"a row of stream {of} takes part in more than 2**63 - 1 results: use count()")
        counts = exact.astype(np.int64, copy=False)
    if stats is not None:
        stats.results += int(counts.astype(object).sum())
    return counts


def latest(streams: Streams, conditions: Sequence[Comparison], ranks: Sequence[Int64]) -> list[Int64]:
    """Count per row of two streams the results in which its rank is the greater one (of equal ranks, that of stream 0).

    Every result is counted once, at its greatest rank. So one pass tells how the number of results grew while rows came
    rank by rank. The comparison of ranks is one more inequality. A third inequality would be tested pair by pair;
    instead it becomes an equality per bit, as the greater rank has the first bit that differs.

    Parameters
    ----------
    streams, conditions
        As for `count`, two streams.
    ranks
        int64[n_0] and int64[n_1], 0 or greater; smaller numbers are less work.

    Returns
    -------
    list of int64[n_0], int64[n_1]
        Their sum is `count`.

    Raises
    ------
    ValueError, TypeError
        As `count`, and if there are not two streams.
    """
    if len(streams) != 2:
        raise ValueError(f"there are {len(streams)} streams: give 2")
    counts = [np.zeros(len(rank), np.int64) for rank in ranks]
    if sum(c.op != "=" for c in conditions) != 2:
        last = len(streams[0]), len(streams[1])
        known = [[*columns, rank] for columns, rank in zip(streams, ranks, strict=True)]
        for of, op in enumerate((">=", "<")):
            counts[of] += matches(known, [*conditions, Comparison(0, last[0], op, 1, last[1])], of)
        return counts
    greatest = max((int(rank.max(initial=0)) for rank in ranks), default=0)
    for bit in range(greatest.bit_length()):
        above = [rank >> (bit + 1) for rank in ranks]
        upper = [rank >> bit & 1 == 1 for rank in ranks]
        for of in (0, 1):
            chosen = [upper[side] if side == of else ~upper[side] for side in (0, 1)]
            _add(counts[of], chosen, streams, conditions, above, of)
    _add(counts[0], [np.ones(len(rank), np.bool_) for rank in ranks], streams, conditions, ranks, 0)
    return counts


def _add(
    counts: Int64,
    chosen: Sequence[NDArray[np.bool_]],
    streams: Streams,
    conditions: Sequence[Comparison],
    same: Sequence[Int64],
    of: int,
) -> None:
    """Add the matches of the chosen rows of stream `of` with chosen rows of the other stream of an equal `same`."""
    if not all(mask.any() for mask in chosen):
        return
    selected = [
        [column[mask] for column in (*columns, extra)]
        for columns, extra, mask in zip(streams, same, chosen, strict=True)
    ]
    equal = Comparison(0, len(streams[0]), "=", 1, len(streams[1]))
    counts[chosen[of]] += matches(selected, [*conditions, equal], of)


def rows(
    streams: Streams,
    conditions: Sequence[Comparison],
    *,
    partitions: int = PARTITIONS,
    stats: Stats | None = None,
) -> list[Int64]:
    """Return all results as row numbers.

    Parameters
    ----------
    streams, conditions, stats
        As for `count`.
    partitions
        As for `plan`: the number changes the work, not the answer. An edge with one inequality follows the plan:
        partition pairs that match wholly are produced without a comparison, the diagonal is sorted and searched.

    Returns
    -------
    list of int64[results]
        One array per stream, in lexicographic order of (row of stream 0, row of stream 1, ...).

    Raises
    ------
    ValueError, TypeError
        As `plan`.

    Notes
    -----
    The caller watches memory: `count` returns the number of results, `iter_rows` bounds the memory.
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
    """Yield the results of `rows`, in the same order, in chunks of at most `chunk_rows` results.

    Memory is O(n log n + chunk_rows). Every chunk costs O(n), with three or more streams O(n log n), besides its
    results, so choose chunks of n rows or more. For a cyclic graph a chunk is cut before the closing filters and may be
    small; empty chunks are left out.

    Raises
    ------
    ValueError
        If `chunk_rows` is below 1.
    """
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows is {chunk_rows}: give 1 or more")
    query = Query(streams, conditions)
    for chunk in _chunks(query, query.coarse(stats), chunk_rows, 0, stats):
        if stats is not None:
            stats.results += len(chunk[0])
        yield chunk


def ranges(streams: Streams, conditions: Sequence[Comparison], *, stats: Stats | None = None) -> Ranges:
    """Return the factorised result: per edge of the join tree, runs of sorted far rows.

    Space is O(n) per edge with at most one inequality and any equalities, O(n log n) with two or more (the answer of
    two inequalities is cut into canonical runs, so no filter remains; a third and further inequalities stay as
    filters). With three or more streams, rows that take part in no result are removed first.

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
    """Return the rows of a factorised result: those of `rows`, in the same order."""
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
    """Count the results of an acyclic query from a stream with one edge, as its sums need no order."""
    linked = [stream for step in query.tree(0)[0] for stream in (step.near, step.far)]
    root = min(range(len(query.sizes)), key=linked.count)
    steps = query.tree(root)[0]
    edges = [query.sums(step, kept, stats) for step in steps]
    residues = []
    moduli = _moduli(kept)
    for modulus in moduli:
        weights = _weights(query, steps[1:], edges[1:], modulus)
        residues.append(np.array([edges[0].total(weights[steps[0].far], modulus)], object))
    return int(_from_residues(residues, [modulus or 1 << 64 for modulus in moduli])[0])


def _moduli(bounded: Sequence[Int64]) -> list[int | None]:
    """Return moduli (None for 2**64) whose product exceeds the number of combinations of these rows."""
    bits = sum(len(rows).bit_length() for rows in bounded)
    return [None, *_primes(-(-(bits - 64) // 30) if bits > 64 else 0)]


def _weights(
    query: Query, steps: Sequence[Step], edges: Sequence[Sums | Edge], modulus: int | None
) -> list[Int64 | None]:
    """Count per stream and row the results of the streams that these steps reach; None: 1 for every kept row."""
    weights: list[Int64 | None] = [None] * len(query.sizes)
    for step, edge in zip(reversed(steps), reversed(edges), strict=True):
        sums = edge.by_row(weights[step.far], query.sizes[step.near], modulus)
        near = weights[step.near]
        if near is not None:
            sums *= near
            if modulus is not None:
                sums %= modulus
        weights[step.near] = sums
    return weights


def _tree_matches(query: Query, root: int, kept: Sequence[Int64], stats: Stats | None) -> Int64 | NDArray[np.object_]:
    """Count the results per row of `root` along its tree: int64, or object if int64 could overflow."""
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
    return _from_residues(values, [m or 1 << 64 for m in moduli])


def _from_residues(values: Sequence[NDArray[np.object_]], moduli: Sequence[int]) -> NDArray[np.object_]:
    """Return the numbers with these residues (Garner's form of the Chinese remainder theorem)."""
    total, product = values[0], moduli[0]
    for value, modulus in zip(values[1:], moduli[1:], strict=True):
        total = total + (value - total) * pow(product, -1, modulus) % modulus * product
        product *= modulus
    return total


def _primes(number: int) -> list[int]:
    """Return the largest primes below 2**31."""
    primes: list[int] = []
    candidate = (1 << 31) - 1
    while len(primes) < number:
        if np.all(candidate % np.arange(3, 46_342, 2)):
            primes.append(candidate)
        candidate -= 2
    return primes


def _reduced(query: Query, kept: Sequence[Int64], stats: Stats | None) -> list[Int64]:
    """Return the rows that take part in some result of the tree: once from the leaves to stream 0, once back [2]_."""
    left = list(kept)
    steps, _ = query.tree(0)
    for step in [*reversed(steps), *(Step(step.far, step.near) for step in steps)]:
        sums = query.sums(step, left, stats).by_row(None, query.sizes[step.near])
        left[step.near] = left[step.near][sums[left[step.near]] > 0]
    return left


def _expanded(
    query: Query, kept: Sequence[Int64], partitions: int | None, stats: Stats | None, known: Edge | None = None
) -> list[Int64]:
    """Return all results between the kept rows; `known` is the first edge, if the caller has it already."""
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
        if len(columns) == 1:  # `start` holds every row with matches, so the first list is the answer
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
    """Cut the results by rows of stream `level`; a row with too many results is cut by the next stream."""
    two_streams = len(query.sizes) == 2 and level == 0
    counts = _tree_matches(query, level, kept, stats)[kept[level]]
    per_row = np.minimum(counts, chunk_rows + 1).astype(np.int64)
    active, per_row = kept[level][per_row > 0], per_row[per_row > 0]
    edge = query.edge(query.tree(0)[0][0], [active, kept[1]]) if two_streams and len(active) else None
    ends = np.cumsum(per_row)
    start = 0
    while start < len(active):
        done = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, done + chunk_rows, "right"))
        part = [*kept[:level], active[start : max(stop, start + 1)], *kept[level + 1 :]]
        if stop == start:
            yield from _chunks(query, part, chunk_rows, level + 1, stats)
            start += 1
            continue
        known = edge.take(int(active[start]), int(active[stop - 1]) + 1) if edge is not None else None
        chunk = _expanded(query, part, None, stats, known)
        if len(chunk[0]):
            yield chunk
        start = stop
