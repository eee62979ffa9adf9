"""Text files as Arrow tables of strings: every readable row, and every unreadable one with its line and its reason.

Vectorised: pyarrow reads. Types are decided over all files of a call from counts of values that match a pattern
(:func:`guess`), sums that do not depend on the order of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

BLOCK_BYTES = 16 << 20


class FileProblem(Exception):
    """The file as a whole cannot be used; `str` says why, `remedy` what to do."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy
        super().__init__(problem)


@dataclass(frozen=True)
class Block:
    """Part of one file: string columns, the physical line of each row, and rows that could not be read."""

    rows: pa.Table
    lines: pa.Array
    bad: list[tuple[int, str, str]] = field(default_factory=list)


def read_csv(path: Path) -> Iterator[Block]:
    """Blocks of a CSV file with a header line; all columns as strings, empty fields null.

    Raises
    ------
    FileProblem
        No header, or header names that are empty or not unique.
    """
    data, broken = _utf8(path)
    if not data.strip():
        return
    bad: list[tuple[int, str, str]] = []

    def skipped(row: pacsv.InvalidRow) -> str:
        problem = f"has {row.actual_columns} fields, the header {row.expected_columns}"
        bad.append((int(row.number or 0), row.text or "", problem))
        return "skip"

    header_end = data.find(b"\n")
    names = _header(data[: header_end + 1] if header_end >= 0 else data)
    _check_names(names)
    if header_end < 0 or not data[header_end + 1 :].strip():
        yield Block(pa.table({name: pa.array([], pa.string()) for name in names}), pa.array([], pa.int64()))
        return
    try:
        table = pacsv.read_csv(
            pa.BufferReader(data),
            read_options=pacsv.ReadOptions(use_threads=False, block_size=max(BLOCK_BYTES, 1 << 20)),
            parse_options=pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=skipped),
            convert_options=pacsv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                strings_can_be_null=True,
                null_values=[""],
                quoted_strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as error:
        raise FileProblem(
            f"is not readable CSV ({' '.join(str(error).split())[:160]})", "mend or split the file"
        ) from None
    bad.sort()
    lines, places = _lines(table, [number for number, _, _ in bad])
    bad = [(line, text, problem) for line, (_, text, problem) in zip(places, bad, strict=True)]
    rows, more = _drop_broken(table, lines, broken)
    yield Block(rows[0], rows[1], bad + more)


def read_json(path: Path) -> Iterator[Block]:
    """One column ``line`` with the text of each line that is not blank, for the engine to parse.

    Raises
    ------
    FileProblem
        The file is one JSON array.
    """
    data, broken = _utf8(path)
    if data.lstrip()[:1] == b"[":
        raise FileProblem("is one JSON array", "write one object a line")
    if not data.strip():
        return
    texts = pc.split_pattern(pa.scalar(data.decode("utf-8")), "\n")
    column = pc.utf8_trim_whitespace(pa.array(texts.values if hasattr(texts, "values") else texts.as_py(), pa.string()))
    numbers = pa.array(range(1, len(column) + 1), pa.int64())
    keep = pc.greater(pc.utf8_length(column), 0)
    table = pa.table({"line": column.filter(keep)})
    rows, more = _drop_broken(table, numbers.filter(keep), broken)
    yield Block(rows[0], rows[1], more)


GZIP = b"\x1f\x8b"


def _utf8(path: Path) -> tuple[bytes, bool]:
    """File content (decompressed, lines end in newlines) as valid UTF-8; broken bytes become U+FFFD and are reported by the flag.

    Spreadsheets write UTF-16 with a byte order mark, and lines that end in carriage returns alone.
    """
    import gzip
    import zlib

    try:
        raw = path.read_bytes()
        if raw.startswith(GZIP) or path.suffix.lower() == ".gz":
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise FileProblem(f"cannot be read ({error})", "check the file") from None
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raw = raw.decode("utf-16", errors="replace").encode("utf-8")
    raw = raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    if b"\n" not in raw:
        raw = raw.replace(b"\r", b"\n")
    try:
        raw.decode("utf-8")
        return raw, False
    except UnicodeDecodeError:
        return raw.decode("utf-8", errors="replace").encode("utf-8"), True


def _header(line: bytes) -> list[str]:
    import csv

    try:
        names = next(csv.reader([line.decode("utf-8").rstrip("\n")]), [])
    except csv.Error as error:
        raise FileProblem(f"is not readable CSV ({error})", "check the file") from None
    if any("\0" in name for name in names):
        raise FileProblem("is not text", "check the file")
    other = next((sign for sign in ";\t|" if len(names) == 1 and sign in names[0]), None)
    if other is not None:
        raise FileProblem(f"separates its fields by {other!r}: {names[0][:60]!r}", "write it with commas")
    return names


def _check_names(names: list[str]) -> None:
    if any(not name.strip() for name in names):
        raise FileProblem("has a column without a name", "name every column in the header line")
    folded = [name.lower() for name in names]
    twice = sorted({name for name, low in zip(names, folded, strict=True) if folded.count(low) > 1})
    if twice:
        raise FileProblem(f"has more than one column {twice[0]!r} (case does not tell columns apart)", "rename one")


def _lines(table: pa.Table, skipped: list[int]) -> tuple[pa.Array, list[int]]:
    """Physical line of each row, and of each skipped record (given by record number, the header being 1).

    A record begins one line after the one before it, plus the newlines inside that one's values.
    """
    import numpy as np

    extra = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        extra += pc.fill_null(pc.count_substring(column, "\n"), 0).to_numpy().astype(np.int64)
    record = np.arange(table.num_rows, dtype=np.int64) + 2
    for number in skipped:
        record[record >= number] += 1
    until = np.concatenate([[0], np.cumsum(extra)])
    return pa.array(record + until[:-1]), [n + int(until[np.searchsorted(record, n)]) for n in skipped]


def _drop_broken(
    table: pa.Table, lines: pa.Array, broken: bool
) -> tuple[tuple[pa.Table, pa.Array], list[tuple[int, str, str]]]:
    if not broken:
        return (table, lines), []
    wrong = pa.array([False] * table.num_rows, pa.bool_())
    for column in table.columns:
        wrong = pc.or_(wrong, pc.fill_null(pc.match_substring(column, "\ufffd"), False).combine_chunks())
    rows = table.filter(wrong)
    raw = [",".join("" if v is None else v for v in row.values()) for row in rows.to_pylist()]
    bad = [(line, text, "is not valid UTF-8") for line, text in zip(lines.filter(wrong).to_pylist(), raw, strict=True)]
    keep = pc.invert(wrong)
    return (table.filter(keep), lines.filter(keep)), bad


LEADING_ZERO = r"^[+-]?0[0-9]"
INTEGER = r"^[+-]?[0-9]{1,18}$"
NUMBER = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$"
BOOLEAN = r"^(true|false|True|False|TRUE|FALSE)$"
STAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?$"
PATTERNS = {"zero": LEADING_ZERO, "integer": INTEGER, "number": NUMBER, "boolean": BOOLEAN, "timestamp": STAMP}


def guess(values: int, counts: dict[str, int]) -> str | None:
    """Narrowest Spark type of a text column, from how many of its `values` match each of `PATTERNS`; None: no value.

    ``007`` is a name, not a number, so one leading zero keeps the column text.
    """
    if values == 0:
        return None
    if counts["zero"] == 0 and counts["integer"] == values:
        return "bigint"
    if counts["zero"] == 0 and counts["number"] == values:
        return "double"
    return next((name for name in ("boolean", "timestamp") if counts[name] == values), "string")


def valid_stream(name: str) -> bool:
    """May a stream have this name? It becomes a folder."""
    return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name) is not None
