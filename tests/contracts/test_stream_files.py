"""Stream files: the options that they state, and the error of each mistake."""

import pytest
from latecomer.specs.errors import SpecError
from latecomer.specs.streams import load_stream, stream_file, stream_files


def loaded(tmp_path, text):
    (tmp_path / "s.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_stream(tmp_path / "s.yaml")


def test_options_are_those_that_the_file_states(tmp_path):
    assert loaded(tmp_path, "# nothing\n") == loaded(tmp_path, "") == loaded(tmp_path, "event_column:\n") == {}
    text = "event_column: ts\narrival_column: got\ntimezone: Europe/Berlin\ntime_unit: ms\nformat: json\n"
    text += "max_future: 2 d\nrecursive: false\nmax_quarantined: 0.05\n"
    assert loaded(tmp_path, text) == {
        "event_column": "ts",
        "arrival_column": "got",
        "timezone": "Europe/Berlin",
        "time_unit": "ms",
        "format": "json",
        "max_future_us": 2 * 86_400_000_000,
        "recursive": False,
        "max_quarantined": 0.05,
    }


@pytest.mark.parametrize(
    "text, problem",
    [
        ("event_colum: ts", "s.yaml:1: event_colum: 'ts': is not a key here; did you mean 'event_column'?"),
        ("\ntimezone: Berlin", "s.yaml:2: timezone: 'Berlin': is not a time zone; write one such as Europe/Berlin"),
        ("time_unit: ns", "time_unit: 'ns': is unknown here; did you mean 's'?"),
        ("time_unit: 1", "time_unit: 1: is unknown here"),
        ("time_unit: [s]", "time_unit: ['s']: is unknown here"),
        ("format: xml", "format: 'xml': is unknown here; use one of csv, parquet, json"),
        ("max_future: 0 s", "max_future: '0 s': must be longer than zero"),
        ("max_future: 7", "max_future: 7: is not a duration"),
        ("max_quarantined: 5%", "max_quarantined: '5%': must be a number"),
        ("max_quarantined: 5", "max_quarantined: 5: must be from 0 to 1"),
        ("recursive: maybe", "recursive: 'maybe': must be true or false"),
        ("recursive: 1", "recursive: 1: must be true or false"),
        ("event_column: 7", "event_column: 7: must be text"),
        ("- a", "must be a mapping"),
        ("a: [", "is not valid YAML"),
        (b"\xff\xfe", "is not UTF-8"),
        ("x" * 70_000, "is larger than"),
    ],
)
def test_the_error_of_a_mistake_is_one_line(tmp_path, text, problem):
    with pytest.raises(SpecError) as caught:
        loaded(tmp_path, text)
    line = str(caught.value)
    assert problem in line and "\n" not in line and str(tmp_path / "s.yaml") in line


def test_stream_files_are_found_by_name(tmp_path):
    for name in ("views.yaml", "_by_type.yml", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "folder.yaml").mkdir()
    assert stream_files(tmp_path) == [tmp_path / "_by_type.yml", tmp_path / "views.yaml"]
    assert stream_files(tmp_path / "none") == []
    (tmp_path / "views.yml").touch()
    for name, problem in (("views.yml", "is of the same stream as"), ("my views.yaml", "is no name of a stream")):
        with pytest.raises(SpecError, match=problem):
            load_stream(tmp_path / name)
    assert load_stream(tmp_path / "views.yaml") == load_stream(tmp_path / "_by_type.yml") == {}
    assert stream_file(tmp_path, "_by_type") == tmp_path / "_by_type.yml" and stream_file(tmp_path, "clicks") is None
