"""Rivals of the theta join: cross product, 1-Bucket-Theta, cross filter and sort, with its interface and its results.

All three join two relations at a time; more streams follow the rounds of the planner (neighbouring pairs, then pairs of
results). Values are compared in blocks, so memory stays bounded by a block and the output.

Ordering: none asked of the input. Cost: O(n m) comparisons for the cross product and for 1-Bucket-Theta, O(n' m') for
cross filter and sort, with n' and m' rows after its filter.

`cfs` sorts both sides as a whole, drops rows beyond the other side's minimum or maximum, and cuts the rest into p
partitions of equal depth per side, each side by its own boundaries. So partitions of the two sides are not ordered
relative to one another, and each meets each, as the thesis counts it.

References
----------
.. [1] A. Okcan and M. Riedewald, Processing theta-joins using MapReduce, SIGMOD 2011 (`one_bucket`).
.. [2] The cross filter strategy, as described in chapters 1, 3 and 4 of the source thesis, 2020 (`cfs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from latecomer.core.theta_join.edges import Comparison, Query, Step, Streams
from latecomer.core.theta_join.kernels import stable_order
from latecomer.core.theta_join.plan import PARTITIONS, check_partitions, rounds_of
from latecomer.core.theta_join.ranks import Side, Stats

Int64 = NDArray[np.int64]
Pairs = tuple[Int64, Int64]
Method = Callable[[list[Side], int, int, Stats], Pairs]
_BLOCK = 1 << 22
"""Pairs tested at a time."""


def cross_product(
    streams: Streams,
    conditions: Sequence[Comparison],
    *,
    partitions: int = PARTITIONS,
    stats: Stats | None = None,
) -> list[Int64]:
    """Form and test every pair. Signature, result and errors as `latecomer.core.theta_join.join.rows`.

    Every partition of the left side receives all of the right side.
    """

    def method(sides: list[Side], n: int, m: int, stats: Stats) -> Pairs:
        stats.rows_kept += n + m
        stats.rows_shuffled += n + partitions * m
        return _tested(sides, np.arange(n), np.arange(m), stats)

    return _joined(streams, conditions, partitions, stats, method)


def one_bucket(
    streams: Streams,
    conditions: Sequence[Comparison],
    *,
    partitions: int = PARTITIONS,
    stats: Stats | None = None,
    seed: int = 0,
) -> list[Int64]:
    """Cut the matrix of pairs into near-square cells; each row goes to a random row or column of cells.

    Signature, result and errors as `latecomer.core.theta_join.join.rows`; `seed` fixes the random assignment, on which
    the result does not depend. With p partitions there are a x b <= p cells, with the pair (a, b) that copies fewest
    rows.
    """

    def method(sides: list[Side], n: int, m: int, stats: Stats) -> Pairs:
        rng = np.random.default_rng([seed, n, m])
        shapes = [(a, partitions // a) for a in range(1, partitions + 1)]
        down, across = min(shapes, key=lambda s: (n * s[1] + m * s[0]) / (s[0] * s[1]) ** 0.5)
        at_row, at_column = rng.integers(0, down, n), rng.integers(0, across, m)
        stats.rows_kept += n + m
        stats.rows_shuffled += n * across + m * down
        parts = [
            _tested(sides, np.flatnonzero(at_row == i), np.flatnonzero(at_column == j), stats)
            for i in range(down)
            for j in range(across)
        ]
        return _concatenated(parts)

    return _joined(streams, conditions, partitions, stats, method)


def cfs(
    streams: Streams,
    conditions: Sequence[Comparison],
    *,
    partitions: int = PARTITIONS,
    stats: Stats | None = None,
    ordered: bool = True,
) -> list[Int64]:
    """Filter crosswise, sort as a whole, and join every partition of one side with every partition of the other.

    Signature, result and errors as `latecomer.core.theta_join.join.rows`; the first condition between two relations is
    the one that filters and sorts. The order of results is no part of the method: without `ordered` they are not
    sorted.
    """

    def method(sides: list[Side], n: int, m: int, stats: Stats) -> Pairs:
        if not sides or n == 0 or m == 0:
            return _tested(sides, np.arange(n), np.arange(m), stats)
        first = sides[0]
        left, right = np.argsort(first.near, kind="stable"), np.argsort(first.far, kind="stable")
        stats.sort(n)
        stats.sort(m)
        near, far = first.near[left], first.far[right]
        strict = not (first.inclusive or first.equal)
        low = np.searchsorted(near, far[0], "right" if strict else "left")
        high = np.searchsorted(far, near[-1], "left" if strict else "right")
        stats.search(1, n)
        stats.search(1, m)
        left, right = left[low:], right[:high]
        stats.rows_kept += len(left) + len(right)
        stats.rows_shuffled += len(left) + partitions * len(right)
        parts = [
            _tested(sides, left_part, right_part, stats)
            for left_part in np.array_split(left, max(1, min(partitions, len(left))))
            for right_part in np.array_split(right, max(1, min(partitions, len(right))))
        ]
        return _concatenated(parts)

    return _joined(streams, conditions, partitions, stats, method, ordered)


def _tested(sides: Sequence[Side], left: Int64, right: Int64, stats: Stats) -> Pairs:
    """Return the pairs of two lists of rows that pass all conditions, tested pair by pair in blocks."""
    stats.candidates += len(left) * len(right)
    stats.comparisons += len(left) * len(right) * len(sides)
    block = max(1, _BLOCK // max(1, len(right)))
    parts: list[Pairs] = [(left[:0], right[:0])]
    for start in range(0, len(left), block):
        rows = left[start : start + block]
        keep = np.ones((len(rows), len(right)), np.bool_)
        for side in sides:
            near, far = side.near[rows][:, None], side.far[right][None, :]
            keep &= near == far if side.equal else (far <= near if side.inclusive else far < near)
        i, j = np.nonzero(keep)
        parts.append((rows[i], right[j]))
    return _concatenated(parts)


def _concatenated(parts: Sequence[Pairs]) -> Pairs:
    """Concatenate lists of pairs."""
    return np.concatenate([left for left, _ in parts]), np.concatenate([right for _, right in parts])


def _joined(
    streams: Streams,
    conditions: Sequence[Comparison],
    partitions: int,
    stats: Stats | None,
    method: Method,
    ordered: bool = True,
) -> list[Int64]:
    """Join relations round by round with `method` and put the results in lexicographic order."""
    check_partitions(partitions)
    query = Query(streams, conditions)
    stats = stats if stats is not None else Stats()
    relations: dict[tuple[int, ...], dict[int, Int64]] = {(i,): {i: kept} for i, kept in enumerate(query.kept)}
    for pairs in rounds_of(len(streams), set(query.pairs)):
        for left_group, right_group in pairs:
            left, right = relations.pop(left_group), relations.pop(right_group)
            sides = []
            for step in (Step(a, b) for a in left_group for b in right_group):
                for place in query.between(step.near, step.far):
                    side = query.side(place, step.near)
                    near, far = side.near[left[step.near]], side.far[right[step.far]]
                    sides.append(Side(near, far, side.inclusive, side.equal, side.flipped))
            i, j = method(sides, len(left[left_group[0]]), len(right[right_group[0]]), stats)
            joined = {stream: rows[i] for stream, rows in left.items()}
            joined |= {stream: rows[j] for stream, rows in right.items()}
            relations[tuple(sorted(left_group + right_group))] = joined
    (result,) = relations.values()
    columns = [result[stream] for stream in range(len(streams))]
    stats.results += len(columns[0])
    if not ordered:
        return columns
    order = np.arange(len(columns[0]))
    for column, size in zip(columns[::-1], query.sizes[::-1], strict=True):
        order = stable_order(column, order, size)
    return [column[order] for column in columns]
