"""Aggregates with a bound on their error: the coverage that a window needs, and the slack that each answer required.

Ordering: cells by (pane, group, bucket). Cost: O(n log n) for n cells in the observed windows.

Required coverage
-----------------
A window has `n` rows; a share ``lambda`` of them has arrived when it closes. If the missing rows are a random sample
(the paper's assumption, which `required_answers` does without), the least lambda that keeps ``P(error >= eps) <=
delta`` is:

- COUNT: the relative error is ``1 - lambda`` itself, so ``lambda = 1 - eps``.
- SUM, where the sum of the received rows is the answer: it has mean ``lambda S`` and, for independent arrivals of rows
  of mean mu and coefficient of variation cv, variance ``n lambda (1 - lambda) mu^2 (1 + cv^2)``. With ``S = n mu`` the
  relative error is at most ``(1 - lambda) + z sqrt(lambda (1 - lambda)(1 + cv^2) / n)`` with probability ``1 - delta``,
  one-sided (``z = z_{1-delta}``) since rows can only be missing. Few rows are missing, so their sum is skewed and the
  normal quantile is too small (with n = 400, 0.07 of the windows were off where 0.05 may be). The first Cornish-Fisher
  term, ``(z^2 - 1) / 6`` times the skewness, and half a row for a count of whole rows correct that: with the third
  moment of a gamma distribution of this cv they add ``((z^2 - 1)(1 + 2 cv^2) / 6 + 1/2) / n``. The least lambda is
  found by bisection, as the bound falls for lambda >= 1/2.
- AVG: the mean of ``m`` of `n` rows without replacement has variance ``cv^2 mu^2 / m * (1 - m/n)`` (finite population
  correction), two-sided: ``z cv sqrt((1/lambda - 1)/n) <= eps``, so ``lambda = 1 / (1 + n eps^2 / (z cv)^2)``.
- MEDIAN, QUANTILE: the error is that in rank. Hoeffding's inequality, sharpened by Serfling for sampling without
  replacement: ``P <= 2 exp(-2 m eps^2 / (1 - (m-1)/n))``; with ``m0 = ln(2/delta) / (2 eps^2)``, ``m = m0 (1 + 1/n) /
  (1 + m0/n)``.
- MIN, MAX: the extreme row has arrived with probability lambda: ``lambda = 1 - delta``.

Required slack
--------------
Real late rows are no random sample: a host, a carrier, a region is late together. :func:`required_answers` makes no
assumption: for an observed window it finds, per group, the least slack with an answer within `eps` of the answer that
is known now. ``calibrated`` learns from it, and `explain` draws it.

Errors: relative for COUNT, SUM, AVG, MIN, MAX (``|answer - truth| / |truth|``, 0 where they are equal); in rank, as a
share of the values, for MEDIAN and QUANTILE (0 where they are equal: between two values there is no rank). A missing
answer has error infinity.

References
----------
Yang, Xu, Lv and Li, HPM, Guangxi Sciences 26(4), 2019. Cochran, "Sampling Techniques", 1977. Hoeffding, JASA 58, 1963.
Serfling, Annals of Statistics 2(1), 1974. Cornish and Fisher, Revue de l'Institut International de Statistique 5, 1938.
Ji et al., "Quality-driven continuous query execution over out-of-order data streams", 2015.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.core.arrays.composite_keys import run_bounds, sort_order
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.group_sampling import GroupSample
from latecomer.core.windows.interfaces import Observed
from latecomer.core.windows.observation import Span, by_window, window_entries

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Values = Mapping[int, Float64]

RANKED = ("median", "quantile")
"""Functions with an error in rank."""


def needed_coverage(function: str, n: float, cv: float, error: float, delta: float) -> float:
    """Return ``lambda_thr``, the least share of a window's rows that keeps ``P(error >= eps) <= delta``.

    The module's docstring derives it.

    Parameters
    ----------
    function
        ``count``, ``sum``, ``avg``, ``min``, ``max``, ``median`` or ``quantile``.
    n
        Rows of the window, > 0.
    cv
        Coefficient of variation of the aggregated values, >= 0 (infinity where their mean is 0).
    error, delta
        `eps` and `delta`, in (0, 1].

    Raises
    ------
    ValueError
        If the function is unknown.
    """
    n = max(n, 1.0)
    if function == "count":
        return max(1.0 - error, 0.0)
    if function in ("min", "max"):
        return 1.0 - delta
    if function == "sum":
        return _sum_coverage(n, cv, error, delta)
    if function == "avg":
        spread = _normal_quantile(1.0 - delta / 2.0) * cv
        if spread == 0.0:
            return min(1.0 / n, 1.0)
        return 1.0 if math.isinf(spread) else 1.0 / (1.0 + n * error * error / (spread * spread))
    if function in RANKED:
        most = math.log(2.0 / delta) / (2.0 * error * error)
        return min(most * (1.0 + 1.0 / n) / (1.0 + most / n) / n, 1.0)
    raise ValueError(f"{function} is not an aggregate: use count, sum, avg, min, max, median or quantile")


def _sum_coverage(n: float, cv: float, error: float, delta: float) -> float:
    """Return the least share for SUM."""
    z = _normal_quantile(1.0 - delta)
    spread = z * math.sqrt((1.0 + cv * cv) / n)
    if not math.isfinite(spread):
        return 1.0
    skew = (max(z * z - 1.0, 0.0) * (1.0 + 2.0 * cv * cv) / 6.0 + 0.5) / n
    return float(_least_share(spread, skew, error))


@njit(cache=True)
def _least_share(spread: float, skew: float, error: float) -> float:
    """Return the least share in [0.5, 1] with a bound of at most `error`, by bisection to the last bit."""
    low, high = 0.5, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        if (1.0 - middle) + spread * math.sqrt(middle * (1.0 - middle)) + skew <= error:
            high = middle
        else:
            low = middle
    return high


@lru_cache(maxsize=64)
def _normal_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(min(max(probability, 1e-12), 1.0 - 1e-12))


@dataclass(frozen=True)
class Cells:
    """Rows of windows to be observed, grouped into cells; arrays of one length `n`.

    Attributes
    ----------
    group, pane : int64[n]
        Number or hash of the group, and pane number.
    bucket : int64[n]
        Wait beyond the end of the pane's first window, in granules; -1 for rows that came before it.
    rows : int64[n]
        Rows of the cell.
    counted, total, squares, least, most : dict of float64[n]
        By value column: number of values that are not null, their sum, sum of squares, least and greatest (NaN if
        none). A column that no function reads in this way may be missing.
    code : int64[n], optional
        Hash of the group; needed where groups are sampled.
    """

    group: Int64
    pane: Int64
    bucket: Int64
    rows: Int64
    counted: Values
    total: Values
    squares: Values
    least: Values
    most: Values
    code: Int64 | None = None

    def ordered(self) -> Cells:
        """Return the cells by (pane, group, bucket), so that sums of floats do not depend on how they were gathered.

        `group` becomes the rank of the group, and `code` its former value.
        """
        group = np.unique(self.group, return_inverse=True)[1]
        order = sort_order(self.pane, group, self.bucket)
        by_column = (self.counted, self.total, self.squares, self.least, self.most)
        counted, total, squares, least, most = (
            {column: of_cells[order] for column, of_cells in part.items()} for part in by_column
        )
        keys = (group[order], self.pane[order], self.bucket[order], self.rows[order])
        return Cells(*keys, counted, total, squares, least, most, self.group[order])


@dataclass(frozen=True)
class Function:
    """An aggregate of a query: the name of its function and the number of its value column (None for ``count()``)."""

    name: str
    column: int | None


def required_coverage(
    cells: Cells,
    grid: Grid,
    spans: Sequence[Span],
    functions: Sequence[Function],
    error: float,
    delta: float,
    sample: GroupSample | None = None,
) -> list[list[Observed]]:
    """Observe the windows of each span as HPM does: contributions are rows, and a share of them is needed.

    Parameters
    ----------
    cells
        Rows of these windows (others are ignored), in order.
    grid
        The query's windows.
    spans
        Windows to observe, and when.
    functions
        The query's aggregates; the one that needs most decides.
    error, delta
        `eps` and `delta`, in (0, 1].
    sample
        Panes with a sample of their groups, each of which stands for several.

    Returns
    -------
    list of list of Observed
        Per span, in the order of windows, without empty windows. The size of a window is its rows per group; an
        aggregate of a column counts values that are not null. `cv` is pooled over groups, so it is not underestimated
        where groups differ.
    """
    observed: list[list[Observed]] = [[] for _ in spans]
    for seen in window_entries(grid, cells.pane, cells.bucket, spans, cells.code, sample):
        place = seen.place
        rows, group = cells.rows[seen.at], cells.group[seen.at]
        order = sort_order(place, group)
        groups = np.bincount(place[order][run_bounds(place[order], group[order])[:-1]])
        needed = np.zeros(len(groups))
        for function in functions:
            values = np.bincount(place, rows if function.column is None else cells.counted[function.column][seen.at])
            cv = np.zeros(len(groups))
            if function.column is not None and function.name in ("sum", "avg"):
                cv = _variations(cells, function.column, seen.at, place)
            sizes = (values / groups).tolist()
            least = [
                needed_coverage(function.name, n, variation, error, delta)
                for n, variation in zip(sizes, cv.tolist(), strict=True)
            ]
            needed = np.maximum(needed, np.where(values > 0, least, 0.0))  # an answer without a value cannot be off
        weight = rows * seen.stands_for
        windows = by_window(seen.window, place, seen.wait, weight, grid.granularity_us, np.minimum(needed, 1.0))
        seen.append_to(observed, windows)
    return observed


def _variations(cells: Cells, column: int, at: Int64, place: Int64) -> Float64:
    """Return the coefficient of variation of a value column in each window, over all groups, float64[windows]."""
    moments = (np.bincount(place, sums[column][at]) for sums in (cells.counted, cells.total, cells.squares))
    return np.array([_variation(*window) for window in zip(*(m.tolist() for m in moments), strict=True)])


def _variation(count: float, total: float, squares: float) -> float:
    """Return the coefficient of variation of values from their number, sum and sum of squares."""
    if count <= 0:
        return 0.0
    mean = total / count
    variance = max(squares / count - mean * mean, 0.0)
    if not math.isfinite(mean) or not math.isfinite(variance):
        return math.inf
    return math.sqrt(variance) / abs(mean) if mean else (math.inf if variance else 0.0)


def required_answers(
    cells: Cells,
    grid: Grid,
    spans: Sequence[Span],
    functions: Sequence[Function],
    error: float,
    sample: GroupSample | None = None,
) -> list[list[Observed]]:
    """Observe the windows of each span with answers as contributions: per group, the least slack within `error`.

    Per (window, group) the cells are sorted by wait, longest first. The cells up to one are the rows that a slack of
    its wait would have lost. The longest wait at which some aggregate is off by `error` or more must be waited for. For
    MEDIAN and QUANTILE the share of lost values bounds the error in rank.

    Parameters and result are those of :func:`required_coverage`.
    """
    observed: list[list[Observed]] = [[] for _ in spans]
    for seen in window_entries(grid, cells.pane, cells.bucket, spans, cells.code, sample):
        group = cells.group[seen.at]
        order = sort_order(seen.place, group, -seen.wait)
        at, place, wait, group = seen.at[order], seen.place[order], seen.wait[order], group[order]
        stands_for = seen.stands_for[order]
        begins = np.ones(len(at), bool)
        begins[1:] = (place[1:] != place[:-1]) | (group[1:] != group[:-1])
        answer = np.cumsum(begins) - 1
        starts = np.flatnonzero(begins)
        # Cells of one wait are lost together: only the last of them is a possible cut.
        possible_cut = np.ones(len(at), bool)
        possible_cut[:-1] = begins[1:] | (wait[1:] != wait[:-1])
        off = np.zeros(len(at), bool)
        for function in functions:
            off |= _off(cells, at, starts, answer, function, error)
        off &= possible_cut & (wait >= 0)
        longest = np.full(len(starts), -1)
        np.maximum.at(longest, answer[off], wait[off])
        members = by_window(seen.window, place[starts], longest, stands_for[starts], grid.granularity_us)
        seen.append_to(observed, members)
    return observed


def _off(cells: Cells, at: Int64, starts: Int64, answer: Int64, function: Function, error: float) -> NDArray[np.bool_]:
    """Return after which cells, longest wait first, an answer that lost them is off by `error` or more, bool[n].

    Parameters
    ----------
    at
        int64[n], places of the cells, by answer and wait.
    starts
        First cell of each answer.
    answer
        int64[n], number of the answer of each cell.
    """
    rows = cells.rows[at].astype(np.float64)
    total = np.add.reduceat(rows, starts)[answer]
    lost = _running_sums(rows, starts)
    missing = lost >= total
    if function.column is None:
        return np.asarray(missing | (lost / total >= error), np.bool_)
    column = function.column
    count = cells.counted[column][at]
    count_all = np.add.reduceat(count, starts)[answer]
    count_lost = _running_sums(count, starts)
    if function.name == "count":
        return np.asarray(missing | (_relative(count_all - count_lost, count_all) >= error), np.bool_)
    missing |= (count_all > 0) & (count_lost >= count_all)
    if function.name in RANKED:
        return np.asarray(missing | (count_lost / np.maximum(count_all, 1.0) >= error), np.bool_)
    if function.name in ("min", "max"):
        value = cells.least[column][at] if function.name == "min" else cells.most[column][at]
        value = value if function.name == "min" else -value
        value = np.where(np.isnan(value), np.inf, value)
        truth = np.minimum.reduceat(value, starts)[answer]
        # After the loss, the least of all later cells of this answer is left.
        left = _later_minimum(value, starts)
        return np.asarray(missing | ((left != truth) & (_relative(left, truth) >= error)), np.bool_)
    sums = cells.total[column][at]
    sum_all = np.add.reduceat(sums, starts)[answer]
    sum_left = sum_all - _running_sums(sums, starts)
    if function.name == "sum":
        return np.asarray(missing | (_relative(sum_left, sum_all) >= error), np.bool_)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_left = sum_left / (count_all - count_lost)
        mean_all = sum_all / count_all
    return np.asarray(missing | ((count_all > 0) & (_relative(mean_left, mean_all) >= error)), np.bool_)


@njit(cache=True)
def _running_sums(values: Float64, starts: Int64) -> Float64:
    """Return the prefix sums inside each answer; those of one answer do not depend on the others."""
    out = np.empty(len(values))
    for answer in range(len(starts)):
        end = starts[answer + 1] if answer + 1 < len(starts) else len(values)
        total = 0.0
        for place in range(starts[answer], end):
            total += values[place]
            out[place] = total
    return out


@njit(cache=True)
def _later_minimum(values: Float64, starts: Int64) -> Float64:
    """Return per cell the least value of the cells after it in the same answer; infinity after the last."""
    out = np.full(len(values), np.inf)
    for answer in range(len(starts)):
        end = starts[answer + 1] if answer + 1 < len(starts) else len(values)
        least = np.inf
        for place in range(end - 1, starts[answer] - 1, -1):
            out[place] = least
            least = min(least, values[place])
    return out


def _relative(answer: Float64, truth: Float64) -> Float64:
    """Return the relative error of answers, 0 where both are equal or NaN, infinity where one is NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.abs(answer - truth) / np.abs(truth)
    off = np.where(answer == truth, 0.0, off)
    return np.where(np.isnan(off), np.where(np.isnan(answer) & np.isnan(truth), 0.0, np.inf), off)
