"""Lakes and landing files in stores that speak no S3: the same answers as over a local lake, and one writer."""

import json
import uuid

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from latecomer.ingest.source_file import look
from latecomer.lake import result_views
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.lake.storage import Storage
from latecomer.lake.stores import GOOGLE
from latecomer.ledger import ledger
from latecomer.spark.engine.store_settings import store_settings
from latecomer.specs.loading import load_query

from tests.stores.conftest import QUERY
from tests.support import commands, events, other_stores
from tests.support.lake_commands import one_of_two_gets_the_lease, run_commands


@pytest.fixture(scope="module", params=other_stores.KINDS)
def store(request, tmp_path_factory):
    """A running server, which the environment names; skipped, with the reason, where it cannot be had."""
    if (reason := other_stores.why_missing(request.param)) is not None:
        pytest.skip(reason)
    with (
        other_stores.running(request.param, tmp_path_factory.mktemp(request.param)) as running,
        pytest.MonkeyPatch.context() as environment,
    ):
        for name, value in running.environment.items():
            environment.setenv(name, value)
        yield running


def put(uri, write, content):
    """Write a file by a function of PyArrow, as any other program might have put it there."""
    filesystem, path = Storage(uri.rpartition("/")[0]).filesystem()
    with filesystem.open_output_stream(f"{path}/{uri.rpartition('/')[2]}") as stream:
        write(content, stream)


def test_a_store_gives_what_a_folder_gives(store, tmp_path):
    """Landing files are read in place and through staging, and every command goes on from what the last one left."""
    table, lake, local = events.disordered(7), f"{store.root}/some/lake", str(tmp_path / "lake")
    query, landing = tmp_path / "pairs.yaml", tmp_path / "landing"
    query.write_text(QUERY)
    landing.mkdir()
    pq.write_table(table.slice(0, 150), landing / "first.parquet")
    pa.csv.write_csv(table.slice(150), landing / "second.csv")
    put(f"{store.root}/landing/first.parquet", pq.write_table, table.slice(0, 150))
    put(f"{store.root}/landing/second.csv", pa.csv.write_csv, table.slice(150))
    put(f"{store.root}/landing/notes.txt", pa.csv.write_csv, table.slice(0, 1))
    put(f"{store.root}/landing/_done/x.csv", pa.csv.write_csv, table.slice(0, 1))
    other = str(tmp_path / "other")
    calls = [
        ["ingest", "--lake", lake, "--by", "stream", "--json", f"{store.root}/landing/"],
        ["run", str(query), "--lake", lake, "--until-seq", "99", "--json"],
        ["run", str(query), "--lake", lake, "--flush", "--json"],
        ["repair", str(query), "--lake", lake, "--flush", "--json"],
        ["ingest", "--lake", local, "--by", "stream", "--json", str(landing)],
        ["run", str(query), "--lake", local, "--flush", "--json"],
        ["repair", str(query), "--lake", local, "--flush", "--json"],
        ["ingest", "--lake", other, "--by", "stream", "--json", f"{store.root}/landing"],
        ["check", str(query), "--lake", lake, "--json"],
        ["publish", str(query), "--lake", lake, "--json"],
        ["sql", "select count(*) from pairs", "--lake", lake, "--json"],
        ["ingest", "--lake", lake, "--by", "stream", "--json", f"{store.root}/landing"],
        ["status", "--lake", lake, "--json"],
    ]
    outputs = run_commands(calls)
    assert outputs[0]["left_out_files"] == [f"{store.root}/landing/notes.txt"]
    assert outputs[0]["streams"] == outputs[4]["streams"] == outputs[7]["streams"] and not outputs[0]["quarantined"]
    checked, published, selected, again, status = outputs[-5:]
    assert checked["success"] and published["rows"] == selected["rows"][0][0] > 0
    assert (again["rows_read"], len(again["skipped_files"])) == (0, 2)
    (row,) = status["queries"]
    assert (row["query"], row["backlog"], row["late_pending"], row["micro_batches"]) == ("pairs", 0, 0, 2)

    spec = load_query(query)
    for name in ("results", "on_time", "corrections", "late", "ledger"):
        tables = [
            ledger.ledger(opened, spec) if name == "ledger" else result_views.view(opened, spec, name)
            for opened in (Lake(lake), Lake(local))
        ]
        assert tables[0].num_rows > 0 and tables[0].equals(tables[1]), name
    assert Lake(lake).names("events") == ["a", "b"] and Lake(lake).names("state") == ["pairs"]
    filesystem, root = Lake(lake).filesystem()
    staged = filesystem.get_file_info(pa.fs.FileSelector(f"{root}/_staging", recursive=True, allow_not_found=True))
    assert not [entry.path for entry in staged if entry.is_file], "staged files are still there"


def test_of_two_processes_one_gets_the_lease(store):
    one_of_two_gets_the_lease(f"{store.root}/raced/lake")


def test_the_doctor_lets_writers_race(store):
    lake = f"{store.root}/doctor/lake"
    for _ in range(3):
        done = commands.call("doctor", "--no-spark", "--json", "--lake", lake, timeout=100)
        subjects = {row["subject"]: row for row in json.loads(done.stdout)["findings"]}
        assert done.returncode == 0, subjects
        assert "put, listed, read and removed" in subjects["store"]["says"]
        assert "1 of 8 writers won" in subjects["one writer"]["says"]
        assert ("kind of store" in subjects) == (store.kind in ("azure", "gs"))
        filesystem, root = Lake(lake).filesystem()
        left = filesystem.get_file_info(pa.fs.FileSelector(root, recursive=True, allow_not_found=True))
        assert [entry.path for entry in left if entry.is_file or "doctor" in entry.base_name] == []


def test_a_table_that_is_dropped_leaves_nothing(store):
    lake, rows = Lake(f"{store.root}/dropped/lake"), pa.table({"v": [1, 2]})
    for number in range(2):
        for name in ("a", "b"):
            lake.table("events", name).append(rows, "ingest", number)
    lake.table("events", "b").take_back("ingest", (1).__eq__)
    assert lake.table("events", "b").read().equals(rows) and lake.table("events", "a").count() == 4
    lake.table("events", "b").drop()
    filesystem, root = lake.filesystem()
    assert filesystem.get_file_info(f"{root}/events/b").type == pa.fs.FileType.NotFound
    assert lake.names("events") == ["a"]


def test_a_table_in_a_store_is_a_source_of_a_local_lake(store, tmp_path):
    uri, lake = f"{store.root}/bronze/readings", Lake(tmp_path / "lake")
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "s.yaml").write_text(f"source: delta\ntable: '{uri}'\n")
    rows = {"event_ts": pa.array([1, 2], pa.int64()), "v": [1, 2], "p": ["a b/é%", None]}
    for _ in range(2):
        write_deltalake(
            uri, pa.table(rows), mode="append", partition_by=["p"], storage_options=Storage(uri).delta_options
        )
        done = commands.call("ingest", "--lake", lake.uri, "--streams", tmp_path / "streams", "--json", "s")
        assert done.returncode == 0 and json.loads(done.stdout)["streams"] == {"s": 2}, done.stderr[-1000:]
    stored = lake.table("events", "s").read().select(["v", "p"]).sort_by("v")
    assert stored.to_pylist() == 2 * [{"v": 1, "p": "a b/é%"}] + 2 * [{"v": 2, "p": None}]


@pytest.mark.parametrize(
    ("variables", "delta", "spark"),
    [
        ({}, {}, {"auth.type": "APPLICATION_DEFAULT"}),
        (
            {"GOOGLE_APPLICATION_CREDENTIALS": "/a.json"},
            {"GOOGLE_APPLICATION_CREDENTIALS": "/a.json"},
            {"auth.type": "APPLICATION_DEFAULT"},
        ),
        (
            {"GOOGLE_SERVICE_ACCOUNT": "/b.json"},
            {"GOOGLE_SERVICE_ACCOUNT": "/b.json"},
            {"auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE", "auth.service.account.json.keyfile": "/b.json"},
        ),
        (
            {"STORAGE_EMULATOR_HOST": "localhost:1"},
            {"GOOGLE_SERVICE_ACCOUNT_KEY": None},
            {"auth.type": "UNAUTHENTICATED", "storage.root.url": "http://localhost:1/"},
        ),
    ],
)
def test_both_readers_of_googles_store_get_the_same_login(monkeypatch, variables, delta, spark):
    """Google's store, which would check a login, is out of the tests' reach: the settings alone are compared."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    options, settings = GOOGLE.delta_options(), store_settings(GOOGLE)
    logins = {name: value for name, value in options.items() if name.startswith("GOOGLE")}
    if key := logins.get("GOOGLE_SERVICE_ACCOUNT_KEY"):
        assert json.loads(key)["gcs_base_url"] == "http://localhost:1"
        logins["GOOGLE_SERVICE_ACCOUNT_KEY"] = None
    prefix = "spark.hadoop.fs.gs."
    given = {name.removeprefix(prefix) for name in settings if name.startswith((f"{prefix}auth", f"{prefix}storage"))}
    assert logins == delta and {name: settings[prefix + name] for name in given} == spark


def test_a_place_that_is_missing_is_one_line(store, tmp_path):
    assert look(f"{store.root}/{uuid.uuid4()}") is None
    refused = commands.call("ingest", "--lake", tmp_path / "lake", "--stream", "a", f"{store.root}/no.csv", timeout=100)
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1, refused.stderr
    assert "no such file or folder" in refused.stderr
    with pytest.raises(InputError, match=f"the store cannot be used.*check the {store.part}"):
        look(store.absent)
    refused = commands.call("status", "--lake", store.absent, timeout=100)
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1, refused.stderr
    assert f"check the {store.part}" in refused.stderr
