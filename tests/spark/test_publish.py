"""The table of results is the current answers after every step, and its change data feed is its history."""

import shutil
import signal
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from latecomer.lake import result_changes, result_differences, result_views, results_table
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.lake.results_table import PUBLISHED_AT, publish
from latecomer.quality import conservation, publishing
from latecomer.quality.checks import CheckFailed, check
from latecomer.spark.backfill import backfill
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.join import JoinSpec
from latecomer.specs.loading import parse_query

from tests.support import events, in_gateway
from tests.support.lakes import bits, load

QUERIES = {
    "join": "streams: {l: a, r: b}\nkeys: [k]\nwindow: 2 s\nquality: {recall: 0.8, period: 10 s}",
    "aggregate": "streams: {s: a}\ngroup_by: [k, note, v]\nwindow: {size: 4 s, slide: 2 s}\n"
    "select: {n: count(), t: sum(k)}\nquality: {error: 0.05, probability: 0.9, period: 10 s}\n"
    "strategy: {name: hpm, alpha: 0.2}",
    "topk": "streams: {s: a}\nscore: v\nk: 2\nwindow: {size: 4 s, slide: 2 s}\nselect: [k]\n"
    "quality: {hit_rate: 0.9, period: 10 s}\nstrategy: {name: calibrated, revise: true}",
    "rows": "kind: theta_join\nstreams: {r: a, s: b}\nwindow: 5 s\nconditions: [r.v > s.v]\n"
    "quality: {recall: 0.9, period: 10 s}",
    "ranges": "kind: theta_join\nstreams: {r: a, s: b}\nwindow: 5 s\nconditions: [r.v > s.v]\nemit: ranges\n"
    "strategy: {slack: 1 s}",
    "membership": "streams: {x: a, y: b}\nelement: k\nwindow: 4 s\n"
    "quality: {recall: 0.9, false_positive_rate: 0.01, period: 10 s}",
}
FROM_US, TO_US = 1_699_999_000_000_000, 1_700_000_100_000_000


def query(kind):
    text = QUERIES[kind]
    return parse_query(f"name: q\n{'' if 'kind:' in text else f'kind: {kind}'}\n{text}\n")


def rows_for(kind):
    """Rows whose groups are null, NaN and both zeros at times."""
    table = events.disordered(31, rows=160)
    if kind != "aggregate":
        return table
    values = np.round(table["v"].to_numpy() / 4)
    values[::9], values[1::9], values[2::9] = np.nan, 0.0, -0.0
    mask = np.arange(len(values)) % 5 == 0
    return table.set_column(table.column_names.index("v"), "v", pa.array(values, mask=mask, from_pandas=False))


def stored(lake, spec):
    """The table, in the order of the view."""
    view = result_views.results(lake, spec)
    rows = lake.table("results", "q").read()
    assert rows[PUBLISHED_AT].null_count == 0
    keys = [(name, "ascending") for name in spec.result_keys]
    return view, rows.take(pc.sort_indices(rows, sort_keys=keys)).select(view.column_names)


def replayed(lake, spec):
    """The table by its change data feed alone."""
    answers = {}
    feed = pa.table(lake.table("results", "q").open().load_cdf(starting_version=0)).to_pylist()
    feed.sort(key=lambda row: (row["_commit_version"], row["_change_type"] not in ("delete", "update_preimage")))
    for row in feed:
        kind = row.pop("_change_type")
        key = tuple(repr(row[name]).replace("-0.0", "0.0") for name in spec.result_keys)
        if kind in ("delete", "update_preimage"):
            del answers[key]
        else:
            assert key not in answers
            answers[key] = {name: value for name, value in row.items() if not name.startswith("_commit")}
    return answers


def assert_current(lake, spec):
    view, rows = stored(lake, spec)
    [law] = conservation.of_publications(lake, spec)
    assert law["left"] == law["right"] == view.num_rows
    assert bits(rows).equals(bits(view.cast(rows.schema)))
    revisions = [(row["published_seq"], row["revision"], row["provenance"]) for row in rows.to_pylist()]
    answers = replayed(lake, spec).values()
    assert sorted(revisions) == sorted((row["published_seq"], row["revision"], row["provenance"]) for row in answers)


def steps(lake, spec):
    """Yield after every command that may change an answer."""
    yield run(lake, spec, until_seq=99, rows_per_batch=60)
    yield repair(lake, spec)
    if not isinstance(spec, JoinSpec):
        yield backfill(lake, spec, FROM_US, 1_700_000_020_000_000)
    yield run(lake, spec, flush=True)
    yield repair(lake, spec, flush=True)
    if not isinstance(spec, JoinSpec):
        yield backfill(lake, spec, FROM_US, TO_US)


class Killed(Exception):
    """Stands for the death of the process at a crash point."""


def kill_if(is_fatal):
    if is_fatal:
        raise Killed


@pytest.mark.parametrize("kind", QUERIES)
def test_the_table_is_current_after_every_step(lake, tmp_path, kind, monkeypatch):
    """Also where a publication is killed after its plan, or after its commit, and where it is made at once."""
    monkeypatch.setattr(result_differences, "ROWS_AT_ONCE", 7)
    spec = query(kind)
    load(lake, rows_for(kind), tmp_path)
    deaths = 0
    for number, _ in enumerate(steps(lake, spec)):
        with monkeypatch.context() as patched:
            fatal = ["publish:planned", "publish:results"][number % 2]
            patched.setattr(results_table.crash_points, "point", lambda name, fatal=fatal: kill_if(name == fatal))
            try:
                publish(lake, spec)
            except Killed:
                deaths += 1
        if number % 2 == 0:
            publish(lake, spec)
        assert_current(lake, spec)
        version = result_changes.newest_version(lake, "q")
        again = publish(lake, spec)
        assert (again.changed, again.version) == (0, version), "twice is once"
    assert deaths >= 2
    once = Lake(tmp_path / "once")
    shutil.copytree(lake.uri, once.uri, ignore=shutil.ignore_patterns("results", "publications"))
    monkeypatch.setattr(results_table, "BYTES_KEPT", 500)
    first = publish(once, spec)
    assert first.inserted == first.rows == lake.table("results", "q").count() > 0
    assert_current(once, spec)


def test_merges_of_more_rows_than_are_kept_in_memory_and_columns_that_come_late(lake, tmp_path, monkeypatch):
    monkeypatch.setattr(results_table, "BYTES_KEPT", 500)
    monkeypatch.setattr(result_differences, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(result_differences, "MOST_RANGES", 2)
    spec = parse_query(
        "name: q\nkind: topk\nstreams: {s: a}\nscore: v\nk: 2\nwindow: {size: 4 s, slide: 2 s}\n"
        "quality: {period: 10 s}\nstrategy: {name: sma}"
    )
    table = events.disordered(5, rows=120)
    load(lake, table.slice(0, 60).drop_columns(["note"]), tmp_path)
    run(lake, spec)
    publish(lake, spec)
    load(lake, table.slice(60), tmp_path)
    run(lake, spec, flush=True)
    publish(lake, spec)
    assert_current(lake, spec)
    repair(lake, spec, flush=True)
    assert publish(lake, spec).updated > 5
    assert_current(lake, spec)
    assert "note" in lake.table("results", "q").schema().names


def test_a_check_comes_before_and_changes_are_named(lake, tmp_path, spark):
    spec = query("aggregate")
    load(lake, rows_for("aggregate"), tmp_path)
    path = tmp_path / "q.yaml"
    path.write_text(f"name: q\nkind: aggregate\n{QUERIES['aggregate']}\n")
    run(lake, spec, until_seq=99)
    with pytest.raises(InputError, match="no check has seen; run `latecomer check`"):
        publishing.publish(lake, spec)
    assert check(lake, spec).success
    assert publishing.publish(lake, spec).inserted > 0
    version = result_changes.newest_version(lake, "q")
    run(lake, spec, flush=True)
    waits = publishing.publish(lake, spec)
    assert (waits.changed, waits.waiting, waits.version) == (0, True, version)
    assert publishing.publish(lake, replace(spec, publish_when="always")).inserted > 0
    repair(lake, spec, flush=True)
    check(lake, spec)
    failed = lake.table("checks", "q").read()
    place = failed.column_names.index("success")
    lake.table("checks", "q").append(failed.set_column(place, "success", pa.array([False])), "check", 1_000)
    with pytest.raises(CheckFailed) as refused:
        publishing.publish(lake, spec)
    assert refused.value.exit_code == 1
    done = publishing.publish(lake, spec, unchecked=True)
    assert done.updated > 0
    rows = result_changes.changes(lake, spec, version).to_pylist()
    updates = [row for row in rows if row["change"] == "update"]
    assert len(updates) >= done.updated
    for row in updates:
        assert row["why"] == "repair" and row["revision"] > row["before"]["revision"]
        assert row["before"]["n"] < row["n"]
    assert all(row["before"] is None for row in rows if row["change"] == "insert")
    with pytest.raises(InputError, match="is not a version of the results"):
        result_changes.changes(lake, spec, 1_000)
    comments = {field.name: field.metadata["comment"] for field in lake.table("results", "q").open().schema().fields}
    assert comments["t"] == "sum(s.k) over the rows of the window" and all(comments.values())
    shown = in_gateway.call(spark, "changes", path, "--lake", lake.uri, "--since", version, "--to", tmp_path / "c.csv")
    assert "update (repair)" in shown.stdout and not shown.stderr, shown
    assert (tmp_path / "c.csv").read_text().count("\n") == len(rows) + 1


def test_killed_for_good(lake, tmp_path, spark):
    spec = query("join")
    load(lake, rows_for("join"), tmp_path)
    path = tmp_path / "q.yaml"
    path.write_text(f"name: q\nkind: join\n{QUERIES['join']}\n")
    run(lake, spec)
    for point in ("publish:planned", "publish:results"):
        died = in_gateway.call(spark, "publish", path, "--lake", lake.uri, "--unchecked", crash_at=point)
        assert died.returncode == -signal.SIGKILL, died.stderr[-500:]
        publish(lake, spec)
        assert_current(lake, spec)
        run(lake, spec, flush=True)
