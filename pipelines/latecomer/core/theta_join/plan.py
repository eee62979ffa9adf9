"""The planner of the theta join: shared boundaries, partition pairs, skew, rounds.

Both sides of a condition are cut at the *same* boundaries, so partitions are ordered: a pair of them matches wholly,
not at all, or, on the diagonal, in part. Only the diagonal compares values. Equal values never part, so skew can leave
a partition too large; it is then cut into pieces that are joined separately and need no boundary.

Ordering: none asked of the input. Cost: O(n log p + p^2) for p partitions. Boundaries of equal depth come from a sample
of at most 100,000 values (every k-th, so the plan is a function of its input alone). The source uses boundaries of
equal width, which skew defeats.

Choices where the source is silent: an edge is planned by its first equality, else by its first inequality; pieces cut
the left stream's and the right stream's partitions alike, and every left piece receives its matches on the right once.
Spark's tasks are cut alike (:mod:`latecomer.spark.theta_join.skew_partitions`): if partitions match wholly, the planned
condition needs no test; on the diagonal all conditions do.

The steps of the source (section 3.2.1) and their place here: 1, minima and maxima, and 4, coarse filter:
:meth:`latecomer.core.theta_join.edges.Query.coarse` (Algorithm 2); 2 and 3, boundaries and partitions: `cut_codes` and
`partition_ids`; 5, partition products, and 6, tests on the diagonal: `partitioned_edge`; Algorithm 3, rounds:
`rounds_of`.

References
----------
.. [1] The FastThetaJoin algorithm, chapters 3 and 4 of the source thesis, 2020. *Errata.* Step 4, case 4 (``<=``)
   prints min and max exchanged, and Algorithm 2, lines 25 to 42, filter the right side of ``>`` by the left minimum
   where the maximum is meant. Both are corrected here by the rule that a row is kept if it can match something.
.. [2] A. Okcan and M. Riedewald, Processing theta-joins using MapReduce, SIGMOD 2011.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latecomer.core.theta_join.edges import Comparison, Edge, Query, Residuals, Step, Streams
from latecomer.core.theta_join.ranks import Side, Stats

Int64 = NDArray[np.int64]
SAMPLE = 100_000
"""Greatest number of values from which boundaries are taken."""
PIECE_ROWS = 1 << 20
"""Rows of a window above which it is more than one task; a partition then has about as many."""
MOST_PARTITIONS = 16
"""Greatest number of partitions of a window that is more than one task, unless the query names a number."""
PARTITIONS = 10
"""Default number of partitions of a window, as in the source's measurements."""
NONE, DIAGONAL, WHOLE = 0, 1, 2
"""Kinds of partition pairs: no pair of rows matches, some match, all match."""

Group = tuple[int, ...]
"""Streams that are joined already, ascending."""
Rounds = tuple[tuple[tuple[Group, Group], ...], ...]
"""Per round, the pairs of groups that are joined at once."""


@dataclass(frozen=True)
class EdgePlan:
    """The partitions of one condition.

    Attributes
    ----------
    condition
        Number of the condition that the plan follows.
    left, right, op
        Its two streams and their comparison.
    cuts
        p - 1 boundary values, ascending, or none if no row is left; partition k holds
        ``cuts[k - 1] <= value < cuts[k]``.
    left_rows, right_rows
        int64[p], rows per partition after the coarse filter.
    left_pieces, right_pieces
        int64[p], pieces per partition (0 for an empty one).
    kinds
        int8[p, p], left by right: `NONE`, `DIAGONAL` or `WHOLE`.
    candidates
        Row pairs in partition pairs that are not ruled out.
    comparisons
        Predicted comparisons (sort and search on the diagonal).
    shuffled
        Row copies sent to left pieces.
    output
        Predicted result pairs of all conditions between the two streams, as if these were independent.
    """

    condition: int
    left: int
    right: int
    op: str
    cuts: tuple[float | int, ...]
    left_rows: Int64
    right_rows: Int64
    left_pieces: Int64
    right_pieces: Int64
    kinds: NDArray[np.int8]
    candidates: int
    comparisons: int
    shuffled: int
    output: float


@dataclass(frozen=True)
class Plan:
    """The plan of a theta join of one window.

    Attributes
    ----------
    partitions
        Number of partitions.
    sizes, kept
        Rows per stream before and after the coarse filter.
    edges
        One plan per pair of streams that a condition connects.
    rounds
        Per round, the groups of streams joined at once; a group that waits is left out.
    comparisons, output
        Predicted totals.
    shipped
        Number of partitions in which rows are shipped if results are rows; 0: the window is one task.
    """

    partitions: int
    sizes: tuple[int, ...]
    kept: tuple[int, ...]
    edges: tuple[EdgePlan, ...]
    rounds: Rounds
    comparisons: int
    output: float
    shipped: int = 0

    def to_text(
        self, names: Sequence[str] = (), conditions: Sequence[str] = (), cuts: Sequence[Sequence[str]] = ()
    ) -> str:
        """Return the plan as text, one line per fact.

        Parameters
        ----------
        names, conditions, cuts
            Names of the streams, texts of the conditions, and texts of the cuts of each edge; by default their numbers.
        """
        named = names or [f"stream {number}" for number in range(len(self.sizes))]
        lines = [f"theta join: {self.partitions} partitions, equal depth"]
        for name, size, kept in zip(named, self.sizes, self.kept, strict=True):
            lines.append(f"  {name}: {size:,} rows, {kept:,} after the coarse filter")
        for number, edge in enumerate(self.edges):
            whole, diagonal = int((edge.kinds == WHOLE).sum()), int((edge.kinds == DIAGONAL).sum())
            condition = (
                conditions[edge.condition] if conditions else f"{named[edge.left]} {edge.op} {named[edge.right]}"
            )
            shown = cuts[number] if cuts else [f"{cut:g}" for cut in edge.cuts]
            lines += [
                f"  {condition}: {whole} partition pairs whole, {diagonal} on the diagonal, "
                f"{edge.kinds.size - whole - diagonal} ruled out",
                f"    cuts {', '.join(shown[:12]) or 'none'}{' ...' if len(shown) > 12 else ''}",
                f"    pieces {int(edge.left_pieces.sum())} and {int(edge.right_pieces.sum())}; "
                f"candidates {edge.candidates:,}; comparisons {edge.comparisons:,}; "
                f"rows shuffled {edge.shuffled:,}; pairs about {edge.output:,.0f}",
            ]
        for number, pairs in enumerate(self.rounds):
            groups = [[" x ".join(named[stream] for stream in group) for group in pair] for pair in pairs]
            lines.append(f"  round {number + 1}: {'; '.join(' with '.join(pair) for pair in groups)}")
        if self.shipped:
            tasks = f"more than {PIECE_ROWS:,} rows: as rows, shipped in pieces of {self.shipped} partitions"
            lines.append(f"  {tasks}; counts and ranges later")
        else:
            lines.append(f"  at most {PIECE_ROWS:,} rows: one task, which sorts and searches without partitions")
        lines.append(f"  predicted: {self.comparisons:,} comparisons, about {self.output:,.0f} results")
        return "\n".join(lines)


def plan_join(streams: Streams, conditions: Sequence[Comparison], partitions: int | None = None) -> Plan:
    """Plan the join of one window in partitions; the same input gives the same plan.

    Parameters
    ----------
    streams, conditions
        As for `latecomer.core.theta_join.join.rows`.
    partitions
        1 or more; None: `PARTITIONS`, and as many as its rows need if the window is shipped.

    Raises
    ------
    ValueError
        If the number of partitions is below 1, and as `Query`.
    """
    number = PARTITIONS if partitions is None else partitions
    check_partitions(number)
    query = Query(streams, conditions)
    kept = query.coarse()
    total = sum(query.sizes)
    shipped = 0 if total <= PIECE_ROWS else partitions or partitions_for(total, PIECE_ROWS)
    edges = tuple(_edge_plan(query, pair, kept, number) for pair in sorted(query.pairs))
    output = float(np.prod([float(len(rows)) for rows in kept]))
    for edge in edges:
        output *= edge.output / max(1.0, float(len(kept[edge.left])) * float(len(kept[edge.right])))
    return Plan(
        number,
        tuple(query.sizes),
        tuple(map(len, kept)),
        edges,
        rounds_of(len(streams), set(query.pairs)),
        sum(edge.comparisons for edge in edges),
        output,
        shipped,
    )


def partitions_for(rows: int, bound: int) -> int:
    """Return the partitions of a window by its rows alone, so results do not depend on cores; 1: it is one task."""
    return min(-(-rows // bound), MOST_PARTITIONS)


def check_partitions(partitions: int) -> None:
    """Raise ValueError if the number of partitions is below 1."""
    if partitions < 1:
        raise ValueError(f"partitions is {partitions}: give 1 or more")


def planned_condition(query: Query, pair: tuple[int, int]) -> int:
    """Return the condition that cuts a pair of streams: its first equality, else its first inequality."""
    places = query.pairs[pair]
    return next((p for p in places if query.conditions[p].op == "="), places[0])


def rounds_of(streams: int, pairs: set[tuple[int, int]]) -> Rounds:
    """Pair neighbouring groups of streams that a condition connects, round by round, until one group is left.

    This is Algorithm 3 for any number of streams and any join graph.
    """
    groups: list[Group] = [(stream,) for stream in range(streams)]
    rounds = []
    while len(groups) > 1:
        waiting, merged, joined = list(groups), [], []
        while waiting:
            group = waiting.pop(0)
            linked = [o for o in waiting if any((min(a, b), max(a, b)) in pairs for a in group for b in o)]
            if linked:
                waiting.remove(linked[0])
                joined.append((group, linked[0]))
                group = tuple(sorted(group + linked[0]))
            merged.append(group)
        if not joined:
            joined, merged = [(groups[0], groups[1])], [tuple(sorted(groups[0] + groups[1])), *groups[2:]]
        rounds.append(tuple(joined))
        groups = merged
    return tuple(rounds)


def cut_codes(query: Query, place: int, kept: Sequence[Int64], partitions: int) -> Int64:
    """Return the p - 1 ascending boundary codes of equal depth of a condition, as its left stream sees it (step 2)."""
    c = query.conditions[place]
    codes = [query.codes(place, c.left)[kept[c.left]], query.codes(place, c.right)[kept[c.right]]]
    if partitions == 1 or not any(map(len, codes)):
        return np.empty(0, np.int64)
    step = -(-sum(map(len, codes)) // SAMPLE)
    sample = np.sort(np.concatenate(codes)[::step])
    return sample[np.arange(1, partitions) * len(sample) // partitions]


def partitioned_edge(query: Query, step: Step, kept: Sequence[Int64], partitions: int, stats: Stats) -> Edge:
    """Return the edge of a single inequality by the plan: partitions in order, only the diagonal sorted and searched.

    Equal to ``query.edge(step, kept)`` as a set of pairs. An edge with an equality or several inequalities is left to
    `Query.edge`, which groups or ranks before it compares.
    """
    places = query.between(step.near, step.far)
    if len(places) != 1 or query.conditions[places[0]].op == "=":
        return query.edge(step, kept, stats)
    near_rows, far_rows = kept[step.near], kept[step.far]
    cuts = cut_codes(query, places[0], kept, partitions)
    side = query.side(places[0], step.near)
    near, far = side.near[near_rows], side.far[far_rows]
    # Step 3: partitions of both sides, in order.
    near_id, far_id = partition_ids(cuts, side, near, far)
    stats.search(len(near) + len(far), len(cuts))
    near_order, far_order = (np.argsort(_small(ids, partitions), kind="stable") for ids in (near_id, far_id))
    near_ends = np.concatenate([[0], np.cumsum(np.bincount(near_id, minlength=partitions))])
    far_ends = np.concatenate([[0], np.cumsum(np.bincount(far_id, minlength=partitions))])
    last = np.empty(len(near), np.int64)
    # Steps 5 and 6: a near partition matches all lower far partitions wholly, and values are compared on the diagonal.
    for part in range(partitions):
        near_part = near_order[near_ends[part] : near_ends[part + 1]]
        if len(near_part) == 0:
            continue
        begin, end = far_ends[part], far_ends[part + 1]
        far_part = far_order[begin:end]
        far_part = far_part[np.argsort(far[far_part], kind="stable")]
        far_order[begin:end] = far_part
        last[near_part] = begin + np.searchsorted(far[far_part], near[near_part], "right" if side.inclusive else "left")
        stats.sort(len(far_part))
        stats.search(len(near_part), len(far_part))
        stats.candidates += len(near_part) * int(end)
        # Skew: MaxSize = ceil(rows / partitions), and a larger partition is ceil(actual / MaxSize) pieces.
        max_size = -(-query.sizes[step.near] // partitions)
        stats.rows_shuffled += len(near_part) + -(-len(near_part) // max(max_size, 1)) * int(end)
    none = Residuals(np.empty((0, query.sizes[step.near]), np.int64), np.empty((0, query.sizes[step.far]), np.int64))
    return Edge(near_rows, far_rows, far_rows[far_order], np.zeros(len(near), np.int64), last, None, None, none)


def partition_ids(cuts: Int64, side: Side, near: Int64, far: Int64) -> tuple[Int64, Int64]:
    """Return partition numbers of both sides, such that a near partition matches lower far partitions wholly."""
    if side.flipped:
        return len(cuts) - np.searchsorted(cuts, ~near, "right"), len(cuts) - np.searchsorted(cuts, ~far, "right")
    return np.searchsorted(cuts, near, "right"), np.searchsorted(cuts, far, "right")


def _small(ids: Int64, partitions: int) -> NDArray[np.integer]:
    """Return partition numbers in a type with a linear stable sort, if they fit."""
    return ids.astype(np.uint16) if partitions <= 1 << 16 else ids


def _edge_plan(query: Query, pair: tuple[int, int], kept: Sequence[Int64], partitions: int) -> EdgePlan:
    """Plan one pair of streams by the condition that cuts it."""
    place = planned_condition(query, pair)
    c = query.conditions[place]
    cuts = cut_codes(query, place, kept, partitions)
    ours, theirs = query.codes(place, c.left)[kept[c.left]], query.codes(place, c.right)[kept[c.right]]
    left, right = (np.bincount(np.searchsorted(cuts, codes, "right"), minlength=partitions) for codes in (ours, theirs))
    a, b = np.arange(partitions)[:, None], np.arange(partitions)[None, :]
    kinds = np.where(a == b, DIAGONAL, NONE)
    if c.op != "=":
        kinds = np.where((a > b) if c.op in (">", ">=") else (a < b), WHOLE, kinds)
    # Skew: MaxSize = ceil(window rows / p), pieces = ceil(actual / MaxSize).
    left_pieces, right_pieces = (
        -(-rows // max(1, -(-query.sizes[stream] // partitions))) for rows, stream in ((left, c.left), (right, c.right))
    )
    products = left[:, None].astype(object) * right[None, :].astype(object)
    diagonal = [(int(n), int(m)) for n, m in zip(left, right, strict=True) if n and m]
    sample = np.unique(theirs[:: -(-len(theirs) // SAMPLE)]) if len(theirs) else theirs
    within = sum(n * m for n, m in diagonal) * (1 / max(1, len(sample)) * partitions if c.op == "=" else 0.5)
    output = float(products[kinds == WHOLE].sum()) + min(within, float(sum(n * m for n, m in diagonal)))
    for _ in range(len(query.pairs[pair]) - 1):
        output /= 2
    return EdgePlan(
        place,
        c.left,
        c.right,
        c.op,
        tuple(query.decode(place, cuts)),
        left,
        right,
        left_pieces,
        right_pieces,
        kinds.astype(np.int8),
        int(products[kinds != NONE].sum()),
        sum(m * (m - 1).bit_length() + n * m.bit_length() for n, m in diagonal)
        + (len(ours) + len(theirs)) * len(cuts).bit_length(),
        int(left.sum() + (right[None, :] * (kinds != NONE) * left_pieces[:, None]).sum()),
        output,
    )
