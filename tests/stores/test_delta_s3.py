"""A Delta table in a bucket as the source of a stream of a local lake, whose Spark knows of no store."""

import json

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from latecomer.lake.lake import Lake
from latecomer.lake.storage import Storage

from tests.stores.conftest import BUCKET
from tests.support import commands

URI = f"s3://{BUCKET}/bronze/some readings"


def test_versions_of_a_table_in_a_bucket(store, tmp_path):
    """Each call is a process of its own: a JVM takes the store's login from the environment that it was started in."""
    options, lake = Storage(URI).delta_options, Lake(tmp_path / "lake")
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "s.yaml").write_text(f"source: delta\ntable: '{URI}'\n")

    def append(first, part):
        rows = {"event_ts": pa.array([first, first + 1], pa.int64()), "v": [first, first + 1], "p": [part, None]}
        write_deltalake(URI, pa.table(rows), mode="append", partition_by=["p"], storage_options=options)

    def call():
        done = commands.call("ingest", "--lake", lake.uri, "--streams", tmp_path / "streams", "--json", "s")
        assert done.returncode == 0, done.stderr[-1000:]
        return json.loads(done.stdout)

    append(0, "a b/é%")
    assert call()["streams"] == {"s": 2}
    append(2, "c")
    DeltaTable(URI, storage_options=options).optimize.compact()
    assert call()["streams"] == {"s": 2}
    assert call()["rows_read"] == 0
    rows = lake.table("events", "s").read().sort_by("v")
    assert list(zip(rows["v"].to_pylist(), rows["p"].to_pylist(), strict=True)) == [
        (0, "a b/é%"),
        (1, None),
        (2, "c"),
        (3, None),
    ]
