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

from latecomer.core.theta_join import kernels as kernels
from latecomer.core.theta_join.encode import float_values, number_column, rows_within, shared_codes
from latecomer.core.theta_join.ranks import Side, Stats, extremes_of, groups_of, ranked, take_into, taken
from latecomer.core.theta_join.sums import Sums, summed

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
        int64, row numbers that take part, the near ones by ascending `last` where there is a `limit`.
    order
        int64[m], row numbers of the far stream.
    first, last
        int64 per near row: it matches positions ``first <= p < last``.
    limit, place
        With a second inequality: only positions with ``place[p] < limit``.
    residuals
        Every other inequality, by row number.
    """

    near_rows: Int64
    far_rows: Int64
    order: Int64
    first: Int64
    last: Int64
    limit: Int64 | None
    place: Int64 | None
    residuals: Residuals

    def runs(self) -> tuple[kernels.Ints, kernels.Ints, kernels.Ints, kernels.Ints]:
        """``(order, row, first, last)``: the edge without its second inequality, O(n log n) runs, none of them empty."""
        if self.limit is None or self.place is None:
            some = np.flatnonzero(self.last > self.first)
            whole = len(some) and int(some[-1] - some[0]) == len(some) - 1
            own = slice(int(some[0]), int(some[-1]) + 1) if whole else some
            return self.order, self.near_rows[own], self.first[own], self.last[own]
        depth = max(1, len(self.order).bit_length())
        flat, starts, lefts, before = kernels.levels_of(self.place, self.order, depth)
        rows, first, last = self.near_rows, self.first, self.last
        return flat, *kernels.canonical_runs(rows, first, last, self.limit, starts, lefts, before, len(flat))

    def by_row(self, weights: Int64 | None, size: int, modulus: int | None = None) -> Int64:
        """As :meth:`latecomer.core.theta_join.sums.Sums.by_row`."""
        if weights is None:
            weights = np.ones(int(self.far_rows[-1]) + 1 if len(self.far_rows) else 0, np.int64)
        order, rows, first, last = self.runs()
        if len(self.residuals.limits):
            limits, places = self.residuals.limits, self.residuals.places
            out = kernels.filtered_sums(rows, first, last, order, limits, places, weights, size)
        else:
            out = kernels.run_sums(order, weights, rows, first, last, size)
        return out if modulus is None else out % modulus

    def total(self, weights: Int64 | None, modulus: int | None = None) -> int:
        """As :meth:`latecomer.core.theta_join.sums.Sums.total`."""
        size = int(self.near_rows.max(initial=-1)) + 1
        sums = self.by_row(weights, size, modulus)
        return summed(sums, modulus)

    def adjacency(self, near_size: int, far_size: int) -> tuple[Int64, Int64]:
        """``(starts int64[near_size + 1], far)``: matches of every near row number, ascending; O(n log n + pairs)."""
        if self.limit is None and not len(self.residuals.limits):
            return kernels.expand_prefixes(self.near_rows, self.first, self.last, self.order, near_size, far_size)
        order, rows, first, last = self.runs()
        limits, places, number = self.residuals.limits, self.residuals.places, len(self.far_rows)
        few = 2 * number < far_size  # then numbers among these rows sort in less time
        if few:
            own = np.zeros(far_size, np.int64)
            own[self.far_rows] = np.arange(number)
            order, places = own[order], places[:, self.far_rows]
        starts, far = kernels.expand_runs(rows, first, last, order, limits, places, near_size)
        kernels.sort_runs(starts, far, number if few else far_size)
        return starts, self.far_rows[far] if few else far

    def take(self, low: int, high: int) -> Edge:
        """The same edge for the near rows from number `low` up to and without `high`."""
        own = (self.near_rows >= low) & (self.near_rows < high)
        limit = None if self.limit is None else self.limit[own]
        return replace(self, near_rows=self.near_rows[own], first=self.first[own], last=self.last[own], limit=limit)


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
        valid: list[NDArray[np.bool_] | None] = [None] * len(self.sizes)
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
            for stream, own in zip((c.left, c.right), good, strict=True):
                before = valid[stream]
                valid[stream] = own if before is None else before if own is None else before & own
            self.pairs.setdefault((min(c.left, c.right), max(c.left, c.right)), []).append(place)
        self.kept = [
            np.arange(size) if good is None else np.flatnonzero(good)
            for size, good in zip(self.sizes, valid, strict=True)
        ]

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
        """The value of each code; of a whole number beside floating-point ones, as it is compared with them."""
        c = self.conditions[place]
        sides = [
            number_column(self.streams[c.left][c.left_column]),
            number_column(self.streams[c.right][c.right_column]),
        ]
        if all(side.dtype == np.int64 for side in sides):
            return [int(code) for code in codes]
        return [float(value) for value in float_values(codes)]

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
            (near_low, near_high), (far_low, far_high) = ends = [
                extremes_of(codes, kept[stream]) for codes, stream in ((ours, near), (theirs, far))
            ]
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
            if near_low > ends[0][0] or near_high < ends[0][1]:
                kept[near] = rows_within(ours, kept[near], near_low, near_high)
            if far_low > ends[1][0] or far_high < ends[1][1]:
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
            ours, theirs, number = groups_of([self._picked(p, step, near_rows, far_rows) for p in equal], stats)
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
        near = one.near_order
        edge = Edge(near_rows[near], far_rows, order, first[near] if equal else first, one.bound, None, None, residuals)
        if len(views) == 1:
            return edge
        two = views[1][1]
        return replace(edge, limit=two.limits()[near], place=two.ranks()[one.far_order])

    def sums(self, step: Step, kept: Sequence[Int64], stats: Stats | None = None) -> Sums | Edge:
        """What sums along the edge from `step.near` to `step.far`, between the kept rows: the edge itself only where it must be."""
        stats = stats if stats is not None else Stats()
        places = self.between(step.near, step.far)
        ordered = [place for place in places if self.conditions[place].op != "="]
        if len(ordered) not in (1, 2):
            return self.edge(step, kept, stats)
        near_rows, far_rows = kept[step.near], kept[step.far]
        groups = None
        if len(ordered) < len(places):
            equal = [self._picked(place, step, near_rows, far_rows) for place in places if place not in ordered]
            ours, theirs, number = groups_of(equal, stats)
            groups = np.concatenate([theirs, ours]), number
        codes = []
        for place in ordered:
            side = self.side(place, step.near)
            joined = np.empty(len(far_rows) + len(near_rows), np.int64)
            take_into(side.far, far_rows, joined[: len(far_rows)])
            take_into(side.near, near_rows, joined[len(far_rows) :])
            codes.append((joined, side.inclusive))
            stats.sort(len(far_rows))
            stats.sort(len(near_rows))
            stats.comparisons += len(far_rows) + len(near_rows)
        return Sums.of(near_rows, far_rows, codes, groups)

    def _picked(self, place: int, step: Step, near_rows: Int64, far_rows: Int64) -> Side:
        side = self.side(place, step.near)
        near, far = taken(side.near, near_rows), taken(side.far, far_rows)
        return Side(near, far, side.inclusive, side.equal, side.flipped)
