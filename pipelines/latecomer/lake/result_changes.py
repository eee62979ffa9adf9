"""The changes of ``results/<query>`` since a version of it, from the table's change data feed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from latecomer.lake import journal, result_views, row_keys
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.specs.spec import Spec

FIRST, RECALLED, REPAIR, BACKFILL = "first answer", "recalled", "repair", "backfill"
"""Values of ``why``."""
_VERSION, _TIME, _KIND = "_commit_version", "_commit_timestamp", "_change_type"


def newest_version(lake: Lake, query: str) -> int | None:
    """Return the Delta version of the table of results; None where it was never published."""
    table = lake.table("results", query).open()
    return None if table is None else table.version()


def changes(lake: Lake, spec: Spec, since: int) -> pa.Table:
    """Return the rows that were inserted, updated or deleted after a version of the table.

    Parameters
    ----------
    since
        Changes of later versions are returned; -1: all changes.

    Returns
    -------
    Table
        One row per change, by version and key: ``version``, ``changed_at``, ``change`` (insert, update or delete),
        ``why`` (one of `FIRST`, `RECALLED`, `REPAIR` and `BACKFILL`; null for a deletion), the row as it is since then
        (of a deletion: as it was), and ``before``, a struct of the columns that are no keys as they were before an
        update, else null.

    Raises
    ------
    InputError
        The query was not published, or the log does not hold these versions.
    """
    journal.state_for(lake, spec)
    table = lake.table("results", spec.name)
    opened = table.open()
    if opened is None:
        raise InputError(f"query {spec.name}", None, f"was not published in {lake.uri}", "publish it first")
    if not -1 <= since <= opened.version():
        remedy = f"the table is at version {opened.version()}"
        raise InputError("--since", since, "is not a version of the results", remedy)
    try:
        feed = pa.table(opened.load_cdf(starting_version=since + 1, allow_out_of_range=True))
    except (DeltaError, OSError) as error:
        problem = f"is too old: its changes are not kept any more ({' '.join(str(error).split())[:200]})"
        raise InputError("--since", since, problem, "read the whole table, and go on from its version") from None
    names = opened.to_pyarrow_dataset().schema
    feed = feed.cast(pa.schema([names.field(f.name) if f.name in names.names else _plain(f) for f in feed.schema]))
    kind = feed[_KIND].to_numpy(zero_copy_only=False)
    rows, before = (feed.filter(pa.array(of)) for of in (kind != "update_preimage", kind == "update_preimage"))
    kinds = pc.if_else(pc.equal(rows[_KIND], "update_postimage"), "update", rows[_KIND])
    keys = list(spec.result_keys)
    others = [name for name in names.names if name not in keys]
    code, old_code = row_keys.codes([rows, before], [_VERSION, *keys])
    place = np.full(1 + max(int(code.max(initial=-1)), int(old_code.max(initial=-1))), -1, np.int64)
    place[old_code] = np.arange(before.num_rows)
    place = np.where(pc.equal(kinds, "update").to_numpy(zero_copy_only=False), place[code], -1)
    taken = before.select(others).take(pa.array(place, mask=place < 0))
    parts = [taken[name].combine_chunks() for name in others]
    struct = pa.StructArray.from_arrays(parts, fields=[taken.schema.field(n) for n in others], mask=pa.array(place < 0))
    columns = {
        "version": rows[_VERSION].cast(pa.int64()),
        "changed_at": rows[_TIME].cast(pa.timestamp("us", tz="UTC")),
        "change": kinds,
        "why": _why(lake, spec, rows, kinds),
        **{name: rows[name] for name in names.names},
        "before": struct,
    }
    outcome = pa.table(columns)
    order = [("version", "ascending"), *((name, "ascending") for name in keys)]
    return outcome.take(pc.sort_indices(outcome, sort_keys=order))


def _why(lake: Lake, spec: Spec, rows: pa.Table, kinds: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return why each row is as it is: a repaired row comes from a repair if one ended with its arrival."""
    closing = pa.array(result_views.closing_arrivals(lake, spec.name))
    repaired = pc.if_else(pc.is_in(rows["published_seq"], closing), REPAIR, BACKFILL)
    by_run = pc.if_else(pc.equal(rows["provenance"], "recalled"), RECALLED, FIRST)
    why = pc.if_else(pc.equal(rows["provenance"], "repaired"), repaired, by_run)
    return pc.if_else(pc.equal(kinds, "delete"), pa.scalar(None, pa.string()), why)


def _plain(field: pa.Field) -> pa.Field:
    """Return a field of the feed with text in the common layout."""
    return field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field


def count(rows: pa.Table) -> dict[tuple[str, str | None], int]:
    """Count changes by ``change`` and ``why``, most first."""
    counts = rows.group_by(["change", "why"]).aggregate([([], "count_all")]).to_pylist()
    counts.sort(key=lambda row: (-row["count_all"], row["change"], row["why"] or ""))
    return {(row["change"], row["why"]): row["count_all"] for row in counts}
