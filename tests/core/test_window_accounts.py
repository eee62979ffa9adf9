"""The aggregates' ledger, from tables written by hand: what counts as off, whatever groups are called. No Spark."""

import math
from collections import Counter

import pandas as pd
import pyarrow as pa
import pytest
from latecomer.lake.lake import Lake
from latecomer.ledger import window_ledger
from latecomer.ledger.window_ledger import ledger
from latecomer.quality import promise
from latecomer.quality.promise import allowed_misses
from latecomer.specs.loading import parse_query

SECOND = 1_000_000
QUERY = """
name: q
kind: aggregate
streams: {{s: a}}
group_by: [{0}]
window: 1 s
select: {{total: sum(v)}}
quality: {{error: 0.05, probability: 0.9, period: 10 s}}
"""
TIME = pa.timestamp("us", tz="UTC")


def answers(group, windows, rows, **more):
    """Result rows of windows (their seconds), all in the first period."""
    start = pa.array([w * SECOND for w in windows], pa.int64()).cast(TIME)
    columns = {
        group: pa.array([f"g{w % 2}" for w in windows]),
        "window_start": start,
        "rows": pa.array(rows, pa.int64()),
        "provenance": pa.array(["repaired" if "error" in more else "on_time"] * len(windows)),
    }
    columns |= {name: pa.array(values) for name, values in more.items()}
    return pa.table(columns | {"period_start": pa.array([0] * len(windows), pa.int64()).cast(TIME)})


def opened(published):
    """The run's half of the ledger: one period, in which so many answers were published."""
    rows = pa.table({"period_start": pa.array([0], pa.int64()).cast(TIME), "emission": pa.array([0], pa.int32())})
    for name in ("rows", "rows_held_mean", "rows_held_max", "wait_mean_us", "slack_mean_us"):
        rows = rows.append_column(name, pa.array([1.0]))
    return rows.append_column("published", pa.array([published]))


def written(folder, group, errors, published=10, kept=None):
    """So many windows of ten rows on time; some of them corrected, with these errors and one row more."""
    lake, spec = Lake(str(folder / "lake")), parse_query(QUERY.format(group))
    kept = kept or published
    lake.table("on_time", "q").append(answers(group, range(kept), [10] * kept, revision=[0] * kept), "run", 0)
    if errors:
        n = len(errors)
        fixed = answers(group, range(n), [11] * n, revision=[1] * n, error=[float(e) for e in errors])
        lake.table("corrections", "q").append(fixed, "repair", 0)
    return ledger(lake, spec, opened(published)).to_pylist()


@pytest.mark.parametrize(
    "group",
    ["g", "period", "period_last", "rows_last", "error_last", "on_time", "expected", "windows", "group_0", "0x"],
)
def test_groups_may_have_any_name(tmp_path, group):
    if group == "0x":
        group = "Größe"
    [row] = written(tmp_path, group, [0.2, 0.01])
    assert (row["windows"], row["windows_off"], row["on_time"], row["expected"]) == (10, 1, 100, 102)
    assert row["achieved_on_time"] == pytest.approx(0.9) and row["achieved_final"] == 1.0
    assert row["coverage"] == pytest.approx(100 / 102)


@pytest.mark.parametrize(
    ("errors", "off"),
    [([], 0), ([0.0, 0.0499], 0), ([0.05], 1), ([math.inf], 1), ([math.nan], 1), ([math.nan, 0.0, 0.3, math.inf], 3)],
)
def test_an_answer_is_off_from_the_error_on_and_where_the_error_is_no_number(tmp_path, errors, off):
    """NaN is an unknown error: the answer or the truth is no number, and may hide the errors of other functions."""
    [row] = written(tmp_path, "g", errors)
    assert row["windows_off"] == off and row["achieved_on_time"] == pytest.approx(1 - off / 10)
    assert row["repaired"] == len(errors)


def test_answers_that_are_gone_are_no_longer_there_after_repair(tmp_path):
    [row] = written(tmp_path, "g", [], published=16, kept=10)
    assert row["achieved_final"] == 10 / 16


def test_a_window_that_was_first_answered_by_a_repair_is_off(tmp_path):
    """A group that only late rows have: no first answer at all."""
    lake, spec = Lake(str(tmp_path / "lake")), parse_query(QUERY.format("g"))
    lake.table("on_time", "q").append(answers("g", [0], [10], revision=[0]), "run", 0)
    lake.table("corrections", "q").append(answers("g", [1], [1], revision=[0], error=[math.inf]), "repair", 0)
    [row] = ledger(lake, spec, opened(1)).to_pylist()
    assert (row["windows"], row["windows_off"], row["on_time"], row["expected"], row["missed"]) == (2, 1, 10, 11, 1)


@pytest.mark.parametrize("n", [1, 5, 20, 50, 500])
def test_few_windows_do_not_cry_wolf_and_many_misses_are_no_chance(n):
    from scipy.stats import binom

    most = allowed_misses(n, 0.95)
    assert binom.sf(most, n, 0.05) <= 0.05 < (binom.sf(most - 1, n, 0.05) if most else 1.0)
    assert n < 500 or most < 0.08 * n


@pytest.mark.parametrize("windows", [11, 116, 148, 167])
def test_a_period_that_just_reaches_what_chance_allows_is_not_below_it(tmp_path, windows):
    allowed = allowed_misses(windows, 0.9, 0.05)
    for off in (allowed, allowed + 1):
        rows = pd.DataFrame(written(tmp_path / f"{off}", "g", [1.0] * off, windows))
        rows["period_end"] = rows["period_start"] + pd.Timedelta(seconds=10)
        [verdict] = promise.verdicts(parse_query(QUERY.format("g")), rows, 10 * SECOND).to_dict("records")
        assert verdict["kept"] == (off == allowed)


@pytest.mark.parametrize(("size", "slide"), [(1_000, 100), (100, 100), (70, 30)])
@pytest.mark.parametrize("period", [1, 7, 90, 100, 130, 5_000])
def test_a_late_row_counts_in_the_periods_in_which_its_windows_end(tmp_path, size, slide, period):
    """Periods of less than a slide between two of them are of neither: once there were three million for a late row."""
    window = f"{{size: {size} us, slide: {slide} us}}"
    text = QUERY.format("g").replace("window: 1 s", f"window: {window}").replace("period: 10 s", f"period: {period} us")
    lake, starts = Lake(str(tmp_path)), [-700, -slide, 0, 35 * slide]
    counts = [1 + 3 * place for place in range(len(starts))]
    spans = {
        "windows_from": starts,
        "windows_to": [start + (count - 1) * slide + size for start, count in zip(starts, counts, strict=True)],
    }
    rows = {name: pa.array(values, pa.int64()).cast(TIME) for name, values in spans.items()}
    lake.table("late", "q").append(pa.table({"seq": pa.array(range(len(starts)), pa.int64()), **rows}), "run", 0)
    wanted = Counter(
        each
        for start, count in zip(starts, counts, strict=True)
        for each in {(start + k * slide + size - 1) // period * period for k in range(count)}
    )
    found = window_ledger._late(lake, parse_query(text))
    assert found["late"].to_dict() == found["pending"].to_dict() == wanted
