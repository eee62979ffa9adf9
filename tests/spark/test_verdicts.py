"""Verdicts through real tables: a clock that is ahead breaks a promise, and the answer of `check` does not flap."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.jobs.status import status
from latecomer.lake.forget import forget
from latecomer.ledger.ledger import ledger
from latecomer.quality import checks, promise, verdicts
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.loading import parse_query

from tests.support.commands import call

SECOND, HOUR = 1_000_000, 3_600_000_000
BASE = 1_704_067_200 * SECOND
READINGS = """\
name: q
kind: aggregate
streams: {s: s}
window: 10 min
select: {n: count(), m: avg(v)}
quality: {error: 0.05, probability: 0.95, period: 1 d}
"""
COUNTS = """\
name: counts
kind: aggregate
streams: {s: s}
window: 10 min
select: {n: count()}
quality: {error: 0.15, probability: 0.95, period: 1 h}
strategy: {name: k_slack, slack: 0 s, gamma: 1 d}
"""


def readings(folder, name, event_us, arrival_us, device=0):
    """Write readings as a file, in the order of their arrivals, and return its path."""
    times = {name: pa.array(np.asarray(us, np.int64), pa.timestamp("us", tz="UTC")) for name, us in (
        ("event_ts", event_us), ("arrival_ts", arrival_us),
    )}  # fmt: skip
    n = len(event_us)
    rows = pa.table(times | {"dev": np.broadcast_to(device, n), "v": np.random.default_rng(7).normal(20, 1, n)})
    pq.write_table(rows, folder / name)
    return str(folder / name)


def test_one_device_a_day_fast_breaks_the_promise_and_is_named(lake, tmp_path):
    rng, n = np.random.default_rng(1), 3_000
    arrival = BASE + np.sort(rng.integers(0, 6 * HOUR, n))
    device = rng.integers(0, 10, n)
    event = arrival - rng.exponential(5e6, n).astype(np.int64)
    event = np.where(device == 3, arrival + 23 * HOUR, event)
    ingest(lake, [readings(tmp_path, "r.parquet", event, arrival, device)], IngestOptions(stream="s"))
    spec = parse_query(READINGS)
    run(lake, spec, rows_per_batch=500)
    run(lake, spec, flush=True)
    pending = checks.check(lake, spec)
    assert pending.success and pending.unjudged == 1 and "late rows await repair" in pending.unjudged_message
    repair(lake, spec, flush=True)
    query = tmp_path / "q.yaml"
    query.write_text(READINGS)
    killed = call("check", query, "--lake", lake.uri, crash_at="check:verdicts")
    assert killed.returncode == -9 and lake.table("verdicts", "q").count() == 3
    outcome = checks.check(lake, spec)
    assert not outcome.success and not outcome.broken
    assert outcome.promise.startswith("promise broken: 1 of 1 period missed (none may), ")
    assert "1 period of suspected clocks, 1 period too small to vote" in outcome.promise
    first, whole = outcome.failures
    assert (
        "1 of 1 periods with too few answers within the error, all new "
        "(2024-01-01: 6 of 42 answers, needed 37, 51 of 2,759 rows on time)" in first
    )
    assert f"{(device == 3).sum()} rows of stream s, dev 3, came up to 23 h ahead of their arrivals: " in first
    assert "max_future" in first and "all periods together: 0.14" in whole
    stored = verdicts.history(lake, "q")
    assert stored[["due", "kept"]].to_numpy().tolist() == [[1, True], [2_759, False], [240, True]]
    again = checks.check(lake, spec)
    assert "none of them new since the check of" in again.promise and "0 new and 1 known before" in again.failures[0]
    assert len(verdicts.history(lake, "q")) == 3
    assert "FAILED, 1 of 1 period missed" in status(lake)["queries"][0]["last_check"]
    forget(lake, "q")
    assert not lake.table("verdicts", "q").exists()


def test_pending_periods_come_and_go_and_the_answer_stays(lake, tmp_path):
    """Two of the first hours miss. Then rows come late for four others, and are repaired.

    By the hours that are known, the check would pass, fail, fail and pass.
    """
    spec = parse_query(COUNTS)
    minutes = np.arange(11 * 60)
    late = np.isin(minutes // 60, (0, 2)) & (minutes % 60 < 20) & (minutes % 10 >= 6)  # after their windows
    event = BASE + minutes * 60 * SECOND
    arrival = event + np.where(late, 301 * SECOND, SECOND)
    order = np.argsort(arrival, kind="stable")
    ingest(lake, [readings(tmp_path, "0.parquet", event[order], arrival[order])], IngestOptions(stream="s"))
    run(lake, spec)
    outcomes = [checks.check(lake, spec)]
    by_known = []
    for hours in ((), (4, 5, 6), (7,), ()):
        if hours:
            more = BASE + HOUR * np.array(hours) + 30 * SECOND
            name = f"{hours[0]}.parquet"
            ingest(
                lake, [readings(tmp_path, name, more, np.full(len(hours), arrival.max()))], IngestOptions(stream="s")
            )
            run(lake, spec)
        else:
            repair(lake, spec, flush=True)
        outcomes.append(checks.check(lake, spec))
        known = promise.known(ledger(lake, spec).to_pandas())[:10]
        known = known[known["period_end"] <= pd.Timestamp(BASE + 10 * HOUR, unit="us", tz="UTC")]
        missed = int((known["achieved_on_time"] < 0.8).sum())
        by_known.append(missed <= promise.allowed_misses(len(known), spec.confidence))
    assert by_known == [True, False, False, True]
    assert [(o.success, o.judged, o.missed, o.new) for o in outcomes] == [(True, 8, 0, 0), (True, 10, 2, 2)] + [
        (True, 10, 2, 0)
    ] * 3, outcomes[-1].failures
    assert "2 of 10 periods missed (at most 2 may, by chance, at 95%), none of them new" in outcomes[-1].promise
    assert outcomes[-1].promise.endswith("; 20 late rows repaired, 0 pending")
    stored = verdicts.history(lake, "counts")
    assert stored.loc[stored["judgement"] == 1, "period_start"].dt.hour.tolist() == [4, 5, 6, 7]
    assert len(stored) == 14
