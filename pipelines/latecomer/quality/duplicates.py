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
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from latecomer.core.arrays.composite_keys import run_bounds
from latecomer.lake import row_keys
from latecomer.lake.lake import Lake
from latecomer.specs.spec import Answers, Spec

ROWS_AT_ONCE = 32_000_000
"""The most rows of a pass, about a gigabyte. More rows are divided by the remainders of their answers' hashes."""
_ORDINALS = {Answers.REVISED: "revision", Answers.RANKED: "rank"}
"""Columns that number the rows of one answer."""


class Invariant(TypedDict):
    """Two counts, ``left`` and ``right``, that the invariant named ``law`` says are equal."""

    law: str
    left: int
    right: int


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
        The invariant of the kind; none for a kind whose answers do not determine the number of rows.
    """

    rows: dict[str, int]
    keys: tuple[str, ...]
    duplicates: pa.Table
    surplus: int
    invariants: list[Invariant]


def count_results(lake: Lake, spec: Spec, within: Mapping[str, pc.Expression]) -> StoredResults:
    """Count the rows of each table that pass its filter in `within`, and find the identities that are stored twice."""
    versions = {Answers.ADDED: (), Answers.REPLACED: ("published_seq", "revision")}.get(spec.answers, ("revision",))
    keys = (*spec.result_keys, *versions)
    passes = _passes(lake, spec, within)
    repeated, left, right = [], 0, 0
    for number in range(passes):
        identities, answers, ordinals, rows = _hashed(lake, spec, within, keys, number, passes)
        identities.sort()
        repeated.append(np.unique(identities[1:][identities[1:] == identities[:-1]]))
        counts = _counted(spec.answers, answers, ordinals)
        left, right = left + counts[0], right + counts[1]
    hashes, written = np.concatenate(repeated), sum(rows.values())
    twice, surplus = _compared(lake, spec, within, keys, hashes) if len(hashes) else (pa.table({}), 0)
    by_kind: dict[Answers, Invariant] = {
        Answers.ADDED: {"law": "results = on time + repaired", "left": written - surplus, "right": written},
        Answers.REVISED: {
            "law": "revisions of all answers = on time + corrections",
            "left": left,
            "right": written,
        },
        Answers.RANKED: {"law": "ranks of an answer count up from 1", "left": left, "right": right},
    }
    invariants = [by_kind[spec.answers]] if spec.answers in by_kind else []
    return StoredResults(rows, keys, twice, surplus, invariants)


def count_keys(lake: Lake, spec: Spec, within: Mapping[str, pc.Expression]) -> int:
    """Count the distinct keys of the rows of each table that pass its filter in `within`; not of replaced answers."""
    ordinal = _ORDINALS.get(spec.answers)
    keys = tuple(dict.fromkeys((*spec.result_keys, *([] if ordinal is None else [ordinal]))))
    passes, count = _passes(lake, spec, within), 0
    for number in range(passes):
        identities, answers, *_ = _hashed(lake, spec, within, keys, number, passes)
        hashes = answers if spec.answers is Answers.REVISED else identities
        count += len(np.unique(hashes))
    return count


def _passes(lake: Lake, spec: Spec, within: Mapping[str, pc.Expression]) -> int:
    """Return the number of passes over the rows, of `ROWS_AT_ONCE` each at most."""
    total = sum(lake.table(area, spec.name).count(rows) for area, rows in within.items())
    return max(1, -(-total // ROWS_AT_ONCE))


def _hashed(
    lake: Lake, spec: Spec, within: Mapping[str, pc.Expression], keys: tuple[str, ...], number: int, passes: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64], dict[str, int]]:
    """Hash the rows of the answers that belong to pass `number`.

    Returns
    -------
    identities : uint64[n]
        Hash of `keys` per row.
    answers, ordinals : uint64[n], int64[n]
        Hash of the answer, and revision or rank, per row; empty for a kind that has neither.
    rows : dict of int
        Rows by table, in all passes.
    """
    rows = dict.fromkeys(within, 0)
    answer = tuple(name for name in spec.result_keys if name != "rank")
    ordinal = _ORDINALS.get(spec.answers)
    identities, answers, ordinals = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for area, batch in _batches(lake, spec, within, keys):
        rows[area] += batch.num_rows
        identity = row_keys.hashes(batch, keys)
        answer_hash = identity if ordinal is None else row_keys.hashes(batch, answer)
        chosen = answer_hash % np.uint64(passes) == number
        identities.append(identity[chosen])
        if ordinal is not None:
            answers.append(answer_hash[chosen])
            ordinals.append(batch[ordinal].cast(pa.int64()).to_numpy(zero_copy_only=False)[chosen])
    return np.concatenate(identities), np.concatenate(answers), np.concatenate(ordinals), rows


def _batches(
    lake: Lake, spec: Spec, within: Mapping[str, pc.Expression], keys: tuple[str, ...]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    for area, rows in within.items():
        for batch in lake.table(area, spec.name).batches(list(keys), rows):
            yield area, batch


def _compared(
    lake: Lake, spec: Spec, within: Mapping[str, pc.Expression], keys: tuple[str, ...], hashes: NDArray[np.uint64]
) -> tuple[pa.Table, int]:
    """Compare rows with the given hashes by value; return the repeated identities and the number of surplus rows."""
    parts = []
    for _, batch in _batches(lake, spec, within, keys):
        chosen = np.isin(row_keys.hashes(batch, keys), hashes)
        if chosen.any():
            parts.append(pa.Table.from_batches([batch.filter(pa.array(chosen))]).select(list(keys)))
    rows = pa.concat_tables(parts, promote_options="default")
    (code,) = row_keys.codes([rows], keys)
    _, first, count = np.unique(code, return_index=True, return_counts=True)
    return rows.take(pa.array(first[count > 1])), int((count - 1).sum())


def _counted(kind: Answers, answers: NDArray[np.uint64], ordinals: NDArray[np.int64]) -> tuple[int, int]:
    """Return both sides of the kind's invariant, from `_hashed`; of revisions, the left side and 0."""
    order = np.lexsort((ordinals, answers))
    answers, ordinals = answers[order], ordinals[order]
    last = ordinals[run_bounds(answers)[1:] - 1]
    if kind is Answers.REVISED:
        return int((last + 1).sum()), 0
    return len(run_bounds(answers, ordinals)) - 1, int(last.sum())
