"""Sums along one edge of a theta join, without forming it: both sides are sorted as one list and swept once.

Row i of the far side is *event* i, row j of the near side event m + j. In the order of an inequality, a near event
matches the far events before it; ties are ordered as strictness requires, so nothing is compared again and no bound is
searched for. A second inequality sorts the places of the first order by its own codes and counts, before each near
event, far events of lower place. Groups of equalities come first in both orders.

Ordering: none asked of the input. Cost: the sorts, O(n log n), and O(n) besides. Arrays that grow with the input are
read and written in order, except for a gather per second inequality and, for sums by row, a scatter; all other counters
fit a near cache.

References
----------
.. [1] B. Chazelle, A functional approach to data structures and its use in multidimensional searching, SIAM J. Comput.
   17, 1988 (counting dominated points offline; here blocks of places stand for its levels).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.core.theta_join.kernels import stable_order

Int64 = NDArray[np.int64]
Words = NDArray[np.uint64]
Ints = NDArray[np.signedinteger]

_BITS = 12
"""Bits of a place within a block of `dominated`: its counters fill 35 KiB, about the nearest cache."""
_LANES = 16
_NONE = np.empty(0, np.int64)


def sorted_events(codes: Int64, far: int, inclusive: bool) -> Int64:
    """Return events by ascending code, int64[n + m]; of equal codes the near side first, if `inclusive` the far side.

    Code, side and number are packed into one word, and the words are sorted: no comparison follows an index. If they
    need more than 64 bits (floating point), the lowest bits of the code are left out, and the few codes that differ in
    these alone are put in order afterwards.

    Parameters
    ----------
    codes
        int64[n + m], by event; overwritten.
    far
        m: events below it are of the far side.
    """
    return _sorted(codes, _NONE, far, inclusive, False)


def sorted_places(codes: Int64, order: Int64, far: int, inclusive: bool) -> Int64:
    """Return ``2 * place + (1 if near)`` for the places of `order` (events), sorted as `sorted_events` does.

    `codes` are by place, and overwritten.
    """
    return _sorted(codes, order, far, inclusive, True)


def _sorted(codes: Int64, order: Int64, far: int, inclusive: bool, marked: bool) -> Int64:
    """Do as `sorted_places`, or without the mark; `order` is empty if the events themselves are the places."""
    size = len(codes)
    if not size:
        return np.empty(0, np.int64)
    low, high = int(codes.min()), int(codes.max())
    bits = (size - 1).bit_length()
    cut = max(0, (high - low).bit_length() + bits - 63)
    words = np.empty(size, np.uint64) if cut else codes.view(np.uint64)
    _pack(codes, order, far, inclusive, low, bits, cut, words)
    words.sort()
    if cut:
        _untie(words, codes, low, bits, cut)
    _unpack(words, inclusive, bits, marked)
    return words.view(np.int64)


@njit(cache=True)
def _pack(codes: Int64, order: Int64, far: int, inclusive: bool, low: int, bits: int, cut: int, out: Words) -> None:
    shift, less, least = np.uint64(bits), np.uint64(cut), np.uint64(low)
    given = len(order) > 0
    for i in range(len(codes)):
        event = order[i] if given else i
        late = np.uint64((event >= far) == inclusive)
        out[i] = (((((np.uint64(codes[i]) - least) >> less) << np.uint64(1)) | late) << shift) | np.uint64(i)


@njit(cache=True)
def _untie(words: Words, codes: Int64, low: int, bits: int, cut: int) -> None:
    """Put words in order whose codes differ only in the bits left out."""
    one = np.uint64(1)
    shift, mask = np.uint64(bits + 1), (one << np.uint64(bits)) - one
    kept, rest = (one << shift) - one, (one << np.uint64(cut)) - one
    begin = 0
    while begin < len(words):
        end = begin + 1
        while end < len(words) and (words[end] ^ words[begin]) >> shift == 0:
            end += 1
        if end - begin > 1:
            for i in range(begin, end):
                code = np.uint64(codes[words[i] & mask]) - np.uint64(low)
                words[i] = ((code & rest) << shift) | (words[i] & kept)
            words[begin:end] = np.sort(words[begin:end])
        begin = end


@njit(cache=True)
def _unpack(words: Words, inclusive: bool, bits: int, marked: bool) -> None:
    one = np.uint64(1)
    mask, flip = (one << np.uint64(bits)) - one, np.uint64(0 if inclusive else 1)
    if not marked:
        for i in range(len(words)):
            words[i] &= mask
        return
    for i in range(len(words)):
        late = (words[i] >> np.uint64(bits)) & one
        words[i] = ((words[i] & mask) << one) | (late ^ flip)


def parted(order: Int64, far: int, kind: type[np.signedinteger] = np.int64) -> tuple[Ints, Ints, Ints]:
    """Split an order of events into ``(near [n], far [m], bound [n])``, arrays of an integer type.

    Near row ``near[i]`` stands after the far rows ``far[:bound[i]]``.
    """
    size = len(order) - far
    near_order, far_order, bound = np.empty(size + 1, kind), np.empty(far + 1, kind), np.empty(size + 1, kind)
    _part(order, far, near_order, far_order, bound)
    return near_order[:-1], far_order[:-1], bound[:-1]


@njit(cache=True)
def _part(order: Int64, far: int, near_order: Ints, far_order: Ints, bound: Ints) -> None:
    at = to = 0
    for event in order:  # both sides are written and one moves on: no branch that cannot be predicted
        near = int(event >= far)
        near_order[to], bound[to], far_order[at] = event - far, at, event
        to += near
        at += 1 - near


@njit(cache=True)
def _pairs(order: Int64, far: int) -> np.uint64:
    """Count the pairs of a far event before a near event, modulo 2**64."""
    at, total = np.uint64(0), np.uint64(0)
    for event in order:
        near = np.uint64(event >= far)
        total += at * near
        at += np.uint64(1) - near
    return total


@dataclass(frozen=True)
class Sums:
    """An edge with one or two inequalities and any equalities, along which weights are summed.

    Attributes
    ----------
    near_rows, far_rows
        int64, ascending row numbers that take part.
    order
        int64[n + m], events by group and first inequality.
    second
        int64[n + m], with a second inequality: `sorted_places` of `order`, by group.
    groups
        int64[n + m], with equalities: the group of each place of `order`.
    """

    near_rows: Int64
    far_rows: Int64
    order: Int64
    second: Int64 | None
    groups: Int64 | None

    @staticmethod
    def of(
        near_rows: Int64,
        far_rows: Int64,
        codes: list[tuple[Int64, bool]],
        groups: tuple[Int64, int] | None,
    ) -> Sums:
        """Sort an edge.

        Parameters
        ----------
        near_rows, far_rows
            Row numbers that take part, ascending.
        codes
            Per inequality, codes by event, and whether it is inclusive; overwritten.
        groups
            Group numbers by event and how many there are; None without equalities.
        """
        far = len(far_rows)
        order = sorted_events(codes[0][0], far, codes[0][1])
        if groups is not None:
            order = stable_order(groups[0], order, groups[1])
        by_place = None if groups is None else groups[0][order]
        second = None
        if len(codes) > 1:
            second = sorted_places(codes[1][0][order], order, far, codes[1][1])
            if by_place is not None and groups is not None:
                second = stable_order(np.repeat(by_place, 2), second, groups[1])
        return Sums(near_rows, far_rows, order, second, by_place)

    def by_row(self, weights: Int64 | None, size: int, modulus: int | None = None) -> Int64:
        """Sum per near row the weights of the far rows that it matches, int64[size] by row number.

        Parameters
        ----------
        weights
            int64 by far row number; None: 1 each.
        size
            Rows of the near stream.
        modulus
            Sums are modulo 2**64, or modulo this (below 2**31), for which the weights must be reduced already.
        """
        sums, near = self._sums(weights)
        if modulus is not None:
            sums %= modulus
        whole = len(self.near_rows) == size
        out = np.empty(size, np.int64) if whole else np.zeros(size, np.int64)
        _scatter(sums, near, self.near_rows if not whole else _NONE, out)
        return out

    def total(self, weights: Int64 | None, modulus: int | None = None) -> int:
        """Return the sum of `by_row` over all near rows, modulo 2**64 or `modulus`."""
        if weights is None and self.second is None and self.groups is None and modulus is None:
            return int(_pairs(self.order, len(self.far_rows)))
        sums = self._sums(weights)[0]
        return summed(sums if modulus is None else sums % modulus, modulus)

    def _sums(self, weights: Int64 | None) -> tuple[Int64, Ints]:
        """Return sums in some order of the near rows, and that order, as numbers in `near_rows`."""
        far = len(self.far_rows)
        kind = np.int32 if len(self.order) < 1 << 31 else np.int64
        near_order, far_order, bound = parted(self.order, far, kind)
        prefix, far_weights = _NONE, _NONE
        if weights is not None:
            far_weights = weights if len(weights) == far else weights[self.far_rows]
            prefix = np.empty(far + 1, np.int64)
            _sum_up(far_weights, far_order, prefix)
        if self.second is None:
            sums = _looked_up(prefix, bound)
        else:
            by_place = np.append(far_weights, 0)[np.minimum(self.order, far)] if weights is not None else _NONE
            sums = dominated(self.second, by_place)[self.order >= far]
        if self.groups is not None:  # far rows of earlier groups come first in both orders
            new = np.diff(self.groups, prepend=-1) != 0
            before = np.cumsum(self.order < far)
            before[1:] = before[:-1].copy()
            before[:1] = 0
            sums -= _looked_up(prefix, np.maximum.accumulate(np.where(new, before, 0))[self.order >= far])
        return sums, near_order


def summed(sums: Int64, modulus: int | None) -> int:
    """Return the total of sums, modulo 2**64, or modulo `modulus` if they are below it."""
    return int(sums.view(np.uint64).sum()) if modulus is None else int(sums.sum()) % modulus


@njit(cache=True)
def _sum_up(weights: Int64, order: Ints, prefix: Int64) -> None:
    """Write the sums of the first 0, 1, ... weights in an order to `prefix`."""
    prefix[0] = total = np.int64(0)
    for i in range(len(order)):
        total += weights[order[i]]
        prefix[i + 1] = total


@njit(cache=True)
def _looked_up(prefix: Int64, bound: Ints) -> Int64:
    """Return ``prefix[bound]``; an empty `prefix` stands for 0, 1, 2, ..."""
    out = np.empty(len(bound), np.int64)
    if len(prefix):
        for i in range(len(bound)):
            out[i] = prefix[bound[i]]
    else:
        for i in range(len(bound)):
            out[i] = bound[i]
    return out


@njit(cache=True)
def _scatter(values: Int64, near: Ints, rows: Int64, out: Int64) -> None:
    """Set ``out[rows[near]] = values``; empty `rows` stand for 0, 1, 2, ..."""
    if len(rows):
        for i in range(len(near)):
            out[rows[near[i]]] = values[i]
    else:
        for i in range(len(near)):
            out[near[i]] = values[i]


def dominated(second: Int64, weights: Int64) -> Int64:
    """Sum, per place of a near event, the far events before it in `second` at a lower place, modulo 2**64.

    Weights are summed. Places are cut into blocks, and events are taken in order: counters per block answer for whole
    blocks, and the event is passed on to the block of its place, which answers for its part in the same order. All
    counters in use stay in the nearest cache.

    Parameters
    ----------
    second
        int64[size], ``2 * place + (1 if near)``, each place once.
    weights
        int64[size], by place; empty: 1 for every far event.

    Returns
    -------
    int64[size]
        By place, 0 for a far event. O(size), times 48 counters per near event and pass (more from 2**24 places on).
    """
    size = len(second)
    words, out = np.empty(size, np.int64), np.zeros(size, np.int64)
    _dominated(second, weights, words, np.empty(size if len(weights) else 0, np.int64), out, _LANES)
    return out


@njit(cache=True)
def _dominated(second: Int64, weights: Int64, words: Int64, carried: Int64, out: Int64, lanes: int) -> None:
    size, width, unit = len(second), 1 << _BITS, len(weights) == 0
    blocks = ((size - 1) >> _BITS) + 1
    fill = np.empty(blocks, np.int64)
    for number in range(blocks):
        fill[number] = number << _BITS
    top = ((blocks >> 8) // lanes + 1) * lanes
    counters = np.zeros(top + 17 * (top << 4), np.int64)
    for event in second:
        place = event >> 1
        block = np.uint64(place) >> np.uint64(_BITS)
        inner, to = place & (width - 1), fill[block]
        fill[block] = to + 1
        if event & 1:
            before = _below(counters, top, block, lanes)
            if unit:
                words[to] = (before << (_BITS + 1)) | width | inner
            else:
                words[to] = width | inner
                carried[to] = before
        else:
            words[to] = inner
            _add(counters, top, block, np.int64(1) if unit else weights[place])
    counters = np.empty(lanes + 17 * (lanes << 4), np.int64)
    for number in range(blocks):
        start = number << _BITS
        counters[:] = 0
        for at in range(start, fill[number]):
            word = words[at]
            inner = word & (width - 1)
            if word & width:
                before = word >> (_BITS + 1) if unit else carried[at]
                out[start | inner] = before + _below(counters, lanes, np.uint64(inner), lanes)
            else:
                _add(counters, lanes, np.uint64(inner), np.int64(1) if unit else weights[start | inner])


@njit(cache=True)
def _below(counters: Int64, top: int, number: np.uint64, lanes: int) -> np.int64:
    """Sum the counters below a number: of 256, of 16 and of one number each.

    `lanes` is 16, but no constant: the compiler makes no vector code of constant loops of this length.
    """
    of_256, of_16, low = number >> np.uint64(8), number >> np.uint64(4), np.uint64(15)
    middle = np.uint64(top) + (of_256 << np.uint64(4))
    single = np.uint64(17 * top) + (of_16 << np.uint64(4))
    total = np.int64(0)
    for j in range(top):
        total += counters[np.uint64(j)] & -np.int64(np.uint64(j) < of_256)
    for j in range(lanes):
        total += counters[middle + np.uint64(j)] & -np.int64(np.uint64(j) < (of_16 & low))
    for j in range(lanes):
        total += counters[single + np.uint64(j)] & -np.int64(np.uint64(j) < (number & low))
    return total


@njit(cache=True)
def _add(counters: Int64, top: int, number: np.uint64, weight: np.int64) -> None:
    """Add a weight to the three counters of a number."""
    counters[number >> np.uint64(8)] += weight
    counters[np.uint64(top) + (number >> np.uint64(4))] += weight
    counters[np.uint64(17 * top) + number] += weight
