"""The grid of sliding windows: which windows hold an event time, and when they end.

Query files are read where numpy is not imported, so this module is plain arithmetic, for ints and for int64 arrays
alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = TypeVar("Numbers", int, NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class Grid:
    """Half-open windows of event time ``[m * slide, m * slide + size)`` by their number `m`, and their panes.

    Attributes
    ----------
    size_us : int
        Length of a window, microseconds.
    slide_us : int
        Time from the start of a window to the start of the next one, microseconds.
    """

    size_us: int
    slide_us: int

    @property
    def pane_us(self) -> int:
        """Width of a pane: the largest that never straddles the edge of a window."""
        return math.gcd(self.size_us, self.slide_us)

    @property
    def granularity_us(self) -> int:
        """Resolution of waits: a divisor of the pane, about a five-hundredth of it, at least a microsecond."""
        return next((self.pane_us // n for n in (500, 400, 250, 200, 100, 50, 10) if self.pane_us % n == 0), 1)

    @property
    def per_row(self) -> int:
        """Most windows that hold a row."""
        return -(-self.size_us // self.slide_us)

    def end(self, window: Numbers) -> Numbers:
        """Return the end of a window (us); `window` is its number."""
        return window * self.slide_us + self.size_us

    def last_closed(self, watermark_us: int) -> int:
        """Return the number of the last window whose end the watermark has reached."""
        return (watermark_us - self.size_us) // self.slide_us

    def first_of(self, time_us: Numbers) -> Numbers:
        """Return the number of the first window that holds an event time."""
        return (time_us - self.size_us) // self.slide_us + 1

    def last_of(self, time_us: Numbers) -> Numbers:
        """Return the number of the last window that holds an event time."""
        return time_us // self.slide_us
