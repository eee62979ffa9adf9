"""The join on Spark against the tuple-at-a-time reference and the exact join.

Oracle family: on time = reference, on time + repaired = brute force. Differential family: any cut into micro-batches
gives the same tables, byte for byte.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from latecomer.jobs.status import render, status
from latecomer.lake import journal, result_views
from latecomer.lake.errors import InputError
from latecomer.ledger import ledger as books
from latecomer.quality.checks import check
from latecomer.reference.join import exact_join, k_slack, pair_times, qjoin
from latecomer.reference.join import recalled as recalled_pairs
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import parse_query
from latecomer.strategies.join import retention_parameters, retention_policy

from tests.support import events
from tests.support.lakes import exported, load, whole_and_cut

QUERY = """
name: pairs
kind: join
streams: {{left: {left}, right: {right}}}
keys: [k]
window: 2 s
where: {where}
quality: {{recall: {recall}, period: 10 s}}
strategy: {{name: {strategy}, gamma: 3 s{more}}}
"""


def query(left="a", right="b", where="left.v <= right.v + 6", recall=0.6, strategy="qjoin", more=""):
    return parse_query(
        QUERY.format(left=left, right=right, where=where, recall=recall, strategy=strategy, more=more), "test.yaml"
    )


def matches(left, right):
    return left.row["k"] == right.row["k"] and left.row["v"] <= right.row["v"] + 6


def expected(table, spec):
    arrivals = events.arrivals(table, *(stream for _, stream in spec.streams))
    settings = retention_parameters(spec)
    answer = qjoin(
        arrivals,
        window=spec.window_us,
        interval=settings.interval_us,
        granularity=settings.granularity_us,
        policy=retention_policy(settings, None, None),
        match=matches,
        meet=lambda left, right: left.row["k"] == right.row["k"],
    )
    return answer, exact_join(arrivals, spec.window_us, matches)


def recalls(table, spec, produced, exact):
    """The pairs that the recall guarantee publishes, by the rule in words."""
    arrivals = events.arrivals(table, *(stream for _, stream in spec.streams))
    settings = retention_parameters(spec)
    times = pair_times(arrivals, exact)
    return recalled_pairs(times, produced, spec.target, spec.period_us, settings.interval_us)


def pairs(rows):
    return list(zip(rows["left_seq"].to_pylist(), rows["right_seq"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("seed", "left", "right", "estimator"),
    [
        (1, "a", "b", "calibrated"),
        (2, "a", "b", "calibrated"),
        (3, "a", "a", "calibrated"),
        (1, "a", "b", "calibrated, guarantee: false"),
        (3, "a", "a", "calibrated, guarantee: false"),
        (1, "a", "b", "empirical"),
        (1, "a", "b", "delay_aware"),
        (3, "a", "a", "delay_aware"),
        (1, "a", "b", "paper"),
        (3, "a", "a", "paper"),
    ],
)
def test_equals_the_reference_and_becomes_exact(lake, tmp_path, seed, left, right, estimator):
    table = events.disordered(seed)
    spec = query(left, right, more=f", estimator: {estimator}")
    load(lake, table, tmp_path)
    run(lake, spec, rows_per_batch=110, flush=True)
    answer, exact = expected(table, spec)
    published = result_views.view(lake, spec, "on_time")
    produced = pairs(published.filter(pc.equal(published["provenance"], "on_time")))
    assert sorted(produced) == sorted(answer.on_time), "on-time pairs differ from the reference"
    assert 0 < len(produced) < len(exact), "the input is too tame to tell strategies apart"
    recalled = pairs(published.filter(pc.equal(published["provenance"], "recalled")))
    assert sorted(recalled) == sorted(recalls(table, spec, answer.on_time, exact) if spec.guarantee else [])
    assert spec.guarantee == bool(recalled)
    late = result_views.view(lake, spec, "late")
    registered = {(seq, alias) for seq, alias in zip(late["seq"].to_pylist(), late["alias"].to_pylist(), strict=True)}
    assert registered == {(seq, ("left", "right")[side]) for seq, side, _, _ in answer.late}
    before = books.ledger(lake, spec)
    assert before["on_time"].to_pylist() and sum(before["on_time"].to_pylist()) == len(produced)
    if spec.guarantee:
        assert min(before["achieved_on_time"].to_pylist()) >= spec.target
        assert sum(before["expected"].to_pylist()) == len(exact), "what was due is known before any repair"
        assert sum(before["recalled"].to_pylist()) == len(recalled)
    repair(lake, spec, flush=True)
    results = result_views.results(lake, spec)
    assert sorted(pairs(results)) == sorted(exact)
    ledger = books.ledger(lake, spec)
    assert sum(ledger["expected"].to_pylist()) == len(exact)
    assert set(ledger["achieved_final"].to_pylist()) == {1.0}
    assert result_views.view(lake, spec, "late")["repaired_in"].null_count == 0


def test_any_cut_gives_the_same_tables(tmp_path, spark):

    table = events.disordered(7)
    spec = query()
    tables = whole_and_cut(tmp_path, table, spec, (77, 30), stop=95)
    assert tables["corrections"].num_rows


def test_a_repair_before_the_interval_is_complete_is_not_repeated(lake, tmp_path):
    """`repair --flush` takes late rows whose pairs `run` might recall yet; `run` then leaves them alone."""
    table = events.disordered(7)
    spec = query(recall=0.9)
    load(lake, table, tmp_path)
    for until in (60, 95, 131, 170, 204, 236):
        run(lake, spec, until_seq=until)
        assert repair(lake, spec, flush=True).pending == 0
    run(lake, spec, flush=True)
    repair(lake, spec, flush=True)
    exact = expected(table, spec)[1]
    stored = [pairs(result_views.view(lake, spec, area)) for area in ("on_time", "corrections")]
    assert sorted(stored[0] + stored[1]) == sorted(exact), "each pair once"
    state = journal.run_state(lake, spec.name)
    early = lake.table("ledger", spec.name).read()["repaired_early"]
    assert sum(early.to_pylist()) > 0, "no cut fell into an interval with missed pairs"
    ledger = books.ledger(lake, spec)
    assert sum(ledger["expected"].to_pylist()) == len(exact) and min(ledger["achieved_on_time"].to_pylist()) >= 0.9
    assert (pc.sum(pc.add(pc.add(ledger["on_time"], ledger["recalled"]), ledger["repaired"])).as_py()) == len(exact)
    assert state.stage["books"]["recall"]["open"]["missed"] == {}


def test_late_rows_that_run_may_still_recall_are_left_to_it(lake, tmp_path):
    """A repair that is no flush takes decided intervals; a run at work keeps a flush from the others."""
    from latecomer.lake.lease import Lease

    table = events.disordered(7)
    spec = query(recall=0.9, more=", adapt_every: 10 s")
    load(lake, table, tmp_path)
    undecided = np.empty(0, np.int64)
    for until in range(100, 220, 15):
        run(lake, spec, until_seq=until)
        decided = journal.run_state(lake, spec.name).stage["books"]["recall"]["open"]["seq_from"]
        late = result_views.view(lake, spec, "late")["seq"].to_numpy()
        undecided = late[late >= decided]
        if len(undecided):
            break
    assert len(undecided), "no cut fell into an interval with late rows"
    said = []
    with Lease(lake, f"run-{spec.name}"):
        repair(lake, spec, flush=True, progress=said.append)
    assert result_views.closed_to(lake, spec.name) < decided
    assert any("are left to the run at work" in line for line in said)
    run(lake, spec, flush=True)
    repair(lake, spec, flush=True)
    assert sorted(pairs(result_views.results(lake, spec))) == sorted(expected(table, spec)[1])


def test_a_guarantee_is_not_switched_while_a_query_runs(lake, tmp_path):
    load(lake, events.disordered(5, rows=60), tmp_path)
    run(lake, query())
    with pytest.raises(InputError, match=r"strategy\.guarantee was not stated, is false"):
        run(lake, query(more=", guarantee: false"))


def test_exact_strategy_never_misses(lake, tmp_path):
    table = events.disordered(4)
    spec = query(strategy="exact")
    load(lake, table, tmp_path)
    report = run(lake, spec, rows_per_batch=120, flush=True)
    _, exact = expected(table, spec)
    assert sorted(pairs(result_views.results(lake, spec))) == sorted(exact)
    assert report.late == 0


def test_a_second_run_has_nothing_to_do(lake, tmp_path):
    load(lake, events.disordered(5, rows=60), tmp_path)
    spec = query()
    assert run(lake, spec, flush=True).micro_batches == 1
    assert run(lake, spec, flush=True).micro_batches == 0


def test_a_changed_query_is_refused(lake, tmp_path):
    load(lake, events.disordered(5, rows=60), tmp_path)
    run(lake, query())
    with pytest.raises(InputError, match="has changed"):
        run(lake, query(recall=0.5))


def test_a_micro_batch_that_failed_may_be_planned_smaller_or_ask_something_else(lake, tmp_path, monkeypatch):
    from latecomer.spark import run as running

    table = events.disordered(5, rows=120)
    load(lake, table, tmp_path)

    def out_of_memory(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(running.tables, "append", out_of_memory)
    for spec in (query(recall=0.5), query()):
        with pytest.raises(RuntimeError):
            run(lake, spec)
    monkeypatch.undo()
    report = run(lake, query(), rows_per_batch=30, flush=True)
    assert report.micro_batches == 4
    repair(lake, query(), flush=True)
    assert sorted(pairs(result_views.results(lake, query()))) == sorted(expected(table, query())[1])


def test_a_killed_micro_batch_is_finished_as_it_was_asked(lake, tmp_path):
    load(lake, events.disordered(5, rows=60), tmp_path)
    journal.plan(lake, "pairs", "run", 0, {"seq_from": 0, "seq_to": 60, "flush": False, "asked": query().signature()})
    with pytest.raises(InputError, match=r"quality\.recall was 0\.6, is 0\.5; restore the file"):
        run(lake, query(recall=0.5), rows_per_batch=20)
    assert run(lake, query(), rows_per_batch=20).micro_batches == 1


def test_what_awaits_repair_is_not_judged_and_said(lake, tmp_path):
    load(lake, events.disordered(5, rows=300), tmp_path)
    spec = query(more=", guarantee: false")
    late = run(lake, spec, flush=True).late
    found, ledger = check(lake, spec, report_dir=tmp_path / "report"), books.ledger(lake, spec)
    assert 0 < found.unjudged == ledger["achieved_on_time"].null_count and found.periods == ledger.num_rows
    assert found.pending == late and f"{late} late rows await repair" in found.unjudged_message
    assert f"{found.unjudged_message}." in found.report.read_text()
    assert f"{found.unjudged} periods not judged" in render(status(lake))
    repair(lake, spec, flush=True)
    found = check(lake, spec)
    assert (found.unjudged, found.pending, found.unjudged_message) == (0, 0, "")
    assert "not judged" not in render(status(lake))


@pytest.mark.parametrize(("strategy", "more"), [("k_slack", ", slack: 1 s"), ("mp_k_slack", ""), ("aq_k_slack", "")])
def test_slack_family_loses_what_comes_behind_and_repairs_it(tmp_path, spark, strategy, more):
    from latecomer.lake.lake import Lake

    table = events.disordered(9, rows=240)
    spec = query(strategy=strategy, more=more)
    found = []
    for size in (1000, 60):
        lake = Lake(tmp_path / f"lake{size}")
        load(lake, table, tmp_path)
        run(lake, spec, rows_per_batch=size, flush=True)
        repair(lake, spec, flush=True)
        found.append(exported(lake, spec))
    _, exact = expected(table, query(strategy="exact"))
    assert sorted(pairs(found[0]["results"])) == sorted(exact)
    assert 0 < found[0]["on_time"].num_rows < len(exact)
    for name in ("results", "on_time", "corrections", "late"):
        assert found[0][name].equals(found[1][name]), name
    if strategy == "k_slack":
        arrivals = events.arrivals(table, "a", "b")
        assert sorted(pairs(found[0]["on_time"])) == sorted(k_slack(arrivals, 2_000_000, 1_000_000, matches))


def test_points_within_a_distance_meet_wherever_they_are(lake, tmp_path):
    """The grid only thins candidates: on time and after repair, near, far, beyond its last cell, null, NaN and
    infinite.
    """
    rng, rows = np.random.default_rng(12), 240
    table = events.disordered(12, rows=rows)
    odd = [2.5e16, 2.5e16 + 4, 2.5e16, -7e15, -7e15 + 3, float("inf"), float("nan"), None, 1e300]
    points = {}
    for axis in "xy":
        near = rng.normal(0, 4, rows).tolist()
        points[axis] = [odd[int(rng.integers(len(odd)))] if rng.random() < 0.5 else value for value in near]
    level = rng.random(rows) < 0.8
    points["y"] = [0.0 if plain else value for plain, value in zip(level, points["y"], strict=True)]
    for axis, values in points.items():
        table = table.append_column(axis, pa.array(values, pa.float64()))
    radius = 5.0
    text = QUERY.replace("keys: [k]\n", "").format(
        left="a", right="b", where="within_distance(left.x, left.y, right.x, right.y, 5)", recall=0.6,
        strategy="k_slack",
        more=", slack: 500 ms",
    )  # fmt: skip
    spec = parse_query(text, "test.yaml")

    def close(left, right):
        ends = [row.row[axis] for row in (left, right) for axis in "xy"]
        if None in ends:
            return False
        over, up = ends[0] - ends[2], ends[1] - ends[3]
        return over * over + up * up <= radius * radius

    load(lake, table, tmp_path)
    run(lake, spec, rows_per_batch=70, flush=True)
    repair(lake, spec, flush=True)
    tables = exported(lake, spec)
    exact = exact_join(events.arrivals(table, "a", "b"), 2_000_000, close)
    assert sorted(pairs(tables["results"])) == sorted(exact)
    assert tables["corrections"].num_rows
    far = {i for i, value in enumerate(points["x"]) if value is not None and 4e15 < abs(value) < 1e17}
    assert any(pair[0] in far for pair in exact)


def test_a_hot_key_does_not_make_one_task_carry_the_join(spark):
    """One key holds half of the rows: its pairs are spread over tasks by time bucket, and none is lost."""
    from latecomer.spark.engine.band_join import band_join
    from latecomer.spark.engine.tuning import tune
    from pyspark.sql import functions as F

    tune(spark, 10_000_000)
    rows, w = 12_000, 1_000_000
    sides = []
    for letter in "lr":
        hot = F.pmod(F.xxhash64("id", F.lit(letter)), F.lit(2)) == 0
        key = F.when(hot, F.lit(-1)).otherwise(F.col("id") % 500)
        sides.append(
            spark.range(rows).select(
                F.col("id").alias(f"{letter}_seq"),
                (F.col("id") * 10_000).alias(f"{letter}_ts"),
                key.alias(f"{letter}_key"),
            )
        )
    pairs = band_join(*sides, window_us=w, keys=(("l_key", "r_key"),), condition=F.lit(True))
    counted = pairs.groupBy(F.spark_partition_id()).agg(F.count("*").alias("n")).collect()
    counts = [row["n"] for row in counted]
    wanted = sides[0].join(sides[1], (F.col("l_key") == F.col("r_key")) & F.expr(f"abs(l_ts - r_ts) <= {w}")).count()
    assert sum(counts) == wanted > 10 * rows
    assert max(counts) < 0.6 * sum(counts)  # it would be nearly all


@pytest.mark.parametrize("where", ["left.v", "left.note", "left.event_ts", "coalesce(left.k, right.k)"])
def test_a_condition_that_is_none_is_refused(lake, tmp_path, where):
    load(lake, events.disordered(2, rows=20), tmp_path)
    with pytest.raises(SpecError, match=r"where: .*, not a condition; use a condition here"):
        run(lake, query(where=where))


def test_a_stream_of_which_nothing_is_heard_any_more_is_named(lake, tmp_path):
    times = [1_700_000_000_000_000 + at * 1_000_000 for at in range(600)]
    silent = [at < 40 and at % 2 == 1 for at in range(600)]
    rows = {"stream": ["b" if each else "a" for each in silent], "event_ts": times, "k": [1] * 600, "v": [0.0] * 600}
    load(lake, pa.table(rows), tmp_path)
    spec = query(strategy="exact")
    run(lake, spec)
    outcome = check(lake, spec, report_dir=tmp_path / "report")
    said = "nothing of stream b after 2023-11-14 22:13:59, 9 min 20 s before the last of a"
    assert outcome.success and outcome.silent == said and said[1:] in outcome.report.read_text()
    for minutes, kept in ((9, False), (10, True)):
        found = check(lake, replace(spec, silence_us=minutes * 60_000_000))
        assert found.success == kept and [said in each for each in found.failures] == [True] * (not kept)
    shown = status(lake)["streams"]
    assert {name: each["last_event"][11:19] for name, each in shown.items()} == {"a": "22:23:19", "b": "22:13:59"}
    assert "22:23:19Z" in render(status(lake))
