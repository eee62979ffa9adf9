"""Format values as text for people: lines, times, and tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from latecomer.core.time import LATENESS_LABELS
from latecomer.lake.errors import error_text

_YEAR_US = 365 * 86_400_000_000


def one_line(value: object, limit: int = 400) -> str:
    """Return the value's text without line breaks, cut at `limit` characters."""
    text = f"{type(value).__name__}: {error_text(value)}" if isinstance(value, Exception) else str(value)
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


def instant(time_us: int) -> str:
    """Return a time (us since the epoch) in ISO 8601, UTC."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)).isoformat()


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Align columns for a terminal: the first to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        lines.append(
            "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        )
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def plain(value: object) -> object:
    """Return a value of a table as JSON has it: times in ISO 8601, bytes in hexadecimal digits, whole decimals whole.

    >>> plain(Decimal(3)), plain(b"\\x01"), plain(datetime(2024, 1, 1, tzinfo=UTC))
    (3, '01', '2024-01-01T00:00:00+00:00')
    """
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else str(value)
    return value.isoformat() if isinstance(value, date | datetime) else value


def event_times(span: tuple[int, int] | None) -> str:
    """Return a line with the first and the last event time (us); None: no line.

    It doubts times in 1970, since seconds or milliseconds may have been taken for microseconds.
    """
    if span is None:
        return ""
    doubt = (
        " (is that right? numbers are microseconds since 1970, unless --time-unit says ms or s)"
        if 0 < span[0] < _YEAR_US
        else ""
    )
    return f"\n  event times {instant(span[0])} to {instant(span[1])}{doubt}"


def listed(files: Sequence[str], remark: str) -> str:
    """Return a line that counts files, remarks on them, and names the first three; empty where there are none."""
    if not files:
        return ""
    names = ", ".join(files[:3]) + (", ..." if len(files) > 3 else "")
    return f"\n  {len(files)} {remark}: {names}"


def lateness(bins: Sequence[int]) -> list[str]:
    """Return lines with the numbers of rows by lateness; none where no row has an arrival time."""
    total = sum(bins)
    if not total:
        return []
    shown = [
        f"{label} {count:,} ({count / total:.1%})" for label, count in zip(LATENESS_LABELS, bins, strict=True) if count
    ]
    return [f"  lateness: {', '.join(shown)}"]
