"""Parse CSV and JSON lines into Arrow tables of strings; unreadable rows are returned with line and reason.

pyarrow reads in blocks, so that a file may be larger than memory. A file is read twice: first for the properties of the
whole (:class:`_Text`), then for its rows. Types are inferred over all files of a call
(:mod:`latecomer.ingest.type_inference`).
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from numba import njit

BLOCK_BYTES = 16 << 20
"""Bytes that are read at once, and the longest record of CSV."""
Source = Callable[[], Iterable[bytes]]
"""Returns a file's bytes from the beginning, in pieces of any size, at each call."""


class FileProblem(Exception):
    """A file as a whole cannot be used. The text is the problem, `remedy` the way to mend it."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy
        super().__init__(problem)


@dataclass(frozen=True)
class TextRows:
    """Consecutive rows of a file.

    Attributes
    ----------
    rows
        The readable rows, in string columns.
    lines
        The physical line on which each begins, from 1.
    bad
        Line, text and reason of each unreadable row.
    """

    rows: pa.Table
    lines: pa.Array
    bad: list[tuple[int, str, str]] = field(default_factory=list)


NOTHING = TextRows(pa.table({}), pa.array([], pa.int64()))


class _Text:
    """A file's text in blocks of whole lines: as UTF-8, with newlines as line ends and U+FFFD for invalid bytes.

    Attributes
    ----------
    begins_with
        The first character that is no white space; empty where there is none.
    above
        Number of empty lines before the first other line. The text below them is the body.
    broken
        Does the file hold bytes that are not UTF-8?
    one_line
        Does the body hold no newline?
    quotes, ends_quoted
        Number of double quotes; is one the last character before the final newlines?
    empty : int64[n]
        Empty lines of the body, ascending; its first line is 1.
    """

    def __init__(self, source: Source, returns: bool) -> None:
        """`returns`: a carriage return ends a line also in a file with newlines."""
        self._source, self._returns = source, returns
        self.begins_with, self.above, self.broken, self.quotes, self.ends_quoted = b"", 0, False, 0, False
        if not returns:
            self._returns = not any(b"\n" in piece for piece in _utf8(source()))
        line, empty, within = 0, [np.empty(0, np.int64)], False
        for block in self.blocks(surveyed=False):
            try:
                block.decode("utf-8")
            except UnicodeDecodeError:
                self.broken = True
            self.begins_with = self.begins_with or block.lstrip()[:1]
            self.quotes += block.count(b'"')
            self.ends_quoted = (block.rstrip(b"\n") or b'"' * self.ends_quoted).endswith(b'"')
            if not within:
                body = block.lstrip(b"\n")
                self.above += len(block) - len(body)
                within = bool(body)
            else:
                body = block
            ends = np.flatnonzero(np.frombuffer(body, np.uint8) == ord("\n"))
            empty.append(line + 1 + np.flatnonzero(np.diff(ends, prepend=-1) == 1))
            line += len(ends)
        self.one_line = line == 0
        self.empty = np.concatenate(empty)

    def blocks(self, surveyed: bool = True) -> Iterator[bytes]:
        """Yield the whole text; not yet `surveyed`, invalid bytes stay."""
        for block in self._raw():
            text = block.replace(b"\r\n", b"\n")
            text = text.replace(b"\r", b"\n") if self._returns else text
            yield text.decode("utf-8", "replace").encode("utf-8") if surveyed and self.broken else text

    def body(self) -> Iterator[bytes]:
        """Yield the text below the empty lines at the beginning."""
        within = False
        for block in self.blocks():
            text = block if within else block.lstrip(b"\n")
            within = within or bool(text)
            yield text

    def from_line(self, line: int) -> str:
        """Return the body from this line on."""
        parts = []
        for block in self.body():
            breaks = block.count(b"\n")
            parts.append(block.split(b"\n", line - 1)[-1] if line <= breaks + 1 else b"")
            line = max(line - breaks, 1)
        return b"".join(parts).decode("utf-8", "replace")

    def _raw(self) -> Iterator[bytes]:
        """Yield blocks that end with a line, if they hold more than one line."""
        parts: list[bytes] = []
        held, enough = 0, BLOCK_BYTES
        for piece in _utf8(self._source()):
            parts.append(piece)
            held += len(piece)
            if held < enough:
                continue
            text = b"".join(parts)
            cut = text.rfind(b"\n") + 1 or self._returns * (text.rfind(b"\r", 0, -1) + 1)
            if cut:
                yield text[:cut]
            parts, held = [text[cut:]], len(text) - cut
            enough = max(BLOCK_BYTES, 2 * held)
        if held:
            yield b"".join(parts)


def _utf8(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces as UTF-8 without a byte order mark. Spreadsheets write UTF-16 with one."""
    rest = iter(pieces)
    begin = b""
    for piece in rest:
        begin += piece
        if len(begin) >= len(codecs.BOM_UTF8):
            break
    if not begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield begin.removeprefix(codecs.BOM_UTF8)
        yield from rest
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    yield decoder.decode(begin).encode("utf-8")
    for piece in rest:
        yield decoder.decode(piece).encode("utf-8")
    yield decoder.decode(b"", True).encode("utf-8")


class _Stream:
    """A file-like object over blocks, for pyarrow."""

    closed = False

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._block = blocks, memoryview(b"")

    def read(self, size: int) -> memoryview:
        """Read at most `size` bytes; none at the end."""
        while not self._block:
            block = next(self._blocks, None)
            if block is None:
                break
            self._block = memoryview(block)
        taken, self._block = self._block[:size], self._block[size:]
        return taken

    def close(self) -> None:
        self.closed = True


def read_csv(source: Source) -> Iterator[TextRows]:
    """Yield the rows of CSV with a header line, in at least one table; all tables have the same columns.

    All columns are strings, and empty fields are null. Blank lines are no rows. Line ends in values are ``\\n``.

    Raises
    ------
    FileProblem
        The file is not CSV, or a name in its header is empty.
    """
    text = _Text(source, returns=True)
    if not text.begins_with:
        yield NOTHING
        return
    skipped: list[tuple[int, str, str]] = []

    def skip(row: pacsv.InvalidRow) -> str:
        problem = f"has {row.actual_columns} fields, the header {row.expected_columns}"
        skipped.append((int(row.number or 0), row.text or "", problem))
        return "skip"

    try:
        names = _header(text)
        with _opened(text, skip, {name: pa.string() for name in names}) as reader:
            place = _Place(text, skipped, sum(name.count("\n") for name in names))
            rows = pa.Table.from_batches([], reader.schema)
            for batch in reader:
                if rows.num_rows:
                    yield place.rows(rows, last=False)
                rows = pa.Table.from_batches([batch])
            yield place.rows(rows, last=True)
    except pa.ArrowException as error:
        if "straddl" in str(error):
            raise _too_long(text) from None
        raise FileProblem(
            f"is not readable CSV ({' '.join(str(error).split())[:160]})", "mend or split the file"
        ) from None


def _too_long(text: _Text) -> FileProblem:
    """Return the problem of a file with a record longer than a block, with the line on which the longest begins.

    The quotes before a line end tell whether it ends a record.
    """
    breaks, byte, line, odd = [np.array([[-1], [0]])], 0, 0, False
    for block in text.body():
        signs = np.frombuffer(block, np.uint8)
        quoted = (np.cumsum(signs == ord('"')) + odd) % 2 == 1
        ends = np.flatnonzero(signs == ord("\n"))
        outside = ~quoted[ends]
        breaks.append(np.stack([byte + ends, line + 1 + np.arange(len(ends))])[:, outside])
        byte, line, odd = byte + len(block), line + len(ends), bool(quoted[-1]) if len(block) else odd
    places, lines = np.concatenate(breaks, axis=1)
    begins = int(lines[np.diff(places, append=byte).argmax()]) + 1
    why = ", as a quote is never closed" if text.quotes % 2 else ""
    return FileProblem(
        f"has a record of more than {BLOCK_BYTES >> 20} MB, on line {text.above + begins}{why}",
        "close the quote" if why else "write it shorter, or as Parquet",
    )


def _opened(text: _Text, skip: object, types: dict[str, pa.DataType]) -> pacsv.CSVStreamingReader:
    """Open the body with pyarrow. Blank lines become rows of nulls, since they count as lines."""
    body = _ended(text.body()) if text.one_line else text.body()
    return pacsv.open_csv(
        pa.PythonFile(_Stream(body), mode="r"),
        read_options=pacsv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        parse_options=pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=skip),
        convert_options=pacsv.ConvertOptions(
            column_types=types, strings_can_be_null=True, null_values=[""], quoted_strings_can_be_null=True
        ),
    )


def _ended(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield a text of one line with a newline at its end: pyarrow accepts no header without one."""
    last = next(blocks, b"")
    for block in blocks:
        yield last
        last = block
    yield last + b"\n"


class _Place:
    """The place of the next rows in the file: the number of the record (the header is 1), and its line in the body."""

    def __init__(self, text: _Text, skipped: list[tuple[int, str, str]], header_breaks: int) -> None:
        """`skipped` is filled while the file is read: number, text and reason of each record that is no row."""
        self._text, self._skipped = text, skipped
        self._record, self._line = 2, 2 + header_breaks

    def rows(self, table: pa.Table, last: bool) -> TextRows:
        """Return the next rows with the skipped records among them, and after the `last` rows."""
        skipped = self._take(table.num_rows, last)
        begins, places = self._lines(table, skipped)
        above = self._text.above
        bad = [(above + int(line), record, problem) for line, (_, record, problem) in zip(places, skipped, strict=True)]
        blank = _blank(table, begins, self._text.empty)
        if last and _never_closed(table, self._text):
            blank[-1] = True
            place = int(begins[-1])
            bad.append((above + place, self._text.from_line(place), "has a quote that is never closed"))
        keep = pa.array(~blank, pa.bool_())
        return _without_broken(table.filter(keep), pa.array(above + begins).filter(keep), bad, self._text.broken)

    def _take(self, rows: int, last: bool) -> list[tuple[int, str, str]]:
        """Take the skipped records among the next `rows` rows; the reader may have gone further."""
        self._skipped.sort()
        end, count = self._record + rows, 0
        while count < len(self._skipped) and (last or self._skipped[count][0] < end + count):
            count += 1
        taken = self._skipped[:count]
        del self._skipped[:count]
        return taken

    def _lines(self, table: pa.Table, skipped: Sequence[tuple[int, str, str]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the lines on which each row and each skipped record begin, int64, and move behind them.

        A record begins one line after the one before it, plus the line breaks inside that one.
        """
        numbers = np.array([number for number, _, _ in skipped], np.int64) - self._record
        is_row = np.ones(table.num_rows + len(skipped), bool)
        is_row[numbers] = False
        lines = np.ones(len(is_row), np.int64)
        lines[numbers] += np.array([record.count("\n") for _, record, _ in skipped], np.int64)
        for column in table.columns:
            lines[is_row] += pc.fill_null(pc.count_substring(column, "\n"), 0).to_numpy()
        begins = self._line + np.cumsum(lines) - lines
        self._record += len(lines)
        self._line += int(lines.sum())
        return begins[is_row], begins[numbers]


def _never_closed(table: pa.Table, text: _Text) -> bool:
    """Return whether the last row's last value holds the rest of the file because its quote is not closed."""
    if not table.num_rows or text.quotes % 2 == 0 or text.ends_quoted:
        return False
    return "\n" in (table.columns[-1][-1].as_py() or "")


def read_json(source: Source) -> Iterator[TextRows]:
    """Yield tables of one column ``line``: the text of each object, or of a line without a whole object.

    There is at least one table. Spark parses the objects. A line may hold several objects one after the other, as some
    services write them.

    Raises
    ------
    FileProblem
        The file is one JSON array.
    """
    text = _Text(source, returns=False)
    if text.begins_with == b"[":
        raise FileProblem("is one JSON array", "write one object a line")
    if not text.begins_with:
        yield NOTHING
        return
    above = 0
    for block in text.blocks():
        yield _split_lines(block, above, text.broken)
        above += block.count(b"\n")


def _split_lines(text: bytes, above: int, broken: bool) -> TextRows:
    """Return one row per JSON object of whole lines; `above` is the number of lines before them."""
    text, line_of, mixed = _one_object_per_line(text)
    texts = pc.split_pattern(pa.scalar(text.decode("utf-8")), "\n")
    column = pc.utf8_trim_whitespace(pa.array(texts.values if hasattr(texts, "values") else texts.as_py(), pa.string()))
    lines, is_mixed = pa.array(above + line_of), pa.array(np.isin(line_of, mixed))
    mixed_rows = zip(lines.filter(is_mixed).to_pylist(), column.filter(is_mixed).to_pylist(), strict=True)
    bad = [(line, line_text, "has something beside its object") for line, line_text in mixed_rows]
    keep = pc.and_(pc.greater(pc.utf8_length(column), 0), pc.invert(is_mixed))
    return _without_broken(pa.table({"line": column.filter(keep)}), lines.filter(keep), bad, broken)


def _one_object_per_line(text: bytes) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Put each object on a line of its own.

    Returns
    -------
    text
        The new text.
    line_of : int64[n]
        The original line of each new line, from 1.
    mixed : int64[m]
        Original lines that hold an object and something else.
    """
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
def _objects(text, cuts, more):  # type: ignore[no-untyped-def]  # noqa: C901 - one compiled kernel
    """Find further objects on a line, and lines with an object and something else.

    The first are places where an object begins after another one on a line of objects; lines count from 1.

    Commas and blanks may separate objects. The places are written to `cuts` and the lines to `more` as far as these
    have room; both numbers are returned.
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
    """Refuse columns without a name, and names that two columns share.

    Raises
    ------
    FileProblem
        There is such a column.
    """
    if any(not name.strip() for name in names):
        raise FileProblem("has a column without a name", "name every column in the header line")
    if len(set(names)) < len(names):
        raise FileProblem(f"has more than one column {max(names, key=names.count)!r}", "rename one")


def _header(text: _Text) -> list[str]:
    """Return the column names that pyarrow reads; a name may hold line breaks."""
    with _opened(text, lambda row: "skip", {}) as reader:
        names: list[str] = reader.schema.names
    if any("\0" in name for name in names):
        raise FileProblem("is not text", "check the file")
    other = next((sign for sign in ";\t|" if len(names) == 1 and sign in names[0]), None)
    if other is not None:
        raise FileProblem(f"separates its fields by {other!r}: {names[0][:60]!r}", "write it with commas")
    check_names(names)
    return names


def _blank(table: pa.Table, begins: np.ndarray, empty: np.ndarray) -> np.ndarray:
    """Mark the rows that are blank lines, bool[n]: their line is among the `empty` ones.

    A row of empty fields (``,,``) is none.
    """
    blank = np.ones(table.num_rows, bool)
    for column in sorted(table.columns, key=lambda column: column.null_count):
        if column.null_count < table.num_rows:
            blank &= column.is_null().to_numpy()
        if not blank.any():
            return blank
    blank[blank] = np.isin(begins[blank], empty)
    return blank


def _without_broken(table: pa.Table, lines: pa.Array, bad: list[tuple[int, str, str]], broken: bool) -> TextRows:
    """Move rows with invalid bytes to the unreadable ones; `broken`: the file has some."""
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
