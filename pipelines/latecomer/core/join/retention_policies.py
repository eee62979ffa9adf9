"""The retention policies of a join: rules that choose the extra retention of both buffers, interval by interval.

`CalibratedRetention` is the default of the strategy ``qjoin``: the controller of
:mod:`latecomer.core.join.calibrated_control`, which aims at the share of periods that meet the target.
`QJoinRetention` is the paper's controller with any of the estimators of :mod:`latecomer.core.join.recall_estimators`.
`UnlimitedRetention` and `ConstantRetention` do not adapt. The slacks of the K-slack family are in
:mod:`latecomer.core.join.k_slack`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TypedDict

from latecomer.core.arrays.sparse_counts import SparseWeights
from latecomer.core.join.calibrated_control import Calibrated, CalibratedState, IntervalLoss
from latecomer.core.join.recall_estimators import (
    ESTIMATORS,
    EvidenceWindow,
    Recall,
    choose_retention,
    delay_aware,
    empirical_of,
    interval_target,
    paper,
)
from latecomer.core.join.statistics import (
    SAMPLE_FRACTION,
    IntervalStats,
    IntervalStatsState,
    SideStats,
    sampled_share,
    uncensor,
)
from latecomer.core.join.tail_estimator import TailEstimator, TailEstimatorState
from latecomer.core.state import StateDocument
from latecomer.core.time import FOREVER


@dataclass(frozen=True)
class RetentionParameters:
    """The parameters of a query that its retention policy depends on.

    Attributes
    ----------
    strategy, estimator
        Names, as in the query file.
    target
        The recall to reach in each period.
    confidence
        The share of periods that must reach it.
    window_us, period_us, interval_us, granularity_us, basic_window_us
        `w`, `P`, `L`, `g` and `b` in microseconds.
    slack_us
        `K` in microseconds; None where the strategy chooses it.
    guarantee
        True where `run` recalls missed pairs, so that the retention keeps no promise.
    """

    strategy: str
    estimator: str
    target: float
    confidence: float
    window_us: int
    period_us: int
    interval_us: int
    granularity_us: int
    basic_window_us: int
    slack_us: int | None = None
    guarantee: bool = False

    @property
    def spans(self) -> dict[str, int]:
        """The lengths of time that a control plane works with, by the name of its argument."""
        return {
            "window_us": self.window_us,
            "interval_us": self.interval_us,
            "granularity_us": self.granularity_us,
            "period_us": self.period_us,
        }


class UnlimitedRetention:
    """The policy of the strategy ``exact``: no row leaves its buffer."""

    needs_pairs = False
    needs_candidates = False
    needs_lateness = False
    expires = False

    def observe(self, stats: IntervalStats) -> None:
        """Ignore the statistics."""

    def choose(self, interval: int) -> tuple[int, int]:
        """Return `FOREVER` for both buffers."""
        return FOREVER, FOREVER

    def to_dict(self) -> StateDocument:
        """Return an empty document."""
        return {}


class ConstantState(TypedDict):
    """The state of a `ConstantRetention` as JSON."""

    retention: list[int]


class ConstantRetention:
    """The same retention in every interval: the policy of the strategy ``k_slack``, of `explain`, and of tests."""

    needs_pairs = False
    needs_candidates = False
    needs_lateness = False
    expires = True

    def __init__(self, left_us: int, right_us: int) -> None:
        self.retention = (left_us, right_us)

    def observe(self, stats: IntervalStats) -> None:
        """Ignore the statistics."""

    def choose(self, interval: int) -> tuple[int, int]:
        """Return the constant, ``(d_left, d_right)`` in us."""
        return self.retention

    def to_dict(self) -> ConstantState:
        """Return the constant as JSON."""
        return {"retention": list(self.retention)}


class CalibratedRetentionState(TypedDict):
    """The state of a `CalibratedRetention` as JSON."""

    controller: CalibratedState
    tail: TailEstimatorState
    results: float
    periods: float
    largest_us: list[int] | None


class CalibratedRetention:
    """The ``calibrated`` controller as a retention policy: two knobs with the floor ``-w``, and rules for thin
    evidence.

    *Scarce results.* A buffer that keeps less than one window hides the pairs that would show the loss; only the
    sample shows it. So a retention below 0 is chosen only where a period that lost exactly its allowance is expected
    to show at least `EVIDENCE` sampled losses. Otherwise at least one window is kept, as in the paper.

    *Warm-up.* Before the first full period everything is retained: a delay seen so far is no longer than the stream is
    old, so a multiple of the largest is no bound.

    *Thin evidence.* With `c` known results, ``e = c (1 - target)`` of them determine the tail that decides. While few
    periods or few results are known, the span of rows that a buffer holds, ``w + d``, is widened by the factor::

        1 + (((M + 1) / (n + 1))^GROWTH - 1) min(1, TAIL / e)

    with `n` of `M` periods remembered. The factor bounds the price as a ratio of rows, ends with the learning, and
    vanishes where results are many. With `e` below `LEAST` while ``n < M`` no quantile is known and the next rule
    alone decides.

    *Upper bound.* A row of lateness ``u = T(seq_y) - y.ts`` requires no retention above `u`, because ``T(seq_y) - w -
    x.ts <= u``. So widening ends at ``max(WARM_UP, (M + 1) / (n + 1))`` times the largest lateness of the *opposite*
    stream so far: with a factor of 2, a pair is lost only to a delay that exceeds twice all before.

    The policy does not promise the periods in which delays of a new kind begin: the first outage of a source, a new
    regime, a delay longer than the stream is old. ``tests/core/test_join_promise.py`` shows where the promise holds and
    where it does not. The choice of the constants and the rejected variants are in
    ``docs/experiments/variants.md``.

    Parameters
    ----------
    controller, tail
        The controller of both knobs, and the estimator of results that were not seen.
    results, periods
        Fading sums over the controller's memory: estimated results, and periods.
    largest_us
        The largest lateness so far of the left and the right stream, in whole granules; None before the first complete
        interval.
    """

    needs_pairs = True
    needs_candidates = False
    needs_lateness = True
    expires = True

    EVIDENCE = 4.0
    """Sampled losses per period; a Poisson count of 4 is known to within a half."""
    WARM_UP = 2
    """The multiple of the largest lateness so far that bounds the retention."""
    TAIL = 10.0
    """Results beyond the target's quantile that settle the scale of the remembered tail, to within a third."""
    LEAST = 5.0
    """Results beyond the quantile below which it is the luck of single pairs."""
    GROWTH = 0.5
    """The index of a tail ``P(need > x) ~ x^(-1 / GROWTH)``, at the edge of a finite variance."""

    def __init__(
        self,
        controller: Calibrated,
        tail: TailEstimator,
        results: float = 0.0,
        periods: float = 0.0,
        largest_us: tuple[int, int] | None = None,
    ) -> None:
        self.controller, self.tail, self.results, self.periods = controller, tail, results, periods
        self.largest_us = largest_us

    @classmethod
    def build(
        cls,
        target: float,
        *,
        window_us: int,
        period_us: int,
        interval_us: int,
        granularity_us: int,
        sample_fraction: float = SAMPLE_FRACTION,
        share: float = 0.95,
    ) -> CalibratedRetention:
        """Return a policy without any observation.

        Parameters
        ----------
        target
            The recall to reach in each period.
        window_us, period_us, interval_us, granularity_us
            `w`, `P`, `L` and `g` in microseconds.
        sample_fraction
            The share of rows in the deterministic sample.
        share
            The share of periods that must reach the target.
        """
        floor = (-window_us, -window_us)
        controller = Calibrated(target, period_us, interval_us, granularity_us, floor, share)
        spans = (window_us, granularity_us, interval_us, period_us)
        deviations = NormalDist().inv_cdf(share)
        return cls(controller, TailEstimator(*spans, sample_fraction, controller.memory, max(deviations, 0.0)))

    def observe(self, stats: IntervalStats) -> None:
        """Learn from one complete interval; in order, intervals without arrivals left out."""
        g, (left, right) = self.controller.granularity_us, self.largest_us or (0, 0)
        self.largest_us = max(left, _largest_us(stats.left, g)), max(right, _largest_us(stats.right, g))
        last = self.tail.last
        estimated = self.tail.estimate(stats)
        self.controller.observe(interval_loss(stats, estimated, self.controller.granularity_us))
        span = (1 if last is None else stats.interval - last) * self.controller.interval_us / self.controller.period_us
        fade = 1 / (1 + span / self.controller.memory)
        self.results = self.results * fade + sum(float(weight.sum()) for _, weight in estimated)
        self.periods = self.periods * fade + span

    def choose(self, interval: int) -> tuple[int, int]:
        """Return ``(d_left, d_right)`` in us for `interval`; `FOREVER` retains everything."""
        left, right = self.controller.choose(interval)
        if self.largest_us is None or not self.controller.warmed_up(interval):
            return FOREVER, FOREVER
        sampled = sampled_share(self.tail.sample_fraction)
        if sampled * self.results * (1 - self.controller.target) < self.EVIDENCE * self.periods:
            left, right = max(left, 0), max(right, 0)
        periods, results = self.controller.remembered()
        evidence = periods, results * (1 - self.controller.target)
        return self._widened(left, 0, *evidence), self._widened(right, 1, *evidence)

    def _widened(self, retention_us: int, side: int, periods: int, evidence: float) -> int:
        """Widen the controller's choice for buffer `side`, which is `FOREVER` where it has none, for thin evidence."""
        assert self.largest_us is not None
        memory, floor = self.controller.memory, self.controller.floor_us[side]
        growth = max((memory + 1) / (periods + 1), 1.0)
        bound = int(max(self.WARM_UP, growth) * self.largest_us[1 - side])
        if retention_us >= FOREVER or (evidence < self.LEAST and periods < memory):
            return max(bound, retention_us if retention_us < FOREVER else 0)
        factor = 1 + (growth**self.GROWTH - 1) * min(1.0, self.TAIL / max(evidence, 1.0))
        return max(retention_us, min(floor + int((retention_us - floor) * factor), bound))

    def to_dict(self) -> CalibratedRetentionState:
        """Return parameters and state as JSON, exactly."""
        return {
            "controller": self.controller.to_dict(),
            "tail": self.tail.to_dict(),
            "results": self.results,
            "periods": self.periods,
            "largest_us": None if self.largest_us is None else list(self.largest_us),
        }

    @classmethod
    def from_dict(cls, state: CalibratedRetentionState) -> CalibratedRetention:
        """Return the policy that `to_dict` wrote."""
        controller, tail = Calibrated.from_dict(state["controller"]), TailEstimator.from_dict(state["tail"])
        # Older states lack the key: then everything is retained until an interval is complete.
        largest = state.get("largest_us")
        largest_us = None if largest is None else (int(largest[0]), int(largest[1]))
        return cls(controller, tail, float(state["results"]), float(state["periods"]), largest_us)


def _largest_us(side: SideStats, granularity_us: int) -> int:
    """Return the largest lateness of a stream in one interval, at least 0, in whole granules."""
    return max(int(side.delay_bucket[-1]) + 1, 0) * granularity_us if len(side.delay_bucket) else 0


def interval_loss(
    stats: IntervalStats, estimated: tuple[SparseWeights, SparseWeights], granularity_us: int
) -> IntervalLoss:
    """Convert a join's statistics for the ``calibrated`` controller: knob 0 is the left retention, knob 1 the right.

    Parameters
    ----------
    stats
        The counts of one interval.
    estimated
        Estimated results by required bucket, left and right, from `TailEstimator.estimate` or `uncensor`.
    granularity_us
        `g`.
    """
    required, weights, lost = [], [], 0.0
    for side, (bucket, weight) in zip((stats.left, stats.right), estimated, strict=True):
        required.append((bucket + 1) * granularity_us)
        weights.append(weight)
        lost += float(weight[bucket >= side.censored_from].sum())
    rates = (float(stats.left.rows), float(stats.right.rows))
    return IntervalLoss(stats.interval, tuple(required), tuple(weights), lost, rates)


class QJoinState(TypedDict):
    """The state of a `QJoinRetention` as JSON."""

    estimator: str
    target: float
    window_us: int
    period_us: int
    interval_us: int
    granularity_us: int
    basic_window_us: int
    sample_fraction: float
    first: int | None
    retention: list[int]
    recent: list[IntervalStatsState]
    account: list[list[float]]


@dataclass
class QJoinRetention:
    """QJoin's controller: once per `L`, the cheapest retention whose estimated recall reaches equation (3)'s target.

    Choices where the paper is silent: the results due in an interval are those produced, divided by the recall
    estimated for the retention in force (``empirical``: the estimated number itself). An interval without evidence
    leaves the retention as it is. The period of equation (3) has as many whole `L` as fit into `P`. Everything is
    retained before the first full period. Where the sample would show fewer than `CalibratedRetention.EVIDENCE` of a
    period's losses, ``empirical`` keeps at least one window: below that it sees neither results nor losses, and never
    recovers (see ``docs/experiments/variants.md``).

    Parameters
    ----------
    estimator
        One of `ESTIMATORS`.
    target
        ``Q_user``, the recall to reach in each period.
    window_us, period_us, interval_us, granularity_us, basic_window_us
        `w`, `P`, `L`, `g` and `b` in microseconds.
    sample_fraction
        The share of rows in the deterministic sample.
    first
        The first interval observed.
    retention
        ``(d_left, d_right)`` in us, as in force.
    recent
        The statistics that the estimator reads: the last `P` for ``empirical``, the last `L` for the others.
    account
        Per interval of the last `P`: its number, results produced, and results due (estimated).

    Raises
    ------
    ValueError
        For an unknown estimator; the message lists the known ones.
    """

    estimator: str
    target: float
    window_us: int
    period_us: int
    interval_us: int
    granularity_us: int
    basic_window_us: int = 10_000
    sample_fraction: float = SAMPLE_FRACTION
    first: int | None = None
    retention: tuple[int, int] = (FOREVER, FOREVER)
    recent: list[IntervalStats] = field(default_factory=list)
    account: list[tuple[int, float, float]] = field(default_factory=list)

    needs_pairs = True
    needs_lateness = False
    expires = True

    def __post_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"estimator is {self.estimator!r}: choose one of {', '.join(ESTIMATORS)}")
        inside = self.recent if self.estimator == "empirical" else ()
        self._evidence = EvidenceWindow(self.sample_fraction, inside)

    @property
    def needs_candidates(self) -> bool:
        """True for the two models, which read candidates and results by delay; ``empirical`` does not."""
        return self.estimator != "empirical"

    def observe(self, stats: IntervalStats) -> None:
        """Learn from one complete interval; in order, intervals without arrivals left out."""
        self.first = stats.interval if self.first is None else self.first
        oldest = stats.interval - self.period_us // self.interval_us
        forgotten = oldest if self.estimator == "empirical" else stats.interval - 1
        if self.estimator == "empirical":
            for earlier in self.recent:
                if earlier.interval > forgotten:
                    break
                self._evidence.add(earlier, -1)
            self._evidence.add(stats)
        self.recent = [s for s in self.recent if s.interval > forgotten] + [stats]
        produced = float(stats.left.pairs.sum() + stats.right.pairs.sum())
        if self.estimator == "empirical":
            due = sum(float(uncensor(s, self.sample_fraction)[1].sum()) for s in (stats.left, stats.right))
        else:
            recall = self._recall()
            share = 1.0 if recall is None or max(self.retention) >= FOREVER else recall.at(*self.retention)
            due = produced / max(share, 0.01)
        self.account = [a for a in self.account if a[0] > oldest] + [(stats.interval, produced, due)]

    def choose(self, interval: int) -> tuple[int, int]:
        """Return ``(d_left, d_right)`` in us for `interval`; `FOREVER` retains everything."""
        if self.first is None or (interval - self.first) * self.interval_us < self.period_us:
            return self.retention
        recall = self._recall()
        if recall is not None:
            intervals = max(self.period_us // self.interval_us, 1)
            oldest = interval - intervals
            # Equation (3): N'_{P-L} and N_P of the period that ends with the next interval.
            produced_rest = sum(produced for number, produced, _ in self.account if number > oldest)
            due_period = sum(due for number, _, due in self.account if number >= oldest)
            goal = interval_target(
                self.target, produced_rest, due_period, self.interval_us, intervals * self.interval_us
            )
            rows = [sum(s.left.rows for s in self.recent), sum(s.right.rows for s in self.recent)]
            self.retention = choose_retention(recall, rows[0], rows[1], goal)
            sampled_losses = sampled_share(self.sample_fraction) * due_period * (1 - self.target)
            if self.estimator == "empirical" and sampled_losses < CalibratedRetention.EVIDENCE:
                self.retention = max(self.retention[0], 0), max(self.retention[1], 0)
        return self.retention

    def _recall(self) -> Recall | None:
        w, g, length = self.window_us, self.granularity_us, self.interval_us
        if self.estimator == "empirical":
            return empirical_of(self._evidence.weights(), w, g)
        if self.estimator == "delay_aware":
            return delay_aware(self.recent[-1], w, g, length)
        return paper(self.recent[-1], w, g, length, self.basic_window_us)

    def to_dict(self) -> QJoinState:
        """Return parameters and state as JSON, exactly."""
        return {
            "estimator": self.estimator,
            "target": self.target,
            "window_us": self.window_us,
            "period_us": self.period_us,
            "interval_us": self.interval_us,
            "granularity_us": self.granularity_us,
            "basic_window_us": self.basic_window_us,
            "sample_fraction": self.sample_fraction,
            "first": self.first,
            "retention": list(self.retention),
            "recent": [stats.to_dict() for stats in self.recent],
            "account": [list(entry) for entry in self.account],
        }

    @classmethod
    def from_dict(cls, state: QJoinState) -> QJoinRetention:
        """Return the policy that `to_dict` wrote."""
        left_us, right_us = state["retention"]
        return cls(
            state["estimator"],
            state["target"],
            state["window_us"],
            state["period_us"],
            state["interval_us"],
            state["granularity_us"],
            state["basic_window_us"],
            state["sample_fraction"],
            state["first"],
            (int(left_us), int(right_us)),
            [IntervalStats.from_dict(stats) for stats in state["recent"]],
            [(int(number), float(produced), float(due)) for number, produced, due in state["account"]],
        )
