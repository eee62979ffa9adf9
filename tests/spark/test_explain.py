"""The command `explain` for every kind, on the example of `init`; a join's curve against the set formula."""

import re

import numpy as np
import pytest
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.jobs import init_project
from latecomer.jobs.explain.explain import explain
from latecomer.lake import result_views
from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import committed_seq
from latecomer.lake.lake import Lake
from latecomer.ledger.ledger import ledger
from latecomer.ledger.means import rows_held_mean, wait_mean_us
from latecomer.quality.checks import check
from latecomer.spark.adapt import adapt
from latecomer.spark.registry import windowed_stage
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import load_query, parse_query


@pytest.fixture(scope="module")
def shop(tmp_path_factory, spark):
    """The folder and the lake of the `init` example, with every query run."""
    folder = tmp_path_factory.mktemp("init") / "shop"
    init_project.make(folder, with_example=True)
    lake = Lake(folder / "lake")
    done = ingest(lake, [str(folder / "landing" / "_by_stream")], IngestOptions(by="stream"))
    assert done.event_times_us is not None and done.event_times_us[0] // 86_400_000_000 == 19_723  # 2024-01-01
    for path in sorted((folder / "queries").glob("*.yaml")):
        run(lake, load_query(path), flush=True)
    return folder, lake


def required(rows, window_us):
    """Compute the retention that each pair requires: stream time at its later arrival - window - earlier event time."""
    event, side = (
        rows["event_ts"].cast("timestamp[us]").to_numpy().astype(np.int64),
        rows["stream"].to_numpy() == "clicks",
    )
    never = np.iinfo(np.int64).min
    latest = [np.maximum.accumulate(np.where(side == s, event, never)) for s in (False, True)]
    stream_time = np.minimum(*latest)
    session, retentions = rows["session"].to_pylist(), []
    for x in range(len(event)):
        for y in range(x + 1, len(event)):
            if session[x] == session[y] and side[x] != side[y] and abs(event[x] - event[y]) <= window_us:
                retentions.append(stream_time[y] - window_us - event[x])
    return np.array(retentions)


def test_a_joins_curve_follows_the_set_formula(shop, tmp_path):
    folder, lake = shop
    spec = load_query(folder / "queries" / "join.yaml")
    curve = explain(lake, spec, plot=tmp_path / "join.png")
    needs = required(init_project.example(), spec.window_us)
    assert (
        curve.points[-1].share + curve.beyond / curve.due == pytest.approx(1.0)
        and curve.clairvoyant.periods_met >= 0.95
    )
    for point in curve.points:
        assert point.share == pytest.approx(np.mean(needs < point.constant_us), abs=2e-3)
    assert (tmp_path / "join.png").stat().st_size > 10_000
    assert "clairvoyant" in curve.to_text()
    run_points = ledger(lake, spec).to_pandas()
    assert curve.done.rows_held == rows_held_mean(run_points), "as in the report"


@pytest.mark.parametrize("kind", ["aggregate", "topk", "theta_join", "membership"])
def test_every_other_kind_explains_itself_and_draws(shop, tmp_path, kind):
    folder, lake = shop
    explanation = explain(lake, load_query(folder / "queries" / f"{kind}.yaml"), plot=tmp_path / f"{kind}.png")
    assert (tmp_path / f"{kind}.png").stat().st_size > 10_000
    assert "clairvoyant" in explanation.to_text() and explanation.to_dict()["query"]
    assert "false-positive rate" in explanation.to_text() or kind != "membership"
    assert explanation.points[-1].share + explanation.beyond / explanation.due == pytest.approx(1.0)
    assert explanation.points[0].share < explanation.points[-1].share
    rows = ledger(lake, load_query(folder / "queries" / f"{kind}.yaml")).to_pandas()
    if kind in ("aggregate", "topk"):  # the others await repair
        assert (explanation.done.rows_held, explanation.done.wait_us) == (rows_held_mean(rows), wait_mean_us(rows))
    waits, held = ([getattr(point, name) for point in explanation.points] for name in ("wait_us", "rows_held"))
    assert waits == sorted(waits) and waits[0] < waits[-1] and held[0] < held[-1]
    if kind == "theta_join":  # in the names and values of the query instead of stream numbers and codes
        assert "  short.page = long.page: 0 partition pairs whole, 10 on the diagonal" in explanation.to_text()
        cuts = re.findall(r"    cuts (.*)", explanation.to_text())
        assert set(cuts[0].split(", ")) <= {"home", "search", "product", "basket", "help"}
        assert "  round 1: short with long" in explanation.to_text()


@pytest.mark.parametrize("kind", ["aggregate", "join"])
def test_lateness_is_broken_down_by_the_values_of_a_column(shop, kind):
    folder, lake = shop
    spec = load_query(folder / "queries" / f"{kind}.yaml")
    breakdown = explain(lake, spec, by="page").by
    rows = init_project.example()
    event = rows["event_ts"].cast("timestamp[us]").to_numpy().astype(np.int64)
    streams, page = (
        np.array(rows["stream"].to_pylist()),
        np.array([name or "null" for name in rows["page"].to_pylist()], object),
    )
    used = np.isin(streams, spec.stream_names)
    never = np.iinfo(np.int64).min
    latest = [np.maximum.accumulate(np.where(streams == s, event, never)) for s in dict.fromkeys(spec.stream_names)]
    lateness = np.maximum(np.min(latest, axis=0) - event, 0)
    late = np.isin(np.arange(len(event)), lake.table("late", spec.name).read(columns=["seq"])["seq"].to_numpy())
    lateness_of = {row.value: row for row in breakdown.values}
    assert sum(row.rows for row in breakdown.values) == used.sum() and breakdown.others == 0
    for value, row in lateness_of.items():
        those = used & (page == value)
        assert (row.rows, row.late_rows) == (those.sum(), (those & late).sum())
        assert row.lateness_p99_us == pytest.approx(np.quantile(lateness[those], 0.99, method="higher"), rel=0.2)
    order = [row.late_rows for row in breakdown.values]
    assert order == sorted(order, reverse=True) and "95% lateness" in breakdown.to_text()
    with pytest.raises(InputError, match=r"--by: 'colour': is no column of .*choose one of .*page"):
        explain(lake, spec, by="colour")


@pytest.mark.parametrize("kind", ["aggregate", "topk"])
def test_history_has_the_windows_that_a_flush_closed(shop, spark, kind):
    """Sliding windows may end after the last row; before the flush they are not part of the history."""
    folder, lake = shop
    spec = load_query(folder / "queries" / f"{kind}.yaml")
    assert spec.window.slide_us < spec.window.size_us
    repair(lake, spec, flush=True)
    starts = result_views.results(lake, spec)["window_start"].cast("timestamp[us]").to_numpy().astype(np.int64)
    stage, end = windowed_stage(spec, spark, lake), committed_seq(lake)
    flushed, ended = (
        {
            window.window * spec.window.slide_us
            for windows in stage.observation.history(end, whole=whole)
            for window in windows
        }
        for whole in (True, False)
    )
    assert flushed == set(starts.tolist()) and ended < flushed


@pytest.mark.parametrize(("kind", "phrase"), [("theta_join", "comparisons"), ("membership", "false-positive rate")])
def test_without_a_promise_explain_describes_the_work(shop, tmp_path, kind, phrase):
    folder, lake = shop
    lines = (folder / "queries" / f"{kind}.yaml").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith(("name:", "quality:"))) + f"\nname: plain_{kind}\n"
    spec = parse_query(text)
    run(lake, spec)
    explanation = explain(lake, spec, plot=tmp_path / "plain.png")
    assert phrase in explanation.to_text() and "clairvoyant" not in explanation.to_text()
    assert (tmp_path / "plain.png").stat().st_size > 10_000
    with pytest.raises(SpecError, match=r"takes nothing from adapt.*recall"):
        adapt(lake, spec)


def test_a_bound_on_rows_held_is_checked_and_changes_no_result(shop):
    folder, lake = shop
    text = (folder / "queries" / "join.yaml").read_text().replace("period: 1 h}", "period: 1 h, rows_held: 10}")
    spec = parse_query(text)
    assert spec.rows_held == 10 and spec.fingerprint() == load_query(folder / "queries" / "join.yaml").fingerprint()
    (failure,) = [line for line in check(lake, spec).failures if "rows_held" in line]
    assert "above 10 (2024-01-0" in failure and "expected: at most 10" in failure and "np." not in failure


@pytest.mark.parametrize("change", [("10 min", "20 min"), ("period: 1 h", "period: 2 h"), ("kind: join", "kind: topk")])
def test_results_are_checked_by_another_target_but_not_by_another_signature(shop, change):
    folder, lake = shop
    text = (folder / "queries" / "join.yaml").read_text()
    assert text.count(change[0]) and "recall: 0.95" in text
    repair(lake, load_query(folder / "queries" / "join.yaml"), flush=True)
    less = parse_query(text.replace("recall: 0.95", "recall: 0.01"))
    assert not [line for line in check(lake, less).failures if "recall" in line]
    more = parse_query(text.replace("recall: 0.95", "recall: 1"))
    assert set(ledger(lake, more)["target"].to_pylist()) == {1.0}
    assert [line for line in check(lake, more).failures if "recall" in line]
    if change[0] == "kind: join":
        name = load_query(folder / "queries" / "join.yaml").name
        text = (
            f"name: {name}\nkind: join\nstreams: {{a: views}}\nscore: seq\nk: 2\nwindow: 10 min\n"
            "quality: {hit_rate: 0.9, period: 1 h}\n"
        )
    changed = parse_query(text.replace(*change))
    for command in (check, explain, lambda lake, spec: result_views.view(lake, spec, "results")):
        with pytest.raises(InputError, match=r"has changed since it ran: .* was .*, is .* only its target"):
            command(lake, changed)


@pytest.mark.parametrize("quality", ["", "quality: {rows_held: 9999}\n", "quality: {hit_rate: 0.9, period: 1 h}\n"])
def test_a_query_without_a_target_makes_no_promise(shop, quality):
    _, lake = shop
    name = f"best_{len(quality)}"
    spec = parse_query(
        f"name: {name}\nkind: topk\nstreams: {{v: views}}\nscore: seq\nk: 2\nwindow: 10 min\n{quality}strategy: none\n"
    )
    run(lake, spec, flush=True)
    repair(lake, spec, flush=True)
    expectations = {result["expectation"] for result in check(lake, spec).results}
    assert ("expect_recall_to_meet_target" in expectations) == spec.promises == ("hit_rate" in quality)
    assert "expect_complete_after_repair" in expectations


@pytest.mark.parametrize("kind", ["join", "membership"])
def test_the_ledger_is_empty_until_all_streams_are_seen(shop, tmp_path, kind):
    folder, full = shop
    lake, spec = Lake(tmp_path / "lake"), load_query(folder / "queries" / f"{kind}.yaml")
    ingest(lake, [str(folder / "landing" / "_by_stream")], IngestOptions(by="stream"))
    run(lake, spec, until_seq=0)
    check(lake, spec, report_dir=tmp_path / "report")
    assert explain(lake, spec).to_text()
    rows = ledger(lake, spec)
    assert rows.num_rows == 0 and rows.schema.equals(ledger(full, spec).schema)


def test_data_docs_of_one_query_keep_the_pages_of_others(shop, tmp_path):
    folder, lake = shop
    names = []
    for kind in ("join", "membership"):
        spec = load_query(folder / "queries" / f"{kind}.yaml")
        repair(lake, spec, flush=True)
        page = check(lake, spec, report_dir=tmp_path).report
        assert f"data_docs/{spec.name}/index.html" in page.read_text()
        names.append(spec.name)
    suites = {"ledger", "books", "results"}
    # the membership has filters, and is not judged: it is learning in its only period
    more = {names[0]: {"promises", "whole"}, names[1]: {"filters"}}
    for name in names:
        validations = tmp_path / "data_docs" / name / "validations"
        pages = {path.stem.rpartition("-")[2] for path in validations.rglob("*.html")}
        assert pages == {f"{name}.{suite}" for suite in suites | more[name]}
        assert f"data_docs/{name}/index.html" in (tmp_path / "index.html").read_text()
    check(lake, load_query(folder / "queries" / "join.yaml"), report_dir=tmp_path)
    assert all((tmp_path / "data_docs" / name / "index.html").is_file() for name in names)


def test_a_report_of_a_query_named_index_is_not_the_index(shop, tmp_path):
    _, lake = shop
    spec = parse_query(
        "name: index\nkind: membership\nstreams: {a: views, b: clicks}\nelement: session\nwindow: 10 min\n"
    )
    run(lake, spec)
    page = check(lake, spec, report_dir=tmp_path).report
    assert page.name != "index.html" and page.name in (tmp_path / "index.html").read_text()
    assert "recall" in page.read_text()
    (state,) = re.findall(
        r"index\.query\.html'>index</a></td><td[^>]*>(?:<span class=)?(ok>all kept|\d broken)<",
        (tmp_path / "index.html").read_text(),
    )
    assert state == "ok>all kept"
