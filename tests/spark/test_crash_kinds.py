"""Every query kind is killed between any two commits, resumed, and compared table by table."""

import shutil
import signal

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from latecomer.lake import journal, result_views
from latecomer.lake.delta import Table
from latecomer.lake.lake import Lake
from latecomer.quality import checks
from latecomer.quality.checks import CheckOutcome, check
from latecomer.spark import adapt as adapting
from latecomer.spark.adapt import adapt
from latecomer.spark.backfill import backfill
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.clauses import ENVELOPE
from latecomer.specs.loading import load_query

from tests.support import events, in_gateway
from tests.support.lakes import exported, invariants, load

QUERIES = {
    "join": "streams: {l: a, r: b}\nkeys: [k]\nwindow: 2 s\nquality: {recall: 0.8, period: 10 s}\nstrategy: mp_k_slack",
    "aggregate": "streams: {s: a}\ngroup_by: [k]\nwindow: {size: 4 s, slide: 2 s}\nselect: {n: count(), t: sum(v)}\n"
    "quality: {error: 0.05, probability: 0.9, period: 10 s}\nstrategy: {name: hpm, alpha: 0.2}",
    "topk": "streams: {s: a}\nscore: v\nk: 2\nwindow: {size: 4 s, slide: 2 s}\nselect: [k]\n"
    "quality: {hit_rate: 0.9, period: 10 s}\nstrategy: {name: adaptive_wait, initial_wait: 500 ms, windows: 3}",
    "theta_join": "streams: {r: a, s: b}\nwindow: 5 s\nconditions: [r.v > s.v]\nemit: count\n"
    "quality: {recall: 0.9, period: 10 s}",
    "membership": "streams: {x: a, y: b}\nelement: k\nwindow: 4 s\n"
    "quality: {recall: 0.9, false_positive_rate: 0.01, period: 10 s}",
}
POINTS = ["run:planned@2", *(f"run:{area}" for area in ("on_time", "late", "ledger", "state"))]
POINTS += [f"repair:{area}" for area in ("planned", "corrections", "repairs")]
"""Where a process dies: in the second micro-batch, which is its own second (``@2``) or its first, or in a repair."""
SIZE = 50


@pytest.fixture(scope="module")
def truths(tmp_path_factory, spark):
    """Per kind: query file, lakes that were ingested, run for one micro-batch, run, and repaired, and the tables of the
    last.
    """
    found = {}
    folder = tmp_path_factory.mktemp("truths")
    table = events.disordered(31, rows=100)
    raw = folder / "raw"
    load(Lake(raw), table, folder)
    for kind, text in QUERIES.items():
        path = folder / f"{kind}.yaml"
        path.write_text(f"name: q\nkind: {kind}\n{text}\n")
        spec, half, ran = load_query(path), folder / f"{kind}-half", folder / f"{kind}-ran"
        shutil.copytree(raw, half)
        run(Lake(half), spec, until_seq=SIZE - 1)
        shutil.copytree(half, ran)
        run(Lake(ran), spec, rows_per_batch=SIZE, flush=True)
        done = folder / f"{kind}-done"
        shutil.copytree(ran, done)
        repair(Lake(done), spec, flush=True)
        found[kind] = path, {"ingested": raw, "half": half, "ran": ran, "done": done}, exported(Lake(done), spec)
    return found


@pytest.mark.parametrize("kind", QUERIES)
@pytest.mark.parametrize("point", POINTS)
def test_killed_and_resumed(truths, spark, tmp_path, kind, point):
    path, lakes, expected = truths[kind]
    lake, spec = Lake(tmp_path / "lake"), load_query(path)
    before = "ran" if point.startswith("repair") else "ingested" if point.endswith("@2") else "half"
    shutil.copytree(lakes[before], lake.uri)
    command = ["run", str(path), "--rows-per-batch", str(SIZE)] if point.startswith("run") else ["repair", str(path)]
    killed = in_gateway.call(spark, *command, "--lake", lake.uri, "--flush", crash_at=point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-800:]
    assert all(law["left"] == law["right"] for law in invariants(lake, spec)), invariants(lake, spec)
    run(lake, spec, rows_per_batch=SIZE, flush=True)
    repair(lake, spec, flush=True)
    found = exported(lake, spec)
    for name, rows in expected.items():
        assert found[name].equals(rows), name


@pytest.mark.parametrize("kind", QUERIES)
def test_a_check_finds_rows_that_are_gone_or_too_many(truths, tmp_path, kind):
    path, lakes, _ = truths[kind]
    spec, done = load_query(path), lakes["done"]
    intact = " ".join(check(Lake(done), spec).failures)
    assert "expect_conservation" not in intact and "expect_complete" not in intact, intact
    for area, name in (("on_time", "q"), ("corrections", "q"), ("late", "q"), ("events", "a")):
        lake = Lake(tmp_path / area)
        shutil.copytree(done, lake.uri)
        table = lake.table(area, name).open()
        column = "seq" if area in ("late", "events") else "published_seq"
        numbers = table.to_pyarrow_table(columns=[column])[column].to_pylist()
        if not numbers:
            assert (area, kind) in (("corrections", "theta_join"), ("corrections", "membership")), "all was recalled"
            continue
        least = min(numbers)
        table.delete(f"{column} = {least}")
        found = " ".join(check(lake, spec).failures)
        assert "expect_conservation" in found, (area, found)
        assert ("expect_complete_after_repair" in found) == (area in ("on_time", "corrections")), (area, found)
    lake = Lake(tmp_path / "more")
    shutil.copytree(done, lake.uri)
    rows = lake.table("on_time", "q").read().slice(0, 1)
    write_deltalake(lake.table("on_time", "q").uri, rows, mode="append")
    assert "expect_conservation" in " ".join(check(lake, spec).failures)


def test_a_backfill_equals_the_live_run_and_twice_is_once(truths, spark, tmp_path, monkeypatch):
    """For every kind with windows: recomputing everything changes no answer, and breaks no law."""
    seen: list = []
    monkeypatch.setattr(checks, "_validate", lambda _, frames, *rest: seen.append(frames["books"]) or CheckOutcome([]))
    for kind in ("aggregate", "topk", "theta_join", "membership"):
        path, lakes, expected = truths[kind]
        lake, spec = Lake(tmp_path / kind), load_query(path)
        shutil.copytree(lakes["ran"], lake.uri)
        backfill(lake, spec, 1_000_000_000_000_000, 1_000_000_100_000_000)
        assert not lake.table("backfill", "q").exists(), "no window there: nothing to keep"
        first = backfill(lake, spec, 1_699_999_000_000_000, 1_700_000_100_000_000)
        once = result_views.results(lake, spec)
        assert first.rows > 0
        backfill(lake, spec, 1_699_999_000_000_000, 1_700_000_100_000_000)
        assert result_views.results(lake, spec).equals(once)
        payload = [name for name in once.column_names if name not in ENVELOPE]
        assert once.select(payload).equals(expected["results"].select(payload)), kind
        check(lake, spec)
        assert (seen[-1]["left"] == seen[-1]["right"]).all(), seen[-1]
        assert len(seen[-1]) == 8, "backfilled or not, the results are counted too"


@pytest.mark.parametrize("kind", ["aggregate", "topk"])
def test_what_is_learnt_meanwhile_is_not_for_a_micro_batch_that_was_planned(truths, spark, tmp_path, kind):
    """Its answers may be committed already: the rest of it goes by the same parameters, whoever finishes it."""
    path, lakes, expected = truths[kind]
    lake, spec = Lake(tmp_path / "lake"), load_query(path)
    shutil.copytree(lakes["ingested"], lake.uri)
    command = ["run", str(path), "--rows-per-batch", str(SIZE), "--lake", lake.uri, "--flush"]
    assert in_gateway.call(spark, *command, crash_at="run:on_time@2").returncode == -signal.SIGKILL
    begins, learnt = adapt(lake, spec)
    assert begins == 2 * SIZE and learnt, "the second micro-batch is planned, and will not go by them"
    run(lake, spec, rows_per_batch=SIZE, flush=True)
    repair(lake, spec, flush=True)
    found = exported(lake, spec)
    for name, rows in expected.items():
        assert found[name].equals(rows), name


def test_what_is_learnt_while_a_run_is_at_work_holds_from_where_it_says(truths, spark, tmp_path, monkeypatch):
    path, lakes, _ = truths["topk"]
    lake, spec = Lake(tmp_path / "lake"), load_query(path)
    shutil.copytree(lakes["ingested"], lake.uri)
    run(lake, spec, until_seq=19)
    learn, append = adapting._adapted, Table.append

    def learnt(*given):
        run(lake, spec, until_seq=39)
        return learn(*given)

    def appended(table, *given):
        if table.area == "parameters":  # a micro-batch that does not know of them yet
            run(lake, spec, until_seq=46)
        return append(table, *given)

    monkeypatch.setattr(adapting, "_adapted", learnt)
    monkeypatch.setattr(Table, "append", appended)
    begins, _ = adapt(lake, spec)
    monkeypatch.undo()
    assert begins == 47
    run(lake, spec, until_seq=60)
    plans = [journal.planned(lake, "q", "run", number) for number in range(4)]
    assert [plan["parameters"] for plan in plans] == [None, None, None, 0] and plans[3]["seq_from"] == begins


WITH_EVERY_COLUMN = QUERIES | {
    "topk": QUERIES["topk"].replace("select: [k]\n", ""),
    "theta_join": QUERIES["theta_join"].replace("emit: count\n", "").replace("r.v > s.v", "r.v > s.v, r.k = s.k"),
}


@pytest.mark.parametrize("kind", WITH_EVERY_COLUMN)
def test_more_rows_after_a_flush_and_a_column_that_comes_late(spark, tmp_path, kind):
    """Tables and counts do not depend on the cut, nor on whether the first half was run before the second had a new
    column.
    """
    table = events.disordered(37, rows=160)
    halves = [table.slice(0, 80), table.slice(80).append_column("z", pa.array([f"z{i}" for i in range(80)]))]
    path, found = tmp_path / "q.yaml", []
    path.write_text(f"name: q\nkind: {kind}\n{WITH_EVERY_COLUMN[kind]}\n")
    spec = load_query(path)
    for sizes in ([80, 80], [47, 80]):
        lake = Lake(tmp_path / f"lake{sizes[0]}")
        for half, size in zip(halves, sizes, strict=True):
            load(lake, half, tmp_path)
            if half is halves[0] and size < 80:  # its flush is carried out by the run after the next ingestion
                command = ["run", str(path), "--lake", lake.uri, "--rows-per-batch", str(size), "--flush"]
                killed = in_gateway.call(spark, *command, crash_at="run:on_time@2")
                assert killed.returncode == -signal.SIGKILL
                continue
            run(lake, spec, rows_per_batch=size, flush=True)
            repair(lake, spec)
        repair(lake, spec, flush=True)
        found.append(exported(lake, spec))
        counts = journal.run_state(lake, "q").counts
        assert (counts["on_time"], counts["late"]) == (
            found[-1]["on_time"].num_rows, len(set(found[-1]["late"]["seq"].to_pylist())),
        )  # fmt: skip
    for name, rows in found[0].items():
        assert rows.equals(found[1][name]), name
    if kind != "join":
        again = Lake(tmp_path / "again")
        for half in halves:
            load(again, half, tmp_path)
            run(again, spec, flush=True)
            backfill(again, spec, 1_699_999_000_000_000, 1_700_000_200_000_000)
        rows = found[0]["results"]
        payload = [name for name in rows.column_names if name not in ENVELOPE]
        assert rows.select(payload).equals(result_views.results(again, spec).select(payload))
    if getattr(spec, "select", ()) is not None:
        return
    alone = Lake(tmp_path / "alone")
    for half in halves:
        load(alone, half, tmp_path)
    run(alone, spec, flush=True)
    assert result_views.view(alone, spec, "on_time").schema == found[0]["on_time"].schema
