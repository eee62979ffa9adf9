"""An object store that is slow, fails, loses its answers, or vanishes: the answers stay the same.

The faults come from a proxy before a real server (:mod:`tests.support.fault_proxy`).
"""

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from latecomer.lake import result_views
from latecomer.lake.lake import Lake
from latecomer.ledger import ledger
from latecomer.specs.loading import load_query

from tests.stores.conftest import BUCKET, QUERY
from tests.support import commands, events, fault_proxy

TABLES = ("results", "on_time", "corrections", "late", "ledger")
ATTEMPTS = 12
"""Calls of a command over a bad line: delta-rs does not ask again for an answer that breaks off, so a call may end."""


# appends four rows under a lease by delta-rs alone, as a command does; called again, it goes on
APPENDER = """
import sys
import pyarrow as pa
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
lake = Lake(sys.argv[1])
with Lease(lake, "ingest") as lease:
    for number in range(4):
        lake.table("events", "a").append(pa.table({"v": [number]}), "ingest", number)
        lease.confirm()
"""


@pytest.fixture
def proxy(server, store):
    """A proxy before the server; this process goes on to talk to the server itself."""
    with fault_proxy.before(server.port) as running:
        yield running


def every(**periods):
    """Return a rule: each fault happens to every so many requests, where two meet the first one named."""
    faults = {name: 0.3 if name == "slow" else name for name in periods}

    def decide(request):
        return next((faults[name] for name, period in periods.items() if request.number % period == 0), None)

    return decide


def is_commit(request):
    return request.method == "PUT" and "/_delta_log/" in request.path and request.path.endswith(".json")


@pytest.mark.parametrize(
    "periods",
    [{"slow": 3}, {"unavailable": 3}, {"refused": 4}, {"cut": 29}, {"unavailable": 5, "cut": 31, "slow": 9}],
    ids=lambda periods: "-".join(periods),
)
def test_requests_that_are_slow_or_fail_are_sent_again(proxy, periods):
    lake = Lake(f"s3://{BUCKET}/faults/{'-'.join(periods)}")
    proxy.decide = every(**periods)
    append(proxy, lake)
    assert all(proxy.faults[name] for name in periods), proxy.faults
    assert lake.names("events") == ["a"]


def append(proxy, lake):
    """Append four rows over the proxy, and assert that the table has each once."""
    command = [sys.executable, "-c", APPENDER, lake.uri]
    environment = os.environ | {"AWS_ENDPOINT_URL": proxy.endpoint}
    for _ in range(3 * ATTEMPTS):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        if done.returncode == 0:
            break
    else:
        raise AssertionError(done.stderr[-2000:])
    stored = lake.table("events", "a").read()
    assert sorted(stored["v"].to_pylist()) == [0, 1, 2, 3]


def test_a_commit_whose_answer_is_lost_counts_once(proxy):
    """The store has made the commit, and the client hears of it only that it must try again."""
    lost = set()

    def decide(request):
        if is_commit(request) and request.path not in lost:
            lost.add(request.path)
            return "lost"
        return None

    proxy.decide = decide
    append(proxy, Lake(f"s3://{BUCKET}/lost"))
    assert proxy.faults["lost"] == len(lost) >= 6, "four appends, and a lease that is taken and freed"


def test_a_store_that_is_away_is_one_line(proxy):
    proxy.decide = lambda request: "refused"
    started = time.monotonic()
    refused = over(proxy, "status", "--lake", f"s3://{BUCKET}/away")
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1, refused.stderr
    assert f"s3://{BUCKET}/away" in refused.stderr and "AWS_ENDPOINT_URL" in refused.stderr
    assert time.monotonic() - started < 240


def over(proxy, *arguments):
    environment = {} if proxy is None else {"AWS_ENDPOINT_URL": proxy.endpoint}
    return commands.call(*arguments, timeout=400, environment=environment)


def attempt(proxy, *arguments):
    """Run a command until it succeeds; whenever it does not, it says so in one line and leaves nothing half done."""
    for _ in range(ATTEMPTS):
        done = over(proxy, *arguments, "--json")
        if done.returncode == 0:
            return json.loads(done.stdout)
        assert done.returncode in (2, 3, 4), (done.returncode, done.stderr[-2000:])
        assert len(done.stderr.splitlines()) <= 3, done.stderr[-2000:]
    raise AssertionError(f"{arguments[0]} failed {ATTEMPTS} times: {done.stderr[-2000:]}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The tables of a local lake, with its input and its query."""
    folder = tmp_path_factory.mktemp("undisturbed")
    events.write(events.disordered(7), folder / "rows.parquet")
    (folder / "pairs.yaml").write_text(QUERY)
    return folder, answer(None, folder, str(folder / "lake"))


def answer(proxy, folder, lake, before_run=lambda: None):
    """Ingest, run and repair over the proxy, and return the tables with the answers."""
    query = folder / "pairs.yaml"
    attempt(proxy, "ingest", "--lake", lake, "--by", "stream", folder / "rows.parquet")
    before_run()
    attempt(proxy, "run", query, "--lake", lake, "--rows-per-batch", "100", "--flush")
    attempt(proxy, "repair", query, "--lake", lake, "--flush")
    spec, opened = load_query(query), Lake(lake)
    return {
        name: ledger.ledger(opened, spec) if name == "ledger" else result_views.view(opened, spec, name)
        for name in TABLES
    }


def differing(tables, expected):
    assert all(table.num_rows for table in expected.values())
    return [name for name in TABLES if not tables[name].equals(expected[name])]


def test_answers_over_a_bad_line_are_those_over_a_good_one(proxy, undisturbed):
    folder, expected = undisturbed
    proxy.decide = every(unavailable=11, refused=17, lost=37, slow=41, cut=211)
    tables = answer(proxy, folder, f"s3://{BUCKET}/bad-line")
    assert differing(tables, expected) == []
    assert all(proxy.faults[name] for name in ("unavailable", "refused", "cut", "lost", "slow")), proxy.faults


@pytest.mark.parametrize("server", ["minio"], indirect=True, scope="module")  # docs/limits.md has the case of SeaweedFS
def test_a_server_that_is_killed_within_a_micro_batch_changes_no_answer(server, proxy, undisturbed):
    """The server is killed before it sees a commit of the run, is away for seconds, and starts over its objects."""
    folder, expected = undisturbed
    due, kills, restarts = [3, 9, 17], [], []
    commits = 0

    def start_again():
        time.sleep(2)
        server.start()

    def decide(request):
        nonlocal commits
        commits += is_commit(request)
        is_up = not any(restart.is_alive() for restart in restarts)
        if is_commit(request) and is_up and due and commits >= due[0]:
            del due[0]
            kills.append(request.path)
            server.kill()
            restarts.append(threading.Thread(target=start_again))
            restarts[-1].start()
            return "refused"
        return None

    def begin():
        proxy.decide = decide

    try:
        tables = answer(proxy, folder, f"s3://{BUCKET}/killed-server", before_run=begin)
    finally:
        for restart in restarts:
            restart.join()
    assert len(kills) == 3 and not due, (kills, commits)
    assert differing(tables, expected) == []


def test_a_bucket_that_vanishes_is_one_line(server, store, undisturbed):
    folder, _ = undisturbed
    store.make_bucket("vanishing")
    lake = "s3://vanishing/lake"
    attempt(None, "ingest", "--lake", lake, "--by", "stream", folder / "rows.parquet")
    for item in store.list_objects("vanishing", recursive=True):
        store.remove_object("vanishing", item.object_name)
    store.remove_bucket("vanishing")
    for arguments in (["status"], ["run", folder / "pairs.yaml"], ["ingest", "--stream", "a", folder / "rows.parquet"]):
        refused = commands.call(*arguments, "--lake", lake, timeout=300)
        assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1, (arguments, refused.stderr)
        assert "vanishing" in refused.stderr and "check the bucket" in refused.stderr, refused.stderr
    examined = commands.call("doctor", "--no-spark", "--json", "--lake", lake, timeout=100)
    assert examined.returncode == 2 and "has no bucket vanishing" in examined.stdout


def test_wrong_credentials_are_one_line(server, store, undisturbed, monkeypatch):
    folder, _ = undisturbed
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-91c4")
    lake = f"s3://{BUCKET}/wrong"
    for arguments in (["status"], ["run", folder / "pairs.yaml"], ["ingest", "--stream", "a", folder / "rows.parquet"]):
        refused = commands.call(*arguments, "--lake", lake, timeout=300)
        assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1, (arguments, refused.stderr)
        assert "AWS_SECRET_ACCESS_KEY" in refused.stderr and "not-the-secret" not in refused.stderr, refused.stderr
