"""Transcripts: a few rows, what must be on time, late and final; whole, in chunks, row by row. Negative ones must fail."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from latecomer.lake import views
from latecomer.lake.location import Lake
from latecomer.spark.ingest import IngestOptions, ingest
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.loading import parse_query
from ruamel.yaml import YAML

FOLDER = Path(__file__).resolve().parents[1] / "transcripts"


def landing(rows, path):
    names = sorted({name for _, _, payload in rows for name in payload})
    columns = {
        "stream": [stream for stream, _, _ in rows],
        "event_ts": pa.array([round(time * 1_000_000) for _, time, _ in rows], pa.int64()),
        "seq": pa.array(range(len(rows)), pa.int64()),
    }
    columns |= {name: [payload.get(name) for _, _, payload in rows] for name in names}
    pq.write_table(pa.table(columns), path)
    return str(path)


def same(found, wanted):
    if isinstance(found, float) and isinstance(wanted, (int, float)):
        return abs(found - wanted) < 1e-9
    return found == wanted


def compare(table, wanted):
    """Rows of the table, reduced to the columns that the transcript names, in any order."""
    left = list(wanted)
    for row in table.to_pylist():
        row = {k: int(v.timestamp()) if hasattr(v, "timestamp") else v for k, v in row.items()}
        match = next((w for w in left if all(same(row[k], v) for k, v in w.items())), None)
        assert match is not None, f"not expected: {row}"
        left.remove(match)
    assert not left, f"missing: {left}"


def play(transcript, lake, tmp_path, cuts):
    spec = parse_query(transcript["query"], "transcript")
    ingest(lake, [landing(transcript["input"], tmp_path / "in.parquet")], IngestOptions(by="stream"))
    for last in cuts:
        run(lake, spec, until_seq=last)
    run(lake, spec, flush=True)
    compare(views.view(lake, spec, "on_time"), transcript["expect"]["on_time"])
    assert sorted(set(views.view(lake, spec, "late")["seq"].to_pylist())) == transcript["expect"]["late"]
    repair(lake, spec, flush=True)
    compare(views.results(lake, spec), transcript["expect"]["results"])


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_transcript(spark, tmp_path, name):
    transcript = YAML(typ="safe").load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    n = len(transcript["input"])
    rng = np.random.default_rng(5)
    chunks = sorted(rng.choice(n - 1, min(2, n - 1), replace=False).tolist())
    for number, cuts in enumerate(([], chunks, list(range(n - 1)))):
        if transcript.get("negative"):
            with pytest.raises(AssertionError):
                play(transcript, Lake(tmp_path / f"lake{number}"), tmp_path, cuts)
            return
        play(transcript, Lake(tmp_path / f"lake{number}"), tmp_path, cuts)
