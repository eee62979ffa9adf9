"""`check` fails if a row is missing from any table of a query or stored twice, and passes an undamaged lake."""

import contextlib
import shutil

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.jobs.status import status
from latecomer.lake.errors import InputError
from latecomer.lake.forget import forget, stored_rows
from latecomer.lake.lake import Lake
from latecomer.quality import duplicates, promise
from latecomer.quality.checks import check
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.loading import parse_query

from tests.support import events

SELF = "streams: {l: a, r: a}\nkeys: [k]\nwindow: 2 s\nstrategy: {name: k_slack, slack: 1 us}\n"
QUERIES = {
    "join": "streams: {l: a, r: b}\nkeys: [k]\nwindow: 2 s\nquality: {recall: 0.5, period: 10 s}\n",
    "aggregate": "streams: {s: a}\nwindow: 4 s\ngroup_by: [k]\nselect: {n: count(), m: max(v)}\n"
    "quality: {error: 0.5, probability: 0.5, period: 10 s}\nstrategy: {name: k_slack, slack: 2 s}\n",
    "topk": "streams: {s: a}\nscore: v\nk: 2\nwindow: 4 s\nquality: {hit_rate: 0.1, period: 10 s}\nstrategy: none\n",
    "theta_join": "streams: {r: a, s: b}\nwindow: 4 s\nconditions: [r.v < s.v, r.k = s.k]\n"
    "strategy: {name: fast_theta_join, slack: 2 s}\n",
    "membership": "streams: {r: a, s: b}\nelement: k\nwindow: 4 s\nstrategy: {name: mcf, slack: 2 s}\n",
}
UNIQUE = "no result twice"
ACCOUNTED = "every row accounted for"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, spark):
    """Return a lake with a query of each kind, run and repaired; rows of each stream are in quarantine."""
    folder = tmp_path_factory.mktemp("whole")
    lake = Lake(folder / "lake")
    table = events.disordered(5, rows=400).drop_columns(["seq"])
    ingest(lake, [events.write(table, folder / "in.parquet")], IngestOptions(by="stream"))
    for stream in ("a", "b"):
        (folder / f"{stream}.csv").write_text("event_ts,k\nnever,1\nnor now,2\n", encoding="utf-8")
        ingest(lake, [str(folder / f"{stream}.csv")], IngestOptions(stream=stream))
    for kind in (*QUERIES, "self"):
        run(lake, spec(kind), rows_per_batch=150, flush=True)
        repair(lake, spec(kind), flush=True)
    return lake


def spec(kind):
    if kind == "self":
        return parse_query(f"name: self\nkind: join\n{SELF}")
    return parse_query(f"name: {kind}\nkind: {kind}\n{QUERIES[kind]}")


def broken(lake, kind):
    return {result["says"] for result in check(lake, spec(kind)).results if not result["success"]} & {UNIQUE, ACCOUNTED}


def damaged(whole, folder, area, kind, change):
    """Return a copy of the lake in which a table is changed; None where the table has no row."""
    name = "a" if area in ("events", "quarantine") else kind
    path = folder / "lake" / area / name
    if not (
        whole.table(area, name).exists()
        and (rows := DeltaTable(whole.table(area, name).uri).to_pyarrow_dataset().to_table()).num_rows
    ):
        return None
    shutil.copytree(whole.uri, folder / "lake")
    if area == "ledger":  # first a closed period with results
        count = "published" if "published" in rows.column_names else "on_time"
        rows = rows.take(pa.array(np.lexsort((rows["period_start"].to_numpy(), rows[count].to_numpy() == 0))))
    write_deltalake(str(path), change(rows), mode="overwrite")
    return Lake(folder / "lake")


@pytest.mark.parametrize("kind", [*QUERIES, "self"])
def test_an_undamaged_lake_keeps_all_invariants(whole, kind):
    assert broken(whole, kind) == set()


@pytest.mark.parametrize("kind", QUERIES)
@pytest.mark.parametrize("area", ["on_time", "corrections", "late", "ledger", "events", "quarantine"])
def test_a_missing_row_is_noticed(whole, tmp_path, area, kind):
    lake = damaged(whole, tmp_path, area, kind, lambda rows: rows.slice(1))
    assert lake is not None or (area, kind) == ("corrections", "membership")
    assert lake is None or ACCOUNTED in broken(lake, kind)


@pytest.mark.parametrize("kind", QUERIES)
@pytest.mark.parametrize("area", ["on_time", "corrections"])
def test_a_duplicate_row_is_noticed(whole, tmp_path, area, kind):
    lake = damaged(whole, tmp_path, area, kind, lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]))
    assert lake is None or broken(lake, kind) == {UNIQUE, ACCOUNTED}


@pytest.mark.parametrize("kind", ["join", "self", "aggregate"])
def test_a_late_row_that_is_registered_twice_is_noticed(whole, tmp_path, kind):
    lake = damaged(whole, tmp_path, "late", kind, lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]))
    assert broken(lake, kind) == {ACCOUNTED}


@pytest.mark.parametrize("kind", ["aggregate", "join"])
def test_a_repair_that_ends_during_a_check_breaks_no_invariant(lake, tmp_path, monkeypatch, kind):
    """Airflow starts both after every run."""
    table = events.disordered(5, rows=400).drop_columns(["seq"])
    ingest(lake, [events.write(table, tmp_path / "in.parquet")], IngestOptions(by="stream"))
    run(lake, spec(kind), flush=True)
    counted, repaired = duplicates.count_results, []

    def meanwhile(*arguments):
        results = counted(*arguments)
        repaired.append(repair(lake, spec(kind), flush=True).corrections)
        return results

    monkeypatch.setattr(duplicates, "count_results", meanwhile)
    assert not broken(lake, kind) and repaired[0] > 0
    monkeypatch.undo()
    assert not broken(lake, kind)


def test_a_check_of_a_query_that_is_forgotten_meanwhile_stores_nothing(lake, tmp_path, monkeypatch):
    table = events.disordered(5, rows=100).drop_columns(["seq"])
    ingest(lake, [events.write(table, tmp_path / "in.parquet")], IngestOptions(by="stream"))
    run(lake, spec("topk"), flush=True)
    judged = promise.verdicts

    def meanwhile(*arguments):
        rows = judged(*arguments)
        forget(lake, "topk")
        return rows

    monkeypatch.setattr(promise, "verdicts", meanwhile)
    with contextlib.suppress(InputError):
        check(lake, spec("topk"))
    assert stored_rows(lake, "topk") == {}


def test_the_backlog_counts_the_streams_of_the_query(lake, tmp_path):
    table = events.disordered(5, rows=300).drop_columns(["seq"])
    ingest(lake, [events.write(table, tmp_path / "in.parquet")], IngestOptions(by="stream"))
    run(lake, spec("topk"), until_seq=99)
    [row] = status(lake)["queries"]
    rows = lake.table("events", "a").read(columns=["seq"])["seq"].to_numpy()
    assert row["processed_to"] == 100 and 0 < row["backlog"] == int((rows >= 100).sum()) < 200
