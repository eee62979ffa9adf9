"""An audit agrees with the results of `run` and `repair` for every kind and awkward data, and notices changes."""

import re
import shutil
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.jobs.status import status
from latecomer.lake import journal, result_views
from latecomer.lake.lake import Lake
from latecomer.quality import checks
from latecomer.spark import audit as auditing
from latecomer.spark.backfill import backfill
from latecomer.spark.recompute import SqlRecompute, TimeRange
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.clauses import ENVELOPE
from latecomer.specs.loading import parse_query

from tests.support import events

ALL = 1_000
SLACK = "strategy: {name: k_slack, slack: 1 s}\n"
HALF = "quality: {recall: 0.5, period: 30 s}\n"
QUERIES = {
    "keyed": "kind: join\nstreams: {l: a, r: b}\nkeys: [k, n]\nwindow: 2 s\nwhere: l.v + r.v > -50\n" + HALF,
    "near": "kind: join\nstreams: {l: a, r: b}\nwindow: 700 ms\nselect: [l.x, r.x, l.v - r.v as off]\n"
    "where: within_distance(l.x, l.y, r.x, r.y, 25.0)\n" + HALF,
    "self": "kind: join\nstreams: {l: a, r: a}\nkeys: {l: k, r: k}\nwindow: 1500 ms\nselect: [l.v, r.note]\n"
    + HALF
    + SLACK,
    "numbers": "kind: aggregate\nstreams: {s: a}\nwindow: {size: 4 s, slide: 1 s}\ngroup_by: [k]\n"
    "select: {n: count(), some: count(x), total: sum(x), mean: avg(v), low: min(note), high: max(x), mid: median(x), "
    "p: quantile(v, 0.3), whole: sum(i), cents: sum(d), "
    "wide: sum(w), wide_mean: avg(w), far: sum(f), far_mean: avg(f)}\n"
    "where: v > -90\nquality: {error: 0.5, probability: 0.5, period: 30 s}\nstrategy: {name: k_slack, slack: 500 ms}\n",
    "sharded": "kind: aggregate\nstreams: {s: a}\nwindow: 3 s\ngroup_by: [note]\nselect: {total: sum(v * 0.1)}\n"
    "quality: {error: 0.5, probability: 0.5, period: 30 s}\nstrategy: {name: hpm, shards: 2}\n",
    "one_shard": "kind: aggregate\nstreams: {s: a}\nwindow: 3 s\nselect: {total: sum(i)}\n"
    "quality: {error: 0.5, probability: 0.5, period: 30 s}\nstrategy: {name: hpm, shards: 3, gamma: 10 s}\n",
    "best": "kind: topk\nstreams: {s: a}\nscore: x\nk: 3\nwindow: {size: 4 s, slide: 2 s}\n"
    "group_by: [truth, verdict]\nquality: {hit_rate: 0.1, period: 30 s}\nstrategy: none\n",
    "waits": "kind: join\nstreams: {l: b, r: a}\nkeys: [k]\nwindow: 2 s\nselect: [l.v, r.x]\n"
    + HALF
    + "strategy: mp_k_slack\n",
    "two": "kind: theta_join\nstreams: {r: a, s: b}\nwindow: {size: 4 s, slide: 2 s}\n"
    "conditions: [r.x < s.x, r.k = s.k]\nstrategy: {name: fast_theta_join, slack: 1 s}\n",
    "three": "kind: theta_join\nstreams: {r: a, s: b, t: a}\nwindow: 2 s\n"
    "conditions: [r.x < t.x, t.v <= s.v, r.k = s.k]\nemit: count\nwhere: r.n > 0 and t.n < 2 and t.note is not null\n",
    "ranges": "kind: theta_join\nstreams: {r: a, s: b}\nwindow: 2 s\nconditions: [r.x < s.x, r.v > s.v]\n"
    "emit: ranges\nwhere: r.i > 3 and s.x < s.v * 9\n",
    "common": "kind: membership\nstreams: {r: a, s: b}\nelement: {r: i, s: x}\nwindow: 4 s\n",
    "reaching": "kind: membership\nstreams: {r: a, s: b}\nelement: note\n"
    "window: {r: {size: 4 s, slide: 2 s}, s: {size: 3 s, slide: 3 s}}\nwhere: r.v > 3 and s.n != 1\n",
}
"""Awkward queries of every kind: slides, shards, a self join, three streams, different windows, NaN and null."""


def spec(name):
    return parse_query(f"name: {name}\n{QUERIES[name]}")


def audited(lake, name, periods=ALL):
    """Run `check` with an audit, and return the description of the audit's expectation."""
    return audit_of(checks.check(lake, spec(name), audit=periods))


def audit_of(outcome):
    """Return the description of the audit's expectation in the outcome of a check."""
    return next(result for result in outcome.results if result["subject"] == "audit")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return a file of disordered rows with nulls, NaN, negative numbers, decimals, lists and ties."""
    table, rng = events.disordered(5, rows=400).drop_columns(["seq"]), np.random.default_rng(5)
    x = np.where(rng.random(400) < 0.05, np.nan, rng.integers(-20, 80, 400) / 2)
    more = {
        "i": pa.array(rng.integers(0, 30, 400)),
        **{name: pa.array(rng.integers(0, 3, 400)) for name in ("n", "start", "count", "truth", "verdict", "is")},
        "x": pa.array(x, mask=rng.random(400) < 0.05, from_pandas=False),
        "y": pa.array(rng.normal(0, 20, 400)),
        "d": pa.array(rng.integers(-999, 999, 400)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(24, 2)),
        "w": pa.array(
            [Decimal(int(number) * 10**30 + 7).scaleb(-10, Context(40)) for number in rng.integers(-9e7, 9e7, 400)]
        ),
        "f": pa.array(rng.choice([1.5e308, -1.5e308, 1.0], 400)),
        "it\\'s%": pa.array(rng.integers(0, 9, 400)),
        "tags": pa.array([[int(number)] * (number % 3) for number in rng.integers(0, 5, 400)]),
    }
    for name, column in more.items():
        table = table.append_column(name, column)
    return events.write(table, tmp_path_factory.mktemp("rows") / "in.parquet")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, rows, spark):
    """Return a lake with all queries, run in pieces, repaired in between and in the end."""
    lake = Lake(tmp_path_factory.mktemp("whole") / "lake")
    ingest(lake, [rows], IngestOptions(by="stream"))
    for name in QUERIES:
        run(lake, spec(name), rows_per_batch=150, until_seq=299)
        repair(lake, spec(name), flush=True)
        run(lake, spec(name), flush=True)
        repair(lake, spec(name), flush=True)
    return lake


@pytest.mark.parametrize("name", QUERIES)
def test_repaired_results_are_the_answers_of_sql(whole, name):
    audit = audited(whole, name)
    assert audit["success"], audit["message"]
    assert int(audit["observed"].split()[1].replace(",", "")) > 15, audit["observed"]


@pytest.mark.parametrize("name", ["keyed", "self", "waits", "numbers", "sharded", "best", "two", "three", "reaching"])
def test_answers_that_may_still_change_are_no_mistakes(tmp_path, rows, name):
    """Windows are open, late rows await repair, and rows are stored that `run` has not read."""
    lake = Lake(tmp_path / "lake")
    ingest(lake, [rows], IngestOptions(by="stream"))
    run(lake, spec(name), rows_per_batch=100, until_seq=199)
    repair(lake, spec(name), flush=True)
    run(lake, spec(name), until_seq=349)
    assert audited(lake, name)["success"], audited(lake, name)["message"]


@pytest.mark.parametrize("name", ["numbers", "best", "ranges", "common"])
def test_the_answers_of_a_backfill_are_the_next_revision_and_are_audited_too(tmp_path, whole, name):
    shutil.copytree(whole.uri, tmp_path / "lake")
    lake = Lake(tmp_path / "lake")
    before = result_views.results(lake, spec(name))
    backfill(lake, spec(name), 0, 2_000_000_000_000_000)
    after = result_views.results(lake, spec(name))
    assert same(after.drop_columns([*ENVELOPE]), before.drop_columns([*ENVELOPE]))
    if name == "common":  # its rows are only added to
        assert same(after, before)
    else:
        closed = pc.less(before["published_seq"], 400)  # the flush answered the other windows after the last row
        assert same(after.filter(pc.invert(closed)), before.filter(pc.invert(closed)))
        before, after = before.filter(closed), after.filter(closed)
        assert set(after["provenance"].to_pylist()) == {"repaired"}
        assert set(after["published_seq"].to_pylist()) == {399}
        later = pc.subtract(after["revision"], before["revision"])
        assert set(later.to_pylist()) == {1} and pc.max(before["revision"]).as_py() > 0
    assert audited(lake, name)["success"]
    rewrite(lake, "backfill", name, lambda rows: rows.slice(1))
    for area in ("on_time", "corrections"):
        if lake.table(area, name).exists():
            rewrite(lake, area, name, lambda rows: rows.slice(0, 0))
    assert not audited(lake, name)["success"]


def same(left, right):
    """Tell whether two tables have the same schema and values; NaN equals NaN."""
    return left.schema.equals(right.schema) and left.to_pandas().equals(right.to_pandas())


def rewrite(lake, area, name, change):
    path = lake.table(area, name).uri
    rows = DeltaTable(path).to_pyarrow_dataset().to_table()
    write_deltalake(path, change(rows), mode="overwrite")


def with_other_value(rows, column):
    """Return the rows with another value in the first row."""
    values = rows[column].combine_chunks()
    kind, first = values.type, values.slice(0, 1)
    if pa.types.is_string(kind):
        new = pc.binary_join_element_wise(first.fill_null(""), "!", "")
    elif pa.types.is_list(kind):
        new = pa.array([[99]], kind)
    else:
        new = pc.add(pc.cast(first, pa.float64()).fill_null(0.0), 1.0).cast(kind, safe=False)
        new = new if not pc.is_nan(pc.cast(new, pa.float64()))[0].as_py() else pa.array([0.0], kind)
    place = rows.column_names.index(column)
    return rows.set_column(place, column, pa.concat_arrays([new, values.slice(1)]))


def changed(whole, folder, name, column):
    """Return a copy of the lake in which an on-time row that no correction replaced has another value.

    Only an audit notices it.
    """
    shutil.copytree(whole.uri, folder / "lake")
    lake, keys = Lake(folder / "lake"), [key for key in spec(name).result_keys if key != "rank"]
    replaced = set()
    if lake.table("corrections", name).exists():
        fixed = DeltaTable(lake.table("corrections", name).uri).to_pyarrow_dataset().to_table(columns=keys)
        replaced = {str(row) for row in fixed.to_pylist()}

    def change(rows):
        final = [str(row) not in replaced for row in rows.select(keys).to_pylist()]
        first = int(np.flatnonzero(np.array(final) & pc.is_valid(rows[column]).to_numpy())[0])
        return with_other_value(rows.take(pa.array(np.r_[first, np.delete(np.arange(rows.num_rows), first)])), column)

    rewrite(lake, "on_time", name, change)
    assert not checks.check(lake, spec(name)).broken
    return lake


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("keyed", "l_v"), ("keyed", "l_tags"), ("near", "off"), ("best", "score"), ("best", "seq"), ("two", "s_v"),
        ("three", "matches"),
        *(("numbers", column) for column in ("total", "low", "mid", "cents", "rows")), ("common", "element"),
    ],
)  # fmt: skip
def test_a_changed_value_is_noticed(whole, tmp_path, name, column):
    audit = audited(changed(whole, tmp_path, name, column), name)
    assert not audit["success"]
    difference = f"has {column} " if column not in spec(name).result_keys else "is missing"
    assert difference in audit["observed"] and "1 of " in audit["observed"], audit["observed"]


def test_the_message_names_period_result_and_both_values(whole, tmp_path):
    message = audited(changed(whole, tmp_path, "numbers", "n"), "numbers")["message"]
    difference = r"1 other \(k \d, window_start 2\S+ \S+ has n \d+, should be \d+\)"
    observed = rf"1 of 3 audited periods differ \(2\S+ \S+: {difference}, as of 2\S+ \S+ UTC\);"
    assert re.search(observed, message) and "[expect_results_as_recomputed]" in message


def test_every_check_audits_different_periods(whole, tmp_path):
    shutil.copytree(whole.uri, tmp_path / "lake")
    lake, lines = Lake(tmp_path / "lake"), []
    for _ in range(4):
        checks.check(lake, spec("keyed"), audit=1, progress=lines.append)
    assert len(lines) == 4 and len(set(lines)) > 1 and all("audited period" in line for line in lines)


def test_a_wrong_period_counts_as_wrong_until_it_is_audited_again(whole, tmp_path):
    lake = changed(whole, tmp_path, "keyed", "l_v")
    assert not audited(lake, "keyed")["success"]
    for _ in range(2):  # a check without an audit reports it too
        outcome = checks.check(lake, spec("keyed"), report_dir=tmp_path / "report")
        (failure,) = outcome.failures
        assert "1 of 1 audited periods differ (2" in failure and "should be" in failure and "as of 2" in failure
        assert "should be" in outcome.report.read_text()
        assert "FAILED" in status(lake, ["keyed"])["queries"][0]["last_check"]
    shutil.rmtree(lake.table("on_time", "keyed").uri)
    shutil.copytree(whole.table("on_time", "keyed").uri, lake.table("on_time", "keyed").uri)
    assert len(checks.check(lake, spec("keyed")).failures) == 1  # not audited again yet
    lines = []
    outcome = checks.check(lake, spec("keyed"), audit=1, progress=lines.append)
    assert outcome.success and moment(failure) in lines[0], (failure, lines)
    assert checks.check(lake, spec("keyed")).success


def test_a_check_that_began_before_an_audit_ended_does_not_lose_its_outcome(whole, tmp_path, monkeypatch):
    lake, validate = changed(whole, tmp_path, "keyed", "l_v"), checks._validate

    def meanwhile(*args):
        monkeypatch.setattr(checks, "_validate", validate)
        assert not audited(lake, "keyed")["success"]
        return validate(*args)

    monkeypatch.setattr(checks, "_validate", meanwhile)
    assert checks.check(lake, spec("keyed")).success  # it began before the audit
    assert len(checks.check(lake, spec("keyed")).failures) == 1


def moment(failure):
    """Return the first period in the message of an audit."""
    return re.search(r"differ \((.+?): ", failure)[1]


def test_a_period_that_takes_too_many_comparisons_is_passed_over(whole, tmp_path, monkeypatch):
    shutil.copytree(whole.uri, tmp_path / "lake")
    lake, lines = Lake(tmp_path / "lake"), []
    monkeypatch.setattr(auditing, "MOST_PAIRS", 0)
    outcome = checks.check(lake, spec("ranges"), audit=ALL, progress=lines.append)
    assert all(result["subject"] != "audit" for result in outcome.results)
    assert lines and all("not audited" in line and "comparisons" in line for line in lines)


def test_a_condition_that_is_null_passes_no_row(whole, spark):
    text = "name: nothing\nkind: topk\nstreams: {s: a}\nscore: v\nk: 2\nwindow: 4 s\nstrategy: {name: none}\n"
    filtered, unfiltered = (parse_query(text + where, "test.yaml") for where in ("where: 'null'\n", ""))
    over = TimeRange(0, 2_000_000_000_000_000)
    assert SqlRecompute(filtered, spark, whole).answers(over, 400).rows.count() == 0
    assert SqlRecompute(unfiltered, spark, whole).answers(over, 400).rows.count() > 0


def test_a_membership_of_short_windows_takes_no_more_comparisons_than_its_rows_do(tmp_path, rows, spark):
    """A day has 86 million windows of a millisecond, and some hundreds of them contain a row."""
    lake = Lake(tmp_path / "lake")
    ingest(lake, [rows], IngestOptions(by="stream"))
    text = "name: short\nkind: membership\nstreams: {r: a, s: b}\nelement: note\nquality: {period: 1 d}\n"
    short = parse_query(text + "window: {r: 1 ms, s: {size: 4 s, slide: 2 s}}\n", "test.yaml")
    run(lake, short, flush=True)
    repair(lake, short, flush=True)
    day = 86_400_000_000
    start = 1_700_000_000_000_000 // day * day
    assert SqlRecompute(short, spark, lake).answers(TimeRange(start, start + day), 400).pairs < 400 * 400
    audit = audit_of(checks.check(lake, short, audit=1))
    assert audit["success"] and int(audit["observed"].split()[1]) > 0, audit


def test_a_period_whose_rows_are_all_late_is_audited(tmp_path, spark):
    """No micro-batch has an account of such a period: repairs alone have answered it."""
    times = [1_700_000_000_000_000 + at * 1_000_000 for at in (100, 101, 125, 130, 5, 6, 145, 160)]
    lake, text = Lake(tmp_path / "lake"), "kind: aggregate\nstreams: {s: a}\nwindow: 5 s\nselect: {n: count()}\n"
    table = pa.table({"stream": ["a"] * len(times), "event_ts": times})
    ingest(lake, [events.write(table, tmp_path / "in.parquet")], IngestOptions(by="stream"))
    alone = parse_query(f"name: q\n{text}quality: {{error: 0.9, probability: 0.5, period: 20 s}}\n{SLACK}")
    run(lake, alone, flush=True)
    repair(lake, alone, flush=True)
    assert checks.check(lake, alone, audit=ALL).success
    rewrite(
        lake,
        "corrections",
        "q",
        lambda rows: rows.set_column(rows.column_names.index("n"), "n", pa.array([9] * len(rows))),
    )
    assert not checks.check(lake, alone, audit=ALL).success


def test_an_audit_without_closed_periods_is_reported(tmp_path, rows):
    lake, lines = Lake(tmp_path / "lake"), []
    ingest(lake, [rows], IngestOptions(by="stream"))
    run(lake, spec("best"), until_seq=0)
    assert journal.run_state(lake, "best").seq_to == 1
    checks.check(lake, spec("best"), audit=3, progress=lines.append)
    assert lines == ["best: nothing to audit, no period with rows is closed yet"]


def test_a_result_whose_type_cannot_hold_it_is_noticed(whole, tmp_path):
    """Means that are stored as whole numbers are not cast before the comparison."""
    shutil.copytree(whole.uri, tmp_path / "lake")
    lake = Lake(tmp_path / "lake")
    for area in ("on_time", "corrections"):
        path = lake.table(area, "numbers").uri
        rows = DeltaTable(path).to_pyarrow_dataset().to_table()
        place, column = rows.column_names.index("mean"), rows["mean"]
        whole_numbers = pc.cast(pc.floor(pc.cast(column, pa.float64())), pa.int64())
        write_deltalake(path, rows.set_column(place, "mean", whole_numbers), mode="overwrite", schema_mode="overwrite")
    audit = audited(lake, "numbers")
    assert not audit["success"] and "has mean" in audit["observed"], audit["observed"]
