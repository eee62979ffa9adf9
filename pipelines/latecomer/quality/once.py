"""Does any result stand twice, and how many rows do the answers say there must be?

What `run` and `repair` wrote is read batch by batch and each row told by a hash of what names it, so that 8 to 24 bytes a row are held,
whatever its columns are. Rows whose hashes meet are read again and compared by value: what is said to stand twice does. The laws of
answers that have revisions or ranks count hashes: of n answers two are taken for one with a chance of ``n^2 / 2^65``.

Views cannot answer this. They show an identity once, however often it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.order import cuts
from latecomer.lake import identities, small
from latecomer.lake.location import Lake
from latecomer.specs.spec import Answers, Spec


@dataclass(frozen=True)
class Stored:
    """Result rows within reach.

    Attributes
    ----------
    rows
        Per table, ``on_time`` and ``corrections``, its rows.
    keys
        Columns that name a row.
    again
        The identities that stand more than once, one row each.
    more
        Rows that would have to go for each identity to stand once.
    laws
        ``law``, ``left`` and ``right``, which must be equal, where the kind's answers say how many rows there must be.
    """

    rows: dict[str, int]
    keys: tuple[str, ...]
    again: pa.Table
    more: int
    laws: list[dict[str, Any]]


def stored(lake: Lake, spec: Spec, within: Mapping[str, pc.Expression]) -> Stored:
    """Count the rows of each table that are `within`."""
    beside = {Answers.ADDED: (), Answers.REPLACED: ("published_seq",)}.get(spec.answers, ("revision",))
    keys = (*spec.result_keys, *beside)
    answer = tuple(name for name in spec.result_keys if name != "rank")
    place = {Answers.REVISED: "revision", Answers.RANKED: "rank"}.get(spec.answers)
    rows = dict.fromkeys(within, 0)
    named, owners, places = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for area, batch in _batches(lake, spec, within, keys):
        rows[area] += batch.num_rows
        named.append(identities.hashes(batch, keys))
        if place is not None:
            owners.append(identities.hashes(batch, answer))
            places.append(batch[place].cast(pa.int64()).to_numpy(zero_copy_only=False))
    every = np.concatenate(named)
    every.sort()
    meet = np.unique(every[1:][every[1:] == every[:-1]])
    again, more = _compared(lake, spec, within, keys, meet) if len(meet) else (pa.table({}), 0)
    written = sum(rows.values())
    laws = []
    if spec.answers is Answers.ADDED:
        laws = [{"law": "results = on time + repaired", "left": written - more, "right": written}]
    elif place is not None:
        laws = [_law(spec.answers, np.concatenate(owners), np.concatenate(places), written)]
    return Stored(rows, keys, again, more, laws)


def _batches(
    lake: Lake, spec: Spec, within: Mapping[str, pc.Expression], keys: tuple[str, ...]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    columns = [*keys, *(("rank",) if spec.answers is Answers.RANKED else ())]
    for area, rows in within.items():
        for batch in small.batches(lake, area, spec.name, list(dict.fromkeys(columns)), rows):
            yield area, batch


def _compared(
    lake: Lake, spec: Spec, within: Mapping[str, pc.Expression], keys: tuple[str, ...], meet: np.ndarray
) -> tuple[pa.Table, int]:
    """Of the rows whose hashes are in `meet`: the identities that do stand more than once, and how many rows are too many."""
    parts = []
    for _, batch in _batches(lake, spec, within, keys):
        chosen = np.isin(identities.hashes(batch, keys), meet)
        if chosen.any():
            parts.append(pa.Table.from_batches([batch.filter(pa.array(chosen))]).select(list(keys)))
    rows = pa.concat_tables(parts, promote_options="default")
    (code,) = identities.codes([rows], keys)
    _, first, often = np.unique(code, return_index=True, return_counts=True)
    return rows.take(pa.array(first[often > 1])), int((often - 1).sum())


def _law(answers: Answers, owner: np.ndarray, place: np.ndarray, written: int) -> dict[str, Any]:
    """Of rows of answers `owner` (hashes) with a revision or a rank `place`."""
    order = np.lexsort((place, owner))
    owner, place = owner[order], place[order]
    last = place[cuts(owner)[1:] - 1]
    if answers is Answers.REVISED:
        return {
            "law": "revisions of all answers = on time + corrections",
            "left": int((last + 1).sum()),
            "right": written,
        }
    ranks = len(cuts(owner, place)) - 1
    return {"law": "ranks of an answer count up from 1", "left": ranks, "right": int(last.sum())}
