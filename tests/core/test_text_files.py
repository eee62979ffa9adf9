"""Text files as the world writes them, against Python's readers of CSV and JSON."""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import re
import time
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.ingest import decode_text
from latecomer.ingest.decode_text import FileProblem
from latecomer.ingest.find_files import digest, find, format_of
from latecomer.ingest.known_files import content_digest
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.packed_files import content
from latecomer.ingest.read_text import StagedText
from latecomer.ingest.source_file import look, natural_order
from latecomer.ingest.staging import RESERVED, Staging
from latecomer.ingest.text_parser import read_csv, read_json
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.specs.streams import TextLayout

from tests.support.dirty_files import strict_csv


class Parsed:
    """All rows of a file."""

    def __init__(self, read, pieces, **layout):
        pieces = [pieces] if isinstance(pieces, bytes) else list(pieces)
        texts = list(read(lambda: iter(pieces), TextLayout(**layout)))
        self.names = texts[0].rows.column_names
        assert all(text.rows.column_names == self.names for text in texts)
        self.rows = [tuple(row.values()) for text in texts for row in text.rows.to_pylist()]
        self.lines = [line for text in texts for line in text.lines.to_pylist()]
        self.raw = [raw for text in texts for raw in text.raw.to_pylist()]
        self.bad = [bad for text in texts for bad in text.bad]
        assert len(self.rows) == len(self.lines) == len(self.raw)


def pieces_of(raw, rng, most=7):
    cuts = np.sort(rng.integers(0, len(raw) + 1, most)).tolist()
    return [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    separator=st.sampled_from(",;\t|"),
    quote=st.sampled_from(["'", '"', '"', ""]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    encoding=st.sampled_from(["utf-8", "utf-8", "latin-1", "utf-16", "utf-16-le", "cp1252", "utf-8-sig"]),
    skip=st.integers(0, 2),
)
def test_records_are_those_of_a_strict_reader(seed, separator, quote, end, encoding, skip):
    rng = np.random.default_rng(seed)
    signs = np.array(list("aaaü0 \n\n,;\"'\t|") + [separator] * 5 + ["\n"] * 3 + ([quote] * 4 if quote else []))
    body = "".join(rng.choice(signs, rng.integers(0, 300)))
    text = "\n" * int(rng.integers(0, 2)) + f"k{separator}w{separator}x\n" + body
    raw = ("skipped\n" * skip + text).replace("\n", end).encode(encoding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_text, "BLOCK_BYTES", int(rng.integers(1, 60)))
        layout = {"separator": separator, "quote": quote, "encoding": encoding, "skip_rows": skip}
        parsed = Parsed(read_csv, pieces_of(raw, rng, 30), **layout)
    expected = list(strict_csv(text, separator, quote))[1:]
    good = {line + skip: fields for line, fields, _ in expected if fields is not None and len(fields) == 3}
    good = {line: fields for line, fields in good.items() if fields != ["k", "w", "x"]}
    rows = {line: [value or "" for value in row] for line, row in zip(parsed.lines, parsed.rows, strict=True)}
    assert rows == good
    lines = text.split("\n")
    bad = {
        line + skip: ("\n".join(lines[line - 1 : line - 1 + count]), fields is None)
        for line, fields, count in expected
        if line + skip not in good
    }
    assert {line: raw for line, raw, _ in parsed.bad} == {line: raw for line, (raw, _) in bad.items()}
    for line, _, problem in parsed.bad:
        assert bool(re.search("quote", problem)) == bad[line][1]


def test_a_stray_quote_takes_no_other_row_with_it():
    lines = [f"{i},a,{i}" for i in range(14)]
    lines[5], lines[12] = '5,"abc,5', '12,"def",12'
    parsed = Parsed(read_csv, "\n".join(["t,k,v", *lines]).encode())
    assert [row[2] for row in parsed.rows] == [str(i) for i in range(14) if i != 5]
    assert parsed.bad == [(7, '5,"abc,5', "has text after a closing quote")]
    parsed = Parsed(read_csv, b'k,v\n"5" pipe",1\n5" pipe,2\n"5"" pipe",3\n "a",4\n')
    assert parsed.rows == [('5" pipe', "2"), ('5" pipe', "3"), (' "a"', "4")]
    assert parsed.raw == ['5" pipe,2', '"5"" pipe",3', ' "a",4']
    assert parsed.bad == [(2, '"5" pipe",1', "has text after a closing quote")]


def test_a_record_with_other_fields_says_how_far_it_goes():
    parsed = Parsed(read_csv, b'k,v,w\n"a,1\n2,3,4\n5,6",7\n8\n')
    assert parsed.bad == [
        (2, '"a,1\n2,3,4\n5,6",7', "has 2 fields, the header 3, and goes on to line 4"),
        (5, "8", "has 1 fields, the header 3"),
    ]


def test_quotes_that_are_never_closed_cost_no_more_than_reading():
    """A million lines that could all be inside one quoted value; a scan from every line would take hours."""
    parsed = list(read_csv(lambda: [b"a,b\n" + b'a",b,"\n' * 1_000_000]))
    assert sum(len(text.unreadable) for text in parsed) == 1_000_000
    assert set(parsed[0].unreadable["problem"].to_pylist()) == {"has a quote that is never closed"}


def test_a_header_that_comes_again_is_no_row():
    parsed = Parsed(read_csv, b'k,v\n1,2\nk,v\n"k",v\nk,w\n')
    assert parsed.rows == [("1", "2"), ("k", "w")]
    assert [(line, why) for line, _, why in parsed.bad] == [(4 - 1, "repeats the header"), (4, "repeats the header")]


def test_null_values_are_no_values_in_all_columns():
    parsed = Parsed(read_csv, b'k,v\nnil,"nil"\nERR,1\nNil,\nx, nil\n', null_values=("nil", "ERR"))
    assert parsed.rows == [(None, None), (None, "1"), ("Nil", None), ("x", " nil")]


@pytest.mark.parametrize(
    ("raw", "layout", "says", "remedy"),
    [
        (b"a;b\n1;2\n", {}, "separates its fields by ';'", "separator: ';'"),
        (b"a\tb\n1\t2\n", {}, r"separates its fields by '\\t'", "separator: tab"),
        (b"a,b\n1,2\n", {"separator": ";"}, "separates its fields by ','", "separator: ','"),
        (b'k,"v"x\n1,2\n', {}, "not readable CSV .the header on line 1 has text after", "mend"),
        ("k,h\xf6he\n1,2\n".encode("latin-1"), {}, "header that is not valid UTF-8", "encoding: latin-1"),
        ("k,v\n1,2\n".encode("utf-16-le"), {}, "is not text", "encoding"),
    ],
)
def test_a_header_that_cannot_be_used_says_what_to_state(raw, layout, says, remedy):
    with pytest.raises(FileProblem, match=says) as raised:
        Parsed(read_csv, raw, **layout)
    assert remedy in raised.value.remedy


def test_encodings():
    rows = "k,v\nzwölf,1\n€,2\n"
    for encoding in ("utf-8", "cp1252", "utf-16-le", "utf-16-be", "utf-16", "utf-32", "iso8859-15", "gb18030"):
        assert Parsed(read_csv, rows.encode(encoding), encoding=encoding).rows == [("zwölf", "1"), ("€", "2")]
    marked = Parsed(read_csv, b"\xff\xfe" + rows.encode("utf-16-le"), encoding="latin-1")
    assert marked.names == ["k", "v"] and marked.rows == [("zwölf", "1"), ("€", "2")]
    # U+FFFD that the file has is text; the byte that cp1252 does not have is none
    invalid = Parsed(read_csv, "k,v\nö,1\n\ufffd,2\n".encode() + b"a\xff,3\n\xc3,4\n")
    assert invalid.rows == [("ö", "1"), ("\ufffd", "2")]
    assert invalid.bad == [(4, "a\ufffd,3", "is not valid UTF-8"), (5, "\ufffd,4", "is not valid UTF-8")]
    invalid = Parsed(read_csv, b"k,v\n\x81,1\n\x80,2\n", encoding="cp1252")
    assert invalid.rows == [("€", "2")] and invalid.bad == [(2, "\ufffd,1", "is not valid CP1252")]
    objects = Parsed(read_json, '{"a": "ö"}\n'.encode("latin-1") * 2, encoding="iso8859-1")
    assert objects.rows == [('{"a": "ö"}',)] * 2


def test_an_empty_file_has_no_rows(tmp_path):
    for read in (read_csv, read_json):
        for raw in (b"", b"\n\n", b"\xef\xbb\xbf", b" \n" if read is read_json else b"\r\n"):
            assert Parsed(read, raw).rows == []
    assert Parsed(read_csv, b"a\nb\n", skip_rows=5).rows == []
    assert Parsed(read_json, b" ", records="").rows == []
    for suffix in ("", ".gz", ".bz2", ".zst", ".xz", ".zip"):
        (tmp_path / f"a.csv{suffix}").write_bytes(b"")
        assert list(content(look(str(tmp_path / f"a.csv{suffix}")))) == []


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, raw in files.items():
            packed.writestr(name, raw)
    return buffer.getvalue()


def zstd(raw):
    return pa.Codec("zstd").compress(raw, asbytes=True)


RAW = ("k,v\n" + "".join(f"{i},{i * 7919 % 1000}\n" for i in range(400_000))).encode()
HALVES = RAW[: len(RAW) // 2], RAW[len(RAW) // 2 :]
PACKED = {
    ".gz": (gzip.compress(RAW, 1), b"".join(gzip.compress(half, 1) for half in HALVES)),
    ".bz2": (bz2.compress(RAW, 1), b"".join(bz2.compress(half, 1) for half in HALVES)),
    ".xz": (lzma.compress(RAW, preset=0), b"".join(lzma.compress(half, preset=0) for half in HALVES)),
    ".zst": (zstd(RAW), b"".join(zstd(half) for half in HALVES)),
    ".zip": (zipped({"a.csv": RAW}), zipped({"__MACOSX/._a.csv": b"x", "in/.DS_Store": b"", "in/a.csv": RAW})),
}


@pytest.mark.parametrize("suffix", PACKED)
def test_compressed_files_are_read_whole_or_not_at_all(tmp_path, suffix):
    for number, packed in enumerate(PACKED[suffix]):
        for name in (f"{number}.csv{suffix}", f"{number}.csv"):
            (tmp_path / name).write_bytes(packed)
            file = look(str(tmp_path / name))
            assert format_of(file, None) == "csv" and b"".join(content(file)) == RAW
        for cut in (len(packed) - 3, len(packed) // 2, len(packed) // 3, 20):
            (tmp_path / "cut.csv").write_bytes(packed[:cut])
            with pytest.raises(FileProblem, match="cannot be read"):
                list(content(look(str(tmp_path / "cut.csv"))))
        changed = bytearray(packed)
        changed[len(packed) // 2] ^= 0x55
        (tmp_path / "changed.csv").write_bytes(changed)
        try:
            assert b"".join(content(look(str(tmp_path / "changed.csv")))) != RAW or suffix == ".zip"
            assert suffix == ".zst"  # frames of this writer have no checksum
        except FileProblem:
            pass
    if suffix != ".zip":
        (tmp_path / "more.csv").write_bytes(packed + b"plain,text\n")
        with pytest.raises(FileProblem, match="cannot be read"):
            list(content(look(str(tmp_path / "more.csv"))))
    (tmp_path / f"plain.csv{suffix}").write_bytes(b"k,v\n1,2\n")
    with pytest.raises(FileProblem, match="cannot be read"):
        list(content(look(str(tmp_path / f"plain.csv{suffix}"))))


def test_a_zip_holds_one_file(tmp_path):
    for files in ({}, {"a.csv": b"k\n", "b.csv": b"k\n"}, {"in/": b""}):
        (tmp_path / "a.csv.zip").write_bytes(zipped(files))
        with pytest.raises(FileProblem, match=f"is a zip of {len([n for n in files if n[-1] != '/'])} files"):
            list(content(look(str(tmp_path / "a.csv.zip"))))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('a"\\{}[],:ü\n', max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"\\{,', max_size=2), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(
    elements=st.lists(st.dictionaries(st.text("ab", max_size=2), values, max_size=3) | values, max_size=8),
    path=st.sampled_from(["", "a", "data.records"]),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    seed=st.integers(0, 9),
)
def test_elements_of_documents_are_those_of_a_json_reader(elements, path, indent, ascii_only, seed):
    document = elements
    for key in reversed(path.split(".") if path else []):
        document = {"other": [{"a": "]"}], key: document, "}": {key: [1]}}
    raw = (" \n" + json.dumps(document, indent=indent, ensure_ascii=ascii_only) + "\n ").encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_text, "BLOCK_BYTES", 40)
        parsed = Parsed(read_json, pieces_of(raw, np.random.default_rng(seed)), records=path)
    texts = [(line, text) for line, (text,) in zip(parsed.lines, parsed.rows, strict=True)]
    assert [json.loads(text) for _, text in texts] == [element for element in elements if isinstance(element, dict)]
    others = [json.loads(text) for _, text, _ in parsed.bad]
    assert others == [element for element in elements if not isinstance(element, dict)]
    lines = raw.decode().split("\n")
    for line, text in [*texts, *((line, text) for line, text, _ in parsed.bad)]:
        assert text.split("\n")[0] in lines[line - 1]


@pytest.mark.parametrize(
    ("raw", "records", "says"),
    [
        (b'[{"a": 1}]', None, "is one JSON array"),
        (b'{"a": 1}\n{"a": 2}\n', "", "is no JSON array"),
        (b'{"data": {"rows": []}}', "data.records", r"has no 'data.records' .has: rows"),
        (b'{"data": {"records": {}}}', "data.records", "has no array at 'data.records'"),
        (b'{"data": [1]}', "data.records", "'data' is no object"),
        (b'{"r": [], "r": [{}]}', "r", "has 'r' more than once"),
        (b'[{"a": 1}\n]\n[{"a": 2}]', "", "more than one JSON document, on line 3"),
        (b'{"r": [{"a": 1}]} {}', "r", "more than one JSON document"),
        (b'[{"a": 1},\n{"a": [1}\n]', "", "is not JSON, on line 2"),
        (b'[{"a": 1},\n{"a": "b}\n]', "", "is not JSON, on line 2"),
        (b'[{"a": 1},\n{"a": 1}', "", "ends within the JSON that begins on line 1"),
        (b'{"r": [{"a": 1}', "r", "ends within the JSON"),
        (b'{r: [{"a": 1}]}', "r", "is not JSON, on line 1"),
    ],
)
def test_a_document_that_is_not_the_stated_one_says_so(raw, records, says):
    with pytest.raises(FileProblem, match=says):
        Parsed(read_json, raw, records=records)


def test_elements_that_are_no_objects_are_counted():
    parsed = Parsed(read_json, b'[{"a": 1} {"a": 2},\n{"a": 3} x, [1],,\n"{}", {"a": "\xff"}, {"a": 4},]', records="")
    assert parsed.rows == [('{"a": 4}',)] and parsed.lines == [3]
    mixed, other = "has something beside its object", "is not a JSON object"
    assert parsed.bad == [
        (1, '{"a": 1} {"a": 2}', mixed), (2, '{"a": 3} x', mixed), (2, "[1]", other), (2, "", other),
        (3, '"{}"', other), (3, '{"a": "\ufffd"}', "is not valid UTF-8"), (3, "", other),
    ]  # fmt: skip


def test_files_come_in_the_natural_order_of_their_names(tmp_path):
    names = ["a-10.csv", "a-2.csv", "a-02.csv", "B-1.csv", "a-9/x.csv", "a-11/x.csv", "a-9/x-10.csv", "a/1.csv"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("k\n")
    files, _ = find([str(tmp_path)], None)
    assert [file.name for file in files] == ["B-1.csv", "a-02.csv", "a-2.csv", "a-10.csv"]
    files, _ = find([str(tmp_path)], None, recursive=True)
    assert [str(file)[len(str(tmp_path)) + 1 :] for file in files] == [
        "B-1.csv", "a/1.csv", "a-02.csv", "a-2.csv", "a-9/x-10.csv", "a-9/x.csv", "a-10.csv", "a-11/x.csv",
    ]  # fmt: skip
    assert natural_order("1") < natural_order("a") and natural_order("a2") < natural_order("a10b")


def test_files_that_are_still_written_are_left_out_and_reported(tmp_path):
    parts = ["a.csv.tmp", "b.csv.part", "c.partial", "d.csv.crdownload", "e.csv._COPYING_", "f.csv.filepart", "G.TMP"]
    for name in ["a.csv", *parts]:
        (tmp_path / name).write_text("k\n")
    for forced in (None, "csv"):
        files, left_out = find([str(tmp_path)], forced)
        assert [file.name for file in files] == ["a.csv"]
        assert sorted(left_out) == sorted(str(tmp_path / name) for name in parts)
    (tmp_path / "a.csv").unlink()
    with pytest.raises(InputError, match="holds no file"):
        find([str(tmp_path)], "csv")


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("_delta_log/0.json", "is part of a Delta table: .*table holds _delta_log.*source: delta, table: .*table in"),
        (".hoodie/hoodie.properties", "is part of a Hudi table: .*table holds .hoodie"),
        ("metadata/v1.metadata.json", "is part of an Iceberg table: .*table holds metadata"),
    ],
)
def test_tables_are_not_read_as_files(tmp_path, log, says):
    for name in ("table/p=1/a.parquet", "table/b.csv", "c.csv", f"table/{log}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("k\n")
    for name in ("table", "table/b.csv", "table/p=1", "table/p=1/a.parquet"):
        with pytest.raises(InputError, match=says):
            find([str(tmp_path / "c.csv"), str(tmp_path / name)], None)
    with pytest.raises(InputError, match=says):
        find([str(tmp_path)], None, recursive=True)
    files, left_out = find([str(tmp_path)], None)
    assert [file.name for file in files] == ["c.csv"] and left_out == [str(tmp_path / "table")]


def test_reserved_columns_are_refused_before_they_clash(tmp_path):
    for name in RESERVED:
        (tmp_path / "a.csv").write_text(f"k,{name.upper()}\n1,2\n")
        with pytest.raises(FileProblem, match=f"has a column '{name.upper()}', a name kept"):
            StagedText(Staging(Lake(str(tmp_path / "lake")))).add(0, look(str(tmp_path / "a.csv")), "csv", TextLayout())


def test_staged_rows_keep_place_text_and_reason(tmp_path):
    """A file of ten thousand columns is staged in seconds."""
    names = [f"c{i}" for i in range(10_000)]
    lines = [",".join(names), ",".join(["1"] * 10_000), "x", ",".join([""] * 9_999 + ['"a,b"'])]
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    lake = Lake(str(tmp_path / "lake"))
    with contextlib.closing(StagedText(Staging(lake))) as staged:
        begin = time.perf_counter()
        assert staged.add(7, look(str(tmp_path / "a.csv.gz")), "csv", TextLayout()) == names
        assert time.perf_counter() - begin < 20
    (rows,) = (tmp_path / "lake" / "_staging").glob("*/rows.parquet")
    columns = ["c0", "c9999", "_row", "_line", "_raw", "_problem", "_file"]
    assert pq.read_table(rows, columns=columns).to_pydict() == {
        "c0": ["1", None, None], "c9999": ["1", "a,b", None], "_row": [0, 1, 2], "_line": [2, 4, 3],
        "_raw": [lines[1], lines[3], "x"], "_problem": [None, None, "has 1 fields, the header 10000"], "_file": [7] * 3,
    }  # fmt: skip


def test_the_layout_is_part_of_what_a_content_means(tmp_path):
    """Content that was ingested before layouts could be stated stays known."""
    for name in ("a.csv", "a.parquet"):
        (tmp_path / name).write_text("k\n")
    file, parquet = (look(str(tmp_path / name)) for name in ("a.csv", "a.parquet"))
    plain = IngestOptions(stream="s")
    assert content_digest(file, plain).split()[0] == digest(file, '["s", null, "event_ts", "arrival_ts", "UTC"]')
    semicolons = IngestOptions(stream="s", layout=TextLayout(separator=";"))
    others = [
        semicolons,
        IngestOptions(stream="s", layout=TextLayout(null_values=("nil",))),
        IngestOptions(stream="s", layout=TextLayout(records="")),
        IngestOptions(stream="s", time_format="%d.%m.%Y"),
        IngestOptions(stream="s", event_clock_column="at"),
    ]
    assert len({content_digest(file, options) for options in [plain, *others]}) == 6
    assert content_digest(parquet, plain) == content_digest(parquet, semicolons)
    assert content_digest(file, semicolons).endswith(" csv")
