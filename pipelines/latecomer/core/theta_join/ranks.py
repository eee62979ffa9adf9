"""One comparison of a theta join as whole numbers: its codes, their sorted ranks, groups of equal values.

Ordering: none asked of the input. Cost: O(n log n) to rank, O(n) to group codes of a narrow range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latecomer.core.theta_join import kernels
from latecomer.core.theta_join.encode import dense_pair, extremes, merged_bounds, stable_sort
from latecomer.core.theta_join.sums import parted, sorted_events

Int64 = NDArray[np.int64]


@dataclass
class Stats:
    """The work of a join, added up over all calls that receive the object.

    Attributes
    ----------
    comparisons
        Comparisons of two join values or codes: ``k ceil(log2 k)`` for a sort of k, ``ceil(log2(k + 1))`` for a search
        among k, 1 for a filter or a tested pair.
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
        """Count a sort of `rows`."""
        self.comparisons += rows * (max(rows, 1) - 1).bit_length()

    def search(self, needles: int, rows: int) -> None:
        """Count `needles` binary searches among `rows`."""
        self.comparisons += needles * rows.bit_length()


@dataclass(frozen=True)
class Side:
    """A comparison as one stream sees it: near matches far if ``far < near`` as int64 codes.

    Attributes
    ----------
    near, far : int64[n], int64[m]
        Codes of both streams.
    inclusive, equal
        Near matches far if ``far <= near``, or if ``far == near``.
    flipped
        The codes are complements of the values' codes.
    """

    near: Int64
    far: Int64
    inclusive: bool
    equal: bool
    flipped: bool


def extremes_of(codes: Int64, rows: Int64) -> tuple[int, int]:
    """Return the least and the greatest code of at least one row."""
    if len(rows) == len(codes):
        return int(codes.min()), int(codes.max())
    return extremes(codes, rows)


def take_into(values: Int64, rows: Int64, out: Int64) -> None:
    """Fill `out` with ``values[rows]``, for ascending row numbers."""
    if len(rows) == len(values):
        out[:] = values
    else:
        np.take(values, rows, out=out, mode="clip")


def taken(values: Int64, rows: Int64) -> Int64:
    """Return ``values[rows]`` for ascending row numbers: `values` itself if these are all rows."""
    return values if len(rows) == len(values) else values[rows]


@dataclass(frozen=True)
class Ranked:
    """A sorted inequality: near row ``near_order[i]`` matches far rows ``far_order[:bound[i]]``, `bound` ascending."""

    near_order: Int64
    far_order: Int64
    bound: Int64

    def limits(self) -> Int64:
        """Return `bound` by near row, int64[n]."""
        out = np.empty(len(self.bound), np.int64)
        out[self.near_order] = self.bound
        return out

    def ranks(self) -> Int64:
        """Return by far row its place in `far_order`, int64[m]: near matches far if ``rank < limit``."""
        out = np.empty(len(self.far_order), np.int64)
        out[self.far_order] = np.arange(len(out))
        return out

    def grouped(self, ours: Int64, theirs: Int64, number: int) -> Ranked:
        """Return the inequality within groups 0 .. number-1: far rows by group, then rank; bounds over all groups."""
        base = np.int64(len(self.far_order) + 1)
        far = kernels.stable_order(theirs, self.far_order, number)
        near = kernels.stable_order(ours, self.near_order, number)
        bound = merged_bounds(theirs[far] * base + self.ranks()[far], ours[near] * base + self.limits()[near], False)
        return Ranked(near, far, bound)


def ranked(side: Side, stats: Stats | None = None) -> Ranked:
    """Sort both sides of an inequality as one list."""
    far, near = side.far, side.near
    near_order, far_order, bound = parted(
        sorted_events(np.concatenate([far, near]), len(far), side.inclusive), len(far)
    )
    if stats is not None:
        stats.sort(len(far))
        stats.sort(len(near))
        stats.comparisons += len(far) + len(near)
    return Ranked(near_order, far_order, bound)


def groups_of(sides: Sequence[Side], stats: Stats) -> tuple[Int64, Int64, int]:
    """Return the group numbers of near and far rows over all equalities together, and a number above all of them."""
    near, far, number = _numbered(sides[0].near, sides[0].far, stats)
    for side in sides[1:]:
        also_near, also_far, others = _numbered(side.near, side.far, stats)
        near, far, number = _numbered(near * others + also_near, far * others + also_far, stats)
    return near, far, number


def _numbered(near: Int64, far: Int64, stats: Stats) -> tuple[Int64, Int64, int]:
    """Return small numbers that are equal if the codes are: O(n) for codes of a narrow range, else by sorting."""
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
