"""Text as Arrow tables of strings: every readable row, and every unreadable one with its line and its reason.

Vectorised: pyarrow reads. Types are decided over all files of a call from counts of values that match a pattern
(:func:`guess`), sums that do not depend on the order of files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from numba import njit

BLOCK_BYTES = 16 << 20


class FileProblem(Exception):
    """The file as a whole cannot be used; `str` says why, `remedy` what to do."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy
        super().__init__(problem)


@dataclass(frozen=True)
class TextRows:
    """The rows of one file: string columns, the physical line on which each row begins, and what could not be read.

    `bad` has the line, the text and the reason of each.
    """

    rows: pa.Table
    lines: pa.Array
    bad: list[tuple[int, str, str]] = field(default_factory=list)


NOTHING = TextRows(pa.table({}), pa.array([], pa.int64()))


def read_csv(raw: bytes) -> TextRows:
    """The rows of CSV with a header line; all columns as strings, empty fields null. Blank lines are no rows.

    Raises
    ------
    FileProblem
        It is not CSV, or a name in its header is empty.
    """
    text, broken = _utf8(raw)
    text = text.replace(b"\r", b"\n")
    body = text.lstrip(b"\n")
    if not body.strip():
        return NOTHING
    above = len(text) - len(body)
    if b"\n" not in body:
        body += b"\n"  # else there is no header to pyarrow
    skipped: list[tuple[int, str, str]] = []

    def skip(row: pacsv.InvalidRow) -> str:
        problem = f"has {row.actual_columns} fields, the header {row.expected_columns}"
        skipped.append((int(row.number or 0), row.text or "", problem))
        return "skip"

    try:
        names = _header(body)
        table = pacsv.read_csv(
            pa.BufferReader(body),
            read_options=pacsv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=_parsed(skip),
            convert_options=pacsv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                strings_can_be_null=True,
                null_values=[""],
                quoted_strings_can_be_null=True,
            ),
        )
    except pa.ArrowException as error:
        raise FileProblem(
            f"is not readable CSV ({' '.join(str(error).split())[:160]})", "mend or split the file"
        ) from None
    skipped.sort()
    begins, places = _lines(table, names, skipped)
    bad = [(above + int(line), record, problem) for line, (_, record, problem) in zip(places, skipped, strict=True)]
    blank = _blank(table, begins, body)
    if _never_closed(table, body):
        blank[-1] = True
        place = int(begins[-1])
        rest = body.decode("utf-8", "replace").split("\n", place - 1)[-1]
        bad.append((above + place, rest, "has a quote that is never closed"))
    keep = pa.array(~blank)
    return _without_broken(table.filter(keep), pa.array(above + begins).filter(keep), bad, broken)


def _never_closed(table: pa.Table, body: bytes) -> bool:
    """Does the last row's last value hold the rest of the file, as its quote is not closed?"""
    if not table.num_rows or body.count(b'"') % 2 == 0 or body.rstrip(b"\n").endswith(b'"'):
        return False
    return "\n" in (table.columns[-1][-1].as_py() or "")


def read_json(raw: bytes) -> TextRows:
    """One column ``line`` with the text of each object, or of a line that holds no object whole, for the engine to parse.

    Several objects may stand on a line, one after the other, as some services write them.

    Raises
    ------
    FileProblem
        It is one JSON array.
    """
    text, broken = _utf8(raw)
    if b"\n" not in text:
        text = text.replace(b"\r", b"\n")
    if text.lstrip()[:1] == b"[":
        raise FileProblem("is one JSON array", "write one object a line")
    if not text.strip():
        return NOTHING
    text, line_of, more = _taken_apart(text)
    texts = pc.split_pattern(pa.scalar(text.decode("utf-8")), "\n")
    column = pc.utf8_trim_whitespace(pa.array(texts.values if hasattr(texts, "values") else texts.as_py(), pa.string()))
    numbers, beside = pa.array(line_of), pa.array(np.isin(line_of, more))
    texts_beside, numbers_beside = column.filter(beside).to_pylist(), numbers.filter(beside).to_pylist()
    bad = [
        (line, each, "has something beside its object") for line, each in zip(numbers_beside, texts_beside, strict=True)
    ]
    keep = pc.and_(pc.greater(pc.utf8_length(column), 0), pc.invert(beside))
    return _without_broken(pa.table({"line": column.filter(keep)}), numbers.filter(keep), bad, broken)


def _taken_apart(text: bytes) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Objects that stand on one line on lines of their own; the line each line was (from 1), and lines with something beside an object."""
    signs, none = np.frombuffer(text, np.uint8), np.empty(0, np.int64)
    counts = _objects(signs, none, none)
    cuts, more = (np.empty(count, np.int64) for count in counts)
    if any(counts):
        _objects(signs, cuts, more)
    breaks = np.flatnonzero(signs == ord("\n"))
    begins = np.sort(np.concatenate([[0], breaks + 1, cuts]))
    apart = np.insert(signs, cuts, ord("\n")).tobytes() if len(cuts) else text
    return apart, 1 + np.searchsorted(breaks, begins), more


@njit(cache=True)
def _objects(text, cuts, more):  # type: ignore[no-untyped-def]
    """Lines of JSON: places where another object begins on a line of objects alone, and lines (from 1) with an object and something else.

    Commas and blanks may stand between objects. Written where there is room; how many there are of each.
    """
    found = others = 0
    line, depth, objects, before = 1, 0, 0, 0
    in_string = escaped = False
    alone = True
    for i in range(len(text) + 1):
        sign = 10 if i == len(text) else text[i]
        if sign == 10:
            if objects > 0 and (not alone or depth > 0):
                found = before
                if others < len(more):
                    more[others] = line
                others += 1
            line, depth, objects, before = line + 1, 0, 0, found
            in_string, escaped, alone = False, False, True
        elif in_string:
            if escaped:
                escaped = False
            elif sign == 92:
                escaped = True
            elif sign == 34:
                in_string = False
        elif depth > 0:
            if sign == 34:
                in_string = True
            elif sign == 123 or sign == 91:
                depth += 1
            elif sign == 125 or sign == 93:
                depth -= 1
                objects += depth == 0
        elif sign == 123:
            if objects > 0:
                if found < len(cuts):
                    cuts[found] = i
                found += 1
            depth = 1
        elif not (sign == 32 or sign == 9 or sign == 13 or (sign == 44 and objects > 0)):
            alone = False
    return found, others


def check_names(names: Sequence[str]) -> None:
    """Refuse columns without a name.

    Raises
    ------
    FileProblem
        There is one.
    """
    if any(not name.strip() for name in names):
        raise FileProblem("has a column without a name", "name every column in the header line")


def _utf8(raw: bytes) -> tuple[bytes, bool]:
    """Text as valid UTF-8 whose lines end in newlines; broken bytes become U+FFFD and are reported by the flag.

    Spreadsheets write UTF-16 with a byte order mark.
    """
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raw = raw.decode("utf-16", errors="replace").encode("utf-8")
    raw = raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    try:
        raw.decode("utf-8")
        return raw, False
    except UnicodeDecodeError:
        return raw.decode("utf-8", errors="replace").encode("utf-8"), True


def _parsed(invalid_row_handler: object) -> pacsv.ParseOptions:
    """Blank lines are kept, as rows of nulls: they count as lines."""
    return pacsv.ParseOptions(
        newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=invalid_row_handler
    )


def _header(body: bytes) -> list[str]:
    """The names that pyarrow finds, which may hold line breaks."""
    with pacsv.open_csv(pa.BufferReader(body), parse_options=_parsed(lambda row: "skip")) as reader:
        names: list[str] = reader.schema.names
    if any("\0" in name for name in names):
        raise FileProblem("is not text", "check the file")
    other = next((sign for sign in ";\t|" if len(names) == 1 and sign in names[0]), None)
    if other is not None:
        raise FileProblem(f"separates its fields by {other!r}: {names[0][:60]!r}", "write it with commas")
    check_names(names)
    return names


def _lines(
    table: pa.Table, names: Sequence[str], skipped: Sequence[tuple[int, str, str]]
) -> tuple[np.ndarray, np.ndarray]:
    """Line on which each row, and each skipped record, begins (int64, the header's being 1).

    A record begins one line after the one before it, plus the line breaks inside that one. `skipped` begin with the number of
    the record, the header being 1.
    """
    numbers = np.array([number for number, _, _ in skipped], np.int64)
    is_row = np.ones(2 + table.num_rows + len(skipped), bool)
    is_row[:2] = is_row[numbers] = False
    breaks = np.zeros(len(is_row), np.int64)
    breaks[1] = sum(name.count("\n") for name in names)
    breaks[numbers] = [record.count("\n") for _, record, _ in skipped]
    for column in table.columns:
        breaks[is_row] += pc.fill_null(pc.count_substring(column, "\n"), 0).to_numpy()
    begins = np.arange(len(is_row)) + np.cumsum(breaks) - breaks
    return begins[is_row], begins[numbers]


def _blank(table: pa.Table, begins: np.ndarray, body: bytes) -> np.ndarray:
    """Which rows (bool[n]) are blank lines of `body`; a row of empty fields (``,,``) is none."""
    blank = np.ones(table.num_rows, bool)
    for column in sorted(table.columns, key=lambda column: column.null_count):
        if column.null_count < table.num_rows:
            blank &= column.is_null().to_numpy()
        if not blank.any():
            return blank
    ends = np.append(np.flatnonzero(np.frombuffer(body, np.uint8) == ord("\n")), len(body))
    length = np.diff(ends, prepend=-1) - 1
    blank[blank] = length[begins[blank] - 1] == 0
    return blank


def _without_broken(table: pa.Table, lines: pa.Array, bad: list[tuple[int, str, str]], broken: bool) -> TextRows:
    """Rows with broken bytes become bad ones, where there are any."""
    if not broken:
        return TextRows(table, lines, bad)
    wrong = pa.array([False] * table.num_rows, pa.bool_())
    for column in table.columns:
        wrong = pc.or_(wrong, pc.fill_null(pc.match_substring(column, "\ufffd"), False).combine_chunks())
    rows = table.filter(wrong)
    raw = [",".join("" if v is None else v for v in row.values()) for row in rows.to_pylist()]
    more = [(line, text, "is not valid UTF-8") for line, text in zip(lines.filter(wrong).to_pylist(), raw, strict=True)]
    keep = pc.invert(wrong)
    return TextRows(table.filter(keep), lines.filter(keep), bad + more)


LEADING_ZERO = r"^[+-]?0[0-9]"
INTEGER = r"^[+-]?[0-9]{1,38}$"
NUMBER = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$"
ENDLESS = r"^[+-]?[0-9]{39,}$"
LONG = r"^[+-]?[0-9]{16,}$"
SPECIAL = r"^(nan|NaN|NAN|[+-]?(inf|Inf|INF|Infinity))$"
BOOLEAN = r"^(true|false|True|False|TRUE|FALSE)$"
STAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?$"
PATTERNS = {
    "zero": LEADING_ZERO, "integer": INTEGER, "number": NUMBER, "boolean": BOOLEAN, "timestamp": STAMP, "endless": ENDLESS,
    "long": LONG, "special": SPECIAL,
}  # fmt: skip


def guess(values: int, counts: dict[str, int]) -> str | None:
    """Narrowest Spark type of a text column, from how many of its `values` match each of `PATTERNS`; None: no value.

    ``bigint`` in `counts`: how many of the whole numbers fit it. Whole numbers are ids as often as amounts, so none is rounded:
    where some have more digits, the column is a decimal, or text. ``007`` is a name, not a number, so one leading zero keeps the column text.
    ``NaN`` and ``Infinity`` are numbers, as Python and NumPy write them, but where a whole number beside them would be rounded.
    """
    if values == 0:
        return None
    if counts["zero"] == 0 and counts["integer"] == values:
        return "bigint" if counts["bigint"] == values else "decimal(38,0)"
    rounded = counts["endless"] or (counts["long"] and counts["special"])
    if counts["zero"] == 0 and counts["number"] + counts["special"] == values and not rounded:
        return "double"
    return next((name for name in ("boolean", "timestamp") if counts[name] == values), "string")
