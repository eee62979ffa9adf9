"""The join graph of a theta join, and one edge of it as runs of sorted positions.

Every comparison becomes ``far < near`` or ``far <= near`` on int64 codes (`>` and `>=` as they are, `<` and `<=` with
both sides complemented), and then, by sorting the far side, ``place < limit`` on whole numbers: ties, strictness and
number types are gone before any loop runs. Equalities cut both sides into groups first. Of several inequalities on an
edge the two that let the fewest pairs through shape the runs; the others are residual filters on pairs.

Ordering: none asked of the input. Cost: O(n log n) per edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from latecomer.core import theta_kernels as kernels
from latecomer.core.theta_encode import number_column, shared_codes

Int64 = NDArray[np.int64]
Streams = Sequence[Sequence[NDArray[Any]]]
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
    """

    near_rows: Int64
    far_rows: Int64
    order: Int64
    first: Int64
    last: Int64
    limit: Int64 | None
    place: Int64 | None
    residuals: Residuals

    def runs(self) -> tuple[Int64, Int64, Int64, Int64]:
        """``(order, row, first, last)``: the edge without its second inequality, O(n log n) runs, none of them empty."""
        if self.limit is None or self.place is None:
            some = self.last > self.first
            return self.order, self.near_rows[some], self.first[some], self.last[some]
        table, lefts = kernels.levels_of(self.place, max(1, len(self.order).bit_length()))
        near, first, last = kernels.canonical_runs(self.first, self.last, self.limit, lefts)
        flat = self.order[table.ravel()] if len(self.order) else table.ravel()
        return flat, self.near_rows[near], first, last

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
        sorted_weights = weights[self.order]
        prefix = np.zeros(len(self.order) + 1, np.int64)
        np.cumsum(sorted_weights, out=prefix[1:])
        if self.limit is None or self.place is None:
            found = prefix[self.last] - prefix[self.first]
        else:
            everyone = np.arange(len(self.last))
            by_last = kernels.stable_order(self.last, everyone, len(self.order) + 1)
            found = kernels.dominance_sums(by_last, self.last, self.limit, self.place, sorted_weights)
            found -= prefix[self.first]
        out = np.zeros(size, np.int64)
        out[self.near_rows] = found if modulus is None else found % modulus
        return out

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
            side = self.side(place, near)
            ours, theirs = side.near[kept[near]], side.far[kept[far]]
            low, high = theirs.min(), ours.max()
            inclusive = side.inclusive or side.equal
            keep_near = ours >= low if inclusive else ours > low
            keep_far = theirs <= high if inclusive else theirs < high
            if side.equal:
                keep_near &= ours <= theirs.max()
                keep_far &= theirs >= ours.min()
            kept[near], kept[far] = kept[near][keep_near], kept[far][keep_far]
            if stats is not None:
                stats.comparisons += 2 * (len(ours) + len(theirs))
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
                limit, rank = limits_of(view)
                limits.append(limit)
                ranks.append(rank)
        shape = (len(limits), self.sizes[step.near]), (len(ranks), self.sizes[step.far])
        return Residuals(np.array(limits, np.int64).reshape(shape[0]), np.array(ranks, np.int64).reshape(shape[1]))

    def edge(self, step: Step, kept: Sequence[Int64], stats: Stats | None = None) -> Edge:
        """The edge from `step.near` to `step.far`, between the kept rows."""
        stats = stats if stats is not None else Stats()
        near_rows, far_rows = kept[step.near], kept[step.far]
        near_size, far_size = len(near_rows), len(far_rows)
        places = self.between(step.near, step.far)
        equal = [place for place in places if self.conditions[place].op == "="]
        views = [(place, self._picked(place, step, near_rows, far_rows)) for place in places if place not in equal]
        limits = [limits_of(view) for _, view in views]
        stats.comparisons += len(views) * (near_size + far_size) * far_size.bit_length()
        if len(views) > 2:
            best = sorted(range(len(views)), key=lambda i: int(limits[i][0].sum()))
            views, limits = [views[i] for i in best], [limits[i] for i in best]
        residuals = self.residuals(step, [place for place, _ in views[2:]])
        start, end = np.zeros(near_size, np.int64), np.full(near_size, far_size, np.int64)
        group = None
        if equal:
            ours, theirs = _groups([self._picked(place, step, near_rows, far_rows) for place in equal])
            group = np.argsort(theirs, kind="stable")
            start, end = _search(theirs[group], ours), _search(theirs[group], ours, "right")
            stats.comparisons += len(equal) * (2 * near_size + far_size) * far_size.bit_length()

        def placed(limit: Int64, rank: Int64) -> tuple[Int64, Int64]:
            """Exclusive bounds and the order by (group, rank)."""
            order = np.empty(far_size, np.int64)
            order[rank] = np.arange(far_size)
            if group is None:
                return limit, order
            base = np.int64(far_size + 1)
            order = (
                kernels.stable_order(theirs, order, int(max(theirs.max(), ours.max())) + 1)
                if far_size and near_size
                else order
            )
            return _search(theirs[order] * base + rank[order], ours * base + limit), order

        if not limits:
            order = np.arange(far_size) if group is None else group
            return Edge(near_rows, far_rows, far_rows[order], start, end, None, None, residuals)
        last, order = placed(*limits[0])
        if len(limits) == 1:
            return Edge(near_rows, far_rows, far_rows[order], start, last, None, None, residuals)
        limit, second = placed(*limits[1])
        rank = np.empty(far_size, np.int64)
        rank[second] = np.arange(far_size)
        return Edge(near_rows, far_rows, far_rows[order], start, last, limit, rank[order], residuals)

    def _picked(self, place: int, step: Step, near_rows: Int64, far_rows: Int64) -> Side:
        side = self.side(place, step.near)
        return Side(side.near[near_rows], side.far[far_rows], side.inclusive, side.equal, side.flipped)


def limits_of(side: Side) -> tuple[Int64, Int64]:
    """``(limit per near row, rank per far row)``, ranks a permutation: near matches far where ``rank < limit``."""
    order = np.argsort(side.far, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return _search(side.far[order], side.near, "right" if side.inclusive else "left"), rank


def _search(ranked: Int64, needles: Int64, side: Literal["left", "right"] = "left") -> Int64:
    """`numpy.searchsorted`; many needles are sorted first, since random access to `ranked` costs more than that."""
    if len(needles) < 1 << 15:
        return np.searchsorted(ranked, needles, side)
    order = np.argsort(needles)
    out = np.empty(len(needles), np.int64)
    out[order] = np.searchsorted(ranked, needles[order], side)
    return out


def _groups(sides: Sequence[Side]) -> tuple[Int64, Int64]:
    """Dense group numbers of near and far rows over all equalities together."""
    joint = np.zeros(len(sides[0].near) + len(sides[0].far), np.int64)
    for side in sides:
        values, dense = np.unique(np.concatenate([side.near, side.far]), return_inverse=True)
        joint = np.unique(joint * max(len(values), 1) + dense, return_inverse=True)[1]
    return joint[: len(sides[0].near)], joint[len(sides[0].near) :]
