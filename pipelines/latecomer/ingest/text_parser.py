"""Parse CSV and JSON into Arrow tables of strings; unreadable rows are returned with line and reason.

A file is decoded and parsed in blocks (:mod:`latecomer.ingest.decode_text`), so that it may be larger than memory; a
JSON document that is stated to hold its records in an array is held as a whole. Types are inferred over all files of a
call (:mod:`latecomer.ingest.values.inference`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.ingest import csv_kernels, decode_text, json_kernels
from latecomer.ingest.csv_kernels import BEGIN, BLANK, BREAKS, COUNT, END, FIRST, LINE, ROW, STATE
from latecomer.ingest.decode_text import INVALID, INVALID_BYTES, DecodedText, FileProblem, Source
from latecomer.specs.streams import TextLayout

RECORD_BYTES = decode_text.BLOCK_BYTES
"""A record of CSV is shorter."""
_NO_QUOTE = 256
_REASONS = (
    "",
    "",
    "has text after a closing quote",
    "has a quote that is never closed",
    f"has a quote that is not closed within {RECORD_BYTES >> 20} MB",
)
"""Why a record is no CSV, by its state."""
_IN_STREAM_FILE = "in the stream file"


@dataclass(frozen=True)
class TextRows:
    """Consecutive rows of a file.

    Attributes
    ----------
    rows
        The readable rows, in string columns.
    lines
        The physical line on which each begins, from 1.
    raw
        The text of each.
    unreadable
        ``line``, ``text`` and ``problem`` of the other rows.
    """

    rows: pa.Table
    lines: pa.Array
    raw: pa.Array
    unreadable: pa.Table

    @property
    def bad(self) -> list[tuple[int, str, str]]:
        """Line, text and reason of each unreadable row."""
        columns = [self.unreadable[name].to_pylist() for name in ("line", "text", "problem")]
        return list(zip(*columns, strict=True))


def _unreadable(lines: np.ndarray, texts: pa.Array, problems: pa.Array) -> pa.Table:
    texts = pc.replace_substring(texts, INVALID, INVALID[0])
    return pa.table({"line": pa.array(lines, pa.int64()), "text": texts, "problem": problems})


_NO_LINES, _NO_TEXTS = pa.array([], pa.int64()), pa.array([], pa.string())
NOTHING = TextRows(pa.table({}), _NO_LINES, _NO_TEXTS, _unreadable(_NO_LINES, _NO_TEXTS, _NO_TEXTS))


def read_csv(source: Source, layout: TextLayout = TextLayout()) -> Iterator[TextRows]:  # noqa: B008 - it is frozen
    """Yield the rows of CSV with a header line, in at least one table; all tables have the same columns.

    All columns are strings, and fields that are empty or among the null values are null. Blank lines are no rows. Line
    ends in values are ``\\n``. A record whose quotes are not those of RFC 4180 is unreadable: its first line alone, and
    reading goes on at the next line. So is a row that repeats the header.

    Raises
    ------
    FileProblem
        The file is not CSV, or a name in its header is empty.
    """
    text = DecodedText(source, layout.encoding, returns=True)
    reader = _CsvReader(text, layout)
    blocks = _without_lines(text.blocks(), layout.skip_rows)
    block, some = next(blocks, b""), False
    while block:
        following = next(blocks, b"")
        rows = reader.read(block, last=not following)
        if rows is not None:
            yield rows
            some = True
        block = following
    if not some:
        yield NOTHING


def _without_lines(blocks: Iterator[bytes], lines: int) -> Iterator[bytes]:
    """Yield the blocks that are not empty without the first `lines` lines."""
    for block in blocks:
        text = block
        if lines:
            breaks = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            skipped = min(lines, len(breaks))
            lines -= skipped
            text = b"" if lines else block[breaks[skipped - 1] + 1 :]
        if text:
            yield text


class _CsvReader:
    """Reads blocks of CSV one after the other."""

    def __init__(self, text: DecodedText, layout: TextLayout) -> None:
        self._text, self._layout = text, layout
        self._separator = ord(layout.separator)
        self._quote = ord(layout.quote) if layout.quote else _NO_QUOTE
        self._rest, self._line, self._doomed, self._why = b"", 1 + layout.skip_rows, 0, ROW
        self._names: list[str] | None = None

    def read(self, block: bytes, last: bool) -> TextRows | None:
        """Return the rows of the records that end in this block; None before the header.

        Raises
        ------
        FileProblem
            The header is not usable, or a line is longer than a record may be.
        """
        text = self._rest + block
        signs = np.frombuffer(text, np.uint8)
        fields = np.empty((text.count(self._layout.separator.encode()) + text.count(b"\n") + 2, 3), np.int32)
        records = np.empty((text.count(b"\n") + 2, 7), np.int64)
        count, begin, line, doomed, self._why, too_long = csv_kernels.scan_records(
            signs,
            last,
            self._separator,
            self._quote,
            RECORD_BYTES,
            self._line,
            self._doomed,
            self._why,
            fields,
            records,
        )
        if too_long:
            problem = f"has a line of more than {RECORD_BYTES >> 20} MB, line {line}"
            raise FileProblem(problem, "check the file; is it text, with line ends?")
        self._rest, self._line, self._doomed = text[begin:], line, max(doomed - begin, 0)
        records = records[:count][records[:count, STATE] != BLANK]
        if self._names is None:
            if not len(records):
                return None
            self._names = self._header(signs, fields, records[0])
            records = records[1:]
        return self._rows(text, fields, records, self._names)

    def _header(self, signs: np.ndarray, fields: np.ndarray, record: np.ndarray) -> list[str]:
        """Return the column names."""
        if record[STATE] != ROW:
            problem = f"is not readable CSV (the header on line {record[LINE]} {_REASONS[record[STATE]]})"
            raise FileProblem(problem, "mend the header line")
        columns = self._columns(signs, fields, record[None, FIRST], int(record[COUNT]))
        names = [column[0].as_py() or "" for column in columns]
        if any("\0" in name for name in names):
            raise FileProblem("is not text", f"check the file, or state its encoding {_IN_STREAM_FILE}")
        if any(INVALID in name for name in names):
            problem = f"has a header that is not valid {self._encoding}"
            raise FileProblem(problem, f"state the encoding {_IN_STREAM_FILE}, as in encoding: latin-1")
        others = [sign for sign in ",;\t|" if sign != self._layout.separator]
        other = next((sign for sign in others if len(names) == 1 and sign in names[0]), None)
        if other is not None:
            problem = f"separates its fields by {other!r}: {names[0][:60]!r}"
            stated = "tab" if other == "\t" else f"'{other}'"
            raise FileProblem(problem, f"write separator: {stated} {_IN_STREAM_FILE}")
        check_names(names)
        return names

    @property
    def _encoding(self) -> str:
        return self._text.encoding.upper()

    def _rows(self, text: bytes, fields: np.ndarray, records: np.ndarray, names: list[str]) -> TextRows:
        signs = np.frombuffer(text, np.uint8)
        invalid, repeats = np.zeros((2, len(records)), bool)
        if INVALID_BYTES in text:
            texts = _texts(signs, records[:, BEGIN], records[:, END])
            invalid = pc.match_substring(texts, INVALID).to_numpy(zero_copy_only=False)
        good = (records[:, STATE] == ROW) & (records[:, COUNT] == len(names)) & ~invalid
        columns = self._columns(signs, fields, records[good, FIRST], len(names))
        is_header = _repeats(columns, names)
        if is_header.any():
            repeats[good] = is_header
            good &= ~repeats
            keep = pa.array(~is_header)
            columns = [column.filter(keep) for column in columns]
        if self._layout.null_values:
            columns = [_without_nulls(column, self._layout.null_values) for column in columns]
        bad = records[~good]
        return TextRows(
            pa.Table.from_arrays(columns, names=names),
            pa.array(records[good, LINE]),
            _texts(signs, records[good, BEGIN], records[good, END]),
            _unreadable(
                bad[:, LINE],
                _texts(signs, bad[:, BEGIN], bad[:, END]),
                self._problems(bad, invalid[~good], repeats[~good], len(names)),
            ),
        )

    def _columns(self, signs: np.ndarray, fields: np.ndarray, firsts: np.ndarray, columns: int) -> list[pa.Array]:
        """Return the fields of rows as columns of strings, null where they are empty; `firsts`: their first fields."""
        rows = len(firsts)
        offsets, valid = np.empty((columns, rows + 1), np.int32), np.empty((columns, rows), np.uint8)
        out = np.empty(len(signs), np.uint8)
        csv_kernels.fill_columns(signs, fields, firsts, self._quote, out, offsets, valid)
        bits, nulls = np.packbits(valid, axis=1, bitorder="little"), rows - valid.sum(axis=1, dtype=np.int64)
        values = pa.py_buffer(out[: offsets[-1, -1]])
        return [
            pa.Array.from_buffers(pa.string(), rows, [pa.py_buffer(of), pa.py_buffer(at), values], int(null))
            for of, at, null in zip(bits, offsets, nulls, strict=True)
        ]

    def _problems(self, records: np.ndarray, invalid: np.ndarray, repeats: np.ndarray, expected: int) -> pa.Array:
        """Return the reasons why records are no rows."""
        state = np.where(records[:, STATE] != ROW, records[:, STATE], len(_REASONS))
        reasons = [*_REASONS, f"is not valid {self._encoding}", "repeats the header"]
        state += ~invalid & repeats
        problems = pa.array(reasons, pa.string()).take(pa.array(state))
        counts = (records[:, STATE] == ROW) & (records[:, COUNT] != expected)
        if counts.any():
            number = pa.array(records[:, COUNT]).cast(pa.string())
            said = pc.binary_join_element_wise("has ", number, f" fields, the header {expected}", "")
            problems = pc.if_else(pa.array(counts), said, problems)
        longer = records[:, BREAKS] > 0
        if longer.any():
            last_line = pa.array(records[:, LINE] + records[:, BREAKS]).cast(pa.string())
            problems = pc.if_else(
                pa.array(longer), pc.binary_join_element_wise(problems, last_line, ", and goes on to line "), problems
            )
        return problems


def _texts(signs: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> pa.Array:
    """Return the texts between places, as strings."""
    offsets = np.concatenate([[0], np.cumsum(ends - begins)])
    out = np.empty(offsets[-1], np.uint8)
    csv_kernels.copy_texts(signs, begins, ends, out)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), len(begins), buffers, 0)


def _repeats(columns: list[pa.Array], names: list[str]) -> np.ndarray:
    """Mark the rows that are equal to the header, bool[n]."""
    rows = np.arange(len(columns[0]))
    for column, name in zip(columns, names, strict=True):
        same = pc.fill_null(pc.equal(column.take(pa.array(rows)) if column is not columns[0] else column, name), False)
        rows = rows[same.to_numpy(zero_copy_only=False)]
        if not len(rows):
            break
    marks = np.zeros(len(columns[0]), bool)
    marks[rows] = True
    return marks


def _without_nulls(column: pa.Array, null_values: Sequence[str]) -> pa.Array:
    is_null = pc.is_in(column, pa.array(null_values, pa.string()))
    return pc.if_else(is_null, pa.scalar(None, pa.string()), column) if pc.any(is_null).as_py() else column


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
        ((name, _),) = Counter(names).most_common(1)
        raise FileProblem(f"has more than one column {name!r}", "rename one")


def read_json(source: Source, layout: TextLayout = TextLayout()) -> Iterator[TextRows]:  # noqa: B008 - it is frozen
    """Yield tables of one column ``line``: the text of each object, or of a line without a whole object.

    There is at least one table. Spark parses the objects. A line may hold several objects one after the other, as some
    services write them. Where the layout tells the place of the records, the file is one document, which is held in
    memory as a whole, and the objects are the elements of that array.

    Raises
    ------
    FileProblem
        The file is one JSON array, and the layout does not say so; or it is not the document that the layout tells.
    """
    text = DecodedText(source, layout.encoding, returns=False)
    if layout.records is not None:
        yield from _read_document(b"".join(text.blocks()), layout.records, text)
        return
    above, begun = 0, False
    for block in text.whole_lines():
        begin = b"" if begun else block.lstrip()[:1]
        if begin == b"[":
            remedy = f"write records: '' {_IN_STREAM_FILE}, or one object a line in the file"
            raise FileProblem("is one JSON array", remedy)
        begun = begun or bool(begin)
        if begun:
            yield _split_lines(block, above, text.encoding)
        above += block.count(b"\n")
    if not begun:
        yield NOTHING


def _split_lines(text: bytes, above: int, encoding: str) -> TextRows:
    """Return one row per JSON object of whole lines; `above` is the number of lines before them."""
    text, line_of, mixed = _one_object_per_line(text)
    texts = pc.split_pattern(pa.scalar(text.decode("utf-8")), "\n")
    column = pc.utf8_trim_whitespace(pa.array(texts.values if hasattr(texts, "values") else texts.as_py(), pa.string()))
    kinds = np.where(np.isin(line_of, mixed), json_kernels.MIXED, json_kernels.OBJECT)
    keep = pc.greater(pc.utf8_length(column), 0).to_numpy(zero_copy_only=False)
    return _objects(column.filter(pa.array(keep)), above + line_of[keep], kinds[keep], encoding)


def _objects(column: pa.Array, lines: np.ndarray, kinds: np.ndarray, encoding: str) -> TextRows:
    """Return rows of the texts that are taken for objects alone; the others are unreadable."""
    invalid = pc.match_substring(column, INVALID).to_numpy(zero_copy_only=False)
    keep = ~invalid & (kinds == json_kernels.OBJECT)
    objects, others = column.filter(pa.array(keep)), column.filter(pa.array(~keep))
    reasons = ["is not a JSON object", "has something beside its object", f"is not valid {encoding.upper()}"]
    state = np.where(invalid, 2, np.where(kinds == json_kernels.MIXED, 1, 0))[~keep]
    problems = pa.array(reasons).take(pa.array(state))
    return TextRows(
        pa.table({"line": objects}), pa.array(lines[keep]), objects, _unreadable(lines[~keep], others, problems)
    )


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
    counts = json_kernels.find_objects(signs, none, none)
    cuts, more = (np.empty(count, np.int64) for count in counts)
    if any(counts):
        json_kernels.find_objects(signs, cuts, more)
    breaks = np.flatnonzero(signs == ord("\n"))
    begins = np.sort(np.concatenate([[0], breaks + 1, cuts]))
    apart = np.insert(signs, cuts, ord("\n")).tobytes() if len(cuts) else text
    return apart, 1 + np.searchsorted(breaks, begins), more


_KEY = re.compile(rb'("(?:[^"\\]|\\.)*")\s*:\s*')
_SPACE = re.compile(rb"[ \t\r\n]*")


def _read_document(text: bytes, records: str, decoded: DecodedText) -> Iterator[TextRows]:
    """Yield the elements of the array at a dotted path of a document."""
    place = _after_space(text, 0)
    if place == len(text):
        yield NOTHING
        return
    ends, walked = [], ""
    for key in records.split(".") if records else ():
        place, end = _member(text, place, key, walked)
        ends.append(end)
        walked = f"{walked}.{key}".strip(".")
    if text[place : place + 1] != b"[":
        problem = f"has no array at {records!r}" if records else "is no JSON array"
        remedy = f"write the path of the array {_IN_STREAM_FILE}, or leave records out for one object a line"
        raise FileProblem(problem, remedy)
    begins, stops, kinds, end = _elements(text, place)
    rest = _after_space(text, [*ends, end][0])
    if rest < len(text):
        line = text.count(b"\n", 0, rest) + 1
        raise FileProblem(f"holds more than one JSON document, on line {line}", "write one document a file")
    signs = np.frombuffer(text, np.uint8)
    breaks = np.flatnonzero(signs == ord("\n"))
    blocks = (np.cumsum(stops - begins) - 1) // decode_text.BLOCK_BYTES
    cuts = [0, *(np.flatnonzero(np.diff(blocks)) + 1), len(begins)]
    for first, last in pairwise(cuts):
        some = slice(first, last)
        lines = 1 + np.searchsorted(breaks, begins[some])
        yield _objects(_texts(signs, begins[some], stops[some]), lines, kinds[some], decoded.encoding)


def _member(text: bytes, place: int, key: str, walked: str) -> tuple[int, int]:
    """Return the place of the value of a key in the object at `place`, and the object's end."""
    path = f"{walked}.{key}".strip(".")
    if text[place : place + 1] != b"{":
        problem = f"has no {path!r}: {'what is there' if not walked else repr(walked)} is no object"
        raise FileProblem(problem, f"write the path of the array {_IN_STREAM_FILE}")
    begins, stops, _, end = _elements(text, place)
    values, names = [], []
    for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True):
        match = _KEY.match(text, begin, stop)
        if match is None:
            raise _no_json(text, begin)
        names.append(_key(text, match))
        if names[-1] == key:
            values.append(match.end())
    if not values:
        problem = f"has no {path!r} (has: {', '.join(names[:10])})"
        raise FileProblem(problem, f"write the path of the array {_IN_STREAM_FILE}")
    if len(values) > 1:
        raise FileProblem(f"has {path!r} more than once", "rename one")
    return values[0], end


def _key(text: bytes, match: re.Match[bytes]) -> str:
    try:
        return str(json.loads(match[1]))
    except ValueError:
        raise _no_json(text, match.start()) from None


def _elements(text: bytes, place: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return begins, ends and kinds of the elements of the array or object at `place`, and the place behind it."""
    signs, none = np.frombuffer(text, np.uint8), np.empty(0, np.int64)
    count, end, state = json_kernels.find_elements(signs, place, none, none, np.empty(0, np.uint8))
    if state == json_kernels.UNFINISHED:
        line = text.count(b"\n", 0, place) + 1
        raise FileProblem(f"ends within the JSON that begins on line {line}", "check that the file is complete")
    if state != json_kernels.FINE:
        raise _no_json(text, end)
    begins, stops, kinds = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint8)
    json_kernels.find_elements(signs, place, begins, stops, kinds)
    return begins, stops, kinds, end


def _no_json(text: bytes, place: int) -> FileProblem:
    return FileProblem(f"is not JSON, on line {text.count(bytes([10]), 0, place) + 1}", "check the file")


def _after_space(text: bytes, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place
