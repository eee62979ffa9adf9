"""The multiple cuckoo filter: elements of stream 0 that occur in every other stream, by a filter per (stream, window).

Filters have no false negatives. So the *candidates* that pass are a superset of the result, and confirming them exactly
makes the answer exact; the filters only save the shuffle of the rest.

*Windows* are half-open ``[start, start + size_us)``, `start` a multiple of the stream's `slide_us` since the epoch.
*Definition.* Element x is a result of window W = [s, e) of stream 0 if and only if x occurs in stream 0 within W and,
for every other stream i, x occurs in stream i within at least one of the windows of stream i that W touches. Touched
are (`windows_touched`; our choice, the papers are silent):

* streams with equal size and slide: W itself alone;
* otherwise the windows of stream i whose end lies in (s, e];
* if there is none, the last window of stream i to end at or before e.

So no touched window ends after W: a result is known when stream time has reached e.

*Early stop.* Within a stream only elements still undecided go on to the next window; between streams only elements
that every stream so far has answered go on.
*Late rows* go into the windows they belong to. A window of stream 0 is open until its end reaches the watermark; a
window of another stream is kept while an open window of stream 0 may touch it. What comes for a window already
dropped is reported by `insert` for repair, and `candidates` passes whatever it can no longer judge: unknown is yes.

Ordering: any; rows of one window commute.
Cost: insert O(size / slide) per row, query O(streams * touched windows) per element, both in batches.
First published: Hu, Wu, Fan, Wang, Xu, 2020.

References
----------
MCF: Towards Window-based Multiple Cuckoo Filter in Stream Computing, IEEE Big Data 2020 (thesis, chapter 2).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from latecomer.core.membership.cuckoo import CuckooFilter
from latecomer.core.time import NEVER
from latecomer.core.windows.grid import Grid

UInt64Array = NDArray[np.uint64]
Int64Array = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_MAGIC, _VERSION = b"LCMF", 1


class Filter(Protocol):
    """The filter of a window; `insert` may never lose a hash."""

    def insert(self, hashes: UInt64Array) -> None:
        """Insert uint64[n]."""

    def contains(self, hashes: UInt64Array) -> BoolArray:
        """Return whether each hash may be inside, bool[n]."""

    def to_bytes(self) -> bytes:
        """Return the filter for storage."""

    def false_positive_bound(self) -> float:
        """Return a bound of the probability that an absent hash is answered with yes."""

    @property
    def size_bytes(self) -> int:
        """The memory, in bytes."""


def starts_of(windows: Grid, event_time_us: Int64Array) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Yield rows with the start of a window that holds each, latest windows first, until every window is named."""
    last = windows.last_of(event_time_us) * windows.slide_us
    for back in range(0, windows.size_us, windows.slide_us):
        rows = np.flatnonzero(last - back + windows.size_us > event_time_us)
        if rows.size:
            yield rows, last[rows] - back


def windows_touched(first_window: tuple[int, int], other_windows: Grid, *, same: bool = False) -> list[int]:
    """Return the starts of another stream's windows that a window of stream 0 touches, earliest first.

    Parameters
    ----------
    first_window : (int, int)
        Start and end [us] of the window of stream 0.
    other_windows : Grid
        The windows of the other stream.
    same : bool
        Both streams have equal size and slide: the answer is the window itself.
    """
    start, end = first_window
    if same:
        return [start]
    size, slide = other_windows.size_us, other_windows.slide_us
    first_after = (start - size) // slide + 1
    last = (end - size) // slide
    if first_after <= last:
        return [k * slide for k in range(first_after, last + 1)]
    return [last * slide]


def query_bound(e: float, s: int, m: int, w: int, k: int) -> float:
    """Return the false-positive bound of a query, ``1 - (1 - e) ** (s * (floor((m - w + 1) / k) + 1))``.

    Parameters
    ----------
    e : float
        Bound of one filter, in [0, 1].
    s : int
        Number of filters (streams).
    m, w, k : int
        Rows per stream, rows per window, rows per slide; w <= m.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """
    if not 0 <= e <= 1 or s < 1 or not 0 < w <= m or k < 1:
        raise ValueError(
            f"query_bound(e={e}, s={s}, m={m}, w={w}, k={k}): want 0 <= e <= 1, s >= 1, 0 < w <= m, k >= 1"
        )
    return 1.0 - (1.0 - e) ** (s * ((m - w + 1) // k + 1))


def _groups(keys: Int64Array, rows: NDArray[np.intp]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield each distinct key, ascending, with its rows in their order."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    for part in np.split(order, cuts):
        if part.size:
            yield int(keys[part[0]]), rows[part]


def _rows(event_time_us: Int64Array, hashes: UInt64Array) -> tuple[Int64Array, UInt64Array]:
    """Return the rows as arrays; raise ValueError for another shape or type."""
    times, values = np.asarray(event_time_us), np.asarray(hashes)
    if times.dtype != np.int64 or values.dtype != np.uint64 or times.ndim != 1 or times.shape != values.shape:
        raise ValueError(
            "want event_time_us int64[n] and hashes uint64[n], "
            f"not {times.dtype}{times.shape}, {values.dtype}{values.shape}"
        )
    return times, values


class MultiCuckoo:
    """A filter per (stream, window), and the query over them.

    Parameters
    ----------
    windows : sequence of Grid
        The windows of each stream, two streams or more; stream 0 gives the elements.
    expected_rows : int or sequence of int
        Rows per window, for all streams or for each.
    fingerprint_bits, bucket, seed : int
        Of every cuckoo filter (see :class:`~latecomer.core.membership.cuckoo.CuckooFilter`); a filter's seed depends on
        its stream too, so that two streams' filters err apart.
    make_filter : callable, optional
        Another filter in the cuckoo filter's place: ``make_filter(expected_rows, seed)``.

    Raises
    ------
    ValueError
        If there are fewer than two streams, the lengths differ, or not 0 < slide_us <= size_us.
    """

    def __init__(
        self,
        windows: Sequence[Grid],
        expected_rows: int | Sequence[int],
        fingerprint_bits: int = 12,
        bucket: int = 4,
        seed: int = 0,
        make_filter: Callable[[int, int], Filter] | None = None,
    ) -> None:
        self.windows = tuple(windows)
        rows = [expected_rows] * len(self.windows) if isinstance(expected_rows, int) else list(expected_rows)
        if len(self.windows) < 2 or len(rows) != len(self.windows):
            raise ValueError(
                f"{len(self.windows)} windows and {len(rows)} expected_rows: want two streams or more, one of each"
            )
        for grid in self.windows:
            if not 0 < grid.slide_us <= grid.size_us:
                problem = f"window of size_us {grid.size_us}, slide_us {grid.slide_us}"
                raise ValueError(f"{problem}: want 0 < slide_us <= size_us")
        self.expected_rows, self.seed = tuple(rows), seed
        self.fingerprint_bits, self.bucket = fingerprint_bits, bucket
        self._make = make_filter or (lambda n, s: CuckooFilter(n, fingerprint_bits, bucket, s))
        self._filters: dict[tuple[int, int], Filter] = {}
        self.watermark_us = NEVER

    def _same(self, stream: int) -> bool:
        """Return whether a stream has the windows of stream 0."""
        return self.windows[stream] == self.windows[0]

    def _kept_after(self, stream: int) -> int:
        """Return the time at or before which the end of a dropped window of `stream` lies, microseconds."""
        if self.watermark_us <= NEVER:
            return NEVER
        if self._same(stream):
            return self.watermark_us
        first = self.windows[0]
        oldest = ((self.watermark_us - first.size_us) // first.slide_us + 1) * first.slide_us
        return min(oldest, oldest + first.size_us - self.windows[stream].slide_us)

    def insert(self, stream: int, event_time_us: Int64Array, hashes: UInt64Array) -> BoolArray:
        """Insert rows of a stream into every window they belong to.

        Parameters
        ----------
        stream : int
            0-based.
        event_time_us : int64[n]
        hashes : uint64[n]

        Returns
        -------
        bool[n]
            Rows of a dropped window, which the caller registers for repair.
        """
        times, values = _rows(event_time_us, hashes)
        size, gone = self.windows[stream].size_us, self._kept_after(stream)
        missed = np.zeros(times.size, np.bool_)
        for rows, starts in starts_of(self.windows[stream], times):
            late = starts + size <= gone
            missed[rows[late]] = True
            for start, part in _groups(starts[~late], rows[~late]):
                self._filter(stream, start).insert(values[part])
        return missed

    def _filter(self, stream: int, start_us: int) -> Filter:
        """Return the filter of a window, a new one for its first row."""
        held = self._filters.get((stream, start_us))
        if held is None:
            held = self._filters[stream, start_us] = self._make(self.expected_rows[stream], self.seed + stream)
        return held

    def expire(self, watermark_us: int) -> int:
        """Move the watermark forward and drop filters that no open window touches; return how many."""
        self.watermark_us = max(self.watermark_us, watermark_us)
        expired = [key for key in self._filters if key[1] + self.windows[key[0]].size_us <= self._kept_after(key[0])]
        for key in expired:
            del self._filters[key]
        return len(expired)

    def candidates_in(self, window_start_us: int, hashes: UInt64Array) -> BoolArray:
        """Return which elements of a window of stream 0 every other stream may hold too, bool[n] (Algorithm 1).

        A window that the watermark has closed cannot be judged any more: every element passes.
        """
        window = (window_start_us, window_start_us + self.windows[0].size_us)
        if window[1] <= self.watermark_us:
            return np.ones(hashes.size, np.bool_)
        alive = np.arange(hashes.size)
        for stream in range(1, len(self.windows)):  # Algorithm 1, line 4
            undecided, yes = alive, []
            for start in windows_touched(window, self.windows[stream], same=self._same(stream)):
                window_filter = self._filters.get((stream, start))
                if window_filter is None or not undecided.size:
                    continue
                answer = window_filter.contains(hashes[undecided])  # lines 10 to 13: a stream ends at its first yes
                yes.append(undecided[answer])
                undecided = undecided[~answer]  # lines 17 to 21: the window slides on
            alive = np.sort(np.concatenate(yes)) if yes else alive[:0]
        mask = np.zeros(hashes.size, np.bool_)
        mask[alive] = True
        return mask

    def candidates(self, hashes: UInt64Array, event_time_us: Int64Array) -> BoolArray:
        """Return which rows of stream 0 may be results in at least one of their windows, bool[n]."""
        times, values = _rows(event_time_us, hashes)
        mask = np.zeros(times.size, np.bool_)
        for rows, starts in starts_of(self.windows[0], times):
            open_still = ~mask[rows]
            for start, part in _groups(starts[open_still], rows[open_still]):
                mask[part] = self.candidates_in(start, values[part])
        return mask

    def false_positive_bound(self, window_start_us: int) -> float:
        """Return a bound on the share of elements in no touched window that pass for one window of stream 0.

        An element absent from every other stream passes if each of them errs; the bound holds too for an element
        that is absent from one stream only, so it is that of the stream that errs most.
        """
        window, worst = (window_start_us, window_start_us + self.windows[0].size_us), 0.0
        for stream in range(1, len(self.windows)):
            touched = windows_touched(window, self.windows[stream], same=self._same(stream))
            held = [self._filters[stream, start] for start in touched if (stream, start) in self._filters]
            worst = max(
                worst, 1.0 - float(np.prod([1.0 - window_filter.false_positive_bound() for window_filter in held]))
            )
        return worst

    @property
    def filters(self) -> int:
        """The number of filters held."""
        return len(self._filters)

    @property
    def size_bytes(self) -> int:
        """The memory of all filters, in bytes."""
        return sum(held.size_bytes for held in self._filters.values())

    def to_bytes(self) -> bytes:
        """Return parameters and filters, by stream and start; the same state gives the same bytes."""
        held = sorted(self._filters)
        blobs = [self._filters[key].to_bytes() for key in held]
        head = json.dumps(
            {
                "windows": [asdict(window) for window in self.windows],
                "expected_rows": self.expected_rows,
                "parameters": [self.fingerprint_bits, self.bucket, self.seed],
                "watermark_us": self.watermark_us,
                "filters": [[*key, len(blob)] for key, blob in zip(held, blobs, strict=True)],
            },
            sort_keys=True,
        ).encode()
        return b"".join([_MAGIC, struct.pack("<HI", _VERSION, len(head)), head, *blobs])

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        load: Callable[[bytes], Filter] = CuckooFilter.from_bytes,
        make_filter: Callable[[int, int], Filter] | None = None,
    ) -> MultiCuckoo:
        """Return the filters that `to_bytes` wrote; `load` reads one filter, `make_filter` is as for the constructor.

        Raises
        ------
        ValueError
            If the bytes are other ones, of another version, cut short or damaged.
        """
        if len(data) < 10 or data[:4] != _MAGIC:
            raise ValueError("these bytes are not the filters of a membership query")
        version, length = struct.unpack_from("<HI", data, 4)
        if version != _VERSION:
            raise ValueError(
                f"version {version} of membership filters is not known here (want {_VERSION}): rebuild them"
            )
        head: dict[str, Any] = json.loads(data[10 : 10 + length])
        windows = [Grid(**window) for window in head["windows"]]
        bits, bucket, seed = head["parameters"]
        made = cls(windows, head["expected_rows"], bits, bucket, seed, make_filter)
        made.watermark_us, at = head["watermark_us"], 10 + length
        for stream, start, size in head["filters"]:
            made._filters[stream, start] = load(data[at : at + size])
            at += size
        if at != len(data):
            raise ValueError("membership filters cut short: rebuild them from the stored rows")
        return made
