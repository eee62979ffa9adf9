"""The grid of sliding windows: which windows hold an event time, and when they end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Grid:
    """Half-open windows ``[m * slide, m * slide + size)`` by their number `m`, and panes of ``gcd(size, slide)``."""

    size_us: int
    slide_us: int

    @property
    def pane_us(self) -> int:
        """Width of a pane: the largest that never straddles a window's edge."""
        return math.gcd(self.size_us, self.slide_us)

    @property
    def granularity_us(self) -> int:
        """Resolution of waits: a divisor of the pane, about a five-hundredth of it, at least a microsecond."""
        return next((self.pane_us // n for n in (500, 400, 250, 200, 100, 50, 10) if self.pane_us % n == 0), 1)

    @property
    def per_row(self) -> int:
        """Windows that hold a row, at most."""
        return -(-self.size_us // self.slide_us)

    def end(self, window: Any) -> Any:
        """End of a window (int or int64 array)."""
        return window * self.slide_us + self.size_us

    def last_closed(self, watermark_us: int) -> int:
        """Number of the last window whose end the watermark has reached."""
        return (watermark_us - self.size_us) // self.slide_us

    def first_of(self, time_us: Any) -> Any:
        """Number of the first window that holds a time (int or int64 array)."""
        return (time_us - self.size_us) // self.slide_us + 1

    def last_of(self, time_us: Any) -> Any:
        """Number of the last window that holds a time (int or int64 array)."""
        return time_us // self.slide_us
