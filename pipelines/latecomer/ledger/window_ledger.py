"""The ledger of the windowed kinds: the rows that `run` wrote, and the completeness of their answers by now.

A window's answer can be corrected long after its period was written, so completeness is computed from on-time rows,
corrections and late rows whenever the ledger is read. ``expected``, ``missed``, ``repaired`` and both ``achieved`` are
null while a late row of the period awaits repair.

==========  ==================================================  ===============================================
kind        unit of ``expected`` and ``on_time``                ``achieved_on_time``
==========  ==================================================  ===============================================
aggregate   (row, window) contributions                         share of answers whose first error was < `error`
topk        members of the final top-k                          share that the first answer had (hit rate)
theta_join  result rows; with ``emit: count`` their matches;    share that was published on time
            with ``ranges`` windows that have an answer
membership  result elements                                     share that was published on time
==========  ==================================================  ===============================================

With a recall guarantee (:mod:`latecomer.core.windows.recall_budget`) a result that was published late, but before its
period closed, counts as published on time, in ``recalled`` beside ``on_time``. ``achieved_at_close`` is the share of
the results that the period's rows implied when it closed; it is null while the period is open.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.windows.observation import every_number
from latecomer.lake import result_views, row_keys
from latecomer.lake.delta import TIMESTAMP
from latecomer.lake.lake import Lake
from latecomer.ledger.join_ledger import final, repaired
from latecomer.specs.aggregate import AggregateSpec
from latecomer.specs.membership import MembershipSpec
from latecomer.specs.spec import Answers
from latecomer.specs.windows import RevisedSpec, WindowedSpec


def ledger(lake: Lake, spec: WindowedSpec, open_periods: pa.Table) -> pa.Table:
    """Return one row per period that has arrivals, answers or corrections."""
    written = lake.table("ledger", spec.name).read()
    parts = [open_periods] if written is None else [written, open_periods]
    rows = pa.concat_tables(parts, promote_options="default").to_pandas()
    rows["period"] = _us(rows["period_start"])
    rows = rows.sort_values(["period", "emission"]).drop_duplicates("period", keep="last").set_index("period")
    late = _late(lake, spec)
    guaranteed = "due" in rows
    completeness = _completeness(lake, spec, guaranteed=guaranteed)
    fixed = repaired(lake, spec.name)
    index = rows.index.union(late.index).union(completeness.index).union(pd.Index(sorted(fixed), dtype=np.int64))
    rows, late, completeness = rows.reindex(index), late.reindex(index).fillna(0), completeness.reindex(index)
    known = (late["pending"] == 0).to_numpy()
    expected = completeness["expected"].fillna(0).to_numpy().astype(np.int64)
    on_time = completeness["on_time"].fillna(0).to_numpy().astype(np.int64)
    achieved = completeness["achieved"].fillna(1.0).to_numpy().astype(float)
    recalled = np.zeros_like(on_time)
    at_close = None
    if guaranteed:
        recalled = (completeness["recalled"].fillna(0) + rows["repaired_early"].fillna(0)).to_numpy().astype(np.int64)
        if isinstance(spec, RevisedSpec):
            values = completeness["at_close"].to_numpy(float)
            at_close = pa.array(values, mask=~known | rows["due"].isna().to_numpy() | np.isnan(values))
        else:
            achieved = np.where(expected > 0, (on_time + recalled) / np.maximum(expected, 1), 1.0)
            at_close = _at_close(rows)
    missed = expected - on_time - recalled
    period = index.to_numpy(np.int64)
    booked = rows["published"].fillna(0).to_numpy().astype(np.int64) + [
        fixed.get(start_us, 0) for start_us in period.tolist()
    ]
    start = pa.array(period, pa.int64()).cast(TIMESTAMP)
    columns: dict[str, pa.Array] = {
        "period_start": start,
        "period_end": pa.array(period + spec.period_us, pa.int64()).cast(TIMESTAMP),
        "expected": pa.array(expected, mask=~known),
        "on_time": pa.array(on_time),
        **({"recalled": pa.array(recalled)} if guaranteed else {}),
        "missed": pa.array(missed, mask=~known),
        "repaired": pa.array(missed, mask=~known),
        "target": pa.array(np.full(len(index), spec.target)),
        "achieved_on_time": pa.array(achieved, mask=~known),
        **({} if at_close is None else {"achieved_at_close": at_close}),
        "achieved_final": pa.array(final(lake, spec.name, period, booked), mask=~known),
        "rows": pa.array(rows["rows"].fillna(0).to_numpy().astype(np.int64)),
        "late_rows": pa.array(late["late"].to_numpy().astype(np.int64)),
        "rows_held_mean": pa.array(rows["rows_held_mean"].fillna(0.0).to_numpy(float)),
        "rows_held_max": pa.array(rows["rows_held_max"].fillna(0).to_numpy().astype(np.int64)),
        "wait_mean_us": pa.array(rows["wait_mean_us"].fillna(0.0).to_numpy(float)),
        "slack_mean_us": pa.array(rows["slack_mean_us"].to_numpy(float), from_pandas=True),
    }
    if "learning" in rows:
        columns["learning"] = pa.array(rows["learning"].eq(True).to_numpy(bool))
    if isinstance(spec, MembershipSpec):
        unknown = np.full(len(index), not spec.counts_filters)
        for name in ("tested", "candidates", "confirmed", "filter_bytes", "moved_bytes", "exact_bytes"):
            columns[name] = pa.array(rows[name].fillna(0).to_numpy().astype(np.int64), mask=unknown)
        absent = (rows["tested"].fillna(0) - rows["confirmed"].fillna(0)).to_numpy(float)
        passed = (rows["candidates"].fillna(0) - rows["confirmed"].fillna(0)).to_numpy(float)
        rate = np.where(absent > 0, passed / np.maximum(absent, 1), 0.0)
        columns["false_positive_rate"] = pa.array(rate, mask=unknown)
        columns["false_positive_bound"] = pa.array(np.full(len(index), spec.false_positive_rate))
    for name in completeness.columns.difference(["expected", "on_time", "recalled", "achieved", "at_close"]):
        values = completeness[name].fillna(0).to_numpy()
        columns[name] = (
            pa.array(values, mask=~known)
            if values.dtype.kind == "f" and name != "windows"
            else pa.array(values.astype(np.int64), mask=~known)
        )
    return pa.table(columns)


def _completeness(lake: Lake, spec: WindowedSpec, *, guaranteed: bool) -> pd.DataFrame:
    """Return ``expected``, ``on_time``, ``achieved`` and the kind's other columns, by period (us)."""
    if isinstance(spec, AggregateSpec):
        return _aggregate(lake, spec)
    if spec.answers is Answers.RANKED:
        return _topk(lake, spec)
    return _counted(lake, spec, guaranteed=guaranteed)


def _at_close(rows: pd.DataFrame) -> pa.Array:
    """Return the share of results that were published when a period closed; null for open ones."""
    due, unpublished = (rows[name].to_numpy(float) for name in ("due", "unpublished"))
    return pa.array((due - unpublished) / due, pa.float64(), from_pandas=True)


def _us(times: pd.Series) -> np.ndarray:
    """Return times as us since the epoch, int64[n]."""
    return np.asarray(times.to_numpy("datetime64[us]").astype(np.int64))


def _late(lake: Lake, spec: WindowedSpec) -> pd.DataFrame:
    """Count the late rows that concern a window of each period (us), in ``pending`` the rows that await repair."""
    rows = lake.table("late", spec.name).read(columns=["seq", "windows_from", "windows_to"])
    if rows is None or rows.num_rows == 0:
        return pd.DataFrame({"late": [], "pending": []}, index=pd.Index([], dtype=np.int64), dtype=np.int64)
    pending = rows["seq"].to_numpy() > result_views.closed_to(lake, spec.name)
    # the last moments of the first and of the last window
    first = rows["windows_from"].cast(pa.int64()).to_numpy() + spec.window.size_us - 1
    last = rows["windows_to"].cast(pa.int64()).to_numpy() - 1
    if spec.period_us >= spec.window.slide_us:  # some window ends in each period between them
        at, number = every_number(first // spec.period_us, last // spec.period_us)
    else:
        at, window = every_number(np.zeros_like(first), (last - first) // spec.window.slide_us)
        number = (first[at] + window * spec.window.slide_us) // spec.period_us
    frame = pd.DataFrame({"period": number * spec.period_us, "late": 1, "pending": pending[at].astype(np.int64)})
    return frame.groupby("period").sum()


def _answers(lake: Lake, spec: WindowedSpec, columns: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read on-time rows and corrections: ``answer`` (a code per group and window), ``period`` in us, and `columns`."""
    keys = [*spec.group_by, "window_start"]
    read = (*keys, "period_start", *columns)
    tables = [lake.table(area, spec.name).read_known(read) for area in ("on_time", "corrections")]
    written = [rows for rows in tables if rows is not None]
    numbers = iter(row_keys.codes(written, keys) if written else ())
    frames = []
    for rows in tables:
        if rows is not None and "provenance" in columns:  # two or three values: as numbers, they take little memory
            place = rows.column_names.index("provenance")
            rows = rows.set_column(place, "provenance", rows["provenance"].dictionary_encode())
        if rows is None:
            frames.append(pd.DataFrame({name: np.empty(0, np.int64) for name in ("answer", "period", *columns)}))
            continue
        kept = {"answer": next(numbers), "period": rows["period_start"].cast(pa.int64())}
        frames.append(pa.table(kept | {name: rows[name] for name in columns if name in rows.column_names}).to_pandas())
    return frames[0], frames[1]


def _aggregate(lake: Lake, spec: AggregateSpec) -> pd.DataFrame:
    """Compare the first answers, and the last ones of `run`, with the answers by now."""
    columns = ["rows", "revision", "error", "provenance"]
    by_run, fixed = _answers(lake, spec, [*columns, "error_at_close"])
    by_run, fixed = (rows.reindex(columns=["answer", "period", *columns, "error_at_close"]) for rows in (by_run, fixed))
    first = by_run[by_run["provenance"] == "on_time"]
    last_of_run, last_fixed = (_newest(rows) for rows in (by_run, fixed))
    last = _newest(_together(last_of_run, last_fixed))
    # an error of NaN counts as infinite: one of the two answers is not a number, which hides the errors of
    # other functions
    last["error"] = last["error"].where(last["provenance"] == "on_time", last["error"].fillna(np.inf)).fillna(0.0)
    last["at_close"] = last["error_at_close"].fillna(last["error"]).where(last["provenance"] == "repaired", 0.0)
    both = last.merge(first[["answer", "rows"]], on="answer", how="left", suffixes=("", "_first"))
    both = both.merge(last_of_run[["answer", "rows"]], on="answer", how="left", suffixes=("", "_run"))
    on_time, published = both["rows_first"].fillna(0), both["rows_run"].fillna(0)
    frame = pd.DataFrame(
        {
            "period": both["period"].astype(np.int64),
            "on_time": on_time,
            "recalled": published - on_time,
            "expected": both["rows"],
            "windows": 1,
            "windows_off": (both["error"] >= spec.error).astype(np.int64),
            "off_at_close": (both["at_close"] >= spec.error).astype(np.int64),
        }
    )
    sums = frame.groupby("period").sum()
    sums["achieved"] = (sums["windows"] - sums["windows_off"]) / sums["windows"]
    sums["at_close"] = (sums["windows"] - sums.pop("off_at_close")) / sums["windows"]
    sums["coverage"] = sums["on_time"] / sums["expected"].clip(lower=1)
    return sums


def _together(by_run: pd.DataFrame, fixed: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of both; a frame without rows does not decide the types of columns."""
    return pd.concat([rows for rows in (by_run, fixed) if len(rows)] or [by_run])


def _newest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the row of each answer's last revision."""
    return rows.sort_values("revision").drop_duplicates("answer", keep="last")


def _topk(lake: Lake, spec: WindowedSpec) -> pd.DataFrame:
    """Count the members of the newest answers, and those of them in the first answers and in the last ones of `run`."""
    by_run, fixed = _answers(lake, spec, ["seq", "revision", "provenance"])
    first = by_run[by_run["provenance"] == "on_time"]
    last_of_run = _newest_answers(by_run)
    final = _newest_answers(_together(last_of_run, fixed))
    members, *earlier = (pd.MultiIndex.from_frame(rows[["answer", "seq"]]) for rows in (final, first, last_of_run))
    on_time, at_close = (members.isin(known).astype(np.int64) for known in earlier)
    frame = pd.DataFrame(
        {
            "period": final["period"].astype(np.int64).to_numpy(),
            "expected": 1,
            "on_time": on_time,
            "recalled": at_close - on_time,
        }
    )
    sums = frame.groupby("period").sum()
    sums["achieved"] = sums["on_time"] / sums["expected"]
    sums["at_close"] = (sums["on_time"] + sums["recalled"]) / sums["expected"]
    return sums


def _newest_answers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of each answer's last revision, where an answer has many."""
    return rows[rows["revision"] == rows.groupby("answer")["revision"].transform("max")]


def _counted(lake: Lake, spec: WindowedSpec, *, guaranteed: bool) -> pd.DataFrame:
    """Count results, or matches; ``recalled`` is 0 without a recall guarantee."""
    if spec.answers is Answers.REVISED:
        by_run, fixed = _answers(lake, spec, ["matches", "revision", "provenance"])
        by_run["matches"], fixed["matches"] = by_run["matches"].astype(float), fixed["matches"].astype(float)
        first = by_run[by_run["provenance"] == "on_time"]
        last_of_run, last = _newest(by_run), _newest(fixed)
        columns = ["answer", "period", "matches"]
        both = last_of_run[columns].merge(last[columns], on="answer", how="outer", suffixes=("_run", "_last"))
        both = both.merge(first[["answer", "matches"]], on="answer", how="left")
        on_time, published = both["matches"].fillna(0), both["matches_run"].fillna(0)
        frame = pd.DataFrame(
            {
                "period": both["period_run"].fillna(both["period_last"]).astype(np.int64),
                "on_time": on_time,
                "recalled": published - on_time,
                "expected": both["matches_last"].fillna(both["matches_run"]),
            }
        )
        sums = frame.groupby("period").sum()
    elif spec.answers is Answers.REPLACED:
        sums = _final_at_first(lake, spec).assign(recalled=0)
    else:
        table, late = lake.table("on_time", spec.name), pc.field("provenance") == "recalled"
        counts = table.count_by("period_start"), lake.table("corrections", spec.name).count_by("period_start")
        recalled = table.count_by("period_start", late) if guaranteed else {}
        index = sorted({*counts[0], *counts[1]})
        frame = pd.DataFrame(
            {
                "on_time": [counts[0].get(period, 0) - recalled.get(period, 0) for period in index],
                "recalled": [recalled.get(period, 0) for period in index],
                "expected": [counts[0].get(period, 0) + counts[1].get(period, 0) for period in index],
            },
            dtype=np.int64,
        )
        sums = frame.set_index(pd.Index(index, dtype=np.int64))
    sums["achieved"] = np.where(sums["expected"] > 0, sums["on_time"] / sums["expected"].clip(lower=1), 1.0)
    return sums


def _final_at_first(lake: Lake, spec: WindowedSpec) -> pd.DataFrame:
    """Count the answered windows, and the windows whose first answer was never replaced, by period.

    An answer has many rows.
    """
    first, fixed = (rows.drop_duplicates() for rows in _answers(lake, spec, []))
    both = _together(first, fixed).drop_duplicates()
    unchanged = both["answer"].isin(first["answer"]) & ~both["answer"].isin(fixed["answer"])
    counted = pd.DataFrame({"period": both["period"], "on_time": unchanged.astype(np.int64), "expected": 1})
    return counted.groupby("period").sum()
