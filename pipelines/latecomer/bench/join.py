"""The benchmark of joins: what do a recall target and each way to choose the retention cost in rows held and latency?

Where the workload comes from: section 2 of QJoin. Ball and players of a football game, all pairs within 2 s of event
time and 5 m of distance, recall targets 0.85 to 0.99, period P 60 s, adaptation interval L 1 s, granularity g and
basic window b 10 ms. Figures 2a to 2d: mean rows held by P, L, b and g at targets 0.90 and 0.95 on D1, one parameter
varied at a time. Figures 3 and 4: latency and rows held over those of MP-K-slack. Added here: recall, the share of
periods that meet the target, the *clairvoyant*, and real logs (dns with ssl of one host within 10 s).

Where it departs from the paper:

* The football data are generated (:mod:`latecomer.bench.data`), with several seeds. One tuple in 32 is kept, so that
  all pairs fit into memory: pairs fall by 1,024 and their shares stay; rows held fall by 32 for every method.
* The models count results where the paper counts candidates, as the joins of this project do.
* Latency is stream time from the arrival of a pair's later tuple to its output, without computing time. QJoin's is 0
  by construction.

How it is measured: in memory. The retention that a pair requires is known without choosing one, so the statistics of
every adaptation interval are counted once. Every method is one pass of the control plane over them and then the set
formula. Rows held are exact: each row counts from its arrival to the arrival that drives it out, weighted by stream
time. The K-slack family holds rows in its reorder buffer and in its windows; the estimators hold their sample. The
first full P, in which every adaptive method keeps all rows, is left out. The *clairvoyant* is the least constant
retention, the same for both streams, that meets the target in 95% of the periods.

Cost: O(n log n + pairs log pairs) once, then O(pairs) per method and target.

References
----------
QJoin: Guangxi Sciences 27(3), 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.bench import data as workloads
from latecomer.bench import join_simulator, plots
from latecomer.bench.goals import Goal, Goals, Progress, Summary
from latecomer.bench.join_simulator import band_pairs, waits
from latecomer.core.arrays.composite_keys import pack_columns, unpack_columns
from latecomer.core.arrays.sparse_counts import SparseCounts
from latecomer.core.join import k_slack
from latecomer.core.join.control import Horizons, IntervalSummary, JoinControl, held_bucket_us
from latecomer.core.join.retention_policies import RetentionParameters
from latecomer.core.join.statistics import SAMPLE_FRACTION, delay_bucket, in_sample
from latecomer.core.time import NEVER, running_max, stream_time
from latecomer.strategies.join import retention_policy

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
Results: TypeAlias = dict[str, dict[str, dict[str, dict[str, float]]]]
"""Figures by workload, method, target and name."""

SECOND = 1_000_000
TARGETS = (0.85, 0.90, 0.95, 0.99)
QJOIN = ("paper", "delay_aware", "empirical", "calibrated")
SLACK = ("mp_k_slack", "k_slack", "aq_k_slack")
METHODS = (*QJOIN, *SLACK, "exact", "clairvoyant")
RADIUS_M = 5.0
FIGURE_2 = (
    ("a", "period_us", "period P [s]", SECOND, (10.0, 20.0, 60.0, 120.0)),
    ("b", "interval_us", "adaptation interval L [s]", SECOND, (0.1, 0.5, 1.0, 5.0)),
    ("c", "basic_window_us", "basic window b [ms]", 1_000, (1.0, 10.0, 100.0, 1_000.0)),
    ("d", "granularity_us", "granularity g [ms]", 1_000, (2.0, 10.0, 50.0, 200.0)),
)
"""Letter, parameter, label, unit in us, values. The paper does not print the values of its figures; these are ours."""
FIGURE_2_TARGETS = (0.90, 0.95)


@dataclass(frozen=True)
class Case:
    """Two streams in one arrival order, with all pairs of the exact join.

    Attributes
    ----------
    name : str
        Name of the workload and its seed.
    window_us : int
        Largest difference of event times in a pair.
    ts, seq : int64[n]
        Event time (us) and arrival number of each row, in arrival order.
    side : int8[n]
        Stream of each row: 0 left, 1 right.
    stream_time_us, delay : int64[n]
        Stream time at the arrival (``NEVER`` until both streams have been seen), and delay on the row's own stream; us.
    early, late : int64[m]
        Row of the earlier and of the later arrival of each pair.
    """

    name: str
    window_us: int
    ts: Int64
    side: NDArray[np.int8]
    seq: Int64
    stream_time_us: Int64
    delay: Int64
    early: Int64
    late: Int64

    @property
    def start_us(self) -> int:
        """The first defined stream time."""
        return int(self.stream_time_us[np.searchsorted(self.stream_time_us, NEVER, side="right")])

    @property
    def required(self) -> Int64:
        """The retention that each pair requires, int64[m] us."""
        return self.stream_time_us[self.late] - self.window_us - self.ts[self.early]


@dataclass(frozen=True)
class Outcome:
    """The quality and cost of a method. The periods that count begin after the first full period.

    Attributes
    ----------
    recall, recall_all : float
        Recall in the periods that count, and in all.
    met : float
        Share of the periods that count in which the recall reached the target.
    periods : int
        Periods that count.
    rows, rows_all : float
        Mean rows held over stream time, in the periods that count and in all.
    latency_us : float
        Mean latency of the results in the periods that count: stream time at output minus at the later arrival.
    """

    recall: float
    recall_all: float
    met: float
    periods: int
    rows: float
    rows_all: float
    latency_us: float


@dataclass(frozen=True)
class Measurement:
    """The outcome of one method at one target on one case of a workload."""

    workload: str
    case: str
    method: str
    target: float
    outcome: Outcome

    def to_row(self) -> dict[str, object]:
        """Return the measurement as a row of a table."""
        head = {"workload": self.workload, "case": self.case, "method": self.method, "target": self.target}
        return {**head, **asdict(self.outcome)}


def make_case(name: str, ts: Int64, side: NDArray[np.int8], seq: Int64, pairs: Int64, window_us: int) -> Case:
    """Build a case from rows in arrival order and its pairs of row numbers, int64[m, 2] in any order."""
    maxima = [running_max(np.where(side == s, ts, NEVER)) for s in (0, 1)]
    delay = np.where(side == 0, maxima[0], maxima[1]) - ts
    early, late = np.minimum(pairs[:, 0], pairs[:, 1]), np.maximum(pairs[:, 0], pairs[:, 1])
    return Case(name, window_us, ts, side, seq, stream_time(maxima), delay, early, late)


def football_case(which: str, seed: int, seconds: float | None, keep: float, window_us: int) -> Case:
    """Generate a football game: ball with players within `window_us` and `RADIUS_M`."""
    rows = workloads.football_join(seed, which, seconds, keep)
    ts, side = rows["event_time_us"].to_numpy(), rows["stream"].to_numpy()
    pairs = workloads.football_pairs(rows, window_us, RADIUS_M)
    return make_case(f"{which} seed {seed}", ts, side, np.arange(len(ts)), pairs, window_us)


def keyed_case(name: str, rows: pa.Table, window_us: int) -> Case:
    """Build a case of equal keys within `window_us` from a table of :func:`latecomer.bench.data.zeek`."""
    ts, side, seq, key = (rows[c].to_numpy() for c in ("event_time_us", "stream", "seq", "key"))
    left, right = (np.flatnonzero(side == s) for s in (0, 1))
    pairs = band_pairs(ts[left], ts[right], window_us, key[left], key[right])
    pairs = np.stack([left[pairs[:, 0]], right[pairs[:, 1]]], axis=1)
    return make_case(name, ts, side, seq, pairs, window_us)


def summarise(case: Case, interval_us: int, granularity_us: int, *, lateness: bool = False) -> list[IntervalSummary]:
    """Count the rows and pairs of a case per adaptation interval, as the data plane of the join does.

    Parameters
    ----------
    case : Case
        Streams and pairs.
    interval_us, granularity_us : int
        Adaptation interval, and resolution of required retentions.
    lateness : bool
        Count rows by their delay against stream time and pairs by no delay, as the calibrated estimator expects.
    """
    bucket = held_bucket_us(interval_us, granularity_us)
    timed = case.stream_time_us > NEVER
    number = case.stream_time_us // interval_us
    places = [np.flatnonzero(timed & (case.side == s)) for s in (0, 1)]
    arrived = [_count(number[p], case.ts[p] // bucket) for p in places]
    level = delay_bucket(case.stream_time_us - case.ts if lateness else case.delay, granularity_us)
    delays = [_count(number[p], level[p]) for p in places]
    columns = (
        number[case.late],
        case.side[case.early].astype(np.int64),
        case.required // granularity_us,
        np.full(len(case.late), -1) if lateness else level[case.late],
    )
    code, least, widths = _code(columns)
    code, place, counts = np.unique(code, return_inverse=True, return_counts=True)
    drawn = np.bincount(place, in_sample(case.seq[case.early], SAMPLE_FRACTION), len(code)).astype(np.int64)
    cells = np.stack([*unpack_columns(code, least, widths), counts, counts, drawn], axis=1)
    summaries, last = [], np.flatnonzero(timed & (number != np.append(number[1:], number[-1] + 1)))
    for row in last:
        interval = int(number[row])
        inside = slice(*np.searchsorted(cells[:, 0], [interval, interval + 1]))
        left, right, left_delays, right_delays = (_part(counted, interval) for counted in (*arrived, *delays))
        summaries.append(
            IntervalSummary(
                interval, int(case.stream_time_us[row]), (left, right), (left_delays, right_delays), cells[inside, 1:]
            )
        )
    return summaries


def counts(
    case: Case, settings: RetentionParameters, methods: Sequence[str] = METHODS
) -> dict[str, list[IntervalSummary]]:
    """Return, by method, the interval summaries that its control plane reads."""
    by_lateness = {
        method: retention_policy(settings_of(method, settings.target, case.window_us), None, None).needs_lateness
        for method in methods
    }
    summaries = {
        lateness: summarise(case, settings.interval_us, settings.granularity_us, lateness=lateness)
        for lateness in set(by_lateness.values())
    }
    return {method: summaries[lateness] for method, lateness in by_lateness.items()}


def _code(columns: Sequence[Int64]) -> tuple[Int64, list[int], list[int]]:
    packed = pack_columns(columns)
    assert packed is not None, "intervals, sides and buckets of a benchmark fit into 63 bits"
    return packed


def _count(number: Int64, bucket: Int64) -> Int64:
    """Count rows by interval and bucket: int64[k, 3] of interval, bucket, rows."""
    code, least, widths = _code((number, bucket))
    code, counts = np.unique(code, return_counts=True)
    return np.stack([*unpack_columns(code, least, widths), counts], axis=1)


def _part(counted: Int64, number: int) -> SparseCounts:
    """Return the buckets and counts of one interval."""
    low, high = np.searchsorted(counted[:, 0], [number, number + 1])
    return counted[low:high, 1], counted[low:high, 2]


def settings_of(method: str, target: float, window_us: int, quick: bool = False) -> RetentionParameters:
    """Return the paper's defaults: P 60 s (`quick`: 4 s), L 1 s, g and b 10 ms, and a fixed slack of one window."""
    strategy, estimator = ("qjoin", method) if method in QJOIN else (method, "paper")
    period_us = (4 if quick else 60) * SECOND
    return RetentionParameters(
        strategy, estimator, target, 0.95, window_us, period_us, SECOND, 10_000, 10_000, window_us
    )


def decide(settings: RetentionParameters, summaries: list[IntervalSummary]) -> tuple[Horizons, bool]:
    """Run the control plane over a whole input; return its horizons and whether the method holds a sample of rows."""
    policy = retention_policy(settings, None, None)
    control = JoinControl(
        policy,
        **settings.spans,
    )
    return control.step(summaries), bool(policy.needs_pairs)


def symmetric(case: Case, horizons: tuple[Int64, Int64]) -> Bool:
    """Apply QJoin's set formula: whether each pair is produced under the horizons of both streams, bool[m]."""
    at_late = np.where(case.side[case.early] == 0, horizons[0][case.late], horizons[1][case.late])
    return case.ts[case.early] > at_late


def reordered(case: Case, watermark_us: Int64) -> tuple[Bool, Int64]:
    """Return which pairs a reorder buffer produces, and when; see :func:`latecomer.bench.join_simulator.reordered`."""
    return join_simulator.reordered(case.ts, watermark_us, case.early, case.late)


def watermarks(case: Case, settings: RetentionParameters, horizons: Horizons) -> Int64:
    """Return the watermark of a K-slack method after each arrival, int64[n] us."""
    if settings.strategy == "aq_k_slack":
        watermark = horizons.at(0, case.stream_time_us, settings.interval_us, case.window_us) + case.window_us
        return running_max(np.where(watermark > NEVER // 2, watermark, NEVER))
    slack_us = None if settings.strategy == "mp_k_slack" else settings.slack_us or 0
    return k_slack.slack_watermark(case.stream_time_us, case.delay, slack_us)[0]


def run_method(case: Case, settings: RetentionParameters, summaries: list[IntervalSummary]) -> Outcome:
    """Run one method at one target over one case."""
    decided, sample = decide(settings, summaries)
    if settings.strategy in SLACK:
        watermark = watermarks(case, settings, decided)
        produced, output = reordered(case, watermark)
        horizon = np.where(watermark > NEVER, watermark - case.window_us, NEVER)
        return measure(case, settings, (horizon, horizon), produced, output, sample)
    left, right = (decided.at(s, case.stream_time_us, settings.interval_us, case.window_us) for s in (0, 1))
    return measure(case, settings, (left, right), symmetric(case, (left, right)), case.late, sample)


def measure(
    case: Case,
    settings: RetentionParameters,
    horizons: tuple[Int64, Int64],
    produced: Bool,
    output: Int64,
    sample: bool,
) -> Outcome:
    """Count recall, rows held and latency.

    Parameters
    ----------
    case, settings
        Streams with their pairs; the target and the lengths of period and adaptation interval.
    horizons : pair of int64[n]
        Horizon of each stream at each row, us; a row is driven out when its stream's horizon reaches its event time.
    produced : bool[m]
        Whether each pair is a result.
    output : int64[m]
        Row at whose arrival each pair is output; `n` is the flush.
    sample : bool
        Whether the method also holds the sample of its estimator.
    """
    clock = np.append(np.maximum(case.stream_time_us, case.start_us), case.stream_time_us[-1])
    first = _first_period(case, settings)
    period = case.stream_time_us[case.late] // settings.period_us
    number, place = np.unique(period, return_inverse=True)
    total = np.bincount(place, minlength=len(number))
    share = np.bincount(place, produced, len(number)) / total
    counted = number >= first
    driven_out = np.empty(len(case.ts), np.int64)
    for s in (0, 1):
        rows = np.flatnonzero(case.side == s)
        driven_out[rows] = np.maximum(np.searchsorted(horizons[s], case.ts[rows], side="left"), rows)
    until = clock[driven_out]
    if sample:
        reach = np.stack([running_max(np.where(case.side == s, case.delay, 0)) for s in (1, 0)])
        reach = reach[case.side, np.arange(len(case.ts))]
        drawn = in_sample(case.seq, SAMPLE_FRACTION)
        needed = np.minimum(case.ts + case.window_us + reach, clock[-1])
        until = np.where(drawn, np.maximum(until, needed), until)
    after = min(first * settings.period_us, int(clock[-1]) - 1)
    taken = produced & (period >= first)
    latency = waits(case.stream_time_us, output[taken], case.late[taken])
    return Outcome(
        recall=float((share * total)[counted].sum() / max(total[counted].sum(), 1)),
        recall_all=float(produced.mean()) if len(produced) else 1.0,
        met=float(np.mean(share[counted] >= settings.target)) if counted.any() else 1.0,
        periods=int(counted.sum()),
        rows=_mean_rows(clock, until, after),
        rows_all=_mean_rows(clock, until, case.start_us),
        latency_us=float(latency.mean()) if len(latency) else 0.0,
    )


def _mean_rows(clock: Int64, until: Int64, after_us: int) -> float:
    """Return the rows held, averaged over the stream time after `after_us`; each is held until the given time."""
    held = np.maximum(until - np.maximum(clock[:-1], after_us), 0)
    return float(held.sum() / max(int(clock[-1]) - after_us, 1))


def _first_period(case: Case, settings: RetentionParameters) -> int:
    """Return the number of the first period that begins after the adaptive methods have begun to adapt."""
    adapts_at_us = case.start_us // settings.interval_us * settings.interval_us + settings.period_us
    return -(-adapts_at_us // settings.period_us)


def clairvoyant(case: Case, settings: RetentionParameters, share: float = 0.95) -> Outcome:
    """Return the outcome of the least constant retention that meets the target in `share` of the periods that count."""
    period, required = case.stream_time_us[case.late] // settings.period_us, case.required
    order = np.lexsort((required, period))
    number, begin, count = np.unique(period[order], return_index=True, return_counts=True)
    rank = np.maximum(np.ceil(settings.target * count - 1e-9).astype(np.int64), 1) - 1
    least = required[order[begin + rank]][number >= _first_period(case, settings)]
    g = settings.granularity_us
    need = np.sort((least // g + 1) * g)
    keep = int(need[max(int(np.ceil(share * len(need) - 1e-9)), 1) - 1]) if len(need) else 0
    horizon = np.where(case.stream_time_us > NEVER, case.stream_time_us - case.window_us - keep, NEVER)
    return measure(case, settings, (horizon, horizon), symmetric(case, (horizon, horizon)), case.late, False)


def cases(data: Path | None, quick: bool) -> list[tuple[str, Callable[[], Case]]]:
    """Return, per case, its workload and a function that makes it; the seeds of a workload are averaged."""
    makers: list[tuple[str, Callable[[], Case]]] = []
    for which in ("D1",) if quick else ("D1", "D2"):
        for seed in (1,) if quick else (1, 2, 3):
            seconds, keep, window = (24.0, 1 / 64, SECOND) if quick else (None, 1 / 32, 2 * SECOND)
            makers.append((which, partial(football_case, which, seed, seconds, keep, window)))
    if data is not None and (data / "zeek_events.parquet").exists() and not quick:
        rows = workloads.zeek(data, "dns", "ssl", "orig_h")
        makers.append(("zeek", partial(keyed_case, "dns-ssl", rows, 10 * SECOND)))
    return makers


def run(data: Path | None, out: Path, progress: Progress, *, quick: bool = False) -> Summary:
    """Measure every method on every workload and draw figures 2 to 4; as :func:`latecomer.bench.run`."""
    targets = TARGETS[1:3] if quick else TARGETS
    measurements: list[Measurement] = []
    for number, (workload, make) in enumerate(cases(data, quick)):
        case = make()
        base = settings_of("paper", 0.9, case.window_us, quick)
        progress(f"{case.name}: {len(case.ts):,} rows, {len(case.early):,} pairs")
        if number == 0:
            vary(case, base, out, progress, quick)
        counted = counts(case, base)
        for method in METHODS:
            progress(f"{case.name}: {method}")
            for target in targets:
                settings = settings_of(method, target, case.window_us, quick)
                outcome = (
                    clairvoyant(case, settings)
                    if method == "clairvoyant"
                    else run_method(case, settings, counted[method])
                )
                measurements.append(Measurement(workload, case.name, method, target, outcome))
    _write_table(out, "join_measured", [measurement.to_row() for measurement in measurements])
    draw(out, measurements, targets)
    results = summarise_methods(measurements, targets)
    compare_with_slack(out, results, targets)
    return {**results, "goals": goals(results, targets, progress)}


def goals(results: Results, targets: Sequence[float], progress: Progress) -> list[Goal]:
    """Judge the default strategy by its goals, but for the speed, which :mod:`latecomer.bench.spark_speed` judges."""
    judged = Goals(progress)
    for workload, methods in results.items():
        for target in targets:
            figures, label = methods["calibrated"][str(target)], f"{workload}, recall {target:g}"
            judged.add(f"{label}: share of periods that met it", 0.95, figures["met"], "at least")
            judged.add(f"{label}: latency saved against MP-K-slack", 0.8, figures["latency_reduction"], "at least")
            judged.add(f"{label}: rows held saved against MP-K-slack", 0.5, figures["memory_reduction"], "at least")
            judged.add(f"{label}: rows held over the clairvoyant's", 1.3, figures["memory_over_clairvoyant"], "at most")
    return judged.lines


def vary(case: Case, base: RetentionParameters, out: Path, progress: Progress, quick: bool) -> None:
    """Draw figures 2a to 2d: one parameter varied at a time, the others at their defaults, targets 0.90 and 0.95.

    Only the paper's estimator has basic windows, so only it is drawn by `b`. On these data `b` makes no difference
    (``docs/experiments/join-benchmark.md``). Every run leaves out its own first period.
    """
    rows: list[dict[str, object]] = []
    for letter, name, label, unit_us, all_values in FIGURE_2:
        values = all_values[1:3] if quick else all_values
        methods = ("paper",) if letter == "c" else QJOIN
        held: dict[str, list[float]] = {}
        reached: dict[str, list[float]] = {}
        for value in values:
            progress(f"{case.name}: {label} {value:g}")
            settings = _with_value(base, name, round(value * unit_us * (0.2 if quick and letter == "a" else 1)))
            counted = counts(case, settings, methods)
            for method in methods:
                for target in FIGURE_2_TARGETS:
                    outcome = run_method(case, replace(settings, estimator=method, target=target), counted[method])
                    head = {"figure": f"2{letter}", "parameter": name, "value": value}
                    rows.append({**head, **asdict(outcome), "method": method, "target": target})
                    held.setdefault(f"{method}, {target:g}", []).append(outcome.rows)
                    reached.setdefault(f"{method}, {target:g}", []).append(outcome.recall)
        panels = {"mean rows held": held, "recall": reached}
        title = f"Figure 2{letter}: {case.name}; default {getattr(base, name) / unit_us:g} {label[-3:-1].strip('[')}"
        plots.panel_figure(
            out, f"join_fig2{letter}_{name.removesuffix('_us')}", label, values, panels, title=title, log_x=True
        )
    _write_table(out, "join_fig2_measured", rows)


def _with_value(settings: RetentionParameters, name: str, value_us: int) -> RetentionParameters:
    """Return the settings with one of their lengths changed."""
    changes = {name: value_us}
    return replace(settings, **changes)  # type: ignore[arg-type]  # the key may be any field


def _write_table(out: Path, name: str, rows: Sequence[Mapping[str, object]]) -> None:
    plots.table(out, name, list(rows[0]), [list(row.values()) for row in rows])


def mean_of(measurements: Sequence[Measurement], workload: str, method: str, target: float, figure: str) -> float:
    """Average a figure of :class:`Outcome` over a workload's seeds; `met` is weighted by the number of periods."""
    outcomes = [
        measurement.outcome
        for measurement in measurements
        if (measurement.workload, measurement.method, measurement.target) == (workload, method, target)
    ]
    weights = [outcome.periods if figure == "met" else 1 for outcome in outcomes]
    return float(np.average([getattr(outcome, figure) for outcome in outcomes], weights=weights))


def draw(out: Path, measurements: Sequence[Measurement], targets: Sequence[float]) -> None:
    """Draw, per workload, recall and periods met by target, figure 3 (latency) and figure 4 (rows held).

    Figures 3 and 4 are shares of the latency and rows of MP-K-slack at the same target. Methods whose lines coincide
    share a label: all that answer on arrival have latency 0.
    """
    figures = (
        ("fig2_recall", "recall", "recall reached", False),
        ("fig2_met", "met", "share of periods that met the target", False),
        ("fig3_latency", "latency_us", "mean latency, share of MP-K-slack's", False),
        ("fig4_rows", "rows", "mean rows held, share of MP-K-slack's", True),
    )
    for workload in dict.fromkeys(measurement.workload for measurement in measurements):
        title = ", ".join(dict.fromkeys(m.case for m in measurements if m.workload == workload))
        for name, figure, label, log in figures:
            lines = {m: [mean_of(measurements, workload, m, t, figure) for t in targets] for m in METHODS}
            if name.startswith(("fig3", "fig4")):
                base = [value or 1.0 for value in lines["mp_k_slack"]]
                lines = {m: [v / b for v, b in zip(values, base, strict=True)] for m, values in lines.items()}
            reference = {"recall": targets, "met": [0.95] * len(targets)}.get(figure)
            plots.line_figure(
                out, f"join_{name}_{workload}", "recall target", label, targets, lines, title=title, log=log,
                reference=reference, legend_outside=True,
            )  # fmt: skip


def compare_with_slack(out: Path, results: Results, targets: Sequence[float]) -> None:
    """Write the table of the paper's claims: latency (-80 to -95%) and rows held (-50 to -80%) against MP-K-slack."""
    columns = (
        "workload", "method", "target", "periods met", "latency change [%]", "rows held change [%]",
        "rows / clairvoyant's",
    )  # fmt: skip
    rows = []
    for workload, methods in results.items():
        for method, by_target in methods.items():
            for target in targets:
                figures = by_target[f"{target:g}"]
                changes = (-100 * figures["latency_reduction"], -100 * figures["memory_reduction"])
                over_clairvoyant = round(figures["memory_over_clairvoyant"], 2)
                rows.append(
                    (
                        workload,
                        method,
                        target,
                        round(figures["met"], 3),
                        *(round(c, 1) for c in changes),
                        over_clairvoyant,
                    )
                )
    plots.table(out, "join_against_mp_k_slack", columns, rows)


def summarise_methods(measurements: Sequence[Measurement], targets: Sequence[float]) -> Results:
    """Average the figures of every method, with its rows over the clairvoyant's and its savings against MP-K-slack."""
    results: Results = {}
    for workload in dict.fromkeys(measurement.workload for measurement in measurements):
        for method in METHODS:
            for target in targets:
                figures = {
                    figure: mean_of(measurements, workload, method, target, figure)
                    for figure in ("recall", "met", "rows", "rows_all", "latency_us")
                }
                slack_rows = mean_of(measurements, workload, "mp_k_slack", target, "rows")
                slack_latency = mean_of(measurements, workload, "mp_k_slack", target, "latency_us")
                best = mean_of(measurements, workload, "clairvoyant", target, "rows")
                results.setdefault(workload, {}).setdefault(method, {})[f"{target:g}"] = figures | {
                    "memory_reduction": 1 - figures["rows"] / slack_rows,
                    "latency_reduction": 1 - figures["latency_us"] / slack_latency if slack_latency else 0.0,
                    "memory_over_clairvoyant": figures["rows"] / best,
                }
    return results
