"""The estimator of results that were not seen, because their earlier row had left its buffer."""

from __future__ import annotations

import math
from typing import TypedDict

import numpy as np
from numba import njit

from latecomer.core.arrays.sparse_counts import Float64Array, Int64Array, SparseWeights
from latecomer.core.join.statistics import SAMPLE_FRACTION, IntervalStats, SideStats, sampled_share


class TailEstimatorState(TypedDict):
    """The parameters and the state of a `TailEstimator` as JSON."""

    window_us: int
    granularity_us: int
    interval_us: int
    period_us: int
    sample_fraction: float
    memory: int
    deviations: float
    last: int | None
    sums: dict[str, list[float]]


class TailEstimator:
    """A model of the results that were not seen, corrected by the deterministic sample: a state machine over intervals.

    *Model.* The lateness ``u = T(seq_y) - y.ts`` of every row is known, even if its partners have left. Its partners'
    required retention lies in ``(max(u - 2w, -w), u]``. The part of that span beyond ``censored_from``, times the
    density of results per microsecond in the parts that were seen, is the expected number of results that `y` missed.
    The model costs nothing, but it is wrong by a factor that depends on the data: often late rows meet far fewer
    partners.

    *Sample.* ``sampled_pairs / fraction`` is unbiased, but one sampled result stands for hundreds, and where results
    are few the sample has none.

    *Both.* The scale of the model is the ratio of sampled results to those expected in the sample, over a long span
    (`memory` periods). The scaled model is the mean of a Gamma prior, worth one result per period, for the Poisson
    count of sampled results. With much evidence the sample decides; with none the model does, on the safe side.

    *Error of the density.* Late rows may have keys that meet many partners, or few. Where results were seen and yet
    required some retention, the model can be checked: on the part ``(min(d - 2w, d / 2), d]``, above 0, of the
    retained span, next to the part that was not retained. The ratio of the results there to those expected, with one
    more row that met the expected number, corrects the density. A ratio above 1 counts at once; for rows of lateness
    ``u > d``, to the extent ``d / u``, because it was measured near `d`. A ratio below 1 permits a smaller retention,
    and quiet periods say nothing about the next burst: with `n` periods known it is raised to the power ``n / (n +
    SLOW)``.

    *Scatter.* The loss of a period is to be bounded, and an estimate is a mean. Of `u` results that were not seen,
    with an expected `m` per row, the estimate's own scatter over periods shows ``sqrt(u m)``, and the count's scatter
    is ``sqrt(u (1 + m))``. So `deviations` times the difference are added, as a factor on the model. This matters
    where a row has few partners and a period few results.

    The measurements behind these rules are in ``docs/experiments/variants.md``.

    Parameters
    ----------
    window_us, granularity_us, interval_us, period_us : int
        `w`, `g`, `L`, `P`.
    sample_fraction : float
        As in the data plane; with 0 the model stands alone.
    memory : int
        The periods over which the model's scale is learned.
    deviations : float
        The standard deviations by which the count of unseen results may exceed its mean; 0 estimates the mean.

    Attributes
    ----------
    last : int or None
        The last interval.
    sums : dict of list of float
        Fading sums, left and right. Over one period: `results` and `exposure` (row-us) seen by y, `short` and `square`
        for the modelled misses of x and their squares per row. Over `memory` periods: `sampled` results and modelled
        misses (`long`), results `near` the retention, `expected` ones and their squares per row, and `periods`.
    """

    PARTS = 8
    """The number of points over which the missed partners of a row are spread."""
    PRIOR = 1.0
    """The worth of the model in sampled results: per period against the sample, and once against its own scale."""
    SLOW = 4.0
    """The periods after which half of a ratio below 1 is believed, as an exponent."""
    _SHORT = ("results", "exposure", "short", "square")
    _LONG = ("sampled", "long", "near", "expected", "near_square", "periods")

    def __init__(
        self,
        window_us: int,
        granularity_us: int,
        interval_us: int,
        period_us: int,
        sample_fraction: float = SAMPLE_FRACTION,
        memory: int = 19,
        deviations: float = 0.0,
    ) -> None:
        self.window_us, self.granularity_us = int(window_us), int(granularity_us)
        self.interval_us, self.period_us = int(interval_us), int(period_us)
        self.sample_fraction, self.memory, self.deviations = float(sample_fraction), int(memory), float(deviations)
        self.last: int | None = None
        self.sums: dict[str, list[float]] = {name: [0.0, 0.0] for name in (*self._SHORT, *self._LONG)}

    def estimate(self, stats: IntervalStats) -> tuple[SparseWeights, SparseWeights]:
        """Return estimated results by required bucket, left and right; call once per complete interval, in order."""
        periods = (1 if self.last is None else stats.interval - self.last) * self.interval_us / self.period_us
        self.last = stats.interval
        for name, values in self.sums.items():
            span = self.memory if name in self._LONG else 1
            self.sums[name] = [v / (1 + periods / span) for v in values]
        return self._side(0, stats.left, stats.right), self._side(1, stats.right, stats.left)

    def _side(self, x: int, held: SideStats, probing: SideStats) -> SparseWeights:
        """Return estimated results whose earlier row is on side `x`, held there; the later row is of `probing`."""
        sums, share, g, censored_from = (
            self.sums,
            sampled_share(self.sample_fraction),
            self.granularity_us,
            held.censored_from,
        )
        near_from = max(min(censored_from - 2 * self.window_us // g, censored_from // 2), 0)
        exposure, near, near_square, delay, beyond, rows = _exposure(
            probing.delay_bucket, probing.delay_rows, censored_from, near_from, g, self.window_us
        )
        first_near, first_censored = (int(at) for at in held.required_bucket.searchsorted((near_from, censored_from)))
        sums["results"][x] += float(held.pairs.sum())
        sums["exposure"][x] += float(exposure.sum())
        density = sums["results"][x] / sums["exposure"][x] if sums["exposure"][x] > 0 else 0.0
        if near > 0:
            sums["near"][x] += float(held.pairs[first_near:first_censored].sum())
            sums["expected"][x] += density * near
            sums["near_square"][x] += density * density * near_square
            sums["periods"][x] += self.interval_us / self.period_us
        mean = density * self._density_ratio(x, np.minimum(max(censored_from, 0) * g / delay, 1.0)) * beyond
        missed = rows * mean
        total = float(missed.sum())
        sums["sampled"][x] += float(held.sampled_pairs[first_censored:].sum())
        sums["long"][x] += total
        sums["short"][x] += total
        sums["square"][x] += float((missed * mean).sum())
        per_result, per_miss, parts = share, 0.0, 0
        if total > 0:
            scale = (sums["sampled"][x] + self.PRIOR) / (share * sums["long"][x] + self.PRIOR)
            per_result = share + self.PRIOR / (scale * sums["short"][x])
            per_miss, parts = self.PRIOR / sums["short"][x] / per_result / self.PARTS, self.PARTS
            unseen, per_row = scale * sums["short"][x], scale * sums["square"][x] / sums["short"][x]
            scatter = math.sqrt(1 + per_row) - math.sqrt(per_row)
            per_miss *= 1 + self.deviations * scatter / math.sqrt(max(unseen, 1.0))
        return _estimated(
            held.required_bucket,
            held.pairs,
            held.sampled_pairs,
            first_censored,
            censored_from,
            per_result,
            delay,
            beyond,
            missed * per_miss,
            parts,
            g,
        )

    def _density_ratio(self, x: int, nearness: Float64Array) -> Float64Array | float:
        """Return the factor on the density of results, for rows of lateness `u` with `nearness` ``d / u`` in [0, 1]."""
        results, expected, square, periods = (
            self.sums[name][x] for name in ("near", "expected", "near_square", "periods")
        )
        if expected <= 0:
            return 1.0
        prior = self.PRIOR * (1 + square / expected)
        ratio = (results + prior) / (expected + prior)
        return 1 + (ratio - 1) * nearness if ratio > 1 else float(ratio ** (periods / (periods + self.SLOW)))

    def to_dict(self) -> TailEstimatorState:
        """Return parameters and state as JSON, exactly."""
        return {
            "window_us": self.window_us,
            "granularity_us": self.granularity_us,
            "interval_us": self.interval_us,
            "period_us": self.period_us,
            "sample_fraction": self.sample_fraction,
            "memory": self.memory,
            "deviations": self.deviations,
            "last": self.last,
            "sums": {name: list(values) for name, values in self.sums.items()},
        }

    @classmethod
    def from_dict(cls, state: TailEstimatorState) -> TailEstimator:
        """Return the estimator that `to_dict` wrote; older states lack sums, which begin at 0."""
        tail = cls(
            state["window_us"],
            state["granularity_us"],
            state["interval_us"],
            state["period_us"],
            state["sample_fraction"],
            state["memory"],
            state["deviations"],
        )
        tail.last = state["last"]
        tail.sums = {name: [float(value) for value in state["sums"].get(name, (0, 0))] for name in tail.sums}
        return tail


@njit(cache=True)
def _exposure(
    bucket: Int64Array, rows: Int64Array, from_bucket: int, near_bucket: int, granularity_us: int, window_us: int
) -> tuple[Float64Array, float, float, Float64Array, Float64Array, Int64Array]:
    """Return the exposure of rows to partners, retained and missed.

    Returns
    -------
    exposure : float64[n]
        Per delay bucket: rows times the retained part of the span that their partners require (row-us).
    near, near_square : float
        The sum of the part of it from `near_bucket` on, and the sum of the squares per row (us^2).
    delay, beyond, rows : float64[m], float64[m], int64[m]
        Of the buckets whose rows missed a part of their span: delay and missed part (us), and rows.
    """
    n, m, near, near_square = len(bucket), 0, 0.0, 0.0
    low, high = float(near_bucket) * granularity_us, float(from_bucket) * granularity_us
    exposure, delays, spans, late = np.empty(n), np.empty(n), np.empty(n), np.empty(n, np.int64)
    for i in range(n):
        delay = (bucket[i] + 0.5) * granularity_us
        span = max(min(delay + window_us, 2.0 * window_us), 0.0)
        beyond = min(max(delay - high, 0.0), span)
        exposure[i] = rows[i] * (span - beyond)
        part = max(min(delay, high) - max(delay - span, low), 0.0)
        near += rows[i] * part
        near_square += rows[i] * part * part
        if beyond > 0:
            delays[m], spans[m], late[m] = delay, beyond, rows[i]
            m += 1
    return exposure, near, near_square, delays[:m], spans[:m], late[:m]


@njit(cache=True)
def _estimated(
    bucket: Int64Array,
    pairs: Int64Array,
    sampled: Int64Array,
    first: int,
    from_bucket: int,
    per_result: float,
    delay: Float64Array,
    beyond: Float64Array,
    missed: Float64Array,
    parts: int,
    granularity_us: int,
) -> SparseWeights:
    """Return estimated results by required bucket: counted, sampled and modelled ones.

    Before place `first` the required buckets are below `from_bucket`, and results were counted. From there on each
    sampled result has the weight ``1 / per_result`` (none where that is 0), and each modelled one is spread over its
    span in `parts`.
    """
    n = len(bucket) if per_result > 0 else first
    buckets, weights = np.empty(n + len(delay) * parts, np.int64), np.empty(n + len(delay) * parts)
    for i in range(n):
        buckets[i] = bucket[i]
        weights[i] = pairs[i] if i < first else sampled[i] / per_result
    at = n
    for i in range(len(delay)):
        for part in range(parts):
            need = (delay[i] - beyond[i] * (1 - (part + 0.5) / parts)) // granularity_us
            buckets[at], weights[at] = max(int(need), from_bucket), missed[i]
            at += 1
    return buckets, weights
