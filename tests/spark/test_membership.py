"""Membership on Spark against sets: on time, after repair, for all strategies and any cut."""

import math
from collections import Counter
from datetime import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from latecomer.core.windows.interfaces import Observed
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.jobs import membership_lookup as elements
from latecomer.jobs.explain.explain import explain
from latecomer.lake import result_views
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.ledger import ledger as books
from latecomer.quality.checks import check
from latecomer.reference import windows as reference
from latecomer.spark.registry import windowed_stage
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import parse_query
from latecomer.strategies.windows import slack_policies

from tests.support import events
from tests.support.lakes import load, whole_and_cut

QUERY = """
name: everywhere
kind: membership
streams: {streams}
element: {element}
window: {window}
quality: {{{quality}false_positive_rate: 0.01, period: 10 s}}
strategy: {{name: {strategy}, gamma: 3 s}}
"""
SAME = "{size: 4 s, slide: 2 s}"
OWN = "{x: {size: 4 s, slide: 4 s}, y: {size: 6 s, slide: 3 s}}"
TWO_ALIKE = "{x: {size: 4 s, slide: 2 s}, y: {size: 4 s, slide: 2 s}, z: {size: 6 s, slide: 3 s}}"


def query(strategy="mcf", element="k", window=SAME, streams="{x: a, y: b}", recall=None, where=None):
    quality = "" if recall is None else f"recall: {recall}, "
    text = QUERY if where is None else f"{QUERY}where: {where}\n"
    text = text.format(strategy=strategy, element=element, window=window, streams=streams, quality=quality)
    return parse_query(text, "test.yaml")


def data(seed):
    return events.disordered(seed, rows=160, keys=12)


def expected(table, spec):
    arrivals = [
        reference.Arrival(r["seq"], "ab".index(r["stream"]), r["event_ts"], r, r[spec.elements[0].name] is not None)
        for r in table.to_pylist()
    ]
    grid = spec.window
    g = grid.granularity_us

    def observe(window, rows, cut):
        first = [{}, {}]
        for a, t in rows:
            own, element = first["ab".index(a.row["stream"])], a.row[spec.elements[0].name]
            own[element] = min(own.get(element, t), t)
        waits = [max(first[0][e], first[1][e]) - grid.end(window) for e in first[0].keys() & first[1].keys()]
        levels, counts = np.unique(np.array([(w // g + 1) * g for w in waits if w >= 0], np.int64), return_counts=True)
        return Observed(window, levels, counts.astype(float), float(len(waits))) if waits else None

    return reference.run(
        arrivals,
        size=grid.size_us,
        slide=grid.slide_us,
        streams=2,
        policy=slack_policies(spec)[0],
        observe=observe,
        end=table.num_rows,
    )


def sets(windows, spec):
    found = set()
    for number, rows in windows.items():
        seen = [
            {a.row[c.name] for a in rows if a.row["stream"] == s}
            for c, (_, s) in zip(spec.elements, spec.streams, strict=True)
        ]
        found |= {(number * spec.window.slide_us, x) for x in set.intersection(*seen)}
    return found


def found(table):
    rows = [(int(r["window_start"].timestamp() * 1_000_000), r["element"]) for r in table.to_pylist()]
    assert len(rows) == len(set(rows))
    return set(rows)


@pytest.mark.parametrize(
    ("strategy", "element", "recall"),
    [
        ("mcf", "k", None),
        ("mcf, slack: 2 s", "note", None),
        ("bloom", "k", None),
        ("one_filter", "k", None),
        ("exact, guarantee: false", "note", 0.8),  # with the guarantee: test_recall.py
    ],
)
def test_on_time_and_exact_after_repair(lake, tmp_path, strategy, element, recall):
    table, spec = data(2), query(strategy, element, recall=recall)
    load(lake, table, tmp_path)
    run(lake, spec, rows_per_batch=100, flush=True)
    truth = expected(table, spec)
    first, final = sets(truth.on_time, spec), sets(truth.final, spec)
    assert found(result_views.view(lake, spec, "on_time")) == first
    assert set(result_views.view(lake, spec, "late")["seq"].to_pylist()) == set(truth.late)
    repair(lake, spec, flush=True)
    assert found(result_views.results(lake, spec)) == final and len(first) < len(final)
    ledger = books.ledger(lake, spec).to_pylist()
    assert sum(r["expected"] for r in ledger) == len(final) and sum(r["on_time"] for r in ledger) == len(first)
    if spec.strategy.name == "mcf":
        assert sum(r["tested"] for r in ledger) >= sum(r["candidates"] for r in ledger) >= len(first)
    if spec.strategy.name in ("one_filter", "exact"):
        assert {r[name] for r in ledger for name in ("tested", "moved_bytes", "false_positive_rate")} == {None}
        assert check(lake, spec, report_dir=tmp_path / "report").report.is_file()
        assert f"strategy {spec.strategy.name} counts nothing about filters" in explain(lake, spec).to_text()


@pytest.mark.parametrize(("window", "slack_s"), [(SAME, 2), (OWN, 0), (TWO_ALIKE, 2)])
def test_history_says_what_a_constant_wait_would_have_given(lake, tmp_path, spark, window, slack_s):
    streams = "{x: a, y: b, z: a}" if window == TWO_ALIKE else "{x: a, y: b}"
    table, spec = data(5), query(f"mcf, slack: {slack_s} s", window=window, streams=streams)
    load(lake, table, tmp_path)
    run(lake, spec, flush=True)
    repair(lake, spec, flush=True)
    (seen,) = windowed_stage(spec, spark, lake).observation.history(table.num_rows)
    on_time = {each.window: each.total - each.lost(slack_s * 1_000_000) for each in seen}
    for name, numbers in (("on_time", on_time), ("results", {each.window: each.total for each in seen})):
        windows = [start // spec.window.slide_us for start, _ in found(result_views.view(lake, spec, name))]
        ended = [window for window in windows if window <= max(numbers)]  # stream time has not passed the others
        assert Counter(ended) == +Counter(numbers) and len(windows) - len(ended) < 5, name


@pytest.mark.parametrize(("window", "recall"), [(SAME, None), (OWN, 0.8), (TWO_ALIKE, None)])
def test_any_cut_gives_the_same_tables(tmp_path, spark, window, recall):
    streams = "{x: a, y: b, z: a}" if window == TWO_ALIKE else "{x: a, y: b}"
    table, spec = data(5), query(window=window, streams=streams, recall=recall)
    tables = whole_and_cut(tmp_path, table, spec, (60,), stop=100)
    if window == SAME:
        assert found(tables["results"]) == sets(expected(table, spec).final, spec)
        return
    from latecomer.reference.membership import results

    assert found(tables["results"]) == results_of(results, table, spec)


def results_of(results, table, spec):
    """Brute force for windows of their own."""
    windows = [(w.size_us // 1000, w.slide_us // 1000) for w in spec.windows]
    streams = [
        [(r["event_ts"] // 1000, r["k"]) for r in table.to_pylist() if r["stream"] == s] for _, s in spec.streams
    ]
    return {(start * 1000, x) for start, x in results(streams, windows)}


def test_a_window_of_late_rows_alone_is_not_in_the_ledger_of_any_cut(tmp_path, spark):
    """Its other stream's rows came in time, for windows of their own."""
    rows = [("b", t, t) for t in range(1, 10)] + [("a", 2, 1), ("a", 95, 1), ("b", 95, 1), ("a", 15, 3)]
    times = pa.array([1_700_000_000_000_000 + at * 1_000_000 for _, at, _ in rows], pa.int64())
    table = pa.table({"stream": [each[0] for each in rows], "event_ts": times, "k": [each[2] for each in rows]})
    window = "{a: 10 s, b: {size: 30 s, slide: 10 s}}"
    spec = parse_query(
        f"name: q\nkind: membership\nstreams: {{a: a, b: b}}\nelement: k\nwindow: {window}\nquality: {{period: 1 h}}\n"
    )
    tables = whole_and_cut(tmp_path, table, spec, (len(rows) - 1,), stop=len(rows) - 2)
    assert tables["late"].num_rows == 1 and sum(tables["ledger"]["exact_bytes"].to_pylist()) > 0


def test_whole_numbers_and_decimals_are_compared_by_value(lake, tmp_path):
    """Of types whose scales, or whose digits before the point, differ."""
    starts = [1_700_000_000_000_000 + i for i in range(4)]
    one, two, far = Decimal("1.50"), Decimal("2.00"), Decimal(10) ** 20
    for stream, kind, values in (
        ("a", pa.decimal128(10, 2), [one, two, None, Decimal("7.25")]),
        ("b", pa.decimal128(38, 4), [far, one, two, Decimal("7.2501")]),
        ("c", pa.int64(), [2**63 - 1, 2, 1, 7]),
    ):
        pq.write_table(pa.table({"event_ts": starts, "k": pa.array(values, kind)}), tmp_path / f"{stream}.parquet")
        ingest(lake, [str(tmp_path / f"{stream}.parquet")], IngestOptions(stream=stream))
    for streams, wanted in (("x: a, y: b", {one, two}), ("x: b, y: c", {two}), ("x: a, y: b, z: c", {two})):
        for strategy in ("mcf", "exact"):
            name = f"q_{streams.count(',')}_{streams[3]}_{strategy}"
            text = f"name: {name}\nkind: membership\nstreams: {{{streams}}}\nelement: k\n"
            text += f"window: 4 s\nstrategy: {strategy}\n"
            spec = parse_query(text)
            run(lake, spec, flush=True)
            assert set(result_views.results(lake, spec)["element"].to_pylist()) == wanted, (streams, strategy)
    spec = parse_query("name: w\nkind: membership\nstreams: {x: c, y: a}\nelement: k\nwindow: 4 s\n")
    run(lake, spec, flush=True)
    for text, often in (("2", 1), ("1", 0), (str(2**63 - 1), 0)):
        assert len(elements.windows_of(lake, spec, elements.typed(lake, spec, text))) == often


def test_instants_with_and_without_a_zone_are_compared(lake, tmp_path):
    start = 1_700_000_000_000_000
    for stream, zone in (("a", "UTC"), ("b", None)):
        k = pa.array([start, start + (5 if zone else 7)], pa.timestamp("us", tz=zone))
        pq.write_table(pa.table({"event_ts": [start, start + 1], "k": k}), tmp_path / f"{stream}.parquet")
        ingest(lake, [str(tmp_path / f"{stream}.parquet")], IngestOptions(stream=stream))
    spec = parse_query("name: q\nkind: membership\nstreams: {x: a, y: b}\nelement: k\nwindow: 4 s\n")
    run(lake, spec, flush=True)
    assert [int(each.timestamp()) for each in result_views.results(lake, spec)["element"].to_pylist()] == [
        start // 1_000_000
    ]


def test_one_element_is_asked_for_by_its_own_type(tmp_path, spark):
    table, spec, lake = data(3), query(), Lake(tmp_path / "lake")
    assert elements.typed(lake, spec, "abc").as_py() == "abc"  # no such stream yet: `run` says so
    load(lake, table, tmp_path)
    assert elements.windows_of(lake, spec, elements.typed(lake, spec, "3")) == []
    run(lake, spec, flush=True)
    repair(lake, spec, flush=True)
    everywhere = sets(expected(table, spec).final, spec)
    for element in (3, 5, 99):
        wanted = elements.windows_of(lake, spec, elements.typed(lake, spec, str(element)))
        starts = [int(datetime.fromisoformat(each).timestamp() * 1_000_000) for each in wanted]
        assert starts == sorted(start for start, known in everywhere if known == element)
    with pytest.raises(InputError, match=r"--element.*abc.*k of stream a"):
        elements.typed(lake, spec, "abc")


def test_a_mistake_is_named_as_the_file_says_it(tmp_path, spark):
    lake = Lake(tmp_path / "lake")
    load(lake, data(3), tmp_path)
    for element, key in (("w", r"element"), ("{x: k, y: w}", r"element\.y"), ("{x: k, y: note}", r"element\.y")):
        with pytest.raises(SpecError, match=rf"test\.yaml:\d+: {key}: "):
            run(lake, query(element=element))


@pytest.mark.parametrize("strategy", ["mcf", "exact"])
def test_rows_that_where_leaves_out_are_no_elements_and_never_late(lake, tmp_path, strategy):
    """One stream in both parts, by other rows each."""
    where = "x.v > 5 and (x.note is null or x.note != 'n1') and y.v < 4"
    table, spec = data(4), query(strategy, streams="{x: a, y: a}", where=where, recall=0.8)
    note, v = table["note"].to_pylist(), table["v"].to_pylist()
    mine = [stream == "a" for stream in table["stream"].to_pylist()]
    first = [own and x > 5 and n != "n1" for own, x, n in zip(mine, v, note, strict=True)]
    second = [own and x < 4 for own, x in zip(mine, v, strict=True)]
    load(lake, table, tmp_path)
    run(lake, spec, rows_per_batch=60, flush=True)
    late = set(result_views.view(lake, spec, "late")["seq"].to_pylist())
    some = {seq for seq, pair in enumerate(zip(first, second, strict=True)) if any(pair)}
    assert late and late <= some and len(some) < sum(mine)
    repair(lake, spec, flush=True)
    number, slide = table["event_ts"].to_numpy(), spec.window.slide_us
    held = [
        {
            (int(start), k)
            for k, at, counts in zip(table["k"].to_pylist(), number.tolist(), part, strict=True)
            for start in range((at - spec.window.size_us) // slide * slide + slide, at + 1, slide)
            if counts
        }
        for part in (first, second)
    ]
    assert found(result_views.results(lake, spec)) == held[0] & held[1]


def test_a_late_row_without_an_element_is_not_registered(lake, tmp_path):
    """Null and NaN are none, and change nothing."""
    rows = [
        ("a", 1, 1.5),
        ("b", 1, 1.5),
        ("a", 60, 1.5),
        ("b", 60, 1.5),
        ("a", 2, math.nan),
        ("a", 3, None),
        ("a", 4, 2.5),
    ]
    times = pa.array([1_700_000_000_000_000 + at * 1_000_000 for _, at, _ in rows], pa.int64())
    table = pa.table(
        {
            "stream": [name for name, _, _ in rows],
            "event_ts": times,
            "x": pa.array([x for _, _, x in rows], pa.float64()),
        }
    )
    load(lake, table, tmp_path)
    spec = parse_query("name: q\nkind: membership\nstreams: {a: a, b: b}\nelement: x\nwindow: 10 s\n")
    run(lake, spec, flush=True)
    assert lake.table("late", "q").read()["seq"].to_pylist() == [6]
