"""The watch that starts `latecomer_ingest`: for files that the ingest log does not have, told once and at rest."""

import os
import shutil
from itertools import pairwise

import pytest
from latecomer.ingest.ingest import ingest
from latecomer.ingest.new_files import FolderObserver
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.watch import AGAIN_S, CATALOG_S, GROWING_S, UNDER_WAY_S, Watch
from latecomer.lake.errors import InputError
from latecomer.lake.lease import Lease

ROWS = "event_ts,v\n1,{}\n2,3\n"


@pytest.fixture
def landing(tmp_path):
    folder = tmp_path / "landing"
    for name in ("a", "b", "_by_kind"):
        (folder / name).mkdir(parents=True)
    return folder


class Clock:
    """Observations of a watch five seconds apart; a new trigger begins with a watch of its own."""

    def __init__(self, landing, lake, **texts):
        self.landing, self.lake, self.time_s = landing, lake, 0.0
        self.texts = dict.fromkeys(("a", "b", "_by_kind"), "") | texts
        self.restart()

    def restart(self):
        self.watch = Watch(str(self.landing), self.texts)

    def observe(self, after_s=5.0):
        self.time_s += after_s
        return self.watch.observe(self.lake.uri, self.time_s)


def take(lake, folder, **options):
    return ingest(lake, [str(folder)], IngestOptions(**({"stream": folder.name} | options)))


def test_a_file_starts_one_run_and_none_once_it_is_ingested(lake, landing):
    clock = Clock(landing, lake)
    assert [clock.observe() for _ in range(3)] == [None] * 3
    (landing / "a" / "1.csv").write_text(ROWS.format(1))
    assert [clock.observe(), clock.observe(), clock.observe()] == [None, {"a": 1}, None]
    take(lake, landing / "a")
    assert [clock.observe(after_s) for after_s in (5, AGAIN_S, 10 * AGAIN_S)] == [None] * 3
    (landing / "b" / "1.csv").write_text(ROWS.format(2))
    assert [clock.observe(), clock.observe()] == [None, {"b": 1}]


def test_a_restart_loses_nothing_and_repeats_nothing_that_was_ingested(lake, landing):
    clock = Clock(landing, lake)
    (landing / "a" / "1.csv").write_text(ROWS.format(1))
    take(lake, landing / "a")
    (landing / "a" / "2.csv").write_text(ROWS.format(2))
    clock.observe()
    clock.restart()  # right before it would have told
    assert [clock.observe(), clock.observe()] == [None, {"a": 1}]
    clock.restart()  # right after: the event may be lost
    assert [clock.observe(), clock.observe()] == [None, {"a": 1}]
    take(lake, landing / "a")
    clock.restart()
    assert [clock.observe(after_s) for after_s in (5, 5, AGAIN_S)] == [None] * 3
    shutil.rmtree(lake.uri)  # the lake decides, and it has nothing now
    assert [clock.observe(), clock.observe()] == [None, {"a": 2}]


def test_a_growing_file_is_left_to_its_writer_for_a_while(lake, landing):
    clock = Clock(landing, lake)
    file = landing / "a" / "1.csv"
    told = []
    for step in range(int(GROWING_S) // 5 + 2):
        file.write_text(ROWS.format(1) + "3,4\n" * step)
        told.append(clock.observe())
    assert told[: int(GROWING_S) // 5] == [None] * (int(GROWING_S) // 5) and {"a": 1} in told
    clock.restart()
    file.write_text(ROWS.format(1))
    clock.observe()
    file.write_text(ROWS.format(5) + "9,9\n")
    assert [clock.observe(), clock.observe()] == [None, {"a": 1}]


def test_what_no_run_ingests_is_told_again_ever_more_seldom(lake, landing):
    clock = Clock(landing, lake)
    (landing / "a" / "1.parquet").write_bytes(b"PAR1 broken PAR1")
    clock.observe()
    told = [clock.time_s for _ in range(2 * 3600 // 5) if clock.observe()]
    pauses = [round(later - earlier) for earlier, later in pairwise(told)]
    assert pauses == [300, 600, 1200, 2400]
    (landing / "b" / "1.csv").write_text(ROWS.format(1))  # another folder does not wait for it
    assert [clock.observe(), clock.observe()] == [None, {"a": 1, "b": 1}]


def test_what_comes_while_a_run_begins_is_left_to_it(lake, landing):
    clock = Clock(landing, lake)
    (landing / "a" / "1.csv").write_text(ROWS.format(1))
    assert [clock.observe(), clock.observe()] == [None, {"a": 1}]
    (landing / "a" / "2.csv").write_text(ROWS.format(2))
    assert [clock.observe() for _ in range(10)] == [None] * 10
    with Lease(lake, "ingest"):
        assert [clock.observe(UNDER_WAY_S), clock.observe(AGAIN_S)] == [None, None]
    assert clock.observe() == {"a": 2}


def test_a_copy_starts_at_most_one_run(lake, landing):
    clock = Clock(landing, lake)
    first = landing / "a" / "1.csv"
    first.write_text(ROWS.format(1))
    take(lake, landing / "a")
    shutil.copy(first, landing / "a" / "copy.csv")
    assert [clock.observe(), clock.observe()] == [None, {"a": 1}]
    assert take(lake, landing / "a").rows_ingested == {}
    assert [clock.observe(AGAIN_S) for _ in range(20)] == [None] * 20


def test_only_a_file_that_the_log_names_is_read(lake, landing, monkeypatch):
    read = []
    digest = FolderObserver._digest
    monkeypatch.setattr(FolderObserver, "_digest", lambda self, file: (read.append(file.name), digest(self, file))[1])
    folder = landing / "a"
    (folder / "young.csv").write_text(ROWS.format(1))
    old_file = folder / "old.csv"
    old_file.write_text(ROWS.format(2))
    os.utime(old_file, (1e9, 1e9))
    observer = FolderObserver(str(folder), IngestOptions(stream="a"))
    assert len(observer.new(lake)) == 2 and read == []
    take(lake, folder)
    for _ in range(3):
        assert observer.new(lake) == frozenset()
    assert sorted(set(read)) == sorted(read)  # each once at most
    (folder / "young.csv").write_text(ROWS.format(7))
    (marks,) = observer.new(lake)
    assert "young.csv" in marks


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        ("a", "event_column: t\nlayout: {separator: ';'}\n", "t;v\n1;2\n"),
        ("a", "recursive: true\n", ROWS.format(1)),
        ("_by_kind", "time_unit: ms\n", "event_ts,kind,v\n1,x,2\n"),
    ],
)
def test_files_are_known_by_the_options_of_their_stream_file(lake, landing, name, text, content):
    from latecomer.ingest.stream_contract import with_stream_file

    text = text.replace("layout: {separator: ';'}", "separator: ';'")
    streams = landing.parent / "streams"
    streams.mkdir()
    (streams / f"{name}.yaml").write_text(text)
    inner = landing / name / "inner" if "recursive" in text else landing / name
    inner.mkdir(exist_ok=True)
    (inner / "1.csv").write_text(content)
    clock = Clock(landing, lake, **{name: text})
    assert [clock.observe(), clock.observe()] == [None, {name: 1}]
    options = IngestOptions(by="kind") if name == "_by_kind" else IngestOptions(stream=name)
    done = ingest(lake, [str(landing / name)], options, with_stream_file=with_stream_file(streams, set()))
    assert sum(done.rows_ingested.values()) >= 1
    assert [clock.observe(after_s) for after_s in (5, AGAIN_S)] == [None, None]


def test_a_problem_is_told_with_its_sentence(lake, landing):
    (landing / "a" / "notes.txt").write_text("no rows")
    clock = Clock(landing, lake)
    assert clock.observe() is None
    assert "holds no file that can be ingested" in clock.observe()["a"]
    assert [clock.observe() for _ in range(20)] == [None] * 20
    with pytest.raises(InputError):
        FolderObserver(str(landing / "a"), IngestOptions(stream="a")).new(lake)


def test_a_delta_table_starts_a_run_per_new_version(lake, landing):
    import pyarrow as pa
    from deltalake import write_deltalake
    from latecomer.ingest.stream_contract import with_stream_file

    table, streams = landing.parent / "table", landing.parent / "streams"
    text = f"source: delta\ntable: {table}\n"
    streams.mkdir()
    (streams / "t.yaml").write_text(text)
    clock = Clock(landing, lake, t=text)
    assert clock.observe() is None and "table" in clock.observe()["t"]  # there is none yet, and the task says so
    for version in range(2):
        write_deltalake(str(table), pa.table({"event_ts": [version + 1], "v": [7]}), mode="append")
        clock.restart()
        assert [clock.observe(), clock.observe(), clock.observe()] == [None, {"t": 1}, None]
        complete = with_stream_file(streams, set())
        done = ingest(lake, {"t": []}, IngestOptions(), with_stream_file=complete)
        assert done.rows_ingested == {"t": 1}
        assert [clock.observe(after_s) for after_s in (5, AGAIN_S)] == [None, None]


def test_a_table_of_the_catalog_is_left_to_a_run(lake, landing):
    clock = Clock(landing, lake, t="source: delta\ntable: db.views\n")
    told = [clock.time_s for _ in range(720) if clock.observe()]
    pauses = [later - earlier for earlier, later in pairwise(told)]
    assert len(pauses) >= 10 and all(abs(pause - CATALOG_S) <= 5 for pause in pauses)
