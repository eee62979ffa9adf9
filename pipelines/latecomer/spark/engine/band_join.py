"""Band join: pairs of rows whose event times differ by at most `w`, as an equi-join that Spark runs in the JVM.

Event time is cut into buckets of two windows. One side keeps each row in its own bucket; the other side is copied into
the one or two buckets that its window touches, so every pair within `w` meets in exactly one bucket. The join's keys
are the bucket, the query's equal keys and, where the predicate is ``within_distance``, the cell of a grid of that
distance. So one hot key is spread over its buckets, and Spark's adaptive skew handling splits the partitions that are
still heavy.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from latecomer.spark.engine.columns import floor_div
from latecomer.spark.engine.types import FLOATING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FAR = "1e15"
"""Cells beyond this number are one cell: their numbers would not be exact."""


@dataclass(frozen=True)
class DistanceCells:
    """The grid of ``within_distance(left.x, left.y, right.x, right.y, r)``: SQL of the four coordinates, and `r`."""

    left: tuple[str, str]
    right: tuple[str, str]
    radius: float


def band_join(
    left: DataFrame,
    right: DataFrame,
    *,
    window_us: int,
    keys: tuple[tuple[str, str], ...],
    condition: Column,
    grid: DistanceCells | None = None,
    copy_left: bool = False,
) -> DataFrame:
    """Return the pairs within the window that agree on the keys and pass `condition`.

    Parameters
    ----------
    left, right
        Rows with bigint columns ``l_ts`` and ``r_ts`` (us); all other columns start with ``l_`` and ``r_`` too.
    window_us
        `w`, >= 0.
    keys
        Pairs of SQL expressions over the left and the right columns that must be equal. A null or NaN never matches.
    condition
        Further condition over the columns of both.
    grid
        Adds cells as keys. The condition must imply the distance: the grid only reduces the candidates.
    copy_left
        Copy the left side into buckets instead of the right one: better where the left side is much smaller.
    """
    from pyspark.sql import functions as F

    width = max(2 * window_us, 1)
    names = []
    for number, (a, b) in enumerate(keys):
        left, right = left.withColumn(f"l_k{number}", F.expr(a)), right.withColumn(f"r_k{number}", F.expr(b))
        left, right = _matchable(left, f"l_k{number}"), _matchable(right, f"r_k{number}")
        names.append((f"l_k{number}", f"r_k{number}"))
    whole, copied = ("r", "l") if copy_left else ("l", "r")
    sides = {"l": left, "r": right}
    sides[whole] = sides[whole].withColumn(f"{whole}_bucket", floor_div(f"{whole}_ts", width))
    low, high = (floor_div(F.col(f"{copied}_ts") + reach, width) for reach in (-window_us, window_us))
    sides[copied] = sides[copied].withColumn(f"{copied}_bucket", F.explode(F.sequence(low, high)))
    names.append(("l_bucket", "r_bucket"))
    if grid is not None:
        cells = {"l": grid.left, "r": grid.right}
        # a little wider than the radius, so that a distance that rounds to it never spans two cells
        wide = min(grid.radius * (1 + 2.0**-40), sys.float_info.max)
        for axis in (0, 1):
            for side in "lr":
                at = f"cast({cells[side][axis]} as double) / {wide!r}D"
                cell = f"floor(greatest(least({at}, {_FAR}D), -{_FAR}D))"
                rows = sides[side].where(f"{at} is not null and not isnan({at})")
                sides[side] = rows.withColumn(f"{side}_cell{axis}", F.expr(cell))
            around = F.sequence(F.col(f"{copied}_cell{axis}") - 1, F.col(f"{copied}_cell{axis}") + 1)
            sides[copied] = sides[copied].withColumn(f"{copied}_cell{axis}", F.explode(around))
            names.append((f"l_cell{axis}", f"r_cell{axis}"))
    near = F.expr(f"l_ts between r_ts - {window_us} and r_ts + {window_us}")
    equal = near & condition
    for a, b in names:
        equal = equal & (sides["l"][a] == sides["r"][b])
    joined = sides["l"].join(sides["r"], equal)
    return joined.drop(*(name for pair in names for name in pair))


def _matchable(rows: DataFrame, name: str) -> DataFrame:
    from pyspark.sql import functions as F

    kept = rows.where(F.col(name).isNotNull())
    kind = dict(rows.dtypes)[name]
    return kept.where(~F.isnan(name)) if kind in FLOATING else kept
