"""The lake's small tables without a JVM: two writers at once, housekeeping, exports."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from latecomer.lake import delta, journal, lease, maintenance, result_views
from latecomer.lake.errors import InputError, LeaseHeld, LeaseLost
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease


def test_a_plan_is_not_taken_from_one_who_took_over(tmp_path) -> None:
    """Nor one that was taken back kept from whoever plans anew."""
    lake = Lake(tmp_path / "lake")
    journal.plan(lake, "q", "run", 0, {"seq_to": 2})
    with pytest.raises(LeaseLost, match="run-q"):
        journal.plan(lake, "q", "run", 0, {"seq_to": 1})
    assert journal.planned(lake, "q", "run", 0) == {"seq_to": 2}
    journal.take_back(lake, "q", "run", 0)
    assert journal.planned(lake, "q", "run", 0) is None
    journal.plan(lake, "q", "run", 0, {"seq_to": 1})
    assert journal.planned(lake, "q", "run", 0) == {"seq_to": 1}


def test_run_and_repair_plan_at_once(tmp_path) -> None:
    """Both hold a lease of their own and may work side by side: neither refuses the other's commit, and every plan is
    kept.
    """
    lake, failed = Lake(tmp_path / "lake"), []

    def plans(writer: str) -> None:
        try:
            for number in range(25):
                journal.plan(lake, "q", writer, number, {"of": writer, "number": number})
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=plans, args=(writer,)) for writer in ("run", "repair")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for writer in ("run", "repair"):
        known = [journal.planned(lake, "q", writer, number) for number in range(26)]
        assert known == [*({"of": writer, "number": number} for number in range(25)), None]


@pytest.mark.slow
@pytest.mark.parametrize("commits", [1, 2, 7])
def test_a_table_that_is_replaced_is_vacuumed_every_so_many_versions(tmp_path, commits) -> None:
    """However many commits a caller makes before it tends the table; files of the last hour stay, older ones go."""
    lake, tended = Lake(tmp_path / "lake"), []
    for number in range(140):
        lake.table("state", "q").append(pa.table({"n": [number]}), "run", number)
        if number % commits == commits - 1:
            tended += maintenance.compact_and_vacuum([lake.table("state", "q")], commits)
    assert len(tended) == 139 // maintenance.MANY_FILES
    table = lake.table("state", "q").open()
    assert table is not None and table.metadata().configuration == delta.REPLACED
    assert lake.table("state", "q").read().to_pylist() == [{"n": 139}]
    assert lake.table("state", "q").last_version("run") == 139


def test_many_files_become_few_and_every_commit_is_remembered(tmp_path) -> None:
    lake = Lake(tmp_path / "lake")
    write_deltalake(
        lake.table("journal", "q").uri, pa.table({"n": pa.array([], pa.int64())})
    )  # as an earlier version made it
    for number in range(maintenance.MANY_FILES):
        lake.table("journal", "q").append(pa.table({"n": [number]}), "run", number)
    assert maintenance.compact_and_vacuum([lake.table("journal", "q"), lake.table("late", "q")])
    table = lake.table("journal", "q").open()
    assert table is not None and len(table.file_uris()) == 1 and table.metadata().configuration == delta.APPENDED
    assert sorted(lake.table("journal", "q").read()["n"].to_pylist()) == list(range(maintenance.MANY_FILES))
    assert not lake.table("journal", "q").append(pa.table({"n": [0]}), "run", maintenance.MANY_FILES - 1)


def test_a_lease_that_cannot_be_given_back_hides_nothing(tmp_path, monkeypatch) -> None:
    """The store hiccups when the work is done: it stays done, and what the work raised is what is seen."""
    lake = Lake(tmp_path / "lake")
    hiccup = OSError("the store does not answer")

    def refuse(self):  # type: ignore[no-untyped-def]
        raise hiccup

    with Lease(lake, "run-q"):
        monkeypatch.setattr(Lease, "_open", refuse)
    monkeypatch.undo()
    with pytest.raises(KeyError, match="of the work"), Lease(lake, "run-r"):
        monkeypatch.setattr(Lease, "_open", refuse)
        raise KeyError("of the work")


def elsewhere(monkeypatch) -> None:
    """As if the next lease were asked for in another container of the same host name."""
    monkeypatch.setattr(lease, "_place", lambda: "another process namespace")
    monkeypatch.setattr(lease, "_me", lambda: "host:1")


def test_the_holder_in_another_container_of_the_same_name_is_alive(tmp_path, monkeypatch) -> None:
    lake = Lake(tmp_path / "lake")
    with Lease(lake, "run-q"):
        elsewhere(monkeypatch)
        with pytest.raises(LeaseHeld), Lease(lake, "run-q"):
            pass
        monkeypatch.undo()


@pytest.mark.parametrize("alive", [True, False])
def test_a_holder_whose_clock_is_behind_is_watched(tmp_path, monkeypatch, alive) -> None:
    lake = Lake(tmp_path / "lake")
    holder = Lease(lake, "run-q")
    clock = lease.time.time
    monkeypatch.setattr(lease, "RENEW_S", 0.1 if alive else 60)
    monkeypatch.setattr(lease, "WATCH_S", 1)
    monkeypatch.setattr(lease.time, "time", lambda: clock() - (300 if threading.current_thread() is not watcher else 0))
    watcher = threading.Thread()
    with holder:
        outcome: list[object] = []

        def take() -> None:
            row = lease._row(holder._open())
            assert row is not None
            outcome.append(Lease(lake, "run-q")._is_dead(row | {"place": "elsewhere"}))

        watcher = threading.Thread(target=take)
        watcher.start()
        watcher.join()
    assert outcome == [not alive]


def test_a_holder_that_was_asleep_finds_that_it_was_replaced(tmp_path, monkeypatch) -> None:
    lake = Lake(tmp_path / "lake")
    with Lease(lake, "run-q") as first:
        first.confirm()
        row = lease._row(first._open())
        assert row is not None
        rows = pa.Table.from_pylist([row | {"holder": "host:1", "acquired": 0.0}])
        write_deltalake(lake.table("lease", "run-q").uri, rows, mode="overwrite")
        first.confirm()  # it was heard from just now
        monkeypatch.setattr(lease, "_clocks", lambda: (1e12, 1e12))
        with pytest.raises(LeaseLost, match="was taken over by host:1"):
            first.confirm()
    after = lease._row(first._open())
    assert after is not None and after["holder"] == "host:1", "what is not ours is not given back"


def test_a_holder_that_loses_the_race_to_renew_finds_it_out(tmp_path, monkeypatch) -> None:
    lake, late = Lake(tmp_path / "lake"), threading.Event()
    monkeypatch.setattr(lease, "RENEW_S", 0.1)

    def refused(table, holder) -> bool:
        row = lease._row(first._open())
        assert row is not None
        rows = pa.Table.from_pylist([row | {"holder": "host:1", "acquired": 0.0}])
        write_deltalake(lake.table("lease", "run-q").uri, rows, mode="overwrite")
        monkeypatch.setattr(lease, "RENEW_S", 3600)
        late.set()
        return False

    with Lease(lake, "run-q") as first:
        monkeypatch.setattr(first, "_commit", refused)
        assert late.wait(30) and first._renewer is not None
        first._renewer.join(5)
        with pytest.raises(LeaseLost, match="was taken over by host:1"):
            first.confirm()


def test_a_killed_holder_whose_parent_took_no_notice_is_gone(tmp_path) -> None:
    lake = Lake(tmp_path / "lake")
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        row = {"place": lease._place(), "pid": other.pid, "started": lease._started(other.pid)}
        assert not Lease(lake, "run-q")._is_dead(row)
        other.kill()
        deadline = time.monotonic() + 30
        while not Lease(lake, "run-q")._is_dead(row):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        other.kill()
        other.communicate()


def test_tables_of_earlier_versions_get_the_properties_of_new_ones(tmp_path) -> None:
    lake = Lake(tmp_path / "lake")
    for area in ("state", "late"):
        write_deltalake(lake.table(area, "q").uri, pa.table({"n": [0]}))
        for number in range(1, maintenance.MANY_FILES + 1):
            lake.table(area, "q").append(pa.table({"n": [number]}), "run", number)
            maintenance.compact_and_vacuum([lake.table(area, "q")])
        table = lake.table(area, "q").open()
        assert table is not None and table.metadata().configuration == delta.properties(area)
        assert lake.table(area, "q").last_version("run") == maintenance.MANY_FILES


def test_a_view_knows_nothing_of_the_ledger_whose_tables_differ_by_kind(tmp_path, monkeypatch) -> None:
    lake, spec = Lake(tmp_path / "lake"), SimpleNamespace(name="q", kind="aggregate")
    lake.table("ledger", "q").append(pa.table({"period_start": [1], "emission": [0]}), "run", 0)
    monkeypatch.setattr(journal, "state_for", lambda lake, spec: None)
    with pytest.raises(KeyError, match="ledger"):
        result_views.view(lake, spec, "ledger")  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_exported_file_can_be_read_by_others(tmp_path, suffix) -> None:
    """Its mode is what the user's umask says, and nothing else is left in the folder."""
    before = os.umask(0o022)
    try:
        result_views.write_file(pa.table({"a": [1]}), tmp_path / f"out{suffix}")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / f"out{suffix}").stat().st_mode) == 0o644
    assert [path.name for path in tmp_path.iterdir()] == [f"out{suffix}"]


def test_a_table_is_opened_from_a_checkpoint_of_the_last_ten_commits(tmp_path) -> None:
    lake = Lake(tmp_path / "lake")
    for number in range(25):
        lake.table("state", "q").append(pa.table({"n": [number]}), "run", number)
        with Lease(lake, "run-q"):
            pass
    for area, name in (("state", "q"), ("lease", "run-q")):
        log = tmp_path / "lake" / area / name / "_delta_log"
        checkpoints = sorted(int(path.name[:20]) for path in log.glob("*.checkpoint.parquet"))
        last = max(int(path.stem) for path in log.glob("*.json"))
        assert checkpoints and last - checkpoints[-1] < delta.CHECKPOINT_EVERY
    assert lake.table("state", "q").last_version("run") == 24


def test_no_file_outlives_its_last_version(tmp_path, monkeypatch) -> None:
    """Also those that a checkpoint has forgotten when the table is tended."""
    for key in ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration"):
        monkeypatch.setitem(delta.REPLACED, key, "interval 1 seconds")
    lake, versions = Lake(tmp_path / "lake"), 2 * maintenance.MANY_FILES
    for number in range(versions - 2):
        lake.table("state", "q").append(pa.table({"n": [number]}), "run", number)
    time.sleep(1.5)
    for number in range(versions - 2, versions + 1):
        lake.table("state", "q").append(pa.table({"n": [number]}), "run", number)
    assert maintenance.compact_and_vacuum([lake.table("state", "q")])
    assert len(list((tmp_path / "lake" / "state" / "q").glob("*.parquet"))) <= 4
    assert lake.table("state", "q").read().to_pylist() == [{"n": versions}]


def test_a_writer_that_was_asleep_between_looking_and_writing_adds_nothing(tmp_path, monkeypatch) -> None:
    """The process that took over has made the same commit by then; or made the table."""
    lake, rows = Lake(tmp_path / "lake"), pa.table({"x": [1, 2]})
    for number, stored in ((0, 2), (1, 4)):
        real = delta.write_deltalake

        def asleep(*given, real=real, number=number, **named):
            monkeypatch.setattr(delta, "write_deltalake", real)
            assert lake.table("late", "q").append(rows, "run", number)
            return real(*given, **named)

        monkeypatch.setattr(delta, "write_deltalake", asleep)
        with pytest.raises((DeltaError, OSError)):
            lake.table("late", "q").append(rows, "run", number)
        assert lake.table("late", "q").read().num_rows == stored
        assert not lake.table("late", "q").append(rows, "run", number)


@pytest.mark.parametrize(("error", "attempts"), [(OSError("503 Service Unavailable"), 1), (None, 5)])
def test_a_store_that_fails_is_asked_for_the_lease_once_where_that_took_long(tmp_path, monkeypatch, error, attempts):
    """A commit that another process has won is tried again, however long it took."""
    attempted = []

    def refuse(*_):
        attempted.append(1)
        raise error or CommitFailedError("another was first")

    monkeypatch.setattr(lease, "GIVE_UP_S", -1.0)
    monkeypatch.setattr(delta.Table, "commit", refuse)
    with pytest.raises(InputError if error else LeaseHeld), lease.Lease(Lake(tmp_path / "lake"), "ingest"):
        pass
    assert len(attempted) == attempts


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, "us-east-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-3"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-1"),
    ],
)
def test_the_region_of_a_bucket_has_two_usual_names(monkeypatch, known, expected) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    assert Lake("s3://bucket/lake").delta_options["AWS_REGION"] == expected
