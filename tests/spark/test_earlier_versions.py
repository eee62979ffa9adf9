"""A lake that an earlier version of the program left half way is continued, to the bit as that version would have.

``fixtures/lake_0_1_0`` was made by the code before its modules moved into rooms. It holds a lake in which nine queries
had run over the first part of the events, late rows had been repaired and two queries adapted; the second part of the
events; and every table of each query as that code exported it after it had gone on to the end.
"""

import shutil
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake.lake import Lake
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.loading import load_query

from tests.support.lakes import exported, same

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "lake_0_1_0"
QUERIES = sorted(path.stem for path in (FIXTURE / "queries").glob("*.yaml"))


@pytest.fixture(scope="module")
def earlier(tmp_path_factory, spark):
    """The lake of the earlier version, with the second part of the events ingested by this one."""
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(FIXTURE / "lake.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    lake = Lake(folder / "lake")
    shutil.copy(FIXTURE / "second.parquet", folder)
    ingest(lake, [str(folder / "second.parquet")], IngestOptions(by="stream"))
    return lake


@pytest.mark.parametrize("query", QUERIES)
def test_a_lake_of_an_earlier_version_is_continued_to_the_bit(earlier, query):
    spec = load_query(FIXTURE / "queries" / f"{query}.yaml")
    run(earlier, spec, rows_per_batch=250, flush=True)
    repair(earlier, spec, flush=True)
    tables = ("results", "on_time", "corrections", "late", "ledger")
    before = {table: pq.read_table(FIXTURE / "expected" / f"{query}.{table}.parquet") for table in tables}
    assert before["results"].num_rows and before["late"].num_rows
    same(before, exported(earlier, spec), query)
