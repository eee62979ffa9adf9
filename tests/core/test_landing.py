"""Text files as spreadsheets and file systems leave them."""

import csv
import gzip
import io
import os

import numpy as np
import pyarrow as pa
import pytest
from latecomer.ingest import decode_text, text_parser
from latecomer.ingest.decode_text import FileProblem
from latecomer.ingest.find_files import digest, find, readable
from latecomer.ingest.packed_files import content
from latecomer.ingest.source_file import look
from latecomer.ingest.text_parser import TextRows, read_csv, read_json
from latecomer.lake.errors import InputError
from latecomer.specs.streams import TextLayout

LINES = "event_ts,v\n1,a\n2,b\n"


def csv_of(raw, **layout):
    return whole(read_csv, raw, **layout)


def json_of(raw, **layout):
    return whole(read_json, raw, **layout)


def whole(read, raw, **layout):
    """The rows of a file, given as bytes or in pieces, as one table."""
    pieces = [raw] if isinstance(raw, bytes) else list(raw)
    found = list(read(lambda: iter(pieces), TextLayout(**layout)))
    assert all(text.rows.schema == found[0].rows.schema for text in found)
    assert all(len(text.rows) in (len(text.lines), 0) and len(text.lines) == len(text.raw) for text in found)
    return TextRows(
        pa.concat_tables([text.rows for text in found]),
        pa.concat_arrays([text.lines for text in found]),
        pa.concat_arrays([text.raw for text in found]),
        pa.concat_tables([text.unreadable for text in found]),
    )


def test_what_may_not_be_read_is_said_in_one_line(tmp_path):
    for name in ("shut.csv", "folder/inside.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(LINES)
    for place in (tmp_path, *tmp_path.parents):  # pytest's own folders are root's alone
        if "pytest-" in str(place):
            place.chmod(0o755)
    (tmp_path / "shut.csv").chmod(0)
    (tmp_path / "folder").chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        ((file,), _) = find([str(tmp_path / "shut.csv")], None)
        with pytest.raises(InputError, match=r"shut\.csv: cannot be read \(Permission denied\)"), readable(file):
            digest(file, "")
        for inside in ("folder", "folder/inside.csv"):
            with pytest.raises(InputError, match=r"folder.*: cannot be read .*check its permissions"):
                find([str(tmp_path / inside)], None)
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        (tmp_path / "folder").chmod(0o755)


def test_a_name_too_long_is_said_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read .File name too long"):
        find([str(tmp_path / ("n" * 300 + ".csv"))], None)


@pytest.mark.parametrize(
    "raw",
    [
        LINES.encode(),
        LINES.replace("\n", "\r\n").encode(),
        LINES.replace("\n", "\r").encode(),
        b"\xef\xbb\xbf" + LINES.encode(),
        LINES.encode("utf-16"),
        gzip.compress(LINES.encode()),
    ],
    ids=["plain", "crlf", "cr", "bom", "utf-16", "gzip without its suffix"],
)
def test_the_same_rows_however_they_were_saved(tmp_path, raw):
    (tmp_path / "a.csv").write_bytes(raw)
    text = csv_of(content(look(str(tmp_path / "a.csv"))))
    assert text.rows.to_pydict() == {"event_ts": ["1", "2"], "v": ["a", "b"]}
    assert text.lines.to_pylist() == [2, 3] and not text.bad


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"event_ts;v\n1;a\n", "separates its fields by ';'"),
        (b"event_ts\tv\n1\ta\n", r"separates its fields by '\\t'"),
        (b"\x00\x05\x16\x07\x00\x02\n\x00", "is not text"),
        (b"\x1f\x8bnothing", "cannot be read"),
        (b"a,,b\n1,2,3\n", "without a name"),
        (b'a,"b\n1,2\n3,4\n', "is not readable CSV"),
        (b'a,b\n1,2\n3,"4', None),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, raw, says):
    (tmp_path / "a.csv").write_bytes(raw)
    if says is None:
        assert len(csv_of(raw).rows) + len(csv_of(raw).bad) == 2
        return
    with pytest.raises(FileProblem, match=says):
        csv_of(content(look(str(tmp_path / "a.csv"))))


def test_a_header_cell_may_hold_a_line_break():
    text = csv_of(b'event_ts,"Amount\n(EUR)"\n1,2\n3,4,5\n')
    assert text.rows.to_pydict() == {"event_ts": ["1"], "Amount\n(EUR)": ["2"]}
    assert text.lines.to_pylist() == [3] and [line for line, _, _ in text.bad] == [4]


@pytest.mark.parametrize("raw", [b"a,b", b"a,b\n", b'"a",b', b"a,b\r\n", b"\n\na,b"])
def test_a_header_alone_is_a_file_without_rows(raw):
    text = csv_of(raw)
    assert text.rows.num_rows == 0 and text.rows.num_columns == 2 and not text.bad


def test_a_name_that_stands_twice_in_a_header_is_said():
    with pytest.raises(FileProblem, match="more than one column 'v'"):
        csv_of(b"event_ts,v,v\n1,2,3\n")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_as_an_editor_does(end):
    """Blank lines before the header, below it, between rows and at the end; cells with line breaks; rows of empty cells
    are rows.
    """
    lines = [
        "", "", "event_ts,v", "", "1,one", '2,"two', "", 'and a half"', "",
        "3,three,3", '4,"four', '",four', "", "", ",", "5,five", "",
        "",
    ]  # fmt: skip
    text = csv_of(end.join(lines).encode())
    assert text.rows["event_ts"].to_pylist() == ["1", "2", None, "5"]
    assert text.rows["v"].to_pylist() == ["one", "two\n\nand a half", None, "five"]
    assert text.lines.to_pylist() == [5, 6, 15, 16] and [line for line, _, _ in text.bad] == [10, 11]


def test_blank_lines_of_one_column_are_told_from_empty_values():
    text = csv_of(b'event_ts\n1\n\n""\n\n2')
    assert text.rows["event_ts"].to_pylist() == ["1", None, "2"] and text.lines.to_pylist() == [2, 4, 6]


def test_every_line_of_generated_files_is_the_line_it_stands_on():
    """Differential: Python's own CSV reader, which knows on which line it is."""
    rng = np.random.default_rng(5)
    cells = ["1", "", '"a\nb"', '"\n"', '"x,y"', '"say ""no"""']
    for _ in range(200):
        rows = [[cells[i] for i in rng.integers(0, len(cells), rng.choice([2, 2, 2, 3]))] for _ in range(12)]
        texts = ["" if rng.random() < 0.3 else ",".join(row) for row in rows]
        raw = "\n" * int(rng.integers(0, 3)) + 'k,"w\nx"\n' + "\n".join(texts) + "\n" * int(rng.integers(0, 3))
        reader, begins, wanted = csv.reader(io.StringIO(raw)), 1, {}
        for record in reader:
            wanted[begins] = record
            begins = reader.line_num + 1
        wanted = {line: record for line, record in wanted.items() if record and record != ["k", "w\nx"]}
        text = csv_of(raw.encode())
        good = {
            line: [v or "" for v in row.values()]
            for line, row in zip(text.lines.to_pylist(), text.rows.to_pylist(), strict=True)
        }
        assert good == {line: record for line, record in wanted.items() if len(record) == 2}
        assert {line for line, _, _ in text.bad} == {line for line, record in wanted.items() if len(record) == 3}


def test_lines_of_json():
    text = json_of(b'\n{"a": 1}\r\n\n  \n{"a": 2}')
    assert text.rows["line"].to_pylist() == ['{"a": 1}', '{"a": 2}'] and text.lines.to_pylist() == [2, 5]


def test_a_forced_format_counts_for_every_visible_file_of_a_folder(tmp_path):
    for name in ("a.log", "b.parquet", "c", ".hidden.json"):
        (tmp_path / name).write_text("{}")
    found, others = find([str(tmp_path)], "json")
    assert [path.name for path in found] == ["a.log", "b.parquet", "c"] and others == []
    for name in ("sub", "_notes", ".git"):
        (tmp_path / name).mkdir(exist_ok=True)
    found, others = find([str(tmp_path)], None)
    assert others.pop() == str(tmp_path / "sub")
    assert [path.name for path in found] == ["b.parquet"] and others == [str(tmp_path / "a.log"), str(tmp_path / "c")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no file"):
        find([str(tmp_path / "empty")], "json")


def test_objects_of_one_line_are_taken_apart_and_nothing_beside_one_is_dropped():
    text = json_of(
        b'{"a": 1}{"a": "}{"} {"a": {"b": [1]}},{"a": 4}\n'
        b'{"a": 5},\n{"a": 6} {broken\n{"a": 7}xyz\n{"a": "\\\\"}{"a": "\\"{"}\n[1]\nplain\n{"a":\n'
    )
    assert text.rows["line"].to_pylist() == [
        '{"a": 1}', '{"a": "}{"}', '{"a": {"b": [1]}},', '{"a": 4}',
        '{"a": 5},', '{"a": "\\\\"}', '{"a": "\\"{"}', "[1]", "plain", '{"a":',
    ]  # fmt: skip
    assert text.lines.to_pylist() == [1, 1, 1, 1, 2, 5, 5, 6, 7, 8]
    assert [(line, raw) for line, raw, _ in text.bad] == [(3, '{"a": 6} {broken'), (4, '{"a": 7}xyz')]
    assert json_of(b'{"a": 1}' * 1_000).rows.num_rows == 1_000


def test_a_quote_that_is_never_closed_takes_no_rows_with_it():
    text = csv_of(b'a,b\n1,x\n2,"y\n3,z\n4,w\n')
    assert text.rows["b"].to_pylist() == ["x", "z", "w"] and text.lines.to_pylist() == [2, 4, 5]
    assert text.bad == [(3, '2,"y', "has a quote that is never closed")]
    text = csv_of(b'a,b\n1,5" pipe\n2,"y\nz"\n')
    assert text.rows["b"].to_pylist() == ['5" pipe', "y\nz"] and not text.bad


def test_a_quote_is_closed_within_the_longest_record(monkeypatch):
    monkeypatch.setattr(decode_text, "BLOCK_BYTES", 64)
    monkeypatch.setattr(text_parser, "RECORD_BYTES", 4096)
    text = csv_of([b'\na,b\n1,"x ""y""\nz"\n3,"y', *[b"\n1,2"] * 9000])
    assert text.bad == [(5, '3,"y', "has a quote that is not closed within 16 MB")]
    assert len(text.rows) == 9001 and text.lines.to_pylist()[-1] == 9005
    with pytest.raises(FileProblem, match="has a line of more than 0 MB, line 5"):
        csv_of([b'\na,b\n1,"x ""y""\nz"\n3,', *[b"y" * 100] * 9000])


def test_a_file_read_in_small_blocks_has_the_same_rows(monkeypatch):
    """Blocks end anywhere: inside a quote, between CR and LF, inside a long sign, after a skipped record."""
    rng = np.random.default_rng(11)
    cells = ["1", "", '"a\nb"', '"x,y"', '"say ""no"""', "äöü€", "\U0001f600", "n" * 30]
    bad = 0
    for turn in range(150):
        rows = [",".join(cells[i] for i in rng.integers(0, len(cells), rng.choice([2, 2, 2, 3]))) for _ in range(25)]
        rows = ["" if rng.random() < 0.2 else row for row in rows]
        text = "\n" * int(rng.integers(0, 40)) + "\n".join(["k,w", *rows]) + ["", "\n", '\n1,"open\n2,x\n'][turn % 3]
        end = ["\n", "\r\n", "\r"][turn // 3 % 3]
        raw = text.replace("\n", end).encode("utf-16" if turn % 5 == 0 else "utf-8")
        if turn % 7 == 0:
            raw = raw.replace(b"nnnnn", b"nn\xffnn", 2)
        objects = raw.replace(b"1,", b'{"a": "}"} {"a": 1}' + end.encode()).replace(b"x,y", b'{"a": 2} beside')
        for read, file in ((csv_of, raw), (json_of, objects)):
            monkeypatch.setattr(decode_text, "BLOCK_BYTES", 1 << 20)
            wanted = read(file)
            monkeypatch.setattr(decode_text, "BLOCK_BYTES", int(rng.integers(120, 400)))
            cuts = np.sort(rng.integers(0, len(file), 6)).tolist()
            found = read(file[a:b] for a, b in zip([0, *cuts], [*cuts, len(file)], strict=True))
            assert found.rows.equals(wanted.rows) and found.lines.equals(wanted.lines)
            assert found.raw.equals(wanted.raw)
            assert sorted(found.bad) == sorted(wanted.bad)
            bad += len(found.bad)
    assert bad > 500
