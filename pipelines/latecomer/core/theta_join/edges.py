"""The join graph of a theta join, and one edge of it as runs of sorted positions.

Every comparison becomes ``far < near`` or ``far <= near`` on int64 codes (`>` and `>=` as they are, `<` and `<=` with
both sides complemented), and then, by sorting the far side, ``place < limit`` on whole numbers: ties, strictness and
number types are gone before any loop runs. Equalities cut both sides into groups first. Of several inequalities on an
edge the two that let the fewest pairs through shape the runs; the others are residual filters on pairs.

Ordering: none asked of the input. Cost: O(n log n) per edge. Both sides are sorted and merged, as a search among more
rows than a near cache holds would wait for memory at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from latecomer.core.theta_join import kernels
from latecomer.core.theta_join.encode import float_values, number_column, rows_within, shared_codes
from latecomer.core.theta_join.ranks import Side, Stats, extremes_of, groups_of, ranked, take_into, taken
from latecomer.core.theta_join.sums import Sums, summed

Int64 = NDArray[np.int64]
Streams = Sequence[Sequence[np.ndarray]]
"""Per stream its operand columns, int64[n] or float64[n]."""
_TOP, _LOW = np.iinfo(np.int64).max, np.iinfo(np.int64).min
MIRROR = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
"""Each comparison, and the one that holds with both sides exchanged."""


@dataclass(frozen=True)
class Comparison:
    """The condition ``streams[left][left_column] op streams[right][right_column]``; op is one of < <= > >= =."""

    left: int
    left_column: int
    op: str
    right: int
    right_column: int


@dataclass(frozen=True)
class Step:
    """A step along the join graph, from the reached stream `near` to the stream `far`."""

    near: int
    far: int


@dataclass(frozen=True)
class Residuals:
    """Inequalities kept as filters: a pair passes if ``places[k, far] < limits[k, near]`` for every k."""

    limits: Int64
    places: Int64


@dataclass(frozen=True)
class Edge:
    """The far rows that each near row matches, as half-open runs of `order`.

    Attributes
    ----------
    near_rows, far_rows
        int64, row numbers that take part; near rows by ascending `last` if there is a `limit`.
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
        """Return ``(order, row, first, last)``: the edge without its second inequality, as O(n log n) nonempty runs."""
        if self.limit is None or self.place is None:
            nonempty = np.flatnonzero(self.last > self.first)
            contiguous = len(nonempty) and int(nonempty[-1] - nonempty[0]) == len(nonempty) - 1
            rows = slice(int(nonempty[0]), int(nonempty[-1]) + 1) if contiguous else nonempty
            return self.order, self.near_rows[rows], self.first[rows], self.last[rows]
        depth = max(1, len(self.order).bit_length())
        flat, starts, lefts, before = kernels.levels_of(self.place, self.order, depth)
        runs = kernels.canonical_runs(
            self.near_rows, self.first, self.last, self.limit, starts, lefts, before, len(flat)
        )
        return flat, *runs

    def by_row(self, weights: Int64 | None, size: int, modulus: int | None = None) -> Int64:
        """Return sums by near row, as :meth:`latecomer.core.theta_join.sums.Sums.by_row` does."""
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
        """Return the sum over all pairs, as :meth:`latecomer.core.theta_join.sums.Sums.total` does."""
        size = int(self.near_rows.max(initial=-1)) + 1
        sums = self.by_row(weights, size, modulus)
        return summed(sums, modulus)

    def adjacency(self, near_size: int, far_size: int) -> tuple[Int64, Int64]:
        """Return ``(starts int64[near_size + 1], far)``: the matches of every near row number, ascending.

        O(n log n + pairs).
        """
        if self.limit is None and not len(self.residuals.limits):
            return kernels.expand_prefixes(self.near_rows, self.first, self.last, self.order, near_size, far_size)
        order, rows, first, last = self.runs()
        limits, places, number = self.residuals.limits, self.residuals.places, len(self.far_rows)
        renumbered = 2 * number < far_size  # numbers among few rows sort in less time
        if renumbered:
            numbers = np.zeros(far_size, np.int64)
            numbers[self.far_rows] = np.arange(number)
            order, places = numbers[order], places[:, self.far_rows]
        starts, far = kernels.expand_runs(rows, first, last, order, limits, places, near_size)
        kernels.sort_runs(starts, far, number if renumbered else far_size)
        return starts, self.far_rows[far] if renumbered else far

    def take(self, low: int, high: int) -> Edge:
        """Return the edge of the near rows with numbers ``low <= row < high``."""
        rows = (self.near_rows >= low) & (self.near_rows < high)
        limit = None if self.limit is None else self.limit[rows]
        return replace(self, near_rows=self.near_rows[rows], first=self.first[rows], last=self.last[rows], limit=limit)


@dataclass
class Query:
    """The streams and conditions of a theta join, checked and coded once.

    Raises
    ------
    ValueError
        If an op is unknown, a stream or column does not exist, a stream is compared with itself, columns of one stream
        have different lengths, or there are fewer than two streams.
    TypeError
        If a column is neither int64 nor float64.
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
            for stream, mask in zip((c.left, c.right), good, strict=True):
                before = valid[stream]
                valid[stream] = mask if before is None else before if mask is None else before & mask
            self.pairs.setdefault((min(c.left, c.right), max(c.left, c.right)), []).append(place)
        self.kept = [
            np.arange(size) if good is None else np.flatnonzero(good)
            for size, good in zip(self.sizes, valid, strict=True)
        ]

    def side(self, place: int, near: int) -> Side:
        """Return condition number `place` as stream `near` sees it."""
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
        """Return the codes of one operand of condition `place` by row number, int64[n]."""
        return self._codes[place][0 if self.conditions[place].left == stream else 1]

    def decode(self, place: int, codes: Int64) -> list[float | int]:
        """Return the value of each code; whole numbers compared with floating-point numbers become such."""
        c = self.conditions[place]
        sides = [
            number_column(self.streams[c.left][c.left_column]),
            number_column(self.streams[c.right][c.right_column]),
        ]
        if all(side.dtype == np.int64 for side in sides):
            return [int(code) for code in codes]
        return [float(value) for value in float_values(codes)]

    def between(self, stream: int, other: int) -> list[int]:
        """Return the numbers of the conditions between two streams."""
        return self.pairs.get((min(stream, other), max(stream, other)), [])

    def tree(self, root: int) -> tuple[list[Step], list[Step]]:
        """Return a spanning tree as steps from `root`, parents first, and the edges that close cycles.

        The tree is the same for every root. It grows from stream 0 by the lowest stream that a condition reaches, along
        an equality if there is a choice. A stream that no condition reaches is joined to stream 0 without a condition,
        and every pair matches.
        """
        reached, steps, closing = [0], [], []
        waiting = list(range(1, len(self.streams)))
        while waiting:
            far = next((s for s in waiting if any(self.between(s, r) for r in reached)), waiting[0])
            parents = [r for r in reached if self.between(far, r)] or [0]
            parents.sort(key=lambda r: not any(self.conditions[c].op == "=" for c in self.between(far, r)))
            steps.append(Step(parents[0], far))
            closing += [Step(near, far) for near in parents[1:]]
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
        """Return per stream the rows that pass the coarse filter along every condition, in ascending order.

        For ``near > far``: keep near > min(far) and far < max(near), and so for the other ops, with the strictness of
        the condition. O(n) per condition; a dropped row is in no result. This is Algorithm 2 with two errata, see
        :mod:`latecomer.core.theta_join.plan`: a row is kept if it can match something.
        """
        kept = list(self.kept)
        for place, c in enumerate(self.conditions):
            near, far = c.left, c.right
            if len(kept[near]) == 0 or len(kept[far]) == 0:
                return [rows[:0] for rows in kept]
            ours, theirs = self.codes(place, near), self.codes(place, far)
            # Algorithm 2, line 6: minima and maxima, here of the rows that are still kept.
            (near_low, near_high), (far_low, far_high) = ends = [
                extremes_of(codes, kept[stream]) for codes, stream in ((ours, near), (theirs, far))
            ]
            if stats is not None:
                stats.comparisons += 2 * (len(kept[near]) + len(kept[far]))
            strict = c.op in ("<", ">")
            if strict and (far_low >= near_high if c.op == ">" else near_low >= far_high):
                return [rows[:0] for rows in kept]  # hence one more and one less stay within int64
            if c.op in (">", ">="):
                near_low, far_high = far_low + strict, near_high - strict
                near_high, far_low = _TOP, _LOW
            elif c.op in ("<", "<="):
                near_high, far_low = far_high - strict, near_low + strict
                near_low, far_high = _LOW, _TOP
            else:
                near_low, near_high, far_low, far_high = far_low, far_high, near_low, near_high
            # Algorithm 2, lines 7 to 24 for the left stream and 25 to 42 for the right one.
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
        """Return conditions as limits and places by row number; an equality becomes two inequalities."""
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
        """Return the edge from `step.near` to `step.far` between the kept rows."""
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
        shaping = views[0][1]
        order = shaping.far_order if far_size == self.sizes[step.far] else far_rows[shaping.far_order]
        near = shaping.near_order
        first = first[near] if equal else first
        edge = Edge(near_rows[near], far_rows, order, first, shaping.bound, None, None, residuals)
        if len(views) == 1:
            return edge
        second = views[1][1]
        return replace(edge, limit=second.limits()[near], place=second.ranks()[shaping.far_order])

    def sums(self, step: Step, kept: Sequence[Int64], stats: Stats | None = None) -> Sums | Edge:
        """Return sums along an edge between the kept rows; the edge itself unless it has one or two inequalities."""
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
        """Return condition `place` as `step.near` sees it, for the given rows."""
        side = self.side(place, step.near)
        near, far = taken(side.near, near_rows), taken(side.far, far_rows)
        return Side(near, far, side.inclusive, side.equal, side.flipped)
