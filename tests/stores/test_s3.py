"""A lake in a bucket of a real S3-compatible server: command, Spark and delta-rs answer as over a local lake."""

import gzip
import io
import json
import os
import signal
import socket
import time

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from latecomer.ingest import source_file
from latecomer.ingest.source_file import look
from latecomer.lake import result_views
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.ledger import ledger
from latecomer.specs.loading import load_query

from tests.dags.support import Project
from tests.stores.conftest import BUCKET, QUERY
from tests.support import commands, events
from tests.support.lake_commands import one_of_two_gets_the_lease, run_commands
from tests.support.ports import free_ports

LAKE = f"s3://{BUCKET}/some/lake"


def land(store, folder):
    """Write rows in three formats as objects of one folder, among objects that are no data.

    Returns
    -------
    table : pa.Table
        All rows.
    data : dict
        Contents of the objects that hold them, by name.
    """
    table = events.disordered(7)
    plain, packed = io.BytesIO(), io.BytesIO()
    pq.write_table(table.slice(0, 150), plain)
    with gzip.open(packed, "wb") as file:
        pa.csv.write_csv(table.slice(200, 50), file)
    odd = io.BytesIO()  # copied: Spark reads no file of such a name in place
    pq.write_table(table.slice(150, 50), odd)
    nothing = b"event_ts,stream\n1,a\n"
    data = {"10:30.parquet": odd.getvalue(), "first.parquet": plain.getvalue(), "second.csv.gz": packed.getvalue()}
    for name in (".hidden.csv", "notes.txt", "old/first.csv", "_done/x.csv"):
        data[name] = nothing
    for name, content in data.items():
        store.put_object(BUCKET, f"{folder}/{name}", io.BytesIO(content), len(content))
    return table, {name: data[name] for name in ("10:30.parquet", "first.parquet", "second.csv.gz")}


def test_a_bucket_gives_what_a_folder_gives(store, tmp_path):
    table, data = land(store, "landing/_by_stream")
    (tmp_path / "landing").mkdir()
    for name, content in data.items():
        (tmp_path / "landing" / name).write_bytes(content)
    pa.csv.write_csv(table.slice(250), tmp_path / "third.csv")  # staged in the lake, for the executors to read
    place = f"s3://{BUCKET}/landing/_by_stream"
    landing = ["--by", "stream", "--json", str(tmp_path / "third.csv")]
    query = tmp_path / "pairs.yaml"
    query.write_text(QUERY)
    local = str(tmp_path / "lake")
    calls = [
        ["ingest", "--lake", LAKE, *landing, f"s3a{place[2:]}/"],
        ["run", str(query), "--lake", LAKE, "--until-seq", "99", "--json"],  # and on from the state in the bucket
        ["run", str(query), "--lake", LAKE, "--flush", "--json"],
        ["publish", str(query), "--lake", LAKE, "--unchecked", "--json"],
        ["repair", str(query), "--lake", LAKE, "--flush", "--json"],
        ["ingest", "--lake", local, *landing, str(tmp_path / "landing")],
        ["run", str(query), "--lake", local, "--flush", "--json"],
        ["repair", str(query), "--lake", local, "--flush", "--json"],
        ["check", str(query), "--lake", LAKE, "--json"],
        ["publish", str(query), "--lake", LAKE, "--json"],
        ["changes", str(query), "--lake", LAKE, "--since", "1", "--json"],
        ["sql", "select count(*), max(published_at) from pairs", "--lake", LAKE, "--json"],
        ["export", str(query), "--lake", LAKE, "--table", "results", "--to", str(tmp_path / "out.parquet"), "--json"],
        ["status", "--lake", LAKE, "--json"],
    ]
    outputs = run_commands(calls)
    assert [output["seq_to"] for output in outputs if "seq_to" in output] == [300, 100, 300, 300, 300]
    assert outputs[0]["streams"] == outputs[5]["streams"] and outputs[0]["quarantined"] == 0
    assert outputs[0]["left_out_files"] == [f"{place}/notes.txt", f"{place}/old"]

    spec = load_query(query)
    for name in ("results", "on_time", "corrections", "late", "ledger"):
        tables = [
            ledger.ledger(lake, spec) if name == "ledger" else result_views.view(lake, spec, name)
            for lake in (Lake(LAKE), Lake(local))
        ]
        assert tables[0].num_rows > 0 and tables[0].equals(tables[1]), name
    assert Lake(LAKE).names("events") == ["a", "b"] and Lake(LAKE).names("state") == ["pairs"]
    left = [item.object_name for item in store.list_objects(BUCKET, "some/lake/_staging/", recursive=True)]
    assert [name for name in left if not name.endswith("/")] == [], "staged files are still there"

    checked, published, changes, selected, exported, status = outputs[-6:]
    assert checked["success"]
    assert outputs[3]["inserted"] + published["inserted"] == published["rows"] == exported["rows"]
    assert selected["rows"][0][0] == exported["rows"]
    assert sum(change["rows"] for change in changes["changes"]) == published["inserted"] + published["updated"] > 0
    assert (
        pq.read_table(tmp_path / "out.parquet").num_rows
        == exported["rows"]
        == result_views.results(Lake(local), spec).num_rows
    )
    (row,) = status["queries"]
    assert (row["query"], row["backlog"], row["late_pending"], row["micro_batches"]) == ("pairs", 0, 0, 2)


def test_publish_killed_at_each_crash_point_is_finished_by_the_next(store, tmp_path):
    rows, query, lake = tmp_path / "rows.parquet", tmp_path / "pairs.yaml", f"s3://{BUCKET}/killed/lake"
    events.write(events.disordered(7), rows)
    query.write_text(QUERY)
    some = ["publish", query, "--lake", lake, "--unchecked"]

    def killed_and_finished():
        """Kill two publications, before and after the commit of the results, and finish with a third."""
        before = Lake(lake).table("results", "pairs").count()
        assert commands.call(*some, crash_at="publish:planned").returncode == -signal.SIGKILL
        assert Lake(lake).table("results", "pairs").count() == before
        assert commands.call(*some, crash_at="publish:results").returncode == -signal.SIGKILL
        written = Lake(lake).table("results", "pairs")
        assert written.count() > before
        version = written.open().version()
        done = commands.call(*some, "--json")
        published = json.loads(done.stdout)
        assert (published["inserted"], published["updated"], published["version"]) == (0, 0, version), done.stderr
        return written.read()

    run_commands(
        [
            ["ingest", "--lake", lake, "--by", "stream", "--json", str(rows)],
            ["run", str(query), "--lake", lake, "--until-seq", "149", "--json"],
        ]
    )
    first = killed_and_finished()
    run_commands([[command, str(query), "--lake", lake, "--flush", "--json"] for command in ("run", "repair")])
    last = killed_and_finished()
    view = result_views.results(Lake(lake), load_query(query))
    keys = [("left_seq", "ascending"), ("right_seq", "ascending")]
    assert first.num_rows < last.num_rows == view.num_rows
    assert last.take(pc.sort_indices(last, sort_keys=keys)).select(view.column_names).equals(view.cast(view.schema))


def test_an_object_is_read_again_only_if_it_was_written_to(store, monkeypatch):
    store.put_object(BUCKET, "looks/a.csv", io.BytesIO(b"event_ts\n1\n"), 11)
    first = look(f"s3://{BUCKET}/looks/a.csv")
    assert first.stat_fingerprint() is None, "its time is that of this second"
    later = time.time() + 100
    monkeypatch.setattr(source_file.time, "time", lambda: later)
    known = first.stat_fingerprint()
    assert known is not None and look(f"s3://{BUCKET}/looks/a.csv").stat_fingerprint() == known
    time.sleep(1.1)  # the store's clock has ticks of a second
    store.put_object(BUCKET, "looks/a.csv", io.BytesIO(b"event_ts\n2\n"), 11)
    (again,) = look(f"s3://{BUCKET}/looks").files
    assert again.stat_fingerprint() != known and first.stamp() == again.stamp() != (0, *first.listed)


@pytest.mark.parametrize(
    "place, said",
    [
        (f"s3://{BUCKET}/no/such.csv", "no such file or folder"),
        ("s3://no-such-bucket/a.csv", "there is no bucket no-such-bucket"),
        (f"s3://{BUCKET}/a//b.csv", "holds an empty name, between two slashes"),
        ("file://", "names no file and no folder"),
        ("s3:///a.csv", "has no bucket name"),
        ("ftp://bucket/a.csv", "the scheme 'ftp' is not supported"),
    ],
)
def test_a_missing_place_is_one_line(store, tmp_path, place, said):
    done = commands.call("ingest", "--lake", str(tmp_path / "lake"), "--stream", "a", place, timeout=100)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_a_landing_folder_in_a_bucket_is_watched(store, tmp_path, monkeypatch):
    project = Project(tmp_path / "project", watched=f"s3://{BUCKET}/watched").write(("near",)).migrate()
    monkeypatch.setenv("LATECOMER_LANDING_BY", "stream")
    (project.folder / "streams").mkdir()
    (project.folder / "streams" / "_by_stream.yaml").write_text("recursive: true\n")
    ((_, state, tasks),), said = project.run_dags("latecomer_ingest")
    assert state == "success" and tasks.pop("every_folder") == "success" and set(tasks.values()) == {"skipped"}, said
    table, _ = land(store, "watched/_by_stream")
    runs, said = project.run_dags("latecomer_ingest", "latecomer_ingest")
    assert [tasks["ingest__by_stream"] for _, _, tasks in runs] == ["success", "skipped"], said[-3000:]
    assert {tasks[name] for _, _, tasks in runs for name in ("together", "ingest_a", "ingest_b")} == {"skipped"}
    expected = table.slice(0, 250).filter(pc.field("stream") == "a")  # into a local lake, whose Spark knows no bucket
    kept = Lake(str(project.lake)).table("events", "a").read()
    of_old = kept.filter(pc.field("source_seq").is_null())  # the file in a folder has no such column
    kept = kept.filter(pc.field("source_seq").is_valid())
    assert (kept.num_rows, of_old.num_rows) == (expected.num_rows, 1)
    assert dict(zip(kept["source_seq"].to_pylist(), kept["v"].to_pylist(), strict=True)) == dict(
        zip(expected["seq"].to_pylist(), expected["v"].to_pylist(), strict=True)
    )


def test_of_two_processes_one_gets_the_lease(store):
    one_of_two_gets_the_lease(LAKE)


def test_commits_are_taken_back(store):
    lake, first = Lake(f"s3://{BUCKET}/taken/back"), pa.table({"v": [1, 2]})
    lake.table("events", "a").append(first, "ingest", 0)
    for stream in ("a", "b"):
        lake.table("events", stream).append(pa.table({"v": [3], "oops": ["x"]}), "ingest", 1)
    for _ in range(2):  # as one that is killed in between does it
        for stream in ("a", "b"):
            lake.table("events", stream).take_back("ingest", (1).__eq__)
    assert lake.names("events") == ["a"] and lake.table("events", "a").read().equals(first)
    lake.table("events", "b").append(first, "ingest", 2)
    assert lake.table("events", "b").read().equals(first)


def test_a_query_is_forgotten(store):
    lake, rows = Lake(f"s3://{BUCKET}/forgotten"), pa.table({"v": [1, 2]})
    for query in ("q", "other"):
        for area in ("on_time", "late", "journal", "state", "events"):
            lake.table(area, query).append(rows, "run", 0)
    refused = commands.call("forget", "q", "--lake", lake.uri, timeout=100)
    assert refused.returncode == 2 and "on_time (2 rows)" in refused.stderr, refused.stderr
    killed = commands.call("forget", "q", "--lake", lake.uri, "--yes", crash_at="drop:log@2", timeout=100)
    assert killed.returncode < 0 and lake.names("forgetting") == ["q"], killed.stderr
    done = commands.call("forget", "q", "--lake", lake.uri, "--yes", timeout=100)
    assert done.returncode == 0, done.stderr
    names = [item.object_name for item in store.list_objects(BUCKET, "forgotten/", recursive=True)]
    assert not [name for name in names if "/q/" in name and "/events/" not in name], names
    for area in ("on_time", "late", "journal", "state"):
        assert lake.names(area) == ["other"]
    assert lake.names("events") == ["other", "q"]


def test_a_held_lake_refuses_the_command(store, tmp_path):
    landing = events.write(events.disordered(2, rows=20), tmp_path / "in.parquet")
    with Lease(Lake(LAKE + "2"), "ingest"):
        refused = commands.call("ingest", "--lake", LAKE + "2", "--by", "stream", landing, timeout=100)
    assert refused.returncode == 3, refused.stderr[-2000:]
    assert f"held by {socket.gethostname()}:{os.getpid()}" in refused.stderr


def test_an_unusable_store_is_one_line(store, monkeypatch):
    with pytest.raises(InputError, match=r"s3://no-such-bucket/lake.*check the bucket"):
        Lake("s3://no-such-bucket/lake").table("events", "a").exists()
    refused = commands.call("status", "--lake", "s3://no-such-bucket/lake", timeout=100)
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1, refused.stderr
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(InputError, match="AWS_SECRET_ACCESS_KEY"):
        Lake(LAKE).table("events", "a").exists()


def test_the_doctor_examines_a_store(store, monkeypatch):
    def examined(lake):
        done = commands.call("doctor", "--no-spark", "--json", "--lake", lake, timeout=100)
        return done.returncode, {row["subject"]: row for row in json.loads(done.stdout)["findings"]}

    def objects():
        names = (item.object_name for item in store.list_objects(BUCKET, recursive=True))
        return {name for name in names if not name.endswith("/")}

    before = objects()
    code, subjects = examined(LAKE + "-of-the-doctor")
    assert code == 0, subjects
    assert "put, listed, read and removed" in subjects["object store"]["says"]
    assert "1 of 8 writers won" in subjects["one writer"]["says"]
    assert objects() == before
    code, subjects = examined("s3://no-such-bucket/lake")
    assert code == 2 and "has no bucket no-such-bucket" in subjects["object store"]["says"]
    with monkeypatch.context() as environment:
        environment.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        code, subjects = examined(LAKE)
        assert code == 2 and "AWS_SECRET_ACCESS_KEY" in subjects["object store"]["remedy"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    code, subjects = examined(LAKE)
    assert code == 2 and "does not answer" in subjects["object store"]["says"] and "contents" not in subjects
