"""Find results that are stored twice, and count the rows that revisions and ranks say there must be.

The results of `run` and `repair` are read batch by batch, and each row is identified by a hash of its keys, so that 8
to 24 bytes per row are held, of at most `ROWS_AT_ONCE` rows. Rows with equal hashes are read again and compared by
value, so a reported duplicate is one. The invariants of revisions and ranks count hashes: two of n answers are taken
for one with probability ``n^2 / 2^65``.

The views of results cannot show this: they show an identity once, however often it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.arrays.composite_keys import run_bounds
from latecomer.lake import row_keys
from latecomer.lake.lake import Lake
from latecomer.specs.spec import Answers, Spec

ROWS_AT_ONCE = 32_000_000
"""Most rows of a pass; more rows are counted in several passes, by the remainder of their answers' hashes, in about a gigabyte."""
_WHICH = {Answers.REVISED: "revision", Answers.RANKED: "rank"}


@dataclass(frozen=True)
class StoredResults:
    """The committed result rows, counted.

    Attributes
    ----------
    rows
        Number of rows by table, ``on_time`` and ``corrections``.
    keys
        Columns that identify a row.
    duplicates
        The identities that are stored more than once, one row each.
    surplus
        Rows that would have to be removed for each identity to be stored once.
    invariants
        Rows with ``law``, ``left`` and ``right``, which must be equal, for kinds whose answers say how many rows there
        must be.
    """

    rows: dict[str, int]
    keys: tuple[str, ...]
    duplicates: pa.Table
    surplus: int
    invariants: list[dict[str, Any]]


def count_results(lake: Lake, spec: Spec, within: Mapping[str, pc.Expression]) -> StoredResults:
    """Count the rows of each table that pass its filter in `within`, and find the identities that are stored twice."""
    beside = {Answers.ADDED: (), Answers.REPLACED: ("published_seq", "revision")}.get(spec.answers, ("revision",))
    keys = (*spec.result_keys, *beside)
    about = sum(lake.table(area, spec.name).count(each) for area, each in within.items())
    passes = max(1, -(-about // ROWS_AT_ONCE))
    meet, left, right = [], 0, 0
    for each in range(passes):
        named, owner, place, rows = _hashed(lake, spec, within, keys, each, passes)
        named.sort()
        meet.append(np.unique(named[1:][named[1:] == named[:-1]]))
        found = _counted(spec.answers, owner, place)
        left, right = left + found[0], right + found[1]
    twice, written = np.concatenate(meet), sum(rows.values())
    again, more = _compared(lake, spec, within, keys, twice) if len(twice) else (pa.table({}), 0)
    laws = {
        Answers.ADDED: ("results = on time + repaired", written - more, written),
        Answers.REVISED: ("revisions of all answers = on time + corrections", left, written),
        Answers.RANKED: ("ranks of an answer count up from 1", left, right),
    }
    law = laws.get(spec.answers)
    return StoredResults(
        rows, keys, again, more, [dict(zip(("law", "left", "right"), law, strict=True))] if law else []
    )


def _hashed(
    lake: Lake, spec: Spec, within: Mapping[str, pc.Expression], keys: tuple[str, ...], number: int, passes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, int]]:
    """Per row of the answers of pass `number`: the hash of `keys`; where they have revisions or ranks, the answer's own and which it is.

    And the rows of each table, of any pass.
    """
    rows = dict.fromkeys(within, 0)
    answer = tuple(name for name in spec.result_keys if name != "rank")
    which = _WHICH.get(spec.answers)
    named, owners, places = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for area, batch in _batches(lake, spec, within, keys):
        rows[area] += batch.num_rows
        own = row_keys.hashes(batch, keys)
        owner = own if which is None else row_keys.hashes(batch, answer)
        chosen = owner % np.uint64(passes) == number
        named.append(own[chosen])
        if which is not None:
            owners.append(owner[chosen])
            places.append(batch[which].cast(pa.int64()).to_numpy(zero_copy_only=False)[chosen])
    return np.concatenate(named), np.concatenate(owners), np.concatenate(places), rows


def _batches(
    lake: Lake, spec: Spec, within: Mapping[str, pc.Expression], keys: tuple[str, ...]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    for area, rows in within.items():
        for batch in lake.table(area, spec.name).batches(list(keys), rows):
            yield area, batch


def _compared(
    lake: Lake, spec: Spec, within: Mapping[str, pc.Expression], keys: tuple[str, ...], meet: np.ndarray
) -> tuple[pa.Table, int]:
    """Of the rows whose hashes are in `meet`: the identities that do stand more than once, and how many rows are too many."""
    parts = []
    for _, batch in _batches(lake, spec, within, keys):
        chosen = np.isin(row_keys.hashes(batch, keys), meet)
        if chosen.any():
            parts.append(pa.Table.from_batches([batch.filter(pa.array(chosen))]).select(list(keys)))
    rows = pa.concat_tables(parts, promote_options="default")
    (code,) = row_keys.codes([rows], keys)
    _, first, often = np.unique(code, return_index=True, return_counts=True)
    return rows.take(pa.array(first[often > 1])), int((often - 1).sum())


def _counted(answers: Answers, owner: np.ndarray, place: np.ndarray) -> tuple[int, int]:
    """Of rows of answers `owner` (hashes) with a revision or rank `place`: both sides of the kind's law, for revisions the first."""
    order = np.lexsort((place, owner))
    owner, place = owner[order], place[order]
    last = place[run_bounds(owner)[1:] - 1]
    if answers is Answers.REVISED:
        return int((last + 1).sum()), 0
    return len(run_bounds(owner, place)) - 1, int(last.sum())
