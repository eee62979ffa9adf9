"""Aggregates with a bound on their error: how much of a window must be there, and what each answer would have required.

Required coverage
-----------------
A window has `n` rows, of which a share ``lambda`` has arrived when it closes. If the missing ones are a random sample (the
paper's assumption; measured, not believed: see below), the least lambda that keeps ``P(error >= eps) <= delta`` is:

- COUNT: the relative error is ``1 - lambda`` itself, so ``lambda = 1 - eps``.
- SUM, what arrived taken as the answer: the received sum has mean ``lambda S`` and, for independent arrivals of rows of
  mean mu and coefficient of variation cv, variance ``n lambda (1 - lambda) mu^2 (1 + cv^2)``. With ``S = n mu`` the relative
  error is at most ``(1 - lambda) + z sqrt(lambda (1 - lambda)(1 + cv^2) / n)`` with probability ``1 - delta``, one-sided
  (``z = z_{1-delta}``) since what is missing is missing on one side. Few rows are missing, so their sum is skewed and the normal
  quantile is too small (measured: 0.07 off for 0.05 at n = 400). The first Cornish-Fisher term, ``(z^2 - 1) / 6`` times the
  skewness, and half a row for a count of whole rows mend that: with the third moment of a gamma distribution of this cv they add
  ``((z^2 - 1)(1 + 2 cv^2) / 6 + 1/2) / n``. Least lambda by bisection: for lambda >= 1/2 the bound falls.
- AVG: the mean of ``m`` of `n` rows without replacement has variance ``cv^2 mu^2 / m * (1 - m/n)`` (finite population
  correction), two-sided: ``z cv sqrt((1/lambda - 1)/n) <= eps``, so ``lambda = 1 / (1 + n eps^2 / (z cv)^2)``.
- MEDIAN, QUANTILE: error is the error in rank. Hoeffding's inequality, sharpened by Serfling for sampling without replacement:
  ``P <= 2 exp(-2 m eps^2 / (1 - (m-1)/n))``; with ``m0 = ln(2/delta) / (2 eps^2)``, ``m = m0 (1 + 1/n) / (1 + m0/n)``.
- MIN, MAX: the extreme row has arrived with probability lambda: ``lambda = 1 - delta``.

Required slack
--------------
What is missing is not a random sample: a host, a carrier, a region is late together. :func:`required_answers` makes no
assumption: for an observed window it finds, per group, the least slack whose answer would have been within `eps` of what is
known now. It is what ``calibrated`` learns from, and what `explain` draws.

Errors: relative for COUNT, SUM, AVG, MIN, MAX (``|answer - truth| / |truth|``, 0 where they are equal); in rank, as a share of
the values, for MEDIAN and QUANTILE (0 where they are equal: between two values there is no rank); an answer that is missing
altogether has error infinity.

References
----------
Yang, Xu, Lv and Li, HPM, Guangxi Sciences 26(4), 2019. Cochran, "Sampling Techniques", 1977. Hoeffding, JASA 58, 1963. Serfling,
Annals of Statistics 2(1), 1974. Cornish and Fisher, Revue de l'Institut International de Statistique 5, 1938. Ji et al., "Quality-driven continuous query execution over out-of-order data streams", 2015.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from latecomer.core.arrays.composite_keys import run_bounds, sort_order
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.group_sampling import Thinning
from latecomer.core.windows.interfaces import Observed
from latecomer.core.windows.observation import Span, by_window, looks

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

RANKED = ("median", "quantile")


def needed_coverage(function: str, n: float, cv: float, error: float, delta: float) -> float:
    """``lambda_thr``: least share of a window's rows that keeps ``P(error >= eps) <= delta``; see the module docstring.

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
        An unknown function.
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
    z = _normal_quantile(1.0 - delta)
    spread = z * math.sqrt((1.0 + cv * cv) / n)
    if not math.isfinite(spread):
        return 1.0
    skew = (max(z * z - 1.0, 0.0) * (1.0 + 2.0 * cv * cv) / 6.0 + 0.5) / n
    return float(_least_share(spread, skew, error))


@njit(cache=True)
def _least_share(spread: float, skew: float, error: float) -> float:
    """Least share in [0.5, 1] whose bound on the error is at most `error`, by bisection to the last bit."""
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
    from statistics import NormalDist

    return NormalDist().inv_cdf(min(max(probability, 1e-12), 1.0 - 1e-12))


@dataclass(frozen=True)
class Cells:
    """Rows of windows to be observed, grouped; arrays of one length `n`.

    Attributes
    ----------
    group, pane : int64[n]
        Group (any number that tells groups apart) and pane number.
    bucket : int64[n]
        Wait beyond the end of the pane's first window, in granules; -1 for rows that came before it.
    rows : int64[n]
    counted, total, squares, least, most : float64[columns, n]
        Per value column: values that are not null, their sum, sum of squares, least and greatest (NaN where none).
    code : int64[n], optional
        Hash of the group; needed where groups are thinned.
    """

    group: Int64
    pane: Int64
    bucket: Int64
    rows: Int64
    counted: Float64
    total: Float64
    squares: Float64
    least: Float64
    most: Float64
    code: Int64 | None = None

    def ordered(self) -> Cells:
        """The same cells by (pane, group, bucket), so that sums of floats do not depend on how they were gathered; groups by their rank.

        What `group` was is in `code`.
        """
        group = np.unique(self.group, return_inverse=True)[1]
        order = sort_order(self.pane, group, self.bucket)
        deep = (self.counted, self.total, self.squares, self.least, self.most)
        counted, total, squares, least, most = (each[:, order] for each in deep)
        flat = (group[order], self.pane[order], self.bucket[order], self.rows[order])
        return Cells(*flat, counted, total, squares, least, most, self.group[order])


@dataclass(frozen=True)
class Function:
    """An aggregate: its function, and the value column it reads (None for ``count()``)."""

    name: str
    column: int | None


def required_coverage(
    cells: Cells,
    grid: Grid,
    spans: Sequence[Span],
    functions: Sequence[Function],
    error: float,
    delta: float,
    thinning: Thinning | None = None,
) -> list[list[Observed]]:
    """The windows of each span as HPM sees them: contributions are rows, and a share of them is needed.

    Parameters
    ----------
    cells
        Rows of these windows (others are ignored), in order.
    functions
        The query's aggregates; the one that needs most decides.
    thinning
        Panes of which not all groups are in the cells, or to be looked at; those that are stand for all.

    Returns
    -------
    list of list of Observed
        Per span, in the order of windows, those without rows left out. The size of a window is its rows per group, of which an aggregate
        of a column reads those that are not null; `cv` is pooled over groups, so it is not underestimated where groups differ.
    """
    found: list[list[Observed]] = [[] for _ in spans]
    for seen in looks(grid, cells.pane, cells.bucket, spans, cells.code, thinning):
        place = seen.place
        rows, group = cells.rows[seen.at], cells.group[seen.at]
        by = sort_order(place, group)
        groups = np.bincount(place[by][run_bounds(place[by], group[by])[:-1]])
        needed = np.zeros(len(groups))
        for each in functions:
            if each.column is None:
                values, cv = np.bincount(place, rows), np.zeros(len(groups))
            else:
                values = np.bincount(place, cells.counted[each.column, seen.at])
                cv = _variations(cells, each.column, seen.at, place)
            sizes = (values / groups).tolist()
            least = [needed_coverage(each.name, n, v, error, delta) for n, v in zip(sizes, cv.tolist(), strict=True)]
            needed = np.maximum(needed, np.where(values > 0, least, 0.0))  # without a value there is nothing to be off
        weight = rows * seen.stands_for
        seen.hand_out(
            by_window(seen.window, place, seen.wait, weight, grid.granularity_us, np.minimum(needed, 1.0)), found
        )
    return found


def _variations(cells: Cells, column: int, at: Int64, place: Int64) -> Float64:
    """Coefficient of variation of a value column in each window, over all groups."""
    moments = (np.bincount(place, each[column, at]) for each in (cells.counted, cells.total, cells.squares))
    return np.array([_variation(*each) for each in zip(*(m.tolist() for m in moments), strict=True)])


def _variation(count: float, total: float, squares: float) -> float:
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
    thinning: Thinning | None = None,
) -> list[list[Observed]]:
    """The same windows, contributions being answers: per group, the least slack whose answer is within `error` of the truth.

    Per (window, group) the cells are sorted by wait, longest first; after each, everything so far is what a slack up to that
    wait would have lost. The longest wait at which some aggregate is off by `error` or more must be waited for. For MEDIAN and
    QUANTILE the share of values lost bounds the error in rank.
    """
    found: list[list[Observed]] = [[] for _ in spans]
    for seen in looks(grid, cells.pane, cells.bucket, spans, cells.code, thinning):
        group = cells.group[seen.at]
        order = sort_order(seen.place, group, -seen.wait)
        at, place, wait, group = seen.at[order], seen.place[order], seen.wait[order], group[order]
        stands_for = seen.stands_for[order]
        fresh = np.ones(len(at), bool)
        fresh[1:] = (place[1:] != place[:-1]) | (group[1:] != group[:-1])
        answer = np.cumsum(fresh) - 1
        starts = np.flatnonzero(fresh)
        # cells of one wait are lost together: only the last of them is a possible cut
        whole = np.ones(len(at), bool)
        whole[:-1] = fresh[1:] | (wait[1:] != wait[:-1])
        broken = np.zeros(len(at), bool)
        for function in functions:
            broken |= _off(cells, at, starts, answer, function, error)
        broken &= whole & (wait >= 0)
        longest = np.full(len(starts), -1)
        np.maximum.at(longest, answer[broken], wait[broken])
        seen.hand_out(by_window(seen.window, place[starts], longest, stands_for[starts], grid.granularity_us), found)
    return found


def _off(cells: Cells, at: Int64, starts: Int64, answer: Int64, function: Function, error: float) -> NDArray[np.bool_]:
    """Is the answer off by `error` or more once all cells up to here (longest wait first) are lost? bool[n]."""
    rows = cells.rows[at].astype(np.float64)
    total = np.add.reduceat(rows, starts)[answer]
    lost = _running(rows, starts)
    gone = lost >= total
    if function.column is None:
        return gone | (lost / total >= error)
    column = function.column
    count = cells.counted[column, at]
    count_all = np.add.reduceat(count, starts)[answer]
    count_lost = _running(count, starts)
    if function.name == "count":
        return gone | (_relative(count_all - count_lost, count_all) >= error)
    gone |= (count_all > 0) & (count_lost >= count_all)
    if function.name in RANKED:
        return gone | (count_lost / np.maximum(count_all, 1.0) >= error)
    if function.name in ("min", "max"):
        value = cells.least[column, at] if function.name == "min" else cells.most[column, at]
        value = value if function.name == "min" else -value
        value = np.where(np.isnan(value), np.inf, value)
        truth = np.minimum.reduceat(value, starts)[answer]
        # what is left after the loss: the least of all later cells of this answer
        left = _later_minimum(value, starts)
        return gone | ((left != truth) & (_relative(left, truth) >= error))
    sums = cells.total[column, at]
    sum_all = np.add.reduceat(sums, starts)[answer]
    sum_left = sum_all - _running(sums, starts)
    if function.name == "sum":
        return gone | (_relative(sum_left, sum_all) >= error)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_left = sum_left / (count_all - count_lost)
        mean_all = sum_all / count_all
    return gone | ((count_all > 0) & (_relative(mean_left, mean_all) >= error))


@njit(cache=True)
def _running(values: Float64, starts: Int64) -> Float64:
    """Prefix sums inside each answer; those of one answer do not depend on the others."""
    out = np.empty(len(values))
    for each in range(len(starts)):
        end = starts[each + 1] if each + 1 < len(starts) else len(values)
        total = 0.0
        for place in range(starts[each], end):
            total += values[place]
            out[place] = total
    return out


@njit(cache=True)
def _later_minimum(values: Float64, starts: Int64) -> Float64:
    """Per cell, the least value of the cells after it in the same answer; infinity after the last."""
    out = np.full(len(values), np.inf)
    for each in range(len(starts)):
        end = starts[each + 1] if each + 1 < len(starts) else len(values)
        least = np.inf
        for place in range(end - 1, starts[each] - 1, -1):
            out[place] = least
            least = min(least, values[place])
    return out


def _relative(answer: Float64, truth: Float64) -> Float64:
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.abs(answer - truth) / np.abs(truth)
    off = np.where(answer == truth, 0.0, off)
    return np.where(np.isnan(off), np.where(np.isnan(answer) & np.isnan(truth), 0.0, np.inf), off)
