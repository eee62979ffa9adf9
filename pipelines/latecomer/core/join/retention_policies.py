"""Retention policies of QJoin: which estimator steers, and what is done between adaptations.

``CalibratedRetention`` puts the shared controller (:mod:`latecomer.core.join.calibrated_control`) behind the join's two knobs; ``QJoinRetention`` is
the paper's controller, equation (3), with any of the estimators of :mod:`latecomer.core.join.recall_estimators`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from statistics import NormalDist
from typing import Any

from latecomer.core.join.calibrated_control import Calibrated
from latecomer.core.join.recall_estimators import (
    ESTIMATORS,
    EvidenceWindow,
    Recall,
    aq_k_slack,
    choose_retention,
    delay_aware,
    empirical_of,
    interval_loss,
    interval_target,
    paper,
)
from latecomer.core.join.statistics import (
    SAMPLE_FRACTION,
    IntervalStats,
    SideStats,
    from_dict,
    sampled_share,
    to_dict,
    uncensor,
)
from latecomer.core.join.tail_estimator import TailEstimator
from latecomer.core.time import FOREVER


class CalibratedRetention:
    """The shared ``calibrated`` controller as a join's retention policy: two knobs, floor ``-w``.

    Scarce results. A buffer that keeps less than one window hides the pairs that would tell it so, and only the sample
    could object. So a retention below 0 is chosen only while the sample would notice: a period that lost just what it
    may is expected to show at least `EVIDENCE` sampled losses. Else at least one window is kept, as the paper does.

    Warm-up. Until one period has passed everything is kept: delays seen so far are no longer than the stream is old, so a
    multiple of the largest is no bound (7 kinds of streams: 0.84 of first periods met their target with twice the largest
    so far, all do with everything). Rows of one period are the price, whatever the delays.

    Thin evidence. The share ``1 - target`` of `c` known contributions, ``e = c (1 - target)``, is what the tail that decides was
    learned from. While few periods or few contributions are known, the span of rows that a buffer holds, ``w + d``, is widened by::

        1 + (((M + 1) / (n + 1))^GROWTH - 1) min(1, TAIL / e)

    with `n` of `M` periods remembered: a tail not yet seen. It bounds the price as a ratio of rows, not by the longest delay,
    ends with the learning, and vanishes where contributions are many: there between-period luck is small and would only cost
    rows. With `e` below `LEAST` while ``n < M`` no quantile is known at all and the delays alone decide (next rule). A period
    with fewer than ``1 / (1 - target)`` pairs may lose none; then the controller holds for the largest requirement that `M`
    periods showed.

    Never for nothing. A tuple y of lateness ``u = T(seq_y) - y.ts`` needs no partner beyond ``d = u``: ``T(seq_y) - w - x.ts <= u``.
    So widening ends at `WARM_UP` times the largest lateness that the *opposite* stream has shown, ``(M + 1) / (n + 1)`` times
    while that is more: with 2, a pair is lost only to a delay that exceeds twice all before.

    The constants. `TAIL` and `GROWTH` were first 20 and 0.75, and were lowered until the rows held on one pair of network logs
    met a bound; those logs say nothing about them any more. On other seeds, and two kinds of streams looked at for the first
    time (8 kinds, 5 to 20 periods of 20 or 200 pairs, targets 0.9 and 0.99): 0.987 of all periods met at 1.65 times the
    clairvoyant's rows, against 0.989 at 1.92 times with the first values; Pareto delays 0.950, delivery by the clock 2.5 times the rows.
    Rows widened by another 1.3 wherever periods are of few contributions cost more than they keep: on 21 kinds of streams (10, 20 and 80
    periods of 90 to 600 rows, targets 0.85 to 0.99) 0.982 of the periods at 1.45 times the clairvoyant's rows, the median stream's,
    without it 0.967 at 1.27.

    Not promised. A period is lost where delays of a kind never seen begin: the first outage of a source, a new regime, a
    delay longer than the stream is old. Streams where that happens in more than
    one period in 20 stay below `share`. So do short streams with Pareto delays of shape 1.2: 0.93 of periods were measured.
    ``tests/core/test_join_promise.py`` shows both, what is kept and where it is not.
    """

    needs_pairs = True
    needs_candidates = False
    needs_lateness = True
    expires = True

    EVIDENCE = 4.0
    """Sampled losses per period; a Poisson count of 4 is known to within a half."""
    WARM_UP = 2
    """Times the largest delay so far: a delay may double before one that nothing else bounds loses anything."""
    TAIL = 10.0
    """Contributions beyond the target's quantile that settle the scale of the remembered tail (to a third)."""
    LEAST = 5.0
    """Fewer of them, and the quantile is the luck of single pairs."""
    GROWTH = 0.5
    """A tail ``P(need > x) ~ x^(-1 / GROWTH)``, at the edge of a variance, is made up for by ``((M + 1) / (n + 1))^GROWTH``."""

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
        """Largest lateness so far, left and right stream, in whole granules; None before the first complete interval."""

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
        """A policy that has seen nothing yet."""
        floor = (-window_us, -window_us)
        controller = Calibrated(target, period_us, interval_us, granularity_us, floor, share)
        spans = (window_us, granularity_us, interval_us, period_us)
        deviations = NormalDist().inv_cdf(share)
        return cls(controller, TailEstimator(*spans, sample_fraction, controller.memory, max(deviations, 0.0)))

    def observe(self, stats: IntervalStats) -> None:
        """Take in one complete interval; in order, those without arrivals left out."""
        g, (left, right) = self.controller.granularity_us, self.largest_us or (0, 0)
        self.largest_us = max(left, _largest(stats.left, g)), max(right, _largest(stats.right, g))
        last = self.tail.last
        estimated = self.tail.estimate(stats)
        self.controller.observe(interval_loss(stats, estimated, self.controller.granularity_us))
        span = (1 if last is None else stats.interval - last) * self.controller.interval_us / self.controller.period_us
        fade = 1 / (1 + span / self.controller.memory)
        self.results = self.results * fade + sum(float(weight.sum()) for _, weight in estimated)
        self.periods = self.periods * fade + span

    def choose(self, interval: int) -> tuple[int, int]:
        """``(d_left, d_right)`` in us for `interval`; `FOREVER` keeps everything."""
        left, right = self.controller.choose(interval)
        if self.largest_us is None or not self.controller.warm(interval):
            return FOREVER, FOREVER
        share = sampled_share(self.tail.sample_fraction)
        if share * self.results * (1 - self.controller.target) < self.EVIDENCE * self.periods:
            left, right = max(left, 0), max(right, 0)
        periods, known = self.controller.known()
        evidence = periods, known * (1 - self.controller.target)
        return self._widened(left, 0, *evidence), self._widened(right, 1, *evidence)

    def _widened(self, retention_us: int, side: int, periods: int, tail: float) -> int:
        """What the controller chose for buffer `side`, or nothing yet (`FOREVER`), with the margin for thin evidence."""
        assert self.largest_us is not None
        memory, floor = self.controller.memory, self.controller.floor_us[side]
        growth = max((memory + 1) / (periods + 1), 1.0)
        most = int(max(self.WARM_UP, growth) * self.largest_us[1 - side])
        if retention_us >= FOREVER or (tail < self.LEAST and periods < memory):
            return max(most, retention_us if retention_us < FOREVER else 0)
        unseen = 1 + (growth**self.GROWTH - 1) * min(1.0, self.TAIL / max(tail, 1.0))
        return max(retention_us, min(floor + int((retention_us - floor) * unseen), most))

    def to_dict(self) -> dict[str, Any]:
        """Parameters and state, JSON-able and exact."""
        return {
            "controller": self.controller.to_dict(),
            "tail": self.tail.to_dict(),
            "results": self.results,
            "periods": self.periods,
            "largest_us": None if self.largest_us is None else list(self.largest_us),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CalibratedRetention:
        """Inverse of ``to_dict``."""
        parts = Calibrated.from_dict(data["controller"]), TailEstimator.from_dict(data["tail"])
        late = data.get("largest_us")  # None too in a state written before it was kept: a warm-up then keeps everything
        largest_us = None if late is None else (int(late[0]), int(late[1]))
        return cls(*parts, float(data["results"]), float(data["periods"]), largest_us)


def _largest(side: SideStats, granularity_us: int) -> int:
    """Not below 0: what `observe` compares it with begins there."""
    return max(int(side.delay_bucket[-1]) + 1, 0) * granularity_us if len(side.delay_bucket) else 0


@dataclass
class QJoinRetention:
    """QJoin's controller: once per `L`, equation (3)'s target and the cheapest retention that is estimated to reach it.

    Choices where the paper is silent: ideal results of an interval are those produced divided by the recall estimated
    under the retention in force (``empirical``: the estimated count itself); an interval without evidence leaves the
    retention as it is; the period of equation (3) is as many whole `L` as fit into `P`. Until the first full period has passed
    everything is retained. Where the sample would show fewer than `CalibratedRetention.EVIDENCE` of a period's losses,
    ``empirical`` keeps the window at least: below that it sees neither results nor losses, and never recovers (0.28 of the pairs
    at a target of 0.95 and 60 pairs a period were measured; 0.86 so).
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
    """Per interval of the last P: number, results produced, results it should have had (estimated)."""

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
        """The two models read candidates and results by delay, ``empirical`` does not."""
        return self.estimator != "empirical"

    def observe(self, stats: IntervalStats) -> None:
        """Take in one complete interval; in order, those without arrivals left out."""
        self.first = stats.interval if self.first is None else self.first
        oldest = stats.interval - self.period_us // self.interval_us
        keep = oldest if self.estimator == "empirical" else stats.interval - 1
        if self.estimator == "empirical":
            for gone in self.recent:
                if gone.interval > keep:
                    break
                self._evidence.add(gone, -1)
            self._evidence.add(stats)
        self.recent = [s for s in self.recent if s.interval > keep] + [stats]
        produced = float(stats.left.pairs.sum() + stats.right.pairs.sum())
        if self.estimator == "empirical":
            ideal = sum(float(uncensor(s, self.sample_fraction)[1].sum()) for s in (stats.left, stats.right))
        else:
            recall = self._recall()
            share = 1.0 if recall is None or max(self.retention) >= FOREVER else recall.at(*self.retention)
            ideal = produced / max(share, 0.01)
        self.account = [a for a in self.account if a[0] > oldest] + [(stats.interval, produced, ideal)]

    def choose(self, interval: int) -> tuple[int, int]:
        """``(d_left, d_right)`` in us for `interval`; `FOREVER` keeps everything."""
        if self.first is None or (interval - self.first) * self.interval_us < self.period_us:
            return self.retention
        recall = self._recall()
        if recall is not None:
            intervals = max(self.period_us // self.interval_us, 1)
            oldest = interval - intervals
            rest = sum(produced for number, produced, _ in self.account if number > oldest)
            ideal = sum(each for number, _, each in self.account if number >= oldest)
            goal = interval_target(self.target, rest, ideal, self.interval_us, intervals * self.interval_us)
            rows = [sum(getattr(s, name).rows for s in self.recent) for name in ("left", "right")]
            self.retention = choose_retention(recall, rows[0], rows[1], goal)
            shown = sampled_share(self.sample_fraction) * ideal * (1 - self.target)
            if self.estimator == "empirical" and shown < CalibratedRetention.EVIDENCE:
                self.retention = max(self.retention[0], 0), max(self.retention[1], 0)
        return self.retention

    def _recall(self) -> Recall | None:
        w, g, length = self.window_us, self.granularity_us, self.interval_us
        if self.estimator == "empirical":
            return empirical_of(self._evidence.weights(), w, g)
        if self.estimator == "delay_aware":
            return delay_aware(self.recent[-1], w, g, length)
        return paper(self.recent[-1], w, g, length, self.basic_window_us)

    def to_dict(self) -> dict[str, Any]:
        """Parameters and state, JSON-able and exact."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["retention"], plain["account"] = list(self.retention), [list(a) for a in self.account]
        return plain | {"recent": [to_dict(s) for s in self.recent]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> QJoinRetention:
        """Inverse of ``to_dict``."""
        left, right = data["retention"]
        account = [(int(a), float(b), float(c)) for a, b, c in data["account"]]
        recent = [from_dict(s) for s in data["recent"]]
        plain = {f.name: data[f.name] for f in fields(cls)}
        return cls(**{**plain, "retention": (int(left), int(right)), "account": account, "recent": recent})


@dataclass(frozen=True)
class RetentionParameters:
    """What a policy needs to know of the query; durations in microseconds."""

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

    @staticmethod
    def of(spec: Any) -> RetentionParameters:
        """From a join's spec."""
        chosen = spec.strategy
        return RetentionParameters(
            chosen.name,
            chosen.estimator,
            spec.target,
            spec.confidence,
            spec.window_us,
            spec.period_us,
            chosen.adapt_every_us,
            chosen.granularity_us,
            chosen.basic_window_us,
            chosen.slack_us,
        )


class UnlimitedRetention:
    """Strategy ``exact``: no tuple ever leaves its buffer."""

    needs_pairs = False
    needs_candidates = False
    needs_lateness = False
    expires = False

    def observe(self, stats: IntervalStats) -> None:
        """Nothing to learn."""

    def choose(self, interval: int) -> tuple[int, int]:
        """Everything."""
        return FOREVER, FOREVER

    def to_dict(self) -> dict[str, Any]:
        """No state."""
        return {}


class ConstantRetention:
    """The same retention always: for what-if questions and tests."""

    needs_pairs = False
    needs_candidates = False
    needs_lateness = False
    expires = True

    def __init__(self, left_us: int, right_us: int) -> None:
        self.retention = (left_us, right_us)

    def observe(self, stats: IntervalStats) -> None:
        """Nothing to learn."""

    def choose(self, interval: int) -> tuple[int, int]:
        """The constant."""
        return self.retention

    def to_dict(self) -> dict[str, Any]:
        """The constant."""
        return {"retention": list(self.retention)}


class KSlackRetention:
    """Slack of the K-slack family as a retention: a buffer behind a watermark ``T - K`` holds what ``d = K`` holds.

    ``mp_k_slack`` takes the largest delay so far (in whole granules, for the books only: the join itself follows each
    arrival), ``aq_k_slack`` the least slack that the delays of the last period call for, everything before.
    """

    needs_pairs = False
    needs_candidates = False
    needs_lateness = False
    expires = True

    def __init__(self, settings: RetentionParameters, state: dict[str, Any] | None) -> None:
        self.settings = settings
        self.largest = state["largest"] if state else 0
        self.first: int | None = state["first"] if state else None
        self.recent = [from_dict(each) for each in state["recent"]] if state else []

    def observe(self, stats: IntervalStats) -> None:
        """Take in an interval's delays."""
        self.first = stats.interval if self.first is None else self.first
        for side in (stats.left, stats.right):
            if len(side.delay_bucket):
                self.largest = max(self.largest, (int(side.delay_bucket[-1]) + 1) * self.settings.granularity_us)
        if self.settings.strategy == "aq_k_slack":
            oldest = stats.interval - self.settings.period_us // self.settings.interval_us
            self.recent = [each for each in self.recent if each.interval > oldest] + [stats]

    def choose(self, interval: int) -> tuple[int, int]:
        """The slack, for both streams."""
        if self.settings.strategy == "mp_k_slack":
            return self.largest, self.largest
        warm = self.first is None or (interval - self.first) * self.settings.interval_us < self.settings.period_us
        slack = None if warm else aq_k_slack(self.recent, self.settings.granularity_us, self.settings.target)
        return (FOREVER, FOREVER) if slack is None else (slack, slack)

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values."""
        return {"largest": self.largest, "first": self.first, "recent": [to_dict(each) for each in self.recent]}
