"""The ledger of a join: what `run` published and registered, joined with what `repair` found."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from latecomer.lake import row_keys
from latecomer.lake.lake import Lake
from latecomer.lake.result_views import closed_to
from latecomer.specs.spec import Spec


def repaired(lake: Lake, query: str) -> dict[int, int]:
    """Return the corrections that repairs have counted, per period (us)."""
    return lake.table("repairs", query).sum_by("period_start", "repaired", pc.field("repaired").is_valid())


def final(lake: Lake, query: str, period: NDArray[np.int64], booked: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return ``achieved_final``, float64[n]: stored result rows divided by those counted at their publication.

    It is 1 unless the lake was damaged, since rows are committed before they are counted.

    Parameters
    ----------
    period, booked : int64[n]
        Starts of periods (us), and the rows that were counted for each.
    """
    counts = [lake.table(area, query).count_by("period_start") for area in ("on_time", "corrections")]
    stored = np.array([sum(count.get(start_us, 0) for count in counts) for start_us in period.tolist()], np.int64)
    shares: NDArray[np.float64] = np.minimum(stored, booked) / np.maximum(booked, 1) + (booked == 0)
    return shares


def join_ledger(lake: Lake, spec: Spec, open_periods: pa.Table) -> pa.Table:
    """Return a join's ledger, one row per period: results published on time, recalled, missed and repaired.

    ``repaired`` and ``achieved_final`` are null until every late row registered in the period has been repaired. So are
    ``expected``, ``missed`` and ``achieved_on_time`` without a recall guarantee; with it, `run` has counted what was
    due. A period in which nothing was due has recall 1.
    """
    written = lake.table("ledger", spec.name).read()
    rows = open_periods if written is None else pa.concat_tables([written, open_periods], promote_options="default")
    rows = rows.take(pc.sort_indices(rows, sort_keys=[("period_start", "ascending"), ("emission", "ascending")]))
    rows = rows.filter(row_keys.last_of_each(rows, ["period_start"])).drop_columns(["emission"])
    start = rows["period_start"].cast(pa.int64()).to_numpy()
    known = rows["late_seq_max"].fill_null(-1).to_numpy() <= closed_to(lake, spec.name)
    per_period = repaired(lake, spec.name)
    fixed = np.array([per_period.get(start_us, 0) for start_us in start.tolist()], np.int64)
    on_time = rows["on_time"].to_numpy()
    if "due" in rows.column_names:
        expected, counted = rows["due"].to_numpy(), np.ones(len(rows), np.bool_)
        early = rows["repaired_early"].to_numpy()
        recalled, fixed = rows["recalled"].to_numpy() + early, fixed - early
    else:
        expected, counted, recalled = on_time + fixed, known, np.zeros(len(rows), np.int64)
    in_time = on_time + recalled
    share = np.where(expected > 0, in_time / np.maximum(expected, 1), 1.0)
    columns = {
        "period_start": rows["period_start"],
        "period_end": rows["period_end"],
        "expected": pa.array(expected, mask=~counted),
        "on_time": rows["on_time"],
        **({"recalled": pa.array(recalled)} if "due" in rows.column_names else {}),
        "missed": pa.array(expected - in_time, mask=~counted),
        "repaired": pa.array(fixed, mask=~known),
        "target": pa.array(np.full(len(rows), spec.target)),
        "achieved_on_time": pa.array(share, mask=~counted),
        "achieved_final": pa.array(final(lake, spec.name, start, expected), mask=~known),
    }
    dropped = {"late_seq_max", "due", "repaired_early"}
    rest = [name for name in rows.column_names if name not in columns and name not in dropped]
    return pa.table(columns | {name: rows[name] for name in rest})
