"""Simulate the promises of all five kinds on a stream in memory, through the control planes that `run` uses.

What a contribution requires does not depend on the wait or the retention in force. So a stream's requirements are
counted once, and any policy and target is then simulated by the control plane alone:

=============  ==================================================  ==============================================
kind           contributions                                       required
=============  ==================================================  ==============================================
join           pairs with equal keys                               retention at the arrival of the later row
aggregate      sums of values per source, within 5%                wait of the rows whose loss would exceed it
topk           members of the 5 best rows                          wait of the row
theta_join     pairs of a window, ``left.value > right.value``     longer wait of both rows
membership     keys of a window that both sides have               longer wait of the sides' first rows with it
=============  ==================================================  ==============================================

A policy comes from a query file's strategy (`query`), so the bench runs what `run` would run.

Cost: O(n log n + pairs) per stream and kind; then per policy and target O(1) per interval and observed window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numba import njit

from latecomer.baselines.topk.min_topk import top_rows
from latecomer.bench.join_simulator import Input, Output, band_pairs, recalled, stream_times, summaries
from latecomer.bench.promise_streams import Bool, Float64, Int64, Stream
from latecomer.bench.window_simulator import collect_cells
from latecomer.core.aggregate.coverage import Function, required_answers
from latecomer.core.arrays.composite_keys import run_bounds, sort_order
from latecomer.core.arrivals import Arrivals
from latecomer.core.join.control import IntervalSummary, JoinControl, RetentionPolicy
from latecomer.core.join.recall_budget import RecallBudget
from latecomer.core.join.retention_policies import ConstantRetention
from latecomer.core.time import FOREVER, NEVER
from latecomer.core.topk.required_waits import Candidates, required_members
from latecomer.core.windows.arrivals import ArrivalCounts, last_closed
from latecomer.core.windows.calibrated_slack import CalibratedSlack
from latecomer.core.windows.control import WindowControl
from latecomer.core.windows.interfaces import Observed, SlackPolicy
from latecomer.core.windows.observation import Span, by_window, every_number, spans_of
from latecomer.core.windows.slack_policies import Fixed
from latecomer.specs.join import JoinSpec
from latecomer.specs.loading import parse_query
from latecomer.specs.spec import Spec
from latecomer.specs.windows import WindowedSpec
from latecomer.strategies.join import retention_parameters, retention_policy
from latecomer.strategies.windows import slack_policy

WINDOWED = ("aggregate", "topk", "theta_join", "membership")
KINDS = ("join", *WINDOWED)
LEARNING = 20
"""Periods after which a promise of 95% of them is judged: the first ones are learning."""
SHARE = 0.95
"""Share of periods that the clairvoyant keeps."""
ERROR, BEST = 0.05, 5
"""Largest error of an aggregate's answer, and rows of a top-k answer."""

_WINDOW = "window: {{size: {size} us, slide: {slide} us}}\n"
_RECALL = "quality: {{recall: {target}, period: {period} us}}"
_QUERIES = {
    "join": "streams: {{l: a, r: b}}\nkeys: [key]\nwindow: {join} us\n" + _RECALL,
    "aggregate": "streams: {{l: a}}\ngroup_by: [source]\nselect: {{total: sum(value)}}\n"
    + _WINDOW
    + "quality: {{error: 0.05, probability: {target}, period: {period} us}}",
    "topk": "streams: {{l: a}}\nscore: value\nk: 5\n"
    + _WINDOW
    + "quality: {{hit_rate: {target}, period: {period} us}}",
    "theta_join": "streams: {{l: a, r: b}}\nconditions: [l.value > r.value]\nemit: rows\n" + _WINDOW + _RECALL,
    "membership": "streams: {{l: a, r: b}}\nelement: key\n" + _WINDOW + _RECALL,
}
"""Text of the query of each kind, but for its name, kind and strategy."""


def query(kind: str, stream: Stream, target: float, strategy: str = "") -> Spec:
    """Return the query of a kind over a stream.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    stream : Stream
        Stream with its windows and period.
    target : float
        Promised share of a period's contributions.
    strategy : str
        Flow mapping of the query file's ``strategy``, such as ``{name: mp_k_slack}``; empty for the default.
    """
    text = _QUERIES[kind].format(
        join=stream.join_window_us,
        size=stream.grid.size_us,
        slide=stream.grid.slide_us,
        period=stream.period_us,
        target=target,
    )
    return parse_query(f"name: q\nkind: {kind}\n{text}\n" + (f"strategy: {strategy}\n" if strategy else ""))


@dataclass(frozen=True)
class Outcome:
    """The promise and its cost over one stream.

    Attributes
    ----------
    period : int64[p]
        Periods in which something was due and sound clocks spoke, ascending.
    due, lost : float64[p]
        Contributions of each, and those not on time; of a join, neither on time nor recalled.
    lost_at_close : float64[p]
        Contributions that were not published when the period closed.
    wait_us : float
        Mean wait of a contribution, microseconds, after the learning periods where there are more.
    held, recalled : float
        Mean rows held, and mean rows read again, over the stream time after the learning periods.
    recalls : int
        Intervals whose missed pairs were published at once.
    learning : int
        Number of the first period after learning.
    """

    period: Int64
    due: Float64
    lost: Float64
    lost_at_close: Float64
    wait_us: float
    held: float
    recalled: float = 0.0
    recalls: int = 0
    learning: int = 0

    def good(self, target: float, *, at_close: bool = False) -> Bool:
        """Return whether each period reached the target, bool[p]."""
        lost = self.lost_at_close if at_close else self.lost
        return np.asarray(lost <= (1.0 - target) * self.due + 1e-9, np.bool_)

    def kept(self, target: float) -> tuple[int, int]:
        """Return the number of periods after learning that reached the target, and of periods after learning."""
        after = self.period >= self.learning
        return int(self.good(target)[after].sum()), int(after.sum())


def _first_after_learning(periods: Int64) -> int:
    """Return the number of the first period after the learning ones."""
    return int(periods[0]) + LEARNING if len(periods) else 0


# ---------------------------------------------------------------------------------------------------------- windowed


@dataclass
class WindowCase:
    """A stream with the requirements of one windowed kind.

    Parameters
    ----------
    stream, kind
        The stream, and one of `WINDOWED`.
    """

    stream: Stream
    kind: str
    arrivals: Arrivals = field(init=False)
    counts: ArrivalCounts = field(init=False)
    _observed: dict[tuple[Span, ...], list[list[Observed]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        stream, two = self.stream, self.kind in ("theta_join", "membership")
        n = len(stream.event_time_us)
        side = stream.side if two else np.zeros(n, np.int8)
        carry = [NEVER, NEVER] if two else [NEVER]
        shard = np.zeros(n, np.int32)
        self.arrivals = Arrivals.of(np.arange(n), stream.event_time_us, side, shard, carry)
        self.counts = ArrivalCounts.of(self.arrivals, stream.grid, 1)
        time, grid = self.arrivals.stream_time_us, stream.grid
        pane = stream.event_time_us // grid.pane_us
        late = time - (grid.first_of(stream.event_time_us) * grid.slide_us + grid.size_us)
        bucket = np.where((time > NEVER) & (late >= 0), late // grid.granularity_us, -1)
        if self.kind == "aggregate":
            self._cells = collect_cells(stream.source, pane, bucket, stream.value)
        elif self.kind == "topk":
            self._candidates = _candidates(pane, bucket, time, stream)
        else:
            self._entries = _growing_results(self.kind, stream, time)
        [self.required] = self._count([Span(-FOREVER // grid.slide_us, FOREVER // grid.slide_us, FOREVER)])
        self._window = np.array([seen.window for seen in self.required], np.int64)
        self._due = np.array([seen.total for seen in self.required], np.float64)
        self._at = np.repeat(np.arange(len(self.required)), [len(seen.required_us) for seen in self.required])
        self._need = np.concatenate([seen.required_us for seen in self.required] or [np.empty(0, np.int64)])
        self._weight = np.concatenate([seen.weight for seen in self.required] or [np.empty(0)])
        period = (grid.end(self._window) - 1) // stream.period_us
        votes = np.isin(period, stream.periods()) & (self._due > 0)
        self.periods, self._place = np.unique(period[votes], return_inverse=True)
        self._votes = np.flatnonzero(votes)
        self.learning = _first_after_learning(self.periods)

    def observed(self, spans: Sequence[Span]) -> list[list[Observed]]:
        """Return the observations of the windows of each span, as :class:`WindowControl` takes them in."""
        key = tuple(spans)
        if key not in self._observed:
            self._observed[key] = self._count(spans)
        return self._observed[key]

    def _count(self, spans: Sequence[Span]) -> list[list[Observed]]:
        grid = self.stream.grid
        if self.kind == "aggregate":
            return required_answers(self._cells, grid, spans, [Function("sum", 0)], ERROR)
        if self.kind == "topk":
            return required_members(self._candidates, BEST, grid, spans)
        observed = []
        window, wait, weight = self._entries
        for first, last, cut_us in spans:
            part = slice(*np.searchsorted(window, (first, last + 1)))
            known = wait[part] * grid.granularity_us < cut_us - grid.end(window[part])
            numbers, place = np.unique(window[part][known], return_inverse=True)
            observed.append(by_window(numbers, place, wait[part][known], weight[part][known], grid.granularity_us))
        return observed

    def run(self, policy: SlackPolicy, target: float, *, recall: bool = False) -> Outcome:
        """Run the control plane with a policy in its initial state over the whole stream.

        With `recall`, late results are published while their period is open: until the watermark has passed the end
        of the following period.
        """
        stream, grid = self.stream, self.stream.grid
        control = WindowControl(grid, stream.period_us, policy)
        [intervals] = self.counts.intervals
        due = replace(control.schedule).advance(intervals)
        table = control.step(intervals, dict(zip(due, self.observed(spans_of(grid, due)), strict=True)))
        closed = last_closed(self.arrivals, [table], grid)
        times = np.append(self.arrivals.stream_time_us, self.arrivals.stream_time_us[-1])
        ends = grid.end(self._window)
        place = np.searchsorted(closed, self._window)
        wait = np.maximum(times[place] - ends, 0)
        lost = self._lost(wait, place, len(closed))
        lost_at_close = self._by_period(lost)
        if recall:
            period_end = ((ends - 1) // stream.period_us + 1) * stream.period_us
            following = np.searchsorted(closed, (period_end + stream.period_us - grid.size_us) // grid.slide_us)
            until_close = np.maximum(times[following] - ends, wait)
            too_late = self._by_period(self._lost(until_close, following, len(closed)))
            lost_at_close = np.minimum(lost_at_close, self._left_to_repair(target, lost_at_close, too_late))
        after = self._place >= np.searchsorted(self.periods, self.learning)
        answers = self._votes[after] if after.any() else self._votes
        weight = self._due[answers]
        held = self._held(closed, times)
        return Outcome(
            self.periods,
            self._by_period(self._due),
            self._by_period(lost),
            lost_at_close,
            float(np.average(wait[answers], weights=weight)) if weight.sum() else 0.0,
            held,
            learning=self.learning,
        )

    def _held(self, closed: Int64, times: Int64) -> float:
        """Return the rows held until their last window closed, averaged over stream time after learning."""
        stream = self.stream
        if not len(self.periods):
            return 0.0
        first = self.learning if self.periods[-1] >= self.learning else self.periods[0]
        begin = max(int(first) * stream.period_us, int(times[times > NEVER].min(initial=FOREVER)))
        end = int(times[-1])
        until = times[np.searchsorted(closed, stream.grid.last_of(stream.event_time_us))]
        area = np.maximum(np.minimum(until, end) - np.maximum(times[:-1], begin), 0)
        return float(area.sum(dtype=np.float64) / max(end - begin, 1))

    def _lost(self, wait_us: Int64, place: Int64, arrivals: int) -> Float64:
        """Count, per window, the contributions that come after its wait; none where it is open at the end."""
        g = self.stream.grid.granularity_us
        limit = np.where(place < arrivals, wait_us // g * g, FOREVER)
        return _sums(self._at, self._weight * (self._need > limit[self._at]), len(self._window))

    def _left_to_repair(self, target: float, lost: Float64, too_late: Float64) -> Float64:
        """Return an upper bound of the results of each period that are not published when it closes.

        A revision of an answer (aggregate, topk) is published at once. Results of kinds that only grow are recalled
        where the period's recall would otherwise fall below the target: of those known then, at most the rest is left.
        """
        if self.kind in ("aggregate", "topk"):
            return too_late
        known = self._by_period(self._due) - too_late
        return too_late + np.minimum(lost - too_late, np.floor((1.0 - target) * known + 1e-9))

    def _by_period(self, by_window: Float64) -> Float64:
        """Add up the windows of each judged period."""
        return _sums(self._place, by_window[self._votes], len(self.periods))

    def needs(self, target: float) -> Int64:
        """Return, per judged period, the least constant slack that keeps the promise in it, int64[p] us."""
        period_of = np.full(len(self._window), -1)
        period_of[self._votes] = self._place
        due = self._by_period(self._due)
        owner = period_of[self._at]
        used = np.flatnonzero(owner >= 0)
        order = used[np.lexsort((-self._need[used], owner[used]))]
        needs = np.zeros(len(self.periods), np.int64)
        starts = np.searchsorted(owner[order], np.arange(len(self.periods) + 1))
        for p in range(len(self.periods)):
            part = order[starts[p] : starts[p + 1]]
            beyond = np.cumsum(self._weight[part]) > (1.0 - target) * due[p] + 1e-9
            if beyond.any():
                needs[p] = self._need[part[np.argmax(beyond)]]
        return needs

    def clairvoyant(self, target: float) -> Outcome:
        """Run the least constant slack that keeps the promise in `SHARE` of the periods that are judged."""
        return self.run(Fixed(_least_constant(self.needs(target), self.periods, self.learning)), target)

    def run_default(self, target: float, *, earlier: bool = False) -> Outcome:
        """Run what a query runs that names no strategy; `earlier`: the rule of 0.1.0, which published nothing late."""
        spec = query(self.kind, self.stream, target)
        assert isinstance(spec, WindowedSpec)
        if earlier:
            policy = CalibratedSlack(target, spec.window, spec.period_us, spec.confidence)
            return self.run(policy, target)
        return self.run(slack_policy(spec, None), target, recall=True)


def _sums(place: Int64, weight: Float64, length: int) -> Float64:
    return np.bincount(place, weight, length).astype(np.float64)


def _least_constant(needs: Int64, periods: Int64, learning: int) -> int:
    """Return the least constant that suffices in `SHARE` of the periods after learning, or of all if there are none."""
    judged = needs[periods >= learning] if (periods >= learning).any() else needs
    if not len(judged):
        return 0
    return int(np.sort(judged)[max(int(np.ceil(SHARE * len(judged) - 1e-9)), 1) - 1])


def _candidates(pane: Int64, bucket: Int64, time: Int64, stream: Stream) -> Candidates:
    seq, none = np.arange(len(pane)), np.zeros(len(pane), np.int64)
    best = top_rows(none, pane, time, stream.value, stream.event_time_us, seq, BEST)
    best = best[np.argsort(pane[best], kind="stable")]
    return Candidates(none[best], pane[best], bucket[best], stream.value[best], stream.event_time_us[best], best)


MOST_ROWS = 60
"""Rows of a window and side that a theta join pairs, about: of streams with more, one row in so many takes part."""


def _growing_results(kind: str, stream: Stream, time: Int64) -> tuple[Int64, Int64, Int64]:
    """Return results per (window, wait in granules), ascending in windows: window, wait (-1: in time), results."""
    grid = stream.grid
    rows = np.arange(len(time))
    if kind == "theta_join":
        per_window = len(time) * grid.size_us / (len(stream.periods()) * stream.period_us) / 2
        rows = rows[:: max(int(per_window // MOST_ROWS), 1)]
    at, window = every_number(grid.first_of(stream.event_time_us[rows]), grid.last_of(stream.event_time_us[rows]))
    row = rows[at]
    late = time[row] - grid.end(window)
    wait = np.where((time[row] > NEVER) & (late >= 0), late // grid.granularity_us, -1)
    if kind == "theta_join":
        order = sort_order(window, stream.side[row].astype(np.int64))
        window, row, wait = window[order], row[order], wait[order]
        bounds = run_bounds(window)
        middle = np.array([low + np.searchsorted(stream.side[row[low:high]], 1) for low, high in _pairs(bounds)])
        count = _theta(bounds, middle, stream.value[row], wait, np.empty((0, 2), np.int64))
        pairs = np.empty((count, 2), np.int64)
        _theta(bounds, middle, stream.value[row], wait, pairs)
        result_window, result_wait = window[bounds[pairs[:, 0]]], pairs[:, 1]
    else:
        side, key = stream.side[row].astype(np.int64), stream.key[row]
        order = sort_order(window, key, side, wait)
        window, key, side, wait = window[order], key[order], side[order], wait[order]
        first = run_bounds(window, key, side)[:-1]  # the first row of a side in time
        window, key, wait = window[first], key[first], wait[first]
        both = np.flatnonzero((window[1:] == window[:-1]) & (key[1:] == key[:-1]))
        result_window, result_wait = window[both], np.maximum(wait[both], wait[both + 1])
    order = sort_order(result_window, result_wait)
    result_window, result_wait = result_window[order], result_wait[order]
    bounds = run_bounds(result_window, result_wait)
    return result_window[bounds[:-1]], result_wait[bounds[:-1]], np.diff(bounds)


def _pairs(bounds: Int64) -> list[tuple[int, int]]:
    return list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))


@njit(cache=True)
def _theta(bounds, middle, value, wait, out):  # type: ignore[no-untyped-def]
    """Write (place of the window, longer wait) of all pairs with a larger left value, as `out` has room; count them."""
    count = 0
    for window in range(len(bounds) - 1):
        for left in range(bounds[window], middle[window]):
            for right in range(middle[window], bounds[window + 1]):
                if value[left] > value[right]:
                    if count < len(out):
                        out[count, 0], out[count, 1] = window, max(wait[left], wait[right])
                    count += 1
    return count


# -------------------------------------------------------------------------------------------------------------- joins


class JoinCase:
    """A stream with all pairs of its join and what they require.

    Parameters
    ----------
    stream : Stream
        The stream; rows of side 0 are joined with those of side 1 on the key, within ``join_window_us``.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        rows = [np.flatnonzero(stream.side == s) for s in (0, 1)]
        ts = [stream.event_time_us[r] for r in rows]
        pairs = band_pairs(ts[0], ts[1], stream.join_window_us, stream.key[rows[0]], stream.key[rows[1]])
        self.data = Input((rows[0], rows[1]), (ts[0], ts[1]), pairs)
        parameters = retention_parameters(self._query(0.95, earlier=True))
        self.spans = parameters.spans
        self.time, delay = stream_times(self.data)
        left, right = pairs[:, 0], pairs[:, 1]
        left_later = rows[0][left] > rows[1][right]
        self.later_time = np.where(left_later, self.time[0][left], self.time[1][right])
        self.earlier_time = np.where(left_later, ts[1][right], ts[0][left])
        self.side = left_later.astype(np.int8)
        self.required = self.later_time - stream.join_window_us - self.earlier_time
        everything = [np.ones(len(r), bool) for r in rows]
        # of all policies it needs most counts
        control = JoinControl(retention_policy(parameters, None, None), **self.spans)
        args = (self.time, delay, everything, np.ones(len(pairs), bool), self.later_time, self.side, self.required)
        self.summaries: list[IntervalSummary] = summaries(self.data, control, *args)
        # stream time begins when both sides have spoken, so every later row is in a period of the stream
        self.periods, self._place = np.unique(self.later_time // stream.period_us, return_inverse=True)
        self.learning = _first_after_learning(self.periods)

    def _query(self, target: float, *, earlier: bool) -> JoinSpec:
        spec = query("join", self.stream, target, "{guarantee: false}" if earlier else "")
        assert isinstance(spec, JoinSpec)
        return spec

    def run_default(self, target: float, *, earlier: bool = False) -> Outcome:
        """Run what a query runs that names no strategy; `earlier`: the rule of 0.1.0, which recalled nothing."""
        spec = self._query(target, earlier=earlier)
        return self.run(retention_policy(retention_parameters(spec), None, None), target, recall=spec.guarantee)

    def run(self, policy: RetentionPolicy, target: float, *, recall: bool = False) -> Outcome:
        """Run the control plane with a policy in its initial state; with `recall`, also the recall budget."""
        stream, w, length = self.stream, self.stream.join_window_us, self.spans["interval_us"]
        control = JoinControl(policy, **self.spans)
        horizons = control.step(self.summaries)
        at = [horizons.at(s, self.later_time, length, w) for s in (0, 1)]
        published = self.earlier_time > np.where(self.side == 0, at[0], at[1])
        accounts = {start // stream.period_us: account for start, account in control.accounts.items()}
        areas = dict.fromkeys(accounts, 0)
        recalls, wait_us = 0, 0.0
        if recall:
            late = [horizons.at(1 - s, self.time[s], length, w) >= self.data.ts[s] - w for s in (0, 1)]
            output = Output(published, self.later_time, self.required, self.side, (late[0], late[1]), horizons)
            budget = RecallBudget(target, period_us=stream.period_us, interval_us=length)
            chosen = recalled(self.data, output, control, budget)
            published = published | chosen
            recalls = len(np.unique(self.later_time[chosen] // length))
            budgets = {start // stream.period_us: period for start, period in budget.periods.items()}
            areas |= {number: period.recalled_area for number, period in budgets.items()}
            waits = {number: period.wait_us for number, period in budgets.items()}
            wait_us = self._mean(waits, {number: period.due for number, period in budgets.items()})
        weights = {period: account.weight_us for period, account in accounts.items()}
        held = {period: account.held_area for period, account in accounts.items()}
        lost = _sums(self._place, (~published).astype(np.float64), len(self.periods))
        return Outcome(
            self.periods,
            _sums(self._place, np.ones(len(published)), len(self.periods)),
            lost,
            lost,
            wait_us,
            self._mean(held, weights),
            self._mean(areas, weights),
            recalls,
            self.learning,
        )

    def _mean(self, areas: Mapping[int, int], weights: Mapping[int, int]) -> float:
        """Return the sum of areas over that of weights, both by period, after learning or of the whole stream."""
        if not len(self.periods):
            return 0.0
        first = self.learning if self.periods[-1] >= self.learning else self.periods[0]
        inside = [period for period in weights if first <= period <= self.periods[-1]]
        return sum(areas.get(period, 0) for period in inside) / max(sum(weights[period] for period in inside), 1)

    def needs(self, target: float) -> Int64:
        """Return, per period, the least constant retention of both buffers that keeps the promise, int64[p] us."""
        g = self.spans["granularity_us"]
        order = np.lexsort((self.required, self._place))
        starts = np.searchsorted(self._place[order], np.arange(len(self.periods) + 1))
        rank = np.maximum(np.ceil(target * np.diff(starts) - 1e-9).astype(np.int64), 1) - 1
        return np.asarray((self.required[order[starts[:-1] + rank]] // g + 1) * g, np.int64)

    def clairvoyant(self, target: float) -> Outcome:
        """Run the least constant retention that keeps the promise in `SHARE` of the periods that are judged."""
        constant = _least_constant(self.needs(target), self.periods, self.learning)
        return self.run(ConstantRetention(constant, constant), target)
