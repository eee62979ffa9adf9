"""Text files as spreadsheets and file systems leave them."""

import gzip

import pytest
from latecomer.core.landing import FileProblem, read_csv

LINES = "event_ts,v\n1,a\n2,b\n"


@pytest.mark.parametrize(
    "content",
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
def test_the_same_rows_however_they_were_saved(tmp_path, content):
    (tmp_path / "a.csv").write_bytes(content)
    (block,) = read_csv(tmp_path / "a.csv")
    assert block.rows.to_pydict() == {"event_ts": ["1", "2"], "v": ["a", "b"]}
    assert block.lines.to_pylist() == [2, 3] and not block.bad


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"event_ts;v\n1;a\n", "separates its fields by ';'"),
        (b"event_ts\tv\n1\ta\n", r"separates its fields by '\\t'"),
        (b"\x00\x05\x16\x07\x00\x02\n\x00", "is not text"),
        (b"\x1f\x8bnothing", "cannot be read"),
        (b"a,,b\n1,2,3\n", "without a name"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, content, says):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(FileProblem, match=says):
        list(read_csv(tmp_path / "a.csv"))
