"""Text for people: one line of anything, tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta


def one_line(value: object, limit: int = 400) -> str:
    """The value's text without line breaks, cut at `limit` characters."""
    flat = " ".join(f"{type(value).__name__}: {value}".split() if isinstance(value, Exception) else str(value).split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


def instant(time_us: int) -> str:
    """Microseconds since the epoch as ISO 8601, UTC."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)).isoformat()


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned for a terminal: the first to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        lines.append(
            "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        )
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
