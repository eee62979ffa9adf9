"""Transcripts on Spark: a few rows, what must be on time, late and final; whole, in chunks, row by row. Negative ones
must fail.
"""

import itertools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake import result_views
from latecomer.lake.lake import Lake
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.loading import parse_query

from tests.support import transcripts


def landing(rows, path):
    columns = {
        "stream": [row.stream for row in rows],
        "event_ts": pa.array([row.ts for row in rows], pa.int64()),
        "seq": pa.array([row.seq for row in rows], pa.int64()),
    }
    columns |= {name: [row.payload[name] for row in rows] for name in rows[0].payload}
    pq.write_table(pa.table(columns), path)
    return str(path)


def play(spec, rows, lake, tmp_path, cuts):
    ingest(lake, [landing(rows, tmp_path / "in.parquet")], IngestOptions(by="stream"))
    for last in cuts:
        run(lake, spec, until_seq=last)
    run(lake, spec, flush=True)
    on_time = result_views.view(lake, spec, "on_time").to_pylist()
    late = result_views.view(lake, spec, "late")["seq"].to_pylist()
    repair(lake, spec, flush=True)
    return transcripts.Played(on_time, late, result_views.results(lake, spec).to_pylist())


@pytest.mark.parametrize("name", transcripts.names())
def test_transcript(spark, tmp_path, name):
    transcript, lakes = transcripts.load(name), itertools.count()
    spec, rows = parse_query(transcript["query"], "transcript"), transcripts.events(transcript)
    transcripts.verify(transcript, lambda cuts: play(spec, rows, Lake(tmp_path / f"lake{next(lakes)}"), tmp_path, cuts))
