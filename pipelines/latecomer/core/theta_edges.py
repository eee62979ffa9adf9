"""The join graph of a theta join, and one edge of it as runs of sorted positions.

Every comparison becomes ``far < near`` or ``far <= near`` on int64 codes (`>` and `>=` as they are, `<` and `<=` with
both sides complemented), and then, by sorting the far side, ``place < limit`` on whole numbers: ties, strictness and
number types are gone before any loop runs. Equalities cut both sides into groups first. Of several inequalities on an
edge the two that let the fewest pairs through shape the runs; the others are residual filters on pairs.

Ordering: none asked of the input. Cost: O(n log n) per edge: both sides are sorted and merged; nothing is searched, since a
search among more rows than a near cache holds waits for memory at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latecomer.core import theta_kernels as kernels
from latecomer.core.theta_encode import (
    dense_pair,
    extremes,
    merged_bounds,
    number_column,
    rows_within,
    shared_codes,
    stable_sort,
)

Int64 = NDArray[np.int64]
Streams = Sequence[Sequence[NDArray[Any]]]
_TOP, _LOW = np.iinfo(np.int64).max, np.iinfo(np.int64).min
MIRROR = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


@dataclass(frozen=True)
class Comparison:
    """``streams[left][left_column] op streams[right][right_column]``; op is one of < <= > >= =."""

    left: int
    left_column: int
    op: str
    right: int
    right_column: int


@dataclass
class Stats:
    """What a join did. Pass one object to several calls and it adds up.

    Attributes
    ----------
    comparisons
        Of two join values or codes: a sort of k counts ``k ceil(log2 k)``, a search among k ``ceil(log2(k + 1))``, a
        filter or a tested pair 1.
    candidates
        Pairs of rows in the partition pairs that were not ruled out (the thesis's number of Cartesian products).
    rows_kept
        Rows left after the coarse filter, all streams.
    rows_shuffled
        Row copies sent to the places that join them.
    results
        Results produced or counted.
    """

    comparisons: int = 0
    candidates: int = 0
    rows_kept: int = 0
    rows_shuffled: int = 0
    results: int = 0

    def sort(self, rows: int) -> None:
        """Charge a sort."""
        self.comparisons += rows * (max(rows, 1) - 1).bit_length()

    def search(self, needles: int, rows: int) -> None:
        """Charge `needles` binary searches among `rows`."""
        self.comparisons += needles * rows.bit_length()


@dataclass(frozen=True)
class Side:
    """A comparison seen from one stream: int64 codes such that near matches far where ``far < near`` (or ``<=``)."""

    near: Int64
    far: Int64
    inclusive: bool
    equal: bool
    flipped: bool


@dataclass(frozen=True)
class Step:
    """Reach stream `far` from the already reached stream `near`."""

    near: int
    far: int


@dataclass(frozen=True)
class Residuals:
    """Inequalities kept as filters on pairs: a pair holds where ``places[k, far] < limits[k, near]`` for every k."""

    limits: Int64
    places: Int64


@dataclass(frozen=True)
class Edge:
    """Which far rows each near row matches, as half-open runs of `order`.

    Attributes
    ----------
    near_rows, far_rows
        int64, ascending row numbers that take part.
    order
        int64[m], row numbers of the far stream.
    first, last
        int64 per near row: it matches positions ``first <= p < last``.
    limit, place
        With a second inequality: only positions with ``place[p] < limit``.
    residuals
        Every other inequality, by row number.
    by_last
        int64 per near row: the near rows in ascending `last`, where known.
    """

    near_rows: Int64
    far_rows: Int64
    order: Int64
    first: Int64
    last: Int64
    limit: Int64 | None
    place: Int64 | None
    residuals: Residuals
    by_last: Int64 | None = None

    def runs(self) -> tuple[Int64, Int64, Int64, Int64]:
        """``(order, row, first, last)``: the edge without its second inequality, O(n log n) runs, none of them empty."""
        if self.limit is None or self.place is None:
            some = self.last > self.first
            return self.order, self.near_rows[some], self.first[some], self.last[some]
        flat, lefts, before = kernels.levels_of(self.place, self.order, max(1, len(self.order).bit_length()))
        by_last, rows, size = self._near_by_last(), self.near_rows, len(self.order)
        runs = kernels.canonical_runs(by_last, rows, self.first, self.last, self.limit, lefts, before, size)
        return flat, *runs

    def _near_by_last(self) -> Int64:
        if self.by_last is not None:
            return self.by_last
        return kernels.stable_order(self.last, np.arange(len(self.last)), len(self.order) + 1)

    def sums(self, weights: Int64, size: int, modulus: int | None = None) -> Int64:
        """Per near row number (int64[size]) the sum of the weights (by far row number) of the far rows it matches.

        Modulo 2**64, or modulo `modulus` < 2**31, for which the weights must be reduced already.
        """
        if len(self.residuals.limits):
            order, rows, first, last = self.runs()
            out = kernels.filtered_sums(
                rows, first, last, order, self.residuals.limits, self.residuals.places, weights, size
            )
            return out if modulus is None else out % modulus
        if self.limit is None or self.place is None:
            out = kernels.run_sums(self.order, weights, self.near_rows, self.first, self.last, size)
        else:
            out = kernels.run_sums(self.order, weights, self.near_rows, np.zeros_like(self.first), self.first, size)
            found = kernels.dominance_sums(self._near_by_last(), self.last, self.limit, self.place, weights[self.order])
            out[self.near_rows] = found - out[self.near_rows]
        return out if modulus is None else out % modulus

    def adjacency(self, near_size: int, far_size: int) -> tuple[Int64, Int64]:
        """``(starts int64[near_size + 1], far)``: matches of every near row number, ascending; O(n log n + pairs)."""
        order, rows, first, last = self.runs()
        starts, far = kernels.expand_runs(
            rows, first, last, order, self.residuals.limits, self.residuals.places, near_size
        )
        kernels.sort_runs(starts, far, far_size)
        return starts, far

    def take(self, picked: Int64) -> Edge:
        """The same edge for some of the near rows, given by place in `near_rows`, ascending."""
        limit = None if self.limit is None else self.limit[picked]
        rows, first, last = self.near_rows[picked], self.first[picked], self.last[picked]
        return Edge(rows, self.far_rows, self.order, first, last, limit, self.place, self.residuals)


@dataclass
class Query:
    """Streams and conditions, checked and coded once.

    Raises
    ------
    ValueError
        For an unknown op, a stream or column that does not exist, a stream compared with itself, columns of one stream
        of different lengths, or fewer than two streams.
    TypeError
        For a column that is neither int64 nor float64.
    """

    streams: Streams
    conditions: Sequence[Comparison]
    sizes: list[int] = field(init=False)
    pairs: dict[tuple[int, int], list[int]] = field(init=False)
    kept: list[Int64] = field(init=False)
    _codes: list[list[Int64]] = field(init=False)

    def __post_init__(self) -> None:
        if len(self.streams) < 2:
            raise ValueError(f"a theta join needs two streams or more, not {len(self.streams)}")
        self.sizes, self.pairs, self._codes = [], {}, []
        for number, columns in enumerate(self.streams):
            lengths = {len(column) for column in columns}
            if len(lengths) != 1:
                raise ValueError(f"stream {number} has columns of lengths {sorted(lengths)}: give one length")
            self.sizes.append(lengths.pop())
        valid = [np.ones(size, np.bool_) for size in self.sizes]
        for place, c in enumerate(self.conditions):
            if c.op not in MIRROR:
                raise ValueError(f"conditions[{place}]: op {c.op!r} is unknown: use one of {', '.join(MIRROR)}")
            if c.left == c.right:
                raise ValueError(f"conditions[{place}] compares stream {c.left} with itself: name two streams")
            for stream, column in ((c.left, c.left_column), (c.right, c.right_column)):
                if not 0 <= stream < len(self.streams) or not 0 <= column < len(self.streams[stream]):
                    raise ValueError(f"conditions[{place}]: there is no column {column} of stream {stream}")
            sides = [self.streams[c.left][c.left_column], self.streams[c.right][c.right_column]]
            coded, good = shared_codes([number_column(side) for side in sides])
            self._codes.append(coded)
            valid[c.left] &= good[0]
            valid[c.right] &= good[1]
            self.pairs.setdefault((min(c.left, c.right), max(c.left, c.right)), []).append(place)
        self.kept = [np.flatnonzero(good) for good in valid]

    def side(self, place: int, near: int) -> Side:
        """Condition number `place` as seen from stream `near`."""
        c = self.conditions[place]
        codes = self._codes[place]
        op = c.op if c.left == near else MIRROR[c.op]
        ours, theirs = codes if c.left == near else codes[::-1]
        flipped = op in ("<", "<=")
        return (
            Side(~ours, ~theirs, op == "<=", False, True)
            if flipped
            else Side(ours, theirs, op == ">=", op == "=", False)
        )

    def codes(self, place: int, stream: int) -> Int64:
        """int64 codes of one of the two operands of condition `place`, by row number."""
        return self._codes[place][0 if self.conditions[place].left == stream else 1]

    def decode(self, place: int, codes: Int64) -> list[float | int]:
        """A value for each code: the value itself, or, where types mix, the nearest value of a row from above."""
        c = self.conditions[place]
        sides = [
            number_column(self.streams[c.left][c.left_column]),
            number_column(self.streams[c.right][c.right_column]),
        ]
        if all(side.dtype == np.int64 for side in sides):
            return [int(code) for code in codes]
        if all(side.dtype == np.float64 for side in sides):
            return [float(value) for value in (codes ^ ((codes >> 63) & np.iinfo(np.int64).max)).view(np.float64)]
        values = np.concatenate([side.astype(np.float64) for side in sides])
        known, values = np.concatenate(self._codes[place])[~np.isnan(values)], values[~np.isnan(values)]
        order = np.argsort(known, kind="stable")
        at = np.minimum(np.searchsorted(known[order], codes), len(values) - 1)
        return [float(value) for value in values[order][at]]

    def between(self, one: int, other: int) -> list[int]:
        """The conditions between two streams."""
        return self.pairs.get((min(one, other), max(one, other)), [])

    def tree(self, root: int) -> tuple[list[Step], list[Step]]:
        """A spanning tree seen from `root`, parents first, and the edges that close cycles.

        The tree is one and the same for every root. It is grown from stream 0 by the lowest stream that a condition
        reaches, along an equality where there is a choice; a stream that no condition reaches is joined to stream 0
        with no condition, and every pair matches.
        """
        reached, steps, closing = [0], [], []
        waiting = list(range(1, len(self.streams)))
        while waiting:
            far = next((s for s in waiting if any(self.between(s, r) for r in reached)), waiting[0])
            ties = [r for r in reached if self.between(far, r)] or [0]
            ties.sort(key=lambda r: not any(self.conditions[c].op == "=" for c in self.between(far, r)))
            steps.append(Step(ties[0], far))
            closing += [Step(near, far) for near in ties[1:]]
            waiting.remove(far)
            reached.append(far)
        if root == 0:
            return steps, closing
        turned, order = [], [root]
        for near in order:
            for step in steps:
                if near in (step.near, step.far):
                    far = step.far if near == step.near else step.near
                    if far not in order:
                        order.append(far)
                        turned.append(Step(near, far))
        return turned, closing

    def coarse(self, stats: Stats | None = None) -> list[Int64]:
        """Rows per stream that can match something: the rule of the coarse filter, along every condition.

        For ``near > far``: keep near > min(far) and far < max(near), and so for the other ops, with the same strictness
        as the condition. Minima and maxima are of the rows still kept. O(n) per condition; dropping a row never drops a
        result.
        """
        kept = list(self.kept)
        for place, c in enumerate(self.conditions):
            near, far = c.left, c.right
            if len(kept[near]) == 0 or len(kept[far]) == 0:
                return [rows[:0] for rows in kept]
            ours, theirs = self.codes(place, near), self.codes(place, far)
            (near_low, near_high), (far_low, far_high) = extremes(ours, kept[near]), extremes(theirs, kept[far])
            if stats is not None:
                stats.comparisons += 2 * (len(kept[near]) + len(kept[far]))
            strict = c.op in ("<", ">")
            if strict and (far_low >= near_high if c.op == ">" else near_low >= far_high):
                return [rows[:0] for rows in kept]  # so that one more and one less stay within int64
            if c.op in (">", ">="):
                near_low, far_high = far_low + strict, near_high - strict
                near_high, far_low = _TOP, _LOW
            elif c.op in ("<", "<="):
                near_high, far_low = far_high - strict, near_low + strict
                near_low, far_high = _LOW, _TOP
            else:
                near_low, near_high, far_low, far_high = far_low, far_high, near_low, near_high
            kept[near] = rows_within(ours, kept[near], near_low, near_high)
            kept[far] = rows_within(theirs, kept[far], far_low, far_high)
        if any(len(rows) == 0 for rows in kept):
            kept = [rows[:0] for rows in kept]
        if stats is not None:
            stats.rows_kept += sum(map(len, kept))
        return kept

    def residuals(self, step: Step, places: Sequence[int]) -> Residuals:
        """Conditions as limits and places by row number; an equality becomes two inequalities."""
        limits, ranks = [], []
        for place in places:
            side = self.side(place, step.near)
            views = (
                [side]
                if not side.equal
                else [
                    Side(side.near, side.far, True, False, False),
                    Side(~side.near, ~side.far, True, False, True),
                ]
            )
            for view in views:
                merged = ranked(view)
                limits.append(merged.limits())
                ranks.append(merged.ranks())
        shape = (len(limits), self.sizes[step.near]), (len(ranks), self.sizes[step.far])
        return Residuals(np.array(limits, np.int64).reshape(shape[0]), np.array(ranks, np.int64).reshape(shape[1]))

    def edge(self, step: Step, kept: Sequence[Int64], stats: Stats | None = None) -> Edge:
        """The edge from `step.near` to `step.far`, between the kept rows."""
        stats = stats if stats is not None else Stats()
        near_rows, far_rows = kept[step.near], kept[step.far]
        near_size, far_size = len(near_rows), len(far_rows)
        places = self.between(step.near, step.far)
        equal = [place for place in places if self.conditions[place].op == "="]
        views = [(p, ranked(self._picked(p, step, near_rows, far_rows), stats)) for p in places if p not in equal]
        if len(views) > 2:
            views.sort(key=lambda view: int(view[1].bound.sum()))
        residuals = self.residuals(step, [place for place, _ in views[2:]])
        first = np.zeros(near_size, np.int64)
        if equal:
            ours, theirs, number = _groups([self._picked(p, step, near_rows, far_rows) for p in equal], stats)
            ends = np.zeros(number + 1, np.int64)
            np.cumsum(np.bincount(theirs, minlength=number), out=ends[1:])
            first = ends[ours]
            views = [(p, view.grouped(ours, theirs, number)) for p, view in views[:2]]
        if not views:
            order = kernels.stable_order(theirs, np.arange(far_size), number) if equal else np.arange(far_size)
            last = ends[ours + 1] if equal else np.full(near_size, far_size, np.int64)
            return Edge(near_rows, far_rows, far_rows[order], first, last, None, None, residuals)
        one = views[0][1]
        order = one.far_order if far_size == self.sizes[step.far] else far_rows[one.far_order]
        edge = Edge(near_rows, far_rows, order, first, one.limits(), None, None, residuals, one.near_order)
        if len(views) == 1:
            return edge
        two = views[1][1]
        return replace(edge, limit=two.limits(), place=two.ranks()[one.far_order])

    def _picked(self, place: int, step: Step, near_rows: Int64, far_rows: Int64) -> Side:
        side = self.side(place, step.near)
        near, far = taken(side.near, near_rows), taken(side.far, far_rows)
        return Side(near, far, side.inclusive, side.equal, side.flipped)


def taken(values: Int64, rows: Int64) -> Int64:
    """``values[rows]`` for ascending row numbers: `values` itself where that is all rows."""
    return values if len(rows) == len(values) else values[rows]


@dataclass(frozen=True)
class Ranked:
    """An inequality after sorting: near row ``near_order[i]`` matches far rows ``far_order[:bound[i]]``, `bound` ascending."""

    near_order: Int64
    far_order: Int64
    bound: Int64

    def limits(self) -> Int64:
        """`bound` by near row."""
        out = np.empty(len(self.bound), np.int64)
        out[self.near_order] = self.bound
        return out

    def ranks(self) -> Int64:
        """By far row its place in `far_order`: near matches far where ``rank < limit``."""
        out = np.empty(len(self.far_order), np.int64)
        out[self.far_order] = np.arange(len(out))
        return out

    def grouped(self, ours: Int64, theirs: Int64, number: int) -> Ranked:
        """The same within groups 0 .. number-1: far rows by group, then rank; bounds exclusive over all groups."""
        base = np.int64(len(self.far_order) + 1)
        far = kernels.stable_order(theirs, self.far_order, number)
        near = kernels.stable_order(ours, self.near_order, number)
        bound = merged_bounds(theirs[far] * base + self.ranks()[far], ours[near] * base + self.limits()[near], False)
        return Ranked(near, far, bound)


def ranked(side: Side, stats: Stats | None = None) -> Ranked:
    """Sort both sides of an inequality and merge them."""
    far_order, far = stable_sort(side.far)
    near_order, near = stable_sort(side.near)
    if stats is not None:
        stats.sort(len(far))
        stats.sort(len(near))
        stats.comparisons += len(far) + len(near)
    return Ranked(near_order, far_order, merged_bounds(far, near, side.inclusive))


def _groups(sides: Sequence[Side], stats: Stats) -> tuple[Int64, Int64, int]:
    """Group numbers of near and far rows over all equalities together, and a bound that they stay below."""
    near, far, number = _numbered(sides[0].near, sides[0].far, stats)
    for side in sides[1:]:
        also_near, also_far, others = _numbered(side.near, side.far, stats)
        near, far, number = _numbered(near * others + also_near, far * others + also_far, stats)
    return near, far, number


def _numbered(near: Int64, far: Int64, stats: Stats) -> tuple[Int64, Int64, int]:
    """Small numbers that are equal where the codes are: O(n) for codes of a narrow range, else by sorting."""
    both = [codes for codes in (near, far) if len(codes)]
    low = min((int(codes.min()) for codes in both), default=0)
    span = max((int(codes.max()) for codes in both), default=0) - low
    if span < len(near) + len(far):
        return near - low, far - low, span + 1
    near_order, near_sorted = stable_sort(near)
    far_order, far_sorted = stable_sort(far)
    stats.sort(len(near))
    stats.sort(len(far))
    stats.comparisons += len(near) + len(far)
    return dense_pair(near_sorted, near_order, far_sorted, far_order)
